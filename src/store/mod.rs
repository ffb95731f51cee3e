//! Durable storage of the leader: the log, its snapshots and the blobs, in self-describing files
//! that can be verified.
//!
//! All I/O goes through [`disk::Disk`]; nothing here has a thread or a clock. Drivers run it on
//! threads of their own, tests over a disk that fails.

pub mod blobs;
pub mod codec;
pub mod disk;
pub mod format;
pub mod journal;
pub mod log;
pub mod map;
pub mod replay;
pub mod snapshot;
pub mod space;
pub mod tail;
pub mod verify;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use uuid::Uuid;

use crate::core::ids::JobId;
use disk::{Disk, How};
use format::{CONSENSUS, FileNo, Owner, StoreError};
use journal::Journal;
use log::Log;
use replay::{Files, Loaded, Replay, UpTo};

/// A data directory, ready to go on with.
#[derive(Debug)]
pub struct Opened {
    pub journal: Journal,
    /// What the log says.
    pub replay: Replay,
    /// What the directory is.
    pub owner: Owner,
    /// The blobs that have files.
    pub blobs: Vec<blobs::Found>,
    /// The requests of jobs that were announced and not taken: they name inputs that may not have
    /// come at all.
    pub requests: HashMap<JobId, Vec<u8>>,
    /// Of a member of a cluster: its last vote, and its records that are not committed.
    pub tail: Option<tail::read::Found>,
}

/// Opens the data directory of a node, or makes it: reads the newest good snapshot and the log
/// behind it, cuts what was not finished, and says so. What is damaged is found before anything is
/// changed. The directory of a member of a cluster is refused.
pub fn open(
    disk: &Arc<dyn Disk>,
    node: i32,
    new_dir: Uuid,
    segment_bytes: u64,
) -> Result<Opened, StoreError> {
    if let Some(number) = Files::list(&**disk)?.tails.first() {
        return Err(of_a_member(&**disk, &tail::path(*number)));
    }
    let opened = open_any(disk, node, new_dir, segment_bytes, &mut |replay| match replay
        .state
        .cluster()
        .members
    {
        Some(_) => Err(of_a_member(&**disk, &format!("{CONSENSUS}, with a record `members`"))),
        None => Ok(None),
    })?;
    Ok(opened)
}

fn of_a_member(disk: &dyn Disk, path: &str) -> StoreError {
    StoreError::Member { root: disk.root(), file: format::full(disk, path) }
}

/// The same for a node that is a member of a cluster, or becomes one: there may be a tail, and once
/// the log has members there has to be one. The log is synced, and then the tail.
pub fn open_member(
    disk: &Arc<dyn Disk>,
    node: i32,
    new_dir: Uuid,
    segment_bytes: u64,
) -> Result<Opened, StoreError> {
    let numbers = Files::list(&**disk)?.tails;
    let opened = open_any(disk, node, new_dir, segment_bytes, &mut |replay| {
        let owner = format::owner_for(&**disk, node)?;
        let Some(owner) = owner.filter(|_| !numbers.is_empty()) else {
            // A tail is there before the log has members.
            return match replay.state.cluster().members {
                Some(_) => Err(StoreError::MissingTail {
                    root: disk.root(),
                    file: format::full(&**disk, &tail::path(1)),
                    node,
                }),
                None => Ok(None),
            };
        };
        tail::read::read(&**disk, owner, &numbers, replay.index, &replay.terms).map(Some)
    });
    opened.map_err(|error| if numbers.is_empty() { error } else { error.of_member(node) })
}

/// `read_tail` looks for the tail that fits a log, before anything is changed.
fn open_any(
    disk: &Arc<dyn Disk>,
    node: i32,
    new_dir: Uuid,
    segment_bytes: u64,
    read_tail: &mut dyn FnMut(&Replay) -> Result<Option<tail::read::Found>, StoreError>,
) -> Result<Opened, StoreError> {
    let owner = match format::owner_for(&**disk, node)? {
        Some(owner) => owner,
        None => {
            let owner = Owner { node, dir: new_dir };
            disk.make_dir(CONSENSUS)
                .map_err(|error| StoreError::io("make", &**disk, CONSENSUS, error))?;
            // The owner comes last: where there is one, there has been a log.
            Log::begin(disk.clone(), owner, segment_bytes, 1)?;
            format::claim(&**disk, owner)?;
            owner
        }
    };
    let files = Files::list(&**disk)?;
    let Loaded { replay, tail, bad_snapshots, snapshot, .. } =
        replay::load(&**disk, owner, UpTo::End)?;
    let Some(tail) = tail else { return Err(format::missing(&**disk, 1, None)) };
    let requests = requests(&**disk, &replay)?;
    let (blobs, unfinished) = blobs::scan(&**disk, owner)?;
    let found = read_tail(&replay)?;

    if tail.torn > 0 {
        let path = format::full(&**disk, &FileNo::log(tail.first).path());
        tracing::warn!(
            bytes = tail.torn,
            "truncated {path} at offset {}: the rest was incomplete when the leader ended, and was \
             never acknowledged",
            tail.at
        );
    }
    let log = Log::go_on(disk.clone(), owner, segment_bytes, &tail)?;
    put_aside(&**disk, &files, &bad_snapshots, snapshot)?;
    unfinished.iter().try_for_each(|name| remove(&**disk, &format!("{}/{name}", blobs::BLOBS)))?;
    // A previous run may have been killed before it could.
    disk.sync_dir(CONSENSUS).map_err(|error| StoreError::io("sync", &**disk, CONSENSUS, error))?;
    let finished = files.behind(snapshot.unwrap_or(0)).len().saturating_sub(1) as u64;
    let mut journal = Journal::new(log, disk.clone(), owner, finished, snapshot.unwrap_or(0));
    if let Some(found) = &found {
        for file in found.files.iter().filter(|file| file.torn > 0) {
            let path = format::full(&**disk, &tail::path(file.number));
            tracing::warn!(
                bytes = file.torn,
                "truncated {path} at offset {}: the rest was incomplete when this node ended, and \
                 was never acknowledged",
                file.at
            );
        }
        journal.with_tail(tail::Writer::go_on(disk.clone(), owner, segment_bytes, found)?);
    }
    Ok(Opened { journal, replay, owner, blobs, requests, tail: found })
}

/// The requests of jobs that were announced and not taken.
fn requests(disk: &dyn Disk, replay: &Replay) -> Result<HashMap<JobId, Vec<u8>>, StoreError> {
    let mut requests = HashMap::new();
    for (job, held) in &replay.inputs {
        if !held.blobs.is_empty() && replay.state.job(*job).is_some_and(|job| job.is_announced()) {
            let path = held.place.file.path();
            let file = disk.open(&path, How::Read);
            let file = file.map_err(|error| StoreError::io("read", disk, &path, error))?;
            requests.insert(*job, format::read_place(disk, &*file, &held.place)?);
        }
    }
    Ok(requests)
}

/// Removes what was not finished, and puts snapshots aside that are newer than the one that could
/// be read.
fn put_aside(
    disk: &dyn Disk,
    files: &Files,
    bad: &[StoreError],
    good: Option<u64>,
) -> Result<(), StoreError> {
    files.unfinished.iter().try_for_each(|name| remove(disk, &format!("{CONSENSUS}/{name}")))?;
    for error in bad {
        tracing::error!(
            "cannot use a snapshot; an older one and the log are read instead: {error}"
        );
    }
    let bad = files
        .snapshots
        .iter()
        .filter(|index| !bad.is_empty() && good.is_none_or(|good| **index > good));
    for index in bad {
        let path = FileNo::snapshot(*index).path();
        let aside = format!("{path}.bad");
        disk.rename(&path, &aside).map_err(|error| StoreError::io("rename", disk, &path, error))?;
    }
    Ok(())
}

fn remove(disk: &dyn Disk, path: &str) -> Result<(), StoreError> {
    match disk.remove(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::io("remove", disk, path, error))
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
