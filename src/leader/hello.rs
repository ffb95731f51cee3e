//! Accepts or refuses a hello: checks the limits on names and that no other process is connected
//! under the same id, and builds the answer.

use std::time::Duration;

use chunking::message::{LimitId, LimitList, Reason};
use chunking::{Generation, Head, limits};
use tracing::{debug, info, warn};

use super::peers::Peers;
use super::{Leader, relay};
use crate::conn::{Inbound, Session, SessionError};
use crate::core::ids::{ConnId, WorkerId};
use crate::core::programs::{Programs, ProgramsSaid};
use crate::core::worker::Hello;
use crate::core::{Broker, Event};

/// Bytes of the names of all peers that are connected: ids of clients, patterns of workers.
const HELLO_NAMES_BYTES_MAX: u64 = 256 * 1024 * 1024;

impl Peers {
    /// Takes what a peer said, unless it is a hello that cannot be taken.
    pub(super) fn admit(
        &mut self,
        conn: ConnId,
        heard: Inbound,
        broker: &Broker,
    ) -> Result<Inbound, SessionError> {
        if let Inbound::Announced(Event::WorkerHello(Hello { worker, .. })) = &heard {
            self.is_one_process(conn, *worker, broker.alive_at(*worker))?;
        }
        let is_hello = matches!(
            heard,
            Inbound::Announced(_)
                | Inbound::Event(Event::ClientHello { .. } | Event::WorkerHello(_))
        );
        if is_hello {
            self.room_for_names(conn)?;
        }
        Ok(heard)
    }

    /// Refuses a worker that says hello under the id of another process that lives: each would
    /// throw the other out, again and again, and neither would end a job. One that comes back takes
    /// over its own connection at once.
    fn is_one_process(
        &mut self,
        conn: ConnId,
        worker: WorkerId,
        alive_at: Option<ConnId>,
    ) -> Result<(), SessionError> {
        let Some(other) = alive_at.filter(|other| *other != conn) else { return Ok(()) };
        let instance = |conn: ConnId| self.get(conn).and_then(Session::instance);
        if instance(conn).zip(instance(other)).is_none_or(|(this, that)| this == that) {
            return Ok(());
        }
        let host =
            self.host(other).map_or_else(|| "an unknown host".to_owned(), |host| host.to_string());
        self.get_mut(conn).into_iter().for_each(Session::forget_names);
        Err(SessionError::IdInUse { worker, host })
    }

    /// Counts the programs of a worker in the place of those it listed before, if there is room for
    /// them. Says whether there is.
    fn room_for_programs(&mut self, conn: ConnId, bytes: u64) -> bool {
        let held = self.names_bytes();
        let Some(session) = self.get_mut(conn) else { return false };
        let before = session.names_bytes();
        session.set_programs_bytes(bytes);
        let after = session.names_bytes();
        if (held - before).saturating_add(after) > HELLO_NAMES_BYTES_MAX && after > before {
            session.set_programs_bytes(0);
            return false;
        }
        self.count_names(conn, after);
        true
    }

    /// Counts the names of a peer that says hello, if there is room for them.
    fn room_for_names(&mut self, conn: ConnId) -> Result<(), SessionError> {
        let (held, limit) = (self.names_bytes(), HELLO_NAMES_BYTES_MAX);
        let Some(session) = self.get_mut(conn) else { return Ok(()) };
        let bytes = session.names_bytes();
        if held.saturating_add(bytes) > limit {
            session.forget_names();
            return Err(SessionError::NamesFull { bytes, held, limit });
        }
        self.count_names(conn, bytes);
        Ok(())
    }
}

impl Leader {
    /// A peer said hello, and is welcome.
    pub(super) fn welcome(&mut self, conn: ConnId, head: &Head<'_>, payload_crc: u32) {
        let (leader, mut limits) = (self.peers.leader, self.limits());
        // The peer compares it with what it sent: nothing else protects a Hello.
        if let Ok(crc) = head.checksum(Generation::F2, payload_crc) {
            limits.set(LimitId::HELLO_CRC32, crc.into());
        }
        self.tell(conn, |session| session.welcome(head.msg_id, leader, limits));
    }

    /// The hello of a peer that is not taken.
    pub(super) fn hello_refused(&mut self, conn: ConnId, head: &Head<'_>, error: &SessionError) {
        if let Some(reason) = reason_for(error) {
            self.tell(conn, |session| {
                session.hello_refused(head.msg_id, reason, &error.to_string())
            });
        }
    }

    /// What the broker is to know of a peer, and what follows if that is a hello.
    pub(super) fn peer_says(&mut self, conn: ConnId, event: Event) {
        if let Event::WorkerHello(Hello { worker, patterns, class, programs, .. }) = &event {
            let programs = programs.as_ref().map(Programs::len);
            info!(conn = conn.0, %worker, ?class, ?patterns, ?programs, "a worker joined");
        } else if let Event::ClientHello { client, cap, .. } = &event {
            debug!(conn = conn.0, %client, ?cap, "a client joined");
        }
        let joins = matches!(event, Event::WorkerHello(_));
        self.broker.handle(self.now, event);
        if joins {
            self.worker_joined(conn);
            self.look_at_followed();
        }
    }

    /// A worker says which programs it has. A list that there is no room for is as good as none.
    pub(super) fn programs_said(&mut self, conn: ConnId, said: ProgramsSaid, answers: bool) {
        let said = match said {
            ProgramsSaid::Are(programs)
                if !self.peers.room_for_programs(conn, programs.bytes()) =>
            {
                warn!(peer = %self.name(conn), programs = programs.len(), limit = HELLO_NAMES_BYTES_MAX,
                    "no room in memory for a worker's list of programs: it is given jobs by its \
                     patterns alone");
                ProgramsSaid::Unlisted
            }
            said @ (ProgramsSaid::Are(_) | ProgramsSaid::Unlisted | ProgramsSaid::Same) => said,
        };
        if said == ProgramsSaid::Unlisted {
            self.peers.room_for_programs(conn, 0);
        }
        self.broker.handle(self.now, Event::Programs { conn, said, answers });
    }

    fn limits(&self) -> LimitList {
        let ms = |span: Duration| u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        let broker = &self.config.broker;
        LimitList::from_iter([
            (LimitId::FRAME_BODY_BYTES, limits::FRAME_BODY_BYTES_MAX.into()),
            (LimitId::CLASSIC_BODY_BYTES, limits::FRAME_BODY_BYTES_MAX.into()),
            (LimitId::CHUNK_BYTES, limits::CHUNK_BYTES_MAX.into()),
            (LimitId::WINDOW_CHUNKS, limits::WINDOW_CHUNKS_MAX.into()),
            (
                LimitId::BLOB_BYTES,
                u64::from(limits::BLOB_CHUNKS_MAX) * u64::from(limits::CHUNK_BYTES_MAX),
            ),
            (LimitId::SPOOL_BYTES, self.config.relay.spool_bytes_max),
            (LimitId::TRANSFERS, relay::TRANSFERS_MAX as u64),
            (LimitId::HEARTBEAT_MS, ms(self.config.heartbeat)),
            (LimitId::LEASE_MS, ms(broker.lease)),
            (LimitId::WORKER_GRACE_MS, ms(broker.worker_grace)),
            (LimitId::ATTEMPTS, broker.attempts_max.into()),
            (LimitId::SILENCE_MS, ms(self.config.silence)),
        ])
    }
}

/// The reason that a peer is told when its hello is refused; `None` for classic peers, which do not
/// know the frame, and for connections that are not heft peers.
const fn reason_for(error: &SessionError) -> Option<Reason> {
    match error {
        SessionError::BadAnnouncement(_) | SessionError::NamesFull { .. } => Some(Reason::INVALID),
        SessionError::IdInUse { .. } => Some(Reason::CONFLICT),
        SessionError::NoHello(_) | SessionError::SecondHello(_) | SessionError::BadHello(_) => None,
    }
}
