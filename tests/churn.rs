//! Connections that are dropped in every state they can be in, thousands of them: when the last is
//! gone, the leader has what it had before, and still does its work.
//!
//! `HEFT_TEST_SCALE=long` opens and drops 10,000.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/uploads.rs"]
mod uploads;
#[allow(dead_code)]
#[path = "transfers/world.rs"]
mod world;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use chunking::message::{Body, Open, OpenFlags, Purpose, Start};
use chunking::{Codec, DigestKind, Generation, Head, Kind};
use heft::model::blob_id;
use procs::{Leader, PATIENCE};
use raw::Raw;
use serde_json::{Value, json};
use support::scaled;
use uploads::{chunk_frame, next_of, say, upload_to};
use uuid::Uuid;
use world::{MIB, World};

/// Connections that are under way at a time.
const AT_A_TIME: u32 = 4;

/// What the leader's memory may grow by: its buffers (`--buffers`), and some for the allocator. Not
/// a little for each connection.
const GROWTH_MAX: u64 = 24 * MIB as u64;

/// The states in which a connection is dropped.
#[derive(Clone, Copy, Debug)]
enum State {
    /// Nothing was said.
    Silent,
    /// A few bytes of a frame's head.
    InHead,
    /// Said hello as a classic client, or a classic worker with credit, of one of the generations.
    Classic(Generation, Kind),
    /// Said hello as a heft client, and was welcomed.
    Client,
    /// Said hello as a heft worker with credit, and was welcomed.
    Worker,
    /// In the body of a frame that is gathered.
    InBody,
    /// In a large frame of a classic client.
    InBulk,
    /// A blob is open, and nothing of it sent.
    Opened,
    /// In the middle of a chunk that is gathered, as no worker takes it.
    InChunk,
    /// In the middle of a chunk that passes through to a worker; that one goes, too.
    Through,
    /// A worker that has got half of a chunk; the chunk was sent whole.
    HalfGot,
    /// A worker in the middle of a chunk of its result.
    InResult,
}

const STATES: [State; 17] = [
    State::Silent,
    State::InHead,
    State::Classic(Generation::F0, Kind::HelloClient),
    State::Classic(Generation::F0, Kind::HelloWorker),
    State::Classic(Generation::F1, Kind::HelloClient),
    State::Classic(Generation::F1, Kind::HelloWorker),
    State::Classic(Generation::F2, Kind::HelloClient),
    State::Classic(Generation::F2, Kind::HelloWorker),
    State::Client,
    State::Worker,
    State::InBody,
    State::InBulk,
    State::Opened,
    State::InChunk,
    State::Through,
    State::HalfGot,
    State::InResult,
];

/// How it is dropped.
#[derive(Clone, Copy, Debug)]
enum Drop {
    Close,
    /// Both ends forget it at once (RST).
    Reset,
    /// Nothing more is sent; the rest is read.
    HalfClose,
}

const DROPS: [Drop; 3] = [Drop::Close, Drop::Reset, Drop::HalfClose];

fn frame(generation: Generation, kind: Kind, subject: &str, payload: &[u8]) -> Vec<u8> {
    let payload_len = u32::try_from(payload.len()).unwrap();
    let mut bytes = Vec::new();
    let head = Head { msg_id: Uuid::new_v4(), subject, payload_len, ..Head::new(kind) };
    head.append(generation, &mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    bytes
}

/// The front of a SubmitJob that says it is longer than it will be.
fn large_submit(announced: u32, sent: usize) -> Vec<u8> {
    let mut bytes = frame(Generation::F2, Kind::SubmitJob, "stock", b"");
    let at = bytes.len() - 4;
    let body = u32::try_from(at).unwrap() + announced;
    bytes[..4].copy_from_slice(&body.to_le_bytes());
    bytes[at..].copy_from_slice(&announced.to_le_bytes());
    bytes.extend_from_slice(br#"{"ExecName":"x","Args":[],"Files":[{"Name":"a","Content":""#);
    bytes.resize(bytes.len() + sent, b'A');
    bytes
}

fn connect(leader: &Leader) -> TcpStream {
    let stream = TcpStream::connect(leader.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

fn send(leader: &Leader, bytes: &[u8]) -> TcpStream {
    let mut stream = connect(leader);
    stream.write_all(bytes).unwrap();
    stream
}

/// Half of the first chunk of a blob.
fn half_a_chunk(id: Uuid) -> Vec<u8> {
    let mut bytes = chunk_frame(id, 0, &[7; MIB]);
    bytes.truncate(MIB / 2);
    bytes
}

/// A worker and a client whose job it gets, with the blob that the client brings: the worker has
/// granted a window.
fn assigned(leader: &Leader, number: u32) -> (Raw, Raw, Uuid) {
    let exec = format!("own-{number}");
    let mut worker = Raw::worker(leader, Uuid::new_v4(), &format!("job.assign.{exec}"));
    let mut client = Raw::client(leader, &format!("client-{number}"));
    let (id, _) = upload_to(&mut client, Uuid::new_v4(), &exec, 2 * MIB);
    assert_eq!(next_of(&mut worker, Kind::Open).msg_id, id);
    say(&mut worker, id, &blobs::grant(4, &[]));
    // When the question is answered the Grant has been heard.
    worker.ask("status", &json!({}));
    (worker, client, id)
}

/// Brings a connection, or two, into a state.
fn enter(state: State, leader: &Leader, number: u32) -> Vec<TcpStream> {
    let client = || Raw::client(leader, &format!("client-{number}"));
    match state {
        State::Silent => vec![connect(leader)],
        State::InHead => {
            let hello = frame(Generation::F2, Kind::HelloClient, "client", b"{}");
            vec![send(leader, &hello[..1 + number as usize % 40])]
        }
        State::Classic(generation, kind) => {
            let subject = if kind == Kind::HelloWorker { "job.assign.classic" } else { "stock" };
            let hello = frame(generation, kind, subject, b"");
            let credit = frame(generation, Kind::Credit, "", &1_i32.to_le_bytes());
            vec![send(
                leader,
                &if kind == Kind::HelloWorker { [hello, credit].concat() } else { hello },
            )]
        }
        State::Client => vec![client().stream],
        State::Worker => vec![Raw::worker(leader, Uuid::new_v4(), "job.assign.nothing").stream],
        State::InBody => {
            let mut client = client();
            let submit =
                frame(Generation::F2, Kind::SubmitJob, "job.submit.nobody", &[b' '; 100_000]);
            client.stream.write_all(&submit[..50_000]).unwrap();
            vec![client.stream]
        }
        State::InBulk => {
            let hello = frame(Generation::F2, Kind::HelloClient, "stock", b"");
            // Less than a buffer, and more than one.
            let sent = if number.is_multiple_of(2) { 100_000 } else { 3 * MIB };
            vec![send(leader, &[hello, large_submit(20 << 20, sent)].concat())]
        }
        State::Opened => {
            let mut client = client();
            upload_to(&mut client, Uuid::new_v4(), "nobody", 2 * MIB);
            vec![client.stream]
        }
        State::InChunk => {
            let mut client = client();
            let (id, grant) = upload_to(&mut client, Uuid::new_v4(), "nobody", 2 * MIB);
            if grant.window > 0 {
                client.stream.write_all(&half_a_chunk(id)).unwrap();
            }
            vec![client.stream]
        }
        State::Through => {
            let (mut worker, mut client, id) = assigned(leader, number);
            client.stream.write_all(&half_a_chunk(id)).unwrap();
            // It has begun to go through, unless the leader checks it first.
            worker.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            worker.stream.read_exact(&mut [0; 1000]).ok();
            worker.stream.set_read_timeout(Some(PATIENCE)).unwrap();
            if number.is_multiple_of(2) {
                vec![client.stream, worker.stream]
            } else {
                vec![worker.stream, client.stream]
            }
        }
        State::HalfGot => {
            let (mut worker, mut client, id) = assigned(leader, number);
            client.stream.write_all(&chunk_frame(id, 0, &[7; MIB])).unwrap();
            worker.stream.read_exact(&mut vec![0; MIB / 2]).unwrap();
            vec![worker.stream, client.stream]
        }
        State::InResult => {
            let exec = format!("own-{number}");
            let mut worker = Raw::worker(leader, Uuid::new_v4(), &format!("job.assign.{exec}"));
            let (mut client, job) = (client(), Uuid::new_v4());
            client.submit(job, &exec, &[]);
            let start = Start::decode(&next_of(&mut worker, Kind::Start).payload).unwrap();
            let id = blob_id(job, start.attempt, Purpose::Archive, 0);
            let open = Open {
                purpose: Purpose::Archive,
                codec: Codec::None,
                digest: DigestKind::ChunkList,
                flags: OpenFlags::KEEPS_SOURCE,
                chunk_bytes: chunking::limits::CHUNK_BYTES_MAX,
                size: 2 * MIB as u64,
                owner: job,
                attempt: start.attempt,
                name: String::new().try_into().unwrap(),
            };
            say(&mut worker, id, &open);
            next_of(&mut worker, Kind::Grant);
            worker.stream.write_all(&half_a_chunk(id)).unwrap();
            // Nobody is to wait for the job when its worker is gone.
            client.ask("cancel", &json!({ "job_id": job }));
            vec![worker.stream, client.stream]
        }
    }
}

fn leave(how: Drop, streams: Vec<TcpStream>) {
    for mut stream in streams {
        match how {
            Drop::Close => {}
            Drop::Reset => {
                socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap()
            }
            Drop::HalfClose => {
                stream.shutdown(Shutdown::Write).ok();
                // To the end, or to a reset; only a leader that does neither is wrong.
                let ended = std::io::copy(&mut stream, &mut std::io::sink());
                let hung = |error: &std::io::Error| error.kind() == std::io::ErrorKind::WouldBlock;
                assert!(
                    !ended.is_err_and(|error| hung(&error)),
                    "the leader keeps a connection that is over"
                );
            }
        }
    }
}

/// Opens and drops so many connections, in every state and every way.
fn churn(leader: &Leader, rounds: u32) {
    let next = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_A_TIME {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= rounds {
                        return;
                    }
                    let state = STATES[number as usize % STATES.len()];
                    let how = DROPS[number as usize / STATES.len() % DROPS.len()];
                    leave(how, enter(state, leader, number));
                }
            });
        }
    });
}

/// What a process has open: sockets, pipes, and everything else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenFiles {
    sockets: usize,
    pipes: usize,
    others: usize,
}

fn open_files(leader: &Leader) -> OpenFiles {
    let mut open = OpenFiles { sockets: 0, pipes: 0, others: 0 };
    for entry in std::fs::read_dir(format!("/proc/{}/fd", leader.proc.pid())).unwrap() {
        // One that was closed meanwhile is none.
        let Ok(target) = std::fs::read_link(entry.unwrap().path()) else { continue };
        let target = target.to_string_lossy().into_owned();
        if target.starts_with("socket:") {
            open.sockets += 1;
        } else if target.starts_with("pipe:") {
            open.pipes += 1;
        } else {
            open.others += 1;
        }
    }
    open
}

fn resident(leader: &Leader) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", leader.proc.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Waits until nothing is left of what was dropped; gives what the leader then has open.
fn settled(world: &World) -> OpenFiles {
    let mut asks = Raw::client(&world.leader, "asks");
    let until = Instant::now() + PATIENCE;
    loop {
        let status = asks.ask("status", &json!({}));
        let (leader, jobs) = (&status["leader"], &status["jobs"]);
        let only = |list: &Value, id: &str, name: &str| {
            let list = list.as_array().unwrap();
            list.len() == 1 && (id.is_empty() || list[0][name] == id)
        };
        // Every task of a connection holds its socket: with the last task the connection and its
        // descriptor go.
        let clean = leader["connections"] == 2
            && leader["buffers_in_use"] == 0
            && leader["buffers_promised"] == 0
            && leader["blobs"] == 0
            && leader["spool_bytes"] == 0
            && leader["payload_bytes"] == 0
            && jobs["queued"] == 0
            && jobs["running"] == 0
            && only(&status["workers"], "", "")
            && only(&status["clients"], "asks", "id")
            && world.blob_files().is_empty();
        if clean {
            return open_files(&world.leader);
        }
        assert!(
            Instant::now() < until,
            "something is left: {status:#}; open: {:?}",
            open_files(&world.leader)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Pipes that wait for use are kept, up to 32 of two descriptors each, and are all the same.
const PIPES_MAX: usize = 64;

#[test]
fn connections_dropped_in_every_state_leave_nothing_behind() {
    dropped_in_every_state("end");
}

#[test]
fn connections_dropped_in_every_state_leave_nothing_behind_where_the_leader_checks() {
    dropped_in_every_state("hop");
}

fn dropped_in_every_state(verify: &str) {
    let args = [
        "--input-wait",
        "100ms",
        "--worker-grace",
        "100ms",
        "--buffers",
        "16MiB",
        "--verify",
        verify,
    ];
    // Chunks pass through only where nothing is kept; the other way is that of a leader that does.
    let world = if verify == "end" { World::in_memory(&args) } else { World::start(&args) };
    let worker = world.worker(&["job.assign.digests"]);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    let file = world.noise("in.bin", 5 * MIB as u64);
    world.run(&[&file], &["--compress", "none"]);
    churn(&world.leader, u32::try_from(STATES.len() * DROPS.len()).unwrap());
    let (before, memory) = (settled(&world), resident(&world.leader));

    churn(&world.leader, scaled(1_500, 10_000));
    let after = settled(&world);
    assert_eq!(
        (after.sockets, after.others),
        (before.sockets, before.others),
        "{before:?}, then {after:?}"
    );
    assert!(after.pipes <= PIPES_MAX, "{after:?}");
    let grown = resident(&world.leader).saturating_sub(memory);
    assert!(grown <= GROWTH_MAX, "the leader's memory grew by {grown} bytes from {memory}");
    println!("{before:?}, then {after:?}; memory was {memory} and grew by {grown}");

    // Chunks went through, and were broken off there: the states were what they are called.
    let voided = world.status()["leader"]["chunks_voided"].as_u64().unwrap();
    assert_eq!(voided > u64::from(scaled(20, 150)), verify == "end", "{voided}");
    world.run(&[&file], &["--compress", "none"]);
    drop(worker);
}
