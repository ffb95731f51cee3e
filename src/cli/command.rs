//! The command `heft`: which commands it has, and who runs each.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tracing::level_filters::LevelFilter;

use crate::cli;
use crate::worker::exec::LAUNCH;

/// A job broker for heavy payloads
#[derive(Parser)]
#[command(name = "heft", version, propagate_version = true, after_help = cli::exit::AFTER_HELP)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Leader(cli::leader::LeaderArgs),
    Worker(cli::worker::WorkerArgs),
    Submit(cli::submit::SubmitArgs),
    Job(cli::job::JobArgs),
    Status(cli::status::StatusArgs),
    Dlq(cli::dlq::DlqArgs),
    Blob(cli::blob::BlobArgs),
    Dataset(cli::dataset::DatasetArgs),
    Explain(cli::explain::ExplainArgs),
    Cancel(cli::cancel::CancelArgs),
    Result(cli::result::ResultArgs),
    Client(cli::client::ClientArgs),
    Clientx(cli::clientx::ClientxArgs),
    Demo(cli::demo::DemoArgs),
    #[command(name = LAUNCH, hide = true)]
    Launch(cli::worker::LaunchArgs),
}

impl Command {
    /// What is logged unless `HEFT_LOG` says otherwise: a server's log is its voice, a command's
    /// output is its own, and what becomes another program says nothing.
    fn log_level(&self) -> Option<LevelFilter> {
        match self {
            Command::Leader(_) | Command::Worker(_) => Some(LevelFilter::INFO),
            Command::Submit(_)
            | Command::Job(_)
            | Command::Status(_)
            | Command::Dlq(_)
            | Command::Blob(_)
            | Command::Dataset(_)
            | Command::Explain(_)
            | Command::Cancel(_)
            | Command::Result(_)
            | Command::Client(_)
            | Command::Clientx(_)
            | Command::Demo(_) => Some(LevelFilter::WARN),
            Command::Launch(_) => None,
        }
    }
}

/// Does what the command line says.
pub fn run() -> ExitCode {
    let command = Cli::parse().command;
    if let Some(level) = command.log_level() {
        cli::log_to_stderr(level);
        cli::outlive_file_limit();
    }
    let ended = match &command {
        Command::Leader(args) => cli::leader::run(args),
        Command::Worker(args) => cli::worker::run(args),
        Command::Submit(args) => cli::submit::run(args),
        Command::Job(args) => cli::job::run(args),
        Command::Status(args) => cli::status::run(args),
        Command::Dlq(args) => cli::dlq::run(args),
        Command::Blob(args) => cli::blob::run(args),
        Command::Dataset(args) => cli::dataset::run(args),
        Command::Explain(args) => cli::explain::run(args),
        Command::Cancel(args) => cli::cancel::run(args),
        Command::Result(args) => cli::result::run(args),
        Command::Client(args) => cli::client::run(args),
        Command::Clientx(args) => cli::clientx::run(args),
        Command::Demo(args) => cli::demo::run(args),
        Command::Launch(args) => Ok(cli::worker::launch(args)),
    };
    ended.unwrap_or_else(|error| cli::exit::report(&error))
}
