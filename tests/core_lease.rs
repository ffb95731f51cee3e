//! Workers that lease: renewal, expiry and the grace of one that is away; the rows C05, C06 and
//! C30, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::time::Duration;

use heft::core::Config;
use heft::core::Event;
use heft::core::event::{Outcome, WorkerClass};
use heft::core::ids::Micros;
use rig::{Rig, SECOND, id, job, worker_id};

fn leased_with(config: Config) -> Rig {
    let mut rig = Rig::with(config);
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
    rig
}

fn leased() -> Rig {
    leased_with(Config::default())
}

fn started() -> Rig {
    let mut rig = leased();
    rig.progress("w1", 1, 1);
    rig.expect(["alice: running j1#1"]);
    rig
}

fn until(rig: &Rig) -> Option<Micros> {
    rig.worker_named("w1").held.get(&id(1)).and_then(|lease| lease.until)
}

/// The worker says hello again; what it offers and holds comes later.
fn comes_back(rig: &mut Rig) {
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
}

#[test]
fn c05_progress_says_once_for_each_attempt_that_a_job_runs_and_is_no_end() {
    let mut rig = started();
    rig.progress("w1", 1, 1);
    rig.progress("w1", 1, 1);
    rig.expect([]);
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
}

#[test]
fn c06_a_lease_without_a_sign_of_life_expires_after_thirty_seconds() {
    let mut rig = started();
    rig.pass(Duration::from_millis(29_999));
    rig.expect([]);
    rig.pass(Duration::from_millis(1));
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 TimedOut counts later"]);
    let wait = rig.wait_of(1);
    assert!(wait >= SECOND * 4 / 5 && wait <= SECOND * 6 / 5, "{wait:?}");
}

#[test]
fn c06_a_heartbeat_renews_the_leases_it_names_and_no_others() {
    let mut rig = started();
    for _ in 0..10 {
        rig.pass(SECOND * 20);
        rig.beat("w1", &[(1, 1)]);
        rig.expect([]);
    }
    rig.pass(SECOND * 20);
    rig.beat("w1", &[]);
    rig.expect([]);
    rig.pass(SECOND * 10);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 TimedOut counts later"]);
}

#[test]
fn c06_progress_renews_a_lease() {
    let mut rig = started();
    for _ in 0..10 {
        rig.pass(SECOND * 20);
        rig.progress("w1", 1, 1);
        rig.expect([]);
    }
    assert_eq!(until(&rig), Some(rig.now().plus(SECOND * 30)));
}

#[test]
fn c06_heartbeat_and_progress_of_an_old_attempt_renew_nothing() {
    let mut rig = started();
    rig.pass(SECOND * 30);
    rig.skip();
    rig.pass(SECOND * 2);
    rig.expect([]);
    rig.credit("w1", 1);
    rig.expect(["+assign j1#2 w1", "w1: assign j1#2"]);
    let before = until(&rig);
    rig.pass(SECOND);
    rig.progress("w1", 1, 1);
    rig.expect(["w1: abandon j1#1"]);
    rig.beat("w1", &[(1, 1)]);
    rig.expect(["w1: abandon j1#1"]);
    assert_eq!(until(&rig), before);
}

#[test]
fn c06_an_expired_lease_that_never_started_does_not_count() {
    let mut rig = leased();
    rig.pass(SECOND * 30);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 TimedOut free later"]);
}

#[test]
fn c06_ours_are_not_under_the_classic_ack_timeout() {
    let mut rig = leased_with(Config { classic_ack_timeout: true, ..Config::default() });
    rig.pass(SECOND * 29);
    rig.expect([]);
    rig.progress("w1", 1, 1);
    rig.skip();
    rig.pass(SECOND * 30);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 TimedOut counts later"]);
}

#[test]
fn c07_a_result_after_the_lease_expired_is_the_result() {
    let mut rig = started();
    rig.pass(SECOND * 30);
    rig.skip();
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
    rig.pass(SECOND * 60);
    rig.credit("w1", 1);
    rig.expect([]);
}

#[test]
fn a_heartbeat_that_names_what_is_not_held_is_told_to_drop_it() {
    let mut rig = leased();
    rig.submit(job(2));
    rig.skip();
    rig.beat("w1", &[(1, 1), (2, 1), (9, 1)]);
    rig.expect(["w1: abandon j2#1", "w1: settle j9"]);
}

#[test]
fn a_given_up_job_that_had_begun_counts_and_goes_elsewhere() {
    let mut rig = started();
    rig.worker("w2", "calcA", 1);
    rig.outcome("w1", 1, Outcome::GivenUp);
    rig.expect(["+requeue j1#1 GivenUp counts now", "+assign j1#2 w2", "w2: assign j1#2"]);
}

#[test]
fn grace_a_worker_that_is_back_in_time_with_its_inventory_keeps_its_jobs() {
    let mut rig = started();
    rig.submit(job(2));
    rig.skip();
    rig.worker("w2", "calcB", 9);
    rig.close("w1");
    rig.pass(Duration::from_millis(4_999));
    rig.expect([]);
    comes_back(&mut rig);
    rig.beat("w1", &[(1, 1)]);
    rig.credit("w1", 1);
    rig.expect([]);
    rig.pass(SECOND * 10);
    rig.expect([]);
    rig.ack("w1", 1);
    // What it offered while its result was on its way counts now: it does not offer twice.
    rig.expect([
        "+ack j1 r1 ok w1",
        "+assign j2#1 w1",
        "w1/2: settle j1",
        "drop input j1",
        "alice: result j1",
        "w1/2: assign j2#1",
    ]);
}

#[test]
fn grace_a_worker_that_is_back_without_its_jobs_loses_them_at_once() {
    let mut rig = started();
    rig.close("w1");
    comes_back(&mut rig);
    rig.beat("w1", &[]);
    rig.expect(["+requeue j1#1 NotHeld counts now"]);
    rig.credit("w1", 1);
    rig.expect(["+assign j1#2 w1", "w1/2: assign j1#2"]);
    rig.beat("w1", &[]);
    rig.expect([]);
}

#[test]
fn grace_credit_that_comes_before_the_inventory_is_not_lost() {
    let mut rig = leased();
    rig.close("w1");
    comes_back(&mut rig);
    rig.credit("w1", 1);
    rig.expect([]);
    rig.beat("w1", &[]);
    rig.expect(["+requeue j1#1 NotHeld free now", "+assign j1#2 w1", "w1/2: assign j1#2"]);
}

#[test]
fn grace_after_it_the_jobs_are_requeued() {
    let mut rig = started();
    rig.worker("w2", "calcA", 1);
    rig.close("w1");
    rig.pass(Duration::from_millis(4_999));
    rig.expect([]);
    rig.pass(Duration::from_millis(1));
    rig.expect(["+requeue j1#1 WorkerLost counts now", "+assign j1#2 w2", "w2: assign j1#2"]);
    assert!(rig.broker.workers().all(|worker| worker.id != worker_id("w1")));
}

#[test]
fn grace_a_worker_that_is_back_too_late_is_told_to_drop_its_jobs() {
    let mut rig = started();
    rig.worker("w2", "calcA", 1);
    rig.close("w1");
    rig.pass(SECOND * 5);
    rig.skip();
    comes_back(&mut rig);
    rig.beat("w1", &[(1, 1)]);
    rig.expect(["w1/2: abandon j1#1"]);
}

#[test]
fn grace_a_worker_that_comes_and_goes_has_the_whole_grace_each_time() {
    let mut rig = started();
    for _ in 0..3 {
        rig.close("w1");
        rig.pass(SECOND * 3);
        comes_back(&mut rig);
        rig.beat("w1", &[(1, 1)]);
        rig.pass(SECOND);
        rig.expect([]);
    }
}

#[test]
fn grace_decides_while_a_worker_is_away_and_not_its_leases() {
    let config = Config { lease: SECOND * 2, worker_grace: SECOND * 10, ..Config::default() };
    let mut rig = leased_with(config);
    rig.close("w1");
    rig.pass(SECOND * 8);
    rig.expect([]);
    comes_back(&mut rig);
    rig.beat("w1", &[(1, 1)]);
    rig.pass(SECOND);
    rig.expect([]);
    rig.pass(SECOND * 2);
    rig.expect(["w1/2: abandon j1#1", "+requeue j1#1 TimedOut free later"]);
}

#[test]
fn grace_a_worker_that_is_back_and_silent_holds_its_jobs_no_longer_than_a_lease() {
    let mut rig = started();
    rig.close("w1");
    comes_back(&mut rig);
    rig.pass(SECOND * 30);
    rig.expect(["w1/2: abandon j1#1", "+requeue j1#1 TimedOut counts later"]);
}

#[test]
fn c30_an_assignment_to_a_worker_that_has_gone_is_requeued_and_does_not_count() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.submit(job(1));
    rig.skip();
    rig.ack("w1", 1);
    rig.skip();
    rig.delay_commits();
    rig.submit(job(2));
    rig.skip();
    rig.commit();
    rig.skip();
    rig.credit("w1", 1);
    rig.expect(["+assign j2#1 w1"]);
    rig.close("w1");
    rig.expect([]);
    rig.commit();
    rig.expect(["+requeue j2#1 WorkerLost free now"]);
    rig.commit();
    rig.expect([]);
    assert_eq!((rig.broker.queues().len(), rig.job(2).spent), (1, 0));
}

#[test]
fn c30_an_assignment_to_a_worker_that_is_back_meanwhile_goes_to_its_new_connection() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.delay_commits();
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1"]);
    rig.close("w1");
    comes_back(&mut rig);
    rig.commit();
    rig.expect(["w1/2: assign j1#1"]);
}

#[test]
fn a_result_that_comes_after_the_grace_is_the_result() {
    let mut rig = started();
    rig.close("w1");
    rig.pass(SECOND * 5);
    rig.expect(["+requeue j1#1 WorkerLost counts now"]);
    comes_back(&mut rig);
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1/2: settle j1", "drop input j1", "alice: result j1"]);
    rig.credit("w1", 1);
    rig.expect([]);
}

#[test]
fn a_stranger_can_neither_renew_nor_end_a_job() {
    let mut rig = leased();
    let before = until(&rig);
    rig.pass(SECOND);
    rig.progress("alice", 1, 1);
    rig.beat("alice", &[(1, 1)]);
    rig.expect([]);
    rig.ack("alice", 1);
    rig.expect(["drop result r1"]);
    assert_eq!(until(&rig), before);
    rig.tell(Event::Closed { conn: heft::core::ids::ConnId(99) });
    rig.expect([]);
}

#[test]
fn a_silent_worker_is_given_nothing_after_a_lost_lease_and_cut_off_after_two() {
    let mut rig = Rig::new();
    rig.note_silence();
    rig.worker("w1", "job.assign.>", 2);
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.pass(SECOND * 31);
    rig.skip();
    rig.submit(job(2));
    assert!(
        !rig.take().iter().any(|line| line.contains("assign")),
        "it has said nothing since its lease ran out"
    );
    rig.pass(SECOND * 28);
    assert!(!rig.take().iter().any(|line| line.contains("close")));
    rig.pass(SECOND * 2);
    rig.expect(["w1: close, the worker has been silent for twice its lease"]);
}

#[test]
fn a_worker_that_says_anything_is_not_silent() {
    let mut rig = Rig::new();
    rig.note_silence();
    rig.worker("w1", "job.assign.>", 2);
    rig.skip();
    for _ in 0..10 {
        rig.pass(SECOND * 20);
        rig.beat("w1", &[]);
        rig.expect([]);
    }
}
