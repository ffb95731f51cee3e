//! `heft submit --timeout` with real processes: what it says of the job that it leaves is true, and
//! stays true.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    dead_code
)]

#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;

use std::fs;
use std::process::Command;

use noise::noise;
use procs::{Leader, Proc, TempDir, Worker, heft};
use serde_json::Value;

const MIB: usize = 1 << 20;

fn status(leader: &Leader) -> Value {
    let (code, out, err) = heft(&["status", &leader.addr(), "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn a_job_whose_upload_was_cut_short_by_the_timeout_is_withdrawn_and_said_to_be() {
    let leader = Leader::start(&["--durability", "disk", "--spool-max", "8MiB"]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(6 * MIB, 1)).unwrap();
    let file = file.to_str().unwrap();
    // Another job has the room that there is, so that the upload does not begin.
    let mut command = Command::new("sh");
    command.arg("-c").arg("exec \"$0\" \"$@\" 2>&1").arg(env!("CARGO_BIN_EXE_heft"));
    command.args(["submit", &leader.addr(), "sum", "--progress", "json", "--file", file]);
    let mut other = Proc::start("another job", &mut command);
    other.event("submitted");
    for form in ["table", "json"] {
        let args =
            ["submit", &leader.addr(), "sum", "--file", file, "--timeout", "1s", "--output", form];
        let (code, out, err) = heft(&args);
        assert_eq!(code, Some(4), "{out}{err}");
        let text = if form == "json" {
            let shown: Value = serde_json::from_str(&out).unwrap();
            assert_eq!(shown["left"], "withdrawn", "{shown}");
            shown["error"]["message"].as_str().unwrap().to_owned()
        } else {
            err
        };
        assert!(
            text.contains("the job was withdrawn after 0 B of 6 MiB of its files had been sent"),
            "{text}"
        );
        assert!(
            text.contains("submit it again with a longer --timeout")
                && !text.contains("the job continues:"),
            "{text}"
        );
        // It is true: nothing of it waits, only the other job does.
        let status = status(&leader);
        assert_eq!(
            (&status["jobs"]["queued"], &status["leader"]["blobs"]),
            (&1.into(), &1.into()),
            "{status:#}"
        );
    }
}

#[test]
fn a_job_that_was_taken_goes_on_after_the_timeout_and_its_result_is_fetched_later() {
    let leader = Leader::start(&[]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(6 * MIB, 2)).unwrap();
    // The upload takes a moment on a machine that is busy; there is no worker yet, so the job does
    // not end before.
    let args = [
        "submit",
        &leader.addr(),
        "sum",
        "--file",
        file.to_str().unwrap(),
        "--timeout",
        "4s",
        "--output",
        "json",
    ];
    let (code, out, err) = heft(&args);
    assert_eq!(code, Some(4), "{out}{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(shown["left"], "taken", "{shown}");
    let text = shown["error"]["message"].as_str().unwrap();
    assert!(
        text.contains("the job continues: `heft result get") && text.contains("heft cancel"),
        "{text}"
    );
    let job = shown["job_id"].as_str().unwrap().to_owned();
    let _worker = Worker::start(leader.port, &[("sum", "sha256sum < in.bin")], &[]);
    let end = std::time::Instant::now() + procs::PATIENCE;
    while status(&leader)["jobs"]["done"] != 1 {
        assert!(std::time::Instant::now() < end, "{:#}", status(&leader));
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    let (code, out, err) = heft(&["result", "get", &leader.addr(), &job]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.ends_with("  -\n"), "{out}");
}

#[test]
fn the_timeout_also_ends_the_wait_for_a_leader_that_is_not_there_and_for_one_that_does_not_answer()
{
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let absent = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    for (leader, more) in
        [(absent, &[][..]), (silent.local_addr().unwrap(), &["--cache", "a-set"][..])]
    {
        let leader = leader.to_string();
        let args = [
            "submit",
            &leader,
            "x",
            "--connect-wait",
            "20s",
            "--timeout",
            "500ms",
            "--output",
            "json",
        ];
        let (code, out, err) = heft(&[&args, more].concat());
        assert_eq!(code, Some(4), "{out}{err}");
        let shown: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(
            (&shown["status"], &shown["left"]),
            (&"ERROR".into(), &"unsent".into()),
            "{shown}"
        );
        assert!(
            shown["error"]["message"].as_str().unwrap().contains("within 500ms (--timeout)"),
            "{shown}"
        );
    }
}

#[test]
fn a_pipe_to_which_nobody_writes_is_read_no_longer_than_the_timeout() {
    let files = TempDir::new();
    let pipe = files.join("pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
    assert!(made.success());
    let pipe = pipe.to_str().unwrap();
    for more in [&[][..], &["--raw"]] {
        // Nothing of it needs a leader.
        let line = [&["submit", "127.0.0.1:1", "sums", "--timeout", "300ms", "--file", pipe], more]
            .concat();
        let (code, _, err) = heft(&line);
        assert_eq!(code, Some(4), "{err}");
        assert!(
            err.contains("nothing was sent") && err.contains(pipe) && err.contains("--timeout"),
            "{err}"
        );
    }
}

/// `heft submit` with its standard error on its output, started with SIGHUP handled as this says.
fn submit_under(handling: &str, leader: &Leader, args: &[&str]) -> Proc {
    let mut command = Command::new("env");
    command.args([handling, "sh", "-c", "exec \"$0\" \"$@\" 2>&1", env!("CARGO_BIN_EXE_heft")]);
    Proc::start("submit", command.args(["submit", &leader.addr(), "--progress", "json"]).args(args))
}

fn kill(signal: &str, process: &Proc) {
    let sent = Command::new("kill").args([signal, &process.pid().to_string()]).status().unwrap();
    assert!(sent.success());
}

#[test]
fn sigterm_and_sighup_cancel_the_job_as_ctrl_c_does_with_the_codes_that_shells_know() {
    let leader = Leader::start(&[]);
    let worker = Worker::start(leader.port, &[("hold", "sleep 600")], &[]);
    for (signal, code) in [("-INT", 130), ("-TERM", 143), ("-HUP", 129)] {
        let mut submit = submit_under("--default-signal=HUP", &leader, &["hold"]);
        submit.event("running");
        kill(signal, &submit);
        let (ended, lines) = submit.finish();
        assert_eq!(ended, Some(code), "{signal}: {lines:#?}");
        let said = lines.join("\n");
        assert!(said.contains("cancelling the job"), "{signal}: {said}");
        assert!(said.contains("was cancelled") && !said.contains("FAILED"), "{signal}: {said}");
        let status = status(&leader);
        assert_eq!((&status["jobs"]["running"], &status["jobs"]["queued"]), (&0.into(), &0.into()));
    }
    // A second one leaves, whichever it is; the code is its own.
    drop(worker);
    let deaf = Leader::start(&[]);
    let mut submit = submit_under("--default-signal=HUP", &deaf, &["hold"]);
    submit.event("submitted");
    kill("-STOP", &deaf.proc);
    kill("-TERM", &submit);
    submit.wait_for("word of the first", |line| line.contains("cancelling").then_some(()));
    kill("-HUP", &submit);
    let (ended, lines) = submit.finish();
    kill("-CONT", &deaf.proc);
    assert_eq!(ended, Some(129), "{lines:#?}");
    assert!(lines.join("\n").contains("left job"), "{lines:#?}");
}

#[test]
fn beneath_nohup_a_hangup_is_ignored() {
    let leader = Leader::start(&[]);
    let mut submit = submit_under("--ignore-signal=HUP", &leader, &["sum"]);
    submit.event("submitted");
    kill("-HUP", &submit);
    let _worker = Worker::start(leader.port, &[("sum", "echo done")], &[]);
    let (ended, lines) = submit.finish();
    assert_eq!(ended, Some(0), "{lines:#?}");
    assert!(lines.iter().any(|line| line == "done"), "{lines:#?}");
}

#[test]
fn a_congestion_control_that_is_not_there_is_refused_by_its_flag() {
    let line = ["submit", "127.0.0.1:1", "sums", "--tcp-congestion", "nope"];
    let (code, _, err) = heft(&line);
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("--tcp-congestion") && err.contains("nope"), "{err}");
}
