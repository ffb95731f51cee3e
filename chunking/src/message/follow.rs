//! The output of a job while it runs: a client follows one of the two outputs, the worker sends
//! what the program prints. MsgId of both messages is the follow's id, which whoever asks has made.
//!
//! An offset is a place in all that the program printed to that output since it began. Nothing is
//! sent beyond `until`, so the receiver decides how much is under way.

use super::fields::{VERSION, byte_enum, flags, message};
use super::{Field, MessageError, Reader, Reason};
use crate::kind::Kind;
use crate::limits::{OUTPUT_PIECE_BYTES_MAX, TEXT_BYTES_MAX};
use serde::{Serialize, Serializer};
use uuid::Uuid;

byte_enum! {
    /// One of a program's outputs.
    Stream, "streams are 1 stdout, 2 stderr", {
        Stdout = 1,
        Stderr = 2,
    }
}

impl Stream {
    /// Its name, for people.
    pub const fn name(self) -> &'static str {
        match self {
            Stream::Stdout => "stdout",
            Stream::Stderr => "stderr",
        }
    }
}

flags! {
    /// How a follow is meant.
    FollowFlags {
        /// It goes on after what is there now, until the job has ended.
        STAYS = 1,
        /// It is over: nothing more is wanted.
        OVER = 2,
    }
}

message! {
    /// An output of a job is wanted. The same id again moves `until`, or ends the follow.
    Follow {
        job: Uuid,
        /// The attempt; 0 for whichever is under way, which is all that clients say.
        attempt: u32,
        /// The attempt under which the program began whose output is known up to `from`; 0 if none
        /// is known. If it is another program that runs, its output comes from the start, with as
        /// much room as there was: `until - from`.
        began: u32,
        stream: Stream,
        flags: FollowFlags,
        /// Up to here it is known.
        from: u64,
        /// Up to here it may be sent.
        until: u64,
    }
}

byte_enum! {
    /// What an Output says.
    OutputSays, "outputs are 0 bytes, 1 begins, 2 ends, 3 present, 4 job ended, 5 refused, 6 waits, 7 lost", {
        /// The bytes at `offset`.
        Bytes = 0,
        /// A program's output follows, from `offset` on. The text names the worker.
        Begins = 1,
        /// The program has printed `offset` bytes, and has ended. What was not sent of it is in the
        /// job's result.
        Ends = 2,
        /// There is nothing more now, and the follow was not to stay. It is over.
        Present = 3,
        /// The job has ended: what was not sent of its output is in its result. The follow is over.
        JobEnded = 4,
        /// The output cannot be had; the text says why. The follow is over.
        Refused = 5,
        /// Nothing comes at the moment; the text says why. The follow goes on.
        Waits = 6,
        /// Nobody has what is before `offset`, where the output goes on.
        Lost = 7,
    }
}

/// Something of a job's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Output<'a> {
    pub says: OutputSays,
    /// The attempt; 0 while there is none.
    pub attempt: u32,
    /// The attempt under which the program began. It is an earlier one where a worker that was
    /// given up went on with the job, and was given it again.
    pub began: u32,
    pub offset: u64,
    pub reason: Reason,
    /// Bytes of the output, or a text.
    #[serde(serialize_with = "as_length")]
    pub bytes: &'a [u8],
}

/// Bytes of an Output's payload before the bytes of the program.
pub const OUTPUT_HEAD_BYTES: usize = 1 + 1 + 4 + 4 + 8 + 2;

impl<'a> Output<'a> {
    /// One without bytes.
    pub const fn new(says: OutputSays, attempt: u32, began: u32, offset: u64) -> Self {
        Output { says, attempt, began, offset, reason: Reason::NONE, bytes: &[] }
    }

    /// The same with a text for people; a long one is cut.
    pub fn with_text(self, text: &'a str) -> Self {
        let (text, _) = text.split_at(text.floor_char_boundary(TEXT_BYTES_MAX));
        Output { bytes: text.as_bytes(), ..self }
    }

    /// The text, where it has one.
    pub fn text(&self) -> &'a str {
        match self.says {
            OutputSays::Bytes => "",
            OutputSays::Begins
            | OutputSays::Ends
            | OutputSays::Present
            | OutputSays::JobEnded
            | OutputSays::Refused
            | OutputSays::Waits
            | OutputSays::Lost => str::from_utf8(self.bytes).unwrap_or_default(),
        }
    }

    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        self.says.put(out);
        self.attempt.put(out);
        self.began.put(out);
        self.offset.put(out);
        self.reason.put(out);
        out.extend_from_slice(self.bytes);
    }

    /// Reads a payload: no more bytes than there may be, whose places can be counted.
    pub fn decode(payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader::new(Kind::Output, payload)?;
        let says: OutputSays = reader.field("says")?;
        let (attempt, began) = (reader.field("attempt")?, reader.field("began")?);
        let (offset, reason) = (reader.field::<u64>("offset")?, reader.field("reason")?);
        let len = reader.len();
        let bad = |value, expected| Err(reader.bad_value("bytes", value, expected));
        if says == OutputSays::Bytes {
            if len == 0 || len > OUTPUT_PIECE_BYTES_MAX as usize {
                return bad(len as u64, "an output has 1 to 65536 bytes");
            }
            if offset.checked_add(len as u64).is_none() {
                return Err(reader.bad_value(
                    "offset",
                    offset,
                    "an output has less than 2^64 bytes",
                ));
            }
        } else if len > TEXT_BYTES_MAX {
            return bad(len as u64, "a text has at most 2048 bytes");
        }
        let bytes = reader.rest();
        if says != OutputSays::Bytes
            && let Err(error) = str::from_utf8(bytes)
        {
            let at = error.valid_up_to();
            return Err(MessageError::NotUtf8 { message: Kind::Output, field: "bytes", at });
        }
        Ok(Output { says, attempt, began, offset, reason, bytes })
    }
}

fn as_length<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u64(bytes.len() as u64)
}
