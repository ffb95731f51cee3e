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

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, mkdirat, openat, renameat, statat, unlinkat,
};
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

/// Puts a file in the place of what has a name in the same folder, unless that is a folder.
pub(crate) fn replace(root: &OwnedFd, new: &SafeName, name: &SafeName) -> io::Result<()> {
    let folder = open_folder(root, name)?;
    Ok(renameat(&folder, new.file(), &folder, name.file())?)
}

/// What is under a name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// Nothing. So many of the folders on the way to it are there.
    Nothing {
        folders: usize,
    },
    Folder,
    /// A file, a link or a special file.
    File,
    /// Nothing can be there: a file or a link stands in the place of a folder on the way to it.
    Blocked,
}

/// Looks at what is under a name, without following links.
pub(crate) fn standing(root: &OwnedFd, name: &SafeName) -> io::Result<Standing> {
    let mut folder = root.try_clone()?;
    for (folders, segment) in name.folders().enumerate() {
        match openat(&folder, segment, FOLDER_FLAGS, Mode::empty()) {
            Ok(opened) => folder = opened,
            Err(Errno::NOENT) => return Ok(Standing::Nothing { folders }),
            Err(Errno::NOTDIR | Errno::LOOP) => return Ok(Standing::Blocked),
            Err(error) => return Err(error.into()),
        }
    }
    match statat(&folder, name.file(), AtFlags::SYMLINK_NOFOLLOW) {
        Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
            Ok(Standing::Folder)
        }
        Ok(_) => Ok(Standing::File),
        Err(Errno::NOENT) => Ok(Standing::Nothing { folders: name.folders().count() }),
        Err(error) => Err(error.into()),
    }
}

/// Makes a new file, and its folders as far as they are missing. A file that is there already is an
/// error. Who may use them is for the user's mask to say.
pub(crate) fn create_shared(root: &OwnedFd, name: &SafeName) -> io::Result<File> {
    let folder = make_folders(root, name.folders(), Mode::from(0o777))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(openat(&folder, name.file(), flags, Mode::from(0o666))?.into())
}

/// Removes a folder that is empty.
pub(crate) fn remove_dir(root: &OwnedFd, name: &SafeName) -> io::Result<()> {
    Ok(unlinkat(open_folder(root, name)?, name.file(), AtFlags::REMOVEDIR)?)
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
        let put = |text: &str, content: &str| {
            let (target, new) = (name(text), name(&format!("{text}.new")));
            create_shared(&handle, &new)?.write_all(content.as_bytes())?;
            replace(&handle, &new, &target)
        };
        assert!(put("out/kept", "x").is_err());
        assert!(make_dir(&handle, &name("out/dir")).is_err());
        assert!(remove(&handle, &name("out/kept")).is_err());
        for content in ["one", "two"] {
            put("file", content).unwrap();
        }
        assert_eq!(std::fs::read(root.path().join("file")).unwrap(), b"two");
        assert_eq!(std::fs::read(outside.path().join("kept")).unwrap(), b"kept");
        make_dir(&handle, &name("dir/inner")).unwrap();
        assert!(put("dir/inner", "x").is_err(), "a folder stays");
        remove(&handle, &name("file")).unwrap();
        assert!(!root.path().join("file").exists());
    }

    #[test]
    fn what_stands_under_a_name_is_told_without_following_links() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let handle = open_root(root.path()).unwrap();
        create_shared(&handle, &name("a/b/file")).unwrap();
        assert!(create_shared(&handle, &name("a/b/file")).is_err(), "never in place of another");
        std::fs::create_dir(outside.path().join("in")).unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("none"), root.path().join("dangling")).unwrap();
        for (text, expected) in [
            ("a", Standing::Folder),
            ("a/b/file", Standing::File),
            ("dangling", Standing::File),
            ("new", Standing::Nothing { folders: 0 }),
            ("a/b/new", Standing::Nothing { folders: 2 }),
            ("a/c/d/new", Standing::Nothing { folders: 1 }),
            ("a/b/file/new", Standing::Blocked),
            ("out/in", Standing::Blocked),
        ] {
            assert_eq!(standing(&handle, &name(text)).unwrap(), expected, "{text}");
        }
        assert!(remove_dir(&handle, &name("a/b")).is_err(), "it is not empty");
        remove(&handle, &name("a/b/file")).unwrap();
        remove_dir(&handle, &name("a/b")).unwrap();
        assert_eq!(standing(&handle, &name("a/b")).unwrap(), Standing::Nothing { folders: 1 });
    }

    #[test]
    fn only_plain_files_beneath_are_opened() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let handle = open_root(root.path()).unwrap();
        std::fs::write(outside.path().join("secret"), "s").unwrap();
        std::fs::write(root.path().join("plain"), "p").unwrap();
        symlink(outside.path(), root.path().join("out")).unwrap();
        symlink(outside.path().join("secret"), root.path().join("link")).unwrap();
        rustix::fs::mknodat(CWD, root.path().join("pipe"), FileType::Fifo, Mode::RWXU, 0).unwrap();
        assert!(open(&handle, &name("plain")).unwrap().is_some());
        for missing in ["out/secret", "link", "pipe", "none", "plain/x", "none/x"] {
            assert!(open(&handle, &name(missing)).unwrap().is_none(), "{missing}");
        }
    }
}
