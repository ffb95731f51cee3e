//! What operators ask about datasets (docs/protocol.md, "Questions"): which there are, who holds them, whether they are as they were put,
//! and what is to become of them.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use chunking::digest::to_hex;
use chunking::message::{Inspect, Name};
use serde_json::{Value, json};
use uuid::Uuid;

use super::held::{AtWorker, NotHeld};
use super::{BlobId, DatasetAction, Datasets, Facts, Says, Step};
use crate::core::Event;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, Micros, WorkerId};
use crate::core::subject::worker_patterns;
use crate::leader::Asked;
use crate::leader::ask::LISTED_MAX;
use crate::model::CachePutResult;
use crate::store::look::{LookAt, Looked};

/// A question whether a set is as it was put, on its way.
#[derive(Debug)]
pub(super) struct Inspection {
    by: Asked,
    /// Parts that are being looked at.
    packs: HashSet<BlobId>,
    packs_good: usize,
    packs_bad: Vec<String>,
    /// Workers that are asked, and what they said.
    workers: BTreeMap<WorkerId, Option<(String, String)>>,
}

impl Inspection {
    /// Whom to answer.
    pub(super) fn by(&self) -> &Asked {
        &self.by
    }
}

impl Datasets {
    /// Answers a question about datasets, now or by [`DatasetAction::Answer`]; `None` if it is about something else.
    pub(in crate::leader) fn ask(
        &mut self,
        now: Micros,
        facts: &dyn Facts,
        by: Asked,
        question: &Value,
    ) -> Option<Result<Option<Value>, String>> {
        Step { datasets: self, facts, now }.ask(by, question)
    }
}

impl Step<'_> {
    /// Answers a question about datasets, now or later; `None` if it is about something else.
    fn ask(&mut self, by: Asked, question: &Value) -> Option<Result<Option<Value>, String>> {
        Some(match by.verb.as_str() {
            "dataset.ls" => Ok(Some(self.dataset_ls())),
            "dataset.status" => self.dataset_asked(question).map(|dataset| {
                if self.manifest_of(dataset.generation).is_some()
                    || !self.datasets.library.is_reading(dataset.generation)
                {
                    return Some(self.dataset_status(&dataset));
                }
                self.datasets
                    .statuses
                    .entry(dataset.generation)
                    .or_default()
                    .push((dataset.cache.clone(), by));
                None
            }),
            "dataset.rm" => self.dataset_asked(question).and_then(|dataset| {
                if let Some(job) = self.facts.staged_for(&dataset.cache) {
                    return Err(format!(
                        "{} is the inputs of job {job} and goes with it: cancel the job",
                        dataset.cache
                    ));
                }
                self.datasets.removals.entry(dataset.cache.clone()).or_default().push(by);
                self.tell(Event::RemoveDataset { cache: dataset.cache.clone() });
                Ok(None)
            }),
            "dataset.verify" => self.dataset_asked(question).and_then(|dataset| {
                if self.datasets.library.is_listing() {
                    return Err(
                        "the leader still reads what it kept before its start: ask again in a moment"
                            .to_owned(),
                    );
                }
                self.dataset_verify(by, &dataset);
                Ok(None)
            }),
            "dataset.push" => self
                .dataset_asked(question)
                .and_then(|dataset| self.dataset_push(question, &dataset))
                .map(Some),
            _ => return None,
        })
    }

    /// The set that a question names.
    fn dataset_asked(&self, question: &Value) -> Result<Arc<Dataset>, String> {
        let text =
            question.get("cache_id").and_then(Value::as_str).ok_or("the question names no cache_id")?;
        let cache = CacheId::parse(text).map_err(|error| error.to_string())?;
        let known = self.facts.dataset(&cache);
        known.ok_or_else(|| not_kept(&cache))
    }

    fn dataset_ls(&self) -> Value {
        let sets: Vec<Value> =
            self.facts.datasets().take(LISTED_MAX).map(|dataset| self.shown(dataset)).collect();
        let puts = self.datasets.puts.values().filter(|putting| putting.is_coming());
        let puts: Vec<Value> = puts
            .map(|putting| {
                let manifest = putting.manifest.as_ref();
                let lacking = manifest.and_then(|manifest| self.datasets.library.cover(manifest).err());
                json!({
                    "cache_id": putting.cache.as_str(), "received": putting.received, "bytes": putting.bytes(),
                    "lacking": lacking.map_or(0, |(_, bytes)| bytes),
                })
            })
            .collect();
        let more = self.facts.datasets().nth(LISTED_MAX).is_some();
        json!({ "sets": sets, "puts": puts, "more": more })
    }

    fn shown(&self, dataset: &Arc<Dataset>) -> Value {
        let (mut held, mut coming, mut missing, mut failed) = (0u64, 0u64, 0u64, 0u64);
        for (_, state, _) in self.at_workers(dataset) {
            match state {
                "held" => held += 1,
                "coming" => coming += 1,
                "failed" => failed += 1,
                _ => missing += 1,
            }
        }
        let stored: u64 = dataset.blobs().map(|blob| self.facts.bytes_here(blob)).sum();
        let ago = u64::try_from(self.now.since(dataset.at).as_millis()).unwrap_or(u64::MAX);
        json!({
            "cache_id": dataset.cache.as_str(), "digest": format!("sha256:{}", to_hex(&dataset.digest)),
            "bytes": dataset.bytes, "files": dataset.files, "target": &*dataset.target,
            "generation": dataset.generation.to_string(), "put_ms": ago, "stored_bytes": stored,
            "held": held, "coming": coming, "missing": missing, "failed": failed,
        })
    }

    /// The workers that hold a set or are to hold it: how it is there, and what more there is to say.
    fn at_workers(&self, dataset: &Dataset) -> Vec<(WorkerId, &'static str, Value)> {
        let mut workers: HashSet<WorkerId> = self.targets_for(dataset).into_iter().collect();
        let nobody = AtWorker::default();
        let has = |at: &AtWorker| {
            at.held.contains_key(&dataset.cache)
                || at.not_held.contains_key(&dataset.cache)
                || at.push.as_ref().is_some_and(|push| push.wish.cache == dataset.cache)
        };
        workers.extend(self.datasets.workers.iter().filter(|(_, at)| has(at)).map(|(worker, _)| *worker));
        let mut shown: Vec<(WorkerId, &'static str, Value)> = workers
            .into_iter()
            .map(|worker| {
                let at = self.datasets.workers.get(&worker).unwrap_or(&nobody);
                let push = at.push.as_ref().filter(|push| push.wish.cache == dataset.cache);
                let gone = at.not_held.get(&dataset.cache).filter(|(digest, _)| *digest == dataset.digest);
                let (state, done, total, text) = if at.conn.is_none() {
                    ("away", 0, dataset.bytes, "")
                } else if let Some(push) = push {
                    let total = push.total.unwrap_or(dataset.bytes);
                    ("coming", push.sent.min(total), total, "")
                } else if at.held.get(&dataset.cache) == Some(&dataset.digest) {
                    ("held", dataset.bytes, dataset.bytes, "")
                } else {
                    match gone {
                        Some((_, NotHeld::Failed(text))) => ("failed", 0, dataset.bytes, text.as_str()),
                        Some((_, NotHeld::Gone(text))) => ("gone", 0, dataset.bytes, text.as_str()),
                        None if at.is_queued(&dataset.cache) => {
                            ("waiting", 0, dataset.bytes, "behind another dataset")
                        }
                        None => ("waiting", 0, dataset.bytes, ""),
                    }
                };
                let name = self.facts.worker(worker).map(|known| known.name);
                let value = json!({
                    "id": worker.to_string(), "name": name.unwrap_or_default(), "state": state, "done": done,
                    "total": total, "text": text, "budget": at.budget, "used": at.used,
                });
                (worker, state, value)
            })
            .collect();
        shown.sort_by_key(|(worker, _, _)| *worker);
        shown
    }

    /// A manifest was read, or could not be: who asked for the files of its set hears what is known.
    pub(super) fn answer_statuses(&mut self, generation: Uuid) {
        for (cache, to) in self.datasets.statuses.remove(&generation).unwrap_or_default() {
            let answer = match self.facts.dataset(&cache) {
                Some(dataset) => Ok(self.dataset_status(&dataset)),
                None => Err(not_kept(&cache)),
            };
            self.act(DatasetAction::Answer { to, answer });
        }
    }

    fn dataset_status(&mut self, dataset: &Arc<Dataset>) -> Value {
        let mut shown = self.shown(dataset);
        let workers: Vec<Value> =
            self.at_workers(dataset).into_iter().take(LISTED_MAX).map(|(_, _, value)| value).collect();
        let manifest = self.manifest_of(dataset.generation);
        let files = manifest.as_ref().map(|manifest| manifest.files()).unwrap_or_default();
        let names: Vec<Value> = files
            .iter()
            .take(LISTED_MAX)
            .map(|file| json!({ "name": file.name, "size": file.size, "sha256": to_hex(&file.sha256) }))
            .collect();
        if let Value::Object(members) = &mut shown {
            members.insert("workers".to_owned(), workers.into());
            members.insert("more".to_owned(), (names.len() < dataset.files as usize).into());
            members.insert("names".to_owned(), names.into());
        }
        shown
    }

    /// A set was removed: who asked for it hears so.
    pub(super) fn answer_removed(&mut self, cache: &CacheId, bytes: u64) {
        for to in self.datasets.removals.remove(cache).unwrap_or_default() {
            let answer = Ok(json!({ "removed": true, "bytes": bytes }));
            self.act(DatasetAction::Answer { to, answer });
        }
    }

    fn dataset_push(&mut self, question: &Value, dataset: &Arc<Dataset>) -> Result<Value, String> {
        let target = question.get("target").and_then(Value::as_str).unwrap_or(&dataset.target).to_owned();
        worker_patterns(&target).map_err(|error| format!("the target: {error}"))?;
        let workers = self.targets_for(&Dataset { target: target.into(), ..(**dataset).clone() });
        let held = workers.iter().filter(|worker| self.ask_to_hold(**worker, dataset).is_some()).count();
        Ok(json!({ "targets": workers.len(), "held": held }))
    }

    // --- verify

    fn dataset_verify(&mut self, by: Asked, dataset: &Arc<Dataset>) {
        let question = by.id;
        let mut inspection = Inspection {
            by,
            packs: HashSet::new(),
            packs_good: 0,
            packs_bad: Vec::new(),
            workers: BTreeMap::new(),
        };
        for blob in dataset.blobs() {
            let at = match self.datasets.library.pack(blob) {
                Some((layout, _)) => LookAt::Pack(layout.clone()),
                None if blob == dataset.generation => LookAt::Manifest,
                None => {
                    inspection.packs_bad.push(format!("pack {blob} is not here"));
                    continue;
                }
            };
            inspection.packs.insert(blob);
            let asked = self.datasets.rechecks.entry(blob).or_default();
            let is_first = asked.is_empty();
            asked.insert(question);
            if is_first {
                self.act(DatasetAction::Look { blob, at });
            }
        }
        let holds = |at: &AtWorker| at.held.contains_key(&dataset.cache);
        // A classic worker cannot be asked.
        let workers = self.datasets.workers.iter().filter(|(_, at)| at.classic.is_none() && holds(at));
        let holders: Vec<(WorkerId, ConnId)> =
            workers.filter_map(|(worker, at)| Some((*worker, at.conn?))).collect();
        for (worker, conn) in holders {
            let cache_id = Name::try_from(dataset.cache.as_str().to_owned()).unwrap_or_default();
            inspection.workers.insert(worker, None);
            self.say(conn, question, Uuid::nil(), Says::Inspect(Inspect { cache_id }));
        }
        self.datasets.inspections.insert(question, inspection);
        self.inspection_if_over(question);
    }

    /// A part of a set was looked at because somebody asked.
    pub(super) fn rechecked(
        &mut self,
        blob: BlobId,
        questions: &HashSet<Uuid>,
        result: &Result<Looked, String>,
    ) {
        for question in questions {
            let Some(inspection) = self.datasets.inspections.get_mut(question) else { continue };
            inspection.packs.remove(&blob);
            match result {
                Ok(_) => inspection.packs_good += 1,
                Err(text) => inspection.packs_bad.push(text.clone()),
            }
        }
        match result {
            Ok(Looked::Manifest(manifest)) => {
                let manifest = Arc::new((**manifest).clone());
                let bytes = self.facts.blob_bytes(blob);
                self.datasets.library.manifest_read(blob, manifest, bytes, self.now);
            }
            Ok(Looked::Pack(_) | Looked::Pieces { .. } | Looked::Bytes { .. }) => {}
            // A put brings it again.
            Err(text) => self.part_is_bad(blob, text),
        }
        questions.iter().for_each(|question| self.inspection_if_over(*question));
    }

    /// A worker has looked at a set because somebody asked. False if nobody did.
    pub(super) fn inspected(&mut self, question: Uuid, worker: WorkerId, result: &CachePutResult) -> bool {
        let Some(inspection) = self.datasets.inspections.get_mut(&question) else { return false };
        if let Some(said) = inspection.workers.get_mut(&worker) {
            *said = Some((result.status.as_str().to_owned(), result.message.clone()));
        }
        self.inspection_if_over(question);
        true
    }

    /// A worker that is asked is gone: it says nothing more.
    pub(super) fn inspections_without(&mut self, worker: WorkerId) {
        for question in self.datasets.inspections.keys().copied().collect::<Vec<_>>() {
            let inspection = self.datasets.inspections.get_mut(&question);
            if let Some(said) = inspection.and_then(|inspection| inspection.workers.get_mut(&worker)) {
                said.get_or_insert_with(|| ("FAILED".to_owned(), "the worker was lost".to_owned()));
            }
            self.inspection_if_over(question);
        }
    }

    fn inspection_if_over(&mut self, question: Uuid) {
        let is_over = |inspection: &Inspection| {
            inspection.packs.is_empty() && inspection.workers.values().all(Option::is_some)
        };
        if !self.datasets.inspections.get(&question).is_some_and(is_over) {
            return;
        }
        let Some(inspection) = self.datasets.inspections.remove(&question) else { return };
        let workers: Vec<Value> = inspection
            .workers
            .into_iter()
            .map(|(worker, said)| {
                let (status, message) = said.unwrap_or_default();
                let name = self.facts.worker(worker).map(|known| known.name.to_string());
                json!({ "id": worker.to_string(), "name": name.unwrap_or_default(), "status": status, "message": message })
            })
            .collect();
        let answer = json!({ "packs_good": inspection.packs_good, "packs_bad": inspection.packs_bad, "workers": workers });
        self.act(DatasetAction::Answer { to: inspection.by, answer: Ok(answer) });
    }
}

fn not_kept(cache: &CacheId) -> String {
    format!("no dataset {cache} is kept here: `heft dataset HOST:PORT ls` lists them")
}
