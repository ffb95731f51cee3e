//! Frame errors. Each variant is a protocol violation by the peer. None can be resynchronised
//! (W08), so the connection ends and the text goes to the log.

use super::Generation;
use thiserror::Error;

/// A peer sent bytes that are not a frame, or a frame that is over a limit.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// The length field is zero.
    #[error("frame length is 0; the smallest frame body has 5 bytes")]
    LengthZero,

    /// The length field is negative as the Int32 it is.
    #[error("frame length is {len}, below zero; the smallest frame body has 5 bytes")]
    LengthNegative {
        /// The length as it came.
        len: i32,
    },

    /// The body is larger than this connection takes for this type of frame.
    #[error("frame body of {len} bytes is over the limit of {limit}{}", type_of(*.code))]
    LengthOver {
        /// The length as it came.
        len: u32,
        /// What is taken.
        limit: u32,
        /// The frame's type, where the limit depends on it.
        code: Option<u8>,
    },

    /// The first frame of a connection is larger than a Hello can be: most often the start of
    /// another protocol.
    #[error(
        "the first frame says it has {len} bytes, over the limit of {limit} for a Hello; the peer does not speak this \
         protocol, or something else listens for it on another port"
    )]
    FirstLengthOver {
        /// The length as it came.
        len: u32,
        /// What is taken.
        limit: u32,
    },

    /// The body cannot hold even the fixed fields of its generation.
    #[error(
        "frame body of {len} bytes is too short for a {generation} frame, which has at least {min}"
    )]
    LengthUnder {
        /// The length as it came.
        len: u32,
        /// The smallest body of the generation.
        min: u32,
        /// The connection's generation.
        generation: Generation,
    },

    /// A connection's first frame has the layout of no generation (W18).
    #[error(
        "the first frame ({len} bytes, type {code}) fits none of the layouts F0, F1, F2; the peer does not speak \
         this protocol, or something else listens for it on another port"
    )]
    NoGeneration {
        /// The length as it came.
        len: u32,
        /// The type byte.
        code: u8,
    },

    /// The subject would end behind the body.
    #[error(
        "subject of {len} bytes is longer than the {room} bytes that the frame body has for it"
    )]
    SubjectOverrun {
        /// The subject's length field.
        len: u32,
        /// What the body has room for.
        room: u32,
    },

    /// The payload would end behind the body.
    #[error(
        "payload of {len} bytes is longer than the {room} bytes that the frame body has for it"
    )]
    PayloadOverrun {
        /// The payload's length field, unsigned; classic writers see values over 2,147,483,647 as
        /// negative.
        len: u32,
        /// What the body has room for.
        room: u32,
    },

    /// The subject is not UTF-8.
    #[error("subject is not UTF-8: byte {at} of {len} starts no valid character")]
    SubjectNotUtf8 {
        /// Offset of the first bad byte in the subject.
        at: usize,
        /// The subject's length.
        len: usize,
    },

    /// Behind the payload of a frame stands more or less than its checksum: one of its lengths, or
    /// its type, is not what was sent.
    #[error(
        "a frame was damaged on the way: as {} it has {found} bytes behind its payload, not {expected}",
        named(*.code)
    )]
    TrailerLength {
        /// The type byte as it came.
        code: u8,
        /// Bytes behind the payload.
        found: u32,
        /// How many there have to be: those of a checksum, or none.
        expected: u32,
    },

    /// The frame is not the one that was sent.
    #[error(
        "a frame was damaged on the way: as {} it has the CRC-32 {found:08x}, and {expected:08x} was sent with it",
        named(*.code)
    )]
    Damaged {
        /// The type byte as it came.
        code: u8,
        /// What the body has.
        found: u32,
        /// What stands behind the payload.
        expected: u32,
    },

    /// The connection ended inside a frame (W08).
    #[error(
        "the connection ended inside a frame, with at least {missing} bytes of it still to come"
    )]
    Truncated {
        /// Bytes that are known to be missing.
        missing: usize,
    },
}

impl FrameError {
    /// Whether it is damage that a checksum has shown, rather than a peer that does not know the
    /// protocol.
    pub const fn is_damage(&self) -> bool {
        matches!(self, FrameError::TrailerLength { .. } | FrameError::Damaged { .. })
    }
}

fn type_of(code: Option<u8>) -> String {
    code.map_or_else(String::new, |code| format!(" for {}", named(code)))
}

fn named(code: u8) -> String {
    crate::Kind::try_from(code).map_or_else(|_| format!("type {code}"), |kind| kind.to_string())
}
