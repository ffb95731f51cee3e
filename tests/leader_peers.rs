//! Peers that misbehave at a real leader: each gets its end, the others notice nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use std::io::Write;
use std::time::Duration;

use chunking::message::{Body, Reason, Refused, Submitted};
use chunking::{Generation, Head, Kind};
use procs::{Leader, PATIENCE, classic_client, classic_worker, heft};
use raw::Raw;
use serde_json::{Value, json};
use uuid::Uuid;

/// The leader still does its work.
fn assert_well(leader: &Leader) {
    let _worker = classic_worker(leader.port, &["job.assign.*"]);
    let client = classic_client(leader.port, "well", &[], &[json!({"exec": "echo"})]);
    assert_eq!(client.finish().0, Some(0), "a job runs");
}

#[test]
fn garbage_half_a_frame_and_a_missing_hello_end_their_connection_only() {
    let leader = Leader::start(&[]);
    let mut garbage = Raw::connect(&leader);
    garbage.stream.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").unwrap();
    assert!(garbage.is_hung_up_on());

    let mut no_hello = Raw::connect(&leader);
    no_hello.send(Kind::SubmitJob, Uuid::from_u128(1), Uuid::nil(), "job.submit.x", b"early");
    assert!(no_hello.is_hung_up_on());

    let mut half = Raw::connect(&leader);
    half.stream.write_all(&[50, 0, 0, 0, 9, 1, 2]).unwrap();
    half.stream.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(half.is_hung_up_on());

    let mut twice = Raw::client(&leader, "twice");
    twice.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), "twice", b"");
    assert!(twice.is_hung_up_on());

    let mut large = Raw::client(&leader, "large");
    large.stream.write_all(&4_194_305_i32.to_le_bytes()).unwrap();
    assert!(large.is_hung_up_on());
    assert_well(&leader);
}

#[test]
fn a_workers_announcement_that_cannot_be_read_is_refused_with_the_reason_and_not_taken_for_a_classic_hello()
 {
    let leader = Leader::start(&[]);
    for (hello, why) in [
        (r#"{"Heft":{"Version":1,"Features":["leases"]},"MaxParallel":100000000}"#, "MaxParallel"),
        (r#"{"Heft":{"Version":1,"Features":["leases"]},"MaxParallel":"4"}"#, "MaxParallel"),
        (r#"{"Heft":{"Features":["leases"]}}"#, "Version"),
        (r#"{"Heft":{"Version":1"#, "JSON"),
        (r#"{"Heft":{"Version":1},"Patterns":["a\nb"]}"#, "control character"),
        (r#"{"Heft":{"Version":1},"Patterns":"job.assign.x"}"#, "Patterns"),
        (r#"{"Heft":{"Version":1},"Patterns":["job.assign.x",7]}"#, "Patterns"),
        (r#"{"Heft":{"Version":1},"Patterns":["job.assign.x",null]}"#, "Patterns"),
        (r#"{"Heft":{"Version":1},"Patterns":[""]}"#, "number 2 is empty"),
        (r#"{"Heft":{"Version":1},"Patterns":["job.assign.x",".."]}"#, "number 3 is empty"),
        (r#"{"Heft":{"Version":1},"Patterns":["job.>.x"]}"#, "wrong place"),
        (r#"{"Heft":{"Version":1},"Patterns":["job.assign.x*"]}"#, "wrong place"),
        (r#"{"Heft":{"Version":1},"Patterns":["job.assign.>>"]}"#, "wrong place"),
        (r#"{"Heft":{"Version":1},"CacheOnly":true,"CacheFor":"x"}"#, "CacheFor"),
    ] {
        let mut worker = Raw::connect(&leader);
        worker.send(
            Kind::HelloWorker,
            Uuid::from_u128(5),
            Uuid::nil(),
            "job.assign.x",
            hello.as_bytes(),
        );
        let answer = worker.next().unwrap();
        assert_eq!((answer.kind, answer.msg_id), (Kind::Refused, Uuid::from_u128(5)), "{hello}");
        let refused = Refused::decode(&answer.payload).unwrap();
        assert!(refused.text.as_str().contains(why), "{hello}: {}", refused.text);
        assert!(worker.is_hung_up_on(), "{hello}");
    }
    assert_well(&leader);
}

#[test]
fn w16_a_large_frame_before_any_hello_ends_the_connection() {
    let leader = Leader::start(&[]);
    // Longer than our own frames may be, so the head is written for a short one first.
    let (mut frame, bytes) = (Vec::new(), 6u32 << 20);
    let head = Head { subject: "job.submit.x", ..Head::new(Kind::SubmitJob) };
    head.append(Generation::F2, &mut frame).unwrap();
    let body = u32::try_from(frame.len() - 4).unwrap() + bytes;
    let end = frame.len() - 4;
    frame[..4].copy_from_slice(&body.to_le_bytes());
    frame[end..].copy_from_slice(&bytes.to_le_bytes());
    let mut stranger = Raw::connect(&leader);
    stranger.stream.write_all(&[frame, vec![b' '; 100_000]].concat()).unwrap();
    assert!(stranger.is_hung_up_on());
    assert_well(&leader);
}

#[test]
fn the_hellos_of_classic_workers_of_all_frame_layouts_are_taken_as_ever() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let subjects = ["", "groupA", "job.assign.*", "a.>.b", "job.assign.x*", ">", "..", "a..b"];
    // What others put there is not for us.
    let payloads = ["", "1.0.3", "{\"name\":\"w\"}", "{\"heft\":", "[]", "{}", "null"];
    let hellos =
        [(Generation::F0, "", ""), (Generation::F1, "", ""), (Generation::F1, "", "1.0.3")]
            .into_iter()
            .chain(subjects.map(|subject| (Generation::F2, subject, "")))
            .chain(payloads.map(|payload| (Generation::F2, "job.assign.x", payload)));
    for (generation, subject, payload) in hellos {
        let mut frame = Vec::new();
        let payload_len = u32::try_from(payload.len()).unwrap();
        Head { subject, payload_len, ..Head::new(Kind::HelloWorker) }
            .append(generation, &mut frame)
            .unwrap();
        let mut worker = Raw::connect(&leader);
        worker.stream.write_all(&[&frame, payload.as_bytes()].concat()).unwrap();
        let mut workers = || client.ask("status", &json!({}))["workers"].as_array().unwrap().len();
        procs::eventually("it is a worker", || workers() == 1);
        drop(worker);
        procs::eventually("it has left", || workers() == 0);
    }
}

#[test]
fn a_status_with_long_names_and_many_patterns_is_answered_whole_in_parts() {
    let leader = Leader::start(&[]);
    let long = |what: &str, number: usize| format!("{what}{number}-{}", "x".repeat(60_000));
    let mut peers = Vec::new();
    for number in 0..100 {
        let mut client = Raw::connect(&leader);
        client.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), &long("client", number), b"");
        client.send(
            Kind::SubmitJob,
            Uuid::nil(),
            Uuid::nil(),
            &format!("job.submit.{}", long("key", number)),
            b"raw",
        );
        peers.push(client);
    }
    for number in 0..30 {
        let mut worker = Raw::connect(&leader);
        let patterns: Vec<_> =
            (0..100).map(|at| format!("job.assign.w{number}.{at}.{}", "y".repeat(600))).collect();
        let hello = json!({"Heft": {"Version": 1, "Features": ["leases"]}, "Patterns": patterns});
        worker.send(
            Kind::HelloWorker,
            Uuid::nil(),
            Uuid::nil(),
            "job.assign.w",
            hello.to_string().as_bytes(),
        );
        assert_eq!(worker.next().unwrap().kind, Kind::Welcome);
        peers.push(worker);
    }
    let (code, out, err) = heft(&["status", &leader.addr(), "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    let status: Value = serde_json::from_str(&out).unwrap();
    let workers = status["workers"].as_array().unwrap();
    assert_eq!(workers.len(), 30);
    assert_eq!(
        (workers[0]["patterns"].as_array().unwrap().len(), &workers[0]["patterns_more"]),
        (20, &json!(81))
    );
    let clients = status["clients"].as_array().unwrap();
    assert!(
        clients.iter().any(|client| client["id"].as_str().unwrap().ends_with("bytes)")),
        "they are cut"
    );
    let (code, out, err) = heft(&["status", &leader.addr()]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("client0-xxx"), "{out:.2000}");
}

#[test]
fn caps_of_clients_that_never_come_back_do_not_pile_up() {
    let data = procs::TempDir::new();
    let mut leader = Leader::start(&["--data", data.text()]);
    let hello = |leader: &Leader, id: &str, ours: bool| {
        let heft = if ours { r#","Heft":{"Version":1,"Features":["ask"]}"# } else { "" };
        let config = format!(r#"{{"ClientId":"{id}","DesiredParallelism":9{heft}}}"#);
        let mut client = Raw::connect(leader);
        client.send(Kind::HelloClient, Uuid::from_u128(3), Uuid::nil(), id, config.as_bytes());
        client
    };
    for id in ["x".repeat(256), "x".repeat(60_000)] {
        let refused = hello(&leader, &id, true).next().unwrap();
        assert_eq!((refused.kind, refused.msg_id), (Kind::Refused, Uuid::from_u128(3)));
        let text = Refused::decode(&refused.payload).unwrap().text.to_string();
        assert!(text.contains("at most 255"), "{text}");
    }
    assert_eq!(hello(&leader, &"x".repeat(255), true).next().unwrap().kind, Kind::Welcome);
    let memory = |leader: &Leader| {
        let status =
            std::fs::read_to_string(format!("/proc/{}/status", leader.proc.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
    };
    let before = memory(&leader);
    for number in 0..800 {
        // All that it says has come when it is closed.
        let mut client = hello(&leader, &format!("{number}-{}", "x".repeat(60_000)), false);
        client.stream.shutdown(std::net::Shutdown::Write).unwrap();
        assert!(client.is_hung_up_on());
    }
    let after = memory(&leader);
    assert!(after < before + 24, "{before} MiB before, {after} MiB after");
    leader.proc.kill();
    let leader = Leader::start(&["--data", data.text()]);
    let again = memory(&leader);
    assert!(again < before + 24, "{before} MiB before, {again} MiB after a restart");
    assert_well(&leader);
}

#[test]
fn a_time_limit_holds_for_a_job_on_a_classic_worker_which_keeps_its_place_until_it_answers() {
    let leader = Leader::start(&[]);
    let mut worker = Raw::connect(&leader);
    worker.send(Kind::HelloWorker, Uuid::from_u128(5), Uuid::nil(), "job.assign.>", b"");
    worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
    let addr = leader.addr();
    let submit = std::thread::spawn(move || heft(&["submit", &addr, "x", "--time-limit", "400ms"]));
    let assigned = worker.next().unwrap();
    assert_eq!(assigned.kind, Kind::AssignJob);
    let (code, _, err) = submit.join().unwrap();
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("TIMEOUT") && err.contains("time limit of 400ms"), "{err}");
    // One that ends in time is not touched, and the worker has only one place.
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::from_u128(9);
    let request = json!({"JobId": job, "ClientId": "c", "ExecName": "x", "Args": [], "Files": [], "TimeLimitMs": 60_000});
    client.send(Kind::SubmitJob, job, Uuid::nil(), "job.submit.x", request.to_string().as_bytes());
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    assert_eq!(client.ask("status", &json!({}))["jobs"]["queued"], 1);
    let late = json!({"JobId": assigned.msg_id, "ClientId": "c", "ExecName": "x", "Status": "OK", "Stdout": "late", "Stderr": ""});
    worker.send(Kind::AckJob, Uuid::nil(), assigned.msg_id, "", late.to_string().as_bytes());
    worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
    assert_eq!(worker.next().unwrap().msg_id, job);
    let done = json!({"JobId": job, "ClientId": "c", "ExecName": "x", "Status": "OK", "Stdout": "in time", "Stderr": ""});
    worker.send(Kind::AckJob, Uuid::nil(), job, "", done.to_string().as_bytes());
    let result = loop {
        let frame = client.next().unwrap();
        if frame.kind == Kind::Result {
            break frame;
        }
    };
    assert!(String::from_utf8_lossy(&result.payload).contains("in time"));
    let (_, out, _) = heft(&["result", "get", &leader.addr(), &assigned.msg_id.to_string()]);
    assert!(!out.contains("late"), "{out}");
}

#[test]
fn names_with_line_feeds_and_escapes_make_no_lines_of_their_own_in_the_log_and_long_ones_are_cut() {
    let leader = Leader::confined(&[], &[]).unwrap_or_else(|(_, lines)| panic!("{lines:#?}"));
    let forged = "2026-01-01T00:00:00Z ERROR forged";
    let long = "x".repeat(60_000);
    for id in [format!("a\r\n{forged}\x1b[2J"), format!("{long}\n{forged}")] {
        let mut client = Raw::connect(&leader);
        client.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), &id, b"");
        client.send(
            Kind::SubmitJob,
            Uuid::nil(),
            Uuid::nil(),
            &format!("job.submit.{id}"),
            b"not a request",
        );
        let mut worker = Raw::connect(&leader);
        let hello = json!({"Heft": {"Version": 1, "Features": ["leases"], "Name": "w\n".repeat(40) + forged}});
        worker.send(
            Kind::HelloWorker,
            Uuid::nil(),
            Uuid::nil(),
            "job.assign.x",
            hello.to_string().as_bytes(),
        );
        // Both are told of in the log when they leave.
        drop((client, worker));
    }
    assert_well(&leader);
    let Leader { proc, .. } = leader;
    proc.terminate();
    let (_, lines) = proc.finish();
    assert!(
        lines.iter().any(|line| line.contains("forged") || line.contains("bytes more)")),
        "{lines:#?}"
    );
    for line in &lines {
        assert!(!line.starts_with(forged) && !line.contains('\x1b'), "{line:?}");
        assert!(line.len() < 4_000, "{} bytes: {line:.200}", line.len());
    }
}

#[test]
fn names_that_lead_out_of_a_workers_directories_are_refused_at_submit() {
    let leader = Leader::start(&[]);
    let mut worker = Raw::connect(&leader);
    worker.send(Kind::HelloWorker, Uuid::from_u128(5), Uuid::nil(), "job.assign.>", b"");
    worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &100_i32.to_le_bytes());
    let mut classic = Raw::connect(&leader);
    classic.send(Kind::HelloClient, Uuid::nil(), Uuid::nil(), "old", b"");
    let mut ours = Raw::client(&leader, "ours");
    let file = |cache: &str| json!([{"Name": "a", "CacheId": cache}]);
    for (number, (exec, files, why)) in (1..).zip([
        ("/bin/sh", json!([]), "it is absolute"),
        ("../sh", json!([]), "it holds \"..\""),
        ("x", file("/etc/hostname"), "it is absolute"),
        ("x", file("set/../../x"), "it holds \"..\""),
        ("x", file("c:\\x"), "a drive"),
        ("x", json!([{"Name": "a", "CacheId": "set", "CacheName": "../x"}]), "it holds \"..\""),
    ]) {
        let job = Uuid::from_u128(number);
        let request =
            json!({"JobId": job, "ClientId": "c", "ExecName": exec, "Args": [], "Files": files});
        let request = request.to_string();
        for client in [&mut classic, &mut ours] {
            client.send(Kind::SubmitJob, job, Uuid::nil(), "job.submit.x", request.as_bytes());
        }
        let result = classic.next().unwrap();
        assert_eq!(result.kind, Kind::Result, "{request}");
        let text =
            String::from_utf8_lossy(&result.payload).replace("\\u0022", "\"").replace("\\\"", "\"");
        assert!(text.contains(why) && text.contains("FAILED"), "{request}: {text}");
        let refused = ours.next().unwrap();
        assert_eq!(refused.kind, Kind::Refused, "{request}");
        assert!(
            Refused::decode(&refused.payload).unwrap().text.as_str().contains(why),
            "{request}"
        );
    }
    // The worker got none of them.
    ours.submit(Uuid::from_u128(100), "x", &[]);
    assert_eq!(worker.next().unwrap().msg_id, Uuid::from_u128(100));
}

#[test]
fn cr04_credit_below_zero_and_in_the_billions_harms_nobody() {
    let leader = Leader::start(&[]);
    let mut odd = Raw::connect(&leader);
    odd.send(Kind::HelloWorker, Uuid::from_u128(5), Uuid::nil(), "job.assign.odd", b"");
    for delta in [-1, i32::MIN, 0, i32::MAX, i32::MAX] {
        odd.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &delta.to_le_bytes());
    }
    odd.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &[1, 2, 3]);
    odd.send(Kind::AckJob, Uuid::nil(), Uuid::from_u128(99), "", b"an unknown job's result");
    let mut client = Raw::client(&leader, "c");
    let credit = loop {
        let status = client.ask("status", &json!({}));
        let workers = status["workers"].as_array().unwrap();
        match workers.first().map(|worker| worker["credit"].as_u64().unwrap()) {
            Some(credit) if credit > 0 => break credit,
            Some(_) | None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    assert_eq!(credit, 10_000, "one message brings 10,000 at most, and more only for answers");
    assert_well(&leader);
}

#[test]
fn a_used_job_id_with_other_content_is_refused_and_the_first_job_is_kept() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::from_u128(42);
    client.submit(job, "echo", &["first"]);
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    client.submit(job, "echo", &["second"]);
    let refused = client.next().unwrap();
    assert_eq!((refused.kind, refused.msg_id), (Kind::Refused, job));
    let text = Refused::decode(&refused.payload).unwrap().text.to_string();
    assert!(text.contains("in use") && text.contains(&job.to_string()), "{text}");
    client.submit(job, "echo", &["first"]);
    let again = client.next().unwrap();
    assert_eq!((again.kind, Submitted::decode(&again.payload).unwrap().run), (Kind::Submitted, 1));
    let _worker = classic_worker(leader.port, &["job.assign.*"]);
    let result = client.next().unwrap();
    assert_eq!(result.kind, Kind::Result);
    assert!(String::from_utf8(result.payload).unwrap().contains("first"));
    // And once more, now that it has ended: the stored result is the answer (C17).
    client.submit(job, "echo", &["first"]);
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    assert_eq!(client.next().unwrap().kind, Kind::Result);
}

#[test]
fn bad_requests_are_refused_with_what_is_wrong() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    for (subject, payload, says) in [
        ("job.submit.*", r#"{"ExecName":"echo"}"#, "wildcard"),
        ("job.submit.a\u{0}b", r#"{"ExecName":"echo"}"#, "control character"),
        ("", r#"{"ExecName":"echo","Args":"no list"}"#, "Args"),
        ("", r#"{"ExecName":"echo","Files":[{"Name":"a","Content":"not base64!"}]}"#, "base64"),
        ("", r#"{"ExecName":"echo","JobId":"00112233445566778899aabbccddeeff"}"#, "Guid"),
        ("", r#"{"ExecName":"echo","Deliver":"some"}"#, "Deliver"),
    ] {
        client.send(Kind::SubmitJob, Uuid::new_v4(), Uuid::nil(), subject, payload.as_bytes());
        let refused = client.next().unwrap();
        assert_eq!(refused.kind, Kind::Refused, "{payload}");
        let text = Refused::decode(&refused.payload).unwrap().text.to_string();
        assert!(text.contains(says), "{payload}: {text}");
    }
    // What is not a JobRequest at all is a raw job (M19).
    client.send(Kind::SubmitJob, Uuid::new_v4(), Uuid::nil(), "", b"any bytes \xff at all");
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
}

#[test]
fn operators_see_cancel_requeue_and_purge() {
    let leader = Leader::start(&["--attempts", "1"]);
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::from_u128(7);
    client.submit(job, "crash", &[]);
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    worker.event("crashing");
    let dead = client.next().unwrap();
    let result: Value = serde_json::from_slice(&dead.payload).unwrap();
    assert_eq!(
        (&result["Status"], &result["Dead"], &result["Attempts"]),
        (&json!("FAILED"), &json!(true), &json!(1))
    );

    let listed = client.ask("dlq.ls", &json!({}));
    assert_eq!(listed["jobs"][0]["job_id"], job.to_string());
    let shown = client.ask("dlq.show", &json!({"job_id": job}));
    assert_eq!(shown["history"].as_array().unwrap().len(), 1, "{shown}");
    assert_eq!(client.ask("dlq.requeue", &json!({"job_id": job})), json!({"requeued": 1}));
    let why = client.ask("explain", &json!({"job_id": job}));
    assert_eq!(
        (&why["phase"], &why["policy"], &why["key"]),
        (&json!("queued"), &json!("locality"), &json!("job.assign.crash"))
    );
    assert_eq!(
        (&why["run"], &why["waits"]["for"], &why["workers"]),
        (&json!(2), &json!("worker"), &json!([])),
        "{why}"
    );
    assert_eq!(client.ask("cancel", &json!({"job_id": job}))["was"], "queued");
    let cancelled: Value = serde_json::from_slice(&client.next().unwrap().payload).unwrap();
    assert!(cancelled["Stderr"].as_str().unwrap().contains("cancelled by client c"), "{cancelled}");
    assert!(
        client.ask("cancel", &json!({"job_id": job}))["error"]
            .as_str()
            .unwrap()
            .contains("ended already")
    );
    assert!(
        client.ask("dlq.show", &json!({"job_id": "x"}))["error"]
            .as_str()
            .unwrap()
            .contains("not a valid job id")
    );
    let unknown = client.ask("explain", &json!({"job_id": Uuid::from_u128(99)}));
    assert!(unknown["error"].as_str().unwrap().contains(" is unknown here"), "{unknown}");
    assert!(client.ask("nonsense", &json!({}))["error"].as_str().unwrap().contains("status"));
    assert_eq!(client.ask("dlq.purge", &json!({"all": true})), json!({"purged": 0}));
}

#[test]
fn a_result_waits_for_the_connection_on_which_its_client_submits_the_job_again() {
    let leader = Leader::start(&[]);
    let job = Uuid::from_u128(11);
    let mut first = Raw::client(&leader, "same");
    first.submit(job, "echo", &["kept"]);
    assert_eq!(first.next().unwrap().kind, Kind::Submitted);
    drop(first);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    worker.event("acked");
    let mut second = Raw::client(&leader, "same");
    second.ask("status", &json!({}));
    second.submit(job, "echo", &["kept"]);
    assert_eq!(second.next().unwrap().kind, Kind::Submitted, "no result came before");
    let result = second.next().unwrap();
    assert_eq!((result.kind, result.msg_id), (Kind::Result, job));
}

#[test]
fn unknown_types_and_types_for_others_are_skipped_and_the_work_goes_on() {
    let leader = Leader::start(&[]);
    let unknown = |raw: &mut Raw, code: u8| {
        let mut bytes = 40_i32.to_le_bytes().to_vec();
        bytes.push(code);
        bytes.extend_from_slice(&[0; 34]);
        bytes.extend_from_slice(&1_u32.to_le_bytes());
        bytes.push(b'?');
        raw.stream.write_all(&bytes).unwrap();
    };
    let mut worker = Raw::connect(&leader);
    worker.send(Kind::HelloWorker, Uuid::from_u128(5), Uuid::nil(), "job.assign.*", b"");
    let mut client = Raw::client(&leader, "c");
    for code in
        [8, 11, 28, 55, 200, 255, Kind::AssignJob.code(), Kind::Welcome.code(), Kind::Chunk.code()]
    {
        unknown(&mut worker, code);
        unknown(&mut client, code);
    }
    worker.send(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &1_i32.to_le_bytes());
    let job = Uuid::from_u128(77);
    client.submit(job, "echo", &[]);
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    let assigned = worker.next().unwrap();
    assert_eq!((assigned.kind, assigned.msg_id), (Kind::AssignJob, job));
    worker.send(Kind::AckJob, Uuid::nil(), job, "", br#"{"Status":"OK","Stdout":"done"}"#);
    assert_eq!(client.next().unwrap().kind, Kind::Result);
}

#[test]
fn a_peer_that_does_not_read_what_it_is_sent_is_cut_off() {
    let leader = Leader::start(&[]);
    let mut deaf = Raw::client(&leader, "deaf");
    let payload = b"\x01{}";
    let mut asks = Vec::new();
    for _ in 0..200 {
        let head = Head { subject: "status", payload_len: 3, ..Head::new(Kind::Ask) };
        head.append(Generation::F2, &mut asks).unwrap();
        asks.extend_from_slice(payload);
    }
    deaf.stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let cut_off = (0..5000).any(|_| deaf.stream.write_all(&asks).is_err());
    assert!(cut_off, "a million answers wait for it");
    assert_well(&leader);
}

/// A worker's answer with a result.
fn result_of(job: Uuid, more: Value) -> Vec<u8> {
    let mut result = json!({"JobId": job, "ClientId": "c", "ExecName": "echo", "Status": "OK", "Stdout": "forged",
        "Stderr": "", "OutputArchive": null});
    let Value::Object(members) = more else { panic!("members") };
    result.as_object_mut().unwrap().extend(members);
    result.to_string().into_bytes()
}

#[test]
fn a_peer_that_asks_for_results_and_does_not_read_them_is_told_to_read_first() {
    const ASKED: usize = 1_600;
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::from_u128(78);
    client.submit(job, "echo", &[]);
    let mut worker = Raw::worker(&leader, Uuid::from_u128(8), "job.assign.echo");
    assert_eq!(worker.next().unwrap().kind, Kind::AssignJob);
    let result = result_of(job, json!({"Run": 1, "Attempts": 1, "Stdout": "x".repeat(60_000)}));
    worker.send(Kind::AckJob, job, job, "", &result);
    while client.next().unwrap().kind != Kind::Result {}
    let question = [&[1], json!({"job_id": job}).to_string().as_bytes()].concat();
    for number in 0..ASKED {
        client.send(Kind::Ask, Uuid::from_u128(number as u128), Uuid::nil(), "result", &question);
    }
    // Each has one answer, and those that wait are not too many.
    std::thread::sleep(Duration::from_millis(300));
    let (mut found, mut refused) = (0, 0);
    while found + refused < ASKED {
        let frame = client.next().unwrap();
        if frame.kind != Kind::Answer {
            continue;
        }
        let answer: Value = serde_json::from_slice(&frame.payload[2..]).unwrap();
        match answer["error"].as_str() {
            None => found += 1,
            Some(error) => {
                assert!(
                    error.starts_with(
                        "too many questions wait: 1024, and the limit is 1024: read the answers \
                         first"
                    ),
                    "{error}"
                );
                refused += 1;
            }
        }
    }
    assert!(found >= 1_024 && refused > 0, "{found} were answered, {refused} were not");
    // Who has read may ask again.
    assert_eq!(client.ask("result", &json!({"job_id": job}))["found"], true);
    assert_well(&leader);
}

#[test]
fn parts_that_were_made_of_a_result_for_an_answer_do_not_come_with_the_whole_result() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::from_u128(79);
    client.submit(job, "echo", &[]);
    let mut worker = Raw::worker(&leader, Uuid::from_u128(8), "job.assign.echo");
    assert_eq!(worker.next().unwrap().kind, Kind::AssignJob);
    // Numbers that are longer when they are written again.
    let of = |len: usize| {
        let mut result =
            result_of(job, json!({"Run": 1, "Attempts": 1, "Stdout": "x".repeat(len)}));
        result.pop();
        result.extend_from_slice(format!(",\"More\":[{}1]}}", "1e9,".repeat(50)).as_bytes());
        result
    };
    // It fits a frame, and not an answer, which has more around it.
    let len = chunking::limits::FRAME_BODY_BYTES_MAX as usize - 39 - 64 - of(0).len();
    worker.send(Kind::AckJob, job, job, "", &of(len));
    let whole = |client: &mut Raw| {
        let kinds = std::iter::from_fn(|| Some(client.next()?.kind));
        let kinds: Vec<Kind> = kinds.take_while(|kind| *kind != Kind::Result).collect();
        assert!(!kinds.contains(&Kind::Open), "{kinds:?}");
    };
    whole(&mut client);
    let mut asks = Raw::client(&leader, "asks");
    let answer = asks.ask("result", &json!({"job_id": job}));
    assert!(answer["result"]["StdoutBlob"].is_object(), "it goes apart: {}", answer["error"]);
    client.submit(job, "echo", &[]);
    whole(&mut client);
    client.ask("status", &json!({}));
    client.stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
    while let Some(frame) = client.next() {
        assert_ne!(frame.kind, Kind::Open, "a part of a result that came whole");
    }
}

#[test]
fn a_worker_cannot_end_a_job_that_it_was_never_given() {
    let leader = Leader::start(&["--lease", "1h"]);
    let mut client = Raw::client(&leader, "c");
    let job = Uuid::from_u128(77);
    client.submit(job, "echo", &["mine"]);
    assert_eq!(client.next().unwrap().kind, Kind::Submitted);
    // It waits. One of ours is told that this is settled; it would come again otherwise.
    let mut ours = Raw::worker(&leader, Uuid::from_u128(5), "job.assign.nothing");
    ours.send(Kind::AckJob, job, job, "", &result_of(job, json!({"Run": 1, "Attempts": 0})));
    let settled = ours.next().unwrap();
    assert_eq!((settled.kind, settled.msg_id), (Kind::Settled, job));
    let mut classic = Raw::connect(&leader);
    classic.send(Kind::HelloWorker, Uuid::from_u128(6), Uuid::nil(), "job.assign.nothing", b"");
    classic.send(
        Kind::AckJob,
        Uuid::nil(),
        job,
        "",
        &result_of(job, json!({"Run": 1, "Attempts": 9})),
    );
    let until = |count: u64| {
        let mut asks = Raw::client(&leader, "asks");
        let end = std::time::Instant::now() + PATIENCE;
        while asks.ask("status", &json!({}))["leader"]["acks_refused"].as_u64() < Some(count) {
            assert!(std::time::Instant::now() < end, "fewer than {count} were refused");
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(
            asks.ask("status", &json!({}))["leader"]["result_bytes"],
            0,
            "nothing of them is kept"
        );
    };
    until(2);
    // It runs elsewhere.
    let mut worker = Raw::worker(&leader, Uuid::from_u128(8), "job.assign.echo");
    assert_eq!(worker.next().unwrap().kind, Kind::AssignJob);
    classic.send(Kind::AckJob, Uuid::nil(), job, "", &result_of(job, json!({})));
    until(3);
    worker.send(
        Kind::AckJob,
        job,
        job,
        "",
        &result_of(job, json!({"Run": 1, "Attempts": 1, "Stdout": "true"})),
    );
    let result = loop {
        let frame = client.next().unwrap();
        if frame.kind == Kind::Result {
            break frame;
        }
    };
    let result: Value = serde_json::from_slice(&result.payload).unwrap();
    assert_eq!(result["Stdout"], "true");
    assert_well(&leader);
}

/// A worker's hello that says which process it is, and the first frame of the answer.
fn hello_of(leader: &Leader, id: Uuid, instance: Option<u128>) -> (Raw, raw::Frame) {
    let instance = instance.map(|number| format!(r#","Instance":"{}""#, Uuid::from_u128(number)));
    let hello = format!(
        r#"{{"Heft":{{"Version":1,"Features":["leases","keepalive","ask"]}},"Patterns":[]{}}}"#,
        instance.unwrap_or_default()
    );
    let mut raw = Raw::connect(leader);
    raw.send(Kind::HelloWorker, id, Uuid::nil(), "job.assign.x", hello.as_bytes());
    let answer = raw.next().expect("an answer");
    (raw, answer)
}

#[test]
fn a_second_process_under_the_id_of_a_worker_that_lives_is_refused_with_the_reason() {
    let leader = Leader::start(&[]);
    let id = Uuid::from_u128(7);
    let (mut first, welcome) = hello_of(&leader, id, Some(1));
    assert_eq!(welcome.kind, Kind::Welcome);
    for _ in 0..2 {
        let (mut second, answer) = hello_of(&leader, id, Some(2));
        let refused = Refused::decode(&answer.payload).unwrap();
        assert_eq!((answer.kind, refused.reason), (Kind::Refused, Reason::CONFLICT));
        let text = refused.text.as_str();
        assert!(
            text.contains("connected from 127.0.0.1") && text.contains("another --id"),
            "{text}"
        );
        assert!(second.is_hung_up_on());
    }
    // The first has noticed nothing.
    let status = first.ask("status", &json!({}));
    assert_eq!(status["workers"].as_array().map(Vec::len), Some(1), "{status}");

    let (mut back, welcome) = hello_of(&leader, id, Some(1));
    assert_eq!(welcome.kind, Kind::Welcome, "the same process takes its connection over");
    assert!(first.is_hung_up_on());
    let (old, welcome) = hello_of(&leader, id, None);
    assert_eq!(
        welcome.kind,
        Kind::Welcome,
        "one that does not say which it is does as it always did"
    );
    assert!(back.is_hung_up_on());
    drop(old);
    let (_, welcome) = hello_of(&leader, id, Some(2));
    assert_eq!(welcome.kind, Kind::Welcome, "nobody is there any more");
}
