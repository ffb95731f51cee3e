//! The relay itself: what comes from one end of a lane is written to the other, by one thread for each direction.

use std::collections::HashMap;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};

use anyhow::Context as _;

use super::wire::Buffer;
use super::{End, Hello, Tuner, read_hello};
use crate::control::{Answer, answer, end_with_the_director};

/// Copies for ever, between as many lanes as come.
pub(in crate::actor) fn middle() -> anyhow::Result<()> {
    end_with_the_director();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the relay cannot listen")?;
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
                std::thread::spawn(move || copy(stream, peer));
                std::thread::spawn(move || copy(to, from));
            }
            Some(_) | None => {
                waiting.insert(lane, (end, stream));
            }
        }
    }
}

/// Until the source ends; the destination then hears that nothing more comes.
fn copy(from: TcpStream, to: TcpStream) {
    if let Err(error) = copy_all(&from, &to) {
        tracing::debug!("a lane of the relay ended: {error}");
    }
    to.shutdown(Shutdown::Write).ok();
}

fn copy_all(mut from: &TcpStream, mut to: &TcpStream) -> io::Result<()> {
    let mut buffer = Buffer::new();
    loop {
        let read = from.read(buffer.bytes())?;
        if read == 0 {
            return Ok(());
        }
        to.write_all(buffer.bytes().get(..read).unwrap_or_default())?;
    }
}
