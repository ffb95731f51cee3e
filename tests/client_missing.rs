//! Results of which the leader has lost bytes, with real processes: what is here is printed, what
//! is missing is said with the reason, and the exit code is 1.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    dead_code
)]

#[path = "support/procs.rs"]
mod procs;

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use procs::{Leader, TempDir, Worker, heft};
use serde_json::Value;

const MIB: usize = 1 << 20;

/// Prints 8 MiB of text that begins so, and leaves a file of as many random bytes.
const LONG: &str = "(echo 123456789abcdef; base64 /dev/urandom) | head -c 8388608; head -c 8388608 /dev/urandom > made.bin";

/// A leader with one result, whose parts are large.
struct Scene {
    data: TempDir,
    leader: Leader,
    job: String,
}

impl Scene {
    fn new() -> Scene {
        let data = TempDir::new();
        let leader = Leader::start(&["--data", data.text()]);
        let _worker = Worker::start(leader.port, &[("long", LONG)], &[]);
        let (code, out, err) = heft(&["submit", &leader.addr(), "long", "--output", "json"]);
        assert_eq!(code, Some(0), "{out}{err}");
        let shown: Value = serde_json::from_str(&out).unwrap();
        assert!(shown.get("missing").is_none(), "{shown}");
        Scene { data, leader, job: shown["job_id"].as_str().unwrap().to_owned() }
    }

    fn get(&self, args: &[&str]) -> (Option<i32>, String, String) {
        heft(&[&["result", "get", &self.leader.addr(), &self.job], args].concat())
    }

    /// The file of the part with this purpose.
    fn blob(&self, purpose: &str) -> PathBuf {
        let (code, out, err) = heft(&["blob", &self.leader.addr(), "ls", "--output", "json"]);
        assert_eq!(code, Some(0), "{out}{err}");
        let listed: Value = serde_json::from_str(&out).unwrap();
        let blobs = listed.as_array().or_else(|| listed["blobs"].as_array()).unwrap();
        let blob = blobs.iter().find(|blob| blob["purpose"] == purpose).unwrap();
        let id: String =
            blob["blob"].as_str().unwrap().chars().filter(|digit| *digit != '-').collect();
        self.data.join("blobs").join(id)
    }

    fn restart(&mut self) {
        self.leader.proc.kill();
        self.leader = Leader::start(&["--data", self.data.text()]);
    }
}

fn flip(path: &Path, at: u64) {
    let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at).unwrap();
}

/// Standard error has a line with all of these words.
fn says(err: &str, words: &[&str]) {
    let found = err.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(found, "no line with {words:?} in:\n{err}");
}

#[test]
fn a_damaged_chunk_of_an_output_is_named_and_the_exit_code_is_1() {
    let scene = Scene::new();
    let path = scene.blob("stdout");
    flip(&path, 5 * MIB as u64 + 77);
    // What is damaged is said as often as it is asked for: the leader does not throw away the rest
    // of it.
    for _ in 0..2 {
        let (code, out, err) = scene.get(&[]);
        assert_eq!(code, Some(1), "{err}");
        assert!(
            out.len() >= 65_536 && out.len() < 8 * MIB && out.starts_with("123456789abcdef\n"),
            "{}",
            out.len()
        );
        let name = path.file_name().unwrap().to_str().unwrap();
        says(&err, &["stdout", "of 8388608 bytes", name, "damaged at offset 5242880"]);
        assert!(
            err.contains(&format!("only {} of 8388608", out.len())),
            "{} were printed: {err}",
            out.len()
        );
    }
    let out = TempDir::new();
    let (code, shown, err) = scene.get(&["--out", out.text(), "--output", "json"]);
    assert_eq!(code, Some(1), "{err}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    assert_eq!(shown["status"], "OK", "the job itself ended well");
    let missing = &shown["missing"][0];
    assert_eq!(
        (&missing["part"], &missing["bytes"]),
        (&"stdout".into(), &(8 * MIB).into()),
        "{shown}"
    );
    assert!(missing["why"].as_str().unwrap().contains("damaged at offset 5242880"), "{shown}");
    assert_eq!(shown["unpacked"][0], "made.bin", "the archive is whole: {shown}");
    flip(&path, 5 * MIB as u64 + 77);
    let (code, out, err) = scene.get(&[]);
    assert_eq!((code, out.len()), (Some(0), 8 * MIB), "it can be read again: {err}");
}

#[test]
fn parts_whose_files_are_gone_or_cut_are_lost_also_after_a_restart_and_said_so() {
    let mut scene = Scene::new();
    let (stdout, archive) = (scene.blob("stdout"), scene.blob("archive"));
    fs::remove_file(&archive).unwrap();
    OpenOptions::new().write(true).open(&stdout).unwrap().set_len(3 * MIB as u64).unwrap();
    let check = |scene: &Scene| {
        let out = TempDir::new();
        let (code, printed, err) = scene.get(&["--out", out.text()]);
        assert_eq!(code, Some(1), "{err}");
        assert!(printed.len() >= 65_536 && printed.len() < 8 * MIB, "{}", printed.len());
        says(&err, &["stdout", "of 8388608 bytes"]);
        says(&err, &["archive", "nothing of"]);
        // Who asks for no files hears of what was to be printed.
        let (code, _, err) = scene.get(&[]);
        assert_eq!(code, Some(1), "{err}");
        says(&err, &["stdout", "of 8388608 bytes"]);
    };
    let name = |path: &Path| path.file_name().unwrap().to_str().unwrap().to_owned();
    let names = |scene: &Scene, stdout: &[&str], archive: &[&str]| {
        let out = TempDir::new();
        let (_, _, err) = scene.get(&["--out", out.text()]);
        says(&err, &[&["stdout", "only 65536 of 8388608"], stdout].concat());
        says(&err, &[&["archive", "nothing of"], archive].concat());
    };
    // The leader may hold the files open, and not know yet.
    scene.restart();
    check(&scene);
    let gone = format!("blobs/{} is damaged at offset 0: the file is gone", name(&archive));
    let cut = format!("blobs/{} is damaged at offset 3145728: the file ends there", name(&stdout));
    names(&scene, &[&cut], &[&gone]);
    scene.restart();
    fs::remove_file(&stdout).unwrap();
    fs::remove_file(stdout.with_extension("map")).unwrap();
    scene.restart();
    check(&scene);
    names(&scene, &[&format!("blobs/{}.map is gone", name(&stdout))], &[&gone]);
    let (code, shown, err) = scene.get(&["--output", "json"]);
    assert_eq!(code, Some(1), "{err}");
    let shown: Value = serde_json::from_str(&shown).unwrap();
    let parts: Vec<&str> = shown["missing"]
        .as_array()
        .unwrap()
        .iter()
        .map(|missing| missing["part"].as_str().unwrap())
        .collect();
    assert_eq!(parts, ["archive", "stdout"], "{shown}");
}

/// A result that is in the log alone.
#[test]
fn a_result_that_cannot_be_read_from_the_log_is_lost_and_no_job_that_failed() {
    let data = TempDir::new();
    let leader = Leader::start(&["--data", data.text()]);
    let worker = Worker::start(leader.port, &[("short", "echo all-is-well")], &[]);
    let (code, out, err) = heft(&["submit", &leader.addr(), "short", "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    drop((leader, worker));
    // What it has not sent yet is not in its memory.
    let leader = Leader::start(&["--data", data.text()]);
    let log = data.join("consensus").join("log-0000000000000001");
    let bytes = fs::read(&log).unwrap();
    let text = b"\"Stdout\":\"all-is-well";
    let at = bytes.windows(text.len()).position(|piece| piece == text).unwrap();
    flip(&log, at as u64 + 11);
    let job = shown["job_id"].as_str().unwrap();
    for _ in 0..2 {
        let (code, out, err) = heft(&["result", "get", &leader.addr(), job]);
        assert_eq!((code, out.as_str()), (Some(1), ""), "{err}");
        says(
            &err,
            &["result", "nothing of", "consensus/log-0000000000000001", "is damaged at offset"],
        );
        says(&err, &["ended OK", "can no longer be read"]);
        assert!(!err.contains("FAILED"), "{err}");
    }
    let (code, out, err) = heft(&["result", "get", &leader.addr(), job, "--output", "json"]);
    assert_eq!(code, Some(1), "{err}");
    let shown: Value = serde_json::from_str(&out).unwrap();
    let missing = &shown["missing"][0];
    assert_eq!((&shown["status"], &missing["part"]), (&"LOST".into(), &"result".into()), "{shown}");
    assert!(
        missing["why"].as_str().unwrap().contains("log-0000000000000001 is damaged at offset"),
        "{shown}"
    );
    assert!(missing["bytes"].as_u64().unwrap() > 100, "{shown}");
}

#[test]
fn submit_ends_with_1_if_an_output_cannot_be_stored_here() {
    let data = TempDir::new();
    let leader = Leader::start(&["--data", data.text()]);
    let _worker = Worker::start(leader.port, &[("long", LONG)], &[]);
    // No directory can be made beneath a file.
    let file = data.join("in-the-way");
    fs::write(&file, b"").unwrap();
    let output = std::process::Command::new(env!("CARGO_BIN_EXE_heft"))
        .args(["submit", &leader.addr(), "long"])
        .env("TMPDIR", file.join("tmp"))
        .output()
        .unwrap();
    let err = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 65_536), "{err}");
    says(&err, &["stdout", "only 65536 of 8388608"]);
}
