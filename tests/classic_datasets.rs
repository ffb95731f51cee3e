//! Datasets between classic peers and ours: a classic client's CachePut reaches our workers and
//! those classic workers that have the cache patch, and jobs find the files at each (T06, T07,
//! CA01-CA08, C02, C12, C18).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use procs::{ECHO, Leader, Proc, TempDir, Worker, agent, classic_client, classic_worker, heft};
use serde_json::{Value, json};

/// Runs a classic client to its end; gives its events of one name.
fn events(client: Proc, event: &str) -> Vec<Value> {
    let (code, lines) = client.finish();
    assert_eq!(code, Some(0), "the client got all its answers: {lines:#?}");
    let all = lines.iter().map(|line| serde_json::from_str::<Value>(line).unwrap());
    all.filter(|found| found["event"] == event).collect()
}

fn put_of(cache: &str, files: &[(&str, &str)], target: &str, acks: usize) -> Value {
    let entries: Vec<Value> = files
        .iter()
        .map(|(name, content)| json!({"name": name, "content_b64": base64(content)}))
        .collect();
    json!({"cache_put": {"cache_id": cache, "entries": entries, "target": target}, "acks": acks})
}

fn base64(text: &str) -> String {
    use heft::model::{InputFile, JsonModel};
    let file: Value = serde_json::from_slice(&InputFile::inline("x", text).to_json()).unwrap();
    file["Content"].as_str().unwrap().to_owned()
}

/// The answers to a put, as (status, message).
fn acks(leader: &Leader, put: Value) -> Vec<(String, String)> {
    let text = |ack: &Value, member: &str| ack[member].as_str().unwrap().to_owned();
    let found = events(classic_client(leader.port, "putter", &[], &[put]), "cache_ack");
    assert!(found.iter().all(|ack| ack["known"] == true), "{found:#?}");
    found.iter().map(|ack| (text(ack, "status"), text(ack, "message"))).collect()
}

fn ack(leader: &Leader, put: Value) -> (String, String) {
    let mut found = acks(leader, put);
    assert_eq!(found.len(), 1, "{found:?}");
    found.remove(0)
}

fn added(count: usize) -> (String, String) {
    ("OK".to_owned(), format!("added={count}"))
}

fn job(exec: &str, files: &[(&str, &str)]) -> Value {
    let files: Vec<Value> =
        files.iter().map(|(name, cache)| json!({"name": name, "cache_id": cache})).collect();
    json!({"exec": exec, "files": files})
}

fn result_of(leader: &Leader, job: Value) -> Value {
    events(classic_client(leader.port, "runner", &[], &[job]), "result").remove(0)
}

/// Waits until so many workers are there.
fn workers(leader: &Leader, count: usize) {
    while heft(&["status", &leader.addr(), "--output", "json"]).1.matches("\"patterns\"").count()
        < count
    {}
}

fn sha256(text: &str) -> String {
    chunking::digest::to_hex(&chunking::dataset::sha256(text.as_bytes()))
}

#[test]
fn ca05_a_classic_clients_put_is_answered_by_each_worker_and_jobs_find_its_files() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let mut patched = classic_worker(
        leader.port,
        &[
            "job.assign.classic",
            "--exec",
            "classic=echo",
            "--cache-patch",
            "--cache-dir",
            cache.text(),
        ],
    );
    let _ours = Worker::start(leader.port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 2);
    let first = put_of("set-1", &[("a.bin", "one"), ("b.bin", "two")], "job.assign.*", 2);
    assert_eq!(acks(&leader, first.clone()), [added(2), added(2)]);
    let nothing = patched.event("put");
    assert_eq!(
        (&nothing["cache_id"], &nothing["names"]),
        (&json!("."), &json!([])),
        "it is asked whether it knows CachePut"
    );
    let got = patched.event("put");
    assert_eq!((&got["cache_id"], &got["names"]), (&json!("set-1"), &json!(["a.bin", "b.bin"])));
    assert_eq!(got["subject"], "cache.put");
    for exec in ["ours", "classic"] {
        let result = result_of(&leader, job(exec, &[("a.bin", "set-1"), ("b.bin", "set-1")]));
        assert_eq!(result["status"], "OK", "{exec}: {result}");
        let stdout = result["stdout"].as_str().unwrap();
        assert!(
            stdout.contains(&sha256("one")) && stdout.contains(&sha256("two")),
            "{exec}: {stdout}"
        );
    }
    // It keeps the directory form, and looks for the id alone: that is the whole path.
    assert_eq!(patched.event("assigned")["files"][0]["cache_id"], "set-1/a.bin");

    let skipped = ("SKIPPED".to_owned(), "already-present=2".to_owned());
    assert_eq!(acks(&leader, first), [skipped.clone(), skipped]);
    let mixed = ("OK".to_owned(), "added=1, skipped=1".to_owned());
    let more = put_of("set-1", &[("a.bin", "other"), ("c.bin", "three")], "job.assign.*", 2);
    assert_eq!(acks(&leader, more), [mixed.clone(), mixed]);
    for exec in ["ours", "classic"] {
        let files = [("a.bin", "set-1"), ("b.bin", "set-1"), ("c.bin", "set-1")];
        let result = result_of(&leader, job(exec, &files));
        let stdout = result["stdout"].as_str().unwrap();
        for content in ["one", "two", "three"] {
            assert!(stdout.contains(&sha256(content)), "{exec}: {content} in {result}");
        }
    }
    // One of the old ones alone is nothing new, and counts as one.
    let one = ("SKIPPED".to_owned(), "already-present=1".to_owned());
    assert_eq!(
        acks(&leader, put_of("set-1", &[("b.bin", "two")], "job.assign.*", 2)),
        [one.clone(), one]
    );
}

#[test]
fn c18_puts_that_follow_each_other_add_up_and_nobody_else_hears_of_them() {
    let leader = Leader::start(&[]);
    let _ours = Worker::start(leader.port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 1);
    let mut other = classic_client(leader.port, "other", &[], &[json!({"exec": "nobody"})]);
    let names: Vec<String> = (0..8).map(|file| format!("{file}.bin")).collect();
    let puts: Vec<Value> =
        names.iter().map(|name| put_of("many", &[(name, name)], "job.assign.>", 1)).collect();
    let found = events(classic_client(leader.port, "putter", &[], &puts), "cache_ack");
    assert_eq!(found.len(), 8);
    assert!(
        found.iter().all(|ack| ack["status"] == "OK" && ack["message"] == "added=1"),
        "{found:#?}"
    );
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "many")).collect();
    let result = result_of(&leader, job("ours", &files));
    let stdout = result["stdout"].as_str().unwrap();
    assert!(names.iter().all(|name| stdout.contains(&sha256(name))), "{result}");
    other.kill();
    assert!(other.said("cache_ack").is_none());
}

#[test]
fn bad_puts_of_classic_clients_fail_with_what_is_wrong() {
    let leader = Leader::start(&[]);
    let _ours = Worker::start(leader.port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 1);
    let all = "job.assign.>";
    let long = "x".repeat(300);
    for (put, says) in [
        (put_of("..", &[("a", "x")], all, 1), "invalid cache id"),
        (put_of("a/b", &[("a", "x")], all, 1), "invalid cache id"),
        (put_of(&long, &[("a", "x")], all, 1), "300 bytes"),
        (put_of("set", &[("../a", "x")], all, 1), "invalid file name"),
        (put_of("set", &[("/etc/passwd", "x")], all, 1), "invalid file name"),
        (put_of("set", &[("a\u{0}b", "x")], all, 1), "control character"),
        (put_of("set", &[("a", "x"), ("A", "y")], all, 1), "case alone"),
        (put_of("set", &[], all, 1), "no files"),
        (
            put_of("set", &[("a", "x")], "job.assign.nobody", 1),
            "no connected worker matches job.assign.nobody",
        ),
        (json!({"cache_put": {}, "payload_b64": base64("no json")}), "JSON"),
        (
            json!({"cache_put": {}, "payload_b64": base64(&format!(
                r#"{{"CacheId":"s","Entries":[{{"Name":"a","Content":"eA==","Sha256":"{}"}}]}}"#, "0".repeat(64)
            ))}),
            "does not hash",
        ),
    ] {
        let (status, message) = ack(&leader, put.clone());
        assert_eq!(status, "FAILED", "{put}: {message}");
        assert!(message.contains(says), "{put}: {message}");
    }
    // A pattern in the subject counts where the request names none; without any it is for all.
    for subject in ["cache.put.job.assign.ours", "cache.put"] {
        let mut put = put_of("good", &[(subject, "x")], "", 1);
        put["subject"] = json!(subject);
        assert_eq!(ack(&leader, put), added(1), "{subject}");
    }
}

#[test]
fn w06_a_put_over_four_mebibytes_is_streamed_and_goes_to_those_that_can_take_it() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let mut patched = classic_worker(
        leader.port,
        &["job.assign.classic", "--cache-patch", "--cache-dir", cache.text()],
    );
    let _ours = Worker::start(leader.port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 2);
    let entries = json!([
        {"name": "big.bin", "random": 70_000_000}, {"name": "data/small.txt", "content_b64": base64("small")},
        {"name": "empty", "content_b64": ""}, {"name": "mid.bin", "random": 3_333_333}
    ]);
    let put =
        json!({"cache_put": {"cache_id": "large", "entries": entries, "target": "job.assign.>"}});
    let mut client = classic_client(leader.port, "putter", &[], &[put]);
    let sent = client.event("put");
    let answer = client.event("cache_ack");
    assert_eq!(
        (&answer["status"], &answer["message"]),
        (&json!("OK"), &json!("added=4")),
        "{answer}"
    );
    let names = ["big.bin", "data/small.txt", "empty", "mid.bin"];
    let files: Vec<(&str, &str)> = names.iter().map(|name| (*name, "large")).collect();
    let script_sees = result_of(&leader, job("ours", &files[..1]));
    let stdout = script_sees["stdout"].as_str().unwrap();
    assert!(stdout.contains(sent["sha256"]["big.bin"].as_str().unwrap()), "{script_sees}");
    let rest = result_of(&leader, job("ours", &[files[2], files[3]]));
    let stdout = rest["stdout"].as_str().unwrap();
    for name in &names[2..] {
        assert!(stdout.contains(sent["sha256"][*name].as_str().unwrap()), "{name}: {rest}");
    }
    patched.kill();
    assert!(patched.said("large").is_none(), "it does not fit a classic worker's frame");

    // One file is wrong, and all of it is refused; the same frame again brings nothing new.
    let bad = json!({"cache_put": {"cache_id": "bad", "entries": [{"name": "x", "random": 5_000_000}, {"name": "../y", "random": 1}]}});
    let (status, message) = ack(&leader, bad);
    assert!(status == "FAILED" && message.contains("../y"), "{message}");
    let again = json!({"cache_put": {"cache_id": "large", "entries": [{"name": "big.bin", "random": 70_000_000}]}});
    assert_eq!(ack(&leader, again), ("SKIPPED".to_owned(), "already-present=1".to_owned()));
}

#[test]
fn a_classic_worker_without_the_patch_holds_no_put_up() {
    let leader = Leader::start(&[]);
    let mut plain = classic_worker(leader.port, &["job.assign.*"]);
    // Nobody else is there: the client hears so when it has had its time.
    let (status, message) = ack(&leader, put_of("set", &[("a.bin", "x")], "job.assign.*", 1));
    assert_eq!(status, "FAILED");
    assert!(message.contains("no connected worker"), "{message}");
    assert_eq!(plain.event("ignored")["type"], 6);
    let _ours = Worker::start(leader.port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 2);
    assert_eq!(ack(&leader, put_of("set-2", &[("a.bin", "x")], "job.assign.*", 1)), added(1));
}

#[test]
fn a_patched_worker_that_joins_later_gets_the_dataset() {
    let leader = Leader::start(&[]);
    let (status, _) = ack(&leader, put_of("early", &[("a.bin", "one")], "job.assign.*", 1));
    assert_eq!(status, "FAILED", "nobody is there, and the dataset is kept");
    let cache = TempDir::new();
    let mut patched = classic_worker(
        leader.port,
        &["job.assign.*", "--cache-patch", "--cache-dir", cache.text()],
    );
    patched.event_where("put", |put| put["cache_id"] == "early" && put["status"] == "OK");
    let result = result_of(&leader, job("echo", &[("a.bin", "early")]));
    assert!(result["stdout"].as_str().unwrap().contains(&sha256("one")), "{result}");
}

#[test]
fn c01_an_agent_gets_what_jobs_of_its_worker_name_whoever_it_was_put_for() {
    let leader = Leader::start(&[]);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let _plain = classic_worker(leader.port, &["job.assign.*", "--cache-dir", cache.text()]);
    workers(&leader, 1);
    for dataset in ["early", "late"] {
        assert_eq!(ack(&leader, put_of(dataset, &[("a.bin", dataset)], "none", 1)), added(1));
    }
    // The job is there before the agent.
    let waits = classic_client(leader.port, "early", &[], &[job("cache", &[("a.bin", "early")])]);
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    let result = events(waits, "result").remove(0);
    assert_eq!(result["status"], "OK", "{result}");
    assert_eq!(std::fs::read_to_string(cache.join("early/a.bin")).unwrap(), "early");
    assert!(!cache.join("late").exists(), "nobody has named it");
    assert_eq!(result_of(&leader, job("cache", &[("a.bin", "late")]))["status"], "OK");
    assert_eq!(std::fs::read_to_string(cache.join("late/a.bin")).unwrap(), "late");
}

#[test]
fn c02_an_agent_keeps_datasets_for_a_classic_worker_that_knows_no_cache_put() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let mut plain = classic_worker(leader.port, &["job.assign.*", "--cache-dir", cache.text()]);
    let dirs = TempDir::new();
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    assert_eq!(
        ack(&leader, put_of("kept", &[("a.bin", "one"), ("b.bin", "two")], "job.assign.*", 1)),
        added(2)
    );
    // A large one is not a matter for it, either.
    let large = json!({"cache_put": {"cache_id": "large", "entries": [{"name": "big.bin", "random": 6_000_000}]}});
    assert_eq!(ack(&leader, large), added(1));
    for (name, dataset) in [("a.bin", "kept"), ("big.bin", "large")] {
        let result = result_of(&leader, job("cache", &[(name, dataset)]));
        assert_eq!(result["status"], "OK", "{result}");
        assert!(
            result["stdout"].as_str().unwrap().contains(&format!("{dataset}/{name}")),
            "{result}"
        );
        let path = format!("{dataset}/{name}");
        assert_eq!(plain.event("assigned")["files"][0]["cache_id"], path.as_str());
    }
    // What is not a dataset is a flat file, as a classic client means it.
    std::fs::write(cache.join("flat.bin"), "flat").unwrap();
    assert_eq!(result_of(&leader, job("cache", &[("b.bin", "flat.bin")]))["status"], "OK");
}

#[test]
fn c01_an_agent_serves_the_one_worker_that_it_names_and_gets_no_jobs() {
    let leader = Leader::start(&[]);
    let (cache, other) = (TempDir::new(), TempDir::new());
    let id = "11111111-2222-3333-4444-555555555555";
    let args =
        ["job.assign.served", "--exec", "served=cache", "--id", id, "--cache-dir", cache.text()];
    let mut served = classic_worker(leader.port, &args);
    // It is on the same host, and has the patch and a directory of its own.
    let beside = [
        "job.assign.beside",
        "--exec",
        "beside=cache",
        "--cache-patch",
        "--cache-dir",
        other.text(),
    ];
    let mut beside = classic_worker(leader.port, &beside);
    let dirs = TempDir::new();
    let _agent = agent(leader.port, &cache, &dirs, &["--for", id]);
    workers(&leader, 3);
    // The agent and the patched worker answer.
    assert_eq!(
        acks(&leader, put_of("set", &[("a.bin", "one")], "job.assign.*", 2)),
        [added(1), added(1)]
    );
    for (exec, worker) in [("served", &mut served), ("beside", &mut beside)] {
        let result = result_of(&leader, job(exec, &[("a.bin", "set")]));
        assert_eq!(result["status"], "OK", "{exec}: {result}");
        assert_eq!(worker.event("assigned")["files"][0]["cache_id"], "set/a.bin");
    }
    // The agent asked for the same subjects, and is none of those that a job to all is for.
    let (code, stdout, stderr) = heft(&["submit", &leader.addr(), "served", "--all"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
}

/// A heft client puts the dataset `set`, one file `a.bin` of this content; gives the answers, as
/// (status, message).
fn put_dataset(leader: &Leader, content: &str, replace: bool) -> Vec<(String, String)> {
    use heft::client::Options;
    use heft::client::dataset::{DatasetSpec, PutEvent, put};
    let source = TempDir::new();
    let file = source.join("a.bin");
    std::fs::write(&file, content).unwrap();
    let spec = DatasetSpec::new("set", [&file]).unwrap().replace(replace);
    let mut answers = Vec::new();
    let heard = |event: PutEvent| {
        if let PutEvent::Ack(ack) = event {
            answers.push((ack.status.as_str().to_owned(), ack.message));
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime
        .block_on(put(&leader.addr(), spec, &Options::new("loader"), heard))
        .expect("the dataset is kept");
    answers
}

/// What became of `set` at the one worker that is to hold it: `held`, or why not.
fn became(leader: &Leader) -> String {
    loop {
        let (_, out, err) = heft(&["dataset", &leader.addr(), "status", "set", "--output", "json"]);
        let status: Value =
            serde_json::from_str(&out).unwrap_or_else(|error| panic!("{error}: {out}{err}"));
        let mut workers = status["workers"].as_array().unwrap().iter();
        match workers.find_map(|worker| match worker["state"].as_str()? {
            "held" => Some("held".to_owned()),
            "failed" => Some(worker["text"].as_str()?.to_owned()),
            _ => None,
        }) {
            Some(became) => return became,
            None => std::thread::sleep(std::time::Duration::from_millis(50)),
        }
    }
}

/// A classic worker with the cache patch.
fn patched(leader: &Leader, id: &str, cache: &TempDir) -> Proc {
    classic_worker(
        leader.port,
        &["job.assign.*", "--id", id, "--cache-patch", "--cache-dir", cache.text()],
    )
}

const ONE: &str = "11111111-2222-3333-4444-555555555555";
const OTHER: &str = "22222222-2222-3333-4444-555555555555";

fn is_not_known(text: &str) {
    assert!(
        text.contains("does not overwrite") && text.contains("remove the directory set"),
        "{text}"
    );
}

#[test]
fn ca05_a_dataset_that_was_replaced_is_not_held_by_a_classic_worker_that_had_it() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let _patched = patched(&leader, ONE, &cache);
    assert_eq!(put_dataset(&leader, "one", false), [added(1)]);
    let skipped = [("SKIPPED".to_owned(), "already-present=1".to_owned())];
    assert_eq!(put_dataset(&leader, "one", false), skipped);
    let other = put_dataset(&leader, "two", true);
    assert_eq!((other.len(), other[0].0.as_str()), (1, "FAILED"));
    is_not_known(&other[0].1);
    assert_eq!(std::fs::read_to_string(cache.join("set/a.bin")).unwrap(), "one");
    // What it has is what it was given before, should that come back.
    assert_eq!(put_dataset(&leader, "one", true), skipped);
    let result = result_of(&leader, job("echo", &[("a.bin", "set")]));
    assert!(result["stdout"].as_str().unwrap().contains(&sha256("one")), "{result}");
    // With the directory away it can have any.
    std::fs::remove_dir_all(cache.join("set")).unwrap();
    assert_eq!(put_dataset(&leader, "two", true), [added(1)]);
    let result = result_of(&leader, job("echo", &[("a.bin", "set")]));
    assert!(result["stdout"].as_str().unwrap().contains(&sha256("two")), "{result}");
}

#[test]
fn ca05_files_that_a_classic_worker_skips_count_only_if_it_wrote_them_for_this_leader() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let mut worker = patched(&leader, ONE, &cache);
    assert_eq!(put_dataset(&leader, "one", false), [added(1)]);
    worker.kill();
    // It lost its connection, and comes back with its directory.
    worker = patched(&leader, ONE, &cache);
    worker.event_where("put", |put| put["cache_id"] == "set" && put["status"] == "SKIPPED");
    assert_eq!(became(&leader), "held");
    worker.kill();
    // Another process with the same directory: nobody knows what it was used for meanwhile.
    let mut another = patched(&leader, OTHER, &cache);
    another.event_where("put", |put| put["cache_id"] == "set" && put["status"] == "SKIPPED");
    is_not_known(&became(&leader));
    another.kill();
    // The dataset was replaced while the worker was away.
    put_dataset(&leader, "two", true);
    worker = patched(&leader, ONE, &cache);
    worker.event_where("put", |put| put["cache_id"] == "set" && put["status"] == "SKIPPED");
    is_not_known(&became(&leader));
    let (_, _, why) =
        heft(&["submit", &leader.addr(), "echo", "--require-worker", "--cache", "set/a.bin"]);
    assert!(why.contains("cannot be sent the datasets"), "no job gets the old content: {why}");
    // The way out.
    std::fs::remove_dir_all(cache.join("set")).unwrap();
    let (code, out, err) = heft(&["dataset", &leader.addr(), "push", "set"]);
    assert_eq!(code, Some(0), "{out}{err}");
    worker.event_where("put", |put| put["cache_id"] == "set" && put["status"] == "OK");
    assert_eq!(became(&leader), "held");
    assert_eq!(std::fs::read_to_string(cache.join("set/a.bin")).unwrap(), "two");
}

#[test]
fn c18_puts_that_overtake_each_others_answers_add_up_at_a_classic_worker() {
    let leader = Leader::start(&[]);
    let cache = TempDir::new();
    let _worker = patched(&leader, ONE, &cache);
    workers(&leader, 1);
    let names: Vec<String> = (0..8).map(|file| format!("{file}.bin")).collect();
    let puts: Vec<Value> =
        names.iter().map(|name| put_of("set", &[(name, name)], "job.assign.>", 1)).collect();
    let found = events(classic_client(leader.port, "putter", &[], &puts), "cache_ack");
    assert!(found.iter().all(|ack| ack["status"] == "OK"), "{found:#?}");
    let files: Vec<(&str, &str)> = names.iter().map(|name| (name.as_str(), "set")).collect();
    let result = result_of(&leader, job("echo", &files));
    let stdout = result["stdout"].as_str().unwrap();
    assert!(names.iter().all(|name| stdout.contains(&sha256(name))), "{result}");
}

#[test]
fn ca05_another_life_of_the_leader_does_not_know_what_a_classic_worker_has() {
    let cache = TempDir::new();
    for (life, content) in ["one", "two"].into_iter().enumerate() {
        let leader = Leader::start(&[]);
        let _worker = patched(&leader, ONE, &cache);
        let answers = put_dataset(&leader, content, false);
        if life == 0 {
            assert_eq!(answers, [added(1)]);
        } else {
            assert_eq!((answers.len(), answers[0].0.as_str()), (1, "FAILED"));
            is_not_known(&answers[0].1);
        }
    }
}

#[test]
fn pe08_a_restart_forgets_no_put_of_a_classic_client_and_the_next_adds_to_it() {
    let data = TempDir::new();
    let args = ["--data", data.text()];
    let mut leader = Leader::start(&args);
    let port = leader.port;
    let worker = Worker::start(port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 1);
    let entries = json!([{"name": "big.bin", "random": 6_000_000}, {"name": "a.bin", "content_b64": base64("one")}]);
    let put = json!({"cache_put": {"cache_id": "durable", "entries": entries}});
    assert_eq!(ack(&leader, put), added(2));
    drop(worker);
    leader.proc.kill();
    let leader = Leader::start_on(port, &args);
    let cache = TempDir::new();
    let mut patched = classic_worker(
        port,
        &[
            "job.assign.classic",
            "--exec",
            "classic=echo",
            "--cache-patch",
            "--cache-dir",
            cache.text(),
        ],
    );
    let _ours = Worker::start(port, &[("ours", ECHO)], &["job.assign.ours"]);
    workers(&leader, 2);
    let skipped = put_of("durable", &[("a.bin", "other")], "job.assign.ours", 1);
    let (status, _) = ack(&leader, skipped);
    assert!(status == "OK" || status == "SKIPPED", "{status}: the worker has it, or gets it");
    assert_eq!(
        ack(&leader, put_of("durable", &[("c.bin", "three")], "job.assign.ours", 1)),
        added(1)
    );
    let files = [("big.bin", "durable"), ("a.bin", "durable"), ("c.bin", "durable")];
    let result = result_of(&leader, job("ours", &files));
    let stdout = result["stdout"].as_str().unwrap();
    assert!(stdout.contains(&sha256("one")) && stdout.contains(&sha256("three")), "{result}");
    assert!(stdout.contains("big.bin "), "{result}");
    // A small one for the classic worker is read back from what a previous run kept.
    let small = put_of("small", &[("s.bin", "s")], "job.assign.classic", 1);
    assert_eq!(ack(&leader, small), added(1));
    patched.event_where("put", |put| put["cache_id"] == "small");
}

#[test]
fn a_put_over_a_dataset_whose_manifest_is_damaged_is_answered_and_not_tried_for_ever() {
    let data = TempDir::new();
    let args = ["--data", data.text()];
    let mut leader = Leader::start(&args);
    assert_eq!(ack(&leader, put_of("set", &[("a.bin", "one")], "none", 1)), added(1));
    leader.proc.kill();
    let blobs = std::fs::read_dir(data.join("blobs")).unwrap().map(|entry| entry.unwrap().path());
    let is_manifest = |path: &std::path::PathBuf| std::fs::read(path).unwrap().starts_with(b"HFMF");
    let manifests: Vec<_> = blobs.filter(|path| path.is_file() && is_manifest(path)).collect();
    let [manifest] = manifests.as_slice() else { panic!("one manifest: {manifests:?}") };
    let mut bytes = std::fs::read(manifest).unwrap();
    bytes[4] ^= 1;
    std::fs::write(manifest, bytes).unwrap();

    let leader = Leader::start_on(leader.port, &args);
    let (status, message) = ack(&leader, put_of("set", &[("b.bin", "two")], "none", 1));
    assert!(status == "FAILED" && message.contains("damaged at the leader"), "{status}: {message}");
    let (code, stdout, stderr) = heft(&["dataset", &leader.addr(), "rm", "set"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    assert_eq!(ack(&leader, put_of("set", &[("b.bin", "two")], "none", 1)), added(1));
}
