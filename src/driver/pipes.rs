//! The splice path: moves chunks from socket to pipe to socket with `splice(2)`, without copying
//! them to user space. Used for chunks the leader need not read. Linux only.

use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;

use rustix::io::Errno;
use rustix::pipe::{
    PipeFlags, SpliceFlags, fcntl_getpipe_size, fcntl_setpipe_size, pipe_with, splice,
};
use tracing::debug;

/// Pipes in all. The kernel lets a user have 64 MiB in pipes (pipe-user-pages-soft), some of it for
/// others.
const PIPES_MAX: usize = 32;

/// Bytes that a pipe should hold: what unprivileged users may set (pipe-max-size). One that may not
/// hold so much works, too.
const PIPE_BYTES: usize = 1024 * 1024;

/// A pipe between two sockets.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    /// Pipes that there are; it counts itself out.
    made: Rc<Cell<usize>>,
}

impl Drop for Pipe {
    fn drop(&mut self) {
        self.made.set(self.made.get().saturating_sub(1));
    }
}

impl Pipe {
    fn new(made: Rc<Cell<usize>>) -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        if let Err(error) = fcntl_setpipe_size(&write, PIPE_BYTES) {
            debug!("a pipe holds less than {PIPE_BYTES} bytes: {error}");
        }
        made.set(made.get() + 1);
        Ok(Pipe { read, write, made })
    }

    /// Moves bytes from a socket into the pipe. 0 at the end of the stream.
    pub(super) fn fill(&self, from: impl AsFd, most: usize) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        Ok(splice(from, None, &self.write, None, most, flags)?)
    }

    /// Moves bytes from the pipe to a socket.
    pub(super) fn drain(&self, to: impl AsFd, most: usize) -> io::Result<usize> {
        let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
        Ok(splice(&self.read, None, to, None, most, flags)?)
    }

    /// Reads what is in the pipe.
    pub(super) fn read(&self, into: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::io::read(&self.read, into)?)
    }
}

/// Pipes that wait for use: all of them empty.
#[derive(Debug, Default)]
pub(super) struct Pipes {
    free: RefCell<Vec<Pipe>>,
    made: Rc<Cell<usize>>,
}

impl Pipes {
    /// An empty pipe, if there are any.
    pub(super) fn take(&self) -> Option<Pipe> {
        if let Some(pipe) = self.free.borrow_mut().pop() {
            return Some(pipe);
        }
        if self.made.get() >= PIPES_MAX {
            return None;
        }
        Pipe::new(self.made.clone())
            .inspect_err(|error| debug!("cannot create a pipe: {error}"))
            .ok()
    }

    /// Gives a pipe back. One that is not empty is closed.
    pub(super) fn give(&self, pipe: Pipe, is_empty: bool) {
        if is_empty {
            self.free.borrow_mut().push(pipe);
        }
    }
}

/// Makes a pipe, to see whether that can be done; says how many bytes it holds, or why not and what
/// to do.
pub(super) fn look() -> Result<usize, String> {
    let pipe = Pipe::new(Rc::default()).map_err(|error| refused(&error))?;
    fcntl_getpipe_size(&pipe.write).map_err(|error| refused(&error.into()))
}

/// What it means that a pipe is refused, and what to do.
fn refused(error: &io::Error) -> String {
    let remedy = match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::MFILE) => "raise the limit of open descriptors (ulimit -n, LimitNOFILE=)",
        Some(Errno::NFILE) => "raise fs.pipe-user-pages-hard, or fs.file-max",
        Some(_) | None => "allow pipe2 and splice",
    };
    format!("{error}; to have it, {remedy}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_is_refused_comes_with_what_to_do() {
        let cases = [
            (Errno::MFILE, "ulimit -n"),
            (Errno::NFILE, "pipe-user-pages-hard"),
            (Errno::PERM, "pipe2"),
        ];
        for (errno, remedy) in cases {
            let error = io::Error::from(errno);
            let text = refused(&error);
            assert!(text.contains(remedy) && text.contains(&error.to_string()), "{text}");
        }
    }
}
