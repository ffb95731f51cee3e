//! Every command has a schema, and what it prints with a real leader is as the schema says.

use super::error_of;
use crate::command::Ended;
use crate::procs::{Leader, Proc, TempDir, Worker, eventually, heft};
use crate::schema::{faults, folder, schema};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::process::Command;

/// Commands that are others under one noun.
const SAME: [(&str, &str); 3] =
    [("job submit", "submit"), ("job explain", "explain"), ("job cancel", "cancel")];

/// The file of a command's schema, without its ending.
fn name_of(command: &str) -> String {
    let same = SAME.iter().find(|(alias, _)| *alias == command).map(|(_, name)| *name);
    same.unwrap_or(command).replace(' ', "-")
}

#[test]
fn every_command_that_prints_has_a_schema_and_every_schema_a_command() {
    let commands = heft::cli::command::with_output();
    assert!(commands.len() > 30, "{commands:?}");
    let needed: BTreeSet<String> =
        commands.iter().map(|command| name_of(command)).chain(["error".to_owned()]).collect();
    let there: BTreeSet<String> = std::fs::read_dir(folder())
        .unwrap()
        .map(|entry| entry.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
        .collect();
    assert_eq!(needed, there, "docs/schema has a file for each command");
    for name in there {
        schema(&name);
    }
    let reference = crate::procs::root().join("docs/reference.md");
    let reference = std::fs::read_to_string(reference).unwrap();
    for command in commands {
        let (noun, _) = command.split_once(' ').unwrap_or((&command, ""));
        assert!(reference.contains(&format!("| `heft {noun}")), "docs/reference.md: {command}");
    }
}

/// A leader whose commands are checked.
struct World {
    leader: Leader,
    seen: BTreeSet<String>,
}

impl World {
    /// Runs a command as JSON: it ends with this code, and prints what its schema says.
    fn json(&mut self, code: i32, command: &str, args: &[&str]) -> Value {
        let mut lines = self.lines(code, command, args);
        assert_eq!(lines.len(), 1, "{command}: {lines:#?}");
        lines.remove(0)
    }

    /// The same of one that prints an object on each line.
    fn lines(&mut self, code: i32, command: &str, args: &[&str]) -> Vec<Value> {
        let addr = self.leader.addr();
        let words: Vec<&str> = command.split(' ').collect();
        let line = [&words[..], args, &["-l", &addr, "-o", "json"]].concat();
        let (ended, out, err) = heft(&line);
        assert_eq!(ended, Some(code), "{line:?}: {out}{err}");
        let read = |text| serde_json::from_str(text).unwrap_or_else(|_| panic!("{line:?}: {out}"));
        let shown: Vec<Value> = out.lines().map(read).collect();
        for shown in &shown {
            let faults = faults(&schema(&name_of(command)), shown);
            assert!(faults.is_empty(), "{line:?}: {faults:#?}: {shown:#}");
        }
        self.seen.insert(name_of(command));
        shown
    }
}

#[test]
fn what_commands_print_at_a_real_leader_is_as_their_schemas_say() {
    let leader = Leader::start(&["--attempts", "1", "--worker-grace", "100ms"]);
    let (port, addr, files) = (leader.port, leader.addr(), TempDir::new());
    let mut world = World { leader, seen: BTreeSet::new() };

    // A job whose worker is killed is dead.
    let mut doomed = Worker::start(port, &[("slow", "sleep 600")], &["--name", "doomed"]);
    let mut slow = Command::new(env!("CARGO_BIN_EXE_heft"));
    let slow = Proc::start("slow", slow.args(["submit", "slow", "-l", &addr, "-o", "json"]));
    eventually("it runs", || world.json(0, "status", &[])["jobs"]["running"] == 1);
    let clients = world.json(0, "clients ls", &[]);
    let client = clients["clients"][0]["id"].as_str().unwrap().to_owned();
    assert_eq!(world.json(0, "clients show", &[&client])["in_flight"], 1);
    doomed.proc.kill();
    let (code, lines) = slow.finish();
    let dead: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((code, &dead["dead"]), (Some(1), &json!(true)));
    assert_eq!(faults(&schema("submit"), &dead), Vec::<String>::new());
    let dead = world.json(0, "dlq ls", &[])["jobs"][0]["job_id"].as_str().unwrap().to_owned();
    world.json(0, "dlq show", &[&dead]);

    // A queued one is explained and cancelled.
    let mut queued = Command::new(env!("CARGO_BIN_EXE_heft"));
    let line = ["submit", "calc", "-l", &addr, "-o", "quiet"];
    let mut queued = Proc::start("queued", queued.args(line));
    let id = queued.wait_for("its id", |line| Some(line.to_owned()));
    eventually("it waits", || world.json(0, "queue ls", &[])["queues"][0]["queued"] == 1);
    assert_eq!(world.json(0, "queue show", &["calc"])["queued"], 1);
    assert_eq!(world.json(0, "explain", &[&id])["phase"], "queued");
    assert_eq!(world.json(0, "cancel", &[&id])["was"], "queued");

    let programs = [("calc", "echo hi; echo x > out.txt"), ("fail", "exit 3")];
    let _worker = Worker::start(port, &programs, &["--name", "host"]);
    eventually("a worker is there", || {
        !world.json(0, "workers ls", &[])["workers"].as_array().unwrap().is_empty()
    });
    world.json(0, "workers show", &["host"]);
    let out = files.join("out");
    let zip = files.join("kept.zip").to_str().unwrap().to_owned();
    let out = ["calc", "--out", out.to_str().unwrap(), "--save-archive", &zip];
    let done = world.json(0, "submit", &out);
    assert_eq!(done["saved_archive"], json!(zip));
    assert_eq!(done["unpacked"], json!(["out.txt"]));
    world.json(0, "submit", &["calc", "--all"]);
    assert_eq!(world.json(1, "job submit", &["fail"])["exit_code"], 3);
    let input = files.join("in");
    std::fs::write(&input, vec![7; 5 << 20]).unwrap();
    let file = input.to_str().unwrap();
    let raw = ["x", "--raw", "--file", file];
    world.json(2, "submit", &raw);
    let job = done["job_id"].as_str().unwrap();
    assert_eq!(world.json(0, "result get", &[job])["status"], "OK");
    assert_eq!(world.json(5, "result get", &[super::JOB])["status"], "NOT_FOUND");
    world.json(0, "explain", &[job]);
    assert_eq!(world.json(0, "job show", &[job])["state"], "done");
    assert!(!world.json(0, "job ls", &[])["jobs"].as_array().unwrap().is_empty());
    let results = world.json(0, "result ls", &["--exec", "calc"]);
    assert!(results["jobs"].as_array().unwrap().iter().any(|row| row["job_id"] == job));
    assert_eq!(world.json(0, "job wait", &[job])["ok"], true);
    let printed = world.lines(0, "job logs", &[job, "--stdout"]);
    assert_eq!(printed[0]["text"], "hi\n");
    assert_eq!((&printed[1]["state"], &printed[1]["complete"]), (&json!("done"), &json!(true)));
    let unknown = world.lines(5, "job logs", &[super::JOB]);
    let end = unknown.last().unwrap();
    assert_eq!((&end["error"]["code"], &end["complete"]), (&json!("not-found"), &json!(false)));
    let (code, out, err) = heft(&["cancel", job, "-l", &addr, "-o", "json"]);
    let ended = Ended { code: code.unwrap(), out, err, id: None };
    assert_eq!((ended.code, error_of(&ended).0.as_str()), (1, "failed"));

    let put = ["set", file, "--progress", "none", "--wait", "1"];
    assert_eq!(world.json(0, "dataset put", &put)["ok"], 1);
    for (command, args) in [
        ("dataset ls", &[][..]),
        ("dataset status", &["set"]),
        ("dataset status", &["--all"]),
        ("dataset verify", &["set"]),
        ("dataset push", &["set"]),
        ("blob ls", &[]),
        ("blob verify", &[]),
        ("blob gc", &["--dry-run"]),
        ("dataset rm", &["set"]),
        ("job retry", &[&dead]),
        ("dlq requeue", &["--all"]),
        ("dlq purge", &["--all"]),
        ("status", &[]),
    ] {
        world.json(0, command, args);
    }
    let all: BTreeSet<String> =
        heft::cli::command::with_output().iter().map(|command| name_of(command)).collect();
    let left: Vec<&String> = all
        .iter()
        .filter(|name| !world.seen.contains(*name) && !name.starts_with("context-"))
        .collect();
    assert!(left.is_empty(), "no output of these was checked: {left:?}");
}
