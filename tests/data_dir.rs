//! Data directories that a leader must not use: it says which file it is, what is wrong with it and
//! what to do, ends with code 3, and leaves every file as it was.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "support/log_records.rs"]
mod log_records;
#[path = "support/data_dir.rs"]
mod made;
#[path = "support/procs.rs"]
mod procs;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use heft::store::format::{HEADER_BYTES, Kind, Owner, header};
use made::tree;
use procs::{Leader, PATIENCE};
use tempfile::TempDir;
use uuid::Uuid;

/// A directory that a leader of node 1 can go on with.
fn good() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    made::make(dir.path(), true);
    dir
}

fn heft() -> Command {
    Command::new(env!("CARGO_BIN_EXE_heft"))
}

/// Runs a command that has to end by itself.
fn run(command: &mut Command) -> Output {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let until = Instant::now() + PATIENCE;
    while child.try_wait().unwrap().is_none() {
        if Instant::now() > until {
            child.kill().unwrap();
            panic!("it does not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().unwrap()
}

/// What a leader said that did not start.
fn said(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(3), "{text}");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("listening"), "{text}");
    text
}

/// Starts a leader that must not start, and changes nothing. Its message has all of these parts.
fn refused(data: &Path, args: &[&str], parts: &[&str]) {
    let before = everything(data);
    let text = said(&run(heft().args(["leader", "0", "--data"]).arg(data).args(args)));
    for part in parts {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    assert_eq!(
        text.lines().filter(|line| line.contains("heft: ") || line.contains("error: ")).count(),
        1,
        "{text}"
    );
    let mut after = everything(data);
    after.remove(Path::new("lock"));
    assert!(before == after, "files were changed: {:?} {:?}", before.keys(), after.keys());
}

/// All files beneath a directory, wherever they are, with their bytes. The lock is not one of them.
fn everything(path: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let (mut all, mut dirs) = (BTreeMap::new(), vec![path.to_owned()]);
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(dir).into_iter().flatten().map(Result::unwrap) {
            if entry.file_type().unwrap().is_dir() {
                dirs.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(path).unwrap().to_owned();
                all.insert(name, std::fs::read(entry.path()).unwrap());
            }
        }
    }
    all.remove(Path::new("lock"));
    all
}

/// The names of the segments and snapshots, in order.
fn named(data: &Path, part: &str) -> Vec<String> {
    tree(data).into_keys().filter(|name| name.contains(part)).collect()
}

/// The segments that are read at start.
fn behind_snapshot(data: &Path) -> Vec<String> {
    let newest = named(data, "/snapshot-").pop().unwrap();
    let mut logs = named(data, "/log-");
    logs.retain(|log| log.replace("/log-", "/snapshot-") > newest);
    logs
}

fn number(name: &str) -> u64 {
    u64::from_str_radix(name.rsplit('-').next().unwrap(), 16).unwrap()
}

#[test]
fn pe08_a_good_directory_is_gone_on_with() {
    let data = good();
    let leader = Leader::start(&["--data", data.path().to_str().unwrap(), "--node", "1"]);
    let (code, out, err) = procs::heft(&["status", &leader.addr(), "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("\"durability\""), "{out}");
}

#[test]
fn tf05_another_version_is_named_with_what_to_do() {
    for (version, next) in [(3, "use the heft that wrote it"), (1, "heft-tools import taskflux")] {
        let data = good();
        let path = data.path().join("consensus/metadata");
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[4..8].copy_from_slice(&i32::to_be_bytes(version));
        let crc = crc32fast::hash(&bytes[..HEADER_BYTES - 4]);
        bytes[HEADER_BYTES - 4..].copy_from_slice(&crc.to_be_bytes());
        std::fs::write(&path, bytes).unwrap();
        let parts = [
            path.to_str().unwrap(),
            &format!("has version {version} of the format"),
            "reads version 2",
            next,
        ];
        refused(data.path(), &["--node", "1"], &parts);
    }
}

#[test]
fn c29_another_node_is_told_whose_the_directory_is() {
    let data = good();
    let root = data.path().to_str().unwrap();
    refused(
        data.path(),
        &["--node", "2"],
        &[root, "belongs to node 1", "this is node 2", "give --node 1", "--data"],
    );
}

#[test]
fn c29_a_directory_that_a_live_leader_has_is_not_taken() {
    // An empty one, in which the leader has nothing to do.
    let data = tempfile::tempdir().unwrap();
    let root = data.path().to_str().unwrap();
    let leader = Leader::start(&["--data", root, "--node", "1"]);
    refused(
        data.path(),
        &["--node", "1"],
        &[root, "in use by another leader", "give each leader its own --data"],
    );
    drop(leader);
    // The lock goes with the process, whatever its end.
    drop(Leader::start(&["--data", root, "--node", "1"]));
}

#[test]
fn c29_a_file_in_the_place_of_the_directory_is_named() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"mine").unwrap();
    for place in ["file", "file/deeper"] {
        let data = dir.path().join(place);
        let text = said(&run(heft().args(["leader", "0", "--data"]).arg(&data)));
        assert!(
            text.contains(data.to_str().unwrap()) && text.contains("give another --data"),
            "{text}"
        );
    }
    assert_eq!(std::fs::read(dir.path().join("file")).unwrap(), b"mine");
}

/// Runs a script in which it may mount what it likes; `None` where that is not allowed.
fn with_mounts(script: &str, args: &[&Path]) -> Option<Output> {
    let allowed =
        Command::new("unshare").args(["-rm", "sh", "-c", "mount -t tmpfs none /mnt"]).output();
    if !allowed.is_ok_and(|output| output.status.success()) {
        eprintln!(
            "SKIPPED: nothing can be mounted here, so there is no read-only or full disk to look at"
        );
        return None;
    }
    let mut command = Command::new("unshare");
    command.args(["-rm", "sh", "-c", script, "sh", env!("CARGO_BIN_EXE_heft")]).args(args);
    Some(run(&mut command))
}

#[test]
fn c29_a_read_only_directory_is_named_with_what_to_do() {
    let data = good();
    let before = everything(data.path());
    let script = r#"mount --bind "$2" "$2" && mount -o remount,bind,ro "$2" && exec "$1" leader 0 --node 1 --data "$2""#;
    let Some(output) = with_mounts(script, &[data.path()]) else { return };
    let text = said(&output);
    for part in
        [data.path().to_str().unwrap(), "read-only", "mount it for writing, or give another --data"]
    {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    assert!(before == everything(data.path()));
}

#[test]
fn c29_a_full_disk_is_named_with_what_to_do_and_nothing_half_made_is_left() {
    let place = tempfile::tempdir().unwrap();
    let script = r#"mount -t tmpfs -o size=64k none "$2" && mkdir "$2/data"
        head -c 100000 /dev/zero > "$2/filler" 2>/dev/null
        "$1" leader 0 --data "$2/data"; code=$?
        cd "$2/data" && find . -type f
        exit $code"#;
    let Some(output) = with_mounts(script, &[place.path()]) else { return };
    let text = said(&output);
    for part in ["/data/consensus/", "the disk is full: free space there, or give another --data"] {
        assert!(text.contains(part), "{part:?} is missing: {text}");
    }
    assert_eq!(String::from_utf8_lossy(&output.stdout), "./lock\n", "{text}");
}

#[test]
fn c29_a_missing_segment_is_named_wherever_it_was() {
    let segments = behind_snapshot(good().path());
    assert!(segments.len() >= 3, "{segments:?}");
    for (at, missing) in segments.iter().enumerate() {
        let data = good();
        std::fs::remove_file(data.path().join(missing)).unwrap();
        let path = data.path().join(missing);
        let records = format!("lacks the records {} ", number(missing));
        let parts = [path.to_str().unwrap(), &records, "is missing", "restore it from a backup"];
        // Without the first one behind it, the snapshot stands alone at its end.
        refused(data.path(), &["--node", "1"], if at == 0 { &parts[..1] } else { &parts });
    }
}

#[test]
fn c29_a_log_that_is_gone_but_for_its_owner_is_missed() {
    let data = tempfile::tempdir().unwrap();
    let leader = Leader::start(&["--data", data.path().to_str().unwrap()]);
    drop(leader);
    let [log] = &named(data.path(), "/log-")[..] else { panic!("{:?}", tree(data.path()).keys()) };
    std::fs::remove_file(data.path().join(log)).unwrap();
    refused(
        data.path(),
        &[],
        &[data.path().join(log).to_str().unwrap(), "is missing", "restore it from a backup"],
    );
}

#[test]
fn c29_a_snapshot_that_is_newer_than_the_log_is_named() {
    let data = good();
    for log in behind_snapshot(data.path()) {
        std::fs::remove_file(data.path().join(log)).unwrap();
    }
    // The log is a copy from when its last segment was begun.
    let last = data.path().join(named(data.path(), "/log-").pop().unwrap());
    let bytes = std::fs::read(&last).unwrap();
    std::fs::write(&last, &bytes[..HEADER_BYTES]).unwrap();
    let snapshot = named(data.path(), "/snapshot-").pop().unwrap();
    let stands = format!("stands at record {}", number(&snapshot));
    let ends = format!("ends at {}", number(last.to_str().unwrap()) - 1);
    let parts = [data.path().join(&snapshot).to_str().unwrap().to_owned(), stands, ends];
    let mut parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    parts.push("restore it from a backup");
    refused(data.path(), &["--node", "1"], &parts);
}

#[test]
fn c29_damage_in_the_middle_is_named_with_its_offset() {
    let data = good();
    let log = behind_snapshot(data.path()).remove(1);
    let path = data.path().join(log);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[200] ^= 0x10;
    std::fs::write(&path, bytes).unwrap();
    let parts = [
        path.to_str().unwrap(),
        "is damaged at offset 64",
        "nothing was changed",
        "heft-tools log verify",
        "restore the file from a backup",
    ];
    refused(data.path(), &["--node", "1"], &parts);
}

#[test]
fn tf05_a_file_that_is_no_file_of_hefts_is_named_with_what_it_begins_with() {
    let data = good();
    let path = data.path().join(behind_snapshot(data.path()).pop().unwrap());
    std::fs::write(&path, b"dear diary").unwrap();
    let begins = "but with [64, 65, 61, 72]";
    let parts = [
        path.to_str().unwrap(),
        "marker of a log",
        begins,
        "not a heft file",
        "heft-tools log verify",
    ];
    refused(data.path(), &["--node", "1"], &parts);
}

#[test]
fn c29_a_file_of_another_directory_is_named_with_where_it_belongs() {
    let data = good();
    let log = behind_snapshot(data.path()).pop().unwrap();
    let path = data.path().join(&log);
    let other = Owner { node: 1, dir: Uuid::from_u128(0xABBA) };
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[..HEADER_BYTES].copy_from_slice(&header(Kind::Log, other, number(&log)));
    std::fs::write(&path, bytes).unwrap();
    let (there, here) = (other.dir.to_string(), made::DIR.to_string());
    let parts = [
        path.to_str().unwrap(),
        "another data directory",
        &there,
        &here,
        "put it back where it was",
    ];
    refused(data.path(), &["--node", "1"], &parts);
}

#[test]
fn c29_a_log_without_metadata_is_not_taken_for_a_new_directory() {
    let data = good();
    let path = data.path().join("consensus/metadata");
    std::fs::remove_file(&path).unwrap();
    refused(
        data.path(),
        &["--node", "1"],
        &[path.to_str().unwrap(), "it is missing, and log-", "from a backup"],
    );
}

#[test]
fn c29_files_of_others_in_the_directory_stay_as_they_are() {
    let data = tempfile::tempdir().unwrap();
    let mine = ["probe", "notes.txt", "consensus.bak"];
    for name in mine {
        std::fs::write(data.path().join(name), b"mine").unwrap();
    }
    drop(Leader::start(&["--data", data.path().to_str().unwrap()]));
    for name in mine {
        assert_eq!(std::fs::read(data.path().join(name)).unwrap(), b"mine", "{name}");
    }
}
