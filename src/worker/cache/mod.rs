//! The worker's cache: datasets of files that many jobs share, pushed to it ahead of the jobs and
//! kept as long as there is room.
//!
//! A dataset is visible to jobs as `<cache-dir>/<CacheId>/<Name>` when all of it has come and its
//! digests were right, and not before. [`Cache`] is owned by the session and is where everything is
//! decided; what takes time (hashing, copying, removing) is done on threads that tell it what came
//! of it ([`News`]). Nothing is sent here: answers go to the list that the session sends.
//!
//! | file | does |
//! |---|---|
//! | `manager` | the datasets that are here, and what the leader is told |
//! | `manager/jobs` | the jobs that need them |
//! | `dataset_download` | datasets on their way: Hold, manifest, packs, until they are visible |
//! | `eviction` | the budget: what goes when room is needed |
//! | `given_up` | the datasets that went and do not come back unasked |
//! | `classic` | puts of classic leaders, in one frame |
//! | `contents` | a manifest whose names were checked |
//! | `staged`, `pack` | files that come, piece by piece |
//! | `disk` | the directory: what makes a dataset visible, and what is left after a crash |
//! | `seal` | whether a file may have changed since it was checked |
//! | `link` | how files of a dataset get into a job's directory |

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
