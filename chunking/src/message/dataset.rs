//! Dataset messages. A dataset is files shared by many jobs, pushed to workers ahead of them. Its
//! [manifest](crate::dataset::Manifest) describes the content, and [packs](crate::dataset::pack)
//! carry the bytes; both are blobs of purpose `Dataset` and come by transfer.
//!
//! A **version** is one content under a CacheId. Its id is that of the manifest's blob.

use super::fields::{byte_enum, flags, message, put_count};
use super::{Field, MessageError, Name, Reader, Reason, Text};
use crate::bitmap::Ranges;
use crate::dataset::Piece;
use crate::digest::Digest;
use crate::limits::{DATASETS_LISTED_MAX, PACK_PIECES_MAX};
use serde::Serialize;
use uuid::Uuid;

flags! {
    /// How a put is meant.
    PutFlags {
        /// Other content under the same CacheId is replaced, not a reason to refuse.
        REPLACE = 1,
    }
}

message! {
    /// A client puts a dataset. MsgId is the request's id; what the leader says to it has that in
    /// CorrId: Refused, or Lack until it lacks nothing, CacheAck for each worker, Spread.
    Put {
        /// What identifies the content: [`Manifest::digest`](crate::dataset::Manifest::digest).
        digest: Digest,
        /// The blob that brings the manifest, if it is lacking; the version's id, if this becomes
        /// one.
        manifest: Uuid,
        /// Bytes of all files.
        bytes: u64,
        /// How many files.
        files: u32,
        /// How it is meant.
        flags: PutFlags,
        /// How long the leader goes on with workers that have not answered before it says Spread; 0
        /// for as long as it takes.
        deadline_ms: u64,
        cache_id: Name,
        /// The workers that are to have it: a pattern, or `none`.
        target: Name,
    }
}

byte_enum! {
    /// What is lacking.
    Lacking, "what may lack is 0 nothing, 1 the manifest, 2 pieces", {
        /// Nothing: all of it is here.
        Nothing = 0,
        Manifest = 1,
        /// Pieces of it.
        Pieces = 2,
    }
}

message! {
    /// What the receiver of a dataset lacks. From the leader to a client CorrId is the request's
    /// id, from a worker to the leader MsgId is the version's.
    Lack {
        what: Lacking,
        /// Bytes of all that lacks, also of what is not listed.
        bytes: u64,
        /// Places in the manifest's list of pieces; the first ones, if there are more runs than
        /// fit.
        pieces: Ranges,
    }
}

byte_enum! {
    /// How far a put is.
    SpreadStage, "stages are 1 stored, 2 over", {
        /// The leader has the dataset, and it is durable.
        Stored = 1,
        /// Every worker that is to have it has answered, or the deadline is over.
        Over = 2,
    }
}

message! {
    /// Where a put stands, to who asked for it. CorrId is the request's id.
    Spread {
        /// How far it is.
        stage: SpreadStage,
        /// Workers that are to have it.
        targets: u32,
        /// Those that have got it.
        ok: u32,
        /// Those that had it.
        skipped: u32,
        /// Those that cannot have it.
        failed: u32,
        /// Those that have not answered.
        missing: u32,
        /// Bytes that came from the client.
        received: u64,
        /// Bytes that went to workers.
        moved: u64,
        text: Text,
    }
}

flags! {
    /// How a worker is to hold a dataset.
    HoldFlags {
        /// The version counts: it may be shown once it is whole. Without it the dataset is on its
        /// way to the leader too.
        COMMITTED = 1,
    }
}

message! {
    /// A worker is to hold a version of a dataset. MsgId is the version's id. It answers with Lack
    /// until it lacks nothing, and with CacheAck (CorrId: the version) when the dataset is there
    /// for jobs, or cannot be.
    Hold {
        flags: HoldFlags,
        /// What identifies the content.
        digest: Digest,
        /// Bytes of all files.
        bytes: u64,
        /// How many files.
        files: u32,
        cache_id: Name,
    }
}

/// The pieces in a pack, in their order. At most [`PACK_PIECES_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PieceList(Vec<Piece>);

impl PieceList {
    /// The first [`PACK_PIECES_MAX`] of these.
    pub fn new(mut pieces: Vec<Piece>) -> Self {
        pieces.truncate(PACK_PIECES_MAX);
        PieceList(pieces)
    }

    pub fn as_slice(&self) -> &[Piece] {
        &self.0
    }
}

impl Field for Piece {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.blake3);
        self.len.put(out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        Ok(Piece { blake3: reader.array(field)?, len: reader.field(field)? })
    }
}

impl Field for PieceList {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        self.0.iter().for_each(|piece| piece.put(out));
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let piece = |reader: &mut Reader<'_>| reader.field::<Piece>(field);
        reader.list(field, PACK_PIECES_MAX, Piece::ENTRY_BYTES, piece).map(PieceList)
    }
}

message! {
    /// What a pack holds that is about to be opened. MsgId is the pack's id, CorrId the request's
    /// (to the leader) or the version's (to a worker).
    Pack {
        pieces: PieceList,
    }
}

message! {
    /// A worker need not hold a dataset any more, or the leader does not know one that the worker
    /// wants. MsgId is the version's id, nil where there is none.
    Release {
        reason: Reason,
        /// The same for people.
        text: Text,
        cache_id: Name,
    }
}

byte_enum! {
    /// How a worker has a dataset.
    DatasetState, "states are 0 held, 1 gone, 2 wanted, 3 lost", {
        /// It is there for jobs.
        Held = 0,
        /// It was given up, to make room or because it was released; the text says why. It is not
        /// wanted back unasked.
        Gone = 1,
        /// A job needs it and it is not there.
        Wanted = 2,
        /// It was damaged; the text says how. It is wanted back.
        Lost = 3,
    }
}

/// A dataset at a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DatasetEntry {
    /// How it has it.
    pub state: DatasetState,
    /// Its content; zeros if it is wanted, or gone because it was released.
    pub digest: Digest,
    pub cache_id: Name,
    pub text: Text,
}

/// Datasets at a worker, at most [`DATASETS_LISTED_MAX`] in one message.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DatasetList(Vec<DatasetEntry>);

impl DatasetList {
    /// The first [`DATASETS_LISTED_MAX`] of these.
    pub fn new(mut datasets: Vec<DatasetEntry>) -> Self {
        datasets.truncate(DATASETS_LISTED_MAX);
        DatasetList(datasets)
    }

    pub fn as_slice(&self) -> &[DatasetEntry] {
        &self.0
    }
}

impl Field for DatasetList {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        for dataset in &self.0 {
            dataset.state.put(out);
            dataset.digest.put(out);
            dataset.cache_id.put(out);
            dataset.text.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        // One byte, a digest and two lengths.
        const ENTRY_BYTES_MIN: usize = 1 + 33 + 2 + 2;
        let dataset = |reader: &mut Reader<'_>| {
            Ok(DatasetEntry {
                state: reader.field(field)?,
                digest: reader.field(field)?,
                cache_id: reader.field(field)?,
                text: reader.field(field)?,
            })
        };
        reader.list(field, DATASETS_LISTED_MAX, ENTRY_BYTES_MIN, dataset).map(DatasetList)
    }
}

message! {
    /// What a worker has. It says so after each Welcome, in as many messages as it takes, and when
    /// something changes. MsgId is nil.
    Have {
        /// 1 if what was said before does not count any more.
        anew: u8,
        /// Bytes that its cache may hold.
        budget: u64,
        /// Bytes that it holds.
        used: u64,
        #[serde(rename = "sets")]
        datasets: DatasetList,
    }
}

message! {
    /// A worker is to check the files of a dataset against their digests. MsgId is the question's
    /// id, which its CacheAck has in CorrId. What is damaged is dropped, and Have says so.
    Inspect {
        cache_id: Name,
    }
}
