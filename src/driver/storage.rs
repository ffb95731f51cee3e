//! Opens the leader's storage before it listens: memory only, or a data directory.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use uuid::Uuid;

use crate::core::ids::Micros;
use crate::leader::{Leader, LeaderConfig, Recovered};
use crate::store::disk::{DataDir, Disk};
use crate::store::format::Owner;
use crate::store::journal::Journal;
use crate::store::{self, Opened};

/// Where a leader keeps what it has.
#[derive(Debug)]
pub enum Storage {
    /// In memory. What does not fit waits in files beneath the data directory, which do not outlive
    /// it.
    Memory,
    /// In its data directory.
    Disk(Box<Kept>),
}

/// A data directory that was opened.
#[derive(Debug)]
pub struct Kept {
    disk: Arc<dyn Disk>,
    opened: Opened,
    took: Duration,
    is_direct: bool,
}

/// A leader that is about to serve.
pub struct Prepared {
    pub(super) leader: Leader,
    /// The moment at which it begins.
    pub(super) now: Micros,
    /// What its threads work with.
    pub(super) files: Option<Files>,
}

/// What threads work with.
pub(super) struct Files {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) owner: Owner,
    pub(super) journal: Journal,
}

impl Storage {
    /// Opens the data directory of a node, or makes it. An error says what is wrong, and what to
    /// do; nothing was changed then.
    pub fn open(data: &Path, node: i32, segment_bytes: u64) -> Result<Self, String> {
        let started = Instant::now();
        let dir = DataDir::claim(data).map_err(|error| error.to_string())?;
        let is_direct = dir.is_direct();
        let disk: Arc<dyn Disk> = Arc::new(dir);
        let opened = store::open(&disk, node, Uuid::new_v4(), segment_bytes)
            .map_err(|error| error.to_string())?;
        Ok(Storage::Disk(Box::new(Kept { disk, opened, took: started.elapsed(), is_direct })))
    }

    /// What was found, for the log and for people.
    pub fn found(&self) -> Option<String> {
        let Storage::Disk(kept) = self else { return None };
        let state = &kept.opened.replay.state;
        let direct = if kept.is_direct {
            "past the page cache"
        } else {
            "by the page cache: this file system takes no O_DIRECT"
        };
        Some(format!(
            "{}: {} jobs at record {}, {} blobs, read in {} ms; blobs are written {direct}",
            kept.disk.root(),
            state.job_count(),
            kept.opened.replay.index,
            kept.opened.blobs.len(),
            kept.took.as_millis()
        ))
    }

    /// The leader that goes on with it. That takes a while where there are many jobs.
    pub fn into_leader(self, config: LeaderConfig) -> Prepared {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let now = Micros::default().plus(since);
        let make_id = Box::new(Uuid::new_v4);
        match self {
            Storage::Memory => {
                Prepared { leader: Leader::new(config, now, make_id), now, files: None }
            }
            Storage::Disk(kept) => {
                let Kept {
                    disk,
                    opened: Opened { journal, replay, owner, blobs, requests, tail: _ },
                    took,
                    ..
                } = *kept;
                // A clock that was set back does not turn time around.
                let now = now.max(replay.latest);
                let mut leader =
                    Leader::recover(config, now, make_id, Recovered { replay, blobs, requests });
                leader.note_recovery(took);
                Prepared { leader, now, files: Some(Files { disk, owner, journal }) }
            }
        }
    }
}
