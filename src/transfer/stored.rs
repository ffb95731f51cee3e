//! Processes the bytes of an incoming blob: checks, inflates, writes them to their sink, and feeds
//! the digest over the whole blob if one was requested.
//!
//! Sinks that do not block are written in place. For the others, a thread of the runtime's pool
//! processes what has arrived and then returns to the pool: an idle transfer holds no thread.
//! [`Download`](super::Download) makes the decisions.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use chunking::digest::BlobHasher;
use chunking::{Bitmap, ChunkError, ChunkHead, ChunkPlan, Digest, DigestKind, Inflater};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::sink::ChunkSink;

/// What is to be done, in this order.
pub(super) enum Task {
    /// Store a chunk whose place was checked.
    Chunk {
        index: u32,
        head: ChunkHead,
        /// CRC-32 of the bytes as they came.
        crc: u32,
        bytes: Bytes,
    },
    /// A stored chunk counts for nothing.
    Forget(u32),
    /// All that is stored counts for nothing.
    Restart,
    /// Make the digest over the bytes.
    Digest,
    /// The blob is whole.
    Finish,
}

/// Why it could not be done.
#[derive(Debug)]
pub(super) enum Fault {
    /// The chunk is damaged.
    Bad(ChunkError),
    /// The sink cannot take or give bytes.
    Io(io::Error),
}

/// What was done.
#[derive(Debug)]
pub(super) enum Done {
    Chunk {
        index: u32,
        crc_raw: u32,
        stored: Result<(), Fault>,
    },
    Digest(Result<Digest, Fault>),
    Finish(Result<(), Fault>),
    /// Not finished: what these chunks hold is wrong.
    Wrong(Vec<u32>),
    /// Nothing that has to be told.
    Quiet,
}

/// What a thread has done for a download; the owner of the downloads hands it to the one it is for.
#[derive(Debug)]
pub struct Report {
    pub transfer: Uuid,
    /// Which of the downloads under that id.
    pub(super) serial: u64,
    pub(super) done: Done,
}

/// The bytes' side of a download.
pub(super) struct Work {
    plan: ChunkPlan,
    sink: Box<dyn ChunkSink>,
    inflater: Inflater,
    scratch: Vec<u8>,
    whole: Option<WholeDigest>,
}

/// A digest over all bytes: made as chunks come in order, and from the sink for those that did not.
struct WholeDigest {
    kind: DigestKind,
    hasher: BlobHasher,
    /// The first chunk that is not in it.
    next: u32,
    stored: Bitmap,
}

impl WholeDigest {
    fn new(kind: DigestKind, plan: &ChunkPlan) -> Self {
        WholeDigest {
            kind,
            hasher: BlobHasher::new(kind),
            next: 0,
            stored: Bitmap::new(plan.count()),
        }
    }
}

impl Work {
    pub(super) fn new(plan: ChunkPlan, digest: DigestKind, sink: Box<dyn ChunkSink>) -> Self {
        let whole = match digest {
            DigestKind::ChunkList => None,
            DigestKind::Sha256 | DigestKind::Blake3 => Some(WholeDigest::new(digest, &plan)),
        };
        Work { plan, sink, inflater: Inflater::new(), scratch: Vec::new(), whole }
    }

    fn run(&mut self, task: Task) -> Done {
        match task {
            Task::Chunk { index, head, crc, bytes } => Done::Chunk {
                index,
                crc_raw: head.crc_raw,
                stored: self.store(index, &head, crc, &bytes),
            },
            Task::Forget(index) => {
                if let Some(whole) = &mut self.whole {
                    whole.stored.remove(index);
                    if index < whole.next {
                        whole.hasher = BlobHasher::new(whole.kind);
                        whole.next = 0;
                    }
                }
                Done::Quiet
            }
            Task::Restart => {
                let plan = self.plan;
                self.whole = self.whole.take().map(|whole| WholeDigest::new(whole.kind, &plan));
                Done::Quiet
            }
            Task::Digest => Done::Digest(self.digest()),
            Task::Finish => {
                self.scratch = Vec::new();
                match self.sink.wrong() {
                    Ok(wrong) if wrong.is_empty() => {
                        Done::Finish(self.sink.finish().map_err(Fault::Io))
                    }
                    Ok(wrong) => Done::Wrong(self.chunks(&wrong)),
                    Err(error) => Done::Finish(Err(Fault::Io(error))),
                }
            }
        }
    }

    /// The chunks that these places lie in.
    fn chunks(&self, places: &[Range<u64>]) -> Vec<u32> {
        let bytes = u64::from(self.plan.chunk_bytes());
        let index = |chunk: u64| u32::try_from(chunk).unwrap_or(u32::MAX);
        let chunks = places
            .iter()
            .flat_map(|place| index(place.start / bytes)..index(place.end.div_ceil(bytes)));
        let mut chunks: Vec<u32> = chunks.collect();
        chunks.sort_unstable();
        chunks.dedup();
        chunks
    }

    fn store(&mut self, index: u32, head: &ChunkHead, crc: u32, sent: &[u8]) -> Result<(), Fault> {
        let Work { sink, inflater, scratch, whole, .. } = self;
        let raw = head.raw_with_crc(sent, crc, inflater, scratch).map_err(Fault::Bad)?;
        sink.write(head.offset, raw).map_err(Fault::Io)?;
        let Some(whole) = whole else { return Ok(()) };
        whole.stored.insert(index);
        if index == whole.next {
            whole.hasher.update(raw, head.crc_raw);
            whole.next += 1;
            self.catch_up()?;
        }
        Ok(())
    }

    /// Feeds the digest with chunks that came before their turn.
    fn catch_up(&mut self) -> Result<(), Fault> {
        let Work { plan, sink, scratch, whole: Some(whole), .. } = self else { return Ok(()) };
        while whole.stored.contains(whole.next) {
            scratch.resize(usize::try_from(plan.len_of(whole.next)).unwrap_or(usize::MAX), 0);
            sink.read(plan.offset_of(whole.next), scratch).map_err(Fault::Io)?;
            // These digests read the bytes; only the list of chunks reads checksums.
            whole.hasher.update(scratch, 0);
            whole.next += 1;
        }
        Ok(())
    }

    fn digest(&mut self) -> Result<Digest, Fault> {
        self.catch_up()?;
        match &self.whole {
            Some(whole) => Ok(whole.hasher.clone().finish()),
            None => Err(Fault::Io(io::Error::other("no digest over the bytes was asked for"))),
        }
    }
}

/// Where the work is done.
pub(super) enum Place {
    /// Where the frames are read.
    Here(Box<Work>),
    /// On a thread for what blocks.
    Apart(Arc<Apart>),
}

/// Work on a thread, and what waits for it. The window bounds the chunks that wait.
pub(super) struct Apart {
    transfer: Uuid,
    serial: u64,
    reports: mpsc::UnboundedSender<Report>,
    queue: Mutex<Queue>,
}

struct Queue {
    waiting: VecDeque<Task>,
    /// Here while no thread has it.
    work: Option<Box<Work>>,
    closed: bool,
}

impl Place {
    pub(super) fn new(
        work: Work,
        transfer: Uuid,
        serial: u64,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Self {
        if !work.sink.blocks() {
            return Place::Here(Box::new(work));
        }
        let queue = Mutex::new(Queue {
            waiting: VecDeque::new(),
            work: Some(Box::new(work)),
            closed: false,
        });
        Place::Apart(Arc::new(Apart { transfer, serial, reports, queue }))
    }

    /// Does it, or has it done: then a report follows.
    pub(super) fn run(&mut self, task: Task) -> Option<Done> {
        match self {
            Place::Here(work) => Some(work.run(task)),
            Place::Apart(apart) => {
                let mut queue = apart.lock();
                queue.waiting.push_back(task);
                if let Some(work) = queue.work.take() {
                    let apart = apart.clone();
                    tokio::task::spawn_blocking(move || apart.work_off(work));
                }
                None
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Place::Apart(apart) = self {
            let mut queue = apart.lock();
            queue.closed = true;
            queue.waiting.clear();
        }
    }
}

impl Apart {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work_off(&self, mut work: Box<Work>) {
        loop {
            let task = {
                let mut queue = self.lock();
                match queue.waiting.pop_front() {
                    Some(task) => task,
                    None if queue.closed => return,
                    None => {
                        queue.work = Some(work);
                        return;
                    }
                }
            };
            let done = work.run(task);
            if let Done::Quiet = done {
                continue;
            }
            let report = Report { transfer: self.transfer, serial: self.serial, done };
            if self.reports.send(report).is_err() {
                return;
            }
        }
    }
}
