//! The envelope: three generations of one length-prefixed frame (W01-W03).
//! `decode.rs` detects which generation a peer speaks.
//!
//! The [`Decoder`] is fed whatever bytes have come and never owns any; [`Head::encode`] writes a
//! head into the caller's buffer. Neither touches payload bytes. Connections call both, one decoder
//! for each connection.

mod decode;
mod encode;
mod error;
mod trailer;

pub use decode::{Decoder, Frame, InboundLimits, Step};
pub use encode::{EncodeError, head_len};
pub use error::FrameError;
pub use trailer::{TRAILER_BYTES, Trailers};

use crate::kind::{Kind, UnknownKind};
use serde::Serialize;
use std::fmt;
use uuid::Uuid;

/// Bytes of the length field that opens every frame.
pub const LENGTH_BYTES: usize = 4;

/// Which of the three layouts a connection speaks. It is found on the first frame (W18) and holds
/// for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub enum Generation {
    /// `type, payload length, payload` (W01): no ids, no subject.
    F0,
    /// F0 with message and correlation id (W02).
    F1,
    /// F1 with a subject (W03): the one all current peers speak.
    F2,
}

impl Generation {
    /// The smallest body: everything but subject and payload.
    pub const fn body_bytes_min(self) -> u32 {
        match self {
            Generation::F0 => 5,
            Generation::F1 => 37,
            Generation::F2 => 39,
        }
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Generation::F0 => "F0",
            Generation::F1 => "F1",
            Generation::F2 => "F2",
        })
    }
}

/// Everything of a frame but its payload.
///
/// Generations without ids or subject leave them nil and empty when read, and drop them when
/// written: answering in kind means that such a peer gets what its layout can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The type byte as it came. [`Head::kind`] looks it up.
    pub code: u8,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    /// Subject; empty if there is none.
    pub subject: &'a str,
    /// Payload bytes that follow the head.
    pub payload_len: u32,
}

impl<'a> Head<'a> {
    /// A head of `kind` with nil ids, no subject and no payload, to be filled in by struct update.
    pub const fn new(kind: Kind) -> Self {
        Head {
            code: kind.code(),
            msg_id: Uuid::nil(),
            corr_id: Uuid::nil(),
            subject: "",
            payload_len: 0,
        }
    }

    /// What the frame is.
    pub fn kind(&self) -> Result<Kind, UnknownKind> {
        Kind::try_from(self.code)
    }
}
