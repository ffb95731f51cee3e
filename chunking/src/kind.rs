//! Frame type codes: the founding documents' and heft's own.
//!
//! A frame with an unknown code is still a frame. Whether that matters is the connection's decision
//! (classic peers skip unknown frames, SPEC 1B), so looking up the code is a separate step.

use serde::Serialize;
use std::fmt;
use thiserror::Error;

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $code:literal,)*) => {
        /// What a frame is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
        #[repr(u8)]
        pub enum Kind { $($(#[$doc])* $name = $code,)* }

        impl Kind {
            /// Every kind, in the order of the codes.
            pub const ALL: &'static [Kind] = &[$(Kind::$name,)*];

            /// The name as documents and tools spell it.
            pub const fn name(self) -> &'static str {
                match self { $(Kind::$name => stringify!($name),)* }
            }
        }

        impl TryFrom<u8> for Kind {
            type Error = UnknownKind;

            fn try_from(code: u8) -> Result<Self, UnknownKind> {
                match code { $($code => Ok(Kind::$name),)* _ => Err(UnknownKind { code }) }
            }
        }
    };
}

kinds! {
    /// A client submits a job (T01).
    SubmitJob = 1,
    /// The leader gives a job to a worker (T02).
    AssignJob = 2,
    /// A worker reports a job's end (T03).
    AckJob = 3,
    /// A worker offers room for more jobs (T04).
    Credit = 4,
    /// The leader passes a job's result to its client (T05).
    Result = 5,
    /// A dataset for workers' caches, whole in one frame (T06).
    CachePut = 6,
    /// A worker's answer to a CachePut (T07).
    CacheAck = 7,
    /// First frame of a client (T09).
    HelloClient = 9,
    /// First frame of a worker (T10).
    HelloWorker = 10,
    /// A follower names the leader (T20).
    NotLeader = 20,
    /// Node to node handshake (T21).
    LeaderHello = 21,
    /// Log replication (T22).
    AppendEntries = 22,
    /// Answer to AppendEntries (T23).
    AppendResp = 23,
    RequestVote = 24,
    /// Answer to RequestVote (T25).
    VoteResp = 25,
    /// Snapshot transfer (T26).
    InstallSnapshot = 26,
    /// Answer to InstallSnapshot (T27).
    InstallSnapResp = 27,
    /// The leader's answer to a peer that announced itself.
    Welcome = 30,
    /// A transfer begins, or begins again.
    Open = 31,
    /// Room for more chunks, and what the receiver has.
    Grant = 32,
    /// One piece of a blob.
    Chunk = 33,
    /// All chunks were sent; here is the digest.
    Done = 34,
    /// What the receiver makes of the blob.
    Verdict = 35,
    /// The transfer ends without a blob.
    Abort = 36,
    /// A chunk that was sent must not be used.
    Void = 37,
    /// A part of a chunk.
    Piece = 38,
    /// The leader took the job.
    Submitted = 40,
    /// The leader did not take what was sent.
    Refused = 41,
    /// The worker may run the job it was assigned.
    Start = 42,
    /// A worker lives, and these jobs with it.
    Heartbeat = 43,
    /// How far a job is.
    Progress = 44,
    /// The job is not wanted any more.
    Cancel = 45,
    /// The job's result is safe with the leader; the worker may forget it.
    Settled = 46,
    /// A client has a job's result; the leader need not push it again.
    Received = 47,
    /// The sender is alive and has nothing else to send.
    Keepalive = 48,
    /// Which programs a worker has; from the leader, the wish to hear it.
    Programs = 49,
    /// A client puts a dataset.
    Put = 50,
    /// What the receiver of a dataset lacks.
    Lack = 51,
    /// How far a put is, over all workers.
    Spread = 52,
    /// A worker is to hold a dataset.
    Hold = 53,
    /// What a pack holds that is about to be opened.
    Pack = 54,
    /// A worker need not hold a dataset any more.
    Release = 55,
    /// Which datasets a worker has.
    Have = 56,
    /// A worker is to check a dataset.
    Inspect = 57,
    /// A question to the leader, in JSON.
    Ask = 60,
    /// The leader's answer, in JSON.
    Answer = 61,
    /// An output of a job is wanted while it runs.
    Follow = 62,
    /// What a job prints.
    Output = 63,
    /// A part of a record that is too large for an AppendEntries.
    RecordPiece = 70,
    /// A node is to stand for election at once.
    TimeoutNow = 71,
}

impl Kind {
    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// Whether a peer that announced nothing may exceed [`FRAME_BODY_BYTES_MAX`] with it (W06):
    /// these three carry base64 contents, and a classic writer knows no limit.
    ///
    /// [`FRAME_BODY_BYTES_MAX`]: crate::limits::FRAME_BODY_BYTES_MAX
    pub const fn is_classic_bulk(self) -> bool {
        matches!(self, Kind::SubmitJob | Kind::AckJob | Kind::CachePut)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A type byte that no kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("frame type {code} is not known{}", reserved_for(*.code))]
pub struct UnknownKind {
    pub code: u8,
}

fn reserved_for(code: u8) -> &'static str {
    match code {
        30..=39 => "; 30-39 belong to transfers: the peer may be newer than this build",
        40..=49 => "; 40-49 belong to job control: the peer may be newer than this build",
        50..=59 => "; 50-59 belong to datasets: the peer may be newer than this build",
        60..=69 => "; 60-69 belong to questions and output: the peer may be newer than this build",
        70..=79 => "; 70-79 belong to nodes of a cluster: the peer may be newer than this build",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_leads_to_its_kind_and_back() {
        let known: Vec<u8> = (0..=u8::MAX).filter(|code| Kind::try_from(*code).is_ok()).collect();
        assert_eq!(known, Kind::ALL.iter().map(|kind| kind.code()).collect::<Vec<_>>());
        for kind in Kind::ALL {
            assert_eq!(Kind::try_from(kind.code()), Ok(*kind));
        }
    }

    #[test]
    fn an_unknown_code_in_a_reserved_range_says_whose_it_is() {
        assert_eq!(UnknownKind { code: 8 }.to_string(), "frame type 8 is not known");
        assert!(UnknownKind { code: 59 }.to_string().contains("belong to datasets"));
        assert!(UnknownKind { code: 69 }.to_string().contains("belong to questions"));
        assert!(UnknownKind { code: 79 }.to_string().contains("belong to nodes of a cluster"));
        assert_eq!(UnknownKind { code: 80 }.to_string(), "frame type 80 is not known");
    }
}
