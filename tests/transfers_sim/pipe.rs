//! One direction of a connection: what waits to be sent, what is on the wire, and where it will be
//! cut.

use std::collections::VecDeque;

use bytes::Bytes;

use super::ends::Out;

struct Piece {
    bytes: Bytes,
    ends: Ends,
    /// The bytes of a chunk on the splice path go here; nothing behind it is sent before.
    place: bool,
}

/// What is out with a piece.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    Nothing,
    Chunk,
    Posted,
}

/// What is out that the leader waits for.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sent {
    pub(crate) chunks: u32,
    pub(crate) posted: u32,
}

/// One direction. At most `capacity` bytes are on the wire.
pub(crate) struct Pipe {
    outbox: VecDeque<Piece>,
    pub(crate) outbox_bytes: usize,
    wire: VecDeque<Bytes>,
    pub(crate) wire_bytes: usize,
    capacity: usize,
    /// Whether bytes leave the sender's memory with the write, as into a socket.
    copies: bool,
    pub(crate) delivered: u64,
    /// After so many bytes the connection breaks.
    pub(crate) cut_at: Option<u64>,
    pub(crate) scheduled: bool,
    pub(crate) paused_until: u64,
    /// Chunks that were handed to it, and that came whole at the other end.
    pub(crate) chunks_in: u64,
    pub(crate) chunks_came: u64,
}

impl Pipe {
    pub(crate) fn new(capacity: usize, copies: bool, cut_at: Option<u64>) -> Self {
        Pipe {
            outbox: VecDeque::new(),
            outbox_bytes: 0,
            wire: VecDeque::new(),
            wire_bytes: 0,
            capacity,
            copies,
            delivered: 0,
            cut_at,
            scheduled: false,
            paused_until: 0,
            chunks_in: 0,
            chunks_came: 0,
        }
    }

    pub(crate) fn push(&mut self, out: Out) {
        match out {
            Out::Frame(bytes) => self.push_piece(bytes, Ends::Nothing),
            Out::Pieces(bytes) => self.push_piece(bytes, Ends::Chunk),
            Out::Chunk { head, payload } => {
                self.chunks_in += 1;
                let is_all = if payload.is_empty() { Ends::Chunk } else { Ends::Nothing };
                self.push_piece(head.into(), is_all);
                if !payload.is_empty() {
                    self.push_piece(payload, Ends::Chunk);
                }
            }
        }
    }

    /// A frame that the leader wants to know to be out.
    pub(crate) fn push_posted(&mut self, bytes: Bytes) {
        self.push_piece(bytes, Ends::Posted);
    }

    fn push_piece(&mut self, bytes: Bytes, ends: Ends) {
        self.outbox_bytes += bytes.len();
        self.outbox.push_back(Piece { bytes, ends, place: false });
    }

    pub(crate) fn push_place(&mut self, head: Bytes) {
        self.chunks_in += 1;
        self.push_piece(head, Ends::Nothing);
        self.outbox.push_back(Piece { bytes: Bytes::new(), ends: Ends::Chunk, place: true });
    }

    /// The bytes of the chunk on the splice path are here.
    pub(crate) fn fill_place(&mut self, bytes: Bytes) {
        let place =
            self.outbox.iter_mut().find(|piece| piece.place).expect("there is a place for it");
        self.outbox_bytes += bytes.len();
        (place.bytes, place.place) = (bytes, false);
    }

    /// Writes as much as the wire takes; says what is out with that.
    pub(crate) fn transmit(&mut self) -> Sent {
        let mut sent = Sent::default();
        while self.wire_bytes < self.capacity {
            let Some(front) = self.outbox.front_mut().filter(|front| !front.place) else { break };
            let len = front.bytes.len().min(self.capacity - self.wire_bytes);
            let part = front.bytes.split_to(len);
            self.outbox_bytes -= len;
            self.wire_bytes += len;
            self.wire.push_back(if self.copies { Bytes::copy_from_slice(&part) } else { part });
            if front.bytes.is_empty() {
                sent.chunks += u32::from(front.ends == Ends::Chunk);
                sent.posted += u32::from(front.ends == Ends::Posted);
                self.outbox.pop_front();
            }
        }
        sent
    }

    /// Whether nothing waits to be sent.
    pub(crate) fn is_free(&self) -> bool {
        self.outbox.is_empty()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.wire.is_empty() && self.outbox.is_empty()
    }

    /// Reads from the wire.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let mut read = 0;
        while read < into.len()
            && let Some(front) = self.wire.front_mut()
        {
            let len = front.len().min(into.len() - read);
            into[read..read + len].copy_from_slice(&front.split_to(len));
            read += len;
            if front.is_empty() {
                self.wire.pop_front();
            }
        }
        self.wire_bytes -= read;
        self.delivered += read as u64;
        read
    }
}
