//! Tracks who follows the output of which job, and where it comes from: asks the worker that runs
//! the job, passes on what that sends, goes on with the next attempt, and tells the end.
//!
//! A state machine of its own: [`FollowEvent`]s in, actions out through [`Follows::poll`]. It sees
//! no session and no broker. Whoever wires it says where a job stands ([`Standing`]), when a follow
//! begins and whenever that may have changed. It keeps no output: what is under way to a client is
//! bounded by the window that the worker was given.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chunking::message::{Follow, FollowFlags, Output, OutputSays, Reason, Stream};
use uuid::Uuid;

use crate::core::ids::{Attempt, ConnId, Index, JobId, Micros};
use crate::summed::Summed;

/// Follows of all connections.
const FOLLOWS_MAX: usize = 1_024;

/// Follows of one connection. `heft job logs` has two.
const FOLLOWS_PER_CONN_MAX: usize = 64;

/// Output of one follow under way from its worker to its client, at the most.
const FOLLOW_WINDOW_BYTES_MAX: u64 = 256 * 1024;

/// The same of all follows. Where there are many, each new window is smaller.
const FOLLOW_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How long an ended job's last output is waited for. Its worker sends it, or says that it does
/// not, when it hears that the job has ended.
const FOLLOW_END_WAIT: Duration = Duration::from_secs(10);

/// A connection's follow, as its client calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct FollowId {
    pub(super) conn: ConnId,
    pub(super) id: Uuid,
}

/// Where a job stands, as far as its output is concerned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// No such job, and why.
    Unknown { why: String },
    /// It has no output of its own; the text says whose to follow.
    NoOutput { why: String },
    /// It waits for a worker.
    Queued,
    /// A worker has it.
    At { conn: ConnId, worker: Arc<str>, attempt: Attempt },
    /// A worker has it, and is not connected.
    Away { worker: Arc<str>, attempt: Attempt },
    /// A worker has it that shows nothing before the end.
    Silent { attempt: Attempt, why: String },
    /// It has ended.
    Ended,
}

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowEvent {
    /// A client follows a job that stands there.
    Wanted { by: FollowId, follow: Follow, standing: Standing },
    /// A client says more of a follow that it has.
    Moved { by: FollowId, follow: Follow },
    /// A job stands there now.
    Stands { job: JobId, standing: Standing },
    /// A worker sent something, which can be read.
    Said { conn: ConnId, id: Uuid, payload: Summed },
    /// A connection ended.
    Closed(ConnId),
    /// Time has passed.
    Tick,
}

/// Something to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum FollowAction {
    /// Ask a worker, or tell it more.
    Ask { conn: ConnId, id: Uuid, follow: Follow },
    /// Send a client this payload of an Output.
    Send { by: FollowId, payload: Summed },
    /// A worker sent what it was not asked for. `count` is how often that happened so far.
    Fault { conn: ConnId, why: &'static str, count: u64 },
}

/// Where the output of a follow comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Nowhere,
    Worker(AtWorker),
    /// Nothing more comes of this attempt.
    Over(Attempt),
}

/// A follow at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct AtWorker {
    conn: ConnId,
    /// What the worker knows it by: a new id each time it is asked, so that what is late fits none.
    id: Uuid,
    attempt: Attempt,
    has_begun: bool,
    /// Up to here it may send.
    until: u64,
}

#[derive(Debug)]
struct Followed {
    job: JobId,
    stream: Stream,
    stays: bool,
    /// The attempt under which the program began whose output the client has; 0 if it has none.
    began: u32,
    /// Up to here its output was sent to the client.
    next: u64,
    /// Up to here the client is done with it.
    taken: u64,
    /// Up to here the client has room.
    until: u64,
    origin: Origin,
    /// The worker that was asked.
    worker: Arc<str>,
    /// What the client was told last of what it waits for.
    told: Option<String>,
    /// The job has ended: when its last output is waited for no longer.
    ends_at: Option<Micros>,
}

impl Followed {
    /// Up to where a worker may send.
    fn grant(&self, window: u64) -> u64 {
        self.until.min(self.taken.saturating_add(window)).max(self.next)
    }

    fn at_worker(&self) -> Option<AtWorker> {
        match self.origin {
            Origin::Worker(at) => Some(at),
            Origin::Nowhere | Origin::Over(_) => None,
        }
    }

    fn attempt(&self) -> u32 {
        match self.origin {
            Origin::Worker(AtWorker { attempt, .. }) | Origin::Over(attempt) => attempt.0,
            Origin::Nowhere => 0,
        }
    }

    fn ask(&self, at: &AtWorker, flags: FollowFlags) -> Follow {
        Follow {
            job: self.job.0,
            attempt: at.attempt.0,
            began: self.began,
            stream: self.stream,
            flags,
            from: self.next,
            until: at.until,
        }
    }

    fn flags(&self) -> FollowFlags {
        if self.stays { FollowFlags::STAYS } else { FollowFlags::default() }
    }

    fn says(&self, says: OutputSays) -> Output<'static> {
        Output::new(says, self.attempt(), self.began, self.next)
    }
}

/// The follows of all connections.
#[derive(Debug, Default)]
pub(super) struct Follows {
    follows: BTreeMap<FollowId, Followed>,
    of_job: HashMap<JobId, BTreeSet<FollowId>>,
    /// By the ids that workers know.
    asked: HashMap<Uuid, FollowId>,
    last_asked: u128,
    faults: u64,
    due: BTreeSet<(Micros, FollowId)>,
    /// The last record that was proposed, and the last that counts.
    proposed: Index,
    counted: Index,
    /// Jobs that are followed, with the records that may change them.
    changes: BTreeSet<(Index, JobId)>,
    actions: VecDeque<FollowAction>,
}

impl Follows {
    /// A record is proposed. When it counts, its job may stand elsewhere.
    pub(super) fn proposed(&mut self, index: Index, job: Option<JobId>) {
        self.proposed = index;
        if let Some(job) = job.filter(|job| self.of_job.contains_key(job)) {
            self.changes.insert((index, job));
        }
    }

    /// All records up to this one count: one of the jobs that may stand elsewhere now.
    pub(super) fn counted(&mut self, up_to: Index) -> Option<JobId> {
        self.counted = self.counted.max(up_to);
        self.changes.first().filter(|(index, _)| *index <= up_to)?;
        self.changes.pop_first().map(|(_, job)| job)
    }

    /// Whether a connection has this follow.
    pub(super) fn knows(&self, by: FollowId) -> bool {
        self.follows.contains_key(&by)
    }

    /// The jobs that somebody follows.
    pub(super) fn jobs(&self) -> impl Iterator<Item = JobId> {
        self.of_job.keys().copied()
    }

    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// The next thing to do.
    pub(super) fn poll(&mut self) -> Option<FollowAction> {
        self.actions.pop_front()
    }

    pub(super) fn handle(&mut self, now: Micros, event: FollowEvent) {
        match event {
            FollowEvent::Wanted { by, follow, standing } => self.wanted(now, by, &follow, standing),
            FollowEvent::Moved { by, follow } => self.moved(by, &follow),
            FollowEvent::Stands { job, standing } => {
                let all: Vec<FollowId> =
                    self.of_job.get(&job).into_iter().flatten().copied().collect();
                all.into_iter().for_each(|by| self.stands(now, by, standing.clone()));
            }
            FollowEvent::Said { conn, id, payload } => self.said(conn, id, payload),
            FollowEvent::Closed(conn) => self.closed(conn),
            FollowEvent::Tick => {
                while let Some((_, by)) = self.due.first().copied().filter(|(at, _)| *at <= now) {
                    self.end(by, OutputSays::JobEnded, Reason::NONE, "");
                }
            }
        }
    }

    /// What a follow that is asked for now may have under way.
    fn window(&self) -> u64 {
        let share = FOLLOW_BYTES_MAX / (self.follows.len() as u64).max(1);
        share.min(FOLLOW_WINDOW_BYTES_MAX)
    }

    fn wanted(&mut self, now: Micros, by: FollowId, follow: &Follow, standing: Standing) {
        if follow.flags.has(FollowFlags::OVER) {
            // It has ended here already.
            return;
        }
        let of_conn =
            |conn| FollowId { conn, id: Uuid::nil() }..=FollowId { conn, id: Uuid::max() };
        let refusal = if self.follows.len() >= FOLLOWS_MAX {
            Some(format!(
                "{FOLLOWS_MAX} outputs of jobs are followed at this leader, which is the limit: try \
                 again later, or fetch the result when the job has ended"
            ))
        } else if self.follows.range(of_conn(by.conn)).count() >= FOLLOWS_PER_CONN_MAX {
            Some(format!(
                "this connection follows {FOLLOWS_PER_CONN_MAX} outputs of jobs, which is the limit: \
                 end some of them first"
            ))
        } else {
            None
        };
        if let Some(text) = refusal {
            let output =
                Output { reason: Reason::BUSY, ..Output::new(OutputSays::Refused, 0, 0, 0) };
            return self.send(by, &output.with_text(&text));
        }
        let job = JobId(follow.job);
        // Without a program that it is of, a place means nothing.
        let from = if follow.began == 0 { 0 } else { follow.from };
        let followed = Followed {
            job,
            stream: follow.stream,
            stays: follow.flags.has(FollowFlags::STAYS),
            began: follow.began,
            next: from,
            taken: from,
            until: follow.until.max(from),
            origin: Origin::Nowhere,
            worker: "".into(),
            told: None,
            ends_at: None,
        };
        self.follows.insert(by, followed);
        self.of_job.entry(job).or_default().insert(by);
        if self.proposed > self.counted {
            // What was proposed before anybody followed the job may be about it.
            self.changes.insert((self.proposed, job));
        }
        self.stands(now, by, standing);
    }

    fn moved(&mut self, by: FollowId, follow: &Follow) {
        if follow.flags.has(FollowFlags::OVER) {
            return self.forget(by);
        }
        let window = self.window();
        let Some(followed) = self.follows.get_mut(&by) else { return };
        if followed.began != follow.began {
            // It does not know yet that another program's output has begun.
            return;
        }
        followed.taken = followed.taken.max(follow.from.min(followed.next));
        followed.until = followed.until.max(follow.until);
        let grant = followed.grant(window);
        if let Origin::Worker(at) = &mut followed.origin
            && grant > at.until
        {
            at.until = grant;
            let at = *at;
            let follow = followed.ask(&at, followed.flags());
            self.actions.push_back(FollowAction::Ask { conn: at.conn, id: at.id, follow });
        }
    }

    fn stands(&mut self, now: Micros, by: FollowId, standing: Standing) {
        let Some(followed) = self.follows.get_mut(&by) else { return };
        if let Some(at) = followed.ends_at {
            match standing {
                // It has another run.
                Standing::Queued | Standing::At { .. } => {
                    followed.ends_at = None;
                    self.due.remove(&(at, by));
                }
                Standing::Unknown { .. }
                | Standing::NoOutput { .. }
                | Standing::Away { .. }
                | Standing::Silent { .. }
                | Standing::Ended => return,
            }
        }
        let stays = followed.stays;
        match standing {
            Standing::Unknown { why } => {
                self.end(by, OutputSays::Refused, Reason::UNKNOWN, &why);
            }
            Standing::NoOutput { why } => self.end(by, OutputSays::Refused, Reason::INVALID, &why),
            Standing::Queued => {
                self.leave_worker(by, Origin::Nowhere);
                match stays {
                    true => self.waits(by, "the job waits for a worker"),
                    false => self.end(by, OutputSays::Present, Reason::NONE, ""),
                }
            }
            Standing::Away { worker, attempt: _ } => {
                self.leave_worker(by, Origin::Nowhere);
                let text = format!("worker {worker}, which has the job, is not connected");
                match stays {
                    true => self.waits(by, &text),
                    false => self.end(
                        by,
                        OutputSays::Refused,
                        Reason::NO_WORKER,
                        &format!("{text}: try again, or wait for it (-f)"),
                    ),
                }
            }
            Standing::Silent { attempt, why } => {
                if followed.origin != Origin::Over(attempt) {
                    self.shows_nothing(by, attempt, Reason::NO_WORKER, &why);
                }
            }
            Standing::At { conn, worker, attempt } => self.ask(by, conn, worker, attempt),
            Standing::Ended => match followed.at_worker() {
                // What it printed last is on its way.
                Some(_) => {
                    let at = now.plus(FOLLOW_END_WAIT);
                    if let Some(followed) = self.follows.get_mut(&by) {
                        followed.ends_at = Some(at);
                    }
                    self.due.insert((at, by));
                }
                None => self.end(by, OutputSays::JobEnded, Reason::NONE, ""),
            },
        }
    }

    /// Asks the worker that has the job, unless it was asked, or has nothing more of this attempt.
    fn ask(&mut self, by: FollowId, conn: ConnId, worker: Arc<str>, attempt: Attempt) {
        let Some(followed) = self.follows.get(&by) else { return };
        match followed.origin {
            Origin::Over(over) if over == attempt => return,
            Origin::Worker(at) if (at.conn, at.attempt) == (conn, attempt) => return,
            Origin::Over(_) | Origin::Worker(_) | Origin::Nowhere => {}
        }
        self.leave_worker(by, Origin::Nowhere);
        let window = self.window();
        self.last_asked += 1;
        let id = Uuid::from_u128(self.last_asked);
        let Some(followed) = self.follows.get_mut(&by) else { return };
        let until = followed.grant(window);
        let at = AtWorker { conn, id, attempt, has_begun: false, until };
        (followed.origin, followed.worker) = (Origin::Worker(at), worker);
        followed.told = None;
        let follow = followed.ask(&at, followed.flags());
        self.asked.insert(id, by);
        self.actions.push_back(FollowAction::Ask { conn, id, follow });
    }

    /// Nothing more is wanted of the worker that was asked, if one was.
    fn leave_worker(&mut self, by: FollowId, origin: Origin) {
        let Some(followed) = self.follows.get_mut(&by) else { return };
        if let Some(at) = followed.at_worker() {
            self.asked.remove(&at.id);
            let follow = followed.ask(&at, FollowFlags::OVER);
            self.actions.push_back(FollowAction::Ask { conn: at.conn, id: at.id, follow });
        }
        followed.origin = origin;
    }

    /// The worker has said its last word on an attempt: it knows the follow no more.
    fn worker_done(&mut self, by: FollowId, id: Uuid, attempt: Attempt) {
        self.asked.remove(&id);
        if let Some(followed) = self.follows.get_mut(&by) {
            followed.origin = Origin::Over(attempt);
        }
    }

    fn said(&mut self, conn: ConnId, id: Uuid, payload: Summed) {
        // What was asked for until a moment ago may be on its way.
        let Some(by) = self.asked.get(&id).copied() else { return };
        let Some(followed) = self.follows.get_mut(&by) else { return };
        let Some(at) = followed.at_worker() else { return };
        let Ok(output) = Output::decode(&payload) else { return };
        if at.conn != conn {
            return self.fault(conn, "output of a job that another worker was asked for");
        }
        if let Err(why) = check(followed, &at, &output) {
            self.fault(conn, why);
            self.leave_worker(by, Origin::Over(at.attempt));
            let text = format!(
                "worker {} sent output that was not asked for: its output comes with the result",
                self.worker_of(by)
            );
            return self.shows_nothing(by, at.attempt, Reason::INVALID, &text);
        }
        match output.says {
            OutputSays::Begins => {
                let is_another = followed.began != output.began;
                let room = at.until.saturating_sub(followed.next);
                let until = if is_another { room } else { at.until };
                if is_another {
                    (followed.began, followed.next, followed.taken) = (output.began, 0, 0);
                    followed.until = room;
                }
                followed.origin = Origin::Worker(AtWorker { has_begun: true, until, ..at });
                let worker = followed.worker.clone();
                self.send(by, &output.with_text(&worker));
            }
            OutputSays::Bytes => {
                followed.next = output.offset.saturating_add(output.bytes.len() as u64);
                self.actions.push_back(FollowAction::Send { by, payload });
            }
            OutputSays::Lost => {
                followed.next = output.offset;
                self.actions.push_back(FollowAction::Send { by, payload });
            }
            OutputSays::Ends => {
                self.worker_done(by, id, at.attempt);
                let stays = self.follows.get(&by).is_some_and(|followed| followed.stays);
                self.actions.push_back(FollowAction::Send { by, payload });
                match stays {
                    true => self.end_if_due(by),
                    false => self.end(by, OutputSays::Present, Reason::NONE, ""),
                }
            }
            OutputSays::Present => {
                self.worker_done(by, id, at.attempt);
                self.actions.push_back(FollowAction::Send { by, payload });
                self.forget(by);
            }
            OutputSays::Refused => {
                let (reason, text) = (output.reason, output.text().to_owned());
                self.worker_done(by, id, at.attempt);
                self.shows_nothing(by, at.attempt, reason, &text);
                self.end_if_due(by);
            }
            // The leader's own words, which `check` lets no worker say.
            OutputSays::JobEnded | OutputSays::Waits => {}
        }
    }

    fn worker_of(&self, by: FollowId) -> Arc<str> {
        self.follows.get(&by).map(|followed| followed.worker.clone()).unwrap_or_default()
    }

    fn fault(&mut self, conn: ConnId, why: &'static str) {
        self.faults += 1;
        self.actions.push_back(FollowAction::Fault { conn, why, count: self.faults });
    }

    /// Of this attempt nothing can be had before the job's end.
    fn shows_nothing(&mut self, by: FollowId, attempt: Attempt, reason: Reason, why: &str) {
        self.leave_worker(by, Origin::Over(attempt));
        match self.follows.get(&by).is_some_and(|followed| followed.stays) {
            true => self.waits(by, why),
            false => self.end(by, OutputSays::Refused, reason, why),
        }
    }

    fn waits(&mut self, by: FollowId, why: &str) {
        let Some(followed) = self.follows.get_mut(&by) else { return };
        if followed.told.as_deref() == Some(why) {
            return;
        }
        followed.told = Some(why.to_owned());
        let output = followed.says(OutputSays::Waits);
        self.send(by, &output.with_text(why));
    }

    fn end_if_due(&mut self, by: FollowId) {
        if self.follows.get(&by).is_some_and(|followed| followed.ends_at.is_some()) {
            self.end(by, OutputSays::JobEnded, Reason::NONE, "");
        }
    }

    /// The last word to a client.
    fn end(&mut self, by: FollowId, says: OutputSays, reason: Reason, text: &str) {
        let Some(followed) = self.follows.get(&by) else { return };
        let output = Output { reason, ..followed.says(says) };
        self.send(by, &output.with_text(text));
        self.forget(by);
    }

    fn send(&mut self, by: FollowId, output: &Output<'_>) {
        let mut payload = Vec::new();
        output.encode(&mut payload);
        self.actions.push_back(FollowAction::Send { by, payload: payload.into() });
    }

    fn forget(&mut self, by: FollowId) {
        self.leave_worker(by, Origin::Nowhere);
        let Some(followed) = self.follows.remove(&by) else { return };
        if let Some(at) = followed.ends_at {
            self.due.remove(&(at, by));
        }
        if let Some(of_job) = self.of_job.get_mut(&followed.job) {
            of_job.remove(&by);
            if of_job.is_empty() {
                self.of_job.remove(&followed.job);
                self.changes.retain(|(_, job)| *job != followed.job);
            }
        }
    }

    fn closed(&mut self, conn: ConnId) {
        let (mut gone, mut cut) = (Vec::new(), Vec::new());
        for (by, followed) in &self.follows {
            if by.conn == conn {
                gone.push(*by);
            } else if let Some(at) = followed.at_worker().filter(|at| at.conn == conn) {
                cut.push((*by, at.id));
            }
        }
        gone.into_iter().for_each(|by| self.forget(by));
        for (by, id) in cut {
            self.asked.remove(&id);
            if let Some(followed) = self.follows.get_mut(&by) {
                followed.origin = Origin::Nowhere;
            }
            self.end_if_due(by);
        }
    }
}

/// Whether a worker may say this now.
fn check(followed: &Followed, at: &AtWorker, output: &Output<'_>) -> Result<(), &'static str> {
    if output.attempt != at.attempt.0 {
        return Err("output of another attempt");
    }
    let is_of_program = at.has_begun && output.began == followed.began;
    match output.says {
        OutputSays::Begins => {
            let from = if output.began == followed.began { followed.next } else { 0 };
            match () {
                () if at.has_begun => Err("a second beginning of output"),
                () if output.began == 0 || output.began > at.attempt.0 => {
                    Err("output of an attempt that is to come")
                }
                () if output.offset != from => Err("output that begins at another place"),
                () => Ok(()),
            }
        }
        OutputSays::Bytes => match output.offset.checked_add(output.bytes.len() as u64) {
            _ if !is_of_program => Err("output of a program that has not begun"),
            _ if output.offset != followed.next => Err("output of another place"),
            Some(end) if end <= at.until => Ok(()),
            Some(_) | None => Err("more output than there is room for"),
        },
        OutputSays::Lost if !is_of_program => Err("output of a program that has not begun"),
        OutputSays::Lost if output.offset <= followed.next => Err("output that is lost and came"),
        OutputSays::Lost => Ok(()),
        // A program may end, or may not be there yet, before anything of it was said.
        OutputSays::Ends if at.has_begun && output.offset < followed.next => {
            Err("an end before the end")
        }
        OutputSays::Present if followed.stays => Err("an end that was not asked for"),
        OutputSays::Ends | OutputSays::Present | OutputSays::Refused => Ok(()),
        OutputSays::JobEnded | OutputSays::Waits => Err("what only a leader says"),
    }
}

#[cfg(test)]
#[path = "follows_tests.rs"]
mod tests;
