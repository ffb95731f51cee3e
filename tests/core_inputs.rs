//! Jobs whose inputs come as transfers: announced, given out, taken, refused and dropped (C30), by
//! events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::event::{Inputs, Operation, Outcome, Submission, WorkerClass};
use heft::core::ids::{Attempt, Index, Run};
use heft::core::job::{Ending, InputsState, Phase};
use heft::core::record::AttemptEnd;
use heft::core::{Config, Event};
use rig::{Rig, SECOND, announced, id, job, job_of, job_to_all};

const GONE: &str = "+fail j1: input gone with client alice: submit it again";

fn here(rig: &mut Rig, number: u32, kept: bool) {
    rig.tell(Event::InputsHere { job: id(number), kept });
}

fn refused(rig: &mut Rig, number: u32, attempt: u32, why: AttemptEnd) {
    rig.tell(Event::InputsRefused { job: id(number), attempt: Attempt(attempt), why });
}

/// A worker lists a job that it may not start yet.
fn beat_receiving(rig: &mut Rig, worker: &str, number: u32, attempt: u32) {
    let (conn, held) = (rig.conn(worker), vec![(id(number), Run(0), Attempt(attempt))]);
    rig.tell(Event::Heartbeat { conn, cpu_permille: 0, credit: 0, held });
}

/// The worker drops a job that it was told to, and offers its place again.
fn gives_up(rig: &mut Rig, worker: &str, number: u32) {
    rig.outcome(worker, number, Outcome::GivenUp);
}

/// An announced job without a worker.
fn waits_with(config: Config) -> Rig {
    let mut rig = Rig::with(config);
    rig.client("alice");
    rig.submit(announced(1));
    rig.expect(["+announce j1"]);
    rig
}

fn waits() -> Rig {
    waits_with(Config::default())
}

/// An announced job whose inputs go through to a worker.
fn receiving() -> Rig {
    let mut rig = waits();
    rig.worker("w1", "calcA", 2);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1 not to start"]);
    rig
}

/// A job that was taken while its inputs went through; the leader does not hold them.
fn passed_through() -> Rig {
    let mut rig = receiving();
    here(&mut rig, 1, false);
    rig.expect(["+enqueue j1 not kept", "w1: start j1#1", "alice: submitted j1 Assigned behind 0"]);
    rig
}

/// The same, after its worker is gone and another attempt is due.
fn to_be_sent_again() -> Rig {
    let mut rig = passed_through();
    rig.close("w1");
    rig.pass(SECOND * 5);
    rig.expect(["+requeue j1#1 WorkerLost free now"]);
    rig
}

#[track_caller]
fn assert_nothing_left(rig: &Rig) {
    let left = (rig.broker.state().job_count(), rig.broker.note_count());
    assert_eq!(left, (0, 0));
}

// --- announced and taken

#[test]
fn c30_an_announced_job_goes_to_a_worker_and_starts_only_when_it_is_taken() {
    let mut rig = receiving();
    assert!(rig.job(1).is_announced());
    assert_eq!(rig.running("alice"), 1, "it counts toward the cap");
    rig.progress("w1", 1, 1);
    rig.expect([]);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "w1: start j1#1", "alice: submitted j1 Assigned behind 0"]);
    assert_eq!(rig.job(1).inputs, InputsState::Kept);
    rig.progress("w1", 1, 1);
    rig.expect(["alice: running j1#1"]);
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
}

#[test]
fn c30_a_job_that_is_taken_before_a_worker_has_room_is_given_out_with_the_start() {
    let mut rig = waits();
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
}

#[test]
fn c30_inputs_that_are_here_before_the_announcement_is_committed_are_not_lost() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.delay_commits();
    rig.submit(announced(1));
    rig.expect(["+announce j1"]);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1"]);
    here(&mut rig, 1, true);
    rig.expect([]);
    rig.commit();
    rig.expect(["alice: submitted j1 Queued behind 0", "+assign j1#1 w1"]);
    rig.commit();
    rig.expect(["w1: assign j1#1"]);
}

#[test]
fn c30_a_job_that_is_taken_while_its_assignment_is_on_its_way_is_given_out_with_the_start() {
    let mut rig = waits();
    rig.delay_commits();
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1"]);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1"]);
    rig.commit();
    rig.expect([
        "w1: assign j1#1 not to start",
        "w1: start j1#1",
        "alice: submitted j1 Assigned behind 0",
    ]);
}

#[test]
fn c30_inputs_of_jobs_that_are_not_announced_change_nothing() {
    let mut rig = passed_through();
    here(&mut rig, 1, true);
    here(&mut rig, 9, true);
    rig.tell(Event::Withdraw { job: id(1) });
    rig.tell(Event::Withdraw { job: id(9) });
    rig.tell(Event::InputsFailed { job: id(9), why: "no such job".into() });
    refused(&mut rig, 1, 7, AttemptEnd::DiskFull);
    refused(&mut rig, 9, 1, AttemptEnd::DiskFull);
    rig.expect([]);
    assert_eq!(rig.job(1).inputs, InputsState::PassedOn);
}

#[test]
fn dd04_an_announced_job_again_is_one_job_and_nothing_is_answered() {
    let mut rig = waits();
    rig.client("alice");
    rig.submit(announced(1));
    rig.expect([]);
    rig.submit(Submission { fingerprint: [8; 32], ..announced(1) });
    rig.expect(["alice/2: refused j1 conflict"]);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "alice/2: submitted j1 Queued behind 0"]);
}

#[test]
fn announced_jobs_count_toward_jobs_max_and_caps() {
    let mut rig = Rig::with(Config { jobs_max: 2, ..Config::default() });
    rig.client_with_cap("alice", Some(1));
    rig.expect(["+cap alice 1"]);
    rig.worker("w1", "calcA", 2);
    rig.submit(announced(1));
    rig.expect(["+announce j1", "+assign j1#1 w1", "w1: assign j1#1 not to start"]);
    rig.submit(announced(2));
    rig.expect(["+announce j2"]);
    rig.submit(job(3));
    rig.expect(["alice: refused j3 full 2 of 2"]);
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect([
        "+withdraw j1",
        "w1: abandon j1#1",
        "drop input j1",
        "+assign j2#1 w1",
        "w1: assign j2#1 not to start",
    ]);
}

// --- to all workers

#[test]
fn s22_an_announced_job_to_all_goes_to_the_workers_that_match_when_it_is_taken() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.classic("s1", "calcA", 1);
    rig.submit(Submission { to_all: true, ..announced(1) });
    rig.expect(["+announce j1"]);
    rig.worker("w2", "calcA", 1);
    rig.expect([]);
    here(&mut rig, 1, true);
    rig.expect([
        "+enqueue j1 @w1 @w2",
        "alice: submitted j1 Queued behind 0",
        "+assign j1@w1#1 w1",
        "+assign j1@w2#1 w2",
        "w1: assign j1@w1#1",
        "w2: assign j1@w2#1",
    ]);
}

#[test]
fn s22_an_announced_job_to_all_without_a_worker_when_it_could_be_taken_fails() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(Submission { inputs: Inputs::Expected, ..job_to_all(1) });
    rig.expect(["alice: refused j1 no worker for job.assign.calcA"]);
    rig.classic("s1", "calcA", 1);
    rig.submit(Submission { to_all: true, ..announced(1) });
    rig.expect(["alice: refused j1 1 classic workers for job.assign.calcA, 67108864 of 4194304"]);
    rig.submit(Submission { inputs: Inputs::Expected, ..job_to_all(1) });
    rig.expect(["+announce j1"]);
    rig.close("s1");
    here(&mut rig, 1, true);
    let lines = rig.take();
    assert!(
        lines[0].starts_with("+fail j1: no connected worker matches job.assign.calcA"),
        "{lines:?}"
    );
    assert_eq!(lines[1..], ["drop input j1", "alice: result j1"]);
    assert!(matches!(rig.job(1).phase, Phase::Done { ending: Ending::Failed { .. }, .. }));
}

// --- dropped

#[test]
fn a_withdrawn_job_leaves_no_trace_and_its_id_is_free() {
    let mut rig = receiving();
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect(["+withdraw j1", "w1: abandon j1#1", "drop input j1"]);
    assert_eq!(
        (rig.running("alice"), rig.room("w1")),
        (0, 1),
        "its place comes back with its answer"
    );
    assert_nothing_left(&rig);
    // The worker has not answered: it gets nothing under that id before.
    rig.submit(Submission { fingerprint: [8; 32], ..announced(1) });
    rig.expect(["+announce j1"]);
    rig.worker("w2", "calcA", 1);
    rig.expect(["+assign j1#1 w2", "w2: assign j1#1 not to start"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect([]);
    rig.credit("w1", 1);
    rig.expect([]);
    assert_eq!((rig.room("w1"), rig.running("alice")), (2, 1));
}

#[test]
fn a_job_withdrawn_while_its_assignment_is_on_its_way_gives_credit_and_cap_back() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    rig.delay_commits();
    rig.submit(announced(1));
    rig.skip();
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect(["+withdraw j1"]);
    rig.commit();
    rig.expect(["drop input j1"]);
    rig.submit(announced(1));
    rig.expect(["+announce j1"]);
    rig.commit();
    rig.expect([]);
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect(["+withdraw j1"]);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1"]);
    rig.commit();
    rig.expect(["drop input j1"]);
    assert_eq!((rig.room("w1"), rig.broker.is_idle()), (1, true));
    rig.submit(job(2));
    rig.expect(["+enqueue j2"]);
    rig.commit();
    rig.expect(["alice: submitted j2 Queued behind 0", "+assign j2#1 w1"]);
}

#[test]
fn an_assignment_that_a_withdrawal_overtook_gives_its_share_of_the_cap_to_the_next_job() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    rig.submit(announced(1));
    rig.submit_next(job(2));
    rig.skip();
    rig.delay_commits();
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect(["+withdraw j1"]);
    rig.worker("w1", "calcA", 2);
    rig.expect(["+assign j1#1 w1"]);
    rig.tell(Event::Committed { index: Index(4) });
    rig.expect(["drop input j1"]);
    rig.tell(Event::Committed { index: Index(5) });
    rig.expect(["+assign j2#1 w1"]);
}

#[test]
fn a_job_handed_in_again_while_it_is_dropped_is_announced_anew() {
    let mut rig = waits();
    rig.delay_commits();
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect(["+withdraw j1"]);
    rig.submit(announced(1));
    here(&mut rig, 1, true);
    rig.expect([]);
    rig.commit();
    rig.expect(["+announce j1", "+enqueue j1"]);
    rig.commit();
    rig.expect(["alice: submitted j1 Queued behind 0"]);
}

#[test]
fn inputs_that_can_never_be_had_drop_an_announced_job_and_fail_one_that_is_taken() {
    let mut rig = receiving();
    rig.tell(Event::InputsFailed { job: id(1), why: "wrong digest".into() });
    rig.expect(["+withdraw j1", "w1: abandon j1#1", "drop input j1"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect(["w1: settle j1.0"]);
    let mut rig = passed_through();
    rig.tell(Event::InputsFailed { job: id(1), why: "the source changed".into() });
    rig.expect([
        "+fail j1: the source changed",
        "w1: abandon j1#1",
        "drop input j1",
        "alice: result j1",
    ]);
    assert_eq!(rig.running("alice"), 0);
}

#[test]
fn inputs_that_fail_while_the_job_is_being_taken_end_it_with_a_result() {
    let mut rig = waits();
    rig.delay_commits();
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1"]);
    rig.tell(Event::InputsFailed { job: id(1), why: "the spool is gone".into() });
    rig.expect(["+fail j1: the spool is gone", "+drop_inputs j1"]);
    rig.commit();
    // Another run would fail for the same inputs.
    rig.expect([
        "alice: submitted j1 Queued behind 0",
        "retain input j1",
        "alice: result j1",
        "drop input j1",
    ]);
}

#[test]
fn a_cancelled_announced_job_has_a_result() {
    let mut rig = receiving();
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "w1: abandon j1#1",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Assigned })",
    ]);
    here(&mut rig, 1, true);
    rig.expect([]);
    rig.pass(SECOND * 3600);
    let lines = rig.take();
    assert!(lines.contains(&"+forget j1".to_owned()), "{lines:?}");
    assert_nothing_left(&rig);
}

#[test]
fn a_leader_that_is_about_to_stop_takes_no_announced_job() {
    let mut rig = receiving();
    rig.submit(job_of("alice", 2));
    rig.skip();
    rig.tell(Event::Drain);
    rig.expect(["alice: refused j1 draining", "+withdraw j1", "w1: abandon j1#1", "drop input j1"]);
    rig.submit(announced(3));
    rig.expect(["alice: refused j3 draining"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect(["w1: settle j1.0"]);
    rig.ack("w1", 2);
    rig.skip();
    assert!(rig.broker.is_idle());
}

#[test]
fn a_job_whose_announcement_is_on_its_way_when_the_leader_drains_is_refused() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.delay_commits();
    rig.submit(announced(1));
    rig.expect(["+announce j1"]);
    rig.tell(Event::Drain);
    rig.expect([]);
    rig.commit();
    rig.expect(["alice: refused j1 draining", "+withdraw j1"]);
    rig.commit();
    rig.expect(["drop input j1"]);
    assert_nothing_left(&rig);
}

// --- refused by a worker

#[test]
fn a_worker_whose_disk_is_full_is_told_to_drop_the_job_which_goes_elsewhere() {
    let mut rig = receiving();
    rig.worker("w2", "calcA", 1);
    refused(&mut rig, 1, 1, AttemptEnd::DiskFull);
    rig.expect([
        "w1: abandon j1#1",
        "+requeue j1#1 DiskFull free now",
        "+assign j1#2 w2",
        "w2: assign j1#2 not to start",
    ]);
    assert_eq!((rig.job(1).spent, rig.room("w1"), rig.running("alice")), (0, 1, 1));
    gives_up(&mut rig, "w1", 1);
    rig.credit("w1", 1);
    rig.expect([]);
    assert_eq!(rig.room("w1"), 2);
}

#[test]
fn a_worker_gets_a_job_it_could_not_have_again_only_after_its_answer() {
    let mut rig = receiving();
    refused(&mut rig, 1, 1, AttemptEnd::InputsStalled);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 InputsStalled free now"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect(["+assign j1#2 w1", "w1: assign j1#2 not to start"]);
    assert_eq!(rig.job(1).spent, 0, "that its inputs stall says nothing of a job");
}

#[test]
fn a_job_whose_inputs_never_arrive_whole_dies_and_its_revival_waits_for_its_client() {
    let mut rig = receiving();
    for attempt in 1..=6 {
        refused(&mut rig, 1, attempt, AttemptEnd::InputsBad);
        rig.skip();
        if attempt < 6 {
            gives_up(&mut rig, "w1", 1);
            rig.skip();
            rig.credit("w1", 1);
            rig.skip();
            rig.pass(SECOND * 25);
            let given = format!("w1: assign j1#{} not to start", attempt + 1);
            let lines = rig.take();
            assert!(attempt == 1 || lines.contains(&given), "{lines:?}");
            beat_receiving(&mut rig, "w1", 1, attempt + 1);
        }
    }
    assert!(matches!(rig.job(1).phase, Phase::Dead { why: AttemptEnd::InputsBad, .. }));
    gives_up(&mut rig, "w1", 1);
    rig.expect(["w1: settle j1"]);
    rig.credit("w1", 1);
    rig.operate(Operation::Revive { job: Some(id(1)) });
    rig.expect(["+revive j1", "reuse input j1", "answer 1: Ok(Revived { jobs: 1 })"]);
    rig.submit(announced(1));
    rig.expect(["+assign j1.2#7 w1", "w1: assign j1.2#7 not to start"]);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "w1: start j1.2#7", "alice: submitted j1.2 Assigned behind 0"]);
}

#[test]
fn a_revived_job_whose_client_does_not_bring_its_inputs_fails() {
    let config = Config { attempts_max: 1, ..Config::default() };
    let mut rig = waits_with(config);
    rig.worker("w1", "calcA", 1);
    rig.skip();
    refused(&mut rig, 1, 1, AttemptEnd::InputsBad);
    rig.expect(["w1: abandon j1#1", "+dlq j1#1 InputsBad", "alice: result j1"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect(["w1: settle j1"]);
    rig.credit("w1", 1);
    rig.operate(Operation::Revive { job: None });
    rig.expect(["+revive j1", "reuse input j1", "answer 1: Ok(Revived { jobs: 1 })"]);
    rig.pass(SECOND * 59);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect([
        "+fail j1.2: input gone with client alice: submit it again",
        "drop input j1",
        "alice: result j1.2",
    ]);
}

// --- workers that come back

#[test]
fn a_worker_that_comes_back_while_it_receives_goes_on() {
    let mut rig = receiving();
    rig.close("w1");
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    beat_receiving(&mut rig, "w1", 1, 1);
    rig.expect(["w1/2: resume j1#1 not to start"]);
    beat_receiving(&mut rig, "w1", 1, 1);
    rig.expect([]);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "w1/2: start j1#1", "alice: submitted j1 Assigned behind 0"]);
}

#[test]
fn a_worker_that_was_away_when_the_job_was_taken_hears_it_when_it_is_back() {
    let mut rig = receiving();
    rig.close("w1");
    here(&mut rig, 1, false);
    rig.expect(["+enqueue j1 not kept", "alice: submitted j1 Assigned behind 0"]);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    beat_receiving(&mut rig, "w1", 1, 1);
    rig.expect(["w1/2: resume j1#1"]);
}

#[test]
fn a_worker_that_is_back_and_has_not_said_what_it_holds_hears_of_the_start_once() {
    let mut rig = receiving();
    rig.close("w1");
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "alice: submitted j1 Assigned behind 0"]);
    beat_receiving(&mut rig, "w1", 1, 1);
    rig.expect(["w1/2: resume j1#1"]);
}

#[test]
fn a_worker_that_comes_back_with_what_it_runs_is_not_sent_it_again() {
    let mut rig = passed_through();
    rig.progress("w1", 1, 1);
    rig.skip();
    rig.close("w1");
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    rig.beat("w1", &[(1, 1)]);
    rig.expect([]);
}

#[test]
fn a_worker_that_receives_what_is_not_its_own_any_more_drops_it() {
    let mut rig = receiving();
    beat_receiving(&mut rig, "w1", 9, 1);
    rig.expect(["w1: abandon j9#1"]);
    beat_receiving(&mut rig, "w1", 1, 5);
    rig.expect(["w1: abandon j1#5"]);
    // While it is away its job is withdrawn, announced again and given to another.
    rig.close("w1");
    rig.tell(Event::Withdraw { job: id(1) });
    rig.expect(["+withdraw j1", "drop input j1"]);
    rig.worker("w2", "calcA", 1);
    rig.submit(announced(1));
    rig.expect(["+announce j1", "+assign j1#1 w2", "w2: assign j1#1 not to start"]);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    beat_receiving(&mut rig, "w1", 1, 1);
    rig.expect(["w1/2: abandon j1#1"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect([]);
    assert!(
        matches!(rig.job(1).phase, Phase::Leased { worker, .. } if worker == rig::worker_id("w2"))
    );
}

#[test]
fn a_worker_lost_while_it_receives_costs_the_job_nothing() {
    let mut rig = receiving();
    rig.close("w1");
    rig.pass(SECOND * 5);
    rig.expect(["+requeue j1#1 WorkerLost free now"]);
    rig.worker("w2", "calcA", 1);
    rig.expect(["+assign j1#2 w2", "w2: assign j1#2 not to start"]);
}

#[test]
fn a_worker_that_comes_back_too_late_with_what_it_was_still_receiving_drops_it() {
    let mut rig = to_be_sent_again();
    rig.cancel(1);
    rig.skip();
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    // It may have a result, or still wait for inputs.
    rig.beat("w1", &[(1, 1)]);
    rig.expect(["w1/2: abandon j1#1", "w1/2: settle j1"]);
}

// --- clients that leave

#[test]
fn an_announced_job_whose_client_left_takes_no_place_and_is_dropped_after_a_while() {
    let mut rig = waits();
    rig.close("alice");
    rig.worker("w1", "calcA", 1);
    rig.expect([]);
    rig.pass(SECOND * 59);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+withdraw j1", "drop input j1"]);
    assert_nothing_left(&rig);
}

#[test]
fn an_announced_job_whose_client_comes_back_goes_on_when_it_is_handed_in_again() {
    let mut rig = waits();
    rig.close("alice");
    rig.worker("w1", "calcA", 1);
    rig.pass(SECOND * 59);
    rig.client("alice");
    rig.expect([]);
    rig.submit(announced(1));
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1 not to start"]);
    beat_receiving(&mut rig, "w1", 1, 1);
    rig.pass(SECOND * 20);
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "w1: start j1#1", "alice/2: submitted j1 Assigned behind 0"]);
    rig.close("alice");
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1"]);
}

#[test]
fn a_client_that_is_back_before_its_old_connection_is_missed_loses_nothing() {
    let mut rig = waits();
    rig.client("alice");
    rig.submit(announced(1));
    rig.tell(Event::Closed { conn: heft::core::ids::ConnId(1) });
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1 not to start"]);
}

#[test]
fn another_connection_of_the_client_does_not_bring_the_inputs() {
    let mut rig = waits();
    rig.client("alice");
    rig.tell(Event::Closed { conn: heft::core::ids::ConnId(1) });
    rig.worker("w1", "calcA", 1);
    rig.expect([]);
    rig.submit(announced(1));
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1 not to start"]);
}

#[test]
fn a_worker_waits_for_inputs_as_long_as_their_client_may_be_away() {
    let mut rig = receiving();
    rig.close("alice");
    for _ in 0..5 {
        rig.pass(SECOND * 10);
        beat_receiving(&mut rig, "w1", 1, 1);
    }
    rig.expect([]);
    rig.pass(SECOND * 10);
    rig.expect(["+withdraw j1", "w1: abandon j1#1", "drop input j1"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect(["w1: settle j1.0"]);
    assert_nothing_left(&rig);
}

#[test]
fn an_attempt_that_ends_while_the_client_is_away_frees_its_worker_and_the_job_waits_on() {
    let mut rig = receiving();
    rig.close("alice");
    rig.pass(SECOND * 20);
    refused(&mut rig, 1, 1, AttemptEnd::InputsStalled);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 InputsStalled free now"]);
    rig.pass(SECOND * 40);
    rig.expect(["+withdraw j1", "drop input j1"]);
    assert_nothing_left(&rig);
}

#[test]
fn a_client_that_left_before_the_announcement_was_committed_is_waited_for() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.delay_commits();
    rig.submit(announced(1));
    rig.expect(["+announce j1"]);
    rig.close("alice");
    rig.commit();
    rig.expect([]);
    rig.pass(SECOND * 60);
    rig.expect(["+withdraw j1"]);
    // It comes back just then.
    rig.client("alice");
    rig.submit(announced(1));
    rig.commit();
    rig.expect(["+announce j1"]);
    rig.commit();
    rig.expect(["+assign j1#1 w1"]);
}

#[test]
fn inputs_that_went_through_come_again_from_the_client_while_it_is_there() {
    let mut rig = to_be_sent_again();
    rig.worker("w2", "calcA", 1);
    rig.expect(["+assign j1#2 w2", "w2: assign j1#2"]);
}

#[test]
fn a_job_whose_inputs_went_through_and_whose_client_is_gone_fails() {
    let mut rig = to_be_sent_again();
    rig.close("alice");
    rig.worker("w2", "calcA", 1);
    rig.pass(SECOND * 59);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect([GONE, "drop input j1"]);
    assert!(matches!(rig.job(1).phase, Phase::Done { ending: Ending::Failed { .. }, .. }));
    rig.classic_client_back("alice");
    rig.expect(["alice/2: result j1"]);
}

#[test]
fn a_job_whose_inputs_went_through_waits_until_its_client_hands_it_in_again() {
    let mut rig = to_be_sent_again();
    rig.close("alice");
    rig.worker("w2", "calcA", 1);
    rig.client("alice");
    rig.expect([]);
    rig.submit(announced(1));
    rig.expect(["alice/2: submitted j1 Queued behind 0", "+assign j1#2 w2", "w2: assign j1#2"]);
}

#[test]
fn a_job_that_runs_on_inputs_that_went_through_ends_without_its_client_or_fails_with_its_worker() {
    let mut rig = passed_through();
    rig.progress("w1", 1, 1);
    rig.skip();
    rig.close("alice");
    for _ in 0..10 {
        rig.pass(SECOND * 10);
        rig.beat("w1", &[(1, 1)]);
    }
    rig.expect([]);
    rig.close("w1");
    rig.pass(SECOND * 5);
    rig.expect(["+requeue j1#1 WorkerLost counts now", GONE, "drop input j1"]);
}

#[test]
fn a_job_whose_inputs_the_leader_holds_does_not_need_its_client() {
    let mut rig = waits();
    here(&mut rig, 1, true);
    rig.skip();
    rig.close("alice");
    rig.pass(SECOND * 100);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
}

#[test]
fn inputs_that_were_whole_when_the_client_left_are_enough() {
    let mut rig = waits();
    rig.close("alice");
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1"]);
    rig.pass(SECOND * 60);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
}

#[test]
fn a_job_whose_inputs_the_leader_lost_waits_for_its_client_and_fails_without_it() {
    let mut rig = receiving();
    here(&mut rig, 1, true);
    rig.expect(["+enqueue j1", "w1: start j1#1", "alice: submitted j1 Assigned behind 0"]);
    rig.close("alice");
    // The worker lacks a chunk that the leader has no more.
    refused(&mut rig, 1, 1, AttemptEnd::InputsStalled);
    rig.expect(["w1: abandon j1#1", "+requeue j1#1 InputsStalled free now"]);
    gives_up(&mut rig, "w1", 1);
    rig.expect([]);
    rig.pass(Config::default().input_wait);
    rig.expect([GONE, "drop input j1"]);
}

#[test]
fn a_job_whose_inputs_the_leader_lost_is_given_out_again_once_its_client_is_back() {
    let mut rig = receiving();
    here(&mut rig, 1, true);
    rig.skip();
    rig.close("alice");
    refused(&mut rig, 1, 1, AttemptEnd::InputsStalled);
    rig.skip();
    gives_up(&mut rig, "w1", 1);
    rig.skip();
    rig.client("alice");
    rig.submit(announced(1));
    rig.expect(["alice/2: submitted j1 Queued behind 0", "+assign j1#2 w1", "w1: assign j1#2"]);
}
