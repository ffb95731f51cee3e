//! `heft-tools log dump`: every kind of record, and logs in every condition.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use heft::core::Record;
use heft::core::event::{Inputs, Submission};
use heft::core::ids::{JobId, Run, WorkerId};
use heft::core::record::AttemptEnd;
use heft::store::codec::Attached;
use serde_json::{Value, json};
use support::{Data, id, submission, tool};

/// A line without what is the same everywhere.
fn of(line: &Value, members: &[&str]) -> Value {
    members
        .iter()
        .map(|name| ((*name).to_owned(), line[*name].clone()))
        .collect::<serde_json::Map<_, _>>()
        .into()
}

#[test]
fn pe03_pe05_m16_every_record_has_its_event_name_and_its_members() {
    let mut data = Data::new();
    let (job, run) = (|number: u128| JobId(id(number)), Run(1));
    data.enqueue(1, b"{\"JobId\":1}");
    data.assign(1, 1, 9);
    data.requeue(1, 1, AttemptEnd::TimedOut);
    data.assign(1, 2, 9);
    data.requeue(1, 2, AttemptEnd::WorkerLost);
    data.assign(1, 3, 8);
    data.requeue(1, 3, AttemptEnd::DiskFull);
    data.assign(1, 4, 8);
    data.dlq(1, 4);
    data.push(Record::Revive { job: job(1), run });
    let announced = Submission { inputs: Inputs::Expected, priority: -3, ..submission(2) };
    let attached =
        Attached { from_ours: true, blobs: vec![id(50)], payload: b"request".to_vec().into() };
    data.push_with(Record::Announce { at: data.now(), job: announced.clone() }, Some(attached));
    data.push(Record::Withdraw { job: job(2), run });
    data.enqueue(3, b"three");
    data.assign(3, 1, 9);
    data.ack(3, 9, 1, b"result", vec![id(51)]);
    data.push(Record::Delivered { job: job(3), run });
    data.push(Record::Forget { job: job(3), run });
    data.enqueue(4, b"four");
    data.push(Record::Cancel { at: data.now(), job: job(4), run, by: "an operator".into() });
    data.enqueue(5, b"five");
    data.push(Record::Fail { at: data.now(), job: job(5), run, why: "an input is lost".into() });
    let to_all = Submission { to_all: true, ..submission(6) };
    let children = vec![(job(61), WorkerId(id(9)))];
    data.push(Record::Enqueue { at: data.now(), job: to_all, children, kept: true });
    data.push(Record::Orphan { at: data.now(), job: job(61), run });
    data.push(Record::Cap { client: "alice".into(), cap: 12 });
    data.push(Record::Dataset { dataset: data.dataset(70, vec![id(71)]).into() });
    let names_it =
        Submission { datasets: vec![data.dataset(70, Vec::new()).cache], ..submission(7) };
    data.push(Record::Enqueue { at: data.now(), job: names_it, children: Vec::new(), kept: true });
    let cache = data.dataset(70, Vec::new()).cache;
    data.push(Record::DatasetGone { cache, version: id(70) });

    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines = ran.lines();
    let names: Vec<&str> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(
        names,
        [
            "enqueue",
            "assign",
            "timeout_requeue",
            "assign",
            "worker_down_requeue",
            "assign",
            "requeue",
            "assign",
            "dlq",
            "revive",
            "announce",
            "withdraw",
            "enqueue",
            "assign",
            "ack",
            "delivered",
            "forget",
            "enqueue",
            "cancel",
            "enqueue",
            "fail",
            "enqueue",
            "orphan",
            "cap",
            "dataset",
            "enqueue",
            "dataset_gone",
        ]
    );
    let indexes: Vec<u64> = lines.iter().map(|line| line["index"].as_u64().unwrap()).collect();
    assert_eq!(indexes, (1..=27).collect::<Vec<u64>>());
    assert_eq!(
        lines[0],
        json!({
            "index": 1, "type": "enqueue", "at": "2025-10-19T12:00:00.0000000Z", "kept": true,
            "job": {
                "jobId": id(1), "clientId": "alice", "execName": "calcA", "routingKey": "job.assign.calcA", "priority": 0,
                "size": 100, "payloadBytes": 11,
            },
        })
    );
    // No moment of its own: the latest one before it.
    assert_eq!(
        lines[1],
        json!({
            "index": 2, "type": "assign", "at": "2025-10-19T12:00:00.0000000Z", "atLeast": true, "jobId": id(1),
            "workerId": id(9), "attempt": 1, "run": 1,
        })
    );
    assert_eq!(
        of(&lines[2], &["jobId", "workerId", "attempt", "why", "counts", "notBefore"]),
        json!({
            "jobId": id(1), "workerId": id(9), "attempt": 1, "why": "timed_out", "counts": true,
            "notBefore": "2025-10-19T12:00:02.0000000Z",
        })
    );
    assert_eq!(
        of(&lines[4], &["workerId", "why"]),
        json!({"workerId": id(9), "why": "worker_lost"})
    );
    assert_eq!(of(&lines[6], &["workerId", "why"]), json!({"workerId": id(8), "why": "disk_full"}));
    assert_eq!(
        of(&lines[8], &["at", "jobId", "workerId", "attempt", "why"]),
        json!({
            "at": "2025-10-19T12:00:08.0000000Z", "jobId": id(1), "workerId": id(8), "attempt": 4, "why": "timed_out",
        })
    );
    assert_eq!(
        of(&lines[9], &["jobId", "run", "stale"]),
        json!({"jobId": id(1), "run": 1, "stale": null})
    );
    let job = &lines[10]["job"];
    assert_eq!(
        of(job, &["priority", "inputsByTransfer", "blobs", "payloadBytes", "rawPayload"]),
        json!({"priority": -3, "inputsByTransfer": true, "blobs": [id(50)], "payloadBytes": 7, "rawPayload": null})
    );
    assert_eq!(
        of(&lines[14], &["jobId", "clientId", "workerId", "ok", "result"]),
        json!({
            "jobId": id(3), "clientId": "alice", "workerId": id(9), "ok": true,
            "result": {"id": 1, "payloadBytes": 6, "blobs": [id(51)]},
        })
    );
    assert_eq!(lines[18]["by"], "an operator");
    assert_eq!(lines[20]["why"], "an input is lost");
    assert_eq!(lines[21]["children"], json!([{"jobId": id(61), "workerId": id(9)}]));
    assert_eq!(lines[21]["job"]["toAll"], true);
    assert_eq!(of(&lines[23], &["clientId", "cap"]), json!({"clientId": "alice", "cap": 12}));
    assert_eq!(
        lines[24],
        json!({
            "index": 25, "type": "dataset", "at": "2025-10-19T12:00:24.0000000Z", "cacheId": "set", "generation": id(70),
            "digest": "07".repeat(32), "bytes": 5000, "files": 2, "target": "none", "packs": [id(71)],
        })
    );
    assert_eq!(lines[25]["job"]["datasets"], json!(["set"]));
    assert_eq!(
        of(&lines[26], &["cacheId", "generation"]),
        json!({"cacheId": "set", "generation": id(70)})
    );
    assert!(lines.iter().all(|line| line["stale"].is_null()));
}

#[test]
fn pe05_payloads_come_in_base64_if_they_are_asked_for() {
    let mut data = Data::new();
    data.enqueue(1, b"{\"JobId\":\"x\"}");
    data.assign(1, 1, 9);
    data.ack(1, 9, 1, b"\x00\xff", Vec::new());
    let ran = tool(&["log", "dump", data.text(), "--payloads"]);
    let lines = ran.lines();
    assert_eq!(lines[0]["job"]["rawPayload"], "eyJKb2JJZCI6IngifQ==");
    assert_eq!(lines[2]["result"]["rawPayload"], "AP8=");
}

#[test]
fn pe10_a_record_that_came_too_late_says_so() {
    let mut data = Data::new();
    data.enqueue(1, b"one");
    data.assign(1, 1, 9);
    data.ack(1, 9, 1, b"first", Vec::new());
    data.ack(1, 8, 2, b"second", Vec::new());
    data.requeue(1, 1, AttemptEnd::TimedOut);
    data.enqueue(1, b"one");
    let stale: Vec<bool> = tool(&["log", "dump", data.text()])
        .lines()
        .iter()
        .map(|line| line["stale"] == true)
        .collect();
    assert_eq!(stale, [false, false, false, true, true, true]);
}

#[test]
fn c29_a_part_of_the_log_knows_what_was_before_it() {
    let mut data = Data::new();
    data.enqueue(1, b"one");
    data.assign(1, 1, 9);
    data.requeue(1, 1, AttemptEnd::TimedOut);
    data.assign(1, 2, 8);
    data.ack(1, 8, 1, b"r", Vec::new());
    let ran = tool(&["log", "dump", data.text(), "--from", "3", "--to", "5"]);
    let lines = ran.lines();
    assert_eq!(lines.len(), 3);
    assert_eq!((&lines[0]["workerId"], &lines[2]["clientId"]), (&json!(id(9)), &json!("alice")));
    let behind = tool(&["log", "dump", data.text(), "--from", "6"]);
    assert_eq!((behind.code, behind.out.as_str()), (0, ""));
    assert!(behind.err.contains("the log ends with record 5"), "{}", behind.err);
    let wrong = tool(&["log", "dump", data.text(), "--from", "3", "--to", "2"]);
    assert_eq!(wrong.code, 2);
    assert_eq!(tool(&["log", "dump"]).code, 2);
    assert_eq!(tool(&["log", "dump", "/nowhere/at/all"]).code, 3);
}

#[test]
fn pe09_segments_are_read_through_and_what_a_snapshot_stands_for_is_named() {
    let mut data = Data::with_segments(64 * 1024);
    for number in 1..=200 {
        data.enqueue(number, &[7; 2000]);
        if number % 4 != 0 {
            data.assign(number, 1, 9);
            data.ack(number, 9, u64::try_from(number).unwrap(), b"r", Vec::new());
        }
        data.log.rotate().unwrap();
    }
    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    assert_eq!(ran.lines().len() as u64, data.index);
    // Two snapshots, and what they make unneeded goes.
    let mut first_left = 0;
    for round in 0..2u32 {
        for number in 0..200 {
            data.enqueue(1000 + u128::from(round) * 1000 + number, &[7; 2000]);
            data.log.rotate().unwrap();
        }
        first_left = data.snapshot();
    }
    assert!(first_left > 0);
    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.err.contains("are no longer in the log: a snapshot covers them"), "{}", ran.err);
    let lines = ran.lines();
    assert_eq!(lines.last().unwrap()["index"], data.index);
    assert!(lines.windows(2).all(|two| two[0]["index"].as_u64() < two[1]["index"].as_u64()));
}

#[test]
fn pe10_a_torn_tail_is_told_and_is_no_error() {
    let mut data = Data::new();
    data.enqueue(1, b"one");
    data.enqueue(2, b"two");
    let path = data.file("consensus/log-0000000000000001");
    let mut bytes = std::fs::read(&path).unwrap();
    bytes.truncate(bytes.len() - 3);
    std::fs::write(&path, &bytes).unwrap();
    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!((ran.code, ran.lines().len()), (0, 1));
    assert!(ran.err.contains("are not whole records"), "{}", ran.err);
    assert!(ran.err.contains("log-0000000000000001"), "{}", ran.err);
}

#[test]
fn tf05_damage_ends_the_dump_behind_what_could_be_read() {
    let mut data = Data::new();
    data.enqueue(1, b"one");
    let middle = usize::try_from(data.log.segment_len()).unwrap() + 40;
    data.enqueue(2, b"two");
    data.enqueue(3, b"three");
    support::flip(&data.file("consensus/log-0000000000000001"), middle);
    let ran = tool(&["log", "dump", data.text()]);
    assert_eq!((ran.code, ran.lines().len()), (1, 1));
    assert!(ran.err.contains("log-0000000000000001 is damaged at offset"), "{}", ran.err);
}
