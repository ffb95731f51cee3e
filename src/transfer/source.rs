//! Reads a blob's bytes and prepares its chunks: read, checked, digested, compressed.
//!
//! A file is sent as it was when it was named. Its size, mtime and identity are recorded then and
//! compared at every read. A file that shrinks, grows, changes or is replaced ends the transfer
//! with an error that states both sizes; a mixture never reaches the other side. Files are open
//! only while they are read, so any number of them may wait. [`Upload`](super::Upload) calls it, on
//! a blocking thread where it may block.

use std::fs::{File, Metadata};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use chunking::digest::BlobHasher;
use chunking::sample::{Rates, Sampler};
use chunking::{ChunkHead, ChunkPlan, Codec, Compressor, Digest, DigestKind};
use thiserror::Error;

use super::outgoing::Work;
use super::pieces::{PieceReader, PieceSource};
use crate::wire::Pool;

/// Chunks of a file that may be in memory at a time: a batch that is read, and the one before it
/// that is sent.
pub(super) const READ_AHEAD_CHUNKS: usize = 2 * BATCH_CHUNKS;

/// Chunks that are read in one go on a blocking thread.
pub(super) const BATCH_CHUNKS: usize = 2;

/// Why a source cannot be read to its end as it was when it was named.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SourceError {
    /// It has another size now.
    #[error(
        "{} {} from {expected} bytes to {found} while it was sent: try again when nobody writes to it",
        path.display(), if found < expected { "shrank" } else { "grew" }
    )]
    Resized {
        path: PathBuf,
        /// Its size when it was named.
        expected: u64,
        /// Its size now.
        found: u64,
    },
    /// It was written to, or another file has its name.
    #[error(
        "{} changed while it was sent (it had {expected} bytes when it was named and has {found} now): try again when \
         nobody writes to it",
        path.display()
    )]
    Changed {
        path: PathBuf,
        /// Its size when it was named.
        expected: u64,
        /// Its size now.
        found: u64,
    },
    /// The system does not let us read it.
    #[error("cannot read {}: {why}", path.display())]
    Io {
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// There is no chunk at this place of the bytes in memory.
    #[error("the blob in memory has no chunk {index}")]
    NoChunk { index: u32 },
}

/// A file and what it was when it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileSource {
    path: PathBuf,
    size: u64,
    stamp: Stamp,
}

/// What tells one state of a file from another of the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    changed: Option<SystemTime>,
    /// Device and inode, where there are any.
    identity: Option<(u64, u64)>,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Stamp {
        Stamp { changed: metadata.modified().ok(), identity: identity(metadata) }
    }
}

#[cfg(unix)]
fn identity(metadata: &Metadata) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    Some((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
fn identity(_: &Metadata) -> Option<(u64, u64)> {
    None
}

impl FileSource {
    /// Notes what the file is now; it has to be one that can be read at any place.
    pub fn open(path: impl Into<PathBuf>) -> io::Result<Self> {
        let path = path.into();
        let metadata = File::open(&path)?.metadata()?;
        if !metadata.is_file() {
            let text = "it is not a regular file, so it has no size: write it to a file first";
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        }
        Ok(FileSource { path, size: metadata.len(), stamp: Stamp::of(&metadata) })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// How many bytes it had when it was named.
    pub const fn size(&self) -> u64 {
        self.size
    }

    pub(crate) fn io(&self, error: &io::Error) -> SourceError {
        SourceError::Io { path: self.path.clone(), why: error.to_string() }
    }

    /// Of bytes that are not those that were there when it was named, whatever its size and times
    /// say.
    pub(super) fn changed(&self) -> SourceError {
        SourceError::Changed { path: self.path.clone(), expected: self.size, found: self.size }
    }

    pub(crate) fn check(&self, file: &File) -> Result<(), SourceError> {
        let metadata = file.metadata().map_err(|error| self.io(&error))?;
        let (path, expected, found) = (|| self.path.clone(), self.size, metadata.len());
        if found != expected {
            return Err(SourceError::Resized { path: path(), expected, found });
        }
        if Stamp::of(&metadata) != self.stamp {
            return Err(SourceError::Changed { path: path(), expected, found });
        }
        Ok(())
    }

    pub(crate) fn reopen(&self) -> Result<File, SourceError> {
        let file = File::open(&self.path).map_err(|error| self.io(&error))?;
        self.check(&file)?;
        Ok(file)
    }

    /// The whole file, if it has at most `limit` bytes.
    pub fn read_small(&self, limit: u64) -> Result<Option<Vec<u8>>, SourceError> {
        if self.size > limit {
            return Ok(None);
        }
        let file = self.reopen()?;
        let mut content = Vec::new();
        (&file)
            .take(self.size.saturating_add(1))
            .read_to_end(&mut content)
            .map_err(|error| self.io(&error))?;
        self.check(&file)?;
        Ok(Some(content))
    }
}

/// The bytes of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// They are here. Chunks are slices of them, never copies.
    Memory(Bytes),
    /// They are in a file.
    File(FileSource),
    /// They are in many files.
    Pieces(PieceSource),
}

impl Source {
    /// The file at `path`, as it is now.
    pub fn file(path: impl Into<PathBuf>) -> io::Result<Self> {
        FileSource::open(path).map(Source::File)
    }

    /// How many bytes there are.
    pub fn size(&self) -> u64 {
        match self {
            Source::Memory(bytes) => bytes.len() as u64,
            Source::File(file) => file.size(),
            Source::Pieces(pieces) => pieces.size(),
        }
    }

    /// Bytes of it that are kept in memory.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Source::Memory(bytes) => bytes.len(),
            Source::File(_) => 0,
            Source::Pieces(pieces) => pieces.memory_bytes(),
        }
    }
}

/// A chunk that is ready to be sent.
#[derive(Debug)]
pub(super) struct Ready {
    pub(super) head: ChunkHead,
    pub(super) bytes: Bytes,
}

/// Reads chunks of one source, and keeps the digest that runs over them.
pub(super) struct Preparer {
    source: Source,
    plan: ChunkPlan,
    hasher: BlobHasher,
    compression: Option<(Compressor, Sampler)>,
    file: Option<File>,
    pieces: PieceReader,
    pool: Option<Pool>,
    scratch: Vec<u8>,
}

impl Preparer {
    pub(super) fn new(source: Source, plan: ChunkPlan, digest: DigestKind) -> Self {
        let hasher = BlobHasher::new(digest);
        Preparer {
            source,
            plan,
            hasher,
            compression: None,
            file: None,
            pieces: PieceReader::default(),
            pool: None,
            scratch: Vec::new(),
        }
    }

    /// Whether chunks may be made ready in place: they lie in memory and are sent as they are.
    pub(super) fn is_in_place(&self) -> bool {
        matches!(self.source, Source::Memory(_)) && self.compression.is_none()
    }

    /// From now on chunks go in `codec`, where a sample says that it pays at these rates. A codec
    /// that cannot be set up is left out: chunks then go as they are, which every receiver takes.
    pub(super) fn set_codec(&mut self, codec: Codec, rates: Rates) {
        self.compression = match codec {
            Codec::None => None,
            Codec::Gzip | Codec::Brotli | Codec::Zstd => {
                Compressor::new(codec).ok().map(|compressor| (compressor, Sampler::new(rates)))
            }
        };
    }

    /// Makes a chunk ready, or adds one to the digest alone.
    pub(super) fn prepare(&mut self, work: Work) -> Result<Option<Ready>, SourceError> {
        let (index, digest, send) = match work {
            Work::Send { index, digest } => (index, digest, true),
            Work::Digest { index } => (index, true, false),
        };
        let raw = self.read(index)?;
        let plain = ChunkHead::plain(self.plan.offset_of(index), &raw);
        if digest {
            self.hasher.update(&raw, plain.crc_raw);
        }
        Ok(send.then(|| self.compress(plain, raw)))
    }

    fn compress(&mut self, plain: ChunkHead, raw: Bytes) -> Ready {
        if let Some((compressor, sampler)) = &mut self.compression
            && sampler.wants(compressor, &raw)
            && compressor.compress(&raw, &mut self.scratch)
        {
            let sent = Bytes::copy_from_slice(&self.scratch);
            return Ready { head: plain.compressed(compressor.codec(), &sent), bytes: sent };
        }
        Ready { head: plain, bytes: raw }
    }

    fn read(&mut self, index: u32) -> Result<Bytes, SourceError> {
        let offset = self.plan.offset_of(index);
        let len = usize::try_from(self.plan.len_of(index)).unwrap_or(usize::MAX);
        match &self.source {
            Source::Memory(bytes) => {
                let start = usize::try_from(offset).unwrap_or(usize::MAX);
                let end = start.saturating_add(len);
                if end > bytes.len() || len == 0 {
                    return Err(SourceError::NoChunk { index });
                }
                Ok(bytes.slice(start..end))
            }
            Source::File(source) => {
                if self.file.is_none() {
                    self.file = Some(source.reopen()?);
                }
                let pool = self.pool.get_or_insert_with(|| Pool::new(READ_AHEAD_CHUNKS));
                let Some(file) = &mut self.file else { return Err(SourceError::NoChunk { index }) };
                let read = fill(pool, len, |room| {
                    file.seek(SeekFrom::Start(offset))?;
                    file.read_exact(room)
                });
                // The state is checked behind the read: what was read before the file changed is
                // right.
                source.check(file)?;
                read.map_err(|error| source.io(&error))
            }
            Source::Pieces(source) => {
                let pool = self.pool.get_or_insert_with(|| Pool::new(READ_AHEAD_CHUNKS));
                fill(pool, len, |room| self.pieces.read(source, offset, room))
            }
        }
    }

    /// Closes the file and gives buffers back; both come again with the next chunk that is read.
    pub(super) fn rest(&mut self) {
        self.file = None;
        self.pieces = PieceReader::default();
        self.pool = None;
        self.scratch = Vec::new();
    }

    /// The digest of all chunks. It means something once each of them was prepared for it.
    pub(super) fn digest(&self) -> Digest {
        self.hasher.clone().finish()
    }
}

/// A chunk of `len` bytes that `read` puts in place.
fn fill<E>(
    pool: &Pool,
    len: usize,
    read: impl FnOnce(&mut [u8]) -> Result<(), E>,
) -> Result<Bytes, E> {
    if let Some(mut buffer) = pool.take()
        && let Some(room) = buffer.room(0..len)
    {
        read(room)?;
        return Ok(buffer.freeze(len));
    }
    // Someone still holds on to chunks that were sent.
    let mut buffer = vec![0; len];
    read(&mut buffer)?;
    Ok(buffer.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::noise;
    use std::io::Write;

    const CHUNK: u32 = 4096;

    fn file_of(content: &[u8]) -> (tempfile::NamedTempFile, FileSource) {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(content).unwrap();
        let source = FileSource::open(file.path()).unwrap();
        (file, source)
    }

    fn preparer(source: Source, digest: DigestKind) -> Preparer {
        let plan = ChunkPlan::new(source.size(), CHUNK).unwrap();
        Preparer::new(source, plan, digest)
    }

    fn fresh(index: u32) -> Work {
        Work::Send { index, digest: true }
    }

    #[test]
    fn file_and_memory_give_the_same_chunks_and_digests() {
        let content = noise(10_000, 1);
        let (_kept, file) = file_of(&content);
        for kind in [DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3] {
            let mut in_memory = preparer(Source::Memory(content.clone().into()), kind);
            let mut in_file = preparer(Source::File(file.clone()), kind);
            for work in [
                fresh(0),
                Work::Digest { index: 1 },
                fresh(2),
                Work::Send { index: 1, digest: false },
            ] {
                let (memory, file) =
                    (in_memory.prepare(work).unwrap(), in_file.prepare(work).unwrap());
                assert_eq!(
                    memory.map(|ready| (ready.head, ready.bytes)),
                    file.map(|ready| (ready.head, ready.bytes))
                );
                in_file.rest();
            }
            assert_eq!(in_memory.digest(), in_file.digest());
            let mut whole = BlobHasher::new(kind);
            content
                .chunks(4096)
                .for_each(|chunk| whole.update(chunk, ChunkHead::plain(0, chunk).crc_raw));
            assert_eq!(in_memory.digest(), whole.finish());
        }
    }

    #[test]
    fn memory_is_sliced_and_not_copied() {
        let content: Bytes = noise(10_000, 1).into();
        let mut preparer = preparer(Source::Memory(content.clone()), DigestKind::ChunkList);
        assert!(preparer.is_in_place());
        let ready = preparer.prepare(fresh(1)).unwrap().unwrap();
        assert_eq!(ready.bytes.as_ptr(), content.slice(4096..).as_ptr());
        assert!(matches!(preparer.prepare(fresh(3)), Err(SourceError::NoChunk { index: 3 })));
    }

    #[test]
    fn a_file_that_shrinks_grows_changes_or_is_replaced_is_an_error_with_both_sizes() {
        let content = noise(10_000, 1);
        let case = |change: &dyn Fn(&tempfile::NamedTempFile)| {
            let (kept, file) = file_of(&content);
            let mut preparer = preparer(Source::File(file), DigestKind::ChunkList);
            preparer.prepare(fresh(0)).unwrap();
            change(&kept);
            preparer.prepare(fresh(1)).unwrap_err().to_string()
        };
        let shrunk = case(&|file| file.as_file().set_len(5_000).unwrap());
        assert!(shrunk.contains("shrank from 10000 bytes to 5000"), "{shrunk}");
        let grown = case(&|file| file.as_file().set_len(20_000).unwrap());
        assert!(grown.contains("grew from 10000 bytes to 20000"), "{grown}");
        let later = SystemTime::now() + std::time::Duration::from_secs(5);
        let changed = case(&|file| file.as_file().set_modified(later).unwrap());
        assert!(changed.contains("changed") && changed.contains("10000 bytes"), "{changed}");
    }

    #[test]
    fn a_file_that_was_replaced_while_it_rested_is_noticed() {
        let (kept, file) = file_of(&noise(10_000, 1));
        let mut preparer = preparer(Source::File(file), DigestKind::ChunkList);
        preparer.prepare(fresh(0)).unwrap();
        preparer.rest();
        std::fs::remove_file(kept.path()).unwrap();
        std::fs::write(kept.path(), noise(9_000, 1)).unwrap();
        let error = preparer.prepare(fresh(1)).unwrap_err().to_string();
        assert!(error.contains("10000 bytes to 9000"), "{error}");
        std::fs::remove_file(kept.path()).unwrap();
        let error = preparer.prepare(fresh(1)).unwrap_err().to_string();
        assert!(error.contains("cannot read"), "{error}");
    }

    #[test]
    fn chunks_are_compressed_where_it_pays_and_inflate_to_the_same() {
        let text = Bytes::from(b"row;value;another value\n".repeat(1000));
        for codec in [Codec::Zstd, Codec::Brotli, Codec::Gzip] {
            let mut text_sender = preparer(Source::Memory(text.clone()), DigestKind::ChunkList);
            text_sender.set_codec(codec, Rates::default());
            assert!(!text_sender.is_in_place());
            let ready = text_sender.prepare(fresh(0)).unwrap().unwrap();
            assert_eq!(ready.head.codec, codec);
            let mut raw = vec![0; 4096];
            chunking::Inflater::new().inflate(codec, &ready.bytes, &mut raw).unwrap();
            assert_eq!(raw, text[..4096]);
            let mut noise_sender =
                preparer(Source::Memory(noise(10_000, 1).into()), DigestKind::ChunkList);
            noise_sender.set_codec(codec, Rates::default());
            assert_eq!(noise_sender.prepare(fresh(0)).unwrap().unwrap().head.codec, Codec::None);
        }
    }

    #[test]
    fn what_is_no_file_is_no_source() {
        let dir = tempfile::tempdir().unwrap();
        let error = FileSource::open(dir.path()).unwrap_err().to_string();
        assert!(error.contains("not a regular file"), "{error}");
    }
}
