//! Real processes for integration tests: leaders, workers, clients, ours and classic. Each ends
//! with its handle.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing
)]

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long anything may take before a test says what it waited for. Generous: it is not a
/// measurement.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose lines of output can be waited for.
pub struct Proc {
    name: String,
    child: Child,
    /// Behind a lock, so that threads of a test can share the process.
    lines: Mutex<Receiver<String>>,
    seen: Vec<String>,
}

impl Proc {
    /// Starts a command; its standard output is read line by line, its standard error goes to the
    /// test's.
    pub fn start(name: &str, command: &mut Command) -> Proc {
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        // Nobody can write there: a test's jobs are not the user's last ones.
        if !command.get_envs().any(|(name, _)| name == "XDG_STATE_HOME") {
            command.env("XDG_STATE_HOME", "/dev/null");
        }
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {name}: {error}"));
        let stdout = child.stdout.take().expect("its output is piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Proc { name: name.to_owned(), child, lines: Mutex::new(lines), seen: Vec::new() }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Writes to its standard input.
    pub fn write(&mut self, text: &str) {
        self.child
            .stdin
            .as_mut()
            .expect("its input is open")
            .write_all(text.as_bytes())
            .expect("it reads");
    }

    /// Ends its standard input.
    pub fn end_input(&mut self) {
        self.child.stdin = None;
    }

    /// The next line that `wanted` finds something in; lines before it are passed over.
    pub fn wait_for<T>(&mut self, what: &str, wanted: impl FnMut(&str) -> Option<T>) -> T {
        let found = self.wait_for_or_end(what, wanted);
        found.unwrap_or_else(|| {
            panic!("{} ended without {what}; it said {:#?}", self.name, self.seen)
        })
    }

    /// The same; `None` if it ends before.
    pub fn wait_for_or_end<T>(
        &mut self,
        what: &str,
        mut wanted: impl FnMut(&str) -> Option<T>,
    ) -> Option<T> {
        let until = Instant::now() + PATIENCE;
        loop {
            match self
                .lines
                .get_mut()
                .unwrap()
                .recv_timeout(until.saturating_duration_since(Instant::now()))
            {
                Ok(line) => {
                    let found = wanted(&line);
                    self.seen.push(line);
                    if found.is_some() {
                        return found;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    panic!("{}: no {what}; it said {:#?}", self.name, self.seen)
                }
                Err(RecvTimeoutError::Disconnected) => return None,
            }
        }
    }

    /// Whether it has said such a line by now.
    pub fn poll(&mut self, mut wanted: impl FnMut(&str) -> Option<()>) -> bool {
        self.seen.extend(self.lines.get_mut().unwrap().try_iter());
        self.seen.iter().any(|line| wanted(line).is_some())
    }

    /// The first line it said that has this in it, of those that were waited for or passed over.
    pub fn said(&self, part: &str) -> Option<&str> {
        self.seen.iter().map(String::as_str).find(|line| line.contains(part))
    }

    /// The next event of a classic peer with this name.
    pub fn event(&mut self, event: &str) -> Value {
        self.event_where(event, |_| true)
    }

    /// The next event with this name that fits.
    pub fn event_where(&mut self, event: &str, fits: impl Fn(&Value) -> bool) -> Value {
        self.wait_for(&format!("event {event}"), |line| {
            let value: Value = serde_json::from_str(line).ok()?;
            (value["event"] == event && fits(&value)).then_some(value)
        })
    }

    /// Waits for its end; gives its exit code and all lines it said.
    pub fn finish(mut self) -> (Option<i32>, Vec<String>) {
        let until = Instant::now() + PATIENCE;
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("it can be waited for") {
                break status;
            }
            assert!(Instant::now() < until, "{} does not end; it said {:#?}", self.name, self.seen);
            std::thread::sleep(Duration::from_millis(5));
        };
        while let Ok(line) = self.lines.get_mut().unwrap().recv_timeout(PATIENCE) {
            self.seen.push(line);
        }
        (status.code(), std::mem::take(&mut self.seen))
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("it can be waited for").is_some()
    }

    pub fn kill(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }

    pub fn terminate(&self) {
        Command::new("kill").arg(self.pid().to_string()).status().expect("kill runs");
    }
}

impl Drop for Proc {
    fn drop(&mut self) {
        self.kill();
    }
}

/// A running heft leader.
pub struct Leader {
    pub proc: Proc,
    pub port: u16,
    /// Where it keeps its data, if the test names no place for it.
    _data: Option<tempfile::TempDir>,
}

impl Leader {
    pub fn start(args: &[&str]) -> Leader {
        Self::start_on(0, args)
    }

    pub fn start_on(port: u16, args: &[&str]) -> Leader {
        let command = Command::new(env!("CARGO_BIN_EXE_heft"));
        Self::launch(command, port, args).unwrap_or_else(|(code, lines)| {
            panic!("the leader ended with {code:?}; it said {lines:#?}")
        })
    }

    /// Starts a leader with less than it is used to (see `tests/support/confine.py`); its log is
    /// among its lines. If it does not start, its exit code and all it said.
    pub fn confined(
        confines: &[&str],
        args: &[&str],
    ) -> Result<Leader, (Option<i32>, Vec<String>)> {
        let mut command = Command::new("python3");
        command.arg("-S").arg(root().join("tests/support/confine.py")).args(confines);
        command.args(["--", env!("CARGO_BIN_EXE_heft")]).env("HEFT_LOG", "info");
        Self::launch(command, 0, args)
    }

    fn launch(
        mut command: Command,
        port: u16,
        args: &[&str],
    ) -> Result<Leader, (Option<i32>, Vec<String>)> {
        command.arg("leader").arg(port.to_string()).args(args);
        let data = (!args.contains(&"--data"))
            .then(|| tempfile::tempdir().expect("a directory can be made"));
        if let Some(data) = &data {
            command.arg("--data").arg(data.path());
        }
        let mut proc = Proc::start("heft leader", &mut command);
        let port = proc.wait_for_or_end("its address", |line| {
            line.contains("listening on")
                .then(|| line.split(&[':', ' ']).find_map(|word| word.parse().ok()))?
        });
        match port {
            Some(port) => Ok(Leader { proc, port, _data: data }),
            None => Err(proc.finish()),
        }
    }

    pub fn addr(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

/// A classic peer, by the name of its program.
pub fn classic(program: &str, args: &[&str]) -> Proc {
    let path = root().join("tests/classic").join(program);
    Proc::start(program, Command::new("python3").arg("-S").arg(path).args(args))
}

/// A classic worker that has said hello.
pub fn classic_worker(port: u16, args: &[&str]) -> Proc {
    let port = port.to_string();
    let mut worker = classic("worker.py", &[&["127.0.0.1", &port], args].concat());
    worker.event("started");
    worker
}

/// A classic client that submits these jobs, one JSON object each, and waits for their results.
pub fn classic_client(port: u16, id: &str, args: &[&str], jobs: &[Value]) -> Proc {
    let port = port.to_string();
    let mut client =
        classic("client.py", &[&["127.0.0.1", &port, id, "--jobs", "-"], args].concat());
    client.event("started");
    for job in jobs {
        client.write(&format!("{job}\n"));
    }
    client.end_input();
    client
}

/// Waits until something is so.
pub fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < until, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).to_owned()
}

/// A directory that goes with its handle.
pub struct TempDir(pub PathBuf);

impl TempDir {
    pub fn new() -> TempDir {
        let path =
            std::env::temp_dir().join(format!("heft-test-{}", uuid::Uuid::new_v4().simple()));
        std::fs::create_dir_all(&path).expect("a directory for the test");
        TempDir(path)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub fn text(&self) -> &str {
        self.0.to_str().expect("a plain path")
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

/// An agent that keeps this cache for the classic workers on its host, with a directory for what
/// else it needs.
pub fn agent(port: u16, cache: &TempDir, dirs: &TempDir, args: &[&str]) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", &port.to_string(), "--cache-only"]).args(args);
    command.arg("--cache-dir").arg(&cache.0);
    command.arg("--work-dir").arg(dirs.join("jobs")).arg("--exe-dir").arg(&dirs.0);
    Proc::start("agent", &mut command)
}

/// A heft worker with programs of its own, ready for jobs.
pub struct Worker {
    pub proc: Proc,
    pub dir: TempDir,
}

/// A program that says its arguments and the SHA-256 of each of its inputs, as the classic worker's
/// `echo` does.
pub const ECHO: &str = r#"echo "$*"
for f in *; do [ -f "$f" ] && echo "$f $(sha256sum < "$f" | cut -d' ' -f1)"; done
exit 0"#;

impl Worker {
    /// Starts a worker with these programs (name, shell script) and waits until it has tried to
    /// reach its leader.
    pub fn start(port: u16, programs: &[(&str, &str)], args: &[&str]) -> Worker {
        let dir = TempDir::new();
        let exe = dir.join("exe");
        std::fs::create_dir_all(&exe).expect("a directory for programs");
        for (name, script) in programs {
            write_program(&exe.join(name), script);
        }
        let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
        command.args(["worker", "127.0.0.1", &port.to_string()]).args(args);
        command.arg("--exe-dir").arg(&exe).arg("--work-dir").arg(dir.join("jobs"));
        command.arg("--cache-dir").arg(dir.join("cache")).env("HEFT_LOG", "warn");
        Worker { proc: Proc::start("heft worker", &mut command), dir }
    }
}

/// Writes an executable shell script.
pub fn write_program(path: &Path, script: &str) {
    use std::os::unix::fs::PermissionsExt;
    std::fs::write(path, format!("#!/bin/sh\n{script}\n")).expect("a program");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("it may run");
}

/// Runs `heft` to its end: exit code, standard output, standard error.
pub fn heft(args: &[&str]) -> (Option<i32>, String, String) {
    heft_with(args, "/dev/null".as_ref())
}

/// The same, where `last` is noted beneath this directory.
pub fn heft_with(args: &[&str], state: &Path) -> (Option<i32>, String, String) {
    // Nobody has set a variable or selected a context.
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.env_remove("HEFT_LEADER").env_remove("HEFT_CONTEXT").env_remove("HEFT_OUTPUT");
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_STATE_HOME", state);
    let output = command.args(args).output().expect("heft runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (output.status.code(), text(&output.stdout), text(&output.stderr))
}

/// A classic leader and its port. Its clock is slow, so that it resends nothing while a test runs.
pub fn classic_leader() -> (Proc, u16) {
    let mut leader = classic("leader.py", &["0", "--time-scale", "20"]);
    let port = leader.event("listening")["port"].as_u64().expect("a port");
    (leader, u16::try_from(port).expect("a port"))
}
