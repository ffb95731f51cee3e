//! Packs: pieces, one after the other, and a list of them at the end. A pack is a blob; its list is
//! also said before it is opened ([`Pack`](crate::message::Pack)), so that a receiver knows which
//! of its chunks it needs.
//!
//! ```text
//! pieces, one after the other
//! for each piece:  BLAKE3 (32 bytes), length u32
//! "HFPK", version u8, 3 zeros, pieces u32, CRC-32 of the entries u32
//! ```

use std::ops::Range;

use thiserror::Error;

use super::{Fields, Piece};
use crate::limits::{PACK_BYTES_MAX, PACK_PIECES_MAX, PIECE_BYTES_MAX};

const MARKER: [u8; 4] = *b"HFPK";
const VERSION: u8 = 2;

/// Bytes behind the entries.
pub const FOOTER_BYTES: usize = 16;

/// What is wrong with a pack.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PackError {
    /// The end is not that of a pack.
    #[error("the blob does not end as a pack does")]
    Footer,
    /// It is one of another version.
    #[error("the pack has version {found}; this heft knows {VERSION}: put its datasets again")]
    Version { found: u8 },
    /// There are too many pieces, or bytes.
    #[error(
        "a pack of {pieces} pieces and {bytes} bytes; at most {PACK_PIECES_MAX} and {PACK_BYTES_MAX} are taken"
    )]
    Large {
        /// How many pieces.
        pieces: usize,
        /// How many bytes.
        bytes: u64,
    },
    /// A piece is empty or too large.
    #[error("piece {place} of the pack has {len} bytes; 1 to {PIECE_BYTES_MAX} are taken")]
    Piece { place: usize, len: u32 },
    /// The bytes are not what the list says.
    #[error("piece {place} of the pack is not what it should be: its BLAKE3 is another")]
    Wrong { place: usize },
}

/// What is in a pack, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    pieces: Vec<Piece>,
    /// Where each begins, and where the last ends.
    offsets: Vec<u64>,
}

impl Layout {
    /// Of these pieces.
    pub fn new(pieces: Vec<Piece>) -> Result<Self, PackError> {
        let bytes = pieces.iter().map(|piece| u64::from(piece.len)).sum();
        if pieces.len() > PACK_PIECES_MAX || bytes > PACK_BYTES_MAX {
            return Err(PackError::Large { pieces: pieces.len(), bytes });
        }
        if let Some((place, piece)) =
            pieces.iter().enumerate().find(|(_, piece)| !(1..=PIECE_BYTES_MAX).contains(&piece.len))
        {
            return Err(PackError::Piece { place, len: piece.len });
        }
        let ends = pieces.iter().scan(0u64, |end, piece| {
            *end += u64::from(piece.len);
            Some(*end)
        });
        let offsets = std::iter::once(0).chain(ends).collect();
        Ok(Layout { pieces, offsets })
    }

    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Where a piece lies in the pack.
    pub fn range(&self, place: usize) -> Option<Range<u64>> {
        Some(*self.offsets.get(place)?..*self.offsets.get(place + 1)?)
    }

    /// Bytes of the pieces.
    pub fn data_bytes(&self) -> u64 {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Bytes of the whole pack.
    pub fn size(&self) -> u64 {
        self.data_bytes() + (self.pieces.len() * Piece::ENTRY_BYTES + FOOTER_BYTES) as u64
    }

    /// What stands behind the pieces.
    pub fn tail(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.pieces.len() * Piece::ENTRY_BYTES + FOOTER_BYTES);
        self.pieces.iter().for_each(|piece| piece.put(&mut out));
        let crc = crc32fast::hash(&out);
        out.extend_from_slice(&MARKER);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        out.extend_from_slice(&u32::try_from(self.pieces.len()).unwrap_or(u32::MAX).to_le_bytes());
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// How many bytes at the end of a pack are its list, by its last [`FOOTER_BYTES`].
    pub fn tail_bytes(footer: &[u8]) -> Result<usize, PackError> {
        let mut fields = Fields(footer);
        let front: Option<([u8; 4], [u8; 4])> = fields.array().zip(fields.array());
        let count = fields.u32().map(|count| count as usize);
        match (front, count) {
            (Some((MARKER, [VERSION, 0, 0, 0])), Some(count)) if count <= PACK_PIECES_MAX => {
                Ok(count * Piece::ENTRY_BYTES + FOOTER_BYTES)
            }
            (Some((MARKER, [found, 0, 0, 0])), Some(_)) if found != VERSION => {
                Err(PackError::Version { found })
            }
            _ => Err(PackError::Footer),
        }
    }

    /// Reads what stands behind the pieces of a pack of this size.
    pub fn from_tail(tail: &[u8], size: u64) -> Result<Self, PackError> {
        let entries = tail.len().checked_sub(FOOTER_BYTES).ok_or(PackError::Footer)?;
        let (entries, footer) = tail.split_at_checked(entries).ok_or(PackError::Footer)?;
        let crc = footer.last_chunk::<4>().map(|crc| u32::from_le_bytes(*crc));
        if Self::tail_bytes(footer)? != tail.len() || crc != Some(crc32fast::hash(entries)) {
            return Err(PackError::Footer);
        }
        let mut fields = Fields(entries);
        let pieces = std::iter::from_fn(|| fields.piece()).collect();
        Layout::new(pieces).and_then(|layout| {
            if layout.size() == size { Ok(layout) } else { Err(PackError::Footer) }
        })
    }

    /// The places of the pieces that lie, at least in part, in this range of the pack.
    pub fn pieces_in(&self, range: Range<u64>) -> Range<usize> {
        let first = self.offsets.partition_point(|offset| *offset <= range.start).saturating_sub(1);
        let last =
            self.offsets.partition_point(|offset| *offset < range.end).min(self.pieces.len());
        first.min(last)..last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_survives_its_tail_and_knows_its_places() {
        let layout = Layout::new(
            [&b"aaa"[..], b"bb", b"cccc"].iter().map(|bytes| Piece::of(bytes)).collect(),
        )
        .unwrap();
        let tail = layout.tail();
        assert_eq!(layout.size(), 9 + tail.len() as u64);
        assert_eq!(Layout::tail_bytes(tail.last_chunk::<FOOTER_BYTES>().unwrap()), Ok(tail.len()));
        assert_eq!(Layout::from_tail(&tail, layout.size()), Ok(layout.clone()));
        assert_eq!(Layout::from_tail(&tail, layout.size() + 1), Err(PackError::Footer));
        assert_eq!((layout.range(1), layout.range(3)), (Some(3..5), None));
        assert_eq!(layout.pieces_in(0..1), 0..1);
        assert_eq!(layout.pieces_in(2..4), 0..2);
        assert_eq!(layout.pieces_in(3..9), 1..3);
        assert_eq!(layout.pieces_in(9..100), 3..3);
        for at in 0..tail.len() {
            let mut bytes = tail.clone();
            bytes[at] ^= 0x10;
            assert!(Layout::from_tail(&bytes, layout.size()).is_err(), "changed at {at}");
        }
    }

    #[test]
    fn what_is_too_large_or_empty_is_refused() {
        let piece = |len| Piece { blake3: [0; 32], len };
        assert_eq!(Layout::new(vec![piece(0)]), Err(PackError::Piece { place: 0, len: 0 }));
        assert!(matches!(
            Layout::new(vec![piece(1 << 20); 65]),
            Err(PackError::Large { pieces: 65, .. })
        ));
        assert!(Layout::new(vec![piece(1 << 20); 64]).is_ok());
    }
}
