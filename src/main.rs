//! `heft`: the commands. Each lives in a file of `cli/`; this one reads the command line and turns how a command ended into
//! an exit code.

#![forbid(unsafe_code)]

mod cli;

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing_subscriber::EnvFilter;

/// A job broker for heavy payloads.
///
/// A leader takes jobs from clients and hands them to workers that have room.
#[derive(Parser)]
#[command(name = "heft", version, propagate_version = true, after_help = cli::AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Hand in one job, wait for it, and print what it printed.
    Submit(cli::submit::SubmitArgs),
    /// Show what a leader does: jobs, workers, clients, queues.
    Status(cli::status::StatusArgs),
    /// Look after jobs that used up their attempts.
    Dlq(cli::dlq::DlqArgs),
    /// End a job, wherever it stands.
    Cancel(cli::cancel::CancelArgs),
    /// Send three sample jobs to `calcA` and print their results.
    Client(cli::client::ClientArgs),
    /// Send the sample jobs over several leaders at a time.
    Clientx(cli::clientx::ClientxArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    let filter = EnvFilter::try_from_env("HEFT_LOG").unwrap_or_else(|_| EnvFilter::new("warn"));
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return cli::report(&error.into()),
    };
    let done = runtime.block_on(async {
        match command {
            Command::Submit(args) => cli::submit::run(args).await,
            Command::Status(args) => cli::status::run(args).await,
            Command::Dlq(args) => cli::dlq::run(args).await,
            Command::Cancel(args) => cli::cancel::run(args).await,
            Command::Client(args) => cli::client::run(args).await,
            Command::Clientx(args) => cli::clientx::run(args).await,
        }
    });
    match done {
        Ok(code) => code,
        Err(error) => cli::report(&error),
    }
}
