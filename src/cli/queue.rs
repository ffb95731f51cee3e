//! `heft queue`: the queues of a leader. They are part of what `heft status` shows.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{self, OUTPUT_VARIABLE};
use super::status::queues_table;
use super::workers::part;
use super::{Output, Reach, Rows};

const EXAMPLES: &str = "Examples:
  heft queue ls
  heft queue ls -o jsonl";

/// What is listed.
const QUEUES: Rows = Rows { list: "queues", id: "key" };

/// Show the queues of a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct QueueArgs {
    #[command(subcommand)]
    what: What,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the queues that have jobs.
    Ls,
}

/// Runs the command.
pub fn run(args: &QueueArgs) -> anyhow::Result<ExitCode> {
    let What::Ls = args.what;
    super::block_on(list(args))
}

async fn list(args: &QueueArgs) -> anyhow::Result<ExitCode> {
    let status = args.reach.status().await?;
    let table = || {
        let table = queues_table(&status.answer.queues).render();
        if table.is_empty() { "no queues\n".to_owned() } else { table }
    };
    output::show(args.output, &part(&status, "queues"), Some(QUEUES), table)?;
    Ok(ExitCode::SUCCESS)
}
