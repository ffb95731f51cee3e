//! How long a leader takes to begin where an earlier one ended, and what it then holds in memory:
//! with many small jobs in its log, with a snapshot of them, and with large blobs beside them.

mod data;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use heft::units::ByteSize;

use crate::actor::{HeftWorker, Role};
use crate::args::Sink;
use crate::process::Actor;
use crate::report::{Machine, Ran, RecoveryReport, Start, Started};
use crate::scratch;
use crate::status;
use crate::variant::{Driver, Durability, Variant, Verify};

/// Whose jobs they are: the name of the program and of the workers' group.
const GROUP: &str = "bench";

const COUNT: u64 = 1_000_000;
const BLOB_BYTES: u64 = 8 << 30;
const STARTS: u32 = 3;

/// How long a start may take, and how long the jobs that are run.
const START_MAX: Duration = Duration::from_secs(600);
const RUN_MAX: Duration = Duration::from_secs(120);

/// Jobs that the worker has at a time, and how often it is asked how far it is.
const PARALLEL: u32 = 64;
const ASK_EVERY: Duration = Duration::from_millis(100);

/// The leader that is measured: it has its disk, and nothing else is asked of it.
const VARIANT: Variant =
    Variant { driver: Driver::Portable, verify: Verify::End, durability: Durability::Disk };

/// What is to be measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct RecoveryArgs {
    /// Jobs that wait in the queue.
    #[arg(long, default_value_t = COUNT, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: u64,

    /// Bytes of each job's request.
    #[arg(long, default_value = "1KiB", value_name = "SIZE")]
    size: ByteSize,

    /// Bytes of large inputs beside them, in files with holes; 0 for none.
    #[arg(long, default_value_t = ByteSize(BLOB_BYTES), value_name = "SIZE")]
    blob_bytes: ByteSize,

    /// Jobs that a worker runs in the end, to show that they are there; 0 for none.
    #[arg(long, default_value_t = 1_000, value_name = "N")]
    run: u64,

    /// Starts of each kind, of which the median is told.
    #[arg(long, default_value_t = STARTS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    rounds: u32,

    /// Where the data directory is, in a directory that is removed at the end. Default: beside this
    /// program.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Print the report as one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// Measures what the arguments say and reports it.
pub(crate) fn run(args: &RecoveryArgs) -> anyhow::Result<ExitCode> {
    if cfg!(debug_assertions) {
        eprintln!(
            "heft-bench: this is a debug build, its figures mean nothing: use cargo run --release"
        );
    }
    let scratch = scratch::make(args.data.as_deref())?;
    let (empty, full) = (scratch.path().join("empty"), scratch.path().join("full"));
    let mut starts = vec![measure("nothing", args.rounds, &empty, 0)?];
    eprintln!("making {} jobs", args.count);
    let began = Instant::now();
    data::queue(&full, args.count, args.size.0)?;
    eprintln!("made {} jobs in {:.1} s", args.count, began.elapsed().as_secs_f64());
    starts.push(measure("log", args.rounds, &full, 0)?);
    let began = Instant::now();
    if let Some(bytes) = data::snapshot(&full)? {
        let took = began.elapsed().as_secs_f64();
        eprintln!("made a snapshot of {} in {took:.1} s", ByteSize(bytes));
        starts.push(measure("snapshot and log", args.rounds, &full, 0)?);
    }
    if args.blob_bytes.0 > 0 {
        let blobs = data::add_blobs(&full, args.blob_bytes.0)?;
        eprintln!("made {blobs} blobs of {} in all", args.blob_bytes);
        starts.push(measure("the same and blobs", args.rounds, &full, args.blob_bytes.0)?);
    }
    let ran = match args.run.min(args.count) {
        0 => None,
        jobs => Some(run_jobs(&full, scratch.path(), jobs)?),
    };
    let (count, size) = (args.count, args.size.0);
    let report = RecoveryReport { count, size, starts, ran, machine: Machine::of_this_run() };
    match args.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.table()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts a leader with this data so many times.
fn measure(name: &'static str, rounds: u32, data: &Path, blob_bytes: u64) -> anyhow::Result<Start> {
    let mut all = Vec::new();
    for number in 1..=rounds {
        let started = start(data).with_context(|| format!("start {number} with {name}"))?;
        eprintln!("start {number}/{rounds} with {name}: {}", started.line());
        all.push(started);
    }
    Ok(Start { name, log_bytes: data::log_bytes(data)?, blob_bytes, all })
}

/// Starts a leader, and looks at it when it answers.
fn start(data: &Path) -> anyhow::Result<Started> {
    data::forget_pages(data)?;
    let began = Instant::now();
    let (leader, port) = Actor::start_leader_within(VARIANT, data, START_MAX)?;
    let listens = began.elapsed();
    let status = status::ask(port, START_MAX)?;
    let answers = began.elapsed();
    let jobs = status.jobs.queued;
    if jobs != status.leader.recovered_jobs {
        bail!("the leader recovered {jobs} jobs and says otherwise: {status:?}");
    }
    Ok(Started { listens, answers, jobs, rss: leader.rss()?, rss_peak: leader.rss_peak()? })
}

/// Starts the leader once more, with a worker that runs so many of the jobs.
fn run_jobs(data: &Path, scratch: &Path, jobs: u64) -> anyhow::Result<Ran> {
    let (leader, port) = Actor::start_leader_within(VARIANT, data, START_MAX)?;
    status::ask(port, START_MAX)?;
    let role = HeftWorker {
        port,
        group: GROUP.to_owned(),
        parallel: PARALLEL,
        sink: Sink::Drop,
        scratch: scratch.to_owned(),
    };
    let began = Instant::now();
    let (worker, _) = Actor::start("worker", &Role::HeftWorker(role))?;
    loop {
        let status = status::ask(port, START_MAX)?;
        let (done, took) = (status.jobs.done, began.elapsed());
        if status.jobs.dead > 0 {
            bail!("jobs of the earlier leader cannot be run: {status:?}");
        }
        if done >= jobs {
            drop(worker);
            return Ok(Ran { jobs: done, took, rss_peak: leader.rss_peak()? });
        }
        if took > RUN_MAX {
            bail!("{done} of {jobs} jobs were run in {} s: something is stuck", took.as_secs());
        }
        std::thread::sleep(ASK_EVERY);
    }
}
