//! Datasets in the broker, event by event: records, what workers hold, who gets a job by that, and
//! how it is explained.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::sync::Arc;
use std::time::Duration;

use heft::core::choose::Policy;
use heft::core::dataset::Dataset;
use heft::core::event::{Submission, WorkerClass};
use heft::core::explain::{Explanation, Verdict, WaitsFor};
use heft::core::holdings::MOVE_BYTES_PER_SECOND_START;
use heft::core::ids::{CacheId, Micros};
use heft::core::locality::{At, LOCALITY_BYPASS_MAX, LOCALITY_WAIT_MAX, LOCALITY_WAIT_MIN};
use heft::core::state::State;
use heft::core::{Config, Event, Record};
use rig::{Rig, SECOND, id, job, job_for, job_to_all, with_policy, worker_id};
use uuid::Uuid;

/// What moving it takes at the rate that is assumed at first: ten seconds.
const BYTES: u64 = 10 * MOVE_BYTES_PER_SECOND_START;

const MOVES: Duration = Duration::from_secs(10);

fn cache(name: &str) -> CacheId {
    CacheId::parse(name).unwrap()
}

fn dataset(name: &str, version: u128) -> Dataset {
    Dataset {
        cache: cache(name),
        version: Uuid::from_u128(version),
        digest: [u8::try_from(version).unwrap(); 32],
        bytes: BYTES,
        files: 2,
        target: "none".into(),
        packs: vec![Uuid::from_u128(version + 1000)],
        at: Micros(1),
    }
}

fn naming(number: u32, datasets: &[&str]) -> Submission {
    Submission { datasets: datasets.iter().map(|dataset| cache(dataset)).collect(), ..job(number) }
}

/// A broker in which `alice` may have any number of jobs, with these datasets: the first is version
/// 1.
fn with_datasets(datasets: &[&str]) -> Rig {
    let mut rig = Rig::with(Config { cap_default: 1000, ..Config::default() });
    rig.client("alice");
    for (number, name) in datasets.iter().enumerate() {
        rig.skip();
        put(&mut rig, dataset(name, number as u128 + 1));
    }
    rig.skip();
    rig
}

fn put(rig: &mut Rig, dataset: Dataset) {
    rig.tell(Event::PutDataset { dataset: Arc::new(dataset) });
}

fn holds(rig: &mut Rig, worker: &str, dataset: &str, missing: u64) {
    let digest =
        rig.broker.state().dataset(&cache(dataset)).map_or([0; 32], |dataset| dataset.digest);
    rig.tell(Event::Holding { worker: worker_id(worker), cache: cache(dataset), digest, missing });
}

fn holds_not(rig: &mut Rig, worker: &str, dataset: &str) {
    rig.tell(Event::NotHolding { worker: worker_id(worker), cache: cache(dataset) });
}

/// A worker that holds this and is busy with this job, so that the next one for its data has to
/// wait.
fn busy_holder(rig: &mut Rig, worker: &str, dataset: &str, number: u32) {
    rig.worker(worker, "calcA", 1);
    rig.skip();
    holds(rig, worker, dataset, 0);
    rig.submit(naming(number, &[dataset]));
    rig.skip_to(&format!("{worker}: assign j{number}#1"));
}

fn explained(rig: &Rig, number: u32) -> Explanation {
    rig.broker.explain(id(number)).unwrap()
}

fn verdicts(explanation: &Explanation) -> Vec<(&str, Verdict)> {
    explanation.workers.iter().map(|seen| (&*seen.name, seen.verdict)).collect()
}

// --- records

#[test]
fn a_dataset_takes_the_place_of_what_was_under_its_id_and_says_what_that_was() {
    let mut rig = Rig::new();
    put(&mut rig, dataset("a", 1));
    rig.expect(["+dataset a g1", "put a g1"]);
    put(&mut rig, dataset("b", 2));
    rig.expect(["+dataset b g2", "put b g2"]);
    put(&mut rig, dataset("a", 3));
    rig.expect(["+dataset a g3", "put a g3 for g1"]);
    let of = |rig: &Rig| -> Vec<String> {
        rig.broker
            .state()
            .datasets()
            .map(|dataset| format!("{} g{}", dataset.cache, dataset.version.as_u128()))
            .collect()
    };
    assert_eq!(of(&rig), ["a g3", "b g2"], "in the order of their ids");
    put(&mut rig, dataset("a", 3));
    rig.expect(["+dataset a g3", "put a g3"]);
    let retargeted = Dataset { target: "job.assign.*".into(), ..dataset("a", 3) };
    put(&mut rig, retargeted);
    rig.expect(["+dataset a g3", "put a g3 for g3"]);
    let blobs: Vec<u128> = rig
        .broker
        .state()
        .dataset(&cache("a"))
        .unwrap()
        .blobs()
        .map(|blob| blob.as_u128())
        .collect();
    assert_eq!(blobs, [3, 1003]);
}

#[test]
fn removing_takes_what_is_there_once_all_that_is_proposed_counts() {
    let mut rig = Rig::new();
    rig.tell(Event::RemoveDataset { cache: cache("a") });
    put(&mut rig, dataset("a", 1));
    rig.expect(["+dataset a g1", "put a g1"]);
    rig.tell(Event::RemoveDataset { cache: cache("a") });
    rig.expect(["+dataset_gone a g1", "removed a g1"]);
    assert_eq!(rig.broker.state().datasets().count(), 0);

    rig.delay_commits();
    put(&mut rig, dataset("a", 2));
    rig.expect(["+dataset a g2"]);
    rig.tell(Event::RemoveDataset { cache: cache("a") });
    rig.expect(["+dataset_gone a g2"]);
    rig.tell(Event::RemoveDataset { cache: cache("a") });
    rig.commit();
    rig.expect(["put a g2", "removed a g2"]);
}

#[test]
fn a_late_removal_of_an_earlier_version_changes_nothing() {
    let mut state = State::default();
    state.apply(&Record::Dataset { dataset: dataset("a", 2).into() });
    let before = state.clone();
    state.apply(&Record::DatasetGone { cache: cache("a"), version: Uuid::from_u128(1) });
    assert_eq!(state, before);
    let datasets = state.datasets().cloned().collect::<Vec<_>>();
    assert_eq!(
        State::restore([], [], datasets.into_iter().map(|dataset| (dataset, None)), [], 0),
        before
    );
    // One in time is remembered until there is another dataset.
    state.apply(&Record::DatasetGone { cache: cache("a"), version: Uuid::from_u128(2) });
    assert!(state.is_dataset_removed(&cache("a")) && state.dataset(&cache("a")).is_none());
    assert_eq!(State::restore([], [], [], [cache("a")], 0), state);
    state.apply(&Record::Dataset { dataset: dataset("a", 2).into() });
    assert_eq!(state, before);
}

// --- who gets a job

#[test]
fn c14_a_job_goes_to_the_worker_that_must_move_the_fewest_bytes() {
    let mut rig = with_datasets(&["a", "b"]);
    rig.worker("w1", "calcA", 5);
    rig.worker("w2", "calcA", 5);
    rig.worker("w3", "calcA", 5);
    holds(&mut rig, "w1", "a", 0);
    holds(&mut rig, "w2", "a", 0);
    holds(&mut rig, "w2", "b", 500);
    for (number, datasets, worker) in
        [(1, &["a", "b"][..], "w2"), (2, &["b"], "w2"), (3, &["a"], "w1"), (4, &[], "w3")]
    {
        rig.submit(naming(number, datasets));
        rig.skip_to(&format!("{worker}: assign j{number}#1"));
    }
    let verdicts =
        verdicts(&explained(&rig, 1)).into_iter().map(|(_, verdict)| verdict).collect::<Vec<_>>();
    assert_eq!(verdicts, [Verdict::Possible, Verdict::HasIt, Verdict::Possible]);
}

#[test]
fn c14_another_content_under_the_same_id_is_not_the_dataset() {
    let mut rig = with_datasets(&["a"]);
    rig.worker("w1", "calcA", 5);
    rig.worker("w2", "calcA", 5);
    holds(&mut rig, "w2", "a", 0);
    put(&mut rig, dataset("a", 7));
    rig.skip();
    rig.submit(naming(1, &["a"]));
    rig.skip_to("w1: assign j1#1");
    let explanation = explained(&rig, 1);
    assert_eq!(explanation.workers[1].holds, [(cache("a"), At::Missing)]);
    assert_eq!(explanation.workers[0].holds, [(cache("a"), At::Expected)]);
}

#[test]
fn c14_unknown_datasets_count_for_nobody_and_a_named_policy_does_not_look_at_data() {
    let mut rig = with_datasets(&[]);
    rig.classic("s1", "calcA", 1);
    rig.submit(naming(1, &["unknown"]));
    rig.skip_to("s1: assign j1#1");

    let mut rig = Rig::with(with_policy(Policy::LeastLoad));
    rig.client("alice");
    put(&mut rig, dataset("a", 1));
    rig.skip();
    busy_holder(&mut rig, "w1", "a", 1);
    rig.worker("w2", "calcA", 1);
    rig.submit(naming(2, &["a"]));
    rig.skip_to("w2: assign j2#1");
}

#[test]
fn c14_jobs_of_a_dataset_that_nobody_has_follow_each_other_to_one_worker_while_it_has_room() {
    let mut rig = with_datasets(&["a"]);
    rig.worker("w1", "calcA", 2);
    rig.worker("w2", "calcA", 2);
    rig.submit(naming(1, &["a"]));
    rig.skip_to("w1: assign j1#1");
    rig.submit(naming(2, &["a"]));
    rig.skip_to("w1: assign j2#1");
    // It has given both back and never got the dataset: nothing is expected there any more.
    rig.ack("w1", 1);
    rig.skip();
    rig.ack("w1", 2);
    rig.skip();
    rig.submit(naming(3, &["a"]));
    rig.skip_to("w2: assign j3#1");
}

// --- waiting

#[test]
fn c14_a_job_waits_for_the_busy_holder_and_gets_it_when_it_has_room() {
    let mut rig = with_datasets(&["a"]);
    busy_holder(&mut rig, "w1", "a", 1);
    rig.worker("w2", "calcA", 1);
    rig.submit(naming(2, &["a"]));
    rig.expect(["+enqueue j2", "alice: submitted j2 Queued behind 0"]);
    let explanation = explained(&rig, 2);
    let (since, until) = (rig.now(), rig.now().plus(MOVES));
    assert_eq!(explanation.waits, Some(WaitsFor::Data { worker: worker_id("w1"), since, until }));
    assert_eq!(verdicts(&explanation), [("w1", Verdict::WaitedFor), ("w2", Verdict::Possible)]);
    rig.pass(MOVES - SECOND);
    rig.ack("w1", 1);
    rig.skip();
    rig.credit("w1", 1);
    rig.expect(["+assign j2#1 w1", "w1: assign j2#1"]);
}

#[test]
fn c14_it_waits_no_longer_than_moving_would_take_by_what_was_measured() {
    for (missing, rate, waits) in [
        (BYTES, None, MOVES),
        // Half as quick, half as long, and the bounds.
        (BYTES, Some(MOVE_BYTES_PER_SECOND_START / 2), MOVES * 2),
        (BYTES, Some(MOVE_BYTES_PER_SECOND_START * 2), MOVES / 2),
        (BYTES / 2, None, MOVES / 2),
        (BYTES, Some(1), LOCALITY_WAIT_MAX),
        (1, None, LOCALITY_WAIT_MIN),
    ] {
        let mut rig = with_datasets(&["a"]);
        busy_holder(&mut rig, "w1", "a", 1);
        rig.worker("w2", "calcA", 1);
        if missing < BYTES {
            holds(&mut rig, "w2", "a", missing);
        }
        if let Some(bytes) = rate {
            rig.tell(Event::DatasetsMoved { worker: worker_id("w2"), bytes, span: SECOND });
        }
        rig.submit(naming(2, &["a"]));
        rig.skip();
        rig.pass(waits - Duration::from_micros(1));
        rig.beat("w1", &[(1, 1)]);
        rig.skip();
        rig.pass(Duration::from_micros(1));
        rig.expect(["+assign j2#1 w2", "w2: assign j2#1"]);
    }
}

#[test]
fn c14_a_holder_that_keeps_its_credit_back_is_waited_for_and_no_longer_than_one_that_is_busy() {
    for comes_in_time in [true, false] {
        let mut rig = with_datasets(&["a"]);
        rig.hello("w1", WorkerClass::Leasing, "calcA", Some(1));
        holds(&mut rig, "w1", "a", 0);
        rig.worker("w2", "calcA", 1);
        rig.submit(naming(1, &["a"]));
        rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0"]);
        let until = rig.now().plus(MOVES);
        let waits = Some(WaitsFor::Data { worker: worker_id("w1"), since: rig.now(), until });
        assert_eq!(explained(&rig, 1).waits, waits);
        rig.pass(MOVES - Duration::from_micros(1));
        rig.beat("w1", &[]);
        if comes_in_time {
            rig.credit("w1", 1);
            rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
        } else {
            rig.pass(Duration::from_micros(1));
            rig.expect(["+assign j1#1 w2", "w2: assign j1#1"]);
        }
    }
    // One that holds it and takes no jobs at all, or none of its key, is nobody to wait for.
    let mut rig = with_datasets(&["a"]);
    rig.hello("agent", WorkerClass::Leasing, "calcA", Some(0));
    holds(&mut rig, "agent", "a", 0);
    rig.hello("other", WorkerClass::Leasing, "calcB", Some(1));
    holds(&mut rig, "other", "a", 0);
    rig.worker("w2", "calcA", 1);
    rig.submit(naming(1, &["a"]));
    rig.skip_to("w2: assign j1#1");
}

#[test]
fn c14_a_holder_that_loses_the_dataset_or_leaves_is_not_waited_for() {
    let cases: [fn(&mut Rig); 3] =
        [|rig| holds_not(rig, "w1", "a"), |rig| rig.close("w1"), |rig| put(rig, dataset("a", 9))];
    for happens in cases {
        let mut rig = with_datasets(&["a"]);
        busy_holder(&mut rig, "w1", "a", 1);
        // Its job does not name the dataset any more, so that nothing is expected there.
        rig.ack("w1", 1);
        rig.skip();
        rig.credit("w1", 1);
        rig.submit(job(2));
        rig.skip_to("w1: assign j2#1");
        rig.worker("w2", "calcA", 1);
        rig.submit(naming(3, &["a"]));
        rig.expect(["+enqueue j3", "alice: submitted j3 Queued behind 0"]);
        happens(&mut rig);
        rig.skip_to("w2: assign j3#1");
    }
}

#[test]
fn a_worker_that_says_anew_what_it_holds_is_waited_for_meanwhile() {
    let mut rig = with_datasets(&["a"]);
    busy_holder(&mut rig, "w1", "a", 1);
    rig.worker("w2", "calcA", 1);
    rig.submit(naming(2, &["a"]));
    rig.skip();
    rig.tell(Event::HoldsNothing { worker: worker_id("w1") });
    holds(&mut rig, "w1", "a", 0);
    rig.ack("w1", 1);
    rig.skip();
    rig.credit("w1", 1);
    rig.expect(["+assign j2#1 w1", "w1: assign j2#1"]);
}

#[test]
fn c14_a_second_holder_with_room_is_as_good_as_the_first() {
    let mut rig = with_datasets(&["a"]);
    busy_holder(&mut rig, "w1", "a", 1);
    rig.worker("w2", "calcA", 1);
    rig.submit(naming(2, &["a"]));
    rig.expect(["+enqueue j2", "alice: submitted j2 Queued behind 0"]);
    holds(&mut rig, "w2", "a", 0);
    rig.expect(["+assign j2#1 w2", "w2: assign j2#1"]);
}

#[test]
fn c14_jobs_that_wait_hold_up_nobody_behind_them_however_many_they_are() {
    let mut rig = with_datasets(&["a", "b"]);
    busy_holder(&mut rig, "w1", "a", 1);
    for number in 2..202 {
        rig.submit(naming(number, &["a"]));
        rig.skip();
    }
    rig.submit(naming(300, &["b"]));
    rig.skip();
    rig.submit(job(301));
    rig.skip();
    rig.worker("w2", "calcA", 2);
    rig.skip_to("w2: assign j301#1");
    rig.skip();
    let at = |rig: &Rig, number: u32| {
        verdicts(&explained(rig, number)).contains(&("w2", Verdict::HasIt))
    };
    assert!(at(&rig, 300) && at(&rig, 301));
    // The holder gets them in their order.
    rig.ack("w1", 1);
    rig.skip();
    rig.credit("w1", 1);
    rig.expect(["+assign j2#1 w1", "w1: assign j2#1"]);
}

#[test]
fn c14_one_that_has_waited_lets_others_go_first_whose_data_is_there_but_not_for_ever() {
    let mut rig = with_datasets(&["a", "b"]);
    busy_holder(&mut rig, "w1", "a", 1);
    busy_holder(&mut rig, "w2", "b", 2);
    rig.worker("w3", "other", 1);
    for (number, dataset) in [(3, "a"), (4, "b"), (5, "b")] {
        rig.submit(naming(number, &[dataset]));
        rig.skip();
    }
    let next_of = |rig: &mut Rig, worker: &str, before: u32| {
        rig.ack(worker, before);
        rig.skip();
        rig.credit(worker, 1);
    };
    // w2 has room: the first job could have gone there, and waits for w1 from now on.
    next_of(&mut rig, "w2", 2);
    rig.expect(["+assign j4#1 w2", "w2: assign j4#1"]);
    let since = rig.now();
    for _ in 0..3 {
        rig.pass(MOVES / 2);
        rig.beat("w1", &[(1, 1)]);
        rig.skip();
        rig.beat("w2", &[(4, 1)]);
        rig.skip();
    }
    let until = since.plus(LOCALITY_BYPASS_MAX);
    assert_eq!(explained(&rig, 3).waits, Some(WaitsFor::Nearer { since, until }));
    next_of(&mut rig, "w2", 4);
    rig.expect(["+assign j5#1 w2", "w2: assign j5#1"]);
    rig.submit(naming(6, &["b"]));
    rig.skip();
    while rig.now() < since.plus(LOCALITY_BYPASS_MAX) {
        rig.pass(MOVES);
        rig.beat("w1", &[(1, 1)]);
        rig.skip();
        rig.beat("w2", &[(5, 1)]);
        rig.skip();
    }
    next_of(&mut rig, "w2", 5);
    rig.expect(["+assign j3#1 w2", "w2: assign j3#1"]);
}

#[test]
fn c14_an_urgent_job_that_has_waited_goes_before_less_urgent_ones_whose_data_is_there() {
    let mut rig = with_datasets(&["a", "b"]);
    busy_holder(&mut rig, "w1", "a", 1);
    rig.worker("w2", "calcA", 1);
    rig.skip();
    holds(&mut rig, "w2", "b", 0);
    rig.submit(Submission { priority: -1, ..naming(2, &["a"]) });
    rig.skip();
    rig.submit(Submission { priority: 5, ..naming(3, &["b"]) });
    rig.skip_to("w2: assign j3#1");
    rig.submit(Submission { priority: 5, ..naming(4, &["b"]) });
    rig.skip();
    rig.pass(MOVES);
    rig.beat("w1", &[(1, 1)]);
    rig.skip();
    rig.ack("w2", 3);
    rig.skip();
    rig.credit("w2", 1);
    rig.expect(["+assign j2#1 w2", "w2: assign j2#1"]);
}

#[test]
fn a_job_that_waits_can_be_cancelled_and_leaves_nothing_behind() {
    let mut rig = with_datasets(&["a"]);
    busy_holder(&mut rig, "w1", "a", 1);
    rig.worker("w2", "calcA", 1);
    rig.submit(naming(2, &["a"]));
    rig.skip();
    rig.cancel(2);
    rig.skip();
    let due = rig.broker.due_count();
    rig.pass(MOVES);
    rig.skip();
    assert_eq!(explained(&rig, 2).waits, None);
    assert!(rig.broker.due_count() <= due);
}

#[test]
fn rt04_a_job_is_not_made_to_wait_for_the_worker_that_just_lost_it() {
    let mut rig = with_datasets(&["a"]);
    rig.worker("w1", "calcA", 1);
    holds(&mut rig, "w1", "a", 0);
    rig.submit(naming(1, &["a"]));
    rig.skip_to("w1: assign j1#1");
    rig.worker("w2", "calcA", 1);
    rig.progress("w1", 1, 1);
    rig.skip();
    rig.outcome("w1", 1, heft::core::event::Outcome::GivenUp);
    rig.skip_to("w2: assign j1#2");
}

// --- classic workers and agents

#[test]
fn c01_a_classic_worker_gets_a_job_with_datasets_only_where_its_agent_holds_them_all() {
    let mut rig = with_datasets(&["a", "b"]);
    rig.note_waiting();
    rig.classic("s1", "calcA", 2);
    rig.hello("agent", WorkerClass::Leasing, "calcA", Some(0));
    rig.submit(naming(1, &["a", "b"]));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "alice: waiting j1 1 without datasets for job.assign.calcA",
    ]);
    assert_eq!(explained(&rig, 1).waits, Some(WaitsFor::CapableWorker));
    rig.submit(job(2));
    rig.skip_to("s1: assign j2#1");
    let agent = Some(worker_id("agent"));
    rig.tell(Event::AgentFor { worker: worker_id("s1"), agent });
    rig.expect(["agent: ask for a", "agent: ask for b"]);
    holds(&mut rig, "agent", "a", 0);
    holds(&mut rig, "agent", "b", 100);
    holds(&mut rig, "agent", "b", 0);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    let seen = &explained(&rig, 1).workers[1];
    assert_eq!((seen.agent, seen.datasets, seen.cost.missing), (agent, false, 0));
}

/// A classic worker with room, and an agent that serves it.
fn with_agent(rig: &mut Rig, room: i32) {
    rig.classic("s1", "calcA", room);
    rig.hello("agent", WorkerClass::Leasing, "calcA", Some(0));
    rig.tell(Event::AgentFor { worker: worker_id("s1"), agent: Some(worker_id("agent")) });
}

#[test]
fn c01_an_agent_is_asked_for_what_jobs_need_that_wait_for_its_worker() {
    let mut rig = with_datasets(&["a", "b"]);
    rig.note_waiting();
    with_agent(&mut rig, 1);
    rig.submit(Submission { require_worker: true, ..naming(1, &["a", "b"]) });
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "agent: ask for a",
        "agent: ask for b",
    ]);
    // Nobody is asked twice, for whatever happens meanwhile.
    holds(&mut rig, "agent", "a", BYTES);
    holds(&mut rig, "agent", "a", 0);
    rig.submit(naming(2, &["b"]));
    rig.expect(["+enqueue j2", "alice: submitted j2 Queued behind 1"]);
    holds(&mut rig, "agent", "b", BYTES);
    holds(&mut rig, "agent", "b", 0);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    // What it gives up while its worker is busy it is asked for when that has room.
    holds_not(&mut rig, "agent", "b");
    rig.ack("s1", 1);
    rig.skip();
    rig.credit("s1", 1);
    rig.expect(["agent: ask for b"]);
    holds(&mut rig, "agent", "b", 0);
    rig.expect(["+assign j2#1 s1", "s1: assign j2#1"]);
}

#[test]
fn c01_an_agent_that_cannot_hold_a_dataset_is_asked_again_only_for_another_job() {
    let mut rig = with_datasets(&["a", "b"]);
    rig.note_waiting();
    with_agent(&mut rig, 1);
    rig.submit(naming(1, &["a"]));
    rig.skip_to("agent: ask for a");
    let fails = |rig: &mut Rig| {
        holds(rig, "agent", "a", BYTES);
        holds_not(rig, "agent", "a");
    };
    fails(&mut rig);
    rig.expect(["alice: waiting j1 1 without datasets for job.assign.calcA"]);
    rig.credit("s1", 1);
    rig.pass(SECOND * 100);
    // It holds up nobody who needs something else.
    rig.submit(naming(2, &["b"]));
    rig.skip_to("agent: ask for b");
    rig.submit(naming(3, &["a"]));
    rig.skip_to("agent: ask for a");
    fails(&mut rig);
    rig.expect(["alice: waiting j3 1 without datasets for job.assign.calcA"]);
    // A new connection, or a new content, is worth another try.
    rig.tell(Event::AgentFor { worker: worker_id("s1"), agent: None });
    rig.expect(["alice: waiting j2 1 without datasets for job.assign.calcA"]);
    rig.tell(Event::AgentFor { worker: worker_id("s1"), agent: Some(worker_id("agent")) });
    rig.skip_to("agent: ask for a");
    fails(&mut rig);
    rig.skip();
    put(&mut rig, dataset("a", 9));
    rig.skip_to("agent: ask for a");
}

#[test]
fn c01_an_agent_that_loses_one_dataset_for_the_other_is_not_asked_for_ever() {
    let mut rig = with_datasets(&["a", "b"]);
    with_agent(&mut rig, 1);
    rig.submit(naming(1, &["a", "b"]));
    let mut asked = 0;
    for _ in 0..20 {
        for (dataset, other) in [("a", "b"), ("b", "a")] {
            asked += rig.take().iter().filter(|line| line.starts_with("agent: ask for")).count();
            holds(&mut rig, "agent", dataset, 0);
            asked += rig.take().iter().filter(|line| line.starts_with("agent: ask for")).count();
            holds_not(&mut rig, "agent", other);
        }
    }
    assert!((2..=8).contains(&asked), "{asked}");
}

#[test]
fn c01_an_agent_is_asked_for_no_more_than_its_worker_has_room_for() {
    let names: Vec<String> = (0..50).map(|dataset| format!("set-{dataset}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut rig = with_datasets(&names);
    with_agent(&mut rig, 2);
    for (number, name) in (1..).zip(&names) {
        rig.submit(naming(number, &[name]));
        let asks = rig.take().iter().filter(|line| line.starts_with("agent: ask for")).count();
        assert_eq!(asks, usize::from(number <= 2));
    }
    holds(&mut rig, "agent", "set-0", 0);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    rig.ack("s1", 1);
    rig.skip();
    rig.credit("s1", 1);
    rig.expect(["agent: ask for set-2"]);
}

#[test]
fn a_classic_worker_that_acknowledged_a_classic_put_is_as_good_as_any_that_holds_it() {
    let mut rig = with_datasets(&["a"]);
    rig.classic("s1", "calcA", 2);
    rig.worker("w1", "calcA", 2);
    rig.submit(naming(1, &["a"]));
    rig.skip_to("w1: assign j1#1");
    holds(&mut rig, "s1", "a", 0);
    rig.submit(naming(2, &["a"]));
    rig.skip_to("s1: assign j2#1");
}

#[test]
fn a_job_that_classic_workers_cannot_have_goes_to_the_first_heft_worker_with_room() {
    let mut rig = with_datasets(&["a"]);
    rig.classic("s1", "calcA", 2);
    for number in 1..100 {
        rig.submit(naming(number, &["a"]));
        rig.skip();
    }
    rig.submit(job(200));
    rig.skip_to("s1: assign j200#1");
    rig.worker("w1", "calcA", 1);
    rig.expect(["+assign j1#1 w1", "w1: assign j1#1"]);
    // Once the leader does not know the dataset any more, it is as before there were any.
    rig.tell(Event::RemoveDataset { cache: cache("a") });
    rig.skip_to("s1: assign j2#1");
}

#[test]
fn a_stranded_job_is_found_behind_any_number_of_others() {
    let mut rig = with_datasets(&["a", "b"]);
    rig.client("bob");
    rig.client_with_cap("capped", Some(1));
    rig.skip();
    rig.classic("s1", "calcA calcB", 1);
    let mut strand = |submission: Submission| {
        rig.submit(submission);
        rig.skip();
    };
    // Of another key, of a client at its cap, with other datasets, with one more.
    for number in 1..100 {
        strand(Submission { datasets: vec![cache("a")], ..job_for("calcA", number) });
        strand(Submission {
            datasets: vec![cache("a")],
            client: "capped".into(),
            ..job_for("calcB", 100 + number)
        });
        strand(Submission { datasets: vec![cache("b")], ..job_for("calcB", 200 + number) });
        strand(Submission {
            datasets: vec![cache("a"), cache("b")],
            ..job_for("calcB", 300 + number)
        });
    }
    strand(Submission {
        datasets: vec![cache("a")],
        client: "bob".into(),
        ..job_for("calcB", 500)
    });
    strand(Submission {
        datasets: vec![cache("a")],
        client: "bob".into(),
        ..job_for("calcB", 501)
    });
    rig.classic("s2", "calcB", 2);
    holds(&mut rig, "s2", "a", 0);
    // Smaller numbers go first, and the one that is at its cap then gets no more.
    rig.expect([
        "+assign j101#1 s2",
        "s2: assign j101#1",
        "+assign j500#1 s2",
        "s2: assign j500#1",
    ]);
    rig.worker("w1", "calcB", 1);
    rig.skip_to("w1: assign j201#1");
}

#[test]
fn s22_a_job_to_all_goes_to_those_that_can_have_its_datasets_and_is_refused_if_none_can() {
    let mut rig = with_datasets(&["a"]);
    rig.classic("s1", "calcA", 2);
    let to_all = |number| Submission { datasets: vec![cache("a")], ..job_to_all(number) };
    rig.submit(to_all(1));
    rig.expect(["alice: refused j1 1 without datasets for job.assign.calcA"]);
    rig.submit(Submission { require_worker: true, ..naming(2, &["a"]) });
    rig.expect(["alice: refused j2 1 without datasets for job.assign.calcA"]);
    rig.worker("w1", "calcA", 2);
    rig.submit(to_all(3));
    rig.skip_to("w1: assign j3@w1#1");
}

// --- explained

#[test]
fn every_reason_for_not_getting_a_job_is_named() {
    let mut rig = with_datasets(&["a"]);
    rig.submit(Submission { datasets: vec![cache("a"), cache("unknown")], ..job_for("calcA", 1) });
    rig.skip();
    assert_eq!(explained(&rig, 1).waits, Some(WaitsFor::Worker));
    assert_eq!(rig.broker.explain(id(99)), None);
    rig.worker("other", "calcB", 1);
    rig.classic("stock", "calcA", 1);
    rig.hello("full", WorkerClass::Leasing, "calcA", Some(1));
    let explanation = explained(&rig, 1);
    let expected =
        [("full", Verdict::NoRoom), ("other", Verdict::NoMatch), ("stock", Verdict::NoDatasets)];
    assert_eq!(verdicts(&explanation), expected);
    assert_eq!(explanation.waits, Some(WaitsFor::Room));
    assert_eq!((explanation.policy, explanation.workers[0].takes), (Policy::Locality, MOVES));
    let known: Vec<bool> =
        explanation.datasets.iter().map(|named| named.dataset.is_some()).collect();
    assert_eq!(known, [true, false]);
    rig.credit("full", 1);
    rig.skip();
    let has_it: Vec<Verdict> =
        verdicts(&explained(&rig, 1)).into_iter().map(|(_, verdict)| verdict).collect();
    assert_eq!(has_it, [Verdict::HasIt, Verdict::NoMatch, Verdict::NoDatasets]);
    for verdict in has_it {
        assert!(!verdict.text().is_empty());
    }
    rig.ack("full", 1);
    rig.skip();
    assert!(verdicts(&explained(&rig, 1)).iter().all(|(_, verdict)| *verdict == Verdict::Ended));
}
