//! The baseline: the same bytes through a process that only copies from socket to socket.
//!
//! Blocking sockets tuned as heft's are, buffers of 1 MiB, no checks, no queue, no knowledge of
//! jobs in the middle. Nothing that stands between a client and a worker can do less in user space,
//! so its speed is the machine's.
//!
//! A job is a head that says how many bytes follow and how many are wanted back, then the bytes;
//! the answer is the same the other way. A lane is one connection from a client to the relay and
//! one from there to a worker.

mod client;
mod fan;
mod middle;
mod wire;
mod worker;

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpStream};

use anyhow::Context as _;
use heft::wire::{Tuning, tune};

pub(super) use client::client;
pub(super) use fan::{receiver, relay as fan_relay, sender};
pub(super) use middle::middle;
pub(super) use worker::worker;

use super::Lanes;

/// What is read and written at once.
const BUFFER_BYTES: usize = 1 << 20;

/// Which end of a lane a connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Client,
    Worker,
}

/// The first bytes of a connection: which end of which lane it is.
type Hello = [u8; 5];

fn hello(end: End, lane: u32) -> Hello {
    let [a, b, c, d] = lane.to_le_bytes();
    let end = match end {
        End::Client => b'c',
        End::Worker => b'w',
    };
    [end, a, b, c, d]
}

fn read_hello([end, a, b, c, d]: Hello) -> Option<(End, u32)> {
    let lane = u32::from_le_bytes([a, b, c, d]);
    match end {
        b'c' => Some((End::Client, lane)),
        b'w' => Some((End::Worker, lane)),
        _ => None,
    }
}

/// Connects every lane to the relay.
fn dial(port: u16, end: End, lanes: Lanes) -> anyhow::Result<Vec<TcpStream>> {
    let tuner = Tuner::new()?;
    let connect = |lane| {
        let stream =
            TcpStream::connect((Ipv4Addr::LOCALHOST, port)).context("cannot reach the relay")?;
        let mut stream = tuner.tuned(stream)?;
        stream.write_all(&hello(end, lane))?;
        Ok(stream)
    };
    (lanes.first..lanes.first.saturating_add(lanes.count)).map(connect).collect()
}

/// Tunes blocking sockets exactly as heft tunes its own, which are tokio's.
struct Tuner(tokio::runtime::Runtime);

impl Tuner {
    fn new() -> anyhow::Result<Tuner> {
        Ok(Tuner(tokio::runtime::Builder::new_current_thread().enable_all().build()?))
    }

    fn tuned(&self, stream: TcpStream) -> anyhow::Result<TcpStream> {
        let _context = self.0.enter();
        stream.set_nonblocking(true)?;
        let stream = tokio::net::TcpStream::from_std(stream)?;
        tune(&stream, &Tuning::default())?;
        let stream = stream.into_std()?;
        stream.set_nonblocking(false)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_of_a_lane_name_it() {
        for (end, lane) in [(End::Client, 0), (End::Worker, u32::MAX), (End::Client, 77)] {
            assert_eq!(read_hello(hello(end, lane)), Some((end, lane)));
        }
        assert_eq!(read_hello(*b"x1234"), None);
    }
}
