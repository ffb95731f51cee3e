//! What workers say of jobs at their ends, on its way to the broker.

use tracing::{debug, warn};

use super::{Leader, outcome};
use crate::conn::{AckBody, AckSays};
use crate::core::Event;
use crate::core::event::Outcome;
use crate::core::ids::{ConnId, JobId};

/// So many results that do not count are each worth a line in the log.
const REFUSALS_LOGGED_MAX: u64 = 16;

impl Leader {
    /// A worker has ended a job, or will not.
    pub(super) fn ack(&mut self, conn: ConnId, body: AckBody) {
        let (job, named) = (body.job, body.named);
        if self.broker.is_foreign_ack(conn, job, named) {
            return self.foreign_ack(conn, body);
        }
        let outcome = match body.says {
            AckSays::Result { ok } if self.are_here(job, &body.parts) => {
                let result = self.payloads.held.keep_result(body.payload);
                self.keep_parts(job, result, &body.parts);
                Outcome::Returned { result, ok }
            }
            AckSays::Result { .. } => {
                warn!(%job, "a result names a blob that has not come whole");
                Outcome::ResultLost
            }
            AckSays::PlainOk => {
                let payload = outcome::plain_ok(self.broker.state().job(job), job);
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok: true }
            }
            AckSays::ResultLost => Outcome::ResultLost,
            AckSays::GivenUp => {
                self.tell_what_is_not_held(conn, job);
                Outcome::GivenUp
            }
            AckSays::Lacks(lack) => Outcome::Lacks(lack),
        };
        self.forget_gathered_parts(job);
        self.broker.handle(self.now, Event::Ack { conn, job, named, outcome });
    }

    /// An answer for a job from a worker that has nothing to do with it. What others bring of its result stays, and so does
    /// what the job has; the broker says what the worker is to hear.
    fn foreign_ack(&mut self, conn: ConnId, body: AckBody) {
        let AckBody { job, named, says, parts, payload } = body;
        self.forget_foreign_parts(job, &parts);
        let outcome = match says {
            AckSays::Result { ok } => {
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok }
            }
            AckSays::PlainOk => {
                Outcome::Returned { result: self.payloads.held.keep_result(payload), ok: true }
            }
            AckSays::ResultLost => Outcome::ResultLost,
            AckSays::GivenUp => Outcome::GivenUp,
            AckSays::Lacks(lack) => Outcome::Lacks(lack),
        };
        self.broker.handle(self.now, Event::Ack { conn, job, named, outcome });
    }

    /// Each of the first is said; a worker that goes on so does not fill the log.
    pub(super) fn ack_refused(&mut self, conn: ConnId, job: JobId) {
        self.counters.acks_refused += 1;
        let count = self.counters.acks_refused;
        if count <= REFUSALS_LOGGED_MAX || count.is_power_of_two() {
            warn!(peer = %self.name(conn), %job, count,
                "a result does not count: its worker was never given this job, or not in this run; the job goes on");
        } else {
            debug!(peer = %self.name(conn), %job, count, "a result does not count");
        }
    }
}
