//! Invariants between events: the indexes agree with the state, and no job is lost between them.
//! Debug builds check after every event while there are few jobs, and occasionally while there are
//! many.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::broker::Broker;
use super::ids::JobId;
use super::job::{Job, Phase};
use super::record::Record;
use super::timers::Due;

/// With at most this many jobs and bytes of names, the invariants are checked after every event.
#[cfg(debug_assertions)]
const JOBS_FEW: usize = 1_000;
#[cfg(debug_assertions)]
const NAMES_BYTES_FEW: u64 = 1024 * 1024;

/// With more, they are checked once in this many events.
#[cfg(debug_assertions)]
const EVENTS_BETWEEN: u64 = 1_000;

/// Whether an invariant holds, or what does not.
type Checked = Result<(), String>;

fn holds(what: bool, why: impl FnOnce() -> String) -> Checked {
    if what { Ok(()) } else { Err(why()) }
}

impl Broker {
    /// Ends a debug build in which an invariant does not hold.
    #[cfg(debug_assertions)]
    #[allow(
        clippy::panic,
        reason = "a broken index is a mistake of ours, and tests have to see it"
    )]
    pub(super) fn assert_invariants(&mut self) {
        self.events += 1;
        let few = self.state.job_count() <= JOBS_FEW && self.state.names_bytes() <= NAMES_BYTES_FEW;
        if (few || self.events.is_multiple_of(EVENTS_BETWEEN))
            && let Err(broken) = self.check_invariants()
        {
            panic!("an invariant of the broker does not hold: {broken}");
        }
    }

    /// Says which invariant does not hold, if one does not.
    pub fn check_invariants(&self) -> Checked {
        self.state.check()?;
        self.queues.check()?;
        self.workers.check()?;
        self.clients.check()?;
        self.assigning.check()?;
        self.check_jobs()?;
        self.check_notes()
    }

    fn check_jobs(&self) -> Checked {
        let queued: HashMap<JobId, (&Job, usize)> = self
            .queues
            .keys()
            .flat_map(|(key, _)| self.queues.jobs_of(key))
            .filter_map(|id| Some((id, self.state.job(id)?)))
            .fold(HashMap::new(), |mut all, (id, job)| {
                all.entry(id).or_insert((job, 0)).1 += 1;
                all
            });
        let in_queues: usize = queued.values().map(|(_, times)| times).sum();
        holds(in_queues == self.queues.len(), || {
            format!("{} jobs wait, and {in_queues} of them are known", self.queues.len())
        })?;
        for (id, (job, times)) in &queued {
            holds(*times == 1, || format!("{id} waits in {times} places"))?;
            holds(matches!(job.phase, Phase::Queued { .. }), || {
                format!("{id} waits and is {:?}", job.phase)
            })?;
            holds(job.child_of.is_none(), || format!("{id} is a child and waits with others"))?;
            holds(!self.assigning.contains(*id), || format!("{id} waits and is being given out"))?;
        }
        let pinned: HashSet<JobId> =
            self.queues.pinned.values().flat_map(BTreeMap::values).copied().collect();
        let proposed: HashSet<JobId> = self.proposed().filter_map(job_of).collect();
        let ready: HashSet<JobId> = self
            .due
            .iter()
            .filter_map(|(_, due)| if let Due::Ready(job) = due { Some(*job) } else { None })
            .collect();
        for job in self.state.jobs() {
            let id = job.id();
            match &job.phase {
                Phase::Queued { not_before } => {
                    let is_somewhere = queued.contains_key(&id)
                        || pinned.contains(&id)
                        || proposed.contains(&id)
                        || self.assigning.contains(id)
                        || self.waits_for_client(job)
                        || *not_before > self.now && ready.contains(&id);
                    holds(is_somewhere, || {
                        format!("{id} waits, and nobody will ever give it out")
                    })?;
                }
                Phase::Leased { worker, attempt, .. } => {
                    let holder = self.workers.get(*worker);
                    let lease = holder.and_then(|holder| holder.held.get(&id));
                    let is_held = lease
                        .is_some_and(|lease| lease.attempt == *attempt && lease.run == job.run);
                    holds(is_held || proposed.contains(&id), || {
                        format!(
                            "{id} is with worker {worker} in attempt {attempt}, which has {lease:?}"
                        )
                    })?;
                }
                Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => {}
            }
        }
        Ok(())
    }

    /// Whether a job cannot be given out because its inputs are with a client, or are to come
    /// first.
    fn waits_for_client(&self, job: &Job) -> bool {
        job.is_announced() && job.submission.to_all
            || job.needs_client() && !self.intake.sources.is_here(job.id())
    }

    /// Every index entry belongs to a job that is known.
    fn check_notes(&self) -> Checked {
        for (client, jobs) in &self.results.undelivered {
            for id in jobs {
                let job = self.state.job(*id);
                holds(
                    job.is_some_and(|job| job.has_ended() && job.submission.client == *client),
                    || {
                        format!(
                            "the result of {id} waits for client {client}, and there is none: {job:?}"
                        )
                    },
                )?;
            }
            holds(!jobs.is_empty(), || format!("client {client} waits for no result"))?;
        }
        for id in self.clients.submitters.keys() {
            let is_known = self.state.job(*id).is_some() || self.intake.enqueuing.contains(*id);
            holds(is_known || self.intake.withdrawing.contains_key(id), || {
                format!("somebody submitted {id}, which is not known")
            })?;
        }
        Ok(())
    }
}

/// The job that a record changes.
fn job_of(record: &Record) -> Option<JobId> {
    match record {
        Record::Announce { job, .. } | Record::Enqueue { job, .. } => Some(job.job),
        Record::Assign { job, .. }
        | Record::Ack { job, .. }
        | Record::Requeue { job, .. }
        | Record::Dlq { job, .. }
        | Record::Cancel { job, .. }
        | Record::Withdraw { job, .. }
        | Record::Fail { job, .. }
        | Record::Orphan { job, .. }
        | Record::Revive { job, .. }
        | Record::DropInputs { job, .. }
        | Record::Forget { job, .. }
        | Record::Delivered { job, .. } => Some(*job),
        Record::Cap { .. }
        | Record::Dataset { .. }
        | Record::Stage { .. }
        | Record::DatasetGone { .. }
        | Record::Term { .. }
        | Record::Members { .. }
        | Record::Level { .. }
        | Record::Mark { .. }
        | Record::Office { .. } => None,
    }
}
