//! The messages of a transfer. The frame's MsgId is the transfer's id in all of them.
//!
//! `Open -> Grant -> Chunk... -> Done -> Verdict`, with `Abort` from either side at any time and `Void` for a chunk
//! that must not be used. [`Chunk`](crate::chunk) has a head of its own and is not among them.

use super::layout::{byte_enum, flags, message};
use super::{Body, Field, MessageError, Name, Reader, Reason, Text};
use crate::bitmap::Ranges;
use crate::codec::Codec;
use crate::digest::{Digest, DigestKind};
use crate::kind::Kind;
use serde::Serialize;
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
        /// The sender keeps the source until the job's terminal result, and sends it again if asked. Only such a transfer
        /// may take the lane on which the leader never sees the bytes.
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
        /// The attempt it belongs to, counted over all runs of the job; 0 outside of attempts. Fences what an old one sends.
        attempt: u32,
        /// The file's name; empty where the purpose says it all.
        name: Name,
    }
}

message! {
    /// Room for more chunks. The first Grant of a connection says what the receiver has; only the rest is to be sent.
    Grant {
        /// Chunks that may be sent beyond those granted before on this connection. 0: wait, for `reason`.
        window: u32,
        /// Why there is no more room.
        reason: Reason,
        /// The same for people.
        text: Text,
        /// Chunks that are held already. Empty after the first Grant.
        held: Ranges,
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
        /// Why.
        reason: Reason,
        /// The same for people.
        text: Text,
    }
}

message! {
    /// The chunk at `offset` that went before must not be used: its source broke while it was on the way, and what
    /// followed the break is filling.
    Void {
        /// The chunk's offset in the blob.
        offset: u64,
        /// Why.
        reason: Reason,
    }
}

/// What the receiver makes of a blob whose Done has come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Verdict {
    /// It is whole and its digest is right. The sender may forget it.
    Ok,
    /// These chunks are missing or were bad; then Done again.
    Resend(
        /// Which.
        Ranges,
    ),
    /// It will not be taken.
    Failed {
        /// Why.
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
            2 => Ok(Verdict::Failed { reason: reader.field("reason")?, text: reader.field("text")? }),
            other => Err(reader.bad_value("outcome", other.into(), "outcomes are 0 ok, 1 resend, 2 failed")),
        }
    }
}
