//! The tail: records of a member of a cluster that are not committed yet, and its votes.
//!
//! A record goes to the tail, is synced there, and counts toward a majority then. Once committed it
//! is appended to the log, which is synced before the file of the tail that has it is removed. So
//! the log has what is committed, and nothing else. A leader without a cluster has no tail. Who
//! decides what is written is `consensus`; the log's thread writes it.

pub mod read;

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use chunking::limits::RECORD_BYTES_MAX;

use super::codec::{put_bool, put_len, put_u32, put_u64};
use super::disk::{Disk, DiskFile, How, is_full};
use super::format::{CONSENSUS, HEADER_BYTES, Kind, NEW, Owner, StoreError, header};
use super::log::{
    CONTINUED, GROUP_BYTES, GROUP_BYTES_MAX, GROUP_HEAD_BYTES, Rotated, group_crc, look_ahead,
    put_at,
};
use crate::core::cluster::TERM_FIRST;
use crate::core::ids::{Index, Node, Term};
use read::Found;

/// What a group begins with.
const GROUP: [u8; 4] = *b"tail";

/// A file of so many bytes is followed by another, unless segments of the log are shorter.
const FILE_BYTES: u64 = 64 << 20;

/// Bytes of all files. They go as records are committed: while no majority is there, nothing is
/// written beyond this.
pub const TAIL_BYTES_MAX: u64 = 256 << 20;

/// Bytes of a record besides its own: term, length.
const RECORD_HEAD_BYTES: usize = 8 + 4;

/// The most bytes of what a group says of a vote: that there is one, its term, that it went to
/// somebody, to whom.
const VOTE_BYTES_MAX: usize = 1 + 8 + 1 + 4;

/// The longest record that fits, with what the codec puts before it.
pub const TAIL_RECORD_BYTES_MAX: usize = GROUP_BYTES_MAX - RECORD_HEAD_BYTES - VOTE_BYTES_MAX;

// What another node may send, and a leader may propose, can be written.
const _: () = assert!(RECORD_BYTES_MAX as usize + 1024 <= TAIL_RECORD_BYTES_MAX);

/// The term that a node is in, and whom it voted for in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    pub term: Term,
    /// Nobody, so far.
    pub node: Option<Node>,
}

impl Default for Vote {
    /// That of a node before its first election.
    fn default() -> Self {
        Vote { term: TERM_FIRST, node: None }
    }
}

impl Vote {
    /// Whether it may follow another: the term does not go back, and in one term there is one vote.
    fn may_follow(&self, before: &Vote) -> bool {
        self.term > before.term
            || (self.term == before.term && before.node.is_none_or(|node| self.node == Some(node)))
    }
}

/// A record that is not committed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailRecord {
    pub term: Term,
    /// As [`put_entry`](super::codec::put_entry) writes it.
    pub bytes: Bytes,
}

/// Records from `first` on. Those that had these places before are not any more, nor are those
/// behind them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TailRecords {
    pub first: Index,
    pub records: Vec<TailRecord>,
}

/// What the tail is told at once. A vote comes before records that depend on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TailWrite {
    pub vote: Option<Vote>,
    pub records: Option<TailRecords>,
}

/// The path of the file with this number.
pub fn path(number: u64) -> String {
    format!("{CONSENSUS}/{}-{number:016x}", Kind::Tail.name())
}

/// The number of the file that is called so, beneath [`CONSENSUS`].
pub fn number_in(name: &str) -> Option<u64> {
    let number = name.strip_prefix(Kind::Tail.name())?.strip_prefix('-')?;
    let number = u64::from_str_radix(number, 16).ok()?;
    (path(number).strip_prefix(CONSENSUS)?.strip_prefix('/')? == name).then_some(number)
}

/// A file that another follows.
#[derive(Debug)]
struct Older {
    number: u64,
    /// The highest record in it, even if a later file replaces that: what lies between may be
    /// behind it.
    last: u64,
    bytes: u64,
}

/// The tail, open at its end.
#[derive(Debug)]
pub struct Writer {
    disk: Arc<dyn Disk>,
    owner: Owner,
    /// When the open file is followed by another.
    file_bytes: u64,
    file: Box<dyn DiskFile>,
    number: u64,
    /// Where the next group goes.
    at: u64,
    /// How far the open file is synced.
    synced: u64,
    /// How far it says itself that it is.
    noted: u64,
    /// Where its last group ends that is no note.
    groups_end: u64,
    /// How far space is allocated in it, where the file system can do that.
    ahead: Option<u64>,
    vote: Vote,
    /// The highest record in it.
    last: u64,
    /// The files before it, the oldest first.
    older: Vec<Older>,
    buffer: Vec<u8>,
}

impl Writer {
    /// A tail without votes and records: what makes a directory that of a member.
    pub fn begin(disk: Arc<dyn Disk>, owner: Owner, segment_bytes: u64) -> io::Result<Self> {
        Writer::create(disk, owner, segment_bytes, 1, Vote::default(), None)
    }

    /// Goes on with what was found, in a new file that has all of it: what a killed process had
    /// written without a sync is certain only then. The files from before are removed.
    pub fn go_on(
        disk: Arc<dyn Disk>,
        owner: Owner,
        segment_bytes: u64,
        found: &Found,
    ) -> Result<Self, StoreError> {
        let number = found.files.last().map_or(1, |file| file.number.saturating_add(1));
        // Even if there are none, they say that older files count no more.
        let records = Some(&found.records);
        let failed = |error| StoreError::io("write", &*disk, &path(number), error);
        let writer =
            Writer::create(disk.clone(), owner, segment_bytes, number, found.vote, records);
        let writer = writer.map_err(failed)?;
        for file in &found.files {
            super::remove(&*disk, &path(file.number))?;
        }
        disk.sync_dir(CONSENSUS).map_err(failed)?;
        Ok(writer)
    }

    /// Makes a file, with its first groups. After an error it has no name.
    fn create(
        disk: Arc<dyn Disk>,
        owner: Owner,
        segment_bytes: u64,
        number: u64,
        vote: Vote,
        records: Option<&TailRecords>,
    ) -> io::Result<Self> {
        let path = path(number);
        let new = format!("{path}{NEW}");
        let at = HEADER_BYTES as u64;
        let make = || {
            let mut file = disk.open(&new, How::Create)?;
            file.write_at(0, &header(Kind::Tail, owner, number))?;
            let mut writer = Writer {
                disk: disk.clone(),
                owner,
                file_bytes: segment_bytes.min(FILE_BYTES),
                file,
                number,
                at,
                synced: at,
                noted: at,
                groups_end: at,
                ahead: Some(at),
                vote,
                last: 0,
                older: Vec::new(),
                buffer: Vec::new(),
            };
            writer.put(Some(vote), records)?;
            writer.flush()?;
            writer.sync()?;
            disk.rename(&new, &path)?;
            // It has its name, so there is no way back, even if there was no room for that: an
            // older file must not get votes that this one does not have.
            disk.sync_dir(CONSENSUS).map_err(io::Error::other)?;
            Ok(writer)
        };
        make().inspect_err(|_| drop(disk.remove(&new)))
    }

    /// Writes votes and records, which are durable only after [`Writer::sync`]. After an error none
    /// of them counts, and they can be written again. With each comes the last record that is
    /// committed: up to there nothing is replaced.
    pub fn append<'a>(
        &mut self,
        writes: impl IntoIterator<Item = (Index, &'a TailWrite)>,
    ) -> io::Result<()> {
        let before = (self.at, self.noted, self.groups_end, self.vote, self.last);
        let written = writes.into_iter().try_for_each(|(committed, write)| {
            self.check(write, committed)?;
            self.put(write.vote, write.records.as_ref())
        });
        let written = written.and_then(|()| self.flush());
        if written.is_err() {
            (self.at, self.noted, self.groups_end, self.vote, self.last) = before;
            self.buffer.clear();
        }
        written
    }

    /// What must not be written, whoever asks for it: it would undo what others rely on.
    fn check(&self, write: &TailWrite, committed: Index) -> io::Result<()> {
        let refused = |text| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        let vote = write.vote.unwrap_or(self.vote);
        if !vote.may_follow(&self.vote) {
            return refused(format!("{vote:?} cannot follow {:?}", self.vote));
        }
        let Some(TailRecords { first, records }) = &write.records else { return Ok(()) };
        if *first <= committed {
            return refused(format!("record {first} is to be replaced, and it is committed"));
        }
        if let Some(long) = records.iter().find(|record| record.bytes.len() > TAIL_RECORD_BYTES_MAX)
        {
            let bytes = long.bytes.len();
            return refused(format!(
                "a record of {bytes} bytes does not fit the tail, which takes {TAIL_RECORD_BYTES_MAX} \
                 at the most"
            ));
        }
        let is_in_order = records.is_sorted_by_key(|record| record.term);
        let is_after_vote = records.last().is_some_and(|record| record.term > vote.term);
        if !is_in_order || is_after_vote || records.first().is_some_and(|one| one.term.0 == 0) {
            let [from, to] =
                [records.first(), records.last()].map(|one| one.map_or(Term(0), |one| one.term));
            return refused(format!(
                "records of the terms {from} to {to} cannot be written in term {}",
                vote.term
            ));
        }
        Ok(())
    }

    /// Puts a vote and records into groups.
    fn put(&mut self, mut vote: Option<Vote>, records: Option<&TailRecords>) -> io::Result<()> {
        self.vote = vote.unwrap_or(self.vote);
        let Some(TailRecords { first, records }) = records else {
            return if vote.is_some() { self.put_group(vote, 0, &[]).map(drop) } else { Ok(()) };
        };
        self.last = self.last.min(first.0.saturating_sub(1));
        let (mut first, mut rest) = (first.0, records.as_slice());
        loop {
            let put = self.put_group(vote.take(), first, rest)?;
            first = first.saturating_add(put as u64);
            rest = rest.get(put..).unwrap_or_default();
            if rest.is_empty() {
                self.last = first.saturating_sub(1);
                return Ok(());
            }
        }
    }

    /// Puts as many of the records as go into one group. Gives how many those are.
    fn put_group(
        &mut self,
        vote: Option<Vote>,
        first: u64,
        records: &[TailRecord],
    ) -> io::Result<usize> {
        if self.buffer.len() >= GROUP_BYTES {
            self.flush()?;
        }
        let start = self.buffer.len();
        self.buffer.resize(start + GROUP_HEAD_BYTES, 0);
        put_bool(vote.is_some(), &mut self.buffer);
        if let Some(Vote { term, node }) = vote {
            put_u64(term.0, &mut self.buffer);
            put_bool(node.is_some(), &mut self.buffer);
            node.iter().for_each(|node| put_u32(node.0, &mut self.buffer));
        }
        let mut count: u32 = 0;
        for TailRecord { term, bytes } in records {
            let more = RECORD_HEAD_BYTES + bytes.len();
            let len = self.buffer.len() - start - GROUP_HEAD_BYTES;
            if count > 0 && (len >= GROUP_BYTES || len + more > GROUP_BYTES_MAX) {
                break;
            }
            put_u64(term.0, &mut self.buffer);
            put_len(bytes.len(), &mut self.buffer);
            self.buffer.extend_from_slice(bytes);
            count += 1;
        }
        self.seal_group(start, first, count)?;
        self.groups_end = self.at + self.buffer.len() as u64;
        usize::try_from(count).map_err(|_| io::ErrorKind::InvalidInput.into())
    }

    fn seal_group(&mut self, start: usize, first: u64, count: u32) -> io::Result<()> {
        let (synced, number) = (self.synced, self.number);
        let group = self.buffer.get_mut(start..).unwrap_or_default();
        let len = group.len().saturating_sub(GROUP_HEAD_BYTES);
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        put_at(group, 0, &GROUP);
        put_at(group, 4, &len.to_be_bytes());
        put_at(group, 12, &first.to_be_bytes());
        put_at(group, 20, &count.to_be_bytes());
        put_at(group, 24, &synced.to_be_bytes());
        let crc = group_crc(self.owner, number, group);
        put_at(group, 8, &crc.to_be_bytes());
        Ok(())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.file.write_at(self.at, &self.buffer)?;
        self.at += self.buffer.len() as u64;
        self.noted = self.synced;
        self.buffer.clear();
        // What a large record took is not kept.
        self.buffer.shrink_to(GROUP_BYTES);
        Ok(())
    }

    /// Syncs everything that was written. After an error it is unknown what is durable, and the
    /// tail must not be used any more.
    pub fn sync(&mut self) -> io::Result<()> {
        if self.synced < self.at {
            self.file.sync()?;
            self.synced = self.at;
        }
        Ok(())
    }

    /// Notes in the file how far it is synced, if there is something of which it does not say so.
    /// Not synced itself.
    pub fn note_synced(&mut self) -> io::Result<()> {
        if self.noted >= self.groups_end || self.synced < self.groups_end {
            return Ok(());
        }
        let groups_end = self.groups_end;
        let written = self.put_group(None, 0, &[]).and_then(|_| self.flush());
        self.buffer.clear();
        self.groups_end = groups_end;
        written
    }

    /// Begins a new file if this one is long enough. Everything written before is durable then.
    /// After an error it is unknown what is durable, and the tail must not be used any more.
    pub fn rotate(&mut self) -> io::Result<Rotated> {
        if self.at < self.file_bytes {
            return Ok(Rotated::No);
        }
        self.sync()?;
        let number = self.number.saturating_add(1);
        let (disk, bytes) = (self.disk.clone(), self.file_bytes);
        let next = Writer::create(disk, self.owner, bytes, number, self.vote, None);
        let next = match next {
            Ok(next) => next,
            Err(error) if is_full(&error) => return Ok(Rotated::NoRoom(error)),
            Err(error) => return Err(error),
        };
        self.end_file()?;
        let Writer { mut older, number, last, at: bytes, .. } = std::mem::replace(self, next);
        older.push(Older { number, last, bytes });
        self.older = older;
        Ok(Rotated::Yes)
    }

    /// Says that another file follows: before that one has anything that this one does not, so that
    /// it is never missing unnoticed.
    fn end_file(&mut self) -> io::Result<()> {
        let start = self.buffer.len();
        self.buffer.resize(start + GROUP_HEAD_BYTES, 0);
        put_bool(false, &mut self.buffer);
        self.seal_group(start, 0, CONTINUED)?;
        let written = self.flush().and_then(|()| self.file.sync());
        match written {
            Err(error) if is_full(&error) => {
                self.buffer.clear();
                Ok(())
            }
            written => written,
        }
    }

    /// Has the disk find room for what comes next.
    pub fn look_ahead(&mut self) {
        look_ahead(&mut *self.file, &mut self.ahead, self.at);
    }

    /// Whether files can be removed once the log has all records up to `committed` on the disk.
    pub fn is_obsolete(&self, committed: Index) -> bool {
        self.older.first().is_some_and(|file| file.last <= committed.0)
    }

    /// Removes the files of which the log has all records on the disk: those up to `synced`. Gives
    /// how many they were.
    pub fn trim(&mut self, synced: Index) -> io::Result<usize> {
        let count = self.older.iter().take_while(|file| file.last <= synced.0).count();
        for _ in 0..count {
            let Some(file) = self.older.first() else { break };
            match self.disk.remove(&path(file.number)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => drop(self.older.remove(0)),
            }
        }
        if count > 0 {
            self.disk.sync_dir(CONSENSUS)?;
        }
        Ok(count)
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.at.saturating_add(self.older.iter().map(|file| file.bytes).sum())
    }

    /// The last vote that was written.
    pub fn vote(&self) -> Vote {
        self.vote
    }
}

impl TailWrite {
    /// Bytes that it takes at the most.
    pub fn bytes(&self) -> u64 {
        let records = self.records.iter().flat_map(|records| &records.records);
        let bytes = records.map(|record| (RECORD_HEAD_BYTES + record.bytes.len()) as u64);
        bytes.sum::<u64>().saturating_add((GROUP_HEAD_BYTES + VOTE_BYTES_MAX) as u64)
    }
}
