//! Assembles chunks that arrive in fragments, and keeps the beginnings of chunks whose sender
//! disconnected.
//!
//! A fragmented chunk counts against its window and gets its memory like a whole chunk; a
//! connection has one at a time. When a connection ends in the middle of a chunk, the received
//! bytes are kept outside the pool, so they block no buffer. The next Grant names them, and the
//! sender resumes there.

use std::time::Duration;

use chunking::message::{HeldPart, Piece};

use super::blob::{Down, Up};
use super::chunks::Chunks;
use super::senders::BUFFER_LEASE;
use super::{BlobId, ChunkRoom, Linger, Memory, Relay, Starts};
use crate::core::ids::{ConnId, Micros};
use crate::wire::{ChunkStart, InChunk, Part, Receiving};

/// First bytes of chunks that the leader keeps, of all connections, at most a chunk each. The
/// oldest makes room.
pub(super) const LEADER_PARTS_MAX: usize = 64;

/// After this time without another fragment, a chunk gives its buffer back. The bytes that arrived
/// are kept.
const PAUSED_AFTER: Duration = Duration::from_secs(10);

/// A receiver that has a part of a chunk gets the rest of it before other chunks, if the rest
/// arrives within this time. Otherwise each break would leave a part of another chunk.
const REST_FIRST: Duration = Duration::from_secs(2);

/// Whether a chunk has to wait for another one, of which who gets it has a part.
pub(super) fn comes_later(
    down: &Down,
    index: u32,
    chunks: &Chunks,
    came: &Receiving,
    up: Option<&Up>,
    now: Micros,
) -> bool {
    let Some(part) = down.sending.part().filter(|part| part.index != index) else { return false };
    let is_asked_for = !came.has(part.index) && up.is_some_and(|up| up.keeps_source);
    chunks.contains(part.index) || is_asked_for && now < down.granted_at.plus(REST_FIRST)
}

/// The chunk that comes in pieces over a connection.
#[derive(Debug)]
pub(super) struct Coming {
    start: ChunkStart,
    have: usize,
    since: Micros,
    /// None if it is not wanted: then it passes by.
    room: Option<ChunkRoom>,
}

impl Relay {
    /// A piece of a chunk has come.
    pub(in crate::leader) fn piece(&mut self, conn: ConnId, id: BlobId, piece: &Piece<'_>) {
        let Piece { head, sent_len, from, bytes } = *piece;
        let start = ChunkStart { transfer: id, head, sent_len };
        let (Ok(from), Ok(all)) = (usize::try_from(from), usize::try_from(sent_len)) else {
            return;
        };
        let before = self.lines.at(conn).coming.take();
        let mut coming = match before {
            Some(coming) if coming.start == start && coming.have == from => coming,
            before => {
                // The sender has given the other one up, or makes no sense: it is asked for again
                // when the blob is done.
                if let Some(before) = before {
                    self.breaks_off(conn, &before);
                }
                self.piece_begins(conn, start, from)
            }
        };
        if let Some(room) = &mut coming.room {
            room.copy_in(from, bytes);
        }
        coming.have = from.saturating_add(bytes.len());
        let now = self.now;
        if let Some(up) = self.up(conn, id) {
            (up.heard_at, up.nudged) = (now, false);
        }
        if coming.have < all {
            self.lines.at(conn).coming = Some(coming);
        } else if let Some(room) = coming.room {
            let bytes = room.freeze(all);
            let crc = Some(crc32fast::hash(&bytes));
            self.chunk(conn, InChunk { transfer: id, head, crc, bytes });
        }
    }

    /// A piece that goes on with nothing on this connection: a chunk begins with it, or its first
    /// bytes were kept.
    fn piece_begins(&mut self, conn: ConnId, start: ChunkStart, from: usize) -> Coming {
        // One that has to wait is not read on until it is its turn; this piece is here.
        let mut room = match self.chunk_starts(conn, &start) {
            Starts::Here(Memory::Pooled(buffer)) => Some(ChunkRoom::Pooled(buffer)),
            Starts::Here(Memory::Own) | Starts::Waits => Some(ChunkRoom::Own(Vec::new())),
            Starts::Skip => None,
        };
        let since = self.now;
        if from > 0 {
            let is_it = |part: &Part| {
                (part.head, part.sent_len, part.bytes().len()) == (start.head, start.sent_len, from)
            };
            let kept = self.parts.take(start.transfer);
            match (&mut room, kept) {
                (Some(room), Some(part)) if is_it(&part) => {
                    room.copy_in(0, part.bytes());
                }
                (Some(_), _) => {
                    let coming = Coming { start, have: from, since, room: room.take() };
                    self.breaks_off(conn, &coming);
                }
                // It may still be of use, when its sender may go on.
                (None, Some(part)) => self.keep_part(part),
                (None, None) => {}
            }
        }
        Coming { start, have: from, since, room }
    }

    /// A chunk in pieces does not come whole.
    fn breaks_off(&mut self, conn: ConnId, coming: &Coming) {
        if coming.room.is_some() {
            self.arrives_no_more(conn, coming.start.transfer);
            self.has_come(conn, false);
            self.make_hungry(coming.start.transfer);
        }
    }

    /// A connection ended, or is silent: what it brought of a chunk in pieces is kept.
    pub(super) fn keep_what_came(&mut self, coming: &Coming) {
        let Coming {
            start: ChunkStart { transfer, head, sent_len }, have, room: Some(room), ..
        } = coming
        else {
            return;
        };
        let here = room.get(*have);
        if let Some(part) = Part::new(*transfer, *head, *sent_len, here) {
            self.keep_part(part);
        }
    }

    /// A connection ended in the middle of a chunk: what came of it is kept, if it is still wanted.
    pub(in crate::leader) fn keep_part(&mut self, part: Part) {
        let Some(blob) = self.blobs.get(&part.transfer) else { return };
        let is_wanted = |index| !blob.came.has(index);
        if blob.came.plan().check(&part.head, part.sent_len).is_ok_and(is_wanted) {
            self.parts.keep(part);
        }
    }

    /// What who brings a blob need not send of the chunk that comes next.
    pub(super) fn held_part(&self, id: BlobId) -> HeldPart {
        let blob = self.blobs.get(&id);
        blob.map(|blob| self.parts.held(id, blob.came.plan(), |index| blob.came.has(index)))
            .unwrap_or_default()
    }

    /// Receivers that waited in vain for the rest of a chunk get other chunks.
    pub(super) fn wait_no_longer(&mut self) {
        let now = self.now;
        let waited =
            |down: &Down| down.sending.part().is_some() && down.granted_at.plus(REST_FIRST) <= now;
        self.ids(|blob| blob.downs.iter().any(waited)).into_iter().for_each(|id| self.feed(id));
    }

    /// Chunks in pieces that hold buffers for longer than a moment leave the pool, where others
    /// need them.
    pub(super) fn leave_pool(&mut self) {
        let now = self.now;
        let is_late = |coming: &Coming| {
            matches!(coming.room, Some(ChunkRoom::Pooled(_)))
                && coming.since.plus(BUFFER_LEASE) <= now
        };
        for (conn, mut coming) in self.lines.take_coming(|_, coming| is_late(coming)) {
            match self.chunk_lingers(conn, coming.have) {
                Linger::Stays => {}
                Linger::Leaves | Linger::Waits => {
                    let here = coming.room.as_ref().map(|room| room.get(coming.have).to_vec());
                    coming.room = here.map(ChunkRoom::Own);
                }
                Linger::Dropped => {
                    self.breaks_off(conn, &coming);
                    coming.room = None;
                }
            }
            self.lines.at(conn).coming = Some(coming);
        }
    }

    /// Gives back the buffers of chunks in pieces of which nothing comes any more.
    pub(super) fn pause_the_silent(&mut self) {
        let now = self.now;
        let Relay { blobs, lines, .. } = self;
        let silent = lines.take_coming(|conn, coming| {
            let up = blobs.get(&coming.start.transfer).and_then(|blob| blob.up.as_ref());
            // Its sender may have come back on another connection.
            let is_silent =
                up.is_none_or(|up| up.conn != conn || up.heard_at.plus(PAUSED_AFTER) <= now);
            coming.room.is_some() && is_silent
        });
        for (conn, coming) in silent {
            self.keep_what_came(&coming);
            self.breaks_off(conn, &coming);
            // If it goes on after all, that is not a breach of its window.
            if let Some(up) = self.up(conn, coming.start.transfer) {
                up.written_off = up.written_off.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
#[path = "fragments_tests.rs"]
mod tests;
