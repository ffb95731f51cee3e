//! `heft job`: what can be done with jobs, under one noun. The short words `heft submit`, `heft
//! explain` and `heft cancel` are the same commands.

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::job_logs::{self, LogsArgs};
use super::{cancel, explain, submit};

/// Submit, explain, cancel and follow jobs
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Submit(Box<submit::SubmitArgs>),
    Explain(explain::ExplainArgs),
    Cancel(cancel::CancelArgs),
    Logs(LogsArgs),
}

/// Runs the command.
pub fn run(args: &JobArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        JobCommand::Submit(args) => submit::run(args),
        JobCommand::Explain(args) => explain::run(args),
        JobCommand::Cancel(args) => cancel::run(args),
        JobCommand::Logs(args) => super::block_on(job_logs::logs(args)),
    }
}
