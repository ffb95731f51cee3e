//! Agents: heft workers that keep a cache and run nothing (C01, C02). One shares its cache directory with the stock workers on its host
//! and holds for them what they are to hold. Which those are shows the address that both connect from, or the agent says it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tracing::info;

use super::held::AtWorker;
use crate::core::Event;
use crate::core::ids::{CacheId, ConnId, WorkerId};
use crate::leader::Leader;

/// The agents that are connected, and whom they serve.
#[derive(Debug, Default)]
pub(super) struct Agents {
    all: BTreeMap<WorkerId, Agent>,
    /// Stock workers with their agents.
    pairs: BTreeMap<WorkerId, WorkerId>,
}

#[derive(Debug)]
struct Agent {
    conn: ConnId,
    host: Option<IpAddr>,
    /// The one worker that it serves, if it said.
    only: Option<WorkerId>,
    /// Sets that jobs wait for, until it has said what it has.
    wanted: BTreeSet<CacheId>,
}

impl Agents {
    /// The agent of a stock worker.
    pub(super) fn of(&self, worker: WorkerId) -> Option<WorkerId> {
        self.pairs.get(&worker).copied()
    }

    /// The stock workers that an agent serves.
    pub(super) fn served_by(&self, agent: WorkerId) -> impl Iterator<Item = WorkerId> {
        self.pairs.iter().filter(move |(_, of)| **of == agent).map(|(worker, _)| *worker)
    }

    /// The agent that is to serve a worker: one that names it, else one of its host that names none.
    fn meant_for(&self, worker: WorkerId, host: Option<IpAddr>) -> Option<WorkerId> {
        let named = self.all.iter().find(|(_, agent)| agent.only == Some(worker));
        let beside = |agent: &Agent| agent.only.is_none() && agent.host.is_some() && agent.host == host;
        named.or_else(|| self.all.iter().find(|(_, agent)| beside(agent))).map(|(agent, _)| *agent)
    }
}

impl Leader {
    /// A worker said hello.
    pub(in crate::leader) fn worker_joined(&mut self, conn: ConnId) {
        let Some(session) = self.sessions.get(&conn) else { return };
        // One whose hello was refused changes nothing for the worker whose id it has.
        let Some(worker) = session.worker().filter(|worker| self.broker.is_at(*worker, conn)) else { return };
        let (is_stock, agent) = (session.takes_cache_puts(), session.agent());
        // On another connection it is another: the scheduler has forgotten whom it was paired with.
        self.datasets.agents.all.remove(&worker);
        self.datasets.agents.pairs.retain(|stock, agent| *stock != worker && *agent != worker);
        if is_stock {
            self.stock_joined(conn, worker);
        }
        if let Some(agent) = agent {
            let host = self.hosts.get(&conn).copied();
            self.datasets
                .agents
                .all
                .insert(worker, Agent { conn, host, only: agent.only, wanted: BTreeSet::new() });
        }
        self.pair_up();
    }

    /// A connection ended.
    pub(super) fn agent_left(&mut self, conn: ConnId) {
        self.datasets.agents.all.retain(|_, agent| agent.conn != conn);
        self.pair_up();
    }

    /// Jobs wait for a worker of this agent that name a set: it is asked to hold that next, whoever the set was put for and
    /// whatever was before.
    pub(in crate::leader) fn ask_agent(&mut self, agent: WorkerId, cache: CacheId) {
        let Some(dataset) = self.broker.state().dataset(&cache).cloned() else { return };
        let at = self.datasets.workers.get_mut(&agent).filter(|at| at.told && at.conn.is_some());
        let Some(at) = at else {
            if let Some(agent) = self.datasets.agents.all.get_mut(&agent) {
                agent.wanted.insert(cache);
            }
            return;
        };
        let is_pushed = at.push.as_ref().is_some_and(|push| push.wish.generation == dataset.generation);
        if is_pushed || at.held.get(&cache) == Some(&dataset.digest) {
            return;
        }
        info!(%agent, %cache, "jobs of a stock worker need a dataset: its agent is asked to hold it");
        at.not_held.remove(&cache);
        at.queue.retain(|queued| *queued != cache);
        at.queue.insert(0, cache);
        self.push_next(agent);
    }

    /// An agent has said what it has: what it was wanted for meanwhile it is asked for now.
    pub(super) fn agent_told(&mut self, agent: WorkerId) {
        let wanted = self.datasets.agents.all.get_mut(&agent).map(|agent| std::mem::take(&mut agent.wanted));
        wanted.into_iter().flatten().for_each(|cache| self.ask_agent(agent, cache));
    }

    /// Whether an agent serves a stock worker.
    pub(in crate::leader) fn has_agent(&self, worker: WorkerId) -> bool {
        self.datasets.agents.of(worker).is_some()
    }

    /// Pairs stock workers with agents anew, and tells the scheduler what changed.
    fn pair_up(&mut self) {
        let agents = &self.datasets.agents;
        if agents.all.is_empty() && agents.pairs.is_empty() {
            return;
        }
        let host = |at: &AtWorker| self.hosts.get(&at.conn?).copied();
        let stock = self.datasets.workers.iter().filter(|(_, at)| at.stock.is_some() && at.conn.is_some());
        let pairs: BTreeMap<WorkerId, WorkerId> =
            stock.filter_map(|(worker, at)| Some((*worker, agents.meant_for(*worker, host(at))?))).collect();
        let before = std::mem::replace(&mut self.datasets.agents.pairs, pairs.clone());
        for worker in before.keys().filter(|worker| !pairs.contains_key(worker)) {
            self.broker.handle(self.now, Event::AgentFor { worker: *worker, agent: None });
        }
        for (worker, agent) in pairs.iter().filter(|(worker, agent)| before.get(worker) != Some(agent)) {
            info!(%worker, %agent, "an agent serves a stock worker");
            self.broker.handle(self.now, Event::AgentFor { worker: *worker, agent: Some(*agent) });
            // How a job's CacheId is to be written for it depends on that.
            self.ask_stock(*worker);
            self.reconcile(*agent);
        }
        // What an agent does not hold for them any more they may get themselves.
        for worker in before.into_keys().filter(|worker| !pairs.contains_key(worker)) {
            self.reconcile(worker);
        }
    }
}
