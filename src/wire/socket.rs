//! A TCP connection that carries frames: its socket options, reads, and stall detection.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;

use super::inlet::Inlet;

/// How connections are tuned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Congestion control by name (`--tcp-congestion`). Without it, connections to a loopback peer
    /// take cubic, else reno: with bbr loopback runs at less than half of its speed.
    pub congestion: Option<String>,
}

/// Half of the time after which a silent, dead peer is noticed; classic peers never send a
/// heartbeat (C06). While something is on its way to it, it is noticed by what it acknowledges.
/// TCP_USER_TIMEOUT is of no use for that: on some ways it ends connections of slow peers that take
/// something all the time.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;

/// Whether the peer is on this machine.
pub fn is_loopback(stream: &TcpStream) -> bool {
    stream.peer_addr().is_ok_and(|addr| match addr.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => {
            ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback())
        }
    })
}

/// Whether this system has a congestion control, and lets this user have it.
pub fn check_congestion(name: &str) -> io::Result<()> {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_congestion(name.as_bytes())?;
    #[cfg(not(target_os = "linux"))]
    let _unused = (socket, name);
    Ok(())
}

/// Sets what every heft connection has: no delay for small frames, keep-alive, and a congestion
/// control that suits.
///
/// Only a congestion control that was asked for by name can fail; the rest makes things better
/// where the system has it.
pub fn tune(stream: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true).ok();
    let keepalive =
        TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES)).ok();
    #[cfg(target_os = "linux")]
    {
        match &tuning.congestion {
            Some(name) => socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
                let text = format!(
                    "cannot set TCP congestion control {name:?}: {error}; is the module loaded?"
                );
                io::Error::new(error.kind(), text)
            })?,
            None if is_loopback(stream) => {
                socket
                    .set_tcp_congestion(b"cubic")
                    .or_else(|_| socket.set_tcp_congestion(b"reno"))
                    .ok();
            }
            None => {}
        }
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _unused = tuning;
    }
    Ok(())
}

/// A peer that has acknowledged no byte for this long, while data waits for it, is given up. A slow
/// peer that reads is not, and neither is a leader that sends meanwhile: it does not read a client
/// that leaves its answers unread.
pub(crate) const WRITE_STALL_TIMEOUT: Duration = Duration::from_secs(30);

/// How often it is looked in that time whether something was taken.
pub(crate) const LOOKS_PER_STALL: u32 = 6;

/// Reads what is there, or waits for it; says how many bytes came, none at the end. May be dropped
/// while it waits.
pub(crate) async fn read_some(read: &mut OwnedReadHalf, inlet: &mut Inlet) -> io::Result<usize> {
    let bytes = match inlet.room() {
        // A read that does not fill its buffer tells the runtime that there is no more, and saves
        // asking.
        [mut piece, behind] if behind.is_empty() => read.read(&mut piece).await?,
        [_, _] => {
            // A peer that always has more to say must not keep others from being heard.
            tokio::task::coop::consume_budget().await;
            loop {
                read.readable().await?;
                match read.try_read_vectored(&mut inlet.room()) {
                    Ok(bytes) => break bytes,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error),
                }
            }
        }
    };
    inlet.filled(bytes);
    Ok(bytes)
}
