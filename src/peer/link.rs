//! One connection: a reader of frames and chunks, and a writer that many tasks share.

use std::collections::VecDeque;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use bytes::Bytes;
use chunking::frame::head_len;
use chunking::limits::{CHUNK_PIECE_BYTES_MAX, WINDOW_CHUNKS_MAX};
use chunking::message::{Body, Keepalive, LimitId, Piece, Welcome};
use chunking::{ChunkHead, EncodeError, FrameError, Generation, Head, InboundLimits, Kind};
use socket2::SockRef;
use thiserror::Error;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::{Instant, timeout_at};
use uuid::Uuid;

use super::resolve::look_up;
use crate::wire::{
    Dead, InChunk, Inlet, LOOKS_PER_STALL, Pace, Part, Pool, Pulse, Signs, Speed, Step, Tuning,
    WRITE_STALL_TIMEOUT, frame_window, is_loopback, limit_unsent, read_some, tune, unacknowledged,
};

/// Buffers of one connection: a few windows full, so that transfers whose disks are slow do not
/// hold up the others at once.
const BUFFERS_MAX: usize = 4 * WINDOW_CHUNKS_MAX as usize;

/// What may be on its way to a leader that has nothing else to take.
const FEW_BYTES: u64 = 64 * 1024;

/// Pieces that one call writes: what Linux takes (UIO_MAXIOV).
const SLICES_MAX: usize = 1024;

/// Why a connection could not be made, or ended.
#[derive(Debug, Error)]
pub enum LinkError {
    /// The leader could not be reached.
    #[error("cannot connect to {addr}: {source}")]
    Connect {
        /// The address as it was given.
        addr: String,
        /// What the system says.
        source: io::Error,
    },
    /// The connection broke.
    #[error("the connection to the leader broke: {0}")]
    Io(#[from] io::Error),
    /// The other side sent what is not a frame.
    #[error("the leader sent a bad frame: {0}")]
    Frame(#[from] FrameError),
    /// What was to be sent does not fit a frame.
    #[error("cannot send: {0}")]
    Encode(#[from] EncodeError),
    /// The connection is up, but its other side shows no sign of life.
    #[error("the connection to the leader is dead: {0}")]
    Dead(#[from] Dead),
    /// The leader got another hello than was sent.
    #[error("the hello was damaged on its way to the leader, which misread it; it is sent again")]
    HelloDamaged,
    /// The connection has ended.
    #[error("the connection to the leader is closed")]
    Closed,
}

/// A frame that came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InFrame {
    /// The type byte.
    pub code: u8,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    pub subject: String,
    pub payload: Bytes,
}

impl InFrame {
    /// What it is; `None` for a type that is not known, which is to be skipped.
    pub fn kind(&self) -> Option<Kind> {
        Kind::try_from(self.code).ok()
    }
}

/// A frame to send. It is always written as F2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutFrame {
    /// What it is.
    pub kind: Kind,
    pub msg_id: Uuid,
    pub corr_id: Uuid,
    pub subject: String,
    pub payload: Bytes,
}

impl OutFrame {
    /// A frame with nil ids, no subject and this payload.
    pub fn new(kind: Kind, payload: impl Into<Bytes>) -> Self {
        OutFrame {
            kind,
            msg_id: Uuid::nil(),
            corr_id: Uuid::nil(),
            subject: String::new(),
            payload: payload.into(),
        }
    }

    /// A message under this id.
    pub fn message<M: Body>(msg_id: Uuid, message: &M) -> Self {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        OutFrame { msg_id, ..OutFrame::new(M::KIND, payload) }
    }

    fn head(&self) -> Head<'_> {
        let payload_len = u32::try_from(self.payload.len()).unwrap_or(u32::MAX);
        let (msg_id, corr_id, subject) = (self.msg_id, self.corr_id, self.subject.as_str());
        Head { msg_id, corr_id, subject, payload_len, ..Head::new(self.kind) }
    }

    /// The head, and what goes behind the payload if the payload's CRC-32 is given.
    fn encoded(&self, payload_crc: Option<u32>) -> Result<(Bytes, Bytes), EncodeError> {
        let head = self.head();
        let mut out = Vec::with_capacity(head_len(Generation::F2, &self.subject));
        let trailer = match payload_crc {
            None => head.append(Generation::F2, &mut out).map(|()| Bytes::new()),
            Some(crc) => head
                .append_summed(Generation::F2, crc, &mut out)
                .map(|trailer| Bytes::copy_from_slice(&trailer)),
        }?;
        Ok((out.into(), trailer))
    }
}

/// Connects to a leader.
pub async fn connect(
    addr: impl ToString,
    tuning: &Tuning,
) -> Result<(LinkReader, LinkWriter), LinkError> {
    let name = addr.to_string();
    let refused = |source| LinkError::Connect { addr: name.clone(), source };
    let found = look_up(&name).await.map_err(refused)?;
    let stream = TcpStream::connect(found.as_slice()).await.map_err(refused)?;
    tune(&stream, tuning).map_err(refused)?;
    let loopback = is_loopback(&stream);
    // It lives as long as the half that writes, which cannot be asked while somebody writes.
    let asked = SockRef::from(&stream).try_clone().ok();
    let (read, write) = stream.into_split();
    let mut inlet = Inlet::speaking(Generation::F2, InboundLimits::DIALLED);
    inlet.offer_checksums();
    let writer = LinkWriter::new(write, asked, loopback);
    let (other_end, came) = (Some(Arc::downgrade(&writer.0)), writer.0.came.clone());
    let (pool, pulse, hello_crc) =
        (Pool::new(BUFFERS_MAX), Pulse::default(), writer.0.hello_crc.clone());
    let reader = LinkReader { read, inlet, pool, other_end, came, hello_crc, pulse };
    tokio::spawn(end_if_stalled(Arc::downgrade(&writer.0), WRITE_STALL_TIMEOUT));
    Ok((reader, writer))
}

/// Ends a connection whose other side has taken nothing of what was sent, and sent nothing, for
/// `stall`. A slow peer takes something.
async fn end_if_stalled(shared: Weak<Shared>, stall: Duration) {
    let (mut before, mut since) = (Traffic::default(), std::time::Instant::now());
    loop {
        tokio::time::sleep(stall / LOOKS_PER_STALL).await;
        let Some(shared) = shared.upgrade() else { return };
        let now = shared.traffic();
        if now.taken > before.taken || now.came > before.came || now.taken == now.written {
            (before, since) = (now, std::time::Instant::now());
        } else if since.elapsed() >= stall {
            tracing::warn!(
                "the leader read nothing for {} s; closing the connection",
                stall.as_secs()
            );
            // The reader and the writer of the connection find out by the shutdown.
            shared.asked.as_ref().map(|socket| socket.shutdown(Shutdown::Both));
            return;
        }
    }
}

/// What comes over a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    Frame(InFrame),
    Chunk(InChunk),
}

/// Reads frames and chunks.
#[derive(Debug)]
pub struct LinkReader {
    read: OwnedReadHalf,
    inlet: Inlet,
    pool: Pool,
    /// The writer, until it has heard that frames have checksums.
    other_end: Option<Weak<Shared>>,
    /// Bytes that were read; see [`Shared::came`].
    came: Arc<AtomicU64>,
    /// See [`Shared::hello_crc`].
    hello_crc: Arc<OnceLock<u32>>,
    pulse: Pulse,
}

impl LinkReader {
    /// From now on the leader sends something at least every now and then: a connection that is
    /// silent for too long is dead.
    pub fn expect_signs(&mut self, signs: Signs) {
        self.pulse.expect(signs.silence);
        self.pulse.set_window(frame_window(signs.silence));
    }

    /// Nothing is read for a while, for reasons of our own: that says nothing of the leader.
    pub fn rest(&mut self) {
        self.pulse.rested();
    }

    /// Whether a frame has begun to come that is not whole, and is a Welcome as far as can be seen.
    pub fn is_inside_welcome(&self) -> bool {
        let begun = || self.inlet.begun();
        self.inlet.is_inside_frame() && begun().is_none_or(|code| code == Kind::Welcome.code())
    }

    /// Whether a Welcome answers the hello that we sent. Leaders that do not say which one they got
    /// are believed.
    fn is_of_our_hello(&self, welcome: &[u8]) -> bool {
        let got = Welcome::decode(welcome)
            .ok()
            .and_then(|welcome| welcome.limits.value(LimitId::HELLO_CRC32));
        match (got, self.hello_crc.get()) {
            (Some(got), Some(sent)) => got == u64::from(*sent),
            (None, _) | (_, None) => true,
        }
    }

    /// The connection is over: gives what came of a chunk that is not whole.
    pub fn cut(&mut self) -> Option<Part> {
        // Who found out by writing has not read what came before.
        while self.inlet.is_filling() {
            match self.read.try_read_vectored(&mut self.inlet.room()) {
                Ok(bytes @ 1..) => self.inlet.filled(bytes),
                Ok(0) | Err(_) => break,
            }
        }
        self.inlet.cut()
    }

    /// What comes next; `None` when the other side has closed the connection between frames. It
    /// waits while all of the connection's buffers hold chunks that nobody is done with.
    ///
    /// May be dropped while it waits (in a `select!`) without losing bytes.
    pub async fn next(&mut self) -> Result<Option<Item>, LinkError> {
        loop {
            match self.inlet.poll()? {
                Step::Frame(_, frame) => {
                    self.pulse.frame_ended();
                    let Head { code, msg_id, corr_id, subject, .. } = frame.head;
                    let payload = Bytes::copy_from_slice(frame.payload);
                    let subject = subject.to_owned();
                    if code == Kind::Welcome.code() && !self.is_of_our_hello(&payload) {
                        return Err(LinkError::HelloDamaged);
                    }
                    if self.inlet.has_checksums()
                        && let Some(writer) =
                            self.other_end.take().and_then(|shared| shared.upgrade())
                    {
                        LinkWriter(writer).begin_checksums()?;
                    }
                    return Ok(Some(Item::Frame(InFrame {
                        code,
                        msg_id,
                        corr_id,
                        subject,
                        payload,
                    })));
                }
                Step::Came(chunk) => {
                    self.pulse.frame_ended();
                    return Ok(Some(Item::Chunk(chunk)));
                }
                Step::Chunk(_) => {
                    let buffer = self.pool.taken().await;
                    // That may have taken long, while our own disk was busy.
                    self.pulse.rested();
                    self.inlet.take(buffer);
                }
                // Only leaders take large frames.
                Step::Bulk(..) | Step::Piece(_) | Step::BulkEnd => {}
                Step::Read => {
                    let inside = self.inlet.is_inside_frame();
                    let reading = read_some(&mut self.read, &mut self.inlet);
                    let read = match self.pulse.waits(Instant::now(), inside) {
                        None => reading.await,
                        Some(until) => match timeout_at(until, reading).await {
                            Ok(read) => read,
                            Err(_) => match self.pulse.late(Instant::now()) {
                                Some(dead) => return Err(dead.into()),
                                None => continue,
                            },
                        },
                    }?;
                    if read == 0 {
                        self.inlet.finish()?;
                        return Ok(None);
                    }
                    self.pulse.came(read);
                    self.came.fetch_add(read as u64, Ordering::Relaxed);
                }
            }
        }
    }
}

/// A connection that nobody reads is over, also for whoever is in the middle of writing to it: the
/// other side may be there and take nothing, and what is to be sent would wait for it while there
/// is another connection.
impl Drop for LinkReader {
    fn drop(&mut self) {
        // It may be over already. What was written still goes out.
        SockRef::from(self.read.as_ref()).shutdown(Shutdown::Both).ok();
    }
}

/// Sends frames, in the order in which they were queued. Clones write to the same connection. There
/// is no task behind it: who sends, writes, and what others queued meanwhile goes along. So a large
/// chunk never changes tasks, and small frames stand between chunks.
#[derive(Clone, Debug)]
pub struct LinkWriter(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    queue: Mutex<Queue>,
    socket: tokio::sync::Mutex<Socket>,
    /// Whose chunk goes, unless the line is fast.
    chunks: tokio::sync::Mutex<()>,
    line: Mutex<LineState>,
    /// Bytes that were written.
    written: AtomicU64,
    /// Bytes that came: a leader that sends is there, though it may not read for a while.
    came: Arc<AtomicU64>,
    /// The checksum that the first frame would have ended with.
    hello_crc: Arc<OnceLock<u32>>,
    /// The socket, to ask what of that was acknowledged.
    asked: Option<socket2::Socket>,
    loopback: bool,
}

/// How fast the line is, and what the system was set for.
#[derive(Debug, Default)]
struct LineState {
    pace: Pace,
    tuned: Option<Speed>,
}

#[derive(Debug, Default)]
struct Queue {
    pieces: VecDeque<Bytes>,
    /// Bytes that were queued since the connection was made.
    queued: u64,
    /// Whether frames that are queued from now on end with a checksum.
    checksums: bool,
    broken: Option<io::ErrorKind>,
}

#[derive(Debug)]
struct Socket {
    write: OwnedWriteHalf,
    /// What is being written. It stays here if a sender is dropped in the middle of it, and the
    /// next one goes on.
    pieces: VecDeque<Bytes>,
}

/// What went over a connection until now.
#[derive(Clone, Copy, Debug, Default)]
struct Traffic {
    written: u64,
    /// What of that the other side has; all of it, where the system does not say.
    taken: u64,
    came: u64,
}

impl Shared {
    fn traffic(&self) -> Traffic {
        // Before the system is asked: what others write in between then waits, and is not taken for
        // what the other side has.
        let written = self.written.load(Ordering::Acquire);
        let waiting = self.asked.as_ref().and_then(unacknowledged).unwrap_or(0);
        Traffic {
            written,
            taken: written.saturating_sub(waiting),
            came: self.came.load(Ordering::Relaxed),
        }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LinkWriter {
    fn new(write: OwnedWriteHalf, asked: Option<socket2::Socket>, loopback: bool) -> Self {
        let socket = Socket { write, pieces: VecDeque::new() };
        LinkWriter(Arc::new(Shared {
            queue: Mutex::default(),
            socket: tokio::sync::Mutex::new(socket),
            chunks: tokio::sync::Mutex::default(),
            line: Mutex::default(),
            written: AtomicU64::new(0),
            came: Arc::default(),
            hello_crc: Arc::default(),
            asked,
            loopback,
        }))
    }

    /// Whether the leader is on this machine.
    pub fn is_loopback(&self) -> bool {
        self.0.loopback
    }

    /// Sends a frame. An error says that this frame was certainly not sent; success that it was
    /// handed to the system, or that the connection broke in the middle of it.
    pub async fn send(&self, frame: OutFrame) -> Result<(), LinkError> {
        let start = self.put_frame(frame)?;
        self.write(start).await
    }

    /// Sends a chunk: its head and its bytes in one write, without a copy.
    pub async fn send_chunk(
        &self,
        transfer: Uuid,
        head: &ChunkHead,
        bytes: Bytes,
    ) -> Result<(), LinkError> {
        let sent_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let frame_head = head.frame_head(transfer, sent_len)?;
        let start = put(&mut self.queue_locked(), [Bytes::copy_from_slice(&frame_head), bytes])?;
        self.write(start).await
    }

    /// The same to a leader that knows pieces, from this byte on: whole if the line is fast and
    /// nothing of it is there, else in pieces, as long as it is wanted. Other frames stand between
    /// them, and unless the line is fast no other chunk goes meanwhile.
    pub async fn send_chunk_from(
        &self,
        transfer: Uuid,
        head: &ChunkHead,
        bytes: Bytes,
        mut from: u32,
        is_wanted: impl Fn() -> bool,
    ) -> Result<(), LinkError> {
        if from == 0 && self.judge(false) == Speed::Fast {
            self.send_chunk(transfer, head, bytes).await?;
            self.judge(true);
            return Ok(());
        }
        let _turn = self.0.chunks.lock().await;
        let sent_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        while from < sent_len && is_wanted() {
            let piece_bytes = match self.judge(false).piece_bytes() {
                None if from == 0 => {
                    self.send_chunk(transfer, head, bytes).await?;
                    self.judge(true);
                    return Ok(());
                }
                piece_bytes => piece_bytes.unwrap_or(CHUNK_PIECE_BYTES_MAX),
            };
            let len = piece_bytes.min(sent_len - from);
            let piece = bytes.slice(from as usize..(from + len) as usize);
            let has_checksum = self.queue_locked().checksums;
            let framed = Piece { head: *head, sent_len, from, bytes: &piece }
                .frame(transfer, has_checksum)?;
            let start = put(&mut self.queue_locked(), [framed.0.into(), piece, framed.1.into()])?;
            self.write(start).await?;
            self.judge(true);
            from += len;
        }
        Ok(())
    }

    /// Looks how fast the line is; `wrote` says whether a chunk was just written.
    fn judge(&self, wrote: bool) -> Speed {
        let traffic = self.0.traffic();
        let mut line = self.0.line.lock().unwrap_or_else(PoisonError::into_inner);
        let before = line.pace.speed();
        // Small frames are always on their way, and say nothing.
        let few = if before.piece_bytes().is_some() { 0 } else { FEW_BYTES };
        let is_busy = wrote || traffic.written - traffic.taken > few;
        line.pace.look(std::time::Instant::now(), traffic.taken, is_busy);
        let speed = line.pace.speed();
        let kind = |speed: Speed| std::mem::discriminant(&speed);
        if line.tuned.map(kind) != Some(kind(speed)) {
            line.tuned = Some(speed);
            if let Some(socket) = &self.0.asked {
                limit_unsent(socket, speed.unsent_bytes_max());
            }
        }
        speed
    }

    /// How long the next piece of something long is to be that goes as frames of its own; `None`
    /// for as long as it may be. Whoever asks is about to send one.
    pub fn piece_bytes(&self) -> Option<u32> {
        self.judge(true).piece_bytes()
    }

    /// Queues a frame that goes out with the next one that is sent, or with [`LinkWriter::flush`],
    /// which is to follow soon.
    pub fn queue(&self, frame: OutFrame) -> Result<(), LinkError> {
        self.put_frame(frame).map(|_| ())
    }

    /// Sends what is queued.
    pub async fn flush(&self) -> Result<(), LinkError> {
        let start = self.queue_locked().queued;
        self.write(start).await
    }

    /// Bytes that were queued and are not written yet.
    pub fn backlog(&self) -> u64 {
        // In this order, so that what is queued and written between the two does not count as less
        // than nothing.
        let written = self.0.written.load(Ordering::Relaxed);
        self.queue_locked().queued.saturating_sub(written)
    }

    fn count_written(&self, bytes: usize) {
        self.0.written.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Sends what is queued if that needs no waiting; says whether all is out.
    pub fn try_flush(&self) -> bool {
        let Ok(mut socket) = self.0.socket.try_lock() else { return false };
        let Socket { write, pieces } = &mut *socket;
        pieces.append(&mut self.queue_locked().pieces);
        while !pieces.is_empty() {
            match write.try_write_vectored(&slices(pieces)) {
                Ok(bytes) if bytes > 0 => {
                    self.count_written(bytes);
                    advance(pieces, bytes);
                }
                // Full, or broken: who waits finds out.
                Ok(_) | Err(_) => return false,
            }
        }
        self.queue_locked().broken.is_none()
    }

    /// Sends a Keepalive, unless something was written since the last call, or is on its way.
    /// `written` is where that is kept between calls.
    pub fn keep_alive(&self, written: &mut u64) {
        // Who holds the lock writes, and that says as much as a Keepalive.
        let Ok(socket) = self.0.socket.try_lock() else { return };
        let is_idle =
            self.0.written.load(Ordering::Relaxed) == *written && socket.pieces.is_empty();
        drop(socket);
        if is_idle && self.queue_locked().pieces.is_empty() {
            self.queue(OutFrame::message(Uuid::nil(), &Keepalive {})).ok();
        }
        self.try_flush();
        *written = self.0.written.load(Ordering::Relaxed);
    }

    /// Queues a frame; gives its place in all that is sent.
    fn put_frame(&self, frame: OutFrame) -> Result<u64, LinkError> {
        let mut payload_crc = None;
        loop {
            let mut queue = self.queue_locked();
            if queue.checksums && payload_crc.is_none() {
                // Not while others wait for the queue.
                drop(queue);
                payload_crc = Some(crc32fast::hash(&frame.payload));
                continue;
            }
            let (head, trailer) = frame.encoded(payload_crc)?;
            if queue.queued == 0 {
                let crc = frame.head().checksum(Generation::F2, crc32fast::hash(&frame.payload))?;
                self.0.hello_crc.get_or_init(|| crc);
            }
            return put(&mut queue, [head, frame.payload, trailer]);
        }
    }

    /// The leader has welcomed us with a checksum: what is sent from now on has one too, and says
    /// so first.
    fn begin_checksums(&self) -> Result<(), LinkError> {
        let begin = OutFrame::new(Kind::Welcome, Bytes::new());
        let (head, trailer) = begin.encoded(Some(crc32fast::hash(&begin.payload)))?;
        let mut queue = self.queue_locked();
        queue.checksums = true;
        put(&mut queue, [head, trailer]).map(|_| ())
    }

    fn queue_locked(&self) -> MutexGuard<'_, Queue> {
        self.0.queue()
    }

    /// Writes until nothing is queued. The lock is fair, so nobody waits behind more than a few
    /// chunks.
    async fn write(&self, start: u64) -> Result<(), LinkError> {
        let mut socket = self.0.socket.lock().await;
        loop {
            {
                let mut queue = self.queue_locked();
                if let Some(kind) = queue.broken {
                    let untouched = self.0.written.load(Ordering::Relaxed) <= start;
                    return if untouched { Err(LinkError::Io(kind.into())) } else { Ok(()) };
                }
                socket.pieces.append(&mut queue.pieces);
            }
            if socket.pieces.is_empty() {
                return Ok(());
            }
            let Socket { write, pieces } = &mut *socket;
            let slices = slices(pieces);
            let failed = match write.write_vectored(&slices).await {
                Ok(0) => io::ErrorKind::WriteZero,
                Ok(bytes) => {
                    self.count_written(bytes);
                    advance(pieces, bytes);
                    continue;
                }
                Err(error) => error.kind(),
            };
            pieces.clear();
            self.queue_locked().broken = Some(failed);
        }
    }
}

/// Queues the pieces of a frame; gives its place in all that is sent.
fn put<const N: usize>(queue: &mut Queue, pieces: [Bytes; N]) -> Result<u64, LinkError> {
    if let Some(kind) = queue.broken {
        return Err(LinkError::Io(kind.into()));
    }
    let start = queue.queued;
    for piece in pieces.into_iter().filter(|piece| !piece.is_empty()) {
        queue.queued += piece.len() as u64;
        queue.pieces.push_back(piece);
    }
    Ok(start)
}

fn slices(pieces: &VecDeque<Bytes>) -> Vec<io::IoSlice<'_>> {
    pieces.iter().take(SLICES_MAX).map(|piece| io::IoSlice::new(piece)).collect()
}

/// Takes what was written off the front of what is to be written.
fn advance(pieces: &mut VecDeque<Bytes>, mut written: usize) {
    while let Some(front) = pieces.front_mut() {
        if written < front.len() {
            bytes::Buf::advance(front, written);
            return;
        }
        written -= front.len();
        pieces.pop_front();
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
