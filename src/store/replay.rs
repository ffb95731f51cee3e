//! Replays a log: the state after its records, and the payloads and blobs that state still needs.
//! Recovery, snapshots and the tools all use it, so a snapshot equals what recovery would have made
//! of the same records.

use std::collections::HashMap;
use std::sync::Arc;

use uuid::Uuid;

use super::codec::Names;
use super::disk::Disk;
use super::format::{CONSENSUS, FileNo, Kind, NEW, Owner, Place, StoreError, full, missing};
use super::log::{Logged, Segment, Tail};
use super::snapshot;
use super::tail;
use crate::core::Record;
use crate::core::cluster::Terms;
use crate::core::ids::{Index, JobId, Micros, ResultId};
use crate::core::job::{Ending, Job, Phase};
use crate::core::state::{Applied, State};

/// What a payload belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A job: its request.
    Input(JobId),
    /// A result that a worker returned.
    Result(ResultId),
}

/// A payload that is needed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// Where it lies.
    pub place: Place,
    /// Whether a client that announced itself wrote it.
    pub from_ours: bool,
    /// The blobs it names.
    pub blobs: Box<[Uuid]>,
}

/// The state after a record, with all that it needs.
#[derive(Debug, Default)]
pub struct Replay {
    pub state: State,
    /// The last record that is in it.
    pub index: Index,
    /// The latest moment that a record names.
    pub latest: Micros,
    /// The result that was numbered last.
    pub last_result: ResultId,
    /// Requests of jobs that have not ended, or may run again.
    pub inputs: HashMap<JobId, Held>,
    /// Results that are kept.
    pub results: HashMap<ResultId, Held>,
    /// Which term each record has.
    pub terms: Terms,
}

impl Replay {
    /// Applies the next record.
    pub fn apply(&mut self, logged: Logged) {
        let Logged { index, entry, place } = logged;
        self.index = index;
        let applied = self.state.apply(&entry.record);
        self.terms.note(index, &entry.record);
        if let Some(at) = entry.record.moment() {
            self.latest = self.latest.max(at);
        }
        let held = entry.attached.zip(place).map(|(attached, place)| Held {
            place,
            from_ours: attached.from_ours,
            blobs: attached.blobs.into_boxed_slice(),
        });
        let held = held.filter(|_| applied != Applied::Stale);
        if let Record::Announce { job, .. } | Record::Enqueue { job, .. } = &entry.record {
            self.inputs.extend(held.map(|held| (job.job, held)));
        } else if let Record::Ack { job, result, .. } = &entry.record {
            self.last_result = self.last_result.max(*result);
            self.results.extend(held.map(|held| (*result, held)));
            self.ended(*job);
        } else if let Record::Cancel { job, .. }
        | Record::Fail { job, .. }
        | Record::Orphan { job, .. }
        | Record::Withdraw { job, .. }
        | Record::DropInputs { job, .. } = &entry.record
        {
            self.ended(*job);
        }
        if let Applied::ChangedWithParent(parent) = applied {
            self.ended(parent);
        } else if let Applied::Revived(Some(result)) = applied {
            self.results.remove(&result);
        } else if let Applied::Forgot(jobs) = applied {
            jobs.iter().for_each(|job| self.forgot(job));
        }
    }

    /// A job may have ended: then its request is not needed any more, unless it may run again.
    fn ended(&mut self, id: JobId) {
        let is_needed =
            self.state.job(id).is_some_and(|job| !job.has_ended() || job.may_run_again());
        if !is_needed {
            self.inputs.remove(&id);
        }
    }

    fn forgot(&mut self, job: &Job) {
        self.inputs.remove(&job.id());
        if let Phase::Done { ending: Ending::Returned { result, .. }, .. } = &job.phase {
            self.results.remove(result);
        }
    }

    /// All payloads that are needed.
    pub fn held(&self) -> impl Iterator<Item = (Key, &Held)> {
        let inputs = self.inputs.iter().map(|(job, held)| (Key::Input(*job), held));
        inputs.chain(self.results.iter().map(|(result, held)| (Key::Result(*result), held)))
    }

    /// A payload lies elsewhere now.
    pub fn moved(&mut self, key: Key, place: Place) {
        let held = match key {
            Key::Input(job) => self.inputs.get_mut(&job),
            Key::Result(result) => self.results.get_mut(&result),
        };
        if let Some(held) = held {
            held.place = place;
        }
    }
}

/// The files of a log, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Files {
    /// The first records of the segments.
    pub segments: Vec<u64>,
    /// The records after which snapshots were made.
    pub snapshots: Vec<u64>,
    /// The numbers of the files of the tail.
    pub tails: Vec<u64>,
    /// What was not finished.
    pub unfinished: Vec<String>,
}

impl Files {
    /// Looks what there is.
    pub fn list(disk: &dyn Disk) -> Result<Self, StoreError> {
        let mut files = Files::default();
        let found =
            disk.list(CONSENSUS).map_err(|error| StoreError::io("list", disk, CONSENSUS, error))?;
        for found in found {
            match FileNo::from_name(&found.name) {
                Some(file) if file.kind() == Kind::Snapshot => files.snapshots.push(file.number()),
                Some(file) => files.segments.push(file.number()),
                None if found.name.ends_with(NEW) => files.unfinished.push(found.name),
                None => files.tails.extend(tail::number_in(&found.name)),
            }
        }
        Ok(files)
    }

    /// The segments that have records behind `index`, if none before it is needed.
    pub fn behind(&self, index: u64) -> &[u64] {
        let from = self.segments.iter().rposition(|first| *first <= index + 1).unwrap_or(0);
        self.segments.get(from..).unwrap_or_default()
    }
}

/// How far to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpTo {
    End,
    /// Some of the segments.
    Segment {
        /// Those before the one that begins with this record.
        first: u64,
        /// Snapshots after this record are left out.
        snapshot: u64,
    },
    Record(u64),
}

/// What was read, and what was found on the way.
#[derive(Debug)]
pub struct Loaded {
    pub replay: Replay,
    /// The end of the log, if it was read to its end and there is one.
    pub tail: Option<Tail>,
    /// The snapshot it began with.
    pub snapshot: Option<u64>,
    /// Snapshots that could not be used, and why.
    pub bad_snapshots: Vec<StoreError>,
    /// Records that were read behind the snapshot.
    pub records: u64,
}

/// Reads the newest good snapshot and the records behind it.
pub fn load(disk: &dyn Disk, owner: Owner, up_to: UpTo) -> Result<Loaded, StoreError> {
    let files = Files::list(disk)?;
    let mut names = Names::default();
    let (mut replay, mut from, mut bad_snapshots) = (Replay::default(), None, Vec::new());
    let is_before = |index: u64| match up_to {
        UpTo::End => true,
        UpTo::Segment { first, snapshot } => index < first && index <= snapshot,
        UpTo::Record(last) => index <= last,
    };
    for index in files.snapshots.iter().rev().copied().filter(|index| is_before(*index)) {
        match snapshot::read(disk, owner, index, &mut names) {
            Ok(read) => {
                (replay, from) = (read, Some(index));
                break;
            }
            Err(
                error @ (StoreError::Io { .. }
                | StoreError::OtherDirectory { .. }
                | StoreError::Version { .. }),
            ) => {
                return Err(error);
            }
            Err(error) => bad_snapshots.push(error),
        }
    }
    let begun_at = replay.index.0;
    let segments = files.behind(begun_at);
    match (segments.first(), from, bad_snapshots.pop()) {
        // Without the snapshot there is a gap: its damage is the news.
        (first, _, Some(bad)) if first.is_none_or(|first| *first > begun_at + 1) => {
            return Err(bad);
        }
        (None, Some(snapshot), _) => {
            let (root, file) = (disk.root(), full(disk, &FileNo::snapshot(snapshot).path()));
            return Err(StoreError::SnapshotAhead { root, file, snapshot, log: 0 });
        }
        (Some(first), _, _) if *first > begun_at + 1 => {
            return Err(missing(disk, begun_at + 1, Some(*first - 1)));
        }
        (_, _, bad) => bad_snapshots.extend(bad),
    }
    let (mut tail, mut records) = (None, 0);
    let wanted: Vec<u64> = segments
        .iter()
        .copied()
        .filter(|first| match up_to {
            UpTo::End => true,
            UpTo::Segment { first: end, .. } => *first < end,
            UpTo::Record(last) => *first <= last,
        })
        .collect();
    for (place, first) in wanted.iter().enumerate() {
        let mut segment = Segment::open(disk, owner, *first)?;
        while let Some(logged) = segment.next(&mut names)? {
            if let UpTo::Record(last) = up_to
                && logged.index.0 > last
            {
                return Ok(Loaded { replay, tail: None, snapshot: from, bad_snapshots, records });
            }
            if logged.index.0 > replay.index.0 {
                replay.apply(logged);
                records += 1;
            }
        }
        if let Some(follows) = segments.get(place + 1) {
            if let Err(error) = segment.expect_end(*follows) {
                // What is missing was cut, as there was a snapshot: that it cannot be read is the
                // news.
                let is_gap = matches!(error, StoreError::MissingSegment { .. });
                return Err(bad_snapshots.pop().filter(|_| is_gap).unwrap_or(error));
            }
        } else {
            let end = segment.tail()?;
            if end.continued {
                return Err(missing(disk, end.next, None));
            }
            tail = Some(end);
        }
    }
    if let (Some(snapshot), Some(Tail { next, .. })) = (from, tail)
        && next <= snapshot
    {
        let (root, file) = (disk.root(), full(disk, &FileNo::snapshot(snapshot).path()));
        return Err(StoreError::SnapshotAhead {
            root,
            file,
            snapshot,
            log: next.saturating_sub(1),
        });
    }
    Ok(Loaded { replay, tail, snapshot: from, bad_snapshots, records })
}

/// The files that nothing needs, given that the newest two snapshots may be begun with. `None` if
/// that cannot be told.
pub fn unneeded(disk: &Arc<dyn Disk>, owner: Owner) -> Result<Vec<FileNo>, StoreError> {
    let files = Files::list(&**disk)?;
    let mut needed: Vec<FileNo> = Vec::new();
    let kept: Vec<u64> = files.snapshots.iter().rev().take(2).copied().collect();
    let Some(oldest) = kept.iter().min().copied().filter(|_| kept.len() == 2) else {
        return Ok(Vec::new());
    };
    for index in &kept {
        needed.push(FileNo::snapshot(*index));
        needed.extend(snapshot::pins(&**disk, owner, *index)?);
    }
    needed.extend(files.behind(oldest).iter().map(|first| FileNo::log(*first)));
    let all = files.segments.iter().map(|first| FileNo::log(*first));
    let all = all.chain(files.snapshots.iter().map(|index| FileNo::snapshot(*index)));
    Ok(all.filter(|file| !needed.contains(file)).collect())
}
