//! `heft job logs`, with real leaders, workers and programs: every line arrives while the program
//! runs, and all of the output in the end, whoever is killed or stopped meanwhile.
//!
//! Programs go on when the test makes a file, after it has seen what they printed before.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/leader.rs"]
mod leader;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use chunking::Kind;
use chunking::message::Features;
use procs::{Leader, Proc, TempDir, Worker, classic_worker, eventually, heft};
use raw::Raw;
use serde_json::{Value, json};
use support::scaled;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

/// Prints `out N` and `err N` for N up to the second argument, each when there is a file of its
/// number in the first, and ends with the third as its exit code.
const LINES: &str = r#"touch "$1/began"; number=1
while [ "$number" -le "$2" ]; do
    while [ ! -e "$1/$number" ]; do sleep 0.02; done
    echo "out $number"; echo "err $number" >&2
    number=$((number + 1))
done
while [ ! -e "$1/end" ]; do sleep 0.02; done
exit "$3""#;

/// Prints so many bytes of lines, says so in the directory, and ends when there is a file `end`.
const MUCH: &str = r#"yes 'one line of a long, long output' | head -c "$2"
touch "$1/printed"
while [ ! -e "$1/end" ]; do sleep 0.02; done"#;

const PROGRAMS: [(&str, &str); 2] = [("lines", LINES), ("much", MUCH)];

/// Where programs wait.
struct Gate(TempDir);

impl Gate {
    fn new() -> Self {
        Gate(TempDir::new())
    }

    fn go(&self, step: impl ToString) {
        File::create(self.0.join(&step.to_string())).unwrap();
    }

    fn has(&self, step: &str) -> bool {
        self.0.join(step).exists()
    }
}

struct Scene {
    leader: Leader,
    client: Raw,
    gate: Gate,
}

impl Scene {
    fn new(args: &[&str]) -> Self {
        let leader = Leader::start(args);
        let client = Raw::client(&leader, "c");
        Scene { leader, client, gate: Gate::new() }
    }

    fn worker(&self, args: &[&str]) -> Worker {
        Worker::start(self.leader.port, &PROGRAMS, args)
    }

    fn submit(&mut self, exec: &str, args: &[&str]) -> Uuid {
        let job = Uuid::new_v4();
        let args: Vec<&str> = [&[self.gate.0.text()], args].concat();
        self.client.submit(job, exec, &args);
        self.is_taken(job);
        job
    }

    fn is_taken(&mut self, job: Uuid) {
        while self
            .client
            .next()
            .is_none_or(|frame| (frame.kind, frame.msg_id) != (Kind::Submitted, job))
        {}
    }

    /// The program has begun.
    fn begins(&self) {
        eventually("the program begins", || self.gate.has("began"));
    }

    fn logs(&self, job: Uuid, args: &[&str]) -> Logs {
        Logs::start(&self.leader.addr(), job, args)
    }

    fn status_of(&mut self, job: Uuid) -> String {
        let answer = self.client.ask("result", &json!({"job_id": job}));
        answer["result"]["Status"].as_str().unwrap_or_default().to_owned()
    }

    fn ends(&mut self, job: Uuid) {
        eventually("the job ends", || !self.status_of(job).is_empty());
    }
}

/// A running `heft job logs`.
struct Logs {
    proc: Proc,
    errors: PathBuf,
    _dir: TempDir,
}

impl Logs {
    fn start(leader: &str, job: Uuid, args: &[&str]) -> Self {
        let dir = TempDir::new();
        let errors = dir.join("stderr");
        let mut command = command(leader, job, args);
        command.stderr(File::create(&errors).unwrap());
        Logs { proc: Proc::start("heft job logs", &mut command), errors, _dir: dir }
    }

    fn wait_for(&mut self, line: &str) {
        self.proc.wait_for(line, |said| (said == line).then_some(()));
    }

    fn errors(&self) -> String {
        fs::read_to_string(&self.errors).unwrap()
    }

    fn wait_for_error(&self, part: &str) {
        eventually(part, || self.errors().contains(part));
    }

    /// Its exit code, and all that it printed.
    fn finish(self) -> (Option<i32>, Vec<String>, String) {
        let (code, lines) = self.proc.finish();
        (code, lines, fs::read_to_string(&self.errors).unwrap())
    }
}

fn command(leader: &str, job: Uuid, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["job", "logs", "-l", leader, &job.to_string()]).args(args).env_remove("HEFT_LOG");
    command
}

fn lines(name: &str, count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("{name} {number}")).collect()
}

fn size_of(lines: &[String]) -> usize {
    lines.iter().map(|line| line.len() + 1).sum()
}

/// Bytes of a process that are in memory, or were at most.
fn resident(pid: u32, field: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn signal(pid: u32, signal: &str) {
    let status = Command::new("kill").args([signal, &pid.to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn each_line_arrives_before_the_next_is_printed_and_the_end_with_how_the_job_ended() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&[]);
    let job = scene.submit("lines", &["3", "4"]);
    scene.begins();
    let mut both = scene.logs(job, &["-f"]);
    let (mut out, err) =
        (scene.logs(job, &["--follow", "--stdout"]), scene.logs(job, &["-f", "--stderr"]));
    for number in 1..=3 {
        scene.gate.go(number);
        both.wait_for(&format!("out {number}"));
        out.wait_for(&format!("out {number}"));
        both.wait_for_error(&format!("err {number}\n"));
        err.wait_for_error(&format!("err {number}\n"));
        assert_eq!(scene.status_of(job), "", "it has not ended");
    }
    // What is there now, without waiting.
    let (code, printed, errors) = scene.logs(job, &[]).finish();
    let err_lines = "err 1\nerr 2\nerr 3\n";
    assert_eq!((code, printed, errors.as_str()), (Some(0), lines("out", 3), err_lines));
    scene.gate.go("end");
    let ended = format!(
        "heft: the program ended with exit code 4\nheft: job {job} FAILED, its exit code is 4\n"
    );
    let (code, printed, errors) = both.finish();
    // How the job ended is not how the command did.
    assert_eq!((code, printed), (Some(0), lines("out", 3)));
    assert_eq!(errors, format!("{err_lines}{ended}"));
    let (code, printed, errors) = out.finish();
    assert_eq!((code, printed), (Some(0), lines("out", 3)));
    assert!(!errors.contains("err"), "{errors}");
    let (code, printed, errors) = err.finish();
    assert_eq!((code, printed, errors), (Some(0), Vec::new(), format!("{err_lines}{ended}")));
    // And when it has ended, from its result.
    for args in [&[][..], &["-f"]] {
        let (code, printed, errors) = scene.logs(job, args).finish();
        assert_eq!((code, printed), (Some(0), lines("out", 3)));
        assert_eq!(errors, format!("{err_lines}{ended}"));
    }
}

#[test]
fn programs_read_pieces_as_they_come_and_the_state_in_the_end() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&[]);
    let job = scene.submit("lines", &["2", "4"]);
    scene.begins();
    let mut logs = scene.logs(job, &["-f", "-o", "jsonl"]);
    let (mut out, mut err) = (String::new(), String::new());
    for number in 1..=2 {
        scene.gate.go(number);
        let all = |name: &str| (1..=number).map(|number| format!("{name} {number}\n")).collect();
        let (all_out, all_err): (String, String) = (all("out"), all("err"));
        logs.proc.wait_for("both pieces", |line| {
            let piece: Value = serde_json::from_str(line).unwrap();
            assert_eq!((&piece["job_id"], &piece["attempt"]), (&json!(job), &json!(1)));
            let to = if piece["stream"] == "stdout" { &mut out } else { &mut err };
            to.push_str(piece["text"].as_str().unwrap());
            (out == all_out && err == all_err).then_some(())
        });
        assert_eq!(scene.status_of(job), "", "it has not ended");
    }
    let (code, lines, _) = scene.logs(job, &["-o", "json"]).finish();
    let end: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    let running = json!({"job_id": job, "state": "running", "complete": true});
    assert_eq!((code, end), (Some(0), running));
    scene.gate.go("end");
    let (code, lines, errors) = logs.finish();
    let end: Value = serde_json::from_str(lines.last().unwrap()).unwrap();
    let failed = json!({"job_id": job, "state": "failed", "complete": true});
    assert_eq!((code, end, errors.as_str()), (Some(0), failed, ""));

    // The variable counts, too; quiet is the output without lines about it.
    let mut command = command(&scene.leader.addr(), job, &["--stdout"]);
    let printed = command.env("HEFT_OUTPUT", "json").output().unwrap().stdout;
    let printed: Vec<Value> = String::from_utf8(printed)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!((printed.len(), &printed[0]["text"]), (2, &json!("out 1\nout 2\n")));
    let (code, printed, errors) = scene.logs(job, &["-o", "quiet"]).finish();
    assert_eq!((code, printed), (Some(0), crate::lines("out", 2)));
    assert!(!errors.contains("FAILED"), "{errors}");
    // An unknown job is an error for programs.
    let (code, lines, errors) = scene.logs(Uuid::new_v4(), &["-f", "-o", "json"]).finish();
    let end: Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!((code, lines.len(), errors.as_str()), (Some(5), 1, ""));
    assert_eq!((&end["error"]["code"], &end["state"]), (&json!("not-found"), &Value::Null));
}

#[test]
fn a_queued_job_is_waited_for_and_unknown_ones_and_older_leaders_are_said_at_once() {
    let mut scene = Scene::new(&[]);
    let job = scene.submit("lines", &["1", "0"]);
    let (code, printed, errors) = scene.logs(job, &[]).finish();
    assert_eq!((code, printed.len(), errors.as_str()), (Some(0), 0, ""));
    let mut logs = scene.logs(job, &["-f"]);
    logs.wait_for_error("heft: the job waits for a worker\n");
    let _worker = scene.worker(&[]);
    scene.gate.go(1);
    logs.wait_for("out 1");
    scene.gate.go("end");
    let (code, _, errors) = logs.finish();
    assert_eq!((code, errors.as_str()), (Some(0), "heft: the job waits for a worker\nerr 1\n"));

    let (code, _, errors) = scene.logs(Uuid::new_v4(), &["-f"]).finish();
    assert_eq!(code, Some(5));
    assert!(errors.contains("is unknown here") && errors.lines().count() == 1, "{errors}");
    let (code, _, errors) = heft(&["job", "logs", "-l", &scene.leader.addr(), "no-id"]);
    assert_eq!(code, Some(2), "{errors}");
}

#[tokio::test]
async fn a_leader_that_knows_no_follow_is_exit_code_three() {
    let older = leader::FakeLeader::start().await;
    let script = async {
        let mut peer = older.accept().await;
        peer.welcome_with(Features::ASK).await;
        while peer.poll().await.is_some() {}
    };
    let mut logs = tokio::process::Command::from(command(&older.address, Uuid::new_v4(), &["-f"]));
    let (output, ()) = tokio::join!(async { logs.output().await.unwrap() }, script);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(3));
    assert!(errors.contains("does not support `follow`"), "{errors}");
}

#[test]
fn a_follow_rides_out_a_leader_that_is_killed_and_started_again() {
    let data = TempDir::new();
    let leader = Leader::start(&["--data", data.text()]);
    let client = Raw::client(&leader, "c");
    let mut scene = Scene { leader, client, gate: Gate::new() };
    let _worker = scene.worker(&[]);
    let job = scene.submit("lines", &["4", "0"]);
    let mut logs = scene.logs(job, &["-f"]);
    scene.gate.go(1);
    logs.wait_for("out 1");
    let port = scene.leader.port;
    for number in [2, 3] {
        scene.leader.proc.kill();
        // It is printed while there is no leader.
        scene.gate.go(number);
        logs.wait_for_error("heft: no connection to ");
        scene.leader = Leader::start_on(port, &["--data", data.text()]);
        logs.wait_for(&format!("out {number}"));
    }
    // What it prints last, and how it ends, has to come from its result.
    scene.leader.proc.kill();
    scene.gate.go(4);
    scene.gate.go("end");
    logs.wait_for_error("heft: no connection to ");
    scene.leader = Leader::start_on(port, &["--data", data.text()]);
    let (code, printed, errors) = logs.finish();
    assert_eq!((code, printed), (Some(0), lines("out", 4)), "{errors}");
    let printed: Vec<&str> = errors.lines().filter(|line| line.starts_with("err")).collect();
    assert_eq!(printed, lines("err", 4));
}

#[test]
fn the_job_of_a_killed_worker_is_followed_at_the_next_from_the_start() {
    let mut scene = Scene::new(&["--worker-grace", "100ms"]);
    let mut first = scene.worker(&["--name", "worker-1"]);
    let job = scene.submit("lines", &["2", "0"]);
    let mut logs = scene.logs(job, &["-f"]);
    scene.gate.go(1);
    logs.wait_for("out 1");
    first.proc.kill();
    let _second = scene.worker(&["--name", "worker-2"]);
    logs.wait_for_error("heft: attempt 2 on worker-2 begins; its output follows from the start\n");
    logs.wait_for("out 1");
    scene.gate.go(2);
    logs.wait_for("out 2");
    scene.gate.go("end");
    let (code, printed, errors) = logs.finish();
    assert_eq!((code, printed), (Some(0), vec!["out 1".into(), "out 1".into(), "out 2".into()]));
    assert_eq!(errors.matches("begins; its output follows").count(), 1, "{errors}");
    let (code, printed, _) = scene.logs(job, &[]).finish();
    assert_eq!((code, printed), (Some(0), lines("out", 2)));
}

#[test]
fn a_killed_follower_is_nobodys_loss() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&[]);
    let job = scene.submit("lines", &["2", "0"]);
    let mut killed = scene.logs(job, &["-f"]);
    scene.gate.go(1);
    killed.wait_for("out 1");
    killed.proc.kill();
    let mut logs = scene.logs(job, &["-f"]);
    logs.wait_for("out 1");
    scene.gate.go(2);
    logs.wait_for("out 2");
    scene.gate.go("end");
    let (code, printed, _) = logs.finish();
    assert_eq!((code, printed), (Some(0), lines("out", 2)));
    scene.ends(job);
    assert_eq!(scene.status_of(job), "OK");
}

#[test]
fn a_reader_that_leaves_ends_the_command_as_others() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&[]);
    let job = scene.submit("lines", &["3", "0"]);
    scene.begins();
    let mut command = command(&scene.leader.addr(), job, &["-f", "--stdout"]);
    let mut logs = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(logs.stdout.take().unwrap());
    scene.gate.go(1);
    let mut line = String::new();
    stdout.read_line(&mut line).unwrap();
    assert_eq!(line, "out 1\n");
    drop(stdout);
    scene.gate.go(2);
    let output = logs.wait_with_output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), errors.as_ref()), (Some(141), ""));
    [3.to_string(), "end".to_owned()].iter().for_each(|step| scene.gate.go(step));
    scene.ends(job);
}

/// `heft job logs -f --stdout` into a file.
struct IntoFile {
    child: Child,
    file: PathBuf,
    _dir: TempDir,
}

impl IntoFile {
    fn start(scene: &Scene, job: Uuid) -> Self {
        let dir = TempDir::new();
        let file = dir.join("stdout");
        let mut command = command(&scene.leader.addr(), job, &["-f", "--stdout"]);
        let child = command.stdout(File::create(&file).unwrap()).stderr(Stdio::piped()).spawn();
        IntoFile { child: child.unwrap(), file, _dir: dir }
    }

    fn bytes(&self) -> u64 {
        fs::metadata(&self.file).unwrap().len()
    }

    fn finish(mut self, expected: u64) {
        let status = self.child.wait().unwrap();
        let mut errors = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut errors).unwrap();
        assert_eq!((status.code(), self.bytes()), (Some(0), expected), "{errors}");
        let text = b"one line of a long, long output\n";
        let mut file = BufReader::with_capacity(1 << 16, File::open(&self.file).unwrap());
        let (mut line, mut left) = (Vec::new(), expected);
        while left > 0 {
            line.clear();
            let read = file.read_until(b'\n', &mut line).unwrap();
            assert_eq!(line, text[..read], "{left} bytes before the end");
            left -= read as u64;
        }
    }
}

impl Drop for IntoFile {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

#[test]
fn much_output_takes_no_more_memory_anywhere_than_little() {
    let mut scene = Scene::new(&[]);
    let worker = scene.worker(&["--output-max", "2GiB"]);
    let bytes = u64::from(scaled(64, 1024)) * MIB;
    let job = scene.submit("much", &[&bytes.to_string()]);
    let (leader, worker) = (scene.leader.proc.pid(), worker.proc.pid());
    let before = [leader, worker].map(|pid| resident(pid, "VmRSS"));
    let logs = IntoFile::start(&scene, job);
    let mut came = 0;
    while came < bytes {
        eventually("more comes while the program runs", || logs.bytes() > came);
        came = logs.bytes();
    }
    assert!(scene.gate.has("printed"));
    assert_eq!(scene.status_of(job), "", "it has not ended");
    let taken = [leader, worker].map(|pid| resident(pid, "VmHWM"));
    for (who, (taken, before)) in ["leader", "worker"].iter().zip(taken.into_iter().zip(before)) {
        let grown = taken.saturating_sub(before) / MIB;
        assert!(grown < 24, "the {who} took {grown} MiB more");
    }
    let taken = resident(logs.child.id(), "VmHWM") / MIB;
    assert!(taken < 64, "the follower took {taken} MiB");
    scene.gate.go("end");
    logs.finish(bytes);
}

#[test]
fn a_follower_that_is_stopped_slows_nobody_down_and_has_all_of_it_in_the_end() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&[]);
    let bytes = 64 * MIB;
    let job = scene.submit("much", &[&bytes.to_string()]);
    let logs = IntoFile::start(&scene, job);
    eventually("it begins", || logs.bytes() > 0);
    signal(logs.child.id(), "-STOP");
    let before = resident(scene.leader.proc.pid(), "VmRSS");
    eventually("the program prints all of it", || scene.gate.has("printed"));
    let grown = resident(scene.leader.proc.pid(), "VmHWM").saturating_sub(before) / MIB;
    assert!(grown < 24, "the leader took {grown} MiB more for what nobody reads");
    scene.gate.go("end");
    scene.ends(job);
    assert_eq!(scene.status_of(job), "OK");
    signal(logs.child.id(), "-CONT");
    logs.finish(bytes);
}

#[test]
fn what_is_beyond_all_that_is_kept_is_said_to_be_lost_and_exit_code_one() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&["--stdout-max", "1KiB", "--output-max", "2KiB"]);
    let job = scene.submit("much", &["10000"]);
    eventually("it is printed", || scene.gate.has("printed"));
    let logs = scene.logs(job, &["-f", "--stdout"]);
    eventually("what is kept comes", || {
        let (code, printed, _) = scene.logs(job, &["--stdout"]).finish();
        code == Some(0) && size_of(&printed) == 2_048
    });
    scene.gate.go("end");
    let (code, printed, errors) = logs.finish();
    assert_eq!((code, size_of(&printed)), (Some(1), 2_048));
    assert!(errors.contains("heft: 7952 bytes of stdout are lost"), "{errors}");
}

#[test]
fn the_output_of_a_classic_workers_job_comes_with_its_result() {
    let mut scene = Scene::new(&[]);
    let _worker = classic_worker(scene.leader.port, &["job.assign.*"]);
    let job = Uuid::new_v4();
    scene.client.submit(job, "hang", &[]);
    scene.is_taken(job);
    let told = |scene: &Scene| scene.logs(job, &[]).finish();
    eventually("it runs", || told(&scene).0 == Some(1));
    let (_, printed, errors) = told(&scene);
    assert!(printed.is_empty());
    assert!(
        errors.contains("is a classic worker: the job's output comes with its result"),
        "{errors}"
    );
    let logs = scene.logs(job, &["-f"]);
    logs.wait_for_error("is a classic worker");
    assert_eq!(heft(&["cancel", &scene.leader.addr(), &job.to_string()]).0, Some(0));
    let (code, _, errors) = logs.finish();
    assert_eq!(code, Some(0));
    assert!(errors.contains("heft: cancelled by"), "{errors}");

    let job = Uuid::new_v4();
    scene.client.submit(job, "prints", &["3", "2", "0"]);
    scene.ends(job);
    let (code, out, err) =
        heft(&["job", "logs", "-l", &scene.leader.addr(), &job.to_string(), "-f"]);
    let stored = heft(&["result", "get", &scene.leader.addr(), &job.to_string()]);
    assert_eq!((code, &out, &err), (Some(0), &stored.1, &stored.2));
    assert_eq!(out.matches('\n').count(), 3, "{out:?}");
}

#[test]
fn a_cancelled_job_says_so_behind_what_it_printed() {
    let mut scene = Scene::new(&[]);
    let _worker = scene.worker(&[]);
    let job = scene.submit("lines", &["2", "0"]);
    scene.begins();
    let mut logs = scene.logs(job, &["-f"]);
    scene.gate.go(1);
    logs.wait_for("out 1");
    assert_eq!(heft(&["cancel", &scene.leader.addr(), &job.to_string()]).0, Some(0));
    let (code, printed, errors) = logs.finish();
    assert_eq!((code, printed), (Some(0), lines("out", 1)), "{errors}");
    assert!(errors.contains("heft: cancelled by") && errors.starts_with("err 1\n"), "{errors}");
}
