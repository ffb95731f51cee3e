//! `heft-tools log replay`: the state after a record.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use heft::core::Record;
use heft::core::ids::{JobId, Run};
use heft::core::record::AttemptEnd;
use serde_json::json;
use support::{Data, id, tool};

fn some() -> Data {
    let mut data = Data::new();
    data.push(Record::Cap { client: "alice".into(), cap: 3 });
    data.enqueue(1, b"one");
    data.enqueue(2, b"two");
    data.assign(1, 1, 9);
    data.assign(2, 1, 9);
    data.requeue(2, 1, AttemptEnd::TimedOut);
    data.ack(1, 9, 1, b"result", Vec::new());
    data.assign(2, 2, 9);
    data.dlq(2, 2);
    data.push(Record::Dataset { dataset: data.dataset(70, vec![id(71)]).into() });
    data.enqueue(3, b"three");
    data
}

#[test]
fn pe08_the_state_at_the_end_is_counted_by_phase_queue_and_client() {
    let data = some();
    let ran = tool(&["log", "replay", data.text(), "--json", "--jobs"]);
    assert_eq!((ran.code, ran.err.as_str()), (0, ""));
    let lines = ran.lines();
    let counts =
        json!({"announced": 0, "queued": 1, "leased": 0, "gathering": 0, "done": 1, "dead": 1});
    assert_eq!(
        lines[0],
        json!({
            "type": "state", "index": 11, "snapshot": null, "at": "2025-10-19T12:00:10.0000000Z", "jobs": counts,
            "queues": [{"routingKey": "job.assign.calcA", "execName": "calcA", "jobs": counts}],
            "clients": [{"clientId": "alice", "cap": 3, "running": 0, "jobs": counts}],
            "datasets": [{
                "cacheId": "set", "generation": id(70), "bytes": 5000, "files": 2, "target": "none", "packs": [id(71)],
                "at": "2025-10-19T12:00:09.0000000Z",
            }],
            "dlq": [id(2)], "inputs": {"count": 2, "bytes": 8, "blobs": 0}, "results": {"count": 1, "bytes": 6, "blobs": 0},
        })
    );
    let phases: Vec<&str> = lines[1..].iter().map(|line| line["phase"].as_str().unwrap()).collect();
    assert_eq!(phases, ["ok", "dead", "queued"]);
    assert_eq!(
        (&lines[2]["why"], &lines[2]["attempt"], &lines[2]["spent"]),
        (&json!("timed_out"), &json!(2), &json!(2))
    );
}

#[test]
fn pe08_the_state_after_a_record_is_the_one_of_that_moment() {
    let data = some();
    let counts = |at: &str| {
        tool(&["log", "replay", data.text(), "--json", "--at", at]).lines()[0]["jobs"].clone()
    };
    assert_eq!(
        counts("4"),
        json!({"announced": 0, "queued": 1, "leased": 1, "gathering": 0, "done": 0, "dead": 0})
    );
    assert_eq!(
        counts("8"),
        json!({"announced": 0, "queued": 0, "leased": 1, "gathering": 0, "done": 1, "dead": 0})
    );
    let ran = tool(&["log", "replay", data.text(), "--at", "12"]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("its last record is 11"), "{}", ran.err);
    assert_eq!(tool(&["log", "replay", data.text(), "--at", "0"]).code, 2);
}

#[test]
fn pe11_people_get_tables() {
    let data = some();
    let ran = tool(&["log", "replay", data.text(), "--jobs"]);
    assert_eq!(ran.code, 0);
    for text in [
        "after record 11 (11 records), 2025-10-19T12:00:10",
        "job.assign.calcA (calcA)",
        "alice",
        "dead-letter queue, the longest dead first",
        "the worker did not answer in time",
        "requests that are kept: 2, 8 B in the log, 0 blobs",
        "00000000-0000-0000-0000-000000000003  queued",
    ] {
        assert!(ran.out.contains(text), "{text} is not in\n{}", ran.out);
    }
}

#[test]
fn pe09_a_state_before_the_oldest_snapshot_cannot_be_had_and_the_text_says_what_can() {
    let mut data = Data::with_segments(4096);
    for round in 0..2u128 {
        for number in 0..10 {
            let job = round * 100 + number + 1;
            data.enqueue(job, &[7; 1000]);
            data.assign(job, 1, 9);
            data.ack(job, 9, u64::try_from(job).unwrap(), b"r", Vec::new());
            data.push(Record::Forget { job: JobId(id(job)), run: Run(1) });
            data.log.rotate().unwrap();
        }
        data.snapshot();
    }
    let ran = tool(&["log", "replay", data.text(), "--at", "2"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("is before what"), "{}", ran.err);
    let ran = tool(&["log", "replay", data.text(), "--json"]);
    assert_eq!(ran.lines()[0]["index"], data.index);
}

#[test]
fn tf05_damage_is_told_with_file_and_offset() {
    let mut data = some();
    data.log.note_synced().unwrap();
    support::flip(&data.file("consensus/log-0000000000000001"), 100);
    let ran = tool(&["log", "replay", data.text()]);
    assert_eq!((ran.code, ran.out.as_str()), (1, ""));
    assert!(ran.err.contains("log-0000000000000001 is damaged at offset 64"), "{}", ran.err);
}
