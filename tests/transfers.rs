//! Large inputs and results through the whole chain: real leaders, workers and clients, ours and
//! classic, with connections that are cut, processes that are killed and peers that misbehave. What
//! is delivered has the digest of what was sent, and when all is over nothing is left: no job,
//! buffer, file or descriptor.
//!
//! `HEFT_TEST_SCALE=long` sends larger files and cuts more often.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/uploads.rs"]
mod uploads;

#[path = "transfers/all.rs"]
mod all;
#[path = "transfers/classic.rs"]
mod classic;
#[path = "transfers/copies.rs"]
mod copies;
#[path = "transfers/cuts.rs"]
mod cuts;
#[path = "transfers/inputs.rs"]
mod inputs;
#[path = "transfers/kills.rs"]
mod kills;
#[path = "transfers/misbehaving.rs"]
mod misbehaving;
#[path = "transfers/proxy.rs"]
mod proxy;
#[path = "transfers/receivers.rs"]
mod receivers;
#[path = "transfers/results.rs"]
mod results;
#[path = "transfers/short_lines.rs"]
mod short_lines;
#[path = "transfers/splice.rs"]
mod splice;
#[path = "transfers/world.rs"]
mod world;
