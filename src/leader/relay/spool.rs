//! Keeps waiting chunks, in memory and in files beneath the data directory. It names file
//! operations and takes their outcomes; a driver executes them.

use std::time::Duration;

use bytes::Bytes;
use chunking::ChunkHead;
use chunking::message::Reason;

use super::blob::Blob;
use super::chunks::{Place, Stored};
use super::on_disk::{File, Seal};
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
        let (roomy, durable) = (self.totals.in_memory < self.memory_share(), self.config.durable);
        let Some(blob) = self.blobs.get_mut(&id) else {
            return broken!("a chunk of blob {id} is kept, and the blob is not known");
        };
        // Parts of datasets are looked at where they lie.
        let may_wait = (blob.passes_on() || roomy) && !blob.is_dataset();
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let place = if may_wait && !durable || self.room.trouble.is_some() {
            Place::Memory(bytes)
        } else {
            write(&mut self.out, blob, id, durable, index, head, bytes.clone());
            Place::Writing(bytes)
        };
        blob.chunks.insert(&mut self.totals, index, Stored { head, len, place });
    }

    /// Moves what a blob has in memory to the disk.
    pub(super) fn spill(&mut self, id: BlobId) {
        self.uncache(id, false);
        if self.room.trouble.is_some() {
            return;
        }
        self.write_out(id, usize::MAX);
    }

    /// Releases the memory of chunks that the disk has: all of them, or those that every receiver
    /// was sent.
    fn uncache(&mut self, id: BlobId, only_sent: bool) {
        let Some(Blob { downs, chunks, .. }) = self.blobs.get_mut(&id) else { return };
        let was_sent = |index| downs.iter().all(|down| down.is_done_with(index));
        chunks.uncache(&mut self.totals, |index| !only_sent || was_sent(index));
    }

    /// Writes up to `chunks_max` of the chunks that a blob has in memory.
    fn write_out(&mut self, id: BlobId, chunks_max: usize) {
        let durable = self.config.durable;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let unwritten: Vec<u32> = blob.chunks.unwritten().take(chunks_max).collect();
        for index in unwritten {
            if let Some((head, bytes)) = blob.chunks.write(&mut self.totals, index) {
                write(&mut self.out, blob, id, durable, index, head, bytes);
            }
        }
    }

    /// After a while one chunk is written to a disk that took nothing: if that goes well, the
    /// others follow.
    pub(super) fn try_the_disk_again(&mut self) {
        let now = self.now;
        let Some((_, since)) = &mut self.room.trouble else { return };
        if since.plus(DISK_RETRY_AFTER) > now {
            return;
        }
        *since = now;
        match self.blobs.iter().find(|(_, blob)| blob.has_unwritten()).map(|(id, _)| *id) {
            Some(id) => self.write_out(id, 1),
            None => {
                self.room.trouble = None;
                self.disk_is_well();
            }
        }
    }

    /// The disk takes things again: what has to be there, and could not be written, is.
    pub(super) fn disk_is_well(&mut self) {
        if self.config.durable {
            let unwritten = self.ids(Blob::has_unwritten);
            unwritten.into_iter().for_each(|id| self.write_out(id, usize::MAX));
            self.seal_what_waits();
        }
    }

    /// After chunks went out: what need not be kept goes, and what nobody takes soon leaves the
    /// memory that others need.
    pub(super) fn settle_memory(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.chunks.in_memory() > 0) else {
            return;
        };
        if !self.config.durable && blob.passes_on() {
            let sent = |index: &u32| blob.downs.iter().all(|down| down.is_done_with(*index));
            let gone: Vec<u32> = blob.chunks.unwritten().filter(sent).collect();
            gone.into_iter().for_each(|index| blob.chunks.remove(&mut self.totals, index));
            return;
        }
        self.uncache(id, true);
        if self.totals.in_memory > self.memory_share() {
            self.spill(id);
        }
    }

    pub(super) fn drop_stored(&mut self, id: BlobId, index: u32) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.chunks.remove(&mut self.totals, index);
        }
    }

    pub(super) fn drop_all_stored(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.chunks.clear(&mut self.totals);
            blob.disk.seal = Seal::Open;
        }
    }

    /// A disk operation ended.
    pub(in crate::leader) fn disk_done(&mut self, done: DiskDone) {
        match done {
            DiskDone::Written { blob, index, result } => self.written(blob, index, result),
            DiskDone::Read { blob, index, conn, result } => {
                self.was_read(blob, index, conn, result)
            }
            DiskDone::Sealed { blob, result } => self.sealed(blob, result),
            DiskDone::Checked { blob, result } => self.checked(blob, result),
            DiskDone::Measured { mark, space } => self.measured(mark, space),
            DiskDone::Recycled { thread, bytes } => self.recycled(thread, bytes),
            // The leader's own matter.
            DiskDone::Listed { .. } | DiskDone::Verified { .. } => {}
        }
        self.pump();
    }

    fn written(&mut self, id: BlobId, index: u32, result: Result<(), String>) {
        if let Err(trouble) = &result {
            tracing::warn!(blob = %id, "the disk cannot be written: {trouble}");
        }
        let trouble = result.as_ref().err().map(|trouble| (trouble.clone(), self.now));
        let (is_written, durable) = (result.is_ok(), self.config.durable);
        let roomy = self.totals.in_memory < self.memory_share();
        let mut no_file = false;
        // What was dropped meanwhile does not count: its file goes, too.
        if let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.chunks.is_writing(index)) {
            let stays = durable && roomy && blob.downs.iter().any(|down| down.lacks(index));
            blob.chunks.written(&mut self.totals, index, is_written, stays);
            let len = blob.chunks.get(index).map_or(0, |chunk| u64::from(chunk.len));
            let (lacks_room, grows) = (blob.disk.lacks_room(), blob.disk.file == File::Grows);
            no_file = durable && lacks_room && !is_written && blob.can_ask().is_some();
            if durable && lacks_room && is_written {
                self.file_made(id);
            } else if durable && grows && is_written {
                self.file_grew(id, len);
            }
        }
        let had_trouble = std::mem::replace(&mut self.room.trouble, trouble).is_some();
        if no_file {
            return self.found_no_room(id);
        }
        if had_trouble && self.room.trouble.is_none() {
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
        let found = blobs.get_mut(&id).and_then(|Blob { downs, chunks, .. }| {
            let down = downs.iter_mut().find(|down| down.conn == conn)?;
            // One that began anew meanwhile did not ask for it.
            down.reading.remove(index).then_some((down, chunks.get(index)))
        });
        let Some((down, chunk)) = found else {
            // Nobody waits for it any more: the connection, the blob or the attempt is gone.
            return self.chunks_sent(conn, 1);
        };
        match (chunk, result) {
            (Some(chunk), Ok(bytes)) if down.sending.lacks(index) => {
                down.sending.send_reserved(index);
                let from = down.goes_on_from(index, &chunk.head, bytes.len());
                out.push_back(Out::Chunk { conn, blob: id, head: chunk.head, bytes, from });
                return self.feed(id);
            }
            // It was dropped meanwhile, and comes again, or went out another way.
            (None, _) | (Some(_), Ok(_)) => down.sending.release(),
            (Some(_), Err(trouble)) => {
                tracing::warn!(blob = %id, index, "a chunk cannot be read back from the spool: {trouble}");
                down.sending.release();
                if self.blobs.get(&id).is_some_and(Blob::is_kept_result) {
                    self.cannot_be_given(conn, id, &trouble);
                } else {
                    self.drop_stored(id, index);
                    self.lost_at_the_disk(id, index, trouble);
                }
            }
        }
        self.chunks_sent(conn, 1);
    }

    /// A chunk of a result that is kept cannot be read: who wanted it hears why. What is here
    /// stays, as the next read may go well, and an operator may want to look at it.
    fn cannot_be_given(&mut self, conn: ConnId, id: BlobId, trouble: &str) {
        self.detach(conn, id);
        self.abort(
            conn,
            id,
            Reason::IO,
            &format!("the leader cannot read the stored result: {trouble}"),
        );
    }

    /// A chunk that was here is not any more: who brought it is asked again, if it can be.
    fn lost_at_the_disk(&mut self, id: BlobId, index: u32, trouble: String) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if blob.can_ask().is_some() {
            self.ask_sender_again(id, false);
        } else {
            blob.came.remove(index);
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
    if blob.disk.begin() && durable {
        out.push_back(Out::Disk(DiskOp::Begin { blob: id, open: Box::new(blob.open.clone()) }));
    }
    out.push_back(Out::Disk(DiskOp::Write { blob: id, index, head, bytes }));
}
