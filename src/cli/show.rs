//! How the result of a job is shown: what it printed goes where it belongs, what it made is
//! unpacked, and the exit code says how it ended. `heft submit` and `heft result get` call it.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

use uuid::Uuid;

use chunking::message::Purpose;
use serde_json::{Value, json};

use super::ending::{Whereabouts, ended, how_it_failed, timed_out, was_cancelled};
use super::exit::FAILED;
use super::files::{Beside, Files, Found, Saved};
use super::gaps::{Gap, gaps, print_beginning};
use super::job_line::Line;
use super::out::OutArgs;
use super::progress::Progress;
use super::reach::Leader;
use super::{Output, Unwritten, err, note, print_json, print_to, say, standard_out};
use crate::client::{Client, Finished, Part};
use crate::model::{JobResult, JobStatus};

/// Why a part is not here, if nobody said why.
pub(crate) const NOT_FETCHED: &str = "it was not fetched";

/// The status of a job whose result cannot be read: how it ended is said by `stderr` alone.
const LOST: &str = "LOST";

/// What to show of a result, and how.
pub(crate) struct Show<'a> {
    /// The leader, for next steps.
    pub(crate) leader: &'a Leader,
    /// Where files go.
    pub(crate) out: &'a OutArgs,
    /// In which form.
    pub(crate) output: Output,
    /// How to show how far it is.
    pub(crate) progress: Progress,
}

impl Show<'_> {
    /// How to get what is not here of a result, as long as the leader has it.
    pub(crate) fn retry(&self, job: Uuid, dir: Option<&Path>) -> String {
        let dir = dir.map_or_else(|| "DIR".to_owned(), |dir| shell_word(&dir.to_string_lossy()));
        format!(
            "the result stays at the leader: `{} {job} --out {dir}` tries again",
            self.leader.command("result get")
        )
    }

    pub(crate) fn line(&self, job: Uuid) -> Line {
        Line::new(job, self.progress, !self.output.is_for_people())
    }
}

/// A word as a shell reads it.
fn shell_word(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// What came of showing a result.
#[derive(Debug)]
pub(crate) struct Shown {
    /// How the command ends.
    pub(crate) code: ExitCode,
    /// Whether all that there is of the result is where it was wanted. If not, the leader is not
    /// told that it was received.
    pub(crate) is_safe: bool,
}

/// Shows a result, and where its job ran.
pub(crate) async fn show(
    args: &Show<'_>,
    client: &Client,
    result: &JobResult,
    finished: &Finished,
) -> anyhow::Result<Shown> {
    let gaps = gaps(result, finished);
    let archive = match finished.part(Purpose::Archive).and_then(Part::path) {
        Some(path) => Beside::File(path),
        None => Beside::Missing(gaps.iter().find_map(Gap::of_archive).unwrap_or(NOT_FETCHED)),
    };
    let job = result.job_id;
    let whereabouts = Whereabouts::ask(client, job, args.output, args.progress).await;
    let wants_files = args.out.out.is_some() || args.out.save_archive.is_some();
    let found = if wants_files { Found::of(result, archive) } else { Found::None };
    let saved = match &args.out.save_archive {
        Some(file) => Saved::take(&found, file, args.out.force, args.retry(job, None)).await,
        None => Saved::Nothing,
    };
    let files = match (&args.out.out, &found) {
        (Some(dir), _) => {
            let (rules, retry) = (args.out.rules(), args.retry(job, Some(dir)));
            Some(Files::take(&found, dir, rules, &mut args.line(job), retry).await)
        }
        (None, Found::Lost(_) | Found::Missing(..) | Found::Gone(..)) => {
            Some(Files::not_here(&found, args.retry(job, None)))
        }
        (None, Found::Archive(_) | Found::None) => None,
    };
    // What is left to say is said although one of the outputs takes nothing.
    let mut printed = Ok(());
    match args.output {
        Output::Table => {
            printed = show_output(finished, Purpose::Stdout, &result.stdout, &mut standard_out())
                .and(show_output(finished, Purpose::Stderr, &result.stderr, &mut err()));
            whereabouts.say(job);
            say_end(args.leader, result);
            if let (false, Some(archive)) = (wants_files, &result.archive) {
                note(&format!(
                    "the job left {} bytes of files: fetch them with `{} {} --out DIR`",
                    archive.size,
                    args.leader.command("result get"),
                    result.job_id
                ));
            }
            match &files {
                Some(files) => files.say(""),
                None => say_left_out(result, ""),
            }
            saved.say();
            gaps.iter().for_each(|gap| gap.say(""));
        }
        Output::Json | Output::Jsonl => {
            let mut shown = as_json(result);
            if let Value::Object(members) = &mut shown {
                whereabouts.put(members);
                saved.put(members);
                if let Some(files) = &files {
                    files.put(members);
                }
                if !gaps.is_empty() {
                    members.insert("missing".to_owned(), gaps.iter().map(Gap::as_json).collect());
                }
            }
            print_json(&shown)?;
        }
        Output::Quiet => {
            say_end(args.leader, result);
            if let Some(files) = &files {
                files.say("");
            }
            gaps.iter().for_each(|gap| gap.say(""));
        }
    }
    printed?;
    let failed = saved.failed() || files.as_ref().is_some_and(Files::failed);
    let complete = gaps.is_empty() && result.archive_lost.is_none() && !saved.failed();
    let complete = complete && files.is_none_or(|files| files.complete());
    let is_safe = !failed && finished.missing.is_empty();
    Ok(Shown { code: exit_code(result, complete), is_safe })
}

/// Says that files of the job are nowhere, to those who did not ask for files; `whose` stands
/// before it.
pub(crate) fn say_left_out(result: &JobResult, whose: &str) {
    let is_told = result.lost.iter().any(|lost| lost.part == "archive");
    if let Some(bytes) = result.archive_lost.filter(|_| !is_told) {
        Files::Lost(bytes).say(whose);
    }
}

pub(crate) fn exit_code(result: &JobResult, complete: bool) -> ExitCode {
    if result.status == JobStatus::Ok && complete {
        ExitCode::SUCCESS
    } else {
        ExitCode::from(FAILED)
    }
}

/// A text whose last line has an end.
pub(crate) fn ended_line(text: &str) -> Cow<'_, str> {
    if text.is_empty() || text.ends_with('\n') { text.into() } else { format!("{text}\n").into() }
}

/// Says how a job ended, unless that is OK.
pub(crate) fn say_end(leader: &Leader, result: &JobResult) {
    let job = result.job_id;
    match &result.status {
        JobStatus::Ok => {}
        JobStatus::Cancelled => say(&format!("job {job} was cancelled")),
        JobStatus::Failed if result.is_lost() => {
            say(&format!(
                "the result of job {job} is lost at the leader: submit it anew if running it twice does no harm"
            ));
        }
        JobStatus::Failed if was_cancelled(result) => say(&format!("job {job} was cancelled")),
        JobStatus::Failed => {
            let attempts = result.attempts.filter(|attempts| *attempts > 1);
            let attempts =
                attempts.map(|attempts| format!(", after {attempts} attempts")).unwrap_or_default();
            let dead = if result.dead {
                format!(
                    "; it is in the dead-letter queue: see `{} {job}`",
                    leader.command("dlq show")
                )
            } else {
                String::new()
            };
            match result.timed_out_ms {
                Some(limit) => {
                    say(&format!("job {job} timed out: {}{attempts}{dead}", timed_out(limit)));
                }
                None => say(&format!("job {job} FAILED{}{attempts}{dead}", how_it_failed(result))),
            }
        }
        JobStatus::Duplicate => say(&format!(
            "job {job} had run before and its result is lost (DUPLICATE): submit it anew if running it twice does no harm"
        )),
        JobStatus::Other(word) => say(&format!("job {job} ended with the unknown status {word:?}")),
    }
}

pub(crate) fn as_json(result: &JobResult) -> Value {
    json!({
        "job_id": result.job_id,
        "client_id": result.client_id,
        "exec": result.exec_name,
        "status": if result.is_lost() { LOST } else { result.status.as_str() },
        "ended": ended(result),
        "exit_code": result.exit_code,
        "signal": result.signal,
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
) -> Result<(), Unwritten> {
    let Some(path) = finished.part(purpose).and_then(Part::path) else {
        return match finished.missing.iter().find(|missing| missing.purpose == purpose) {
            Some(missing) => print_beginning(missing, text, to),
            None if purpose == Purpose::Stderr => print_to(to, ended_line(text).as_bytes()),
            None => print_to(to, text.as_bytes()),
        };
    };
    File::open(path).and_then(|mut file| io::copy(&mut file, to)).and_then(|_| to.flush())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_shown_as_a_shell_reads_it() {
        for (path, shown) in [
            ("out/run-7", "out/run-7"),
            ("größe", "größe"),
            ("my out", "'my out'"),
            ("a'b;c", "'a'\\''b;c'"),
            ("$HOME", "'$HOME'"),
            ("", "''"),
        ] {
            assert_eq!(shell_word(path), shown);
        }
    }
}
