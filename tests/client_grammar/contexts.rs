//! Where the leader's address is from: the flag, variables, contexts; and the commands that manage
//! contexts.

use super::{JOB, beside, error_of, refuse, serve, words};
use crate::command::{Ended, end, heft, until_closed};
use crate::leader::{FakeLeader, ok};
use crate::procs::{self, Leader, TempDir};
use crate::schema::{faults, schema};
use chunking::message::AnswerStatus;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use tokio::process::Command;

/// A command of somebody whose file of contexts is in this directory.
fn at_home(home: &TempDir, line: &[&str]) -> Command {
    let mut command = heft(line);
    command.env("XDG_CONFIG_HOME", &home.0);
    command
}

async fn run(home: &TempDir, line: &str) -> Ended {
    end(at_home(home, &words(line))).await
}

/// Runs one that prints JSON as its schema says.
async fn as_json(home: &TempDir, name: &str, line: &str) -> Value {
    let ended = run(home, &format!("context {line} -o json")).await;
    assert_eq!((ended.code, ended.err.as_str()), (0, ""), "{line}: {}", ended.out);
    let faults = faults(&schema(name), &ended.json());
    assert!(faults.is_empty(), "{name}: {faults:#?}");
    ended.json()
}

#[test]
fn contexts_that_are_added_at_once_are_all_there() {
    let home = TempDir::new();
    let adding: Vec<_> = (0..12)
        .map(|number| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
            command.args(["context", "add", &format!("c{number}"), "-l", "127.0.0.1:5", "-q"]);
            command.env("XDG_CONFIG_HOME", &home.0).env("HEFT_OUTPUT", "quiet").spawn().unwrap()
        })
        .collect();
    for mut added in adding {
        assert!(added.wait().unwrap().success());
    }
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["context", "ls"]).env("XDG_CONFIG_HOME", &home.0).env("HEFT_OUTPUT", "json");
    let listed: Value = serde_json::from_slice(&command.output().unwrap().stdout).unwrap();
    assert_eq!(listed["contexts"].as_array().unwrap().len(), 12, "{listed}");
    assert_eq!(std::fs::read_dir(home.join("heft")).unwrap().count(), 1, "and nothing beside it");
}

#[test]
fn an_empty_variable_says_nothing() {
    let home = TempDir::new();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["context", "ls"]).env("XDG_CONFIG_HOME", &home.0);
    let ended = command.env("HEFT_OUTPUT", "").env("HEFT_LOG", "").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!((ended.status.code(), said.as_ref()), (Some(0), ""));
    assert!(String::from_utf8_lossy(&ended.stdout).starts_with("no contexts in "));
    // The worker gets as far as its programs.
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", "1", "--exe-dir", "/nonexistent"]);
    let ended = command.env("WORKER_MAX_PAR", "").env("WORKER_CPU_CAP", "").output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code() == Some(2) && said.contains("/nonexistent"), "{said}");
}

#[tokio::test]
async fn the_address_is_that_of_the_first_who_names_one_and_an_error_says_who() {
    let home = TempDir::new();
    as_json(&home, "context-add", "add selected -l 127.0.0.1:5").await;
    as_json(&home, "context-add", "add other -l 127.0.0.1:4").await;
    let path = home.join("heft/config.toml");
    let file = path.to_str().unwrap();
    let flag = "status -l 127.0.0.1:1 --context other";
    let in_file = |name: &str, how: &str| {
        Some(format!("the address is from the context \"{name}\" in {file}, {how}"))
    };
    let variable = Some("the address is from HEFT_LEADER".to_owned());
    for (line, leader, context, port, from) in [
        (flag, "127.0.0.1:2", "other", 1, None),
        ("status", "127.0.0.1:2", "other", 2, variable.clone()),
        ("status --context other", "127.0.0.1:2", "", 2, variable),
        ("status --context other", "", "selected", 4, in_file("other", "named by --context")),
        ("status", "", "other", 4, in_file("other", "named by HEFT_CONTEXT")),
        ("status", "", "", 5, in_file("selected", "selected by `heft context use`")),
    ] {
        let mut command = at_home(&home, &words(line));
        command.args(["--connect-wait", "50ms", "-o", "json"]);
        // An empty variable says nothing.
        command.env("HEFT_LEADER", leader).env("HEFT_CONTEXT", context).env("HEFT_LOG", "error");
        let ended = end(command).await;
        assert_eq!((ended.code, ended.err.as_str()), (3, ""), "{line} {leader} {context}");
        let (_, message) = error_of(&ended);
        let address = format!("cannot reach 127.0.0.1:{port}: ");
        assert!(message.starts_with(&address), "{line} {leader} {context}: {message}");
        assert_eq!(ended.json()["error"]["hint"], json!(from), "{line} {leader} {context}");
    }
    // A context that was named in vain is told of.
    let mut command = at_home(&home, &["status", "--context", "other", "--connect-wait", "50ms"]);
    command.env("HEFT_LEADER", "127.0.0.1:2");
    let ended = end(command).await;
    assert!(ended.err.contains("goes before --context other"), "{}", ended.err);
    assert!(ended.err.ends_with("(the address is from HEFT_LEADER)\n"), "{}", ended.err);
    let mut command = at_home(&home, &["status"]);
    command.env("HEFT_LEADER", "nowhere");
    let ended = end(command).await;
    assert_eq!(ended.code, 2);
    assert!(
        ended.err.starts_with("heft: HEFT_LEADER: \"nowhere\" is not an address"),
        "{}",
        ended.err
    );
}

#[test]
fn of_several_leaders_the_first_that_is_there_is_used_and_said() {
    let leader = Leader::start(&["--durability", "memory"]);
    let addr = leader.addr();
    let said = format!("heft: using the leader {addr}: those before it cannot be reached\n");
    for (named, said) in [
        (format!("127.0.0.1:1,{addr}"), said.as_str()),
        (format!("127.0.0.1:1, 127.0.0.1:2, {addr}"), &said),
        (format!("{addr},127.0.0.1:1"), ""),
    ] {
        let (code, out, err) = procs::heft(&["status", "-l", &named]);
        assert_eq!((code, err.as_str()), (Some(0), said), "{named}");
        assert!(out.starts_with("leader  heft "), "{out}");
    }
    let none = ["submit", "x", "-l", "127.0.0.1:1,127.0.0.1:2", "--connect-wait", "50ms"];
    let (code, out, err) = procs::heft(&none);
    assert_eq!((code, out.as_str()), (Some(3), ""));
    assert!(err.contains("cannot reach 127.0.0.1:1, 127.0.0.1:2: "), "{err}");
}

#[tokio::test]
async fn a_hint_names_the_leader_only_where_a_command_without_it_goes_elsewhere() {
    let (leader, home) = (FakeLeader::start().await, TempDir::new());
    let address = leader.address.clone();
    as_json(&home, "context-add", &format!("add here -l {address}")).await;
    let elsewhere = format!(" -l {address}");
    let line = format!("status -l {address}");
    let not_selected = TempDir::new();
    as_json(&not_selected, "context-add", "add first -l 127.0.0.1:1").await;
    as_json(&not_selected, "context-add", &format!("add here -l {address}")).await;
    for (home, flags, variable, hinted) in [
        (&home, format!("-l {address}"), "", ""),
        (&home, String::new(), "", ""),
        (&home, String::new(), address.as_str(), ""),
        (&home, format!("-l {address}"), "127.0.0.1:1", elsewhere.as_str()),
        (&not_selected, format!("-l {address}"), "", &elsewhere),
        (&not_selected, "--context here".to_owned(), "", &elsewhere),
    ] {
        let mut command = at_home(home, &words(&format!("result get {JOB} {flags}")));
        command.env("HEFT_LEADER", variable);
        let script = async {
            let mut peer = leader.welcome().await;
            let ask = peer.next().await;
            peer.answer(&ask, AnswerStatus::Whole, &json!({"found": false})).await;
            until_closed(peer).await;
        };
        let (ended, ()) = tokio::join!(end(command), script);
        let hint = format!("see `heft status{hinted}`\n");
        assert!(ended.err.ends_with(&hint), "{flags} {variable}: {}", ended.err);
    }
    // And what it prints works.
    let ended = beside(heft(&words(&line)), serve(&leader)).await;
    assert_eq!(ended.code, 0, "{}", ended.err);
}

#[tokio::test]
async fn contexts_are_added_listed_shown_selected_and_removed() {
    let home = TempDir::new();
    let ended = run(&home, "context ls").await;
    let file = home.join("heft/config.toml");
    let file = file.to_str().unwrap();
    assert_eq!((ended.code, ended.out), (0, format!("no contexts in {file}\n")));
    let ended = run(&home, "context add prod -l a:5000,b:5000 --client-id alice").await;
    let added = "context prod added: it is the first one and selected\n";
    assert_eq!((ended.code, ended.out.as_str()), (0, added), "{}", ended.err);
    assert_eq!(std::fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o600);
    let test = as_json(&home, "context-add", "add test --leader [::1]:1").await;
    assert_eq!(
        test,
        json!({"name": "test", "leaders": ["[::1]:1"], "client_id": null, "current": false})
    );
    let ended = run(&home, "context ls").await;
    let table = "\
CONTEXT  SELECTED  LEADERS        CLIENT ID
prod     *         a:5000,b:5000  alice
test               [::1]:1        -
";
    assert_eq!((ended.code, ended.out.as_str()), (0, table));
    let all = as_json(&home, "context-ls", "ls").await;
    assert_eq!((&all["current"], &all["path"]), (&json!("prod"), &json!(file)));
    assert_eq!(all["contexts"][1], test);
    assert_eq!(run(&home, "context ls -o quiet").await.out, "prod\ntest\n");
    assert_eq!(run(&home, "context ls -o jsonl").await.out.lines().count(), 2);
    let shown = as_json(&home, "context-show", "show").await;
    assert_eq!((&shown["name"], &shown["client_id"]), (&json!("prod"), &json!("alice")));
    let ended = run(&home, "context show test").await;
    let lines = format!("context    test\nleaders    [::1]:1\nclient id  -\nfile       {file}\n");
    assert_eq!((ended.code, ended.out), (0, lines));
    // The name is taken, unless it is to be replaced.
    let ended = run(&home, "context add test -l c:1").await;
    assert_eq!((ended.code, ended.out.as_str()), (2, ""));
    assert!(ended.err.contains("there is a context \"test\" already"), "{}", ended.err);
    as_json(&home, "context-add", "add test -l c:1 --replace --use").await;
    assert_eq!(as_json(&home, "context-ls", "ls").await["current"], json!("test"));
    assert_eq!(as_json(&home, "context-use", "use prod").await["current"], json!(true));
    let ended = run(&home, "context use none").await;
    assert!(ended.code == 2 && ended.err.contains("no context \"none\""), "{}", ended.err);
    let removed = as_json(&home, "context-rm", "rm prod").await;
    assert_eq!(removed, json!({"name": "prod", "removed": true}));
    assert_eq!(as_json(&home, "context-ls", "ls").await["current"], json!(null));
    let ended = run(&home, "context show").await;
    assert!(ended.code == 2 && ended.err.contains("no context is selected"), "{}", ended.err);
    let ended = run(&home, "context rm test").await;
    assert_eq!((ended.code, ended.out.as_str()), (0, "context test removed\n"));
}

#[tokio::test]
async fn what_is_wrong_with_the_file_or_a_context_is_exit_code_two_with_the_place() {
    let home = TempDir::new();
    std::fs::create_dir(home.join("heft")).unwrap();
    let file = home.join("heft/config.toml");
    for (text, why) in [
        (
            "[context.a]\nleader = [\"a:1\"]\n",
            "the key \"leader\" is unknown; did you mean \"leaders\"?",
        ),
        ("curent = \"a\"\n", "the key \"curent\" is unknown; did you mean \"current\"?"),
        ("[context.a]\nleaders = [\"a\"]\n", "[context.a]: \"a\" is not an address"),
        ("[context", "it is not TOML"),
    ] {
        std::fs::write(&file, text).unwrap();
        for line in ["status", "context ls", "context add b -l b:1"] {
            let ended = run(&home, line).await;
            assert_eq!((ended.code, ended.out.as_str()), (2, ""), "{line}");
            assert!(ended.err.contains(why), "{line}: {}", ended.err);
            assert!(ended.err.contains(file.to_str().unwrap()), "{line}: {}", ended.err);
        }
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text, "it is left alone");
    }
    // Whoever names the leader needs no file.
    let ended = run(&home, "status -l 127.0.0.1:1 --connect-wait 50ms").await;
    assert_eq!(ended.code, 3, "{}", ended.err);
    std::fs::remove_file(&file).unwrap();
    for (line, why) in [
        ("context add a", "--leader"),
        ("context add a -l nowhere", "\"nowhere\" is not an address"),
        ("context add -x -l a:1", "unexpected argument"),
        ("context add a/b -l a:1", "\"a/b\" is not a name for a context"),
        ("context test", "no context is selected"),
    ] {
        let ended = run(&home, line).await;
        assert!(ended.code == 2 && ended.err.contains(why), "{line}: {}", ended.err);
    }
    assert!(!file.exists());
}

#[tokio::test]
async fn a_test_of_a_context_asks_each_of_its_leaders() {
    let (leader, home) = (FakeLeader::start().await, TempDir::new());
    as_json(&home, "context-add", &format!("add good -l {}", leader.address)).await;
    as_json(&home, "context-add", &format!("add bad -l 127.0.0.1:1,{}", leader.address)).await;
    let test = async |line: &str| {
        let command = at_home(&home, &words(&format!("context test {line} --connect-wait 1s")));
        beside(command, serve(&leader)).await
    };
    let ended = test("").await;
    assert_eq!(ended.code, 0, "{}", ended.err);
    assert!(
        ended.out.contains(&leader.address) && ended.out.contains("heft 0.1.0"),
        "{}",
        ended.out
    );
    let ended = test("bad -o json").await;
    let shown = ended.json();
    assert_eq!((ended.code, faults(&schema("context-test"), &shown)), (3, vec![]));
    assert_eq!((&shown["name"], &shown["leaders"][1]["reached"]), (&json!("bad"), &json!(true)));
    assert_eq!(shown["leaders"][0]["reached"], json!(false));
    assert!(shown["leaders"][0]["error"].as_str().unwrap().contains("cannot reach"), "{shown}");
    // One that answers with an error is there, and of no use.
    let command = at_home(&home, &["context", "test", "good", "-o", "json"]);
    let ended = beside(command, refuse(&leader, &json!({"error": "not now"}))).await;
    assert_eq!((ended.code, &ended.json()["leaders"][0]["reached"]), (3, &json!(false)));
}

#[tokio::test]
async fn a_context_says_who_submits_unless_the_flag_does() {
    let (leader, home) = (FakeLeader::start().await, TempDir::new());
    let added = format!("add here -l {} --client-id alice", leader.address);
    as_json(&home, "context-add", &added).await;
    let submitted = async |line: &str, variable: &str| {
        let mut command = at_home(&home, &words(line));
        command.env("HEFT_LEADER", variable);
        let script = async {
            let mut peer = leader.welcome().await;
            let request = peer.next().await.request();
            peer.result(&ok(&request, "")).await;
            until_closed(peer).await;
            request.client_id
        };
        let (ended, id) = tokio::join!(end(command), script);
        assert_eq!(ended.code, 0, "{}", ended.err);
        id
    };
    assert_eq!(submitted("submit calcA", "").await, "alice");
    assert_eq!(submitted("submit calcA --client bob", "").await, "bob");
    let named = submitted("submit calcA --context here", &leader.address).await;
    assert_eq!(named, "alice", "a context that is named is meant for who submits, too");
    let other = submitted("submit calcA", &leader.address).await;
    assert!(other != "alice" && !other.is_empty(), "{other}");
}
