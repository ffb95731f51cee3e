#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use super::*;
use crate::worker::exec::capture::{Capture, Captured, Keep};
use crate::worker::handler::Shown;
use crate::worker::limits::OUTPUT_PIECES_WAITING_MAX;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};
use tokio::time::timeout;

const JOB: Uuid = Uuid::from_u128(7);
const ID: Uuid = Uuid::from_u128(1);

/// A running job whose standard output a test writes.
struct Scene {
    follows: Follows,
    pieces: mpsc::Receiver<Piece>,
    shown: Option<Shown>,
    running: Running,
    program: Option<DuplexStream>,
    captures: Captures,
    root: tempfile::TempDir,
}

impl Scene {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (pieces, received) = mpsc::channel(OUTPUT_PIECES_WAITING_MAX);
        let shown = Shown::default();
        let running = Running { attempt: 2, began: 2, shown: shown.watch() };
        let (program, pipe) = duplex(1 << 20);
        let keep =
            |file| Keep { bytes_max: 1_000, file: root.path().join(file), file_bytes_max: 2_000 };
        let mut captured = Captured::new(keep("stdout"));
        let captures: [Arc<Capture>; 2] = [captured.shared(), Arc::default()];
        tokio::spawn(async move {
            captured.fill(pipe).await;
            captured.close().await;
        });
        let (shown, program) = (Some(shown), Some(program));
        let follows = Follows::new(pieces);
        Scene { follows, pieces: received, shown, running, program, captures, root }
    }

    /// The program is started.
    fn show(&mut self) {
        self.shown.as_ref().unwrap().show(self.captures.clone());
    }

    async fn print(&mut self, text: &str) {
        self.program.as_mut().unwrap().write_all(text.as_bytes()).await.unwrap();
    }

    /// The program has ended, and its attempt.
    fn end(&mut self) {
        self.program.take();
        self.shown.take();
    }

    fn follow(&mut self, follow: Follow, here: JobHere) -> Option<Said> {
        self.follows.on_follow(ID, follow, here, true).map(Said::of)
    }

    fn here(&self) -> JobHere {
        JobHere::Runs(self.running.clone())
    }

    /// What goes out next.
    async fn next(&mut self) -> Said {
        loop {
            let piece = timeout(Duration::from_secs(20), self.pieces.recv()).await;
            let piece = piece.expect("a piece").unwrap();
            if let Some(frame) = self.follows.on_piece(piece) {
                return Said::of(frame);
            }
        }
    }

    /// Bytes up to this place.
    async fn bytes_to(&mut self, to: u64) -> String {
        let mut text = String::new();
        loop {
            let said = self.next().await;
            assert_eq!(said.says, OutputSays::Bytes, "{said:?}");
            text.push_str(&said.text);
            if said.offset + said.text.len() as u64 == to {
                return text;
            }
        }
    }
}

#[derive(Debug, PartialEq)]
struct Said {
    says: OutputSays,
    attempt: u32,
    began: u32,
    offset: u64,
    text: String,
}

impl Said {
    fn of(frame: OutFrame) -> Self {
        assert_eq!((frame.kind, frame.msg_id), (Kind::Output, ID));
        let output = Output::decode(&frame.payload).unwrap();
        let Output { says, attempt, began, offset, bytes, .. } = output;
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        Said { says, attempt, began, offset, text }
    }
}

fn said(says: OutputSays, began: u32, offset: u64) -> Said {
    Said { says, attempt: 2, began, offset, text: String::new() }
}

fn wish(flags: FollowFlags, began: u32, from: u64, until: u64) -> Follow {
    Follow { job: JOB, attempt: 2, began, stream: Stream::Stdout, flags, from, until }
}

fn staying(until: u64) -> Follow {
    wish(FollowFlags::STAYS, 0, 0, until)
}

#[tokio::test]
async fn what_is_printed_goes_out_at_once_and_its_end_with_how_much_it_was() {
    let mut scene = Scene::new();
    scene.show();
    scene.print("before ").await;
    assert_eq!(scene.follow(staying(1 << 20), scene.here()), None);
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 0));
    assert_eq!(scene.bytes_to(7).await, "before ");
    scene.print("now").await;
    assert_eq!(scene.bytes_to(10).await, "now");
    scene.end();
    assert_eq!(scene.next().await, said(OutputSays::Ends, 2, 10));
    assert!(scene.follows.all.is_empty());
}

#[tokio::test]
async fn nothing_goes_out_beyond_the_window() {
    let mut scene = Scene::new();
    scene.show();
    scene.follow(staying(4), scene.here());
    scene.next().await;
    scene.print("123456789").await;
    assert_eq!(scene.bytes_to(4).await, "1234");
    scene.follow(wish(FollowFlags::STAYS, 2, 4, 6), scene.here());
    assert_eq!(scene.bytes_to(6).await, "56");
    // Less than there was does not count.
    scene.follow(wish(FollowFlags::STAYS, 2, 4, 5), scene.here());
    scene.follow(wish(FollowFlags::STAYS, 2, 6, 100), scene.here());
    assert_eq!(scene.bytes_to(9).await, "789");
}

#[tokio::test]
async fn a_follow_goes_on_where_it_was_if_it_is_the_same_program_and_else_from_the_start() {
    let mut scene = Scene::new();
    scene.show();
    scene.print("123456789").await;
    scene.follow(wish(FollowFlags::STAYS, 2, 6, 8), scene.here());
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 6));
    assert_eq!(scene.bytes_to(8).await, "78");
    scene.follow(wish(FollowFlags::OVER, 2, 8, 8), scene.here());
    assert!(scene.follows.all.is_empty());
    // Of another program 6 bytes are known, and there was room for two more.
    scene.follow(wish(FollowFlags::STAYS, 1, 6, 8), scene.here());
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 0));
    assert_eq!(scene.bytes_to(2).await, "12");
    // The leader has not heard of that yet.
    scene.follow(wish(FollowFlags::STAYS, 1, 6, 9), scene.here());
    assert_eq!(scene.bytes_to(3).await, "3");
    scene.follow(wish(FollowFlags::STAYS, 2, 3, 9), scene.here());
    assert_eq!(scene.bytes_to(9).await, "456789");
}

#[tokio::test]
async fn a_follow_waits_for_its_attempt_to_run() {
    let mut scene = Scene::new();
    assert_eq!(scene.follow(staying(100), JobHere::NotYet), None);
    // An earlier attempt's result is still here.
    let other = Uuid::from_u128(2);
    let ended = JobHere::Ended { attempt: 1 };
    assert_eq!(scene.follows.on_follow(other, staying(100), ended, true), None);
    scene.follow(wish(FollowFlags::STAYS, 0, 0, 4), JobHere::NotYet);
    let earlier = Running { attempt: 1, ..scene.running.clone() };
    assert!(scene.follows.on_running(JOB, &earlier).is_empty());
    assert!(scene.follows.all[&ID].task.is_none());
    let running = scene.running.clone();
    assert!(scene.follows.on_running(Uuid::from_u128(8), &running).is_empty());
    assert!(scene.follows.all[&ID].task.is_none(), "another job");
    scene.follows.all.remove(&other);
    assert!(scene.follows.on_running(JOB, &running).is_empty());
    // The inputs are written, and then the program is started.
    tokio::task::yield_now().await;
    scene.show();
    scene.print("x").await;
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 0));
    assert_eq!(scene.bytes_to(1).await, "x");
}

#[tokio::test]
async fn an_attempt_that_has_passed_is_refused() {
    let mut scene = Scene::new();
    scene.follow(staying(100), JobHere::NotYet);
    let later = Running { attempt: 3, ..scene.running.clone() };
    let [frame] = &scene.follows.on_running(JOB, &later)[..] else { panic!("one") };
    let refusal = Said::of(frame.clone());
    assert_eq!((refusal.says, refusal.attempt), (OutputSays::Refused, 2));
    assert!(refusal.text.contains("comes with the result"), "{}", refusal.text);
    assert!(scene.follows.all.is_empty());
    for here in [JobHere::Runs(later), JobHere::Ended { attempt: 2 }] {
        let refusal = scene.follow(staying(100), here).expect("an answer");
        assert_eq!(refusal.says, OutputSays::Refused);
    }
}

#[tokio::test]
async fn a_program_that_goes_on_as_another_attempt_is_the_same_program() {
    let mut scene = Scene::new();
    scene.show();
    scene.print("123").await;
    scene.running = Running { attempt: 2, began: 1, ..scene.running };
    scene.follow(wish(FollowFlags::STAYS, 1, 2, 100), scene.here());
    assert_eq!(scene.next().await, said(OutputSays::Begins, 1, 2));
    assert_eq!(scene.bytes_to(3).await, "3");
}

#[tokio::test]
async fn what_is_not_to_stay_ends_with_what_is_there() {
    let now = || wish(FollowFlags::default(), 0, 0, 1 << 20);
    let mut scene = Scene::new();
    assert_eq!(scene.follow(now(), JobHere::NotYet), Some(said(OutputSays::Present, 0, 0)));
    // It is about to be started.
    assert_eq!(scene.follow(now(), scene.here()), None);
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 0));
    assert_eq!(scene.next().await, said(OutputSays::Present, 2, 0));
    scene.show();
    scene.print("so far").await;
    while scene.captures[0].reader().seen() < 6 {
        tokio::task::yield_now().await;
    }
    scene.follow(now(), scene.here());
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 0));
    assert_eq!(scene.bytes_to(6).await, "so far");
    assert_eq!(scene.next().await, said(OutputSays::Present, 2, 6));
    assert!(scene.follows.all.is_empty());
}

#[tokio::test]
async fn an_attempt_without_a_program_ends_with_nothing() {
    let mut scene = Scene::new();
    scene.follow(staying(100), scene.here());
    scene.end();
    assert_eq!(scene.next().await, said(OutputSays::Begins, 2, 0));
    assert_eq!(scene.next().await, said(OutputSays::Ends, 2, 0));
}

#[tokio::test]
async fn when_the_result_is_safe_what_has_no_room_is_left_to_it() {
    let mut scene = Scene::new();
    scene.show();
    scene.follow(staying(4), scene.here());
    scene.next().await;
    scene.print("123456789").await;
    scene.end();
    assert_eq!(scene.bytes_to(4).await, "1234");
    scene.follows.on_over(Uuid::from_u128(8));
    scene.follow(wish(FollowFlags::STAYS, 2, 4, 6), scene.here());
    assert_eq!(scene.bytes_to(6).await, "56", "another job is over");
    scene.follows.on_over(JOB);
    assert_eq!(scene.next().await, said(OutputSays::Ends, 2, 9));
    assert!(scene.follows.all.is_empty());
}

#[tokio::test]
async fn what_is_lost_is_said_whether_there_is_room_or_not() {
    let mut scene = Scene::new();
    scene.show();
    let long = "x".repeat(3_000);
    scene.print(&long).await;
    // It is kept up to 2,000; nobody follows when the rest comes.
    let file = scene.root.path().join("stdout");
    while std::fs::metadata(&file).is_ok_and(|file| file.len() < 2_000) || !file.exists() {
        tokio::task::yield_now().await;
    }
    scene.follow(staying(2_000), scene.here());
    scene.next().await;
    assert_eq!(scene.bytes_to(2_000).await.len(), 2_000);
    scene.print("more").await;
    assert_eq!(scene.next().await, said(OutputSays::Lost, 2, 3_000));
    scene.follow(wish(FollowFlags::STAYS, 2, 3_000, 4_000), scene.here());
    assert_eq!(scene.bytes_to(3_004).await, "more");
}

#[tokio::test]
async fn so_many_outputs_are_followed_and_handlers_that_show_none_say_so() {
    let mut scene = Scene::new();
    let (mut ids, mut refused) = ((10..).map(Uuid::from_u128), None);
    let job = |number: usize| Uuid::from_u128(1_000 + number as u128);
    for number in 0..FOLLOWS_MAX {
        let follow = Follow { job: job(number / FOLLOWS_PER_JOB_MAX), ..staying(1) };
        let id = ids.next().unwrap();
        assert_eq!(scene.follows.on_follow(id, follow, JobHere::NotYet, true), None);
    }
    for (job, limit) in [(job(0), FOLLOWS_PER_JOB_MAX), (JOB, FOLLOWS_MAX)] {
        let follow = Follow { job, ..staying(1) };
        let refusal = scene.follow(follow, JobHere::NotYet).expect("an answer");
        assert_eq!(refusal.says, OutputSays::Refused);
        assert!(refusal.text.contains(&limit.to_string()), "{}", refusal.text);
        refused = Some(refusal);
    }
    assert!(refused.is_some());
    scene.follows.clear();
    assert_eq!(scene.follow(staying(1), JobHere::NotYet), None);
    scene.follows.clear();
    let frame = scene.follows.on_follow(ID, staying(1), scene.here(), false).expect("an answer");
    let refusal = Said::of(frame);
    assert_eq!(refusal.says, OutputSays::Refused);
    assert!(refusal.text.contains("this worker's handler shows no output"), "{}", refusal.text);
    assert!(scene.follows.all.is_empty());
}

#[tokio::test]
async fn a_slow_line_has_short_pieces() {
    let mut scene = Scene::new();
    scene.show();
    scene.follows.set_piece_bytes(Some(3));
    scene.print("1234567").await;
    while scene.captures[0].reader().seen() < 7 {
        tokio::task::yield_now().await;
    }
    scene.follow(staying(100), scene.here());
    scene.next().await;
    assert_eq!(scene.next().await.text, "123");
    scene.follows.set_piece_bytes(None);
    assert_eq!(scene.bytes_to(7).await.len(), 4);
}
