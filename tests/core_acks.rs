//! Who may end a job: a worker that has or had an attempt of it, and for a while after a start one
//! whose assignment may have been lost with the leader.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::event::{ClaimedAttempt, Operation, Outcome, WorkerClass};
use heft::core::ids::{Attempt, ResultId, Run, Token};
use heft::core::job::{Ending, Phase};
use heft::core::{Config, Event};
use rig::{Rig, SECOND, id, job, job_for, job_to_all};

/// Alice's first job is with the worker `w1`.
fn leased() -> Rig {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(job(1));
    rig.skip();
    rig
}

/// Nobody may take a result for one of a previous run.
fn past_the_start(rig: &mut Rig) {
    rig.pass(SECOND * 31);
    rig.skip();
}

#[test]
fn a_result_for_a_job_that_waits_changes_nothing() {
    for class in [WorkerClass::Leasing, WorkerClass::Classic, WorkerClass::OneAtATime] {
        let mut rig = Rig::new();
        rig.client("alice");
        rig.submit(job(1));
        rig.skip();
        rig.hello("x", class, "calcB", None);
        rig.credit("x", 1);
        rig.ack("x", 1);
        rig.expect(["x: result refused j1", "x: settle j1", "drop result r1"]);
        assert!(matches!(rig.job(1).phase, Phase::Queued { .. }));
        rig.worker("w1", "calcA", 1);
        rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
        rig.ack_of("w1", 1, 1, 1);
        rig.expect(["+ack j1 r2 ok w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
    }
}

#[test]
fn a_result_for_a_job_that_runs_elsewhere_changes_nothing_and_buys_no_credit() {
    let mut rig = leased();
    rig.classic("s1", "calcB", 1);
    rig.submit(job_for("calcB", 2));
    rig.skip_to("s1: assign j2#1");
    rig.submit(job_for("calcB", 3));
    rig.skip();
    rig.ack("s1", 1);
    rig.expect(["s1: result refused j1", "s1: settle j1", "drop result r1"]);
    rig.credit("s1", 1);
    rig.expect([]);
    rig.ack("w1", 1);
    rig.skip_to("+ack j1 r2 ok w1");
}

#[test]
fn others_can_neither_give_a_job_up_nor_lose_its_result_nor_hold_it() {
    let mut rig = leased();
    rig.progress("w1", 1, 1);
    rig.skip();
    rig.worker("x", "calcB", 1);
    rig.outcome("x", 1, Outcome::GivenUp);
    rig.expect([]);
    rig.outcome("x", 1, Outcome::ResultLost);
    rig.expect(["x: settle j1"]);
    rig.progress("x", 1, 1);
    rig.expect(["x: abandon j1#1"]);
    rig.pass(SECOND * 20);
    rig.beat("x", &[(1, 1)]);
    rig.expect(["x: abandon j1#1"]);
    // The lease is its worker's to renew.
    rig.pass(SECOND * 11);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 TimedOut counts later"]);
}

#[test]
fn a_job_is_ending_while_its_result_is_proposed_and_not_committed() {
    let mut rig = leased();
    assert!(!rig.broker.is_ending(id(1)));
    rig.delay_commits();
    rig.ack_of("w1", 1, 1, 1);
    rig.expect(["+ack j1 r1 ok w1"]);
    assert!(rig.broker.is_ending(id(1)) && !rig.broker.is_ending(id(2)));
    rig.commit();
    rig.skip();
    assert!(!rig.broker.is_ending(id(1)) && matches!(rig.job(1).phase, Phase::Done { .. }));
}

#[test]
fn c07_a_late_result_counts_also_after_a_restart() {
    let mut rig = leased();
    rig.pass(SECOND * 31);
    rig.skip_to("+requeue j1#1 TimedOut free later");
    let state = rig.broker.state().clone();
    rig.restart(state);
    past_the_start(&mut rig);
    rig.client("alice");
    rig.skip();
    rig.worker("w1", "calcB", 1);
    rig.ack_of("w1", 1, 1, 1);
    rig.expect(["+ack j1 r1 ok w1", "w1/2: settle j1", "drop input j1"]);
}

#[test]
fn a_result_of_an_earlier_run_is_not_that_of_the_next_and_ends_no_attempt_of_it() {
    let mut rig = Rig::with(Config { attempts_max: 1, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(job(1));
    rig.skip();
    rig.progress("w1", 1, 1);
    rig.skip();
    rig.pass(SECOND * 31);
    rig.skip_to("+dlq j1#1 TimedOut");
    let operation = Operation::Revive { job: Some(id(1)) };
    rig.tell(Event::Operate { token: Token(7), operation });
    rig.skip_to("+revive j1");
    // It is not silent any more, and is given the second run before its answer for the first comes.
    rig.beat("w1", &[]);
    rig.skip();
    rig.credit("w1", 1);
    rig.skip_to("w1: assign j1.2#2");
    rig.ack_of("w1", 1, 1, 1);
    rig.expect(["w1: result refused j1", "w1: settle j1", "drop result r1"]);
    assert!(matches!(rig.job(1).phase, Phase::Leased { attempt: Attempt(2), .. }));
    assert!(rig.worker_named("w1").held.contains_key(&id(1)), "it goes on with the second");
    rig.ack_of("w1", 1, 2, 2);
    rig.skip_to("+ack j1.2 r2 ok w1");
}

#[test]
fn a_result_for_a_job_that_has_ended_or_is_not_known_is_settled_by_the_run_that_it_names() {
    let mut rig = leased();
    rig.ack_of("w1", 1, 1, 1);
    rig.skip();
    rig.worker("w2", "calcB", 1);
    rig.ack_of("w2", 1, 4, 9);
    rig.expect(["w2: settle j1.4", "drop result r2"]);
    rig.ack_of("w2", 5, 3, 1);
    rig.expect(["w2: settle j5.3", "drop result r3"]);
}

/// A leader begins anew and has lost the record that gave the job to `w1` as its first attempt.
fn lost_assignment() -> Rig {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    let state = rig.broker.state().clone();
    rig.worker("w1", "calcA", 1);
    rig.skip_to("w1: assign j1#1");
    past_the_start(&mut rig);
    rig.restart(state);
    rig.client("alice");
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
    rig.skip();
    rig
}

#[test]
fn c30_a_result_whose_assignment_was_lost_with_the_leader_counts_soon_after_its_start() {
    let mut rig = lost_assignment();
    rig.pass(SECOND * 29);
    rig.skip();
    assert!(rig.broker.may_bring(rig.conn("w1"), id(1), Attempt(1)), "its parts too");
    rig.ack_of("w1", 1, 1, 1);
    rig.expect(["+ack j1 r1 ok w1", "w1/2: settle j1", "drop input j1"]);
}

#[test]
fn c30_a_result_that_could_be_anybodys_does_not_count() {
    // Of another run, of no attempt that is said, of one that is known.
    let names =
        [(Some(2), Some(1)), (Some(1), None), (None, Some(1)), (None, None), (Some(1), Some(0))];
    for (run, attempt) in names {
        let mut rig = lost_assignment();
        let named = ClaimedAttempt { run: run.map(Run), attempt: attempt.map(Attempt) };
        let outcome = Outcome::Returned { result: ResultId(1), ok: true };
        let conn = rig.conn("w1");
        assert!(rig.broker.is_foreign_ack(conn, id(1), named));
        rig.tell(Event::Ack { conn, job: id(1), named, outcome });
        rig.skip_to("w1/2: result refused j1");
        assert!(matches!(rig.job(1).phase, Phase::Queued { .. }));
    }
    // Too late.
    let mut rig = lost_assignment();
    rig.pass(SECOND * 30);
    rig.skip();
    assert!(!rig.broker.may_bring(rig.conn("w1"), id(1), Attempt(1)));
    rig.ack_of("w1", 1, 1, 1);
    rig.skip_to("w1/2: result refused j1");
    // Of a worker that is told no attempts.
    let mut rig = lost_assignment();
    rig.classic("s1", "calcB", 1);
    rig.ack_of("s1", 1, 1, 1);
    rig.skip_to("s1: result refused j1");
    // Another has been given that attempt meanwhile: whose it is cannot be told.
    let mut rig = lost_assignment();
    rig.worker("w2", "calcA", 1);
    rig.skip_to("w2: assign j1#1");
    rig.ack_of("w1", 1, 1, 1);
    rig.skip_to("w1/2: result refused j1");
    rig.ack_of("w2", 1, 1, 1);
    rig.skip_to("+ack j1 r2 ok w2");
}

#[test]
fn c30_a_job_of_this_life_or_one_that_somebody_has_is_not_ended_by_a_stranger() {
    // It came when the leader had begun.
    let mut rig = lost_assignment();
    rig.submit(job(2));
    rig.skip();
    rig.ack_of("w1", 2, 1, 1);
    rig.skip_to("w1/2: result refused j2");
    // This life gave it out.
    let mut rig = lost_assignment();
    rig.worker("w2", "calcA", 1);
    rig.skip_to("w2: assign j1#1");
    rig.ack_of("w1", 1, 1, 2);
    rig.skip_to("w1/2: result refused j1");
    // A leader that begins with nothing.
    let mut rig = Rig::new();
    rig.client("alice");
    rig.hello("w1", WorkerClass::Leasing, "calcB", Some(1));
    rig.submit(job(1));
    rig.skip();
    rig.ack_of("w1", 1, 1, 1);
    rig.skip_to("w1: result refused j1");
}

#[test]
fn s22_c30_a_job_to_all_is_ended_by_its_children_and_a_child_by_its_worker() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
    rig.hello("w2", WorkerClass::Leasing, "calcA", Some(1));
    rig.submit(job_to_all(1));
    rig.skip();
    let child = rig.child(1, "w1");
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig.worker("w2", "calcA", 1);
    rig.skip_to("w2/2: assign j1@w2#1");
    for (result, job) in [(1, id(1)), (2, child)] {
        let named = ClaimedAttempt { run: Some(Run(1)), attempt: Some(Attempt(1)) };
        let outcome = Outcome::Returned { result: ResultId(result), ok: true };
        rig.tell(Event::Ack { conn: rig.conn("w2"), job, named, outcome });
        assert!(rig.take().iter().any(|line| line.starts_with("w2/2: result refused j1")));
    }
    assert!(matches!(rig.job(1).phase, Phase::Gathering { left: 2 }));
}

#[test]
fn a_worker_that_had_the_dropped_job_of_an_id_does_not_end_the_next_of_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(rig::announced(1));
    rig.skip_to("w1: assign j1#1 not to start");
    past_the_start(&mut rig);
    rig.tell(Event::Withdraw { job: id(1) });
    rig.skip();
    rig.submit(job(1));
    rig.skip();
    rig.ack("w1", 1);
    assert!(rig.take().iter().any(|line| line == "w1: result refused j1"));
    assert!(!matches!(rig.job(1).phase, Phase::Done { ending: Ending::Returned { .. }, .. }));
}
