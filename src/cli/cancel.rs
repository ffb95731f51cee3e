//! `heft cancel`: ends jobs, wherever they stand.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use uuid::Uuid;

use crate::answers::{Was, ask};
use crate::client::ClientError;

use super::{Output, Reach, Unwritten, job_id, print, print_json, printable, say};

const EXAMPLES: &str = "Examples:
  heft cancel 127.0.0.1:5000 00112233-4455-6677-8899-aabbccddeeff

Each job's client gets a result that says so. To end a job of `heft submit`, press Ctrl-C there.";

/// Cancel jobs, in any state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CancelArgs {
    /// Job ids.
    #[arg(value_name = "JOB_ID", value_parser = job_id, required = true)]
    jobs: Vec<Uuid>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t)]
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
    let mut failed = Vec::new();
    for job in &args.jobs {
        match client.ask(&ask::Cancel { job_id: *job }).await {
            Ok(answered) => show(args.output, *job, &answered.answer.was)?,
            Err(error @ ClientError::Answered(_)) => failed.push(error),
            Err(error) => return Err(error.into()),
        }
    }
    client.close().await;
    let Some(last) = failed.pop() else { return Ok(ExitCode::SUCCESS) };
    for error in failed {
        say(&error.to_string());
    }
    Err(last.into())
}

fn show(output: Output, job: Uuid, was: &Was) -> Result<(), Unwritten> {
    let was = if *was == Was::default() { "unknown" } else { was.as_str() };
    match output {
        Output::Table => print(format!("{job} cancelled; it was {}\n", printable(was)).as_bytes()),
        Output::Json => print_json(&json!({"job_id": job, "was": was})),
    }
}
