//! Decides what becomes of jobs whose program no connected worker has.
//!
//! A job waits as long as one of the connected workers that match its key, and take it for the
//! rest, may have its program, however busy that is. Where all of them lack it:
//!
//! 1. The job waits, and its client is told, as long as workers may be about to connect: until the
//!    last of those that match has been there for [`SETTLED_AFTER`], and for `placement_wait` if a
//!    worker that may have it left, if the previous leader ended, or if the job was there before
//!    one of those workers.
//! 2. Workers that lack it by their lists alone are asked to look again: it may have been put there
//!    a moment ago.
//! 3. The job fails, and the text says what each worker said.
//!
//! Jobs are judged together by what they need. `programs` knows who has what; `queue` passes over
//! jobs that no worker with room has the program of.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::action::Action;
use super::broker::Broker;
use super::capacity::give_back;
use super::event::{Inputs, Submission};
use super::ids::{ConnId, JobId, Micros, WorkerId};
use super::job::Job;
use super::names::excerpt;
use super::payload::PayloadKind;
use super::programs::{
    LIKENESS_BYTES_MAX, LIKENESS_LOOKS_MAX, NoProgram, Programs, ProgramsSaid, Refusals, called,
};
use super::queue::Rank;
use super::record::Record;
use super::subject::{RoutingKey, matches};
use super::timers::Due;
use super::worker::Worker;
use crate::likeness::like;

/// Where a worker has just connected, others are about to: a job is judged when the last that
/// matches has been there for so long, or for `placement_wait` if that is less.
const SETTLED_AFTER: Duration = Duration::from_secs(5);

/// How many times `placement_wait` jobs of a need wait at most for workers that connect one after
/// the other without its program.
const ARRIVALS_WAITED_MAX: u32 = 5;

/// How long a worker may take to look which programs it has, before its last list counts.
const PROGRAMS_ASKED_MAX: Duration = Duration::from_secs(5);

/// Workers that left and may come back. Beyond that the one that left first is not waited for.
const GONE_MAX: usize = 256;

/// Bytes of their patterns and programs, to the same end.
const GONE_BYTES_MAX: u64 = 4 * 1024 * 1024;

/// Needs that are remembered as met. Beyond that they are looked at anew.
const MET_MAX: usize = 65_536;

/// Needs that are judged after one event, and jobs of one need that fail at once; the others have
/// their turn after the next.
const NEEDS_AT_ONCE_MAX: usize = 256;
const FAILED_AT_ONCE_MAX: usize = 1_000;

/// Jobs of one need whose clients are told at once that they wait. A client with more of them has
/// understood by then.
const TOLD_AT_ONCE_MAX: usize = 1_000;

/// Workers that the text of a failure names.
const WORKERS_NAMED_MAX: usize = 8;

/// Lists that are looked through for a name that is like another.
const LISTS_LOOKED_THROUGH_MAX: usize = 16;

/// What jobs need of a worker beside datasets.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Need {
    key: RoutingKey,
    rank: Rank,
    exec: Arc<str>,
}

impl Need {
    /// What a job needs, if it names a program and any worker may have it.
    fn of(job: &Job) -> Option<Need> {
        let exec = job.submission.exec.clone();
        let is_plain = !job.submission.to_all && job.child_of.is_none() && !exec.is_empty();
        is_plain.then(|| Need { key: job.submission.key.clone(), rank: job.rank(), exec })
    }
}

/// A need that no connected worker meets.
#[derive(Debug)]
enum Missing {
    /// Until then a worker may connect that has it.
    Waits { since: Micros, until: Micros },
    /// Workers look again.
    Asked {
        since: Micros,
        /// The last job that their answers are for.
        through: u64,
        until: Micros,
        /// In which round of questions they were asked.
        round: u64,
    },
}

impl Missing {
    fn until(&self) -> Micros {
        match self {
            Missing::Waits { until, .. } | Missing::Asked { until, .. } => *until,
        }
    }

    /// Since when workers that connect are waited for.
    fn since(&self) -> Micros {
        match self {
            Missing::Waits { since, .. } | Missing::Asked { since, .. } => *since,
        }
    }
}

/// When a worker was asked for its programs, in rounds of questions, and what it has answered.
/// Needs know their round alone: there may be many of them, and many workers.
#[derive(Clone, Copy, Debug, Default)]
struct Asks {
    /// The round of the last question that was sent.
    asked: u64,
    /// The round of the last one that was answered.
    answered: u64,
    /// The last round that came while it had yet to answer: it is asked again then.
    again: Option<u64>,
}

impl Asks {
    /// Whether it is still to give an answer that counts for a round.
    fn owes(&self, round: u64) -> bool {
        let is_asked = self.asked >= round || self.again.is_some_and(|again| again >= round);
        is_asked && self.answered < round
    }
}

/// When a worker connected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Arrival {
    at: Micros,
    /// The same, where it came back, for the first time.
    first: Micros,
}

/// A worker that left.
#[derive(Debug)]
struct Gone {
    worker: WorkerId,
    at: Micros,
    /// When it had connected for the first time.
    first: Micros,
    subscriptions: Vec<String>,
    programs: Option<Programs>,
    refused: Vec<Arc<str>>,
    transfers: bool,
    reads: PayloadKind,
    bytes: u64,
}

impl Gone {
    fn may_meet(&self, need: &Need) -> bool {
        let takes = match need.rank {
            Rank::Plain | Rank::Late | Rank::Aside => true,
            Rank::ByTransfer => self.transfers,
            Rank::Folders => self.reads >= PayloadKind::Folders,
            Rank::Raw => self.reads >= PayloadKind::Raw,
        };
        takes
            && self.programs.as_ref().is_none_or(|programs| programs.has(&need.exec))
            && !self.refused.contains(&need.exec)
            && self.subscriptions.iter().any(|pattern| matches(pattern, need.key.as_str()))
    }
}

/// Who has which program, and which jobs wait for want of one.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// The pairs of worker and program that are avoided.
    pub(super) refusals: Refusals,
    /// Needs that a connected worker meets, of keys that have jobs.
    met: HashMap<RoutingKey, HashSet<(Rank, Arc<str>)>>,
    met_count: usize,
    missing: BTreeMap<Need, Missing>,
    /// The same, by when they are judged at the latest.
    missing_until: BTreeSet<(Micros, Need)>,
    /// The same, by one of the workers whose answers they wait for; and which that is.
    waiting_on: BTreeMap<WorkerId, BTreeSet<Need>>,
    waited_for: BTreeMap<Need, WorkerId>,
    /// Needs to be judged.
    woken: BTreeSet<Need>,
    asks: BTreeMap<WorkerId, Asks>,
    /// The last round of questions.
    round: u64,
    /// When the workers that are connected came.
    arrivals: BTreeMap<WorkerId, Arrival>,
    gone: VecDeque<Gone>,
    gone_bytes: u64,
}

impl Placement {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.refusals.len()
            + self.missing.len()
            + self.waited_for.len()
            + self.asks.len()
            + self.gone.len()
    }

    /// No connected worker meets a need.
    fn miss(&mut self, need: Need, missing: Missing) {
        self.drop_missing(&need);
        self.missing_until.insert((missing.until(), need.clone()));
        self.missing.insert(need, missing);
    }

    /// A need is met, or there are no jobs of it.
    fn drop_missing(&mut self, need: &Need) {
        let Some(missing) = self.missing.remove(need) else { return };
        self.missing_until.remove(&(missing.until(), need.clone()));
        // One that never answers is not to keep what nobody waits for any more.
        self.stop_waiting(need);
    }

    fn stop_waiting(&mut self, need: &Need) {
        if let Some(worker) = self.waited_for.remove(need)
            && let Some(needs) = self.waiting_on.get_mut(&worker)
        {
            needs.remove(need);
            if needs.is_empty() {
                self.waiting_on.remove(&worker);
            }
        }
    }

    /// A need is judged when this worker has answered.
    fn wait_on(&mut self, worker: WorkerId, need: Need) {
        self.stop_waiting(&need);
        self.waiting_on.entry(worker).or_default().insert(need.clone());
        self.waited_for.insert(need, worker);
    }

    /// A worker has answered, or will not: who waits for that is judged.
    fn wake_waiting_on(&mut self, worker: WorkerId) {
        for need in self.waiting_on.remove(&worker).unwrap_or_default() {
            self.waited_for.remove(&need);
            self.woken.insert(need);
        }
    }

    /// A worker connects: what was known of its programs is void, and it is not waited for.
    pub(super) fn joins(&mut self, worker: WorkerId, now: Micros) {
        self.refusals.clear(worker);
        self.asks.remove(&worker);
        self.wake_waiting_on(worker);
        let mut first = self.arrivals.get(&worker).map(|arrival| arrival.first);
        let gone_bytes = &mut self.gone_bytes;
        self.gone.retain(|gone| {
            let is_it = gone.worker == worker;
            if is_it {
                *gone_bytes -= gone.bytes;
                first = Some(gone.first);
            }
            !is_it
        });
        self.arrivals.insert(worker, Arrival { at: now, first: first.unwrap_or(now) });
    }

    fn is_met(&self, need: &Need) -> bool {
        let met = self.met.get(&need.key);
        met.is_some_and(|met| met.contains(&(need.rank, need.exec.clone())))
    }

    fn meet(&mut self, need: Need) {
        if self.met_count >= MET_MAX {
            (self.met, self.met_count) = (HashMap::new(), 0);
        }
        let is_new = self.met.entry(need.key).or_default().insert((need.rank, need.exec));
        self.met_count += usize::from(is_new);
    }

    /// Needs of a key may be met by others than before.
    fn forget_met(&mut self, key: &RoutingKey) {
        self.met_count -= self.met.remove(key).map_or(0, |met| met.len());
        give_back(&mut self.met);
    }

    fn leaves(&mut self, gone: Gone) {
        self.gone_bytes += gone.bytes;
        self.gone.push_back(gone);
        while self.gone.len() > GONE_MAX || self.gone_bytes > GONE_BYTES_MAX {
            self.forget_first_gone();
        }
    }

    fn forget_first_gone(&mut self) {
        self.gone_bytes -= self.gone.pop_front().map_or(0, |gone| gone.bytes);
    }
}

impl Broker {
    // --- what workers say

    /// A worker hands a job back, as it does not have its program.
    pub(super) fn program_refused(&mut self, conn: ConnId, job: JobId, why: &str) {
        let Some(worker) = self.workers.at(conn) else { return };
        let job = self.state.job(job).filter(|job| self.is_with(job.id(), worker));
        let Some(exec) = job.map(|job| job.submission.exec.clone()) else { return };
        self.refuse_program(worker, &exec, why);
    }

    /// A worker handed a job of this program back: it gets no other for now.
    pub(super) fn avoid(&mut self, worker: WorkerId, exec: &Arc<str>) {
        if self.placement.refusals.get(worker, exec).is_none() {
            self.refuse_program(worker, exec, "");
        }
    }

    fn refuse_program(&mut self, worker: WorkerId, exec: &Arc<str>, why: &str) {
        if exec.is_empty() {
            return;
        }
        self.placement.refusals.insert(worker, exec, why, self.now);
        self.due.extend(self.placement.refusals.next_end().map(|end| (end, Due::Placement)));
        self.programs_changed(worker);
    }

    /// A worker says which programs it has.
    pub(super) fn programs_said(&mut self, conn: ConnId, said: ProgramsSaid, answers: bool) {
        let Some(worker) = self.workers.at(conn) else { return };
        let list = match said {
            ProgramsSaid::Are(list) => Some(Some(list)),
            ProgramsSaid::Unlisted => Some(None),
            ProgramsSaid::Same => None,
        };
        if let Some(list) = list {
            let is_new = self.workers.list_programs(worker, list);
            // Also where the names are the same: what they name may be repaired.
            let was_avoided = self.placement.refusals.clear(worker);
            if is_new || was_avoided {
                self.programs_changed(worker);
            }
        }
        if answers {
            self.programs_answered(worker);
        }
    }

    /// A worker may have other programs than before: jobs of its keys are looked at again.
    fn programs_changed(&mut self, worker: WorkerId) {
        self.workers.touch(worker);
        self.workers.note_changed(worker);
        self.dirty = true;
    }

    fn programs_answered(&mut self, worker: WorkerId) {
        let Some(asks) = self.placement.asks.get_mut(&worker) else { return };
        asks.answered = asks.asked;
        if let Some(round) = asks.again.take() {
            asks.asked = round;
            self.send_ask(worker);
        }
        self.placement.wake_waiting_on(worker);
    }

    fn send_ask(&mut self, worker: WorkerId) {
        if let Some(conn) = self.workers.get(worker).and_then(Worker::conn) {
            self.actions.push_back(Action::AskPrograms { conn });
        }
    }

    /// Asks a worker for its programs in a round, or once it has answered an earlier question.
    fn ask(&mut self, worker: WorkerId, round: u64) {
        let asks = self.placement.asks.entry(worker).or_default();
        if asks.asked > asks.answered {
            asks.again = Some(round);
        } else {
            asks.asked = round;
            self.send_ask(worker);
        }
    }

    /// A worker's connection ended.
    pub(super) fn may_come_back(&mut self, id: WorkerId) {
        self.placement.asks.remove(&id);
        self.placement.wake_waiting_on(id);
        let first = self.placement.arrivals.remove(&id).map_or(self.now, |arrival| arrival.first);
        let Some(worker) = self.workers.get(id) else { return };
        if worker.subscriptions().is_empty() || self.config.placement_wait.is_zero() {
            return;
        }
        let refused: Vec<Arc<str>> =
            self.placement.refusals.of(id).map(|(exec, _)| exec.clone()).collect();
        let names = worker.subscriptions().iter().map(|pattern| pattern.len() as u64);
        let listed = worker.programs.as_ref().map_or(0, Programs::bytes);
        let bytes =
            names.sum::<u64>() + listed + refused.iter().map(|exec| exec.len() as u64).sum::<u64>();
        let gone = Gone {
            worker: id,
            at: self.now,
            first,
            subscriptions: worker.subscriptions().to_vec(),
            programs: worker.programs.clone(),
            refused,
            transfers: worker.transfers,
            reads: worker.reads,
            bytes,
        };
        self.placement.leaves(gone);
        self.due.insert((self.now.plus(self.config.placement_wait), Due::Placement));
    }

    // --- which jobs are looked at

    /// A job waits: whether a worker has its program is looked at, unless that is known.
    pub(super) fn look_for_program(&mut self, id: JobId) {
        if !self.workers.any_list() && self.placement.refusals.is_empty() {
            return;
        }
        if let Some(need) = self.state.job(id).and_then(Need::of)
            && !self.placement.is_met(&need)
            && !self.placement.missing.contains_key(&need)
        {
            self.placement.woken.insert(need);
        }
    }

    /// Workers that match a key are others than before, or have other programs.
    pub(super) fn look_for_programs_of(&mut self, key: &RoutingKey) {
        self.placement.forget_met(key);
        let kinds = self.queues.kinds_of(key).into_iter().filter(|(_, exec)| !exec.is_empty());
        let needs = kinds.map(|(rank, exec)| Need { key: key.clone(), rank, exec });
        self.placement.woken.extend(needs);
    }

    /// Forgets what was met of keys that have no jobs.
    pub(super) fn forget_met_of_others(&mut self) {
        let queues = &self.queues;
        self.placement.met.retain(|key, _| queues.has(key));
        self.placement.met_count = self.placement.met.values().map(HashSet::len).sum();
        give_back(&mut self.placement.met);
    }

    /// What was waited for may be over.
    pub(super) fn placement_due(&mut self) {
        for worker in self.placement.refusals.expire(self.now) {
            self.programs_changed(worker);
        }
        self.due.extend(self.placement.refusals.next_end().map(|end| (end, Due::Placement)));
        let now = self.now;
        while let Some((until, _)) = self.placement.missing_until.first()
            && *until <= now
        {
            let over = self.placement.missing_until.pop_first();
            self.placement.woken.extend(over.map(|(_, need)| need));
        }
        let wait = self.config.placement_wait;
        while self.placement.gone.front().is_some_and(|gone| gone.at.plus(wait) <= now) {
            self.placement.forget_first_gone();
        }
    }

    // --- what becomes of them

    /// Judges the needs that something happened to.
    pub(super) fn settle_placement(&mut self) {
        if self.draining {
            // The next leader looks again.
            return;
        }
        for _ in 0..NEEDS_AT_ONCE_MAX {
            let Some(need) = self.placement.woken.pop_first() else { break };
            self.settle_need(need);
        }
        // Clients of jobs that wait now.
        self.tell_who_waits();
        if !self.placement.woken.is_empty() {
            self.pass_again();
        }
    }

    fn settle_need(&mut self, need: Need) {
        let lacking = match self.who_lacks(&need) {
            Some(lacking) if !lacking.is_empty() => lacking,
            // A worker has it. Without workers that take the job for the rest, it waits for those.
            met @ (Some(_) | None) => {
                self.placement.drop_missing(&need);
                if met.is_none() {
                    self.placement.meet(need);
                }
                return;
            }
        };
        if !self.any_of(&need) {
            self.placement.drop_missing(&need);
            return;
        }
        let since = self.placement.missing.get(&need).map_or(self.now, Missing::since);
        if let Some(until) = self.awaited_until(&need, &lacking, since) {
            if let Some(Missing::Waits { until: known, .. }) = self.placement.missing.get(&need)
                && *known == until
            {
                return;
            }
            let told = self.queues.jobs_of_kind(&need.key, need.rank, &need.exec);
            let told: Vec<JobId> = told.take(TOLD_AT_ONCE_MAX).collect();
            told.into_iter().for_each(|job| self.waits.look_at(job));
            self.due.insert((until, Due::Placement));
            self.placement.miss(need, Missing::Waits { since, until });
            return;
        }
        let listed = lacking
            .iter()
            .filter(|worker| self.placement.refusals.get(**worker, &need.exec).is_none());
        let listed: Vec<WorkerId> = listed.copied().collect();
        let through = match self.placement.missing.get(&need) {
            Some(Missing::Asked { through, until, round, .. }) => {
                let through = *through;
                let owing = listed.iter().find(|worker| self.owes(**worker, *round));
                if let Some(worker) = owing.filter(|_| *until > self.now) {
                    self.placement.wait_on(*worker, need);
                    return;
                }
                through
            }
            Some(Missing::Waits { .. }) | None if listed.is_empty() => u64::MAX,
            Some(Missing::Waits { .. }) | None => return self.ask_all(need, &listed, since),
        };
        self.fail_all(need, &lacking, through);
    }

    /// The workers that match and would take jobs of this need, and lack the program; none if one
    /// of them has it.
    fn who_lacks(&self, need: &Need) -> Option<Vec<WorkerId>> {
        let mut matching = Vec::new();
        self.workers.matching(need.key.as_str(), &mut matching);
        let mut lacking = Vec::new();
        for worker in matching.iter().filter_map(|worker| self.workers.get(*worker)) {
            let has_agent = self.locality.holdings.agent_of(worker.id).is_some();
            let by_agent = need.rank == Rank::ByTransfer && has_agent;
            if !worker.takes(need.rank) && !by_agent {
                continue;
            }
            self.no_program(worker, &need.exec)?;
            lacking.push(worker.id);
        }
        Some(lacking)
    }

    /// Until when a worker may connect that has the program, if one may; these lack it. `since`
    /// says for how long such workers have been waited for.
    fn awaited_until(&self, need: &Need, lacking: &[WorkerId], since: Micros) -> Option<Micros> {
        let wait = self.config.placement_wait;
        let gone = self.placement.gone.iter().filter(|gone| gone.may_meet(need));
        // Who was there before the leader began anew is not known. Before its first job nobody was.
        let before = self.earlier.filter(|earlier| earlier.last_seq > 0);
        let before = before.map(|earlier| earlier.until);
        let back = gone.map(|gone| gone.at).chain(before).max().map(|last| last.plus(wait));
        let come = self.others_come_until(need, lacking);
        let longest = since.plus(wait.saturating_mul(ARRIVALS_WAITED_MAX));
        let until = back.into_iter().chain(come.map(|come| come.min(longest))).max()?;
        (until > self.now).then_some(until)
    }

    /// Until when others may follow workers that connected.
    fn others_come_until(&self, need: &Need, workers: &[WorkerId]) -> Option<Micros> {
        let wait = self.config.placement_wait;
        let arrivals = workers.iter().filter_map(|worker| self.placement.arrivals.get(worker));
        let settled = arrivals.clone().map(|arrival| arrival.at.plus(wait.min(SETTLED_AFTER)));
        // A job from before them waits for workers as a grid starts up.
        let first = self.submitted_first(need);
        let later = arrivals.map(|arrival| arrival.first);
        let later = later.filter(|at| first.is_some_and(|first| first < *at));
        settled.max().max(later.max().map(|at| at.plus(wait)))
    }

    /// When the first of the jobs was submitted that would fail now.
    fn submitted_first(&self, need: &Need) -> Option<Micros> {
        let jobs = self.queues.jobs_of_kind(&need.key, need.rank, &need.exec);
        let jobs = jobs.take(FAILED_AT_ONCE_MAX).filter_map(|job| self.state.job(job));
        jobs.filter_map(|job| job.times.submitted).min()
    }

    /// Whether a worker has yet to give the answer that is waited for. One that connected since
    /// has said it with its hello.
    fn owes(&self, worker: WorkerId, round: u64) -> bool {
        self.placement.asks.get(&worker).is_some_and(|asks| asks.owes(round))
    }

    fn ask_all(&mut self, need: Need, workers: &[WorkerId], since: Micros) {
        self.placement.round += 1;
        let round = self.placement.round;
        workers.iter().for_each(|worker| self.ask(*worker, round));
        let (through, until) = (self.state.last_seq(), self.now.plus(PROGRAMS_ASKED_MAX));
        self.due.insert((until, Due::Placement));
        let first = workers.first().copied();
        self.placement.miss(need.clone(), Missing::Asked { since, through, until, round });
        if let Some(worker) = first {
            self.placement.wait_on(worker, need);
        }
    }

    /// Ends the jobs of a need that nobody meets, as far as they were there when the workers were
    /// asked.
    fn fail_all(&mut self, need: Need, lacking: &[WorkerId], through: u64) {
        let seq = |job: &JobId| self.state.job(*job).map_or(0, |job| job.seq);
        let jobs = self.queues.jobs_of_kind(&need.key, need.rank, &need.exec);
        let failed: Vec<JobId> =
            jobs.filter(|job| seq(job) <= through).take(FAILED_AT_ONCE_MAX).collect();
        let is_all = failed.len() < FAILED_AT_ONCE_MAX;
        let why: Arc<str> = self.why_no_program(&need, lacking).into();
        for job in failed {
            let Some(run) = self.state.job(job).map(|job| job.run) else { continue };
            self.take_out(job);
            self.waits.forget(job);
            self.propose(Record::Fail { at: self.now, job, run, why: why.clone() });
        }
        if is_all {
            self.placement.drop_missing(&need);
        }
        if self.any_of(&need) {
            self.placement.woken.insert(need);
        }
    }

    /// Whether jobs of a need wait.
    fn any_of(&self, need: &Need) -> bool {
        self.queues.jobs_of_kind(&need.key, need.rank, &need.exec).next().is_some()
    }

    /// Until when a job waits for a worker to connect, as no connected one has its program.
    pub(super) fn waits_for_program(&self, job: &Job) -> Option<Micros> {
        match self.placement.missing.get(&Need::of(job)?)? {
            Missing::Waits { until, .. } => Some(*until),
            Missing::Asked { .. } => None,
        }
    }

    /// Why no connected worker has the program of a job that is handed in, if that is so, as far as
    /// they have said.
    pub(super) fn nobody_has_program(&self, job: &Submission) -> Option<Arc<str>> {
        if job.exec.is_empty() {
            return None;
        }
        let rank = match job.payload_kind() {
            _ if job.needs_transfers || job.inputs == Inputs::Expected => Rank::ByTransfer,
            PayloadKind::Request => Rank::Plain,
            PayloadKind::Folders => Rank::Folders,
            PayloadKind::Raw => Rank::Raw,
        };
        let need = Need { key: job.key.clone(), rank, exec: job.exec.clone() };
        let lacking = self.who_lacks(&need).filter(|lacking| !lacking.is_empty())?;
        Some(self.why_no_program(&need, &lacking).into())
    }

    // --- in words

    /// Why no worker has the program of a job, with what each said.
    fn why_no_program(&self, need: &Need, lacking: &[WorkerId]) -> String {
        let Need { key, exec, .. } = need;
        let named = lacking.iter().take(WORKERS_NAMED_MAX);
        let named = named.filter_map(|worker| self.workers.get(*worker)).filter_map(|worker| {
            let why = self.no_program(worker, exec)?;
            Some(format!("{} {}", called(worker), why.text()))
        });
        let named = named.collect::<Vec<_>>().join("; ");
        let more = match lacking.len().saturating_sub(WORKERS_NAMED_MAX) {
            0 => String::new(),
            more => format!("; and {more} more"),
        };
        let like = match self.programs_like(exec, lacking).as_slice() {
            [] => String::new(),
            like => format!(" Did you mean {}?", like.join(", ")),
        };
        format!(
            "no connected worker that matches {key} has the program \"{}\": {named}{more}.{like} Put it into the --exe-dir of \
             a worker, or submit under another name",
            excerpt(exec)
        )
    }

    /// The same for the one worker that a job was for.
    pub(super) fn why_no_program_at(&self, worker: WorkerId, exec: &str) -> String {
        let refusal = self.placement.refusals.get(worker, exec).cloned();
        let why = refusal.map_or_else(
            || "does not have it, or cannot start it".to_owned(),
            |refusal| NoProgram::Refused(refusal).text(),
        );
        let called = match self.workers.get(worker) {
            Some(worker) => called(worker),
            None => format!("worker {worker}"),
        };
        format!("the program \"{}\": {called} {why}", excerpt(exec))
    }

    /// Names of programs that some of these workers have, and that are like this one.
    pub(super) fn programs_like(&self, exec: &str, workers: &[WorkerId]) -> Vec<String> {
        let workers = workers.iter().filter_map(|worker| self.workers.get(*worker));
        let mut lists: Vec<&Programs> = Vec::new();
        for list in workers.filter_map(|worker| worker.programs.as_ref()) {
            if lists.len() < LISTS_LOOKED_THROUGH_MAX
                && !lists.iter().any(|known| known.is_same(list))
            {
                lists.push(list);
            }
        }
        let names = lists.into_iter().flat_map(Programs::names).take(LIKENESS_LOOKS_MAX);
        let names = names.filter(|name| name.len() <= LIKENESS_BYTES_MAX);
        like(exec, names).into_iter().map(|name| format!("\"{}\"", excerpt(name))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::subject::routing_key;
    use uuid::Uuid;

    fn gone(number: u128, at: u64, bytes: u64) -> Gone {
        Gone {
            worker: WorkerId(Uuid::from_u128(number)),
            at: Micros(at),
            first: Micros(at),
            subscriptions: vec!["job.assign.>".into()],
            programs: Some(Programs::new(["calcA"])),
            refused: vec!["calcB".into()],
            transfers: false,
            reads: PayloadKind::Folders,
            bytes,
        }
    }

    #[test]
    fn workers_that_left_are_remembered_by_number_and_by_bytes_until_they_come_back() {
        let mut placement = Placement::default();
        (0..GONE_MAX as u128 + 2).for_each(|number| placement.leaves(gone(number, 1, 10)));
        assert_eq!((placement.gone.len(), placement.gone_bytes), (GONE_MAX, 10 * GONE_MAX as u64));
        placement.joins(WorkerId(Uuid::from_u128(7)), Micros(2));
        assert_eq!(placement.gone.len(), GONE_MAX - 1);
        placement.leaves(gone(1_000, 1, GONE_BYTES_MAX - 5));
        assert_eq!((placement.gone.len(), placement.gone_bytes), (1, GONE_BYTES_MAX - 5));
        placement.joins(WorkerId(Uuid::from_u128(1_000)), Micros(2));
        assert_eq!((placement.len(), placement.gone_bytes), (0, 0));
    }

    #[test]
    fn a_worker_that_left_is_waited_for_only_if_it_may_have_the_program() {
        let need = |rank, exec: &str, key: &str| Need {
            key: routing_key(key, None).unwrap(),
            rank,
            exec: exec.into(),
        };
        let left = gone(1, 1, 0);
        assert!(left.may_meet(&need(Rank::Plain, "calcA", "calcA")));
        assert!(left.may_meet(&need(Rank::Folders, "calcA", "group")));
        for other in [
            need(Rank::Plain, "calcB", "calcA"),
            need(Rank::Plain, "calcC", "calcA"),
            need(Rank::ByTransfer, "calcA", "calcA"),
            need(Rank::Raw, "calcA", "calcA"),
        ] {
            assert!(!left.may_meet(&other), "{other:?}");
        }
        let unlisted = Gone { programs: None, ..gone(1, 1, 0) };
        assert!(unlisted.may_meet(&need(Rank::Plain, "calcC", "calcA")));
        assert!(!unlisted.may_meet(&need(Rank::Plain, "calcB", "calcA")), "it handed that back");
        let elsewhere = Gone { subscriptions: vec!["job.assign.x".into()], ..gone(1, 1, 0) };
        assert!(!elsewhere.may_meet(&need(Rank::Plain, "calcA", "calcA")));
    }

    #[test]
    fn what_is_met_is_bounded() {
        let mut placement = Placement::default();
        let key = routing_key("calcA", None).unwrap();
        for number in 0..MET_MAX + 1 {
            let exec = number.to_string().into();
            placement.meet(Need { key: key.clone(), rank: Rank::Plain, exec });
        }
        assert_eq!(placement.met_count, 1);
        placement.forget_met(&key);
        assert_eq!((placement.met_count, placement.met.len()), (0, 0));
    }
}
