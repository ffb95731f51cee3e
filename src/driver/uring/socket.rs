//! One connection's socket on the ring.

use std::cell::Cell;
use std::io::{self, IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;
use std::rc::Rc;

use io_uring::{opcode, types};
use rustix::event::PollFlags;
use rustix::net::{RecvAncillaryBuffer, RecvFlags, SendAncillaryBuffer, SendFlags, Shutdown};
use tokio::net::TcpStream;

use super::operation;
use super::ready::Ready;
use crate::driver::lane::Pipe;
use crate::driver::socket::Socket;
use crate::peer::Inlet;

/// Reads in a row that found something before others have their turn.
const READS_IN_A_ROW: u32 = 32;

/// A socket whose waiting is done by the ring.
pub(in crate::driver) struct RingSocket {
    fd: Rc<OwnedFd>,
    /// Nothing was left when it was last read from.
    empty: Cell<bool>,
    in_a_row: Cell<u32>,
    /// The ring does not wait for it to have something: `O_NONBLOCK` is set, as splices need it.
    lane: Cell<bool>,
    readable: Rc<Ready>,
    writable: Rc<Ready>,
}

impl RingSocket {
    /// A splice waits unless its socket never does.
    fn join_lane(&self) -> io::Result<()> {
        if !self.lane.replace(true) {
            rustix::io::ioctl_fionbio(&self.fd, true)?;
        }
        Ok(())
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

    /// Has the ring read what comes next.
    async fn wait_and_read(&self, inlet: Inlet) -> (io::Result<usize>, Inlet) {
        let mut reading = Box::new(Reading {
            inlet,
            pieces: [libc::iovec { iov_base: ptr::null_mut(), iov_len: 0 }; 2],
            _fd: self.fd.clone(),
        });
        let fd = types::Fd(self.fd.as_raw_fd());
        let [first, second] = reading.inlet.room().map(|mut piece| place(&mut piece));
        reading.pieces = [first, second];
        // Nothing moves what the entry points to: the box holds the list of pieces, and the inlet its memory on the heap.
        // Both stay with the operation until it is done.
        let entry = if second.iov_len == 0 {
            let len = u32::try_from(first.iov_len).unwrap_or(u32::MAX);
            opcode::Recv::new(fd, first.iov_base.cast(), len).build()
        } else {
            opcode::Readv::new(fd, reading.pieces.as_ptr(), 2).build()
        };
        let (got, reading) = operation(reading, entry).await;
        (got, reading.inlet)
    }
}

/// All that a read of the ring writes to.
struct Reading {
    inlet: Inlet,
    pieces: [libc::iovec; 2],
    _fd: Rc<OwnedFd>,
}

fn place(piece: &mut IoSliceMut<'_>) -> libc::iovec {
    libc::iovec { iov_base: piece.as_mut_ptr().cast(), iov_len: piece.len() }
}

fn is_nothing_now(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

impl Socket for RingSocket {
    fn adopt(stream: TcpStream) -> io::Result<Self> {
        let stream = stream.into_std()?;
        // The ring waits only for sockets that wait themselves.
        stream.set_nonblocking(false)?;
        let fd = Rc::new(OwnedFd::from(stream));
        Ok(RingSocket {
            empty: Cell::new(false),
            in_a_row: Cell::new(0),
            lane: Cell::new(false),
            readable: Ready::new(fd.clone(), PollFlags::IN),
            writable: Ready::new(fd.clone(), PollFlags::OUT),
            fd,
        })
    }

    async fn read(&self, mut inlet: Inlet) -> (io::Result<usize>, Inlet) {
        loop {
            let asked: usize = inlet.room().iter().map(|piece| piece.len()).sum();
            let mut got = Err(io::ErrorKind::WouldBlock.into());
            if self.looks().await {
                got = receive(&self.fd, &mut inlet.room());
            }
            if got.as_ref().is_err_and(is_nothing_now) {
                if self.lane.get() {
                    self.readable.wait().await;
                    continue;
                }
                (got, inlet) = self.wait_and_read(inlet).await;
            }
            match got {
                Ok(bytes) => {
                    self.empty.set(bytes < asked);
                    inlet.filled(bytes);
                }
                // It has joined the lane meanwhile.
                Err(ref error) if is_nothing_now(error) => continue,
                Err(_) => {}
            }
            return (got, inlet);
        }
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        Ok(match slices {
            [one] => rustix::net::send(&self.fd, one, flags)?,
            several => rustix::net::sendmsg(&self.fd, several, &mut SendAncillaryBuffer::default(), flags)?,
        })
    }

    fn fill(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        self.join_lane()?;
        pipe.fill(&self.fd, most)
    }

    fn drain(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        self.join_lane()?;
        pipe.drain(&self.fd, most)
    }

    async fn readable(&self) {
        self.readable.wait().await;
    }

    async fn writable(&self) {
        self.writable.wait().await;
    }

    fn shut_down(&self) {
        // It may be over already.
        rustix::net::shutdown(&self.fd, Shutdown::Both).ok();
    }

    async fn pause() {
        operation((), opcode::Nop::new().build()).await.0.ok();
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
