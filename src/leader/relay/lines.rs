//! Schedules each connection's blobs: which blob is next, and how many bytes wait to be sent.

use std::collections::{HashMap, VecDeque};

use super::BlobId;
use super::fragments::Coming;
use crate::core::ids::ConnId;

/// Chunks that wait in one connection's outbox: enough that the socket never runs dry, few enough
/// that a small frame behind them does not wait long.
const OUTBOX_CHUNKS_MAX: u32 = 4;

/// The same for a slow line: one is on its way for a while, and a buffer that waits is nobody
/// else's.
const OUTBOX_CHUNKS_SLOW: u32 = 2;

#[derive(Debug, Default)]
pub(super) struct Line {
    /// Blobs that it brings or gets, in the order of their turns.
    blobs: VecDeque<BlobId>,
    /// Chunks that were handed to it and are not sent.
    pub(super) chunks_out: u32,
    /// Whether its chunks held up a receiver when they were spliced.
    pub(super) brings_slowly: bool,
    /// Whether it takes slowly what it is sent.
    pub(super) takes_slowly: bool,
    /// The chunk that comes in pieces over it.
    pub(super) coming: Option<Coming>,
}

impl Line {
    pub(super) fn blobs(&self) -> impl Iterator<Item = BlobId> {
        self.blobs.iter().copied()
    }

    /// Whether another chunk may wait to be sent.
    pub(super) fn has_room(&self) -> bool {
        self.chunks_out < if self.takes_slowly { OUTBOX_CHUNKS_SLOW } else { OUTBOX_CHUNKS_MAX }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Lines {
    by_conn: HashMap<ConnId, Line>,
    /// Connections that send or receive a blob.
    linked: usize,
}

impl Lines {
    pub(super) fn get(&self, conn: ConnId) -> Option<&Line> {
        self.by_conn.get(&conn)
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Line> {
        self.by_conn.get_mut(&conn)
    }

    /// One that is there.
    pub(super) fn at(&mut self, conn: ConnId) -> &mut Line {
        self.by_conn.entry(conn).or_default()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (ConnId, &Line)> {
        self.by_conn.iter().map(|(conn, line)| (*conn, line))
    }

    /// Blobs that a connection brings or gets.
    pub(super) fn blobs(&self, conn: ConnId) -> impl Iterator<Item = BlobId> {
        self.get(conn).into_iter().flat_map(Line::blobs)
    }

    /// The same, and the next one's turn comes.
    pub(super) fn take_turn(&mut self, conn: ConnId) -> Vec<BlobId> {
        let Some(line) = self.get_mut(conn).filter(|line| !line.blobs.is_empty()) else {
            return Vec::new();
        };
        line.blobs.rotate_left(1);
        line.blobs().collect()
    }

    /// Connections that bring or get a blob.
    pub(super) fn linked(&self) -> usize {
        self.linked
    }

    pub(super) fn link(&mut self, conn: ConnId, id: BlobId) {
        let blobs = &mut self.by_conn.entry(conn).or_default().blobs;
        if !blobs.contains(&id) {
            self.linked += usize::from(blobs.is_empty());
            blobs.push_back(id);
        }
    }

    pub(super) fn unlink(&mut self, conn: ConnId, id: BlobId) {
        let Some(line) = self.by_conn.get_mut(&conn) else { return };
        if let Some(at) = line.blobs.iter().position(|linked| *linked == id) {
            line.blobs.remove(at);
            self.linked -= usize::from(line.blobs.is_empty());
        }
    }

    /// Takes chunks in pieces off their connections.
    pub(super) fn take_coming(
        &mut self,
        goes: impl Fn(ConnId, &Coming) -> bool,
    ) -> Vec<(ConnId, Coming)> {
        let coming = self.by_conn.iter_mut().map(|(conn, line)| (*conn, &mut line.coming));
        coming
            .filter_map(|(conn, coming)| Some((conn, coming.take_if(|coming| goes(conn, coming))?)))
            .collect()
    }

    /// A connection ended. Gives what was known of it.
    pub(super) fn closed(&mut self, conn: ConnId) -> Line {
        let line = self.by_conn.remove(&conn).unwrap_or_default();
        self.linked -= usize::from(!line.blobs.is_empty());
        line
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;

    #[test]
    fn each_blob_has_its_turn_and_a_connection_counts_while_it_has_one() {
        let (conn, other) = (ConnId(1), ConnId(2));
        let [a, b] = [1, 2].map(Uuid::from_u128);
        let mut lines = Lines::default();
        [a, b, a].into_iter().for_each(|id| lines.link(conn, id));
        lines.link(other, a);
        assert_eq!(
            (lines.linked(), lines.take_turn(conn), lines.take_turn(conn)),
            (2, vec![b, a], vec![a, b])
        );
        lines.unlink(conn, a);
        lines.unlink(conn, a);
        assert_eq!((lines.linked(), lines.blobs(conn).collect::<Vec<_>>()), (2, vec![b]));
        lines.unlink(conn, b);
        assert_eq!((lines.linked(), lines.take_turn(conn)), (1, vec![]));
        assert_eq!(lines.closed(other).blobs().collect::<Vec<_>>(), [a]);
        lines.closed(conn);
        lines.closed(conn);
        assert_eq!((lines.linked(), lines.iter().count()), (0, 0));
    }

    #[test]
    fn fewer_chunks_wait_for_a_slow_line() {
        let room = |takes_slowly| {
            let line = |chunks_out| Line { chunks_out, takes_slowly, ..Line::default() };
            (0..9).take_while(|out| line(*out).has_room()).count()
        };
        assert_eq!((room(false), room(true)), (4, 2));
    }
}
