//! Chunks on the splice path: their place among the frames, and the bytes that go there.

use super::*;

impl<S: Socket> Outbox<S> {
    /// Takes the head of a chunk on the splice path. It goes out when the chunk's first bytes do;
    /// what is pushed from now on waits until the chunk is out.
    pub(in crate::driver) fn push_place(&self, head: Bytes) {
        if !self.closing.get() {
            let place = Piece::new(head, Cargo::Chunk, Continuation::Place);
            self.put(&mut self.pieces.borrow_mut(), place);
        }
    }

    /// Whether the place for a chunk on the splice path is next. It is there until the chunk is
    /// out, unless the connection is over.
    pub(in crate::driver) fn is_place_next(&self) -> bool {
        self.pieces.borrow().front().is_some_and(|front| front.then == Continuation::Place)
    }

    /// Writes bytes of the chunk on the splice path, as far as the socket takes them. Only if its
    /// place is next.
    pub(in crate::driver) fn write_spliced(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut pieces = self.pieces.borrow_mut();
        let Some(front) = pieces.front_mut() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let slices = [io::IoSlice::new(&front.bytes), io::IoSlice::new(bytes)];
        let written = self.socket.write(&slices)?;
        self.written.set(self.written.get() + written as u64);
        let head = written.min(front.bytes.len());
        bytes::Buf::advance(&mut front.bytes, head);
        self.take_off(Cargo::Chunk, head);
        Ok(written - head)
    }

    /// Moves bytes of the chunk on the splice path out of a pipe. Only if its place is next.
    pub(in crate::driver) fn write_pipe(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        let mut pieces = self.pieces.borrow_mut();
        let Some(front) = pieces.front_mut() else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        // By itself: pages that follow in the same packet (MSG_MORE) are copied at a fraction of
        // the speed.
        while !front.bytes.is_empty() {
            let head = self.socket.write(&[io::IoSlice::new(&front.bytes)])?;
            self.written.set(self.written.get() + head as u64);
            bytes::Buf::advance(&mut front.bytes, head);
            self.take_off(Cargo::Chunk, head);
        }
        let drained = self.socket.drain(pipe, most)?;
        self.written.set(self.written.get() + drained as u64);
        Ok(drained)
    }

    /// The chunk on the splice path is out, but for these bytes. What waited behind it follows.
    pub(in crate::driver) fn end_place(&self, rest: Bytes) {
        let mut pieces = self.pieces.borrow_mut();
        if let Some(front) = pieces.front_mut().filter(|front| front.then == Continuation::Place) {
            front.then = Continuation::More;
            let end = Piece::new(rest, Cargo::Chunk, Continuation::Ends);
            self.bytes.set(self.bytes.get() + end.cost());
            pieces.insert(1, end);
            self.left_over_if_closing();
        }
    }

    /// Whoever waits for the end of a connection that is closing has to look again.
    pub(super) fn left_over_if_closing(&self) {
        if self.closing.get() {
            self.left_over.notify_one();
        }
    }

    /// The chunk on the splice path breaks off, so many bytes before its end: its receiver gets
    /// zeros instead.
    pub(in crate::driver) fn break_place(&self, mut missing: usize) {
        let mut pieces = self.pieces.borrow_mut();
        if let Some(front) = pieces.front_mut().filter(|front| front.then == Continuation::Place) {
            front.then = Continuation::More;
            let mut at = 1;
            loop {
                let part =
                    Bytes::from_static(ZEROS.get(..missing.min(ZEROS.len())).unwrap_or_default());
                missing -= part.len();
                let then = if missing == 0 { Continuation::Ends } else { Continuation::More };
                let piece = Piece { is_copy: true, ..Piece::new(part, Cargo::Chunk, then) };
                self.bytes.set(self.bytes.get() + piece.cost());
                pieces.insert(at, piece);
                if missing == 0 {
                    break;
                }
                at += 1;
            }
            self.left_over_if_closing();
        }
    }

    /// Waits until the socket takes something of the chunk on the splice path.
    pub(in crate::driver) async fn writable(&self) {
        self.judge_with(true);
        self.socket.writable().await;
    }
}
