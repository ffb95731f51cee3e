//! Frames with payloads, on their way to one peer: results and answers for a client, jobs for a worker.
//!
//! A peer is sent as much as it takes. A few such frames are on their way to it, being read from the log or waiting for its
//! socket; the next one follows when one of them is out. What waits its turn is an id here, and its payload stays where it is.
//! So a client that comes back for all its results is never too slow for them, and the leader never has all of them in memory.

use std::collections::{BTreeSet, HashMap, HashSet, VecDeque};

use tracing::debug;

use super::durable::{Assignment, Then};
use super::{Leader, Output};
use crate::conn::{Session, WireFrame};
use crate::core::Event;
use crate::core::ids::{ConnId, JobId, Micros, Run};
use crate::store::replay::Key;

/// Bytes on their way to one peer. A frame that alone has more goes by itself.
const PEER_BYTES_MAX: u64 = 8 << 20;

/// Frames on their way to one peer.
const PEER_FRAMES_MAX: usize = 1_024;

/// Bytes on their way to all peers. Beyond it a peer has one frame at a time.
const ALL_BYTES_MAX: u64 = 256 << 20;

/// Answers that wait for one peer. Who asks for more has to read first.
const ANSWERS_WAITING_MAX: usize = 1_024;

/// Results without a receipt that are remembered before those of jobs that were forgotten are let go.
const UNCONFIRMED_KEPT: usize = 4_096;

/// Frames with payloads for all peers.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    lines: HashMap<ConnId, Line>,
    /// Bytes on their way to all of them.
    bytes: u64,
    /// Peers that may have room for what waits for them.
    to_look: BTreeSet<ConnId>,
    /// Peers that have none because of others.
    short: BTreeSet<ConnId>,
}

/// Those for one peer.
#[derive(Debug, Default)]
struct Line {
    /// What waits its turn.
    waiting: VecDeque<(u64, Then)>,
    /// How many of those are answers: a peer can ask for any number, while jobs and results are as many as are known.
    answers: usize,
    /// What is on its way.
    frames: usize,
    bytes: u64,
    /// Of that, what the driver has, in the order in which it writes.
    written_next: VecDeque<Parcel>,
    /// Results that wait or are on their way, so that none goes twice at a time.
    results: HashMap<JobId, Run>,
    /// Results that are out, and that the client has not said it has.
    unconfirmed: HashMap<JobId, Run>,
    /// How many there were after the last look at which of them are still known.
    unconfirmed_known: usize,
}

/// A frame that the driver has.
#[derive(Debug)]
struct Parcel {
    bytes: u64,
    result: Option<(JobId, Run)>,
}

impl Line {
    /// A result is not on its way any more. That of a later run may be.
    fn is_out(&mut self, result: Option<(JobId, Run)>) {
        if let Some((job, run)) = result
            && self.results.get(&job) == Some(&run)
        {
            self.results.remove(&job);
        }
    }

    fn has_room(&self, bytes: u64, all: u64) -> Room {
        match () {
            () if self.frames == 0 => Room::Here,
            () if self.frames >= PEER_FRAMES_MAX || self.bytes + bytes > PEER_BYTES_MAX => Room::Later,
            () if all + bytes > ALL_BYTES_MAX => Room::WhenOthersHaveTheirs,
            () => Room::Here,
        }
    }
}

/// Whether a peer may be sent the next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Here,
    Later,
    WhenOthersHaveTheirs,
}

impl Pacing {
    /// The next thing whose turn it is, with the bytes that are counted for it.
    fn next(&mut self) -> Option<(u64, Then)> {
        while let Some(conn) = self.to_look.first().copied() {
            let line = self.lines.get_mut(&conn);
            let next = line.and_then(|line| {
                let (bytes, _) = line.waiting.front()?;
                Some((line.has_room(*bytes, self.bytes), line))
            });
            match next {
                Some((Room::Here, line)) => {
                    let (bytes, then) = line.waiting.pop_front()?;
                    if matches!(then, Then::Answer { .. }) {
                        line.answers = line.answers.saturating_sub(1);
                    }
                    line.frames += 1;
                    line.bytes += bytes;
                    self.bytes += bytes;
                    return Some((bytes, then));
                }
                Some((Room::WhenOthersHaveTheirs, _)) => {
                    self.short.insert(conn);
                }
                Some((Room::Later, _)) | None => {}
            }
            self.to_look.remove(&conn);
        }
        None
    }

    /// Something is not on its way to a peer any more.
    fn release(&mut self, conn: ConnId, bytes: u64) {
        // A connection that ended has nothing on its way.
        let Some(line) = self.lines.get_mut(&conn) else { return };
        line.frames = line.frames.saturating_sub(1);
        line.bytes = line.bytes.saturating_sub(bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        self.to_look.insert(conn);
        self.to_look.append(&mut self.short);
    }

    /// Whether something waits for a peer, or is on its way to it.
    pub(super) fn is_busy(&self, conn: ConnId) -> bool {
        self.lines.get(&conn).is_some_and(|line| line.frames > 0 || !line.waiting.is_empty())
    }

    /// Whether nothing waits, and nothing is on its way.
    fn is_idle(&self) -> bool {
        self.lines.values().all(|line| line.waiting.is_empty() && line.frames == 0)
    }
}

impl Leader {
    /// Does something that ends in a frame with a payload for a peer, when it is its turn.
    pub(super) fn post(&mut self, conn: ConnId, then: Then) {
        if !self.sessions.contains_key(&conn) {
            // It is gone, and so is its line: what was to be done finds that out.
            return self.go_on_with(0, then);
        }
        let bytes = self.payloads_of(&then).iter().map(|key| self.store.len_of(*key)).sum();
        let line = self.pacing.lines.entry(conn).or_default();
        if let Then::Deliver { job, run, .. } = &then
            && line.results.insert(*job, *run) == Some(*run)
        {
            // A client that came back asks for what it is about to get.
            return;
        }
        if matches!(then, Then::Answer { .. }) {
            line.answers += 1;
        }
        line.waiting.push_back((bytes, then));
        self.pacing.to_look.insert(conn);
        self.post_on();
    }

    /// Whether one more answer may wait for a peer; else, what it is told.
    pub(super) fn has_room_for_answer(&self, conn: ConnId) -> Result<(), String> {
        let waiting = self.pacing.lines.get(&conn).map_or(0, |line| line.answers);
        if waiting < ANSWERS_WAITING_MAX {
            return Ok(());
        }
        Err(format!(
            "too many questions wait: {waiting}, and {ANSWERS_WAITING_MAX} may: read the answers first, then ask again"
        ))
    }

    /// Does what has its turn now.
    pub(super) fn post_on(&mut self) {
        while let Some((bytes, then)) = self.pacing.next() {
            let keys = self.payloads_of(&then);
            self.when_here(keys, bytes, then);
        }
    }

    fn payloads_of(&self, then: &Then) -> Vec<Key> {
        match then {
            Then::Deliver { job, .. } | Then::Answer { job, .. } => self.payloads_of_result(*job),
            Then::Assign(Assignment { job, .. }) | Then::Stage { job } => vec![self.payload_of_job(*job)],
        }
    }

    /// A frame goes to the driver; without one, its turn is over.
    pub(super) fn send_posted(
        &mut self,
        conn: ConnId,
        bytes: u64,
        frame: Option<WireFrame>,
        result: Option<(JobId, Run)>,
    ) {
        let is_here = self.sessions.contains_key(&conn);
        let line = self.pacing.lines.get_mut(&conn).filter(|_| is_here);
        match (line, frame) {
            (Some(line), Some(frame)) => {
                line.written_next.push_back(Parcel { bytes, result });
                self.outputs.push_back(Output::Posted { conn, frame });
            }
            (Some(line), None) => {
                line.is_out(result);
                self.pacing.release(conn, bytes);
            }
            (None, _) => {}
        }
    }

    /// So many of the [`Output::Posted`] frames for a connection were written, in their order.
    pub fn posted(&mut self, now: Micros, conn: ConnId, frames: u32) {
        self.pass_time(now);
        // A client that says so has it when it has said so.
        let says = self.confirms(conn);
        for _ in 0..frames {
            let Some(line) = self.pacing.lines.get_mut(&conn) else { return };
            let Some(Parcel { bytes, result }) = line.written_next.pop_front() else { break };
            line.is_out(result);
            if let Some((job, run)) = result {
                if says {
                    line.unconfirmed.insert(job, run);
                } else {
                    self.broker.handle(self.now, Event::Delivered { job, run });
                }
            }
            self.pacing.release(conn, bytes);
        }
        self.forget_unconfirmed(conn);
        self.act();
    }

    /// Jobs that were forgotten need no receipt any more.
    fn forget_unconfirmed(&mut self, conn: ConnId) {
        let Some(line) = self.pacing.lines.get_mut(&conn) else { return };
        if line.unconfirmed.len() > UNCONFIRMED_KEPT.max(2 * line.unconfirmed_known) {
            let state = self.broker.state();
            line.unconfirmed.retain(|job, run| state.job(*job).is_some_and(|job| job.run == *run));
            line.unconfirmed_known = line.unconfirmed.len();
        }
    }

    /// A client says that it has a result.
    pub(super) fn received(&mut self, conn: ConnId, job: JobId, run: Option<Run>) {
        let line = self.pacing.lines.get_mut(&conn);
        let sent = line.and_then(|line| {
            let sent = *line.unconfirmed.get(&job)?;
            let is_it = run.is_none_or(|run| run == sent);
            is_it.then(|| line.unconfirmed.remove(&job)).flatten()
        });
        match sent {
            Some(run) => {
                self.part_got(conn, job);
                self.broker.handle(self.now, Event::Delivered { job, run });
            }
            None => {
                debug!(%job, peer = %self.name(conn), "a receipt for a result that was not sent here, or is confirmed")
            }
        }
    }

    /// A connection ended: results that its client may not have are kept for its next one.
    pub(super) fn unpost(&mut self, conn: ConnId) {
        let Some(line) = self.pacing.lines.remove(&conn) else { return };
        self.pacing.bytes = self.pacing.bytes.saturating_sub(line.bytes);
        self.pacing.to_look.append(&mut self.pacing.short);
        let mut kept: Vec<JobId> = line.unconfirmed.into_keys().collect();
        kept.extend(line.written_next.iter().filter_map(|parcel| Some(parcel.result?.0)));
        for (bytes, then) in line.waiting {
            match then {
                Then::Deliver { job, .. } => kept.push(job),
                // It lets go of what waits behind it.
                then @ Then::Assign(_) => self.go_on_with(bytes, then),
                Then::Answer { .. } | Then::Stage { .. } => {}
            }
        }
        let elsewhere = self.sent_to_client_of(&kept);
        for job in kept.into_iter().filter(|job| !elsewhere.contains(job)) {
            self.broker.handle(self.now, Event::NotDelivered { job });
        }
    }

    /// Which results of these, all of one client, are on their way on another connection of it, or wait for its receipt there.
    fn sent_to_client_of(&self, jobs: &[JobId]) -> HashSet<JobId> {
        let state = self.broker.state();
        let Some(client) = jobs.iter().find_map(|job| state.job(*job)).map(|job| &job.client) else {
            return HashSet::new();
        };
        let is_its = |conn: &ConnId| self.sessions.get(conn).and_then(Session::client) == Some(client);
        let lines = self.pacing.lines.iter().filter(|(conn, _)| is_its(conn));
        let sent = lines.flat_map(|(_, line)| line.results.iter().chain(&line.unconfirmed));
        let is_current = |job: JobId, run: Run| state.job(job).is_some_and(|job| job.run == run);
        sent.filter(|(job, run)| is_current(**job, **run)).map(|(job, _)| *job).collect()
    }

    /// Whether all that was to be sent has been written.
    pub fn has_posted_all(&self) -> bool {
        self.pacing.is_idle()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::core::action::Action;
    use crate::core::ids::{Attempt, WorkerId};

    fn wait(pacing: &mut Pacing, conn: u64, number: u32, bytes: u64) {
        let (conn, job) = (ConnId(conn), JobId(uuid::Uuid::from_u128(number.into())));
        let then = Then::Deliver { conn, job, run: Run(1) };
        pacing.lines.entry(conn).or_default().waiting.push_back((bytes, then));
        pacing.to_look.insert(conn);
    }

    fn conn_of(then: &Then) -> ConnId {
        match then {
            Then::Deliver { conn, .. } | Then::Answer { conn, .. } => *conn,
            Then::Assign(assignment) => assignment.conn,
            Then::Stage { .. } => ConnId(0),
        }
    }

    /// All that has its turn, with its connection and bytes.
    fn turns(pacing: &mut Pacing) -> Vec<(ConnId, u64)> {
        std::iter::from_fn(|| pacing.next().map(|(bytes, then)| (conn_of(&then), bytes))).collect()
    }

    #[test]
    fn a_peer_has_so_many_frames_and_bytes_on_their_way_and_the_next_when_one_is_out() {
        let mut pacing = Pacing::default();
        (0..60_000).for_each(|number| wait(&mut pacing, 1, number, 100));
        let mut out = turns(&mut pacing);
        assert_eq!(out.len(), PEER_FRAMES_MAX);
        assert_eq!(turns(&mut pacing), []);
        let mut came = 0;
        while let Some((conn, bytes)) = out.pop() {
            came += 1;
            pacing.release(conn, bytes);
            out.extend(turns(&mut pacing));
            assert!(out.len() <= PEER_FRAMES_MAX);
        }
        assert_eq!((came, pacing.bytes, pacing.is_idle()), (60_000, 0, true));
        (0..25).for_each(|number| wait(&mut pacing, 1, number, 3_900_000));
        assert_eq!(turns(&mut pacing).len(), 2);
        pacing.release(ConnId(1), 3_900_000);
        assert_eq!(turns(&mut pacing).len(), 1);
    }

    #[test]
    fn what_follows_a_later_attempt_waits_behind_that_one_and_not_behind_an_earlier_one() {
        let ids = Box::new(|| uuid::Uuid::from_u128(1));
        let mut leader = Leader::new(crate::leader::LeaderConfig::default(), Micros(0), ids);
        let (conn, job, worker) =
            (ConnId(1), JobId(uuid::Uuid::from_u128(2)), WorkerId(uuid::Uuid::from_u128(3)));
        leader.connected(conn, chunking::Generation::F2, None);
        // There is no room, so both attempts wait.
        leader.pacing.lines.entry(conn).or_default().frames = PEER_FRAMES_MAX;
        let lease = std::time::Duration::from_secs(30);
        let of = |attempt| Assignment { conn, worker, job, run: Run(1), attempt, lease, start: false };
        leader.give(of(Attempt(1)));
        leader.give(of(Attempt(2)));
        let start = |attempt| Action::Start { conn, worker, job, run: Run(1), attempt, lease };
        assert!(leader.hold_back(job, conn, Attempt(2), start(Attempt(2))).is_none(), "it waits");
        // The first ran out of time: its turn passes without a frame.
        let line = leader.pacing.lines.get_mut(&conn).unwrap();
        let (bytes, first) = line.waiting.pop_front().unwrap();
        leader.go_on_with(bytes, first);
        let again = leader.hold_back(job, conn, Attempt(2), start(Attempt(2)));
        assert!(again.is_none(), "the second has yet to be sent");
        let late = leader.hold_back(job, conn, Attempt(1), start(Attempt(1)));
        assert!(late.is_some(), "nothing waits behind the first any more");
    }

    #[test]
    fn a_frame_larger_than_all_room_goes_by_itself() {
        let mut pacing = Pacing::default();
        (0..2).for_each(|number| wait(&mut pacing, 1, number, 2 * PEER_BYTES_MAX));
        assert_eq!(turns(&mut pacing).len(), 1);
        pacing.release(ConnId(1), 2 * PEER_BYTES_MAX);
        assert_eq!(turns(&mut pacing).len(), 1);
    }

    #[test]
    fn when_all_room_is_taken_every_peer_still_has_one_frame_and_more_when_others_are_done() {
        let mut pacing = Pacing::default();
        for conn in 1..=100 {
            (0..2).for_each(|number| wait(&mut pacing, conn, number, 4 << 20));
        }
        let first = turns(&mut pacing);
        let last: Vec<&(ConnId, u64)> = first.iter().filter(|(conn, _)| *conn == ConnId(100)).collect();
        assert_eq!(last.len(), 1, "one for each, though there is no room left");
        assert!(first.len() < 200 && pacing.bytes <= ALL_BYTES_MAX + 100 * (4 << 20));
        // What others take is given back, and so the rest has its turn.
        let mut left = first;
        let mut came = left.len();
        while let Some((conn, bytes)) = left.pop() {
            pacing.release(conn, bytes);
            let more = turns(&mut pacing);
            came += more.len();
            left.extend(more);
        }
        assert_eq!((came, pacing.bytes, pacing.is_idle()), (200, 0, true));
    }
}
