//! The leader: sessions on one side, the broker on the other, payloads in between. It has no
//! sockets and no clock.
//!
//! A driver reports connection events and elapsed time, and executes what [`Leader::poll_output`]
//! returns. Payload bytes pass by reference; the broker never sees them.
//!
//! [`Leader`] routes between state machines that do not know each other:
//!
//! | machine | decides | wired in |
//! |---|---|---|
//! | `peers` | who is connected, and whether a hello is accepted (`hello.rs`) | `mod.rs` |
//! | `core::Broker` | what happens to jobs | `mod.rs`, `submit.rs`, `acks.rs` |
//! | `commit_log` | when a record is committed | `durable.rs` |
//! | `payloads` | which requests and results are in memory | `tasks.rs` |
//! | `pacing` | when a peer is sent its next large frame | `tasks.rs`, `deliver.rs` |
//! | `relay` | how chunks move | `transfers.rs`, `waiting.rs` |
//! | `job_blobs` | which job a blob belongs to | `transfers.rs` |
//! | `failed_inputs` | which failed job loses its inputs first to make room | `failed_inputs.rs` |
//! | `retention` | which result is removed first to make room | `retention.rs` |
//! | `datasets` | which worker holds which dataset | `datasets_wiring.rs` |
//! | `large_frames`, `staging` | how classic peers' payloads are converted | `classic_wiring.rs` |
//! | `questions` | which questions are open | `ask.rs`, `explain.rs`, `job_lists.rs`, `orphans.rs`
//! |
//! | `follows` | who follows the output of which job | `following.rs` |

mod acks;
mod ask;
mod children;
mod classic_wiring;
mod commit_log;
mod datasets;
mod datasets_wiring;
mod deliver;
mod durable;
mod explain;
mod failed_inputs;
mod following;
mod follows;
mod gathered;
mod hello;
mod job_blobs;
mod job_lists;
mod large_frames;
mod orphans;
mod outcome;
mod output;
mod pacing;
mod pack_writer;
mod parts;
mod payloads;
mod peers;
mod progress;
mod questions;
mod recover;
mod refusal_text;
mod relay;
mod request;
mod retention;
mod staging;
mod stand_in;
mod status_lists;
mod submit;
mod tasks;
mod transfers;
pub(crate) mod unread;
mod waiting;

pub use output::{LeaderConfig, Output};
pub use recover::Recovered;
pub use relay::{BUFFER_LEASE, Linger, Memory, RelayConfig, RelayStats, Spliced, Verify};
pub use transfers::{Arrival, ChunkPlace};

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::BytesMut;
use chunking::Head;
use thiserror::Error;
use tracing::{debug, warn};
use uuid::Uuid;

use crate::conn::{AckBody, Inbound, SessionError};
use crate::core::action::{Action, Refusal};
use crate::core::event::Operation;
use crate::core::ids::{ConnId, JobId, Micros};
use crate::core::{Broker, Event};
use crate::store::blobs::DiskDone;
use crate::summed::Summed;
use commit_log::CommitLog;
use datasets::{DatasetEvent, Datasets};
use failed_inputs::Retained;
use follows::{FollowEvent, Follows};
use job_blobs::Blobs;
use large_frames::LargeFrames;
use pacing::Pacing;
use payloads::Payloads;
use peers::Peers;
use progress::Progresses;
use questions::{Asked, QuestionEvent, Questions};
use relay::Relay;
use retention::Retention;
use staging::Stagings;
use tasks::{HeldBack, Task, Turn};

/// Why a connection has to end at once.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(transparent)]
pub struct HangUp(#[from] SessionError);

/// Counters for status only.
#[derive(Debug, Default)]
struct Counters {
    started: Micros,
    /// Frames that were not what their senders sent.
    frames_damaged: u64,
    /// Results that did not count, as their workers had nothing to do with the job.
    acks_refused: u64,
    /// Jobs that a previous run left, and how long it took to read it.
    recovered_jobs: usize,
    recovery: Duration,
}

/// The leader: the machines that it is made of.
pub struct Leader {
    config: LeaderConfig,
    make_id: Box<dyn FnMut() -> Uuid>,
    now: Micros,
    counters: Counters,
    peers: Peers,
    broker: Broker,
    log: CommitLog,
    payloads: Payloads<Turn>,
    held_back: HeldBack,
    /// What goes to peers as they take it.
    pacing: Pacing,
    relay: Relay,
    blobs: Blobs,
    /// Acks that arrived while chunks of the parts they name are being sent again.
    early_acks: BTreeMap<(ConnId, JobId), AckBody>,
    retained: Retained,
    retention: Retention,
    progresses: Progresses,
    datasets: Datasets,
    /// Whether the actions of `datasets` are being carried out.
    acts_for_datasets: bool,
    stagings: Stagings,
    large_frames: LargeFrames,
    questions: Questions,
    follows: Follows,
    outputs: VecDeque<Output>,
}

impl Leader {
    /// A leader without jobs. `make_id` makes random ids: the leader holds no source of randomness.
    pub fn new(config: LeaderConfig, now: Micros, mut make_id: Box<dyn FnMut() -> Uuid>) -> Self {
        Leader {
            counters: Counters { started: now, ..Counters::default() },
            peers: Peers::new(make_id()),
            broker: Broker::begin(config.broker.clone(), now),
            log: CommitLog::default(),
            payloads: Payloads::default(),
            held_back: HeldBack::default(),
            pacing: Pacing::default(),
            relay: Relay::new(config.relay.clone()),
            blobs: Blobs::default(),
            early_acks: BTreeMap::new(),
            retained: Retained::default(),
            retention: Retention::default(),
            progresses: Progresses::default(),
            datasets: Datasets::new(config.blob_grace),
            acts_for_datasets: false,
            stagings: Stagings::new(config.relay.spool_bytes_max),
            large_frames: LargeFrames::new(config.relay.spool_bytes_max),
            questions: Questions::new(config.relay.durable),
            follows: Follows::default(),
            outputs: VecDeque::new(),
            config,
            make_id,
            now,
        }
    }

    /// A frame came that is not what its sender sent. For status.
    pub fn count_damaged(&mut self) {
        self.counters.frames_damaged += 1;
    }

    /// How long reading the data of the previous run took. For status.
    pub fn note_recovery(&mut self, took: Duration) {
        self.counters.recovery = took;
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
        let Some(session) = self.peers.get_mut(conn) else { return Ok(()) };
        let payload = payload.into();
        let payload_crc = payload.crc();
        let heard = session.hear(head, payload, &mut *self.make_id);
        let heard = heard.and_then(|heard| self.peers.admit(conn, heard, &self.broker));
        match heard.inspect_err(|error| self.hello_refused(conn, head, error))? {
            Inbound::Event(event) => self.peer_says(conn, event),
            Inbound::Announced(event) => {
                self.welcome(conn, head, payload_crc);
                self.peer_says(conn, event);
            }
            Inbound::Submit(body) => self.submit(conn, body),
            Inbound::Ack(body) => self.ack(conn, body),
            Inbound::Cancel(job) => {
                let by = self.name(conn).into();
                self.questions(QuestionEvent::Wished(Operation::Cancel { job, by }));
            }
            Inbound::Received { job, run } => self.received(conn, job, run),
            Inbound::Progress { job, says, event } => {
                if let Some(event) = event {
                    self.peer_says(conn, event);
                    // That it runs is said before how far it is.
                    self.act();
                }
                self.pass_on(conn, job, says);
            }
            Inbound::Transfer { id, says } => self.transfer(conn, id, says),
            Inbound::Piece { id, payload } => self.piece(conn, id, &payload),
            Inbound::Programs { said, answers } => self.programs_said(conn, said, answers),
            Inbound::Dataset(says) => self.dataset_says(conn, says),
            Inbound::Ask { verb, id, json } => {
                let by = Asked { conn, verb: verb.into(), id };
                let (json, peer) = (json.to_vec(), self.name(conn).into());
                self.questions(QuestionEvent::Asked { by, json, peer });
            }
            Inbound::Follow { id, follow } => self.follow(conn, id, follow),
            Inbound::Output { id, payload } => self.output_came(conn, id, payload),
            Inbound::Alive => {}
            Inbound::Skipped(why) => debug!(peer = %self.name(conn), "skipped a frame: {why}"),
        }
        self.act();
        Ok(())
    }

    fn pass_time(&mut self, now: Micros) {
        self.now = self.now.max(now);
        self.relay.set_now(self.now);
    }

    /// A connection ended.
    pub fn closed(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        if let Some(session) = self.peers.remove(conn) {
            debug!(peer = %session.name(), "disconnected");
            self.large_frames.broke(conn, &mut self.relay);
            self.relay.closed(conn);
            self.early_acks.retain(|(from, _), _| *from != conn);
            self.broker.handle(self.now, Event::Closed { conn });
            self.unpost(conn);
            self.progresses.closed(conn);
            self.questions(QuestionEvent::Closed(conn));
            self.dataset_event(DatasetEvent::Closed { conn });
            self.follow_event(FollowEvent::Closed(conn));
            if session.worker().is_some() {
                self.look_at_followed();
            }
            self.release_fetched();
            self.act();
        }
    }

    /// Bytes pass over a connection, to or from its peer, in frames that take long.
    pub fn moves(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        if self.peers.worker_at(conn).is_some() {
            self.broker.handle(self.now, Event::Moves { conn });
            self.act();
        }
    }

    /// A peer reads its frames, and quickly. While more is to follow, a worker cannot name in its
    /// heartbeats the jobs it has yet to receive.
    pub fn moves_quickly(&mut self, now: Micros, conn: ConnId) {
        if self.pacing.is_busy(conn) {
            self.moves(now, conn);
        }
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Micros) {
        self.pass_time(now);
        self.broker.handle(self.now, Event::Tick);
        self.relay.tick();
        self.tell_who_waits_for_room();
        self.pass_on_what_is_due();
        self.release_fetched();
        self.questions(QuestionEvent::Tick(self.now));
        self.follow_event(FollowEvent::Tick);
        self.dataset_event(DatasetEvent::Tick);
        self.act();
    }

    /// A disk operation ended.
    pub fn disk_done(&mut self, now: Micros, done: DiskDone) {
        self.pass_time(now);
        match done {
            DiskDone::Listed { result } => self.questions(QuestionEvent::Listed(result)),
            DiskDone::Checked { blob, result } => {
                self.questions(QuestionEvent::Checked { blob, result: result.clone() });
                self.relay.disk_done(DiskDone::Checked { blob, result });
            }
            DiskDone::Verified { blob, result } => self.looked(blob, result),
            DiskDone::Measured { .. } => {
                self.relay.disk_done(done);
                self.give_up_what_never_fits();
            }
            DiskDone::Written { .. }
            | DiskDone::Read { .. }
            | DiskDone::Sealed { .. }
            | DiskDone::Recycled { .. } => {
                self.relay.disk_done(done);
            }
        }
        self.act();
    }

    /// Takes no new jobs; running jobs may end.
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
        let machines = [
            self.broker.next_deadline(),
            self.relay.next_deadline(),
            self.datasets.next_deadline(),
            self.stagings.next_deadline(),
            self.questions.next_deadline(),
            self.follows.next_deadline(),
            self.progresses.next_deadline(),
        ];
        machines.into_iter().flatten().min()
    }

    /// Memory for its buffers.
    pub fn stock_buffers(&mut self, memory: Vec<BytesMut>) {
        self.relay.stock_buffers(memory);
    }

    /// How full the relay is.
    pub fn fill(&self) -> RelayStats {
        self.relay.fill()
    }

    /// The next thing for the driver to do.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
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
            if !self.relay_on() && !self.stage_on() && !self.early_acks_on() {
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
                    let run = self.run_of(job);
                    self.tell_lazily(conn, |s| s.waiting(job, run, &why.to_string()));
                }
                Action::Submitted { conn, job, run, standing, ahead } => {
                    let standing = submit::standing_on_the_wire(standing);
                    self.tell_lazily(conn, |s| s.submitted(job, run, standing, ahead));
                }
                Action::Refuse { conn, job, refusal } => {
                    // The id of a conflict is another job's, and so is its payload.
                    if !matches!(refusal, Refusal::Conflict { .. }) {
                        self.payloads.held.forget_input(job);
                        self.forget_inputs(job);
                    }
                    self.refuse(conn, job, refusal_text::RefusalText::from(&refusal));
                }
                Action::Running { conn, job, run, attempt } => {
                    self.tell_lazily(conn, |session| session.running(job, run, attempt));
                }
                Action::Deliver { conn, job, run } => {
                    self.post(conn, Task::Deliver { conn, job, run })
                }
                Action::Ended { job } => self.job_has_ended(job),
                Action::ForgetInput { job } => {
                    self.attempts_over(job);
                    self.retained.remove(job);
                    self.payloads.held.forget_input(job);
                    self.forget_inputs(job);
                }
                Action::RetainInput { job } => {
                    self.attempts_over(job);
                    self.forget_coming(job, |_, _| true);
                    self.retain_inputs(job);
                }
                Action::ReuseInput { job } => self.retained.remove(job),
                Action::ForgetResult { result } => {
                    self.payloads.held.forget_result(result);
                    self.forget_parts(result);
                }
                Action::Operated { token, answer } => {
                    self.questions(QuestionEvent::Operated { token, answer });
                }
                Action::DatasetPut { dataset, replaced } => {
                    self.payloads.commons.clear();
                    self.dataset_event(DatasetEvent::Kept { dataset, replaced });
                }
                Action::DatasetRemoved { dataset } => {
                    self.payloads.commons.clear();
                    self.dataset_event(DatasetEvent::Removed { dataset });
                }
                Action::AskAgent { agent, cache } => {
                    self.dataset_event(DatasetEvent::AgentWanted { agent, cache });
                }
                Action::AskPrograms { conn } => {
                    let question = (self.make_id)();
                    self.tell(conn, |session| session.ask_programs(question));
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
