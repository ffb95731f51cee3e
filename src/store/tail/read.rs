//! Reads the tail: the last vote, and the records behind the end of the log.
//!
//! As in the log, each group says how far its file was synced when it was written. A bad group that
//! was never synced is what a crash left, and is cut. One that was synced is damage, and so is a
//! gap: a member that goes on without them might vote twice, or lose what it acknowledged.

use bytes::Bytes;

use super::{GROUP, RECORD_HEAD_BYTES, TailRecord, TailRecords, Vote, path};
use crate::core::Record;
use crate::core::cluster::{TERM_FIRST, Terms};
use crate::core::ids::{Index, Node, Term};
use crate::store::codec::{CodecError, Names, Reader, get_entry};
use crate::store::disk::{Disk, DiskFile, How, read_exact};
use crate::store::format::{HEADER_BYTES, Kind, Owner, StoreError, expect_header, full};
use crate::store::log::{CONTINUED, GROUP_BYTES_MAX, GROUP_HEAD_BYTES, GroupHead, group_crc};

/// Bytes that are searched for a group at a time.
const WINDOW_BYTES: usize = 1 << 20;

/// What the files of a tail say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    pub vote: Vote,
    /// The records behind the last one of the log.
    pub records: TailRecords,
    /// The terms of these, and of those in the log.
    pub terms: Terms,
    /// The oldest first; there is at least one.
    pub files: Vec<FileFound>,
}

/// A file of the tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFound {
    pub number: u64,
    /// Where its last good group ends.
    pub at: u64,
    /// Bytes behind that.
    pub torn: u64,
    /// Groups with votes or records.
    pub groups: u64,
}

impl FileFound {
    /// One that a start left behind, which wrote all that counts of it to a later one.
    fn ignored(number: u64) -> Self {
        FileFound { number, at: 0, torn: 0, groups: 0 }
    }
}

/// Reads all files of a tail, the oldest first. One whose first group names a record has all that
/// counts: those before it were being removed. The log ends with the record `log_end`, and `terms`
/// are those of its records.
pub fn read(
    disk: &dyn Disk,
    owner: Owner,
    numbers: &[u64],
    log_end: Index,
    terms: &Terms,
) -> Result<Found, StoreError> {
    let (mut taken, mut files) = (Taken::new(log_end), Vec::new());
    let mut start = 0;
    for (place, number) in numbers.iter().enumerate().rev() {
        let first = TailFile::open(disk, owner, *number)?.next()?;
        if first.is_some_and(|group| group.vote.is_some() && group.first > 0) {
            start = place;
            break;
        }
    }
    let (ignored, numbers) = numbers.split_at_checked(start).unwrap_or((&[], numbers));
    files.extend(ignored.iter().map(|number| FileFound::ignored(*number)));
    for (place, number) in numbers.iter().enumerate() {
        let mut file = TailFile::open(disk, owner, *number)?;
        let mut groups = 0;
        while let Some(group) = file.next()? {
            groups += u64::from(group.vote.is_some() || group.first > 0);
            if file.group_at == HEADER_BYTES as u64 && group.vote.is_none() {
                return Err(file.damage(file.group_at, "its first group has no vote".to_owned()));
            }
            taken.take(group, *number, &file)?;
        }
        let end = file.end()?;
        if groups == 0 {
            return Err(file.damage(end.at, "its first group is damaged".to_owned()));
        }
        match numbers.get(place + 1) {
            Some(follows) if number.checked_add(1) != Some(*follows) => {
                return Err(missing(disk, owner, number.saturating_add(1)));
            }
            None if file.continued => {
                return Err(missing(disk, owner, number.saturating_add(1)));
            }
            Some(_) | None => {}
        }
        files.push(FileFound { groups, ..end });
    }
    taken.finish(disk, terms, files)
}

/// The error for a file that should be there, and is not.
pub fn missing(disk: &dyn Disk, owner: Owner, number: u64) -> StoreError {
    StoreError::MissingTail { root: disk.root(), file: full(disk, &path(number)), node: owner.node }
}

/// What was read so far.
struct Taken {
    vote: Option<Vote>,
    /// The record behind the log's last.
    first: u64,
    /// Those from there on.
    records: Vec<Kept>,
}

struct Kept {
    record: TailRecord,
    /// The term that it begins, if it begins one.
    begins: Option<Term>,
    /// In which file it lies, and where.
    file: u64,
    at: u64,
}

impl Taken {
    fn new(log_end: Index) -> Self {
        Taken { vote: None, first: log_end.0.saturating_add(1), records: Vec::new() }
    }

    fn take(&mut self, group: Group, number: u64, file: &TailFile<'_>) -> Result<(), StoreError> {
        let damage = |what| Err(file.damage(file.group_at, what));
        if let Some(vote) = group.vote {
            if let Some(before) = self.vote.filter(|before| !vote.may_follow(before)) {
                return damage(format!("{vote:?} follows {before:?}"));
            }
            self.vote = Some(vote);
        }
        if group.first == 0 {
            return Ok(());
        }
        let next = self.first.saturating_add(self.records.len() as u64);
        if group.first > next {
            let last = group.first.saturating_sub(1);
            return damage(format!("the records {next} to {last} are missing before it"));
        }
        let keep = usize::try_from(group.first.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.records.truncate(keep);
        let in_log = self.first.saturating_sub(group.first);
        for (offset, (at, begins, record)) in (0u64..).zip(group.records) {
            if offset >= in_log {
                self.records.push(Kept { record, begins, file: number, at });
            }
        }
        Ok(())
    }

    /// Checks that the records can follow the log and each other.
    fn finish(
        self,
        disk: &dyn Disk,
        terms: &Terms,
        files: Vec<FileFound>,
    ) -> Result<Found, StoreError> {
        let mut terms = terms.clone();
        let log_end = Index(self.first.saturating_sub(1));
        let mut before = terms.of(log_end).unwrap_or_else(|| terms.last()).max(TERM_FIRST);
        let mut records = Vec::with_capacity(self.records.len());
        for (place, kept) in (0u64..).zip(self.records) {
            let index = self.first.saturating_add(place);
            let term = kept.record.term;
            let fits = match kept.begins {
                Some(begins) => begins == term && term >= before,
                None => term == before,
            };
            if !fits {
                let what = format!(
                    "record {index} has term {term}, and the one before it term {before}: the \
                     record that begins the term is missing"
                );
                return Err(StoreError::damage(disk, &path(kept.file), kept.at, what));
            }
            if let Some(term) = kept.begins {
                terms.note(Index(index), &Record::Term { term });
            }
            before = term;
            records.push(kept.record);
        }
        let vote = self.vote.unwrap_or_default();
        if vote.term < before {
            let (number, at) = files.last().map_or((0, 0), |file| (file.number, file.at));
            let what = format!(
                "the last vote is of term {}, and there are records of term {before}: a newer \
                 vote is missing",
                vote.term
            );
            return Err(StoreError::damage(disk, &path(number), at, what));
        }
        let records = TailRecords { first: Index(self.first), records };
        Ok(Found { vote, records, terms, files })
    }
}

/// What one write brought.
struct Group {
    vote: Option<Vote>,
    /// 0: it has no records.
    first: u64,
    /// Where each lies, the term that it begins, and itself.
    records: Vec<(u64, Option<Term>, TailRecord)>,
}

/// A file of the tail, read group by group.
struct TailFile<'a> {
    disk: &'a dyn Disk,
    owner: Owner,
    number: u64,
    path: String,
    file: Box<dyn DiskFile>,
    len: u64,
    /// Where the last good group ends.
    at: u64,
    /// Where it begins.
    group_at: u64,
    group: Vec<u8>,
    names: Names,
    /// Whether it says that another follows.
    continued: bool,
}

impl<'a> TailFile<'a> {
    fn open(disk: &'a dyn Disk, owner: Owner, number: u64) -> Result<Self, StoreError> {
        let path = path(number);
        let failed = |error| StoreError::io("read", disk, &path, error);
        let file = disk.open(&path, How::Read).map_err(failed)?;
        let found = expect_header(disk, &path, &*file, Kind::Tail, owner)?;
        if found != number {
            let what = format!("its name says that it is file {number}, and its header {found}");
            return Err(StoreError::damage(disk, &path, 28, what));
        }
        let (len, at) = (file.len().map_err(failed)?, HEADER_BYTES as u64);
        Ok(TailFile {
            disk,
            owner,
            number,
            path,
            file,
            len,
            at,
            group_at: at,
            group: Vec::new(),
            names: Names::default(),
            continued: false,
        })
    }

    fn damage(&self, at: u64, what: String) -> StoreError {
        StoreError::damage(self.disk, &self.path, at, what)
    }

    /// The next group. `None` at the end, or where there is no good one: [`TailFile::end`] tells
    /// which.
    fn next(&mut self) -> Result<Option<Group>, StoreError> {
        if self.continued {
            return Ok(None);
        }
        let Some(head) = self.group_at(self.at, |_| true)? else { return Ok(None) };
        self.group_at = self.at;
        self.at += self.group.len() as u64;
        self.continued = head.count == CONTINUED;
        let count = if self.continued { 0 } else { head.count };
        let group = std::mem::take(&mut self.group);
        // The checksum of the group is right, so this was written so: by another heft, or by a
        // mistake of ours.
        let read = get_group(&group, head.first, count, self.group_at, &mut self.names);
        self.group = group;
        read.map(Some).map_err(|error| self.damage(self.group_at + error.at as u64, error.what))
    }

    /// The group there, if it is good and its head is such as it should be. Its records are read
    /// only then.
    fn group_at(
        &mut self,
        at: u64,
        is_wanted: impl FnOnce(&GroupHead) -> bool,
    ) -> Result<Option<GroupHead>, StoreError> {
        if at.saturating_add(GROUP_HEAD_BYTES as u64) > self.len {
            return Ok(None);
        }
        let failed = |error| StoreError::io("read", self.disk, &self.path, error);
        self.group.resize(GROUP_HEAD_BYTES, 0);
        read_exact(&*self.file, at, &mut self.group).map_err(failed)?;
        let Some(head) = GroupHead::read(GROUP, &self.group) else { return Ok(None) };
        let whole = GROUP_HEAD_BYTES.saturating_add(head.len);
        let fits = head.len <= GROUP_BYTES_MAX && at.saturating_add(whole as u64) <= self.len;
        if !fits || !is_wanted(&head) {
            return Ok(None);
        }
        self.group.resize(whole, 0);
        let body = self.group.get_mut(GROUP_HEAD_BYTES..).unwrap_or_default();
        read_exact(&*self.file, at + GROUP_HEAD_BYTES as u64, body).map_err(failed)?;
        Ok((group_crc(self.owner, self.number, &self.group) == head.crc).then_some(head))
    }

    /// After the last group: where the file ends. An error if what is behind was certain once.
    fn end(&mut self) -> Result<FileFound, StoreError> {
        let (at, torn) = (self.at, self.len.saturating_sub(self.at));
        if torn > 0
            && let Some(later) = self.find_synced_beyond(at)?
        {
            let what = format!("a group is damaged, and the one at offset {later} follows it");
            return Err(self.damage(at, what));
        }
        Ok(FileFound { number: self.number, at, torn, groups: 0 })
    }

    /// Where a good group lies behind `at` that was written when the file was synced beyond it.
    fn find_synced_beyond(&mut self, at: u64) -> Result<Option<u64>, StoreError> {
        let mut window = vec![0; WINDOW_BYTES];
        let mut from = at.saturating_add(1);
        while from.saturating_add(GROUP_HEAD_BYTES as u64) <= self.len {
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
                let is_later = |head: &GroupHead| head.synced > at && head.synced <= hit;
                if self.group_at(hit, is_later)?.is_some() {
                    return Ok(Some(hit));
                }
            }
            from += (read.max(GROUP.len()) - (GROUP.len() - 1)) as u64;
        }
        Ok(None)
    }
}

/// Reads a whole group, its head too. `at` is where it lies in its file.
fn get_group(
    group: &[u8],
    first: u64,
    count: u32,
    at: u64,
    names: &mut Names,
) -> Result<Group, CodecError> {
    let mut reader = Reader::new(group);
    reader.bytes(GROUP_HEAD_BYTES)?;
    let vote = if reader.bool()? { Some(get_vote(&mut reader)?) } else { None };
    let is_possible = match first {
        0 => count == 0,
        first => first.checked_add(count.into()).is_some(),
    };
    let fits = usize::try_from(count).ok().and_then(|count| count.checked_mul(RECORD_HEAD_BYTES));
    if !is_possible || fits.is_none_or(|bytes| bytes > reader.left()) {
        return Err(reader.error(format!("{count} records from {first} on cannot be in it")));
    }
    let mut records = Vec::new();
    for _ in 0..count {
        let (start, term) = (reader.at(), reader.u64()?);
        if term == 0 {
            return Err(CodecError { at: start, what: "0 is not a term".to_owned() });
        }
        let len = reader.count(1)?;
        let (from, bytes) = (reader.at(), reader.bytes(len)?);
        let entry = get_entry(bytes, names)
            .map_err(|error| CodecError { at: from + error.at, what: error.what })?;
        let begins = if let Record::Term { term } = entry.record { Some(term) } else { None };
        let record = TailRecord { term: Term(term), bytes: Bytes::copy_from_slice(bytes) };
        records.push((at + start as u64, begins, record));
    }
    if reader.is_empty() {
        return Ok(Group { vote, first, records });
    }
    Err(reader.error(format!("{} bytes are left over behind the records", reader.left())))
}

fn get_vote(reader: &mut Reader<'_>) -> Result<Vote, CodecError> {
    let at = reader.at();
    let term = Term(reader.u64()?);
    if term.0 == 0 {
        return Err(CodecError { at, what: "0 is not a term".to_owned() });
    }
    let node = if reader.bool()? { Some(Node(reader.u32()?)) } else { None };
    Ok(Vote { term, node })
}
