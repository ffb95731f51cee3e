//! What tests of transfers make blobs and their messages of.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

use chunking::digest::BlobHasher;
use chunking::message::{Grant, Reason};
use chunking::{ChunkHead, ChunkRange, Digest, DigestKind, Ranges};

/// Bytes of a chunk.
pub const MIB: usize = 1024 * 1024;

/// Bytes that do not compress.
pub fn noise(bytes: usize) -> Vec<u8> {
    crate::noise::noise(bytes, 1)
}

/// Runs of chunks, by first and count.
pub fn ranges(list: &[(u32, u32)]) -> Ranges {
    let list: Vec<ChunkRange> =
        list.iter().map(|&(first, count)| ChunkRange { first, count }).collect();
    list.try_into().unwrap()
}

/// Room for chunks.
pub fn grant(window: u32, held: &[(u32, u32)]) -> Grant {
    Grant {
        window,
        reason: Reason::NONE,
        text: "".into(),
        held: ranges(held),
        part: Default::default(),
    }
}

/// What the content hashes to.
pub fn digest(content: &[u8], kind: DigestKind) -> Digest {
    let mut hasher = BlobHasher::new(kind);
    content.chunks(MIB).for_each(|chunk| hasher.update(chunk, ChunkHead::plain(0, chunk).crc_raw));
    hasher.finish()
}
