//! Decides when each peer is sent its next frame with a payload: results and answers to clients,
//! jobs to workers.
//!
//! Each peer has a few such frames in flight, being read from the log or waiting for its socket;
//! the next follows when one has been sent. A waiting frame is only an id here, its payload stays
//! in storage. So a client that returns for all its results is never disconnected for being slow,
//! and the leader never holds all of them in memory.
//!
//! All peers together share a byte limit. When peers that do not read use it up, the driver moves
//! their waiting frames to disk ([`Pacing::parked`]). Such a peer is served from disk, and gets
//! nothing new until it has taken that. Other peers are delayed only briefly.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use super::children::CommonId;
use super::tasks::{Task, Turn};
use crate::conn::WireFrame;
use crate::core::ids::{ConnId, JobId, Run};

/// Bytes on their way to one peer. A frame that alone has more goes by itself.
const PEER_BYTES_MAX: u64 = 8 << 20;

/// Frames on their way to one peer.
const PEER_FRAMES_MAX: usize = 1_024;

/// Bytes in memory on their way to all peers. What several frames share counts once.
const ALL_BYTES_MAX: u64 = 64 << 20;

/// When the frames of all peers have more bytes than this, each peer has one frame in flight.
const ALL_BYTES_SHORT: u64 = ALL_BYTES_MAX / 2;

/// Frames of up to `SMALL_BYTES_MAX` do not wait for larger ones: `ALL_BYTES_FOR_SMALL` of the
/// limit are reserved for them.
const SMALL_BYTES_MAX: u64 = 64 << 10;
const ALL_BYTES_FOR_SMALL: u64 = 8 << 20;

const _: () = assert!(ALL_BYTES_SHORT + ALL_BYTES_FOR_SMALL + PEER_BYTES_MAX <= ALL_BYTES_MAX);

/// Answers that wait for one peer. A peer that asks for more has to read first.
const ANSWERS_WAITING_MAX: usize = 1_024;

/// Results without a receipt that are remembered before those of forgotten jobs are dropped.
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
    /// Memory that several frames share, which is counted once.
    Common(CommonId),
    /// The memory of the stored job or result, which stays.
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

/// The frames for one peer.
#[derive(Debug, Default)]
struct Line {
    /// What waits its turn.
    waiting: VecDeque<Turn>,
    /// How many waiting frames are answers. A peer can ask any number of questions, while jobs and
    /// results are limited by the jobs that are known.
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
    /// A result is not on its way any more. The result of a later run may be.
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

/// A line that ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// Tasks whose turn never came, but for results.
    pub(super) tasks: Vec<Turn>,
    /// Results that its client may not have.
    pub(super) results: Vec<JobId>,
}

impl Pacing {
    /// A task that ends in a frame for a peer waits its turn. Not a result that is on its way there
    /// already: a client that came back asks for what it is about to get.
    pub(super) fn wait(&mut self, conn: ConnId, turn: Turn) {
        let line = self.lines.entry(conn).or_default();
        match &turn.task {
            Task::Deliver { job, run, .. } => {
                if line.results.insert(*job, *run) == Some(*run) {
                    return;
                }
            }
            Task::Answer { .. } => line.answers += 1,
            Task::Assign(_) | Task::Stage { .. } => {}
        }
        line.waiting.push_back(turn);
        self.to_look.insert(conn);
    }

    /// Whether one more answer may wait for a peer; else, what it is told.
    pub(super) fn has_room_for_answer(&self, conn: ConnId) -> Result<(), String> {
        let waiting = self.lines.get(&conn).map_or(0, |line| line.answers);
        if waiting < ANSWERS_WAITING_MAX {
            return Ok(());
        }
        Err(format!(
            "too many questions wait: {waiting}, and the limit is {ANSWERS_WAITING_MAX}: read the \
             answers first, then ask again"
        ))
    }

    /// The driver gets a frame for a peer, which was counted with `bytes`. Nothing happens if the
    /// peer is gone.
    pub(super) fn framed(
        &mut self,
        conn: ConnId,
        counted: u64,
        posting: &Posting,
        result: Option<(JobId, Run)>,
    ) -> bool {
        let len = posting.frame.len() as u64;
        if !self.lines.contains_key(&conn) {
            return false;
        }
        let memory = self.made(conn, counted, len, posting.memory);
        if let Some(line) = self.lines.get_mut(&conn) {
            line.written_next.push_back(Parcel { bytes: len, memory, result });
        }
        true
    }

    /// No frame came of a task.
    pub(super) fn not_framed(&mut self, conn: ConnId, counted: u64, result: Option<(JobId, Run)>) {
        if let Some(line) = self.lines.get_mut(&conn) {
            line.is_out(result);
        }
        self.release(conn, counted, Taken::Bytes(counted));
    }

    /// A frame goes to a peer that cannot wait its turn. It counts, so that others wait for it.
    pub(super) fn framed_at_once(&mut self, conn: ConnId, posting: &Posting) -> bool {
        self.lines.entry(conn).or_default().frames += 1;
        self.framed(conn, 0, posting, None)
    }

    /// The driver has written the next frame for a peer. Returns the result that it carried, if it
    /// carried one; `None` if no frame was expected.
    pub(super) fn written(&mut self, conn: ConnId) -> Option<Option<(JobId, Run)>> {
        let line = self.lines.get_mut(&conn)?;
        let Parcel { bytes, memory, result } = line.written_next.pop_front()?;
        line.is_out(result);
        self.release(conn, bytes, memory);
        Some(result)
    }

    /// A result was written to a client that says what it has.
    pub(super) fn unconfirmed(&mut self, conn: ConnId, job: JobId, run: Run) {
        if let Some(line) = self.lines.get_mut(&conn) {
            line.unconfirmed.insert(job, run);
        }
    }

    /// A client says that it has a result. Gives back the run whose result was sent to it, if one
    /// was.
    pub(super) fn confirmed(&mut self, conn: ConnId, job: JobId, run: Option<Run>) -> Option<Run> {
        let line = self.lines.get_mut(&conn)?;
        let sent = *line.unconfirmed.get(&job)?;
        let is_it = run.is_none_or(|run| run == sent);
        is_it.then(|| line.unconfirmed.remove(&job)).flatten()
    }

    /// Whether the result of a job is on its way to a peer, or waits for its receipt.
    pub(super) fn waits_for_receipt(&self, conn: ConnId, job: JobId) -> bool {
        self.lines.get(&conn).is_some_and(|line| {
            line.results.contains_key(&job) || line.unconfirmed.contains_key(&job)
        })
    }

    /// Jobs that were forgotten need no receipt any more.
    pub(super) fn forget_unconfirmed(
        &mut self,
        conn: ConnId,
        is_known: impl Fn(JobId, Run) -> bool,
    ) {
        let Some(line) = self.lines.get_mut(&conn) else { return };
        if line.unconfirmed.len() > UNCONFIRMED_KEPT.max(2 * line.unconfirmed_known) {
            line.unconfirmed.retain(|job, run| is_known(*job, *run));
            line.unconfirmed_known = line.unconfirmed.len();
        }
    }

    /// The results that are on their way to a peer, or wait for its receipt.
    pub(super) fn results_for(&self, conn: ConnId) -> impl Iterator<Item = (JobId, Run)> + '_ {
        let line = self.lines.get(&conn).into_iter();
        let results = line.flat_map(|line| line.results.iter().chain(&line.unconfirmed));
        results.map(|(job, run)| (*job, *run))
    }

    /// A connection ended.
    pub(super) fn closed(&mut self, conn: ConnId) -> Ended {
        let Some(line) = self.lines.remove(&conn) else { return Ended::default() };
        // What is being read for it has not become a frame yet.
        let framed: u64 = line.written_next.iter().map(|parcel| parcel.bytes).sum();
        self.give_back(Taken::Bytes(line.bytes.saturating_sub(framed)));
        line.written_next.iter().for_each(|parcel| self.give_back(parcel.memory));
        if let Some(ticket) = line.ticket {
            self.queue.remove(&ticket);
        }
        self.look_again();
        let mut results: Vec<JobId> = line.unconfirmed.into_keys().collect();
        results.extend(line.written_next.iter().filter_map(|parcel| Some(parcel.result?.0)));
        let mut tasks = Vec::new();
        for turn in line.waiting {
            match turn.task {
                Task::Deliver { job, .. } => results.push(job),
                Task::Assign(_) | Task::Answer { .. } | Task::Stage { .. } => tasks.push(turn),
            }
        }
        Ended { tasks, results }
    }

    /// Whether all memory for what is on its way is taken, or a peer that has nothing on its way
    /// waits for some. The driver then finds those that do not read.
    pub(super) fn is_short(&self) -> bool {
        !self.queue.is_empty() || self.bytes > ALL_BYTES_MAX
    }

    /// The next task whose turn it is.
    pub(super) fn next(&mut self) -> Option<Turn> {
        while let Some((ticket, conn)) =
            self.queue.first_key_value().map(|(ticket, conn)| (*ticket, *conn))
        {
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
                (
                    Some(Room::Here | Room::WhenItsTurnComes | Room::WhenOthersHaveTheirs),
                    Some(_),
                ) => {
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
        let turn = line.waiting.front()?;
        Some(line.has_room(turn.bytes, self.bytes))
    }

    /// Whether others wait for room before it, and what it is to get is not a small frame.
    fn comes_behind(&self, conn: ConnId) -> bool {
        let is_small =
            |line: &Line| line.waiting.front().is_some_and(|turn| turn.bytes <= SMALL_BYTES_MAX);
        !self.queue.is_empty() && !self.lines.get(&conn).is_some_and(is_small)
    }

    fn take(&mut self, conn: ConnId) -> Option<Turn> {
        let line = self.lines.get_mut(&conn)?;
        let turn = line.waiting.pop_front()?;
        if matches!(turn.task, Task::Answer { .. }) {
            line.answers = line.answers.saturating_sub(1);
        }
        line.frames += 1;
        line.bytes += turn.bytes;
        self.bytes += turn.bytes;
        Some(turn)
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
    pub(super) fn parked(&mut self, conn: ConnId) {
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
    pub(super) fn is_idle(&self) -> bool {
        self.lines.values().all(|line| line.waiting.is_empty() && line.frames == 0)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn wait(pacing: &mut Pacing, conn: u64, number: u32, bytes: u64) {
        let (conn, job) = (ConnId(conn), JobId(uuid::Uuid::from_u128(number.into())));
        pacing.wait(conn, Turn { task: Task::Deliver { conn, job, run: Run(1) }, bytes });
    }

    fn conn_of(task: &Task) -> ConnId {
        match task {
            Task::Deliver { conn, .. } => *conn,
            Task::Answer { by, .. } => by.conn,
            Task::Assign(assignment) => assignment.conn,
            Task::Stage { .. } => ConnId(0),
        }
    }

    /// All that has its turn, with its connection and bytes.
    fn turns(pacing: &mut Pacing) -> Vec<(ConnId, u64)> {
        std::iter::from_fn(|| pacing.next().map(|turn| (conn_of(&turn.task), turn.bytes))).collect()
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
        (60_000..60_025).for_each(|number| wait(&mut pacing, 1, number, 3_900_000));
        assert_eq!(turns(&mut pacing).len(), 2);
        pacing.release(ConnId(1), 3_900_000, Taken::Bytes(3_900_000));
        assert_eq!(turns(&mut pacing).len(), 1);
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
        // What others take is given back, and so the rest has its turn: nobody a second time before
        // all had their first.
        let mut order: Vec<ConnId> = left.iter().map(|(conn, _)| *conn).collect();
        while let Some((conn, bytes)) = left.pop_front() {
            pacing.release(conn, bytes, Taken::Bytes(bytes));
            let more = turns(&mut pacing);
            assert!(pacing.bytes <= ALL_BYTES_MAX);
            order.extend(more.iter().map(|(conn, _)| *conn));
            left.extend(more);
        }
        assert_eq!((order.len(), pacing.bytes, pacing.is_idle()), (200, 0, true));
        let last_first =
            (1..=100).filter_map(|conn| order.iter().position(|c| *c == ConnId(conn))).max();
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
        assert_eq!(
            (conns.len(), pacing.bytes, pacing.queue.len()),
            (100, 0, 0),
            "everybody had a turn"
        );
        let of = |conn: u64| came.iter().filter(|(came, _)| *came == ConnId(conn)).count();
        let stuck = (1..=100).find(|conn| of(*conn) == 1).unwrap();
        let parcel =
            pacing.lines.get_mut(&ConnId(stuck)).unwrap().written_next.pop_front().unwrap();
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
            let Turn { bytes, .. } = pacing.next().unwrap();
            taken.push(pacing.made(
                ConnId(conn),
                bytes,
                large + 100,
                Memory::Common(CommonId::Request(1)),
            ));
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
