//! Chunks that come in pieces, and the first bytes of chunks whose sender went away in the middle of them.
//!
//! A chunk in pieces is one of its window, and finds its memory as one that comes whole does; a connection has one such at a
//! time. What a connection that ended left of a chunk waits outside of the pool, where it keeps nobody from a buffer: the next
//! Grant names it, and its sender goes on from there.

use std::collections::BTreeMap;
use std::time::Duration;

use chunking::Bitmap;
use chunking::message::{HeldPart, Piece};

use super::blob::{Down, Stored, Up};
use super::senders::BUFFER_LEASE;
use super::{BlobId, ChunkRoom, Linger, Memory, Relay, Starts};
use crate::core::ids::{ConnId, Micros};
use crate::wire::{ChunkStart, InChunk, Part};

/// First bytes of chunks that the leader keeps, of all connections, at most a chunk each. The oldest makes room.
pub(super) const LEADER_PARTS_MAX: usize = 64;

/// A chunk in pieces of which nothing comes for so long gives its buffer back; what came of it is kept.
const PAUSED_AFTER: Duration = Duration::from_secs(10);

/// Who has a part of a chunk gets the rest of that before other chunks, if it comes within this time: the next break would leave
/// a part of another one, and each would begin anew.
const REST_FIRST: Duration = Duration::from_secs(2);

/// Whether a chunk has to wait for another one, of which who gets it has a part.
pub(super) fn comes_later(
    down: &Down,
    index: u32,
    stored: &BTreeMap<u32, Stored>,
    seen: &Bitmap,
    up: Option<&Up>,
    now: Micros,
) -> bool {
    let Some(part) = down.sending.part().filter(|part| part.index != index) else { return false };
    let is_asked_for = !seen.contains(part.index) && up.is_some_and(|up| up.keeps_source);
    stored.contains_key(&part.index) || is_asked_for && now < down.granted_at.plus(REST_FIRST)
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
        let (Ok(from), Ok(all)) = (usize::try_from(from), usize::try_from(sent_len)) else { return };
        let before = self.coming.remove(&conn);
        let mut coming = match before {
            Some(coming) if coming.start == start && coming.have == from => coming,
            before => {
                // The sender has given the other one up, or makes no sense: it is asked for again when the blob is done.
                if let Some(before) = before {
                    self.arrives_no_more(conn, &before);
                }
                self.piece_begins(conn, start, from)
            }
        };
        if let Some(room) = &mut coming.room {
            room.copy_in(from, bytes);
        }
        coming.have = from.saturating_add(bytes.len());
        self.hear_of(conn, id);
        if coming.have < all {
            self.coming.insert(conn, coming);
        } else if let Some(room) = coming.room {
            let bytes = room.freeze(all);
            let crc = Some(crc32fast::hash(&bytes));
            self.chunk(conn, InChunk { transfer: id, head, crc, bytes });
        }
    }

    /// A piece that goes on with nothing on this connection: a chunk begins with it, or its first bytes were kept.
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
                    self.arrives_no_more(conn, &coming);
                }
                // It may still be of use, when its sender may go on.
                (None, Some(part)) => self.keep_part(part),
                (None, None) => {}
            }
        }
        Coming { start, have: from, since, room }
    }

    fn hear_of(&mut self, conn: ConnId, id: BlobId) {
        let now = self.now;
        if let Some(up) = self.blobs.get_mut(&id).and_then(|blob| blob.up.as_mut())
            && up.conn == conn
        {
            (up.heard_at, up.nudged) = (now, false);
        }
    }

    /// A chunk that had begun to come does not come whole.
    fn arrives_no_more(&mut self, conn: ConnId, coming: &Coming) {
        if coming.room.is_none() {
            return;
        }
        let id = coming.start.transfer;
        if let Some(up) = self.blobs.get_mut(&id).and_then(|blob| blob.up.as_mut())
            && up.conn == conn
        {
            let counted = up.arriving.min(1);
            up.arriving -= counted;
            self.arriving -= counted as usize;
        }
        self.has_come(conn, false);
        self.make_hungry(id);
    }

    /// A connection ended: what it brought of a chunk in pieces is kept.
    pub(super) fn keep_coming(&mut self, conn: ConnId) {
        if let Some(coming) = self.coming.remove(&conn) {
            self.keep_what_came(&coming);
        }
    }

    fn keep_what_came(&mut self, coming: &Coming) {
        let Coming { start: ChunkStart { transfer, head, sent_len }, have, room: Some(room), .. } = coming
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
        let is_wanted = |index| !blob.seen.contains(index);
        if blob.plan.check(&part.head, part.sent_len).is_ok_and(is_wanted) {
            self.parts.keep(part);
        }
    }

    /// What who brings a blob need not send of the chunk that comes next.
    pub(super) fn held_part(&self, id: BlobId) -> HeldPart {
        let blob = self.blobs.get(&id);
        blob.map(|blob| self.parts.held(id, &blob.plan, |index| blob.seen.contains(index)))
            .unwrap_or_default()
    }

    /// Those who waited in vain for the rest of a chunk get what else there is.
    pub(super) fn wait_no_longer(&mut self) {
        let now = self.now;
        let waited = |down: &Down| down.sending.part().is_some() && down.granted_at.plus(REST_FIRST) <= now;
        let blobs = self.blobs.iter().filter(|(_, blob)| blob.downs.iter().any(waited));
        let blobs: Vec<BlobId> = blobs.map(|(id, _)| *id).collect();
        blobs.into_iter().for_each(|id| self.feed(id));
    }

    /// Chunks in pieces that hold buffers for longer than a moment leave the pool, where others need them.
    pub(super) fn leave_pool(&mut self) {
        let now = self.now;
        let is_late = |coming: &Coming| {
            matches!(coming.room, Some(ChunkRoom::Pooled(_))) && coming.since.plus(BUFFER_LEASE) <= now
        };
        let late = self.coming.iter().filter(|(_, coming)| is_late(coming));
        let late: Vec<ConnId> = late.map(|(conn, _)| *conn).collect();
        for conn in late {
            let Some(mut coming) = self.coming.remove(&conn) else { continue };
            let how = self.chunk_lingers(conn, coming.have);
            match how {
                Linger::Stays => {}
                Linger::Leaves | Linger::Waits => {
                    let here = coming.room.as_ref().map(|room| room.get(coming.have).to_vec());
                    coming.room = here.map(ChunkRoom::Own);
                }
                Linger::Dropped => {
                    self.arrives_no_more(conn, &coming);
                    coming.room = None;
                }
            }
            self.coming.insert(conn, coming);
        }
    }

    /// Gives back the buffers of chunks in pieces of which nothing comes any more.
    pub(super) fn pause_the_silent(&mut self) {
        let now = self.now;
        let is_silent = |conn: ConnId, id: &BlobId| {
            let up = self.blobs.get(id).and_then(|blob| blob.up.as_ref());
            // Its sender may have come back on another connection.
            up.is_none_or(|up| up.conn != conn || up.heard_at.plus(PAUSED_AFTER) <= now)
        };
        let silent: Vec<ConnId> = self
            .coming
            .iter()
            .filter(|(conn, coming)| coming.room.is_some() && is_silent(**conn, &coming.start.transfer))
            .map(|(conn, _)| *conn)
            .collect();
        for conn in silent {
            let Some(coming) = self.coming.remove(&conn) else { continue };
            self.keep_what_came(&coming);
            self.arrives_no_more(conn, &coming);
            // If it goes on after all, that is no breach of its window.
            let up = self.blobs.get_mut(&coming.start.transfer).and_then(|blob| blob.up.as_mut());
            if let Some(up) = up.filter(|up| up.conn == conn) {
                up.written_off = up.written_off.saturating_add(1);
            }
        }
    }
}

#[cfg(test)]
#[path = "pieces_tests.rs"]
mod tests;
