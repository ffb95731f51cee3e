//! The seam at which records become committed. One node commits by its own log; a cluster will by a
//! majority.
//!
//! Who proposes hears of commits in the order of proposals, never out of it.

mod single;

pub use single::Single;
