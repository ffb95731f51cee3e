//! The leader's memory: however many peers do not read what they are sent, it stays within its
//! limits, those that read are served, and what was freed goes back to the system. Real leaders,
//! with their defaults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use chunking::{Generation, Head, Kind};
use procs::{Leader, eventually};
use raw::Raw;
use serde_json::{Value, json};
use socket2::{Domain, Socket, Type};
use support::scaled;
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// Nearly a frame, and more than the system takes for a socket that nobody reads.
const LARGE: usize = 3_900_000;

/// What the leader may take beside what it has at rest: payloads on their way (64 MiB), those that
/// the log has and that are being read (16 and 16), a few frames that come, and the log's own
/// buffers.
const GROWS_MAX: usize = 190 * MIB;

/// The same where no payload goes out: what the log has and reads, what waits for it, and the one
/// result.
const RESULTS_GROW_MAX: usize = 110 * MIB;

/// What may be left of that when everybody is gone: payloads that the log has, and the log's own
/// buffers.
const STAYS_MAX: usize = 64 * MIB;

/// Bytes of a leader that are in memory, or were at most.
fn resident(leader: &Leader, field: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", leader.proc.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[track_caller]
fn grew_by_less(leader: &Leader, before: usize, most: usize) {
    let grown = resident(leader, "VmHWM").saturating_sub(before);
    assert!(
        grown < most,
        "the leader took {} MiB more, where {} are the most",
        grown / MIB,
        most / MIB
    );
}

#[track_caller]
fn comes_back(leader: &Leader, before: usize) {
    eventually("its memory is returned", || resident(leader, "VmRSS") < before + STAYS_MAX);
}

/// A connection whose end takes little that is not read.
fn narrow(leader: &Leader) -> Raw {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], leader.port)).into()).unwrap();
    Raw::on(TcpStream::from(socket))
}

/// A worker with this much credit. A classic one announces nothing.
fn worker(leader: &Leader, program: &str, is_classic: bool, credit: i32) -> Raw {
    let (mut raw, pattern) = (narrow(leader), format!("job.assign.{program}"));
    if is_classic {
        raw.send(Kind::HelloWorker, Uuid::new_v4(), Uuid::nil(), &pattern, b"");
    } else {
        raw = raw.hello_worker(Uuid::new_v4(), &pattern);
    }
    raw.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &credit.to_le_bytes());
    raw
}

fn client(leader: &Leader, name: &str) -> Raw {
    let mut raw = narrow(leader);
    let config = format!(r#"{{"ClientId":"{name}","DesiredParallelism":1000}}"#);
    raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), name, config.as_bytes());
    raw
}

/// What tells one job's bytes from another's.
fn long_text(job: Uuid, len: usize) -> String {
    let mut text = job.simple().to_string().repeat(len / 32 + 1);
    text.truncate(len);
    text
}

fn request(job: Uuid, program: &str, len: usize, deliver: Option<&str>) -> Vec<u8> {
    let mut request = json!({"JobId": job, "ClientId": "c", "ExecName": program, "Args": [long_text(job, len)], "Files": []});
    if let Some(deliver) = deliver {
        request["Deliver"] = deliver.into();
    }
    request.to_string().into_bytes()
}

fn submit(client: &mut Raw, job: Uuid, program: &str, len: usize, deliver: Option<&str>) {
    let payload = request(job, program, len, deliver);
    client.send(Kind::SubmitJob, job, Uuid::nil(), &format!("job.submit.{program}"), &payload);
}

fn result_of(job: Uuid, len: usize) -> Vec<u8> {
    json!({"JobId": job, "Status": "OK", "Stdout": long_text(job, len)}).to_string().into_bytes()
}

fn next(raw: &mut Raw, kind: Kind) -> raw::Frame {
    loop {
        let frame = raw.next().unwrap_or_else(|| panic!("hung up on before {kind:?}"));
        if frame.kind == kind {
            return frame;
        }
    }
}

fn jobs(asks: &mut Raw, what: &str) -> u64 {
    asks.ask("status", &json!({}))["jobs"][what].as_u64().unwrap()
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(120);
    while !is_so() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A job of this size goes to a worker that reads, and its result, as long, to a client that does.
fn is_served(leader: &Leader, program: &str) {
    let (mut worker, mut client) = (worker(leader, program, false, 1), client(leader, program));
    let job = Uuid::new_v4();
    submit(&mut client, job, program, LARGE, None);
    let assigned = next(&mut worker, Kind::AssignJob);
    assert!(assigned.payload == request(job, program, LARGE, None), "other bytes than were sent");
    worker.send(Kind::AckJob, Uuid::new_v4(), job, "", &result_of(job, LARGE));
    assert!(
        next(&mut client, Kind::Result).payload == result_of(job, LARGE),
        "other bytes than were sent"
    );
}

#[test]
fn a_job_to_all_workers_costs_its_size_once_and_each_gets_it_under_its_own_id() {
    for durability in ["disk", "memory"] {
        let leader = Leader::start(&["--durability", durability]);
        let count = scaled(40, 300);
        let mut workers: Vec<Raw> =
            (0..count).map(|n| worker(&leader, "echo", n % 2 == 1, 1)).collect();
        let (mut client, mut asks) = (client(&leader, "c"), Raw::client(&leader, "asks"));
        let before = resident(&leader, "VmRSS");
        let job = Uuid::new_v4();
        submit(&mut client, job, "echo", LARGE, Some("all"));
        until("all have it", || jobs(&mut asks, "running") >= u64::from(count));
        grew_by_less(&leader, before, 64 * MIB);
        for worker in &mut workers {
            let assigned = next(worker, Kind::AssignJob);
            let got: Value = serde_json::from_slice(&assigned.payload).unwrap();
            assert_eq!(got["JobId"], json!(assigned.msg_id));
            assert!(assigned.msg_id != job && got.get("Deliver").is_none());
            assert!(got["Args"][0] == long_text(job, LARGE), "other bytes than were sent");
            let done = result_of(assigned.msg_id, 10);
            worker.send(Kind::AckJob, Uuid::new_v4(), assigned.msg_id, "", &done);
        }
        let result: Value =
            serde_json::from_slice(&next(&mut client, Kind::Result).payload).unwrap();
        let lines = result["Stdout"].as_str().unwrap().lines().count();
        assert_eq!((result["Status"].as_str(), lines), (Some("OK"), count as usize));
        grew_by_less(&leader, before, 64 * MIB);
    }
}

#[test]
fn jobs_wait_on_the_disk_for_workers_that_do_not_read_and_others_get_theirs() {
    let leader = Leader::start(&[]);
    let count = scaled(50, 100);
    let mut workers: Vec<Raw> =
        (0..count).map(|n| worker(&leader, "echo", n % 2 == 1, 50)).collect();
    let (mut client, mut asks) = (client(&leader, "c"), Raw::client(&leader, "asks"));
    let before = resident(&leader, "VmRSS");
    for _ in 0..2 * count {
        submit(&mut client, Uuid::new_v4(), "echo", LARGE, None);
    }
    until("all are given", || jobs(&mut asks, "running") >= 2 * u64::from(count));
    is_served(&leader, "other");
    grew_by_less(&leader, before, GROWS_MAX);
    // Whoever reads after all gets what was sent.
    for worker in workers.iter_mut().take(20) {
        let assigned = next(worker, Kind::AssignJob);
        assert!(
            assigned.payload == request(assigned.msg_id, "echo", LARGE, None),
            "other bytes than were sent"
        );
    }
    grew_by_less(&leader, before, GROWS_MAX);
    drop((workers, client));
    comes_back(&leader, before);
}

#[test]
fn results_wait_on_the_disk_for_clients_that_come_back_and_do_not_read_and_others_get_theirs() {
    let leader = Leader::start(&[]);
    let (count, each) = (scaled(40, 80), 2);
    for number in 0..count {
        let mut client = client(&leader, &format!("c{number}"));
        (0..each).for_each(|_| submit(&mut client, Uuid::new_v4(), "echo", 10, None));
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        while client.next().is_some() {}
    }
    let mut asks = Raw::client(&leader, "asks");
    let mut worker = worker(&leader, "echo", false, 1);
    for _ in 0..count * each {
        let job = next(&mut worker, Kind::AssignJob).msg_id;
        worker.send(Kind::AckJob, Uuid::new_v4(), job, "", &result_of(job, LARGE));
        worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
    }
    until("all have ended", || jobs(&mut asks, "done") >= u64::from(count * each));
    let before = resident(&leader, "VmRSS");
    let mut clients: Vec<Raw> =
        (0..count).map(|number| client(&leader, &format!("c{number}"))).collect();
    // Classic clients get what waited for them when it is clear that they submit nothing.
    std::thread::sleep(Duration::from_secs(3));
    is_served(&leader, "other");
    grew_by_less(&leader, before, GROWS_MAX);
    for client in clients.iter_mut().take(20) {
        for _ in 0..each {
            let result = next(client, Kind::Result);
            assert!(
                result.payload == result_of(result.msg_id, LARGE),
                "other bytes than were sent"
            );
        }
    }
    grew_by_less(&leader, before, GROWS_MAX);
    drop(clients);
    comes_back(&leader, before);
}

#[test]
fn large_frames_that_are_never_whole_have_their_bytes_and_others_come_through() {
    let leader = Leader::start(&[]);
    let before = resident(&leader, "VmRSS");
    let count = scaled(100, 300);
    let frame = {
        let (mut bytes, payload) = (Vec::new(), vec![b'x'; 4_000_000]);
        let head = Head { payload_len: 4_000_000, ..Head::new(Kind::AckJob) };
        head.append(Generation::F2, &mut bytes).unwrap();
        [bytes, payload].concat()
    };
    let workers: Vec<TcpStream> =
        (0..count).map(|n| worker(&leader, "echo", n % 2 == 1, 1).stream).collect();
    for worker in &workers {
        let (mut stream, most) = (worker.try_clone().unwrap(), frame[..3_990_000].to_vec());
        std::thread::spawn(move || stream.write_all(&most));
    }
    is_served(&leader, "other");
    std::thread::sleep(Duration::from_secs(2));
    grew_by_less(&leader, before, GROWS_MAX);
    is_served(&leader, "other");
    workers.iter().for_each(|worker| worker.shutdown(std::net::Shutdown::Both).unwrap_or_default());
    comes_back(&leader, before);
}

#[test]
fn results_of_all_workers_at_once_wait_for_the_log_in_their_sockets() {
    let leader = Leader::start(&[]);
    let count = scaled(60, 100);
    let workers: Vec<Raw> = (0..count).map(|n| worker(&leader, "echo", n % 2 == 1, 1)).collect();
    let (mut client, before) = (client(&leader, "c"), resident(&leader, "VmRSS"));
    submit(&mut client, Uuid::new_v4(), "echo", 10, Some("all"));
    // Made before, or making them would be slower than the log.
    let at_once = Arc::new(Barrier::new(count as usize));
    let answering: Vec<_> = workers
        .into_iter()
        .map(|mut worker| {
            let at_once = at_once.clone();
            std::thread::spawn(move || {
                let job = next(&mut worker, Kind::AssignJob).msg_id;
                let result = result_of(job, LARGE);
                at_once.wait();
                worker.send(Kind::AckJob, Uuid::new_v4(), job, "", &result);
                worker
            })
        })
        .collect();
    let workers: Vec<Raw> =
        answering.into_iter().map(|answering| answering.join().unwrap()).collect();
    let result: Value = serde_json::from_slice(&next(&mut client, Kind::Result).payload).unwrap();
    assert_eq!(result["Stdout"].as_str().unwrap().lines().count(), count as usize);
    grew_by_less(&leader, before, RESULTS_GROW_MAX);
    drop((workers, client));
    comes_back(&leader, before);
}
