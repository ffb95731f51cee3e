//! Transfers as workers and clients take part in them: blobs that come, and blobs that go, in chunks over a connection to
//! a leader.
//!
//! Portable, and free of jobs: it knows blobs, chunks, files and memory. The decisions are pure and stand apart from the
//! reading and writing: nothing here dials, waits for frames or knows who asked for a blob. Worker sessions and client
//! connections feed it the frames of a transfer and send what it answers.
//!
//! | file | does |
//! |---|---|
//! | `outgoing` | which chunks are to be sent, and when Done is due: pure |
//! | `source` | where the bytes of a blob come from, and how a chunk of them is made ready |
//! | `pieces` | the same for a blob that is made of stretches of many files |
//! | `upload` | a blob that goes: the task that sends it |
//! | `incoming` | which chunks came, what may come, what is wrong: pure |
//! | `sink` | where the bytes of a blob go |
//! | `download` | a blob that comes: checks, inflates, stores, and says what to answer |
//! | `stored` | its second half: what is done to the bytes, in place or on a thread of its own |

mod download;
mod incoming;
mod outgoing;
mod pieces;
mod sink;
mod source;
mod stored;
mod upload;

pub(crate) use download::is_full;
pub use download::{Download, DownloadState, Report};
pub use incoming::{Arrival, Incoming, Ruling};
pub use outgoing::{Heard, Outgoing, Waiting, Work};
pub use pieces::{PieceAt, PieceSource};
pub use sink::{ChunkSink, FileSink, MemorySink};
pub use source::{FileSource, Source, SourceError};
pub use upload::{Blob, Compression, State, Status, Upload, Wire};

use chunking::Kind;
use chunking::message::{Body, Purpose};
use uuid::Uuid;

use crate::peer::OutFrame;

/// The id of a blob, which is that of the transfers that move it. It is derived, so that who submits a job again, or sends
/// a result again, names the same blobs: the owner is the job, `attempt` is 0 for inputs, and `index` is the place among
/// the blobs of the same purpose.
pub fn blob_id(owner: Uuid, attempt: u32, purpose: Purpose, index: u32) -> Uuid {
    let mut named = Vec::with_capacity(32);
    named.extend_from_slice(owner.as_bytes());
    named.extend_from_slice(&attempt.to_le_bytes());
    named.push(purpose as u8);
    named.extend_from_slice(&index.to_le_bytes());
    let digest = chunking::digest::blake3(&named);
    digest.first_chunk().map_or(Uuid::nil(), |first| Uuid::from_bytes(*first))
}

/// A frame of a transfer.
pub(crate) fn transfer_frame<M: Body>(transfer: Uuid, message: &M) -> OutFrame {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    let kind: Kind = M::KIND;
    OutFrame { msg_id: transfer, ..OutFrame::new(kind, payload) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_blob_has_the_same_id_whenever_it_is_named_and_another_for_each_part() {
        let job = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let id = blob_id(job, 0, Purpose::Input, 0);
        assert_eq!(id, blob_id(job, 0, Purpose::Input, 0));
        assert_eq!(id.to_string(), "b7ed4e6d-4efc-72a0-3151-e516f5a0284c");
        for other in [
            blob_id(Uuid::nil(), 0, Purpose::Input, 0),
            blob_id(job, 1, Purpose::Input, 0),
            blob_id(job, 0, Purpose::Archive, 0),
            blob_id(job, 0, Purpose::Input, 1),
        ] {
            assert_ne!(id, other);
        }
    }
}
