//! Reads and verifies parts of datasets on disk: parses manifests, and checks every piece of a pack
//! against its BLAKE3. It runs with the files, off the leader's thread.

use std::ops::Range;
use std::sync::Arc;

use chunking::dataset::pack::{FOOTER_BYTES, Layout, PackError};
use chunking::dataset::{Manifest, Piece, PieceHasher};
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::{ChunkHead, Inflater};
use uuid::Uuid;

/// What a blob should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerifyRequest {
    /// A manifest: all chunks of it are looked at.
    Manifest,
    /// A pack with this list: all chunks of it are looked at, and every piece is checked.
    Pack(Arc<Layout>),
    /// A pack of this size that was checked before: its last chunks are looked at, and its list is
    /// read.
    PackList(u64),
    /// A pack: these pieces of it are read, and checked.
    Pieces(Box<WantedPieces>),
    /// Any blob: the chunks are read, as they were before they were compressed.
    Bytes {
        /// What they are for; the answer names it.
        reader: Uuid,
    },
}

impl VerifyRequest {
    /// What bytes are read for, if they are.
    pub(super) fn reader(&self) -> Option<Uuid> {
        match self {
            VerifyRequest::Pieces(wanted) => Some(wanted.reader),
            VerifyRequest::Bytes { reader } => Some(*reader),
            VerifyRequest::Manifest | VerifyRequest::Pack(_) | VerifyRequest::PackList(_) => None,
        }
    }
}

/// Pieces that are to be read from one pack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WantedPieces {
    /// What they are for; the answer names it.
    pub reader: Uuid,
    /// The pieces, and where each lies in the pack.
    pub pieces: Vec<(Piece, Range<u64>)>,
}

impl WantedPieces {
    /// Whether any of them lies in a chunk, at least in part.
    pub fn is_in(&self, head: &ChunkHead) -> bool {
        let end = head.offset.saturating_add(CHUNK_BYTES_MAX.into());
        self.pieces.iter().any(|(_, range)| range.start < end && range.end > head.offset)
    }
}

/// Chunks at the end of a pack that its list may lie in.
pub const LIST_CHUNKS_MAX: usize = 2;

/// What it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    Manifest(Box<Manifest>),
    Pack(Arc<Layout>),
    /// Pieces of a pack, or why they cannot be had.
    Pieces {
        /// What they are for.
        reader: Uuid,
        /// Each with its bytes.
        found: Result<Vec<(Piece, Vec<u8>)>, String>,
    },
    /// Chunks of a blob, or why they cannot be had.
    Bytes {
        /// What they are for.
        reader: Uuid,
        found: Result<Vec<u8>, String>,
    },
}

/// Looks at chunks that come one after the other, in order.
pub(super) struct Verifier {
    at: VerifyRequest,
    inflater: Inflater,
    scratch: Vec<u8>,
    /// What is gathered: a manifest, or the end of a pack.
    bytes: Vec<u8>,
    /// Pieces that are read.
    found: Vec<(Piece, Vec<u8>)>,
    /// How far the pieces of a pack are.
    place: usize,
    left: usize,
    hasher: PieceHasher,
}

impl Verifier {
    pub(super) fn new(at: VerifyRequest) -> Self {
        let found = match &at {
            VerifyRequest::Pieces(wanted) => {
                wanted.pieces.iter().map(|(piece, _)| (*piece, Vec::new())).collect()
            }
            VerifyRequest::Manifest
            | VerifyRequest::Pack(_)
            | VerifyRequest::PackList(_)
            | VerifyRequest::Bytes { .. } => Vec::new(),
        };
        let mut looker = Verifier {
            found,
            at,
            inflater: Inflater::default(),
            scratch: Vec::new(),
            bytes: Vec::new(),
            place: 0,
            left: 0,
            hasher: PieceHasher::default(),
        };
        looker.left = looker.piece_len();
        looker
    }

    /// The next chunk, as it was sent.
    pub(super) fn feed(&mut self, head: &ChunkHead, sent: &[u8]) -> Result<(), String> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let raw =
            head.raw(sent, &mut self.inflater, &mut scratch).map_err(|error| error.to_string())?;
        let fed = match &self.at {
            VerifyRequest::Manifest | VerifyRequest::PackList(_) | VerifyRequest::Bytes { .. } => {
                self.bytes.extend_from_slice(raw);
                Ok(())
            }
            VerifyRequest::Pack(_) => self.pieces(raw),
            VerifyRequest::Pieces(wanted) => {
                let found = self.found.iter_mut().zip(&wanted.pieces);
                found.for_each(|((_, bytes), (_, range))| {
                    bytes.extend_from_slice(overlap(head.offset, raw, range));
                });
                Ok(())
            }
        };
        self.scratch = scratch;
        fed.map_err(|error| error.to_string())
    }

    fn piece_len(&self) -> usize {
        let VerifyRequest::Pack(layout) = &self.at else { return 0 };
        layout.pieces().get(self.place).map_or(0, |piece| piece.len as usize)
    }

    fn pieces(&mut self, mut raw: &[u8]) -> Result<(), PackError> {
        while self.left > 0 {
            let (front, rest) = raw.split_at(self.left.min(raw.len()));
            self.hasher.update(front);
            self.left -= front.len();
            raw = rest;
            if self.left > 0 {
                return Ok(());
            }
            let found = std::mem::take(&mut self.hasher).finish();
            let VerifyRequest::Pack(layout) = &self.at else { return Ok(()) };
            if layout.pieces().get(self.place) != Some(&found) {
                return Err(PackError::Wrong { place: self.place });
            }
            self.place += 1;
            self.left = self.piece_len();
        }
        self.bytes.extend_from_slice(raw);
        Ok(())
    }

    /// All have come.
    pub(super) fn finish(self) -> Result<Verified, String> {
        let wrong = |error: PackError| error.to_string();
        match self.at {
            VerifyRequest::Manifest => Manifest::decode(&self.bytes)
                .map(|manifest| Verified::Manifest(Box::new(manifest)))
                .map_err(|error| error.to_string()),
            VerifyRequest::Pack(layout) => {
                let is_whole = self.left == 0 && self.bytes == layout.tail();
                if is_whole { Ok(Verified::Pack(layout)) } else { Err(wrong(PackError::Footer)) }
            }
            VerifyRequest::PackList(size) => {
                let footer =
                    self.bytes.last_chunk::<FOOTER_BYTES>().ok_or(wrong(PackError::Footer))?;
                let len = Layout::tail_bytes(footer).map_err(wrong)?;
                let tail =
                    self.bytes.len().checked_sub(len).and_then(|start| self.bytes.get(start..));
                let layout = Layout::from_tail(tail.unwrap_or_default(), size).map_err(wrong)?;
                Ok(Verified::Pack(Arc::new(layout)))
            }
            VerifyRequest::Pieces(wanted) => {
                let wrong_one = self.found.iter().position(|(piece, bytes)| !piece.is(bytes));
                let found = match wrong_one {
                    Some(place) => Err(wrong(PackError::Wrong { place })),
                    None => Ok(self.found),
                };
                Ok(Verified::Pieces { reader: wanted.reader, found })
            }
            VerifyRequest::Bytes { reader } => {
                Ok(Verified::Bytes { reader, found: Ok(self.bytes) })
            }
        }
    }
}

/// What of bytes at an offset lies in a range.
fn overlap<'a>(offset: u64, bytes: &'a [u8], range: &Range<u64>) -> &'a [u8] {
    let place =
        |at: u64| usize::try_from(at.saturating_sub(offset)).unwrap_or(usize::MAX).min(bytes.len());
    bytes.get(place(range.start)..place(range.end)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::dataset::{ManifestBuilder, Piece};

    fn pack() -> (Arc<Layout>, Vec<u8>) {
        let pieces: [&[u8]; 4] = [&[1; 700_000], &[2; 400_000], b"three", &[4; 900_000]];
        let layout = Layout::new(pieces.iter().map(|bytes| Piece::of(bytes)).collect()).unwrap();
        let bytes = [pieces.concat(), layout.tail()].concat();
        (Arc::new(layout), bytes)
    }

    fn look(at: VerifyRequest, bytes: &[u8]) -> Result<Verified, String> {
        let mut looker = Verifier::new(at);
        for (index, chunk) in bytes.chunks(1 << 20).enumerate() {
            looker.feed(&ChunkHead::plain((index as u64) << 20, chunk), chunk)?;
        }
        looker.finish()
    }

    #[test]
    fn a_pack_is_what_its_list_says_or_refused() {
        let (layout, bytes) = pack();
        assert_eq!(
            look(VerifyRequest::Pack(layout.clone()), &bytes),
            Ok(Verified::Pack(layout.clone()))
        );
        assert_eq!(
            look(VerifyRequest::PackList(layout.size()), &bytes),
            Ok(Verified::Pack(layout.clone()))
        );
        for at in [0, 699_999, 1_099_999, 1_100_002, bytes.len() - 100, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(look(VerifyRequest::Pack(layout.clone()), &wrong).is_err(), "changed at {at}");
        }
        assert!(look(VerifyRequest::Pack(layout.clone()), &bytes[..bytes.len() - 1]).is_err());
        assert!(look(VerifyRequest::PackList(layout.size() + 1), &bytes).is_err());
        assert!(look(VerifyRequest::PackList(0), &[]).is_err());
    }

    #[test]
    fn pieces_are_read_from_the_chunks_that_they_lie_in() {
        let (layout, bytes) = pack();
        let reader = Uuid::from_u128(1);
        let places = [1usize, 2, 3];
        let pieces: Vec<_> =
            places.map(|at| (layout.pieces()[at], layout.range(at).unwrap())).into();
        let wanted =
            VerifyRequest::Pieces(Box::new(WantedPieces { reader, pieces: pieces.clone() }));
        let Verified::Pieces { found, .. } = look(wanted.clone(), &bytes).unwrap() else {
            panic!("pieces")
        };
        let lens: Vec<usize> = found.unwrap().iter().map(|(_, bytes)| bytes.len()).collect();
        assert_eq!(lens, [400_000, 5, 900_000]);
        let VerifyRequest::Pieces(last) = &wanted else { panic!("pieces") };
        let last = WantedPieces { pieces: last.pieces[2..].to_vec(), ..(**last).clone() };
        let in_chunk = |index: u64| last.is_in(&ChunkHead::plain(index << 20, b""));
        assert_eq!([in_chunk(0), in_chunk(1), in_chunk(2)], [false, true, false]);
        let mut wrong = bytes.clone();
        wrong[1_100_002] ^= 1;
        assert!(matches!(look(wanted, &wrong), Ok(Verified::Pieces { found: Err(_), .. })));
    }

    #[test]
    fn a_manifest_is_read_from_its_chunks() {
        let mut builder = ManifestBuilder::default();
        for file in 0..40_000u32 {
            let piece = Piece::of(&file.to_le_bytes());
            builder.file(format!("{file:06}"), [9; 32], vec![piece]);
        }
        let manifest = builder.finish().unwrap();
        assert_eq!(
            look(VerifyRequest::Manifest, &manifest.encode()),
            Ok(Verified::Manifest(Box::new(manifest)))
        );
        assert!(look(VerifyRequest::Manifest, b"HFMF").is_err());
    }
}
