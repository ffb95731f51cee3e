//! Frames with payloads, on their way to one peer: results and answers for a client, jobs for a worker.
//!
//! A peer is sent as much as it takes. A few such frames are on their way to it, being read from the log or waiting for its
//! socket; the next one follows when one of them is out. What waits its turn is an id here, and its payload stays where it is.
//! So a client that comes back for all its results is never too slow for them, and the leader never has all of them in memory.
//!
//! All of them together have their bytes, too. Where those are taken by peers that do not read, the driver moves what waits for such a
//! peer to the disk ([`Leader::parked`]): it gets that from there, and nothing more until it has it. So others wait for a moment only.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use tracing::debug;

use super::children::CommonId;
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

/// Bytes in memory on their way to all peers. What several frames share counts once.
const ALL_BYTES_MAX: u64 = 64 << 20;

/// Beyond so many a peer has one frame at a time.
const ALL_BYTES_SHORT: u64 = ALL_BYTES_MAX / 2;

/// A frame of up to so many bytes does not wait for those with more, which have so many bytes less.
const SMALL_BYTES_MAX: u64 = 64 << 10;
const ALL_BYTES_FOR_SMALL: u64 = 8 << 20;

const _: () = assert!(ALL_BYTES_SHORT + ALL_BYTES_FOR_SMALL + PEER_BYTES_MAX <= ALL_BYTES_MAX);

/// Answers that wait for one peer. Who asks for more has to read first.
const ANSWERS_WAITING_MAX: usize = 1_024;

/// Results without a receipt that are remembered before those of jobs that were forgotten are let go.
const UNCONFIRMED_KEPT: usize = 4_096;

/// A frame for a peer.
#[derive(Debug)]
pub(super) struct Posting {
    pub(super) frame: WireFrame,
    pub(super) memory: Memory,
}

/// Whose memory a frame's payload takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Memory {
    /// The frame's own, until it is out.
    Own,
    /// That of others, too, which is counted once.
    Common(CommonId),
    /// That of the job or result, which stays.
    Kept,
}

/// Frames with payloads for all peers.
#[derive(Debug, Default)]
pub(super) struct Pacing {
    lines: HashMap<ConnId, Line>,
    /// Bytes on their way to all of them, as far as they are in memory.
    bytes: u64,
    /// Of that, what several frames share, with how many do.
    commons: HashMap<CommonId, (u32, u64)>,
    /// Peers that may have room for what waits for them.
    to_look: BTreeSet<ConnId>,
    /// Peers that have something on its way, and no room for more because of others.
    short: BTreeSet<ConnId>,
    /// Peers that have nothing on its way because of others, those first that wait longest.
    queue: BTreeMap<u64, ConnId>,
    last_ticket: u64,
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
    /// Whether the driver has moved what it has to the disk.
    is_parked: bool,
    /// Its place among those that wait for others.
    ticket: Option<u64>,
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
    memory: Taken,
    result: Option<(JobId, Run)>,
}

/// What a frame takes of the memory for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taken {
    Bytes(u64),
    Common(CommonId),
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
        let most = match bytes {
            ..=SMALL_BYTES_MAX => ALL_BYTES_MAX,
            _ => ALL_BYTES_MAX - ALL_BYTES_FOR_SMALL,
        };
        match () {
            () if self.frames == 0 && all + bytes <= most => Room::Here,
            () if self.frames == 0 => Room::WhenItsTurnComes,
            () if self.is_parked || self.frames >= PEER_FRAMES_MAX => Room::Later,
            () if self.bytes + bytes > PEER_BYTES_MAX => Room::Later,
            () if all + bytes > ALL_BYTES_SHORT => Room::WhenOthersHaveTheirs,
            () => Room::Here,
        }
    }
}

/// Whether a peer may be sent the next frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Here,
    /// When it has something of what is on its way to it.
    Later,
    /// It has something on its way, and gets more when others have theirs.
    WhenOthersHaveTheirs,
    /// It has nothing on its way.
    WhenItsTurnComes,
}

impl Pacing {
    /// The next thing whose turn it is, with the bytes that are counted for it.
    fn next(&mut self) -> Option<(u64, Then)> {
        while let Some((ticket, conn)) = self.queue.first_key_value().map(|(ticket, conn)| (*ticket, *conn)) {
            let room = self.look(conn);
            if room == Some(Room::WhenItsTurnComes) {
                break;
            }
            self.queue.remove(&ticket);
            if let Some(line) = self.lines.get_mut(&conn) {
                line.ticket = None;
                self.to_look.insert(conn);
            }
            if room == Some(Room::Here) {
                return self.take(conn);
            }
        }
        while let Some(conn) = self.to_look.first().copied() {
            let room = self.look(conn);
            if room == Some(Room::Here) && !self.comes_behind(conn) {
                return self.take(conn);
            }
            self.to_look.remove(&conn);
            match (room, self.lines.get_mut(&conn)) {
                (Some(Room::Here | Room::WhenItsTurnComes), Some(line)) if line.frames == 0 => {
                    if line.ticket.is_none() {
                        self.last_ticket += 1;
                        line.ticket = Some(self.last_ticket);
                        self.queue.insert(self.last_ticket, conn);
                    }
                }
                (Some(Room::Here | Room::WhenItsTurnComes | Room::WhenOthersHaveTheirs), Some(_)) => {
                    self.short.insert(conn);
                }
                (Some(Room::Later), _) | (None, _) | (_, None) => {}
            }
        }
        None
    }

    /// Whether there is room for what waits next for a peer; nothing if nothing waits.
    fn look(&self, conn: ConnId) -> Option<Room> {
        let line = self.lines.get(&conn)?;
        let (bytes, _) = line.waiting.front()?;
        Some(line.has_room(*bytes, self.bytes))
    }

    /// Whether others wait for room before it, and what it is to get is no small frame.
    fn comes_behind(&self, conn: ConnId) -> bool {
        let is_small = |line: &Line| line.waiting.front().is_some_and(|(bytes, _)| *bytes <= SMALL_BYTES_MAX);
        !self.queue.is_empty() && !self.lines.get(&conn).is_some_and(is_small)
    }

    fn take(&mut self, conn: ConnId) -> Option<(u64, Then)> {
        let line = self.lines.get_mut(&conn)?;
        let (bytes, then) = line.waiting.pop_front()?;
        if matches!(then, Then::Answer { .. }) {
            line.answers = line.answers.saturating_sub(1);
        }
        line.frames += 1;
        line.bytes += bytes;
        self.bytes += bytes;
        Some((bytes, then))
    }

    /// A frame was made of what was taken: it is counted as it is.
    fn made(&mut self, conn: ConnId, reserved: u64, len: u64, memory: Memory) -> Taken {
        self.bytes = self.bytes.saturating_sub(reserved);
        if let Some(line) = self.lines.get_mut(&conn) {
            line.bytes = line.bytes.saturating_sub(reserved) + len;
        }
        match memory {
            Memory::Own => {
                self.bytes += len;
                Taken::Bytes(len)
            }
            Memory::Kept => Taken::Bytes(0),
            Memory::Common(common) => {
                let (frames, _) = self.commons.entry(common).or_insert_with(|| {
                    self.bytes += len;
                    (0, len)
                });
                *frames += 1;
                Taken::Common(common)
            }
        }
    }

    /// A frame takes no memory any more.
    fn give_back(&mut self, taken: Taken) {
        match taken {
            Taken::Bytes(bytes) => self.bytes = self.bytes.saturating_sub(bytes),
            Taken::Common(common) => {
                let Some((frames, bytes)) = self.commons.get_mut(&common) else { return };
                *frames = frames.saturating_sub(1);
                if *frames == 0 {
                    self.bytes = self.bytes.saturating_sub(*bytes);
                    self.commons.remove(&common);
                }
            }
        }
    }

    /// Something is not on its way to a peer any more.
    fn release(&mut self, conn: ConnId, bytes: u64, taken: Taken) {
        // A connection that ended has nothing on its way.
        let Some(line) = self.lines.get_mut(&conn) else { return };
        line.frames = line.frames.saturating_sub(1);
        line.bytes = line.bytes.saturating_sub(bytes);
        line.is_parked &= line.frames > 0;
        self.give_back(taken);
        self.look_again();
        self.to_look.insert(conn);
    }

    fn look_again(&mut self) {
        self.to_look.append(&mut self.short);
    }

    /// What the driver has for a peer is on the disk now.
    fn parked(&mut self, conn: ConnId) {
        let Some(line) = self.lines.get_mut(&conn).filter(|line| line.frames > 0) else { return };
        line.is_parked = true;
        let taken: Vec<Taken> = line
            .written_next
            .iter_mut()
            .map(|parcel| std::mem::replace(&mut parcel.memory, Taken::Bytes(0)))
            .collect();
        taken.into_iter().for_each(|taken| self.give_back(taken));
        self.look_again();
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
        posting: Option<Posting>,
        result: Option<(JobId, Run)>,
    ) {
        let is_here = self.sessions.contains_key(&conn) && self.pacing.lines.contains_key(&conn);
        match posting.filter(|_| is_here) {
            Some(Posting { frame, memory }) => {
                let len = frame.len() as u64;
                let memory = self.pacing.made(conn, bytes, len, memory);
                if let Some(line) = self.pacing.lines.get_mut(&conn) {
                    line.written_next.push_back(Parcel { bytes: len, memory, result });
                }
                self.outputs.push_back(Output::Posted { conn, frame });
            }
            None if is_here => {
                if let Some(line) = self.pacing.lines.get_mut(&conn) {
                    line.is_out(result);
                }
                self.pacing.release(conn, bytes, Taken::Bytes(bytes));
            }
            None => {}
        }
    }

    /// A frame goes to the driver that cannot wait its turn. It counts, so that others wait for it.
    pub(super) fn post_now(&mut self, conn: ConnId, posting: Posting) {
        if self.sessions.contains_key(&conn) {
            let line = self.pacing.lines.entry(conn).or_default();
            line.frames += 1;
            self.send_posted(conn, 0, Some(posting), None);
        }
    }

    /// Whether all memory for what is on its way is taken, or a peer that has nothing on its way waits for some. The driver then finds those
    /// that do not read.
    pub fn is_short_of_room(&self) -> bool {
        !self.pacing.queue.is_empty() || self.pacing.bytes > ALL_BYTES_MAX
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
        let says = self.confirms(conn);
        for _ in 0..frames {
            let Some(line) = self.pacing.lines.get_mut(&conn) else { return };
            let Some(Parcel { bytes, memory, result }) = line.written_next.pop_front() else { break };
            line.is_out(result);
            if let Some((job, run)) = result {
                if says {
                    line.unconfirmed.insert(job, run);
                } else {
                    self.broker.handle(self.now, Event::Delivered { job, run });
                }
            }
            self.pacing.release(conn, bytes, memory);
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
        // What is being read for it has not become a frame yet.
        let framed: u64 = line.written_next.iter().map(|parcel| parcel.bytes).sum();
        self.pacing.give_back(Taken::Bytes(line.bytes.saturating_sub(framed)));
        line.written_next.iter().for_each(|parcel| self.pacing.give_back(parcel.memory));
        if let Some(ticket) = line.ticket {
            self.pacing.queue.remove(&ticket);
        }
        self.pacing.look_again();
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
            Then::Deliver { conn, .. } => *conn,
            Then::Answer { by, .. } => by.conn,
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
            pacing.release(conn, bytes, Taken::Bytes(bytes));
            out.extend(turns(&mut pacing));
            assert!(out.len() <= PEER_FRAMES_MAX);
        }
        assert_eq!((came, pacing.bytes, pacing.is_idle()), (60_000, 0, true));
        (0..25).for_each(|number| wait(&mut pacing, 1, number, 3_900_000));
        assert_eq!(turns(&mut pacing).len(), 2);
        pacing.release(ConnId(1), 3_900_000, Taken::Bytes(3_900_000));
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
        pacing.release(ConnId(1), 2 * PEER_BYTES_MAX, Taken::Bytes(2 * PEER_BYTES_MAX));
        assert_eq!(turns(&mut pacing).len(), 1);
    }

    #[test]
    fn all_frames_together_have_their_bytes_and_who_waits_longest_is_next() {
        let mut pacing = Pacing::default();
        let large = 4 << 20;
        for conn in 1..=100 {
            (0..2).for_each(|number| wait(&mut pacing, conn, number, large));
        }
        let mut left: VecDeque<(ConnId, u64)> = turns(&mut pacing).into();
        assert!(pacing.bytes <= ALL_BYTES_MAX && !pacing.queue.is_empty());
        // Small frames do not wait behind them.
        wait(&mut pacing, 101, 1, SMALL_BYTES_MAX);
        assert_eq!(turns(&mut pacing), [(ConnId(101), SMALL_BYTES_MAX)]);
        pacing.release(ConnId(101), SMALL_BYTES_MAX, Taken::Bytes(SMALL_BYTES_MAX));
        // What others take is given back, and so the rest has its turn: nobody a second time before all had their first.
        let mut order: Vec<ConnId> = left.iter().map(|(conn, _)| *conn).collect();
        while let Some((conn, bytes)) = left.pop_front() {
            pacing.release(conn, bytes, Taken::Bytes(bytes));
            let more = turns(&mut pacing);
            assert!(pacing.bytes <= ALL_BYTES_MAX);
            order.extend(more.iter().map(|(conn, _)| *conn));
            left.extend(more);
        }
        assert_eq!((order.len(), pacing.bytes, pacing.is_idle()), (200, 0, true));
        let last_first = (1..=100).filter_map(|conn| order.iter().position(|c| *c == ConnId(conn))).max();
        assert!(last_first.is_some_and(|at| at < 120), "{last_first:?}");
    }

    #[test]
    fn what_is_parked_makes_room_for_others_and_its_peer_gets_nothing_more_until_it_is_out() {
        let mut pacing = Pacing::default();
        let large = 4 << 20;
        for conn in 1..=100 {
            (0..2).for_each(|number| wait(&mut pacing, conn, number, large));
        }
        let mut came: Vec<(ConnId, u64)> = turns(&mut pacing);
        let mut at = 0;
        while let Some((conn, bytes)) = came.get(at).copied() {
            at += 1;
            let memory = pacing.made(conn, bytes, bytes, Memory::Own);
            pacing.lines.get_mut(&conn).unwrap().written_next.push_back(Parcel {
                bytes,
                memory,
                result: None,
            });
            pacing.parked(conn);
            came.extend(turns(&mut pacing));
        }
        let conns: HashSet<ConnId> = came.iter().map(|(conn, _)| *conn).collect();
        assert_eq!((conns.len(), pacing.bytes, pacing.queue.len()), (100, 0, 0), "everybody had a turn");
        let of = |conn: u64| came.iter().filter(|(came, _)| *came == ConnId(conn)).count();
        let stuck = (1..=100).find(|conn| of(*conn) == 1).unwrap();
        let parcel = pacing.lines.get_mut(&ConnId(stuck)).unwrap().written_next.pop_front().unwrap();
        pacing.release(ConnId(stuck), parcel.bytes, parcel.memory);
        assert_eq!(turns(&mut pacing), [(ConnId(stuck), large)], "the next one");
    }

    #[test]
    fn what_frames_share_counts_once_and_what_is_kept_anyway_not_at_all() {
        let mut pacing = Pacing::default();
        let large = 4 << 20;
        let mut taken = Vec::new();
        for conn in 1..=100 {
            wait(&mut pacing, conn, 1, large);
            let (bytes, _) = pacing.next().unwrap();
            taken.push(pacing.made(ConnId(conn), bytes, large + 100, Memory::Common(CommonId::Request(1))));
        }
        assert_eq!(pacing.bytes, large + 100);
        wait(&mut pacing, 101, 1, large);
        pacing.next().unwrap();
        assert_eq!(pacing.made(ConnId(101), large, large, Memory::Kept), Taken::Bytes(0));
        for (conn, taken) in (1..).zip(taken) {
            pacing.release(ConnId(conn), large + 100, taken);
        }
        pacing.release(ConnId(101), large, Taken::Bytes(0));
        assert_eq!((pacing.bytes, pacing.commons.len(), pacing.is_idle()), (0, 0, true));
    }
}
