//! Which workers get which payloads: raw ones (M19) and files in folders (C08) go only where they
//! are read, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::action::{Refusal, Waiting};
use heft::core::event::{Outcome, Submission, WorkerClass};
use heft::core::explain::{Verdict, WaitsFor};
use heft::core::payload::{FileNames, PayloadKind};
use rig::{Rig, announced, id, job, worker_id};

/// A job that is not a request.
fn raw(number: u32) -> Submission {
    Submission { exec: "".into(), ..job(number) }
}

#[test]
fn m19_raw_jobs_go_only_where_they_are_read_and_hold_nobody_up() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(500));
    rig.skip();
    rig.classic("s1", "calcA", 2);
    rig.worker("w1", "calcA", 1);
    for number in 1..=200 {
        rig.submit(raw(number));
        rig.skip();
    }
    rig.submit(job(201));
    let assigned = rig.take().into_iter().filter(|line| line.starts_with("+assign"));
    assert_eq!(assigned.collect::<Vec<_>>(), ["+assign j201#1 s1"]);
    rig.minimal("f0", "calcA");
    rig.expect(["+assign j1#1 f0", "f0: assign j1#1"]);
    let takes = (true, true, PayloadKind::Raw);
    rig.hello_reading("w2", WorkerClass::Leasing, "calcA", Some(1), takes);
    rig.credit("w2", 1);
    rig.expect(["+assign j2#1 w2", "w2: assign j2#1"]);
}

#[test]
fn m19_a_worker_that_reads_anything_runs_requests_too() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.minimal("f0", "calcA");
    rig.submit(job(1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "+assign j1#1 f0",
        "f0: assign j1#1",
    ]);
}

#[test]
fn m19_who_waits_for_a_worker_that_takes_raw_payloads_is_told_so() {
    let mut rig = Rig::new();
    rig.note_waiting();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(raw(1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "alice: waiting j1 1 for job.assign.calcA without raw payloads",
    ]);
    let explained = rig.broker.explain(id(1)).unwrap();
    assert_eq!(explained.waits, Some(WaitsFor::Reader { kind: PayloadKind::Raw }));
    assert_eq!(explained.workers[0].verdict, Verdict::CannotRead(PayloadKind::Raw));
    let told = explained.waits.unwrap().to_string();
    assert!(told.starts_with("a worker that takes raw payloads"), "{told}");
    // What else is said to be missing: nobody at all, and then that nobody is one who reads it.
    rig.close("w1");
    rig.expect(["alice: waiting j1 no worker for job.assign.calcA"]);
    rig.hello("s1", WorkerClass::Classic, "calcA", None);
    rig.expect(["alice: waiting j1 1 for job.assign.calcA without raw payloads"]);
    rig.credit("s1", 1);
    rig.minimal("f0", "calcA");
    rig.expect(["+assign j1#1 f0", "f0: assign j1#1"]);
}

#[test]
fn m19_a_raw_job_that_requires_a_worker_is_refused_where_none_reads_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.submit(Submission { require_worker: true, ..raw(1) });
    rig.expect(["alice: refused j1 1 for job.assign.calcA without raw payloads"]);
    rig.credit("s1", 1);
    rig.minimal("f0", "calcA");
    rig.submit(Submission { require_worker: true, ..raw(1) });
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "+assign j1#1 f0",
        "f0: assign j1#1",
    ]);
}

#[test]
fn s22_a_job_to_all_has_a_child_for_each_worker_that_reads_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.worker("w1", "calcA", 1);
    rig.minimal("f0", "calcA");
    rig.submit(Submission { to_all: true, ..raw(1) });
    let assigned: Vec<String> =
        rig.take().into_iter().filter(|line| line.contains(": assign")).collect();
    assert_eq!(assigned.len(), 1, "{assigned:?}");
    assert!(assigned[0].starts_with("f0: "), "{assigned:?}");
}

#[test]
fn rt04_a_result_that_was_lost_is_asked_of_no_worker_that_cannot_read_the_job() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.minimal("f0", "calcA");
    rig.submit(raw(1));
    rig.skip();
    rig.classic("s1", "calcA", 1);
    rig.outcome("f0", 1, Outcome::ResultLost);
    rig.expect(["+dlq j1#1 ResultLost", "alice: result j1"]);
    assert!(rig.broker.workers().any(|worker| worker.id == worker_id("s1")));
}

/// A job with files in folders.
fn in_folders(number: u32) -> Submission {
    Submission { names: FileNames::Folders, ..job(number) }
}

#[test]
fn c08_jobs_with_files_in_folders_go_only_to_ours_and_hold_nobody_up() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(500));
    rig.skip();
    rig.classic("s1", "calcA", 2);
    for number in 1..=200 {
        rig.submit(in_folders(number));
        rig.skip();
    }
    rig.submit(Submission { names: FileNames::Flattened, ..job(201) });
    let assigned = rig.take().into_iter().filter(|line| line.starts_with("+assign"));
    assert_eq!(assigned.collect::<Vec<_>>(), ["+assign j201#1 s1"]);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
    rig.minimal("f0", "calcA");
    rig.expect(["+assign j2#1 f0", "f0: assign j2#1"]);
}

#[test]
fn c08_who_waits_for_a_worker_that_takes_folders_is_told_so_however_large_the_job() {
    let mut rig = Rig::new();
    rig.note_waiting();
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.submit(in_folders(1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "alice: waiting j1 1 for job.assign.calcA without files in folders, or with \"..\" in their names",
    ]);
    rig.submit(Submission { names: FileNames::Folders, ..announced(2) });
    rig.expect([
        "+announce j2",
        "alice: waiting j2 1 for job.assign.calcA without files in folders, or with \"..\" in their names",
    ]);
    rig.submit(Submission { require_worker: true, ..in_folders(3) });
    rig.expect([
        "alice: refused j3 1 for job.assign.calcA without files in folders, or with \"..\" in their names",
    ]);
}

#[test]
fn what_is_said_of_it_names_the_next_step() {
    let (key, workers, kind) = ("job.assign.g".to_owned(), 2, PayloadKind::Raw);
    let refusal = Refusal::NoReader { key: key.clone(), workers, kind }.to_string();
    let waiting = Waiting::NoReader { key, workers, kind }.to_string();
    for text in [refusal, waiting] {
        assert!(text.contains("raw payloads") && text.contains("start one that does"), "{text}");
    }
}
