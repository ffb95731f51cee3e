//! Handles jobs whose inputs come as transfers (C30): announced first, accepted when the inputs are
//! complete, dropped if they never are.
//!
//! Cut-through: an announced job may be assigned to a worker while its inputs arrive, and runs only
//! once it is accepted. The client connection that sends the inputs is tracked here too: without it
//! the job is not assigned, and after a while it is dropped. Bytes, spools and windows belong to
//! the leader; the broker hears only the outcome.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;

use super::action::{Action, Assignment, Refusal, WorkerOrder};
use super::broken;
use super::broker::Broker;
use super::event::{Inputs, Submission};
use super::ids::{Attempt, ConnId, JobId, Micros, Run, WorkerId};
use super::job::Phase;
use super::lease::LeaseStage;
use super::record::{AttemptEnd, Record};
use super::state::Applied;
use super::submit::Takings;
use super::timers::Due;

/// Jobs that are being taken, and what they still need for that.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Jobs that are being taken or announced.
    pub(super) enqueuing: Takings,
    /// Announced jobs whose inputs are here and that are being taken.
    pub(super) completing: HashSet<JobId>,
    /// Announced jobs that are being dropped, and whether they were submitted again meanwhile.
    pub(super) withdrawing: HashMap<JobId, Option<Resubmitted>>,
    /// Where the inputs come from that are not here.
    pub(super) sources: Sources,
}

impl Intake {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.enqueuing.len() + self.completing.len() + self.withdrawing.len() + self.sources.len()
    }
}

/// Where the inputs come from that are not here: the connection that submitted the job last.
#[derive(Debug, Default)]
pub(super) struct Sources {
    of: HashMap<JobId, Source>,
    at: BTreeMap<ConnId, BTreeSet<JobId>>,
}

#[derive(Clone, Copy, Debug)]
enum Source {
    Here(ConnId),
    /// The connection is gone; another one is waited for until then.
    Away(Micros),
}

impl Sources {
    /// Whether the connection is there from which a job's inputs come.
    pub(super) fn is_here(&self, job: JobId) -> bool {
        matches!(self.of.get(&job), Some(Source::Here(_)))
    }

    /// Jobs that need their client's connection.
    pub(super) fn len(&self) -> usize {
        self.of.len()
    }
}

/// An announced job that was submitted again while it was being dropped.
#[derive(Debug)]
pub(super) struct Resubmitted {
    conn: ConnId,
    job: Submission,
    /// Whether its inputs are here already, and whether the leader holds them.
    here: Option<bool>,
}

impl Broker {
    // --- announced, taken, dropped

    /// A job is announced: an ordinary one may go to a worker that takes its inputs as they come.
    pub(super) fn announced(&mut self, id: JobId) {
        if self.draining && !self.intake.completing.contains(&id) {
            return self.refuse_announced(id);
        }
        self.source_came(id);
        self.make_ready(id);
    }

    pub(super) fn inputs_here(&mut self, id: JobId, kept: bool) {
        if let Some(dropped) = self.intake.withdrawing.get_mut(&id) {
            if let Some(again) = dropped {
                again.here = Some(kept);
            }
            return;
        }
        if self.intake.completing.contains(&id) {
            return;
        }
        let pending =
            || self.intake.enqueuing.get(id).and_then(|taking| taking.announced.as_deref());
        let (run, job) = match self.state.job(id) {
            Some(job) if job.is_announced() && !job.has_ended() => {
                (job.run, job.submission.clone())
            }
            Some(_) => return,
            None => match pending() {
                Some(job) => (Run(1), job.clone()),
                None => return,
            },
        };
        let children = if job.to_all { self.children_of(&job) } else { Vec::new() };
        let is_taken = |(child, _): &(JobId, WorkerId)| self.state.job(*child).is_some();
        let refusal = match () {
            () if job.to_all && children.is_empty() => self.no_worker_for(&job),
            () if children.iter().any(is_taken) => Some(Refusal::Conflict { job: id }),
            () => None,
        };
        if let Some(refusal) = refusal {
            self.propose(Record::Fail {
                at: self.now,
                job: id,
                run,
                why: refusal.to_string().into(),
            });
            return;
        }
        self.intake.completing.insert(id);
        self.propose(Record::Enqueue { at: self.now, job, children, kept });
    }

    /// The record that takes a job has its turn.
    pub(super) fn end_taking(&mut self, job: &Submission) {
        match job.inputs {
            Inputs::Here => {
                self.intake.enqueuing.remove(job.job);
            }
            Inputs::Expected => {
                self.intake.completing.remove(&job.job);
            }
        }
    }

    /// An announced job is taken: its worker may start, or it may go to any that can have it now.
    pub(super) fn inputs_came(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} is taken, and is not known");
        };
        let run = job.run;
        match job.phase {
            Phase::Leased { worker, attempt, .. } => self.start(worker, id, run, attempt),
            // The job may now suit more workers.
            Phase::Queued { .. } => {
                let (key, client, place) =
                    (job.submission.key.clone(), job.submission.client.clone(), job.place());
                self.queues.remove(&key, &client, place);
                self.forget_delay(id);
            }
            Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => {}
        }
        if self.state.job(id).is_some_and(|job| !job.needs_client()) {
            self.drop_source(id);
        }
    }

    fn start(&mut self, worker: WorkerId, job: JobId, run: Run, attempt: Attempt) {
        // A worker that came back and still owes its inventory gets Start or Resume after the
        // inventory.
        let told = self.workers.get(worker).filter(|worker| !worker.owes_inventory);
        if let Some(conn) = told.and_then(|worker| worker.conn()) {
            let lease = self.config.lease;
            self.order(WorkerOrder::Start(Assignment {
                conn,
                worker,
                job,
                run,
                attempt,
                lease,
                start: true,
            }));
        }
    }

    /// The inputs of a job can never be had.
    pub(super) fn inputs_failed(&mut self, id: JobId, why: Arc<str>) {
        match self.state.job(id) {
            Some(job) if job.has_ended() => {}
            Some(job) if !job.is_announced() || self.intake.completing.contains(&id) => {
                let run = job.run;
                let would_retain = job.may_retain() || self.intake.completing.contains(&id);
                self.propose(Record::Fail { at: self.now, job: id, run, why });
                // Another run would fail for the same inputs.
                if would_retain {
                    self.propose(Record::DropInputs { job: id, run });
                }
            }
            Some(_) | None => self.drop_announced(id, why),
        }
    }

    pub(super) fn withdrawal(&mut self, id: JobId) {
        self.drop_announced(id, "its inputs were withdrawn".into());
    }

    /// Drops an announced job. One that had an end before, or that is being taken, cannot go
    /// without a trace.
    fn drop_announced(&mut self, id: JobId, why: Arc<str>) {
        if let Some(again) = self.intake.withdrawing.get_mut(&id) {
            *again = None;
            return;
        }
        let run = match self.state.job(id) {
            Some(job) if job.is_announced() && !job.has_ended() => job.run,
            Some(_) => return,
            None if self
                .intake
                .enqueuing
                .get(id)
                .is_some_and(|taking| taking.announced.is_some()) =>
            {
                Run(1)
            }
            None => return,
        };
        if run == Run(1) && !self.intake.completing.contains(&id) {
            self.intake.withdrawing.insert(id, None);
            self.propose(Record::Withdraw { job: id, run });
        } else {
            self.propose(Record::Fail { at: self.now, job: id, run, why });
        }
    }

    /// A job that is being dropped is submitted again: it is announced anew once it is gone. False
    /// for any other.
    pub(super) fn resubmitted(&mut self, conn: ConnId, job: &Submission) -> bool {
        let Some(again) = self.intake.withdrawing.get_mut(&job.job) else { return false };
        *again = Some(Resubmitted { conn, job: job.clone(), here: None });
        true
    }

    /// An announced job is gone, unless it ended first.
    pub(super) fn withdrawn(&mut self, id: JobId, applied: &Applied) {
        let again = self.intake.withdrawing.remove(&id).flatten();
        if let Applied::Withdrew(job) = applied {
            self.queues.remove(&job.submission.key, &job.submission.client, job.place());
            self.forget_delay_of(job);
            self.waits.forget(id);
            self.drop_source(id);
            self.clients.forget_submitter(id);
            self.settle(id, job.run, None);
            self.tell_end(id);
            // The same job again goes on with what there is of its inputs.
            if again
                .as_ref()
                .is_none_or(|again| again.job.fingerprint != job.submission.fingerprint)
            {
                self.actions.push_back(Action::ForgetInput { job: id });
            }
        }
        if let Some(Resubmitted { conn, job, here }) = again {
            self.submit(conn, job);
            if let Some(kept) = here {
                self.inputs_here(id, kept);
            }
        }
    }

    /// Whether a job that was announced is being dropped.
    pub fn is_withdrawing(&self, job: JobId) -> bool {
        self.intake.withdrawing.contains_key(&job)
    }

    /// No new jobs: those that are announced are not taken any more, either.
    pub(super) fn drain(&mut self) {
        self.draining = true;
        if self.config.durable {
            // The next life goes on with them.
            return;
        }
        let announced = |id: &JobId| {
            self.state.job(*id).is_some_and(|job| job.is_announced() && job.run == Run(1))
        };
        let mut jobs: Vec<JobId> =
            self.intake.sources.of.keys().copied().filter(announced).collect();
        jobs.sort_unstable();
        for job in jobs {
            self.refuse_announced(job);
        }
    }

    fn refuse_announced(&mut self, id: JobId) {
        if self.intake.completing.contains(&id) || self.intake.withdrawing.contains_key(&id) {
            return;
        }
        let client = self.state.job(id).map(|job| &job.submission.client);
        if let Some(conn) = client.and_then(|client| self.submitter_of(id, client)) {
            self.refuse(conn, id, Refusal::Draining);
        }
        self.drop_announced(id, Refusal::Draining.to_string().into());
    }

    // --- at a worker

    /// Whether a worker is the one that has a job, or is about to have it.
    pub(super) fn is_with(&self, job: JobId, worker: WorkerId) -> bool {
        match self.assigning.worker_of(job) {
            Some(next) => next == worker,
            None => self.state.job(job).is_some_and(
                |job| matches!(job.phase, Phase::Leased { worker: holder, .. } if holder == worker),
            ),
        }
    }

    /// The worker that holds a job cannot have its inputs: it is told to drop it, and answers for
    /// its credit.
    pub(super) fn inputs_refused(&mut self, id: JobId, attempt: Attempt, why: AttemptEnd) {
        let Some(job) = self.state.job(id) else { return };
        let Phase::Leased { worker, attempt: held, .. } = job.phase else { return };
        if held != attempt {
            return;
        }
        let Some(holder) =
            self.workers.get_mut(worker).filter(|holder| holder.held.contains_key(&id))
        else {
            return;
        };
        if let Some(conn) = holder.conn() {
            holder.refuse(id);
            self.order(WorkerOrder::Abandon { conn, job: id, attempt });
        }
        self.lose(worker, id, why);
    }

    /// A worker came back with a job: one that it is still receiving goes on, one that is not
    /// wanted from it any more is taken away.
    pub(super) fn brought_along(
        &mut self,
        worker: WorkerId,
        conn: ConnId,
        id: JobId,
        attempt: Attempt,
    ) {
        let job = self.state.job(id).filter(|job| !job.has_ended());
        let Some(job) = job.filter(|_| self.is_with(id, worker)) else {
            // It ended while the worker was away and could not be told.
            self.order(WorkerOrder::Abandon { conn, job: id, attempt });
            return;
        };
        let lease = self.workers.get(worker).and_then(|worker| worker.held.get(&id));
        let is_receiving = lease.is_some_and(|lease| lease.stage == LeaseStage::Given);
        if is_receiving && job.comes_by_transfer() {
            let (run, start, lease) = (job.run, !job.is_announced(), self.config.lease);
            let held = Assignment { conn, worker, job: id, run, attempt, lease, start };
            self.order(WorkerOrder::Resume(held));
        }
    }

    // --- the client's connection

    /// Whether the inputs of a job that needs its client can come. One whose client was away too
    /// long ends here.
    pub(super) fn is_fed(&mut self, id: JobId) -> bool {
        match self.intake.sources.of.get(&id) {
            Some(Source::Here(_)) => true,
            Some(Source::Away(until)) => {
                if *until <= self.now {
                    self.source_gone(id);
                }
                false
            }
            None => false,
        }
    }

    /// A job that needs its client is known, or was submitted again: its inputs come over this
    /// connection.
    pub(super) fn source_came(&mut self, id: JobId) {
        let Some(job) = self.state.job(id).filter(|job| job.needs_client()) else { return };
        match self.source_of(job) {
            Some(conn) => {
                self.drop_source(id);
                self.intake.sources.of.insert(id, Source::Here(conn));
                self.intake.sources.at.entry(conn).or_default().insert(id);
                self.make_ready(id);
            }
            None => self.source_away(id),
        }
    }

    /// A job is handed back. If it has come to need its client, which it did not before, that is
    /// waited for from now on.
    pub(super) fn watch_source(&mut self, id: JobId) {
        if !self.intake.sources.of.contains_key(&id) {
            self.source_came(id);
        }
    }

    /// Jobs whose inputs came over this connection are not given out until they are submitted
    /// again.
    pub(super) fn sources_left(&mut self, conn: ConnId) {
        for job in self.intake.sources.at.remove(&conn).unwrap_or_default() {
            self.source_away(job);
        }
    }

    pub(super) fn source_away(&mut self, id: JobId) {
        self.drop_source(id);
        let until = self.now.plus(self.config.input_wait);
        self.intake.sources.of.insert(id, Source::Away(until));
        self.due.insert((until, Due::Source(id)));
        self.take_out_of_queue(id);
    }

    fn take_out_of_queue(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} waits for its client, and is not known");
        };
        self.queues.remove(&job.submission.key, &job.submission.client, job.place());
        self.forget_delay(id);
        self.waits.forget(id);
    }

    /// A job does not need its client any more.
    pub(super) fn drop_source(&mut self, id: JobId) {
        match self.intake.sources.of.remove(&id) {
            Some(Source::Here(conn)) => {
                if let Some(jobs) = self.intake.sources.at.get_mut(&conn) {
                    jobs.remove(&id);
                    if jobs.is_empty() {
                        self.intake.sources.at.remove(&conn);
                    }
                }
            }
            Some(Source::Away(until)) => {
                self.due.remove(&(until, Due::Source(id)));
            }
            None => {}
        }
    }

    pub(super) fn source_due(&mut self, id: JobId) {
        // A job whose worker has all inputs goes on. A worker that still waits for inputs will not
        // get them. A job with a pending assignment is checked when that is applied.
        let is_over = self.state.job(id).is_some_and(|job| match job.phase {
            Phase::Queued { .. } => true,
            Phase::Leased { .. } => job.is_announced(),
            Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => false,
        });
        if is_over && !self.assigning.contains(id) {
            self.source_gone(id);
        }
    }

    fn source_gone(&mut self, id: JobId) {
        if self.intake.completing.contains(&id) || self.intake.withdrawing.contains_key(&id) {
            return;
        }
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} waited for its client, and is not known");
        };
        let why: Arc<str> =
            format!("input gone with client {}: submit it again", job.submission.client).into();
        self.inputs_failed(id, why);
    }

    /// A dead job has another run. Its client had its end and keeps nothing for it: inputs that are
    /// not here come again only if it hands the job in again.
    pub(super) fn revived(&mut self, id: JobId) {
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} has another run, and is not known");
        };
        let (client, needs_client) = (job.submission.client.clone(), job.needs_client());
        // The previous end of the job does not count any more.
        self.no_longer_undelivered(&client, id);
        if needs_client {
            self.source_away(id);
        }
        self.wait_until(id, self.now);
    }
}
