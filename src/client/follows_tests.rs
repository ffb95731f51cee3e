#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::*;
use chunking::Kind;
use chunking::message::Body as _;

const JOB: Uuid = Uuid::from_u128(7);
const WINDOW: u64 = FOLLOW_WINDOW_BYTES;

struct Scene {
    follows: Follows,
    following: Following,
    commands: mpsc::Receiver<Command>,
    outbox: mpsc::Sender<Outgoing>,
    sent: mpsc::Receiver<Outgoing>,
}

fn announced(features: Features) -> Mode {
    let (leader, software) = (Uuid::nil(), String::new());
    Mode::Announced { leader, software, features, transfers_max: None }
}

impl Scene {
    /// A follow that was asked for.
    fn new() -> Self {
        let (outbox, sent) = mpsc::channel(100);
        let (to_driver, commands) = mpsc::channel(100);
        let (following, id, shared) = Following::new(to_driver);
        let mut follows = Follows::default();
        let spec = FollowSpec { job: JOB, stream: Stream::Stderr, stays: true };
        follows.add(id, spec, shared);
        let mut scene = Scene { follows, following, commands, outbox, sent };
        assert!(scene.follows.wait());
        scene.connect();
        assert!(!scene.follows.wait());
        assert_eq!(scene.asked(), (0, 0, WINDOW, FollowFlags::STAYS));
        scene
    }

    fn connect(&mut self) {
        self.follows.send("leader", &announced(Features::FOLLOW), &self.outbox, false);
    }

    /// What the leader was asked: began, from, until, flags.
    fn asked(&mut self) -> (u32, u64, u64, FollowFlags) {
        let Outgoing { frame, .. } = self.sent.try_recv().expect("a frame");
        assert_eq!((frame.kind, frame.msg_id), (Kind::Follow, self.following.id));
        let follow = Follow::decode(&frame.payload).unwrap();
        assert_eq!((follow.job, follow.stream, follow.attempt), (JOB, Stream::Stderr, 0));
        (follow.began, follow.from, follow.until, follow.flags)
    }

    fn came(&mut self, output: &Output<'_>) {
        let mut payload = Vec::new();
        output.encode(&mut payload);
        let frame = InFrame {
            code: Kind::Output.code(),
            msg_id: self.following.id,
            corr_id: Uuid::nil(),
            subject: String::new(),
            payload: payload.into(),
        };
        self.follows.take(&frame, Some(&self.outbox)).unwrap();
    }

    fn begins(&mut self, attempt: u32, began: u32, offset: u64) {
        self.came(&Output::new(OutputSays::Begins, attempt, began, offset).with_text("w1"));
    }

    fn bytes(&mut self, began: u32, offset: u64, bytes: &[u8]) {
        self.came(&Output { bytes, ..Output::new(OutputSays::Bytes, 9, began, offset) });
    }

    async fn next(&mut self) -> FollowEvent {
        let event = self.following.next().await.expect("an event");
        while let Ok(command) = self.commands.try_recv() {
            let Command::FollowMore { id } = command else { panic!("{command:?}") };
            self.follows.more(id, Some(&self.outbox));
        }
        event
    }
}

fn begins(attempt: u32, began: u32) -> FollowEvent {
    FollowEvent::Begins { attempt, began, worker: "w1".to_owned() }
}

#[tokio::test]
async fn bytes_are_gathered_and_what_was_read_makes_room_for_more() {
    let mut scene = Scene::new();
    scene.begins(1, 1, 0);
    scene.bytes(1, 0, b"one ");
    scene.bytes(1, 4, b"two");
    assert_eq!(scene.next().await, begins(1, 1));
    assert_eq!(scene.next().await, FollowEvent::Bytes("one two".into()));
    assert_eq!(scene.asked(), (1, 7, WINDOW + 7, FollowFlags::STAYS));
    let piece = vec![b'x'; 1 << 16];
    for number in 0..4 {
        scene.bytes(1, 7 + (number << 16), &piece);
    }
    assert!(scene.sent.try_recv().is_err(), "nothing was read");
    for _ in 0..2 {
        assert_eq!(scene.next().await, FollowEvent::Bytes(piece.clone().into()));
    }
    assert!(scene.sent.try_recv().is_err(), "less than half of the window was read before");
    assert_eq!(scene.next().await, FollowEvent::Bytes(piece.clone().into()));
    let taken = 7 + (3 << 16);
    assert_eq!(scene.asked(), (1, taken, taken + WINDOW, FollowFlags::STAYS));
}

#[tokio::test]
async fn a_follow_goes_on_where_it_was_on_the_next_connection_and_what_is_unread_takes_room() {
    let mut scene = Scene::new();
    scene.begins(1, 1, 0);
    scene.bytes(1, 0, b"12345");
    scene.follows.lost("leader", "it broke");
    scene.bytes(1, 5, b"late");
    scene.follows.lost("leader", "no answer");
    assert!(scene.follows.wait());
    scene.connect();
    assert_eq!(scene.asked(), (1, 5, WINDOW, FollowFlags::STAYS));
    assert_eq!(scene.next().await, begins(1, 1));
    assert_eq!(scene.next().await, FollowEvent::Bytes("12345".into()));
    assert_eq!(scene.asked(), (1, 5, WINDOW + 5, FollowFlags::STAYS));
    let (leader, why) = ("leader".to_owned(), "no answer".to_owned());
    assert_eq!(scene.next().await, FollowEvent::Reconnecting { leader, why }, "the last of two");
    // The same program, and so nothing to tell.
    scene.begins(1, 1, 5);
    scene.bytes(1, 5, b"6");
    assert_eq!(scene.next().await, FollowEvent::Bytes("6".into()));
    // The same as another attempt.
    scene.begins(2, 1, 6);
    assert_eq!(scene.next().await, begins(2, 1));
    // Another program: from the start.
    scene.begins(3, 3, 0);
    scene.bytes(3, 0, b"again");
    assert_eq!(scene.next().await, begins(3, 3));
    assert_eq!(scene.next().await, FollowEvent::Bytes("again".into()));
    assert_eq!(scene.asked(), (3, 5, WINDOW + 5, FollowFlags::STAYS));
}

#[tokio::test]
async fn what_is_lost_is_counted_and_the_place_behind_it_is_said_at_once() {
    let mut scene = Scene::new();
    scene.begins(1, 1, 0);
    scene.next().await;
    scene.came(&Output::new(OutputSays::Lost, 1, 1, 10 * WINDOW));
    assert_eq!(scene.next().await, FollowEvent::Lost(10 * WINDOW));
    scene.asked();
    scene.came(&Output::new(OutputSays::Waits, 1, 1, 0).with_text("so"));
    assert_eq!(scene.next().await, FollowEvent::Waits("so".to_owned()));
    assert_eq!(scene.asked(), (1, 10 * WINDOW, 11 * WINDOW, FollowFlags::STAYS));
    scene.bytes(1, 10 * WINDOW, b"on");
    assert_eq!(scene.next().await, FollowEvent::Bytes("on".into()));
}

#[tokio::test]
async fn the_last_word_ends_it() {
    for (says, event) in [
        (OutputSays::Present, FollowEvent::Present),
        (OutputSays::JobEnded, FollowEvent::JobEnded),
        (OutputSays::Refused, FollowEvent::Refused { reason: Reason::NONE, text: "no".to_owned() }),
    ] {
        let mut scene = Scene::new();
        scene.begins(1, 1, 0);
        scene.came(&Output::new(OutputSays::Ends, 1, 1, 12));
        let text = if says == OutputSays::Refused { "no" } else { "" };
        scene.came(&Output::new(says, 1, 1, 0).with_text(text));
        assert_eq!(scene.next().await, begins(1, 1));
        assert_eq!(scene.next().await, FollowEvent::Ends(12));
        assert_eq!(scene.next().await, event);
        assert_eq!(scene.following.next().await, None);
        assert!(scene.follows.open.is_empty());
    }
}

#[tokio::test]
async fn a_leader_that_sends_what_was_not_asked_for_ends_it() {
    let window = vec![b'x'; 1 << 16];
    for fault in ["place", "program", "room", "begins", "lost"] {
        let mut scene = Scene::new();
        scene.begins(1, 1, 0);
        match fault {
            "place" => scene.bytes(1, 1, b"x"),
            "program" => scene.bytes(2, 0, b"x"),
            "begins" => scene.begins(2, 2, 1),
            "lost" => scene.came(&Output::new(OutputSays::Lost, 1, 1, 0)),
            _ => (0..=4).for_each(|at| scene.bytes(1, at << 16, &window)),
        }
        let mut last = scene.next().await;
        while let FollowEvent::Begins { .. } | FollowEvent::Bytes(_) = last {
            last = scene.next().await;
        }
        let FollowEvent::Failed(ClientError::BadAnswer { why, .. }) = last else {
            panic!("{fault}: {last:?}")
        };
        assert!(why.contains("makes no sense"), "{why}");
        assert!(scene.follows.open.is_empty(), "{fault}");
        let mut last = None;
        while let Ok(Outgoing { frame, .. }) = scene.sent.try_recv() {
            last = Some(Follow::decode(&frame.payload).unwrap().flags);
        }
        assert_eq!(last, Some(FollowFlags::OVER), "{fault}");
    }
}

#[tokio::test]
async fn news_without_end_are_a_fault() {
    let mut scene = Scene::new();
    for attempt in 1..3_000 {
        scene.begins(attempt, attempt, 0);
    }
    assert!(scene.follows.open.is_empty());
    assert!(scene.following.shared.lock().news.len() <= NEWS_WAITING_MAX + 1);
}

#[tokio::test]
async fn a_leader_that_cannot_show_output_is_named_once_it_is_known_for_one() {
    let mut scene = Scene::new();
    scene.follows.lost("leader", "gone");
    scene.follows.send("leader", &Mode::Classic, &scene.outbox, false);
    assert!(scene.follows.wait(), "its Welcome may be on its way");
    scene.follows.send("leader", &Mode::Classic, &scene.outbox, true);
    assert!(matches!(scene.next().await, FollowEvent::Reconnecting { .. }));
    let error = ClientError::NotSupported { leader: "leader".to_owned(), feature: "follow" };
    assert_eq!(scene.next().await, FollowEvent::Failed(error.clone()));
    let mut older = Scene::new();
    older.follows.lost("leader", "gone");
    older.follows.send("leader", &announced(Features::ASK), &older.outbox, false);
    older.next().await;
    assert_eq!(older.next().await, FollowEvent::Failed(error));
}

#[tokio::test]
async fn a_reader_that_leaves_is_said_to_the_leader() {
    let mut scene = Scene::new();
    let (following, id, shared) = Following::new(scene.following.commands.clone());
    let spec = FollowSpec { job: JOB, stream: Stream::Stderr, stays: true };
    scene.follows.add(id, spec, shared);
    scene.connect();
    scene.sent.try_recv().expect("asked for");
    drop(following);
    let Ok(Command::Unfollow { id: left }) = scene.commands.try_recv() else { panic!("said") };
    assert_eq!(left, id);
    scene.follows.end(id, Some(&scene.outbox));
    let frame = scene.sent.try_recv().expect("a frame").frame;
    assert_eq!(Follow::decode(&frame.payload).unwrap().flags, FollowFlags::OVER);

    // Where that found no room, the next output shows it.
    scene.following.shared.lock().is_left = true;
    scene.begins(1, 1, 0);
    assert!(scene.follows.open.is_empty());
    assert_eq!(scene.asked().3, FollowFlags::OVER);
}

#[tokio::test]
async fn so_many_outputs_are_followed_at_a_time() {
    let mut scene = Scene::new();
    let spec = FollowSpec { job: JOB, stream: Stream::Stdout, stays: true };
    let mut kept = Vec::new();
    for _ in 0..FOLLOWS_MAX {
        let (following, id, shared) = Following::new(scene.following.commands.clone());
        scene.follows.add(id, spec, shared);
        kept.push(following);
    }
    let error = ClientError::TooManyFollows { limit: FOLLOWS_MAX };
    assert_eq!(kept.last_mut().unwrap().next().await, Some(FollowEvent::Failed(error)));
}
