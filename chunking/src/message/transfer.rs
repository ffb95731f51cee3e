//! Transfer messages. The frame's MsgId is the transfer's id in all of them.
//!
//! `Open -> Grant -> Chunk... -> Done -> Verdict`, with `Abort` from either side at any time and
//! `Void` for a chunk to discard. [`Chunk`](crate::chunk) has a head of its own and is not among
//! them; [`Piece`] carries a fragment of a chunk, if both sides support it.

use super::fields::{VERSION, byte_enum, flags, message};
use super::{Body, Field, MessageError, Name, Reader, Reason, Text};
use crate::bitmap::Ranges;
use crate::chunk::{CHUNK_HEAD_BYTES, ChunkHead};
use crate::codec::Codec;
use crate::digest::{Digest, DigestKind};
use crate::frame::{EncodeError, Generation, Head, head_len};
use crate::kind::Kind;
use crate::limits::{CHUNK_BYTES_MAX, CHUNK_PIECE_BYTES_MAX};
use serde::{Serialize, Serializer};
use uuid::Uuid;

byte_enum! {
    /// What a blob is to its owner.
    Purpose, "purposes are 1 input, 2 archive, 3 stdout, 4 stderr, 5 dataset, 6 payload", {
        /// An input file of a job.
        Input = 1,
        /// The archive of what a job made.
        Archive = 2,
        /// A job's standard output.
        Stdout = 3,
        /// A job's standard error.
        Stderr = 4,
        /// A file of a dataset.
        Dataset = 5,
        /// The whole payload of a raw job (M19).
        Payload = 6,
    }
}

flags! {
    /// What a sender promises about the source of a blob.
    OpenFlags {
        /// The sender keeps the source until the job's terminal result, and sends it again if
        /// asked. Only such a transfer may take the lane on which the leader never sees the bytes.
        KEEPS_SOURCE = 1,
    }
}

message! {
    /// A transfer begins, or begins again on a new connection: same id, same blob.
    Open {
        /// What the blob is to its owner.
        purpose: Purpose,
        /// The codec chunks may come in. Each chunk names its own, this one or none.
        codec: Codec,
        /// The digest that Done will carry.
        digest: DigestKind,
        /// What the sender promises.
        flags: OpenFlags,
        /// Raw bytes of a chunk; the last may be shorter.
        chunk_bytes: u32,
        /// Raw bytes of the blob.
        size: u64,
        /// The job or dataset it belongs to.
        owner: Uuid,
        /// The attempt it belongs to, counted over all runs of the job; 0 outside of attempts.
        /// Fences what an old one sends.
        attempt: u32,
        /// The file's name; empty where the purpose says it all.
        name: Name,
    }
}

message! {
    /// Room for more chunks. The first Grant of a connection says what the receiver has; only the
    /// rest is to be sent.
    Grant {
        /// Chunks that may be sent beyond those granted before on this connection. 0: wait, for
        /// `reason`.
        window: u32,
        /// Why there is no more room.
        reason: Reason,
        /// The same for people.
        text: Text,
        /// Chunks that are held already. Empty after the first Grant.
        held: Ranges,
        /// What is here of a chunk that is not whole: the sender goes on from there, if it would
        /// send the same bytes.
        #[serde(skip_serializing_if = "HeldPart::is_none")]
        part: HeldPart,
    }
}

/// What a receiver has of one chunk that is not whole, if it has something. Nothing is written
/// where it has not: peers that know no pieces send and get what they always did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldPart(pub Option<PartOf>);

/// A chunk of which the first bytes are here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PartOf {
    pub index: u32,
    /// Its first bytes, as they were sent.
    pub bytes: u32,
    /// The CRC-32 of all of its bytes as they were being sent: which bytes these are the first of.
    pub crc_sent: u32,
}

impl HeldPart {
    /// Whether nothing of a chunk is here.
    pub fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

impl Field for HeldPart {
    fn put(&self, out: &mut Vec<u8>) {
        if let HeldPart(Some(PartOf { index, bytes, crc_sent })) = self {
            1u8.put(out);
            index.put(out);
            bytes.put(out);
            crc_sent.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        if reader.is_empty() {
            return Ok(HeldPart(None));
        }
        match reader.field::<u8>(field)? {
            0 => return Ok(HeldPart(None)),
            1 => {}
            other => {
                return Err(reader.bad_value(
                    field,
                    other.into(),
                    "parts of at most one chunk are named",
                ));
            }
        }
        let (index, bytes, crc_sent) =
            (reader.field(field)?, reader.field(field)?, reader.field(field)?);
        Ok(HeldPart(Some(PartOf { index, bytes, crc_sent })))
    }
}

/// A part of a chunk. Those of one chunk come in order and without a gap, and no other chunk comes
/// in pieces on the same connection before its last byte is there; then it is a chunk like any
/// other. Other frames may stand between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    /// The chunk's head.
    pub head: ChunkHead,
    /// All bytes of the chunk as it is sent.
    pub sent_len: u32,
    /// Where in them these begin.
    pub from: u32,
    /// These bytes: at least one.
    pub bytes: &'a [u8],
}

/// Bytes of a Piece's payload before the chunk's bytes: version, chunk head, `sent_len`, `from`.
pub const PIECE_HEAD_BYTES: usize = 1 + CHUNK_HEAD_BYTES + 4 + 4;

impl<'a> Piece<'a> {
    /// Appends what stands before the bytes.
    fn encode_head(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        out.extend_from_slice(&self.head.encode());
        self.sent_len.put(out);
        self.from.put(out);
    }

    /// The whole frame but for the bytes: what stands before them, and the checksum behind them if
    /// there is to be one.
    pub fn frame(
        &self,
        transfer: Uuid,
        has_checksum: bool,
    ) -> Result<(Vec<u8>, Vec<u8>), EncodeError> {
        let mut front = Vec::with_capacity(PIECE_HEAD_BYTES);
        self.encode_head(&mut front);
        let payload_len =
            u32::try_from(front.len().saturating_add(self.bytes.len())).unwrap_or(u32::MAX);
        let frame = Head { msg_id: transfer, payload_len, ..Head::new(Kind::Piece) };
        let mut out = Vec::with_capacity(head_len(Generation::F2, "") + PIECE_HEAD_BYTES);
        let trailer = match has_checksum {
            true => {
                let mut crc = crc32fast::Hasher::new();
                crc.update(&front);
                crc.update(self.bytes);
                frame.append_summed(Generation::F2, crc.finalize(), &mut out)?.to_vec()
            }
            false => frame.append(Generation::F2, &mut out).map(|()| Vec::new())?,
        };
        out.extend_from_slice(&front);
        Ok((out, trailer))
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        self.encode_head(out);
        out.extend_from_slice(self.bytes);
    }

    /// Reads a payload: bytes that lie in the chunk, and neither none nor more than a piece may
    /// have.
    pub fn decode(payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader::new(Kind::Piece, payload)?;
        let (offset, raw_len) = (reader.field("offset")?, reader.field("raw_len")?);
        let (crc_sent, crc_raw) = (reader.field("crc_sent")?, reader.field("crc_raw")?);
        let head = ChunkHead { offset, raw_len, crc_sent, crc_raw, codec: reader.field("codec")? };
        let sent_len: u32 = reader.field("sent_len")?;
        let from: u32 = reader.field("from")?;
        let bad = |field, value: u64, expected| Err(reader.bad_value(field, value, expected));
        if sent_len > CHUNK_BYTES_MAX {
            return bad("sent_len", sent_len.into(), "a chunk has at most 1048576 bytes");
        }
        let len = reader.len();
        if len == 0 || len > CHUNK_PIECE_BYTES_MAX as usize {
            return bad("bytes", len as u64, "a piece has 1 to 65536 bytes");
        }
        if u64::from(from) + len as u64 > u64::from(sent_len) {
            return bad("from", from.into(), "a piece ends with its chunk, at the latest");
        }
        Ok(Piece { head, sent_len, from, bytes: reader.rest() })
    }
}

impl Serialize for Piece<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        struct Shown {
            offset: u64,
            raw_len: u32,
            crc_sent: u32,
            crc_raw: u32,
            codec: Codec,
            sent_len: u32,
            from: u32,
            len: usize,
        }
        let ChunkHead { offset, raw_len, crc_sent, crc_raw, codec } = self.head;
        let Piece { sent_len, from, bytes, .. } = *self;
        Shown { offset, raw_len, crc_sent, crc_raw, codec, sent_len, from, len: bytes.len() }
            .serialize(serializer)
    }
}

message! {
    /// Every chunk that was to be sent has been.
    Done {
        /// The digest of the whole blob.
        digest: Digest,
    }
}

message! {
    /// The transfer ends without a blob. Sent by either side; not answered.
    Abort {
        reason: Reason,
        /// The same for people.
        text: Text,
    }
}

message! {
    /// The chunk at `offset` that went before must not be used: its source broke while it was on
    /// the way, and what followed the break is filling.
    Void {
        /// The chunk's offset in the blob.
        offset: u64,
        reason: Reason,
    }
}

/// What the receiver makes of a blob whose Done has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It is whole and its digest is right. The sender may forget it.
    Ok,
    /// These chunks are missing or were bad; then Done again.
    Resend(Ranges),
    /// It will not be taken.
    Failed {
        reason: Reason,
        /// The same for people.
        text: Text,
    },
}

impl Body for Verdict {
    const KIND: Kind = Kind::Verdict;

    fn put_fields(&self, out: &mut Vec<u8>) {
        match self {
            Verdict::Ok => 0u8.put(out),
            Verdict::Resend(ranges) => {
                1u8.put(out);
                ranges.put(out);
            }
            Verdict::Failed { reason, text } => {
                2u8.put(out);
                reason.put(out);
                text.put(out);
            }
        }
    }

    fn get_fields(reader: &mut Reader<'_>) -> Result<Self, MessageError> {
        match reader.field::<u8>("outcome")? {
            0 => Ok(Verdict::Ok),
            1 => Ok(Verdict::Resend(reader.field("ranges")?)),
            2 => {
                Ok(Verdict::Failed { reason: reader.field("reason")?, text: reader.field("text")? })
            }
            other => Err(reader.bad_value(
                "outcome",
                other.into(),
                "outcomes are 0 ok, 1 resend, 2 failed",
            )),
        }
    }
}
