//! Keeps the first bytes of incomplete chunks: from a connection that broke in the middle of one,
//! and from chunks that arrive in fragments. These bytes need not be sent again.
//!
//! Bounded: one per transfer, and a total limit; beyond it the one idle for longest is dropped.
//! Dropping costs only the bytes, which are sent again. Nothing here checks the bytes: an assembled
//! chunk is checked like any other.

use std::collections::VecDeque;

use bytes::{Bytes, BytesMut};
use chunking::message::{HeldPart, PartOf, Piece};
use chunking::{ChunkHead, ChunkPlan};
use uuid::Uuid;

use super::buffers::BUFFER_BYTES;
use super::inlet::InChunk;

/// Parts that a worker or a client keeps. One is at most a chunk long.
pub const PEER_PARTS_MAX: usize = 16;

/// The first bytes of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The transfer's id.
    pub transfer: Uuid,
    /// The chunk's head.
    pub head: ChunkHead,
    /// All of its bytes on the wire.
    pub sent_len: u32,
    /// Those that are here; fewer than all.
    bytes: BytesMut,
}

impl Part {
    /// A part with these bytes; `None` if there are none, or it is not a part of a chunk.
    pub fn new(transfer: Uuid, head: ChunkHead, sent_len: u32, bytes: &[u8]) -> Option<Self> {
        let room = usize::try_from(sent_len).ok().filter(|room| *room <= BUFFER_BYTES)?;
        if bytes.is_empty() || bytes.len() >= room {
            return None;
        }
        // No more than is here: it may be all that ever comes.
        Some(Part { transfer, head, sent_len, bytes: bytes.into() })
    }

    /// The bytes that are here.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    fn is_of(&self, head: &ChunkHead, sent_len: u32) -> bool {
        (self.head, self.sent_len) == (*head, sent_len)
    }

    /// How a Grant names it.
    fn told(&self, plan: &ChunkPlan) -> Option<PartOf> {
        let index = plan.check(&self.head, self.sent_len).ok()?;
        let bytes = u32::try_from(self.bytes.len()).ok()?;
        Some(PartOf { index, bytes, crc_sent: self.head.crc_sent })
    }
}

/// Parts of chunks, those that nothing came for longest first.
#[derive(Debug)]
pub struct Parts {
    kept: VecDeque<Part>,
    parts_max: usize,
}

impl Default for Parts {
    fn default() -> Self {
        Parts::new(PEER_PARTS_MAX)
    }
}

impl Parts {
    /// Room for so many.
    pub fn new(parts_max: usize) -> Self {
        Parts { kept: VecDeque::new(), parts_max: parts_max.max(1) }
    }

    /// How many are here.
    pub fn len(&self) -> usize {
        self.kept.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.kept.is_empty()
    }

    /// Keeps a part. Of two of the same chunk the longer one stays.
    pub fn keep(&mut self, part: Part) {
        let before = self.take(part.transfer);
        let longer = before.filter(|old| {
            old.is_of(&part.head, part.sent_len) && old.bytes.len() > part.bytes.len()
        });
        self.put(longer.unwrap_or(part));
    }

    fn put(&mut self, part: Part) {
        while self.kept.len() >= self.parts_max {
            self.kept.pop_front();
        }
        self.kept.push_back(part);
    }

    /// Takes out what is here of a transfer's chunk.
    pub fn take(&mut self, transfer: Uuid) -> Option<Part> {
        let at = self.kept.iter().position(|part| part.transfer == transfer)?;
        self.kept.remove(at)
    }

    /// What a Grant says of a transfer, unless that chunk is here: `is_here` says so.
    pub fn held(
        &self,
        transfer: Uuid,
        plan: &ChunkPlan,
        is_here: impl FnOnce(u32) -> bool,
    ) -> HeldPart {
        let part = self.kept.iter().find(|part| part.transfer == transfer);
        HeldPart(part.and_then(|part| part.told(plan)).filter(|told| !is_here(told.index)))
    }

    /// A piece of a chunk came: gives the chunk if it is the last one. One that does not fit what
    /// is here is dropped with it: the chunk is missed when the transfer is done.
    pub fn piece(&mut self, transfer: Uuid, piece: &Piece<'_>) -> Option<InChunk> {
        let Piece { head, sent_len, from, bytes } = *piece;
        let (from, all) = (usize::try_from(from).ok()?, usize::try_from(sent_len).ok()?);
        let before = self.take(transfer).filter(|part| part.is_of(&head, sent_len));
        let mut part = match before {
            Some(part) if part.bytes.len() == from => part,
            Some(_) | None if from == 0 => {
                Part { transfer, head, sent_len, bytes: BytesMut::new() }
            }
            Some(_) | None => return None,
        };
        if all > BUFFER_BYTES || bytes.len() > all - part.bytes.len() {
            return None;
        }
        if part.bytes.capacity() < all {
            part.bytes.reserve(all - part.bytes.len());
        }
        part.bytes.extend_from_slice(bytes);
        if part.bytes.len() < all {
            self.put(part);
            return None;
        }
        let bytes: Bytes = part.bytes.freeze();
        Some(InChunk { transfer, head, crc: Some(crc32fast::hash(&bytes)), bytes })
    }

    /// Drops what is here of transfers that are over.
    pub fn retain(&mut self, mut is_open: impl FnMut(Uuid) -> bool) {
        self.kept.retain(|part| is_open(part.transfer));
    }

    /// Drops what is here of a transfer.
    pub fn forget(&mut self, transfer: Uuid) {
        self.take(transfer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Uuid = Uuid::from_u128(1);
    const B: Uuid = Uuid::from_u128(2);
    const BYTES: &[u8] = &[7; 10_000];

    fn head() -> ChunkHead {
        ChunkHead::plain(4096 * 4, BYTES)
    }

    fn plan() -> ChunkPlan {
        ChunkPlan::new(16_384 * 4, 16_384).unwrap()
    }

    fn piece(head: ChunkHead, from: usize, to: usize) -> Piece<'static> {
        let sent_len = u32::try_from(BYTES.len()).unwrap();
        Piece { head, sent_len, from: u32::try_from(from).unwrap(), bytes: &BYTES[from..to] }
    }

    fn cut(transfer: Uuid, bytes: usize) -> Part {
        Part::new(transfer, head(), 10_000, &BYTES[..bytes]).unwrap()
    }

    #[test]
    fn what_a_cut_left_is_named_and_the_rest_makes_the_chunk_whole() {
        let whole = vec![3; 16_384];
        let head = ChunkHead::plain(16_384, &whole);
        let mut parts = Parts::default();
        parts.keep(Part::new(A, head, 16_384, &whole[..300]).unwrap());
        let told = PartOf { index: 1, bytes: 300, crc_sent: head.crc_sent };
        assert_eq!(parts.held(A, &plan(), |_| false), HeldPart(Some(told)));
        assert_eq!(
            parts.held(A, &plan(), |index| index == 1),
            HeldPart(None),
            "it came on another way"
        );
        assert_eq!(parts.held(B, &plan(), |_| false), HeldPart(None));
        let rest = |from: usize, to: usize| Piece {
            head,
            sent_len: 16_384,
            from: u32::try_from(from).unwrap(),
            bytes: &whole[from..to],
        };
        assert_eq!(parts.piece(A, &rest(300, 9000)), None);
        let chunk = parts.piece(A, &rest(9000, 16_384)).unwrap();
        assert_eq!((chunk.transfer, chunk.head, chunk.bytes.as_ref()), (A, head, whole.as_slice()));
        assert!(head.check_sent(chunk.crc()).is_ok() && parts.is_empty());
    }

    #[test]
    fn gaps_overlaps_and_other_chunks_drop_what_is_here() {
        for wrong in [
            piece(head(), 101, 200),
            piece(head(), 99, 200),
            piece(ChunkHead { crc_sent: 1, ..head() }, 100, 200),
            piece(ChunkHead { codec: chunking::Codec::Zstd, ..head() }, 100, 200),
            Piece { sent_len: 10_001, ..piece(head(), 100, 200) },
        ] {
            let mut parts = Parts::default();
            parts.keep(cut(A, 100));
            parts.keep(cut(B, 100));
            assert_eq!(parts.piece(A, &wrong), None);
            assert_eq!(parts.piece(A, &piece(head(), 200, 10_000)), None, "{wrong:?}");
            assert_eq!(parts.len(), 1, "the other transfer's is still here");
            assert!(parts.piece(B, &piece(head(), 100, 10_000)).is_some());
        }
        // From the start is always right.
        let mut parts = Parts::default();
        parts.keep(cut(A, 100));
        assert_eq!(parts.piece(A, &piece(head(), 0, 50)), None);
        assert!(parts.piece(A, &piece(head(), 50, 10_000)).is_some());
    }

    #[test]
    fn pieces_that_say_more_than_a_chunk_can_have_take_no_room() {
        let mut parts = Parts::default();
        let long = Piece { sent_len: u32::MAX, ..piece(head(), 0, 100) };
        assert_eq!((parts.piece(A, &long), parts.len()), (None, 0));
        let beyond = Piece { sent_len: 50, ..piece(head(), 0, 100) };
        assert_eq!((parts.piece(A, &beyond), parts.len()), (None, 0));
        assert!(Part::new(A, head(), u32::MAX, BYTES).is_none());
        assert!(Part::new(A, head(), 10_000, BYTES).is_none(), "that is not a part");
        assert!(Part::new(A, head(), 10_000, &[]).is_none());
    }

    #[test]
    fn damage_in_a_part_is_found_when_the_chunk_is_whole() {
        let mut parts = Parts::default();
        let mut damaged = BYTES[..100].to_vec();
        damaged[50] ^= 1;
        parts.keep(Part::new(A, head(), 10_000, &damaged).unwrap());
        let chunk = parts.piece(A, &piece(head(), 100, 10_000)).unwrap();
        assert!(chunk.head.check_sent(chunk.crc()).is_err());
        assert!(parts.is_empty(), "and it is not told of again");
    }

    #[test]
    fn the_longer_of_two_stays_and_the_oldest_makes_room() {
        let mut parts = Parts::new(2);
        parts.keep(cut(A, 5000));
        parts.keep(cut(A, 10));
        assert_eq!(
            parts.take(A).unwrap().bytes().len(),
            5000,
            "a connection that broke at once takes nothing away"
        );
        parts.keep(cut(A, 5000));
        let other = ChunkHead { offset: 0, ..head() };
        parts.keep(Part::new(A, other, 10_000, &BYTES[..10]).unwrap());
        assert_eq!(parts.take(A).unwrap().head.offset, 0, "of two chunks it is the later one");
        for transfer in 1..=100u128 {
            parts.keep(cut(Uuid::from_u128(transfer), 10));
        }
        assert_eq!(parts.len(), 2);
        assert!(
            parts.take(Uuid::from_u128(99)).is_some() && parts.take(Uuid::from_u128(100)).is_some()
        );
        // One that grows is not the oldest.
        parts.keep(cut(A, 10));
        parts.keep(cut(B, 10));
        assert_eq!(parts.piece(A, &piece(head(), 10, 20)), None);
        parts.keep(cut(Uuid::from_u128(3), 10));
        assert!(parts.take(B).is_none() && parts.take(A).is_some());
        parts.keep(cut(A, 10));
        parts.retain(|transfer| transfer != A);
        assert_eq!(parts.len(), 1);
    }
}
