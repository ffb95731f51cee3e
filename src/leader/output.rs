//! The leader's configuration, and its outputs to the driver.

use std::time::Duration;

use bytes::Bytes;

use super::relay::RelayConfig;
#[cfg(doc)]
use super::{Arrival, ChunkPlace, Leader};
use crate::conn::{Want, WireChunk, WireFrame};
use crate::core::Config;
use crate::core::ids::ConnId;
use crate::store::blobs::DiskOp;
use crate::store::journal::LogOp;
use crate::wire::{KEEPALIVE_EVERY, SILENCE_MAX};

/// How a leader behaves.
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    /// The broker's part.
    pub broker: Config,
    /// Bytes of jobs that have not ended, held in memory, before jobs are refused.
    pub payload_bytes_max: u64,
    /// Bytes of results that are held in memory before the oldest is forgotten.
    pub result_bytes_max: u64,
    /// Blobs on their way through.
    pub relay: RelayConfig,
    /// How long files of blobs that nothing refers to are left alone.
    pub blob_grace: Duration,
    /// Time between heartbeats of a worker, and between keepalives of other peers.
    pub heartbeat: Duration,
    /// A heft peer that has received no byte for this long treats the connection as dead; see
    /// [`Leader::silence`] for the leader.
    pub silence: Duration,
    /// How people reach it, for texts.
    pub address: String,
    /// The driver's name, for status.
    pub driver: &'static str,
}

impl Default for LeaderConfig {
    fn default() -> Self {
        LeaderConfig {
            broker: Config::default(),
            payload_bytes_max: 1 << 30,
            result_bytes_max: 1 << 30,
            relay: RelayConfig::default(),
            blob_grace: Duration::from_secs(600),
            heartbeat: KEEPALIVE_EVERY,
            silence: SILENCE_MAX,
            address: "HOST:PORT".to_owned(),
            driver: "portable",
        }
    }
}

/// Something for the driver to do.
#[derive(Debug)]
pub enum Output {
    /// Send a frame.
    Send { conn: ConnId, frame: WireFrame },
    /// Send a frame, behind the chunks that were handed over before it.
    SendBehind { conn: ConnId, frame: WireFrame },
    /// Send a frame, a moment later, with the next one for the same peer if there is one: it is
    /// news that nobody waits for.
    SendLazily { conn: ConnId, frame: WireFrame },
    /// Send a frame with a payload; then [`Leader::posted`].
    Posted { conn: ConnId, frame: WireFrame },
    /// Send a chunk; then [`Leader::chunks_sent`].
    Chunk { conn: ConnId, chunk: WireChunk },
    /// Send the head of a chunk whose bytes follow as they come (see
    /// [`ChunkPlace::splice_to`]); then [`Leader::chunks_sent`].
    Splice { conn: ConnId, head: Bytes },
    /// A connection is slow, and others need the buffers that wait for it: it releases them. Then
    /// [`Leader::line_lags`].
    LetGo { conn: ConnId },
    /// Bytes that a line asked for ([`Leader::chunk_wanted`]); none if they cannot be had.
    Supply {
        conn: ConnId,
        /// What it asked for.
        want: Want,
        /// The bytes, or the first of them.
        bytes: Bytes,
    },
    /// A connection whose chunk had to wait may be read again ([`Arrival::Waits`]).
    Turn { conn: ConnId },
    /// Do something with a spool file; then [`Leader::disk_done`].
    Disk(DiskOp),
    /// Do something with the log; then [`Leader::log_done`].
    Log(LogOp),
    /// End a connection once what was sent before has gone.
    Close { conn: ConnId },
}
