//! `heft job`: commands about one job, whoever submitted it.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::job_logs::{self, LogsArgs};

/// Look at jobs
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Logs(LogsArgs),
}

/// Runs the command.
pub fn run(args: &JobArgs) -> anyhow::Result<ExitCode> {
    let JobCommand::Logs(args) = &args.command;
    super::block_on(job_logs::logs(args))
}
