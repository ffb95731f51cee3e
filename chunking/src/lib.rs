//! heft's wire format: bytes to frames, frames to messages, blobs to chunks, and back.
//!
//! The crate is pure. It owns no socket, file, clock, thread or random number; it takes the bytes
//! that have come and says what they mean, or writes heads into a buffer the caller brought.
//! Payload bytes are borrowed where they lie and never copied, so the leader can forward a 4 MiB
//! body without gathering it.
//!
//! Every length from the peer is checked before anything is allocated for it, and everything that
//! can be wrong has an error of its own that carries the value and the limit. `docs/protocol.md`
//! describes the same layouts with byte diagrams; `tests/vectors/frames.json` holds them as bytes.

#![forbid(unsafe_code)]

pub mod bitmap;
pub mod chunk;
pub mod codec;
pub mod dataset;
pub mod digest;
pub mod frame;
pub mod kind;
pub mod limits;
pub mod message;
mod pages;
pub mod plan;
pub mod sample;

pub use bitmap::{Bitmap, ChunkRange, Ranges};
pub use chunk::{ChunkError, ChunkHead};
pub use codec::{Codec, CodecError, Compressor, Inflater};
pub use digest::{Digest, DigestKind};
pub use frame::{Decoder, EncodeError, Frame, FrameError, Generation, Head, InboundLimits, Step};
pub use kind::{Kind, UnknownKind};
pub use message::{Message, MessageError};
pub use plan::{ChunkPlan, PlanError};
