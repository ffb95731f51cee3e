//! `heft-tools import`: a new data directory from what an older system left on its disk (C29).
//!
//! A reader of that system's files says which jobs there are, in their order, and why others are
//! left out; what is written, and that nothing half written is ever left, is the same for all.
//! Sources are only read.

mod csharp;
mod taskflux;
mod write;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::Subcommand;
use heft::core::ids::Micros;
use heft::core::subject::RoutingKey;
use uuid::Uuid;

use crate::exit::{Failure, warn};
use write::Target;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// From the C# system's `state` directory: `events.log` and `snapshots`.
    Csharp(csharp::Args),
    /// From a TaskFlux node's `consensus` directory: `raft.log`, `raft.metadata` and
    /// `raft.snapshot`.
    Taskflux(taskflux::Args),
}

/// Where to.
#[derive(clap::Args)]
pub(crate) struct Into {
    /// Data directory to create; must be missing or empty.
    #[arg(long, value_name = "DIR")]
    data: PathBuf,

    /// Node number of the new data directory.
    #[arg(long, default_value_t = 0, value_name = "N", value_parser = clap::value_parser!(i32).range(0..))]
    node: i32,

    /// Read and report only; create nothing.
    #[arg(long)]
    dry_run: bool,

    /// Skip unreadable entries instead of failing; they are listed, and lost.
    #[arg(long)]
    skip_damaged: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Csharp(args) => csharp::run(args)?,
        Command::Taskflux(args) => taskflux::run(args)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Where a job stood in the system it comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    /// It waited.
    Queued,
    /// A worker had it, or had been sent it. It runs again: there is no other way to know how it
    /// ended.
    InFlight {
        /// Which, if it is known.
        worker: Option<Uuid>,
        /// Which attempt.
        attempt: u32,
    },
    /// It had used up its attempts.
    Dead {
        /// Which was the last.
        attempt: u32,
        /// Since when, in microseconds since 1970, if it is known.
        since: Option<i64>,
    },
}

/// A job as heft is to have it.
#[derive(Debug)]
struct Imported {
    id: Uuid,
    client: String,
    key: RoutingKey,
    /// The program it names; empty for a raw job (M19).
    exec: String,
    /// Smaller first (C28).
    priority: i64,
    /// When it was submitted.
    at: Micros,
    standing: Standing,
    /// What a worker gets, as it came from the client.
    payload: Vec<u8>,
}

/// Examples of one reason that are shown.
const EXAMPLES_MAX: usize = 5;

/// What became of everything that was found.
#[derive(Debug, Default)]
struct Summary {
    queued: u64,
    in_flight: u64,
    dead: u64,
    caps: u64,
    bytes: u64,
    /// What was left out: the reason, how often, and some of them.
    skipped: BTreeMap<String, (u64, Vec<String>)>,
}

impl Summary {
    /// Something is left out.
    fn skip(&mut self, reason: impl std::fmt::Display, which: impl std::fmt::Display) {
        let (count, examples) = self.skipped.entry(reason.to_string()).or_default();
        *count += 1;
        if examples.len() < EXAMPLES_MAX {
            examples.push(which.to_string());
        }
    }

    fn print(&self, target: &Target, out: &mut impl Write) -> io::Result<()> {
        writeln!(out, "{target}")?;
        writeln!(out, "  jobs that wait                {:>10}", self.queued)?;
        writeln!(out, "  jobs that ran, and run again  {:>10}", self.in_flight)?;
        writeln!(out, "  dead jobs                     {:>10}", self.dead)?;
        writeln!(out, "  client caps                   {:>10}", self.caps)?;
        writeln!(out, "  bytes of payloads             {:>10}", self.bytes)?;
        writeln!(
            out,
            "  left out                      {:>10}",
            self.skipped.values().map(|(count, _)| count).sum::<u64>()
        )?;
        for (reason, (count, examples)) in &self.skipped {
            let more = if *count > examples.len() as u64 { ", ..." } else { "" };
            writeln!(out, "    {count} x {reason}: {}{more}", examples.join(", "))?;
        }
        Ok(())
    }
}

/// Now, or the moment itself if it is earlier: a clock of another machine that was ahead must not
/// turn the leader's forward.
fn not_later_than_now(micros: i64) -> Micros {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let now = Micros::default().plus(now);
    u64::try_from(micros).map_or(Micros(0), Micros).min(now)
}

/// Opens a file of a source, and says how long it is. `None` if it is not there.
fn open(path: &Path) -> Result<Option<(File, u64)>, Failure> {
    let opened = File::open(path).and_then(|file| Ok((file.metadata()?, file)));
    match opened {
        Ok((meta, file)) if meta.is_file() => Ok(Some((file, meta.len()))),
        Ok(_) => Err(Failure::Usage(format!(
            "{} is not a file: name the directory it belongs to",
            path.display()
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Failure::io("read", path, &error)),
    }
}

/// A warning about a source.
fn note(path: &Path, what: impl std::fmt::Display) {
    warn(format_args!("{}: {what}", path.display()));
}
