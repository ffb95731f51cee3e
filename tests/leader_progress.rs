//! What a leader passes on to clients of how far workers are with their jobs: stage, bytes and the
//! handler's own words, not too often, of the attempt that counts, and to nobody else.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use chunking::Kind;
use chunking::message::{Body, Progress, Stage, Start};
use procs::Leader;
use raw::{Frame, Raw};
use serde_json::json;
use uuid::Uuid;

const JOB: Uuid = Uuid::from_u128(0xA);

fn say(worker: &mut Raw, attempt: u32, stage: Stage, done: u64, text: &str) {
    let progress = Progress { run: 1, attempt, stage, done, total: 100, text: text.into() };
    let mut payload = Vec::new();
    progress.encode(&mut payload);
    worker.send(Kind::Progress, JOB, Uuid::nil(), "", &payload);
}

/// The next frame of this kind; others are passed over.
fn next_of(peer: &mut Raw, kind: Kind) -> Frame {
    loop {
        let frame = peer.next().expect("a frame");
        if frame.kind == kind {
            return frame;
        }
    }
}

/// What the client hears: progress until its result.
fn heard(client: &mut Raw) -> Vec<(u32, Stage, u64, String)> {
    let mut heard = Vec::new();
    loop {
        let frame = client.next().expect("a frame");
        if frame.kind == Kind::Result {
            return heard;
        }
        if frame.kind == Kind::Progress {
            let Progress { attempt, stage, done, text, .. } =
                Progress::decode(&frame.payload).unwrap();
            heard.push((attempt, stage, done, text.as_str().to_owned()));
        }
    }
}

fn ack(worker: &mut Raw, attempt: u32) {
    let result = json!({"JobId": JOB, "Status": "OK", "Run": 1, "Attempts": attempt}).to_string();
    worker.send(Kind::AckJob, JOB, JOB, "", result.as_bytes());
}

/// A job that a worker has begun.
fn begun(leader: &Leader, client: &mut Raw) -> (Raw, u32) {
    let mut worker = Raw::worker(leader, Uuid::from_u128(1), "job.assign.x");
    client.submit(JOB, "x", &[]);
    let start = Start::decode(&next_of(&mut worker, Kind::Start).payload).unwrap();
    (worker, start.attempt)
}

#[test]
fn stage_bytes_and_words_of_a_worker_reach_the_client_of_the_job() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let (mut worker, attempt) = begun(&leader, &mut client);
    let mut other = Raw::worker(&leader, Uuid::from_u128(2), "job.assign.y");
    let plain = Progress {
        run: 1,
        attempt,
        stage: Stage::Running,
        done: 0,
        total: 0,
        text: Default::default(),
    };
    let mut payload = Vec::new();
    plain.encode(&mut payload);
    worker.send(Kind::Progress, JOB, Uuid::nil(), "", &payload);
    say(&mut worker, attempt, Stage::Running, 30, "a third");
    // Of somebody else's job, or of an attempt that there is not.
    say(&mut other, attempt, Stage::Packing, 1, "not mine");
    say(&mut worker, attempt + 1, Stage::Packing, 2, "not yet");
    say(&mut worker, attempt, Stage::Packing, 60, "");
    say(&mut worker, attempt, Stage::Returning, 90, "");
    ack(&mut worker, attempt);
    let running = (attempt, Stage::Running, 0, String::new());
    let mine = |stage, done, text: &str| (attempt, stage, done, text.to_owned());
    assert_eq!(
        heard(&mut client),
        [
            running,
            mine(Stage::Running, 30, "a third"),
            mine(Stage::Packing, 60, ""),
            mine(Stage::Returning, 90, "")
        ]
    );
}

#[test]
fn of_words_that_come_quickly_the_first_and_the_last_reach_the_client() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let (mut worker, attempt) = begun(&leader, &mut client);
    for step in 1..=500 {
        say(&mut worker, attempt, Stage::Running, step, &format!("step {step}"));
    }
    // It says no more, and the last word comes all the same.
    let mut said = Vec::new();
    while said.last().is_none_or(|text: &String| text != "step 500") {
        let frame = next_of(&mut client, Kind::Progress);
        let progress = Progress::decode(&frame.payload).unwrap();
        said.extend(Some(progress.text.as_str().to_owned()).filter(|text| !text.is_empty()));
    }
    assert_eq!(said[0], "step 1");
    assert!(said.len() < 250, "{} of 500 words", said.len());
    ack(&mut worker, attempt);
    assert_eq!(heard(&mut client), []);
}

#[test]
fn a_client_that_does_not_know_progress_hears_nothing_of_it() {
    let leader = Leader::start(&[]);
    let mut client = Raw::connect(&leader);
    let config = br#"{"ClientId":"c","DesiredParallelism":4,"Heft":{"Version":1,"Features":["submit-answers"]}}"#;
    client.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), "c", config);
    assert_eq!(client.next().unwrap().kind, Kind::Welcome);
    let (mut worker, attempt) = begun(&leader, &mut client);
    say(&mut worker, attempt, Stage::Running, 30, "a third");
    say(&mut worker, attempt, Stage::Packing, 60, "");
    ack(&mut worker, attempt);
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    assert_eq!(client.next().unwrap().kind, Kind::Result);
}
