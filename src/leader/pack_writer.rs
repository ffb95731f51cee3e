//! Writes packs that the leader builds itself, from contents in a classic client's frame. Bytes
//! arrive in order and go to disk chunk by chunk; at most one chunk is in memory.

use std::collections::BTreeMap;

use chunking::DigestKind;
use chunking::dataset::pack::{Layout, PackError};
use chunking::dataset::{Piece, PieceHasher};
use chunking::digest::BlobHasher;
use chunking::limits::{PACK_BYTES_MAX, PACK_PIECES_MAX, PIECE_BYTES_MAX};
use chunking::message::Purpose;
use uuid::Uuid;

use super::datasets::PACK;
use crate::core::ids::JobId;
use crate::leader::relay::{BlobId, ChunkRoom, Relay};
use crate::wire::BUFFER_BYTES;

/// The largest piece.
pub(super) const PIECE_BYTES: usize = PIECE_BYTES_MAX as usize;

/// A content that was taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct PackedFile {
    pub(super) sha256: [u8; 32],
    pub(super) pieces: Vec<Piece>,
}

/// Makes packs. A piece ends where its content ends, or when it is as large as one may be.
#[derive(Debug)]
pub(super) struct PackWriter {
    owner: JobId,
    packs: Vec<(BlobId, Layout)>,
    open: Option<OpenPack>,
    content: Option<Content>,
    made: BTreeMap<usize, PackedFile>,
    fault: Option<PackError>,
}

/// The content that comes.
struct Content {
    slot: usize,
    whole: BlobHasher,
    /// The piece that comes.
    piece: PieceHasher,
    piece_bytes: usize,
    pieces: Vec<Piece>,
}

impl std::fmt::Debug for Content {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Content")
            .field("slot", &self.slot)
            .field("pieces", &self.pieces)
            .finish_non_exhaustive()
    }
}

impl Content {
    fn update(&mut self, bytes: &[u8]) {
        self.whole.update(bytes, 0);
        self.piece.update(bytes);
        self.piece_bytes += bytes.len();
    }

    fn end_piece(&mut self) -> Piece {
        let piece = std::mem::take(&mut self.piece).finish();
        self.piece_bytes = 0;
        self.pieces.push(piece);
        piece
    }
}

/// The pack that is being filled.
#[derive(Debug)]
struct OpenPack {
    id: BlobId,
    pieces: Vec<Piece>,
    bytes: u64,
    chunks: u32,
    chunk: Option<(ChunkRoom, usize)>,
}

impl OpenPack {
    fn write(&mut self, mut bytes: &[u8], relay: &mut Relay) {
        while !bytes.is_empty() {
            let (room, filled) = self.chunk.get_or_insert_with(|| (relay.chunk_room(), 0));
            let part = room.copy_in(*filled, bytes);
            *filled += part;
            self.bytes += part as u64;
            bytes = bytes.get(part..).unwrap_or_default();
            if *filled == BUFFER_BYTES {
                self.end_chunk(relay);
            }
        }
    }

    fn end_chunk(&mut self, relay: &mut Relay) {
        if let Some((room, filled)) = self.chunk.take() {
            relay.gather(self.id, Purpose::Dataset, self.chunks, room.freeze(filled));
            self.chunks += 1;
        }
    }

    /// Whether another piece fits, however large it is.
    fn has_room(&self) -> bool {
        self.bytes + u64::from(PIECE_BYTES_MAX) <= PACK_BYTES_MAX
            && self.pieces.len() < PACK_PIECES_MAX
    }
}

impl PackWriter {
    /// For the contents of one request.
    pub(super) fn new(owner: Uuid) -> Self {
        let (packs, made) = (Vec::new(), BTreeMap::new());
        PackWriter { owner: JobId(owner), packs, open: None, content: None, made, fault: None }
    }

    pub(super) fn owner(&self) -> Uuid {
        self.owner.0
    }

    /// The pack that is being filled.
    pub(super) fn open_pack(&self) -> Option<BlobId> {
        self.open.as_ref().map(|open| open.id)
    }

    /// A content begins. If the slot had one before, that one is void.
    pub(super) fn begin(&mut self, slot: usize) {
        self.made.remove(&slot);
        let (whole, piece) = (BlobHasher::new(DigestKind::Sha256), PieceHasher::default());
        self.content = Some(Content { slot, whole, piece, piece_bytes: 0, pieces: Vec::new() });
    }

    /// The next bytes of it.
    pub(super) fn bytes(
        &mut self,
        mut bytes: &[u8],
        relay: &mut Relay,
        make_id: &mut dyn FnMut() -> Uuid,
    ) {
        while !bytes.is_empty() {
            let Some(content) = &mut self.content else { return };
            if content.piece_bytes == 0 && self.open.as_ref().is_some_and(|open| !open.has_room()) {
                self.end_pack(relay);
            }
            let Some(content) = &mut self.content else { return };
            let open = self.open.get_or_insert_with(|| OpenPack {
                id: make_id(),
                pieces: Vec::new(),
                bytes: 0,
                chunks: 0,
                chunk: None,
            });
            let (part, rest) = bytes.split_at(bytes.len().min(PIECE_BYTES - content.piece_bytes));
            open.write(part, relay);
            content.update(part);
            if content.piece_bytes == PIECE_BYTES {
                open.pieces.push(content.end_piece());
            }
            bytes = rest;
        }
    }

    /// A whole piece of it that is here already.
    pub(super) fn known(&mut self, piece: Piece, bytes: &[u8]) {
        if let Some(content) = &mut self.content {
            content.whole.update(bytes, 0);
            content.pieces.push(piece);
        }
    }

    /// The content is complete.
    pub(super) fn end(&mut self) {
        let Some(mut content) = self.content.take() else { return };
        if content.piece_bytes > 0 {
            let piece = content.end_piece();
            if let Some(open) = &mut self.open {
                open.pieces.push(piece);
            }
        }
        let made = PackedFile { sha256: content.whole.finish().bytes, pieces: content.pieces };
        self.made.insert(content.slot, made);
    }

    fn end_pack(&mut self, relay: &mut Relay) {
        let Some(mut open) = self.open.take() else { return };
        match Layout::new(std::mem::take(&mut open.pieces)) {
            Ok(layout) => {
                open.write(&layout.tail(), relay);
                open.end_chunk(relay);
                // A pack is far below what a plan of chunks takes.
                let _digest =
                    relay.gathered(open.id, self.owner, Purpose::Dataset, PACK, layout.size());
                self.packs.push((open.id, layout));
            }
            Err(fault) => {
                relay.forget(open.id);
                self.fault = Some(fault);
            }
        }
    }

    /// All contents have come: gives them by their slots, and the packs that have their pieces.
    pub(super) fn finish(mut self, relay: &mut Relay) -> Result<Finished, String> {
        self.end_pack(relay);
        match &self.fault {
            Some(fault) => {
                let why = fault.to_string();
                self.forget(relay);
                Err(why)
            }
            None => Ok((self.made, self.packs)),
        }
    }

    /// It is not wanted any more.
    pub(super) fn forget(self, relay: &mut Relay) {
        let open = self.open.map(|open| open.id);
        self.packs
            .into_iter()
            .map(|(pack, _)| pack)
            .chain(open)
            .for_each(|pack| relay.forget(pack));
    }
}

/// Contents by their slots, and packs with their lists.
pub(super) type Finished = (BTreeMap<usize, PackedFile>, Vec<(BlobId, Layout)>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::leader::relay::RelayConfig;
    use crate::noise::noise;
    use chunking::dataset::sha256;

    #[test]
    fn contents_become_pieces_in_packs_however_they_come() {
        let contents = [noise(3_000_000, 1), Vec::new(), noise(1 << 20, 2), noise(5, 3)];
        let expected: Vec<PackedFile> = contents
            .iter()
            .map(|content| PackedFile {
                sha256: sha256(content),
                pieces: content.chunks(PIECE_BYTES).map(Piece::of).collect(),
            })
            .collect();
        // With few buffers most of it is in memory of its own.
        for (step, buffers) in [(1usize << 20, 48), (48 << 10, 2), (1 << 16, 0)] {
            let mut relay = Relay::new(RelayConfig { buffers, ..RelayConfig::default() });
            let mut next = 0u128;
            let mut make_id = || {
                next += 1;
                Uuid::from_u128(next)
            };
            let mut maker = PackWriter::new(Uuid::from_u128(99));
            for (slot, content) in contents.iter().enumerate() {
                maker.begin(slot);
                content.chunks(step).for_each(|bytes| maker.bytes(bytes, &mut relay, &mut make_id));
                maker.end();
            }
            let (made, packs) = maker.finish(&mut relay).unwrap();
            assert_eq!(made.into_values().collect::<Vec<_>>(), expected);
            let [(pack, layout)] = packs.as_slice() else { panic!("one pack: {packs:?}") };
            let pieces: Vec<Piece> = expected.iter().flat_map(|made| made.pieces.clone()).collect();
            assert_eq!(layout.pieces(), pieces);
            assert_eq!(
                (relay.size(*pack), relay.bytes_here(*pack)),
                (layout.size(), layout.size())
            );
            assert!(relay.has_arrived(*pack));
        }
    }

    #[test]
    fn packs_end_before_they_are_too_large_and_go_with_a_put_that_is_given_up() {
        let mut relay = Relay::new(RelayConfig::default());
        let mut next = 0u128;
        let mut make_id = || {
            next += 1;
            Uuid::from_u128(next)
        };
        let mut maker = PackWriter::new(Uuid::from_u128(99));
        for slot in 0..PACK_PIECES_MAX + 10 {
            maker.begin(slot);
            maker.bytes(&(slot as u64).to_le_bytes(), &mut relay, &mut make_id);
            maker.end();
        }
        // A content that came twice counts as it came last.
        maker.begin(0);
        maker.bytes(b"again", &mut relay, &mut make_id);
        maker.end();
        let (made, packs) = maker.finish(&mut relay).unwrap();
        assert_eq!(made[&0].pieces, [Piece::of(b"again")]);
        let counts: Vec<usize> = packs.iter().map(|(_, layout)| layout.pieces().len()).collect();
        assert_eq!(counts, [PACK_PIECES_MAX, 11]);

        let mut maker = PackWriter::new(Uuid::from_u128(98));
        maker.begin(0);
        maker.bytes(&noise(70 << 20, 4), &mut relay, &mut make_id);
        let before = relay.fill().blobs;
        maker.forget(&mut relay);
        assert_eq!((before, relay.fill().blobs), (4, 2));
    }
}
