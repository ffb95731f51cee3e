//! Reads a dataset's files once: cuts them into pieces by content, and hashes every piece and every
//! file.
//!
//! One thread reads and cuts; the others hash. A file's SHA-256 must cover its bytes in order, so
//! it proceeds segment by segment on the next free thread, ahead of pieces, which can be hashed in
//! any order. A file of one segment is one task. Memory is a fixed number of buffers, whatever the
//! file sizes. Blocking: call it on a blocking thread.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use chunking::dataset::{Cutter, Manifest, ManifestBuilder, Piece, sha256};
use chunking::digest::BlobHasher;
use chunking::limits::PIECE_BYTES_MAX;
use chunking::{Digest, DigestKind};

use super::tree::{self, Found, ScanError};
use crate::transfer::{FileSource, PieceAt};

/// Bytes that are read in one go. What is left behind the last cut, less than a piece, goes in
/// front of the next.
const SEGMENT_BYTES: usize = 2 * 1024 * 1024;

/// Room of a buffer.
const BUFFER_BYTES: usize = SEGMENT_BYTES + PIECE_BYTES_MAX as usize;

/// Buffers for each thread that hashes: one that it works on, one that waits for it.
const BUFFERS_PER_THREAD: usize = 2;

/// Threads that hash. The one that reads and cuts keeps no more than these busy.
const THREADS_MAX: usize = 4;

/// How far a scan is; also how it is told to stop.
#[derive(Debug, Default)]
pub(super) struct Watch {
    pub(super) done: AtomicU64,
    pub(super) total: AtomicU64,
    pub(super) stop: AtomicBool,
}

/// What a dataset is made of, and where its pieces are.
#[derive(Debug)]
pub(super) struct Scanned {
    pub(super) manifest: Manifest,
    pub(super) digest: Digest,
    /// For each piece of the manifest, where it was seen first.
    places: Vec<(u32, u64, u32)>,
    /// The files, as they were when they were read.
    sources: Vec<Arc<FileSource>>,
}

impl Scanned {
    /// Where the bytes of a piece are.
    pub(super) fn piece(&self, place: u32) -> Option<(Piece, PieceAt)> {
        let at = usize::try_from(place).ok()?;
        let piece = *self.manifest.pieces().get(at)?;
        let (file, offset, crc) = *self.places.get(at)?;
        let file = self.sources.get(usize::try_from(file).ok()?)?.clone();
        Some((piece, PieceAt { file, offset, len: piece.len, crc }))
    }
}

/// Reads all files that these paths stand for.
pub(super) fn scan(paths: &[PathBuf], watch: &Watch) -> Result<Scanned, ScanError> {
    let found = tree::files(paths)?;
    let sources = found.iter().map(source).collect::<Result<Vec<_>, _>>()?;
    let total = sources.iter().fold(0u64, |sum, source| sum.saturating_add(source.size()));
    watch.total.store(total, Ordering::Relaxed);
    let hashes = hash_all(&sources, watch)?;
    let mut builder = ManifestBuilder::default();
    let mut crcs = Vec::with_capacity(hashes.len());
    for (file, hashed) in found.iter().zip(hashes) {
        let (pieces, own): (Vec<Piece>, Vec<u32>) = hashed.pieces.into_iter().unzip();
        builder.file(file.name.as_str(), hashed.sha256, pieces);
        crcs.push(own);
    }
    let manifest = builder.finish()?;
    let mut places = Vec::with_capacity(manifest.pieces().len());
    // Files are in the order of their names there, too, and pieces are numbered in the order of
    // their first use.
    for (number, (file, crcs)) in (0..).zip(manifest.files().iter().zip(&crcs)) {
        for ((offset, place, _), crc) in manifest.layout(file).zip(crcs) {
            if usize::try_from(place).is_ok_and(|place| place == places.len()) {
                places.push((number, offset, *crc));
            }
        }
    }
    let digest = manifest.digest();
    Ok(Scanned { manifest, digest, places, sources })
}

fn source(found: &Found) -> Result<Arc<FileSource>, ScanError> {
    let path = &found.path;
    let unreadable =
        |error: io::Error| ScanError::Unreadable { path: path.clone(), why: error.to_string() };
    FileSource::open(path).map(Arc::new).map_err(unreadable)
}

/// Pieces in a row, with the CRC-32 of each.
type Pieces = Vec<(Piece, u32)>;

/// What a file hashes to.
#[derive(Debug, Default)]
struct Hashed {
    sha256: [u8; 32],
    pieces: Pieces,
}

/// Bytes of one file, cut into whole pieces. The buffer goes home with the last who needs it.
struct Segment {
    file: usize,
    /// The number of the first piece in its file.
    first: usize,
    bytes: Vec<u8>,
    cuts: Vec<Range<usize>>,
    /// It is all of its file.
    alone: bool,
    home: SyncSender<Vec<u8>>,
}

impl Segment {
    /// All of its pieces.
    fn whole(&self) -> &[u8] {
        let end = self.cuts.last().map_or(0, |cut| cut.end);
        self.bytes.get(..end).unwrap_or_default()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // There is room for all buffers; who reads may have given up.
        self.home.try_send(std::mem::take(&mut self.bytes)).ok();
    }
}

/// The digest of a file on its way through its segments.
struct Strand {
    hasher: BlobHasher,
    waiting: VecDeque<Arc<Segment>>,
}

#[derive(Default)]
struct Tables {
    /// Files whose own digest has segments to go over, and no thread that does.
    strands_ready: VecDeque<usize>,
    pieces_ready: VecDeque<Arc<Segment>>,
    /// Away while a thread works with it.
    strands: HashMap<usize, Strand>,
    /// Segments that came while their strand was away.
    came: HashMap<usize, VecDeque<Arc<Segment>>>,
    /// Nothing more comes.
    closed: bool,
    /// By file and number of the first.
    pieces: HashMap<usize, Vec<(usize, Pieces)>>,
    /// SHA-256 of files that went in one go.
    digests: HashMap<usize, [u8; 32]>,
}

enum Task {
    Strand(usize, Strand),
    Pieces(Arc<Segment>),
}

/// What the threads share.
#[derive(Default)]
struct JobTable {
    tables: Mutex<Tables>,
    ready: Condvar,
}

impl JobTable {
    fn lock(&self) -> MutexGuard<'_, Tables> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A segment of a file.
    fn put(&self, segment: Segment) {
        let segment = Arc::new(segment);
        let mut tables = self.lock();
        if !segment.alone {
            let file = segment.file;
            if let Some(strand) = tables.strands.get_mut(&file) {
                strand.waiting.push_back(segment.clone());
                if strand.waiting.len() == 1 {
                    tables.strands_ready.push_back(file);
                }
            } else if let Some(came) = tables.came.get_mut(&file) {
                came.push_back(segment.clone());
            } else {
                let hasher = BlobHasher::new(DigestKind::Sha256);
                let waiting = VecDeque::from([segment.clone()]);
                tables.strands.insert(file, Strand { hasher, waiting });
                tables.strands_ready.push_back(file);
            }
        }
        tables.pieces_ready.push_back(segment);
        drop(tables);
        self.ready.notify_all();
    }

    fn close(&self) {
        self.lock().closed = true;
        self.ready.notify_all();
    }

    /// The next task; none when all is done, or is being done by others.
    fn next(&self) -> Option<Task> {
        let mut tables = self.lock();
        loop {
            if let Some(file) = tables.strands_ready.pop_front()
                && let Some(strand) = tables.strands.remove(&file)
            {
                tables.came.insert(file, VecDeque::new());
                return Some(Task::Strand(file, strand));
            }
            if let Some(segment) = tables.pieces_ready.pop_front() {
                return Some(Task::Pieces(segment));
            }
            // A strand that is away may have got more.
            if tables.closed && tables.came.is_empty() {
                self.ready.notify_all();
                return None;
            }
            tables = self.ready.wait(tables).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self) {
        while let Some(task) = self.next() {
            match task {
                Task::Strand(file, mut strand) => {
                    for segment in std::mem::take(&mut strand.waiting) {
                        // The digest of all bytes does not ask for the CRC.
                        strand.hasher.update(segment.whole(), 0);
                    }
                    let mut tables = self.lock();
                    strand.waiting = tables.came.remove(&file).unwrap_or_default();
                    if !strand.waiting.is_empty() {
                        tables.strands_ready.push_back(file);
                    }
                    tables.strands.insert(file, strand);
                    drop(tables);
                    self.ready.notify_all();
                }
                Task::Pieces(segment) => {
                    let bytes =
                        segment.cuts.iter().filter_map(|cut| segment.bytes.get(cut.clone()));
                    let pieces =
                        bytes.map(|bytes| (Piece::of(bytes), crc32fast::hash(bytes))).collect();
                    let whole = segment.alone.then(|| sha256(segment.whole()));
                    let (file, first) = (segment.file, segment.first);
                    drop(segment);
                    let mut tables = self.lock();
                    tables.pieces.entry(file).or_default().push((first, pieces));
                    tables.digests.extend(whole.map(|whole| (file, whole)));
                }
            }
        }
    }

    /// What all files hash to, once all tasks are done.
    fn results(self, files: usize) -> Vec<Hashed> {
        let Tables { strands, mut pieces, mut digests, .. } =
            self.tables.into_inner().unwrap_or_else(PoisonError::into_inner);
        digests
            .extend(strands.into_iter().map(|(file, strand)| (file, strand.hasher.finish().bytes)));
        let hashed = |file| {
            let mut parts = pieces.remove(&file).unwrap_or_default();
            parts.sort_by_key(|(first, _)| *first);
            let pieces: Pieces = parts.into_iter().flat_map(|(_, pieces)| pieces).collect();
            // Of an empty file there was nothing to read.
            let sha256 = digests.remove(&file).unwrap_or_else(|| sha256(&[]));
            Hashed { sha256, pieces }
        };
        (0..files).map(hashed).collect()
    }
}

fn hash_all(sources: &[Arc<FileSource>], watch: &Watch) -> Result<Vec<Hashed>, ScanError> {
    let threads = thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX);
    let buffers = threads * BUFFERS_PER_THREAD + 1;
    let (home, free) = sync_channel(buffers);
    for _ in 0..buffers {
        // Memory is taken when it is used first.
        home.try_send(Vec::new()).ok();
    }
    let table = JobTable::default();
    let read = thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| table.work());
        }
        let reader = Reader { table: &table, home, free, watch };
        let read = (0..).zip(sources).try_for_each(|(file, source)| reader.read(file, source));
        table.close();
        read
    });
    read?;
    Ok(table.results(sources.len()))
}

/// The thread that reads and cuts.
struct Reader<'a> {
    table: &'a JobTable,
    home: SyncSender<Vec<u8>>,
    free: Receiver<Vec<u8>>,
    watch: &'a Watch,
}

impl Reader<'_> {
    fn read(&self, file: usize, source: &FileSource) -> Result<(), ScanError> {
        if source.size() == 0 {
            source.reopen()?;
            return Ok(());
        }
        let mut opened = source.reopen()?;
        let mut left = source.size();
        let (mut first, mut carried) = (0, Vec::new());
        while left > 0 || !carried.is_empty() {
            if self.watch.stop.load(Ordering::Relaxed) {
                return Err(ScanError::Stopped);
            }
            // It is never empty for good: threads that hash give buffers back.
            let mut bytes = self.free.recv().map_err(|_| ScanError::Stopped)?;
            // Whole once, so that nothing is cleared again; the system gives memory with the first
            // use.
            if bytes.len() != BUFFER_BYTES {
                bytes = vec![0; BUFFER_BYTES];
            }
            let wanted = left.min(SEGMENT_BYTES as u64);
            let filled = carried.len() + usize::try_from(wanted).unwrap_or(usize::MAX);
            let read = fill(&mut opened, &carried, bytes.get_mut(..filled));
            // Behind the read, so that what was read before a change is right.
            source.check(&opened)?;
            read.map_err(|error| source.io(&error))?;
            left -= wanted;
            self.watch.done.fetch_add(wanted, Ordering::Relaxed);
            let filled = bytes.get(..filled).unwrap_or_default();
            let cuts = cut(filled, left == 0);
            let end = cuts.last().map_or(0, |cut| cut.end);
            carried.clear();
            carried.extend_from_slice(filled.get(end..).unwrap_or_default());
            let alone = first == 0 && left == 0 && carried.is_empty();
            let count = cuts.len();
            self.table.put(Segment { file, first, bytes, cuts, alone, home: self.home.clone() });
            first += count;
        }
        Ok(())
    }
}

/// Fills `room` with what was left before and with what comes next.
fn fill(file: &mut File, carried: &[u8], room: Option<&mut [u8]>) -> io::Result<()> {
    let split = room.and_then(|room| room.split_at_mut_checked(carried.len()));
    let (front, rest) = split.ok_or(io::ErrorKind::InvalidInput)?;
    front.copy_from_slice(carried);
    file.read_exact(rest)
}

/// Where the whole pieces of these bytes are.
fn cut(bytes: &[u8], is_end: bool) -> Vec<Range<usize>> {
    let (mut cuts, mut at) = (Vec::new(), 0);
    while let Some(len) = bytes.get(at..).and_then(|rest| Cutter.cut(rest, is_end)) {
        cuts.push(at..at + len);
        at += len;
    }
    cuts
}

#[cfg(test)]
#[path = "scan_tests.rs"]
mod tests;
