//! Whether a directory is this user's own: nobody else, but root, can put something in the place of
//! what is made there. Where others can, they lead what is written or read there elsewhere, with
//! the rights of this process.
//!
//! A directory in which all may write is fine if it is sticky, as /tmp is: only owners remove or
//! rename there. But everybody can make things there before this process does, so what is to be
//! used of it must be this user's: see [`make_part`]. A link is followed only if nobody else can
//! make it lead elsewhere later, and what it led to is the path from then on.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use thiserror::Error;

/// Who the kernel names as the owner of what belongs to somebody outside of a user namespace.
const OVERFLOW_UID: u32 = 65534;

const GROUP_WRITES: u32 = 0o020;
const OTHERS_WRITE: u32 = 0o002;
const STICKY: u32 = 0o1000;

/// To look at a directory takes no right to read it.
const LOOK: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Directories above one.
const DEPTH_MAX: usize = 4096;

/// Links on the way to a directory.
const LINKS_MAX: usize = 40;

/// Why a directory is not one's own.
#[derive(Debug, Error)]
pub(crate) enum SharedDir {
    #[error("{} belongs to user {owner}, and this is user {user}: its owner could redirect files \
             written there", path.display())]
    Owner { path: PathBuf, owner: u32, user: u32 },
    #[error("others may write to {} (its mode is {mode:04o}): they could redirect files written \
             there", path.display())]
    Writable { path: PathBuf, mode: u32 },
    #[error("{} is a link that belongs to user {owner}, and this is user {user}: its owner could \
             redirect it", path.display())]
    Link { path: PathBuf, owner: u32, user: u32 },
    #[error("{} is {found}, but must be {due}: somebody else made it; remove it", path.display())]
    Other { path: PathBuf, found: &'static str, due: &'static str },
    #[error("cannot make {}: {source}", path.display())]
    Make { path: PathBuf, source: io::Error },
    #[error("cannot look at {}: {source}", path.display())]
    Look { path: PathBuf, source: io::Error },
}

/// Looks at a directory, at all that it lies in and at the links on the way to it. Gives its path
/// without links: nobody else can make that lead elsewhere. One that is not there yet will be this
/// user's, if it is still missing when it is made: look again then.
pub(crate) fn check(path: &Path) -> Result<PathBuf, SharedDir> {
    let failed = |source| SharedDir::Look { path: path.to_owned(), source };
    let rules = Rules::new();
    let given = std::path::absolute(path).map_err(failed)?;
    let whole = rules.resolve(&given)?;
    // Links of /proc lead to what they say nothing of.
    let whole = if given.starts_with("/proc") { given } else { whole };
    // What is not a directory is told of by whoever would use it.
    let there = whole.ancestors().find(|path| path.is_dir()).unwrap_or(Path::new("/"));
    // By handles, upwards: what a path says need not be where it leads (`/proc/PID/root`).
    let mut open = openat(CWD, there, LOOK, Mode::empty()).map_err(|error| failed(error.into()))?;
    let mut shown = there.canonicalize().unwrap_or_else(|_| there.to_owned());
    for _ in 0..DEPTH_MAX {
        let found = fstat(&open).map_err(|error| failed(error.into()))?;
        rules.judge(&shown, found.st_uid, found.st_gid, found.st_mode)?;
        let above =
            openat(&open, "..", LOOK, Mode::empty()).map_err(|error| failed(error.into()))?;
        let at = fstat(&above).map_err(|error| failed(error.into()))?;
        if (at.st_dev, at.st_ino) == (found.st_dev, found.st_ino) {
            return Ok(whole);
        }
        open = above;
        shown = shown.parent().map_or_else(|| shown.join(".."), Path::to_owned);
    }
    Err(failed(io::Error::from(io::ErrorKind::InvalidFilename)))
}

/// The same for a directory of programs, which this process runs as they are. Sticky does not help
/// here: a program that somebody else adds is run, too.
pub(crate) fn check_programs(path: &Path) -> Result<(), SharedDir> {
    let whole = check(path)?;
    match fs::metadata(&whole) {
        Ok(found) if found.is_dir() && writes(found.uid(), found.gid(), found.mode()) => {
            Err(SharedDir::Writable { path: whole, mode: found.mode() & 0o7777 })
        }
        // What is missing, or no directory, is told of by whoever would use it.
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Makes a directory inside one that was checked, if it is not there. One that is there must be a
/// directory of this user's that nobody else can write to: in a sticky directory somebody else may
/// have been first.
pub(crate) fn make_part(path: &Path, mode: u32) -> Result<(), SharedDir> {
    match fs::DirBuilder::new().mode(mode).create(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            check_part(path, Part::Directory).map(|_| ())
        }
        Err(source) => Err(SharedDir::Make { path: path.to_owned(), source }),
    }
}

/// What is to be in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Part {
    Directory,
    File,
}

/// Looks at what lies in a directory that was checked. Gives whether it is there.
pub(crate) fn check_part(path: &Path, due: Part) -> Result<bool, SharedDir> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        // What is not a directory is told of by whoever would use it.
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(false);
        }
        Err(source) => return Err(SharedDir::Look { path: path.to_owned(), source }),
    };
    let rules = Rules::new();
    let kind = found.file_type();
    let is_due = match due {
        Part::Directory => kind.is_dir(),
        Part::File => kind.is_file(),
    };
    if !is_due {
        let found = match (kind.is_symlink(), kind.is_dir()) {
            (true, _) => "a link",
            (false, true) => "a directory",
            (false, false) => "no directory",
        };
        let due = match due {
            Part::Directory => "a directory",
            Part::File => "a file",
        };
        return Err(SharedDir::Other { path: path.to_owned(), found, due });
    }
    // Where all files belong to one user, whoever made them, as on some network file systems, these
    // do too.
    let above = path.parent().and_then(|above| fs::metadata(above).ok()).map(|above| above.uid());
    if found.uid() != rules.user && above != Some(found.uid()) {
        return Err(SharedDir::Owner {
            path: path.to_owned(),
            owner: found.uid(),
            user: rules.user,
        });
    }
    // Sticky does not help here: what is in it is taken.
    match writes(found.uid(), found.gid(), found.mode()) {
        true => Err(SharedDir::Writable { path: path.to_owned(), mode: found.mode() & 0o7777 }),
        false => Ok(true),
    }
}

#[derive(Clone, Copy)]
struct Rules {
    user: u32,
    in_namespace: bool,
}

impl Rules {
    fn new() -> Self {
        Rules { user: rustix::process::geteuid().as_raw(), in_namespace: in_user_namespace() }
    }

    fn is_trusted(self, owner: u32) -> bool {
        owner == self.user || owner == 0 || self.in_namespace && owner == OVERFLOW_UID
    }

    /// Follows the links of an absolute path, unless somebody else may change one of them.
    fn resolve(self, path: &Path) -> Result<PathBuf, SharedDir> {
        let mut rest: VecDeque<OsString> = names(path).collect();
        let mut at = PathBuf::from("/");
        let mut links = 0;
        while let Some(name) = rest.pop_front() {
            if name == OsStr::new("..") {
                at.pop();
                continue;
            }
            let next = at.join(&name);
            let found = match fs::symlink_metadata(&next) {
                Ok(found) => found,
                // What is missing, or cannot be looked at, is told of by whoever would use it.
                Err(_) => {
                    at = next;
                    continue;
                }
            };
            if !found.file_type().is_symlink() {
                at = next;
                continue;
            }
            let failed = |source| SharedDir::Look { path: next.clone(), source };
            let folder = fs::metadata(&at).map_err(failed)?;
            let is_shared =
                writes(folder.uid(), folder.gid(), folder.mode()) || !self.is_trusted(folder.uid());
            if is_shared && !self.is_trusted(found.uid()) {
                return Err(SharedDir::Link { path: next, owner: found.uid(), user: self.user });
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(failed(io::Error::from_raw_os_error(
                    rustix::io::Errno::LOOP.raw_os_error(),
                )));
            }
            let target = fs::read_link(&next).map_err(failed)?;
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            names(&target).rev().for_each(|name| rest.push_front(name));
        }
        Ok(at)
    }

    fn judge(self, path: &Path, owner: u32, group: u32, mode: u32) -> Result<(), SharedDir> {
        if !self.is_trusted(owner) {
            return Err(SharedDir::Owner { path: path.to_owned(), owner, user: self.user });
        }
        if mode & STICKY == 0 && writes(owner, group, mode) {
            return Err(SharedDir::Writable { path: path.to_owned(), mode: mode & 0o7777 });
        }
        Ok(())
    }
}

/// Whether others than the owner may write. A group with the number of the owner has no other
/// members, by custom.
fn writes(owner: u32, group: u32, mode: u32) -> bool {
    mode & OTHERS_WRITE != 0 || mode & GROUP_WRITES != 0 && group != owner
}

fn names(path: &Path) -> impl DoubleEndedIterator<Item = OsString> + '_ {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
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
        for (owner, group, mode) in
            [(1001, 1001, 0o40700), (OVERFLOW_UID, 0, 0o40755), (1001, 0, 0o41777)]
        {
            assert!(
                matches!(judge(owner, group, mode), Err(SharedDir::Owner { .. })),
                "{owner} {mode:o}"
            );
        }
        for (owner, group, mode) in [(1000, 100, 0o40775), (0, 50, 0o42775), (1000, 1000, 0o40777)]
        {
            assert!(
                matches!(judge(owner, group, mode), Err(SharedDir::Writable { .. })),
                "{group} {mode:o}"
            );
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

    #[test]
    fn links_are_followed_once_and_those_of_others_in_shared_directories_never() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().unwrap();
        let base = root.path().canonicalize().unwrap();
        fs::create_dir_all(base.join("a/b")).unwrap();
        symlink("a/../a/b", base.join("relative")).unwrap();
        symlink(base.join("relative"), base.join("absolute")).unwrap();
        for (given, due) in [("relative", "a/b"), ("absolute/new/x", "a/b/new/x"), ("a/../a", "a")]
        {
            assert_eq!(check(&base.join(given)).unwrap(), base.join(due), "{given}");
        }
        symlink("loop", base.join("loop")).unwrap();
        assert!(matches!(check(&base.join("loop")), Err(SharedDir::Look { .. })));
        fs::create_dir(base.join("shared")).unwrap();
        fs::set_permissions(base.join("shared"), fs::Permissions::from_mode(0o1777)).unwrap();
        let link = base.join("shared/link");
        symlink(base.join("a"), &link).unwrap();
        assert_eq!(check(&link).unwrap(), base.join("a"), "one's own");
        let stranger = Rules { user: 54_321, in_namespace: false };
        let user = Rules::new().user;
        match stranger.resolve(&link) {
            Err(SharedDir::Link { path, owner, .. }) => assert_eq!((path, owner), (link, user)),
            other => assert!(user == 0 && other.is_ok(), "root is trusted: {other:?}"),
        }
    }

    #[test]
    fn a_part_is_made_or_must_be_ones_own_and_closed() {
        let root = tempfile::tempdir().unwrap();
        let part = root.path().join("part");
        make_part(&part, 0o700).unwrap();
        make_part(&part, 0o700).unwrap();
        fs::set_permissions(&part, fs::Permissions::from_mode(0o1777)).unwrap();
        let error = make_part(&part, 0o700).unwrap_err().to_string();
        assert!(error.contains("others may write to") && error.contains("part"), "{error}");
        fs::remove_dir(&part).unwrap();
        std::os::unix::fs::symlink(root.path(), &part).unwrap();
        let error = make_part(&part, 0o700).unwrap_err().to_string();
        assert!(error.contains("is a link") && error.contains("part"), "{error}");
        assert!(check_part(&part, Part::File).is_err());
        assert!(!check_part(&root.path().join("none"), Part::File).unwrap());
    }
}
