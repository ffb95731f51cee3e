//! How commands end: the exit codes, the same in all commands that talk to a leader, and how errors
//! become them.

use std::process::ExitCode;

use chunking::message::Reason;
use serde_json::{Value, json};
use thiserror::Error;

use super::interrupts::Stopped;
use super::{Unwritten, output, print_json, say};
use crate::client::dataset::PutError;
use crate::client::{ClientError, JobError};
use crate::units::Span;

pub(crate) const FAILED: u8 = 1;
pub(crate) const USAGE: u8 = 2;
pub(crate) const UNAVAILABLE: u8 = 3;
pub(crate) const TIMED_OUT: u8 = 4;
pub(crate) const NOT_FOUND: u8 = 5;
/// A defect in heft: what Rust ends a process with by itself.
pub(crate) const PANICKED: u8 = 101;
pub(crate) const INTERRUPTED: u8 = 130;
/// What a shell reports of a command that SIGHUP ended, or SIGTERM.
pub(crate) const HUNG_UP: u8 = 129;
pub(crate) const TERMINATED: u8 = 143;
/// What a shell reports of a command that SIGPIPE ended.
pub(crate) const OUTPUT_CLOSED: u8 = 141;

/// What a program reads in place of the number.
const WORDS: [(u8, &str); 10] = [
    (FAILED, "failed"),
    (USAGE, "usage"),
    (UNAVAILABLE, "unavailable"),
    (TIMED_OUT, "timed-out"),
    (NOT_FOUND, "not-found"),
    (PANICKED, "defect"),
    (INTERRUPTED, "interrupted"),
    (HUNG_UP, "interrupted"),
    (TERMINATED, "interrupted"),
    (OUTPUT_CLOSED, "output-closed"),
];

/// The word for an exit code.
pub(crate) fn word_of(code: u8) -> &'static str {
    WORDS.iter().find(|(known, _)| *known == code).map_or("failed", |(_, word)| *word)
}

/// What stands below the help of `heft` itself.
pub const AFTER_HELP: &str = "Exit codes:
  0    done; for a job: it ended OK; for a dataset: enough workers have it
  1    the job FAILED, too few workers have the dataset, the leader answered with an error, or the
       output could not be written
  2    invalid command line, or a file named on it cannot be used
  3    the leader refused, cannot be reached, or its host name is unknown; `heft leader` cannot
       listen, as on a port in use
  4    --timeout ran out
  5    not found: the leader has no such job, result, dataset, blob or worker
  101  a defect in heft (a panic)
  129  interrupted by SIGHUP, 130 by Ctrl-C, 143 by SIGTERM
  141  the reader of the output left before its end, as `head` does

The leader's address is -l HOST:PORT, else HEFT_LEADER, else that of the context (--context,
HEFT_CONTEXT, `heft context use`), else 127.0.0.1:5000. -v (or -vv) shows what happens underneath.";

/// Something on the command line is not right, or a file named there.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Usage(pub(crate) String);

/// What the command needs of the system is not to be had now.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct Unavailable(pub(crate) String);

/// What a leader's client met, and where the leader's address is from: there is the mistake, if it
/// is one.
#[derive(Debug, Error)]
#[error("{error} ({from})")]
pub(crate) struct Sourced {
    pub(crate) error: ClientError,
    pub(crate) from: String,
}

/// What was asked about is not there.
#[derive(Debug, Error)]
#[error("{0}")]
pub(crate) struct NotFound(pub(crate) String);

/// `--timeout` ran out.
#[derive(Debug, Error)]
pub(crate) enum TimedOut {
    /// Before anything was sent.
    #[error("{0}")]
    Unsent(String),
    /// Later.
    #[error("{0}")]
    Waiting(String),
}

/// Does something within `--timeout`, if there is one. It covers all of it: resolving the leader's
/// name and connecting, too.
pub(crate) async fn within<T>(
    limit: Option<Span>,
    what: impl Future<Output = anyhow::Result<T>>,
    undone: impl FnOnce(Span) -> String,
) -> anyhow::Result<T> {
    let Some(limit) = limit else { return what.await };
    match tokio::time::timeout(limit.0, what).await {
        Ok(done) => done,
        Err(_) => Err(TimedOut::Waiting(undone(limit)).into()),
    }
}

/// Says what went wrong, to a program in the answer's place, and gives the exit code for it.
pub(crate) fn report(error: &anyhow::Error, as_json: bool) -> ExitCode {
    let code = code_of(error);
    // What stands behind the beginning of an output would be read as a part of it.
    let is_cut = error.is::<Unwritten>();
    match code {
        OUTPUT_CLOSED => {}
        _ if as_json && !is_cut => return report_json(&output::as_json(error), code),
        _ => say(&format!("{error:#}")),
    }
    ExitCode::from(code)
}

/// Prints an error for programs; the exit code, unless that cannot be written, either.
pub(crate) fn report_json(error: &Value, code: u8) -> ExitCode {
    match print_json(&json!({ "error": error })) {
        Ok(()) => ExitCode::from(code),
        Err(unwritten) => report(&unwritten.into(), false),
    }
}

/// The next step, where the error's text does not have it.
pub(crate) fn hint_of(error: &anyhow::Error) -> Option<String> {
    error.downcast_ref::<Sourced>().map(|sourced| sourced.from.clone())
}

/// The error's text without the hint.
pub(crate) fn message_of(error: &anyhow::Error) -> String {
    match error.downcast_ref::<Sourced>() {
        Some(sourced) => sourced.error.to_string(),
        None => format!("{error:#}"),
    }
}

pub(crate) fn code_of(error: &anyhow::Error) -> u8 {
    if let Some(error) = error.downcast_ref::<ClientError>() {
        return code_of_client(error);
    }
    if let Some(Sourced { error, .. }) = error.downcast_ref() {
        return code_of_client(error);
    }
    if let Some(error) = error.downcast_ref::<PutError>() {
        return match error {
            PutError::Scan(_) | PutError::Source(_) => USAGE,
            PutError::Client(error) => code_of_client(error),
            PutError::Refused { .. } | PutError::Part { .. } => UNAVAILABLE,
            PutError::TimedOut { .. } => TIMED_OUT,
        };
    }
    if let Some(error) = error.downcast_ref::<JobError>() {
        return match error {
            // The file is not what it was when it was named.
            JobError::InputLost { reason: Reason::SOURCE_GONE, .. } => USAGE,
            JobError::Refused { .. }
            | JobError::NoWelcome { .. }
            | JobError::InputLost { .. }
            | JobError::Closed { .. } => UNAVAILABLE,
            JobError::CancelledUnsent { .. } => INTERRUPTED,
            JobError::BadResult { .. } => FAILED,
        };
    }
    match error.downcast_ref() {
        Some(Unwritten::Closed) => return OUTPUT_CLOSED,
        Some(Unwritten::Interrupted(interrupt)) => return interrupt.code(),
        Some(Unwritten::Failed(_)) | None => {}
    }
    if let Some(Stopped { interrupt, .. }) = error.downcast_ref() {
        return interrupt.code();
    }
    if error.is::<Usage>() {
        return USAGE;
    }
    if error.is::<Unavailable>() {
        return UNAVAILABLE;
    }
    if error.is::<NotFound>() {
        return NOT_FOUND;
    }
    if error.is::<TimedOut>() {
        return TIMED_OUT;
    }
    FAILED
}

fn code_of_client(error: &ClientError) -> u8 {
    match error {
        ClientError::TooLarge { .. }
        | ClientError::BadInput { .. }
        | ClientError::SubjectTooLong { .. }
        | ClientError::ClientIdTooLong { .. }
        | ClientError::BadAddress(_)
        | ClientError::JobIdInUse(_) => USAGE,
        ClientError::Unreachable { .. }
        | ClientError::UnknownHost { .. }
        | ClientError::NotSupported { .. }
        | ClientError::NoWelcome { .. }
        | ClientError::NoAnswer { .. }
        | ClientError::Disconnected { .. }
        | ClientError::Busy { .. }
        | ClientError::TooManyFollows { .. }
        | ClientError::Closed => UNAVAILABLE,
        ClientError::NotFound(_) => NOT_FOUND,
        ClientError::Answered(_) | ClientError::BadAnswer { .. } => FAILED,
    }
}
