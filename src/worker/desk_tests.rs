use super::*;

const OURS: Features = Features::LEASES.with(Features::PROGRESS).with(Features::CANCEL);
const STOCK: Features = Features(0);

fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn offer(number: u128) -> Offer {
    Offer(Arc::new(Job::new(id(number), "", &b"raw"[..])))
}

fn numbers(run: u32, attempt: u32) -> Numbers {
    Numbers { run: Some(run), attempt }
}

fn desk(features: Features) -> Desk {
    let mut desk = Desk::new(2);
    desk.on_leader(features);
    desk
}

fn all(desk: &mut Desk) -> Vec<Todo> {
    std::iter::from_fn(|| desk.poll()).collect()
}

fn running(number: u128, run: u32, attempt: u32) -> Todo {
    Todo::SayRunning { job: id(number), run, attempt }
}

fn answer(number: u128, payload: &'static str) -> Todo {
    Todo::Answer { job: id(number), payload: payload.into() }
}

const EARLY_CREDIT: Todo = Todo::ReturnCredit { after_job: false };
const LATE_CREDIT: Todo = Todo::ReturnCredit { after_job: true };

fn started(number: u128) -> Desk {
    let mut desk = desk(OURS);
    desk.on_assign(offer(number), Inputs::Inside);
    desk.on_start(id(number), 1, 1);
    assert_eq!(all(&mut desk), [running(number, 1, 1), Todo::Run(offer(number), numbers(1, 1))]);
    desk
}

#[test]
fn a_job_of_ours_runs_at_start_after_progress_and_is_cleaned_when_settled() {
    let mut desk = desk(OURS);
    desk.on_assign(offer(1), Inputs::Inside);
    assert_eq!(all(&mut desk), []);
    desk.on_start(id(1), 1, 2);
    assert_eq!(all(&mut desk), [running(1, 1, 2), Todo::Run(offer(1), numbers(1, 2))]);
    assert_eq!(desk.held(), [HeldJob { job: id(1), run: 1, attempt: 2 }]);
    desk.on_ended(id(1), "done".into(), false);
    assert_eq!(all(&mut desk), [answer(1, "done"), LATE_CREDIT]);
    assert_eq!(desk.held(), [HeldJob { job: id(1), run: 1, attempt: 2 }], "held until it is settled");
    desk.on_settled(id(1), 1);
    desk.on_settled(id(1), 1);
    assert_eq!(all(&mut desk), [Todo::Clean { job: id(1) }]);
    assert_eq!(desk.held(), []);
}

#[test]
fn a_job_of_a_stock_leader_runs_at_once_and_is_cleaned_when_sent() {
    let mut desk = desk(STOCK);
    desk.on_assign(offer(1), Inputs::Inside);
    assert_eq!(all(&mut desk), [Todo::Run(offer(1), Numbers::UNSAID)]);
    desk.on_ended(id(1), "done".into(), false);
    assert_eq!(all(&mut desk), [answer(1, "done"), Todo::Clean { job: id(1) }, LATE_CREDIT]);
    assert_eq!(desk.unsettled(), 0);
}

#[test]
fn c17_an_ended_job_is_answered_from_the_store_and_its_credit_returned() {
    for features in [OURS, STOCK] {
        let mut desk = desk(features);
        for repeat in [false, true] {
            desk.on_assign(offer(1), Inputs::Inside);
            desk.on_start(id(1), 1, 1);
            match repeat {
                false => {
                    desk.on_ended(id(1), "done".into(), false);
                    desk.on_settled(id(1), 1);
                    all(&mut desk);
                }
                true if features == OURS => assert_eq!(all(&mut desk), [answer(1, "done"), EARLY_CREDIT]),
                // A stock leader sends no Start; this one only shows that it does no harm.
                true => assert_eq!(all(&mut desk), [answer(1, "done"), EARLY_CREDIT, answer(1, "done")]),
            }
        }
    }
}

#[test]
fn dd01_a_running_job_is_not_started_twice_and_takes_the_new_attempt() {
    let mut desk = started(1);
    desk.on_assign(offer(1), Inputs::Inside);
    desk.on_start(id(1), 1, 3);
    assert_eq!(all(&mut desk), [running(1, 1, 3), EARLY_CREDIT]);
    assert_eq!(desk.numbers(id(1)), Some(numbers(1, 3)));
}

#[test]
fn a_later_run_stops_the_earlier_one_and_starts_when_it_has_ended() {
    let mut desk = started(1);
    desk.on_assign(offer(1), Inputs::Inside);
    desk.on_start(id(1), 2, 1);
    assert!(matches!(all(&mut desk).as_slice(), [Todo::Stop { .. }]));
    desk.on_ended(id(1), "old".into(), false);
    let todo = all(&mut desk);
    let run = Todo::Run(offer(1), numbers(2, 1));
    assert_eq!(todo, [Todo::Clean { job: id(1) }, running(1, 2, 1), run, LATE_CREDIT]);
    desk.on_ended(id(1), "new".into(), false);
    assert_eq!(all(&mut desk), [answer(1, "new"), LATE_CREDIT]);
    desk.on_settled(id(1), 1);
    assert_eq!(all(&mut desk), [], "of the wrong run");
    desk.on_assign(offer(1), Inputs::Inside);
    desk.on_start(id(1), 3, 1);
    assert_eq!(all(&mut desk).len(), 2, "a run that has not ended here is run");
}

#[test]
fn a_lost_connection_keeps_running_jobs_and_unsettled_results() {
    let mut desk = started(1);
    desk.on_assign(offer(2), Inputs::Inside);
    desk.on_start(id(2), 1, 1);
    desk.on_assign(offer(3), Inputs::Inside);
    desk.on_ended(id(2), "two".into(), false);
    all(&mut desk);
    desk.on_lost();
    assert_eq!(desk.room(), 1);
    desk.on_ended(id(1), "one".into(), false);
    assert_eq!(all(&mut desk), [LATE_CREDIT], "nobody to tell");
    desk.on_lost();
    desk.on_leader(OURS);
    assert_eq!(all(&mut desk), [answer(2, "two"), answer(1, "one")]);
    assert_eq!((desk.room(), desk.unsettled()), (2, 2));
    desk.on_start(id(3), 1, 1);
    assert_eq!(all(&mut desk), [], "what had not started is forgotten");
}

#[test]
fn jobs_that_come_before_the_leader_is_known_wait_for_it() {
    let mut desk = Desk::new(2);
    desk.on_assign(offer(1), Inputs::Inside);
    desk.on_assign(offer(2), Inputs::Inside);
    assert_eq!(all(&mut desk), []);
    desk.on_leader(STOCK);
    assert_eq!(all(&mut desk).len(), 2);
    desk.on_leader(OURS);
    desk.on_start(id(1), 1, 1);
    assert_eq!(all(&mut desk), [running(1, 1, 1)], "a Welcome that comes late: the job runs already");
}

#[test]
fn more_jobs_than_places_wait_in_order_and_keep_their_leases() {
    let mut desk = desk(OURS);
    for number in 1..=3 {
        desk.on_assign(offer(number), Inputs::Inside);
        desk.on_start(id(number), 1, 1);
    }
    all(&mut desk);
    assert_eq!((desk.running(), desk.held().len(), desk.room()), (2, 3, 0));
    desk.on_ended(id(1), "done".into(), false);
    let run = Todo::Run(offer(3), numbers(1, 1));
    assert_eq!(all(&mut desk), [answer(1, "done"), LATE_CREDIT, running(3, 1, 1), run]);
}

#[test]
fn cancel_reaches_a_job_in_every_state_and_only_the_attempt_it_means() {
    let mut desk = started(1);
    desk.on_cancel(id(1), 2, "stale");
    assert_eq!(all(&mut desk), []);
    desk.on_cancel(id(1), 0, "by client");
    let reason = StopReason::Cancelled { text: "by client".into() };
    assert_eq!(all(&mut desk), [Todo::Stop { job: id(1), reason }]);

    desk.on_assign(offer(2), Inputs::Inside);
    desk.on_cancel(id(2), 1, "not wanted");
    let todo = all(&mut desk);
    let [Todo::Answer { job, payload }, Todo::Clean { .. }, EARLY_CREDIT] = todo.as_slice() else {
        panic!("{todo:?}")
    };
    let text = std::str::from_utf8(payload).unwrap();
    assert!(
        *job == id(2) && text.contains("\"CANCELLED\"") && text.contains("cancelled: not wanted"),
        "{text}"
    );
    desk.on_cancel(id(9), 0, "unknown");
    assert_eq!(all(&mut desk), []);
}

#[test]
fn a_stopping_worker_takes_nothing_and_offers_nothing() {
    let mut desk = started(1);
    desk.on_stop();
    desk.on_assign(offer(2), Inputs::Inside);
    desk.on_start(id(2), 1, 1);
    assert_eq!((all(&mut desk), desk.room()), (vec![], 0));
    desk.on_ended(id(1), "done".into(), false);
    assert_eq!(all(&mut desk), [answer(1, "done")]);
}

#[test]
fn a_leader_that_ignores_the_credit_cannot_fill_the_memory() {
    let mut desk = desk(OURS);
    let big = Bytes::from(vec![0; ASSIGNED_BYTES_MAX / 2]);
    for number in 0..10 {
        desk.on_assign(Offer(Arc::new(Job::new(id(number), "", big.clone()))), Inputs::Inside);
    }
    assert_eq!(desk.assigned.len(), 3);
}
