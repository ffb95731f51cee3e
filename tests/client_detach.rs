//! The built `heft` against a leader that follows the test's script: a job that is left with the
//! leader, which job `last` is, and waiting for jobs over a leader that goes away.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/command.rs"]
mod command;
#[path = "support/leader.rs"]
mod leader;

use chunking::Kind;
use chunking::message::{AnswerStatus, Body as _, Features, Open, OpenFlags, Standing};
use command::{Dir, end, heft, until_closed, with};
use heft::model::JobStatus;
use leader::{FEATURES, FakeLeader, PATIENCE, ok};
use serde_json::json;
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;
use uuid::Uuid;

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";
const OTHER: &str = "11223344-5566-7788-99aa-bbccddeeff00";

#[tokio::test]
async fn a_detached_job_is_left_once_it_is_taken_and_its_result_is_not_confirmed() {
    for output in ["table", "json"] {
        let leader = FakeLeader::start().await;
        let script = async {
            let mut peer = leader.accept().await;
            peer.welcome_with(FEATURES.with(Features::RECEIPTS)).await;
            let request = peer.next().await.request();
            assert_eq!(request.tag.as_deref(), Some("night"));
            peer.submitted(request.job_id, Standing::Running, 0).await;
            // It is that quick: the client has not left yet.
            peer.result(&ok(&request, "forty-two\n")).await;
            while let Some(frame) = peer.poll().await {
                assert_ne!(frame.kind(), Kind::Received, "nobody has the result");
                assert_ne!(frame.kind(), Kind::Cancel);
            }
            request.job_id
        };
        let args =
            ["submit", &leader.address, "calcA", "--tag", "night", "--detach", "--output", output];
        let (ended, job) = with(&args, script).await;
        assert_eq!((ended.code, ended.err.as_str(), ended.id), (0, "", None), "{}", ended.out);
        match output {
            "json" => assert_eq!(ended.json(), json!({"job_id": job, "status": "SUBMITTED"})),
            _ => assert_eq!(ended.out, format!("{job}\n")),
        }
    }
}

#[tokio::test]
async fn a_detached_job_does_not_promise_that_its_files_can_be_sent_again() {
    let dir = Dir::new();
    let file = dir.file("in.bin", &vec![7; 5 << 20]);
    for (more, flags) in [(None, OpenFlags::KEEPS_SOURCE), (Some("--detach"), OpenFlags::default())]
    {
        let leader = FakeLeader::start().await;
        let script = async {
            let mut peer = leader.accept().await;
            peer.welcome_with(FEATURES.with(Features::TRANSFERS)).await;
            let request = peer.next().await.request();
            let open = peer.next().await;
            assert_eq!(open.kind(), Kind::Open);
            assert_eq!(Open::decode(&open.payload).unwrap().flags, flags, "{more:?}");
            // It is not taken before its file is there: nothing was said yet.
            let mut result = ok(&request, "");
            result.status = JobStatus::Failed;
            result.stderr = "heft: an input is unavailable".to_owned();
            peer.result(&result).await;
            until_closed(peer).await;
        };
        let mut args = vec!["submit", &leader.address, "calcA", "--file", &file];
        args.extend(more);
        let (ended, ()) = with(&args, script).await;
        assert_eq!((ended.code, ended.out.as_str()), (1, ""), "{more:?}");
        assert!(ended.err.contains("an input is unavailable"), "{}", ended.err);
    }
}

#[tokio::test]
async fn an_interrupt_before_a_detached_job_is_taken_cancels_it() {
    let leader = FakeLeader::start().await;
    let mut command = heft(&["submit", &leader.address, "calcA", "--detach"]);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().unwrap().to_string();
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        assert_eq!(peer.next().await.kind(), Kind::Cancel);
        // It was taken in the same moment: it is cancelled all the same.
        peer.submitted(request.job_id, Standing::Queued, 0).await;
        let mut result = ok(&request, "");
        result.status = JobStatus::Cancelled;
        peer.result(&result).await;
        until_closed(peer).await;
    };
    let (output, ()) = tokio::join!(timeout(PATIENCE, child.wait_with_output()), script);
    let output = output.unwrap().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(130), &b""[..]));
}

#[tokio::test]
async fn signals_do_not_cancel_a_job_that_was_to_be_left() {
    for (signal, code) in [("-TERM", 143), ("-HUP", 129)] {
        let leader = FakeLeader::start().await;
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP", env!("CARGO_BIN_EXE_heft"), "submit", "calcA"]);
        command.args(["--leader", &leader.address, "--detach"]).kill_on_drop(true);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let pid = child.id().unwrap().to_string();
        let script = async {
            let mut peer = leader.welcome().await;
            peer.next().await.request();
            assert!(Command::new("kill").args([signal, &pid]).status().await.unwrap().success());
            while let Some(frame) = peer.poll().await {
                assert_ne!(frame.kind(), Kind::Cancel);
            }
        };
        let (output, ()) = tokio::join!(timeout(PATIENCE, child.wait_with_output()), script);
        let output = output.unwrap().unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains("unknown whether the leader has the job"), "{said}");
    }
}

#[tokio::test]
async fn a_detached_job_takes_no_place_for_files_that_nobody_would_wait_for() {
    for more in [&["--out", "d"][..], &["--force"], &["--save-archive", "f"]] {
        let ended = end(heft(&[&["submit", "calcA", "--detach"], more].concat())).await;
        assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{more:?}");
        assert!(ended.err.contains("cannot be used with") && ended.err.contains(more[0]));
    }
}

#[tokio::test]
async fn a_classic_leader_is_sent_no_detached_job() {
    for raw in [false, true] {
        let (leader, dir) = (FakeLeader::start().await, Dir::new());
        let payload = dir.file("payload", b"bytes");
        let script = async {
            let mut peer = leader.accept().await;
            while let Some(frame) = peer.poll().await {
                assert_ne!(frame.kind(), Kind::SubmitJob);
            }
        };
        let mut args =
            vec!["submit", &leader.address, "calcA", "--detach", "--connect-wait", "300ms"];
        if raw {
            args.extend(["--raw", "--file", &payload]);
        }
        let (ended, ()) = with(&args, script).await;
        assert_eq!((ended.code, ended.out.as_str()), (3, ""), "{}", ended.err);
        assert!(ended.err.contains("300ms") || ended.err.contains("--detach"), "{}", ended.err);
    }
}

#[tokio::test]
async fn the_last_job_is_the_one_that_the_leader_took_last_and_each_leader_has_its_own() {
    let (one, other, dir) = (FakeLeader::start().await, FakeLeader::start().await, Dir::new());
    let state = dir.path("state");
    let run = async |args: &[&str], leader: &FakeLeader| {
        let mut command = heft(args);
        command.env("XDG_STATE_HOME", &state);
        let script = async {
            let mut peer = leader.welcome().await;
            let frame = peer.next().await;
            if frame.kind() == Kind::SubmitJob {
                peer.submitted(frame.msg_id, Standing::Queued, 0).await;
                until_closed(peer).await;
                return json!({"job_id": frame.msg_id});
            }
            peer.answer(&frame, AnswerStatus::Whole, &json!({"was": "queued"})).await;
            until_closed(peer).await;
            let mut asked = frame.question();
            asked.as_object_mut().unwrap().remove("by");
            asked
        };
        let (ended, asked) = tokio::join!(end(command), script);
        assert_eq!(ended.code, 0, "{}{}", ended.out, ended.err);
        asked
    };
    let unknown = end({
        let mut command = heft(&["cancel", &one.address, "last"]);
        command.env("XDG_STATE_HOME", &state);
        command
    });
    let unknown = unknown.await;
    assert_eq!(unknown.code, 2);
    assert!(unknown.err.contains("no last job is known for"), "{}", unknown.err);
    let submit =
        |leader: &FakeLeader| ["submit", &leader.address, "calcA", "--detach"].map(str::to_owned);
    let mut jobs = Vec::new();
    for leader in [&one, &other, &one] {
        let args = submit(leader);
        jobs.push(run(&args.each_ref().map(String::as_str), leader).await);
    }
    assert_eq!(run(&["cancel", &one.address, "last"], &one).await, jobs[2]);
    assert_eq!(run(&["cancel", &other.address, "last"], &other).await, jobs[1]);
    assert_ne!(jobs[0], jobs[2]);
}

#[tokio::test]
async fn waiting_goes_on_when_the_leader_comes_back_and_its_exit_code_says_how_jobs_ended() {
    for (any, state, code) in
        [(false, "done", 0), (true, "done", 0), (false, "failed", 1), (false, "unknown", 5)]
    {
        let leader = FakeLeader::start().await;
        let script = async {
            let mut peer = leader.welcome().await;
            let first = peer.next().await;
            assert_eq!(first.subject, "job.wait");
            assert_eq!(first.question(), json!({"job_ids": [JOB, OTHER], "any": any}));
            drop(peer);
            let mut peer = leader.welcome().await;
            let again = peer.next().await;
            assert_eq!(again.question(), first.question());
            let rows = match any {
                true => json!([{"job_id": OTHER, "state": state}]),
                false => {
                    json!([{"job_id": OTHER, "state": "done"}, {"job_id": JOB, "state": state}])
                }
            };
            peer.answer(&again, AnswerStatus::Whole, &json!({ "jobs": rows })).await;
            until_closed(peer).await;
        };
        let mut args = vec!["job", "wait", "-l", &leader.address, JOB, OTHER];
        args.extend(any.then_some("--any"));
        let (ended, ()) = with(&args, script).await;
        assert_eq!(ended.code, code, "{}{}", ended.out, ended.err);
        let expected = match any {
            true => format!("{OTHER} {state}\n"),
            false => format!("{JOB} {state}\n{OTHER} done\n"),
        };
        assert_eq!(ended.out, expected, "in the order in which they were named");
        assert!(ended.err.contains("waiting for it to come back"), "{}", ended.err);
    }
}

#[tokio::test]
async fn waiting_ends_at_its_timeout_and_an_older_leader_is_said_to_be_one() {
    let leader = FakeLeader::start().await;
    let script = async { until_closed(leader.welcome().await).await };
    let args = ["job", "wait", "-l", &leader.address, JOB, "--timeout", "300ms"];
    let (ended, ()) = with(&args, script).await;
    assert_eq!((ended.code, ended.out.as_str()), (4, ""));
    assert!(ended.err.contains("within 300ms (--timeout)"), "{}", ended.err);

    for words in [&["wait", JOB][..], &["show", JOB], &["ls"]] {
        let leader = FakeLeader::start().await;
        let script = async {
            let mut peer = leader.welcome().await;
            let asked = peer.next().await;
            let text = format!(
                "\"{}\" is not a question this leader knows: ask one of status",
                asked.subject
            );
            peer.answer(&asked, AnswerStatus::Error, &json!({ "error": text })).await;
            until_closed(peer).await;
        };
        let args = [&["job", words[0], "-l", &leader.address], &words[1..]].concat();
        let (ended, ()) = with(&args, script).await;
        assert_eq!((ended.code, ended.out.as_str()), (3, ""), "{}", ended.err);
        assert!(ended.err.contains("is an older heft"), "{}", ended.err);
    }
}

#[tokio::test]
async fn a_list_goes_on_page_by_page_and_ends_where_the_leader_says_so() {
    let leader = FakeLeader::start().await;
    let row = |seq: u128| json!({"job_id": Uuid::from_u128(seq), "seq": seq, "state": "done"});
    let script = async {
        let mut peer = leader.welcome().await;
        let filter = json!({"states": ["done", "failed"], "client": "ann", "tag": "night", "since_ms": 3_600_000});
        for (after, rows, next) in [
            (None, vec![row(9), row(7)], Some(6)),
            (Some(6), vec![], Some(2)),
            (Some(2), vec![row(1)], None),
        ] {
            let asked = peer.next().await;
            let mut expected = filter.clone();
            // One more than are wanted: that says whether there are more.
            let limit = if after.is_none() { 6 } else { 4 };
            expected["limit"] = json!(limit);
            if let Some(after) = after {
                expected["after"] = json!(after);
            }
            assert_eq!(asked.question(), expected);
            let page = json!({ "jobs": rows, "next": next });
            peer.answer(&asked, AnswerStatus::Whole, &page).await;
        }
        until_closed(peer).await;
    };
    let args = [
        "job",
        "ls",
        "-l",
        &leader.address,
        "--state",
        "done,failed",
        "--client",
        "ann",
        "--tag",
        "night",
        "--since",
        "1h",
        "--limit",
        "5",
        "--output",
        "json",
    ];
    let (ended, ()) = with(&args, script).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    let listed = ended.json();
    let seqs: Vec<u64> =
        listed["jobs"].as_array().unwrap().iter().map(|row| row["seq"].as_u64().unwrap()).collect();
    assert_eq!((seqs, &listed["more"]), (vec![9, 7, 1], &json!(false)));
}
