//! `heft submit`: one job, waited for. It rides out leaders that go away, prints what the job
//! printed, unpacks what it made, and exits with 0 only if the job ended OK.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::client::{
    Client, ClientError, Finished, Input, JobError, JobHandle, JobSpec, Options, Receipt,
};
use crate::core::names::{flattened, input_names};
use crate::model::{Deliver, JobRequest, JobResult, JobStatus};
use crate::transfer::{Compression, Source};
use crate::units::{ByteSize, Span};
use base64::Engine;
use chunking::{Codec, DigestKind};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::all::{Asker, show_all};
use super::children::{Child, children};
use super::dataset::select::{self, Selected, resolve};
use super::exit::{TIMED_OUT, TimedOut, Usage, code_of};
use super::interrupts::{Interrupt, interrupts};
use super::job_line::Line;
use super::leaving::{Leaving, Left, Reached, leave};
use super::out::OutArgs;
use super::progress::Progress;
use super::queued::Why;
use super::show::{Show, Shown, show};
use super::{Output, Reach, print, print_json, say, time_limit};

/// What is read of a file that has no size, such as a pipe, and of one that is sent --raw: what
/// fits one frame, with room for its subject. It bounds memory; the exact limit, which depends on
/// the subject, is the client's and the leader's to say.
const READ_BYTES_MAX: u64 = chunking::limits::FRAME_BODY_BYTES_MAX as u64 - 4_096;

const EXAMPLES: &str = "Examples:
  heft submit 127.0.0.1:5000 calcA -- --mode=fast --seed=1
  heft submit 127.0.0.1:5000 calcA --file model.bin --file run7.cfg=config.cfg --out results
  heft submit 127.0.0.1:5000 calcA --file 20GiB.bin --digest blake3 --progress json 2> progress.jsonl
  heft submit 127.0.0.1:5000 calcA --dataset models-v2/large.bin=model.bin --dataset tables
  heft submit 127.0.0.1:5000 calcA --output json | jq -r .status
  heft submit 127.0.0.1:5000 calcA --all --out results
  heft submit 127.0.0.1:5000 groupA --raw --subject groupA --file payload.bin > answer.bin

Files of any size stream from where they are; they must not change before the job has ended. The job's standard output and
error are printed as they are. Ctrl-C, SIGTERM and SIGHUP cancel the job; a second one leaves at once.

Exit codes: 0 the job ended OK, 1 it FAILED (its own exit code is shown) or bytes of its result are missing, 2 invalid
command line or file, 3 the leader refused it or cannot be reached, 4 --timeout ran out (the job's fate is printed), 130
interrupted (143 by SIGTERM, 129 by SIGHUP): cancelled or left. With --all: 0 only if it ended OK at every worker and all results arrived.";

/// Submit one job, wait for it, and print its output
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SubmitArgs {
    /// Leader address.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    /// Program to run, by its name at the workers.
    exec: String,
    /// Input file, and its name in the job's directory (default: the file's own).
    #[arg(long = "file", value_name = "PATH[=NAME]")]
    files: Vec<String>,
    /// Files of a dataset: one file, those in a folder, or all; and their name in the job's
    /// directory (default: that in the dataset).
    #[arg(long = "dataset", value_name = "ID[/PATH[=NAME]]", value_parser = select::dataset)]
    datasets: Vec<Selected>,
    /// The same, also for a file that only a worker's cache directory has.
    #[arg(long = "cache", value_name = "ID[/PATH[=NAME]]", value_parser = select::cache)]
    caches: Vec<Selected>,
    /// Digest of large files: over the list of chunk checksums, or over every byte.
    #[arg(long, value_enum, default_value_t)]
    digest: DigestChoice,
    /// Compression of large files.
    #[arg(long, value_enum, default_value_t)]
    compress: CompressChoice,
    /// Fail at once if no connected worker can take the job, instead of waiting for one.
    #[arg(long)]
    require_worker: bool,
    /// Allow classic workers although files are in folders: they get `data/a.bin` as `a.bin`.
    #[arg(long)]
    flatten: bool,
    /// Priority; smaller goes first.
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i64,
    /// Run the job on every matching worker, and show each result.
    #[arg(long)]
    all: bool,
    /// Send the bytes of the one --file as the payload, without a JobRequest; the result is printed
    /// as received.
    #[arg(long, conflicts_with_all = ["priority", "all", "time_limit", "args", "require_worker", "flatten", "caches", "datasets"], requires = "files")]
    raw: bool,
    /// Subject to submit to (default: job.submit. and EXEC): a group, or job.assign. and so on.
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Client id (default: submit- and a random id).
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Time limit of the program, such as 30s. A classic worker cannot stop it: the job then fails
    /// with TIMEOUT, and the program keeps running
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    time_limit: Option<Span>,
    #[command(flatten)]
    out: OutArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Progress output: a line on a terminal, JSON objects on standard error, or none.
    #[arg(long, value_enum, default_value_t)]
    progress: Progress,
    /// Time to wait for the result, such as 10m (default: no limit).
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    #[command(flatten)]
    reach: Reach,
    /// Arguments of the program.
    #[arg(last = true)]
    args: Vec<String>,
}

/// The digests on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum DigestChoice {
    /// SHA-256 over the chunks' CRC-32s: cheap.
    #[default]
    ChunkList,
    /// SHA-256 of all bytes.
    Sha256,
    /// BLAKE3 of all bytes.
    Blake3,
}

impl From<DigestChoice> for DigestKind {
    fn from(choice: DigestChoice) -> DigestKind {
        match choice {
            DigestChoice::ChunkList => DigestKind::ChunkList,
            DigestChoice::Sha256 => DigestKind::Sha256,
            DigestChoice::Blake3 => DigestKind::Blake3,
        }
    }
}

/// The ways to compress on the command line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum CompressChoice {
    /// zstd, if a sample shows that it pays off.
    #[default]
    Auto,
    /// zstd, for chunks it makes smaller.
    Zstd,
    /// brotli.
    Brotli,
    /// gzip.
    Gzip,
    /// No compression.
    None,
}

impl From<CompressChoice> for Compression {
    fn from(choice: CompressChoice) -> Compression {
        match choice {
            CompressChoice::Auto => Compression::Auto,
            CompressChoice::Zstd => Compression::Fixed(Codec::Zstd),
            CompressChoice::Brotli => Compression::Fixed(Codec::Brotli),
            CompressChoice::Gzip => Compression::Fixed(Codec::Gzip),
            CompressChoice::None => Compression::Fixed(Codec::None),
        }
    }
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
    args.out.check()?;
    if args.all && args.out.save_archive.is_some() {
        let text =
            "--save-archive keeps one archive, and with --all each worker makes its own: use --out";
        return Err(Usage(text.to_owned()).into());
    }
    let deadline =
        args.timeout.and_then(|timeout| tokio::time::Instant::now().checked_add(timeout.0));
    let files = input_files(args, deadline).await?;
    if !args.raw {
        let named = selections(args).filter_map(|selected| selected.name.as_deref());
        input_names(files.iter().map(|file| file.name.as_str()).chain(named)).map_err(unfit)?;
    }
    let client_id = match &args.client {
        Some(id) => id.clone(),
        None => format!("submit-{}", uuid::Uuid::new_v4().simple()),
    };
    let downloads = if args.all { Default::default() } else { args.out.downloads(args.output) };
    // What the leader has to be asked about; a classic one knows no datasets.
    let asks = selections(args).any(|selected| selected.is_strict || selected.inner.is_none());
    let reach =
        if asks { args.reach.asking_options(&client_id) } else { args.reach.options(&client_id) };
    let options = Options { downloads, receipt: Receipt::ByCaller, ..reach };
    let client = before(
        args,
        deadline,
        "the leader was not reached",
        Client::connect(&args.leader, &options),
    )
    .await??;
    // From here on Ctrl-C is for the job: it must not end the command between sending the job and
    // waiting for it.
    let mut interrupts = interrupts();
    let default_subject = format!("job.submit.{}", args.exec);
    let subject = args.subject.as_deref().unwrap_or(&default_subject);
    let mut job = if args.raw {
        client.submit_raw(subject, raw_payload(files)?).await?
    } else {
        let unanswered = "the leader did not list the files of the datasets";
        let cached =
            before(args, deadline, unanswered, resolve(&client, &args.leader, selections(args)))
                .await??;
        input_names(
            files
                .iter()
                .map(|file| &file.name)
                .chain(cached.iter().map(|file| &file.name))
                .map(String::as_str),
        )
        .map_err(unfit)?;
        if args.flatten {
            let names =
                files.iter().map(|file| &file.name).chain(cached.iter().map(|file| &file.name));
            flattened(names.map(String::as_str))
                .map_err(|error| Usage(format!("--flatten: {error}")))?;
        }
        let spec = JobSpec {
            inputs: files,
            digest: args.digest.into(),
            compression: args.compress.into(),
            ..JobSpec::from(JobRequest { files: cached, ..request(args) })
        };
        let of_datasets = spec.request.files.len();
        client.submit_to(subject, spec).await.map_err(|error| too_many(error, of_datasets))?
    };
    let why = Why::new(&client, job.id());
    let ending = follow(args, &mut job, why, &mut interrupts, deadline).await;
    if !matches!(&ending, Ok(Followed::Ended { .. })) {
        client.close().await;
    }
    let (finished, cancelled) = match ending? {
        Followed::Ended { finished, cancelled } => (finished, cancelled),
        Followed::TimedOut(left) => {
            let (job, after) =
                (job.id(), args.timeout.map_or_else(String::new, |timeout| timeout.to_string()));
            let left_text = left.text(&args.leader, job);
            let text = format!("no result of job {job} within {after} (--timeout); {left_text}");
            if args.output == Output::Json {
                print_json(&left.as_json(job, &text))?;
                return Ok(ExitCode::from(TIMED_OUT));
            }
            return Err(TimedOut::Waiting(text).into());
        }
        Followed::Unsent(error, interrupt) => {
            let error = error.into();
            match args.output {
                Output::Table => say(&format!("{error:#}")),
                Output::Json => print_json(&failure(&error))?,
            }
            return Ok(ExitCode::from(interrupt.code()));
        }
        Followed::Left(reached, interrupt) => {
            let job = job.id();
            match reached {
                Reached::Taken => {
                    say(&format!(
                        "left job {job} with the leader; `heft cancel {} {job}` cancels it",
                        args.leader
                    ));
                }
                Reached::Nothing | Reached::Sent | Reached::Uploading { .. } | Reached::InDoubt => {
                    say(&format!(
                        "left job {job} before the leader acknowledged it; the leader was asked to \
                         cancel it: see `heft explain {} {job}`",
                        args.leader
                    ))
                }
            }
            if args.output == Output::Json {
                print_json(&json!({"job_id": job, "status": "LEFT"}))?;
            }
            return Ok(ExitCode::from(interrupt.code()));
        }
    };
    let shown = show_end(args, &client, job.id(), &finished, (&mut interrupts, deadline)).await;
    if shown.as_ref().is_ok_and(|shown| shown.is_safe) {
        job.received().await;
    }
    client.close().await;
    match cancelled {
        Some(interrupt) if finished.result().is_ok_and(|result| result.status != JobStatus::Ok) => {
            if let Err(error) = shown {
                say(&format!("{error:#}"));
            }
            Ok(ExitCode::from(interrupt.code()))
        }
        Some(_) | None => shown.map(|shown| shown.code),
    }
}

/// The files of datasets that are asked for.
fn selections(args: &SubmitArgs) -> impl Iterator<Item = &Selected> {
    args.caches.iter().chain(&args.datasets)
}

fn unfit(error: impl std::fmt::Display) -> Usage {
    Usage(format!("--file and --dataset: {error}"))
}

/// A request can be too large for the names of files of datasets alone.
fn too_many(error: ClientError, of_datasets: usize) -> anyhow::Error {
    if let ClientError::TooLarge { bytes, limit } = error
        && of_datasets > 0
    {
        return Usage(format!(
            "the job's request has {bytes} bytes with the names of {of_datasets} files of datasets; a \
             frame holds at most {limit}: select fewer files with --dataset ID/PATH"
        ))
        .into();
    }
    error.into()
}

/// Shows what came of a job.
async fn show_end(
    args: &SubmitArgs,
    client: &Client,
    job: uuid::Uuid,
    finished: &Finished,
    (interrupts, deadline): (&mut mpsc::Receiver<Interrupt>, Option<tokio::time::Instant>),
) -> anyhow::Result<Shown> {
    let result = match finished.result() {
        Ok(result) => result,
        Err(_) if args.raw => {
            let code = show_raw(args, job, &finished.payload)?;
            return Ok(Shown { code, is_safe: true });
        }
        Err(source) => return Err(JobError::BadResult { job, source }.into()),
    };
    if let Some(children) = children(&result).filter(|_| args.all) {
        return show_children(args, client, &result, &children, (interrupts, deadline)).await;
    }
    let show_args = show_args(args);
    tokio::select! {
        shown = show(&show_args, &result, finished) => shown,
        Some(interrupt) = interrupts.recv() => {
            let retry = show_args.retry(job, args.out.out.as_deref());
            say(&format!("left before the job's files were here, and what there was of them is removed; {retry}"));
            Ok(Shown { code: ExitCode::from(interrupt.code()), is_safe: false })
        }
    }
}

fn show_args(args: &SubmitArgs) -> Show<'_> {
    let SubmitArgs { leader, out, output, progress, .. } = args;
    Show { leader, out, output: *output, progress: *progress }
}

/// Does what comes before the job is sent, within `--timeout`. An error says what was not done by
/// then.
async fn before<T>(
    args: &SubmitArgs,
    deadline: Option<tokio::time::Instant>,
    undone: &str,
    step: impl Future<Output = T>,
) -> Result<T, TimedOut> {
    tokio::select! {
        done = step => Ok(done),
        () = sleep_until(deadline) => {
            let after = args.timeout.map_or_else(String::new, |timeout| timeout.to_string());
            let leader = &args.leader;
            Err(TimedOut::Unsent(format!("{undone} within {after} (--timeout): nothing was sent to {leader}; is it running, and is this \
                its address?")))
        }
    }
}

/// Shows what each worker made of the job, and fetches what did not come with its result.
async fn show_children(
    args: &SubmitArgs,
    client: &Client,
    result: &JobResult,
    children: &[Child],
    (interrupts, deadline): (&mut mpsc::Receiver<Interrupt>, Option<tokio::time::Instant>),
) -> anyhow::Result<Shown> {
    let show_args = show_args(args);
    let asker = Asker { client, progress: args.progress };
    let later = format!("`heft result get {} {}` fetches all of them", args.leader, result.job_id);
    tokio::select! {
        shown = show_all(&show_args, &asker, result, children) => shown,
        Some(interrupt) = interrupts.recv() => {
            say(&format!("left before the results of all workers had arrived; {later}"));
            Ok(Shown { code: ExitCode::from(interrupt.code()), is_safe: false })
        }
        () = sleep_until(deadline) => {
            let after = args.timeout.map_or_else(String::new, |timeout| timeout.to_string());
            Err(TimedOut::Waiting(format!(
                "the results of all workers did not arrive within {after} (--timeout); {later}"
            )).into())
        }
    }
}

fn request(args: &SubmitArgs) -> JobRequest {
    JobRequest {
        exec_name: args.exec.clone(),
        args: args.args.clone(),
        priority: args.priority,
        require_worker: args.require_worker,
        flatten: args.flatten,
        deliver: if args.all { Deliver::All } else { Deliver::One },
        time_limit_ms: args
            .time_limit
            .map(|limit| u64::try_from(limit.0.as_millis()).unwrap_or(u64::MAX).max(1)),
        ..JobRequest::default()
    }
}

fn raw_payload(mut files: Vec<Input>) -> Result<bytes::Bytes, Usage> {
    match (files.pop(), files.len()) {
        (Some(Input { source: Source::Memory(bytes), .. }), 0) => Ok(bytes),
        (Some(Input { source: Source::File(file), .. }), 0) => {
            match file.read_small(READ_BYTES_MAX) {
                Ok(Some(content)) => Ok(content.into()),
                Ok(None) => Err(Usage(format!(
                    "{} has {} bytes; --raw sends at most {READ_BYTES_MAX} in one frame: submit it \
                     without --raw, as a transfer, or make it smaller",
                    file.path().display(),
                    file.size()
                ))),
                Err(error) => Err(Usage(error.to_string())),
            }
        }
        (_, more) => {
            Err(Usage(format!("--raw sends the bytes of one --file; {} were given", more + 1)))
        }
    }
}

/// The files of the command line. A pipe is read until its end, by a thread of its own: whoever has
/// to write to it may never come, and nothing but the end of the process stops such a read.
async fn input_files(
    args: &SubmitArgs,
    deadline: Option<tokio::time::Instant>,
) -> anyhow::Result<Vec<Input>> {
    let (named, (read, done)) = (args.files.clone(), tokio::sync::oneshot::channel());
    std::thread::Builder::new().name("inputs".to_owned()).spawn(move || {
        let files = named.iter().map(|file| input_file(file)).collect::<anyhow::Result<Vec<_>>>();
        read.send(files).ok();
    })?;
    tokio::select! {
        files = done => files?,
        () = sleep_until(deadline) => {
            let after = args.timeout.map_or_else(String::new, |timeout| timeout.to_string());
            Err(TimedOut::Unsent(format!(
                "not all of {} was read within {after} (--timeout): nothing was sent to {}; a pipe \
                 is read until its writer closes it",
                args.files.join(" and "),
                args.leader
            )).into())
        }
    }
}

/// Reads `PATH[=NAME]`.
fn input_file(text: &str) -> anyhow::Result<Input> {
    let (path, name) = match text.rsplit_once('=') {
        // A file whose own name holds a `=` is meant if it is there.
        Some((path, name)) if !Path::new(text).exists() => (Path::new(path), name.to_owned()),
        Some(_) | None => {
            let path = Path::new(text);
            (
                path,
                path.file_name()
                    .map(|name| name.to_string_lossy().into_owned())
                    .unwrap_or_default(),
            )
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
    if file.metadata().map_err(unreadable)?.is_file() {
        return Ok(Input { name, source: Source::file(path).map_err(unreadable)? });
    }
    let mut content = Vec::new();
    file.take(READ_BYTES_MAX + 1).read_to_end(&mut content).map_err(unreadable)?;
    if content.len() as u64 > READ_BYTES_MAX {
        return Err(Usage(format!(
            "{shown} is not a regular file and yields over {READ_BYTES_MAX} bytes ({}): write it \
             to a file first; regular files may have any size",
            ByteSize(READ_BYTES_MAX)
        ))
        .into());
    }
    Ok(Input { name, source: Source::Memory(content.into()) })
}

/// How waiting for a job ended.
enum Followed {
    /// With its end; `cancelled` if Ctrl-C or a signal asked for that.
    Ended { finished: Finished, cancelled: Option<Interrupt> },
    /// The person at the terminal did not want to wait any longer.
    Left(Reached, Interrupt),
    /// It was cancelled before it was sent.
    Unsent(JobError, Interrupt),
    /// `--timeout` ran out.
    TimedOut(Left),
}

/// Waits for the job's end.
async fn follow(
    args: &SubmitArgs,
    job: &mut JobHandle,
    mut why: Why,
    interrupts: &mut mpsc::Receiver<Interrupt>,
    deadline: Option<tokio::time::Instant>,
) -> anyhow::Result<Followed> {
    let mut line = Line::new(job.id(), args.progress, args.output == Output::Json);
    let mut refresh = tokio::time::interval(Duration::from_millis(500));
    let mut cancelled = None;
    let mut reached = Reached::default();
    loop {
        let event = tokio::select! {
            event = job.event() => event,
            Some(interrupt) = interrupts.recv() => {
                if cancelled.is_some() {
                    line.clear();
                    return Ok(Followed::Left(reached, interrupt));
                }
                cancelled = Some(interrupt);
                line.note(&match interrupt {
                    Interrupt::CtrlC => "cancelling the job; Ctrl-C again to leave it".to_owned(),
                    Interrupt::Terminate | Interrupt::HangUp => {
                        format!("{}: cancelling the job; a second signal leaves it", interrupt.name())
                    }
                });
                job.cancel(format!("{} at heft submit", interrupt.name())).await;
                continue;
            }
            () = sleep_until(deadline) => {
                line.clear();
                return Ok(match leave(job, reached).await {
                    Leaving::Left(left) => Followed::TimedOut(left),
                    Leaving::Ended(finished) => Followed::Ended { finished, cancelled: None },
                });
            }
            said = why.next(), if line.is_queued() => {
                if let Some(text) = said {
                    line.queued(&text);
                }
                continue;
            }
            _ = refresh.tick(), if line.is_live() => {
                line.draw();
                continue;
            }
        };
        match event {
            Some(event) => {
                reached.take(&event);
                line.take(&event);
            }
            // The news end when the job does.
            None => {
                line.clear();
                return match (job.finish().await, cancelled) {
                    (Ok(finished), _) => Ok(Followed::Ended { finished, cancelled }),
                    (Err(error @ JobError::CancelledUnsent { .. }), Some(interrupt)) => {
                        Ok(Followed::Unsent(error, interrupt))
                    }
                    (Err(error), _) => Err(error.into()),
                };
            }
        }
    }
}

async fn sleep_until(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline).await,
        None => std::future::pending().await,
    }
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
    if let Some(TimedOut::Unsent(_)) = error.downcast_ref() {
        return json!({"status": "ERROR", "left": Left::NeverSent.word(), "error": format!("{error:#}")});
    }
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
        Some(JobError::InputLost { job, name, reason, .. }) => json!({
            "job_id": job,
            "status": "ERROR",
            "file": name,
            "reason": reason.to_string(),
            "error": format!("{error:#}"),
        }),
        Some(JobError::NoWelcome { job, leader, waited, .. }) => json!({
            "job_id": job,
            "status": "ERROR",
            "reason": "no-welcome",
            "leader": leader,
            "waited_ms": u64::try_from(waited.0.as_millis()).unwrap_or(u64::MAX),
            "error": format!("{error:#}"),
        }),
        Some(
            JobError::CancelledUnsent { .. } | JobError::BadResult { .. } | JobError::Closed { .. },
        )
        | None => {
            json!({"status": "ERROR", "error": format!("{error:#}")})
        }
    }
}
