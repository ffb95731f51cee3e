//! The baseline of a fan-out: one process reads from a socket and writes to the sockets of all
//! receivers, which write to files. Everybody hashes all bytes with SHA-256, and the sender hears
//! by way of the relay that every receiver found the hash that it sent behind them.
//!
//! As little as that takes: one thread in each process, buffers of 1 MiB, no pieces, no checks of
//! parts, nothing kept in the middle. A receiver that is slow holds all up.

use std::fs::File;
use std::io::{self, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, bail};
use sha2::{Digest as _, Sha256};

use super::wire::{Head, Inbox, send};
use super::{End, Hello, Lanes, Tuner, dial, read_hello};
use crate::control::{Answer, Fanned, answer, end_with_the_director, fans};

/// Bytes of a hash, which follows what it is of.
const HASH_BYTES: usize = 32;

/// What a receiver says in `wanted` of a head without a body.
const RIGHT: u64 = 1;
const WRONG: u64 = 0;

/// Passes on what comes, to so many receivers.
pub(in crate::actor) fn relay(receivers: u32) -> anyhow::Result<()> {
    use std::io::Read as _;
    end_with_the_director();
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("the relay cannot listen")?;
    let tuner = Tuner::new()?;
    answer(&Answer::Ready { ports: vec![listener.local_addr()?.port()] })?;
    let (mut sender, mut outs) = (None, Vec::new());
    while sender.is_none() || outs.len() < receivers as usize {
        let (stream, _) = listener.accept()?;
        let mut stream = tuner.tuned(stream)?;
        let mut first: Hello = [0; 5];
        stream.read_exact(&mut first)?;
        match read_hello(first).context("a stranger came to the relay")? {
            (End::Client, _) => sender = Some(stream),
            (End::Worker, _) => outs.push(Receiver::new(stream)?),
        }
    }
    let sender = sender.context("the relay has no sender")?;
    pass_on(sender, &mut outs)
}

/// A receiver as the relay has it.
struct Receiver {
    out: TcpStream,
    inbox: Inbox<TcpStream>,
}

impl Receiver {
    fn new(stream: TcpStream) -> anyhow::Result<Receiver> {
        Ok(Receiver { out: stream.try_clone()?, inbox: Inbox::new(stream) })
    }
}

fn pass_on(sender: TcpStream, receivers: &mut [Receiver]) -> anyhow::Result<()> {
    let mut back = sender.try_clone()?;
    let mut inbox = Inbox::new(sender);
    while let Some(head) = inbox.head()? {
        receivers.iter_mut().try_for_each(|receiver| send(&mut receiver.out, head, &[]))?;
        let mut to_all = |piece: &[u8]| {
            receivers.iter_mut().try_for_each(|receiver| receiver.out.write_all(piece))
        };
        let (made, said) = hashed(&mut inbox, head.body, &mut to_all)?;
        to_all(&said)?;
        if made != said {
            bail!("what came to the relay is not what was sent");
        }
        let mut right = 0;
        for receiver in receivers.iter_mut() {
            let head = receiver.inbox.head()?.context("a receiver ended")?;
            right += u64::from(head.wanted == RIGHT);
        }
        send(&mut back, Head { body: 0, wanted: right }, &[])?;
    }
    Ok(())
}

type Hash = [u8; HASH_BYTES];

/// Takes a body, and the hash behind it: what was made of the body and what was said.
fn hashed(
    inbox: &mut Inbox<impl io::Read>,
    len: u64,
    mut sink: impl FnMut(&[u8]) -> io::Result<()>,
) -> io::Result<(Hash, Hash)> {
    let mut hasher = Sha256::new();
    inbox.body(len, |piece| {
        hasher.update(piece);
        sink(piece)
    })?;
    let mut said = Vec::with_capacity(HASH_BYTES);
    inbox.body(HASH_BYTES as u64, |piece| said.write_all(piece))?;
    Ok((hasher.finalize().into(), said.try_into().unwrap_or_default()))
}

/// Writes what comes to files in this directory, one after the other. Somebody else removes them:
/// that takes time.
pub(in crate::actor) fn receiver(port: u16, number: u32, files: &Path) -> anyhow::Result<()> {
    end_with_the_director();
    let mut streams = dial(port, End::Worker, Lanes { first: number, count: 1 })?;
    let stream = streams.pop().context("no connection to the relay")?;
    answer(&Answer::Ready { ports: Vec::new() })?;
    let mut out = stream.try_clone()?;
    let mut inbox = Inbox::new(stream);
    let mut round = 0u64;
    while let Some(head) = inbox.head()? {
        let path = files.join(format!("{number}-{round}"));
        round += 1;
        let mut file =
            File::create_new(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let (made, said) = hashed(&mut inbox, head.body, |piece| file.write_all(piece))?;
        drop(file);
        let wanted = if made == said { RIGHT } else { WRONG };
        send(&mut out, Head { body: 0, wanted }, &[])?;
    }
    Ok(())
}

/// Sends what the director says.
pub(in crate::actor) fn sender(port: u16) -> anyhow::Result<()> {
    let fans = fans();
    let mut streams = dial(port, End::Client, Lanes { first: 0, count: 1 })?;
    let mut out = streams.pop().context("no connection to the relay")?;
    let mut inbox = Inbox::new(out.try_clone()?);
    answer(&Answer::Ready { ports: Vec::new() })?;
    for fan in fans {
        let fanned = send_file(&fan.path, &mut out, &mut inbox)
            .with_context(|| format!("cannot send {}", fan.path.display()))?;
        answer(&Answer::Fanned(fanned))?;
    }
    Ok(())
}

fn send_file(
    path: &PathBuf,
    out: &mut TcpStream,
    inbox: &mut Inbox<TcpStream>,
) -> anyhow::Result<Fanned> {
    let began = Instant::now();
    let file = File::open(path)?;
    let size = file.metadata()?.len();
    send(out, Head { body: size, wanted: 0 }, &[])?;
    let mut hasher = Sha256::new();
    Inbox::new(file).body(size, |piece| {
        hasher.update(piece);
        out.write_all(piece)
    })?;
    out.write_all(&hasher.finalize())?;
    let head = inbox.head()?.context("the relay closed the connection")?;
    let elapsed = began.elapsed();
    Ok(Fanned { elapsed, right: u32::try_from(head.wanted)?, ..Fanned::default() })
}
