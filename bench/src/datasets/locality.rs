//! How many bytes jobs have moved to workers that share datasets, by where the leader sends the
//! jobs.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use heft::client::{Client, Options};
use heft::model::{InputFile, JobRequest, JobStatus};
use heft::units::{ByteSize, Span};

use super::Common;
use super::content::{self, Noise};
use super::pool::{Pool, PoolPlan};
use crate::actor::dataset::{How, put};
use crate::report::{LocalityReport, Machine, Placed};
use crate::scratch;

const JOBS: u64 = 200;
const SETS: u64 = 20;
const WORKERS: u32 = 4;
const ROOM: u64 = 8;
const SET_BYTES: u64 = 16 << 20;
const PARALLEL: u32 = 2;

/// The policies unless told otherwise: the one that is judged before the one that it is compared
/// with.
const POLICIES: [&str; 2] = ["locality", "least-load"];

/// The program that jobs run: it takes its time.
const PROGRAM: &str = "rest";

const FILE: &str = "data.bin";
const ORDER_SEED: u64 = 1_000_000;

/// How long the first connection may take, and all jobs.
const CONNECT_MAX: Duration = Duration::from_secs(10);
const JOBS_MAX: Duration = Duration::from_secs(600);

/// What is to be measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct LocalityArgs {
    /// Jobs, each of which needs one dataset.
    #[arg(long, default_value_t = JOBS, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=100_000))]
    jobs: u64,

    /// Datasets, which the leader alone has at first. Each is needed equally often, in an order
    /// that is mixed.
    #[arg(long, default_value_t = SETS, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=10_000))]
    sets: u64,

    /// Bytes of a dataset.
    #[arg(long, default_value_t = ByteSize(SET_BYTES), value_name = "SIZE")]
    size: ByteSize,

    /// Workers.
    #[arg(long, default_value_t = WORKERS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    workers: u32,

    /// Datasets that a worker has room for.
    #[arg(long, default_value_t = ROOM, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    room: u64,

    /// Jobs that a worker runs at a time.
    #[arg(long, default_value_t = PARALLEL, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    parallel: u32,

    /// How long each job runs.
    #[arg(long, default_value_t = Span(Duration::ZERO), value_name = "TIME")]
    job_time: Span,

    /// The leader's policies: the first is compared with the last.
    #[arg(long, default_values_t = POLICIES.map(str::to_owned), value_delimiter = ',', value_name = "NAME")]
    policies: Vec<String>,

    #[command(flatten)]
    common: Common,
}

/// Measures what the arguments say and reports it.
pub(crate) fn run(args: &LocalityArgs) -> anyhow::Result<ExitCode> {
    super::warn_of_debug_build();
    let scratch = scratch::make(args.common.data.as_deref())?;
    let mut placed = Vec::new();
    for policy in &args.policies {
        let found =
            measure(args, policy, scratch.path()).with_context(|| format!("policy {policy}"))?;
        eprintln!("{}", found.line(args.size.0));
        placed.push(found);
    }
    let (jobs, sets, size) = (args.jobs, args.sets, args.size.0);
    let (workers, room) = (args.workers, args.room);
    let report =
        LocalityReport { jobs, sets, size, workers, room, placed, machine: Machine::of_this_run() };
    match args.common.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.table()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all jobs on a new pool whose leader has this policy.
fn measure(args: &LocalityArgs, policy: &str, scratch: &Path) -> anyhow::Result<Placed> {
    // Room for so many datasets and not for one more, whatever little there is beside their bytes.
    let budget = args.size.0.saturating_mul(args.room).saturating_add(args.size.0 / 2);
    let plan = PoolPlan {
        policy: Some(policy.to_owned()),
        parallel: Some(args.parallel),
        counted: true,
        budget: Some(budget),
        ..PoolPlan::new(args.common.variant(), args.workers)
    };
    eprintln!("starting {policy}");
    let mut pool = Pool::start(&plan, &scratch.join(policy))?;
    for dir in pool.exe_dirs() {
        install(&dir, args.job_time.0)
            .with_context(|| format!("cannot make a program in {}", dir.display()))?;
    }
    let path = scratch.join(FILE);
    for set in 0..args.sets {
        content::make(&path, args.size.0, set)?;
        let how = How { wait: None, replace: false, at_leader: true };
        put(pool.port(), &cache_id(set), &path, how)
            .with_context(|| format!("putting set {set}"))?;
    }
    let before: u64 = pool.passed().iter().map(|passed| passed.down).sum();
    let began = Instant::now();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let jobs = order(args.jobs, args.sets);
    runtime.block_on(async {
        let ended = tokio::time::timeout(JOBS_MAX, run_jobs(pool.port(), &jobs)).await;
        ended.with_context(|| format!("the jobs have not ended after {} s", JOBS_MAX.as_secs()))?
    })?;
    let took = began.elapsed();
    pool.check_alive()?;
    let moved: u64 = pool.passed().iter().map(|passed| passed.down).sum();
    Ok(Placed { policy: policy.to_owned(), moved: moved.saturating_sub(before), took })
}

fn install(dir: &Path, time: Duration) -> std::io::Result<()> {
    std::fs::create_dir_all(dir)?;
    let path = dir.join(PROGRAM);
    let rest = if time.is_zero() {
        "exit 0".to_owned()
    } else {
        format!("exec sleep {}", time.as_secs_f64())
    };
    std::fs::write(&path, format!("#!/bin/sh\n{rest}\n"))?;
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755))
}

fn cache_id(set: u64) -> String {
    format!("bench-set-{set}")
}

/// Which dataset each job needs: all of them equally often, mixed, and the same in every run.
fn order(jobs: u64, sets: u64) -> Vec<u64> {
    let mut order: Vec<u64> = (0..jobs).map(|job| job % sets.max(1)).collect();
    let mut noise = Noise::new(ORDER_SEED);
    for last in (1..order.len()).rev() {
        let other = usize::try_from(noise.below(last as u64 + 1)).unwrap_or_default();
        order.swap(last, other);
    }
    order
}

async fn run_jobs(port: u16, sets: &[u64]) -> anyhow::Result<()> {
    let options = Options {
        connect_wait: Some(CONNECT_MAX),
        desired: u32::MAX,
        ..Options::new("bench-locality")
    };
    let client = Client::connect(&format!("127.0.0.1:{port}"), &options).await?;
    let mut running = Vec::new();
    for set in sets {
        let cache_id = Some(cache_id(*set));
        let file = InputFile { name: FILE.to_owned(), cache_id, ..InputFile::default() };
        let exec_name = PROGRAM.to_owned();
        let request = JobRequest { exec_name, files: vec![file], ..JobRequest::default() };
        running.push(client.submit(request).await?);
    }
    for mut job in running {
        let result = job.wait().await?;
        if result.status != JobStatus::Ok {
            bail!("a job ended {}: {}", result.status.as_str(), result.stderr);
        }
    }
    client.close().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_set_is_needed_equally_often_in_a_mixed_order() {
        let order = order(200, 20);
        for set in 0..20 {
            assert_eq!(order.iter().filter(|found| **found == set).count(), 10);
        }
        assert!(
            order.windows(2).filter(|pair| pair[1] == (pair[0] + 1) % 20).count() < 40,
            "{order:?}"
        );
        assert_eq!(order, super::order(200, 20));
    }
}
