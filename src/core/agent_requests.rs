//! Decides which datasets an agent is asked to hold. A classic worker cannot be sent datasets, but
//! the agent on its host can (C01). When a classic worker has free slots and waiting jobs lack only
//! their datasets there, its agent is asked for those datasets, whatever workers they were put for.
//!
//! An agent is asked once per dataset. It is asked again when a new job names the dataset, when
//! such a job went to the worker, or when the agent lost the dataset before a job used it; the last
//! only a limited number of times, because datasets may evict each other. After a refusal, the
//! agent is not asked again until another job arrives.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::action::Action;
use super::broker::Broker;
use super::dataset::Dataset;
use super::ids::{CacheId, JobId, WorkerId};
use super::job::Job;
use super::locality::{At, BROUGHT_BACK_MAX, Delays};
use super::worker::Worker;

/// How often an agent is asked for a dataset that it gets and loses before a job could use it.
const ASKS_MAX: u8 = 4;

/// Jobs whose clients are told when an agent cannot hold what they name.
const TOLD_MAX: usize = 1000;

/// What agents were asked for.
#[derive(Debug, Default)]
pub(super) struct Asks {
    of: BTreeMap<CacheId, BTreeMap<WorkerId, Ask>>,
    /// Workers that got room, or whose agents hold something else.
    woken: BTreeSet<WorkerId>,
    /// Whether jobs were set aside for want of a worker that has their datasets.
    stranded: bool,
}

#[derive(Clone, Copy, Debug)]
struct Ask {
    digest: [u8; 32],
    times: u8,
    /// Whether nothing has come of it yet.
    open: bool,
}

impl Ask {
    fn is_in_vain(&self) -> bool {
        !self.open && self.times >= ASKS_MAX
    }
}

impl Asks {
    pub(super) fn len(&self) -> usize {
        self.of.values().map(BTreeMap::len).sum()
    }

    /// Workers that may be right for jobs that wait.
    pub(super) fn wake(&mut self, workers: &BTreeSet<WorkerId>) {
        self.woken.extend(workers);
    }

    /// Other agents may be right for jobs that wait.
    pub(super) fn wake_all(&mut self) {
        self.stranded = true;
    }

    /// A job was set aside that no worker with room may have. One that was not before may ask
    /// again.
    pub(super) fn stranded(&mut self, job: &Job, is_new: bool) {
        self.stranded = true;
        if is_new {
            job.datasets().iter().for_each(|cache| self.retain(cache, |_, ask| ask.open));
        }
    }

    fn retain(&mut self, cache: &CacheId, mut keep: impl FnMut(WorkerId, &Ask) -> bool) {
        if let Some(asks) = self.of.get_mut(cache) {
            asks.retain(|agent, ask| keep(*agent, ask));
            if asks.is_empty() {
                self.of.remove(cache);
            }
        }
    }

    /// An agent was replaced, or is gone.
    pub(super) fn forget(&mut self, agent: WorkerId) {
        self.of.retain(|_, asks| {
            asks.remove(&agent);
            !asks.is_empty()
        });
    }

    /// A job does not wait any more: requests for datasets that no other waiting job names are
    /// dropped.
    pub(super) fn forget_unnamed(&mut self, delays: &Delays, job: &Job) {
        for cache in job.datasets().iter().filter(|_| !self.of.is_empty()).collect::<Vec<_>>() {
            if delays.naming(cache).next().is_none() {
                self.of.remove(cache);
            }
        }
    }

    /// A job that names these went to a worker of this agent: they were of use.
    pub(super) fn used(&mut self, agent: WorkerId, datasets: &[CacheId]) {
        datasets.iter().for_each(|cache| self.retain(cache, |of, _| of != agent));
    }

    /// An agent holds a dataset, or gets it.
    pub(super) fn holds(&mut self, agent: WorkerId, cache: &CacheId) {
        if let Some(ask) = self.of.get_mut(cache).and_then(|asks| asks.get_mut(&agent)) {
            ask.open = false;
        }
    }

    /// An agent could not take a dataset; says whether it had been asked to.
    fn failed(&mut self, agent: WorkerId, cache: &CacheId) -> bool {
        let ask = self.of.get_mut(cache).and_then(|asks| asks.get_mut(&agent));
        ask.map(|ask| (ask.open, ask.times) = (false, ASKS_MAX)).is_some()
    }

    fn get(&self, agent: WorkerId, dataset: &Dataset) -> Option<&Ask> {
        self.of.get(&dataset.cache)?.get(&agent).filter(|ask| ask.digest == dataset.digest)
    }

    fn ask(&mut self, agent: WorkerId, dataset: &Dataset) {
        let times = self.get(agent, dataset).map_or(0, |ask| ask.times).saturating_add(1);
        let ask = Ask { digest: dataset.digest, times, open: true };
        self.of.entry(dataset.cache.clone()).or_default().insert(agent, ask);
    }
}

impl Broker {
    /// Asks agents for what jobs need that wait for their workers.
    pub(super) fn ask_agents(&mut self) {
        let woken = std::mem::take(&mut self.locality.asks.woken);
        let all = std::mem::take(&mut self.locality.asks.stranded);
        if !self.locality.delays.any_stranded() {
            return;
        }
        let pairs =
            self.locality.holdings.pairs().filter(|(worker, _)| all || woken.contains(worker));
        for (worker, agent) in pairs.collect::<Vec<_>>() {
            for dataset in self.datasets_to_ask(worker, agent) {
                // Two workers may have one agent.
                if self.locality.asks.get(agent, &dataset).is_some_and(|ask| ask.open) {
                    continue;
                }
                // One job's inputs are needed once.
                if self.is_under_way(&dataset) {
                    continue;
                }
                self.locality.asks.ask(agent, &dataset);
                self.actions.push_back(Action::AskAgent { agent, cache: dataset.cache.clone() });
            }
        }
    }

    /// Whether a dataset is one job's inputs, and an agent has it, gets it or was asked to hold it
    /// whose worker could run the job now.
    fn is_under_way(&self, dataset: &Dataset) -> bool {
        let Some(job) = self.state.staged_for(&dataset.cache).and_then(|id| self.state.job(id))
        else {
            return false;
        };
        let could = |worker: WorkerId| {
            let worker = self.workers.get(worker).filter(|worker| worker.has_room());
            worker.is_some_and(|worker| {
                worker.wants(job.submission.key.as_str()) && self.may_have(job, worker)
            })
        };
        let asks = self.locality.asks.of.get(&dataset.cache).into_iter().flatten();
        let asked = asks.filter(|(_, ask)| ask.open).map(|(agent, _)| *agent);
        let mut agents = asked.chain(self.locality.holdings.holders_of(&dataset.cache));
        agents.any(|agent| self.locality.holdings.served_by(agent).any(could))
    }

    /// What an agent is to be asked for, so that a worker which has room gets jobs: of each key and
    /// client as many as it has room for.
    fn datasets_to_ask(&self, worker: WorkerId, agent: WorkerId) -> Vec<Arc<Dataset>> {
        let may_be_served = |worker: &&Worker| worker.has_room() && !worker.datasets;
        let Some(worker) = self.workers.get(worker).filter(may_be_served) else {
            return Vec::new();
        };
        let room = usize::try_from(worker.credit).unwrap_or(usize::MAX).min(BROUGHT_BACK_MAX);
        let mut found: BTreeMap<CacheId, Arc<Dataset>> = BTreeMap::new();
        for kinds in self.locality.delays.stranded_kinds(worker) {
            let mut left = room;
            for (datasets, jobs) in kinds.into_values() {
                let may_have =
                    |id: &JobId| self.state.job(*id).is_some_and(|job| self.may_have(job, worker));
                let count =
                    jobs.iter().map(|(_, id)| id).filter(|id| may_have(id)).take(left).count();
                if let Some(lacking) =
                    self.lacking(worker.id, agent, datasets).filter(|_| count > 0)
                {
                    found.extend(
                        lacking.into_iter().map(|dataset| (dataset.cache.clone(), dataset)),
                    );
                    left = left.saturating_sub(count);
                }
                if left == 0 {
                    break;
                }
            }
        }
        found.into_values().collect()
    }

    /// What an agent would have to be asked for so that a worker has these; nothing if it was asked
    /// in vain.
    fn lacking(
        &self,
        worker: WorkerId,
        agent: WorkerId,
        datasets: &[CacheId],
    ) -> Option<Vec<Arc<Dataset>>> {
        let mut lacking = Vec::new();
        for dataset in datasets.iter().filter_map(|cache| self.state.dataset(cache)) {
            match self.at(worker, dataset) {
                At::Held | At::Coming { .. } => {}
                At::Expected | At::Missing => match self.locality.asks.get(agent, dataset) {
                    Some(ask) if ask.is_in_vain() => return None,
                    Some(ask) if ask.open => {}
                    Some(_) | None => lacking.push(dataset.clone()),
                },
            }
        }
        Some(lacking)
    }

    /// Whether an agent of one of these workers can hold what a job names, as far as is known.
    pub(super) fn any_agent_may_hold(&self, datasets: &[CacheId], workers: &[WorkerId]) -> bool {
        workers.iter().any(|worker| {
            let agent = self.locality.holdings.agent_of(*worker);
            agent.is_some_and(|agent| self.lacking(*worker, agent, datasets).is_some())
        })
    }

    /// A worker could not take a dataset. If it is an agent that was asked to, clients whose jobs
    /// wait for that may have to know.
    pub(super) fn could_not_hold(&mut self, worker: WorkerId, cache: &CacheId) {
        if self.locality.asks.failed(worker, cache) {
            self.agent_failed(cache);
            let jobs: Vec<JobId> = self.locality.delays.naming(cache).take(TOLD_MAX).collect();
            jobs.into_iter().for_each(|job| self.waits.look_at(job));
        }
    }
}
