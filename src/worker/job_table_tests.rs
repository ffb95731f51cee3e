use super::*;

const OURS: Features = Features::LEASES.with(Features::PROGRESS).with(Features::CANCEL);
const CLASSIC: Features = Features(0);

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn offer(number: u128) -> Offer {
    Offer(Arc::new(Job::new(id(number), "", &b"raw"[..])))
}

fn numbers(run: u32, attempt: u32) -> RunAttempt {
    RunAttempt::new(Some(run), attempt)
}

fn table(features: Features) -> JobTable {
    let mut table = JobTable::new(2, Backlog::default());
    table.on_leader(features);
    table
}

fn all(table: &mut JobTable) -> Vec<JobOrder> {
    std::iter::from_fn(|| table.poll()).collect()
}

fn running(number: u128, run: u32, attempt: u32) -> JobOrder {
    JobOrder::SayRunning { job: id(number), run, attempt }
}

fn answer(number: u128, payload: &'static str) -> JobOrder {
    JobOrder::Answer { job: id(number), payload: payload.into() }
}

const EARLY_CREDIT: JobOrder = JobOrder::ReturnCredit { after_job: false };
const LATE_CREDIT: JobOrder = JobOrder::ReturnCredit { after_job: true };

fn started(number: u128) -> JobTable {
    let mut table = table(OURS);
    table.on_assign(offer(number), Inputs::Inside);
    table.on_start(id(number), numbers(1, 1));
    assert_eq!(
        all(&mut table),
        [running(number, 1, 1), JobOrder::Run(offer(number), numbers(1, 1))]
    );
    table
}

#[test]
fn co04_whether_the_client_takes_parts_goes_from_start_to_the_run_also_while_the_job_waits() {
    let start = |flags| Start { run: 1, attempt: 1, lease_ms: 1, flags };
    let mut table = table(OURS);
    let parts = RunAttempt::of(&start(StartFlags::TAKES_PARTS));
    assert_eq!(parts, RunAttempt { takes_parts: true, ..numbers(1, 1) });
    assert_eq!(RunAttempt::of(&start(StartFlags::default())), numbers(1, 1));
    for (number, inputs) in [(1, Inputs::Inside), (2, Inputs::Coming), (3, Inputs::Inside)] {
        table.on_assign(offer(number), inputs);
        table.on_start(id(number), parts);
        table.on_received(id(number));
    }
    let run = |number| JobOrder::Run(offer(number), parts);
    assert_eq!(all(&mut table), [running(1, 1, 1), run(1), running(2, 1, 1), run(2)]);
    table.on_ended(id(1), "done".into(), false);
    assert_eq!(
        all(&mut table),
        [answer(1, "done"), LATE_CREDIT, running(3, 1, 1), run(3)],
        "the third waited for a place"
    );
}

#[test]
fn a_job_of_ours_runs_at_start_after_progress_and_is_cleaned_when_settled() {
    let mut table = table(OURS);
    table.on_assign(offer(1), Inputs::Inside);
    assert_eq!(all(&mut table), []);
    table.on_start(id(1), numbers(1, 2));
    assert_eq!(all(&mut table), [running(1, 1, 2), JobOrder::Run(offer(1), numbers(1, 2))]);
    assert_eq!(table.held(), [HeldJob { job: id(1), run: 1, attempt: 2 }]);
    table.on_ended(id(1), "done".into(), false);
    assert_eq!(all(&mut table), [answer(1, "done"), LATE_CREDIT]);
    assert_eq!(
        table.held(),
        [HeldJob { job: id(1), run: 1, attempt: 2 }],
        "held until it is settled"
    );
    table.on_settled(id(1), 1);
    table.on_settled(id(1), 1);
    assert_eq!(all(&mut table), [JobOrder::Clean { job: id(1) }]);
    assert_eq!(table.held(), []);
}

#[test]
fn a_job_of_a_classic_leader_runs_at_once_and_is_cleaned_when_sent() {
    let mut table = table(CLASSIC);
    table.on_assign(offer(1), Inputs::Inside);
    assert_eq!(all(&mut table), [JobOrder::Run(offer(1), RunAttempt::UNSAID)]);
    table.on_ended(id(1), "done".into(), false);
    assert_eq!(all(&mut table), [answer(1, "done"), JobOrder::Clean { job: id(1) }, LATE_CREDIT]);
    assert_eq!(table.unsettled(), 0);
}

#[test]
fn c17_an_ended_job_is_answered_from_the_store_and_its_credit_returned() {
    for features in [OURS, CLASSIC] {
        let mut table = table(features);
        for repeat in [false, true] {
            table.on_assign(offer(1), Inputs::Inside);
            table.on_start(id(1), numbers(1, 1));
            match repeat {
                false => {
                    table.on_ended(id(1), "done".into(), false);
                    table.on_settled(id(1), 1);
                    all(&mut table);
                }
                true if features == OURS => {
                    assert_eq!(all(&mut table), [answer(1, "done"), EARLY_CREDIT])
                }
                // A classic leader sends no Start; this one only shows that it does no harm.
                true => {
                    assert_eq!(
                        all(&mut table),
                        [answer(1, "done"), EARLY_CREDIT, answer(1, "done")]
                    )
                }
            }
        }
    }
}

#[test]
fn dd01_a_running_job_is_not_started_twice_and_takes_the_new_attempt() {
    let mut table = started(1);
    table.on_assign(offer(1), Inputs::Inside);
    table.on_start(id(1), numbers(1, 3));
    assert_eq!(all(&mut table), [running(1, 1, 3), EARLY_CREDIT]);
    assert_eq!(table.numbers(id(1)), Some(numbers(1, 3)));
}

#[test]
fn a_later_run_stops_the_earlier_one_and_starts_when_it_has_ended() {
    let mut table = started(1);
    table.on_assign(offer(1), Inputs::Inside);
    table.on_start(id(1), numbers(2, 1));
    assert!(matches!(all(&mut table).as_slice(), [JobOrder::Stop { .. }]));
    table.on_ended(id(1), "old".into(), false);
    let todo = all(&mut table);
    let run = JobOrder::Run(offer(1), numbers(2, 1));
    assert_eq!(todo, [JobOrder::Clean { job: id(1) }, running(1, 2, 1), run, LATE_CREDIT]);
    table.on_ended(id(1), "new".into(), false);
    assert_eq!(all(&mut table), [answer(1, "new"), LATE_CREDIT]);
    table.on_settled(id(1), 1);
    assert_eq!(all(&mut table), [], "of the wrong run");
    table.on_assign(offer(1), Inputs::Inside);
    table.on_start(id(1), numbers(3, 1));
    assert_eq!(all(&mut table).len(), 2, "a run that has not ended here is run");
}

#[test]
fn a_lost_connection_keeps_running_jobs_and_unsettled_results() {
    let mut table = started(1);
    table.on_assign(offer(2), Inputs::Inside);
    table.on_start(id(2), numbers(1, 1));
    table.on_assign(offer(3), Inputs::Inside);
    table.on_ended(id(2), "two".into(), false);
    all(&mut table);
    table.on_lost();
    assert_eq!(table.room(), 1);
    table.on_ended(id(1), "one".into(), false);
    assert_eq!(all(&mut table), [LATE_CREDIT], "nobody to tell");
    table.on_lost();
    table.on_leader(OURS);
    assert_eq!(all(&mut table), [answer(2, "two"), answer(1, "one")]);
    assert_eq!((table.room(), table.unsettled()), (2, 2));
    table.on_start(id(3), numbers(1, 1));
    assert_eq!(all(&mut table), [], "what had not started is forgotten");
}

#[test]
fn jobs_that_come_before_the_leader_is_known_wait_for_it() {
    let mut table = JobTable::new(2, Backlog::default());
    table.on_assign(offer(1), Inputs::Inside);
    table.on_assign(offer(2), Inputs::Inside);
    assert_eq!(all(&mut table), []);
    table.on_leader(CLASSIC);
    assert_eq!(all(&mut table).len(), 2);
    table.on_leader(OURS);
    table.on_start(id(1), numbers(1, 1));
    assert_eq!(
        all(&mut table),
        [running(1, 1, 1)],
        "a Welcome that comes late: the job runs already"
    );
}

#[test]
fn more_jobs_than_places_wait_in_order_and_keep_their_leases() {
    let mut table = table(OURS);
    for number in 1..=3 {
        table.on_assign(offer(number), Inputs::Inside);
        table.on_start(id(number), numbers(1, 1));
    }
    all(&mut table);
    assert_eq!((table.running(), table.held().len(), table.room()), (2, 3, 0));
    table.on_ended(id(1), "done".into(), false);
    let run = JobOrder::Run(offer(3), numbers(1, 1));
    assert_eq!(all(&mut table), [answer(1, "done"), LATE_CREDIT, running(3, 1, 1), run]);
}

#[test]
fn cancel_reaches_a_job_in_every_state_and_only_the_attempt_it_means() {
    let mut table = started(1);
    table.on_cancel(id(1), 2, "stale");
    assert_eq!(all(&mut table), []);
    table.on_cancel(id(1), 0, "by client");
    let reason = StopReason::Cancelled { text: "by client".into() };
    assert_eq!(all(&mut table), [JobOrder::Stop { job: id(1), reason }]);

    table.on_assign(offer(2), Inputs::Inside);
    table.on_cancel(id(2), 1, "not wanted");
    let todo = all(&mut table);
    let [JobOrder::Answer { job, payload }, JobOrder::Clean { .. }, EARLY_CREDIT] = todo.as_slice()
    else {
        panic!("{todo:?}")
    };
    let text = std::str::from_utf8(payload).unwrap();
    assert!(
        *job == id(2) && text.contains("\"CANCELLED\"") && text.contains("cancelled: not wanted"),
        "{text}"
    );
    table.on_cancel(id(9), 0, "unknown");
    assert_eq!(all(&mut table), []);

    // Inputs that come for a later attempt are not those that it means.
    table.on_assign(offer(3), Inputs::Coming);
    table.on_open(id(3), 2);
    table.on_cancel(id(3), 1, "stale");
    assert_eq!(all(&mut table), []);
    table.on_cancel(id(3), 2, "not wanted");
    assert!(!table.is_under_way(id(3)));
}

#[test]
fn a_stopping_worker_takes_nothing_and_offers_nothing() {
    let mut table = started(1);
    table.on_stop();
    table.on_assign(offer(2), Inputs::Inside);
    table.on_start(id(2), numbers(1, 1));
    assert_eq!((all(&mut table), table.room()), (vec![], 0));
    table.on_ended(id(1), "done".into(), false);
    assert_eq!(all(&mut table), [answer(1, "done")]);
}

#[test]
fn a_leader_that_ignores_the_credit_cannot_fill_the_memory() {
    let mut table = table(OURS);
    let big = Bytes::from(vec![0; ASSIGNED_BYTES_MAX / 2]);
    for number in 0..10 {
        table.on_assign(Offer(Arc::new(Job::new(id(number), "", big.clone()))), Inputs::Inside);
    }
    assert_eq!(table.assigned.len(), 3);
}

const TRANSFERS: Features = OURS.with(Features::TRANSFERS);

/// A job with an input that comes by transfer.
fn sent(number: u128) -> Offer {
    let payload = format!(
        r#"{{"JobId":"{}","ClientId":"c","ExecName":"x","Args":[],"Files":[{{"Name":"f","Blob":{{"Id":"{}","Size":1}}}}]}}"#,
        id(number),
        id(number + 1000)
    );
    Offer(Arc::new(Job::new(id(number), "", payload)))
}

fn forget(number: u128) -> JobOrder {
    JobOrder::Forget { job: id(number) }
}

#[test]
fn a_job_runs_when_it_has_start_and_all_inputs_in_either_order() {
    for start_first in [true, false] {
        let mut table = table(TRANSFERS);
        table.on_assign(sent(1), Inputs::Coming);
        table.on_open(id(1), 4);
        assert_eq!(
            table.held(),
            [HeldJob { job: id(1), run: 0, attempt: 4 }],
            "no run before Start"
        );
        for step in [start_first, !start_first] {
            assert_eq!(all(&mut table), []);
            match step {
                true => table.on_start(id(1), numbers(1, 4)),
                false => table.on_received(id(1)),
            }
        }
        assert_eq!(all(&mut table), [running(1, 1, 4), JobOrder::Run(sent(1), numbers(1, 4))]);
    }
}

#[test]
fn inputs_outlive_a_lost_connection_and_hold_their_place() {
    let mut table = table(TRANSFERS);
    table.on_assign(sent(1), Inputs::Coming);
    table.on_open(id(1), 1);
    table.on_start(id(1), numbers(1, 1));
    table.on_assign(offer(2), Inputs::Inside);
    table.on_lost();
    assert_eq!((table.room(), table.held()), (1, vec![HeldJob { job: id(1), run: 0, attempt: 1 }]));
    table.on_leader(TRANSFERS);
    table.on_received(id(1));
    assert_eq!(all(&mut table), [], "the Start of the old connection counts for nothing");
    table.on_assign(sent(1), Inputs::Here);
    assert_eq!(all(&mut table), [EARLY_CREDIT], "given again, though its place was never free");
    table.on_start(id(1), numbers(1, 2));
    assert_eq!(all(&mut table), [running(1, 1, 2), JobOrder::Run(sent(1), numbers(1, 2))]);
}

#[test]
fn inputs_of_a_job_that_waits_for_a_place_or_was_about_to_run_are_kept_too() {
    let mut table = table(TRANSFERS);
    for number in 1..=3 {
        table.on_assign(sent(number), Inputs::Here);
        table.on_start(id(number), numbers(1, 1));
    }
    assert_eq!((table.running(), table.held().len()), (2, 3));
    // Nothing was worked off yet: the leader has not heard that they run.
    table.on_lost();
    assert_eq!((table.running(), table.held().len(), table.room()), (0, 3, 0));
    assert_eq!(all(&mut table), []);
    table.on_leader(TRANSFERS);
    table.on_start(id(2), numbers(1, 1));
    assert_eq!(all(&mut table), [running(2, 1, 1), JobOrder::Run(sent(2), numbers(1, 1))]);
}

#[test]
fn what_was_received_is_dropped_when_the_job_is_not_to_run_here() {
    let mut table = table(TRANSFERS);
    table.on_assign(sent(1), Inputs::Coming);
    table.on_cancel(id(1), 1, "elsewhere");
    let todo = all(&mut table);
    assert_eq!(todo.first(), Some(&forget(1)));
    assert!(todo.contains(&JobOrder::Clean { job: id(1) }) && todo.contains(&EARLY_CREDIT));

    table.on_assign(sent(2), Inputs::Coming);
    table.on_abandoned(id(2));
    table.on_abandoned(id(2));
    assert_eq!(all(&mut table), [forget(2), EARLY_CREDIT]);

    table.on_assign(sent(3), Inputs::Coming);
    table.on_lost();
    table.on_leader(CLASSIC);
    assert_eq!(all(&mut table), [forget(3)], "another leader");

    table.on_lost();
    table.on_leader(TRANSFERS);
    table.on_assign(sent(4), Inputs::Coming);
    table.on_stop();
    table.on_assign(sent(5), Inputs::Coming);
    assert_eq!(all(&mut table), [forget(4), forget(5)]);
    assert_eq!((table.held(), table.room()), (vec![], 0));
}

#[test]
fn a_large_result_is_returned_to_who_takes_it_and_not_kept_when_settled() {
    let result = crate::model::JobResult::new(id(1), "c", "x", JobStatus::Ok);
    let large = Arc::new(Large { result, parts: Vec::new() });
    let answer = Answer { payload: "small".into(), large: Some(large.clone()) };
    let mut table = table(TRANSFERS);
    table.on_assign(offer(1), Inputs::Inside);
    table.on_start(id(1), numbers(1, 1));
    all(&mut table);
    table.on_ended(id(1), answer, false);
    let back = JobOrder::Return { job: id(1), numbers: numbers(1, 1), large };
    assert_eq!(all(&mut table), [back.clone(), LATE_CREDIT]);
    table.on_lost();
    table.on_leader(OURS);
    let small = JobOrder::Answer { job: id(1), payload: "small".into() };
    assert_eq!(all(&mut table), [small], "a leader without transfers");
    table.on_lost();
    table.on_leader(TRANSFERS);
    assert_eq!(all(&mut table), [back], "and one with them");
    table.on_settled(id(1), 1);
    assert_eq!(all(&mut table), [JobOrder::Clean { job: id(1) }]);
    table.on_assign(offer(1), Inputs::Inside);
    table.on_start(id(1), numbers(1, 2));
    assert_eq!(all(&mut table).len(), 2, "its files are gone, so it would run again");
}

#[test]
fn a_result_in_memory_holds_its_place_until_it_is_settled() {
    let ended = |number| {
        let part = result_encoding::Part {
            id: id(99),
            purpose: chunking::message::Purpose::Archive,
            bytes: 3,
            content: crate::worker::Content::Memory("zip".into()),
        };
        let result = crate::model::JobResult::new(id(number), "c", "x", JobStatus::Ok);
        let large = Large { result, parts: vec![part] };
        Answer { payload: "small".into(), large: Some(Arc::new(large)) }
    };
    let mut table = table(TRANSFERS);
    for number in [1, 2] {
        table.on_assign(offer(number), Inputs::Inside);
        table.on_start(id(number), numbers(1, 1));
        table.on_ended(id(number), ended(number), false);
    }
    assert!(!all(&mut table).contains(&LATE_CREDIT));
    assert_eq!((table.running(), table.room()), (0, 0));
    table.on_settled(id(1), 1);
    assert_eq!(all(&mut table), [LATE_CREDIT, JobOrder::Clean { job: id(1) }]);
    assert_eq!(table.room(), 1);
    table.on_lost();
    table.on_leader(CLASSIC);
    let small = JobOrder::Answer { job: id(2), payload: "small".into() };
    assert_eq!(
        all(&mut table),
        [small, LATE_CREDIT, JobOrder::Clean { job: id(2) }],
        "sent is settled"
    );
    assert_eq!(table.room(), 2);
}

#[test]
fn results_on_the_disk_wait_without_their_places_up_to_a_number_and_a_size() {
    let ended = |number, bytes| {
        let part = result_encoding::Part {
            id: id(99),
            purpose: chunking::message::Purpose::Archive,
            bytes,
            content: crate::worker::Content::File("/nowhere".into()),
        };
        let result = crate::model::JobResult::new(id(number), "c", "x", JobStatus::Ok);
        Answer {
            payload: "small".into(),
            large: Some(Arc::new(Large { result, parts: vec![part] })),
        }
    };
    let mut table = JobTable::new(2, Backlog { results_max: 3, bytes_max: 100 });
    table.on_leader(TRANSFERS);
    let run = |table: &mut JobTable, number, bytes| {
        table.on_assign(offer(number), Inputs::Inside);
        table.on_start(id(number), numbers(1, 1));
        all(table);
        table.on_ended(id(number), ended(number, bytes), false);
        all(table).contains(&LATE_CREDIT)
    };
    assert!(
        run(&mut table, 1, 60) && run(&mut table, 2, 30),
        "the leader has neither, and jobs go on"
    );
    assert!(!run(&mut table, 3, 20), "too many bytes");
    assert_eq!((table.running(), table.room(), table.held().len()), (0, 1, 3));
    assert!(!run(&mut table, 4, 90), "and no more places");
    assert_eq!(table.room(), 0);
    table.on_settled(id(2), 1);
    assert_eq!(all(&mut table), [LATE_CREDIT, JobOrder::Clean { job: id(2) }]);
    table.on_lost();
    assert_eq!(table.room(), 1, "the next connection is offered no more");
    table.on_leader(TRANSFERS);
    all(&mut table);
    table.on_settled(id(4), 1);
    assert_eq!(all(&mut table), [LATE_CREDIT, JobOrder::Clean { job: id(4) }]);
    assert_eq!(table.room(), 2);
}

#[test]
fn ca11_a_job_that_waits_for_datasets_holds_its_place_and_goes_back_if_they_cannot_be_here() {
    let named = |number: u128| {
        let json = format!(
            r#"{{"JobId":"{}","ClientId":"c","ExecName":"x","Files":[{{"Name":"a","CacheId":"dataset"}}]}}"#,
            id(number)
        );
        Offer(Arc::new(Job::new(id(number), "", json.into_bytes())))
    };
    let mut table = table(OURS);
    table.on_assign(named(1), Inputs::Datasets);
    table.on_start(id(1), numbers(1, 1));
    assert_eq!((all(&mut table), table.room()), (vec![], 1), "it waits");
    assert_eq!(table.held(), [HeldJob { job: id(1), run: 1, attempt: 1 }]);
    table.on_received(id(1));
    assert_eq!(all(&mut table), [running(1, 1, 1), JobOrder::Run(named(1), numbers(1, 1))]);
    assert!(table.is_under_way(id(1)));

    table.on_assign(named(2), Inputs::Datasets);
    table.on_start(id(2), numbers(1, 1));
    table.on_unfit(id(2), "no room");
    let todo = all(&mut table);
    assert_eq!(todo[0], JobOrder::Forget { job: id(2) });
    let JobOrder::Answer { payload, .. } = &todo[1] else { panic!("{todo:?}") };
    let result = <crate::model::JobResult as crate::model::JsonModel>::parse(payload).unwrap();
    assert_eq!((result.status, result.stderr.as_str()), (JobStatus::Cancelled, "no room\n"));
    assert_eq!(todo[2..], [JobOrder::Clean { job: id(2) }, EARLY_CREDIT]);
    assert!(!table.is_under_way(id(2)) && table.held().len() == 1);

    // After a lost connection it is the leader's to give again.
    table.on_assign(named(3), Inputs::Datasets);
    table.on_lost();
    assert!(!table.is_under_way(id(3)));
    table.on_leader(CLASSIC);
    assert!(all(&mut table).is_empty());
}

/// Where job 1 is.
fn place(table: &JobTable) -> String {
    let mut places = Vec::new();
    if let Some(assigned) = table.assigned.iter().find(|assigned| assigned.offer.job() == id(1)) {
        places.push(match (assigned.inputs, assigned.started.is_some()) {
            (Inputs::Coming | Inputs::Datasets, false) => "receiving",
            (Inputs::Coming | Inputs::Datasets, true) => "receiving, started",
            (Inputs::Inside | Inputs::Here, _) => "assigned",
        });
    }
    if table.waiting.iter().any(|(offer, _)| offer.job() == id(1)) {
        places.push("waiting");
    }
    match table.running.get(&id(1)).map(|running| running.next.is_some()) {
        Some(false) => places.push("running"),
        Some(true) => places.push("running, run 2 next"),
        None => {}
    }
    match table.results.get(id(1)).map(|stored| stored.settled) {
        Some(false) => places.push("ended"),
        Some(true) => places.push("settled"),
        None => {}
    }
    if places.is_empty() { "unknown".to_owned() } else { places.join(" + ") }
}

#[test]
fn transition_table_of_a_workers_job() {
    use crate::transitions::{Event, State, assert_table};
    fn one_place() -> JobTable {
        let mut table = JobTable::new(1, Backlog::default());
        table.on_leader(OURS);
        table
    }
    fn assigned(inputs: Inputs) -> JobTable {
        let mut table = one_place();
        table.on_assign(offer(1), inputs);
        table
    }
    fn runs() -> JobTable {
        let mut table = assigned(Inputs::Inside);
        table.on_start(id(1), numbers(1, 1));
        table
    }
    fn ended() -> JobTable {
        let mut table = runs();
        table.on_ended(id(1), "done".into(), false);
        table
    }
    let states: [State<JobTable>; 9] = [
        ("unknown", one_place),
        ("receiving", || assigned(Inputs::Coming)),
        ("receiving, started", || {
            let mut table = assigned(Inputs::Coming);
            table.on_start(id(1), numbers(1, 1));
            table
        }),
        ("assigned", || assigned(Inputs::Inside)),
        ("waiting", || {
            let mut table = one_place();
            for number in [2, 1] {
                table.on_assign(offer(number), Inputs::Inside);
                table.on_start(id(number), numbers(1, 1));
            }
            table
        }),
        ("running", runs),
        ("running, run 2 next", || {
            let mut table = runs();
            table.on_assign(offer(1), Inputs::Inside);
            table.on_start(id(1), numbers(2, 1));
            table
        }),
        ("ended", ended),
        ("settled", || {
            let mut table = ended();
            table.on_settled(id(1), 1);
            table
        }),
    ];
    let events: [Event<JobTable>; 16] = [
        ("assign, inputs with it", |table| table.on_assign(offer(1), Inputs::Inside)),
        ("assign, inputs coming", |table| table.on_assign(offer(1), Inputs::Coming)),
        ("assign and start of run 2", |table| {
            table.on_assign(offer(1), Inputs::Inside);
            table.on_start(id(1), numbers(2, 1));
        }),
        ("received", |table| table.on_received(id(1))),
        ("start", |table| table.on_start(id(1), numbers(1, 1))),
        ("abandoned", |table| table.on_abandoned(id(1))),
        ("unfit", |table| table.on_unfit(id(1), "no room")),
        ("cancel", |table| table.on_cancel(id(1), 0, "not needed")),
        ("cancel of another attempt", |table| table.on_cancel(id(1), 7, "not needed")),
        ("ended", |table| table.on_ended(id(1), "done".into(), false)),
        ("ended, given up", |table| table.on_ended(id(1), "stopped".into(), true)),
        ("another job ended", |table| table.on_ended(id(2), "done".into(), false)),
        ("settled", |table| table.on_settled(id(1), 1)),
        ("unwanted", |table| table.on_unwanted(id(1))),
        ("connection lost", JobTable::on_lost),
        ("worker stops", JobTable::on_stop),
    ];
    assert_table("src/worker/job_table.transitions.txt", &states, &events, place);
}
