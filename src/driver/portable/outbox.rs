//! What waits to be sent to one peer, and the write itself.
//!
//! Whoever has something for a peer writes it at once, as far as the socket takes it; only what is left waits for the
//! writer's task. So a chunk goes on from the task that read it, and no other is woken.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use bytes::Bytes;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;
use tracing::{debug, warn};

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
pub(super) struct Outbox {
    write: OwnedWriteHalf,
    pieces: RefCell<VecDeque<Piece>>,
    bytes: Cell<usize>,
    closing: Cell<bool>,
    cut: Cell<bool>,
    left_over: Notify,
    /// Tells the reader that the connection is over.
    pub(super) over: Notify,
}

struct Piece {
    bytes: Bytes,
    /// Whether a chunk ends with it.
    ends_chunk: bool,
}

impl Outbox {
    pub(super) fn new(write: OwnedWriteHalf) -> Self {
        Outbox {
            write,
            pieces: RefCell::default(),
            bytes: Cell::default(),
            closing: Cell::default(),
            cut: Cell::default(),
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
        let ends_at_head = payload.is_empty();
        pieces.push_back(Piece { bytes: head, ends_chunk: is_chunk && ends_at_head });
        if !ends_at_head {
            pieces.push_back(Piece { bytes: payload, ends_chunk: is_chunk });
        }
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
        while !pieces.is_empty() {
            let slices: Vec<io::IoSlice<'_>> =
                pieces.iter().take(SLICES_MAX).map(|piece| io::IoSlice::new(&piece.bytes)).collect();
            match self.write.try_write_vectored(&slices) {
                Ok(written) => {
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
        self.over.notify_one();
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
            if self.pieces.borrow().is_empty() {
                if self.closing.get() {
                    return None;
                }
                self.left_over.notified().await;
                continue;
            }
            let waited = tokio::time::timeout(WRITE_STALL_TIMEOUT, self.write.writable()).await;
            return match waited {
                Ok(Ok(())) => Some(()),
                Ok(Err(error)) => {
                    debug!("a connection broke: {error}");
                    None
                }
                Err(_) => {
                    warn!("a peer took nothing for {} s; cutting it off", WRITE_STALL_TIMEOUT.as_secs());
                    None
                }
            };
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
        if written < front.bytes.len() {
            bytes::Buf::advance(&mut front.bytes, written);
            break;
        }
        written -= front.bytes.len();
        chunks += u32::from(front.ends_chunk);
        pieces.pop_front();
    }
    chunks
}
