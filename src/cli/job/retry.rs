//! `heft job retry`: another run of jobs that failed or are dead, from the inputs that the leader
//! has.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use super::pages::{Filter, ids};
use super::several::ask_each;
use crate::answers::{JobState, Retried, ask};
use crate::cli::last::{JobRef, job_ref};
use crate::cli::output::{self, OUTPUT_VARIABLE};
use crate::cli::{Output, Reach, Unwritten, note};

const EXAMPLES: &str = "Examples:
  heft job retry last
  heft job retry --tag nightly
  heft job retry --failed && heft job wait --all

Nothing is sent again: the leader keeps the inputs of a failed job for its --result-ttl, unless it
needs the room before. The job keeps its id; the new result replaces the old one.

Exit codes: 0 all of them run again, 1 a job cannot run again, and why, 2 invalid command line, 3 the leader
cannot be reached or is too old, 5 the leader does not know a job.";

/// Run failed and dead jobs again, without another upload
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct RetryArgs {
    #[command(flatten)]
    which: Which,
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
    /// All jobs with this tag that failed or are dead.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// All jobs that you submitted from this machine and that failed or are dead.
    #[arg(long)]
    failed: bool,
}

/// Runs the command.
pub(super) fn run(args: &RetryArgs) -> anyhow::Result<ExitCode> {
    crate::cli::block_on(retry(args))
}

async fn retry(args: &RetryArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let named = args.which.jobs.iter().map(|job| job.resolve(leader.address()));
    let mut jobs = named.collect::<Result<Vec<Uuid>, _>>()?;
    let client = args.reach.asking(&leader).await?;
    let tag = args.which.tag.clone();
    if tag.is_some() || args.which.failed {
        let whose = if tag.is_none() { Some(args.reach.client_id()?) } else { None };
        let states = vec![JobState::Failed, JobState::Dead];
        let filter = Filter { states, client: whose, tag: tag.clone(), ..Filter::default() };
        let found = ids(&client, leader.address(), &filter).await?;
        // The one that came first runs first.
        jobs = found.into_iter().rev().map(|(id, _)| id).collect();
    }
    if jobs.is_empty() {
        note(&match tag {
            Some(tag) => format!("no job with the tag {tag} failed or is dead"),
            None => "no job of yours failed or is dead".to_owned(),
        });
    }
    let question = |job_id| ask::JobRetry { job_id };
    let show = |job, answer: &Retried| show(args.output, job, answer);
    let code = ask_each(&client, leader.address(), args.output, &jobs, question, show).await?;
    client.close().await;
    Ok(code)
}

fn show(output: Output, job: Uuid, Retried { run }: &Retried) -> Result<(), Unwritten> {
    let table = || format!("{job} is queued again; this is its run {run}\n");
    output::show(output, &json!({"job_id": job, "run": run}), None, table)
}
