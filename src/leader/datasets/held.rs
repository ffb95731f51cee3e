//! Owns the record of which workers hold which datasets. The scheduler learns of every change from
//! here and from nowhere else.

use std::collections::{BTreeMap, HashMap};

use chunking::message::{DatasetState, Have, Reason};
use tracing::{debug, info};
use uuid::Uuid;

use super::classic_workers::ClassicWorker;
use super::distribution::{Push, WantedVersion};
use super::{Datasets, Facts, Step};
use crate::core::Event;
use crate::core::ids::{CacheId, ConnId, WorkerId};

/// Datasets that a worker may have; what it says beyond is not noted.
const DATASETS_AT_WORKER_MAX: usize = 65_536;

/// The same of all workers together, with what they could not take.
const DATASETS_AT_WORKERS_MAX: usize = 524_288;

/// Bytes of a reason that is kept.
const REASON_BYTES_MAX: usize = 256;

/// A worker, as far as datasets go.
#[derive(Debug, Default)]
pub(super) struct AtWorker {
    pub(super) conn: Option<ConnId>,
    /// Whether it has said what it has.
    pub(super) told: bool,
    pub(super) budget: u64,
    pub(super) used: u64,
    /// What it said that it has, and what was brought there.
    held: BTreeMap<CacheId, [u8; 32]>,
    /// Datasets that it could not take, or does not have any more: they are not pushed again
    /// unasked.
    pub(super) not_held: HashMap<CacheId, ([u8; 32], NotHeld)>,
    pub(super) push: Option<Push>,
    /// Datasets that it is asked to hold next: those that jobs wait for first.
    pub(super) queue: Vec<CacheId>,
    /// If it is a classic worker.
    pub(super) classic: Option<ClassicWorker>,
}

/// Why a worker does not hold a dataset that it was to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NotHeld {
    Failed(String),
    Gone(String),
}

/// A peer's text, as it is kept.
pub(super) fn reason(text: &str) -> String {
    let mut text = text.to_owned();
    text.truncate(text.floor_char_boundary(REASON_BYTES_MAX));
    text
}

impl AtWorker {
    /// Datasets of which something is noted.
    fn noted(&self) -> usize {
        self.held.len() + self.not_held.len()
    }

    /// A classic worker, of which nothing is known.
    pub(super) fn of_classic(conn: ConnId, classic: ClassicWorker) -> Self {
        AtWorker { conn: Some(conn), told: true, classic: Some(classic), ..AtWorker::default() }
    }

    pub(super) fn holds(&self, wanted: &WantedVersion) -> bool {
        self.held_of(&wanted.cache) == Some(wanted.digest)
    }

    /// Which content of a dataset it has.
    pub(super) fn held_of(&self, cache: &CacheId) -> Option<[u8; 32]> {
        self.held.get(cache).copied()
    }

    /// Whether it takes something of what it gets later.
    pub(super) fn has_put_off(&self) -> bool {
        self.push.as_ref().is_some_and(Push::is_put_off)
    }

    /// The push of a dataset, whatever its content.
    pub(super) fn push_of(&self, cache: &CacheId) -> Option<&Push> {
        self.push.as_ref().filter(|push| push.wanted.cache == *cache)
    }

    /// Whether this version of a dataset is on its way to it.
    pub(super) fn is_pushed(&self, version: Uuid) -> bool {
        self.push.as_ref().is_some_and(|push| push.wanted.version == version)
    }

    /// What jobs find of a dataset there: a content, and how many of its bytes are still to come.
    /// The content that counts goes before one that comes, and that before one that counts no more.
    fn holding(&self, cache: &CacheId, counts: Option<[u8; 32]>) -> Option<([u8; 32], u64)> {
        self.conn?;
        let held = self.held_of(cache);
        let coming = self.push_of(cache).filter(|_| held.is_none() || held != counts);
        coming.map(|push| (push.wanted.digest, push.missing)).or(held.map(|digest| (digest, 0)))
    }

    /// Whether a dataset waits for its turn.
    pub(super) fn is_queued(&self, cache: &CacheId) -> bool {
        self.queue.contains(cache)
    }
}

impl Datasets {
    /// The first of these datasets that a worker said it cannot hold, in words, with why and what
    /// helps.
    pub(in crate::leader) fn unheld(
        &self,
        facts: &dyn Facts,
        worker: WorkerId,
        caches: &[CacheId],
    ) -> Option<String> {
        let at = self.workers.get(&worker)?;
        let why = |cache: &CacheId| match at.not_held.get(cache) {
            Some((digest, NotHeld::Failed(why))) => {
                let is_same = facts.dataset(cache).is_some_and(|dataset| dataset.digest == *digest);
                is_same.then(|| format!("cannot hold dataset {cache}: {why}"))
            }
            Some((_, NotHeld::Gone(_))) | None => None,
        };
        caches.iter().find_map(why)
    }
}

impl Step<'_> {
    /// Tells what jobs find of a dataset at a worker.
    pub(super) fn tell_holding(&mut self, worker: WorkerId, cache: &CacheId) {
        let counts = self.facts.dataset(cache).map(|dataset| dataset.digest);
        let holding = self.datasets.workers.get(&worker).and_then(|at| at.holding(cache, counts));
        let cache = cache.clone();
        self.tell(match holding {
            Some((digest, missing)) => Event::Holding { worker, cache, digest, missing },
            None => Event::NotHolding { worker, cache },
        });
    }

    /// A dataset that was on its way to a worker does not come, which jobs may wait for. What the
    /// worker had of it before is still there.
    pub(super) fn tell_not_coming(&mut self, worker: WorkerId, cache: &CacheId) {
        self.tell(Event::NotHolding { worker, cache: cache.clone() });
        if self.datasets.workers.get(&worker).is_some_and(|at| at.held_of(cache).is_some()) {
            self.tell_holding(worker, cache);
        }
    }

    /// A worker has a dataset from now on, or not any more.
    pub(super) fn set_held(&mut self, worker: WorkerId, cache: &CacheId, digest: Option<[u8; 32]>) {
        if let Some(at) = self.datasets.workers.get_mut(&worker) {
            match digest {
                Some(digest) => {
                    at.not_held.remove(cache);
                    at.held.insert(cache.clone(), digest);
                }
                None => drop(at.held.remove(cache)),
            }
        }
        self.tell_holding(worker, cache);
    }

    /// A worker says what it has.
    pub(super) fn worker_has(&mut self, conn: ConnId, worker: WorkerId, have: &Have) {
        let at = self.datasets.workers.entry(worker).or_default();
        if at.conn != Some(conn) {
            // A new connection: what was on its way on the last one begins anew.
            *at = AtWorker {
                conn: Some(conn),
                not_held: std::mem::take(&mut at.not_held),
                ..AtWorker::default()
            };
        }
        (at.budget, at.used, at.told) = (have.budget, have.used, true);
        if have.anew != 0 {
            at.held.clear();
            let coming = at.push.as_ref().map(|push| push.wanted.cache.clone());
            self.tell(Event::HoldsNothing { worker });
            coming.into_iter().for_each(|cache| self.tell_holding(worker, &cache));
        }
        let noted: usize = self.datasets.workers.values().map(AtWorker::noted).sum();
        let mut room = DATASETS_AT_WORKERS_MAX.saturating_sub(noted);
        for dataset in have.datasets.as_slice() {
            let Ok(cache) = CacheId::parse(dataset.cache_id.as_str()) else {
                debug!(%worker, cache = dataset.cache_id.as_str(), "a worker names a dataset that cannot be one");
                continue;
            };
            // One text for all workers that have it.
            let known = self.facts.dataset(&cache).map(|dataset| dataset.cache.clone());
            let cache = known.unwrap_or(cache);
            match dataset.state {
                DatasetState::Held => {
                    self.worker_holds(worker, cache, dataset.digest.bytes, &mut room)
                }
                DatasetState::Gone => {
                    // Zeros stand for a dataset that it was told to drop.
                    let given_up = Some(dataset.digest.bytes).filter(|digest| *digest != [0; 32]);
                    self.worker_lost(worker, cache, dataset.text.as_str(), given_up, &mut room);
                }
                DatasetState::Lost => {
                    self.worker_lost(worker, cache, dataset.text.as_str(), None, &mut room)
                }
                DatasetState::Wanted => self.worker_wants(worker, conn, cache),
            }
        }
        self.agent_told(worker);
        self.reconcile(worker);
    }

    fn worker_holds(
        &mut self,
        worker: WorkerId,
        cache: CacheId,
        digest: [u8; 32],
        room: &mut usize,
    ) {
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
        if !at.held.contains_key(&cache) {
            if at.held.len() >= DATASETS_AT_WORKER_MAX || *room == 0 {
                return;
            }
            *room -= 1;
        }
        self.set_held(worker, &cache, Some(digest));
        // What was removed while it was away is removed there, too.
        let is_removed = self.facts.is_removed(&cache);
        match self.facts.dataset(&cache) {
            Some(dataset) if dataset.digest == digest => self.found_at(worker, &dataset),
            Some(dataset) => self.release_old(worker, &dataset),
            None if is_removed || cache.is_the_leaders() => {
                self.release(worker, &cache, Uuid::nil(), Reason::NONE, "the dataset was removed");
            }
            None => {}
        }
    }

    /// A worker does not hold a dataset any more. What it gave up, now or before this leader knew
    /// of it, it does not get back unasked.
    fn worker_lost(
        &mut self,
        worker: WorkerId,
        cache: CacheId,
        text: &str,
        given_up: Option<[u8; 32]>,
        room: &mut usize,
    ) {
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
        if at.held.contains_key(&cache) {
            info!(%worker, %cache, "a worker does not hold a dataset any more: {text}");
        }
        let is_noted = at.not_held.contains_key(&cache);
        let has_room = is_noted || at.not_held.len() < DATASETS_AT_WORKER_MAX && *room > 0;
        if let Some(digest) = given_up.filter(|_| has_room) {
            *room -= usize::from(!is_noted);
            at.not_held.insert(cache.clone(), (digest, NotHeld::Gone(reason(text))));
        }
        self.set_held(worker, &cache, None);
    }

    /// A worker's connection ended.
    pub(super) fn worker_left(&mut self, conn: ConnId) {
        let workers = self.datasets.workers.iter_mut();
        if let Some((worker, at)) =
            workers.map(|(id, at)| (*id, at)).find(|(_, at)| at.conn == Some(conn))
        {
            (at.conn, at.told, at.push) = (None, false, None);
            at.queue.clear();
            self.datasets.lacks.remove(&worker);
            self.tell(Event::HoldsNothing { worker });
            self.inspections_without(worker);
        }
        self.forget_gone_workers();
        self.watch();
    }
}
