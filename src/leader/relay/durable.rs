//! Blobs that outlive the leader: each counts as arrived when all of it is certain to be on the disk, and one of an earlier
//! life goes on where it was.

use chunking::message::{Open, OpenFlags, Reason, Verdict};
use chunking::{ChunkHead, ChunkPlan, Digest};

use super::blob::{Blob, FileRoom, Place, Seal, Stored};
use super::{BlobId, News, Out, Relay, Says};
use crate::core::ids::ConnId;
use crate::store::blobs::{DiskOp, SealError};

/// Times that all of a blob is asked for again, because the disk did not keep it.
const UNSEALED_MAX: u32 = 2;

impl Relay {
    /// A blob of an earlier life: with a digest if all of it is certain to be here, else what came of it.
    pub(in crate::leader) fn restore(
        &mut self,
        id: BlobId,
        open: Open,
        plan: ChunkPlan,
        chunks: impl IntoIterator<Item = (u32, (ChunkHead, u32))>,
        digest: Option<Digest>,
    ) {
        let mut blob = Blob::new(open, plan, true);
        for (index, (head, len)) in chunks {
            blob.stored.insert(index, Stored { head, len, place: Place::Disk });
            blob.bytes += u64::from(len);
            blob.seen.insert(index);
            blob.crcs.insert(&plan, index, head.crc_raw);
        }
        (blob.on_disk, blob.file, blob.digest) = (true, FileRoom::Made, digest);
        (blob.opened, blob.unchecked) = (digest.is_some(), digest.is_none());
        blob.seal = if digest.is_some() { Seal::Set } else { Seal::Open };
        self.spool_bytes += blob.bytes;
        self.insert(id, blob);
    }

    /// The inputs of a job of an earlier life that had begun to come: they keep their place, as they had it then.
    pub(in crate::leader) fn restore_places(&mut self, ids: &[BlobId]) {
        self.belong_together(ids);
        if ids.iter().any(|id| self.blobs.get(id).is_some_and(|blob| blob.bytes > 0)) {
            self.reserve(ids);
        }
    }

    /// Somebody goes on with a blob of an earlier life: what is here of it is looked at first. False if that need not be.
    pub(super) fn looks_first(&mut self, conn: ConnId, id: BlobId, open: &Open) -> bool {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.unchecked) else { return false };
        let is_first = !std::mem::replace(&mut blob.checking, true);
        blob.resuming = Some((conn, Box::new(open.clone())));
        // So that it is known when the connection ends.
        self.link(conn, id);
        if is_first {
            self.out.push_back(Out::Disk(DiskOp::Check { blob: id }));
        }
        true
    }

    /// What is here of a blob was looked at.
    pub(super) fn checked(&mut self, id: BlobId, result: Result<(Vec<u32>, Vec<String>), String>) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.unchecked) else { return };
        (blob.unchecked, blob.checking) = (false, false);
        let good = match result {
            Ok((good, bad)) => {
                bad.iter().for_each(|bad| tracing::warn!(blob = %id, "it comes again: {bad}"));
                good
            }
            Err(error) => {
                tracing::warn!(blob = %id, "what is here of it cannot be read, and comes again: {error}");
                Vec::new()
            }
        };
        // They come in order.
        let is_bad = |index: &&u32| good.binary_search(index).is_err();
        let bad: Vec<u32> = blob.stored.keys().filter(is_bad).copied().collect();
        let resuming = blob.resuming.take();
        for index in bad {
            self.drop_stored(id, index);
            if let Some(blob) = self.blobs.get_mut(&id) {
                blob.seen.remove(index);
            }
        }
        if let Some((conn, open)) = resuming {
            self.open(conn, id, *open);
        }
    }

    /// All of a blob has come, and who brought it says what it hashes to: it is made certain that it is on the disk.
    pub(super) fn want_seal(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.seal == Seal::Open) {
            blob.seal = Seal::Wanted;
        }
        self.seal_if_whole(id);
    }

    pub(super) fn seal_if_whole(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.seal == Seal::Wanted) else { return };
        let Some(digest) = blob.digest.filter(|_| blob.is_written()) else { return };
        (blob.seal, blob.on_disk) = (Seal::Asked, true);
        let open = Box::new(blob.open.clone());
        self.out.push_back(Out::Disk(DiskOp::Seal { blob: id, open, digest }));
    }

    pub(super) fn seal_what_waits(&mut self) {
        let waiting: Vec<BlobId> =
            self.blobs.iter().filter(|(_, blob)| blob.seal == Seal::Wanted).map(|(id, _)| *id).collect();
        waiting.into_iter().for_each(|id| self.seal_if_whole(id));
    }

    pub(super) fn sealed(&mut self, id: BlobId, result: Result<(), SealError>) {
        let now = self.now;
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.seal == Seal::Asked) else { return };
        match result {
            Ok(()) => {
                blob.seal = Seal::Set;
                self.arrived(id);
            }
            Err(SealError { text, is_full, is_lost }) => {
                tracing::error!(blob = %id, "it cannot be made certain: {text}");
                if is_full {
                    self.disk_trouble = Some((text.clone(), now));
                } else {
                    blob.unsealed += 1;
                }
                if is_full && !is_lost {
                    blob.seal = Seal::Wanted;
                    return;
                }
                // What of it is on the disk is not known, and trying again would not tell: it has to come again, or cannot
                // be had. With a full disk that waits until there is room.
                let comes_again = blob.open.flags.has(OpenFlags::KEEPS_SOURCE);
                if !comes_again || blob.unsealed > UNSEALED_MAX {
                    return self.fail(id, Reason::IO, text);
                }
                self.again_from_the_start(id);
            }
        }
    }

    /// A blob has come whole, and, where it has to outlive the leader, is certain to.
    pub(super) fn arrived(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        // What was compressed took less.
        self.reserved -= blob.reserved.take().unwrap_or_default();
        self.uncharge(id);
        let Some(blob) = self.blobs.get(&id) else { return };
        let owner = blob.owner();
        if let Some(conn) = blob.up.as_ref().map(|up| up.conn) {
            self.say(conn, id, Says::Verdict(Verdict::Ok));
        }
        self.out.push_back(Out::News(News::Arrived { blob: id, owner }));
    }
}
