//! The content of datasets. Files are cut into pieces by content, so that the common parts of two
//! versions are cut alike. A piece is identified by its BLAKE3, which every receiver checks at a
//! third of the cost of SHA-256. Files and whole datasets are identified by SHA-256. A [`Manifest`]
//! lists which pieces make which files; [packs](pack) carry pieces between peers and store them at
//! the leader.

mod cut;
mod manifest;
pub mod pack;

pub use cut::Cutter;
pub use manifest::{FileEntry, Manifest, ManifestBuilder, ManifestError};

use serde::{Serialize, Serializer};
use sha2::Digest as _;

use crate::digest::{blake3, to_hex};

/// A piece of a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Piece {
    /// The BLAKE3 of its bytes.
    pub blake3: [u8; 32],
    /// How many there are.
    pub len: u32,
}

impl Piece {
    /// Bytes of an entry in a list of pieces.
    pub const ENTRY_BYTES: usize = 36;

    /// The piece that these bytes are.
    pub fn of(bytes: &[u8]) -> Self {
        Piece { blake3: blake3(bytes), len: u32::try_from(bytes.len()).unwrap_or(u32::MAX) }
    }

    /// Whether these bytes are the piece.
    pub fn is(&self, bytes: &[u8]) -> bool {
        *self == Piece::of(bytes)
    }

    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.blake3);
        out.extend_from_slice(&self.len.to_le_bytes());
    }
}

impl std::fmt::Debug for Piece {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", to_hex(&self.blake3), self.len)
    }
}

impl Serialize for Piece {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(&format_args!("{self:?}"))
    }
}

/// Finds out which piece bytes are that come one part after the other.
#[derive(Clone, Default)]
pub struct PieceHasher {
    // It is 2 KiB: not to be carried around.
    hasher: Box<blake3::Hasher>,
    len: u32,
}

impl PieceHasher {
    /// The next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
        self.len = self.len.saturating_add(u32::try_from(bytes.len()).unwrap_or(u32::MAX));
    }

    pub fn finish(self) -> Piece {
        Piece { blake3: self.hasher.finalize().into(), len: self.len }
    }
}

/// SHA-256 of bytes that lie in one piece.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    sha2::Sha256::digest(bytes).into()
}

/// Takes fields off the front of bytes; `None` where they end too early.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes(&mut self, len: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (front, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*front)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn piece(&mut self) -> Option<Piece> {
        Some(Piece { blake3: self.array()?, len: self.u32()? })
    }

    fn left(&self) -> usize {
        self.0.len()
    }
}
