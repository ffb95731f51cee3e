//! What workers hold of datasets, as they and the leader say, and how quick moving them is. None of it outlives a worker's
//! connection: one that joins says it anew. Which worker gets a job by that is `locality`'s matter.

use std::collections::BTreeMap;
use std::time::Duration;

use super::broker::Broker;
use super::ids::{CacheId, WorkerId};

/// What moving is taken to bring as long as nobody has measured it: a gigabit link, or a busy faster one.
pub const MOVE_BYTES_PER_SECOND_START: u64 = 100 << 20;

/// Moves that took longer than this in all count half as much as those that follow.
const RATE_WINDOW: Duration = Duration::from_secs(60);

/// What a worker has of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which content.
    pub digest: [u8; 32],
    /// Bytes that are still to come; none once jobs can use it.
    pub missing: u64,
}

/// What all workers have.
#[derive(Debug, Default)]
pub(super) struct Holdings {
    of: BTreeMap<WorkerId, Held>,
    /// The agents of stock workers.
    agents: BTreeMap<WorkerId, WorkerId>,
    rate: Rate,
}

/// What one worker has.
#[derive(Debug, Default)]
struct Held {
    sets: BTreeMap<CacheId, Holding>,
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

    /// What so many bytes take, if anything was measured.
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
    /// What moving so many bytes to a worker takes: by what it took so far there, else anywhere.
    pub(super) fn span_of_move(&self, worker: WorkerId, bytes: u64) -> Duration {
        let own = self.of.get(&worker).and_then(|held| held.rate.span_of(bytes));
        let start = Rate { bytes: MOVE_BYTES_PER_SECOND_START, micros: micros(Duration::from_secs(1)) };
        own.or_else(|| self.rate.span_of(bytes)).or_else(|| start.span_of(bytes)).unwrap_or_default()
    }
}

impl Broker {
    /// What a worker has of a dataset, itself or by its agent.
    pub fn holding(&self, worker: WorkerId, cache: &CacheId) -> Option<Holding> {
        let of = |worker: &WorkerId| self.holdings.of.get(worker)?.sets.get(cache).copied();
        of(&worker).or_else(|| of(self.holdings.agents.get(&worker)?))
    }

    /// What moving so many bytes of datasets to a worker is thought to take.
    pub fn span_of_move(&self, worker: WorkerId, bytes: u64) -> Duration {
        self.holdings.span_of_move(worker, bytes)
    }

    pub(super) fn holds(&mut self, worker: WorkerId, cache: CacheId, digest: [u8; 32], missing: u64) {
        if self.workers.get(worker).is_some() {
            let held = self.holdings.of.entry(worker).or_default();
            held.sets.insert(cache, Holding { digest, missing });
            self.dirty = true;
        }
    }

    pub(super) fn holds_not(&mut self, worker: WorkerId, cache: &CacheId) {
        if let Some(held) = self.holdings.of.get_mut(&worker) {
            held.sets.remove(cache);
            self.dirty = true;
        }
    }

    pub(super) fn holds_nothing(&mut self, worker: WorkerId) {
        if let Some(held) = self.holdings.of.get_mut(&worker) {
            held.sets.clear();
            self.dirty = true;
        }
    }

    pub(super) fn sets_moved(&mut self, worker: WorkerId, bytes: u64, span: Duration) {
        self.holdings.rate.add(bytes, span);
        if self.workers.get(worker).is_some() {
            self.holdings.of.entry(worker).or_default().rate.add(bytes, span);
        }
    }

    pub(super) fn agent_for(&mut self, worker: WorkerId, agent: Option<WorkerId>) {
        match agent {
            Some(agent) if self.workers.get(worker).is_some() => self.holdings.agents.insert(worker, agent),
            Some(_) | None => self.holdings.agents.remove(&worker),
        };
        self.dirty = true;
    }

    /// A worker is gone, or came back on another connection: it says anew what it holds.
    pub(super) fn forget_holdings(&mut self, worker: WorkerId) {
        self.holdings.of.remove(&worker);
        self.holdings.agents.remove(&worker);
        self.holdings.agents.retain(|_, agent| *agent != worker);
    }
}
