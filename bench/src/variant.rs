//! What is measured in one run: variants of heft's leader, each with processes of its own, and the relay.

use clap::ValueEnum;

/// The leader's I/O driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Driver {
    Portable,
    Uring,
}

impl Driver {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Driver::Portable => "portable",
            Driver::Uring => "uring",
        }
    }
}

/// Who checks the chunks that the leader passes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verify {
    End,
    Hop,
}

impl Verify {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Verify::End => "end",
            Verify::Hop => "hop",
        }
    }
}

/// Drivers to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Drivers {
    /// tokio
    #[default]
    Portable,
    /// io_uring
    Uring,
    /// each of them, in turns
    Both,
}

impl Drivers {
    fn all(self) -> &'static [Driver] {
        match self {
            Drivers::Portable => &[Driver::Portable],
            Drivers::Uring => &[Driver::Uring],
            Drivers::Both => &[Driver::Portable, Driver::Uring],
        }
    }
}

/// Ways of checking to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Verifies {
    /// the receiving end alone, heft's default
    #[default]
    End,
    /// the leader too
    Hop,
    /// each of them, in turns
    Both,
}

impl Verifies {
    fn all(self) -> &'static [Verify] {
        match self {
            Verifies::End => &[Verify::End],
            Verifies::Hop => &[Verify::Hop],
            Verifies::Both => &[Verify::End, Verify::Hop],
        }
    }
}

/// A way to run heft's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) driver: Driver,
    pub(crate) verify: Verify,
}

impl Variant {
    /// What the leader is told, beside the words that all variants have.
    pub(crate) fn leader_args(self) -> [&'static str; 4] {
        ["--verify", self.verify.name(), "--driver", self.driver.name()]
    }
}

/// One of the things that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Client, leader, worker.
    Heft(Variant),
    /// The same bytes through a process that copies from socket to socket.
    Relay,
}

/// Every driver with every way of checking. Those that are compared with each other, drivers with the same check, stand
/// side by side.
pub(crate) fn variants(drivers: Drivers, verifies: Verifies) -> Vec<Variant> {
    let with = |verify: Verify| drivers.all().iter().map(move |driver| Variant { driver: *driver, verify });
    verifies.all().iter().copied().flat_map(with).collect()
}

/// The order in which sides take their turns in a round. Each round begins with the next side, and every other goes
/// through them backwards: nobody is always the first, nor always behind the same one.
pub(crate) fn turns(sides: &[Side], round: u32) -> Vec<Side> {
    let count = sides.len();
    let start = usize::try_from(round).unwrap_or_default().checked_rem(count).unwrap_or_default();
    let onwards = |from: usize| sides.iter().copied().cycle().skip(from).take(count);
    match round.is_multiple_of(2) {
        true => onwards(start).collect(),
        false => onwards(start + 1).collect::<Vec<_>>().into_iter().rev().collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Driver::{Portable, Uring};
    use Verify::{End, Hop};

    fn of(driver: Driver, verify: Verify) -> Variant {
        Variant { driver, verify }
    }

    #[test]
    fn every_driver_is_measured_with_every_check() {
        assert_eq!(variants(Drivers::default(), Verifies::default()), [of(Portable, End)]);
        assert_eq!(variants(Drivers::Uring, Verifies::Hop), [of(Uring, Hop)]);
        assert_eq!(variants(Drivers::Both, Verifies::End), [of(Portable, End), of(Uring, End)]);
        assert_eq!(variants(Drivers::Portable, Verifies::Both), [of(Portable, End), of(Portable, Hop)]);
        let all = [of(Portable, End), of(Uring, End), of(Portable, Hop), of(Uring, Hop)];
        assert_eq!(variants(Drivers::Both, Verifies::Both), all);
    }

    #[test]
    fn a_leader_is_told_its_variant() {
        assert_eq!(of(Portable, End).leader_args(), ["--verify", "end", "--driver", "portable"]);
        assert_eq!(of(Uring, Hop).leader_args(), ["--verify", "hop", "--driver", "uring"]);
    }

    #[test]
    fn two_sides_alternate() {
        let (heft, relay) = (Side::Heft(of(Portable, End)), Side::Relay);
        let rounds = [0, 1, 2, 3].map(|round| turns(&[heft, relay], round));
        assert_eq!(rounds, [[heft, relay], [relay, heft], [heft, relay], [relay, heft]]);
        assert_eq!(turns(&[relay], 3), [relay]);
        assert!(turns(&[], 3).is_empty());
    }

    #[test]
    fn every_side_has_every_place_equally_often() {
        let all: Vec<Side> = variants(Drivers::Both, Verifies::Both).into_iter().map(Side::Heft).collect();
        let with_relay = [&all[..], &[Side::Relay]].concat();
        for sides in [&all[..2], &all[..3], &all[..], &with_relay] {
            let count = sides.len();
            let cycle = if count.is_multiple_of(2) { count } else { 2 * count };
            let rounds: Vec<Vec<Side>> = (0..).take(cycle).map(|round| turns(sides, round)).collect();
            for side in sides {
                for place in 0..count {
                    let times = rounds.iter().filter(|round| round[place] == *side).count();
                    assert_eq!(times, cycle / count, "{side:?} at {place} of {rounds:?}");
                }
            }
            let before = |one: &Side, other: &Side| {
                let place = |round: &[Side], side| round.iter().position(|found| found == side);
                rounds.iter().filter(|round| place(round, one) < place(round, other)).count()
            };
            assert_eq!(before(&sides[0], &sides[1]), cycle / 2, "{rounds:?}");
        }
    }
}
