//! The interface of a driver: one connection's socket, and a way to wait for it. The rest of the
//! leader's I/O is the same code for every driver.

use std::io::{self, IoSlice};

use tokio::net::TcpStream;

use super::pipes::Pipe;
use crate::wire::Inlet;

/// The socket of one connection. What waits for it may be dropped and loses nothing, but for
/// [`Socket::read`].
pub(super) trait Socket: Sized + 'static {
    /// Takes a connection over.
    fn adopt(stream: TcpStream) -> io::Result<Self>;

    /// Reads what is there, or waits for it; says how many bytes came, none at the end. It has the
    /// inlet meanwhile, as the system may write to its buffers at any time. So it is never dropped
    /// while it waits: [`Socket::shut_down`] ends it.
    async fn read(&self, inlet: Inlet) -> (io::Result<usize>, Inlet);

    /// Reads what is there, if anything is. The inlet stays with the caller, who waits by
    /// [`Socket::readable`].
    fn try_read(&self, inlet: &mut Inlet) -> io::Result<usize>;

    /// Writes as much as the socket takes at once.
    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Bytes that were written and that the other side has not acknowledged; `None` where the
    /// system does not say.
    fn unacknowledged(&self) -> Option<u64>;

    /// Limits what the system takes of what it cannot send yet, where it can.
    fn limit_unsent(&self, bytes: u32);

    /// Moves what is there into a pipe. 0 at the end of the stream.
    fn fill(&self, pipe: &Pipe, most: usize) -> io::Result<usize>;

    /// Moves as much out of a pipe as the socket takes at once.
    fn drain(&self, pipe: &Pipe, most: usize) -> io::Result<usize>;

    /// Waits until there is something to read. What is wrong with the connection is told by what
    /// reads.
    async fn readable(&self);

    /// Waits until something can be written. What is wrong with the connection is told by what
    /// writes.
    async fn writable(&self);

    /// Ends the connection, and so whatever waits for it. What was written still goes out.
    fn shut_down(&self);

    /// Lets others have their turn, and whatever came be seen.
    async fn pause();
}
