//! `heft submit`: one job, waited for. It rides out leaders that go away, prints what the job printed, unpacks what it made,
//! and exits with 0 only if the job ended OK.

use std::borrow::Cow;
use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use crate::client::{Client, JobError, JobHandle};
use crate::model::{Deliver, InputFile, JobRequest, JobResult, JobStatus, JsonModel};
use crate::units::{ByteSize, Span};
use anyhow::Context;
use base64::Engine;
use clap::Args;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::children::{Child, children, lines};
use super::files::Files;
use super::progress::Line;
use super::{
    FAILED, INTERRUPTED, Output, Reach, TimedOut, Usage, code_of, print, print_json, printable, say,
    time_limit,
};

/// What a frame leaves for files: base64 makes four bytes of three, and the rest of the job needs a little.
const FILE_BYTES_MAX: u64 = (chunking::limits::FRAME_BODY_BYTES_MAX as u64 - 4_096) / 4 * 3;

const EXAMPLES: &str = "Examples:
  heft submit 127.0.0.1:5000 calcA -- --mode=fast --seed=1
  heft submit 127.0.0.1:5000 calcA --file model.bin --file run7.cfg=config.cfg --out results
  heft submit 127.0.0.1:5000 calcA --output json | jq -r .status
  heft submit 127.0.0.1:5000 groupA --raw --subject groupA --file payload.bin > answer.bin

The job's standard output and error are printed as they are. Ctrl-C cancels the job; a second one leaves at once.

Exit codes: 0 the job ended OK, 1 it FAILED (its own exit code is shown), 2 the command line or a file is not right,
3 the leader refused it or cannot be reached, 4 --timeout ran out (the job goes on), 130 interrupted: cancelled or left.";

/// Hand in one job, wait for it, and print what it printed
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SubmitArgs {
    /// The leader.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    /// The program to run, as the workers know it.
    exec: String,
    /// An input file, and the name it gets in the job's directory (default: its own).
    #[arg(long = "file", value_name = "PATH[=NAME]")]
    files: Vec<String>,
    /// Smaller goes first.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i64,
    /// Run it on every worker that matches; the result holds all of theirs.
    #[arg(long)]
    all: bool,
    /// Send the bytes of the one --file as they are, without a JobRequest around them; its result is printed as it comes.
    #[arg(long, conflicts_with_all = ["priority", "all", "time_limit", "args"], requires = "files")]
    raw: bool,
    /// The subject to submit to (default: job.submit. and EXEC): a group, or job.assign. and so on.
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Who submits (default: submit- and a random id).
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// How long the program may run, such as 30s.
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    time_limit: Option<Span>,
    /// Unpack the files that the job made into this directory; with --all those of each worker into a directory
    /// beneath it that has the worker's id.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// In which form to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// How long to wait for the result, such as 10m (default: as long as it takes).
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    #[command(flatten)]
    reach: Reach,
    /// Arguments of the program.
    #[arg(last = true)]
    args: Vec<String>,
}

/// Runs the command.
pub fn run(args: &SubmitArgs) -> anyhow::Result<ExitCode> {
    super::block_on(finish(args))
}

async fn finish(args: &SubmitArgs) -> anyhow::Result<ExitCode> {
    match submit(args).await {
        Ok(code) => Ok(code),
        Err(error) if args.output == Output::Json => {
            let code = code_of(&error);
            print_json(&failure(&error))?;
            Ok(ExitCode::from(code))
        }
        Err(error) => Err(error),
    }
}

async fn submit(args: &SubmitArgs) -> anyhow::Result<ExitCode> {
    let files = args.files.iter().map(|file| input_file(file)).collect::<anyhow::Result<Vec<_>>>()?;
    let client_id = match &args.client {
        Some(id) => id.clone(),
        None => format!("submit-{}", uuid::Uuid::new_v4().simple()),
    };
    let client = Client::connect(&args.leader, &args.reach.options(&client_id)).await?;
    // From here on Ctrl-C is for the job: it must not end the command between sending the job and waiting for it.
    let interrupts = interrupts().await;
    let default_subject = format!("job.submit.{}", args.exec);
    let subject = args.subject.as_deref().unwrap_or(&default_subject);
    let mut job = if args.raw {
        client.submit_raw(subject, raw_payload(files)?).await?
    } else {
        client.submit_to(subject, request(args, files)).await?
    };
    let ending = follow(args, &mut job, interrupts).await;
    client.close().await;
    let (payload, cancelled) = match ending? {
        Followed::Ended { payload, cancelled } => (payload, cancelled),
        Followed::Left => {
            let job = job.id();
            say(&format!("left job {job} with the leader; `heft cancel {} {job}` ends it", args.leader));
            if args.output == Output::Json {
                print_json(&json!({"job_id": job, "status": "LEFT"}))?;
            }
            return Ok(ExitCode::from(INTERRUPTED));
        }
    };
    match JobResult::parse(&payload) {
        Ok(result) if cancelled && result.status != JobStatus::Ok => {
            show(args, &result)?;
            Ok(ExitCode::from(INTERRUPTED))
        }
        Ok(result) => show(args, &result),
        Err(_) if args.raw => show_raw(args, job.id(), &payload),
        Err(source) => Err(JobError::BadResult { job: job.id(), source }.into()),
    }
}

fn request(args: &SubmitArgs, files: Vec<InputFile>) -> JobRequest {
    JobRequest {
        exec_name: args.exec.clone(),
        args: args.args.clone(),
        files,
        priority: args.priority,
        deliver: if args.all { Deliver::All } else { Deliver::One },
        time_limit_ms: args
            .time_limit
            .map(|limit| u64::try_from(limit.0.as_millis()).unwrap_or(u64::MAX).max(1)),
        ..JobRequest::default()
    }
}

fn raw_payload(mut files: Vec<InputFile>) -> Result<Vec<u8>, Usage> {
    match (files.pop(), files.len()) {
        (Some(file), 0) => Ok(file.content.unwrap_or_default()),
        (_, more) => Err(Usage(format!("--raw sends the bytes of one --file; {} were given", more + 1))),
    }
}

/// Reads `PATH[=NAME]`.
fn input_file(text: &str) -> anyhow::Result<InputFile> {
    let (path, name) = match text.rsplit_once('=') {
        // A file whose own name holds a `=` is meant if it is there.
        Some((path, name)) if !Path::new(text).exists() => (Path::new(path), name.to_owned()),
        Some(_) | None => {
            let path = Path::new(text);
            (path, path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default())
        }
    };
    let shown = path.display();
    if name.is_empty() {
        return Err(Usage(format!("--file {text} gives the file no name: write PATH=NAME")).into());
    }
    let unreadable = |error: io::Error| {
        Usage(format!(
            "cannot read input file {shown}: {error}; check the path, relative paths start at the current directory"
        ))
    };
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let mut content = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > FILE_BYTES_MAX {
        let bytes = bytes.max(content.len() as u64);
        return Err(Usage(format!(
            "input file {shown} has {bytes} bytes ({}); a job carries at most {FILE_BYTES_MAX} ({}) of files in its one \
             frame: make it smaller, or put it where the workers can read it; transfers of large files come with a later \
             version",
            ByteSize(bytes),
            ByteSize(FILE_BYTES_MAX)
        ))
        .into());
    }
    Ok(InputFile::inline(name, content))
}

/// How waiting for a job ended.
enum Followed {
    /// With its end; `cancelled` if Ctrl-C asked for that.
    Ended { payload: bytes::Bytes, cancelled: bool },
    /// The person at the terminal did not want to wait any longer.
    Left,
}

/// Waits for the job's end.
async fn follow(
    args: &SubmitArgs,
    job: &mut JobHandle,
    mut interrupts: mpsc::Receiver<()>,
) -> anyhow::Result<Followed> {
    let mut line = Line::new(job.id(), args.output == Output::Json);
    let deadline = args.timeout.map(|timeout| tokio::time::Instant::now() + timeout.0);
    let mut refresh = tokio::time::interval(Duration::from_millis(500));
    let mut cancelled = false;
    loop {
        let event = tokio::select! {
            event = job.event() => event,
            Some(()) = interrupts.recv() => {
                if cancelled {
                    line.clear();
                    return Ok(Followed::Left);
                }
                cancelled = true;
                line.note("cancelling the job; Ctrl-C again to leave it");
                job.cancel("Ctrl-C at heft submit").await;
                continue;
            }
            () = sleep_until(deadline) => {
                line.clear();
                let after = args.timeout.map_or_else(String::new, |timeout| timeout.to_string());
                let job = job.id();
                return Err(TimedOut(format!(
                    "no result of job {job} within {after} (--timeout); it goes on: `heft cancel {} {job}` ends it",
                    args.leader
                )).into());
            }
            _ = refresh.tick(), if line.is_live() => {
                line.draw();
                continue;
            }
        };
        match event {
            Some(event) => line.take(&event),
            // The news end when the job does.
            None => {
                line.clear();
                return Ok(Followed::Ended { payload: job.wait_raw().await?, cancelled });
            }
        }
    }
}

/// Every Ctrl-C from now on; a third one that nobody has taken is dropped.
async fn interrupts() -> mpsc::Receiver<()> {
    let (pressed, queue) = mpsc::channel(2);
    tokio::spawn(async move {
        while tokio::signal::ctrl_c().await.is_ok() {
            pressed.try_send(()).ok();
        }
    });
    // Listening begins when the task has run.
    tokio::task::yield_now().await;
    queue
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

fn show(args: &SubmitArgs, result: &JobResult) -> anyhow::Result<ExitCode> {
    if args.all
        && let Some(children) = children(result)
    {
        return show_all(args, result, &children);
    }
    let files = args.out.as_ref().map(|dir| Files::take(result, dir));
    match args.output {
        Output::Table => {
            show_outputs(&result.stdout, &result.stderr)?;
            say_end(args, result);
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

/// Shows what each worker made of a job to all of them.
fn show_all(args: &SubmitArgs, result: &JobResult, children: &[Child]) -> anyhow::Result<ExitCode> {
    let mut complete = true;
    let mut shown = Vec::new();
    for child in children {
        let worker = printable(&child.worker);
        let files = match (&args.out, args.out.as_ref().and_then(|all| child.dir(all))) {
            (Some(_), Some(dir)) => Some(Files::take(&child.result, &dir)),
            (Some(all), None) => {
                let error = anyhow::anyhow!("the worker's id {:?} is no name for a directory", child.worker);
                Some(Files::Broken(all.clone(), error))
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
fn say_end(args: &SubmitArgs, result: &JobResult) {
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
    })
}

fn show_raw(args: &SubmitArgs, job: uuid::Uuid, payload: &[u8]) -> anyhow::Result<ExitCode> {
    match args.output {
        Output::Table => print(payload)?,
        Output::Json => {
            let text = base64::engine::general_purpose::STANDARD.encode(payload);
            print_json(&json!({"job_id": job, "status": "RAW", "payload_base64": text}))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What stands in place of a result.
fn failure(error: &anyhow::Error) -> Value {
    match error.downcast_ref::<JobError>() {
        Some(JobError::Refused { job, refusal }) => json!({
            "job_id": job,
            "status": "REFUSED",
            "reason": refusal.reason.to_string(),
            "value": refusal.value,
            "limit": refusal.limit,
            "hop": refusal.hop,
            "error": format!("{error:#}"),
        }),
        Some(JobError::CancelledUnsent { .. } | JobError::BadResult { .. } | JobError::Closed { .. })
        | None => {
            json!({"status": "ERROR", "error": format!("{error:#}")})
        }
    }
}
