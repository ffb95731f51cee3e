//! How full the relay is.

use super::Relay;

/// How full it is, for status, and for those who look for leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fill {
    /// Blobs that are known.
    pub blobs: usize,
    /// Bytes of them that are here.
    pub bytes: u64,
    /// Bytes that may be here.
    pub bytes_max: u64,
    /// Chunks in memory that wait for someone.
    pub in_memory: usize,
    /// Buffers that are in use.
    pub buffers_in_use: usize,
    /// Buffers in all.
    pub buffers: usize,
    /// Chunks that senders may send and have not.
    pub promised: usize,
    /// Buffers that are kept free for them: those of fast ones alone.
    pub kept_free: usize,
    /// Connections that bring or get a blob.
    pub connections: usize,
    /// Chunks that were handed to connections and are not sent.
    pub chunks_out: u32,
    /// Chunks that passed through while they came, since the start.
    pub passed_through: u64,
    /// Chunks that broke on their way through, since the start.
    pub voided: u64,
    /// Bytes of chunks that were copied on their way, since the start.
    pub bytes_copied: u64,
    /// Chunks that broke off, whose first bytes are kept.
    pub parts: usize,
}

impl Relay {
    pub(in crate::leader) fn fill(&self) -> Fill {
        Fill {
            blobs: self.blobs.len(),
            bytes: self.spool_bytes,
            bytes_max: self.config.spool_bytes_max,
            in_memory: self.in_memory,
            buffers_in_use: self.pool.in_use(),
            buffers: self.pool.buffers_max(),
            promised: self.promised_in_all(),
            kept_free: self.promised,
            connections: self.by_conn.len(),
            chunks_out: self.chunks_out.values().sum(),
            passed_through: self.passed_through,
            voided: self.voided,
            bytes_copied: self.pool.bytes_copied(),
            parts: self.parts.len(),
        }
    }
}
