//! No black holes, with real processes: workers with different programs, without programs, with a
//! full disk; programs that nobody has, that are put there later, that cannot start; flags in
//! status and explain; older peers.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
#[path = "support/small_disk.rs"]
mod small_disk;
mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use chunking::Kind;
use chunking::message::Start;
use heft::client::{Client, JobHandle, JobSpec, Options};
use heft::model::{JobRequest, JobResult, JobStatus, JsonModel};
use procs::{Leader, PATIENCE, Proc, TempDir, Worker, eventually, heft, write_program};
use raw::Raw;
use serde_json::Value;
use small_disk::{SmallDisk, status, submit, taken, until};
use support::scaled;
use uuid::Uuid;

fn workers(leader: &Leader, count: usize) -> Value {
    until(leader, "the workers", |status| {
        status["workers"].as_array().is_some_and(|all| all.len() == count)
    })
}

async fn client(leader: &Leader) -> Client {
    let options = Options { desired: 1_000, ..Options::new("many") };
    Client::connect(&leader.addr(), &options).await.unwrap()
}

/// Submits jobs of these programs in turn, each with a small input, and gives what did not end OK.
async fn run_many(leader: &Leader, programs: &[&str], count: u32) -> Vec<JobResult> {
    let client = client(leader).await;
    let mut handles: Vec<JobHandle> = Vec::new();
    for number in 0..count {
        let exec = programs[number as usize % programs.len()];
        let args = vec![number.to_string()];
        let request = JobRequest { exec_name: exec.into(), args, ..JobRequest::default() };
        let spec = JobSpec::from(request).bytes("in", vec![7; 20_000]);
        handles.push(client.submit(spec).await.unwrap());
    }
    let mut failed = Vec::new();
    for mut handle in handles {
        let result = tokio::time::timeout(PATIENCE * 5, handle.wait()).await.expect("it ends");
        let result = result.unwrap();
        if result.status != JobStatus::Ok {
            failed.push(result);
        }
    }
    client.close().await;
    failed
}

const SAY: &str = "echo \"$0 $1\"";

#[tokio::test]
async fn workers_with_different_programs_and_one_without_any_fail_no_job_for_its_placement() {
    let leader = Leader::start(&[]);
    let _a = Worker::start(leader.port, &[("calcA", SAY)], &["--name", "a"]);
    let _b = Worker::start(leader.port, &[("calcB", SAY)], &["--name", "b"]);
    let _none = Worker::start(leader.port, &[], &["--name", "none"]);
    let seen = workers(&leader, 3);
    let programs = |name: &str| {
        let workers = seen["workers"].as_array().unwrap();
        workers.iter().find(|worker| worker["name"] == name).unwrap()["programs"].clone()
    };
    assert_eq!(programs("a"), serde_json::json!(["calcA"]));
    assert_eq!(programs("none"), serde_json::json!([]));
    let failed = run_many(&leader, &["calcA", "calcB"], scaled(30, 300)).await;
    assert!(failed.is_empty(), "{failed:#?}");
    let status = status(&leader);
    assert_eq!(status["jobs"]["dead"], 0);
    // Nobody had to hand anything back.
    let avoided = |worker: &Value| worker["avoided"].as_array().unwrap().len();
    assert_eq!(status["workers"].as_array().unwrap().iter().map(avoided).sum::<usize>(), 0);
}

#[tokio::test]
async fn a_worker_whose_disk_is_full_fails_no_job_for_its_placement() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let leader = Leader::start(&[]);
    let _a = Worker::start(leader.port, &[("calcA", SAY)], &[]);
    let _b = Worker::start(leader.port, &[("calcA", SAY), ("calcB", SAY)], &[]);
    let exe = disk.path.join("exe");
    fs::create_dir(&exe).unwrap();
    for name in ["calcA", "calcB"] {
        write_program(&exe.join(name), SAY);
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", &leader.port.to_string(), "--name", "full"]);
    command.arg("--exe-dir").arg(&exe).arg("--work-dir").arg(disk.path.join("jobs"));
    command.arg("--cache-dir").arg(disk.path.join("cache")).env("HEFT_LOG", "warn");
    let _full = Proc::start("full worker", &mut command);
    workers(&leader, 3);
    disk.fill();
    let failed = run_many(&leader, &["calcA", "calcB"], scaled(30, 300)).await;
    assert!(failed.is_empty(), "{failed:#?}");
    let status = status(&leader);
    assert_eq!(status["jobs"]["dead"], 0);
    let workers = status["workers"].as_array().unwrap();
    let full = workers.iter().find(|worker| worker["name"] == "full").unwrap();
    assert_eq!(full["lacks"]["what"], "room", "{full:#}");
}

#[test]
fn a_program_that_nobody_has_fails_the_job_with_what_was_tried_and_what_was_meant() {
    let leader = Leader::start(&[]);
    let _a = Worker::start(leader.port, &[("calcA", SAY), ("render", SAY)], &["--name", "first"]);
    let _b = Worker::start(leader.port, &[], &["--name", "second"]);
    workers(&leader, 2);
    let (code, out, err) = heft(&["submit", &leader.addr(), "rendr", "--", "x"]);
    assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
    for part in [
        "no connected worker that matches job.assign.rendr has the program \"rendr\"",
        "worker first (",
        "has 2 programs, and not this one",
        "worker second (",
        "has no programs",
        "Did you mean \"render\"?",
    ] {
        assert!(err.contains(part), "{part:?} in {err}");
    }
    // Before a large input of it is sent.
    let files = TempDir::new();
    let large = files.join("large");
    fs::File::create(&large).unwrap().set_len(3 << 30).unwrap();
    let (code, _, err) =
        heft(&["submit", &leader.addr(), "rendr", "--file", large.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("Did you mean \"render\"?"), "{err}");
    until(&leader, "nothing is left of it", |status| status["leader"]["blobs"] == 0);
    // One that has to be taken at once is refused.
    let (code, _, err) = heft(&["submit", &leader.addr(), "rendr", "--require-worker"]);
    assert!(code.is_some_and(|code| code != 0), "{err}");
    assert!(err.contains("Did you mean \"render\"?"), "{err}");
    let (code, out, err) = heft(&["submit", &leader.addr(), "render", "--", "x"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.ends_with("/render x\n"), "{out}");
}

#[test]
fn a_program_that_is_put_there_later_is_found_at_once() {
    let leader = Leader::start(&[]);
    let worker = Worker::start(leader.port, &[], &[]);
    workers(&leader, 1);
    for number in 0..10 {
        let name = format!("calc{number}");
        write_program(&worker.dir.join("exe").join(&name), SAY);
        let (code, _, err) = heft(&["submit", &leader.addr(), &name, "--", "x"]);
        assert_eq!(code, Some(0), "{name}: {err}");
    }
    let programs = |status: &Value| status["workers"][0]["programs"].as_array().map(Vec::len);
    until(&leader, "the list", |status| programs(status) == Some(10));
    let (_, shown, _) = heft(&["status", &leader.addr()]);
    assert!(shown.contains("PROGRAMS"), "{shown}");
}

#[test]
fn a_program_that_cannot_start_is_avoided_there_and_shown_until_it_is_repaired() {
    let leader = Leader::start(&[]);
    let broken = Worker::start(leader.port, &[("calcA", "")], &["--name", "broken"]);
    let path = broken.dir.join("exe/calcA");
    fs::write(&path, "#!/no/such/interpreter\n").unwrap();
    workers(&leader, 1);
    let (code, _, err) = heft(&["submit", &leader.addr(), "calcA"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(
        err.contains("worker broken (") && err.contains("handed it back: Process error"),
        "{err}"
    );
    let (_, shown, _) = heft(&["status", &leader.addr()]);
    assert!(shown.contains("lacks the program calcA"), "{shown}");
    let lacks = &status(&leader)["workers"][0];
    assert_eq!(lacks["lacks"]["what"], "program", "{lacks:#}");
    assert_eq!(lacks["avoided"][0]["program"], "calcA");
    // Another worker has it: jobs go there, and explain says why not here.
    let sound = Worker::start(leader.port, &[("calcA", "sleep 600")], &["--name", "sound"]);
    workers(&leader, 2);
    let mut jobs: Vec<Proc> = (0..5).map(|_| submit(&leader, "calcA", &[])).collect();
    let id = taken(&mut jobs[4]);
    eventually("four run, one waits", || status(&leader)["jobs"]["running"] == 4);
    let (_, explained, _) = heft(&["explain", &leader.addr(), &id, "--output", "json"]);
    let explained: Value = serde_json::from_str(&explained).unwrap();
    let seen = explained["workers"].as_array().unwrap();
    let of = |name: &str| seen.iter().find(|worker| worker["name"] == name).unwrap();
    assert_eq!(of("broken")["verdict"], "no-program", "{explained:#}");
    assert_eq!(
        (&of("broken")["has_program"], &of("sound")["has_program"]),
        (&false.into(), &true.into())
    );
    assert!(of("broken")["text"].as_str().unwrap().contains("handed it back: Process error"));
    drop((jobs, sound));
    write_program(&path, SAY);
    let (code, out, err) = heft(&["submit", &leader.addr(), "calcA", "--", "again"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.ends_with("calcA again\n"), "{out}");
}

#[test]
fn a_job_waits_for_the_worker_of_its_program_that_restarts_and_says_so() {
    let leader = Leader::start(&[]);
    let other = Worker::start(leader.port, &[("calcB", SAY)], &[]);
    let first = Worker::start(leader.port, &[("calcA", SAY)], &[]);
    workers(&leader, 2);
    drop(first);
    until(&leader, "it left", |status| {
        status["workers"]
            .as_array()
            .unwrap()
            .iter()
            .filter(|worker| worker["connected"] == true)
            .count()
            == 1
    });
    let mut job = submit(&leader, "calcA", &["--", "x"]);
    job.wait_for("word of the wait", |line| line.contains("has the program").then_some(()));
    let _second = Worker::start(leader.port, &[("calcA", SAY)], &[]);
    job.wait_for("its output", |line| line.ends_with("calcA x").then_some(()));
    assert_eq!(job.finish().0, Some(0));
    drop(other);
    // Without that it fails at once.
    let leader = Leader::start(&["--placement-wait", "0s"]);
    let _other = Worker::start(leader.port, &[("calcB", SAY)], &[]);
    workers(&leader, 1);
    let (code, _, err) = heft(&["submit", &leader.addr(), "calcA"]);
    assert_eq!(code, Some(1), "{err}");
}

#[test]
fn a_job_to_all_workers_fails_at_those_without_its_program_alone() {
    let leader = Leader::start(&[]);
    let _has = Worker::start(leader.port, &[("calcA", SAY)], &[]);
    let _not = Worker::start(leader.port, &[], &["--name", "not"]);
    workers(&leader, 2);
    let (code, out, err) = heft(&["submit", &leader.addr(), "calcA", "--all", "--", "x"]);
    assert_eq!(code, Some(1), "{out}{err}");
    let said = format!("{out}{err}");
    assert!(said.contains("calcA x"), "{said}");
    assert!(said.contains("worker not (") && said.contains("Executable not found"), "{said}");
}

#[test]
fn a_worker_on_which_a_program_fails_and_elsewhere_does_not_is_flagged() {
    let leader = Leader::start(&[]);
    let _good = Worker::start(leader.port, &[("calcA", SAY)], &["--name", "good"]);
    let _bad = Worker::start(leader.port, &[("calcA", "exit 3")], &["--name", "bad"]);
    workers(&leader, 2);
    let flagged = || {
        let status = status(&leader);
        let workers = status["workers"].as_array().unwrap();
        let bad = workers.iter().find(|worker| worker["name"] == "bad").unwrap();
        let good = workers.iter().find(|worker| worker["name"] == "good").unwrap();
        assert_eq!(good["flagged"], serde_json::json!([]));
        bad["flagged"].as_array().unwrap().first().cloned()
    };
    for _ in 0..60 {
        heft(&["submit", &leader.addr(), "calcA"]);
        if flagged().is_some() {
            break;
        }
    }
    let flag = flagged().expect("it is flagged");
    assert_eq!((&flag["program"], &flag["failed"]), (&"calcA".into(), &5.into()), "{flag}");
    let (_, shown, _) = heft(&["status", &leader.addr()]);
    assert!(
        shown.contains("worker bad (") && shown.contains("FAILS MORE THAN OTHERS: 5 of"),
        "{shown}"
    );
}

#[test]
fn what_an_older_worker_answers_is_a_result_and_it_is_given_every_program() {
    let leader = Leader::start(&[]);
    let _ours = Worker::start(leader.port, &[], &[]);
    workers(&leader, 1);
    // It knows no lists of programs, and says FAILED.
    let mut older = Raw::worker(&leader, Uuid::from_u128(77), "job.assign.>");
    let job = std::thread::spawn({
        let addr = leader.addr();
        move || heft(&["submit", &addr, "calcA"])
    });
    let assigned = loop {
        let frame = older.next().unwrap();
        assert_ne!(frame.kind, Kind::Programs, "it does not know that");
        if frame.kind == Kind::AssignJob {
            break frame.msg_id;
        }
    };
    let start = loop {
        let frame = older.next().unwrap();
        if frame.kind == Kind::Start {
            break <Start as chunking::message::Body>::decode(&frame.payload).unwrap();
        }
    };
    let mut result = JobResult::new(assigned, "", "calcA", JobStatus::Failed);
    result.stderr = "Executable not found: /opt/grid/exe/calcA".into();
    (result.run, result.attempts) = (Some(start.run), Some(start.attempt));
    older.send(Kind::AckJob, Uuid::nil(), assigned, "", &result.to_json());
    let (code, _, err) = job.join().unwrap();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("Executable not found: /opt/grid/exe/calcA"), "{err}");
    assert!(!err.contains("no connected worker"), "{err}");
}

#[test]
fn a_worker_does_not_start_with_an_exe_directory_that_is_not_there() {
    let dir = TempDir::new();
    let start = |exe: &Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
        command.args(["worker", "127.0.0.1", "1", "--exe-dir"]).arg(exe);
        command.arg("--work-dir").arg(dir.join("jobs")).arg("--cache-dir").arg(dir.join("cache"));
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, err) = start(&dir.join("exes"));
    assert_eq!(code, Some(2), "{err}");
    assert!(
        err.contains("exes cannot be used: No such file") && err.contains("--exe-dir"),
        "{err}"
    );
    assert!(!dir.join("exes").exists() && !dir.join("jobs").exists(), "nothing was made");
    fs::write(dir.join("file"), "").unwrap();
    let (code, err) = start(&dir.join("file"));
    assert_eq!(code, Some(2), "{err}");
    assert!(err.contains("file is not a directory"), "{err}");
}

/// Time that a test gives what should not happen.
const MOMENT: Duration = Duration::from_millis(1_500);

#[test]
fn a_classic_worker_is_given_every_program_and_is_not_asked() {
    let leader = Leader::start(&[]);
    let mut classic = procs::classic_worker(leader.port, &[]);
    let _ours = Worker::start(leader.port, &[], &[]);
    workers(&leader, 2);
    let (code, _, err) = heft(&["submit", &leader.addr(), "missing"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("Executable not found: /opt/grid/exe/missing.exe"), "{err}");
    std::thread::sleep(MOMENT);
    assert!(!classic.has_ended());
}
