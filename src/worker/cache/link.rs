//! How files of a set get into a job's directory: shared with the set where that is safe, copied where it is not.
//!
//! A reflink shares the blocks until somebody writes, so it is safe for any job. A hard link is the set's file itself: it is
//! read-only, which keeps a job from writing it by accident, unless it runs as root, whom modes do not stop. A copy is always
//! safe, and costs time and space.

use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::str::FromStr;

use rustix::fs::{AtFlags, Mode, OFlags, ioctl_ficlone, linkat, openat, unlinkat};
use uuid::Uuid;

use super::disk::PRIVATE;
use crate::worker::exec::SafeName;
use crate::worker::exec::beneath::{make_folder, open, open_folder};

/// How files of a set get into a job's directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LinkMode {
    /// By reflink; where the file system has none by hard link, unless the worker runs as root; else by copy.
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
            _ => Err("files of sets come by auto, reflink, hardlink or copy".to_owned()),
        }
    }
}

/// Puts a file of a set into a job's directory under another name, read-only. Gives the file, or `None` if the set has none of that
/// name. `ours` says whether a worker made the set; others' files are never linked.
pub(in crate::worker) fn place(
    set: &OwnedFd,
    name: &SafeName,
    ours: bool,
    job: &OwnedFd,
    target: &SafeName,
    mode: LinkMode,
) -> Option<io::Result<File>> {
    let source = match open(set, name) {
        Ok(found) => found?,
        Err(error) => return Some(Err(error)),
    };
    Some(place_open(&source, set, name, ours, job, target, mode))
}

fn place_open(
    source: &File,
    set: &OwnedFd,
    name: &SafeName,
    ours: bool,
    job: &OwnedFd,
    target: &SafeName,
    mode: LinkMode,
) -> io::Result<File> {
    let folder = make_folder(job, target, Mode::RWXU)?;
    let (clone, link, copy) = match mode {
        LinkMode::Auto => (true, ours && !rustix::process::geteuid().is_root(), true),
        LinkMode::Reflink => (true, false, !ours),
        LinkMode::Hardlink => (false, ours, !ours),
        LinkMode::Copy => (false, false, true),
    };
    if clone || copy {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut made: File = openat(&folder, target.file(), flags, Mode::RUSR | Mode::WUSR)?.into();
        let cloned = if clone { ioctl_ficlone(&made, source).map_err(io::Error::from) } else { Ok(()) };
        let done = match cloned {
            Ok(()) if clone => true,
            Err(error) if !link && !copy => return Err(error),
            Ok(()) | Err(_) => false,
        };
        if !done && !link {
            io::copy(&mut &*source, &mut made)?;
        }
        if done || !link {
            made.set_permissions(Permissions::from_mode(0o444))?;
            return Ok(made);
        }
        unlinkat(&folder, target.file(), AtFlags::empty())?;
    }
    let from = open_folder(set, name)?;
    match linkat(&from, name.file(), &folder, target.file(), AtFlags::empty()) {
        Ok(()) => {}
        // Another file system, or as many links as it takes.
        Err(error) if copy && error != rustix::io::Errno::EXIST => {
            return place_open(source, set, name, false, job, target, LinkMode::Copy);
        }
        Err(error) => return Err(error.into()),
    }
    Ok(openat(&folder, target.file(), OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?
        .into())
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
