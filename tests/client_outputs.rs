//! Commands whose output cannot be written: what they say, and how they exit. A reader that takes a
//! part of an answer for the whole is what this is about.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use std::fs::OpenOptions;
use std::io::Read;
use std::process::{Command, Stdio};

use procs::{Leader, Worker, heft};
use serde_json::Value;

/// Prints more than a pipe takes.
const LONG: &str = "head -c 300000 /dev/zero | tr '\\0' x; echo warning >&2";

struct Scene {
    leader: Leader,
    _worker: Worker,
    job: String,
}

fn scene() -> Scene {
    let leader = Leader::start(&[]);
    let worker = Worker::start(leader.port, &[("long", LONG), ("short", "echo hello")], &[]);
    let (code, out, err) = heft(&["submit", &leader.addr(), "long", "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    let result: Value = serde_json::from_str(&out).unwrap();
    Scene { job: result["job_id"].as_str().unwrap().to_owned(), leader, _worker: worker }
}

/// Runs `heft` with this as its standard output: exit code, standard error.
fn heft_to(stdout: Stdio, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(args).env("XDG_STATE_HOME", "/dev/null");
    let output = command.stdout(stdout).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    // Without the line by which submit says that the leader has the job.
    let others = said.split_inclusive('\n').filter(|line| !line.starts_with("job "));
    (output.status.code(), others.collect())
}

/// A pipe that nobody reads.
fn closed() -> Stdio {
    std::io::pipe().unwrap().1.into()
}

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn a_result_that_was_not_read_to_its_end_is_exit_code_141_and_nothing_is_said_of_it() {
    let Scene { leader, _worker, job } = scene();
    let addr = leader.addr();
    for args in [vec!["result", "get", &addr, &job], vec!["submit", &addr, "long"]] {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let head = std::thread::spawn(move || {
            let mut first = [0; 10];
            reader.read_exact(&mut first).map(|()| first)
        });
        let ended = heft_to(writer.into(), &args);
        assert_eq!(head.join().unwrap().unwrap(), *b"xxxxxxxxxx");
        assert_eq!(ended, (Some(141), "warning\n".to_owned()), "{args:?}");
    }
    for args in [
        vec!["result", "get", &addr, &job, "--output", "json"],
        vec!["submit", &addr, "short"],
        vec!["submit", &addr, "short", "--output", "json"],
        vec!["submit", &addr, "short", "--all"],
    ] {
        assert_eq!(heft_to(closed(), &args), (Some(141), String::new()), "{args:?}");
    }
}

#[test]
fn an_output_that_takes_nothing_is_said_and_is_exit_code_1() {
    let Scene { leader, _worker, job } = scene();
    let addr = leader.addr();
    for args in [
        vec!["result", "get", &addr, &job],
        vec!["result", "get", &addr, &job, "--output", "json"],
        vec!["submit", &addr, "short"],
        vec!["submit", &addr, "short", "--output", "json"],
        vec!["submit", &addr, "short", "--all"],
        vec!["status", &addr],
    ] {
        let (code, err) = heft_to(full(), &args);
        assert_eq!(code, Some(1), "{args:?}: {err}");
        assert!(
            err.contains("cannot write the output: No space left on device"),
            "{args:?}: {err}"
        );
    }
}

#[test]
fn answers_that_nobody_reads_make_no_command_panic_or_complain() {
    let Scene { leader, _worker, job } = scene();
    let addr = leader.addr();
    for args in [
        vec!["status", &addr],
        vec!["status", &addr, "--output", "json"],
        vec!["status", &addr, "--watch"],
        vec!["dlq", &addr, "ls"],
        vec!["dataset", &addr, "ls"],
        vec!["blob", &addr, "ls"],
        vec!["explain", &addr, &job],
    ] {
        assert_eq!(heft_to(closed(), &args), (Some(141), String::new()), "{args:?}");
    }
    for stdout in [closed(), full()] {
        let (code, err) = heft_to(stdout, &["--help"]);
        assert!(!err.contains("panicked"), "{code:?}: {err}");
    }
}

#[test]
fn a_leader_whose_first_line_nobody_reads_leads() {
    let dir = procs::TempDir::new();
    for stdout in [closed(), full()] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
        command.args(["leader", "0", "--data", dir.text()]).stdout(stdout).stderr(Stdio::piped());
        let mut leader = command.spawn().unwrap();
        let mut log = std::io::BufReader::new(leader.stderr.take().unwrap());
        let mut line = String::new();
        while !line.contains("listening on") {
            line.clear();
            assert_ne!(std::io::BufRead::read_line(&mut log, &mut line).unwrap(), 0, "it ended");
        }
        let addr = line
            .split_whitespace()
            .find(|word| word.starts_with("0.0.0.0:") || word.starts_with("127."));
        let addr = addr.unwrap().replace("0.0.0.0", "127.0.0.1");
        let (code, _, err) = heft(&["status", &addr]);
        leader.kill().unwrap();
        leader.wait().unwrap();
        assert_eq!(code, Some(0), "{err}");
    }
}
