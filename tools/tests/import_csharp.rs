//! `heft-tools import csharp`: from files as the C# system leaves them to a directory that a leader
//! opens.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

mod support;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use heft::core::ids::JobId;
use heft::core::job::{Job, Phase};
use heft::core::record::AttemptEnd;
use heft::model::{InputFile, JobRequest, JsonModel};
use heft::store::Opened;
use support::{Ran, id, open, request_of, tool};
use tempfile::TempDir;
use uuid::Uuid;

/// A `state` directory in the making.
struct State {
    dir: TempDir,
    log: String,
}

/// The wire's JSON of a job, which is what that system keeps of it.
fn request(number: u128) -> Vec<u8> {
    let mut request =
        JobRequest { job_id: id(number), exec_name: "calcA".to_owned(), ..JobRequest::default() };
    request.client_id = "alice".to_owned();
    request.args = vec![format!("--seed={number}")];
    request.files = vec![InputFile::inline("input.txt", format!("hello-{number}"))];
    request.to_json()
}

fn job(number: u128) -> String {
    let payload = STANDARD.encode(request(number));
    format!(
        r#"{{"jobId":"{}","clientId":"alice","execName":"calcA","rawPayload":"{payload}"}}"#,
        id(number)
    )
}

fn at(second: u32) -> String {
    format!("2025-10-19T12:{:02}:{:02}.1234567Z", second / 60, second % 60)
}

impl State {
    fn new() -> Self {
        State { dir: tempfile::tempdir().unwrap(), log: String::new() }
    }

    fn line(&mut self, line: &str) -> &mut Self {
        writeln!(self.log, "{line}").unwrap();
        self
    }

    fn enqueue(&mut self, number: u128, second: u32) -> &mut Self {
        self.line(&format!(r#"{{"type":"enqueue","at":"{}","job":{}}}"#, at(second), job(number)))
    }

    fn assign(&mut self, number: u128, second: u32, attempt: u32) -> &mut Self {
        let (job, worker, at) = (id(number), id(0xAA), at(second));
        self.line(&format!(
            r#"{{"type":"assign","at":"{at}","jobId":"{job}","workerId":"{worker}","attempt":{attempt}}}"#
        ))
    }

    fn ack(&mut self, number: u128, second: u32) -> &mut Self {
        self.line(&format!(
            r#"{{"type":"ack","at":"{}","jobId":"{}","clientId":"alice"}}"#,
            at(second),
            id(number)
        ))
    }

    fn of_job(&mut self, kind: &str, number: u128, second: u32) -> &mut Self {
        let (at, job) = (at(second), id(number));
        self.line(&format!(
            r#"{{"type":"{kind}","at":"{at}","jobId":"{job}","attempt":1,"workerId":"{}"}}"#,
            id(0xAA)
        ))
    }

    /// A snapshot of that second.
    fn snapshot(&self, second: u32, text: &str) -> PathBuf {
        let dir = self.dir.path().join("snapshots");
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("state-20251019-12{:02}{:02}.json", second / 60, second % 60));
        std::fs::write(&path, text).unwrap();
        path
    }

    fn data(&self) -> PathBuf {
        self.dir.path().join("heft-data")
    }

    fn import(&self, more: &[&str]) -> Ran {
        std::fs::write(self.dir.path().join("events.log"), &self.log).unwrap();
        let data = self.data();
        let args = [
            "import",
            "csharp",
            self.dir.path().to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
        ];
        tool(&[&args[..], more].concat())
    }

    /// Imports, and opens what was made as a leader does.
    fn imported(&self) -> (Ran, Opened) {
        let ran = self.import(&[]);
        assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
        let verified = tool(&["log", "verify", self.data().to_str().unwrap()]);
        assert_eq!(verified.code, 0, "{}", verified.out);
        (ran, open(&self.data(), 0))
    }
}

/// The jobs, in the order in which they would be given out.
fn jobs(opened: &Opened) -> Vec<(Uuid, &Job)> {
    let mut jobs: Vec<&Job> = opened.replay.state.jobs().collect();
    jobs.sort_by_key(|job| job.seq);
    jobs.into_iter().map(|job| (job.id().0, job)).collect()
}

fn ids(opened: &Opened) -> Vec<Uuid> {
    jobs(opened).into_iter().map(|(id, _)| id).collect()
}

#[test]
fn c29_pe06_queues_inflight_dlq_and_caps_open_in_heft() {
    let mut state = State::new();
    // Everything up to here is in the snapshot, or over.
    for number in 1..=5 {
        state.enqueue(number, 10);
    }
    state.assign(1, 11, 1).ack(1, 12).assign(2, 13, 3).of_job("dlq", 3, 14);
    state.snapshot(
        60,
        &format!(
            r#"{{"queues":{{"calcA":[{},{}]}},"inflight":{{"{}":{{"job":{},"ownerWorker":"{}","dueAt":"{}","timeout":"00:00:04.1234567","attempt":3}}}},"dlq":[{}],"clientCap":{{"alice":7,"bob":2}},"clientInflight":{{"alice":1}}}}"#,
            job(4),
            job(5),
            id(2),
            job(2),
            id(0xAA),
            at(70),
            job(3)
        ),
    );
    state.enqueue(6, 61).enqueue(7, 62).assign(6, 63, 1).ack(4, 64).assign(7, 65, 1).of_job(
        "worker_down_requeue",
        7,
        66,
    );
    let (ran, mut opened) = state.imported();
    assert_eq!(ids(&opened), [2, 5, 3, 6, 7].map(id), "{}", ran.out);
    let all = jobs(&opened);
    for (number, queued) in [(0, true), (1, true), (2, false), (3, true), (4, true)] {
        assert_eq!(
            matches!(all[number].1.phase, Phase::Queued { .. }),
            queued,
            "{:?}",
            all[number]
        );
    }
    let ran_before = all[0].1;
    assert_eq!(
        (ran_before.attempt.0, ran_before.spent),
        (3, 0),
        "that its leader went away does not count"
    );
    assert_eq!(
        (ran_before.history[0].worker.0, ran_before.history[0].why),
        (id(0xAA), AttemptEnd::WorkerLost)
    );
    assert!(matches!(all[2].1.phase, Phase::Dead { why: AttemptEnd::TimedOut, .. }));
    let dead: Vec<Uuid> = opened.replay.state.dead().map(|job| job.id().0).collect();
    assert_eq!(dead, [id(3)]);
    for (_, job) in &all {
        assert_eq!(
            (
                job.submission.client.to_string().as_str(),
                &*job.submission.exec,
                job.submission.key.as_str()
            ),
            ("alice", "calcA", "job.assign.calcA")
        );
    }
    let caps: Vec<(String, u32)> =
        opened.replay.state.caps().map(|(client, cap)| (client.to_string(), cap)).collect();
    assert_eq!(caps, [("alice".to_owned(), 7), ("bob".to_owned(), 2)]);
    for number in [2, 3, 5, 6, 7] {
        assert_eq!(request_of(&mut opened, id(number)), request(number));
    }
    assert!(opened.replay.inputs.values().all(|held| !held.from_ours && held.blobs.is_empty()));
    for text in [
        "jobs that wait                         2",
        "run again           2",
        "dead jobs                              1",
        "client caps                            2",
        "left out                               0",
        "jobs that were acknowledged there: 2;",
    ] {
        assert!(ran.out.contains(text), "{text} is not in\n{}", ran.out);
    }
}

#[test]
fn pe10_what_is_older_than_the_snapshot_and_not_in_it_is_over() {
    let mut state = State::new();
    state.enqueue(1, 1).assign(1, 2, 1).enqueue(2, 3).assign(2, 4, 1).of_job(
        "timeout_requeue",
        2,
        5,
    );
    state
        .snapshot(60, r#"{"queues":{},"inflight":{},"dlq":[],"clientCap":{},"clientInflight":{}}"#);
    state.enqueue(3, 61);
    let (ran, opened) = state.imported();
    assert_eq!(ids(&opened), [id(3)], "{}", ran.out);
    assert!(ran.out.contains("others that were over before the snapshot: 2"), "{}", ran.out);
}

#[test]
fn pe10_an_ack_or_dlq_ends_a_job_that_the_snapshot_has() {
    let mut state = State::new();
    state.enqueue(1, 1).enqueue(2, 1).enqueue(3, 1).ack(1, 2).of_job("dlq", 2, 2);
    let queues = format!(r#"{{"queues":{{"calcA":[{},{},{}]}}}}"#, job(1), job(2), job(3));
    state.snapshot(60, &queues);
    let (_, opened) = state.imported();
    assert_eq!(ids(&opened), [id(2), id(3)]);
    assert_eq!(opened.replay.state.dead().count(), 1);
}

#[test]
fn pe10_a_torn_last_line_is_left_out_with_a_warning() {
    let mut state = State::new();
    state.enqueue(1, 1).enqueue(2, 2);
    let whole = state.log.len();
    state.enqueue(3, 3);
    state.log.truncate(whole + 100);
    let (ran, opened) = state.imported();
    assert_eq!(ids(&opened), [id(1), id(2)]);
    assert!(ran.err.contains("its last line, 3, is torn"), "{}", ran.err);
    assert!(ran.out.contains("1 x a last line of the log that is torn: line 3"), "{}", ran.out);
}

#[test]
fn pe10_a_line_that_cannot_be_used_is_named_and_can_be_left_out() {
    let mut state = State::new();
    state.enqueue(1, 1);
    let offset = state.log.len();
    state.line(r#"{"type":"enqueue","at":"2025-10-"#).enqueue(2, 2);
    let ran = state.import(&[]);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains(&format!("from line 2 (offset {offset}) on: EOF while parsing")),
        "{}",
        ran.err
    );
    assert!(ran.err.contains("--skip-damaged"), "{}", ran.err);
    assert!(!state.data().exists(), "nothing half made is left");
    let ran = state.import(&["--skip-damaged"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("line 2"), "{}", ran.out);
    assert_eq!(ids(&open(&state.data(), 0)), [id(1), id(2)]);
}

#[test]
fn pe10_m16_names_are_taken_in_any_case_and_a_mark_at_the_start_is_passed_over() {
    let mut state = State::new();
    let other = job(1)
        .replace("jobId", "JobId")
        .replace("rawPayload", "RAWPAYLOAD")
        .replace("execName", "ExecName");
    state.log = "\u{feff}".to_owned();
    state.line(&format!(r#"{{"Type":"enqueue","At":"{}","Job":{other}}}"#, at(1)));
    let (_, mut opened) = state.imported();
    assert_eq!(ids(&opened), [id(1)]);
    assert_eq!(request_of(&mut opened, id(1)), request(1));
}

#[test]
fn pe10_what_a_faulty_recovery_left_without_data_is_taken_from_the_log() {
    let mut state = State::new();
    state.enqueue(1, 1);
    let broken =
        format!(r#"{{"jobId":"{}","clientId":null,"execName":null,"rawPayload":null}}"#, id(1));
    let lost =
        format!(r#"{{"jobId":"{}","clientId":null,"execName":null,"rawPayload":null}}"#, id(2));
    let empty = r#"{"jobId":"00000000-0000-0000-0000-000000000000","clientId":null,"execName":null,"rawPayload":null}"#;
    state.snapshot(60, &format!(r#"{{"queues":{{"":[{broken},{lost},{empty}]}}}}"#));
    let (ran, mut opened) = state.imported();
    assert_eq!(ids(&opened), [id(1)]);
    assert_eq!(request_of(&mut opened, id(1)), request(1));
    assert!(
        ran.out
            .contains("1 x it names no program (execName): 00000000-0000-0000-0000-000000000002"),
        "{}",
        ran.out
    );
}

#[test]
fn pe04_the_newest_snapshot_is_taken_and_half_of_one_is_not() {
    let mut state = State::new();
    state.enqueue(1, 1);
    state.snapshot(
        60,
        &format!(r#"{{"queues":{{"calcA":[{}]}},"clientCap":{{"alice":3}}}}"#, job(2)),
    );
    state.snapshot(30, r#"{"clientCap":{"alice":9}}"#);
    let torn = state.snapshot(90, r#"{"queues":{"calcA":[{"jobId":"#);
    std::fs::write(state.dir.path().join("snapshots/state-latest.json"), "{}").unwrap();
    let (ran, opened) = state.imported();
    assert_eq!(ids(&opened), [id(2)]);
    assert_eq!(opened.replay.state.cap(&"alice".into()), Some(3));
    assert!(
        ran.err.contains(&format!("{}: cannot be read; the one before it", torn.display())),
        "{}",
        ran.err
    );
}

#[test]
fn c29_a_directory_with_something_in_it_is_refused_and_a_dry_run_makes_none() {
    let mut state = State::new();
    state.enqueue(1, 1);
    let ran = state.import(&["--dry-run"]);
    assert_eq!(ran.code, 0);
    assert!(
        ran.out.contains("nothing was written (--dry-run)")
            && ran.out.contains("jobs that wait                         1")
    );
    assert!(!state.data().exists());
    std::fs::create_dir(state.data()).unwrap();
    std::fs::write(state.data().join("something"), b"x").unwrap();
    let ran = state.import(&[]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("is not empty: something is in it"), "{}", ran.err);
    std::fs::remove_file(state.data().join("something")).unwrap();
    // Empty is as good as not there.
    assert_eq!(state.import(&["--node", "3"]).code, 0);
    assert_eq!(ids(&open(&state.data(), 3)), [id(1)]);
    let again = state.import(&[]);
    assert_eq!(again.code, 2);
    std::fs::remove_dir_all(state.data()).unwrap();
    std::fs::create_dir_all(state.data().join("import/consensus")).unwrap();
    let ran = state.import(&[]);
    assert!(
        ran.code == 2 && ran.err.contains("the remains of an unfinished import"),
        "{}",
        ran.err
    );
}

#[test]
fn c29_a_directory_without_such_files_is_named() {
    let state = State::new();
    let empty = state.dir.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let data = state.data();
    let ran =
        tool(&["import", "csharp", empty.to_str().unwrap(), "--data", data.to_str().unwrap()]);
    assert_eq!(ran.code, 2);
    assert!(ran.err.contains("has neither events.log nor"), "{}", ran.err);
    assert!(!data.exists());
    assert_eq!(tool(&["import", "csharp", empty.to_str().unwrap()]).code, 2, "--data is needed");
}

#[test]
fn c29_a_clock_that_was_ahead_does_not_turn_the_leaders_forward() {
    let mut state = State::new();
    state.line(&format!(
        r#"{{"type":"enqueue","at":"9999-12-31T23:59:59.9999999Z","job":{}}}"#,
        job(1)
    ));
    state.line(&format!(r#"{{"type":"enqueue","at":"0001-01-01T00:00:00Z","job":{}}}"#, job(2)));
    let (_, opened) = state.imported();
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_micros();
    assert!(u128::from(opened.replay.latest.0) <= now);
    assert_eq!(ids(&opened), [id(1), id(2)]);
}

#[test]
fn c01_what_no_worker_could_be_sent_is_left_out_with_the_reason() {
    let mut state = State::new();
    let big = STANDARD.encode(vec![b'x'; 4 * 1024 * 1024]);
    state.line(&format!(
        r#"{{"type":"enqueue","at":"{}","job":{{"jobId":"{}","clientId":"a","execName":"calcA","rawPayload":"{big}"}}}}"#,
        at(1),
        id(1)
    ));
    let bad_key =
        format!(r#"{{"jobId":"{}","clientId":"a","execName":"*","rawPayload":"e30="}}"#, id(2));
    state.line(&format!(r#"{{"type":"enqueue","at":"{}","job":{bad_key}}}"#, at(2)));
    let bad_bytes =
        format!(r#"{{"jobId":"{}","clientId":"a","execName":"e","rawPayload":"e30"}}"#, id(3));
    state.line(&format!(r#"{{"type":"enqueue","at":"{}","job":{bad_bytes}}}"#, at(3)));
    let cap = r#"{"clientCap":{"zero":0,"less":-4,"alice":1}}"#;
    state.snapshot(0, cap);
    state.enqueue(4, 4);
    let (ran, opened) = state.imported();
    assert_eq!(ids(&opened), [id(4)]);
    for text in [
        "1 x too large: a job goes to a worker in a frame of at most 4194304 bytes",
        "1 x no worker can match it",
        "not base64",
        "2 x a cap that lets nothing run: zero (0), less (-4)",
        "left out                               5",
    ] {
        assert!(ran.out.contains(text), "{text} is not in\n{}", ran.out);
    }
}

#[test]
fn pe05_bytes_that_nobody_meant_end_with_an_error_or_an_import_and_never_otherwise() {
    let mut state = State::new();
    state.enqueue(1, 61).assign(1, 62, 1).enqueue(2, 63).ack(2, 64).of_job("dlq", 1, 65);
    let snapshot = format!(r#"{{"queues":{{"calcA":[{}]}},"clientCap":{{"alice":7}}}}"#, job(5));
    let (log, mut seed) = (state.log.clone(), 12345u64);
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    for round in 0..60 {
        let mutate = |text: &str, random: &mut dyn FnMut(usize) -> usize| {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..=random(3) {
                let at = random(bytes.len());
                match random(3) {
                    0 => bytes[at] = u8::try_from(random(256)).unwrap(),
                    1 => bytes.truncate(at.max(1)),
                    _ => {
                        let to = random(bytes.len());
                        let piece = bytes[at.min(to)..at.max(to)].to_vec();
                        bytes.splice(at..at, piece);
                    }
                }
            }
            bytes
        };
        std::fs::write(state.dir.path().join("events.log"), mutate(&log, &mut random)).unwrap();
        std::fs::write(state.snapshot(60, ""), mutate(&snapshot, &mut random)).unwrap();
        let data = state.data();
        let mut args = vec![
            "import",
            "csharp",
            state.dir.path().to_str().unwrap(),
            "--data",
            data.to_str().unwrap(),
        ];
        if round % 2 == 0 {
            args.push("--skip-damaged");
        }
        let ran = tool(&args);
        assert!(matches!(ran.code, 0 | 1), "{}{}", ran.out, ran.err);
        assert_eq!(data.exists(), ran.code == 0);
        if ran.code == 0 {
            check_opens(&data);
            std::fs::remove_dir_all(&data).unwrap();
        }
    }
}

fn check_opens(data: &Path) {
    let opened = open(data, 0);
    for job in opened.replay.state.jobs() {
        assert!(opened.replay.inputs.contains_key(&JobId(job.id().0)));
    }
}
