//! The interface by which records are committed. A single node commits through its own log; a
//! cluster commits by majority, which is proven in simulation and not used by any leader yet.
//!
//! A proposer is told of commits in the order of its proposals.

pub mod limits;
pub mod members;
pub mod planted;
pub mod raft;
mod single;

pub use single::Single;
