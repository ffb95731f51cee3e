//! Decides whether a worker's answer ends a job, and what follows.
//!
//! A result counts if its worker has an attempt of that job and run, or had one and is late (C07).
//! The record of an assignment is not synced before use and may be lost when the leader crashes. So
//! for one lease time after a leader's start, a result of a leasing worker for a job of the
//! previous run also counts if it names the run and an attempt the log does not know, and no worker
//! has the job. Anything weaker would let any worker end any job. The leader stores what came with
//! a result before it calls the broker.

use super::action::{Action, WorkerOrder};
use super::broker::Broker;
use super::event::{ClaimedAttempt, Outcome, WorkerClass};
use super::ids::{Attempt, ConnId, JobId, Run, WorkerId};
use super::job::{Job, Phase};
use super::record::{AttemptEnd, Lack, Record};

impl Broker {
    pub(super) fn ack(&mut self, conn: ConnId, id: JobId, named: ClaimedAttempt, outcome: Outcome) {
        let Some(worker) = self.workers.at(conn) else {
            return self.drop_result(outcome);
        };
        let named = self.as_named_by(worker, named);
        let now = self.now;
        // A worker whose assignment is not applied yet has not received the job, so it answers for
        // an earlier attempt.
        let is_unsent = self.assigning.worker_of(id) == Some(worker);
        let held = self.workers.get(worker).and_then(|worker| worker.held.get(&id));
        // A worker that names another run than the one it was given also answers for an earlier
        // attempt.
        let is_earlier = held.zip(named.run).is_some_and(|(lease, run)| lease.run != run);
        let lease = if is_unsent || is_earlier { None } else { self.release(worker, id) };
        if let Some(worker) = self.workers.get_mut(worker) {
            worker.answer(id, now);
        }
        if let Some(lease) = &lease {
            self.unwatch_lease(worker, id, lease);
        }
        self.watch_leak(worker);
        self.dirty = true;
        let Some(job) = self.state.job(id).filter(|job| !job.has_ended()) else {
            let run = named.run.or(self.state.job(id).map(|job| job.run)).unwrap_or(Run(0));
            self.order(WorkerOrder::Settle { conn, job: id, run });
            return self.drop_result(outcome);
        };
        let run = job.run;
        match (outcome, lease) {
            (Outcome::Returned { result, ok }, _) if self.may_end(worker, job, named) => {
                let had_lacked = job.lacked_at(worker).is_some();
                self.tallies.count(&job.submission.exec, worker, ok, now);
                self.propose(Record::Ack { at: self.now, job: id, run, worker, result, ok });
                if let Some(worker) = self.workers.get_mut(worker) {
                    // A job that has its place in spite of it proves nothing for larger ones.
                    worker.lacked =
                        worker.lacked.filter(|(lack, _)| !had_lacked && *lack == Lack::Room);
                }
            }
            (Outcome::Returned { .. }, _) => {
                self.actions.push_back(Action::AckRefused { conn, job: id });
                self.order(WorkerOrder::Settle { conn, job: id, run: named.run.unwrap_or(run) });
                self.drop_result(outcome);
            }
            (Outcome::ResultLost, Some(lease)) => {
                let others = self.others_than(worker, id);
                self.attempt_over(worker, id, lease, AttemptEnd::ResultLost, others);
            }
            (Outcome::GivenUp, Some(lease)) => {
                self.attempt_over(worker, id, lease, AttemptEnd::GivenUp, true);
            }
            (Outcome::Lacks(lack), Some(lease)) => {
                let why = match lack {
                    Lack::Room => AttemptEnd::DiskFull,
                    Lack::Directory => AttemptEnd::NoDirectory,
                    Lack::Program => AttemptEnd::NoProgram,
                };
                self.attempt_over(worker, id, lease, why, true);
            }
            // The worker need not keep anything of the job.
            (Outcome::ResultLost, None) => {
                let run = named.run.unwrap_or(run);
                self.order(WorkerOrder::Settle { conn, job: id, run });
            }
            (Outcome::GivenUp | Outcome::Lacks(_), None) => {}
        }
    }

    /// Whether this peer may not answer for a job, which has not ended. Then the parts that came
    /// with the answer are ignored, and parts from other workers for the same job stay.
    pub fn is_foreign_ack(&self, conn: ConnId, job: JobId, named: ClaimedAttempt) -> bool {
        let job = self.state.job(job).filter(|job| !job.has_ended());
        let worker = self.workers.at(conn);
        let Some((worker, job)) = worker.zip(job) else { return false };
        !self.may_end(worker, job, self.as_named_by(worker, named))
    }

    /// Whether a part of a result may come from the worker at this connection, for this attempt.
    /// Attempts count over all runs, so one of an earlier run is not among those that are known.
    pub fn may_bring(&self, conn: ConnId, job: JobId, attempt: Attempt) -> bool {
        let job = self.state.job(job).filter(|job| !job.has_ended());
        let worker = self.workers.at(conn);
        let Some((worker, job)) = worker.zip(job) else { return false };
        let is_now = matches!(job.phase, Phase::Leased { worker: held_by, attempt: held, .. }
            if held_by == worker && held == attempt);
        let was = job.history.iter().any(|note| note.attempt == attempt && note.worker == worker);
        is_now || was || self.may_be_forgotten(worker, job, attempt)
    }

    /// Whether a job is about to end: the record of its result is proposed and not yet committed.
    pub fn is_ending(&self, job: JobId) -> bool {
        let ends =
            |record: &Record| matches!(record, Record::Ack { job: ended, .. } if *ended == job);
        self.proposed().any(ends)
    }

    /// Only leasing workers are told runs and attempts. In the answer of another worker these
    /// members come from its program.
    fn as_named_by(&self, worker: WorkerId, named: ClaimedAttempt) -> ClaimedAttempt {
        match self.workers.get(worker).map(|worker| worker.class) {
            Some(WorkerClass::Leasing) => named,
            Some(WorkerClass::Classic | WorkerClass::OneAtATime) | None => {
                ClaimedAttempt::default()
            }
        }
    }

    fn may_end(&self, worker: WorkerId, job: &Job, named: ClaimedAttempt) -> bool {
        if named.run.is_some_and(|run| run != job.run) {
            return false;
        }
        let is_lost = || {
            // A guess would do otherwise: the run has to be named.
            let attempt = named.run.and(named.attempt);
            attempt.is_some_and(|attempt| self.may_be_forgotten(worker, job, attempt))
        };
        job.is_or_was_with(worker) || is_lost()
    }

    /// Whether the record that gave this attempt to the worker may have been lost with a previous
    /// run of the leader. It cannot have been lost if the job was submitted to this run of the
    /// leader, or if a connected worker has the job: then this run assigned it, or the worker
    /// reported it.
    fn may_be_forgotten(&self, worker: WorkerId, job: &Job, attempt: Attempt) -> bool {
        let Some(earlier) = self.earlier else { return false };
        let is_early =
            self.now < earlier.until.plus(self.config.lease) && job.seq <= earlier.last_seq;
        let is_leasing =
            self.workers.get(worker).is_some_and(|worker| worker.class == WorkerClass::Leasing);
        let is_free = match &job.phase {
            Phase::Queued { .. } => true,
            Phase::Leased { worker: holder, .. } => {
                // Until the holder is back, only the log says that it has the job.
                self.workers.get(*holder).is_some_and(|holder| holder.conn().is_none())
            }
            Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => false,
        };
        // A worker that was not told to start has no result, and the record of a start is never
        // lost.
        let can_have_it =
            !job.is_announced() && job.child_of.is_none_or(|(_, only)| only == worker);
        is_early && is_leasing && is_free && can_have_it && attempt > job.attempt
    }

    fn drop_result(&mut self, outcome: Outcome) {
        if let Outcome::Returned { result, .. } = outcome {
            self.actions.push_back(Action::ForgetResult { result });
        }
    }

    /// Whether another worker is connected that could still have the job.
    fn others_than(&self, worker: WorkerId, id: JobId) -> bool {
        let Some(job) = self.state.job(id) else { return false };
        if job.child_of.is_some() {
            return false;
        }
        let mut matching = Vec::new();
        self.workers.matching(job.submission.key.as_str(), &mut matching);
        self.retain_readers(job.payload_kind(), &mut matching);
        matching.iter().any(|other| *other != worker && !job.was_lost_at(*other))
    }
}
