//! Transfers as workers and clients take part in them: blobs that come, and blobs that go, in
//! chunks over a connection to a leader.
//!
//! Portable, and free of jobs: it knows blobs, chunks, files and memory. The decisions are pure and
//! stand apart from the reading and writing: nothing here dials, waits for frames or knows who
//! asked for a blob. Worker sessions and client connections feed it the frames of a transfer and
//! send what it answers.
//!
//! | file | does |
//! |---|---|
//! | `outgoing` | which chunks are to be sent, and when Done is due: pure |
//! | `source` | where the bytes of a blob come from, and how a chunk of them is made ready |
//! | `pieces` | the same for a blob that is made of stretches of many files |
//! | `upload` | a blob that goes: the task that sends it |
//! | `uploads` | all blobs that go, by id: who owns each, and whose word counts for it |
//! | `incoming` | which chunks came, what may come, what is wrong: pure |
//! | `sink` | where the bytes of a blob go |
//! | `download` | a blob that comes: checks, inflates, stores, and says what to answer |
//! | `stored` | its second half: what is done to the bytes, in place or on a thread of its own |
//! | `downloads` | all blobs that come, by id: the same, and what is here of chunks that are not whole |

mod download;
mod downloads;
mod incoming;
mod outgoing;
mod pieces;
mod sink;
mod source;
mod stored;
pub(crate) mod throttle;
mod upload;
mod uploads;

pub(crate) use download::is_full;
pub use download::{Download, DownloadState, Report};
pub(crate) use downloads::{Downloads, NotTaken, Opened, Turn, refusal};
pub use incoming::{Arrival, Incoming, Ruling};
pub use outgoing::{Inbound, Outgoing, Waiting, Work};
pub use pieces::{PieceAt, PieceSource};
pub use sink::{ChunkSink, FileSink, MemorySink};
pub use source::{FileSource, Source, SourceError};
pub use upload::{Blob, Compression, State, Status, Upload, Wire};
pub(crate) use uploads::Uploads;

/// A connection, by its number among those of a peer.
pub(crate) type Conn = usize;

/// The number of the connection where a peer has one at a time.
pub(crate) const ONLY: Conn = 0;
