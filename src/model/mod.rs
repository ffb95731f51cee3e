//! The JSON that peers put into frames (SPEC 1C): typed models, the one reader and the one writer
//! they share, and the machine that takes a payload apart while it is still arriving. Nothing here
//! does I/O, keeps a clock or decides what a job may do. Connections, the three roles and the
//! command line call it.
//!
//! Members that are ours (`Blob`, `Priority`, `Heft`, ...) are left out when they have nothing to
//! say, so a classic peer sees byte for byte what .NET would have written.

pub mod blob;
pub mod cache;
pub mod error;
pub mod hello;
pub mod job;
pub mod json;
pub mod limits;
pub mod result;
pub mod stream;

pub use blob::{BlobRef, blob_id};
pub use cache::{CacheEntry, CachePutRequest, CachePutResult, CacheStatus};
pub use error::{ModelError, Place};
pub use hello::{Announcement, ClientConfig, SOFTWARE, WorkerHello};
pub use job::{Deliver, InputFile, JobRequest, Source};
pub use json::JsonModel;
pub use result::{JobResult, JobStatus, LostPart, WHOLE_RESULT};
pub use stream::{ContentEvent, ContentStream, Residue, ResultSlot, Shape};
