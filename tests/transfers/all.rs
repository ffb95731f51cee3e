//! Jobs to all workers whose results do not fit one: each is a result of its own, which is listed,
//! shown, unpacked and fetched again, whatever its size, and what does not come is not a success.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use chunking::message::Purpose;
use heft::client::{Client, Downloads, Options};
use heft::model::{Deliver, JobRequest};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::procs::{Worker, classic_client, classic_worker, heft};
use crate::world::{
    DIGESTS, MAKES, MIB, World, end_of, eventually, expect_digests, peak_memory, sha256_of,
    submit_files,
};

/// What the classic worker's `prints` does, as far as it matters here: lines on standard output,
/// and a file.
const PRINTS: &str = r#"head -c "$(($1 * 100))" /dev/zero | tr '\0' 'p'
head -c "$3" /dev/urandom > made.bin"#;

/// So many workers, all of which are there.
fn workers(world: &World, count: usize, programs: &[(&str, &str)]) -> Vec<Worker> {
    let workers = (0..count).map(|_| Worker::start(world.leader.port, programs, &[])).collect();
    all_there(world, count);
    workers
}

fn all_there(world: &World, count: usize) {
    world.until("all workers are there", |status| {
        let connected = |worker: &&Value| worker["connected"] == true;
        status["workers"].as_array().unwrap().iter().filter(connected).count() == count
    });
}

/// What `heft submit --all` printed for each worker: how it ended, and what it printed.
fn by_worker(stdout: &str) -> BTreeMap<&str, (&str, &str)> {
    let parts = stdout.split("== worker ").skip(1);
    parts
        .map(|part| {
            let (head, printed) = part.split_once('\n').unwrap();
            let (worker, ended) = head.split_once(": ").unwrap();
            (worker, (ended, printed))
        })
        .collect()
}

/// The job of a `heft submit --progress json`.
fn job_in(stderr: &str) -> String {
    let events = stderr.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    events
        .filter_map(|event| Some(event["job"].as_str()?.to_owned()))
        .next()
        .expect("an event of the job")
}

/// Every worker ended OK, printed so much, and left a file with the digest that it said on its
/// standard error.
fn assert_all_made(out: &Path, (stdout, stderr): (&str, &str), workers: usize, printed: usize) {
    let shown = by_worker(stdout);
    assert_eq!(shown.len(), workers, "{}", end_of(stderr));
    for (worker, (ended, text)) in shown {
        assert_eq!(ended, "OK", "{worker}");
        assert_eq!(text.len(), printed + 1, "{worker}: with the end of the line");
        assert!(text.trim_end().bytes().all(|byte| byte == b'p'), "{worker}");
        let made = sha256_of(&out.join(worker).join("made.bin"));
        assert!(stderr.contains(&made), "{worker}: {made} is not in what it said");
        let left: Vec<_> = std::fs::read_dir(out.join(worker)).unwrap().collect();
        assert_eq!(left.len(), 1, "{left:?}");
    }
}

#[test]
fn results_of_all_workers_that_exceed_a_frame_together_come_whole_and_can_be_fetched_again() {
    let world = World::start(&[]);
    let _workers = workers(&world, 6, &[("makes", MAKES)]);
    let (out, again) = (world.dir.join("out"), world.dir.join("again"));
    let (files, printed) = (2_000_000.to_string(), 900_000);
    let printed_text = printed.to_string();
    let args = [
        "submit",
        &world.addr(),
        "makes",
        "--all",
        "--progress",
        "json",
        "--out",
        out.to_str().unwrap(),
    ];
    let (code, stdout, stderr) = heft(&[&args[..], &["--", &files, &printed_text]].concat());
    assert_eq!(code, Some(0), "{}", end_of(&stderr));
    assert_all_made(&out, (&stdout, &stderr), 6, printed);

    let job = job_in(&stderr);
    let get = ["result", "get", &world.addr(), &job, "--out"];
    let (code, stdout, stderr) = heft(&[&get[..], &[again.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert_all_made(&again, (&stdout, &stderr), 6, printed);

    // As a program reads it, and one of them alone.
    let (code, stdout, stderr) = heft(&["result", "get", &world.addr(), &job, "--output", "json"]);
    assert_eq!(code, Some(0), "{stderr}");
    let shown: Value = serde_json::from_str(&stdout).unwrap();
    let listed = shown["workers"].as_array().unwrap();
    assert_eq!(listed.len(), 6);
    assert!(
        listed.iter().all(|worker| worker["stdout"].as_str().unwrap().len() == printed),
        "all of it"
    );
    let (worker, child) =
        (listed[5]["worker"].as_str().unwrap(), listed[5]["job_id"].as_str().unwrap());
    let one = world.dir.join("one");
    let get = ["result", "get", &world.addr(), child, "--out", one.to_str().unwrap()];
    let (code, stdout, stderr) = heft(&get);
    assert_eq!((code, stdout.len()), (Some(0), printed), "{stderr}");
    assert_eq!(sha256_of(&one.join("made.bin")), sha256_of(&out.join(worker).join("made.bin")));
}

#[test]
fn one_result_beyond_a_frame_one_of_a_classic_worker_and_one_that_failed_are_all_delivered() {
    let world = World::start(&[]);
    let _large = Worker::start(world.leader.port, &[("prints", PRINTS)], &[]);
    let _fails =
        Worker::start(world.leader.port, &[("prints", "echo before; echo why >&2; exit 3")], &[]);
    let _classic = classic_worker(world.leader.port, &["job.assign.*", "--platform", "windows"]);
    all_there(&world, 3);
    let (lines, archive, out) = (60_000_usize, 9_000_000, world.dir.join("out"));
    let given = [lines.to_string(), "0".to_owned(), archive.to_string()];
    let given: Vec<&str> = given.iter().map(String::as_str).collect();
    let args = [
        "submit",
        &world.addr(),
        "prints",
        "--all",
        "--progress",
        "json",
        "--out",
        out.to_str().unwrap(),
        "--",
    ];
    let (code, stdout, stderr) = heft(&[&args[..], &given].concat());
    assert_eq!(code, Some(1), "one failed: {stderr}");
    let check = |stdout: &str, stderr: &str, out: &Path| {
        let shown = by_worker(stdout);
        assert_eq!(shown.len(), 3, "{stderr}");
        let failed: Vec<_> =
            shown.iter().filter(|(_, (ended, _))| ended.starts_with("FAILED")).collect();
        assert_eq!(failed.len(), 1);
        assert_eq!(failed[0].1, &("FAILED, its exit code is 3", "before\n"));
        assert!(stderr.contains("why\n"), "{stderr}");
        for (worker, (_, printed)) in shown.iter().filter(|(_, (ended, _))| *ended == "OK") {
            let len = std::fs::metadata(out.join(worker).join("made.bin")).unwrap().len();
            assert_eq!((len, printed.len() / 100), (archive, lines), "{worker}");
        }
    };
    check(&stdout, &stderr, &out);
    let (job, again) = (job_in(&stderr), world.dir.join("again"));
    let get = ["result", "get", &world.addr(), &job, "--out", again.to_str().unwrap()];
    let (code, stdout, stderr) = heft(&get);
    assert_eq!(code, Some(1), "{stderr}");
    check(&stdout, &stderr, &again);
}

#[test]
fn results_of_all_workers_survive_a_leader_that_is_killed_before_they_are_fetched() {
    let mut world = World::start(&["--durability", "disk"]);
    let marker = world.path("held");
    let held = format!("{MAKES}\nwhile [ ! -d \"$3\" ]; do sleep 0.02; done");
    let _workers = workers(&world, 3, &[("held", &held)]);
    let (out, again) = (world.dir.join("out"), world.dir.join("again"));
    let (files, printed) = ((5 * MIB).to_string(), 1_500_000);
    let printed_text = printed.to_string();
    let addr = world.addr();
    let args = [
        "submit",
        &addr,
        "held",
        "--all",
        "--progress",
        "json",
        "--out",
        out.to_str().unwrap(),
        "--",
    ];
    let all: Vec<String> = [&args[..], &[&files, &printed_text, &marker]]
        .concat()
        .iter()
        .map(|arg| (*arg).to_owned())
        .collect();
    let submit =
        std::thread::spawn(move || heft(&all.iter().map(String::as_str).collect::<Vec<_>>()));
    world.until("it runs everywhere", |status| status["jobs"]["running"] == 3);
    let (code, _, err) = heft(&["status", &addr, "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    world.restart();
    all_there(&world, 3);
    std::fs::create_dir(&marker).unwrap();
    let (code, stdout, stderr) = submit.join().unwrap();
    assert_eq!(code, Some(0), "{}", end_of(&stderr));
    assert_all_made(&out, (&stdout, &stderr), 3, printed);

    let job = job_in(&stderr);
    world.restart();
    let get = ["result", "get", &addr, &job, "--out", again.to_str().unwrap()];
    let (code, stdout, stderr) = heft(&get);
    assert_eq!(code, Some(0), "{stderr}");
    assert_all_made(&again, (&stdout, &stderr), 3, printed);
}

#[test]
fn a_job_to_all_that_has_not_ended_everywhere_says_so_and_those_that_have_are_there() {
    let world = World::start(&[]);
    let marker = world.path("held");
    let _ends = Worker::start(world.leader.port, &[("some", "echo ended")], &[]);
    let waits = format!("while [ ! -d {marker} ]; do sleep 0.02; done; echo waited");
    let _waits = Worker::start(world.leader.port, &[("some", &waits)], &[]);
    all_there(&world, 2);
    let mut submit = world.submit(&["some", "--all"]);
    let job = crate::world::job_of(&mut submit).to_string();
    eventually("one has ended", || {
        let (code, _, err) = heft(&["result", "get", &world.addr(), &job]);
        // A submit prints its id before the leader has the job.
        assert!(code == Some(1) || err.contains("is unknown here"), "{code:?}: {err}");
        err.contains("has not ended: 1 of its 2 workers have not")
    });
    std::fs::create_dir(&marker).unwrap();
    let (code, lines) = submit.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    assert!(
        ["ended", "waited"].iter().all(|said| lines.iter().any(|line| line == said)),
        "{lines:#?}"
    );
}

#[test]
fn a_classic_client_gets_the_list_of_all_workers_and_hears_how_to_fetch_the_rest() {
    let world = World::start(&[]);
    let _workers = workers(&world, 3, &[("makes", MAKES)]);
    let request =
        json!({"ExecName": "makes", "Args": ["3000000", "700000"], "Files": [], "Deliver": "all"});
    let raw = base64::engine::general_purpose::STANDARD.encode(request.to_string());
    let job = json!({"raw_b64": raw, "subject": "job.submit.makes"});
    let mut client = classic_client(world.leader.port, "stock", &[], &[job]);
    let result = client.event("result");
    assert_eq!(result["status"], "OK", "{result}");
    assert_eq!(result["stdout"].as_str().unwrap().lines().count(), 3, "{result}");
    let stderr = result["stderr"].as_str().unwrap();
    let command = stderr.split('`').nth(1).unwrap_or_else(|| panic!("no command in {stderr}"));
    let words: Vec<&str> = command.split(' ').collect();
    assert_eq!(&words[..3], ["heft", "result", "get"], "{stderr}");
    let out = world.dir.join("out");
    let (code, stdout, err) = heft(&[&words[1..6], &["--out", out.to_str().unwrap()]].concat());
    assert_eq!(code, Some(0), "{err}");
    assert_all_made(&out, (&stdout, &err), 3, 700_000);
}

#[tokio::test]
async fn results_that_are_about_to_be_fetched_are_not_dropped_to_make_room_for_others() {
    let world = World::start(&["--durability", "disk", "--spool-max", "20MiB"]);
    let _workers = workers(&world, 3, &[("makes", MAKES), ("digests", DIGESTS)]);
    let client = Client::connect(&world.addr(), &Options::new("c")).await.unwrap();
    let args = [(5 * MIB).to_string(), "7".to_owned()].to_vec();
    let request = JobRequest { exec_name: "makes".to_owned(), args, ..JobRequest::default() };
    let request = JobRequest { deliver: Deliver::All, ..request };
    let result = client.submit(request).await.unwrap().wait().await.unwrap();
    let lines = result.stdout.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    let jobs: Vec<Uuid> =
        lines.map(|line| line["Job"].as_str().unwrap().parse().unwrap()).collect();
    assert_eq!(jobs.len(), 3, "{}", result.stdout);
    // Another client's input does not fit beside their archives, and waits.
    let input = world.noise("in.bin", 12 * MIB as u64);
    let mut waits = submit_files(&world.addr(), "digests", &[&input], &["--compress", "none"]);
    waits.wait_for("that it waits for room", |line| line.contains("--spool-max").then_some(()));
    for job in jobs {
        let got = client.fetch(job, &Downloads::Directory(world.dir.join("out"))).await.unwrap();
        let got = got.expect("the result is there");
        assert!(
            got.part(Purpose::Archive).is_some_and(|archive| archive.size > 5 * MIB as u64),
            "{got:?}"
        );
    }
    client.close().await;
    expect_digests(waits, &[&input]);
}

#[test]
fn the_leader_never_holds_the_results_of_all_workers_at_once() {
    let mut world = World::start(&["--durability", "disk"]);
    // Each returns nearly a frame, without blobs: 64 MiB in all.
    let (count, out) = (18, world.dir.join("out"));
    let workers = workers(&world, count, &[("makes", MAKES)]);
    let args =
        ["submit", &world.addr(), "makes", "--all", "--progress", "json", "--", "2800000", "10"];
    let (code, _, stderr) = heft(&args);
    assert_eq!(code, Some(0), "{}", end_of(&stderr));
    drop(workers);
    // What it needed to take them is not what it needs to give them.
    world.restart();
    let before = peak_memory(&world.leader.proc);
    let get = ["result", "get", &world.addr(), &job_in(&stderr), "--out", out.to_str().unwrap()];
    let (code, stdout, stderr) = heft(&get);
    assert_eq!(code, Some(0), "{stderr}");
    assert_all_made(&out, (&stdout, &stderr), count, 10);
    let peak = peak_memory(&world.leader.proc);
    assert!(
        peak - before <= 56 * MIB as u64,
        "the leader had {before} and then {peak} bytes in memory"
    );
}
