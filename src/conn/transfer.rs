//! The messages of a transfer, heard and said alike: inputs and results go the same way in both directions.

use bytes::Bytes;
use chunking::limits::CHUNK_PIECE_BYTES_MAX;
use chunking::message::{Abort, Body, Done, Features, Grant, HeldPart, Open, Piece, Verdict, Void};
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
            | Kind::Piece
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
            TransferSays::Grant(grant) if !grant.part.is_none() && !self.has(Features::PIECES) => {
                let grant = Grant { part: HeldPart::default(), ..grant.clone() };
                self.ours(needs, id, Uuid::nil(), &grant)
            }
            TransferSays::Grant(grant) => self.ours(needs, id, Uuid::nil(), grant),
            TransferSays::Done(done) => self.ours(needs, id, Uuid::nil(), done),
            TransferSays::Verdict(verdict) => self.ours(needs, id, Uuid::nil(), verdict),
            TransferSays::Abort(abort) => self.ours(needs, id, Uuid::nil(), abort),
            TransferSays::Void(void) => self.ours(needs, id, Uuid::nil(), void),
        }
    }

    /// A chunk, in the bytes that it came in. `from` says how many of them the peer has.
    pub fn chunk(&self, id: Uuid, head: &ChunkHead, bytes: Bytes, from: u32) -> WireChunk {
        let cut = match (self.has(Features::PIECES), self.has(Features::CHECKSUMS)) {
            (false, _) => Cut::Never,
            (true, false) => Cut::Plain,
            (true, true) => Cut::Summed,
        };
        // Who knows no pieces gets it whole.
        let from = if cut == Cut::Never { 0 } else { from };
        WireChunk { transfer: id, head: *head, bytes, from, cut }
    }
}

/// Whether a chunk may be sent in pieces, and what ends their frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    Never,
    Plain,
    Summed,
}

/// A chunk as it goes to the socket: whole, or in pieces for a peer that knows them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireChunk {
    transfer: Uuid,
    head: ChunkHead,
    bytes: Bytes,
    /// Bytes that are out, or that the peer has.
    from: u32,
    cut: Cut,
}

impl WireChunk {
    /// Bytes that are still to go.
    pub fn left(&self) -> usize {
        self.bytes.len().saturating_sub(self.from as usize)
    }

    /// Whether the peer has some of it, or some of it is out.
    pub fn is_begun(&self) -> bool {
        self.from > 0
    }

    /// Whether it may go in pieces.
    pub fn may_be_cut(&self) -> bool {
        self.cut != Cut::Never
    }

    /// The next frame: all of the chunk, if nothing of it is out and `piece_bytes` does not say otherwise, else a piece of at most
    /// so many bytes. `None` when all is out.
    pub fn next_frame(&mut self, piece_bytes: Option<u32>) -> Option<WireFrame> {
        if self.left() == 0 {
            return None;
        }
        match piece_bytes.filter(|_| self.may_be_cut()) {
            None if self.from == 0 => self.whole(),
            piece_bytes => self.piece(piece_bytes.unwrap_or(CHUNK_PIECE_BYTES_MAX)),
        }
    }

    fn whole(&mut self) -> Option<WireFrame> {
        let sent_len = u32::try_from(self.bytes.len()).ok()?;
        let head = self.head.frame_head(self.transfer, sent_len).ok()?;
        self.from = sent_len;
        let payload = self.bytes.clone();
        Some(WireFrame { head: Bytes::copy_from_slice(&head), payload, trailer: Bytes::new() })
    }

    fn piece(&mut self, most: u32) -> Option<WireFrame> {
        let sent_len = u32::try_from(self.bytes.len()).ok()?;
        let len = most.clamp(1, CHUNK_PIECE_BYTES_MAX).min(sent_len.checked_sub(self.from)?);
        let (from, to) = (self.from as usize, (self.from + len) as usize);
        let bytes = self.bytes.slice(from..to);
        let piece = Piece { head: self.head, sent_len, from: self.from, bytes: &bytes };
        let (head, trailer) = piece.frame(self.transfer, self.cut == Cut::Summed).ok()?;
        self.from += len;
        Some(WireFrame { head: head.into(), payload: bytes, trailer: trailer.into() })
    }
}
