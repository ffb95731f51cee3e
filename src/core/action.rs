//! What the broker wants done. The driver does it in this order and reports back by events only.

use std::time::Duration;

use thiserror::Error;

use super::ids::{Attempt, ConnId, Index, JobId, ResultId, Run, Token, WorkerId};
use super::record::Record;

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Commit a record, in the order of the indices; then say so with [`Event::Committed`](super::Event::Committed).
    Commit {
        /// Its place.
        index: Index,
        /// The record.
        record: Record,
    },
    /// Give a job to a worker.
    Assign {
        /// Where.
        conn: ConnId,
        /// To whom.
        worker: WorkerId,
        /// Which job.
        job: JobId,
        /// Which run.
        run: Run,
        /// Which attempt.
        attempt: Attempt,
        /// How long it may be silent.
        lease: Duration,
    },
    /// Tell a worker that a job is not wanted from it any more.
    Abandon {
        /// Where.
        conn: ConnId,
        /// Which job.
        job: JobId,
        /// Which attempt.
        attempt: Attempt,
    },
    /// Tell a worker that it may forget a job.
    Settle {
        /// Where.
        conn: ConnId,
        /// Which job.
        job: JobId,
        /// Which run.
        run: Run,
    },
    /// Tell a client that its job is taken.
    Submitted {
        /// Where.
        conn: ConnId,
        /// Which job.
        job: JobId,
        /// Which run.
        run: Run,
        /// Where it stands.
        standing: Standing,
        /// Jobs of the same client and key before it.
        ahead: u32,
    },
    /// Tell a client that its job is not taken. The job's payload is not needed, unless the id was in use before.
    Refuse {
        /// Where.
        conn: ConnId,
        /// Which job.
        job: JobId,
        /// Why.
        refusal: Refusal,
    },
    /// Tell a client that a worker runs its job.
    Running {
        /// Where.
        conn: ConnId,
        /// Which job.
        job: JobId,
        /// Which run.
        run: Run,
        /// Which attempt.
        attempt: Attempt,
    },
    /// Send a job's result to a client.
    Deliver {
        /// Where.
        conn: ConnId,
        /// Which job.
        job: JobId,
        /// Which run.
        run: Run,
    },
    /// The payload of a job is not needed any more.
    ForgetInput {
        /// Which job's.
        job: JobId,
    },
    /// A result that a worker returned is not needed any more.
    ForgetResult {
        /// Which.
        result: ResultId,
    },
    /// The answer to an operator.
    Operated {
        /// The question's.
        token: Token,
        /// The answer.
        answer: Result<Operated, OperateError>,
    },
    /// End a connection.
    Close {
        /// Which.
        conn: ConnId,
        /// Why, for the log.
        why: &'static str,
    },
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It waits.
    Queued,
    /// A worker has it.
    Running,
    /// It has ended.
    Finished,
}

/// Why a job is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The id was used for another job.
    #[error(
        "job id {job} is in use for a job with other content: use a new id, or submit the same content again"
    )]
    Conflict {
        /// The id.
        job: JobId,
    },
    /// The leader holds as many jobs as it may.
    #[error("the leader holds {held} jobs and takes at most {limit}: wait, or purge its dead-letter queue")]
    Full {
        /// What it holds.
        held: usize,
        /// What it takes.
        limit: usize,
    },
    /// A job for all workers, and there is none.
    #[error(
        "no connected worker matches {key}, so there is none to deliver to: start one, or submit without --all"
    )]
    NoWorker {
        /// What would have to match.
        key: String,
    },
    /// The leader is about to stop.
    #[error("the leader is about to stop and takes no new jobs: submit to another, or again when it is back")]
    Draining,
}

/// What an operation did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operated {
    /// The job was cancelled; it had been here.
    Cancelled {
        /// Where it stood.
        was: Standing,
    },
    /// So many dead jobs run again.
    Revived {
        /// How many.
        jobs: usize,
    },
    /// So many dead jobs are gone.
    Purged {
        /// How many.
        jobs: usize,
    },
}

/// Why an operation could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OperateError {
    /// No such job.
    #[error(
        "no job {job} is known here: it may have ended longer ago than results are kept, or never have come"
    )]
    Unknown {
        /// The id.
        job: JobId,
    },
    /// It has ended.
    #[error("job {job} has ended already")]
    Ended {
        /// The id.
        job: JobId,
    },
    /// It is not in the dead-letter queue.
    #[error("job {job} is not in the dead-letter queue")]
    NotDead {
        /// The id.
        job: JobId,
    },
}
