//! Schedules the broker's timers and runs the due ones.

use std::collections::BTreeSet;

use super::broker::Broker;
use super::ids::{ConnId, JobId, Micros, WorkerId};
use super::worker::Presence;

/// A moment at which the broker has to look at something again. What it points to may have changed
/// meanwhile; it is looked up when its time comes.
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
    /// A job may have waited long enough for a worker that has its program, or a worker been
    /// avoided long enough.
    Placement,
    /// A pass gave out all it may; there may be more.
    NextPass,
}

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
                Due::Placement => self.placement_due(),
                Due::NextPass => self.dirty = true,
            }
        }
    }

    pub(super) fn pass_again(&mut self) {
        self.due.insert((self.now, Due::NextPass));
    }

    /// Looks after a worker's credit later, once however often it answers meanwhile.
    pub(super) fn watch_leak(&mut self, id: WorkerId) {
        let Some(worker) = self.workers.get_mut(id).filter(|worker| worker.may_leak()) else {
            return;
        };
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

/// Takes the first entry of a dataset of moments whose time has come.
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
