//! Parks frames for peers that do not read in a file, when others need the memory. A peer is served
//! from the file a slice at a time, as its socket takes it. Large frames that arrive slowly are
//! gathered here too.
//!
//! The file has no name, so nothing survives the leader. It is created on first use, with a region
//! for each peer; a peer's region is returned to the disk when the peer is done. One thread does
//! all reads and writes.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use bytes::Bytes;
use rustix::fs::{FallocateFlags, Mode, OFlags};
use tokio::sync::oneshot;

/// Bytes of a peer's place. What may be on its way to one peer is less.
const PLACE_BYTES: u64 = 16 << 20;

/// Peers that have a place at a time.
const PLACES_MAX: u64 = 1_024;

/// Bytes that are read at a time.
pub(super) const SLICE_BYTES: usize = 64 << 10;

/// The file, and the thread that has it.
pub(super) struct Parking {
    data: PathBuf,
    lot: Rc<RefCell<Lot>>,
}

/// Which places are free.
#[derive(Default)]
struct Lot {
    thread: Option<mpsc::Sender<Operation>>,
    file: Option<Arc<File>>,
    /// Places below [`Lot::used`] that are free again.
    free: BTreeSet<u64>,
    used: u64,
}

enum Operation {
    Write(Arc<File>, u64, Vec<Bytes>, oneshot::Sender<io::Result<()>>),
    Read(Arc<File>, u64, usize, oneshot::Sender<io::Result<Bytes>>),
    Free(Arc<File>, u64),
}

/// The place of one peer. It is free again when this is dropped.
pub(super) struct Place {
    lot: Rc<RefCell<Lot>>,
    file: Arc<File>,
    number: u64,
}

impl Parking {
    /// Beneath this directory, or as near to it as there is one.
    pub(super) fn new(data: &Path) -> Self {
        Parking { data: data.to_owned(), lot: Rc::default() }
    }

    /// A place for what waits for a peer.
    pub(super) fn place(&self) -> io::Result<Place> {
        let mut lot = self.lot.borrow_mut();
        if lot.thread.is_none() {
            let (operations, queue) = mpsc::channel();
            std::thread::Builder::new().name("parking".to_owned()).spawn(move || work(&queue))?;
            lot.thread = Some(operations);
        }
        let file = match &lot.file {
            Some(file) => file.clone(),
            None => lot.file.insert(Arc::new(nameless_file(&self.data)?)).clone(),
        };
        let number = match lot.free.pop_first() {
            Some(number) => number,
            None if lot.used < PLACES_MAX => {
                lot.used += 1;
                lot.used - 1
            }
            None => {
                let text =
                    format!("{PLACES_MAX} peers do not read what waits for them on the disk");
                return Err(io::Error::other(text));
            }
        };
        Ok(Place { lot: self.lot.clone(), file, number })
    }
}

impl Place {
    /// Where in the file it begins.
    pub(super) fn start(&self) -> u64 {
        self.number * PLACE_BYTES
    }

    /// Writes to the place, from somewhere in it on.
    pub(super) async fn write(&self, at: u64, pieces: Vec<Bytes>) -> io::Result<()> {
        let bytes: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        if at < self.start() || at + bytes > self.start() + PLACE_BYTES {
            return Err(io::Error::other(format!(
                "{bytes} bytes more wait for one peer; {PLACE_BYTES} fit a place"
            )));
        }
        let (done, written) = oneshot::channel();
        self.execute(Operation::Write(self.file.clone(), at, pieces, done));
        written.await.map_err(io::Error::other)?
    }

    /// Reads bytes of the file.
    pub(super) async fn read(&self, at: u64, len: usize) -> io::Result<Bytes> {
        let (done, read) = oneshot::channel();
        self.execute(Operation::Read(self.file.clone(), at, len, done));
        read.await.map_err(io::Error::other)?
    }

    fn execute(&self, operation: Operation) {
        if let Some(thread) = &self.lot.borrow().thread {
            thread.send(operation).ok();
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        // What was said before about the place is done first.
        self.execute(Operation::Free(self.file.clone(), self.start()));
        self.lot.borrow_mut().free.insert(self.number);
    }
}

/// Ends with the last sender.
fn work(queue: &mpsc::Receiver<Operation>) {
    while let Ok(operation) = queue.recv() {
        match operation {
            Operation::Write(file, mut at, pieces, done) => {
                let written = pieces.iter().try_for_each(|piece| {
                    file.write_all_at(piece, at)?;
                    at += piece.len() as u64;
                    Ok(())
                });
                // Before it is told: the memory is free by then.
                drop(pieces);
                done.send(written).ok();
            }
            Operation::Read(file, at, len, done) => {
                let mut bytes = vec![0; len];
                done.send(file.read_exact_at(&mut bytes, at).map(|()| bytes.into())).ok();
            }
            Operation::Free(file, start) => {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                // A file system that cannot do that keeps the room until the leader stops.
                rustix::fs::fallocate(&*file, flags, start, PLACE_BYTES).ok();
            }
        }
    }
}

/// A file without a name.
fn nameless_file(data: &Path) -> io::Result<File> {
    let data = std::path::absolute(data)?;
    let dir = data.ancestors().find(|dir| dir.is_dir()).unwrap_or(Path::new("/"));
    let (flags, mode) = (OFlags::RDWR | OFlags::CLOEXEC, Mode::RUSR | Mode::WUSR);
    match rustix::fs::open(dir, flags | OFlags::TMPFILE, mode) {
        Ok(file) => Ok(file.into()),
        // A file system that knows no such files.
        Err(_) => {
            let path = dir.join(format!(".heft-parked-{}", std::process::id()));
            let file = rustix::fs::open(&path, flags | OFlags::CREATE | OFlags::EXCL, mode)?;
            std::fs::remove_file(&path)?;
            Ok(file.into())
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_parked_is_read_back_and_its_place_is_used_again_without_what_was_there() {
        let dir = tempfile::tempdir().unwrap();
        let parking = Parking::new(&dir.path().join("not/there"));
        let (first, second) = (parking.place().unwrap(), parking.place().unwrap());
        let pieces = vec![Bytes::from_static(b"one "), Bytes::from_static(b"after the other")];
        second.write(second.start(), pieces).await.unwrap();
        assert_eq!(second.read(second.start() + 4, 9).await.unwrap(), "after the");
        let start = first.start();
        first.write(start, vec![vec![7; 9000].into()]).await.unwrap();
        drop(first);
        let again = parking.place().unwrap();
        assert_eq!(again.start(), start);
        again.write(start, vec![Bytes::from_static(b"new")]).await.unwrap();
        assert_eq!(again.read(start, 5).await.unwrap(), &b"new\0\0"[..]);
        let too_long = usize::try_from(PLACE_BYTES).unwrap() + 1;
        assert!(again.write(start, vec![vec![0; too_long].into()]).await.is_err());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "nothing is left behind");
    }
}
