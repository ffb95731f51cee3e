//! `heft cancel`: ends jobs, wherever they stand.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use crate::answers::{Was, ask};
use crate::client::ClientError;

use super::exit::{code_of, report};
use super::output::{self, OUTPUT_VARIABLE};
use super::{Output, Reach, Unwritten, job_id, print_json, printable};

const EXAMPLES: &str = "Examples:
  heft cancel 00112233-4455-6677-8899-aabbccddeeff

Each job's client gets a result that says so. To end a job of `heft submit`, press Ctrl-C there.";

/// Cancel jobs, in any state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CancelArgs {
    /// Job ids.
    #[arg(value_name = "JOB_ID", value_parser = job_id, required = true)]
    jobs: Vec<Uuid>,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    super::block_on(cancel(args))
}

async fn cancel(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let client = args.reach.asking(&leader).await?;
    // One that cannot be cancelled is no reason to leave the others.
    let (are_several, mut last) = (args.jobs.len() > 1, None);
    for job in &args.jobs {
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
