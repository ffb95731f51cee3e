//! Time: the moments at which the broker has to look at something again, and what it does then.

use std::collections::BTreeSet;
use std::time::Duration;

use super::action::Action;
use super::broker::Broker;
use super::event::WorkerClass;
use super::ids::{Attempt, ConnId, JobId, Micros, WorkerId};
use super::job::{Job, Phase};
use super::record::{AttemptEnd, Record};
use super::worker::{Lease, Presence};
use crate::units::Span;

/// A moment at which the broker has to look at something again. What it points to may have changed meanwhile; it is
/// looked up when its time comes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Due {
    /// A lease may be over.
    Lease(WorkerId, JobId),
    /// A job has run as long as it may, at a worker that does not stop it.
    TimeLimit(WorkerId, JobId),
    /// A classic client has had time to submit something new.
    Redeliver(ConnId),
    /// A job has waited long enough.
    Ready(JobId),
    /// A worker has been away long enough.
    Grace(WorkerId),
    /// A worker may have lost a credit.
    Leak(WorkerId),
    /// The oldest result may have been kept long enough.
    Expire,
    /// A worker may have said nothing for too long.
    Silence(WorkerId),
    /// A client has been away long enough from a job that needs its connection.
    Source(JobId),
    /// A job has waited long enough for a worker that has its data.
    Delay(JobId),
    /// A dataset may be made of a job's inputs after all.
    Stage(JobId),
    /// A pass gave out all it may; there may be more.
    NextPass,
}

/// When to look again at what cannot be decided yet, at the soonest.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Broker {
    pub(super) fn look_at_what_is_due(&mut self) {
        while let Some((_, due)) = self.due.pop_first_if(self.now) {
            match due {
                Due::Lease(worker, job) => self.lease_due(worker, job),
                Due::Redeliver(conn) => self.redelivery_due(conn),
                Due::TimeLimit(worker, job) => self.time_limit_due(worker, job),
                Due::Ready(job) => {
                    self.make_ready(job);
                }
                Due::Grace(worker) => self.grace_due(worker),
                Due::Leak(worker) => self.leak_due(worker),
                Due::Expire => self.expiry_due(),
                Due::Silence(worker) => self.silence_due(worker),
                Due::Source(job) => self.source_due(job),
                Due::Delay(job) => self.delay_due(job),
                Due::Stage(job) => self.stage_again(job),
                Due::NextPass => self.dirty = true,
            }
        }
    }

    pub(super) fn pass_again(&mut self) {
        self.due.insert((self.now, Due::NextPass));
    }

    pub(super) fn watch_lease(&mut self, worker: WorkerId, job: JobId, until: Micros) {
        if let Some(lease) = self.workers.get_mut(worker).and_then(|worker| worker.held.get_mut(&job)) {
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

    /// A job is with a worker that knows no time limits, and may run for so long.
    pub(super) fn limit_time(&mut self, worker: WorkerId, job: JobId, attempt: Attempt, limit: Duration) {
        let at = self.now.plus(limit);
        let Some(worker_of) = self.workers.get_mut(worker) else { return };
        let Some(lease) = worker_of.held.get_mut(&job).filter(|lease| lease.attempt == attempt) else {
            return;
        };
        if let Some((before, _)) = lease.time_limit.replace((at, limit)) {
            self.due.remove(&(before, Due::TimeLimit(worker, job)));
        }
        self.due.insert((at, Due::TimeLimit(worker, job)));
    }

    /// A job has had its time. Its client hears so; the worker goes on with it, and its place is free when it has answered.
    fn time_limit_due(&mut self, worker: WorkerId, id: JobId) {
        let lease = self.workers.get(worker).and_then(|worker| worker.held.get(&id));
        let Some((lease, (at, limit))) = lease.and_then(|lease| Some((lease, lease.time_limit?))) else {
            return;
        };
        // The job may have ended, and another of its id be elsewhere.
        let is_there = |job: &Job| match job.phase {
            Phase::Leased { worker: holder, attempt, .. } => holder == worker && attempt == lease.attempt,
            Phase::Queued { .. } | Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => false,
        };
        if at > self.now || !self.state.job(id).is_some_and(is_there) {
            return;
        }
        let run = lease.run;
        let why = format!(
            "TIMEOUT: the job ran longer than its time limit of {} on a classic worker, which cannot be stopped and goes on with it",
            Span(limit)
        );
        self.propose(Record::Fail { at: self.now, job: id, run, why: why.into() });
    }

    fn lease_due(&mut self, id: WorkerId, job: JobId) {
        let Some(worker) = self.workers.get(id) else { return };
        let Some(until) = worker.held.get(&job).and_then(|lease| lease.until) else { return };
        if until > self.now {
            return self.watch_lease(id, job, until);
        }
        let Some(conn) = worker.conn() else {
            // While it is away its grace decides, not its leases.
            return self.watch_lease(id, job, self.now.plus(self.config.lease.max(LOOK_AGAIN)));
        };
        if let Some(lease) = worker.held.get(&job) {
            self.actions.push_back(Action::Abandon { conn, job, attempt: lease.attempt });
        }
        if let Some(worker) = self.workers.get_mut(id).filter(|worker| worker.class == WorkerClass::Leasing) {
            worker.silent = true;
        }
        self.lose(id, job, AttemptEnd::TimedOut);
    }

    /// Looks at a worker that leases again when it has been silent for twice the time of a lease since `heard_at`.
    pub(super) fn watch_silence(&mut self, id: WorkerId, heard_at: Micros) {
        self.due.insert((heard_at.plus(self.config.lease * 2), Due::Silence(id)));
    }

    /// A worker that leases and is connected says that it lives well within a lease. One that does not hangs, or is cut
    /// off in a way that the network does not show: its connection ends, and its grace begins.
    fn silence_due(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get(id) else { return };
        let (conn, heard_at) = (worker.conn(), worker.heard_at);
        let Some(conn) = conn.filter(|_| worker.class == WorkerClass::Leasing) else { return };
        if heard_at.plus(self.config.lease * 2) > self.now {
            self.watch_silence(id, heard_at);
        } else {
            self.actions
                .push_back(Action::Close { conn, why: "the worker has said nothing for twice its lease" });
        }
    }

    /// Looks after a worker's credit later, once however often it answers meanwhile.
    pub(super) fn watch_leak(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id).filter(|worker| worker.may_leak()) else { return };
        if !std::mem::replace(&mut worker.leak_watched, true) {
            self.due.insert((self.now.plus(self.config.credit_leak_after), Due::Leak(id)));
        }
    }

    fn leak_due(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id) else { return };
        let until = worker.answered_at.plus(self.config.credit_leak_after);
        if until > self.now {
            self.due.insert((until, Due::Leak(id)));
            return;
        }
        worker.leak_watched = false;
        let lost = worker.lost_credits();
        worker.lend(lost);
        self.dirty |= lost > 0;
    }

    fn grace_due(&mut self, id: WorkerId) {
        let Some(since) = self.workers.get(id).and_then(|worker| match worker.presence {
            Presence::Away(since) => Some(since),
            Presence::Here(_) => None,
        }) else {
            return;
        };
        let until = since.plus(self.config.worker_grace);
        if until > self.now {
            self.due.insert((until, Due::Grace(id)));
        } else {
            self.worker_gone(id);
        }
    }
}

/// Takes the first entry of a set of moments whose time has come.
trait PopDue {
    fn pop_first_if(&mut self, now: Micros) -> Option<(Micros, Due)>;
}

impl PopDue for BTreeSet<(Micros, Due)> {
    fn pop_first_if(&mut self, now: Micros) -> Option<(Micros, Due)> {
        if self.first()?.0 > now {
            return None;
        }
        self.pop_first()
    }
}
