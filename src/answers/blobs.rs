//! Answers about the blobs that a leader keeps.

use serde::{Deserialize, Serialize};

use super::Durability;

words! {
    /// How much of a blob is here.
    BlobState { Coming = "coming", Whole = "whole", Sealed = "sealed", }
}

/// The answer to `blob.ls`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlobPage {
    /// Blobs in the order of their ids.
    pub blobs: Vec<BlobRow>,
    /// Whether there are more behind the last one.
    pub more: bool,
    /// What outlives the leader.
    pub durability: Durability,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct BlobRow {
    pub blob: String,
    /// Whose it is.
    pub job_id: String,
    /// What it is for.
    pub purpose: String,
    /// How it is called there.
    pub name: String,
    pub size: Option<u64>,
    /// Those that are here.
    pub here: Option<u64>,
    /// How it stands.
    pub state: BlobState,
}

/// The answer to `blob.verify`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Checked {
    pub blob: String,
    /// Chunks that are as they were written.
    pub good: u64,
    /// What is wrong, for people.
    pub bad: Vec<String>,
}

/// The answer to `blob.gc`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Collected {
    /// How many files nothing refers to.
    pub orphans: u64,
    pub bytes: u64,
    /// Whether they were removed.
    pub removed: bool,
    /// The first 1,000 of them.
    pub blobs: Vec<String>,
}
