//! The broker's rules, free of I/O: no clock, socket, file, thread or random number.
//!
//! [`Broker`] takes [`Event`]s and returns [`Action`]s. Every change is first a [`Record`], is
//! committed by the driver, and only then applied to [`State`](state::State). The broker sees ids,
//! sizes and digests, never a payload.

mod acks;
pub mod action;
mod agent_requests;
mod apply;
mod broken;
mod broker;
mod cache_id;
pub(crate) mod capacity;
pub mod caps;
pub mod choose;
pub mod cluster;
pub mod dataset;
mod dispatch;
pub mod event;
mod expiry;
pub mod explain;
pub mod flagged;
pub mod forgotten;
pub mod holdings;
pub mod ids;
mod inputs;
mod invariants;
pub mod job;
pub mod lease;
pub mod limits;
pub mod locality;
pub mod members;
mod missing_programs;
pub mod names;
mod operator;
pub mod payload;
pub mod programs;
pub mod queue;
pub mod record;
mod restore;
pub mod retry;
pub mod staging;
pub mod state;
pub mod subject;
mod submit;
mod texts;
mod timers;
mod waiting;
pub mod worker;

pub use action::Action;
pub(crate) use broken::{broken, count_down};
pub use broker::Broker;
pub use event::Event;
pub use limits::Config;
pub use record::Record;
