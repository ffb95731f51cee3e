//! heft's own client and worker, embedded as any program embeds them. What the bench knows of their
//! APIs stands here.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use bytes::Bytes;
use chunking::message::Purpose;
use chunking::{Codec, DigestKind};
use heft::client::{Client, Downloads, Input, JobEvent, JobHandle, JobSpec, Options};
use heft::model::{InputFile, JobRequest, JobResult, JobStatus};
use heft::transfer::{ChunkSink, Compression, Source};
use heft::worker::{Content, Handler, Job, JobContext, Worker, WorkerConfig};
use tokio::sync::Mutex;

use super::bytes::{HELD_MAX, incompressible};
use super::{Direction, HeftClient, HeftWorker};
use crate::args::{Compress, Digest, Sink};
use crate::control::{Answer, Tally, answer, commands, end_with_the_director};
use crate::latency::Latencies;
use crate::load::{Load, Tickets};

/// How long the first connection may take.
const CONNECT_MAX: Duration = Duration::from_secs(10);

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread().enable_all().build()?)
}

/// Submits what the director says.
pub(super) fn client(role: HeftClient) -> anyhow::Result<()> {
    let mut commands = commands();
    runtime()?.block_on(async move {
        let clients = connect(&role).await?;
        answer(&Answer::Ready { ports: Vec::new() })?;
        let mut source: Option<(u64, Source)> = None;
        while let Some(load) = commands.loads.recv().await {
            let input = match (role.direction, source.take()) {
                (Direction::Results, _) => None,
                (Direction::Inputs, Some((size, held))) if size == load.size => Some(held),
                (Direction::Inputs, _) => Some(source_of(load.size, &role.scratch)?),
            };
            source = input.clone().map(|input| (load.size, input));
            let (clients, spec) = (clients.clone(), spec(&role, load.size, input));
            let jobs = Arc::new(Jobs { clients, spec, notes_taken: role.notes_taken });
            let tickets = Tickets::new(&load, commands.stop.clone());
            let tally = run(&jobs, &load, &tickets).await?;
            answer(&Answer::Done(tally))?;
        }
        Ok(())
    })
}

/// One client, or as many as there are submitters.
async fn connect(role: &HeftClient) -> anyhow::Result<Vec<Client>> {
    let mut clients = Vec::new();
    for number in 0..role.submitters {
        let name = match role.submitters {
            1 => format!("bench-{}", role.group),
            _ => format!("bench-{}-{number}", role.group),
        };
        let options = Options {
            connect_wait: Some(CONNECT_MAX),
            desired: u32::MAX,
            downloads: Downloads::discard(),
            ..Options::new(name)
        };
        clients.push(Client::connect(&format!("127.0.0.1:{}", role.port), &options).await?);
    }
    Ok(clients)
}

/// As many lanes as jobs in flight; each submits a job and waits for its result.
async fn run(jobs: &Arc<Jobs>, load: &Load, tickets: &Arc<Tickets>) -> anyhow::Result<Tally> {
    let start = Instant::now();
    let mut lanes = tokio::task::JoinSet::new();
    let lanes_of = jobs.clients.iter().cycle().zip(0..load.in_flight);
    for (client, _) in lanes_of {
        let (client, jobs, tickets) = (client.clone(), jobs.clone(), tickets.clone());
        lanes.spawn(async move {
            let (mut latencies, mut taken) = (Latencies::new()?, Latencies::new()?);
            let mut last = start;
            while let Some(due) = tickets.next(Instant::now()).await {
                if let Some(at) = jobs.one(&client).await? {
                    taken.record(at.saturating_duration_since(due));
                }
                last = Instant::now();
                latencies.record(last.saturating_duration_since(due));
            }
            anyhow::Ok((latencies, taken, last))
        });
    }
    let (mut all, mut all_taken) = (Latencies::new()?, Latencies::new()?);
    let mut last = start;
    while let Some(lane) = lanes.join_next().await {
        let (latencies, taken, end) = lane.context("a lane of the client panicked")??;
        all.merge(&latencies)?;
        all_taken.merge(&taken)?;
        last = last.max(end);
    }
    let taken = if jobs.notes_taken { Some(all_taken.to_word()?) } else { None };
    Ok(Tally { taken, ..Tally::new(&all, load.size, last.saturating_duration_since(start))? })
}

/// What makes a job.
struct Jobs {
    clients: Vec<Client>,
    spec: JobSpec,
    notes_taken: bool,
}

impl Jobs {
    /// One job from before it is submitted until its result is there, with all parts of it. Says
    /// when the leader had taken it, if that is noted.
    async fn one(&self, client: &Client) -> anyhow::Result<Option<Instant>> {
        let mut job = client.submit(self.spec.clone()).await?;
        let taken = match self.notes_taken {
            true => taken(&mut job).await,
            false => None,
        };
        let result = job.wait().await?;
        if result.status != JobStatus::Ok {
            bail!("a job ended {}: {}", result.status.as_str(), result.stderr);
        }
        Ok(taken)
    }
}

/// When the leader says that it has a job. None if it ends without that.
async fn taken(job: &mut JobHandle) -> Option<Instant> {
    loop {
        match job.event().await? {
            JobEvent::Submitted { .. } => return Some(Instant::now()),
            JobEvent::Sent { .. }
            | JobEvent::Progress { .. }
            | JobEvent::Uploading { .. }
            | JobEvent::Waiting { .. }
            | JobEvent::Downloading { .. }
            | JobEvent::Reconnecting { .. }
            | JobEvent::Moved { .. }
            | JobEvent::Ignored { .. }
            | JobEvent::ResultMayBeLost { .. } => {}
        }
    }
}

/// The job that is submitted again and again. Without an input it asks for a result of the size.
fn spec(role: &HeftClient, size: u64, input: Option<Source>) -> JobSpec {
    let wanted = if input.is_some() { 0 } else { size };
    let request = JobRequest {
        exec_name: role.group.clone(),
        args: vec![wanted.to_string()],
        ..JobRequest::default()
    };
    let inputs = input.map(|source| Input { name: "input.bin".to_owned(), source });
    JobSpec {
        request,
        inputs: inputs.into_iter().collect(),
        digest: match role.digest {
            Digest::ChunkList => DigestKind::ChunkList,
            Digest::Sha256 => DigestKind::Sha256,
            Digest::Blake3 => DigestKind::Blake3,
        },
        compression: match role.compress {
            Compress::Auto => Compression::Auto,
            Compress::None => Compression::Fixed(Codec::None),
            Compress::Zstd => Compression::Fixed(Codec::Zstd),
            Compress::Brotli => Compression::Fixed(Codec::Brotli),
            Compress::Gzip => Compression::Fixed(Codec::Gzip),
        },
        detached: false,
    }
}

/// An input: from memory, or from a file with a hole where it is larger than what memory should
/// hold.
fn source_of(size: u64, scratch: &Path) -> anyhow::Result<Source> {
    if size <= HELD_MAX {
        return Ok(Source::Memory(incompressible(size)));
    }
    let path = scratch.join("input.bin");
    hole(&path, size).with_context(|| format!("cannot make {}", path.display()))?;
    Ok(Source::file(path)?)
}

/// A file of this size that takes no room on the disk.
fn hole(path: &Path, size: u64) -> io::Result<()> {
    File::create(path)?.set_len(size)
}

/// Takes checked bytes and keeps none.
struct Dropped;

impl ChunkSink for Dropped {
    fn write(&mut self, _offset: u64, _raw: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn read(&mut self, _offset: u64, _into: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn blocks(&self) -> bool {
        false
    }
}

/// Takes jobs of its group and answers each when it has all of it.
pub(super) fn worker(role: HeftWorker) -> anyhow::Result<()> {
    end_with_the_director();
    let work_dir = role.scratch.join(format!("work-{}", role.group));
    std::fs::create_dir_all(&work_dir)
        .with_context(|| format!("cannot make {}", work_dir.display()))?;
    let config = WorkerConfig {
        patterns: vec![format!("job.assign.{}", role.group)],
        parallel_max: role.parallel,
        work_dir,
        ..WorkerConfig::new(format!("127.0.0.1:{}", role.port))
    };
    let worker = Worker::new(config, Ending { sink: role.sink, held: Mutex::default() })?;
    answer(&Answer::Ready { ports: Vec::new() })?;
    runtime()?.block_on(worker.run(std::future::pending()));
    Ok(())
}

/// Ends every job at once, with a result of the size that it asks for.
struct Ending {
    sink: Sink,
    /// The bytes of results, as many as the largest so far.
    held: Mutex<Bytes>,
}

impl Handler for Ending {
    async fn run(&self, job: Job, context: JobContext) -> JobResult {
        match self.finish(&job, &context).await {
            Ok(()) => job.result(JobStatus::Ok),
            Err(error) => job.failed(format!("{error:#}")),
        }
    }

    /// Files go into the job's directory, as they do by default.
    fn sink(&self, _job: &Job, _file: &InputFile) -> Option<Box<dyn ChunkSink>> {
        match self.sink {
            Sink::Drop => Some(Box::new(Dropped)),
            Sink::File => None,
        }
    }
}

impl Ending {
    async fn finish(&self, job: &Job, context: &JobContext) -> anyhow::Result<()> {
        let request =
            job.request.as_ref().map_err(|error| anyhow::anyhow!("no request: {error}"))?;
        if self.sink == Sink::File {
            // What came inside the request has to be written here; what came beside it is there.
            for file in &request.files {
                if let Some(content) = file.content.as_ref() {
                    tokio::fs::write(context.directory().await?.join(&file.name), content).await?;
                }
            }
        }
        let wanted: u64 = request.args.first().map_or(Ok(0), |size| size.parse())?;
        let content = match wanted {
            0 => return Ok(()),
            size if size <= HELD_MAX => {
                let mut held = self.held.lock().await;
                if (held.len() as u64) < size {
                    *held = incompressible(size);
                }
                Content::Memory(held.slice(..usize::try_from(size)?))
            }
            size => {
                let path = context.outputs().await?.join("result.bin");
                hole(&path, size)?;
                Content::File(path)
            }
        };
        Ok(context.attach(Purpose::Archive, content)?)
    }
}
