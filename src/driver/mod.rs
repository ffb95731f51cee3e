//! What executes the leader's outputs: sockets, timers, signals. The only rooms with I/O in the leader.

pub mod portable;
mod spin;
pub mod spool;

pub use spin::SpinMode;
