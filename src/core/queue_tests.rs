use super::*;
use crate::core::subject::routing_key;
use uuid::Uuid;

fn everything() -> Takes {
    Takes::from_iter([Taker::new(true, PayloadKind::Raw)])
}

/// Adds a job of the program `p`.
fn push(
    queues: &mut Queues,
    exec: &str,
    client: &str,
    (priority, seq): (i64, u64),
    rank: Rank,
    size: u64,
) -> usize {
    push_of(queues, "p", (exec, client), (priority, seq), rank, size)
}

fn push_of(
    queues: &mut Queues,
    program: &str,
    (exec, client): (&str, &str),
    (priority, seq): (i64, u64),
    rank: Rank,
    size: u64,
) -> usize {
    let (place, program) = (Place { priority, seq }, program.into());
    let id = JobId(Uuid::from_u128(seq.into()));
    queues.push(&key(exec), &client.into(), place, &Waiting { id, exec: &program, size, rank })
}

fn key(name: &str) -> RoutingKey {
    routing_key(name, None).unwrap()
}

fn fill(queues: &mut Queues, exec: &str, client: &str, jobs: std::ops::Range<u64>, size: u64) {
    for seq in jobs {
        push(queues, exec, client, (0, seq), Rank::Plain, size);
    }
}

fn drain(queues: &mut Queues, exec: &str) -> Vec<u128> {
    std::iter::from_fn(|| queues.pop(&key(exec), &everything(), |_| true))
        .map(|job| job.0.as_u128())
        .collect()
}

#[test]
fn c15_clients_take_turns_whatever_the_length_of_their_lanes() {
    let mut queues = Queues::default();
    fill(&mut queues, "calcA", "a", 0..40, 0);
    fill(&mut queues, "calcA", "b", 100..102, 0);
    let order = drain(&mut queues, "calcA");
    // 1 MiB of turn pays for sixteen small jobs.
    assert_eq!(order.iter().position(|job| *job == 100), Some(16));
    assert_eq!(order.len(), 42);
    assert!(queues.is_empty() && queues.key_count() == 0);
}

#[test]
fn c15_a_client_with_heavy_jobs_leaves_room_for_one_with_light_ones() {
    let mut queues = Queues::default();
    fill(&mut queues, "calcA", "heavy", 0..3, 64 << 20);
    fill(&mut queues, "calcA", "light", 100..200, 0);
    let order = drain(&mut queues, "calcA");
    let heavy_before_last_light =
        order.iter().take_while(|job| **job != 199).filter(|job| **job < 3).count();
    assert_eq!(heavy_before_last_light, 0, "100 light jobs weigh less than one of 64 MiB");
}

#[test]
fn c28_smaller_priorities_go_first_and_equal_ones_by_age() {
    let mut queues = Queues::default();
    for (seq, priority) in [(1, 5), (2, -1), (3, 5), (4, i64::MIN), (5, 0)] {
        let rank = if seq == 2 { Rank::ByTransfer } else { Rank::Plain };
        push(&mut queues, "e", "c", (priority, seq), rank, 0);
    }
    assert_eq!(drain(&mut queues, "e"), [4, 2, 5, 1, 3]);
}

#[test]
fn c14_a_late_job_lets_others_of_its_priority_go_first_and_one_aside_is_not_served() {
    let mut queues = Queues::default();
    for (seq, priority, rank) in [
        (1, 0, Rank::Late),
        (2, 0, Rank::Aside),
        (3, 0, Rank::Plain),
        (4, 1, Rank::Plain),
        (5, 0, Rank::ByTransfer),
        (6, 0, Rank::Plain),
        (6, 0, Rank::Aside),
    ] {
        push(&mut queues, "e", "c", (priority, seq), rank, 0);
    }
    assert_eq!(queues.len(), 6, "another rank is not another job");
    assert_eq!(drain(&mut queues, "e"), [3, 5, 1, 4]);
    assert_eq!((queues.len(), queues.key_count()), (2, 1));
    push(&mut queues, "e", "c", (0, 6), Rank::Plain, 0);
    assert_eq!(drain(&mut queues, "e"), [6]);
    assert!(queues.remove(&key("e"), &"c".into(), Place { priority: 0, seq: 2 }));
    assert!(queues.is_empty() && queues.key_count() == 0);
}

#[test]
fn m19_jobs_that_no_worker_with_room_takes_are_not_looked_at_and_hold_no_other_up() {
    let mut queues = Queues::default();
    let ranks = [(1, Rank::Raw), (2, Rank::ByTransfer), (3, Rank::Raw), (4, Rank::Plain)];
    for (seq, rank) in ranks {
        push(&mut queues, "e", "c", (0, seq), rank, 0);
    }
    let mut pop = |transfers, reads| {
        let takes = Takes::from_iter([Taker::new(transfers, reads)]);
        queues.pop(&key("e"), &takes, |_| true).map(|job| job.0.as_u128())
    };
    assert_eq!(pop(false, PayloadKind::Request), Some(4));
    assert_eq!(pop(false, PayloadKind::Request), None);
    assert_eq!(pop(false, PayloadKind::Raw), Some(1));
    assert_eq!(pop(true, PayloadKind::Request), Some(2));
    assert_eq!(pop(true, PayloadKind::Raw), Some(3));
    assert!(queues.is_empty() && queues.key_count() == 0);
}

#[test]
fn sc11_a_client_at_its_cap_does_not_hold_the_others_up() {
    let mut queues = Queues::default();
    fill(&mut queues, "e", "capped", 0..5, 0);
    fill(&mut queues, "e", "free", 10..12, 0);
    let free = |client: &ClientId| &*client.0 == "free";
    let served: Vec<_> =
        std::iter::from_fn(|| queues.pop(&key("e"), &Takes::plain(), free)).collect();
    assert_eq!(
        (served.len(), queues.len(), queues.len_by_client()[&ClientId::from("capped")]),
        (2, 5, 5)
    );
    assert_eq!(drain(&mut queues, "e"), [0; 0], "put aside until something changes");
    assert!(queues.remove(&key("e"), &"capped".into(), Place { priority: 0, seq: 2 }));
    fill(&mut queues, "e", "capped", 2..3, 0);
    queues.unpark(&"capped".into());
    assert_eq!(drain(&mut queues, "e"), [0, 1, 2, 3, 4], "the order inside a client is kept");
}

#[test]
fn sc03_keys_take_turns_and_each_is_in_the_ring_once() {
    let mut queues = Queues::default();
    fill(&mut queues, "a", "c", 0..3, 0);
    fill(&mut queues, "b", "c", 10..13, 0);
    let turns = |queues: &Queues| queues.keys().map(|(key, _)| key.to_string()).collect::<Vec<_>>();
    assert_eq!(turns(&queues), ["job.assign.a", "job.assign.b"]);
    assert_eq!(queues.end_turn(0, &key("a"), false), 1, "who was not served keeps its turn");
    assert_eq!(turns(&queues), ["job.assign.a", "job.assign.b"]);
    assert_eq!(queues.end_turn(0, &key("a"), true), 0);
    assert_eq!(turns(&queues), ["job.assign.b", "job.assign.a"]);
    assert_eq!(queues.end_turn(0, &key("gone"), true), 0);
    assert_eq!(queues.key_count(), 2);
}

#[test]
fn what_is_removed_is_gone_and_leaves_nothing_behind() {
    let mut queues = Queues::default();
    fill(&mut queues, "e", "c", 0..2, 0);
    assert!(
        queues.remove(&key("E"), &"c".into(), Place { priority: 0, seq: 0 }),
        "keys ignore case"
    );
    assert!(!queues.remove(&key("e"), &"c".into(), Place { priority: 0, seq: 0 }));
    assert!(queues.remove(&key("e"), &"c".into(), Place { priority: 0, seq: 1 }));
    assert_eq!((queues.len(), queues.key_count(), queues.lanes.len()), (0, 0, 0));
}

#[test]
fn jobs_whose_program_no_worker_with_room_has_are_not_looked_at_and_hold_no_other_up() {
    let mut queues = Queues::default();
    let seqs = [(1, "a"), (2, "b"), (3, "a"), (4, ""), (5, "b"), (6, "c")];
    for (seq, program) in seqs {
        push_of(&mut queues, program, ("e", "c"), (0, seq), Rank::Plain, 0);
    }
    let of = |programs: &[&str], refused: &[&str]| Taker {
        programs: (!programs.is_empty()).then(|| Programs::new(programs)),
        refused: refused.iter().map(|exec| Arc::from(*exec)).collect(),
        ..Taker::new(false, PayloadKind::Request)
    };
    let mut pop = |takers: Vec<Taker>| {
        queues.pop(&key("e"), &takers.into_iter().collect(), |_| true).map(|job| job.0.as_u128())
    };
    assert_eq!(pop(vec![of(&["b"], &[])]), Some(2));
    // What names no program asks for none.
    assert_eq!(pop(vec![of(&["x"], &[])]), Some(4));
    assert_eq!(pop(vec![of(&["x"], &[]), of(&["b", "c"], &["b"])]), Some(6));
    assert_eq!(pop(vec![of(&["x"], &[]), of(&["b"], &["b"])]), None);
    // A worker without a list may have any, but for those that it handed back.
    assert_eq!(pop(vec![of(&[], &["a"])]), Some(5));
    assert_eq!(pop(vec![of(&[], &["a"])]), None);
    assert_eq!(queues.kinds_of(&key("e")), [(Rank::Plain, Arc::from("a"))].into());
    let exec = Arc::from("a");
    let e = key("e");
    let left = queues.jobs_of_kind(&e, Rank::Plain, &exec).map(|job| job.0.as_u128());
    assert_eq!(left.collect::<Vec<_>>(), [1, 3]);
    assert_eq!(queues.jobs_of_kind(&key("e"), Rank::Raw, &exec).count(), 0);
    assert_eq!(drain(&mut queues, "e"), [1, 3]);
    assert!(queues.is_empty() && queues.key_count() == 0);
}

#[test]
fn beyond_a_number_of_programs_a_client_has_its_jobs_in_one_lane_in_their_order() {
    let mut queues = Queues::default();
    let seqs = 0..KINDS_PER_LANE_MAX as u64 + 40;
    for seq in seqs.clone().rev() {
        push_of(&mut queues, &format!("p{seq}"), ("e", "c"), (0, seq), Rank::Plain, 0);
    }
    assert_eq!(queues.kinds_of(&key("e")).len(), KINDS_PER_LANE_MAX);
    assert_eq!(queues.check(), Ok(()));
    // Those that are told apart stand before nobody, the others are for the broker to judge.
    let taker =
        Taker { programs: Some(Programs::new(["p20"])), ..Taker::new(false, PayloadKind::Request) };
    let takes = Takes::from_iter([taker]);
    let next = queues.pop(&key("e"), &takes, |_| true).map(|job| job.0.as_u128());
    assert_eq!(next, Some(0));
    push_of(&mut queues, "p0", ("e", "c"), (0, 0), Rank::Plain, 0);
    assert_eq!(drain(&mut queues, "e"), seqs.map(u128::from).collect::<Vec<_>>());
    assert!(queues.is_empty() && queues.key_count() == 0);
}
