//! What workers offer and what clients may have running: the rows CR01-CR10, CP01-CP05, C03 and
//! C16, by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::time::Duration;

use heft::core::Config;
use heft::core::Event;
use heft::core::event::{ClientPeer, Outcome, WorkerClass};
use heft::core::ids::ConnId;
use heft::core::payload::PayloadKind;
use heft::core::worker::Hello;
use rig::{Rig, SECOND, id, job, job_for, job_of, worker_id};

/// A rig with a client whose cap is out of the way and so many jobs that wait.
fn with_jobs(jobs: u32) -> Rig {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(100_000));
    rig.skip();
    for number in 1..=jobs {
        rig.submit(job(number));
        rig.skip();
    }
    rig
}

fn held(rig: &Rig, worker: &str) -> usize {
    rig.worker_named(worker).held.len()
}

#[test]
fn cr01_a_first_credit_of_one_is_one_job() {
    let mut rig = with_jobs(3);
    rig.classic("s1", "calcA", 1);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    assert_eq!((rig.room("s1"), held(&rig, "s1")), (0, 1));
}

#[test]
fn cr02_c16_a_first_credit_is_whatever_the_worker_sends() {
    let mut rig = with_jobs(9);
    rig.classic("s1", "calcA", 4);
    rig.skip();
    rig.classic("s2", "calcA", 3);
    rig.skip();
    assert_eq!((held(&rig, "s1"), held(&rig, "s2")), (4, 3));
}

#[test]
fn cr03_a_credit_before_the_hello_or_from_a_client_is_nothing() {
    let mut rig = with_jobs(1);
    rig.credit("alice", 5);
    rig.expect([]);
    rig.hello("s1", WorkerClass::Classic, "calcA", None);
    rig.expect([]);
    assert_eq!(rig.room("s1"), 0);
}

#[test]
fn cr10_a_job_that_has_ended_at_its_worker_takes_no_place_while_its_result_is_on_its_way() {
    let mut rig = with_jobs(5);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    rig.credit("w1", 2);
    rig.expect(["+assign j1#1 w1", "+assign j2#1 w1", "w1: assign j1#1", "w1: assign j2#1"]);
    for number in 1..=2 {
        rig.progress("w1", number, 1);
        rig.skip();
    }
    // What it offers while it has not answered counts only for what has ended there.
    rig.credit("w1", 2);
    rig.expect([]);
    rig.returning("w1", 1, 1);
    rig.expect(["+assign j3#1 w1", "w1: assign j3#1"]);
    rig.returning("w1", 1, 1);
    rig.expect([]);
    rig.returning("w1", 2, 1);
    rig.expect(["+assign j4#1 w1", "w1: assign j4#1"]);
    // And no more than it offers: what waits there is for it to bound.
    rig.progress("w1", 3, 1);
    rig.skip();
    rig.returning("w1", 3, 1);
    rig.expect([]);
    assert_eq!((rig.room("w1"), held(&rig, "w1"), rig.worker_named("w1").returning()), (0, 4, 3));
}

#[test]
fn cr04_credits_of_nought_and_below_are_ignored_even_as_the_first() {
    let mut rig = with_jobs(9);
    for parallel_max in [None, Some(2)] {
        let name = if parallel_max.is_some() { "w1" } else { "s1" };
        rig.hello(name, WorkerClass::Classic, "calcA", parallel_max);
        for delta in [0, -1, i32::MIN] {
            rig.credit(name, delta);
            rig.expect([]);
        }
        rig.credit(name, 2);
        rig.skip();
        assert_eq!((rig.room(name), held(&rig, name)), (0, 2), "{name}");
        rig.credit(name, -2);
        rig.expect([]);
        assert_eq!((rig.room(name), held(&rig, name)), (0, 2), "{name}: nothing is taken back");
    }
}

#[test]
fn cr04_billions_are_cut_to_ten_thousand_and_do_not_add_up() {
    let mut rig = Rig::new();
    rig.classic("s1", "calcA", i32::MAX);
    rig.credit("s1", i32::MAX);
    rig.credit("s1", 10_001);
    rig.expect([]);
    assert_eq!(rig.room("s1"), 10_000);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(4));
    rig.credit("w1", i32::MAX);
    rig.credit("w1", i32::MAX);
    rig.expect([]);
    assert_eq!(rig.room("w1"), 4, "who says how many it runs gets no more");
}

#[test]
fn cr05_every_assignment_takes_one_credit() {
    let mut rig = with_jobs(0);
    rig.classic("s1", "calcA", 3);
    for number in 1..=3 {
        rig.submit(job(number));
        rig.skip();
        assert_eq!(rig.room("s1"), 3 - number);
    }
}

#[test]
fn cr06_cr07_an_ack_gives_no_credit_back_the_workers_own_message_does() {
    let mut rig = with_jobs(2);
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r1 ok s1", "s1: settle j1", "drop input j1", "alice: result j1"]);
    assert_eq!(rig.room("s1"), 0);
    rig.pass(SECOND);
    rig.expect([]);
    rig.credit("s1", 1);
    rig.expect(["+assign j2#1 s1", "s1: assign j2#1"]);
}

#[test]
fn cr08_nothing_but_an_assignment_takes_credit() {
    let mut rig = Rig::new();
    rig.worker("w1", "calcA", 3);
    rig.beat("w1", &[]);
    rig.pass(SECOND);
    rig.expect([]);
    assert_eq!(rig.room("w1"), 3);
}

#[test]
fn cr09_c17_a_classic_worker_that_leaks_a_credit_gets_it_back_after_a_while_without_work() {
    let mut rig = with_jobs(3);
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.ack("s1", 1);
    rig.skip();
    rig.pass(SECOND * 4);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+assign j2#1 s1", "s1: assign j2#1"]);
    // The credit that was only late is not a second one.
    rig.credit("s1", 1);
    rig.expect([]);
    rig.ack("s1", 2);
    rig.skip();
    rig.credit("s1", 1);
    rig.expect(["+assign j3#1 s1", "s1: assign j3#1"]);
}

#[test]
fn cr09_a_credit_counts_as_leaked_only_that_long_after_the_last_ack() {
    let mut rig = with_jobs(3);
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.ack("s1", 1);
    rig.skip();
    rig.credit("s1", 1);
    rig.skip();
    rig.pass(SECOND * 4);
    rig.ack("s1", 2);
    rig.skip();
    rig.pass(SECOND * 4);
    rig.expect([]);
    rig.pass(SECOND);
    rig.expect(["+assign j3#1 s1", "s1: assign j3#1"]);
}

#[test]
fn cr09_a_classic_worker_that_leaked_all_its_credits_gets_them_all_back() {
    let mut rig = with_jobs(6);
    rig.classic("s1", "calcA", 3);
    rig.skip();
    for number in 1..=3 {
        rig.ack("s1", number);
        rig.skip();
    }
    rig.pass(SECOND * 5);
    rig.skip();
    assert_eq!(held(&rig, "s1"), 3);
}

#[test]
fn cr10_one_of_ours_that_offers_nothing_is_given_nothing_however_long() {
    let mut rig = with_jobs(2);
    rig.worker("w1", "calcA", 1);
    rig.skip();
    rig.ack("w1", 1);
    rig.skip();
    rig.pass(SECOND * 600);
    rig.expect([]);
    rig.credit("w1", 1);
    rig.expect(["+assign j2#1 w1", "w1: assign j2#1"]);
}

#[test]
fn cr10_a_worker_that_never_offered_is_given_nothing() {
    let mut rig = with_jobs(1);
    rig.hello("s1", WorkerClass::Classic, "calcA", None);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(4));
    rig.hello("w2", WorkerClass::Leasing, "calcA", Some(0));
    rig.credit("w2", 4);
    rig.pass(SECOND * 600);
    rig.expect([]);
}

#[test]
fn c17_credit_is_bounded_by_the_first_offer_and_the_answers_to_what_was_sent() {
    let mut rig = with_jobs(9);
    rig.classic("s1", "calcA", 2);
    rig.skip();
    rig.credit("s1", 1);
    rig.expect([]);
    // Answers for jobs that nobody sent it buy nothing.
    for number in 100..110 {
        rig.outcome("s1", number, Outcome::GivenUp);
        rig.skip();
        rig.credit("s1", 1);
        rig.expect([]);
    }
    rig.ack("s1", 1);
    rig.skip();
    rig.credit("s1", 3);
    rig.expect([]);
    assert_eq!((rig.room("s1"), held(&rig, "s1")), (0, 2));
}

#[test]
fn c17_credit_that_overtakes_the_answer_it_is_for_counts_with_that_answer() {
    let mut rig = with_jobs(9);
    rig.classic("s1", "calcA", 2);
    rig.skip();
    // The answer for the first is large, and takes until it is kept.
    rig.credit("s1", 1);
    rig.expect([]);
    rig.ack("s1", 2);
    rig.skip();
    rig.credit("s1", 1);
    rig.skip();
    rig.ack("s1", 1);
    rig.skip();
    assert_eq!((rig.room("s1"), held(&rig, "s1")), (0, 2), "both places are in use again");
}

#[test]
fn c03_a_worker_without_ids_has_one_job_at_a_time_whatever_it_offers() {
    let mut rig = with_jobs(3);
    rig.hello("f0", WorkerClass::OneAtATime, "calcA", None);
    rig.credit("f0", 50);
    rig.expect(["+assign j1#1 f0", "f0: assign j1#1"]);
    rig.credit("f0", 50);
    rig.pass(SECOND * 3600);
    rig.expect([]);
    rig.ack("f0", 1);
    rig.expect([
        "+ack j1 r1 ok f0",
        "+assign j2#1 f0",
        "f0: settle j1",
        "drop input j1",
        "alice: result j1",
        "f0: assign j2#1",
    ]);
}

#[test]
fn c03_a_worker_without_ids_never_times_out_and_after_its_loss_nothing_of_it_counts() {
    let mut rig = Rig::with(Config { classic_ack_timeout: true, ..Config::default() });
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.hello("f0", WorkerClass::OneAtATime, "calcA", None);
    rig.credit("f0", 1);
    rig.skip();
    rig.pass(SECOND * 3600);
    rig.expect([]);
    rig.close("f0");
    rig.expect(["+requeue j1#1 WorkerLost counts now"]);
    rig.ack("f0", 1);
    rig.expect(["drop result r1"]);
}

#[test]
fn c03_a_cancelled_job_keeps_the_place_of_a_worker_without_ids_until_it_answers() {
    let mut rig = with_jobs(2);
    rig.hello("f0", WorkerClass::OneAtATime, "calcA", None);
    rig.credit("f0", 5);
    rig.skip();
    rig.cancel(1);
    rig.expect([
        "+cancel j1 by ops",
        "f0: abandon j1#1",
        "drop input j1",
        "alice: result j1",
        "answer 1: Ok(Cancelled { was: Running })",
    ]);
    rig.ack("f0", 1);
    rig.expect(["f0: settle j1", "drop result r1", "+assign j2#1 f0", "f0: assign j2#1"]);
}

#[test]
fn cp01_the_last_hellos_cap_counts() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(2));
    rig.expect(["+cap alice 2"]);
    rig.client_with_cap("alice", Some(2));
    rig.expect([]);
    rig.client_with_cap("alice", Some(3));
    rig.expect(["+cap alice 3"]);
    rig.client("alice");
    rig.expect([]);
    assert_eq!(rig.broker.cap_of(&"alice".into()), 3);
}

#[test]
fn cp01_the_last_hellos_cap_counts_when_commits_are_slow() {
    let mut rig = Rig::new();
    rig.delay_commits();
    rig.client_with_cap("alice", Some(2));
    rig.expect(["+cap alice 2"]);
    rig.client_with_cap("alice", Some(4));
    rig.expect(["+cap alice 4"]);
    rig.commit();
    rig.expect([]);
    assert_eq!(rig.broker.cap_of(&"alice".into()), 4);
}

#[test]
fn cp02_cp03_without_a_usable_number_the_cap_is_four_and_it_is_at_least_one() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.client_with_cap("bob", Some(0));
    rig.expect(["+cap bob 1"]);
    for number in 1..=6 {
        rig.submit(job(number));
        rig.skip();
        rig.submit(job_of("bob", 10 + number));
        rig.skip();
    }
    rig.worker("w1", "calcA", 20);
    rig.skip();
    assert_eq!((rig.running("alice"), rig.running("bob")), (4, 1));
}

#[test]
fn cp04_the_count_goes_up_with_an_assignment_and_down_with_ack_dlq_requeue_and_cancel() {
    let mut rig = Rig::with(Config { attempts_max: 2, ..Config::default() });
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    let count_after = |rig: &mut Rig, expected: u32| {
        rig.skip();
        assert_eq!(rig.running("alice"), expected);
    };
    rig.submit(job(1));
    count_after(&mut rig, 1);
    rig.ack("s1", 1);
    count_after(&mut rig, 0);
    rig.credit("s1", 1);
    rig.submit(job(2));
    count_after(&mut rig, 1);
    rig.close("s1");
    rig.expect(["+requeue j2#1 WorkerLost counts now"]);
    count_after(&mut rig, 0);
    rig.classic("s2", "calcA", 1);
    count_after(&mut rig, 1);
    rig.close("s2");
    rig.expect(["+dlq j2#2 WorkerLost", "alice: result j2"]);
    count_after(&mut rig, 0);
    rig.classic("s3", "calcA", 1);
    rig.submit(job(3));
    count_after(&mut rig, 1);
    rig.cancel(3);
    count_after(&mut rig, 0);
}

#[test]
fn cp04_the_cap_is_one_for_all_keys_and_connections_of_a_client() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(2));
    rig.skip();
    rig.client("alice");
    rig.worker("w1", "job.assign.*", 20);
    for number in 1..=3 {
        rig.submit(job_for("calcA", number));
        rig.skip();
        rig.submit_at("alice/2", job_for("calcB", 10 + number));
        rig.skip();
    }
    assert_eq!(rig.running("alice"), 2);
}

#[test]
fn cp05_a_client_that_comes_back_finds_its_running_jobs_counted() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    rig.worker("w1", "calcA", 4);
    rig.submit(job(1));
    rig.skip();
    rig.submit(job(2));
    rig.skip();
    rig.close("alice");
    rig.pass(SECOND);
    rig.expect([]);
    rig.client_with_cap("alice", Some(1));
    rig.expect([]);
    assert_eq!(rig.running("alice"), 1, "nothing more was given out");
    rig.ack("w1", 1);
    rig.expect([
        "+ack j1 r1 ok w1",
        "w1: settle j1",
        "drop input j1",
        "+assign j2#1 w1",
        "w1: assign j2#1",
    ]);
}

#[test]
fn a_second_hello_on_a_connection_leaves_nothing_of_the_first_behind() {
    let mut rig = with_jobs(1);
    rig.classic("s1", "calcA", 1);
    rig.skip();
    let conn = rig.conn("s1");
    let patterns = vec!["job.assign.calcB".to_owned()];
    let (worker, class) = (worker_id("s2"), WorkerClass::Classic);
    rig.tell(Event::WorkerHello(Hello {
        conn,
        worker,
        name: "s2".into(),
        class,
        patterns,
        parallel_max: None,
        transfers: false,
        datasets: false,
        reads: PayloadKind::Request,
        programs: None,
    }));
    rig.expect(["+requeue j1#1 WorkerLost counts now"]);
    assert_eq!(rig.broker.workers().map(|worker| worker.id).collect::<Vec<_>>(), [worker_id("s2")]);
}

#[test]
fn a_connection_that_names_another_client_gets_no_results_of_the_first() {
    let mut rig = with_jobs(1);
    let conn = rig.conn("alice");
    rig.tell(Event::ClientHello {
        conn,
        client: "mallory".into(),
        cap: None,
        peer: ClientPeer::Heft,
    });
    rig.classic("s1", "calcA", 1);
    rig.skip();
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r1 ok s1", "s1: settle j1", "drop input j1"]);
    rig.classic_client_back("alice");
    rig.expect(["alice/2: result j1"]);
    assert_eq!(rig.job(1).id(), id(1));
}

#[test]
fn a_worker_that_comes_back_on_a_second_connection_ends_the_first() {
    let mut rig = Rig::new();
    rig.worker("w1", "calcA", 1);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
    rig.expect(["w1: close, the worker connected again"]);
    let first = ConnId(1);
    rig.tell(Event::Closed { conn: first });
    rig.pass(Duration::from_secs(60));
    rig.expect([]);
    assert_eq!(rig.worker_named("w1").conn(), Some(rig.conn("w1/2")));
}

#[test]
fn a_hello_with_the_id_of_a_connected_worker_of_another_kind_is_refused() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.worker("w1", "calcA", 1);
    rig.skip();
    rig.hello("w1", WorkerClass::Classic, "calcA", None);
    rig.expect(["w1/2: close, its worker id is that of a connected worker of another kind"]);
    let second = rig.conn("w1/2");
    rig.tell(Event::Closed { conn: second });
    rig.expect([]);
    assert_eq!(rig.worker_named("w1").conn(), Some(ConnId(2)));
    assert!(rig.job(1).is_with(worker_id("w1")));
}

#[test]
fn an_offer_that_was_lost_on_the_way_is_made_good_by_a_heartbeat_of_a_worker_that_has_nothing() {
    let mut rig = with_jobs(3);
    rig.hello("w1", WorkerClass::Leasing, "calcA", Some(2));
    rig.expect([]);
    // Its Credit of 2 was damaged.
    let conn = rig.conn("w1");
    let beat = |credit| Event::Heartbeat { conn, cpu_permille: 0, credit, held: Vec::new() };
    rig.tell(beat(0));
    rig.expect([]);
    rig.tell(beat(2));
    rig.expect(["+assign j1#1 w1", "+assign j2#1 w1", "w1: assign j1#1", "w1: assign j2#1"]);
    // It was sent before the jobs came there.
    rig.tell(beat(2));
    rig.expect([]);
    assert_eq!((rig.room("w1"), held(&rig, "w1")), (0, 2));
}
