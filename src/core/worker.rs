//! Workers that are connected or were a moment ago: what they offer and what they hold. Nothing
//! here survives a restart of the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use uuid::Uuid;

use super::event::WorkerClass;
use super::ids::{ConnId, JobId, Micros, WorkerId};
use super::lease::{Lease, LeaseStage};
use super::limits::CREDIT_PER_MESSAGE_MAX;
use super::payload::PayloadKind;
use super::programs::Programs;
use super::queue::Rank;
use super::record::Lack;
use super::subject::{SubjectTree, matches, subscriptions};
use super::{broken, count_down};

#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    /// What it calls itself.
    pub name: Arc<str>,
    /// How its silence is read.
    pub class: WorkerClass,
    /// Its connection, or since when it has none.
    pub presence: Presence,
    /// What it asked for.
    pub patterns: Vec<String>,
    /// The same, as it is kept in the tree.
    subscriptions: Vec<String>,
    /// Jobs it may be given.
    pub credit: u32,
    /// Jobs it runs at a time, if it said.
    parallel_max: Option<u32>,
    /// Whether it can take inputs as transfers.
    pub transfers: bool,
    /// Whether it can be sent datasets.
    pub datasets: bool,
    /// The payloads it reads.
    pub reads: PayloadKind,
    /// All programs that it has, if it lists them.
    pub programs: Option<Programs>,
    /// Its first offer, and the sum of all its offers.
    offered: Option<(u64, u64)>,
    /// Credit that was offered ahead of the answers that pay for it, at most as much as the worker
    /// owes. An offer can overtake a large answer, which counts only when all of it is stored.
    ahead: u64,
    /// Credit that seemed lost and was given back. If it was only late, it does not count twice.
    lent: u64,
    /// Jobs it was sent on this connection, or brought along, and how many answers it owes for
    /// each. A job that was taken from it is still one it may answer; as every one took a credit,
    /// there are no more than it offered.
    sent: BTreeMap<JobId, u32>,
    /// Jobs that were taken from the worker because it could not have their inputs, until it has
    /// answered for them. Until then it does not get them again, because its answer would count for
    /// the next attempt.
    refused: BTreeSet<JobId>,
    /// Answers it has given to them.
    answered: u64,
    /// When it gave the last of them.
    pub(super) answered_at: Micros,
    /// Whether a look at lost credits is due.
    pub(super) leak_watched: bool,
    /// Jobs it holds.
    pub held: BTreeMap<JobId, Lease>,
    /// Use of its processors in thousandths, as it last said.
    pub cpu_permille: u16,
    /// When it was last given a job, in the order of all assignments.
    pub last_assigned: u64,
    /// Whether it came back and has not yet said what it still holds.
    pub owes_inventory: bool,
    /// What it offered before it said so: only then is it known how much room it has.
    early_credit: i32,
    /// When it last said anything.
    pub(super) heard_at: Micros,
    /// Whether it let a lease run out and has said nothing since. It is given nothing until it
    /// does.
    pub(super) silent: bool,
    /// What it lacked for a job that it handed back, and when, if no such job has ended there
    /// since.
    pub lacked: Option<(Lack, Micros)>,
}

/// Whether a worker is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    Here(ConnId),
    /// Away since then, and expected back.
    Away(Micros),
}

impl Worker {
    /// A worker that has not said hello since the leader started.
    fn away(id: WorkerId, now: Micros) -> Self {
        Worker {
            id,
            name: "".into(),
            class: WorkerClass::Leasing,
            presence: Presence::Away(now),
            patterns: Vec::new(),
            subscriptions: Vec::new(),
            credit: 0,
            parallel_max: None,
            transfers: false,
            datasets: false,
            reads: PayloadKind::Request,
            programs: None,
            offered: None,
            ahead: 0,
            lent: 0,
            sent: BTreeMap::new(),
            refused: BTreeSet::new(),
            answered: 0,
            answered_at: Micros::default(),
            leak_watched: false,
            held: BTreeMap::new(),
            cpu_permille: 0,
            last_assigned: 0,
            owes_inventory: false,
            early_credit: 0,
            heard_at: now,
            silent: false,
            lacked: None,
        }
    }

    pub fn conn(&self) -> Option<ConnId> {
        match self.presence {
            Presence::Here(conn) => Some(conn),
            Presence::Away(_) => None,
        }
    }

    /// Whether it asked for a key.
    pub(super) fn wants(&self, key: &str) -> bool {
        self.subscriptions.iter().any(|pattern| matches(pattern, key))
    }

    /// What it asked for, as it is kept in the tree.
    pub(super) fn subscriptions(&self) -> &[String] {
        &self.subscriptions
    }

    /// Whether it takes jobs that wait so, whatever their programs and datasets.
    pub(super) fn takes(&self, rank: Rank) -> bool {
        match rank {
            Rank::Plain | Rank::Late | Rank::Aside => true,
            Rank::ByTransfer => self.transfers,
            Rank::Folders => self.reads >= PayloadKind::Folders,
            Rank::Raw => self.reads >= PayloadKind::Raw,
        }
    }

    /// Whether it can be given a job now.
    pub fn has_room(&self) -> bool {
        let one_at_a_time = self.class == WorkerClass::OneAtATime && !self.held.is_empty();
        self.credit > 0
            && self.has_place()
            && self.conn().is_some()
            && !one_at_a_time
            && !self.silent
    }

    /// What it has not answered for takes a place, whatever it offered meanwhile. What has ended
    /// there does not: how many results it keeps until the leader takes them is its own to decide,
    /// and it offers no more than it has room for.
    fn has_place(&self) -> bool {
        let Some(max) = self.parallel_max else { return true };
        let is_below = |held: usize| (held as u64) < u64::from(max);
        is_below(self.held.len()) || is_below(self.held.len() - self.returning())
    }

    /// Jobs that have ended there and whose results are on their way.
    pub fn returning(&self) -> usize {
        self.held.values().filter(|lease| lease.stage == LeaseStage::Returning).count()
    }

    /// Takes an offer of credit, within reason: nothing below one and no more than a message may
    /// bring (CR04). Who said how many jobs it runs at a time gets no more; any other gets, over
    /// time, no more than it first offered and has answered since, so that a peer that counts wrong
    /// cannot flood itself (C17).
    pub fn offer(&mut self, delta: i32) {
        if self.owes_inventory {
            self.early_credit = self.early_credit.saturating_add(delta.max(0));
            return;
        }
        let Some(delta) =
            u64::try_from(delta.min(CREDIT_PER_MESSAGE_MAX)).ok().filter(|delta| *delta > 0)
        else {
            return;
        };
        let (first, so_far) = self.offered.unwrap_or((delta, 0));
        let room = match self.parallel_max {
            // Not less for what it holds: it may have a result on its way for that, and does not
            // offer twice.
            Some(parallel_max) => u64::from(parallel_max.saturating_sub(self.credit)),
            None => first.saturating_add(self.answered).saturating_sub(so_far),
        };
        let taken = delta.min(room);
        if self.parallel_max.is_none() {
            let beyond = delta.saturating_sub(taken);
            let late = beyond.min(self.lent);
            self.lent -= late;
            let owed: u64 = self.sent.values().map(|owed| u64::from(*owed)).sum();
            self.ahead = self.ahead.saturating_add(beyond.saturating_sub(late)).min(owed);
        }
        self.offered = Some((first, so_far.saturating_add(taken)));
        self.credit = self.credit.saturating_add(u32::try_from(taken).unwrap_or(u32::MAX));
    }

    /// Offers for it what it seems to have lost.
    pub(super) fn lend(&mut self, lost: i32) {
        self.lent = self.lent.saturating_add(u64::try_from(lost).unwrap_or_default());
        self.offer(lost);
    }

    /// It has said what it holds: what it offered before that counts now.
    pub fn offer_early(&mut self) {
        let early = std::mem::take(&mut self.early_credit);
        self.offer(early);
    }

    /// Its heartbeat says what it may still be given. While nothing is on its way to it, both count
    /// the same, so what is missing here was lost: an offer that was damaged before its frames had
    /// checksums. Whether something was.
    pub(super) fn offer_lost(&mut self, credit: u32) -> bool {
        let is_idle = self.held.is_empty() && self.sent.is_empty() && !self.owes_inventory;
        let lost = credit.saturating_sub(self.credit);
        if !is_idle || lost == 0 {
            return false;
        }
        let before = self.credit;
        self.offer(i32::try_from(lost).unwrap_or(CREDIT_PER_MESSAGE_MAX));
        self.credit > before
    }

    /// Notes that it is sent a job.
    pub fn send(&mut self, job: JobId) {
        *self.sent.entry(job).or_default() += 1;
    }

    /// Notes that it was not sent a job after all.
    pub(super) fn unsend(&mut self, job: JobId) {
        if let Some(owed) = self.sent.get_mut(&job) {
            count_down!(*owed, 1, "worker {} owes no answer for job {job}, and one less", self.id);
            if *owed == 0 {
                self.sent.remove(&job);
            }
        }
    }

    /// Notes that it could not have the inputs of a job, and is told to give it up.
    pub(super) fn refuse(&mut self, job: JobId) {
        self.refused.insert(job);
    }

    /// Whether it could be given this job, as far as its own books tell: nothing of an earlier
    /// attempt is open.
    pub(super) fn is_done_with(&self, job: JobId) -> bool {
        !self.held.contains_key(&job) && !self.refused.contains(&job)
    }

    /// Notes an answer for a job. Answers to what it was never sent count for
    /// nothing, or they would buy credit.
    pub fn answer(&mut self, job: JobId, now: Micros) {
        self.answered_at = now;
        self.refused.remove(&job);
        if let Some(owed) = self.sent.get_mut(&job) {
            self.answered = self.answered.saturating_add(1);
            count_down!(*owed, 1, "worker {} owes no answer for job {job}, and one less", self.id);
            if *owed == 0 {
                self.sent.remove(&job);
            }
            if self.ahead > 0 {
                self.ahead -= 1;
                self.offer(1);
            }
        }
    }

    /// Whether it may forget to offer again what it has answered for. Ours do not: what they keep,
    /// they mean to (CR10).
    pub fn may_leak(&self) -> bool {
        match self.class {
            WorkerClass::Leasing => false,
            WorkerClass::Classic | WorkerClass::OneAtATime => true,
        }
    }

    /// Credits that seem lost: it runs nothing, offers nothing, and has answered for so many more
    /// than it offered again (CR09).
    pub fn lost_credits(&self) -> i32 {
        if self.conn().is_none() || self.credit > 0 || !self.held.is_empty() {
            return 0;
        }
        let (first, so_far) = self.offered.unwrap_or((0, 0));
        let lost = first.saturating_add(self.answered).saturating_sub(so_far);
        i32::try_from(lost).unwrap_or(CREDIT_PER_MESSAGE_MAX)
    }
}

/// All workers, and who asked for what.
#[derive(Debug, Default)]
pub struct Workers {
    all: BTreeMap<WorkerId, Worker>,
    by_conn: BTreeMap<ConnId, WorkerId>,
    tree: SubjectTree<WorkerId>,
    /// Those with room, but for what happened to those touched since.
    roomy: BTreeSet<WorkerId>,
    /// Who holds which job.
    holders: BTreeSet<(JobId, WorkerId)>,
    touched: BTreeSet<WorkerId>,
    /// Those that were touched and have room.
    woken: BTreeSet<WorkerId>,
    /// What those that joined or left asked for, since anybody looked.
    changed: Vec<Vec<String>>,
    /// The lists of programs that workers have, each once.
    lists: BTreeSet<Programs>,
}

/// Up to so many workers with room are asked one by one whether they want a key; more are looked up
/// in the tree.
const ROOMY_FEW: usize = 16;

/// What a worker brings along when it says hello.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hello {
    pub conn: ConnId,
    pub worker: WorkerId,
    /// What it calls itself.
    pub name: Arc<str>,
    /// How its silence is read.
    pub class: WorkerClass,
    /// What it asked for, as [`worker_patterns`](super::subject::worker_patterns) reads it.
    pub patterns: Vec<String>,
    /// Jobs it runs at a time, if it said. None at all is an agent, which keeps datasets for
    /// others: no job matches it.
    pub parallel_max: Option<u32>,
    /// Whether it can take inputs as transfers.
    pub transfers: bool,
    /// Whether it can be sent datasets.
    pub datasets: bool,
    /// The payloads it reads.
    pub reads: PayloadKind,
    /// All programs that it has, if it lists them.
    pub programs: Option<Programs>,
}

impl Workers {
    /// All, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Worker> {
        self.all.values()
    }

    pub fn get(&self, worker: WorkerId) -> Option<&Worker> {
        self.all.get(&worker)
    }

    /// One, to change.
    pub fn get_mut(&mut self, worker: WorkerId) -> Option<&mut Worker> {
        let found = self.all.get_mut(&worker)?;
        self.touched.insert(worker);
        Some(found)
    }

    /// Whether any has room. Most of the time most workers are busy, so this and [`Workers::roomy`]
    /// look only at those to which something happened.
    pub fn any_roomy(&mut self) -> bool {
        while let Some(worker) = self.touched.pop_first() {
            if self.get(worker).is_some_and(Worker::has_room) {
                self.roomy.insert(worker);
                self.woken.insert(worker);
            } else {
                self.roomy.remove(&worker);
                self.woken.remove(&worker);
            }
        }
        !self.roomy.is_empty()
    }

    /// Something happened to a worker.
    pub(super) fn touch(&mut self, worker: WorkerId) {
        self.touched.insert(worker);
    }

    /// Those with room to which something happened since this was last asked.
    pub(super) fn take_woken(&mut self) -> BTreeSet<WorkerId> {
        self.any_roomy();
        std::mem::take(&mut self.woken)
    }

    /// The ones that asked for a key and had room when [`Workers::any_roomy`] was last asked, in
    /// the order of their ids.
    pub fn roomy(&self, key: &str, out: &mut Vec<WorkerId>) {
        if self.roomy.len() > ROOMY_FEW {
            self.matching(key, out);
            out.retain(|worker| self.roomy.contains(worker));
        } else {
            let wants =
                |worker: &&WorkerId| self.get(**worker).is_some_and(|worker| worker.wants(key));
            out.clear();
            out.extend(self.roomy.iter().filter(wants));
        }
    }

    /// A worker gets hold of a job.
    pub fn hold(&mut self, worker: WorkerId, job: JobId, lease: Lease) {
        if let Some(holder) = self.get_mut(worker) {
            holder.held.insert(job, lease);
            self.holders.insert((job, worker));
        }
    }

    /// A worker does not hold a job any more; gives back the lease, if it had one.
    pub fn release(&mut self, worker: WorkerId, job: JobId) -> Option<Lease> {
        self.holders.remove(&(job, worker));
        self.get_mut(worker)?.held.remove(&job)
    }

    /// The workers that hold a job: one, and any that has not answered for an earlier job of that
    /// id.
    pub fn holders(&self, job: JobId) -> impl Iterator<Item = &Worker> {
        let (first, last) = (WorkerId(Uuid::nil()), WorkerId(Uuid::max()));
        self.holders.range((job, first)..=(job, last)).filter_map(|(_, worker)| self.get(*worker))
    }

    /// The one at a connection.
    pub fn at(&self, conn: ConnId) -> Option<WorkerId> {
        self.by_conn.get(&conn).copied()
    }

    /// The ones that asked for a key and are connected, in the order of their ids.
    pub fn matching(&self, key: &str, out: &mut Vec<WorkerId>) {
        self.tree.matching(key, out);
    }

    /// A worker can be given other jobs than before.
    pub(super) fn note_changed(&mut self, worker: WorkerId) {
        let subscriptions = self.get(worker).map(|worker| worker.subscriptions.clone());
        self.changed.extend(subscriptions);
    }

    /// What workers asked for that joined, left or changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> Vec<Vec<String>> {
        std::mem::take(&mut self.changed)
    }

    /// A list of programs as it is kept: once, however many workers have the same.
    fn share(&mut self, programs: Programs) -> Programs {
        // Those that nobody has any more.
        self.lists.retain(|known| known.holders() > 1);
        match self.lists.get(&programs) {
            Some(known) => known.clone(),
            None => {
                self.lists.insert(programs.clone());
                programs
            }
        }
    }

    /// Whether any worker lists its programs, or did.
    pub(super) fn any_list(&self) -> bool {
        !self.lists.is_empty()
    }

    /// A worker lists its programs anew, or none. Says whether they are others than before.
    pub(super) fn list_programs(&mut self, worker: WorkerId, programs: Option<Programs>) -> bool {
        let programs = programs.map(|programs| self.share(programs));
        let Some(worker) = self.get_mut(worker) else { return false };
        let is_new = worker.programs != programs;
        worker.programs = programs;
        is_new
    }

    /// A worker joins or comes back, keeping what it holds. Gives the connection it had until now,
    /// if any.
    pub fn join(&mut self, hello: Hello, now: Micros) -> Option<ConnId> {
        let (worker, conn) = (hello.worker, hello.conn);
        let before = self.remove(worker);
        let programs = hello.programs.map(|programs| self.share(programs));
        let old_conn = before.as_ref().and_then(Worker::conn);
        let held = before.map(|worker| worker.held).unwrap_or_default();
        // One that runs nothing, as an agent that only keeps datasets, is asked for nothing.
        let takes_jobs = hello.parallel_max != Some(0);
        let subscriptions =
            if takes_jobs { subscriptions(&hello.patterns, worker.0) } else { Vec::new() };
        for pattern in &subscriptions {
            self.tree.insert(pattern, worker);
        }
        self.by_conn.insert(conn, worker);
        let joined = Worker {
            name: hello.name,
            class: hello.class,
            presence: Presence::Here(conn),
            patterns: hello.patterns,
            subscriptions,
            parallel_max: hello.parallel_max,
            transfers: hello.transfers,
            datasets: hello.datasets,
            reads: hello.reads,
            programs,
            sent: held.keys().map(|job| (*job, 1)).collect(),
            owes_inventory: hello.class == WorkerClass::Leasing && !held.is_empty(),
            held,
            ..Worker::away(worker, now)
        };
        self.holders.extend(joined.held.keys().map(|job| (*job, worker)));
        self.changed.push(joined.subscriptions.clone());
        self.all.insert(worker, joined);
        self.touched.insert(worker);
        old_conn
    }

    /// A worker of the leader's previous run, which is expected back: it had this job, or a job
    /// waits for it.
    pub(super) fn expect_back(
        &mut self,
        worker: WorkerId,
        held: Option<(JobId, Lease)>,
        now: Micros,
    ) -> bool {
        let is_new = !self.all.contains_key(&worker);
        let away = self.all.entry(worker).or_insert_with(|| Worker::away(worker, now));
        if let Some((job, lease)) = held {
            away.held.insert(job, lease);
            self.holders.insert((job, worker));
        }
        is_new
    }

    /// A worker's connection ended; it keeps what it holds for now, and gets nothing.
    pub fn leave(&mut self, worker: WorkerId, now: Micros) {
        let Some(away) = self.all.get_mut(&worker) else {
            return broken!("worker {worker} leaves, and is not known");
        };
        self.touched.insert(worker);
        if let Presence::Here(conn) = away.presence {
            self.by_conn.remove(&conn);
        }
        away.presence = Presence::Away(now);
        away.credit = 0;
        self.changed.push(away.subscriptions.clone());
        for pattern in &away.subscriptions {
            self.tree.remove(pattern, &worker);
        }
    }

    /// Says which invariant does not hold, if one does not.
    pub(super) fn check(&self) -> Result<(), String> {
        let held =
            self.all.values().flat_map(|worker| worker.held.keys().map(|job| (*job, worker.id)));
        if held.collect::<BTreeSet<_>>() != self.holders {
            return Err("who holds which job is not what workers hold".to_owned());
        }
        let conns = self.all.values().filter_map(|worker| Some((worker.conn()?, worker.id)));
        if conns.collect::<BTreeMap<_, _>>() != self.by_conn {
            return Err("workers and their connections do not agree".to_owned());
        }
        let over = |worker: &&Worker| worker.parallel_max.is_some_and(|max| worker.credit > max);
        match self.all.values().find(over) {
            Some(worker) => Err(format!("worker {} has a credit of {}", worker.id, worker.credit)),
            None => Ok(()),
        }
    }

    /// A worker is gone for good.
    pub fn remove(&mut self, worker: WorkerId) -> Option<Worker> {
        let gone = self.all.remove(&worker)?;
        for job in gone.held.keys() {
            self.holders.remove(&(*job, worker));
        }
        self.touched.insert(worker);
        if let Presence::Here(conn) = gone.presence {
            self.by_conn.remove(&conn);
        }
        for pattern in &gone.subscriptions {
            self.tree.remove(pattern, &worker);
        }
        self.changed.push(gone.subscriptions.clone());
        Some(gone)
    }
}
