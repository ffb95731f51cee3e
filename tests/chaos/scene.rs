//! The processes of a scene: a leader with default flags, six workers, and the disks and lines that
//! harm is done to.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use uuid::Uuid;

use crate::plan::{CLIENTS, ClientName, Harm, RELAYED, Seeded, Target, WORKERS, WorkerName};
use crate::procs;
use crate::relay::{Relay, Relays};
use crate::work::Material;

/// The size of the disks that can be full.
const DISK_BYTES: u64 = 2 << 30;

/// What every process of the scene has in its environment, and so has what jobs start.
const MARK: &str = "HEFT_CHAOS_SCENE";

/// What is left for files when a disk is full: a page or two are, on most.
const LEFT_BYTES: u64 = 16 << 10;

/// A disk of its own, which can be made full.
struct Disk {
    path: PathBuf,
    is_small: bool,
}

impl Disk {
    /// Needs a mount namespace of its own.
    fn mount(path: PathBuf, can_fill: bool) -> Disk {
        fs::create_dir_all(&path).unwrap();
        let disk = Disk { path, is_small: can_fill };
        if can_fill {
            let size = format!("size={DISK_BYTES},mode=700");
            let status = Command::new("mount")
                .args(["-t", "tmpfs", "-o", &size, "chaos"])
                .arg(&disk.path)
                .status();
            assert!(status.unwrap().success(), "tmpfs on {}", disk.path.display());
        }
        disk
    }

    fn resize(&self, bytes: u64) -> bool {
        let size = format!("remount,size={bytes}");
        let output = Command::new("mount").args(["-o", &size]).arg(&self.path).output().unwrap();
        output.status.success()
    }

    /// No room is left.
    fn fill(&self) {
        // What is written meanwhile makes it too small for what it holds.
        for _ in 0..20 {
            let stat = rustix::fs::statvfs(&self.path).unwrap();
            let used = (stat.f_blocks - stat.f_bfree) * stat.f_frsize;
            if self.resize(used + LEFT_BYTES) {
                return;
            }
        }
    }

    fn lift(&self) {
        assert!(
            !self.is_small || self.resize(DISK_BYTES),
            "{} has room again",
            self.path.display()
        );
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if self.is_small {
            Command::new("umount").arg("-l").arg(&self.path).status().ok();
        }
    }
}

/// A process whose output goes to a log.
pub struct Process {
    pub child: Child,
}

impl Process {
    pub fn start(command: &mut Command, mark: &str, log: &Path, errors: &Path) -> Process {
        let open = |path: &Path| OpenOptions::new().create(true).append(true).open(path).unwrap();
        command.stdin(Stdio::null()).stdout(open(log)).stderr(open(errors));
        command.env(MARK, mark).env_remove("HEFT_DATA").env_remove("HEFT_DURABILITY");
        let child = command
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", log.display()));
        Process { child }
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    pub fn signal(&mut self, signal: Signal) {
        if !self.has_ended() {
            let pid = Pid::from_raw(i32::try_from(self.child.id()).unwrap()).unwrap();
            kill_process(pid, signal).ok();
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

/// What clients need, each on a thread of its own.
pub struct Shared {
    pub dir: PathBuf,
    pub port: u16,
    pub material: Material,
    mark: String,
    relays: BTreeMap<ClientName, Relay>,
    /// Clients that run.
    running: Mutex<BTreeMap<ClientName, Process>>,
}

impl Shared {
    /// The leader itself.
    pub fn leader(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The port by which a client reaches the leader.
    pub fn port_of(&self, client: ClientName) -> u16 {
        self.relays[&client].port
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Runs a client to its end, whatever is done to it; gives how it ended.
    pub fn run(
        &self,
        client: ClientName,
        command: &mut Command,
        log: &Path,
        errors: &Path,
    ) -> std::process::ExitStatus {
        let process = Process::start(command, &self.mark, log, errors);
        assert!(self.running.lock().unwrap().insert(client, process).is_none(), "one at a time");
        loop {
            std::thread::sleep(Duration::from_millis(5));
            let mut running = self.running.lock().unwrap();
            if let Some(status) = running.get_mut(&client).unwrap().child.try_wait().unwrap() {
                running.remove(&client);
                return status;
            }
        }
    }

    fn signal(&self, client: ClientName, signal: Signal) {
        if let Some(process) = self.running.lock().unwrap().get_mut(&client) {
            process.signal(signal);
        }
    }

    fn clients_run(&self) -> Vec<u32> {
        self.running.lock().unwrap().values().map(|process| process.child.id()).collect()
    }
}

/// A process that is started again when it ends.
struct Service {
    process: Option<Process>,
    /// When it is started again.
    due: Option<Instant>,
    starts: u32,
}

impl Service {
    const NEW: Service = Service { process: None, due: None, starts: 0 };

    fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(|process| process.child.id())
    }
}

pub struct Scene {
    pub shared: Arc<Shared>,
    leader: Service,
    workers: BTreeMap<WorkerName, Service>,
    lines: BTreeMap<WorkerName, Relay>,
    data: Disk,
    work: Disk,
    /// Descriptors of the leader in the first quiet moment of each life.
    pub descriptors: Option<(u32, usize)>,
}

impl Scene {
    /// With disks that can be full, if the test has a mount namespace of its own.
    pub fn start(dir: PathBuf, can_fill: bool) -> Scene {
        fs::create_dir_all(dir.join("logs")).unwrap();
        let (data, work) =
            (Disk::mount(dir.join("data"), can_fill), Disk::mount(dir.join("work"), can_fill));
        let material = Material::new(&dir);
        material.install(&dir.join("exe"));
        let port = free_port();
        let relays = Relays::start(([127, 0, 0, 1], port).into());
        let shared = Shared {
            dir,
            port,
            material,
            mark: Uuid::new_v4().to_string(),
            relays: CLIENTS.into_iter().map(|client| (client, relays.relay())).collect(),
            running: Mutex::default(),
        };
        let mut scene = Scene {
            shared: Arc::new(shared),
            leader: Service::NEW,
            workers: WORKERS.into_iter().map(|worker| (worker, Service::NEW)).collect(),
            lines: RELAYED.into_iter().map(|worker| (worker, relays.relay())).collect(),
            data,
            work,
            descriptors: None,
        };
        scene.start_leader();
        scene.supervise();
        scene
    }

    pub fn data_dir(&self) -> &Path {
        &self.data.path
    }

    pub fn work_dir(&self) -> &Path {
        &self.work.path
    }

    pub fn leader_pid(&self) -> Option<u32> {
        self.leader.pid()
    }

    pub fn leader_life(&self) -> u32 {
        self.leader.starts
    }

    pub fn log(&self, name: &str) -> PathBuf {
        self.shared.dir.join("logs").join(name)
    }

    fn start_leader(&mut self) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
        command.args(["leader", &self.shared.port.to_string(), "--data"]).arg(&self.data.path);
        command.env("HEFT_LOG", "info");
        let log = self.log("leader.log");
        self.leader.process = Some(Process::start(&mut command, &self.shared.mark, &log, &log));
        self.leader.starts += 1;
        self.leader.due = None;
    }

    fn start_worker(&mut self, worker: WorkerName) {
        let port = self.lines.get(&worker).map_or(self.shared.port, |line| line.port).to_string();
        let cache = self.shared.path(&format!("cache-{worker:?}"));
        let exe = self.shared.path("exe");
        let mut command;
        match worker {
            WorkerName::Heft(_) => {
                command = Command::new(env!("CARGO_BIN_EXE_heft"));
                command.args(["worker", "127.0.0.1", &port]).env("HEFT_LOG", "info");
                command.arg("--work-dir").arg(&self.work.path);
            }
            WorkerName::Classic(_) => {
                command = Command::new("python3");
                command.arg("-S").arg(procs::root().join("tests/chaos/worker.py"));
                command.args(["127.0.0.1", &port, "--platform", "windows", "--lifetime", "100000"]);
                command.arg("--work-dir").arg(&self.work.path);
            }
            WorkerName::Minimal => {
                command = Command::new("python3");
                command.arg("-S").arg(procs::root().join("tests/classic/worker.py"));
                command.args(["127.0.0.1", &port, "--generation", "f0", "--lifetime", "100000"]);
                command.args(["--delay", "0.05"]);
            }
        }
        command.arg("--exe-dir").arg(&exe).arg("--cache-dir").arg(&cache);
        let (log, errors) =
            (self.log(&format!("{worker:?}.log")), self.log(&format!("{worker:?}.err")));
        let process = Process::start(&mut command, &self.shared.mark, &log, &errors);
        let service = self.workers.get_mut(&worker).unwrap();
        service.process = Some(process);
        service.starts += 1;
        service.due = None;
    }

    /// Starts again what has ended and is due, as a service manager does.
    pub fn supervise(&mut self) {
        let now = Instant::now();
        if self.leader.due.is_some_and(|due| due <= now) {
            self.start_leader();
        }
        let log = self.log("leader.log");
        if let Some(process) = &mut self.leader.process {
            let ended = process.child.try_wait().unwrap();
            assert!(
                ended.is_none(),
                "the leader ended with {ended:?}, and nobody killed it: see {}",
                log.display()
            );
        }
        for worker in WORKERS {
            let service = self.workers.get_mut(&worker).unwrap();
            let ended = service.process.as_mut().is_none_or(Process::has_ended);
            if ended && service.due.is_none() {
                service.process = None;
                // The first time at once.
                let wait = if service.starts == 0 { 0 } else { 200 };
                service.due = Some(now + Duration::from_millis(wait));
            }
            if ended && service.due.is_some_and(|due| due <= now) {
                self.start_worker(worker);
            }
        }
    }

    pub fn begin(&mut self, harm: Harm) {
        match harm {
            Harm::Kill(target, pause_ms) => {
                let due = Some(Instant::now() + Duration::from_millis(pause_ms));
                match target {
                    Target::Client(client) => self.shared.signal(client, Signal::KILL),
                    Target::Leader => (self.leader.process, self.leader.due) = (None, due),
                    Target::Worker(worker) => {
                        let service = self.workers.get_mut(&worker).unwrap();
                        (service.process, service.due) = (None, due);
                    }
                }
            }
            Harm::Stop(target, _) => self.signal(target, Signal::STOP),
            Harm::Cut(target) => self.line(target).cut(),
            Harm::Stall(target, _) => self.line(target).stall(true),
            Harm::Throttle(target, rate, _) => self.line(target).throttle(rate),
            Harm::FullData(_) => self.data.fill(),
            Harm::FullWork(_) => self.work.fill(),
            Harm::Dead(target) => self.line(target).die(),
        }
    }

    pub fn end(&mut self, harm: Harm) {
        match harm {
            Harm::Kill(..) | Harm::Cut(_) | Harm::Dead(_) => {}
            Harm::Stop(target, _) => self.signal(target, Signal::CONT),
            Harm::Stall(target, _) | Harm::Throttle(target, ..) => self.line(target).lift(),
            Harm::FullData(_) => self.data.lift(),
            Harm::FullWork(_) => self.work.lift(),
        }
    }

    fn signal(&mut self, target: Target, signal: Signal) {
        let service = match target {
            Target::Client(client) => return self.shared.signal(client, signal),
            Target::Leader => &mut self.leader,
            Target::Worker(worker) => self.workers.get_mut(&worker).unwrap(),
        };
        if let Some(process) = &mut service.process {
            process.signal(signal);
        }
    }

    fn line(&self, target: Target) -> &Relay {
        match target {
            Target::Client(client) => &self.shared.relays[&client],
            Target::Worker(worker) => &self.lines[&worker],
            Target::Leader => unreachable!("the leader has no line of its own"),
        }
    }

    /// The status, if the leader answers.
    pub fn status(&self) -> Option<Value> {
        let (code, out, _) = procs::heft(&[
            "status",
            &self.shared.leader(),
            "--output",
            "json",
            "--connect-wait",
            "2s",
        ]);
        (code == Some(0)).then(|| serde_json::from_str(&out).unwrap())
    }

    /// Processes that the scene did not start itself and that carry its mark: programs of jobs, and
    /// what those started.
    pub fn strays(&self) -> Vec<String> {
        let mut known: Vec<u32> = self.workers.values().filter_map(Service::pid).collect();
        known.extend(self.leader.pid());
        known.extend(self.shared.clients_run());
        let marked = format!("{MARK}={}", self.shared.mark);
        let mut strays = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Ok(pid) = entry.file_name().to_string_lossy().parse::<u32>() else { continue };
            let environ = fs::read(entry.path().join("environ")).unwrap_or_default();
            let is_ours = environ.split(|byte| *byte == 0).any(|line| line == marked.as_bytes());
            if is_ours && !known.contains(&pid) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                strays.push(format!("{pid} {}", String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        strays
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.shared.running.lock().unwrap().clear();
    }
}

/// A port that no connection is given as its own: a leader that is away would find it taken.
fn free_port() -> u16 {
    let mut random = Seeded(Uuid::new_v4().as_u64_pair().0);
    loop {
        let port = 12_000 + u16::try_from(random.below(18_000)).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
