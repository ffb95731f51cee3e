//! The threads that own the blob files. Each executes the leader's operations on its blobs in
//! order, so a chunk is written before it is read, and a file is removed after both.
//!
//! A leader without durable storage creates `DATA/spool` on first use and leaves nothing behind. A
//! durable leader has two such threads, because one alone does not keep a disk busy, and a third
//! that checks parts of datasets, so hashing a pack does not delay uploads.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use uuid::Uuid;

use crate::store::blobs::{BlobFiles, DiskDone, DiskOp, SPOOL};
use crate::store::disk::{DataDir, Disk};
use crate::store::format::Owner;
use crate::store::space::Reserve;

/// Threads that write blobs that outlive the leader.
const THREADS: usize = 2;

/// What the thread is called that looks at parts of datasets.
const LOOKS: &str = "looks";

/// The threads that have the files.
#[derive(Debug)]
pub struct Spool {
    threads: Vec<(mpsc::Sender<DiskOp>, JoinHandle<()>)>,
    /// The thread that checks parts of datasets, if it is not one of `threads`.
    looks: Option<(mpsc::Sender<DiskOp>, JoinHandle<()>)>,
}

impl Spool {
    /// Starts a thread for files beneath `data` that do not outlive it. Outcomes go to `done`, on
    /// that thread.
    pub fn passing(
        data: &Path,
        done: impl Fn(DiskDone) + Send + Clone + 'static,
    ) -> io::Result<Self> {
        let mut files = Passing { data: data.to_owned(), files: None };
        if data.join(SPOOL).exists() {
            files.claim()?;
        } else {
            check(data)?;
        }
        let work = move |operations: mpsc::Receiver<DiskOp>| {
            while let Ok(operation) = operations.recv() {
                if let Some(outcome) = files.execute(operation) {
                    done(outcome);
                }
            }
            files.leave();
        };
        Ok(Spool { threads: vec![start("spool".to_owned(), work)?], looks: None })
    }

    /// Starts threads for blobs that outlive the leader.
    pub fn durable(
        disk: &Arc<dyn Disk>,
        owner: Owner,
        reserve: Reserve,
        done: impl Fn(DiskDone) + Send + Clone + 'static,
    ) -> io::Result<Self> {
        let begin = |thread: usize, name: &str| {
            let files = BlobFiles::durable(disk.clone(), owner, name)?;
            let mut files = files.keeping(reserve).sharing(THREADS);
            let done = done.clone();
            let work = move |operations: mpsc::Receiver<DiskOp>| {
                let tell = |files: &mut BlobFiles| {
                    if let Some(bytes) = files.recycled_news() {
                        done(DiskDone::Recycled { thread, bytes });
                    }
                };
                // What an earlier leader left.
                tell(&mut files);
                while let Ok(operation) = operations.recv() {
                    if let Some(outcome) = files.execute(operation) {
                        done(outcome);
                    }
                    tell(&mut files);
                }
            };
            start(format!("blobs-{name}"), work)
        };
        let threads = (0..THREADS).map(|number| begin(number, &number.to_string()));
        let threads = threads.collect::<io::Result<_>>()?;
        Ok(Spool { threads, looks: Some(begin(THREADS, LOOKS)?) })
    }

    fn to_each(&self, operation: impl Fn() -> DiskOp) {
        self.threads
            .iter()
            .for_each(|(operations, _)| operations.send(operation()).unwrap_or_default());
    }

    /// Does it, after what was said before about the same blob.
    pub fn execute(&self, operation: DiskOp) {
        if matches!(operation, DiskOp::MakeRoom) {
            // Each has files of its own.
            return self.to_each(|| DiskOp::MakeRoom);
        }
        if let DiskOp::Measure { mark } = operation {
            // The last of them has done what was said before to all.
            return self.to_each(|| DiskOp::Measure { mark });
        }
        // What is looked at was made certain before.
        if let (DiskOp::Look { .. }, Some((operations, _))) = (&operation, &self.looks) {
            operations.send(operation).ok();
            return;
        }
        let blob = operation.blob().unwrap_or(Uuid::nil()).as_u128();
        let at = usize::try_from((blob ^ (blob >> 64)) % self.threads.len().max(1) as u128)
            .unwrap_or_default();
        // The thread lives as long as this sender.
        if let Some((operations, _)) = self.threads.get(at) {
            operations.send(operation).ok();
        }
    }
}

fn start(
    name: String,
    work: impl FnOnce(mpsc::Receiver<DiskOp>) + Send + 'static,
) -> io::Result<(mpsc::Sender<DiskOp>, JoinHandle<()>)> {
    let (operations, queue) = mpsc::channel();
    let thread = std::thread::Builder::new().name(name).spawn(move || work(queue))?;
    Ok((operations, thread))
}

impl Drop for Spool {
    /// Waits until all is done.
    fn drop(&mut self) {
        for (operations, thread) in self.threads.drain(..).chain(self.looks.take()) {
            drop(operations);
            thread.join().ok();
        }
    }
}

/// Files that do not outlive the leader, made when they are first needed.
struct Passing {
    data: PathBuf,
    files: Option<BlobFiles>,
}

impl Passing {
    fn execute(&mut self, operation: DiskOp) -> Option<DiskDone> {
        let claimed = match self.files {
            Some(_) => Ok(()),
            None => self.claim(),
        };
        match (&mut self.files, claimed, operation) {
            (Some(files), Ok(()), operation) => files.execute(operation),
            (_, claimed, DiskOp::Write { blob, index, .. }) => {
                let result = claimed.map_err(|error| error.to_string());
                Some(DiskDone::Written { blob, index, result })
            }
            (_, _, operation) => {
                tracing::warn!(?operation, "there is no spool");
                None
            }
        }
    }

    /// Makes the directory, or takes over what an earlier leader left, and empties it.
    fn claim(&mut self) -> io::Result<()> {
        let disk = DataDir::claim(&self.data).map_err(io::Error::other)?;
        let mut files = BlobFiles::spool(Arc::new(disk))?;
        let removed = files.clear()?;
        if removed > 0 {
            tracing::info!(
                files = removed,
                "removed spool files of a previous run from {}",
                self.data.join(SPOOL).display()
            );
        }
        self.files = Some(files);
        Ok(())
    }

    /// Leaves nothing behind, but for what somebody else put there.
    fn leave(mut self) {
        if let Some(mut files) = self.files.take() {
            if let Err(error) = files.clear() {
                tracing::warn!("cannot remove spool files: {error}");
            }
            std::fs::remove_dir(self.data.join(SPOOL)).ok();
            std::fs::remove_file(self.data.join("lock")).ok();
        }
    }
}

/// Whether a spool can be made beneath `data` when it is needed: what is made to find out is
/// removed.
pub fn check(data: &Path) -> io::Result<()> {
    let made = !data.exists();
    // A name of its own, as another leader may look at the same moment; that one may also take
    // `data` away again.
    let place = data.join(format!("check-{}", std::process::id()));
    let try_once = || std::fs::create_dir_all(&place).and_then(|()| std::fs::remove_dir(&place));
    let lost_race = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let tried = try_once().or_else(|error| if lost_race(&error) { try_once() } else { Err(error) });
    if made {
        std::fs::remove_dir(data).ok();
    }
    tried.map_err(|error| {
        let text =
            format!("cannot keep a spool beneath {}: {error}; give another --data", data.display());
        io::Error::new(error.kind(), text)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::ConnId;
    use crate::wire::Pool;
    use bytes::Bytes;
    use chunking::ChunkHead;
    use std::fs;

    fn write(blob: Uuid, index: u32, bytes: &'static [u8]) -> DiskOp {
        let bytes = Bytes::from_static(bytes);
        DiskOp::Write { blob, index, head: ChunkHead::plain(u64::from(index) << 20, &bytes), bytes }
    }

    #[test]
    fn chunks_are_written_read_back_and_removed_in_order() {
        let data = tempfile::tempdir().unwrap();
        let (sender, outcomes) = mpsc::channel();
        let spool = Spool::passing(data.path(), move |done| sender.send(done).unwrap()).unwrap();
        assert!(!data.path().join("spool").exists(), "nothing is made before it is needed");
        let (blob, pool) = (Uuid::from_u128(1), Pool::new(1));
        let read = |crc| {
            let (len, conn, buffer) = (5, ConnId(9), pool.take().unwrap());
            spool.execute(DiskOp::Read { blob, index: 2, len, crc, conn, buffer });
            let DiskDone::Read { conn: ConnId(9), result, .. } = outcomes.recv().unwrap() else {
                panic!()
            };
            result
        };
        spool.execute(write(blob, 2, b"chunk"));
        assert!(matches!(
            outcomes.recv().unwrap(),
            DiskDone::Written { index: 2, result: Ok(()), .. }
        ));
        let crc = crc32fast::hash(b"chunk");
        assert_eq!(&read(crc).unwrap()[..], b"chunk");
        let damaged = read(crc + 1).unwrap_err();
        assert!(damaged.contains("spool/") && damaged.contains("offset 2097152"), "{damaged}");
        spool.execute(DiskOp::Remove { blob });
        assert!(read(crc).is_err());
        assert_eq!(pool.in_use(), 0);
        let second = Spool::passing(data.path(), |_| {}).unwrap_err();
        assert!(second.to_string().contains("another leader"), "{second}");
        drop(spool);
        assert_eq!(fs::read_dir(data.path()).unwrap().count(), 0, "nothing is left");
    }

    #[test]
    fn a_place_where_nothing_can_be_made_is_told_at_the_start() {
        let data = tempfile::tempdir().unwrap();
        fs::write(data.path().join("file"), b"").unwrap();
        for bad in [data.path().join("file"), data.path().join("file/deeper")] {
            let error = Spool::passing(&bad, |_| {}).unwrap_err().to_string();
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
        let _spool = Spool::passing(data.path(), |_| {}).unwrap();
        let left: Vec<_> =
            fs::read_dir(&root).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["notes.txt"]);
    }
}
