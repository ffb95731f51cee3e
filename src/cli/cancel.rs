//! `heft cancel`: ends a job, wherever it stands.

use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use crate::answers::{Was, ask};

use super::last::{JobRef, job_ref};
use super::{Output, Reach, print, print_json, printable};

const EXAMPLES: &str = "Examples:
  heft cancel 127.0.0.1:5000 00112233-4455-6677-8899-aabbccddeeff

The job's client gets a result that says so. To end a job of `heft submit`, press Ctrl-C there.";

/// Cancel a job, in any state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CancelArgs {
    /// Leader address.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    /// Job id, or `last`.
    #[arg(value_name = "JOB_ID", value_parser = job_ref)]
    job: JobRef,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    super::block_on(cancel(args))
}

async fn cancel(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let job_id = args.job.resolve(&args.leader)?;
    let client = args.reach.asking(&args.leader).await?;
    let was = client.ask(&ask::Cancel { job_id }).await?.answer.was;
    let was = if was == Was::default() { "unknown" } else { was.as_str() };
    client.close().await;
    match args.output {
        Output::Table => {
            print(format!("{job_id} cancelled; it was {}\n", printable(was)).as_bytes())?
        }
        Output::Json => print_json(&json!({"job_id": job_id, "was": was}))?,
    }
    Ok(ExitCode::SUCCESS)
}
