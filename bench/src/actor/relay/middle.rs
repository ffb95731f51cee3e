//! The relay itself: what comes from one end of a lane is written to the other, by one thread for
//! each direction.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use anyhow::Context as _;

use super::wire::Buffer;
use super::{End, Hello, Tuner, read_hello};
use crate::args::RelayBy;
use crate::control::{Answer, answer, end_with_the_director};

/// Carries bytes for ever, between as many lanes as come.
pub(in crate::actor) fn middle(by: RelayBy) -> anyhow::Result<()> {
    end_with_the_director();
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the relay cannot listen")?;
    let tuner = Tuner::new()?;
    answer(&Answer::Ready { ports: vec![listener.local_addr()?.port()] })?;
    let mut waiting: HashMap<u32, (End, TcpStream)> = HashMap::new();
    loop {
        let (stream, _) = listener.accept()?;
        let mut stream = tuner.tuned(stream)?;
        let mut first: Hello = [0; 5];
        stream.read_exact(&mut first)?;
        let (end, lane) = read_hello(first).context("a stranger came to the relay")?;
        match waiting.remove(&lane) {
            Some((other, peer)) if other != end => {
                let (from, to) = (stream.try_clone()?, peer.try_clone()?);
                std::thread::spawn(move || carry(by, stream, peer));
                std::thread::spawn(move || carry(by, to, from));
            }
            Some(_) | None => {
                waiting.insert(lane, (end, stream));
            }
        }
    }
}

/// Until the source ends; the destination then hears that nothing more comes.
fn carry(by: RelayBy, from: TcpStream, to: TcpStream) {
    let carried = match by {
        RelayBy::Copy => copy(&from, &to),
        RelayBy::Splice => splice(&from, &to),
    };
    if let Err(error) = carried {
        tracing::debug!("a lane of the relay ended: {error}");
    }
    to.shutdown(Shutdown::Write).ok();
}

fn copy(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = Buffer::new();
    loop {
        let read = from.read(buffer.bytes())?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(buffer.bytes().get(..read).unwrap_or_default())?;
    }
}

/// The same without a look at the bytes: the kernel hands its pages on.
#[cfg(target_os = "linux")]
fn splice(from: &TcpStream, to: &TcpStream) -> io::Result<()> {
    use rustix::pipe::{PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice};
    let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
    fcntl_setpipe_size(&write, super::BUFFER_BYTES)?;
    loop {
        let mut here = splice(from, None, &write, None, super::BUFFER_BYTES, SpliceFlags::MOVE)?;
        if here == 0 {
            return Ok(());
        }
        while here > 0 {
            here -= splice(&read, None, to, None, here, SpliceFlags::MOVE)?;
        }
    }
}

#[cfg(not(target_os = "linux"))]
fn splice(_: &TcpStream, _: &TcpStream) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
