//! Limits the memory for incoming frames. Most are small. A large frame must be complete before it
//! can be handled, and its sender may be slow, so large frames in memory share a byte limit. Beyond
//! it a frame is gathered on disk and read back when complete. So slow or endless frames do not
//! hold up the others.

use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::hub::Hub;
use super::outbox::Outbox;
use super::parking::Place;
use super::socket::Socket;
use crate::core::ids::ConnId;
use crate::wire::Inlet;

/// A frame with more bytes than this is large.
const LARGE_BYTES: usize = 256 << 10;

/// Bytes of large frames that come into memory.
const LARGE_ALL_KIB: u32 = 32 << 10;

/// Large frames collected on disk that may be in memory at a time while they are processed.
const BROUGHT_BACK_MAX: usize = 4;

/// How long a frame waits for memory that cannot wait on the disk. While it waits its connection is
/// not read.
const LARGE_WAIT_MAX: Duration = Duration::from_secs(20);

/// How often it is looked whether the log has caught up.
const LOG_LOOK: Duration = Duration::from_millis(5);

/// A worker whose frame waits that long is told of: what it has to say stands behind it.
const LONG_WAIT: Duration = Duration::from_secs(2);

/// Room for large frames.
pub(super) struct Inbound {
    room: Arc<Semaphore>,
    brought_back: Semaphore,
}

impl Default for Inbound {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(LARGE_ALL_KIB as usize));
        Inbound { room, brought_back: Semaphore::new(BROUGHT_BACK_MAX) }
    }
}

/// Where a large frame is until it is whole.
pub(super) enum Large {
    InMemory { _room: OwnedSemaphorePermit },
    OnDisk(Rc<Place>),
}

impl<S: Socket> Hub<S> {
    /// More of a frame is about to be read: if it is a large one, to where there is room. An error
    /// says why there is none.
    pub(super) async fn make_way(
        &self,
        conn: ConnId,
        outbox: &Outbox<S>,
        inlet: &mut Inlet,
        large: &mut Option<Large>,
    ) -> io::Result<()> {
        if large.is_none() && inlet.gathers() > LARGE_BYTES {
            self.log_caught_up(conn, outbox).await;
            let kib = u32::try_from(inlet.gathers().div_ceil(1024)).unwrap_or(u32::MAX);
            *large = Some(match self.inbound.room.clone().try_acquire_many_owned(kib) {
                Ok(room) => Large::InMemory { _room: room },
                Err(_) => match self.on_disk(inlet.gathers()) {
                    Ok(on_disk) => on_disk,
                    Err(error) => self.in_memory(kib).await.ok_or(error)?,
                },
            });
        }
        if let Some(Large::OnDisk(place)) = large {
            let at = place.start() + inlet.aside() as u64;
            let bytes = inlet.set_aside();
            if !bytes.is_empty() {
                place.write(at, vec![bytes.into()]).await?;
            }
        }
        Ok(())
    }

    fn on_disk(&self, bytes: usize) -> io::Result<Large> {
        if !self.leader.borrow().may_park(bytes as u64) {
            return Err(io::Error::other("the disk has no room for it (--disk-reserve)"));
        }
        Ok(Large::OnDisk(Rc::new(self.parking.place()?)))
    }

    /// Where the disk takes none it waits for others to be whole; nothing if that takes too long.
    async fn in_memory(&self, kib: u32) -> Option<Large> {
        let room = self.inbound.room.clone().acquire_many_owned(kib);
        let room = tokio::time::timeout(LARGE_WAIT_MAX, room).await.ok()?.ok()?;
        Some(Large::InMemory { _room: room })
    }

    /// A large frame is whole, and comes back from the disk. What is made of it is made at once.
    pub(super) async fn bring_back(
        &self,
        conn: ConnId,
        outbox: &Outbox<S>,
        inlet: &mut Inlet,
        large: &Option<Large>,
    ) -> io::Result<()> {
        let Some(Large::OnDisk(place)) = large else { return Ok(()) };
        let _one_of_a_few = self.inbound.brought_back.acquire().await.map_err(io::Error::other)?;
        self.log_caught_up(conn, outbox).await;
        inlet.bring_back(&place.read(place.start(), inlet.aside()).await?);
        Ok(())
    }

    /// Waits while the log has too much to write: whatever comes waits for it in memory.
    pub(super) async fn log_caught_up(&self, conn: ConnId, outbox: &Outbox<S>) {
        let mut told = Instant::now();
        while self.leader.borrow().is_log_behind() && !outbox.has_ended() {
            tokio::time::sleep(LOG_LOOK).await;
            if told.elapsed() >= LONG_WAIT {
                told = Instant::now();
                self.with_leader(|leader, now| leader.moves(now, conn));
            }
        }
    }
}
