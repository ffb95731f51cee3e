//! The messages of a transfer, heard and said alike: inputs and results go the same way in both directions.

use bytes::Bytes;
use chunking::message::{Abort, Body, Done, Features, Grant, Open, Verdict, Void};
use chunking::{ChunkHead, Kind, MessageError};
use uuid::Uuid;

use super::{Session, WireFrame};

/// A message of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TransferSays {
    /// It begins, or goes on.
    Open(Open),
    /// There is room for more chunks.
    Grant(Grant),
    /// All chunks were sent.
    Done(Done),
    /// What the receiver makes of it.
    Verdict(Verdict),
    /// It ends without a blob.
    Abort(Abort),
    /// The chunk that went before must not be used.
    Void(Void),
}

impl TransferSays {
    /// Reads a message; `None` if it is none of a transfer.
    pub(super) fn decode(kind: Kind, payload: &[u8]) -> Option<Result<Self, MessageError>> {
        match kind {
            Kind::Open => Some(Open::decode(payload).map(TransferSays::Open)),
            Kind::Grant => Some(Grant::decode(payload).map(TransferSays::Grant)),
            Kind::Done => Some(Done::decode(payload).map(TransferSays::Done)),
            Kind::Verdict => Some(Verdict::decode(payload).map(TransferSays::Verdict)),
            Kind::Abort => Some(Abort::decode(payload).map(TransferSays::Abort)),
            Kind::Void => Some(Void::decode(payload).map(TransferSays::Void)),
            Kind::SubmitJob
            | Kind::AssignJob
            | Kind::AckJob
            | Kind::Credit
            | Kind::Result
            | Kind::CachePut
            | Kind::CacheAck
            | Kind::HelloClient
            | Kind::HelloWorker
            | Kind::NotLeader
            | Kind::LeaderHello
            | Kind::AppendEntries
            | Kind::AppendResp
            | Kind::RequestVote
            | Kind::VoteResp
            | Kind::InstallSnapshot
            | Kind::InstallSnapResp
            | Kind::Welcome
            | Kind::Chunk
            | Kind::Submitted
            | Kind::Refused
            | Kind::Start
            | Kind::Heartbeat
            | Kind::Progress
            | Kind::Cancel
            | Kind::Settled
            | Kind::Received
            | Kind::Keepalive
            | Kind::Put
            | Kind::Lack
            | Kind::Spread
            | Kind::Hold
            | Kind::Pack
            | Kind::Release
            | Kind::Have
            | Kind::Inspect
            | Kind::Ask
            | Kind::Answer => None,
        }
    }
}

impl Session {
    /// A message of a transfer; `None` if the peer knows none.
    pub fn transfer(&self, id: Uuid, says: &TransferSays) -> Option<WireFrame> {
        let needs = Features::TRANSFERS;
        match says {
            TransferSays::Open(open) => self.ours(needs, id, Uuid::nil(), open),
            TransferSays::Grant(grant) => self.ours(needs, id, Uuid::nil(), grant),
            TransferSays::Done(done) => self.ours(needs, id, Uuid::nil(), done),
            TransferSays::Verdict(verdict) => self.ours(needs, id, Uuid::nil(), verdict),
            TransferSays::Abort(abort) => self.ours(needs, id, Uuid::nil(), abort),
            TransferSays::Void(void) => self.ours(needs, id, Uuid::nil(), void),
        }
    }

    /// A chunk, in the bytes that it came in.
    pub fn chunk(&self, id: Uuid, head: &ChunkHead, bytes: Bytes) -> Option<WireFrame> {
        let sent_len = u32::try_from(bytes.len()).ok()?;
        let frame_head = head.frame_head(id, sent_len).ok()?;
        Some(WireFrame { head: Bytes::copy_from_slice(&frame_head), payload: bytes, trailer: Bytes::new() })
    }
}
