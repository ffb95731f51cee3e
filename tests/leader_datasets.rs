//! Datasets at a real leader, with a scripted client and scripted workers: what is asked for, what
//! is sent to whom, what is kept over a restart.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "support/datasets.rs"]
mod datasets;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;

use std::path::{Path, PathBuf};

use chunking::message::{
    Body, DatasetEntry, DatasetList, DatasetState, Have, Reason, Release, Verdict,
};
use chunking::{Digest, Kind};
use datasets::{Dataset, FakeWorker, Putter, TakesBack};
use heft::model::CacheStatus;
use noise::noise;
use procs::Leader;
use raw::Raw;
use serde_json::json;
use uuid::Uuid;

fn worker(leader: &Leader, number: u128, pattern: &str) -> FakeWorker {
    let id = Uuid::from_u128(number);
    FakeWorker::new(Raw::worker(leader, id, pattern), id)
}

fn files(seed: u64) -> Vec<(String, Vec<u8>)> {
    vec![
        ("data/a.bin".to_owned(), noise(5_000_000, seed)),
        ("cfg/b.cfg".to_owned(), b"x = 1\n".to_vec()),
        ("empty".to_owned(), Vec::new()),
    ]
}

fn dataset_of(files: &[(String, Vec<u8>)]) -> Dataset {
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
    Dataset::of(&files)
}

#[test]
fn ca02_c18_a_dataset_goes_to_every_worker_that_matches_and_the_requester_hears_of_each() {
    let leader = Leader::start(&[]);
    let files = files(1);
    let dataset = dataset_of(&files);
    let mut inside = worker(&leader, 1, "job.assign.calcA.*");
    let mut outside = worker(&leader, 2, "job.assign.other");
    let (target, cache) = ("job.assign.calcA.>", "set-1");
    let runs = std::thread::spawn(move || {
        inside.run_until_shown(cache);
        inside
    });
    let mut client = Raw::client(&leader, "c");
    let outcome = Putter::new(&dataset, cache, target).put(&mut client).unwrap();
    let inside = runs.join().unwrap();
    for (name, bytes) in &files {
        assert_eq!(&inside.shown[cache][name], bytes, "{name}");
    }
    let over = outcome.over.unwrap();
    assert_eq!((over.targets, over.ok, over.missing), (1, 1, 0));
    assert_eq!(outcome.acks.len(), 1);
    assert_eq!(
        (&outcome.acks[0].status, outcome.acks[0].message.as_str()),
        (&CacheStatus::Ok, "added=3")
    );
    let worker = outcome.acks[0].worker.as_deref().unwrap();
    assert!(worker.starts_with(&Uuid::from_u128(1).to_string()), "{worker}");
    assert!(over.received >= 5_000_000 && over.moved >= 5_000_000, "{over:?}");
    // Again: nothing moves.
    let again = Putter::new(&dataset, cache, target).put(&mut client).unwrap();
    let over = again.over.unwrap();
    assert_eq!((over.skipped, over.received, over.moved, again.sent), (1, 0, 0, 0), "idempotent");
    assert_eq!(again.acks[0].message, "already-present=3");
    let status = client.ask("dataset.status", &json!({ "cache_id": cache }));
    assert_eq!((&status["held"], &status["files"]), (&json!(1), &json!(3)), "{status}");
    let listed = client.ask("dataset.ls", &json!({}));
    assert_eq!(listed["sets"][0]["cache_id"], cache);
    outside.have(Vec::new(), true);
    assert!(outside.shown.is_empty());
}

#[test]
fn other_content_under_the_same_id_is_refused_with_both_digests_or_moves_what_changed() {
    let leader = Leader::start(&[]);
    let mut files = files(2);
    let first = dataset_of(&files);
    let mut held = worker(&leader, 1, "job.assign.>");
    let mut client = Raw::client(&leader, "c");
    let runs = std::thread::spawn(move || {
        held.run_until_shown("set");
        held
    });
    Putter::new(&first, "set", "job.assign.>").put(&mut client).unwrap().over.unwrap();
    let mut held = runs.join().unwrap();
    let before = held.received;
    files[0].1[2_500_000] ^= 1;
    let second = dataset_of(&files);
    let refused =
        Putter::new(&second, "set", "job.assign.>").put(&mut client).unwrap().refused.unwrap();
    assert_eq!(refused.reason, Reason::CONFLICT);
    for digest in [first.manifest.digest(), second.manifest.digest()] {
        assert!(refused.text.as_str().contains(&digest.to_string()), "{}", refused.text);
    }
    held.shown.clear();
    let runs = std::thread::spawn(move || {
        held.run_until_shown("set");
        held
    });
    let put = Putter { replace: true, ..Putter::new(&second, "set", "job.assign.>") };
    let outcome = put.put(&mut client).unwrap();
    let held = runs.join().unwrap();
    assert_eq!(held.shown["set"]["data/a.bin"], files[0].1);
    assert!(outcome.sent < 1_500_000, "{} bytes to the leader", outcome.sent);
    assert!(held.received - before < 1_700_000, "{} bytes to the worker", held.received - before);
}

#[test]
fn pe08_datasets_outlive_the_leader_and_workers_that_join_later_get_them() {
    let data = tempfile::tempdir().unwrap();
    let args = ["--data", data.path().to_str().unwrap()];
    let leader = Leader::start(&args);
    let files = files(3);
    let dataset = dataset_of(&files);
    let mut client = Raw::client(&leader, "c");
    let outcome = Putter::new(&dataset, "late", "job.assign.>").put(&mut client).unwrap();
    let over = outcome.over.unwrap();
    assert_eq!(over.targets, 0);
    assert!(over.text.as_str().contains("no connected worker matches"), "{}", over.text);
    drop(leader);
    let leader = Leader::start(&args);
    let mut late = worker(&leader, 1, "job.assign.x");
    late.run_until_shown("late");
    assert_eq!(late.shown["late"]["data/a.bin"], files[0].1);
    let mut client = Raw::client(&leader, "c");
    let removed = client.ask("dataset.rm", &json!({ "cache_id": "late" }));
    assert_eq!(removed["removed"], true, "{removed}");
    late.run_until(|worker, _| worker.shown.is_empty());
    assert_eq!(client.ask("dataset.ls", &json!({}))["sets"], json!([]));
    let status = client.ask("status", &json!({}));
    assert_eq!(status["leader"]["blobs"], 0, "{status}");
}

#[test]
fn a_put_that_was_cut_goes_on_where_it_was() {
    let data = tempfile::tempdir().unwrap();
    let args = ["--data", data.path().to_str().unwrap()];
    let leader = Leader::start(&args);
    let bytes = noise(40_000_000, 4);
    let dataset = Dataset::of(&[("a", &bytes)]);
    let mut client = Raw::client(&leader, "c");
    let cut = Putter { leave_after: Some(25), ..Putter::new(&dataset, "cut", "none") };
    assert!(cut.put(&mut client).is_none());
    drop(client);
    drop(leader);
    let leader = Leader::start(&args);
    let mut client = Raw::client(&leader, "c");
    let outcome = Putter::new(&dataset, "cut", "none").put(&mut client).unwrap();
    assert!(outcome.sent < 32_000_000, "{} bytes were sent again", outcome.sent);
    let verified = client.ask("dataset.verify", &json!({ "cache_id": "cut" }));
    assert_eq!(verified["packs_bad"], json!([]), "{verified}");
    assert!(verified["packs_good"].as_u64().unwrap() >= 3, "{verified}");
}

#[test]
fn a_piece_that_is_not_what_it_should_be_is_asked_for_again_then_refused() {
    let leader = Leader::start(&[]);
    let bytes = noise(3_000_000, 5);
    let dataset = Dataset::of(&[("a", &bytes)]);
    let mut client = Raw::client(&leader, "c");
    let once =
        Putter { spoil: 1, ..Putter::new(&dataset, "spoiled", "none") }.put(&mut client).unwrap();
    assert!(once.over.is_some(), "{once:?}");
    let often = Putter { spoil: 9, ..Putter::new(&dataset, "spoiled-2", "none") };
    let bytes = noise(3_000_000, 6);
    let other = Dataset::of(&[("a", &bytes)]);
    let refused = Putter { dataset: &other, ..often }.put(&mut client).unwrap().refused.unwrap();
    assert_eq!(refused.reason, Reason::BAD_DIGEST, "{}", refused.text);
    let listed = client.ask("dataset.ls", &json!({}));
    assert_eq!(listed["sets"].as_array().unwrap().len(), 1);
}

#[test]
fn what_cannot_be_a_dataset_is_refused_with_the_reason() {
    let leader = Leader::start(&[]);
    let dataset = Dataset::of(&[("a", b"x")]);
    let mut client = Raw::client(&leader, "c");
    let long = "x".repeat(300);
    for cache in ["..", "/etc", "a/b", "nul\0", "dots.", &long, ""] {
        let refused =
            Putter::new(&dataset, cache, "none").put(&mut client).unwrap().refused.unwrap();
        assert_eq!(refused.reason, Reason::INVALID, "{cache:?}: {}", refused.text);
    }
    for name in ["../x", "/x", "a//b", "a\\b", "a\0b", ".", "a/c:/x", "a\nb", "dot."] {
        let bad = Dataset::of(&[(name, b"x")]);
        let refused = Putter::new(&bad, "names", "none").put(&mut client).unwrap().refused.unwrap();
        assert_eq!(refused.reason, Reason::INVALID, "{name:?}: {}", refused.text);
    }
    let one = Dataset::of(&[("STRASSE", b"x"), ("straße", b"x")]);
    let refused = Putter::new(&one, "names", "none").put(&mut client).unwrap().refused.unwrap();
    assert!(refused.text.as_str().contains("differ in case alone"), "{}", refused.text);
    let nothing = Dataset::of(&[]);
    let refused =
        Putter::new(&nothing, "nothing", "none").put(&mut client).unwrap().refused.unwrap();
    assert!(refused.text.as_str().contains("no files"), "{}", refused.text);
    let refused = Putter::new(&dataset, "x", "a\nb").put(&mut client).unwrap().refused.unwrap();
    assert_eq!(refused.reason, Reason::INVALID, "{}", refused.text);
    assert_eq!(client.ask("dataset.ls", &json!({}))["sets"], json!([]));
}

#[test]
fn a_worker_that_cannot_hold_it_is_told_of_and_the_put_ends() {
    let leader = Leader::start(&[]);
    let dataset = dataset_of(&files(7));
    let mut full = worker(&leader, 1, "job.assign.>");
    full.fails_with = Some("no room: needs 5 MB, the cache may hold 1 MB".to_owned());
    let runs = std::thread::spawn(move || {
        full.run_until(|worker, frame| frame.kind == Kind::Done && worker.received > 0);
        full
    });
    let mut client = Raw::client(&leader, "c");
    let outcome = Putter::new(&dataset, "big", "job.assign.>").put(&mut client).unwrap();
    let over = outcome.over.unwrap();
    assert_eq!((over.targets, over.failed), (1, 1));
    assert!(outcome.acks[0].message.contains("no room"), "{:?}", outcome.acks);
    let full = runs.join().unwrap();
    assert!(full.received < 100_000, "told before bytes move: {}", full.received);
    let status = client.ask("dataset.status", &json!({ "cache_id": "big" }));
    assert_eq!(status["workers"][0]["state"], "failed", "{status}");
}

#[test]
fn a_put_to_workers_that_never_answer_is_over_at_its_deadline() {
    let leader = Leader::start(&[]);
    let dataset = Dataset::of(&[("a", b"x")]);
    let _silent = Raw::worker(&leader, Uuid::from_u128(1), "job.assign.>");
    let mut client = Raw::client(&leader, "c");
    let put = Putter { deadline_ms: 300, ..Putter::new(&dataset, "set", "job.assign.>") };
    let over = put.put(&mut client).unwrap().over.unwrap();
    assert_eq!((over.targets, over.missing), (1, 1));
}

fn entry(state: DatasetState, cache: &str, digest: Digest) -> DatasetEntry {
    DatasetEntry {
        state,
        digest,
        cache_id: cache.to_owned().try_into().unwrap(),
        text: "for room".into(),
    }
}

#[test]
fn what_a_worker_gave_up_is_pushed_again_only_when_a_job_needs_it_or_somebody_asks() {
    let leader = Leader::start(&["--durability", "memory"]);
    let files = files(8);
    let dataset = dataset_of(&files);
    let mut client = Raw::client(&leader, "c");
    let mut held = worker(&leader, 1, "job.assign.>");
    let runs = std::thread::spawn(move || {
        held.run_until_shown("set");
        held
    });
    Putter::new(&dataset, "set", "job.assign.>").put(&mut client).unwrap().over.unwrap();
    let mut held = runs.join().unwrap();
    let digest = dataset.manifest.digest();
    held.have(vec![entry(DatasetState::Gone, "set", digest)], false);
    (held.shown, held.pieces) = Default::default();
    let state = loop {
        let status = client.ask("dataset.status", &json!({ "cache_id": "set" }));
        if status["workers"][0]["state"] != "held" {
            break status["workers"][0].clone();
        }
    };
    assert_eq!((&state["state"], &state["text"]), (&json!("gone"), &json!("for room")));
    // Nothing comes by itself; a job that needs it brings it.
    let received = held.received;
    held.have(vec![entry(DatasetState::Wanted, "set", digest)], false);
    held.run_until_shown("set");
    assert!(held.received > received);
    // So does an operator.
    held.have(vec![entry(DatasetState::Gone, "set", digest)], false);
    (held.shown, held.pieces) = Default::default();
    while client.ask("dataset.status", &json!({ "cache_id": "set" }))["held"] != 0 {}
    let pushed = client.ask("dataset.push", &json!({ "cache_id": "set" }));
    assert_eq!((&pushed["targets"], &pushed["held"]), (&json!(1), &json!(0)));
    held.run_until_shown("set");
    // What the leader does not have it says.
    held.have(vec![entry(DatasetState::Wanted, "unknown", digest)], false);
    let mut why = None;
    held.run_until(|_, frame| {
        if frame.kind == Kind::Release {
            why = Some(Release::decode(&frame.payload).unwrap());
        }
        why.is_some()
    });
    let why = why.unwrap();
    assert_eq!((why.reason, why.cache_id.as_str()), (Reason::UNKNOWN, "unknown"));
}

#[test]
fn what_a_worker_gave_up_before_this_leader_knew_it_does_not_come_back_unasked() {
    let leader = Leader::start(&["--durability", "memory"]);
    let files = files(8);
    let (dataset, other) = (dataset_of(&files), Dataset::of(&[("a", b"other")]));
    let mut client = Raw::client(&leader, "c");
    for (dataset, name) in [(&dataset, "set"), (&other, "other"), (&other, "released")] {
        Putter::new(dataset, name, "job.assign.>").put(&mut client).unwrap().over.unwrap();
    }
    let id = Uuid::from_u128(1);
    let none = Digest { bytes: [0; 32], ..other.manifest.digest() };
    let gone = vec![
        entry(DatasetState::Gone, "set", dataset.manifest.digest()),
        entry(DatasetState::Gone, "other", dataset.manifest.digest()),
        entry(DatasetState::Gone, "released", none),
    ];
    let mut joins = FakeWorker::with(Raw::worker(&leader, id, "job.assign.>"), id, gone);
    // Of the second it gave up another content; the third it was told to drop.
    joins.run_until_shown("other");
    joins.run_until_shown("released");
    let status = client.ask("dataset.status", &json!({ "cache_id": "set" }));
    let state = &status["workers"][0];
    assert_eq!((&state["state"], &state["text"]), (&json!("gone"), &json!("for room")));
    assert!(!joins.shown.contains_key("set"));
    client.ask("dataset.push", &json!({ "cache_id": "set" }));
    joins.run_until_shown("set");
}

#[test]
fn a_worker_that_takes_nothing_holds_up_nobody() {
    let leader = Leader::start(&[]);
    let bytes = noise(24_000_000, 9);
    let dataset: &'static Dataset = Box::leak(Box::new(Dataset::of(&[("a", &bytes)])));
    let mut quick = worker(&leader, 1, "job.assign.>");
    // It says what it lacks, and reads nothing from then on.
    let mut stuck = worker(&leader, 2, "job.assign.>");
    let runs = std::thread::spawn(move || {
        quick.run_until_shown("set");
        quick
    });
    let sticks = std::thread::spawn(move || {
        stuck.run_until(|_, frame| frame.kind == Kind::Pack);
        stuck
    });
    let mut client = Raw::client(&leader, "c");
    let putter = Putter { deadline_ms: 20_000, ..Putter::new(dataset, "set", "job.assign.>") };
    let puts = std::thread::spawn(move || putter.put(&mut client).unwrap());
    let quick = runs.join().unwrap();
    assert_eq!(quick.shown["set"]["a"], bytes);
    let mut stuck = sticks.join().unwrap();
    stuck.run_until_shown("set");
    assert_eq!(stuck.shown["set"]["a"], bytes, "from the disk, when it goes on");
    let over = puts.join().unwrap().over.unwrap();
    assert_eq!((over.ok, over.missing), (2, 0));
}

#[test]
fn a_worker_that_is_cut_off_goes_on_with_what_it_has() {
    let leader = Leader::start(&[]);
    let bytes = noise(30_000_000, 10);
    let dataset = Dataset::of(&[("a", &bytes)]);
    let mut client = Raw::client(&leader, "c");
    Putter::new(&dataset, "set", "job.assign.>").put(&mut client).unwrap().over.unwrap();
    let mut cut = worker(&leader, 1, "job.assign.>");
    cut.run_until(|worker, _| worker.pieces.len() > 20);
    let (pieces, received) = (std::mem::take(&mut cut.pieces), cut.received);
    drop(cut);
    let mut again = worker(&leader, 1, "job.assign.>");
    again.pieces = pieces;
    again.run_until_shown("set");
    assert_eq!(again.shown["set"]["a"], bytes);
    assert!(again.received < 31_000_000 - received / 2, "{} after {received}", again.received);
}

/// The files of packs and manifests in a data directory, the largest first.
fn blob_files(data: &Path) -> Vec<PathBuf> {
    let mut files: Vec<(u64, PathBuf)> = std::fs::read_dir(data.join("blobs"))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| {
            let name = entry.file_name().into_string().unwrap();
            !name.ends_with(".map") && !name.starts_with("free")
        })
        .map(|entry| (entry.metadata().unwrap().len(), entry.path()))
        .collect();
    files.sort();
    files.into_iter().rev().map(|(_, path)| path).collect()
}

#[test]
fn a_dataset_that_is_replaced_for_others_is_not_served_in_its_old_content() {
    let leader = Leader::start(&[]);
    let mut files = files(11);
    let first = dataset_of(&files);
    let mut client = Raw::client(&leader, "c");
    let mut held = worker(&leader, 1, "job.assign.>");
    let runs = std::thread::spawn(move || {
        held.run_until_shown("set");
        held
    });
    Putter::new(&first, "set", "job.assign.>").put(&mut client).unwrap().over.unwrap();
    let mut held = runs.join().unwrap();
    files[1].1 = b"x = 2\n".to_vec();
    let second = dataset_of(&files);
    let put = Putter { replace: true, ..Putter::new(&second, "set", "none") };
    put.put(&mut client).unwrap().over.unwrap();
    held.run_until(|worker, _| worker.shown.is_empty());
    held.have(vec![entry(DatasetState::Wanted, "set", second.manifest.digest())], false);
    held.run_until_shown("set");
    assert_eq!(held.shown["set"]["cfg/b.cfg"], b"x = 2\n");
    // One that comes back with the old content gives it up, too.
    drop(held);
    let mut back = worker(&leader, 1, "job.assign.>");
    back.shown.insert("set".to_owned(), Default::default());
    back.have(vec![entry(DatasetState::Held, "set", first.manifest.digest())], true);
    back.run_until(|worker, _| worker.shown.is_empty());
}

#[test]
fn a_put_cannot_take_or_drop_what_is_another_ones() {
    let leader = Leader::start(&[]);
    let dataset = dataset_of(&files(12));
    let mut client = Raw::client(&leader, "c");
    Putter::new(&dataset, "mine", "none").put(&mut client).unwrap().over.unwrap();
    let version: Uuid = client.ask("dataset.ls", &json!({}))["sets"][0]["generation"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();
    let other = Dataset::of(&[("a", b"other")]);
    let mut thief = Raw::client(&leader, "thief");
    let theft = Putter { manifest: version, ..Putter::new(&other, "theirs", "none") };
    let refused = theft.put(&mut thief).unwrap().refused.unwrap();
    assert_eq!(refused.reason, Reason::INVALID, "{}", refused.text);
    drop(thief);
    let verified = client.ask("dataset.verify", &json!({ "cache_id": "mine" }));
    assert_eq!(verified["packs_bad"], json!([]), "{verified}");
    assert_eq!(verified["packs_good"], 2, "{verified}");
}

#[test]
fn who_waits_for_workers_hears_that_the_dataset_was_removed_or_the_worker_is_gone() {
    let leader = Leader::start(&["--worker-grace", "1s"]);
    let dataset: &'static Dataset = Box::leak(Box::new(Dataset::of(&[("a", b"x")])));
    let put = |mut client: Raw| {
        std::thread::spawn(move || {
            Putter::new(dataset, "set", "job.assign.>").put(&mut client).unwrap()
        })
    };
    let silent = worker(&leader, 1, "job.assign.>");
    let puts = put(Raw::client(&leader, "c"));
    let mut asks = Raw::client(&leader, "asks");
    while asks.ask("dataset.ls", &json!({}))["sets"] == json!([]) {}
    asks.ask("dataset.rm", &json!({ "cache_id": "set" }));
    let outcome = puts.join().unwrap();
    assert_eq!(outcome.over.unwrap().failed, 1);
    assert!(outcome.acks[0].message.contains("removed meanwhile"), "{:?}", outcome.acks);
    let puts = put(Raw::client(&leader, "c"));
    while asks.ask("dataset.ls", &json!({}))["sets"] == json!([]) {}
    drop(silent);
    let outcome = puts.join().unwrap();
    assert!(outcome.acks[0].message.contains("gone"), "{:?}", outcome.acks);
}

#[test]
fn a_dataset_that_lost_a_part_at_the_leader_fails_at_workers_and_is_mended_by_a_put() {
    let data = tempfile::tempdir().unwrap();
    let args = ["--data", data.path().to_str().unwrap()];
    let leader = Leader::start(&args);
    let bytes = noise(6_000_000, 13);
    let dataset = Dataset::of(&[("a", &bytes)]);
    let mut client = Raw::client(&leader, "c");
    Putter::new(&dataset, "set", "job.assign.>").put(&mut client).unwrap().over.unwrap();
    drop(leader);
    let pack = blob_files(data.path()).remove(0);
    let mut damaged = std::fs::read(&pack).unwrap();
    damaged[1_500_000] ^= 1;
    std::fs::write(&pack, damaged).unwrap();
    let leader = Leader::start(&args);
    let mut asks = Raw::client(&leader, "asks");
    let verified = loop {
        let verified = asks.ask("dataset.verify", &json!({ "cache_id": "set" }));
        if verified.get("error").is_none() {
            break verified;
        }
    };
    assert_eq!(verified["packs_bad"].as_array().unwrap().len(), 1, "{verified}");
    let mut lacking = worker(&leader, 1, "job.assign.>");
    lacking.run_until(|_, frame| frame.kind == Kind::Release);
    let status = asks.ask("dataset.status", &json!({ "cache_id": "set" }));
    assert_eq!(status["workers"][0]["state"], "failed", "{status}");
    assert!(status["workers"][0]["text"].as_str().unwrap().contains("put it again"), "{status}");
    let runs = std::thread::spawn(move || {
        lacking.run_until_shown("set");
        lacking
    });
    let mut client = Raw::client(&leader, "c");
    let outcome = Putter::new(&dataset, "set", "job.assign.>").put(&mut client).unwrap();
    assert!(outcome.sent > 0, "what was damaged comes again");
    assert_eq!(outcome.over.unwrap().ok, 1);
    assert_eq!(runs.join().unwrap().shown["set"]["a"], bytes);
    let verified = asks.ask("dataset.verify", &json!({ "cache_id": "set" }));
    assert_eq!(verified["packs_bad"], json!([]), "{verified}");
}

#[test]
fn a_put_that_waits_for_a_worker_hears_when_that_says_that_it_has_the_dataset_already() {
    let leader = Leader::start(&[]);
    let bytes = noise(3_000_000, 11);
    let dataset = Dataset::of(&[("a", &bytes)]);
    let mut client = Raw::client(&leader, "c");
    Putter::new(&dataset, "set", "none").put(&mut client).unwrap().over.unwrap();
    // It has joined, and has not said what it has; it says so when the put is asked about.
    let mut late = Raw::worker(&leader, Uuid::from_u128(1), "job.assign.>");
    let digest = dataset.manifest.digest();
    let says = std::thread::spawn(move || {
        let mut asks = Raw::client(&leader, "d");
        while asks.ask("dataset.status", &json!({ "cache_id": "set" }))["target"] != "job.assign.>"
        {
        }
        let datasets = DatasetList::new(vec![entry(DatasetState::Held, "set", digest)]);
        datasets::say(
            &mut late,
            Uuid::nil(),
            Uuid::nil(),
            &Have { anew: 1, budget: 1 << 40, used: 0, datasets },
        );
        (late, leader)
    });
    let over = Putter::new(&dataset, "set", "job.assign.>").put(&mut client).unwrap().over.unwrap();
    assert_eq!((over.targets, over.skipped, over.missing), (1, 1, 0));
    assert_eq!((over.received, over.moved), (0, 0));
    says.join().unwrap();
}

#[test]
fn a_manifest_that_was_ruled_whole_is_final_and_its_dataset_can_be_had() {
    let leader = Leader::start(&[]);
    let files = files(20);
    let dataset = dataset_of(&files);
    let mut client = Raw::client(&leader, "c");
    let put = Putter {
        takes_back: Some(TakesBack::WrongDone),
        ..Putter::new(&dataset, "set", "job.assign.>")
    };
    let outcome = put.put(&mut client).unwrap();
    let is_conflict =
        |verdict: &Verdict| matches!(verdict, Verdict::Failed { reason: Reason::CONFLICT, .. });
    assert!(matches!(&outcome.verdicts[..], [verdict] if is_conflict(verdict)), "{outcome:?}");
    assert!(outcome.stored.is_some(), "{outcome:?}");
    let mut late = worker(&leader, 1, "job.assign.x");
    late.run_until_shown("set");
    assert_eq!(late.shown["set"]["data/a.bin"], files[0].1);
}

#[test]
fn a_dataset_whose_manifest_was_given_up_is_not_kept() {
    let leader = Leader::start(&[]);
    let files = files(21);
    let dataset = dataset_of(&files);
    let mut client = Raw::client(&leader, "c");
    let put = Putter {
        takes_back: Some(TakesBack::Abort),
        ..Putter::new(&dataset, "set", "job.assign.>")
    };
    let refused = put.put(&mut client).unwrap().refused.expect("it is not kept");
    assert!(refused.text.as_str().contains("put it again"), "{}", refused.text);
    assert_eq!(client.ask("dataset.ls", &json!({}))["sets"], json!([]));
    let again = Putter::new(&dataset, "set", "job.assign.>").put(&mut client).unwrap();
    assert!(again.stored.is_some() && again.refused.is_none(), "{again:?}");
}

#[test]
fn a_job_whose_dataset_no_cache_holds_says_which_worker_and_what_helps() {
    let leader = Leader::start(&[]);
    let dataset = dataset_of(&files(22));
    let mut full = worker(&leader, 1, "job.assign.calc");
    let why = "no room: needs 5 MB, the cache may hold 1 MB; raise --cache-budget or put a smaller dataset";
    full.fails_with = Some(why.to_owned());
    let mut client = Raw::client(&leader, "c");
    Putter::new(&dataset, "big", "none").put(&mut client).unwrap();
    let job = Uuid::from_u128(77);
    let file = json!({"Name": "a", "CacheId": "big", "Content": null});
    let request =
        json!({"JobId": job, "ClientId": "c", "ExecName": "calc", "Args": [], "Files": [file]});
    client.send(
        Kind::SubmitJob,
        job,
        Uuid::nil(),
        "job.submit.calc",
        request.to_string().as_bytes(),
    );
    full.run_until(|_, frame| frame.kind == Kind::AssignJob);
    full.have(vec![entry(DatasetState::Wanted, "big", dataset.manifest.digest())], false);
    full.run_until(|worker, frame| frame.kind == Kind::Done && worker.received > 0);
    let back = json!({"JobId": job, "ClientId": "c", "ExecName": "calc", "Status": "CANCELLED", "Stdout": "", "Stderr": "",
        "OutputArchive": null, "Attempts": 1});
    full.raw.send(Kind::AckJob, Uuid::nil(), job, "", back.to_string().as_bytes());
    let expected = format!("worker {} cannot hold dataset big: {why}", full.id);
    // It is told a moment later than what somebody waits for.
    while !client.waits.contains(&expected) {
        client.ask("status", &json!({}));
    }
    let explained = client.ask("explain", &json!({ "job_id": job }));
    assert_eq!(explained["waits"]["for"], "worker-cache", "{explained}");
    assert!(explained["waits"]["text"].as_str().unwrap().starts_with(&expected), "{explained}");
    assert!(explained["workers"][0]["text"].as_str().unwrap().contains(why), "{explained}");
}
