//! A TCP relay between a peer and its leader that cuts connections, or holds them, after so many
//! bytes, and counts what passes.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::procs::PATIENCE;

/// Where bytes go, as the peer behind the relay sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    ToLeader,
    FromLeader,
}

/// What becomes of a connection.
#[derive(Clone, Copy, Debug)]
pub enum Plan {
    Free,
    /// It is cut when so many bytes have gone this way.
    Cut(Way, u64),
    /// Nothing more goes this way after so many bytes, until [`Proxy::release`].
    Hold(Way, u64),
}

#[derive(Debug, Default)]
struct Shared {
    plans: Mutex<VecDeque<Plan>>,
    to_leader: AtomicU64,
    from_leader: AtomicU64,
    cuts: AtomicUsize,
    held: AtomicUsize,
    released: AtomicBool,
    ended: AtomicBool,
}

impl Shared {
    fn counter(&self, way: Way) -> &AtomicU64 {
        match way {
            Way::ToLeader => &self.to_leader,
            Way::FromLeader => &self.from_leader,
        }
    }
}

/// The relay. It ends with its handle.
#[derive(Debug)]
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

impl Proxy {
    /// Listens on a port of its own. Each connection takes the next plan; those after the last plan
    /// live.
    pub fn start(leader: u16, plans: impl IntoIterator<Item = Plan>) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            plans: Mutex::new(plans.into_iter().collect()),
            ..Shared::default()
        });
        let (leader, of_thread) = (SocketAddr::from(([127, 0, 0, 1], leader)), Arc::clone(&shared));
        std::thread::spawn(move || {
            for peer in listener.incoming() {
                if of_thread.ended.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(peer), Ok(leader)) = (peer, TcpStream::connect(leader)) else { continue };
                let plan = of_thread.plans.lock().unwrap().pop_front().unwrap_or(Plan::Free);
                for way in [Way::ToLeader, Way::FromLeader] {
                    let (peer, leader) = (peer.try_clone().unwrap(), leader.try_clone().unwrap());
                    let shared = Arc::clone(&of_thread);
                    std::thread::spawn(move || {
                        let (from, to) = match way {
                            Way::ToLeader => (peer, leader),
                            Way::FromLeader => (leader, peer),
                        };
                        pump(&shared, plan, way, &from, &to);
                        from.shutdown(Shutdown::Both).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        Proxy { port, shared }
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// How many bytes have gone this way.
    pub fn bytes(&self, way: Way) -> u64 {
        self.shared.counter(way).load(Ordering::Relaxed)
    }

    pub fn cuts(&self) -> u64 {
        self.shared.cuts.load(Ordering::Relaxed) as u64
    }

    /// Waits until a connection is held.
    pub fn wait_held(&self) {
        let until = Instant::now() + PATIENCE;
        while self.shared.held.load(Ordering::Relaxed) == 0 {
            assert!(Instant::now() < until, "no connection got as far as its hold: {self:?}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Lets go what is held, and holds nothing any more.
    pub fn release(&self) {
        self.shared.released.store(true, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.release();
        // Wakes the thread that accepts.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

fn pump(shared: &Shared, plan: Plan, way: Way, mut from: &TcpStream, mut to: &TcpStream) {
    let (mut left, cuts) = match plan {
        Plan::Cut(planned, after) if planned == way => (after, true),
        Plan::Hold(planned, after) if planned == way => (after, false),
        Plan::Free | Plan::Cut(..) | Plan::Hold(..) => (u64::MAX, false),
    };
    let mut piece = vec![0; 64 * 1024];
    loop {
        if left == 0 {
            if cuts {
                shared.cuts.fetch_add(1, Ordering::Relaxed);
                return;
            }
            shared.held.fetch_add(1, Ordering::Relaxed);
            let Some(backlog) = wait(shared, from) else { return };
            if to.write_all(&backlog).is_err() {
                return;
            }
            shared.counter(way).fetch_add(backlog.len() as u64, Ordering::Relaxed);
            left = u64::MAX;
        }
        let room = usize::try_from(left).unwrap_or(usize::MAX).min(piece.len());
        let got = match from.read(&mut piece[..room]) {
            Ok(0) | Err(_) => return,
            Ok(got) => got,
        };
        if to.write_all(&piece[..got]).is_err() {
            return;
        }
        left -= got as u64;
        shared.counter(way).fetch_add(got as u64, Ordering::Relaxed);
    }
}

/// Waits until what is held may go on; gives what came meanwhile, which windows limit. `None` if
/// the connection ended.
fn wait(shared: &Shared, mut from: &TcpStream) -> Option<Vec<u8>> {
    from.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
    let (mut backlog, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
    while !shared.released.load(Ordering::Relaxed) {
        match from.read(&mut piece) {
            Ok(0) => return None,
            Ok(got) => backlog.extend_from_slice(&piece[..got]),
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(_) => return None,
        }
    }
    from.set_read_timeout(None).unwrap();
    Some(backlog)
}
