//! What is measured in one run: variants of heft's leader, each with processes of its own, the
//! relay, and the disk alone.

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

/// What outlives the leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Durability {
    Memory,
    Disk,
}

impl Durability {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Durability::Memory => "memory",
            Durability::Disk => "disk",
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

/// Durabilities to measure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Durabilities {
    /// nothing outlives the leader
    #[default]
    Memory,
    /// what was acknowledged is on the disk, the leader's own default
    Disk,
    /// each of them, in turns
    Both,
}

impl Durabilities {
    fn all(self) -> &'static [Durability] {
        match self {
            Durabilities::Memory => &[Durability::Memory],
            Durabilities::Disk => &[Durability::Disk],
            Durabilities::Both => &[Durability::Memory, Durability::Disk],
        }
    }
}

/// A way to run heft's leader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Variant {
    pub(crate) driver: Driver,
    pub(crate) verify: Verify,
    pub(crate) durability: Durability,
}

impl Variant {
    /// What the leader is told, beside the words that all variants have.
    pub(crate) fn leader_args(self) -> [&'static str; 6] {
        let [verify, driver] = [self.verify.name(), self.driver.name()];
        ["--verify", verify, "--driver", driver, "--durability", self.durability.name()]
    }

    /// What it is called among others. One that keeps nothing has the name that it had before there
    /// was anything else.
    pub(crate) fn label(self) -> String {
        let kept = match self.durability {
            Durability::Memory => "",
            Durability::Disk => "-disk",
        };
        format!("heft-{}-{}{kept}", self.driver.name(), self.verify.name())
    }
}

/// One of the things that are measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Client, leader, worker.
    Heft(Variant),
    /// The same bytes through a process that copies from socket to socket.
    Relay,
    /// Bytes written to the disk by nobody but the bench.
    Disk,
}

/// Every driver with every way of checking and every durability. Those that are compared with each
/// other stand side by side, or near.
pub(crate) fn variants(
    drivers: Drivers,
    verifies: Verifies,
    durabilities: Durabilities,
) -> Vec<Variant> {
    let mut variants = Vec::new();
    for verify in verifies.all().iter().copied() {
        for driver in drivers.all().iter().copied() {
            let kept = durabilities.all().iter();
            variants.extend(kept.map(|durability| Variant {
                driver,
                verify,
                durability: *durability,
            }));
        }
    }
    variants
}

/// The order in which sides take their turns in a round. Each round begins with the next side, and
/// every other goes through them backwards: nobody is always the first, nor always behind the same
/// one.
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
        Variant { driver, verify, durability: Durability::Memory }
    }

    fn on_disk(driver: Driver, verify: Verify) -> Variant {
        Variant { durability: Durability::Disk, ..of(driver, verify) }
    }

    fn in_memory(drivers: Drivers, verifies: Verifies) -> Vec<Variant> {
        variants(drivers, verifies, Durabilities::default())
    }

    #[test]
    fn every_driver_is_measured_with_every_check() {
        assert_eq!(in_memory(Drivers::default(), Verifies::default()), [of(Portable, End)]);
        assert_eq!(in_memory(Drivers::Uring, Verifies::Hop), [of(Uring, Hop)]);
        assert_eq!(in_memory(Drivers::Both, Verifies::End), [of(Portable, End), of(Uring, End)]);
        assert_eq!(
            in_memory(Drivers::Portable, Verifies::Both),
            [of(Portable, End), of(Portable, Hop)]
        );
        let all = [of(Portable, End), of(Uring, End), of(Portable, Hop), of(Uring, Hop)];
        assert_eq!(in_memory(Drivers::Both, Verifies::Both), all);
    }

    #[test]
    fn what_is_kept_is_measured_beside_what_is_not() {
        let disk = variants(Drivers::Portable, Verifies::Hop, Durabilities::Disk);
        assert_eq!(disk, [on_disk(Portable, Hop)]);
        let both = variants(Drivers::Both, Verifies::Hop, Durabilities::Both);
        assert_eq!(
            both,
            [of(Portable, Hop), on_disk(Portable, Hop), of(Uring, Hop), on_disk(Uring, Hop)]
        );
        assert_eq!(variants(Drivers::Both, Verifies::Both, Durabilities::Both).len(), 8);
    }

    #[test]
    fn a_leader_is_told_its_variant() {
        assert_eq!(
            of(Portable, End).leader_args(),
            ["--verify", "end", "--driver", "portable", "--durability", "memory"]
        );
        assert_eq!(
            on_disk(Uring, Hop).leader_args(),
            ["--verify", "hop", "--driver", "uring", "--durability", "disk"]
        );
    }

    #[test]
    fn the_disk_is_in_the_name_and_memory_is_not() {
        assert_eq!(of(Portable, End).label(), "heft-portable-end");
        assert_eq!(on_disk(Uring, Hop).label(), "heft-uring-hop-disk");
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
        let all: Vec<Side> =
            in_memory(Drivers::Both, Verifies::Both).into_iter().map(Side::Heft).collect();
        let with_relay = [&all[..], &[Side::Relay]].concat();
        let with_disk = [&with_relay[..], &[Side::Disk]].concat();
        for sides in [&all[..2], &all[..3], &all[..], &with_relay, &with_disk] {
            let count = sides.len();
            let cycle = if count.is_multiple_of(2) { count } else { 2 * count };
            let rounds: Vec<Vec<Side>> =
                (0..).take(cycle).map(|round| turns(sides, round)).collect();
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
