//! How the result of a job is shown: what it printed goes where it belongs, what it made is unpacked, and the exit code says
//! how it ended. `heft submit` and `heft result get` call it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use chunking::message::Purpose;
use serde_json::{Value, json};

use super::files::{Beside, Files};
use super::{FAILED, Output, print, print_json, say};
use crate::client::{Finished, Part};
use crate::model::{JobResult, JobStatus};

/// Why a part is not here, if nobody said why.
pub(crate) const NOT_FETCHED: &str = "it was not fetched";

/// What to show of a result, and how.
pub(crate) struct Show<'a> {
    /// The leader, for next steps.
    pub(crate) leader: &'a str,
    /// Where files go.
    pub(crate) out: Option<&'a Path>,
    /// In which form.
    pub(crate) output: Output,
}

/// Shows a result; the exit code for it.
pub(crate) fn show(args: &Show<'_>, result: &JobResult, finished: &Finished) -> anyhow::Result<ExitCode> {
    let missing = finished.missing.iter().find(|missing| missing.purpose == Purpose::Archive);
    let archive = match finished.part(Purpose::Archive).and_then(Part::path) {
        Some(path) => Beside::File(path),
        None => Beside::Missing(missing.map_or(NOT_FETCHED, |missing| missing.why.as_str())),
    };
    let files = args.out.map(|dir| Files::take(result, dir, archive));
    match args.output {
        Output::Table => {
            show_output(finished, Purpose::Stdout, &result.stdout, &mut io::stdout())?;
            show_output(finished, Purpose::Stderr, &result.stderr, &mut io::stderr())?;
            say_end(args, result);
            if let (None, Some(archive)) = (args.out, &result.archive) {
                say(&format!(
                    "the job left {} bytes of files: fetch them with `heft result get {} {} --out DIR`",
                    archive.size, args.leader, result.job_id
                ));
            }
            if let Some(files) = &files {
                files.say("");
            }
        }
        Output::Json => {
            let mut shown = as_json(result);
            if let (Value::Object(members), Some(files)) = (&mut shown, &files) {
                files.put(members);
            }
            print_json(&shown)?;
        }
    }
    Ok(exit_code(result, files.is_none_or(|files| files.complete())))
}

pub(crate) fn exit_code(result: &JobResult, complete: bool) -> ExitCode {
    if result.status == JobStatus::Ok && complete { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Prints what a job printed, each to where it belongs.
pub(crate) fn show_outputs(stdout: &str, stderr: &str) -> anyhow::Result<()> {
    print(stdout.as_bytes()).context("cannot write the job's output")?;
    io::stderr().write_all(ended_line(stderr).as_bytes()).ok();
    Ok(())
}

/// A text whose last line has an end.
fn ended_line(text: &str) -> Cow<'_, str> {
    if text.is_empty() || text.ends_with('\n') { text.into() } else { format!("{text}\n").into() }
}

/// Says how a job ended, unless that is OK.
pub(crate) fn say_end(args: &Show<'_>, result: &JobResult) {
    let job = result.job_id;
    match &result.status {
        JobStatus::Ok => {}
        JobStatus::Cancelled => say(&format!("job {job} was cancelled")),
        JobStatus::Failed if was_cancelled(result) => say(&format!("job {job} was cancelled")),
        JobStatus::Failed => {
            let code = result.exit_code.map(|code| format!(", its exit code is {code}")).unwrap_or_default();
            let attempts = result.attempts.filter(|attempts| *attempts > 1);
            let attempts =
                attempts.map(|attempts| format!(", after {attempts} attempts")).unwrap_or_default();
            let dead = if result.dead {
                format!("; it is in the dead-letter queue: see `heft dlq {} show {job}`", args.leader)
            } else {
                String::new()
            };
            say(&format!("job {job} FAILED{code}{attempts}{dead}"));
        }
        JobStatus::Duplicate => say(&format!(
            "job {job} had run before and its result is lost (DUPLICATE): submit it anew if running it twice does no harm"
        )),
        JobStatus::Other(word) => say(&format!("job {job} ended with the unknown status {word:?}")),
    }
}

/// Whether a result that says FAILED is what a leader makes for a job that was cancelled: no program ended for it.
fn was_cancelled(result: &JobResult) -> bool {
    let says_so = result.stderr.trim_start_matches("heft: ").starts_with("cancelled by ");
    says_so && result.exit_code.is_none() && result.stdout.is_empty()
}

pub(crate) fn as_json(result: &JobResult) -> Value {
    json!({
        "job_id": result.job_id,
        "client_id": result.client_id,
        "exec": result.exec_name,
        "status": result.status.as_str(),
        "exit_code": result.exit_code,
        "attempts": result.attempts,
        "run": result.run,
        "dead": result.dead,
        "stdout": result.stdout,
        "stderr": result.stderr,
        "archive_bytes": result.output_archive.as_ref().map(Vec::len),
        "archive_lost": result.archive_lost,
        "archive_blob_bytes": result.archive.as_ref().map(|blob| blob.size),
        "stdout_bytes": result.stdout_blob.as_ref().map(|blob| blob.size),
        "stderr_bytes": result.stderr_blob.as_ref().map(|blob| blob.size),
    })
}

/// Prints one output of a job whole: from its part where it was too large for the result itself.
pub(crate) fn show_output(
    finished: &Finished,
    purpose: Purpose,
    text: &str,
    to: &mut dyn Write,
) -> anyhow::Result<()> {
    let Some(path) = finished.part(purpose).and_then(Part::path) else {
        if purpose == Purpose::Stderr {
            show_outputs("", text)?;
        } else {
            show_outputs(text, "")?;
        }
        if let Some(missing) = finished.missing.iter().find(|missing| missing.purpose == purpose) {
            say(&format!("the rest of {} bytes of output did not come: {}", missing.size, missing.why));
        }
        return Ok(());
    };
    let copied = File::open(path).and_then(|mut file| io::copy(&mut file, to)).and_then(|_| to.flush());
    match copied {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the job's output")
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
