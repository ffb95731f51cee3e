//! The jobs that need sets: which of them wait and for what, and what follows for them when a set is here or cannot be.
//!
//! The session calls it for each job that comes or is gone and takes the [`Step`]s; the keeper and `coming` say what became of a set. It
//! never waits, and never reads what is in a file. Before a job uses a set, the files that the job names are looked at: one that has
//! changed costs the set its place, and what is right of it need not come again.

use std::collections::{BTreeSet, HashMap};
use std::time::SystemTime;

use chunking::message::SetState;
use uuid::Uuid;

use super::{Cache, Going, NO_DIGEST};
use crate::core::ids::CacheId;
use crate::model::Source;
use crate::peer::OutFrame;
use crate::worker::cache::disk::Entry;
use crate::worker::cache::staged::changed;
use crate::worker::handler::Job;

/// What a job needs.
#[derive(Debug)]
pub(super) struct Needs {
    sets: Vec<CacheId>,
    /// Those that are not here.
    lacking: BTreeSet<CacheId>,
}

/// What follows for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::worker) enum Step {
    /// The job has all that it will get.
    Ready(Uuid),
    /// A set that it needs cannot be here: others are to run it.
    GiveBack { job: Uuid, text: String },
}

impl Cache {
    /// What follows for jobs.
    pub(in crate::worker) fn steps(&mut self) -> Vec<Step> {
        std::mem::take(&mut self.steps)
    }

    /// A job came. Gives whether it has to wait for sets; `may_wait` says whether the leader would send them.
    pub(in crate::worker) fn assign(&mut self, job: &Job, may_wait: bool, out: &mut Vec<OutFrame>) -> bool {
        let mut named: HashMap<CacheId, Vec<String>> = HashMap::new();
        for file in job.request.as_ref().map(|request| request.files.as_slice()).unwrap_or_default() {
            let Source::Cache(id) = file.source() else { continue };
            let (first, inner) = id.split_once('/').map_or((id, None), |(first, rest)| (first, Some(rest)));
            // One that cannot be a set's id is for the job's handler to refuse.
            let Ok(cache) = CacheId::parse(first) else { continue };
            let names = named.entry(cache).or_default();
            let name = file.name_in_set();
            match inner {
                None => names.push(name.to_owned()),
                Some(inner) => names.extend([inner.to_owned(), format!("{inner}/{name}")]),
            }
        }
        if named.is_empty() {
            return false;
        }
        let mut needs = Needs { sets: named.keys().cloned().collect(), lacking: BTreeSet::new() };
        for (cache, names) in &named {
            if !self.is_here(cache, names, out) {
                needs.lacking.insert(cache.clone());
            }
        }
        let waits = may_wait && !needs.lacking.is_empty();
        let lacking = std::mem::take(&mut needs.lacking);
        if waits {
            needs.lacking.clone_from(&lacking);
        }
        self.jobs.insert(job.id, needs);
        if waits {
            lacking.iter().for_each(|cache| self.want(cache, out));
        }
        waits
    }

    /// Whether a set is here for a job that names these files.
    fn is_here(&mut self, cache: &CacheId, names: &[String], out: &mut Vec<OutFrame>) -> bool {
        let Some(set) = self.sets.get_mut(cache) else {
            // Files of a layout that others made are looked for by the job's handler.
            return matches!(self.disk.entry(cache), Ok(Entry::Theirs));
        };
        // One that was here before this connection may have been replaced meanwhile: the leader is asked once.
        let is_known = set.sure || !self.told;
        let Some(looks) = set.looks.as_ref().filter(|_| !set.released && is_known) else { return false };
        let files = names.iter().filter_map(|name| set.contents.find(name));
        match changed(&self.disk, set.generation, &set.contents, looks, files) {
            None => {
                set.last_use = SystemTime::now();
                self.disk.used(set.generation);
                true
            }
            Some(name) => {
                let text = format!("damaged: \"{name}\" was changed on the disk");
                self.drop_set(cache, &text, Going::Damaged, out);
                false
            }
        }
    }

    /// Whether a job waits for sets.
    pub(in crate::worker) fn is_waiting(&self, job: Uuid) -> bool {
        self.jobs.get(&job).is_some_and(|needs| !needs.lacking.is_empty())
    }

    /// Jobs that use sets or wait for them.
    pub(in crate::worker) fn jobs(&self) -> Vec<Uuid> {
        self.jobs.keys().copied().collect()
    }

    /// A job is over, or not ours any more.
    pub(in crate::worker) fn on_job_gone(&mut self, job: Uuid, out: &mut Vec<OutFrame>) {
        let Some(needs) = self.jobs.remove(&job) else { return };
        for cache in needs.sets {
            let Some(set) = self.sets.get_mut(&cache) else { continue };
            set.last_use = SystemTime::now();
            if set.released && !self.is_used(&cache) {
                self.drop_set(&cache, "released by the leader", Going::Released, out);
            }
        }
        // What was still used may be free now.
        for (generation, bytes) in std::mem::take(&mut self.leaving) {
            self.leaving.insert(generation, bytes);
            self.discard(generation, bytes);
        }
    }

    /// Whether a job uses a set or waits for it.
    pub(super) fn is_needed(&self, cache: &CacheId) -> bool {
        self.jobs.values().any(|needs| needs.sets.contains(cache))
    }

    /// Asks for a set that a job needs, unless it is on its way. Also for one that is here and is being checked: it may have been
    /// replaced while this worker was away.
    fn want(&mut self, cache: &CacheId, out: &mut Vec<OutFrame>) {
        if self.told && !self.is_coming(cache) && self.asked.insert(cache.clone()) {
            self.say(SetState::Wanted, cache, NO_DIGEST, "", out);
        }
    }

    /// Asks for all sets that jobs wait for.
    pub(super) fn want_lacking(&mut self, out: &mut Vec<OutFrame>) {
        let lacking: BTreeSet<CacheId> =
            self.jobs.values().flat_map(|needs| needs.lacking.iter().cloned()).collect();
        lacking.iter().for_each(|cache| self.want(cache, out));
    }

    /// Asks for a set if jobs wait for it.
    pub(super) fn want_if_lacking(&mut self, cache: &CacheId, out: &mut Vec<OutFrame>) {
        if self.jobs.values().any(|needs| needs.lacking.contains(cache)) {
            self.want(cache, out);
        }
    }

    /// Jobs need not wait for this set any more: it is here, or nobody knows it.
    pub(super) fn no_longer_lacking(&mut self, cache: &CacheId) {
        for (job, needs) in &mut self.jobs {
            if needs.lacking.remove(cache) && needs.lacking.is_empty() {
                self.steps.push(Step::Ready(*job));
            }
        }
    }

    /// A set cannot be here: jobs that wait for it are better elsewhere.
    pub(in crate::worker::cache) fn give_back(&mut self, cache: &CacheId, why: &str) {
        for (job, needs) in &self.jobs {
            if needs.lacking.contains(cache) {
                let text = format!("the set {cache} that the job needs cannot be held here: {why}");
                self.steps.push(Step::GiveBack { job: *job, text });
            }
        }
        self.asked.remove(cache);
    }
}
