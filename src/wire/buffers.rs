//! Buffers for chunks: page-aligned, one chunk each, allocated once and reused.
//!
//! A buffer is filled from a socket, frozen into [`Bytes`] that can be shared, and returns to its
//! pool when the last share is dropped. Nothing is copied: the kernel reads into [`PoolBuf::room`],
//! and any other write to a buffer is counted. The number of buffers is a limit: a reader that
//! finds the pool empty waits, which is how a slow receiver slows its sender down. Connections of
//! workers and clients have a pool each; a leader has one for all.

use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use chunking::limits::CHUNK_BYTES_MAX;
use tokio::sync::Notify;

/// Bytes of a buffer: the largest chunk.
pub const BUFFER_BYTES: usize = CHUNK_BYTES_MAX as usize;

/// Kernel copies into the front of a page are the fast ones.
const PAGE_BYTES: usize = 4096;

/// A pool of buffers. Clones are the same pool.
#[derive(Clone, Debug)]
pub struct Pool(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    free: Mutex<Vec<BytesMut>>,
    in_use: AtomicUsize,
    buffers_max: usize,
    bytes_copied: AtomicU64,
    freed: Notify,
}

impl Pool {
    /// A pool of up to so many buffers. Memory is taken with the first use of each.
    pub fn new(buffers_max: usize) -> Self {
        let free = Mutex::new(Vec::with_capacity(buffers_max));
        Pool(Arc::new(Shared {
            free,
            in_use: AtomicUsize::new(0),
            buffers_max,
            bytes_copied: AtomicU64::new(0),
            freed: Notify::new(),
        }))
    }

    /// Memory for buffers, one for each piece: as long as a chunk, and beginning with a page. Where
    /// there is less than needed, the pool finds its own.
    pub fn stock(&self, memory: impl IntoIterator<Item = BytesMut>) {
        let fits = |piece: &BytesMut| {
            piece.len() == BUFFER_BYTES && piece.as_ptr().align_offset(PAGE_BYTES) == 0
        };
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        let room = self.0.buffers_max.saturating_sub(free.len() + self.in_use());
        free.extend(memory.into_iter().filter(fits).take(room));
    }

    /// A buffer, unless all are in use.
    pub fn take(&self) -> Option<PoolBuf> {
        let mut free = self.0.free.lock().unwrap_or_else(PoisonError::into_inner);
        if self.0.in_use.load(Ordering::Relaxed) >= self.0.buffers_max {
            return None;
        }
        self.0.in_use.fetch_add(1, Ordering::Relaxed);
        let memory = free.pop().unwrap_or_else(|| BytesMut::zeroed(BUFFER_BYTES + PAGE_BYTES));
        Some(PoolBuf { memory, pool: self.clone() })
    }

    /// A buffer, as soon as there is one. May be dropped while it waits.
    pub async fn taken(&self) -> PoolBuf {
        loop {
            let freed = self.0.freed.notified();
            if let Some(buffer) = self.take() {
                return buffer;
            }
            freed.await;
        }
    }

    /// Buffers that somebody holds.
    pub fn in_use(&self) -> usize {
        self.0.in_use.load(Ordering::Relaxed)
    }

    /// Buffers in all.
    pub fn buffers_max(&self) -> usize {
        self.0.buffers_max
    }

    /// Bytes that were copied into buffers by code of ours, since the start.
    pub fn bytes_copied(&self) -> u64 {
        self.0.bytes_copied.load(Ordering::Relaxed)
    }
}

/// A buffer that one place fills.
#[derive(Debug)]
pub struct PoolBuf {
    memory: BytesMut,
    pool: Pool,
}

impl PoolBuf {
    /// The first `len` bytes, to be shared.
    pub fn freeze(self, len: usize) -> Bytes {
        Bytes::from_owner(Frozen { len: len.min(BUFFER_BYTES), buffer: self })
    }

    /// Where the system reads to: from a socket, a pipe or a file. Nobody else writes there.
    pub fn room(&mut self, at: Range<usize>) -> Option<&mut [u8]> {
        let start = self.start();
        self.memory.get_mut(start..start + BUFFER_BYTES)?.get_mut(at)
    }

    /// Copies bytes in, as far as there is room, and counts them; says how many those are.
    pub fn copy_in(&mut self, at: usize, bytes: &[u8]) -> usize {
        let len = bytes.len().min(BUFFER_BYTES.saturating_sub(at));
        let (Some(room), Some(bytes)) = (self.room(at..at + len), bytes.get(..len)) else {
            return 0;
        };
        room.copy_from_slice(bytes);
        self.pool.0.bytes_copied.fetch_add(len as u64, Ordering::Relaxed);
        len
    }

    fn start(&self) -> usize {
        self.memory.as_ptr().align_offset(PAGE_BYTES).min(PAGE_BYTES)
    }
}

impl Deref for PoolBuf {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        let start = self.start();
        self.memory.get(start..start + BUFFER_BYTES).unwrap_or_default()
    }
}

impl Drop for PoolBuf {
    fn drop(&mut self) {
        let shared = &self.pool.0;
        let mut free = shared.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.push(std::mem::take(&mut self.memory));
        shared.in_use.fetch_sub(1, Ordering::Relaxed);
        drop(free);
        shared.freed.notify_one();
    }
}

struct Frozen {
    buffer: PoolBuf,
    len: usize,
}

impl AsRef<[u8]> for Frozen {
    fn as_ref(&self) -> &[u8] {
        self.buffer.get(..self.len).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_shared_without_a_copy_and_come_back() {
        let pool = Pool::new(2);
        let mut first = pool.take().unwrap();
        assert_eq!((first.len(), first.as_ptr().align_offset(PAGE_BYTES)), (BUFFER_BYTES, 0));
        first.room(0..3).unwrap().copy_from_slice(b"abc");
        let place = first.as_ptr();
        let shared = first.freeze(3);
        let again = shared.clone();
        assert_eq!((&shared[..], shared.as_ptr()), (&b"abc"[..], place));
        let second = pool.take().unwrap();
        assert!(pool.take().is_none(), "two are all there are");
        drop(shared);
        assert_eq!(pool.in_use(), 2, "one of two holders is still there");
        drop(again);
        assert_eq!(pool.in_use(), 1);
        assert_eq!(pool.take().unwrap().as_ptr(), place, "the warm one is used again");
        drop(second);
        assert_eq!(pool.in_use(), 0);
    }

    #[test]
    fn memory_that_is_given_is_used_first_and_only_if_it_fits() {
        let pool = Pool::new(2);
        let mut slab = BytesMut::zeroed(4 * BUFFER_BYTES);
        let skipped = slab.split_to(slab.as_ptr().align_offset(PAGE_BYTES));
        let pieces = [slab.split_to(BUFFER_BYTES), slab.split_to(100), slab.split_to(BUFFER_BYTES)];
        let place = pieces[0].as_ptr();
        pool.stock(pieces);
        let (first, second) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!(first.as_ptr(), place);
        assert_eq!((second.len(), second.as_ptr().align_offset(PAGE_BYTES)), (BUFFER_BYTES, 0));
        drop(skipped);
    }

    #[test]
    fn what_is_copied_in_is_counted_and_never_more_than_fits() {
        let pool = Pool::new(2);
        let (mut first, mut second) = (pool.take().unwrap(), pool.take().unwrap());
        assert_eq!((first.copy_in(2, b"abc"), &first[2..5]), (3, &b"abc"[..]));
        assert_eq!((second.copy_in(BUFFER_BYTES - 1, b"xyz"), second[BUFFER_BYTES - 1]), (1, b'x'));
        assert_eq!(second.copy_in(BUFFER_BYTES + 1, b"beyond"), 0);
        second.room(0..3).unwrap().copy_from_slice(b"sys");
        assert_eq!(pool.bytes_copied(), 4, "what the system reads is not a copy of ours");
        assert!(second.room(1..BUFFER_BYTES + 1).is_none(), "there is no such room");
    }

    #[tokio::test]
    async fn who_waits_gets_the_next_buffer() {
        let pool = Pool::new(1);
        let held = pool.take().unwrap();
        let waiting = tokio::spawn({
            let pool = pool.clone();
            async move { pool.taken().await.len() }
        });
        tokio::task::yield_now().await;
        drop(held);
        assert_eq!(waiting.await.unwrap(), BUFFER_BYTES);
    }
}
