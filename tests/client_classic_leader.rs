//! Our commands at a classic leader: what it would silently do otherwise is refused with the
//! reason, what it ignores is said, and what only asks says what the leader looks like.

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

use std::thread;

use procs::{TempDir, classic_leader, classic_worker, heft};

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";

#[test]
fn what_a_classic_leader_would_do_otherwise_is_refused_and_not_sent() {
    let (mut leader, port) = classic_leader();
    let files = TempDir::new();
    let file = files.join("a.bin");
    std::fs::write(&file, "bytes").unwrap();
    let (plain, folder) = (file.display().to_string(), format!("{}=data/a.bin", file.display()));
    let cases: [(&str, Vec<&str>); 6] = [
        ("--all", vec!["--all"]),
        ("--require-worker", vec!["--require-worker"]),
        ("--raw", vec!["--raw", "--file", &plain]),
        ("--flatten", vec!["--flatten", "--file", &folder]),
        ("--subject groupB", vec!["--subject", "groupB"]),
        ("--all", vec!["--all", "--output", "json"]),
    ];
    let address = format!("127.0.0.1:{port}");
    thread::scope(|scope| {
        for (option, args) in &cases {
            let address = &address;
            scope.spawn(move || {
                let words =
                    ["submit", address, "calcA", "--connect-wait", "2s", "--timeout", "30s"];
                let (code, out, err) = heft(&[&words[..], args].concat());
                assert_eq!(code, Some(3), "{args:?}: {out}{err}");
                let said = format!("{out}{err}");
                assert!(said.contains("classic") && said.contains(option), "{args:?}: {said}");
                if args.contains(&"json") {
                    let failure: serde_json::Value = serde_json::from_str(&out).unwrap();
                    assert_eq!(
                        (&failure["status"], &failure["reason"]),
                        (&"ERROR".into(), &"no-welcome".into())
                    );
                }
            });
        }
    });
    leader.terminate();
    leader.wait_for("its end", |line| line.contains("\"leader\"").then_some(()));
    assert!(leader.said("\"submitted\"").is_none(), "a job was sent");
}

#[test]
fn what_a_classic_leader_ignores_is_said_and_the_job_runs() {
    let (_leader, port) = classic_leader();
    let _worker = classic_worker(port, &["job.assign.*"]);
    let address = format!("127.0.0.1:{port}");
    let words =
        ["submit", &address, "echo", "--priority", "3", "--time-limit", "20s", "--timeout", "30s"];
    let (code, out, err) = heft(&[&words[..], &["--", "hello"]].concat());
    assert_eq!(code, Some(0), "{out}{err}");
    for part in ["treating it as a classic leader", "(--priority)", "(--time-limit)"] {
        assert!(err.contains(part), "{err}");
    }
    let (code, _, err) = heft(&["submit", &address, "echo", "--timeout", "30s"]);
    assert_eq!((code, err.contains("classic")), (Some(0), false), "{err}");
    let (code, out, err) = heft(&["submit", &address, "echo", "--timeout", "30s", "-o", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(shown["ended"] == "ok" && shown["worker"].is_null(), "{shown:#}");
}

#[test]
fn those_that_only_ask_say_what_the_leader_looks_like() {
    let (_leader, port) = classic_leader();
    let address = format!("127.0.0.1:{port}");
    let questions: [Vec<&str>; 8] = [
        vec!["status", &address],
        vec!["cancel", &address, JOB],
        vec!["explain", &address, JOB],
        vec!["result", "get", &address, JOB],
        vec!["dlq", &address, "ls"],
        vec!["blob", &address, "ls"],
        vec!["dataset", &address, "ls"],
        vec!["submit", &address, "calcA", "--cache", "set-1"],
    ];
    thread::scope(|scope| {
        for question in &questions {
            scope.spawn(move || {
                let (code, out, err) =
                    heft(&[&question[..], &["--connect-wait", "500ms"]].concat());
                assert_eq!(code, Some(3), "{question:?}: {out}{err}");
                assert!(
                    err.contains("the leader may be busy, or a classic one"),
                    "{question:?}: {err}"
                );
            });
        }
    });
}
