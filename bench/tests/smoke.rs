//! The bench itself, run with few and small jobs: it measures all sides, says what it found in one
//! JSON object, and leaves no process behind. What the figures are is nobody's business here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn bench(words: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_heft-bench"))
        .args(words)
        .stdin(Stdio::null())
        .output()
        .expect("the bench starts")
}

fn report(words: &[&str]) -> Value {
    let out = bench(&[words, &["--json", "--rounds", "2", "--warmup", "0s"]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{words:?}: {said}");
    serde_json::from_slice(&out.stdout).expect("standard output is one JSON object")
}

/// The fields that everybody who reads reports relies on.
fn check(report: &Value, workload: &str) {
    assert_eq!(
        (report["workload"].as_str(), report["driver"].as_str()),
        (Some(workload), Some("portable"))
    );
    for path in [
        "/ratio/throughput",
        "/ratio/p50",
        "/leader/rss_peak_bytes",
        "/heft/mib_s",
        "/relay/mib_s",
        "/heft/p50_us",
        "/heft/p99_us",
        "/relay/p50_us",
    ] {
        let found = report.pointer(path).and_then(Value::as_f64);
        assert!(found.is_some_and(|found| found > 0.0), "{path} is {found:?} in {report}");
    }
    // So few jobs may take less processor time than its clock can tell.
    assert!(report.pointer("/ratio/leader_cpu").is_some(), "{report}");
    assert_eq!(report["rounds"].as_array().map(Vec::len), Some(2));
    for member in ["command", "commit", "kernel", "cores", "cpu"] {
        assert!(report.get(member).is_some(), "{member} is missing in {report}");
    }
}

#[test]
fn roundtrip_measures_both_sides_and_writes_all_files() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().join("report");
    let found =
        report(&["roundtrip", "--count", "20", "--out", out.to_str().expect("a plain path")]);
    check(&found, "roundtrip");
    assert_eq!(
        (found["heft"]["jobs"].as_u64(), found["relay"]["jobs"].as_u64()),
        (Some(40), Some(40))
    );
    let read = |name: &str| std::fs::read_to_string(Path::new(&out).join(name)).expect(name);
    let written: Value = serde_json::from_str(&read("report.json")).expect("JSON");
    assert_eq!(written, found, "the file and standard output are the same report");
    assert!(read("heft.hgrm").contains("Total count    =           40]"));
    assert!(read("relay.hgrm").contains("#[Mean"));
    assert!(read("percentiles.svg").contains("<polyline"));
}

#[test]
fn push_carries_jobs_that_fit_no_frame() {
    let found = report(&["push", "--size", "6MiB", "--in-flight", "2", "--count", "3"]);
    check(&found, "push");
    assert_eq!(found["heft"]["bytes"].as_u64(), Some(2 * 3 * (6 << 20)));
}

#[test]
fn the_relay_moves_bytes_as_it_is_told() {
    for by in ["copy", "splice"] {
        let words =
            ["push", "--size", "6MiB", "--in-flight", "2", "--count", "3", "--relay-by", by];
        let found = report(&[&words[..], &["--only", "relay"]].concat());
        assert_eq!(found["relay"]["bytes"].as_u64(), Some(2 * 3 * (6 << 20)));
        assert_eq!(found["load"]["relay_by"].as_str(), Some(by));
    }
}

#[test]
fn both_ways_of_checking_are_measured_in_one_run() {
    let directory = tempfile::tempdir().expect("a directory");
    let out = directory.path().to_str().expect("a plain path");
    let words = ["--size", "3MiB", "--in-flight", "2", "--count", "3", "--verify", "both"];
    let found = report(&[&["push"], &words[..], &["--sink", "file", "--out", out]].concat());
    check(&found, "push");
    let variants = found["variants"].as_array().expect("a list");
    let checks: Vec<&str> =
        variants.iter().filter_map(|variant| variant["verify"].as_str()).collect();
    assert_eq!(checks, ["end", "hop"]);
    for variant in variants {
        assert_eq!(
            (variant["heft"]["jobs"].as_u64(), variant["driver"].as_str()),
            (Some(6), Some("portable"))
        );
        assert!(
            variant["ratio"]["throughput"].as_f64().is_some_and(|ratio| ratio > 0.0),
            "{variant}"
        );
        assert!(
            variant["leader"]["rss_peak_bytes"].as_u64().is_some_and(|bytes| bytes > 0),
            "{variant}"
        );
        assert!(variant["to_portable"].is_null(), "{variant}");
    }
    assert_eq!(found["heft"], variants[0]["heft"]);
    assert_eq!(found["rounds"][1]["variants"].as_array().map(Vec::len), Some(2));
    for name in ["heft-portable-end.hgrm", "heft-portable-hop.hgrm", "relay.hgrm"] {
        assert!(directory.path().join(name).exists(), "{name}");
    }
    let alone = report(&["roundtrip", "--count", "3", "--verify", "both", "--only", "heft"]);
    assert_eq!(alone["variants"].as_array().map(Vec::len), Some(2));
    assert!(alone["relay"].is_null() && alone["ratio"]["throughput"].is_null(), "{alone}");
}

#[test]
fn what_is_kept_is_measured_beside_what_is_not_and_beside_the_disk() {
    let data = tempfile::tempdir().expect("a directory");
    let words = ["push", "--size", "3MiB", "--in-flight", "2", "--count", "3", "--verify", "hop"];
    let disk = ["--durability", "both", "--disk-bytes", "1MiB", "--data"];
    let found =
        report(&[&words[..], &disk, &[data.path().to_str().expect("a plain path")]].concat());
    check(&found, "push");
    let variants = found["variants"].as_array().expect("a list");
    let kept: Vec<&str> =
        variants.iter().filter_map(|variant| variant["durability"].as_str()).collect();
    assert_eq!(kept, ["memory", "disk"]);
    let (memory, disk) = (&variants[0], &variants[1]);
    assert!(
        memory["to_memory"].is_null() && memory["log"].is_null() && memory["goal"].is_null(),
        "{memory}"
    );
    assert_eq!(disk["heft"]["jobs"].as_u64(), Some(6));
    assert!(disk["goal"]["met"].is_boolean(), "{disk}");
    for path in [
        "/to_memory/throughput",
        "/to_memory/p50",
        "/log/syncs",
        "/log/records_per_sync",
        "/goal/reached",
    ] {
        let number = disk.pointer(path).and_then(Value::as_f64);
        assert!(number.is_some_and(|number| number > 0.0), "{path} is {number:?} in {disk}");
    }
    // Announced, taken, ended: each job has three records at least.
    assert!(disk["log"]["records"].as_u64() >= Some(3 * 6), "{disk}");
    for path in ["/disk/mib_s", "/disk/new_mib_s", "/disk/sync_p50_us", "/rounds/1/disk/mib_s"] {
        let number = found.pointer(path).and_then(Value::as_f64);
        assert!(number.is_some_and(|number| number > 0.0), "{path} is {number:?} in {found}");
    }
    assert_eq!(data.path().read_dir().expect("it is there").count(), 0, "all is removed");
}

#[test]
fn many_submit_at_a_time_and_it_is_told_when_the_leader_had_their_jobs() {
    let words = [
        "submit",
        "--submitters",
        "4",
        "--count",
        "40",
        "--durability",
        "both",
        "--disk-bytes",
        "0",
    ];
    let found = report(&words);
    check(&found, "submit");
    assert_eq!(
        (found["load"]["submitters"].as_u64(), found["load"]["in_flight"].as_u64()),
        (Some(4), Some(4))
    );
    assert!(found["disk"].is_null(), "{found}");
    for variant in found["variants"].as_array().expect("a list") {
        assert_eq!(variant["heft"]["jobs"].as_u64(), Some(80), "{variant}");
        assert!(variant["heft"]["taken_p50_us"].as_f64().is_some_and(|us| us > 0.0), "{variant}");
    }
    let log = &found["variants"][1]["log"];
    assert!(log["jobs_per_sync"].as_f64().is_some_and(|jobs| jobs > 0.0), "{log}");
    assert!(log["sync_mean_us"].as_f64().is_some_and(|us| us > 0.0), "{log}");
}

#[test]
fn a_leader_begins_where_another_ended() {
    let data = tempfile::tempdir().expect("a directory");
    let words = [
        "recovery",
        "--count",
        "300",
        "--blob-bytes",
        "70MiB",
        "--run",
        "20",
        "--rounds",
        "1",
        "--json",
    ];
    let out =
        bench(&[&words[..], &["--data", data.path().to_str().expect("a plain path")]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value =
        serde_json::from_slice(&out.stdout).expect("standard output is one JSON object");
    let starts = found["starts"].as_array().expect("a list");
    let jobs: Vec<(&str, f64)> = starts
        .iter()
        .filter_map(|start| Some((start["name"].as_str()?, start["jobs"].as_f64()?)))
        .collect();
    let expected = [
        ("nothing", 0.0),
        ("log", 300.0),
        ("snapshot and log", 300.0),
        ("the same and blobs", 302.0),
    ];
    assert_eq!(jobs, expected);
    for start in starts {
        assert!(start["answers_s"].as_f64() >= start["listens_s"].as_f64(), "{start}");
        assert!(start["rss_bytes"].as_f64().is_some_and(|bytes| bytes > 0.0), "{start}");
    }
    assert!(found["ran"]["jobs"].as_u64() >= Some(20), "{found}");
    assert!(found["goals"]["rss_bytes_per_job"]["met"].is_boolean(), "{found}");
    assert_eq!(data.path().read_dir().expect("it is there").count(), 0, "all is removed");
}

/// What a fan-out says in one JSON object.
fn fanout(words: &[&str]) -> Value {
    let data = tempfile::tempdir().expect("a directory");
    let place = ["--json", "--data", data.path().to_str().expect("a plain path")];
    let out = bench(&[&["fanout"], words, &place].concat());
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(data.path().read_dir().expect("it is there").count(), 0, "all is removed");
    serde_json::from_slice(&out.stdout).expect("standard output is one JSON object")
}

#[test]
fn a_relay_gets_a_file_to_many_receivers_that_all_find_it_right() {
    let words = ["--only", "relay", "--size", "5MiB", "--workers", "1,3", "--rounds", "2"];
    let found = fanout(&words);
    assert_eq!(found["workload"].as_str(), Some("fanout"));
    let series = found["series"].as_array().expect("a list");
    let workers: Vec<Option<u64>> =
        series.iter().map(|series| series["workers"].as_u64()).collect();
    assert_eq!(workers, [Some(1), Some(3)]);
    for series in series {
        assert!(
            series["heft"].is_null() && series["ratio"].is_null() && series["wire"].is_null(),
            "{series}"
        );
        for path in ["/relay/ms/median", "/relay/mib_s_per_worker", "/relay/middle_rss_peak_bytes"]
        {
            let number = series.pointer(path).and_then(Value::as_f64);
            assert!(number.is_some_and(|number| number > 0.0), "{path} is {number:?} in {series}");
        }
    }
    assert_eq!(found["rounds"][1]["rounds"].as_array().map(Vec::len), Some(2));
    assert_eq!(
        found["goals"].as_object().map(serde_json::Map::len),
        Some(0),
        "nothing of heft was measured"
    );
}

#[test]
fn a_file_of_no_bytes_and_one_of_few_go_the_same_way() {
    for size in ["0", "1"] {
        let found = fanout(&["--only", "relay", "--size", size, "--workers", "2", "--rounds", "1"]);
        assert!(
            found["series"][0]["relay"]["ms"]["median"].as_f64().is_some_and(|ms| ms > 0.0),
            "{found}"
        );
    }
}

#[test]
fn a_put_gets_a_set_to_every_worker_beside_the_relay_and_beside_a_slow_one() {
    let found = fanout(&["--size", "3MiB", "--workers", "2", "--rounds", "2", "--throttle"]);
    let series = &found["series"][0];
    for path in ["/ratio", "/heft/ms/median", "/relay/ms/median", "/heft/middle_rss_peak_bytes"] {
        let number = series.pointer(path).and_then(Value::as_f64);
        assert!(number.is_some_and(|number| number > 0.0), "{path} is {number:?} in {series}");
    }
    // Each byte goes once on each way, and little beside them.
    for path in ["/wire/from_client_share", "/wire/to_worker_share"] {
        let share = series.pointer(path).and_then(Value::as_f64);
        assert!(
            share.is_some_and(|share| (1.0..1.05).contains(&share)),
            "{path} is {share:?} in {series}"
        );
    }
    assert!(found["throttled"]["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{found}");
    for goal in ["time", "leader_rss_bytes", "from_client", "beside_slow"] {
        assert!(found["goals"][goal]["met"].is_boolean(), "{goal} of {found}");
    }
}

#[test]
fn a_set_that_changed_moves_what_changed() {
    let data = tempfile::tempdir().expect("a directory");
    let words =
        ["delta", "--size", "24MiB", "--runs", "1", "--inserts", "1", "--workers", "2", "--json"];
    let out =
        bench(&[&words[..], &["--data", data.path().to_str().expect("a plain path")]].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value =
        serde_json::from_slice(&out.stdout).expect("standard output is one JSON object");
    let share = |step: usize, way: &str| found["steps"][step][way].as_f64().expect("a share");
    for way in ["from_client_share", "to_worker_share"] {
        assert!((1.0..1.05).contains(&share(0, way)), "{way} of {found}");
        assert!(share(1, way) < 0.01, "{way} of {found}");
        assert!((0.04..0.4).contains(&share(2, way)), "{way} of {found}");
    }
}

#[test]
fn jobs_that_share_sets_are_placed_by_policies() {
    let data = tempfile::tempdir().expect("a directory");
    let words = [
        "locality",
        "--jobs",
        "24",
        "--sets",
        "6",
        "--room",
        "2",
        "--size",
        "100KiB",
        "--workers",
        "3",
    ];
    let place = ["--json", "--data", data.path().to_str().expect("a plain path")];
    let out = bench(&[&words[..], &place].concat());
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Value =
        serde_json::from_slice(&out.stdout).expect("standard output is one JSON object");
    let policies = found["policies"].as_array().expect("a list");
    let names: Vec<&str> = policies.iter().filter_map(|policy| policy["policy"].as_str()).collect();
    assert_eq!(names, ["locality", "least-load"]);
    for policy in policies {
        assert!(
            policy["sets_moved"].as_f64().is_some_and(|sets| sets >= 6.0),
            "each has to move: {policy}"
        );
    }
    assert!(found["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{found}");
}

/// Whether this machine has io_uring, and this leader a driver for it, is not known here.
#[test]
fn a_driver_is_measured_or_it_is_said_why_not() {
    let words = ["roundtrip", "--count", "3", "--rounds", "1", "--warmup", "0s", "--json"];
    let out = bench(&[&words[..], &["--driver", "uring", "--only", "heft"]].concat());
    let said = String::from_utf8_lossy(&out.stderr);
    if out.status.success() {
        let found: Value =
            serde_json::from_slice(&out.stdout).expect("standard output is one JSON object");
        assert_eq!(found["driver"].as_str(), Some("uring"));
        return;
    }
    assert!(out.stdout.is_empty(), "{said}");
    let error = said.split("heft-bench: starting heft: leader ended").nth(1).unwrap_or_default();
    assert!(error.contains("--driver") || error.contains("uring"), "{said}");
}

#[test]
fn results_and_small_jobs_beside_large_ones_are_measured_too() {
    check(&report(&["result", "--size", "6MiB", "--in-flight", "2", "--count", "2"]), "result");
    check(&report(&["mixed", "--size", "6MiB", "--in-flight", "2", "--count", "20"]), "mixed");
}

#[test]
fn workers_of_both_sides_write_files_if_asked_to() {
    check(&report(&["push", "--size", "5MiB", "--count", "2", "--sink", "file"]), "push");
    check(&report(&["roundtrip", "--count", "2", "--sink", "file"]), "roundtrip");
}

#[test]
fn an_open_loop_starts_jobs_at_its_rate() {
    let found = report(&["roundtrip", "--rate", "500/s", "--duration", "200ms"]);
    assert_eq!(
        (found["heft"]["jobs"].as_u64(), found["relay"]["jobs"].as_u64()),
        (Some(200), Some(200))
    );
}

#[test]
fn the_relay_alone_carries_every_workload() {
    for workload in ["push", "result", "mixed"] {
        for sink in ["drop", "file"] {
            let words = ["--size", "3MiB", "--count", "4", "--only", "relay", "--sink", sink];
            let found = report(&[&[workload], &words[..]].concat());
            assert_eq!(found["relay"]["jobs"].as_u64(), Some(8), "{workload}");
            assert!(found["heft"].is_null() && found["ratio"]["throughput"].is_null(), "{found}");
        }
    }
}

#[test]
fn a_line_that_is_not_right_is_said_and_nothing_is_started() {
    for words in [
        &["push", "--size", "many"][..],
        &["push", "--rate", "-5/s"],
        &["push", "--verify", "never"],
        &["push", "--durability", "stone"],
        &["push", "--submitters", "9"],
        &["mixed", "--total", "1GiB"],
        &["fanout", "--workers", "33"],
        &["delta", "--size", "1MiB"],
        &["locality", "--jobs", "0"],
    ] {
        let out = bench(words);
        assert!(!out.status.success() && out.stdout.is_empty(), "{words:?}");
        assert!(
            !out.stderr.is_empty() && !String::from_utf8_lossy(&out.stderr).contains("starting"),
            "{words:?}"
        );
    }
}
