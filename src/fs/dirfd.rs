//! Opens files beneath a directory and nowhere else (C08).
//!
//! A name is walked segment by segment from the directory's handle, and no step follows a symbolic
//! link, so neither a job's leftovers nor a race can lead outside. That is what
//! `openat2(RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS)` does in one call; walking works where that call
//! is missing or forbidden too, and inputs need their folders made anyway.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, mkdirat, openat, unlinkat};
use rustix::io::Errno;

use crate::core::names::SafeName;

const FOLDER_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Without NONBLOCK, opening a pipe would wait for a writer.
const LAST_FLAGS: OFlags =
    OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

/// Opens the directory that the names are beneath. It is the operator's, so links on the way to it
/// are followed.
pub(crate) fn open_root(path: &Path) -> io::Result<OwnedFd> {
    Ok(openat(CWD, path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

/// Makes a new file, and its folders as far as they are missing. A file that is there already is an
/// error.
pub(crate) fn create(root: &OwnedFd, name: &SafeName) -> io::Result<File> {
    let folder = make_folder(root, name, Mode::RWXU)?;
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(&folder, name.file(), flags, Mode::RUSR | Mode::WUSR)?.into())
}

/// Makes a new file in place of what has its name, unless that is a folder, and its folders as far
/// as they are missing. Who may use them is for the user's mask to say.
pub(crate) fn replace(root: &OwnedFd, name: &SafeName) -> io::Result<File> {
    let folder = make_folders(root, name.folders(), Mode::from(0o777))?;
    match unlinkat(&folder, name.file(), AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(&folder, name.file(), flags, Mode::from(0o666))?.into())
}

/// Removes a file.
pub(crate) fn remove(root: &OwnedFd, name: &SafeName) -> io::Result<()> {
    Ok(unlinkat(open_folder(root, name)?, name.file(), AtFlags::empty())?)
}

/// Makes a folder, and those on the way to it.
pub(crate) fn make_dir(root: &OwnedFd, name: &SafeName) -> io::Result<()> {
    make_folders(root, name.segments(), Mode::from(0o777)).map(drop)
}

/// Opens the folder of a file, made as far as it is missing.
pub(crate) fn make_folder(root: &OwnedFd, name: &SafeName, mode: Mode) -> io::Result<OwnedFd> {
    make_folders(root, name.folders(), mode)
}

fn make_folders<'a>(
    root: &OwnedFd,
    segments: impl Iterator<Item = &'a str>,
    mode: Mode,
) -> io::Result<OwnedFd> {
    let mut folder = root.try_clone()?;
    for segment in segments {
        match mkdirat(&folder, segment, mode) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        folder = openat(&folder, segment, FOLDER_FLAGS, Mode::empty())?;
    }
    Ok(folder)
}

/// Opens the folder of a file that is there.
pub(crate) fn open_folder(root: &OwnedFd, name: &SafeName) -> io::Result<OwnedFd> {
    let mut folder = root.try_clone()?;
    for segment in name.folders() {
        folder = openat(&folder, segment, FOLDER_FLAGS, Mode::empty())?;
    }
    Ok(folder)
}

/// Opens a plain file for reading; `None` if there is none of that name.
pub(crate) fn open(root: &OwnedFd, name: &SafeName) -> io::Result<Option<File>> {
    match open_any(root, name) {
        Ok(file) => Ok(file.metadata()?.is_file().then_some(file)),
        // A folder on the way that is a file, or a link in place of a file or folder, means that
        // the name is not there.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Opens a file or folder that is there, by whatever name a program gave it; `None` if there is
/// none of that name, or a link on the way.
pub(crate) fn open_at(root: &OwnedFd, path: &Path) -> io::Result<Option<File>> {
    let mut at = openat(root, ".", FOLDER_FLAGS, Mode::empty())?;
    let mut parts = path.components().peekable();
    while let Some(part) = parts.next() {
        let Component::Normal(part) = part else { return Ok(None) };
        let flags = if parts.peek().is_some() { FOLDER_FLAGS } else { LAST_FLAGS };
        match openat(&at, part, flags, Mode::empty()) {
            Ok(opened) => at = opened,
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Some(at.into()))
}

fn open_any(root: &OwnedFd, name: &SafeName) -> Result<File, Errno> {
    let mut folder = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
    for segment in name.folders() {
        folder = openat(&folder, segment, FOLDER_FLAGS, Mode::empty())?;
    }
    Ok(openat(&folder, name.file(), LAST_FLAGS, Mode::empty())?.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::names::NameUse;
    use std::io::Write;
    use std::os::unix::fs::symlink;

    fn name(text: &str) -> SafeName {
        SafeName::parse(NameUse::File, text).unwrap()
    }

    #[test]
    fn files_are_made_with_their_folders_and_never_through_a_link() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let handle = open_root(root.path()).unwrap();
        create(&handle, &name("a/b/c")).unwrap().write_all(b"x").unwrap();
        assert_eq!(std::fs::read(root.path().join("a/b/c")).unwrap(), b"x");
        assert_eq!(
            create(&handle, &name("a/b/c")).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );

        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("new"), root.path().join("file")).unwrap();
        assert!(create(&handle, &name("out/new")).is_err());
        assert!(create(&handle, &name("file")).is_err());
        assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_is_replaced_is_never_what_a_link_leads_to() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let handle = open_root(root.path()).unwrap();
        std::fs::write(outside.path().join("kept"), "kept").unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("kept"), root.path().join("file")).unwrap();
        assert!(replace(&handle, &name("out/kept")).is_err());
        assert!(make_dir(&handle, &name("out/dir")).is_err());
        assert!(remove(&handle, &name("out/kept")).is_err());
        for content in ["one", "two"] {
            replace(&handle, &name("file")).unwrap().write_all(content.as_bytes()).unwrap();
        }
        assert_eq!(std::fs::read(root.path().join("file")).unwrap(), b"two");
        assert_eq!(std::fs::read(outside.path().join("kept")).unwrap(), b"kept");
        make_dir(&handle, &name("dir/inner")).unwrap();
        assert!(replace(&handle, &name("dir/inner")).is_err(), "a folder stays");
        remove(&handle, &name("file")).unwrap();
        assert!(!root.path().join("file").exists());
    }

    #[test]
    fn only_plain_files_beneath_are_opened() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let handle = open_root(root.path()).unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::write(root.path().join("plain"), "p").unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("link")).unwrap();
        rustix::fs::mknodat(
            CWD,
            root.path().join("pipe"),
            rustix::fs::FileType::Fifo,
            Mode::RWXU,
            0,
        )
        .unwrap();
        assert!(open(&handle, &name("plain")).unwrap().is_some());
        for missing in ["out/secret", "link", "pipe", "none", "plain/x", "none/x"] {
            assert!(open(&handle, &name(missing)).unwrap().is_none(), "{missing}");
        }
    }
}
