//! The processes that do the work, one [`Role`] each. The director starts them and hears their
//! answers.

mod bytes;
pub(crate) mod dataset;
mod heft;
mod relay;

use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::args::{Compress, Digest, RelayBy, Sink};
use crate::control::{Answer, answer};

pub(crate) use bytes::incompressible;

/// What flows between client and worker in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Direction {
    /// The job's bytes go to the worker.
    Inputs,
    /// They come back from it.
    Results,
}

/// A process, with all it needs to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Role {
    /// Submits jobs to a leader.
    HeftClient(HeftClient),
    /// Takes jobs from a leader.
    HeftWorker(HeftWorker),
    /// Moves bytes between the connections of clients and workers.
    Relay {
        by: RelayBy,
    },
    /// Sends jobs through a relay.
    RelayClient {
        port: u16,
        lanes: Lanes,
        direction: Direction,
    },
    RelayWorker {
        port: u16,
        lanes: Lanes,
        files: Option<PathBuf>,
    },
    DatasetClient {
        port: u16,
    },
    /// Passes a file on to so many receivers.
    FanRelay {
        receivers: u32,
    },
    /// Sends files to it.
    FanSender {
        port: u16,
    },
    /// Writes them down.
    FanReceiver {
        port: u16,
        number: u32,
        files: PathBuf,
    },
}

/// A client of heft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeftClient {
    pub(crate) port: u16,
    /// Whose workers get its jobs.
    pub(crate) group: String,
    pub(crate) direction: Direction,
    /// Connections, each a client of its own to the leader, that share the jobs.
    pub(crate) submitters: u32,
    /// Whether it is noted when the leader says that it has a job.
    pub(crate) notes_taken: bool,
    pub(crate) digest: Digest,
    pub(crate) compress: Compress,
    /// Where it may make files.
    pub(crate) scratch: PathBuf,
}

/// A worker of heft.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct HeftWorker {
    pub(crate) port: u16,
    /// Whose jobs it takes.
    pub(crate) group: String,
    /// How many at a time.
    pub(crate) parallel: u32,
    pub(crate) sink: Sink,
    /// Where it may make files.
    pub(crate) scratch: PathBuf,
}

/// Connections of the relay: each has a number, under which a client's meets a worker's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lanes {
    pub(crate) first: u32,
    pub(crate) count: u32,
}

impl FromStr for Role {
    type Err = serde_json::Error;

    fn from_str(json: &str) -> Result<Self, serde_json::Error> {
        serde_json::from_str(json)
    }
}

/// Runs an actor to its end.
pub(crate) fn run(role: Role) -> ExitCode {
    let ended = match role {
        Role::HeftClient(client) => heft::client(client),
        Role::HeftWorker(worker) => heft::worker(worker),
        Role::Relay { by } => relay::middle(by),
        Role::RelayClient { port, lanes, direction } => relay::client(port, lanes, direction),
        Role::RelayWorker { port, lanes, files } => relay::worker(port, lanes, files),
        Role::DatasetClient { port } => dataset::client(port),
        Role::FanRelay { receivers } => relay::fan_relay(receivers),
        Role::FanSender { port } => relay::sender(port),
        Role::FanReceiver { port, number, files } => relay::receiver(port, number, &files),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = format!("{error:#}");
            if answer(&Answer::Failed { why: why.clone() }).is_err() {
                eprintln!("heft-bench: {why}");
            }
            ExitCode::FAILURE
        }
    }
}
