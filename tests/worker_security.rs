//! A worker's promises against whom they are made: jobs that look around, other users of the machine, clients with hostile names.
//! With the built binary and default flags where that can be. What needs another user is run as root, and skipped with a word where
//! that is not to be had.

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

use std::collections::BTreeMap;
use std::process::Command;

use procs::{Leader, Proc, TempDir, eventually, heft, write_program};

/// A worker with one program, and secrets in its environment.
fn worker_with_secrets(port: u16, dir: &TempDir, program: (&str, &str), args: &[&str]) -> Proc {
    std::fs::create_dir_all(dir.join("exe")).unwrap();
    write_program(&dir.join("exe").join(program.0), program.1);
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", &port.to_string()]).args(args);
    for (flag, name) in [("--exe-dir", "exe"), ("--work-dir", "jobs"), ("--cache-dir", "cache")] {
        command.arg(flag).arg(dir.join(name));
    }
    command.env("HEFT_LOG", "warn").env("DATABASE_PASSWORD", "hush").env("LICENSE_FILE", "/opt/licence");
    command.env("LANG", "C.UTF-8").env("HEFT_JOB_ID", "of another");
    Proc::start("heft worker", &mut command)
}

#[test]
fn a_program_gets_its_own_environment_and_not_the_workers() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    // The shell adds PWD, OLDPWD, SHLVL and _ by itself.
    let script = r#"echo kept > "$TMPDIR/scratch"; env | grep -vE '^(PWD|OLDPWD|SHLVL|_)='"#;
    let worker = "11111111-2222-3333-4444-555555555555";
    let pass = ["--id", worker, "--pass-env", "LICENSE_FILE", "--pass-env", "NOT_SET"];
    let _worker = worker_with_secrets(leader.port, &dir, ("looks", script), &pass);
    let (code, out, err) = heft(&["submit", &leader.addr(), "looks", "--client", "clientA"]);
    assert_eq!(code, Some(0), "{err}");
    let got: BTreeMap<_, _> = out.lines().filter_map(|line| line.split_once('=')).collect();
    let names: Vec<_> = got.keys().copied().filter(|name| *name != "TZ").collect();
    let expected = [
        "HEFT_ATTEMPT",
        "HEFT_CLIENT",
        "HEFT_EXEC",
        "HEFT_JOB_ID",
        "HEFT_WORKER",
        "HOME",
        "LANG",
        "LICENSE_FILE",
        "PATH",
        "TMPDIR",
    ];
    assert_eq!(names, expected, "{out}");
    assert_eq!((got["LICENSE_FILE"], got["LANG"]), ("/opt/licence", "C.UTF-8"));
    assert_eq!((got["HEFT_EXEC"], got["HEFT_ATTEMPT"], got["HEFT_WORKER"]), ("looks", "1", worker));
    assert!(got["HEFT_CLIENT"].contains("clientA"), "{out}");
    assert!(uuid::Uuid::try_parse(got["HEFT_JOB_ID"]).is_ok(), "{out}");
    let own = dir.join("jobs/heft");
    assert!(got["TMPDIR"].starts_with(own.to_str().unwrap()), "{out}");
    eventually("nothing of it stays", || std::fs::read_dir(&own).unwrap().count() == 0);
}

#[test]
fn names_that_cannot_be_passed_to_programs_are_refused_with_the_reason() {
    for (name, why) in [("A=b", "is no name of a variable"), ("TMPDIR", "each job gets its own")] {
        let (code, _, err) = heft(&["worker", "127.0.0.1", "1", "--pass-env", name]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(why), "{err}");
    }
}
