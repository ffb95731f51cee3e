//! The standard outputs, and what it means that they cannot be written: whoever reads what a
//! command prints must be able to tell a whole answer from the beginning of one.
//!
//! An output that takes nothing, such as a full pipe, is waited for. A signal ends that wait, and
//! also an output of many pieces; without it a command that is stuck here would not hear Ctrl-C.

use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use rustix::io::Errno;
use serde_json::Value;
use thiserror::Error;

use super::interrupts::{Interrupt, Stopped, wanted};

/// How long an output is waited for before it is looked whether a signal has come.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// How long to wait when an output said that it takes something and then did not.
const PAUSE: Duration = Duration::from_millis(10);

/// What is written at a time. A pipe that takes anything takes this much without blocking
/// (PIPE_BUF).
const PIECE_BYTES: usize = 4_096;

/// The same for files, which never make a writer wait for a reader.
const FILE_PIECE_BYTES: usize = 256 * 1024;

/// Why not all of a command's output was written.
#[derive(Debug, Error)]
pub(crate) enum Unwritten {
    /// Its reader has left, as `head` does. That is said by the exit code alone.
    #[error("the output was closed before all of it was written")]
    Closed,
    /// A signal came first.
    #[error("{} came before all of the output was written", .0.name())]
    Interrupted(Interrupt),
    /// The system did not take it.
    #[error("cannot write the output: {0}")]
    Failed(io::Error),
}

impl From<io::Error> for Unwritten {
    fn from(error: io::Error) -> Self {
        let stopped = error.get_ref().and_then(|inner| inner.downcast_ref::<Stopped>());
        match (stopped, error.kind()) {
            (Some(stopped), _) => Unwritten::Interrupted(stopped.interrupt),
            (None, io::ErrorKind::BrokenPipe) => Unwritten::Closed,
            (None, _) => Unwritten::Failed(error),
        }
    }
}

/// One of the standard outputs, without a buffer.
#[derive(Debug)]
pub(crate) struct Standard<F> {
    fd: F,
    piece_bytes: usize,
    /// Whether something was written: the beginning of an output is written although a signal
    /// waits, as long as the output takes it.
    has_begun: bool,
}

/// Standard output.
pub(crate) fn out() -> Standard<io::Stdout> {
    Standard::new(io::stdout())
}

/// Standard error.
pub(crate) fn err() -> Standard<io::Stderr> {
    Standard::new(io::stderr())
}

impl<F: AsFd> Standard<F> {
    fn new(fd: F) -> Self {
        let is_file = fstat(&fd)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile);
        let piece_bytes = if is_file { FILE_PIECE_BYTES } else { PIECE_BYTES };
        Standard { fd, piece_bytes, has_begun: false }
    }
}

impl<F: AsFd> Write for Standard<F> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        let piece = bytes.get(..self.piece_bytes).unwrap_or(bytes);
        let stop = |interrupt| Err(io::Error::other(Stopped::plain(interrupt)));
        if let Some(interrupt) = wanted().filter(|_| self.has_begun) {
            return stop(interrupt);
        }
        loop {
            if takes_something(self.fd.as_fd())? {
                match rustix::io::write(&self.fd, piece) {
                    Ok(count) => {
                        self.has_begun = true;
                        return Ok(count);
                    }
                    Err(Errno::INTR) => continue,
                    // Somebody else, such as a shell, has set it so for all that share it.
                    Err(Errno::AGAIN) => std::thread::sleep(PAUSE),
                    Err(error) => return Err(error.into()),
                }
            }
            if let Some(interrupt) = wanted() {
                return stop(interrupt);
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Waits a little for an output; whether it takes something, or an error that a write would tell.
fn takes_something(fd: BorrowedFd<'_>) -> io::Result<bool> {
    let mut polled = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
    match poll(&mut polled, Some(&WAIT)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Prints to standard output.
pub(crate) fn print(bytes: &[u8]) -> Result<(), Unwritten> {
    print_to(&mut out(), bytes)
}

/// Prints one JSON object on a line.
pub(crate) fn print_json(value: &Value) -> Result<(), Unwritten> {
    print(format!("{value}\n").as_bytes())
}

/// Prints to one of the standard outputs.
pub(crate) fn print_to(out: &mut dyn Write, bytes: &[u8]) -> Result<(), Unwritten> {
    out.write_all(bytes)?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
    use std::io::Read;

    #[test]
    fn an_output_that_does_not_wait_for_its_reader_loses_nothing() {
        let (mut reader, writer) = io::pipe().unwrap();
        fcntl_setfl(&writer, fcntl_getfl(&writer).unwrap() | OFlags::NONBLOCK).unwrap();
        let all: Vec<u8> = (0..100_000_u32).flat_map(u32::to_le_bytes).collect();
        let expected = all.clone();
        let writing = std::thread::spawn(move || print_to(&mut Standard::new(writer), &all));
        let mut came = Vec::new();
        reader.read_to_end(&mut came).unwrap();
        writing.join().unwrap().unwrap();
        assert_eq!(came, expected);
    }

    #[test]
    fn an_output_whose_reader_has_left_is_closed() {
        let (reader, writer) = io::pipe().unwrap();
        drop(reader);
        let error = print_to(&mut Standard::new(writer), b"x").unwrap_err();
        assert!(matches!(error, Unwritten::Closed), "{error}");
    }
}
