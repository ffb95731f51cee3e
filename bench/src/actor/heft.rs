//! heft's own client and worker, embedded as any program embeds them. What the bench knows of their APIs stands here.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use heft::client::{Client, Options};
use heft::model::{InputFile, JobRequest, JobStatus};
use heft::worker::{Job, JobContext, Worker, WorkerConfig};

use super::Direction;
use super::bytes::incompressible;
use crate::args::{Compress, Digest};
use crate::control::{Answer, Tally, answer, commands, end_with_the_director};
use crate::latency::Latencies;
use crate::load::{Load, Tickets};

/// How long the first connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Submits what the director says to workers of this group.
pub(super) fn client(
    port: u16,
    group: &str,
    direction: Direction,
    _digest: Digest,
    _compress: Compress,
) -> anyhow::Result<()> {
    let mut commands = commands();
    runtime()?.block_on(async move {
        let options = Options {
            connect_wait: Some(CONNECT_MAX),
            desired: u32::MAX,
            ..Options::new(format!("bench-{group}"))
        };
        let client = Client::connect(&format!("127.0.0.1:{port}"), &options).await?;
        answer(&Answer::Ready { ports: Vec::new() })?;
        let mut bytes = Bytes::new();
        while let Some(load) = commands.loads.recv().await {
            if bytes.len() as u64 != load.size {
                bytes = incompressible(load.size);
            }
            let jobs = Arc::new(Jobs {
                client: client.clone(),
                group: group.to_owned(),
                direction,
                bytes: bytes.clone(),
            });
            let tickets = Tickets::new(&load, commands.stop.clone());
            let tally = run(&jobs, &load, &tickets).await?;
            answer(&Answer::Done(tally))?;
        }
        Ok(())
    })
}

/// As many lanes as jobs in flight; each submits a job and waits for its result.
async fn run(jobs: &Arc<Jobs>, load: &Load, tickets: &Arc<Tickets>) -> anyhow::Result<Tally> {
    let start = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    for _ in 0..load.in_flight {
        let (jobs, tickets) = (jobs.clone(), tickets.clone());
        lanes.spawn(async move {
            let mut latencies = Latencies::new()?;
            let mut last = start;
            while let Some(due) = tickets.next(Instant::now()).await {
                jobs.one().await?;
                last = Instant::now();
                latencies.record(last.saturating_duration_since(due));
            }
            anyhow::Ok((latencies, last))
        });
    }
    let mut all = Latencies::new()?;
    let mut last = start;
    while let Some(lane) = lanes.join_next().await {
        let (latencies, end) = lane.context("a lane of the client panicked")??;
        all.merge(&latencies)?;
        last = last.max(end);
    }
    Tally::new(&all, load.size, last.saturating_duration_since(start))
}

/// What makes a job.
struct Jobs {
    client: Client,
    group: String,
    direction: Direction,
    bytes: Bytes,
}

impl Jobs {
    /// One job from before it is submitted until its result is there.
    async fn one(&self) -> anyhow::Result<()> {
        let files = match self.direction {
            Direction::Inputs => vec![InputFile::inline("input.bin", self.bytes.to_vec())],
            Direction::Results => Vec::new(),
        };
        let request = JobRequest { exec_name: self.group.clone(), files, ..JobRequest::default() };
        let mut job = self.client.submit(request).await?;
        let result = job.wait().await?;
        if result.status != JobStatus::Ok {
            bail!("a job ended {}: {}", result.status.as_str(), result.stderr);
        }
        Ok(())
    }
}

/// Takes jobs of this group and answers each when it has all of it. With a directory, inputs are written to files there.
pub(super) fn worker(port: u16, group: &str, parallel: u32, files: Option<PathBuf>) -> anyhow::Result<()> {
    end_with_the_director();
    let config = WorkerConfig {
        patterns: vec![format!("job.assign.{group}")],
        parallel_max: parallel,
        ..WorkerConfig::new(format!("127.0.0.1:{port}"))
    };
    if files.is_some() {
        bail!("writing inputs to files is not wired up yet");
    }
    let worker =
        Worker::new(config, |job: Job, _context: JobContext| async move { job.result(JobStatus::Ok) })?;
    answer(&Answer::Ready { ports: Vec::new() })?;
    runtime()?.block_on(worker.run(std::future::pending()));
    Ok(())
}
