//! Many small jobs while workers are killed, and many idle peers: real processes, counted results.
//!
//! `HEFT_TEST_SCALE=long` runs the full numbers: 10,000 jobs of 8 clients through 4 workers, one of
//! them killed every second; and 1,000 idle workers beside 1,000 idle clients.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "support/procs.rs"]
mod procs;
mod support;

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use chunking::message::{Body, Heartbeat, HeldJobs};
use chunking::{Decoder, Generation, Head, InboundLimits, Kind};
use heft::client::{Client, Options};
use heft::model::{JobRequest, JobStatus};
use procs::{Leader, PATIENCE, Worker};
use support::scaled;
use uuid::Uuid;

const CLIENTS: u32 = 8;
const WORKERS: usize = 4;

/// Submits jobs one behind the other, several at a time; gives how often each job had a result.
async fn submit_all(addr: String, client: u32, jobs: u32) -> BTreeMap<Uuid, u32> {
    let options = Options { desired: 16, ..Options::new(format!("soak-{client}")) };
    let client = Client::connect(&addr, &options).await.unwrap();
    let mut results = BTreeMap::new();
    let mut handles = Vec::new();
    for number in 0..jobs {
        let request = JobRequest {
            job_id: Uuid::new_v4(),
            exec_name: "tick".to_owned(),
            args: vec![number.to_string()],
            ..JobRequest::default()
        };
        handles.push((number, client.submit(request).await.unwrap()));
        if handles.len() >= 64 {
            settle(&mut handles, &mut results).await;
        }
    }
    settle(&mut handles, &mut results).await;
    client.close().await;
    results
}

async fn settle(
    handles: &mut Vec<(u32, heft::client::JobHandle)>,
    results: &mut BTreeMap<Uuid, u32>,
) {
    for (number, mut handle) in handles.drain(..) {
        let id = handle.id();
        let result = handle.wait().await.unwrap();
        assert_eq!(result.status, JobStatus::Ok, "{id}: {}", result.stderr);
        assert_eq!(result.stdout, format!("{number}\n"));
        *results.entry(id).or_default() += 1;
    }
}

/// The same on a bare connection, which sees every frame: how many Result frames came for each job.
/// A client of ours would drop a second one.
fn submit_all_raw(addr: &str, jobs: u32) -> BTreeMap<Uuid, u32> {
    let mut stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
    let config =
        br#"{"ClientId":"raw","DesiredParallelism":16,"Heft":{"Version":1,"Features":["ask"]}}"#;
    let send = |stream: &mut TcpStream, kind: Kind, id: Uuid, subject: &str, payload: &[u8]| {
        let payload_len = u32::try_from(payload.len()).unwrap();
        let mut bytes = Vec::new();
        let head = Head { msg_id: id, subject, payload_len, ..Head::new(kind) };
        head.append(Generation::F2, &mut bytes).unwrap();
        bytes.extend_from_slice(payload);
        stream.write_all(&bytes).unwrap();
    };
    send(&mut stream, Kind::HelloClient, Uuid::nil(), "raw", config);
    for number in 0..jobs {
        let id = Uuid::new_v4();
        let request = format!(
            r#"{{"JobId":"{id}","ClientId":"raw","ExecName":"tick","Args":["{number}"],"Files":[]}}"#
        );
        send(&mut stream, Kind::SubmitJob, id, "job.submit.tick", request.as_bytes());
    }
    let (mut results, mut buffer, mut asked) = (BTreeMap::new(), Vec::new(), false);
    loop {
        let mut input = buffer.as_slice();
        while let Some(frame) = decoder.poll_frame(&mut input).unwrap() {
            match frame.head.kind() {
                Ok(Kind::Result) => *results.entry(frame.head.msg_id).or_default() += 1,
                // All that was sent before the question was answered has come.
                Ok(Kind::Answer) => return results,
                _ => {}
            }
        }
        let consumed = buffer.len() - input.len();
        buffer.drain(..consumed);
        if results.len() == jobs as usize && !asked {
            asked = true;
            // A second result of a killed worker's job would come from another within its grace.
            std::thread::sleep(Duration::from_secs(1));
            send(&mut stream, Kind::Ask, Uuid::nil(), "status", &[1]);
        }
        let mut piece = [0; 16 * 1024];
        let got = stream.read(&mut piece).unwrap();
        assert!(got > 0, "the leader hung up");
        buffer.extend_from_slice(&piece[..got]);
    }
}

#[test]
fn every_job_has_one_visible_result_while_workers_are_killed() {
    let jobs = scaled(800, 10_000) / CLIENTS;
    // A job that loses worker after worker is not a poison here: the test kills them.
    let leader = Leader::start(&["--attempts", "100", "--worker-grace", "300ms"]);
    let port = leader.port;
    let start = move || {
        Worker::start(port, &[("tick", "echo \"$1\"")], &["--max-par", "8", "--cpu-cap", "0.95"])
    };
    let workers: Arc<Mutex<Vec<Worker>>> =
        Arc::new(Mutex::new((0..WORKERS).map(|_| start()).collect()));
    let over = Arc::new(AtomicBool::new(false));
    let killer = {
        let (workers, over) = (workers.clone(), over.clone());
        std::thread::spawn(move || {
            let mut killed = 0;
            while !over.load(Ordering::Relaxed) {
                std::thread::sleep(Duration::from_secs(1));
                let mut workers = workers.lock().unwrap();
                workers[killed % WORKERS].proc.kill();
                workers[killed % WORKERS] = start();
                killed += 1;
            }
            killed
        })
    };
    let raw = std::thread::spawn({
        let addr = leader.addr();
        move || submit_all_raw(&addr, jobs)
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut results = runtime.block_on(async {
        let clients: Vec<_> = (1..CLIENTS)
            .map(|client| tokio::spawn(submit_all(leader.addr(), client, jobs)))
            .collect();
        let mut all = BTreeMap::new();
        for client in clients {
            all.extend(client.await.unwrap());
        }
        all
    });
    results.extend(raw.join().unwrap());
    over.store(true, Ordering::Relaxed);
    let killed = killer.join().unwrap();
    assert_eq!(results.len(), (jobs * CLIENTS) as usize);
    assert!(results.values().all(|seen| *seen == 1));
    println!("{} jobs, {killed} workers killed", results.len());
}

/// A connection that says hello and then nothing.
fn idle(addr: &str, kind: Kind, subject: &str, payload: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(addr).unwrap();
    let payload_len = u32::try_from(payload.len()).unwrap();
    let mut bytes = Vec::new();
    let head = Head { msg_id: Uuid::new_v4(), subject, payload_len, ..Head::new(kind) };
    head.append(Generation::F2, &mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    if kind == Kind::HelloWorker {
        let head = Head { payload_len: 4, ..Head::new(Kind::Credit) };
        head.append(Generation::F2, &mut bytes).unwrap();
        bytes.extend_from_slice(&4_i32.to_le_bytes());
    }
    stream.write_all(&bytes).unwrap();
    stream
}

fn status_value(pid: u32, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// Processor time of a process so far.
fn cpu_time(pid: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
    let ticks: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
    Duration::from_millis(ticks * 10)
}

#[test]
fn idle_peers_cost_the_leader_little() {
    let peers = scaled(200, 1000);
    let leader = Leader::start(&[]);
    let addr = leader.addr();
    let hello =
        br#"{"Heft":{"Version":1,"Features":["leases","progress","cancel"]},"Patterns":[],"MaxParallel":4}"#;
    let config = |client: &str| {
        format!(
            r#"{{"ClientId":"{client}","DesiredParallelism":4,"Heft":{{"Version":1,"Features":["ask"]}}}}"#
        )
    };
    let mut held = Vec::new();
    for number in 0..peers {
        held.push(idle(&addr, Kind::HelloWorker, &format!("job.assign.program-{number}"), hello));
        let client = format!("client-{number}");
        held.push(idle(&addr, Kind::HelloClient, &client, config(&client).as_bytes()));
    }
    // Each has its Welcome, so the leader knows them all.
    for stream in &mut held {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.read_exact(&mut [0; 43]).unwrap();
    }
    // Idle workers still say that they live, every five seconds.
    let mut beat = Vec::new();
    Heartbeat { cpu_permille: 0, credit: 4, jobs: HeldJobs::default() }.encode(&mut beat);
    let payload_len = u32::try_from(beat.len()).unwrap();
    let mut frame = Vec::new();
    Head { payload_len, ..Head::new(Kind::Heartbeat) }.append(Generation::F2, &mut frame).unwrap();
    frame.extend_from_slice(&beat);
    let (before, started) = (cpu_time(leader.proc.pid()), Instant::now());
    for _ in 0..scaled(1, 4) {
        for worker in held.iter_mut().step_by(2) {
            worker.write_all(&frame).unwrap();
        }
        std::thread::sleep(Duration::from_millis(u64::from(scaled(500, 5000))));
    }
    let used =
        (cpu_time(leader.proc.pid()) - before).as_secs_f64() / started.elapsed().as_secs_f64();
    let resident = status_value(leader.proc.pid(), "VmRSS:") / 1024;
    println!(
        "{peers} idle workers and {peers} idle clients: {resident} MiB resident, {:.2} % of a core",
        used * 100.0
    );
    assert!(resident < 64, "{resident} MiB resident");
}
