//! A worker's or client's end of a connection to a leader: dialling, reading frames, writing frames.
//!
//! Portable (tokio). It knows frames and nothing of jobs; workers, clients and the command line stand on it. The leader's
//! side of connections is `conn` and `driver`.

mod address;
mod buffers;
mod inlet;
mod link;
mod socket;
mod unacked;

pub use address::{is_address, redirect_in};
pub use buffers::{BUFFER_BYTES, Pool, PoolBuf};
pub use inlet::{ChunkStart, InChunk, Inlet, Step};
pub(crate) use link::read_some;
pub use link::{InFrame, Item, LinkError, LinkReader, LinkWriter, OutFrame, connect};
pub use socket::{Tuning, is_loopback, tune};
pub(crate) use unacked::unacknowledged;

use chunking::message::Features;

use crate::model::Announcement;

/// The version of the protocol that this build announces.
pub const PROTOCOL_VERSION: u32 = 1;

/// How heft calls itself to others.
pub const SOFTWARE: &str = concat!("heft ", env!("CARGO_PKG_VERSION"));

/// What a peer of this build announces in its Hello.
pub fn announcement(features: Features, name: Option<String>) -> Announcement {
    let features = features.names().map(str::to_owned).collect();
    Announcement { version: PROTOCOL_VERSION, features, name }
}
