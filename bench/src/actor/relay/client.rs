//! The near end of the relay: sends jobs, and takes the time until each answer is there.
//!
//! A lane with one job in flight is one thread, which writes and then reads: nothing is faster.
//! With more in flight, one thread writes and another reads, so that answers are taken while a job
//! is still being written.

use std::net::TcpStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;

use super::wire::{Head, Inbox, send};
use super::{End, Lanes, dial};
use crate::actor::Direction;
use crate::actor::bytes::incompressible;
use crate::control::{Answer, Tally, answer, commands};
use crate::latency::Latencies;
use crate::load::{Load, Tickets};

/// Runs what the director says.
pub(in crate::actor) fn client(
    port: u16,
    lanes: Lanes,
    direction: Direction,
) -> anyhow::Result<()> {
    let mut commands = commands();
    let mut lanes: Vec<Lane> =
        dial(port, End::Client, lanes)?.into_iter().map(Lane::new).collect::<Result<_, _>>()?;
    answer(&Answer::Ready { ports: Vec::new() })?;
    let mut held = Bytes::new();
    while let Some(load) = commands.loads.blocking_recv() {
        let head = match direction {
            Direction::Inputs => Head { body: load.size, wanted: 0 },
            Direction::Results => Head { body: 0, wanted: load.size },
        };
        held = if held.len() as u64 == head.body { held } else { incompressible(head.body) };
        let tickets = Tickets::new(&load, commands.stop.clone());
        let tally = run(&mut lanes, &load, head, &held, &tickets)?;
        answer(&Answer::Done(tally))?;
    }
    Ok(())
}

struct Lane {
    out: TcpStream,
    inbox: Inbox<TcpStream>,
}

/// What a lane found.
struct Found {
    latencies: Latencies,
    last: Instant,
}

impl Found {
    fn new(start: Instant) -> anyhow::Result<Found> {
        Ok(Found { latencies: Latencies::new()?, last: start })
    }

    fn done(&mut self, due: Instant) {
        self.last = Instant::now();
        self.latencies.record(self.last.saturating_duration_since(due));
    }
}

fn run(
    lanes: &mut [Lane],
    load: &Load,
    head: Head,
    held: &[u8],
    tickets: &Tickets,
) -> anyhow::Result<Tally> {
    let start = Instant::now();
    let used = lanes.len().min(load.in_flight as usize);
    let found: Vec<anyhow::Result<Found>> = std::thread::scope(|scope| {
        let running: Vec<_> = lanes
            .iter_mut()
            .zip(shares(load.in_flight, used))
            .map(|(lane, depth)| scope.spawn(move || lane.run(start, depth, head, held, tickets)))
            .collect();
        let panicked = |_| Err(anyhow::anyhow!("a lane of the client panicked"));
        running.into_iter().map(|lane| lane.join().unwrap_or_else(panicked)).collect()
    });
    let mut all = Latencies::new()?;
    let mut elapsed = Duration::ZERO;
    for lane in found {
        let lane = lane?;
        all.merge(&lane.latencies)?;
        elapsed = elapsed.max(lane.last.saturating_duration_since(start));
    }
    Tally::new(&all, load.size, elapsed)
}

/// Divides the jobs in flight over lanes.
fn shares(in_flight: u32, lanes: usize) -> impl Iterator<Item = usize> {
    let (in_flight, lanes) = (in_flight as usize, lanes.max(1));
    (0..lanes).map(move |lane| in_flight / lanes + usize::from(lane < in_flight % lanes))
}

impl Lane {
    fn new(stream: TcpStream) -> anyhow::Result<Lane> {
        Ok(Lane { out: stream.try_clone()?, inbox: Inbox::new(stream) })
    }

    fn run(
        &mut self,
        start: Instant,
        depth: usize,
        head: Head,
        held: &[u8],
        tickets: &Tickets,
    ) -> anyhow::Result<Found> {
        if depth > 1 {
            return self.run_pipelined(start, depth, head, held, tickets);
        }
        let mut found = Found::new(start)?;
        while let Some(due) = tickets.next_blocking(Instant::now()) {
            send(&mut self.out, head, held).context("cannot send to the relay")?;
            take_answer(&mut self.inbox)?;
            found.done(due);
        }
        Ok(found)
    }

    fn run_pipelined(
        &mut self,
        start: Instant,
        depth: usize,
        head: Head,
        held: &[u8],
        tickets: &Tickets,
    ) -> anyhow::Result<Found> {
        let Lane { out, inbox } = self;
        let (sent, answers_due) = sync_channel(depth);
        let (answered, places) = sync_channel(depth);
        std::thread::scope(|scope| {
            let answers = scope.spawn(move || {
                let mut found = Found::new(start)?;
                for due in answers_due {
                    take_answer(inbox)?;
                    found.done(due);
                    answered.send(found.last).ok();
                }
                Ok(found)
            });
            let written = write_jobs(out, depth, head, held, tickets, &sent, &places);
            drop(sent);
            let found = answers.join().unwrap_or_else(|_| bail!("a lane of the client panicked"));
            written.and(found)
        })
    }
}

fn write_jobs(
    out: &mut TcpStream,
    depth: usize,
    head: Head,
    held: &[u8],
    tickets: &Tickets,
    sent: &std::sync::mpsc::SyncSender<Instant>,
    places: &Receiver<Instant>,
) -> anyhow::Result<()> {
    let start = Instant::now();
    let mut unused = depth;
    loop {
        let free_since = match unused {
            0 => places.recv().context("the relay's answers ended")?,
            _ => {
                unused -= 1;
                start
            }
        };
        let Some(due) = tickets.next_blocking(free_since) else { return Ok(()) };
        sent.send(due).context("the relay's answers ended")?;
        send(out, head, held).context("cannot send to the relay")?;
    }
}

fn take_answer(inbox: &mut Inbox<TcpStream>) -> anyhow::Result<()> {
    let head = inbox
        .head()
        .context("cannot read from the relay")?
        .context("the relay closed the connection")?;
    inbox.body(head.body, |_| Ok(())).context("cannot read from the relay")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_in_flight_are_divided_over_lanes() {
        assert_eq!(shares(4, 1).collect::<Vec<_>>(), [4]);
        assert_eq!(shares(4, 4).collect::<Vec<_>>(), [1; 4]);
        assert_eq!(shares(7, 3).collect::<Vec<_>>(), [3, 2, 2]);
    }
}
