//! Drivers execute the leader's outputs: sockets, timers, and the threads that run the store's
//! files. The leader itself does no I/O.

mod choice;
mod conn;
mod descriptors;
mod filling;
mod hub;
mod inbound;
mod journal;
mod memory;
mod open_rate;
mod outbox;
mod parking;
mod pipes;
mod portable;
mod room;
mod socket;
mod spin;
mod splice;
pub mod spool;
mod storage;
mod uring;

pub use choice::{Choice, Driver};
pub use descriptors::Descriptors;
pub use hub::Options;
pub use spin::SpinMode;
pub use storage::{Prepared, Storage};
