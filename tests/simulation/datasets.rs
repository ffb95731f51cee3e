//! Datasets in the simulation: they are put, replaced and removed, workers get and lose them,
//! agents come and go, and all the while jobs name them. The leader's part in it is random: the
//! broker has to do with whatever it is told.

use std::sync::Arc;
use std::time::Duration;

use heft::core::Event;
use heft::core::dataset::Dataset;
use heft::core::event::WorkerClass;
use heft::core::explain::{Verdict, WaitsFor};
use heft::core::ids::{CacheId, JobId, Micros, WorkerId};
use heft::core::job::{Job, Phase};
use uuid::Uuid;

use super::{SECOND, Wake, World};

const CACHES: [&str; 4] = ["a", "b", "c", "d"];

impl World {
    pub(crate) fn some_cache(&mut self) -> CacheId {
        CacheId::parse(CACHES[self.random.below(4) as usize]).unwrap()
    }

    /// The datasets that a job names: two at most.
    pub(crate) fn some_caches(&mut self) -> Vec<CacheId> {
        let mut named: Vec<CacheId> =
            (0..=self.random.below(2)).map(|_| self.some_cache()).collect();
        named.sort_unstable();
        named.dedup();
        named
    }

    /// Something happens to a dataset, and again until the faults end.
    pub(crate) fn data_happens(&mut self) {
        if !self.faulty() {
            return;
        }
        let at = self.now + self.random.below(SECOND);
        self.at(at, Wake::Data);
        if self.random.chance(30) {
            self.check_explanations();
        }
        let event = self.data_event();
        self.tell(event);
    }

    fn data_event(&mut self) -> Event {
        let cache = self.some_cache();
        let worker = self.some_worker();
        let known = self.broker.state().dataset(&cache).cloned();
        match self.random.below(100) {
            0..5 => {
                let version = Uuid::from_u128(u128::from(self.random.next()));
                let dataset = Dataset {
                    cache,
                    version,
                    digest: [self.random.below(3) as u8; 32],
                    // From what is moved at once to what takes longer than anybody waits.
                    bytes: 1 << self.random.below(40),
                    files: 1,
                    target: "none".into(),
                    packs: Vec::new(),
                    at: Micros(self.now),
                };
                self.coverage.datasets += 1;
                Event::PutDataset { dataset: Arc::new(dataset) }
            }
            5..7 => Event::RemoveDataset { cache },
            7..70 => {
                let (digest, bytes) =
                    known.map_or(([0; 32], 1), |known| (known.digest, known.bytes));
                let missing = if self.random.chance(60) { 0 } else { self.random.below(bytes) };
                Event::Holding { worker, cache, digest, missing }
            }
            70..80 => Event::NotHolding { worker, cache },
            80..82 => Event::HoldsNothing { worker },
            82..92 => {
                let span = Duration::from_micros(self.random.below(10 * SECOND));
                Event::DatasetsMoved { worker, bytes: self.random.below(1 << 32), span }
            }
            _ => {
                let agents =
                    self.workers.iter().filter(|worker| worker.class == WorkerClass::Leasing);
                let agent = agents.map(|worker| worker.id).next();
                Event::AgentFor { worker, agent: agent.filter(|_| self.random.chance(80)) }
            }
        }
    }

    fn some_worker(&mut self) -> WorkerId {
        let number = self.random.below(self.workers.len() as u64);
        self.workers[number as usize].id
    }

    /// What is said of a job is what is so.
    fn check_explanations(&mut self) {
        let open: Vec<JobId> =
            self.clients.iter().flat_map(|client| client.open.keys()).copied().collect();
        for id in open {
            if self.broker.state().job(id).is_none() {
                continue;
            }
            let explanation = self.broker.explain(id).expect("a known job");
            let job = self.broker.state().job(id).unwrap();
            let has_it = |worker: WorkerId| {
                let seen = explanation.workers.iter().find(|seen| seen.id == worker);
                seen.is_none_or(|seen| seen.verdict == Verdict::HasIt)
            };
            match job.phase {
                Phase::Leased { worker, .. } => assert!(has_it(worker), "{explanation:?}"),
                Phase::Queued { .. } => {}
                Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => {
                    assert_eq!(explanation.waits, None);
                }
            }
            match explanation.waits {
                Some(WaitsFor::Data { .. }) => self.coverage.waits_for_data += 1,
                Some(WaitsFor::Nearer { .. }) => self.coverage.lets_nearer_go_first += 1,
                Some(WaitsFor::CapableWorker) => {
                    self.coverage.stranded += u64::from(names_datasets(job))
                }
                _ => {}
            }
        }
    }
}

fn names_datasets(job: &Job) -> bool {
    !job.datasets().is_empty()
}
