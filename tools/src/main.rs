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

/// Tools for those who run heft, and for those who write a peer for it.
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
    /// Show what a file becomes on the wire: chunks, codecs, frames, digests, and whether
    /// compressing pays.
    Weigh(weigh::Args),
    /// Look at a leader's data directory: its log, its snapshots, its blobs. A leader may be
    /// running on it.
    Log(log::Args),
    /// Make a data directory from what an older system left: jobs that wait or run, dead ones,
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
