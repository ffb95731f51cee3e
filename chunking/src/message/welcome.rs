//! The leader's answer to a heft peer's hello: the common features, and every limit on the path.

use super::fields::{message, put_count};
use super::{Field, MessageError, Name, Reader};
use crate::limits::LIMITS_LISTED_MAX;
use serde::Serialize;
use uuid::Uuid;

/// A set of features. In the announcing JSON they travel by name, in a Welcome as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Features(pub u64);

macro_rules! features {
    ($($(#[$doc:meta])* $name:ident = $bit:literal, $word:literal;)*) => {
        impl Features {
            $($(#[$doc])* pub const $name: Features = Features(1 << $bit);)*

            /// Every feature this build knows, with its name.
            pub const KNOWN: &'static [(Features, &'static str)] = &[$((Features::$name, $word),)*];
        }
    };
}

features! {
    TRANSFERS = 0, "transfers";
    /// Chunks in gzip.
    GZIP = 1, "gzip";
    /// Chunks in brotli.
    BROTLI = 2, "brotli";
    /// Chunks in zstd.
    ZSTD = 3, "zstd";
    /// Submitted and Refused.
    SUBMIT_ANSWERS = 4, "submit-answers";
    /// Start, Heartbeat and leases.
    LEASES = 5, "leases";
    PROGRESS = 6, "progress";
    CANCEL = 7, "cancel";
    /// Ask and Answer.
    ASK = 8, "ask";
    DATASETS = 9, "datasets";
    /// NotLeader is followed (C23).
    REDIRECTS = 10, "redirects";
    /// Frames end with a checksum.
    CHECKSUMS = 11, "checksums";
    /// Received: a client says which results it has.
    RECEIPTS = 12, "receipts";
    /// Keepalive, and the silence limit.
    KEEPALIVE = 13, "keepalive";
    /// Piece, and what a Grant says of a chunk that is not whole.
    PIECES = 14, "pieces";
    /// Follow and Output: what a job prints, while it runs.
    FOLLOW = 15, "follow";
    /// Programs, and results that hand a job back for want of its program.
    PROGRAMS = 16, "programs";
}

impl Features {
    /// Whether all of `features` are in the set.
    pub const fn has(self, features: Features) -> bool {
        self.0 & features.0 == features.0
    }

    /// What both sets have.
    pub const fn common(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }

    /// The set with `features` added.
    pub const fn with(self, features: Features) -> Features {
        Features(self.0 | features.0)
    }

    /// The set of the names that are known; others are skipped.
    pub fn from_names<'a>(names: impl IntoIterator<Item = &'a str>) -> Features {
        names.into_iter().fold(Features::default(), |set, name| {
            let known = Self::KNOWN.iter().find(|(_, known)| *known == name);
            known.map_or(set, |(feature, _)| set.with(*feature))
        })
    }

    /// The names of the features in the set.
    pub fn names(self) -> impl Iterator<Item = &'static str> {
        Self::KNOWN.iter().filter(move |(feature, _)| self.has(*feature)).map(|(_, name)| *name)
    }
}

impl Field for Features {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader.field(field).map(Features)
    }
}

/// Which limit a value in a Welcome is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct LimitId(pub u16);

macro_rules! limit_ids {
    ($($(#[$doc:meta])* $name:ident = $id:literal, $word:literal;)*) => {
        impl LimitId {
            $($(#[$doc])* pub const $name: LimitId = LimitId($id);)*

            /// Every limit this build knows, with its name.
            pub const KNOWN: &'static [(LimitId, &'static str)] = &[$((LimitId::$name, $word),)*];
        }
    };
}

limit_ids! {
    /// Frame body the leader takes from this peer.
    FRAME_BODY_BYTES = 1, "frame-body-bytes";
    /// Raw bytes of a chunk.
    CHUNK_BYTES = 2, "chunk-bytes";
    /// Chunks of one transfer under way.
    WINDOW_CHUNKS = 3, "window-chunks";
    /// Raw bytes of one blob.
    BLOB_BYTES = 4, "blob-bytes";
    /// Content that may stand inside a JobRequest or JobResult; more goes as a transfer.
    INLINE_BYTES = 5, "inline-bytes";
    /// Body of a frame to or from a classic peer.
    CLASSIC_BODY_BYTES = 6, "classic-body-bytes";
    /// Bytes of all blobs the leader's spool holds.
    SPOOL_BYTES = 7, "spool-bytes";
    /// Transfers of one connection at a time.
    TRANSFERS = 8, "transfers";
    /// Milliseconds between heartbeats.
    HEARTBEAT_MS = 9, "heartbeat-ms";
    /// Milliseconds of a lease.
    LEASE_MS = 10, "lease-ms";
    /// Milliseconds a lost worker's leases are kept.
    WORKER_GRACE_MS = 11, "worker-grace-ms";
    /// Attempts before a job goes to the dead-letter queue.
    ATTEMPTS = 12, "attempts";
    /// Milliseconds without a byte after which a connection counts as dead.
    SILENCE_MS = 13, "silence-ms";
    /// No limit: the checksum that the Hello, as it came, would have ended with.
    HELLO_CRC32 = 14, "hello-crc32";
}

/// Limits by id, at most [`LIMITS_LISTED_MAX`]. Ids that are not known are kept and mean nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimitList(Vec<(LimitId, u64)>);

impl LimitList {
    const ENTRY_BYTES: usize = 10;

    /// The limit's value, if it is listed.
    pub fn value(&self, id: LimitId) -> Option<u64> {
        self.0.iter().find(|(listed, _)| *listed == id).map(|(_, value)| *value)
    }

    /// Lists a limit, or changes it. A list that is full stays as it is, which no build with fewer
    /// than [`LIMITS_LISTED_MAX`] known limits can reach.
    pub fn set(&mut self, id: LimitId, value: u64) {
        if let Some((_, listed)) = self.0.iter_mut().find(|(listed, _)| *listed == id) {
            *listed = value;
        } else if self.0.len() < LIMITS_LISTED_MAX {
            self.0.push((id, value));
        }
    }

    /// All that are listed.
    pub fn as_slice(&self) -> &[(LimitId, u64)] {
        &self.0
    }
}

impl FromIterator<(LimitId, u64)> for LimitList {
    fn from_iter<I: IntoIterator<Item = (LimitId, u64)>>(limits: I) -> Self {
        let mut list = LimitList::default();
        limits.into_iter().for_each(|(id, value)| list.set(id, value));
        list
    }
}

impl Field for LimitList {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        for (id, value) in &self.0 {
            id.0.put(out);
            value.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader
            .list(field, LIMITS_LISTED_MAX, Self::ENTRY_BYTES, |reader| {
                Ok((LimitId(reader.field(field)?), reader.field(field)?))
            })
            .map(LimitList)
    }
}

message! {
    /// The peer is known and heard. CorrId is the MsgId of its Hello.
    Welcome {
        /// The leader's id, new with each start.
        leader: Uuid,
        /// Its software, such as `heft 0.1.0`.
        software: Name,
        /// What both sides can do.
        features: Features,
        /// Every limit on the path.
        limits: LimitList,
    }
}
