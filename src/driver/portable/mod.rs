//! The portable driver: tokio on one thread, which owns the leader and every connection.
//!
//! A connection has two tasks. The reader decodes frames and tells the leader; what the leader wants sent is written at
//! once, as far as the sockets take it, and the writer's task sends what is left. So no task waits for another's socket. A
//! peer that does not take what it is sent, or never says hello, is cut off by a named limit.

mod outbox;
mod through;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunking::InboundLimits;
use chunking::limits::{CLASSIC_INBOUND_BODY_BYTES_MAX, FRAME_BODY_BYTES_MAX};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;
use tracing::{debug, info, warn};

use self::outbox::Outbox;
use self::through::Passing;
use super::lane::Pipes;
use super::spin::{SpinMode, Spinner};
use super::spool::Spool;
use crate::core::ids::{ConnId, Micros};
use crate::leader::{ChunkPlace, Leader, LeaderConfig, Output};
use crate::peer::{Inlet, Step, Tuning, read_some, tune};

/// A stranger says hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Frames of stock peers with payloads up to this size are gathered: they may be passed on as one frame. Larger ones come
/// as streams.
const GATHERED_BYTES_MAX: u32 = FRAME_BODY_BYTES_MAX - 1024;

/// How long a stream waits before it looks for room again.
const ROOM_WAIT: Duration = Duration::from_millis(10);

/// How long a stream waits for room in all before it is refused. While it waits its connection is not read, so it is not
/// known whether the peer is still there.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(60);

/// How long a frame that is in no hurry waits for one to go along with.
const LAZY_WAIT: Duration = Duration::from_millis(1);

/// Looks in a row that find nothing before it stops looking.
const LAZY_QUIET_MAX: u32 = 10;

/// How the driver behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How sockets are tuned.
    pub tuning: Tuning,
    /// Where what does not fit in memory is kept.
    pub data: PathBuf,
    /// The largest SubmitJob or AckJob of a stock peer.
    pub classic_inbound_max: u32,
    /// Whether to look for more for a moment before sleeping.
    pub spin: SpinMode,
    /// How long a stop waits for jobs that run.
    pub drain: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tuning: Tuning::default(),
            data: "heft-data".into(),
            classic_inbound_max: CLASSIC_INBOUND_BODY_BYTES_MAX,
            spin: SpinMode::Auto,
            drain: Duration::ZERO,
        }
    }
}

/// Serves until `stop` is notified, then lets running jobs end for as long as the options say. It has to run on a
/// [`LocalRuntime`](tokio::runtime::LocalRuntime), or in a `LocalSet`: all of it stays on one thread.
pub async fn serve(
    listener: TcpListener,
    config: LeaderConfig,
    options: Options,
    stop: Rc<Notify>,
) -> io::Result<()> {
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    let spool = Spool::start(&options.data, move |done| sender.send(done).unwrap_or_default())?;
    let hub = Rc::new(Hub::new(config, options, spool));
    let spooling = hub.clone();
    spawn_local(async move {
        while let Some(done) = outcomes.recv().await {
            spooling.with_leader(|leader, now| leader.disk_done(now, done));
        }
    });
    let lazy = hub.clone();
    spawn_local(async move { lazy.send_lazily_for_ever().await });
    let spinning = hub.clone();
    spawn_local(async move { spinning.spin_for_ever().await });
    let ticking = hub.clone();
    spawn_local(async move { ticking.tick_for_ever().await });
    let mut next = ConnId(0);
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, addr)) => {
                    next = next.next();
                    let (hub, conn) = (hub.clone(), next);
                    spawn_local(async move { hub.serve_conn(conn, stream, addr).await });
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
    Ok(())
}

/// What all tasks of the driver share.
struct Hub {
    leader: RefCell<Leader>,
    spool: Spool,
    outboxes: RefCell<HashMap<ConnId, Rc<Outbox>>>,
    pipes: Pipes,
    started: Instant,
    due_changed: Notify,
    asleep_until: Cell<Option<Micros>>,
    /// Peers for which something waits that is in no hurry.
    lazy: RefCell<BTreeSet<ConnId>>,
    lazy_watched: Cell<bool>,
    spin: RefCell<Spin>,
    spin_begins: Notify,
    lazy_changed: Notify,
    options: Options,
}

/// A look for more before the thread sleeps.
struct Spin {
    spinner: Spinner,
    looking: bool,
    /// Whether something came since it began.
    came: bool,
    until: Instant,
}

impl Hub {
    fn new(config: LeaderConfig, options: Options, spool: Spool) -> Self {
        let leader = Leader::new(config, Micros(0), Box::new(uuid::Uuid::new_v4));
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Hub {
            leader: RefCell::new(leader),
            spool,
            outboxes: RefCell::default(),
            pipes: Pipes::default(),
            started: Instant::now(),
            due_changed: Notify::new(),
            asleep_until: Cell::default(),
            lazy: RefCell::default(),
            lazy_watched: Cell::default(),
            spin: RefCell::new(Spin {
                spinner: Spinner::new(options.spin, processors),
                looking: false,
                came: false,
                until: Instant::now(),
            }),
            spin_begins: Notify::new(),
            lazy_changed: Notify::new(),
            options,
        }
    }

    fn now(&self) -> Micros {
        Micros::default().plus(self.started.elapsed())
    }

    /// Calls the leader, then does what it wants done. No await in here: the leader is borrowed.
    fn with_leader<T>(&self, call: impl FnOnce(&mut Leader, Micros) -> T) -> T {
        let mut leader = self.leader.borrow_mut();
        let answer = call(&mut leader, self.now());
        self.work_off(&mut leader);
        if !leader.has_transfers() {
            self.busied();
        }
        // A moment that moved away is noticed when the old one comes.
        let sooner = |due: Micros| self.asleep_until.get().is_none_or(|asleep| due < asleep);
        if leader.next_deadline().is_some_and(sooner) {
            self.due_changed.notify_one();
        }
        answer
    }

    /// Does all that the leader wants done. What is for one peer goes out in one write, and what that makes room for
    /// follows.
    fn work_off(&self, leader: &mut Leader) {
        let mut touched = BTreeSet::new();
        loop {
            while let Some(output) = leader.poll_output() {
                if let Some(conn) = self.execute(output) {
                    touched.insert(conn);
                }
            }
            let Some(conn) = touched.pop_first() else { return };
            self.flush(leader, conn);
        }
    }

    /// Writes what waits for a peer, as far as its socket takes it.
    fn flush(&self, leader: &mut Leader, conn: ConnId) {
        let Some(outbox) = self.outboxes.borrow().get(&conn).cloned() else { return };
        let chunks = outbox.flush();
        if let Some(waiting) = outbox.is_over_full() {
            warn!(peer = %leader.name(conn), waiting, "too slow: it does not take what it is sent; cutting it off");
            outbox.cut_off();
        }
        if outbox.is_cut() {
            // What is meant for it from now on has to be kept for its next connection.
            leader.closed(self.now(), conn);
        } else if chunks > 0 {
            leader.chunks_sent(self.now(), conn, chunks);
        }
    }

    /// Does it. Gives the connection that has something to send now.
    fn execute(&self, output: Output) -> Option<ConnId> {
        match output {
            Output::Send { conn, frame } => self.push(conn, frame, false),
            Output::SendLazily { conn, frame } => {
                self.push(conn, frame, false)?;
                self.lazy.borrow_mut().insert(conn);
                if !self.lazy_watched.replace(true) {
                    self.lazy_changed.notify_one();
                }
                None
            }
            Output::Chunk { conn, frame } => self.push(conn, frame, true),
            Output::Through { conn, head } => {
                // Who reads the chunk writes it, too.
                self.outboxes.borrow().get(&conn)?.push_place(head);
                None
            }
            Output::Disk(operation) => {
                self.spool.execute(operation);
                None
            }
            Output::Close { conn } => {
                if let Some(outbox) = self.outboxes.borrow().get(&conn) {
                    outbox.close();
                }
                None
            }
        }
    }

    fn push(&self, conn: ConnId, frame: crate::conn::WireFrame, is_chunk: bool) -> Option<ConnId> {
        self.outboxes.borrow().get(&conn)?.push(frame, is_chunk);
        Some(conn)
    }

    async fn tick_for_ever(&self) {
        loop {
            let due = self.leader.borrow().next_deadline();
            self.asleep_until.set(due);
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

    /// Something came. If that pays, the thread looks for more for a moment before it sleeps.
    fn busied(&self) {
        let mut spin = self.spin.borrow_mut();
        spin.came = true;
        if !spin.looking
            && let Some(look) = spin.spinner.look(self.started.elapsed())
        {
            (spin.looking, spin.came) = (true, false);
            spin.until = Instant::now() + look;
            self.spin_begins.notify_one();
        }
    }

    /// Keeps the thread from sleeping while it looks: a task that is always ready makes the runtime ask the sockets again
    /// at once.
    async fn spin_for_ever(&self) {
        loop {
            self.spin_begins.notified().await;
            loop {
                tokio::task::yield_now().await;
                let spin = &mut *self.spin.borrow_mut();
                let found = spin.came;
                if !found && Instant::now() < spin.until {
                    continue;
                }
                spin.spinner.looked(found);
                spin.looking = false;
                let more = if found { spin.spinner.look(self.started.elapsed()) } else { None };
                let Some(look) = more else { break };
                (spin.looking, spin.came) = (true, false);
                spin.until = Instant::now() + look;
            }
        }
    }

    /// Sends what may wait a moment and found no company. While there is such it looks every moment, and so arms no timer
    /// for each.
    async fn send_lazily_for_ever(&self) {
        loop {
            self.lazy_changed.notified().await;
            let mut quiet = 0;
            while quiet < LAZY_QUIET_MAX {
                tokio::time::sleep(LAZY_WAIT).await;
                let conns = self.lazy.take();
                quiet = if conns.is_empty() { quiet + 1 } else { 0 };
                let mut leader = self.leader.borrow_mut();
                for conn in conns {
                    self.flush(&mut leader, conn);
                }
                self.work_off(&mut leader);
            }
            self.lazy_watched.set(false);
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
        let outbox = Rc::new(Outbox::new(write));
        self.outboxes.borrow_mut().insert(conn, outbox.clone());
        let writer = spawn_local({
            let (hub, outbox) = (self.clone(), outbox.clone());
            async move { hub.write_out(conn, &outbox).await }
        });
        let passing = RefCell::new(None);
        let why = tokio::select! {
            why = self.read_in(conn, addr, read, &passing) => why,
            () = outbox.over.notified() => "the leader closed it".to_owned(),
        };
        self.break_passing(conn, &passing);
        let name = self.leader.borrow().name(conn);
        info!(%addr, peer = %name, "connection ended: {why}");
        self.with_leader(|leader, now| leader.closed(now, conn));
        outbox.close();
        if outbox.is_cut() {
            // It waits for a peer that takes nothing.
            writer.abort();
        }
        if writer.await.is_err() {
            debug!(%addr, "its writer was cancelled");
        }
        self.outboxes.borrow_mut().remove(&conn);
    }

    /// Sends what could not be sent at once, until the outbox is closed and empty or the peer takes nothing.
    async fn write_out(&self, conn: ConnId, outbox: &Outbox) {
        while outbox.ready().await.is_some() {
            let chunks = outbox.flush();
            if chunks > 0 {
                self.with_leader(|leader, now| leader.chunks_sent(now, conn, chunks));
            }
        }
        outbox.close();
        outbox.over.notify_one();
    }

    /// Reads frames until the connection ends; says why it did.
    async fn read_in(
        &self,
        conn: ConnId,
        addr: SocketAddr,
        mut read: OwnedReadHalf,
        passing: &RefCell<Option<Passing>>,
    ) -> String {
        let classic_bulk_bytes_max = self.options.classic_inbound_max;
        let mut inlet = Inlet::detecting(InboundLimits { classic_bulk_bytes_max, ..InboundLimits::CLASSIC });
        inlet.stream_over(GATHERED_BYTES_MAX);
        let hello_until = tokio::time::Instant::now() + HELLO_TIMEOUT;
        let mut knows = false;
        // The chunk that comes was given up: it is nobody's.
        let mut given_up = false;
        loop {
            match inlet.poll() {
                Ok(Step::Frame(generation, frame)) => {
                    if !knows {
                        debug!(%addr, %generation, "connected");
                        self.leader.borrow_mut().connected(conn, generation);
                        knows = true;
                    }
                    let payload = Bytes::copy_from_slice(frame.payload);
                    let heard = self.with_leader(|leader, now| leader.frame(now, conn, &frame.head, payload));
                    if let Err(hang_up) = heard {
                        return hang_up.to_string();
                    }
                    let leader = self.leader.borrow();
                    if leader.is_announced(conn) {
                        inlet.set_limits(InboundLimits::ANNOUNCED);
                    }
                    inlet.expect_chunks(leader.brings_blobs(conn));
                }
                Ok(Step::Chunk(start)) => {
                    let mut pipe = None;
                    let is_free = |to: ConnId| {
                        let outboxes = self.outboxes.borrow();
                        let is_free = outboxes.get(&to).is_some_and(|outbox| outbox.is_free());
                        pipe = if is_free { self.pipes.take() } else { None };
                        pipe.is_some()
                    };
                    let place =
                        self.with_leader(|leader, now| leader.chunk_starts(now, conn, &start, is_free));
                    match (place, pipe) {
                        (Some(ChunkPlace { buffer, through: Some(to), .. }), Some(pipe)) => {
                            let (chunk, means) = ((start, to), (buffer, pipe));
                            let passed =
                                self.pass_through(conn, &read, &mut inlet, chunk, means, passing).await;
                            if let Err(error) = passed {
                                return format!("it broke off in the middle of a chunk: {error}");
                            }
                            tokio::task::yield_now().await;
                        }
                        (Some(ChunkPlace { buffer, check: true, .. }), _) => inlet.take(buffer),
                        (Some(ChunkPlace { buffer, check: false, .. }), _) => inlet.take_unchecked(buffer),
                        (None, _) => inlet.skip(),
                    }
                }
                Ok(Step::Came(chunk)) => {
                    if !std::mem::take(&mut given_up) && !self.rest_came(conn, &chunk, passing) {
                        self.with_leader(|leader, now| leader.chunk(now, conn, chunk));
                    }
                    // A stream of chunks never ends by itself: others have their turn after each.
                    tokio::task::yield_now().await;
                }
                Ok(Step::Bulk(_, head)) => {
                    if let Err(hang_up) = self.with_leader(|leader, now| leader.bulk_starts(now, conn, &head))
                    {
                        return hang_up.to_string();
                    }
                }
                Ok(Step::Piece(piece)) => {
                    self.with_leader(|leader, now| leader.bulk_piece(now, conn, piece));
                    let waits_until = Instant::now() + ROOM_WAIT_MAX;
                    while !self.leader.borrow().takes_more_bulk(conn) {
                        tokio::time::sleep(ROOM_WAIT).await;
                        if Instant::now() >= waits_until {
                            self.with_leader(|leader, now| leader.give_bulk_up(now, conn));
                        }
                    }
                }
                Ok(Step::BulkEnd) => self.with_leader(|leader, now| leader.bulk_ends(now, conn)),
                Ok(Step::Read) => {
                    let rest_until = passing.borrow().as_ref().map(|passing| passing.deadline.into());
                    let until = if knows { rest_until } else { Some(hello_until) };
                    let reading = read_some(&mut read, &mut inlet);
                    let got = match until {
                        None => reading.await,
                        Some(until) => match tokio::time::timeout_at(until, reading).await {
                            Ok(got) => got,
                            Err(_) if knows => {
                                self.give_passing_up(conn, passing);
                                given_up = true;
                                continue;
                            }
                            Err(_) => return format!("no hello within {} s", HELLO_TIMEOUT.as_secs()),
                        },
                    };
                    match got {
                        Ok(0) => {
                            return match inlet.finish() {
                                Ok(()) => "the peer closed it".to_owned(),
                                Err(error) => error.to_string(),
                            };
                        }
                        Ok(_) => {}
                        Err(error) => return error.to_string(),
                    }
                }
                Err(error) => return error.to_string(),
            }
        }
    }
}
