//! What executes the leader's outputs: sockets, timers, signals. The only rooms with I/O in the leader.

#[cfg(target_os = "linux")]
mod lane;
#[cfg(not(target_os = "linux"))]
#[path = "no_lane.rs"]
mod lane;
pub mod portable;
mod spin;
pub mod spool;

pub use spin::SpinMode;
