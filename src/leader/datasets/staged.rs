//! Puts datasets staged from job inputs (C01), for the agents of classic workers. `leader::staging`
//! reads the inputs into packs; from there it is a put without a client.

use chunking::dataset::pack::Layout;
use chunking::message::Name;

use super::classic_put::put_of;
use super::putting::{Origin, Putting};
use super::{BlobId, DatasetAction, StagedInputs, Step};
use crate::core::Event;
use crate::core::dataset::TARGET_NONE;
use crate::core::ids::{CacheId, JobId};

impl Step<'_> {
    /// All bytes of a job's inputs are in packs: the dataset is put.
    pub(super) fn staged_came(&mut self, inputs: StagedInputs, packs: Vec<(BlobId, Layout)>) {
        let StagedInputs { job, key, version, manifest } = inputs;
        let ids = packs.iter().map(|(pack, _)| *pack).collect();
        self.packs_made(key, packs);
        let cache = CacheId::of_inputs(job);
        let target = Name::try_from(TARGET_NONE.to_owned()).unwrap_or_default();
        let put = put_of(&cache, &manifest, version, &target);
        let coming = self.still_coming(ids);
        let putting = Putting::made_here(Origin::Staged(job), cache, put, coming, None);
        self.put_made(key, putting, &manifest);
        self.watch();
    }

    /// A part of a dataset is damaged. The inputs are here as they came, and it is made of them
    /// anew; but not from under a worker that reads it.
    pub(super) fn staged_is_broken(&mut self, job: JobId, why: &str) {
        if self.facts.can_lose_its_inputs(job) {
            self.act(DatasetAction::NotStaged { job, why: why.to_owned() });
            self.tell(Event::RemoveDataset { cache: CacheId::of_inputs(job) });
        }
    }

    /// Datasets that are not a job's inputs any more, as a previous run ended.
    pub(super) fn forget_stale_staged(&mut self) {
        let datasets: Vec<CacheId> =
            self.facts.datasets().map(|dataset| dataset.cache.clone()).collect();
        datasets.iter().for_each(|cache| self.staged(cache));
    }

    /// A dataset is kept. If it is the inputs of a job that does not name it, as it ended meanwhile
    /// or is elsewhere, it goes again.
    pub(super) fn staged(&mut self, cache: &CacheId) {
        if self.facts.staged_for(cache).is_some_and(|job| !self.facts.names_its_inputs(job)) {
            self.tell(Event::RemoveDataset { cache: cache.clone() });
        }
    }
}
