//! `heft-tools log verify`: every file of a data directory against its checksums, and every
//! reference from one file to another.
//!
//! What is reported as a problem is what a leader would refuse, lose or trip over; what it repairs
//! by itself is a note. It reads as a leader does that starts, and then the rest. A leader may be
//! running: what changed while it was read is read again.

mod blobs;
mod files;

use std::collections::HashSet;
use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use heft::store::disk::{DataDir, Disk};
use heft::store::format::{self, FileNo, Kind, Owner, StoreError, full};
use heft::store::replay::{Files, Loaded};
use heft::store::tail;

use crate::exit::{DAMAGED, Failure, UNAVAILABLE, with_codes};

const EXAMPLES: &str = "Examples:
  heft-tools log verify /var/lib/heft
  heft-tools log verify /var/lib/heft --no-blobs       without reading the bytes of large inputs and results

A line for each file says what it holds. Behind them stand the problems: file, offset, what is wrong, what to do. Nothing is changed.";

#[derive(clap::Args)]
#[command(after_help = with_codes(EXAMPLES))]
pub(crate) struct Args {
    /// Data directory of a leader, which may be running.
    data: PathBuf,

    /// Check only the maps of blobs, not their bytes.
    #[arg(long)]
    no_blobs: bool,
}

/// Something that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Problem {
    /// The file, with its whole path.
    file: String,
    /// Where in it, if it is there.
    offset: Option<u64>,
    what: String,
    /// What to do about it.
    remedy: String,
    /// Whether the system did not let us look, so that it is not known what is there.
    unreadable: bool,
}

impl Problem {
    fn new(
        file: String,
        offset: Option<u64>,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Problem { file, offset, what: what.into(), remedy: remedy.into(), unreadable: false }
    }

    /// What the store found, with what to do about such a file.
    fn of(error: &StoreError, disk: &dyn Disk, path: &str, remedy: &str) -> Self {
        let (file, offset, what) = match error {
            StoreError::Io { file, doing, error, .. } => {
                let what = format!("cannot {doing} it: {error}");
                let remedy = "let this user read it, or check the disk, and try again".to_owned();
                return Problem {
                    file: file.clone(),
                    offset: None,
                    what,
                    remedy,
                    unreadable: true,
                };
            }
            StoreError::Damage { file, offset, what, .. }
            | StoreError::MemberDamage { file, offset, what, .. } => {
                (file.clone(), Some(*offset), what.clone())
            }
            StoreError::MissingTail { file, .. } => {
                (file.clone(), None, "it is missing, and perhaps votes with it".to_owned())
            }
            StoreError::Member { file, .. } => (file.clone(), None, error.to_string()),
            StoreError::Marker { file, expected, found, .. } => {
                let what = format!("it begins with {found:02X?} where {expected:02X?} is expected");
                (file.clone(), Some(0), what)
            }
            StoreError::Version { file, found, .. } => (
                file.clone(),
                Some(4),
                format!("its format has version {found}; {} is expected", format::VERSION),
            ),
            StoreError::OtherDirectory { file, found, dir } => (
                file.clone(),
                Some(12),
                format!("it belongs to the data directory {found}; this one is {dir}"),
            ),
            StoreError::Node { .. } => (full(disk, path), Some(8), error.to_string()),
            StoreError::MissingSegment { which, file, .. } => {
                (file.clone(), None, format!("the file with the records {which} is missing"))
            }
            StoreError::SnapshotAhead { file, snapshot, log, .. } => (
                file.clone(),
                None,
                format!(
                    "it stands at record {snapshot}, and the log ends at {log}: the newest part of the log is missing"
                ),
            ),
        };
        Problem::new(file, offset, what, remedy)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.unreadable { "UNREADABLE" } else { "DAMAGED" };
        write!(f, "{kind} {}", self.file)?;
        if let Some(offset) = self.offset {
            write!(f, " at offset {offset}")?;
        }
        write!(f, ": {}\n  to do: {}", self.what, self.remedy)
    }
}

/// What was found in some of the files.
#[derive(Debug, Default)]
struct Found {
    /// A line for each file.
    lines: Vec<String>,
    problems: Vec<Problem>,
    /// The same: several ways lead to one place.
    known: HashSet<(String, Option<u64>, String)>,
}

impl Found {
    fn line(&mut self, file: &str, what: impl fmt::Display) {
        self.lines.push(format!("{file:<44} {what}"));
    }

    /// Adds a problem, unless it is known.
    fn problem(&mut self, problem: Problem) {
        if self.known.insert((problem.file.clone(), problem.offset, problem.what.clone())) {
            self.problems.push(problem);
        }
    }
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let disk = DataDir::look(&args.data).map_err(Failure::from)?;
    let mut found = Found::default();
    let owner = owner(&disk, &mut found)?;
    let mut state = None;
    if let Some(owner) = owner {
        let (log, loaded) = steady_log(&disk, owner)?;
        found.lines.extend(log.lines);
        log.problems.into_iter().for_each(|problem| found.problem(problem));
        let blobs = blobs::check(&disk, owner, loaded.as_ref(), !args.no_blobs)?;
        found.lines.extend(blobs.lines);
        found.problems.extend(blobs.problems);
        state = loaded;
    }
    print(&disk, &found, state.as_ref())?;
    Ok(match found.problems.as_slice() {
        [] => ExitCode::SUCCESS,
        problems if problems.iter().all(|problem| problem.unreadable) => {
            ExitCode::from(UNAVAILABLE)
        }
        _ => ExitCode::from(DAMAGED),
    })
}

fn print(disk: &dyn Disk, found: &Found, loaded: Option<&Loaded>) -> io::Result<()> {
    let mut out = BufWriter::new(io::stdout().lock());
    for line in &found.lines {
        writeln!(out, "{line}")?;
    }
    for problem in &found.problems {
        writeln!(out, "\n{problem}")?;
    }
    let state = match loaded {
        Some(loaded) => {
            let replay = &loaded.replay;
            format!("{} jobs at record {}", replay.state.job_count(), replay.index)
        }
        None => "a leader would not start with it".to_owned(),
    };
    match found.problems.len() {
        0 => writeln!(out, "\n{}: good; {state}", disk.root())?,
        1 => writeln!(out, "\n{}: 1 problem; {state}", disk.root())?,
        problems => writeln!(out, "\n{}: {problems} problems; {state}", disk.root())?,
    }
    out.flush()
}

/// Whose the directory is. If that cannot be read, another file may tell, so that the rest can be
/// checked.
fn owner(disk: &dyn Disk, found: &mut Found) -> anyhow::Result<Option<Owner>> {
    let path = "consensus/metadata";
    let remedy =
        "restore it from a backup: without it no leader starts; everything else is unaffected";
    match format::owner_of(disk) {
        Ok(Some(owner)) => {
            let len = disk
                .list(format::CONSENSUS)?
                .iter()
                .find(|file| file.name == "metadata")
                .map(|file| file.len);
            found.line(path, format_args!("node {}, directory {}", owner.node, owner.dir));
            if let Some(len) = len.filter(|len| *len != format::HEADER_BYTES as u64) {
                let what = format!("it has {len} bytes where {} are written", format::HEADER_BYTES);
                found.problem(Problem::new(
                    full(disk, path),
                    Some(format::HEADER_BYTES as u64),
                    what,
                    remedy,
                ));
            }
            return Ok(Some(owner));
        }
        Ok(None) => {
            if disk.list(format::CONSENSUS)?.is_empty() {
                return Err(super::is_none(disk).into());
            }
            found.problem(Problem::new(full(disk, path), None, "it is missing", remedy));
        }
        Err(error) => found.problem(Problem::of(&error, disk, path, remedy)),
    }
    found.line(path, "cannot be used");
    let files = Files::list(disk).map_err(Failure::from)?;
    let segments = files.segments.iter().rev().map(|first| (FileNo::log(*first).path(), Kind::Log));
    let snapshots =
        files.snapshots.iter().rev().map(|index| (FileNo::snapshot(*index).path(), Kind::Snapshot));
    Ok(segments.chain(snapshots).find_map(|(path, kind)| {
        let file = disk.open(&path, heft::store::disk::How::Read).ok()?;
        format::read_header(disk, &path, &*file, kind).map(|(owner, _)| owner).ok()
    }))
}

/// The files of the log. If there are problems, and the leader has begun or removed files
/// meanwhile, it is looked again.
fn steady_log(disk: &dyn Disk, owner: Owner) -> anyhow::Result<(Found, Option<Loaded>)> {
    let mut before = Files::list(disk).map_err(Failure::from)?;
    let mut tries = super::STEADY_TRIES;
    loop {
        let (mut found, loaded) = files::check(disk, owner, &before)?;
        let after = Files::list(disk).map_err(Failure::from)?;
        // What a leader has removed since then nothing needs any more.
        let gone = paths(&before).filter(|path| !paths(&after).any(|left| left == *path));
        let gone: HashSet<String> = gone.map(|path| full(disk, &path)).collect();
        found.problems.retain(|problem| !gone.contains(&problem.file));
        tries -= 1;
        if found.problems.is_empty() || before == after || tries == 0 {
            return Ok((found, loaded));
        }
        before = after;
    }
}

fn paths(files: &Files) -> impl Iterator<Item = String> {
    let segments = files.segments.iter().map(|first| FileNo::log(*first).path());
    let snapshots = files.snapshots.iter().map(|index| FileNo::snapshot(*index).path());
    segments.chain(snapshots).chain(files.tails.iter().map(|number| tail::path(*number)))
}
