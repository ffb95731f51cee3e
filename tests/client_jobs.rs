//! `heft job` with real processes: jobs that are left with the leader are found, shown, waited for
//! and cancelled, over leaders that are killed, with one job and with very many.
//!
//! `HEFT_TEST_SCALE=long` lists 1,000,000 jobs.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    dead_code
)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/log_records.rs"]
mod log_records;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chunking::DigestKind;
use chunking::digest::to_hex;
use heft::store;
use heft::store::disk::{DataDir, Disk};
use noise::noise;
use procs::{Leader, Proc, TempDir, Worker, eventually, heft, heft_with};
use serde_json::Value;
use support::scaled;
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// Runs `heft job WHAT -l LEADER ARGS`; it has to end with this code.
fn job_code(code: i32, leader: &Leader, what: &str, args: &[&str]) -> String {
    let (found, out, err) = heft(&[&["job", what, "-l", &leader.addr()], args].concat());
    assert_eq!(found, Some(code), "{what} {args:?}: {out}{err}");
    out
}

fn job(leader: &Leader, what: &str, args: &[&str]) -> String {
    job_code(0, leader, what, args)
}

fn json(leader: &Leader, what: &str, args: &[&str]) -> Value {
    let out = job(leader, what, &[args, &["--output", "json"]].concat());
    serde_json::from_str(&out).unwrap()
}

/// Leaves a job with the leader; its id.
fn detached(leader: &Leader, exec: &str, args: &[&str]) -> String {
    let addr = leader.addr();
    let line = [&["submit", &addr, exec, "--detach"], args].concat();
    let (code, out, err) = heft(&line);
    // That there is no worker yet may be said, and nothing more.
    let is_said = |line: &str| line.starts_with("job ");
    assert_eq!((code, err.lines().any(is_said)), (Some(0), false), "{out}{err}");
    let id = out.strip_suffix('\n').expect("a line").to_owned();
    assert!(id.parse::<Uuid>().is_ok(), "the id and nothing else: {out}");
    id
}

fn ids(page: &Value) -> Vec<String> {
    let id = |row: &Value| row["job_id"].as_str().unwrap().to_owned();
    page["jobs"].as_array().unwrap().iter().map(id).collect()
}

fn state(leader: &Leader, id: &str) -> String {
    json(leader, "show", &[id])["state"].as_str().unwrap().to_owned()
}

/// A program that says that it runs, and ends when its file is gone.
fn until_gone(file: &std::path::Path) -> String {
    let file = file.to_str().unwrap();
    format!(
        "echo begun; touch {file}.begun; while [ -e {file} ]; do sleep 0.05; done; cat in.bin 2>/dev/null | sha256sum"
    )
}

#[test]
fn a_job_that_was_left_is_found_shown_and_fetched_with_its_inputs_and_nobody_else_has_its_result() {
    for durability in ["disk", "memory"] {
        let leader = Leader::start(&["--durability", durability]);
        let files = TempDir::new();
        let file = files.join("in.bin");
        fs::write(&file, noise(6 * MIB, 1)).unwrap();
        let path = file.to_str().unwrap();
        let args = ["--tag", "night", "--file", path, "--", "--mode=fast", "two words"];
        let id = detached(&leader, "sums", &args);
        // Whoever left it has nothing more to give.
        fs::remove_file(&file).unwrap();

        let shown = json(&leader, "show", &[&id]);
        assert_eq!((&shown["state"], &shown["uploading"]), (&"queued".into(), &false.into()));
        assert_eq!((&shown["exec"], &shown["tag"]), (&"sums".into(), &"night".into()));
        assert_eq!(shown["request"]["args"], serde_json::json!(["--mode=fast", "two words"]));
        let input = &shown["request"]["inputs"][0];
        assert_eq!((&input["name"], &input["from"]), (&"in.bin".into(), &"transfer".into()));
        assert_eq!(input["size"], 6 * MIB);
        let waits = shown["waits"]["text"].as_str().unwrap();
        assert!(waits.contains("matches"), "{waits}");
        assert!(shown["submitted_ms"].is_u64() && shown["assigned_ms"].is_null(), "{shown}");

        let script = "sha256sum < in.bin; echo \"$*\" >&2; exit 3";
        let worker = Worker::start(leader.port, &[("sums", script)], &[]);
        assert_eq!(job_code(1, &leader, "wait", &[&id]), format!("{id} failed\n"));
        let shown = json(&leader, "show", &[&id]);
        assert_eq!(
            (&shown["state"], &shown["delivered"], &shown["result"]["exit_code"]),
            (&"failed".into(), &false.into(), &3.into()),
            "{shown:#}"
        );
        let attempts = shown["attempts"].as_array().unwrap();
        assert_eq!((attempts.len(), &attempts[0]["why"]), (1, &"it ended FAILED".into()));
        let ms = |value: &Value| value.as_u64().unwrap_or_else(|| panic!("{shown:#}"));
        assert!(ms(&shown["submitted_ms"]) >= ms(&attempts[0]["began_ms"]));
        assert!(ms(&attempts[0]["began_ms"]) >= ms(&attempts[0]["ended_ms"]));
        assert_eq!(attempts[0]["worker"], shown["worker"]);
        let listed = json(&leader, "ls", &["--mine", "--state", "failed", "--exec", "sums"]);
        assert_eq!((ids(&listed), &listed["more"]), (vec![id.clone()], &false.into()));
        for none in [["--state", "done"], ["--tag", "day"], ["--exec", "sum"], ["--client", "x"]] {
            assert_eq!(ids(&json(&leader, "ls", &none)), [""; 0], "{none:?}");
        }
        let table = job(&leader, "ls", &[]);
        assert!(table.contains(&id) && table.contains("night"), "{table}");
        let text = job(&leader, "show", &[&id]);
        assert!(
            text.contains("args        --mode=fast 'two words'\n") || text.contains("exit code 3")
        );

        let (code, out, err) = heft(&["result", "get", &leader.addr(), &id]);
        assert_eq!((code, err.contains("--mode=fast two words")), (Some(1), true), "{err}");
        assert!(out.ends_with("  -\n"), "{out}");
        drop(worker);
    }
}

#[test]
fn a_worker_that_is_killed_costs_a_left_job_nothing_although_its_client_is_gone() {
    for durability in ["disk", "memory"] {
        let leader = Leader::start(&["--durability", durability, "--lease", "2s"]);
        let files = TempDir::new();
        let (file, gate) = (files.join("in.bin"), files.join("gate"));
        let bytes = noise(6 * MIB, 3);
        fs::write(&file, &bytes).unwrap();
        fs::write(&gate, b"").unwrap();
        let script = until_gone(&gate);
        let mut first = Worker::start(leader.port, &[("holds", &script)], &[]);
        // A worker takes it while it is uploaded: the leader keeps it all the same.
        let id = detached(&leader, "holds", &["--file", file.to_str().unwrap()]);
        fs::remove_file(&file).unwrap();
        eventually("the job runs", || files.join("gate.begun").exists());
        first.proc.kill();
        fs::remove_file(&gate).unwrap();
        let _second = Worker::start(leader.port, &[("holds", &script)], &[]);
        assert_eq!(job(&leader, "wait", &[&id]), format!("{id} done\n"), "{durability}");
        let shown = json(&leader, "show", &[&id]);
        let attempts = shown["attempts"].as_array().unwrap();
        assert_eq!(attempts.len(), 2, "{shown:#}");
        assert!(attempts[0]["ended_ms"].is_u64() && attempts[0]["why"] != "", "{shown:#}");
        let (_, out, _) = heft(&["result", "get", &leader.addr(), &id]);
        let digest = to_hex(&blobs::digest(&bytes, DigestKind::Sha256).bytes);
        assert!(out.contains(&digest), "{out}");
    }
}

#[test]
fn waiting_goes_on_while_the_leader_is_killed_and_started_again() {
    let data = TempDir::new();
    let leader = Leader::start(&["--data", data.text()]);
    let files = TempDir::new();
    let gate = files.join("gate");
    fs::write(&gate, b"").unwrap();
    let _worker = Worker::start(leader.port, &[("holds", &until_gone(&gate))], &["--max-par", "4"]);
    let jobs: Vec<String> =
        (0..3).map(|_| detached(&leader, "holds", &["--tag", "night"])).collect();
    let wait = |args: &[&str]| {
        let mut command = Command::new("sh");
        command.arg("-c").arg("exec \"$0\" \"$@\" 2>&1").arg(env!("CARGO_BIN_EXE_heft"));
        command.args(["job", "wait", "-l", &leader.addr()]).args(args);
        Proc::start("heft job wait", &mut command)
    };
    let (mut all, mut any) = (wait(&["--tag", "night"]), wait(&["--any", &jobs[0], &jobs[1]]));
    eventually("the jobs run", || files.join("gate.begun").exists());
    eventually("both have reached the leader", || {
        let (_, out, _) = heft(&["status", &leader.addr(), "--output", "json"]);
        let status: Value = serde_json::from_str(&out).unwrap();
        // The third is who asks for that.
        status["leader"]["connections"].as_u64().unwrap() >= 4
    });
    let port = leader.port;
    drop(leader);
    let leader = Leader::start_on(port, &["--data", data.text()]);
    assert!(!all.has_ended() && !any.has_ended());
    fs::remove_file(&gate).unwrap();
    let (code, lines) = all.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    for id in &jobs {
        assert!(lines.contains(&format!("{id} done")), "{lines:#?}");
    }
    let (code, lines) = any.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    // More than one, if they had ended when it came back.
    assert!(lines.iter().any(|line| line.ends_with(" done")), "{lines:#?}");
    // They are still listed, with their tag and their times.
    let listed = json(&leader, "ls", &["--tag", "night"]);
    let newest_first: Vec<String> = jobs.iter().rev().cloned().collect();
    assert_eq!(ids(&listed), newest_first);
    for row in listed["jobs"].as_array().unwrap() {
        assert!(row["submitted_ms"].as_u64() >= row["assigned_ms"].as_u64(), "{row}");
        assert!(row["assigned_ms"].is_u64() && row["ended_ms"].is_u64(), "{row}");
    }
}

#[test]
fn jobs_with_a_tag_are_cancelled_together_and_others_stay() {
    let leader = Leader::start(&[]);
    let tagged: Vec<String> =
        (0..5).map(|_| detached(&leader, "calc", &["--tag", "night"])).collect();
    let other = detached(&leader, "calc", &["--tag", "night-2"]);
    let out = job(&leader, "cancel", &["--tag", "night"]);
    let cancelled: BTreeSet<&str> = out.lines().collect();
    let expected: Vec<String> =
        tagged.iter().map(|id| format!("{id} cancelled; it was queued")).collect();
    assert_eq!(cancelled, expected.iter().map(String::as_str).collect());
    for id in &tagged {
        let shown = json(&leader, "show", &[id]);
        assert_eq!(shown["state"], "cancelled");
        // By the name of the user who did it.
        assert!(shown["why"].as_str().unwrap().contains('@'), "{shown}");
    }
    assert_eq!(state(&leader, &other), "queued");
    let again = job(&leader, "cancel", &["--tag", "night"]);
    assert_eq!(again, "");
    assert_eq!(job_code(1, &leader, "wait", &["--tag", "night"]).lines().count(), 5);
    let unknown = Uuid::nil().to_string();
    let out = job_code(1, &leader, "cancel", &[&other, &unknown, &tagged[0]]);
    assert_eq!(out, format!("{other} cancelled; it was queued\n"), "others are said apart");
    assert_eq!(ids(&json(&leader, "ls", &["--state", "queued,running"])), [""; 0]);
}

#[test]
fn last_means_the_newest_job_to_every_command() {
    let (leader, state) = (Leader::start(&[]), TempDir::new());
    let (addr, run) = (leader.addr(), |args: &[&str]| heft_with(args, &state.0));
    let mut jobs = Vec::new();
    for _ in 0..2 {
        let (code, out, err) = run(&["submit", &addr, "sums", "--detach"]);
        assert_eq!(code, Some(0), "{err}");
        jobs.push(out.trim().to_owned());
    }
    for args in [
        &["job", "show", "-l", &addr, "last"][..],
        &["explain", &addr, "last"],
        &["result", "get", &addr, "last"],
    ] {
        let (_, out, err) = run(args);
        assert!(format!("{out}{err}").contains(&jobs[1]), "{args:?}: {out}{err}");
    }
    let (code, out, _) = run(&["job", "cancel", "-l", &addr, "last"]);
    assert_eq!((code, out), (Some(0), format!("{} cancelled; it was queued\n", jobs[1])));
    let (code, out, _) = run(&["job", "wait", "-l", &addr, "last"]);
    assert_eq!((code, out), (Some(1), format!("{} cancelled\n", jobs[1])));
    // A job that is waited for is noted once the leader has it, and names itself.
    let worker = Worker::start(leader.port, &[("sums", "echo done")], &[]);
    let (code, out, err) = run(&["submit", &addr, "sums"]);
    assert_eq!((code, out.as_str()), (Some(0), "done\n"));
    // That it waits for the worker may be said, too.
    let id = err.lines().find_map(|line| line.strip_prefix("job ")).unwrap();
    let (code, out, _) = run(&["job", "wait", "-l", &addr, "last"]);
    assert_eq!((code, out), (Some(0), format!("{id} done\n")));
    drop(worker);
}

/// A data directory of a leader that has so many jobs in its queue.
fn with_jobs(jobs: u64) -> TempDir {
    let data = TempDir::new();
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(&data.0).unwrap());
    let opened = store::open(&disk, 0, Uuid::from_u128(77), 64 << 20).unwrap();
    let mut journal = opened.journal;
    for first in (1..=jobs).step_by(1_000) {
        let some = first..=jobs.min(first + 999);
        journal
            .run(some.map(|number| log_records::append(log_records::enqueue(number, 40))), &|| 0);
    }
    data
}

fn rss_kib(leader: &Leader) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", leader.proc.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn very_many_jobs_are_listed_page_by_page_and_the_leader_keeps_its_memory() {
    let jobs = u64::from(scaled(30_000, 1_000_000));
    let data = with_jobs(jobs);
    let leader = Leader::start(&["--data", data.text()]);
    let id = |number: u64| Uuid::from_u128(number.into()).to_string();
    let newest: Vec<String> = (0..100).map(|back| id(jobs - back)).collect();
    let before = rss_kib(&leader);
    let began = Instant::now();
    let listed = json(&leader, "ls", &[]);
    let page = began.elapsed();
    assert_eq!((ids(&listed), &listed["more"]), (newest, &true.into()));
    let (code, out, err) = heft(&["status", "-l", &leader.addr(), "-o", "json"]);
    let counted = began.elapsed() - page;
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["jobs"]["queued"], jobs);
    println!("{jobs} jobs: a page in {page:?}, status in {counted:?}");
    if jobs == 1_000_000 {
        assert!(page < Duration::from_secs(1) && counted < Duration::from_secs(1));
    }
    let all = json(&leader, "ls", &["--limit", "100000000"]);
    let all = ids(&all);
    assert_eq!(all.len() as u64, jobs);
    assert_eq!((all.first(), all.last()), (Some(&id(jobs)), Some(&id(1))));
    assert_eq!(all.iter().collect::<BTreeSet<_>>().len() as u64, jobs, "each once");
    // What nothing fits is looked for to the end, a part at a time.
    assert_eq!(ids(&json(&leader, "ls", &["--tag", "none", "--state", "queued"])), [""; 0]);
    assert_eq!(ids(&json(&leader, "ls", &["--since", "1h"])), [""; 0], "they are old");
    let grown = rss_kib(&leader).saturating_sub(before);
    assert!(grown < 64 << 10, "the leader's memory grew by {grown} KiB");
}
