//! Output of running jobs at a real leader, with workers and clients that speak frames of the
//! test's choice: what passes, what is dropped, and what clients hear where there is none.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use chunking::Kind;
use chunking::message::{
    Body, Features, Follow, FollowFlags, Output, OutputSays, Reason, Start, Stream, Welcome,
};
use procs::{Leader, classic_worker, eventually};
use raw::Raw;
use serde_json::json;
use uuid::Uuid;

fn client(leader: &Leader) -> Raw {
    let mut raw = Raw::connect(leader);
    let config = r#"{"ClientId":"c","DesiredParallelism":50,"Heft":{"Version":1,"Features":["submit-answers","ask","follow"]}}"#;
    raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), "c", config.as_bytes());
    let welcome = raw.next().unwrap();
    assert!(Welcome::decode(&welcome.payload).unwrap().features.has(Features::FOLLOW));
    raw
}

/// A worker of ours with credit for a few jobs.
fn worker(leader: &Leader, id: Uuid, name: &str) -> Raw {
    let mut raw = Raw::connect(leader);
    let hello = format!(
        r#"{{"Heft":{{"Version":1,"Features":["leases","progress","cancel","follow"],"Name":"{name}"}},"Patterns":["job.assign.x"]}}"#
    );
    raw.send(Kind::HelloWorker, id, Uuid::nil(), "job.assign.x", hello.as_bytes());
    assert_eq!(raw.next().unwrap().kind, Kind::Welcome);
    raw.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &4_i32.to_le_bytes());
    raw
}

fn wish(job: Uuid) -> Follow {
    let (stream, flags) = (Stream::Stdout, FollowFlags::STAYS);
    Follow { job, attempt: 0, began: 0, stream, flags, from: 0, until: 1 << 40 }
}

fn say<M: Body>(raw: &mut Raw, id: Uuid, message: &M) {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    raw.send(M::KIND, id, Uuid::nil(), "", &payload);
}

fn put(raw: &mut Raw, id: Uuid, output: &Output<'_>) {
    let mut payload = Vec::new();
    output.encode(&mut payload);
    raw.send(Kind::Output, id, Uuid::nil(), "", &payload);
}

fn next(raw: &mut Raw, kind: Kind) -> raw::Frame {
    loop {
        let frame = raw.next().unwrap_or_else(|| panic!("hung up on before {kind:?}"));
        if frame.kind == kind {
            return frame;
        }
    }
}

/// What a client hears next: of which follow, what, the attempt, and the text or bytes.
fn heard(raw: &mut Raw) -> (Uuid, OutputSays, u32, String) {
    let frame = next(raw, Kind::Output);
    let output = Output::decode(&frame.payload).unwrap();
    let text = String::from_utf8_lossy(output.bytes).into_owned();
    (frame.msg_id, output.says, output.attempt, text)
}

/// A worker is told to start a job: which attempt.
fn started(raw: &mut Raw) -> u32 {
    Start::decode(&next(raw, Kind::Start).payload).unwrap().attempt
}

fn asked(raw: &mut Raw) -> (Uuid, Follow) {
    let frame = next(raw, Kind::Follow);
    (frame.msg_id, Follow::decode(&frame.payload).unwrap())
}

fn begins(attempt: u32) -> Output<'static> {
    Output::new(OutputSays::Begins, attempt, attempt, 0)
}

fn bytes(attempt: u32, offset: u64, bytes: &[u8]) -> Output<'_> {
    Output { bytes, ..Output::new(OutputSays::Bytes, attempt, attempt, offset) }
}

fn done(raw: &mut Raw, job: Uuid, attempt: u32) {
    let result =
        json!({"JobId": job, "Status": "OK", "Stdout": "done", "Run": 1, "Attempts": attempt});
    raw.send(Kind::AckJob, Uuid::new_v4(), job, "", result.to_string().as_bytes());
}

#[test]
fn output_goes_to_whoever_follows_through_all_attempts_until_the_job_has_ended() {
    let leader = Leader::start(&["--worker-grace", "10ms"]);
    let (mut submits, mut follows) = (client(&leader), client(&leader));
    let (job, follow) = (Uuid::new_v4(), Uuid::new_v4());
    submits.submit(job, "x", &[]);
    next(&mut submits, Kind::Submitted);
    say(&mut follows, follow, &wish(job));
    let (id, says, attempt, text) = heard(&mut follows);
    assert_eq!((id, says, attempt), (follow, OutputSays::Waits, 0));
    assert_eq!(text, "the job waits for a worker");

    let mut first = worker(&leader, Uuid::new_v4(), "w1");
    let (id, wanted) = asked(&mut first);
    assert_ne!(id, follow, "an id of the leader's own");
    assert_eq!((wanted.job, wanted.attempt, wanted.began, wanted.from), (job, 1, 0, 0));
    assert_eq!(wanted.until, 256 * 1024, "whatever the client has room for");
    put(&mut first, id, &begins(1));
    put(&mut first, id, &bytes(1, 0, b"one "));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Begins, 1, "w1".to_owned()));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Bytes, 1, "one ".to_owned()));
    let moved = Follow { began: 1, from: 4, until: 10, ..wish(job) };
    say(&mut follows, follow, &moved);
    say(&mut follows, follow, &Follow { until: 1 << 50, ..moved });
    let (again, wanted) = asked(&mut first);
    assert_eq!((again, wanted.began, wanted.from, wanted.until), (id, 1, 4, 4 + 256 * 1024));
    drop(first);
    loop {
        let (_, says, _, text) = heard(&mut follows);
        assert_eq!(says, OutputSays::Waits);
        if text == "the job waits for a worker" {
            break;
        }
        assert_eq!(text, "worker w1, which has the job, is not connected");
    }

    let mut second = worker(&leader, Uuid::new_v4(), "w2");
    // It may be asked before it has the job, which waits for its turn to be sent.
    let (mut attempt, mut follow_of) = (None, None);
    while attempt.is_none() || follow_of.is_none() {
        let frame = second.next().expect("it is connected");
        if frame.kind == Kind::Start {
            attempt = Some(Start::decode(&frame.payload).unwrap().attempt);
        } else if frame.kind == Kind::Follow {
            follow_of = Some((frame.msg_id, Follow::decode(&frame.payload).unwrap()));
        }
    }
    assert_eq!(attempt, Some(2));
    let (id, wanted) = follow_of.unwrap();
    assert_eq!((wanted.attempt, wanted.began, wanted.from), (2, 1, 4));
    put(&mut second, id, &begins(2));
    put(&mut second, id, &bytes(2, 0, b"two"));
    put(&mut second, id, &Output::new(OutputSays::Ends, 2, 2, 3));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Begins, 2, "w2".to_owned()));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Bytes, 2, "two".to_owned()));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Ends, 2, String::new()));
    done(&mut second, job, 2);
    assert_eq!(heard(&mut follows), (follow, OutputSays::JobEnded, 2, String::new()));
    // Of one that has ended the result is to be taken at once.
    say(&mut follows, follow, &wish(job));
    assert_eq!(heard(&mut follows), (follow, OutputSays::JobEnded, 0, String::new()));
    let unknown = Uuid::new_v4();
    say(&mut follows, unknown, &wish(unknown));
    let (id, says, _, text) = heard(&mut follows);
    assert_eq!((id, says), (unknown, OutputSays::Refused));
    assert!(text.contains("is unknown here"), "{text}");
}

#[test]
fn output_that_nobody_asked_for_goes_nowhere_and_the_job_goes_on() {
    let leader = Leader::start(&[]);
    let (mut submits, mut follows) = (client(&leader), client(&leader));
    let (job, follow) = (Uuid::new_v4(), Uuid::new_v4());
    let mut owner = worker(&leader, Uuid::new_v4(), "owner");
    submits.submit(job, "x", &[]);
    assert_eq!(started(&mut owner), 1);
    let mut stranger = worker(&leader, Uuid::new_v4(), "stranger");
    say(&mut follows, follow, &wish(job));
    let (id, _) = asked(&mut owner);
    // Another worker, under the id that the first was given; and ids that nobody was.
    put(&mut stranger, id, &begins(1));
    put(&mut stranger, follow, &begins(1));
    put(&mut owner, Uuid::new_v4(), &begins(1));
    put(&mut owner, follow, &begins(1));
    // Clients have no output.
    put(&mut submits, id, &begins(1));
    // What cannot be read.
    owner.send(Kind::Output, id, Uuid::nil(), "", b"\x01\x09");
    owner.send(Kind::Output, id, Uuid::nil(), "", b"");
    put(&mut owner, id, &begins(1));
    put(&mut owner, id, &bytes(1, 0, b"right"));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Begins, 1, "owner".to_owned()));
    assert_eq!(heard(&mut follows), (follow, OutputSays::Bytes, 1, "right".to_owned()));
    // More than the window: nothing of it passes, and nothing more is taken.
    let long = vec![b'x'; 1 << 16];
    (0..8).for_each(|at| put(&mut owner, id, &bytes(1, 5 + (at << 16), &long)));
    let mut passed = 5;
    let text = loop {
        let (_, says, _, text) = heard(&mut follows);
        match says {
            OutputSays::Bytes => passed += text.len(),
            _ => break text,
        }
    };
    assert!(passed <= 256 * 1024, "{passed}");
    assert!(text.starts_with("worker owner sent output that was not asked for"), "{text}");
    let (over, last) = asked(&mut owner);
    assert_eq!((over, last.flags), (id, FollowFlags::OVER));
    done(&mut owner, job, 1);
    assert_eq!(heard(&mut follows), (follow, OutputSays::JobEnded, 1, String::new()));
    assert_eq!(next(&mut submits, Kind::Result).msg_id, job);
    drop(stranger);
}

#[test]
fn of_workers_that_show_nothing_it_is_said_where_the_output_comes() {
    let leader = Leader::start(&[]);
    let (mut submits, mut follows) = (client(&leader), client(&leader));
    let (stays, now) = (Uuid::new_v4(), Uuid::new_v4());
    let once = |job| Follow { flags: FollowFlags::default(), ..wish(job) };

    let job = Uuid::new_v4();
    let mut older = Raw::worker(&leader, Uuid::new_v4(), "job.assign.x");
    submits.submit(job, "x", &[]);
    started(&mut older);
    say(&mut follows, now, &once(job));
    let (id, says, _, text) = heard(&mut follows);
    assert_eq!((id, says), (now, OutputSays::Refused));
    assert!(text.contains("without `follow`: the job's output comes with its result"), "{text}");
    say(&mut follows, stays, &wish(job));
    let (id, says, _, text) = heard(&mut follows);
    assert_eq!((id, says), (stays, OutputSays::Waits));
    assert!(text.contains("without `follow`"), "{text}");
    done(&mut older, job, 1);
    assert_eq!(heard(&mut follows), (stays, OutputSays::JobEnded, 1, String::new()));
    drop(older);

    let job = Uuid::new_v4();
    let mut classic = classic_worker(leader.port, &["job.assign.*"]);
    submits.submit(job, "hang", &[]);
    classic.event("assigned");
    say(&mut follows, now, &once(job));
    let (id, says, _, text) = heard(&mut follows);
    assert_eq!((id, says), (now, OutputSays::Refused));
    assert!(text.contains("is a classic worker: the job's output comes with its result"), "{text}");
    let answer = submits.ask("cancel", &json!({"job_id": job}));
    assert_eq!(answer["was"], "running");
}

#[test]
fn a_job_to_all_workers_names_the_jobs_to_follow_instead() {
    let leader = Leader::start(&[]);
    let (mut submits, mut follows) = (client(&leader), client(&leader));
    let mut workers: Vec<Raw> =
        ["w1", "w2"].map(|name| worker(&leader, Uuid::new_v4(), name)).into();
    let job = Uuid::new_v4();
    let request = json!({"JobId": job, "ClientId": "c", "ExecName": "x", "Args": [], "Files": [], "Deliver": "all"});
    submits.send(Kind::SubmitJob, job, Uuid::nil(), "job.submit.x", request.to_string().as_bytes());
    let child = next(&mut workers[0], Kind::Start).msg_id;
    let follow = Uuid::new_v4();
    say(&mut follows, follow, &wish(job));
    let (_, says, _, text) = heard(&mut follows);
    assert_eq!(says, OutputSays::Refused);
    assert!(
        text.contains("went to all workers, 2 of them") && text.contains(&child.to_string()),
        "{text}"
    );
    say(&mut follows, follow, &wish(child));
    let (id, wanted) = asked(&mut workers[0]);
    assert_eq!(wanted.job, child);
    put(&mut workers[0], id, &begins(1));
    assert_eq!(heard(&mut follows).1, OutputSays::Begins);
}

#[test]
fn a_connection_has_so_many_follows_and_they_end_with_it() {
    let leader = Leader::start(&[]);
    let (mut submits, mut follows) = (client(&leader), client(&leader));
    let mut worker = worker(&leader, Uuid::new_v4(), "w");
    let job = Uuid::new_v4();
    submits.submit(job, "x", &[]);
    started(&mut worker);
    for _ in 0..65 {
        say(&mut follows, Uuid::new_v4(), &wish(job));
    }
    let (_, says, _, text) = heard(&mut follows);
    assert_eq!(says, OutputSays::Refused);
    assert!(text.starts_with("this connection follows 64 outputs"), "{text}");
    let refused =
        Output::decode(&[&[1, 5][..], &[0; 16], &17_u16.to_le_bytes()].concat()).unwrap().reason;
    assert_eq!(refused, Reason::BUSY);
    let ids: Vec<Uuid> = (0..64).map(|_| asked(&mut worker).0).collect();
    drop(follows);
    for _ in 0..64 {
        let (id, last) = asked(&mut worker);
        assert!(ids.contains(&id) && last.flags.has(FollowFlags::OVER));
    }
    let mut asks = client(&leader);
    eventually("the job still runs", || asks.ask("status", &json!({}))["jobs"]["running"] == 1);
}
