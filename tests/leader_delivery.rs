//! Results on their way to clients, and jobs on their way to workers: a peer that reads gets all of
//! it at its own pace, exactly once, however much waits for it; a result counts as delivered when
//! its client has it. Real leaders, with their defaults.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use chunking::Kind;
use chunking::message::{Body, Received};
use procs::{Leader, TempDir};
use raw::Raw;
use serde_json::json;
use socket2::{Domain, Socket, Type};
use support::scaled;
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// What a result of the issue's size has.
const LARGE: usize = 3_900_000;

fn id(job: u32) -> Uuid {
    Uuid::from_u128(u128::from(job) + 1)
}

/// The result of a job: its id, and as many bytes as it is to have.
fn result_of(job: Uuid, len: usize) -> Vec<u8> {
    let mut result = job.as_bytes().repeat(len / 16 + 1);
    result.truncate(len.max(16));
    result
}

/// Says hello as a client without announcement, as those of the C# system do.
fn classic(leader: &Leader, name: &str) -> Raw {
    let mut raw = Raw::on(narrow(leader));
    let config = format!(r#"{{"ClientId":"{name}","DesiredParallelism":1000}}"#);
    raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), name, config.as_bytes());
    raw
}

/// A connection whose end takes little that is not read.
fn narrow(leader: &Leader) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_recv_buffer_size(16 << 10).unwrap();
    socket.connect(&SocketAddr::from(([127, 0, 0, 1], leader.port)).into()).unwrap();
    socket.into()
}

/// Says hello as a client that says which results it has.
fn confirming(leader: &Leader, name: &str) -> Raw {
    let mut raw = Raw::on(narrow(leader));
    let config = format!(
        r#"{{"ClientId":"{name}","DesiredParallelism":1000,"Heft":{{"Version":1,"Features":["receipts","submit-answers","ask"]}}}}"#
    );
    raw.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), name, config.as_bytes());
    assert_eq!(raw.next().unwrap().kind, Kind::Welcome);
    raw
}

fn confirm(client: &mut Raw, job: Uuid) {
    let mut payload = Vec::new();
    Received { run: 1 }.encode(&mut payload);
    client.send(Kind::Received, job, Uuid::nil(), "", &payload);
}

/// A worker without announcement that has room for many jobs, and returns results of this length.
fn worker(leader: &Leader, len: usize) -> JoinHandle<usize> {
    let mut raw = Raw::connect(leader);
    raw.send(Kind::HelloWorker, Uuid::new_v4(), Uuid::nil(), "job.assign.echo", b"");
    raw.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_000_i32.to_le_bytes());
    std::thread::spawn(move || {
        let mut jobs = 0;
        while let Some(assigned) = raw.next() {
            jobs += 1;
            let job = assigned.msg_id;
            raw.send(Kind::AckJob, Uuid::new_v4(), job, "", &result_of(job, len));
            raw.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
        }
        jobs
    })
}

fn submit(client: &mut Raw, job: Uuid) {
    client.submit(job, "echo", &[]);
}

/// Jobs of a client that is gone by the time they end.
fn hand_in_and_leave(leader: &Leader, name: &str, jobs: u32, len: usize) {
    let mut client = classic(leader, name);
    (0..jobs).for_each(|job| submit(&mut client, id(job)));
    client.stream.shutdown(Shutdown::Write).unwrap();
    while client.next().is_some() {}
    let mut asks = Raw::client(leader, "asks");
    let count =
        |raw: &mut Raw, what: &str| raw.ask("status", &json!({}))["jobs"][what].as_u64().unwrap();
    let _worker = worker(leader, len);
    // Sixty thousand jobs at `long`, on a machine that may be busy with others.
    let until = Instant::now() + procs::PATIENCE * scaled(2, 10);
    while count(&mut asks, "done") < u64::from(jobs) {
        assert!(Instant::now() < until, "{}", asks.ask("status", &json!({})));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The next result, and whose it is.
fn next_result(client: &mut Raw) -> Option<Uuid> {
    loop {
        let frame = client.next()?;
        if frame.kind == Kind::Result {
            assert_eq!(frame.payload, result_of(frame.msg_id, frame.payload.len()), "its bytes");
            return Some(frame.msg_id);
        }
    }
}

/// Reads so many results, and that none comes twice.
fn results(client: &mut Raw, count: u32) -> BTreeSet<Uuid> {
    let mut seen = BTreeSet::new();
    for came in 0..count {
        let job = next_result(client).unwrap_or_else(|| panic!("cut off after {came} of {count}"));
        assert!(seen.insert(job), "{job} came twice");
    }
    seen
}

fn all(jobs: u32) -> BTreeSet<Uuid> {
    (0..jobs).map(id).collect()
}

/// Bytes of a process that are in memory, or were at most.
fn resident(leader: &Leader, field: &str) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{}/status", leader.proc.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

/// The client is back, and submits again what it has no result of.
fn back(leader: &Leader, name: &str, jobs: impl IntoIterator<Item = Uuid>) -> Raw {
    let mut client = confirming(leader, name);
    jobs.into_iter().for_each(|job| submit(&mut client, job));
    client
}

/// Nothing more waits for a client: one that only comes back would get it after 2 s.
fn nothing_more(leader: &Leader, name: &str) {
    let mut again = classic(leader, name);
    again.stream.set_read_timeout(Some(Duration::from_millis(2_500))).unwrap();
    assert!(next_result(&mut again).is_none(), "a result came again");
}

#[test]
fn large_results_wait_for_a_client_and_are_pushed_as_it_reads_within_bounded_memory() {
    let leader = Leader::start(&[]);
    let jobs = scaled(25, 100);
    hand_in_and_leave(&leader, "away", jobs, LARGE);
    let before = resident(&leader, "VmRSS");
    let mut client = classic(&leader, "away");
    // It takes its time: what is not on its way yet is not in memory.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(results(&mut client, jobs), all(jobs));
    let grown = resident(&leader, "VmHWM").saturating_sub(before);
    assert!(grown < 64 * MIB, "the leader took {} MiB more", grown / MIB);
    drop(client);
    nothing_more(&leader, "away");
}

#[test]
fn many_small_results_wait_for_a_client_and_each_is_pushed_once() {
    let leader = Leader::start(&["--durability", "memory"]);
    let jobs = scaled(4_000, 60_000);
    hand_in_and_leave(&leader, "away", jobs, 600);
    let mut client = classic(&leader, "away");
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(results(&mut client, jobs), all(jobs));
    drop(client);
    nothing_more(&leader, "away");
}

#[test]
fn results_that_a_client_did_not_confirm_come_again_and_no_others() {
    let leader = Leader::start(&[]);
    hand_in_and_leave(&leader, "away", 12, 100_000);
    let mut client = back(&leader, "away", all(12));
    let first = results(&mut client, 8);
    let confirmed: BTreeSet<Uuid> = first.iter().copied().take(5).collect();
    confirmed.iter().for_each(|job| confirm(&mut client, *job));
    // Repeated, of a job that is not known, and of one whose result is not here: no harm.
    confirm(&mut client, *confirmed.first().unwrap());
    confirm(&mut client, Uuid::from_u128(999_999));
    client.ask("status", &json!({}));
    drop(client);
    let mut other = confirming(&leader, "other");
    (0..12).for_each(|job| confirm(&mut other, id(job)));
    other.ask("status", &json!({}));

    let left: BTreeSet<Uuid> = all(12).difference(&confirmed).copied().collect();
    let mut client = back(&leader, "away", left.iter().copied());
    let again = results(&mut client, 7);
    assert_eq!(again, left);
    again.iter().for_each(|job| confirm(&mut client, *job));
    client.ask("status", &json!({}));
    drop(client);
    nothing_more(&leader, "away");
}

#[test]
fn results_that_a_client_got_on_a_new_connection_do_not_come_again_when_the_old_one_ends() {
    let leader = Leader::start(&[]);
    hand_in_and_leave(&leader, "away", 120, 100_000);
    // Some came, some are on their way, the others wait.
    let mut old = back(&leader, "away", all(120));
    results(&mut old, 3);
    let mut new = confirming(&leader, "away");
    (0..120).for_each(|job| submit(&mut new, id(job)));
    assert_eq!(results(&mut new, 120), all(120));
    // It has them all, and has said so of half of them.
    (0..60).for_each(|job| confirm(&mut new, id(job)));
    new.ask("status", &json!({}));
    let mut asks = Raw::client(&leader, "asks");
    let mut connections =
        || asks.ask("status", &json!({}))["leader"]["connections"].as_u64().unwrap();
    let before = connections();
    drop(old);
    let until = Instant::now() + Duration::from_secs(60);
    while connections() >= before {
        assert!(Instant::now() < until, "the old connection is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
    (60..120).for_each(|job| confirm(&mut new, id(job)));
    new.ask("status", &json!({}));
    std::thread::sleep(Duration::from_millis(50));
    new.ask("status", &json!({}));
    new.stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    assert_eq!(next_result(&mut new), None, "a result came again");
    drop(new);
    nothing_more(&leader, "away");
}

#[test]
fn a_leader_that_is_killed_in_the_middle_goes_on_with_what_was_not_received() {
    let data = TempDir::new();
    let start = |port| Leader::start_on(port, &["--data", data.text()]);
    let mut leader = start(0);
    hand_in_and_leave(&leader, "away", 25, LARGE);
    let mut client = back(&leader, "away", all(25));
    let mut times: BTreeMap<Uuid, u32> = BTreeMap::new();
    for _ in 0..6 {
        let job = next_result(&mut client).unwrap();
        *times.entry(job).or_default() += 1;
        confirm(&mut client, job);
    }
    let confirmed: BTreeSet<Uuid> = times.keys().copied().collect();
    client.ask("status", &json!({}));
    leader.proc.kill();
    // What was on its way may still come; it is not confirmed.
    drop(client);
    let leader = start(leader.port);
    let mut missing: BTreeSet<Uuid> = all(25).difference(&confirmed).copied().collect();
    let mut client = back(&leader, "away", missing.iter().copied());
    while !missing.is_empty() {
        let job = next_result(&mut client).expect("it goes on");
        missing.remove(&job);
        *times.entry(job).or_default() += 1;
        confirm(&mut client, job);
    }
    // That a client has a result need not be on the disk when the leader dies, so the last few may
    // come again.
    assert!(times.values().all(|times| *times <= 2), "{times:?}");
    client.ask("status", &json!({}));
    drop(client);
    nothing_more(&leader, "away");
}

#[test]
fn a_classic_client_that_leaves_in_the_middle_gets_the_rest_when_it_is_back() {
    let leader = Leader::start(&[]);
    let jobs = 30;
    hand_in_and_leave(&leader, "away", jobs, LARGE);
    let mut client = classic(&leader, "away");
    let first = results(&mut client, 2);
    drop(client);
    // What was written to its socket counts; the rest waited here, and comes now.
    let mut client = classic(&leader, "away");
    client.stream.set_read_timeout(Some(Duration::from_secs(6))).unwrap();
    let mut rest = BTreeSet::new();
    while let Some(job) = next_result(&mut client) {
        assert!(rest.insert(job) && !first.contains(&job), "{job} came twice");
    }
    assert!(rest.len() >= jobs as usize - 2 - 8, "{} of {jobs} came", rest.len());
}

#[test]
fn a_new_run_of_a_classic_client_gets_its_own_results_and_one_that_only_comes_back_gets_the_old_ones()
 {
    let leader = Leader::start(&[]);
    let old = 3;
    hand_in_and_leave(&leader, "sample", old, 600);
    // It starts anew, under the same name, and counts results.
    let _worker = worker(&leader, 600);
    let mut again = classic(&leader, "sample");
    let own: BTreeSet<Uuid> = (100..103).map(id).collect();
    own.iter().for_each(|job| submit(&mut again, *job));
    assert_eq!(results(&mut again, 3), own);
    again.stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    assert_eq!(next_result(&mut again), None, "none of the last run");
    // A job of that run that it submits again under its id is one of its own.
    submit(&mut again, id(0));
    again.stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(next_result(&mut again), Some(id(0)));
    drop(again);
    // One that lost its connection and has nothing new waits for what it had submitted.
    let mut back = classic(&leader, "sample");
    assert_eq!(results(&mut back, 2), [id(1), id(2)].into());
}

#[test]
fn old_results_that_wait_their_turn_do_not_go_to_a_classic_client_that_submits_something_new() {
    let leader = Leader::start(&[]);
    let old = 12;
    hand_in_and_leave(&leader, "sample", old, LARGE);
    // It submits nothing for longer than a new run would, so the old results begin to come.
    let mut again = classic(&leader, "sample");
    let first = next_result(&mut again).unwrap();
    let _worker = worker(&leader, 600);
    submit(&mut again, id(100));
    // The leader has heard that before more of them had their turn: a few are on their way, and
    // only when one is out does the next follow.
    let mut asks = Raw::client(&leader, "asks");
    let until = Instant::now() + Duration::from_secs(60);
    while asks.ask("status", &json!({}))["jobs"]["done"] != old + 1 {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(20));
    }
    again.stream.set_read_timeout(Some(Duration::from_secs(4))).unwrap();
    let mut came = BTreeSet::from([first]);
    while let Some(job) = next_result(&mut again) {
        assert!(came.insert(job), "{job} came twice");
    }
    assert!(came.remove(&id(100)), "its own");
    assert!(came.len() <= 5, "{} of the last run came", came.len());
    drop(again);
    // The others wait for one that only comes back.
    let mut back = classic(&leader, "sample");
    let rest = results(&mut back, old - u32::try_from(came.len()).unwrap());
    assert!(rest.is_disjoint(&came));
}

#[test]
fn a_client_that_pipelines_jobs_and_reads_late_is_not_cut_off() {
    let leader = Leader::start(&["--durability", "memory"]);
    let jobs = scaled(4_000, 60_000);
    let _worker = worker(&leader, 600);
    let mut client = confirming(&leader, "eager");
    let stream = client.stream.try_clone().unwrap();
    let writer = std::thread::spawn(move || {
        let mut out = Raw::on(stream);
        (0..jobs).for_each(|job| submit(&mut out, id(job)));
    });
    // All that the leader has to say so far waits for it; then the leader waits.
    let started = Instant::now();
    while !writer.is_finished() && started.elapsed() < Duration::from_secs(6) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(results(&mut client, jobs), all(jobs));
    writer.join().unwrap();
}

#[test]
fn a_worker_with_room_for_many_large_jobs_gets_them_as_it_reads() {
    let leader = Leader::start(&[]);
    let jobs = 24;
    let mut client = classic(&leader, "c");
    let long = "x".repeat(LARGE);
    (0..jobs).for_each(|job| client.submit(id(job), "echo", &[&long]));
    let mut asks = Raw::client(&leader, "asks");
    while asks.ask("status", &json!({}))["jobs"]["queued"].as_u64().unwrap() < u64::from(jobs) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut worker = Raw::on(TcpStream::connect(leader.addr()).unwrap());
    worker.send(Kind::HelloWorker, Uuid::new_v4(), Uuid::nil(), "job.assign.echo", b"");
    worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_000_i32.to_le_bytes());
    worker.stream.flush().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    let mut got = BTreeSet::new();
    for came in 0..jobs {
        let assigned = worker.next().unwrap_or_else(|| panic!("cut off after {came} of {jobs}"));
        assert!(assigned.kind == Kind::AssignJob && assigned.payload.len() > LARGE);
        got.insert(assigned.msg_id);
        worker.send(
            Kind::AckJob,
            Uuid::new_v4(),
            assigned.msg_id,
            "",
            &result_of(assigned.msg_id, 32),
        );
    }
    assert_eq!(got, all(jobs));
    assert_eq!(results(&mut client, jobs), all(jobs));
}
