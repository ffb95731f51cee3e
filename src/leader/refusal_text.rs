//! The text and the numbers of a refusal, for peers that can read them.

use chunking::message::Reason;
use uuid::Uuid;

use super::relay::TooMany;
use crate::conn::{Session, WireFrame};
use crate::core::action::Refusal;
use crate::core::ids::JobId;

/// The hop of limits that are the leader's own.
const LEADER: &str = "leader";

/// A refusal with its numbers, for peers that can hear it.
#[derive(Debug)]
pub(super) struct RefusalText {
    pub(super) reason: Reason,
    pub(super) value: u64,
    pub(super) limit: u64,
    /// Whose limit it is.
    pub(super) hop: &'static str,
    pub(super) text: String,
}

impl RefusalText {
    /// One of the leader's own, without numbers.
    pub(super) fn new(reason: Reason, text: String) -> Self {
        RefusalText { reason, value: 0, limit: 0, hop: LEADER, text }
    }

    /// One of the leader's own limits.
    pub(super) fn numbers(reason: Reason, value: u64, limit: u64, text: String) -> Self {
        RefusalText { reason, value, limit, hop: LEADER, text }
    }

    pub(super) fn too_large(value: u64, limit: u64, text: String) -> Self {
        RefusalText::numbers(Reason::TOO_LARGE, value, limit, text)
    }

    /// What it is.
    pub(super) fn reason(&self) -> Reason {
        self.reason
    }

    /// For the log.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// For a peer that can hear it.
    pub(super) fn frame(&self, session: &Session, id: Uuid) -> Option<WireFrame> {
        let RefusalText { reason, value, limit, hop, text } = self;
        session.refused(JobId(id), *reason, *value, *limit, hop, text)
    }

    pub(super) fn invalid(text: String) -> Self {
        RefusalText::new(Reason::INVALID, text)
    }
}

impl From<TooMany> for RefusalText {
    fn from(too_many: TooMany) -> Self {
        let (value, limit) = (too_many.value as u64, too_many.limit as u64);
        RefusalText::numbers(Reason::BUSY, value, limit, too_many.to_string())
    }
}

impl From<&Refusal> for RefusalText {
    fn from(refusal: &Refusal) -> Self {
        let (reason, value, limit, hop) = match refusal {
            Refusal::Conflict { .. } => (Reason::CONFLICT, 0, 0, LEADER),
            Refusal::Full { held, limit } => (Reason::BUSY, *held as u64, *limit as u64, LEADER),
            Refusal::NamesFull { bytes, held, limit } => {
                (Reason::BUSY, held.saturating_add(*bytes), *limit, LEADER)
            }
            Refusal::NoWorker { .. } | Refusal::NoDatasets { .. } | Refusal::NoReader { .. } => {
                (Reason::NO_WORKER, 0, 0, LEADER)
            }
            Refusal::NoCapableWorker { bytes, limit, .. } => {
                (Reason::TOO_LARGE, *bytes, *limit, "worker")
            }
            Refusal::NoProgram(_) => (Reason::NO_PROGRAM, 0, 0, LEADER),
            Refusal::Draining => (Reason::DRAINING, 0, 0, LEADER),
        };
        RefusalText { reason, value, limit, hop, text: refusal.to_string() }
    }
}
