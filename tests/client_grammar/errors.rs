//! Errors: their exit codes, and how programs read them.

use super::{JOB, beside, error_of, not_found, refuse, serve, words};
use crate::command::{end, heft};
use crate::leader::FakeLeader;
use crate::procs;
use crate::schema::{faults, schema};
use serde_json::json;

/// Commands that ask about one thing.
const ASKING: [&str; 9] = [
    "explain J",
    "cancel J",
    "dlq show J",
    "dlq purge J",
    "blob verify J",
    "dataset status set",
    "dataset rm set",
    "dataset verify set",
    "dataset push set",
];

fn line_of(line: &'static str) -> Vec<&'static str> {
    words(line).into_iter().map(|word| if word == "J" { JOB } else { word }).collect()
}

#[tokio::test]
async fn what_the_leader_does_not_know_is_exit_code_five_and_any_other_error_one() {
    let leader = FakeLeader::start().await;
    let other = json!({"error": "it has ended already"});
    for line in ASKING {
        for (answer, code, word) in [(not_found(), 5, "not-found"), (other.clone(), 1, "failed")] {
            let run = async |form: &str| {
                let mut line = line_of(line);
                line.extend(["-l", &leader.address, "-o", form]);
                beside(heft(&line), refuse(&leader, &answer)).await
            };
            let text = answer["error"].as_str().unwrap();
            let ended = run("table").await;
            assert_eq!((ended.code, ended.out.as_str()), (code, ""), "{line}");
            assert_eq!(ended.err, format!("heft: the leader answers: {text}\n"), "{line}");
            for form in ["json", "jsonl"] {
                let ended = run(form).await;
                assert_eq!((ended.code, ended.err.as_str()), (code, ""), "{line}");
                let expected = (word.to_owned(), format!("the leader answers: {text}"));
                assert_eq!(error_of(&ended), expected, "{line}");
            }
        }
    }
}

#[tokio::test]
async fn a_result_that_is_not_there_is_exit_code_five_with_a_status_for_programs() {
    let leader = FakeLeader::start().await;
    let line = ["result", "get", JOB, "-l", &leader.address];
    let ended = beside(heft(&line), refuse(&leader, &not_found())).await;
    assert_eq!((ended.code, ended.out.as_str()), (5, ""));
    assert_eq!(ended.err, "heft: the leader answers: it is unknown here\n");
    let line = [&line[..], &["-o", "json"]].concat();
    let ended = beside(heft(&line), refuse(&leader, &not_found())).await;
    let shown = ended.json();
    assert_eq!((ended.code, ended.err.as_str()), (5, ""));
    assert_eq!((&shown["job_id"], &shown["status"]), (&json!(JOB), &json!("NOT_FOUND")));
    assert_eq!(shown["error"]["code"], json!("not-found"));
    assert_eq!(faults(&schema("result-get"), &shown), Vec::<String>::new());
    // One that has not ended yet is another matter.
    let ended = beside(heft(&line), refuse(&leader, &json!({"error": "it has not ended"}))).await;
    assert_eq!((ended.code, error_of(&ended).0.as_str()), (1, "failed"));
}

#[tokio::test]
async fn a_leader_that_does_not_say_where_a_job_ran_has_its_result_all_the_same() {
    let leader = FakeLeader::start().await;
    let line = ["submit", "calc", "-l", &leader.address];
    let older = json!({"error": "unknown question: job.show"});
    let ended = beside(heft(&[&line[..], &["-o", "json"]].concat()), refuse(&leader, &older)).await;
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{}", ended.out);
    let shown = serde_json::from_str(&ended.out).unwrap();
    assert_eq!(faults(&schema("submit"), &shown), Vec::<String>::new());
    assert_eq!((&shown["stdout"], &shown["ended"]), (&json!("forty-two\n"), &json!("ok")));
    for member in ["worker", "worker_name", "attempt", "queued_ms", "ran_ms"] {
        assert_eq!(shown.get(member), Some(&json!(null)), "{member}");
    }
    let ended = beside(heft(&[&line[..], &["-v"]].concat()), refuse(&leader, &older)).await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "forty-two\n"));
    assert!(!ended.err.contains(": worker "), "{}", ended.err);
}

#[tokio::test]
async fn a_real_leader_says_which_things_are_not_there() {
    let leader = procs::Leader::start(&[]);
    for line in ASKING {
        let addr = leader.addr();
        let line = [&line_of(line)[..], &["-l", &addr]].concat();
        let (code, out, err) = procs::heft(&line);
        assert_eq!((code, out.as_str()), (Some(5), ""), "{line:?}: {err}");
    }
    for line in [["result", "get", JOB], ["workers", "show", "nobody"], ["dlq", "requeue", JOB]] {
        let addr = leader.addr();
        let (code, out, err) = procs::heft(&[&line[..], &["-l", &addr]].concat());
        assert_eq!((code, out.as_str()), (Some(5), ""), "{line:?}: {err}");
    }
}

#[test]
fn a_wrong_name_of_a_dataset_or_of_its_file_is_said_with_those_that_are_like_it() {
    let (leader, files) = (procs::Leader::start(&[]), procs::TempDir::new());
    let addr = leader.addr();
    let run = |line: &str| procs::heft(&[&words(line)[..], &["-l", &addr]].concat());
    let file = files.join("alpha.txt");
    std::fs::write(&file, "a").unwrap();
    let put = format!("dataset put models {} --target none --progress none", file.display());
    let (code, out, err) = run(&put);
    assert_eq!(code, Some(0), "{out}{err}");
    for (line, hint) in [
        ("dataset status model", "has no dataset \"model\""),
        ("dataset rm model", "did you mean \"models\"?"),
        ("dataset verify model", "did you mean \"models\"?"),
        ("dataset push model", "did you mean \"models\"?"),
        ("submit calcA --dataset model", "did you mean \"models\"?"),
        ("submit calcA --dataset models/alpha", "did you mean \"alpha.txt\"?"),
    ] {
        let (code, out, err) = run(line);
        assert_eq!((code, out.as_str()), (Some(5), ""), "{line}: {err}");
        assert!(err.contains(hint), "{line}: {err}");
    }
}

#[tokio::test]
async fn of_several_jobs_each_that_cannot_be_cancelled_is_said() {
    let leader = FakeLeader::start().await;
    let line = ["cancel", JOB, JOB, "-l", &leader.address];
    let ended = beside(heft(&line), refuse(&leader, &not_found())).await;
    let said = "heft: the leader answers: it is unknown here\n";
    assert_eq!((ended.code, ended.out.as_str(), ended.err), (5, "", said.repeat(2)));
    let line = [&line[..], &["-o", "json"]].concat();
    let ended = beside(heft(&line), refuse(&leader, &not_found())).await;
    assert_eq!((ended.code, ended.out.lines().count(), ended.err.as_str()), (5, 2, ""));
    for line in ended.out.lines() {
        let shown = serde_json::from_str(line).unwrap();
        assert_eq!(faults(&schema("cancel"), &shown), Vec::<String>::new());
        assert_eq!((&shown["job_id"], &shown["error"]["code"]), (&json!(JOB), &json!("not-found")));
    }
}

#[tokio::test]
async fn a_wrong_command_line_is_an_object_for_programs_too() {
    for (line, variable, text) in [
        ("status -o json --bogus", None, "unexpected argument '--bogus'"),
        ("dlq ls --bogus", Some("jsonl"), "unexpected argument '--bogus'"),
        ("cancel x --output=json", None, "\"x\" is not a valid job id"),
        ("status a:1 -l b:2 -o json", None, "the leader is given twice"),
        ("job cancel -ojson", None, "required arguments"),
        ("foo -o json", None, "unrecognized subcommand 'foo'"),
        ("-o json foo", None, "unrecognized subcommand 'foo'"),
        ("job foo", Some("json"), "unrecognized subcommand 'foo'"),
        ("context show none -o json", None, "no context \"none\""),
        ("status --context none -o json", None, "no context \"none\""),
    ] {
        let mut command = heft(&words(line));
        command.envs(variable.map(|form| ("HEFT_OUTPUT", form)));
        let ended = end(command).await;
        assert_eq!((ended.code, ended.err.as_str()), (2, ""), "{line}");
        let (code, message) = error_of(&ended);
        assert_eq!(code, "usage", "{line}");
        assert!(message.contains(text), "{line}: {message}");
        let mut command = heft(&words(line));
        command.env("HEFT_OUTPUT", "table");
        if variable.is_some() {
            let ended = end(command).await;
            assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{line}");
            assert!(ended.err.contains(text), "{line}: {}", ended.err);
        }
    }
    // Help is no error.
    let ended = end(heft(&["status", "-o", "json", "--help"])).await;
    assert!(ended.code == 0 && ended.out.contains("Usage: heft status"), "{}", ended.out);
}

#[tokio::test]
async fn submit_without_a_result_has_the_error_beside_its_members() {
    let line = ["submit", "calcA", "-l", "127.0.0.1:1", "--connect-wait", "50ms", "-o", "json"];
    let ended = end(heft(&line)).await;
    let shown = ended.json();
    assert_eq!((ended.code, ended.err.as_str()), (3, ""));
    assert_eq!(
        (&shown["status"], &shown["error"]["code"]),
        (&json!("ERROR"), &json!("unavailable"))
    );
    assert!(
        shown["error"]["message"].as_str().unwrap().contains("cannot reach 127.0.0.1:1"),
        "{shown}"
    );
    assert_eq!(faults(&schema("submit"), &shown), Vec::<String>::new());
    let line = [
        "dataset",
        "put",
        "set",
        "/nowhere",
        "-l",
        "127.0.0.1:1",
        "-o",
        "json",
        "--progress",
        "none",
    ];
    let ended = end(heft(&line)).await;
    let shown = ended.json();
    assert_eq!((ended.code, ended.err.as_str()), (2, ""));
    assert_eq!((&shown["status"], &shown["error"]["code"]), (&json!("ERROR"), &json!("usage")));
    assert_eq!(faults(&schema("dataset-put"), &shown), Vec::<String>::new());
}

#[tokio::test]
async fn a_quiet_command_keeps_notes_back_and_says_errors() {
    let (leader, dir) = (FakeLeader::start().await, procs::TempDir::new());
    let line = ["submit", "calcA", "-l", &leader.address, "--out", dir.text()];
    let ended = beside(heft(&line), serve(&leader)).await;
    assert_eq!((ended.code, ended.err.as_str()), (0, "heft: the job left no files\n"));
    let quiet = [&line[..], &["-q"]].concat();
    let ended = beside(heft(&quiet), serve(&leader)).await;
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (0, "forty-two\n", ""));
    let ended = end(heft(&["-q", "status", "-l", "127.0.0.1:1", "--connect-wait", "50ms"])).await;
    assert!(ended.code == 3 && ended.err.contains("cannot reach 127.0.0.1:1"), "{}", ended.err);
    let ended = end(heft(&["status", "-qv"])).await;
    assert_eq!(ended.code, 2, "they contradict each other");
}

#[tokio::test]
async fn v_shows_what_happens_underneath_and_goes_before_the_variable() {
    let leader = FakeLeader::start().await;
    // The hint about the older form is a line of the level info.
    for (flags, variable, is_said) in [
        ("", "", false),
        ("-v", "", true),
        ("", "info", true),
        ("-v", "error", true),
        ("-q", "info", false),
    ] {
        let mut line = vec!["status", &leader.address];
        line.extend(words(flags));
        let mut command = heft(&line);
        command.env("HEFT_LOG", if variable.is_empty() { "warn" } else { variable });
        let ended = beside(command, serve(&leader)).await;
        assert_eq!(ended.code, 0, "{}", ended.err);
        let hint = format!("use -l {}, HEFT_LEADER or `heft context`", leader.address);
        assert_eq!(ended.err.contains(&hint), is_said, "{flags} {variable}: {}", ended.err);
        assert_eq!(ended.err.is_empty(), !is_said, "{flags} {variable}: {}", ended.err);
    }
}
