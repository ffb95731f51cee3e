//! heft's tools: see what travels on a connection, what a file would become on it, and what a
//! leader keeps on its disk; bring over what older systems kept on theirs.

#![forbid(unsafe_code)]

mod exit;
mod frame;
mod import;
mod log;
mod time;
mod weigh;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Tools for operators of heft, and for authors of peers.
#[derive(Parser)]
#[command(name = "heft-tools", version, propagate_version = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Show the frames in a file of raw bytes, or in a hexadecimal text.
    Frame(frame::Args),
    /// Show how a file is sent: chunks, codecs, frames, digests, and whether compression pays off.
    Weigh(weigh::Args),
    /// Inspect a leader's data directory: log, snapshots, blobs. The leader may be running.
    Log(log::Args),
    /// Create a data directory from the files of an older system: waiting, running and dead jobs,
    /// caps.
    Import(import::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Frame(args) => frame::run(&args),
        Command::Weigh(args) => weigh::run(&args),
        Command::Log(args) => log::run(&args),
        Command::Import(args) => import::run(&args),
    };
    done.unwrap_or_else(|error| exit::report(&error))
}
