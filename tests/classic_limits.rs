//! The largest frames that classic peers take, to the byte (W05, C01): what is *sent* to one has a
//! body of at most 4,194,304 bytes, and whatever fits that is sent as it came.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use chunking::Kind;
use heft::model::{JobRequest, JsonModel as _};
use procs::{ECHO, Leader, Worker};
use raw::Raw;
use serde_json::{Value, json};
use uuid::Uuid;

const LIMIT: usize = 4_194_304;

/// Type, two ids, the lengths of subject and payload.
const HEAD: usize = 39;

fn classic_worker(leader: &Leader, credit: i32) -> Raw {
    let mut worker = Raw::connect(leader);
    worker.send(Kind::HelloWorker, Uuid::new_v4(), Uuid::nil(), "job.assign.*", b"");
    worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &credit.to_le_bytes());
    worker
}

fn classic_client(leader: &Leader) -> Raw {
    let mut client = Raw::connect(leader);
    client.send(
        Kind::HelloClient,
        Uuid::nil(),
        Uuid::nil(),
        "c",
        br#"{"ClientId":"c","DesiredParallelism":9}"#,
    );
    client
}

/// JSON with a gap for letters, which brings it to this size.
fn padded(bytes: usize, json: impl Fn(&str) -> String) -> Vec<u8> {
    let gap = bytes - json("").len();
    json(&"x".repeat(gap)).into_bytes()
}

/// A request with a file of almost 3 MiB, whose assignment has a body of this size.
fn request(job: Uuid, assigned_body: usize) -> Vec<u8> {
    let subject = format!("job.assign.echo.{}", Uuid::nil());
    let content = "A".repeat(4_180_000);
    padded(assigned_body - HEAD - subject.len(), |gap| {
        format!(
            r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Args":["{gap}"],"Files":[{{"Name":"in.bin","CacheId":null,"Content":"{content}"}}]}}"#
        )
    })
}

fn ok(job: Uuid) -> Vec<u8> {
    let result = json!({"JobId": job, "ClientId": "c", "ExecName": "echo", "Status": "OK", "Stdout": "", "Stderr": "",
        "OutputArchive": null});
    result.to_string().into_bytes()
}

#[test]
fn w05_a_job_with_contents_goes_to_a_classic_worker_up_to_the_last_byte_and_no_further() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(&leader, 20);
    let mut client = classic_client(&leader);
    let head = HEAD + "job.submit.echo".len();
    // An assignment's subject has 37 bytes more than this submit's. What is said of submits up to
    // its limit holds, too.
    let assigned = [LIMIT - 1023 + 37, LIMIT - 40, LIMIT - 1, LIMIT];
    for (body, subject) in
        assigned.iter().flat_map(|body| [(*body, "job.submit.echo"), (*body, "")])
    {
        let job = Uuid::new_v4();
        let payload = request(job, body);
        client.send(Kind::SubmitJob, job, Uuid::nil(), subject, &payload);
        let came = worker.next().unwrap();
        assert_eq!((came.kind, came.msg_id), (Kind::AssignJob, job), "{body}");
        assert!(came.payload == payload, "{body}: sent as it came");
        worker.send(Kind::AckJob, Uuid::nil(), job, "", &ok(job));
        assert_eq!(client.next().unwrap().msg_id, job);
    }
    // One more byte, and as much as a submit takes: they are held for a worker that takes
    // transfers.
    let mut asking = Raw::client(&leader, "asking");
    let over = [LIMIT + 1, LIMIT + 37].map(|body| {
        let job = Uuid::new_v4();
        let payload = request(job, body);
        assert!(head + payload.len() <= LIMIT, "it is a frame of a classic client");
        client.send(Kind::SubmitJob, job, Uuid::nil(), "job.submit.echo", &payload);
        loop {
            let why = asking.ask("explain", &json!({"job_id": job}));
            if why["phase"] == "queued" {
                assert_eq!(why["workers"][0]["verdict"], "no-transfers", "{body}: {why}");
                break job;
            }
        }
    });
    let small = Uuid::new_v4();
    client.submit(small, "echo", &[]);
    let came = worker.next().unwrap();
    assert_eq!((came.kind, came.msg_id), (Kind::AssignJob, small), "nothing was sent between");
    worker.send(Kind::AckJob, Uuid::nil(), small, "", &ok(small));
    assert_eq!(client.next().unwrap().msg_id, small);
    let _heft = Worker::start(leader.port, &[("echo", ECHO)], &[]);
    for _ in over {
        let result = client.next().unwrap();
        let status: Value = serde_json::from_slice(&result.payload).unwrap();
        assert_eq!((result.kind, &status["Status"]), (Kind::Result, &json!("OK")));
        assert!(over.contains(&result.msg_id));
    }
}

#[test]
fn w05_a_result_goes_to_a_classic_client_up_to_the_last_byte_and_no_further() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(&leader, 20);
    let mut client = classic_client(&leader);
    let archive = "A".repeat(4_000_000);
    let subject = format!("job.result.c.{}", Uuid::nil().simple());
    for body in [LIMIT - 1023, LIMIT - 1, LIMIT, LIMIT + 1] {
        let job = Uuid::new_v4();
        client.submit(job, "echo", &[]);
        assert_eq!(worker.next().unwrap().msg_id, job);
        let result = padded(body - HEAD - subject.len(), |gap| {
            format!(
                r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Status":"OK","Stdout":"{gap}","Stderr":"","OutputArchive":"{archive}"}}"#
            )
        });
        worker.send(Kind::AckJob, Uuid::nil(), job, "", &result);
        worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
        let came = client.next().unwrap();
        assert_eq!((came.kind, came.msg_id), (Kind::Result, job), "{body}");
        if body <= LIMIT {
            assert!(came.payload == result, "{body}: sent as it came");
        } else {
            let cut: Value = serde_json::from_slice(&came.payload).unwrap();
            assert_eq!((&cut["Status"], &cut["OutputArchive"]), (&json!("OK"), &Value::Null));
            assert!(
                cut["Stderr"].as_str().unwrap().contains("heft result get"),
                "{}",
                cut["Stderr"]
            );
        }
    }
}

#[test]
fn a_result_that_is_cut_speaks_of_no_archive_if_there_is_none() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(&leader, 20);
    let mut client = classic_client(&leader);
    let job = Uuid::new_v4();
    client.submit(job, "echo", &[]);
    assert_eq!(worker.next().unwrap().msg_id, job);
    let result = padded(LIMIT - HEAD, |gap| {
        format!(
            r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Status":"OK","Stdout":"{gap}","Stderr":"","OutputArchive":""}}"#
        )
    });
    worker.send(Kind::AckJob, Uuid::nil(), job, "", &result);
    let came = client.next().unwrap();
    let cut: Value = serde_json::from_slice(&came.payload).unwrap();
    let told = cut["Stderr"].as_str().unwrap();
    assert!(told.contains("the rest of Stdout") && !told.contains("archive"), "{told}");
}

#[test]
fn c02_what_a_classic_worker_is_sent_counts_with_the_paths_of_cached_files() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(&leader, 20);
    let mut client = Raw::client(&leader, "c");
    let subject = format!("job.assign.echo.{}", Uuid::nil());
    let request = |job: Uuid, cache_id: &str, payload: usize| {
        padded(payload, |gap| {
            format!(
                r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Args":["{gap}"],"Files":[{{"Name":"n","CacheId":"{cache_id}","Content":null}}]}}"#
            )
        })
    };
    let largest = LIMIT - HEAD - subject.len();
    let (over, fits) = (Uuid::new_v4(), Uuid::new_v4());
    for (job, bytes) in [(over, largest - 1), (fits, largest - 2)] {
        client.send(
            Kind::SubmitJob,
            job,
            Uuid::nil(),
            "job.submit.echo",
            &request(job, "set", bytes),
        );
        assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    }
    let came = worker.next().unwrap();
    assert_eq!((came.kind, came.msg_id), (Kind::AssignJob, fits));
    assert!(came.payload == request(fits, "set/n", largest), "by path, to the last byte");
    let why = client.ask("explain", &json!({"job_id": over}));
    assert_eq!(
        (&why["phase"], &why["workers"][0]["verdict"]),
        (&json!("queued"), &json!("no-transfers"))
    );
}

#[test]
fn c08_a_flattened_job_goes_to_a_classic_worker_if_what_is_sent_fits_and_else_waits_for_ours() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(&leader, 20);
    let (mut client, mut asking) = (classic_client(&leader), Raw::client(&leader, "asking"));
    let subject = format!("job.assign.echo.{}", Uuid::nil());
    // What stands for one byte in the client's JSON takes six in the leader's.
    let odd = "<".repeat(1000);
    let job_of = |job: Uuid, gap: usize| {
        let gap = "x".repeat(gap);
        format!(
            r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Args":["{gap}","{odd}"],"Flatten":true,"Files":[{{"Name":"d/in.bin","CacheId":null,"Content":"QQ=="}}]}}"#
        )
    };
    let sent = |payload: &str| {
        let mut request = JobRequest::parse(payload.as_bytes()).unwrap();
        request.files[0].name = "in.bin".into();
        HEAD + subject.len() + request.to_json().len()
    };
    let least = sent(&job_of(Uuid::nil(), 0));
    for body in [LIMIT, LIMIT + 1] {
        let job = Uuid::new_v4();
        let payload = job_of(job, body - least);
        assert!(sent(&payload) == body && HEAD + subject.len() + payload.len() < LIMIT, "{body}");
        client.send(Kind::SubmitJob, job, Uuid::nil(), "job.submit.echo", payload.as_bytes());
        if body <= LIMIT {
            let came = worker.next().unwrap();
            assert_eq!((came.kind, came.msg_id), (Kind::AssignJob, job), "{body}");
            worker.send(Kind::AckJob, Uuid::nil(), job, "", &ok(job));
            assert_eq!(client.next().unwrap().msg_id, job);
        } else {
            loop {
                let why = asking.ask("explain", &json!({"job_id": job}));
                assert_ne!(why["phase"], "done", "{why}");
                if why["phase"] == "queued" {
                    assert_eq!(why["workers"][0]["verdict"], "no-transfers", "{why}");
                    break;
                }
            }
        }
    }
}

#[test]
fn a_classic_client_hears_of_results_of_all_workers_that_fit_no_line_once_they_are_escaped() {
    let leader = Leader::start(&[]);
    let mut workers = [classic_worker(&leader, 2), classic_worker(&leader, 2)];
    let mut client = classic_client(&leader);
    let mut asking = Raw::client(&leader, "asking");
    while asking.ask("status", &json!({}))["workers"].as_array().is_none_or(|all| all.len() < 2) {}
    let job = Uuid::new_v4();
    let payload = json!({"JobId": job, "ClientId": "c", "ExecName": "echo", "Args": [], "Files": [], "Deliver": "all"});
    client.send(
        Kind::SubmitJob,
        job,
        Uuid::nil(),
        "job.submit.echo",
        payload.to_string().as_bytes(),
    );
    for worker in &mut workers {
        let came = worker.next().unwrap();
        assert_eq!(came.kind, Kind::AssignJob);
        let mut result: Value = serde_json::from_slice(&ok(came.msg_id)).unwrap();
        result["Stdout"] = "<".repeat(400_000).into();
        worker.send(Kind::AckJob, Uuid::nil(), came.msg_id, "", result.to_string().as_bytes());
    }
    let result: Value = serde_json::from_slice(&client.next().unwrap().payload).unwrap();
    let lines: Vec<Value> = result["Stdout"]
        .as_str()
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(lines.iter().filter(|line| line["Apart"] == true).count(), 1, "one fits");
    let told = result["Stderr"].as_str().unwrap();
    assert!(told.contains("heft result get"), "{told}");
}
