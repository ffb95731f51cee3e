//! `heft demo`: a leader, two workers and a client on this machine, and what heft is for: a heavy
//! input, a shared dataset, a heavy result, a killed worker, a killed leader, small jobs.
//!
//! `scene` has the processes and files, `acts` what happens; each act checks what it shows.

mod acts;
mod scene;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Context;

use super::exit::{FAILED, Usage};
use super::interrupts::{Interrupt, Stopped, interrupts, wanted};
use super::print;
use super::terminal::wrap;
use crate::units::ByteSize;
use acts::Act;
use scene::Scene;

const EXAMPLES: &str = "Examples:
  heft demo
  heft demo --size 64MiB --jobs 50
  heft demo --keep

It needs /bin/sh and coreutils, and five times --size of disk space in --dir while it runs.
It leaves nothing behind; what a demo that was killed has left, the next one removes.";

/// How long the acts may take before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(300);

/// No line is longer, but for paths: the demo is watched in a terminal.
const COLUMNS: usize = 79;

/// Times the size of the heavy input that the directory needs: the input, the leader's copy, the
/// job's copy, and as much again for the dataset and the result.
const ROOM_FACTOR: u64 = 5;

/// The smallest heavy input: the leader is killed while it is sent.
const SIZE_MIN: u64 = 8 << 20;
const SIZE_MAX: u64 = 64 << 30;

/// Show what heft does: a leader, two workers and a client on this machine, with real jobs
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Size of the heavy input. The dataset has a quarter of it, the result three tenths.
    #[arg(long, default_value = "1GiB", value_name = "SIZE")]
    size: ByteSize,
    /// Number of small jobs.
    #[arg(long, default_value_t = 500, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100_000))]
    jobs: u32,
    /// Directory for the demo's files; a new directory is made in it, and removed at the end.
    #[arg(long, value_name = "DIR", default_value_os_t = std::env::temp_dir())]
    dir: PathBuf,
    /// Keep the leader and the workers running until Ctrl-C, with commands to try.
    #[arg(long)]
    keep: bool,
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    check(args)?;
    super::block_on(async {
        let mut interrupts = interrupts()?;
        let scene = tokio::select! {
            set = Scene::set(&args.dir) => set,
            Some(interrupt) = interrupts.recv() => return Err(stopped(interrupt)),
        };
        let mut scene = scene?;
        let played = tokio::select! {
            played = play(args, &mut scene) => played,
            Some(interrupt) = interrupts.recv() => Err(stopped(interrupt)),
        };
        if args.keep && played.is_ok() {
            // That is how it is meant to end.
            interrupts.recv().await;
        }
        scene.strike().await;
        // What writes a large file looks for signals by itself.
        match (played, wanted()) {
            (Err(_), Some(interrupt)) => Err(stopped(interrupt)),
            (played, _) => played,
        }
    })
}

fn stopped(interrupt: Interrupt) -> anyhow::Error {
    let text = format!(
        "{} ended the demo: its processes have ended, and its files are removed",
        interrupt.name()
    );
    Stopped { interrupt, text, job: None }.into()
}

/// Refuses what cannot work before anything is made.
fn check(args: &DemoArgs) -> Result<(), Usage> {
    let size = args.size.0;
    if !(SIZE_MIN..=SIZE_MAX).contains(&size) {
        return Err(Usage(format!(
            "--size {} is not between {} and {}",
            args.size,
            ByteSize(SIZE_MIN),
            ByteSize(SIZE_MAX)
        )));
    }
    let free = scene::free_bytes(&args.dir)
        .map_err(|error| Usage(format!("cannot use --dir {}: {error}", args.dir.display())))?;
    check_room(args, free)
}

fn check_room(args: &DemoArgs, free: u64) -> Result<(), Usage> {
    let needed = args.size.0.saturating_mul(ROOM_FACTOR);
    if free < needed {
        return Err(Usage(format!(
            "{} has {} free, and the demo needs {}: name another directory with --dir, or a smaller \
             --size than {}",
            args.dir.display(),
            ByteSize(free),
            ByteSize(needed),
            args.size
        )));
    }
    Ok(())
}

async fn play(args: &DemoArgs, scene: &mut Scene) -> anyhow::Result<ExitCode> {
    let began = Instant::now();
    say(&format!(
        "A leader on {}, two workers and a client on this machine.\nFiles in {}.\n",
        scene.addr(),
        scene.root().display()
    ))?;
    let acts = acts::all(args.size.0, args.jobs);
    let (all, mut good) = (acts.len(), 0);
    let beneath = " ".repeat(Act::LABEL_CHARS + 2);
    for act in acts {
        say(&format!("{}  {}", act.label(), act.announcement()))?;
        let left = PATIENCE.saturating_sub(began.elapsed());
        let end = tokio::time::timeout(left, act.play(scene)).await.with_context(|| {
            format!("the demo did not end within {} seconds", PATIENCE.as_secs())
        })??;
        for line in &end.lines {
            say(&wrap(&format!("{beneath}{line}"), COLUMNS))?;
        }
        good += usize::from(end.is_good);
        if !end.is_good {
            say(&format!("{beneath}THAT IS NOT AS IT SHOULD BE"))?;
        }
    }
    say(&format!("\n{good} of {all} went as they should, in {:.1?}.", began.elapsed()))?;
    if args.keep {
        invite(scene)?;
    } else {
        say("`heft demo --keep` leaves the leader and the workers running, with commands to try.")?;
    }
    Ok(if good == all { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

/// Says what can be tried.
fn invite(scene: &Scene) -> anyhow::Result<()> {
    let addr = scene.addr();
    let input = scene.input();
    say(&format!(
        "\nThe leader and the workers go on until Ctrl-C. In another terminal:
  export HEFT_LEADER={addr}
  heft status
  heft submit measure --file {}=input.bin
  heft submit slow -- 30        then, elsewhere: heft explain JOB_ID
  heft dataset ls
  heft submit broken            a program that fails
Programs are in {}.",
        input.display(),
        scene.programs().display()
    ))
}

fn say(line: &str) -> anyhow::Result<()> {
    print(format!("{line}\n").as_bytes()).context("cannot write the demo's output")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_without_room_is_refused_with_both_numbers() {
        let args =
            DemoArgs { size: ByteSize(1 << 30), jobs: 1, dir: "/var/tmp".into(), keep: false };
        assert!(check_room(&args, 5 << 30).is_ok());
        let error = check_room(&args, (5 << 30) - 1).unwrap_err().to_string();
        assert_eq!(
            error,
            "/var/tmp has 4.9 GiB free, and the demo needs 5 GiB: name another directory with --dir, \
             or a smaller --size than 1 GiB"
        );
    }
}
