//! `heft job retry`: another run of jobs that failed or are dead, from the inputs that the leader
//! has.

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use super::pages::{Filter, ids, newer};
use super::several::ask_each;
use crate::answers::{JobState, Retried, ask};
use crate::cli::last::{JobRef, job_ref};
use crate::cli::output::{self, OUTPUT_VARIABLE};
use crate::cli::{Output, Reach, Unwritten, note};
use crate::client::{Client, ClientError};
use crate::units::Count;

const EXAMPLES: &str = "Examples:
  heft job retry last
  heft job retry --tag nightly
  heft job retry --failed && heft job wait --all

Nothing is sent again: the leader keeps the inputs of a failed job for its --result-ttl, unless it
needs the room before. The job keeps its id; the new result replaces the old one.

With --tag and --failed, jobs that cannot run again are left out, and a line says how many and
why.

Exit codes: 0 all of them run again, or those that can, 1 a job that was named cannot run again,
and why, 2 invalid command line, 3 the leader cannot be reached or is too old, 5 the leader does
not know a job.";

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
    crate::cli::block_on_until_stopped(retry(args))
}

async fn retry(args: &RetryArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let named = args.which.jobs.iter().map(|job| job.resolve(leader.address()));
    let jobs = named.collect::<Result<Vec<Uuid>, _>>()?;
    let client = args.reach.asking(&leader).await?;
    let code = match jobs.is_empty() {
        true => retry_found(args, &client, leader.address()).await?,
        false => {
            let question = |job_id| ask::JobRetry { job_id };
            let show = |job, answer: &Retried| show(args.output, job, answer);
            ask_each(&client, leader.address(), args.output, &jobs, question, show).await?
        }
    };
    client.close().await;
    Ok(code)
}

/// Retries those of the jobs with a tag, or of this user's, that failed or are dead and can run
/// again. That one of them cannot is no failure: nobody named it.
async fn retry_found(args: &RetryArgs, client: &Client, leader: &str) -> anyhow::Result<ExitCode> {
    let tag = args.which.tag.clone();
    let whose = if tag.is_none() { Some(args.reach.client_id()?) } else { None };
    let states = vec![JobState::Failed, JobState::Dead];
    let filter = Filter { states, client: whose, tag: tag.clone(), ..Filter::default() };
    let found = ids(client, leader, &filter).await?;
    if found.is_empty() {
        note(&match tag {
            Some(tag) => format!("no job with the tag {tag} failed or is dead"),
            None => "no job of yours failed or is dead".to_owned(),
        });
    }
    // Why jobs were left out, and how many.
    let mut left_out: BTreeMap<String, usize> = BTreeMap::new();
    // The one that came first runs first.
    for (job_id, _) in found.into_iter().rev() {
        match client.ask(&ask::JobRetry { job_id }).await {
            Ok(answered) => show(args.output, job_id, &answered.answer)?,
            Err(error @ (ClientError::Answered(_) | ClientError::NotFound(_))) => {
                if may_run_again(client, job_id).await? {
                    return Err(newer(leader, error));
                }
                *left_out.entry(why(job_id, &error)).or_default() += 1;
            }
            Err(error) => return Err(newer(leader, error)),
        }
    }
    for (why, count) in left_out {
        let each = if count == 1 { "it" } else { "each" };
        note(&format!("{} cannot be retried: {each} {why}", Count(count as u64, "job")));
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether a refusal was for another reason than that the job has no other run.
async fn may_run_again(client: &Client, job_id: Uuid) -> Result<bool, ClientError> {
    match client.ask(&ask::JobShow { job_id }).await {
        Ok(shown) => Ok(shown.answer.can_retry),
        Err(ClientError::NotFound(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Why a job was refused, without its id.
fn why(job: Uuid, error: &ClientError) -> String {
    let (ClientError::Answered(text) | ClientError::NotFound(text)) = error else {
        return error.to_string();
    };
    text.strip_prefix(&format!("job {job} ")).unwrap_or(text).to_owned()
}

fn show(output: Output, job: Uuid, Retried { run }: &Retried) -> Result<(), Unwritten> {
    let table = || format!("{job} is queued again; this is its run {run}\n");
    output::show(output, &json!({"job_id": job, "run": run}), None, table)
}
