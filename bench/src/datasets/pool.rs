//! A leader and its workers, as `heft` runs them, for datasets that are put.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use heft::answers::ask::{self, Ask};

use crate::gate::{Gate, Passed};
use crate::process::{Actor, CACHE, EXE};
use crate::status;
use crate::variant::Variant;

/// How long workers may take to come to their leader, and how often it is asked.
const JOIN_MAX: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_millis(20);

/// The most that a worker takes: all processes share one machine, and a place that is offered later
/// because of the others would be what is measured.
const CPU_CAP: &str = "0.95";

/// How long a leader may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// What a pool is to be.
#[derive(Clone, Debug)]
pub(super) struct PoolPlan {
    pub(super) variant: Variant,
    pub(super) policy: Option<String>,
    pub(super) workers: u32,
    /// Jobs that a worker has at a time.
    pub(super) parallel: Option<u32>,
    /// Whether workers come through gates that count.
    pub(super) counted: bool,
    /// The last worker comes through a gate that lets so many bytes through in a second.
    pub(super) throttle: Option<u64>,
    /// What a worker's cache may hold.
    pub(super) budget: Option<u64>,
}

impl PoolPlan {
    pub(super) fn new(variant: Variant, workers: u32) -> PoolPlan {
        let (policy, parallel, counted, throttle, budget) = (None, None, false, None, None);
        PoolPlan { variant, policy, workers, parallel, counted, throttle, budget }
    }
}

/// The processes, in the order in which they end.
pub(super) struct Pool {
    workers: Vec<Actor>,
    leader: Actor,
    port: u16,
    gates: Vec<Gate>,
    dir: PathBuf,
}

impl Pool {
    /// Starts all of them, with their files beneath this directory, and waits until every worker
    /// has come to the leader.
    pub(super) fn start(plan: &PoolPlan, dir: &Path) -> anyhow::Result<Pool> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let policy = plan.policy.as_deref().map(|policy| ["--policy", policy]);
        let more: &[&str] = policy.as_ref().map_or(&[], |words| words);
        let (leader, port) = Actor::start_leader_with(plan.variant, &dir.join("leader"), more)?;
        let mut pool =
            Pool { workers: Vec::new(), leader, port, gates: Vec::new(), dir: dir.to_owned() };
        for number in 0..plan.workers {
            let rate = plan.throttle.filter(|_| number + 1 == plan.workers);
            let dialled = if plan.counted || rate.is_some() {
                let gate = Gate::open(port, rate)?;
                let dialled = gate.port();
                pool.gates.push(gate);
                dialled
            } else {
                port
            };
            let mut more = vec!["--name".to_owned(), format!("w-{number}")];
            more.extend(["--cpu-cap".to_owned(), CPU_CAP.to_owned()]);
            if let Some(parallel) = plan.parallel {
                more.extend(["--max-par".to_owned(), parallel.to_string()]);
            }
            if let Some(budget) = plan.budget {
                more.extend(["--cache-budget".to_owned(), budget.to_string()]);
            }
            pool.workers.push(Actor::start_worker(dialled, &pool.worker_dir(number), &more)?);
        }
        pool.await_workers(plan.workers)?;
        Ok(pool)
    }

    fn await_workers(&mut self, wanted: u32) -> anyhow::Result<()> {
        let until = Instant::now() + JOIN_MAX;
        loop {
            let workers = self.ask(&ask::Status {})?.workers;
            let here = workers.iter().filter(|worker| worker.connected).count();
            if here >= wanted as usize {
                return Ok(());
            }
            self.check_alive()?;
            if Instant::now() >= until {
                bail!(
                    "{here} of {wanted} workers have come to the leader in {} s",
                    JOIN_MAX.as_secs()
                );
            }
            std::thread::sleep(ASK_EVERY);
        }
    }

    pub(super) fn ask<Q: Ask>(&self, question: &Q) -> anyhow::Result<Q::Answer> {
        status::question(self.port, question, ANSWER_MAX)
            .with_context(|| format!("asking the leader for {}", Q::VERB))
    }

    /// Has the leader and the workers forget a dataset.
    pub(super) fn remove(&self, cache_id: &str) -> anyhow::Result<()> {
        self.ask(&ask::DatasetRm { cache_id: cache_id.to_owned() }).map(drop)
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn leader(&self) -> &Actor {
        &self.leader
    }

    pub(super) fn workers(&self) -> &[Actor] {
        &self.workers
    }

    /// What went through the gates of workers so far, if they have any.
    pub(super) fn passed(&self) -> Vec<Passed> {
        self.gates.iter().map(Gate::passed).collect()
    }

    fn worker_dir(&self, number: u32) -> PathBuf {
        self.dir.join(format!("w-{number}"))
    }

    /// Where each worker has a file of a dataset.
    pub(super) fn cached(&self, cache_id: &str, name: &str) -> Vec<PathBuf> {
        let of = |number| self.worker_dir(number).join(CACHE).join(cache_id).join(name);
        (0..).map(of).take(self.workers.len()).collect()
    }

    /// Where each worker looks for programs.
    pub(super) fn exe_dirs(&self) -> Vec<PathBuf> {
        (0..).map(|number| self.worker_dir(number).join(EXE)).take(self.workers.len()).collect()
    }

    /// An error if one of the processes has ended.
    pub(super) fn check_alive(&mut self) -> anyhow::Result<()> {
        std::iter::once(&mut self.leader).chain(&mut self.workers).try_for_each(Actor::check_alive)
    }
}
