//! Attempts that end without a result: the rows RT01-RT06, RT08, DL01, DL02 and C17, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::time::Duration;

use heft::core::Config;
use heft::core::event::{Operation, Outcome, WorkerClass};
use heft::core::explain::WaitsFor;
use heft::core::job::Phase;
use heft::core::limits::{HISTORY_MAX, NO_ROOM_ATTEMPTS_MAX};
use heft::core::record::{AttemptEnd, Lack};
use rig::{Rig, SECOND, id, job, worker_id};

fn submitted(config: Config) -> Rig {
    let mut rig = Rig::with(config);
    rig.client("alice");
    rig.submit(job(1));
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
    rig
}

fn ack_timeouts() -> Config {
    Config { classic_ack_timeout: true, ..Config::default() }
}

/// Whether a waiting time is the schedule's, a fifth either way.
#[track_caller]
fn assert_about(wait: Duration, seconds: u64) {
    let whole = SECOND * u32::try_from(seconds).unwrap();
    assert!(wait >= whole * 4 / 5 && wait <= whole * 6 / 5, "{wait:?} is not about {seconds} s");
}

#[test]
fn rt01_rt02_an_ack_timeout_requeues_the_job_of_a_classic_worker() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.pass(Duration::from_millis(799));
    rig.expect([]);
    rig.pass(Duration::from_millis(401));
    rig.expect(["s1: abandon j1#1", "+requeue j1#1 TimedOut counts now"]);
}

#[test]
fn rt02_c06_without_the_flag_a_classic_workers_job_is_safe_while_its_connection_lives() {
    let mut rig = submitted(Config::default());
    rig.classic("s1", "calcA", 2);
    rig.skip();
    rig.pass(SECOND * 86_400);
    rig.expect([]);
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r1 ok s1", "s1: settle j1", "drop input j1", "alice: result j1"]);
}

#[test]
fn rt03_ack_timeouts_double_from_one_second_to_thirty_and_the_sixth_is_the_last() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 10);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    for (attempt, seconds) in (1..).zip([1, 2, 4, 8, 16, 30]) {
        let until = rig.worker_named("s1").held[&id(1)].until.unwrap();
        let span = until.since(rig.now());
        assert_about(span, seconds);
        rig.pass(span);
        let lines = rig.take();
        assert_eq!(lines[0], format!("s1: abandon j1#{attempt}"));
        if attempt < 6 {
            assert_eq!(lines[1], format!("+requeue j1#{attempt} TimedOut counts now"));
            assert_eq!(lines[3], format!("s1: assign j1#{}", attempt + 1));
        } else {
            assert_eq!(lines[1..], ["+dlq j1#6 TimedOut", "alice: result j1"]);
        }
    }
    assert_eq!((rig.job(1).spent, rig.job(1).history.len()), (6, 6));
}

#[test]
fn rt03_c06_a_first_loss_is_requeued_at_once_then_after_one_second_doubling_to_thirty() {
    let mut rig = submitted(Config { attempts_max: 9, ..Config::default() });
    for (attempt, seconds) in (1..).zip([0, 1, 2, 4, 8, 16, 30, 30]) {
        rig.classic("s1", "calcA", 1);
        rig.skip();
        rig.close("s1");
        let when = if seconds == 0 { "now" } else { "later" };
        rig.expect([format!("+requeue j1#{attempt} WorkerLost counts {when}").as_str()]);
        assert_about(rig.wait_of(1), seconds);
        rig.pass(SECOND * 36);
        rig.expect([]);
    }
}

#[test]
fn rt03_a_job_in_back_off_is_given_out_when_its_time_has_come_and_not_before() {
    let mut rig = submitted(Config::default());
    for _ in 0..2 {
        rig.classic("s1", "calcA", 1);
        rig.skip();
        rig.close("s1");
        rig.skip();
    }
    rig.classic("s2", "calcA", 1);
    rig.expect([]);
    let wait = rig.wait_of(1);
    rig.pass(wait - Duration::from_micros(1));
    rig.expect([]);
    rig.pass(Duration::from_micros(1));
    rig.expect(["+assign j1#3 s2", "s2: assign j1#3"]);
}

#[test]
fn rt04_a_resend_goes_to_another_worker_with_credit() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 9);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    rig.classic("s2", "calcA", 1);
    rig.pass(SECOND * 6 / 5);
    rig.expect([
        "s1: abandon j1#1",
        "+requeue j1#1 TimedOut counts now",
        "+assign j1#2 s2",
        "s2: assign j1#2",
    ]);
}

#[test]
fn rt04_a_resend_goes_to_the_same_worker_where_no_other_has_credit() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 2);
    rig.skip();
    rig.classic("s2", "calcB", 9);
    rig.pass(SECOND * 6 / 5);
    rig.expect([
        "s1: abandon j1#1",
        "+requeue j1#1 TimedOut counts now",
        "+assign j1#2 s1",
        "s1: assign j1#2",
    ]);
}

#[test]
fn rt04_a_job_that_a_lost_classic_worker_may_run_still_goes_to_one_of_ours_first() {
    for (has_room, to) in [(true, "w1"), (false, "s2")] {
        let mut rig = submitted(Config::default());
        rig.classic("s1", "calcA", 1);
        rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
        // It has more credit, and would be chosen.
        rig.classic("s2", "calcA", 9);
        rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
        if has_room {
            rig.credit("w1", 1);
        }
        rig.skip();
        rig.close("s1");
        let (assign, sent) = (format!("+assign j1#2 {to}"), format!("{to}: assign j1#2"));
        rig.expect(["+requeue j1#1 WorkerLost counts now", &assign, &sent]);
    }
}

#[test]
fn rt05_a_lost_classic_workers_jobs_are_requeued_at_once() {
    let mut rig = submitted(Config::default());
    rig.classic("s1", "calcA", 2);
    rig.skip();
    rig.submit(job(2));
    rig.skip();
    rig.classic("s2", "calcA", 2);
    rig.close("s1");
    rig.expect([
        "+requeue j1#1 WorkerLost counts now",
        "+requeue j2#1 WorkerLost counts now",
        "+assign j1#2 s2",
        "+assign j2#2 s2",
        "s2: assign j1#2",
        "s2: assign j2#2",
    ]);
    assert_eq!(rig.running("alice"), 2, "their client's count went down and up again");
    assert!(rig.broker.workers().all(|worker| worker.id != worker_id("s1")));
}

#[test]
fn rt06_what_could_not_be_sent_is_requeued_and_does_not_count() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.delay_commits();
    rig.submit(job(1));
    rig.expect(["+enqueue j1"]);
    rig.commit();
    rig.expect(["alice: submitted j1 Queued behind 0", "+assign j1#1 s1"]);
    rig.close("s1");
    rig.expect(["+requeue j1#1 WorkerLost free now"]);
    rig.commit();
    rig.expect([]);
    assert_eq!((rig.job(1).spent, rig.running("alice"), rig.broker.queues().len()), (0, 0, 1));
}

#[test]
fn rt08_a_resend_leaves_the_counts_of_client_and_old_owner_right() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.classic("s2", "calcA", 1);
    rig.pass(SECOND * 6 / 5);
    rig.skip();
    let held = |rig: &Rig, name: &str| rig.worker_named(name).held.len();
    assert_eq!((rig.running("alice"), held(&rig, "s1"), held(&rig, "s2")), (1, 0, 1));
}

#[test]
fn rt08_c07_the_late_ack_of_a_timed_out_attempt_is_the_result() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.classic("s2", "calcA", 1);
    rig.pass(SECOND * 6 / 5);
    rig.skip();
    rig.ack("s1", 1);
    rig.expect([
        "+ack j1 r1 ok s1",
        "s1: settle j1",
        "s2: abandon j1#2",
        "drop input j1",
        "alice: result j1",
    ]);
    rig.ack("s2", 1);
    rig.expect(["s2: settle j1", "drop result r2"]);
    assert_eq!(rig.running("alice"), 0);
}

#[test]
fn rt08_c07_a_late_ack_while_the_job_waits_again_is_the_result() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.pass(SECOND * 6 / 5);
    rig.skip();
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r1 ok s1", "s1: settle j1", "drop input j1", "alice: result j1"]);
    assert!(rig.broker.queues().is_empty());
    rig.credit("s1", 1);
    rig.expect([]);
}

#[test]
fn c07_of_two_results_on_their_way_the_first_counts_and_the_second_is_dropped() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.classic("s2", "calcA", 1);
    rig.pass(SECOND * 6 / 5);
    rig.skip();
    rig.delay_commits();
    rig.ack("s2", 1);
    rig.expect(["+ack j1 r1 ok s2"]);
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r2 ok s1"]);
    rig.commit();
    rig.expect(["s2: settle j1", "drop input j1", "alice: result j1", "drop result r2"]);
}

#[test]
fn c07_a_result_that_overtakes_its_requeue_ends_the_job() {
    let mut rig = submitted(ack_timeouts());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.delay_commits();
    rig.pass(SECOND * 6 / 5);
    rig.expect(["s1: abandon j1#1", "+requeue j1#1 TimedOut counts now"]);
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r1 ok s1"]);
    rig.commit();
    rig.expect(["s1: settle j1", "drop input j1", "alice: result j1"]);
    rig.credit("s1", 1);
    rig.expect([]);
}

#[test]
fn dl01_a_poison_job_dies_after_six_counted_attempts_with_reason_and_history() {
    let mut rig = submitted(Config::default());
    for attempt in 1..=6 {
        rig.worker("w1", "calcA", 1);
        let lines = rig.take();
        assert_eq!((lines.len(), &lines[0]), (2, &format!("+assign j1#{attempt} w1")));
        rig.progress("w1", 1, attempt);
        rig.expect([format!("alice: running j1#{attempt}").as_str()]);
        rig.close("w1");
        rig.pass(SECOND * 5);
        if attempt < 6 {
            assert_eq!(rig.take().len(), 1);
            rig.pass(SECOND * 36);
            rig.expect([]);
        }
    }
    rig.expect(["+dlq j1#6 WorkerLost", "alice: result j1"]);
    let dead = rig.broker.state().dead().next().unwrap();
    assert!(matches!(dead.phase, Phase::Dead { why: AttemptEnd::WorkerLost, .. }));
    assert_eq!(dead.spent, 6);
    let notes: Vec<_> =
        dead.history.iter().map(|note| (note.attempt.0, note.worker, note.why)).collect();
    let expected: Vec<_> =
        (1..=6).map(|attempt| (attempt, worker_id("w1"), AttemptEnd::WorkerLost)).collect();
    assert_eq!(notes, expected);
}

#[test]
fn dl01_an_attempt_that_never_started_does_not_count_but_waits_longer_each_time() {
    let mut rig = submitted(Config::default());
    for (attempt, seconds) in (1..).zip([0, 1, 2, 4, 8, 16, 30, 30, 30, 30]) {
        rig.worker("w1", "calcA", 1);
        rig.skip();
        rig.outcome("w1", 1, Outcome::GivenUp);
        let when = if seconds == 0 { "now" } else { "later" };
        rig.expect([format!("+requeue j1#{attempt} GivenUp free {when}").as_str()]);
        assert_about(rig.wait_of(1), seconds);
        rig.close("w1");
        rig.pass(SECOND * 40);
        rig.expect([]);
    }
    assert_eq!(rig.job(1).spent, 0);
}

#[test]
fn dl01_the_history_of_attempts_that_do_not_count_is_bounded() {
    let mut rig = submitted(Config::default());
    for _ in 0..HISTORY_MAX + 20 {
        rig.worker("w1", "calcA", 1);
        rig.skip();
        rig.outcome("w1", 1, Outcome::GivenUp);
        rig.skip();
        rig.close("w1");
        rig.pass(SECOND * 40);
        rig.expect([]);
    }
    let history = &rig.job(1).history;
    assert_eq!((history.len(), history.last().unwrap().attempt), (HISTORY_MAX, rig.job(1).attempt));
}

fn dead(config: Config) -> Rig {
    let mut rig = submitted(Config { attempts_max: 1, ..config });
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.close("s1");
    rig.expect(["+dlq j1#1 WorkerLost", "alice: result j1"]);
    rig
}

#[test]
fn dl02_a_revived_job_runs_again_and_its_result_replaces_the_stored_one() {
    let mut rig = dead(Config::default());
    rig.operate(Operation::Revive { job: Some(id(1)) });
    rig.expect(["+revive j1", "reuse input j1", "answer 1: Ok(Revived { jobs: 1 })"]);
    assert_eq!(
        (rig.job(1).spent, rig.job(1).history.len(), rig.broker.state().dead().count()),
        (0, 0, 0)
    );
    // Its new run has all its attempts, and those of the first are remembered.
    let earlier: Vec<_> =
        rig.job(1).earlier.iter().map(|of| (of.run.0, of.attempt.0, of.why)).collect();
    assert_eq!(earlier, [(1, 1, Some(AttemptEnd::WorkerLost))]);
    rig.classic("s2", "calcA", 1);
    rig.expect(["+assign j1.2#2 s2", "s2: assign j1.2#2"]);
    rig.submit(job(1));
    rig.expect(["alice: submitted j1.2 Running behind 0"]);
    rig.ack("s2", 1);
    rig.expect(["+ack j1.2 r1 ok s2", "s2: settle j1.2", "drop input j1", "alice: result j1.2"]);
    rig.submit(job(1));
    rig.expect(["alice: submitted j1.2 Finished behind 0", "alice: result j1.2"]);
}

#[test]
fn dl02_a_revived_job_has_all_its_attempts_again_and_can_die_again() {
    let mut rig = dead(Config::default());
    rig.operate(Operation::Revive { job: None });
    rig.expect(["+revive j1", "reuse input j1", "answer 1: Ok(Revived { jobs: 1 })"]);
    rig.classic("s2", "calcA", 1);
    rig.skip();
    rig.close("s2");
    rig.expect(["+dlq j1.2#2 WorkerLost", "alice: result j1.2"]);
}

#[test]
fn dl02_a_purged_job_is_forgotten_and_its_id_is_free() {
    let mut rig = dead(Config::default());
    rig.operate(Operation::Purge { job: Some(id(1)) });
    rig.expect(["+forget j1", "drop input j1", "answer 1: Ok(Purged { jobs: 1 })"]);
    assert_eq!(rig.broker.state().job_count(), 0);
    rig.operate(Operation::Purge { job: Some(id(1)) });
    rig.skip();
    rig.submit(job(1));
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
}

#[test]
fn dl02_all_dead_jobs_are_revived_or_purged_with_one_answer() {
    for revive in [true, false] {
        let mut rig = dead(Config::default());
        rig.submit(job(2));
        rig.skip();
        rig.classic("s2", "calcA", 1);
        rig.skip();
        rig.close("s2");
        rig.skip();
        if revive {
            rig.operate(Operation::Revive { job: None });
            rig.expect([
                "+revive j1",
                "+revive j2",
                "reuse input j1",
                "reuse input j2",
                "answer 1: Ok(Revived { jobs: 2 })",
            ]);
            rig.operate(Operation::Revive { job: None });
            rig.expect(["answer 2: Ok(Revived { jobs: 0 })"]);
        } else {
            rig.operate(Operation::Purge { job: None });
            rig.expect([
                "+forget j1",
                "+forget j2",
                "drop input j1",
                "drop input j2",
                "answer 1: Ok(Purged { jobs: 2 })",
            ]);
        }
    }
}

#[test]
fn dl02_only_dead_jobs_can_be_revived_or_purged() {
    let mut rig = submitted(Config::default());
    let job = Some(id(1));
    rig.operate(Operation::Revive { job });
    let not_dead = format!("Err(NotDead {{ job: {:?} }})", id(1));
    rig.expect([format!("answer 1: {not_dead}").as_str()]);
    rig.operate(Operation::Purge { job });
    rig.expect([format!("answer 2: {not_dead}").as_str()]);
    rig.operate(Operation::Purge { job: Some(id(9)) });
    rig.expect([format!("answer 3: Err(Unknown {{ job: {:?} }})", id(9)).as_str()]);
}

#[test]
fn dl02_a_purge_that_comes_behind_a_revival_takes_nothing_from_the_new_run() {
    let mut rig = dead(Config::default());
    rig.delay_commits();
    rig.operate(Operation::Revive { job: Some(id(1)) });
    rig.expect(["+revive j1"]);
    rig.operate(Operation::Purge { job: Some(id(1)) });
    rig.expect(["+forget j1"]);
    rig.commit();
    let not_dead = format!("answer 2: Err(NotDead {{ job: {:?} }})", id(1));
    rig.expect(["reuse input j1", "answer 1: Ok(Revived { jobs: 1 })", not_dead.as_str()]);
    assert_eq!(rig.broker.queues().len(), 1);
}

#[test]
fn dl02_a_dead_job_is_kept_until_someone_decides() {
    let mut rig = dead(Config::default());
    rig.pass(SECOND * 86_400);
    rig.expect([]);
    assert_eq!(rig.broker.state().dead().count(), 1);
}

#[test]
fn c07_a_result_that_comes_after_the_dlq_is_too_late() {
    let mut rig = submitted(Config { attempts_max: 1, ..ack_timeouts() });
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.pass(SECOND * 2);
    rig.expect(["s1: abandon j1#1", "+dlq j1#1 TimedOut", "alice: result j1"]);
    rig.ack("s1", 1);
    rig.expect(["s1: settle j1", "drop result r1"]);
}

#[test]
fn c17_a_result_lost_at_its_worker_goes_to_another_and_never_back() {
    let mut rig = submitted(Config::default());
    rig.classic("s1", "calcA", 9);
    rig.skip();
    rig.hello("s2", WorkerClass::Classic, "calcA", None);
    rig.outcome("s1", 1, Outcome::ResultLost);
    rig.expect(["+requeue j1#1 ResultLost counts now"]);
    rig.pass(SECOND * 60);
    rig.expect([]);
    rig.credit("s2", 1);
    rig.expect(["+assign j1#2 s2", "s2: assign j1#2"]);
}

#[test]
fn c17_a_result_lost_at_the_only_worker_is_dead_as_lost() {
    let mut rig = submitted(Config::default());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.classic("s2", "calcB", 1);
    rig.outcome("s1", 1, Outcome::ResultLost);
    rig.expect(["+dlq j1#1 ResultLost", "alice: result j1"]);
    let Phase::Dead { why, .. } = rig.job(1).phase else { panic!("it is dead") };
    assert_eq!(why.text(), "result lost at worker");
}

#[test]
fn c17_a_duplicate_answer_for_a_job_that_has_its_result_changes_nothing() {
    let mut rig = submitted(Config::default());
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.ack("s1", 1);
    rig.skip();
    rig.outcome("s1", 1, Outcome::ResultLost);
    rig.expect(["s1: settle j1"]);
    rig.ack("s1", 99);
    rig.expect(["s1: settle j99.0", "drop result r2"]);
}

// --- workers without room for the inputs

#[test]
fn a_job_waits_for_a_busy_worker_rather_than_go_back_to_one_without_room() {
    let mut rig = submitted(Config::default());
    rig.worker("full", "calcA", 1);
    rig.expect(["+assign j1#1 full", "full: assign j1#1"]);
    rig.worker("sound", "calcA", 1);
    rig.submit(job(2));
    rig.skip_to("sound: assign j2#1");
    rig.skip();
    rig.outcome("full", 1, Outcome::Lacks(Lack::Room));
    rig.expect(["+requeue j1#1 DiskFull free now"]);
    rig.credit("full", 1);
    for _ in 0..60 {
        rig.pass(SECOND);
        rig.beat("full", &[]);
        rig.beat("sound", &[(2, 1)]);
    }
    rig.expect([]);
    let waits = rig.broker.explain(id(1)).unwrap().waits;
    assert_eq!(
        waits,
        Some(WaitsFor::WorkerLacks { worker: worker_id("full"), lack: Lack::Room, until: None })
    );
    assert_eq!((rig.job(1).spent, rig.job(1).history.len()), (0, 1));
    // Others go to it as before.
    rig.submit(job(3));
    rig.skip_to("full: assign j3#1");
    rig.ack("sound", 2);
    rig.skip();
    rig.credit("sound", 1);
    rig.skip_to("sound: assign j1#2");
}

#[test]
fn a_job_goes_back_to_the_worker_without_room_when_the_other_one_left() {
    let mut rig = submitted(Config::default());
    rig.worker("full", "calcA", 1);
    rig.skip();
    rig.classic("other", "calcA", 0);
    rig.outcome("full", 1, Outcome::Lacks(Lack::Room));
    rig.expect(["+requeue j1#1 DiskFull free now"]);
    rig.credit("full", 1);
    rig.close("other");
    rig.skip_to("full: assign j1#2");
}

#[test]
fn a_job_that_fits_nowhere_is_tried_for_minutes_and_its_client_is_told() {
    let mut rig = submitted(Config { attempts_max: 1, ..Config::default() });
    rig.note_waiting();
    rig.worker("full", "calcA", 1);
    rig.skip();
    let begin = rig.now();
    for attempt in 1..NO_ROOM_ATTEMPTS_MAX {
        rig.outcome("full", 1, Outcome::Lacks(Lack::Room));
        let lines = rig.take();
        rig.credit("full", 1);
        assert!(lines[0].contains("has no room on its disk"), "{lines:?}");
        assert_eq!(lines[1], format!("+requeue j1#{attempt} DiskFull free later"));
        let wait = rig.wait_of(1);
        assert_about(wait, (1 << (attempt - 1)).min(60));
        let waits = rig.broker.explain(id(1)).unwrap().waits;
        assert!(matches!(waits, Some(WaitsFor::WorkerLacks { until: Some(_), .. })), "{waits:?}");
        loop {
            rig.pass(SECOND);
            if rig.job(1).attempt.0 as usize > attempt {
                break;
            }
            rig.beat("full", &[]);
        }
        rig.skip();
    }
    assert!(rig.now().since(begin) > SECOND * 400, "{:?}", rig.now().since(begin));
    rig.outcome("full", 1, Outcome::Lacks(Lack::Room));
    rig.expect(["+dlq j1#16 DiskFull", "alice: result j1"]);
}

#[test]
fn an_attempt_whose_worker_cannot_use_its_directory_does_not_count_and_goes_elsewhere() {
    let mut rig = submitted(Config { attempts_max: 1, ..Config::default() });
    rig.worker("broken", "calcA", 1);
    rig.skip();
    rig.classic("other", "calcA", 0);
    rig.outcome("broken", 1, Outcome::Lacks(Lack::Directory));
    rig.expect(["+requeue j1#1 NoDirectory free now"]);
    rig.credit("broken", 1);
    rig.expect([]);
    let waits = rig.broker.explain(id(1)).unwrap().waits;
    let expected =
        WaitsFor::WorkerLacks { worker: worker_id("broken"), lack: Lack::Directory, until: None };
    assert_eq!((waits, rig.job(1).spent), (Some(expected), 0));
    rig.credit("other", 1);
    rig.skip_to("other: assign j1#2");
}

/// Jobs 1 to `count` found no room at "full", and "sound" could have them if it were not busy.
fn without_room(count: u32) -> Rig {
    let mut rig = Rig::with(Config { cap_default: 1_000, ..Config::default() });
    rig.client("alice");
    rig.worker("sound", "calcA", 1);
    rig.submit(job(1_000));
    rig.skip_to("sound: assign j1000#1");
    rig.worker("full", "calcA", count);
    rig.skip();
    for number in 1..=count {
        rig.submit(job(number));
        rig.skip();
    }
    for number in 1..=count {
        rig.outcome("full", number, Outcome::Lacks(Lack::Room));
        rig.skip();
    }
    rig
}

#[test]
fn any_number_of_jobs_that_find_no_room_keep_a_worker_from_no_other_job_of_their_key() {
    let mut rig = without_room(200);
    rig.credit("full", 1);
    rig.expect([]);
    rig.submit(job(500));
    rig.skip_to("full: assign j500#1");
    // Whom they wait for gets the first of them at once.
    rig.ack("sound", 1_000);
    rig.skip();
    rig.credit("sound", 1);
    rig.skip_to("sound: assign j1#2");
    rig.expect([]);
    let waits = rig.broker.explain(id(3)).unwrap().waits;
    assert!(matches!(waits, Some(WaitsFor::Room | WaitsFor::WorkerLacks { .. })), "{waits:?}");
}

#[test]
fn jobs_that_wait_for_another_worker_go_back_when_it_falls_silent_or_leaves() {
    let mut rig = without_room(80);
    rig.credit("full", 80);
    rig.expect([]);
    rig.close("sound");
    rig.skip();
    for _ in 0..10 {
        rig.pass(SECOND);
        rig.skip();
    }
    let leased = (1..=80).filter(|number| rig.job(*number).attempt.0 == 2).count();
    assert_eq!(leased, 80);
    rig.skip();
}

#[test]
fn that_a_worker_hands_jobs_back_is_known_until_such_a_job_ends_there() {
    let mut rig = without_room(2);
    let lacked = |rig: &Rig| {
        let worker = rig.broker.workers().find(|worker| worker.id == worker_id("full")).unwrap();
        worker.lacked.map(|(lack, _)| lack)
    };
    assert_eq!(lacked(&rig), Some(Lack::Room));
    rig.credit("full", 1);
    rig.submit(job(500));
    rig.skip_to("full: assign j500#1");
    rig.ack("full", 500);
    rig.skip();
    assert_eq!(lacked(&rig), Some(Lack::Room), "a smaller one proves nothing");
    rig.close("sound");
    rig.credit("full", 1);
    rig.skip_to("full: assign j1#2");
    rig.ack("full", 1);
    rig.skip();
    assert_eq!(lacked(&rig), None);
}
