//! Ctrl-C, SIGTERM and SIGHUP for commands that have something to end when they come.
//!
//! They are taken by a thread of its own, so that a command that is stuck in writing its output
//! hears of them, too: `print.rs` asks [`wanted`] between two pieces.

use std::fs;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use thiserror::Error;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc;
use uuid::Uuid;

use super::exit::{HUNG_UP, INTERRUPTED, TERMINATED};

/// Signals that wait to be taken. One more ends the process.
const WAITING_MAX: usize = 2;

/// What a command that takes no more signals has to end by itself.
const LAST_MOMENT: Duration = Duration::from_secs(1);

/// Why a command is to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupt {
    CtrlC,
    /// SIGTERM, as `kill` and service managers send it.
    Terminate,
    /// SIGHUP: the terminal is gone.
    HangUp,
}

impl Interrupt {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Interrupt::CtrlC => "Ctrl-C",
            Interrupt::Terminate => "SIGTERM",
            Interrupt::HangUp => "SIGHUP",
        }
    }

    /// The exit code: what a shell reports of a command that the signal ended.
    pub(crate) fn code(self) -> u8 {
        match self {
            Interrupt::CtrlC => INTERRUPTED,
            Interrupt::Terminate => TERMINATED,
            Interrupt::HangUp => HUNG_UP,
        }
    }
}

/// A signal ended the command: what became of its work.
#[derive(Debug, Error)]
#[error("{text}")]
pub(crate) struct Stopped {
    pub(crate) interrupt: Interrupt,
    pub(crate) text: String,
    /// The job that was left, if one was.
    pub(crate) job: Option<Uuid>,
}

impl Stopped {
    /// One of a command that leaves nothing behind.
    pub(crate) fn plain(interrupt: Interrupt) -> Self {
        Stopped { interrupt, text: format!("ended by {}", interrupt.name()), job: None }
    }
}

/// What is known of signals, for threads that are busy writing.
#[derive(Debug)]
struct Known {
    /// Those that came and nobody has taken, in their order.
    waiting: Vec<Interrupt>,
    /// The command ends because of this one.
    leaving: Option<Interrupt>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { waiting: Vec::new(), leaving: None });

fn known<T>(look: impl FnOnce(&mut Known) -> T) -> T {
    look(&mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The signal because of which a write that is under way has to end.
pub(crate) fn wanted() -> Option<Interrupt> {
    known(|known| known.leaving.or(known.waiting.first().copied()))
}

/// Other threads end what they write: the command does not wait for them to finish.
pub(super) fn set_leaving(leaving: Option<Interrupt>) {
    known(|known| known.leaving = leaving);
}

/// Signals in the order in which they came.
#[derive(Debug)]
pub(crate) struct Interrupts(mpsc::Receiver<Interrupt>);

impl Interrupts {
    /// The next signal.
    pub(crate) async fn recv(&mut self) -> Option<Interrupt> {
        let interrupt = self.0.recv().await;
        known(|known| {
            if !known.waiting.is_empty() {
                known.waiting.remove(0);
            }
        });
        interrupt
    }
}

/// Every such signal from now on; a third one that nobody has taken ends the process, and so does
/// one that comes when this is dropped. SIGHUP stays ignored where it is, as beneath `nohup`.
pub(crate) fn interrupts() -> io::Result<Interrupts> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (came, queue) = mpsc::channel(WAITING_MAX);
    // They are caught when this returns, and not when the thread runs.
    let entered = runtime.enter();
    let listen = |kind| signal(kind).ok();
    let mut pressed = listen(SignalKind::interrupt());
    let mut terminated = listen(SignalKind::terminate());
    let mut hung_up = if is_ignored(Signal::HUP) { None } else { listen(SignalKind::hangup()) };
    drop(entered);
    let listening = async move {
        loop {
            let interrupt = tokio::select! {
                () = next(&mut pressed) => Interrupt::CtrlC,
                () = next(&mut terminated) => Interrupt::Terminate,
                () = next(&mut hung_up) => Interrupt::HangUp,
            };
            // Under the lock: whoever takes it finds it among those that wait.
            let sent = known(|known| {
                known.waiting.push(interrupt);
                known.waiting.truncate(WAITING_MAX);
                came.try_send(interrupt)
            });
            if sent.is_err() {
                // Nobody takes them any more, or the command is stuck in something else.
                std::thread::sleep(LAST_MOMENT);
                std::process::exit(interrupt.code().into());
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".to_owned())
        .spawn(move || runtime.block_on(listening))?;
    Ok(Interrupts(queue))
}

async fn next(signal: &mut Option<unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => std::future::pending().await,
    }
}

/// Whether whoever started this process wants it to ignore a signal.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    ignored_in(&status, signal)
}

fn ignored_in(status: &str, signal: Signal) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    let bit = u32::try_from(signal.as_raw()).ok().and_then(|number| number.checked_sub(1));
    mask.zip(bit).is_some_and(|(mask, bit)| mask.checked_shr(bit).unwrap_or(0) & 1 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_that_shells_report() {
        let codes =
            [Interrupt::CtrlC, Interrupt::Terminate, Interrupt::HangUp].map(Interrupt::code);
        assert_eq!(codes, [130, 143, 129]);
    }

    #[test]
    fn a_signal_is_ignored_if_its_bit_is_set() {
        let status = "Name:\theft\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        assert!(ignored_in(status, Signal::HUP) && ignored_in(status, Signal::PIPE));
        assert!(!ignored_in(status, Signal::TERM) && !ignored_in(status, Signal::INT));
        assert!(!ignored_in("", Signal::HUP) && !ignored_in("SigIgn:\tx\n", Signal::HUP));
    }
}
