//! Jobs to all workers (S22), by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::Config;
use heft::core::event::{Outcome, WorkerClass};
use heft::core::job::{Ending, Phase};
use rig::{Rig, SECOND, job, job_to_all};

/// A job to two workers that have it.
fn given_to_two() -> Rig {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.worker("w2", "job.assign.>", 1);
    rig.worker("w3", "calcB", 1);
    rig.submit(job_to_all(1));
    rig.expect([
        "+enqueue j1 @w1 @w2",
        "alice: submitted j1 Queued behind 0",
        "+assign j1@w1#1 w1",
        "+assign j1@w2#1 w2",
        "w1: assign j1@w1#1",
        "w2: assign j1@w2#1",
    ]);
    rig
}

#[track_caller]
fn assert_gathered(rig: &Rig, all_ok: bool) {
    let Phase::Done { ending: Ending::Gathered { ok }, .. } = rig.job(1).phase else {
        panic!("j1 has not gathered: {:?}", rig.job(1).phase)
    };
    assert_eq!(ok, all_ok);
}

#[test]
fn s22_every_matching_worker_gets_the_job_and_the_client_one_answer() {
    let mut rig = given_to_two();
    rig.ack_id("w1", rig.child(1, "w1"), true);
    rig.expect(["+ack j1@w1 r1 ok w1", "w1: settle j1@w1"]);
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.expect(["+ack j1@w2 r2 ok w2", "w2: settle j1@w2", "drop input j1", "alice: result j1"]);
    assert_gathered(&rig, true);
}

#[test]
fn s22_a_child_that_fails_makes_the_whole_fail_and_nothing_else() {
    let mut rig = given_to_two();
    rig.ack_id("w1", rig.child(1, "w1"), false);
    rig.expect(["+ack j1@w1 r1 failed w1", "w1: settle j1@w1"]);
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.expect(["+ack j1@w2 r2 ok w2", "w2: settle j1@w2", "drop input j1", "alice: result j1"]);
    assert_gathered(&rig, false);
}

#[test]
fn s22_a_child_whose_worker_is_lost_goes_nowhere_else() {
    let mut rig = given_to_two();
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.skip();
    rig.close("w1");
    rig.pass(SECOND * 4);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+orphan j1@w1", "drop input j1", "alice: result j1"]);
    assert_gathered(&rig, false);
}

#[test]
fn s22_a_child_whose_worker_comes_back_without_it_is_given_to_it_again() {
    let mut rig = given_to_two();
    rig.close("w1");
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
    rig.beat("w1", &[]);
    rig.expect(["+requeue j1@w1#1 NotHeld free now"]);
    rig.credit("w1", 1);
    rig.expect(["+assign j1@w1#2 w1", "w1/2: assign j1@w1#2"]);
}

#[test]
fn s22_a_child_waits_for_its_workers_credit_and_is_orphaned_with_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.hello("s1", WorkerClass::Classic, "calcA", None);
    rig.worker("w2", "calcA", 2);
    rig.submit(job_to_all(1));
    rig.expect([
        "+enqueue j1 @s1 @w2",
        "alice: submitted j1 Queued behind 0",
        "+assign j1@w2#1 w2",
        "w2: assign j1@w2#1",
    ]);
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.skip();
    rig.close("s1");
    rig.expect(["+orphan j1@s1", "drop input j1", "alice: result j1"]);
    assert_gathered(&rig, false);
}

#[test]
fn s22_a_cancelled_job_takes_its_children_with_it() {
    let mut rig = given_to_two();
    rig.ack_id("w1", rig.child(1, "w1"), true);
    rig.skip();
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "+cancel j1@w2 by its parent ended",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Running })",
        "w2: abandon j1@w2#1",
    ]);
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.expect(["w2: settle j1@w2", "drop result r2"]);
    rig.pass(SECOND * 3600);
    rig.expect(["+forget j1", "drop result r1"]);
    assert_eq!(rig.broker.state().job_count(), 0);
}

#[test]
fn s22_a_cancelled_child_counts_as_one_that_failed() {
    let mut rig = given_to_two();
    rig.cancel_id(rig.child(1, "w1"));
    rig.expect([
        "+cancel j1@w1 by ops",
        "w1: abandon j1@w1#1",
        "answer 1: Ok(Cancelled { was: Running })",
    ]);
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.skip();
    assert_gathered(&rig, false);
}

#[test]
fn s22_a_child_that_uses_up_its_attempts_is_no_entry_of_the_dlq() {
    let mut rig = Rig::with(Config { attempts_max: 1, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(job_to_all(1));
    rig.skip();
    let child = rig.child(1, "w1");
    let conn = rig.conn("w1");
    rig.tell(heft::core::Event::Progress {
        conn,
        job: child,
        run: heft::core::ids::Run(1),
        attempt: heft::core::ids::Attempt(1),
        doing: heft::core::event::Doing::Running,
    });
    rig.expect([]);
    rig.tell(heft::core::Event::Ack {
        conn,
        job: child,
        named: Default::default(),
        outcome: Outcome::GivenUp,
    });
    rig.expect(["+dlq j1@w1#1 GivenUp", "drop input j1", "alice: result j1"]);
    assert_eq!(rig.broker.state().dead().count(), 0);
    assert_gathered(&rig, false);
}

#[test]
fn s22_a_dead_child_is_no_entry_of_the_dead_letter_queue_and_counts_once() {
    let mut rig = Rig::with(Config { attempts_max: 1, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.worker("w2", "calcA", 1);
    rig.submit(job_to_all(1));
    rig.skip();
    let (conn, child) = (rig.conn("w1"), rig.child(1, "w1"));
    let (run, attempt) = (heft::core::ids::Run(1), heft::core::ids::Attempt(1));
    let doing = heft::core::event::Doing::Running;
    rig.tell(heft::core::Event::Progress { conn, job: child, run, attempt, doing });
    let (named, outcome) = (Default::default(), Outcome::GivenUp);
    rig.tell(heft::core::Event::Ack { conn, job: child, named, outcome });
    rig.expect(["+dlq j1@w1#1 GivenUp"]);
    let refused = format!("Err(Part {{ job: {child:?}, parent: {:?} }})", rig::id(1));
    rig.operate(heft::core::event::Operation::Revive { job: Some(child) });
    rig.expect([&*format!("answer 1: {refused}")]);
    rig.operate(heft::core::event::Operation::Purge { job: Some(child) });
    rig.expect([&*format!("answer 2: {refused}")]);
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.skip();
    assert_gathered(&rig, false);
}

#[test]
fn s22_c17_a_childs_result_lost_at_its_worker_is_lost_although_others_match() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.classic("s2", "calcA", 1);
    rig.submit(job_to_all(1));
    rig.skip();
    let (conn, child) = (rig.conn("s1"), rig.child(1, "s1"));
    rig.tell(heft::core::Event::Ack {
        conn,
        job: child,
        named: Default::default(),
        outcome: Outcome::ResultLost,
    });
    rig.expect(["+dlq j1@s1#1 ResultLost"]);
}

#[test]
fn s22_without_a_matching_worker_the_job_is_refused() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcB", 1);
    rig.submit(job_to_all(1));
    rig.expect(["alice: refused j1 no worker for job.assign.calcA"]);
}

#[test]
fn s22_who_joins_later_is_not_asked() {
    let mut rig = given_to_two();
    rig.worker("w4", "calcA", 1);
    rig.expect([]);
}

#[test]
fn s22_children_are_no_part_of_their_clients_cap() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    for worker in ["w1", "w2", "w3"] {
        rig.worker(worker, "calcA", 2);
    }
    rig.submit(job_to_all(1));
    assert_eq!(rig.take().iter().filter(|line| line.contains(": assign ")).count(), 3);
    assert_eq!(rig.running("alice"), 0);
    rig.submit(job(2));
    rig.expect([
        "+enqueue j2",
        "alice: submitted j2 Queued behind 0",
        "+assign j2#1 w1",
        "w1: assign j2#1",
    ]);
    assert_eq!(rig.running("alice"), 1);
}

#[test]
fn s22_jobs_max_counts_the_children() {
    let mut rig = Rig::with(Config { jobs_max: 3, ..Config::default() });
    rig.client("alice");
    for worker in ["w1", "w2"] {
        rig.worker(worker, "calcA", 1);
    }
    rig.submit(job(1));
    rig.skip();
    rig.submit(job_to_all(2));
    rig.expect(["alice: refused j2 full 1 of 3"]);
    rig.ack("w1", 1);
    rig.skip();
    rig.pass(SECOND * 3600);
    rig.skip();
    rig.submit(job_to_all(2));
    assert_eq!(rig.take().first().map(String::as_str), Some("+enqueue j2 @w1 @w2"));
}

#[test]
fn s22_an_id_that_a_child_would_take_from_another_job_is_a_conflict() {
    let rig = given_to_two();
    let taken = rig.child(1, "w1");
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(heft::core::event::Submission { job: taken, ..job(9) });
    rig.skip();
    rig.submit(job_to_all(1));
    rig.expect(["alice: refused j1 conflict"]);
}

#[test]
fn s22_a_childs_id_cannot_be_submitted() {
    let mut rig = given_to_two();
    let child = rig.child(1, "w1");
    rig.submit(heft::core::event::Submission { job: child, ..job(9) });
    rig.expect(["alice: refused j1@w1 conflict"]);
}

#[test]
fn s22_a_repeated_submit_finds_the_job_running_and_then_its_answer() {
    let mut rig = given_to_two();
    rig.submit(job_to_all(1));
    rig.expect(["alice: submitted j1 Running behind 0"]);
    rig.ack_id("w1", rig.child(1, "w1"), true);
    rig.skip();
    rig.ack_id("w2", rig.child(1, "w2"), true);
    rig.skip();
    rig.submit(job_to_all(1));
    rig.expect(["alice: submitted j1 Finished behind 0", "alice: result j1"]);
}
