//! Decides which agent serves which classic workers (C01, C02). An agent is a heft worker that
//! keeps a dataset cache and runs no jobs. It shares its cache directory with the classic workers
//! on its host and holds datasets for them. An agent and a worker belong together if they connect
//! from the same address, or if the agent names the worker.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tracing::info;

use super::classic_workers::ClassicWorker;
use super::held::AtWorker;
use super::{DatasetAction, Step, WorkerKind};
use crate::core::ids::{CacheId, ConnId, WorkerId};

/// The connected agents. The broker knows which workers each of them serves.
#[derive(Debug, Default)]
pub(super) struct Agents {
    all: BTreeMap<WorkerId, Agent>,
}

#[derive(Debug)]
struct Agent {
    conn: ConnId,
    host: Option<IpAddr>,
    /// The one worker that it serves, if it said.
    only: Option<WorkerId>,
    /// Datasets that jobs wait for, until it has said what it has.
    wanted: BTreeSet<CacheId>,
}

impl Agents {
    /// The agent that is to serve a worker: one that names it, else one of its host that names
    /// none.
    fn meant_for(&self, worker: WorkerId, host: Option<IpAddr>) -> Option<WorkerId> {
        let named = self.all.iter().find(|(_, agent)| agent.only == Some(worker));
        let beside =
            |agent: &Agent| agent.only.is_none() && agent.host.is_some() && agent.host == host;
        named.or_else(|| self.all.iter().find(|(_, agent)| beside(agent))).map(|(agent, _)| *agent)
    }
}

impl Step<'_> {
    /// A worker said hello. On another connection it is another.
    pub(super) fn worker_joined(
        &mut self,
        conn: ConnId,
        worker: WorkerId,
        host: Option<IpAddr>,
        kind: WorkerKind,
    ) {
        self.datasets.agents.all.remove(&worker);
        match kind {
            WorkerKind::Ours => {}
            WorkerKind::Agent { only } => {
                let agent = Agent { conn, host, only, wanted: BTreeSet::new() };
                self.datasets.agents.all.insert(worker, agent);
            }
            WorkerKind::Classic => self.classic_joined(conn, worker, host),
        }
        self.pair_up(Some(worker));
    }

    /// A connection ended.
    pub(super) fn agent_left(&mut self, conn: ConnId) {
        let before = self.datasets.agents.all.len();
        self.datasets.agents.all.retain(|_, agent| agent.conn != conn);
        self.pair_up(None);
        if self.datasets.agents.all.len() < before {
            // The workers that it served. The broker has already forgotten the pairs.
            let workers = self.datasets.workers.iter().filter(|(_, at)| at.classic.is_some());
            let alone = workers.map(|(worker, _)| *worker);
            let alone: Vec<WorkerId> =
                alone.filter(|worker| self.facts.agent_of(*worker).is_none()).collect();
            alone.into_iter().for_each(|worker| self.reconcile(worker));
        }
    }

    /// Jobs wait for a worker of this agent that name a dataset: the agent is asked to hold it
    /// next, whatever its target is, and even if the agent refused it before.
    pub(super) fn ask_agent(&mut self, agent: WorkerId, cache: CacheId) {
        let Some(dataset) = self.facts.dataset(&cache) else { return };
        let at = self.datasets.workers.get_mut(&agent).filter(|at| at.told && at.conn.is_some());
        let Some(at) = at else {
            if let Some(agent) = self.datasets.agents.all.get_mut(&agent) {
                agent.wanted.insert(cache);
            }
            return;
        };
        if at.is_pushed(dataset.version) || at.held_of(&cache) == Some(dataset.digest) {
            return;
        }
        info!(%agent, %cache, "jobs of a classic worker need a dataset: its agent is asked to hold it");
        at.not_held.remove(&cache);
        at.queue.retain(|queued| *queued != cache);
        at.queue.insert(0, cache);
        self.push_next(agent);
    }

    /// An agent has said what it has: what it was wanted for meanwhile it is asked for now.
    pub(super) fn agent_told(&mut self, agent: WorkerId) {
        let wanted =
            self.datasets.agents.all.get_mut(&agent).map(|agent| std::mem::take(&mut agent.wanted));
        wanted.into_iter().flatten().for_each(|cache| self.ask_agent(agent, cache));
    }

    /// Pairs classic workers with agents anew. One that has just joined is paired as if it never
    /// was.
    fn pair_up(&mut self, joined: Option<WorkerId>) {
        let before: BTreeMap<WorkerId, WorkerId> = self.facts.pairs().into_iter().collect();
        let agents = &self.datasets.agents;
        if agents.all.is_empty() && before.is_empty() {
            return;
        }
        let host = |at: &AtWorker| {
            at.classic.as_ref().filter(|_| at.conn.is_some()).map(ClassicWorker::host)
        };
        let workers = self.datasets.workers.iter();
        let pairs: BTreeMap<WorkerId, WorkerId> = workers
            .filter_map(|(worker, at)| Some((*worker, agents.meant_for(*worker, host(at)?)?)))
            .collect();
        for worker in before.keys().filter(|worker| !pairs.contains_key(worker)) {
            self.act(DatasetAction::Pair { worker: *worker, agent: None });
        }
        let is_new = |worker: &WorkerId, agent: &WorkerId| {
            before.get(worker) != Some(agent) || [Some(*worker), Some(*agent)].contains(&joined)
        };
        for (worker, agent) in pairs.into_iter().filter(|(worker, agent)| is_new(worker, agent)) {
            self.act(DatasetAction::Pair { worker, agent: Some(agent) });
        }
    }

    /// A classic worker has another agent, or none any more.
    pub(super) fn agent_changed(&mut self, worker: WorkerId, agent: Option<WorkerId>) {
        match agent {
            Some(agent) => {
                info!(%worker, %agent, "an agent serves a classic worker");
                // How a job's CacheId is to be written for it depends on that.
                self.ask_classic(worker);
                self.reconcile(agent);
            }
            // What an agent does not hold for it any more it may get itself.
            None => self.reconcile(worker),
        }
    }
}
