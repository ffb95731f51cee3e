//! Runs tasks whose payloads are in memory: send a job to its worker or a result to its client,
//! stage inputs as a dataset, answer a question about a result.

use std::collections::{HashMap, HashSet};

use chunking::message::{Features, StartFlags};
use tracing::{debug, error};

use super::children::Assigned;
use super::pacing::{Ended, Memory, Posting};
use super::payloads::PayloadAction;
use super::{Asked, Leader, Output, gathered, outcome};
use crate::answers::ask::{self, Ask};
use crate::conn::WireFrame;
use crate::core::Event;
use crate::core::action::{Assignment, WorkerOrder};
use crate::core::ids::{Attempt, ConnId, JobId, Micros, Run};
use crate::core::job::{Job, Phase};
use crate::store::journal::LogOp;
use crate::store::replay::Key;

/// A task that needs payloads.
#[derive(Debug)]
pub(super) enum Task {
    /// Send a job to a worker.
    Assign(Assignment),
    /// Send a result to a client.
    Deliver { conn: ConnId, job: JobId, run: Run },
    /// Make a dataset of a job's inputs.
    Stage { job: JobId },
    /// Answer a question for a result.
    Answer { by: Asked, job: JobId },
}

/// A task whose turn it is.
#[derive(Debug)]
pub(super) struct Turn {
    pub(super) task: Task,
    /// What is counted for it on the way to its peer.
    pub(super) bytes: u64,
}

/// What follows for attempts whose jobs have yet to be sent to their workers. An earlier attempt
/// that ran out of time may wait for the same connection.
#[derive(Debug, Default)]
pub(super) struct HeldBack(HashMap<(JobId, ConnId, Attempt), Vec<WorkerOrder>>);

impl HeldBack {
    /// What follows for this attempt waits.
    fn begin(&mut self, job: JobId, conn: ConnId, attempt: Attempt) {
        self.0.entry((job, conn, attempt)).or_default();
    }

    /// Takes what has to wait; gives back what has not.
    pub(super) fn take(&mut self, order: WorkerOrder) -> Option<WorkerOrder> {
        let key = match order {
            WorkerOrder::Start(of) | WorkerOrder::Resume(of) => (of.job, of.conn, of.attempt),
            WorkerOrder::Abandon { conn, job, attempt } => (job, conn, attempt),
            // It is about what the worker had before, whatever waits to be sent to it.
            WorkerOrder::Settle { .. } => return Some(order),
        };
        match self.0.get_mut(&key) {
            Some(behind) => {
                behind.push(order);
                None
            }
            None => Some(order),
        }
    }

    /// Whether a job has yet to be sent to some worker.
    fn is_to_be_sent(&self, job: JobId) -> bool {
        self.0.keys().any(|(held_back, ..)| *held_back == job)
    }

    /// The job was sent, or will not be.
    fn end(&mut self, job: JobId, conn: ConnId, attempt: Attempt) -> Vec<WorkerOrder> {
        self.0.remove(&(job, conn, attempt)).unwrap_or_default()
    }
}

impl Leader {
    /// No worker has the job any more, or gets it.
    pub(super) fn attempts_over(&mut self, job: JobId) {
        self.progresses.forget(job);
        self.forget_staging(job);
        self.payloads.commons.forget(job);
    }

    /// Sends a job to its worker, when its payload is here.
    pub(super) fn give(&mut self, assignment: Assignment) {
        let Assignment { conn, job, attempt, .. } = assignment;
        self.held_back.begin(job, conn, attempt);
        self.post(conn, Task::Assign(assignment));
    }

    /// Tells a worker something about a job that it was sent.
    pub(super) fn tell_worker(&mut self, order: WorkerOrder) {
        match order {
            WorkerOrder::Start(held) => self.start(held),
            WorkerOrder::Resume(held) => {
                self.resume_inputs(held.conn, held.job, held.attempt);
                self.start(held);
            }
            WorkerOrder::Abandon { conn, job, attempt } => {
                self.withhold_inputs(conn, job);
                self.tell(conn, |session| session.abandon(job, attempt));
            }
            WorkerOrder::Settle { conn, job, run } => {
                self.tell_lazily(conn, |session| session.settled(job, run));
            }
        }
    }

    /// The word to start, where it is time.
    fn start(&mut self, Assignment { conn, job, run, attempt, lease, start, .. }: Assignment) {
        let session = self.peers.get(conn).filter(|_| start);
        let flags = self.start_flags(job);
        let frame = session.and_then(|session| session.start(job, run, attempt, lease, flags));
        self.send(conn, frame);
    }

    /// Whether the result of a job may have parts: the client that submitted it takes them, and
    /// so does the connection on which it waits now.
    fn start_flags(&self, id: JobId) -> StartFlags {
        let Some(job) = self.broker.state().job(id) else { return StartFlags::default() };
        // Its client knows the parent alone.
        let known = job.child_of.map_or(id, |(parent, _)| parent);
        let waits_on = self.broker.submitter_of(known, &job.submission.client);
        let takes_parts = self.payloads.held.is_from_ours(known)
            && waits_on.is_none_or(|conn| self.takes_transfers(conn));
        if takes_parts { StartFlags::TAKES_PARTS } else { StartFlags::default() }
    }

    /// The payload of a job: a child has its parent's.
    pub(super) fn payload_of_job(&self, job: JobId) -> Key {
        let owner = self.broker.state().job(job).and_then(|job| job.child_of);
        Key::Input(owner.map_or(job, |(parent, _)| parent))
    }

    /// Does something that ends in a frame with a payload for a peer, when it is its turn.
    pub(super) fn post(&mut self, conn: ConnId, task: Task) {
        let bytes = self.payloads_of(&task).iter().map(|key| self.payloads.held.len_of(*key)).sum();
        if !self.peers.has(conn) {
            // It is gone, and so is its line: what was to be done finds that out.
            return self.carry_out(Turn { task, bytes: 0 });
        }
        self.pacing.wait(conn, Turn { task, bytes });
        self.post_on();
    }

    /// Does what has its turn now.
    pub(super) fn post_on(&mut self) {
        self.payloads_on();
        while let Some(turn) = self.pacing.next() {
            self.when_here(turn);
            self.payloads_on();
        }
    }

    /// Carries a task out when its payloads are here.
    pub(super) fn when_here(&mut self, turn: Turn) {
        let keys = self.payloads_of(&turn.task);
        if let Task::Answer { by, .. } = &turn.task
            && by.verb == ask::JobShow::VERB
        {
            return self.payloads.want_to_show(keys, turn);
        }
        // Several become one, in JSON of our own writing.
        let ends_here = keys.len() > 1 || self.ends_checksum(&turn.task);
        self.payloads.want(keys, ends_here, turn);
    }

    fn payloads_of(&self, task: &Task) -> Vec<Key> {
        match task {
            Task::Answer { by, job } if by.verb == ask::JobShow::VERB => {
                self.payloads_to_show(*job)
            }
            Task::Deliver { job, .. } | Task::Answer { job, .. } => self.payloads_of_result(*job),
            Task::Assign(Assignment { job, .. }) | Task::Stage { job } => {
                vec![self.payload_of_job(*job)]
            }
        }
    }

    /// A frame goes to the driver; without one, its turn is over.
    fn send_posted(
        &mut self,
        conn: ConnId,
        bytes: u64,
        posting: Option<Posting>,
        result: Option<(JobId, Run)>,
    ) {
        if !self.peers.has(conn) {
            return;
        }
        match posting {
            Some(posting) => {
                if self.pacing.framed(conn, bytes, &posting, result) {
                    self.outputs.push_back(Output::Posted { conn, frame: posting.frame });
                }
            }
            None => self.pacing.not_framed(conn, bytes, result),
        }
    }

    /// A frame goes to the driver that cannot wait its turn.
    pub(super) fn post_now(&mut self, conn: ConnId, posting: Posting) {
        if self.peers.has(conn) && self.pacing.framed_at_once(conn, &posting) {
            self.outputs.push_back(Output::Posted { conn, frame: posting.frame });
        }
    }

    /// Whether all memory for what is on its way to peers is taken. The driver then finds those
    /// that do not read.
    pub fn is_short_of_room(&self) -> bool {
        self.pacing.is_short()
    }

    /// What the driver has for a connection waits on the disk, and takes no memory.
    pub fn parked(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        self.pacing.parked(conn);
        self.act();
    }

    /// Whether the disk has room for what waits for a peer.
    pub fn may_park(&self, bytes: u64) -> bool {
        self.relay.may_park(bytes)
    }

    /// So many of the [`Output::Posted`] frames for a connection were written, in their order.
    pub fn posted(&mut self, now: Micros, conn: ConnId, frames: u32) {
        self.pass_time(now);
        // A client that says so has it when it has said so.
        let says = self.peers.takes(conn, Features::RECEIPTS);
        for _ in 0..frames {
            match self.pacing.written(conn) {
                Some(Some((job, run))) if says => self.pacing.unconfirmed(conn, job, run),
                Some(Some((job, run))) => {
                    self.broker.handle(self.now, Event::Delivered { job, run })
                }
                Some(None) => {}
                None => break,
            }
        }
        let state = self.broker.state();
        let is_known = |job: JobId, run: Run| state.job(job).is_some_and(|job| job.run == run);
        self.pacing.forget_unconfirmed(conn, is_known);
        self.act();
    }

    /// A client says that it has a result.
    pub(super) fn received(&mut self, conn: ConnId, job: JobId, run: Option<Run>) {
        match self.pacing.confirmed(conn, job, run) {
            Some(run) => {
                self.note_got(conn, job);
                self.broker.handle(self.now, Event::Delivered { job, run });
            }
            None => {
                debug!(%job, peer = %self.name(conn),
                    "ignored a receipt for a result that was not sent here or is already confirmed")
            }
        }
    }

    /// A connection ended: results that its client may not have are kept for its next one.
    pub(super) fn unpost(&mut self, conn: ConnId) {
        let Ended { tasks, results } = self.pacing.closed(conn);
        for turn in tasks {
            // Carrying out the assignment ends the hold on the orders that follow it.
            if matches!(turn.task, Task::Assign(_)) {
                self.carry_out(turn);
            }
        }
        let elsewhere = self.sent_to_client_of(&results);
        for job in results.into_iter().filter(|job| !elsewhere.contains(job)) {
            self.broker.handle(self.now, Event::NotDelivered { job });
        }
    }

    /// Which results of these, all of one client, are on their way on another connection of it, or
    /// wait for its receipt there.
    fn sent_to_client_of(&self, jobs: &[JobId]) -> HashSet<JobId> {
        let state = self.broker.state();
        let Some(client) =
            jobs.iter().find_map(|job| state.job(*job)).map(|job| &job.submission.client)
        else {
            return HashSet::new();
        };
        let sent = self.peers.of_client(client).flat_map(|conn| self.pacing.results_for(conn));
        let is_current = |job: JobId, run: Run| state.job(job).is_some_and(|job| job.run == run);
        sent.filter(|(job, run)| is_current(*job, *run)).map(|(job, _)| job).collect()
    }

    /// Whether all that was to be sent has been written.
    pub fn has_posted_all(&self) -> bool {
        self.pacing.is_idle()
    }

    /// Does what waited for payloads that are here now, and has others read.
    pub(super) fn payloads_on(&mut self) {
        while let Some(action) = self.payloads.poll() {
            match action {
                PayloadAction::Read { key, place } => {
                    self.outputs.push_back(Output::Log(LogOp::Read { key, place }));
                }
                PayloadAction::Ready(turn) => self.carry_out(turn),
                PayloadAction::Lost { key, why } => {
                    error!(?key, "a payload cannot be read back: {why}");
                    // A worker that has the job has its payload, too. Should it be lost, the next
                    // assignment finds out.
                    if let Key::Input(job) = key
                        && !self.is_with_worker(job)
                    {
                        let why = format!("the leader cannot read it back: {why}").into();
                        self.broker.handle(self.now, Event::InputsFailed { job, why });
                    }
                }
            }
        }
    }

    /// Whether a worker was sent a job.
    fn is_with_worker(&self, id: JobId) -> bool {
        let job = self.broker.state().job(id);
        job.is_some_and(|job| matches!(job.phase, Phase::Leased { .. }))
            && !self.held_back.is_to_be_sent(id)
    }

    /// Whether nobody behind the leader can compare a payload with the checksum it came with: what
    /// is to be done makes other bytes of it, or sends it to a peer that knows no checksums.
    pub(super) fn ends_checksum(&self, task: &Task) -> bool {
        match task {
            Task::Assign(Assignment { conn, job, .. }) => {
                let is_child =
                    self.broker.state().job(*job).is_some_and(|job| job.child_of.is_some());
                is_child || !self.has_checksums(*conn)
            }
            Task::Deliver { conn, job, .. } => {
                let returned = self.broker.state().job(*job).and_then(outcome::returned);
                // That of a job to all workers is made of theirs.
                !self.has_checksums(*conn) || returned.is_none_or(|result| self.cuts(*conn, result))
            }
            Task::Stage { .. } | Task::Answer { .. } => true,
        }
    }

    /// Does a task whose payloads are here, or are lost.
    pub(super) fn carry_out(&mut self, Turn { task, bytes }: Turn) {
        match task {
            Task::Assign(assignment @ Assignment { conn, worker, job, attempt, .. }) => {
                let held_back = self.held_back.end(job, conn, attempt);
                let is_its = |job: &Job| {
                    matches!(job.phase, Phase::Leased { worker: holder, attempt: held, .. }
                        if (holder, held) == (worker, attempt))
                };
                let is_current = self.broker.state().job(job).is_some_and(is_its);
                let is_wanted = is_current && self.peers.has(conn);
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
                    self.start(assignment);
                    held_back.into_iter().for_each(|order| self.tell_worker(order));
                } else if self.peers.has(conn) {
                    // It never heard of the job, and of nothing that follows for it.
                    self.broker.handle(self.now, Event::NotAssigned { conn, worker, job, attempt });
                }
            }
            Task::Deliver { conn, job, run } => {
                let posting = self.deliver(conn, job, run).map(|frame| {
                    let result = self.broker.state().job(job).and_then(outcome::returned);
                    let kept = result.map(|result| self.memory_of(Key::Result(result), &frame));
                    Posting { frame, memory: kept.unwrap_or(Memory::Own) }
                });
                self.send_posted(conn, bytes, posting, Some((job, run)));
            }
            Task::Stage { job } => self.stage(job),
            Task::Answer { by, job } if by.verb == ask::JobShow::VERB => {
                self.answered(&by, self.job_show(job));
                self.send_posted(by.conn, bytes, None, None);
            }
            Task::Answer { by, job } => {
                let posting = match self.result_answer(&by, job) {
                    Ok(frame) => Some(Posting { frame, memory: Memory::Own }),
                    Err(failure) => {
                        self.answer_error(&by, failure);
                        None
                    }
                };
                self.send_posted(by.conn, bytes, posting, None);
            }
        }
    }

    /// Whether a frame shares the memory of a stored payload. A payload that no log has stays in
    /// memory anyway, so sending it costs nothing.
    fn memory_of(&self, key: Key, frame: &WireFrame) -> Memory {
        let is_kept = !self.log.is_durable() && self.payloads.held.holds(key, &frame.payload);
        if is_kept { Memory::Kept } else { Memory::Own }
    }

    /// The payloads that the result of a job is made of.
    pub(super) fn payloads_of_result(&self, job: JobId) -> Vec<Key> {
        let Some(job) = self.broker.state().job(job) else { return Vec::new() };
        let children = gathered::read_for_lines(&self.broker, &self.payloads.held, job);
        children.chain([job]).filter_map(outcome::returned).map(Key::Result).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::WorkerId;
    use std::time::Duration;
    use uuid::Uuid;

    #[test]
    fn what_follows_a_later_attempt_waits_behind_that_one_and_not_behind_an_earlier_one() {
        let (conn, job, worker) =
            (ConnId(1), JobId(Uuid::from_u128(2)), WorkerId(Uuid::from_u128(3)));
        let lease = Duration::from_secs(30);
        let start = |attempt| {
            WorkerOrder::Start(Assignment {
                conn,
                worker,
                job,
                run: Run(1),
                attempt,
                lease,
                start: true,
            })
        };
        let mut held_back = HeldBack::default();
        held_back.begin(job, conn, Attempt(1));
        held_back.begin(job, conn, Attempt(2));
        assert!(held_back.take(start(Attempt(2))).is_none(), "it waits");
        // The first ran out of time: its turn passes without a frame.
        assert!(held_back.end(job, conn, Attempt(1)).is_empty());
        let again = held_back.take(start(Attempt(2)));
        assert!(again.is_none(), "the second has yet to be sent");
        let late = held_back.take(start(Attempt(1)));
        assert!(late.is_some(), "nothing waits behind the first any more");
        assert_eq!(held_back.end(job, conn, Attempt(2)).len(), 2);
    }
}
