//! Which driver serves, on systems that do not let a leader have what it is used to: io_uring that
//! is forbidden, hidden or short of memory, no pipes, too few descriptors. The leader falls back or
//! refuses, as `--driver` asked, and says what to do; what it can do, it does right.

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
#[allow(dead_code)]
#[path = "transfers/world.rs"]
mod world;

use std::io::{Read, Write};

use chunking::Kind;
use procs::{Leader, TempDir, heft};
use raw::Raw;
use serde_json::Value;
use uuid::Uuid;
use world::{MIB, expect_digests, noise_in, submit_files, worker_at};

const NO_RING: [(&str, &str); 3] = [
    ("io_uring_setup=EPERM", "io_uring is forbidden here: set kernel.io_uring_disabled to 0"),
    ("io_uring_enter=EPERM", "io_uring is forbidden here: set kernel.io_uring_disabled to 0"),
    ("io_uring_setup=ENOSYS", "there is no io_uring here: use Linux 5.7 or later"),
];

/// Starts a leader that has to start.
fn started(confines: &[&str], args: &[&str]) -> Leader {
    Leader::confined(confines, args)
        .unwrap_or_else(|(code, lines)| panic!("ended with {code:?}: {lines:#?}"))
}

/// Starts a leader that must not start: it ends with code 3 and has said nothing of listening.
/// Gives what it said.
fn refused(confines: &[&str], args: &[&str]) -> String {
    match Leader::confined(confines, args) {
        Ok(leader) => panic!("it listens: {:?}", leader.proc.said("listening on")),
        Err((code, lines)) => {
            assert_eq!(code, Some(3), "{lines:#?}");
            lines.join("\n")
        }
    }
}

fn status(leader: &Leader) -> Value {
    let (code, out, err) = heft(&["status", &leader.addr(), "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

/// The driver that runs, which the line at start, the log, the status for programs and the one for
/// people all name.
fn driver_of(leader: &Leader) -> String {
    let driver = status(leader)["leader"]["driver"].as_str().unwrap().to_owned();
    let listening = leader.proc.said("listening on").unwrap();
    assert!(listening.contains(&format!("(driver {driver},")), "{listening}");
    assert!(
        leader.proc.said(&format!("driver {driver}: ")).is_some(),
        "the log says why it is {driver}"
    );
    let (code, table, _) = heft(&["status", &leader.addr()]);
    assert_eq!(code, Some(0));
    assert!(table.contains(&format!("driver {driver},")), "{table}");
    driver
}

/// A file in chunks reaches a worker and is right. Gives the leader's part of the status after it.
fn assert_serves(leader: &Leader) -> Value {
    let dir = TempDir::new();
    let file = noise_in(&dir, "in.bin", 6 * MIB as u64 + 17);
    let worker = worker_at(leader.port, &[]);
    let submit = submit_files(&leader.addr(), "digests", &[&file], &["--compress", "none"]);
    expect_digests(submit, &[&file]);
    drop(worker);
    status(leader)["leader"].take()
}

/// Why this system has no io_uring, if it has none: then tests that need it have nothing to look
/// at.
fn no_ring_here() -> Option<String> {
    let (_, lines) = Leader::confined(&[], &["--driver", "uring"]).err()?;
    let why = lines.join("\n");
    eprintln!("there is no io_uring here, so this test looks at nothing: {why}");
    assert!(why.contains("--driver uring is unavailable: "), "{why}");
    Some(why)
}

#[test]
fn the_driver_that_is_asked_for_runs_and_is_named_wherever_one_looks() {
    let portable = started(&[], &["--driver", "portable"]);
    assert_eq!(driver_of(&portable), "portable");
    let auto = started(&[], &["--driver", "auto"]);
    if no_ring_here().is_some() {
        assert_eq!(driver_of(&auto), "portable");
        return;
    }
    assert_eq!(driver_of(&auto), "uring");
    let uring = started(&[], &["--driver", "uring"]);
    assert_eq!(driver_of(&uring), "uring");
    assert_serves(&uring);
}

#[test]
fn without_io_uring_auto_falls_back_and_says_why_and_what_to_do() {
    for (call, why) in NO_RING {
        let leader = started(&["--refuse", call], &["--driver", "auto"]);
        assert_eq!(driver_of(&leader), "portable");
        let said = leader.proc.said("driver portable: ").unwrap();
        assert!(said.contains(why) && said.contains("seccomp"), "{said}");
        assert_serves(&leader);
    }
}

#[test]
fn without_io_uring_a_leader_that_was_to_use_it_refuses_with_the_remedy() {
    for (call, why) in NO_RING {
        let said = refused(&["--refuse", call], &["--driver", "uring"]);
        assert!(said.contains(why) && said.contains("or use --driver portable"), "{said}");
        assert!(!said.contains("listening"), "{said}");
    }
}

#[test]
fn a_leader_that_is_not_to_use_io_uring_does_not_even_look() {
    let leader = started(&["--refuse", "io_uring_setup=kill"], &["--driver", "portable"]);
    assert_eq!(driver_of(&leader), "portable");
    assert!(leader.proc.said("driver portable: as asked for").is_some());
    assert_serves(&leader);
}

#[test]
fn without_pipes_there_is_no_splice_path_and_chunks_go_by_buffers() {
    for driver in ["portable", "auto"] {
        let leader =
            started(&["--refuse", "pipe2=EMFILE"], &["--driver", driver, "--verify", "end"]);
        let said =
            leader.proc.said("no splice path, chunks go by buffers").expect("the log says so");
        assert!(said.contains("ulimit -n"), "{said}");
        let after = assert_serves(&leader);
        assert_eq!(after["chunks_passed_through"], 0, "{after}");
        assert_eq!(after["driver"] == "portable", driver == "portable" || no_ring_here().is_some());
    }
}

#[test]
fn without_memory_to_lock_the_leader_serves_or_names_the_limit() {
    // Kernels from 5.12 on count a ring as other memory; those before refuse it.
    let auto = started(&["--limit", "memlock=0"], &["--driver", "auto"]);
    if driver_of(&auto) == "portable" && no_ring_here().is_none() {
        let said = auto.proc.said("driver portable: ").unwrap();
        assert!(said.contains("ulimit -l"), "{said}");
    }
    assert_serves(&auto);
    if no_ring_here().is_some() {
        return;
    }
    match Leader::confined(&["--limit", "memlock=0"], &["--driver", "uring"]) {
        Ok(leader) => {
            assert_serves(&leader);
        }
        Err((code, lines)) => {
            let said = lines.join("\n");
            assert_eq!(code, Some(3), "{said}");
            assert!(said.contains("ulimit -l") && said.contains("LimitMEMLOCK="), "{said}");
        }
    }
}

#[test]
fn with_too_few_descriptors_no_driver_starts_and_the_remedy_is_named() {
    for driver in ["auto", "uring", "portable"] {
        let said = refused(&["--limit", "nofile=32"], &["--driver", driver]);
        for part in ["32 descriptors", "at least 64", "ulimit -n", "LimitNOFILE="] {
            assert!(said.contains(part), "{part} is missing: {said}");
        }
    }
}

/// A client's connection that says hello and then nothing.
fn idle(leader: &Leader, number: usize) -> Raw {
    let mut raw = Raw::connect(leader);
    let config = format!(
        r#"{{"ClientId":"idle-{number}","DesiredParallelism":1,"Heft":{{"Version":1,"Features":[]}}}}"#
    );
    raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), "idle", config.as_bytes());
    raw
}

#[test]
fn the_leader_takes_all_the_descriptors_that_it_may_have() {
    let leader = started(&["--limit", "nofile=64:1024"], &[]);
    assert!(leader.proc.said("up to 1024 open descriptors").is_some());
    let mut peers: Vec<Raw> = (0..100).map(|number| idle(&leader, number)).collect();
    for peer in &mut peers {
        assert_eq!(peer.next().expect("it is served").kind, Kind::Welcome);
    }
}

#[test]
fn out_of_descriptors_the_leader_serves_whom_it_has_and_takes_others_when_some_leave() {
    let mut leader = started(&["--limit", "nofile=128"], &[]);
    let _worker = worker_at(leader.port, &[]);
    let mut early = Raw::client(&leader, "early");
    let mut run_job = |number: u128| {
        let job = Uuid::from_u128(number);
        early.submit(job, "digests", &[]);
        assert_eq!(early.next().unwrap().kind, Kind::Submitted);
        let told = std::iter::from_fn(|| early.next()).find(|frame| frame.kind != Kind::Progress);
        assert_eq!(told.map(|frame| (frame.kind, frame.msg_id)), Some((Kind::Result, job)));
    };
    run_job(1);
    // More than it may have: the system takes them all, the leader only some.
    let mut crowd: Vec<Raw> = (0..200).map(|number| idle(&leader, number)).collect();
    let said = leader.proc.wait_for("that it cannot accept", |line| {
        line.contains("cannot accept a connection").then(|| line.to_owned())
    });
    assert!(said.contains("ulimit -n") && said.contains("LimitNOFILE="), "{said}");
    assert_eq!(crowd[0].next().expect("the first is served").kind, Kind::Welcome);
    crowd[199].stream.set_nonblocking(true).unwrap();
    let last = crowd[199].stream.read(&mut [0; 1]);
    assert_eq!(last.unwrap_err().kind(), std::io::ErrorKind::WouldBlock, "the last one waits");
    crowd[199].stream.set_nonblocking(false).unwrap();
    run_job(2);
    drop(crowd.drain(..150));
    for mut waited in crowd {
        assert_eq!(waited.next().expect("who waited is served").kind, Kind::Welcome);
    }
    leader
        .proc
        .wait_for("that it accepts again", |line| line.contains("accepted again").then_some(()));
    run_job(3);
    assert_serves(&leader);
}

/// A worker that has asked for more answers than its connection holds, and reads none of them.
fn stuck(leader: &Leader) -> Raw {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let addr: std::net::SocketAddr = leader.addr().parse().unwrap();
    socket.connect(&addr.into()).unwrap();
    let mut stuck = Raw::on(socket.into()).hello_worker(Uuid::new_v4(), "job.assign.stuck");
    let question = [&[1], "{}".as_bytes()].concat();
    let mut frame = Vec::new();
    let head = chunking::Head {
        msg_id: Uuid::from_u128(7),
        subject: "status",
        payload_len: u32::try_from(question.len()).unwrap(),
        ..chunking::Head::new(Kind::Ask)
    };
    head.append(chunking::Generation::F2, &mut frame).unwrap();
    frame.extend(question);
    let questions = frame.repeat(1000);
    for _ in 0..QUESTIONS / 1000 {
        stuck.stream.write_all(&questions).unwrap();
    }
    stuck
}

/// What [`stuck`] asks; each answer has more than half a kilobyte.
const QUESTIONS: usize = 15_000;

/// Others are served meanwhile; by then the leader has all questions behind it.
fn ask_for_a_while(leader: &Leader) {
    let mut other = Raw::client(leader, "other");
    for _ in 0..300 {
        other.ask("status", &serde_json::json!({}));
    }
}

fn assert_stops(leader: Leader) {
    let Leader { proc, .. } = leader;
    proc.terminate();
    let (code, lines) = proc.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
}

/// The drivers that can be had here.
fn drivers() -> Vec<&'static str> {
    let uring = no_ring_here().is_none().then_some("uring");
    ["portable"].into_iter().chain(uring).collect()
}

#[test]
fn a_leader_stops_though_peers_take_nothing_or_say_nothing() {
    let leader = started(&[], &["--drain", "0s"]);
    let silent: Vec<Raw> = (0..20).map(|_| Raw::connect(&leader)).collect();
    let stuck = stuck(&leader);
    ask_for_a_while(&leader);
    assert_stops(leader);
    drop((silent, stuck));
}

/// A frame that is longer than any.
const GARBAGE: [u8; 40] = [0x7f; 40];

/// Says this last and closes its side of the connection. The leader has read all of it, then, or
/// has given the peer up: where a receive buffer is full to the brim, Linux drops whole segments
/// with the acknowledgements in them, and what the peer has sent last may not arrive until it
/// reads.
fn leave(leader: &mut Leader, peer: &mut Raw, last: &[u8]) {
    peer.stream.write_all(last).unwrap();
    // It may have been given up already.
    if let Err(error) = peer.stream.shutdown(std::net::Shutdown::Write) {
        assert_eq!(error.kind(), std::io::ErrorKind::NotConnected, "{error}");
    }
    leader.proc.wait_for("the end of a connection", |line| {
        line.contains("connection ended").then_some(())
    });
}

#[test]
fn a_leader_stops_though_peers_that_take_nothing_have_closed_their_side_or_sent_garbage() {
    for driver in drivers() {
        let mut leader = started(&[], &["--drain", "0s", "--driver", driver]);
        let (mut closed, mut garbled) = (stuck(&leader), stuck(&leader));
        leave(&mut leader, &mut closed, &[]);
        leave(&mut leader, &mut garbled, &GARBAGE);
        assert_stops(leader);
        drop((closed, garbled));
    }
}

#[test]
fn a_peer_that_has_closed_its_side_is_sent_all_that_waits_for_it() {
    for driver in drivers() {
        let leader = started(&[], &["--driver", driver]);
        let mut stuck = stuck(&leader);
        stuck.stream.shutdown(std::net::Shutdown::Write).unwrap();
        ask_for_a_while(&leader);
        assert_eq!(std::iter::from_fn(|| stuck.next()).count(), QUESTIONS);
    }
}

#[test]
fn a_peer_whose_frames_make_no_sense_is_not_sent_what_waits_for_it() {
    for driver in drivers() {
        let mut leader = started(&[], &["--driver", driver]);
        let mut stuck = stuck(&leader);
        leave(&mut leader, &mut stuck, &GARBAGE);
        let read = std::iter::from_fn(|| stuck.next()).count();
        assert!(read < QUESTIONS, "all was sent to it");
    }
}

#[test]
fn a_peer_that_is_hung_up_on_and_does_not_take_the_reason_is_not_waited_for_as_a_slow_one() {
    for driver in drivers() {
        let leader = started(&[], &["--drain", "0s", "--driver", driver]);
        let mut stuck = stuck(&leader);
        // A second hello.
        stuck.send(Kind::HelloWorker, Uuid::new_v4(), Uuid::nil(), "job.assign.stuck", b"");
        let until = std::time::Instant::now() + procs::PATIENCE;
        while status(&leader)["leader"]["connections"] != 1 {
            assert!(std::time::Instant::now() < until, "its connection does not end");
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let Leader { proc, .. } = leader;
        proc.terminate();
        let (code, lines) = proc.finish();
        assert_eq!(code, Some(0), "{lines:#?}");
        assert!(!lines.iter().any(|line| line.contains("it read nothing for")), "{lines:#?}");
        drop(stuck);
    }
}
