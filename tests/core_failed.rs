//! Jobs that failed: how long their inputs stay, and their next run (DL05), by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::event::Operation;
use heft::core::ids::{Attempt, JobId};
use heft::core::job::InputsState;
use heft::core::record::AttemptEnd;
use heft::core::{Config, Event};
use rig::{Rig, SECOND, announced, id, job, job_to_all, worker_id};

/// Alice's first job failed at a worker.
fn failed_with(config: Config) -> Rig {
    let mut rig = Rig::with(config);
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.classic("s1", "calcA", 9);
    rig.skip();
    rig.ack_id("s1", id(1), false);
    rig.expect(["+ack j1 r1 failed s1", "s1: settle j1", "retain input j1", "alice: result j1"]);
    rig
}

fn failed() -> Rig {
    failed_with(Config::default())
}

fn retry(rig: &mut Rig, job: JobId) {
    rig.operate(Operation::Retry { job });
}

/// Asks for another run, which is refused for this reason.
#[track_caller]
fn assert_refused(rig: &mut Rig, job: JobId, why: &str) {
    retry(rig, job);
    let lines = rig.take();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(lines[0].contains(why), "{lines:?}");
}

#[test]
fn dl05_a_failed_job_runs_again_with_its_inputs_and_its_new_result_is_the_one_that_counts() {
    let mut rig = failed();
    assert_eq!(rig.broker.state().retained_count(), 1);
    retry(&mut rig, id(1));
    rig.expect([
        "+revive j1",
        "reuse input j1",
        "drop result r1",
        "answer 1: Ok(Retried { run: Run(2) })",
        "+assign j1.2#2 s1",
        "s1: assign j1.2#2",
    ]);
    assert_eq!(rig.broker.state().retained_count(), 0);
    let earlier: Vec<_> =
        rig.job(1).earlier.iter().map(|of| (of.run.0, of.attempt.0, of.worker, of.why)).collect();
    assert_eq!(earlier, [(1, 1, worker_id("s1"), None)], "it returned a result");
    rig.ack("s1", 1);
    rig.expect(["+ack j1.2 r2 ok s1", "s1: settle j1.2", "drop input j1", "alice: result j1.2"]);
    // The end of its first run is not that of its second.
    rig.submit(job(1));
    rig.expect(["alice: submitted j1.2 Finished behind 0", "alice: result j1.2"]);
    assert_refused(&mut rig, id(1), "NotAgain");
}

#[test]
fn dl05_a_job_can_fail_and_be_retried_as_often_as_somebody_wants_and_leaves_nothing_behind() {
    let mut rig = failed_with(Config { result_ttl: SECOND * 100, ..Config::default() });
    for run in 2..6 {
        rig.pass(SECOND * 60);
        retry(&mut rig, id(1));
        rig.skip_to(&format!("answer {}: Ok(Retried {{ run: Run({run}) }})", run - 1));
        rig.skip();
        rig.ack_id("s1", id(1), false);
        rig.skip();
    }
    rig.pass(SECOND * 90);
    rig.expect([]);
    rig.pass(SECOND * 11);
    rig.expect(["+forget j1.5", "drop result r5", "drop input j1"]);
    assert_eq!((rig.broker.state().job_count(), rig.broker.state().retained_count()), (0, 0));
}

#[test]
fn dl05_inputs_go_when_there_is_no_room_and_the_result_stays() {
    let mut rig = failed();
    rig.tell(Event::DropInputs { job: id(1) });
    rig.expect(["+drop_inputs j1", "drop input j1"]);
    assert_eq!(rig.job(1).inputs, InputsState::Dropped);
    rig.tell(Event::DropInputs { job: id(1) });
    rig.expect([]);
    assert_refused(&mut rig, id(1), "InputsGone");
    rig.operate(Operation::Revive { job: Some(id(1)) });
    rig.skip();
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Finished behind 0", "alice: result j1"]);
}

#[test]
fn dl05_inputs_that_go_while_a_retry_is_written_are_gone_and_the_other_way_round() {
    let mut rig = failed();
    rig.delay_commits();
    rig.tell(Event::DropInputs { job: id(1) });
    rig.expect(["+drop_inputs j1"]);
    retry(&mut rig, id(1));
    rig.expect(["+revive j1"]);
    rig.commit();
    let lines = rig.take();
    assert_eq!(lines[0], "drop input j1");
    assert!(lines[1].contains("InputsGone"), "{lines:?}");

    let mut rig = failed();
    rig.delay_commits();
    retry(&mut rig, id(1));
    rig.expect(["+revive j1"]);
    rig.tell(Event::DropInputs { job: id(1) });
    rig.expect(["+drop_inputs j1"]);
    retry(&mut rig, id(1));
    rig.expect(["+revive j1"]);
    rig.commit();
    let lines = rig.take();
    assert!(!lines.iter().any(|line| line == "drop input j1"), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("Retried { run: Run(2) }")), "{lines:?}");
    assert!(lines.iter().any(|line| line.contains("answer 2: Err")), "{lines:?}");
    rig.commit();
    rig.skip();
}

#[test]
fn dl05_only_jobs_that_failed_or_are_dead_have_another_run() {
    let mut rig = Rig::with(Config { attempts_max: 1, ..Config::default() });
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    assert_refused(&mut rig, id(9), "Unknown");
    assert_refused(&mut rig, id(1), "NotEnded");
    rig.classic("s1", "calcA", 9);
    rig.skip();
    assert_refused(&mut rig, id(1), "NotEnded");
    rig.ack("s1", 1);
    rig.skip();
    assert_refused(&mut rig, id(1), "why: Ok");
    rig.submit(job(2));
    rig.skip();
    rig.cancel(2);
    rig.skip();
    assert_refused(&mut rig, id(2), "Cancelled");
    rig.submit(job_to_all(3));
    rig.skip();
    let child = rig.child(3, "s1");
    assert_refused(&mut rig, child, "Part");
    rig.ack_id("s1", child, false);
    rig.skip();
    assert_refused(&mut rig, id(3), "ToAll");
    // A dead one is retried by either name.
    rig.submit(job(4));
    rig.skip();
    rig.close("s1");
    rig.skip();
    retry(&mut rig, id(4));
    rig.skip_to("answer 9: Ok(Retried { run: Run(2) })");
    rig.skip();
}

#[test]
fn dl05_inputs_that_went_past_the_leader_are_not_there_for_another_run() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(announced(1));
    rig.skip();
    rig.worker("w1", "calcA", 1);
    rig.skip();
    rig.tell(Event::InputsHere { job: id(1), kept: false });
    rig.skip();
    rig.ack_id("w1", id(1), false);
    rig.expect(["+ack j1 r1 failed w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
    assert_refused(&mut rig, id(1), "InputsGone");
}

#[test]
fn dl05_a_leader_that_comes_back_still_has_what_was_retained_in_its_order() {
    let mut rig = failed();
    rig.submit(job(2));
    rig.skip();
    rig.pass(SECOND);
    rig.ack_id("s1", id(2), false);
    rig.skip();
    retry(&mut rig, id(1));
    rig.skip();
    rig.ack_id("s1", id(1), false);
    rig.skip();
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig.skip();
    let retained: Vec<JobId> = rig.broker.state().retained().map(|job| job.id()).collect();
    assert_eq!(retained, [id(1), id(2)]);
    rig.client("alice");
    rig.skip();
    retry(&mut rig, id(1));
    rig.skip_to("answer 2: Ok(Retried { run: Run(3) })");
    rig.skip();
}

#[test]
fn dl05_a_retried_job_whose_inputs_the_leader_then_loses_does_not_wait_for_a_client_that_has_its_end()
 {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(announced(1));
    rig.skip();
    rig.worker("w1", "calcA", 9);
    rig.skip();
    rig.tell(Event::InputsHere { job: id(1), kept: true });
    rig.skip();
    rig.ack_id("w1", id(1), false);
    rig.skip();
    retry(&mut rig, id(1));
    rig.skip();
    // Its client is connected, had the end of the first run, and keeps nothing.
    rig.tell(Event::InputsRefused {
        job: id(1),
        attempt: Attempt(2),
        why: AttemptEnd::InputsStalled,
    });
    rig.skip();
    assert_eq!(rig.job(1).inputs, InputsState::PassedOn);
    rig.pass(Config::default().input_wait + SECOND * 60);
    let lines = rig.take();
    assert!(lines.iter().any(|line| line.starts_with("+fail j1.2: input gone")), "{lines:#?}");
    assert!(!lines.iter().any(|line| line.starts_with("+assign")), "{lines:#?}");
}
