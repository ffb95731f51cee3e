//! Datasets with real processes: `heft dataset` and `heft submit --cache`, a leader, and workers
//! with caches of their own. What a person who uses them may rely on, one thing a test.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "support/caches.rs"]
mod caches;
#[path = "support/datasets.rs"]
mod datasets;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "transfers/proxy.rs"]
#[allow(dead_code)]
mod proxy;
#[path = "support/raw.rs"]
mod raw;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use caches::{Files, Holder, dataset, dataset_ok, prints, put, see, start_put, until, write_files};
use chunking::dataset::sha256;
use chunking::digest::to_hex;
use noise::noise;
use procs::{Leader, TempDir, heft};
use proxy::{Plan, Proxy, Way};
use serde_json::{Value, json};

const MIB: usize = 1 << 20;

/// A leader with a data directory of its own.
struct World {
    leader: Leader,
    dir: TempDir,
    args: Vec<String>,
}

impl World {
    fn start(args: &[&str]) -> World {
        let dir = TempDir::new();
        let data = dir.join("data").to_str().unwrap().to_owned();
        let mut all = vec!["--data".to_owned(), data];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        World { leader: launch(0, &all), dir, args: all }
    }

    /// One that keeps what it is given, whatever the environment says.
    fn durable() -> World {
        World::start(&["--durability", "disk"])
    }

    /// kill -9, and the same leader again.
    fn restart(&mut self) {
        self.leader.proc.kill();
        self.leader = launch(self.leader.port, &self.args);
    }

    fn addr(&self) -> String {
        self.leader.addr()
    }

    fn worker(&self, number: u128, args: &[&str]) -> Holder {
        let worker = Holder::start(self.leader.port, number, &[], args);
        until("the worker has joined", || {
            let (_, out, err) = heft(&["status", &self.addr(), "--output", "json"]);
            let id = worker.id.to_string();
            if out.contains(&id) { Ok(()) } else { Err(format!("{out}{err}")) }
        });
        worker
    }

    /// Files on the disk, to be put.
    fn source(&self, name: &str, files: &Files) -> PathBuf {
        let path = self.dir.join(name);
        write_files(&path, files);
        path
    }

    /// How a dataset is at a worker.
    fn state(&self, id: &str, worker: &Holder) -> Value {
        let status = dataset_ok(&self.addr(), &["status", id]);
        let workers = status["workers"].as_array().unwrap();
        let own = workers.iter().find(|found| found["id"] == worker.id.to_string());
        own.cloned().unwrap_or(Value::Null)
    }

    fn until_state(&self, id: &str, worker: &Holder, state: &str) -> Value {
        let mut found = Value::Null;
        until(state, || {
            found = self.state(id, worker);
            if found["state"] == state { Ok(()) } else { Err(found.to_string()) }
        });
        found
    }

    /// A job that says what its inputs hash to; they are these files.
    fn job_sees(&self, caches: &[&str], files: &[(&str, &[u8])]) {
        let (code, out, err) = self.job(caches);
        assert_eq!(code, Some(0), "{out}{err}");
        for (name, bytes) in files {
            let line = format!("{name} {}", to_hex(&sha256(bytes)));
            assert!(out.lines().any(|found| found == line), "no {line:?} in {out}");
        }
    }

    fn job(&self, caches: &[&str]) -> (Option<i32>, String, String) {
        let addr = self.addr();
        let mut args = vec!["submit", &addr, "echo", "--progress", "none"];
        caches.iter().for_each(|cache| args.extend(["--cache", cache]));
        heft(&args)
    }
}

fn launch(port: u16, args: &[String]) -> Leader {
    Leader::start_on(port, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

fn files(seed: u64, bytes: usize) -> Files {
    Files::from([
        ("a.bin".to_owned(), noise(bytes / 2, seed)),
        ("sub/b.bin".to_owned(), noise(bytes - bytes / 2, seed ^ 99)),
        ("empty".to_owned(), Vec::new()),
    ])
}

fn shows(worker: &Holder, id: &str, files: &Files) {
    let seen =
        see(&worker.cache(), id).unwrap_or_else(|| panic!("{id} is not visible at {}", worker.id));
    assert!(seen.files == prints(files), "{id} at {}: {:?}", worker.id, seen.files.keys());
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn ca11_a_job_gets_its_datasets_where_they_are_where_they_are_not_and_fails_if_nobody_knows_them() {
    let world = World::durable();
    let worker = world.worker(1, &[]);
    let (here, later) = (files(1, MIB), files(2, 3 * MIB));
    let report = put(&world.addr(), "here", &world.source("here", &here), &[]);
    assert_eq!((number(&report["targets"]), number(&report["ok"])), (1, 1), "{report:#}");
    shows(&worker, "here", &here);
    world.job_sees(&["here"], &[("a.bin", &here["a.bin"]), ("empty", b"")]);
    world.job_sees(&["here/sub/b.bin=c.bin"], &[("c.bin", &here["sub/b.bin"])]);
    // Kept at the leader alone, until a job names it.
    let report = put(&world.addr(), "later", &world.source("later", &later), &["--target", "none"]);
    assert_eq!((number(&report["targets"]), number(&report["moved"])), (0, 0), "{report:#}");
    assert!(see(&worker.cache(), "later").is_none());
    world.job_sees(
        &["later/a.bin=x.bin", "here/a.bin"],
        &[("x.bin", &later["a.bin"]), ("a.bin", &here["a.bin"])],
    );
    shows(&worker, "later", &later);
    world.until_state("later", &worker, "held");
    // Nobody knows it.
    let (code, out, err) = world.job(&["nobody/a.bin"]);
    assert_eq!(code, Some(1), "{out}{err}");
    assert!(format!("{out}{err}").contains("Cache miss: nobody"), "{out}{err}");
    // It may be one that only a worker's directory has: that is said.
    assert!(err.contains("has no dataset \"nobody\""), "{err}");
    // A name that the dataset has not, and one that is like another.
    let (code, out, err) = world.job(&["here/b.bin"]);
    assert_eq!((code, out.as_str()), (Some(5), ""), "{err}");
    let why = "dataset here has no file or folder \"b.bin\"; did you mean";
    assert!(err.contains(why) && err.contains("\"sub/b.bin\""), "{err}");
}

#[test]
fn ca08_a_dataset_of_any_number_of_files_is_named_as_a_whole_or_by_a_folder_and_wrong_names_are_said()
 {
    let world = World::durable();
    let tree = r#"find * -type f -exec sha256sum {} + | while read hash name; do echo "$name $hash"; done"#;
    let _worker = Holder::start(world.leader.port, 1, &[("tree", tree)], &[]);
    let name = |number: usize| format!("part-{}/file-{number:05}.txt", number % 3);
    let many: Files = (0..2_500).map(|number| (name(number), format!("{number}").into())).collect();
    put(&world.addr(), "many-v1", &world.source("many", &many), &[]);
    put(&world.addr(), "other", &world.source("other", &files(3, 1000)), &["--target", "none"]);
    let addr = world.addr();
    let submit = |selected: &[&str]| {
        let mut args = vec!["submit", &addr, "tree", "--progress", "none"];
        selected.iter().for_each(|selected| args.extend(["--dataset", selected]));
        heft(&args)
    };
    // Longer than a page.
    let (code, out, err) = submit(&["many-v1"]);
    assert_eq!(code, Some(0), "{err}");
    for number in [0, 999, 1_000, 1_001, 2_499] {
        let line = format!("{} {}", name(number), to_hex(&sha256(number.to_string().as_bytes())));
        assert!(out.lines().any(|found| found == line), "no {line:?}");
    }
    assert_eq!(out.lines().filter(|line| line.starts_with("part-")).count(), 2_500);
    // A folder, under another name, and a file.
    let (code, out, err) = submit(&["many-v1/part-1=in", "other/sub/b.bin=b"]);
    assert_eq!(code, Some(0), "{err}");
    let line = format!("in/file-02500.txt {}", to_hex(&sha256(b"2500")));
    assert!(!out.contains(&line), "there is none");
    let line = format!("in/file-02497.txt {}", to_hex(&sha256(b"2497")));
    assert!(out.lines().any(|found| found == line), "no {line:?}: {out}");
    assert_eq!(out.lines().filter(|line| line.starts_with("in/")).count(), 833);
    assert_eq!(out.lines().filter(|line| line.starts_with("b ")).count(), 1);
    // Nothing is submitted for a wrong id, folder or file.
    let jobs = || {
        let (_, out, _) = heft(&["status", &addr, "--output", "json"]);
        serde_json::from_str::<Value>(&out).unwrap()["jobs"].clone()
    };
    let before = jobs();
    for (selected, said) in [
        ("mny-v1", "lists them); did you mean \"many-v1\"?"),
        ("many-v2/part-1", "lists them); did you mean \"many-v1\"?"),
        ("many-v1/prt-1", "no file or folder \"prt-1\"; did you mean \"part-1\""),
        ("many-v1/file-00007.txt", "did you mean \"part-1/file-00007.txt\"?"),
        ("other/sub/b", "no file or folder \"sub/b\""),
    ] {
        let (code, out, err) = submit(&[selected]);
        assert_eq!((code, out.as_str()), (Some(5), ""), "{selected}: {err}");
        assert!(err.contains(said), "{selected}: {err}");
    }
    assert_eq!(jobs(), before);
    // What stands where, of all of them.
    let all = dataset_ok(&addr, &["status", "--all"]);
    let rows = all["sets"].as_array().unwrap();
    let ids: Vec<&str> = rows.iter().map(|row| row["cache_id"].as_str().unwrap()).collect();
    assert_eq!(ids, ["many-v1", "other"]);
    assert_eq!((&rows[0]["held"], &rows[0]["workers"]), (&json!(1), &json!([])));
    let (code, shown, err) = heft(&["dataset", &addr, "status", "--all"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        shown.lines().any(|line| line.starts_with("many-v1")
            && line.split_whitespace().any(|word| word == "held")),
        "{shown}"
    );
}

#[test]
fn a_new_version_moves_what_changed_to_the_leader_and_to_workers() {
    let world = World::durable();
    let workers = [world.worker(1, &[]), world.worker(2, &[])];
    let mut files = Files::from([
        ("large.bin".to_owned(), noise(24 * MIB, 1)),
        ("other.bin".to_owned(), noise(8 * MIB, 2)),
    ]);
    let all = 32 * MIB as u64;
    let first = put(&world.addr(), "set", &world.source("set", &files), &[]);
    assert!(number(&first["received"]) >= all && number(&first["moved"]) >= 2 * all, "{first:#}");
    // A byte in the middle, some put in, some behind, and a file more.
    let large = files.get_mut("large.bin").unwrap();
    large[12 * MIB] ^= 1;
    large.splice(5 * MIB..5 * MIB, noise(100, 3));
    large.extend(noise(1000, 4));
    files.insert("new.bin".to_owned(), noise(1000, 5));
    let path = world.source("set", &files);
    let (code, refused, _) = dataset(&world.addr(), &["put", "set", path.to_str().unwrap()]);
    assert_eq!((code, &refused["status"]), (Some(3), &json!("REFUSED")), "{refused:#}");
    let second = put(&world.addr(), "set", &path, &["--replace"]);
    assert_eq!(number(&second["ok"]), 2, "{second:#}");
    assert!(number(&second["received"]) < all * 8 / 100, "{second:#}");
    assert!(number(&second["moved"]) < 2 * all * 8 / 100, "{second:#}");
    workers.iter().for_each(|worker| shows(worker, "set", &files));
    // The same again: nothing moves.
    let again = put(&world.addr(), "set", &path, &[]);
    assert_eq!((number(&again["skipped"]), number(&again["moved"])), (2, 0), "{again:#}");
    assert_eq!(number(&again["received"]), 0, "{again:#}");
}

#[test]
fn ca09_workers_that_join_later_get_datasets_also_from_a_leader_that_was_killed() {
    let mut world = World::durable();
    let files = files(3, 4 * MIB);
    let (path, target) = (world.source("set", &files), ["--target", "job.assign.calc.>"]);
    let (code, report, err) =
        dataset(&world.addr(), &[&["put", "set", path.to_str().unwrap()], &target[..]].concat());
    assert_eq!((code, number(&report["targets"])), (Some(0), 0), "{report:#}");
    assert!(err.contains("no worker matches"), "{err}");
    let first = world.worker(1, &[]);
    world.until_state("set", &first, "held");
    shows(&first, "set", &files);
    world.restart();
    let second = world.worker(2, &[]);
    world.until_state("set", &second, "held");
    world.until_state("set", &first, "held");
    shows(&second, "set", &files);
    // One of another pattern does not.
    let other = world.worker(3, &["group-x"]);
    assert_eq!(world.state("set", &other), json!(null));
    // All files of a dataset, right after another restart.
    world.restart();
    world.job_sees(&["set"], &[("a.bin", &files["a.bin"])]);
    let again = put(&world.addr(), "set", &path, &target);
    assert_eq!(number(&again["received"]), 0, "{again:#}");
}

#[test]
fn a_dataset_that_made_room_for_another_is_reported_and_comes_back_for_a_job() {
    let world = World::durable();
    let worker = world.worker(1, &["--cache-budget", "12MiB"]);
    let datasets = [files(4, 5 * MIB), files(5, 5 * MIB), files(6, 5 * MIB)];
    for (id, files) in ["first", "second", "third"].iter().zip(&datasets) {
        let report = put(&world.addr(), id, &world.source(id, files), &[]);
        assert_eq!(number(&report["ok"]), 1, "{report:#}");
    }
    let gone = world.until_state("first", &worker, "gone");
    assert!(gone["text"].as_str().unwrap().contains("evicted to make room for third"), "{gone}");
    assert!(see(&worker.cache(), "first").is_none());
    shows(&worker, "second", &datasets[1]);
    // Eviction is not a loss: it does not come back by itself.
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(world.state("first", &worker)["state"], "gone");
    world.job_sees(&["first/a.bin"], &[("a.bin", &datasets[0]["a.bin"])]);
    world.until_state("first", &worker, "held");
    world.until_state("second", &worker, "gone");
    // Nor when the worker is started again; it comes when an operator asks.
    let pushed = dataset_ok(&world.addr(), &["push", "second"]);
    assert_eq!(number(&pushed["targets"]), 1, "{pushed:#}");
    world.until_state("second", &worker, "held");
    shows(&worker, "second", &datasets[1]);
    world.until_state("third", &worker, "gone");
}

#[test]
fn a_worker_without_room_says_so_before_bytes_move() {
    let world = World::durable();
    let (small, large) = (world.worker(1, &["--cache-budget", "4MiB"]), world.worker(2, &[]));
    let files = files(7, 8 * MIB);
    let path = world.source("set", &files);
    let (code, report, err) = dataset(&world.addr(), &["put", "set", path.to_str().unwrap()]);
    assert_eq!(code, Some(1), "{report:#} {err}");
    assert_eq!((number(&report["ok"]), number(&report["failed"])), (1, 1), "{report:#}");
    let workers = report["workers"].as_array().unwrap();
    let said = workers.iter().find(|worker| worker["id"] == small.id.to_string()).unwrap();
    let text = said["message"].as_str().unwrap();
    assert!(text.starts_with("no room: needs 8 MiB, the cache may hold 4 MiB"), "{text}");
    shows(&large, "set", &files);
    let moved = number(&report["moved"]);
    assert!(moved < 9 * MIB as u64, "one worker's share: {moved}");
    assert!(small.own("staging").is_empty() && small.own("sets").is_empty());
    assert_eq!(world.state("set", &small)["state"], "failed");
    // With --wait 1 one is enough.
    let report = put(&world.addr(), "set", &path, &["--wait", "1"]);
    assert_eq!(number(&report["skipped"]), 1, "{report:#}");
    // Jobs go where there is room.
    world.job_sees(&["set/a.bin"], &[("a.bin", &files["a.bin"])]);
}

#[test]
fn a_file_that_was_damaged_in_a_cache_is_found_dropped_and_fetched_again() {
    let world = World::durable();
    let mut worker = world.worker(1, &[]);
    let files = files(8, 6 * MIB);
    put(&world.addr(), "set", &world.source("set", &files), &[]);
    let path = worker.cache().join("set/a.bin");
    let damage = |at: usize| {
        let mut bytes = fs::read(&path).unwrap();
        let changed = fs::metadata(&path).unwrap().modified().unwrap();
        bytes[at] ^= 1;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        fs::write(&path, &bytes).unwrap();
        fs::File::options().append(true).open(&path).unwrap().set_modified(changed).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    };
    damage(1_000_000);
    let (code, verified, _) = dataset(&world.addr(), &["verify", "set"]);
    assert_eq!(code, Some(1), "{verified:#}");
    let said = &verified["workers"][0];
    assert_eq!(said["status"], "FAILED", "{verified:#}");
    assert!(said["message"].as_str().unwrap().contains("a.bin"), "{verified:#}");
    assert_eq!(verified["packs_bad"], json!([]), "{verified:#}");
    // It comes again, unasked.
    world.until_state("set", &worker, "held");
    shows(&worker, "set", &files);
    dataset_ok(&world.addr(), &["verify", "set"]);
    // One that is damaged while nobody looks is found by the next start.
    worker.proc.kill();
    damage(2_000_000);
    worker.start_again();
    world.job_sees(&["set/a.bin"], &[("a.bin", &files["a.bin"])]);
    dataset_ok(&world.addr(), &["verify", "set"]);
    // Or before the next job, if it looks changed.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(&path, b"something else").unwrap();
    world.job_sees(&["set/a.bin"], &[("a.bin", &files["a.bin"])]);
    world.until_state("set", &worker, "held");
    shows(&worker, "set", &files);
}

/// What is left in a worker's cache directory when nothing is held.
fn is_empty(worker: &Holder) {
    until("the cache is empty", || {
        let parts =
            [worker.entries(), worker.own("sets"), worker.own("staging"), worker.own("trash")];
        let is_so = parts[0] == [".heft"] && parts[1..].iter().all(Vec::is_empty);
        if is_so { Ok(()) } else { Err(format!("{parts:?}")) }
    });
}

fn has_no_blobs(world: &World) {
    until("the leader has no blobs", || {
        let (_, out, _) = heft(&["status", &world.addr(), "--output", "json"]);
        let status: Value = serde_json::from_str(&out).unwrap();
        let blobs = &status["leader"]["blobs"];
        if *blobs == 0 { Ok(()) } else { Err(format!("{blobs} blobs")) }
    });
}

#[test]
fn rm_frees_the_disks_of_the_leader_and_of_workers_also_of_those_that_are_away() {
    let world = World::durable();
    let (here, mut away) = (world.worker(1, &[]), world.worker(2, &[]));
    for id in ["one", "two"] {
        put(&world.addr(), id, &world.source(id, &files(9, 2 * MIB)), &[]);
    }
    away.proc.kill();
    for id in ["one", "two"] {
        let removed = dataset_ok(&world.addr(), &["rm", id]);
        assert_eq!(removed["removed"], true, "{removed:#}");
    }
    is_empty(&here);
    has_no_blobs(&world);
    // Nothing waits to be written again, either.
    until("the disk is given back", || {
        let (_, out, _) = heft(&["status", &world.addr(), "--output", "json"]);
        let status: Value = serde_json::from_str(&out).unwrap();
        let leader = &status["leader"];
        assert!(leader["recycled_bytes_max"].as_u64() <= Some(1 << 30), "{leader}");
        let left = fs::read_dir(world.dir.join("data/blobs")).unwrap().count();
        if leader["recycled_bytes"] == 0 && left == 0 {
            Ok(())
        } else {
            Err(format!("{left}, {leader}"))
        }
    });
    away.start_again();
    is_empty(&away);
    let (code, shown, _) = dataset(&world.addr(), &["rm", "one"]);
    assert_eq!((code, &shown["error"]["code"]), (Some(5), &json!("not-found")), "{shown}");
    let message = shown["error"]["message"].as_str().unwrap();
    assert!(message.contains("has no dataset \"one\""), "{shown}");
    assert_eq!(dataset_ok(&world.addr(), &["ls"])["sets"], json!([]));
}

#[test]
fn rm_reaches_a_worker_that_was_away_also_if_the_leader_was_killed_meanwhile() {
    let mut world = World::durable();
    let mut away = world.worker(1, &[]);
    put(&world.addr(), "one", &world.source("one", &files(10, 2 * MIB)), &[]);
    away.proc.kill();
    dataset_ok(&world.addr(), &["rm", "one"]);
    world.restart();
    away.start_again();
    is_empty(&away);
}

#[test]
fn a_job_that_comes_after_a_replace_sees_the_new_dataset_also_where_a_job_had_brought_the_old_one()
{
    let world = World::durable();
    let mut worker = world.worker(1, &[]);
    let versions = [files(15, 2 * MIB), files(16, 2 * MIB), files(17, 2 * MIB)];
    put(&world.addr(), "set", &world.source("v0", &versions[0]), &["--target", "none"]);
    world.job_sees(&["set/a.bin"], &[("a.bin", &versions[0]["a.bin"])]);
    shows(&worker, "set", &versions[0]);
    put(
        &world.addr(),
        "set",
        &world.source("v1", &versions[1]),
        &["--target", "none", "--replace"],
    );
    world.job_sees(&["set/a.bin"], &[("a.bin", &versions[1]["a.bin"])]);
    // A worker that was away meanwhile.
    worker.proc.kill();
    put(
        &world.addr(),
        "set",
        &world.source("v2", &versions[2]),
        &["--target", "none", "--replace"],
    );
    worker.start_again();
    world.job_sees(&["set/a.bin"], &[("a.bin", &versions[2]["a.bin"])]);
    shows(&worker, "set", &versions[2]);
}

#[test]
fn two_that_put_other_content_under_one_id_leave_one_of_both() {
    let world = World::durable();
    let worker = world.worker(1, &[]);
    let both = [files(11, 6 * MIB), files(12, 6 * MIB)];
    let paths = [world.source("a", &both[0]), world.source("b", &both[1])];
    for round in 0..3 {
        for args in [&[][..], &["--replace"]] {
            let id = format!("set-{round}-{}", args.len());
            let puts = paths.each_ref().map(|path| start_put(&world.addr(), &id, path, args));
            let ended = puts.map(|put| {
                let (code, lines) = put.finish();
                (code, serde_json::from_str::<Value>(&lines.join("\n")).unwrap())
            });
            if args.is_empty() {
                let codes: Vec<_> = ended.iter().map(|(code, _)| *code).collect();
                assert!(codes == [Some(0), Some(3)] || codes == [Some(3), Some(0)], "{ended:#?}");
                let (_, refused) = ended.iter().find(|(code, _)| *code == Some(3)).unwrap();
                assert_eq!(refused["reason"], "conflict", "{refused:#}");
            } else {
                // One of them may hear that its content was replaced by the other's; both at once
                // cannot be.
                assert!(ended.iter().any(|(code, _)| *code == Some(0)), "{ended:#?}");
            }
            world.until_state(&id, &worker, "held");
            let seen = see(&worker.cache(), &id).unwrap();
            let found = both.iter().position(|files| prints(files) == seen.files);
            let status = dataset_ok(&world.addr(), &["status", &id]);
            let kept = ended.iter().position(|(_, report)| report["digest"] == status["digest"]);
            assert!(found.is_some() && found == kept, "{found:?} {kept:?} {status:#} {ended:#?}");
            dataset_ok(&world.addr(), &["verify", &id]);
        }
    }
}

#[test]
fn a_leader_that_keeps_nothing_does_the_same_as_long_as_it_lives() {
    let mut world = World::start(&["--durability", "memory"]);
    let worker = world.worker(1, &[]);
    let (first, mut second) = (files(13, 5 * MIB), files(14, 3 * MIB));
    let path = world.source("set", &first);
    put(&world.addr(), "set", &path, &[]);
    put(&world.addr(), "later", &world.source("later", &second), &["--target", "none"]);
    shows(&worker, "set", &first);
    world.job_sees(
        &["set/a.bin", "later/sub/b.bin=b.bin"],
        &[("a.bin", &first["a.bin"]), ("b.bin", &second["sub/b.bin"])],
    );
    let late = world.worker(2, &[]);
    world.until_state("set", &late, "held");
    shows(&late, "set", &first);
    second.get_mut("a.bin").unwrap()[MIB] ^= 1;
    let report = put(&world.addr(), "later", &world.source("later", &second), &["--replace"]);
    assert!(number(&report["received"]) < 2 * MIB as u64, "{report:#}");
    shows(&late, "later", &second);
    dataset_ok(&world.addr(), &["verify", "later"]);
    // A restart forgets them; what workers have need not come again.
    world.restart();
    assert_eq!(dataset_ok(&world.addr(), &["ls"])["sets"], json!([]));
    until("the workers are back", || {
        let (_, out, _) = heft(&["status", &world.addr(), "--output", "json"]);
        let are = [&worker, &late].iter().all(|worker| out.contains(&worker.id.to_string()));
        if are { Ok(()) } else { Err(out) }
    });
    let again = put(&world.addr(), "set", &path, &[]);
    assert_eq!((number(&again["skipped"]), number(&again["targets"])), (2, 2), "{again:#}");
    assert!(number(&again["received"]) >= 5 * MIB as u64, "{again:#}");
    assert!(number(&again["moved"]) < 100_000, "{again:#}");
    dataset_ok(&world.addr(), &["rm", "set"]);
    has_no_blobs(&world);
}

#[test]
fn a_put_over_a_line_that_breaks_again_and_again_goes_on_where_it_was() {
    let world = World::durable();
    // Less than a pack has, so that none ever comes whole over one connection.
    let plans = (0..40).map(|_| Plan::Cut(Way::ToLeader, 5 * MIB as u64));
    let proxy = Proxy::start(world.leader.port, plans);
    let bytes = noise(20 * MIB, 77);
    let source =
        world.source("broken", &vec![("big.bin".to_owned(), bytes.clone())].into_iter().collect());
    let (code, out, err) =
        heft(&["dataset", &proxy.addr(), "put", "broken", source.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{out}{err}");
    let (sent, cuts) = (proxy.bytes(Way::ToLeader), proxy.cuts());
    assert!(cuts >= 3, "{cuts} cuts");
    assert!(
        sent < bytes.len() as u64 + (cuts + 1) * 2 * MIB as u64,
        "{sent} bytes with {cuts} cuts"
    );
}
