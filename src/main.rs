//! The command `heft`.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use heft::cli;

/// A job broker for heavy payloads
#[derive(Parser)]
#[command(name = "heft", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Leader(cli::leader::LeaderArgs),
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    cli::log_to_stderr();
    let ended = match &command {
        Command::Leader(args) => cli::leader::run(args),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("heft: {error:#}");
        ExitCode::FAILURE
    })
}
