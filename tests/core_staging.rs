//! Inputs that are too large for a classic worker's frame, in the broker: a dataset is made of them
//! for the agent beside it, and the job names that from then on (C01).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::sync::Arc;

use heft::core::dataset::Dataset;
use heft::core::event::{Submission, WorkerClass};
use heft::core::explain::{Verdict, WaitsFor};
use heft::core::ids::{CacheId, JobId, Micros};
use heft::core::staging::{STAGE_AGAIN_AFTER, STAGED_MAX, STAGED_OF_CLIENT_MAX};
use heft::core::state::State;
use heft::core::{Config, Event, Record};
use rig::{Rig, announced, id, job, job_for, job_of, worker_id};
use uuid::Uuid;

/// A job whose inputs are here and go by transfer.
fn large(number: u32) -> Submission {
    Submission { needs_transfers: true, ..job(number) }
}

fn dataset_of(number: u32) -> Dataset {
    Dataset {
        cache: CacheId::of_inputs(id(number)),
        version: Uuid::from_u128(number.into()),
        digest: [u8::try_from(number).unwrap(); 32],
        bytes: 5_000_000,
        files: 1,
        target: "none".into(),
        packs: vec![Uuid::from_u128(1000 + u128::from(number))],
        at: Micros(1),
    }
}

fn staged(rig: &mut Rig, number: u32) {
    rig.tell(Event::Staged { job: id(number), dataset: Arc::new(dataset_of(number)) });
}

fn agent_holds(rig: &mut Rig, number: u32) {
    let Dataset { cache, digest, .. } = dataset_of(number);
    rig.tell(Event::Holding { worker: worker_id("agent"), cache, digest, missing: 0 });
}

/// `alice` may have any number of jobs; a classic worker with room.
fn with_classic(room: i32) -> Rig {
    let mut rig = Rig::with(Config { cap_default: 1000, ..Config::default() });
    rig.note_waiting();
    rig.client("alice");
    rig.classic("s1", "calcA", room);
    rig.hello("agent", WorkerClass::Leasing, "calcA", Some(0));
    rig.skip();
    rig
}

fn pair(rig: &mut Rig) {
    rig.tell(Event::AgentFor { worker: worker_id("s1"), agent: Some(worker_id("agent")) });
}

fn name(number: u32) -> String {
    CacheId::of_inputs(id(number)).to_string()
}

fn gone(rig: &mut Rig, number: u32) {
    rig.tell(Event::RemoveDataset { cache: CacheId::of_inputs(id(number)) });
}

fn not_staged(rig: &mut Rig, number: u32, again: bool) {
    rig.tell(Event::NotStaged { job: id(number), why: "no room".into(), again });
}

fn stages(rig: &mut Rig) -> Vec<String> {
    rig.take().into_iter().filter(|line| line.starts_with("stage ")).collect()
}

/// What agents are asked for.
fn asked(rig: &mut Rig) -> Vec<String> {
    rig.take().into_iter().filter(|line| line.contains(": ask for")).collect()
}

/// The inputs of job 1 are a dataset, and two classic workers have agents.
fn staged_between_two() -> Rig {
    let mut rig = with_classic(1);
    rig.classic("s2", "calcA", 1);
    rig.hello("agent2", WorkerClass::Leasing, "calcA", Some(0));
    rig.skip();
    pair(&mut rig);
    rig.tell(Event::AgentFor { worker: worker_id("s2"), agent: Some(worker_id("agent2")) });
    rig.submit(large(1));
    rig.skip_to("stage j1");
    staged(&mut rig, 1);
    rig
}

/// What is said of the classic worker.
fn seen(rig: &Rig, number: u32) -> (Verdict, Option<WaitsFor>) {
    let explained = rig.broker.explain(id(number)).unwrap();
    let classic = explained.workers.iter().find(|seen| seen.id == worker_id("s1")).unwrap();
    (classic.verdict, explained.waits.clone())
}

#[test]
fn c01_large_inputs_become_a_dataset_for_the_agent_and_then_the_classic_worker_gets_the_job() {
    let mut rig = with_classic(1);
    pair(&mut rig);
    rig.submit(Submission { require_worker: true, ..large(1) });
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0", "stage j1"]);
    assert_eq!(seen(&rig, 1), (Verdict::ByAgent, Some(WaitsFor::Agent)));
    staged(&mut rig, 1);
    let (dataset, asked) = (format!("{} g1", name(1)), format!("agent: ask for {}", name(1)));
    rig.expect([&format!("+stage j1 {dataset}"), &format!("put {dataset}"), &asked]);
    let job = rig.job(1);
    assert_eq!((job.needs_transfers(), job.datasets()), (false, &[CacheId::of_inputs(id(1))][..]));
    assert_eq!(
        seen(&rig, 1),
        (Verdict::ByAgent, Some(WaitsFor::Agent)),
        "while the dataset is on its way"
    );
    agent_holds(&mut rig, 1);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    // The dataset goes with the job.
    rig.ack("s1", 1);
    rig.skip_to(&format!("removed {dataset}"));
    assert_eq!(
        (rig.broker.state().staged_datasets().count(), rig.broker.state().datasets().count()),
        (0, 0)
    );
    assert_eq!(rig.broker.state().datasets_removed().count(), 0, "those are not remembered");
}

#[test]
fn c01_nothing_is_staged_that_another_could_have_or_that_cannot_be() {
    let mut rig = with_classic(1);
    // Without an agent its client hears what is missing; with one it is staged.
    rig.submit(large(1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "alice: waiting j1 1 classic workers for job.assign.calcA",
    ]);
    pair(&mut rig);
    rig.expect(["stage j1"]);
    pair(&mut rig);
    rig.expect([]);
    // To all means as they are; inputs that are not here cannot be made anything.
    rig.submit(Submission { to_all: true, ..large(2) });
    rig.skip();
    rig.submit(announced(3));
    assert_eq!(stages(&mut rig), [] as [&str; 0]);
    assert_eq!(seen(&rig, 3).0, Verdict::ByAgent, "when they are");
    // What can never be made a dataset waits for a heft worker, its client hears why, and nobody
    // tries again.
    not_staged(&mut rig, 1, false);
    rig.expect(["alice: waiting j1 not staged for job.assign.calcA: no room"]);
    rig.pass(STAGE_AGAIN_AFTER * 10);
    pair(&mut rig);
    rig.expect([]);
    assert_eq!(seen(&rig, 1).0, Verdict::NoTransfers);
    rig.worker("w1", "calcA", 2);
    rig.skip_to("w1: assign j1#1");
    rig.submit(large(4));
    assert_eq!(stages(&mut rig), [] as [&str; 0], "a heft worker takes it as it is");
    assert_eq!(seen(&rig, 4).0, Verdict::NoTransfers);
}

#[test]
fn c01_what_cannot_be_staged_now_is_tried_again_and_forgotten_with_its_job() {
    let mut rig = with_classic(1);
    pair(&mut rig);
    let before = rig.broker.note_count();
    rig.submit(large(1));
    rig.skip_to("stage j1");
    not_staged(&mut rig, 1, true);
    rig.expect(["alice: waiting j1 not staged for job.assign.calcA: no room"]);
    rig.pass(STAGE_AGAIN_AFTER);
    rig.expect(["stage j1"]);
    not_staged(&mut rig, 1, true);
    rig.skip();
    rig.cancel(1);
    rig.skip();
    rig.pass(STAGE_AGAIN_AFTER * 2);
    rig.expect([]);
    // But for who submitted it, which is kept as long as its result.
    assert!(rig.broker.note_count() <= before + 1);
}

#[test]
fn c01_only_so_many_jobs_are_staged_at_a_time_and_clients_have_their_turns() {
    let mut rig = with_classic(1);
    pair(&mut rig);
    let mut asked = Vec::new();
    for number in 1..=12 {
        rig.submit(large(number));
        asked.extend(stages(&mut rig));
    }
    assert_eq!(asked.len(), STAGED_OF_CLIENT_MAX);
    // Others have places, too.
    let of = |client: &str, number| Submission { needs_transfers: true, ..job_of(client, number) };
    for (client, numbers) in [("bob", 21..=32), ("carol", 41..=44)] {
        rig.client(client);
        rig.skip();
        for number in numbers {
            rig.submit_at(client, of(client, number));
            asked.extend(stages(&mut rig));
        }
    }
    assert_eq!(asked.len(), STAGED_MAX);
    for number in (1..=8).chain(21..=28) {
        staged(&mut rig, number);
        assert_eq!(stages(&mut rig), [] as [&str; 0]);
    }
    // As one ends, the next has its turn: first of who has the fewest.
    for (number, next) in [(3, "stage j41"), (4, "stage j42"), (22, "stage j43")] {
        rig.cancel(number);
        assert_eq!(stages(&mut rig), [next]);
    }
}

#[test]
fn c01_a_client_at_its_cap_is_not_forgotten() {
    let mut rig = Rig::with(Config { cap_default: 1, ..Config::default() });
    rig.client("alice");
    rig.classic("s1", "calcA", 2);
    rig.hello("agent", WorkerClass::Leasing, "calcA", Some(0));
    rig.skip();
    pair(&mut rig);
    rig.submit(job(1));
    rig.skip_to("s1: assign j1#1");
    rig.submit(large(2));
    assert_eq!(stages(&mut rig), [] as [&str; 0]);
    rig.ack("s1", 1);
    assert_eq!(stages(&mut rig), ["stage j2"]);
}

#[test]
fn c01_a_job_does_not_stick_to_an_agent_whose_worker_cannot_have_it() {
    // The worker beside the agent that has the dataset is gone.
    let mut rig = staged_between_two();
    let first = asked(&mut rig);
    assert_eq!(first.len(), 1, "not both agents");
    let (agent, worker, other) = match first[0].starts_with("agent2") {
        true => ("agent2", "s2", "agent:"),
        false => ("agent", "s1", "agent2:"),
    };
    let Dataset { cache, digest, .. } = dataset_of(1);
    rig.tell(Event::Holding { worker: worker_id(agent), cache: cache.clone(), digest, missing: 9 });
    assert_eq!(asked(&mut rig), [] as [&str; 0]);
    rig.close(worker);
    let next = asked(&mut rig);
    assert!(next.len() == 1 && next[0].starts_with(other), "{next:?}");

    // The agent cannot hold it: the other is asked, without anything else that happens.
    let mut rig = staged_between_two();
    asked(&mut rig);
    rig.tell(Event::Holding { worker: worker_id(agent), cache: cache.clone(), digest, missing: 9 });
    rig.skip();
    rig.tell(Event::NotHolding { worker: worker_id(agent), cache });
    let next = asked(&mut rig);
    assert!(next.len() == 1 && next[0].starts_with(other), "{next:?}");
}

#[test]
fn c01_an_agent_that_loses_a_dataset_again_and_again_does_not_keep_its_place() {
    let mut rig = with_classic(1);
    pair(&mut rig);
    rig.submit(large(1));
    rig.skip_to("stage j1");
    staged(&mut rig, 1);
    // While its worker is busy with another job, the dataset is evicted as often as it comes.
    let Dataset { cache, digest, .. } = dataset_of(1);
    let worker = worker_id("agent");
    let mut lost = 0;
    while rig.broker.state().staged_datasets().count() > 0 {
        rig.skip();
        rig.tell(Event::Holding { worker, cache: cache.clone(), digest, missing: 9 });
        rig.skip();
        rig.tell(Event::NotHolding { worker, cache: cache.clone() });
        lost += 1;
        assert!(lost < 20);
    }
    rig.skip();
    assert!(rig.job(1).needs_transfers());
    rig.pass(STAGE_AGAIN_AFTER);
    rig.expect(["stage j1"]);
}

#[test]
fn c01_dead_jobs_and_jobs_without_an_agent_hold_no_places() {
    let mut rig = Rig::with(Config { cap_default: 1000, attempts_max: 1, ..Config::default() });
    rig.client("alice");
    rig.classic("s1", "calcA", 1);
    rig.hello("agent", WorkerClass::Leasing, "calcA", Some(0));
    rig.skip();
    pair(&mut rig);
    rig.submit(large(1));
    rig.skip_to("stage j1");
    staged(&mut rig, 1);
    rig.skip();
    agent_holds(&mut rig, 1);
    rig.skip_to("s1: assign j1#1");
    rig.close("s1");
    let lines = rig.take();
    assert!(lines.iter().any(|line| line.starts_with("removed heft-job-")), "{lines:#?}");
    assert_eq!(rig.broker.state().staged_datasets().count(), 0);
    let job = rig.job(1);
    assert!(
        job.has_ended() && job.needs_transfers() && job.datasets().is_empty(),
        "as it came, for another run"
    );

    // Sixteen that only this agent could have had, and it is gone: others get their places.
    let mut rig = with_classic(1);
    pair(&mut rig);
    rig.client("bob");
    rig.skip();
    for number in 1..=16 {
        let client = if number <= 8 { "alice" } else { "bob" };
        rig.submit_at(client, Submission { needs_transfers: true, ..job_of(client, number) });
        rig.skip();
        staged(&mut rig, number);
        rig.skip();
    }
    rig.classic("s2", "calcB", 1);
    rig.skip();
    rig.tell(Event::AgentFor { worker: worker_id("s1"), agent: None });
    rig.skip();
    rig.tell(Event::AgentFor { worker: worker_id("s2"), agent: Some(worker_id("agent")) });
    rig.skip();
    rig.submit(Submission { needs_transfers: true, ..job_for("calcB", 20) });
    assert_eq!(stages(&mut rig), ["stage j20"]);
    assert!(rig.job(1).needs_transfers(), "as before");
}

#[test]
fn c01_a_worker_that_takes_transfers_needs_no_dataset_of_inputs() {
    let mut rig = with_classic(1);
    pair(&mut rig);
    rig.submit(large(1));
    rig.skip_to("stage j1");
    staged(&mut rig, 1);
    rig.skip();
    // It keeps no cache, and could be sent no dataset.
    rig.hello_taking("w1", WorkerClass::Leasing, "calcA", Some(1), (true, false));
    rig.skip();
    rig.credit("w1", 1);
    rig.skip_to("w1: assign j1#1");
    assert!(rig.job(1).comes_by_transfer(), "so that it goes on with them when it comes back");
    gone(&mut rig, 1);
    rig.skip();
    assert!(rig.job(1).needs_transfers());
}

#[test]
fn c01_a_dataset_that_comes_late_changes_nothing_for_a_job_that_is_elsewhere() {
    let mut rig = with_classic(1);
    pair(&mut rig);
    rig.submit(large(1));
    rig.skip_to("stage j1");
    rig.worker("w1", "calcA", 1);
    rig.skip_to("w1: assign j1#1");
    staged(&mut rig, 1);
    rig.skip();
    assert!(rig.job(1).needs_transfers() && rig.job(1).datasets().is_empty());
    rig.ack("w1", 1);
    rig.skip();
    staged(&mut rig, 1);
    rig.skip();
    assert!(rig.job(1).datasets().is_empty());
}

#[test]
fn c01_a_dataset_that_is_lost_is_made_anew_and_one_job_goes_to_one_agent() {
    let mut rig = staged_between_two();
    assert_eq!(asked(&mut rig).len(), 1, "not both agents");
    // The leader lost a part of it: the job is as it was, and staged again.
    gone(&mut rig, 1);
    assert_eq!(stages(&mut rig), ["stage j1"]);
    staged(&mut rig, 1);
    assert_eq!(asked(&mut rig).len(), 1);
    // The first agent cannot hold it: the other is asked. Neither can: it is made anew later.
    let Dataset { cache, digest, .. } = dataset_of(1);
    let mut failed = 0;
    for agent in ["agent", "agent2", "agent", "agent2"] {
        let worker = worker_id(agent);
        rig.tell(Event::Holding { worker, cache: cache.clone(), digest, missing: 9 });
        rig.skip();
        rig.tell(Event::NotHolding { worker, cache: cache.clone() });
        failed += rig.take().iter().filter(|line| line.contains("not staged")).count();
        if failed > 0 {
            break;
        }
    }
    assert_eq!((failed, rig.broker.state().staged_datasets().count()), (1, 0));
    rig.pass(STAGE_AGAIN_AFTER);
    rig.expect(["stage j1"]);
}

#[test]
fn a_job_whose_inputs_are_staged_needs_that_dataset_until_it_is_gone() {
    let mut state = State::default();
    state.apply(&Record::Enqueue {
        at: Micros(1),
        job: large(1),
        children: Vec::new(),
        kept: true,
    });
    state.apply(&Record::Stage { job: id(1), dataset: Arc::new(dataset_of(1)) });
    let job = state.job(id(1)).unwrap();
    assert!(
        job.is_staged() && !job.needs_transfers() && job.datasets() == [CacheId::of_inputs(id(1))]
    );
    state.apply(&Record::Stage { job: id(1), dataset: Arc::new(dataset_of(1)) });
    assert_eq!(state.job(id(1)).unwrap().datasets().len(), 1, "once");
    assert_eq!(state.staged_datasets().count(), 1);
    let gone =
        Record::DatasetGone { cache: CacheId::of_inputs(id(1)), version: Uuid::from_u128(1) };
    state.apply(&gone);
    let job = state.job(id(1)).unwrap();
    assert!(job.needs_transfers() && job.datasets().is_empty(), "and back");
    // The name alone says nothing.
    state.apply(&Record::Dataset { dataset: Arc::new(dataset_of(1)) });
    assert!(!state.job(id(1)).unwrap().is_staged());
    assert_eq!((state.staged_datasets().count(), state.dataset_count()), (0, 1));
}

#[test]
fn ids_of_staged_datasets_name_their_jobs_and_nothing_else_does() {
    let job = JobId(Uuid::from_u128(0x1234_5678_9abc_def0_0000_0000_0000_0001));
    let cache = CacheId::of_inputs(job);
    assert_eq!(cache.as_str(), "heft-job-123456789abcdef00000000000000001");
    assert_eq!((cache.job_in_name(), cache.is_the_leaders()), (Some(job), true));
    for other in [
        "heft-job-",
        "heft-job-1",
        "heft-job-123456789ABCDEF00000000000000001",
        "heft-jobs",
        "models",
    ] {
        assert_eq!(CacheId::parse(other).unwrap().job_in_name(), None, "{other}");
    }
    let upper = CacheId::parse("heft-job-{12345678-9abc-def0-0000-000000000001}").unwrap();
    assert_eq!((upper.job_in_name(), upper.is_the_leaders()), (None, true));
}
