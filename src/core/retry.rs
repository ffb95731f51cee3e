//! Waiting times that double: between deliveries of a job (RT03) and between attempts to connect (CL08).
//!
//! Pure: who wants a spread brings the entropy. The broker takes it from ids, so that a seed replays a run.

use std::time::Duration;

/// A schedule `first, 2 x first, ...` up to `max`, each spread by `jitter_percent` either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first waiting time.
    pub first: Duration,
    /// The longest, before the spread.
    pub max: Duration,
    /// How far a waiting time may lie from its place in the schedule, in per cent.
    pub jitter_percent: u8,
}

impl Backoff {
    /// Between deliveries of a job: 1 s, doubling to 30 s, 20 % either way (RT03, C06).
    pub const DELIVERY: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30), jitter_percent: 20 };

    /// Between attempts of a job that no worker has room for: 1 s, doubling to 60 s, 20 % either way.
    pub const NO_ROOM: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60), jitter_percent: 20 };

    /// Between attempts to connect: 0.5 s, doubling to 30 s, 20 % either way (CL08).
    pub const CONNECT: Backoff =
        Backoff { first: Duration::from_millis(500), max: Duration::from_secs(30), jitter_percent: 20 };

    /// The waiting time after failure number `failures`, which counts from 1; nothing after none.
    pub fn delay(&self, failures: u32, entropy: u64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let whole = 2u32.checked_pow(doublings).map_or(self.max, |times| self.first.saturating_mul(times));
        let whole_us = u64::try_from(whole.min(self.max).as_micros()).unwrap_or(u64::MAX);
        let spread = whole_us.saturating_mul(u64::from(self.jitter_percent)) / 100;
        let offset = match spread {
            0 => 0,
            spread => mix(entropy) % (2 * spread + 1),
        };
        Duration::from_micros(whole_us.saturating_sub(spread).saturating_add(offset))
    }
}

/// Spreads the bits of a number that may be small or regular.
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt03_deliveries_wait_one_second_doubling_to_thirty_within_a_fifth() {
        for (failures, seconds) in [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (7, 30), (u32::MAX, 30)]
        {
            let whole = Duration::from_secs(seconds);
            let delays: Vec<Duration> =
                (0..500).map(|entropy| Backoff::DELIVERY.delay(failures, entropy)).collect();
            assert!(
                delays.iter().all(|delay| *delay >= whole * 4 / 5 && *delay <= whole * 6 / 5),
                "{failures}"
            );
            let (low, high) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
            assert!(
                *low < whole * 85 / 100 && *high > whole * 115 / 100,
                "{failures}: the whole fifth is used"
            );
        }
        assert_eq!(Backoff::DELIVERY.delay(0, 7), Duration::ZERO);
    }

    #[test]
    fn cl08_connecting_waits_half_a_second_first() {
        let still = Backoff { jitter_percent: 0, ..Backoff::CONNECT };
        let delays: Vec<u128> = (1..=8).map(|failures| still.delay(failures, 0).as_millis()).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    }
}
