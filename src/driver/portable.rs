//! The portable driver's sockets, on tokio. Used where io_uring is not available.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::Shutdown;

use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};

use super::pipes::Pipe;
use super::socket::Socket;
use crate::wire::{Inlet, limit_unsent, read_some, unacknowledged};

/// A socket of tokio's.
pub(super) struct TokioSocket {
    /// With who reads at the moment, or here.
    read: Cell<Option<OwnedReadHalf>>,
    write: OwnedWriteHalf,
}

impl TokioSocket {
    fn stream(&self) -> &TcpStream {
        self.write.as_ref()
    }
}

impl Socket for TokioSocket {
    fn adopt(stream: TcpStream) -> io::Result<Self> {
        let (read, write) = stream.into_split();
        Ok(TokioSocket { read: Cell::new(Some(read)), write })
    }

    async fn read(&self, mut inlet: Inlet) -> (io::Result<usize>, Inlet) {
        let Some(mut read) = self.read.take() else {
            return (Err(io::ErrorKind::ResourceBusy.into()), inlet);
        };
        let got = read_some(&mut read, &mut inlet).await;
        self.read.set(Some(read));
        (got, inlet)
    }

    fn try_read(&self, inlet: &mut Inlet) -> io::Result<usize> {
        let bytes = self.stream().try_read_vectored(&mut inlet.room())?;
        inlet.filled(bytes);
        Ok(bytes)
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.write.try_write_vectored(slices)
    }

    fn unacknowledged(&self) -> Option<u64> {
        unacknowledged(&SockRef::from(self.stream()))
    }

    fn limit_unsent(&self, bytes: u32) {
        limit_unsent(&SockRef::from(self.stream()), bytes);
    }

    fn fill(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        self.stream().try_io(Interest::READABLE, || pipe.fill(self.stream(), most))
    }

    fn drain(&self, pipe: &Pipe, most: usize) -> io::Result<usize> {
        self.stream().try_io(Interest::WRITABLE, || pipe.drain(self.stream(), most))
    }

    async fn readable(&self) {
        self.stream().readable().await.ok();
    }

    async fn writable(&self) {
        self.stream().writable().await.ok();
    }

    fn shut_down(&self) {
        // It may be over already.
        SockRef::from(self.stream()).shutdown(Shutdown::Both).ok();
    }

    async fn pause() {
        tokio::task::yield_now().await;
    }
}
