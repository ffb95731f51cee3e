//! Stores results of ended jobs: to resend until the leader has them, and to answer repeated
//! assignments (DD01, C17, C31).
//!
//! Bounded by number and bytes. The oldest settled result is dropped first. A result the leader
//! does not have is dropped only when no other is left, and that is reported. It has no I/O; the
//! job table owns it.

use std::collections::{BTreeMap, HashMap};

use uuid::Uuid;

use super::limits::{RESULTS_KEPT_BYTES_MAX, RESULTS_KEPT_MAX};
use super::result_encoding::Answer;

/// A result and what it is the result of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    /// The result as it is sent.
    pub(super) answer: Answer,
    /// Run of the job; `None` if the leader never said.
    pub(super) run: Option<u32>,
    /// Attempt of the run.
    pub(super) attempt: u32,
    /// Whether the leader has it.
    pub(super) settled: bool,
}

/// The results kept.
#[derive(Debug)]
pub(super) struct ResultStore {
    by_job: HashMap<Uuid, (u64, Stored)>,
    /// By age, those that the leader has.
    settled: BTreeMap<u64, Uuid>,
    /// By age, those that it does not have.
    unsettled: BTreeMap<u64, Uuid>,
    next_age: u64,
    bytes: usize,
    results_max: usize,
    bytes_max: usize,
}

impl Default for ResultStore {
    fn default() -> Self {
        Self::bounded(RESULTS_KEPT_MAX, RESULTS_KEPT_BYTES_MAX)
    }
}

impl ResultStore {
    fn bounded(results_max: usize, bytes_max: usize) -> Self {
        ResultStore {
            by_job: HashMap::new(),
            settled: BTreeMap::new(),
            unsettled: BTreeMap::new(),
            next_age: 0,
            bytes: 0,
            results_max,
            bytes_max,
        }
    }

    /// Keeps a result in place of an earlier one of the same job. Gives the jobs whose unsettled
    /// results had to go.
    pub(super) fn insert(&mut self, job: Uuid, stored: Stored) -> Vec<Uuid> {
        self.remove(job);
        let age = self.next_age;
        self.next_age += 1;
        self.bytes += stored.answer.weight();
        let by_age = if stored.settled { &mut self.settled } else { &mut self.unsettled };
        by_age.insert(age, job);
        self.by_job.insert(job, (age, stored));
        let mut lost = Vec::new();
        while self.by_job.len() > self.results_max || self.bytes > self.bytes_max {
            let oldest =
                self.settled.first_key_value().or_else(|| self.unsettled.first_key_value());
            let Some((_, &goes)) = oldest else { break };
            // The one that has just come is the last to go: it has not even been sent.
            if goes == job && self.by_job.len() == 1 {
                break;
            }
            if self.remove(goes).is_some_and(|gone| !gone.settled) {
                lost.push(goes);
            }
        }
        lost
    }

    /// The result of a job.
    pub(super) fn get(&self, job: Uuid) -> Option<&Stored> {
        self.by_job.get(&job).map(|(_, stored)| stored)
    }

    /// The leader has the result of this run. Says whether that is news. A result with parts that
    /// go by transfer is not kept any longer, since its files are not.
    pub(super) fn settle(&mut self, job: Uuid, run: Option<u32>) -> bool {
        match self.by_job.get_mut(&job) {
            Some((age, stored)) if !stored.settled && same_run(stored.run, run) => {
                stored.settled = true;
                self.unsettled.remove(age);
                self.settled.insert(*age, job);
                if stored.answer.large.is_some() {
                    self.remove(job);
                }
                true
            }
            Some(_) | None => false,
        }
    }

    /// Results that the leader does not have, oldest first.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = (Uuid, &Stored)> {
        self.unsettled.values().filter_map(|job| self.get(*job).map(|held| (*job, held)))
    }

    fn remove(&mut self, job: Uuid) -> Option<Stored> {
        let (age, stored) = self.by_job.remove(&job)?;
        self.settled.remove(&age);
        self.unsettled.remove(&age);
        self.bytes -= stored.answer.weight();
        Some(stored)
    }
}

/// Whether two runs may be the same one. A classic leader names none.
pub(super) fn same_run(a: Option<u32>, b: Option<u32>) -> bool {
    match (a, b) {
        (Some(a), Some(b)) => a == b,
        (None, _) | (_, None) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize, settled: bool) -> Stored {
        Stored { answer: vec![0; bytes].into(), run: Some(1), attempt: 1, settled }
    }

    fn job(number: u128) -> Uuid {
        Uuid::from_u128(number)
    }

    #[test]
    fn c31_settled_results_go_first_and_oldest_first() {
        let mut store = ResultStore::bounded(3, 1000);
        assert!(store.insert(job(1), stored(1, false)).is_empty());
        assert!(store.insert(job(2), stored(1, true)).is_empty());
        assert!(store.insert(job(3), stored(1, true)).is_empty());
        assert!(store.insert(job(4), stored(1, false)).is_empty(), "a settled one made room");
        assert!(store.get(job(2)).is_none() && store.get(job(3)).is_some());
        assert!(store.insert(job(5), stored(1, false)).is_empty());
        assert_eq!(
            store.insert(job(6), stored(1, false)),
            [job(1)],
            "the oldest unsettled one, and it is told"
        );
        assert_eq!(
            store.unsettled().map(|(job, _)| job).collect::<Vec<_>>(),
            [job(4), job(5), job(6)]
        );
    }

    #[test]
    fn c31_bytes_are_bounded_and_given_back() {
        let mut store = ResultStore::bounded(100, 10);
        store.insert(job(1), stored(6, true));
        store.insert(job(1), stored(4, true));
        store.insert(job(2), stored(6, true));
        assert_eq!(store.bytes, 10);
        store.insert(job(3), stored(11, false));
        assert_eq!(
            (store.bytes, store.by_job.len()),
            (11, 1),
            "the newest stays, whatever its size"
        );
    }

    #[test]
    fn a_result_settles_once_and_only_for_its_run() {
        let mut store = ResultStore::bounded(3, 1000);
        store.insert(job(1), stored(1, false));
        assert!(!store.settle(job(1), Some(2)));
        assert!(store.settle(job(1), Some(1)));
        assert!(!store.settle(job(1), Some(1)));
        assert!(!store.settle(job(9), None));
    }
}
