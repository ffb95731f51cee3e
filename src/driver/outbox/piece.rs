//! The items of an outbox: parts of frames in send order, in memory or on disk, and chunks being
//! spliced.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;

use crate::conn::{WireChunk, WireFrame};

/// What a piece takes beside its bytes.
pub(super) const PIECE_BYTES: usize = 128;

/// Bytes that go out, a frame or a part of one.
pub(super) struct Piece {
    /// What is in memory of it.
    pub(super) bytes: Bytes,
    pub(super) parked: Parked,
    pub(super) cargo: Cargo,
    pub(super) then: Continuation,
    /// Whether its bytes are not a buffer's of the pool any more.
    pub(super) is_copy: bool,
}

/// Bytes that are counted as long as they are here.
pub(super) struct Copied {
    bytes: Vec<u8>,
    all: Arc<AtomicUsize>,
}

impl Copied {
    pub(super) fn of(bytes: &[u8], all: &Arc<AtomicUsize>) -> Bytes {
        all.fetch_add(bytes.len(), Ordering::Relaxed);
        Bytes::from_owner(Copied { bytes: bytes.to_vec(), all: all.clone() })
    }
}

impl AsRef<[u8]> for Copied {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Copied {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

/// Whether a piece is on the disk.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Parked {
    No,
    /// It is being written to there, all of these bytes, and is still in memory.
    Going {
        at: u64,
        len: usize,
    },
    /// What follows is there, and not in memory.
    There {
        at: u64,
        len: usize,
    },
}

impl Piece {
    pub(super) fn new(bytes: Bytes, cargo: Cargo, then: Continuation) -> Self {
        Piece { bytes, parked: Parked::No, cargo, then, is_copy: false }
    }

    /// Where what follows what is in memory lies on the disk, with how much that is.
    pub(super) fn follows(&self) -> Option<(u64, usize)> {
        match self.parked {
            Parked::There { at, len } if len > 0 => Some((at, len)),
            Parked::No | Parked::Going { .. } | Parked::There { .. } => None,
        }
    }

    /// What it takes to keep it.
    pub(super) fn cost(&self) -> usize {
        PIECE_BYTES + self.bytes.len()
    }
}

/// What goes in the order in which it was handed over.
pub(super) enum Bulk {
    Chunk(WireChunk),
    Frame(WireFrame),
}

/// What a frame is to whoever has it sent.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::driver) enum Cargo {
    /// An answer, or news.
    Answer,
    /// A payload that its sender waits for to be out.
    Posted,
    /// A chunk, or the last piece of one.
    Chunk,
    /// A piece of a chunk that others follow.
    Piece,
}

impl Cargo {
    pub(super) fn is_of_chunk(self) -> bool {
        match self {
            Cargo::Answer | Cargo::Posted => false,
            Cargo::Chunk | Cargo::Piece => true,
        }
    }
}

/// What follows when a piece is out.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Continuation {
    /// More of its frame.
    More,
    /// Its frame is out.
    Ends,
    /// Whoever passes a chunk through writes its bytes here.
    Place,
}
