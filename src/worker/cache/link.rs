//! Decides how dataset files get into a job's directory: shared with the dataset where that is
//! safe, otherwise copied.
//!
//! A reflink shares blocks until somebody writes, so it is safe for any job. A copy is always safe,
//! but costs time and space. A hard link is the dataset's file itself: it is read-only, which
//! prevents accidental writes, but jobs run as the worker's user, who owns it. So hard links are
//! used only if the operator asks for them.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{AtFlags, Mode, OFlags, ioctl_ficlone, linkat, openat};
use uuid::Uuid;

use super::disk::PRIVATE;
use crate::core::names::SafeName;
use crate::fs::dirfd::{make_folder, open, open_folder};

/// How files of a dataset get into a job's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// By reflink; where the file system has none by copy.
    #[default]
    Auto,
    /// By reflink.
    Reflink,
    /// By hard link.
    Hardlink,
    /// By copy.
    Copy,
}

impl FromStr for LinkMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(LinkMode::Auto),
            "reflink" => Ok(LinkMode::Reflink),
            "hardlink" => Ok(LinkMode::Hardlink),
            "copy" => Ok(LinkMode::Copy),
            _ => Err("files of datasets come by auto, reflink, hardlink or copy".to_owned()),
        }
    }
}

/// Puts a file of a dataset into a job's directory under another name, read-only. Gives the file,
/// or `None` if the dataset has none of that name. `ours` says whether a worker made the dataset;
/// others' files are never linked.
pub(in crate::worker) fn place(
    dataset: &OwnedFd,
    name: &SafeName,
    ours: bool,
    job: &OwnedFd,
    target: &SafeName,
    mode: LinkMode,
) -> Option<io::Result<File>> {
    let source = match open(dataset, name) {
        Ok(found) => found?,
        Err(error) => return Some(Err(error)),
    };
    let placed = || -> io::Result<File> {
        let folder = make_folder(job, target, Mode::RWXU)?;
        let common = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if mode == LinkMode::Hardlink && ours {
            linkat(
                open_folder(dataset, name)?,
                name.file(),
                &folder,
                target.file(),
                AtFlags::empty(),
            )?;
            return Ok(
                openat(&folder, target.file(), OFlags::RDONLY | common, Mode::empty())?.into()
            );
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | common;
        let mut made: File = openat(&folder, target.file(), flags, Mode::RUSR | Mode::WUSR)?.into();
        let is_cloned = match mode {
            LinkMode::Hardlink | LinkMode::Copy => false,
            LinkMode::Auto => ioctl_ficlone(&made, &source).is_ok(),
            LinkMode::Reflink => match ioctl_ficlone(&made, &source) {
                // What was asked for, or nothing. Others' files may lie anywhere.
                Err(error) if ours => return Err(error.into()),
                cloned => cloned.is_ok(),
            },
        };
        if !is_cloned {
            io::copy(&mut &source, &mut made)?;
        }
        made.set_permissions(Permissions::from_mode(0o444))?;
        Ok(made)
    };
    Some(placed())
}

/// Tries whether files can get from a cache to a work directory in the way that was asked for.
pub fn check_link(cache_dir: &Path, work_dir: &Path, mode: LinkMode) -> io::Result<()> {
    let name = format!("probe-{}", Uuid::new_v4().simple());
    let (from, to) = (cache_dir.join(PRIVATE).join(&name), work_dir.join(&name));
    let tried = match mode {
        LinkMode::Auto | LinkMode::Copy => return Ok(()),
        LinkMode::Reflink => fs::write(&from, "probe")
            .and_then(|()| Ok(ioctl_ficlone(File::create(&to)?, File::open(&from)?)?)),
        LinkMode::Hardlink => fs::write(&from, "probe").and_then(|()| fs::hard_link(&from, &to)),
    };
    for path in [from, to] {
        fs::remove_file(path).ok();
    }
    tried
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::names::NameUse;
    use crate::fs::dirfd::open_root;
    use std::os::unix::fs::MetadataExt;

    fn name(text: &str) -> SafeName {
        SafeName::parse(NameUse::File, text).unwrap()
    }

    #[test]
    fn files_come_read_only_and_are_the_datasets_own_only_by_hard_link() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("set/d")).unwrap();
        fs::create_dir(root.path().join("job")).unwrap();
        let path = root.path().join("set/d/a");
        fs::write(&path, "bytes").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
        let (dataset, job) = (
            open_root(&root.path().join("set")).unwrap(),
            open_root(&root.path().join("job")).unwrap(),
        );
        let inode = fs::metadata(&path).unwrap().ino();
        let reflinks = check_link_in(root.path(), LinkMode::Reflink);
        for (mode, ours, same) in [
            (LinkMode::Copy, true, false),
            (LinkMode::Hardlink, true, true),
            (LinkMode::Hardlink, false, false),
            (LinkMode::Auto, true, false),
            (LinkMode::Auto, false, false),
        ] {
            let target = name(&format!("x/{mode:?}-{ours}"));
            let placed = place(&dataset, &name("d/a"), ours, &job, &target, mode).unwrap().unwrap();
            let found = placed.metadata().unwrap();
            assert_eq!(found.ino() == inode, same, "{mode:?} {ours}");
            assert_eq!(found.permissions().mode() & 0o777, 0o444);
            assert_eq!(
                fs::read_to_string(root.path().join("job").join(target.to_string())).unwrap(),
                "bytes"
            );
            let again = place(&dataset, &name("d/a"), ours, &job, &target, mode).unwrap();
            assert_eq!(again.unwrap_err().kind(), io::ErrorKind::AlreadyExists, "{mode:?}");
        }
        assert!(place(&dataset, &name("none"), true, &job, &name("n"), LinkMode::Auto).is_none());
        let reflinked =
            place(&dataset, &name("d/a"), true, &job, &name("r"), LinkMode::Reflink).unwrap();
        assert_eq!(reflinked.is_ok(), reflinks, "what was asked for, or nothing");
    }

    fn check_link_in(root: &Path, mode: LinkMode) -> bool {
        fs::create_dir_all(root.join(PRIVATE)).unwrap();
        let can = check_link(root, &root.join("job"), mode).is_ok();
        assert_eq!(
            fs::read_dir(root.join(PRIVATE)).unwrap().count(),
            0,
            "the probe leaves nothing"
        );
        can
    }

    #[test]
    fn modes_are_read_and_tried() {
        assert_eq!("hardlink".parse(), Ok(LinkMode::Hardlink));
        assert!(
            "symlink".parse::<LinkMode>().unwrap_err().contains("auto, reflink, hardlink or copy")
        );
        let root = tempfile::tempdir().unwrap();
        fs::create_dir(root.path().join("job")).unwrap();
        assert!(
            check_link_in(root.path(), LinkMode::Hardlink)
                && check_link_in(root.path(), LinkMode::Copy)
        );
        assert!(check_link(root.path(), &root.path().join("none"), LinkMode::Hardlink).is_err());
    }
}
