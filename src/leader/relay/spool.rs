//! What waits: chunks in memory, and in files beneath the data directory. It names operations and takes their outcomes; a
//! driver has the files.

use std::time::Duration;

use bytes::Bytes;
use chunking::ChunkHead;
use chunking::message::Reason;

use super::blob::{Blob, FileRoom, Place, Seal, Stored};
use super::{BlobId, Out, Relay};
use crate::core::broken;
use crate::core::ids::ConnId;
use crate::store::blobs::{DiskDone, DiskOp};

/// A disk that took nothing is tried again after this time.
const DISK_RETRY_AFTER: Duration = Duration::from_secs(1);

impl Relay {
    /// What may wait in memory before the disk is used.
    fn memory_share(&self) -> usize {
        self.config.buffers / 4
    }

    /// Keeps a chunk: in memory if somebody takes it soon or there is room, else on the disk.
    pub(super) fn store(&mut self, id: BlobId, index: u32, head: ChunkHead, bytes: Bytes) {
        let (roomy, durable) = (self.in_memory < self.memory_share(), self.config.durable);
        let Some(blob) = self.blobs.get_mut(&id) else {
            return broken!("a chunk of blob {id} is kept, and the blob is not known");
        };
        // Parts of datasets are looked at where they lie.
        let may_wait = (blob.is_flowing() && !blob.keep || roomy) && !blob.is_dataset();
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let place = if may_wait && !durable || self.disk_trouble.is_some() {
            blob.in_memory += 1;
            self.in_memory += 1;
            Place::Memory(bytes)
        } else {
            write(&mut self.out, blob, id, durable, index, head, bytes.clone());
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
        self.uncache(id, false);
        if self.disk_trouble.is_some() {
            return;
        }
        self.write_out(id, usize::MAX);
    }

    /// Lets go of chunks that the disk has: all of them, or those that everybody was sent.
    fn uncache(&mut self, id: BlobId, only_sent: bool) {
        let Some(Blob { downs, stored, in_memory, cached, .. }) = self.blobs.get_mut(&id) else { return };
        let all = &mut self.in_memory;
        cached.retain(|index| {
            let lacks = downs.iter().any(|down| !down.is_done_with(*index));
            if only_sent && lacks {
                return true;
            }
            if let Some(chunk) = stored.get_mut(index) {
                chunk.place = Place::Disk;
            }
            *in_memory -= 1;
            *all -= 1;
            false
        });
    }

    /// Writes so many of the chunks that a blob has in memory.
    fn write_out(&mut self, id: BlobId, chunks_max: usize) {
        let durable = self.config.durable;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let is_in_memory = |chunk: &Stored| matches!(chunk.place, Place::Memory(_));
        let indices: Vec<u32> = blob
            .stored
            .iter()
            .filter(|(_, chunk)| is_in_memory(chunk))
            .map(|(index, _)| *index)
            .take(chunks_max)
            .collect();
        for index in indices {
            let found = blob.stored.get_mut(&index).and_then(|chunk| Some((chunk.bytes().cloned()?, chunk)));
            let Some((bytes, chunk)) = found else {
                broken!("chunk {index} of blob {id} is in memory, and is not there");
                continue;
            };
            let head = chunk.head;
            chunk.place = Place::Writing(bytes.clone());
            blob.in_memory -= 1;
            self.in_memory -= 1;
            write(&mut self.out, blob, id, durable, index, head, bytes);
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
        match self.blobs.iter().find(|(_, blob)| blob.has_unwritten()).map(|(id, _)| *id) {
            Some(id) => self.write_out(id, 1),
            None => {
                self.disk_trouble = None;
                self.disk_is_well();
            }
        }
    }

    /// The disk takes things again: what has to be there, and could not be written, is.
    pub(super) fn disk_is_well(&mut self) {
        if self.config.durable {
            let unwritten = self.blobs.iter().filter(|(_, blob)| blob.has_unwritten());
            let unwritten: Vec<BlobId> = unwritten.map(|(id, _)| *id).collect();
            unwritten.into_iter().for_each(|id| self.write_out(id, usize::MAX));
            self.seal_what_waits();
        }
    }

    /// After chunks went out: what need not be kept goes, and what nobody takes soon leaves the memory that others need.
    pub(super) fn settle_memory(&mut self, id: BlobId) {
        let share = self.memory_share();
        let Some(blob) = self.blobs.get(&id) else { return };
        if blob.in_memory == 0 {
            return;
        }
        if self.config.durable {
            self.uncache(id, true);
            if self.in_memory > share {
                self.spill(id);
            }
        } else if !blob.keep && blob.is_flowing() {
            let sent = |index: &u32| blob.downs.iter().all(|down| down.is_done_with(*index));
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
        match chunk.place {
            Place::Memory(_) | Place::Cached(_) => {
                blob.cached.remove(&index);
                blob.in_memory -= 1;
                self.in_memory -= 1;
            }
            Place::Writing(_) => blob.writing -= 1,
            Place::Disk => {}
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
        (blob.bytes, blob.in_memory, blob.writing) = (0, 0, 0);
        blob.cached.clear();
        blob.seal = Seal::Open;
        blob.stored.clear();
    }

    /// A disk operation ended.
    pub(in crate::leader) fn disk_done(&mut self, done: DiskDone) {
        match done {
            DiskDone::Written { blob, index, result } => self.written(blob, index, result),
            DiskDone::Read { blob, index, conn, result } => self.was_read(blob, index, conn, result),
            DiskDone::Sealed { blob, result } => self.sealed(blob, result),
            DiskDone::Checked { blob, result } => self.checked(blob, result),
            DiskDone::Measured { mark, space } => self.measured(mark, space),
            // The leader's own matter.
            DiskDone::Listed { .. } | DiskDone::Looked { .. } => {}
        }
        self.pump();
    }

    fn written(&mut self, id: BlobId, index: u32, result: Result<(), String>) {
        if let Err(trouble) = &result {
            tracing::warn!(blob = %id, "the disk takes nothing: {trouble}");
        }
        let trouble = result.as_ref().err().map(|trouble| (trouble.clone(), self.now));
        // What was dropped meanwhile does not count: its file goes, too.
        let is_current = |blob: &Blob| {
            blob.stored.get(&index).is_some_and(|chunk| matches!(chunk.place, Place::Writing(_)))
        };
        let current = self.blobs.get(&id).filter(|blob| self.config.durable && is_current(blob));
        let is_first = current.is_some_and(Blob::lacks_file);
        let grown = current.filter(|blob| blob.file == FileRoom::Grows && result.is_ok());
        let grown = grown.and_then(|blob| blob.stored.get(&index)).map(|chunk| u64::from(chunk.len));
        if is_first && result.is_ok() {
            self.file_made(id);
        }
        if let Some(bytes) = grown {
            self.file_grew(id, bytes);
        }
        let no_file = is_first && result.is_err();
        let (durable, roomy) = (self.config.durable, self.in_memory < self.memory_share());
        if let Some(blob) = self.blobs.get_mut(&id)
            && let Some(chunk) = blob.stored.get_mut(&index)
            && let Place::Writing(bytes) = &chunk.place
        {
            let lacks = blob.downs.iter().any(|down| down.lacks(index));
            chunk.place = match result {
                Ok(()) if durable && lacks && roomy => Place::Cached(bytes.clone()),
                Ok(()) => Place::Disk,
                Err(_) => Place::Memory(bytes.clone()),
            };
            blob.writing -= 1;
            if matches!(chunk.place, Place::Cached(_)) {
                blob.cached.insert(index);
            }
            if !matches!(chunk.place, Place::Disk) {
                blob.in_memory += 1;
                self.in_memory += 1;
            }
        }
        let had_trouble = std::mem::replace(&mut self.disk_trouble, trouble).is_some();
        let comes_again = |blob: &Blob| blob.up.as_ref().is_some_and(|up| up.keeps_source);
        if no_file && self.blobs.get(&id).is_some_and(comes_again) {
            return self.found_no_room(id);
        }
        if had_trouble && self.disk_trouble.is_none() {
            self.disk_is_well();
        }
        self.seal_if_whole(id);
        self.make_hungry(id);
    }

    fn was_read(&mut self, id: BlobId, index: u32, conn: ConnId, result: Result<Bytes, String>) {
        if self.lagging.is_read_for(conn, id, index) {
            return self.supply_from(conn, result.as_deref().unwrap_or_default());
        }
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
            down.sending.release();
            return self.chunks_sent(conn, 1);
        };
        match result {
            Ok(bytes) if down.sending.lacks(index) => {
                down.sending.send_reserved(index);
                let from = down.goes_on_from(index, &chunk.head, bytes.len());
                out.push_back(Out::Chunk { conn, blob: id, head: chunk.head, bytes, from });
                self.feed(id);
            }
            Ok(_) => {
                down.sending.release();
                self.chunks_sent(conn, 1);
            }
            Err(trouble) => {
                tracing::warn!(blob = %id, index, "a chunk cannot be read back from the spool: {trouble}");
                down.sending.release();
                if self.blobs.get(&id).is_some_and(Blob::is_kept_result) {
                    self.cannot_be_given(conn, id, &trouble);
                } else {
                    self.drop_stored(id, index);
                    self.lost_at_the_disk(id, index, trouble);
                }
                self.chunks_sent(conn, 1);
            }
        }
    }

    /// A chunk of a result that is kept cannot be read: who wanted it hears why. What is here stays, as the next read may go well,
    /// and an operator may want to look at it.
    fn cannot_be_given(&mut self, conn: ConnId, id: BlobId, trouble: &str) {
        self.detach(conn, id);
        self.abort(
            conn,
            id,
            Reason::IO,
            &format!("the leader cannot read what it kept of the result: {trouble}"),
        );
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

/// Has a chunk written.
fn write(
    out: &mut std::collections::VecDeque<Out>,
    blob: &mut Blob,
    id: BlobId,
    durable: bool,
    index: u32,
    head: ChunkHead,
    bytes: Bytes,
) {
    if !std::mem::replace(&mut blob.on_disk, true) && durable {
        out.push_back(Out::Disk(DiskOp::Begin { blob: id, open: Box::new(blob.open.clone()) }));
    }
    blob.writing += 1;
    out.push_back(Out::Disk(DiskOp::Write { blob: id, index, head, bytes }));
}
