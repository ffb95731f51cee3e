//! Inputs that are too large for a stock worker's frame, in the broker: a dataset is made of them for the agent beside it, and the job
//! names that from then on (C01).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/core.rs"]
mod rig;

use std::sync::Arc;

use heft::core::dataset::Dataset;
use heft::core::event::{Operation, Submission, WorkerClass};
use heft::core::explain::{Verdict, WaitsFor};
use heft::core::ids::{CacheId, JobId, Micros};
use heft::core::state::State;
use heft::core::{Config, Event, Record};
use rig::{Rig, announced, id, job, worker_id};
use uuid::Uuid;

/// A job whose inputs are here and go by transfer.
fn large(number: u32) -> Submission {
    Submission { needs_transfers: true, ..job(number) }
}

fn set_of(number: u32) -> Dataset {
    Dataset {
        cache: CacheId::of_inputs(id(number)),
        generation: Uuid::from_u128(number.into()),
        digest: [u8::try_from(number).unwrap(); 32],
        bytes: 5_000_000,
        files: 1,
        target: "none".into(),
        packs: vec![Uuid::from_u128(1000 + u128::from(number))],
        at: Micros(1),
    }
}

fn staged(rig: &mut Rig, number: u32) {
    rig.tell(Event::PutDataset { dataset: Arc::new(set_of(number)) });
}

fn agent_holds(rig: &mut Rig, number: u32) {
    let Dataset { cache, digest, .. } = set_of(number);
    rig.tell(Event::Holding { worker: worker_id("agent"), cache, digest, missing: 0 });
}

/// `alice` may have any number of jobs; a stock worker with room.
fn with_stock(room: i32) -> Rig {
    let mut rig = Rig::with(Config { cap_default: 1000, ..Config::default() });
    rig.note_waiting();
    rig.client("alice");
    rig.stock("s1", "calcA", room);
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

#[test]
fn c01_large_inputs_become_a_set_for_the_agent_and_then_the_stock_worker_gets_the_job() {
    let mut rig = with_stock(1);
    pair(&mut rig);
    rig.submit(Submission { require_worker: true, ..large(1) });
    rig.expect(["+enqueue j1", "alice: submitted j1 Queued behind 0", "stage j1"]);
    let seen = rig.broker.explain(id(1)).unwrap();
    assert_eq!((seen.workers[1].verdict, seen.waits), (Verdict::Staging, Some(WaitsFor::Room)));
    staged(&mut rig, 1);
    let (set, asked) = (format!("{} g1", name(1)), format!("agent: ask for {}", name(1)));
    rig.expect([&format!("+dataset {set}"), &format!("put {set}"), &asked]);
    let job = rig.job(1);
    assert_eq!((job.needs_transfers, job.datasets.clone()), (false, vec![CacheId::of_inputs(id(1))]));
    agent_holds(&mut rig, 1);
    rig.expect(["+assign j1#1 s1", "s1: assign j1#1"]);
    rig.ack("s1", 1);
    rig.skip();
    rig.tell(Event::RemoveDataset { cache: CacheId::of_inputs(id(1)) });
    rig.skip();
    assert_eq!((rig.broker.state().staged_sets(), rig.broker.state().datasets().count()), (0, 0));
}

#[test]
fn c01_nothing_is_staged_that_another_could_have_or_that_cannot_be() {
    let mut rig = with_stock(1);
    // Without an agent its client hears what is missing; with one it is staged.
    rig.submit(large(1));
    rig.expect([
        "+enqueue j1",
        "alice: submitted j1 Queued behind 0",
        "alice: waiting j1 1 stock workers for job.assign.calcA",
    ]);
    pair(&mut rig);
    rig.expect(["stage j1"]);
    pair(&mut rig);
    rig.expect([]);
    // To all means as they are; inputs that are not here cannot be made anything.
    rig.submit(Submission { to_all: true, ..large(2) });
    rig.skip();
    rig.submit(announced(3));
    assert!(!rig.take().iter().any(|line| line.starts_with("stage")));
    assert_eq!(rig.broker.explain(id(3)).unwrap().workers[1].verdict, Verdict::Staging, "when they are");
    // What cannot be made a set waits for a heft worker, and nobody tries again.
    rig.tell(Event::NotStaged { job: id(1) });
    rig.expect(["alice: waiting j1 1 stock workers for job.assign.calcA"]);
    pair(&mut rig);
    rig.expect([]);
    assert_eq!(rig.broker.explain(id(1)).unwrap().workers[1].verdict, Verdict::NoTransfers);
    rig.worker("w1", "calcA", 2);
    rig.skip_to("w1: assign j1#1");
    rig.submit(large(4));
    assert!(!rig.take().iter().any(|line| line.starts_with("stage")), "a heft worker takes it as it is");
}

#[test]
fn c01_only_so_many_jobs_are_staged_at_a_time() {
    let mut rig = with_stock(1);
    pair(&mut rig);
    let mut asked = 0;
    for number in 1..=20 {
        rig.submit(large(number));
        asked += rig.take().iter().filter(|line| line.starts_with("stage")).count();
    }
    assert_eq!(asked, 16);
    for number in 1..=16 {
        staged(&mut rig, number);
        assert!(!rig.take().iter().any(|line| line.starts_with("stage")));
    }
    // As one ends, the next has its turn.
    rig.operate(Operation::Cancel { job: id(3), by: "a test".into() });
    rig.skip();
    rig.tell(Event::RemoveDataset { cache: CacheId::of_inputs(id(3)) });
    assert_eq!(rig.take().iter().filter(|line| line.as_str() == "stage j17").count(), 1);
}

#[test]
fn c01_a_set_that_comes_late_changes_nothing_for_a_job_that_is_elsewhere() {
    let mut rig = with_stock(1);
    pair(&mut rig);
    rig.submit(large(1));
    rig.skip_to("stage j1");
    rig.worker("w1", "calcA", 1);
    rig.skip_to("w1: assign j1#1");
    staged(&mut rig, 1);
    rig.skip();
    assert!(rig.job(1).needs_transfers && rig.job(1).datasets.is_empty());
    rig.ack("w1", 1);
    rig.skip();
    staged(&mut rig, 1);
    rig.skip();
    assert!(rig.job(1).datasets.is_empty());
}

#[test]
fn what_is_staged_is_in_the_records_that_are_there_anyway() {
    let mut state = State::default();
    state.apply(&Record::Enqueue { at: Micros(1), job: large(1), children: Vec::new(), kept: true });
    state.apply(&Record::Dataset { dataset: Arc::new(set_of(1)) });
    let job = state.job(id(1)).unwrap();
    assert!(!job.needs_transfers && job.datasets == [CacheId::of_inputs(id(1))]);
    state.apply(&Record::Dataset { dataset: Arc::new(set_of(1)) });
    assert_eq!(state.job(id(1)).unwrap().datasets.len(), 1, "once");
    assert_eq!(state.staged_sets(), 1);
}

#[test]
fn ids_of_staged_sets_name_their_jobs_and_nothing_else_does() {
    let job = JobId(Uuid::from_u128(0x1234_5678_9abc_def0_0000_0000_0000_0001));
    let cache = CacheId::of_inputs(job);
    assert_eq!(cache.as_str(), "heft-job-123456789abcdef00000000000000001");
    assert_eq!((cache.job(), cache.is_of_a_job()), (Some(job), true));
    for other in
        ["heft-job-", "heft-job-1", "heft-job-123456789ABCDEF00000000000000001", "heft-jobs", "models"]
    {
        assert_eq!(CacheId::parse(other).unwrap().job(), None, "{other}");
    }
    let upper = CacheId::parse("heft-job-{12345678-9abc-def0-0000-000000000001}").unwrap();
    assert_eq!((upper.job(), upper.is_of_a_job()), (None, true));
}
