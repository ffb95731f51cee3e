//! A relay between a peer and its leader that at some frame of its first connection goes silent
//! without closing anything, or damages the frame's length. Later connections pass through it
//! untouched.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use chunking::Kind;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Where a frame goes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To the leader.
    Up,
    /// From the leader.
    Down,
}

/// What happens at the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// Neither it nor anything later is passed on, in both directions. Both connections stay open.
    Silence,
    /// The same, in its own direction alone.
    OneWay,
    /// It says that it is so many bytes longer, or shorter.
    Longer(i32),
}

/// The first frame of this kind on this way.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub way: Way,
    pub kind: Kind,
    pub harm: Harm,
}

pub struct Relay {
    pub port: u16,
    connections: Arc<AtomicUsize>,
    struck: Arc<AtomicBool>,
}

impl Relay {
    pub fn start(leader: u16, fault: Fault) -> Relay {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (connections, struck) =
            (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        let relay = Relay { port, connections: connections.clone(), struck: struck.clone() };
        std::thread::spawn(move || {
            for peer in listener.incoming() {
                let Ok(peer) = peer else { return };
                let Ok(up) = TcpStream::connect(("127.0.0.1", leader)) else { continue };
                let first = connections.fetch_add(1, Ordering::SeqCst) == 0;
                // Silence of both ways is one flag that both look at.
                let silent = Arc::new(AtomicBool::new(false));
                let ways =
                    [(Way::Up, peer.try_clone(), up.try_clone()), (Way::Down, Ok(up), Ok(peer))];
                for (way, from, to) in ways {
                    let fault = (first && fault.way == way).then_some(fault);
                    let pass = Pass {
                        from: from.unwrap(),
                        to: to.unwrap(),
                        fault,
                        silent: silent.clone(),
                        struck: struck.clone(),
                    };
                    std::thread::spawn(move || pass.run());
                }
            }
        });
        relay
    }

    /// Connections that were made through it.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }

    /// Whether the fault has happened.
    pub fn has_struck(&self) -> bool {
        self.struck.load(Ordering::SeqCst)
    }
}

/// One way of one connection.
struct Pass {
    from: TcpStream,
    to: TcpStream,
    fault: Option<Fault>,
    silent: Arc<AtomicBool>,
    struck: Arc<AtomicBool>,
}

impl Pass {
    fn run(mut self) {
        let (mut held, mut piece) = (Vec::new(), vec![0; 64 * 1024]);
        let mut dropping = false;
        while let Ok(read @ 1..) = self.from.read(&mut piece) {
            if dropping || self.silent.load(Ordering::SeqCst) {
                continue;
            }
            if self.fault.is_none() {
                if self.to.write_all(&piece[..read]).is_err() {
                    break;
                }
                continue;
            }
            held.extend_from_slice(&piece[..read]);
            while let Some(len) = whole(&held) {
                let mut frame: Vec<u8> = held.drain(..len).collect();
                if let Some(fault) = self.fault.filter(|fault| frame[4] == fault.kind.code()) {
                    self.fault = None;
                    self.struck.store(true, Ordering::SeqCst);
                    match fault.harm {
                        Harm::Silence => self.silent.store(true, Ordering::SeqCst),
                        Harm::OneWay => dropping = true,
                        Harm::Longer(more) => {
                            let length = u32::from_le_bytes(frame[..4].try_into().unwrap());
                            let length = length.checked_add_signed(more).unwrap();
                            frame[..4].copy_from_slice(&length.to_le_bytes());
                            frame.append(&mut held);
                        }
                    }
                }
                if dropping || self.silent.load(Ordering::SeqCst) {
                    held.clear();
                } else if self.to.write_all(&frame).is_err() {
                    return;
                }
            }
        }
        // A line that is dead does not tell of the end of the other one, either.
        if !dropping && !self.silent.load(Ordering::SeqCst) {
            self.to.shutdown(Shutdown::Both).ok();
            self.from.shutdown(Shutdown::Both).ok();
        } else {
            // It is open until the test ends.
            std::mem::forget((self.from, self.to));
        }
    }
}

/// The length of the first frame, if all of it is here.
fn whole(held: &[u8]) -> Option<usize> {
    let length = u32::from_le_bytes(held.get(..4)?.try_into().unwrap()) as usize + 4;
    (held.len() >= length).then_some(length)
}
