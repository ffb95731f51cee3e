//! Decides which address to dial and after which delay: the given address, or the target of a
//! redirect. It has no I/O.

use std::time::Duration;

use crate::core::retry::Backoff;

/// Redirects that are followed in a row before the given address is tried again, after a wait
/// (RD02). Nodes that elect a leader may send a peer around a few times; those that send it in a
/// ring should not be dialled without end.
pub const REDIRECTS_MAX: u32 = 8;

/// The address of the leader, as far as it is known.
#[derive(Debug)]
pub(super) struct Route {
    given: String,
    target: String,
    backoff: Backoff,
    failures: u32,
    redirects: u32,
}

impl Route {
    pub(super) fn new(given: String, backoff: Backoff) -> Self {
        Route { target: given.clone(), given, backoff, failures: 0, redirects: 0 }
    }

    /// Where to dial, or where it was dialled.
    pub(super) fn target(&self) -> &str {
        &self.target
    }

    /// A leader is there: the next failure counts as the first.
    pub(super) fn on_sound(&mut self) {
        (self.failures, self.redirects) = (0, 0);
    }

    /// There is no connection any more, or none could be made: how long to wait for the next. It
    /// goes to the given address, which knows best who leads now.
    pub(super) fn on_failed(&mut self) -> Duration {
        self.target.clone_from(&self.given);
        self.redirects = 0;
        self.failures = self.failures.saturating_add(1);
        let (entropy, _) = uuid::Uuid::new_v4().as_u64_pair();
        self.backoff.delay(self.failures, entropy)
    }

    /// Another node leads: what that means, for people, and how long to wait.
    pub(super) fn on_redirect(&mut self, to: Option<String>) -> (String, Duration) {
        let (from, redirects) = (self.target.clone(), self.redirects);
        match to {
            Some(leader) if redirects < REDIRECTS_MAX => {
                self.redirects += 1;
                let why = format!("{from} says that the leader is {leader}");
                self.target = leader;
                (why, Duration::ZERO)
            }
            Some(leader) => (
                format!("{from} points to {leader}, after {redirects} redirects in a row"),
                self.on_failed(),
            ),
            None => (format!("{from} is not the leader and knows of none"), self.on_failed()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60), jitter_percent: 0 };

    #[test]
    fn rd02_a_ring_of_redirects_ends_at_the_given_address_and_in_the_back_off() {
        let mut route = Route::new("a:1".to_owned(), BACKOFF);
        for _ in 0..REDIRECTS_MAX {
            assert_eq!(route.on_redirect(Some("b:1".to_owned())).1, Duration::ZERO);
            assert_eq!(route.target(), "b:1");
        }
        assert_eq!(route.on_redirect(Some("b:1".to_owned())).1, BACKOFF.first);
        assert_eq!(route.target(), "a:1");
        assert_eq!(route.on_redirect(Some("b:1".to_owned())).1, Duration::ZERO, "a new row");
        assert_eq!(route.on_redirect(None).1, 2 * BACKOFF.first);
        assert_eq!(route.target(), "a:1");
    }

    #[test]
    fn the_wait_grows_with_failures_and_is_short_again_behind_a_leader() {
        let mut route = Route::new("a:1".to_owned(), BACKOFF);
        assert_eq!((route.on_failed(), route.on_failed()), (BACKOFF.first, 2 * BACKOFF.first));
        route.on_redirect(Some("b:1".to_owned()));
        route.on_sound();
        assert_eq!((route.target(), route.redirects), ("b:1", 0));
        assert_eq!(route.on_failed(), BACKOFF.first);
    }
}
