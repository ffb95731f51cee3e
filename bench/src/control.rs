//! What the director and the processes it started say to each other: lines of JSON, commands on an
//! actor's standard input, answers on its standard output. An actor ends when its input does, so
//! none outlives its director.

use std::io::{BufRead as _, Write as _};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use crate::latency::Latencies;
use crate::load::Load;

/// Commands that wait for an actor. The director sends the next one after an answer.
const COMMANDS_MAX: usize = 4;

/// What an actor is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Command {
    /// Run these jobs.
    Run(Load),
    /// Start no more of them.
    Stop,
    /// Get this file to all workers or receivers.
    Fan(Fan),
}

/// A file that is to get to all workers or receivers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fan {
    pub(crate) path: PathBuf,
    /// As which dataset; the baseline does not ask.
    pub(crate) cache_id: String,
    /// How many must have it until it is over.
    pub(crate) wait: u32,
}

/// What came of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Fanned {
    /// From before the file was opened until it was known that as many have it as were waited for.
    pub(crate) elapsed: Duration,
    /// How many have found it right.
    pub(crate) right: u32,
    /// Bytes of pieces that came to the leader, and that it gave to workers, as it says itself.
    pub(crate) received: Option<u64>,
    pub(crate) moved: Option<u64>,
}

/// What an actor says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Answer {
    /// It can be used; these are the ports it listens on.
    Ready { ports: Vec<u16> },
    /// All jobs of a run have ended.
    Done(Tally),
    /// A file got to where it should.
    Fanned(Fanned),
    /// It gives up.
    Failed { why: String },
}

/// A run of jobs of one client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) jobs: u64,
    pub(crate) bytes: u64,
    /// From the start of the first job to the end of the last.
    pub(crate) elapsed: Duration,
    /// How long the jobs took; see [`Latencies::to_word`].
    pub(crate) latencies: String,
    /// How long it took until the leader said that it has them, where that is noted.
    pub(crate) taken: Option<String>,
}

impl Tally {
    pub(crate) fn new(
        latencies: &Latencies,
        size: u64,
        elapsed: Duration,
    ) -> anyhow::Result<Tally> {
        let jobs = latencies.count();
        let latencies = latencies.to_word()?;
        Ok(Tally { jobs, bytes: jobs.saturating_mul(size), elapsed, latencies, taken: None })
    }
}

/// Says something to the director.
pub(crate) fn answer(answer: &Answer) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, answer)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

/// What a client is told, from a thread that reads it.
pub(crate) struct Commands {
    pub(crate) loads: mpsc::Receiver<Load>,
    /// Set when no more jobs are to be started.
    pub(crate) stop: Arc<AtomicBool>,
}

/// Listens to the director; the process ends when the director does.
pub(crate) fn commands() -> Commands {
    let (sender, loads) = mpsc::channel(COMMANDS_MAX);
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    listen(move |command| match command {
        Command::Run(load) => {
            told.store(false, Ordering::Relaxed);
            sender.blocking_send(load).is_ok()
        }
        Command::Stop => {
            told.store(true, Ordering::Relaxed);
            true
        }
        Command::Fan(_) => false,
    });
    Commands { loads, stop }
}

/// The files that this actor is to send. The process ends when the director does.
pub(crate) fn fans() -> Receiver<Fan> {
    let (sender, fans) = sync_channel(COMMANDS_MAX);
    listen(move |command| match command {
        Command::Fan(fan) => sender.send(fan).is_ok(),
        Command::Run(_) | Command::Stop => false,
    });
    fans
}

/// Hears commands until there are no more, or one is not understood; then the process ends.
fn listen(mut hear: impl FnMut(Command) -> bool + Send + 'static) {
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            let command = line.ok().and_then(|line| serde_json::from_str(&line).ok());
            if !command.is_some_and(&mut hear) {
                break;
            }
        }
        std::process::exit(0);
    });
}

/// For actors that are told nothing: they end with the director.
pub(crate) fn end_with_the_director() {
    std::thread::spawn(|| {
        std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink()).ok();
        std::process::exit(0);
    });
}
