//! `heft clients`: the clients that a leader knows. They are part of what `heft status` shows.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::output::{self, OUTPUT_VARIABLE};
use super::status::clients_table;
use super::workers::part;
use super::{Output, Reach, Rows};

const EXAMPLES: &str = "Examples:
  heft clients ls
  heft clients ls -o json | jq '.clients[].queued'";

/// What is listed.
const CLIENTS: Rows = Rows { list: "clients", id: "id" };

/// Show the clients of a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ClientsArgs {
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
    /// List the clients.
    Ls,
}

/// Runs the command.
pub fn run(args: &ClientsArgs) -> anyhow::Result<ExitCode> {
    let What::Ls = args.what;
    super::block_on(list(args))
}

async fn list(args: &ClientsArgs) -> anyhow::Result<ExitCode> {
    let status = args.reach.status().await?;
    let table = || {
        let table = clients_table(&status.answer.clients).render();
        if table.is_empty() { "no clients\n".to_owned() } else { table }
    };
    output::show(args.output, &part(&status, "clients"), Some(CLIENTS), table)?;
    Ok(ExitCode::SUCCESS)
}
