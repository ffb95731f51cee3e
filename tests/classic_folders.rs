//! Jobs whose files are in folders, of any size: they go to workers that take such names, and to
//! classic ones only without the folders, where the job says so (C08, WX08).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use chunking::Kind;
use chunking::dataset::sha256;
use chunking::digest::to_hex;
use noise::noise;
use procs::{Leader, TempDir, Worker, agent, classic_client, classic_worker, heft};
use raw::Raw;
use serde_json::{Value, json};
use uuid::Uuid;

/// Says where its files are, and what is in them.
const FIND: &str = "find . -type f -exec sha256sum {} +";

fn workers(leader: &Leader, count: usize) {
    while heft(&["status", &leader.addr(), "--output", "json"]).1.matches("\"patterns\"").count()
        < count
    {}
}

/// Two files of a job, in folders: `data/a.bin` and `cfg/b.bin`.
struct Inputs(TempDir);

impl Inputs {
    fn new(bytes: usize) -> Inputs {
        let dir = TempDir::new();
        std::fs::write(dir.join("a"), noise(bytes, 1)).unwrap();
        std::fs::write(dir.join("b"), noise(100, 2)).unwrap();
        Inputs(dir)
    }

    fn submit(
        &self,
        leader: &Leader,
        names: [&str; 2],
        more: &[&str],
    ) -> (Option<i32>, String, String) {
        let [a, b] = [("a", names[0]), ("b", names[1])]
            .map(|(file, name)| format!("{}={name}", self.0.join(file).to_str().unwrap()));
        heft(&[&["submit", &leader.addr(), "echo", "--file", &a, "--file", &b], more].concat())
    }
}

const NAMES: [&str; 2] = ["data/a.bin", "cfg/b.bin"];

fn submit(client: &mut Raw, job: Uuid, names: [&str; 2], more: &str) {
    let [a, b] = names;
    let request = format!(
        r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Args":[],"Files":[{{"Name":"{a}","CacheId":null,"Content":"QQ=="}},{{"Name":"{b}","CacheId":null,"Content":"Qg=="}}]{more}}}"#
    );
    client.send(Kind::SubmitJob, job, Uuid::nil(), "job.submit.echo", request.as_bytes());
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
}

#[test]
fn c08_small_jobs_with_files_in_folders_go_to_the_heft_worker_alone() {
    let leader = Leader::start(&[]);
    let classic = classic_worker(leader.port, &["job.assign.*"]);
    let _heft = Worker::start(leader.port, &[("echo", FIND)], &["--max-par", "1"]);
    workers(&leader, 2);
    let inputs = Inputs::new(10);
    for _ in 0..4 {
        let (code, stdout, stderr) = inputs.submit(&leader, NAMES, &["--require-worker"]);
        assert_eq!(code, Some(0), "{stderr}");
        assert!(stdout.contains("./data/a.bin") && stdout.contains("./cfg/b.bin"), "{stdout}");
    }
    assert_eq!(classic.said("\"assigned\""), None);
}

#[test]
fn c08_where_there_are_only_classic_workers_such_a_job_waits_and_says_for_what_also_after_a_restart()
 {
    let dir = TempDir::new();
    let data = dir.join("data");
    let args = ["--data", data.to_str().unwrap()];
    let leader = Leader::start(&args);
    let _classic = classic_worker(leader.port, &["job.assign.*"]);
    let (code, _, stderr) = Inputs::new(10).submit(&leader, NAMES, &["--require-worker"]);
    assert_ne!(code, Some(0));
    assert!(
        stderr.contains("take no files in folders") && stderr.contains("--flatten"),
        "{stderr}"
    );
    // A name need not be in a folder for a classic worker to refuse it.
    let dots = ["a..b", "c"];
    let (code, _, stderr) = Inputs::new(10).submit(&leader, dots, &["--require-worker"]);
    assert_ne!(code, Some(0));
    assert!(
        stderr.contains("or with \"..\" in their names") && stderr.contains("plain names"),
        "{stderr}"
    );
    let mut client = Raw::client(&leader, "c");
    // Flattened they would be one file: that waits, too. The last two no worker takes, so that any
    // may say so.
    let [plain, clash, flat, bad] = [(); 4].map(|()| Uuid::new_v4());
    submit(&mut client, plain, NAMES, "");
    submit(&mut client, clash, ["x/a.bin", "y/A.bin"], r#","Flatten":true"#);
    let expect_waiting = |client: &mut Raw, job: Uuid| {
        let why = client.ask("explain", &json!({"job_id": job}));
        assert_eq!(
            (&why["phase"], &why["waits"]["for"]),
            (&json!("queued"), &json!("folders-worker")),
            "{why}"
        );
        assert_eq!(why["workers"][0]["verdict"], "no-folders", "{why}");
    };
    expect_waiting(&mut client, plain);
    expect_waiting(&mut client, clash);
    let port = leader.port;
    drop((client, leader));
    let leader = Leader::start_on(port, &args);
    let mut classic = classic_worker(leader.port, &["job.assign.*", "--exec", "echo=cache"]);
    let mut client = Raw::client(&leader, "c");
    submit(&mut client, flat, NAMES, r#","Flatten":true"#);
    let result: Value = serde_json::from_slice(&client.next().unwrap().payload).unwrap();
    assert_eq!(result["Status"], "OK", "{result}");
    submit(&mut client, bad, ["../a", "b"], "");
    let result: Value = serde_json::from_slice(&client.next().unwrap().payload).unwrap();
    assert_eq!(
        (&result["Status"], &result["Stderr"]),
        (&json!("FAILED"), &json!("invalid file name"))
    );
    expect_waiting(&mut client, plain);
    expect_waiting(&mut client, clash);
    assert_eq!(classic.event("assigned")["job_id"], flat.to_string());
    assert_eq!(classic.event("assigned")["job_id"], bad.to_string());
    // As a client does that has lost its connection.
    submit(&mut client, plain, NAMES, "");
    submit(&mut client, clash, ["x/a.bin", "y/A.bin"], r#","Flatten":true"#);
    let _heft = Worker::start(leader.port, &[("echo", FIND)], &[]);
    for _ in 0..2 {
        // It also hears that they run.
        let mut frames = std::iter::from_fn(|| client.next());
        let result = frames.find(|frame| frame.kind != Kind::Progress).unwrap();
        let ended: Value = serde_json::from_slice(&result.payload).unwrap();
        assert_eq!((result.kind, &ended["Status"]), (Kind::Result, &json!("OK")), "{ended}");
        assert!([plain, clash].contains(&result.msg_id));
    }
}

#[test]
fn c08_flatten_lets_a_classic_worker_have_the_names_without_folders_and_changes_nothing_for_ours() {
    let leader = Leader::start(&[]);
    let mut classic = classic_worker(leader.port, &["job.assign.*"]);
    let inputs = Inputs::new(10);
    let (code, stdout, stderr) = inputs.submit(&leader, NAMES, &["--flatten", "--require-worker"]);
    assert_eq!(code, Some(0), "{stderr}");
    let hashed =
        |name: &str, bytes: usize, seed| format!("{name} {}", to_hex(&sha256(&noise(bytes, seed))));
    for line in [hashed("a.bin", 10, 1), hashed("b.bin", 100, 2)] {
        assert!(stdout.lines().any(|found| found == line), "{line}: {stdout}");
    }
    let files = classic.event("assigned")["files"].clone();
    assert_eq!((&files[0]["name"], &files[1]["name"]), (&json!("a.bin"), &json!("b.bin")));
    let (code, _, stderr) = inputs.submit(&leader, ["x/a.bin", "y/A.bin"], &["--flatten"]);
    assert_eq!(code, Some(2), "{stderr}");
    assert!(
        stderr.contains("--flatten: \"x/a.bin\" and \"y/A.bin\" would be the same file"),
        "{stderr}"
    );
    drop(classic);
    let _heft = Worker::start(leader.port, &[("echo", FIND)], &[]);
    let (code, stdout, stderr) = inputs.submit(&leader, NAMES, &["--flatten"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains("./data/a.bin") && stdout.contains("./cfg/b.bin"), "{stdout}");
}

#[test]
fn c08_to_all_means_those_that_take_the_names_and_with_flatten_all() {
    let leader = Leader::start(&[]);
    let mut classic = classic_worker(leader.port, &["job.assign.*"]);
    let _heft = Worker::start(leader.port, &[("echo", FIND)], &[]);
    workers(&leader, 2);
    let inputs = Inputs::new(10);
    for (more, workers) in [(&["--all"][..], 1), (&["--all", "--flatten"], 2)] {
        let (code, stdout, stderr) =
            inputs.submit(&leader, NAMES, &[more, &["--output", "json"]].concat());
        assert_eq!(code, Some(0), "{stderr}");
        let result: Value = serde_json::from_str(&stdout).unwrap();
        assert_eq!(result["workers"].as_array().map(Vec::len), Some(workers), "{stdout}");
    }
    assert_eq!(classic.event("assigned")["files"][0]["name"], "a.bin");
}

#[test]
fn c01_large_files_in_folders_reach_a_classic_worker_by_its_agent_only_flattened() {
    let leader = Leader::start(&[]);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let mut classic = classic_worker(leader.port, &["job.assign.*", "--cache-dir", cache.text()]);
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    let inputs = Inputs::new(6_000_000);
    let (code, _, stderr) = inputs.submit(&leader, NAMES, &["--require-worker"]);
    assert_ne!(code, Some(0));
    assert!(stderr.contains("take no files in folders"), "{stderr}");
    let (code, stdout, stderr) = inputs.submit(&leader, NAMES, &["--require-worker", "--flatten"]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(&to_hex(&sha256(&noise(6_000_000, 1)))), "{stdout}");
    let assigned = classic.event("assigned");
    let id = assigned["job_id"].as_str().unwrap().replace('-', "");
    let file = &assigned["files"][0];
    assert_eq!(
        (&file["name"], &file["cache_id"]),
        (&json!("a.bin"), &json!(format!("heft-job-{id}/data/a.bin")))
    );
}

#[test]
fn c08_a_flattened_job_finds_the_folders_of_a_dataset_at_a_worker_with_the_cache_patch() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let mut patched = classic_worker(
        leader.port,
        &["job.assign.*", "--cache-patch", "--cache-dir", cache.text()],
    );
    let put = json!({"cache_put": {"cache_id": "set-1", "entries": [
        {"name": "data/a.bin", "content_b64": "b25l"}, {"name": "b.bin", "content_b64": "dHdv"}],
        "target": "job.assign.*"}, "acks": 1});
    let mut putter = classic_client(leader.port, "putter", &[], &[put]);
    assert_eq!(putter.event("cache_ack")["status"], "OK");
    let addr = leader.addr();
    let cached = ["--cache", "set-1/data/a.bin", "--cache", "set-1/b.bin=other/c.bin"];
    let (code, stdout, stderr) =
        heft(&[&["submit", &addr, "echo", "--flatten"], &cached[..]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    for (name, content) in [("a.bin", "one"), ("c.bin", "two")] {
        let line = format!("{name} {}", to_hex(&sha256(content.as_bytes())));
        assert!(stdout.contains(&line), "{line}: {stdout}");
    }
    assert_eq!(patched.event("assigned")["files"][0]["cache_id"], "set-1/data/a.bin");
}
