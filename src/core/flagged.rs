//! Flags workers on which a program fails far more often than on others: results that are not OK,
//! counted by worker and program.
//!
//! It only counts and compares. No job is kept from a flagged worker: that a program fails may be
//! the jobs' doing, and only people can tell. `status` and `explain` show the flags.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::broker::Broker;
use super::ids::{Micros, WorkerId};

/// A worker with fewer failures than this is not flagged.
pub const FLAG_FAILURES_MIN: u32 = 5;

/// Nor is one with a smaller share of failures than so many times that of the median worker.
pub const FLAG_TIMES_MEDIAN: u32 = 3;

/// Results of a worker and program that are counted. At this number both counts are halved, so that
/// later results weigh more than earlier ones.
pub const TALLY_RESULTS_MAX: u32 = 256;

/// A program of which no result came for so long is forgotten.
pub const TALLY_KEPT: Duration = Duration::from_secs(3600);

/// Pairs of worker and program that are counted. Beyond that the program whose last result is the
/// oldest is forgotten.
pub const TALLIES_MAX: usize = 65_536;

/// Bytes of the programs' names, to the same end.
pub const TALLIES_BYTES_MAX: usize = 8 * 1024 * 1024;

/// Flags that are listed at a time.
const FLAGS_LISTED_MAX: usize = 1_000;

/// Results of one program at one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tally {
    ended: u32,
    failed: u32,
}

impl Tally {
    fn count(&mut self, ok: bool) {
        if self.ended >= TALLY_RESULTS_MAX {
            (self.ended, self.failed) = (self.ended / 2, self.failed / 2);
        }
        self.ended += 1;
        self.failed += u32::from(!ok);
    }

    fn failed_permille(self) -> u32 {
        self.failed.saturating_mul(1000).checked_div(self.ended).unwrap_or_default()
    }
}

/// Results of one program.
#[derive(Debug)]
struct OfProgram {
    workers: BTreeMap<WorkerId, Tally>,
    /// When the last one came, and its number among all.
    at: Micros,
    number: u64,
}

impl OfProgram {
    /// The failures of the median worker, in thousandths of its results: of an even number of
    /// workers, the lower of the two.
    fn median_permille(&self) -> u32 {
        let mut shares: Vec<u32> =
            self.workers.values().map(|tally| tally.failed_permille()).collect();
        shares.sort_unstable();
        shares.get(shares.len().saturating_sub(1) / 2).copied().unwrap_or_default()
    }
}

/// A worker on which a program fails more often than on others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    /// Results of the program there, as far as they are counted.
    pub ended: u32,
    /// Those that are not OK.
    pub failed: u32,
    /// The same in thousandths, of the worker in the middle.
    pub median_permille: u32,
}

/// The results that are counted.
#[derive(Debug, Default)]
pub(super) struct Tallies {
    of: BTreeMap<Arc<str>, OfProgram>,
    /// The program whose last result is the oldest first.
    order: BTreeMap<u64, Arc<str>>,
    next: u64,
    pairs: usize,
    bytes: usize,
}

impl Tallies {
    pub(super) fn len(&self) -> usize {
        self.pairs
    }

    /// A worker returned a result.
    pub(super) fn count(&mut self, exec: &Arc<str>, worker: WorkerId, ok: bool, now: Micros) {
        if exec.is_empty() {
            return;
        }
        self.next += 1;
        let number = self.next;
        let known = self.of.entry(exec.clone()).or_insert_with(|| {
            self.bytes += exec.len();
            OfProgram { workers: BTreeMap::new(), at: now, number }
        });
        self.order.remove(&known.number);
        self.order.insert(number, exec.clone());
        (known.at, known.number) = (now, number);
        let before = known.workers.len();
        known.workers.entry(worker).or_default().count(ok);
        self.pairs += known.workers.len() - before;
        self.forget_oldest(now);
    }

    /// Forgets what is too old, and what is too much; never the program that was counted last.
    fn forget_oldest(&mut self, now: Micros) {
        while let Some((_, exec)) = self.order.first_key_value() {
            let is_old = self.of.get(exec).is_some_and(|known| known.at.plus(TALLY_KEPT) <= now);
            let is_over = self.pairs > TALLIES_MAX || self.bytes > TALLIES_BYTES_MAX;
            if !is_old && (!is_over || self.order.len() == 1) {
                return;
            }
            let exec = exec.clone();
            self.forget(&exec);
        }
    }

    fn forget(&mut self, exec: &str) {
        if let Some(known) = self.of.remove(exec) {
            self.order.remove(&known.number);
            self.pairs -= known.workers.len();
            self.bytes -= exec.len();
        }
    }

    /// A worker is gone.
    pub(super) fn forget_worker(&mut self, worker: WorkerId) {
        let mut empty = Vec::new();
        for (exec, known) in &mut self.of {
            if known.workers.remove(&worker).is_some() {
                self.pairs -= 1;
                if known.workers.is_empty() {
                    empty.push(exec.clone());
                }
            }
        }
        empty.iter().for_each(|exec| self.forget(exec));
    }

    fn flag(&self, exec: &str, worker: WorkerId, now: Micros) -> Option<Flag> {
        let known = self.of.get(exec).filter(|known| known.at.plus(TALLY_KEPT) > now)?;
        known.flag(worker, known.median_permille())
    }
}

impl OfProgram {
    fn flag(&self, worker: WorkerId, median_permille: u32) -> Option<Flag> {
        let tally = self.workers.get(&worker)?;
        // Without others there is nothing to compare it with.
        let is_flagged = self.workers.len() > 1
            && tally.failed >= FLAG_FAILURES_MIN
            && tally.failed_permille() >= median_permille.saturating_mul(FLAG_TIMES_MEDIAN);
        let Tally { ended, failed } = *tally;
        is_flagged.then_some(Flag { ended, failed, median_permille })
    }
}

impl Broker {
    /// Whether a program fails on a worker far more often than on others.
    pub fn flag(&self, exec: &str, worker: WorkerId) -> Option<Flag> {
        self.tallies.flag(exec, worker, self.now)
    }

    /// All workers that are flagged, with the programs, as far as they are listed.
    pub fn flags(&self) -> Vec<(WorkerId, Arc<str>, Flag)> {
        let fresh =
            self.tallies.of.iter().filter(|(_, known)| known.at.plus(TALLY_KEPT) > self.now);
        let flags = fresh.flat_map(|(exec, known)| {
            let median = known.median_permille();
            known.workers.keys().filter_map(move |worker| {
                Some((*worker, exec.clone(), known.flag(*worker, median)?))
            })
        });
        flags.take(FLAGS_LISTED_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn worker(number: u128) -> WorkerId {
        WorkerId(Uuid::from_u128(number))
    }

    fn count(tallies: &mut Tallies, number: u128, ok: u32, failed: u32) {
        let exec: Arc<str> = "calcA".into();
        for _ in 0..ok {
            tallies.count(&exec, worker(number), true, Micros(1));
        }
        for _ in 0..failed {
            tallies.count(&exec, worker(number), false, Micros(1));
        }
    }

    #[test]
    fn a_worker_is_flagged_from_five_failures_and_three_times_the_median_share() {
        let mut tallies = Tallies::default();
        let flag = |tallies: &Tallies, number| tallies.flag("calcA", worker(number), Micros(1));
        count(&mut tallies, 1, 0, 5);
        assert_eq!(flag(&tallies, 1), None, "there is no other to compare it with");
        count(&mut tallies, 2, 10, 0);
        let expected = Flag { ended: 5, failed: 5, median_permille: 0 };
        assert_eq!(flag(&tallies, 1), Some(expected));
        count(&mut tallies, 3, 9, 1);
        assert_eq!(flag(&tallies, 1).map(|flag| flag.median_permille), Some(100));
        assert_eq!((flag(&tallies, 2), flag(&tallies, 3)), (None, None));
        // Four failures are not enough, and neither is less than three times the median.
        count(&mut tallies, 4, 0, 4);
        count(&mut tallies, 5, 5, 5);
        count(&mut tallies, 6, 3, 2);
        assert_eq!(flag(&tallies, 4), None);
        assert_eq!((flag(&tallies, 5), flag(&tallies, 1)), (None, None), "the median is 400");
    }

    #[test]
    fn later_results_weigh_more_and_old_ones_are_forgotten() {
        let mut tallies = Tallies::default();
        count(&mut tallies, 2, 10, 0);
        count(&mut tallies, 1, 0, 300);
        assert!(tallies.flag("calcA", worker(1), Micros(1)).is_some());
        count(&mut tallies, 1, 3_000, 0);
        assert_eq!(tallies.flag("calcA", worker(1), Micros(1)), None, "it was repaired");
        count(&mut tallies, 1, 0, 20);
        assert!(tallies.flag("calcA", worker(1), Micros(1)).is_some());
        let later = Micros(1).plus(TALLY_KEPT);
        assert_eq!(tallies.flag("calcA", worker(1), later), None);
        tallies.count(&"calcB".into(), worker(1), false, later);
        assert_eq!((tallies.len(), tallies.of.len()), (1, 1));
        tallies.forget_worker(worker(1));
        assert_eq!((tallies.len(), tallies.bytes, tallies.order.len()), (0, 0, 0));
    }

    #[test]
    fn tallies_are_bounded_by_number_and_by_bytes() {
        let mut tallies = Tallies::default();
        for number in 0..TALLIES_MAX as u128 {
            tallies.count(&format!("{number}").into(), worker(1), true, Micros(1));
        }
        // One more result keeps it from being the oldest.
        tallies.count(&"0".into(), worker(1), true, Micros(1));
        tallies.count(&"one more".into(), worker(1), true, Micros(1));
        assert!(tallies.of.contains_key("0") && !tallies.of.contains_key("1"));
        assert_eq!(tallies.len(), TALLIES_MAX);
        for number in 0..3_000 {
            let long: Arc<str> = format!("{number}{}", "z".repeat(4_000)).into();
            tallies.count(&long, worker(1), true, Micros(1));
            assert!(tallies.bytes <= TALLIES_BYTES_MAX && tallies.pairs <= TALLIES_MAX);
        }
        assert_eq!(tallies.order.len(), tallies.of.len());
    }
}
