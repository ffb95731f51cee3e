//! What the nodes of a cluster say to each other: the handshake, and the messages of consensus. All
//! numbers of nodes, terms and places of records are the sender's word; whoever takes a message
//! checks them.

use super::fields::{VERSION, byte_enum, flags, message};
use super::{Field, MessageError, Name, Reader, Text};
use crate::kind::Kind;
use crate::limits::{
    APPEND_BYTES_MAX, APPEND_ENTRIES_MAX, MEMBERS_BYTES_MAX, RECORD_BYTES_MAX,
    RECORD_PIECE_BYTES_MAX,
};
use serde::{Serialize, Serializer};
use uuid::Uuid;

byte_enum! {
    /// What a connection between two nodes is for.
    HelloPurpose, "purposes are 1 control, 2 bulk, 3 relay for, 4 relay continues, 5 join", {
        /// Consensus.
        Control = 1,
        /// Blobs and snapshots.
        Bulk = 2,
        /// A follower relays the peer at `relayed`.
        RelayFor = 3,
        /// The same, after another leader was in office: the peer's jobs are not taken away.
        RelayContinues = 4,
        /// A leader asks who is there.
        Join = 5,
    }
}

/// The layouts that a node reads, and the level of records.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct HelloVersions {
    pub lowest: u16,
    pub highest: u16,
    /// The highest level of records that it reads.
    pub level: u32,
}

impl Field for HelloVersions {
    fn put(&self, out: &mut Vec<u8>) {
        self.lowest.put(out);
        self.highest.put(out);
        self.level.put(out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let (lowest, highest) = (reader.field(field)?, reader.field(field)?);
        if highest < lowest {
            return Err(reader.bad_value(
                field,
                u64::from(highest),
                "the highest is not below the lowest",
            ));
        }
        Ok(HelloVersions { lowest, highest, level: reader.field(field)? })
    }
}

/// What the other side has to answer with a proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Challenge(pub [u8; 16]);

impl Field for Challenge {
    fn put(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.0);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader.array(field).map(Challenge)
    }
}

/// BLAKE3 of both challenges, keyed with the cluster's key; none in the first hello, before the
/// other challenge is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Proof(pub Option<[u8; 32]>);

impl Field for Proof {
    fn put(&self, out: &mut Vec<u8>) {
        match &self.0 {
            None => 0u8.put(out),
            Some(proof) => {
                1u8.put(out);
                out.extend_from_slice(proof);
            }
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        match reader.field::<u8>(field)? {
            0 => Ok(Proof(None)),
            1 => reader.array(field).map(|proof| Proof(Some(proof))),
            other => Err(reader.bad_value(field, other.into(), "proofs are 0 none, 1 given")),
        }
    }
}

message! {
    /// The first frame of a connection between nodes, both ways.
    LeaderHello {
        cluster: Uuid,
        group: Name,
        /// The sender's number.
        number: u32,
        /// The id of the sender's data directory.
        directory: Uuid,
        /// Where the sender is reached.
        address: Name,
        purpose: HelloPurpose,
        /// The address of the peer that is relayed; empty if none is.
        relayed: Name,
        versions: HelloVersions,
        /// The sender's clock, in microseconds since the Unix epoch. Nothing depends on it.
        moment: u64,
        challenge: Challenge,
        proof: Proof,
    }
}

byte_enum! {
    /// Which of the two an AppendEntries or an AppendResp is.
    AppendSays, "what is said is 1 append, 2 heartbeat", {
        /// Records follow `prev_index`; or only news of what is committed.
        Append = 1,
        /// The leader is in office. It may come out of turn: it says nothing of `prev_index`.
        Heartbeat = 2,
    }
}

byte_enum! {
    /// What a record is to consensus.
    EntryKind, "kinds of entries are 1 record, 2 term, 3 members, 4 sent ahead", {
        /// A record of the broker.
        Record = 1,
        /// The first of a leader's term. Without bytes.
        Term = 2,
        /// A change of the members.
        Members = 3,
        /// A record that went ahead in RecordPieces.
        Ahead = 4,
    }
}

/// A record that is replicated. Its place follows from its place in the list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogEntry {
    pub kind: EntryKind,
    pub term: u64,
    pub bytes: Vec<u8>,
}

/// Records in the order of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EntryList(pub Vec<LogEntry>);

impl EntryList {
    /// Bytes of an entry before its own: kind, term and length.
    pub const ENTRY_HEAD_BYTES: usize = 1 + 8 + 4;
}

impl Field for EntryList {
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).put(out);
        for LogEntry { kind, term, bytes } in &self.0 {
            kind.put(out);
            term.put(out);
            u32::try_from(bytes.len()).unwrap_or(u32::MAX).put(out);
            out.extend_from_slice(bytes);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let len = length(reader, field, APPEND_ENTRIES_MAX)?;
        let need = len.saturating_mul(Self::ENTRY_HEAD_BYTES);
        reader.has(need, field)?;
        let (mut entries, mut sum) = (Vec::with_capacity(len), 0usize);
        for _ in 0..len {
            let (kind, term) = (reader.field(field)?, reader.field(field)?);
            let len = length(reader, field, APPEND_BYTES_MAX)?;
            sum = sum.saturating_add(len);
            if sum > APPEND_BYTES_MAX {
                return Err(reader.over(field, sum, APPEND_BYTES_MAX));
            }
            if matches!(kind, EntryKind::Term | EntryKind::Ahead) != (len == 0) {
                return Err(reader.bad_value(
                    field,
                    len as u64,
                    "records and members have bytes; terms and what was sent ahead have none",
                ));
            }
            entries.push(LogEntry { kind, term, bytes: reader.bytes(len, field)?.to_vec() });
        }
        Ok(EntryList(entries))
    }
}

fn length(
    reader: &mut Reader<'_>,
    field: &'static str,
    limit: usize,
) -> Result<usize, MessageError> {
    let len = usize::try_from(reader.field::<u32>(field)?).unwrap_or(usize::MAX);
    if len > limit { Err(reader.over(field, len, limit)) } else { Ok(len) }
}

flags! {
    /// What keeps a node from its work.
    Trouble {
        /// Its disk is full.
        DISK_FULL = 1,
        /// Its disk does not answer.
        DISK_STALLED = 2,
    }
}

message! {
    /// The leader replicates records, or says that it is in office.
    AppendEntries {
        says: AppendSays,
        /// The leader's number.
        from: u32,
        to: u32,
        term: u64,
        /// The record before the first of the list; 0 in a heartbeat.
        prev_index: u64,
        prev_term: u64,
        /// Up to here the records are committed, as far as the receiver is known to have them.
        commit: u64,
        /// A question whether the sender leads; 0 if none is open.
        round: u64,
        /// When it was sent, by the leader's clock.
        sent: u64,
        trouble: Trouble,
        /// Blobs named before this record are with enough nodes.
        blobs_low: u64,
        entries: EntryList,
    }
}

byte_enum! {
    /// Whether the records of an AppendEntries fitted.
    AppendOutcome, "outcomes are 1 taken, 2 rejected", {
        Taken = 1,
        /// The record before the first is not there.
        Rejected = 2,
    }
}

message! {
    /// A follower's answer to an AppendEntries.
    AppendResp {
        says: AppendSays,
        from: u32,
        to: u32,
        term: u64,
        outcome: AppendOutcome,
        /// The last record that is on the disk and equal to the leader's; of a rejection, the
        /// `prev_index` that did not fit.
        index: u64,
        /// Of a rejection: the last record that may be equal, and its term.
        hint: u64,
        hint_term: u64,
        /// Up to here the records are committed, as far as the sender knows.
        commit: u64,
        /// As in the heartbeat.
        round: u64,
        /// `sent` of the AppendEntries.
        echo: u64,
        /// Up to here the records are applied.
        applied: u64,
        trouble: Trouble,
        /// Blobs that the sender is to have and has not.
        lacking: u32,
    }
}

flags! {
    /// How an election is meant.
    VoteFlags {
        /// Whether a vote would be given; nothing is promised.
        PRE = 1,
        /// The leader asked the candidate to stand.
        TRANSFER = 2,
    }
}

message! {
    /// A candidate asks for a vote.
    RequestVote {
        from: u32,
        to: u32,
        /// The term it would lead in.
        term: u64,
        last_index: u64,
        last_term: u64,
        commit: u64,
        commit_term: u64,
        flags: VoteFlags,
    }
}

byte_enum! {
    /// The answer to a candidate.
    VoteAnswer, "answers are 1 granted, 2 refused", {
        Granted = 1,
        Refused = 2,
    }
}

message! {
    /// The answer to a RequestVote.
    VoteResp {
        from: u32,
        to: u32,
        /// The term of the request if granted, else the sender's.
        term: u64,
        answer: VoteAnswer,
        flags: VoteFlags,
        commit: u64,
        commit_term: u64,
    }
}

/// Members, as a record has them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MembersBytes(pub Vec<u8>);

impl Field for MembersBytes {
    fn put(&self, out: &mut Vec<u8>) {
        u32::try_from(self.0.len()).unwrap_or(u32::MAX).put(out);
        out.extend_from_slice(&self.0);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let len = length(reader, field, MEMBERS_BYTES_MAX)?;
        Ok(MembersBytes(reader.bytes(len, field)?.to_vec()))
    }
}

message! {
    /// The receiver lags so far that it gets a snapshot, which follows as a transfer.
    InstallSnapshot {
        from: u32,
        to: u32,
        term: u64,
        /// The transfer on the bulk connection.
        transfer: Uuid,
        /// The last record that the snapshot has, and its term.
        index: u64,
        index_term: u64,
        /// Bytes of the snapshot.
        bytes: u64,
        /// Blobs that the receiver needs with it.
        blobs: u32,
        /// The members as of `index`.
        members: MembersBytes,
    }
}

byte_enum! {
    /// How far an installation is.
    InstallStage, "stages are 1 accepted, 2 have it, 3 busy, 4 done, 5 failed", {
        Accepted = 1,
        /// The receiver needs no snapshot.
        HaveIt = 2,
        /// Another one is being installed.
        Busy = 3,
        Done = 4,
        /// The text says why.
        Failed = 5,
    }
}

message! {
    /// The answer to an InstallSnapshot, and another one at the end.
    InstallSnapResp {
        from: u32,
        to: u32,
        term: u64,
        transfer: Uuid,
        stage: InstallStage,
        /// The last record of the snapshot.
        index: u64,
        text: Text,
    }
}

message! {
    /// The receiver is to stand for election at once: the leader hands over.
    TimeoutNow {
        from: u32,
        to: u32,
        term: u64,
    }
}

/// A part of a record of more than [`APPEND_BYTES_MAX`] bytes. The parts come in order and without
/// a gap, before the AppendEntries that has the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPiece<'a> {
    pub from: u32,
    pub to: u32,
    /// The record's place and term.
    pub index: u64,
    pub term: u64,
    /// Bytes of the whole record.
    pub total: u32,
    /// Where in it these begin.
    pub offset: u32,
    /// These bytes: at least one.
    pub bytes: &'a [u8],
}

/// Bytes of a RecordPiece's payload before the record's.
pub const RECORD_PIECE_HEAD_BYTES: usize = 1 + 4 + 4 + 8 + 8 + 4 + 4;

impl<'a> RecordPiece<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        self.from.put(out);
        self.to.put(out);
        self.index.put(out);
        self.term.put(out);
        self.total.put(out);
        self.offset.put(out);
        out.extend_from_slice(self.bytes);
    }

    /// Reads a payload: bytes that lie in the record.
    pub fn decode(payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader::new(Kind::RecordPiece, payload)?;
        let (from, to) = (reader.field("from")?, reader.field("to")?);
        let (index, term) = (reader.field("index")?, reader.field("term")?);
        let total: u32 = reader.field("total")?;
        let offset: u32 = reader.field("offset")?;
        let bad = |field, value: u64, expected| Err(reader.bad_value(field, value, expected));
        if total > RECORD_BYTES_MAX {
            return bad("total", total.into(), "a record has at most 33550336 bytes");
        }
        let len = reader.len();
        if len == 0 || len > RECORD_PIECE_BYTES_MAX {
            return bad("bytes", len as u64, "a piece of a record has 1 to 1048576 bytes");
        }
        if u64::from(offset).saturating_add(len as u64) > u64::from(total) {
            return bad("offset", offset.into(), "a piece ends with its record, at the latest");
        }
        Ok(RecordPiece { from, to, index, term, total, offset, bytes: reader.rest() })
    }
}

impl Serialize for RecordPiece<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            from: u32,
            to: u32,
            index: u64,
            term: u64,
            total: u32,
            offset: u32,
            len: usize,
        }
        let RecordPiece { from, to, index, term, total, offset, bytes } = *self;
        Shown { from, to, index, term, total, offset, len: bytes.len() }.serialize(serializer)
    }
}
