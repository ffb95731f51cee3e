//! Decides which results a client confirms to its leaders. A result is confirmed on the connection
//! it came from, once the caller has it. The result of a job this client never had is not
//! confirmed: it may belong to another client of the same name, which then receives it.

use std::collections::{HashMap, VecDeque};

use uuid::Uuid;

use super::dispatch::Conn;

/// Jobs that are remembered after their end: a leader that did not hear that their results came
/// sends those again.
const ENDED_MAX: usize = 16_384;

/// Results that came, and jobs that have ended.
#[derive(Debug, Default)]
pub(super) struct Receipts {
    /// Where results came from that are not confirmed, as their jobs wait for the parts.
    came: HashMap<Uuid, Conn>,
    /// Runs of jobs that have ended; 0 where that is not known.
    ended: HashMap<Uuid, u32>,
    /// The oldest first.
    order: VecDeque<Uuid>,
}

impl Receipts {
    /// A result came.
    pub(super) fn came(&mut self, job: Uuid, conn: Conn) {
        self.came.insert(job, conn);
    }

    /// A job has ended, whichever way.
    pub(super) fn ended(&mut self, job: Uuid, run: u32) {
        if self.ended.insert(job, run).is_none() {
            self.order.push_back(job);
        }
        while self.order.len() > ENDED_MAX {
            if let Some(oldest) = self.order.pop_front() {
                self.ended.remove(&oldest);
            }
        }
    }

    /// Where to confirm the result of a job, and of which run, unless it is still to be given out.
    pub(super) fn due(&mut self, job: Uuid, is_open: bool) -> Option<(Conn, u32)> {
        if is_open {
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
        receipts.ended(job, 2);
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
        (0..20_000).for_each(|job| receipts.ended(Uuid::from_u128(job), 1));
        assert_eq!((receipts.ended.len(), receipts.order.len()), (ENDED_MAX, ENDED_MAX));
    }
}
