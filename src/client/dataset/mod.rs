//! Datasets: files that many jobs share, put under a CacheId once and pushed to workers ahead of
//! the jobs.
//!
//! [`put`] reads the files, cuts them into pieces by their content, and gives the leader what it
//! lacks of them, on a connection of its own (CA07). The leader passes it on to every worker that
//! its target names and says how each fared; one content is never sent twice, so putting the same
//! again costs reading the files, and a new version what changed. A connection that breaks costs
//! nothing but what was on its way: the put goes on where it was until its time is over.
//!
//! ```no_run
//! use std::time::Duration;
//! use heft::client::Options;
//! use heft::client::dataset::{DatasetSpec, PutEvent, Wait, put};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let spec = DatasetSpec::new("models-2025-10", ["./models"])?
//!     .target("job.assign.calcA.>")
//!     .wait(Wait::Ratio(0.9))
//!     .timeout(Duration::from_secs(600));
//! let report = put("127.0.0.1:5000", spec, &Options::new("loader"), |event| {
//!     if let PutEvent::Ack(ack) = event {
//!         println!("{}: {} {}", ack.worker, ack.status.as_str(), ack.message);
//!     }
//! })
//! .await?;
//! println!("{} of {} workers have it", report.spread.ok + report.spread.skipped, report.spread.targets);
//! # Ok(())
//! # }
//! ```
//!
//! | file | does |
//! |---|---|
//! | `tree` | which files there are, and what they are called |
//! | `scan` | reads, cuts and hashes them |
//! | `packs` | which pieces travel together: pure |
//! | `put` | the task that puts a dataset |

mod packs;
mod put;
mod scan;
mod tree;

pub use packs::{PACK_BYTES_LEAST, PACK_BYTES_MOST, PACKS_WANTED};
pub use put::{PACKS_UNDER_WAY_MAX, put};
pub use tree::{FILES_MAX, ScanError};

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use chunking::Digest;
use chunking::message::Reason;
use thiserror::Error;

use super::error::{ClientError, Refusal};
use crate::core::dataset::TARGET_NONE;
use crate::core::ids::{CacheId, CacheIdError};
use crate::model::CacheStatus;
use crate::transfer::{Compression, SourceError};
use crate::units::{ByteSize, Span};

/// The pattern that every worker matches.
pub const TARGET_ALL: &str = crate::core::dataset::TARGET_ALL;

/// A dataset to be put, and how.
#[derive(Clone, Debug)]
pub struct DatasetSpec {
    pub(super) cache: CacheId,
    pub(super) paths: Vec<PathBuf>,
    pub(super) target: String,
    pub(super) wait: Wait,
    pub(super) timeout: Option<Duration>,
    pub(super) replace: bool,
    pub(super) compression: Compression,
}

impl DatasetSpec {
    /// These files and directories under this CacheId, for all workers.
    ///
    /// A file is known by its own name. One directory alone stands for its content; of several
    /// paths the last part of each stays in front of the names. Links in directories are followed
    /// if they lead to a regular file beneath the same path.
    pub fn new<P: Into<PathBuf>>(
        cache_id: &str,
        paths: impl IntoIterator<Item = P>,
    ) -> Result<Self, CacheIdError> {
        Ok(Self::of(CacheId::parse(cache_id)?, paths))
    }

    /// The same for an id that was checked.
    pub fn of<P: Into<PathBuf>>(cache: CacheId, paths: impl IntoIterator<Item = P>) -> Self {
        DatasetSpec {
            cache,
            paths: paths.into_iter().map(Into::into).collect(),
            target: TARGET_ALL.to_owned(),
            wait: Wait::All,
            timeout: None,
            replace: false,
            compression: Compression::default(),
        }
    }

    /// The workers that are to have it: those whose patterns overlap this one, or `none`.
    #[must_use]
    pub fn target(mut self, pattern: impl Into<String>) -> Self {
        self.target = pattern.into();
        self
    }

    /// No worker is to have it before a job names it.
    #[must_use]
    pub fn target_none(self) -> Self {
        self.target(TARGET_NONE)
    }

    /// How many workers have to have it before the put is over.
    #[must_use]
    pub fn wait(mut self, wait: Wait) -> Self {
        self.wait = wait;
        self
    }

    /// How long all of it may take; without it, as long as it takes.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Other content under the same CacheId is replaced; a job sees the old dataset or the new one
    /// whole.
    #[must_use]
    pub fn replace(mut self, replace: bool) -> Self {
        self.replace = replace;
        self
    }

    /// How chunks are compressed on the way to the leader.
    #[must_use]
    pub fn compression(mut self, compression: Compression) -> Self {
        self.compression = compression;
        self
    }

    /// The CacheId.
    pub fn cache_id(&self) -> &str {
        self.cache.as_str()
    }
}

/// How many workers have to have a dataset before its put is over. That the leader has it is always
/// waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Wait {
    /// All that it is for.
    #[default]
    All,
    /// So many.
    Count(u32),
    /// This share of those that it is for, from 0 to 1.
    Ratio(f64),
}

impl Wait {
    /// How many of so many workers that is.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and `targets`"
    )]
    pub fn needed(self, targets: u32) -> u32 {
        match self {
            Wait::All => targets,
            Wait::Count(count) => count,
            Wait::Ratio(ratio) => (f64::from(targets) * ratio.clamp(0.0, 1.0)).ceil() as u32,
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wait::All => f.write_str("all"),
            Wait::Count(count) => write!(f, "{count}"),
            // A share of 1 has to be read back as one.
            Wait::Ratio(ratio) => write!(f, "{ratio:?}"),
        }
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is not a number of workers: write all, a number such as 3, or a share from 0.0 to 1.0 such as 0.9"
            )
        };
        if text == "all" {
            return Ok(Wait::All);
        }
        if let Ok(count) = text.parse() {
            return Ok(Wait::Count(count));
        }
        match text.parse::<f64>() {
            Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(Wait::Ratio(ratio)),
            Ok(_) | Err(_) => Err(wrong()),
        }
    }
}

/// What happens to a put, in order.
#[derive(Clone, Debug, PartialEq)]
pub enum PutEvent {
    /// Files are read.
    Scanning {
        /// Bytes that were.
        done: u64,
        /// Bytes of all; 0 while files are still being looked for.
        total: u64,
    },
    /// All files were read.
    Scanned {
        /// How many there are.
        files: u32,
        /// Bytes of all.
        bytes: u64,
        /// What identifies them.
        digest: Digest,
    },
    /// The leader was asked to take the dataset.
    Asked {
        /// Its address.
        leader: String,
        /// Whether that was done before: it says what it still lacks.
        again: bool,
    },
    /// The leader says what it lacks.
    Lacking {
        /// Bytes; none if all of it is there.
        bytes: u64,
    },
    /// Pieces are on their way to the leader.
    Uploading {
        /// Bytes that were sent, or were there.
        done: u64,
        /// Bytes in all, as far as that is known.
        total: u64,
    },
    /// The leader takes nothing at the moment.
    Waiting {
        /// Why, for programs.
        reason: Reason,
        /// The same for people.
        text: String,
    },
    /// The leader has the dataset, and it is certain.
    Stored(Spread),
    /// A worker has it, or cannot have it.
    Ack(WorkerAck),
    /// The connection broke; it is tried again.
    Reconnecting {
        /// The leader's address.
        leader: String,
        /// How it ended.
        why: String,
        /// When it is tried again.
        retry_in: Duration,
    },
}

/// How many workers have a dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// Workers that are to have it.
    pub targets: u32,
    /// Those that have got it.
    pub ok: u32,
    /// Those that had it.
    pub skipped: u32,
    /// Those that cannot have it.
    pub failed: u32,
    /// Those that have not answered.
    pub missing: u32,
    /// Bytes that the leader got from here.
    pub received: u64,
    /// Bytes that it moved to workers.
    pub moved: u64,
    /// What it says to that.
    pub text: String,
}

impl Spread {
    /// How many workers have the dataset.
    pub fn have(&self) -> u32 {
        self.ok.saturating_add(self.skipped)
    }
}

/// What one worker did with a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerAck {
    /// The worker: its id, and behind a space its name, if it has one.
    pub worker: String,
    /// How it ended.
    pub status: CacheStatus,
    /// The counts, or what went wrong.
    pub message: String,
}

/// How a put ended.
#[derive(Clone, Debug, PartialEq)]
pub struct PutReport {
    /// What identifies the content.
    pub digest: Digest,
    /// How many files.
    pub files: u32,
    /// Bytes of all files.
    pub bytes: u64,
    /// How many workers have it.
    pub spread: Spread,
    /// Whether that are as many as were waited for.
    pub enough: bool,
    /// What each worker said, in the order of their names.
    pub acks: Vec<WorkerAck>,
    /// How long the files were read.
    pub scan_took: Duration,
    /// How long all of it took.
    pub took: Duration,
}

/// Why a put did not come to its end.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum PutError {
    /// The paths do not make a dataset.
    #[error(transparent)]
    Scan(#[from] ScanError),
    /// A file changed between reading and sending.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The leader could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// The leader does not take the dataset.
    #[error("the leader refused the dataset {cache_id}: {refusal}")]
    Refused {
        /// The dataset.
        cache_id: String,
        /// Why.
        refusal: Refusal,
    },
    /// The leader does not take a part of it.
    #[error("the leader refused {what} of the dataset {cache_id} ({reason}): {why}")]
    Part {
        /// The dataset.
        cache_id: String,
        /// Which part.
        what: &'static str,
        /// Why, for programs.
        reason: Reason,
        /// The same for people.
        why: String,
    },
    /// The time that was given is over.
    #[error(
        "{cache_id} was not put within {}: {stage}; repeat the same put with more time to resume \
         it",
        Span(*timeout)
    )]
    TimedOut {
        /// The dataset.
        cache_id: String,
        /// The time that was given.
        timeout: Duration,
        /// How far it was.
        stage: String,
        /// What is known, if the leader has the dataset.
        report: Option<Box<PutReport>>,
    },
}

/// How far a put is, for the text of one that ran out of time.
fn stage(sent: u64, lacking: Option<u64>) -> String {
    match lacking {
        None => "the leader has not listed its missing pieces yet".to_owned(),
        Some(lacking) => {
            format!(
                "{} were sent, {} were missing at the leader",
                ByteSize(sent),
                ByteSize(lacking)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_many_to_wait_for_is_all_a_number_or_a_share() {
        for (text, wait, of_ten, of_none) in [
            ("all", Wait::All, 10, 0),
            ("0", Wait::Count(0), 0, 0),
            ("3", Wait::Count(3), 3, 3),
            ("1", Wait::Count(1), 1, 1),
            ("1.0", Wait::Ratio(1.0), 10, 0),
            ("0.91", Wait::Ratio(0.91), 10, 0),
            ("0.5", Wait::Ratio(0.5), 5, 0),
        ] {
            assert_eq!(text.parse(), Ok(wait));
            assert_eq!((wait.needed(10), wait.needed(0)), (of_ten, of_none), "{text}");
            assert_eq!(wait.to_string(), text);
        }
        for text in ["", "some", "-1", "1.5", "NaN", "all workers"] {
            let error = text.parse::<Wait>().unwrap_err();
            assert!(error.contains(text) && error.contains("such as 0.9"), "{error}");
        }
    }
}
