//! A gate in front of a leader: a peer that dials it comes to the leader, what passes is counted,
//! and no more comes back in a second than the gate lets through. It has threads of the director
//! and no process of its own, so it is for counting and for slow peers, not for what is timed.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context as _;

/// What is carried at once; little where there is a rate, so that bytes come evenly.
const PIECE_BYTES: usize = 256 << 10;
const SLOW_PIECE_BYTES: usize = 16 << 10;

/// Bytes that went through a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Passed {
    /// To the leader.
    pub(crate) up: u64,
    /// From the leader.
    pub(crate) down: u64,
}

impl Passed {
    /// What went through between two readings.
    pub(crate) fn since(&self, before: &Passed) -> Passed {
        Passed {
            up: self.up.saturating_sub(before.up),
            down: self.down.saturating_sub(before.down),
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    up: AtomicU64,
    down: AtomicU64,
    closed: AtomicBool,
}

/// A gate that is open as long as this lives. Connections that came through it go on.
#[derive(Debug)]
pub(crate) struct Gate {
    port: u16,
    shared: Arc<Shared>,
}

impl Gate {
    /// Opens one to a leader at this port, with a limit of bytes in a second that come from the
    /// leader, if any.
    pub(crate) fn open(leader: u16, rate: Option<u64>) -> anyhow::Result<Gate> {
        let listener =
            TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("a gate cannot listen")?;
        let (port, shared) = (listener.local_addr()?.port(), Arc::new(Shared::default()));
        let gate = Gate { port, shared: shared.clone() };
        std::thread::spawn(move || {
            while let Ok((peer, _)) = listener.accept() {
                if shared.closed.load(Ordering::Relaxed) {
                    return;
                }
                if let Err(error) = pass(peer, leader, rate, &shared) {
                    tracing::warn!("a gate cannot carry a connection: {error}");
                }
            }
        });
        Ok(gate)
    }

    /// Where peers dial it.
    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn passed(&self) -> Passed {
        Passed {
            up: self.shared.up.load(Ordering::Relaxed),
            down: self.shared.down.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
        // So that it looks.
        TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).ok();
    }
}

fn pass(peer: TcpStream, leader: u16, rate: Option<u64>, shared: &Arc<Shared>) -> io::Result<()> {
    let leader = TcpStream::connect((Ipv4Addr::LOCALHOST, leader))?;
    peer.set_nodelay(true)?;
    leader.set_nodelay(true)?;
    let (to_leader, to_peer) = (leader.try_clone()?, peer.try_clone()?);
    let (up, down) = (shared.clone(), shared.clone());
    std::thread::spawn(move || carry(peer, to_leader, None, &up.up));
    std::thread::spawn(move || carry(leader, to_peer, rate, &down.down));
    Ok(())
}

/// Until the source ends or the destination takes nothing more; each then hears of the other.
fn carry(mut from: TcpStream, mut to: TcpStream, rate: Option<u64>, passed: &AtomicU64) {
    let mut buffer = vec![0; if rate.is_some() { SLOW_PIECE_BYTES } else { PIECE_BYTES }];
    let mut due = Instant::now();
    while let Ok(len @ 1..) = from.read(&mut buffer) {
        if let Some(rate) = rate {
            // Time in which nothing came is not made up for.
            due = due.max(Instant::now()) + time_of(len, rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        if to.write_all(buffer.get(..len).unwrap_or_default()).is_err() {
            break;
        }
        passed.fetch_add(len as u64, Ordering::Relaxed);
    }
    to.shutdown(Shutdown::Write).ok();
    from.shutdown(Shutdown::Read).ok();
}

fn time_of(len: usize, rate: u64) -> Duration {
    Duration::from_secs_f64(len as f64 / rate.max(1) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_is_counted_both_ways() {
        let leader = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gate = Gate::open(leader.local_addr().unwrap().port(), None).unwrap();
        let mut peer = TcpStream::connect((Ipv4Addr::LOCALHOST, gate.port())).unwrap();
        let (mut at_leader, _) = leader.accept().unwrap();
        peer.write_all(&[1; 1000]).unwrap();
        peer.shutdown(Shutdown::Write).unwrap();
        let mut came = Vec::new();
        at_leader.read_to_end(&mut came).unwrap();
        assert_eq!(came, [1; 1000]);
        at_leader.write_all(&[2; 300_000]).unwrap();
        drop(at_leader);
        came.clear();
        peer.read_to_end(&mut came).unwrap();
        assert_eq!(came.len(), 300_000);
        let passed = gate.passed();
        assert_eq!(passed, Passed { up: 1000, down: 300_000 });
        assert_eq!(passed.since(&Passed { up: 400, down: 0 }), Passed { up: 600, down: 300_000 });
    }

    #[test]
    fn a_rate_is_bytes_in_a_second() {
        assert_eq!(time_of(1 << 20, 1 << 20), Duration::from_secs(1));
        assert_eq!(time_of(1 << 18, 1 << 20), Duration::from_millis(250));
    }

    #[test]
    fn a_gate_that_is_gone_takes_nobody() {
        let leader = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let gate = Gate::open(leader.local_addr().unwrap().port(), None).unwrap();
        let port = gate.port();
        drop(gate);
        let mut left = [0; 1];
        // Nobody listens any more, or what was still taken ends without a byte.
        let ended = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
            .and_then(|mut late| late.read(&mut left));
        assert!(!matches!(ended, Ok(1..)), "{ended:?}");
    }
}
