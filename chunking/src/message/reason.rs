//! Reason codes for refusals, endings and delays: a number for programs, next to the sentence for
//! people.

use super::{Field, MessageError, Reader};
use serde::Serialize;
use std::fmt;

/// A reason's number. New numbers may come with any version, so an unknown one is kept and never an
/// error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Reason(pub u16);

macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        impl Reason {
            $($(#[$doc])* pub const $name: Reason = Reason($code);)*

            /// Every reason this build knows, with its name.
            pub const KNOWN: &'static [(Reason, &'static str)] = &[$((Reason::$name, $text),)*];
        }
    };
}

reasons! {
    /// Nothing is wrong.
    NONE = 0, "none";
    /// The bytes, names or numbers are not valid.
    INVALID = 1, "invalid";
    /// Larger than a hop on the path takes.
    TOO_LARGE = 2, "too-large";
    /// The job, transfer or blob is not known here.
    UNKNOWN = 3, "unknown";
    /// No worker is there that could take it.
    NO_WORKER = 4, "no-worker";
    /// The receiver's buffers are all in use.
    POOL_FULL = 5, "pool-full";
    /// The leader's spool has reached its limit.
    SPOOL_FULL = 6, "spool-full";
    /// The receiver's disk is full.
    DISK_FULL = 7, "disk-full";
    /// The receiving end takes nothing at the moment.
    SLOW_RECEIVER = 8, "slow-receiver";
    /// A chunk's checksum or place is wrong.
    BAD_CHUNK = 9, "bad-chunk";
    /// The blob's digest is wrong.
    BAD_DIGEST = 10, "bad-digest";
    /// More was sent than the window allowed.
    WINDOW_IGNORED = 11, "window-ignored";
    /// The source changed or went away while it was sent.
    SOURCE_GONE = 12, "source-gone";
    /// Someone cancelled it.
    CANCELLED = 13, "cancelled";
    /// The same id was used before, with other content.
    CONFLICT = 14, "conflict";
    /// The leader is about to stop.
    DRAINING = 15, "draining";
    /// It took longer than a named time limit.
    TIMED_OUT = 16, "timed-out";
    /// A queue or table has reached its limit.
    BUSY = 17, "busy";
    /// An input or output error at the receiver.
    IO = 18, "io";
    /// The receiver cannot use the directory that it works in.
    NO_DIRECTORY = 19, "no-directory";
    /// No connected worker has the job's program.
    NO_PROGRAM = 20, "no-program";
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::KNOWN.iter().find(|(known, _)| known == self) {
            Some((_, name)) => f.write_str(name),
            None => write!(f, "reason {}", self.0),
        }
    }
}

impl Field for Reason {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader.field(field).map(Reason)
    }
}
