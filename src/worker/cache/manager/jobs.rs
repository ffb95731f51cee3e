//! Tracks jobs that need datasets: which wait, for what, and what follows when a dataset arrives or
//! cannot be had.
//!
//! The session calls it for each arriving or departing job and takes the [`Step`]s; the manager and
//! `dataset_download` report the fate of a dataset. It never blocks and never reads file contents.
//! Before a job uses a dataset, the metadata of the files it names are checked: if a file has
//! changed, the dataset is withdrawn, and its intact files need not be sent again.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::SystemTime;

use chunking::message::DatasetState;
use tracing::info;
use uuid::Uuid;

use super::{Cache, Going, NO_DIGEST, News};
use crate::core::ids::CacheId;
use crate::model::Source;
use crate::worker::cache::disk::Entry;
use crate::worker::cache::link::LinkMode;
use crate::worker::cache::seal::{Seal, SealState};
use crate::worker::cache::staged::{CheckError, check_files, state_of};
use crate::worker::cache::{KeptDataset, KeptDatasets};
use crate::worker::exchange::Exchange;
use crate::worker::handler::Job;

/// What a job needs.
#[derive(Debug)]
pub(super) struct Needs {
    /// The files that it names, by dataset.
    files: HashMap<CacheId, Vec<String>>,
    /// Those that are not here.
    lacking: BTreeSet<CacheId>,
}

/// Whether a dataset is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Here {
    Yes,
    /// It is, and files that the job names are read first.
    Doubtful,
    No,
}

/// Files of a dataset that may have changed were read again.
#[derive(Debug)]
pub(in crate::worker) struct ReadAgain {
    cache: CacheId,
    version: Uuid,
    files: Vec<u32>,
    found: Result<Vec<(u32, Seal)>, CheckError>,
}

/// What follows for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Step {
    /// The job has all that it will get.
    Ready(Uuid),
    /// A dataset that it needs cannot be here: others are to run it.
    GiveBack { job: Uuid, text: String },
}

impl Cache {
    /// What follows for jobs.
    pub(in crate::worker) fn steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// A job came. Gives whether it has to wait for datasets; `may_wait` says whether the leader
    /// would send them.
    pub(in crate::worker) fn assign(
        &mut self,
        job: &Job,
        may_wait: bool,
        out: &mut Exchange,
    ) -> bool {
        let mut named: HashMap<CacheId, Vec<String>> = HashMap::new();
        for file in job.request.as_ref().map(|request| request.files.as_slice()).unwrap_or_default()
        {
            let Source::Cache(id) = file.source() else { continue };
            let (first, inner) =
                id.split_once('/').map_or((id, None), |(first, rest)| (first, Some(rest)));
            // One that cannot be a dataset's id is for the job's handler to refuse.
            let Ok(cache) = CacheId::parse(first) else { continue };
            let names = named.entry(cache).or_default();
            let name = file.name_in_dataset();
            match inner {
                None => names.push(name.to_owned()),
                Some(inner) => names.extend([inner.to_owned(), format!("{inner}/{name}")]),
            }
        }
        if named.is_empty() {
            return false;
        }
        let (mut lacking, mut wanted) = (BTreeSet::new(), BTreeSet::new());
        for (cache, names) in &named {
            match self.is_here(cache, names, out) {
                Here::Yes => {}
                // The leader need not be asked.
                Here::Doubtful => drop(lacking.insert(cache.clone())),
                Here::No if may_wait => {
                    lacking.insert(cache.clone());
                    wanted.insert(cache.clone());
                }
                Here::No => {}
            }
        }
        let waits = !lacking.is_empty();
        self.jobs.insert(job.id, Needs { files: named, lacking });
        wanted.iter().for_each(|cache| self.want(cache, out));
        waits
    }

    /// The leader says that the content which is here is the one that counts. Jobs that wait for it
    /// get it when the files that they name are as they were.
    pub(in crate::worker::cache) fn confirmed(&mut self, cache: &CacheId, out: &mut Exchange) {
        self.asked.remove(cache);
        if let Some(dataset) = self.datasets.get_mut(cache) {
            dataset.sure = true;
        }
        let waiting = self.jobs.values().filter(|needs| needs.lacking.contains(cache));
        let names: Vec<String> =
            waiting.filter_map(|needs| needs.files.get(cache)).flatten().cloned().collect();
        match self.is_here(cache, &names, out) {
            Here::Yes => self.no_longer_lacking(cache),
            Here::Doubtful => {}
            Here::No => self.want_if_lacking(cache, out),
        }
    }

    /// Whether a dataset is here for a job that names these files.
    fn is_here(&mut self, cache: &CacheId, names: &[String], out: &mut Exchange) -> Here {
        let Some(dataset) = self.datasets.get_mut(cache) else {
            // Files of a layout that others made are looked for by the job's handler.
            return if matches!(self.disk.entry(cache), Ok(Entry::Theirs)) {
                Here::Yes
            } else {
                Here::No
            };
        };
        // One that was here before this connection may have been replaced meanwhile: the leader is
        // asked once.
        let is_known = dataset.sure || !self.told;
        let Some(seals) = dataset.seals.as_ref().filter(|_| !dataset.released && is_known) else {
            return Here::No;
        };
        let mut doubtful = Vec::new();
        for file in names.iter().filter_map(|name| dataset.contents.find(name)) {
            let Some((name, _)) = dataset.contents.file(file) else { continue };
            match state_of(&self.disk, dataset.version, name, seals.get(file as usize)) {
                SealState::Whole => {}
                // A link for each job changes the inode: who has the worker make them trusts the
                // jobs.
                SealState::Doubtful if self.link == LinkMode::Hardlink => {}
                SealState::Doubtful => doubtful.push(file),
                SealState::Broken => {
                    let text = format!("damaged: \"{name}\" was changed on the disk");
                    self.drop_dataset(cache, &text, Going::Damaged, out);
                    return Here::No;
                }
            }
        }
        dataset.last_use = SystemTime::now();
        self.disk.used(dataset.version);
        self.mend_link(cache);
        if doubtful.is_empty() {
            return Here::Yes;
        }
        self.read_again(cache, doubtful);
        Here::Doubtful
    }

    fn read_again(&mut self, cache: &CacheId, files: Vec<u32>) {
        let Some(dataset) = self.datasets.get_mut(cache) else { return };
        let files: Vec<u32> =
            files.into_iter().filter(|file| dataset.doubtful.insert(*file)).collect();
        let (cache, version, contents) = (cache.clone(), dataset.version, dataset.contents.clone());
        if files.is_empty() {
            return;
        }
        info!(%cache, files = files.len(),
            "files of a dataset may have been changed: they are checked before a job uses them");
        self.run(move |disk| {
            let found = check_files(disk, version, &contents, &files);
            News::ReadAgain(ReadAgain { cache, version, files, found })
        });
    }

    /// Files of a dataset were read again: jobs that wait for them go on, or the dataset comes
    /// again.
    pub(super) fn on_read_again(&mut self, read: ReadAgain, out: &mut Exchange) {
        let ReadAgain { cache, version, files, found } = read;
        let Some(dataset) =
            self.datasets.get_mut(&cache).filter(|dataset| dataset.version == version)
        else {
            // It is gone by now, and has been asked for, if somebody can send it.
            if !self.told {
                self.no_longer_lacking(&cache);
            }
            return;
        };
        dataset.doubtful.retain(|file| !files.contains(file));
        let why = match found {
            Ok(found) => {
                if let Some(seals) = &mut dataset.seals {
                    let seals = Arc::make_mut(seals);
                    for (file, seal) in found {
                        seals.get_mut(file as usize).into_iter().for_each(|known| *known = seal);
                    }
                }
                if dataset.doubtful.is_empty()
                    && !self.asked.contains(&cache)
                    && !self.is_coming(&cache)
                {
                    self.no_longer_lacking(&cache);
                }
                return;
            }
            Err(CheckError::Damaged(what) | CheckError::Untrue(what)) => format!("damaged: {what}"),
            Err(CheckError::Io(error)) => format!("cannot be read: {error}"),
        };
        self.drop_dataset(&cache, &why, Going::Damaged, out);
        self.answer_holds(&cache, out);
        if self.told {
            self.want_if_lacking(&cache, out);
        } else {
            // Nobody sends it again: jobs miss it.
            self.no_longer_lacking(&cache);
        }
    }

    /// Opens the datasets of a job that are kept here, which is about to run.
    pub(in crate::worker) fn datasets_of(&self, job: Uuid) -> KeptDatasets {
        let named = self.jobs.get(&job).into_iter().flat_map(|needs| needs.files.keys());
        let kept = named.filter_map(|cache| Some((cache, self.datasets.get(cache)?)));
        kept.map(|(cache, dataset)| {
            let open = self.disk.hold_version(dataset.version).ok().flatten();
            let open = open.zip(dataset.seals.clone());
            let dataset =
                open.map(|(open, seals)| KeptDataset::new(open, dataset.contents.clone(), seals));
            (cache.as_str().to_owned(), dataset)
        })
        .collect()
    }

    /// Whether a job waits for datasets.
    pub(in crate::worker) fn is_waiting(&self, job: Uuid) -> bool {
        self.jobs.get(&job).is_some_and(|needs| !needs.lacking.is_empty())
    }

    /// Jobs that use datasets or wait for them.
    pub(in crate::worker) fn jobs(&self) -> Vec<Uuid> {
        self.jobs.keys().copied().collect()
    }

    /// A job is over, or not ours any more.
    pub(in crate::worker) fn on_job_gone(&mut self, job: Uuid, out: &mut Exchange) {
        let Some(needs) = self.jobs.remove(&job) else { return };
        for cache in needs.files.into_keys() {
            let Some(dataset) = self.datasets.get_mut(&cache) else { continue };
            dataset.last_use = SystemTime::now();
            if dataset.released && !self.is_used(&cache) {
                self.drop_dataset(&cache, "released by the leader", Going::Released, out);
            }
        }
        // What was still used may be free now.
        for (version, bytes) in std::mem::take(&mut self.leaving) {
            self.leaving.insert(version, bytes);
            self.discard(version, bytes);
        }
    }

    /// Whether a job uses a dataset or waits for it.
    pub(super) fn is_needed(&self, cache: &CacheId) -> bool {
        self.jobs.values().any(|needs| needs.files.contains_key(cache))
    }

    /// Asks for a dataset that a job needs, unless it is on its way. Also for one that is here and
    /// is being checked: it may have been replaced while this worker was away.
    fn want(&mut self, cache: &CacheId, out: &mut Exchange) {
        if self.told && !self.is_coming(cache) && self.asked.insert(cache.clone()) {
            self.say(DatasetState::Wanted, cache, NO_DIGEST, "", out);
        }
    }

    /// Asks for all datasets that jobs wait for.
    pub(super) fn want_lacking(&mut self, out: &mut Exchange) {
        let lacking: BTreeSet<CacheId> =
            self.jobs.values().flat_map(|needs| needs.lacking.iter().cloned()).collect();
        lacking.iter().for_each(|cache| self.want(cache, out));
    }

    /// Asks for a dataset if jobs wait for it.
    pub(super) fn want_if_lacking(&mut self, cache: &CacheId, out: &mut Exchange) {
        if self.jobs.values().any(|needs| needs.lacking.contains(cache)) {
            self.want(cache, out);
        }
    }

    /// Jobs need not wait for this dataset any more: it is here, or nobody knows it.
    pub(super) fn no_longer_lacking(&mut self, cache: &CacheId) {
        for (job, needs) in &mut self.jobs {
            if needs.lacking.remove(cache) && needs.lacking.is_empty() {
                self.steps.push(Step::Ready(*job));
            }
        }
    }

    /// A dataset cannot be here: jobs that wait for it are better elsewhere.
    pub(in crate::worker::cache) fn give_back(&mut self, cache: &CacheId, why: &str) {
        for (job, needs) in &self.jobs {
            if needs.lacking.contains(cache) {
                let text =
                    format!("the dataset {cache} that the job needs cannot be held here: {why}");
                self.steps.push(Step::GiveBack { job: *job, text });
            }
        }
        self.asked.remove(cache);
    }
}
