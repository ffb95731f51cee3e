//! Systems without `splice(2)` have no lane: there is never a pipe, so chunks are gathered in pooled buffers.

use std::convert::Infallible;
use std::io;
use std::os::fd::AsFd;

/// There are none.
#[derive(Debug)]
pub(super) struct Pipe(Infallible);

impl Pipe {
    pub(super) fn fill(&self, _: impl AsFd, _: usize) -> io::Result<usize> {
        match self.0 {}
    }

    pub(super) fn drain(&self, _: impl AsFd, _: usize) -> io::Result<usize> {
        match self.0 {}
    }

    pub(super) fn read(&self, _: &mut [u8]) -> io::Result<usize> {
        match self.0 {}
    }
}

/// Pipes that wait for use: none.
#[derive(Debug, Default)]
pub(super) struct Pipes;

impl Pipes {
    pub(super) fn take(&self) -> Option<Pipe> {
        None
    }

    pub(super) fn give(&self, pipe: Pipe, _: bool) {
        match pipe.0 {}
    }
}

/// There are none.
pub(super) fn look() -> Result<usize, String> {
    Err("splice is Linux's".to_owned())
}
