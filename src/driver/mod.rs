//! What executes the leader's outputs: sockets, timers, signals. The only rooms with I/O in the leader.

mod choice;
mod conn;
mod descriptors;
mod filling;
mod hub;
mod inbound;
mod journal;
mod pipes;
mod memory;
mod open_rate;
mod outbox;
mod parking;
mod portable;
mod room;
mod socket;
mod spin;
pub mod spool;
mod storage;
mod splice;
mod uring;

pub use choice::{Choice, Driver};
pub use descriptors::Descriptors;
pub use hub::Options;
pub use spin::SpinMode;
pub use storage::{Prepared, Storage};
