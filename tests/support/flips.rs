//! A TCP relay between a peer and its leader that looks at every frame and turns single bits over.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use chunking::Kind;
use uuid::Uuid;

/// A frame that passes, as the relay sees it.
#[derive(Clone, Copy, Debug)]
pub struct Passing<'a> {
    pub to_leader: bool,
    /// Frames that went the same way on this connection before it.
    pub before: usize,
    pub kind: Kind,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    /// All of it, with its length.
    pub bytes: &'a [u8],
}

/// Says which bit of a frame is turned over, if any.
pub type Choose = dyn FnMut(&Passing<'_>) -> Option<usize> + Send;

/// The relay. It ends with its handle.
pub struct Flipper {
    pub port: u16,
    ended: Arc<AtomicBool>,
}

impl Flipper {
    pub fn start(
        leader: u16,
        choose: impl FnMut(&Passing<'_>) -> Option<usize> + Send + 'static,
    ) -> Flipper {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let choose: Arc<Mutex<Box<Choose>>> = Arc::new(Mutex::new(Box::new(choose)));
        let (leader, ended) =
            (SocketAddr::from(([127, 0, 0, 1], leader)), Arc::new(AtomicBool::new(false)));
        let of_thread = Arc::clone(&ended);
        std::thread::spawn(move || {
            for peer in listener.incoming() {
                if of_thread.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(peer), Ok(leader)) = (peer, TcpStream::connect(leader)) else { continue };
                for to_leader in [true, false] {
                    let (peer, leader) = (peer.try_clone().unwrap(), leader.try_clone().unwrap());
                    let (from, to) = if to_leader { (peer, leader) } else { (leader, peer) };
                    let choose = Arc::clone(&choose);
                    std::thread::spawn(move || {
                        pump(&from, &to, to_leader, &choose);
                        from.shutdown(Shutdown::Both).ok();
                        to.shutdown(Shutdown::Both).ok();
                    });
                }
            }
        });
        Flipper { port, ended }
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Flipper {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        // Wakes the thread that accepts.
        TcpStream::connect(("127.0.0.1", self.port)).ok();
    }
}

fn pump(mut from: &TcpStream, mut to: &TcpStream, to_leader: bool, choose: &Mutex<Box<Choose>>) {
    for before in 0.. {
        let mut frame = vec![0; 4];
        if from.read_exact(&mut frame).is_err() {
            return;
        }
        let len = u32::from_le_bytes(frame[..4].try_into().unwrap()) as usize;
        frame.resize(4 + len, 0);
        if from.read_exact(&mut frame[4..]).is_err() {
            return;
        }
        let id = |at: usize| Uuid::from_bytes_le(frame[at..at + 16].try_into().unwrap());
        let kind = Kind::try_from(frame[4]).unwrap();
        let passing =
            Passing { to_leader, before, kind, msg_id: id(5), corr_id: id(21), bytes: &frame };
        if let Some(bit) = choose.lock().unwrap()(&passing) {
            frame[bit / 8] ^= 1 << (bit % 8);
        }
        if to.write_all(&frame).is_err() {
            return;
        }
    }
}
