//! Signals, full pipes and the like: how the built `heft` ends when it is told to, and what it
//! leaves.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use procs::{Leader, Proc, TempDir, Worker, eventually, heft};
use serde_json::Value;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// No command that was told to end takes longer.
const PATIENCE: Duration = Duration::from_secs(30);

/// A command whose standard output and error are pipes that nobody reads.
fn start(line: &[&str]) -> Child {
    // Whoever runs the tests may ignore SIGHUP.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_heft")]);
    for name in ["HEFT_LEADER", "HEFT_CONTEXT", "HEFT_OUTPUT"] {
        command.env_remove(name);
    }
    command.env("XDG_CONFIG_HOME", "/nonexistent").env("XDG_STATE_HOME", "/dev/null");
    command.args(line).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
}

/// The exit code of a command that ends by itself.
fn code_of(child: &mut Child) -> i32 {
    let began = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code().unwrap_or_else(|| panic!("it ended by {status}"));
        }
        if began.elapsed() > PATIENCE {
            child.kill().unwrap();
            panic!("it did not end");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn text(from: Option<impl Read>) -> String {
    let mut text = String::new();
    from.unwrap().read_to_string(&mut text).unwrap();
    text
}

/// Whether a process waits for room in a pipe: it has written, and sleeps.
fn is_full(pipe: &impl AsFd) -> bool {
    rustix::io::ioctl_fionread(pipe).unwrap() >= 60 << 10
}

/// A leader with one worker, and the id of a job that has printed more than any pipe holds.
fn with_a_long_output() -> (Leader, Worker, String) {
    let leader = Leader::start(&[]);
    let worker = Worker::start(leader.port, &[("long", "yes a line of it | head -c 8000000")], &[]);
    let (code, out, err) = heft(&["submit", "long", "-l", &leader.addr(), "-o", "json"]);
    assert_eq!(code, Some(0), "{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    (leader, worker, shown["job_id"].as_str().unwrap().to_owned())
}

#[test]
fn a_command_that_waits_for_room_in_a_pipe_ends_by_a_signal_with_its_code() {
    let (leader, _worker, job) = with_a_long_output();
    let addr = leader.addr();
    for (line, name, code) in [
        (vec!["result", "get", &job], "-TERM", 143),
        (vec!["result", "get", &job], "-INT", 130),
        (vec!["job", "logs", &job], "-TERM", 143),
        (vec!["submit", "long"], "-HUP", 129),
    ] {
        let mut child = start(&[&line[..], &["-l", &addr]].concat());
        eventually("the pipe is full", || is_full(child.stdout.as_ref().unwrap()));
        signal(&child, name);
        assert_eq!(code_of(&mut child), code, "{line:?} {name}");
    }
}

#[test]
fn an_output_that_does_not_wait_for_its_reader_has_all_of_what_a_job_printed() {
    let (leader, _worker, job) = with_a_long_output();
    let (mut reader, writer) = std::io::pipe().unwrap();
    fcntl_setfl(&writer, fcntl_getfl(&writer).unwrap() | OFlags::NONBLOCK).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["result", "get", &job, "-l", &leader.addr()]).stdout(writer);
    let mut child = command.spawn().unwrap();
    drop(command);
    eventually("the pipe is full", || is_full(&reader));
    let mut came = Vec::new();
    reader.read_to_end(&mut came).unwrap();
    assert_eq!((code_of(&mut child), came.len()), (0, 8_000_000));
}

#[test]
fn programs_read_of_a_signal_as_of_any_other_error() {
    let leader = Leader::start(&[]);
    let addr = leader.addr();
    let (_, out, err) = heft(&["submit", "none", "--detach", "-l", &addr]);
    let job = out.trim().to_owned();
    assert!(!job.is_empty(), "{err}");
    // It takes connections and says nothing.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let nowhere = listener.local_addr().unwrap().to_string();
    let silent = ["-l", &nowhere, "--connect-wait", "1h"];
    for line in [
        vec!["job", "wait", &job],
        vec!["job", "logs", &job, "-f"],
        [&["result", "get", JOB], &silent[..]].concat(),
        [&["status"], &silent[..]].concat(),
        [&["submit", "none", "--dataset", "x"], &silent[..]].concat(),
        [&["dataset", "put", "x", "/bin/sh"], &silent[..]].concat(),
    ] {
        let mut line = line;
        if !line.contains(&"-l") {
            line.extend(["-l", &addr]);
        }
        let mut child = start(&[&line[..], &["-o", "json"]].concat());
        eventually("it catches signals", || catches_signals(&child));
        signal(&child, "-TERM");
        assert_eq!(code_of(&mut child), 143, "{line:?}");
        let (out, err) = (text(child.stdout.take()), text(child.stderr.take()));
        assert_eq!(out.lines().count(), 1, "{line:?}: {out}{err}");
        let shown: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(shown["error"]["code"], "interrupted", "{line:?}: {out}");
        assert!(shown["error"]["message"].as_str().unwrap().contains("SIGTERM"), "{out}");
    }
    heft(&["cancel", &job, "-l", &addr]);
}

/// Whether SIGTERM does not end a process by itself any more.
fn catches_signals(child: &Child) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(caught.trim(), 16).unwrap() & 1 << 14 != 0
}

/// Processes whose command line names this path.
fn processes_of(path: &Path) -> usize {
    let path = path.to_str().unwrap().as_bytes();
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.windows(path.len()).any(|part| part == path)).count()
}

/// A demo in its second half: it has processes and files.
fn demo_under_way(dir: &TempDir) -> Proc {
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_heft")]);
    command.args(["demo", "--dir", dir.text(), "--size", "64MiB", "--jobs", "100000"]);
    let mut demo = Proc::start("heft demo", &mut command);
    demo.wait_for("the dataset's act", |line| line.contains("dataset").then_some(()));
    demo
}

#[test]
fn a_demo_that_is_ended_ends_its_processes_and_removes_its_files() {
    for (name, code) in [("-TERM", 143), ("-INT", 130), ("-HUP", 129)] {
        let dir = TempDir::new();
        let demo = demo_under_way(&dir);
        let pid = demo.pid().to_string();
        assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
        assert_eq!(demo.finish().0, Some(code), "{name}");
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0, "{name}");
        // Programs of jobs are killed by the system when their worker has ended.
        eventually("its processes have ended", || processes_of(&dir.0) == 0);
    }
}

#[test]
fn a_demo_that_is_killed_takes_its_processes_along() {
    let dir = TempDir::new();
    let mut demo = demo_under_way(&dir);
    demo.kill();
    eventually("its processes have ended", || processes_of(&dir.0) == 0);
}

#[test]
fn an_unknown_host_is_said_at_once_with_its_name() {
    for line in [
        vec!["status"],
        vec!["result", "get", JOB],
        vec!["submit", "calcA"],
        vec!["dataset", "put", "x", "/bin/sh"],
    ] {
        for leaders in ["no-such-host.invalid:5000", "no-such-host.invalid:5000,nor.invalid:1"] {
            let wait = ["--connect-wait", "1h", "-l", leaders];
            let (code, out, err) = heft(&[&line[..], &wait].concat());
            assert_eq!((code, out.as_str()), (Some(3), ""), "{line:?}: {err}");
            assert!(
                err.contains("no-such-host.invalid:5000") && err.contains("host name"),
                "{err}"
            );
        }
    }
}

#[test]
fn a_timeout_covers_connecting() {
    // It takes connections and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = silent.local_addr().unwrap().to_string();
    for line in [
        vec!["result", "get", JOB],
        vec!["job", "wait", JOB],
        vec!["submit", "calcA", "--dataset", "x"],
        vec!["dataset", "put", "x", "/bin/sh"],
    ] {
        let more = ["-l", &addr, "--timeout", "300ms", "--connect-wait", "1h"];
        let (code, out, err) = heft(&[&line[..], &more].concat());
        assert_eq!((code, out.as_str()), (Some(4), ""), "{line:?}: {err}");
        assert!(err.contains("within 300ms"), "{line:?}: {err}");
    }
}
