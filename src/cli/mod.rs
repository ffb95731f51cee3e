//! The commands of `heft`: what a person types becomes a configuration, what a role says becomes
//! lines and exit codes. Only `main.rs` calls it.

pub mod blob;
pub mod cancel;
mod children;
pub mod client;
pub mod clients;
pub mod clientx;
pub mod command;
pub mod context;
pub mod dataset;
pub mod demo;
pub mod dlq;
mod ending;
pub mod exit;
pub mod explain;
mod files;
mod gaps;
mod identity;
mod interrupts;
pub mod job;
mod job_line;
mod job_logs;
mod last;
pub mod leader;
mod leaving;
mod log;
mod log_pieces;
mod out;
mod output;
mod positions;
mod print;
mod printed;
mod progress;
pub mod queue;
mod queued;
mod raw;
mod reach;
pub mod result;
mod show;
mod show_children;
pub mod status;
mod status_pages;
pub mod submit;
mod submit_files;
mod table;
mod terminal;
mod unpack;
pub mod worker;
pub mod workers;

pub use log::log_to_stderr;
pub(crate) use output::{Output, Rows};
pub(crate) use print::{Unwritten, err, out as standard_out, print, print_json, print_to};
pub(crate) use reach::{Connect, Reach};

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::Signal;
use tokio::runtime::Runtime;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use crate::fs::own_dir::SharedDir;
use crate::units::Span;
use crate::wire::check_congestion;
use exit::{Unavailable, Usage};
use interrupts::{Stopped, interrupts, set_leaving};

/// Runs a command to its end on this thread. What a signal does to it is its own matter.
fn block_on<F: Future<Output = anyhow::Result<ExitCode>>>(command: F) -> anyhow::Result<ExitCode> {
    runtime()?.block_on(command)
}

fn runtime() -> Result<Runtime, Unavailable> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| {
        let hint = descriptors_hint(&error).unwrap_or("try again when the system has more room");
        Unavailable(format!("heft cannot start: {error}: {hint}"))
    })
}

/// What helps if an error says that no more files may be open.
pub(crate) fn descriptors_hint(error: &std::io::Error) -> Option<&'static str> {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE) => Some("raise the limit of open files (ulimit -n)"),
        Some(Errno::NFILE) => Some("the system has too many open files: try again later"),
        Some(_) | None => None,
    }
}

/// The same of a command that a signal may end anywhere.
fn block_on_until_stopped<F: Future<Output = anyhow::Result<ExitCode>>>(
    command: F,
) -> anyhow::Result<ExitCode> {
    let runtime = runtime()?;
    let ended = runtime.block_on(async {
        let mut interrupts = interrupts()?;
        tokio::select! {
            ended = command => ended,
            Some(interrupt) = interrupts.recv() => {
                // The runtime waits for threads that print.
                set_leaving(Some(interrupt));
                Err(Stopped::plain(interrupt).into())
            }
        }
    });
    drop(runtime);
    set_leaving(None);
    ended
}

/// Waits until someone wants the process to stop: Ctrl-C, or SIGTERM.
pub async fn stop_signal() {
    match signal(SignalKind::terminate()) {
        Ok(mut terminated) => {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = terminated.recv() => {}
            }
        }
        Err(_) => {
            tokio::signal::ctrl_c().await.ok();
        }
    }
}

/// Sees to it that a write beyond the limit of a file's size (`ulimit -f`) fails with an error, as
/// one to a full disk does. By default the signal that comes with it ends the process without a
/// word. It is caught and not ignored: programs that jobs run would inherit that.
pub fn outlive_file_limit() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build();
    let caught = runtime.and_then(|runtime| {
        let _entered = runtime.enter();
        // The handler stays for the life of the process.
        signal(SignalKind::from_raw(Signal::XFSZ.as_raw())).map(drop)
    });
    if let Err(error) = caught {
        tracing::warn!(
            "cannot catch SIGXFSZ, so a file over the system's size limit will end this process: \
             {error}"
        );
    }
}

/// Refuses a directory in which other users could lead a process's files elsewhere. Gives its path
/// without links.
pub(crate) fn check_own(what: &str, flag: &str, path: &std::path::Path) -> Result<PathBuf, Usage> {
    crate::fs::own_dir::check(path).map_err(|error| not_safe(what, flag, path, &error))
}

/// Why a directory is not taken, and what to do.
pub(crate) fn not_safe(what: &str, flag: &str, path: &std::path::Path, error: &SharedDir) -> Usage {
    Usage(format!(
        "the {what} directory {} is not safe: {error}; name one of your own with {flag}, or take it as it is with \
         --allow-shared-dirs",
        path.display()
    ))
}

/// Reads a job's id from the command line.
pub(crate) fn job_id(text: &str) -> Result<Uuid, String> {
    let form = || {
        format!(
            "{text:?} is not a valid job id: it is a Guid such as 00112233-4455-6677-8899-aabbccddeeff"
        )
    };
    text.parse().map_err(|_| form())
}

/// Reads the name of a congestion control from the command line.
pub(crate) fn congestion(name: &str) -> Result<String, String> {
    match check_congestion(name) {
        Ok(()) => Ok(name.to_owned()),
        Err(error) => Err(format!(
            "this congestion control is unavailable or not allowed ({error}): choose one listed in \
             /proc/sys/net/ipv4/tcp_allowed_congestion_control"
        )),
    }
}

/// Reads a time limit from the command line.
pub(crate) fn time_limit(text: &str) -> Result<Span, String> {
    match text.parse::<Span>() {
        Ok(limit) if limit.0.is_zero() => Err(
            "a time limit of 0 lets no program run: give a time such as 30s, or leave it out for no limit"
                .to_owned(),
        ),
        Ok(limit) => Ok(limit),
        Err(error) => Err(error.to_string()),
    }
}

/// Whether `-q` was given.
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// From now on notes are kept back.
pub(crate) fn be_quiet() {
    IS_QUIET.store(true, Ordering::Relaxed);
}

/// Whether notes are kept back.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// A line that is of use and tells of no trouble: `-q` keeps it back.
pub(crate) fn note(text: &str) {
    if !is_quiet() {
        say(text);
    }
}

/// A line for the person at the terminal. That nobody reads it any more is no reason to stop.
pub(crate) fn say(text: &str) {
    err().write_all(format!("heft: {}\n", printable(text)).as_bytes()).ok();
}

/// A peer's text without what could move a terminal's cursor or turn the text around it.
pub(crate) fn printable(text: &str) -> String {
    let mut printable = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '\n' => printable.push(c),
            c if c.is_control() => printable.push(' '),
            c if log::moves(c) => printable.extend(c.escape_default()),
            c => printable.push(c),
        }
    }
    printable
}

/// About how long, for people: `7us`, `480ms`, `1.5s`, `1h30m`.
pub(crate) fn about(time: Duration) -> String {
    const UNITS: [(&str, u64); 6] = [
        ("us", 1),
        ("ms", 1_000),
        ("s", 1_000_000),
        ("m", 60_000_000),
        ("h", 3_600_000_000),
        ("d", 86_400_000_000),
    ];
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let mut units = UNITS.iter().rev();
    let Some((unit, factor)) = units.find(|(_, factor)| micros >= *factor) else {
        return "0s".to_owned();
    };
    let (whole, rest) = (micros / factor, micros % factor);
    match units.next() {
        // Days with hours, hours with minutes, minutes with seconds; below that one digit behind
        // the point.
        Some((smaller, part)) if *factor >= 60_000_000 => match rest / part {
            0 => format!("{whole}{unit}"),
            parts => format!("{whole}{unit}{parts}{smaller}"),
        },
        Some(_) | None => match rest * 10 / factor {
            0 => format!("{whole}{unit}"),
            tenths => format!("{whole}.{tenths}{unit}"),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peers_text_does_not_turn_or_end_its_line() {
        assert_eq!(
            printable("a\u{202e}b\u{2028}c\x1bd\ne größe"),
            "a\\u{202e}b\\u{2028}c d\ne größe"
        );
    }

    #[test]
    fn times_are_shown_with_the_largest_units() {
        for (micros, text) in [
            (0, "0s"),
            (7, "7us"),
            (480_000, "480ms"),
            (1_500_000, "1.5s"),
            (59_990_000, "59.9s"),
            (61_000_000, "1m1s"),
            (5_400_000_000, "1h30m"),
            (86_400_000_000, "1d"),
        ] {
            assert_eq!(about(Duration::from_micros(micros)), text);
        }
    }
}
