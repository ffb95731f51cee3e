//! Memory for what waits for peers that do not read: payloads that others need the memory of go to the disk, and of answers there
//! are only so many.

use std::rc::Rc;
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use super::hub::Hub;
use super::outbox::Outbox;
use super::socket::Socket;
use crate::core::ids::ConnId;
use crate::leader::Leader;

/// A payload that a socket has not taken after this time goes to the disk, if others wait for its memory.
const PARK_AFTER: Duration = Duration::from_millis(50);

/// How often it is looked for such payloads while somebody waits.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Where the disk takes none, a peer that has not taken its payloads after this time is cut off.
const TAKEN_WITHIN: Duration = Duration::from_secs(5);

/// Payloads that a peer does not take.
struct Stuck<S> {
    conn: ConnId,
    outbox: Rc<Outbox<S>>,
    since: Instant,
    bytes: usize,
}

impl<S: Socket> Hub<S> {
    /// Moves payloads to the disk that their peers do not take, as long as others wait for their memory.
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

    fn longest_stuck(&self) -> Option<Stuck<S>> {
        let outboxes = self.outboxes.borrow();
        let stuck = outboxes.iter().filter_map(|(conn, outbox)| {
            let (since, bytes) = outbox.stuck().filter(|(since, _)| since.elapsed() >= PARK_AFTER)?;
            Some(Stuck { conn: *conn, outbox: outbox.clone(), since, bytes })
        });
        stuck.min_by_key(|stuck| stuck.since)
    }

    /// Says whether there is more room now.
    async fn park(&self, stuck: Stuck<S>) -> bool {
        let Stuck { conn, outbox, since, bytes } = stuck;
        let fits = self.leader.borrow().may_park(bytes as u64);
        let parked = match self.parking.place() {
            Ok(place) if fits => outbox.park(place).await,
            Ok(_) => Err(std::io::Error::other("the disk has no room for it (--disk-reserve)")),
            Err(error) => Err(error),
        };
        let name = self.leader.borrow().name(conn);
        match parked {
            Ok(()) => {
                debug!(peer = %name, bytes, "it does not take what it is sent: that waits on the disk");
                self.with_leader(|leader, now| leader.parked(now, conn));
            }
            Err(_) if since.elapsed() < TAKEN_WITHIN => return false,
            Err(error) => {
                warn!(
                    peer = %name, bytes,
                    "it has not taken what it was sent {} s ago, others wait for the memory that this takes, and it cannot wait \
                     on the disk: {error}; cutting it off", since.elapsed().as_secs()
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
            let most = outboxes.iter().max_by_key(|(_, outbox)| outbox.answers());
            let Some((conn, outbox)) = most.map(|(conn, outbox)| (*conn, outbox.clone())) else { return };
            drop(outboxes);
            warn!(
                peer = %leader.name(conn), waiting = outbox.answers(), all,
                "too many answers wait for peers that do not read them, and most for this one; cutting it off"
            );
            outbox.cut_off();
            leader.closed(self.now(), conn);
        }
    }
}
