//! Queues output for one peer and writes it to the socket.
//!
//! Output is written at once, as far as the socket takes it; only the rest waits for the writer
//! task. So a chunk is forwarded by the task that read it, without waking another.

mod piece;
mod splice;

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::Notify;
use tracing::debug;

pub(super) use piece::Cargo;
use piece::{Bulk, Continuation, Copied, Parked, Piece};

use super::parking::{Place, SLICE_BYTES};
use super::pipes::Pipe;
use super::socket::Socket;
use crate::conn::{Want, WireChunk, WireFrame};
use crate::wire::{Pace, Speed};
use chunking::limits::CHUNK_PIECE_BYTES_MAX;
use uuid::Uuid;

/// A peer that takes more than this between two looks is not slow.
const QUICK_BYTES: u64 = 4 * 1024 * 1024;

/// Nor is one to which only this much is on its way.
const FEW_BYTES: u64 = 64 * 1024;

/// What may wait for one peer, with what it takes to keep it. Beyond it the peer is too slow to be
/// served (W15 has 1,024 frames and waits; a leader that waited for one peer would make all wait).
/// A peer that reads does not get there: payloads go to it as it takes them, chunks by windows, and
/// a client is not read while too many answers wait for it.
const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Frames up to this size are one piece.
const SMALL_FRAME_BYTES_MAX: usize = 1024;

/// Answers that wait for a client, and how few of them there are before it is read again.
const ANSWERS_BYTES_MAX: usize = 8 * 1024 * 1024;
const ANSWERS_BYTES_LOW: usize = ANSWERS_BYTES_MAX - 256 * 1024;

/// Bytes of answers that wait for all peers. Beyond this the peer with the most waiting is cut off.
const ALL_ANSWERS_BYTES_MAX: usize = 128 * 1024 * 1024;

/// Beyond this, clients with more than `FEW_ANSWERS_BYTES` of waiting answers are not read.
const ALL_ANSWERS_BYTES_HIGH: usize = ALL_ANSWERS_BYTES_MAX / 4;
const FEW_ANSWERS_BYTES: usize = 256 * 1024;

/// Answers that wait for all peers, in bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct AllAnswers(Rc<Cell<usize>>);

impl AllAnswers {
    fn add(&self, bytes: usize) {
        self.0.set(self.0.get() + bytes);
    }

    fn take(&self, bytes: usize) {
        self.0.set(self.0.get().saturating_sub(bytes));
    }

    /// How many there are, if that is too many.
    pub(super) fn are_too_many(&self) -> Option<usize> {
        Some(self.0.get()).filter(|bytes| *bytes > ALL_ANSWERS_BYTES_MAX)
    }
}

/// Pieces that one call writes.
const SLICES_MAX: usize = 64;

/// The capacity for pieces that is kept when none waits.
const PIECES_KEPT_MAX: usize = 256;

/// Smaller payloads stay in memory even if the peer does not read them.
const PARKED_BYTES_MIN: usize = 16 * 1024;

/// What waits for one peer.
pub(super) struct Outbox<S> {
    socket: Rc<S>,
    pieces: RefCell<VecDeque<Piece>>,
    /// Chunks that follow, whole or in pieces as the line then is, and what must not overtake them.
    bulk: RefCell<VecDeque<Bulk>>,
    /// What was asked for of the first of them.
    asked: Cell<Option<Want>>,
    /// Whether buffers were scarce when the last one was handed over.
    scarce: Cell<bool>,
    pace: Cell<Pace>,
    /// The speed that the system was set for, and whether the leader knows that the line is slow.
    tuned: Cell<Option<Speed>>,
    told_slow: Cell<bool>,
    bytes: Cell<usize>,
    /// Of that, what nobody waits for: answers to what the peer sent, and news.
    answers: Cell<usize>,
    answers_low: Notify,
    all_answers: AllAnswers,
    /// The payloads, as far as they are in memory.
    posted: Cell<usize>,
    /// Since when the socket has not taken all posted payloads.
    posted_since: Cell<Option<Instant>>,
    /// The payloads that are on disk.
    place: RefCell<Option<Rc<Place>>>,
    /// Bytes that the socket took.
    written: Cell<u64>,
    /// How much of that the peer is known to have, and when it last had more.
    progress: Cell<(u64, Instant)>,
    /// What was written by the last look at whether something was said.
    looked_at: Cell<u64>,
    closing: Cell<bool>,
    cut: Cell<bool>,
    ended: Cell<bool>,
    left_over: Notify,
    /// For the writer, which may wait for a socket that takes nothing.
    cut_short: Notify,
    over: Notify,
    /// For the reader, which waits for memory.
    turn: Notify,
}

/// What has become of what was sent to a peer since the last look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// It has all of it.
    Done,
    /// It takes a lot.
    Quick,
    /// Some of it is still on its way, and it took a little.
    Moves,
    /// Some bytes are still on their way, and the peer has taken none for this long.
    Still(Duration),
}

/// How many frames are out that somebody waits for.
#[derive(Clone, Copy, Default)]
pub(super) struct Sent {
    pub(super) chunks: u32,
    pub(super) posted: u32,
    /// What is to go out next, and is not here.
    pub(super) wants: Option<Want>,
}

impl Sent {
    pub(super) fn is_none(self) -> bool {
        self.chunks == 0 && self.posted == 0 && self.wants.is_none()
    }

    fn count(&mut self, cargo: Cargo) {
        match cargo {
            Cargo::Answer | Cargo::Piece => {}
            Cargo::Posted => self.posted += 1,
            Cargo::Chunk => self.chunks += 1,
        }
    }
}

/// What is sent for a chunk that breaks off.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

impl<S: Socket> Outbox<S> {
    pub(super) fn new(socket: Rc<S>, all_answers: AllAnswers) -> Self {
        Outbox {
            socket,
            all_answers,
            pieces: RefCell::default(),
            bulk: RefCell::default(),
            asked: Cell::default(),
            scarce: Cell::default(),
            pace: Cell::default(),
            tuned: Cell::default(),
            told_slow: Cell::default(),
            bytes: Cell::default(),
            answers: Cell::default(),
            answers_low: Notify::new(),
            posted: Cell::default(),
            posted_since: Cell::default(),
            place: RefCell::default(),
            written: Cell::default(),
            progress: Cell::new((0, Instant::now())),
            looked_at: Cell::default(),
            closing: Cell::default(),
            cut: Cell::default(),
            ended: Cell::default(),
            left_over: Notify::new(),
            cut_short: Notify::new(),
            over: Notify::new(),
            turn: Notify::new(),
        }
    }

    /// Takes a frame; it is sent with the next [`Outbox::flush`], before chunks that wait.
    pub(super) fn push(&self, frame: WireFrame, cargo: Cargo) {
        if !self.closing.get() {
            self.put_frame(&mut self.pieces.borrow_mut(), frame, cargo);
        }
    }

    /// The same of a frame that must not overtake a chunk.
    pub(super) fn push_behind(&self, frame: WireFrame) {
        let mut bulk = self.bulk.borrow_mut();
        if bulk.is_empty() {
            return self.push(frame, Cargo::Answer);
        }
        if !self.closing.get() {
            self.bytes.set(self.bytes.get() + frame.len());
            bulk.push_back(Bulk::Frame(frame));
        }
    }

    /// Takes a chunk; it is sent with the next [`Outbox::flush`], or when the line has taken what
    /// is before it. Where buffers are scarce, a line that is not known to be fast takes it in
    /// pieces.
    pub(super) fn push_chunk(&self, chunk: WireChunk, scarce: bool) {
        self.scarce.set(scarce);
        if !self.closing.get() {
            self.judge();
            self.bulk.borrow_mut().push_back(Bulk::Chunk(chunk));
        }
    }

    fn put_frame(&self, pieces: &mut VecDeque<Piece>, frame: WireFrame, cargo: Cargo) {
        let is_one = frame.len() <= SMALL_FRAME_BYTES_MAX;
        let WireFrame { head, payload, trailer } = frame;
        let parts = match is_one {
            true => [[&*head, &*payload, &*trailer].concat().into(), Bytes::new(), Bytes::new()],
            false => [head, payload, trailer],
        };
        let mut parts = parts.into_iter().filter(|bytes| !bytes.is_empty()).peekable();
        while let Some(bytes) = parts.next() {
            let then = if parts.peek().is_some() { Continuation::More } else { Continuation::Ends };
            self.put(pieces, Piece::new(bytes, cargo, then));
        }
    }

    /// Moves on chunks that wait: the next frame of them, once nothing of the one before is left.
    fn refill(&self, pieces: &mut VecDeque<Piece>, sent: &mut Sent) {
        let mut bulk = self.bulk.borrow_mut();
        while let Some(front) = bulk.front_mut() {
            if has_chunk(pieces) {
                return;
            }
            if self.pace.get().speed() != Speed::Fast {
                self.judge_with(false);
            }
            let Bulk::Chunk(chunk) = front else {
                if let Some(Bulk::Frame(frame)) = bulk.pop_front() {
                    self.bytes.set(self.bytes.get().saturating_sub(frame.len()));
                    self.put_frame(pieces, frame, Cargo::Answer);
                }
                continue;
            };
            if let Some(want) = chunk.wants() {
                if self.asked.replace(Some(want)) != Some(want) {
                    sent.wants = Some(want);
                }
                return;
            }
            let speed = self.pace.get().speed();
            // A line that turns out to be slow has no whole chunk to take first.
            let is_careful = speed == Speed::Unknown && self.scarce.get();
            let unknown = is_careful.then_some(CHUNK_PIECE_BYTES_MAX);
            let frame = chunk.next_frame(speed.piece_bytes().or(unknown));
            let is_last = frame.is_none() || chunk.left() == 0;
            match frame {
                Some(frame) if is_last => self.put_frame(pieces, frame, Cargo::Chunk),
                Some(frame) => self.put_frame(pieces, frame, Cargo::Piece),
                // It fits no frame, and nobody waits for it.
                None => sent.count(Cargo::Chunk),
            }
            if is_last {
                bulk.pop_front();
            }
        }
    }

    /// The line is slow, and others need the buffers of the pool: chunks that wait and are kept
    /// elsewhere let go of theirs, and what is being sent goes on from a copy, as far as all copies
    /// together have no more than so many bytes.
    pub(super) fn let_go(
        &self,
        copy_bytes_max: usize,
        copied: &Arc<AtomicUsize>,
        mut is_kept: impl FnMut(Uuid, u64) -> bool,
    ) {
        let has_room =
            |bytes: usize| bytes <= copy_bytes_max.saturating_sub(copied.load(Ordering::Relaxed));
        for bulk in self.bulk.borrow_mut().iter_mut() {
            let Bulk::Chunk(chunk) = bulk else { continue };
            if chunk.here().is_empty() || chunk.is_copy() {
                continue;
            }
            let (transfer, offset) = chunk.name();
            if is_kept(transfer, offset) {
                chunk.let_go();
            } else if has_room(chunk.here().len()) {
                chunk.go_on_from(Copied::of(chunk.here(), copied));
            }
        }
        for piece in self.pieces.borrow_mut().iter_mut() {
            let is_large = piece.cargo.is_of_chunk() && piece.bytes.len() > SMALL_FRAME_BYTES_MAX;
            let is_here = piece.parked == Parked::No;
            if is_large && is_here && !piece.is_copy && has_room(piece.bytes.len()) {
                piece.bytes = Copied::of(&piece.bytes, copied);
                piece.is_copy = true;
            }
        }
    }

    /// What was asked for, or nothing if it cannot be had: then the chunk is not sent.
    pub(super) fn supply(&self, want: &Want, bytes: Bytes) -> Sent {
        let mut sent = Sent::default();
        if self.asked.get() != Some(*want) {
            return sent;
        }
        self.asked.set(None);
        let mut bulk = self.bulk.borrow_mut();
        if let Some(Bulk::Chunk(chunk)) = bulk.front_mut()
            && chunk.is_asked_for(want)
            && !chunk.supply(want, bytes)
        {
            bulk.pop_front();
            sent.count(Cargo::Chunk);
        }
        sent
    }

    /// Looks how fast the line is, before more is sent over it.
    fn judge(&self) {
        self.judge_with(has_chunk(&self.pieces.borrow()));
    }

    fn judge_with(&self, chunk_waits: bool) {
        let (mut pace, acknowledged) = (self.pace.get(), self.acknowledged());
        // Small frames are always on their way, and say nothing.
        let few = if self.is_slow() { 0 } else { FEW_BYTES };
        let is_busy = chunk_waits || self.written.get() - acknowledged > few;
        pace.look(Instant::now(), acknowledged, is_busy);
        self.pace.set(pace);
        let kind = |speed: Speed| std::mem::discriminant(&speed);
        if self.tuned.get().map(kind) != Some(kind(pace.speed())) {
            self.tuned.set(Some(pace.speed()));
            self.socket.limit_unsent(pace.speed().unsent_bytes_max());
        }
    }

    /// Whether the line has become slow, or is so no more, since the last call.
    pub(super) fn has_changed(&self) -> Option<bool> {
        let is_slow = self.is_slow();
        (self.told_slow.replace(is_slow) != is_slow).then_some(is_slow)
    }

    fn is_slow(&self) -> bool {
        matches!(self.pace.get().speed(), Speed::Slow(_))
    }

    fn put(&self, pieces: &mut VecDeque<Piece>, piece: Piece) {
        if pieces.is_empty() && self.progress.get().0 == self.written.get() {
            // Nothing was on its way to it until now.
            self.progress.set((self.written.get(), Instant::now()));
        }
        self.put_on(piece.cargo, piece.cost());
        pieces.push_back(piece);
    }

    fn put_on(&self, cargo: Cargo, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes);
        match cargo {
            Cargo::Answer => {
                self.answers.set(self.answers.get() + bytes);
                self.all_answers.add(bytes);
            }
            Cargo::Posted => self.posted.set(self.posted.get() + bytes),
            Cargo::Chunk | Cargo::Piece => {}
        }
    }

    /// Bytes of a piece are out, or all of it is gone with what it took.
    fn take_off(&self, cargo: Cargo, bytes: usize) {
        self.bytes.set(self.bytes.get().saturating_sub(bytes));
        match cargo {
            Cargo::Answer => {
                self.answers.set(self.answers.get().saturating_sub(bytes));
                self.all_answers.take(bytes);
            }
            Cargo::Posted => self.posted.set(self.posted.get().saturating_sub(bytes)),
            Cargo::Chunk | Cargo::Piece => {}
        }
        if self.posted.get() == 0 {
            self.posted_since.set(None);
        }
        if self.answers.get() <= ANSWERS_BYTES_LOW {
            self.answers_low.notify_one();
        }
    }

    /// Waits while too many answers wait for the peer: what it sends would only make more. It ends
    /// with the connection.
    pub(super) async fn answers_taken(&self) {
        let are_many = |most: usize| {
            let all = self.all_answers.0.get() > ALL_ANSWERS_BYTES_HIGH;
            self.answers.get() > if all { FEW_ANSWERS_BYTES } else { most }
        };
        if are_many(ANSWERS_BYTES_MAX) {
            while are_many(ANSWERS_BYTES_LOW) && !self.ended.get() {
                self.answers_low.notified().await;
            }
        }
    }

    /// Bytes of answers that wait for the peer.
    pub(super) fn answers(&self) -> usize {
        self.answers.get()
    }

    /// Whether nothing waits to be sent, and what is spliced would not have to wait.
    pub(super) fn is_free(&self) -> bool {
        if !self.has_nothing() {
            return false;
        }
        self.judge();
        !self.is_slow()
    }

    /// Whether nothing waits to be sent.
    fn has_nothing(&self) -> bool {
        self.pieces.borrow().is_empty() && self.bulk.borrow().is_empty() && !self.closing.get()
    }

    /// Whether nothing went out since the last call, and nothing waits to.
    pub(super) fn is_quiet(&self) -> bool {
        self.looked_at.replace(self.written.get()) == self.written.get() && self.has_nothing()
    }

    /// Bytes that wait, if they are too many.
    pub(super) fn is_over_full(&self) -> Option<usize> {
        Some(self.bytes.get()).filter(|bytes| *bytes > OUTBOX_BYTES_MAX)
    }

    /// Writes as much as the socket takes; says what is out with that. What is left is the
    /// writer's.
    pub(super) fn flush(&self) -> Sent {
        let mut pieces = self.pieces.borrow_mut();
        let mut sent = Sent::default();
        loop {
            self.advance(&mut pieces, 0, &mut sent);
            self.refill(&mut pieces, &mut sent);
            let slices = next_slices(&pieces);
            if slices.is_empty() {
                if pieces.front().is_some_and(|front| front.follows().is_some()) {
                    // The writer reads it from the disk.
                    self.left_over.notify_one();
                }
                break;
            }
            match self.socket.write(&slices) {
                Ok(written) => {
                    self.written.set(self.written.get() + written as u64);
                    self.advance(&mut pieces, written, &mut sent);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.posted.get() > 0 && self.posted_since.get().is_none() {
                        self.posted_since.set(Some(Instant::now()));
                    }
                    // A line that is idle whenever a chunk begins shows how fast it is only in
                    // between.
                    if has_chunk(&pieces) {
                        self.judge_with(true);
                    }
                    self.left_over.notify_one();
                    break;
                }
                Err(error) => {
                    debug!("a write failed: {error}");
                    drop(pieces);
                    self.cut_off();
                    break;
                }
            }
        }
        sent
    }

    /// Takes what was written off the front, and counts the frames that ended with it.
    fn advance(&self, pieces: &mut VecDeque<Piece>, mut written: usize, sent: &mut Sent) {
        while let Some(front) = pieces.front_mut() {
            if written < front.bytes.len() || front.then == Continuation::Place {
                bytes::Buf::advance(&mut front.bytes, written);
                return self.take_off(front.cargo, written);
            }
            written -= front.bytes.len();
            if front.follows().is_some() {
                self.take_off(front.cargo, front.bytes.len());
                return front.bytes.clear();
            }
            self.take_off(front.cargo, front.cost());
            if front.then == Continuation::Ends {
                sent.count(front.cargo);
            }
            let was_parked = front.parked != Parked::No;
            pieces.pop_front();
            if was_parked && pieces.iter().all(|piece| piece.parked == Parked::No) {
                self.place.take();
            }
        }
        if pieces.capacity() > PIECES_KEPT_MAX {
            pieces.shrink_to(PIECES_KEPT_MAX);
        }
    }

    /// Nothing more is taken and nothing more is sent: the connection ends at once.
    pub(super) fn cut_off(&self) {
        self.cut.set(true);
        self.cut_short.notify_one();
        self.pieces.take();
        self.bulk.take();
        self.place.take();
        self.bytes.set(0);
        self.all_answers.take(self.answers.take());
        self.posted.set(0);
        self.posted_since.set(None);
        self.close();
        self.end();
    }

    /// Tells the reader that the connection is over.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.over.notify_one();
        self.answers_low.notify_one();
        self.turn.notify_one();
    }

    /// It is the reader's turn.
    pub(super) fn give_turn(&self) {
        self.turn.notify_one();
    }

    /// Waits until it is the reader's turn, or the connection is over.
    pub(super) async fn turn(&self) {
        self.turn.notified().await;
    }

    /// Whether the connection is over.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.get()
    }

    /// Waits until the connection is over.
    pub(super) async fn over(&self) {
        self.over.notified().await;
    }

    /// Nothing more is taken; what waits is still sent.
    pub(super) fn close(&self) {
        self.closing.set(true);
        self.left_over.notify_one();
    }

    /// Bytes of what was written that the peer has; all of them, where the system does not say.
    fn acknowledged(&self) -> u64 {
        self.written.get().saturating_sub(self.socket.unacknowledged().unwrap_or(0))
    }

    /// Looks what has become of what was sent: the system may keep megabytes of it.
    pub(super) fn look(&self) -> Look {
        let (before, since) = self.progress.get();
        let is_empty = self.pieces.borrow().is_empty();
        if is_empty && before == self.written.get() {
            return Look::Done;
        }
        let acknowledged = self.acknowledged();
        if acknowledged > before || is_empty && acknowledged == self.written.get() {
            self.progress.set((acknowledged, Instant::now()));
        }
        match () {
            () if is_empty && acknowledged == self.written.get() => Look::Done,
            () if is_empty
                && acknowledged > before
                && self.written.get() - acknowledged < FEW_BYTES =>
            {
                Look::Quick
            }
            () if acknowledged > before + QUICK_BYTES => Look::Quick,
            () if acknowledged > before => Look::Moves,
            () => Look::Still(since.elapsed()),
        }
    }

    /// Waits until the socket takes something of what is left. `None` when there is nothing left
    /// and nothing comes, or when the peer is cut off meanwhile: one that takes nothing says
    /// nothing, either.
    pub(super) async fn ready(&self) -> Option<()> {
        loop {
            if self.cut.get() {
                return None;
            }
            let is_empty = self.pieces.borrow().is_empty() && self.bulk.borrow().is_empty();
            let is_place = self.is_place_next();
            if is_empty && self.closing.get() {
                return None;
            }
            // Nothing can be written before what was asked for is here.
            let is_supplied = self.asked.get().is_none() || !self.pieces.borrow().is_empty();
            if is_empty || is_place || !is_supplied {
                self.left_over.notified().await;
                continue;
            }
            tokio::select! {
                () = self.socket.writable() => return Some(()),
                () = self.cut_short.notified() => {}
            }
        }
    }

    /// Whether the peer was cut off.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.get()
    }
}

impl<S> Drop for Outbox<S> {
    fn drop(&mut self) {
        self.all_answers.take(self.answers.get());
    }
}

/// What comes next of what is in memory, as far as it can be written now.
fn next_slices(pieces: &VecDeque<Piece>) -> Vec<io::IoSlice<'_>> {
    let mut slices = Vec::with_capacity(pieces.len().min(SLICES_MAX));
    for piece in
        pieces.iter().take(SLICES_MAX).take_while(|piece| piece.then != Continuation::Place)
    {
        if !piece.bytes.is_empty() {
            slices.push(io::IoSlice::new(&piece.bytes));
        }
        if piece.follows().is_some() {
            break;
        }
    }
    slices
}

impl<S: Socket> Outbox<S> {
    /// Payloads in memory that the socket does not take, with since when. None while some of them
    /// are on the disk already.
    pub(super) fn stuck(&self) -> Option<(Instant, usize)> {
        let since = self.posted_since.get().filter(|_| self.place.borrow().is_none())?;
        let is_long =
            |piece: &&Piece| piece.cargo == Cargo::Posted && piece.bytes.len() >= PARKED_BYTES_MIN;
        let bytes: usize =
            self.pieces.borrow().iter().filter(is_long).map(|piece| piece.bytes.len()).sum();
        (bytes > 0).then_some((since, bytes))
    }

    /// Moves them to a place on the disk. Whatever the socket takes meanwhile is taken from memory.
    pub(super) async fn park(&self, place: Place) -> io::Result<()> {
        let place = Rc::new(place);
        let (mut going, mut next) = (Vec::new(), place.start());
        for piece in self.pieces.borrow_mut().iter_mut() {
            if piece.cargo == Cargo::Posted && piece.bytes.len() >= PARKED_BYTES_MIN {
                piece.parked = Parked::Going { at: next, len: piece.bytes.len() };
                next += piece.bytes.len() as u64;
                going.push(piece.bytes.clone());
            }
        }
        self.place.replace(Some(place.clone()));
        let written = place.write(place.start(), going).await;
        let mut is_needed = false;
        let mut pieces = self.pieces.borrow_mut();
        for piece in pieces.iter_mut() {
            let Parked::Going { at, len } = piece.parked else { continue };
            piece.parked = Parked::No;
            if written.is_ok() {
                let left = piece.bytes.len();
                self.take_off(piece.cargo, left);
                piece.bytes = Bytes::new();
                piece.parked = Parked::There { at: at + (len - left) as u64, len: left };
                is_needed = true;
            }
        }
        if !is_needed {
            self.place.take();
        }
        written
    }

    /// What of the next piece has to be read from the disk, once the socket takes more: where it
    /// is, from where, how much.
    pub(super) fn wanted(&self) -> Option<(Rc<Place>, u64, usize)> {
        let pieces = self.pieces.borrow();
        let (at, len) = pieces.front().filter(|front| front.bytes.is_empty())?.follows()?;
        Some((self.place.borrow().clone()?, at, len.min(SLICE_BYTES)))
    }

    /// It was read.
    pub(super) fn was_read(&self, bytes: Bytes) {
        let mut pieces = self.pieces.borrow_mut();
        let Some(front) = pieces.front_mut().filter(|front| front.bytes.is_empty()) else { return };
        if let Some((at, len)) = front.follows() {
            let read = bytes.len().min(len);
            front.parked = Parked::There { at: at + read as u64, len: len - read };
            self.put_on(front.cargo, bytes.len());
            front.bytes = bytes;
        }
    }
}

/// Whether something of a chunk waits.
fn has_chunk(pieces: &VecDeque<Piece>) -> bool {
    pieces.iter().any(|piece| piece.cargo.is_of_chunk())
}

#[cfg(test)]
#[path = "outbox_tests.rs"]
mod tests;
