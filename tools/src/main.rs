//! heft's tools: see what travels on a connection, and what a file would become on it.

#![forbid(unsafe_code)]

mod frame;
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
    /// Show what a file becomes on the wire: chunks, codecs, frames, digests, and whether compressing pays.
    Weigh(weigh::Args),
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Frame(args) => frame::run(&args),
        Command::Weigh(args) => weigh::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(error) => {
            eprintln!("heft-tools: {error:#}");
            ExitCode::FAILURE
        }
    }
}
