//! Jobs that need transfers among workers that take none, and what clients hear of workers that are
//! not there, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::Event;
use heft::core::action::{Refusal, Waiting};
use heft::core::event::{Submission, WorkerClass};
use rig::{Rig, announced, id, job};

#[test]
fn a_job_that_needs_transfers_goes_only_where_they_are_taken_and_holds_nobody_up() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(500));
    rig.skip();
    rig.classic("s1", "calcA", 1);
    rig.hello_with("w1", WorkerClass::Leasing, "calcA", Some(1), false);
    rig.credit("w1", 1);
    for number in 1..=200 {
        rig.submit(announced(number));
        rig.skip();
    }
    rig.submit(job(201));
    rig.expect([
        "+enqueue j201",
        "alice: submitted j201 Queued behind 200",
        "+assign j201#1 s1",
        "s1: assign j201#1",
    ]);
    rig.worker("w2", "calcA", 1);
    rig.expect(["+assign j1#1 w2", "w2: assign j1#1 not to start"]);
}

#[test]
fn c28_jobs_with_and_without_transfers_are_served_in_one_order() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(Submission { priority: 1, ..job(1) });
    rig.submit_next(announced(2));
    rig.submit_next(job(3));
    rig.submit_next(Submission { priority: -1, ..announced(4) });
    rig.skip();
    rig.worker("w1", "calcA", 4);
    let assigned: Vec<String> =
        rig.take().into_iter().filter(|line| line.starts_with('+')).collect();
    assert_eq!(
        assigned,
        ["+assign j4#1 w1", "+assign j2#1 w1", "+assign j3#1 w1", "+assign j1#1 w1"]
    );
}

#[test]
fn a_job_that_is_announced_and_fits_a_frame_may_go_to_a_classic_worker_once_it_is_taken() {
    let mut rig = Rig::new();
    rig.note_waiting();
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.submit(Submission { needs_transfers: false, ..announced(1) });
    rig.expect(["+announce j1"]);
    rig.tell(Event::InputsHere { job: id(1), kept: true });
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "+assign j1#1 s1",
        "s1: assign j1#1",
    ]);
}

#[test]
fn a_job_that_requires_a_worker_is_refused_where_there_is_none() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(Submission { require_worker: true, ..job(1) });
    rig.expect(["alice: refused j1 no worker for job.assign.calcA"]);
    rig.classic("s1", "calcA", 0);
    rig.submit(Submission { require_worker: true, ..announced(1) });
    rig.expect(["alice: refused j1 1 classic workers for job.assign.calcA, 67108864 of 4194304"]);
    rig.submit(Submission { require_worker: true, ..job(1) });
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
    rig.submit(Submission { require_worker: true, ..announced(2) });
    rig.expect(["+announce j2"]);
}

#[test]
fn a_client_is_told_once_what_its_job_waits_for() {
    let mut rig = Rig::new();
    rig.note_waiting();
    rig.client("alice");
    rig.submit(announced(1));
    rig.expect(["+announce j1", "alice: waiting j1 no worker for job.assign.calcA"]);
    rig.submit(job(2));
    rig.expect([
        "+enqueue j2",
        "alice: submitted j2 Queued behind 1",
        "alice: waiting j2 no worker for job.assign.calcA",
    ]);
    rig.tell(Event::InputsHere { job: id(1), kept: true });
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
    rig.hello("s1", WorkerClass::Classic, "calcA", None);
    rig.expect(["alice: waiting j1 1 classic workers for job.assign.calcA"]);
    rig.hello("s2", WorkerClass::Classic, "calcA", None);
    rig.expect([]);
    rig.close("s1");
    rig.close("s2");
    let mut lines = rig.take();
    lines.sort();
    let none = "no worker for job.assign.calcA";
    assert_eq!(lines, [format!("alice: waiting j1 {none}"), format!("alice: waiting j2 {none}")]);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    rig.expect([]);
    rig.credit("w1", 2);
    assert_eq!(rig.take().len(), 4, "both are given out");
}

#[test]
fn a_client_on_another_connection_is_told_there_what_its_job_waits_for() {
    let mut rig = Rig::new();
    rig.note_waiting();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.close("alice");
    rig.hello("s1", WorkerClass::Classic, "calcB", None);
    rig.client("alice");
    rig.expect([]);
    rig.submit(job(1));
    rig.expect([
        "alice/2: submitted j1 Queued behind 0",
        "alice/2: waiting j1 no worker for job.assign.calcA",
    ]);
}

#[test]
fn what_is_said_of_missing_workers_names_numbers_and_the_next_step() {
    let key = || "job.assign.calcA".to_owned();
    assert_eq!(
        Waiting::NoWorker { key: key() }.to_string(),
        "no connected worker matches job.assign.calcA: start one"
    );
    assert_eq!(
        Waiting::NoTransfers { key: key(), workers: 3 }.to_string(),
        "the 3 connected workers that match job.assign.calcA are classic workers, which take frames of at most 4,194,304 \
         bytes; start a heft worker, or an agent (`heft worker --cache-only`) beside the classic worker"
    );
    assert_eq!(chunking::limits::FRAME_BODY_BYTES_MAX, 4_194_304);
    assert_eq!(
        Refusal::NoCapableWorker { key: key(), workers: 3, bytes: 5_000_000, limit: 4_194_304 }
            .to_string(),
        "the job has 5000000 bytes, and the 3 connected workers that match job.assign.calcA are classic workers, which \
         take frames of at most 4194304: start a heft worker, or an agent (`heft worker --cache-only`) beside the classic worker"
    );
}
