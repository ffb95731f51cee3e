//! Which job goes to which worker, and when: the rows SC01-SC13, C14, C15, C28, S07, S10 and S21,
//! by events.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use heft::core::caps::CAPS_MAX;
use heft::core::choose::Policy;
use heft::core::event::Submission;
use heft::core::limits::ASSIGNMENTS_PER_PASS_MAX;
use heft::core::{Config, Event};
use rig::{Rig, SECOND, job, job_for, job_of, with_policy};

/// The jobs that were given out, as lines without their numbers: `w1 j3`.
fn given(lines: &[String]) -> Vec<String> {
    let assigned = lines.iter().filter_map(|line| line.split_once(": assign "));
    assigned.map(|(worker, job)| format!("{worker} {}", job.split('#').next().unwrap())).collect()
}

#[test]
fn sc01_jobs_of_one_queue_go_out_in_their_order_one_for_each_credit() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
    rig.submit(job(2));
    rig.expect(["+enqueue j2", "alice: submitted j2 Queued behind 1"]);
    rig.classic("s1", "calcA", 1);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    rig.ack("s1", 1);
    rig.expect(["+ack j1 r1 ok s1", "s1: settle j1", "drop input j1", "alice: result j1"]);
    rig.credit("s1", 1);
    rig.expect(["+assign j2#1 s1", "s1: assign j2#1"]);
}

#[test]
fn sc02_a_group_has_a_queue_from_its_first_job_until_its_last() {
    let mut rig = Rig::new();
    rig.client("alice");
    assert_eq!(rig.broker.queues().key_count(), 0);
    rig.submit(job_for("groupA", 1));
    rig.skip();
    rig.submit(job_for("job.submit.groupB", 2));
    rig.skip();
    let keys: Vec<_> =
        rig.broker.queues().keys().map(|(key, len)| (key.to_string(), len)).collect();
    assert_eq!(keys, [("job.assign.groupA".to_owned(), 1), ("job.assign.groupB".to_owned(), 1)]);
    rig.worker("w1", "groupA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
    assert_eq!(rig.broker.queues().key_count(), 1);
}

#[test]
fn sc03_programs_take_turns_however_many_jobs_one_of_them_has() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(100));
    rig.skip();
    for number in 1..=3 {
        rig.submit(job_for("calcA", number));
        rig.skip();
    }
    rig.submit(job_for("calcB", 11));
    rig.skip();
    rig.classic("s1", "job.assign.*", 1);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    rig.ack("s1", 1);
    rig.skip();
    rig.credit("s1", 1);
    rig.expect(["+assign j11#1 s1", "s1: assign j11#1"]);
}

fn two_workers(policy: Policy) -> Rig {
    let mut rig = Rig::with(with_policy(policy));
    rig.client_with_cap("alice", Some(100));
    rig.skip();
    rig
}

#[test]
fn sc04_credit_first_gives_to_the_most_credit_then_to_the_fewest_running() {
    let mut rig = two_workers(Policy::CreditFirst);
    rig.worker("w1", "calcA", 3);
    rig.worker("w2", "calcA", 5);
    for (number, worker) in [(1, "w2"), (2, "w2"), (3, "w1")] {
        rig.submit(job(number));
        assert_eq!(given(&rig.take()), [format!("{worker} j{number}")]);
    }
    // 2 and 3 left: the most credit again, although it runs more.
    rig.submit(job(4));
    assert_eq!(given(&rig.take()), ["w2 j4"]);
}

#[test]
fn sc05_c14_least_load_gives_to_the_fewest_running_then_to_the_most_credit() {
    let mut rig = two_workers(Policy::default());
    rig.worker("w1", "calcA", 3);
    rig.worker("w2", "calcA", 5);
    for (number, worker) in
        [(1, "w2"), (2, "w1"), (3, "w2"), (4, "w1"), (5, "w2"), (6, "w1"), (7, "w2")]
    {
        rig.submit(job(number));
        assert_eq!(given(&rig.take()), [format!("{worker} j{number}")]);
    }
}

#[test]
fn sc06_load_score_weighs_processor_use_and_running_jobs() {
    let mut rig = two_workers(Policy::LoadScore);
    rig.worker("w1", "calcA", 4);
    rig.worker("w2", "calcA", 4);
    rig.beat_at("w1", 600, &[]);
    rig.beat_at("w2", 200, &[]);
    // 200, 450, 700 against 600: a quarter of its room for each job.
    for (number, worker) in [(1, "w2"), (2, "w2"), (3, "w1"), (4, "w2")] {
        rig.submit(job(number));
        assert_eq!(given(&rig.take()), [format!("{worker} j{number}")]);
    }
}

#[test]
fn sc07_round_robin_gives_to_each_in_its_turn() {
    let mut rig = two_workers(Policy::RoundRobin);
    rig.worker("w1", "calcA", 9);
    rig.worker("w2", "calcA", 2);
    rig.worker("w3", "calcA", 9);
    let turns = ["w1", "w2", "w3", "w1", "w2", "w3", "w1", "w3", "w1"];
    for (number, worker) in (1..).zip(turns) {
        rig.submit(job(number));
        assert_eq!(given(&rig.take()), [format!("{worker} j{number}")]);
    }
}

#[test]
fn sc07_sticky_stays_with_a_worker_for_each_client_and_key_while_it_has_room() {
    let mut rig = two_workers(Policy::Sticky);
    rig.client_with_cap("bob", Some(100));
    rig.skip();
    rig.worker("w1", "job.assign.*", 3);
    rig.worker("w2", "job.assign.*", 5);
    let turns = [
        (job(1), "w2"),
        (job(2), "w2"),
        (job_of("bob", 3), "w1"),
        (job_of("bob", 4), "w1"),
        (Submission { client: "bob".into(), ..job_for("calcB", 5) }, "w2"),
        (job(6), "w2"),
        (job(7), "w2"),
        // w2 is full.
        (job(8), "w1"),
    ];
    for (job, worker) in turns {
        let number = job.job.0.as_u128();
        rig.submit(job);
        assert_eq!(given(&rig.take()), [format!("{worker} j{number}")]);
    }
}

#[test]
fn sc08_every_key_is_tried_not_only_the_one_just_fed() {
    let mut rig = Rig::new();
    rig.client("alice");
    for (number, group) in [(1, "a"), (2, "b"), (3, "c")] {
        rig.submit(job_for(group, number));
        rig.skip();
    }
    rig.worker("w1", "job.assign.>", 3);
    assert_eq!(given(&rig.take()), ["w1 j1", "w1 j2", "w1 j3"]);
}

#[test]
fn sc09_a_submit_a_credit_and_an_ack_each_give_jobs_out() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    rig.submit(job(1));
    rig.skip();
    rig.worker("w1", "calcA", 2);
    assert_eq!(given(&rig.take()), ["w1 j1"], "by a credit");
    rig.submit(job(2));
    rig.skip();
    rig.ack("w1", 1);
    assert_eq!(given(&rig.take()), ["w1 j2"], "by an ack, which makes room under the cap");
    rig.ack("w1", 2);
    rig.skip();
    rig.credit("w1", 2);
    rig.submit(job(3));
    assert_eq!(given(&rig.take()), ["w1 j3"], "by a submit");
}

#[test]
fn sc09_one_pass_gives_out_a_thousand_jobs_of_a_key_and_the_next_the_rest() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(100_000));
    rig.skip();
    for number in 1..=1_500 {
        rig.submit(job(number));
        rig.skip();
    }
    rig.submit(job_for("calcB", 2_000));
    rig.skip();
    rig.delay_commits();
    rig.classic("s1", "job.assign.*", 10_000);
    let first = rig.take();
    assert_eq!(first.len(), ASSIGNMENTS_PER_PASS_MAX + 1);
    assert!(
        first.contains(&"+assign j2000#1 s1".to_owned()),
        "the other key has its turn in the same pass"
    );
    rig.pass(SECOND / 1_000_000);
    assert_eq!(rig.take().len(), 500);
}

#[test]
fn sc11_c15_a_client_at_its_cap_holds_nobody_up_and_keeps_its_order() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    rig.client("bob");
    for number in 1..=3 {
        rig.submit(job(number));
        rig.skip();
    }
    rig.submit(job_of("bob", 10));
    rig.skip();
    rig.worker("w1", "calcA", 4);
    assert_eq!(given(&rig.take()), ["w1 j1", "w1 j10"]);
    rig.ack("w1", 1);
    assert_eq!(given(&rig.take()), ["w1 j2"]);
    rig.ack("w1", 2);
    assert_eq!(given(&rig.take()), ["w1 j3"]);
}

#[test]
fn c15_a_client_with_a_long_queue_leaves_every_other_its_share() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1000));
    rig.skip();
    rig.client_with_cap("bob", Some(1000));
    rig.skip();
    for number in 1..=100 {
        rig.submit(job(number));
        rig.skip();
    }
    rig.submit(job_of("bob", 200));
    rig.skip();
    rig.worker("w1", "calcA", 20);
    let lines = rig.take();
    assert!(given(&lines).contains(&"w1 j200".to_owned()), "not behind a hundred jobs of another");
}

#[test]
fn c28_smaller_priorities_go_first_and_equal_ones_in_their_order() {
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(10));
    rig.skip();
    for (number, priority) in [(1, 0), (2, 5), (3, i64::MIN), (4, 5), (5, -1), (6, i64::MAX)] {
        rig.submit(Submission { priority, ..job(number) });
        rig.skip();
    }
    rig.worker("w1", "calcA", 6);
    assert_eq!(given(&rig.take()), ["w1 j3", "w1 j5", "w1 j1", "w1 j2", "w1 j4", "w1 j6"]);
}

#[test]
fn c28_a_job_says_how_many_of_its_client_go_before_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.submit(job(1));
    rig.skip();
    rig.submit(job(2));
    rig.skip();
    rig.submit(Submission { priority: -1, ..job(3) });
    rig.expect(["+enqueue j3", "alice: submitted j3 Queued behind 0"]);
    rig.submit(Submission { priority: 1, ..job(4) });
    rig.expect(["+enqueue j4", "alice: submitted j4 Queued behind 3"]);
}

#[test]
fn sc13_one_worker_runs_several_jobs_at_once() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 3);
    for number in 1..=4 {
        rig.submit(job(number));
        let lines = rig.take();
        assert_eq!(given(&lines).len(), usize::from(number < 4));
    }
    assert_eq!(rig.worker_named("w1").held.len(), 3);
}

#[test]
fn s07_a_direct_subject_reaches_only_the_worker_that_asked_for_it() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("wB", "job.assign.B.*", 9);
    rig.worker("wC", "job.assign.C", 9);
    rig.submit(job_for("job.assign.A.1", 1));
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
    rig.worker("wA", "job.assign.A.*", 1);
    rig.expect(["+assign j1#1 wA", "wA: assign j1#1"]);
}

#[test]
fn s07_a_direct_subject_with_a_workers_id_reaches_that_one_of_many() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "job.assign.calcA.1", 9);
    rig.worker("w2", "job.assign.calcA.2", 1);
    rig.submit(job_for("job.assign.calcA.2", 1));
    assert_eq!(given(&rig.take()), ["w2 j1"]);
    rig.submit(job_for("job.assign.calcA.2", 2));
    assert_eq!(given(&rig.take()), [""; 0], "it waits for its worker, although another has room");
}

#[test]
fn s10_a_worker_of_one_group_never_sees_a_job_of_another() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.classic("sA", "A", 1);
    rig.classic("sB", "B", 9);
    rig.submit(job_for("A", 1));
    assert_eq!(given(&rig.take()), ["sA j1"]);
    rig.submit(job_for("A", 2));
    rig.skip();
    rig.close("sA");
    rig.expect(["+requeue j1#1 WorkerLost counts now"]);
    rig.submit(job_for("B", 3));
    rig.expect([
        "+enqueue j3",
        "alice: submitted j3 Queued behind 0",
        "+assign j3#1 sB",
        "sB: assign j3#1",
    ]);
    assert_eq!(rig.broker.queues().len(), 2, "the jobs of A wait for a worker of A");
}

#[test]
fn s21_one_worker_takes_jobs_of_all_its_subscriptions_within_one_credit() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "job.assign.A.* job.assign.common.>", 2);
    rig.submit(job_for("job.assign.A.7", 1));
    assert_eq!(given(&rig.take()), ["w1 j1"]);
    rig.submit(job_for("job.assign.B.7", 2));
    assert_eq!(given(&rig.take()), [""; 0]);
    rig.submit(job_for("job.assign.common.x.y", 3));
    assert_eq!(given(&rig.take()), ["w1 j3"]);
    rig.submit(job_for("job.assign.A.8", 4));
    assert_eq!(given(&rig.take()), [""; 0], "no credit is left");
}

#[test]
fn nothing_is_given_out_while_draining_and_running_jobs_still_end() {
    let mut rig = Rig::new();
    rig.client("alice");
    rig.worker("w1", "calcA", 2);
    rig.submit(job(1));
    rig.skip();
    rig.delay_commits();
    rig.submit(job(2));
    rig.expect(["+enqueue j2"]);
    rig.tell(Event::Drain);
    rig.commit();
    rig.expect(["alice: submitted j2 Queued behind 0"]);
    rig.submit(job(3));
    rig.expect(["alice: refused j3 draining"]);
    rig.submit(job(2));
    rig.expect(["alice: submitted j2 Queued behind 0"]);
    assert!(!rig.broker.is_idle());
    rig.ack("w1", 1);
    rig.expect(["+ack j1 r1 ok w1"]);
    rig.commit();
    rig.expect(["w1: settle j1", "drop input j1", "alice: result j1"]);
    rig.credit("w1", 1);
    rig.expect([]);
    assert!(!rig.broker.is_idle(), "that the result was sent is on its way into the log");
    rig.commit();
    rig.expect([]);
    assert!(rig.broker.is_idle());
}

#[test]
fn an_assignment_takes_credit_and_cap_before_it_is_committed() {
    let mut rig = Rig::with(Config { cap_default: 1, ..Config::default() });
    rig.client("alice");
    rig.client("bob");
    rig.submit(job(1));
    rig.skip();
    rig.submit(job(2));
    rig.skip();
    rig.submit(job_of("bob", 3));
    rig.skip();
    rig.delay_commits();
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1"]);
    rig.worker("w2", "calcA", 4);
    rig.expect(["+assign j3#1 w2"]);
    rig.commit();
    rig.expect(["w1: assign j1#1", "w2: assign j3#1"]);
    assert_eq!(
        (rig.room("w1"), rig.room("w2"), rig.running("alice"), rig.running("bob")),
        (0, 3, 1, 1)
    );
}

#[test]
fn a_cap_holds_jobs_back_however_many_clients_name_theirs_meanwhile() {
    let others = |rig: &mut Rig| {
        for number in 0..=CAPS_MAX {
            let name = format!("c{number}");
            rig.client_with_cap(&name, Some(2));
            rig.skip();
            rig.close(&name);
            rig.skip();
        }
    };
    // Whether its client is connected and has no jobs yet,
    let mut rig = Rig::new();
    rig.client_with_cap("alice", Some(1));
    rig.skip();
    others(&mut rig);
    rig.worker("w1", "calcA", 10);
    rig.skip();
    let mut lines = Vec::new();
    for number in 1..=3 {
        rig.submit(job(number));
        lines.extend(rig.take());
    }
    assert_eq!(given(&lines), ["w1 j1"]);
    // or has jobs and is gone.
    rig.close("alice");
    rig.skip();
    others(&mut rig);
    rig.ack("w1", 1);
    assert_eq!(given(&rig.take()), ["w1 j2"]);
    assert_eq!(rig.broker.cap_of(&"alice".into()), 1);
}
