//! Starts programs so that they die with their worker, however it ends: a second `heft` process
//! asks the kernel to kill it when the worker is gone, and then execs the program.
//!
//! Safe Rust cannot run code in a child before exec, so this takes a process of its own. Its
//! standard input is a pipe to the worker, on which it reports why the program could not be
//! started, or nothing on success. `process` builds the command; the hidden command `__exec` is the
//! other end.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, parent_id};
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use rustix::io::Errno;
use rustix::process::{Signal, set_parent_process_death_signal};

/// The hidden command: `heft __exec WORKER-PID -- PROGRAM ARGS...`.
pub const LAUNCH: &str = "__exec";

/// A command that starts `program` through `launcher`, and where a failure to do so will be found.
pub(super) fn command(launcher: &Path, program: &Path) -> io::Result<(Command, Report)> {
    let (reader, writer) = io::pipe()?;
    let mut command = Command::new(launcher);
    command.arg(LAUNCH).arg(std::process::id().to_string()).arg("--").arg(program).stdin(writer);
    Ok((command, Report(reader)))
}

/// Whether `program` is of a format that is sure to be taken: a script, or built for the same
/// machine as the launcher.
///
/// The C library's exec hands a file that the kernel does not take to the shell, which would run it
/// as what it is not. A direct start says what is wrong, so it is kept for all others.
pub(super) fn can_launch(launcher: &Path, program: &Path) -> bool {
    let Ok(program) = head(program) else { return false };
    program.starts_with(b"#!")
        || machine(&program).is_some_and(|wanted| {
            head(launcher).is_ok_and(|launcher| machine(&launcher) == Some(wanted))
        })
}

/// The start of a file, as far as the machine in an ELF header.
fn head(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(20).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Class with byte order, and machine, of an ELF file.
fn machine(head: &[u8]) -> Option<(&[u8], &[u8])> {
    let rest = head.strip_prefix(b"\x7fELF")?;
    Some((rest.get(..2)?, rest.get(14..16)?))
}

/// What the launcher had to say.
pub(super) struct Report(PipeReader);

impl Report {
    /// Why the program was not started. To be asked when the process has ended: then nobody holds
    /// the pipe's other end, and this does not wait.
    pub(super) fn failure(mut self) -> Option<io::Error> {
        let mut code = [0; size_of::<i32>()];
        self.0.read_exact(&mut code).ok()?;
        Some(io::Error::from_raw_os_error(i32::from_ne_bytes(code)))
    }
}

/// Becomes the program, which will be killed when the thread of the worker that started this
/// process is gone. Returns only if that fails.
pub fn launch(worker: u32, program: &Path, args: &[OsString]) -> ExitCode {
    // The copy is closed when the program starts.
    let report = io::stdin().as_fd().try_clone_to_owned();
    let error = match set_parent_process_death_signal(Some(Signal::KILL)) {
        // Its end came before the signal was asked for, and nobody waits for the program.
        Ok(()) if parent_id() != worker => return ExitCode::FAILURE,
        Ok(()) => Command::new(program).args(args).stdin(Stdio::null()).exec(),
        Err(error) => error.into(),
    };
    let code = error.raw_os_error().unwrap_or_else(|| Errno::INVAL.raw_os_error());
    // Without a worker to tell, the exit code has to do.
    report.and_then(|pipe| io::PipeWriter::from(pipe).write_all(&code.to_ne_bytes())).ok();
    ExitCode::FAILURE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_formats_are_launched() {
        let this = std::env::current_exe().unwrap();
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("x");
        let mut foreign = head(&this).unwrap();
        foreign[18] ^= 0x5a;
        for (content, expected) in [
            (&b"#!/bin/sh\n"[..], true),
            (&head(&this).unwrap(), true),
            (&foreign, false),
            (b"\x7fELF", false),
            (b"MZ\x90", false),
            (b"echo text", false),
            (b"", false),
        ] {
            std::fs::write(&path, content).unwrap();
            assert_eq!(can_launch(&this, &path), expected, "{content:?}");
        }
        assert!(!can_launch(&this, &root.path().join("missing")));
    }
}
