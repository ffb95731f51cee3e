//! What waits to be sent to one peer, and the write itself.
//!
//! Whoever has something for a peer writes it at once, as far as the socket takes it; only what is left waits for the
//! writer's task. So a chunk goes on from the task that read it, and no other is woken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tracing::{debug, warn};

use super::lane::Pipe;
use super::socket::Socket;
use crate::conn::WireFrame;

/// A peer that takes nothing of what waits for it for so long is cut off.
const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// What may wait for one peer. Beyond it the peer is too slow to be served.
const OUTBOX_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Pieces of frames that wait for one peer (W15 has 1,024 and waits; a leader that waited for one peer would make all
/// wait).
const OUTBOX_PIECES_MAX: usize = 64 * 1024;

/// Pieces that one call writes.
const SLICES_MAX: usize = 64;

/// What waits for one peer.
pub(super) struct Outbox<S> {
    socket: Rc<S>,
    pieces: RefCell<VecDeque<Piece>>,
    bytes: Cell<usize>,
    /// Whether something went out since the last look for whether it lives.
    has_sent: Cell<bool>,
    closing: Cell<bool>,
    cut: Cell<bool>,
    ended: Cell<bool>,
    left_over: Notify,
    over: Notify,
}

struct Piece {
    bytes: Bytes,
    then: Then,
}

/// What follows when a piece is out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    /// Nothing of interest.
    More,
    /// A chunk is out.
    EndsChunk,
    /// Whoever passes a chunk through writes its bytes here.
    Place,
}

/// What is sent for a chunk that breaks off.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

impl<S: Socket> Outbox<S> {
    pub(super) fn new(socket: Rc<S>) -> Self {
        Outbox {
            socket,
            pieces: RefCell::default(),
            bytes: Cell::default(),
            has_sent: Cell::default(),
            closing: Cell::default(),
            cut: Cell::default(),
            ended: Cell::default(),
            left_over: Notify::new(),
            over: Notify::new(),
        }
    }

    /// Takes a frame; it is sent with the next [`Outbox::flush`].
    pub(super) fn push(&self, frame: WireFrame, is_chunk: bool) {
        if self.closing.get() {
            return;
        }
        let WireFrame { head, payload } = frame;
        self.bytes.set(self.bytes.get() + head.len() + payload.len());
        let mut pieces = self.pieces.borrow_mut();
        let last = if is_chunk { Then::EndsChunk } else { Then::More };
        if payload.is_empty() {
            return pieces.push_back(Piece { bytes: head, then: last });
        }
        pieces.push_back(Piece { bytes: head, then: Then::More });
        pieces.push_back(Piece { bytes: payload, then: last });
    }

    /// Whether nothing waits to be sent.
    pub(super) fn is_free(&self) -> bool {
        self.pieces.borrow().is_empty() && !self.closing.get()
    }

    /// Whether nothing went out since the last call, and nothing waits to.
    pub(super) fn is_quiet(&self) -> bool {
        !self.has_sent.replace(false) && self.is_free()
    }

    /// Takes the head of a chunk that passes through. It goes out when the chunk's first bytes do; what is pushed from now on
    /// waits until the chunk is out.
    pub(super) fn push_place(&self, head: Bytes) {
        if !self.closing.get() {
            self.bytes.set(self.bytes.get() + head.len());
            self.pieces.borrow_mut().push_back(Piece { bytes: head, then: Then::Place });
        }
    }

    /// Whether the place for a chunk that passes through is next. It is there until the chunk is out, unless the
    /// connection is over.
    pub(super) fn is_place_next(&self) -> bool {
        self.pieces.borrow().front().is_some_and(|front| front.then == Then::Place)
    }

    /// Writes bytes of the chunk that passes through, as far as the socket takes them. Only if its place is next.
    pub(super) fn pass(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pieces = self.pieces.borrow_mut();
        let Some(front) = pieces.front_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        let slices = [io::IoSlice::new(&front.bytes), io::IoSlice::new(bytes)];
        let written = self.socket.write(&slices)?;
        self.has_sent.set(true);
        let head = written.min(front.bytes.len());
        bytes::Buf::advance(&mut front.bytes, head);
        self.bytes.set(self.bytes.get().saturating_sub(head));
        Ok(written - head)
    }

    /// Moves bytes of the chunk that passes through out of a pipe. Only if its place is next.
    pub(super) fn pass_pipe(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        let mut pieces = self.pieces.borrow_mut();
        let Some(front) = pieces.front_mut() else { return Err(io::ErrorKind::NotConnected.into()) };
        // By itself: pages that follow in the same packet (MSG_MORE) are copied at a fraction of the speed.
        while !front.bytes.is_empty() {
            let head = self.socket.write(&[io::IoSlice::new(&front.bytes)])?;
            bytes::Buf::advance(&mut front.bytes, head);
            self.bytes.set(self.bytes.get().saturating_sub(head));
        }
        self.has_sent.set(true);
        self.socket.drain(pipe, most)
    }

    /// The chunk that passes through is out, but for these bytes. What waited behind it follows.
    pub(super) fn end_place(&self, rest: Bytes) {
        let mut pieces = self.pieces.borrow_mut();
        if let Some(front) = pieces.front_mut().filter(|front| front.then == Then::Place) {
            front.then = Then::More;
            self.bytes.set(self.bytes.get() + rest.len());
            let end = Piece { bytes: rest, then: Then::EndsChunk };
            pieces.insert(1, end);
            self.left_over_if_closing();
        }
    }

    /// Whoever waits for the end of a connection that is closing has to look again.
    fn left_over_if_closing(&self) {
        if self.closing.get() {
            self.left_over.notify_one();
        }
    }

    /// The chunk that passes through breaks off, so many bytes before its end: its receiver gets zeros instead.
    pub(super) fn break_place(&self, mut missing: usize) {
        let mut pieces = self.pieces.borrow_mut();
        if let Some(front) = pieces.front_mut().filter(|front| front.then == Then::Place) {
            front.then = Then::More;
            self.bytes.set(self.bytes.get() + missing);
            let mut at = 1;
            loop {
                let part = Bytes::from_static(ZEROS.get(..missing.min(ZEROS.len())).unwrap_or_default());
                missing -= part.len();
                let then = if missing == 0 { Then::EndsChunk } else { Then::More };
                pieces.insert(at, Piece { bytes: part, then });
                if missing == 0 {
                    break;
                }
                at += 1;
            }
            self.left_over_if_closing();
        }
    }

    /// Waits until the socket takes something.
    pub(super) async fn writable(&self) {
        self.socket.writable().await;
    }

    /// Bytes that wait, if they are too many.
    pub(super) fn is_over_full(&self) -> Option<usize> {
        let over = self.bytes.get() > OUTBOX_BYTES_MAX || self.pieces.borrow().len() > OUTBOX_PIECES_MAX;
        over.then(|| self.bytes.get())
    }

    /// Writes as much as the socket takes; says how many chunks are out with that. What is left is the writer's.
    pub(super) fn flush(&self) -> u32 {
        let mut pieces = self.pieces.borrow_mut();
        let mut chunks = 0;
        loop {
            chunks += advance(&mut pieces, 0);
            let until_place = pieces.iter().take_while(|piece| piece.then != Then::Place);
            let slices: Vec<io::IoSlice<'_>> =
                until_place.take(SLICES_MAX).map(|piece| io::IoSlice::new(&piece.bytes)).collect();
            if slices.is_empty() {
                break;
            }
            match self.socket.write(&slices) {
                Ok(written) => {
                    self.has_sent.set(true);
                    self.bytes.set(self.bytes.get().saturating_sub(written));
                    chunks += advance(&mut pieces, written);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
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
        chunks
    }

    /// Nothing more is taken and nothing more is sent: the connection ends at once.
    pub(super) fn cut_off(&self) {
        self.cut.set(true);
        self.pieces.borrow_mut().clear();
        self.bytes.set(0);
        self.close();
        self.end();
    }

    /// Tells the reader that the connection is over.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.over.notify_one();
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

    /// Waits until the socket takes something of what is left. `None` when there is nothing left and nothing comes, or
    /// when the peer takes nothing for too long.
    pub(super) async fn ready(&self) -> Option<()> {
        loop {
            if self.cut.get() {
                return None;
            }
            let (is_empty, is_place) = (self.pieces.borrow().is_empty(), self.is_place_next());
            if is_empty && self.closing.get() {
                return None;
            }
            if is_empty || is_place {
                self.left_over.notified().await;
                continue;
            }
            let waited = tokio::time::timeout(WRITE_STALL_TIMEOUT, self.socket.writable()).await;
            if waited.is_err() {
                warn!("a peer took nothing for {} s; cutting it off", WRITE_STALL_TIMEOUT.as_secs());
            }
            return waited.ok();
        }
    }

    /// Whether the peer was cut off.
    pub(super) fn is_cut(&self) -> bool {
        self.cut.get()
    }
}

/// Takes what was written off the front; says how many chunks ended with it.
fn advance(pieces: &mut VecDeque<Piece>, mut written: usize) -> u32 {
    let mut chunks = 0;
    while let Some(front) = pieces.front_mut() {
        if written < front.bytes.len() || front.then == Then::Place {
            bytes::Buf::advance(&mut front.bytes, written);
            break;
        }
        written -= front.bytes.len();
        chunks += u32::from(front.then == Then::EndsChunk);
        pieces.pop_front();
    }
    chunks
}
