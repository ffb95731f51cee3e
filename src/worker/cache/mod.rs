//! The worker's dataset cache: files shared by many jobs, pushed ahead of the jobs and kept while
//! there is room.
//!
//! A dataset becomes visible to jobs as `<cache-dir>/<CacheId>/<Name>` only when it is complete and
//! its digests match. The session owns [`Cache`], which makes all decisions; slow work (hashing,
//! copying, removing) runs on threads that report back ([`News`]). Nothing is sent here: answers go
//! to a list that the session sends.
//!
//! | file | does |
//! |---|---|
//! | `manager` | the datasets in the cache, and the reports to the leader |
//! | `manager/jobs` | the jobs that need them |
//! | `dataset_download` | downloads: Hold, manifest, packs, until a dataset is visible |
//! | `eviction` | the budget: what is evicted when room is needed |
//! | `given_up` | evicted datasets that must not be pushed back unasked |
//! | `classic` | puts of classic leaders, in one frame |
//! | `contents` | a checked manifest |
//! | `staged`, `pack` | files being received, piece by piece |
//! | `disk` | the directory: making a dataset visible, and recovery after a crash |
//! | `seal` | whether a file may have changed since it was checked |
//! | `link` | how dataset files get into a job's directory |

mod classic;
mod contents;
mod dataset_download;
mod disk;
mod eviction;
mod given_up;
mod link;
mod manager;
mod pack;
mod seal;
mod staged;

pub(super) use dataset_download::DatasetPart;
pub(super) use disk::{OpenDataset, PRIVATE, open_dataset};
pub(super) use link::place as place_file;
pub use link::{LinkMode, check_link};
pub(super) use manager::{Cache, News, Opened, Step};
pub(super) use staged::KeptDataset;

use std::collections::HashMap;
use std::path::PathBuf;

use crate::core::ids::CacheId;

/// The datasets that a job names and this worker keeps, by their ids; `None` for one that could not
/// be opened. Files of these come from nowhere else.
pub(super) type KeptDatasets = HashMap<String, Option<KeptDataset>>;

/// A worker's cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheConfig {
    /// Where it is. It must be there.
    pub directory: PathBuf,
    /// Bytes that it may hold; half of what the file system has for it, if that is not said.
    pub budget: Option<u64>,
    /// How files get from it into job directories.
    pub link: LinkMode,
}
