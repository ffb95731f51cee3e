//! Workers that lack something: room on their disk, files as large as a job's, the rights of root.
//! With the built binary.

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
#[path = "support/small_disk.rs"]
mod small_disk;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use procs::{Leader, Proc, TempDir, Worker, eventually, heft, write_program};
use small_disk::{SmallDisk, submit, taken, until};

const NOBODY: u32 = 65_534;

/// A shell that runs its arguments.
const SH: (&str, &str) = ("sh", "eval \"$1\"");

/// Starts a worker that may be of another user, or have limits, which a shell sets.
fn worker_after(
    port: u16,
    before: &str,
    work_dir: &Path,
    program: &Path,
    user: Option<u32>,
) -> Proc {
    let dir = work_dir.parent().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{before}; exec \"$0\" \"$@\"")]).arg(program);
    command.args(["worker", "127.0.0.1", &port.to_string(), "--max-par", "1"]);
    command.arg("--work-dir").arg(work_dir).arg("--exe-dir").arg(dir.join("exe"));
    command
        .arg("--cache-dir")
        .arg(dir.join("cache"))
        .env("HEFT_LOG", "warn")
        .env("A_SECRET", "hush");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    Proc::start("heft worker", &mut command)
}

fn with_programs(dir: &Path) {
    fs::create_dir_all(dir.join("exe")).unwrap();
    write_program(&dir.join("exe").join(SH.0), SH.1);
}

fn heft_binary() -> PathBuf {
    env!("CARGO_BIN_EXE_heft").into()
}

/// Whether `heft` and this directory are within reach of another user.
fn as_nobody(dir: &TempDir) -> Option<PathBuf> {
    if !rustix::process::geteuid().is_root() {
        return Some(heft_binary());
    }
    let open =
        |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    let program = dir.join("heft");
    fs::copy(heft_binary(), &program).unwrap();
    open(&program, 0o755);
    open(&dir.0, 0o755);
    std::os::unix::fs::chown(&dir.0, Some(NOBODY), Some(NOBODY)).unwrap();
    let reached = Command::new(&program).arg("--version").uid(NOBODY).gid(NOBODY).output();
    if reached.is_ok_and(|ended| ended.status.success()) {
        return Some(program);
    }
    eprintln!("skipped: another user cannot run {}", program.display());
    None
}

fn user() -> Option<u32> {
    rustix::process::geteuid().is_root().then_some(NOBODY)
}

#[test]
fn a_workers_environment_is_closed_to_its_jobs() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    with_programs(&dir.0);
    let Some(program) = as_nobody(&dir) else { return };
    let _worker = worker_after(leader.port, ":", &dir.join("jobs"), &program, user());
    let script =
        "pwd; ls /proc/$PPID/cwd; tr '\\0' '\\n' < /proc/$PPID/environ | grep SECRET; echo over";
    let (code, out, err) = heft(&["submit", &leader.addr(), "sh", "--", script]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("over") && !out.contains("SECRET"), "{out}");
    assert!(err.contains("ermission denied"), "{err}");
}

#[test]
fn what_a_job_closed_to_its_own_user_is_removed() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    with_programs(&dir.0);
    let Some(program) = as_nobody(&dir) else { return };
    let jobs = dir.join("jobs");
    let _worker = worker_after(leader.port, ":", &jobs, &program, user());
    for script in [
        "mkdir -p a/b $TMPDIR/c/d; echo 1 > a/b/f; echo 2 > $TMPDIR/c/d/f; chmod 555 a/b a $TMPDIR/c/d $TMPDIR/c .",
        "mkdir -p a/b; echo 1 > a/b/f; chmod 000 a/b a .",
    ] {
        heft(&["submit", &leader.addr(), "sh", "--", script]);
        eventually("the job's directory is gone", || {
            fs::read_dir(jobs.join("heft")).is_ok_and(|left| left.count() == 0)
        });
    }
}

#[test]
fn a_limit_of_file_sizes_is_a_full_disk_and_no_end() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    with_programs(&dir.0);
    let limit = "ulimit -f 4096";
    let mut worker = worker_after(leader.port, limit, &dir.join("jobs"), &heft_binary(), None);
    let large = dir.join("large");
    fs::write(&large, vec![1; 6 << 20]).unwrap();
    let mut job = submit(&leader, "sh", &["--file", large.to_str().unwrap(), "--", "echo over"]);
    job.wait_for("the reason", |line| line.contains("has no room on its disk").then_some(()));
    // Programs have the system's way again.
    let (code, _, err) =
        heft(&["submit", &leader.addr(), "sh", "--", "exec head -c 6000000 /dev/zero > f"]);
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("signal 25"), "{err}");
    assert!(!worker.has_ended(), "the worker");
    let _sound = Worker::start(leader.port, &[SH], &[]);
    job.wait_for("its end", |line| line.contains("over").then_some(()));
    worker.kill();

    // A client, too, says what is wrong and leaves nothing.
    let out = dir.join("out");
    let command = format!("{limit}; exec \"$0\" \"$@\"");
    let script = "head -c 6000000 /dev/urandom > f";
    let ended = Command::new("sh")
        .args(["-c", &command])
        .arg(heft_binary())
        .args(["submit", &leader.addr(), "sh", "--out", out.to_str().unwrap(), "--", script])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert!(ended.status.code().is_some_and(|code| code != 0), "{:?} {said}", ended.status);
    assert!(said.contains("File too large"), "{said}");
    let left: Vec<_> =
        fs::read_dir(&out).into_iter().flatten().flatten().map(|entry| entry.file_name()).collect();
    assert!(left.iter().all(|name| !name.to_string_lossy().contains(".part")), "{left:?}");
}

#[test]
fn a_job_whose_inputs_find_no_room_waits_for_a_sound_worker_that_is_busy() {
    let Some(disk) = SmallDisk::new(4) else { return };
    let leader = Leader::start(&[]);
    with_programs(&disk.path);
    let sound = Worker::start(leader.port, &[SH], &["--max-par", "1"]);
    let go = sound.dir.join("go");
    let busy = format!("until [ -e {} ]; do sleep 0.1; done", go.display());
    let first = submit(&leader, "sh", &["--", &busy]);
    until(&leader, "the sound worker is busy", |status| status["jobs"]["running"] == 1);
    let _full = worker_after(leader.port, ":", &disk.path.join("jobs"), &heft_binary(), None);
    until(&leader, "two workers", |status| {
        status["workers"].as_array().is_some_and(|all| all.len() == 2)
    });
    disk.fill();
    let files = TempDir::new();
    let (small, large) = (files.join("small"), files.join("large"));
    fs::write(&small, vec![1; 64 << 10]).unwrap();
    fs::write(&large, vec![1; 6 << 20]).unwrap();
    let mut jobs: Vec<Proc> = [small, large]
        .iter()
        .map(|file| submit(&leader, "sh", &["--file", file.to_str().unwrap(), "--", "echo over"]))
        .collect();
    for job in &mut jobs {
        job.wait_for("the reason", |line| line.contains("has no room on its disk").then_some(()));
    }
    until(&leader, "the worker without room is shown", |status| {
        let workers = status["workers"].as_array().unwrap();
        workers.iter().filter(|worker| worker["lacks"]["what"] == "room").count() == 1
    });
    let (_, shown, _) = heft(&["status", &leader.addr()]);
    assert!(shown.contains("ago: its disk is full"), "{shown}");
    fs::write(&go, "").unwrap();
    for job in jobs.iter_mut() {
        job.wait_for("its end", |line| line.contains("over").then_some(()));
    }
    assert_eq!(first.finish().0, Some(0));
}

/// Starts a worker whose log is among its lines.
fn worker_with_log(port: u16, work_dir: &Path) -> Proc {
    let dir = work_dir.parent().unwrap();
    with_programs(dir);
    worker_after(port, "exec 2>&1", work_dir, &heft_binary(), None)
}

#[test]
fn a_worker_whose_work_directory_is_gone_hands_its_jobs_to_another_and_says_so_once() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let jobs = dir.join("jobs");
    let mut broken = worker_with_log(leader.port, &jobs);
    until(&leader, "a worker", |status| {
        status["workers"].as_array().is_some_and(|all| all.len() == 1)
    });
    let large = dir.join("large");
    fs::write(&large, vec![1; 6 << 20]).unwrap();
    fs::remove_dir_all(&jobs).unwrap();
    let runs =
        [vec!["--", "echo over"], vec!["--file", large.to_str().unwrap(), "--", "echo over"]];
    let mut waiting: Vec<Proc> = runs.iter().map(|args| submit(&leader, "sh", args)).collect();
    for job in &mut waiting {
        job.wait_for("the reason", |line| {
            line.contains("cannot use its work directory").then_some(())
        });
    }
    broken.wait_for("the error", |line| {
        (line.contains("ERROR") && line.contains("work directory")).then_some(())
    });
    let status = heft(&["status", &leader.addr(), "--output", "json"]).1;
    assert!(
        serde_json::from_str::<serde_json::Value>(&status).unwrap()["jobs"]["dead"] == 0,
        "{status}"
    );

    let sound = Worker::start(leader.port, &[SH], &[]);
    for mut job in waiting {
        job.wait_for("its end", |line| line.contains("over").then_some(()));
        assert_eq!(job.finish().0, Some(0));
    }
    drop(sound);
    // Whoever repairs it need not start the worker again.
    fs::create_dir(&jobs).unwrap();
    let (code, out, err) = heft(&["submit", &leader.addr(), "sh", "--", "echo again"]);
    assert_eq!((code, out.as_str()), (Some(0), "again\n"), "{err}");
    broken.kill();
    let (_, said) = broken.finish();
    assert_eq!(said.iter().filter(|line| line.contains("ERROR")).count(), 1, "{said:#?}");
}

#[test]
fn a_job_says_that_it_waits_for_a_worker_that_can_use_its_work_directory() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let jobs = dir.join("jobs");
    let _broken = worker_with_log(leader.port, &jobs);
    until(&leader, "a worker", |status| {
        status["workers"].as_array().is_some_and(|all| all.len() == 1)
    });
    fs::remove_dir_all(&jobs).unwrap();
    let mut job = submit(&leader, "sh", &["--", "echo over"]);
    let id = taken(&mut job);
    job.wait_for("the reason", |line| line.contains("cannot use its work directory").then_some(()));
    eventually("it is explained", || {
        heft(&["explain", &leader.addr(), &id])
            .1
            .contains("cannot use its work directory: it or another worker is tried next")
    });
}
