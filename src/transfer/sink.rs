//! Sinks: where the bytes of an incoming blob are written.
//!
//! A sink is given checked raw bytes at their offsets, in any order, and returns them where a
//! digest over the whole blob requires it. It decides nothing. [`Download`](super::Download) is the
//! only caller; handlers and clients may supply sinks of their own.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Takes the bytes of one blob.
pub trait ChunkSink: Send {
    /// Stores raw bytes at their place.
    fn write(&mut self, offset: u64, raw: &[u8]) -> io::Result<()>;

    /// Gives stored bytes back, for a digest over the whole blob (`--digest sha256` or `blake3`). A
    /// sink that keeps nothing gives an error of kind `Unsupported`, and takes such blobs only if
    /// their chunks come in order.
    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// All chunks have come: the places whose bytes are not what they should be, for a sink that
    /// knows that of its parts. Their chunks are asked for once more. Called before
    /// [`finish`](Self::finish), after each round.
    fn wrong(&mut self) -> io::Result<Vec<Range<u64>>> {
        Ok(Vec::new())
    }

    /// All bytes have come and are right. Called once, before the sender hears of it.
    fn finish(&mut self) -> io::Result<()>;

    /// Whether the calls may wait for a disk; then they are made on a thread for that.
    fn blocks(&self) -> bool {
        true
    }

    /// Where the bytes go, for the texts of errors: "in /tmp/jobs/...".
    fn place(&self) -> String {
        String::new()
    }
}

/// A file, written at offsets and sparse until it is whole. It is closed when it is.
#[derive(Debug)]
pub struct FileSink {
    file: Option<File>,
    place: String,
}

impl FileSink {
    /// Into this file, which is open for reading and writing and empty. `place` says in texts where
    /// it is.
    pub fn new(file: File, place: impl Into<String>) -> Self {
        FileSink { file: Some(file), place: place.into() }
    }

    fn file(&self) -> io::Result<&File> {
        self.file.as_ref().ok_or_else(|| io::Error::other("the file is complete and closed"))
    }
}

impl ChunkSink for FileSink {
    fn write(&mut self, offset: u64, raw: &[u8]) -> io::Result<()> {
        write_at(self.file()?, offset, raw)
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        read_at(self.file()?, offset, into)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.file = None;
        Ok(())
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

#[cfg(unix)]
fn write_at(file: &File, offset: u64, raw: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, raw, offset)
}

#[cfg(unix)]
fn read_at(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, into, offset)
}

// Where a system has no such calls: nobody else moves the file's position.
#[cfg(not(unix))]
fn write_at(mut file: &File, offset: u64, raw: &[u8]) -> io::Result<()> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
    io::Write::write_all(&mut file, raw)
}

#[cfg(not(unix))]
fn read_at(mut file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    io::Seek::seek(&mut file, io::SeekFrom::Start(offset))?;
    io::Read::read_exact(&mut file, into)
}

/// Memory that others read when the blob is whole; for small blobs and for tests. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct MemorySink {
    bytes: Arc<Mutex<Vec<u8>>>,
}

impl MemorySink {
    /// Takes what came.
    pub fn take(&self) -> Vec<u8> {
        std::mem::take(&mut self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ChunkSink for MemorySink {
    fn write(&mut self, offset: u64, raw: &[u8]) -> io::Result<()> {
        let mut bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = range(offset, raw.len())?;
        if bytes.len() < end {
            bytes.resize(end, 0);
        }
        if let Some(place) = bytes.get_mut(start..end) {
            place.copy_from_slice(raw);
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let bytes = self.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let (start, end) = range(offset, into.len())?;
        into.copy_from_slice(bytes.get(start..end).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn blocks(&self) -> bool {
        false
    }

    fn place(&self) -> String {
        "in memory".to_owned()
    }
}

fn range(offset: u64, len: usize) -> io::Result<(usize, usize)> {
    let start = usize::try_from(offset).ok();
    let end = start.and_then(|start| start.checked_add(len));
    start.zip(end).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}
