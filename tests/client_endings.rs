//! How a job ended and where it ran, with real processes: in words for people, in members for
//! programs, and in `heft job show` over all runs of a job.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    dead_code
)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/schema.rs"]
mod schema;

use std::process::{Command, Stdio};

use procs::{Leader, TempDir, Worker, classic_worker, eventually, heft};
use serde_json::{Value, json};

const PROGRAMS: [(&str, &str); 4] = [
    ("good", "echo fine"),
    ("crash", "kill -SEGV $$"),
    ("hang", "exec sleep 600"),
    ("bad", "echo wrong; exit 3"),
];

fn on(leader: &Leader, args: &[&str]) -> (Option<i32>, String, String) {
    heft(&[args, &["-l", &leader.addr()]].concat())
}

/// What a command prints as JSON, which ends with this code. It is as its schema says.
fn json_of(leader: &Leader, args: &[&str], code: i32) -> Value {
    let (ended, out, err) = on(leader, &[args, &["-o", "json"]].concat());
    assert_eq!(ended, Some(code), "{args:?}: {out}{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    let words = if args[0] == "submit" { &args[..1] } else { &args[..2] };
    let faults = schema::faults(&schema::schema(&words.join("-")), &shown);
    assert_eq!(faults, Vec::<String>::new(), "{shown:#}");
    shown
}

fn show(leader: &Leader, id: &str) -> Value {
    json_of(leader, &["job", "show", id], 0)
}

#[test]
fn a_result_names_the_worker_the_attempt_the_times_and_how_the_job_ended() {
    let leader = Leader::start(&[]);
    let _worker = Worker::start(leader.port, &PROGRAMS, &["--name", "host-1"]);
    for (exec, more, code, ended, exit_code, signal) in [
        ("good", [].as_slice(), 0, "ok", json!(0), Value::Null),
        ("bad", &[], 1, "failed", json!(3), Value::Null),
        ("crash", &[], 1, "failed", Value::Null, json!(11)),
        ("hang", &["--time-limit", "200ms"], 1, "timed-out", Value::Null, Value::Null),
    ] {
        let submitted = json_of(&leader, &[&["submit", exec], more].concat(), code);
        let id = submitted["job_id"].as_str().unwrap();
        let got = json_of(&leader, &["result", "get", id], code);
        for result in [&submitted, &got] {
            let end = (&result["ended"], &result["exit_code"], &result["signal"]);
            assert_eq!(end, (&json!(ended), &exit_code, &signal), "{exec}: {result:#}");
            let place = (&result["worker_name"], &result["attempt"]);
            assert_eq!(place, (&json!("host-1"), &json!(1)), "{exec}: {result:#}");
            let times = [&result["queued_ms"], &result["ran_ms"]];
            assert!(
                result["worker"].is_string() && times.iter().all(|ms| ms.is_u64()),
                "{result:#}"
            );
        }
        let state = if code == 0 { "done" } else { "failed" };
        assert_eq!(show(&leader, id)["state"], state, "{exec}");
    }
}

#[test]
fn people_read_how_a_job_ended_and_where_it_ran_only_if_they_ask() {
    let leader = Leader::start(&[]);
    let _worker = Worker::start(leader.port, &PROGRAMS, &["--name", "host-1"]);
    for (line, end, shown) in [
        (
            ["crash"].as_slice(),
            "FAILED, it was ended by signal 11 (SIGSEGV)",
            "FAILED, signal 11 (SIGSEGV)",
        ),
        (
            &["hang", "--time-limit", "500ms"],
            "timed out: it ran longer than its --time-limit of 500ms",
            "FAILED, timed out: it ran longer than its --time-limit of 500ms",
        ),
    ] {
        let (code, out, err) = on(&leader, &[&["submit"], line].concat());
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        let id = err.lines().find_map(|line| line.strip_prefix("job ")).expect("its id");
        assert!(err.ends_with(&format!("heft: job {id} {end}\n")), "{err}");
        assert!(!err.contains("host-1"), "{err}");
        let (_, text, _) = on(&leader, &["job", "show", id]);
        assert!(text.contains(&format!("result      {shown}")), "{text}");
        // The name of a worker that is asked for stands before the verdict.
        let (_, _, err) = on(&leader, &["result", "get", id, "-v"]);
        let place = format!("heft: job {id}: worker host-1, attempt 1, queued ");
        let lines: Vec<&str> = err.lines().rev().take(2).collect();
        assert!(lines[1].starts_with(&place) && lines[1].contains(", ran "), "{err}");
        let (_, _, err) = on(&leader, &["result", "get", id, "-q"]);
        assert!(!err.contains("host-1") && err.contains(end), "{err}");
    }
}

#[test]
fn a_cancelled_job_is_cancelled_in_every_answer() {
    let leader = Leader::start(&[]);
    let (_, out, _) = on(&leader, &["submit", "hang", "--detach"]);
    let id = out.trim();
    let _worker = Worker::start(leader.port, &PROGRAMS, &[]);
    eventually("it runs", || show(&leader, id)["state"] == "running");
    on(&leader, &["cancel", id]);
    let got = json_of(&leader, &["result", "get", id], 1);
    assert_eq!((&got["ended"], &got["signal"]), (&json!("cancelled"), &Value::Null), "{got:#}");
    assert_eq!((&got["attempt"], got["worker"].is_string()), (&json!(1), true), "{got:#}");
    let shown = show(&leader, id);
    assert_eq!(shown["state"], "cancelled");
    assert!(shown["why"].as_str().unwrap().starts_with("cancelled by"), "{shown:#}");
    let (_, _, err) = on(&leader, &["result", "get", id]);
    assert!(err.contains(&format!("heft: job {id} was cancelled\n")), "{err}");
}

#[test]
fn a_classic_worker_says_less_and_the_leader_names_it_all_the_same() {
    let leader = Leader::start(&[]);
    let _classic = classic_worker(leader.port, &["--exec", "bad=fail"]);
    let result = json_of(&leader, &["submit", "bad"], 1);
    assert_eq!((&result["ended"], &result["signal"]), (&json!("failed"), &Value::Null));
    assert!(result["worker"].is_string() && result["ran_ms"].is_u64(), "{result:#}");
}

#[test]
fn dl05_a_job_that_ran_again_shows_the_attempts_of_all_its_runs_even_if_the_leader_was_killed() {
    let data = TempDir::new();
    let args = ["--data", data.text()];
    let leader = Leader::start(&args);
    let worker = Worker::start(leader.port, &PROGRAMS, &["--name", "host-1"]);
    let (_, out, _) = on(&leader, &["submit", "bad", "--detach"]);
    let id = out.trim();
    on(&leader, &["job", "wait", id]);
    let first = show(&leader, id)["attempts"].clone();
    assert_eq!(first.as_array().unwrap().len(), 1, "{first}");
    drop(worker);
    on(&leader, &["job", "retry", id]);
    let port = leader.port;
    drop(leader);
    let leader = Leader::start_on(port, &args);
    let worker = Worker::start(leader.port, &PROGRAMS, &["--name", "host-2"]);
    on(&leader, &["job", "wait", id]);
    let shown = show(&leader, id);
    let attempts: Vec<Value> = shown["attempts"]
        .as_array()
        .unwrap()
        .iter()
        .map(|attempt| {
            json!([
                attempt["run"],
                attempt["attempt"],
                attempt["why"],
                attempt["began_ms"].is_u64()
            ])
        })
        .collect();
    let expected = [json!([1, 1, "it ended FAILED", true]), json!([2, 2, "it ended FAILED", true])];
    assert_eq!(attempts, expected, "{shown:#}");
    assert_eq!(shown["attempts"][0]["worker"], first[0]["worker"], "{shown:#}");
    assert_eq!(shown["spent"], 0, "a result counts for nothing");
    let (_, text, _) = on(&leader, &["job", "show", id]);
    assert!(text.contains("RUN  ATTEMPT") && text.contains("  2        2  "), "{text}");
    drop(worker);
}

#[test]
fn an_attempt_without_its_program_says_what_the_worker_said() {
    let leader = Leader::start(&[]);
    let broken = Worker::start(leader.port, &[("tool", "true")], &["--name", "broken"]);
    // It is there, and cannot be started.
    let path = broken.dir.join("exe").join("tool");
    std::fs::write(&path, "#!/nonexistent/interpreter\n").unwrap();
    let (_, out, _) = on(&leader, &["submit", "tool", "--detach"]);
    let id = out.trim();
    on(&leader, &["job", "wait", id]);
    let shown = show(&leader, id);
    let why = shown["attempts"][0]["why"].as_str().unwrap_or_else(|| panic!("{shown:#}"));
    assert!(why.starts_with("the worker does not have the program, or cannot start it: "), "{why}");
    assert!(why.contains(path.to_str().unwrap()), "{why}");
}

#[test]
fn who_looks_at_a_terminal_sees_where_a_job_ran() {
    let leader = Leader::start(&[]);
    let _worker = Worker::start(leader.port, &PROGRAMS, &["--name", "host-1"]);
    let on_terminal = |more: &[&str]| {
        let mut command = Command::new("python3");
        command.arg("-S").arg(procs::root().join("tests/support/terminal.py")).arg("100");
        command.args([env!("CARGO_BIN_EXE_heft"), "submit", "good", "-l", &leader.addr()]);
        command.env("XDG_STATE_HOME", "/dev/null").env("XDG_CONFIG_HOME", "/nonexistent");
        command.env_remove("HEFT_OUTPUT").stdin(Stdio::null());
        let output = command.args(more).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = on_terminal(&[]);
    assert!(shown.contains(": worker host-1, attempt 1, queued "), "{shown}");
    for more in [["--progress", "none"].as_slice(), &["-q"]] {
        let shown = on_terminal(more);
        assert!(shown.contains("fine") && !shown.contains("host-1"), "{more:?}: {shown}");
    }
}
