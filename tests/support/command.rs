//! Runs the built `heft` while a test's leader plays its part.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use crate::leader::{PATIENCE, Peer};
use serde_json::Value;
use std::io::{Cursor, Write};
use std::path::PathBuf;
use std::process::Stdio;
use tokio::process::Command;
use tokio::time::timeout;
use uuid::Uuid;

pub struct Ended {
    pub code: i32,
    pub out: String,
    /// Without the line that names the job.
    pub err: String,
    /// The job that submit said the leader has.
    pub id: Option<Uuid>,
}

impl Ended {
    pub fn json(&self) -> Value {
        assert_eq!(self.out.lines().count(), 1, "one object on one line: {}", self.out);
        serde_json::from_str(&self.out).unwrap()
    }
}

/// Nobody has set a variable or selected a context.
const NOBODY: [(&str, &str); 4] = [
    ("HEFT_LEADER", ""),
    ("HEFT_CONTEXT", ""),
    ("HEFT_OUTPUT", "table"),
    ("XDG_CONFIG_HOME", "/nonexistent"),
];

pub fn heft(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command
        .args(args)
        .env_remove("CLIENT_DESIRED_PAR")
        .env_remove("HEFT_LOG")
        .envs(NOBODY)
        // Nobody can write there: a test's jobs are not the user's last ones.
        .env("XDG_STATE_HOME", "/dev/null")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

pub async fn end(mut command: Command) -> Ended {
    let output = timeout(PATIENCE, command.output()).await.expect("an end in time").unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    let (id, err) = without_id(&err);
    Ended {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).unwrap(),
        err,
        id,
    }
}

/// Takes the line out by which submit says which job the leader has.
fn without_id(err: &str) -> (Option<Uuid>, String) {
    let id_in = |line: &str| line.strip_prefix("job ")?.trim_end().parse().ok();
    let ids: Vec<Uuid> = err.split_inclusive('\n').filter_map(id_in).collect();
    assert!(ids.len() < 2, "it is said once: {err}");
    let others = err.split_inclusive('\n').filter(|line| id_in(line).is_none());
    (ids.first().copied(), others.collect())
}

/// Runs the command while the leader plays its part.
pub async fn with<T>(args: &[&str], script: impl Future<Output = T>) -> (Ended, T) {
    tokio::join!(end(heft(args)), script)
}

pub struct Dir(pub PathBuf);

impl Dir {
    pub fn new() -> Self {
        let dir = std::env::temp_dir().join(format!("heft-test-{}", Uuid::new_v4().simple()));
        std::fs::create_dir(&dir).unwrap();
        Dir(dir)
    }

    pub fn file(&self, name: &str, content: &[u8]) -> String {
        std::fs::write(self.0.join(name), content).unwrap();
        self.path(name)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).ok();
    }
}

pub fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    for (name, content) in entries {
        zip.start_file(*name, zip::write::SimpleFileOptions::default()).unwrap();
        zip.write_all(content).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

/// Reads until the client has closed its end, and so has all that was sent.
pub async fn until_closed(mut peer: Peer) {
    while peer.poll().await.is_some() {}
}
