//! `heft cancel`: ends jobs, wherever they stand.

use std::cell::Cell;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use crate::answers::{Cancelled, JobState, Was, ask};

use super::job::pages::{Filter, ids};
use super::job::several::ask_each;
use super::last::{JobRef, job_ref};
use super::output::{self, OUTPUT_VARIABLE};
use super::{Output, Reach, Unwritten, note, printable};
use crate::units::Count;

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
    super::block_on_until_stopped(cancel(args))
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
    let by = args.reach.client_id()?;
    let question = |job_id| ask::Cancel { job_id, by: Some(by.clone()) };
    let cancelled = Cell::new(0_u64);
    let show = |job, answer: &Cancelled| {
        cancelled.set(cancelled.get() + 1);
        show(args.output, job, &answer.was)
    };
    let code = ask_each(&client, leader.address(), args.output, &jobs, question, show).await?;
    client.close().await;
    if let (Some(tag), false) = (&args.which.tag, jobs.is_empty()) {
        let (cancelled, all) = (cancelled.get(), Count(jobs.len() as u64, "job"));
        note(&format!("cancelled {cancelled} of {all} with the tag {tag}"));
    }
    Ok(code)
}

fn show(output: Output, job: Uuid, was: &Was) -> Result<(), Unwritten> {
    let was = if *was == Was::default() { "unknown" } else { was.as_str() };
    let table = || format!("{job} cancelled; it was {}\n", printable(was));
    output::show(output, &json!({"job_id": job, "was": was}), None, table)
}
