//! Whether a directory is this user's own: nobody else, but root, can put something in the place of what is made there. Where
//! others can, they lead what is written or read there elsewhere, with the rights of this process.
//!
//! A directory in which all may write is fine if it is sticky, as /tmp is: only owners remove or rename there.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Who the kernel names as the owner of what belongs to somebody outside of a user namespace.
const OVERFLOW_UID: u32 = 65534;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// Why a directory is not one's own.
#[derive(Debug, Error)]
pub(crate) enum SharedDir {
    #[error("{} belongs to user {owner}, and this is user {user}: its owner could lead what is written there elsewhere", path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("others may write to {} (its mode is {mode:04o}): they could lead what is written there elsewhere", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("cannot look at {}: {source}", path.display())]
    Look { path: PathBuf, source: io::Error },
}

/// Looks at a directory and at all that it lies in. One that is not there yet will be this user's.
pub(crate) fn check(path: &Path) -> Result<(), SharedDir> {
    let failed = |source| SharedDir::Look { path: path.to_owned(), source };
    let whole = std::path::absolute(path).map_err(failed)?;
    let there = whole.ancestors().find(|path| fs::symlink_metadata(path).is_ok()).unwrap_or(Path::new("/"));
    let real = there.canonicalize().map_err(failed)?;
    let rules = Rules { user: rustix::process::geteuid().as_raw(), in_namespace: in_user_namespace() };
    for path in real.ancestors() {
        let found = fs::metadata(path).map_err(|source| SharedDir::Look { path: path.to_owned(), source })?;
        rules.judge(path, found.uid(), found.gid(), found.mode())?;
    }
    Ok(())
}

#[derive(Clone, Copy)]
struct Rules {
    user: u32,
    in_namespace: bool,
}

impl Rules {
    fn judge(self, path: &Path, owner: u32, group: u32, mode: u32) -> Result<(), SharedDir> {
        let is_outside = self.in_namespace && owner == OVERFLOW_UID;
        if owner != self.user && owner != 0 && !is_outside {
            return Err(SharedDir::Owner { path: path.to_owned(), owner, user: self.user });
        }
        // A group with the number of the owner has no other members, by custom.
        let group_writes = mode & GROUP_WRITES != 0 && group != owner;
        if mode & STICKY == 0 && (group_writes || mode & OTHERS_WRITE != 0) {
            return Err(SharedDir::Writable { path: path.to_owned(), mode: mode & 0o7777 });
        }
        Ok(())
    }
}

/// Whether users of this process are not those of the machine.
fn in_user_namespace() -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let mut numbers = map.split_whitespace();
    map.lines().count() != 1
        || [numbers.next(), numbers.next()] != [Some("0"); 2]
        || numbers.next() != Some("4294967295")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_directory_is_ones_own_if_nobody_else_can_change_what_is_there() {
        let rules = Rules { user: 1000, in_namespace: false };
        let judge = |owner, group, mode| rules.judge(Path::new("/x"), owner, group, mode);
        for (owner, group, mode) in [
            (1000, 100, 0o40700),
            (1000, 100, 0o40755),
            (0, 0, 0o40755),
            (0, 0, 0o41777),
            (1000, 1000, 0o40775),
            (0, 0, 0o40775),
        ] {
            assert!(judge(owner, group, mode).is_ok(), "{owner} {group} {mode:o}");
        }
        for (owner, group, mode) in [(1001, 1001, 0o40700), (OVERFLOW_UID, 0, 0o40755), (1001, 0, 0o41777)] {
            assert!(matches!(judge(owner, group, mode), Err(SharedDir::Owner { .. })), "{owner} {mode:o}");
        }
        for (owner, group, mode) in [(1000, 100, 0o40775), (0, 50, 0o42775), (1000, 1000, 0o40777)] {
            assert!(matches!(judge(owner, group, mode), Err(SharedDir::Writable { .. })), "{group} {mode:o}");
        }
        let inside = Rules { in_namespace: true, ..rules };
        assert!(inside.judge(Path::new("/"), OVERFLOW_UID, OVERFLOW_UID, 0o40755).is_ok());
        assert!(inside.judge(Path::new("/"), OVERFLOW_UID, 0, 0o40777).is_err());
    }

    #[test]
    fn what_a_directory_lies_in_counts_and_what_is_not_there_yet_does_not() {
        let root = tempfile::tempdir().unwrap();
        let deep = root.path().join("a/b");
        check(&deep).unwrap();
        fs::create_dir_all(&deep).unwrap();
        check(&deep).unwrap();
        fs::set_permissions(root.path().join("a"), fs::Permissions::from_mode(0o777)).unwrap();
        for path in [deep.clone(), deep.join("new")] {
            let error = check(&path).unwrap_err().to_string();
            assert!(error.contains("others may write to") && error.contains("0777"), "{error}");
        }
        let link = root.path().join("link");
        std::os::unix::fs::symlink(&deep, &link).unwrap();
        assert!(check(&link).is_err(), "what the link leads to counts");
    }
}
