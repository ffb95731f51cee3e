//! heft: a job broker for heavy payloads.
//!
//! The rooms of this crate depend on each other in one direction only; `docs/architecture.md` has the picture.

#![deny(unsafe_code)]

pub mod answers;
pub mod cli;
pub mod client;
pub mod conn;
pub mod consensus;
pub mod core;
mod cpu;
pub mod driver;
mod fs;
pub mod leader;
pub mod model;
#[cfg(test)]
mod noise;
pub mod peer;
pub mod store;
pub mod summed;
pub mod transfer;
#[cfg(test)]
mod transitions;
pub mod units;
pub mod wire;
pub mod worker;
