//! How `heft-tools` ends: its exit codes are those of `heft`. Whoever reads what a tool prints may
//! leave before its end, as `head` does: the exit code says so, and nothing else does.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::ffi::OsStr;
use std::process::Command;

/// Runs `heft-tools` for nobody.
fn unread<S: AsRef<OsStr>>(args: &[S]) {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let ran =
        Command::new(env!("CARGO_BIN_EXE_heft-tools")).args(args).stdout(writer).output().unwrap();
    let said = String::from_utf8(ran.stderr).unwrap();
    assert_eq!((ran.status.code(), said.as_str()), (Some(141), ""));
}

#[test]
fn weigh_ends_with_the_code_of_a_closed_output() {
    unread(&["weigh", "--size", "4KiB"]);
    unread(&["weigh", "--size", "4KiB", "--codec", "none", "--json"]);
}

#[test]
fn import_ends_with_the_code_of_a_closed_output_and_its_work_is_done() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("events.log"), "").unwrap();
    std::fs::create_dir(dir.path().join("consensus")).unwrap();
    let log = [[0x12, 0x76, 0xAD, 0x55], 1i32.to_be_bytes()].concat();
    std::fs::write(dir.path().join("consensus/raft.log"), log).unwrap();
    for system in ["csharp", "taskflux"] {
        let data = dir.path().join(system);
        let from = dir.path().to_str().unwrap();
        unread(&["import", system, from, "--data", data.to_str().unwrap()]);
        let data = data.to_str().unwrap();
        let verified =
            Command::new(env!("CARGO_BIN_EXE_heft-tools")).args(["log", "verify", data]).output();
        assert_eq!(verified.unwrap().status.code(), Some(0));
    }
}

#[test]
fn a_file_that_is_not_there_is_a_wrong_command_line_as_in_heft() {
    for args in [
        &["weigh", "/nowhere"][..],
        &["weigh", "/"],
        &["frame", "/nowhere"],
        &["frame", "--hex", "xyz"],
        &["weigh", "--size"],
    ] {
        let ran = Command::new(env!("CARGO_BIN_EXE_heft-tools")).args(args).output().unwrap();
        assert_eq!((ran.status.code(), ran.stdout.as_slice()), (Some(2), &b""[..]), "{args:?}");
    }
    let data = ["log", "verify", "/nowhere"];
    let ran = Command::new(env!("CARGO_BIN_EXE_heft-tools")).args(data).output().unwrap();
    assert_eq!(ran.status.code(), Some(3), "as `heft leader` with such a --data");
}
