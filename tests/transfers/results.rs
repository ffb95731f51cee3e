//! Large results: the files that a job made and what it printed, to the client that waits and to
//! one that comes later.

use std::path::Path;

use crate::procs::{TempDir, heft};
use crate::support::scaled;
use crate::world::{MIB, World, assert_no_job_directory, eventually, job_of, sha256_of};

/// What came of `makes`: the file has the digest that the program said, and all that it printed is
/// there.
fn assert_made(out: &Path, stdout: &str, stderr: &str, printed: usize) {
    let made = sha256_of(&out.join("made.bin"));
    assert!(stderr.contains(&made), "{made} is not in {stderr}");
    assert_eq!(stdout.len(), printed);
    assert!(stdout.bytes().all(|byte| byte == b'p'));
}

#[test]
fn archives_and_outputs_of_many_mebibytes_come_back_and_can_be_fetched_again() {
    let world = World::start(&[]);
    let worker = world.worker(&[]);
    let (archive, printed) = (scaled(20, 400) as usize * MIB, 8 * MIB);
    let (archive, printed_text) = (archive.to_string(), printed.to_string());
    let out = world.dir.join("out");
    let args =
        ["submit", &world.addr(), "makes", "--out", out.to_str().unwrap(), "--output", "table"];
    let (code, stdout, stderr) = heft(&[&args[..], &["--", &archive, &printed_text]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert_made(&out, &stdout, &stderr, printed);
    // The result is kept; the spool holds its two parts.
    world.assert_idle(2);
    assert_no_job_directory(&worker);
}

#[test]
fn a_result_whose_client_is_gone_is_kept_and_fetched_by_another() {
    let world = World::start(&[]);
    let worker = world.worker(&[]);
    let held = TempDir::new();
    let marker = held.join("held");
    crate::procs::write_program(
        &worker.dir.join("exe").join("late"),
        &format!(
            "if mkdir \"$3\"; then while [ -d \"$3\" ]; do sleep 0.02; done; fi\n{}",
            crate::world::MAKES
        ),
    );
    let (archive, printed) = (20 * MIB, 8 * MIB);
    let (archive, printed_text) = (archive.to_string(), printed.to_string());
    let mut submit =
        world.submit(&["late", "--", &archive, &printed_text, marker.to_str().unwrap()]);
    let job = job_of(&mut submit).to_string();
    eventually("the job runs", || marker.exists());
    let (code, _, err) = heft(&["result", "get", &world.addr(), &job]);
    assert_eq!(code, Some(1), "it has not ended: {err}");
    assert!(err.contains("has not ended"), "{err}");
    submit.kill();
    world.until("its client is gone", |status| {
        let ids = status["clients"].as_array().unwrap().iter();
        !ids.clone().any(|client| {
            client["connections"] != 0 && client["id"].as_str().is_some_and(|id| id.contains('@'))
        })
    });
    std::fs::remove_dir(&marker).unwrap();
    world.until("the job has ended", |status| status["jobs"]["done"] == 1);
    // Two at a time, and one after them.
    let (addr, dir) = (world.addr(), world.dir.0.clone());
    let fetch = |name: &str| {
        let out = dir.join(name);
        let (code, stdout, stderr) =
            heft(&["result", "get", &addr, &job, "--out", out.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{stderr}");
        assert_made(&out, &stdout, &stderr, printed);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| fetch("one"));
        scope.spawn(|| fetch("two"));
    });
    fetch("three");
    world.assert_idle(2);
    assert_no_job_directory(&worker);
}

#[test]
fn parts_of_a_result_go_with_it_when_its_time_is_over() {
    let world = World::start(&["--result-ttl", "1s"]);
    let _worker = world.worker(&[]);
    let size = (20 * MIB).to_string();
    let mut submit = world.submit(&["makes", "--", &size, &size]);
    let job = job_of(&mut submit).to_string();
    assert_eq!(submit.finish().0, Some(0));
    world.assert_idle(0);
    let (code, _, err) = heft(&["result", "get", &world.addr(), &job]);
    assert_eq!(code, Some(5), "{err}");
}

#[test]
fn co04_files_come_back_stored_to_those_who_take_parts_and_deflated_in_a_single_frame() {
    let world = World::start(&[]);
    let worker = world.worker(&[]);
    let zeros = (8 * MIB).to_string();
    crate::procs::write_program(
        &worker.dir.join("exe").join("zeros"),
        "head -c \"$1\" /dev/zero > zeros.bin; chmod 755 zeros.bin",
    );
    let out = world.dir.join("out");
    let out_text = out.to_str().unwrap();
    let (code, stdout, stderr) = heft(&[
        "submit",
        &world.addr(),
        "zeros",
        "--out",
        out_text,
        "--output",
        "json",
        "--",
        &zeros,
    ]);
    assert_eq!(code, Some(0), "{stderr}");
    let result: serde_json::Value = serde_json::from_str(&stdout).unwrap();
    assert!(result["archive_bytes"].is_null(), "{result}");
    assert!(result["archive_blob_bytes"].as_u64() > Some(8 * MIB as u64), "{result}");
    assert_eq!(result["unpacked"], serde_json::json!(["zeros.bin"]));
    assert!(std::fs::read(out.join("zeros.bin")).unwrap() == vec![0; 8 * MIB]);

    // A classic client takes one frame; deflated, the same fits it.
    let job = serde_json::json!({"exec": "zeros", "args": [zeros]});
    let client = crate::procs::classic_client(world.leader.port, "stock", &[], &[job]);
    let (code, lines) = client.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    let events = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
    let mut results = events.filter(|event: &serde_json::Value| event["event"] == "result");
    let result = results.next().unwrap();
    let archive = {
        use base64::Engine;
        let text = result["archive_b64"].as_str().unwrap();
        base64::engine::general_purpose::STANDARD.decode(text).unwrap()
    };
    assert!(archive.len() < 100_000, "{} bytes", archive.len());
    let mut archive = zip::ZipArchive::new(std::io::Cursor::new(archive)).unwrap();
    assert_eq!(archive.by_name("zeros.bin").unwrap().size(), 8 * MIB as u64);
    assert_eq!(result["status"], "OK");
    // Only the first has a part that is kept.
    world.assert_idle(1);
}

#[test]
fn a_file_over_4_gib_comes_back_in_its_archive() {
    if scaled(0, 1) == 0 {
        return eprintln!("skipped: HEFT_TEST_SCALE=long brings back a file of more than 4 GiB");
    }
    let world = World::start(&[]);
    let worker = world.worker(&[]);
    let bytes = (4_u64 << 30) + 12_345;
    crate::procs::write_program(
        &worker.dir.join("exe").join("sparse"),
        "truncate -s \"$1\" large.bin; echo behind > small.txt",
    );
    let out = world.dir.join("out");
    let args = ["submit", &world.addr(), "sparse", "--out", out.to_str().unwrap(), "--"];
    let (code, _, stderr) = heft(&[&args[..], &[&bytes.to_string()]].concat());
    assert_eq!(code, Some(0), "{stderr}");
    assert_eq!(std::fs::metadata(out.join("large.bin")).unwrap().len(), bytes);
    assert_eq!(std::fs::read(out.join("small.txt")).unwrap(), b"behind\n");
    world.assert_idle(1);
}

#[test]
fn the_stages_of_a_job_are_told_in_their_order() {
    let world = World::start(&[]);
    let _worker = world.worker(&[]);
    let input = world.noise("in.bin", 6 * MIB as u64);
    let out = world.dir.join("out");
    let (code, lines) = crate::world::submit_files(
        &world.addr(),
        "makes",
        &[&input],
        &["--out", out.to_str().unwrap(), "--", &(12 * MIB).to_string(), "5"],
    )
    .finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    let events = lines.iter().filter_map(|line| serde_json::from_str(line).ok());
    let events: Vec<serde_json::Value> = events.filter(serde_json::Value::is_object).collect();
    let mut stages: Vec<&str> =
        events.iter().map(|event| event["stage"].as_str().unwrap()).collect();
    stages.dedup();
    for stage in ["gathering", "running", "packing", "returning", "receiving", "unpacking"] {
        assert!(stages.contains(&stage), "{stage}: {stages:?}");
    }
    let order = [
        "gathering",
        "queued",
        "sending",
        "running",
        "packing",
        "returning",
        "receiving",
        "unpacking",
    ];
    let places = stages.iter().map(|stage| order.iter().position(|known| known == stage).unwrap());
    // Parts of a result may begin to come while it is still on its way to the leader.
    let places: Vec<usize> = places.filter(|place| ![5, 6].contains(place)).collect();
    assert!(places.is_sorted(), "{stages:?}");
    let last = events.last().unwrap();
    assert_eq!((&last["event"], &last["done"]), (&"unpacking".into(), &last["total"]));
}
