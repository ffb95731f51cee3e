//! The checksum that ends a frame between heft peers (feature `checksums`): CRC-32 of the preceding
//! body, in 4 bytes after the payload.
//!
//! It detects a flipped bit anywhere in a frame, including its lengths: every frame except Chunk
//! has exactly 4 bytes after its payload. Chunk has checksums of its own and nothing after its
//! payload.

use super::FrameError;
use crate::kind::Kind;

/// Bytes of the checksum behind a payload. They count in the frame's length, not in its payload's.
pub const TRAILER_BYTES: u32 = 4;

/// What stands behind the payloads of one connection's inbound frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trailers {
    /// Whatever there is means nothing and is skipped (C04): the peer is a classic one, as far as
    /// is known.
    #[default]
    Skipped,
    /// We dialled and announced `checksums`: a Welcome with a checksum says that all that follows
    /// has one.
    Offered,
    /// The peer announced `checksums`. What it sent before it read our Welcome has none; a frame of
    /// type Welcome, with a checksum, says where that ends.
    Announced,
    /// The leader's Welcome had none, so nothing may stand there.
    Absent,
    /// Every frame but Chunk ends with one.
    Required,
}

impl Trailers {
    /// Whether the frame ends with a checksum, judged by what stands behind its payload.
    pub(super) fn has_sum(self, code: u8, trailing: u32) -> Result<bool, FrameError> {
        let is = |kind: Kind| code == kind.code();
        let wanted = match self {
            Trailers::Skipped => return Ok(false),
            Trailers::Offered if !is(Kind::Welcome) => return Ok(false),
            Trailers::Offered if trailing == TRAILER_BYTES => TRAILER_BYTES,
            Trailers::Announced if is(Kind::Welcome) => TRAILER_BYTES,
            Trailers::Required if !is(Kind::Chunk) => TRAILER_BYTES,
            Trailers::Offered | Trailers::Announced | Trailers::Required | Trailers::Absent => 0,
        };
        if trailing == wanted {
            Ok(wanted == TRAILER_BYTES)
        } else {
            Err(FrameError::TrailerLength { code, found: trailing, expected: wanted })
        }
    }

    /// What stands behind the frames that follow this one.
    pub(super) fn after(self, code: u8, has_sum: bool) -> Trailers {
        match self {
            Trailers::Offered | Trailers::Announced if code == Kind::Welcome.code() && has_sum => {
                Trailers::Required
            }
            Trailers::Offered if code == Kind::Welcome.code() => Trailers::Absent,
            Trailers::Skipped
            | Trailers::Offered
            | Trailers::Announced
            | Trailers::Absent
            | Trailers::Required => self,
        }
    }

    /// What a body may have beyond the limit: the checksum is not a content.
    pub(super) const fn beyond_limit(self) -> u32 {
        match self {
            Trailers::Required => TRAILER_BYTES,
            Trailers::Skipped | Trailers::Offered | Trailers::Announced | Trailers::Absent => 0,
        }
    }
}

/// CRC-32 of a body up to its trailer: of `head`, which is all before the payload but the length
/// field, and of a payload whose checksum is known, so that its bytes are not read again.
pub(super) fn body_crc(head: &[u8], payload_len: u32, payload_crc: u32) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head);
    crc.combine(&crc32fast::Hasher::new_with_initial_len(payload_crc, payload_len.into()));
    crc.finalize()
}
