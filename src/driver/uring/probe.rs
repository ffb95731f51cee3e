//! Checks whether the system allows io_uring, and if not, suggests a remedy.

use std::io;

use io_uring::{Probe, opcode};
use rustix::io::Errno;

use super::{RING_ENTRIES, ring};

/// What the driver needs, with what tokio-uring needs to end.
const NEEDED: [(u8, &str); 4] = [
    (opcode::Nop::CODE, "NOP"),
    (opcode::Recv::CODE, "RECV"),
    (opcode::PollAdd::CODE, "POLL_ADD"),
    (opcode::AsyncCancel::CODE, "ASYNC_CANCEL"),
];

/// A ring that can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::driver) struct Ring {
    /// Whether the kernel does its part without interrupting.
    pub(in crate::driver) quiet: bool,
}

/// Looks whether a ring can be had, or says why not and what to do.
pub(in crate::driver) fn probe() -> Result<Ring, String> {
    let made = ring(true).build(RING_ENTRIES).map(|made| (made, true)).or_else(|error| {
        match errno(&error) {
            // A kernel that does not know what was asked for.
            Some(Errno::INVAL) => ring(false).build(RING_ENTRIES).map(|made| (made, false)),
            Some(_) | None => Err(error),
        }
    });
    let (made, quiet) = made.map_err(|error| refused(&error))?;
    if !made.params().is_feature_fast_poll() {
        return Err(
            "this kernel's io_uring blocks a thread for each socket: use Linux 5.7 or later"
                .to_owned(),
        );
    }
    // Nothing is submitted, but the call is made, which a filter may refuse as well.
    made.submit().map_err(|error| refused(&error))?;
    let mut table = Probe::new();
    made.submitter().register_probe(&mut table).map_err(|error| refused(&error))?;
    check(|code| table.is_supported(code))?;
    Ok(Ring { quiet })
}

/// Whether all that is needed is in a table of operations.
fn check(has: impl Fn(u8) -> bool) -> Result<(), String> {
    let missing: Vec<&str> =
        NEEDED.iter().filter(|(code, _)| !has(*code)).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(format!("this kernel's io_uring lacks {}: use Linux 5.7 or later", missing.join(", ")))
}

fn errno(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

/// What it means that a ring is refused, and what to do.
fn refused(error: &io::Error) -> String {
    let meaning = match errno(error) {
        Some(Errno::PERM | Errno::ACCESS) => {
            "io_uring is forbidden here: set kernel.io_uring_disabled to 0, or allow io_uring_setup, io_uring_enter and \
             io_uring_register in the seccomp filter (of the container, most likely)"
        }
        Some(Errno::NOSYS) => {
            "there is no io_uring here: use Linux 5.7 or later, or allow it in the seccomp filter that hides it"
        }
        Some(Errno::NOMEM) => {
            "too little memory may be locked for a ring: raise the limit (ulimit -l, LimitMEMLOCK=)"
        }
        Some(Errno::INVAL) => "this kernel's io_uring is too old: use Linux 5.7 or later",
        Some(Errno::MFILE | Errno::NFILE) => {
            "too few descriptors may be open: raise the limit (ulimit -n, LimitNOFILE=)"
        }
        Some(_) | None => "cannot create a ring",
    };
    format!("{meaning} ({error})")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_that_is_missing_is_named() {
        assert_eq!(check(|_| true), Ok(()));
        let without =
            |missing: &'static [u8]| check(move |code| !missing.contains(&code)).unwrap_err();
        assert!(without(&[opcode::PollAdd::CODE]).contains("lacks POLL_ADD:"));
        assert!(without(&[opcode::Recv::CODE, opcode::Nop::CODE]).contains("lacks NOP, RECV:"));
        for (code, name) in NEEDED {
            assert!(check(|asked| asked != code).unwrap_err().contains(name));
        }
    }

    #[test]
    fn what_the_system_refuses_comes_with_what_to_do() {
        let cases = [
            (Errno::PERM, "kernel.io_uring_disabled"),
            (Errno::ACCESS, "seccomp"),
            (Errno::NOSYS, "Linux 5.7"),
            (Errno::NOMEM, "ulimit -l"),
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "ulimit -n"),
            (Errno::INVAL, "Linux 5.7"),
            (Errno::IO, "cannot create a ring"),
        ];
        for (errno, remedy) in cases {
            let error = io::Error::from(errno);
            let text = refused(&error);
            assert!(text.contains(remedy) && text.contains(&error.to_string()), "{text}");
        }
    }
}
