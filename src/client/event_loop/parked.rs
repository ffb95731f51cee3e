//! Parks jobs that only a heft leader can handle while the kind of leader is unknown: they wait for
//! its Welcome, and are refused if none comes.

use std::time::Duration;

use chunking::limits::FRAME_BODY_BYTES_MAX;
use chunking::message::{Features, Reason};
use tokio::time::Instant;
use uuid::Uuid;

use super::{Connection, EventLoop, Job};
use crate::client::LinkState;
use crate::client::connection::Mode;
use crate::client::dispatch::Conn;
use crate::client::error::{JobError, Refusal};
use crate::client::job::JobEvent;
use crate::units::{ByteSize, Span};

/// How long such a job at least waits for the Welcome of a leader that has been silent for long: it
/// may be on its way.
const LATE_WELCOME_WAIT_MIN: Duration = Duration::from_secs(2);

impl Job {
    /// Whether a leader cannot take it as it is meant, as far as we know.
    pub(super) fn needs_more_than(&self, mode: &Mode) -> bool {
        let is_too_large = !self.inputs.is_empty() && !mode.has(Features::TRANSFERS);
        is_too_large || *mode == Mode::Classic && self.prepared.wishes.needed().is_some()
    }

    /// Why the leader does not get it: what a classic one would make of it.
    fn why_not(&self, leader: &str) -> Refusal {
        let hop = format!("leader {leader}");
        if let Some(needed) = self.prepared.wishes.needed() {
            let text = format!(
                "a classic leader does not support the job's options: {needed}; submit it to a \
                 heft leader, or without these options"
            );
            return Refusal { reason: Reason::INVALID, value: 0, limit: 0, hop, text };
        }
        let (bytes, limit) = (self.inputs.total(), u64::from(FRAME_BODY_BYTES_MAX));
        let in_base64 = bytes.div_ceil(3).saturating_mul(4);
        let text = format!(
            "the job's files have {bytes} bytes ({}), {} in base64; a leader without transfers \
             takes jobs of at most {limit} bytes ({}): submit it to a heft leader, or make the \
             files smaller",
            ByteSize(bytes),
            ByteSize(in_base64),
            ByteSize(limit)
        );
        Refusal { reason: Reason::TOO_LARGE, value: in_base64, limit, hop, text }
    }
}

impl EventLoop {
    /// A heft leader that was slower than the wait: from now on it is one.
    pub(super) fn take_late_welcome(&mut self, conn: Conn, mode: Mode) {
        let Some(connection) = self.conns.get_mut(conn) else { return };
        let Some(up) = &mut connection.up else { return };
        up.mode.clone_from(&mode);
        let leader = connection.address.clone();
        self.set_state(conn, LinkState::Up { leader, mode });
        self.send_questions();
        let parked =
            self.jobs.iter().filter(|(_, job)| job.parked.is_some_and(|(on, _)| on == conn));
        let parked: Vec<Uuid> = parked.map(|(id, _)| *id).collect();
        for job in parked {
            self.send(conn, job, false);
        }
        // Wishes that a classic leader could not have been told.
        let unwanted = self.jobs.iter().filter(|(_, job)| job.cancel.is_some());
        let unwanted: Vec<Uuid> = unwanted.map(|(id, _)| *id).collect();
        for job in unwanted.into_iter().filter(|job| self.dispatch.conn_of(*job) == Some(conn)) {
            self.send_cancel(conn, job);
        }
    }

    /// Holds a job back that the leader cannot take as far as we know.
    pub(super) fn park(&mut self, conn: Conn, id: Uuid) {
        let now = Instant::now();
        let Some(connection) = self.conns.get(conn) else { return };
        let until = match connection.up.as_ref().map(|up| &up.mode) {
            // It has said what it can do.
            Some(Mode::Announced { .. }) => now,
            Some(Mode::Classic) | None => {
                self.welcome_due(connection).max(now + LATE_WELCOME_WAIT_MIN)
            }
        };
        let Some(job) = self.jobs.get_mut(&id) else { return };
        job.parked = Some((conn, until));
        self.parked.insert(id);
        if until > now {
            let why = match job.prepared.wishes.needed() {
                Some(needed) => format!("the job needs a heft leader (of a classic one: {needed})"),
                None => "the job has large files, which only a heft leader takes".to_owned(),
            };
            let leader = self.address(conn);
            let wait = Span::rounded(until - now);
            let text = format!("{why}: waiting up to {wait} for {leader} to answer the hello");
            tracing::info!(job = %id, %leader, "{text}");
            self.tell(id, JobEvent::Waiting { reason: Reason::NONE, text });
        }
    }

    /// Refuses jobs that no leader has offered to take.
    pub(super) fn give_up_parked(&mut self) {
        let now = Instant::now();
        self.parked.retain(|id| self.jobs.get(id).is_some_and(|job| job.parked.is_some()));
        let over = |id: &&Uuid| {
            self.jobs.get(*id).and_then(|job| job.parked).is_some_and(|(_, until)| until <= now)
        };
        let over: Vec<Uuid> = self.parked.iter().filter(over).copied().collect();
        for id in over {
            let Some(job) = self.jobs.get(&id) else { continue };
            let connection = job.parked.and_then(|(conn, _)| self.conns.get(conn));
            let leader =
                connection.map(|connection| connection.address.clone()).unwrap_or_default();
            let refusal = job.why_not(&leader);
            let waited = connection.and_then(Connection::silent_for).map(Span::rounded);
            self.end(
                id,
                Err(match waited {
                    Some(waited) => {
                        let refusal = Box::new(refusal);
                        JobError::NoWelcome { job: id, leader, waited, refusal }
                    }
                    None => JobError::Refused { job: id, refusal },
                }),
            );
        }
    }
}
