//! `heft-tools log`: a leader's data directory, looked at from outside. Nothing is taken and
//! nothing is changed, so a leader may be running on it.

mod dump;
mod event;
mod replay;
mod verify;

use std::path::Path;
use std::process::ExitCode;

use clap::Subcommand;
use heft::core::job::{Ending, Phase};
use heft::core::record::AttemptEnd;
use heft::store::disk::{DataDir, Disk};
use heft::store::format::{self, Owner, StoreError};
use heft::store::log::{Segment, Tail};
use heft::store::replay::{Files, Loaded, UpTo, load};
use heft::store::tail::read::Found;
use heft::store::tail::{self, Vote};

use crate::exit::Failure;

/// Bytes of the mark that another segment follows. It may be torn.
const MARK_BYTES: u64 = 32;

/// How often something is read again that changes while it is read.
const STEADY_TRIES: usize = 10;

#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Print the records of the log as JSON lines, with the event names of the older system.
    Dump(dump::Args),
    /// Check every file, every checksum and all references between files.
    Verify(verify::Args),
    /// Show the state after a record: jobs, queues, clients, results.
    Replay(replay::Args),
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    match &args.command {
        Command::Dump(args) => dump::run(args),
        Command::Verify(args) => verify::run(args),
        Command::Replay(args) => replay::run(args),
    }
}

/// The data directory as it is, and whose it is.
fn look(data: &Path) -> Result<(DataDir, Owner), Failure> {
    let disk = DataDir::look(data)?;
    let owner = format::owner_of(&disk)?.ok_or_else(|| is_none(&disk))?;
    Ok((disk, owner))
}

fn is_none(disk: &dyn Disk) -> Failure {
    Failure::Unavailable(format!(
        "{} is not a data directory of a heft leader: consensus/metadata is not there; name the directory that `heft leader` has as \
         --data",
        disk.root()
    ))
}

/// What the log says. A leader may begin segments and remove others while they are read: then they
/// are read again.
fn load_steady(disk: &dyn Disk, owner: Owner, up_to: UpTo) -> Result<Loaded, StoreError> {
    let mut before = Files::list(disk)?;
    for _ in 0..STEADY_TRIES {
        let loaded = load(disk, owner, up_to);
        let after = Files::list(disk)?;
        if loaded.is_ok() || before == after {
            return loaded;
        }
        before = after;
    }
    load(disk, owner, up_to)
}

/// What the tail of a member of a cluster says, if there is one. A leader may go on with the log
/// and remove files of the tail while they are read: then all is read again.
fn tail_steady(disk: &dyn Disk, owner: Owner) -> Result<Option<Found>, StoreError> {
    let read = |numbers: &[u64]| {
        let Loaded { replay, .. } = load(disk, owner, UpTo::End)?;
        tail::read::read(disk, owner, numbers, replay.index, &replay.terms)
    };
    let mut files = Files::list(disk)?;
    let mut tries = STEADY_TRIES;
    while !files.tails.is_empty() {
        let found = read(&files.tails);
        let after = Files::list(disk)?;
        tries -= 1;
        if found.is_ok() || files == after || tries == 0 {
            return found.map(Some);
        }
        files = after;
    }
    Ok(None)
}

/// A vote, for people.
fn vote_text(vote: Vote) -> String {
    match vote.node {
        Some(node) => format!("a vote for node {node} in term {}", vote.term),
        None => format!("no vote in term {}", vote.term),
    }
}

/// Which records are not known to be committed, for people.
fn uncommitted_text(found: &Found) -> String {
    let (first, count) = (found.records.first.0, found.records.records.len() as u64);
    match count {
        0 => "no records behind the log".to_owned(),
        _ => format!(
            "records {first} to {}, which are not known to be committed",
            first.saturating_add(count - 1)
        ),
    }
}

/// The end of a segment that is followed by the one with record `follows`. If it is earlier, a file
/// between the two is missing: the caller knows whether a leader may have removed it.
fn end_before(segment: &mut Segment<'_>, follows: u64) -> Result<Tail, StoreError> {
    let tail = segment.tail()?;
    if tail.next >= follows || tail.torn > MARK_BYTES {
        segment.expect_end(follows)?;
    }
    Ok(tail)
}

/// How an attempt ended, as a word for programs.
const fn why(why: AttemptEnd) -> &'static str {
    match why {
        AttemptEnd::TimedOut => "timed_out",
        AttemptEnd::WorkerLost => "worker_lost",
        AttemptEnd::NotHeld => "not_held",
        AttemptEnd::ResultLost => "result_lost",
        AttemptEnd::GivenUp => "given_up",
        AttemptEnd::InputsStalled => "inputs_stalled",
        AttemptEnd::DiskFull => "disk_full",
        AttemptEnd::InputsBad => "inputs_bad",
        AttemptEnd::NoDirectory => "no_directory",
        AttemptEnd::Stopped => "stopped",
        AttemptEnd::NoProgram => "no_program",
    }
}

/// Where a job stands, as a word for programs.
const fn phase(phase: &Phase) -> &'static str {
    match phase {
        Phase::Queued { .. } => "queued",
        Phase::Leased { .. } => "leased",
        Phase::Gathering { .. } => "gathering",
        Phase::Done {
            ending: Ending::Returned { ok: true, .. } | Ending::Gathered { ok: true },
            ..
        } => "ok",
        Phase::Done { ending: Ending::Cancelled { .. }, .. } => "cancelled",
        Phase::Done {
            ending:
                Ending::Returned { .. }
                | Ending::Gathered { .. }
                | Ending::Orphaned
                | Ending::Failed { .. },
            ..
        } => "failed",
        Phase::Dead { .. } => "dead",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tf05_a_directory_of_something_else_is_named_with_the_reason() {
        let dir = tempfile::tempdir().unwrap();
        let failure = look(dir.path()).unwrap_err();
        assert!(
            matches!(&failure, Failure::Unavailable(text) if text.contains("consensus/metadata is not there"))
        );
        assert!(matches!(look(&dir.path().join("nowhere")), Err(Failure::Unavailable(_))));
        std::fs::create_dir(dir.path().join("consensus")).unwrap();
        std::fs::write(dir.path().join("consensus/metadata"), b"{}").unwrap();
        assert!(
            matches!(look(dir.path()), Err(Failure::Damaged(text)) if text.contains("marker of a metadata"))
        );
    }
}
