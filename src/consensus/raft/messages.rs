//! Messages between nodes: the frames that carry them, and the engine's form. Nothing of the
//! engine's own encoding reaches the network or the disk.

use std::sync::Arc;

use ::raft::eraftpb::{Entry as Stored, EntryType, Message, MessageType};
use bytes::Bytes;
use chunking::Kind;
use chunking::limits::{APPEND_BYTES_MAX, APPEND_ENTRIES_MAX, RECORD_PIECE_BYTES_MAX};
use chunking::message::{
    AppendEntries, AppendOutcome, AppendResp, AppendSays, Body as _, EntryKind, EntryList,
    InstallSnapshot, LogEntry, MembersBytes, MessageError, RecordPiece, RequestVote, TimeoutNow,
    Trouble, VoteAnswer, VoteFlags, VoteResp,
};
use thiserror::Error;
use uuid::Uuid;

use super::change::{id, node};
use super::log::engine_snapshot;
use super::{Body, Entry, Snapshot};
use crate::core::ids::{Index, Node, Term};
use crate::core::members::Members;
use crate::store::codec::{self, CodecError};

/// What nodes say to each other in consensus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    Append(AppendEntries),
    AppendResp(AppendResp),
    RequestVote(RequestVote),
    VoteResp(VoteResp),
    Install(InstallSnapshot),
    Piece(Piece),
    TimeoutNow(TimeoutNow),
}

/// A part of a record that is too large for an append.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    pub from: u32,
    pub to: u32,
    pub index: u64,
    pub term: u64,
    pub total: u32,
    pub offset: u32,
    pub bytes: Bytes,
}

impl PeerMessage {
    /// The frame that carries it.
    pub const fn kind(&self) -> Kind {
        match self {
            PeerMessage::Append(_) => Kind::AppendEntries,
            PeerMessage::AppendResp(_) => Kind::AppendResp,
            PeerMessage::RequestVote(_) => Kind::RequestVote,
            PeerMessage::VoteResp(_) => Kind::VoteResp,
            PeerMessage::Install(_) => Kind::InstallSnapshot,
            PeerMessage::Piece(_) => Kind::RecordPiece,
            PeerMessage::TimeoutNow(_) => Kind::TimeoutNow,
        }
    }

    /// Appends the frame's payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            PeerMessage::Append(message) => message.encode(out),
            PeerMessage::AppendResp(message) => message.encode(out),
            PeerMessage::RequestVote(message) => message.encode(out),
            PeerMessage::VoteResp(message) => message.encode(out),
            PeerMessage::Install(message) => message.encode(out),
            PeerMessage::Piece(Piece { from, to, index, term, total, offset, bytes }) => {
                let (from, to, index, term) = (*from, *to, *index, *term);
                let (total, offset) = (*total, *offset);
                RecordPiece { from, to, index, term, total, offset, bytes }.encode(out);
            }
            PeerMessage::TimeoutNow(message) => message.encode(out),
        }
    }

    /// Reads the payload of a frame.
    pub fn decode(kind: Kind, payload: &[u8]) -> Result<Self, MessageError> {
        let message = chunking::Message::decode(kind, payload)?;
        if let chunking::Message::RecordPiece(piece) = message {
            let RecordPiece { from, to, index, term, total, offset, bytes } = piece;
            let bytes = Bytes::copy_from_slice(bytes);
            return Ok(PeerMessage::Piece(Piece { from, to, index, term, total, offset, bytes }));
        }
        macro_rules! one_of {
            ($($variant:ident($theirs:ident)),*) => {
                $(if let chunking::Message::$theirs(message) = message {
                    return Ok(PeerMessage::$variant(message));
                })*
            };
        }
        one_of!(
            Append(AppendEntries),
            AppendResp(AppendResp),
            RequestVote(RequestVote),
            VoteResp(VoteResp),
            Install(InstallSnapshot),
            TimeoutNow(TimeoutNow)
        );
        Err(MessageError::NotOurs { message: kind })
    }

    /// The sender and the receiver that it names.
    pub fn ends(&self) -> (Node, Node) {
        let (from, to) = match self {
            PeerMessage::Append(AppendEntries { from, to, .. })
            | PeerMessage::AppendResp(AppendResp { from, to, .. })
            | PeerMessage::RequestVote(RequestVote { from, to, .. })
            | PeerMessage::VoteResp(VoteResp { from, to, .. })
            | PeerMessage::Install(InstallSnapshot { from, to, .. })
            | PeerMessage::Piece(Piece { from, to, .. })
            | PeerMessage::TimeoutNow(TimeoutNow { from, to, .. }) => (*from, *to),
        };
        (Node(from), Node(to))
    }

    pub fn term(&self) -> Term {
        Term(match self {
            PeerMessage::Append(message) => message.term,
            PeerMessage::AppendResp(message) => message.term,
            PeerMessage::RequestVote(message) => message.term,
            PeerMessage::VoteResp(message) => message.term,
            PeerMessage::Install(message) => message.term,
            PeerMessage::Piece(message) => message.term,
            PeerMessage::TimeoutNow(message) => message.term,
        })
    }
}

/// What cannot be sent or was received and cannot be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConvertError {
    /// The engine wants to send what no frame has: a defect.
    #[error("the engine sends {kind}, which nodes do not send each other")]
    NoFrame { kind: String },
    #[error("record {index} went ahead in pieces that have not come")]
    NoPieces { index: Index },
    #[error("the members of record {index} cannot be read: {error}")]
    Members { index: Index, error: CodecError },
}

/// The message in the engine's form. A record that went ahead is taken from `ahead`.
pub(super) fn to_engine(
    message: &PeerMessage,
    ahead: impl FnMut(Index, Term) -> Option<Bytes>,
) -> Result<Message, ConvertError> {
    let (from, to) = message.ends();
    let mut made = Message { from: id(from), to: id(to), ..Message::default() };
    made.term = message.term().0;
    match message {
        PeerMessage::Append(append) => append_to_engine(append, ahead, &mut made)?,
        PeerMessage::AppendResp(resp) => {
            made.set_msg_type(match resp.says {
                AppendSays::Append => MessageType::MsgAppendResponse,
                AppendSays::Heartbeat => MessageType::MsgHeartbeatResponse,
            });
            made.reject = resp.outcome == AppendOutcome::Rejected;
            (made.index, made.commit) = (resp.index, resp.commit);
            (made.reject_hint, made.log_term) = (resp.hint, resp.hint_term);
            made.context = round_context(resp.round);
        }
        PeerMessage::RequestVote(vote) => {
            made.set_msg_type(match vote.flags.has(VoteFlags::PRE) {
                true => MessageType::MsgRequestPreVote,
                false => MessageType::MsgRequestVote,
            });
            (made.index, made.log_term) = (vote.last_index, vote.last_term);
            (made.commit, made.commit_term) = (vote.commit, vote.commit_term);
            if vote.flags.has(VoteFlags::TRANSFER) {
                made.context = CAMPAIGN_TRANSFER.into();
            }
        }
        PeerMessage::VoteResp(vote) => {
            made.set_msg_type(match vote.flags.has(VoteFlags::PRE) {
                true => MessageType::MsgRequestPreVoteResponse,
                false => MessageType::MsgRequestVoteResponse,
            });
            made.reject = vote.answer == VoteAnswer::Refused;
            (made.commit, made.commit_term) = (vote.commit, vote.commit_term);
        }
        PeerMessage::Install(install) => {
            made.set_msg_type(MessageType::MsgSnapshot);
            made.set_snapshot(engine_snapshot(&offered(install)?));
        }
        PeerMessage::TimeoutNow(_) => made.set_msg_type(MessageType::MsgTimeoutNow),
        PeerMessage::Piece(_) => return Err(ConvertError::NoFrame { kind: "a piece".to_owned() }),
    }
    Ok(made)
}

/// The engine's mark of a candidate that the leader chose.
const CAMPAIGN_TRANSFER: &[u8] = b"CampaignTransfer";

fn append_to_engine(
    append: &AppendEntries,
    mut ahead: impl FnMut(Index, Term) -> Option<Bytes>,
    made: &mut Message,
) -> Result<(), ConvertError> {
    made.commit = append.commit;
    made.context = round_context(append.round);
    if append.says == AppendSays::Heartbeat {
        made.set_msg_type(MessageType::MsgHeartbeat);
        return Ok(());
    }
    made.set_msg_type(MessageType::MsgAppend);
    (made.index, made.log_term) = (append.prev_index, append.prev_term);
    let mut entries = Vec::with_capacity(append.entries.0.len());
    let mut index = Index(append.prev_index);
    for LogEntry { kind, term, bytes } in &append.entries.0 {
        index = index.next();
        let term = Term(*term);
        let body = match kind {
            EntryKind::Term => Body::Term,
            EntryKind::Record => Body::Record(Bytes::copy_from_slice(bytes)),
            EntryKind::Members => Body::Members(members_in(index, bytes)?),
            EntryKind::Ahead => {
                Body::Record(ahead(index, term).ok_or(ConvertError::NoPieces { index })?)
            }
        };
        entries.push(stored(&Entry { index, term, body }));
    }
    made.set_entries(entries.into());
    Ok(())
}

pub(super) fn members_in(index: Index, bytes: &[u8]) -> Result<Arc<Members>, ConvertError> {
    let mut reader = codec::Reader::new(bytes);
    let members = codec::get_members(&mut reader);
    members.map(Arc::new).map_err(|error| ConvertError::Members { index, error })
}

/// The snapshot that an InstallSnapshot offers.
pub(super) fn offered(install: &InstallSnapshot) -> Result<Snapshot, ConvertError> {
    let (index, term) = (Index(install.index), Term(install.index_term));
    let members = members_in(index, &install.members.0)?;
    Ok(Snapshot { index, term, members })
}

fn round_context(round: u64) -> Bytes {
    if round == 0 { Bytes::new() } else { Bytes::copy_from_slice(&round.to_le_bytes()) }
}

fn round_in(context: &[u8]) -> u64 {
    context.try_into().map_or(0, u64::from_le_bytes)
}

/// An entry in the engine's form. Members are in `context`, in our own bytes; the engine's `data`
/// of them is only for the step that proposes them.
pub(super) fn stored(entry: &Entry) -> Stored {
    let mut made = Stored { index: entry.index.0, term: entry.term.0, ..Stored::default() };
    match &entry.body {
        Body::Term => {}
        Body::Record(bytes) => made.data = bytes.clone(),
        Body::Members(members) => {
            made.set_entry_type(EntryType::EntryConfChangeV2);
            made.context = members_bytes(members);
        }
    }
    made
}

pub(super) fn members_bytes(members: &Members) -> Bytes {
    let mut bytes = Vec::new();
    codec::put_members(members, &mut bytes);
    bytes.into()
}

/// An entry of the engine in our form.
pub(super) fn entry(stored: &Stored) -> Result<Entry, ConvertError> {
    let (index, term) = (Index(stored.index), Term(stored.term));
    let body = if !stored.context.is_empty() {
        Body::Members(members_in(index, &stored.context)?)
    } else if stored.data.is_empty() {
        Body::Term
    } else {
        Body::Record(stored.data.clone())
    };
    Ok(Entry { index, term, body })
}

/// A message of the engine as the frames that carry it, and to whom they go.
pub(super) fn from_engine(
    message: Message,
    applied: Index,
) -> Result<(Node, Vec<PeerMessage>), ConvertError> {
    let kind = message.get_msg_type();
    let no_frame = || ConvertError::NoFrame { kind: format!("{kind:?}") };
    let (Some(from), Some(to)) = (node(message.from), node(message.to)) else {
        return Err(no_frame());
    };
    let (to_node, from, to, term) = (to, from.0, to.0, message.term);
    let flags = |pre: bool| {
        let transfer = message.context == CAMPAIGN_TRANSFER;
        let pre = if pre { VoteFlags::PRE.0 } else { 0 };
        VoteFlags(pre | if transfer { VoteFlags::TRANSFER.0 } else { 0 })
    };
    let (commit, commit_term) = (message.commit, message.commit_term);
    let mut sent = Vec::new();
    let made = match kind {
        MessageType::MsgAppend | MessageType::MsgHeartbeat => {
            let says = match kind == MessageType::MsgAppend {
                true => AppendSays::Append,
                false => AppendSays::Heartbeat,
            };
            let entries = listed(&message, (from, to), &mut sent);
            PeerMessage::Append(AppendEntries {
                says,
                from,
                to,
                term,
                prev_index: message.index,
                prev_term: message.log_term,
                commit,
                round: round_in(&message.context),
                sent: 0,
                trouble: Trouble::default(),
                blobs_low: 0,
                entries: EntryList(entries),
            })
        }
        MessageType::MsgAppendResponse | MessageType::MsgHeartbeatResponse => {
            PeerMessage::AppendResp(AppendResp {
                says: match kind == MessageType::MsgAppendResponse {
                    true => AppendSays::Append,
                    false => AppendSays::Heartbeat,
                },
                from,
                to,
                term,
                outcome: match message.reject {
                    true => AppendOutcome::Rejected,
                    false => AppendOutcome::Taken,
                },
                index: message.index,
                hint: message.reject_hint,
                hint_term: message.log_term,
                commit,
                round: round_in(&message.context),
                echo: 0,
                applied: applied.0,
                trouble: Trouble::default(),
                lacking: 0,
            })
        }
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => {
            PeerMessage::RequestVote(RequestVote {
                from,
                to,
                term,
                last_index: message.index,
                last_term: message.log_term,
                commit,
                commit_term,
                flags: flags(kind == MessageType::MsgRequestPreVote),
            })
        }
        MessageType::MsgRequestVoteResponse | MessageType::MsgRequestPreVoteResponse => {
            let answer = match message.reject {
                true => VoteAnswer::Refused,
                false => VoteAnswer::Granted,
            };
            let flags = flags(kind == MessageType::MsgRequestPreVoteResponse);
            PeerMessage::VoteResp(VoteResp { from, to, term, answer, flags, commit, commit_term })
        }
        MessageType::MsgSnapshot => {
            let meta = message.get_snapshot().get_metadata();
            PeerMessage::Install(InstallSnapshot {
                from,
                to,
                term,
                transfer: Uuid::nil(),
                index: meta.index,
                index_term: meta.term,
                bytes: 0,
                blobs: 0,
                members: MembersBytes(message.get_snapshot().data.to_vec()),
            })
        }
        MessageType::MsgTimeoutNow => PeerMessage::TimeoutNow(TimeoutNow { from, to, term }),
        // Local ones, forwarded proposals and questions: none of them is ever asked of the engine.
        MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader
        | MessageType::MsgReadIndex
        | MessageType::MsgReadIndexResp => return Err(no_frame()),
    };
    sent.push(made);
    Ok((to_node, sent))
}

/// The entries of an append, as many as it may have: a follower that takes fewer says so. A record
/// that is too large for one goes ahead, in `sent`.
fn listed(message: &Message, ends: (u32, u32), sent: &mut Vec<PeerMessage>) -> Vec<LogEntry> {
    let list = message.get_entries().iter().take(APPEND_ENTRIES_MAX).map(|stored| {
        let term = stored.term;
        if !stored.context.is_empty() {
            return LogEntry { kind: EntryKind::Members, term, bytes: stored.context.to_vec() };
        }
        if stored.data.is_empty() {
            return LogEntry { kind: EntryKind::Term, term, bytes: Vec::new() };
        }
        if stored.data.len() > APPEND_BYTES_MAX {
            pieces(stored, ends, sent);
            return LogEntry { kind: EntryKind::Ahead, term, bytes: Vec::new() };
        }
        LogEntry { kind: EntryKind::Record, term, bytes: stored.data.to_vec() }
    });
    list.collect()
}

fn pieces(stored: &Stored, (from, to): (u32, u32), sent: &mut Vec<PeerMessage>) {
    let total = u32::try_from(stored.data.len()).unwrap_or(u32::MAX);
    let (index, term) = (stored.index, stored.term);
    let mut offset = 0;
    let mut rest = stored.data.clone();
    while !rest.is_empty() {
        let bytes = rest.split_to(rest.len().min(RECORD_PIECE_BYTES_MAX));
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        sent.push(PeerMessage::Piece(Piece { from, to, index, term, total, offset, bytes }));
        offset = offset.saturating_add(len);
    }
}
