//! Payloads that are not a JobRequest, among real peers of all kinds (M14, M17, M19): they go to
//! workers that take them, and to no other.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use chunking::Kind;
use heft::model::{InputFile, JobStatus, JsonModel};
use heft::worker::{Job, JobContext, WorkerConfig};
use procs::{ECHO, Leader, Proc, TempDir, Worker, classic_client, classic_worker, heft};
use raw::Raw;
use serde_json::{Value, json};
use uuid::Uuid;

fn base64(bytes: &[u8]) -> String {
    let file: Value = serde_json::from_slice(&InputFile::inline("x", bytes).to_json()).unwrap();
    file["Content"].as_str().unwrap().to_owned()
}

/// What .NET does not read, or reads as nothing that a worker could answer for: no program, and no
/// id either.
fn not_a_request() -> Vec<Vec<u8>> {
    let id = Uuid::new_v4();
    let good = format!(
        r#"{{"JobId":"{id}","ClientId":"clientA","ExecName":"echo","Args":[],"Files":[]}}"#
    );
    let lower =
        good.replace("JobId", "jobId").replace("ExecName", "execName").replace("Args", "args");
    let texts = [
        "garbage".to_owned(),
        String::new(),
        "{}".to_owned(),
        "[]".to_owned(),
        "null".to_owned(),
        "17".to_owned(),
        r#""text""#.to_owned(),
        lower,
        format!("\u{feff}{good}"),
        good.replace(r#""Files":[]"#, r#""Files":[],"#),
        good.replace(r#""Args""#, r#"/* none */"Args""#),
        format!("{good}{good}"),
        good.replace("clientA", "client\u{1}A"),
        format!("{good}\0"),
    ];
    let mut payloads: Vec<Vec<u8>> = texts.into_iter().map(String::into_bytes).collect();
    payloads.push(good.replace("clientA", "client").into_bytes());
    // A byte that UTF-8 does not have, inside of a string.
    let last = payloads.last_mut().unwrap();
    let at = last.windows(6).position(|part| part == b"client").unwrap();
    last.insert(at, 0xff);
    payloads
}

fn raw_jobs(payloads: &[Vec<u8>]) -> Vec<Value> {
    payloads.iter().map(|payload| json!({"raw_b64": base64(payload), "subject": ""})).collect()
}

fn acks(worker: &mut Proc, count: usize) {
    (0..count).for_each(|_| drop(worker.event("acked")));
}

/// Runs more jobs than a classic worker has credits, one after the other.
fn works(leader: &Leader) {
    for _ in 0..6 {
        let mut client = classic_client(leader.port, "well", &[], &[json!({"exec": "echo"})]);
        assert_eq!(client.event("result")["status"], "OK");
    }
}

#[test]
fn m14_what_dotnet_does_not_read_costs_a_classic_worker_nothing_and_goes_to_one_that_looks_at_nothing()
 {
    let leader = Leader::start(&[]);
    let mut classic = classic_worker(leader.port, &["job.assign.*"]);
    let payloads = not_a_request();
    let client = classic_client(leader.port, "clientA", &["64"], &raw_jobs(&payloads));
    works(&leader);
    assert_eq!(classic.said("\"dropped\""), None);
    let mut minimal = classic_worker(leader.port, &["--generation", "f1"]);
    acks(&mut minimal, payloads.len());
    let (code, lines) = client.finish();
    let results = lines.iter().filter(|line| line.contains("\"event\": \"result\"")).count();
    assert_eq!((code, results), (Some(0), payloads.len()), "{lines:#?}");
    classic.event("assigned");
    assert_eq!(classic.said("\"dropped\""), None);
}

#[test]
fn m17_a_request_without_an_id_gets_the_frames_so_that_a_classic_worker_can_answer() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    let zeros = Uuid::nil();
    let payloads = [
        r#"{"ExecName":"echo","Args":["a"],"Files":[]}"#.to_owned(),
        format!(r#"{{"JobId":"{zeros}","ExecName":"echo","Args":["b"],"Files":[],"More":"}}"}} "#),
    ];
    for payload in payloads {
        let job = json!({"raw_b64": base64(payload.as_bytes()), "subject": "job.submit.echo"});
        let mut client = classic_client(leader.port, "clientA", &[], &[job]);
        let result = client.event("result");
        assert_eq!((&result["status"], &result["known"]), (&json!("OK"), &json!(true)), "{result}");
        assert_eq!(result["json_job_id"], result["msg_id"]);
        assert_eq!(worker.event("assigned")["json_job_id"], result["msg_id"]);
    }
    works(&leader);
}

#[test]
fn m19_raw_jobs_go_to_the_minimal_worker_and_not_to_the_heft_worker_beside_it() {
    for generation in ["f0", "f1"] {
        let leader = Leader::start(&[]);
        let heft_worker = Worker::start(leader.port, &[("echo", ECHO)], &[]);
        while !heft(&["status", &leader.addr(), "--output", "json"]).1.contains("\"patterns\"") {}
        let mut minimal = classic_worker(leader.port, &["--generation", generation]);
        // Also what would be a bad request of others: those that know none cannot have meant one.
        let texts = [
            "job-0",
            r#"{"ExecName":"echo","Args":"no list"}"#,
            r#"{"ExecName":"","JobId":7}"#,
            "",
        ];
        let jobs: Vec<Value> = texts.iter().map(|text| json!({"text": text})).collect();
        let client =
            classic_client(leader.port, "", &["--generation", generation, "--no-wait"], &jobs);
        assert_eq!(client.finish().0, Some(0), "{generation}");
        acks(&mut minimal, texts.len());
        let (code, stdout, stderr) = heft(&["submit", &leader.addr(), "echo", "--", "hi"]);
        assert_eq!((code, stdout.as_str()), (Some(0), "hi\n"), "{generation}: {stderr}");
        drop(heft_worker);
    }
}

#[test]
fn m19_a_raw_job_that_nobody_takes_waits_says_for_what_and_outlives_a_restart() {
    let dir = TempDir::new();
    let data = dir.join("data");
    let args = ["--data", data.to_str().unwrap()];
    let leader = Leader::start(&args);
    let _classic = classic_worker(leader.port, &["job.assign.*"]);
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::new_v4();
    client.send(Kind::SubmitJob, job, Uuid::nil(), "", b"any bytes \xff at all");
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    let expect_waiting = |client: &mut Raw| {
        let why = client.ask("explain", &json!({"job_id": job}));
        assert_eq!(
            (&why["phase"], &why["waits"]["for"]),
            (&json!("queued"), &json!("raw-worker")),
            "{why}"
        );
        let worker = &why["workers"][0];
        assert_eq!(
            (&worker["verdict"], &worker["takes_raw"]),
            (&json!("no-raw"), &json!(false)),
            "{why}"
        );
    };
    expect_waiting(&mut client);
    let port = leader.port;
    drop(leader);
    let leader = Leader::start_on(port, &args);
    let _classic = classic_worker(leader.port, &["job.assign.*"]);
    let mut client = Raw::client(&leader, "c");
    expect_waiting(&mut client);
    works(&leader);
    expect_waiting(&mut client);
    client.send(Kind::SubmitJob, job, Uuid::nil(), "", b"any bytes \xff at all");
    assert_eq!(client.next().unwrap().kind, Kind::Submitted, "it is known");
    let _minimal = classic_worker(leader.port, &["--generation", "f1"]);
    let result = client.next().unwrap();
    assert_eq!((result.kind, result.msg_id), (Kind::Result, job));
}

#[test]
fn m19_heft_submit_says_what_a_raw_job_waits_for() {
    let leader = Leader::start(&[]);
    let _worker = Worker::start(leader.port, &[("echo", ECHO)], &[]);
    while !heft(&["status", &leader.addr(), "--output", "json"]).1.contains("\"patterns\"") {}
    let dir = TempDir::new();
    std::fs::write(dir.join("payload"), b"\x00\x01").unwrap();
    let file = format!("{}/payload", dir.text());
    let mut command = std::process::Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 2>&1"#, env!("CARGO_BIN_EXE_heft")]);
    command.args(["submit", &leader.addr(), "echo", "--raw", "--file", &file]);
    let mut submit = Proc::start("heft submit", &mut command);
    submit.wait_for("what it waits for", |line| line.contains("raw payloads").then_some(()));
}

#[test]
fn m19_a_handler_that_says_so_gets_raw_jobs() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    // They run until the test's process ends.
    let start = |takes_raw: bool| {
        let config = WorkerConfig {
            takes_raw,
            work_dir: dir.join("jobs"),
            ..WorkerConfig::new(leader.addr())
        };
        let count = |job: Job, _: JobContext| async move {
            let mut result = job.result(JobStatus::Ok);
            result.stdout =
                format!("{} bytes, request: {}", job.payload.len(), job.request.is_ok());
            result
        };
        let worker = heft::worker::Worker::new(config, count).unwrap();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(worker.run(std::future::pending()));
        });
    };
    start(false);
    let job = json!({"raw_b64": base64(b"\x00\x01\x02"), "subject": "job.submit.g"});
    let mut client = classic_client(leader.port, "clientA", &[], &[job]);
    client.event("submitted");
    start(true);
    let result = client.event("result");
    assert_eq!(
        (&result["status"], &result["stdout"]),
        (&json!("OK"), &json!("3 bytes, request: false"))
    );
}
