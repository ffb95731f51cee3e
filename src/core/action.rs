//! Actions the broker requests. The driver executes them in order and reports back only through
//! events.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use super::dataset::Dataset;
use super::forgotten::WhyForgotten;
use super::ids::{Attempt, CacheId, ConnId, Index, JobId, ResultId, Run, Token, WorkerId};
use super::names::excerpt;
use super::payload::PayloadKind;
use super::record::{Lack, Record};

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// Commit a record, in the order of the indices; then say so with
    /// [`Event::Committed`](super::Event::Committed).
    Commit { index: Index, record: Record },
    /// Give a job to a worker.
    Assign(Assignment),
    /// Tell a worker something about a job that it was given.
    Worker(WorkerOrder),
    /// A result does not count: its worker never had this job, or not in this run. The worker is
    /// told to forget it by [`WorkerOrder::Settle`].
    AckRefused {
        conn: ConnId,
        /// Of which job.
        job: JobId,
    },
    /// Tell a client that its job is taken.
    Submitted {
        conn: ConnId,
        job: JobId,
        run: Run,
        /// Where it stands.
        standing: Standing,
        /// Jobs of the same client and key before it.
        ahead: u32,
    },
    /// Tell a client that its job is not taken. The job's payload is not needed, unless the id was
    /// in use before.
    Refuse { conn: ConnId, job: JobId, refusal: Refusal },
    /// Tell a client that its job waits for a worker that is not there. Said once, until the cause
    /// changes.
    Waiting { conn: ConnId, job: JobId, why: Waiting },
    /// Tell a client that a worker runs its job.
    Running { conn: ConnId, job: JobId, run: Run, attempt: Attempt },
    /// Send a job's result to a client; then [`Event::Delivered`](super::Event::Delivered), or
    /// [`Event::NotDelivered`](super::Event::NotDelivered) once the connection has ended.
    Deliver { conn: ConnId, job: JobId, run: Run },
    /// A job that somebody waits for, as [`Event::Watch`](super::Event::Watch) said, has ended, or
    /// is not known any more.
    Ended { job: JobId },
    /// The payload of a job is not needed any more.
    ForgetInput { job: JobId },
    /// A job has failed. Its payload and inputs stay for another run, until they are forgotten.
    RetainInput { job: JobId },
    /// A failed job runs again, with what was retained of it.
    ReuseInput { job: JobId },
    /// A result that a worker returned is not needed any more.
    ForgetResult { result: ResultId },
    /// The answer to an operator.
    Operated { token: Token, answer: Result<Operated, OperateError> },
    /// A dataset is kept from now on.
    DatasetPut {
        dataset: Arc<Dataset>,
        /// What was under its id before. It may have blobs in common with the new one.
        replaced: Option<Arc<Dataset>>,
    },
    /// A dataset is not kept any more, and its blobs are not needed.
    DatasetRemoved {
        /// What it was.
        dataset: Arc<Dataset>,
    },
    /// Ask an agent to hold a dataset: jobs wait that name it, and a classic worker that it serves
    /// has room for them. What comes of it shows what it is said to hold.
    AskAgent { agent: WorkerId, cache: CacheId },
    /// Ask a worker which programs it has; then [`Event::Programs`](super::Event::Programs).
    AskPrograms { conn: ConnId },
    /// Make a dataset of the inputs of a job, under the id that [`CacheId::of_inputs`] gives, for
    /// classic workers that have agents (C01).
    StageInputs { job: JobId },
    /// End a connection.
    Close {
        conn: ConnId,
        /// Why, for the log.
        why: &'static str,
    },
}

/// A job with a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Assignment {
    pub conn: ConnId,
    pub worker: WorkerId,
    pub job: JobId,
    pub run: Run,
    pub attempt: Attempt,
    /// How long it may be silent.
    pub lease: Duration,
    /// Whether it may run the job once it has the inputs. If not, [`WorkerOrder::Start`] follows.
    pub start: bool,
}

/// What a worker is told about a job that it was given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerOrder {
    /// It may run a job it was given while that was only announced.
    Start(Assignment),
    /// It came back on a new connection while it was receiving a job's inputs: they go on there.
    Resume(Assignment),
    /// A job is not wanted from it any more.
    Abandon { conn: ConnId, job: JobId, attempt: Attempt },
    /// It may forget a job.
    Settle { conn: ConnId, job: JobId, run: Run },
}

/// Where a job stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    Queued,
    /// A worker has it, and is still receiving its inputs.
    Assigned,
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
    Conflict { job: JobId },
    /// The leader holds as many jobs as it may.
    #[error(
        "the leader holds {held} jobs and takes at most {limit}: wait, or purge its dead-letter queue"
    )]
    Full {
        /// What it holds.
        held: usize,
        /// What it takes.
        limit: usize,
    },
    /// The jobs that the leader holds have as long names as they may.
    #[error(
        "the names of the leader's jobs (routing key, client, program, datasets, tag) take {held} bytes \
         of its memory; this job needs {bytes} more, and the limit is {limit}: wait, purge its \
         dead-letter queue, or use shorter names"
    )]
    NamesFull {
        /// Bytes of this job's, and its children's.
        bytes: u64,
        /// Bytes of all others.
        held: u64,
        /// What they may have together.
        limit: u64,
    },
    /// A job for all workers, or for one that must be there, and there is none.
    #[error(
        "no connected worker matches {key}: start one, or submit without --all or --require-worker"
    )]
    NoWorker {
        /// What would have to match.
        key: String,
    },
    /// A job that has to be there as a transfer, and only workers that take none.
    #[error(
        "the job has {bytes} bytes, and the {workers} connected workers that match {key} are classic workers, which take \
         frames of at most {limit}: start a heft worker, or an agent (`heft worker --cache-only`) beside the classic worker"
    )]
    NoCapableWorker {
        key: String,
        /// How many did.
        workers: usize,
        /// Bytes of the job.
        bytes: u64,
        /// Bytes that such a worker takes in one frame.
        limit: u64,
    },
    /// A job that names datasets, and only workers that cannot be sent any and do not have them.
    #[error(
        "the {workers} connected workers that match {key} cannot be sent the datasets that the job names: start a heft worker, or an \
         agent (`heft worker --cache-only`) beside the classic worker"
    )]
    NoDatasets {
        key: String,
        /// How many did.
        workers: usize,
    },
    /// No worker that matches takes payloads of this kind.
    #[error("the {workers} connected workers that match {key} take no {}: {}", kind.text(), kind.next_step())]
    NoReader {
        key: String,
        /// How many did.
        workers: usize,
        /// Of which kind the payload is.
        kind: PayloadKind,
    },
    /// No worker that matches has its program.
    #[error("{0}")]
    NoProgram(Arc<str>),
    /// The leader is about to stop.
    #[error(
        "the leader is stopping and takes no new jobs: submit to another, or again when it is back"
    )]
    Draining,
}

/// What a job waits for that only people can bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// No connected worker matches its key.
    NoWorker { key: String },
    /// All connected workers that match its key are classic workers, and it can only go as a
    /// transfer.
    NoTransfers {
        key: String,
        /// How many they are.
        workers: usize,
    },
    /// The same, and the agent beside one of them cannot be given its inputs either.
    NotStaged { key: String, why: Arc<str> },
    /// No connected worker that matches its key can be sent the datasets it names, or has them.
    NoDatasets {
        key: String,
        /// How many they are.
        workers: usize,
    },
    /// A worker could not begin it.
    WorkerLacks {
        worker: WorkerId,
        /// For want of what.
        lack: Lack,
    },
    /// No connected worker that matches its key has its program, and one may connect that does.
    NoProgram {
        key: String,
        exec: Arc<str>,
        /// How many they are.
        workers: usize,
        /// Programs that some of them have and that are called like it.
        like: Vec<String>,
    },
    /// No connected worker that matches its key takes payloads of its kind.
    NoReader {
        key: String,
        /// How many they are.
        workers: usize,
        /// Of which kind its payload is.
        kind: PayloadKind,
    },
}

impl fmt::Display for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Waiting::NoWorker { key } => write!(f, "no connected worker matches {key}: start one"),
            Waiting::NoTransfers { key, workers } => write!(
                f,
                "the {workers} connected workers that match {key} are classic workers, which take frames of at most \
                 4,194,304 bytes; start a heft worker, or an agent (`heft worker --cache-only`) beside the classic worker"
            ),
            Waiting::NotStaged { key, why } => write!(
                f,
                "only classic workers match {key}, and the job's inputs cannot be staged through \
                 an agent: {why}; start a heft worker, or wait"
            ),
            Waiting::NoDatasets { key, workers } => write!(
                f,
                "the {workers} connected workers that match {key} cannot be sent the datasets that the job names: start a \
                 heft worker, or an agent (`heft worker --cache-only`) beside the classic worker"
            ),
            Waiting::WorkerLacks { worker, lack } => {
                write!(f, "worker {worker} {}: {}", lack.text(), lack.next_step())
            }
            Waiting::NoProgram { key, exec, workers, like } => {
                write!(
                    f,
                    "none of the {workers} connected workers that match {key} has the program \"{}\"; the job waits for \
                     others to connect, and fails if none of them has it",
                    excerpt(exec)
                )?;
                match like.as_slice() {
                    [] => Ok(()),
                    like => write!(f, "; did you mean {}?", like.join(", ")),
                }
            }
            Waiting::NoReader { key, workers, kind } => write!(
                f,
                "it needs a worker that takes {}, and the {workers} connected workers that match {key} do not: {}",
                kind.text(),
                kind.next_step()
            ),
        }
    }
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
    Revived { jobs: usize },
    /// A job runs again.
    Retried {
        /// Which run that is.
        run: Run,
    },
    /// So many dead jobs are gone.
    Purged { jobs: usize },
}

/// Why an operation could not be done.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum OperateError {
    /// No such job.
    #[error("job {job} is unknown here: its result may have expired, or it was never submitted")]
    Unknown { job: JobId },
    /// It has ended, and is not known any more.
    #[error("job {job} has ended, and the leader does not keep it any more: {}; submit it again", why.text())]
    Forgotten { job: JobId, why: WhyForgotten },
    /// It has ended.
    #[error("job {job} has ended already")]
    Ended { job: JobId },
    /// It is one worker's part of a job to all, which counts as ended with it.
    #[error(
        "job {job} is one worker's part of job {parent}, which went to all workers, and is not in the dead-letter queue: submit \
         that job again"
    )]
    Part {
        job: JobId,
        /// The job to all.
        parent: JobId,
    },
    /// It is not in the dead-letter queue.
    #[error("job {job} is not in the dead-letter queue")]
    NotDead { job: JobId },
    /// It has no other run.
    #[error("job {job} {}", why.text())]
    NotAgain { job: JobId, why: NotAgain },
}

/// Why a job has no other run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAgain {
    /// The one that it has goes on.
    NotEnded,
    Ok,
    /// Its inputs went with that.
    Cancelled,
    /// All of its workers have answered.
    ToAll,
    /// It failed, and its inputs are not here any more.
    InputsGone,
}

impl NotAgain {
    /// What the job did, and the next step.
    const fn text(self) -> &'static str {
        match self {
            NotAgain::NotEnded => "has not ended: there is nothing to retry",
            NotAgain::Ok => "ended OK: to run it once more, submit it again",
            NotAgain::Cancelled => "was cancelled, and its inputs are not kept: submit it again",
            NotAgain::ToAll => "went to all workers: submit it again",
            NotAgain::InputsGone => {
                "failed, and the leader does not have its inputs: they had not all arrived, or were \
                 dropped to make room; submit it again"
            }
        }
    }
}
