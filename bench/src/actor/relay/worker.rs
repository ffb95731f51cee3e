//! The far end of the relay: takes jobs and answers each when it has all of it.

use std::fs::File;
use std::io::Write as _;
use std::net::TcpStream;
use std::path::PathBuf;

use anyhow::Context as _;
use bytes::Bytes;

use super::wire::{Head, Inbox, send};
use super::{End, Lanes, dial};
use crate::actor::bytes::incompressible;
use crate::control::{Answer, answer, end_with_the_director};

/// Works on all its lanes until the relay ends. With a directory, jobs are written to files there.
pub(in crate::actor) fn worker(
    port: u16,
    lanes: Lanes,
    files: Option<PathBuf>,
) -> anyhow::Result<()> {
    end_with_the_director();
    let streams = dial(port, End::Worker, lanes)?;
    answer(&Answer::Ready { ports: Vec::new() })?;
    let lanes = streams.into_iter().zip(lanes.first..).map(|(stream, lane)| {
        let file = files.as_ref().map(|files| files.join(format!("lane-{lane}")));
        std::thread::spawn(move || work(stream, file))
    });
    for lane in lanes.collect::<Vec<_>>() {
        lane.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a lane of the worker panicked")))?;
    }
    Ok(())
}

fn work(stream: TcpStream, path: Option<PathBuf>) -> anyhow::Result<()> {
    let mut out = stream.try_clone()?;
    let mut inbox = Inbox::new(stream);
    let mut held = Bytes::new();
    while let Some(head) = inbox.head()? {
        match &path {
            None => inbox.body(head.body, |_| Ok(()))?,
            Some(path) => {
                let mut file = File::create(path)
                    .with_context(|| format!("cannot make {}", path.display()))?;
                inbox.body(head.body, |piece| file.write_all(piece))?;
                drop(file);
                std::fs::remove_file(path)?;
            }
        }
        if held.len() as u64 != head.wanted.min(crate::actor::bytes::HELD_MAX) {
            held = incompressible(head.wanted);
        }
        send(&mut out, Head { body: head.wanted, wanted: 0 }, &held)?;
    }
    Ok(())
}
