//! Fills a chunk's memory as it arrives. A chunk holds a pool buffer only briefly. If it is not
//! complete by then and buffers are scarce, it moves to memory outside the pool, when its
//! connection gets a turn.

use std::io;
use std::time::Duration;

use tokio::time::{Instant, timeout, timeout_at};

use super::conn::{End, LONG_FRAME};
use super::hub::Hub;
use super::outbox::Outbox;
use super::socket::Socket;
use crate::core::ids::ConnId;
use crate::leader::{BUFFER_LEASE, Linger, Memory};
use crate::wire::{Inlet, Pulse};

/// After this time without a byte, a chunk outside of the pool makes room for others that wait for
/// a place.
const REST_AFTER: Duration = Duration::from_secs(2);

/// When it is next looked at the chunk that comes.
#[derive(Default)]
pub(super) struct Filling {
    due: Option<Instant>,
}

/// Has the chunk that was shown read to where there is room for it.
pub(super) fn take(inlet: &mut Inlet, memory: Memory, check: bool) {
    match (memory, check) {
        (Memory::Pooled(buffer), true) => inlet.take(buffer),
        (Memory::Pooled(buffer), false) => inlet.take_unchecked(buffer),
        (Memory::Own, _) => inlet.take_apart(),
    }
}

impl<S: Socket> Hub<S> {
    /// Waits until there is memory for what a connection brings. `None` if the connection is over.
    pub(super) async fn turn_comes(&self, conn: ConnId, outbox: &Outbox<S>) -> Option<Memory> {
        while !outbox.has_ended() {
            if let Some(memory) = self.leader.borrow_mut().turn(conn) {
                return Some(memory);
            }
            if timeout(LONG_FRAME, outbox.turn()).await.is_err() {
                // It is not heard because it is not read.
                self.with_leader(|leader, now| leader.moves(now, conn));
            }
        }
        None
    }

    /// Reads more of the chunk that comes, or waits for it. An error says why the connection is
    /// over.
    pub(super) async fn fill(
        &self,
        conn: ConnId,
        socket: &S,
        outbox: &Outbox<S>,
        inlet: &mut Inlet,
        pulse: &mut Pulse,
        filling: &mut Filling,
    ) -> Result<usize, End> {
        loop {
            match socket.try_read(inlet) {
                Ok(0) => {
                    return Err(match inlet.finish() {
                        Ok(()) => End::Over("the peer closed it".to_owned()),
                        Err(error) => End::Garbled(error.to_string()),
                    });
                }
                Ok(bytes) => {
                    pulse.came(bytes);
                    if let Some((_, false)) = inlet.filling() {
                        filling.due = Some(Instant::now() + REST_AFTER);
                    }
                    return Ok(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(End::Over(error.to_string())),
            }
            if outbox.has_ended() {
                return Err(End::Over("the leader closed it".to_owned()));
            }
            let now = Instant::now();
            let due = *filling.due.get_or_insert(now + BUFFER_LEASE);
            let until = pulse.waits(now, true).map_or(due, |sign| sign.min(due));
            if timeout_at(until, socket.readable()).await.is_ok() {
                continue;
            }
            let now = Instant::now();
            if let Some(dead) = pulse.late(now) {
                socket.shut_down();
                return Err(End::Over(dead.to_string()));
            }
            if now >= due {
                self.lingers(conn, outbox, inlet, pulse, filling).await;
            }
        }
    }

    /// The chunk that comes takes its time.
    async fn lingers(
        &self,
        conn: ConnId,
        outbox: &Outbox<S>,
        inlet: &mut Inlet,
        pulse: &mut Pulse,
        filling: &mut Filling,
    ) {
        let Some((have, is_pooled)) = inlet.filling() else { return };
        let waits = if is_pooled {
            let linger = self.with_leader(|leader, now| leader.chunk_lingers(now, conn, have));
            match linger {
                Linger::Stays => {
                    filling.due = Some(Instant::now() + BUFFER_LEASE);
                    return;
                }
                Linger::Leaves | Linger::Waits => inlet.leave_pool(),
                Linger::Dropped => inlet.drop_chunk(),
            }
            self.with_leader(|leader, now| leader.buffer_is_free(now));
            linger == Linger::Waits
        } else {
            self.with_leader(|leader, now| leader.chunk_rests(now, conn, have))
        };
        if waits {
            self.turn_comes(conn, outbox).await;
            pulse.rested();
        }
        filling.due = Some(Instant::now() + REST_AFTER);
    }
}
