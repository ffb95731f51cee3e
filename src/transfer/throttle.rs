//! Limits how often a transfer reports progress.

use std::ops::Sub;
use std::time::Duration;

/// How often a client reports its own transfers: often enough for a line that a person watches.
pub(crate) const AT_CLIENT: Duration = Duration::from_millis(100);

/// How often a worker reports its transfers to the leader, and so to the client.
pub(crate) const AT_WORKER: Duration = Duration::from_secs(1);

/// Lets news pass once in a while. Moments are those of the clock that its owner reads.
#[derive(Debug)]
pub(crate) struct Throttle<Moment> {
    every: Duration,
    said_at: Option<Moment>,
}

impl<Moment: Copy + Sub<Output = Duration>> Throttle<Moment> {
    /// The first news passes at once.
    pub(crate) const fn new(every: Duration) -> Self {
        Throttle { every, said_at: None }
    }

    /// The first news passes when it is time for the second.
    pub(crate) const fn after(every: Duration, began: Moment) -> Self {
        Throttle { every, said_at: Some(began) }
    }

    /// Whether to say it now: it is time, or it cannot wait.
    pub(crate) fn passes(&mut self, now: Moment, at_once: bool) -> bool {
        let passes = at_once || self.said_at.is_none_or(|said| now - said >= self.every);
        if passes {
            self.said_at = Some(now);
        }
        passes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn news_pass_once_in_a_while_and_what_cannot_wait_starts_it_anew() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut throttle = Throttle::new(AT_CLIENT);
        let passed = [(0, false), (50, false), (60, true), (150, false), (160, false)];
        let passed = passed.map(|(millis, at_once)| throttle.passes(at(millis), at_once));
        assert_eq!(passed, [true, false, true, false, true]);
        let mut throttle = Throttle::after(AT_WORKER, start);
        assert_eq!([999, 1000].map(|millis| throttle.passes(at(millis), false)), [false, true]);
    }
}
