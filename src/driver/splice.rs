//! Splices one chunk from sender to receiver through a pipe while it arrives. (Doing the same
//! through a buffer does not pay: many small writes wake the receiver more often than one large
//! write.)
//!
//! The task that reads from the sender writes to the receiver. It never waits for a stalled
//! receiver: the rest of the chunk is read into its buffer and waits in the outbox. The receiver
//! does not wait for a sender that breaks off either: it gets zeros, and is told to discard them.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::time::{timeout, timeout_at};

use super::hub::Hub;
use super::outbox::Outbox;
use super::pipes::Pipe;
use super::socket::Socket;
use crate::core::ids::ConnId;
use crate::leader::Spliced;
use crate::wire::{ChunkStart, Inlet, PoolBuf};

/// After this time without progress, a receiver does not hold up its sender any longer.
const RECEIVER_WAIT: Duration = Duration::from_millis(100);

/// A sender that takes longer for a chunk, and is waited for, does not hold up its receiver any
/// longer.
const SENDER_WAIT: Duration = Duration::from_secs(1);

/// A chunk that took longer than this held up its receiver.
const SLOW: Duration = Duration::from_millis(250);

/// A chunk on the splice path. It is kept here so that it survives when the task that reads it is
/// dropped.
pub(super) struct Splicing<S> {
    to: ConnId,
    outbox: Rc<Outbox<S>>,
    start: ChunkStart,
    began: Instant,
    /// When its sender is not waited for any longer.
    pub(super) deadline: Instant,
    /// Bytes of it that are out.
    written: usize,
    /// Where in its buffer the rest begins, once it is read whole.
    rest_from: usize,
}

impl<S> Splicing<S> {
    fn missing(&self) -> usize {
        bytes_of(&self.start) - self.written
    }
}

/// Bytes of a chunk that have come and are not out.
struct InHand {
    buffer: PoolBuf,
    from: usize,
    to: usize,
    /// The same, in a pipe. Never beside bytes in the buffer.
    pipe: Pipe,
    in_pipe: usize,
    /// Bytes that are still to come.
    to_come: usize,
}

/// How a step ended.
enum Flow {
    Moved,
    Blocked,
    Over,
}

impl InHand {
    fn is_empty(&self) -> bool {
        self.from == self.to && self.in_pipe == 0
    }

    /// Writes what is here, once; counts it.
    fn write<S: Socket>(&mut self, outbox: &Outbox<S>, written: &mut usize) -> Flow {
        if !outbox.is_place_next() {
            return Flow::Over;
        }
        let result = if self.in_pipe > 0 {
            outbox.write_pipe(&self.pipe, self.in_pipe).inspect(|out| self.in_pipe -= out)
        } else {
            let here = self.buffer.get(self.from..self.to).unwrap_or_default();
            outbox.write_spliced(here).inspect(|out| self.from += out)
        };
        if self.from == self.to {
            (self.from, self.to) = (0, 0);
        }
        match result {
            Ok(out) => {
                *written += out;
                Flow::Moved
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Flow::Blocked,
            Err(error) => {
                tracing::debug!("a write failed: {error}");
                outbox.cut_off();
                Flow::Over
            }
        }
    }

    /// Reads more, once. Only if nothing is here.
    fn read(&mut self, socket: &impl Socket) -> Result<Flow, io::Error> {
        match socket.fill(&self.pipe, self.to_come) {
            Ok(0) => Ok(Flow::Over),
            Ok(came) => {
                self.in_pipe = came;
                self.to_come = self.to_come.saturating_sub(came);
                Ok(Flow::Moved)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Flow::Blocked),
            Err(error) => Err(error),
        }
    }

    /// Brings what is in the pipe into the buffer.
    fn empty_pipe(&mut self) -> io::Result<()> {
        while self.in_pipe > 0 {
            let room = self.buffer.room(self.to..self.to + self.in_pipe).unwrap_or_default();
            let came = self.pipe.read(room)?;
            self.to += came;
            self.in_pipe -= came.min(self.in_pipe);
        }
        Ok(())
    }
}

impl<S: Socket> Hub<S> {
    /// Passes on a chunk that begins. Gives why the connection that brings it is over, if it is.
    pub(super) async fn splice_chunk(
        &self,
        conn: ConnId,
        socket: &S,
        inlet: &mut Inlet,
        (start, to): (ChunkStart, ConnId),
        (mut buffer, pipe): (PoolBuf, Pipe),
        slot: &RefCell<Option<Splicing<S>>>,
    ) -> io::Result<()> {
        let outbox =
            self.outboxes.borrow().get(&to).filter(|outbox| outbox.is_place_next()).cloned();
        let Some(outbox) = outbox else {
            self.pipes.give(pipe, true);
            drop(buffer);
            inlet.skip();
            self.with_leader(|leader, now| {
                leader.chunk_spliced(now, conn, &start, Spliced::Broken)
            });
            return Ok(());
        };
        let here = inlet.begin_splice(&mut buffer);
        let to_come = bytes_of(&start).saturating_sub(here);
        let mut hand = InHand { buffer, from: 0, to: here, pipe, in_pipe: 0, to_come };
        let began = Instant::now();
        let deadline = began + SENDER_WAIT;
        let splicing = Splicing {
            to,
            outbox: outbox.clone(),
            start,
            began,
            deadline,
            written: 0,
            rest_from: 0,
        };
        *slot.borrow_mut() = Some(splicing);
        let mut written = 0;
        let how = loop {
            let flow = if hand.is_empty() {
                if hand.to_come == 0 {
                    break Spliced::Whole;
                }
                match hand.read(socket)? {
                    Flow::Blocked => match timeout_at(deadline.into(), socket.readable()).await {
                        Ok(()) => Flow::Moved,
                        Err(_) => break Spliced::Stalled,
                    },
                    Flow::Over => return Err(io::ErrorKind::UnexpectedEof.into()),
                    moved @ Flow::Moved => moved,
                }
            } else {
                let flow = hand.write(&outbox, &mut written);
                if let Some(splicing) = slot.borrow_mut().as_mut() {
                    splicing.written = written;
                }
                flow
            };
            match flow {
                Flow::Moved => {}
                Flow::Over => break Spliced::Broken,
                Flow::Blocked => {
                    // A connection that breaks is noticed by the write.
                    if timeout(RECEIVER_WAIT, outbox.writable()).await.is_err() {
                        return self.read_the_rest(inlet, hand, slot);
                    }
                }
            }
        };
        inlet.end_splice(
            start.sent_len.saturating_sub(u32::try_from(hand.to_come).unwrap_or(u32::MAX)),
        );
        self.pipes.give(hand.pipe, hand.in_pipe == 0);
        // Before others look for a buffer.
        drop(hand.buffer);
        self.end_splice(conn, slot, how, Bytes::new());
        Ok(())
    }

    /// Its receiver takes nothing at the moment: what is left is read whole, and waits.
    fn read_the_rest(
        &self,
        inlet: &mut Inlet,
        mut hand: InHand,
        slot: &RefCell<Option<Splicing<S>>>,
    ) -> io::Result<()> {
        hand.empty_pipe()?;
        self.pipes.give(hand.pipe, true);
        if let Some(splicing) = slot.borrow_mut().as_mut() {
            splicing.rest_from = hand.from;
            splicing.deadline = Instant::now() + SENDER_WAIT;
        }
        inlet.take_rest(hand.buffer, hand.to, hand.to + hand.to_come);
        Ok(())
    }

    /// The rest of a chunk has come. False if it is no such chunk.
    pub(super) fn rest_came(
        &self,
        conn: ConnId,
        chunk: &crate::wire::InChunk,
        slot: &RefCell<Option<Splicing<S>>>,
    ) -> bool {
        let Some(from) = slot.borrow().as_ref().map(|splicing| splicing.rest_from) else {
            return false;
        };
        let rest =
            chunk.bytes.get(from..).map(|rest| chunk.bytes.slice_ref(rest)).unwrap_or_default();
        self.end_splice(conn, slot, Spliced::Whole, rest);
        true
    }

    /// The connection that brings a chunk is over.
    pub(super) fn break_splice(&self, conn: ConnId, slot: &RefCell<Option<Splicing<S>>>) {
        self.end_splice(conn, slot, Spliced::Broken, Bytes::new());
    }

    /// The rest of a chunk does not come in time.
    pub(super) fn give_up_splice(&self, conn: ConnId, slot: &RefCell<Option<Splicing<S>>>) {
        self.end_splice(conn, slot, Spliced::Stalled, Bytes::new());
    }

    fn end_splice(
        &self,
        conn: ConnId,
        slot: &RefCell<Option<Splicing<S>>>,
        how: Spliced,
        rest: Bytes,
    ) {
        let Some(splicing) = slot.borrow_mut().take() else { return };
        let how = match how {
            Spliced::Whole if splicing.began.elapsed() > SLOW => Spliced::Slow,
            other @ (Spliced::Whole | Spliced::Slow | Spliced::Broken | Spliced::Stalled) => other,
        };
        match how {
            Spliced::Whole | Spliced::Slow => splicing.outbox.end_place(rest),
            Spliced::Broken | Spliced::Stalled => splicing.outbox.break_place(splicing.missing()),
        }
        self.with_leader(|leader, now| {
            leader.chunk_spliced(now, conn, &splicing.start, how);
            self.flush(leader, splicing.to);
        });
    }
}

fn bytes_of(start: &ChunkStart) -> usize {
    usize::try_from(start.sent_len).unwrap_or(usize::MAX)
}
