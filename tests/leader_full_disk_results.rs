//! Results that find no room on the leader's disk, with real processes: they wait at their workers
//! without stopping other jobs, say why they wait, and come when there is room; results that
//! somebody has make it; one that never fits ends its job.

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
#[path = "support/small_disk.rs"]
mod small_disk;

use procs::{Leader, Proc, TempDir, Worker, heft};
use small_disk::{SmallDisk, submit, taken, until};

/// Leaves a file of so many MiB behind, and says so.
const MAKE: (&str, &str) =
    ("make", "dd if=/dev/urandom of=out.bin bs=1M count=$1 2> /dev/null; echo made $1");
const HELLO: (&str, &str) = ("hello", "echo hello");

/// A job with a result of so many MiB whose client leaves.
fn made_and_left(leader: &Leader, mib: usize) -> String {
    let mut job = submit(leader, "make", &["--", &mib.to_string()]);
    taken(&mut job)
}

fn phase(leader: &Leader, job: &str) -> String {
    let (code, out, err) = heft(&["explain", &leader.addr(), job, "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    let explained: serde_json::Value = serde_json::from_str(&out).unwrap();
    explained["phase"].as_str().unwrap().to_owned()
}

/// Fetches all of a result.
fn fetch(leader: &Leader, job: &str, to: &TempDir) {
    let get = ["result", "get", &leader.addr(), job, "--out", to.text(), "--force"];
    let (code, out, err) = heft(&get);
    assert_eq!((code, out.as_str()), (Some(0), "made 20\n"), "{err}");
}

/// A small job, which has to end.
fn small_job(leader: &Leader) {
    let (code, out, err) = heft(&["submit", &leader.addr(), "hello", "--timeout", "40s"]);
    assert_eq!((code, out.as_str()), (Some(0), "hello\n"), "{err}");
}

#[test]
fn results_that_wait_for_room_do_not_stop_other_jobs() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker = Worker::start(leader.port, &[MAKE, HELLO], &["--max-par", "2"]);
    // Two of them fill the disk, and nobody fetches them; the others wait at the worker.
    let _jobs: Vec<String> = (0..5).map(|_| made_and_left(&leader, 20)).collect();
    until(&leader, "all have run", |status| {
        status["jobs"]["queued"] == 0 && status["jobs"]["done"] == 2
    });
    small_job(&leader);
    // Credit may come a second later where processors are busy.
    let waits = until(&leader, "three wait", |status| {
        status["leader"]["results_waiting"] == 3 && status["workers"][0]["credit"] == 2
    });
    let worker = &waits["workers"][0];
    assert_eq!((&worker["running"], &worker["returning"]), (&0.into(), &3.into()));
    let (_, shown, _) = heft(&["status", &leader.addr()]);
    assert!(shown.contains("RESULTS WAIT") && shown.contains("heft result get"), "{shown}");
    // The next leader learns it from the worker.
    let port = leader.port;
    drop(leader);
    let data = disk.path.join("data");
    let leader = Leader::start_on(port, &["--data", data.to_str().unwrap()]);
    until(&leader, "three wait again", |status| status["leader"]["results_waiting"] == 3);
    small_job(&leader);
}

#[test]
fn results_that_their_clients_have_keep_no_job_out() {
    let Some(disk) = SmallDisk::new(100) else { return };
    // Results leave 20 MiB free, and jobs are refused below 30.
    let leader = disk.leader(&["--disk-reserve", "40MiB"]);
    let _worker = Worker::start(leader.port, &[MAKE], &[]);
    let files = TempDir::new();
    for _ in 0..12 {
        // How much is free may be known a moment later.
        procs::eventually("a job is taken and ends", || {
            let out = files.join("out");
            let args =
                ["submit", &leader.addr(), "make", "--out", out.to_str().unwrap(), "--", "9"];
            let (code, said, err) = heft(&args);
            assert!(
                code == Some(0) || code == Some(3) && err.contains("--disk-reserve"),
                "{code:?} {said} {err}"
            );
            std::fs::remove_dir_all(&out).ok();
            code == Some(0)
        });
    }
}

#[test]
fn results_beyond_what_may_wait_at_a_worker_keep_their_places() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker =
        Worker::start(leader.port, &[MAKE, HELLO], &["--max-par", "2", "--returning-max", "30MiB"]);
    let jobs: Vec<String> = (0..5).map(|_| made_and_left(&leader, 20)).collect();
    // Two are at the leader, one waits beside running jobs, two more keep both places.
    until(&leader, "no place is left", |status| {
        status["leader"]["results_waiting"] == 3 && status["workers"][0]["credit"] == 0
    });
    let waiting: Vec<&String> =
        jobs.iter().filter(|job| phase(&leader, job) == "returning").collect();
    assert_eq!(waiting.len(), 3);
    // When one of them goes, so does what it kept.
    small_disk::cancel(&leader, waiting[0]);
    small_job(&leader);
}

#[test]
fn a_result_that_somebody_fetched_makes_room_and_one_that_nobody_has_does_not() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker = Worker::start(leader.port, &[MAKE], &[]);
    let jobs: Vec<String> = (0..3).map(|_| made_and_left(&leader, 20)).collect();
    until(&leader, "one waits", |status| {
        status["jobs"]["done"] == 2 && status["leader"]["results_waiting"] == 1
    });
    let (waiting, done): (Vec<&String>, Vec<&String>) =
        jobs.iter().partition(|job| phase(&leader, job) == "returning");
    // A look without the files makes no room: nobody has them.
    let (code, out, err) = heft(&["result", "get", &leader.addr(), done[1]]);
    assert_eq!((code, out.as_str()), (Some(0), "made 20\n"), "{err}");
    let files = TempDir::new();
    fetch(&leader, done[0], &files);
    until(&leader, "it comes", |status| status["jobs"]["running"] == 0);
    assert_eq!(phase(&leader, waiting[0]), "done");
    fetch(&leader, waiting[0], &files);
    fetch(&leader, done[1], &files);
    let (code, ..) = heft(&["result", "get", &leader.addr(), done[0]]);
    assert_eq!(code, Some(5), "what was fetched has made room");
}

#[test]
fn a_result_that_its_client_has_makes_room_before_one_that_another_fetched() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker = Worker::start(leader.port, &[MAKE], &[]);
    let ended = |job: &str| until(&leader, "it has ended", |_| phase(&leader, job) == "done");
    let left = made_and_left(&leader, 20);
    ended(&left);
    // Somebody else looks at it; its client may come back for it.
    let files = TempDir::new();
    fetch(&leader, &left, &files);
    // The client of this one has it, and did not want its files.
    let (code, out, err) = heft(&[
        "submit",
        &leader.addr(),
        "make",
        "--output",
        "json",
        "--timeout",
        "40s",
        "--",
        "20",
    ]);
    assert_eq!(code, Some(0), "{err}");
    let delivered: serde_json::Value = serde_json::from_str(&out).unwrap();
    let delivered = delivered["job_id"].as_str().unwrap().to_owned();
    let is_kept = |job: &str| heft(&["result", "get", &leader.addr(), job]).0 == Some(0);
    ended(&made_and_left(&leader, 20));
    assert_eq!((is_kept(&left), is_kept(&delivered)), (true, false));
    // Where there is no other room, the one that was fetched goes, too.
    ended(&made_and_left(&leader, 20));
    assert!(!is_kept(&left));
}

#[test]
fn a_result_of_all_workers_makes_room_once_those_of_each_were_fetched() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _workers: Vec<Worker> = (0..2).map(|_| Worker::start(leader.port, &[MAKE], &[])).collect();
    until(&leader, "both are there", |status| status["workers"].as_array().unwrap().len() == 2);
    let mut to_all = submit(&leader, "make", &["--all", "--", "20"]);
    let all = taken(&mut to_all);
    drop(to_all);
    until(&leader, "both have run", |status| status["jobs"]["done"] == 2);
    let last = made_and_left(&leader, 20);
    until(&leader, "another waits", |status| status["leader"]["results_waiting"] == 1);
    let files = TempDir::new();
    let (code, out, err) = heft(&["result", "get", &leader.addr(), &all, "--out", files.text()]);
    assert_eq!((code, out.matches("made 20").count()), (Some(0), 2), "{out}{err}");
    until(&leader, "it comes", |status| status["jobs"]["running"] == 0);
    fetch(&leader, &last, &files);
}

#[test]
fn a_result_that_never_fits_ends_its_job_with_the_numbers() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker = Worker::start(leader.port, &[MAKE], &[]);
    let files = TempDir::new();
    let (code, out, err) = heft(&[
        "submit",
        &leader.addr(),
        "make",
        "--out",
        files.text(),
        "--timeout",
        "40s",
        "--",
        "70",
    ]);
    assert_eq!((code, out.as_str()), (Some(1), "made 70\n"), "{err}");
    assert!(
        err.contains("bytes; the leader's disk has room for") && err.contains("--data"),
        "{err}"
    );
    // Nothing of it is left, and the next job is as any other.
    until(&leader, "it has ended", |status| {
        status["jobs"]["running"] == 0 && status["leader"]["blobs"] == 0
    });
    let (code, out, err) = heft(&[
        "submit",
        &leader.addr(),
        "make",
        "--out",
        files.text(),
        "--timeout",
        "40s",
        "--",
        "20",
    ]);
    assert_eq!((code, out.as_str()), (Some(0), "made 20\n"), "{err}");
}

#[test]
fn a_result_whose_client_could_not_unpack_it_makes_no_room_until_somebody_has_it() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker = Worker::start(leader.port, &[MAKE, HELLO], &["--max-par", "4"]);
    let files = TempDir::new();
    std::fs::write(files.join("out.bin"), "mine").unwrap();
    let submit = ["submit", &leader.addr(), "make", "--out", files.text(), "--output", "json"];
    let (code, out, err) = heft(&[&submit[..], &["--", "20"]].concat());
    assert_eq!(code, Some(1), "{err}");
    let shown: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(shown["error"]["hint"].as_str().unwrap().contains("heft result get"), "{shown}");
    assert_eq!(std::fs::read(files.join("out.bin")).unwrap(), b"mine");
    let broken = shown["job_id"].as_str().unwrap();
    // Another fills the disk, and a third has to wait.
    made_and_left(&leader, 20);
    until(&leader, "the disk is full", |status| status["jobs"]["done"] == 2);
    let last = made_and_left(&leader, 20);
    until(&leader, "a result waits", |status| status["leader"]["results_waiting"] == 1);
    small_job(&leader);
    assert_eq!(phase(&leader, &last), "returning");
    fetch(&leader, broken, &files);
    until(&leader, "the last one has room", |status| status["leader"]["results_waiting"] == 0);
    assert_eq!(std::fs::metadata(files.join("out.bin")).unwrap().len(), 20 << 20);
}

#[test]
fn who_waits_for_a_result_that_waits_for_room_hears_why() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let _worker = Worker::start(leader.port, &[MAKE], &[]);
    let jobs: Vec<String> = (0..2).map(|_| made_and_left(&leader, 20)).collect();
    until(&leader, "the disk is full", |status| status["jobs"]["done"] == 2);
    let files = TempDir::new();
    let mut last = submit(&leader, "make", &["--out", files.text(), "--force", "--", "20"]);
    let job = taken(&mut last);
    let event =
        last.event_where("waiting", |event| event["text"].as_str().unwrap().contains("result"));
    let text = event["text"].as_str().unwrap();
    assert!(text.contains("--disk-reserve") && text.contains("heft result get"), "{text}");
    assert_eq!(phase(&leader, &job), "returning");
    let (_, shown, _) = heft(&["explain", &leader.addr(), &job]);
    assert!(
        shown.contains("its result waits at the worker") && shown.contains("--disk-reserve"),
        "{shown}"
    );
    fetch(&leader, &jobs[0], &files);
    let (code, lines) = last.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
}

#[test]
fn results_find_room_when_uploads_have_taken_all_that_they_may() {
    const MIB: usize = 1 << 20;
    let Some(disk) = SmallDisk::new(160) else { return };
    let leader = disk.leader(&[]);
    let files = TempDir::new();
    // Of all sizes, so that without a reserve less is left than one result needs.
    let mut jobs: Vec<Proc> = Vec::new();
    for (number, mib) in [80, 40, 10, 5, 4, 4, 4, 4].into_iter().enumerate() {
        let file = files.join(&format!("in-{number}.bin"));
        std::fs::write(&file, vec![7; mib * MIB]).unwrap();
        let file = format!("{}=in.bin", file.display());
        let mut job = submit(&leader, "make", &["--file", &file, "--compress", "none", "--", "4"]);
        small_disk::taken_or_told(&mut job);
        jobs.push(job);
    }
    let _worker = Worker::start(leader.port, &[MAKE], &["--max-par", "2"]);
    for job in jobs {
        let (code, lines) = job.finish();
        assert_eq!(code, Some(0), "{lines:#?}");
    }
}

#[test]
fn a_large_result_is_not_left_behind_by_uploads_that_keep_coming() {
    const UPLOADS: u64 = 18;
    let Some(disk) = SmallDisk::new(96) else { return };
    let leader = disk.leader(&[]);
    let files = TempDir::new();
    let (gate, input) = (files.join("gate"), files.join("in.bin"));
    std::fs::write(&input, vec![7; 12 << 20]).unwrap();
    let gated = format!("while [ ! -e {} ]; do sleep 0.05; done; {}", gate.display(), MAKE.1);
    let slow = ("slow", "sleep 0.3; echo slow");
    let _worker = Worker::start(leader.port, &[("gated", &gated), slow], &["--max-par", "2"]);
    let mut large =
        submit(&leader, "gated", &["--out", files.text(), "--timeout", "100s", "--", "50"]);
    let job = taken(&mut large);
    let upload = || {
        let file = format!("{}=in.bin", input.display());
        submit(&leader, "slow", &["--file", &file, "--compress", "none", "--timeout", "100s"])
    };
    let uploads: Vec<Proc> = (0..UPLOADS).map(|_| upload()).collect();
    until(&leader, "uploads wait", |status| {
        status["leader"]["uploads_waiting"].as_u64() >= Some(2)
    });
    std::fs::write(&gate, "").unwrap();
    let waits = until(&leader, "it waits", |status| status["leader"]["results_waiting"] == 1);
    let trouble = waits["leader"]["disk_trouble"].as_str().unwrap();
    assert!(
        trouble.contains(&format!("Uploads wait behind a part of the result of job {job}")),
        "{trouble}"
    );
    // Seven uploads have their place, and four of them make the room. At the end of the queue three
    // would be left.
    let comes = until(&leader, "it comes", |status| status["leader"]["results_waiting"] == 0);
    assert!(
        comes["jobs"]["done"].as_u64().unwrap() < UPLOADS - 5,
        "it came behind them: {comes:#}"
    );
    let (code, lines) = large.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    for upload in uploads {
        let (code, lines) = upload.finish();
        assert_eq!(code, Some(0), "{lines:#?}");
    }
}

#[test]
fn inputs_of_failed_jobs_go_before_a_full_disk_keeps_a_job_out() {
    let Some(disk) = SmallDisk::new(160) else { return };
    // Jobs are refused below 30 MiB.
    let leader = disk.leader(&["--disk-reserve", "40MiB"]);
    let _worker = Worker::start(leader.port, &[("bad", "exit 1"), HELLO], &[]);
    let files = TempDir::new();
    let input = files.join("in.bin");
    std::fs::write(&input, vec![7; 8 << 20]).unwrap();
    for _ in 0..5 {
        let args = ["submit", &leader.addr(), "bad", "--file", input.to_str().unwrap()];
        let (code, _, err) = heft(&args);
        assert_eq!(code, Some(1), "{err}");
    }
    until(&leader, "all are retained", |status| status["leader"]["retained_jobs"] == 5);
    disk.fill();
    // The leader has noticed.
    until(&leader, "the disk is full", |status| {
        status["leader"]["disk_free"].as_u64().is_some_and(|free| free < 30 << 20)
            || status["leader"]["retained_jobs"].as_u64().is_some_and(|jobs| jobs < 5)
    });
    small_job(&leader);
    until(&leader, "they went", |status| status["leader"]["retained_jobs"] == 0);
}
