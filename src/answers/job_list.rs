//! Answers about many jobs, about one in full, and about jobs that have ended.

use serde::{Deserialize, Serialize};

use super::Waits;

words! {
    /// How a job stands, in the word that lists and filters have. `unknown` is one that the leader
    /// does not have.
    JobState {
        Queued = "queued", Gathering = "gathering", Running = "running", Done = "done",
        Failed = "failed", Dead = "dead", Cancelled = "cancelled", Unknown = "unknown",
    }
}

impl JobState {
    /// Whether nothing more happens to such a job by itself.
    pub fn has_ended(&self) -> bool {
        match self {
            JobState::Queued | JobState::Gathering | JobState::Running => false,
            JobState::Done
            | JobState::Failed
            | JobState::Dead
            | JobState::Cancelled
            | JobState::Unknown
            | JobState::Other(_) => true,
        }
    }
}

/// The answer to `job.ls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobPage {
    /// Jobs from the newest on. There may be fewer than the limit although more follow.
    pub jobs: Vec<JobRow>,
    /// Behind which place the next page begins, if there may be more.
    pub next: Option<u64>,
}

/// A job in a list.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobRow {
    pub job_id: String,
    /// Its place among all jobs.
    pub seq: u64,
    /// Whose it is.
    pub client_id: String,
    /// The program that it names; empty for a raw job.
    pub exec: String,
    /// The group it belongs to.
    pub tag: Option<String>,
    pub state: JobState,
    /// Whether its inputs are still to come.
    pub uploading: bool,
    /// Smaller first.
    pub priority: i64,
    pub run: u32,
    /// The attempt that was made last.
    pub attempt: u32,
    /// Attempts of this run that count toward the limit.
    pub spent: u32,
    /// Bytes of its request and its inputs.
    pub size: u64,
    /// The worker that has it, or that returned its result.
    pub worker: Option<String>,
    /// What that calls itself, if the leader knows it.
    pub worker_name: Option<String>,
    /// How long ago it was submitted.
    pub submitted_ms: Option<u64>,
    /// How long ago that worker got it.
    pub assigned_ms: Option<u64>,
    /// How long ago it ended.
    pub ended_ms: Option<u64>,
}

/// The answer to `job.show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobShown {
    #[serde(flatten)]
    pub job: JobRow,
    /// Where it belongs.
    pub key: String,
    /// Whether every matching worker gets it.
    pub to_all: bool,
    /// What it waits for, as `explain` says it.
    pub waits: Option<Waits>,
    /// Who or what ended it, for people, if no worker did with a result.
    pub why: Option<String>,
    /// Whether its client has the result.
    pub delivered: bool,
    /// Whether another run could be made from what the leader has.
    pub can_retry: bool,
    /// What its request says, as long as the leader has it.
    pub request: Option<RequestShown>,
    /// The attempts: at most 64 of earlier runs, and of this run at most 64 of those that ended
    /// without a result.
    pub attempts: Vec<AttemptRow>,
    /// The parts of a job to all workers, at most 1,000.
    pub children: Vec<ChildRow>,
    /// What a worker returned.
    pub result: Option<ResultShown>,
    /// What is not in the answer, as it would be too long; for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

/// What a job asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RequestShown {
    /// The arguments, at most 1,000.
    pub args: Vec<String>,
    /// How many there are.
    pub args_count: u64,
    /// The input files, at most 1,000.
    pub inputs: Vec<InputRow>,
    /// How many there are.
    pub inputs_count: u64,
    /// How long the program may run.
    pub time_limit_ms: Option<u64>,
}

words! {
    /// Where an input file comes from.
    InputFrom { Request = "request", Transfer = "transfer", Dataset = "dataset", Url = "url", Nothing = "nothing", }
}

/// An input file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct InputRow {
    pub name: String,
    pub from: InputFrom,
    /// How large it is; unknown for a file of a dataset or of a URL.
    pub size: Option<u64>,
    /// The dataset it is of.
    pub cache_id: Option<String>,
}

/// An attempt at a job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AttemptRow {
    /// Of which run it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub run: Option<u32>,
    /// Its number, over all runs.
    pub attempt: u32,
    pub worker: String,
    /// What the worker calls itself, if the leader knows it.
    pub worker_name: Option<String>,
    /// How long ago the worker got the job.
    pub began_ms: Option<u64>,
    /// How long ago the attempt ended.
    pub ended_ms: Option<u64>,
    /// How it ended, for people; empty while it has not.
    pub why: String,
}

/// A part of a job to all workers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ChildRow {
    pub job_id: String,
    pub worker: String,
    /// What the worker calls itself, if the leader knows it.
    pub worker_name: Option<String>,
    pub state: JobState,
}

/// A result in short.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ResultShown {
    /// As it stands in the result.
    pub status: String,
    pub exit_code: Option<i32>,
    /// The signal that ended the program, unless its worker sent it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<i32>,
    /// The time limit that it ran past, for which its worker stopped it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timed_out_ms: Option<u64>,
    /// Bytes of the program's standard output, of its standard error and of the archive.
    pub stdout_bytes: u64,
    pub stderr_bytes: u64,
    pub archive_bytes: u64,
    /// Why the leader cannot read it any more.
    pub lost: Option<String>,
}

/// The answer to `job.wait`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Waited {
    /// Those that have ended, or that the leader does not know.
    pub jobs: Vec<WaitedJob>,
}

/// A job that was waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WaitedJob {
    pub job_id: String,
    pub state: JobState,
    /// Why a job that has ended is unknown by now, for people.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
}
