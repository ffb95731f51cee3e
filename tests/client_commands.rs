//! The built `heft` against a leader that follows the test's script: what it prints, what it
//! unpacks, how it exits.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/command.rs"]
mod command;
#[path = "support/leader.rs"]
mod leader;

use chunking::Kind;
use chunking::message::{AnswerStatus, Reason, Refused, Standing};
use command::{Dir, Ended, end, heft, until_closed, with, zip};
use heft::model::{Deliver, InputFile, JobResult, JobStatus, JsonModel};
use leader::{FakeLeader, PATIENCE, ok};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;
use uuid::Uuid;

const JOB: &str = "00112233-4455-6677-8899-aabbccddeeff";

#[tokio::test]
async fn submit_sends_what_the_command_line_says_and_prints_what_the_job_printed() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let (plain, odd) = (dir.file("a.txt", b"hello"), dir.file("b=c.txt", b"x"));
    let renamed = format!("{plain}=in/put.txt");
    let args = [
        "submit",
        &leader.address,
        "calcA",
        "--file",
        &plain,
        "--file",
        &renamed,
        "--file",
        &odd,
        "--priority",
        "-5",
        "--all",
        "--time-limit",
        "1.5s",
        "--client",
        "me",
        "--",
        "--mode=fast",
        "-x",
    ];
    let script = async {
        let mut peer = leader.welcome().await;
        assert_eq!(peer.hello.subject, "me");
        let submit = peer.next().await;
        assert_eq!(submit.subject, "job.submit.calcA");
        let request = submit.request();
        assert_eq!((request.client_id.as_str(), request.exec_name.as_str()), ("me", "calcA"));
        assert_eq!(request.args, ["--mode=fast", "-x"]);
        let files = [("a.txt", "hello"), ("in/put.txt", "hello"), ("b=c.txt", "x")];
        assert_eq!(request.files, files.map(|(name, content)| InputFile::inline(name, content)));
        assert_eq!(
            (request.priority, request.deliver, request.time_limit_ms),
            (-5, Deliver::All, Some(1_500))
        );
        peer.submitted(request.job_id, Standing::Queued, 0).await;
        let mut result = ok(&request, "forty-two\n");
        result.stderr = "a warning\n".to_owned();
        peer.result(&result).await;
        until_closed(peer).await;
        request.job_id
    };
    let (ended, job) = with(&args, script).await;
    assert_eq!(
        (ended.code, ended.out.as_str(), ended.err.as_str()),
        (0, "forty-two\n", "a warning\n")
    );
    assert_eq!(ended.id, Some(job), "which job that is");
}

#[tokio::test]
async fn submit_of_a_failed_job_shows_its_exit_code_and_exits_with_one() {
    let leader = FakeLeader::start().await;
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        let mut result = ok(&request, "partial");
        result.status = JobStatus::Failed;
        result.stderr = "no such input".to_owned();
        (result.exit_code, result.attempts, result.dead) = (Some(7), Some(6), true);
        peer.result(&result).await;
        until_closed(peer).await;
        request.job_id
    };
    let (ended, job) = with(&["submit", &leader.address, "calcA"], script).await;
    assert_eq!((ended.code, ended.out.as_str()), (1, "partial"));
    let said = format!(
        "no such input\nheft: job {job} FAILED, its exit code is 7, after 6 attempts; it is in the dead-letter queue: \
         see `heft dlq show -l {} {job}`\n",
        leader.address
    );
    assert_eq!(ended.err, said);
}

#[tokio::test]
async fn submit_that_is_refused_says_why_and_exits_with_three() {
    let leader = FakeLeader::start().await;
    let script = async |form: &str| {
        let args = ["submit", &leader.address, "calcA", "--output", form];
        let script = async {
            let mut peer = leader.welcome().await;
            let job = peer.next().await.msg_id;
            let refused = Refused {
                reason: Reason::NO_WORKER,
                value: 5,
                limit: 3,
                hop: "worker w-3".to_owned().try_into().unwrap(),
                text: "start a worker for calcA".into(),
            };
            peer.refused(job, refused).await;
            until_closed(peer).await;
        };
        with(&args, script).await.0
    };
    let ended = script("table").await;
    assert_eq!((ended.code, ended.out.as_str()), (3, ""));
    assert!(
        ended
            .err
            .contains("no-worker at worker w-3, 5 where 3 is the limit: start a worker for calcA")
    );
    let ended = script("json").await;
    let shown = ended.json();
    assert_eq!(
        (ended.code, &shown["status"], &shown["reason"]),
        (3, &json!("REFUSED"), &json!("no-worker"))
    );
    assert_eq!(
        (&shown["value"], &shown["limit"], &shown["hop"]),
        (&json!(5), &json!(3), &json!("worker w-3"))
    );
}

#[tokio::test]
async fn a_leader_that_cannot_be_reached_is_exit_code_three_in_every_command() {
    let gone = FakeLeader::start().await;
    let address = gone.address.clone();
    drop(gone);
    let (host, port) = address.split_once(':').unwrap();
    for words in [
        vec!["submit", &address, "calcA"],
        vec!["status", &address],
        vec!["cancel", &address, JOB],
        vec!["dlq", &address, "ls"],
        vec!["client", host, port, "me"],
    ] {
        let mut args = words.clone();
        args.extend(["--connect-wait", "50ms"]);
        let ended = end(heft(&args)).await;
        assert_eq!((ended.code, ended.out.as_str()), (3, ""), "{words:?}");
        assert!(
            ended.err.contains(&address) && ended.err.contains("is the leader running"),
            "{}",
            ended.err
        );
    }
}

#[tokio::test]
async fn submit_rides_out_a_leader_that_goes_away() {
    let leader = FakeLeader::start().await;
    let script = async {
        let mut peer = leader.welcome().await;
        let job = peer.next().await.msg_id;
        drop(peer);
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        assert_eq!(request.job_id, job);
        peer.result(&ok(&request, "back")).await;
        until_closed(peer).await;
    };
    let (ended, ()) = with(&["submit", &leader.address, "calcA"], script).await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "back"));
    assert!(
        ended.err.contains("is unreachable") && ended.err.contains("under the same id"),
        "{}",
        ended.err
    );
}

#[tokio::test]
async fn submit_gives_up_at_its_timeout_and_says_what_is_known_of_the_job() {
    for is_taken in [true, false] {
        let leader = FakeLeader::start().await;
        let script = async {
            let mut peer = leader.welcome().await;
            let job = peer.next().await.msg_id;
            if is_taken {
                peer.submitted(job, Standing::Queued, 0).await;
            }
            until_closed(peer).await;
        };
        let (ended, ()) =
            with(&["submit", &leader.address, "calcA", "--timeout", "2s"], script).await;
        assert_eq!(ended.code, 4);
        let known = if is_taken {
            "the job continues: `heft result get"
        } else {
            "it is unknown whether the leader has the job"
        };
        assert!(
            ended.err.contains("within 2s (--timeout); ") && ended.err.contains(known),
            "{}",
            ended.err
        );
    }
}

#[cfg(unix)]
#[tokio::test]
async fn an_interrupt_cancels_the_job_and_a_second_one_leaves_it() {
    let leader = FakeLeader::start().await;
    let child = heft(&["submit", &leader.address, "calcA"]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().unwrap().to_string();
    let interrupt = async || {
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success())
    };
    let script = async {
        let mut peer = leader.welcome().await;
        let job = peer.next().await.msg_id;
        // The job is on its way, so the command waits for it, and for Ctrl-C.
        peer.submitted(job, Standing::Running, 0).await;
        interrupt().await;
        let cancel = peer.next().await;
        assert_eq!((cancel.kind(), cancel.msg_id), (Kind::Cancel, job));
        interrupt().await;
        until_closed(peer).await;
    };
    let (output, ()) = tokio::join!(timeout(PATIENCE, child.wait_with_output()), script);
    let output = output.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("cancelling the job") && said.contains("left job"), "{said}");
}

#[cfg(unix)]
#[tokio::test]
async fn a_job_that_an_interrupt_cancelled_is_shown_and_not_called_failed_by_itself() {
    let leader = FakeLeader::start().await;
    let child = heft(&["submit", &leader.address, "calcA"]).stderr(Stdio::piped()).spawn().unwrap();
    let pid = child.id().unwrap().to_string();
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        assert!(Command::new("kill").args(["-INT", &pid]).status().await.unwrap().success());
        assert_eq!(peer.next().await.kind(), Kind::Cancel);
        let mut result = ok(&request, "");
        result.status = JobStatus::Failed;
        result.stderr = "heft: cancelled by clientA".to_owned();
        peer.result(&result).await;
        until_closed(peer).await;
        request.job_id
    };
    let (output, job) = tokio::join!(timeout(PATIENCE, child.wait_with_output()), script);
    let output = output.unwrap().unwrap();
    assert_eq!(output.status.code(), Some(130));
    let said = String::from_utf8(output.stderr).unwrap();
    let end = format!("heft: cancelled by clientA\nheft: job {job} was cancelled\n");
    assert!(said.ends_with(&end) && !said.contains("FAILED"), "{said}");
}

async fn with_archive(entries: &[(&str, &[u8])], out: &Path, form: &str) -> Ended {
    with_out(&[], out, form, |result| result.output_archive = Some(zip(entries))).await
}

/// Submits with `--out`; `change` makes the result what it should be.
async fn with_out(
    more: &[&str],
    out: &Path,
    form: &str,
    change: impl FnOnce(&mut JobResult),
) -> Ended {
    let leader = FakeLeader::start().await;
    let mut args =
        vec!["submit", &leader.address, "calcA", "--out", out.to_str().unwrap(), "--output", form];
    args.extend(more);
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        let mut result = ok(&request, "done\n");
        change(&mut result);
        peer.result(&result).await;
        until_closed(peer).await;
    };
    with(&args, script).await.0
}

#[tokio::test]
async fn submit_unpacks_what_the_job_made_and_skips_names_that_lead_elsewhere() {
    let dir = Dir::new();
    let out = dir.0.join("results");
    let ended = with_archive(&[("a.txt", b"A"), ("sub/b.bin", b"B")], &out, "table").await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "done\n"));
    assert!(ended.err.contains("2 files unpacked into"), "{}", ended.err);
    assert_eq!(std::fs::read(out.join("sub/b.bin")).unwrap(), b"B");

    let evil_out = dir.0.join("evil-results");
    let ended = with_archive(&[("good.txt", b"A"), ("../evil", b"B")], &evil_out, "table").await;
    assert_eq!((ended.code, ended.out.as_str()), (1, "done\n"));
    assert!(
        ended.err.contains("skipped \"../evil\" of the job's archive: the name holds"),
        "{}",
        ended.err
    );
    assert!(
        ended.err.contains("1 file unpacked into") && ended.err.contains(", 1 skipped"),
        "{}",
        ended.err
    );
    assert!(!dir.0.join("evil").exists() && evil_out.join("good.txt").exists());

    let ended = with_archive(&[("../evil", b"B")], &evil_out, "json").await;
    assert_eq!((ended.code, &ended.json()["status"]), (1, &json!("OK")));
    assert_eq!(
        (&ended.json()["unpacked"], &ended.json()["skipped"][0]["name"]),
        (&json!([]), &json!("../evil"))
    );
    assert!(!dir.0.join("evil").exists());
}

#[tokio::test]
async fn submit_says_that_files_were_left_out_and_that_there_are_none_only_if_so() {
    let dir = Dir::new();
    let ended = with_out(&[], &dir.0, "table", |_| {}).await;
    assert_eq!((ended.code, ended.err.as_str()), (0, "heft: the job left no files\n"));
    let ended =
        with_out(&[], &dir.0, "table", |result| result.archive_lost = Some(5_000_000)).await;
    assert_eq!((ended.code, ended.out.as_str()), (1, "done\n"));
    assert!(
        ended.err.contains("the job's files were left out: 5000000 bytes do not fit"),
        "{}",
        ended.err
    );
    assert!(!ended.err.contains("left no files"), "{}", ended.err);
    let ended = with_out(&[], &dir.0, "json", |result| result.archive_lost = Some(5_000_000)).await;
    assert_eq!((ended.code, &ended.json()["archive_lost"]), (1, &json!(5_000_000)));
    assert!(ended.json()["error"]["message"].as_str().unwrap().contains("left out"));
}

/// Makes a result that of a job to two workers, of which the second failed if `status` says so.
fn gathered(result: &mut JobResult, status: JobStatus) {
    let mut first = JobResult { stdout: "one".to_owned(), ..result.clone() };
    first.output_archive = Some(zip(&[("a.txt", b"A")]));
    let mut second =
        JobResult { stdout: "two\n".to_owned(), status: status.clone(), ..result.clone() };
    (second.stderr, second.output_archive) = ("why\n".to_owned(), Some(zip(&[("a.txt", b"B")])));
    if status == JobStatus::Failed {
        second.exit_code = Some(3);
    }
    let line = |worker: &str, own: &JobResult| {
        let own: Value = serde_json::from_slice(&own.to_json()).unwrap();
        json!({"Worker": worker, "Result": own}).to_string()
    };
    result.status = status;
    result.stdout = [line("w-1", &first), line("w-2", &second)].join("\n");
}

#[tokio::test]
async fn submit_to_all_shows_each_worker_and_unpacks_its_files_beneath_its_id() {
    let dir = Dir::new();
    let ended =
        with_out(&["--all"], &dir.0, "table", |result| gathered(result, JobStatus::Ok)).await;
    assert_eq!(
        (ended.code, ended.out.as_str()),
        (0, "== worker w-1: OK\none\n== worker w-2: OK\ntwo\n")
    );
    assert!(ended.err.contains("heft: worker w-2, standard error:\nwhy\n"), "{}", ended.err);
    assert!(ended.err.contains("heft: worker w-1: 1 file unpacked into"), "{}", ended.err);
    assert_eq!(std::fs::read(dir.0.join("w-1/a.txt")).unwrap(), b"A");
    assert_eq!(std::fs::read(dir.0.join("w-2/a.txt")).unwrap(), b"B");

    let ended =
        with_out(&["--all"], &dir.0, "table", |result| gathered(result, JobStatus::Failed)).await;
    assert_eq!(ended.code, 1);
    assert!(
        ended.out.contains("== worker w-2: FAILED, its exit code is 3\ntwo\n"),
        "{}",
        ended.out
    );

    let again = ["--all", "--force"];
    let ended = with_out(&again, &dir.0, "json", |result| gathered(result, JobStatus::Ok)).await;
    let shown = ended.json();
    let second = &shown["workers"][1];
    assert_eq!((&second["worker"], &second["status"]), (&json!("w-2"), &json!("OK")));
    assert_eq!((&second["stdout"], &second["unpacked"]), (&json!("two\n"), &json!(["a.txt"])));
    let first: Value =
        serde_json::from_str(shown["stdout"].as_str().unwrap().lines().next().unwrap()).unwrap();
    assert_eq!((&first["Worker"], &first["Result"]["Stdout"]), (&json!("w-1"), &json!("one")));
    assert_eq!(first["Result"]["OutputArchive"], json!(zip(&[("a.txt", b"A")]).len()));
}

#[tokio::test]
async fn a_workers_result_that_is_kept_apart_is_asked_for_and_one_that_does_not_come_is_no_success()
{
    let one = Uuid::from_u128(1);
    for form in ["table", "json"] {
        let leader = FakeLeader::start().await;
        let args = ["submit", &leader.address, "calcA", "--all", "--output", form];
        let script = async {
            let mut peer = leader.welcome().await;
            let mut result = ok(&peer.next().await.request(), "");
            let line = |worker: u128| {
                let job = Uuid::from_u128(worker);
                let own = json!({"JobId": job, "Status": "OK", "Stderr": "kept apart"});
                json!({"Worker": format!("w-{worker}"), "Job": job, "Apart": true, "Result": own})
                    .to_string()
            };
            result.stdout = [line(1), line(2)].join("\n");
            peer.result(&result).await;
            let ask = peer.next().await;
            assert_eq!(ask.question(), json!({"job_id": one}));
            let own = json!({"JobId": one, "Status": "OK", "Stdout": "all of it", "ExitCode": 0});
            peer.answer(&ask, AnswerStatus::Whole, &json!({"found": true, "result": own})).await;
            let ask = peer.next().await;
            peer.answer(&ask, AnswerStatus::Error, &json!({"error": "no job 2 is known"})).await;
            until_closed(peer).await;
        };
        let ended = with(&args, script).await.0;
        assert_eq!(ended.code, 1, "{}", ended.err);
        if form == "table" {
            assert_eq!(ended.out, "== worker w-1: OK\nall of it\n== worker w-2: OK\n");
            assert!(ended.err.contains("worker w-2: cannot fetch its result"), "{}", ended.err);
            assert!(ended.err.contains("no job 2 is known"), "{}", ended.err);
        } else {
            let workers = &ended.json()["workers"];
            assert_eq!(
                (&workers[0]["stdout"], &workers[0]["job_id"]),
                (&json!("all of it"), &json!(one))
            );
            assert!(workers[0].get("error").is_none(), "{workers}");
            assert!(
                workers[1]["error"]["message"].as_str().unwrap().contains("no job 2 is known"),
                "{workers}"
            );
        }
    }
}

#[tokio::test]
async fn submit_in_json_is_one_object() {
    let leader = FakeLeader::start().await;
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        let mut result = ok(&request, "line\n\u{1b}[31m");
        result.exit_code = Some(0);
        peer.result(&result).await;
        until_closed(peer).await;
        request.job_id
    };
    let (ended, job) =
        with(&["submit", &leader.address, "calcA", "--output", "json"], script).await;
    let shown = ended.json();
    assert_eq!((ended.code, ended.err.as_str()), (0, ""));
    assert_eq!((&shown["job_id"], &shown["status"]), (&json!(job), &json!("OK")));
    assert_eq!((&shown["stdout"], &shown["exit_code"]), (&json!("line\n\u{1b}[31m"), &json!(0)));
    assert_eq!(shown["archive_bytes"], Value::Null);
}

#[tokio::test]
async fn submit_of_raw_bytes_prints_the_result_as_it_comes() {
    let (leader, dir) = (FakeLeader::start().await, Dir::new());
    let file = dir.file("payload", b"\x00\x01raw");
    let args = ["submit", &leader.address, "g", "--raw", "--subject", "groupA", "--file", &file];
    let script = async {
        let mut peer = leader.welcome().await;
        let submit = peer.next().await;
        assert_eq!((submit.subject.as_str(), &submit.payload[..]), ("groupA", &b"\x00\x01raw"[..]));
        peer.send(Kind::Result, submit.msg_id, submit.msg_id, "", b"raw answer").await;
        until_closed(peer).await;
    };
    let (ended, ()) = with(&args, script).await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "raw answer"));
}

#[tokio::test]
async fn files_that_are_missing_or_too_big_to_go_raw_are_said_before_anything_is_sent() {
    let dir = Dir::new();
    let missing = dir.path("missing.bin");
    let ended = end(heft(&["submit", "127.0.0.1:1", "calcA", "--file", &missing])).await;
    assert_eq!(ended.code, 2);
    assert!(ended.err.contains(&format!("cannot read input file {missing}")), "{}", ended.err);

    let big = dir.path("big.bin");
    std::fs::File::create(&big).unwrap().set_len(5 * 1024 * 1024).unwrap();
    let leader = FakeLeader::start().await;
    let args = ["submit", &leader.address, "calcA", "--raw", "--file", &big];
    let (ended, ()) = with(&args, async { until_closed(leader.welcome().await).await }).await;
    assert_eq!(ended.code, 2);
    for part in ["big.bin has 5242880 bytes", "at most 4190208", "without --raw"] {
        assert!(ended.err.contains(part), "{part}: {}", ended.err);
    }
}

#[tokio::test]
async fn c08_names_that_no_worker_takes_are_said_before_anything_is_sent() {
    let dir = Dir::new();
    let file = dir.file("a.txt", b"hello");
    let (above, inside) = (format!("{file}=../a.txt"), format!("{file}=a.txt/b"));
    let faults: [(&[&str], &str); 3] = [
        (&["--file", &above], "invalid file name: \"../a.txt\""),
        (&["--file", &file, "--file", &file], "\"a.txt\" is given twice"),
        (&["--file", &file, "--file", &inside], "\"a.txt\" is a folder of another input file"),
    ];
    for (files, text) in faults {
        // Nobody is there: a leader is not even asked.
        let ended = end(heft(&[&["submit", "127.0.0.1:1", "calcA"], files].concat())).await;
        assert_eq!(ended.code, 2, "{}", ended.err);
        assert!(ended.err.contains(text), "{}", ended.err);
    }
}

#[tokio::test]
async fn a_leader_without_transfers_is_named_with_the_numbers_before_a_large_file_is_sent() {
    let dir = Dir::new();
    let big = dir.path("big.bin");
    std::fs::File::create(&big).unwrap().set_len(5 * 1024 * 1024).unwrap();
    for output in ["table", "json"] {
        let leader = FakeLeader::start().await;
        let args = ["submit", &leader.address, "calcA", "--file", &big, "--output", output];
        let (ended, ()) = with(&args, async { until_closed(leader.welcome().await).await }).await;
        assert_eq!(ended.code, 3, "{}", ended.err);
        if output == "json" {
            let shown = ended.json();
            assert_eq!(
                (&shown["status"], &shown["reason"]),
                (&json!("REFUSED"), &json!("too-large"))
            );
            assert_eq!((&shown["value"], &shown["limit"]), (&json!(6_990_508), &json!(4_194_304)));
        } else {
            for part in [
                "5242880 bytes (5 MiB)",
                "in base64",
                "4194304",
                &leader.address,
                "submit it to a heft leader",
            ] {
                assert!(ended.err.contains(part), "{part}: {}", ended.err);
            }
        }
    }
}

#[tokio::test]
async fn what_is_wrong_on_the_command_line_is_exit_code_two() {
    let dir = Dir::new();
    let (here, beneath_a_file) = (dir.path(""), dir.file("file", b"") + "/jobs");
    for args in [
        vec!["submit", "nowhere", "calcA"],
        vec!["submit", "127.0.0.1:1", "calcA", "--timeout", "soon"],
        vec!["submit", "127.0.0.1:1", "calcA", "--raw"],
        vec!["cancel", "127.0.0.1:1", "not-a-guid"],
        vec!["dlq", "127.0.0.1:1", "requeue"],
        vec!["clientx", "me", "12"],
        vec!["clientx", "me", "127.0.0.1:1", "--policy", "fastest"],
        vec!["leader", "0", "--listen", "0.0.0.0"],
        vec![
            "worker",
            "127.0.0.1",
            "1",
            "--exe-dir",
            &here,
            "--cache-dir",
            &here,
            "--work-dir",
            &beneath_a_file,
        ],
        vec!["worker", "127.0.0.1", "1", "--cpu-cap", "0.99"],
        vec!["worker", "127.0.0.1", "1", "--name", ""],
        vec!["nonsense"],
    ] {
        let ended = end(heft(&args)).await;
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.err);
    }
    for (name, value, text) in [
        (
            "WORKER_CPU_CAP",
            "2",
            "WORKER_CPU_CAP, takes a share of all processors from 0.10 to 0.95",
        ),
        ("WORKER_MAX_PAR", "abc", "WORKER_MAX_PAR, takes a whole number from 1 to 10000"),
    ] {
        let mut command = heft(&["worker", "127.0.0.1", "1"]);
        command.env(name, value);
        let ended = end(command).await;
        assert!(ended.code == 2 && ended.err.contains(text), "{name}: {}", ended.err);
    }
}

#[tokio::test]
async fn what_is_no_job_id_or_no_time_limit_is_said_with_the_next_step() {
    let id =
        "\"xyz\" is not a valid job id: it is a Guid such as 00112233-4455-6677-8899-aabbccddeeff";
    for (args, text) in [
        (vec!["cancel", "127.0.0.1:1", "xyz"], id),
        (vec!["dlq", "127.0.0.1:1", "show", "xyz"], id),
        (vec!["dlq", "127.0.0.1:1", "requeue", "xyz"], id),
        (
            vec!["submit", "127.0.0.1:1", "calcA", "--time-limit", "0s"],
            "a time limit of 0 lets no program run",
        ),
    ] {
        let ended = end(heft(&args)).await;
        assert!(ended.code == 2 && ended.err.contains(text), "{args:?}: {}", ended.err);
    }
}

#[tokio::test]
async fn a_leader_whose_port_is_in_use_says_so_and_exits_with_three() {
    let (other, dir) = (FakeLeader::start().await, Dir::new());
    let (_, port) = other.address.split_once(':').unwrap();
    let ended = end(heft(&["leader", port, "--data", &dir.path("data")])).await;
    assert_eq!((ended.code, ended.out.as_str()), (3, ""));
    assert!(ended.err.contains(&format!("cannot listen on {}", other.address)), "{}", ended.err);
}

/// One question, one answer.
async fn asked(
    args: &[&str],
    verb: &str,
    question: Value,
    status: AnswerStatus,
    answer: Value,
) -> Ended {
    let leader = FakeLeader::start().await;
    let mut words: Vec<&str> = args.to_vec();
    words.insert(1, &leader.address);
    let script = async {
        let mut peer = leader.welcome().await;
        assert_eq!(peer.hello.subject, "", "those that only ask have no id");
        let ask = peer.next().await;
        let mut asked = ask.question();
        // Who cancels is said to the job's client, by the name that this user's jobs have.
        let by = asked.as_object_mut().unwrap().remove("by");
        let by = by.map(|by| by.as_str().unwrap().to_owned());
        assert_eq!(by.is_some_and(|by| by.contains('@')), verb == "cancel");
        assert_eq!((ask.subject.as_str(), asked), (verb, question));
        peer.answer(&ask, status, &answer).await;
        until_closed(peer).await;
    };
    with(&words, script).await.0
}

#[tokio::test]
async fn no_question_is_waited_for_without_end() {
    for args in [
        &["status"][..],
        &["dlq", "ls"],
        &["cancel", JOB],
        &["explain", JOB],
        &["blob", "ls"],
        &["dataset", "ls"],
    ] {
        let leader = FakeLeader::start().await;
        let mut words = vec![args[0], &leader.address];
        words.extend(&args[1..]);
        words.extend(["--answer-wait", "300ms"]);
        let script = async {
            let mut peer = leader.welcome().await;
            peer.next().await;
            until_closed(peer).await;
        };
        let ended = with(&words, script).await.0;
        assert_eq!(ended.code, 3, "{args:?}: {}", ended.err);
        assert!(
            ended.err.contains("has not answered") && ended.err.contains("within 300ms"),
            "{}",
            ended.err
        );
    }
}

#[tokio::test]
async fn dlq_lists_shows_requeues_and_purges() {
    let dead = json!({"job_id": JOB, "client_id": "clientA", "exec": "calcA", "reason": "attempts spent", "attempts": 6,
                      "run": 1, "dead_ms": 5_430_000});
    let page = json!({"jobs": [dead.clone()], "more": false});
    let limit = json!({"limit": 1_000});
    let ended =
        asked(&["dlq", "ls"], "dlq.ls", limit.clone(), AnswerStatus::Whole, page.clone()).await;
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(lines[0].starts_with("JOB ") && lines[0].ends_with("REASON"), "{}", ended.out);
    assert!(lines[1].starts_with(JOB) && lines[1].ends_with("  attempts spent"), "{}", ended.out);
    assert_eq!(lines[0].find("REASON"), lines[1].find("attempts spent"));
    assert_eq!(lines[1].split_whitespace().nth(5), Some("1h30m"), "AGE is the time since it died");
    let ended = asked(
        &["dlq", "ls", "--output", "json"],
        "dlq.ls",
        limit.clone(),
        AnswerStatus::Whole,
        page,
    )
    .await;
    assert_eq!(ended.json()["jobs"][0]["job_id"], JOB);
    let none = json!({"jobs": [], "more": false});
    let ended = asked(&["dlq", "ls"], "dlq.ls", limit, AnswerStatus::Whole, none).await;
    assert_eq!(ended.out, "the dead-letter queue is empty\n");

    let mut shown = dead;
    shown["history"] = json!([{"attempt": 1, "worker": "w-1", "why": "worker lost"}]);
    let which = json!({"job_id": JOB});
    let ended =
        asked(&["dlq", "show", JOB], "dlq.show", which.clone(), AnswerStatus::Whole, shown).await;
    for part in [
        "client    clientA\n",
        "died      1h30m ago\n",
        "ATTEMPT  WORKER  WHY\n      1  w-1     worker lost\n",
    ] {
        assert!(ended.out.contains(part), "{part:?}: {}", ended.out);
    }
    let all = json!({"all": true});
    let ended = asked(
        &["dlq", "requeue", "--all"],
        "dlq.requeue",
        all,
        AnswerStatus::Whole,
        json!({"requeued": 3}),
    )
    .await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "3 requeued\n"));
    let ended = asked(
        &["dlq", "purge", JOB],
        "dlq.purge",
        which.clone(),
        AnswerStatus::Whole,
        json!({"purged": 1}),
    )
    .await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "1 purged\n"));
    let error = json!({"error": "no such job in the dead-letter queue"});
    let ended = asked(&["dlq", "purge", JOB], "dlq.purge", which, AnswerStatus::Error, error).await;
    assert_eq!(
        (ended.code, ended.err.as_str()),
        (1, "heft: the leader answers: no such job in the dead-letter queue\n")
    );
}

#[tokio::test]
async fn those_that_only_ask_wait_for_the_welcome_and_say_when_none_came() {
    let leader = FakeLeader::start().await;
    for args in [
        vec!["status", &leader.address],
        vec!["dlq", &leader.address, "ls"],
        vec!["cancel", &leader.address, JOB],
    ] {
        let mut words = args.clone();
        words.extend(["--connect-wait", "700ms"]);
        let (ended, ()) = with(&words, async { until_closed(leader.accept().await).await }).await;
        assert_eq!((ended.code, ended.out.as_str()), (3, ""), "{args:?}");
        let said = format!(
            "heft: no answer to the hello from {} within 700ms: the leader may be busy, or a \
             classic one, which does not support status, cancel, stored results, the dead-letter \
             queue or datasets\n",
            leader.address
        );
        assert_eq!(ended.err, said, "{args:?}");
    }
}

#[tokio::test]
async fn status_and_cancel_print_what_the_leader_says() {
    let status = json!({"leader": {"software": "heft 0.1.0", "uptime_ms": 5_000},
                        "jobs": {"queued": 1, "running": 0, "done": 2, "dead": 0}, "workers": [], "clients": [],
                        "queues": [{"key": "job.assign.calcA", "queued": 1}]});
    let ended = asked(&["status"], "status", json!({}), AnswerStatus::Whole, status.clone()).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    for part in [
        "leader  heft 0.1.0, up 5s,",
        "1 queued, 0 running, 2 done, 0 dead\n",
        "job.assign.calcA       1\n",
    ] {
        assert!(ended.out.contains(part), "{part:?}: {}", ended.out);
    }
    let ended = asked(
        &["status", "--output", "json"],
        "status",
        json!({}),
        AnswerStatus::Whole,
        status.clone(),
    )
    .await;
    assert_eq!(ended.json(), status);
    let which = json!({"job_id": JOB});
    let was = json!({"was": "running"});
    let ended = asked(&["cancel", JOB], "cancel", which, AnswerStatus::Whole, was).await;
    assert_eq!((ended.code, ended.out), (0, format!("{JOB} cancelled; it was running\n")));
}

#[tokio::test]
async fn cl02_the_sample_client_sends_three_jobs_and_prints_three_results() {
    let leader = FakeLeader::start().await;
    let (host, port) = leader.address.split_once(':').unwrap();
    let mut command = heft(&["client", host, port, "clientA"]);
    command.env("CLIENT_DESIRED_PAR", "9");
    let script = async {
        let mut peer = leader.welcome().await;
        assert_eq!(
            (peer.hello.subject.as_str(), peer.hello.config().desired_parallelism),
            ("clientA", 9)
        );
        for number in 0..3 {
            let request = peer.next().await.request();
            assert_eq!(request.args, ["--mode=fast".to_owned(), format!("--seed={number}")]);
            assert_eq!(request.files, [InputFile::inline("input.txt", format!("hello-{number}"))]);
            peer.result(&ok(&request, &format!("answer {number}\n"))).await;
        }
        until_closed(peer).await;
    };
    let (ended, ()) = tokio::join!(end(command), script);
    assert_eq!(ended.code, 0, "{}", ended.err);
    for number in 0..3 {
        assert!(ended.out.contains(&format!("  stdout  answer {number}\n")), "{}", ended.out);
    }
}

#[tokio::test]
async fn cl03_clientx_spreads_the_samples_over_its_leaders() {
    let (left, right) = (FakeLeader::start().await, FakeLeader::start().await);
    let args = ["clientx", "clientA", &left.address, &right.address, "3"];
    let serve = async |leader: &FakeLeader, cap: i32| {
        let mut peer = leader.welcome().await;
        assert_eq!(peer.hello.config().desired_parallelism, cap);
        while let Some(frame) = peer.poll().await {
            let request = frame.request();
            peer.result(&ok(&request, &format!("{} {}\n", request.exec_name, request.args[1])))
                .await;
        }
    };
    let (ended, _) = with(&args, async { tokio::join!(serve(&left, 2), serve(&right, 1)) }).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    for said in ["calcA --seed=0", "calcB --seed=1", "calcA --seed=2"] {
        assert_eq!(ended.out.matches(&format!("stdout  {said}\n")).count(), 1, "{}", ended.out);
    }
}
