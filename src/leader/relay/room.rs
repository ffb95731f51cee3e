//! Room on the disk: who may take it, and who gives it back.
//!
//! A blob's file has all of its room from its first chunk on, so a blob is let in as a whole, or waits. How much is free is
//! measured by the disk's threads now and then; between two answers the relay counts what it let in itself. They look once
//! more before they make a file, as others may fill the disk, too.

use std::time::Duration;

use chunking::Bitmap;
use chunking::message::Reason;

use super::blob::{Blob, FileRoom};
use super::{BlobId, Out, Relay};
use crate::core::ids::Micros;
use crate::store::blobs::{Class, DiskOp};
use crate::store::space::Space;
use crate::units::ByteSize;

/// While blobs come, or wait for room, it is measured this often.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// The room on the disk, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// As it was told last, less what was taken since.
    space: Option<Space>,
    /// As it was told last.
    told: Option<Space>,
    /// Bytes of files that were made since the start.
    made: u64,
    /// Bytes of files that blobs are still to get that were let in.
    pending: u64,
    measured_at: Micros,
}

/// The room on the disk, for status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) struct DiskRoom {
    /// What the disk has.
    pub(in crate::leader) space: Space,
    /// What is kept back of it.
    pub(in crate::leader) reserve: u64,
    /// Uploads that wait for room.
    pub(in crate::leader) waiting: usize,
}

impl Relay {
    /// Asks how much room there is.
    pub(in crate::leader) fn measure(&mut self) {
        if self.config.durable {
            self.room.measured_at = self.now;
            self.out.push_back(Out::Disk(DiskOp::Measure { mark: self.room.made }));
        }
    }

    /// The answer.
    pub(super) fn measured(&mut self, mark: u64, space: Option<Space>) {
        // What was made while it was on its way may not be in it.
        let since = self.room.made.saturating_sub(mark);
        self.room.told = space;
        self.room.space = space.map(|space| Space { free: space.free.saturating_sub(since), ..space });
    }

    /// Asks again from time to time, and has the disk's threads give back what only waits to be written again.
    pub(super) fn look_for_room(&mut self) {
        let waits = self.waits_for_disk().next().is_some();
        let matters = waits || self.is_low() || !self.by_conn.is_empty();
        if !matters || self.room.measured_at.plus(MEASURE_EVERY) > self.now {
            return;
        }
        if waits {
            self.out.push_back(Out::Disk(DiskOp::MakeRoom));
        }
        self.measure();
    }

    /// Whether uploads find no room at all.
    pub(super) fn is_low(&self) -> bool {
        !self.fits(Class::Upload, 0)
    }

    /// Whether so many bytes more leave enough of the disk free.
    pub(super) fn fits(&self, class: Class, bytes: u64) -> bool {
        self.room.space.is_none_or(|space| {
            let kept = self.config.disk_reserve.kept_from(class, space.total);
            space.free >= bytes.saturating_add(self.room.pending).saturating_add(kept)
        })
    }

    /// Why a new job of so many bytes cannot go into the log: what is left is for the ends of those that are there.
    pub(in crate::leader) fn no_room_for_jobs(&self, bytes: u64) -> Option<String> {
        let space = self.room.space?;
        let kept = self.config.disk_reserve.kept_from_jobs(space.total);
        (space.free < bytes.saturating_add(kept)).then(|| {
            format!(
                "the leader's disk has {} free of {}, and keeps {} of it for jobs that are there to end (--disk-reserve)",
                ByteSize(space.free),
                ByteSize(space.total),
                ByteSize(kept)
            )
        })
    }

    /// The most bytes of inputs that the disk could have, were it empty.
    pub(in crate::leader) fn disk_bytes_max(&self) -> Option<u64> {
        let space = self.room.space?;
        Some(space.total.saturating_sub(self.config.disk_reserve.of(space.total)))
    }

    /// The room on the disk.
    pub(in crate::leader) fn disk_room(&self) -> Option<DiskRoom> {
        let space = self.room.told?;
        let reserve = self.config.disk_reserve.of(space.total);
        Some(DiskRoom { space, reserve, waiting: self.waits_for_disk().count() })
    }

    fn waits_for_disk(&self) -> impl Iterator<Item = BlobId> {
        self.turned_down.iter().filter(|(_, why)| **why == Reason::DISK_FULL).map(|(id, _)| *id)
    }

    /// Why nothing of a blob may come yet, for who brings it.
    pub(super) fn why_no_room(&self, id: BlobId) -> Option<String> {
        let (mut space, blob) = (self.room.space?, self.blobs.get(&id)?);
        space.free = space.free.saturating_sub(self.room.pending);
        let bytes = blob.together.as_ref().map_or(blob.open.size, |together| self.unmade(together));
        let why = self.config.disk_reserve.why_short(blob.class(), space, bytes);
        Some(format!("{why}; waiting for jobs to end, or for space to be freed there"))
    }

    /// Bytes of the files that blobs have yet to get, but for those that are counted already.
    pub(super) fn unmade(&self, ids: &[BlobId]) -> u64 {
        let blobs = ids.iter().filter_map(|id| self.blobs.get(id));
        blobs.filter(|blob| blob.lacks_file() && blob.charged == 0).map(|blob| blob.open.size).sum()
    }

    /// A blob was let in: its file counts from now on.
    pub(super) fn charge(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.lacks_file() && blob.charged == 0) else {
            return;
        };
        blob.charged = blob.open.size;
        self.room.pending += blob.charged;
    }

    /// It does not get one, for now or for good; or it has it.
    pub(super) fn uncharge(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            self.room.pending -= std::mem::take(&mut blob.charged);
        }
    }

    /// The first chunk of a blob is on the disk, and so is the room for all of it.
    pub(super) fn file_made(&mut self, id: BlobId) {
        self.uncharge(id);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        blob.file = FileRoom::Made;
        let bytes = blob.open.size;
        self.took_room(bytes);
    }

    fn took_room(&mut self, bytes: u64) {
        self.room.made = self.room.made.saturating_add(bytes);
        if let Some(space) = &mut self.room.space {
            space.free = space.free.saturating_sub(bytes);
        }
    }

    /// A chunk of a blob is about to make its file longer: it counts from now on.
    pub(super) fn file_grows(&mut self, id: BlobId, bytes: u64) {
        let durable = self.config.durable;
        let Some(blob) = self.blobs.get_mut(&id).filter(|_| durable) else { return };
        blob.charged += bytes;
        self.room.pending += bytes;
    }

    /// It has.
    pub(super) fn file_grew(&mut self, id: BlobId, bytes: u64) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let charged = blob.charged.min(bytes);
        blob.charged -= charged;
        self.room.pending -= charged;
        self.took_room(bytes);
    }

    /// A blob was let in, and then there was no room for its file: it gives back its place, and asks for one again.
    pub(super) fn found_no_room(&mut self, id: BlobId) {
        self.uncharge(id);
        self.drop_all_stored(id);
        self.measure();
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        self.reserved -= blob.reserved.take().unwrap_or_default();
        if blob.digest.is_some() {
            // Who brought it has sent all, and waits to hear of it.
            return self.again_from_the_start(id);
        }
        // More of it may be on its way. Who brings it hears what is lacking when it has sent all.
        blob.seen = Bitmap::new(blob.plan.count());
        blob.file = FileRoom::Unmade;
        if std::mem::take(&mut blob.on_disk) {
            self.out.push_back(Out::Disk(DiskOp::Remove { blob: id }));
        }
        self.make_hungry(id);
        self.pump();
    }

    /// A blob is not needed any more.
    pub(in crate::leader) fn forget(&mut self, id: BlobId) {
        self.drop_all_stored(id);
        self.parts.forget(id);
        self.uncharge(id);
        let sender = self.sender_left(id);
        let Some(blob) = self.blobs.remove(&id) else { return };
        self.reserved -= blob.reserved.unwrap_or_default();
        if let Some(conn) = sender.filter(|_| blob.digest.is_none()) {
            self.abort(conn, id, Reason::UNKNOWN, "the job has ended, or is not wanted any more");
        }
        if let Some((conn, _)) = &blob.resuming {
            self.unlink(*conn, id);
            self.abort(*conn, id, Reason::UNKNOWN, "the job has ended, or is not wanted any more");
        }
        let why = match blob.is_of_result() {
            true => {
                "the leader does not keep the result any longer (--result-ttl, --result-max, --spool-max)"
            }
            false => "the job has ended, or is not wanted any more",
        };
        for down in &blob.downs {
            self.unlink(down.conn, id);
            if !down.finished {
                self.abort(down.conn, id, Reason::UNKNOWN, why);
            }
        }
        if blob.on_disk {
            self.gave_room(id);
        }
        self.pump();
    }

    /// The files of a blob go: there is room again, perhaps.
    fn gave_room(&mut self, id: BlobId) {
        self.out.push_back(Out::Disk(DiskOp::Remove { blob: id }));
        if self.waits_for_disk().next().is_some() || self.is_low() {
            // It must not wait to be written again: another blob, or the log, needs the room.
            self.out.push_back(Out::Disk(DiskOp::MakeRoom));
            self.measure();
        }
        if self.disk_trouble.take().is_some() {
            self.disk_is_well();
        }
    }
}

impl Blob {
    /// What it is for, as far as its room on the disk goes.
    pub(super) fn class(&self) -> Class {
        self.open.purpose.into()
    }

    /// Whether its file is still to be made, with room for all of it.
    pub(super) fn lacks_file(&self) -> bool {
        self.file == FileRoom::Unmade
    }
}
