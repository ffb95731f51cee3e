#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;

const CLIENT: ConnId = ConnId(1);
const WORKER: ConnId = ConnId(2);
const OTHER_WORKER: ConnId = ConnId(3);
const JOB: JobId = JobId(Uuid::from_u128(7));
const NOW: Micros = Micros(1_000);
const WINDOW: u64 = FOLLOW_WINDOW_BYTES_MAX;

fn by(id: u128) -> FollowId {
    FollowId { conn: CLIENT, id: Uuid::from_u128(id) }
}

fn wish(flags: FollowFlags, began: u32, from: u64, until: u64) -> Follow {
    Follow { job: JOB.0, attempt: 0, began, stream: Stream::Stdout, flags, from, until }
}

fn staying() -> Follow {
    wish(FollowFlags::STAYS, 0, 0, u64::MAX)
}

fn at(conn: ConnId, attempt: u32) -> Standing {
    Standing::At { conn, worker: format!("w{}", conn.0).into(), attempt: Attempt(attempt) }
}

fn output(says: OutputSays, attempt: u32, began: u32, offset: u64) -> Output<'static> {
    Output::new(says, attempt, began, offset)
}

fn bytes(offset: u64, bytes: &'static [u8]) -> Output<'static> {
    Output { bytes, ..output(OutputSays::Bytes, 1, 1, offset) }
}

fn payload(output: &Output<'_>) -> Summed {
    let mut payload = Vec::new();
    output.encode(&mut payload);
    payload.into()
}

/// What a test sees of an action.
#[derive(Debug, PartialEq)]
enum Seen {
    /// A worker is asked: attempt, began, from, until.
    Asked(ConnId, u32, u32, u64, u64),
    /// A worker is told that it is over.
    Over(ConnId),
    /// The client is sent this: what, attempt, began, offset, text or bytes.
    Sent(OutputSays, u32, u32, u64, String),
    Fault(ConnId),
}

struct Scene {
    follows: Follows,
    /// The ids that workers were given, the last at the end.
    ids: Vec<Uuid>,
}

impl Scene {
    fn new() -> Self {
        Scene { follows: Follows::default(), ids: Vec::new() }
    }

    fn handle(&mut self, event: FollowEvent) -> Vec<Seen> {
        self.handle_at(NOW, event)
    }

    fn handle_at(&mut self, now: Micros, event: FollowEvent) -> Vec<Seen> {
        self.follows.handle(now, event);
        let actions: Vec<FollowAction> = std::iter::from_fn(|| self.follows.poll()).collect();
        let seen = actions.into_iter().map(|action| match action {
            FollowAction::Ask { conn, follow, .. } if follow.flags.has(FollowFlags::OVER) => {
                Seen::Over(conn)
            }
            FollowAction::Ask { conn, id, follow } => {
                self.ids.push(id);
                Seen::Asked(conn, follow.attempt, follow.began, follow.from, follow.until)
            }
            FollowAction::Send { payload, .. } => {
                let output = Output::decode(&payload).unwrap();
                let text = String::from_utf8_lossy(output.bytes).into_owned();
                Seen::Sent(output.says, output.attempt, output.began, output.offset, text)
            }
            FollowAction::Fault { conn, .. } => Seen::Fault(conn),
        });
        seen.collect()
    }

    fn wanted(&mut self, id: u128, follow: Follow, standing: Standing) -> Vec<Seen> {
        self.handle(FollowEvent::Wanted { by: by(id), follow, standing })
    }

    fn stands(&mut self, standing: Standing) -> Vec<Seen> {
        self.handle(FollowEvent::Stands { job: JOB, standing })
    }

    /// The worker that was asked last says this.
    fn said(&mut self, conn: ConnId, output: &Output<'_>) -> Vec<Seen> {
        let id = *self.ids.last().unwrap();
        self.handle(FollowEvent::Said { conn, id, payload: payload(output) })
    }

    fn is_bare(&self) -> bool {
        let Follows { follows, of_job, asked, due, actions, .. } = &self.follows;
        follows.is_empty()
            && of_job.is_empty()
            && asked.is_empty()
            && due.is_empty()
            && actions.is_empty()
    }
}

fn sent(says: OutputSays, attempt: u32, began: u32, offset: u64, text: &str) -> Seen {
    Seen::Sent(says, attempt, began, offset, text.to_owned())
}

/// A follow whose program has begun as attempt 1.
fn begun() -> Scene {
    let mut scene = Scene::new();
    assert_eq!(scene.wanted(1, staying(), at(WORKER, 1)), [Seen::Asked(WORKER, 1, 0, 0, WINDOW)]);
    assert_eq!(
        scene.said(WORKER, &output(OutputSays::Begins, 1, 1, 0)),
        [sent(OutputSays::Begins, 1, 1, 0, "w2")]
    );
    scene
}

#[test]
fn output_passes_as_it_is_and_the_end_of_the_job_follows_that_of_the_program() {
    let mut scene = begun();
    let piece = bytes(0, b"one\n");
    assert_eq!(scene.said(WORKER, &piece), [sent(OutputSays::Bytes, 1, 1, 0, "one\n")]);
    assert_eq!(
        scene.said(WORKER, &output(OutputSays::Lost, 1, 1, 100)),
        [sent(OutputSays::Lost, 1, 1, 100, "")]
    );
    assert_eq!(
        scene.said(WORKER, &output(OutputSays::Ends, 1, 1, 120)),
        [sent(OutputSays::Ends, 1, 1, 120, "")]
    );
    assert_eq!(scene.stands(at(WORKER, 1)), [], "the worker has nothing more of this attempt");
    assert_eq!(scene.stands(Standing::Ended), [sent(OutputSays::JobEnded, 1, 1, 100, "")]);
    assert!(scene.is_bare());
}

#[test]
fn the_last_output_of_an_ended_job_is_waited_for_a_while() {
    let mut scene = begun();
    assert_eq!(scene.stands(Standing::Ended), []);
    assert_eq!(scene.stands(Standing::Ended), []);
    let due = NOW.plus(FOLLOW_END_WAIT);
    assert_eq!(scene.follows.next_deadline(), Some(due));
    assert_eq!(scene.said(WORKER, &bytes(0, b"last")), [sent(OutputSays::Bytes, 1, 1, 0, "last")]);
    assert_eq!(scene.handle(FollowEvent::Tick), []);
    assert_eq!(
        scene.handle_at(due, FollowEvent::Tick),
        [sent(OutputSays::JobEnded, 1, 1, 4, ""), Seen::Over(WORKER)]
    );
    assert!(scene.is_bare());

    let mut scene = begun();
    scene.stands(Standing::Ended);
    assert_eq!(
        scene.said(WORKER, &output(OutputSays::Ends, 1, 1, 9)),
        [sent(OutputSays::Ends, 1, 1, 9, ""), sent(OutputSays::JobEnded, 1, 1, 0, "")]
    );
    assert!(scene.is_bare());

    let mut scene = begun();
    scene.stands(Standing::Ended);
    assert_eq!(
        scene.handle(FollowEvent::Closed(WORKER)),
        [sent(OutputSays::JobEnded, 0, 1, 0, "")],
        "its worker is gone"
    );
    assert!(scene.is_bare());

    let mut scene = begun();
    scene.stands(Standing::Ended);
    assert_eq!(
        scene.stands(Standing::Queued),
        [Seen::Over(WORKER), sent(OutputSays::Waits, 0, 1, 0, "the job waits for a worker")],
        "it has another run"
    );
    assert_eq!(scene.follows.next_deadline(), None);
}

#[test]
fn a_worker_may_send_as_far_as_the_client_has_room_and_no_further_than_the_window() {
    let mut scene = Scene::new();
    let little = wish(FollowFlags::STAYS, 0, 0, 4);
    assert_eq!(scene.wanted(1, little, at(WORKER, 1)), [Seen::Asked(WORKER, 1, 0, 0, 4)]);
    scene.said(WORKER, &output(OutputSays::Begins, 1, 1, 0));
    scene.said(WORKER, &bytes(0, b"1234"));
    let moved = |began, from, until| FollowEvent::Moved {
        by: by(1),
        follow: wish(FollowFlags::STAYS, began, from, until),
    };
    assert_eq!(scene.handle(moved(0, 4, 1_000)), [], "it has not read of the program yet");
    assert_eq!(scene.handle(moved(1, 4, 10)), [Seen::Asked(WORKER, 1, 1, 4, 10)]);
    assert_eq!(scene.handle(moved(1, 4, 10)), [], "the same again");
    // Whatever it says that it has, it has what was sent to it.
    assert_eq!(
        scene.handle(moved(1, u64::MAX, u64::MAX)),
        [Seen::Asked(WORKER, 1, 1, 4, 4 + WINDOW)]
    );
    assert_eq!(
        scene.said(WORKER, &bytes(4, b"56789012345")),
        [sent(OutputSays::Bytes, 1, 1, 4, "56789012345")]
    );
}

#[test]
fn many_follows_have_smaller_windows() {
    let mut scene = Scene::new();
    for number in 0..FOLLOWS_MAX {
        let conn = ConnId(100 + (number / FOLLOWS_PER_CONN_MAX) as u64);
        let by = FollowId { conn, id: Uuid::from_u128(number as u128) };
        let standing = at(WORKER, 1);
        let seen = scene.handle(FollowEvent::Wanted { by, follow: staying(), standing });
        let window = (FOLLOW_BYTES_MAX / (number as u64 + 1)).min(WINDOW);
        assert_eq!(seen, [Seen::Asked(WORKER, 1, 0, 0, window)]);
    }
    let over = scene.wanted(1, staying(), at(WORKER, 1));
    let [Seen::Sent(OutputSays::Refused, 0, 0, 0, text)] = &over[..] else { panic!("{over:?}") };
    assert!(text.starts_with("1024 outputs of jobs are followed at this leader"), "{text}");
    assert_eq!(scene.follows.follows.len(), FOLLOWS_MAX);
}

#[test]
fn a_connection_has_so_many_follows_and_others_have_theirs() {
    let mut scene = Scene::new();
    for id in 0..FOLLOWS_PER_CONN_MAX as u128 {
        assert_eq!(scene.wanted(id, staying(), at(WORKER, 1)).len(), 1);
    }
    let over = scene.wanted(999, staying(), at(WORKER, 1));
    let [Seen::Sent(OutputSays::Refused, 0, 0, 0, text)] = &over[..] else { panic!("{over:?}") };
    assert!(text.starts_with("this connection follows 64 outputs"), "{text}");
    let of_other = FollowId { conn: ConnId(50), id: Uuid::from_u128(1) };
    let (follow, standing) = (staying(), at(WORKER, 1));
    assert_eq!(scene.handle(FollowEvent::Wanted { by: of_other, follow, standing }).len(), 1);
    let over = FollowEvent::Moved { by: by(5), follow: wish(FollowFlags::OVER, 0, 0, 0) };
    assert_eq!(scene.handle(over), [Seen::Over(WORKER)]);
    assert_eq!(scene.wanted(999, staying(), at(WORKER, 1)).len(), 1, "one ended");
    let gone = scene.handle(FollowEvent::Closed(CLIENT));
    assert_eq!(gone.len(), FOLLOWS_PER_CONN_MAX);
    assert!(gone.iter().all(|seen| *seen == Seen::Over(WORKER)));
    assert_eq!(scene.handle(FollowEvent::Closed(of_other.conn)), [Seen::Over(WORKER)]);
    assert!(scene.is_bare());
}

#[test]
fn the_next_attempt_follows_from_the_start_and_what_comes_late_of_the_one_before_is_dropped() {
    let mut scene = begun();
    scene.said(WORKER, &bytes(0, b"half"));
    let late = *scene.ids.last().unwrap();
    assert_eq!(
        scene.stands(Standing::Queued),
        [Seen::Over(WORKER), sent(OutputSays::Waits, 0, 1, 4, "the job waits for a worker")]
    );
    assert_eq!(scene.stands(Standing::Queued), [], "said once");
    let late = FollowEvent::Said { conn: WORKER, id: late, payload: payload(&bytes(4, b"late")) };
    assert_eq!(scene.handle(late), []);
    assert_eq!(scene.stands(at(OTHER_WORKER, 2)), [Seen::Asked(OTHER_WORKER, 2, 1, 4, WINDOW)]);
    assert_eq!(
        scene.said(OTHER_WORKER, &output(OutputSays::Begins, 2, 2, 0)),
        [sent(OutputSays::Begins, 2, 2, 0, "w3")]
    );
    let first = Output { bytes: b"whole", ..output(OutputSays::Bytes, 2, 2, 0) };
    assert_eq!(scene.said(OTHER_WORKER, &first), [sent(OutputSays::Bytes, 2, 2, 0, "whole")]);
    // As much as there was room for, from the start.
    let moved = FollowEvent::Moved { by: by(1), follow: wish(FollowFlags::STAYS, 2, 5, u64::MAX) };
    assert_eq!(scene.handle(moved), [Seen::Asked(OTHER_WORKER, 2, 2, 5, 5 + WINDOW)]);
}

#[test]
fn a_worker_that_comes_back_goes_on_where_it_was_also_as_another_attempt() {
    let mut scene = begun();
    scene.said(WORKER, &bytes(0, b"half"));
    assert_eq!(scene.handle(FollowEvent::Closed(WORKER)), []);
    let away = || Standing::Away { worker: "w2".into(), attempt: Attempt(1) };
    let text = "worker w2, which has the job, is not connected";
    assert_eq!(scene.stands(away()), [sent(OutputSays::Waits, 0, 1, 4, text)]);
    assert_eq!(scene.stands(away()), []);
    assert_eq!(scene.stands(at(OTHER_WORKER, 1)), [Seen::Asked(OTHER_WORKER, 1, 1, 4, WINDOW)]);
    assert_eq!(
        scene.said(OTHER_WORKER, &output(OutputSays::Begins, 1, 1, 4)),
        [sent(OutputSays::Begins, 1, 1, 4, "w3")]
    );
    // Its lease ran out meanwhile, and it is given the job again while it still runs it.
    assert_eq!(
        scene.stands(at(OTHER_WORKER, 2)),
        [Seen::Over(OTHER_WORKER), Seen::Asked(OTHER_WORKER, 2, 1, 4, WINDOW)]
    );
    assert_eq!(
        scene.said(OTHER_WORKER, &output(OutputSays::Begins, 2, 1, 4)),
        [sent(OutputSays::Begins, 2, 1, 4, "w3")]
    );
    let next = Output { bytes: b" and half", ..output(OutputSays::Bytes, 2, 1, 4) };
    assert_eq!(scene.said(OTHER_WORKER, &next), [sent(OutputSays::Bytes, 2, 1, 4, " and half")]);
}

#[test]
fn jobs_that_are_followed_are_looked_at_when_the_records_about_them_count() {
    let mut scene = begun();
    let other = JobId(Uuid::from_u128(8));
    for (index, job) in [(3, Some(JOB)), (4, Some(other)), (5, Some(JOB)), (6, None)] {
        scene.follows.proposed(Index(index), job);
    }
    assert_eq!(scene.follows.counted(Index(2)), None);
    assert_eq!(scene.follows.counted(Index(4)), Some(JOB));
    assert_eq!(scene.follows.counted(Index(4)), None);
    // What was proposed before somebody followed counts after that.
    let mut follow = staying();
    follow.job = other.0;
    scene.wanted(2, follow.clone(), at(WORKER, 1));
    assert_eq!(scene.follows.counted(Index(5)), Some(JOB));
    assert_eq!(scene.follows.counted(Index(5)), None);
    assert_eq!(scene.follows.counted(Index(6)), Some(other));
    assert_eq!(scene.follows.counted(Index(6)), None);
    // Nothing is on its way any more; and nothing is kept for a job that nobody follows.
    scene.wanted(3, follow.clone(), at(WORKER, 1));
    assert!(scene.follows.changes.is_empty());
    scene.follows.proposed(Index(7), Some(other));
    for id in [2, 3] {
        let over = Follow { flags: FollowFlags::OVER, ..follow.clone() };
        scene.handle(FollowEvent::Moved { by: by(id), follow: over });
    }
    assert!(scene.follows.changes.is_empty());
}

#[test]
fn a_client_that_comes_back_goes_on_where_it_was() {
    let mut scene = Scene::new();
    let again = wish(FollowFlags::STAYS, 3, 500, 500 + 10);
    assert_eq!(scene.wanted(1, again, at(WORKER, 4)), [Seen::Asked(WORKER, 4, 3, 500, 510)]);
    assert_eq!(
        scene.said(WORKER, &output(OutputSays::Begins, 4, 3, 500)),
        [sent(OutputSays::Begins, 4, 3, 500, "w2")]
    );
    // A place in no program's output is none.
    let odd = wish(FollowFlags::STAYS, 0, 500, 510);
    assert_eq!(scene.wanted(2, odd, at(WORKER, 4)), [Seen::Asked(WORKER, 4, 0, 0, 510)]);
}

#[test]
fn what_is_not_to_stay_ends_where_the_job_stands() {
    let now = || wish(FollowFlags::default(), 0, 0, u64::MAX);
    let mut scene = Scene::new();
    assert_eq!(scene.wanted(1, now(), Standing::Queued), [sent(OutputSays::Present, 0, 0, 0, "")]);
    let away = Standing::Away { worker: "w".into(), attempt: Attempt(1) };
    let text = "worker w, which has the job, is not connected: try again, or wait for it (-f)";
    assert_eq!(scene.wanted(1, now(), away), [sent(OutputSays::Refused, 0, 0, 0, text)]);
    let silent = Standing::Silent { attempt: Attempt(1), why: "it is a classic worker".into() };
    assert_eq!(
        scene.wanted(1, now(), silent),
        [sent(OutputSays::Refused, 1, 0, 0, "it is a classic worker")]
    );
    assert!(scene.is_bare());

    for (last, more) in [(OutputSays::Present, None), (OutputSays::Ends, Some(OutputSays::Present))]
    {
        scene.wanted(1, now(), at(WORKER, 1));
        scene.said(WORKER, &output(OutputSays::Begins, 1, 1, 0));
        scene.said(WORKER, &bytes(0, b"1"));
        let expected: Vec<Seen> =
            [Some(last), more].into_iter().flatten().map(|says| sent(says, 1, 1, 1, "")).collect();
        assert_eq!(scene.said(WORKER, &output(last, 1, 1, 1)), expected);
        assert!(scene.is_bare());
    }
    scene.wanted(1, now(), at(WORKER, 1));
    let refused = output(OutputSays::Refused, 1, 0, 0).with_text("shows nothing");
    assert_eq!(scene.said(WORKER, &refused), [sent(OutputSays::Refused, 1, 0, 0, "shows nothing")]);
    assert!(scene.is_bare());
}

#[test]
fn a_job_that_is_unknown_has_ended_or_has_no_output_is_answered_at_once() {
    let mut scene = Scene::new();
    let why = "job 7 is unknown here".to_owned();
    let seen = scene.wanted(1, staying(), Standing::Unknown { why });
    let [Seen::Sent(OutputSays::Refused, 0, 0, 0, text)] = &seen[..] else { panic!("{seen:?}") };
    assert!(text.contains("is unknown here"), "{text}");
    let no_output = Standing::NoOutput { why: "follow a child".into() };
    assert_eq!(
        scene.wanted(1, staying(), no_output),
        [sent(OutputSays::Refused, 0, 0, 0, "follow a child")]
    );
    assert_eq!(
        scene.wanted(1, staying(), Standing::Ended),
        [sent(OutputSays::JobEnded, 0, 0, 0, "")]
    );
    let over = wish(FollowFlags::OVER, 0, 0, 0);
    assert_eq!(scene.wanted(1, over, at(WORKER, 1)), [], "it ended on its way");
    assert!(scene.is_bare());
}

#[test]
fn a_worker_that_shows_nothing_is_waited_for_by_those_who_stay() {
    let mut scene = Scene::new();
    let silent = |attempt| Standing::Silent { attempt: Attempt(attempt), why: "classic".into() };
    assert_eq!(
        scene.wanted(1, staying(), silent(1)),
        [sent(OutputSays::Waits, 1, 0, 0, "classic")]
    );
    assert_eq!(scene.stands(silent(1)), []);
    // The next attempt is elsewhere.
    assert_eq!(scene.stands(at(WORKER, 2)), [Seen::Asked(WORKER, 2, 0, 0, WINDOW)]);
    let refused = output(OutputSays::Refused, 2, 0, 0).with_text("too many follows");
    assert_eq!(
        scene.said(WORKER, &refused),
        [sent(OutputSays::Waits, 2, 0, 0, "too many follows")]
    );
    assert_eq!(scene.stands(at(WORKER, 2)), [], "it is not asked again");
    assert_eq!(scene.stands(Standing::Ended), [sent(OutputSays::JobEnded, 2, 0, 0, "")]);
    assert!(scene.is_bare());
}

#[test]
fn output_that_was_not_asked_for_is_dropped_and_ends_what_it_is_said_to_be_of() {
    let mut more = bytes(0, b"x");
    let long = vec![b'x'; 5];
    more.bytes = &long;
    let hostile = [
        ("of another attempt", output(OutputSays::Ends, 2, 1, 0)),
        ("a second beginning", output(OutputSays::Begins, 1, 1, 0)),
        ("of another place", bytes(1, b"x")),
        ("of another program", Output { began: 2, ..bytes(0, b"x") }),
        ("more than there is room for", more),
        ("lost and here", output(OutputSays::Lost, 1, 1, 0)),
        ("an end that was not asked for", output(OutputSays::Present, 1, 1, 0)),
        ("a leader's words", output(OutputSays::JobEnded, 1, 1, 0)),
        ("a leader's words", output(OutputSays::Waits, 1, 1, 0)),
    ];
    for (what, said) in hostile {
        let mut scene = Scene::new();
        scene.wanted(1, wish(FollowFlags::STAYS, 0, 0, 4), at(WORKER, 1));
        scene.said(WORKER, &output(OutputSays::Begins, 1, 1, 0));
        let text = "worker w2 sent output that was not asked for: its output comes with the result";
        assert_eq!(
            scene.said(WORKER, &said),
            [Seen::Fault(WORKER), Seen::Over(WORKER), sent(OutputSays::Waits, 1, 1, 0, text)],
            "{what}"
        );
        assert_eq!(scene.said(WORKER, &bytes(0, b"x")), [], "{what}: nothing more is taken");
        assert_eq!(scene.stands(at(WORKER, 1)), [], "{what}: nor asked for");
    }
    for (what, said) in [
        ("before its beginning", bytes(0, b"x")),
        ("an attempt to come", output(OutputSays::Begins, 1, 2, 0)),
        ("no attempt", output(OutputSays::Begins, 1, 0, 0)),
        ("from the middle", output(OutputSays::Begins, 1, 1, 5)),
    ] {
        let mut scene = Scene::new();
        scene.wanted(1, staying(), at(WORKER, 1));
        assert_eq!(scene.said(WORKER, &said)[0], Seen::Fault(WORKER), "{what}");
    }
    // Another worker's follow.
    let mut scene = begun();
    assert_eq!(scene.said(OTHER_WORKER, &bytes(0, b"x")), [Seen::Fault(OTHER_WORKER)]);
    assert_eq!(scene.said(WORKER, &bytes(0, b"x")), [sent(OutputSays::Bytes, 1, 1, 0, "x")]);
    let unknown = FollowEvent::Said {
        conn: WORKER,
        id: Uuid::from_u128(77_777),
        payload: payload(&bytes(1, b"x")),
    };
    assert_eq!(scene.handle(unknown), []);
}
