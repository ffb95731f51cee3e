//! The tail of a member of a cluster, over a disk that loses what was not synced, tears what was
//! being written and fails, seeded; and what becomes of damaged, missing and foreign files.
//!
//! A node of a kind votes, receives records, replaces some and commits others. It is killed, or the
//! power goes, in the middle of anything, recovery too. What it was told is safe has to be there
//! again, and nothing else. A failure prints its seed: `HEFT_SIM_SEED=n scripts/test store_tail`
//! replays it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

#[path = "store_tail/damage.rs"]
mod damage;
#[path = "support/log_records.rs"]
mod log_records;
#[path = "store_tail/node.rs"]
mod node;
#[path = "store_tail/plain.rs"]
mod plain;
#[path = "support/sim_disk.rs"]
mod sim_disk;
mod support;

use heft::core::retry::mix;
use node::{Coverage, World};
use support::scaled;

/// Runs worlds with these seeds, or the one that is asked for.
fn run_seeds(count: u64, mut run: impl FnMut(u64) -> Coverage) -> (Coverage, bool) {
    let mut coverage = Coverage::default();
    let asked = std::env::var("HEFT_SIM_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    let seeds = asked.map_or(0..count, |seed| seed..seed + 1);
    for seed in seeds {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        match ran {
            Ok(seen) => coverage.add(&seen),
            Err(panic) => {
                eprintln!("seed {seed}: HEFT_SIM_SEED={seed} scripts/test store_tail");
                std::panic::resume_unwind(panic);
            }
        }
    }
    (coverage, asked.is_none())
}

#[test]
fn what_was_said_to_be_safe_is_there_again_and_nothing_that_was_replaced() {
    let (coverage, whole) = run_seeds(scaled(300, 20_000).into(), |seed| {
        let mut world = World::new(seed);
        world.run(6);
        world.seen
    });
    println!("{coverage:?}");
    assert!(!whole || coverage.missing().is_empty(), "never happened: {:?}", coverage.missing());
}

/// One life without a fault, then the same again and again, stopped at each moment at which more
/// becomes certain.
#[test]
fn stopped_at_every_sync_and_rename_of_a_life_and_again_in_recovery_nothing_is_lost() {
    let mut points = 0;
    run_seeds(scaled(4, 60).into(), |seed| {
        let mut whole = World::new(seed);
        whole.live_once(30);
        for (op, is_done) in
            whole.disk.points().into_iter().flat_map(|op| [(op, false), (op, true)])
        {
            let mut world = World::new(seed);
            world.disk.crash_at(op, is_done);
            world.live_once(30);
            assert!(world.disk.is_dead(), "the same seed comes by operation {op} again");
            world.random = sim_disk::Random(mix(seed ^ op << 20 ^ u64::from(is_done)));
            world.die();
            if world.random.chance(50) {
                let ops = world.random.below(30);
                world.disk.crash_in(Some(ops));
                drop(world.open());
                world.die();
            }
            world.open().expect("it opens");
            points += 1;
        }
        whole.seen
    });
    println!("stopped {points} times");
    assert!(points > 100, "{points}");
}
