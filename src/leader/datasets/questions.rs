//! Answers operators' questions about datasets (docs/protocol.md, "Questions"): list, status, push,
//! verify and remove.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use chunking::dataset::FileEntry;
use chunking::digest::to_hex;
use chunking::message::{Inspect, Name};
use serde::Serialize;
use uuid::Uuid;

use super::held::{AtWorker, NotHeld};
use super::{BlobId, DatasetAction, Says, Step};
use crate::answers::ask::{self, Question};
use crate::answers::{
    self, AtWorkerState, DatasetPage, DatasetRow, DatasetShown, FileRow, Inspected, Pushed, PutRow,
    Removed, WorkerInspected,
};
use crate::answers::{Failure, LISTED_MAX};
use crate::core::Event;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, WorkerId};
use crate::core::subject::worker_patterns;
use crate::leader::Asked;
use crate::leader::questions::written;
use crate::model::CachePutResult;
use crate::store::verify::{Verified, VerifyRequest};

/// A question whether a dataset is as it was put, on its way.
#[derive(Debug)]
pub(super) struct Inspection {
    /// Whom to answer.
    pub(super) by: Asked,
    /// Parts that are being looked at.
    packs: HashSet<BlobId>,
    packs_good: usize,
    packs_bad: Vec<String>,
    /// Workers that are asked, and what they said.
    workers: BTreeMap<WorkerId, Option<(String, String)>>,
}

impl Step<'_> {
    /// An operator asks; the answer comes now or later.
    pub(super) fn asked(&mut self, by: Asked, question: Question) {
        if let Question::DatasetLs(ask::DatasetLs { after }) = question {
            let page = self.dataset_ls(after.as_deref());
            self.answer(by, Ok(page));
        } else if let Question::DatasetStatus(question) = question {
            self.ask_dataset_status(by, question);
        } else if let Question::DatasetRm(ask::DatasetRm { cache_id }) = question {
            self.ask_dataset_rm(by, &cache_id);
        } else if let Question::DatasetVerify(ask::DatasetVerify { cache_id }) = question {
            self.ask_dataset_verify(by, &cache_id);
        } else if let Question::DatasetPush(ask::DatasetPush { cache_id, target }) = question {
            let pushed = self.dataset_push(&cache_id, target);
            self.answer(by, pushed);
        }
    }

    fn answer<A: Serialize>(&mut self, to: Asked, answer: Result<A, Failure>) {
        let answer = answer.and_then(|answer| Ok(written(&answer)?));
        self.act(DatasetAction::Answer { to, answer });
    }

    fn answer_error(&mut self, to: Asked, failure: impl Into<Failure>) {
        self.act(DatasetAction::Answer { to, answer: Err(failure.into()) });
    }

    /// `dataset.status`: the answer waits for the manifest, if that is being read.
    fn ask_dataset_status(&mut self, by: Asked, question: ask::DatasetStatus) {
        let dataset = match self.dataset_asked(&question.cache_id) {
            Ok(dataset) => dataset,
            Err(text) => return self.answer_error(by, text),
        };
        if self.manifest_of(dataset.version).is_none()
            && self.datasets.pack_index.is_reading(dataset.version)
        {
            let statuses = self.datasets.statuses.entry(dataset.version).or_default();
            return statuses.push((question, by));
        }
        let shown = self.dataset_status(&dataset, &question);
        self.answer(by, Ok(shown));
    }

    /// `dataset.rm`: answered when it is gone.
    fn ask_dataset_rm(&mut self, by: Asked, cache_id: &str) {
        let asked = self.dataset_asked(cache_id).and_then(|dataset| {
            match self.facts.staged_for(&dataset.cache) {
                Some(job) => Err(format!(
                    "{} holds the inputs of job {job} and is removed with it: cancel the job",
                    dataset.cache
                )
                .into()),
                None => Ok(dataset.cache.clone()),
            }
        });
        match asked {
            Ok(cache) => {
                self.datasets.removals.entry(cache.clone()).or_default().push(by);
                self.tell(Event::RemoveDataset { cache });
            }
            Err(text) => self.answer_error(by, text),
        }
    }

    /// `dataset.verify`: answered when the leader and the workers have read all of it.
    fn ask_dataset_verify(&mut self, by: Asked, cache_id: &str) {
        match self.dataset_asked(cache_id) {
            Ok(_) if self.datasets.pack_index.is_listing() => self.answer_error(
                by,
                "the leader is still reading its stored datasets: ask again in a moment",
            ),
            Ok(dataset) => self.dataset_verify(by, &dataset),
            Err(text) => self.answer_error(by, text),
        }
    }

    /// The dataset that a question names.
    fn dataset_asked(&self, cache_id: &str) -> Result<Arc<Dataset>, Failure> {
        let cache = CacheId::parse(cache_id).map_err(|error| error.to_string())?;
        let known = self.facts.dataset(&cache);
        known.ok_or_else(|| not_kept(&cache))
    }

    fn dataset_ls(&self, after: Option<&str>) -> DatasetPage {
        let mut behind =
            self.facts.datasets().filter(|dataset| after < Some(dataset.cache.as_str()));
        let datasets: Vec<DatasetRow> =
            behind.by_ref().take(LISTED_MAX).map(|dataset| self.shown(dataset)).collect();
        let more = behind.next().is_some();
        let next = datasets.last().filter(|_| more).map(|last| last.cache_id.clone());
        let puts =
            self.datasets.puts.values().filter(|putting| putting.is_coming()).map(|putting| {
                let manifest = putting.manifest.as_ref();
                let lacking =
                    manifest.and_then(|manifest| self.datasets.pack_index.cover(manifest).err());
                PutRow {
                    cache_id: putting.cache.as_str().to_owned(),
                    received: putting.received,
                    bytes: putting.bytes(),
                    lacking: lacking.map_or(0, |(_, bytes)| bytes),
                }
            });
        DatasetPage { datasets, puts: puts.collect(), more, next }
    }

    fn shown(&self, dataset: &Arc<Dataset>) -> DatasetRow {
        let (mut held, mut coming, mut missing, mut failed) = (0u64, 0u64, 0u64, 0u64);
        for (_, at) in self.at_workers(dataset) {
            match at.state {
                AtWorkerState::Held => held += 1,
                AtWorkerState::Coming => coming += 1,
                AtWorkerState::Failed => failed += 1,
                AtWorkerState::Waiting
                | AtWorkerState::Gone
                | AtWorkerState::Away
                | AtWorkerState::Other(_) => missing += 1,
            }
        }
        let stored = dataset.blobs().map(|blob| self.facts.bytes_here(blob)).sum();
        DatasetRow {
            cache_id: dataset.cache.as_str().to_owned(),
            digest: format!("sha256:{}", to_hex(&dataset.digest)),
            bytes: Some(dataset.bytes),
            files: Some(dataset.files),
            target: dataset.target.to_string(),
            version: dataset.version.to_string(),
            put_ms: Some(u64::try_from(self.now.since(dataset.at).as_millis()).unwrap_or(u64::MAX)),
            stored_bytes: Some(stored),
            held: Some(held),
            coming: Some(coming),
            missing: Some(missing),
            failed: Some(failed),
        }
    }

    /// The workers that hold a dataset or are to hold it, and how it is there.
    fn at_workers(&self, dataset: &Dataset) -> Vec<(WorkerId, answers::AtWorker)> {
        let mut workers: HashSet<WorkerId> = self.targets_for(dataset).into_iter().collect();
        let nobody = AtWorker::default();
        let has = |at: &AtWorker| {
            at.held_of(&dataset.cache).is_some()
                || at.not_held.contains_key(&dataset.cache)
                || at.push_of(&dataset.cache).is_some()
        };
        workers.extend(
            self.datasets.workers.iter().filter(|(_, at)| has(at)).map(|(worker, _)| *worker),
        );
        let mut shown: Vec<(WorkerId, answers::AtWorker)> = workers
            .into_iter()
            .map(|worker| {
                let at = self.datasets.workers.get(&worker).unwrap_or(&nobody);
                let push = at.push_of(&dataset.cache);
                let gone =
                    at.not_held.get(&dataset.cache).filter(|(digest, _)| *digest == dataset.digest);
                let (state, done, total, text) = if at.conn.is_none() {
                    (AtWorkerState::Away, 0, dataset.bytes, "")
                } else if let Some(push) = push {
                    let total = push.total.unwrap_or(dataset.bytes);
                    (AtWorkerState::Coming, push.sent.min(total), total, "")
                } else if at.held_of(&dataset.cache) == Some(dataset.digest) {
                    (AtWorkerState::Held, dataset.bytes, dataset.bytes, "")
                } else {
                    let (state, text) = match gone {
                        Some((_, NotHeld::Failed(text))) => (AtWorkerState::Failed, text.as_str()),
                        Some((_, NotHeld::Gone(text))) => (AtWorkerState::Gone, text.as_str()),
                        None if at.is_queued(&dataset.cache) => {
                            (AtWorkerState::Waiting, "behind another dataset")
                        }
                        None => (AtWorkerState::Waiting, ""),
                    };
                    (state, 0, dataset.bytes, text)
                };
                let name = self.facts.worker(worker).map(|known| known.name.to_string());
                let shown = answers::AtWorker {
                    id: worker.to_string(),
                    name: Some(name.unwrap_or_default()),
                    state,
                    done,
                    total,
                    text: text.to_owned(),
                    budget: at.budget,
                    used: at.used,
                };
                (worker, shown)
            })
            .collect();
        shown.sort_by_key(|(worker, _)| *worker);
        shown
    }

    /// A manifest was read, or could not be: who asked for the files of its dataset hears what is
    /// known.
    pub(super) fn answer_statuses(&mut self, version: Uuid) {
        for (question, by) in self.datasets.statuses.remove(&version).unwrap_or_default() {
            let dataset = self.dataset_asked(&question.cache_id);
            let answered = dataset.map(|dataset| self.dataset_status(&dataset, &question));
            self.answer(by, answered);
        }
    }

    fn dataset_status(
        &mut self,
        dataset: &Arc<Dataset>,
        question: &ask::DatasetStatus,
    ) -> DatasetShown {
        let workers = match question.after {
            None => {
                self.at_workers(dataset).into_iter().take(LISTED_MAX).map(|(_, at)| at).collect()
            }
            Some(_) => Vec::new(),
        };
        let Some(manifest) = self.manifest_of(dataset.version) else {
            let (names, more) = (Vec::new(), dataset.files > 0);
            return DatasetShown { dataset: self.shown(dataset), workers, names, more, next: None };
        };
        let files = asked_of(manifest.files(), question);
        let page = files.get(..LISTED_MAX).unwrap_or(files);
        let names: Vec<FileRow> = page
            .iter()
            .map(|file| FileRow {
                name: file.name.to_string(),
                size: Some(file.size),
                sha256: to_hex(&file.sha256),
            })
            .collect();
        let more = page.len() < files.len();
        let next = names.last().filter(|_| more).map(|last| last.name.clone());
        DatasetShown { dataset: self.shown(dataset), workers, names, more, next }
    }

    /// A dataset was removed: who asked for it hears so.
    pub(super) fn answer_removed(&mut self, cache: &CacheId, bytes: u64) {
        for by in self.datasets.removals.remove(cache).unwrap_or_default() {
            self.answer(by, Ok(Removed { removed: true, bytes }));
        }
    }

    fn dataset_push(&mut self, cache_id: &str, target: Option<String>) -> Result<Pushed, Failure> {
        let dataset = self.dataset_asked(cache_id)?;
        let target = target.unwrap_or_else(|| dataset.target.to_string());
        worker_patterns(&target).map_err(|error| format!("the target: {error}"))?;
        let workers = self.targets_for(&Dataset { target: target.into(), ..(*dataset).clone() });
        let held =
            workers.iter().filter(|worker| self.ask_to_hold(**worker, &dataset).is_some()).count();
        Ok(Pushed { targets: workers.len() as u64, held: held as u64 })
    }

    // --- verify

    fn dataset_verify(&mut self, by: Asked, dataset: &Arc<Dataset>) {
        // Clients choose the ids of questions, so two questions may have the same one.
        let mut question = by.id;
        while self.datasets.inspections.contains_key(&question) {
            question = Uuid::from_u128(question.as_u128().wrapping_add(1));
        }
        let mut inspection = Inspection {
            by,
            packs: HashSet::new(),
            packs_good: 0,
            packs_bad: Vec::new(),
            workers: BTreeMap::new(),
        };
        for blob in dataset.blobs() {
            let at = match self.datasets.pack_index.pack(blob) {
                Some((layout, _)) => VerifyRequest::Pack(layout.clone()),
                None if blob == dataset.version => VerifyRequest::Manifest,
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
        let holds = |at: &AtWorker| at.held_of(&dataset.cache).is_some();
        // A classic worker cannot be asked.
        let workers =
            self.datasets.workers.iter().filter(|(_, at)| at.classic.is_none() && holds(at));
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

    /// A part of a dataset was looked at because somebody asked.
    pub(super) fn rechecked(
        &mut self,
        blob: BlobId,
        questions: &HashSet<Uuid>,
        result: &Result<Verified, String>,
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
            Ok(Verified::Manifest(manifest)) => {
                let manifest = Arc::new((**manifest).clone());
                let bytes = self.facts.blob_bytes(blob);
                self.datasets.pack_index.manifest_read(blob, manifest, bytes, self.now);
            }
            Ok(Verified::Pack(_) | Verified::Pieces { .. } | Verified::Bytes { .. }) => {}
            // A put brings it again.
            Err(text) => self.part_is_bad(blob, text),
        }
        questions.iter().for_each(|question| self.inspection_if_over(*question));
    }

    /// A worker has looked at a dataset because somebody asked. False if nobody did.
    pub(super) fn inspected(
        &mut self,
        question: Uuid,
        worker: WorkerId,
        result: &CachePutResult,
    ) -> bool {
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
            if let Some(said) =
                inspection.and_then(|inspection| inspection.workers.get_mut(&worker))
            {
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
        let workers = inspection.workers.into_iter().map(|(worker, said)| {
            let (status, message) = said.unwrap_or_default();
            let name = self.facts.worker(worker).map(|known| known.name.to_string());
            WorkerInspected {
                id: worker.to_string(),
                name: Some(name.unwrap_or_default()),
                status,
                message,
            }
        });
        let inspected = Inspected {
            workers: workers.collect(),
            packs_good: inspection.packs_good as u64,
            packs_bad: inspection.packs_bad,
        };
        self.answer(inspection.by, Ok(inspected));
    }
}

/// The files that a question is about: they stand in the order of their names.
fn asked_of<'a>(files: &'a [FileEntry], question: &ask::DatasetStatus) -> &'a [FileEntry] {
    let within = match &question.within {
        None => files,
        Some(path) => match files.binary_search_by(|file| (*file.name).cmp(path.as_str())) {
            Ok(at) => files.get(at..=at).unwrap_or_default(),
            Err(_) => {
                let folder = format!("{path}/");
                let from = files.partition_point(|file| *file.name < *folder);
                let behind = files.get(from..).unwrap_or_default();
                let len = behind.partition_point(|file| file.name.starts_with(&folder));
                behind.get(..len).unwrap_or_default()
            }
        },
    };
    let from = match &question.after {
        None => 0,
        Some(after) => within.partition_point(|file| *file.name <= **after),
    };
    within.get(from..).unwrap_or_default()
}

fn not_kept(cache: &CacheId) -> Failure {
    let text = format!("dataset {cache} is unknown here: `heft dataset ls` lists all datasets");
    Failure::not_found(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_about_all_files_a_file_or_those_in_a_folder_from_a_name_on() {
        let names = ["a", "data", "dir-2/x", "dir/a", "dir/b/c", "dir/d", "e"];
        let mut files: Vec<FileEntry> = names
            .iter()
            .map(|name| FileEntry {
                name: (*name).into(),
                size: 0,
                sha256: [0; 32],
                pieces: Vec::new(),
            })
            .collect();
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let asked = |within: Option<&str>, after: Option<&str>| {
            let (within, after) = (within.map(str::to_owned), after.map(str::to_owned));
            let question = ask::DatasetStatus { cache_id: "s".to_owned(), after, within };
            let found = asked_of(&files, &question);
            found.iter().map(|file| file.name.to_string()).collect::<Vec<_>>()
        };
        assert_eq!(asked(None, None), names);
        assert_eq!(asked(None, Some("dir-2/x")), ["dir/a", "dir/b/c", "dir/d", "e"]);
        assert_eq!(asked(None, Some("b")), names[1..]);
        assert_eq!(asked(Some("dir"), None), ["dir/a", "dir/b/c", "dir/d"]);
        assert_eq!(asked(Some("dir"), Some("dir/a")), ["dir/b/c", "dir/d"]);
        assert_eq!(asked(Some("dir/b"), None), ["dir/b/c"]);
        assert_eq!(asked(Some("data"), None), ["data"]);
        for (within, after) in
            [(Some("di"), None), (Some(""), None), (None, Some("e")), (Some("data"), Some("data"))]
        {
            assert_eq!(asked(within, after), [""; 0], "{within:?} {after:?}");
        }
    }
}
