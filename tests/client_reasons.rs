//! Why a job does not run: what `heft submit` says on a pipe, and what `heft explain` and
//! `heft status` say of it, in each case that people meet.

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
#[path = "support/small_disk.rs"]
mod small_disk;

use std::fs;
use std::path::Path;
use std::process::Command;

use noise::noise;
use procs::{Leader, Proc, TempDir, Worker, eventually, heft};
use small_disk::{SmallDisk, until};

const MIB: usize = 1 << 20;

/// A program that runs until it is told to end.
const UNTIL_TOLD: &str = "echo begun; while [ ! -e \"$1\" ]; do sleep 0.05; done";

/// `heft submit`, with both of its streams; it is not on a terminal.
fn submit(leader: &Leader, args: &[&str]) -> Proc {
    let mut command = Command::new("sh");
    command.arg("-c").arg("exec \"$0\" \"$@\" 2>&1").arg(env!("CARGO_BIN_EXE_heft"));
    Proc::start("submit", command.args(["submit", "-l", &leader.addr()]).args(args))
}

/// What stands behind this on one of its lines, as soon as it says it.
fn behind(job: &mut Proc, what: &str) -> String {
    eventually(what, || job.poll(|line| line.contains(what).then_some(())));
    job.said(what).unwrap().split_once(what).unwrap().1.to_owned()
}

/// The id of a job.
fn id(job: &mut Proc) -> String {
    let mut id = None;
    eventually("its id", || {
        job.poll(|line| {
            id = id.take().or_else(|| line.strip_prefix("job ").map(str::to_owned));
            id.is_some().then_some(())
        })
    });
    id.unwrap()
}

/// Leaves a job with the leader; its id.
fn detached(leader: &Leader, args: &[&str]) -> String {
    shown(leader, &[&["submit", "--detach"], args].concat()).trim().to_owned()
}

/// The job that was submitted last, whether or not the leader has all of it.
fn newest(leader: &Leader) -> String {
    shown(leader, &["job", "ls", "--limit", "1", "-o", "quiet"]).trim().to_owned()
}

/// What a command prints of this leader.
fn shown(leader: &Leader, args: &[&str]) -> String {
    let (code, out, err) = heft(&[args, &["-l", &leader.addr()]].concat());
    assert_eq!(code, Some(0), "{args:?}: {out}{err}");
    out
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in\n{text}");
    }
}

/// `heft explain` says this, once it is so.
fn until_explained(leader: &Leader, job: &str, part: &str) -> String {
    let mut text = String::new();
    eventually(part, || {
        text = shown(leader, &["explain", job]);
        text.contains(part)
    });
    text
}

fn explained(leader: &Leader, job: &str) -> String {
    shown(leader, &["explain", job])
}

#[test]
fn no_worker_at_all() {
    let leader = Leader::start(&[]);
    let mut job = submit(&leader, &["calc"]);
    let job_id = id(&mut job);
    behind(&mut job, ": waiting: no connected worker matches job.assign.calc: start one");
    says(&explained(&leader, &job_id), &["no connected worker matches its key", "no workers"]);
    let status = shown(&leader, &["status"]);
    says(&status, &["jobs    1 queued, 0 running", "no workers\n", "job.assign.calc       1"]);
    says(&shown(&leader, &["job", "show", &job_id]), &["waits for   no connected worker matches"]);
    let _worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    assert_eq!(job.finish().0, Some(0));
}

#[test]
fn no_worker_that_has_a_free_slot() {
    let leader = Leader::start(&[]);
    let worker = Worker::start(leader.port, &[("hold", UNTIL_TOLD)], &["--max-par", "1"]);
    let told = worker.dir.join("told");
    let told = told.to_str().unwrap();
    let held = submit(&leader, &["hold", "--client", "ann", "--", told]);
    until(&leader, "it runs", |status| status["jobs"]["running"] == 1);
    let mut job = submit(&leader, &["hold", "--client", "bob", "--progress", "json", "--", told]);
    let queued = job.event_where("queued", |event| {
        event["text"]
            .as_str()
            .is_some_and(|text| text.contains("no eligible worker has a free slot"))
    });
    let job_id = queued["job"].as_str().unwrap();
    let why = ["waits     no eligible worker has a free slot", "eligible, but has no free slot"];
    says(&explained(&leader, job_id), &why);
    // Who has what is said of those that went, too.
    let ann = |status: &serde_json::Value| {
        let clients = status["clients"].as_array().unwrap().clone();
        clients.into_iter().find(|client| client["id"] == "ann")
    };
    let status = until(&leader, "ann is listed", |status| ann(status).is_some());
    assert_eq!(ann(&status).unwrap()["in_flight"], 1);
    says(&shown(&leader, &["status"]), &["jobs    1 queued, 1 running", "bob"]);
    fs::write(told, "").unwrap();
    assert_eq!((held.finish().0, job.finish().0), (Some(0), Some(0)));
}

#[test]
fn the_cap_of_the_client_is_reached() {
    let leader = Leader::start(&[]);
    let worker = Worker::start(leader.port, &[("hold", UNTIL_TOLD)], &["--max-par", "4"]);
    let told = worker.dir.join("told");
    let told = told.to_str().unwrap();
    let args = ["hold", "--detach", "--client", "ann", "--cap", "1", "--", told];
    let mut first = submit(&leader, &args);
    first.wait_for("its id", |line| (!line.is_empty()).then_some(()));
    until(&leader, "it runs", |status| status["jobs"]["running"] == 1);
    let args = ["hold", "--client", "ann", "--cap", "1", "--progress", "json", "--", told];
    let mut job = submit(&leader, &args);
    let queued = job.event_where("queued", |event| {
        event["text"].as_str().is_some_and(|text| text.contains("cap"))
    });
    let job_id = queued["job"].as_str().unwrap();
    says(&explained(&leader, job_id), &["1 job at workers; its cap is 1"]);
    // In a log it stands once, without how many are ahead, which changes.
    let mut logged = submit(&leader, &["hold", "--client", "ann", "--cap", "1", "--", told]);
    behind(&mut logged, ": queued: its client has 1 job at workers; its cap is 1");
    // The client of the first is gone, and is still counted. Who asks is not listed.
    let status = shown(&leader, &["clients", "ls"]);
    assert_eq!(status.lines().count(), 2, "{status}");
    let row = status.lines().find(|line| line.starts_with("ann")).unwrap();
    let row: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(row, ["ann", "1", "1", "2", "2"], "cap, in flight, queued, connections\n{status}");
    fs::write(told, "").unwrap();
    assert_eq!((first.finish().0, job.finish().0), (Some(0), Some(0)));
    assert_eq!(logged.finish().0, Some(0));
}

#[test]
fn no_worker_with_the_program_or_the_means_that_the_job_needs() {
    let leader = Leader::start(&[]);
    let _worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    let (code, _, err) = heft(&["submit", "clac", "-l", &leader.addr()]);
    assert_eq!(code, Some(1), "{err}");
    says(&err, &["has the program \"clac\"", "Did you mean \"calc\"?", "--exe-dir", "FAILED"]);
    drop(_worker);

    // A plain classic worker takes no transfers.
    until(&leader, "no workers", |status| status["workers"].as_array().unwrap().is_empty());
    let _classic = procs::classic_worker(leader.port, &["--exec", "calc=echo"]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(5 * MIB, 1)).unwrap();
    let mut job = submit(&leader, &["calc", "--file", file.to_str().unwrap()]);
    let job_id = id(&mut job);
    behind(&mut job, "which take frames of at most 4,194,304 bytes; start a heft worker");
    says(&explained(&leader, &job_id), &["takes no transfers, and the job needs one"]);
    says(&shown(&leader, &["status"]), &["stock", "jobs    1 queued"]);
    let _worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    assert_eq!(job.finish().0, Some(0));
}

#[test]
fn a_dataset_that_is_not_there() {
    let leader = Leader::start(&[]);
    let _worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    let (code, _, err) = heft(&["submit", "calc", "--dataset", "nope", "-l", &leader.addr()]);
    assert_eq!(code, Some(5), "{err}");
    says(&err, &["has no dataset \"nope\"", "heft dataset ls"]);
    // A worker's directory may have it: that is said, and what came of it.
    let (code, _, err) = heft(&["submit", "calc", "--cache", "nope/x", "-l", &leader.addr()]);
    assert_eq!(code, Some(1), "{err}");
    says(&err, &["the job runs only where a worker has \"x\"", "Cache miss: nope", "FAILED"]);
    let job = err.lines().find_map(|line| line.strip_prefix("job ")).unwrap();
    says(&shown(&leader, &["job", "show", job]), &["state       failed", "heft job retry"]);
}

#[test]
fn the_disk_of_the_leader_is_full() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(12 * MIB, 1)).unwrap();
    let others = disk.fill();
    until(&leader, "it is known", |status| !status["leader"]["disk_trouble"].is_null());
    says(&shown(&leader, &["status"]), &["UPLOADS WAIT", "0 B free of 64 MiB"]);
    // A job that is refused says what to do; nothing is left of it.
    let (code, _, err) = heft(&["submit", "calc", "--timeout", "20s", "-l", &leader.addr()]);
    assert_eq!(code, Some(3), "{err}");
    says(&err, &["--disk-reserve", "free some space"]);
    assert_eq!(shown(&leader, &["job", "ls", "-o", "quiet"]), "");
    fs::remove_file(others).unwrap();
    until(&leader, "there is room", |status| status["leader"]["disk_trouble"].is_null());
    // Uploads beyond what there is room for wait, whether or not a worker could run the job.
    drop(worker);
    until(&leader, "no workers", |status| status["workers"].as_array().unwrap().is_empty());
    let path = file.to_str().unwrap();
    let kept: Vec<String> = (0..4).map(|_| detached(&leader, &["calc", "--file", path])).collect();
    let mut late = submit(&leader, &["calc", "--file", path]);
    behind(&mut late, "--disk-reserve");
    let late_id = newest(&leader);
    until_explained(&leader, &late_id, "waits     room for its inputs");
    says(&shown(&leader, &["job", "show", &late_id]), &["waits for   room for its inputs"]);
    says(&shown(&leader, &["status"]), &["UPLOADS WAIT: 1 large file waits for room"]);
    small_disk::cancel(&leader, &kept[0]);
    let _worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    assert_eq!(late.finish().0, Some(0));
}

#[test]
fn the_spool_of_the_leader_is_full() {
    let leader = Leader::start(&["--spool-max", "16MiB"]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(10 * MIB, 1)).unwrap();
    let path = file.to_str().unwrap();
    let first = detached(&leader, &["calc", "--file", path]);
    let mut late = submit(&leader, &["calc", "--file", path]);
    behind(&mut late, "(--spool-max)");
    let late_id = newest(&leader);
    until_explained(&leader, &late_id, "waits     room for its inputs");
    let status = shown(&leader, &["status"]);
    says(&status, &["UPLOADS WAIT: 1 large file waits for room", "larger --spool-max"]);
    let (_, json, _) = heft(&["status", "-l", &leader.addr(), "-o", "json"]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["leader"]["uploads_waiting"], 1);
    small_disk::cancel(&leader, &first);
    let _worker = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    assert_eq!(late.finish().0, Some(0));
    assert!(!shown(&leader, &["status"]).contains("UPLOADS WAIT"));
}

#[test]
fn the_disk_of_the_worker_is_full() {
    let Some(disk) = SmallDisk::new(8) else { return };
    let leader = Leader::start(&[]);
    let (work, files) = (disk.path.join("jobs"), TempDir::new());
    procs::write_program(&files.join("calc"), "echo ran");
    let mut small = Command::new(env!("CARGO_BIN_EXE_heft"));
    small.args(["worker", "-l", &leader.addr(), "--exe-dir", files.text(), "--work-dir"]).arg(work);
    small.arg("--cache-dir").arg(files.join("cache")).env("HEFT_LOG", "warn");
    let _small = Proc::start("small", &mut small);
    let file = files.join("in.bin");
    fs::write(&file, noise(16 * MIB, 1)).unwrap();
    let mut job = submit(&leader, &["calc", "--file", file.to_str().unwrap()]);
    let job_id = id(&mut job);
    behind(&mut job, "no room on its disk");
    until_explained(&leader, &job_id, "no room on its disk");
    says(&shown(&leader, &["status"]), &["ago: its disk is full"]);
    let _sound = Worker::start(leader.port, &[("calc", "echo ran")], &[]);
    assert_eq!(job.finish().0, Some(0));
}

#[test]
fn the_disk_of_the_client_is_full() {
    let Some(disk) = SmallDisk::new(8) else { return };
    let leader = Leader::start(&[]);
    let script = "head -c 16000000 /dev/urandom > made; echo ran";
    let _worker = Worker::start(leader.port, &[("make", script)], &[]);
    let out = disk.path.join("out");
    let out = out.to_str().unwrap();
    let (code, said, err) = heft(&["submit", "make", "--out", out, "-l", &leader.addr()]);
    assert_eq!(code, Some(1), "{said}{err}");
    let job = err.lines().find_map(|line| line.strip_prefix("job ")).unwrap().to_owned();
    let short = format!("it has 15.2 MiB, and the disk of {out} has");
    says(&err, &[&short, "make room there", &format!("{job} --out"), "tries again"]);
    // The leader has not lost it.
    says(&shown(&leader, &["explain", &job]), &[&job]);
    says(&shown(&leader, &["job", "show", &job]), &["state       done"]);
    let files = TempDir::new();
    let there = files.join("there");
    let there = there.to_str().unwrap();
    shown(&leader, &["result", "get", &job, "--out", there]);
    assert_eq!(fs::metadata(Path::new(there).join("made")).unwrap().len(), 16_000_000);
}
