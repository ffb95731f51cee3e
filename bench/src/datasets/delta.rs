//! How much of a dataset moves when it is put again, and when parts of it have changed.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context as _, bail};
use clap::Args;
use heft::units::ByteSize;
use sha2::{Digest as _, Sha256};

use super::Common;
use super::content::{self, Noise};
use super::pool::{Pool, PoolPlan};
use crate::actor::dataset::{How, put};
use crate::gate::Gate;
use crate::report::{DeltaReport, DeltaStep, Machine};
use crate::scratch;

const SIZE: u64 = 1 << 30;
const RUNS: u64 = 10;
const RUN_BYTES: u64 = 1 << 20;
const INSERTS: u64 = 3;

/// Bytes that are inserted at a place.
const INSERT_BYTES: u64 = 100;

/// Seeds of the dataset and of what changes in it.
const SET_SEED: u64 = 1;
const CHANGE_SEED: u64 = 2;

const CACHE_ID: &str = "bench-delta";
const FILE: &str = "data.bin";

/// What is to be measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct DeltaArgs {
    /// Bytes of the dataset, which is one file.
    #[arg(long, default_value_t = ByteSize(SIZE), value_name = "SIZE")]
    size: ByteSize,

    /// Workers that are to have it.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=32))]
    workers: u32,

    /// Runs of bytes that are overwritten in the second version.
    #[arg(long, default_value_t = RUNS, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000))]
    runs: u64,

    /// Bytes of each.
    #[arg(long, default_value_t = ByteSize(RUN_BYTES), value_name = "SIZE")]
    run_bytes: ByteSize,

    /// Places where 100 bytes are inserted.
    #[arg(long, default_value_t = INSERTS, value_name = "N", value_parser = clap::value_parser!(u64).range(0..=1_000))]
    inserts: u64,

    #[command(flatten)]
    common: Common,
}

/// Measures what the arguments say and reports it.
pub(crate) fn run(args: &DeltaArgs) -> anyhow::Result<ExitCode> {
    super::warn_of_debug_build();
    let edits = edits(args.size.0, args.runs, args.run_bytes.0, args.inserts)?;
    let scratch = scratch::make(args.common.data.as_deref())?;
    let plan = PoolPlan { counted: true, ..PoolPlan::new(args.common.variant(), args.workers) };
    let pool = Pool::start(&plan, &scratch.path().join("heft"))?;
    let gate = Gate::open(pool.port(), None)?;
    let path = scratch.path().join(FILE);
    content::make(&path, args.size.0, SET_SEED)?;
    let mut bench = Bench { pool, gate, path: &path };
    let mut steps = vec![bench.step("put", false)?, bench.step("put again", false)?];
    let changed = scratch.path().join("changed.bin");
    change(&path, &changed, &edits)?;
    std::fs::rename(&changed, &path)?;
    steps.push(bench.step("put changed", true)?);
    let changed_bytes = edits.iter().map(|edit| edit.put.len() as u64).sum();
    let rss_peak = bench.pool.leader().rss_peak()?;
    drop(bench);
    let (size, workers, machine) = (args.size.0, args.workers, Machine::of_this_run());
    let report = DeltaReport { size, workers, changed_bytes, steps, rss_peak, machine };
    match args.common.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.table()),
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench<'a> {
    pool: Pool,
    gate: Gate,
    path: &'a Path,
}

impl Bench<'_> {
    /// Puts the file as it is, and looks at what every worker then has.
    fn step(&mut self, name: &'static str, replace: bool) -> anyhow::Result<DeltaStep> {
        let (client, workers) = (self.gate.passed(), self.pool.passed());
        let began = Instant::now();
        let how = How { wait: None, replace, at_leader: false };
        let report =
            put(self.gate.port(), CACHE_ID, self.path, how).with_context(|| name.to_owned())?;
        let took = began.elapsed();
        if !report.enough {
            bail!("{name}: not all workers have the dataset: {:?}", report.acks);
        }
        self.pool.check_alive()?;
        let wanted = hash(self.path)?;
        for cached in self.pool.cached(CACHE_ID, FILE) {
            if hash(&cached)? != wanted {
                bail!("{name}: {} is not what was put", cached.display());
            }
        }
        let from_client = self.gate.passed().since(&client).up;
        let passed = self.pool.passed();
        let to_workers =
            passed.iter().zip(&workers).map(|(after, before)| after.since(before).down);
        let step = DeltaStep { name, took, from_client, to_workers: to_workers.collect() };
        eprintln!("{}", step.line());
        Ok(step)
    }
}

fn hash(path: &Path) -> anyhow::Result<[u8; 32]> {
    let failed = || format!("cannot read {}", path.display());
    let mut file = File::open(path).with_context(failed)?;
    let (mut hasher, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer).with_context(failed)? {
            0 => return Ok(hasher.finalize().into()),
            len => hasher.update(buffer.get(..len).unwrap_or_default()),
        }
    }
}

/// At this place so many bytes are left out, and these come instead.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Edit {
    at: u64,
    skip: u64,
    put: Vec<u8>,
}

/// What changes: each at a place somewhere in a part of the file that is its own, in the order of
/// places.
fn edits(size: u64, runs: u64, run_bytes: u64, inserts: u64) -> anyhow::Result<Vec<Edit>> {
    let count = runs + inserts;
    let part = size.checked_div(count).unwrap_or_default();
    if count > 0 && part < run_bytes.max(1) {
        bail!(
            "{runs} runs of {} and {inserts} inserts do not fit {}: give a larger --size, or smaller --run-bytes",
            ByteSize(run_bytes),
            ByteSize(size)
        );
    }
    let mut noise = Noise::new(CHANGE_SEED);
    let edit = |number: u64| {
        // Inserts are spread over the runs.
        let is_insert = (number + 1) * inserts / count.max(1) > number * inserts / count.max(1);
        let (skip, len) = if is_insert { (0, INSERT_BYTES) } else { (run_bytes, run_bytes) };
        let at = number * part + noise.below(part - skip + 1);
        Edit { at, skip, put: noise.bytes(len) }
    };
    Ok((0..count).map(edit).collect())
}

fn change(from: &Path, to: &Path, edits: &[Edit]) -> anyhow::Result<()> {
    let source = File::open(from).with_context(|| format!("cannot read {}", from.display()))?;
    content::write(to, |out| {
        let mut at = 0;
        for edit in edits {
            io::copy(&mut (&source).take(edit.at.saturating_sub(at)), out)?;
            io::copy(&mut (&source).take(edit.skip), &mut io::sink())?;
            out.write_all(&edit.put)?;
            at = edit.at + edit.skip;
        }
        io::copy(&mut &source, out).map(|_| ())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_overwrites_runs_and_inserts_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("a"), dir.path().join("b"));
        content::make(&from, 130_000, 5).unwrap();
        let edits = edits(130_000, 10, 1000, 3).unwrap();
        assert_eq!(edits.iter().filter(|edit| edit.skip == 0).count(), 3);
        assert!(edits.windows(2).all(|pair| pair[0].at + pair[0].skip <= pair[1].at));
        change(&from, &to, &edits).unwrap();
        let (before, after) = (std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
        assert_eq!(after.len(), 130_000 + 300);
        let mut expected = before;
        for edit in edits.iter().rev() {
            let at = usize::try_from(edit.at).unwrap();
            expected.splice(at..at + usize::try_from(edit.skip).unwrap(), edit.put.iter().copied());
        }
        assert!(after == expected);
        assert_ne!(hash(&from).unwrap(), hash(&to).unwrap());
    }

    #[test]
    fn what_does_not_fit_is_said() {
        let error = edits(1 << 20, 10, 1 << 20, 3).unwrap_err().to_string();
        assert!(error.contains("--run-bytes"), "{error}");
        assert!(edits(0, 0, 1, 0).unwrap().is_empty());
    }
}
