//! The commands of `heft`, one file each, and what they share: exit codes, output forms, connecting. They hold no logic of
//! jobs: the library's roles do the work, and only `main` calls them.

pub(crate) mod cancel;
pub(crate) mod client;
pub(crate) mod clientx;
pub(crate) mod dlq;
pub(crate) mod progress;
pub(crate) mod status;
pub(crate) mod submit;
pub(crate) mod table;
pub(crate) mod unpack;

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::ValueEnum;
use heft::client::{Client, ClientError, JobError, Options};
use heft::units::Span;
use serde_json::Value;

/// Exit codes, the same in all commands.
pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const UNAVAILABLE: u8 = 3;
pub(crate) const TIMED_OUT: u8 = 4;
pub(crate) const INTERRUPTED: u8 = 130;

pub(crate) const AFTER_HELP: &str = "Exit codes:
  0    done; for a job: it ended OK
  1    the job FAILED, or the leader answered with an error
  2    the command line or a file named on it is not right
  3    the leader refused, or cannot be reached
  4    --timeout ran out
  130  interrupted

HEFT_LOG=info (or debug) shows what happens underneath.";

/// In which form a command prints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
}

/// Something on the command line is not right, or a file named there.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// `--timeout` ran out.
#[derive(Debug)]
pub(crate) struct TimedOut(pub(crate) String);

impl fmt::Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TimedOut {}

/// How the commands that talk to one leader reach it.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Reach {
    /// How long to try to reach the leader before giving up.
    #[arg(long, value_name = "TIME", default_value = "10s", global = true)]
    connect_wait: Span,

    /// TCP congestion control by name, such as cubic; without it, connections on this machine take cubic or reno.
    #[arg(long, value_name = "NAME", global = true)]
    tcp_congestion: Option<String>,
}

impl Reach {
    pub(crate) fn options(&self, client_id: &str) -> Options {
        let mut options = Options::new(client_id);
        options.connect_wait = Some(self.connect_wait.0);
        options.tuning.congestion.clone_from(&self.tcp_congestion);
        options
    }

    /// A client that only asks. It needs a heft leader, so it is more patient than one that could do without.
    pub(crate) async fn asking(&self, leader: &str) -> Result<Client, ClientError> {
        let mut options = self.options("");
        options.welcome_wait = std::time::Duration::from_secs(2);
        Client::connect(leader, &options).await
    }
}

/// Says what went wrong, and gives the exit code for it.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    say(&format!("{error:#}"));
    ExitCode::from(code_of(error))
}

pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return match error {
            ClientError::TooLarge { .. }
            | ClientError::SubjectTooLong { .. }
            | ClientError::ClientIdTooLong { .. }
            | ClientError::BadAddress(_)
            | ClientError::JobIdInUse(_) => USAGE,
            ClientError::Unreachable { .. }
            | ClientError::NotSupported { .. }
            | ClientError::Disconnected { .. }
            | ClientError::Busy { .. }
            | ClientError::Closed => UNAVAILABLE,
            ClientError::Answered(_) | ClientError::BadAnswer { .. } => FAILED,
        };
    }
    if let Some(error) = error.downcast_ref::<JobError>() {
        return match error {
            JobError::Refused { .. } | JobError::Closed { .. } => UNAVAILABLE,
            JobError::CancelledUnsent { .. } => INTERRUPTED,
            JobError::BadResult { .. } => FAILED,
        };
    }
    if error.is::<Usage>() {
        return USAGE;
    }
    if error.is::<TimedOut>() {
        return TIMED_OUT;
    }
    FAILED
}

/// A line for the person at the terminal. That nobody reads it any more is no reason to stop.
pub(crate) fn say(text: &str) {
    writeln!(io::stderr(), "heft: {}", printable(text)).ok();
}

/// Prints to standard output; an error only if it is not just closed, as by `| head`.
pub(crate) fn print(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Prints one JSON object on a line.
pub(crate) fn print_json(value: &Value) -> io::Result<()> {
    print(format!("{value}\n").as_bytes())
}

/// A peer's text without what could move a terminal's cursor.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}
