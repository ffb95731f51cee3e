//! The leader: sessions on one side, the broker on the other, payloads in between. Free of sockets and clocks.
//!
//! A driver tells it what connections bring and when time has passed, and does what [`Leader::poll_output`] says. Payload
//! bytes pass through by reference; the broker never sees them.

mod ask;
mod children;
mod classic_wiring;
mod collect;
mod commit_log;
mod datasets;
mod datasets_wiring;
mod deliver;
mod durable;
mod explain;
mod gathered;
mod hello;
mod job_blobs;
mod large_frames;
mod outcome;
mod pacing;
mod pack_maker;
mod parts;
mod payloads;
mod questions;
mod recover;
mod relay;
mod retention;
mod staging;
mod stand_in;
mod submit;
mod tasks;
mod transfers;
mod waiting;

pub use recover::Recovered;
pub use relay::{BUFFER_LEASE, Fill, Linger, Memory, Passed, RelayConfig, Verify};
pub use transfers::{Arrival, ChunkPlace};

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use chunking::message::{Features, LimitId, LimitList};
use chunking::{Generation, Head, limits};
use thiserror::Error;
use tracing::{debug, info, warn};
use uuid::Uuid;

use crate::conn::{AckBody, AckSays, Heard, Session, SessionError, Want, WireChunk, WireFrame};
use crate::core::action::{Action, Refusal};
use crate::core::event::{Operation, Outcome};
use crate::core::ids::{ConnId, JobId, Micros};
use crate::core::{Broker, Config, Event};
use crate::store::blobs::DiskOp;
use crate::store::journal::LogOp;
use crate::summed::Summed;
use crate::wire::{KEEPALIVE_EVERY, SILENCE_MAX, frame_window};
use children::Commons;
use commit_log::CommitLog;
use datasets::{DatasetEvent, Datasets};
use hello::{reason_for, room_for_names};
use job_blobs::Blobs;
use large_frames::LargeFrames;
use pacing::Pacing;
use payloads::Payloads;
use questions::{Asked, QuestionEvent, Questions};
use relay::Relay;
use retention::Retention;
use staging::Stagings;
use tasks::{HeldBack, Task, Turn};

/// How a leader behaves.
#[derive(Clone, Debug)]
pub struct LeaderConfig {
    /// The broker's part.
    pub broker: Config,
    /// Bytes of jobs that have not ended, held in memory, before jobs are refused.
    pub payload_bytes_max: u64,
    /// Bytes of results that are held in memory before the oldest is forgotten.
    pub result_bytes_max: u64,
    /// Blobs on their way through.
    pub relay: RelayConfig,
    /// How long files of blobs that nothing refers to are left alone.
    pub blob_grace: Duration,
    /// Time between heartbeats of a worker, and between signs of life of whoever has nothing to say.
    pub heartbeat: Duration,
    /// Without a byte for so long a peer of ours takes the connection for dead; see [`Leader::silence`] for the leader.
    pub silence: Duration,
    /// How people reach it, for texts.
    pub address: String,
    /// The driver's name, for status.
    pub driver: &'static str,
}

impl Default for LeaderConfig {
    fn default() -> Self {
        LeaderConfig {
            broker: Config::default(),
            payload_bytes_max: 1 << 30,
            result_bytes_max: 1 << 30,
            relay: RelayConfig::default(),
            blob_grace: Duration::from_secs(600),
            heartbeat: KEEPALIVE_EVERY,
            silence: SILENCE_MAX,
            address: "HOST:PORT".to_owned(),
            driver: "portable",
        }
    }
}

/// Something for the driver to do.
#[derive(Debug)]
pub enum Output {
    /// Send a frame.
    Send {
        /// Where.
        conn: ConnId,
        /// What.
        frame: WireFrame,
    },
    /// Send a frame, behind the chunks that were handed over before it.
    SendBehind {
        /// Where.
        conn: ConnId,
        /// What.
        frame: WireFrame,
    },
    /// Send a frame, a moment later, with the next one for the same peer if there is one: it is news that nobody waits
    /// for.
    SendLazily {
        /// Where.
        conn: ConnId,
        /// What.
        frame: WireFrame,
    },
    /// Send a frame with a payload; then [`Leader::posted`].
    Posted {
        /// Where.
        conn: ConnId,
        /// What.
        frame: WireFrame,
    },
    /// Send a chunk; then [`Leader::chunks_sent`].
    Chunk {
        /// Where.
        conn: ConnId,
        /// What.
        chunk: WireChunk,
    },
    /// Send the head of a chunk whose bytes follow as they come (see [`ChunkPlace::through`]); then
    /// [`Leader::chunks_sent`].
    Through {
        /// Where.
        conn: ConnId,
        /// Its head.
        head: Bytes,
    },
    /// A line is slow, and others need the buffers that wait for it: it lets go of them; then [`Leader::line_lags`].
    LetGo {
        /// Which.
        conn: ConnId,
    },
    /// Bytes that a line asked for ([`Leader::chunk_wanted`]); none if they cannot be had.
    Supply {
        /// Where.
        conn: ConnId,
        /// What it asked for.
        want: Want,
        /// The bytes, or the first of them.
        bytes: Bytes,
    },
    /// A connection whose chunk had to wait may be read again ([`Arrival::Waits`]).
    Turn {
        /// Which.
        conn: ConnId,
    },
    /// Do something with a spool file; then [`Leader::disk_done`].
    Disk(DiskOp),
    /// Do something with the log; then [`Leader::log_done`].
    Log(LogOp),
    /// End a connection once what was sent before has gone.
    Close {
        /// Which.
        conn: ConnId,
    },
}

/// So many results that do not count are each worth a line in the log.
const REFUSALS_LOGGED_MAX: u64 = 16;

/// Why a connection has to end at once.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct HangUp(#[from] SessionError);

/// The leader.
pub struct Leader {
    config: LeaderConfig,
    id: Uuid,
    make_id: Box<dyn FnMut() -> Uuid>,
    started: Micros,
    now: Micros,
    broker: Broker,
    sessions: HashMap<ConnId, Session>,
    /// Bytes of what they said hello with.
    hello_names_bytes: u64,
    /// Where connections come from.
    hosts: HashMap<ConnId, IpAddr>,
    payloads: Payloads<Turn>,
    log: CommitLog,
    held_back: HeldBack,
    /// What goes to peers as they take it.
    pacing: Pacing,
    /// What the workers of one job get alike.
    commons: Commons,
    relay: Relay,
    blobs: Blobs,
    datasets: Datasets,
    /// Whether what they want done is being done.
    acts_for_datasets: bool,
    stagings: Stagings,
    large_frames: LargeFrames,
    /// When files that nothing refers to are looked for.
    collect_at: Option<Micros>,
    outputs: VecDeque<Output>,
    questions: Questions,
    connections: usize,
    /// Frames that were not what their senders sent.
    frames_damaged: u64,
    retention: Retention,
    /// Results that did not count, as their workers had nothing to do with the job.
    acks_refused: u64,
    /// Jobs that an earlier life left.
    recovered_jobs: usize,
    recovery: Duration,
}

impl Leader {
    /// A leader without jobs. `make_id` makes random ids: the leader holds no source of randomness.
    pub fn new(config: LeaderConfig, now: Micros, mut make_id: Box<dyn FnMut() -> Uuid>) -> Self {
        let id = make_id();
        Leader {
            broker: Broker::begin(config.broker.clone(), now),
            relay: Relay::new(config.relay.clone()),
            questions: Questions::new(config.relay.durable),
            blobs: Blobs::default(),
            datasets: Datasets::new(config.blob_grace),
            acts_for_datasets: false,
            stagings: Stagings::new(config.relay.spool_bytes_max),
            large_frames: LargeFrames::new(config.relay.spool_bytes_max),
            collect_at: None,
            config,
            id,
            make_id,
            started: now,
            now,
            sessions: HashMap::new(),
            hello_names_bytes: 0,
            hosts: HashMap::new(),
            payloads: Payloads::default(),
            log: CommitLog::default(),
            held_back: HeldBack::default(),
            pacing: Pacing::default(),
            commons: Commons::default(),
            outputs: VecDeque::new(),
            connections: 0,
            frames_damaged: 0,
            retention: Retention::default(),
            acks_refused: 0,
            recovered_jobs: 0,
            recovery: Duration::ZERO,
        }
    }

    /// So many connections are open, with those that have not said anything yet. For status.
    pub fn count_connections(&mut self, open: usize) {
        self.connections = open;
    }

    /// A frame came that is not what its sender sent. For status.
    pub fn count_damaged(&mut self) {
        self.frames_damaged += 1;
    }

    /// Reading what an earlier life left took so long. For status.
    pub fn note_recovery(&mut self, took: Duration) {
        self.recovery = took;
    }

    /// A connection's first frame has shown its generation. The host that it comes from, if that is known, tells which peers share one.
    pub fn connected(&mut self, conn: ConnId, generation: Generation, host: Option<IpAddr>) {
        self.hosts.extend(host.map(|host| (conn, host.to_canonical())));
        self.sessions.insert(conn, Session::new(conn, generation));
    }

    /// A frame came. An error ends the connection; [`Leader::closed`] is then still to be called.
    pub fn frame(
        &mut self,
        now: Micros,
        conn: ConnId,
        head: &Head<'_>,
        payload: impl Into<Summed>,
    ) -> Result<(), HangUp> {
        self.pass_time(now);
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        let payload = payload.into();
        let payload_crc = payload.crc();
        let heard = session.hear(head, payload, &mut *self.make_id);
        let heard = heard.and_then(|heard| self.is_one_process(conn, heard));
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        let heard = match heard {
            Ok(Heard::Announced(event)) => {
                room_for_names(session, &mut self.hello_names_bytes, event).map(Heard::Announced)
            }
            Ok(Heard::Event(event @ (Event::ClientHello { .. } | Event::WorkerHello { .. }))) => {
                room_for_names(session, &mut self.hello_names_bytes, event).map(Heard::Event)
            }
            heard => heard,
        };
        if let Err(error) = &heard
            && let Some(reason) = reason_for(error)
        {
            let refused = session.hello_refused(head.msg_id, reason, &error.to_string());
            self.send(conn, refused);
        }
        match heard? {
            Heard::Event(event) => {
                self.note_hello(conn, &event);
                let joins = matches!(event, Event::WorkerHello { .. });
                self.broker.handle(self.now, event);
                if joins {
                    self.worker_joined(conn);
                }
            }
            Heard::Announced(event) => {
                self.note_hello(conn, &event);
                let mut limits = self.limits();
                // The peer compares it with what it sent: nothing else protects a Hello.
                if let Ok(crc) = head.checksum(Generation::F2, payload_crc) {
                    limits.set(LimitId::HELLO_CRC32, crc.into());
                }
                let welcome = self.sessions.get(&conn).and_then(|s| s.welcome(head.msg_id, self.id, limits));
                self.send(conn, welcome);
                self.broker.handle(self.now, event);
                self.worker_joined(conn);
            }
            Heard::Submit(body) => self.submit(conn, body),
            Heard::Ack(body) => self.ack(conn, body),
            Heard::Cancel(job) => {
                let by = self.sessions.get(&conn).map_or_else(String::new, Session::name).into();
                self.questions(QuestionEvent::Wished(Operation::Cancel { job, by }));
            }
            Heard::Received { job, run } => self.received(conn, job, run),
            Heard::Transfer { id, says } => self.transfer(conn, id, says),
            Heard::Piece { id, payload } => self.piece(conn, id, &payload),
            Heard::Dataset(says) => self.dataset_says(conn, says),
            Heard::Ask { verb, id, json } => {
                let by = Asked { conn, verb: verb.into(), id };
                let (json, peer) = (json.to_vec(), self.name(conn).into());
                self.questions(QuestionEvent::Asked { by, json, peer });
            }
            Heard::Alive => {}
            Heard::Skipped(why) => debug!(peer = %self.name(conn), "skipped a frame: {why}"),
        }
        self.act();
        Ok(())
    }

    fn pass_time(&mut self, now: Micros) {
        self.now = self.now.max(now);
        self.relay.set_now(self.now);
    }

    /// How logs call a connection.
    pub fn name(&self, conn: ConnId) -> String {
        self.sessions.get(&conn).map_or_else(|| format!("connection {conn}"), Session::name)
    }

    /// A connection ended.
    pub fn closed(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        if let Some(session) = self.sessions.remove(&conn) {
            self.hello_names_bytes -= session.names_bytes();
            debug!(peer = %session.name(), "disconnected");
            self.large_frames.broke(conn, &mut self.relay);
            self.relay.closed(conn);
            self.broker.handle(self.now, Event::Closed { conn });
            self.unpost(conn);
            self.questions(QuestionEvent::Closed(conn));
            self.dataset_event(DatasetEvent::Closed { conn });
            self.release_fetched();
            self.hosts.remove(&conn);
            self.act();
        }
    }

    /// Whether a connection is one of a peer that announced itself, and so sends no large frames.
    pub fn is_announced(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(Session::is_announced)
    }

    /// Whether a peer's frames end with checksums.
    pub fn has_checksums(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(|session| session.has(Features::CHECKSUMS))
    }

    /// Bytes pass over a connection, to or from its peer, in frames that take long.
    pub fn moves(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        if self.sessions.get(&conn).is_some_and(|session| session.worker().is_some()) {
            self.broker.handle(self.now, Event::Moves { conn });
            self.act();
        }
    }

    /// A peer takes what it is sent, and quickly. As long as more is to follow, a worker cannot name in its heartbeats what it has
    /// yet to get.
    pub fn moves_quickly(&mut self, now: Micros, conn: ConnId) {
        if self.pacing.is_busy(conn) {
            self.moves(now, conn);
        }
    }

    /// Whether the peer is a client that says which results it has.
    fn confirms(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(|session| session.has(Features::RECEIPTS))
    }

    /// Whether a connection is a client's.
    pub fn is_client(&self, conn: ConnId) -> bool {
        self.sessions.get(&conn).is_some_and(|session| session.client().is_some())
    }

    /// Without a byte from this peer for so long its connection is dead; `None` for one that sends no signs of life. It is a
    /// quarter longer than what peers wait for the leader: a worker that finds the line dead should be back before its
    /// jobs are taken for lost.
    pub fn silence(&self, conn: ConnId) -> Option<Duration> {
        let session = self.sessions.get(&conn)?;
        let silence = self.config.silence;
        session.has(Features::KEEPALIVE).then(|| silence.saturating_add(silence / 4))
    }

    /// See [`frame_window`]: for whoever it is.
    pub fn frame_window(&self) -> Duration {
        frame_window(self.config.silence)
    }

    /// How often signs of life are due.
    pub fn heartbeat(&self) -> Duration {
        self.config.heartbeat
    }

    /// A sign of life for this peer, if it listens for one.
    pub fn keepalive(&self, conn: ConnId) -> Option<WireFrame> {
        self.sessions.get(&conn)?.keepalive()
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Micros) {
        self.pass_time(now);
        self.broker.handle(self.now, Event::Tick);
        self.relay.tick();
        self.tell_who_waits_for_room();
        self.release_fetched();
        self.collect_when_due();
        self.dataset_event(DatasetEvent::Tick);
        self.act();
    }

    /// No new jobs; those that run may end.
    pub fn drain(&mut self, now: Micros) {
        self.pass_time(now);
        self.broker.handle(self.now, Event::Drain);
        self.act();
    }

    /// Whether no worker has a job any more.
    pub fn is_idle(&self) -> bool {
        self.broker.is_idle()
    }

    /// When [`Leader::tick`] is due.
    pub fn next_deadline(&self) -> Option<Micros> {
        let own = self.collect_at.into_iter().chain(self.datasets.next_deadline());
        let own = own.chain(self.stagings.next_deadline());
        self.broker.next_deadline().into_iter().chain(self.relay.next_deadline()).chain(own).min()
    }

    /// Memory for its buffers.
    pub fn stock_buffers(&mut self, memory: Vec<BytesMut>) {
        self.relay.stock_buffers(memory);
    }

    /// How full the relay is.
    pub fn fill(&self) -> Fill {
        self.relay.fill()
    }

    /// The next thing for the driver to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn limits(&self) -> LimitList {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let broker = &self.config.broker;
        LimitList::from_iter([
            (LimitId::FRAME_BODY_BYTES, limits::FRAME_BODY_BYTES_MAX.into()),
            (LimitId::CLASSIC_BODY_BYTES, limits::FRAME_BODY_BYTES_MAX.into()),
            (LimitId::CHUNK_BYTES, limits::CHUNK_BYTES_MAX.into()),
            (LimitId::WINDOW_CHUNKS, limits::WINDOW_CHUNKS_MAX.into()),
            (LimitId::BLOB_BYTES, u64::from(limits::BLOB_CHUNKS_MAX) * u64::from(limits::CHUNK_BYTES_MAX)),
            (LimitId::SPOOL_BYTES, self.config.relay.spool_bytes_max),
            (LimitId::TRANSFERS, relay::TRANSFERS_MAX as u64),
            (LimitId::HEARTBEAT_MS, ms(self.config.heartbeat)),
            (LimitId::LEASE_MS, ms(broker.lease)),
            (LimitId::WORKER_GRACE_MS, ms(broker.worker_grace)),
            (LimitId::ATTEMPTS, broker.attempts_max.into()),
            (LimitId::SILENCE_MS, ms(self.config.silence)),
        ])
    }

    fn note_hello(&self, conn: ConnId, event: &Event) {
        if let Event::WorkerHello { worker, patterns, class, .. } = event {
            info!(conn = conn.0, %worker, ?class, ?patterns, "a worker joined");
        } else if let Event::ClientHello { client, cap, .. } = event {
            debug!(conn = conn.0, %client, ?cap, "a client joined");
        }
    }

    fn ack(&mut self, conn: ConnId, body: AckBody) {
        let (job, named) = (body.job, body.named);
        if self.broker.is_foreign_ack(conn, job, named) {
            return self.foreign_ack(conn, body);
        }
        let outcome = match body.says {
            AckSays::Result { ok } if self.are_here(job, &body.parts) => {
                let result = self.payloads.held.keep_result(body.payload);
                self.keep_parts(job, result, body.parts);
                Outcome::Returned { result, ok }
            }
            AckSays::Result { .. } => {
                warn!(%job, "a result names a blob that has not come whole");
                Outcome::ResultLost
            }
            AckSays::PlainOk => {
                let payload = outcome::plain_ok(self.broker.state().job(job), job);
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok: true }
            }
            AckSays::ResultLost => Outcome::ResultLost,
            AckSays::GivenUp => {
                self.tell_what_is_not_held(conn, job);
                Outcome::GivenUp
            }
            AckSays::Lacks(lack) => Outcome::Lacks(lack),
        };
        self.forget_gathered_parts(job);
        self.broker.handle(self.now, Event::Ack { conn, job, named, outcome });
    }

    /// An answer for a job from a worker that has nothing to do with it. What others bring of its result stays, and so does
    /// what the job has; the broker says what the worker is to hear.
    fn foreign_ack(&mut self, conn: ConnId, body: AckBody) {
        let AckBody { job, named, says, parts, payload } = body;
        self.forget_foreign_parts(job, &parts);
        let outcome = match says {
            AckSays::Result { ok } => {
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok }
            }
            AckSays::PlainOk => {
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok: true }
            }
            AckSays::ResultLost => Outcome::ResultLost,
            AckSays::GivenUp => Outcome::GivenUp,
            AckSays::Lacks(lack) => Outcome::Lacks(lack),
        };
        self.broker.handle(self.now, Event::Ack { conn, job, named, outcome });
    }

    /// Each of the first is said; a worker that goes on so does not fill the log.
    fn ack_refused(&mut self, conn: ConnId, job: JobId) {
        self.acks_refused += 1;
        let count = self.acks_refused;
        if count <= REFUSALS_LOGGED_MAX || count.is_power_of_two() {
            warn!(peer = %self.name(conn), %job, count,
                "a result does not count: its worker was never given this job, or not in this run; the job goes on");
        } else {
            debug!(peer = %self.name(conn), %job, count, "a result does not count");
        }
    }

    fn send(&mut self, conn: ConnId, frames: impl IntoIterator<Item = WireFrame>) {
        self.outputs.extend(frames.into_iter().map(|frame| Output::Send { conn, frame }));
    }

    fn send_lazily(&mut self, conn: ConnId, frame: Option<WireFrame>) {
        self.outputs.extend(frame.map(|frame| Output::SendLazily { conn, frame }));
    }

    /// Does what the broker and the relay want done, and keeps results within their bytes.
    fn act(&mut self) {
        self.act_once();
        self.payloads.held.settle();
        self.forget_results();
    }

    fn act_once(&mut self) {
        loop {
            self.broker_on();
            self.post_on();
            if !self.relay_on() && !self.stage_on() {
                break;
            }
        }
    }

    fn broker_on(&mut self) {
        while let Some(action) = self.broker.poll_action() {
            match action {
                Action::Commit { index, record } => self.commit(index, record),
                Action::Assign(assignment) => self.give(assignment),
                Action::Worker(order) => {
                    if let Some(order) = self.held_back.take(order) {
                        self.tell_worker(order);
                    }
                }
                Action::AckRefused { conn, job } => self.ack_refused(conn, job),
                Action::Waiting { conn, job, why } => {
                    let frame = self.sessions.get(&conn).and_then(|s| s.waiting(job, &why.to_string()));
                    self.send_lazily(conn, frame);
                }
                Action::Submitted { conn, job, run, standing, ahead } => {
                    let standing = submit::standing_on_the_wire(standing);
                    let frame = self.sessions.get(&conn).and_then(|s| s.submitted(job, run, standing, ahead));
                    self.send_lazily(conn, frame);
                }
                Action::Refuse { conn, job, refusal } => {
                    // The id of a conflict is another job's, and so is its payload.
                    if !matches!(refusal, Refusal::Conflict { .. }) {
                        self.payloads.held.forget_input(job);
                        self.forget_inputs(job);
                    }
                    self.refuse(conn, job, submit::RefusalText::from(&refusal));
                }
                Action::Running { conn, job, run, attempt } => {
                    let frame =
                        self.sessions.get(&conn).and_then(|session| session.running(job, run, attempt));
                    self.send_lazily(conn, frame);
                }
                Action::Deliver { conn, job, run } => self.post(conn, Task::Deliver { conn, job, run }),
                Action::ForgetInput { job } => {
                    self.forget_staging(job);
                    self.commons.forget(job);
                    self.payloads.held.forget_input(job);
                    self.forget_inputs(job);
                }
                Action::ForgetResult { result } => {
                    self.payloads.held.forget_result(result);
                    self.forget_parts(result);
                }
                Action::Operated { token, answer } => {
                    self.questions(QuestionEvent::Operated { token, answer });
                }
                Action::DatasetPut { dataset, replaced } => {
                    self.commons.clear();
                    self.dataset_event(DatasetEvent::Kept { dataset, replaced });
                }
                Action::DatasetRemoved { dataset } => {
                    self.commons.clear();
                    self.dataset_event(DatasetEvent::Removed { dataset });
                }
                Action::AskAgent { agent, cache } => {
                    self.dataset_event(DatasetEvent::AgentWanted { agent, cache });
                }
                Action::StageInputs { job } => self.stage_inputs(job),
                Action::Close { conn, why } => {
                    warn!(peer = %self.name(conn), "closing the connection: {why}");
                    self.outputs.push_back(Output::Close { conn });
                }
            }
        }
    }
}
