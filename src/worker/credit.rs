//! Decides how much credit a worker grants its leader, and how much it withholds while the
//! processors are busy (WX07, CR07). It has no I/O; the session passes in the time and sends the
//! result.

use std::collections::VecDeque;

use tokio::time::Instant;

use super::limits::CREDIT_WITHHELD_MAX;

/// Credit given and withheld.
#[derive(Debug, Default)]
pub(super) struct CreditLedger {
    given: u32,
    /// When each withheld credit is given at the latest.
    withheld: VecDeque<Instant>,
}

impl CreditLedger {
    /// What the leader may still give us, as we count it.
    pub(super) fn given(&self) -> u32 {
        self.given
    }

    /// Credit was sent.
    pub(super) fn on_given(&mut self, count: u32) {
        self.given = self.given.saturating_add(count);
    }

    /// A job came.
    pub(super) fn on_taken(&mut self) {
        self.given = self.given.saturating_sub(1);
    }

    /// A place is free after a job: the credit to give now.
    pub(super) fn on_free(&mut self, now: Instant, busy: bool) -> u32 {
        match busy {
            true => {
                self.withheld.push_back(now + CREDIT_WITHHELD_MAX);
                0
            }
            false => 1,
        }
    }

    /// The credit to give now: what has waited long enough, or all of it when the processors have
    /// calmed down.
    pub(super) fn release(&mut self, now: Instant, busy: bool) -> u32 {
        let before = self.withheld.len();
        self.withheld.retain(|due| busy && *due > now);
        u32::try_from(before - self.withheld.len()).unwrap_or(u32::MAX)
    }

    /// When to look again at the latest.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.withheld.front().copied()
    }

    /// The connection is gone, and the credit with it; the next one starts with what is free then.
    pub(super) fn clear(&mut self) {
        *self = CreditLedger::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn cr07_credit_is_withheld_while_the_processors_are_busy_and_for_a_second_at_most() {
        let start = Instant::now();
        let after = |ms| start + Duration::from_millis(ms);
        let mut purse = CreditLedger::default();
        assert_eq!((purse.on_free(start, false), purse.next_due()), (1, None), "not busy: at once");
        assert_eq!(purse.on_free(start, true), 0);
        assert_eq!(purse.on_free(after(400), true), 0);
        assert_eq!(purse.next_due(), Some(after(1000)));
        assert_eq!(purse.release(after(999), true), 0);
        assert_eq!(purse.release(after(1000), true), 1, "a second is over");
        assert_eq!(purse.release(after(1001), false), 1, "calm again");
        assert_eq!((purse.release(after(9999), false), purse.next_due()), (0, None));
    }

    #[test]
    fn credit_is_counted_as_the_leader_does() {
        let mut purse = CreditLedger::default();
        purse.on_given(2);
        purse.on_taken();
        assert_eq!(purse.given(), 1);
        purse.on_taken();
        purse.on_taken();
        assert_eq!(purse.given(), 0, "a leader that takes more than it was given");
        purse.on_given(4);
        purse.clear();
        assert_eq!(purse.given(), 0);
    }
}
