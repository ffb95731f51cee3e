//! Allocates disk space to blobs.
//!
//! A blob's file reserves its full size with the first chunk, so a blob is admitted whole or waits.
//! The disk threads measure free space now and then; between two measurements the relay subtracts
//! what it has admitted. The disk threads check again before they create a file, since other
//! programs may fill the disk too.

use std::collections::BTreeMap;
use std::time::Duration;

use chunking::limits::{CHUNK_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use chunking::message::{Open, Reason};

use super::blob::Blob;
use super::flow::LOOKS_MAX;
use super::on_disk::File;
use super::{BlobId, Out, Relay};
use crate::answers::Disk;
use crate::core::capacity::give_back;
use crate::core::ids::{JobId, Micros};
use crate::store::blobs::{Class, DiskOp, recycled_bytes_max};
use crate::store::space::Space;
use crate::units::ByteSize;

/// While blobs come, or wait for room, it is measured this often.
const MEASURE_EVERY: Duration = Duration::from_secs(1);

/// How long the room of a file that is being removed is waited for.
const GOING_MAX: Duration = Duration::from_secs(2);

/// The room on the disk, as far as it is known.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// As it was told last, less what was taken since.
    space: Option<Space>,
    /// As it was told last.
    told: Option<Space>,
    /// The most bytes that the disk ever had in all: one that has fewer for a while may have them
    /// again.
    largest: u64,
    /// Bytes of files that were made since the start.
    made: u64,
    /// Bytes of files that blobs are still to get that were let in.
    pending: u64,
    /// Bytes of files that are being removed, and since when.
    going: Option<(u64, Micros)>,
    measured_at: Micros,
    /// Bytes of files that wait to be written again, by the thread that has them.
    recycled: BTreeMap<usize, u64>,
    /// Why the disk takes nothing, if it does not, and since when.
    pub(super) trouble: Option<(String, Micros)>,
}

/// The room on the disk, for status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) struct DiskRoom {
    /// What the disk has.
    pub(in crate::leader) space: Space,
    /// What is kept back of it.
    pub(in crate::leader) reserve: u64,
    /// Large files that wait for room, parts of results among them.
    pub(in crate::leader) waiting: usize,
}

/// A part of a result that waits for room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) struct WaitingPart {
    pub(in crate::leader) blob: BlobId,
    /// The job that it is of.
    pub(in crate::leader) job: JobId,
    /// What there is too little of.
    pub(in crate::leader) reason: Reason,
}

impl Relay {
    /// Asks how much room there is.
    pub(in crate::leader) fn measure(&mut self) {
        if self.config.durable {
            self.room.measured_at = self.now;
            self.out.push_back(Out::Disk(DiskOp::Measure { mark: self.room.made }));
        }
    }

    pub(super) fn measured(&mut self, mark: u64, space: Option<Space>) {
        // What was made while it was on its way may not be in it.
        let since = self.room.made.saturating_sub(mark);
        self.room.told = space;
        self.room.largest = self.room.largest.max(space.map_or(0, |space| space.total));
        self.room.space =
            space.map(|space| Space { free: space.free.saturating_sub(since), ..space });
    }

    /// A thread keeps so many bytes of files to be written again.
    pub(super) fn recycled(&mut self, thread: usize, bytes: u64) {
        self.room.recycled.insert(thread, bytes);
    }

    /// Asks again from time to time, and has the disk's threads give back what only waits to be
    /// written again.
    pub(super) fn look_for_room(&mut self) {
        let waits = self.waits_for_disk().next().is_some();
        let matters = waits || self.is_low() || self.has_transfers();
        if !matters || self.room.measured_at.plus(MEASURE_EVERY) > self.now {
            return;
        }
        if waits {
            self.out.push_back(Out::Disk(DiskOp::MakeRoom));
        }
        self.measure();
    }

    /// Whether files are being removed that make enough room for one of those that wait for the
    /// disk: how much is free is known only when they are gone.
    pub(super) fn is_making_room(&self) -> bool {
        let going = self.room.going.filter(|(_, since)| since.plus(GOING_MAX) > self.now);
        let Some((going, _)) = going.filter(|_| self.room.trouble.is_none()) else { return false };
        let would_fit = |id: BlobId| {
            self.blobs.get(&id).is_some_and(|blob| {
                let bytes = blob
                    .together
                    .as_ref()
                    .map_or_else(|| self.unmade(&[id]), |ids| self.unmade(ids));
                self.fits(blob.class(), bytes.saturating_sub(going))
            })
        };
        let waits = self.waits_for_disk().filter(|id| self.waits_behind_result(*id).is_none());
        waits.take(LOOKS_MAX).any(would_fit)
    }

    /// Whether uploads find no room at all.
    pub(super) fn is_low(&self) -> bool {
        !self.fits(Class::Upload, 0)
    }

    /// Whether `bytes` more leave enough of the disk free.
    pub(super) fn fits(&self, class: Class, bytes: u64) -> bool {
        self.room.space.is_none_or(|space| {
            let kept = self.config.disk_reserve.kept_from(class, space.total);
            space.free >= bytes.saturating_add(self.room.pending).saturating_add(kept)
        })
    }

    /// Whether unread frames may take `bytes` of the disk: they may use no more than uploads.
    pub(in crate::leader) fn may_park(&self, bytes: u64) -> bool {
        self.room.trouble.is_none() && self.fits(Class::Upload, bytes)
    }

    /// Why a new job of so many bytes cannot go into the log: what is left is for the ends of those
    /// that are there.
    ///
    /// What was measured last counts, and not what the relay made of it since: that is too little
    /// for a moment if a file was made while the answer was on its way, and nobody is refused for
    /// that. What was let in since leaves the reserve alone.
    /// `droppable` bytes go before a job is refused, and so does what is being removed.
    pub(in crate::leader) fn no_room_for_jobs(&self, bytes: u64, droppable: u64) -> Option<String> {
        let space = self.room.told?;
        let kept = self.config.disk_reserve.kept_from_jobs(space.total);
        let going = if droppable > 0 { self.going() } else { 0 };
        let free = space.free.saturating_add(going).saturating_add(droppable);
        (free < bytes.saturating_add(kept)).then(|| {
            format!(
                "the leader's disk has {} free of {}, and {} of it are reserved for accepted jobs \
                 to finish (--disk-reserve)",
                ByteSize(space.free),
                ByteSize(space.total),
                ByteSize(kept)
            )
        })
    }

    /// Whether new jobs are refused for want of room, and what is being removed does not change
    /// that. Results may take more of the disk than jobs leave: without this, results that
    /// everybody has would keep jobs out, which never get to wait.
    pub(in crate::leader) fn refuses_jobs(&self) -> bool {
        let going = self.going();
        self.room.told.is_some_and(|space| {
            space.free.saturating_add(going) < self.config.disk_reserve.kept_from_jobs(space.total)
        })
    }

    /// Whether the disk is so full that what nobody needs has to go before anything is refused:
    /// the next large frame would find no room, and what is being removed does not change that.
    pub(in crate::leader) fn is_nearly_full(&self) -> bool {
        let going = self.going();
        self.room.told.is_some_and(|space| {
            let kept = self.config.disk_reserve.kept_from(Class::Upload, space.total);
            space.free.saturating_add(going) < kept.saturating_add(FRAME_BODY_BYTES_MAX.into())
        })
    }

    /// Bytes of files that are being removed.
    fn going(&self) -> u64 {
        let going = self.room.going.filter(|(_, since)| since.plus(GOING_MAX) > self.now);
        going.map_or(0, |(bytes, _)| bytes)
    }

    /// The most bytes of a class that the disk could have, were it empty.
    pub(in crate::leader) fn disk_bytes_max(&self, class: Class) -> Option<u64> {
        self.room.space.map(|_| self.config.disk_reserve.room_at_most(class, self.room.largest))
    }

    /// Why `bytes` of a class find no space now, judged by the last measurement like new jobs.
    pub(in crate::leader) fn why_not_now(
        &self,
        class: Class,
        bytes: u64,
    ) -> Option<(Reason, String)> {
        if let Some((trouble, _)) = &self.room.trouble {
            return Some((Reason::DISK_FULL, trouble.clone()));
        }
        let kept = |space: &Space| self.config.disk_reserve.kept_from(class, space.total);
        let is_short =
            |space: &Space| space.free < bytes.saturating_add(self.room.pending + kept(space));
        if let Some(space) = self.room.told.filter(is_short) {
            let free = space.free.saturating_sub(self.room.pending);
            let why = self.config.disk_reserve.why_short(class, Space { free, ..space }, bytes);
            return Some((Reason::DISK_FULL, why));
        }
        let chunks = bytes.div_ceil(u64::from(CHUNK_BYTES_MAX));
        let is_full = (self.spool_room() as u64) < chunks;
        is_full.then(|| (Reason::SPOOL_FULL, self.why_spool_full()))
    }

    /// Parts of results that wait for room, those that wait longest first.
    pub(in crate::leader) fn results_waiting(&self) -> impl Iterator<Item = WaitingPart> {
        let no_disk = self.room.trouble.as_ref().map(|_| Reason::DISK_FULL);
        self.windows.waiting.iter().filter_map(move |id| {
            let blob =
                self.blobs.get(id).filter(|blob| blob.is_of_result() && blob.up.is_some())?;
            let reason = no_disk.or_else(|| self.in_line.reason(*id))?;
            Some(WaitingPart { blob: *id, job: blob.owner(), reason })
        })
    }

    /// Why a part of a result waits, for people.
    pub(in crate::leader) fn why_it_waits(&self, part: WaitingPart) -> String {
        self.why_full(part.blob, part.reason)
    }

    /// How a blob was opened.
    pub(in crate::leader) fn opening(&self, id: BlobId) -> Option<&Open> {
        self.blobs.get(&id).map(|blob| &blob.open)
    }

    /// A blob never finds room here: who brings it is told so, and it is given up.
    pub(in crate::leader) fn give_up_for_size(&mut self, id: BlobId, text: String) {
        self.fail(id, Reason::TOO_LARGE, text);
    }

    /// The room on the disk.
    pub(in crate::leader) fn disk_room(&self) -> Option<DiskRoom> {
        let space = self.room.told?;
        let reserve = self.config.disk_reserve.of(space.total);
        Some(DiskRoom { space, reserve, waiting: self.waits_for_disk().count() })
    }

    /// The disk as operators see it; what troubles it is said by who knows what waits.
    pub(in crate::leader) fn describe_disk(&self) -> Disk {
        let room = self.disk_room();
        let total = Some(self.room.largest).filter(|total| *total > 0);
        let recycled =
            self.room.recycled.values().fold(0, |sum: u64, own| sum.saturating_add(*own));
        Disk {
            recycled_bytes: self.config.durable.then_some(recycled),
            recycled_bytes_max: self.config.durable.then(|| recycled_bytes_max(total)),
            disk_trouble: None,
            disk_free: room.map(|room| room.space.free),
            disk_bytes: room.map(|room| room.space.total),
            disk_reserve: room.map(|room| room.reserve),
            uploads_waiting: room.map(|_| self.without_room().count() as u64),
        }
    }

    fn waits_for_disk(&self) -> impl Iterator<Item = BlobId> {
        self.in_line.iter().filter(|(_, why)| *why == Reason::DISK_FULL).map(|(id, _)| id)
    }

    /// Why nothing of a blob may come yet, for who brings it.
    pub(super) fn why_no_room(&self, id: BlobId) -> Option<String> {
        let (mut space, blob) = (self.room.space?, self.blobs.get(&id)?);
        space.free = space.free.saturating_sub(self.room.pending);
        let bytes = blob.together.as_ref().map_or(blob.open.size, |together| self.unmade(together));
        let why = self.config.disk_reserve.why_short(blob.class(), space, bytes);
        let waiting = match blob.class() {
            Class::Upload if self.blobs.values().any(Blob::is_dataset) => {
                "waiting for jobs to end, for datasets to be removed (`heft dataset rm`), or for space to be freed there"
            }
            Class::Upload => "waiting for jobs to end, or for space to be freed there",
            Class::Result => {
                "waiting for others to be fetched (`heft result get`), for jobs to end, or for space to be freed there"
            }
        };
        Some(format!("{why}; {waiting}"))
    }

    /// Bytes of the files that blobs have yet to get, but for those that are counted already.
    pub(super) fn unmade(&self, ids: &[BlobId]) -> u64 {
        let blobs = ids.iter().filter_map(|id| self.blobs.get(id));
        blobs.filter(|blob| blob.is_uncharged()).map(|blob| blob.open.size).sum()
    }

    /// A blob was let in: its file counts from now on.
    pub(super) fn charge(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id).filter(|blob| blob.is_uncharged()) {
            blob.disk.charged = blob.open.size;
            self.room.pending += blob.open.size;
        }
    }

    /// It does not get one, for now or for good; or it has it.
    pub(super) fn uncharge(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            self.room.pending -= std::mem::take(&mut blob.disk.charged);
        }
    }

    /// A blob has no place here any longer, or needs none.
    pub(super) fn give_up_place(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.chunks.unreserve(&mut self.totals);
        }
        self.uncharge(id);
    }

    /// The first chunk of a blob is on the disk, and so is the room for all of it.
    pub(super) fn file_made(&mut self, id: BlobId) {
        self.uncharge(id);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        blob.disk.file = File::Made;
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
        blob.disk.charged += bytes;
        self.room.pending += bytes;
    }

    pub(super) fn file_grew(&mut self, id: BlobId, bytes: u64) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let charged = blob.disk.charged.min(bytes);
        blob.disk.charged -= charged;
        self.room.pending -= charged;
        self.took_room(bytes);
    }

    /// A blob was let in, and then there was no room for its file: it gives back its place, and
    /// asks for one again.
    pub(super) fn found_no_room(&mut self, id: BlobId) {
        self.drop_all_stored(id);
        self.give_up_place(id);
        self.measure();
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if blob.ruling.digest().is_some() {
            // The sender has sent everything and waits for the verdict.
            return self.again_from_the_start(id);
        }
        // More of it may be on its way. Who brings it hears what is lacking when it has sent all.
        blob.came.begin_anew();
        if blob.disk.remove() {
            self.out.push_back(Out::Disk(DiskOp::Remove { blob: id }));
        }
        self.make_hungry(id);
        self.pump();
    }

    /// A blob is not needed any more.
    pub(in crate::leader) fn forget(&mut self, id: BlobId) {
        self.drop_all_stored(id);
        self.parts.forget(id);
        self.give_up_place(id);
        let sender = self.sender_left(id);
        let Some(blob) = self.blobs.remove(&id) else { return };
        give_back(&mut self.blobs);
        self.names_bytes -= blob.open.name.as_str().len();
        if let Some(conn) = sender.filter(|_| blob.ruling.digest().is_none()) {
            self.abort(conn, id, Reason::UNKNOWN, "the job has ended, or no longer needs it");
        }
        if let Some(conn) = blob.leftover.resuming() {
            self.lines.unlink(conn, id);
            self.abort(conn, id, Reason::UNKNOWN, "the job has ended, or no longer needs it");
        }
        let why = match blob.is_of_result() {
            true => {
                "the leader no longer keeps the result (--result-ttl, --result-max, --spool-max)"
            }
            false => "the job has ended, or no longer needs it",
        };
        for down in &blob.downs {
            self.lines.unlink(down.conn, id);
            if !down.sending.is_arrived() {
                self.abort(down.conn, id, Reason::UNKNOWN, why);
            }
        }
        if blob.disk.has_file() {
            self.gave_room(id, blob.open.size.max(blob.chunks.bytes()));
            if blob.is_dataset() {
                // Who removes a dataset wants its room back, and what comes next is rarely alike.
                self.out.push_back(Out::Disk(DiskOp::MakeRoom));
            }
        }
        self.pump();
    }

    /// The files of a blob go: there is room again, perhaps.
    fn gave_room(&mut self, id: BlobId, bytes: u64) {
        let is_needed =
            self.waits_for_disk().next().is_some() || self.is_low() || self.is_nearly_full();
        self.room.going = Some((self.going().saturating_add(bytes), self.now));
        self.out.push_back(Out::Disk(DiskOp::Remove { blob: id }));
        if is_needed {
            // It must not wait to be written again: another blob, or the log, needs the room.
            self.out.push_back(Out::Disk(DiskOp::MakeRoom));
            self.measure();
        }
        if self.room.trouble.take().is_some() {
            self.disk_is_well();
        }
    }
}

impl Blob {
    /// What it is for, as far as its room on the disk goes.
    pub(super) fn class(&self) -> Class {
        self.open.purpose.into()
    }

    /// Whether its file is still to be made, and does not count yet.
    fn is_uncharged(&self) -> bool {
        self.disk.lacks_room() && self.disk.charged == 0
    }
}

#[cfg(test)]
mod tests {
    use chunking::ChunkPlan;
    use chunking::message::{OpenFlags, Purpose};
    use uuid::Uuid;

    use super::super::{RelayConfig, Says, announced};
    use super::*;
    use crate::core::ids::ConnId;
    use crate::store::blobs::DiskDone;

    #[test]
    fn jobs_are_refused_until_what_is_being_removed_makes_room() {
        const MIB: u64 = 1 << 20;
        let mut relay = Relay::new(RelayConfig { durable: true, ..RelayConfig::default() });
        // Of 16 MiB that are kept, jobs leave 12 alone.
        for (free, refuses) in [(12, false), (11, true)] {
            let space = Some(Space { free: free * MIB, total: 160 * MIB });
            relay.disk_done(DiskDone::Measured { mark: 0, space });
            assert_eq!(
                (relay.no_room_for_jobs(0, 0).is_some(), relay.refuses_jobs()),
                (refuses, refuses)
            );
        }
        // What is being removed is waited for.
        assert!(relay.is_nearly_full());
        relay.gave_room(Uuid::from_u128(1), MIB);
        assert!(!relay.refuses_jobs() && relay.is_nearly_full());
        relay.gave_room(Uuid::from_u128(2), 8 * MIB);
        assert!(!relay.is_nearly_full(), "16 MiB, and one frame");
        relay.set_now(relay.now.plus(GOING_MAX));
        assert!(relay.refuses_jobs() && relay.is_nearly_full(), "it did not help");
    }

    #[test]
    fn a_result_that_waits_gets_the_room_before_an_upload_that_waits_longer() {
        const MIB: u64 = 1 << 20;
        let mut relay = Relay::new(RelayConfig { durable: true, ..RelayConfig::default() });
        let free = |relay: &mut Relay, free: u64| {
            let space = Some(Space { free: free * MIB, total: 160 * MIB });
            relay.disk_done(DiskDone::Measured { mark: 0, space });
        };
        free(&mut relay, 17);
        for (number, purpose) in [(1, Purpose::Input), (2, Purpose::Input), (3, Purpose::Archive)] {
            let (id, size) = (Uuid::from_u128(number), 20 * MIB);
            let open = Open {
                purpose,
                flags: OpenFlags::KEEPS_SOURCE,
                ..announced(JobId(Uuid::nil()), "", size)
            };
            relay.expect(id, open.clone(), ChunkPlan::new(size, CHUNK_BYTES_MAX).unwrap(), true);
            relay.open(ConnId(1), id, open);
        }
        assert_eq!(relay.results_waiting().count(), 1);
        while relay.poll().is_some() {}
        // Enough for one of them.
        free(&mut relay, 40);
        let mut granted = Vec::new();
        while let Some(out) = relay.poll() {
            if let Out::Say { blob, says: Says::Grant(grant), .. } = out
                && grant.window > 0
            {
                granted.push(blob.as_u128());
            }
        }
        assert_eq!((granted, relay.results_waiting().count()), (vec![3], 0));
    }

    #[test]
    fn who_waits_for_room_beside_datasets_hears_that_they_can_be_removed() {
        const MIB: u64 = 1 << 20;
        for (purpose, is_named) in [(Purpose::Dataset, true), (Purpose::Input, false)] {
            let mut relay = Relay::new(RelayConfig { durable: true, ..RelayConfig::default() });
            let space = Some(Space { free: 17 * MIB, total: 160 * MIB });
            relay.disk_done(DiskDone::Measured { mark: 0, space });
            for (number, purpose) in [(1, purpose), (2, Purpose::Input)] {
                let (id, size) = (Uuid::from_u128(number), 20 * MIB);
                let open = Open { purpose, ..announced(JobId(Uuid::nil()), "", size) };
                relay.expect(id, open, ChunkPlan::new(size, CHUNK_BYTES_MAX).unwrap(), true);
            }
            let why = relay.why_no_room(Uuid::from_u128(2)).unwrap();
            assert_eq!(why.contains("`heft dataset rm`"), is_named, "{why}");
        }
    }

    #[test]
    fn nobody_is_refused_for_a_file_that_was_counted_twice() {
        const MIB: u64 = 1 << 20;
        let mut relay = Relay::new(RelayConfig { durable: true, ..RelayConfig::default() });
        relay.measured(0, Some(Space { free: 152 * MIB, total: 160 * MIB }));
        // The file was made before the disk was looked at, and that was heard after it had been
        // asked for.
        relay.took_room(80 * MIB);
        relay.measured(0, Some(Space { free: 72 * MIB, total: 160 * MIB }));
        assert!(!relay.fits(Class::Upload, MIB), "other large files wait until it is certain");
        assert_eq!(
            (relay.no_room_for_jobs(MIB, 0), relay.why_not_now(Class::Upload, MIB)),
            (None, None)
        );
        relay.measured(80 * MIB, Some(Space { free: 13 * MIB, total: 160 * MIB }));
        assert_eq!(relay.no_room_for_jobs(MIB, 0), None);
        let refused = relay.no_room_for_jobs(2 * MIB, 0);
        assert!(refused.is_some_and(|why| why.contains("--disk-reserve")));
        assert_eq!(relay.no_room_for_jobs(2 * MIB, MIB), None, "others go first");
        assert!(
            relay
                .why_not_now(Class::Upload, MIB)
                .is_some_and(|(reason, _)| reason == Reason::DISK_FULL)
        );
    }
}
