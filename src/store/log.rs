//! The log: segments made of groups of records. One write appends one group.
//!
//! Each group records how far the file was synced when it was written. This distinguishes a torn
//! tail, which is truncated, from corruption of synced data, which stops recovery.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use super::codec::{self, Attached, Entry, Names};
use super::disk::{Disk, DiskFile, How, is_full, is_out_of_files, read_exact};
use super::format::{
    CONSENSUS, FileNo, HEADER_BYTES, Kind, NEW, Owner, Place, StoreError, expect_header, header,
    missing, read_place,
};
use crate::core::Record;
use crate::core::ids::Index;

/// What a group begins with.
const GROUP: [u8; 4] = *b"heft";

/// Bytes before the records of a group: marker, length, checksum, first index, number of records,
/// how far the file is synced.
pub(super) const GROUP_HEAD_BYTES: usize = 32;

/// In place of the number of records: the next segment goes on.
pub(super) const CONTINUED: u32 = u32::MAX;

/// When a group has this many bytes, further records go to another group.
pub(super) const GROUP_BYTES: usize = 4 << 20;

/// No group is longer: one record more than fits.
pub(super) const GROUP_BYTES_MAX: usize = 32 << 20;

/// Space that is allocated in advance after the end of the log, so that these bytes can be written
/// however full the disk becomes.
pub(crate) const AHEAD_BYTES: u64 = 8 << 20;

/// Bytes that are written again at a time.
const REWRITE_BYTES: usize = 1 << 20;

/// Files that are held open to read payloads from.
const OPEN_FILES_MAX: usize = 64;

/// A record to be written.
#[derive(Debug)]
pub struct Append {
    /// Its place in the order.
    pub index: Index,
    pub record: Record,
    /// What goes with it.
    pub attached: Option<Attached>,
}

/// Whether a new segment was begun.
#[derive(Debug)]
pub enum Rotated {
    /// The old one has room.
    No,
    Yes,
    /// The disk has no room for a new one. The old one is gone on with.
    NoRoom(io::Error),
}

/// The log, open at its end.
#[derive(Debug)]
pub struct Log {
    disk: Arc<dyn Disk>,
    owner: Owner,
    segment_bytes: u64,
    file: Box<dyn DiskFile>,
    /// The first record of the open segment.
    first: u64,
    /// Where the next group goes.
    at: u64,
    /// How far the open segment is synced.
    synced: u64,
    /// How far it says itself that it is.
    noted: u64,
    /// Where its last record ends.
    records_end: u64,
    /// How far space is allocated in the open segment, where the file system can do that.
    ahead: Option<u64>,
    /// The record that is written next.
    next: u64,
    buffer: Vec<u8>,
    /// Files that payloads were read from.
    open: HashMap<FileNo, Box<dyn DiskFile>>,
}

impl Log {
    /// A log that goes on with record `next`, in a new segment.
    pub fn begin(
        disk: Arc<dyn Disk>,
        owner: Owner,
        segment_bytes: u64,
        next: u64,
    ) -> Result<Self, StoreError> {
        let file = new_segment(&*disk, owner, next)
            .and_then(|file| disk.sync_dir(CONSENSUS).map(|()| file))
            .map_err(|error| StoreError::io("write", &*disk, &FileNo::log(next).path(), error))?;
        let at = HEADER_BYTES as u64;
        Ok(Log {
            disk,
            owner,
            segment_bytes,
            file,
            first: next,
            at,
            synced: at,
            noted: at,
            records_end: at,
            ahead: Some(at),
            next,
            buffer: Vec::new(),
            open: HashMap::new(),
        })
    }

    /// A log that goes on at the end of its last segment: what is behind it is cut.
    pub fn go_on(
        disk: Arc<dyn Disk>,
        owner: Owner,
        segment_bytes: u64,
        tail: &Tail,
    ) -> Result<Self, StoreError> {
        let path = FileNo::log(tail.first).path();
        let failed = |error| StoreError::io("write", &*disk, &path, error);
        let mut file = disk.open(&path, How::Write).map_err(failed)?;
        if file.len().map_err(failed)? > tail.at {
            file.set_len(tail.at).map_err(failed)?;
        }
        // What a killed leader had written is durable only after this. If one of its syncs failed,
        // the system would show bytes that never reached the disk, and would not write them again.
        // So they are written again here.
        let mut piece = vec![0; REWRITE_BYTES];
        let mut from = tail.noted;
        while from < tail.at {
            let len = usize::try_from(tail.at - from).unwrap_or(usize::MAX).min(REWRITE_BYTES);
            let piece = piece.get_mut(..len).unwrap_or_default();
            read_exact(&*file, from, piece)
                .and_then(|()| file.write_at(from, piece))
                .map_err(failed)?;
            from += len as u64;
        }
        file.sync().map_err(failed)?;
        let Tail { first, at, next, noted, records_end, .. } = *tail;
        let (buffer, open) = (Vec::new(), HashMap::new());
        Ok(Log {
            disk,
            owner,
            segment_bytes,
            file,
            first,
            at,
            synced: at,
            noted,
            records_end,
            ahead: Some(at),
            next,
            buffer,
            open,
        })
    }

    /// Writes records, which are durable only after [`Log::sync`]. Returns the places of their
    /// payloads. After an error none of the records counts, and they can be written again.
    pub fn append(&mut self, records: &[Append]) -> io::Result<Vec<(Index, Place)>> {
        let mut places = Vec::new();
        let (at, next, records_end) = (self.at, self.next, self.records_end);
        let mut rest = records;
        while !rest.is_empty() {
            match self.append_group(rest, &mut places) {
                Ok(written) => rest = rest.get(written..).unwrap_or_default(),
                Err(error) => {
                    (self.at, self.next, self.records_end) = (at, next, records_end);
                    return Err(error);
                }
            }
        }
        Ok(places)
    }

    /// Writes as many of the records as go into one group.
    fn append_group(
        &mut self,
        records: &[Append],
        places: &mut Vec<(Index, Place)>,
    ) -> io::Result<usize> {
        let mut group = std::mem::take(&mut self.buffer);
        group.clear();
        group.resize(GROUP_HEAD_BYTES, 0);
        let (file, mut count) = (FileNo::log(self.first), 0usize);
        for Append { index, record, attached } in records {
            let start = group.len();
            group.extend_from_slice(&[0; 4]);
            let payload = codec::put_entry(record, attached.as_ref(), &mut group);
            let len =
                u32::try_from(group.len() - start - 4).map_err(|_| io::ErrorKind::InvalidInput)?;
            put_at(&mut group, start, &len.to_be_bytes());
            if let Some((range, crc)) = payload {
                let len = u32::try_from(range.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
                places
                    .push((*index, Place { file, offset: self.at + range.start as u64, len, crc }));
            }
            count += 1;
            if group.len() >= GROUP_BYTES {
                break;
            }
        }
        let count_field = u32::try_from(count).map_err(|_| io::ErrorKind::InvalidInput)?;
        if let Err(error) = self.seal_group(&mut group, count_field) {
            self.buffer = group;
            return Err(error);
        }
        let written = self.file.write_at(self.at, &group);
        let len = group.len() as u64;
        self.buffer = group;
        written?;
        self.at += len;
        (self.noted, self.records_end) = (self.synced, self.at);
        self.next += count as u64;
        Ok(count)
    }

    /// Has the disk find room for what comes next. Where there is none now, it is asked again with
    /// the next records; nothing is lost by it.
    pub fn look_ahead(&mut self) {
        look_ahead(&mut *self.file, &mut self.ahead, self.at);
    }

    fn seal_group(&self, group: &mut [u8], count: u32) -> io::Result<()> {
        let len = group.len() - GROUP_HEAD_BYTES;
        // Nobody could read it again.
        if len > GROUP_BYTES_MAX {
            let text = format!(
                "records of {len} bytes do not fit a group, which has at most {GROUP_BYTES_MAX}"
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        put_at(group, 0, &GROUP);
        put_at(group, 4, &len.to_be_bytes());
        put_at(group, 12, &self.next.to_be_bytes());
        put_at(group, 20, &count.to_be_bytes());
        put_at(group, 24, &self.synced.to_be_bytes());
        let crc = group_crc(self.owner, self.first, group);
        put_at(group, 8, &crc.to_be_bytes());
        Ok(())
    }

    /// Syncs everything that was written. After an error it is unknown what is durable, and the log
    /// must not be used any more.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.at {
            self.file.sync()?;
            self.synced = self.at;
        }
        Ok(())
    }

    /// Notes in the file how far it is synced, if there are records of which it does not say so.
    /// Not synced itself.
    pub fn note_synced(&mut self) -> io::Result<()> {
        if self.noted >= self.records_end || self.synced < self.records_end {
            return Ok(());
        }
        let mut group = vec![0; GROUP_HEAD_BYTES];
        self.seal_group(&mut group, 0)?;
        self.file.write_at(self.at, &group)?;
        self.at += group.len() as u64;
        self.noted = self.synced;
        Ok(())
    }

    /// Begins a new segment if this one is long enough. Everything written before is durable then.
    /// After an error it is unknown what is durable, and the log must not be used any more.
    pub fn rotate(&mut self) -> io::Result<Rotated> {
        if self.at < self.segment_bytes || self.next == self.first {
            return Ok(Rotated::No);
        }
        self.sync()?;
        let next = match new_segment(&*self.disk, self.owner, self.next) {
            Ok(next) => next,
            Err(error) if is_full(&error) => return Ok(Rotated::NoRoom(error)),
            Err(error) => return Err(error),
        };
        // It has its name, so there is no way back: two files must not go on with the same record.
        self.disk.sync_dir(CONSENSUS)?;
        self.end_segment()?;
        // What was found for it beforehand is free for others.
        if self.ahead.is_some_and(|ahead| ahead > self.at)
            && let Ok(len) = self.file.len()
        {
            self.file.set_len(len).ok();
        }
        self.file = next;
        self.first = self.next;
        self.at = HEADER_BYTES as u64;
        self.ahead = self.ahead.map(|_| self.at);
        (self.synced, self.noted, self.records_end) = (self.at, self.at, self.at);
        Ok(Rotated::Yes)
    }

    /// Writes a group that says that another segment follows. It is written after the next segment
    /// is durable, so that a missing segment is never reported by mistake, and before the next
    /// segment has records, so that a missing one is always reported.
    fn end_segment(&mut self) -> io::Result<()> {
        let mut group = vec![0; GROUP_HEAD_BYTES];
        self.seal_group(&mut group, CONTINUED)?;
        match self.file.write_at(self.at, &group) {
            Ok(()) => self.file.sync(),
            // Without this note a missing next segment is noticed only by the segment after it, if
            // there is one.
            Err(error) if is_full(&error) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Bytes of a segment that is followed by another.
    pub(super) fn segment_bytes(&self) -> u64 {
        self.segment_bytes
    }

    /// The record that is written next.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// The first record of the open segment.
    pub fn segment(&self) -> u64 {
        self.first
    }

    /// Bytes of the open segment.
    pub fn segment_len(&self) -> u64 {
        self.at
    }

    /// Reads a payload back.
    pub fn read(&mut self, place: &Place) -> Result<Vec<u8>, StoreError> {
        if place.file == FileNo::log(self.first) {
            return read_place(&*self.disk, &*self.file, place);
        }
        if !self.open.contains_key(&place.file) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.open.clear();
            }
            let path = place.file.path();
            let opened = match self.disk.open(&path, How::Read) {
                Err(error) if is_out_of_files(&error) && !self.open.is_empty() => {
                    self.open.clear();
                    self.disk.open(&path, How::Read)
                }
                opened => opened,
            };
            let file = opened.map_err(|error| StoreError::io("read", &*self.disk, &path, error))?;
            self.open.insert(place.file, file);
        }
        match self.open.get(&place.file) {
            Some(file) => read_place(&*self.disk, &**file, place),
            None => Err(StoreError::damage(&*self.disk, &place.file.path(), 0, "it is not open")),
        }
    }

    /// Removes files that nothing needs any more.
    pub fn remove(&mut self, files: &[FileNo]) -> io::Result<()> {
        for file in files {
            self.open.remove(file);
            match self.disk.remove(&file.path()) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.disk.sync_dir(CONSENSUS)
    }
}

/// Makes a segment. Its name is not certain before the directory is synced. After an error it has
/// none.
fn new_segment(disk: &dyn Disk, owner: Owner, first: u64) -> io::Result<Box<dyn DiskFile>> {
    let path = FileNo::log(first).path();
    let new = format!("{path}{NEW}");
    let make = || {
        let mut file = disk.open(&new, How::Create)?;
        file.write_at(0, &header(Kind::Log, owner, first))?;
        file.sync()?;
        disk.rename(&new, &path)?;
        Ok(file)
    };
    make().inspect_err(|_| drop(disk.remove(&new)))
}

/// Has the disk find room for what comes behind `at` in a file. `ahead` says up to where it has.
pub(super) fn look_ahead(file: &mut dyn DiskFile, ahead: &mut Option<u64>, at: u64) {
    let Some(known) = ahead.filter(|known| at + AHEAD_BYTES / 2 > *known) else { return };
    // A disk that is nearly full may have room for less.
    for more in [at + AHEAD_BYTES, at + AHEAD_BYTES / 8].into_iter().filter(|more| *more > known) {
        match file.allocate_ahead(more) {
            Ok(()) => return *ahead = Some(more),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => return *ahead = None,
            Err(_) => {}
        }
    }
}

pub(super) fn put_at(bytes: &mut [u8], at: usize, value: &[u8]) {
    if let Some(room) = bytes.get_mut(at..at + value.len()) {
        room.copy_from_slice(value);
    }
}

/// The checksum of a group: over its head and records, and over the segment it belongs to, so that
/// it is good nowhere else.
pub(super) fn group_crc(owner: Owner, first: u64, group: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(owner.dir.as_bytes());
    crc.update(&first.to_be_bytes());
    crc.update(group.get(..8).unwrap_or_default());
    crc.update(group.get(12..).unwrap_or_default());
    crc.finalize()
}

/// The end of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// The first record of the last segment.
    pub first: u64,
    /// Where its last good group ends.
    pub at: u64,
    /// The record that comes next.
    pub next: u64,
    /// How far the file says itself that it is synced.
    pub noted: u64,
    /// Where its last record ends.
    pub records_end: u64,
    /// Bytes behind the last good group, which are not.
    pub torn: u64,
    /// Whether it says that another segment follows.
    pub continued: bool,
}

/// Reads a segment, record by record.
#[derive(Debug)]
pub struct Segment<'a> {
    disk: &'a dyn Disk,
    owner: Owner,
    path: String,
    file: Box<dyn DiskFile>,
    first: u64,
    len: u64,
    at: u64,
    next: u64,
    group: Vec<u8>,
    /// The next record of the group, and how many are left.
    entry: usize,
    left: u32,
    noted: u64,
    records_end: u64,
    /// Whether it says that another follows.
    continued: bool,
}

/// A record that was read, and where its payload lies.
#[derive(Debug)]
pub struct Logged {
    /// Its place in the order.
    pub index: Index,
    pub entry: Entry,
    /// Its payload's place.
    pub place: Option<Place>,
}

impl<'a> Segment<'a> {
    /// Opens the segment that begins with this record.
    pub fn open(disk: &'a dyn Disk, owner: Owner, first: u64) -> Result<Self, StoreError> {
        let path = FileNo::log(first).path();
        let failed = |error| StoreError::io("read", disk, &path, error);
        let file = disk.open(&path, How::Read).map_err(failed)?;
        let number = expect_header(disk, &path, &*file, Kind::Log, owner)?;
        if number != first {
            let what = format!(
                "its name says that it begins with record {first}, and its header {number}"
            );
            return Err(StoreError::damage(disk, &path, 28, what));
        }
        let len = file.len().map_err(failed)?;
        let (at, group) = (HEADER_BYTES as u64, Vec::new());
        Ok(Segment {
            disk,
            owner,
            path,
            file,
            first,
            len,
            at,
            next: first,
            group,
            entry: 0,
            left: 0,
            noted: at,
            records_end: at,
            continued: false,
        })
    }

    /// The next record. `None` at the end, or where something is that cannot be read:
    /// [`Segment::tail`] tells which.
    pub fn next(&mut self, names: &mut Names) -> Result<Option<Logged>, StoreError> {
        while self.left == 0 {
            match self.read_group(self.at)? {
                Some(CONTINUED) => {
                    self.at += self.group.len() as u64;
                    self.continued = true;
                    return Ok(None);
                }
                Some(count) => (self.entry, self.left) = (GROUP_HEAD_BYTES, count),
                None => return Ok(None),
            }
            if self.left == 0 {
                self.at += self.group.len() as u64;
            }
        }
        let damage = |at: usize, what: String| {
            // The checksum of the group is right, so this was written so: by another heft, or by a
            // mistake of ours.
            StoreError::damage(self.disk, &self.path, self.at + at as u64, what)
        };
        let start = self.entry + 4;
        let len = self.group.get(self.entry..start).and_then(|len| len.first_chunk::<4>());
        let len = len.and_then(|len| usize::try_from(u32::from_be_bytes(*len)).ok());
        let bytes = len.and_then(|len| self.group.get(start..start + len));
        let Some(bytes) = bytes else {
            return Err(damage(self.entry, "a record is longer than its group".to_owned()));
        };
        let entry = codec::get_entry(bytes, names)
            .map_err(|error| damage(start + error.at, error.what.clone()))?;
        let place = entry.attached.as_ref().map(|attached| Place {
            file: FileNo::log(self.first),
            offset: self.at + (start + attached.payload.start) as u64,
            len: u32::try_from(attached.payload.len()).unwrap_or(u32::MAX),
            crc: attached.crc,
        });
        let index = Index(self.next);
        self.entry = start + bytes.len();
        self.left -= 1;
        self.next += 1;
        if self.left == 0 {
            self.at += self.group.len() as u64;
        }
        Ok(Some(Logged { index, entry, place }))
    }

    /// Reads the group there; gives the number of its records, or `None` if there is no good one.
    fn read_group(&mut self, at: u64) -> Result<Option<u32>, StoreError> {
        let next = self.next;
        let Some(head) = self.group_at(at, |head| head.first == next)? else { return Ok(None) };
        self.noted = self.noted.max(head.synced.min(at));
        if !matches!(head.count, 0 | CONTINUED) {
            self.records_end = at + self.group.len() as u64;
        }
        Ok(Some(head.count))
    }

    /// The group there, if it is good and its head is such as it should be. Its records are read
    /// only then.
    fn group_at(
        &mut self,
        at: u64,
        is_wanted: impl FnOnce(&GroupHead) -> bool,
    ) -> Result<Option<GroupHead>, StoreError> {
        if at + GROUP_HEAD_BYTES as u64 > self.len {
            return Ok(None);
        }
        let failed = |error| StoreError::io("read", self.disk, &self.path, error);
        self.group.resize(GROUP_HEAD_BYTES, 0);
        read_exact(&*self.file, at, &mut self.group).map_err(failed)?;
        let Some(head) = GroupHead::read(GROUP, &self.group) else { return Ok(None) };
        let whole = GROUP_HEAD_BYTES + head.len;
        if head.len > GROUP_BYTES_MAX || at + whole as u64 > self.len || !is_wanted(&head) {
            return Ok(None);
        }
        self.group.resize(whole, 0);
        let body = self.group.get_mut(GROUP_HEAD_BYTES..).unwrap_or_default();
        read_exact(&*self.file, at + GROUP_HEAD_BYTES as u64, body).map_err(failed)?;
        Ok((group_crc(self.owner, self.first, &self.group) == head.crc).then_some(head))
    }

    /// After the last record: where the segment ends. An error if what is behind was certain once.
    pub fn tail(&mut self) -> Result<Tail, StoreError> {
        let (at, next, torn) = (self.at, self.next, self.len.saturating_sub(self.at));
        if torn > 0
            && let Some(later) = self.find_synced_beyond(at)?
        {
            let what =
                format!("the group of record {next} is damaged, and record {later} follows it");
            return Err(StoreError::damage(self.disk, &self.path, at, what));
        }
        let Segment { first, noted, records_end, continued, .. } = *self;
        Ok(Tail { first, at, next, noted, records_end, torn, continued })
    }

    /// After the last record of a segment that is followed by another, which begins with record
    /// `follows`: an error unless it ends right before it.
    pub fn expect_end(&mut self, follows: u64) -> Result<(), StoreError> {
        let Tail { at, next, torn, continued, .. } = self.tail()?;
        // The mark that another segment follows may be torn. There is no record in it.
        if next == follows && torn <= GROUP_HEAD_BYTES as u64 {
            return Ok(());
        }
        if continued && torn == 0 && next < follows {
            return Err(missing(self.disk, next, Some(follows - 1)));
        }
        let what = if torn > 0 {
            format!("the group of record {next} is damaged, and another file follows")
        } else if next < follows {
            format!(
                "it ends before record {next}, and the file behind it begins with record {follows}"
            )
        } else {
            format!("record {follows} is in it, and the file behind it begins with that one")
        };
        Err(StoreError::damage(self.disk, &self.path, at, what))
    }

    /// A good group somewhere behind `at` that was written when the file was synced beyond it:
    /// gives its first record.
    fn find_synced_beyond(&mut self, at: u64) -> Result<Option<u64>, StoreError> {
        let mut window = vec![0; 1 << 20];
        let mut from = at + 1;
        while from + GROUP_HEAD_BYTES as u64 <= self.len {
            let read = self.file.read_at(from, &mut window);
            let read =
                read.map_err(|error| StoreError::io("read", self.disk, &self.path, error))?;
            let seen = window.get(..read).unwrap_or_default();
            let hits: Vec<u64> = seen
                .windows(GROUP.len())
                .enumerate()
                .filter(|(_, bytes)| *bytes == GROUP)
                .map(|(hit, _)| from + hit as u64)
                .collect();
            for hit in hits {
                // A payload may be full of markers: what cannot be is not read to its end.
                let next = self.next;
                let is_later =
                    |head: &GroupHead| head.synced > at && head.synced <= hit && head.first >= next;
                if let Some(head) = self.group_at(hit, is_later)? {
                    return Ok(Some(head.first));
                }
            }
            from += (read.max(GROUP.len()) - (GROUP.len() - 1)) as u64;
        }
        Ok(None)
    }
}

/// What a group begins with, behind its marker.
pub(super) struct GroupHead {
    pub(super) len: usize,
    pub(super) crc: u32,
    pub(super) first: u64,
    pub(super) count: u32,
    pub(super) synced: u64,
}

impl GroupHead {
    pub(super) fn read(expected: [u8; 4], bytes: &[u8]) -> Option<Self> {
        let (marker, rest) = bytes.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<4>()?;
        let (crc, rest) = rest.split_first_chunk::<4>()?;
        let (first, rest) = rest.split_first_chunk::<8>()?;
        let (count, rest) = rest.split_first_chunk::<4>()?;
        let (synced, _) = rest.split_first_chunk::<8>()?;
        (*marker == expected).then_some(())?;
        Some(GroupHead {
            len: usize::try_from(u32::from_be_bytes(*len)).ok()?,
            crc: u32::from_be_bytes(*crc),
            first: u64::from_be_bytes(*first),
            count: u32::from_be_bytes(*count),
            synced: u64::from_be_bytes(*synced),
        })
    }
}
