//! heft's load generator: it measures heft and, in the same run, the raw relay that heft is
//! compared with.
//!
//! `docs/benchmarks.md` has the method. One process of this program is the director: it starts the
//! others, which are the same program under the hidden commands `leader` and `actor`, tells them
//! what to do round by round, and writes the report.

#![forbid(unsafe_code)]

mod actor;
mod args;
mod control;
mod datasets;
mod director;
mod disk;
mod gate;
mod latency;
mod load;
mod process;
mod recovery;
mod report;
mod scratch;
mod status;
mod usage;
mod variant;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use heft::cli::leader::LeaderArgs;
use heft::cli::worker::{LaunchArgs, WorkerArgs};
use heft::worker::exec::LAUNCH;
use tracing::level_filters::LevelFilter;

use actor::Role;
use args::{BenchArgs, Workload};
use datasets::delta::DeltaArgs;
use datasets::fanout::FanoutArgs;
use datasets::locality::LocalityArgs;
use recovery::RecoveryArgs;

/// Measures heft, or several variants of its leader, against a raw relay of the same bytes, in
/// interleaved rounds
#[derive(Parser)]
#[command(name = "heft-bench", version, after_help = args::EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Inputs from a client through the leader to a worker, until the worker's answer is back
    Push(BenchArgs),
    /// Small jobs there and back
    Roundtrip(BenchArgs),
    /// Small jobs from many clients at a time, as many as the leader takes
    Submit(BenchArgs),
    /// Results from a worker through the leader to a client
    Result(BenchArgs),
    /// Small jobs on connections of their own while large ones flow
    Mixed(BenchArgs),
    /// How long a leader takes to begin where another ended, and the memory it then has
    Recovery(RecoveryArgs),
    /// One dataset of files to several workers, until it is known that all of them have it
    Fanout(FanoutArgs),
    /// A dataset that is put, put again, and put when parts of it have changed: which share of it
    /// moves
    Delta(DeltaArgs),
    /// Jobs that share datasets, placed by what workers hold and without that: how many bytes move
    Locality(LocalityArgs),
    /// The leader that is measured: `heft leader` itself
    #[command(hide = true)]
    Leader(LeaderArgs),
    /// A worker that is measured: `heft worker` itself
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// What it starts programs through
    #[command(name = LAUNCH, hide = true)]
    Launch(LaunchArgs),
    /// One of the other processes
    #[command(hide = true)]
    Actor {
        /// Which, as JSON.
        role: Role,
    },
}

fn main() -> ExitCode {
    heft::cli::log_to_stderr(LevelFilter::WARN);
    let ended = match Cli::parse().command {
        Command::Push(args) => director::run(Workload::Push, &args),
        Command::Roundtrip(args) => director::run(Workload::Roundtrip, &args),
        Command::Submit(args) => director::run(Workload::Submit, &args),
        Command::Result(args) => director::run(Workload::Result, &args),
        Command::Mixed(args) => director::run(Workload::Mixed, &args),
        Command::Recovery(args) => recovery::run(&args),
        Command::Fanout(args) => datasets::fanout::run(&args),
        Command::Delta(args) => datasets::delta::run(&args),
        Command::Locality(args) => datasets::locality::run(&args),
        Command::Leader(args) => {
            control::end_with_the_director();
            heft::cli::leader::run(&args)
        }
        Command::Worker(args) => {
            control::end_with_the_director();
            heft::cli::worker::run(&args)
        }
        Command::Launch(args) => Ok(heft::cli::worker::launch(&args)),
        Command::Actor { role } => Ok(actor::run(role)),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("heft-bench: {error:#}");
        ExitCode::FAILURE
    })
}
