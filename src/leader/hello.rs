//! Whether a peer may be who its hello says: there is room for its names, and no other process is there under its id.

use chunking::message::Reason;

use super::Leader;
use crate::conn::{Heard, Session, SessionError};
use crate::core::Event;
use crate::core::ids::ConnId;
use crate::core::worker::Hello;

/// Bytes of the names of all peers that are connected: ids of clients, patterns of workers.
const HELLO_NAMES_BYTES_MAX: u64 = 256 * 1024 * 1024;

impl Leader {
    /// Refuses a worker that says hello under the id of another process that lives: each would throw the other out, again and
    /// again, and neither would end a job. One that comes back takes over its own connection at once.
    pub(super) fn is_one_process(&mut self, conn: ConnId, heard: Heard) -> Result<Heard, SessionError> {
        let Heard::Announced(Event::WorkerHello(Hello { worker, .. })) = &heard else { return Ok(heard) };
        let Some(other) = self.broker.alive_at(*worker).filter(|other| *other != conn) else {
            return Ok(heard);
        };
        let instance = |conn: ConnId| self.sessions.get(&conn).and_then(Session::instance);
        if instance(conn).zip(instance(other)).is_none_or(|(this, that)| this == that) {
            return Ok(heard);
        }
        let host = self.hosts.get(&other).map_or_else(|| "an unknown host".to_owned(), ToString::to_string);
        let error = SessionError::IdInUse { worker: *worker, host };
        self.sessions.get_mut(&conn).into_iter().for_each(Session::forget_names);
        Err(error)
    }
}

/// What a peer is told whose hello is not taken. Classic peers know no such frame, and others are no peers.
pub(super) const fn reason_for(error: &SessionError) -> Option<Reason> {
    match error {
        SessionError::BadAnnouncement(_) | SessionError::NamesFull { .. } => Some(Reason::INVALID),
        SessionError::IdInUse { .. } => Some(Reason::CONFLICT),
        SessionError::NoHello(_) | SessionError::SecondHello(_) | SessionError::BadHello(_) => None,
    }
}

/// Counts the names of a peer that says hello, if there is room for them.
pub(super) fn room_for_names(
    session: &mut Session,
    held: &mut u64,
    hello: Event,
) -> Result<Event, SessionError> {
    let (bytes, limit) = (session.names_bytes(), HELLO_NAMES_BYTES_MAX);
    if held.saturating_add(bytes) > limit {
        session.forget_names();
        return Err(SessionError::NamesFull { bytes, held: *held, limit });
    }
    *held += bytes;
    Ok(hello)
}
