//! The interface by which records are committed. A single node commits through its own log; a
//! cluster will by majority.
//!
//! A proposer is told of commits in the order of its proposals.

mod single;

pub use single::Single;
