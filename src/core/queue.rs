//! Queues waiting jobs: one lane per client under each routing key (C15).
//!
//! Keys take turns (SC03), and clients share a key by deficit round robin. Within a lane the
//! smaller priority number goes first, then the older job (C28), but for jobs that no worker with
//! room takes: they are passed over without a look. The queue knows neither workers nor caps; the
//! broker says which clients may be served, and what the workers with room take.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::broken;
use super::capacity::give_back;
use super::ids::{ClientId, JobId, WorkerId};
use super::limits::{JOB_COST_BYTES, LANE_QUANTUM_BYTES};
use super::payload::PayloadKind;
use super::programs::Programs;
use super::subject::RoutingKey;

/// Jobs before a new one that are counted one by one; beyond it the number is of no use to anybody.
pub const AHEAD_COUNTED_MAX: usize = 1000;

/// Kinds of jobs that a lane tells apart: programs, and what else a worker has to take for them.
const KINDS_PER_LANE_MAX: usize = 256;

/// Workers that one more is compared with, to look at those that take the same once: most are like
/// one of the last.
const TAKERS_COMPARED_MAX: usize = 16;

/// A job's place in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub priority: i64,
    /// Then the older.
    pub seq: u64,
}

/// A job that is to wait.
#[derive(Clone, Copy, Debug)]
pub struct Waiting<'a> {
    pub id: JobId,
    pub exec: &'a Arc<str>,
    /// Bytes of its payload.
    pub size: u64,
    /// How it waits.
    pub rank: Rank,
}

#[derive(Debug, Default)]
pub struct Queues {
    lanes: HashMap<RoutingKey, KeyQueue>,
    /// Keys that have jobs, the next to be served first. Each is in it once.
    turns: VecDeque<RoutingKey>,
    /// Keys that have jobs and that no connected worker asks for. Nobody looks at them until one
    /// joins.
    unwanted: BTreeSet<RoutingKey>,
    /// Clients that may not be served, and the keys where they wait.
    parked: HashMap<ClientId, HashSet<RoutingKey>>,
    len: usize,
    /// Children of jobs to all workers, which only their worker may have: they wait in no key's
    /// queue.
    pub(super) pinned: BTreeMap<WorkerId, BTreeMap<Place, JobId>>,
}

#[derive(Debug, Default)]
struct KeyQueue {
    /// Clients that have jobs, the next to be served first.
    ring: VecDeque<Lane>,
    /// Clients that have jobs and may not be served for now. Nobody looks at them until that
    /// changes.
    parked: HashMap<ClientId, Lane>,
    len: usize,
}

#[derive(Debug)]
struct Lane {
    client: ClientId,
    /// Jobs that are served, by what a worker has to take for them. They are served in one order
    /// where a worker with room takes them, and do not stand before others where none does. None of
    /// these is empty.
    kinds: Vec<Kind>,
    /// Jobs that are not served for now.
    aside: BTreeMap<Place, (JobId, u64)>,
    /// Bytes the client may have served on its turn. Saved up while its first job costs more.
    deficit: u64,
}

/// Jobs that the same workers can have.
#[derive(Debug)]
struct Kind {
    rank: Rank,
    /// Their program; any where a client has jobs of too many.
    exec: Option<Arc<str>>,
    jobs: BTreeMap<Place, (JobId, u64)>,
}

impl Kind {
    fn is_of(&self, rank: Rank, exec: Option<&Arc<str>>) -> bool {
        self.rank == rank && self.exec.as_ref() == exec
    }
}

impl Lane {
    fn new(client: ClientId) -> Self {
        Lane { client, kinds: Vec::new(), aside: BTreeMap::new(), deficit: 0 }
    }

    fn len(&self) -> usize {
        self.all().map(BTreeMap::len).sum()
    }

    fn all(&self) -> impl Iterator<Item = &BTreeMap<Place, (JobId, u64)>> {
        self.kinds.iter().map(|kind| &kind.jobs).chain([&self.aside])
    }

    fn insert(&mut self, rank: Rank, exec: &Arc<str>, place: Place, job: (JobId, u64)) {
        if rank == Rank::Aside {
            self.aside.insert(place, job);
            return;
        }
        let known = self.kinds.iter().position(|kind| kind.is_of(rank, Some(exec)));
        // One client with jobs of that many programs shares the rest of its lane among them.
        let exec = (self.kinds.len() < KINDS_PER_LANE_MAX).then(|| exec.clone());
        let mixed = || self.kinds.iter().position(|kind| kind.is_of(rank, None));
        let at = known.or_else(|| exec.is_none().then(mixed).flatten());
        match at.and_then(|at| self.kinds.get_mut(at)) {
            Some(kind) => drop(kind.jobs.insert(place, job)),
            None => self.kinds.push(Kind { rank, exec, jobs: BTreeMap::from([(place, job)]) }),
        }
    }

    fn remove(&mut self, place: Place) -> bool {
        if self.aside.remove(&place).is_some() {
            return true;
        }
        let removed = self.kinds.iter_mut().position(|kind| kind.jobs.remove(&place).is_some());
        removed.inspect(|at| self.drop_if_empty(*at)).is_some()
    }

    fn drop_if_empty(&mut self, at: usize) {
        if self.kinds.get(at).is_some_and(|kind| kind.jobs.is_empty()) {
            self.kinds.swap_remove(at);
        }
    }

    /// Where the next job is, and what it costs, if there is one.
    fn next(&self, takes: &Takes) -> Option<(usize, u64)> {
        let first = |(at, kind): (usize, &Kind)| {
            let (place, (_, cost)) = kind.jobs.first_key_value()?;
            Some(((place.priority, kind.rank == Rank::Late, place.seq), at, *cost))
        };
        let served = self.kinds.iter().enumerate().filter(|(_, kind)| takes.takes(kind));
        let next = served.filter_map(first).min_by_key(|(order, _, _)| *order);
        next.map(|(_, at, cost)| (at, cost))
    }

    /// What the next job costs, if there is one.
    fn cost(&self, takes: &Takes) -> Option<u64> {
        self.next(takes).map(|(_, cost)| cost)
    }

    fn pop(&mut self, takes: &Takes) -> Option<(JobId, u64)> {
        let (at, _) = self.next(takes)?;
        let (_, next) = self.kinds.get_mut(at)?.jobs.pop_first()?;
        self.drop_if_empty(at);
        Some(next)
    }
}

/// How a job waits in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Rank {
    /// Any worker may have it.
    Plain,
    /// Only a worker with transfers may have it.
    ByTransfer,
    /// Only a worker for files in folders may have it.
    Folders,
    /// Only a worker for raw payloads may have it.
    Raw,
    /// It lets others of its priority go first.
    Late,
    /// It is not served for now.
    Aside,
}

/// What one worker that has room can take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taker {
    /// Whether it takes transfers.
    pub transfers: bool,
    /// The payloads that it reads.
    pub reads: PayloadKind,
    /// The programs that it has, if it lists them.
    pub programs: Option<Programs>,
    /// Programs that it handed back.
    pub refused: Vec<Arc<str>>,
}

impl Taker {
    /// What every worker takes, and this one.
    pub fn new(transfers: bool, reads: PayloadKind) -> Self {
        Taker { transfers, reads, programs: None, refused: Vec::new() }
    }

    fn takes(&self, kind: &Kind) -> bool {
        let is_read = match kind.rank {
            Rank::Plain | Rank::Late => true,
            Rank::ByTransfer => self.transfers,
            Rank::Folders => self.reads >= PayloadKind::Folders,
            Rank::Raw => self.reads >= PayloadKind::Raw,
            Rank::Aside => false,
        };
        // What names no program asks for none.
        let exec = kind.exec.as_ref().filter(|exec| !exec.is_empty());
        is_read
            && exec.is_none_or(|exec| {
                self.programs.as_ref().is_none_or(|programs| programs.has(exec))
                    && !self.refused.contains(exec)
            })
    }

    /// Whether it takes just the same, as far as that is quickly told.
    fn is_like(&self, other: &Taker) -> bool {
        let is_same_list = match (&self.programs, &other.programs) {
            (Some(one), Some(other)) => one.is_same(other),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        (self.transfers, self.reads) == (other.transfers, other.reads)
            && is_same_list
            && self.refused == other.refused
    }
}

/// What the workers that have room can take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Takes(Vec<Taker>);

impl Takes {
    /// Only the jobs that every worker takes.
    pub fn plain() -> Self {
        Takes(vec![Taker::new(false, PayloadKind::Request)])
    }

    fn takes(&self, kind: &Kind) -> bool {
        self.0.iter().any(|taker| taker.takes(kind))
    }
}

impl FromIterator<Taker> for Takes {
    /// Those that take the same count once.
    fn from_iter<I: IntoIterator<Item = Taker>>(takers: I) -> Self {
        let mut takes = Takes::default();
        for taker in takers {
            let mut known = takes.0.iter().rev().take(TAKERS_COMPARED_MAX);
            if !known.any(|known| known.is_like(&taker)) {
                takes.0.push(taker);
            }
        }
        takes
    }
}

impl KeyQueue {
    fn lane_mut(&mut self, client: &ClientId) -> Option<&mut Lane> {
        match self.parked.get_mut(client) {
            Some(lane) => Some(lane),
            None => self.ring.iter_mut().find(|lane| lane.client == *client),
        }
    }

    fn park(&mut self, at: usize) {
        if let Some(lane) = self.ring.remove(at) {
            self.parked.insert(lane.client.clone(), lane);
        }
    }
}

impl Queues {
    /// Jobs that wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none does.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The keys that have jobs, with their number.
    pub fn keys(&self) -> impl Iterator<Item = (&RoutingKey, usize)> {
        let keys = self.turns.iter().chain(&self.unwanted);
        keys.filter_map(|key| Some((key, self.lanes.get(key)?.len)))
    }

    /// How many keys have jobs that someone may want.
    pub fn key_count(&self) -> usize {
        self.turns.len()
    }

    /// Jobs that wait, by client, under all keys.
    pub fn len_by_client(&self) -> HashMap<&ClientId, usize> {
        let mut by_client = HashMap::new();
        for lane in
            self.lanes.values().flat_map(|queue| queue.ring.iter().chain(queue.parked.values()))
        {
            *by_client.entry(&lane.client).or_default() += lane.len();
        }
        by_client
    }

    /// Adds a job, or gives one that waits already another rank; says how many of the same client
    /// and key are before it, as far as that is quickly counted.
    pub fn push(
        &mut self,
        key: &RoutingKey,
        client: &ClientId,
        place: Place,
        job: &Waiting<'_>,
    ) -> usize {
        if !self.lanes.contains_key(key) {
            self.lanes.insert(key.clone(), KeyQueue::default());
            self.turns.push_back(key.clone());
        }
        let Some(queue) = self.lanes.get_mut(key) else {
            broken!("key {key} was made a queue, and has none");
            return 0;
        };
        let Waiting { id, exec, size, rank } = *job;
        let cost = size.saturating_add(JOB_COST_BYTES);
        if queue.lane_mut(client).is_none() {
            queue.ring.push_back(Lane::new(client.clone()));
        }
        let Some(lane) = queue.lane_mut(client) else {
            broken!("client {client} was made a lane of key {key}, and has none");
            return 0;
        };
        let ahead_among = |jobs: &BTreeMap<Place, (JobId, u64)>| {
            let is_last = jobs.last_key_value().is_none_or(|(last, _)| *last < place);
            if is_last { jobs.len() } else { jobs.range(..place).take(AHEAD_COUNTED_MAX).count() }
        };
        // A job that waits already is not counted twice.
        let is_new = !lane.remove(place);
        let ahead = lane.all().map(ahead_among).sum();
        lane.insert(rank, exec, place, (id, cost));
        if !is_new {
            return ahead;
        }
        queue.len += 1;
        self.len += 1;
        ahead
    }

    /// Takes a job out that is not to be served any more. False if it does not wait here.
    pub fn remove(&mut self, key: &RoutingKey, client: &ClientId, place: Place) -> bool {
        let Some(queue) = self.lanes.get_mut(key) else { return false };
        let Some(lane) = queue.lane_mut(client) else { return false };
        if !lane.remove(place) {
            return false;
        }
        if lane.len() == 0 && queue.parked.remove(client).is_none() {
            queue.ring.retain(|lane| lane.client != *client);
        }
        queue.len -= 1;
        self.len -= 1;
        self.drop_if_empty(key);
        true
    }

    /// The key at this place in the order of turns.
    pub fn key_at(&self, turn: usize) -> Option<&RoutingKey> {
        self.turns.get(turn)
    }

    /// Whether a key has jobs of a client that is not put aside.
    pub fn is_open(&self, key: &RoutingKey) -> bool {
        self.lanes.get(key).is_some_and(|queue| !queue.ring.is_empty())
    }

    /// Ends the turn of the key at this place, and returns the place of the next key. A key that
    /// was served goes to the end. A key that was not keeps its place; otherwise the first key
    /// would always be served first.
    pub fn end_turn(&mut self, turn: usize, key: &RoutingKey, served: bool) -> usize {
        if self.turns.get(turn) != Some(key) {
            // Its last job is gone, and it with it.
            return turn;
        }
        if served {
            self.turns.remove(turn);
            self.turns.push_back(key.clone());
            turn
        } else {
            turn + 1
        }
    }

    /// No connected worker asks for the key at this place: it is put aside until one joins.
    pub fn put_aside(&mut self, turn: usize) {
        self.unwanted.extend(self.turns.remove(turn));
    }

    /// A worker joined: what was put aside may be wanted now.
    pub fn look_again(&mut self) {
        self.turns.extend(std::mem::take(&mut self.unwanted));
    }

    /// A client may be served again: its lanes go to the end of their rings.
    pub fn unpark(&mut self, client: &ClientId) {
        for key in self.parked.remove(client).unwrap_or_default() {
            if let Some(queue) = self.lanes.get_mut(&key) {
                queue.ring.extend(queue.parked.remove(client));
            }
        }
    }

    /// Takes the next job of a key whose client may be served. A client that may not is passed over
    /// until [`Queues::unpark`] says that it may.
    pub fn pop(
        &mut self,
        key: &RoutingKey,
        takes: &Takes,
        mut may_run: impl FnMut(&ClientId) -> bool,
    ) -> Option<JobId> {
        let queue = self.lanes.get_mut(key)?;
        // Usually the first client that may be served can pay, and no other needs to be checked.
        // Clients that may not be served are put aside until something changes.
        let mut at = 0;
        while let Some(lane) = queue.ring.get(at) {
            if !may_run(&lane.client) {
                self.parked.entry(lane.client.clone()).or_default().insert(key.clone());
                queue.park(at);
            } else if lane.cost(takes).is_some_and(|cost| cost <= lane.deficit) {
                return self.serve_lane(key, takes, at);
            } else {
                at += 1;
            }
        }
        // How often the ring would have to go round until each lane can pay for its first job; the
        // lane with the fewest rounds is next, the one nearer to the front among equals. Going
        // round one by one gives the same.
        let rounds = |(at, lane): (usize, &Lane)| {
            Some((at, lane.cost(takes)?.saturating_sub(lane.deficit).div_ceil(LANE_QUANTUM_BYTES)))
        };
        let (at, fewest) =
            queue.ring.iter().enumerate().filter_map(rounds).min_by_key(|(_, rounds)| *rounds)?;
        for lane in queue.ring.iter_mut().filter(|lane| lane.cost(takes).is_some()) {
            lane.deficit = lane.deficit.saturating_add(fewest.saturating_mul(LANE_QUANTUM_BYTES));
        }
        self.serve_lane(key, takes, at)
    }

    /// Takes the first job of the lane at this place.
    fn serve_lane(&mut self, key: &RoutingKey, takes: &Takes, at: usize) -> Option<JobId> {
        let queue = self.lanes.get_mut(key)?;
        // A lane that was passed over keeps its turn. A lane that was served goes to the end once
        // it cannot pay for another job.
        let mut lane = queue.ring.remove(at)?;
        let Some((job, cost)) = lane.pop(takes) else {
            queue.ring.insert(at, lane);
            return None;
        };
        lane.deficit = lane.deficit.saturating_sub(cost);
        match lane.cost(takes) {
            Some(next) if next <= lane.deficit => queue.ring.insert(at, lane),
            Some(_) => queue.ring.push_back(lane),
            // A client that has nothing to be served saves nothing up.
            None if lane.len() == 0 => {}
            None => {
                lane.deficit = 0;
                queue.ring.push_back(lane);
            }
        }
        queue.len -= 1;
        self.len -= 1;
        self.drop_if_empty(key);
        Some(job)
    }

    /// The clients of a key, whether they may be served or not.
    fn lanes_of(&self, key: &RoutingKey) -> impl Iterator<Item = &Lane> {
        self.lanes
            .get(key)
            .into_iter()
            .flat_map(|queue| queue.ring.iter().chain(queue.parked.values()))
    }

    /// The jobs of a key, in no order that matters.
    pub fn jobs_of(&self, key: &RoutingKey) -> impl Iterator<Item = JobId> {
        self.lanes_of(key)
            .flat_map(|lane| lane.all().flat_map(BTreeMap::values))
            .map(|(job, _)| *job)
    }

    /// What workers have to take for the jobs of a key that are served, each once.
    pub fn kinds_of(&self, key: &RoutingKey) -> BTreeSet<(Rank, Arc<str>)> {
        let kinds = self.lanes_of(key).flat_map(|lane| &lane.kinds);
        kinds.filter_map(|kind| Some((kind.rank, kind.exec.clone()?))).collect()
    }

    /// The jobs of a key and program that wait so, the first of each client first.
    pub fn jobs_of_kind(
        &self,
        key: &RoutingKey,
        rank: Rank,
        exec: &Arc<str>,
    ) -> impl Iterator<Item = JobId> {
        let kinds = self.lanes_of(key).flat_map(|lane| &lane.kinds);
        let kinds = kinds.filter(move |kind| kind.is_of(rank, Some(exec)));
        kinds.flat_map(|kind| kind.jobs.values()).map(|(job, _)| *job)
    }

    /// The clients of a key, each with its jobs that only a worker with transfers may have, the
    /// next of each program first, and those that are not served for now.
    pub(super) fn by_transfer_of(
        &self,
        key: &RoutingKey,
    ) -> impl Iterator<Item = (&ClientId, impl Iterator<Item = JobId>)> {
        self.lanes_of(key).map(|lane| {
            let by_transfer = lane.kinds.iter().filter(|kind| kind.rank == Rank::ByTransfer);
            let jobs = by_transfer.flat_map(|kind| kind.jobs.values());
            (&lane.client, jobs.chain(lane.aside.values()).map(|(job, _)| *job))
        })
    }

    /// Whether a job waits here.
    pub fn contains(&self, key: &RoutingKey, client: &ClientId, place: Place) -> bool {
        let lane = self.lane(key, client);
        lane.is_some_and(|lane| lane.all().any(|jobs| jobs.contains_key(&place)))
    }

    /// How many jobs of its client and key are before a job, at most [`AHEAD_COUNTED_MAX`]; nothing
    /// if it does not wait here.
    pub fn ahead_of(&self, key: &RoutingKey, client: &ClientId, place: Place) -> Option<usize> {
        let lane = self.lane(key, client)?;
        let waits = lane.all().any(|jobs| jobs.contains_key(&place));
        let ahead = lane.all().flat_map(|jobs| jobs.range(..place));
        waits.then(|| ahead.take(AHEAD_COUNTED_MAX).count())
    }

    fn lane(&self, key: &RoutingKey, client: &ClientId) -> Option<&Lane> {
        let queue = self.lanes.get(key)?;
        let in_ring = || queue.ring.iter().find(|lane| lane.client == *client);
        queue.parked.get(client).or_else(in_ring)
    }

    /// How many keys have jobs.
    pub fn keys_len(&self) -> usize {
        self.lanes.len()
    }

    /// Whether a key has jobs.
    pub fn has(&self, key: &RoutingKey) -> bool {
        self.lanes.contains_key(key)
    }

    /// Says which invariant does not hold, if one does not.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut all = 0;
        for (key, queue) in &self.lanes {
            let lanes = || queue.ring.iter().chain(queue.parked.values());
            let len: usize = lanes().map(Lane::len).sum();
            if len != queue.len || len == 0 {
                return Err(format!("key {key} has {len} jobs, and {} are counted", queue.len));
            }
            if let Some(lane) =
                lanes().find(|lane| lane.kinds.iter().any(|kind| kind.jobs.is_empty()))
            {
                return Err(format!("client {} has no jobs of a kind that is kept", lane.client));
            }
            if let Some(lane) = lanes().find(|lane| lane.len() == 0) {
                return Err(format!(
                    "client {} has a lane of key {key}, and no jobs there",
                    lane.client
                ));
            }
            if lanes().map(|lane| &lane.client).collect::<HashSet<_>>().len() != lanes().count() {
                return Err(format!("a client has two lanes of key {key}"));
            }
            let is_noted =
                |client: &ClientId| self.parked.get(client).is_some_and(|keys| keys.contains(key));
            if let Some(client) = queue.parked.keys().find(|client| !is_noted(client)) {
                return Err(format!("client {client} is parked at key {key} for good"));
            }
            all += len;
        }
        if all != self.len {
            return Err(format!("{all} jobs wait, and {} are counted", self.len));
        }
        let keys: Vec<&RoutingKey> = self.turns.iter().chain(&self.unwanted).collect();
        let distinct: HashSet<&RoutingKey> = keys.iter().copied().collect();
        if keys.len() != distinct.len() || distinct != self.lanes.keys().collect() {
            return Err(format!(
                "{} keys have jobs, and {} have turns",
                self.lanes.len(),
                keys.len()
            ));
        }
        Ok(())
    }

    fn drop_if_empty(&mut self, key: &RoutingKey) {
        if self.lanes.get(key).is_some_and(|queue| queue.len == 0) {
            self.lanes.remove(key);
            give_back(&mut self.lanes);
            if !self.unwanted.remove(key) {
                self.turns.retain(|turn| turn != key);
            }
        }
    }
}

#[cfg(test)]
#[path = "queue_tests.rs"]
mod tests;
