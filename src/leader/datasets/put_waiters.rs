//! Clients that put a dataset and wait for workers to hold it. Each is told when the dataset is
//! stored, what each worker answers, and when the wait is over.
//!
//! `put` calls it when a dataset is stored, `distribution` and `classic_workers` call it for each
//! worker's answer, and the timer calls it for workers that have left. Answers that arrive before
//! the dataset is stored are kept until then. It never chooses the workers for a dataset and moves
//! no bytes.

use std::collections::BTreeMap;
use std::sync::Arc;

use chunking::message::{Spread, SpreadStage};
use uuid::Uuid;

use super::putting::{Origin, Putting};
use super::{DatasetAction, Says, Step};
use crate::core::dataset::{Dataset, TARGET_NONE};
use crate::core::ids::WorkerId;
use crate::model::{CachePutResult, CacheStatus};

/// How a put ended at a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Ok,
    Skipped,
    Failed,
}

/// The workers that a put waits for.
#[derive(Debug, Default)]
pub(super) struct Awaited {
    /// Workers that are to have it, and how it ended there.
    targets: BTreeMap<WorkerId, Option<Ended>>,
    /// What workers answered before it was kept.
    early: BTreeMap<WorkerId, CachePutResult>,
}

impl Putting {
    /// Workers that are to have it and have not answered.
    pub(super) fn missing(&self) -> impl Iterator<Item = WorkerId> {
        self.awaited.targets.iter().filter(|(_, ended)| ended.is_none()).map(|(worker, _)| *worker)
    }

    /// Whether any worker is to have it.
    pub(super) fn has_targets(&self) -> bool {
        !self.awaited.targets.is_empty()
    }

    fn spread(&self, stage: SpreadStage, text: String) -> Spread {
        let count = |ended: Option<Ended>| {
            u32::try_from(self.awaited.targets.values().filter(|found| **found == ended).count())
                .unwrap_or(u32::MAX)
        };
        Spread {
            stage,
            targets: u32::try_from(self.awaited.targets.len()).unwrap_or(u32::MAX),
            ok: count(Some(Ended::Ok)),
            skipped: count(Some(Ended::Skipped)),
            failed: count(Some(Ended::Failed)),
            missing: count(None),
            received: self.received,
            moved: self.moved,
            text: text.into(),
        }
    }
}

impl Step<'_> {
    /// The client hears that its dataset is kept, and by whom it will be held.
    pub(super) fn spread_begins(&mut self, request: Uuid, dataset: &Arc<Dataset>) {
        let targets = self.targets_for(dataset);
        let Some(putting) = self.datasets.puts.get_mut(&request) else { return };
        putting.awaited.targets = targets.into_iter().map(|worker| (worker, None)).collect();
        match putting.origin {
            // A classic client need not wait for an answer.
            Origin::Classic(conn, _) if !self.facts.is_connected(conn) => {
                return self.end_put(request);
            }
            // It asks again when it is back.
            Origin::Away(_) => return self.end_put(request),
            Origin::Client(conn) => {
                let spread = putting.spread(SpreadStage::Stored, String::new());
                self.say(conn, Uuid::nil(), request, Says::Spread(spread));
            }
            Origin::Classic(..) | Origin::Staged(_) => {}
        }
        let Some(putting) = self.datasets.puts.get_mut(&request) else { return };
        let targets: Vec<WorkerId> = putting.awaited.targets.keys().copied().collect();
        let mut answers = std::mem::take(&mut putting.awaited.early);
        let known = |worker: WorkerId| {
            let answer = answers.remove(&worker).or_else(|| self.ask_to_hold(worker, dataset));
            answer.map(|answer| (worker, answer))
        };
        let early: Vec<(WorkerId, CachePutResult)> =
            targets.into_iter().filter_map(known).collect();
        for (worker, result) in early {
            self.tell_putters(dataset.version, worker, &result);
        }
        self.spread_if_over(request);
    }

    /// A worker has answered: those that put the dataset hear it.
    pub(super) fn tell_putters(
        &mut self,
        version: Uuid,
        worker: WorkerId,
        result: &CachePutResult,
    ) {
        let ended = match result.status {
            CacheStatus::Ok => Ended::Ok,
            CacheStatus::Skipped => Ended::Skipped,
            CacheStatus::Failed | CacheStatus::Other(_) => Ended::Failed,
        };
        let mut told = Vec::new();
        for (request, putting) in &mut self.datasets.puts {
            if putting.manifest_id() != version {
                continue;
            }
            if putting.is_coming() {
                putting.awaited.early.insert(worker, result.clone());
                continue;
            }
            let Some(target) =
                putting.awaited.targets.get_mut(&worker).filter(|target| target.is_none())
            else {
                continue;
            };
            *target = Some(ended);
            let classic = putting.classic();
            let to = classic.map_or(*request, |classic| classic.request);
            let result =
                classic.map_or_else(|| result.clone(), |classic| classic.words(worker, result));
            told.push((*request, to, putting.conn(), result));
        }
        for (request, to, conn, result) in told {
            if let Some(conn) = conn {
                let result = CachePutResult { worker: Some(self.worker_name(worker)), ..result };
                self.act(DatasetAction::CacheAck { conn, request: to, result });
            }
            self.spread_if_over(request);
        }
    }

    /// Ends a put whose workers have all answered.
    fn spread_if_over(&mut self, request: Uuid) {
        let Some(putting) = self.datasets.puts.get(&request) else { return };
        if !putting.is_coming() && putting.awaited.targets.values().all(Option::is_some) {
            let text = if putting.awaited.targets.is_empty() && putting.target() != TARGET_NONE {
                format!(
                    "no connected worker matches {}: workers that join later get the dataset",
                    putting.target()
                )
            } else {
                String::new()
            };
            self.spread_over(request, text);
        }
    }

    /// Ends a put: its workers have answered, or its time is over.
    pub(super) fn spread_over(&mut self, request: Uuid, text: String) {
        let Some(putting) = self.datasets.puts.get(&request) else { return };
        match putting.origin {
            Origin::Client(conn) => {
                let spread = putting.spread(SpreadStage::Over, text);
                self.say(conn, Uuid::nil(), request, Says::Spread(spread));
            }
            Origin::Classic(..) => self.classic_over(request, &text),
            Origin::Away(_) | Origin::Staged(_) => {}
        }
        self.end_put(request);
    }

    /// A dataset has other content now. Those that wait for workers to have what it was wait for
    /// what it is, if files were only added; else they hear that it was replaced.
    pub(super) fn supersede(&mut self, replaced: &Dataset, dataset: &Dataset) {
        let is_added = self.is_within(&dataset.cache, &replaced.digest);
        let mut waiting = Vec::new();
        for putting in self.datasets.puts.values_mut() {
            if putting.manifest_id() != replaced.version || putting.is_coming() {
                continue;
            }
            if is_added {
                putting.follow(dataset.version);
            } else {
                waiting.extend(putting.missing());
            }
        }
        for worker in waiting {
            let text = "the dataset was replaced by another content meanwhile";
            let result = CachePutResult::failed(dataset.cache.as_str(), text);
            self.tell_putters(replaced.version, worker, &result);
        }
    }

    /// A worker is not to have a dataset after all: nobody waits for it.
    pub(super) fn not_a_target(&mut self, worker: WorkerId) {
        let mut changed = Vec::new();
        for (request, putting) in &mut self.datasets.puts {
            if putting.awaited.targets.get(&worker).is_some_and(Option::is_none) {
                putting.awaited.targets.remove(&worker);
                changed.push(*request);
            }
        }
        changed.into_iter().for_each(|request| self.spread_if_over(request));
    }

    /// Workers that are gone for good answer nothing any more.
    pub(super) fn workers_gone(&mut self) {
        let mut gone = Vec::new();
        for putting in self.datasets.puts.values().filter(|putting| !putting.is_coming()) {
            let missing = putting.missing().filter(|worker| self.facts.worker(*worker).is_none());
            gone.extend(
                missing.map(|worker| (putting.manifest_id(), worker, putting.cache.clone())),
            );
        }
        for (version, worker, cache) in gone {
            let result = CachePutResult::failed(cache.as_str(), "the worker is gone");
            self.tell_putters(version, worker, &result);
        }
    }

    /// Those that wait for workers to have a dataset hear that it was removed.
    pub(super) fn putters_hear_removed(&mut self, dataset: &Dataset) {
        let puts = self.datasets.puts.values();
        let waiting = puts.filter(|putting| putting.manifest_id() == dataset.version);
        let missing: Vec<WorkerId> =
            waiting.flat_map(|putting| putting.missing().collect::<Vec<_>>()).collect();
        for worker in missing {
            let result =
                CachePutResult::failed(dataset.cache.as_str(), "the dataset was removed meanwhile");
            self.tell_putters(dataset.version, worker, &result);
        }
    }
}
