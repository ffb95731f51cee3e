//! Questions to a leader and their answers, as JSON (docs/protocol.md, "Questions"). The leader
//! writes them and the clients and tools read them with the same types, so a member has one name,
//! in one place.
//!
//! Peers of other versions are understood: members that are not known here are skipped, those that
//! are missing are as if nothing was said, and a word that is not known is kept as it came. Nothing
//! here decides anything; the room holds no I/O.

/// An enum of words with one table of their names. A word of another version becomes `Other`.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($variant:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize)]
        #[serde(from = "String")]
        pub enum $name {
            $(#[doc = concat!("`", $word, "`")] $variant,)+
            /// A word that is not known here, as it came.
            Other(String),
        }

        impl $name {
            /// The words that are known.
            pub const NAMES: &'static [&'static str] = &[$($word),+];

            /// The word on the wire.
            pub fn as_str(&self) -> &str {
                match self {
                    $($name::$variant => $word,)+
                    $name::Other(word) => word,
                }
            }
        }

        impl From<String> for $name {
            fn from(word: String) -> Self {
                match word.as_str() {
                    $($word => $name::$variant,)+
                    _ => $name::Other(word),
                }
            }
        }

        /// Nothing was said.
        impl Default for $name {
            fn default() -> Self {
                $name::Other(String::new())
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }
    };
}

pub mod ask;
mod blobs;
mod datasets;
mod explain;
mod job_list;
mod jobs;
mod status;

pub use blobs::{BlobPage, BlobRow, BlobState, Checked, Collected};
pub use datasets::{
    AtWorker, AtWorkerState, DatasetPage, DatasetRow, DatasetShown, FileRow, Inspected, Pushed,
    PutRow, Removed, WorkerInspected,
};
pub use explain::{
    DatasetAt, DatasetState, Explained, Load, MoveCost, NamedDataset, Phase, SeenWorker, Takes,
    Verdict, Waits, WaitsFor,
};
pub use job_list::{
    AttemptRow, ChildRow, InputFrom, InputRow, JobPage, JobRow, JobShown, JobState, RequestShown,
    ResultShown, Waited, WaitedJob,
};
pub use jobs::{
    Cancelled, DeadJob, DeadPage, DeadShown, FailedAttempt, Found, Purged, Requeued, Retried, Was,
};
pub use status::{
    Avoided, ClientRow, Counts, Disk, Durability, Flagged, Jobs, Lack, Lacks, LeaderStatus, Log,
    Payloads, QueueRow, Spool, Status, StatusList, StatusRows, WorkerClass, WorkerRow,
};

use serde::{Deserialize, Serialize};

words! {
    /// What kind of error an answer is.
    FailureCode {
        NotFound = "not-found",
    }
}

/// What stands in an answer that is an error: a sentence for people, and what kind it is, where
/// that is of use to a program. Older leaders say no kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Failure {
    /// What is wrong, and what to do.
    pub error: String,
    /// What kind of error it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<FailureCode>,
}

impl Failure {
    /// What was asked about is not here.
    pub fn not_found(error: impl Into<String>) -> Failure {
        Failure { error: error.into(), code: Some(FailureCode::NotFound) }
    }
}

impl From<String> for Failure {
    fn from(error: String) -> Self {
        Failure { error, code: None }
    }
}

impl From<&str> for Failure {
    fn from(error: &str) -> Self {
        error.to_owned().into()
    }
}

/// The most rows of each list in one answer.
pub const LISTED_MAX: usize = 1000;
