//! `heft job retry` with real processes: jobs that failed run again without another upload, over a
//! leader that is killed, as long as nobody needs the room.

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
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use chunking::DigestKind;
use chunking::digest::to_hex;
use noise::noise;
use procs::{Leader, TempDir, Worker, classic_worker, eventually, heft, heft_with};
use serde_json::{Value, json};
use uuid::Uuid;

const MIB: usize = 1 << 20;

fn on(leader: &Leader, args: &[&str]) -> (Option<i32>, String, String) {
    heft(&[args, &["-l", &leader.addr()]].concat())
}

/// What a command prints that ends well.
fn done(leader: &Leader, args: &[&str]) -> String {
    let (code, out, err) = on(leader, args);
    assert_eq!(code, Some(0), "{args:?}: {out}{err}");
    out
}

fn json(leader: &Leader, args: &[&str]) -> Value {
    serde_json::from_str(&done(leader, &[args, &["-o", "json"]].concat())).unwrap()
}

/// Leaves a job with a file with the leader; its id.
fn detached(leader: &Leader, exec: &str, file: &Path, args: &[&str]) -> String {
    let file = ["submit", exec, "--detach", "--file", file.to_str().unwrap()];
    done(leader, &[&file, args].concat()).trim().to_owned()
}

fn wait(leader: &Leader, id: &str, state: &str) {
    let (_, out, err) = on(leader, &["job", "wait", id]);
    assert_eq!(out, format!("{id} {state}\n"), "{err}");
}

fn retained(leader: &Leader) -> (u64, u64) {
    let status = json(leader, &["status"]);
    let number = |name: &str| status["leader"][name].as_u64().unwrap();
    (number("retained_jobs"), number("retained_bytes"))
}

/// A file of noise, and its digest as `sha256sum` prints it.
fn input(files: &TempDir, bytes: usize) -> (std::path::PathBuf, String) {
    let path = files.join("in.bin");
    let bytes = noise(bytes, bytes as u64);
    let hex = to_hex(&blobs::digest(&bytes, DigestKind::Sha256).bytes);
    fs::write(&path, bytes).unwrap();
    (path, format!("{hex}  -\n"))
}

const GOOD: &str = "sha256sum < in.bin";

#[test]
fn dl05_a_job_whose_program_was_wrong_runs_again_from_what_the_leader_has_even_if_it_was_killed() {
    let (data, files) = (TempDir::new(), TempDir::new());
    let args = ["--data", data.text()];
    let leader = Leader::start(&args);
    let (path, digest) = input(&files, 6 * MIB);
    let id = detached(&leader, "sums", &path, &["--tag", "night"]);
    fs::remove_file(&path).unwrap();
    let worker = Worker::start(leader.port, &[("sums", "echo wrong; exit 3")], &[]);
    wait(&leader, &id, "failed");
    assert!(done(&leader, &["job", "show", &id]).contains(&format!("heft job retry {id}\n")));
    let (jobs, bytes) = retained(&leader);
    assert!(jobs == 1 && bytes >= 6 * MIB as u64, "{jobs} jobs, {bytes} bytes");
    drop(worker);

    // The leader is killed before the retry, and behind it.
    let port = leader.port;
    drop(leader);
    let leader = Leader::start_on(port, &args);
    assert_eq!(retained(&leader), (jobs, bytes));
    let out = done(&leader, &["job", "retry", &id]);
    assert_eq!(out, format!("{id} is queued again; this is its run 2\n"));
    assert_eq!(retained(&leader), (0, 0));
    drop(leader);
    let leader = Leader::start_on(port, &args);
    let shown = json(&leader, &["job", "show", &id]);
    assert_eq!((&shown["state"], &shown["run"]), (&json!("queued"), &json!(2)), "{shown:#}");

    let _worker = Worker::start(port, &[("sums", GOOD)], &[]);
    wait(&leader, &id, "done");
    let got = json(&leader, &["result", "get", &id]);
    assert_eq!((&got["status"], &got["stdout"]), (&json!("OK"), &json!(digest)), "{got:#}");
    // An old result is nowhere, and one that is OK is not retried.
    let (code, out, err) = on(&leader, &["job", "retry", &id]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("ended OK") && err.contains("submit it again"), "{err}");
    assert_eq!(json(&leader, &["job", "ls", "--tag", "night"])["jobs"][0]["state"], "done");
}

#[test]
fn dl05_all_that_failed_are_retried_together_the_oldest_first_and_each_says_why_if_it_is_not() {
    let (leader, state) = (Leader::start(&["--attempts", "1"]), TempDir::new());
    let addr = leader.addr();
    let run = |args: &[&str]| heft_with(&[args, &["-l", &addr]].concat(), &state.0);
    let worker = Worker::start(leader.port, &[("good", "true"), ("bad", "exit 1")], &[]);
    let submit = |exec: &str, tag: &str| {
        let (_, _, err) = run(&["submit", exec, "--tag", tag]);
        err.lines().find_map(|line| line.strip_prefix("job ")).expect("its id").to_owned()
    };
    let jobs = [("bad", "a"), ("good", "a"), ("bad", "b"), ("bad", "a")];
    let jobs = jobs.map(|(exec, tag)| submit(exec, tag));
    // Exactly as many as are wanted are all of them.
    for (limit, more) in [("3", true), ("4", false), ("5", false)] {
        let (_, out, _) = run(&["job", "ls", "--limit", limit, "-o", "json"]);
        let listed: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(listed["more"], json!(more), "{limit}: {out}");
        assert_eq!(listed["jobs"].as_array().unwrap().len(), if more { 3 } else { 4 });
    }
    let (code, ..) = run(&["submit", "bad", "--all", "--tag", "all"]);
    assert_eq!(code, Some(1));
    let (_, out, _) = run(&["job", "ls", "--tag", "all", "-o", "quiet"]);
    let to_all = out.trim().to_owned();
    drop(worker);
    let again = |id: &str| format!("{id} is queued again; this is its run 2\n");
    let (code, out, err) = run(&["job", "retry", "--tag", "a"]);
    assert_eq!((code, out), (Some(0), again(&jobs[0]) + &again(&jobs[3])), "{err}");
    // Those that nobody named are left out if they cannot run again.
    let left_out = "heft: 1 job cannot be retried: it went to all workers: submit it again\n";
    let (code, out, err) = run(&["job", "retry", "--failed"]);
    assert_eq!((code, out, err.as_str()), (Some(0), again(&jobs[2]), left_out));
    let (code, out, err) = run(&["job", "retry", "--tag", "all", "-o", "json"]);
    assert_eq!((code, out.as_str(), err.as_str()), (Some(0), "", left_out));
    let (code, out, err) = run(&["job", "retry", &to_all]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    let (code, out, err) = run(&["job", "retry", "--tag", "c"]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    assert!(err.contains("no job with the tag c"), "{err}");
    // Nothing is left to do there; but nobody can say that what is unknown has ended.
    let (code, out, err) = run(&["cancel", "--tag", "c"]);
    assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
    let (code, out, err) = run(&["job", "wait", "--tag", "c"]);
    assert_eq!((code, out.as_str()), (Some(5), ""), "{err}");
    let (code, out, _) = run(&["job", "wait", &jobs[1], "-o", "quiet"]);
    assert_eq!((code, out), (Some(0), format!("{}\n", jobs[1])));

    let unknown = Uuid::nil().to_string();
    let (code, _, err) = run(&["job", "retry", &jobs[1], &jobs[0], &unknown]);
    assert_eq!(code, Some(5), "{err}");
    let said = ["ended OK", "has not ended", "is unknown here"];
    assert!(said.iter().all(|said| err.contains(said)), "{err}");
    let (code, out, _) = run(&["job", "retry", &jobs[1], &unknown, "-o", "json"]);
    let rows: Vec<Value> =
        serde_json::Deserializer::from_str(&out).into_iter().map(Result::unwrap).collect();
    assert_eq!((code, rows.len()), (Some(5), 2), "{out}");
    assert_eq!(rows[0]["error"]["code"], "failed");
    assert_eq!(rows[1]["error"]["code"], "not-found");
    let (code, _, err) = run(&["job", "retry"]);
    assert_eq!(code, Some(2), "{err}");
    let (code, _, err) = run(&["job", "retry", "--failed", "last"]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn dl05_what_is_retained_goes_when_an_upload_needs_the_room_and_the_results_stay() {
    let leader = Leader::start(&["--durability", "disk", "--spool-max", "16MiB"]);
    let files = TempDir::new();
    let worker = Worker::start(leader.port, &[("bad", "echo said; exit 1")], &[]);
    let mut failed = Vec::new();
    for mib in [6, 5] {
        let (path, _) = input(&files, mib * MIB);
        failed.push(detached(&leader, "bad", &path, &[]));
        wait(&leader, failed.last().unwrap(), "failed");
    }
    assert_eq!(retained(&leader).0, 2);
    drop(worker);
    // The older one goes, which is enough.
    let (path, digest) = input(&files, 8 * MIB);
    let id = detached(&leader, "sums", &path, &[]);
    eventually("one is dropped", || retained(&leader).0 == 1);
    let (code, out, err) = on(&leader, &["job", "retry", &failed[0]]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    assert!(err.contains("to make room") && err.contains("submit it again"), "{err}");
    let shown = json(&leader, &["job", "show", &failed[0]]);
    assert_eq!((&shown["state"], &shown["can_retry"]), (&json!("failed"), &json!(false)));
    let got: Value =
        serde_json::from_str(&on(&leader, &["result", "get", &failed[0], "-o", "json"]).1).unwrap();
    assert_eq!(got["stdout"], "said\n");
    done(&leader, &["job", "retry", &failed[1]]);
    let _worker = Worker::start(leader.port, &[("sums", GOOD), ("bad", GOOD)], &[]);
    wait(&leader, &id, "done");
    wait(&leader, &failed[1], "done");
    assert_eq!(json(&leader, &["result", "get", &id])["stdout"], digest);
}

#[test]
fn dl05_a_job_that_failed_at_a_classic_worker_runs_again_at_another_kind_of_worker() {
    let leader = Leader::start(&["--durability", "disk"]);
    let files = TempDir::new();
    let (path, digest) = input(&files, 10_000);
    let id = detached(&leader, "sums", &path, &[]);
    let args = ["--exec", "sums=fail"];
    let classic = classic_worker(leader.port, &args);
    wait(&leader, &id, "failed");
    drop(classic);
    done(&leader, &["job", "retry", &id]);
    let worker = Worker::start(leader.port, &[("sums", &format!("{GOOD}; exit 1"))], &[]);
    wait(&leader, &id, "failed");
    drop(worker);
    assert_eq!(retained(&leader).0, 1);
    let (code, out, err) = on(&leader, &["result", "get", &id, "-o", "json"]);
    assert_eq!(code, Some(1), "{err}");
    assert_eq!(serde_json::from_str::<Value>(&out).unwrap()["stdout"], digest);
}

#[test]
fn a_job_that_runs_is_shown_without_effect_though_the_log_has_its_request_no_more() {
    let (data, files) = (TempDir::new(), TempDir::new());
    let args = ["--data", data.text(), "--worker-grace", "60s"];
    let leader = Leader::start(&args);
    let go = files.join("go");
    let program =
        format!("while [ ! -e {} ]; do sleep 0.05; done; echo well", go.to_str().unwrap());
    let _worker = Worker::start(leader.port, &[("waits", &program)], &[]);
    let marker = "a-word-that-stands-nowhere-else";
    let args_of_job = ["submit", "-l", &leader.addr(), "waits", "--detach", "--", marker];
    let (code, id, err) = heft(&args_of_job);
    assert_eq!(code, Some(0), "{err}");
    let id = id.trim().to_owned();
    let is_running = |leader: &Leader| {
        let row = json(leader, &["job", "ls"])["jobs"][0].clone();
        row["state"] == "running" && json(leader, &["status"])["workers"][0]["connected"] == true
    };
    eventually("it runs", || is_running(&leader));
    // The next leader does not have the request in memory.
    let port = leader.port;
    drop(leader);
    let leader = Leader::start_on(port, &args);
    eventually("its worker is back", || is_running(&leader));
    let damaged = damage(Path::new(data.text()), marker.as_bytes());
    assert!(damaged > 0, "the log has it");

    for _ in 0..2 {
        let shown = json(&leader, &["job", "show", &id]);
        assert_eq!((&shown["state"], &shown["request"]), (&json!("running"), &Value::Null));
    }
    fs::write(go, "").unwrap();
    wait(&leader, &id, "done");
    let shown = json(&leader, &["job", "show", &id]);
    assert_eq!(shown["result"]["stdout_bytes"], 5, "{shown:#}");
}

/// Turns over a bit of a text wherever the files beneath a directory have it; says how often.
fn damage(dir: &Path, text: &[u8]) -> usize {
    let mut times = 0;
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            times += damage(&path, text);
            continue;
        }
        let bytes = fs::read(&path).unwrap();
        let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
        for at in 0..bytes.len().saturating_sub(text.len()) {
            if bytes[at..].starts_with(text) {
                file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();
                times += 1;
            }
        }
    }
    times
}
