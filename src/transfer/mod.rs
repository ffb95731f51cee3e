//! Transfers at workers and clients: blobs sent and received in chunks over a connection to a
//! leader.
//!
//! Portable, and independent of jobs: it knows blobs, chunks, files and memory. Decisions are pure
//! and separate from I/O: nothing here dials, waits for frames or knows why a blob is wanted.
//! Worker sessions and client connections feed it the frames of a transfer and send its answers.
//!
//! | file | does |
//! |---|---|
//! | `outgoing` | which chunks to send, and when Done is due: pure |
//! | `source` | where a blob's bytes come from, and how a chunk is prepared |
//! | `pieces` | the same for a blob made of ranges of many files |
//! | `upload` | the task that sends one blob |
//! | `uploads` | all outgoing blobs by id, with their owners and connections |
//! | `incoming` | which chunks are accepted and which may still be sent: pure |
//! | `sink` | where a blob's bytes go |
//! | `download` | receives one blob: checks, inflates, stores, answers |
//! | `stored` | its second half: the work on the bytes, in place or on a thread |
//! | `downloads` | all incoming blobs by id, with incomplete chunks |

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
