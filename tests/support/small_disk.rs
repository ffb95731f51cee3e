//! A leader on a small file system of its own, and what tests do to it.
//!
//! The file system is a tmpfs in a mount namespace of its own. Where that is not allowed the tests
//! say so and do nothing. Needs `procs` beside it.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    clippy::indexing_slicing
)]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::procs::{Leader, PATIENCE, Proc, TempDir, heft};

/// A file system of a few bytes, and the process that holds it.
pub struct SmallDisk {
    _dir: TempDir,
    _holder: Proc,
    pub path: PathBuf,
}

impl SmallDisk {
    /// `None`, with a message, where none can be had.
    pub fn new(mib: usize) -> Option<SmallDisk> {
        let dir = TempDir::new();
        let script = format!(
            "mount -t tmpfs -o size={mib}m tmpfs {} && echo mounted && exec sleep 3600",
            dir.text()
        );
        for flags in ["-m", "-Urm"] {
            let mut command = Command::new("unshare");
            let mut holder = Proc::start("small disk", command.args([flags, "sh", "-c", &script]));
            if holder
                .wait_for_or_end("a mount", |line| line.contains("mounted").then_some(()))
                .is_some()
            {
                // Others reach what it has mounted through the process itself.
                let path = PathBuf::from(format!("/proc/{}/root{}", holder.pid(), dir.text()));
                if fs::create_dir(path.join("data")).is_ok() {
                    return Some(SmallDisk { _dir: dir, _holder: holder, path });
                }
            }
        }
        eprintln!("skipped: no file system can be mounted here (unshare -m, unshare -Urm)");
        None
    }

    pub fn leader(&self, args: &[&str]) -> Leader {
        let data = self.path.join("data");
        Leader::start(&[&["--data", data.to_str().unwrap()], args].concat())
    }

    /// Somebody else takes all that is left.
    pub fn fill(&self) -> PathBuf {
        let path = self.path.join("others");
        let mut file = fs::File::create(&path).unwrap();
        let piece = vec![7; 64 << 10];
        while file.write_all(&piece).is_ok() {}
        path
    }
}

pub fn status(leader: &Leader) -> Value {
    let (code, out, err) = heft(&["status", &leader.addr(), "--output", "json"]);
    assert_eq!(code, Some(0), "{out}{err}");
    serde_json::from_str(&out).unwrap()
}

/// Waits until the status is as it should be.
pub fn until(leader: &Leader, what: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let end = Instant::now() + PATIENCE;
    loop {
        let status = status(leader);
        if fits(&status) {
            return status;
        }
        assert!(Instant::now() < end, "{what}: {status:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// A job that is waited for; its lines are its events.
pub fn submit(leader: &Leader, exec: &str, args: &[&str]) -> Proc {
    let mut command = Command::new("sh");
    command.arg("-c").arg("exec \"$0\" \"$@\" 2>&1").arg(env!("CARGO_BIN_EXE_heft"));
    command.args(["submit", &leader.addr(), exec, "--progress", "json"]).args(args);
    Proc::start("submit", &mut command)
}

/// The job's id, once the leader has said that it has it.
pub fn taken(job: &mut Proc) -> String {
    let event = job.event("submitted");
    event["job"].as_str().unwrap().to_owned()
}

/// The same, or `None` once it was told that there is no room for it.
pub fn taken_or_told(job: &mut Proc) -> Option<String> {
    job.wait_for("word of the leader", |line| {
        let event: Value = serde_json::from_str(line).unwrap_or_default();
        match event["event"] == "submitted" {
            true => Some(event["job"].as_str().map(str::to_owned)),
            false => line.contains("--disk-reserve").then_some(None),
        }
    })
}

/// Cancels a job, which is answered.
pub fn cancel(leader: &Leader, job: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    let (code, lines) =
        Proc::start("cancel", command.args(["cancel", &leader.addr(), job])).finish();
    assert_eq!(code, Some(0), "{lines:?}");
}
