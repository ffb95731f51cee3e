//! Leases: decides how long a worker keeps a job without news. A leasing worker renews with every
//! message about the job and with every heartbeat. When a lease runs out, the job is taken back; a
//! worker that sends nothing at all is disconnected. A classic worker renews nothing: it has the
//! time of the delivery schedule, or no limit.

use std::time::Duration;

use super::action::{Action, WorkerOrder};
use super::broker::Broker;
use super::event::{Doing, WorkerClass};
use super::ids::{Attempt, ConnId, JobId, Micros, Run, WorkerId};
use super::job::{Job, Phase};
use super::record::{AttemptEnd, Record};
use super::timers::Due;
use crate::units::Span;

/// How far a worker is with a job that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseStage {
    /// It has not begun. Such an attempt does not count (C06).
    Given,
    /// It runs the job.
    Started,
    /// The job has ended there, and its result is on its way: it takes no place any more.
    Returning,
}

/// A job that a worker was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub run: Run,
    pub attempt: Attempt,
    /// How far the worker is.
    pub stage: LeaseStage,
    /// When it is over unless renewed. It has no end before it counts, nor where the worker cannot
    /// renew it.
    pub until: Option<Micros>,
    /// When the broker looks at it next.
    watched_at: Option<Micros>,
    /// When the job has had its time, and how much that was, where the worker does not see to it.
    time_limit: Option<(Micros, Duration)>,
}

impl Lease {
    /// A job that is given to a worker, of which nothing was heard yet.
    pub(super) fn given(run: Run, attempt: Attempt) -> Self {
        Lease {
            run,
            attempt,
            stage: LeaseStage::Given,
            until: None,
            watched_at: None,
            time_limit: None,
        }
    }

    /// Whether it is for this attempt. A worker that was not told to start does not know the run;
    /// attempts count over all runs.
    pub(super) fn is_of(&self, run: Run, attempt: Attempt) -> bool {
        (self.run == run || run == Run(0)) && self.attempt == attempt
    }

    /// The assignment is committed and sent to a worker of this class. A classic worker runs a job
    /// as soon as it is sent, and never reports that.
    pub(super) fn begin(&mut self, class: WorkerClass, until: Option<Micros>) {
        self.until = until;
        self.stage = match class {
            WorkerClass::Leasing => LeaseStage::Given,
            WorkerClass::Classic | WorkerClass::OneAtATime => LeaseStage::Started,
        };
    }

    /// Extends the lease, if it ends at all.
    fn renew(&mut self, until: Micros) {
        self.until = self.until.map(|_| until);
    }

    /// The worker reports its stage; returns the previous one. A late report about a job that has
    /// ended there changes nothing.
    fn advance(&mut self, doing: Doing) -> LeaseStage {
        let stage = match doing {
            Doing::Running => LeaseStage::Started,
            Doing::Returning => LeaseStage::Returning,
        };
        let before = self.stage;
        self.stage = before.max(stage);
        before
    }
}

/// Minimum delay before an undecided case is checked again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Broker {
    /// A worker said something.
    pub(super) fn heard_of(&mut self, conn: ConnId) {
        let now = self.now;
        if let Some(worker) = self.workers.at(conn).and_then(|worker| self.workers.get_mut(worker))
        {
            worker.heard_at = now;
            self.dirty |= std::mem::take(&mut worker.silent);
        }
    }

    pub(super) fn progress(
        &mut self,
        conn: ConnId,
        job: JobId,
        run: Run,
        attempt: Attempt,
        doing: Doing,
    ) {
        let Some(worker) = self.workers.at(conn) else { return };
        if !self.renew(worker, job, run, attempt) {
            self.order(WorkerOrder::Abandon { conn, job, attempt });
            return;
        }
        if self.state.job(job).is_some_and(|job| job.is_announced()) {
            // The worker is still receiving inputs: no job runs before it is accepted.
            return;
        }
        let lease = self.workers.get_mut(worker).and_then(|worker| worker.held.get_mut(&job));
        let before = lease.map(|lease| lease.advance(doing));
        let began = before == Some(LeaseStage::Given);
        // Its place is free, if it has offered that.
        self.dirty |= doing == Doing::Returning
            && before.is_some_and(|before| before < LeaseStage::Returning);
        let client =
            self.state.job(job).and_then(|known| self.submitter_of(job, &known.submission.client));
        if let (true, Some(conn)) = (began, client) {
            self.actions.push_back(Action::Running { conn, job, run, attempt });
        }
    }

    /// Renews a lease, if this worker holds it for this attempt.
    pub(super) fn renew(
        &mut self,
        worker: WorkerId,
        job: JobId,
        run: Run,
        attempt: Attempt,
    ) -> bool {
        let until = self.now.plus(self.config.lease);
        let lease = self.workers.get_mut(worker).and_then(|worker| worker.held.get_mut(&job));
        match lease.filter(|lease| lease.is_of(run, attempt)) {
            // One of a previous run of the leader has no end yet.
            Some(lease) if lease.until.is_none() && !self.assigning.contains(job) => {
                lease.until = Some(until);
                self.watch_lease(worker, job, until);
                true
            }
            Some(lease) => {
                lease.renew(until);
                true
            }
            None => false,
        }
    }

    /// A worker's connection is slow, and not silent: no lease ends meanwhile. Those of a previous
    /// run of the leader begin when the worker has said what it holds.
    pub(super) fn moves(&mut self, conn: ConnId) {
        let until = self.now.plus(self.config.lease);
        if let Some(worker) = self.workers.at(conn).and_then(|worker| self.workers.get_mut(worker))
        {
            worker.held.values_mut().for_each(|lease| lease.renew(until));
        }
    }

    pub(super) fn watch_lease(&mut self, worker: WorkerId, job: JobId, until: Micros) {
        if let Some(lease) =
            self.workers.get_mut(worker).and_then(|worker| worker.held.get_mut(&job))
        {
            lease.watched_at = Some(until);
            self.due.insert((until, Due::Lease(worker, job)));
        }
    }

    /// A lease is over: no look at it is due any more.
    pub(super) fn unwatch_lease(&mut self, worker: WorkerId, job: JobId, lease: &Lease) {
        if let Some(at) = lease.watched_at {
            self.due.remove(&(at, Due::Lease(worker, job)));
        }
        if let Some((at, _)) = lease.time_limit {
            self.due.remove(&(at, Due::TimeLimit(worker, job)));
        }
    }

    pub(super) fn lease_due(&mut self, id: WorkerId, job: JobId) {
        let Some(worker) = self.workers.get(id) else { return };
        let Some(until) = worker.held.get(&job).and_then(|lease| lease.until) else { return };
        if until > self.now {
            return self.watch_lease(id, job, until);
        }
        let Some(conn) = worker.conn() else {
            // While the worker is away, its grace time decides and not its leases.
            return self.watch_lease(id, job, self.now.plus(self.config.lease.max(LOOK_AGAIN)));
        };
        if let Some(lease) = worker.held.get(&job) {
            self.order(WorkerOrder::Abandon { conn, job, attempt: lease.attempt });
        }
        if let Some(worker) =
            self.workers.get_mut(id).filter(|worker| worker.class == WorkerClass::Leasing)
        {
            worker.silent = true;
        }
        self.lose(id, job, AttemptEnd::TimedOut);
    }

    /// Starts the time limit of a job at a worker that enforces none itself.
    pub(super) fn limit_time(
        &mut self,
        worker: WorkerId,
        job: JobId,
        attempt: Attempt,
        limit: Duration,
    ) {
        let at = self.now.plus(limit);
        let Some(worker_of) = self.workers.get_mut(worker) else { return };
        let Some(lease) = worker_of.held.get_mut(&job).filter(|lease| lease.attempt == attempt)
        else {
            return;
        };
        if let Some((before, _)) = lease.time_limit.replace((at, limit)) {
            self.due.remove(&(before, Due::TimeLimit(worker, job)));
        }
        self.due.insert((at, Due::TimeLimit(worker, job)));
    }

    /// A job has exceeded its time limit. Its client is told; the worker keeps running it, and the
    /// slot is free once the worker has answered.
    pub(super) fn time_limit_due(&mut self, worker: WorkerId, id: JobId) {
        let lease = self.workers.get(worker).and_then(|worker| worker.held.get(&id));
        let Some((lease, (at, limit))) = lease.and_then(|lease| Some((lease, lease.time_limit?)))
        else {
            return;
        };
        // The job may have ended, and another of its id be elsewhere.
        let is_there = |job: &Job| match job.phase {
            Phase::Leased { worker: holder, attempt, .. } => {
                holder == worker && attempt == lease.attempt
            }
            Phase::Queued { .. }
            | Phase::Gathering { .. }
            | Phase::Done { .. }
            | Phase::Dead { .. } => false,
        };
        if at > self.now || !self.state.job(id).is_some_and(is_there) {
            return;
        }
        let run = lease.run;
        let why = format!(
            "TIMEOUT: the job ran longer than its time limit of {} on a classic worker, which \
             cannot be stopped and keeps running it",
            Span(limit)
        );
        self.propose(Record::Fail { at: self.now, job: id, run, why: why.into() });
    }

    /// Looks at a worker that leases again when it has been silent for twice the time of a lease
    /// since `heard_at`.
    pub(super) fn watch_silence(&mut self, id: WorkerId, heard_at: Micros) {
        self.due.insert((heard_at.plus(self.config.lease * 2), Due::Silence(id)));
    }

    /// A connected leasing worker sends a sign of life well within a lease. A worker that does not
    /// hangs, or is cut off in a way the network does not show: its connection ends, and its grace
    /// begins.
    pub(super) fn silence_due(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let (conn, heard_at) = (worker.conn(), worker.heard_at);
        let Some(conn) = conn.filter(|_| worker.class == WorkerClass::Leasing) else { return };
        if heard_at.plus(self.config.lease * 2) > self.now {
            self.watch_silence(id, heard_at);
        } else {
            self.actions.push_back(Action::Close {
                conn,
                why: "the worker has been silent for twice its lease",
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_of_its_attempt_and_an_unknown_run_is_any() {
        let lease = Lease::given(Run(2), Attempt(3));
        assert!(lease.is_of(Run(2), Attempt(3)) && lease.is_of(Run(0), Attempt(3)));
        assert!(!lease.is_of(Run(1), Attempt(3)) && !lease.is_of(Run(2), Attempt(2)));
    }

    #[test]
    fn only_what_has_an_end_is_renewed() {
        let mut lease = Lease::given(Run(1), Attempt(1));
        lease.renew(Micros(9));
        assert_eq!(lease.until, None);
        lease.begin(WorkerClass::Leasing, Some(Micros(5)));
        lease.renew(Micros(9));
        assert_eq!((lease.until, lease.stage), (Some(Micros(9)), LeaseStage::Given));
        // What a classic worker is sent, it runs.
        lease.begin(WorkerClass::Classic, None);
        lease.renew(Micros(20));
        assert_eq!((lease.until, lease.stage), (None, LeaseStage::Started));
    }

    #[test]
    fn a_lease_only_advances() {
        let mut lease = Lease::given(Run(1), Attempt(1));
        assert_eq!(lease.advance(Doing::Running), LeaseStage::Given);
        assert_eq!(lease.advance(Doing::Returning), LeaseStage::Started);
        assert_eq!(lease.advance(Doing::Running), LeaseStage::Returning);
        assert_eq!(lease.stage, LeaseStage::Returning);
    }
}
