//! Reports the relay's fill level, and refuses blobs beyond what may be known at a time.

use super::Relay;
use super::blob::{Blob, BlobId};
use crate::answers::Spool;

/// Blobs that are known at a time, of all jobs, results and datasets.
const BLOBS_MAX: usize = 262_144;

/// Bytes of their names.
const BLOB_NAMES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How full it is, for status, and for those who look for leaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RelayStats {
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
    /// Chunks that were spliced as they arrived, since the start.
    pub spliced: u64,
    /// Chunks that broke while they were spliced, since the start.
    pub voided: u64,
    /// Bytes of chunks that were copied on their way, since the start.
    pub bytes_copied: u64,
    /// Chunks that broke off, whose first bytes are kept.
    pub parts: usize,
}

impl RelayStats {
    pub(in crate::leader) fn describe(&self) -> Spool {
        Spool {
            spool_bytes: self.bytes,
            spool_bytes_max: self.bytes_max,
            blobs: self.blobs as u64,
            buffers: self.buffers as u64,
            buffers_in_use: self.buffers_in_use as u64,
            buffers_promised: self.promised as u64,
            chunks_passed_through: self.spliced,
            chunks_voided: self.voided,
            chunk_bytes_copied: self.bytes_copied,
        }
    }
}

impl Relay {
    pub(super) fn insert(&mut self, id: BlobId, blob: Blob) {
        self.names_bytes += blob.open.name.as_str().len();
        if let Some(before) = self.blobs.insert(id, blob) {
            self.names_bytes -= before.open.name.as_str().len();
        }
    }

    /// Why `more` blobs with `names_bytes` of names exceed a limit, if they do: what is known of a
    /// blob is in memory, however little of it has arrived. Those that are to go do not count.
    pub(in crate::leader) fn too_many(
        &self,
        more: usize,
        names_bytes: usize,
        to_go: KnownBlobs,
    ) -> Option<TooMany> {
        let count = self.blobs.len().saturating_sub(to_go.count).saturating_add(more);
        let bytes = self.names_bytes.saturating_sub(to_go.names_bytes).saturating_add(names_bytes);
        match () {
            () if count > BLOBS_MAX => {
                Some(TooMany { value: count, limit: BLOBS_MAX, of: "large files" })
            }
            () if bytes > BLOB_NAMES_BYTES_MAX => Some(TooMany {
                value: bytes,
                limit: BLOB_NAMES_BYTES_MAX,
                of: "bytes of names of large files",
            }),
            () => None,
        }
    }

    pub(in crate::leader) fn fill(&self) -> RelayStats {
        RelayStats {
            blobs: self.blobs.len(),
            bytes: self.totals.bytes,
            bytes_max: self.config.spool_bytes_max,
            in_memory: self.totals.in_memory,
            buffers_in_use: self.pool.in_use(),
            buffers: self.pool.buffers_max(),
            promised: self.senders.promised,
            kept_free: self.senders.kept_free,
            connections: self.lines.linked(),
            chunks_out: self.lines.iter().map(|(_, line)| line.chunks_out).sum(),
            spliced: self.spliced.whole,
            voided: self.spliced.voided,
            bytes_copied: self.pool.bytes_copied(),
            parts: self.parts.len(),
        }
    }
}

/// How much is known of some blobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::leader) struct KnownBlobs {
    pub(in crate::leader) count: usize,
    /// Bytes of their names.
    pub(in crate::leader) names_bytes: usize,
}

/// More than may be known here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) struct TooMany {
    /// How much there would be.
    pub(in crate::leader) value: usize,
    /// How much there may be.
    pub(in crate::leader) limit: usize,
    pub(in crate::leader) of: &'static str,
}

impl std::fmt::Display for TooMany {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let TooMany { value, limit, of } = self;
        write!(
            f,
            "the leader would have to remember {value} {of}; the limit is {limit}: wait for jobs \
             to end, "
        )?;
        f.write_str("remove datasets, or pack files together")
    }
}
