//! What waits: chunks in memory, and in files beneath the data directory. It names operations and takes their outcomes; a
//! driver has the files.

use std::time::Duration;

use bytes::Bytes;
use chunking::ChunkHead;
use chunking::message::Reason;

use super::blob::{Place, Stored};
use super::{BlobId, Out, Relay};
use crate::core::ids::ConnId;
use crate::peer::PoolBuf;

/// A disk that took nothing is tried again after this time.
const DISK_RETRY_AFTER: Duration = Duration::from_secs(1);

/// Something to do with a blob's spool file. Chunk `index` lies at `index` times the chunk size, as it came.
#[derive(Debug)]
pub enum DiskOp {
    /// Write a chunk; the file is made if it is not there.
    Write {
        /// The blob.
        blob: uuid::Uuid,
        /// Which chunk.
        index: u32,
        /// Its bytes.
        bytes: Bytes,
    },
    /// Read a chunk.
    Read {
        /// The blob.
        blob: uuid::Uuid,
        /// Which chunk.
        index: u32,
        /// How many bytes.
        len: u32,
        /// Whom it is for.
        conn: ConnId,
        /// Where to.
        buffer: PoolBuf,
    },
    /// Remove the file.
    Remove {
        /// The blob.
        blob: uuid::Uuid,
    },
}

/// What came of it. A removal reports nothing.
#[derive(Debug)]
pub enum DiskDone {
    /// A chunk was written, or why not.
    Written {
        /// The blob.
        blob: uuid::Uuid,
        /// Which chunk.
        index: u32,
        /// What went wrong, for people.
        result: Result<(), String>,
    },
    /// A chunk was read, with its CRC, or why not.
    Read {
        /// The blob.
        blob: uuid::Uuid,
        /// Which chunk.
        index: u32,
        /// Whom it is for.
        conn: ConnId,
        /// What came.
        result: Result<(Bytes, u32), String>,
    },
}

impl Relay {
    /// What may wait in memory before the disk is used.
    fn memory_share(&self) -> usize {
        self.config.buffers / 4
    }

    /// Keeps a chunk: in memory if somebody takes it soon or there is room, else on the disk.
    pub(super) fn store(&mut self, id: BlobId, index: u32, head: ChunkHead, bytes: Bytes) {
        let roomy = self.in_memory < self.memory_share();
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let soon = blob.is_flowing() && !blob.keep;
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let place = if soon || roomy || self.disk_trouble.is_some() {
            blob.in_memory += 1;
            self.in_memory += 1;
            Place::Memory(bytes)
        } else {
            blob.on_disk = true;
            self.out.push_back(Out::Disk(DiskOp::Write { blob: id, index, bytes: bytes.clone() }));
            Place::Writing(bytes)
        };
        blob.bytes += u64::from(len);
        self.spool_bytes += u64::from(len);
        if let Some(reserved) = &mut blob.reserved {
            let taken = u64::from(len).min(*reserved);
            *reserved -= taken;
            self.reserved -= taken;
        }
        blob.stored.insert(index, Stored { head, len, place });
    }

    /// Moves what a blob has in memory to the disk.
    pub(super) fn spill(&mut self, id: BlobId) {
        if self.disk_trouble.is_some() {
            return;
        }
        self.write_out(id, usize::MAX);
    }

    /// Writes so many of the chunks that a blob has in memory.
    fn write_out(&mut self, id: BlobId, chunks_max: usize) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let in_memory = blob.stored.iter_mut().filter(|(_, chunk)| matches!(chunk.place, Place::Memory(_)));
        for (index, chunk) in in_memory.take(chunks_max) {
            let Some(bytes) = chunk.bytes().cloned() else { continue };
            blob.on_disk = true;
            blob.in_memory -= 1;
            self.in_memory -= 1;
            let (index, written) = (*index, bytes.clone());
            self.out.push_back(Out::Disk(DiskOp::Write { blob: id, index, bytes: written }));
            chunk.place = Place::Writing(bytes);
        }
    }

    /// After a while one chunk is written to a disk that took nothing: if that goes well, the others follow.
    pub(super) fn try_the_disk_again(&mut self) {
        let now = self.now;
        let Some((_, since)) = &mut self.disk_trouble else { return };
        if since.plus(DISK_RETRY_AFTER) > now {
            return;
        }
        *since = now;
        match self.blobs.iter().find(|(_, blob)| blob.in_memory > 0).map(|(id, _)| *id) {
            Some(id) => self.write_out(id, 1),
            None => self.disk_trouble = None,
        }
    }

    /// After chunks went out: what need not be kept goes, and what nobody takes soon leaves the memory that others need.
    pub(super) fn settle_memory(&mut self, id: BlobId) {
        let share = self.memory_share();
        let Some(blob) = self.blobs.get(&id) else { return };
        if blob.in_memory == 0 {
            return;
        }
        if !blob.keep && blob.is_flowing() {
            let sent =
                |index: &u32| blob.downs.iter().all(|down| down.finished || down.sent.contains(*index));
            let gone: Vec<u32> = blob
                .stored
                .iter()
                .filter(|(index, chunk)| matches!(chunk.place, Place::Memory(_)) && sent(index))
                .map(|(index, _)| *index)
                .collect();
            for index in gone {
                self.drop_stored(id, index);
            }
        } else if self.in_memory > share {
            self.spill(id);
        }
    }

    pub(super) fn drop_stored(&mut self, id: BlobId, index: u32) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(chunk) = blob.stored.remove(&index) else { return };
        self.spool_bytes -= u64::from(chunk.len);
        blob.bytes -= u64::from(chunk.len);
        if let Some(reserved) = &mut blob.reserved {
            *reserved += u64::from(chunk.len);
            self.reserved += u64::from(chunk.len);
        }
        if let Place::Memory(_) = chunk.place {
            blob.in_memory -= 1;
            self.in_memory -= 1;
        }
    }

    pub(super) fn drop_all_stored(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        self.spool_bytes -= blob.bytes;
        self.in_memory -= blob.in_memory;
        if let Some(reserved) = &mut blob.reserved {
            *reserved += blob.bytes;
            self.reserved += blob.bytes;
        }
        (blob.bytes, blob.in_memory) = (0, 0);
        blob.stored.clear();
    }

    /// A disk operation ended.
    pub(in crate::leader) fn disk_done(&mut self, done: DiskDone) {
        match done {
            DiskDone::Written { blob, index, result } => self.written(blob, index, result),
            DiskDone::Read { blob, index, conn, result } => self.was_read(blob, index, conn, result),
        }
        self.pump();
    }

    fn written(&mut self, id: BlobId, index: u32, result: Result<(), String>) {
        let chunk = self.blobs.get_mut(&id).and_then(|blob| blob.stored.get_mut(&index));
        if let Err(trouble) = &result {
            tracing::warn!(blob = %id, "the spool takes nothing: {trouble}");
        }
        if let Some(chunk) = chunk
            && let Place::Writing(bytes) = &chunk.place
        {
            if result.is_ok() {
                chunk.place = Place::Disk;
            } else {
                chunk.place = Place::Memory(bytes.clone());
                self.in_memory += 1;
                if let Some(blob) = self.blobs.get_mut(&id) {
                    blob.in_memory += 1;
                }
            }
        }
        self.disk_trouble = result.err().map(|trouble| (trouble, self.now));
    }

    fn was_read(&mut self, id: BlobId, index: u32, conn: ConnId, result: Result<(Bytes, u32), String>) {
        let Relay { blobs, out, .. } = self;
        let blob = blobs.get_mut(&id).map(|blob| (&mut blob.downs, &blob.stored));
        let found = blob.and_then(|(downs, stored)| {
            let down = downs.iter_mut().find(|down| down.conn == conn)?;
            // One that began anew meanwhile did not ask for it.
            down.reading.remove(index).then_some((down, stored.get(&index)))
        });
        let Some((down, chunk)) = found else {
            // Nobody waits for it any more: the connection, the blob or the attempt is gone.
            return self.chunks_sent(conn, 1);
        };
        let Some(chunk) = chunk else {
            // It was dropped meanwhile, and comes again.
            down.window += 1;
            return self.chunks_sent(conn, 1);
        };
        let checked = result.and_then(|(bytes, crc)| {
            chunk.head.check_sent(crc).map(|()| bytes).map_err(|error| error.to_string())
        });
        match checked {
            Ok(bytes) if !down.sent.contains(index) => {
                down.sent.insert(index);
                out.push_back(Out::Chunk { conn, blob: id, head: chunk.head, bytes });
                self.feed(id);
            }
            Ok(_) => {
                down.window += 1;
                self.chunks_sent(conn, 1);
            }
            Err(trouble) => {
                tracing::warn!(blob = %id, index, "a chunk cannot be read back from the spool: {trouble}");
                down.window += 1;
                self.drop_stored(id, index);
                self.lost_at_the_disk(id, index, trouble);
                self.chunks_sent(conn, 1);
            }
        }
    }

    /// A chunk that was here is not any more: who brought it is asked again, if it can be.
    fn lost_at_the_disk(&mut self, id: BlobId, index: u32, trouble: String) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let can_ask = blob.up.as_ref().is_some_and(|up| up.keeps_source);
        if can_ask {
            self.ask_sender_again(id, false);
        } else {
            blob.seen.remove(index);
            self.fail(id, Reason::IO, format!("the leader's spool lost a part of it: {trouble}"));
        }
    }
}
