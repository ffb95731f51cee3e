//! Bits that turn over on the way between heft peers: what was damaged comes again, and nothing
//! else is delivered. Relays stand between a real leader and the ends, which are the libraries that
//! programs embed.
//!
//! `HEFT_TEST_SCALE=long` does it with more jobs. `HEFT_FLIP_SEED` replays the choices of a run.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

mod support;

#[path = "support/flips.rs"]
mod flips;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chunking::message::Purpose;
use chunking::{Generation, Head, Kind};
use flips::{Flipper, Passing};
use heft::answers::ask;
use heft::client::{Client, Downloads, JobSpec, Options};
use heft::core::retry::Backoff;
use heft::model::{InputFile, JobRequest, JobResult, JobStatus, JsonModel};
use heft::worker::{Job, JobContext, WorkerConfig};
use noise::noise;
use procs::{Leader, PATIENCE, Worker};
use serde_json::{Value, json};
use support::scaled;
use tokio::sync::oneshot;
use tokio::time::timeout;
use uuid::Uuid;

/// Whoever lost its connection is back at once, and the leader answers the announcement.
const QUICK: Backoff =
    Backoff { first: Duration::from_millis(5), max: Duration::from_millis(50), jitter_percent: 20 };

fn seed() -> u64 {
    let given = std::env::var("HEFT_FLIP_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = given.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0);
    println!("HEFT_FLIP_SEED={seed}");
    seed
}

/// Small numbers that a seed gives.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        self.0 = heft::core::retry::mix(self.0);
        usize::try_from(self.0 % end as u64).unwrap()
    }
}

/// What comes of an input: every byte of it counts, and the result is as long.
fn answer(input: &[u8]) -> Vec<u8> {
    input.iter().rev().map(|byte| byte ^ 0x5A).collect()
}

/// A worker that answers each job with what comes of its input.
struct EmbeddedWorker {
    stop: Option<oneshot::Sender<()>>,
    _dir: tempfile::TempDir,
}

impl EmbeddedWorker {
    fn start(leader: &str) -> EmbeddedWorker {
        let dir = tempfile::tempdir().unwrap();
        let config = WorkerConfig {
            work_dir: dir.path().to_owned(),
            parallel_max: 4,
            cpu_cap: None,
            welcome_wait: PATIENCE,
            reconnect: QUICK,
            ..WorkerConfig::new(leader)
        };
        let worker = heft::worker::Worker::new(config, |job: Job, _: JobContext| async move {
            let input = job.request.as_ref().unwrap().files[0].content.clone().unwrap_or_default();
            let stdout = format!("{:08x}", crc32fast::hash(&input));
            JobResult { stdout, output_archive: Some(answer(&input)), ..job.result(JobStatus::Ok) }
        });
        let (stop, stopped) = oneshot::channel::<()>();
        tokio::spawn(worker.unwrap().run(async { drop(stopped.await) }));
        EmbeddedWorker { stop: Some(stop), _dir: dir }
    }
}

impl Drop for EmbeddedWorker {
    fn drop(&mut self) {
        self.stop.take();
    }
}

fn options(id: &str) -> Options {
    Options {
        welcome_wait: PATIENCE,
        connect_wait: Some(PATIENCE),
        backoff: QUICK,
        desired: 8,
        ..Options::new(id)
    }
}

fn request(input: &[u8]) -> JobRequest {
    JobRequest {
        exec_name: "calcA".to_owned(),
        files: vec![InputFile::inline("in.bin", input.to_vec())],
        ..JobRequest::default()
    }
}

async fn status(leader: &Leader) -> Value {
    let client = Client::connect(&leader.addr(), &options("")).await.unwrap();
    let status = client.ask(&ask::Status {}).await.unwrap().json;
    client.close().await;
    status
}

/// One frame of each job is damaged, of the kinds in turn. Every job ends well, and nothing but
/// what was sent is delivered. As many jobs are under way at a time as is said.
async fn one_bit_in_a_frame_of_each_job(jobs: usize, at_a_time: usize) {
    let kinds = [Kind::SubmitJob, Kind::AssignJob, Kind::AckJob, Kind::Result];
    // An assignment that its worker never had is not an attempt.
    // A busy machine may need longer than usual to bring a worker back.
    let leader = Leader::start(&["--attempts", "1", "--worker-grace", "60s"]);
    let dice = Arc::new(Mutex::new(Dice(seed())));
    // Which frame of a job is damaged, and those that were.
    let plan: Arc<Mutex<HashMap<Uuid, Kind>>> = Arc::default();
    let done: Arc<Mutex<HashSet<Uuid>>> = Arc::default();
    let choose = {
        let (plan, done) = (plan.clone(), done.clone());
        move |frame: &Passing<'_>| {
            let job = if frame.msg_id.is_nil() { frame.corr_id } else { frame.msg_id };
            let is_due = plan.lock().unwrap().get(&job) == Some(&frame.kind);
            if !is_due || !done.lock().unwrap().insert(job) {
                return None;
            }
            let bit = dice.lock().unwrap().below(8 * frame.bytes.len());
            println!("{} of {} bytes: bit {bit} turned over", frame.kind, frame.bytes.len());
            Some(bit)
        }
    };
    let (at_client, at_worker) =
        (Flipper::start(leader.port, choose.clone()), Flipper::start(leader.port, choose));
    let _worker = EmbeddedWorker::start(&at_worker.addr());
    let client = Client::connect(&at_client.addr(), &options("clientA")).await.unwrap();
    let mut under_way = VecDeque::new();
    for number in 0..jobs + at_a_time {
        if number < jobs {
            let input = noise(100 + 1777 * (number % 16), number as u64);
            let request = JobRequest { job_id: Uuid::new_v4(), ..request(&input) };
            plan.lock().unwrap().insert(request.job_id, kinds[number % kinds.len()]);
            under_way.push_back((client.submit(request).await.unwrap(), input));
        }
        if under_way.len() < at_a_time && number < jobs {
            continue;
        }
        let Some((mut job, input)) = under_way.pop_front() else { break };
        let result = timeout(PATIENCE, job.wait()).await.expect("an end in time").unwrap();
        assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
        assert!(
            result.output_archive.unwrap() == answer(&input),
            "other bytes for job {}",
            job.id()
        );
    }
    assert_eq!(done.lock().unwrap().len(), jobs, "each had its damage");
    let status = status(&leader).await;
    assert_eq!(status["jobs"], json!({"queued": 0, "running": 0, "done": jobs, "dead": 0}));
    // Of several on one connection the first is found.
    let counted = status["leader"]["frames_damaged"].as_u64().unwrap();
    let to_leader = (jobs / 2) as u64;
    assert!(
        counted == to_leader || at_a_time > 1 && (1..to_leader).contains(&counted),
        "{counted}"
    );
}

#[tokio::test]
async fn one_bit_in_a_frame_with_content_of_each_job_changes_no_result() {
    one_bit_in_a_frame_of_each_job(scaled(60, 600) as usize, 1).await;
}

#[tokio::test]
async fn one_bit_in_a_frame_of_each_of_many_jobs_at_a_time_changes_no_result() {
    let jobs = scaled(60, 600) as usize;
    one_bit_in_a_frame_of_each_job(jobs, jobs).await;
}

/// What a program says of its input: all of it, so that large outputs go back in chunks.
const SAY_ALL: &str = "base64 -w 0 in.bin";

fn base64(bytes: &[u8]) -> String {
    let file: Value = serde_json::from_slice(&InputFile::inline("x", bytes).to_json()).unwrap();
    file["Content"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_bit_in_any_frame_of_jobs_with_large_inputs_and_outputs_changes_no_byte() {
    let leader = Leader::start(&[]);
    let (mut dice, mut left) = (Dice(seed()), scaled(8, 80));
    let choose = Arc::new(Mutex::new(move |frame: &Passing<'_>| {
        if left == 0 || dice.below(20) > 0 {
            return None;
        }
        left -= 1;
        let bit = dice.below(8 * frame.bytes.len());
        println!("{} of {} bytes: bit {bit} turned over", frame.kind, frame.bytes.len());
        Some(bit)
    }));
    let relay = || {
        let choose = choose.clone();
        Flipper::start(leader.port, move |frame| choose.lock().unwrap()(frame))
    };
    let (at_client, at_worker) = (relay(), relay());
    let _worker = Worker::start(at_worker.port, &[("say", SAY_ALL)], &[]);
    let dir = tempfile::tempdir().unwrap();
    let downloads = Downloads::Directory(dir.path().to_owned());
    let client = Client::connect(&at_client.addr(), &Options { downloads, ..options("clientA") })
        .await
        .unwrap();
    let mut jobs = Vec::new();
    for number in 0..scaled(6, 30) as usize {
        let input = noise(5_000_000 * (number % 2) + 1000, number as u64);
        let job = JobRequest { exec_name: "say".to_owned(), ..JobRequest::default() };
        let job = JobSpec::from(job).bytes("in.bin", input.clone());
        jobs.push((client.submit(job).await.unwrap(), input));
    }
    for (job, input) in &mut jobs {
        let finished = timeout(PATIENCE, job.finish()).await.expect("an end in time").unwrap();
        let result = finished.result().unwrap();
        assert_eq!(
            (result.status, finished.missing.len()),
            (JobStatus::Ok, 0),
            "{}",
            result.stderr
        );
        let said = match finished.part(Purpose::Stdout) {
            Some(part) => std::fs::read_to_string(part.path().unwrap()).unwrap(),
            None => result.stdout,
        };
        assert!(said == base64(input), "other bytes for job {}", job.id());
    }
    assert_eq!(status(&leader).await["jobs"]["dead"], 0);
}

/// Which frame of a worker is damaged.
#[derive(Clone, Copy, Debug)]
enum Early {
    Hello,
    Credit,
}

/// Nothing but its own echo in the Welcome protects a Hello, and no later frame says again what a
/// Credit said.
#[tokio::test]
async fn one_bit_in_the_first_frames_of_a_worker_leaves_it_neither_another_nor_idle() {
    let mut dice = Dice(seed());
    for _ in 0..scaled(1, 20) {
        one_bit_in_the_first_frames_of_each_worker(40, &mut dice).await;
    }
}

async fn one_bit_in_the_first_frames_of_each_worker(workers: usize, dice: &mut Dice) {
    let leader = Leader::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let (stop, stopped) = tokio::sync::watch::channel(());
    let mut scenes = Vec::new();
    for number in 0..workers {
        let early = if number % 4 == 0 { Early::Credit } else { Early::Hello };
        let (place, mut left) = (dice.below(1 << 20), true);
        let relay = Flipper::start(leader.port, move |frame| {
            let is_it = match early {
                Early::Hello => frame.kind == Kind::HelloWorker,
                Early::Credit => frame.kind == Kind::Credit,
            };
            if !frame.to_leader || !is_it || !std::mem::take(&mut left) {
                return None;
            }
            let bit = match early {
                Early::Hello => place % (8 * frame.bytes.len()),
                // Its type, or the 4 in it, which becomes nothing.
                Early::Credit if place % 2 == 0 => 8 * 4 + place / 2 % 8,
                Early::Credit => 8 * (4 + 39) + 2,
            };
            println!("worker {number}, {early:?}: bit {bit} of byte {}", bit / 8);
            Some(bit)
        });
        let config = WorkerConfig {
            work_dir: dir.path().join(number.to_string()),
            patterns: vec![format!("job.assign.w{number}")],
            name: Some(format!("worker {number}")),
            reconnect: QUICK,
            ..WorkerConfig::new(relay.addr())
        };
        let id = config.id;
        let done = |job: Job, _: JobContext| async move { job.result(JobStatus::Ok) };
        let worker = heft::worker::Worker::new(config, done).unwrap();
        let mut stopped = stopped.clone();
        tokio::spawn(worker.run(async move { drop(stopped.changed().await) }));
        scenes.push((relay, id));
    }
    let client = Client::connect(&leader.addr(), &options("clientA")).await.unwrap();
    let request = |number| JobRequest { exec_name: format!("w{number}"), ..JobRequest::default() };
    let mut jobs = Vec::new();
    for number in 0..workers {
        jobs.push(client.submit(request(number)).await.unwrap());
    }
    for (number, job) in jobs.iter_mut().enumerate() {
        let ended = timeout(PATIENCE, job.wait()).await;
        let result = ended.unwrap_or_else(|_| panic!("worker {number} gets no job")).unwrap();
        assert_eq!(result.status, JobStatus::Ok, "worker {number}: {}", result.stderr);
    }
    let expected = |number: usize, id: Uuid| {
        json!({
            "id": id.to_string(), "name": format!("worker {number}"), "patterns": [format!("job.assign.w{number}")],
            "class": "heft", "credit": 4,
        })
    };
    let mut expected: HashMap<String, Value> = scenes
        .iter()
        .enumerate()
        .map(|(number, (_, id))| (id.to_string(), expected(number, *id)))
        .collect();
    // A place is free again a moment after its job has ended.
    let as_they_are = async {
        while !expected.is_empty() {
            for worker in status(&leader).await["workers"].as_array().unwrap() {
                let id = worker["id"].as_str().unwrap();
                let is_it = |said: &Value| {
                    said.as_object().unwrap().iter().all(|(member, value)| worker[member] == *value)
                };
                if expected.get(id).is_some_and(is_it) {
                    expected.remove(id);
                }
            }
        }
    };
    timeout(PATIENCE, as_they_are)
        .await
        .unwrap_or_else(|_| panic!("not as they said: {expected:?}"));
    drop(stop);
    client.close().await;
}

#[tokio::test]
async fn a_damaged_answer_with_a_result_is_asked_for_again() {
    let leader = Leader::start(&[]);
    let mut left = 3;
    let relay = Flipper::start(leader.port, move |frame| {
        let is_due = frame.kind == Kind::Answer && left > 0;
        left -= usize::from(is_due);
        is_due.then_some(4 * frame.bytes.len() + left)
    });
    let _worker = EmbeddedWorker::start(&leader.addr());
    let client = Client::connect(&leader.addr(), &options("clientA")).await.unwrap();
    let input = noise(1000, 1);
    let mut job = client.submit(request(&input)).await.unwrap();
    timeout(PATIENCE, job.wait()).await.expect("an end in time").unwrap();
    let other = Client::connect(&relay.addr(), &options("clientB")).await.unwrap();
    let fetched =
        timeout(PATIENCE, other.fetch(job.id(), &Downloads::None)).await.expect("in time");
    let result = fetched.unwrap().unwrap().result().unwrap();
    assert!(result.output_archive.unwrap() == answer(&input));
}

/// The next frame of a connection as its head and all that it has behind its length.
fn read_body(stream: &mut TcpStream) -> (Kind, Vec<u8>) {
    let mut len = [0; 4];
    stream.read_exact(&mut len).unwrap();
    let mut body = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut body).unwrap();
    (Kind::try_from(body[0]).unwrap(), body)
}

/// The next one of a kind.
fn read_kind(stream: &mut TcpStream, kind: Kind) -> Vec<u8> {
    loop {
        let (found, body) = read_body(stream);
        if found == kind {
            return body;
        }
    }
}

fn connect(leader: &Leader, kind: Kind, id: Uuid, subject: &str, hello: &[u8]) -> TcpStream {
    let mut stream = TcpStream::connect(leader.addr()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    write_frame(&mut stream, Head { msg_id: id, subject, ..Head::new(kind) }, hello);
    stream
}

fn write_frame(stream: &mut TcpStream, head: Head<'_>, payload: &[u8]) {
    let mut bytes = Vec::new();
    let head = Head { payload_len: u32::try_from(payload.len()).unwrap(), ..head };
    head.append(Generation::F2, &mut bytes).unwrap();
    bytes.extend_from_slice(payload);
    stream.write_all(&bytes).unwrap();
}

/// A frame with its checksum.
fn summed(head: Head<'_>, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let head = Head { payload_len: u32::try_from(payload.len()).unwrap(), ..head };
    let trailer = head.append_summed(Generation::F2, crc32fast::hash(payload), &mut bytes).unwrap();
    [&bytes[..], payload, &trailer].concat()
}

/// What stands behind the payload of a body.
fn behind_payload(body: &[u8]) -> &[u8] {
    let subject = usize::from(u16::from_le_bytes(body[33..35].try_into().unwrap()));
    let payload = u32::from_le_bytes(body[35 + subject..39 + subject].try_into().unwrap()) as usize;
    &body[39 + subject + payload..]
}

/// A classic client's job whose assignment has a body of exactly 4 MiB.
fn largest_job(leader: &Leader) -> (TcpStream, Uuid, Vec<u8>) {
    // Behind the key stand a point and the worker's id.
    let bytes = 4 * 1024 * 1024 - 39 - "job.assign.calcA".len() - 37;
    let job = Uuid::new_v4();
    let request = JobRequest { job_id: job, ..request(&noise(3_100_000, 7)) };
    let with = |padding: usize| {
        JobRequest { args: vec!["a".repeat(padding)], ..request.clone() }.to_json()
    };
    let payload = with(bytes - with(0).len());
    assert_eq!(payload.len(), bytes);
    let mut client = connect(leader, Kind::HelloClient, Uuid::nil(), "classic", b"");
    let head = Head { msg_id: job, subject: "job.submit.calcA", ..Head::new(Kind::SubmitJob) };
    write_frame(&mut client, head, &payload);
    (client, job, payload)
}

#[test]
fn w05_a_classic_worker_gets_an_assignment_of_exactly_four_mebibytes_and_no_checksum() {
    let leader = Leader::start(&[]);
    let mut worker = connect(&leader, Kind::HelloWorker, Uuid::new_v4(), "job.assign.>", b"");
    write_frame(&mut worker, Head::new(Kind::Credit), &1_i32.to_le_bytes());
    let (mut client, job, payload) = largest_job(&leader);
    let (kind, body) = read_body(&mut worker);
    assert_eq!(
        (kind, body.len(), behind_payload(&body)),
        (Kind::AssignJob, 4 * 1024 * 1024, &[][..])
    );
    assert!(body.ends_with(&payload));
    write_frame(&mut worker, Head { corr_id: job, ..Head::new(Kind::AckJob) }, b"any bytes");
    let (kind, body) = read_body(&mut client);
    assert_eq!(kind, Kind::Result);
    assert!(body.ends_with(b"any bytes"));
}

#[tokio::test]
async fn a_heft_worker_gets_an_assignment_of_four_mebibytes_with_its_checksum_beyond_them() {
    let leader = Leader::start(&[]);
    let hello = br#"{"Heft":{"Version":1,"Features":["leases","checksums"]},"Patterns":[]}"#;
    let mut worker = connect(&leader, Kind::HelloWorker, Uuid::new_v4(), "job.assign.>", hello);
    write_frame(&mut worker, Head::new(Kind::Credit), &1_i32.to_le_bytes());
    let (_client, ..) = largest_job(&leader);
    let body = read_kind(&mut worker, Kind::AssignJob);
    assert_eq!(body.len(), 4 * 1024 * 1024 + 4);
    let (summed, crc) = body.split_last_chunk::<4>().unwrap();
    assert_eq!(crc32fast::hash(summed), u32::from_le_bytes(*crc));
    drop(worker);

    let leader = Leader::start(&[]);
    let _worker = EmbeddedWorker::start(&leader.addr());
    let (mut client, ..) = largest_job(&leader);
    let result = tokio::task::spawn_blocking(move || read_body(&mut client).1).await.unwrap();
    let stdout = format!("\"Stdout\":\"{:08x}\"", crc32fast::hash(&noise(3_100_000, 7)));
    assert!(String::from_utf8_lossy(&result).contains(&stdout));
}

#[test]
fn a_frame_that_is_taken_apart_while_it_comes_counts_only_with_its_checksum() {
    let leader = Leader::start(&[]);
    let hello =
        br#"{"ClientId":"c","Heft":{"Version":1,"Features":["submit-answers","checksums"]}}"#;
    let (job, content) = (Uuid::new_v4(), noise(3_145_000, 3));
    let request = JobRequest { job_id: job, ..request(&content) }.to_json();
    assert!(
        (4 * 1024 * 1024 - 1000..4 * 1024 * 1024 - 100).contains(&request.len()),
        "{}",
        request.len()
    );
    let submit = summed(
        Head { msg_id: job, subject: "job.submit.calcA", ..Head::new(Kind::SubmitJob) },
        &request,
    );
    let client = || {
        let mut client = connect(&leader, Kind::HelloClient, Uuid::nil(), "c", hello);
        assert_eq!(behind_payload(&read_kind(&mut client, Kind::Welcome)).len(), 4);
        client.write_all(&summed(Head::new(Kind::Welcome), b"")).unwrap();
        client
    };
    let mut damaged = submit.clone();
    damaged[2_000_000] ^= 1;
    let mut first = client();
    first.write_all(&damaged).unwrap();
    assert_eq!(first.read(&mut [0; 100]).unwrap_or(0), 0, "the leader hangs up");
    let mut second = client();
    second.write_all(&submit).unwrap();
    let submitted = read_kind(&mut second, Kind::Submitted);
    assert_eq!(submitted[1..17], job.to_bytes_le());
    let mut worker = connect(
        &leader,
        Kind::HelloWorker,
        Uuid::new_v4(),
        "job.assign.>",
        br#"{"Heft":{"Version":1,"Features":["transfers","checksums"]}}"#,
    );
    write_frame(&mut worker, Head::new(Kind::Credit), &1_i32.to_le_bytes());
    let assigned = read_kind(&mut worker, Kind::AssignJob);
    assert_eq!(
        behind_payload(&assigned).len(),
        4,
        "it is written anew, and has a checksum of its own"
    );
}

#[test]
fn a_peer_that_announced_no_checksums_is_sent_none() {
    let leader = Leader::start(&[]);
    let job = br#"{"ExecName":"calcA"}"#;
    for features in ["", r#""submit-answers","ask""#] {
        let hello = format!(r#"{{"ClientId":"c","Heft":{{"Version":1,"Features":[{features}]}}}}"#);
        let mut client = connect(&leader, Kind::HelloClient, Uuid::nil(), "c", hello.as_bytes());
        let welcome = read_kind(&mut client, Kind::Welcome);
        assert_eq!(behind_payload(&welcome), [0; 0]);
        let mut worker = connect(&leader, Kind::HelloWorker, Uuid::new_v4(), "job.assign.>", b"");
        write_frame(&mut worker, Head::new(Kind::Credit), &1_i32.to_le_bytes());
        let id = Uuid::new_v4();
        let submit = Head { msg_id: id, subject: "job.submit.calcA", ..Head::new(Kind::SubmitJob) };
        write_frame(&mut client, submit, job);
        let assigned = read_kind(&mut worker, Kind::AssignJob);
        assert_eq!(behind_payload(&assigned), [0; 0]);
        write_frame(&mut worker, Head { corr_id: id, ..Head::new(Kind::AckJob) }, b"{}");
        let result = read_kind(&mut client, Kind::Result);
        assert_eq!(behind_payload(&result), [0; 0]);
    }
}
