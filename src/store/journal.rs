//! Runs the log: batches writes, reads and truncations into as few syncs as possible. Everything
//! that arrives during one sync goes into the next, so no request waits for more than two.

use std::io;
use std::sync::Arc;

use bytes::Bytes;

use super::codec::Attached;
use super::disk::{Disk, hint, is_full};
use super::format::{Owner, Place, StoreError};
use super::log::{Append, Log, Rotated};
use super::replay::{Key, unneeded};
use super::snapshot::{self, Report};
use super::tail::{TAIL_BYTES_MAX, TailWrite, Writer};
use crate::core::Record;
use crate::core::ids::Index;
use crate::units::ByteSize;

/// Finished segments after which a snapshot is made.
const SNAPSHOT_SEGMENTS: u64 = 4;

/// Something to do with the log.
// Nearly all of them are records, so a box for these would be one more allocation for each and save
// nothing.
#[expect(clippy::large_enum_variant)]
#[derive(Debug)]
pub enum LogOp {
    /// Write a record.
    Append {
        /// Its place in the order.
        index: Index,
        record: Record,
        /// What goes with it.
        attached: Option<Attached>,
        /// Whether somebody waits until it is on the disk.
        sync: bool,
    },
    /// Read a payload.
    Read {
        /// What it belongs to.
        key: Key,
        /// Where it lies.
        place: Place,
    },
    /// Remove what nothing needs any more, now that the payloads that moved are known to have
    /// moved.
    Cut,
    /// Write a vote and records of a member of a cluster that are not committed. The first makes
    /// the tail.
    Tail {
        /// What is told when it is on the disk. It rises.
        number: u64,
        write: TailWrite,
    },
}

/// What came of it.
#[derive(Debug)]
pub enum LogDone {
    /// Records were written.
    Written {
        /// The last of them that is on the disk, if that is new.
        synced: Option<Index>,
        /// Where their payloads lie.
        places: Vec<(Index, Place)>,
        /// What it took.
        cost: Cost,
    },
    /// The tail has everything on the disk up to this number.
    TailSafe {
        number: u64,
        /// What it took.
        cost: Cost,
    },
    /// A payload was read, or why not.
    Read {
        /// What it belongs to.
        key: Key,
        result: Result<Bytes, String>,
    },
    /// A snapshot was made.
    Snapshot(Report),
    /// The disk takes nothing for now, or takes it again. What waits is tried again.
    Trouble(Option<String>),
    /// The log cannot be written, and it is not known what of it is on the disk. Nothing more can
    /// be committed in this life.
    Failed(String),
}

/// What writing took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub records: u64,
    pub bytes: u64,
    pub syncs: u64,
    /// How long they took, in microseconds.
    pub sync_us: u64,
}

/// The tail, and what waits for it.
#[derive(Debug)]
struct TailState {
    /// None before the first write, and on a leader on its own.
    writer: Option<Writer>,
    /// Each with the last record that was committed when it came.
    waiting: Vec<(Index, TailWrite)>,
    /// The number of the last that waits.
    number: u64,
    /// Bytes that it may have.
    bytes_max: u64,
    /// Whether it takes nothing for now.
    stuck: bool,
    /// Whether there was no room for a new file.
    no_file: bool,
    /// Whether an obsolete file could not be removed.
    left_over: bool,
}

impl TailState {
    fn new() -> Self {
        TailState {
            writer: None,
            waiting: Vec::new(),
            number: 0,
            bytes_max: TAIL_BYTES_MAX,
            stuck: false,
            no_file: false,
            left_over: false,
        }
    }
}

/// The log, and what waits for it.
#[derive(Debug)]
pub struct Journal {
    log: Log,
    disk: Arc<dyn Disk>,
    owner: Owner,
    waiting: Vec<Append>,
    wants_sync: bool,
    stuck: bool,
    tail: TailState,
    /// Whether there was no room for a new segment.
    no_segment: bool,
    failed: bool,
    /// Segments that were finished since the last snapshot.
    finished: u64,
    /// Whether a snapshot is being made.
    snapping: bool,
    /// The record of the last snapshot that was told of.
    snapshot: u64,
}

impl Journal {
    /// Goes on with a log. So many segments are finished since the last snapshot, which stands at
    /// this record.
    pub fn new(
        mut log: Log,
        disk: Arc<dyn Disk>,
        owner: Owner,
        finished: u64,
        snapshot: u64,
    ) -> Self {
        let waiting = Vec::new();
        log.look_ahead();
        Journal {
            log,
            disk,
            owner,
            waiting,
            wants_sync: false,
            stuck: false,
            tail: TailState::new(),
            no_segment: false,
            failed: false,
            finished,
            snapping: false,
            snapshot,
        }
    }

    /// Goes on with the tail of a member of a cluster.
    pub(super) fn with_tail(&mut self, writer: Writer) {
        self.tail.writer = Some(writer);
    }

    /// Lets the tail have so many bytes, in place of [`TAIL_BYTES_MAX`].
    pub fn limit_tail(&mut self, bytes: u64) {
        self.tail.bytes_max = bytes;
    }

    /// Reads a payload at once.
    pub fn read(&mut self, place: &Place) -> Result<Vec<u8>, StoreError> {
        self.log.read(place)
    }

    /// Whether what waits is to be tried again after a while.
    pub fn is_stuck(&self) -> bool {
        self.stuck || self.tail.stuck
    }

    /// Does what there is to do. `clock` gives microseconds since anything.
    pub fn run(
        &mut self,
        operations: impl IntoIterator<Item = LogOp>,
        clock: &dyn Fn() -> u64,
    ) -> Vec<LogDone> {
        let (mut done, mut reads, mut cut) = (Vec::new(), Vec::new(), false);
        for operation in operations {
            match operation {
                LogOp::Append { index, record, attached, sync } => {
                    self.waiting.push(Append { index, record, attached });
                    self.wants_sync |= sync;
                }
                LogOp::Read { key, place } => reads.push((key, place)),
                LogOp::Cut => cut = true,
                LogOp::Tail { number, write } => {
                    let last = self.waiting.last().map(|append| append.index);
                    let committed = last.unwrap_or(Index(self.log.next().saturating_sub(1)));
                    self.tail.waiting.push((committed, write));
                    self.tail.number = number;
                }
            }
        }
        if self.failed {
            return done;
        }
        // Before the log: what is committed meanwhile may be in both.
        if !self.tail.waiting.is_empty() {
            self.write_tail(clock, &mut done);
        }
        if !self.failed && !self.waiting.is_empty() {
            self.write(clock, &mut done);
        }
        if !self.failed {
            self.trim_tail(&mut done);
        }
        for (key, place) in reads {
            let result = self.log.read(&place).map(Bytes::from).map_err(|error| error.to_string());
            done.push(LogDone::Read { key, result });
        }
        if cut {
            self.cut();
        }
        done
    }

    fn write(&mut self, clock: &dyn Fn() -> u64, done: &mut Vec<LogDone>) {
        let before = self.log.segment_len();
        let places = match self.log.append(&self.waiting) {
            Ok(places) => places,
            Err(error) if is_full(&error) => {
                // Told once: it is tried again with all that comes.
                let is_told = self.is_stuck();
                self.stuck = true;
                if !is_told {
                    done.push(LogDone::Trouble(Some(self.explain(&error))));
                }
                return;
            }
            Err(error) => return self.fail(&error, done),
        };
        let bytes = self.log.segment_len().saturating_sub(before);
        let mut cost = Cost { records: self.waiting.len() as u64, bytes, ..Cost::default() };
        if std::mem::take(&mut self.stuck) && !self.tail.stuck {
            done.push(LogDone::Trouble(None));
        }
        let last = self.waiting.last().map(|append| append.index);
        self.waiting.clear();
        let mut synced = None;
        if std::mem::take(&mut self.wants_sync) {
            let began = clock();
            if let Err(error) = self.log.sync() {
                return self.fail(&error, done);
            }
            cost.syncs = 1;
            cost.sync_us = clock().saturating_sub(began);
            synced = last;
        }
        match self.log.rotate() {
            Ok(Rotated::Yes) => {
                self.no_segment = false;
                self.finished += 1;
            }
            Ok(Rotated::No) => {}
            Ok(Rotated::NoRoom(error)) => {
                if !std::mem::replace(&mut self.no_segment, true) {
                    tracing::warn!(
                        "cannot begin a new segment of the log; continuing in the last one: {}",
                        self.explain(&error)
                    );
                }
            }
            Err(error) => return self.fail(&error, done),
        }
        self.log.look_ahead();
        done.push(LogDone::Written { synced, places, cost });
    }

    /// Writes votes and records that wait, in the order in which they came, and syncs once.
    fn write_tail(&mut self, clock: &dyn Fn() -> u64, done: &mut Vec<LogDone>) {
        let before = self.tail.writer.as_ref().map_or(0, Writer::bytes);
        let more = self.tail.waiting.iter().map(|(_, write)| write.bytes()).sum::<u64>();
        if before.saturating_add(more) > self.tail.bytes_max {
            let limit = ByteSize(self.tail.bytes_max);
            return self.tail_is_stuck(
                format!(
                    "the tail in {}/consensus would have more than {limit} of records that are not \
                     committed: it goes on when a majority of the members is there",
                    self.disk.root()
                ),
                done,
            );
        }
        let began = clock();
        match self.append_tail() {
            Ok(()) => {}
            Err(error) if is_full(&error) => {
                return self.tail_is_stuck(self.explain(&error), done);
            }
            Err(error) => return self.fail(&error, done),
        }
        let synced = match &mut self.tail.writer {
            Some(writer) => writer.sync().and_then(|()| writer.rotate()),
            None => Ok(Rotated::No),
        };
        match synced {
            Ok(Rotated::NoRoom(error)) => {
                if !std::mem::replace(&mut self.tail.no_file, true) {
                    tracing::warn!(
                        "cannot begin a new file of the tail; continuing in the last one: {}",
                        self.explain(&error)
                    );
                }
            }
            Ok(Rotated::Yes) => self.tail.no_file = false,
            Ok(Rotated::No) => {}
            Err(error) => return self.fail(&error, done),
        }
        let sync_us = clock().saturating_sub(began);
        let after = self.tail.writer.as_mut().map_or(0, |writer| {
            writer.look_ahead();
            writer.bytes()
        });
        let records = self.tail.waiting.drain(..).filter_map(|(_, write)| write.records);
        let records = records.map(|records| records.records.len() as u64).sum();
        let cost = Cost { records, bytes: after.saturating_sub(before), syncs: 1, sync_us };
        if std::mem::take(&mut self.tail.stuck) && !self.stuck {
            done.push(LogDone::Trouble(None));
        }
        done.push(LogDone::TailSafe { number: self.tail.number, cost });
    }

    fn append_tail(&mut self) -> io::Result<()> {
        let TailState { writer, waiting, .. } = &mut self.tail;
        let writer = match writer {
            Some(writer) => writer,
            None => writer.insert(Writer::begin(
                self.disk.clone(),
                self.owner,
                self.log.segment_bytes(),
            )?),
        };
        writer.append(waiting.iter().map(|(committed, write)| (*committed, write)))
    }

    fn tail_is_stuck(&mut self, why: String, done: &mut Vec<LogDone>) {
        let is_told = self.is_stuck();
        self.tail.stuck = true;
        // Told once: it is tried again with all that comes.
        if !is_told {
            done.push(LogDone::Trouble(Some(why)));
        }
    }

    /// Removes files of the tail of which the log has everything, after it is synced.
    fn trim_tail(&mut self, done: &mut Vec<LogDone>) {
        let committed = Index(self.log.next().saturating_sub(1));
        let Some(writer) = self.tail.writer.as_mut().filter(|tail| tail.is_obsolete(committed))
        else {
            return;
        };
        if let Err(error) = self.log.sync() {
            return self.fail(&error, done);
        }
        match writer.trim(committed) {
            Ok(files) => {
                self.tail.left_over = false;
                tracing::debug!(files, "removed files of the tail");
            }
            // It is tried again with all that comes.
            Err(error) => {
                if !std::mem::replace(&mut self.tail.left_over, true) {
                    tracing::warn!("cannot remove a file of the tail: {error}");
                }
            }
        }
    }

    fn fail(&mut self, error: &io::Error, done: &mut Vec<LogDone>) {
        self.failed = true;
        done.push(LogDone::Failed(self.explain(error)));
    }

    fn explain(&self, error: &io::Error) -> String {
        format!("cannot write the log in {}/consensus: {error}{}", self.disk.root(), hint(error))
    }

    /// Nothing waits: what was synced is noted in the file. Nobody waits for that, and if it cannot
    /// be written, the next record tells.
    pub fn rest(&mut self) {
        if self.failed {
            return;
        }
        if !self.stuck {
            self.log.note_synced().ok();
        }
        if let Some(writer) = self.tail.writer.as_mut().filter(|_| !self.tail.stuck) {
            writer.note_synced().ok();
        }
    }

    /// A snapshot that is due: what it is to be made of.
    pub fn snapshot_due(&mut self) -> Option<SnapshotJob> {
        if self.failed || self.snapping || self.finished < SNAPSHOT_SEGMENTS {
            return None;
        }
        self.snapping = true;
        self.finished = 0;
        let (segment, known) = (self.log.segment(), self.snapshot);
        Some(SnapshotJob { disk: self.disk.clone(), owner: self.owner, segment, known })
    }

    /// What became of it.
    pub fn snapshot_made(&mut self, made: Result<Option<Report>, StoreError>) -> Option<LogDone> {
        // While what it made unneeded is there, no other is begun.
        self.snapping = matches!(made, Ok(Some(_)));
        match made {
            Ok(Some(report)) => {
                tracing::info!(record = report.index, bytes = report.bytes, "made a snapshot");
                self.snapshot = report.index;
                Some(LogDone::Snapshot(report))
            }
            Ok(None) => None,
            Err(error) => {
                // The log has everything; the next one may do better.
                tracing::error!("no snapshot could be made: {error}");
                None
            }
        }
    }

    fn cut(&mut self) {
        self.snapping = false;
        let cut = unneeded(&self.disk, self.owner).and_then(|files| {
            let count = files.len();
            let removed = self.log.remove(&files);
            removed.map_err(|error| {
                StoreError::io("remove a file of", &*self.disk, "consensus", error)
            })?;
            Ok(count)
        });
        match cut {
            Ok(0) => {}
            Ok(files) => tracing::debug!(files, "removed obsolete files of the log"),
            Err(error) => tracing::warn!("cannot remove obsolete files of the log: {error}"),
        }
    }
}

/// A snapshot to be made, by a thread of its own.
#[derive(Debug)]
pub struct SnapshotJob {
    disk: Arc<dyn Disk>,
    owner: Owner,
    segment: u64,
    known: u64,
}

impl SnapshotJob {
    pub fn make(&self) -> Result<Option<Report>, StoreError> {
        snapshot::make(&*self.disk, self.owner, self.segment, self.known)
    }
}
