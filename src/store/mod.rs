//! What outlives the leader: the log, its snapshots and the blobs, in files that say what they are and can be checked.
//!
//! Everything goes through [`disk::Disk`]; nothing in here has a thread or a clock. Drivers run it on threads of their own,
//! tests over a disk that fails.

pub mod codec;
pub mod disk;
pub mod format;
pub mod log;
pub mod replay;
pub mod snapshot;
