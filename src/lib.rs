//! heft: a job broker for heavy payloads.
//!
//! The rooms of this crate depend on each other in one direction only; `docs/architecture.md` has the picture. The client and
//! what it needs run on any system; the leader, the worker and the commands are Linux's.

#![deny(unsafe_code)]

pub mod answers;
#[cfg(target_os = "linux")]
pub mod cli;
pub mod client;
pub mod conn;
pub mod consensus;
pub mod core;
#[cfg(target_os = "linux")]
mod cpu;
#[cfg(target_os = "linux")]
pub mod driver;
#[cfg(target_os = "linux")]
mod fs;
#[cfg(target_os = "linux")]
pub mod leader;
pub mod model;
#[cfg(test)]
mod noise;
pub mod peer;
#[cfg(target_os = "linux")]
pub mod store;
pub mod summed;
pub mod transfer;
#[cfg(test)]
mod transitions;
pub mod units;
pub mod wire;
#[cfg(target_os = "linux")]
pub mod worker;
