//! What was imported runs: a leader opens the new directory, and a worker gets the jobs as their
//! clients wrote them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use heft::driver::{Choice, Driver, Options, Storage};
use heft::leader::LeaderConfig;
use heft::model::{JobRequest, JobStatus, JsonModel};
use heft::worker::{Job, JobContext, Worker, WorkerConfig};
use support::{id, tool};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc};

/// No test waits longer for anything.
const PATIENCE: Duration = Duration::from_secs(20);

/// Runs a leader on a data directory with a worker that takes one job at a time, and gives what
/// that got: routing key and payload.
fn run_all(data: &Path, jobs: usize) -> Vec<(String, Vec<u8>)> {
    let driver = Driver::choose(Choice::Portable).unwrap();
    let storage = Storage::open(data, 0, 64 << 20).unwrap();
    let ran = driver.run(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (got, mut all) = mpsc::unbounded_channel();
        let config = WorkerConfig {
            parallel_max: 1,
            work_dir: data.with_file_name("work"),
            takes_raw: true,
            ..WorkerConfig::new(&address)
        };
        let worker = Worker::new(config, move |job: Job, _context: JobContext| {
            let key = job.subject.rsplit_once('.').unwrap().0.to_owned();
            got.send((key, job.payload.to_vec())).unwrap();
            async move { job.result(JobStatus::Ok) }
        });
        let worker = worker.unwrap().run(std::future::pending());
        let options = Options { data: data.to_owned(), ..Options::default() };
        let stop = Rc::new(Notify::new());
        let serving =
            driver.serve(listener, storage.into_leader(LeaderConfig::default()), options, stop);
        let collecting = async {
            let mut found = Vec::new();
            while found.len() < jobs {
                found.push(all.recv().await.unwrap());
            }
            found
        };
        tokio::select! {
            found = collecting => found,
            ended = serving => panic!("the leader ended: {ended:?}"),
            _ = worker => panic!("the worker ended"),
            () = tokio::time::sleep(PATIENCE) => panic!("not all jobs ran"),
        }
    });
    ran.unwrap()
}

#[test]
fn c29_pe11_jobs_of_the_csharp_system_run_with_the_requests_of_their_clients() {
    let dir = tempfile::tempdir().unwrap();
    let request = |number: u128| {
        let (job_id, exec_name) = (id(number), "calcA".to_owned());
        JobRequest { job_id, client_id: "alice".to_owned(), exec_name, ..JobRequest::default() }
            .to_json()
    };
    let mut log = String::new();
    for number in 1..=4 {
        let (job, payload) = (id(number), STANDARD.encode(request(number)));
        log += &format!(
            r#"{{"type":"enqueue","at":"2025-10-19T12:00:00Z","job":{{"jobId":"{job}","clientId":"alice","execName":"calcA","rawPayload":"{payload}"}}}}"#
        );
        log.push('\n');
    }
    log += &format!(
        r#"{{"type":"assign","at":"2025-10-19T12:00:01Z","jobId":"{}","workerId":null,"attempt":1}}"#,
        id(1)
    );
    log.push('\n');
    log += &format!(r#"{{"type":"dlq","at":"2025-10-19T12:00:02Z","jobId":"{}"}}"#, id(3));
    std::fs::write(dir.path().join("events.log"), log).unwrap();
    let data = dir.path().join("data");
    let ran =
        tool(&["import", "csharp", dir.path().to_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    // The dead one waits for an operator.
    let expected = [1, 2, 4].map(|number| ("job.assign.calcA".to_owned(), request(number)));
    assert_eq!(run_all(&data, 3), expected);
}

#[test]
fn c28_m19_records_of_taskflux_run_with_the_smallest_key_first_and_their_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let mut log = [0x2F6F_0F2Fi32.to_be_bytes(), 1i32.to_be_bytes()].concat();
    for (key, payload) in [
        (5i64, &b"five"[..]),
        (-7, b"\xff\x00 first"),
        (0, b""),
        (5, b"later"),
        (1, br#"{"JobId":1}"#),
    ] {
        let len = i32::try_from(payload.len()).unwrap().to_be_bytes();
        let command = [&b"E\x00"[..], &key.to_be_bytes(), &len, payload].concat();
        log.extend(1i32.to_be_bytes());
        log.extend(i32::try_from(command.len()).unwrap().to_be_bytes());
        log.extend(command);
    }
    std::fs::create_dir(dir.path().join("consensus")).unwrap();
    std::fs::write(dir.path().join("consensus/raft.log"), log).unwrap();
    let data = dir.path().join("data");
    let ran = tool(&[
        "import",
        "taskflux",
        dir.path().to_str().unwrap(),
        "--data",
        data.to_str().unwrap(),
    ]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let expected: [&[u8]; 5] = [b"\xff\x00 first", b"", br#"{"JobId":1}"#, b"five", b"later"];
    let expected = expected.map(|payload| ("job.assign.default".to_owned(), payload.to_vec()));
    assert_eq!(run_all(&data, 5), expected);
}
