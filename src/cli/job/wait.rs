//! `heft job wait`: waits until jobs have ended. The leader says when they have; nothing is polled.
//! A leader that goes away is waited for, and asked again when it is back.

use std::collections::HashMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::sleep;
use uuid::Uuid;

use super::pages::{Filter, ids, newer};
use crate::answers::{JobState, LISTED_MAX, WaitedJob, ask};
use crate::cli::exit::{FAILED, NOT_FOUND, NotFound, Usage, within};
use crate::cli::last::{JobRef, job_ref};
use crate::cli::output::{self, OUTPUT_VARIABLE, Rows};
use crate::cli::{Output, Reach, printable, say};
use crate::client::{Client, ClientError, Options};
use crate::units::Span;

const EXAMPLES: &str = "Examples:
  heft job wait last
  heft job wait --tag nightly --timeout 8h
  heft job wait --any 00112233-4455-6677-8899-aabbccddeeff 11223344-5566-7788-99aa-bbccddeeff00

It rides out a leader that goes away.

Exit codes: 0 all jobs (with --any: the first that ended) ended OK, 1 a job failed or was
cancelled, 2 invalid command line, 3 the leader cannot be reached or is too old, 4 --timeout ran
out, 5 a job is unknown, or none has the tag.";

/// Questions that one command holds open at a time.
const QUESTIONS: usize = 16;

/// How long a leader that went away is left alone before it is asked again: its connection comes
/// back by itself.
const PAUSE: Duration = Duration::from_millis(200);

/// Wait until jobs have ended
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct WaitArgs {
    #[command(flatten)]
    which: Which,
    /// Wait for the first that ends only.
    #[arg(long)]
    any: bool,
    /// Time to wait, such as 10m (default: no limit).
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Job ids, or `last`.
    #[arg(value_name = "JOB_ID", value_parser = job_ref)]
    jobs: Vec<JobRef>,
    /// All jobs with this tag that the leader has now, also those that have ended.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// All jobs that you submitted from this machine and that have not ended now.
    #[arg(long)]
    all: bool,
}

/// Runs the command.
pub(super) fn run(args: &WaitArgs) -> anyhow::Result<ExitCode> {
    crate::cli::block_on_until_stopped(wait(args))
}

async fn wait(args: &WaitArgs) -> anyhow::Result<ExitCode> {
    let (jobs, ended) = within(args.timeout, until_ended(args), |limit| {
        format!("not all jobs ended within {limit} (--timeout): they go on; see `heft job ls`")
    })
    .await?;
    show(args, &jobs, &ended)
}

/// The jobs that are meant, and how they ended.
async fn until_ended(args: &WaitArgs) -> anyhow::Result<(Vec<Uuid>, Vec<WaitedJob>)> {
    let leader = args.reach.leader().await?;
    let named = args.which.jobs.iter().map(|job| job.resolve(leader.address()));
    let named = named.collect::<Result<Vec<Uuid>, _>>()?;
    // The answer comes when it comes.
    let options = Options { answer_wait: None, ..args.reach.asking_options("") };
    let client = leader.connect(&options).await?;
    let leader = leader.address();
    let jobs = meant(args, leader, &client, named).await?;
    let ended = match args.any {
        true => first(leader, &client, &jobs).await?,
        false => all(leader, &client, &jobs).await?,
    };
    client.close().await;
    Ok((jobs, ended))
}

/// The jobs that the command line means.
async fn meant(
    args: &WaitArgs,
    leader: &str,
    client: &Client,
    named: Vec<Uuid>,
) -> anyhow::Result<Vec<Uuid>> {
    let filter = match &args.which.tag {
        Some(tag) => Filter { tag: Some(tag.clone()), ..Filter::default() },
        None if args.which.all => Filter {
            states: vec![JobState::Queued, JobState::Gathering, JobState::Running],
            client: Some(args.reach.client_id()?),
            ..Filter::default()
        },
        None => return Ok(named),
    };
    let found = ids(client, leader, &filter).await?;
    if let (Some(tag), []) = (&args.which.tag, found.as_slice()) {
        return Err(NotFound(format!(
            "no job with the tag {tag:?} is known to {}: its jobs were not submitted yet, or their \
             results have expired",
            leader
        ))
        .into());
    }
    Ok(found.into_iter().map(|(id, _)| id).collect())
}

/// All of these, in as many questions as it takes, one after the other: all of them have to end.
async fn all(leader: &str, client: &Client, jobs: &[Uuid]) -> anyhow::Result<Vec<WaitedJob>> {
    let mut ended = Vec::with_capacity(jobs.len());
    for some in jobs.chunks(LISTED_MAX) {
        ended.extend(
            ask_until_answered(leader.to_owned(), client.clone(), some.to_vec(), false).await?,
        );
    }
    Ok(ended)
}

/// The first of these that ends, in several questions at a time.
async fn first(leader: &str, client: &Client, jobs: &[Uuid]) -> anyhow::Result<Vec<WaitedJob>> {
    let most = QUESTIONS * LISTED_MAX;
    if jobs.len() > most {
        return Err(Usage(format!(
            "--any waits for at most {most} jobs, and {} are meant: name fewer",
            jobs.len()
        ))
        .into());
    }
    let mut asked = JoinSet::new();
    for some in jobs.chunks(LISTED_MAX) {
        asked.spawn(ask_until_answered(leader.to_owned(), client.clone(), some.to_vec(), true));
    }
    match asked.join_next().await {
        Some(Ok(answered)) => answered,
        Some(Err(_)) => Err(ClientError::Closed.into()),
        None => Ok(Vec::new()),
    }
}

/// Asks for the ends of jobs, and again when the leader is back that went away meanwhile.
async fn ask_until_answered(
    leader: String,
    client: Client,
    job_ids: Vec<Uuid>,
    any: bool,
) -> anyhow::Result<Vec<WaitedJob>> {
    let (question, mut is_away) = (ask::JobWait { job_ids, any }, false);
    loop {
        match client.ask(&question).await {
            Ok(answered) => return Ok(answered.answer.jobs),
            Err(error @ ClientError::Disconnected { .. }) => {
                if !std::mem::replace(&mut is_away, true) {
                    say(&format!("{error}; waiting for it to come back"));
                }
                sleep(PAUSE).await;
            }
            Err(error) => return Err(newer(&leader, error)),
        }
    }
}

fn show(args: &WaitArgs, jobs: &[Uuid], ended: &[WaitedJob]) -> anyhow::Result<ExitCode> {
    let by_id: HashMap<&str, &WaitedJob> =
        ended.iter().map(|job| (job.job_id.as_str(), job)).collect();
    // In the order in which they were named.
    let texts: Vec<String> = jobs.iter().map(Uuid::to_string).collect();
    let known: Vec<&WaitedJob> =
        texts.iter().filter_map(|id| by_id.get(id.as_str()).copied()).collect();
    let ok = known.iter().all(|job| job.state == JobState::Done);
    let rows = Rows { list: "jobs", id: "job_id" };
    output::show(args.output, &json!({"jobs": known, "ok": ok}), Some(rows), || {
        let line = |job: &&WaitedJob| {
            let why = job.why.as_ref().map(|why| format!(": {why}")).unwrap_or_default();
            let (id, state) = (printable(&job.job_id), printable(job.state.as_str()));
            format!("{id} {state}{}\n", printable(&why))
        };
        match jobs.is_empty() {
            true => "no job of yours has yet to end\n".to_owned(),
            false => known.iter().map(line).collect(),
        }
    })?;
    let is_unknown = |job: &&WaitedJob| job.state == JobState::Unknown;
    Ok(ExitCode::from(match (ok, known.iter().any(is_unknown)) {
        (true, _) => 0,
        (false, true) => NOT_FOUND,
        (false, false) => FAILED,
    }))
}
