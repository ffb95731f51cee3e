//! What the state keeps of when things happened, and of the order in which jobs came.

use uuid::Uuid;

use super::*;
use crate::core::caps::CAPS_MAX;
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

#[test]
fn what_jobs_have_in_common_is_kept_once_also_after_a_restart_and_goes_with_the_last_of_them() {
    const JOBS: u128 = 10_000;
    let mut state = State::default();
    let fail = |number| {
        // Each text is a copy of its own, as from the log.
        let why: Arc<str> = format!("no program: {}", "x".repeat(1_000)).into();
        Record::Fail { at: Micros(5), job: id(number), run: RUN, why }
    };
    let texts = |job: &Job| {
        let Phase::Done { ending: Ending::Failed { why }, .. } = &job.phase else { panic!("end") };
        let Submission { client, exec, tag, key, .. } = &job.submission;
        let [text, folded] = key.texts();
        let tag = tag.as_ref().unwrap();
        [&client.0, exec, tag, text, folded, why].map(|text| Arc::as_ptr(text).cast::<u8>())
    };
    for number in 1..=JOBS {
        state.apply(&enqueue(1, number));
        state.apply(&fail(number));
    }
    let all = |state: &State| state.jobs().map(texts).collect::<BTreeSet<_>>();
    assert_eq!((all(&state).len(), state.texts.len(), state.check()), (1, 5, Ok(())));
    // Each job comes with texts of its own again.
    let jobs = state.jobs().cloned().map(|mut job| {
        let why: Arc<str> = format!("no program: {}", "x".repeat(1_000)).into();
        job.submission = submission(job.id().0.as_u128(), false);
        job.phase = Phase::Done { at: Micros(5), ending: Ending::Failed { why } };
        job
    });
    let jobs: Vec<Job> = jobs.collect();
    let mut again = State::restore(jobs, Vec::new(), Vec::new(), Vec::new(), state.last_seq());
    assert_eq!(all(&again).len(), 1);
    assert!(again == state);
    for number in 1..=JOBS {
        again.apply(&Record::Revive { job: id(number), run: RUN });
        again.apply(&Record::Cancel {
            at: Micros(6),
            job: id(number),
            run: Run(2),
            by: "x".into(),
        });
        again.apply(&Record::Forget { job: id(number), run: Run(2) });
    }
    assert_eq!((again.job_count(), again.texts.len(), again.open.len()), (0, 0, 0));
}

#[test]
fn spellings_of_a_key_that_count_as_one_stay_as_they_were() {
    let mut state = State::default();
    for (number, key) in [(1, "Calc"), (2, "calc"), (3, "Calc")] {
        let key = routing_key(key, None).unwrap();
        let job = Submission { key, ..submission(number, false) };
        state.apply(&Record::Enqueue { at: Micros(1), job, children: Vec::new(), kept: true });
    }
    let keys = state.jobs().map(|job| job.submission.key.as_str().to_owned());
    assert_eq!(keys.collect::<Vec<_>>(), ["job.assign.Calc", "job.assign.calc", "job.assign.Calc"]);
    assert_eq!(state.check(), Ok(()));
}

#[test]
fn a_cap_is_kept_as_long_as_jobs_of_its_client_have_not_ended() {
    let mut state = State::default();
    let cap = |client: &str, cap| Record::Cap { client: client.into(), cap };
    state.apply(&cap("alice", 1));
    state.apply(&enqueue(1, 1));
    state.apply(&enqueue(1, 2));
    (0..CAPS_MAX + 5).for_each(|number| drop(state.apply(&cap(&number.to_string(), 2))));
    assert_eq!(state.cap(&"alice".into()), Some(1));
    let caps = || state.caps().map(|(client, cap)| (client.clone(), cap));
    let jobs = || state.jobs().cloned();
    let again = State::restore(jobs(), caps(), Vec::new(), Vec::new(), state.last_seq());
    assert!(again == state && again.cap(&"alice".into()) == Some(1));
    let cancel =
        |number| Record::Cancel { at: Micros(2), job: id(number), run: RUN, by: "x".into() };
    state.apply(&cancel(1));
    assert_eq!(state.cap(&"alice".into()), Some(1), "one waits still");
    state.apply(&cancel(2));
    assert_eq!((state.cap(&"alice".into()), state.check()), (None, Ok(())));
}
