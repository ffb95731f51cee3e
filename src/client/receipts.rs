//! Decides which results a client confirms to its leaders. A result is confirmed on the connection
//! it came from, once the caller has it. The result of a job this client never had is not
//! confirmed: it may belong to another client of the same name, which then receives it.
//!
//! What "has it" means is the caller's choice ([`Receipt`]): that the result was handed out, or that
//! the caller says so when it has stored what it wants of it.

use std::collections::{HashMap, HashSet, VecDeque};

use uuid::Uuid;

use super::dispatch::Conn;

/// Jobs that are remembered after their end: a leader that did not hear that their results came
/// sends those again.
const ENDED_MAX: usize = 16_384;

/// Who says that a result has arrived for good. Until then the leader keeps it as one that nobody
/// has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receipt {
    /// The client, when it hands the result out.
    #[default]
    AtOnce,
    /// The caller, with [`JobHandle::received`](super::JobHandle::received). Results of a
    /// [`MultiClient`](super::MultiClient) are confirmed at once all the same.
    ByCaller,
}

/// Results that came, and jobs that have ended.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// Where results came from that are not confirmed, as their jobs wait for the parts.
    came: HashMap<Uuid, Conn>,
    /// Runs of jobs that have ended; 0 where that is not known.
    ended: HashMap<Uuid, u32>,
    /// Those of them whose callers have yet to say that the results are safe.
    held: HashSet<Uuid>,
    /// The oldest first.
    order: VecDeque<Uuid>,
}

impl Receipts {
    /// A result came.
    pub(super) fn came(&mut self, job: Uuid, conn: Conn) {
        self.came.insert(job, conn);
    }

    /// A job has ended, whichever way; `receipt` says who confirms its result.
    pub(super) fn ended(&mut self, job: Uuid, run: u32, receipt: Receipt) {
        if self.ended.insert(job, run).is_none() {
            self.order.push_back(job);
        }
        match receipt {
            Receipt::AtOnce => drop(self.held.remove(&job)),
            Receipt::ByCaller => drop(self.held.insert(job)),
        }
        while self.order.len() > ENDED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.ended.remove(&oldest);
                if self.held.remove(&oldest) {
                    self.came.remove(&oldest);
                }
            }
        }
    }

    /// The caller has stored what it wants of a result.
    pub(super) fn stored(&mut self, job: Uuid) {
        self.held.remove(&job);
    }

    /// Where to confirm the result of a job, and of which run, unless it is still to be given out.
    pub(super) fn due(&mut self, job: Uuid, is_open: bool) -> Option<(Conn, u32)> {
        if is_open || self.held.contains(&job) {
            return None;
        }
        let conn = self.came.remove(&job)?;
        let run = *self.ended.get(&job)?;
        Some((conn, run))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_confirmed_where_it_came_from_once_its_job_has_ended() {
        let (job, mut receipts) = (Uuid::from_u128(1), Receipts::default());
        receipts.came(job, 3);
        assert_eq!(receipts.due(job, true), None, "its parts are still to come");
        receipts.ended(job, 2, Receipt::AtOnce);
        assert_eq!(receipts.due(job, false), Some((3, 2)));
        assert_eq!(receipts.due(job, false), None, "once");
        receipts.came(job, 1);
        assert_eq!(receipts.due(job, false), Some((1, 2)), "a copy that came late");
    }

    #[test]
    fn a_result_of_a_job_that_is_not_ours_is_not_confirmed_and_not_remembered() {
        let mut receipts = Receipts::default();
        receipts.came(Uuid::from_u128(1), 0);
        assert_eq!(receipts.due(Uuid::from_u128(1), false), None);
        assert!(receipts.came.is_empty());
        (0..20_000).for_each(|job| receipts.ended(Uuid::from_u128(job), 1, Receipt::AtOnce));
        assert_eq!((receipts.ended.len(), receipts.order.len()), (ENDED_MAX, ENDED_MAX));
    }

    #[test]
    fn a_result_that_the_caller_has_yet_to_store_is_confirmed_when_it_says_so() {
        let (job, mut receipts) = (Uuid::from_u128(1), Receipts::default());
        receipts.came(job, 3);
        receipts.ended(job, 2, Receipt::ByCaller);
        assert_eq!(receipts.due(job, false), None);
        receipts.came(job, 4);
        assert_eq!(receipts.due(job, false), None, "a copy that came meanwhile");
        receipts.stored(job);
        assert_eq!(receipts.due(job, false), Some((4, 2)), "where it came from last");
        assert_eq!(receipts.due(job, false), None, "once");

        for number in 0..20_000 {
            receipts.came(Uuid::from_u128(number), 0);
            receipts.ended(Uuid::from_u128(number), 1, Receipt::ByCaller);
        }
        let kept = (receipts.came.len(), receipts.ended.len(), receipts.held.len());
        assert_eq!(kept, (ENDED_MAX, ENDED_MAX, ENDED_MAX), "callers that never say so");
    }
}
