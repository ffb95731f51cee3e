//! Tracks where each chunk of a blob is: in memory, on disk or being written, and the space
//! reserved for the rest.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use chunking::ChunkHead;

/// Where a chunk lies.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Memory(Bytes),
    /// On its way to the disk, and still here.
    Writing(Bytes),
    /// On the disk, and still here for who gets it.
    Cached(Bytes),
    Disk,
}

/// A chunk that is here.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) head: ChunkHead,
    pub(super) len: u32,
    pub(super) place: Place,
}

impl Stored {
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match &self.place {
            Place::Memory(bytes) | Place::Writing(bytes) | Place::Cached(bytes) => Some(bytes),
            Place::Disk => None,
        }
    }
}

/// What all blobs have here together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Totals {
    /// Bytes of them.
    pub(super) bytes: u64,
    /// Chunks in memory that wait for someone.
    pub(super) in_memory: usize,
    /// Bytes that are still to come of blobs that stay here and were let in.
    pub(super) reserved: u64,
}

/// The chunks of one blob that are here. Whatever changes them counts in the totals, too.
#[derive(Clone, Debug, Default)]
pub(super) struct Chunks {
    stored: BTreeMap<u32, Stored>,
    /// Chunks in memory that wait for a receiver.
    in_memory: usize,
    /// Chunks in memory that the disk has, too.
    cached: BTreeSet<u32>,
    /// Chunks that are being written.
    writing: usize,
    bytes: u64,
    /// Bytes that have a place here and are still to come, if the blob stays here and was let in.
    reserved: Option<u64>,
}

impl Chunks {
    pub(super) fn get(&self, index: u32) -> Option<&Stored> {
        self.stored.get(&index)
    }

    pub(super) fn contains(&self, index: u32) -> bool {
        self.stored.contains_key(&index)
    }

    pub(super) fn len(&self) -> usize {
        self.stored.len()
    }

    /// Those from an index on, in order.
    pub(super) fn from(&self, index: u32) -> impl Iterator<Item = (u32, &Stored)> {
        self.stored.range(index..).map(|(index, chunk)| (*index, chunk))
    }

    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(super) fn in_memory(&self) -> usize {
        self.in_memory
    }

    pub(super) fn writing(&self) -> usize {
        self.writing
    }

    /// Chunks that are only in memory.
    pub(super) fn unwritten(&self) -> impl Iterator<Item = u32> {
        let may_have = self.in_memory > self.cached.len();
        let chunks = self.from(0).filter(move |_| may_have);
        chunks.filter(|(_, chunk)| matches!(chunk.place, Place::Memory(_))).map(|(index, _)| index)
    }

    pub(super) fn is_writing(&self, index: u32) -> bool {
        self.get(index).is_some_and(|chunk| matches!(chunk.place, Place::Writing(_)))
    }

    pub(super) fn insert(&mut self, totals: &mut Totals, index: u32, chunk: Stored) {
        let len = u64::from(chunk.len);
        self.bytes += len;
        totals.bytes += len;
        if let Some(reserved) = &mut self.reserved {
            let taken = len.min(*reserved);
            *reserved -= taken;
            totals.reserved -= taken;
        }
        self.count_in(totals, index, &chunk.place);
        self.stored.insert(index, chunk);
    }

    pub(super) fn remove(&mut self, totals: &mut Totals, index: u32) {
        let Some(chunk) = self.stored.remove(&index) else { return };
        self.count_out(totals, index, &chunk.place);
        self.give_back(totals, chunk.len.into());
    }

    pub(super) fn clear(&mut self, totals: &mut Totals) {
        self.give_back(totals, self.bytes);
        totals.in_memory -= self.in_memory;
        *self = Chunks { reserved: self.reserved, ..Chunks::default() };
    }

    /// Bytes that were here are to come again.
    fn give_back(&mut self, totals: &mut Totals, bytes: u64) {
        self.bytes -= bytes;
        totals.bytes -= bytes;
        if let Some(reserved) = &mut self.reserved {
            *reserved += bytes;
            totals.reserved += bytes;
        }
    }

    fn count_in(&mut self, totals: &mut Totals, index: u32, place: &Place) {
        match place {
            Place::Memory(_) | Place::Cached(_) => {
                self.in_memory += 1;
                totals.in_memory += 1;
                if let Place::Cached(_) = place {
                    self.cached.insert(index);
                }
            }
            Place::Writing(_) => self.writing += 1,
            Place::Disk => {}
        }
    }

    fn count_out(&mut self, totals: &mut Totals, index: u32, place: &Place) {
        match place {
            Place::Memory(_) | Place::Cached(_) => {
                self.in_memory -= 1;
                totals.in_memory -= 1;
                self.cached.remove(&index);
            }
            Place::Writing(_) => self.writing -= 1,
            Place::Disk => {}
        }
    }

    fn move_to(&mut self, totals: &mut Totals, index: u32, place: Place) {
        let Some(chunk) = self.stored.remove(&index) else { return };
        self.count_out(totals, index, &chunk.place);
        self.count_in(totals, index, &place);
        self.stored.insert(index, Stored { place, ..chunk });
    }

    /// A chunk in memory is to be written.
    pub(super) fn write(&mut self, totals: &mut Totals, index: u32) -> Option<(ChunkHead, Bytes)> {
        let chunk = self.get(index)?;
        let (head, bytes) = (chunk.head, chunk.bytes()?.clone());
        self.move_to(totals, index, Place::Writing(bytes.clone()));
        Some((head, bytes))
    }

    /// A chunk was written, and may stay in memory beside; or was not, and has to.
    pub(super) fn written(
        &mut self,
        totals: &mut Totals,
        index: u32,
        is_written: bool,
        stays: bool,
    ) {
        let Some(Place::Writing(bytes)) = self.get(index).map(|chunk| chunk.place.clone()) else {
            return;
        };
        let place = match (is_written, stays) {
            (true, true) => Place::Cached(bytes),
            (true, false) => Place::Disk,
            (false, _) => Place::Memory(bytes),
        };
        self.move_to(totals, index, place);
    }

    /// Releases the memory of chunks that the disk has.
    pub(super) fn uncache(&mut self, totals: &mut Totals, goes: impl Fn(u32) -> bool) {
        let going: Vec<u32> = self.cached.iter().copied().filter(|index| goes(*index)).collect();
        going.into_iter().for_each(|index| self.move_to(totals, index, Place::Disk));
    }

    /// Bytes that have a place here and are still to come, if it was let in.
    pub(super) fn reserved(&self) -> Option<u64> {
        self.reserved
    }

    /// Reserves space for the rest of a blob of `size` bytes. False if it has a reservation.
    pub(super) fn reserve(&mut self, totals: &mut Totals, size: u64) -> bool {
        let is_new = self.reserved.is_none();
        if is_new {
            let more = size.saturating_sub(self.bytes);
            self.reserved = Some(more);
            totals.reserved += more;
        }
        is_new
    }

    pub(super) fn unreserve(&mut self, totals: &mut Totals) {
        totals.reserved -= self.reserved.take().unwrap_or_default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(len: u32, place: fn(Bytes) -> Place) -> Stored {
        let bytes = Bytes::from(vec![7; len as usize]);
        Stored { head: ChunkHead::plain(0, &bytes), len, place: place(bytes) }
    }

    #[test]
    fn wherever_a_chunk_goes_the_totals_are_those_of_its_blob() {
        let (mut totals, mut chunks) = (Totals::default(), Chunks::default());
        assert!(chunks.reserve(&mut totals, 10) && !chunks.reserve(&mut totals, 10));
        chunks.insert(&mut totals, 0, chunk(4, Place::Memory));
        chunks.insert(&mut totals, 1, chunk(5, Place::Writing));
        assert_eq!(totals, Totals { bytes: 9, in_memory: 1, reserved: 1 });
        assert_eq!((chunks.writing(), chunks.unwritten().collect::<Vec<_>>()), (1, vec![0]));
        assert!(chunks.write(&mut totals, 0).is_some());
        assert_eq!((totals.in_memory, chunks.writing(), chunks.unwritten().count()), (0, 2, 0));
        chunks.written(&mut totals, 0, true, true);
        chunks.written(&mut totals, 1, false, true);
        chunks.written(&mut totals, 1, true, true);
        assert_eq!((totals.in_memory, chunks.writing()), (2, 0));
        assert_eq!(
            chunks.unwritten().collect::<Vec<_>>(),
            [1],
            "only what is being written can be written"
        );
        chunks.uncache(&mut totals, |_| true);
        assert_eq!((totals.in_memory, chunks.in_memory()), (1, 1));
        chunks.remove(&mut totals, 1);
        assert_eq!(totals, Totals { bytes: 4, in_memory: 0, reserved: 6 });
        chunks.clear(&mut totals);
        assert_eq!(totals, Totals { bytes: 0, in_memory: 0, reserved: 10 });
        chunks.unreserve(&mut totals);
        assert_eq!((totals, chunks.reserved()), (Totals::default(), None));
    }

    #[test]
    fn more_than_was_kept_for_it_takes_nothing_from_others() {
        let (mut totals, mut chunks) =
            (Totals { reserved: 3, ..Totals::default() }, Chunks::default());
        chunks.reserve(&mut totals, 4);
        chunks.insert(&mut totals, 0, chunk(5, |_| Place::Disk));
        assert_eq!((totals.reserved, totals.bytes), (3, 5));
    }
}
