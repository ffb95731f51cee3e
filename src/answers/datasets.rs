//! Answers about datasets.

use serde::{Deserialize, Serialize};

/// The answer to `dataset.ls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetPage {
    /// The datasets, at most 1,000.
    #[serde(rename = "sets")]
    pub datasets: Vec<DatasetRow>,
    /// Puts that are under way.
    pub puts: Vec<PutRow>,
    /// Whether there are more datasets.
    pub more: bool,
    /// What to ask `after` for the next of them. Older leaders do not say it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetRow {
    pub cache_id: String,
    pub digest: String,
    /// Bytes of its files.
    pub bytes: Option<u64>,
    /// How many files.
    pub files: Option<u32>,
    /// The workers that are to have it.
    pub target: String,
    /// The id of this content.
    #[serde(rename = "generation")]
    pub version: String,
    /// How long ago it was put.
    pub put_ms: Option<u64>,
    /// Bytes that the leader keeps for it.
    pub stored_bytes: Option<u64>,
    /// Workers that have it.
    pub held: Option<u64>,
    /// Workers that get it.
    pub coming: Option<u64>,
    /// Workers that do not have it.
    pub missing: Option<u64>,
    /// Workers where it failed.
    pub failed: Option<u64>,
}

/// A put that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PutRow {
    pub cache_id: String,
    /// Bytes that came.
    pub received: u64,
    /// Bytes of its files.
    pub bytes: u64,
    /// Bytes that are not here.
    pub lacking: u64,
}

/// The answer to `dataset.status`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DatasetShown {
    #[serde(flatten)]
    pub dataset: DatasetRow,
    /// The workers that hold it or are to hold it, at most 1,000; none on a later page.
    pub workers: Vec<AtWorker>,
    /// Its files, or those that were asked for, in the order of their names, at most 1,000.
    pub names: Vec<FileRow>,
    /// Whether there are more files.
    pub more: bool,
    /// What to ask `after` for the next of them. Older leaders do not say it, nor does one that
    /// cannot read the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

words! {
    /// How a worker has a dataset.
    AtWorkerState {
        Held = "held", Coming = "coming", Waiting = "waiting", Failed = "failed", Gone = "gone",
        Away = "away",
    }
}

/// How a worker has a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct AtWorker {
    pub id: String,
    /// What it calls itself.
    pub name: Option<String>,
    /// How it has it.
    pub state: AtWorkerState,
    /// Bytes that are there.
    pub done: u64,
    /// Bytes that are to be.
    pub total: u64,
    /// What more there is to say, for people.
    pub text: String,
    /// What its cache may hold.
    pub budget: u64,
    /// What it holds.
    pub used: u64,
}

/// A file of a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileRow {
    pub name: String,
    pub size: Option<u64>,
    pub sha256: String,
}

/// The answer to `dataset.rm`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Removed {
    /// That it is.
    pub removed: bool,
    /// Bytes that the leader kept for it.
    pub bytes: u64,
}

/// The answer to `dataset.verify`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Inspected {
    /// Packs that are as they were put.
    pub packs_good: u64,
    /// What is wrong with the others, for people.
    pub packs_bad: Vec<String>,
    /// What the workers found that have it.
    pub workers: Vec<WorkerInspected>,
}

/// What a worker found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct WorkerInspected {
    pub id: String,
    /// What it calls itself.
    pub name: Option<String>,
    /// A [`CacheStatus`](crate::model::CacheStatus).
    pub status: String,
    pub message: String,
}

/// The answer to `dataset.push`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Pushed {
    /// Workers that are asked to hold it.
    pub targets: u64,
    /// Those that do already.
    pub held: u64,
}
