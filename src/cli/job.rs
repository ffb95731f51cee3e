//! `heft job`: jobs are listed, shown, waited for and cancelled.

mod cancel;
mod ls;
mod pages;
mod show;
mod wait;

use std::process::ExitCode;

use clap::{Args, Subcommand};

/// List, show, await and cancel jobs
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    Ls(ls::LsArgs),
    Show(show::ShowArgs),
    Wait(wait::WaitArgs),
    Cancel(cancel::CancelArgs),
}

/// Runs the command.
pub fn run(args: &JobArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        JobCommand::Ls(args) => ls::run(args),
        JobCommand::Show(args) => show::run(args),
        JobCommand::Wait(args) => wait::run(args),
        JobCommand::Cancel(args) => cancel::run(args),
    }
}
