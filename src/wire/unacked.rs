//! Reads how many bytes written to a socket are unacknowledged. Free space in the send buffer does
//! not show a slow peer's progress, because the kernel releases it in large steps.
//!
//! The kernel is queried by an ioctl for which the available crates have no safe call.
#![cfg_attr(target_os = "linux", allow(unsafe_code))]

use socket2::Socket;

/// Bytes that were written and not acknowledged. `None` where the system does not say.
#[cfg(target_os = "linux")]
pub(crate) fn unacknowledged(socket: &Socket) -> Option<u64> {
    use rustix::ioctl::{Getter, Opcode, ioctl};
    /// SIOCOUTQ, which has the number of TIOCOUTQ; see tcp(7).
    const OUTQ: Opcode = 0x5411;
    // SAFETY: for a socket, this request writes one `int` and changes nothing; the descriptor is
    // borrowed for the call.
    let bytes: std::ffi::c_int =
        unsafe { ioctl(socket, Getter::<OUTQ, std::ffi::c_int>::new()) }.ok()?;
    u64::try_from(bytes).ok()
}

/// Bytes that were written and not acknowledged. `None` where the system does not say.
#[cfg(not(target_os = "linux"))]
pub(crate) fn unacknowledged(_socket: &Socket) -> Option<u64> {
    None
}

/// Limits what the system takes of what it cannot send yet: what is written behind that waits with
/// whoever writes it. Where the system knows no such limit, nothing changes.
#[cfg(target_os = "linux")]
pub(crate) fn limit_unsent(socket: &Socket, bytes: u32) {
    socket.set_tcp_notsent_lowat(bytes).ok();
}

/// Limits what the system takes of what it cannot send yet: not here.
#[cfg(not(target_os = "linux"))]
pub(crate) fn limit_unsent(_socket: &Socket, _bytes: u32) {}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn what_the_other_side_reads_is_not_counted_any_more() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut writes = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut reads, _) = listener.accept().unwrap();
        let unacknowledged = |socket: &TcpStream| unacknowledged(&socket2::SockRef::from(socket));
        assert_eq!(unacknowledged(&writes), Some(0));
        writes.set_nonblocking(true).unwrap();
        let mut written = 0;
        while let Ok(bytes) = writes.write(&[7; 1 << 16]) {
            written += bytes as u64;
        }
        let full = unacknowledged(&writes).unwrap();
        assert!(full > 0 && full <= written, "{full} of {written}");
        let mut rest = vec![0; usize::try_from(written).unwrap()];
        reads.read_exact(&mut rest).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while unacknowledged(&writes) != Some(0) {
            assert!(std::time::Instant::now() < until, "it is all read");
            std::thread::yield_now();
        }
    }
}
