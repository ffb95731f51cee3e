//! Inputs that do not fit a classic worker's frame reach it by way of the agent beside it: the
//! leader makes a dataset of them, and the job names that (C01, W05).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;

use std::time::Duration;

use chunking::dataset::sha256;
use chunking::digest::to_hex;
use heft::model::{InputFile, JsonModel};
use noise::noise;
use procs::{ECHO, Leader, Proc, TempDir, Worker, agent, classic_client, classic_worker, heft};
use serde_json::{Value, json};

fn file(name: &str, content: &[u8]) -> Value {
    let file: Value = serde_json::from_slice(&InputFile::inline(name, content).to_json()).unwrap();
    json!({"name": name, "content_b64": file["Content"]})
}

/// A classic worker without the cache patch.
fn worker_in(leader: &Leader, cache: &TempDir) -> Proc {
    classic_worker(leader.port, &["job.assign.*", "--cache-dir", cache.text()])
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    for _ in 0..600 {
        if is() {
            return;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    panic!("{what}: not within half a minute");
}

fn workers(leader: &Leader, count: usize) {
    until("workers", || {
        heft(&["status", &leader.addr(), "--output", "json"]).1.matches("\"patterns\"").count()
            >= count
    });
}

fn datasets(leader: &Leader) -> String {
    heft(&["dataset", &leader.addr(), "ls", "--output", "json"]).1
}

/// What is left of a job's inputs, at the leader or in the agent's cache.
fn is_clean(leader: &Leader, cache: &TempDir) -> bool {
    let is_input = |name: &str| name.starts_with("heft-job-");
    let kept = std::fs::read_dir(&cache.0).unwrap();
    let kept =
        kept.filter(|entry| is_input(&entry.as_ref().unwrap().file_name().to_string_lossy()));
    kept.count() == 0 && !datasets(leader).contains("heft-job-")
}

fn result(client: &mut Proc) -> Value {
    client.event("result")
}

fn assert_saw(result: &Value, contents: &[&[u8]]) {
    assert_eq!(result["status"], "OK", "{result}");
    let stdout = result["stdout"].as_str().unwrap();
    for content in contents {
        assert!(stdout.contains(&to_hex(&sha256(content))), "{} bytes: {stdout}", content.len());
    }
}

#[test]
fn c01_inputs_over_a_classic_workers_frame_are_staged_by_its_agent() {
    staged_and_gone(&[]);
}

#[test]
fn c01_a_leader_that_keeps_nothing_stages_them_as_well() {
    staged_and_gone(&["--durability", "memory"]);
}

fn staged_and_gone(args: &[&str]) {
    let leader = Leader::start(args);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let mut plain = worker_in(&leader, &cache);
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    let (big, other, small) = (noise(6_000_000, 1), noise(2_500_000, 2), noise(1000, 3));
    let files =
        json!([file("big.bin", &big), file("small.bin", &small), file("other.bin", &other)]);
    let job = json!({"exec": "echo", "files": files});
    let mut client = classic_client(leader.port, "client", &[], &[job]);
    assert_saw(&result(&mut client), &[&big, &other, &small]);
    let assigned = plain.event("assigned");
    let id = assigned["job_id"].as_str().unwrap().replace('-', "");
    let named = |at: usize| {
        (assigned["files"][at]["cache_id"].clone(), assigned["files"][at]["content_len"].clone())
    };
    assert_eq!(named(0), (json!(format!("heft-job-{id}/big.bin")), Value::Null));
    assert_eq!(named(1), (Value::Null, json!(1000)), "what fits stays where it was");
    assert_eq!(named(2), (json!(format!("heft-job-{id}/other.bin")), Value::Null));
    assert!(assigned["body_bytes"].as_u64().unwrap() <= 4_194_304, "{assigned}");
    until("what was staged goes with the job", || is_clean(&leader, &cache));

    // A heft client's transfers go the same way; its job is there before nobody else can take it.
    std::fs::write(dirs.join("large.bin"), noise(20_000_000, 4)).unwrap();
    let large = dirs.join("large.bin");
    let (code, stdout, stderr) = heft(&[
        "submit",
        &leader.addr(),
        "echo",
        "--file",
        large.to_str().unwrap(),
        "--require-worker",
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    assert!(stdout.contains(&to_hex(&sha256(&noise(20_000_000, 4)))), "{stdout}");
    until("what was staged goes with the job", || is_clean(&leader, &cache));
}

#[test]
fn c01_a_job_that_waits_is_staged_when_an_agent_comes_and_not_while_a_heft_worker_can_have_it() {
    let leader = Leader::start(&[]);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let plain = worker_in(&leader, &cache);
    workers(&leader, 1);
    let content = noise(5_000_000, 5);
    let jobs: Vec<Value> =
        (0..3).map(|_| json!({"exec": "echo", "files": [file("in.bin", &content)]})).collect();
    let mut client = classic_client(leader.port, "client", &[], &jobs);
    (0..3).for_each(|_| drop(client.event("submitted")));
    until("the jobs wait", || heft(&["status", &leader.addr()]).1.contains("job.assign.echo"));
    assert!(plain.said("assigned").is_none());
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    (0..3).for_each(|_| assert_saw(&result(&mut client), &[&content]));
    until("what was staged goes with the jobs", || is_clean(&leader, &cache));

    let ours = Worker::start(leader.port, &[("echo", ECHO)], &["job.assign.echo"]);
    workers(&leader, 3);
    let job = json!({"exec": "echo", "files": [file("in.bin", &content)]});
    assert_saw(&result(&mut classic_client(leader.port, "next", &[], &[job])), &[&content]);
    plain.terminate();
    let (_, lines) = plain.finish();
    let assigned = lines.iter().filter(|line| line.contains("\"assigned\"")).count();
    assert_eq!(assigned, 3, "a heft worker takes inputs as they are: {lines:#?}");
    drop(ours);
}

#[test]
fn c01_a_staged_job_outlives_its_worker_and_its_leader() {
    let data = TempDir::new();
    let args = ["--data", data.text(), "--lease", "2s", "--worker-grace", "500ms"];
    let mut leader = Leader::start(&args);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let mut plain = worker_in(&leader, &cache);
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    let (id, content) = ("11111111-2222-3333-4444-555555555555", noise(5_000_000, 6));
    let job = json!({"exec": "hang", "job_id": id, "files": [file("in.bin", &content)]});
    let _client = classic_client(leader.port, "client", &[], &[job]);
    let first = plain.event("assigned")["files"][0]["cache_id"].clone();
    assert_eq!(first, "heft-job-11111111222233334444555555555555/in.bin");
    // It is the job's, and nobody else's to remove.
    let (code, _, stderr) =
        heft(&["dataset", &leader.addr(), "rm", "heft-job-11111111222233334444555555555555"]);
    assert!(code == Some(1) && stderr.contains("cancel the job"), "{code:?}: {stderr}");
    leader.proc.kill();
    plain.kill();
    let leader = Leader::start_on(leader.port, &args);
    let second = ["job.assign.*", "--exec", "hang=echo", "--cache-dir", cache.text()];
    let mut second = classic_worker(leader.port, &second);
    assert_eq!(second.event("assigned")["files"][0]["cache_id"], first);
    let mut stdout = String::new();
    until("the result", || {
        stdout = heft(&["result", "get", &leader.addr(), id]).1;
        !stdout.is_empty()
    });
    assert!(stdout.contains(&to_hex(&sha256(&content))), "{stdout}");
    until("what was staged goes with the job", || is_clean(&leader, &cache));
}

#[test]
fn c01_what_no_agent_may_take_is_not_staged() {
    let leader = Leader::start(&[]);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let _plain = worker_in(&leader, &cache);
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    for (number, name, verdict) in
        [(1, "../in.bin", "\"no-transfers\""), (2, "data/in.bin", "\"no-folders\"")]
    {
        let id = format!("11111111-2222-3333-4444-{number:012}");
        let files = json!([file(name, &noise(5_000_000, 7)), file("small.bin", b"x")]);
        let job = json!({"exec": "echo", "job_id": id, "files": files});
        let mut client = classic_client(leader.port, &format!("client-{number}"), &[], &[job]);
        client.event("submitted");
        let explained = || heft(&["explain", &leader.addr(), &id, "--output", "json"]).1;
        until("it waits for a heft worker", || explained().contains(verdict));
    }
    assert!(is_clean(&leader, &cache));

    // Nobody else puts a dataset under such an id.
    let path = dirs.join("in.bin");
    std::fs::write(&path, "x").unwrap();
    let put = heft(&["dataset", &leader.addr(), "put", "heft-job-1", path.to_str().unwrap()]);
    assert_eq!(put.0, Some(3), "{put:?}");
    assert!(put.2.contains("is reserved for the leader"), "{put:?}");
}

#[test]
fn c01_a_spool_that_is_full_of_what_has_to_be_staged_comes_to_its_end() {
    // Three jobs of 5 MB wait in 16 MiB, and each has to lie there twice.
    let leader = Leader::start(&["--spool-max", "16MiB"]);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let _plain = worker_in(&leader, &cache);
    workers(&leader, 1);
    let content = noise(5_000_000, 8);
    let jobs: Vec<Value> =
        (0..3).map(|_| json!({"exec": "echo", "files": [file("in.bin", &content)]})).collect();
    let mut client = classic_client(leader.port, "client", &[], &jobs);
    (0..3).for_each(|_| drop(client.event("submitted")));
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    (0..3).for_each(|_| assert_saw(&result(&mut client), &[&content]));
    until("what was staged goes with the jobs", || is_clean(&leader, &cache));
}

#[test]
fn c01_what_two_jobs_of_the_same_file_leave_keeps_no_later_job_out() {
    // The inputs of both lie there as they came and as packs, and each makes packs before it knows
    // of the other's: those of one are needed by nobody, and stay for a while. Eight rounds would
    // leave more of them than there is room for.
    let leader = Leader::start(&["--spool-max", "200MiB"]);
    let (cache, dirs) = (TempDir::new(), TempDir::new());
    let _plain = worker_in(&leader, &cache);
    let _agent = agent(leader.port, &cache, &dirs, &[]);
    workers(&leader, 2);
    for round in 0..8 {
        let (content, path) = (noise(30_000_000, 20 + round), dirs.join("in.bin"));
        std::fs::write(&path, &content).unwrap();
        let submits: Vec<_> = (0..2)
            .map(|_| {
                let args = ["submit", &leader.addr(), "echo", "--file", path.to_str().unwrap()];
                let args = args.map(str::to_owned);
                std::thread::spawn(move || heft(&args.each_ref().map(String::as_str)))
            })
            .collect();
        for submit in submits {
            let (code, stdout, stderr) = submit.join().unwrap();
            assert_eq!(code, Some(0), "round {round}: {stderr}");
            assert!(stdout.contains(&to_hex(&sha256(&content))), "round {round}: {stdout}");
        }
    }
    until("what was staged goes with the jobs", || is_clean(&leader, &cache));
}
