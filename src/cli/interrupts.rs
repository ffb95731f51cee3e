//! Ctrl-C, SIGTERM and SIGHUP for commands that have something to end when they come.

use std::fs;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind, signal};
use tokio::sync::mpsc;

use super::exit::{HUNG_UP, INTERRUPTED, TERMINATED};

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

/// Every such signal from now on; a third one that nobody has taken is dropped. SIGHUP stays
/// ignored where it is, as beneath `nohup`.
pub(crate) fn interrupts() -> mpsc::Receiver<Interrupt> {
    let (came, queue) = mpsc::channel(2);
    let listen = |kind| signal(kind).ok();
    let mut pressed = listen(SignalKind::interrupt());
    let mut terminated = listen(SignalKind::terminate());
    let mut hung_up = if is_ignored(Signal::HUP) { None } else { listen(SignalKind::hangup()) };
    tokio::spawn(async move {
        loop {
            let interrupt = tokio::select! {
                () = next(&mut pressed) => Interrupt::CtrlC,
                () = next(&mut terminated) => Interrupt::Terminate,
                () = next(&mut hung_up) => Interrupt::HangUp,
            };
            if let Err(mpsc::error::TrySendError::Closed(_)) = came.try_send(interrupt) {
                return;
            }
        }
    });
    queue
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
