//! Blob files: large inputs and parts of results. Chunk `i` is at offset `i` times the chunk size,
//! as received; a map file records which chunks are present.
//!
//! A leader without durable storage keeps blobs in `spool`, without maps, and leaves none behind. A
//! durable leader keeps them in `blobs`, where they survive it. Files no longer needed are
//! overwritten: that is faster than creating new ones.

mod scan;

pub use scan::{Found, scan};

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use bytes::Bytes;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{Open, Purpose};
use chunking::{ChunkHead, Digest};
use uuid::Uuid;

use super::disk::{BLOCK_BYTES, Disk, DiskFile, How, hint, is_full, is_out_of_files};
use super::format::{NEW, Owner, StoreError, full};
use super::map::{self, Map};
use super::space::{Reserve, Space};
use super::verify::{Verified, Verifier, VerifyRequest};
use crate::core::ids::ConnId;
use crate::wire::PoolBuf;

/// Where blobs are that outlive the leader.
pub const BLOBS: &str = "blobs";

/// Where blobs are that do not.
pub const SPOOL: &str = "spool";

/// What is behind the id in the name of a map.
const MAP: &str = ".map";

/// What files are called that wait to be written again.
const FREE: &str = "free-";

/// Bytes of such files of all threads together, at most.
pub const RECYCLED_BYTES_MAX: u64 = 1 << 30;

/// The part of a file system that they may have.
const RECYCLED_PART: u64 = 20;

/// How many such files one thread keeps.
const FREE_FILES_MAX: usize = 64;

/// What files that wait to be written again may have of a file system of this size.
pub fn recycled_bytes_max(total: Option<u64>) -> u64 {
    RECYCLED_BYTES_MAX.min(total.map_or(u64::MAX, |total| total / RECYCLED_PART))
}

/// Blobs whose files are held open at a time; the others are opened when they are needed.
const OPEN_BLOBS_MAX: usize = 96;

/// What a blob is for, as far as its room on the disk goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Inputs of jobs and parts of datasets.
    Upload,
    /// Parts of results.
    Result,
}

impl From<Purpose> for Class {
    fn from(purpose: Purpose) -> Self {
        match purpose {
            Purpose::Input | Purpose::Payload | Purpose::Dataset => Class::Upload,
            Purpose::Archive | Purpose::Stdout | Purpose::Stderr => Class::Result,
        }
    }
}

/// Something to do with a blob's files.
#[derive(Debug)]
pub enum DiskOp {
    /// A blob begins to come. Nothing is made before its first chunk.
    Begin {
        blob: Uuid,
        /// What it is.
        open: Box<Open>,
    },
    /// Write a chunk.
    Write {
        blob: Uuid,
        index: u32,
        /// What its bytes hash to.
        head: ChunkHead,
        bytes: Bytes,
    },
    /// Read a chunk.
    Read {
        blob: Uuid,
        index: u32,
        /// How many bytes.
        len: u32,
        crc: u32,
        /// Whom it is for.
        conn: ConnId,
        buffer: PoolBuf,
    },
    /// Make certain that all of a blob is on the disk.
    Seal {
        blob: Uuid,
        /// What it is.
        open: Box<Open>,
        /// What it hashes to.
        digest: Digest,
    },
    /// Read all that is here of a blob, and check it.
    Check { blob: Uuid },
    /// Read a part of a dataset, or all of it, and say what it is.
    Look {
        blob: Uuid,
        /// Its chunks: place, head and length of each.
        chunks: Vec<(u32, ChunkHead, u32)>,
        /// What it should be.
        at: VerifyRequest,
    },
    /// Remove its files.
    Remove { blob: Uuid },
    /// Say which blobs have files.
    List,
    /// The disk is full: give back what only waits to be written again.
    MakeRoom,
    /// Say how much room there is.
    Measure {
        /// Comes back with the answer.
        mark: u64,
    },
}

impl DiskOp {
    /// The blob it is about.
    pub fn blob(&self) -> Option<Uuid> {
        match self {
            DiskOp::Begin { blob, .. }
            | DiskOp::Write { blob, .. }
            | DiskOp::Read { blob, .. }
            | DiskOp::Seal { blob, .. }
            | DiskOp::Check { blob }
            | DiskOp::Look { blob, .. }
            | DiskOp::Remove { blob } => Some(*blob),
            DiskOp::List | DiskOp::MakeRoom | DiskOp::Measure { .. } => None,
        }
    }
}

/// What came of it. Beginnings and removals report nothing.
#[derive(Debug)]
pub enum DiskDone {
    /// A chunk was written, or why not.
    Written {
        blob: Uuid,
        index: u32,
        /// What went wrong, for people.
        result: Result<(), String>,
    },
    /// A chunk was read, and is as it was written; or why not.
    Read {
        blob: Uuid,
        index: u32,
        /// Whom it is for.
        conn: ConnId,
        result: Result<Bytes, String>,
    },
    /// All of a blob is on the disk, or why it is not known to be.
    Sealed {
        blob: Uuid,
        /// What went wrong.
        result: Result<(), SealError>,
    },
    /// What is here of a blob was checked.
    Checked {
        blob: Uuid,
        /// The chunks that are as they were written, and what is wrong with others, for people.
        result: Result<(Vec<u32>, Vec<String>), String>,
    },
    /// A part of a dataset was read, and is what it should be; or why not.
    Verified {
        blob: Uuid,
        /// What it is.
        result: Result<Verified, String>,
    },
    /// The blobs that have files.
    Listed { result: Result<Vec<Listed>, String> },
    /// How many bytes of files one of the threads keeps to be written again. Comes when that
    /// changes.
    Recycled { thread: usize, bytes: u64 },
    /// How much room there is, if that can be told.
    Measured {
        /// As it was asked with.
        mark: u64,
        space: Option<Space>,
    },
}

/// Why a blob could not be sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealError {
    pub text: String,
    /// Whether the disk was full.
    pub is_full: bool,
    /// Whether nothing of it may be used: all of it has to come again.
    pub is_lost: bool,
}

/// A blob that has files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    pub blob: Uuid,
    /// Bytes of its files.
    pub bytes: u64,
    /// When the last of them was written to, in seconds since 1970.
    pub written_at: u64,
}

#[derive(Debug)]
struct OpenBlob {
    data: Box<dyn DiskFile>,
    map: Option<Box<dyn DiskFile>>,
}

/// The files of blobs, or of some of them.
#[derive(Debug)]
pub struct BlobFiles {
    disk: Arc<dyn Disk>,
    dir: &'static str,
    /// Whose they are, if they outlive the leader.
    owner: Option<Owner>,
    /// What no blob may take of the disk; nothing, if none is.
    reserve: Option<Reserve>,
    open: HashMap<Uuid, OpenBlob>,
    /// Blobs that have begun to come and have no files yet, but for what a previous run may have
    /// left.
    begun: HashMap<Uuid, Box<Open>>,
    /// Files to be written again, with their bytes.
    free: Vec<(String, u64)>,
    /// Files to be reused whose renames are not synced yet: after a power failure such a file may
    /// have its old name again.
    freed: Vec<(String, u64)>,
    /// Bytes of both, as they were told last.
    recycled_told: u64,
    /// With how many others the room for them is shared, itself included.
    sharing: u64,
    /// What the next of them is called.
    free_name: String,
    free_next: u64,
    /// Whether names may have changed since the directory was synced.
    names_changed: bool,
    /// Chunks whose last write failed: who was told of an earlier one may not know.
    unwritten: HashMap<Uuid, BTreeSet<u32>>,
    /// Where chunks are checked.
    scratch: Vec<u8>,
}

impl BlobFiles {
    /// Blobs that do not outlive the leader.
    pub fn spool(disk: Arc<dyn Disk>) -> io::Result<Self> {
        disk.make_dir(SPOOL)?;
        Ok(BlobFiles::new(disk, SPOOL, None, ""))
    }

    /// Blobs that do. Each set of files that is used at a time has a name of its own.
    pub fn durable(disk: Arc<dyn Disk>, owner: Owner, name: &str) -> io::Result<Self> {
        disk.make_dir(BLOBS)?;
        let mut files = BlobFiles::new(disk, BLOBS, Some(owner), name);
        // A previous run may have been killed before it could make its names certain.
        files.names_changed = true;
        for found in files.disk.list(BLOBS)? {
            if let Some(number) = found.name.strip_prefix(&files.free_name) {
                files.free_next =
                    files.free_next.max(number.parse::<u64>().unwrap_or(0).saturating_add(1));
                files.freed.push((found.name, found.len));
            }
        }
        Ok(files)
    }

    /// Sets how much of the disk is kept free from blobs.
    #[must_use]
    pub fn keeping(mut self, reserve: Reserve) -> Self {
        self.reserve = Some(reserve);
        self
    }

    /// Shares the room for files that wait to be written again with so many, itself included.
    #[must_use]
    pub fn sharing(mut self, threads: usize) -> Self {
        self.sharing = u64::try_from(threads).unwrap_or(u64::MAX).max(1);
        self
    }

    /// Bytes of files that wait to be written again.
    fn recycled(&self) -> u64 {
        self.free.iter().chain(&self.freed).map(|(_, len)| *len).fold(0, u64::saturating_add)
    }

    /// The same, if that has changed since it was last told.
    pub fn recycled_news(&mut self) -> Option<u64> {
        let bytes = self.recycled();
        (std::mem::replace(&mut self.recycled_told, bytes) != bytes).then_some(bytes)
    }

    fn new(disk: Arc<dyn Disk>, dir: &'static str, owner: Option<Owner>, name: &str) -> Self {
        BlobFiles {
            disk,
            dir,
            owner,
            reserve: None,
            open: HashMap::new(),
            begun: HashMap::new(),
            free: Vec::new(),
            freed: Vec::new(),
            recycled_told: 0,
            sharing: 1,
            free_name: format!("{FREE}{name}-"),
            free_next: 0,
            names_changed: false,
            unwritten: HashMap::new(),
            scratch: Vec::new(),
        }
    }

    pub fn execute(&mut self, operation: DiskOp) -> Option<DiskDone> {
        match operation {
            DiskOp::Begin { blob, open } => {
                self.unwritten.remove(&blob);
                self.open.remove(&blob);
                self.begun.insert(blob, open);
                None
            }
            DiskOp::Write { blob, index, head, bytes } => {
                let written = self.write(blob, index, &head, &bytes);
                self.note_write(blob, index, written.is_ok());
                if written.as_ref().is_err_and(is_full) {
                    self.make_room();
                }
                let result = written.map_err(|error| self.explain("write to", &error));
                Some(DiskDone::Written { blob, index, result })
            }
            DiskOp::Read { blob, index, len, crc, conn, buffer } => {
                let result = self.read(blob, index, len, crc, buffer);
                Some(DiskDone::Read { blob, index, conn, result })
            }
            DiskOp::Seal { blob, open, digest } => {
                let result = self.seal(blob, &open, &digest);
                if result.as_ref().is_err_and(|error| error.is_full) {
                    self.make_room();
                }
                Some(DiskDone::Sealed { blob, result })
            }
            DiskOp::Check { blob } => {
                let result = self.check(blob).map_err(|error| error.to_string());
                Some(DiskDone::Checked { blob, result })
            }
            DiskOp::Look { blob, chunks, at } => {
                let reader = at.reader();
                let is_bytes = matches!(at, VerifyRequest::Bytes { .. });
                let result = match (self.look(blob, &chunks, at), reader) {
                    (Err(why), Some(reader)) if is_bytes => {
                        Ok(Verified::Bytes { reader, found: Err(why) })
                    }
                    (Err(why), Some(reader)) => Ok(Verified::Pieces { reader, found: Err(why) }),
                    (result, _) => result,
                };
                Some(DiskDone::Verified { blob, result })
            }
            DiskOp::Remove { blob } => {
                if let Err(error) = self.remove(blob) {
                    tracing::warn!("{}", self.explain("remove a file of", &error));
                }
                None
            }
            DiskOp::List => {
                let result =
                    list(&*self.disk, self.dir).map_err(|error| self.explain("list", &error));
                Some(DiskDone::Listed { result })
            }
            DiskOp::MakeRoom => {
                self.make_room();
                None
            }
            DiskOp::Measure { mark } => {
                Some(DiskDone::Measured { mark, space: self.disk.space().ok() })
            }
        }
    }

    fn note_write(&mut self, blob: Uuid, index: u32, is_written: bool) {
        if !is_written {
            self.unwritten.entry(blob).or_default().insert(index);
        } else if let Some(chunks) = self.unwritten.get_mut(&blob) {
            chunks.remove(&index);
            if chunks.is_empty() {
                self.unwritten.remove(&blob);
            }
        }
    }

    /// A disk that is full gets back what only waits to be written again.
    fn make_room(&mut self) {
        for (name, _) in self.free.drain(..).chain(self.freed.drain(..)) {
            gone(self.disk.remove(&format!("{}/{name}", self.dir))).ok();
        }
    }

    fn explain(&self, what: &str, error: &io::Error) -> String {
        format!(
            "cannot {what} the leader's {} {}: {error}{}",
            self.dir,
            full(&*self.disk, self.dir),
            hint(error)
        )
    }

    fn path(&self, blob: Uuid) -> String {
        format!("{}/{}", self.dir, blob.simple())
    }

    fn write(&mut self, blob: Uuid, index: u32, head: &ChunkHead, bytes: &[u8]) -> io::Result<()> {
        let OpenBlob { data, map } = self.files(blob, true)?;
        data.write_at(offset(index), bytes)?;
        if let Some(map) = map {
            let len = u32::try_from(bytes.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
            map.write_at(map::entry_at(index), &map::entry(blob, index, head, len))?;
        }
        Ok(())
    }

    fn read(
        &mut self,
        blob: Uuid,
        index: u32,
        len: u32,
        crc: u32,
        mut buffer: PoolBuf,
    ) -> Result<Bytes, String> {
        let len = usize::try_from(len).unwrap_or(usize::MAX);
        let path = full(&*self.disk, &self.path(blob));
        let is_durable = self.owner.is_some();
        let read = self.files(blob, false).and_then(|files| {
            // Past the page cache whole blocks are read; a buffer has room for them.
            let up_to = if is_durable { len.next_multiple_of(BLOCK_BYTES) } else { len };
            let room = buffer.room(0..up_to).ok_or(io::ErrorKind::InvalidInput)?;
            match files.data.read_at(offset(index), room)? {
                read if read >= len => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        });
        read.map_err(|error| {
            format!("{path} cannot be read at offset {}: {error}", offset(index))
        })?;
        let bytes = buffer.freeze(len);
        if crc32fast::hash(&bytes) != crc {
            return Err(format!(
                "{path} is damaged at offset {}: the checksum is wrong",
                offset(index)
            ));
        }
        Ok(bytes)
    }

    fn seal(&mut self, blob: Uuid, open: &Open, digest: &Digest) -> Result<(), SealError> {
        let Some(owner) = self.owner else { return Ok(()) };
        if self.unwritten.contains_key(&blob) {
            let text = format!("a chunk of blob {blob} could not be written");
            return Err(SealError { text, is_full: false, is_lost: true });
        }
        let unwritten = |files: &Self, error: io::Error| SealError {
            text: files.explain("write to", &error),
            is_full: is_full(&error),
            is_lost: false,
        };
        if let Err(error) = self.files_to_seal(blob, open) {
            return Err(unwritten(self, error));
        }
        if let Err(error) = self.sync(blob, |files| files.data.sync()) {
            return Err(self.doubt(blob, &error));
        }
        let written = self.files(blob, false).and_then(|files| {
            let Some(map) = &mut files.map else { return Ok(()) };
            // What it is may be known better than when it began.
            map.write_at(0, &map::front(owner, blob, open))?;
            let (at, seal) = map::seal(blob, digest);
            map.write_at(at, &seal)
        });
        if let Err(error) = written {
            return Err(unwritten(self, error));
        }
        let synced = self.sync(blob, |files| files.map.as_mut().map_or(Ok(()), |map| map.sync()));
        let synced = synced
            .and_then(|()| if self.names_changed { self.disk.sync_dir(self.dir) } else { Ok(()) });
        if let Err(error) = synced {
            return Err(self.doubt(blob, &error));
        }
        self.names_changed = false;
        self.free.append(&mut self.freed);
        Ok(())
    }

    /// The files of a blob that has come. One of no bytes has none yet.
    fn files_to_seal(&mut self, blob: Uuid, open: &Open) -> io::Result<()> {
        match self.files(blob, true).map(|_| ()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && open.size == 0 => {
                self.begun.insert(blob, Box::new(open.clone()));
                self.files(blob, true).map(|_| ())
            }
            opened => opened,
        }
    }

    fn sync(
        &mut self,
        blob: Uuid,
        sync: impl FnOnce(&mut OpenBlob) -> io::Result<()>,
    ) -> io::Result<()> {
        self.files(blob, false).and_then(sync)
    }

    /// A sync failed: what of the blob is on the disk is not known, and cannot be found out, as
    /// readers may see what never reached it. Nobody may go on with it, so its map goes.
    fn doubt(&mut self, blob: Uuid, error: &io::Error) -> SealError {
        self.open.remove(&blob);
        self.names_changed = true;
        if let Err(error) = gone(self.disk.remove(&format!("{}{MAP}", self.path(blob)))) {
            tracing::error!(%blob, "{}", self.explain("remove a file of", &error));
        }
        SealError { text: self.explain("write to", error), is_full: is_full(error), is_lost: true }
    }

    fn check(&mut self, blob: Uuid) -> Result<(Vec<u32>, Vec<String>), StoreError> {
        let path = self.path(blob);
        let owner =
            self.owner.ok_or_else(|| StoreError::damage(&*self.disk, &path, 0, "it has no map"))?;
        let map_path = format!("{path}{MAP}");
        let disk = self.disk.clone();
        let failed = |error| StoreError::io("read", &*disk, &path, error);
        let file = disk.open(&map_path, How::Read).map_err(failed)?;
        let map = Map::read(&*disk, &map_path, &*file, owner, blob)?;
        let mut scratch = self.take_scratch();
        let start = scratch.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        let (mut good, mut bad) = (Vec::new(), Vec::new());
        bad.extend(map.damage.iter().map(map::Damage::to_string));
        let data = &self.files(blob, false).map_err(failed)?.data;
        for (index, (head, len)) in &map.chunks {
            let len = usize::try_from(*len).unwrap_or(usize::MAX);
            let room = scratch
                .get_mut(start..start + len.next_multiple_of(BLOCK_BYTES))
                .unwrap_or_default();
            let read = data.read_at(offset(*index), room);
            let is_good = read.is_ok_and(|read| {
                read >= len && crc32fast::hash(room.get(..len).unwrap_or_default()) == head.crc_sent
            });
            if is_good {
                good.push(*index);
            } else {
                bad.push(format!(
                    "{} is damaged at offset {}",
                    full(&*disk, &path),
                    offset(*index)
                ));
            }
        }
        self.scratch = scratch;
        Ok((good, bad))
    }

    /// Room for a chunk, and to align it.
    fn take_scratch(&mut self) -> Vec<u8> {
        let mut scratch = std::mem::take(&mut self.scratch);
        if scratch.is_empty() {
            scratch = vec![0; CHUNK_BYTES_MAX as usize + BLOCK_BYTES];
        }
        scratch
    }

    /// Reads chunks of a part of a dataset, one after the other.
    fn look(
        &mut self,
        blob: Uuid,
        chunks: &[(u32, ChunkHead, u32)],
        at: VerifyRequest,
    ) -> Result<Verified, String> {
        let path = full(&*self.disk, &self.path(blob));
        let mut scratch = self.take_scratch();
        let start = scratch.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
        let opened =
            self.files(blob, false).map_err(|error| format!("{path} cannot be opened: {error}"));
        let looked = opened.and_then(|OpenBlob { data, .. }| {
            let mut looker = Verifier::new(at);
            for (index, head, len) in chunks {
                let len = usize::try_from(*len).unwrap_or(usize::MAX);
                let up_to = start.saturating_add(len.next_multiple_of(BLOCK_BYTES));
                let room = scratch.get_mut(start..up_to).unwrap_or_default();
                let from = offset(*index);
                let read = data
                    .read_at(from, room)
                    .map_err(|error| format!("{path} cannot be read at offset {from}: {error}"))?;
                let sent = room.get(..len).filter(|_| read >= len);
                let sent = sent.ok_or_else(|| format!("{path} ends before chunk {index} does"))?;
                looker
                    .feed(head, sent)
                    .map_err(|error| format!("{path} at offset {from}: {error}"))?;
            }
            looker.finish()
        });
        self.scratch = scratch;
        // A blob is checked once. An open handle would keep the space of a file that is removed
        // meanwhile.
        self.open.remove(&blob);
        looked
    }

    fn remove(&mut self, blob: Uuid) -> io::Result<()> {
        self.unwritten.remove(&blob);
        self.open.remove(&blob);
        self.begun.remove(&blob);
        let path = self.path(blob);
        if self.owner.is_none() {
            return gone(self.disk.remove(&path));
        }
        self.names_changed = true;
        // The map goes first: a file without a map is an orphan.
        gone(self.disk.remove(&format!("{path}{MAP}")))?;
        let len = match self.disk.open(&path, How::Read).and_then(|file| file.len()) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let total = self.disk.space().ok().map(|space| space.total);
        let most = recycled_bytes_max(total) / self.sharing;
        if len == 0
            || self.recycled().saturating_add(len) > most
            || self.free.len() + self.freed.len() >= FREE_FILES_MAX
        {
            return gone(self.disk.remove(&path));
        }
        let name = format!("{}{}", self.free_name, self.free_next);
        self.disk.rename(&path, &format!("{}/{name}", self.dir))?;
        self.free_next += 1;
        self.freed.push((name, len));
        Ok(())
    }

    /// The files of a blob, opened, or made if it has begun and they may be.
    fn files(&mut self, blob: Uuid, may_make: bool) -> io::Result<&mut OpenBlob> {
        if !self.open.contains_key(&blob) {
            if self.open.len() >= OPEN_BLOBS_MAX {
                self.open.clear();
            }
            let opened = match self.open_files(blob, may_make) {
                // Connections have taken all descriptors: those of others are given up for it.
                Err(error) if is_out_of_files(&error) && !self.open.is_empty() => {
                    self.open.clear();
                    self.open_files(blob, may_make)?
                }
                opened => opened?,
            };
            self.begun.remove(&blob);
            self.open.insert(blob, opened);
        }
        self.open.get_mut(&blob).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn open_files(&mut self, blob: Uuid, may_make: bool) -> io::Result<OpenBlob> {
        match (self.owner, self.begun.get(&blob)) {
            (None, _) => {
                let how = if may_make { How::Keep } else { How::Read };
                Ok(OpenBlob { data: self.disk.open(&self.path(blob), how)?, map: None })
            }
            (Some(owner), Some(open)) if may_make => {
                let open = open.clone();
                self.make_files(owner, blob, &open)
            }
            // What a previous run left under this id is not it.
            (Some(_), Some(_)) => Err(io::ErrorKind::NotFound.into()),
            (Some(_), None) => {
                let path = self.path(blob);
                let map = self.disk.open(&format!("{path}{MAP}"), How::Write)?;
                Ok(OpenBlob { data: self.disk.open(&path, How::Direct)?, map: Some(map) })
            }
        }
    }

    /// Makes the files of a blob that has begun, in the place of what a previous run may have left.
    fn make_files(&mut self, owner: Owner, blob: Uuid, open: &Open) -> io::Result<OpenBlob> {
        let path = self.path(blob);
        let new = format!("{path}{MAP}{NEW}");
        self.names_changed = true;
        let made = self.make_both(owner, blob, open, &path, &new);
        if made.is_err() {
            // A part of the room may have been found: it is not left to a blob that does not get
            // the rest.
            for path in [&new, &path] {
                gone(self.disk.remove(path)).ok();
            }
        }
        made
    }

    fn make_both(
        &mut self,
        owner: Owner,
        blob: Uuid,
        open: &Open,
        path: &str,
        new: &str,
    ) -> io::Result<OpenBlob> {
        self.take_free(path, open.size)?;
        let mut data = self.disk.open(path, How::Direct)?;
        let bytes = open.size.next_multiple_of(BLOCK_BYTES as u64);
        let len = data.len()?;
        self.has_room(Class::from(open.purpose), bytes.saturating_sub(len) + map::bytes(open))?;
        match len {
            len if len < bytes => data.allocate(bytes)?,
            len if len > bytes && bytes > 0 => data.set_len(bytes)?,
            _ => {}
        }
        let mut map = self.disk.open(new, How::Create)?;
        // So that a disk that is full says so now, and not when all of it has come.
        map.allocate(map::bytes(open))?;
        map.write_at(0, &map::front(owner, blob, open))?;
        self.disk.rename(new, &format!("{path}{MAP}"))?;
        Ok(OpenBlob { data, map: Some(map) })
    }

    /// Whether so many bytes more leave enough of the disk free.
    fn has_room(&self, class: Class, bytes: u64) -> io::Result<()> {
        let Some(reserve) = self.reserve else { return Ok(()) };
        let Ok(space) = self.disk.space() else { return Ok(()) };
        if space.free >= bytes.saturating_add(reserve.kept_from(class, space.total)) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::StorageFull, reserve.why_short(class, space, bytes)))
    }

    /// Gives a file that waits to be written again a blob's name, if there is one of about that
    /// size.
    fn take_free(&mut self, path: &str, bytes: u64) -> io::Result<()> {
        let fits = |len: u64| len >= bytes / 2 && len <= bytes.saturating_mul(2).max(1 << 20);
        let Some(at) = self.free.iter().rposition(|(_, len)| fits(*len)) else { return Ok(()) };
        let (name, _) = self.free.swap_remove(at);
        match self.disk.rename(&format!("{}/{name}", self.dir), path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            renamed => renamed,
        }
    }

    /// Removes all files of blobs: they do not outlive the leader.
    pub fn clear(&mut self) -> io::Result<usize> {
        self.open.clear();
        let listed = list(&*self.disk, self.dir)?;
        for blob in &listed {
            gone(self.disk.remove(&self.path(blob.blob)))?;
        }
        Ok(listed.len())
    }
}

fn gone(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn offset(index: u32) -> u64 {
    u64::from(index) * u64::from(CHUNK_BYTES_MAX)
}

/// The blobs that have files in a directory.
fn list(disk: &dyn Disk, dir: &str) -> io::Result<Vec<Listed>> {
    let mut listed: HashMap<Uuid, Listed> = HashMap::new();
    for found in disk.list(dir)? {
        let name = found.name.strip_suffix(NEW).unwrap_or(&found.name);
        let Ok(blob) = Uuid::try_parse(name.strip_suffix(MAP).unwrap_or(name)) else { continue };
        let entry = listed.entry(blob).or_insert(Listed { blob, bytes: 0, written_at: 0 });
        entry.bytes += found.len;
        entry.written_at = entry.written_at.max(found.written_at);
    }
    let mut listed: Vec<Listed> = listed.into_values().collect();
    listed.sort_unstable_by_key(|listed| listed.blob);
    Ok(listed)
}
