//! The built `heft` with files that do not fit a frame, against a leader that follows the test's
//! script: what it sends, what it fetches, what it says meanwhile, and that it leaves nothing
//! behind.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "support/command.rs"]
mod command;
#[path = "support/leader.rs"]
mod leader;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/transfers.rs"]
mod transfers;

use chunking::message::{Abort, AnswerStatus, Grant, Purpose, Reason, Standing, Verdict};
use chunking::{Codec, DigestKind, Kind};
use command::{Dir, Ended, end, heft, until_closed, with, zip};
use heft::model::blob_id;
use heft::model::{JobRequest, JobStatus, JsonModel};
use leader::{FakeLeader, Peer, ok};
use serde_json::{Value, json};
use transfers::*;
use uuid::Uuid;

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";

/// Events on standard error, one JSON object a line.
fn events(ended: &Ended) -> Vec<Value> {
    ended.err.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[tokio::test]
async fn submit_streams_a_large_file_and_says_how_far_it_is() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let content = noise(5 * MIB);
    let file = dir.file("model.bin", &content);
    let named_file = format!("{file}=in.bin");
    let args = [
        "submit",
        &leader.address,
        "calcA",
        "--file",
        &named_file,
        "--require-worker",
        "--compress",
        "none",
        "--progress",
        "json",
    ];
    let script = async {
        let mut peer = transferring(&leader).await;
        let request = peer.next().await.request();
        assert!(request.require_worker);
        let (id, open) = opened(&mut peer).await;
        assert_eq!((open.name.as_str(), open.codec), ("in.bin", Codec::None));
        let full =
            Grant { reason: Reason::SPOOL_FULL, text: "the spool is full".into(), ..grant(0, &[]) };
        peer.message(id, &full).await;
        peer.message(id, &grant(8, &[])).await;
        chunks(&mut peer, &content, 5).await;
        done(&mut peer, &content).await;
        peer.message(id, &Verdict::Ok).await;
        peer.submitted(request.job_id, Standing::Queued, 0).await;
        peer.result(&ok(&request, "42\n")).await;
        until_closed(peer).await;
        request.job_id
    };
    let (ended, job) = with(&args, script).await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "42\n"), "{}", ended.err);
    let events = events(&ended);
    assert!(events.iter().all(|event| event["job"] == json!(job)), "{}", ended.err);
    let last = events.iter().rfind(|event| event["event"] == "uploading").unwrap();
    assert_eq!((&last["done"], &last["total"]), (&json!(5 * MIB), &json!(5 * MIB)));
    for name in ["sent", "uploading", "submitted"] {
        assert!(events.iter().any(|event| event["event"] == name), "{name}: {}", ended.err);
    }
}

#[tokio::test]
async fn submit_opens_its_transfers_with_the_digest_that_was_asked_for() {
    for (word, kind) in [
        ("chunk-list", DigestKind::ChunkList),
        ("sha256", DigestKind::Sha256),
        ("blake3", DigestKind::Blake3),
    ] {
        let (leader, dir) = (FakeLeader::start().await, Dir::new());
        let file = dir.file("model.bin", &noise(4 * MIB));
        let args = ["submit", &leader.address, "calcA", "--file", &file, "--digest", word];
        let script = async {
            let mut peer = transferring(&leader).await;
            let request = peer.next().await.request();
            assert_eq!(opened(&mut peer).await.1.digest, kind);
            peer.result(&ok(&request, "")).await;
            until_closed(peer).await;
        };
        let (ended, ()) = with(&args, script).await;
        assert_eq!(ended.code, 0, "{}", ended.err);
    }
}

#[tokio::test]
async fn submit_of_a_file_that_changes_ends_with_both_sizes_and_code_two() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let content = noise(6 * MIB);
    let file = dir.file("model.bin", &content);
    let args = ["submit", &leader.address, "calcA", "--file", &file, "--output", "json"];
    let script = async {
        let mut peer = transferring(&leader).await;
        peer.next().await.request();
        let (id, _) = opened(&mut peer).await;
        peer.message(id, &grant(1, &[])).await;
        chunk(&mut peer, &content).await;
        std::fs::File::options().write(true).open(&file).unwrap().set_len(5).unwrap();
        peer.message(id, &grant(8, &[])).await;
        until_closed(peer).await;
    };
    let (ended, ()) = with(&args, script).await;
    let shown = ended.json();
    assert_eq!(
        (ended.code, &shown["reason"], &shown["file"]),
        (2, &json!("source-gone"), &json!("model.bin"))
    );
    let text = shown["error"]["message"].as_str().unwrap();
    assert!(text.contains("shrank from 6291456 bytes to 5"), "{text}");
}

/// Plays the end of a job whose archive and standard output are too large for the result.
async fn large_result(
    peer: &mut Peer,
    request: &JobRequest,
    archive: &[u8],
    stdout: &[u8],
    wanted: bool,
) {
    let job = request.job_id;
    let mut result = ok(request, "the first bytes");
    let ids = [Purpose::Archive, Purpose::Stdout].map(|purpose| blob_id(job, 1, purpose, 0));
    (result.archive, result.stdout_blob) = (named(ids[0], archive), named(ids[1], stdout));
    peer.result(&result).await;
    for (purpose, content) in [(Purpose::Archive, archive), (Purpose::Stdout, stdout)] {
        let id = open_part(peer, job, 1, purpose, content).await;
        if purpose == Purpose::Archive && !wanted {
            assert!(matches!(
                verdict(peer, id).await,
                Verdict::Failed { reason: Reason::CANCELLED, .. }
            ));
            continue;
        }
        granted(peer, id).await;
        send_part(peer, id, content, 0).await;
        assert_eq!(verdict(peer, id).await, Verdict::Ok);
    }
}

#[tokio::test]
async fn submit_unpacks_a_large_archive_and_prints_a_large_output_whole() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let large = noise(5 * MIB);
    let archive = zip(&[("made/large.bin", &large), ("small.txt", b"s"), ("../evil", b"e")]);
    let stdout = "line of output\n".repeat(300_000);
    let out = dir.path("out");
    let args = ["submit", &leader.address, "calcA", "--out", &out];
    let script = async {
        let mut peer = transferring(&leader).await;
        let request = peer.next().await.request();
        large_result(&mut peer, &request, &archive, stdout.as_bytes(), true).await;
        until_closed(peer).await;
    };
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 1, "one entry was skipped: {}", ended.err);
    assert!(ended.out == stdout, "{} bytes", ended.out.len());
    assert!(ended.err.contains("2 files unpacked into"), "{}", ended.err);
    assert!(std::fs::read(dir.0.join("out/made/large.bin")).unwrap() == large);
    let mut left: Vec<_> = std::fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["made", "small.txt"], "the temporary files are gone");
}

#[tokio::test]
async fn without_out_the_archive_is_not_fetched_and_the_next_step_is_said() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let archive = noise(5 * MIB);
    let stdout = "x".repeat(5 * MIB);
    let mut command = heft(&["submit", &leader.address, "calcA"]);
    command.env("TMPDIR", &dir.0);
    let script = async {
        let mut peer = transferring(&leader).await;
        let request = peer.next().await.request();
        large_result(&mut peer, &request, &archive, stdout.as_bytes(), false).await;
        until_closed(peer).await;
        request.job_id
    };
    let (ended, job) = tokio::join!(end(command), script);
    assert_eq!((ended.code, ended.out.len()), (0, stdout.len()), "{}", ended.err);
    let said = format!(
        "heft: the job left {} bytes of files: fetch them with `heft result get -l {} {job} --out DIR`\n",
        archive.len(),
        leader.address
    );
    assert_eq!(ended.err, said);
    assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 0, "no temporary file is left");
}

#[tokio::test]
async fn result_get_fetches_what_the_leader_keeps() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let archive = zip(&[("large.bin", &noise(5 * MIB))]);
    for form in ["table", "json"] {
        let out = dir.path(form);
        let args = ["result", "get", &leader.address, JOB, "--out", &out, "--output", form];
        let script = async {
            let mut peer = transferring(&leader).await;
            let job: Uuid = JOB.parse().unwrap();
            let ask = next(&mut peer, Kind::Ask).await;
            assert_eq!((ask.subject.as_str(), ask.question()), ("result", json!({"job_id": job})));
            let request = JobRequest { job_id: job, ..JobRequest::default() };
            let mut result = ok(&request, "kept\n");
            result.archive = named(blob_id(job, 1, Purpose::Archive, 0), &archive);
            let shown: Value = serde_json::from_slice(&result.to_json()).unwrap();
            peer.answer(&ask, AnswerStatus::Whole, &json!({"found": true, "result": shown})).await;
            let id = open_part(&mut peer, job, 1, Purpose::Archive, &archive).await;
            granted(&mut peer, id).await;
            send_part(&mut peer, id, &archive, 0).await;
            assert_eq!(verdict(&mut peer, id).await, Verdict::Ok);
            until_closed(peer).await;
        };
        let (ended, ()) = with(&args, script).await;
        assert_eq!(ended.code, 0, "{}", ended.err);
        match form {
            "json" => assert_eq!(ended.json()["unpacked"], json!(["large.bin"])),
            _ => assert_eq!(ended.out, "kept\n"),
        }
        assert_eq!(
            std::fs::metadata(dir.0.join(form).join("large.bin")).unwrap().len(),
            5 * MIB as u64
        );
        assert_eq!(std::fs::read_dir(&out).unwrap().count(), 1);
    }
}

#[tokio::test]
async fn result_get_says_what_is_missing_and_exits_as_the_job_did() {
    let leader = FakeLeader::start().await;
    let dir = Dir::new();
    let out = dir.path("out");
    let args = ["result", "get", &leader.address, JOB, "--out", &out];
    let answering = async |status: AnswerStatus, answer: Value| {
        let script = async {
            let mut peer = transferring(&leader).await;
            let ask = next(&mut peer, Kind::Ask).await;
            peer.answer(&ask, status, &answer).await;
            until_closed(peer).await;
        };
        with(&args, script).await.0
    };
    let ended = answering(AnswerStatus::Whole, json!({"found": false})).await;
    assert_eq!(ended.code, 1);
    assert!(
        ended.err.contains("has no result of job") && ended.err.contains("heft status"),
        "{}",
        ended.err
    );
    let ended = answering(AnswerStatus::Error, json!({"error": "job x has not ended"})).await;
    assert_eq!(ended.code, 1);
    assert!(ended.err.contains("has not ended"), "{}", ended.err);

    let script = async {
        let mut peer = transferring(&leader).await;
        let job: Uuid = JOB.parse().unwrap();
        let ask = next(&mut peer, Kind::Ask).await;
        let request = JobRequest { job_id: job, ..JobRequest::default() };
        let content = noise(5 * MIB);
        let mut result = ok(&request, "");
        result.status = JobStatus::Ok;
        result.archive = named(blob_id(job, 1, Purpose::Archive, 0), &content);
        let shown: Value = serde_json::from_slice(&result.to_json()).unwrap();
        peer.answer(&ask, AnswerStatus::Whole, &json!({"found": true, "result": shown})).await;
        let id = open_part(&mut peer, job, 1, Purpose::Archive, &content).await;
        granted(&mut peer, id).await;
        peer.message(id, &Abort { reason: Reason::UNKNOWN, text: "no longer kept".into() }).await;
        until_closed(peer).await;
    };
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 1);
    assert!(
        ended.err.contains("was not received") && ended.err.contains("no longer kept"),
        "{}",
        ended.err
    );
    let ended = end(heft(&["result", "get", "127.0.0.1:1", JOB, "--connect-wait", "100ms"])).await;
    assert_eq!(ended.code, 3, "{}", ended.err);
}
