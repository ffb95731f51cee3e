//! Owns the leader on one thread, shared by all connections of any driver, and executes the
//! leader's outputs.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunking::limits::CLASSIC_INBOUND_BODY_BYTES_MAX;
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};
use tokio::task::spawn_local;
use tracing::{debug, info, warn};

use super::inbound::Inbound;
use super::journal::LogThread;
use super::outbox::{AllAnswers, Cargo, Look, Outbox, Sent};
use super::parking::Parking;
use super::pipes::Pipes;
use super::room::Moved;
use super::socket::Socket;
use super::spin::{SpinMode, Spinner};
use super::spool::Spool;
use super::storage::{Files, Prepared};
use crate::conn::Want;
use crate::core::ids::{ConnId, Micros};
use crate::leader::{Leader, Output};
use crate::wire::{BUFFER_BYTES, LOOKS_PER_STALL, Tuning, WRITE_STALL_TIMEOUT};

/// How long a frame that is in no hurry waits for one to go along with.
const LAZY_WAIT: Duration = Duration::from_millis(1);

/// How long nothing is accepted after the system refused to.
const ACCEPT_WAIT: Duration = Duration::from_millis(100);

/// Minimum time between two checks for peers that need a keepalive.
const KEEPALIVE_LOOK_MIN: Duration = Duration::from_millis(10);

/// Looks in a row that find nothing before it stops looking.
const LAZY_QUIET_MAX: u32 = 10;

/// How the driver behaves.
#[derive(Clone, Debug)]
pub struct Options {
    /// How sockets are tuned.
    pub tuning: Tuning,
    /// Directory for data that does not fit in memory.
    pub data: PathBuf,
    /// The largest SubmitJob or AckJob of a classic peer.
    pub classic_inbound_max: u32,
    /// Whether to look for more for a moment before sleeping.
    pub spin: SpinMode,
    /// How long a stop waits for jobs that run.
    pub drain: Duration,
    /// How long a peer may stall without reading.
    pub write_stall: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            tuning: Tuning::default(),
            data: "heft-data".into(),
            classic_inbound_max: CLASSIC_INBOUND_BODY_BYTES_MAX,
            spin: SpinMode::Auto,
            drain: Duration::ZERO,
            write_stall: WRITE_STALL_TIMEOUT,
        }
    }
}

/// Serves until `stop` is notified, then lets running jobs end for as long as the options say. All
/// of it stays on one thread.
pub(super) async fn serve<S: Socket>(
    listener: TcpListener,
    prepared: Prepared,
    options: Options,
    stop: Rc<Notify>,
) -> io::Result<()> {
    let Prepared { mut leader, now, files } = prepared;
    leader.stock_buffers(super::memory::buffers(leader.fill().buffers));
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    let done = move |done| sender.send(done).unwrap_or_default();
    let (log_sender, mut log_outcomes) = mpsc::unbounded_channel();
    let (spool, log) = match files {
        None => (Spool::passing(&options.data, done)?, None),
        Some(Files { disk, owner, journal }) => {
            let log =
                LogThread::start(journal, move |done| log_sender.send(done).unwrap_or_default())?;
            (Spool::durable(&disk, owner, leader.disk_reserve(), done)?, Some(log))
        }
    };
    let hub = Rc::new(Hub::<S>::new(leader, now, options, spool, log));
    hub.with_leader(|_, _| {});
    let spooling = hub.clone();
    spawn_local(async move {
        while let Some(done) = outcomes.recv().await {
            spooling.with_leader(|leader, now| leader.disk_done(now, done));
        }
    });
    let logging = hub.clone();
    spawn_local(async move {
        while let Some(done) = log_outcomes.recv().await {
            logging.with_leader(|leader, now| leader.log_done(now, done));
            if logging.leader.borrow().why_failed().is_some() {
                logging.failed.notify_one();
            }
        }
    });
    let lazy = hub.clone();
    spawn_local(async move { lazy.send_lazily_for_ever().await });
    let slow = hub.clone();
    spawn_local(async move { slow.look_after_the_slow_for_ever().await });
    let parking = hub.clone();
    spawn_local(async move { parking.make_room_for_ever().await });
    let trimming = hub.clone();
    spawn_local(async move { trimming.moved.trim_for_ever().await });
    let spinning = hub.clone();
    spawn_local(async move { spinning.spin_for_ever().await });
    let living = hub.clone();
    spawn_local(async move { living.keep_alive_for_ever().await });
    let ticking = hub.clone();
    spawn_local(async move { ticking.tick_for_ever().await });
    let mut next = ConnId(0);
    let mut refused_since: Option<Instant> = None;
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, addr)) => {
                    if let Some(since) = refused_since.take() {
                        info!("connections can be accepted again, after {} s", since.elapsed().as_secs());
                    }
                    next = next.next();
                    let (hub, conn) = (hub.clone(), next);
                    spawn_local(async move { hub.serve_conn(conn, stream, addr).await });
                }
                // Out of descriptors, most likely: leave what waits in the backlog and go on. It is
                // said once, not with each try.
                Err(error) => {
                    if refused_since.is_none() {
                        refused_since = Some(Instant::now());
                        warn!(
                            "cannot accept a connection: {error}; open connections continue, new \
                             ones wait until some close; raise the limit of open descriptors \
                             (ulimit -n, LimitNOFILE=)"
                        );
                    }
                    tokio::time::sleep(ACCEPT_WAIT).await;
                }
            },
            () = stop.notified() => break,
            () = hub.failed.notified() => break,
        }
    }
    drop(listener);
    hub.drain().await;
    let failed = hub.leader.borrow().why_failed().map(str::to_owned);
    failed.map_or(Ok(()), |why| Err(io::Error::other(why)))
}

/// State shared by all tasks of the driver.
pub(super) struct Hub<S> {
    pub(super) leader: RefCell<Leader>,
    spool: Spool,
    log: Option<LogThread>,
    /// Notified when nothing can be committed any more.
    failed: Notify,
    pub(super) outboxes: RefCell<HashMap<ConnId, Rc<Outbox<S>>>>,
    /// What waits for all of them.
    pub(super) answers: AllAnswers,
    pub(super) pipes: Pipes,
    /// Bytes in copies made so that slow connections could release their pool buffers.
    copied: Arc<AtomicUsize>,
    scarce: Cell<bool>,
    /// The parking file, for payloads of peers that do not read.
    pub(super) parking: Parking,
    /// Notified when the memory for payloads on their way is taken.
    pub(super) room_short: Notify,
    /// Payloads that came and went.
    pub(super) moved: Moved,
    /// Large frames that come.
    pub(super) inbound: Inbound,
    started: Instant,
    /// What time it was then.
    started_at: Micros,
    due_changed: Notify,
    asleep_until: Cell<Option<Micros>>,
    /// Peers for which something waits that is in no hurry.
    lazy: RefCell<BTreeSet<ConnId>>,
    lazy_watched: Cell<bool>,
    /// Whether slow peers are being watched.
    slow_watched: Cell<bool>,
    slow_changed: Notify,
    spin: RefCell<Spin>,
    spin_begins: Notify,
    lazy_changed: Notify,
    pub(super) options: Options,
}

/// A look for more before the thread sleeps.
struct Spin {
    spinner: Spinner,
    looking: bool,
    /// Whether something came since it began.
    came: bool,
    until: Instant,
}

impl<S: Socket> Hub<S> {
    fn new(
        leader: Leader,
        started_at: Micros,
        options: Options,
        spool: Spool,
        log: Option<LogThread>,
    ) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        Hub {
            leader: RefCell::new(leader),
            spool,
            log,
            failed: Notify::new(),
            outboxes: RefCell::default(),
            answers: AllAnswers::default(),
            pipes: Pipes::default(),
            copied: Arc::default(),
            scarce: Cell::default(),
            parking: Parking::new(&options.data),
            room_short: Notify::new(),
            moved: Moved::default(),
            inbound: Inbound::default(),
            started: Instant::now(),
            started_at,
            due_changed: Notify::new(),
            asleep_until: Cell::default(),
            lazy: RefCell::default(),
            lazy_watched: Cell::default(),
            slow_watched: Cell::default(),
            slow_changed: Notify::new(),
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

    pub(super) fn now(&self) -> Micros {
        self.started_at.plus(self.started.elapsed())
    }

    /// Calls the leader, then executes its outputs. No await in here: the leader is borrowed.
    pub(super) fn with_leader<T>(&self, call: impl FnOnce(&mut Leader, Micros) -> T) -> T {
        let mut leader = self.leader.borrow_mut();
        let answer = call(&mut leader, self.now());
        self.work_off(&mut leader);
        if !leader.has_transfers() {
            self.busied();
        }
        if leader.is_short_of_room() {
            self.room_short.notify_one();
        }
        // A moment that moved away is noticed when the old one comes.
        let sooner = |due: Micros| self.asleep_until.get().is_none_or(|asleep| due < asleep);
        if leader.next_deadline().is_some_and(sooner) {
            self.due_changed.notify_one();
        }
        answer
    }

    /// Executes all outputs of the leader. Output for one peer goes out in one write; outputs that
    /// this makes room for follow.
    fn work_off(&self, leader: &mut Leader) {
        let mut touched = BTreeSet::new();
        self.scarce.set(leader.is_scarce());
        loop {
            while let Some(output) = leader.poll_output() {
                if let Output::LetGo { conn } = output {
                    self.let_go(leader, conn);
                } else if let Output::Supply { conn, want, bytes } = output {
                    self.supply(leader, conn, &want, bytes);
                    touched.insert(conn);
                } else if let Some(conn) = self.execute(output) {
                    touched.insert(conn);
                }
            }
            let Some(conn) = touched.pop_first() else { return };
            self.flush(leader, conn);
        }
    }

    /// A slow line holds buffers that others need.
    fn let_go(&self, leader: &mut Leader, conn: ConnId) {
        let outbox = self.outboxes.borrow().get(&conn).cloned();
        if let Some(outbox) = outbox {
            let copies_max = leader.fill().buffers.saturating_mul(BUFFER_BYTES);
            outbox.let_go(copies_max, &self.copied, |blob, offset| {
                leader.keeps_for(conn, blob, offset)
            });
            leader.line_lags(self.now(), conn);
        }
    }

    /// Bytes are here that a line asked for.
    fn supply(&self, leader: &mut Leader, conn: ConnId, want: &Want, bytes: Bytes) {
        let outbox = self.outboxes.borrow().get(&conn).cloned();
        if let Some(outbox) = outbox {
            let sent = outbox.supply(want, bytes);
            self.note_sent(leader, conn, sent);
        }
    }

    /// Writes a peer's queued output, as far as its socket takes it.
    pub(super) fn flush(&self, leader: &mut Leader, conn: ConnId) {
        let Some(outbox) = self.outboxes.borrow().get(&conn).cloned() else { return };
        let sent = outbox.flush();
        if !self.slow_watched.replace(true) {
            self.slow_changed.notify_one();
        }
        if let Some(waiting) = outbox.is_over_full() {
            warn!(peer = %leader.name(conn), waiting,
                "too slow: it does not read its frames; closing the connection");
            outbox.cut_off();
        }
        self.bound_answers(leader);
        if outbox.is_cut() {
            // What is meant for it from now on has to be kept for its next connection.
            leader.closed(self.now(), conn);
        } else {
            self.note_speed(leader, conn, &outbox);
            self.note_sent(leader, conn, sent);
        }
    }

    /// The leader hears if a peer's line has become slow, or is so no more.
    pub(super) fn note_speed(&self, leader: &mut Leader, conn: ConnId, outbox: &Outbox<S>) {
        if let Some(is_slow) = outbox.has_changed() {
            debug!(peer = %leader.name(conn), is_slow, "its line changed");
            leader.line_is_slow(conn, is_slow);
        }
    }

    /// Frames are out that the leader waits for.
    pub(super) fn note_sent(&self, leader: &mut Leader, conn: ConnId, sent: Sent) {
        if sent.chunks > 0 {
            leader.chunks_sent(self.now(), conn, sent.chunks);
        }
        if let Some(want) = sent.wants {
            leader.chunk_wanted(self.now(), conn, want);
        }
        if sent.posted > 0 {
            leader.posted(self.now(), conn, sent.posted);
        }
    }

    /// Does it. Gives the connection that has something to send now.
    fn execute(&self, output: Output) -> Option<ConnId> {
        match output {
            Output::Send { conn, frame } => self.push(conn, frame, Cargo::Answer),
            Output::Posted { conn, frame } => {
                self.moved.add(frame.len());
                self.push(conn, frame, Cargo::Posted)
            }
            Output::SendBehind { conn, frame } => {
                self.outboxes.borrow().get(&conn)?.push_behind(frame);
                Some(conn)
            }
            Output::SendLazily { conn, frame } => {
                self.push(conn, frame, Cargo::Answer)?;
                self.lazy.borrow_mut().insert(conn);
                if !self.lazy_watched.replace(true) {
                    self.lazy_changed.notify_one();
                }
                None
            }
            Output::Chunk { conn, chunk } => {
                self.outboxes.borrow().get(&conn)?.push_chunk(chunk, self.scarce.get());
                Some(conn)
            }
            Output::Splice { conn, head } => {
                // The task that reads the chunk also writes it.
                self.outboxes.borrow().get(&conn)?.push_place(head);
                None
            }
            Output::Turn { conn } => {
                self.outboxes.borrow().get(&conn)?.give_turn();
                None
            }
            // Done with the leader at hand.
            Output::LetGo { .. } | Output::Supply { .. } => None,
            Output::Disk(operation) => {
                self.spool.execute(operation);
                None
            }
            Output::Log(operation) => {
                if let Some(log) = &self.log {
                    log.execute(operation);
                }
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

    fn push(&self, conn: ConnId, frame: crate::conn::WireFrame, cargo: Cargo) -> Option<ConnId> {
        self.outboxes.borrow().get(&conn)?.push(frame, cargo);
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

    /// Sends keepalives to peers that were sent nothing for a while. Queued output for a peer
    /// serves the same purpose once it is sent.
    async fn keep_alive_for_ever(&self) {
        // A peer to which something went out just after a look hears again one and a bit later at
        // the latest.
        let every = self.leader.borrow().heartbeat() / 2;
        loop {
            tokio::time::sleep(every.max(KEEPALIVE_LOOK_MIN)).await;
            let mut leader = self.leader.borrow_mut();
            let quiet: Vec<ConnId> = {
                let outboxes = self.outboxes.borrow();
                outboxes
                    .iter()
                    .filter(|(_, outbox)| outbox.is_quiet())
                    .map(|(conn, _)| *conn)
                    .collect()
            };
            for conn in quiet {
                if let Some(frame) = leader.keepalive(conn) {
                    self.push(conn, frame, Cargo::Answer);
                    self.flush(&mut leader, conn);
                }
            }
            self.work_off(&mut leader);
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

    /// Keeps the thread from sleeping while it looks: a task that is always ready makes the runtime
    /// ask the sockets again at once.
    async fn spin_for_ever(&self) {
        loop {
            self.spin_begins.notified().await;
            let mut is_first = true;
            loop {
                // What was done last may have left something for the system to wait for.
                if std::mem::take(&mut is_first) {
                    S::pause().await;
                } else {
                    tokio::task::yield_now().await;
                }
                let spin = &mut *self.spin.borrow_mut();
                let found = spin.came;
                if !found && Instant::now() < spin.until {
                    continue;
                }
                spin.spinner.looked(found);
                spin.looking = false;
                let more = if found { spin.spinner.look(self.started.elapsed()) } else { None };
                let Some(look) = more else { break };
                (spin.looking, spin.came, is_first) = (true, false, true);
                spin.until = Instant::now() + look;
            }
        }
    }

    /// Sends what may wait a moment and found no company. While there is such it looks every
    /// moment, and so arms no timer for each.
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

    /// Looks, while something is on its way to somebody, whether it is taken. Who takes nothing is
    /// cut off. Who takes it slowly cannot answer in time to what it has not got, and the leader
    /// hears that.
    async fn look_after_the_slow_for_ever(&self) {
        let stall = self.options.write_stall;
        loop {
            self.slow_changed.notified().await;
            let mut busy = true;
            while busy {
                tokio::time::sleep(stall / LOOKS_PER_STALL).await;
                let looks: Vec<(ConnId, Look)> = self
                    .outboxes
                    .borrow()
                    .iter()
                    .map(|(conn, outbox)| (*conn, outbox.look()))
                    .collect();
                busy = looks.iter().any(|(_, look)| *look != Look::Done);
                for (conn, look) in looks {
                    match look {
                        Look::Done => {}
                        Look::Quick => {
                            self.with_leader(|leader, now| leader.moves_quickly(now, conn))
                        }
                        Look::Moves => self.with_leader(|leader, now| leader.moves(now, conn)),
                        Look::Still(idle) if idle < stall => {}
                        Look::Still(idle) => self.cut_off(conn, idle),
                    }
                }
            }
            self.slow_watched.set(false);
        }
    }

    /// Ends the connection of a peer that takes nothing.
    fn cut_off(&self, conn: ConnId, idle: Duration) {
        let Some(outbox) = self.outboxes.borrow().get(&conn).cloned() else { return };
        if !outbox.is_cut() {
            let name = self.leader.borrow().name(conn);
            warn!(peer = %name, "it read nothing for {} s; closing the connection", idle.as_secs());
            outbox.cut_off();
            self.with_leader(|leader, now| leader.closed(now, conn));
        }
    }

    /// Accepts no new jobs and connections; running jobs get their time.
    async fn drain(&self) {
        self.with_leader(|leader, now| leader.drain(now));
        // A leader that cannot commit cannot end jobs either.
        let has_failed = self.leader.borrow().why_failed().is_some();
        let until = Instant::now() + if has_failed { Duration::ZERO } else { self.options.drain };
        while !self.leader.borrow().is_idle() && Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        // What was sent last still has to leave, and what is to follow that.
        let flushed = Instant::now() + Duration::from_secs(1);
        while !self.leader.borrow().has_posted_all() && Instant::now() < flushed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for outbox in self.outboxes.borrow().values() {
            outbox.close();
        }
        while !self.outboxes.borrow().is_empty() && Instant::now() < flushed {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // What does not end by itself is ended, and waited for: nothing may be read any more when
        // the runtime goes.
        while !self.outboxes.borrow().is_empty() {
            self.outboxes.borrow().values().for_each(|outbox| outbox.cut_off());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
