//! The pairing matrix: leader, worker and client, each ours and classic, in all eight combinations;
//! and what only ours do.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use procs::{
    ECHO, Leader, Proc, TempDir, Worker, classic_client, classic_leader, classic_worker, heft,
};
use serde_json::{Value, json};
use std::process::Command;

const INPUT: &[u8] = b"some input, \xff not text";

enum AnyLeader {
    Ours(Leader),
    Classic { _proc: Proc, port: u16 },
}

impl AnyLeader {
    fn start(ours: bool) -> AnyLeader {
        if ours {
            return AnyLeader::Ours(Leader::start(&[]));
        }
        let (leader, port) = classic_leader();
        AnyLeader::Classic { _proc: leader, port }
    }

    fn port(&self) -> u16 {
        match self {
            AnyLeader::Ours(leader) => leader.port,
            AnyLeader::Classic { port, .. } => *port,
        }
    }
}

fn expected() -> String {
    use chunking::digest::{BlobHasher, to_hex};
    let mut hasher = BlobHasher::new(chunking::DigestKind::Sha256);
    hasher.update(INPUT, 0);
    format!("a b c\nin.bin {}\n", to_hex(&hasher.finish().bytes))
}

/// Runs one job through the combination; gives what it printed.
fn run_a_job(leader_ours: bool, worker_ours: bool, client_ours: bool) -> String {
    let leader = AnyLeader::start(leader_ours);
    let port = leader.port();
    let _worker: (Option<Worker>, Option<Proc>) = if worker_ours {
        (Some(Worker::start(port, &[("echo", ECHO)], &[])), None)
    } else {
        (None, Some(classic_worker(port, &["job.assign.*"])))
    };
    if client_ours {
        let dir = TempDir::new();
        let input = dir.join("in.bin");
        std::fs::write(&input, INPUT).unwrap();
        let addr = format!("127.0.0.1:{port}");
        let (code, stdout, stderr) =
            heft(&["submit", &addr, "echo", "--file", input.to_str().unwrap(), "--", "a", "b c"]);
        assert_eq!(code, Some(0), "{stderr}");
        return stdout;
    }
    let job = json!({"exec": "echo", "args": ["a", "b c"], "files": [{"name": "in.bin", "content_b64": base64(INPUT)}]});
    let (code, lines) = classic_client(port, "clientA", &[], &[job]).finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let result = events.into_iter().find(|event| event["event"] == "result").unwrap();
    assert_eq!(result["status"], "OK", "{result}");
    result["stdout"].as_str().unwrap().to_owned()
}

fn base64(bytes: &[u8]) -> String {
    use heft::model::{InputFile, JsonModel};
    let file: Value = serde_json::from_slice(&InputFile::inline("x", bytes).to_json()).unwrap();
    file["Content"].as_str().unwrap().to_owned()
}

macro_rules! pairings {
    ($($name:ident: $leader:literal, $worker:literal, $client:literal;)*) => {$(
        #[test]
        fn $name() {
            assert_eq!(run_a_job($leader, $worker, $client), expected());
        }
    )*};
}

pairings! {
    our_leader_our_worker_our_client: true, true, true;
    our_leader_our_worker_classic_client: true, true, false;
    our_leader_classic_worker_our_client: true, false, true;
    our_leader_classic_worker_classic_client: true, false, false;
    classic_leader_our_worker_our_client: false, true, true;
    classic_leader_our_worker_classic_client: false, true, false;
    classic_leader_classic_worker_our_client: false, false, true;
    classic_leader_classic_worker_classic_client: false, false, false;
}

#[test]
fn the_demo_shows_what_it_claims_and_leaves_nothing_behind() {
    let dir = TempDir::new();
    let (code, stdout, stderr) =
        heft(&["demo", "--dir", dir.text(), "--size", "32MiB", "--jobs", "20"]);
    assert_eq!((code, stderr.as_str()), (Some(0), ""), "{stdout}");
    assert!(stdout.contains("6 of 6 went as they should"), "{stdout}");
    assert!(stdout.lines().count() <= 60, "{stdout}");
    let too_long = stdout.lines().find(|line| line.chars().count() > 79);
    assert_eq!(too_long.filter(|line| !line.starts_with("Files in ")), None);
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0);

    // Programs run in other directories than the one that the path is relative to.
    let mut relative = Command::new(env!("CARGO_BIN_EXE_heft"));
    std::fs::create_dir(dir.join("ann's")).unwrap();
    relative.args(["demo", "--dir", "ann's", "--size", "8MiB", "--jobs", "5"]).current_dir(&dir.0);
    let ended = relative.output().unwrap();
    let shown = String::from_utf8_lossy(&ended.stdout);
    assert_eq!(ended.status.code(), Some(0), "{shown}");
    assert!(shown.contains("6 of 6 went as they should"), "{shown}");
    assert_eq!(std::fs::read_dir(dir.join("ann's")).unwrap().count(), 0);

    for (args, why) in [
        (["--size", "1MiB"], "--size 1 MiB is not between 8 MiB and 64 GiB"),
        (["--dir", "/nowhere"], "cannot use --dir /nowhere"),
    ] {
        let (code, stdout, stderr) = heft(&[&["demo"], &args[..]].concat());
        assert_eq!((code, stdout.as_str()), (Some(2), ""), "{stderr}");
        assert!(stderr.contains(why), "{stderr}");
    }
}

#[test]
fn s22_a_job_to_all_reaches_every_worker_and_comes_back_as_one() {
    let leader = Leader::start(&[]);
    let _ours = Worker::start(leader.port, &[("echo", ECHO)], &[]);
    let _classic = classic_worker(leader.port, &["job.assign.*"]);
    // Both have to be there when it is submitted.
    let addr = leader.addr();
    while heft(&["status", &addr, "--output", "json"]).1.matches("\"patterns\"").count() < 2 {}
    let (code, stdout, stderr) =
        heft(&["submit", &addr, "echo", "--all", "--output", "json", "--", "to", "all"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    let lines = shown["stdout"].as_str().unwrap().lines();
    let parts: Vec<Value> = lines.map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(parts.len(), 2, "{stdout}");
    assert!(parts.iter().all(|part| part["Result"]["Stdout"] == "to all\n"), "{stdout}");
    assert_ne!(parts[0]["Worker"], parts[1]["Worker"]);
}

#[test]
fn a_submit_rides_out_a_leader_that_goes_away_and_comes_back() {
    let mut leader = Leader::start(&[]);
    let port = leader.port;
    let addr = leader.addr();
    let dir = TempDir::new();
    let go = dir.join("go");
    // It ends once the file is there: that is after the leader's second life has begun.
    let script = format!(
        "touch {0}.begun; while [ ! -e {0} ]; do sleep 0.05; done; echo survived",
        go.display()
    );
    let _worker = Worker::start(port, &[("slow", &script)], &[]);
    let submit = std::thread::spawn(move || heft(&["submit", &addr, "slow"]));
    while !dir.join("go.begun").exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    leader.proc.kill();
    let _second_life = Leader::start_on(port, &[]);
    std::fs::write(&go, "").unwrap();
    let (code, stdout, stderr) = submit.join().unwrap();
    assert_eq!((code, stdout.as_str()), (Some(0), "survived\n"), "{stderr}");
}

#[test]
fn cancel_ends_a_job_that_runs_and_its_submit_says_so() {
    let leader = Leader::start(&[]);
    let addr = leader.addr();
    let dir = TempDir::new();
    let begun = dir.join("begun");
    let script = format!("touch {}; sleep 300", begun.display());
    let _worker = Worker::start(leader.port, &[("hang", &script)], &[]);
    let at = addr.clone();
    let submit = std::thread::spawn(move || heft(&["submit", &at, "hang", "--output", "json"]));
    while !begun.exists() {
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    let status: Value =
        serde_json::from_str(&heft(&["status", &addr, "--output", "json"]).1).unwrap();
    assert_eq!(status["jobs"]["running"], 1, "{status}");
    // The job's directory is named by its id.
    let jobs = std::fs::read_dir(_worker.dir.join("jobs/heft")).unwrap();
    let id = jobs
        .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse::<uuid::Uuid>().ok())
        .next()
        .unwrap();
    let (code, stdout, stderr) = heft(&["cancel", &addr, &id.to_string()]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    let (code, stdout, _) = submit.join().unwrap();
    let result: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!((code, &result["status"]), (Some(1), &json!("FAILED")), "{result}");
    assert!(result["stderr"].as_str().unwrap().contains("cancelled by"), "{result}");
}

#[test]
fn s22_a_job_to_all_that_would_not_fit_its_children_is_refused_at_the_door() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    // Our own JSON escapes what is not ASCII: three times the bytes.
    let request = format!(
        r#"{{"ExecName":"echo","Args":["{}"],"Files":[],"Deliver":"all"}}"#,
        "é".repeat(900_000)
    );
    let job = json!({"raw_b64": base64(request.as_bytes()), "subject": "job.submit.echo"});
    let mut client = classic_client(leader.port, "clientA", &[], &[job]);
    let refused = client.event("result");
    assert_eq!(refused["status"], "FAILED");
    assert!(
        refused["stderr"].as_str().unwrap().contains("the limit is 4194304"),
        "{}",
        refused["stderr"]
    );
    let mut after = classic_client(leader.port, "clientA", &[], &[json!({"exec": "echo"})]);
    assert_eq!(after.event("result")["status"], "OK", "the worker is still there");
    worker.event("assigned");
}

#[test]
fn results_are_kept_within_their_bytes_and_jobs_are_not_refused_for_them() {
    let leader = Leader::start(&["--result-max", "5MiB", "--payload-max", "5MiB"]);
    let addr = leader.addr();
    let _worker = Worker::start(
        leader.port,
        &[("two", "head -c 2000000 /dev/urandom > made.bin; echo done")],
        &[],
    );
    for _ in 0..5 {
        let (code, stdout, stderr) = heft(&["submit", &addr, "two"]);
        assert_eq!((code, stdout.as_str()), (Some(0), "done\n"), "{stderr}");
    }
    let status: Value =
        serde_json::from_str(&heft(&["status", &addr, "--output", "json"]).1).unwrap();
    let held = status["leader"]["result_bytes"].as_u64().unwrap();
    assert!(held > 0 && held <= 5 << 20, "{status}");
    assert_eq!(status["leader"]["payload_bytes"], 0, "{status}");
}
