//! `heft cancel`: ends jobs, wherever they stand.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use crate::answers::{JobState, Was, ask};
use crate::client::ClientError;

use super::exit::{code_of, report};
use super::job::pages::{Filter, ids};
use super::last::{JobRef, job_ref};
use super::output::{self, OUTPUT_VARIABLE};
use super::{Output, Reach, Unwritten, note, print_json, printable};

const EXAMPLES: &str = "Examples:
  heft cancel 00112233-4455-6677-8899-aabbccddeeff
  heft cancel last
  heft cancel --tag nightly

Each job's client gets a result that says so. To end a job of `heft submit`, press Ctrl-C there.";

/// Cancel jobs, in any state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CancelArgs {
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
    /// All jobs with this tag that have not ended.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

/// Runs the command.
pub fn run(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    super::block_on(cancel(args))
}

async fn cancel(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let named = args.which.jobs.iter().map(|job| job.resolve(leader.address()));
    let mut jobs = named.collect::<Result<Vec<Uuid>, _>>()?;
    let client = args.reach.asking(&leader).await?;
    if let Some(tag) = &args.which.tag {
        let states = vec![JobState::Queued, JobState::Gathering, JobState::Running];
        let filter = Filter { states, tag: Some(tag.clone()), ..Filter::default() };
        let tagged = ids(&client, leader.address(), &filter).await?;
        jobs = tagged.into_iter().map(|(id, _)| id).collect();
        if jobs.is_empty() {
            note(&format!("no job with the tag {tag} has yet to end"));
        }
    }
    // One that cannot be cancelled is no reason to leave the others.
    let (are_several, mut last) = (jobs.len() > 1, None);
    for job in &jobs {
        match client.ask(&ask::Cancel { job_id: *job }).await {
            Ok(answered) => show(args.output, *job, &answered.answer.was)?,
            Err(error @ (ClientError::Answered(_) | ClientError::NotFound(_))) if are_several => {
                last = Some(fail(args.output, *job, error.into())?);
            }
            Err(error) => return Err(error.into()),
        }
    }
    client.close().await;
    Ok(last.unwrap_or(ExitCode::SUCCESS))
}

/// Says why one of several jobs was not cancelled.
fn fail(output: Output, job: Uuid, error: anyhow::Error) -> Result<ExitCode, Unwritten> {
    if !output.is_json() {
        return Ok(report(&error, false));
    }
    print_json(&json!({"job_id": job, "error": output::as_json(&error)}))?;
    Ok(ExitCode::from(code_of(&error)))
}

fn show(output: Output, job: Uuid, was: &Was) -> Result<(), Unwritten> {
    let was = if *was == Was::default() { "unknown" } else { was.as_str() };
    let table = || format!("{job} cancelled; it was {}\n", printable(was));
    output::show(output, &json!({"job_id": job, "was": was}), None, table)
}
