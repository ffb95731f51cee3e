//! Indexes which workers hold which datasets, and how fast datasets move. The leader's dataset
//! machine owns the facts and reports each change; this index serves the choice of workers. It does
//! not outlive a worker's connection. `locality` uses it to choose workers.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::broker::Broker;
use super::ids::{CacheId, JobId, WorkerId};
use super::lease::Lease;
use super::{broken, count_down};

/// The speed of a move that is assumed before one was measured: a gigabit link, or a busy faster
/// one.
pub const MOVE_BYTES_PER_SECOND_START: u64 = 100 << 20;

/// Moves that took longer than this in all count half as much as those that follow.
const RATE_WINDOW: Duration = Duration::from_secs(60);

/// What a worker has of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    pub digest: [u8; 32],
    /// Bytes that are still to come; none once jobs can use it.
    pub missing: u64,
}

/// What all workers have, or are about to get.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    of: BTreeMap<WorkerId, Held>,
    /// The agents of classic workers.
    agents: BTreeMap<WorkerId, WorkerId>,
    /// Workers that hold something of a dataset, or get it.
    holders: BTreeMap<CacheId, BTreeSet<WorkerId>>,
    /// Workers that have jobs which name a dataset, and how many.
    expecting: BTreeMap<CacheId, BTreeMap<WorkerId, u32>>,
    rate: Rate,
}

/// What one worker has.
#[derive(Debug, Default)]
struct Held {
    datasets: BTreeMap<CacheId, Holding>,
    /// The datasets that its jobs name: what it lacks of them it is about to get.
    named: BTreeMap<JobId, Vec<CacheId>>,
    rate: Rate,
}

/// An average in which what was long ago fades.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    bytes: u64,
    micros: u64,
}

impl Rate {
    fn add(&mut self, bytes: u64, span: Duration) {
        let window = micros(RATE_WINDOW);
        self.bytes = self.bytes.saturating_add(bytes);
        self.micros = self.micros.saturating_add(micros(span));
        while self.micros > window {
            (self.bytes, self.micros) = (self.bytes / 2, self.micros / 2);
        }
    }

    /// How long moving `bytes` takes at the measured speed, if there is one.
    fn span_of(self, bytes: u64) -> Option<Duration> {
        let (moved, took) = (u128::from(self.bytes), u128::from(self.micros));
        let span = u128::from(bytes).saturating_mul(took).checked_div(moved)?;
        (took > 0).then(|| Duration::from_micros(u64::try_from(span).unwrap_or(u64::MAX)))
    }
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX)
}

impl Holdings {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.of.len() + self.agents.len() + self.holders.len() + self.expecting.len()
    }

    /// How long moving `bytes` to a worker takes, at the speed measured there, or else anywhere.
    fn span_of_move(&self, worker: WorkerId, bytes: u64) -> Duration {
        let own = self.of.get(&worker).and_then(|held| held.rate.span_of(bytes));
        let start =
            Rate { bytes: MOVE_BYTES_PER_SECOND_START, micros: micros(Duration::from_secs(1)) };
        own.or_else(|| self.rate.span_of(bytes))
            .or_else(|| start.span_of(bytes))
            .unwrap_or_default()
    }

    /// Whether a worker has a job that names a dataset.
    pub(super) fn is_expected(&self, worker: WorkerId, cache: &CacheId) -> bool {
        self.expecting.get(cache).is_some_and(|workers| workers.contains_key(&worker))
    }

    /// The classic workers that have agents, with those.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (WorkerId, WorkerId)> {
        self.agents.iter().map(|(worker, agent)| (*worker, *agent))
    }

    /// The agent of a classic worker.
    pub(super) fn agent_of(&self, worker: WorkerId) -> Option<WorkerId> {
        self.agents.get(&worker).copied()
    }

    /// The classic workers of an agent.
    pub(super) fn served_by(&self, agent: WorkerId) -> impl Iterator<Item = WorkerId> {
        self.agents.iter().filter(move |(_, of)| **of == agent).map(|(worker, _)| *worker)
    }

    /// Adds the workers that have something of a dataset, by themselves or by their agents, or are
    /// about to.
    pub(super) fn near(&self, cache: &CacheId, out: &mut BTreeSet<WorkerId>) {
        for holder in self.holders.get(cache).into_iter().flatten() {
            out.insert(*holder);
            out.extend(self.served_by(*holder));
        }
        out.extend(self.expecting.get(cache).into_iter().flat_map(BTreeMap::keys));
    }

    /// Who has something of a dataset.
    pub(super) fn holders_of(&self, cache: &CacheId) -> impl Iterator<Item = WorkerId> {
        self.holders.get(cache).into_iter().flatten().copied()
    }

    /// What a worker has of a dataset, and what its agent has.
    pub(super) fn at(&self, worker: WorkerId, cache: &CacheId) -> impl Iterator<Item = Holding> {
        let both = [Some(worker), self.agent_of(worker)].into_iter().flatten();
        both.filter_map(|worker| self.of.get(&worker)?.datasets.get(cache).copied())
    }

    /// The datasets of which a worker has something, or is about to, or its agent has. Some may be
    /// named twice.
    pub(super) fn datasets_near(&self, worker: WorkerId) -> Vec<&CacheId> {
        let held = |worker: WorkerId| {
            self.of.get(&worker).into_iter().flat_map(|held| held.datasets.keys())
        };
        let own =
            held(worker).chain(self.agents.get(&worker).into_iter().flat_map(|agent| held(*agent)));
        let named = self.of.get(&worker).into_iter().flat_map(|held| held.named.values().flatten());
        own.chain(named).collect()
    }

    fn insert(&mut self, worker: WorkerId, cache: CacheId, holding: Holding) {
        self.holders.entry(cache.clone()).or_default().insert(worker);
        self.of.entry(worker).or_default().datasets.insert(cache, holding);
    }

    fn remove(&mut self, worker: WorkerId, cache: &CacheId) -> Option<Holding> {
        let held = self.of.get_mut(&worker).and_then(|held| held.datasets.remove(cache));
        if let Some(holders) = self.holders.get_mut(cache) {
            holders.remove(&worker);
            if holders.is_empty() {
                self.holders.remove(cache);
            }
        }
        held
    }

    /// A worker gets a job that names these.
    pub(super) fn expect(&mut self, worker: WorkerId, job: JobId, datasets: &[CacheId]) {
        if datasets.is_empty() {
            return;
        }
        self.unexpect(worker, job);
        for cache in datasets {
            *self.expecting.entry(cache.clone()).or_default().entry(worker).or_default() += 1;
        }
        self.of.entry(worker).or_default().named.insert(job, datasets.to_vec());
    }

    /// A worker does not have a job any more.
    pub(super) fn unexpect(&mut self, worker: WorkerId, job: JobId) {
        let named = self.of.get_mut(&worker).and_then(|held| held.named.remove(&job));
        for cache in named.unwrap_or_default() {
            let Some(workers) = self.expecting.get_mut(&cache) else {
                broken!("worker {worker} has job {job} that names {cache}, which nobody is to get");
                continue;
            };
            if let Some(jobs) = workers.get_mut(&worker) {
                count_down!(*jobs, 1, "worker {worker} is to get {cache} for no job");
                if *jobs == 0 {
                    workers.remove(&worker);
                }
            } else {
                broken!("worker {worker} has job {job} that names {cache}, and is not to get it");
            }
            if workers.is_empty() {
                self.expecting.remove(&cache);
            }
        }
    }
}

impl Broker {
    /// The classic workers that have agents, with those.
    pub fn agents(&self) -> impl Iterator<Item = (WorkerId, WorkerId)> {
        self.locality.holdings.pairs()
    }

    /// The agent of a classic worker.
    pub fn agent_of(&self, worker: WorkerId) -> Option<WorkerId> {
        self.locality.holdings.agent_of(worker)
    }

    /// The classic workers of an agent.
    pub fn served_by(&self, agent: WorkerId) -> impl Iterator<Item = WorkerId> {
        self.locality.holdings.served_by(agent)
    }

    /// What a worker has of a dataset, itself or by its agent.
    pub fn holding(&self, worker: WorkerId, cache: &CacheId) -> Option<Holding> {
        self.locality.holdings.at(worker, cache).next()
    }

    /// The estimated time to move `bytes` of datasets to a worker.
    pub fn span_of_move(&self, worker: WorkerId, bytes: u64) -> Duration {
        self.locality.holdings.span_of_move(worker, bytes)
    }

    pub(super) fn holds(
        &mut self,
        worker: WorkerId,
        cache: CacheId,
        digest: [u8; 32],
        missing: u64,
    ) {
        if self.workers.get(worker).is_some() {
            self.locality.asks.holds(worker, &cache);
            self.locality.holdings.insert(worker, cache, Holding { digest, missing });
            self.look_at_again(worker);
        }
    }

    pub(super) fn holds_not(&mut self, worker: WorkerId, cache: &CacheId) {
        let Some(held) = self.locality.holdings.remove(worker, cache) else { return };
        if held.missing > 0 {
            self.could_not_hold(worker, cache);
        } else {
            self.agent_failed(cache);
        }
        self.rouse_waiting_for(worker, cache);
        self.look_at_again(worker);
    }

    pub(super) fn holds_nothing(&mut self, worker: WorkerId) {
        let held = self
            .locality
            .holdings
            .of
            .get(&worker)
            .map(|held| held.datasets.keys().cloned().collect::<Vec<_>>());
        // Jobs that wait for it go on waiting: it may well say the same again.
        for cache in held.unwrap_or_default() {
            self.locality.holdings.remove(worker, &cache);
        }
    }

    pub(super) fn datasets_moved(&mut self, worker: WorkerId, bytes: u64, span: Duration) {
        self.locality.holdings.rate.add(bytes, span);
        if self.workers.get(worker).is_some() {
            self.locality.holdings.of.entry(worker).or_default().rate.add(bytes, span);
        }
    }

    pub(super) fn agent_for(&mut self, worker: WorkerId, agent: Option<WorkerId>) {
        for other in agent.into_iter().chain(self.locality.holdings.agent_of(worker)) {
            self.locality.asks.forget(other);
        }
        match agent {
            Some(agent) if self.workers.get(worker).is_some() => {
                self.locality.holdings.agents.insert(worker, agent)
            }
            Some(_) | None => self.locality.holdings.agents.remove(&worker),
        };
        // Jobs that wait for this worker may now wait in vain, or the other way round.
        self.workers.note_changed(worker);
        self.locality.asks.wake_all();
        self.staging.wake();
        self.look_at_again(worker);
    }

    /// A worker, and those it is the agent of, may be right for jobs that wait.
    fn look_at_again(&mut self, worker: WorkerId) {
        let served: Vec<WorkerId> = self.locality.holdings.served_by(worker).collect();
        for worker in served.into_iter().chain([worker]) {
            self.workers.touch(worker);
        }
        self.dirty = true;
    }

    /// A worker is gone. What its agent holds is still there for others.
    pub(super) fn forget_holdings(&mut self, worker: WorkerId) {
        self.rouse_all_waiting_for(worker);
        self.locality.asks.forget(worker);
        self.locality.asks.wake_all();
        self.dirty = true;
        self.holds_nothing(worker);
        let jobs = self
            .locality
            .holdings
            .of
            .get(&worker)
            .map(|held| held.named.keys().copied().collect::<Vec<_>>());
        for job in jobs.unwrap_or_default() {
            self.locality.holdings.unexpect(worker, job);
        }
        self.locality.holdings.of.remove(&worker);
        self.locality.holdings.agents.remove(&worker);
        self.locality.holdings.agents.retain(|_, agent| *agent != worker);
    }

    /// Takes a job from a worker's books; gives back the lease, if it had one.
    pub(super) fn release(&mut self, worker: WorkerId, job: JobId) -> Option<Lease> {
        self.locality.holdings.unexpect(worker, job);
        self.workers.release(worker, job)
    }
}
