//! Identifies the file behind a name and its state, to detect that a job wrote to it or replaced
//! it.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use rustix::fs::Stat;

/// What the system says of a file that changes when the file is written to or replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FileIdentity {
    inode: u64,
    bytes: u64,
    modified: (i64, i64),
}

impl FileIdentity {
    pub(super) fn of(file: &Metadata) -> Self {
        FileIdentity {
            inode: file.ino(),
            bytes: file.len(),
            modified: (file.mtime(), file.mtime_nsec()),
        }
    }

    pub(super) fn of_stat(file: &Stat) -> Self {
        let bytes = u64::try_from(file.st_size).unwrap_or_default();
        let modified = (file.st_mtime, i64::try_from(file.st_mtime_nsec).unwrap_or_default());
        FileIdentity { inode: file.st_ino, bytes, modified }
    }
}
