//! One connection's socket on the ring.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use socket2::SockRef;
use tokio::net::TcpStream;

use super::operation;
use super::ready::Ready;
use crate::driver::pipes::Pipe;
use crate::driver::socket::Socket;
use crate::wire::{Inlet, limit_unsent, unacknowledged};

/// Reads in a row that found something before others have their turn.
const READS_IN_A_ROW: u32 = 32;

/// How long nothing is asked after an answer that was of no use.
const FUTILE_WAIT: Duration = Duration::from_millis(1);

/// A socket whose waiting is done by the ring.
pub(in crate::driver) struct RingSocket {
    fd: Rc<OwnedFd>,
    /// Nothing was left when it was last read from.
    empty: Cell<bool>,
    in_a_row: Cell<u32>,
    readable: Rc<Ready>,
    writable: Rc<Ready>,
    /// It was said that something can be written, and nothing was since.
    said_writable: Cell<bool>,
}

impl RingSocket {
    fn wrote(&self, written: usize) -> usize {
        self.said_writable.set(false);
        written
    }

    /// Whether to look before waiting. Not if the last look found less than it asked for.
    async fn looks(&self) -> bool {
        if self.empty.replace(false) {
            self.in_a_row.set(0);
            return false;
        }
        self.in_a_row.set(self.in_a_row.get() + 1);
        if self.in_a_row.get() > READS_IN_A_ROW {
            self.in_a_row.set(0);
            Self::pause().await;
        }
        true
    }

    /// Has the ring read what comes next, to the first place where the inlet wants it.
    async fn wait_and_read(&self, inlet: Inlet) -> (io::Result<usize>, Inlet) {
        let mut reading = Box::new(Reading { inlet, _fd: self.fd.clone() });
        let [mut place, _] = reading.inlet.room();
        let len = u32::try_from(place.len()).unwrap_or(u32::MAX);
        // Nothing moves what the entry points to: the inlet has its memory on the heap, and it
        // stays with the operation until that is done.
        let entry =
            opcode::Recv::new(types::Fd(self.fd.as_raw_fd()), place.as_mut_ptr(), len).build();
        let (got, reading) = operation(reading, entry).await;
        (got, reading.inlet)
    }
}

/// All that a read of the ring needs until it is done.
struct Reading {
    inlet: Inlet,
    _fd: Rc<OwnedFd>,
}

fn is_nothing_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Socket for RingSocket {
    fn adopt(stream: TcpStream) -> io::Result<Self> {
        // It never waits itself, as splices would otherwise.
        let fd = Rc::new(OwnedFd::from(stream.into_std()?));
        Ok(RingSocket {
            empty: Cell::new(false),
            in_a_row: Cell::new(0),
            readable: Ready::new(fd.clone(), PollFlags::IN),
            writable: Ready::new(fd.clone(), PollFlags::OUT),
            said_writable: Cell::new(false),
            fd,
        })
    }

    async fn read(&self, mut inlet: Inlet) -> (io::Result<usize>, Inlet) {
        loop {
            let [first, second] = inlet.room().map(|place| place.len());
            let (mut got, mut asked) = (Err(io::ErrorKind::WouldBlock.into()), first + second);
            if self.looks().await {
                got = receive(&self.fd, &mut inlet.room());
            }
            if got.as_ref().is_err_and(is_nothing_now) {
                asked = first;
                (got, inlet) = self.wait_and_read(inlet).await;
            }
            match got {
                Ok(bytes) => {
                    self.empty.set(bytes < asked);
                    inlet.filled(bytes);
                }
                // A kernel whose ring does not wait for sockets that do not wait themselves.
                Err(ref error) if is_nothing_now(error) => {
                    self.readable.wait().await;
                    continue;
                }
                Err(_) => {}
            }
            return (got, inlet);
        }
    }

    fn try_read(&self, inlet: &mut Inlet) -> io::Result<usize> {
        let bytes = receive(&self.fd, &mut inlet.room())?;
        self.empty.set(false);
        inlet.filled(bytes);
        Ok(bytes)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(self.wrote(match slices {
            [one] => rustix::net::send(&self.fd, one, flags)?,
            several => {
                rustix::net::sendmsg(&self.fd, several, &mut SendAncillaryBuffer::default(), flags)?
            }
        }))
    }

    fn unacknowledged(&self) -> Option<u64> {
        unacknowledged(&SockRef::from(&*self.fd))
    }

    fn limit_unsent(&self, bytes: u32) {
        limit_unsent(&SockRef::from(&*self.fd), bytes);
    }

    fn fill(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        pipe.fill(&self.fd, most)
    }

    fn drain(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        Ok(self.wrote(pipe.drain(&self.fd, most)?))
    }

    async fn readable(&self) {
        self.readable.wait().await;
    }

    async fn writable(&self) {
        // A system that is short of memory may say so of a socket for which it then has none.
        if self.said_writable.replace(true) {
            tokio::time::sleep(FUTILE_WAIT).await;
        }
        self.writable.wait().await;
    }

    fn shut_down(&self) {
        // It may be over already.
        rustix::net::shutdown(&self.fd, Shutdown::Both).ok();
    }

    async fn pause() {
        super::pause().await;
    }
}

/// Reads what is there.
fn receive(fd: &OwnedFd, pieces: &mut [IoSliceMut<'_>; 2]) -> io::Result<usize> {
    Ok(match pieces {
        [one, two] if two.is_empty() => rustix::net::recv(fd, &mut **one, RecvFlags::DONTWAIT)?.0,
        both => {
            let mut control = RecvAncillaryBuffer::default();
            rustix::net::recvmsg(fd, both, &mut control, RecvFlags::DONTWAIT)?.bytes
        }
    })
}
