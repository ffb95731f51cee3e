//! Removes job leftovers, including directories a program has made inaccessible to its own user.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{CWD, Dir, FileType, Mode, OFlags, fstat, openat};
use rustix::io::Errno;

/// Directories in directories that are opened up. One that is deeper has to be removed by hand.
const DEPTH_MAX: usize = 128;

const PATH_FLAGS: OFlags =
    OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
const LIST_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Removes a directory with all that is in it. Links are removed and never followed.
pub(super) fn remove_all(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let opened = open_up(&openat(CWD, directory, PATH_FLAGS, Mode::empty())?, DEPTH_MAX);
            // What could be opened is removed at least.
            fs::remove_dir_all(directory).map_err(|error| opened.err().unwrap_or(error))
        }
        other => other,
    }
}

/// Lets this user list, enter and change a directory of its own.
pub(super) fn make_accessible(directory: &Path) -> io::Result<()> {
    permit(&openat(CWD, directory, PATH_FLAGS, Mode::empty())?)
}

/// Without a mode to open it by, a directory only has a handle that changes nothing; its path in
/// `/proc` leads to just that directory, whatever has its name meanwhile.
fn permit(directory: &OwnedFd) -> io::Result<()> {
    let mode = fstat(directory)?.st_mode & 0o7777;
    if mode & 0o700 == 0o700 {
        return Ok(());
    }
    let path = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o700))
}

fn open_up(directory: &OwnedFd, depth: usize) -> io::Result<()> {
    permit(directory)?;
    let Some(depth) = depth.checked_sub(1) else { return Err(Errno::NAMETOOLONG.into()) };
    let listed = openat(directory, ".", LIST_FLAGS, Mode::empty())?;
    for entry in Dir::new(listed)? {
        let entry = entry?;
        let is_self = matches!(entry.file_name().to_bytes(), b"." | b"..");
        if is_self || !matches!(entry.file_type(), FileType::Directory | FileType::Unknown) {
            continue;
        }
        match openat(directory, entry.file_name(), PATH_FLAGS, Mode::empty()) {
            Ok(inner) => open_up(&inner, depth)?,
            // It is not a directory, or is gone.
            Err(Errno::NOTDIR | Errno::LOOP | Errno::NOENT) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn closed_directories_are_opened_up_and_links_are_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let path = root.path().join("job");
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/b/file"), "x").unwrap();
        symlink(outside.path(), path.join("a/link")).unwrap();
        let dataset = |path: &Path, mode| {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap()
        };
        dataset(outside.path(), 0o555);
        for closed in ["a/b", "a", ""] {
            dataset(&path.join(closed), 0o000);
        }
        open_up(&openat(CWD, &path, PATH_FLAGS, Mode::empty()).unwrap(), DEPTH_MAX).unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(["", "a", "a/b"].map(|inner| mode(&path.join(inner))), [0o700; 3]);
        assert_eq!(mode(outside.path()), 0o555);
        remove_all(&path).unwrap();
        assert!(!path.exists() && outside.path().exists());
    }
}
