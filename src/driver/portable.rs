//! The portable driver: tokio on one thread, which owns the leader and every connection.
//!
//! A connection has two tasks. The reader decodes frames and tells the leader; the writer sends what waits in the
//! connection's bounded outbox. What the leader wants sent is put into outboxes at once, so no task waits for another's
//! socket. A peer that does not take what it is sent, or never says hello, is cut off by a named limit.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use chunking::{Decoder, InboundLimits};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
use tokio::task::LocalSet;
use tracing::{debug, info, warn};

use crate::core::ids::{ConnId, Micros};
use crate::leader::{Leader, LeaderConfig, Output};
use crate::peer::{Tuning, advance, tune};

/// A stranger says hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// A peer that takes nothing of what waits for it for so long is cut off.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What may wait for one peer. Beyond it the peer is too slow to be served.
const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Frames that wait for one peer (W15 has 1,024 and waits; a leader that waited for one peer would make all wait).
const OUTBOX_FRAMES_MAX: usize = 64 * 1024;

const READ_BYTES: usize = 64 * 1024;
const READ_BYTES_IDLE: usize = 4 * 1024;

/// How the driver behaves.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// How sockets are tuned.
    pub tuning: Tuning,
    /// How long a stop waits for jobs that run.
    pub drain: Duration,
}

/// Serves until `stop` is notified, then lets running jobs end for as long as the options say.
pub async fn serve(
    listener: TcpListener,
    config: LeaderConfig,
    options: Options,
    stop: Rc<Notify>,
) -> io::Result<()> {
    let hub = Rc::new(Hub::new(config, options));
    let local = LocalSet::new();
    let ticking = hub.clone();
    local.spawn_local(async move { ticking.tick_for_ever().await });
    local
        .run_until(async {
            let mut next = ConnId(0);
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, addr)) => {
                            next = next.next();
                            let (hub, conn) = (hub.clone(), next);
                            tokio::task::spawn_local(async move { hub.serve_conn(conn, stream, addr).await });
                        }
                        // Out of descriptors, most likely: leave what waits in the backlog and go on.
                        Err(error) => {
                            warn!("cannot accept a connection: {error}; trying again in 100 ms");
                            tokio::time::sleep(Duration::from_millis(100)).await;
                        }
                    },
                    () = stop.notified() => break,
                }
            }
            drop(listener);
            hub.drain().await;
        })
        .await;
    Ok(())
}

/// What all tasks of the driver share.
struct Hub {
    leader: RefCell<Leader>,
    outboxes: RefCell<HashMap<ConnId, Rc<Outbox>>>,
    started: Instant,
    due_changed: Notify,
    options: Options,
}

/// What waits to be sent to one peer.
#[derive(Default)]
struct Outbox {
    pieces: RefCell<VecDeque<Bytes>>,
    bytes: std::cell::Cell<usize>,
    closing: std::cell::Cell<bool>,
    cut: std::cell::Cell<bool>,
    filled: Notify,
    /// Tells the reader that the connection is over.
    over: Notify,
}

impl Hub {
    fn new(config: LeaderConfig, options: Options) -> Self {
        let leader = Leader::new(config, Micros(0), Box::new(uuid::Uuid::new_v4));
        Hub {
            leader: RefCell::new(leader),
            outboxes: RefCell::default(),
            started: Instant::now(),
            due_changed: Notify::new(),
            options,
        }
    }

    fn now(&self) -> Micros {
        Micros::default().plus(self.started.elapsed())
    }

    /// Calls the leader, then hands out what it wants sent. No await in here: the leader is borrowed.
    fn with_leader<T>(&self, call: impl FnOnce(&mut Leader, Micros) -> T) -> T {
        let mut leader = self.leader.borrow_mut();
        let due_before = leader.next_deadline();
        let answer = call(&mut leader, self.now());
        while let Some(output) = leader.poll_output() {
            if let Some(cut_off) = self.execute(&leader, output) {
                // What is meant for it from now on has to be kept for its next connection.
                leader.closed(self.now(), cut_off);
            }
        }
        if leader.next_deadline() != due_before {
            self.due_changed.notify_one();
        }
        answer
    }

    /// Does it. Gives the connection of a peer that had to be cut off for being too slow.
    fn execute(&self, leader: &Leader, output: Output) -> Option<ConnId> {
        match output {
            Output::Send { conn, frame } => {
                let outboxes = self.outboxes.borrow();
                let outbox = outboxes.get(&conn).filter(|outbox| !outbox.closing.get())?;
                outbox.push(frame.head);
                outbox.push(frame.payload);
                let over =
                    outbox.bytes.get() > OUTBOX_BYTES_MAX || outbox.pieces.borrow().len() > OUTBOX_FRAMES_MAX;
                if over {
                    let waiting = outbox.bytes.get();
                    warn!(peer = %leader.name(conn), waiting, "too slow: it does not take what it is sent; cutting it off");
                    outbox.cut_off();
                }
                over.then_some(conn)
            }
            Output::Close { conn } => {
                if let Some(outbox) = self.outboxes.borrow().get(&conn) {
                    outbox.close();
                }
                None
            }
        }
    }

    async fn tick_for_ever(&self) {
        loop {
            let due = self.leader.borrow().next_deadline();
            match due {
                Some(due) => {
                    let wait = due.since(self.now());
                    tokio::select! {
                        () = tokio::time::sleep(wait) => self.with_leader(|leader, now| leader.tick(now)),
                        () = self.due_changed.notified() => {}
                    }
                }
                None => self.due_changed.notified().await,
            }
        }
    }

    /// No new jobs and connections; those that run get their time.
    async fn drain(&self) {
        self.with_leader(|leader, now| leader.drain(now));
        let until = Instant::now() + self.options.drain;
        while !self.leader.borrow().is_idle() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for outbox in self.outboxes.borrow().values() {
            outbox.close();
        }
        // What was sent last still has to leave.
        let flushed = Instant::now() + Duration::from_secs(1);
        while !self.outboxes.borrow().is_empty() && Instant::now() < flushed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn serve_conn(self: Rc<Self>, conn: ConnId, stream: TcpStream, addr: SocketAddr) {
        if let Err(error) = tune(&stream, &self.options.tuning) {
            warn!(%addr, "{error}");
        }
        let (read, write) = stream.into_split();
        let outbox = Rc::new(Outbox::default());
        self.outboxes.borrow_mut().insert(conn, outbox.clone());
        let writer = tokio::task::spawn_local(write_out(write, outbox.clone()));
        let why = tokio::select! {
            why = self.read_in(conn, addr, read) => why,
            () = outbox.over.notified() => "the leader closed it".to_owned(),
        };
        let name = self.leader.borrow().name(conn);
        info!(%addr, peer = %name, "connection ended: {why}");
        self.with_leader(|leader, now| leader.closed(now, conn));
        outbox.close();
        if outbox.cut.get() {
            // It waits for a peer that takes nothing.
            writer.abort();
        }
        if writer.await.is_err() {
            debug!(%addr, "its writer was cancelled");
        }
        self.outboxes.borrow_mut().remove(&conn);
    }

    /// Reads frames until the connection ends; says why it did.
    async fn read_in(&self, conn: ConnId, addr: SocketAddr, mut read: OwnedReadHalf) -> String {
        let mut decoder = Decoder::detecting(InboundLimits::ANNOUNCED);
        let mut buffer = BytesMut::with_capacity(READ_BYTES_IDLE);
        let hello_until = tokio::time::Instant::now() + HELLO_TIMEOUT;
        let mut knows = false;
        loop {
            // Take every frame that is whole.
            loop {
                let known = decoder.generation();
                let mut input = &buffer[..];
                let before = input.len();
                let frame = match decoder.poll_frame(&mut input) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(error) => return error.to_string(),
                };
                if let (None, Some(generation)) = (known, decoder.generation()) {
                    debug!(%addr, %generation, "connected");
                    self.leader.borrow_mut().connected(conn, generation);
                }
                let payload = Bytes::copy_from_slice(frame.payload);
                let heard = self.with_leader(|leader, now| leader.frame(now, conn, &frame.head, payload));
                let consumed = before - input.len();
                bytes::Buf::advance(&mut buffer, consumed);
                if let Err(hang_up) = heard {
                    return hang_up.to_string();
                }
                knows = true;
            }
            if buffer.is_empty() && buffer.capacity() > READ_BYTES {
                // A peer that was busy once does not keep a large buffer for ever.
                buffer = BytesMut::with_capacity(READ_BYTES_IDLE);
            }
            let wanted = if buffer.is_empty() { READ_BYTES_IDLE } else { READ_BYTES };
            buffer.reserve(wanted);
            let reading = read.read_buf(&mut buffer);
            let got = if knows {
                reading.await
            } else {
                match tokio::time::timeout_at(hello_until, reading).await {
                    Ok(got) => got,
                    Err(_) => return format!("no hello within {} s", HELLO_TIMEOUT.as_secs()),
                }
            };
            match got {
                Ok(0) => {
                    return match decoder.finish(&buffer) {
                        Ok(()) => "the peer closed it".to_owned(),
                        Err(error) => error.to_string(),
                    };
                }
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
        }
    }
}

impl Outbox {
    fn push(&self, piece: Bytes) {
        if !piece.is_empty() {
            self.bytes.set(self.bytes.get() + piece.len());
            self.pieces.borrow_mut().push_back(piece);
            self.filled.notify_one();
        }
    }

    /// Nothing more is taken and nothing more is sent: the connection ends at once.
    fn cut_off(&self) {
        self.cut.set(true);
        self.pieces.borrow_mut().clear();
        self.close();
        self.over.notify_one();
    }

    /// Nothing more is taken; what waits is still sent.
    fn close(&self) {
        self.closing.set(true);
        self.filled.notify_one();
    }
}

/// Sends what waits, many small frames in one call, until the outbox is closed and empty or the peer takes nothing.
async fn write_out(mut write: OwnedWriteHalf, outbox: Rc<Outbox>) {
    loop {
        let batch: Vec<Bytes> = outbox.pieces.borrow().iter().take(64).cloned().collect();
        if batch.is_empty() {
            if outbox.closing.get() {
                break;
            }
            outbox.filled.notified().await;
            continue;
        }
        let slices: Vec<io::IoSlice<'_>> = batch.iter().map(|piece| io::IoSlice::new(piece)).collect();
        match tokio::time::timeout(WRITE_STALL_TIMEOUT, write.write_vectored(&slices)).await {
            Ok(Ok(written)) if written > 0 => outbox.sent(written),
            Ok(Ok(_)) => break,
            Ok(Err(error)) => {
                debug!("a write failed: {error}");
                break;
            }
            Err(_) => {
                warn!("a peer took nothing for {} s; cutting it off", WRITE_STALL_TIMEOUT.as_secs());
                break;
            }
        }
    }
    outbox.pieces.borrow_mut().clear();
    outbox.closing.set(true);
    outbox.over.notify_one();
    write.shutdown().await.ok();
}

impl Outbox {
    fn sent(&self, written: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(written));
        advance(&mut self.pieces.borrow_mut(), written);
    }
}
