//! Datasets as the broker knows them: what is stored under a CacheId, never the bytes. Datasets are
//! logged records like jobs and survive a restart. Which worker holds which is not logged: workers
//! report it when they join.

use std::sync::Arc;

use uuid::Uuid;

use super::action::Action;
use super::broker::Broker;
use super::ids::{CacheId, Micros};
use super::record::Record;
use super::state::Applied;

/// The target of a dataset that is meant for every worker.
pub const TARGET_ALL: &str = "job.assign.>";

/// The target of a dataset that no worker is asked to hold before a job needs it.
pub const TARGET_NONE: &str = "none";

/// Ids of removed datasets that are remembered, for workers that were away. When there are more,
/// all are forgotten.
pub const DATASETS_REMOVED_MAX: usize = 4096;

/// A dataset: one content under a CacheId.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dataset {
    /// What jobs call it.
    pub cache: CacheId,
    /// Which content under this id it is. It is the id of the blob that has the manifest, too.
    pub version: Uuid,
    /// What the content is, wherever it came from: the manifest's digest.
    pub digest: [u8; 32],
    /// Bytes of its files.
    pub bytes: u64,
    /// How many files it has.
    pub files: u32,
    /// The pattern of the workers that are to hold it, or [`TARGET_NONE`].
    pub target: Arc<str>,
    /// The blobs that have the pieces of its files.
    pub packs: Vec<Uuid>,
    /// When it was put.
    pub at: Micros,
}

impl Dataset {
    /// The blobs it needs: the manifest, then the packs.
    pub fn blobs(&self) -> impl Iterator<Item = Uuid> {
        [self.version].into_iter().chain(self.packs.iter().copied())
    }
}

impl Broker {
    pub(super) fn put_dataset(&mut self, dataset: Arc<Dataset>) {
        self.propose(Record::Dataset { dataset });
    }

    /// Removes what is under an id when all that is proposed counts. Where that is nothing, nothing
    /// follows.
    pub(super) fn remove_dataset(&mut self, cache: CacheId) {
        if let Some(version) = self.version_to_be(&cache) {
            self.propose(Record::DatasetGone { cache, version });
        }
    }

    fn version_to_be(&self, cache: &CacheId) -> Option<Uuid> {
        let proposed = self.proposed().rev().filter_map(Record::dataset);
        let proposed = proposed.filter(|(of, _)| *of == cache).map(|(_, version)| version).next();
        proposed.unwrap_or_else(|| self.state.dataset(cache).map(|dataset| dataset.version))
    }

    pub(super) fn dataset_put(&mut self, dataset: &Arc<Dataset>, applied: &Applied) {
        let replaced =
            if let Applied::PutDataset { replaced } = applied { replaced.clone() } else { None };
        self.rouse(&dataset.cache);
        self.actions.push_back(Action::DatasetPut { dataset: dataset.clone(), replaced });
    }
}
