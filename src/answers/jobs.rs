//! Answers about jobs: results, the dead-letter queue, cancel.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The answer to `result`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Whether the leader has it.
    pub found: bool,
    #[serde(default)]
    pub result: Value,
}

/// A dead job.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadJob {
    pub job_id: String,
    /// Whose it is.
    pub client_id: String,
    /// The program it should have run.
    pub exec: String,
    /// Why it is dead.
    pub reason: String,
    /// Attempts that were made.
    pub attempts: u32,
    /// Which run of the job it was.
    pub run: u32,
    /// How long it had been dead when the leader answered.
    pub dead_ms: u64,
}

/// The answer to `dlq.ls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadPage {
    pub jobs: Vec<DeadJob>,
    /// Whether there are more behind the last one.
    pub more: bool,
}

/// The answer to `dlq.show`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeadShown {
    #[serde(flatten)]
    pub job: DeadJob,
    pub history: Vec<FailedAttempt>,
    /// Where it belongs.
    pub key: String,
    /// Bytes of its payload.
    pub size: u64,
}

/// How one attempt of a job ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FailedAttempt {
    pub attempt: u32,
    pub worker: String,
    pub why: String,
}

/// The answer to `dlq.requeue`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requeued {
    /// How many jobs.
    pub requeued: u64,
}

/// The answer to `job.retry`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Retried {
    /// Which run of the job that is.
    pub run: u32,
}

/// The answer to `dlq.purge`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Purged {
    /// How many jobs.
    pub purged: u64,
}

words! {
    /// What a job was doing.
    Was { Queued = "queued", Assigned = "assigned", Running = "running", Finished = "finished", }
}

/// The answer to `cancel`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cancelled {
    /// What the job was doing.
    pub was: Was,
}
