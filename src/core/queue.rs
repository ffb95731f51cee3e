//! Queues waiting jobs: one lane per client under each routing key (C15).
//!
//! Keys take turns (SC03), and clients share a key by deficit round robin. Within a lane the
//! smaller priority number goes first, then the older job (C28). The queue knows neither workers
//! nor caps; the broker says which clients may be served.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::broken;
use super::capacity::give_back;
use super::ids::{ClientId, JobId, WorkerId};
use super::limits::{JOB_COST_BYTES, LANE_QUANTUM_BYTES};
use super::payload::PayloadKind;
use super::subject::RoutingKey;

/// Jobs before a new one that are counted one by one; beyond it the number is of no use to anybody.
pub const AHEAD_COUNTED_MAX: usize = 1000;

/// A job's place in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    pub priority: i64,
    /// Then the older.
    pub seq: u64,
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
    jobs: BTreeMap<Place, (JobId, u64)>,
    /// The same, of jobs that only a worker with transfers may have. They are served in one order
    /// with the others where such a worker has room, and do not stand before them where none has.
    by_transfer: BTreeMap<Place, (JobId, u64)>,
    /// The same, of jobs that only a worker for files in folders may have.
    folders: BTreeMap<Place, (JobId, u64)>,
    /// The same, of jobs that only a worker for raw payloads may have.
    raw: BTreeMap<Place, (JobId, u64)>,
    /// The same, of jobs that let others of their priority go first.
    late: BTreeMap<Place, (JobId, u64)>,
    /// Jobs that are not served for now.
    aside: BTreeMap<Place, (JobId, u64)>,
    /// Bytes the client may have served on its turn. Saved up while its first job costs more.
    deficit: u64,
}

impl Lane {
    fn new(client: ClientId) -> Self {
        Lane {
            client,
            jobs: BTreeMap::new(),
            by_transfer: BTreeMap::new(),
            folders: BTreeMap::new(),
            raw: BTreeMap::new(),
            late: BTreeMap::new(),
            aside: BTreeMap::new(),
            deficit: 0,
        }
    }

    fn len(&self) -> usize {
        self.all().iter().map(|jobs| jobs.len()).sum()
    }

    fn all(&self) -> [&BTreeMap<Place, (JobId, u64)>; Rank::ALL.len()] {
        Rank::ALL.map(|rank| self.of(rank))
    }

    fn of(&self, rank: Rank) -> &BTreeMap<Place, (JobId, u64)> {
        match rank {
            Rank::Plain => &self.jobs,
            Rank::ByTransfer => &self.by_transfer,
            Rank::Folders => &self.folders,
            Rank::Raw => &self.raw,
            Rank::Late => &self.late,
            Rank::Aside => &self.aside,
        }
    }

    fn of_mut(&mut self, rank: Rank) -> &mut BTreeMap<Place, (JobId, u64)> {
        match rank {
            Rank::Plain => &mut self.jobs,
            Rank::ByTransfer => &mut self.by_transfer,
            Rank::Folders => &mut self.folders,
            Rank::Raw => &mut self.raw,
            Rank::Late => &mut self.late,
            Rank::Aside => &mut self.aside,
        }
    }

    fn remove(&mut self, place: Place) -> bool {
        Rank::ALL.into_iter().any(|rank| self.of_mut(rank).remove(&place).is_some())
    }

    /// Where the next job is, and what it costs, if there is one.
    fn next(&self, takes: Takes) -> Option<(Rank, u64)> {
        let first = |rank: Rank| {
            let (place, (_, cost)) = self.of(rank).first_key_value()?;
            Some(((place.priority, rank == Rank::Late, place.seq), rank, *cost))
        };
        let served = Rank::ALL.into_iter().filter(|rank| takes.takes(*rank));
        let next = served.filter_map(first).min_by_key(|(order, _, _)| *order);
        next.map(|(_, rank, cost)| (rank, cost))
    }

    /// What the next job costs, if there is one.
    fn cost(&self, takes: Takes) -> Option<u64> {
        self.next(takes).map(|(_, cost)| cost)
    }

    fn pop(&mut self, takes: Takes) -> Option<(JobId, u64)> {
        let (rank, _) = self.next(takes)?;
        self.of_mut(rank).pop_first().map(|(_, next)| next)
    }
}

/// How a job waits in its lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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

impl Rank {
    const ALL: [Rank; 6] =
        [Rank::Plain, Rank::ByTransfer, Rank::Folders, Rank::Raw, Rank::Late, Rank::Aside];
}

/// What the workers that have room can take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Takes {
    /// Whether one of them takes transfers.
    pub transfers: bool,
    /// The payloads that one of them reads.
    pub reads: PayloadKind,
}

impl Takes {
    /// What every worker takes.
    pub const PLAIN: Takes = Takes { transfers: false, reads: PayloadKind::Request };

    fn takes(self, rank: Rank) -> bool {
        match rank {
            Rank::Plain | Rank::Late => true,
            Rank::ByTransfer => self.transfers,
            Rank::Folders => self.reads >= PayloadKind::Folders,
            Rank::Raw => self.reads >= PayloadKind::Raw,
            Rank::Aside => false,
        }
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
        job: JobId,
        size: u64,
        rank: Rank,
    ) -> usize {
        if !self.lanes.contains_key(key) {
            self.lanes.insert(key.clone(), KeyQueue::default());
            self.turns.push_back(key.clone());
        }
        let Some(queue) = self.lanes.get_mut(key) else {
            broken!("key {key} was made a queue, and has none");
            return 0;
        };
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
        let ahead = lane.all().into_iter().map(ahead_among).sum();
        lane.of_mut(rank).insert(place, (job, cost));
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
        takes: Takes,
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
    fn serve_lane(&mut self, key: &RoutingKey, takes: Takes, at: usize) -> Option<JobId> {
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
            .flat_map(|lane| lane.all().into_iter().flat_map(BTreeMap::values))
            .map(|(job, _)| *job)
    }

    /// The clients of a key, each with its jobs that only a worker with transfers may have, the
    /// next first, and those that are not served for now.
    pub(super) fn by_transfer_of(
        &self,
        key: &RoutingKey,
    ) -> impl Iterator<Item = (&ClientId, impl Iterator<Item = JobId>)> {
        self.lanes_of(key).map(|lane| {
            let jobs = lane.by_transfer.values().chain(lane.aside.values());
            (&lane.client, jobs.map(|(job, _)| *job))
        })
    }

    /// Whether a job waits here.
    pub fn contains(&self, key: &RoutingKey, client: &ClientId, place: Place) -> bool {
        let lane = self.lane(key, client);
        lane.is_some_and(|lane| lane.all().iter().any(|jobs| jobs.contains_key(&place)))
    }

    /// How many jobs of its client and key are before a job, at most [`AHEAD_COUNTED_MAX`]; nothing
    /// if it does not wait here.
    pub fn ahead_of(&self, key: &RoutingKey, client: &ClientId, place: Place) -> Option<usize> {
        let lane = self.lane(key, client)?;
        let waits = lane.all().iter().any(|jobs| jobs.contains_key(&place));
        let ahead = lane.all().into_iter().flat_map(|jobs| jobs.range(..place));
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
mod tests {
    use super::*;
    use crate::core::subject::routing_key;
    use uuid::Uuid;

    const EVERYTHING: Takes = Takes { transfers: true, reads: PayloadKind::Raw };

    fn key(name: &str) -> RoutingKey {
        routing_key(name, None).unwrap()
    }

    fn fill(queues: &mut Queues, exec: &str, client: &str, jobs: std::ops::Range<u64>, size: u64) {
        for seq in jobs {
            let place = Place { priority: 0, seq };
            queues.push(
                &key(exec),
                &client.into(),
                place,
                JobId(Uuid::from_u128(seq.into())),
                size,
                Rank::Plain,
            );
        }
    }

    fn drain(queues: &mut Queues, exec: &str) -> Vec<u128> {
        std::iter::from_fn(|| queues.pop(&key(exec), EVERYTHING, |_| true))
            .map(|job| job.0.as_u128())
            .collect()
    }

    #[test]
    fn c15_clients_take_turns_whatever_the_length_of_their_lanes() {
        let mut queues = Queues::default();
        fill(&mut queues, "calcA", "a", 0..40, 0);
        fill(&mut queues, "calcA", "b", 100..102, 0);
        let order = drain(&mut queues, "calcA");
        // 1 MiB of turn pays for sixteen small jobs.
        assert_eq!(order.iter().position(|job| *job == 100), Some(16));
        assert_eq!(order.len(), 42);
        assert!(queues.is_empty() && queues.key_count() == 0);
    }

    #[test]
    fn c15_a_client_with_heavy_jobs_leaves_room_for_one_with_light_ones() {
        let mut queues = Queues::default();
        fill(&mut queues, "calcA", "heavy", 0..3, 64 << 20);
        fill(&mut queues, "calcA", "light", 100..200, 0);
        let order = drain(&mut queues, "calcA");
        let heavy_before_last_light =
            order.iter().take_while(|job| **job != 199).filter(|job| **job < 3).count();
        assert_eq!(heavy_before_last_light, 0, "100 light jobs weigh less than one of 64 MiB");
    }

    #[test]
    fn c28_smaller_priorities_go_first_and_equal_ones_by_age() {
        let mut queues = Queues::default();
        for (seq, priority) in [(1, 5), (2, -1), (3, 5), (4, i64::MIN), (5, 0)] {
            let id = JobId(Uuid::from_u128(seq.into()));
            let rank = if seq == 2 { Rank::ByTransfer } else { Rank::Plain };
            queues.push(&key("e"), &"c".into(), Place { priority, seq }, id, 0, rank);
        }
        assert_eq!(drain(&mut queues, "e"), [4, 2, 5, 1, 3]);
    }

    #[test]
    fn c14_a_late_job_lets_others_of_its_priority_go_first_and_one_aside_is_not_served() {
        let mut queues = Queues::default();
        let id = |seq: u64| JobId(Uuid::from_u128(seq.into()));
        let mut push = |seq: u64, priority, rank| {
            queues.push(&key("e"), &"c".into(), Place { priority, seq }, id(seq), 0, rank);
        };
        push(1, 0, Rank::Late);
        push(2, 0, Rank::Aside);
        push(3, 0, Rank::Plain);
        push(4, 1, Rank::Plain);
        push(5, 0, Rank::ByTransfer);
        push(6, 0, Rank::Plain);
        push(6, 0, Rank::Aside);
        assert_eq!(queues.len(), 6, "another rank is not another job");
        assert_eq!(drain(&mut queues, "e"), [3, 5, 1, 4]);
        assert_eq!((queues.len(), queues.key_count()), (2, 1));
        queues.push(&key("e"), &"c".into(), Place { priority: 0, seq: 6 }, id(6), 0, Rank::Plain);
        assert_eq!(drain(&mut queues, "e"), [6]);
        assert!(queues.remove(&key("e"), &"c".into(), Place { priority: 0, seq: 2 }));
        assert!(queues.is_empty() && queues.key_count() == 0);
    }

    #[test]
    fn m19_jobs_that_no_worker_with_room_takes_are_not_looked_at_and_hold_no_other_up() {
        let mut queues = Queues::default();
        let ranks = [(1, Rank::Raw), (2, Rank::ByTransfer), (3, Rank::Raw), (4, Rank::Plain)];
        for (seq, rank) in ranks {
            let id = JobId(Uuid::from_u128(seq.into()));
            queues.push(&key("e"), &"c".into(), Place { priority: 0, seq }, id, 0, rank);
        }
        let mut pop = |transfers, reads| {
            queues.pop(&key("e"), Takes { transfers, reads }, |_| true).map(|job| job.0.as_u128())
        };
        assert_eq!(pop(false, PayloadKind::Request), Some(4));
        assert_eq!(pop(false, PayloadKind::Request), None);
        assert_eq!(pop(false, PayloadKind::Raw), Some(1));
        assert_eq!(pop(true, PayloadKind::Request), Some(2));
        assert_eq!(pop(true, PayloadKind::Raw), Some(3));
        assert!(queues.is_empty() && queues.key_count() == 0);
    }

    #[test]
    fn sc11_a_client_at_its_cap_does_not_hold_the_others_up() {
        let mut queues = Queues::default();
        fill(&mut queues, "e", "capped", 0..5, 0);
        fill(&mut queues, "e", "free", 10..12, 0);
        let free = |client: &ClientId| &*client.0 == "free";
        let served: Vec<_> =
            std::iter::from_fn(|| queues.pop(&key("e"), Takes::PLAIN, free)).collect();
        assert_eq!(
            (served.len(), queues.len(), queues.len_by_client()[&ClientId::from("capped")]),
            (2, 5, 5)
        );
        assert_eq!(drain(&mut queues, "e"), [0; 0], "put aside until something changes");
        assert!(queues.remove(&key("e"), &"capped".into(), Place { priority: 0, seq: 2 }));
        fill(&mut queues, "e", "capped", 2..3, 0);
        queues.unpark(&"capped".into());
        assert_eq!(drain(&mut queues, "e"), [0, 1, 2, 3, 4], "the order inside a client is kept");
    }

    #[test]
    fn sc03_keys_take_turns_and_each_is_in_the_ring_once() {
        let mut queues = Queues::default();
        fill(&mut queues, "a", "c", 0..3, 0);
        fill(&mut queues, "b", "c", 10..13, 0);
        let turns =
            |queues: &Queues| queues.keys().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
        assert_eq!(turns(&queues), ["job.assign.a", "job.assign.b"]);
        assert_eq!(queues.end_turn(0, &key("a"), false), 1, "who was not served keeps its turn");
        assert_eq!(turns(&queues), ["job.assign.a", "job.assign.b"]);
        assert_eq!(queues.end_turn(0, &key("a"), true), 0);
        assert_eq!(turns(&queues), ["job.assign.b", "job.assign.a"]);
        assert_eq!(queues.end_turn(0, &key("gone"), true), 0);
        assert_eq!(queues.key_count(), 2);
    }

    #[test]
    fn what_is_removed_is_gone_and_leaves_nothing_behind() {
        let mut queues = Queues::default();
        fill(&mut queues, "e", "c", 0..2, 0);
        assert!(
            queues.remove(&key("E"), &"c".into(), Place { priority: 0, seq: 0 }),
            "keys ignore case"
        );
        assert!(!queues.remove(&key("e"), &"c".into(), Place { priority: 0, seq: 0 }));
        assert!(queues.remove(&key("e"), &"c".into(), Place { priority: 0, seq: 1 }));
        assert_eq!((queues.len(), queues.key_count(), queues.lanes.len()), (0, 0, 0));
    }
}
