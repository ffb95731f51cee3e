//! Every command in both forms, as a table and as JSON.

use super::{JOB, answer_to, beside, serve, words};
use crate::command::{Ended, end, heft, until_closed};
use crate::leader::{FakeLeader, ok};
use crate::procs;
use crate::schema::{faults, schema};
use chunking::message::AnswerStatus;
use serde_json::{Value, json};

/// A command as it was and as it is, without the leader's address in the new form, with the name
/// of its schema. `@` is the leader.
const FORMS: [(&str, &str, &str); 18] = [
    ("status @", "status", "status"),
    ("explain @ J", "explain J", "explain"),
    ("explain @ J", "job explain J", "explain"),
    ("cancel @ J", "cancel J", "cancel"),
    ("cancel @ J", "job cancel J", "cancel"),
    ("dlq @ ls", "dlq ls", "dlq-ls"),
    ("dlq @ show J", "dlq show J", "dlq-show"),
    ("dlq @ requeue J", "dlq requeue J", "dlq-requeue"),
    ("dlq @ purge --all", "dlq purge --all", "dlq-purge"),
    ("blob @ ls", "blob ls", "blob-ls"),
    ("blob @ verify J", "blob verify J", "blob-verify"),
    ("blob @ gc --dry-run", "blob gc --dry-run", "blob-gc"),
    ("dataset @ ls", "dataset ls", "dataset-ls"),
    ("dataset @ status models", "dataset status models", "dataset-status"),
    ("dataset @ verify models", "dataset verify models", "dataset-verify"),
    ("dataset @ rm models", "dataset rm models", "dataset-rm"),
    ("result get @ J", "result get J", "result-get"),
    ("submit @ calcA --client me -- a:1", "job submit calcA --client me -- a:1", "submit"),
];

/// The commands that have no older form.
const NEW: [(&str, &str); 8] = [
    ("workers ls", "workers-ls"),
    ("workers show W", "workers-show"),
    ("clients ls", "clients-ls"),
    ("clients show 64a91dac090e4e09a1efee864f42c2f4", "clients-show"),
    ("queue ls", "queue-ls"),
    ("result ls", "result-ls"),
    ("submit calcA --client me", "submit"),
    ("job retry J", "job-retry"),
];

/// Runs a line whose `@` is the leader and whose `J` and `W` are a job and a worker.
async fn run(leader: &FakeLeader, line: &str, more: &[&str], variable: bool) -> Ended {
    let worker = answer_to("status")["workers"][0]["id"].as_str().unwrap_or("none").to_owned();
    let words = words(line).into_iter().map(|word| match word {
        "@" => leader.address.as_str(),
        "J" => JOB,
        "W" => worker.as_str(),
        word => word,
    });
    let mut words: Vec<&str> = words.collect();
    // What stands behind `--` is the program's.
    let end = words.iter().position(|word| *word == "--").unwrap_or(words.len());
    words.splice(end..end, more.iter().copied());
    let mut command = heft(&words);
    if variable {
        command.env("HEFT_LEADER", &leader.address);
    }
    beside(command, serve(leader)).await
}

/// Without the ids that are new each time.
fn plain(text: &str) -> String {
    let is_id =
        |word: &str| word.len() == 36 && word.bytes().filter(|byte| *byte == b'-').count() == 4;
    let words = text.split(|c: char| !(c.is_ascii_hexdigit() || c == '-'));
    let ids: Vec<&str> = words.filter(|word| is_id(word) && *word != JOB).collect();
    ids.into_iter().fold(text.to_owned(), |text, id| text.replace(id, "ID"))
}

#[tokio::test]
async fn every_command_says_the_same_in_both_forms_as_a_table_and_as_json() {
    let leader = FakeLeader::start().await;
    let flag = ["-l", &leader.address];
    for (old, new, name) in FORMS {
        for form in ["table", "json"] {
            let output = ["-o", form];
            let was = run(&leader, old, &output, false).await;
            assert!(!was.out.is_empty(), "{old}: {}", was.err);
            assert_eq!((was.code, was.err.as_str()), (0, ""), "{old}");
            let flagged = run(&leader, new, &[output, flag].concat(), false).await;
            let by_variable = run(&leader, new, &["--output", form], true).await;
            for is in [flagged, by_variable] {
                assert_eq!((is.code, is.err.as_str()), (0, ""), "{new}");
                assert_eq!(plain(&is.out), plain(&was.out), "{new}");
            }
            if form == "json" {
                let faults = faults(&schema(name), &was.json());
                assert!(faults.is_empty(), "{name}: {faults:#?}");
            }
        }
    }
}

#[tokio::test]
async fn commands_without_an_older_form_take_the_leader_as_a_flag_or_a_variable() {
    let leader = FakeLeader::start().await;
    let flag = ["-l", &leader.address];
    for (line, name) in NEW {
        for form in ["table", "json"] {
            let flagged = run(&leader, line, &[&["-o", form], &flag[..]].concat(), false).await;
            let by_variable = run(&leader, line, &["-o", form], true).await;
            if line.ends_with('W') && answer_to("status")["workers"][0].is_null() {
                panic!("the vector has no worker");
            }
            assert_eq!((flagged.code, flagged.err.as_str()), (0, ""), "{line}");
            assert_eq!(plain(&flagged.out), plain(&by_variable.out), "{line}");
            assert!(!flagged.out.is_empty(), "{line}");
            if form == "json" {
                let faults = faults(&schema(name), &flagged.json());
                assert!(faults.is_empty(), "{name}: {faults:#?}");
            }
        }
    }
}

#[tokio::test]
async fn a_list_is_a_row_on_each_line_as_jsonl_and_its_ids_as_quiet() {
    let leader = FakeLeader::start().await;
    for (line, list, id) in [
        ("workers ls", "workers", "id"),
        ("clients ls", "clients", "id"),
        ("queue ls", "queues", "key"),
        ("dlq ls", "jobs", "job_id"),
        ("blob ls", "blobs", "blob"),
        ("dataset ls", "sets", "cache_id"),
    ] {
        let all = run(&leader, line, &["-o", "json"], true).await.json();
        let rows = all[list].as_array().unwrap();
        let lines = run(&leader, line, &["-o", "jsonl"], true).await.out;
        let lines: Vec<Value> =
            lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(&lines, rows, "{line}");
        let ids = run(&leader, line, &["-o", "quiet"], true).await.out;
        let expected: Vec<&str> = rows.iter().map(|row| row[id].as_str().unwrap()).collect();
        assert_eq!(ids.lines().collect::<Vec<_>>(), expected, "{line}");
    }
    // What is no list is its one object, and has no id to print.
    for line in ["status", "explain J", "cancel J", "dlq show J", "dataset rm models", "blob gc"] {
        let all = run(&leader, line, &["-o", "json"], true).await;
        assert_eq!(run(&leader, line, &["-o", "jsonl"], true).await.out, all.out, "{line}");
        let quiet = run(&leader, line, &["-o", "quiet"], true).await;
        assert_eq!((quiet.code, quiet.out.as_str(), quiet.err.as_str()), (0, "", ""), "{line}");
    }
}

#[tokio::test]
async fn a_list_is_asked_for_page_by_page_and_of_an_older_leader_in_its_status() {
    let leader = FakeLeader::start().await;
    let line = ["queue", "ls", "-l", &leader.address, "-o", "json"];
    let row = |key: &str| json!({"key": key, "queued": 1});
    let pages = async {
        let mut peer = leader.welcome().await;
        for (after, key, next) in [(json!(null), "a", json!("a")), (json!("a"), "b", json!(null))] {
            let asked = peer.next().await;
            let question = asked.question();
            assert_eq!((asked.subject.as_str(), &question["after"]), ("status.page", &after));
            assert_eq!(question["list"], "queues");
            let page = json!({"queues": [row(key)], "next": next});
            peer.answer(&asked, AnswerStatus::Whole, &page).await;
        }
        until_closed(peer).await;
    };
    let (ended, ()) = tokio::join!(end(heft(&line)), pages);
    let all = json!({"queues": [row("a"), row("b")], "more": false});
    assert_eq!((ended.code, ended.json()), (0, all), "{}", ended.err);
    let older = async {
        let mut peer = leader.welcome().await;
        let asked = peer.next().await;
        let text = "\"status.page\" is not a question this leader knows: ask one of status";
        peer.answer(&asked, AnswerStatus::Error, &json!({"error": text})).await;
        let asked = peer.next().await;
        assert_eq!(asked.subject, "status");
        peer.answer(&asked, AnswerStatus::Whole, &json!({"queues": [row("c")]})).await;
        until_closed(peer).await;
    };
    let (ended, ()) = tokio::join!(end(heft(&line)), older);
    let all = json!({"queues": [row("c")], "more": false});
    assert_eq!((ended.code, ended.json()), (0, all), "{}", ended.err);
}

#[tokio::test]
async fn submit_prints_the_jobs_id_and_nothing_of_its_output_as_quiet() {
    let leader = FakeLeader::start().await;
    let mut command = heft(&["submit", "calcA", "-o", "quiet", "-l", &leader.address]);
    command.env("HEFT_OUTPUT", "json");
    let script = async {
        let mut peer = leader.welcome().await;
        let request = peer.next().await.request();
        peer.result(&ok(&request, "printed\n")).await;
        until_closed(peer).await;
        request.job_id
    };
    let (ended, job) = tokio::join!(end(command), script);
    assert_eq!((ended.code, ended.out), (0, format!("{job}\n")));
}

#[tokio::test]
async fn several_jobs_are_cancelled_one_after_the_other() {
    let leader = FakeLeader::start().await;
    let other = "11112233-4455-6677-8899-aabbccddeeff";
    let ended = run(&leader, "cancel J", &[other], true).await;
    let expected = format!("{JOB} cancelled; it was running\n{other} cancelled; it was running\n");
    assert_eq!((ended.code, ended.out, ended.err.as_str()), (0, expected, ""));
}

#[tokio::test]
async fn the_variable_names_the_form_unless_the_flag_does() {
    let leader = FakeLeader::start().await;
    for (line, variable, is_json) in [
        ("dlq ls", "json", true),
        ("dlq ls -o table", "json", false),
        ("dlq -o table ls", "json", false),
        ("dlq -o json ls", "table", true),
        ("status", "jsonl", true),
        ("status", "table", false),
    ] {
        let mut command = heft(&words(line));
        command.env("HEFT_LEADER", &leader.address).env("HEFT_OUTPUT", variable);
        let ended = beside(command, serve(&leader)).await;
        assert_eq!(ended.code, 0, "{line}: {}", ended.err);
        assert_eq!(ended.out.starts_with('{'), is_json, "{line} {variable}: {}", ended.out);
    }
    let mut command = heft(&["status"]);
    command.env("HEFT_OUTPUT", "xml");
    let ended = end(command).await;
    assert!(ended.code == 2 && ended.err.contains("'xml'"), "{}", ended.err);
}

#[tokio::test]
async fn flags_may_stand_before_the_verb() {
    let leader = FakeLeader::start().await;
    let expected = run(&leader, "job ls -o json", &[], true).await;
    assert!(expected.code == 0 && expected.out.starts_with('{'), "{}", expected.err);
    for line in [
        "-l @ -o json job ls",
        "job -l @ -o json ls",
        "-q -o json job -l @ ls",
        "job ls -l @ -o json",
    ] {
        let ended = run(&leader, line, &[], false).await;
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{line}");
        assert_eq!(ended.out, expected.out, "{line}");
    }
    let nowhere = end(heft(&["-l", "127.0.0.1:1", "status", "--connect-wait", "50ms"])).await;
    assert!(nowhere.code == 3 && nowhere.err.contains("127.0.0.1:1"), "{}", nowhere.err);
}

#[tokio::test]
async fn founding_commands_know_nothing_of_variables_and_contexts() {
    let (leader, dir) = (FakeLeader::start().await, procs::TempDir::new());
    std::fs::create_dir(dir.join("heft")).unwrap();
    std::fs::write(dir.join("heft/config.toml"), "nonsense").unwrap();
    let (host, port) = leader.address.split_once(':').unwrap();
    for line in [vec!["client", host, port, "me"], vec!["clientx", "me", &leader.address]] {
        let mut command = heft(&line);
        command
            .env("HEFT_LEADER", "nowhere")
            .env("HEFT_CONTEXT", "none")
            .env("HEFT_OUTPUT", "json");
        command.env("XDG_CONFIG_HOME", &dir.0);
        let ended = beside(command, serve(&leader)).await;
        assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{line:?}");
        assert_eq!(ended.out.matches("  stdout  forty-two\n").count(), 3, "{}", ended.out);
    }
}

#[test]
fn a_worker_takes_its_leader_as_a_flag() {
    let leader = procs::Leader::start(&["--durability", "memory"]);
    let dir = procs::TempDir::new();
    std::fs::create_dir(dir.join("exe")).unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "groupA", "-l", &leader.addr(), "--name", "by-flag"]);
    for (flag, name) in [("--exe-dir", "exe"), ("--work-dir", "jobs"), ("--cache-dir", "cache")] {
        command.arg(flag).arg(dir.join(name));
    }
    let _worker = procs::Proc::start("heft worker", &mut command);
    procs::eventually("the worker is there", || {
        let (code, out, _) = procs::heft(&["workers", "show", "by-flag", "-l", &leader.addr()]);
        code == Some(0) && out.contains("patterns  job.assign.groupA job.assign.groupA.>\n")
    });
}
