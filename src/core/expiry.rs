//! Decides how long ended jobs are remembered.
//!
//! The oldest are forgotten first, when their time is over or there are too many. Jobs end
//! in `state.rs`, where the first result wins.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::action::Action;
use super::broker::Broker;
use super::forgotten::{Forgotten, WhyForgotten};
use super::ids::{ClientId, Index, JobId, Micros, Run};
use super::job::Job;
use super::record::Record;
use super::timers::Due;

/// Jobs that are looked at for one whose result was sent.
const LOOKS_MAX: usize = 4_096;

/// Jobs that ended, and who is to hear of them.
#[derive(Debug, Default)]
pub(super) struct Results {
    /// Results that nobody was there for.
    pub(super) undelivered: BTreeMap<ClientId, BTreeSet<JobId>>,
    /// Results that their clients have, which is proposed and not yet applied.
    pub(super) confirming: HashSet<(JobId, Run)>,
    /// Jobs whose end somebody waits for.
    watched: BTreeSet<JobId>,
    /// Those that are not known any more.
    pub(super) forgotten: Forgotten,
    /// Jobs that ended, the oldest first, and whether a look at them is due.
    ended: VecDeque<(Micros, JobId, Run)>,
    expiry_watched: bool,
}

impl Results {
    /// How much is kept of results that are to be delivered.
    pub(super) fn len(&self) -> usize {
        let undelivered = self.undelivered.values().map(BTreeSet::len).sum::<usize>();
        undelivered + self.confirming.len() + self.watched.len()
    }
}

/// Whether a job that ended is still of this run: it may run again, or have run again.
fn is_of(run: Run) -> impl FnOnce(&&Job) -> bool {
    move |job| job.run == run && job.has_ended()
}

impl Broker {
    /// Somebody waits for the end of a job.
    pub(super) fn watch(&mut self, id: JobId) {
        self.results.watched.insert(id);
        if !self.has_yet_to_end(id) {
            self.tell_end(id);
        }
    }

    /// Whether a job is known, or about to be, and has not ended.
    pub fn has_yet_to_end(&self, id: JobId) -> bool {
        match self.state.job(id) {
            Some(job) => !job.has_ended(),
            None => self.intake.enqueuing.contains(id),
        }
    }

    /// Nobody waits for the end of a job any more.
    pub(super) fn unwatch(&mut self, id: JobId) {
        self.results.watched.remove(&id);
    }

    /// A job has ended, or is gone: whoever waits for that hears it.
    pub(super) fn tell_end(&mut self, id: JobId) {
        if self.results.watched.remove(&id) {
            self.actions.push_back(Action::Ended { job: id });
        }
    }

    pub(super) fn keep_for_a_while(&mut self, job: JobId, run: Run) {
        self.keep_since(self.now, job, run);
    }

    /// The same for one that ended then; the oldest first.
    pub(super) fn keep_since(&mut self, at: Micros, job: JobId, run: Run) {
        self.results.ended.push_back((at, job, run));
        while self.results.ended.len() > self.config.results_max {
            if let Some((_, job, run)) = self.results.ended.pop_front() {
                self.forget(job, run, WhyForgotten::TooMany);
            }
        }
        self.watch_expiry();
    }

    /// Jobs that have ended, the oldest first, and whether the result of each was sent to its
    /// client.
    pub fn oldest_ended(&self) -> impl Iterator<Item = (&Job, bool)> {
        let waits = |job: &Job| {
            self.results
                .undelivered
                .get(&job.submission.client)
                .is_some_and(|jobs| jobs.contains(&job.id()))
        };
        let ended = self.results.ended.iter().take(LOOKS_MAX);
        let known = ended.filter_map(|(_, job, run)| self.state.job(*job).filter(is_of(*run)));
        known.map(move |job| (job, job.delivered && !waits(job)))
    }

    /// A client has a result.
    pub(super) fn was_delivered(&mut self, id: JobId, run: Run) {
        let is_news = |job: &&Job| job.run == run && job.has_ended() && !job.delivered;
        if self.state.job(id).filter(is_news).is_some() && self.results.confirming.insert((id, run))
        {
            self.propose(Record::Delivered { job: id, run });
        }
    }

    /// A result was on its way, and its connection is gone: it goes to another one of its client,
    /// or waits until the client comes back. A client that has it already, from another connection,
    /// gets it no second time.
    pub(super) fn not_delivered(&mut self, id: JobId) {
        let has_it = |job: &Job| job.delivered || self.results.confirming.contains(&(id, job.run));
        if self.state.job(id).is_some_and(|job| job.child_of.is_none() && !has_it(job)) {
            self.deliver(id);
        }
    }

    /// There is no room for the inputs of a failed job any more.
    pub(super) fn drop_inputs(&mut self, id: JobId) {
        if let Some(run) = self.state.job(id).filter(|job| job.retains_inputs()).map(|job| job.run)
        {
            self.propose(Record::DropInputs { job: id, run });
        }
    }

    pub(super) fn forget_ended(&mut self, job: JobId) {
        // One that has run again since stands there for each of its runs.
        let run = self.state.job(job).map(|job| job.run);
        let mut looks = self.results.ended.iter().take(LOOKS_MAX);
        let at = looks.position(|(_, ended, of)| *ended == job && Some(*of) == run);
        if let Some((_, job, run)) = at.and_then(|at| self.results.ended.remove(at)) {
            self.forget(job, run, WhyForgotten::Room);
        }
    }

    /// Looks at the oldest result again when its time is over: one moment for all of them.
    fn watch_expiry(&mut self) {
        if let Some((at, _, _)) =
            self.results.ended.front().filter(|_| !self.results.expiry_watched)
        {
            self.due.insert((at.plus(self.config.result_ttl), Due::Expire));
            self.results.expiry_watched = true;
        }
    }

    pub(super) fn expiry_due(&mut self) {
        self.results.expiry_watched = false;
        let (now, ttl) = (self.now, self.config.result_ttl);
        while let Some((_, job, run)) =
            self.results.ended.front().copied().filter(|(at, _, _)| at.plus(ttl) <= now)
        {
            self.results.ended.pop_front();
            self.forget(job, run, WhyForgotten::Expired);
        }
        self.watch_expiry();
    }

    /// Forgets an ended job, its children and their results, once that is committed: until then
    /// they can be asked for.
    pub(super) fn forget(&mut self, id: JobId, run: Run, why: WhyForgotten) -> Option<Index> {
        let job = self.state.job(id).filter(|job| job.run == run && job.has_ended())?;
        for job in job.children.iter().chain([&id]) {
            self.results.forgotten.note(*job, why);
        }
        Some(self.propose(Record::Forget { job: id, run }))
    }

    /// A job is not known any more, and nothing of it is needed.
    pub(super) fn forgot(&mut self, job: &Job) {
        if let Some((_, result)) = job.returned() {
            self.actions.push_back(Action::ForgetResult { result });
        }
        if job.may_run_again() {
            self.actions.push_back(Action::ForgetInput { job: job.id() });
        }
        self.clients.forget_submitter(job.id());
        self.no_longer_undelivered(&job.submission.client, job.id());
    }

    /// A result is on its way to its client, or is forgotten.
    pub(super) fn no_longer_undelivered(&mut self, client: &ClientId, job: JobId) {
        if let Some(jobs) = self.results.undelivered.get_mut(client) {
            jobs.remove(&job);
            if jobs.is_empty() {
                self.results.undelivered.remove(client);
            }
        }
    }
}
