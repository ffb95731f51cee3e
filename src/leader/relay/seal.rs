//! Decides when a durable blob counts as arrived: when all of it is synced. Blobs of a previous run
//! resume where they stopped.

use chunking::message::{Open, OpenFlags, Reason, Verdict};
use chunking::{ChunkHead, ChunkPlan, Digest};

use super::blob::Blob;
use super::chunks::{Place, Stored};
use super::on_disk::{File, Seal};
use super::ruling::Ruling;
use super::{BlobId, News, Out, Relay, Says};
use crate::core::ids::ConnId;
use crate::store::blobs::{DiskOp, SealError};

/// Times that all of a blob is asked for again, because the disk did not keep it.
const UNSEALED_MAX: u32 = 2;

/// Whether the stored chunks of a blob are from a previous run, and have to be verified before the
/// blob is resumed.
#[derive(Clone, Debug, Default)]
pub(super) enum Leftover {
    /// They are not, or have been verified.
    #[default]
    None,
    Unchecked,
    /// They are being verified; the sender that wants to resume, if it is still connected.
    Checking(Option<(ConnId, Box<Open>)>),
}

impl Leftover {
    /// The sender that waits for the verification.
    pub(super) fn resuming(&self) -> Option<ConnId> {
        match self {
            Leftover::Checking(resuming) => resuming.as_ref().map(|(conn, _)| *conn),
            Leftover::None | Leftover::Unchecked => None,
        }
    }

    /// A connection ended.
    pub(super) fn closed(&mut self, conn: ConnId) {
        if self.resuming() == Some(conn) {
            *self = Leftover::Checking(None);
        }
    }
}

impl Relay {
    /// A blob of a previous run: with its digest if all of it is durable, otherwise the chunks that
    /// had arrived.
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
            blob.chunks.insert(&mut self.totals, index, Stored { head, len, place: Place::Disk });
            blob.came.insert(index, head.crc_raw);
        }
        blob.opened = digest.is_some();
        blob.ruling = Ruling::of(digest);
        blob.disk.file = File::Made;
        match digest {
            Some(_) => blob.disk.seal = Seal::Set,
            None => blob.leftover = Leftover::Unchecked,
        }
        self.insert(id, blob);
    }

    /// The inputs of a job of a previous run that had begun to come: they keep their place, as they
    /// had it then.
    pub(in crate::leader) fn restore_places(&mut self, ids: &[BlobId]) {
        self.belong_together(ids);
        if ids.iter().any(|id| self.blobs.get(id).is_some_and(|blob| blob.chunks.bytes() > 0)) {
            self.reserve(ids);
        }
    }

    /// A sender resumes a blob of a previous run: its stored chunks are verified first. False if
    /// that is not necessary.
    pub(super) fn looks_first(&mut self, conn: ConnId, id: BlobId, open: &Open) -> bool {
        let Some(blob) = self.blobs.get_mut(&id) else { return false };
        let resuming = Leftover::Checking(Some((conn, Box::new(open.clone()))));
        let is_first = match &blob.leftover {
            Leftover::None => return false,
            Leftover::Unchecked => true,
            Leftover::Checking(_) => false,
        };
        blob.leftover = resuming;
        // So that it is known when the connection ends.
        self.lines.link(conn, id);
        if is_first {
            self.out.push_back(Out::Disk(DiskOp::Check { blob: id }));
        }
        true
    }

    /// The stored chunks of a blob were verified.
    pub(super) fn checked(&mut self, id: BlobId, result: Result<(Vec<u32>, Vec<String>), String>) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Leftover::Checking(resuming) = &mut blob.leftover else { return };
        let resuming = resuming.take();
        blob.leftover = Leftover::None;
        let good = match result {
            Ok((good, bad)) => {
                bad.iter()
                    .for_each(|bad| tracing::warn!(blob = %id, "it is requested again: {bad}"));
                good
            }
            Err(error) => {
                tracing::warn!(blob = %id,
                    "cannot read its stored chunks, which are requested again: {error}");
                Vec::new()
            }
        };
        // They come in order.
        let here: Vec<u32> = blob.chunks.from(0).map(|(index, _)| index).collect();
        for index in here.into_iter().filter(|index| good.binary_search(index).is_err()) {
            blob.chunks.remove(&mut self.totals, index);
            blob.came.remove(index);
        }
        if let Some((conn, open)) = resuming {
            self.open(conn, id, *open);
        }
    }

    /// All of a blob has arrived, and its sender has given the digest: the blob is synced.
    pub(super) fn want_seal(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.disk.want_seal();
        }
        self.seal_if_whole(id);
    }

    pub(super) fn seal_if_whole(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.disk.seal == Seal::Wanted)
        else {
            return;
        };
        let Some(digest) = blob.ruling.digest().filter(|_| blob.is_written()) else { return };
        blob.disk.ask_seal();
        let open = Box::new(blob.open.clone());
        self.out.push_back(Out::Disk(DiskOp::Seal { blob: id, open, digest }));
    }

    pub(super) fn seal_what_waits(&mut self) {
        let waiting = self.ids(|blob| blob.disk.seal == Seal::Wanted);
        waiting.into_iter().for_each(|id| self.seal_if_whole(id));
    }

    pub(super) fn sealed(&mut self, id: BlobId, result: Result<(), SealError>) {
        let now = self.now;
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.disk.seal == Seal::Asked)
        else {
            return;
        };
        match result {
            Ok(()) => {
                blob.disk.seal = Seal::Set;
                self.arrived(id);
            }
            Err(SealError { text, is_full, is_lost }) => {
                tracing::error!(blob = %id, "it cannot be synced: {text}");
                if is_full {
                    self.room.trouble = Some((text.clone(), now));
                } else {
                    blob.disk.unsealed += 1;
                }
                if is_full && !is_lost {
                    blob.disk.seal = Seal::Wanted;
                    return;
                }
                // What of it is on the disk is not known, and trying again would not tell: it has
                // to come again, or cannot be had. With a full disk that waits until there is room.
                let comes_again = blob.open.flags.has(OpenFlags::KEEPS_SOURCE);
                if !comes_again || blob.disk.unsealed > UNSEALED_MAX {
                    return self.fail(id, Reason::IO, text);
                }
                self.again_from_the_start(id);
            }
        }
    }

    /// A blob is complete, and durable if it has to outlive the leader.
    pub(super) fn arrived(&mut self, id: BlobId) {
        // What was compressed took less.
        self.give_up_place(id);
        let Some(blob) = self.blobs.get(&id) else { return };
        let owner = blob.owner();
        if let Some(conn) = blob.up.as_ref().map(|up| up.conn) {
            self.say(conn, id, Says::Verdict(Verdict::Ok));
        }
        self.out.push_back(Out::News(News::Arrived { blob: id, owner }));
    }
}
