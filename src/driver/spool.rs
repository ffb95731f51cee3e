//! The leader's spool files: chunks that wait for a worker and do not fit in memory. One thread does what the leader
//! says, in that order, so that a chunk is written before it is read and a file is removed after both.
//!
//! `DATA/spool/<blob>` is made when it is first needed, is nobody's but this leader's (a lock on `DATA/spool`), and does not
//! outlive it: what an earlier leader left is removed. Drivers start it; the leader's relay says what to do.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread::JoinHandle;

use chunking::limits::CHUNK_BYTES_MAX;
use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat};
use uuid::Uuid;

use crate::leader::{DiskDone, DiskOp};
use crate::peer::PoolBuf;

/// Files that are held open at a time; the others are opened when they are needed.
const OPEN_FILES_MAX: usize = 256;

/// The thread that has the files.
#[derive(Debug)]
pub struct Spool {
    operations: Option<mpsc::Sender<DiskOp>>,
    thread: Option<JoinHandle<()>>,
}

impl Spool {
    /// Starts the thread for files beneath `data`. Outcomes go to `done`, on that thread.
    pub fn start(data: &Path, done: impl Fn(DiskDone) + Send + 'static) -> io::Result<Self> {
        let mut files = Files { root: data.join("spool"), lock: None, open: HashMap::new() };
        if files.root.exists() {
            files.claim()?;
        } else {
            check(data)?;
        }
        let (operations, queue) = mpsc::channel();
        let thread = std::thread::Builder::new().name("spool".to_owned()).spawn(move || {
            while let Ok(operation) = queue.recv() {
                if let Some(outcome) = files.execute(operation) {
                    done(outcome);
                }
            }
            files.leave();
        })?;
        Ok(Spool { operations: Some(operations), thread: Some(thread) })
    }

    /// Does it, after what was said before.
    pub fn execute(&self, operation: DiskOp) {
        // The thread lives as long as this sender.
        if let Some(operations) = &self.operations {
            operations.send(operation).ok();
        }
    }
}

impl Drop for Spool {
    /// Waits until all is done and the files are gone.
    fn drop(&mut self) {
        self.operations = None;
        if let Some(thread) = self.thread.take() {
            thread.join().ok();
        }
    }
}

struct Files {
    root: PathBuf,
    /// Held while the directory is ours.
    lock: Option<OwnedFd>,
    open: HashMap<Uuid, File>,
}

impl Files {
    fn execute(&mut self, operation: DiskOp) -> Option<DiskDone> {
        match operation {
            DiskOp::Write { blob, index, bytes } => {
                let written = self.write(blob, index, &bytes);
                let result = written.map_err(|error| self.explain("write to", &error));
                Some(DiskDone::Written { blob, index, result })
            }
            DiskOp::Read { blob, index, len, conn, buffer } => {
                let len = usize::try_from(len).unwrap_or(usize::MAX);
                let result = match self.read(blob, index, len, buffer) {
                    Ok(buffer) => {
                        let bytes = buffer.freeze(len);
                        let crc = crc32fast::hash(&bytes);
                        Ok((bytes, crc))
                    }
                    Err(error) => Err(self.explain("read from", &error)),
                };
                Some(DiskDone::Read { blob, index, conn, result })
            }
            DiskOp::Remove { blob } => {
                self.open.remove(&blob);
                match fs::remove_file(self.path(blob)) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => tracing::warn!("{}", self.explain("remove a file of", &error)),
                }
                None
            }
        }
    }

    fn explain(&self, what: &str, error: &io::Error) -> String {
        let full = matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded);
        let next = if full { ": free space there, or give the leader another --data" } else { "" };
        format!("cannot {what} the leader's spool {}: {error}{next}", self.root.display())
    }

    fn path(&self, blob: Uuid) -> PathBuf {
        self.root.join(blob.simple().to_string())
    }

    fn write(&mut self, blob: Uuid, index: u32, bytes: &[u8]) -> io::Result<()> {
        if self.lock.is_none() {
            self.claim()?;
        }
        self.file(blob, true)?.write_all_at(bytes, offset(index))
    }

    fn read(&mut self, blob: Uuid, index: u32, len: usize, mut buffer: PoolBuf) -> io::Result<PoolBuf> {
        let room = buffer.room(0..len).ok_or(io::ErrorKind::InvalidInput)?;
        self.file(blob, false)?.read_exact_at(room, offset(index))?;
        Ok(buffer)
    }

    fn file(&mut self, blob: Uuid, create: bool) -> io::Result<&File> {
        if !self.open.contains_key(&blob) {
            if self.open.len() >= OPEN_FILES_MAX {
                self.open.clear();
            }
            let mut options = File::options();
            let options = options.read(true).write(true).create(create).truncate(false).mode(0o600);
            let file = options.open(self.path(blob))?;
            self.open.insert(blob, file);
        }
        self.open.get(&blob).ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// Makes the directory, or takes over what an earlier leader left, and empties it.
    fn claim(&mut self) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.root)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let lock = openat(CWD, &self.root, flags, Mode::empty())?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = format!(
                    "{} is in use by another leader: give each leader its own --data",
                    self.root.display()
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(error) => return Err(error.into()),
        }
        let mut removed = 0;
        for entry in fs::read_dir(&self.root)? {
            let entry = entry?;
            if entry.file_name().to_str().is_some_and(is_blob) {
                fs::remove_file(entry.path())?;
                removed += 1;
            }
        }
        if removed > 0 {
            tracing::info!(
                files = removed,
                "removed spool files of an earlier leader from {}",
                self.root.display()
            );
        }
        self.lock = Some(lock);
        Ok(())
    }

    /// Leaves nothing behind.
    fn leave(mut self) {
        self.open.clear();
        if self.lock.is_some()
            && let Ok(entries) = fs::read_dir(&self.root)
        {
            let is_ours = |entry: &fs::DirEntry| entry.file_name().to_str().is_some_and(is_blob);
            entries
                .flatten()
                .filter(is_ours)
                .for_each(|entry| fs::remove_file(entry.path()).unwrap_or_default());
            // It stays if somebody put something else there.
            fs::remove_dir(&self.root).ok();
        }
    }
}

/// Whether a spool can be made beneath `data` when it is needed: what is made to find out is removed.
pub fn check(data: &Path) -> io::Result<()> {
    let made = !data.exists();
    // A name of its own, as another leader may look at the same moment; that one may also take `data` away again.
    let place = data.join(format!("check-{}", std::process::id()));
    let try_once = || fs::create_dir_all(&place).and_then(|()| fs::remove_dir(&place));
    let lost_race = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let tried = try_once().or_else(|error| if lost_race(&error) { try_once() } else { Err(error) });
    if made {
        fs::remove_dir(data).ok();
    }
    tried.map_err(|error| {
        let text = format!("cannot keep a spool beneath {}: {error}; give another --data", data.display());
        io::Error::new(error.kind(), text)
    })
}

fn is_blob(name: &str) -> bool {
    Uuid::try_parse(name).is_ok()
}

fn offset(index: u32) -> u64 {
    u64::from(index) * u64::from(CHUNK_BYTES_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::ConnId;
    use crate::peer::Pool;
    use bytes::Bytes;

    #[test]
    fn chunks_are_written_read_back_and_removed_in_order() {
        let data = tempfile::tempdir().unwrap();
        let (sender, outcomes) = mpsc::channel();
        let spool = Spool::start(data.path(), move |done| sender.send(done).unwrap()).unwrap();
        assert!(!data.path().join("spool").exists(), "nothing is made before it is needed");
        let (blob, pool) = (Uuid::from_u128(1), Pool::new(1));
        spool.execute(DiskOp::Write { blob, index: 2, bytes: Bytes::from_static(b"chunk") });
        let buffer = pool.take().unwrap();
        spool.execute(DiskOp::Read { blob, index: 2, len: 5, conn: ConnId(9), buffer });
        assert!(matches!(outcomes.recv().unwrap(), DiskDone::Written { index: 2, result: Ok(()), .. }));
        let DiskDone::Read { conn, result: Ok((bytes, crc)), .. } = outcomes.recv().unwrap() else {
            panic!()
        };
        assert_eq!((conn, &bytes[..], crc), (ConnId(9), &b"chunk"[..], crc32fast::hash(b"chunk")));
        drop(bytes);
        spool.execute(DiskOp::Remove { blob });
        let buffer = pool.take().unwrap();
        spool.execute(DiskOp::Read { blob, index: 2, len: 5, conn: ConnId(9), buffer });
        assert!(matches!(outcomes.recv().unwrap(), DiskDone::Read { result: Err(_), .. }));
        assert_eq!(pool.in_use(), 0);
        let second = Spool::start(data.path(), |_| {}).unwrap_err();
        assert!(second.to_string().contains("another leader"), "{second}");
    }

    #[test]
    fn a_place_where_nothing_can_be_made_is_told_at_the_start() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("file"), b"").unwrap();
        for bad in [data.path().join("file"), data.path().join("file/deeper")] {
            let error = Spool::start(&bad, |_| {}).unwrap_err().to_string();
            assert!(error.contains("--data") && error.contains("file"), "{error}");
        }
        check(&data.path().join("new")).unwrap();
        assert!(!data.path().join("new").exists(), "what was made to find out is gone");
    }

    #[test]
    fn what_an_earlier_leader_left_is_removed_and_nothing_else() {
        let data = tempfile::tempdir().unwrap();
        let root = data.path().join("spool");
        fs::create_dir(&root).unwrap();
        fs::write(root.join(Uuid::from_u128(5).simple().to_string()), b"old").unwrap();
        fs::write(root.join("notes.txt"), b"mine").unwrap();
        let _spool = Spool::start(data.path(), |_| {}).unwrap();
        let left: Vec<_> = fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
    }
}
