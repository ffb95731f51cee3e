//! `heft-tools log replay`: the state that the log makes, at its end or after a record, for people
//! or as JSON lines.

use std::collections::BTreeMap;
use std::io::{self, BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use heft::core::dataset::Dataset;
use heft::core::job::{Job, Phase};
use heft::core::members::Member;
use heft::store::disk::Disk;
use heft::store::format::{FileNo, StoreError};
use heft::store::replay::{Files, Held, Loaded, Replay, UpTo};
use heft::units::ByteSize;
use serde_json::{Value, json};

use super::event;
use crate::exit::{Failure, warn, with_codes};
use crate::time::iso;

const EXAMPLES: &str = "Examples:
  heft-tools log replay /var/lib/heft
  heft-tools log replay /var/lib/heft --at 1500 --jobs
  heft-tools log replay /var/lib/heft --json --jobs | jq 'select(.type == \"job\" and .phase == \"dead\")'

With --json the first line has `type` state, and with --jobs a line of `type` job follows for each job.";

#[derive(clap::Args)]
#[command(after_help = with_codes(EXAMPLES))]
pub(crate) struct Args {
    /// Data directory of a leader, which may be running.
    data: PathBuf,

    /// Record to stop after (default: the last).
    #[arg(long, value_name = "INDEX", value_parser = clap::value_parser!(u64).range(1..))]
    at: Option<u64>,

    /// Print one line per job.
    #[arg(long)]
    jobs: bool,

    /// Print JSON lines.
    #[arg(long)]
    json: bool,
}

/// How many jobs stand where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    /// Known, and not taken: their inputs are coming. They are queued or leased, too.
    announced: u64,
    queued: u64,
    leased: u64,
    gathering: u64,
    done: u64,
    dead: u64,
}

impl Counts {
    fn add(&mut self, job: &Job) {
        self.announced += u64::from(job.is_announced());
        *match job.phase {
            Phase::Queued { .. } => &mut self.queued,
            Phase::Leased { .. } => &mut self.leased,
            Phase::Gathering { .. } => &mut self.gathering,
            Phase::Done { .. } => &mut self.done,
            Phase::Dead { .. } => &mut self.dead,
        } += 1;
    }

    fn json(self) -> Value {
        let Counts { announced, queued, leased, gathering, done, dead } = self;
        json!({
            "announced": announced, "queued": queued, "leased": leased, "gathering": gathering, "done": done, "dead": dead,
        })
    }

    fn row(self) -> String {
        let Counts { announced, queued, leased, gathering, done, dead } = self;
        format!("{announced:>10}{queued:>10}{leased:>10}{gathering:>10}{done:>10}{dead:>10}")
    }
}

/// The state, counted.
struct Summary<'a> {
    loaded: &'a Loaded,
    all: Counts,
    queues: BTreeMap<(String, String), Counts>,
    clients: BTreeMap<String, Counts>,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let (disk, owner) = super::look(&args.data)?;
    let up_to = args.at.map_or(UpTo::End, UpTo::Record);
    let loaded =
        super::load_steady(&disk, owner, up_to).map_err(|error| explain(&disk, args.at, error))?;
    for bad in &loaded.bad_snapshots {
        warn(format_args!(
            "cannot use a snapshot; an older one and the log were read instead: {bad}"
        ));
    }
    if let Some(at) = args.at.filter(|at| *at > loaded.replay.index.0) {
        return Err(Failure::Usage(format!(
            "--at {at} is behind the end of the log in {}: its last record is {}",
            disk.root(),
            loaded.replay.index
        ))
        .into());
    }
    if let Some(tail) = loaded.tail.filter(|tail| tail.torn > 0) {
        warn(format_args!(
            "{} bytes behind record {} are not whole records: they are being written, or were when \
             the leader ended",
            tail.torn, loaded.replay.index
        ));
    }
    let tail = match args.at {
        Some(_) => Ok(None),
        None => super::tail_steady(&disk, owner),
    };
    if let Ok(Some(found)) = &tail {
        warn(format_args!(
            "the tail is not in the state: it has {}, and {}",
            super::vote_text(found.vote),
            super::uncommitted_text(found)
        ));
    }
    let summary = Summary::new(&loaded);
    let mut out = BufWriter::new(io::stdout().lock());
    if args.json {
        writeln!(out, "{}", summary.json())?;
    } else {
        summary.print(&mut out)?;
    }
    if args.jobs {
        let mut jobs: Vec<&Job> = loaded.replay.state.jobs().collect();
        jobs.sort_unstable_by_key(|job| job.seq);
        if !args.json {
            writeln!(
                out,
                "\n{:<38}{:<11}{:<28}{:<20}{:>10}{:>5}{:>9}",
                "job", "phase", "queue", "client", "bytes", "run", "attempt"
            )?;
        }
        for job in jobs {
            if args.json {
                writeln!(out, "{}", job_json(job))?
            } else {
                writeln!(out, "{}", job_row(job))?
            }
        }
    }
    out.flush()?;
    // The state is what it is without the tail, so it is printed first.
    tail.map_err(Failure::from)?;
    Ok(ExitCode::SUCCESS)
}

/// A state that is asked for may be older than all that is kept.
fn explain(disk: &dyn Disk, at: Option<u64>, error: StoreError) -> Failure {
    if let (Some(at), StoreError::MissingSegment { .. }) = (at, &error) {
        let oldest = Files::list(disk).ok().and_then(|files| files.snapshots.first().copied());
        if let Some(oldest) = oldest.filter(|oldest| *oldest > at) {
            return Failure::Usage(format!(
                "--at {at} is before what {} still has: records up to {oldest} are in the snapshot {}, so give {oldest} or more",
                disk.root(),
                FileNo::snapshot(oldest).path()
            ));
        }
    }
    Failure::from(error)
}

impl<'a> Summary<'a> {
    fn new(loaded: &'a Loaded) -> Self {
        let mut summary = Summary {
            loaded,
            all: Counts::default(),
            queues: BTreeMap::new(),
            clients: BTreeMap::new(),
        };
        let state = &loaded.replay.state;
        for (client, _) in state.caps() {
            summary.clients.entry(client.to_string()).or_default();
        }
        for job in state.jobs() {
            summary.all.add(job);
            summary
                .queues
                .entry((job.submission.key.to_string(), job.submission.exec.to_string()))
                .or_default()
                .add(job);
            summary.clients.entry(job.submission.client.to_string()).or_default().add(job);
        }
        summary
    }

    fn json(&self) -> Value {
        let replay = &self.loaded.replay;
        let state = &replay.state;
        let queues: Vec<Value> = self
            .queues
            .iter()
            .map(|((key, exec), counts)| json!({"routingKey": key, "execName": exec, "jobs": counts.json()}))
            .collect();
        let clients: Vec<Value> = self
            .clients
            .iter()
            .map(|(client, counts)| {
                let id = client.as_str().into();
                json!({"clientId": client, "cap": state.cap(&id), "running": state.running(&id), "jobs": counts.json()})
            })
            .collect();
        let dlq: Vec<Value> = state.dead().map(|job| json!(job.id().0)).collect();
        let (inputs, results) = (Sum::of(replay.inputs.values()), Sum::of(replay.results.values()));
        let mut line = json!({
            "type": "state", "index": replay.index.0, "snapshot": self.loaded.snapshot, "at": iso(replay.latest),
            "jobs": self.all.json(), "queues": queues, "clients": clients, "dlq": dlq,
            "inputs": inputs.json(), "results": results.json(), "datasets": state.datasets().map(dataset_json).collect::<Vec<_>>(),
        });
        if let (Value::Object(line), Some(cluster)) = (&mut line, cluster_json(replay)) {
            line.insert("cluster".to_owned(), cluster);
        }
        line
    }

    fn print(&self, out: &mut impl Write) -> io::Result<()> {
        let replay = &self.loaded.replay;
        let state = &replay.state;
        let from = match self.loaded.snapshot {
            Some(snapshot) => format!("snapshot at {snapshot} and {} records", self.loaded.records),
            None => format!("{} records", self.loaded.records),
        };
        writeln!(out, "after record {} ({from}), {}", replay.index, iso(replay.latest))?;
        if let Some(members) = &state.cluster().members {
            let (term, level) = (replay.terms.last(), state.cluster().level);
            writeln!(out, "cluster {}, term {term}, level {level}", members.cluster())?;
            for member in members.incoming() {
                writeln!(out, "{}", member_row(member, ""))?;
            }
            for member in members.outgoing().unwrap_or_default() {
                writeln!(out, "{}", member_row(member, ", before the change that is on its way"))?;
            }
        }
        let columns = format!(
            "{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "announced", "queued", "leased", "gathering", "done", "dead"
        );
        writeln!(out, "\n{:<44}{columns}", "jobs")?;
        writeln!(out, "{:<44}{}", "all", self.all.row())?;
        if !self.queues.is_empty() {
            writeln!(out, "\n{:<44}{columns}", "queue (program)")?;
        }
        for ((key, exec), counts) in &self.queues {
            let name = if exec.is_empty() { key.clone() } else { format!("{key} ({exec})") };
            writeln!(out, "{:<44}{}", printable(&name), counts.row())?;
        }
        if !self.clients.is_empty() {
            writeln!(out, "\n{:<34}{:>10}{columns}", "client", "cap")?;
        }
        for (client, counts) in &self.clients {
            let cap =
                state.cap(&client.as_str().into()).map_or("-".to_owned(), |cap| cap.to_string());
            writeln!(out, "{:<34}{cap:>10}{}", printable(client), counts.row())?;
        }
        for (number, job) in state.dead().enumerate() {
            if number == 0 {
                writeln!(out, "\ndead-letter queue, the longest dead first")?;
            }
            let why = match job.phase {
                Phase::Dead { why, at } => format!("{}, {}", why.text(), iso(at)),
                Phase::Queued { .. }
                | Phase::Leased { .. }
                | Phase::Gathering { .. }
                | Phase::Done { .. } => String::new(),
            };
            writeln!(out, "{}  {}  {why}", job.id(), printable(job.submission.key.as_str()))?;
        }
        let (inputs, results) = (Sum::of(replay.inputs.values()), Sum::of(replay.results.values()));
        writeln!(out, "\nrequests that are kept: {inputs}\nresults that are kept:  {results}")?;
        for (number, dataset) in state.datasets().enumerate() {
            if number == 0 {
                writeln!(
                    out,
                    "\n{:<44}{:>12}{:>10}{:>8}  target",
                    "dataset", "bytes", "files", "packs"
                )?;
            }
            let (bytes, files, packs, target) =
                (dataset.bytes, dataset.files, dataset.packs.len(), printable(&dataset.target));
            writeln!(
                out,
                "{:<44}{bytes:>12}{files:>10}{packs:>8}  {target}",
                dataset.cache.as_str()
            )?;
        }
        Ok(())
    }
}

/// Payloads that are kept.
struct Sum {
    count: usize,
    bytes: u64,
    blobs: usize,
}

impl Sum {
    fn of<'a>(held: impl Iterator<Item = &'a Held>) -> Self {
        let start = Sum { count: 0, bytes: 0, blobs: 0 };
        held.fold(start, |sum, held| Sum {
            count: sum.count + 1,
            bytes: sum.bytes + u64::from(held.place.len),
            blobs: sum.blobs + held.blobs.len(),
        })
    }

    fn json(&self) -> Value {
        json!({"count": self.count, "bytes": self.bytes, "blobs": self.blobs})
    }
}

impl std::fmt::Display for Sum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}, {} in the log, {} blobs", self.count, ByteSize(self.bytes), self.blobs)
    }
}

fn member_row(member: &Member, when: &str) -> String {
    let role = event::role(member.role);
    format!("node {:<6}{role:<9}{}{when}", member.node, printable(member.address()))
}

/// What the state knows of its cluster, if there is one.
fn cluster_json(replay: &Replay) -> Option<Value> {
    let cluster = replay.state.cluster();
    let members = cluster.members.as_ref()?;
    let office =
        cluster.office.map(|office| json!({"leader": office.leader.0, "at": iso(office.at)}));
    let mut line =
        json!({"term": replay.terms.last().0, "level": cluster.level.0, "office": office});
    let members = serde_json::to_value(event::Event::members(members)).ok()?;
    if let (Value::Object(line), Value::Object(members)) = (&mut line, members) {
        line.extend(members);
    }
    Some(line)
}

fn dataset_json(dataset: &Arc<Dataset>) -> Value {
    json!({
        "cacheId": dataset.cache.as_str(), "generation": dataset.version, "bytes": dataset.bytes, "files": dataset.files,
        "target": &*dataset.target, "packs": dataset.packs, "at": iso(dataset.at),
    })
}

fn job_row(job: &Job) -> String {
    let phase = if job.is_announced() { "announced" } else { super::phase(&job.phase) };
    format!(
        "{:<38}{phase:<11}{:<28}{:<20}{:>10}{:>5}{:>9}",
        job.id().to_string(),
        printable(job.submission.key.as_str()),
        printable(&job.submission.client.to_string()),
        job.submission.size,
        job.run.0,
        job.attempt.0
    )
}

fn job_json(job: &Job) -> Value {
    let mut line = json!({
        "type": "job", "jobId": job.id().0, "clientId": &*job.submission.client.0, "execName": &*job.submission.exec, "routingKey": job.submission.key.as_str(),
        "phase": super::phase(&job.phase), "priority": job.submission.priority, "seq": job.seq, "size": job.submission.size, "run": job.run.0,
        "attempt": job.attempt.0, "spent": job.spent, "announced": job.is_announced(), "delivered": job.delivered,
    });
    let more = match &job.phase {
        Phase::Queued { not_before } => json!({"notBefore": iso(*not_before)}),
        Phase::Leased { worker, .. } => json!({"workerId": worker.0}),
        Phase::Gathering { left } => json!({"left": left}),
        Phase::Done { at, .. } => json!({"endedAt": iso(*at)}),
        Phase::Dead { at, why } => json!({"endedAt": iso(*at), "why": super::why(*why)}),
    };
    if let (Value::Object(line), Value::Object(more)) = (&mut line, more) {
        line.extend(more);
    }
    line
}

/// A peer's text without what could move a terminal's cursor.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
