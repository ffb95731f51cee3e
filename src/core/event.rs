//! Events the broker handles.

use std::sync::Arc;
use std::time::Duration;

use super::dataset::Dataset;
use super::ids::{
    Attempt, CacheId, ClientId, ConnId, Index, JobId, ResultId, Run, Token, WorkerId,
};
use super::payload::{FileNames, PayloadKind};
use super::programs::ProgramsSaid;
use super::record::{AttemptEnd, Lack};
use super::subject::RoutingKey;
use super::worker::Hello;

/// What is known of the program behind a client's connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientPeer {
    /// It knows its jobs by their ids, and drops results of others.
    Heft,
    /// The same, and it gave no id of its own: it came to ask.
    Asker,
    /// It accepts any result, even one of a job that an earlier run of its program submitted.
    Classic,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A client said hello.
    ClientHello {
        conn: ConnId,
        client: ClientId,
        /// How many of its jobs may run at a time, if it said (CP01). The last hello's counts.
        cap: Option<u32>,
        /// What is known of the program behind it.
        peer: ClientPeer,
    },
    /// A worker said hello.
    WorkerHello(Hello),
    /// A worker has room for more jobs.
    Credit {
        conn: ConnId,
        /// How many; anything a peer can send.
        delta: i32,
    },
    /// A client handed a job in.
    Submit { conn: ConnId, job: Submission },
    /// All inputs of an announced job have arrived whole: it can be taken.
    InputsHere {
        job: JobId,
        /// Whether the leader holds all of them. If not, they went through to a worker, and a later
        /// attempt needs the client's connection again.
        kept: bool,
    },
    /// The worker that holds a job cannot have its inputs: the attempt is over.
    InputsRefused { job: JobId, attempt: Attempt, why: AttemptEnd },
    /// The inputs of a job can never be had.
    InputsFailed {
        job: JobId,
        /// Why, for its client.
        why: Arc<str>,
    },
    /// A job that has a time limit went to a worker that knows none.
    TimeLimit {
        worker: WorkerId,
        job: JobId,
        attempt: Attempt,
        /// How long it may run.
        limit: Duration,
    },
    /// An announced job is dropped without a trace; its submitter has been told.
    Withdraw { job: JobId },
    /// A worker began to run a job, still works on it, or brings its result.
    Progress {
        conn: ConnId,
        job: JobId,
        run: Run,
        attempt: Attempt,
        /// What it does.
        doing: Doing,
    },
    /// A worker lives.
    Heartbeat {
        conn: ConnId,
        /// Use of its processors in thousandths.
        cpu_permille: u16,
        /// How many more jobs the worker says it takes.
        credit: u32,
        /// The jobs it holds.
        held: Vec<(JobId, Run, Attempt)>,
    },
    /// A worker reported a job's end.
    Ack {
        conn: ConnId,
        job: JobId,
        /// Which attempt it says it is for.
        named: ClaimedAttempt,
        /// How it ended.
        outcome: Outcome,
    },
    /// A worker hands a job back, as it does not have its program or cannot start it:
    /// [`Outcome::Lacks`] follows.
    ProgramRefused {
        conn: ConnId,
        job: JobId,
        /// Why, as the worker says.
        why: Arc<str>,
    },
    /// A worker says which programs it has.
    Programs {
        conn: ConnId,
        said: ProgramsSaid,
        /// Whether it was asked, by [`Action::AskPrograms`](super::action::Action::AskPrograms).
        answers: bool,
    },
    /// An operator or a client wants something done.
    Operate {
        /// To be named in the answer.
        token: Token,
        operation: Operation,
    },
    /// A connection ended.
    Closed { conn: ConnId },
    /// Records up to this one are committed.
    Committed {
        /// The last of them.
        index: Index,
    },
    /// Time has passed.
    Tick,
    /// The leader is about to stop: no new jobs, none given out.
    Drain,
    /// An assignment could not be sent: its payload could not be read, or the job ended while it
    /// was.
    NotAssigned {
        /// Where it was to go.
        conn: ConnId,
        /// Whose it was to be.
        worker: WorkerId,
        job: JobId,
        attempt: Attempt,
    },
    /// Bytes pass over a connection, but so slowly that heartbeats cannot keep their time: they
    /// stand behind a long frame, or the jobs that they would name do. What its worker holds is
    /// held on.
    Moves { conn: ConnId },
    /// A client has a result: it said so, or, if it is one that says nothing, the last byte was
    /// written to its socket.
    Delivered { job: JobId, run: Run },
    /// The connection ended before its client had a result, or before that was known.
    NotDelivered { job: JobId },
    /// There is no room for results any more: a job that has ended is forgotten, as
    /// [`Broker::oldest_ended`] named it.
    ///
    /// [`Broker::oldest_ended`]: super::Broker::oldest_ended
    ForgetEnded { job: JobId },
    /// There is no room for the inputs of a failed job any more, or they are not here: it cannot
    /// run again.
    DropInputs { job: JobId },
    /// Somebody waits for the end of a job: [`Action::Ended`](super::action::Action::Ended) says
    /// when it has come, once. At once, if it has, or if there is no such job.
    Watch { job: JobId },
    /// The same no more.
    Unwatch { job: JobId },
    /// A dataset is whole at the leader: it is kept, and takes the place of what was under its id.
    PutDataset { dataset: Arc<Dataset> },
    /// The inputs of a job were made a dataset, as
    /// [`Action::StageInputs`](super::action::Action::StageInputs) asked.
    Staged { job: JobId, dataset: Arc<Dataset> },
    /// A dataset is to be removed. An unknown one is ignored.
    RemoveDataset {
        /// Under which id.
        cache: CacheId,
    },
    /// A worker holds a dataset, or is getting it.
    Holding {
        worker: WorkerId,
        /// Under which id.
        cache: CacheId,
        digest: [u8; 32],
        /// Bytes that are still to come; none once jobs can use it.
        missing: u64,
    },
    /// A worker does not hold a dataset, and is not getting it: it was evicted, damaged, removed or
    /// refused.
    NotHolding {
        worker: WorkerId,
        /// Under which id.
        cache: CacheId,
    },
    /// All that was known of what a worker holds is void: it is about to say so anew.
    HoldsNothing { worker: WorkerId },
    /// A dataset, or a part of it, went to a worker: so quick is moving them.
    DatasetsMoved {
        worker: WorkerId,
        /// Bytes of it.
        bytes: u64,
        /// What that took.
        span: Duration,
    },
    /// A cache-only agent serves a classic worker: what it holds is there for the worker's jobs
    /// (C01, C02).
    AgentFor {
        /// The classic worker.
        worker: WorkerId,
        /// The agent; none if it is gone.
        agent: Option<WorkerId>,
    },
    /// No dataset is made of a job's inputs, as was asked for.
    NotStaged {
        job: JobId,
        /// Why, for its client.
        why: Arc<str>,
        /// Whether that may change.
        again: bool,
    },
}

/// How a worker's silence is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerClass {
    /// A heft worker: it renews leases by heartbeats, and may be away for a grace time.
    Leasing,
    /// A classic worker: its jobs are safe while its connection lives (C06).
    Classic,
    /// A classic worker without ids: one job at a time, whatever credit it offers (C03).
    OneAtATime,
}

/// What a worker does for a job that it has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It runs it, or is about to.
    Running,
    /// It has run it, and brings the result.
    Returning,
}

/// How a worker says a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// With a result that goes to the client as it is.
    Returned {
        /// Where the driver holds it.
        result: ResultId,
        /// Whether its status is OK.
        ok: bool,
    },
    /// The worker has done it before and has no result any more (C17).
    ResultLost,
    /// The worker gave it up, because it was told to or on its own. That is not a result.
    GivenUp,
    /// The same, as the worker lacked something for it.
    Lacks(Lack),
}

/// The run and attempt that a worker claims its answer is for. Only leasing workers know them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClaimedAttempt {
    pub run: Option<Run>,
    pub attempt: Option<Attempt>,
}

/// A job as it is submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Submission {
    pub job: JobId,
    /// Whose it is.
    pub client: ClientId,
    /// Where it belongs.
    pub key: RoutingKey,
    /// The program it names; empty for a raw job.
    pub exec: Arc<str>,
    /// Smaller first (C28).
    pub priority: i64,
    /// Whether every matching worker gets it (S22).
    pub to_all: bool,
    /// Bytes of its payload.
    pub size: u64,
    /// A digest of its payload, to tell a repetition from another job under the same id.
    pub fingerprint: [u8; 32],
    /// Whether its inputs are here.
    pub inputs: Inputs,
    /// Whether only a worker that can take transfers may have it.
    pub needs_transfers: bool,
    /// Whether it is refused if no connected worker could take it, instead of waiting for one.
    pub require_worker: bool,
    /// The datasets that its files are of, each once. They need not be known.
    pub datasets: Vec<CacheId>,
    /// What the names of its files are to classic workers.
    pub names: FileNames,
    /// The group of jobs it belongs to; never empty.
    pub tag: Option<Arc<str>>,
}

impl Submission {
    /// Bytes of the names that the job keeps in memory: its key, client, program, datasets and tag.
    pub fn names_bytes(&self) -> u64 {
        let datasets = self.datasets.iter().map(|cache| cache.as_str().len()).sum::<usize>();
        let tag = self.tag.as_ref().map_or(0, |tag| tag.len());
        (self.client.0.len() + self.key.bytes() + self.exec.len() + datasets + tag) as u64
    }

    /// What it asks of a worker. A JobRequest names a program, so that logs of all versions tell
    /// what is raw.
    pub fn payload_kind(&self) -> PayloadKind {
        if self.exec.is_empty() { PayloadKind::Raw } else { self.names.kind() }
    }
}

/// Where the inputs of a job are when it is submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inputs {
    Here,
    /// Transfers bring them: until [`Event::InputsHere`] the job is announced only.
    Expected,
}

/// What operators ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operation {
    /// End a job, whatever its state.
    Cancel { job: JobId, by: Arc<str> },
    /// Give dead jobs another run.
    Revive {
        /// Which; all of them without one.
        job: Option<JobId>,
    },
    /// Give a job another run that is dead, or that failed and whose inputs are retained.
    Retry { job: JobId },
    /// Forget dead jobs.
    Purge {
        /// Which; all of them without one.
        job: Option<JobId>,
    },
}
