//! A job as the broker knows it: ids, sizes and state. The driver has its payload and its result.

use std::sync::Arc;

use super::event::{Inputs, Submission, WorkerClass};
use super::ids::{Attempt, CacheId, JobId, Micros, ResultId, Run, WorkerId};
use super::payload::PayloadKind;
use super::queue::{Place, Rank};
use super::record::{AttemptEnd, Lack};

/// A job's state, with the data specific to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a worker.
    Queued {
        /// Not before this moment.
        not_before: Micros,
    },
    /// A worker has it.
    Leased {
        worker: WorkerId,
        attempt: Attempt,
        /// The kind of worker.
        class: WorkerClass,
    },
    /// A job to all workers waits for its children.
    Gathering {
        /// How many have not ended.
        left: usize,
    },
    /// It has ended.
    Done { at: Micros, ending: Ending },
    /// It is in the dead-letter queue. To its client that is an end, too.
    Dead {
        at: Micros,
        /// How its last attempt ended.
        why: AttemptEnd,
    },
}

/// How a job ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// A worker returned a result.
    Returned {
        /// Where its bytes are.
        result: ResultId,
        /// Whether its status is OK.
        ok: bool,
        /// The worker that returned it.
        worker: WorkerId,
    },
    /// Someone ended it.
    Cancelled { by: Arc<str> },
    /// All children of a job to all workers have ended.
    Gathered {
        /// Whether all of them are OK.
        ok: bool,
    },
    /// A child whose worker is gone.
    Orphaned,
    /// The leader ended it.
    Failed { why: Arc<str> },
}

/// An attempt that ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptNote {
    pub attempt: Attempt,
    /// At which worker.
    pub worker: WorkerId,
    pub why: AttemptEnd,
    /// When the worker was given the job, if that is known.
    pub began: Option<Micros>,
    /// When the attempt ended, if that is known.
    pub ended: Option<Micros>,
}

/// An attempt of a run before this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EarlierAttempt {
    pub run: Run,
    pub attempt: Attempt,
    /// At which worker.
    pub worker: WorkerId,
    /// How it ended; none if it returned the result that ended the run, which was not OK.
    pub why: Option<AttemptEnd>,
    /// When the worker was given the job, if that is known.
    pub began: Option<Micros>,
    /// When the attempt ended, if that is known.
    pub ended: Option<Micros>,
}

/// When things happened to a job, as far as that is known: older logs and snapshots do not say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Times {
    pub submitted: Option<Micros>,
    /// When the worker was given the job that has it, or that ended it with its result.
    pub assigned: Option<Micros>,
}

impl AttemptNote {
    /// What the worker lacked for any job with inputs.
    fn lacked_place(&self) -> Option<Lack> {
        self.why.lack().filter(|lack| *lack != Lack::Program)
    }
}

/// Where the inputs of a job are. They arrive with its payload or by transfer, and go the same way
/// to workers that take transfers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InputsState {
    /// They are still to come: the job is known and not taken.
    Announced,
    /// They came, and the leader does not hold them: a further attempt needs its client's
    /// connection.
    PassedOn,
    /// The leader holds them. Those of a job that has ended are dropped with its end, unless
    /// [`Job::retains_inputs`].
    Kept,
    /// The leader holds them, as in `Kept`, and they are also staged as a dataset for the agents of
    /// classic workers (C01).
    Staged {
        /// That dataset and those the job names, in order.
        datasets: Vec<CacheId>,
    },
    /// The leader dropped them after the job had failed, to make room: it cannot run again.
    Dropped,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// What was submitted. `require_worker` is not kept: the job was accepted, and waits for a
    /// worker.
    pub submission: Submission,
    /// Its place among all jobs.
    pub seq: u64,
    /// Where its inputs are.
    pub inputs: InputsState,
    /// Which run this is.
    pub run: Run,
    /// The attempt that was made last.
    pub attempt: Attempt,
    /// Attempts of this run that count toward the limit.
    pub spent: u32,
    /// Attempts of this run that ended without a result.
    pub history: Vec<AttemptNote>,
    /// Attempts of the runs before it, the oldest first. They are shown, and nothing follows from
    /// them.
    pub earlier: Box<[EarlierAttempt]>,
    /// The job to all workers it is a child of, and the worker it is for.
    pub child_of: Option<(JobId, WorkerId)>,
    /// The children of a job to all workers.
    pub children: Vec<JobId>,
    /// Whether the result of this run was sent to its client.
    pub delivered: bool,
    pub times: Times,
    /// Where it stands.
    pub phase: Phase,
}

impl Job {
    pub(super) fn new(at: Micros, seq: u64, submission: Submission) -> Self {
        Job {
            submission: Submission { require_worker: false, ..submission },
            seq,
            inputs: InputsState::Kept,
            run: Run(1),
            attempt: Attempt(0),
            spent: 0,
            history: Vec::new(),
            earlier: Box::default(),
            child_of: None,
            children: Vec::new(),
            delivered: false,
            times: Times { submitted: Some(at), assigned: None },
            phase: Phase::Queued { not_before: at },
        }
    }

    pub fn id(&self) -> JobId {
        self.submission.job
    }

    /// Bytes of the texts that it keeps in memory.
    pub fn names_bytes(&self) -> u64 {
        self.submission.names_bytes()
    }

    /// Whether its client has, or may have, its answer.
    pub fn has_ended(&self) -> bool {
        match self.phase {
            Phase::Queued { .. } | Phase::Leased { .. } | Phase::Gathering { .. } => false,
            Phase::Done { .. } | Phase::Dead { .. } => true,
        }
    }

    /// The attempts of the runs before the next one, at most so many: the oldest are left out.
    pub(super) fn attempts_so_far(&self, max: usize) -> Box<[EarlierAttempt]> {
        let run = self.run;
        let mut attempts = self.earlier.to_vec();
        attempts.extend(self.history.iter().map(|note| {
            let AttemptNote { attempt, worker, why, began, ended } = *note;
            EarlierAttempt { run, attempt, worker, why: Some(why), began, ended }
        }));
        if let Phase::Done { at, ending: Ending::Returned { worker, .. } } = self.phase {
            // The worker of an attempt that is noted was late, and the first all the same (C07).
            let is_noted = self.history.last().is_some_and(|note| note.attempt == self.attempt);
            let mut of_run = attempts.iter_mut().filter(|attempt| is_noted && attempt.run == run);
            match of_run.rfind(|attempt| attempt.worker == worker) {
                Some(late) => late.why = None,
                None => attempts.push(EarlierAttempt {
                    run,
                    attempt: self.attempt,
                    worker,
                    why: None,
                    began: self.times.assigned,
                    ended: Some(at),
                }),
            }
        }
        attempts.drain(..attempts.len().saturating_sub(max));
        attempts.into()
    }

    /// Whether it has ended and can have another run.
    pub fn may_run_again(&self) -> bool {
        let is_dead = matches!(self.phase, Phase::Dead { .. }) && self.child_of.is_none();
        is_dead || self.retains_inputs()
    }

    /// Whether it failed, and the leader still holds its inputs for another run. One to all workers
    /// has no other run: each of its workers has answered.
    pub fn retains_inputs(&self) -> bool {
        let has_failed = match &self.phase {
            Phase::Done { ending, .. } => match ending {
                Ending::Returned { ok, .. } => !ok,
                Ending::Failed { .. } => true,
                Ending::Cancelled { .. } | Ending::Gathered { .. } | Ending::Orphaned => false,
            },
            Phase::Queued { .. }
            | Phase::Leased { .. }
            | Phase::Gathering { .. }
            | Phase::Dead { .. } => false,
        };
        has_failed && self.may_retain()
    }

    /// Whether its inputs would stay, should it fail now.
    pub(super) fn may_retain(&self) -> bool {
        self.child_of.is_none() && !self.submission.to_all && self.holds_inputs()
    }

    /// Whether the leader holds its inputs, as far as it has not ended.
    fn holds_inputs(&self) -> bool {
        match self.inputs {
            InputsState::Announced | InputsState::PassedOn | InputsState::Dropped => false,
            InputsState::Kept | InputsState::Staged { .. } => true,
        }
    }

    /// Whether its inputs are still to come.
    pub fn is_announced(&self) -> bool {
        self.inputs == InputsState::Announced
    }

    /// Whether its inputs are a dataset by now, for agents of classic workers (C01).
    pub fn is_staged(&self) -> bool {
        matches!(self.inputs, InputsState::Staged { .. })
    }

    /// The datasets that a worker needs for it, each once, in order.
    pub fn datasets(&self) -> &[CacheId] {
        match &self.inputs {
            InputsState::Staged { datasets } => datasets,
            InputsState::Announced
            | InputsState::PassedOn
            | InputsState::Kept
            | InputsState::Dropped => &self.submission.datasets,
        }
    }

    /// Its inputs are this dataset, too.
    pub(crate) fn stage(&mut self, dataset: CacheId) {
        let mut datasets = self.submission.datasets.clone();
        datasets.push(dataset);
        datasets.sort_unstable();
        self.inputs = InputsState::Staged { datasets };
    }

    /// Whether an attempt needs its client's connection.
    pub fn needs_client(&self) -> bool {
        !self.has_ended() && !self.holds_inputs()
    }

    /// Whether a worker that takes transfers gets inputs of it as such.
    pub fn comes_by_transfer(&self) -> bool {
        self.submission.inputs == Inputs::Expected || self.submission.needs_transfers
    }

    /// Whether only a worker that can take transfers may have its inputs, once they are here.
    pub fn needs_transfers(&self) -> bool {
        self.submission.needs_transfers && !self.is_staged()
    }

    /// Whether only a worker that can take transfers may have it as it stands.
    pub fn goes_by_transfer(&self) -> bool {
        self.needs_transfers() || self.is_announced()
    }

    /// The kind of its payload.
    pub fn payload_kind(&self) -> PayloadKind {
        self.submission.payload_kind()
    }

    /// Among which jobs it waits to be given out.
    pub(super) fn rank(&self) -> Rank {
        if self.goes_by_transfer() {
            return Rank::ByTransfer;
        }
        match self.payload_kind() {
            PayloadKind::Request => Rank::Plain,
            PayloadKind::Folders => Rank::Folders,
            PayloadKind::Raw => Rank::Raw,
        }
    }

    /// Its place in the queue of its client and key.
    pub(super) fn place(&self) -> Place {
        Place { priority: self.submission.priority, seq: self.seq }
    }

    /// Whether it counts toward its client's cap. Children do not: their number is the number of
    /// workers.
    pub fn is_capped(&self) -> bool {
        self.child_of.is_none()
    }

    /// Whether a worker has an attempt of this run, or had one.
    pub fn is_or_was_with(&self, worker: WorkerId) -> bool {
        self.is_with(worker) || self.history.iter().any(|note| note.worker == worker)
    }

    /// Whether a worker has it.
    pub fn is_with(&self, worker: WorkerId) -> bool {
        matches!(self.phase, Phase::Leased { worker: held_by, .. } if held_by == worker)
    }

    /// Attempts of this run, as far as they are noted, that did not begin as their workers had no
    /// room or no directory.
    pub(super) fn lacking_attempts(&self) -> usize {
        self.history.iter().filter(|note| note.lacked_place().is_some()).count()
    }

    /// The same, as their workers did not have its program.
    pub(super) fn attempts_without_program(&self) -> usize {
        self.history.iter().filter(|note| note.why == AttemptEnd::NoProgram).count()
    }

    /// What the worker lacked at the job's last attempt there in this run, but for its program: a
    /// worker may have that by now, and says so.
    pub fn lacked_at(&self, worker: WorkerId) -> Option<Lack> {
        self.history
            .iter()
            .rev()
            .filter(|note| note.worker == worker)
            .find_map(AttemptNote::lacked_place)
    }

    /// The worker that returned its result, and which that is.
    pub fn returned(&self) -> Option<(WorkerId, ResultId)> {
        let Phase::Done { ending: Ending::Returned { worker, result, .. }, .. } = &self.phase
        else {
            return None;
        };
        Some((*worker, *result))
    }

    /// Whether the last attempt ended without a word from its worker, which may be at it still.
    pub(super) fn may_still_run(&self) -> bool {
        let last = self.history.last();
        last.is_some_and(|note| matches!(note.why, AttemptEnd::TimedOut | AttemptEnd::WorkerLost))
    }

    /// Whether a worker that says it lost the result may be asked again: not in this run.
    pub fn was_lost_at(&self, worker: WorkerId) -> bool {
        self.history.iter().any(|note| note.worker == worker && note.why == AttemptEnd::ResultLost)
    }
}
