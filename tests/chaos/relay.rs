//! A line between a peer and the leader that can be cut, stalled, throttled or go dead.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Bytes that are passed on at a time.
const PIECE: usize = 64 << 10;

/// How often a line that stands still looks whether it may go on.
const NAP: Duration = Duration::from_millis(10);

/// Relays that one thread serves.
pub struct Relays {
    runtime: tokio::runtime::Handle,
    target: SocketAddr,
}

#[derive(Default)]
struct State {
    is_stalled: AtomicBool,
    /// Bytes in a second and direction; 0 for as fast as it goes.
    rate: AtomicU64,
    /// Each connection that was made and has not died.
    lines: Mutex<Vec<Arc<Line>>>,
}

#[derive(Default)]
struct Line {
    is_dead: AtomicBool,
    /// Whether the leader has said anything on it.
    has_spoken: AtomicBool,
}

pub struct Relay {
    pub port: u16,
    state: Arc<State>,
    cuts: watch::Sender<u64>,
}

impl Relays {
    /// Starts the thread. It goes with the process.
    pub fn start(target: SocketAddr) -> Relays {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let handle = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        Relays { runtime: handle, target }
    }

    pub fn relay(&self) -> Relay {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (state, (cuts, hears)) = (Arc::<State>::default(), watch::channel(0));
        let (target, shared) = (self.target, state.clone());
        self.runtime.spawn(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            while let Ok((peer, _)) = listener.accept().await {
                let (shared, mut hears) = (shared.clone(), hears.clone());
                hears.mark_unchanged();
                tokio::spawn(async move {
                    tokio::select! {
                        () = shared.serve(peer, target) => {}
                        _ = hears.changed() => {}
                    }
                });
            }
        });
        Relay { port, state, cuts }
    }
}

impl State {
    async fn serve(&self, peer: TcpStream, target: SocketAddr) {
        let Ok(leader) = TcpStream::connect(target).await else {
            return;
        };
        let line = Arc::<Line>::default();
        self.lines.lock().unwrap().push(line.clone());
        peer.set_nodelay(true).ok();
        leader.set_nodelay(true).ok();
        let ((from_peer, to_peer), (from_leader, to_leader)) =
            (peer.into_split(), leader.into_split());
        let spoken = AtomicBool::default();
        tokio::join!(
            self.pump(from_peer, to_leader, &line.is_dead, &spoken),
            self.pump(from_leader, to_peer, &line.is_dead, &line.has_spoken)
        );
    }

    async fn pump(
        &self,
        mut from: OwnedReadHalf,
        mut to: OwnedWriteHalf,
        dead: &AtomicBool,
        has_spoken: &AtomicBool,
    ) {
        let mut piece = vec![0; PIECE];
        loop {
            while self.is_stalled.load(Ordering::Relaxed) || dead.load(Ordering::Relaxed) {
                tokio::time::sleep(NAP).await;
            }
            let rate = self.rate.load(Ordering::Relaxed);
            let most = if rate == 0 {
                PIECE
            } else {
                usize::try_from(rate / 50).unwrap().clamp(512, PIECE)
            };
            let got = match from.read(&mut piece[..most]).await {
                Ok(0) | Err(_) => break,
                Ok(got) => got,
            };
            if rate > 0 {
                tokio::time::sleep(Duration::from_secs_f64(got as f64 / rate as f64)).await;
            }
            // What was read when the line died does not arrive.
            if dead.load(Ordering::Relaxed) {
                continue;
            }
            if to.write_all(&piece[..got]).await.is_err() {
                break;
            }
            has_spoken.store(true, Ordering::Relaxed);
        }
        to.shutdown().await.ok();
    }
}

impl Relay {
    /// Ends all connections.
    pub fn cut(&self) {
        self.cuts.send_modify(|count| *count += 1);
    }

    /// Nothing passes until it is said that it may.
    pub fn stall(&self, is_stalled: bool) {
        self.state.is_stalled.store(is_stalled, Ordering::Relaxed);
    }

    pub fn throttle(&self, bytes_per_s: u64) {
        self.state.rate.store(bytes_per_s, Ordering::Relaxed);
    }

    /// The connections that are there never pass anything again, and neither end hears of that. New
    /// ones are as always. So are those on which the leader has said nothing yet: for their peer it
    /// may be a classic one, which says nothing until it has to.
    pub fn die(&self) {
        self.state.lines.lock().unwrap().retain(|line| {
            let dies = line.has_spoken.load(Ordering::Relaxed);
            line.is_dead.fetch_or(dies, Ordering::Relaxed);
            !dies
        });
    }

    /// As it was, but for lines that are dead.
    pub fn lift(&self) {
        self.stall(false);
        self.throttle(0);
    }
}
