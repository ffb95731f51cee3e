//! Memory for frames that come. Most are small. One that is large has to be whole before anything can be made of it, and its sender may take
//! its time for that, so those that are under way together have their bytes. Beyond them a connection is not read for a moment; then
//! it goes on all the same, as the others may be slow. Only of a sum that is too much the one that takes longest is ended.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tracing::warn;

use super::hub::Hub;
use super::outbox::Outbox;
use super::socket::Socket;
use crate::core::ids::ConnId;

/// A frame over so many bytes is large.
const LARGE_BYTES: usize = 256 << 10;

/// Bytes of large frames that come at a time.
const LARGE_ALL_KIB: u32 = 64 << 10;

/// How long one waits for others to be whole.
const TURN_WAIT: Duration = Duration::from_secs(2);

/// Bytes of those that did not wait longer.
const LARGE_MORE_BYTES: usize = 128 << 20;

/// If there is no room among those, either, the frame is ended that has taken longest, if it has taken this time.
const LARGE_FRAME_WAIT: Duration = Duration::from_secs(10);

/// How often it is looked whether the log has caught up.
const LOG_LOOK: Duration = Duration::from_millis(5);

/// Large frames that come.
pub(super) struct Inbound {
    room: Arc<Semaphore>,
    more: Cell<usize>,
    /// Those that have room, the oldest first.
    coming: RefCell<BTreeMap<u64, (ConnId, Instant)>>,
    last: Cell<u64>,
}

impl Default for Inbound {
    fn default() -> Self {
        let room = Arc::new(Semaphore::new(LARGE_ALL_KIB as usize));
        Inbound { room, more: Cell::default(), coming: RefCell::default(), last: Cell::default() }
    }
}

/// Room for a large frame, until it is whole.
pub(super) struct LargeFrame<S> {
    hub: Rc<Hub<S>>,
    number: u64,
    taken: Taken,
}

enum Taken {
    Room { _permit: OwnedSemaphorePermit },
    More(usize),
}

impl<S> Drop for LargeFrame<S> {
    fn drop(&mut self) {
        let inbound = &self.hub.inbound;
        inbound.coming.borrow_mut().remove(&self.number);
        if let Taken::More(bytes) = self.taken {
            inbound.more.set(inbound.more.get().saturating_sub(bytes));
        }
    }
}

/// Whether a frame of so many bytes needs room.
pub(super) fn is_large(bytes: usize) -> bool {
    bytes > LARGE_BYTES
}

impl<S: Socket> Hub<S> {
    /// Waits for room for a large frame; nothing if the connection ended meanwhile.
    pub(super) async fn room_for(
        self: &Rc<Self>,
        conn: ConnId,
        outbox: &Outbox<S>,
        bytes: usize,
    ) -> Option<LargeFrame<S>> {
        let kib = u32::try_from(bytes.div_ceil(1024)).unwrap_or(u32::MAX).min(LARGE_ALL_KIB);
        let taken = loop {
            if outbox.has_ended() {
                return None;
            }
            let room = self.inbound.room.clone().acquire_many_owned(kib);
            match tokio::time::timeout(TURN_WAIT, room).await {
                Ok(Ok(permit)) => break Taken::Room { _permit: permit },
                Ok(Err(_)) => return None,
                Err(_) => {}
            }
            // What its worker has to say stands behind the frame.
            self.with_leader(|leader, now| leader.moves(now, conn));
            let more = self.inbound.more.get() + bytes;
            if more <= LARGE_MORE_BYTES {
                self.inbound.more.set(more);
                break Taken::More(bytes);
            }
            self.end_slowest();
        };
        let number = self.inbound.last.get() + 1;
        self.inbound.last.set(number);
        self.inbound.coming.borrow_mut().insert(number, (conn, Instant::now()));
        let large = LargeFrame { hub: self.clone(), number, taken };
        self.log_caught_up(conn, outbox).await;
        Some(large)
    }

    fn end_slowest(&self) {
        let slowest = self.inbound.coming.borrow().first_key_value().map(|(_, slowest)| *slowest);
        let Some((conn, since)) = slowest.filter(|(_, since)| since.elapsed() >= LARGE_FRAME_WAIT) else {
            return;
        };
        let Some(outbox) = self.outboxes.borrow().get(&conn).cloned().filter(|outbox| !outbox.is_cut())
        else {
            return;
        };
        warn!(
            peer = %self.leader.borrow().name(conn),
            "its large frame is not whole after {} s, and others wait for the memory that large frames may take; cutting it off",
            since.elapsed().as_secs()
        );
        outbox.cut_off();
        self.with_leader(|leader, now| leader.closed(now, conn));
    }

    /// Waits while the log has too much to write: whatever comes waits for it in memory.
    pub(super) async fn log_caught_up(&self, conn: ConnId, outbox: &Outbox<S>) {
        let mut told = Instant::now();
        while self.leader.borrow().is_log_behind() && !outbox.has_ended() {
            tokio::time::sleep(LOG_LOOK).await;
            if told.elapsed() >= TURN_WAIT {
                told = Instant::now();
                self.with_leader(|leader, now| leader.moves(now, conn));
            }
        }
    }
}
