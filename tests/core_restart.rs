//! What becomes of jobs that workers had when the leader begins anew (PE08), by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::Config;
use heft::core::event::WorkerClass;
use heft::core::job::{Ending, Phase};
use rig::{Rig, SECOND, job, job_to_all};

/// Alice's first job is with a worker of this class when the leader is killed.
fn killed_with(class: WorkerClass, config: Config) -> Rig {
    let mut rig = Rig::with(config);
    rig.client("alice");
    rig.hello("x", class, "calcA", Some(1));
    rig.credit("x", 1);
    rig.submit(job(1));
    rig.skip_to("x: assign j1#1");
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig
}

#[test]
fn what_a_classic_worker_had_is_requeued_at_once_and_not_counted() {
    for class in [WorkerClass::Classic, WorkerClass::OneAtATime] {
        let mut rig = killed_with(class, Config { attempts_max: 1, ..Config::default() });
        rig.expect(["+requeue j1#1 WorkerLost free now"]);
        assert_eq!(rig.running("alice"), 0);
        rig.worker("w1", "calcA", 1);
        rig.expect(["+assign j1#2 w1", "w1: assign j1#2"]);
    }
}

#[test]
fn what_a_worker_of_ours_had_is_waited_for() {
    let mut rig = killed_with(WorkerClass::Leasing, Config::default());
    rig.expect([]);
    rig.worker("w1", "calcA", 1);
    rig.expect([]);
    rig.pass(SECOND * 29);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+requeue j1#1 WorkerLost free now", "+assign j1#2 w1", "w1: assign j1#2"]);
}

#[test]
fn a_job_whose_leader_is_killed_again_and_again_waits_for_none_of_it() {
    let mut rig = killed_with(WorkerClass::Classic, Config::default());
    rig.expect(["+requeue j1#1 WorkerLost free now"]);
    for attempt in 2..8 {
        rig.classic("y", "calcA", 1);
        rig.skip_to(&format!("+assign j1#{attempt} y"));
        let state = rig.broker.state().clone();
        rig.restart(state);
        rig.expect([format!("+requeue j1#{attempt} WorkerLost free now").as_str()]);
    }
}

#[test]
fn s22_the_child_that_a_classic_worker_had_ends_at_once() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("x", "calcA", 1);
    rig.worker("w1", "calcA", 1);
    rig.submit(job_to_all(1));
    rig.skip();
    rig.ack_id("w1", rig.child(1, "w1"), true);
    rig.skip();
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig.expect(["+orphan j1@x", "drop input j1"]);
    assert!(matches!(rig.job(1).phase, Phase::Done { ending: Ending::Gathered { ok: false }, .. }));
}

#[test]
fn s22_a_child_that_waits_for_a_busy_classic_worker_ends_at_once_and_one_for_ours_is_kept() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("x", "calcA", 1);
    rig.submit(job(1));
    rig.skip_to("x: assign j1#1");
    rig.worker("w1", "calcA", 1);
    rig.submit(job(3));
    rig.skip_to("w1: assign j3#1");
    rig.submit(job_to_all(2));
    rig.skip();
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig.expect(["+orphan j2@x", "+requeue j1#1 WorkerLost free now"]);
    let kept = rig.broker.state().job(rig.child(2, "w1")).unwrap();
    assert!(matches!(kept.phase, Phase::Queued { .. }), "its worker is expected back");
}
