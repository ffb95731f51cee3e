//! Where results go and how long they stay, repeated submits, cancelling, and the limits:
//! DD01-DD05, C17 and M17, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::time::Duration;

use heft::core::event::{Operation, Submission};
use heft::core::forgotten::WhyForgotten;
use heft::core::ids::{ConnId, Run};
use heft::core::job::{Ending, Phase};
use heft::core::{Config, Event};
use rig::{Rig, SECOND, announced, id, job, job_of};

/// Alice's first job waits.
fn queued() -> Rig {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig
}

/// Alice's first job is with a worker of ours.
fn leased() -> Rig {
    let mut rig = queued();
    rig.worker("w1", "calcA", 1);
    rig.skip();
    rig
}

/// Alice's first job waits after it was lost twice.
fn in_back_off() -> Rig {
    let mut rig = queued();
    for _ in 0..2 {
        rig.classic("s1", "calcA", 1);
        rig.skip();
        rig.close("s1");
        rig.skip();
    }
    assert!(rig.wait_of(1) > Duration::ZERO);
    rig
}

/// Alice's first job has its result.
fn done() -> Rig {
    let mut rig = leased();
    rig.ack("w1", 1);
    rig.skip();
    rig
}

fn dead_with(config: Config) -> Rig {
    let mut rig = Rig::with(Config { attempts_max: 1, ..config });
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.close("s1");
    rig.skip();
    rig
}

#[test]
fn a_result_goes_to_the_connection_that_submitted() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    rig.skip();
    rig.progress("w1", 1, 1);
    rig.expect(["alice: running j1#1"]);
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
}

#[test]
fn a_result_goes_to_any_connection_of_a_classic_client_where_the_first_is_gone() {
    let mut rig = leased();
    rig.client("bob");
    rig.classic_client_back("alice");
    rig.tell(Event::Closed { conn: ConnId(1) });
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice/2: result j1"]);
}

#[test]
fn a_heft_client_gets_a_result_only_where_it_submitted_the_job() {
    let mut rig = leased();
    // Another program of the same user.
    rig.client("alice");
    rig.tell(Event::Closed { conn: ConnId(1) });
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1"]);
    rig.client("alice");
    rig.pass(SECOND * 60);
    rig.expect([]);
    rig.submit(job(1));
    rig.expect(["alice/3: submitted j1 Finished behind 0", "alice/3: result j1"]);
}

#[test]
fn a_result_nobody_is_there_for_is_kept_and_delivered_once_when_its_classic_client_is_back() {
    let mut rig = leased();
    rig.close("alice");
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1"]);
    rig.client("bob");
    rig.expect([]);
    rig.classic_client_back("alice");
    rig.expect(["alice/2: result j1"]);
    rig.classic_client_back("alice");
    rig.expect([]);
}

#[test]
fn results_that_waited_for_their_client_go_out_in_the_order_of_their_jobs_also_after_a_restart() {
    let mut rig = Rig::new();
    rig.note_delivery();
    rig.client("alice");
    rig.worker("w1", "calcA", 4);
    // The ids are in another order than the jobs, and the jobs end in a third one.
    for number in [3, 1, 4, 2] {
        rig.submit(job(number));
        rig.skip();
    }
    rig.close("alice");
    for number in [1, 2, 3] {
        rig.ack("w1", number);
        rig.skip();
    }
    rig.hold_delivery();
    rig.classic_client_back("alice");
    rig.expect(["alice/2: result j3", "alice/2: result j1", "alice/2: result j2"]);
    let state = rig.broker.state().clone();
    rig.restart(state);
    rig.classic_client_back("alice");
    rig.expect(["alice/3: result j3", "alice/3: result j1", "alice/3: result j2"]);
}

#[test]
fn a_result_counts_as_delivered_when_its_client_has_it_and_not_before() {
    let mut rig = leased();
    rig.note_delivery();
    rig.hold_delivery();
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice: result j1"]);
    rig.tell(Event::Delivered { job: id(1), run: Run(2) });
    rig.expect([]);
    assert!(!rig.job(1).delivered, "that was another run");
    rig.tell(Event::Delivered { job: id(1), run: Run(1) });
    rig.expect(["+delivered j1"]);
    rig.tell(Event::Delivered { job: id(1), run: Run(1) });
    rig.expect([]);
    rig.close("alice");
    rig.classic_client_back("alice");
    rig.expect([]);
}

#[test]
fn a_result_on_its_way_when_its_connection_ends_waits_for_the_next_one() {
    let mut rig = leased();
    rig.note_delivery();
    rig.hold_delivery();
    rig.ack("w1", 1);
    rig.skip();
    rig.close("alice");
    rig.tell(Event::NotDelivered { job: id(1) });
    rig.expect([]);
    assert!(!rig.job(1).delivered);
    rig.classic_client_back("alice");
    rig.expect(["alice/2: result j1"]);
    rig.tell(Event::Delivered { job: id(1), run: Run(1) });
    rig.expect(["+delivered j1"]);
}

#[test]
fn a_result_on_its_way_when_its_connection_ends_goes_to_another_of_its_classic_client() {
    let mut rig = leased();
    rig.hold_delivery();
    rig.ack("w1", 1);
    rig.skip();
    rig.classic_client_back("alice");
    rig.tell(Event::Closed { conn: ConnId(1) });
    rig.tell(Event::NotDelivered { job: id(1) });
    rig.expect(["alice/2: result j1"]);
}

#[test]
fn a_result_that_its_client_has_is_not_sent_again_when_an_older_connection_ends() {
    let mut rig = leased();
    rig.note_delivery();
    rig.hold_delivery();
    rig.ack("w1", 1);
    rig.skip();
    rig.classic_client_back("alice");
    rig.delay_commits();
    rig.tell(Event::Delivered { job: id(1), run: Run(1) });
    rig.expect(["+delivered j1"]);
    // It counts from when it is proposed.
    rig.tell(Event::NotDelivered { job: id(1) });
    rig.tell(Event::Delivered { job: id(1), run: Run(1) });
    rig.expect([]);
    rig.commit();
    assert!(rig.job(1).delivered);
    rig.tell(Event::Closed { conn: ConnId(1) });
    rig.tell(Event::NotDelivered { job: id(1) });
    rig.expect([]);
    // Nor is it kept for the next hello.
    rig.tell(Event::Closed { conn: ConnId(2) });
    rig.tell(Event::NotDelivered { job: id(1) });
    rig.classic_client_back("alice");
    rig.expect([]);
}

#[test]
fn a_dead_jobs_answer_is_kept_for_its_client_too() {
    let mut rig = Rig::with(Config { attempts_max: 1, ..Config::default() });
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.close("alice");
    rig.close("s1");
    rig.expect(["+dlq j1#1 WorkerLost"]);
    rig.classic_client_back("alice");
    rig.expect(["alice/2: result j1"]);
}

#[test]
fn a_failed_result_is_a_result_and_not_tried_again() {
    let mut rig = leased();
    rig.ack_id("w1", id(1), false);
    rig.expect(["+ack j1 r1 failed w1", "w1: settle j1", "retain input j1", "alice: result j1"]);
    assert!(matches!(
        &rig.job(1).phase,
        Phase::Done { ending: Ending::Returned { ok: false, .. }, .. }
    ));
}

#[test]
fn dd04_a_repeated_submit_is_answered_by_where_the_job_stands() {
    let mut rig = queued();
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Queued behind 0"]);
    let mut rig = in_back_off();
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Queued behind 0"]);
    let mut rig = leased();
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Running behind 0"]);
    let mut rig = done();
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Finished behind 0", "alice: result j1"]);
    let mut rig = dead_with(Config::default());
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Finished behind 0", "alice: result j1"]);
}

#[test]
fn dd04_a_submit_repeated_before_the_first_is_committed_is_one_job() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.client("alice");
    rig.delay_commits();
    rig.submit_at("alice/2", job(1));
    rig.expect(["+enqueue j1"]);
    rig.submit_at("alice/2", job(1));
    rig.expect([]);
    rig.submit(Submission { fingerprint: [8; 32], ..job(1) });
    rig.expect(["alice/2: refused j1 conflict"]);
    rig.commit();
    rig.expect(["alice/2: submitted j1 Queued behind 0"]);
    assert_eq!(rig.broker.queues().len(), 1);
}

#[test]
fn dd04_a_used_id_with_other_content_or_of_another_client_is_a_conflict_in_every_state() {
    for mut rig in [queued(), in_back_off(), leased(), done(), dead_with(Config::default())] {
        rig.client("bob");
        rig.submit(Submission { fingerprint: [8; 32], ..job(1) });
        rig.expect(["alice: refused j1 conflict"]);
        rig.submit(job_of("bob", 1));
        rig.expect(["bob: refused j1 conflict"]);
    }
}

#[test]
fn dd05_m17_a_client_that_comes_back_with_the_same_job_gets_its_result_there() {
    let mut rig = leased();
    rig.close("alice");
    rig.client("alice");
    rig.client("alice");
    rig.submit_at("alice/2", job(1));
    rig.expect(["alice/2: submitted j1 Running behind 0"]);
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1", "w1: settle j1", "drop input j1", "alice/2: result j1"]);
}

#[test]
fn dd01_dd02_a_worker_that_answers_twice_is_settled_and_the_first_result_stays() {
    let mut rig = done();
    rig.ack_id("w1", id(1), false);
    rig.expect(["w1: settle j1", "drop result r2"]);
    assert!(matches!(
        &rig.job(1).phase,
        Phase::Done { ending: Ending::Returned { ok: true, .. }, .. }
    ));
}

#[test]
fn dd03_results_are_kept_for_their_time_and_then_forgotten() {
    let mut rig = done();
    rig.pass(SECOND * 3599);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+forget j1", "drop result r1"]);
    assert_eq!(rig.broker.state().job_count(), 0);
    rig.submit(job(1));
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
}

#[test]
fn dd03_no_more_results_are_kept_than_results_max_and_the_oldest_goes_first() {
    let mut rig = Rig::with(Config { results_max: 2, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    for number in 1..=3 {
        rig.submit(job(number));
        rig.skip();
        rig.ack("w1", number);
        let lines = rig.take();
        let forgets = lines.iter().filter(|line| line.starts_with("+forget")).collect::<Vec<_>>();
        assert_eq!(forgets, if number == 3 { vec!["+forget j1"] } else { vec![] });
        rig.credit("w1", 1);
    }
    assert_eq!(rig.broker.state().job_count(), 2);
}

#[test]
fn dd03_a_job_under_a_forgotten_id_has_its_own_time() {
    let mut rig =
        Rig::with(Config { results_max: 1, result_ttl: SECOND * 10, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    let run = |rig: &mut Rig, number: u32| {
        rig.submit(job(number));
        rig.skip();
        rig.ack("w1", number);
        rig.skip();
        rig.credit("w1", 1);
    };
    run(&mut rig, 1);
    rig.pass(SECOND * 5);
    run(&mut rig, 2);
    run(&mut rig, 1);
    rig.pass(SECOND * 9);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+forget j1", "drop result r3"]);
}

#[test]
fn dd03_what_waits_to_be_forgotten_does_not_grow_with_every_job_that_ever_ran() {
    let mut rig = Rig::with(Config { results_max: 5, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 1);
    for number in 1..=100 {
        rig.submit(job(number));
        rig.skip();
        rig.progress("w1", number, 1);
        rig.skip();
        rig.ack("w1", number);
        rig.skip();
        rig.credit("w1", 1);
        rig.pass(Duration::from_millis(1));
        rig.expect([]);
    }
    assert!(rig.broker.due_count() < 10, "{}", rig.broker.due_count());
}

#[test]
fn dd03_a_result_is_there_until_the_record_that_forgets_it_is_committed() {
    let mut rig = done();
    rig.delay_commits();
    rig.pass(SECOND * 3600);
    rig.expect(["+forget j1"]);
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Finished behind 0", "alice: result j1"]);
    rig.commit();
    rig.expect(["drop result r1"]);
}

#[test]
fn a_forgotten_result_is_not_delivered_later() {
    let mut rig = leased();
    rig.close("alice");
    rig.ack("w1", 1);
    rig.skip();
    rig.pass(SECOND * 3600);
    rig.expect(["+forget j1", "drop result r1"]);
    rig.client("alice");
    rig.expect([]);
}

#[test]
fn jobs_max_counts_every_job_that_is_held_and_says_so() {
    let mut rig = Rig::with(Config { jobs_max: 2, ..Config::default() });
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.delay_commits();
    rig.submit(job(2));
    rig.expect(["+enqueue j2"]);
    rig.submit(job(3));
    rig.expect(["alice: refused j3 full 2 of 2"]);
    rig.commit();
    rig.expect(["alice: submitted j2 Queued behind 1"]);
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Queued behind 0"]);
}

#[test]
fn names_of_jobs_count_from_when_they_are_taken_until_they_are_forgotten_and_come_back_with_the_log()
 {
    // `alice`, `job.assign.calcA` in two spellings, and the program.
    let each = job(1).names_bytes();
    assert_eq!(each, 5 + 2 * 16 + 5);
    let config = Config { names_bytes_max: 2 * each + 1, ..Config::default() };
    let mut rig = Rig::with(config);
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.delay_commits();
    rig.submit(job(2));
    rig.expect(["+enqueue j2"]);
    rig.submit(job(3));
    rig.expect([&*format!("alice: refused j3 names {} and {each} of {}", 2 * each, 2 * each + 1)]);
    rig.commit();
    rig.skip();
    assert_eq!(rig.broker.state().names_bytes(), 2 * each);
    let state = rig.broker.state().clone();
    let (jobs, caps) = (state.jobs().cloned().collect::<Vec<_>>(), Vec::new());
    let restored =
        heft::core::state::State::restore(jobs, caps, Vec::new(), Vec::new(), state.last_seq());
    assert_eq!(restored.names_bytes(), 2 * each);
    rig.cancel(1);
    rig.skip();
    rig.commit();
    rig.skip();
    rig.submit(job(3));
    rig.expect([&*format!("alice: refused j3 names {} and {each} of {}", 2 * each, 2 * each + 1)]);
    rig.pass(SECOND * 3601);
    rig.skip();
    rig.commit();
    rig.skip();
    assert_eq!(rig.broker.state().names_bytes(), each);
    rig.submit(job(3));
    rig.expect(["+enqueue j3"]);
}

#[test]
fn cancel_of_a_queued_job_takes_it_out_of_its_queue() {
    let mut rig = queued();
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Queued })",
    ]);
    assert!(rig.broker.queues().is_empty());
    rig.worker("w1", "calcA", 1);
    rig.expect([]);
}

#[test]
fn cancel_of_a_job_in_back_off_holds_when_its_time_comes() {
    let mut rig = in_back_off();
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Queued })",
    ]);
    rig.worker("w1", "calcA", 1);
    rig.pass(SECOND * 60);
    rig.expect([]);
}

#[test]
fn cancel_of_a_leased_job_tells_its_worker_whose_place_comes_back_with_its_answer() {
    let mut rig = leased();
    rig.submit(job(2));
    rig.skip();
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "w1: abandon j1#1",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Running })",
    ]);
    rig.outcome("w1", 1, heft::core::event::Outcome::GivenUp);
    rig.expect(["w1: settle j1"]);
    rig.credit("w1", 1);
    rig.expect(["+assign j2#1 w1", "w1: assign j2#1"]);
}

#[test]
fn cancel_of_a_job_whose_worker_is_away_is_told_when_it_is_back() {
    let mut rig = leased();
    rig.close("w1");
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Running })",
    ]);
    rig.hello("w1", heft::core::event::WorkerClass::Leasing, "calcA", Some(1));
    rig.beat("w1", &[(1, 1)]);
    rig.expect(["w1/2: abandon j1#1"]);
}

#[test]
fn cancel_of_a_job_whose_worker_never_comes_back_leaves_nothing_to_do() {
    let mut rig = leased();
    rig.close("w1");
    rig.cancel(1);
    rig.skip();
    rig.pass(SECOND * 60);
    rig.expect([]);
}

#[test]
fn cancel_of_a_job_that_is_being_assigned_gives_the_credit_back() {
    let mut rig = queued();
    rig.delay_commits();
    rig.cancel(1);
    rig.expect(["+cancel j1 by ops"]);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1"]);
    assert_eq!(rig.room("w1"), 0);
    rig.commit();
    rig.expect(["drop input j1", "alice: result j1", "answer 1: Ok(Cancelled { was: Queued })"]);
    assert_eq!((rig.room("w1"), rig.running("alice")), (1, 0));
}

#[test]
fn cancel_of_a_job_that_is_being_taken_comes_after_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.delay_commits();
    rig.submit(job(1));
    rig.expect(["+enqueue j1"]);
    rig.cancel(1);
    rig.expect(["+cancel j1 by ops"]);
    rig.commit();
    rig.expect([
        "alice: submitted j1 Queued behind 0",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Queued })",
    ]);
}

#[test]
fn cancel_of_a_job_that_ends_by_itself_meanwhile_says_so() {
    let mut rig = leased();
    rig.delay_commits();
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1"]);
    rig.cancel(1);
    rig.expect(["+cancel j1 by ops"]);
    rig.commit();
    let ended = format!("answer 1: Err(Ended {{ job: {:?} }})", id(1));
    rig.expect(["w1: settle j1", "drop input j1", "alice: result j1", ended.as_str()]);
}

#[test]
fn cancel_of_a_done_dead_or_unknown_job_says_what_it_is() {
    let ended = format!("answer 1: Err(Ended {{ job: {:?} }})", id(1));
    for mut rig in [done(), dead_with(Config::default())] {
        rig.cancel(1);
        rig.expect([ended.as_str()]);
    }
    let mut rig = Rig::new();
    rig.cancel(1);
    rig.expect([format!("answer 1: Err(Unknown {{ job: {:?} }})", id(1)).as_str()]);
}

#[test]
fn a_cancelled_job_answers_a_repeated_submit_and_a_late_result_is_dropped() {
    let mut rig = leased();
    rig.cancel(1);
    rig.skip();
    rig.submit(job(1));
    rig.expect(["alice: submitted j1 Finished behind 0", "alice: result j1"]);
    rig.ack("w1", 1);
    rig.expect(["w1: settle j1", "drop result r1"]);
}

#[test]
fn a_job_that_is_cancelled_forgotten_and_submitted_again_in_back_off_waits_once() {
    let mut rig = Rig::with(Config { results_max: 0, ..Config::default() });
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    for _ in 0..2 {
        rig.classic("s1", "calcA", 1);
        rig.skip();
        rig.close("s1");
        rig.skip();
    }
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "drop input j1",
        "+forget j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Queued })",
    ]);
    rig.submit(job(1));
    rig.skip();
    rig.pass(SECOND * 60);
    rig.expect([]);
    assert_eq!(rig.broker.queues().len(), 1);
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
    assert_eq!(rig.broker.queues().key_count(), 0);
}

// --- whoever waits for the end of a job

fn watch(rig: &mut Rig, number: u32) {
    rig.tell(Event::Watch { job: id(number) });
}

#[test]
fn whoever_waits_for_a_job_hears_of_its_end_once_and_of_none_that_is_not_watched() {
    let mut rig = leased();
    watch(&mut rig, 1);
    watch(&mut rig, 1);
    rig.expect([]);
    rig.ack("w1", 1);
    rig.expect([
        "+ack j1 r1 ok w1",
        "w1: settle j1",
        "ended j1",
        "drop input j1",
        "alice: result j1",
    ]);
    watch(&mut rig, 1);
    rig.expect(["ended j1"]);
    watch(&mut rig, 7);
    rig.expect(["ended j7"]);
    rig.submit(job(2));
    rig.skip();
    let notes = rig.broker.note_count();
    watch(&mut rig, 2);
    assert_eq!(rig.broker.note_count(), notes + 1);
    rig.tell(Event::Unwatch { job: id(2) });
    assert_eq!(rig.broker.note_count(), notes);
    rig.cancel(2);
    assert!(!rig.take().contains(&"ended j2".to_owned()));
}

#[test]
fn a_watched_job_that_dies_or_is_withdrawn_has_ended_and_one_that_is_requeued_has_not() {
    let mut rig = queued();
    watch(&mut rig, 1);
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.close("s1");
    assert!(!rig.take().contains(&"ended j1".to_owned()), "it is tried again");
    let mut rig = dead_with(Config::default());
    watch(&mut rig, 1);
    rig.expect(["ended j1"]);
    rig.operate(Operation::Revive { job: Some(id(1)) });
    rig.skip();
    watch(&mut rig, 1);
    rig.expect([]);
    rig.submit(announced(3));
    rig.skip();
    watch(&mut rig, 3);
    rig.tell(Event::Withdraw { job: id(3) });
    assert!(rig.take().contains(&"ended j3".to_owned()));
}

#[test]
fn a_job_that_is_being_taken_can_be_waited_for() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.delay_commits();
    rig.submit(job(1));
    rig.expect(["+enqueue j1"]);
    watch(&mut rig, 1);
    rig.expect([]);
    rig.commit();
    rig.skip();
    rig.cancel(1);
    rig.expect(["+cancel j1 by ops"]);
    rig.commit();
    assert!(rig.take().contains(&"ended j1".to_owned()));
}

#[test]
fn who_asks_for_a_forgotten_job_hears_why_it_is_not_known_any_more() {
    let mut rig = Rig::with(Config { results_max: 2, ..Config::default() });
    rig.client("alice");
    rig.worker("w1", "calcA", 10);
    rig.skip();
    let why = |rig: &Rig, number| rig.broker.why_forgotten(id(number));
    for number in 1..=3 {
        rig.submit(job(number));
        rig.skip();
        rig.ack("w1", number);
        rig.skip();
    }
    assert_eq!((why(&rig, 1), why(&rig, 2)), (Some(WhyForgotten::TooMany), None));
    rig.tell(Event::ForgetEnded { job: id(2) });
    rig.skip();
    rig.pass(Config::default().result_ttl);
    rig.skip();
    assert_eq!(
        (why(&rig, 2), why(&rig, 3), why(&rig, 4)),
        (Some(WhyForgotten::Room), Some(WhyForgotten::Expired), None)
    );
    let text = rig.broker.not_known(id(2)).to_string();
    assert!(text.contains("has ended") && text.contains("to make room"), "{text}");
}
