//! The disk as the store sees it: files beneath one directory, and what is durable after a sync.
//!
//! The store does all its I/O through [`Disk`], so tests can substitute a disk that loses unsynced
//! data, tears writes and fails. [`DataDir`] is the real one. File names are the store's own, never
//! a peer's.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::space::Space;
use rustix::fs::{AtFlags, CWD, Dir, FallocateFlags, FileType, FlockOperation, Mode, OFlags};

/// Blocks in which a file that passes by the page cache is written and read.
pub const BLOCK_BYTES: usize = 4096;

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// To be read.
    Read,
    /// To be read and written. It is there.
    Write,
    /// To be read and written. It is not there yet, or is emptied.
    Create,
    /// To be read and written. It is made if it is not there, and keeps what it has.
    Keep,
    /// To be read and written past the page cache, where the disk lets it. It is made if it is not
    /// there, and keeps what it has. What is written is filled up with zeros to a whole block;
    /// reads are of whole blocks into memory that begins with a page.
    Direct,
}

/// A file in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Found {
    pub name: String,
    pub len: u64,
    /// When it was last written to, in seconds since 1970.
    pub written_at: u64,
}

/// Files beneath one directory. Paths are relative to it, with `/` between their parts.
pub trait Disk: Send + Sync + fmt::Debug {
    /// Opens a file. A new file is durable only after [`Disk::sync_dir`].
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn DiskFile>>;

    /// The files in a directory, in the order of their names. None if there is no such directory.
    fn list(&self, dir: &str) -> io::Result<Vec<Found>>;

    /// Makes a directory, unless it is there. Afterwards it is durable.
    fn make_dir(&self, dir: &str) -> io::Result<()>;

    /// Gives a file another name, in the place of what had it.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, path: &str) -> io::Result<()>;

    /// Syncs what was created, renamed and removed in a directory.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;

    /// How much room there is. An error where that cannot be told.
    fn space(&self) -> io::Result<Space> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The directory, for texts.
    fn root(&self) -> String;
}

/// An open file.
pub trait DiskFile: Send + fmt::Debug {
    fn len(&self) -> io::Result<u64>;

    /// Whether it has none.
    fn is_empty(&self) -> io::Result<bool> {
        Ok(self.len()? == 0)
    }

    /// Reads as many bytes as there are, up to as many as fit; says how many those are.
    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize>;

    /// Writes all of the bytes.
    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts it, or makes it longer by zeros.
    fn set_len(&mut self, len: u64) -> io::Result<()>;

    /// Has the disk find room for so many bytes beforehand. Where it cannot, nothing happens.
    fn allocate(&mut self, len: u64) -> io::Result<()>;

    /// The same without making the file longer, so that what is written there later finds its room
    /// whoever fills the disk until then. An error of the kind `Unsupported` where the disk cannot
    /// do that.
    fn allocate_ahead(&mut self, _len: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Syncs what was written, and the length.
    fn sync(&mut self) -> io::Result<()>;
}

/// Reads exactly as many bytes as fit; an error if there are fewer.
pub fn read_exact(file: &dyn DiskFile, at: u64, into: &mut [u8]) -> io::Result<()> {
    match file.read_at(at, into)? {
        len if len == into.len() => Ok(()),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// A directory of this machine, which nobody else uses while it is held.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    root: OwnedFd,
    direct: bool,
    /// Held as long as the directory is ours.
    _lock: Option<OwnedFd>,
}

/// Why a data directory cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// Somebody else has it.
    #[error("{path} is in use by another leader: give each leader its own --data")]
    Locked { path: String },
    /// It cannot be made or written to.
    #[error("cannot use {path} as data directory: {error}{hint}")]
    Io {
        path: String,
        error: io::Error,
        /// What to do.
        hint: &'static str,
    },
}

/// Whether the disk has no room, or a file may not grow (`ulimit -f`).
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    )
}

/// Whether no descriptor was left to open a file with.
pub fn is_out_of_files(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(rustix::io::Errno::from_raw_os_error);
    matches!(errno, Some(rustix::io::Errno::MFILE | rustix::io::Errno::NFILE))
}

/// What to do about an error of the disk, behind its text.
pub fn hint(error: &io::Error) -> &'static str {
    let hints: [(&[io::ErrorKind], &'static str); 4] = [
        (
            &[io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded],
            "; the disk is full: free space there, or give another --data",
        ),
        (
            &[io::ErrorKind::ReadOnlyFilesystem],
            "; it is read-only: mount it for writing, or give another --data",
        ),
        (
            &[io::ErrorKind::PermissionDenied],
            "; this user may not write there: change its owner, or give another --data",
        ),
        (
            &[io::ErrorKind::NotADirectory, io::ErrorKind::AlreadyExists],
            "; it is not a directory: give another --data",
        ),
    ];
    let found = hints.iter().find(|(kinds, _)| kinds.contains(&error.kind()));
    found.map_or("", |(_, hint)| hint)
}

impl DataDir {
    /// Makes the directory if it is not there, and takes it for this process alone.
    pub fn claim(path: &Path) -> Result<Self, DirError> {
        let explain = |error: io::Error| {
            let hint = hint(&error);
            DirError::Io { path: path.display().to_string(), error, hint }
        };
        make_certain(path).map_err(explain)?;
        let root = open_root(path).map_err(explain)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = rustix::fs::openat(&root, "lock", flags, Mode::RUSR | Mode::WUSR)
            .map_err(|error| explain(error.into()))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                return Err(DirError::Locked { path: path.display().to_string() });
            }
            Err(error) => return Err(explain(error.into())),
        }
        let direct = takes_direct(&root);
        Ok(DataDir { path: path.to_owned(), root, direct, _lock: Some(lock) })
    }

    /// The directory as it is, to be looked at: nothing is made and nothing is taken.
    pub fn look(path: &Path) -> Result<Self, DirError> {
        let root = open_root(path).map_err(|error| {
            let hint = hint(&error);
            DirError::Io { path: path.display().to_string(), error, hint }
        })?;
        Ok(DataDir { path: path.to_owned(), root, direct: false, _lock: None })
    }

    /// A directory that was there must be one, and not somebody else's: where all may make files,
    /// others may have been first.
    fn check_dir(&self, dir: &str) -> io::Result<()> {
        let found = rustix::fs::statat(&self.root, dir, AtFlags::SYMLINK_NOFOLLOW)?;
        let path = self.path.join(dir);
        if FileType::from_raw_mode(found.st_mode) != FileType::Directory {
            let text = format!("{} is not a directory: remove it", path.display());
            return Err(io::Error::new(io::ErrorKind::NotADirectory, text));
        }
        let (user, above) =
            (rustix::process::geteuid().as_raw(), rustix::fs::fstat(&self.root)?.st_uid);
        if found.st_uid != user && found.st_uid != above {
            let owner = found.st_uid;
            let text =
                format!("{} belongs to user {owner}, and this is user {user}", path.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    /// Whether files can be written past the page cache.
    pub fn is_direct(&self) -> bool {
        self.direct
    }
}

/// Makes a directory and its parents, and syncs them.
fn make_certain(path: &Path) -> io::Result<()> {
    let missing: Vec<&Path> = path.ancestors().take_while(|path| !path.exists()).collect();
    std::os::unix::fs::DirBuilderExt::mode(std::fs::DirBuilder::new().recursive(true), 0o700)
        .create(path)?;
    for made in missing {
        let parent = match made.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => continue,
        };
        // One that may be written to and not be read cannot be synced.
        if let Ok(parent) = open_root(parent) {
            rustix::fs::fsync(parent)?;
        }
    }
    Ok(())
}

fn open_root(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}

/// Whether a file can be opened past the page cache: tried with one that has no name for longer
/// than that. A disk without room for it can.
fn takes_direct(root: &OwnedFd) -> bool {
    let name = format!("probe-{}", std::process::id());
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC | OFlags::DIRECT;
    let opened = rustix::fs::openat(root, &name, flags, Mode::RUSR | Mode::WUSR);
    let Ok(file) = opened.map(File::from) else { return false };
    rustix::fs::unlinkat(root, &name, AtFlags::empty()).ok();
    let (memory, start) = aligned(BLOCK_BYTES);
    let block = memory.get(start..start + BLOCK_BYTES).unwrap_or_default();
    file.write_all_at(block, 0).map_or_else(|error| is_full(&error), |()| true)
}

/// Memory in which `bytes` begin with a page, and where they do.
fn aligned(bytes: usize) -> (Vec<u8>, usize) {
    let memory = vec![0; bytes + BLOCK_BYTES];
    let start = memory.as_ptr().align_offset(BLOCK_BYTES).min(BLOCK_BYTES);
    (memory, start)
}

impl Disk for DataDir {
    fn open(&self, path: &str, how: How) -> io::Result<Box<dyn DiskFile>> {
        let flags = match how {
            How::Read => OFlags::RDONLY,
            How::Write => OFlags::RDWR,
            How::Create => OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC,
            How::Keep => OFlags::RDWR | OFlags::CREATE,
            How::Direct if self.direct => OFlags::RDWR | OFlags::CREATE | OFlags::DIRECT,
            How::Direct => OFlags::RDWR | OFlags::CREATE,
        };
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::RUSR | Mode::WUSR)?;
        Ok(Box::new(RealFile { file: file.into(), direct: self.direct && how == How::Direct }))
    }

    fn list(&self, dir: &str) -> io::Result<Vec<Found>> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let opened = match rustix::fs::openat(&self.root, dir, flags, Mode::empty()) {
            Ok(opened) => opened,
            Err(rustix::io::Errno::NOENT) => return Ok(Vec::new()),
            Err(error) => return Err(error.into()),
        };
        let mut found = Vec::new();
        for entry in Dir::read_from(&opened)? {
            let entry = entry?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            let Ok(stat) = rustix::fs::statat(&opened, name, AtFlags::SYMLINK_NOFOLLOW) else {
                continue;
            };
            if FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile {
                let len = u64::try_from(stat.st_size).unwrap_or_default();
                let written_at = u64::try_from(stat.st_mtime).unwrap_or_default();
                found.push(Found { name: name.to_owned(), len, written_at });
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    fn make_dir(&self, dir: &str) -> io::Result<()> {
        match rustix::fs::mkdirat(&self.root, dir, Mode::RWXU) {
            // One that is there may be of somebody who was killed before it was certain.
            Ok(()) => self.sync_dir("."),
            Err(rustix::io::Errno::EXIST) => self.check_dir(dir).and_then(|()| self.sync_dir(".")),
            Err(error) => Err(error.into()),
        }
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        Ok(rustix::fs::renameat(&self.root, from, &self.root, to)?)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        Ok(rustix::fs::unlinkat(&self.root, path, AtFlags::empty())?)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&self.root, dir, flags, Mode::empty())?;
        Ok(rustix::fs::fsync(opened)?)
    }

    fn space(&self) -> io::Result<Space> {
        let stat = rustix::fs::fstatvfs(&self.root)?;
        let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
        Ok(Space { free: bytes(stat.f_bavail), total: bytes(stat.f_blocks) })
    }

    fn root(&self) -> String {
        self.path.display().to_string()
    }
}

#[derive(Debug)]
struct RealFile {
    file: File,
    direct: bool,
}

/// Writes past the page cache: whole blocks from where they lie. What does not fill a block, or
/// does not lie at the start of one in memory, as pieces that were put together, is copied to where
/// it does.
fn write_direct(
    at: u64,
    bytes: &[u8],
    mut write: impl FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<()> {
    let is_aligned = bytes.as_ptr().align_offset(BLOCK_BYTES) == 0;
    let whole = if is_aligned { bytes.len() / BLOCK_BYTES * BLOCK_BYTES } else { 0 };
    let (blocks, rest) = bytes.split_at(whole);
    if !blocks.is_empty() {
        write(blocks, at)?;
    }
    if rest.is_empty() {
        return Ok(());
    }
    let len = rest.len().next_multiple_of(BLOCK_BYTES);
    let (mut memory, start) = aligned(len);
    let copy = memory.get_mut(start..start + len).ok_or(io::ErrorKind::InvalidInput)?;
    copy.iter_mut().zip(rest).for_each(|(to, from)| *to = *from);
    write(copy, at + whole as u64)
}

impl DiskFile for RealFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let mut done = 0;
        while done < into.len() {
            match self.file.read_at(into.get_mut(done..).unwrap_or_default(), at + done as u64) {
                Ok(0) => break,
                Ok(read) => done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    fn write_at(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let write = |bytes: &[u8], at| self.file.write_all_at(bytes, at);
        if self.direct { write_direct(at, bytes, write) } else { write(bytes, at) }
    }

    fn set_len(&mut self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn allocate(&mut self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::empty(), 0, len) {
            Ok(()) | Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    fn allocate_ahead(&mut self, len: u64) -> io::Result<()> {
        match rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, 0, len) {
            Ok(()) => Ok(()),
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::INVAL) => {
                Err(io::ErrorKind::Unsupported.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_aligned_in_memory_is_written_in_one_go_as_well() {
        let (mut memory, start) = aligned(1 << 20);
        memory.iter_mut().zip((0..=250).cycle()).for_each(|(byte, number)| *byte = number);
        let all = &memory[start..start + (1 << 20)];
        for (bytes, lengths) in [
            (all, vec![1 << 20]),
            (&all[1..], vec![1 << 20]),
            (&all[..10_000], vec![8192, 4096]),
            (&all[7..10_007], vec![12_288]),
            (&all[..0], vec![]),
        ] {
            let (mut file, mut calls) = (Vec::new(), Vec::new());
            let write = |block: &[u8], at: u64| {
                assert_eq!(
                    (block.as_ptr().align_offset(BLOCK_BYTES), at),
                    (0, 65_536 + file.len() as u64)
                );
                file.extend_from_slice(block);
                calls.push(block.len());
                Ok(())
            };
            write_direct(65_536, bytes, write).unwrap();
            assert_eq!((&file[..bytes.len()], calls), (bytes, lengths));
            assert!(file[bytes.len()..].iter().all(|byte| *byte == 0));
        }
    }
}
