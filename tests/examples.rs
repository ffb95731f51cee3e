//! The programs in `examples/` against a leader, as their own texts say to run them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/procs.rs"]
mod procs;

use std::path::Path;
use std::process::{Command, Output};

use procs::{Leader, Proc, TempDir, Worker, eventually, heft};

/// The program of an example. A run of all tests builds them beside the binary, one of `--test
/// examples` alone does not.
fn example(name: &str) -> Command {
    let beside = Path::new(env!("CARGO_BIN_EXE_heft")).parent().unwrap();
    let program = beside.join("examples").join(name);
    assert!(program.exists(), "{name} is not built: `cargo build --workspace --examples` does it");
    Command::new(program)
}

fn run(name: &str, args: &[&str]) -> (String, String) {
    let Output { status, stdout, stderr } = example(name).args(args).output().unwrap();
    let (stdout, stderr) = (String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap());
    assert!(status.success(), "{name} {args:?}: {status}\n{stdout}{stderr}");
    (stdout, stderr)
}

#[test]
fn a_large_file_goes_to_an_embedded_worker_and_its_progress_can_be_watched() {
    let (leader, dir) = (Leader::start(&[]), TempDir::new());
    let worker = Proc::start("embed_worker", example("embed_worker").arg(leader.addr()));
    let file = dir.join("big.bin");
    let mut content = vec![b'x'; 9 << 20];
    content[..3].fill(b'\n');
    std::fs::write(&file, &content).unwrap();
    let wanted = format!("{} bytes, 3 lines\n", content.len());
    let args = [&leader.addr(), file.to_str().unwrap()];

    let (said, _) = run("submit_file", &args);
    assert_eq!(said, wanted);

    let (said, news) = run("watch_progress", &args);
    assert_eq!(said, wanted);
    for part in ["taken, ", "uploading ", "Running "] {
        assert!(news.contains(part), "no {part:?} in {news}");
    }

    // The worker ends on an interrupt, with what it did.
    let pid = worker.pid().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let (code, lines) = worker.finish();
    assert_eq!(code, Some(0), "{lines:?}");
}

#[test]
fn a_directory_is_put_on_a_worker_and_put_again() {
    let (leader, dir) = (Leader::start(&[]), TempDir::new());
    let _worker = Worker::start(leader.port, &[], &[]);
    eventually("the worker is there", || {
        let (code, said, _) = heft(&["workers", "ls", "-l", &leader.addr(), "-o", "json"]);
        code == Some(0) && said.contains(r#""connected""#)
    });
    std::fs::write(dir.join("model.bin"), vec![7; 300_000]).unwrap();
    let args = [&leader.addr(), "models-v2", dir.text()];
    for _ in 0..2 {
        let (said, _) = run("put_dataset", &args);
        assert_eq!(said, "models-v2: 1 of 1 workers have it\n");
    }
}
