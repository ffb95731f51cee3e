//! The table of record effects on a job.

use std::sync::Arc;

use uuid::Uuid;

use super::*;
use crate::core::ids::ResultId;
use crate::core::payload::FileNames;
use crate::core::subject::routing_key;
use crate::transitions::{self, assert_table};

const ID: JobId = JobId(Uuid::from_u128(1));
const CHILD: JobId = JobId(Uuid::from_u128(2));
const WORKER: WorkerId = WorkerId(Uuid::from_u128(9));
const AT: Micros = Micros(5);
const RUN: Run = Run(1);

fn submission(inputs: Inputs) -> Submission {
    Submission {
        job: ID,
        client: "alice".into(),
        key: routing_key("calc", None).unwrap(),
        exec: "calc".into(),
        priority: 0,
        to_all: false,
        size: 1,
        fingerprint: [0; 32],
        inputs,
        needs_transfers: true,
        require_worker: false,
        datasets: Vec::new(),
        names: FileNames::Plain,
        tag: None,
    }
}

fn announce() -> Record {
    Record::Announce { at: AT, job: submission(Inputs::Expected) }
}

fn enqueue(inputs: Inputs) -> Record {
    Record::Enqueue { at: AT, job: submission(inputs), children: Vec::new(), kept: true }
}

fn assign(job: JobId) -> Record {
    Record::Assign {
        at: Some(AT),
        job,
        run: RUN,
        attempt: Attempt(1),
        worker: WORKER,
        class: WorkerClass::Leasing,
    }
}

fn ack(job: JobId) -> Record {
    Record::Ack { at: AT, job, run: RUN, worker: WORKER, result: ResultId(1), ok: true }
}

fn failed() -> Record {
    Record::Ack { at: AT, job: ID, run: RUN, worker: WORKER, result: ResultId(1), ok: false }
}

fn requeue(attempt: u32) -> Record {
    let (why, counts) = (AttemptEnd::WorkerLost, true);
    let (at, attempt) = (Some(AT), Attempt(attempt));
    Record::Requeue { at, job: ID, run: RUN, attempt, why, counts, not_before: AT }
}

fn dlq() -> Record {
    Record::Dlq { at: AT, job: ID, run: RUN, attempt: Attempt(1), why: AttemptEnd::TimedOut }
}

fn stage() -> Record {
    let dataset = Dataset {
        cache: CacheId::of_inputs(ID),
        version: Uuid::from_u128(3),
        digest: [0; 32],
        bytes: 1,
        files: 1,
        target: "none".into(),
        packs: Vec::new(),
        at: AT,
    };
    Record::Stage { job: ID, dataset: Arc::new(dataset) }
}

fn after(records: &[Record]) -> State {
    let mut state = State::default();
    for record in records {
        assert_ne!(state.apply(record), Applied::Stale, "{record:?}");
    }
    state
}

fn gathering() -> State {
    let job = Submission { to_all: true, ..submission(Inputs::Here) };
    after(&[Record::Enqueue { at: AT, job, children: vec![(CHILD, WORKER)], kept: true }])
}

fn name(state: &State) -> String {
    let Some(job) = state.job(ID) else { return "none".to_owned() };
    let phase = match (&job.phase, job.run) {
        (Phase::Queued { .. }, RUN) => "queued",
        (Phase::Queued { .. }, _) => "queued again",
        (Phase::Leased { .. }, _) => "leased",
        (Phase::Gathering { .. }, _) => "gathering",
        (Phase::Done { .. }, _) if job.retains_inputs() => "failed",
        (Phase::Done { .. }, _) => "done",
        (Phase::Dead { .. }, _) => "dead",
    };
    let inputs = match job.inputs {
        InputsState::Announced => ", announced",
        InputsState::PassedOn => ", passed on",
        InputsState::Kept => "",
        InputsState::Staged { .. } => ", staged",
        InputsState::Dropped => ", dropped",
    };
    format!("{phase}{inputs}{}", if job.delivered { ", delivered" } else { "" })
}

#[test]
fn transition_table_of_jobs_by_records() {
    let states: [transitions::State<State>; 12] = [
        ("none", State::default),
        ("queued, announced", || after(&[announce()])),
        ("leased, announced", || after(&[announce(), assign(ID)])),
        ("queued", || after(&[enqueue(Inputs::Here)])),
        ("queued, staged", || after(&[enqueue(Inputs::Here), stage()])),
        ("leased", || after(&[enqueue(Inputs::Here), assign(ID)])),
        ("leased, staged", || after(&[enqueue(Inputs::Here), stage(), assign(ID)])),
        ("gathering", gathering),
        ("done", || after(&[enqueue(Inputs::Here), assign(ID), ack(ID)])),
        ("failed", || after(&[enqueue(Inputs::Here), assign(ID), failed()])),
        ("failed, staged", || after(&[enqueue(Inputs::Here), stage(), assign(ID), failed()])),
        ("dead", || after(&[enqueue(Inputs::Here), assign(ID), dlq()])),
    ];
    fn apply(state: &mut State, record: &Record) {
        state.apply(record);
    }
    let events: [transitions::Event<State>; 22] = [
        ("announce", |state| apply(state, &announce())),
        ("enqueue, inputs with it", |state| apply(state, &enqueue(Inputs::Here))),
        ("enqueue, inputs came", |state| apply(state, &enqueue(Inputs::Expected))),
        ("enqueue, inputs came and are not kept", |state| {
            let job = submission(Inputs::Expected);
            apply(state, &Record::Enqueue { at: AT, job, children: Vec::new(), kept: false });
        }),
        ("assign", |state| apply(state, &assign(ID))),
        ("ack", |state| apply(state, &ack(ID))),
        ("ack of a failure", |state| apply(state, &failed())),
        ("ack of its only child", |state| apply(state, &ack(CHILD))),
        ("requeue", |state| apply(state, &requeue(1))),
        ("requeue of an attempt before", |state| apply(state, &requeue(0))),
        ("dlq", |state| apply(state, &dlq())),
        ("cancel", |state| {
            apply(state, &Record::Cancel { at: AT, job: ID, run: RUN, by: "somebody".into() });
        }),
        ("withdraw", |state| apply(state, &Record::Withdraw { job: ID, run: RUN })),
        ("fail", |state| {
            apply(state, &Record::Fail { at: AT, job: ID, run: RUN, why: "why".into() })
        }),
        ("orphan", |state| apply(state, &Record::Orphan { at: AT, job: ID, run: RUN })),
        ("revive", |state| apply(state, &Record::Revive { job: ID, run: RUN })),
        ("drop_inputs", |state| apply(state, &Record::DropInputs { job: ID, run: RUN })),
        ("forget", |state| apply(state, &Record::Forget { job: ID, run: RUN })),
        ("delivered", |state| apply(state, &Record::Delivered { job: ID, run: RUN })),
        ("stage", |state| apply(state, &stage())),
        ("dataset_gone", |state| {
            let gone =
                Record::DatasetGone { cache: CacheId::of_inputs(ID), version: Uuid::from_u128(3) };
            apply(state, &gone);
        }),
        ("any of another run", |state| {
            apply(state, &Record::Cancel { at: AT, job: ID, run: Run(7), by: "somebody".into() });
        }),
    ];
    assert_table("src/core/state/transitions.txt", &states, &events, name);
}

#[test]
fn a_job_to_all_that_a_worker_had_while_it_was_announced_is_not_counted_as_running() {
    let job = |inputs| Submission { to_all: true, ..submission(inputs) };
    let state = after(&[
        Record::Announce { at: AT, job: job(Inputs::Expected) },
        assign(ID),
        Record::Enqueue {
            at: AT,
            job: job(Inputs::Expected),
            children: vec![(CHILD, WORKER)],
            kept: true,
        },
    ]);
    assert_eq!(name(&state), "gathering");
    assert_eq!(state.running(&"alice".into()), 0);
    assert_eq!(state.check(), Ok(()));
}
