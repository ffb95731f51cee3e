//! Tracks whether the work directory is usable: it may be removed, become read-only or lose its
//! disk while the worker runs. Affected jobs are returned to the leader, since the fault is not
//! theirs, and the operator is told once.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tracing::{error, info};

/// What is known of the work directory. Clones speak of the same one.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkDirState {
    is_broken: Arc<AtomicBool>,
}

impl WorkDirState {
    /// A job found that it cannot be used.
    pub(super) fn failed(&self, work_dir: &Path, why: &str) {
        if !self.is_broken.swap(true, Ordering::Relaxed) {
            error!(
                "the work directory {} cannot be used: {why}; jobs are returned to the leader \
                 meanwhile: repair it, or start the worker with another --work-dir",
                work_dir.display()
            );
        }
    }

    /// A job had its directory.
    pub(super) fn worked(&self, work_dir: &Path) {
        if self.is_broken.swap(false, Ordering::Relaxed) {
            info!("the work directory {} can be used again", work_dir.display());
        }
    }
}

/// Whether an error of writing beneath a job's directory is of the directory or its disk, and no
/// doing of the job: what a job may choose are names, which were judged before.
pub(super) fn is_unusable(error: &io::Error) -> bool {
    use io::ErrorKind::{NotFound, PermissionDenied, ReadOnlyFilesystem, StaleNetworkFileHandle};
    let of_disk = [Errno::IO, Errno::NODEV, Errno::NXIO, Errno::NOTCONN, Errno::UCLEAN];
    matches!(
        error.kind(),
        NotFound | PermissionDenied | ReadOnlyFilesystem | StaleNetworkFileHandle
    ) || error
        .raw_os_error()
        .is_some_and(|raw| of_disk.iter().any(|errno| errno.raw_os_error() == raw))
}
