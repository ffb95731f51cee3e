//! Keeps slow receivers from holding buffers while buffers are scarce.
//!
//! Chunks for a slow connection stay on disk or in the spool. The connection asks for the next
//! fragment whenever it has sent the previous one. So a slow receiver costs one fragment of memory,
//! and a buffer only while the chunk is read.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use bytes::Bytes;

use super::senders::QUICK_CHUNK;
use super::{BlobId, Out, Relay};
use crate::conn::Want;
use crate::core::ids::{ConnId, Micros};
use crate::store::blobs::DiskOp;

/// After this time in which a connection took no whole chunk, its chunk releases its buffer if
/// buffers are scarce.
const LINE_LEASE: Duration = Duration::from_millis(100);

/// Bytes of a chunk that a slow line gets at a time. One that knows no pieces gets the whole chunk.
const SUPPLY_BYTES: usize = 256 * 1024;

/// Lines that lag.
#[derive(Debug, Default)]
pub(super) struct Lagging {
    conns: HashSet<ConnId>,
    /// When each line to which chunks go last sent one, or got the first.
    since: HashMap<ConnId, Micros>,
    /// What lines wait for, those that wait longest first.
    waiting: VecDeque<(ConnId, Want)>,
    /// What is being read for lines.
    reading: HashMap<ConnId, (Want, u32)>,
    /// Bytes that lines have got and not sent.
    supplied: HashMap<ConnId, usize>,
}

impl Lagging {
    pub(super) fn lags(&self, conn: ConnId) -> bool {
        self.conns.contains(&conn)
    }

    /// A line gets a chunk.
    pub(super) fn is_sent(&mut self, conn: ConnId, now: Micros) {
        self.since.entry(conn).or_insert(now);
    }

    /// A line has sent a chunk.
    pub(super) fn is_out(&mut self, conn: ConnId, now: Micros) {
        self.supplied.remove(&conn);
        if self.since.insert(conn, now).is_some_and(|since| since.plus(QUICK_CHUNK) >= now) {
            self.conns.remove(&conn);
        }
    }

    /// Whether a chunk was read for a line to take a part of it.
    pub(super) fn is_read_for(&self, conn: ConnId, id: BlobId, index: u32) -> bool {
        self.reading.get(&conn).is_some_and(|(want, at)| (want.transfer, *at) == (id, index))
    }

    pub(super) fn closed(&mut self, conn: ConnId) {
        self.conns.remove(&conn);
        self.since.remove(&conn);
        self.waiting.retain(|(other, _)| *other != conn);
        self.reading.remove(&conn);
        self.supplied.remove(&conn);
    }
}

impl Relay {
    /// Has slow connections release buffers that others need.
    pub(super) fn have_lines_let_go(&mut self) {
        let now = self.now;
        let Relay { lines, lagging, .. } = self;
        lagging.since.retain(|conn, _| lines.get(*conn).is_some_and(|line| line.chunks_out > 0));
        if !self.is_scarce() {
            return;
        }
        let late = self.lagging.since.iter().filter(|(_, since)| since.plus(LINE_LEASE) <= now);
        let late: Vec<ConnId> = late.map(|(conn, _)| *conn).collect();
        for conn in late {
            self.out.push_back(Out::LetGo { conn });
        }
    }

    /// Whether a chunk that waits for a line is kept here, too. If so, it stays until the line has
    /// taken it.
    pub(in crate::leader) fn keeps_for(&mut self, conn: ConnId, id: BlobId, offset: u64) -> bool {
        let Some(blob) = self.blobs.get_mut(&id) else { return false };
        let Some(index) = blob.came.index_of(offset).filter(|index| blob.chunks.contains(*index))
        else {
            return false;
        };
        blob.down(conn).is_some_and(|down| {
            down.elsewhere.insert(index);
            true
        })
    }

    /// A connection has released its buffers. Its further chunks are read from where they are
    /// stored.
    pub(in crate::leader) fn line_lags(&mut self, conn: ConnId) {
        self.lagging.conns.insert(conn);
        self.pump();
    }

    /// A line is ready for a part of a chunk.
    pub(in crate::leader) fn wanted(&mut self, conn: ConnId, want: Want) {
        self.lagging.supplied.remove(&conn);
        self.lagging.waiting.retain(|(other, _)| *other != conn);
        self.lagging.waiting.push_back((conn, want));
        self.supply_lines();
    }

    /// Gives lines what they ask for, as far as there is room for that.
    pub(super) fn supply_lines(&mut self) {
        let most = self.config.buffers.saturating_mul(crate::wire::BUFFER_BYTES);
        while let Some((conn, want)) = self.lagging.waiting.front().copied() {
            let supplied: usize = self.lagging.supplied.values().sum();
            if supplied >= most {
                return;
            }
            let blob = self.blobs.get(&want.transfer);
            let index = blob.and_then(|blob| blob.came.index_of(want.offset));
            let stored =
                blob.zip(index).and_then(|(blob, index)| Some((index, blob.chunks.get(index)?)));
            let Some((index, chunk)) = stored else {
                // The chunk is gone from here. Its receiver does not need it, or requests it again.
                self.lagging.waiting.pop_front();
                self.out.push_back(Out::Supply { conn, want, bytes: Bytes::new() });
                continue;
            };
            let (len, crc, bytes) = (chunk.len, chunk.head.crc_sent, chunk.bytes().cloned());
            let buffer = if bytes.is_none() { self.buffer() } else { None };
            if bytes.is_none() && buffer.is_none() {
                return;
            }
            self.lagging.waiting.pop_front();
            self.lagging.reading.insert(conn, (want, index));
            if let Some(bytes) = bytes {
                self.supply_from(conn, &bytes);
            } else if let Some(buffer) = buffer {
                let blob = want.transfer;
                self.out.push_back(Out::Disk(DiskOp::Read { blob, index, len, crc, conn, buffer }));
            }
        }
    }

    /// A chunk is at hand of which a line takes a part. Without bytes it cannot be had.
    pub(super) fn supply_from(&mut self, conn: ConnId, chunk: &[u8]) {
        let Some((want, index)) = self.lagging.reading.remove(&conn) else { return };
        let id = want.transfer;
        let from = want.from as usize;
        let most = if want.whole { chunk.len() } else { SUPPLY_BYTES };
        let to = chunk.len().min(from.saturating_add(most));
        let part = chunk.get(from..to).unwrap_or_default();
        if to == chunk.len() || part.is_empty() {
            // That is the last of it.
            if let Some(down) = self.blobs.get_mut(&id).and_then(|blob| blob.down(conn)) {
                down.elsewhere.remove(&index);
            }
            self.settle_memory(id);
        }
        self.lagging.supplied.insert(conn, part.len());
        self.out.push_back(Out::Supply { conn, want, bytes: Bytes::copy_from_slice(part) });
    }
}
