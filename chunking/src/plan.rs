//! Decides how a blob is cut into chunks: at fixed offsets, so that a chunk's offset is its
//! identity. The sizes are in `limits.rs`.

use crate::chunk::{ChunkError, ChunkHead};
use crate::codec::Codec;
use crate::limits::{BLOB_CHUNKS_MAX, CHUNK_BYTES_MAX, CHUNK_BYTES_MIN};
use thiserror::Error;

/// A size that cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum PlanError {
    /// The chunk size is out of range or no power of two.
    #[error(
        "chunks of {chunk_bytes} bytes are not possible; a power of two from {min} to {max} is"
    )]
    ChunkBytes {
        /// What was asked for.
        chunk_bytes: u32,
        min: u32,
        max: u32,
    },

    /// The blob has too many chunks.
    #[error(
        "a blob of {size} bytes is over the limit of {limit} for chunks of {chunk_bytes} bytes"
    )]
    SizeOver {
        /// The blob's size.
        size: u64,
        /// The largest blob.
        limit: u64,
        /// The chunk size.
        chunk_bytes: u32,
    },
}

/// A blob's size and the size of its chunks, checked against the limits. A blob of no bytes has no
/// chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    size: u64,
    chunk_bytes: u32,
    count: u32,
}

impl ChunkPlan {
    /// Cuts a blob of `size` bytes.
    pub fn new(size: u64, chunk_bytes: u32) -> Result<Self, PlanError> {
        let (min, max) = (CHUNK_BYTES_MIN, CHUNK_BYTES_MAX);
        if !(min..=max).contains(&chunk_bytes) || !chunk_bytes.is_power_of_two() {
            return Err(PlanError::ChunkBytes { chunk_bytes, min, max });
        }
        let limit = u64::from(BLOB_CHUNKS_MAX) * u64::from(chunk_bytes);
        match u32::try_from(size.div_ceil(u64::from(chunk_bytes))) {
            Ok(count) if count <= BLOB_CHUNKS_MAX => Ok(ChunkPlan { size, chunk_bytes, count }),
            Ok(_) | Err(_) => Err(PlanError::SizeOver { size, limit, chunk_bytes }),
        }
    }

    /// Raw bytes of the blob.
    pub const fn size(&self) -> u64 {
        self.size
    }

    /// Raw bytes of every chunk but the last.
    pub const fn chunk_bytes(&self) -> u32 {
        self.chunk_bytes
    }

    /// Chunks in all.
    pub const fn count(&self) -> u32 {
        self.count
    }

    /// Offset of a chunk.
    pub fn offset_of(&self, index: u32) -> u64 {
        u64::from(index) * u64::from(self.chunk_bytes)
    }

    /// Raw bytes of a chunk; 0 behind the end.
    pub fn len_of(&self, index: u32) -> u32 {
        let left = self.size.saturating_sub(self.offset_of(index));
        u32::try_from(left).unwrap_or(u32::MAX).min(self.chunk_bytes)
    }

    /// Checks a chunk that claims to be of this blob and has `sent_len` bytes on the wire; gives
    /// its index.
    pub fn check(&self, head: &ChunkHead, sent_len: u32) -> Result<u32, ChunkError> {
        let offset = head.offset;
        if !offset.is_multiple_of(u64::from(self.chunk_bytes)) {
            return Err(ChunkError::OffsetBetween { offset, chunk_bytes: self.chunk_bytes });
        }
        let index = match u32::try_from(offset / u64::from(self.chunk_bytes)) {
            Ok(index) if index < self.count => index,
            Ok(_) | Err(_) => return Err(ChunkError::OffsetPastEnd { offset, size: self.size }),
        };
        let expected = self.len_of(index);
        if head.raw_len != expected {
            return Err(ChunkError::RawLen { offset, raw_len: head.raw_len, expected });
        }
        let fits = match head.codec {
            Codec::None => sent_len == expected,
            Codec::Gzip | Codec::Brotli | Codec::Zstd => (1..=expected).contains(&sent_len),
        };
        if !fits {
            return Err(ChunkError::SentLen {
                offset,
                sent_len,
                raw_len: expected,
                codec: head.codec,
            });
        }
        Ok(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u32 = 1024 * 1024;

    fn head(offset: u64, raw_len: u32) -> ChunkHead {
        ChunkHead { offset, raw_len, crc_sent: 0, crc_raw: 0, codec: Codec::None }
    }

    #[test]
    fn the_last_chunk_holds_the_rest_and_an_empty_blob_has_none() {
        let plan = ChunkPlan::new(u64::from(MIB) * 3 + 5, MIB).unwrap();
        assert_eq!((plan.count(), plan.len_of(0), plan.len_of(3), plan.len_of(4)), (4, MIB, 5, 0));
        assert_eq!(ChunkPlan::new(0, MIB).unwrap().count(), 0);
        assert_eq!(ChunkPlan::new(u64::from(MIB), MIB).unwrap().count(), 1);
    }

    #[test]
    fn sizes_over_the_limit_are_refused_with_the_limit() {
        let limit = 4 << 40;
        assert_eq!(ChunkPlan::new(limit, MIB).unwrap().count(), BLOB_CHUNKS_MAX);
        for size in [limit + 1, u64::MAX] {
            let over = PlanError::SizeOver { size, limit, chunk_bytes: MIB };
            assert_eq!(ChunkPlan::new(size, MIB), Err(over));
        }
        for chunk_bytes in [0, 1, 4095, 5000, MIB + 1, 2 * MIB, u32::MAX] {
            assert!(
                matches!(ChunkPlan::new(1, chunk_bytes), Err(PlanError::ChunkBytes { .. })),
                "{chunk_bytes}"
            );
        }
    }

    #[test]
    fn a_chunk_has_one_place_and_one_length() {
        let plan = ChunkPlan::new(u64::from(MIB) + 5, MIB).unwrap();
        assert_eq!(plan.check(&head(0, MIB), MIB), Ok(0));
        assert_eq!(plan.check(&head(u64::from(MIB), 5), 5), Ok(1));
        assert!(matches!(
            plan.check(&head(7, MIB), MIB),
            Err(ChunkError::OffsetBetween { offset: 7, .. })
        ));
        for offset in [2 * u64::from(MIB), 1 << 63] {
            assert!(matches!(
                plan.check(&head(offset, 5), 5),
                Err(ChunkError::OffsetPastEnd { .. })
            ));
        }
        assert!(matches!(
            plan.check(&head(0, 5), 5),
            Err(ChunkError::RawLen { expected: MIB, .. })
        ));
        assert!(matches!(
            plan.check(&head(0, MIB), 5),
            Err(ChunkError::SentLen { sent_len: 5, .. })
        ));
    }

    #[test]
    fn co01_a_compressed_chunk_is_never_larger_than_its_raw_bytes() {
        let plan = ChunkPlan::new(10_000, 8192).unwrap();
        let zstd = ChunkHead { codec: Codec::Zstd, ..head(0, 8192) };
        assert_eq!(plan.check(&zstd, 100), Ok(0));
        assert!(matches!(plan.check(&zstd, 8193), Err(ChunkError::SentLen { .. })));
        assert!(matches!(plan.check(&zstd, 0), Err(ChunkError::SentLen { .. })));
    }
}
