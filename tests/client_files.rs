//! The files that a job made, at the client: where `--out` and `--save-archive` put them, what is
//! never overwritten, what an archive may unpack to, and when the leader is told that its result was
//! received. The built `heft` against a leader that follows the test's script.

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

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use chunking::Kind;
use chunking::message::{AnswerStatus, Body, Features, Purpose, Received, Verdict};
use command::{Dir, Ended, end, heft, until_closed, with, zip};
use heft::model::{JobRequest, JsonModel, blob_id};
use leader::{FEATURES, FakeLeader, Peer, ok};
use serde_json::{Value, json};
use transfers::*;
use uuid::Uuid;

/// A leader that hears of results that were received.
async fn confirming(leader: &FakeLeader) -> Peer {
    let mut peer = leader.accept().await;
    peer.welcome_with(FEATURES.with(Features::TRANSFERS).with(Features::RECEIPTS)).await;
    peer
}

/// Reads until the end; the jobs whose results were received.
async fn receipts(mut peer: Peer) -> Vec<Uuid> {
    let mut received = Vec::new();
    while let Some(seen) = peer.poll().await {
        if seen.kind() == Kind::Received {
            assert_eq!(Received::decode(&seen.payload).unwrap().run, 0);
            received.push(seen.msg_id);
        }
    }
    received
}

/// Runs `heft submit` with these arguments; its job ends with this archive inside its result. Gives
/// the job, and whether its result was received.
async fn submit(archive: &[u8], args: &[&str]) -> (Ended, Uuid, bool, String) {
    let leader = FakeLeader::start().await;
    let all = [&["submit", &leader.address, "calcA"], args].concat();
    let script = async {
        let mut peer = confirming(&leader).await;
        let request = peer.next().await.request();
        let mut result = ok(&request, "printed\n");
        result.output_archive = Some(archive.to_vec());
        peer.result(&result).await;
        let received = receipts(peer).await;
        assert!(received.iter().all(|job| *job == request.job_id) && received.len() < 2);
        (request.job_id, !received.is_empty())
    };
    let (ended, (job, received)) = with(&all, script).await;
    (ended, job, received, leader.address)
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn places_that_cannot_be_written_are_refused_before_anything_is_sent() {
    let dir = Dir::new();
    let file = dir.file("file", b"x");
    symlink(dir.0.join("nowhere"), dir.0.join("dangling")).unwrap();
    fs::create_dir(dir.0.join("closed")).unwrap();
    fs::set_permissions(dir.0.join("closed"), fs::Permissions::from_mode(0o500)).unwrap();
    // The superuser may write to every directory but those of the system itself.
    let is_root = fs::write(dir.0.join("closed/probe"), "").is_ok();
    let closed = if is_root { "/proc".to_owned() } else { dir.path("closed") };
    for (args, why) in [
        (vec!["--out".to_owned(), file.clone()], "is a file: name a directory"),
        (vec!["--out".to_owned(), format!("{file}/sub")], "(--out)"),
        (vec!["--out".to_owned(), dir.path("dangling")], "a link to a directory that is not there"),
        (vec!["--out".to_owned(), closed.clone()], "(--out)"),
        (vec!["--out".to_owned(), format!("{closed}/new/deep")], "cannot be made"),
        (vec!["--save-archive".to_owned(), file.clone()], "is there already"),
        (vec!["--save-archive".to_owned(), dir.path("dangling")], "is there already"),
        (
            vec![
                "--save-archive".to_owned(),
                dir.0.to_str().unwrap().to_owned(),
                "--force".to_owned(),
            ],
            "is a directory: name a file",
        ),
        (vec!["--save-archive".to_owned(), format!("{file}/x")], "cannot write"),
        (vec!["--save-archive".to_owned(), dir.path("no/x")], "cannot write"),
        (vec!["--save-archive".to_owned(), dir.path("x"), "--all".to_owned()], "use --out"),
    ] {
        // Nobody listens there: what is sent first is not what is complained about.
        for command in
            [vec!["submit", "127.0.0.1:1", "x"], vec!["result", "get", "127.0.0.1:1", JOB]]
        {
            if command[0] == "result" && args.iter().any(|arg| arg == "--all") {
                continue;
            }
            let args: Vec<&str> =
                command.into_iter().chain(args.iter().map(String::as_str)).collect();
            let ended = end(heft(&args)).await;
            assert_eq!(ended.code, 2, "{args:?}: {}", ended.err);
            assert!(ended.err.contains(why), "{args:?}: {}", ended.err);
        }
    }
    assert_eq!(fs::read(&file).unwrap(), b"x");
    assert!(!dir.0.join("no").exists() && !dir.0.join("nowhere").exists());
}

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";

#[tokio::test]
async fn what_is_there_is_not_overwritten_and_the_result_stays_at_the_leader() {
    let dir = Dir::new();
    let out = dir.path("out dir");
    fs::create_dir(&out).unwrap();
    fs::write(Path::new(&out).join("made.txt"), "mine").unwrap();
    let archive = zip(&[("made.txt", b"new"), ("sub/other.txt", b"other")]);
    for form in ["table", "json"] {
        let (ended, job, received, leader) =
            submit(&archive, &["--out", &out, "--output", form]).await;
        assert_eq!((ended.code, received), (1, false), "{}", ended.err);
        let text = match form {
            "json" => {
                let error = &ended.json()["error"];
                format!(
                    "{}; {}",
                    error["message"].as_str().unwrap(),
                    error["hint"].as_str().unwrap()
                )
            }
            _ => ended.err,
        };
        assert!(text.contains("\"made.txt\" is there already"), "{text}");
        assert!(text.contains("--force"), "{text}");
        let retry = format!("`heft result get -l {leader} {job} --out '{out}'` tries again");
        assert!(text.contains(&retry), "{text}");
        assert_eq!(names(&out), ["made.txt"], "nothing was unpacked");
        assert_eq!(fs::read(Path::new(&out).join("made.txt")).unwrap(), b"mine");
    }
    let (ended, _, received, _) = submit(&archive, &["--out", &out, "--force"]).await;
    assert_eq!((ended.code, received), (0, true), "{}", ended.err);
    assert_eq!(names(&out), ["made.txt", "sub"]);
    assert_eq!(fs::read(Path::new(&out).join("made.txt")).unwrap(), b"new");
}

#[tokio::test]
async fn an_archive_over_max_unpacked_or_broken_is_not_unpacked_and_stays_at_the_leader() {
    let dir = Dir::new();
    let out = dir.path("out");
    let archive = zip(&[("a", &[0; 5000]), ("b", b"b")]);
    let (ended, _, received, _) =
        submit(&archive, &["--out", &out, "--max-unpacked", "5000"]).await;
    assert_eq!((ended.code, received), (1, false), "{}", ended.err);
    assert!(ended.err.contains("(--max-unpacked)"), "{}", ended.err);
    assert!(!Path::new(&out).exists());

    let (ended, _, received, _) = submit(b"no archive", &["--out", &out]).await;
    assert_eq!((ended.code, received), (1, false), "{}", ended.err);
    assert!(ended.err.contains("not a ZIP file that can be read"), "{}", ended.err);

    let (ended, _, received, _) =
        submit(&archive, &["--out", &out, "--max-unpacked", "5001B"]).await;
    assert_eq!((ended.code, received), (0, true), "{}", ended.err);
    assert_eq!(names(&out), ["a", "b"]);
    // Who does not ask for files has all that was asked for.
    let (ended, _, received, _) = submit(b"no archive", &[]).await;
    assert_eq!((ended.code, received, ended.out.as_str()), (0, true, "printed\n"), "{}", ended.err);
}

#[tokio::test]
async fn save_archive_keeps_the_archive_itself_beside_or_without_out() {
    let dir = Dir::new();
    let archive = zip(&[("a", b"content")]);
    let (file, out) = (dir.path("made.zip"), dir.path("out"));
    let (ended, _, received, _) = submit(&archive, &["--save-archive", &file]).await;
    assert_eq!((ended.code, received), (0, true), "{}", ended.err);
    assert!(ended.err.contains("saved the archive of"), "{}", ended.err);
    assert!(fs::read(&file).unwrap() == archive);
    fs::write(&file, "old").unwrap();
    let args = ["--save-archive", &file, "--out", &out, "--force", "--output", "json"];
    let (ended, _, received, _) = submit(&archive, &args).await;
    assert_eq!((ended.code, received), (0, true), "{}", ended.err);
    let shown = ended.json();
    assert_eq!((&shown["saved_archive"], &shown["unpacked"]), (&json!(file), &json!(["a"])));
    assert!(fs::read(&file).unwrap() == archive);
    assert_eq!(names(dir.0.to_str().unwrap()), ["made.zip", "out"], "nothing else is left");
}

#[tokio::test]
async fn a_large_archive_is_saved_and_unpacked_with_its_progress_and_then_received() {
    let dir = Dir::new();
    let (leader, out, file) = (FakeLeader::start().await, dir.path("out"), dir.path("made.zip"));
    let content = noise(5 * MIB);
    let archive = zip(&[("large.bin", &content)]);
    let args = [
        "submit",
        &leader.address,
        "calcA",
        "--out",
        &out,
        "--save-archive",
        &file,
        "--progress",
        "json",
    ];
    let script = async {
        let mut peer = confirming(&leader).await;
        let request = peer.next().await.request();
        let job = request.job_id;
        let mut result = ok(&request, "");
        result.archive = named(blob_id(job, 1, Purpose::Archive, 0), &archive);
        peer.result(&result).await;
        let id = open_part(&mut peer, job, 1, Purpose::Archive, &archive).await;
        granted(&mut peer, id).await;
        send_part(&mut peer, id, &archive, 0).await;
        assert_eq!(verdict(&mut peer, id).await, Verdict::Ok);
        assert_eq!(receipts(peer).await, [job]);
    };
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(fs::read(Path::new(&out).join("large.bin")).unwrap() == content);
    assert!(fs::read(&file).unwrap() == archive);
    assert_eq!(names(&out), ["large.bin"]);
    let events = ended.err.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let unpacking = events.rev().find(|event| event["event"] == "unpacking").unwrap();
    let all = json!(5 * MIB);
    assert_eq!((&unpacking["done"], &unpacking["total"]), (&all, &all));
    // Others may read what they may read of any new file of this user.
    let plain = fs::File::create(dir.0.join("plain")).unwrap().metadata().unwrap();
    assert_eq!(fs::metadata(&file).unwrap().permissions(), plain.permissions());
}

#[tokio::test]
async fn files_of_all_workers_are_not_received_if_those_of_one_cannot_be_unpacked() {
    let dir = Dir::new();
    let (leader, out) = (FakeLeader::start().await, dir.path("out"));
    fs::create_dir_all(Path::new(&out).join("w2")).unwrap();
    fs::write(Path::new(&out).join("w2/a"), "mine").unwrap();
    let args = ["submit", &leader.address, "calcA", "--all", "--out", &out];
    let child = Uuid::from_u128(7);
    let script = async {
        let mut peer = confirming(&leader).await;
        let request = peer.next().await.request();
        let line = |worker: &str| {
            let mut own = ok(&JobRequest { job_id: child, ..request.clone() }, "");
            own.output_archive = Some(zip(&[("a", worker.as_bytes())]));
            let own: Value = serde_json::from_slice(&own.to_json()).unwrap();
            json!({"Worker": worker, "Job": child, "Result": own}).to_string()
        };
        let result = ok(&request, &[line("w1"), line("w2"), line("w3")].join("\n"));
        peer.result(&result).await;
        assert_eq!(receipts(peer).await.len(), 0);
    };
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 1, "{}", ended.err);
    let retry =
        format!("`heft result get -l {} {child} --out {out}/w2` tries again", leader.address);
    assert!(ended.err.contains(&retry), "{}", ended.err);
    for (worker, content) in [("w1", "w1"), ("w2", "mine"), ("w3", "w3")] {
        assert_eq!(fs::read_to_string(format!("{out}/{worker}/a")).unwrap(), content);
    }
}

#[tokio::test]
async fn result_get_replaces_only_by_force_and_saves_no_single_archive_of_all_workers() {
    let dir = Dir::new();
    let (leader, out) = (FakeLeader::start().await, dir.path("out"));
    let get = async |more: &[&str], stdout: &str| {
        let args = [&["result", "get", &leader.address, JOB, "--out", &out], more].concat();
        let script = async {
            let mut peer = leader.welcome().await;
            let ask = peer.next().await;
            let request = JobRequest { job_id: JOB.parse().unwrap(), ..JobRequest::default() };
            let mut result = ok(&request, stdout);
            result.output_archive = Some(zip(&[("a", b"new")]));
            let shown: Value = serde_json::from_slice(&result.to_json()).unwrap();
            peer.answer(&ask, AnswerStatus::Whole, &json!({"found": true, "result": shown})).await;
            until_closed(peer).await;
        };
        with(&args, script).await.0
    };
    assert_eq!(get(&[], "").await.code, 0);
    fs::write(Path::new(&out).join("a"), "mine").unwrap();
    let ended = get(&[], "").await;
    assert_eq!(ended.code, 1, "{}", ended.err);
    assert!(ended.err.contains("\"a\" is there already"), "{}", ended.err);
    assert_eq!(fs::read(Path::new(&out).join("a")).unwrap(), b"mine");
    assert_eq!(get(&["--force"], "").await.code, 0);
    assert_eq!(fs::read(Path::new(&out).join("a")).unwrap(), b"new");
    let line = r#"{"Worker":"w","Result":{"Status":"OK"}}"#;
    let ended = get(&["--save-archive", &dir.path("x")], line).await;
    assert_eq!(ended.code, 2, "{}", ended.err);
    assert!(ended.err.contains("went to all workers"), "{}", ended.err);
}
