//! heft's own messages: codes 30 to 63, the payloads of frames that only announced peers receive,
//! and 21 to 27, 70 and 71, which only nodes of a cluster send each other.
//!
//! Each is a struct whose field list is its layout, read and written by [`Body`]. Nothing here
//! keeps state or knows the order of messages; connections do.

mod ask;
mod cluster;
mod dataset;
mod fields;
mod follow;
mod job;
mod reason;
mod transfer;
mod welcome;

pub use ask::{Answer, AnswerStatus, Ask};
pub use cluster::{
    AppendEntries, AppendOutcome, AppendResp, AppendSays, Challenge, EntryKind, EntryList,
    HelloPurpose, HelloVersions, InstallSnapResp, InstallSnapshot, InstallStage, LeaderHello,
    LogEntry, MembersBytes, Proof, RECORD_PIECE_HEAD_BYTES, RecordPiece, RequestVote, TimeoutNow,
    Trouble, VoteAnswer, VoteFlags, VoteResp,
};
pub use dataset::{
    DatasetEntry, DatasetList, DatasetState, Have, Hold, HoldFlags, Inspect, Lack, Lacking, Pack,
    PieceList, Put, PutFlags, Release, Spread, SpreadStage,
};
pub use fields::{Body, Field, MessageError, Name, NameOver, Reader, Text, VERSION};
pub use follow::{Follow, FollowFlags, OUTPUT_HEAD_BYTES, Output, OutputSays, Stream};
pub use job::{
    Cancel, Heartbeat, HeldJob, HeldJobs, Keepalive, ProgramList, Programs, ProgramsSay, Progress,
    Received, Refused, Settled, Stage, Standing, Start, StartFlags, Submitted, parse_credit,
};
pub use reason::Reason;
pub use transfer::{
    Abort, Done, Grant, HeldPart, Open, OpenFlags, PIECE_HEAD_BYTES, PartOf, Piece, Purpose,
    Verdict, Void,
};
pub use welcome::{Features, LimitId, LimitList, Welcome};

use crate::kind::Kind;
use serde::Serialize;

macro_rules! messages {
    ($($name:ident),*; $($borrowed:ident),*) => {
        /// Any message with a layout of ours, for tools and tests that meet all of them.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize)]
        pub enum Message<'a> {
            $(#[doc = concat!("[`", stringify!($name), "`](type@", stringify!($name), ")")] $name($name),)*
            $(#[doc = concat!("[`", stringify!($borrowed), "`]")] $borrowed($borrowed<'a>),)*
        }

        impl<'a> Message<'a> {
            /// Reads the payload of a frame of `kind`.
            pub fn decode(kind: Kind, payload: &'a [u8]) -> Result<Self, MessageError> {
                match kind {
                    $(Kind::$name => $name::decode(payload).map(Message::$name),)*
                    $(Kind::$borrowed => $borrowed::decode(payload).map(Message::$borrowed),)*
                    other => Err(MessageError::NotOurs { message: other }),
                }
            }

            /// Appends the payload.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self {
                    $(Message::$name(message) => message.encode(out),)*
                    $(Message::$borrowed(message) => message.encode(out),)*
                }
            }
        }
    };
}

messages! {
    Welcome, Open, Grant, Done, Verdict, Abort, Void, Submitted, Refused, Start, Heartbeat, Progress, Cancel, Settled,
    Received, Keepalive, Programs, Put, Lack, Spread, Hold, Pack, Release, Have, Inspect, Follow,
    LeaderHello, AppendEntries, AppendResp, RequestVote, VoteResp, InstallSnapshot, InstallSnapResp, TimeoutNow;
    Ask, Answer, Piece, Output, RecordPiece
}
