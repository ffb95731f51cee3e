//! What the state keeps of when things happened, and of the order in which jobs came.

use uuid::Uuid;

use super::*;
use crate::core::ids::ResultId;
use crate::core::payload::FileNames;
use crate::core::subject::routing_key;

const WORKERS: [WorkerId; 2] = [WorkerId(Uuid::from_u128(91)), WorkerId(Uuid::from_u128(92))];
const RUN: Run = Run(1);

fn id(number: u128) -> JobId {
    JobId(Uuid::from_u128(number))
}

fn submission(number: u128, to_all: bool) -> Submission {
    Submission {
        job: id(number),
        client: "alice".into(),
        key: routing_key("calc", None).unwrap(),
        exec: "calc".into(),
        priority: 0,
        to_all,
        size: 1,
        fingerprint: [0; 32],
        inputs: Inputs::Here,
        needs_transfers: false,
        require_worker: false,
        datasets: Vec::new(),
        names: FileNames::Plain,
        tag: Some("night".into()),
    }
}

fn enqueue(at: u64, number: u128) -> Record {
    let job = submission(number, false);
    Record::Enqueue { at: Micros(at), job, children: Vec::new(), kept: true }
}

fn assign(at: u64, attempt: u32, worker: usize) -> Record {
    Record::Assign {
        at: Some(Micros(at)),
        job: id(1),
        run: RUN,
        attempt: Attempt(attempt),
        worker: WORKERS[worker],
        class: WorkerClass::Leasing,
    }
}

fn requeue(at: u64, attempt: u32) -> Record {
    let (attempt, why) = (Attempt(attempt), AttemptEnd::WorkerLost);
    let (at, not_before) = (Some(Micros(at)), Micros(at));
    Record::Requeue { at, job: id(1), run: RUN, attempt, why, counts: true, not_before }
}

fn ack(at: u64, worker: usize) -> Record {
    let (worker, result) = (WORKERS[worker], ResultId(1));
    Record::Ack { at: Micros(at), job: id(1), run: RUN, worker, result, ok: true }
}

fn after(records: &[Record]) -> State {
    let mut state = State::default();
    for record in records {
        assert_ne!(state.apply(record), Applied::Stale, "{record:?}");
        assert_eq!(state.check(), Ok(()));
    }
    state
}

/// Attempt, worker, why, began and ended of all that are noted.
fn notes(state: &State) -> Vec<(u32, WorkerId, AttemptEnd, u64, u64)> {
    let at = |time: Option<Micros>| time.unwrap().0;
    let note = |note: &AttemptNote| {
        (note.attempt.0, note.worker, note.why, at(note.began), at(note.ended))
    };
    state.job(id(1)).unwrap().history.iter().map(note).collect()
}

fn times(state: &State) -> (Option<Micros>, Option<Micros>) {
    let Times { submitted, assigned } = state.job(id(1)).unwrap().times;
    (submitted, assigned)
}

#[test]
fn each_attempt_has_its_times_and_the_one_that_ended_the_job_is_no_note() {
    let state = after(&[enqueue(1, 1), assign(3, 1, 0), requeue(5, 1)]);
    assert_eq!(notes(&state), [(1, WORKERS[0], AttemptEnd::WorkerLost, 3, 5)]);
    assert_eq!(times(&state), (Some(Micros(1)), None), "it waits");
    let state = after(&[enqueue(1, 1), assign(3, 1, 0), requeue(5, 1), assign(7, 2, 1), ack(9, 1)]);
    assert_eq!(notes(&state).len(), 1);
    assert_eq!(times(&state), (Some(Micros(1)), Some(Micros(7))));
}

#[test]
fn an_attempt_that_somebody_else_ended_is_noted_as_stopped() {
    let cancel = Record::Cancel { at: Micros(8), job: id(1), run: RUN, by: "an operator".into() };
    let state = after(&[enqueue(1, 1), assign(3, 1, 0), cancel]);
    assert_eq!(notes(&state), [(1, WORKERS[0], AttemptEnd::Stopped, 3, 8)]);
    assert_eq!(times(&state).1, None);
    // The first worker was late, and was the first all the same.
    let records = [enqueue(1, 1), assign(3, 1, 0), requeue(5, 1), assign(6, 2, 1), ack(8, 0)];
    let state = after(&records);
    let stopped = (2, WORKERS[1], AttemptEnd::Stopped, 6, 8);
    assert_eq!(notes(&state), [(1, WORKERS[0], AttemptEnd::WorkerLost, 3, 5), stopped]);
    assert_eq!(times(&state).1, None);
}

#[test]
fn a_log_that_names_no_moments_is_read_and_the_times_are_unknown() {
    let untimed = |mut record| {
        if let Record::Assign { at, .. } | Record::Requeue { at, .. } = &mut record {
            *at = None;
        }
        record
    };
    let records = [enqueue(1, 1), assign(3, 1, 0), requeue(5, 1), assign(6, 2, 1)];
    let state = after(&records.map(untimed));
    let job = state.job(id(1)).unwrap();
    assert_eq!((job.history[0].began, job.history[0].ended), (None, None));
    assert_eq!(times(&state), (Some(Micros(1)), None));
}

/// The same records, of another run.
fn in_run(run: u32, mut record: Record) -> Record {
    if let Record::Assign { run: of, .. }
    | Record::Requeue { run: of, .. }
    | Record::Ack { run: of, .. } = &mut record
    {
        *of = Run(run);
    }
    record
}

fn failed(mut ack: Record) -> Record {
    if let Record::Ack { ok, .. } = &mut ack {
        *ok = false;
    }
    ack
}

fn revive(run: u32) -> Record {
    Record::Revive { job: id(1), run: Run(run) }
}

/// Run, attempt, worker, why, began and ended of all attempts of earlier runs.
fn earlier(state: &State) -> Vec<(u32, u32, WorkerId, Option<AttemptEnd>, u64, u64)> {
    let at = |time: Option<Micros>| time.unwrap().0;
    let job = state.job(id(1)).unwrap();
    let of = job.earlier.iter();
    of.map(|of| (of.run.0, of.attempt.0, of.worker, of.why, at(of.began), at(of.ended))).collect()
}

#[test]
fn attempts_of_earlier_runs_are_kept_with_the_one_that_returned_a_result_and_have_no_effect() {
    let records = [
        enqueue(1, 1),
        assign(3, 1, 0),
        requeue(5, 1),
        assign(7, 2, 1),
        failed(ack(9, 1)),
        revive(1),
        in_run(2, assign(11, 3, 0)),
        in_run(2, failed(ack(13, 0))),
        revive(2),
    ];
    let state = after(&records);
    let lost = Some(AttemptEnd::WorkerLost);
    let kept = [
        (1, 1, WORKERS[0], lost, 3, 5),
        (1, 2, WORKERS[1], None, 7, 9),
        (2, 3, WORKERS[0], None, 11, 13),
    ];
    assert_eq!(earlier(&state), kept);
    let job = state.job(id(1)).unwrap();
    assert_eq!((job.spent, job.history.len(), job.run), (0, 0, Run(3)));
    assert!(WORKERS.iter().all(|worker| !job.is_or_was_with(*worker)), "of this run");
}

#[test]
fn a_late_result_ends_the_attempt_of_its_worker_in_an_earlier_run_too() {
    let late = [enqueue(1, 1), assign(3, 1, 0), requeue(5, 1), assign(6, 2, 1), failed(ack(8, 0))];
    let state = after(&[late.as_slice(), &[revive(1)]].concat());
    let kept =
        [(1, 1, WORKERS[0], None, 3, 5), (1, 2, WORKERS[1], Some(AttemptEnd::Stopped), 6, 8)];
    assert_eq!(earlier(&state), kept);
}

#[test]
fn of_many_runs_the_latest_attempts_are_kept() {
    let mut records = vec![enqueue(1, 1)];
    let max = u32::try_from(HISTORY_MAX).unwrap();
    for run in 1..=max + 5 {
        let at = u64::from(run) * 2;
        let ended = failed(ack(at + 1, 0));
        records.extend([in_run(run, assign(at, run, 0)), in_run(run, ended), revive(run)]);
    }
    let state = after(&records);
    let runs: Vec<u32> = earlier(&state).iter().map(|of| of.0).collect();
    assert_eq!(runs, (6..=max + 5).collect::<Vec<_>>());
}

#[test]
fn jobs_are_listed_from_the_newest_without_children_and_from_any_place_on() {
    let mut records: Vec<Record> = (1..=3).map(|number| enqueue(1, 10 - number)).collect();
    let job = submission(4, true);
    let children = vec![(id(40), WORKERS[0]), (id(41), WORKERS[1])];
    records.push(Record::Enqueue { at: Micros(2), job, children, kept: true });
    records.push(enqueue(3, 2));
    let mut state = after(&records);
    let listed = |state: &State, before| -> Vec<u128> {
        state.newest(before).map(|job| job.id().0.as_u128()).collect()
    };
    assert_eq!(listed(&state, None), [2, 4, 7, 8, 9]);
    let seq = state.job(id(7)).unwrap().seq;
    assert_eq!(listed(&state, Some(seq)), [8, 9]);
    assert_eq!(listed(&state, Some(0)), [0; 0]);
    let restored = State::restore(state.jobs().cloned(), [], [], [], state.last_seq());
    assert_eq!(restored, state);
    let cancel = Record::Cancel { at: Micros(8), job: id(8), run: RUN, by: "x".into() };
    state.apply(&cancel);
    state.apply(&Record::Forget { job: id(8), run: RUN });
    assert_eq!((listed(&state, None), state.check()), (vec![2, 4, 7, 9], Ok(())));
}
