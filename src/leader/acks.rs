//! Passes workers' results and refusals of jobs to the broker.

use tracing::{debug, info, warn};

use super::{Leader, outcome};
use crate::conn::{AckBody, AckSays};
use crate::core::Event;
use crate::core::event::Outcome;
use crate::core::ids::{ConnId, JobId};
use crate::core::record::Lack;
use crate::model::{JobResult, JsonModel};

/// So many results that do not count are each worth a line in the log.
const REFUSALS_LOGGED_MAX: u64 = 16;

/// Characters of a worker's reason in the log.
const QUOTED_MAX: usize = 256;

impl Leader {
    /// A worker has ended a job, or will not. Of a job that it has nothing to do with, what others
    /// bring of its result stays, and so does what the job has; the broker says what the worker is
    /// to hear.
    pub(super) fn ack(&mut self, conn: ConnId, body: AckBody) {
        let is_foreign = self.broker.is_foreign_ack(conn, body.job, body.named);
        // The worker does not repeat an ack on a connection, and would drop chunks that the leader
        // has requested again.
        self.early_acks.remove(&(conn, body.job));
        if !is_foreign && self.is_early(&body) {
            self.early_acks.insert((conn, body.job), body);
            return;
        }
        let AckBody { job, named, says, parts, payload } = body;
        if !is_foreign {
            self.progresses.forget(job);
        }
        let outcome = match says {
            AckSays::Result { .. } if !is_foreign && !self.are_here(job, &parts) => {
                warn!(%job, "a result names an incomplete blob");
                Outcome::ResultLost
            }
            AckSays::Result { ok } => {
                let result = self.payloads.held.keep_result(payload);
                if !is_foreign {
                    self.keep_parts(job, result, &parts);
                }
                Outcome::Returned { result, ok }
            }
            AckSays::PlainOk => {
                let payload = outcome::plain_ok(self.broker.state().job(job), job);
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok: true }
            }
            AckSays::ResultLost => Outcome::ResultLost,
            AckSays::GivenUp => {
                if !is_foreign {
                    self.tell_what_is_not_held(conn, job);
                }
                Outcome::GivenUp
            }
            AckSays::Lacks(lack) => {
                if lack == Lack::Program && !is_foreign {
                    self.program_refused(conn, job, &payload);
                }
                Outcome::Lacks(lack)
            }
        };
        match is_foreign {
            true => self.forget_foreign_parts(job, &parts),
            false => self.forget_gathered_parts(job),
        }
        self.broker.handle(self.now, Event::Ack { conn, job, named, outcome });
    }

    /// A worker hands a job back for want of its program, and says why.
    fn program_refused(&mut self, conn: ConnId, job: JobId, payload: &[u8]) {
        let said = JobResult::parse(payload).map(|result| result.stderr).unwrap_or_default();
        let why: String =
            said.lines().next().unwrap_or_default().chars().take(QUOTED_MAX).collect();
        info!(peer = %self.name(conn), %job,
            "a worker handed a job back, as it does not have its program or cannot start it; the \
             job goes to another, and the worker is not given this program for now: {why}");
        let why = said.as_str().into();
        self.broker.handle(self.now, Event::ProgramRefused { conn, job, why });
    }

    /// Whether chunks of a part are on their way once more: its client found them damaged.
    fn is_early(&self, body: &AckBody) -> bool {
        matches!(body.says, AckSays::Result { .. })
            && body.parts.iter().any(|id| self.relay.comes_again(*id))
    }

    /// Takes one of the answers that came early and are not any more. Says whether there was one.
    pub(super) fn early_acks_on(&mut self) -> bool {
        let due = self.early_acks.iter().find(|(_, body)| !self.is_early(body));
        let Some(key) = due.map(|(key, _)| *key) else { return false };
        if let Some(body) = self.early_acks.remove(&key) {
            self.ack(key.0, body);
        }
        true
    }

    /// Each of the first is said; a worker that goes on so does not fill the log.
    pub(super) fn ack_refused(&mut self, conn: ConnId, job: JobId) {
        self.counters.acks_refused += 1;
        let count = self.counters.acks_refused;
        if count <= REFUSALS_LOGGED_MAX || count.is_power_of_two() {
            warn!(peer = %self.name(conn), %job, count,
                "ignored a result: its worker was never assigned this job, or not in this run; the \
                 job continues");
        } else {
            debug!(peer = %self.name(conn), %job, count, "a result does not count");
        }
    }
}
