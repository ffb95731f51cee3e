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

use super::children::{Child, children, lines};
use super::files::{Beside, Files};
use super::gaps::{Gap, gaps, print_beginning};
use super::{FAILED, Output, print, print_json, printable, say};
use crate::client::{Finished, Part};
use crate::model::{JobResult, JobStatus};

/// Why a part is not here, if nobody said why.
const NOT_FETCHED: &str = "it was not fetched";

/// What to show of a result, and how.
pub(crate) struct Show<'a> {
    /// The leader, for next steps.
    pub(crate) leader: &'a str,
    /// Where files go.
    pub(crate) out: Option<&'a Path>,
    /// In which form.
    pub(crate) output: Output,
    /// Whether the result may hold those of all workers.
    pub(crate) all: bool,
}

/// Shows a result; the exit code for it.
pub(crate) fn show(args: &Show<'_>, result: &JobResult, finished: &Finished) -> anyhow::Result<ExitCode> {
    if args.all
        && let Some(children) = children(result)
    {
        return show_all(args, result, &children);
    }
    let gaps = gaps(result, finished);
    let archive = match finished.part(Purpose::Archive).and_then(Part::path) {
        Some(path) => Beside::File(path),
        None => Beside::Missing(gaps.iter().find_map(Gap::of_archive).unwrap_or(NOT_FETCHED)),
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
            match &files {
                Some(files) => files.say(""),
                None => say_left_out(result),
            }
            gaps.iter().for_each(Gap::say);
        }
        Output::Json => {
            let mut shown = as_json(result);
            if let Value::Object(members) = &mut shown {
                if let Some(files) = &files {
                    files.put(members);
                }
                if !gaps.is_empty() {
                    members.insert("missing".to_owned(), gaps.iter().map(Gap::as_json).collect());
                }
            }
            print_json(&shown)?;
        }
    }
    let complete = gaps.is_empty() && result.archive_lost.is_none();
    Ok(exit_code(result, complete && files.is_none_or(|files| files.complete())))
}

/// Says that files of the job are nowhere, to those who did not ask for files.
fn say_left_out(result: &JobResult) {
    let is_told = result.lost.iter().any(|lost| lost.part == "archive");
    if let Some(bytes) = result.archive_lost.filter(|_| !is_told) {
        say(&Files::Lost(bytes).trouble().unwrap_or_default());
    }
}

/// Shows what each worker made of a job to all of them.
fn show_all(args: &Show<'_>, result: &JobResult, children: &[Child]) -> anyhow::Result<ExitCode> {
    let mut complete = true;
    let mut shown = Vec::new();
    for child in children {
        let worker = printable(&child.worker);
        let files = match (args.out, args.out.and_then(|all| child.dir(all))) {
            (Some(_), Some(dir)) => Some(Files::take(&child.result, &dir, Beside::Missing(NOT_FETCHED))),
            (Some(all), None) => {
                let error = anyhow::anyhow!("the worker's id {:?} is no name for a directory", child.worker);
                Some(Files::Broken(all.to_owned(), error))
            }
            (None, _) => None,
        };
        complete &= files.as_ref().is_none_or(Files::complete);
        match args.output {
            Output::Table => {
                let code = child.result.exit_code.filter(|code| *code != 0);
                let code = code.map(|code| format!(", its exit code is {code}")).unwrap_or_default();
                let status = printable(child.result.status.as_str());
                print(format!("== worker {worker}: {status}{code}\n").as_bytes())?;
                show_outputs(&ended_line(&child.result.stdout), "")?;
                if !child.result.stderr.is_empty() {
                    say(&format!("worker {worker}, standard error:"));
                    show_outputs("", &child.result.stderr)?;
                }
                if let Some(files) = &files {
                    files.say(&format!("worker {worker}: "));
                }
            }
            Output::Json => {
                let mut members = serde_json::Map::new();
                members.insert("worker".to_owned(), json!(child.worker));
                members.insert("status".to_owned(), json!(child.result.status.as_str()));
                if let Some(files) = &files {
                    files.put(&mut members);
                }
                shown.push(Value::Object(members));
            }
        }
    }
    match args.output {
        Output::Table => {
            show_outputs("", &result.stderr)?;
            say_end(args, result);
        }
        Output::Json => {
            let mut all = as_json(result);
            if let Value::Object(members) = &mut all {
                members.insert("stdout".to_owned(), json!(lines(children)));
                members.insert("workers".to_owned(), Value::Array(shown));
            }
            print_json(&all)?;
        }
    }
    Ok(exit_code(result, complete))
}

fn exit_code(result: &JobResult, complete: bool) -> ExitCode {
    if result.status == JobStatus::Ok && complete { ExitCode::SUCCESS } else { ExitCode::from(FAILED) }
}

/// Prints what a job printed, each to where it belongs.
fn show_outputs(stdout: &str, stderr: &str) -> anyhow::Result<()> {
    print(stdout.as_bytes()).context("cannot write the job's output")?;
    io::stderr().write_all(ended_line(stderr).as_bytes()).ok();
    Ok(())
}

/// A text whose last line has an end.
fn ended_line(text: &str) -> Cow<'_, str> {
    if text.is_empty() || text.ends_with('\n') { text.into() } else { format!("{text}\n").into() }
}

/// Says how a job ended, unless that is OK.
fn say_end(args: &Show<'_>, result: &JobResult) {
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

fn as_json(result: &JobResult) -> Value {
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
fn show_output(finished: &Finished, purpose: Purpose, text: &str, to: &mut dyn Write) -> anyhow::Result<()> {
    let Some(path) = finished.part(purpose).and_then(Part::path) else {
        return match finished.missing.iter().find(|missing| missing.purpose == purpose) {
            Some(missing) => written(print_beginning(missing, text, to)),
            None if purpose == Purpose::Stderr => show_outputs("", text),
            None => show_outputs(text, ""),
        };
    };
    written(File::open(path).and_then(|mut file| io::copy(&mut file, to)).and_then(|_| to.flush()))
}

/// A reader that left early is no error.
fn written(copied: io::Result<()>) -> anyhow::Result<()> {
    match copied {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(error).context("cannot write the job's output")
        }
        Ok(()) | Err(_) => Ok(()),
    }
}
