//! Decides how many results may wait for the leader without occupying their jobs' slots.
//!
//! An ended job no longer needs its slot, even if the leader has no space for its result yet, so
//! other jobs can run. The backlog is bounded by number and bytes, because it is on this machine's
//! disk. Each result beyond the bound keeps its slot, so the worker takes fewer jobs and in the end
//! none. The job table owns it.

use super::limits::{RETURNING_BYTES_MAX, RETURNING_MAX};

/// What may wait without a place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Backlog {
    pub(super) results_max: usize,
    /// Bytes of all of them.
    pub(super) bytes_max: u64,
}

impl Default for Backlog {
    fn default() -> Self {
        Backlog { results_max: RETURNING_MAX, bytes_max: RETURNING_BYTES_MAX }
    }
}

impl Backlog {
    /// How many of the results that wait keep their places: as few as may be, so the smallest do
    /// without. One result less never means one place more, and one result more at most one.
    pub(super) fn keep_places(self, mut sizes: Vec<u64>) -> usize {
        sizes.sort_unstable();
        let mut bytes = 0u64;
        let free = sizes.iter().take(self.results_max).take_while(|size| {
            bytes = bytes.saturating_add(**size);
            bytes <= self.bytes_max
        });
        sizes.len() - free.count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_beyond_the_number_or_the_bytes_keep_their_places_and_the_smallest_go_first() {
        let backlog = Backlog { results_max: 3, bytes_max: 100 };
        assert_eq!(backlog.keep_places(vec![]), 0);
        assert_eq!(backlog.keep_places(vec![100]), 0);
        assert_eq!(backlog.keep_places(vec![101]), 1);
        assert_eq!(backlog.keep_places(vec![1, 1, 1, 1]), 1, "too many");
        assert_eq!(backlog.keep_places(vec![90, 30, 30]), 1, "too large together");
        assert_eq!(backlog.keep_places(vec![u64::MAX, u64::MAX, 5]), 2);
    }

    #[test]
    fn one_result_less_is_never_a_place_more_and_one_more_at_most_one() {
        let backlog = Backlog { results_max: 4, bytes_max: 20 };
        let mut next = 7u64;
        let mut sizes = Vec::new();
        for _ in 0..2000 {
            next = next
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let before = backlog.keep_places(sizes.clone());
            let choice = usize::try_from(next >> 40).unwrap();
            if choice % 2 == 0 || sizes.is_empty() {
                sizes.push((next >> 20) % 12);
                let after = backlog.keep_places(sizes.clone());
                assert!((before..=before + 1).contains(&after), "{sizes:?}: {before} {after}");
            } else {
                sizes.swap_remove(choice % sizes.len());
                assert!(backlog.keep_places(sizes.clone()) <= before, "{sizes:?}");
            }
        }
    }
}
