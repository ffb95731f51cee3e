//! Classic workers and clients of every generation at our leader: the conformance list at the end
//! of SPEC, a test each.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use procs::{Leader, TempDir, classic, classic_client, classic_worker};
use serde_json::{Value, json};

fn results(client: procs::Proc) -> Vec<Value> {
    let (code, lines) = client.finish();
    assert_eq!(code, Some(0), "the client got all of its results: {lines:#?}");
    let events = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    events.filter(|event| event["event"] == "result").collect()
}

fn one_result(leader: &Leader, job: Value) -> Value {
    let mut found = results(classic_client(leader.port, "clientA", &[], &[job]));
    assert_eq!(found.len(), 1, "{found:#?}");
    found.remove(0)
}

#[test]
fn a_classic_worker_says_hello_offers_four_and_runs_jobs_to_their_results() {
    let leader = Leader::start(&[]);
    let _worker = classic_worker(leader.port, &["job.assign.*"]);
    let ok = one_result(
        &leader,
        json!({"exec": "echo", "args": ["a", "b c"], "files": [{"name": "in.txt", "content_b64": "aGk="}]}),
    );
    assert_eq!((&ok["status"], &ok["exec"]), (&json!("OK"), &json!("echo")));
    assert!(ok["stdout"].as_str().unwrap().starts_with("a b c\nin.txt "), "{ok}");
    assert_eq!((&ok["archive_b64"], &ok["first"]), (&Value::Null, &json!(true)));
    assert!(
        ok["stderr"].as_str().unwrap().contains("zip error"),
        "WX11: the archive is null on Linux: {ok}"
    );

    let failed = one_result(&leader, json!({"exec": "fail"}));
    assert_eq!(failed["status"], "FAILED");
    let code = one_result(&leader, json!({"exec": "exit3"}));
    assert_eq!(code["status"], "FAILED");
}

#[test]
fn the_founding_client_gets_its_three_results() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    let port = leader.port.to_string();
    let found = results(classic("client.py", &["127.0.0.1", &port, "clientA", "8"]));
    assert_eq!(found.len(), 3);
    assert!(
        found.iter().all(|result| result["status"] == "OK" && result["exec"] == "calcA"),
        "{found:#?}"
    );
    let assigned = worker.event("assigned");
    let subject = assigned["subject"].as_str().unwrap();
    assert!(subject.starts_with("job.assign.calcA."), "T02: {subject}");
    let result_subject = found[0]["subject"].as_str().unwrap();
    assert!(result_subject.starts_with("job.result.clientA."), "T05: {result_subject}");
    assert_eq!(found[0]["msg_id"], found[0]["corr_id"], "T05");
}

#[test]
fn c17_a_duplicate_never_becomes_a_result() {
    let leader = Leader::start(&[]);
    let mut liar = classic_worker(leader.port, &["job.assign.*"]);
    let mut client = classic_client(leader.port, "clientA", &[], &[json!({"exec": "duplicate"})]);
    liar.event("assigned");
    // Only this worker is there, so the job is dead, and the client hears why.
    let result = client.event("result");
    assert_eq!(result["status"], "FAILED");
    assert!(result["stderr"].as_str().unwrap().contains("result lost at worker"), "{result}");
    assert!(result["payload_b64"].as_str().is_some());
}

#[test]
fn w05_an_assignment_of_exactly_four_mebibytes_is_sent_and_one_more_never_is() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    // The assign subject is longer than the submit subject by `assign` - `submit` (0) + "." + 36 of
    // the worker's id. The behaviour says nothing of its arguments, which are the padding.
    let fits = 4_194_304 - 37;
    let exact = one_result(&leader, json!({"exec": "cache", "body_bytes": fits}));
    assert_eq!(exact["status"], "OK");
    assert_eq!(worker.event("assigned")["body_bytes"], 4_194_304);
    let over = one_result(&leader, json!({"exec": "cache", "body_bytes": fits + 1}));
    assert_eq!(over["status"], "FAILED");
    let why = over["stderr"].as_str().unwrap();
    assert!(why.contains("4194305") && why.contains("4194304"), "{why}");
    // The worker is still there and well.
    assert_eq!(one_result(&leader, json!({"exec": "echo"}))["status"], "OK");
}

#[test]
fn a_worker_killed_in_the_middle_of_a_job_costs_a_requeue_and_no_job() {
    let leader = Leader::start(&[]);
    let mut first = classic_worker(leader.port, &["job.assign.*", "--max-par", "1"]);
    let mut client = classic_client(leader.port, "clientA", &[], &[json!({"exec": "hang"})]);
    let job = first.event("assigned")["job_id"].clone();
    first.kill();
    let mut second = classic_worker(leader.port, &["job.assign.*", "--exec", "hang=echo"]);
    // The first may run it still, in the directory that both would use for one id.
    let again = second.event("assigned");
    assert_ne!(again["job_id"], job);
    assert_eq!(again["json_job_id"], again["job_id"]);
    let result = client.event("result");
    assert_eq!(
        (&result["status"], &result["job_id"], &result["corr_id"]),
        (&json!("OK"), &job, &job),
        "{result}"
    );
}

#[test]
fn a_second_attempts_large_result_comes_under_the_id_of_its_job() {
    let leader = Leader::start(&[]);
    let mut first =
        classic_worker(leader.port, &["job.assign.*", "--max-par", "1", "--exec", "big=hang"]);
    let args = ["submit", &leader.addr(), "big", "--output", "json", "--", "5000000"];
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    let submit = procs::Proc::start("heft submit", command.args(args));
    let job = first.event("assigned")["job_id"].clone();
    first.kill();
    let mut second = classic_worker(leader.port, &["job.assign.*"]);
    assert_ne!(second.event("assigned")["job_id"], job);
    let (code, lines) = submit.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    let result: Value = serde_json::from_str(&lines.concat()).unwrap_or_default();
    let text = result.to_string();
    assert!(text.contains(job.as_str().unwrap()), "{}", text.chars().take(500).collect::<String>());
    let (code, stdout, _) = procs::heft(&["result", "get", &leader.addr(), job.as_str().unwrap()]);
    assert!(code == Some(0) && stdout.len() > 4_999_000, "{code:?}, {} bytes", stdout.len());
}

#[test]
fn m15_missing_lists_are_never_sent() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    assert_eq!(one_result(&leader, json!({"exec": "echo"}))["status"], "OK");
    let assigned = worker.event("assigned");
    assert_eq!(assigned["args"], json!([]), "M15");
    assert_eq!(assigned["files"], json!([]), "M15");
}

#[test]
fn names_outside_ascii_and_output_that_is_no_utf8_pass_through() {
    let leader = Leader::start(&[]);
    let _worker = classic_worker(leader.port, &["job.assign.*", "--exec", "計算=echo"]);
    let named = one_result(
        &leader,
        json!({"exec": "計算", "args": ["é<>&'\"+`😀"], "files": [{"name": "データ.txt", "content_b64": ""}]}),
    );
    assert_eq!(named["status"], "OK", "{named}");
    assert!(named["stdout"].as_str().unwrap().contains("é<>&'\"+`😀"), "{named}");
    let bad = one_result(&leader, json!({"exec": "badutf8"}));
    assert!(bad["stdout"].as_str().unwrap().contains('\u{fffd}'), "{bad}");
}

#[test]
fn cp04_a_clients_cap_holds_and_others_are_served_beside_it() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*", "--max-par", "8"]);
    let jobs: Vec<Value> = (0..6).map(|_| json!({"exec": "sleep", "args": ["0.05"]})).collect();
    let capped = classic_client(leader.port, "capped", &["2"], &jobs);
    assert_eq!(results(capped).len(), 6);
    for _ in 0..6 {
        let outstanding = worker.event("assigned")["outstanding"].as_u64().unwrap();
        assert!(outstanding <= 2, "{outstanding} of one client at a time");
    }
}

#[test]
fn m17_the_job_id_in_the_request_rules_and_answers_carry_it_as_both() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    let (job, msg) =
        ("11111111-2222-3333-4444-555555555555", "99999999-8888-7777-6666-555555555555");
    let result = one_result(&leader, json!({"exec": "echo", "job_id": job, "msg_id": msg}));
    assert_eq!((&result["msg_id"], &result["corr_id"]), (&json!(job), &json!(job)));
    assert_eq!(worker.event("assigned")["msg_id"], job);
}

#[test]
fn c03_minimal_workers_and_clients_are_served_in_their_own_layout() {
    for generation in ["f0", "f1"] {
        let leader = Leader::start(&[]);
        let mut worker = classic_worker(leader.port, &["--generation", generation]);
        let jobs: Vec<Value> = (0..3).map(|job| json!({"text": format!("job-{job}")})).collect();
        let client =
            classic_client(leader.port, "", &["--generation", generation, "--no-wait"], &jobs);
        assert_eq!(client.finish().0, Some(0), "{generation}");
        for _ in 0..3 {
            worker.event("acked");
        }
    }
}

#[test]
fn s02_a_group_job_reaches_a_worker_of_that_group_only() {
    let leader = Leader::start(&[]);
    let mut in_group = classic_worker(leader.port, &["groupA"]);
    let mut other = classic_worker(leader.port, &["groupB"]);
    assert_eq!(one_result(&leader, json!({"exec": "echo", "subject": "groupA"}))["status"], "OK");
    in_group.event("assigned");
    assert_eq!(
        one_result(&leader, json!({"exec": "echo", "subject": "job.submit.groupB"}))["status"],
        "OK"
    );
    assert_eq!(other.event("assigned")["exec"], "echo");
}

#[test]
fn s07_a_direct_subject_reaches_only_the_worker_that_matches() {
    let leader = Leader::start(&[]);
    let mut wanted = classic_worker(leader.port, &["job.assign.A.*"]);
    let _other = classic_worker(leader.port, &["job.assign.B.>"]);
    assert_eq!(
        one_result(&leader, json!({"exec": "echo", "subject": "job.assign.A.1"}))["status"],
        "OK"
    );
    wanted.event("assigned");
}

#[test]
fn the_leader_lets_running_jobs_end_when_it_is_told_to_stop() {
    let leader = Leader::start(&[]);
    let mut worker = classic_worker(leader.port, &["job.assign.*"]);
    let mut client =
        classic_client(leader.port, "clientA", &[], &[json!({"exec": "sleep", "args": ["0.5"]})]);
    worker.event("assigned");
    leader.proc.terminate();
    assert_eq!(client.event("result")["status"], "OK");
    assert_eq!(leader.proc.finish().0, Some(0));
}

#[test]
fn c33_beyond_this_machine_the_leader_wants_to_be_told_twice() {
    let dir = TempDir::new();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    let output =
        command.args(["leader", "0", "--listen", "0.0.0.0"]).current_dir(&dir.0).output().unwrap();
    assert!(!output.status.success());
    assert!(String::from_utf8_lossy(&output.stderr).contains("--insecure"));
}

#[test]
fn c02_a_cached_input_of_our_client_reaches_a_classic_worker_by_its_path() {
    use heft::client::{Client, Options};
    use heft::model::{InputFile, JobRequest, JobStatus};
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    std::fs::create_dir_all(cache.join("dataset-1")).unwrap();
    std::fs::write(cache.join("dataset-1/a.bin"), "from the cache").unwrap();
    let mut worker = classic_worker(leader.port, &["job.assign.*", "--cache-dir", cache.text()]);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let result = runtime.block_on(async {
        let client = Client::connect(&leader.addr(), &Options::new("ours")).await.unwrap();
        let files = vec![InputFile::cached("a.bin", "dataset-1")];
        let request = JobRequest {
            job_id: uuid::Uuid::new_v4(),
            exec_name: "cache".into(),
            files,
            ..JobRequest::default()
        };
        client.submit(request).await.unwrap().wait().await.unwrap()
    });
    assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
    assert!(result.stdout.starts_with("a.bin 14 "), "{}", result.stdout);
    assert_eq!(worker.event("assigned")["files"][0]["cache_id"], "dataset-1/a.bin");
    // A classic client's CacheId is a flat file, and stays as it is.
    std::fs::write(cache.join("flat.bin"), "flat").unwrap();
    let flat = one_result(
        &leader,
        json!({"exec": "cache", "files": [{"name": "b.bin", "cache_id": "flat.bin"}]}),
    );
    assert_eq!(flat["status"], "OK", "{flat}");
    assert_eq!(worker.event("assigned")["files"][0]["cache_id"], "flat.bin");
}

#[test]
fn wx02_what_a_classic_worker_on_the_same_host_has_in_its_job_directory_is_left_alone() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let (job, work_dir, exe) = (uuid::Uuid::new_v4(), dir.join("jobs"), dir.join("exe"));
    // A classic worker runs this job, and holds no lock. The job is requeued, as after a pause of
    // its connection.
    let classic = work_dir.join(job.simple().to_string());
    std::fs::create_dir_all(&classic).unwrap();
    std::fs::write(classic.join("input"), "in use").unwrap();
    std::fs::create_dir_all(&exe).unwrap();
    procs::write_program(&exe.join("lists"), "pwd; ls");
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", &leader.port.to_string(), "--work-dir"]).arg(&work_dir);
    command.arg("--exe-dir").arg(&exe).arg("--cache-dir").arg(dir.join("cache"));
    let _worker = procs::Proc::start("heft worker", &mut command);
    let result = one_result(&leader, json!({"exec": "lists", "job_id": job.to_string()}));
    assert_eq!(result["status"], "OK", "{result}");
    assert_eq!(std::fs::read_to_string(classic.join("input")).ok().as_deref(), Some("in use"));
    let own = work_dir.canonicalize().unwrap().join("heft").join(job.simple().to_string());
    assert_eq!(
        result["stdout"],
        format!("{}\n", own.display()),
        "in an empty directory of its own"
    );
    let until = std::time::Instant::now() + procs::PATIENCE;
    while own.exists() {
        assert!(std::time::Instant::now() < until, "{} is not removed", own.display());
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(
        std::fs::read_dir(&classic).unwrap().count(),
        1,
        "nor when the job's own directory goes"
    );
}

#[test]
fn pe08_a_job_that_a_classic_worker_had_when_the_leader_was_killed_runs_again_at_once() {
    let data = TempDir::new();
    // Nobody waits for an hour: what is to happen happens because the worker is known not to come
    // back.
    let args = ["--lease", "1h", "--worker-grace", "1h", "--data", data.text()];
    let mut leader = Leader::start(&args);
    let (port, addr) = (leader.port, leader.addr());
    let mut first =
        classic_worker(port, &["job.assign.*", "--max-par", "1", "--exec", "slow=hang"]);
    let submit = |text: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_heft"));
        procs::Proc::start("heft submit", command.args(["submit", &addr, "slow", "--", text]))
    };
    let one = submit("one");
    first.event("assigned");
    let two = submit("two");
    // That the second is taken is on the disk, and so is all that was before it.
    let queued = || {
        let status: Value =
            serde_json::from_str(&procs::heft(&["status", &addr, "--output", "json"]).1).unwrap();
        status["jobs"]["queued"] == 1
    };
    let until = std::time::Instant::now() + procs::PATIENCE;
    while !queued() {
        assert!(std::time::Instant::now() < until, "the second job is not taken");
    }
    leader.proc.kill();
    let _second_life = Leader::start_on(port, &args);
    let _second = classic_worker(port, &["job.assign.*", "--exec", "slow=echo"]);
    for (submit, said) in [(one, "one"), (two, "two")] {
        let (code, lines) = submit.finish();
        assert_eq!(code, Some(0), "{lines:#?}");
        assert!(lines.iter().any(|line| line == said), "{lines:#?}");
    }
}
