//! `heft-tools import csharp`: the `state` directory of the C# system (PE04-PE06), with what its
//! own recovery gets wrong put right (PE10).
//!
//! The log is read twice: first for what happened to which job, then for the payloads of those that
//! are left, one at a time.

mod events;
mod lines;
mod members;
mod snapshot;

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use heft::core::subject::routing_key;
use heft::model::{JobRequest, JsonModel};
use serde_json::value::RawValue;
use uuid::Uuid;

use super::write::Target;
use super::{Imported, Into, Summary, not_later_than_now, note};
use crate::exit::{Failure, with_codes};
use events::{InLog, Jobs, Known, damaged};
use lines::{LINE_BYTES_MAX, Lines};
use members::{Members, read};
use snapshot::Snapshot;

const EXAMPLES: &str = "Examples:
  heft-tools import csharp ./state --data /var/lib/heft --dry-run
  heft-tools import csharp ./state --data /var/lib/heft && heft leader 5000 --data /var/lib/heft

Stop that leader first. Jobs that wait, jobs that ran (they run again), dead jobs and the caps of clients come over; results were never
kept there. What is older than the newest snapshot counts only as far as the snapshot has it, and what was acknowledged is over.";

#[derive(clap::Args)]
#[command(after_help = with_codes(EXAMPLES))]
pub(crate) struct Args {
    /// Directory with `events.log` and `snapshots`.
    #[arg(value_name = "STATE_DIR")]
    state: PathBuf,

    #[command(flatten)]
    into: Into,
}

pub(super) fn run(args: &Args) -> anyhow::Result<()> {
    let mut target = Target::new(&args.into)?;
    let log_path = args.state.join("events.log");
    let text = snapshot::newest(&args.state.join("snapshots"))?;
    let snapshot = match &text {
        Some(text) => {
            Snapshot::parse(&text.bytes).map_err(|what| Failure::at(&text.path, 0, what))?
        }
        None => Snapshot::default(),
    };
    let log = super::open(&log_path)?.map(|(file, _)| file);
    match (&log, &text) {
        (None, None) => {
            return Err(Failure::Usage(format!(
                "{} has neither events.log nor a snapshots/state-yyyyMMdd-HHmmss.json: name the C# leader's state directory",
                args.state.display()
            )).into());
        }
        (None, Some(_)) => {
            note(&log_path, "is missing; only the snapshot is imported, and later events are lost")
        }
        (Some(_), _) => {}
    }
    let mut summary = Summary::default();
    let mut jobs = Jobs::new(&snapshot, text.as_ref().map(|text| text.at));
    let again = match log {
        Some(file) => {
            let again = file.try_clone().map_err(|error| Failure::io("read", &log_path, &error))?;
            read_log(&log_path, file, args.into.skip_damaged, &mut jobs, &mut summary)?;
            Some(again)
        }
        None => None,
    };
    for (client, cap) in &snapshot.caps {
        match u32::try_from(*cap) {
            Ok(cap) if cap > 0 => target.cap(client, cap, &mut summary)?,
            Ok(_) | Err(_) => {
                summary.skip("a cap that lets nothing run", format_args!("{client} ({cap})"))
            }
        }
    }
    let (events, ended, unknown) = (jobs.events, jobs.ended(), jobs.unknown);
    let (alive, old) = jobs.left();
    let mut source =
        Source { snapshot: &snapshot, log_path: &log_path, log: again.map(BufReader::new) };
    for (id, known) in alive {
        match source.job(id, &known)? {
            Ok(job) => target.job(job, &mut summary)?,
            Err(reason) => summary.skip(reason, id),
        }
    }
    target.finish()?;
    let mut out = io::stdout().lock();
    let log = log_path.display();
    match &text {
        Some(text) => writeln!(out, "read {} and {events} events of {log}", text.path.display())?,
        None => writeln!(out, "read {events} events of {log}; there is no snapshot")?,
    }
    writeln!(
        out,
        "  jobs that were acknowledged there: {ended}; others that were over before the snapshot: {old}"
    )?;
    if snapshot.repeated > 0 {
        writeln!(out, "  duplicate jobs in the snapshot, imported once: {}", snapshot.repeated)?;
    }
    if unknown > 0 {
        writeln!(out, "  events of an unknown type, skipped: {unknown}")?;
    }
    Ok(summary.print(&target, &mut out)?)
}

/// Reads what happened. A last line that cannot be used was being written when that leader ended.
fn read_log(
    path: &Path,
    file: File,
    skip_damaged: bool,
    jobs: &mut Jobs,
    summary: &mut Summary,
) -> Result<(), Failure> {
    let mut lines = Lines::new(file);
    while let Some(line) = lines.next().map_err(|error| Failure::io("read", path, &error))? {
        let Err(bad) = jobs.line(&line) else { continue };
        if line.is_last {
            let what = format!("its last line, {}, is torn ({}) and left out", line.number, bad.0);
            note(path, what);
            summary
                .skip("a last line of the log that is torn", format_args!("line {}", line.number));
        } else if skip_damaged {
            summary.skip(
                format_args!("a line of the log that cannot be used: {}", bad.0),
                format_args!("line {}", line.number),
            );
        } else {
            return Err(damaged(path, &line, &bad));
        }
    }
    Ok(())
}

/// Where the data of jobs lies.
struct Source<'a> {
    snapshot: &'a Snapshot<'a>,
    log_path: &'a Path,
    log: Option<BufReader<File>>,
}

impl Source<'_> {
    /// A job with its payload; or why it cannot be had.
    fn job(&mut self, id: Uuid, known: &Known) -> Result<Result<Imported, String>, Failure> {
        let in_snapshot =
            known.in_snapshot.and_then(|place| self.snapshot.jobs.get(place)).map(|held| held.job);
        let mut job = match in_snapshot {
            Some(job) => parse(id, known, job),
            None => Err("its enqueue is neither in the log nor in the snapshot".to_owned()),
        };
        // A snapshot that was made after a faulty recovery has jobs without their data (PE10). The
        // log has it.
        if job.is_err()
            && let Some(place) = known.in_log
        {
            let line = self.line(place)?;
            job = Members::parse(&line).and_then(|event| {
                let job: &RawValue = event.get("job").ok_or("its enqueue has no \"job\"")?;
                parse(id, known, job)
            });
        }
        Ok(job)
    }

    /// Reads a line of the log again.
    fn line(&mut self, place: InLog) -> Result<Vec<u8>, Failure> {
        let Some(log) = &mut self.log else { return Ok(Vec::new()) };
        let mut line = Vec::new();
        let read = log
            .seek(SeekFrom::Start(place.at))
            .and_then(|_| log.take(LINE_BYTES_MAX as u64 + 2).read_until(b'\n', &mut line));
        read.map_err(|error| Failure::io("read", self.log_path, &error))?;
        if line.starts_with(lines::BOM) {
            line.drain(..lines::BOM.len());
        }
        Ok(line)
    }
}

/// A job as either file has it.
fn parse(id: Uuid, known: &Known, job: &RawValue) -> Result<Imported, String> {
    let job: Members<'_> = read("job", job)?;
    let exec = job.text("execName")?.ok_or("it names no program (execName)")?;
    let payload = job.bytes("rawPayload")?.ok_or("it has no request (rawPayload)")?;
    let client = job.text("clientId")?.unwrap_or_default();
    let key = routing_key(&format!("job.submit.{exec}"), None)
        .map_err(|error| format!("no worker can match it: {error}"))?;
    let request = JobRequest::parse(&payload).ok();
    let names_blobs =
        request.iter().flat_map(|request| &request.files).any(|file| file.blob.is_some());
    if names_blobs {
        return Err("its request names transfers, which that system does not have".to_owned());
    }
    Ok(Imported {
        id,
        client,
        key,
        exec,
        priority: request.map_or(0, |request| request.priority),
        at: not_later_than_now(known.enqueued_at.unwrap_or_default()),
        standing: known.standing,
        payload,
    })
}
