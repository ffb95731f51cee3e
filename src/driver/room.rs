//! Frees memory queued for peers that do not read: payloads go to disk when others need the memory,
//! and queued answers are bounded. Freed memory returns to the system.

use std::cell::Cell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use tracing::{debug, warn};

use super::hub::Hub;
use super::memory;
use super::outbox::Outbox;
use super::socket::Socket;
use crate::core::ids::ConnId;
use crate::leader::{Leader, unread};

/// How often unread payloads are looked for while others wait for memory.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Bytes of frames after which the allocator is asked to return unused memory.
const TRIM_AFTER_BYTES: u64 = 8 << 20;

/// It is asked when fewer bytes than that came and went in this time, or after `TRIM_LOOKS_MAX`
/// times.
const TRIM_EVERY: Duration = Duration::from_secs(2);
const TRIM_LOOKS_MAX: u32 = 15;

/// Times after that when it is asked again. The first is when a worker that left is not expected
/// back any more (`--worker-grace`).
const TRIM_LATER: [Duration; 4] = [
    Duration::from_secs(4),
    Duration::from_secs(10),
    Duration::from_secs(60),
    Duration::from_secs(600),
];

/// Bytes of payloads that came and went.
#[derive(Debug, Default)]
pub(super) struct Moved {
    bytes: Cell<u64>,
    trimmed_at: Cell<u64>,
    is_much: Notify,
}

impl Moved {
    /// So many did.
    pub(super) fn add(&self, bytes: usize) {
        self.bytes.set(self.bytes.get() + bytes as u64);
        if self.bytes.get() - self.trimmed_at.get() >= TRIM_AFTER_BYTES {
            self.is_much.notify_one();
        }
    }

    /// A connection ended: whatever was kept for it is freed.
    pub(super) fn conn_ended(&self) {
        self.is_much.notify_one();
    }

    /// Returns memory to the system when it becomes quiet after many payloads or a connection's
    /// end, and a few times later: what was in use then may be freed by time alone. While nothing
    /// happens it does nothing.
    pub(super) async fn trim_for_ever(&self) {
        loop {
            self.is_much.notified().await;
            loop {
                for _ in 0..TRIM_LOOKS_MAX {
                    let before = self.bytes.get();
                    tokio::time::sleep(TRIM_EVERY).await;
                    if self.bytes.get() - before < TRIM_AFTER_BYTES {
                        break;
                    }
                }
                self.trim();
                if !self.trims_again().await {
                    break;
                }
            }
        }
    }

    /// Returns some more later. Says whether there is reason to begin anew.
    async fn trims_again(&self) -> bool {
        for later in TRIM_LATER {
            if tokio::time::timeout(later, self.is_much.notified()).await.is_ok() {
                return true;
            }
            self.trim();
        }
        false
    }

    fn trim(&self) {
        // Beside this thread: where much was freed it takes a while.
        let trim = std::thread::Builder::new().name("trim".to_owned()).spawn(memory::trim);
        if let Err(error) = trim {
            debug!("no thread to give memory back: {error}");
        }
        self.trimmed_at.set(self.bytes.get());
    }
}

/// A peer that does not read its payloads.
struct StalledPeer<S> {
    conn: ConnId,
    outbox: Rc<Outbox<S>>,
    since: Instant,
    bytes: usize,
}

impl<S: Socket> Hub<S> {
    /// Moves payloads to the disk that their peers do not take, as long as others wait for their
    /// memory.
    pub(super) async fn make_room_for_ever(&self) {
        loop {
            self.room_short.notified().await;
            while self.leader.borrow().is_short_of_room() {
                let made = match self.longest_stuck() {
                    Some(stuck) => self.park(stuck).await,
                    None => false,
                };
                if !made {
                    tokio::time::sleep(LOOK_EVERY).await;
                }
            }
        }
    }

    fn longest_stuck(&self) -> Option<StalledPeer<S>> {
        let outboxes = self.outboxes.borrow();
        let stuck =
            outboxes.iter().filter_map(|(conn, outbox)| Some((*conn, outbox.stuck()?.0.elapsed())));
        let conn = unread::to_park(stuck)?;
        let outbox = outboxes.get(&conn)?.clone();
        let (since, bytes) = outbox.stuck()?;
        Some(StalledPeer { conn, outbox, since, bytes })
    }

    /// Returns whether memory became free.
    async fn park(&self, stuck: StalledPeer<S>) -> bool {
        let StalledPeer { conn, outbox, since, bytes } = stuck;
        let fits = self.leader.borrow().may_park(bytes as u64);
        let parked = match self.parking.place() {
            Ok(place) if fits => outbox.park(place).await,
            Ok(_) => Err(std::io::Error::other("the disk has no room for it (--disk-reserve)")),
            Err(error) => Err(error),
        };
        let name = self.leader.borrow().name(conn);
        match parked {
            Ok(()) => {
                debug!(peer = %name, bytes, "it does not read its frames: they wait on disk");
                self.with_leader(|leader, now| leader.parked(now, conn));
            }
            Err(_) if !unread::is_given_up(since.elapsed()) => return false,
            Err(error) => {
                warn!(
                    peer = %name, bytes,
                    "it has not read frames sent {} s ago, others wait for their memory, and they \
                     cannot move to disk: {error}; closing the connection",
                    since.elapsed().as_secs()
                );
                outbox.cut_off();
                self.with_leader(|leader, now| leader.closed(now, conn));
            }
        }
        true
    }

    /// If too many answers wait for all peers together, those go for whom most wait.
    pub(super) fn bound_answers(&self, leader: &mut Leader) {
        while let Some(all) = self.answers.are_too_many() {
            let outboxes = self.outboxes.borrow();
            let waiting = outboxes.iter().map(|(conn, outbox)| (*conn, outbox.answers()));
            let most = unread::has_most_answers(waiting);
            let Some((conn, outbox)) =
                most.and_then(|conn| Some((conn, outboxes.get(&conn)?.clone())))
            else {
                return;
            };
            drop(outboxes);
            warn!(
                peer = %leader.name(conn), waiting = outbox.answers(), all,
                "too many unread answers wait for peers, most of them for this one; closing the \
                 connection"
            );
            outbox.cut_off();
            leader.closed(self.now(), conn);
        }
    }
}
