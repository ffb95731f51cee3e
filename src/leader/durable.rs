//! The leader and its log: what goes into it, what is read back from it, and how a leader begins where an earlier life ended.
//!
//! A payload that left the memory is read again when somebody needs it: what was to be done with it waits until then, and what
//! follows for the same job waits behind it.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use tracing::{error, warn};

use super::children::Assigned;
use super::pacing::{Memory, Posting};
use super::store::UNLOGGED_BYTES_MAX;
use super::{Asked, Leader, Output, gathered, outcome};
use crate::answers::{Durability, Log};
use crate::conn::WireFrame;
use crate::consensus::Single;
use crate::core::action::Action;
use crate::core::ids::{Attempt, ConnId, Index, JobId, Micros, Run, WorkerId};
use crate::core::job::{Job, Phase};
use crate::core::{Event, Record};
use crate::store::blobs::DiskOp;
use crate::store::codec::Attached;
use crate::store::journal::{Cost, LogDone, LogOp};
use crate::store::replay::Key;
use crate::store::space::Reserve;

/// What records are committed by.
#[derive(Debug)]
pub(super) enum Commits {
    /// Nothing: they count at once, and are gone with the leader.
    Memory,
    /// The log.
    Log(Box<Logging>),
}

impl Commits {
    /// The log as operators see it.
    pub(super) fn describe(&self) -> Log {
        match self {
            Commits::Memory => Log::default(),
            Commits::Log(logging) => Log {
                log_records: logging.cost.records,
                log_bytes: logging.cost.bytes,
                log_syncs: logging.cost.syncs,
                log_sync_us: logging.cost.sync_us,
                log_trouble: logging.trouble.clone(),
            },
        }
    }
}

/// The log, as the leader sees it.
#[derive(Debug, Default)]
pub(super) struct Logging {
    single: Single,
    /// Records whose payloads will have a place.
    placing: HashMap<Index, Key>,
    /// What it took so far.
    pub(super) cost: Cost,
    /// Bytes that it has written since the room on the disk was measured for it.
    unmeasured: u64,
    /// Why the disk takes nothing, if it does not.
    pub(super) trouble: Option<String>,
    /// Why nothing can be committed any more.
    failed: Option<String>,
}

/// Payloads that are read at a time: the others wait, so that a client that comes back for many results does not have all of
/// them in memory at once.
const READS_MAX: usize = 32;

/// And so many bytes, of which one payload may have more.
const READ_BYTES_MAX: u64 = 16 << 20;

/// While more bytes of payloads wait for the log, no large frames are read, and nothing of clients.
const LOG_BEHIND_BYTES: u64 = 16 << 20;

const _: () = assert!(LOG_BEHIND_BYTES < UNLOGGED_BYTES_MAX);

/// After so many bytes in the log it is looked how much room is left.
const MEASURE_AFTER_BYTES: u64 = 1 << 20;

/// What waits for payloads that are being read.
#[derive(Debug, Default)]
pub(super) struct Fetching {
    /// Payloads that are being read, or will be, with who waits for them.
    wanted: HashMap<Key, Vec<u64>>,
    /// Those that will be.
    to_read: VecDeque<Key>,
    /// Those that are being read, with their bytes.
    reading: HashMap<Key, u64>,
    waiting: HashMap<u64, Waiting>,
    next: u64,
    /// Jobs whose results somebody gets once they have been read, with how many do.
    results: HashMap<JobId, u32>,
    /// What is to be done for an attempt once its job has been sent to its worker there. An earlier attempt that ran out of
    /// time may wait for the same connection.
    held_back: HashMap<(JobId, ConnId, Attempt), Vec<Action>>,
}

/// Something that waits for payloads.
#[derive(Debug)]
struct Waiting {
    /// All that it needs.
    keys: Vec<Key>,
    /// How many of them are not here.
    missing: usize,
    /// What is counted for it on the way to its peer.
    bytes: u64,
    then: Then,
}

impl Fetching {
    fn may_read(&self) -> bool {
        self.reading.len() < READS_MAX && self.reading.values().sum::<u64>() < READ_BYTES_MAX
    }

    /// Whether somebody gets the result of a job once it has been read.
    pub(super) fn is_wanted(&self, job: JobId) -> bool {
        self.results.contains_key(&job)
    }
}

/// What is to be done with them.
#[derive(Debug)]
pub(super) enum Then {
    /// Send a job to a worker.
    Assign(Assignment),
    /// Send a result to a client.
    Deliver { conn: ConnId, job: JobId, run: Run },
    /// Make a dataset of a job's inputs.
    Stage { job: JobId },
    /// Answer a question for a result.
    Answer { by: Asked, job: JobId },
}

impl Then {
    /// The job whose result it is about.
    fn result_of(&self) -> Option<JobId> {
        match self {
            Then::Deliver { job, .. } | Then::Answer { job, .. } => Some(*job),
            Then::Assign(_) | Then::Stage { .. } => None,
        }
    }
}

/// A job that goes to a worker.
#[derive(Clone, Copy, Debug)]
pub(super) struct Assignment {
    pub(super) conn: ConnId,
    pub(super) worker: WorkerId,
    pub(super) job: JobId,
    pub(super) run: Run,
    pub(super) attempt: Attempt,
    pub(super) lease: std::time::Duration,
    pub(super) start: bool,
}

impl Leader {
    /// Commits a record: at once, or when the log has it.
    pub(super) fn commit(&mut self, index: Index, record: Record) {
        let attached = match self.commits {
            Commits::Memory => None,
            Commits::Log(_) => self.attached_to(&record),
        };
        let waits_anyway = self.is_told(&record);
        let committed = match &mut self.commits {
            Commits::Memory => Some(index),
            Commits::Log(logging) => {
                let sync = record.is_synced_first() || waits_anyway;
                let attached = attached.map(|(key, attached)| {
                    logging.placing.insert(index, key);
                    attached
                });
                self.outputs.push_back(Output::Log(LogOp::Append { index, record, attached, sync }));
                logging.single.propose(index, sync)
            }
        };
        if let Some(index) = committed {
            self.broker.handle(self.now, Event::Committed { index });
        }
    }

    /// Whether forgetting has an effect that cannot be taken back: somebody is told that a dead job is gone, or files are
    /// removed that the log would still refer to.
    fn is_told(&self, record: &Record) -> bool {
        let Record::Forget { job, .. } = record else { return false };
        let Some(job) = self.broker.state().job(*job) else { return false };
        matches!(job.phase, Phase::Dead { .. }) || self.has_parts(job)
    }

    /// Whether the result of a job, or of one of its children, has parts that are blobs.
    pub(super) fn has_parts(&self, job: &Job) -> bool {
        let children = job.children.iter().filter_map(|child| self.broker.state().job(*child));
        let mut results = children.chain([job]).filter_map(outcome::returned);
        results.any(|result| !self.blobs.of_result(result).is_empty())
    }

    /// The payload that goes into the log with a record.
    fn attached_to(&self, record: &Record) -> Option<(Key, Attached)> {
        match record {
            Record::Announce { job, .. } | Record::Enqueue { job, .. } => {
                // One that was announced has its payload there already.
                let is_announced = self.broker.state().job(job.job).is_some();
                let input = self.store.input(job.job).filter(|_| !is_announced)?;
                let blobs = self.blobs.inputs(job.job).to_vec();
                let attached = Attached { from_ours: input.from_ours, blobs, payload: input.payload };
                Some((Key::Input(job.job), attached))
            }
            Record::Ack { result, .. } => {
                let payload = self.store.result(*result)?;
                let blobs = self.blobs.of_result(*result).to_vec();
                Some((Key::Result(*result), Attached { from_ours: true, blobs, payload }))
            }
            Record::Assign { .. }
            | Record::Requeue { .. }
            | Record::Dlq { .. }
            | Record::Cancel { .. }
            | Record::Withdraw { .. }
            | Record::Fail { .. }
            | Record::Orphan { .. }
            | Record::Revive { .. }
            | Record::Forget { .. }
            | Record::Delivered { .. }
            | Record::Cap { .. }
            | Record::Dataset { .. }
            | Record::DatasetGone { .. } => None,
        }
    }

    /// The log has done something.
    pub fn log_done(&mut self, now: Micros, done: LogDone) {
        self.pass_time(now);
        let Commits::Log(logging) = &mut self.commits else { return };
        match done {
            LogDone::Written { synced, places, cost } => {
                logging.cost.records += cost.records;
                logging.cost.bytes += cost.bytes;
                logging.cost.syncs += cost.syncs;
                logging.cost.sync_us += cost.sync_us;
                logging.unmeasured += cost.bytes;
                let is_much = logging.unmeasured >= MEASURE_AFTER_BYTES;
                if is_much {
                    logging.unmeasured = 0;
                }
                for (index, place) in places {
                    if let Some(key) = logging.placing.remove(&index) {
                        self.store.placed(key, place);
                    }
                }
                if let Some(index) = synced.and_then(|index| logging.single.synced(index)) {
                    self.broker.handle(self.now, Event::Committed { index });
                }
                if is_much {
                    self.relay.measure();
                }
            }
            LogDone::Read { key, result } => self.payload_read(key, result),
            LogDone::Snapshot(report) => {
                for (key, from, to) in report.moved {
                    self.store.moved(key, &from, to);
                }
                self.outputs.push_back(Output::Log(LogOp::Cut));
            }
            LogDone::Trouble(trouble) => {
                match &trouble {
                    Some(trouble) => {
                        error!("{trouble}; jobs wait until it takes more");
                        self.outputs.push_back(Output::Disk(DiskOp::MakeRoom));
                    }
                    None => warn!("the log can be written again"),
                }
                logging.trouble = trouble;
                self.relay.measure();
                self.answer_those_that_wait();
            }
            LogDone::Failed(why) => logging.failed = Some(why),
        }
        self.act();
    }

    /// What is kept free on the disk.
    pub fn disk_reserve(&self) -> Reserve {
        self.config.relay.disk_reserve
    }

    /// Whether what it has outlives it.
    pub(super) fn is_durable(&self) -> bool {
        match self.commits {
            Commits::Memory => false,
            Commits::Log(_) => true,
        }
    }

    /// The same in a word, for status.
    pub(super) fn durability(&self) -> Durability {
        if self.is_durable() { Durability::Disk } else { Durability::Memory }
    }

    /// Why the log takes nothing, if it does not.
    pub(super) fn log_trouble(&self) -> Option<&str> {
        match &self.commits {
            Commits::Memory => None,
            Commits::Log(logging) => logging.trouble.as_deref(),
        }
    }

    /// Whether so much waits for the log that it is better to wait for it before more is read. Not for one that takes nothing: what then comes
    /// is refused, and whoever has something else to say is heard.
    pub fn is_log_behind(&self) -> bool {
        match &self.commits {
            Commits::Memory => false,
            Commits::Log(logging) => {
                logging.trouble.is_none() && self.store.unlogged_bytes() > LOG_BEHIND_BYTES
            }
        }
    }

    /// Why the leader has to stop, if it has to: nothing can be committed any more.
    pub fn why_failed(&self) -> Option<&str> {
        match &self.commits {
            Commits::Memory => None,
            Commits::Log(logging) => logging.failed.as_deref(),
        }
    }

    // --- payloads that are not in memory

    /// Whether something for an attempt has to wait, as its job has yet to be sent to its worker. Takes it, if so.
    pub(super) fn hold_back(
        &mut self,
        job: JobId,
        conn: ConnId,
        attempt: Attempt,
        action: Action,
    ) -> Option<Action> {
        match self.fetching.held_back.get_mut(&(job, conn, attempt)) {
            Some(behind) => {
                behind.push(action);
                None
            }
            None => Some(action),
        }
    }

    /// Sends a job to its worker, when its payload is here.
    pub(super) fn give(&mut self, assignment: Assignment) {
        let Assignment { conn, job, attempt, .. } = assignment;
        // What follows for this attempt waits behind it.
        self.fetching.held_back.entry((job, conn, attempt)).or_default();
        self.post(conn, Then::Assign(assignment));
    }

    /// The payload of a job: a child has its parent's.
    pub(super) fn payload_of_job(&self, job: JobId) -> Key {
        let owner = self.broker.state().job(job).and_then(|job| job.child_of);
        Key::Input(owner.map_or(job, |(parent, _)| parent))
    }

    /// Does something when payloads are in memory: now, if they are.
    pub(super) fn when_here(&mut self, keys: Vec<Key>, bytes: u64, then: Then) {
        self.look_at(&keys, &then);
        let away: Vec<Key> = keys.iter().copied().filter(|key| self.store.away(*key).is_some()).collect();
        if away.is_empty() {
            return self.go_on_with(bytes, then);
        }
        keys.iter().for_each(|key| self.store.pin(*key));
        let fetching = &mut self.fetching;
        fetching.next += 1;
        let id = fetching.next;
        if let Some(job) = then.result_of() {
            *fetching.results.entry(job).or_default() += 1;
        }
        fetching.waiting.insert(id, Waiting { keys, missing: away.len(), bytes, then });
        for key in away {
            let waiters = fetching.wanted.entry(key).or_insert_with(|| {
                fetching.to_read.push_back(key);
                Vec::new()
            });
            waiters.push(id);
        }
        self.read_on();
    }

    /// Compares payloads that are in memory with their checksums, where that is due. What is not sound is read again.
    fn look_at(&mut self, keys: &[Key], then: &Then) {
        // Several become one, in JSON of our own writing.
        let ends_here = keys.len() > 1 || self.ends_checksum(then);
        for key in keys {
            if let Err(why) = self.store.look_at(*key, ends_here) {
                self.payload_lost(*key, why);
            }
        }
    }

    /// Has payloads read, as far as few enough are.
    fn read_on(&mut self) {
        while self.fetching.may_read() {
            let Some(key) = self.fetching.to_read.pop_front() else { break };
            match self.store.away(key) {
                Some(place) => {
                    self.fetching.reading.insert(key, place.len.into());
                    self.outputs.push_back(Output::Log(LogOp::Read { key, place }));
                }
                None => self.is_here(key),
            }
        }
    }

    fn payload_read(&mut self, key: Key, result: Result<Bytes, String>) {
        self.fetching.reading.remove(&key);
        match result {
            Ok(payload) => self.store.was_read(key, payload),
            Err(why) => self.payload_lost(key, why),
        }
        self.is_here(key);
        self.read_on();
    }

    fn payload_lost(&mut self, key: Key, why: String) {
        error!(?key, "a payload cannot be read back: {why}");
        self.store.was_lost(key, why.clone());
        if let Key::Input(job) = key {
            let why = format!("the leader cannot read it back: {why}").into();
            self.broker.handle(self.now, Event::InputsFailed { job, why });
        }
    }

    /// Whether nobody behind the leader can compare a payload with the checksum it came with: what is to be done makes other
    /// bytes of it, or sends it to a peer that knows no checksums.
    fn ends_checksum(&self, then: &Then) -> bool {
        match then {
            Then::Assign(Assignment { conn, job, .. }) => {
                let is_child = self.broker.state().job(*job).is_some_and(|job| job.child_of.is_some());
                is_child || !self.has_checksums(*conn)
            }
            Then::Deliver { conn, job, .. } => {
                let returned = self.broker.state().job(*job).and_then(outcome::returned);
                // That of a job to all workers is made of theirs.
                !self.has_checksums(*conn) || returned.is_none_or(|result| self.cuts(*conn, result))
            }
            Then::Stage { .. } | Then::Answer { .. } => true,
        }
    }

    /// A payload is here, or will never be: who has waited for it alone goes on.
    fn is_here(&mut self, key: Key) {
        for id in self.fetching.wanted.remove(&key).unwrap_or_default() {
            let Some(waiting) = self.fetching.waiting.get_mut(&id) else { continue };
            waiting.missing = waiting.missing.saturating_sub(1);
            if waiting.missing > 0 {
                continue;
            }
            if let Some(Waiting { keys, bytes, then, .. }) = self.fetching.waiting.remove(&id) {
                if let Some(job) = then.result_of()
                    && let Some(count) = self.fetching.results.get_mut(&job)
                {
                    *count -= 1;
                    if *count == 0 {
                        self.fetching.results.remove(&job);
                    }
                }
                self.go_on_with(bytes, then);
                keys.iter().for_each(|key| self.store.unpin(*key));
            }
        }
    }

    pub(super) fn go_on_with(&mut self, bytes: u64, then: Then) {
        match then {
            Then::Assign(Assignment { conn, worker, job, run, attempt, lease, start }) => {
                let held_back = self.fetching.held_back.remove(&(job, conn, attempt)).unwrap_or_default();
                let is_its = |job: &Job| match job.phase {
                    Phase::Leased { worker: holder, attempt: held, .. } => {
                        (holder, held) == (worker, attempt)
                    }
                    Phase::Queued { .. }
                    | Phase::Gathering { .. }
                    | Phase::Done { .. }
                    | Phase::Dead { .. } => false,
                };
                let is_current = self.broker.state().job(job).is_some_and(is_its);
                let is_wanted = is_current && self.sessions.contains_key(&conn);
                let assigned = if is_wanted { self.assign(conn, worker, job) } else { None };
                let is_sent = assigned.is_some();
                let posting = assigned.map(|Assigned { frame, common }| {
                    let memory = match common {
                        Some(common) => Memory::Common(common),
                        None => self.memory_of(self.payload_of_job(job), &frame),
                    };
                    Posting { frame, memory }
                });
                self.send_posted(conn, bytes, posting, None);
                if is_sent {
                    self.send_inputs(conn, job, attempt);
                    self.unstage_for(conn, job);
                    self.start(start, conn, job, run, attempt, lease);
                    held_back.into_iter().for_each(|action| self.act_on(action));
                } else if self.sessions.contains_key(&conn) {
                    // It never heard of the job, and of nothing that follows for it.
                    self.broker.handle(self.now, Event::NotAssigned { conn, worker, job, attempt });
                }
            }
            Then::Deliver { conn, job, run } => {
                let posting = self.deliver(conn, job, run).map(|frame| {
                    let result = self.broker.state().job(job).and_then(outcome::returned);
                    let kept = result.map(|result| self.memory_of(Key::Result(result), &frame));
                    Posting { frame, memory: kept.unwrap_or(Memory::Own) }
                });
                self.send_posted(conn, bytes, posting, Some((job, run)));
            }
            Then::Stage { job } => self.stage(job),
            Then::Answer { by, job } => {
                let answer = self.result_answer(&by, job);
                if let Err(text) = &answer {
                    self.answer_error(&by, text);
                }
                let posting = answer.ok().map(|frame| Posting { frame, memory: Memory::Own });
                self.send_posted(by.conn, bytes, posting, None);
            }
        }
    }

    /// Whose memory a frame takes that may have a payload as it is kept. What no log has stays in memory as long as it is needed, whoever
    /// is sent it.
    fn memory_of(&self, key: Key, frame: &WireFrame) -> Memory {
        match self.commits {
            Commits::Memory if self.store.holds(key, &frame.payload) => Memory::Kept,
            Commits::Memory | Commits::Log(_) => Memory::Own,
        }
    }

    /// The payloads that the result of a job is made of.
    pub(super) fn payloads_of_result(&self, job: JobId) -> Vec<Key> {
        let Some(job) = self.broker.state().job(job) else { return Vec::new() };
        let children = gathered::read_for_lines(&self.broker, &self.store, job);
        children.chain([job]).filter_map(outcome::returned).map(Key::Result).collect()
    }
}
