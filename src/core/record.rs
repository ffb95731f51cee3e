//! Records, the only way state changes. Each is committed before it takes effect.

use std::sync::Arc;

use uuid::Uuid;

use super::dataset::Dataset;
use super::event::{Submission, WorkerClass};
use super::ids::{
    Attempt, CacheId, ClientId, JobId, Level, Micros, Node, ResultId, Run, Term, WorkerId,
};
use super::members::Members;

/// A committed change. Except for `Announce`, the first variants are the events of the founding
/// documents (PE03).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// A job is announced: it is known, and transfers bring its inputs (C30).
    Announce { at: Micros, job: Submission },
    /// `enqueue`: a job is taken.
    Enqueue {
        at: Micros,
        job: Submission,
        /// For a job to all workers: the child for each of them.
        children: Vec<(JobId, WorkerId)>,
        /// Whether the leader holds its inputs.
        kept: bool,
    },
    /// `assign`: a worker gets a job.
    Assign {
        /// When. Absent in logs older than kind 19.
        at: Option<Micros>,
        job: JobId,
        run: Run,
        attempt: Attempt,
        worker: WorkerId,
        /// Determines whether the worker is expected back with the job after a restart of the
        /// leader.
        class: WorkerClass,
    },
    /// `ack`: a job ended with a result.
    Ack {
        at: Micros,
        job: JobId,
        run: Run,
        /// The worker that returned it.
        worker: WorkerId,
        result: ResultId,
        /// Whether its status is OK.
        ok: bool,
    },
    /// `timeout_requeue`, `worker_down_requeue`: an attempt ended without a result and the job
    /// waits again.
    Requeue {
        /// When it ended. Absent in logs older than kind 20.
        at: Option<Micros>,
        job: JobId,
        run: Run,
        /// Which attempt ended.
        attempt: Attempt,
        why: AttemptEnd,
        /// Whether it counts toward the limit.
        counts: bool,
        /// When it may be given out again.
        not_before: Micros,
    },
    /// `dlq`: a job used up its attempts.
    Dlq {
        at: Micros,
        job: JobId,
        run: Run,
        /// Which attempt was the last.
        attempt: Attempt,
        /// How it ended.
        why: AttemptEnd,
    },
    /// A job was ended by someone.
    Cancel { at: Micros, job: JobId, run: Run, by: Arc<str> },
    /// An announced job is dropped, as if it had never been.
    Withdraw { job: JobId, run: Run },
    /// A job is ended by the leader, which has a reason for its client.
    Fail { at: Micros, job: JobId, run: Run, why: Arc<str> },
    /// A child of a job to all workers will get no result: its worker is gone.
    Orphan { at: Micros, job: JobId, run: Run },
    /// A job that is dead, or that failed and whose inputs are retained, runs again.
    Revive {
        job: JobId,
        /// The run that ended.
        run: Run,
    },
    /// The inputs that were retained of a failed job are dropped: it cannot run again.
    DropInputs { job: JobId, run: Run },
    /// An ended job is forgotten, with its result.
    Forget { job: JobId, run: Run },
    /// The client has the result of a run: after a restart it is not sent again unasked.
    Delivered { job: JobId, run: Run },
    /// A client's cap.
    Cap {
        client: ClientId,
        /// Jobs at a time.
        cap: u32,
    },
    /// A dataset is stored, and replaces any other under its id.
    Dataset { dataset: Arc<Dataset> },
    /// The inputs of a job are stored as a dataset, for the agents of classic workers (C01). It
    /// replaces any other under its id.
    Stage { job: JobId, dataset: Arc<Dataset> },
    /// A dataset is not kept any more. A job whose inputs it was goes as it went before.
    DatasetGone {
        /// Under which id it was.
        cache: CacheId,
        /// Which it was.
        version: Uuid,
    },
    /// A term of the cluster begins. One in mid-term changes nothing.
    Term { term: Term },
    /// The members of the cluster from here on. One that cannot follow those before changes
    /// nothing: [`Members::may_become`].
    Members { members: Arc<Members> },
    /// All members read the records of this level, so they may be written.
    Level { level: Level },
    /// Each node names the digest of its state here, to be compared.
    Mark { id: Uuid },
    /// A leader takes office: the first record that it proposes in a term.
    Office { leader: Node, at: Micros },
}

impl Record {
    /// Whether its effect always waits until it is synced. A lost record without a sync is repaired
    /// by leases and dedup (C30); it is written with the next record that is synced. The leader
    /// syncs some others too: see `leader/durable.rs`.
    pub const fn is_synced_first(&self) -> bool {
        match self {
            Record::Announce { .. }
            | Record::Enqueue { .. }
            | Record::Ack { .. }
            | Record::Dlq { .. }
            | Record::Cancel { .. }
            | Record::Fail { .. }
            | Record::Orphan { .. }
            | Record::Revive { .. }
            | Record::Dataset { .. }
            | Record::Stage { .. }
            | Record::DatasetGone { .. }
            | Record::Term { .. }
            | Record::Members { .. }
            | Record::Level { .. }
            | Record::Mark { .. }
            | Record::Office { .. } => true,
            Record::Assign { .. }
            | Record::Requeue { .. }
            | Record::Withdraw { .. }
            | Record::Forget { .. }
            | Record::DropInputs { .. }
            | Record::Delivered { .. }
            | Record::Cap { .. } => false,
        }
    }

    /// The moment that it names as now.
    pub fn moment(&self) -> Option<Micros> {
        if let Record::Announce { at, .. }
        | Record::Enqueue { at, .. }
        | Record::Ack { at, .. }
        | Record::Dlq { at, .. }
        | Record::Cancel { at, .. }
        | Record::Fail { at, .. }
        | Record::Orphan { at, .. }
        | Record::Office { at, .. } = self
        {
            return Some(*at);
        }
        if let Record::Assign { at, .. } | Record::Requeue { at, .. } = self {
            return *at;
        }
        let (Record::Dataset { dataset } | Record::Stage { dataset, .. }) = self else {
            return None;
        };
        Some(dataset.at)
    }

    /// The job that it changes.
    pub const fn job(&self) -> Option<JobId> {
        match self {
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
            | Record::Delivered { job, .. }
            | Record::Stage { job, .. } => Some(*job),
            Record::Cap { .. }
            | Record::Dataset { .. }
            | Record::DatasetGone { .. }
            | Record::Term { .. }
            | Record::Members { .. }
            | Record::Level { .. }
            | Record::Mark { .. }
            | Record::Office { .. } => None,
        }
    }

    /// The dataset that it puts or removes, and which version is under that id after it.
    pub(super) fn dataset(&self) -> Option<(&CacheId, Option<Uuid>)> {
        if let Record::Dataset { dataset } | Record::Stage { dataset, .. } = self {
            return Some((&dataset.cache, Some(dataset.version)));
        }
        let Record::DatasetGone { cache, .. } = self else { return None };
        Some((cache, None))
    }
}

/// How an attempt ended without a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttemptEnd {
    /// Its worker did not answer in time.
    TimedOut,
    /// Its worker was lost.
    WorkerLost,
    /// Its worker came back and did not have it any more.
    NotHeld,
    /// Its worker says it was done before, and has no result.
    ResultLost,
    /// Its worker gave it up.
    GivenUp,
    /// Its worker waited for inputs that did not come on.
    InputsStalled,
    /// Its worker had no room for its inputs.
    DiskFull,
    /// Its worker received damaged inputs.
    InputsBad,
    /// Its worker could not use its work directory, which was removed, say, or is read-only.
    NoDirectory,
    /// The job ended in another way while the worker had it.
    Stopped,
    /// Its worker does not have its program, or cannot start it.
    NoProgram,
}

/// What a worker lacked for a job, which therefore did not start there: another worker may take it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lack {
    /// Room on its disk for the inputs.
    Room,
    /// A work directory that can be used.
    Directory,
    Program,
}

impl Lack {
    /// The worker's condition, for people.
    pub const fn text(self) -> &'static str {
        match self {
            Lack::Room => "has no room on its disk for its inputs",
            Lack::Directory => "cannot use its work directory",
            Lack::Program => "does not have its program, or cannot start it",
        }
    }

    /// The remedy, for the worker's operator.
    pub const fn next_step(self) -> &'static str {
        match self {
            Lack::Room => "free space there, or start another worker",
            Lack::Directory => "the worker's log says why; repair it, or start another worker",
            Lack::Program => "the worker's log says why; put the program into its --exe-dir",
        }
    }
}

impl AttemptEnd {
    pub const fn text(self) -> &'static str {
        match self {
            AttemptEnd::TimedOut => "the worker did not answer in time",
            AttemptEnd::WorkerLost => "the worker was lost",
            AttemptEnd::NotHeld => "the worker reconnected without the job",
            AttemptEnd::ResultLost => "result lost at worker",
            AttemptEnd::GivenUp => "the worker gave up the job",
            AttemptEnd::InputsStalled => "the inputs did not arrive in time",
            AttemptEnd::DiskFull => "the worker's disk is full",
            AttemptEnd::InputsBad => "the inputs arrived damaged or incomplete at the worker",
            AttemptEnd::NoDirectory => "the worker cannot use its work directory",
            AttemptEnd::Stopped => "the job ended meanwhile",
            AttemptEnd::NoProgram => "the worker does not have the program, or cannot start it",
        }
    }

    /// What the worker lacked, if that ended the attempt.
    pub const fn lack(self) -> Option<Lack> {
        match self {
            AttemptEnd::DiskFull => Some(Lack::Room),
            AttemptEnd::NoDirectory => Some(Lack::Directory),
            AttemptEnd::NoProgram => Some(Lack::Program),
            AttemptEnd::TimedOut
            | AttemptEnd::WorkerLost
            | AttemptEnd::NotHeld
            | AttemptEnd::ResultLost
            | AttemptEnd::GivenUp
            | AttemptEnd::InputsStalled
            | AttemptEnd::InputsBad
            | AttemptEnd::Stopped => None,
        }
    }
}
