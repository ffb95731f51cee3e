//! Detects whether a dataset file may have changed since its bytes were checked.
//!
//! A job runs as the worker's user: it can make a dataset file writable, write to it, and reset its
//! mtime. It cannot set the ctime. But ctime also changes when the file gains or loses a hard link,
//! as happens when two versions of a dataset share a file. So a new ctime is a reason to read the
//! file again, not proof of a change.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use crate::worker::identity::FileIdentity;

/// What a file looked like when it was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::worker) struct Seal {
    identity: FileIdentity,
    inode_changed: (i64, i64),
}

/// How a file stands against its seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum SealState {
    /// It is as it was.
    Whole,
    /// Its bytes may be others: they are to be read.
    Doubtful,
    /// It is not the same any more.
    Broken,
}

impl Seal {
    pub(super) fn of(file: &Metadata) -> Self {
        Seal { identity: FileIdentity::of(file), inode_changed: (file.ctime(), file.ctime_nsec()) }
    }

    /// How what was found in its place stands.
    pub(super) fn on(&self, found: &Option<Metadata>) -> SealState {
        match found.as_ref().map(Seal::of) {
            Some(seal) if seal == *self => SealState::Whole,
            Some(seal) if seal.identity == self.identity => SealState::Doubtful,
            Some(_) | None => SealState::Broken,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::PermissionsExt;
    use std::time::Duration;

    #[test]
    fn a_file_that_was_written_to_is_found_out_though_its_time_was_set_back() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("a");
        fs::write(&path, "right").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        let before = fs::metadata(&path).unwrap();
        let seal = Seal::of(&before);
        let state = || seal.on(&fs::metadata(&path).ok());
        assert_eq!(state(), SealState::Whole);
        // The clock of the file system has steps.
        std::thread::sleep(Duration::from_millis(20));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, "wrong").unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        file.set_modified(before.modified().unwrap()).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        assert_eq!(state(), SealState::Doubtful);
        fs::remove_file(&path).unwrap();
        assert_eq!(state(), SealState::Broken);
        fs::write(&path, "other").unwrap();
        assert_eq!(state(), SealState::Broken);
    }
}
