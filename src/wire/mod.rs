//! Connection code shared by both ends: buffers, the inlet that splits a stream into frames and
//! chunks, detection of slow and silent connections, and socket options.
//!
//! Leader, workers and clients build on it. It knows frames and chunks, not peers or jobs.

mod buffers;
mod inlet;
mod pace;
mod partial_chunks;
mod pulse;
mod receiving;
mod sending;
mod socket;
mod unacked;

pub use buffers::{BUFFER_BYTES, Pool, PoolBuf};
pub use inlet::{ChunkStart, InChunk, Inlet, Step};
pub(crate) use pace::{Pace, Speed};
pub use partial_chunks::{PEER_PARTS_MAX, Part, Parts};
pub use pulse::{
    Dead, FRAME_BYTES_PER_SECOND_MIN, FRAME_WINDOW_MAX, KEEPALIVE_EVERY, Pulse, SILENCE_MAX,
    SILENCE_MIN, Signs, frame_window,
};
pub use receiving::{Receiving, bytes_of};
pub use sending::{SendPhase, Sending};
pub(crate) use socket::{LOOKS_PER_STALL, WRITE_STALL_TIMEOUT, read_some};
pub use socket::{Tuning, check_congestion, is_loopback, tune};
pub(crate) use unacked::{limit_unsent, unacknowledged};
