//! Several `heft submit` commands of one user at a time: what priorities order, and how many jobs
//! run. Real processes.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use std::path::Path;
use std::process::Command;

use procs::{Leader, Proc, TempDir, Worker, eventually, heft};
use serde_json::Value;

/// Notes its name in the file of the second argument, and ends when the first file is there.
const NOTED: &str = r#"echo "$3" >> "$2"; while [ ! -e "$1" ]; do sleep 0.02; done"#;

struct Scene {
    leader: Leader,
    _worker: Worker,
    dir: TempDir,
}

impl Scene {
    fn new(slots: &str) -> Scene {
        let leader = Leader::start(&[]);
        let worker = Worker::start(leader.port, &[("noted", NOTED)], &["--max-par", slots]);
        Scene { leader, _worker: worker, dir: TempDir::new() }
    }

    /// A job that runs until [`Scene::let_end`], of a command that waits for it.
    fn submit(&self, name: &str, args: &[&str]) -> Proc {
        let (gate, order) = (self.dir.join("gate"), self.dir.join("order"));
        let mut command = Command::new("sh");
        command.arg("-c").arg("exec \"$0\" \"$@\" 2>&1").arg(env!("CARGO_BIN_EXE_heft"));
        command.args(["submit", &self.leader.addr(), "noted", "--progress", "json"]).args(args);
        command.arg("--").args([gate.to_str().unwrap(), order.to_str().unwrap(), name]);
        let mut job = Proc::start(name, &mut command);
        job.event("submitted");
        job
    }

    fn let_end(&self) {
        std::fs::write(self.dir.join("gate"), "").unwrap();
    }

    /// The jobs that have started, in their order.
    fn started(&self) -> Vec<String> {
        let order: &Path = &self.dir.join("order");
        std::fs::read_to_string(order).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    fn status(&self) -> Value {
        let (code, out, err) = heft(&["status", &self.leader.addr(), "--output", "json"]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// The user's line of the status: all commands are one client.
    fn client(&self) -> Value {
        let status = self.status();
        let clients = status["clients"].as_array().unwrap();
        let ours: Vec<&Value> = clients
            .iter()
            .filter(|client| client["id"].as_str().is_some_and(|id| id.contains('@')))
            .collect();
        assert_eq!(ours.len(), 1, "{status:#}");
        ours[0].clone()
    }
}

#[test]
fn c28_priorities_order_the_jobs_of_several_commands_of_a_user() {
    let scene = Scene::new("1");
    let mut jobs = vec![scene.submit("first", &[])];
    eventually("the first one runs", || scene.started() == ["first"]);
    for (name, priority) in [("last", "7"), ("third", "1"), ("second", "-3")] {
        jobs.push(scene.submit(name, &["--priority", priority]));
    }
    scene.let_end();
    for job in jobs {
        assert_eq!(job.finish().0, Some(0));
    }
    assert_eq!(scene.started(), ["first", "second", "third", "last"]);
}

#[test]
fn a_user_has_no_cap_unless_a_command_names_one_and_the_last_command_counts() {
    let scene = Scene::new("8");
    let mut jobs: Vec<Proc> = (0..6).map(|number| scene.submit(&number.to_string(), &[])).collect();
    eventually("all six run", || scene.started().len() == 6);
    let client = scene.client();
    assert_eq!((&client["cap"], &client["in_flight"]), (&0.into(), &6.into()));

    jobs.push(scene.submit("capped", &["--cap", "2"]));
    let client = scene.client();
    assert_eq!((&client["cap"], &client["queued"]), (&2.into(), &1.into()));
    let said: Value = serde_json::from_str(jobs[6].said("\"submitted\"").unwrap()).unwrap();
    let job = said["job"].as_str().unwrap().to_owned();
    let (code, out, _) = heft(&["explain", &scene.leader.addr(), &job]);
    assert_eq!(code, Some(0));
    assert!(out.contains("6 jobs at workers; its cap is 2"), "{out}");
    assert!(out.contains("position  0 jobs of the same client"), "{out}");

    jobs.push(scene.submit("free", &[]));
    eventually("nothing holds them back", || scene.started().len() == 8);
    scene.let_end();
    for job in jobs {
        assert_eq!(job.finish().0, Some(0));
    }
}

#[test]
fn a_cap_of_zero_is_refused_with_the_range() {
    let (code, _, err) = heft(&["submit", "127.0.0.1:1", "x", "--cap", "0"]);
    assert_eq!(code, Some(2));
    assert!(err.contains("1..=2147483647"), "{err}");
}
