//! `heft submit`: one job, waited for. It rides out leaders that go away, prints what the job
//! printed, unpacks what it made, and exits with 0 only if the job ended OK. With `--detach` it
//! waits until the leader has the job with all of its inputs, and no longer.

use std::io::Write as _;
use std::process::ExitCode;
use std::time::Duration;

use crate::client::{
    Client, ClientError, Finished, JobError, JobHandle, JobSpec, Options, Receipt, UNCAPPED,
};
use crate::core::names::{flattened, input_names};
use crate::model::limits::TAG_BYTES_MAX;
use crate::model::{Deliver, JobRequest, JobResult, JobStatus};
use crate::transfer::Compression;
use crate::units::Span;
use chunking::{Codec, DigestKind};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::children::{Child, children};
use super::dataset::select::{self, Selected, resolve};
use super::ending::Whereabouts;
use super::exit::{TIMED_OUT, TimedOut, Usage, code_of};
use super::identity::default_client_id;
use super::interrupts::{Interrupt, Interrupts, Stopped, interrupts};
use super::job_line::Line;
use super::last;
use super::leaving::{Leaving, Left, Reached, leave};
use super::out::OutArgs;
use super::output::{OUTPUT_VARIABLE, print_id, with_code};
use super::progress::Progress;
use super::queued::Why;
use super::raw::show_raw;
use super::reach::{Leader, Leaders};
use super::show::{Show, Shown, show};
use super::show_children::{Asker, show_all};
use super::submit_files::{input_files, raw_payload};
use super::{Output, Reach, Unwritten, err, print, print_json, say, time_limit};

const EXAMPLES: &str = "Examples:
  heft submit calcA -- --mode=fast --seed=1
  heft submit calcA -l leader.example:5000 --file model.bin
  heft submit calcA --file model.bin --file run7.cfg=config.cfg --out results
  heft submit calcA --file 20GiB.bin --digest blake3 --progress json 2> progress.jsonl
  heft submit calcA --dataset models-v2/large.bin=model.bin --dataset tables
  heft submit calcA --output json | jq -r .status
  heft submit calcA --all --out results
  job=$(heft submit calcA --file 20GiB.bin --tag nightly --detach)
  heft submit groupA --raw --subject groupA --file payload.bin > answer.bin

Files of any size stream from where they are; they must not change before the job has ended. The
job's standard output and error are printed as they are. Ctrl-C, SIGTERM and SIGHUP cancel the
job; a second one leaves at once. The line `job ID` on standard error says that the leader has
the job; from then on `last` means it in commands such as `heft job wait last`.

Exit codes: 0 the job ended OK (with --detach: the leader has it), 1 it FAILED (its own exit
code is shown) or bytes of its result are missing, 2 invalid command line or file, 3 the leader
refused it or cannot be reached, 4 --timeout ran out (the job's fate is printed), 130
interrupted (143 by SIGTERM, 129 by SIGHUP): cancelled or left. With --all: 0 only if it ended
OK at every worker and all results arrived.";

/// Submit one job, wait for it, and print its output
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SubmitArgs {
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
    #[arg(long, conflicts_with_all = ["priority", "all", "time_limit", "args", "require_worker", "flatten", "caches", "datasets", "digest", "compress"], requires = "files")]
    raw: bool,
    /// Name of a group of jobs, by which `heft job` finds them.
    #[arg(long, value_name = "TAG", conflicts_with = "raw", value_parser = tag)]
    tag: Option<String>,
    /// Print the job's id and leave once the leader has the job with all of its inputs. The result
    /// stays at the leader for its --result-ttl.
    #[arg(long, conflicts_with_all = ["out", "force", "save_archive"])]
    detach: bool,
    /// Subject to submit to (default: job.submit. and EXEC): a group, or job.assign. and so on.
    #[arg(long, value_name = "SUBJECT")]
    subject: Option<String>,
    /// Client id (default: the context's, else the user at this host). Priorities order the queued
    /// jobs of one client for one program.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
    /// Maximum number of this client's jobs that run at a time (default: as many as workers take).
    /// It holds for all jobs of the client id, until another command names another number.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=2_147_483_647))]
    cap: Option<u32>,
    /// Time limit of the program, such as 30s. A classic worker cannot stop it: the job then fails
    /// with TIMEOUT, and the program keeps running
    #[arg(long, value_name = "TIME", value_parser = time_limit)]
    time_limit: Option<Span>,
    #[command(flatten)]
    out: OutArgs,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    /// Progress output: a line on a terminal, JSON objects on standard error, or none.
    #[arg(long, value_enum, default_value_t)]
    progress: Progress,
    /// Time to wait for the result, or with --detach until the leader has the job, such as 10m
    /// (default: no limit).
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
        Err(error) if args.output.is_json() && !error.is::<Unwritten>() => {
            let code = code_of(&error);
            print_json(&with_code(failure(&error), code))?;
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
    let leaders = args.reach.leaders()?;
    // From here on Ctrl-C is for the job: it must not end the command between sending the job and
    // waiting for it.
    let mut interrupts = interrupts()?;
    let mut first = Before { args, leaders: &leaders, deadline, interrupts: &mut interrupts };
    let unread = format!("not all of {} was read", args.files.join(" and "));
    let pipes = "a pipe is read until its writer closes it";
    let files = first.does(&unread, pipes, input_files(&args.files)).await??;
    if !args.raw {
        let named = selections(args).filter_map(|selected| selected.name.as_deref());
        input_names(files.iter().map(|file| file.name.as_str()).chain(named)).map_err(unfit)?;
    }
    let client_id = match args.client.as_deref().or(leaders.client_id()) {
        Some(id) => id.to_owned(),
        None => default_client_id(),
    };
    let downloads = match args.all || args.detach {
        true => Default::default(),
        false => {
            args.out.remove_abandoned(args.output);
            args.out.downloads(args.output)
        }
    };
    // What the leader has to be asked about; a classic one knows no datasets.
    let asks = selections(args).any(|selected| selected.is_strict || selected.inner.is_none());
    let reach =
        if asks { args.reach.asking_options(&client_id) } else { args.reach.options(&client_id) };
    let options = Options {
        downloads,
        receipt: Receipt::ByCaller,
        desired: args.cap.unwrap_or(UNCAPPED),
        ..reach
    };
    let reaching = async {
        let leader = args.reach.first_of(&leaders).await?;
        let client = leader.connect(&options).await?;
        anyhow::Ok((leader, client))
    };
    let (leader, client) =
        first.does("the leader was not reached", IS_IT_THERE, reaching).await??;
    let leader = &leader;
    let default_subject = format!("job.submit.{}", args.exec);
    let subject = args.subject.as_deref().unwrap_or(&default_subject);
    let mut job = if args.raw {
        let payload = raw_payload(files)?;
        match args.detach {
            true => client.submit_raw_detached(subject, payload).await?,
            false => client.submit_raw(subject, payload).await?,
        }
    } else {
        let unanswered = "the leader did not list the files of the datasets";
        let resolving = resolve(&client, leader, selections(args));
        let cached = first.does(unanswered, IS_IT_THERE, resolving).await??;
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
            detached: args.detach,
            ..JobSpec::from(JobRequest { files: cached, ..request(args) })
        };
        let of_datasets = spec.request.files.len();
        client.submit_to(subject, spec).await.map_err(|error| too_many(error, of_datasets))?
    };
    if args.output == Output::Quiet {
        print_id(&job.id().to_string())?;
    }
    let why = Why::new(&client, job.id());
    let ending = follow(args, leader.address(), &mut job, why, &mut interrupts, deadline).await;
    if !matches!(&ending, Ok(Followed::Ended { .. })) {
        client.close().await;
    }
    let (finished, cancelled) = match ending? {
        Followed::Ended { finished, cancelled } => (finished, cancelled),
        Followed::Taken => {
            match args.output {
                Output::Table => print(format!("{}\n", job.id()).as_bytes())?,
                Output::Json | Output::Jsonl => {
                    print_json(&json!({"job_id": job.id(), "status": "SUBMITTED"}))?
                }
                // It is there already.
                Output::Quiet => {}
            }
            return Ok(ExitCode::SUCCESS);
        }
        Followed::TimedOut(left) => {
            let (job, after) = (job.id(), said_timeout(args));
            let left_text = left.text(leader, job, "a longer --timeout");
            let text = format!("no result of job {job} within {after} (--timeout); {left_text}");
            if args.output.is_json() {
                print_json(&with_code(left.as_json(job, &text), TIMED_OUT))?;
                return Ok(ExitCode::from(TIMED_OUT));
            }
            return Err(TimedOut::Waiting(text).into());
        }
        Followed::Interrupted(left, interrupt) => {
            let left_text = left.text(leader, job.id(), "--detach");
            let text = format!("{} ended heft submit; {left_text}", interrupt.name());
            if args.output.is_json() {
                print_json(&with_code(left.as_json(job.id(), &text), interrupt.code()))?;
            } else {
                say(&text);
            }
            return Ok(ExitCode::from(interrupt.code()));
        }
        Followed::Unsent(error, interrupt) => {
            let error = error.into();
            if args.output.is_json() {
                print_json(&with_code(failure(&error), interrupt.code()))?;
            } else {
                say(&format!("{error:#}"));
            }
            return Ok(ExitCode::from(interrupt.code()));
        }
        Followed::Left(reached, interrupt) => {
            let job = job.id();
            match reached {
                Reached::Taken => {
                    say(&format!(
                        "left job {job} with the leader; `{} {job}` cancels it",
                        leader.command("cancel")
                    ));
                }
                Reached::Nothing | Reached::Sent | Reached::Uploading { .. } | Reached::InDoubt => {
                    say(&format!(
                        "left job {job} before the leader acknowledged it; the leader was asked to \
                         cancel it: see `{} {job}`",
                        leader.command("explain")
                    ))
                }
            }
            if args.output.is_json() {
                print_json(&json!({"job_id": job, "status": "LEFT"}))?;
            }
            return Ok(ExitCode::from(interrupt.code()));
        }
    };
    let show_args = show_args(args, leader);
    let until = (&mut interrupts, deadline);
    let shown = show_end(&show_args, args, &client, job.id(), &finished, until).await;
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
    show_args: &Show<'_>,
    args: &SubmitArgs,
    client: &Client,
    job: uuid::Uuid,
    finished: &Finished,
    (interrupts, deadline): (&mut Interrupts, Option<tokio::time::Instant>),
) -> anyhow::Result<Shown> {
    let result = match finished.result() {
        Ok(result) => result,
        Err(_) if args.raw => {
            let whereabouts = Whereabouts::ask(client, job, args.output, args.progress).await;
            let code = show_raw(args.output, &whereabouts, job, &finished.payload)?;
            return Ok(Shown { code, is_safe: true });
        }
        Err(source) => return Err(JobError::BadResult { job, source }.into()),
    };
    if let Some(children) = children(&result).filter(|_| args.all) {
        let asker = Asker { client, progress: args.progress };
        return show_children(args, show_args, &asker, &result, &children, (interrupts, deadline))
            .await;
    }
    tokio::select! {
        shown = show(show_args, client, &result, finished) => shown,
        Some(interrupt) = interrupts.recv() => {
            let retry = show_args.retry(job, args.out.out.as_deref());
            let text = format!(
                "left before the job's files were here, and what there was of them is removed; \
                 {retry}"
            );
            Err(Stopped { interrupt, text, job: Some(job) }.into())
        }
    }
}

fn show_args<'a>(args: &'a SubmitArgs, leader: &'a Leader) -> Show<'a> {
    let SubmitArgs { out, output, progress, .. } = args;
    Show { leader, out, output: *output, progress: *progress }
}

const IS_IT_THERE: &str = "is it running, and is this its address?";

/// What comes before the job is sent: it ends with `--timeout`, or by a signal.
struct Before<'a> {
    args: &'a SubmitArgs,
    leaders: &'a Leaders,
    deadline: Option<tokio::time::Instant>,
    interrupts: &'a mut Interrupts,
}

impl Before<'_> {
    /// Does one step. An error says what was not done by then, and what may help.
    async fn does<T>(
        &mut self,
        undone: &str,
        hint: &str,
        step: impl Future<Output = T>,
    ) -> anyhow::Result<T> {
        let leaders = self.leaders;
        tokio::select! {
            done = step => Ok(done),
            Some(interrupt) = self.interrupts.recv() => {
                let name = interrupt.name();
                let text = format!("{name} ended heft submit: nothing was sent to {leaders}");
                Err(Stopped { interrupt, text, job: None }.into())
            }
            () = sleep_until(self.deadline) => {
                let after = said_timeout(self.args);
                let text = format!(
                    "{undone} within {after} (--timeout): nothing was sent to {leaders}; {hint}"
                );
                Err(TimedOut::Unsent(text).into())
            }
        }
    }
}

fn said_timeout(args: &SubmitArgs) -> String {
    args.timeout.map_or_else(String::new, |timeout| timeout.to_string())
}

/// Shows what each worker made of the job, and fetches what did not come with its result.
async fn show_children(
    args: &SubmitArgs,
    show: &Show<'_>,
    asker: &Asker<'_>,
    result: &JobResult,
    children: &[Child],
    (interrupts, deadline): (&mut Interrupts, Option<tokio::time::Instant>),
) -> anyhow::Result<Shown> {
    let fetch = show.leader.command("result get");
    let later = format!("`{fetch} {}` fetches all of them", result.job_id);
    tokio::select! {
        shown = show_all(show, asker, result, children) => shown,
        Some(interrupt) = interrupts.recv() => {
            let text = format!("left before the results of all workers had arrived; {later}");
            Err(Stopped { interrupt, text, job: Some(result.job_id) }.into())
        }
        () = sleep_until(deadline) => {
            let after = said_timeout(args);
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
        tag: args.tag.clone(),
        time_limit_ms: args
            .time_limit
            .map(|limit| u64::try_from(limit.0.as_millis()).unwrap_or(u64::MAX).max(1)),
        ..JobRequest::default()
    }
}

/// Reads a tag.
fn tag(text: &str) -> Result<String, String> {
    match text.len() {
        0 => Err("a tag has at least one character".to_owned()),
        1..=TAG_BYTES_MAX => Ok(text.to_owned()),
        bytes => {
            Err(format!("the tag has {bytes} bytes; the limit is {TAG_BYTES_MAX}: shorten it"))
        }
    }
}

/// How waiting for a job ended.
enum Followed {
    /// With its end; `cancelled` if Ctrl-C or a signal asked for that.
    Ended { finished: Finished, cancelled: Option<Interrupt> },
    /// The leader has the job, and no more is wanted (`--detach`).
    Taken,
    /// The person at the terminal did not want to wait any longer.
    Left(Reached, Interrupt),
    /// A signal ended the command before the leader had the job (`--detach`).
    Interrupted(Left, Interrupt),
    /// It was cancelled before it was sent.
    Unsent(JobError, Interrupt),
    /// `--timeout` ran out.
    TimedOut(Left),
}

/// Says once that the leader has the job, and notes it as the last one.
struct Acknowledged<'a> {
    args: &'a SubmitArgs,
    leader: &'a str,
    said: bool,
}

impl Acknowledged<'_> {
    fn take(&mut self, job: uuid::Uuid, line: &mut Line) {
        if std::mem::replace(&mut self.said, true) {
            return;
        }
        last::note(self.leader, job);
        // Elsewhere the id is in what is printed already.
        let is_new = !self.args.detach && self.args.output == Output::Table;
        if is_new && self.args.progress != Progress::Json {
            line.clear();
            err().write_all(format!("job {job}\n").as_bytes()).ok();
        }
    }
}

/// Waits for the job's end; with `--detach` until the leader has it.
async fn follow(
    args: &SubmitArgs,
    leader: &str,
    job: &mut JobHandle,
    mut why: Why,
    interrupts: &mut Interrupts,
    deadline: Option<tokio::time::Instant>,
) -> anyhow::Result<Followed> {
    let mut line = Line::new(job.id(), args.progress, !args.output.is_for_people());
    let mut refresh = tokio::time::interval(Duration::from_millis(500));
    let mut cancelled = None;
    let mut reached = Reached::default();
    let mut acknowledged = Acknowledged { args, leader, said: false };
    loop {
        let event = tokio::select! {
            event = job.event() => event,
            Some(interrupt) = interrupts.recv() => {
                if cancelled.is_some() {
                    line.clear();
                    return Ok(Followed::Left(reached, interrupt));
                }
                // A detached job is not the terminal's: what ends that does not cancel the job.
                if args.detach && interrupt != Interrupt::CtrlC {
                    line.clear();
                    return Ok(match leave(job, reached, interrupt.name()).await {
                        Leaving::Left(left) => Followed::Interrupted(left, interrupt),
                        Leaving::Ended(_) => Followed::Taken,
                    });
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
                return Ok(match leave(job, reached, "--timeout").await {
                    Leaving::Left(left) => Followed::TimedOut(left),
                    Leaving::Ended(finished) => Followed::Ended { finished, cancelled: None },
                });
            }
            said = why.next(), if line.is_queued(args.cap.is_some()) => {
                if let Some(queued) = said {
                    line.queued(&queued);
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
                if reached == Reached::Taken {
                    acknowledged.take(job.id(), &mut line);
                    if args.detach && cancelled.is_none() {
                        line.clear();
                        return Ok(Followed::Taken);
                    }
                }
                line.take(&event);
            }
            // The news end when the job does. A classic leader says nothing before.
            None => {
                let finished = job.finish().await;
                if finished.is_ok() {
                    acknowledged.take(job.id(), &mut line);
                }
                line.clear();
                return match (finished, cancelled) {
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

/// What stands in place of a result.
fn failure(error: &anyhow::Error) -> Value {
    if let Some(TimedOut::Unsent(_)) = error.downcast_ref() {
        return json!({"status": "ERROR", "left": Left::NeverSent.word(), "error": format!("{error:#}")});
    }
    if let Some(Stopped { text, job, .. }) = error.downcast_ref() {
        return match job {
            Some(job) => json!({"job_id": job, "status": "LEFT", "error": text}),
            None => {
                json!({"status": "ERROR", "left": Left::NeverSent.word(), "error": text})
            }
        };
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        submit: SubmitArgs,
    }

    #[test]
    fn a_raw_job_takes_no_option_of_transfers_and_their_defaults_do_not_count() {
        let read = |more: &str| {
            let line = format!("submit e --raw --file f {more}");
            Cli::try_parse_from(line.split_whitespace())
        };
        assert!(read("").is_ok_and(|cli| cli.submit.raw));
        for option in ["--digest sha256", "--digest chunk-list", "--compress zstd"] {
            let error = read(option).err().unwrap().to_string();
            let name = option.split(' ').next().unwrap();
            assert!(error.contains("cannot be used with") && error.contains(name), "{error}");
        }
    }
}
