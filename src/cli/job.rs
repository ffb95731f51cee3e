//! `heft job`: what can be done with jobs, under one noun. The short words `heft submit`, `heft
//! explain` and `heft cancel` are the same commands.

pub(super) mod ls;
pub(super) mod pages;
mod retry;
pub(super) mod several;
mod show;
mod wait;

use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::job_logs::{self, LogsArgs};
use super::{cancel, explain, submit};

/// Submit, list, show, follow, await, retry, explain and cancel jobs
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Submit(Box<submit::SubmitArgs>),
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Wait(wait::WaitArgs),
    Logs(LogsArgs),
    Retry(retry::RetryArgs),
    Explain(explain::ExplainArgs),
    Cancel(cancel::CancelArgs),
}

/// Runs the command.
pub fn run(args: &JobArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        JobCommand::Submit(args) => submit::run(args),
        JobCommand::Ls(args) => ls::run(args),
        JobCommand::Show(args) => show::run(args),
        JobCommand::Wait(args) => wait::run(args),
        JobCommand::Logs(args) => super::block_on_until_stopped(job_logs::logs(args)),
        JobCommand::Retry(args) => retry::run(args),
        JobCommand::Explain(args) => explain::run(args),
        JobCommand::Cancel(args) => cancel::run(args),
    }
}
