//! Limits the rate of transfers a connection opens: a connection that opens them without end is
//! read more slowly.

use std::time::{Duration, Instant};

/// Transfers that one connection may open in a second. Then it is not read until the second is
/// over. Our own clients and workers open as many as a job has files, once.
const OPENS_PER_SECOND_MAX: u32 = 4_096;

/// Transfers that one connection opened in the second that began then.
pub(super) struct OpenRate {
    since: Instant,
    count: u32,
}

impl OpenRate {
    pub(super) fn new(now: Instant) -> Self {
        OpenRate { since: now, count: 0 }
    }

    /// One more is opened. Gives how long nothing is to be read from now on.
    pub(super) fn opened(&mut self, now: Instant) -> Option<Duration> {
        let second = Duration::from_secs(1);
        let past = now.saturating_duration_since(self.since);
        if past >= second {
            *self = OpenRate::new(now);
        }
        self.count += 1;
        (self.count > OPENS_PER_SECOND_MAX).then(|| {
            let rest = second.saturating_sub(past);
            *self = OpenRate::new(now + rest);
            rest
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_are_opened_in_a_second_and_the_next_waits_for_its_end() {
        let start = Instant::now();
        let mut rate = OpenRate::new(start);
        let half = start + Duration::from_millis(500);
        assert!((0..OPENS_PER_SECOND_MAX).all(|_| rate.opened(half).is_none()));
        assert_eq!(rate.opened(half), Some(Duration::from_millis(500)));
        let next = start + Duration::from_secs(1);
        assert!((0..OPENS_PER_SECOND_MAX).all(|_| rate.opened(next).is_none()));
        // One that rested has all of them again.
        let later = start + Duration::from_secs(5);
        assert!((0..OPENS_PER_SECOND_MAX).all(|_| rate.opened(later).is_none()));
    }
}
