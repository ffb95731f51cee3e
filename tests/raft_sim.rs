//! The consensus engine alone, in worlds of one to seven nodes over virtual time, seeded.
//!
//! Links lose, delay, repeat and reorder messages, and are cut, one way, too. Nodes pause, lose
//! power with what their disks have not synced, and start again. Members come, are promoted,
//! demoted, replaced and removed; logs are compacted, and those who lag get snapshots; the office
//! is handed over. Every message goes through the frames that carry it. Every fourth world begins
//! with the log of a leader without a cluster.
//!
//! What must hold is checked with every step; once the faults stop, all members have to agree soon.
//! A failure prints its seed: `HEFT_RAFT_SEED=n scripts/test raft_sim` replays it. With the feature
//! `bugs`, defects are planted, and each must be found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

#[path = "raft_sim/admin.rs"]
mod admin;
#[path = "raft_sim/coverage.rs"]
mod coverage;
#[path = "raft_sim/disk.rs"]
mod disk;
#[path = "raft_sim/history.rs"]
mod history;
#[path = "raft_sim/node.rs"]
mod node;
#[path = "raft_sim/world.rs"]
mod world;

mod support;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use coverage::Coverage;
use heft::consensus::planted::Planted;
use support::scaled;
use world::World;

/// Runs one world. What is wrong with it is the error.
fn run(seed: u64, planted: Planted) -> Result<Coverage, String> {
    let run = AssertUnwindSafe(|| World::new(seed, planted).run());
    catch_unwind(run).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("panic: {}", text.unwrap_or_default()))
    })
}

#[test]
fn all_nodes_agree_in_every_world() {
    if let Ok(seed) = std::env::var("HEFT_RAFT_SEED") {
        let seed = seed.parse().expect("HEFT_RAFT_SEED is a number");
        println!("{}", run(seed, Planted::default()).expect("the world holds"));
        return;
    }
    let seeds = u64::from(scaled(400, 50_000));
    let (next, all) = (AtomicU64::new(0), Mutex::new(Coverage::default()));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds {
                        return;
                    }
                    match run(seed, Planted::default()) {
                        Ok(coverage) => all.lock().unwrap().add(&coverage),
                        Err(error) => {
                            next.store(seeds, Ordering::Relaxed);
                            panic!("HEFT_RAFT_SEED={seed} scripts/test raft_sim: {error}");
                        }
                    }
                }
            });
        }
    });
    let all = all.into_inner().unwrap();
    println!("{seeds} worlds\n{all}");
    assert_eq!(all.never(), Vec::<&str>::new(), "these never happened, so they are not tested");
}

#[cfg(feature = "bugs")]
#[test]
fn planted_bugs_are_found() {
    use heft::consensus::planted::Bug;

    // A world that fails panics in many places; one line for each bug is enough.
    std::panic::set_hook(Box::new(|_| {}));
    let mut missed = Vec::new();
    for bug in Bug::ALL {
        let found = (0..2_000)
            .find_map(|seed| run(seed, Planted::with(bug)).err().map(|error| (seed, error)));
        match found {
            Some((seed, error)) => println!("{bug:?}: seed {seed}: {error}"),
            None => missed.push(bug),
        }
    }
    drop(std::panic::take_hook());
    assert_eq!(missed, Vec::new());
}
