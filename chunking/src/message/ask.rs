//! Questions and answers in JSON on the leader's port, for status and operation. The frame's
//! subject is the verb, such as `status` or `dlq.ls`; an Answer repeats it, and its CorrId is the
//! Ask's MsgId.
//!
//! The JSON is borrowed and not parsed here.

use super::fields::{VERSION, byte_enum};
use super::{Field, MessageError, Reader};
use crate::kind::Kind;
use serde::{Serialize, Serializer};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Ask<'a> {
    /// Arguments: a JSON object.
    #[serde(serialize_with = "as_text")]
    pub json: &'a [u8],
}

byte_enum! {
    /// How an Answer stands to its Ask.
    AnswerStatus, "statuses are 0 whole, 1 more follows, 2 error", {
        /// This is all of it, or the last of it.
        Whole = 0,
        /// Another Answer to the same Ask follows: lists may be longer than a frame.
        MoreFollows = 1,
        /// The Ask failed; the JSON says why.
        Error = 2,
    }
}

/// An answer, or a part of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Answer<'a> {
    /// How it stands to its Ask.
    pub status: AnswerStatus,
    /// The answer: a JSON object.
    #[serde(serialize_with = "as_text")]
    pub json: &'a [u8],
}

impl<'a> Ask<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        out.extend_from_slice(self.json);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, MessageError> {
        Ok(Ask { json: Reader::new(Kind::Ask, payload)?.rest() })
    }
}

impl<'a> Answer<'a> {
    /// Appends the payload.
    pub fn encode(&self, out: &mut Vec<u8>) {
        VERSION.put(out);
        self.status.put(out);
        out.extend_from_slice(self.json);
    }

    /// Reads a payload.
    pub fn decode(payload: &'a [u8]) -> Result<Self, MessageError> {
        let mut reader = Reader::new(Kind::Answer, payload)?;
        Ok(Answer { status: reader.field("status")?, json: reader.rest() })
    }
}

fn as_text<S: Serializer>(json: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&String::from_utf8_lossy(json))
}
