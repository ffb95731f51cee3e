//! Gives results priority over uploads when space is short. While a result waits for space, uploads
//! without a reservation get none: each needs less and would otherwise always find space first.
//!
//! This holds only while it helps. A result that would not fit even if all inputs were gone waits
//! for other results to be fetched, and holding uploads back would block them just as long.

use std::collections::HashMap;

use chunking::message::Reason;

use super::blob::Blob;
use super::{BlobId, Relay};
use crate::core::ids::JobId;
use crate::store::blobs::Class;
use crate::units::ByteSize;

/// Blobs that wait for a place that is large enough.
#[derive(Debug, Default)]
pub(super) struct InLine {
    /// What each finds too little of.
    turned_down: HashMap<BlobId, Reason>,
    /// The part of a result among them that uploads leave the room to.
    first: Option<BlobId>,
}

impl InLine {
    pub(super) fn is_empty(&self) -> bool {
        self.turned_down.is_empty()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (BlobId, Reason)> {
        self.turned_down.iter().map(|(id, reason)| (*id, *reason))
    }

    /// What a blob finds too little of.
    pub(super) fn reason(&self, id: BlobId) -> Option<Reason> {
        self.turned_down.get(&id).copied()
    }

    /// A blob waits. Says whether that is new.
    pub(super) fn insert(&mut self, id: BlobId, reason: Reason) -> bool {
        self.turned_down.insert(id, reason) != Some(reason)
    }

    /// A blob waits no more.
    pub(super) fn remove(&mut self, id: BlobId) {
        self.turned_down.remove(&id);
    }

    /// The part of a result that uploads leave the room to, and what it finds too little of.
    fn first(&self) -> Option<(BlobId, Reason)> {
        self.first.and_then(|id| Some((id, self.reason(id)?)))
    }
}

impl Relay {
    /// A blob finds no room.
    pub(super) fn turn_down(&mut self, id: BlobId, reason: Reason) {
        let is_news = self.in_line.insert(id, reason);
        if is_news
            && self.in_line.first().is_none()
            && self.may_be_first(id, reason, || self.inputs_on_disk())
        {
            self.in_line.first = Some(id);
        }
    }

    /// Looks again who comes first: room that inputs have may be a result's by now.
    pub(super) fn choose_first_in_line(&mut self) {
        if self.in_line.is_empty() {
            return;
        }
        let on_disk = std::cell::OnceCell::new();
        let may_be_first = |id: BlobId, reason| {
            self.may_be_first(id, reason, || *on_disk.get_or_init(|| self.inputs_on_disk()))
        };
        let first = self.in_line.first().filter(|(id, reason)| may_be_first(*id, *reason));
        let next = || {
            let waiting = self.windows.waiting.iter();
            let mut waiting = waiting.filter_map(|id| Some((*id, self.in_line.reason(*id)?)));
            waiting.find(|(id, reason)| may_be_first(*id, *reason))
        };
        self.in_line.first = first.or_else(next).map(|(id, _)| id);
    }

    /// Whether it helps a blob that it comes first: it is a part of a result, and there is room for
    /// it once inputs are gone. In the spool there always is, as the only one may exceed it.
    fn may_be_first(&self, id: BlobId, reason: Reason, inputs_on_disk: impl Fn() -> u64) -> bool {
        let is_brought = |blob: &&Blob| blob.is_of_result() && blob.up.is_some();
        self.blobs.get(&id).filter(is_brought).is_some_and(|_| {
            reason != Reason::DISK_FULL
                || self.fits(Class::Result, self.unmade(&[id]).saturating_sub(inputs_on_disk()))
        })
    }

    /// Bytes of the disk that inputs have, which they give back with the end of their jobs.
    fn inputs_on_disk(&self) -> u64 {
        let inputs = self.blobs.values().filter(|blob| blob.is_input());
        inputs
            .map(|blob| if blob.disk.has_file() { blob.open.size } else { blob.disk.charged })
            .sum()
    }

    /// What a blob has to wait for as a result comes first, if it does. One that has its room on
    /// the disk takes nothing of what the result waits for there.
    pub(super) fn waits_behind_result(&self, id: BlobId) -> Option<Reason> {
        let (_, reason) = self.in_line.first()?;
        let blob = self
            .blobs
            .get(&id)
            .filter(|blob| !blob.is_of_result() && blob.chunks.reserved().is_none())?;
        let lacks_file =
            |id: &BlobId| self.blobs.get(id).is_some_and(|blob| blob.disk.lacks_room());
        let lacks_room = match &blob.together {
            Some(together) => together.iter().any(lacks_file),
            None => blob.disk.lacks_room(),
        };
        (reason != Reason::DISK_FULL || lacks_room).then_some(reason)
    }

    /// The same in words.
    pub(super) fn why_behind_result(&self, id: BlobId) -> Option<String> {
        let reason = self.in_line.reason(id).and(self.waits_behind_result(id))?;
        let place = match reason == Reason::DISK_FULL {
            true => "on the leader's disk",
            false => "in the leader's spool (--spool-max)",
        };
        let first = self.first_in_words()?;
        Some(format!(
            "{first} waits for room {place} and goes before uploads that have no room yet"
        ))
    }

    /// What uploads leave the room to, for people.
    pub(in crate::leader) fn first_in_words(&self) -> Option<String> {
        let (first, _) = self.in_line.first()?;
        let part = self.blobs.get(&first)?;
        Some(format!("a part of the result of job {} ({})", part.owner(), ByteSize(part.open.size)))
    }

    /// Why inputs of a job do not come, if they wait for room.
    pub(in crate::leader) fn why_inputs_wait(&self, job: JobId) -> Option<String> {
        let is_of_job = |id: &BlobId| {
            self.blobs.get(id).is_some_and(|blob| blob.is_input() && blob.owner() == job)
        };
        let (id, reason) = self.without_room().find(|(id, _)| is_of_job(id))?;
        Some(self.why_full(id, reason))
    }

    /// Blobs of which nothing more may come as there is no room, with which of the two is full: the
    /// spool, or the disk.
    pub(super) fn without_room(&self) -> impl Iterator<Item = (BlobId, Reason)> {
        let full = self.full();
        self.windows.waiting.iter().filter_map(move |id| {
            let reason = self.in_line.reason(*id).or(full)?;
            // What only passes through needs no room, and is not told that there is none.
            let told = self.blobs.get(id)?.up.as_ref()?.told?;
            let is_told = told == Reason::SPOOL_FULL || told == Reason::DISK_FULL;
            is_told.then_some((*id, reason))
        })
    }

    /// Why uploads wait for room in the spool, and how many do.
    pub(in crate::leader) fn spool_short(&self) -> Option<(usize, String)> {
        let is_upload = |id: &BlobId| self.blobs.get(id).is_some_and(|blob| !blob.is_of_result());
        let waiting = self.without_room().filter(|(id, _)| is_upload(id)).count();
        (waiting > 0).then(|| (waiting, self.why_spool_full()))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use chunking::ChunkPlan;
    use chunking::limits::CHUNK_BYTES_MAX;
    use chunking::message::{Open, OpenFlags, Purpose};
    use uuid::Uuid;

    use super::super::{Out, RelayConfig, Says, announced};
    use super::*;
    use crate::core::ids::ConnId;
    use crate::store::blobs::DiskDone;
    use crate::store::space::Space;

    const MIB: u64 = 1 << 20;
    const WORKER: ConnId = ConnId(1);
    const RESULT: u128 = 100;

    /// The connection that brings an input: each has one of its own, as those of one share what it
    /// may send.
    fn client(number: u128) -> ConnId {
        ConnId(1_000 + u64::try_from(number).unwrap())
    }

    /// A relay with a disk of 160 MiB, of which uploads leave 16 free and results 8.
    struct Rig(Relay);

    impl Rig {
        fn new() -> Self {
            let mut rig = Rig(Relay::new(RelayConfig { durable: true, ..RelayConfig::default() }));
            rig.free(152);
            rig
        }

        fn free(&mut self, mib: u64) {
            let space = Some(Space { free: mib * MIB, total: 160 * MIB });
            self.0.disk_done(DiskDone::Measured { mark: u64::MAX, space });
        }

        fn bring(&mut self, number: u128, purpose: Purpose, mib: u64) {
            let (id, size) = (Uuid::from_u128(number), mib * MIB);
            let owner = JobId(Uuid::from_u128(number));
            let open =
                Open { purpose, flags: OpenFlags::KEEPS_SOURCE, ..announced(owner, "", size) };
            self.0.expect(id, open.clone(), ChunkPlan::new(size, CHUNK_BYTES_MAX).unwrap(), true);
            if purpose == Purpose::Input {
                self.0.belong_together(&[id]);
            }
            self.0.open(if purpose == Purpose::Input { client(number) } else { WORKER }, id, open);
        }

        /// An input that is here.
        fn held(&mut self, number: u128, mib: u64) {
            self.bring(number, Purpose::Input, mib);
            self.0.file_made(Uuid::from_u128(number));
        }

        /// The job of an input has ended, and there is so much room.
        fn ended(&mut self, number: u128, free: u64) {
            self.0.forget(Uuid::from_u128(number));
            self.free(free);
        }

        fn pass(&mut self) {
            self.0.set_now(self.0.now.plus(Duration::from_millis(200)));
            self.0.tick();
        }

        /// Blobs that got a window since, and the texts of those that have to wait.
        fn heard(&mut self) -> (Vec<u128>, Vec<String>) {
            let (mut granted, mut waits) = (Vec::new(), Vec::new());
            while let Some(out) = self.0.poll() {
                let Out::Say { blob, says: Says::Grant(grant), .. } = out else { continue };
                if grant.window > 0 {
                    granted.push(blob.as_u128());
                } else if grant.reason != Reason::NONE {
                    waits.push(grant.text.as_str().to_owned());
                }
            }
            (granted, waits)
        }
    }

    #[test]
    fn uploads_leave_what_gets_free_to_a_large_result() {
        let mut rig = Rig::new();
        (1..=3).for_each(|number| rig.held(number, 40));
        rig.free(32);
        assert_eq!(rig.heard().0, [1, 2, 3]);
        rig.bring(RESULT, Purpose::Archive, 60);
        (4..=6).for_each(|number| rig.bring(number, Purpose::Input, 10));
        let (granted, waits) = rig.heard();
        assert_eq!(granted, [], "there is room for an upload, and it is not theirs");
        assert_eq!(waits.len(), 4);
        assert!(
            waits[1..].iter().all(|why| why.contains("a part of the result of job")),
            "{waits:?}"
        );
        let why = rig.0.why_inputs_wait(JobId(Uuid::from_u128(4))).unwrap();
        assert!(why.contains("60 MiB) waits for room on the leader's disk"), "{why}");
        rig.ended(1, 60);
        rig.pass();
        assert_eq!(rig.heard().0, [], "not enough for the result");
        rig.ended(2, 100);
        rig.pass();
        let (mut granted, _) = rig.heard();
        granted.sort_unstable();
        assert_eq!(
            granted,
            [4, 5, RESULT].map(u128::from),
            "it has its place, and what is left is for others"
        );
    }

    #[test]
    fn an_upload_that_has_its_place_goes_on() {
        let mut rig = Rig::new();
        rig.held(1, 40);
        rig.bring(RESULT, Purpose::Archive, 140);
        assert!(rig.0.first_in_words().is_some());
        assert_eq!(rig.heard().0, [1]);
        // Its sender comes back.
        rig.0.closed(client(1));
        rig.bring(1, Purpose::Input, 40);
        assert_eq!(rig.heard().0, [1]);
        // Its place was taken back meanwhile, and the file has its room.
        rig.0.closed(client(1));
        rig.0.give_up_place(Uuid::from_u128(1));
        rig.bring(1, Purpose::Input, 40);
        assert_eq!(rig.heard().0, [1]);
    }

    #[test]
    fn nobody_waits_behind_a_result_that_is_gone_or_that_inputs_make_no_room_for() {
        let mut rig = Rig::new();
        rig.held(1, 40);
        rig.free(40);
        rig.bring(RESULT, Purpose::Archive, 60);
        rig.bring(2, Purpose::Input, 10);
        assert_eq!(rig.heard().0, [1]);
        // Its worker is gone.
        rig.0.closed(WORKER);
        assert_eq!(rig.heard().0, [2]);
        // Even without the inputs it would wait: for other results to be fetched.
        rig.bring(RESULT + 1, Purpose::Archive, 120);
        rig.bring(3, Purpose::Input, 2);
        assert_eq!(rig.heard().0, [3]);
        // They are.
        rig.free(100);
        rig.pass();
        rig.bring(4, Purpose::Input, 2);
        assert_eq!(rig.heard().0, []);
    }

    #[test]
    fn uploads_leave_the_spool_to_a_large_result_too() {
        let config =
            RelayConfig { durable: true, spool_bytes_max: 50 * MIB, ..RelayConfig::default() };
        let mut rig = Rig(Relay::new(config));
        rig.bring(1, Purpose::Input, 30);
        rig.bring(RESULT, Purpose::Archive, 60);
        rig.bring(2, Purpose::Input, 10);
        let (granted, waits) = rig.heard();
        assert_eq!(granted, [1]);
        assert!(waits[1].contains("in the leader's spool (--spool-max)"), "{waits:?}");
        // It may exceed the spool once nothing else is on its way.
        rig.0.forget(Uuid::from_u128(1));
        assert_eq!(rig.heard().0, [RESULT]);
        assert!(rig.0.first_in_words().is_none());
    }
}
