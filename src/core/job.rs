//! A job as the broker knows it: ids, sizes and where it stands. Its payload and its result lie with the driver.

use std::sync::Arc;

use super::event::{Inputs, Submission, WorkerClass, kind_of, names_bytes};
use super::ids::{Attempt, CacheId, ClientId, JobId, Micros, ResultId, Run, WorkerId};
use super::payload::{FileNames, PayloadKind};
use super::queue::{Place, Rank};
use super::record::{AttemptEnd, Lack};
use super::subject::RoutingKey;

/// Where a job stands. Each state carries what only it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It waits for a worker.
    Queued {
        /// Not before this moment.
        not_before: Micros,
    },
    /// A worker has it.
    Leased {
        /// Which.
        worker: WorkerId,
        /// Which attempt.
        attempt: Attempt,
        /// What kind of worker it is.
        class: WorkerClass,
    },
    /// A job to all workers waits for its children.
    Gathering {
        /// How many have not ended.
        left: usize,
    },
    /// It has ended.
    Done {
        /// When.
        at: Micros,
        /// How.
        ending: Ending,
    },
    /// It is in the dead-letter queue. To its client that is an end, too.
    Dead {
        /// Since when.
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
        /// Who returned it.
        worker: WorkerId,
    },
    /// Someone ended it.
    Cancelled {
        /// Who.
        by: Arc<str>,
    },
    /// All children of a job to all workers have ended.
    Gathered {
        /// Whether all of them are OK.
        ok: bool,
    },
    /// A child whose worker is gone.
    Orphaned,
    /// The leader ended it.
    Failed {
        /// Why.
        why: Arc<str>,
    },
}

/// An attempt that ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptNote {
    /// Which.
    pub attempt: Attempt,
    /// At which worker.
    pub worker: WorkerId,
    /// How.
    pub why: AttemptEnd,
}

/// A job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// Whose it is.
    pub client: ClientId,
    /// Where it belongs.
    pub key: RoutingKey,
    /// The program it names; empty for a raw job.
    pub exec: Arc<str>,
    /// Smaller first.
    pub priority: i64,
    /// Its place among all jobs.
    pub seq: u64,
    /// Bytes of its payload.
    pub size: u64,
    /// A digest of its payload.
    pub fingerprint: [u8; 32],
    /// Whether every matching worker gets it.
    pub to_all: bool,
    /// How its inputs come, or came.
    pub inputs: Inputs,
    /// Whether they are still to come: it is known and not taken.
    pub announced: bool,
    /// Whether the leader holds them. If not, a further attempt needs its client's connection.
    pub inputs_kept: bool,
    /// Whether only a worker that can take transfers may have it.
    pub needs_transfers: bool,
    /// The datasets that its files are of, each once.
    pub datasets: Vec<CacheId>,
    /// What the names of its files are to classic workers.
    pub names: FileNames,
    /// Which run this is.
    pub run: Run,
    /// The attempt that was made last.
    pub attempt: Attempt,
    /// Attempts of this run that count toward the limit.
    pub spent: u32,
    /// Attempts of this run that ended without a result.
    pub history: Vec<AttemptNote>,
    /// The job to all workers it is a child of, and the worker it is for.
    pub child_of: Option<(JobId, WorkerId)>,
    /// The children of a job to all workers.
    pub children: Vec<JobId>,
    /// Whether the result of this run was sent to its client.
    pub delivered: bool,
    /// Where it stands.
    pub phase: Phase,
}

impl Job {
    pub(super) fn new(at: Micros, seq: u64, submission: &Submission) -> Self {
        Job {
            id: submission.job,
            client: submission.client.clone(),
            key: submission.key.clone(),
            exec: submission.exec.clone(),
            priority: submission.priority,
            seq,
            size: submission.size,
            fingerprint: submission.fingerprint,
            to_all: submission.to_all,
            inputs: submission.inputs,
            announced: false,
            inputs_kept: true,
            needs_transfers: submission.needs_transfers,
            datasets: submission.datasets.clone(),
            names: submission.names,
            run: Run(1),
            attempt: Attempt(0),
            spent: 0,
            history: Vec::new(),
            child_of: None,
            children: Vec::new(),
            delivered: false,
            phase: Phase::Queued { not_before: at },
        }
    }

    /// Bytes of the texts that it keeps in memory.
    pub fn names_bytes(&self) -> u64 {
        names_bytes(&self.client, &self.key, &self.exec, &self.datasets)
    }

    /// Whether its client has, or may have, its answer.
    pub fn has_ended(&self) -> bool {
        match self.phase {
            Phase::Queued { .. } | Phase::Leased { .. } | Phase::Gathering { .. } => false,
            Phase::Done { .. } | Phase::Dead { .. } => true,
        }
    }

    /// The job as it was handed in, now that it is known and need not ask for a worker any more.
    pub(super) fn submission(&self) -> Submission {
        Submission {
            job: self.id,
            client: self.client.clone(),
            key: self.key.clone(),
            exec: self.exec.clone(),
            priority: self.priority,
            to_all: self.to_all,
            size: self.size,
            fingerprint: self.fingerprint,
            inputs: self.inputs,
            needs_transfers: self.needs_transfers,
            require_worker: false,
            datasets: self.datasets.clone(),
            names: self.names,
        }
    }

    /// Whether an attempt needs its client's connection.
    pub fn needs_client(&self) -> bool {
        !self.has_ended() && (self.announced || !self.inputs_kept)
    }

    /// Whether a worker that takes transfers gets inputs of it as such.
    pub fn comes_by_transfer(&self) -> bool {
        self.inputs == Inputs::Expected || self.needs_transfers || self.is_staged()
    }

    /// Whether its inputs are a dataset by now, for a stock worker's agent (C01).
    pub fn is_staged(&self) -> bool {
        self.datasets.iter().any(|cache| cache.job() == Some(self.id))
    }

    /// Whether only a worker that can take transfers may have it as it stands.
    pub fn goes_by_transfer(&self) -> bool {
        self.needs_transfers || self.announced
    }

    /// What it asks of a worker.
    pub fn payload_kind(&self) -> PayloadKind {
        kind_of(&self.exec, self.names)
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

    /// Its place among those of its client and key that wait.
    pub(super) fn place(&self) -> Place {
        Place { priority: self.priority, seq: self.seq }
    }

    /// Whether it counts toward its client's cap. Children do not: their number is the number of workers.
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

    /// Attempts of this run, as far as they are noted, that did not begin as their workers lacked something.
    pub(super) fn lacking_attempts(&self) -> usize {
        self.history.iter().filter(|note| note.why.lack().is_some()).count()
    }

    /// What a worker lacked for it when it had it last in this run.
    pub fn lacked_at(&self, worker: WorkerId) -> Option<Lack> {
        self.history.iter().rev().filter(|note| note.worker == worker).find_map(|note| note.why.lack())
    }

    /// Whether the last attempt ended without a word from its worker, which may be at it still.
    pub(super) fn may_still_run(&self) -> bool {
        self.history.last().is_some_and(|note| match note.why {
            AttemptEnd::TimedOut | AttemptEnd::WorkerLost => true,
            AttemptEnd::NotHeld
            | AttemptEnd::ResultLost
            | AttemptEnd::GivenUp
            | AttemptEnd::InputsStalled
            | AttemptEnd::DiskFull
            | AttemptEnd::NoDirectory
            | AttemptEnd::InputsBad => false,
        })
    }

    /// Whether a worker that says it lost the result may be asked again: not in this run.
    pub fn was_lost_at(&self, worker: WorkerId) -> bool {
        self.history.iter().any(|note| note.worker == worker && note.why == AttemptEnd::ResultLost)
    }
}
