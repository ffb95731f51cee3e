//! Everything at once: a leader with default flags, three heft workers, two classic ones and one of
//! the first generation, six clients of all kinds, and at random moments kill -9, SIGSTOP, lines
//! that are cut, stalled, throttled or dead, and full disks. After each round every job that was
//! acknowledged has exactly one right result or a clear failure that follows from what was done,
//! and nothing is left behind.
//!
//! `HEFT_TEST_SCALE=long` makes 300 rounds of 10. `HEFT_CHAOS_SEED` replays the plans of a run,
//! `HEFT_CHAOS_FROM` and `HEFT_CHAOS_ROUNDS` a part of it; `HEFT_CHAOS_ONLY=KillLeader,Stall` does
//! only such harm.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::unreachable,
    unreachable_pub
)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "chaos/check.rs"]
mod check;
#[path = "chaos/clients.rs"]
mod clients;
#[path = "../src/noise.rs"]
mod noise;
#[path = "chaos/plan.rs"]
mod plan;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
#[path = "chaos/relay.rs"]
mod relay;
#[path = "chaos/scene.rs"]
mod scene;
mod support;
#[path = "chaos/work.rs"]
mod work;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use clients::Reports;
use plan::{Harm, Plan};
use scene::Scene;
use support::scaled;
use uuid::Uuid;

/// Rounds that one scene serves.
const ROUNDS_OF_A_SCENE: u32 = 10;

/// Scenes that run beside each other: most of a round is waiting.
const LANES: u32 = 3;

/// Set in the process that has namespaces of its own.
const INSIDE: &str = "HEFT_CHAOS_INSIDE";

#[test]
fn every_acknowledged_job_ends_once_and_right_and_nothing_is_left_behind() {
    let can_fill = match std::env::var(INSIDE) {
        Ok(_) => true,
        Err(_) => match in_namespaces() {
            Some(is_ok) => {
                assert!(is_ok, "see above");
                return;
            }
            None => {
                println!("no namespaces of its own can be had here: disks are not filled");
                false
            }
        },
    };
    rounds(can_fill);
}

/// Runs this test in namespaces of its own, where it may mount disks that it fills, and where all
/// processes end with it. `None` where that cannot be had.
fn in_namespaces() -> Option<bool> {
    let kinds: [&[&str]; 2] = [&["-m", "-p"], &["-U", "-r", "-m", "-p"]];
    let rest = ["--fork", "--kill-child", "--mount-proc", "--propagation", "private", "--"];
    // `unshare` ignores the signal by which a test is ended, and goes only with whoever started it.
    let unshare = |kind: &[&str]| {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "unshare"]).args(kind).args(rest);
        command
    };
    let can = |kind: &&&[&str]| {
        let mut command = unshare(kind);
        command.args(["sh", "-c", "mount -t tmpfs -o size=1m chaos /mnt"]);
        command.output().is_ok_and(|output| output.status.success())
    };
    let kind = kinds.iter().find(can)?;
    let mut command = unshare(kind);
    command.arg(std::env::current_exe().unwrap());
    let name = std::thread::current().name().unwrap().to_owned();
    command.args(["--exact", &name, "--nocapture"]).env(INSIDE, "1");
    Some(command.status().unwrap().success())
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable} is {text:?}; it is to be a number")))
}

fn rounds(can_fill: bool) {
    let seed = number("HEFT_CHAOS_SEED").unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0 >> 16);
    let from = number("HEFT_CHAOS_FROM").map_or(0, |from| u32::try_from(from).unwrap());
    let count = number("HEFT_CHAOS_ROUNDS").map(|count| u32::try_from(count).unwrap());
    let until = from + count.unwrap_or_else(|| scaled(10, 300));
    println!("HEFT_CHAOS_SEED={seed}, rounds {from} to {}", until - 1);
    let has_failed = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for lane in 0..LANES {
            let mine = (from..until).filter(move |number| number % LANES == lane);
            let has_failed = &has_failed;
            scope.spawn(move || one_behind_the_other(seed, mine, can_fill, has_failed));
        }
    });
}

/// Tells the other lanes that this one failed.
struct Guard<'a>(&'a AtomicBool);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

/// Some of the rounds, until one fails, here or elsewhere.
fn one_behind_the_other(
    seed: u64,
    rounds: impl Iterator<Item = u32>,
    can_fill: bool,
    has_failed: &AtomicBool,
) {
    let _guard = Guard(has_failed);
    let mut scene: Option<(PathBuf, Scene)> = None;
    for (place, number) in (0..).zip(rounds) {
        if place % ROUNDS_OF_A_SCENE == 0 {
            end(scene.take());
        }
        if has_failed.load(Ordering::Relaxed) {
            break;
        }
        let (dir, scene) = scene.get_or_insert_with(|| {
            let dir = std::env::temp_dir().join(format!("heft-chaos-{}", Uuid::new_v4().simple()));
            (dir.clone(), Scene::start(dir, can_fill))
        });
        let plan = Arc::new(Plan::new(seed, number, can_fill));
        let started = Instant::now();
        match round(scene, &plan) {
            Ok(measures) => {
                let seconds = started.elapsed().as_secs_f64();
                println!("round {number}: {:?}\n    {seconds:.1} s; {measures}", plan.faults);
            }
            Err(why) => {
                let state = state(scene, &plan, dir);
                panic!(
                    "round {number} with HEFT_CHAOS_SEED={seed}: {why}\n\nthe plan: {plan:?}\n\n{state}\n\nAll logs are \
                     in {}",
                    dir.display()
                );
            }
        }
        std::fs::remove_dir_all(dir.join("clients")).unwrap();
    }
    end(scene.take());
}

fn end(scene: Option<(PathBuf, Scene)>) {
    if let Some((dir, scene)) = scene {
        drop(scene);
        std::fs::remove_dir_all(dir).unwrap();
    }
}

fn round(scene: &mut Scene, plan: &Arc<Plan>) -> Result<String, String> {
    let clients = clients::start(&scene.shared, plan);
    let begun = Instant::now();
    let mut steps: Vec<(u64, bool, Harm)> = Vec::new();
    for fault in &plan.faults {
        steps.push((fault.at_ms, true, fault.harm));
        steps.push((fault.at_ms + fault.harm.lasts_ms(), false, fault.harm));
    }
    steps.sort_by_key(|(at_ms, ..)| *at_ms);
    for (at_ms, begins, harm) in steps {
        while begun.elapsed() < Duration::from_millis(at_ms) {
            scene.supervise();
            std::thread::sleep(Duration::from_millis(5));
        }
        if begins { scene.begin(harm) } else { scene.end(harm) }
    }
    let until = Instant::now() + check::patience();
    while !clients.iter().all(|client| client.is_finished()) {
        scene.supervise();
        if Instant::now() > until {
            let waiting: Vec<_> = plan::CLIENTS
                .iter()
                .zip(&clients)
                .filter(|(_, client)| !client.is_finished())
                .collect();
            return Err(format!("clients wait without end: {waiting:?}"));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut reports = Reports::default();
    for client in clients {
        let known = client.join().map_err(|_| "a client panicked, see above".to_owned())?;
        reports.jobs.extend(known.jobs);
        reports.opaque.extend(known.opaque);
    }
    check::check(scene, plan, &reports)
}

/// What everybody says at the end of a round that failed, and what lies on the disks, which go with
/// this process.
fn state(scene: &Scene, plan: &Plan, dir: &Path) -> String {
    let mut text = match scene.status() {
        None => "the leader does not answer\n".to_owned(),
        Some(status) => format!("status: {status:#}\n"),
    };
    for work in plan.library.iter().chain(&plan.classic).chain(&plan.leaver) {
        let (code, out, _) =
            procs::heft(&["explain", &scene.shared.leader(), &work.job.to_string()]);
        // Of those that have ended nothing is to be explained.
        if code == Some(0) {
            text += &format!("\n--- explain {}\n{out}", work.job);
        }
    }
    for disk in [scene.data_dir(), scene.work_dir()] {
        Command::new("cp").arg("-r").arg(disk).arg(dir.join("logs")).status().ok();
    }
    let logs = std::fs::read_dir(dir.join("logs")).unwrap().flatten().map(|entry| entry.path());
    let mut logs: Vec<PathBuf> = logs.filter(|path| path.is_file()).collect();
    logs.sort();
    for log in logs {
        let said = String::from_utf8_lossy(&std::fs::read(&log).unwrap()).into_owned();
        let lines: Vec<&str> = said.lines().collect();
        text += &format!("\n--- {}\n", log.display());
        for line in &lines[lines.len().saturating_sub(40)..] {
            text.extend(line.chars().take(300));
            text.push('\n');
        }
    }
    text
}
