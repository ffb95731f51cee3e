//! What is set on a TCP connection before it carries frames.

use socket2::{SockRef, TcpKeepalive};
use std::io;
use std::net::IpAddr;
use std::time::Duration;
use tokio::net::TcpStream;

/// How connections are tuned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Congestion control by name (`--tcp-congestion`). Without it, connections to a loopback peer take cubic, else reno:
    /// with bbr loopback runs at less than half of its speed.
    pub congestion: Option<String>,
}

/// Half of the time after which a silent, dead peer is noticed; stock peers never send a heartbeat (C06). While something is on its
/// way to it, it is noticed by what it acknowledges. TCP_USER_TIMEOUT is of no use for that: on some ways it ends connections of slow
/// peers that take something all the time.
const KEEPALIVE: Duration = Duration::from_secs(15);
const KEEPALIVE_PROBES: u32 = 3;

/// Whether the peer is on this machine.
pub fn is_loopback(stream: &TcpStream) -> bool {
    stream.peer_addr().is_ok_and(|addr| match addr.ip() {
        IpAddr::V4(ip) => ip.is_loopback(),
        IpAddr::V6(ip) => ip.is_loopback() || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback()),
    })
}

/// Sets what every heft connection has: no delay for small frames, keep-alive, and a congestion control that suits.
///
/// Only a congestion control that was asked for by name can fail; the rest makes things better where the system has it.
pub fn tune(stream: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    let socket = SockRef::from(stream);
    socket.set_tcp_nodelay(true).ok();
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / KEEPALIVE_PROBES);
    socket.set_tcp_keepalive(&keepalive.with_retries(KEEPALIVE_PROBES)).ok();
    #[cfg(target_os = "linux")]
    {
        match &tuning.congestion {
            Some(name) => socket.set_tcp_congestion(name.as_bytes()).map_err(|error| {
                let text =
                    format!("cannot set TCP congestion control {name:?}: {error}; is the module loaded?");
                io::Error::new(error.kind(), text)
            })?,
            None if is_loopback(stream) => {
                socket.set_tcp_congestion(b"cubic").or_else(|_| socket.set_tcp_congestion(b"reno")).ok();
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
