//! Decides which worker gets a job: the eligible workers, and the best of them under a named policy
//! (SC04-SC07, C14). `locality` computes what data costs and how long a job may wait for a
//! better worker.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use thiserror::Error;

use super::broken;
use super::broker::Broker;
use super::dataset::Dataset;
use super::event::WorkerClass;
use super::ids::{CacheId, ClientId, JobId, Micros, WorkerId};
use super::job::Job;
use super::limits::{STICKY_BYTES_MAX, STICKY_MAX};
use super::locality::{At, Cost, LOCALITY_BYPASS_MAX, Stage};
use super::subject::RoutingKey;
use super::worker::Worker;

/// The workers that had the last jobs of clients, by client and key, for [`Policy::Sticky`].
#[derive(Debug, Default)]
pub(super) struct StickyAssignments {
    of: HashMap<(ClientId, RoutingKey), WorkerId>,
    /// Bytes of the names.
    bytes: usize,
}

impl StickyAssignments {
    /// The worker that had a client's last job of a key.
    pub(super) fn get(&self, client: &ClientId, key: &RoutingKey) -> Option<WorkerId> {
        self.of.get(&(client.clone(), key.clone())).copied()
    }

    /// A worker gets a job. Where too much is remembered, a new pair makes all others go.
    pub(super) fn insert(&mut self, client: ClientId, key: RoutingKey, worker: WorkerId) {
        let bytes = client.0.len() + key.bytes();
        let pair = (client, key);
        if let Some(known) = self.of.get_mut(&pair) {
            *known = worker;
            return;
        }
        if self.of.len() >= STICKY_MAX || self.bytes.saturating_add(bytes) > STICKY_BYTES_MAX {
            *self = StickyAssignments::default();
        }
        self.of.insert(pair, worker);
        self.bytes += bytes;
    }
}

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Policy {
    /// The worker that needs the fewest bytes of the job's datasets moved; then, and for jobs
    /// without datasets, as least-load (C14).
    #[default]
    Locality,
    /// Fewest running, then most credit (SC05).
    LeastLoad,
    /// Most credit, then fewest running (SC04).
    CreditFirst,
    /// Each in its turn.
    RoundRobin,
    /// The worker that had this client's last job of the same key, if it has a free slot; else the
    /// least loaded.
    Sticky,
    /// By processor use and running jobs together (SC06).
    LoadScore,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 6] = [
        Policy::Locality,
        Policy::LeastLoad,
        Policy::CreditFirst,
        Policy::RoundRobin,
        Policy::Sticky,
        Policy::LoadScore,
    ];

    /// The name in flags.
    pub const fn name(self) -> &'static str {
        match self {
            Policy::Locality => "locality",
            Policy::LeastLoad => "least-load",
            Policy::CreditFirst => "credit-first",
            Policy::RoundRobin => "round-robin",
            Policy::Sticky => "sticky",
            Policy::LoadScore => "load-score",
        }
    }

    /// The best of the workers with free slots. Among equals, the one that waited longest.
    pub(super) fn choose<'a>(
        self,
        workers: impl Iterator<Item = &'a Worker>,
        stuck_to: Option<WorkerId>,
    ) -> Option<&'a Worker> {
        let least_load =
            |worker: &Worker| (worker.held.len(), Reverse(worker.credit), worker.last_assigned);
        match self {
            // For jobs without datasets; for those with datasets see `nearest`.
            Policy::Locality | Policy::LeastLoad => workers.min_by_key(|worker| least_load(worker)),
            Policy::CreditFirst => workers.min_by_key(|worker| {
                (Reverse(worker.credit), worker.held.len(), worker.last_assigned)
            }),
            Policy::RoundRobin => workers.min_by_key(|worker| worker.last_assigned),
            Policy::Sticky => {
                workers.min_by_key(|worker| (Some(worker.id) != stuck_to, least_load(worker)))
            }
            Policy::LoadScore => {
                workers.min_by_key(|worker| (load_permille(worker), worker.last_assigned))
            }
        }
    }
}

/// The decision for the next job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    /// This worker gets it.
    Give(WorkerId),
    /// It waits for a worker that has no room.
    Wait { on: WorkerId, until: Micros },
    /// It has waited, and goes behind others of its priority.
    Late,
    /// Workers that have room cannot be sent its datasets.
    Strand,
    /// Workers that have room lacked something for it before, and there are others; or they do not
    /// have its program.
    Elsewhere,
    /// None of these workers may have it.
    Pass,
}

impl Broker {
    /// Whether a worker can have a job's datasets: it can be sent them, or holds them all.
    pub(super) fn may_have_datasets(&self, worker: &Worker, datasets: &[Arc<Dataset>]) -> bool {
        worker.datasets || datasets.iter().all(|dataset| self.at(worker.id, dataset) == At::Held)
    }

    /// Whether one of these workers can.
    pub(super) fn any_may_have_datasets(&self, datasets: &[CacheId], workers: &[WorkerId]) -> bool {
        let datasets = self.known_datasets(datasets);
        let may = |worker: &WorkerId| {
            self.workers
                .get(*worker)
                .is_some_and(|worker| self.may_have_datasets(worker, &datasets))
        };
        datasets.is_empty() || workers.iter().any(may)
    }

    /// Whether nothing that has to do with room speaks against giving a job to a worker.
    pub(super) fn may_have(&self, job: &Job, worker: &Worker) -> bool {
        !job.was_lost_at(worker.id)
            && (worker.transfers || !job.goes_by_transfer())
            && worker.reads >= job.payload_kind()
            && worker.is_done_with(job.id())
            && !self.lacks_program(job, worker)
    }

    /// Whether one of these workers does not have the program of a job. Most such jobs are not
    /// looked at in the first place.
    fn any_lacks_program(&self, job: &Job, workers: &[WorkerId]) -> bool {
        let mut workers = workers.iter().filter_map(|worker| self.workers.get(*worker));
        workers.any(|worker| self.lacks_program(job, worker))
    }

    /// Whether a worker is there, though perhaps busy, that may have a job and has not said that it
    /// lacks room for its inputs, or a directory; `full` is saying so.
    pub(super) fn may_find_room_elsewhere(&self, job: &Job, full: Option<WorkerId>) -> bool {
        if job.child_of.is_some() {
            return false;
        }
        let datasets = self.known_datasets(job.datasets());
        let mut matching = Vec::new();
        self.workers.matching(job.submission.key.as_str(), &mut matching);
        let others = matching
            .iter()
            .filter(|worker| Some(**worker) != full && job.lacked_at(**worker).is_none());
        others.filter_map(|worker| self.workers.get(*worker)).any(|worker| {
            let is_here = worker.conn().is_some() && !worker.silent;
            is_here && self.may_have(job, worker) && self.may_have_datasets(worker, &datasets)
        })
    }

    /// Decides for a job, given the matching workers with free slots.
    pub(super) fn choose(&self, id: JobId, matching: &[WorkerId]) -> Choice {
        let Some(job) = self.state.job(id) else {
            broken!("job {id} is to be given out, and is not known");
            return Choice::Pass;
        };
        let datasets = self.known_datasets(job.datasets());
        // A worker without room on its disk, or without a work directory, is asked again only if
        // there is no other worker, busy or not.
        let avoids_full = job.lacking_attempts() > 0 && self.may_find_room_elsewhere(job, None);
        let all_with_room = matching
            .iter()
            .filter_map(|worker| self.workers.get(*worker))
            .filter(|worker| worker.has_room() && self.may_have(job, worker));
        let with_room = all_with_room
            .clone()
            .filter(|worker| !(avoids_full && job.lacked_at(worker.id).is_some()));
        let candidates =
            with_room.clone().filter(|worker| self.may_have_datasets(worker, &datasets));
        // Another worker than the last one, or else the same (RT04).
        let last = job.history.last().map(|note| note.worker);
        // A lost classic worker may still run the job, and all classic workers of a host run a job
        // in one directory. A heft worker uses a directory of its own for each attempt, so it comes
        // first.
        let has_own_directory = |worker: &Worker| worker.class == WorkerClass::Leasing;
        let avoids_classic = job.may_still_run()
            && candidates
                .clone()
                .any(|worker| Some(worker.id) != last && has_own_directory(worker));
        let candidates = candidates.filter(|worker| !avoids_classic || has_own_directory(worker));
        let others = candidates.clone().filter(|worker| Some(worker.id) != last);
        let policy = self.config.policy;
        if policy == Policy::Locality && !datasets.is_empty() {
            let nearest =
                self.nearest(others, &datasets).or_else(|| self.nearest(candidates, &datasets));
            if let Some((worker, cost)) = nearest {
                return self.give_or_wait(job, &datasets, worker, cost, last);
            }
        } else {
            let stuck_to = self.assigning.sticky.get(&job.submission.client, &job.submission.key);
            let chosen =
                policy.choose(others, stuck_to).or_else(|| policy.choose(candidates, stuck_to));
            if let Some(worker) = chosen {
                return Choice::Give(worker.id);
            }
        }
        match () {
            () if with_room.count() > 0 => Choice::Strand,
            () if all_with_room.count() > 0 => Choice::Elsewhere,
            () if self.any_lacks_program(job, matching) => Choice::Elsewhere,
            () => Choice::Pass,
        }
    }

    /// The worker that must move the fewest bytes; of these the one with the fewest jobs, then with
    /// the most credit.
    fn nearest<'a>(
        &self,
        workers: impl Iterator<Item = &'a Worker>,
        datasets: &[Arc<Dataset>],
    ) -> Option<(WorkerId, Cost)> {
        let costs = workers.map(|worker| (worker, self.cost(worker.id, datasets)));
        let nearest = costs.min_by_key(|(worker, cost)| {
            (*cost, worker.held.len(), Reverse(worker.credit), worker.last_assigned)
        });
        nearest.map(|(worker, cost)| (worker.id, cost))
    }

    fn give_or_wait(
        &self,
        job: &Job,
        datasets: &[Arc<Dataset>],
        nearest: WorkerId,
        cost: Cost,
        last: Option<WorkerId>,
    ) -> Choice {
        let delay = self.locality.delays.get(job.id());
        let since = delay.map_or(self.now, |delay| delay.since);
        let is_its_turn = delay.is_some_and(|delay| matches!(delay.stage, Stage::Late { .. }))
            || since.plus(LOCALITY_BYPASS_MAX) <= self.now;
        if cost.missing == 0 || is_its_turn {
            return Choice::Give(nearest);
        }
        let Some(on) = self.nearer_and_busy(job, datasets, cost, last) else {
            return Choice::Give(nearest);
        };
        let until = since.plus(self.wait_for(nearest, cost));
        if until > self.now { Choice::Wait { on, until } } else { Choice::Late }
    }

    /// The nearest of the workers that are there without room and would have to move less than
    /// this.
    fn nearer_and_busy(
        &self,
        job: &Job,
        datasets: &[Arc<Dataset>],
        than: Cost,
        last: Option<WorkerId>,
    ) -> Option<WorkerId> {
        let mut near = BTreeSet::new();
        datasets.iter().for_each(|dataset| self.locality.holdings.near(&dataset.cache, &mut near));
        // A worker without jobs may still have no free slot: it holds back credit while its machine
        // is busy (CR10).
        let is_busy =
            |worker: &&Worker| !worker.has_room() && worker.conn().is_some() && !worker.silent;
        let workers = near
            .iter()
            .filter_map(|worker| self.workers.get(*worker))
            .filter(is_busy)
            .filter(|worker| Some(worker.id) != last && worker.wants(job.submission.key.as_str()))
            .filter(|worker| {
                self.may_have(job, worker) && self.may_have_datasets(worker, datasets)
            });
        self.nearest(workers, datasets).filter(|(_, cost)| *cost < than).map(|(worker, _)| worker)
    }
}

/// Processor use, and how much of its room is taken, both in thousandths.
fn load_permille(worker: &Worker) -> u64 {
    let held = worker.held.len() as u64;
    let room = held.saturating_add(worker.credit.into()).max(1);
    u64::from(worker.cpu_permille).saturating_add(held.saturating_mul(1000) / room)
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A name that is not a policy's.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "\"{0}\" is not a policy: use locality, least-load, credit-first, round-robin, sticky or load-score"
)]
pub struct PolicyError(String);

impl FromStr for Policy {
    type Err = PolicyError;

    fn from_str(name: &str) -> Result<Self, PolicyError> {
        Policy::ALL
            .into_iter()
            .find(|policy| policy.name() == name)
            .ok_or_else(|| PolicyError(name.to_owned()))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::core::subject::routing_key;

    #[test]
    fn what_clients_stick_to_is_forgotten_by_number_and_by_bytes() {
        let worker = WorkerId(uuid::Uuid::from_u128(1));
        let key = |name: &str| routing_key(&format!("job.submit.{name}"), None).unwrap();
        let mut stuck = StickyAssignments::default();
        for number in 0..STICKY_MAX {
            stuck.insert(number.to_string().as_str().into(), key("x"), worker);
        }
        assert_eq!(stuck.get(&"0".into(), &key("x")), Some(worker));
        let another = WorkerId(uuid::Uuid::from_u128(2));
        stuck.insert("0".into(), key("x"), another);
        assert_eq!(
            (stuck.get(&"0".into(), &key("x")), stuck.get(&"1".into(), &key("x"))),
            (Some(another), Some(worker)),
            "a pair that is known makes no other go"
        );
        stuck.insert("0".into(), key("y"), worker);
        assert_eq!((stuck.get(&"0".into(), &key("x")), stuck.of.len()), (None, 1));
        for number in 0..1000 {
            stuck.insert("c".into(), key(&format!("{number}{}", "z".repeat(60_000))), worker);
            assert!(stuck.bytes <= STICKY_BYTES_MAX && !stuck.of.is_empty());
        }
    }
}
