//! A chunk of a blob on the wire: its 21-byte head and the checks on its bytes.
//!
//! Frame head and chunk head are 64 bytes together, so a payload read behind them starts on a cache
//! line, and a kernel copy never runs at a small odd distance from its source.

use crate::codec::{Codec, CodecError, Inflater};
use crate::frame::{EncodeError, Generation, Head, head_len};
use crate::kind::Kind;
use crate::limits::CHUNK_BYTES_MAX;
use thiserror::Error;
use uuid::Uuid;

/// Bytes of the chunk head.
pub const CHUNK_HEAD_BYTES: usize = CHUNK_HEAD_LEN as usize;
const CHUNK_HEAD_LEN: u32 = 21;

/// Bytes of frame head and chunk head together.
pub const CHUNK_FRAME_HEAD_BYTES: usize = 64;

const _: () = assert!(head_len(Generation::F2, "") + CHUNK_HEAD_BYTES == CHUNK_FRAME_HEAD_BYTES);

/// What is wrong with a chunk. The frame around it is sound, so the stream stays in step: that
/// chunk alone is asked for again.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ChunkError {
    /// The payload has no room for the head.
    #[error("chunk payload of {have} bytes is too short for its head of {}", CHUNK_HEAD_BYTES)]
    Short {
        /// Bytes of the payload.
        have: usize,
    },

    /// The codec byte means nothing.
    #[error(
        "chunk at offset {offset} names codec {code}; codecs are 0 none, 1 gzip, 2 brotli, 3 zstd"
    )]
    Codec {
        /// The chunk's offset.
        offset: u64,
        code: u8,
    },

    /// The offset lies inside a chunk.
    #[error("chunk offset {offset} is not a multiple of the chunk size {chunk_bytes}")]
    OffsetBetween {
        /// The chunk's offset.
        offset: u64,
        /// The transfer's chunk size.
        chunk_bytes: u32,
    },

    /// The offset lies behind the blob.
    #[error("chunk offset {offset} is past the end of the blob, which has {size} bytes")]
    OffsetPastEnd {
        /// The chunk's offset.
        offset: u64,
        /// The blob's size.
        size: u64,
    },

    /// The raw length is not the one of its place.
    #[error("chunk at offset {offset} says it has {raw_len} raw bytes; its place has {expected}")]
    RawLen {
        /// The chunk's offset.
        offset: u64,
        /// What it says.
        raw_len: u32,
        /// What its place has.
        expected: u32,
    },

    /// More or fewer bytes were sent than a chunk of that raw length and codec can have.
    #[error(
        "chunk at offset {offset} came as {sent_len} bytes with codec {codec}; its {raw_len} raw bytes take exactly \
         as many without a codec, and at most as many with one"
    )]
    SentLen {
        /// The chunk's offset.
        offset: u64,
        /// Bytes on the wire.
        sent_len: u32,
        raw_len: u32,
        codec: Codec,
    },

    /// The bytes as sent are not those the sender saw.
    #[error(
        "chunk at offset {offset}: CRC-32 of the sent bytes is {found:08x}, its head says {expected:08x}"
    )]
    CrcSent {
        /// The chunk's offset.
        offset: u64,
        /// What the head says.
        expected: u32,
        /// What the bytes have.
        found: u32,
    },

    /// The bytes that came out of the codec are not those that went in.
    #[error(
        "chunk at offset {offset}: CRC-32 of the raw bytes is {found:08x}, its head says {expected:08x}"
    )]
    CrcRaw {
        /// The chunk's offset.
        offset: u64,
        /// What the head says.
        expected: u32,
        /// What the bytes have.
        found: u32,
    },

    /// The codec could not make sense of the bytes.
    #[error("chunk at offset {offset}: {source}")]
    Inflate {
        /// The chunk's offset.
        offset: u64,
        /// What the codec found.
        source: CodecError,
    },
}

/// The head of a chunk. The transfer's id is the frame's MsgId.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHead {
    /// Offset in the raw blob.
    pub offset: u64,
    pub raw_len: u32,
    /// CRC-32 of the bytes as sent.
    pub crc_sent: u32,
    /// CRC-32 of the raw bytes; equal to `crc_sent` without a codec.
    pub crc_raw: u32,
    /// How the bytes are compressed.
    pub codec: Codec,
}

impl ChunkHead {
    /// The head of a chunk that is sent as it is.
    pub fn plain(offset: u64, raw: &[u8]) -> Self {
        let crc = crc32fast::hash(raw);
        let raw_len = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        ChunkHead { offset, raw_len, crc_sent: crc, crc_raw: crc, codec: Codec::None }
    }

    /// The head of the same chunk when `sent` goes over the wire in its place.
    pub fn compressed(self, codec: Codec, sent: &[u8]) -> Self {
        ChunkHead { crc_sent: crc32fast::hash(sent), codec, ..self }
    }

    /// Reads the head off the front of a Chunk frame's payload; the rest of the payload are the
    /// bytes as sent.
    pub fn decode(payload: &[u8]) -> Result<(Self, &[u8]), ChunkError> {
        let short = ChunkError::Short { have: payload.len() };
        let Some((head, sent)) = payload.split_first_chunk::<CHUNK_HEAD_BYTES>() else {
            return Err(short);
        };
        let [o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3, s0, s1, s2, s3, r0, r1, r2, r3, code] =
            *head;
        let offset = u64::from_le_bytes([o0, o1, o2, o3, o4, o5, o6, o7]);
        let codec = Codec::try_from(code).map_err(|_| ChunkError::Codec { offset, code })?;
        let head = ChunkHead {
            offset,
            raw_len: u32::from_le_bytes([l0, l1, l2, l3]),
            crc_sent: u32::from_le_bytes([s0, s1, s2, s3]),
            crc_raw: u32::from_le_bytes([r0, r1, r2, r3]),
            codec,
        };
        Ok((head, sent))
    }

    /// The head's bytes.
    pub fn encode(&self) -> [u8; CHUNK_HEAD_BYTES] {
        let [o0, o1, o2, o3, o4, o5, o6, o7] = self.offset.to_le_bytes();
        let [l0, l1, l2, l3] = self.raw_len.to_le_bytes();
        let [s0, s1, s2, s3] = self.crc_sent.to_le_bytes();
        let [r0, r1, r2, r3] = self.crc_raw.to_le_bytes();
        let code = self.codec.code();
        [o0, o1, o2, o3, o4, o5, o6, o7, l0, l1, l2, l3, s0, s1, s2, s3, r0, r1, r2, r3, code]
    }

    /// Frame head and chunk head of a chunk with `sent_len` bytes, which go right behind them in
    /// the same write.
    pub fn frame_head(
        &self,
        transfer: Uuid,
        sent_len: u32,
    ) -> Result<[u8; CHUNK_FRAME_HEAD_BYTES], EncodeError> {
        let payload_len = sent_len.saturating_add(CHUNK_HEAD_LEN);
        let mut out = [0; CHUNK_FRAME_HEAD_BYTES];
        Head { msg_id: transfer, payload_len, ..Head::new(Kind::Chunk) }
            .encode(Generation::F2, &mut out)?;
        if let Some(tail) = out.last_chunk_mut() {
            *tail = self.encode();
        }
        Ok(out)
    }

    /// Checks the bytes as sent, which may have come in several pieces: `crc` is theirs. All that a
    /// leader that passes the chunk on has to do.
    pub fn check_sent(&self, crc: u32) -> Result<(), ChunkError> {
        if crc != self.crc_sent {
            return Err(ChunkError::CrcSent {
                offset: self.offset,
                expected: self.crc_sent,
                found: crc,
            });
        }
        Ok(())
    }

    /// The raw bytes of a chunk whose place was checked by
    /// [`ChunkPlan::check`](crate::ChunkPlan::check): `sent` itself where there is no codec, else
    /// what it inflates to, in `scratch`. Both checksums are checked.
    pub fn raw<'a>(
        &self,
        sent: &'a [u8],
        inflater: &mut Inflater,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ChunkError> {
        self.raw_with_crc(sent, crc32fast::hash(sent), inflater, scratch)
    }

    /// [`raw`](Self::raw) for who has made the checksum of `sent` while the bytes came.
    pub fn raw_with_crc<'a>(
        &self,
        sent: &'a [u8],
        crc: u32,
        inflater: &mut Inflater,
        scratch: &'a mut Vec<u8>,
    ) -> Result<&'a [u8], ChunkError> {
        let offset = self.offset;
        self.check_sent(crc)?;
        if self.codec == Codec::None {
            self.check_raw(crc)?;
            return Ok(sent);
        }
        if self.raw_len > CHUNK_BYTES_MAX {
            return Err(ChunkError::RawLen {
                offset,
                raw_len: self.raw_len,
                expected: CHUNK_BYTES_MAX,
            });
        }
        scratch.resize(usize::try_from(self.raw_len).unwrap_or(usize::MAX), 0);
        inflater
            .inflate(self.codec, sent, scratch)
            .map_err(|source| ChunkError::Inflate { offset, source })?;
        self.check_raw(crc32fast::hash(scratch))?;
        Ok(scratch)
    }

    fn check_raw(&self, crc: u32) -> Result<(), ChunkError> {
        if crc != self.crc_raw {
            return Err(ChunkError::CrcRaw {
                offset: self.offset,
                expected: self.crc_raw,
                found: crc,
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Compressor;
    use crate::frame::{Decoder, InboundLimits, Step};
    use uuid::uuid;

    const TRANSFER: Uuid = uuid!("00112233-4455-6677-8899-aabbccddeeff");

    fn opened(head: &ChunkHead, sent: &[u8]) -> Result<Vec<u8>, ChunkError> {
        head.raw(sent, &mut Inflater::new(), &mut Vec::new()).map(<[u8]>::to_vec)
    }

    #[test]
    fn frame_head_and_chunk_head_are_64_bytes_and_read_back() {
        let head = ChunkHead::plain(3 << 20, b"chunk");
        let bytes = head.frame_head(TRANSFER, 5).unwrap();
        let mut rest = bytes.as_slice();
        let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
        let Ok(Step::Head(frame)) = decoder.poll(&mut rest) else { panic!("no head") };
        assert_eq!(
            (frame.kind(), frame.msg_id, frame.payload_len),
            (Ok(Kind::Chunk), TRANSFER, 26)
        );
        assert_eq!(ChunkHead::decode(rest), Ok((head, &[][..])));
    }

    #[test]
    fn every_single_bit_that_flips_is_found() {
        let raw = b"some bytes that travel as they are";
        let head = ChunkHead::plain(0, raw);
        assert_eq!(opened(&head, raw).unwrap(), raw);
        for bit in 0..raw.len() * 8 {
            let mut flipped = raw.to_vec();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(
                matches!(opened(&head, &flipped), Err(ChunkError::CrcSent { .. })),
                "bit {bit}"
            );
        }
    }

    #[test]
    fn a_codec_that_gives_other_bytes_is_found_by_the_raw_checksum() {
        let raw = b"abc ".repeat(500);
        for codec in [Codec::Gzip, Codec::Brotli, Codec::Zstd] {
            let mut sent = Vec::new();
            assert!(Compressor::new(codec).unwrap().compress(&raw, &mut sent));
            let head = ChunkHead::plain(0, &raw).compressed(codec, &sent);
            assert_eq!(opened(&head, &sent).unwrap(), raw);
            let other = ChunkHead { crc_raw: head.crc_raw ^ 1, ..head };
            assert!(matches!(opened(&other, &sent), Err(ChunkError::CrcRaw { .. })), "{codec}");
            let longer = ChunkHead { raw_len: head.raw_len + 1, ..head };
            assert!(matches!(opened(&longer, &sent), Err(ChunkError::Inflate { .. })), "{codec}");
            let shorter = ChunkHead { raw_len: head.raw_len - 1, ..head };
            assert!(matches!(opened(&shorter, &sent), Err(ChunkError::Inflate { .. })), "{codec}");
            let huge = ChunkHead { raw_len: u32::MAX, ..head };
            assert!(matches!(opened(&huge, &sent), Err(ChunkError::RawLen { .. })), "{codec}");
        }
        let head = ChunkHead { crc_raw: 7, ..ChunkHead::plain(0, &raw) };
        assert!(matches!(opened(&head, &raw), Err(ChunkError::CrcRaw { expected: 7, .. })));
    }

    #[test]
    fn a_short_payload_and_an_unknown_codec_are_told_apart() {
        assert_eq!(ChunkHead::decode(&[0; 20]), Err(ChunkError::Short { have: 20 }));
        let mut bytes = ChunkHead::plain(9, b"").encode();
        bytes[20] = 4;
        assert_eq!(ChunkHead::decode(&bytes), Err(ChunkError::Codec { offset: 9, code: 4 }));
    }
}
