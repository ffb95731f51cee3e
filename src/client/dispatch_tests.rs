//! The rules of SPEC 1M as events: each test asserts every action, and that none is left.

use super::*;

const SECOND: u64 = 1_000_000;

struct World {
    dispatch: Dispatch,
    now: Micros,
}

fn job(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

fn first(conn: Conn, number: u128) -> Action {
    Action::Send { conn, job: job(number), again: false }
}

fn again(conn: Conn, number: u128) -> Action {
    Action::Send { conn, job: job(number), again: true }
}

impl World {
    fn new(conns: usize, policy: Policy) -> Self {
        World { dispatch: Dispatch::new(conns, policy, GRACE), now: Micros(0) }
    }

    /// All connections up.
    fn up(conns: usize, policy: Policy) -> Self {
        let mut world = World::new(conns, policy);
        (0..conns).for_each(|conn| world.does(Event::Up(conn), &[]));
        world
    }

    #[track_caller]
    fn does(&mut self, event: Event, actions: &[Action]) {
        self.dispatch.handle(self.now, event);
        let done: Vec<Action> = std::iter::from_fn(|| self.dispatch.poll_action()).collect();
        assert_eq!(done, actions);
    }
}

#[test]
fn cl04_round_robin_takes_the_live_connections_in_turn() {
    let mut world = World::up(3, Policy::RoundRobin);
    for (number, conn) in [(1, 0), (2, 1), (3, 2), (4, 0)] {
        world.does(Event::Submit(job(number)), &[first(conn, number)]);
    }
    world.does(Event::Down(1, vec![]), &[]);
    world.does(Event::Submit(job(5)), &[first(2, 5)]);
    world.does(Event::Submit(job(6)), &[first(0, 6)]);
    world.does(Event::Submit(job(7)), &[first(2, 7)]);
}

#[test]
fn cl04_least_in_flight_takes_the_one_with_fewest_and_equals_in_turn() {
    let mut world = World::up(3, Policy::LeastInFlight);
    for (number, conn) in [(1, 0), (2, 1), (3, 2), (4, 0)] {
        world.does(Event::Submit(job(number)), &[first(conn, number)]);
    }
    world.does(Event::Ended(job(3)), &[Action::Deliver(job(3))]);
    world.does(Event::Submit(job(5)), &[first(2, 5)]);
    world.does(Event::Ended(job(1)), &[Action::Deliver(job(1))]);
    world.does(Event::Ended(job(4)), &[Action::Deliver(job(4))]);
    world.does(Event::Submit(job(6)), &[first(0, 6)]);
    world.does(Event::Submit(job(7)), &[first(1, 7)]);
}

#[test]
fn cl05_what_was_not_sent_goes_to_another_live_connection_at_once() {
    let mut world = World::up(2, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::NotSent(0, job(1)), &[first(1, 1)]);
    world.does(Event::Submit(job(2)), &[first(1, 2)]);
    assert_eq!((world.dispatch.in_flight(0), world.dispatch.in_flight(1)), (0, 2));
}

#[test]
fn cl05_without_a_live_connection_jobs_wait_and_go_out_in_order() {
    let mut world = World::new(2, Policy::RoundRobin);
    for number in [1, 2, 3] {
        world.does(Event::Submit(job(number)), &[]);
    }
    assert_eq!(world.dispatch.pending(), 3);
    assert_eq!(world.dispatch.next_deadline(), None);
    world.does(Event::Up(1), &[first(1, 1), first(1, 2), first(1, 3)]);
    // A frame that was still in the outbox was certainly not sent; the one that left it stays in
    // flight.
    world.does(Event::Down(1, vec![job(2), job(3)]), &[]);
    assert_eq!(world.dispatch.pending(), 2);
    world.does(Event::Up(0), &[first(0, 2), first(0, 3)]);
}

#[test]
fn cl06_a_job_is_in_flight_on_one_connection_and_submitted_once() {
    let mut world = World::up(2, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Submit(job(1)), &[]);
    world.does(Event::NotSent(1, job(1)), &[]);
    assert_eq!(world.dispatch.conn_of(job(1)), Some(0));
}

#[test]
fn cl07_after_the_grace_jobs_of_a_dead_connection_move_with_the_same_id() {
    let mut world = World::up(2, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Submit(job(2)), &[first(1, 2)]);
    world.now = Micros(5 * SECOND);
    world.does(Event::Down(0, vec![]), &[]);
    assert_eq!(world.dispatch.next_deadline(), Some(Micros(15 * SECOND)));
    world.now = Micros(15 * SECOND - 1);
    world.does(Event::Tick, &[]);
    world.now = Micros(15 * SECOND);
    world.does(Event::Tick, &[Action::Moved { from: 0, job: job(1) }, again(1, 1)]);
    assert_eq!(world.dispatch.next_deadline(), None);
    assert_eq!(world.dispatch.conn_of(job(1)), Some(1));
}

#[test]
fn cl07_a_connection_that_returns_within_the_grace_keeps_its_jobs_and_hears_of_them_again() {
    let mut world = World::up(2, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Submit(job(2)), &[first(1, 2)]);
    world.does(Event::Submit(job(3)), &[first(0, 3)]);
    world.does(Event::Down(0, vec![]), &[]);
    world.now = Micros(9 * SECOND);
    world.does(Event::Up(0), &[again(0, 1), again(0, 3)]);
    assert_eq!(world.dispatch.next_deadline(), None);
    world.now = Micros(30 * SECOND);
    world.does(Event::Tick, &[]);
}

#[test]
fn cl07_with_nobody_else_alive_moved_jobs_wait_for_whoever_comes_first() {
    let mut world = World::up(1, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Down(0, vec![]), &[]);
    world.now = Micros(10 * SECOND);
    world.does(Event::Tick, &[Action::Moved { from: 0, job: job(1) }]);
    assert!(world.dispatch.was_sent(job(1)));
    world.now = Micros(40 * SECOND);
    world.does(Event::Up(0), &[again(0, 1)]);
}

#[test]
fn cl07_the_grace_counts_from_the_first_sign() {
    let mut world = World::up(1, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Submit(job(2)), &[first(0, 2)]);
    world.does(Event::NotSent(0, job(2)), &[]);
    world.now = Micros(3 * SECOND);
    world.does(Event::Down(0, vec![]), &[]);
    assert_eq!(world.dispatch.next_deadline(), Some(Micros(10 * SECOND)));
}

#[test]
fn cl10_the_first_result_wins_from_whichever_connection_and_later_ones_are_counted() {
    let mut world = World::up(2, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Down(0, vec![]), &[]);
    world.now = Micros(10 * SECOND);
    world.does(Event::Tick, &[Action::Moved { from: 0, job: job(1) }, again(1, 1)]);
    world.does(Event::Up(0), &[]);
    world.does(Event::Ended(job(1)), &[Action::Deliver(job(1))]);
    world.does(Event::Ended(job(1)), &[]);
    world.does(Event::Ended(job(9)), &[]);
    assert_eq!((world.dispatch.late(), world.dispatch.unfinished()), (2, 0));
}

#[test]
fn cl10_a_result_for_a_job_that_waits_to_move_ends_it() {
    let mut world = World::up(1, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::Down(0, vec![]), &[]);
    world.now = Micros(10 * SECOND);
    world.does(Event::Tick, &[Action::Moved { from: 0, job: job(1) }]);
    world.does(Event::Ended(job(1)), &[Action::Deliver(job(1))]);
    world.does(Event::Up(0), &[]);
}

#[test]
fn a_draining_leader_gets_nothing_new_until_it_is_back() {
    let mut world = World::up(2, Policy::RoundRobin);
    world.does(Event::Submit(job(1)), &[first(0, 1)]);
    world.does(Event::TurnedAway(0, job(1)), &[first(1, 1)]);
    world.does(Event::Submit(job(2)), &[first(1, 2)]);
    world.does(Event::TurnedAway(1, job(2)), &[]);
    world.does(Event::Down(0, vec![]), &[]);
    world.does(Event::Up(0), &[first(0, 2)]);
}

#[test]
fn cp06_the_cap_is_divided_evenly_and_the_first_ones_get_the_rest() {
    for (total, conns, parts) in [
        (12, 3, vec![4, 4, 4]),
        (4, 3, vec![2, 1, 1]),
        (5, 3, vec![2, 2, 1]),
        (2, 3, vec![1, 1, 1]),
        (0, 2, vec![1, 1]),
        (7, 1, vec![7]),
        (7, 0, vec![]),
    ] {
        assert_eq!(split_cap(total, conns), parts, "{total} over {conns}");
    }
}

#[test]
fn policies_are_read_by_their_names() {
    for policy in Policy::ALL {
        assert_eq!(policy.name().parse(), Ok(policy));
    }
    assert!("fastest".parse::<Policy>().unwrap_err().contains("round-robin or least-in-flight"));
}

#[test]
fn transition_table_of_a_clients_job() {
    use crate::transitions::{Event as Told, State, assert_table};
    const JOB: Uuid = Uuid::from_u128(1);
    fn after(events: &[Event]) -> Dispatch {
        let mut dispatch = Dispatch::new(1, Policy::RoundRobin, GRACE);
        events.iter().for_each(|event| dispatch.handle(Micros(1), event.clone()));
        dispatch
    }
    fn tell(dispatch: &mut Dispatch, event: Event) {
        dispatch.handle(Micros(2), event);
    }
    let states: [State<Dispatch>; 7] = [
        ("down, no job", || after(&[])),
        ("down, pending", || after(&[Event::Submit(JOB)])),
        ("down, in flight", || {
            after(&[Event::Up(0), Event::Submit(JOB), Event::Down(0, Vec::new())])
        }),
        ("up, no job", || after(&[Event::Up(0)])),
        ("up, in flight", || after(&[Event::Up(0), Event::Submit(JOB)])),
        ("draining, pending", || {
            after(&[Event::Up(0), Event::Submit(JOB), Event::TurnedAway(0, JOB)])
        }),
        ("draining, no job", || {
            after(&[Event::Up(0), Event::Submit(JOB), Event::TurnedAway(0, JOB), Event::Ended(JOB)])
        }),
    ];
    let events: [Told<Dispatch>; 9] = [
        ("submit", |dispatch| tell(dispatch, Event::Submit(JOB))),
        ("up", |dispatch| tell(dispatch, Event::Up(0))),
        ("down", |dispatch| tell(dispatch, Event::Down(0, Vec::new()))),
        ("down, the job was not sent", |dispatch| tell(dispatch, Event::Down(0, vec![JOB]))),
        ("not sent", |dispatch| tell(dispatch, Event::NotSent(0, JOB))),
        ("turned away", |dispatch| tell(dispatch, Event::TurnedAway(0, JOB))),
        ("ended", |dispatch| tell(dispatch, Event::Ended(JOB))),
        ("tick within the grace", |dispatch| tell(dispatch, Event::Tick)),
        ("tick after the grace", |dispatch| {
            dispatch.handle(Micros(1).plus(GRACE * 2), Event::Tick)
        }),
    ];
    let name = |dispatch: &Dispatch| {
        let link = match dispatch.links[0] {
            Link::Up => "up",
            Link::Draining => "draining",
            Link::Down { .. } => "down",
        };
        let place = match dispatch.jobs.get(&JOB).map(|job| job.place) {
            None => "no job",
            Some(Place::Pending) => "pending",
            Some(Place::InFlight(_)) => "in flight",
        };
        format!("{link}, {place}")
    };
    assert_table("src/client/dispatch.transitions.txt", &states, &events, name);
}
