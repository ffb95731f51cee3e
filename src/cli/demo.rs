//! `heft demo`: a leader, two workers and a client on this machine, real jobs, and a table of what
//! happened.
//!
//! Every part is a process of its own, started from this program on a free port, and ends with it.
//! One worker is killed in the middle of a job, so that people see what then happens to it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use chunking::DigestKind;
use chunking::digest::{BlobHasher, to_hex};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use super::exit::FAILED;
use super::print;
use super::table::{Side, Table};
use crate::answers::ask;
use crate::client::{Client, JobHandle, Options};
use crate::core::retry::mix;
use crate::model::{InputFile, JobRequest, JobResult, JobStatus};
use crate::units::{ByteSize, Span};

const EXAMPLES: &str = "Example:
  heft demo

It needs /bin/sh and sha256sum, takes a few seconds, and leaves nothing behind.";

/// How long any step may take before the demo gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Run a leader, two workers and a client on this machine, with real jobs, and show what happened
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct DemoArgs {
    /// Number of jobs with an input.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    jobs: u32,
}

/// Runs the command.
pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    super::block_on(async {
        tokio::select! {
            done = tokio::time::timeout(PATIENCE, demo(args)) => done.context("the demo took longer than a minute")?,
            () = super::stop_signal() => bail!("stopped"),
        }
    })
}

async fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let place = Place::new()?;
    let (mut leader, addr) = start_leader(&place).await?;
    say(&format!("leader    listening on {addr}, process {}", pid(&leader)))?;
    let mut workers = Vec::new();
    for name in ["worker-1", "worker-2"] {
        let worker = start_worker(&place, name, &addr)?;
        say(&format!("{name}  started, process {}", pid(&worker)))?;
        workers.push((name, worker));
    }
    let client = Client::connect(&addr, &Options { desired: 8, ..Options::new("demo") }).await?;
    await_workers(&client, workers.len()).await?;
    say(&format!("client    submitting {} jobs\n", args.jobs + 2))?;

    let mut table = Table::new(&[
        ("JOB", Side::Left),
        ("PROGRAM", Side::Left),
        ("INPUT", Side::Right),
        ("WORKER", Side::Left),
        ("STATUS", Side::Left),
        ("TIME", Side::Right),
        ("WHAT HAPPENED", Side::Left),
    ]);
    let mut as_expected = 0;
    let mut note = |row: Row| {
        as_expected += u32::from(row.as_expected);
        table.row(row.cells());
    };

    // Jobs with inputs of all sizes, side by side.
    let mut checks = Vec::new();
    for number in 0..args.jobs {
        let input = made_up(number);
        let started = Instant::now();
        let job = client
            .submit(request("checksum", vec![InputFile::inline("input.bin", input.clone())]))
            .await?;
        checks.push((job, input, started));
    }
    for (job, input, started) in checks {
        let (id, result) = finished(job).await?;
        let right = result.stdout.lines().nth(1) == Some(&sha256(&input));
        let what =
            if right { "its worker read what we sent" } else { "its worker read something else!" };
        let expected = right && result.status == JobStatus::Ok;
        note(Row { id, input: input.len(), result, started, what, as_expected: expected });
    }

    // A job that fails.
    let started = Instant::now();
    let (id, result) = finished(client.submit(request("broken", Vec::new())).await?).await?;
    let expected = result.status == JobStatus::Failed && result.exit_code == Some(3);
    note(Row {
        id,
        input: 0,
        result,
        started,
        what: "it fails on purpose, with exit code 3",
        as_expected: expected,
    });

    // A job whose worker is killed while it runs.
    let started = Instant::now();
    let job = client.submit(request("rescued", Vec::new())).await?;
    let victim = place.first_taker().await?;
    for (_, worker) in workers.iter_mut().filter(|(name, _)| *name == victim) {
        worker.start_kill()?;
    }
    let (id, result) = finished(job).await?;
    let moved = result.status == JobStatus::Ok && !result.stdout.contains(&victim);
    let what = format!("{victim} was killed while it ran there; run again elsewhere");
    note(Row { id, input: 0, result, started, what: &what, as_expected: moved });

    print(table.render().as_bytes())?;
    let all = args.jobs + 2;
    client.close().await;
    leader.start_kill()?;
    say(&format!("\n{as_expected} of {all} jobs ended as they should."))?;
    if as_expected == all {
        say(
            "Next: `heft leader 5000`, `heft worker 127.0.0.1 5000 --exe-dir DIR`, `heft submit PROGRAM`.",
        )?;
    }
    Ok(if as_expected == all { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
}

fn say(line: &str) -> anyhow::Result<()> {
    print(format!("{line}\n").as_bytes()).context("cannot write the demo's output")
}

/// One line of the table.
struct Row<'a> {
    id: Uuid,
    input: usize,
    result: JobResult,
    started: Instant,
    what: &'a str,
    as_expected: bool,
}

impl Row<'_> {
    fn cells(self) -> [String; 7] {
        let id: String = self.id.simple().to_string().chars().take(8).collect();
        let input =
            if self.input == 0 { "-".to_owned() } else { ByteSize(self.input as u64).to_string() };
        let worker = self.result.stdout.lines().next().unwrap_or("-").to_owned();
        let took = Span(Duration::from_millis(
            u64::try_from(self.started.elapsed().as_millis()).unwrap_or(0),
        ));
        let status = self.result.status.as_str().to_owned();
        [id, self.result.exec_name, input, worker, status, took.to_string(), self.what.to_owned()]
    }
}

fn request(exec: &str, files: Vec<InputFile>) -> JobRequest {
    JobRequest {
        job_id: Uuid::new_v4(),
        exec_name: exec.to_owned(),
        files,
        ..JobRequest::default()
    }
}

async fn finished(mut job: JobHandle) -> anyhow::Result<(Uuid, JobResult)> {
    let id = job.id();
    Ok((id, job.wait().await.with_context(|| format!("job {id}"))?))
}

/// From 1 KiB to 2 MiB, each with other bytes.
fn made_up(number: u32) -> Vec<u8> {
    const KIB: [u64; 8] = [1, 16, 64, 256, 512, 1024, 1536, 2048];
    let size = KIB.iter().cycle().nth(number as usize).unwrap_or(&1) * 1024;
    (0..size / 8).flat_map(|word| mix(word ^ (u64::from(number) << 32)).to_le_bytes()).collect()
}

fn sha256(bytes: &[u8]) -> String {
    let mut hasher = BlobHasher::new(DigestKind::Sha256);
    hasher.update(bytes, 0);
    to_hex(&hasher.finish().bytes)
}

fn pid(child: &Child) -> String {
    child.id().map_or_else(|| "?".to_owned(), |pid| pid.to_string())
}

/// This program, to start the other parts with.
fn heft() -> anyhow::Result<Command> {
    let mut command = Command::new(
        std::env::current_exe().context("cannot find this program to start it again")?,
    );
    // What goes wrong is said, the rest is the table's business.
    command.env("HEFT_LOG", "error").stdin(Stdio::null()).kill_on_drop(true);
    Ok(command)
}

async fn start_leader(place: &Place) -> anyhow::Result<(Child, String)> {
    // Jobs of a worker that is gone go elsewhere soon: nobody wants to watch a demo wait.
    let mut leader = heft()?
        .args(["leader", "0", "--worker-grace", "300ms"])
        .arg("--data")
        .arg(place.0.join("data"))
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the leader")?;
    let said = leader.stdout.take().context("the leader's output is not there")?;
    let line = BufReader::new(said)
        .lines()
        .next_line()
        .await?
        .context("the leader ended before it listened")?;
    let addr =
        line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).map(str::to_owned);
    Ok((leader, addr.with_context(|| format!("the leader said {line:?} and no address"))?))
}

fn start_worker(place: &Place, name: &str, addr: &str) -> anyhow::Result<Child> {
    let (host, port) = addr.split_once(':').context("the address has no port")?;
    let exe_dir = place.programs_of(name)?;
    let worker = heft()?
        .args(["worker", host, port, "--name", name, "--max-par", "4"])
        .arg("--exe-dir")
        .arg(exe_dir)
        .arg("--work-dir")
        .arg(place.0.join("jobs"))
        .arg("--cache-dir")
        .arg(place.0.join(format!("cache-{name}")))
        .stdout(Stdio::null())
        .spawn();
    worker.with_context(|| format!("cannot start {name}"))
}

async fn await_workers(client: &Client, count: usize) -> anyhow::Result<()> {
    loop {
        if client.ask(&ask::Status {}).await?.answer.workers.len() >= count {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// The demo's directory. It goes when the demo ends.
struct Place(PathBuf);

impl Place {
    fn new() -> anyhow::Result<Place> {
        let path = std::env::temp_dir().join(format!("heft-demo-{}", Uuid::new_v4().simple()));
        fs::create_dir_all(&path).with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Place(path))
    }

    /// Programs that say on which worker they ran.
    fn programs_of(&self, worker: &str) -> anyhow::Result<PathBuf> {
        let directory = self.0.join(worker);
        fs::create_dir_all(&directory)?;
        let taken = self.0.join("taken");
        let taken = taken.display();
        let rescued = format!(
            "if mkdir '{taken}' 2>/dev/null; then echo {worker} > '{taken}/by'; while [ -d '{taken}' ]; do sleep 0.1; done; exit; fi\necho {worker}\n"
        );
        write_program(
            &directory.join("checksum"),
            &format!("echo {worker}\nsha256sum < input.bin | cut -d' ' -f1\n"),
        )?;
        write_program(&directory.join("broken"), &format!("echo {worker}\nexit 3\n"))?;
        write_program(&directory.join("rescued"), &rescued)?;
        Ok(directory)
    }

    /// The worker that took the job `rescued` first.
    async fn first_taker(&self) -> anyhow::Result<String> {
        let by = self.0.join("taken/by");
        loop {
            match fs::read_to_string(&by) {
                Ok(name) if name.ends_with('\n') => return Ok(name.trim().to_owned()),
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn write_program(path: &Path, body: &str) -> anyhow::Result<()> {
    fs::write(path, format!("#!/bin/sh\n{body}"))
        .with_context(|| format!("cannot write {}", path.display()))?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o755))?;
    Ok(())
}
