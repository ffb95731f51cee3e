//! The processes and files of the demo. All of them are gone when it ends.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use anyhow::Context;
use rustix::fs::{FlockOperation, flock};
use rustix::process::geteuid;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use uuid::Uuid;

use crate::answers::ask;
use crate::cli::interrupts::{Stopped, wanted};
use crate::cli::say;
use crate::client::{Client, Options};
use crate::core::retry::mix;
use crate::worker::exec::LAUNCH;

/// The workers of the demo.
const WORKERS: [&str; 2] = ["worker-1", "worker-2"];

/// Bytes that are made up once; files are repetitions of them with other beginnings.
const BLOCK_BYTES: usize = 1 << 20;

/// What the directory of a demo is called; its id follows.
const PREFIX: &str = "heft-demo-";

/// How old the directory of a demo is before another demo removes it.
const ABANDONED_AFTER: Duration = Duration::from_secs(60);

/// How long it is tried to remove the directory.
const REMOVE_WAIT: Duration = Duration::from_secs(2);

/// Free bytes of the file system of a directory.
pub(super) fn free_bytes(dir: &Path) -> io::Result<u64> {
    let found = rustix::fs::statvfs(dir)?;
    Ok(found.f_bavail.saturating_mul(found.f_frsize))
}

pub(super) struct Scene {
    leader: Child,
    addr: String,
    workers: Vec<(&'static str, Child)>,
    client: Client,
    /// Behind those that write to it: it is removed when they are gone.
    place: Place,
}

impl Scene {
    /// Starts a leader, the workers and a client.
    pub(super) async fn set(dir: &Path) -> anyhow::Result<Scene> {
        let place = Place::new(dir)?;
        place.write_programs()?;
        let (leader, addr) = start_leader(&place, "0").await?;
        let workers = WORKERS
            .iter()
            .map(|name| Ok((*name, start_worker(&place, name, &addr)?)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let options = Options { desired: 64, ..Options::new("demo") };
        let client = Client::connect(&addr, &options).await?;
        let scene = Scene { leader, addr, workers, client, place };
        scene.await_workers(WORKERS.len()).await?;
        Ok(scene)
    }

    pub(super) fn addr(&self) -> &str {
        &self.addr
    }

    pub(super) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn root(&self) -> &Path {
        &self.place.path
    }

    /// The heavy input.
    pub(super) fn input(&self) -> PathBuf {
        self.place.path.join("input.bin")
    }

    /// The directory of the dataset's files.
    pub(super) fn dataset(&self) -> PathBuf {
        self.place.path.join("dataset")
    }

    /// The directory of the programs that jobs run.
    pub(super) fn programs(&self) -> PathBuf {
        self.place.programs()
    }

    /// Which worker has its job directories at this path.
    pub(super) fn worker_at(&self, path: &str) -> Option<&'static str> {
        let has = |name: &&str| Path::new(path).starts_with(self.place.jobs(name));
        WORKERS.into_iter().find(has)
    }

    /// The directory in which programs leave notes for the demo.
    pub(super) fn notes(&self) -> PathBuf {
        self.place.path.join("notes")
    }

    /// Waits until so many workers are connected.
    async fn await_workers(&self, count: usize) -> anyhow::Result<()> {
        loop {
            let workers = self.client.ask(&ask::Status {}).await?.answer.workers;
            if workers.iter().filter(|worker| worker.connected).count() >= count {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Kills a worker with SIGKILL.
    pub(super) fn kill_worker(&mut self, name: &str) -> anyhow::Result<()> {
        for (_, worker) in self.workers.iter_mut().filter(|(known, _)| *known == name) {
            worker.start_kill()?;
        }
        Ok(())
    }

    /// Starts a worker again that was killed, and waits for it.
    pub(super) async fn restart_worker(&mut self, name: &str) -> anyhow::Result<()> {
        for (known, worker) in &mut self.workers {
            if *known == name {
                worker.wait().await?;
                *worker = start_worker(&self.place, known, &self.addr)?;
            }
        }
        self.await_workers(WORKERS.len()).await
    }

    /// Kills the leader with SIGKILL, and starts it again on the same port and directory. Says how
    /// long it took until it listened.
    pub(super) async fn restart_leader(&mut self) -> anyhow::Result<Duration> {
        self.leader.start_kill()?;
        self.leader.wait().await?;
        let began = Instant::now();
        let port = self.addr.rsplit_once(':').map_or("0", |(_, port)| port).to_owned();
        let (leader, addr) = start_leader(&self.place, &port).await?;
        (self.leader, self.addr) = (leader, addr);
        Ok(began.elapsed())
    }

    /// Ends everything.
    pub(super) async fn strike(mut self) {
        self.client.close().await;
        for child in self.workers.iter_mut().map(|(_, worker)| worker).chain([&mut self.leader]) {
            child.start_kill().ok();
            child.wait().await.ok();
        }
    }
}

/// This program, to start the other parts with. They end with this process, however that ends.
pub(super) fn heft() -> anyhow::Result<Command> {
    let program = std::env::current_exe().context("cannot find this program to start it again")?;
    let mut command = Command::new(&program);
    command.arg(LAUNCH).arg(std::process::id().to_string()).arg("--").arg(program);
    // Errors are shown. The rest is for the demo to say.
    command.env("HEFT_LOG", "error").stdin(Stdio::null()).kill_on_drop(true);
    // The demo is the same whatever its user prefers, and its jobs are not the user's last ones.
    for (name, _) in std::env::vars_os() {
        let is_ours = name.to_str().is_some_and(|name| name.starts_with("HEFT_"));
        if is_ours && name != "HEFT_LOG" {
            command.env_remove(name);
        }
    }
    command.env("XDG_STATE_HOME", "/dev/null").env_remove("CLIENT_DESIRED_PAR");
    Ok(command)
}

async fn start_leader(place: &Place, port: &str) -> anyhow::Result<(Child, String)> {
    // A worker that is gone is given up soon: nobody wants to watch a demo wait.
    let mut leader = heft()?
        .args(["leader", port, "--worker-grace", "300ms"])
        .arg("--data")
        .arg(place.path.join("data"))
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot start the leader")?;
    let said = leader.stdout.take().context("the leader's output is not there")?;
    let line = BufReader::new(said).lines().next_line().await?;
    let line = line.context("the leader ended before it listened")?;
    let addr = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:"));
    let addr = addr.with_context(|| format!("the leader said {line:?} and no address"))?.to_owned();
    Ok((leader, addr))
}

fn start_worker(place: &Place, name: &str, addr: &str) -> anyhow::Result<Child> {
    let (host, port) = addr.split_once(':').context("the address has no port")?;
    // The demo itself keeps the processors busy: its slots are not withheld for that.
    let worker = heft()?
        .args(["worker", host, port, "--name", name, "--max-par", "4", "--cpu-cap", "1"])
        .arg("--exe-dir")
        .arg(place.programs())
        .arg("--work-dir")
        .arg(place.jobs(name))
        .arg("--cache-dir")
        .arg(place.path.join(format!("cache-{name}")))
        .stdout(Stdio::null())
        .spawn();
    worker.with_context(|| format!("cannot start {name}"))
}

/// The demo's directory, which is removed at the end.
struct Place {
    path: PathBuf,
    /// Open and locked as long as this demo runs.
    _lock: OwnedFd,
}

impl Place {
    /// The path is absolute: programs are named by it and run in directories of their own. It is
    /// without links, as the one that they see.
    fn new(dir: &Path) -> anyhow::Result<Place> {
        let dir = dir
            .canonicalize()
            .with_context(|| format!("cannot make {} an absolute path", dir.display()))?;
        remove_abandoned(&dir);
        let path = dir.join(format!("{PREFIX}{}", Uuid::new_v4().simple()));
        let made = fs::create_dir(&path).and_then(|()| {
            let lock = lock(&path)?;
            fs::create_dir(path.join("notes")).map(|()| lock)
        });
        let lock = made.with_context(|| format!("cannot make {}", path.display()))?;
        Ok(Place { path, _lock: lock })
    }

    fn programs(&self) -> PathBuf {
        self.path.join("programs")
    }

    /// The work directory of a worker.
    fn jobs(&self, worker: &str) -> PathBuf {
        self.path.join(format!("jobs-{worker}"))
    }

    fn write_programs(&self) -> anyhow::Result<()> {
        let notes = self.path.join("notes");
        // As it stands between the quotes of a shell.
        let notes = notes.display().to_string().replace('\'', r"'\''");
        let directory = self.programs();
        fs::create_dir(&directory)?;
        for (name, body) in [
            // How much came, and the digest of its end: heft has checked all of it.
            (
                "measure",
                "wc -c < input.bin\ntail -c 1048576 input.bin | sha256sum | cut -d' ' -f1\n".into(),
            ),
            ("first-line", "head -n 1 model.bin\n".into()),
            (
                "make",
                "head -c \"$1\" /dev/urandom > made.bin\nsha256sum < made.bin | cut -d' ' -f1\n"
                    .into(),
            ),
            (
                "rescued",
                format!(
                    "if mkdir '{notes}/taken' 2>/dev/null; then dirname \"$PWD\" > \
                     '{notes}/taken/by.new'; mv '{notes}/taken/by.new' '{notes}/taken/by'; sleep \
                     60; fi\ndirname \"$PWD\"\n"
                ),
            ),
            ("small", "exit 0\n".into()),
            ("slow", "sleep \"$1\"\necho slept \"$1\" seconds\n".into()),
            ("broken", "echo this went wrong >&2\nexit 3\n".into()),
        ] as [(&str, String); 7]
        {
            let path = directory.join(name);
            fs::write(&path, format!("#!/bin/sh\n{body}"))
                .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(0o755)))
                .with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let began = Instant::now();
        // A process that was just killed may still be making a file.
        while let Err(error) = fs::remove_dir_all(&self.path) {
            if began.elapsed() >= REMOVE_WAIT {
                return say(&format!("cannot remove {}: {error}", self.path.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Locks a directory for this process.
fn lock(path: &Path) -> io::Result<OwnedFd> {
    let lock = OwnedFd::from(File::open(path)?);
    flock(&lock, FlockOperation::NonBlockingLockExclusive)?;
    Ok(lock)
}

/// Removes the directories of demos that were killed: nobody has them locked.
fn remove_abandoned(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let is_ours = id.is_some_and(|id| id.len() == 32 && Uuid::parse_str(id).is_ok());
        // One that is starting may not have locked it yet.
        let is_old = |found: &fs::Metadata| {
            let age = found.modified().ok().and_then(|modified| modified.elapsed().ok());
            age.is_some_and(|age| age >= ABANDONED_AFTER)
        };
        let is_left = entry.metadata().is_ok_and(|found| {
            found.is_dir() && found.uid() == geteuid().as_raw() && is_old(&found)
        });
        if is_ours && is_left && lock(&entry.path()).is_ok() {
            fs::remove_dir_all(entry.path()).ok();
        }
    }
}

/// Writes a file that does not compress.
pub(super) fn write_noise(path: &Path, bytes: u64, seed: u64) -> io::Result<()> {
    let words = (0..BLOCK_BYTES as u64 / 8).flat_map(|word| mix(word ^ seed << 32).to_le_bytes());
    let mut block: Vec<u8> = words.collect();
    let (mut file, mut left, mut number) = (File::create_new(path)?, bytes, 0_u64);
    while left > 0 {
        if let Some(interrupt) = wanted() {
            return Err(io::Error::other(Stopped::plain(interrupt)));
        }
        // No two blocks are alike.
        for (byte, new) in block.iter_mut().zip(mix(number ^ seed).to_le_bytes()) {
            *byte = new;
        }
        let len = usize::try_from(left).unwrap_or(usize::MAX).min(block.len());
        file.write_all(block.get(..len).unwrap_or_default())?;
        (left, number) = (left - len as u64, number + 1);
    }
    Ok(())
}
