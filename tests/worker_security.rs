//! A worker's promises against whom they are made: jobs that look around, other users of the
//! machine, clients with hostile names. With the built binary and default flags where that can be.
//! What needs another user is run as root, and skipped with a word where that is not to be had.

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
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

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
    command
        .env("HEFT_LOG", "warn")
        .env("DATABASE_PASSWORD", "hush")
        .env("LICENSE_FILE", "/opt/licence");
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
fn a_job_that_changes_a_dataset_and_sets_its_time_back_changes_nothing_for_later_jobs() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let dataset = dir.join("set");
    std::fs::create_dir(&dataset).unwrap();
    std::fs::write(dataset.join("a.bin"), "right".repeat(1000)).unwrap();
    std::fs::create_dir_all(dir.join("exe")).unwrap();
    let wrong = r#"for f in a.bin "$1"; do
        touch -r "$f" "$TMPDIR/time"
        chmod u+w "$f" && printf wrong | dd of="$f" conv=notrunc status=none && touch -r "$TMPDIR/time" "$f"
        chmod a-w "$f"
    done
    head -c 5 "$1""#;
    write_program(&dir.join("exe/wrong"), wrong);
    let _worker = worker_with_secrets(leader.port, &dir, ("reads", "cat a.bin"), &[]);
    let (code, _, err) =
        heft(&["dataset", &leader.addr(), "put", "set-1", dataset.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let submit = |exec: &str, args: &[&str]| {
        let addr = leader.addr();
        let line =
            [&["submit", &addr, exec, "--cache", "set-1/a.bin", "--progress", "none", "--"], args]
                .concat();
        let (code, out, err) = heft(&line);
        assert_eq!(code, Some(0), "{out} {err}");
        out
    };
    assert_eq!(submit("reads", &[]), "right".repeat(1000));
    let theirs = dir.join("cache/set-1/a.bin");
    for _ in 0..3 {
        assert_eq!(
            submit("wrong", &[theirs.to_str().unwrap()]),
            "wrong",
            "a job can, as the worker's user"
        );
        assert_eq!(submit("reads", &[]), "right".repeat(1000));
    }
}

#[test]
fn a_job_that_puts_something_in_the_place_of_a_dataset_changes_nothing_for_later_jobs() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    std::fs::create_dir_all(dir.join("exe")).unwrap();
    write_program(&dir.join("exe/sh"), r#"cd "$1" && eval "$2""#);
    let worker = worker_with_secrets(leader.port, &dir, ("reads", "cat d/f.bin"), &[]);
    for (name, content) in [("set", "right"), ("other", "OTHER")] {
        std::fs::create_dir_all(dir.join(name).join("d")).unwrap();
        std::fs::write(dir.join(name).join("d/f.bin"), content.repeat(1000)).unwrap();
        let folder = dir.join(name);
        let (code, _, err) =
            heft(&["dataset", &leader.addr(), "put", name, folder.to_str().unwrap()]);
        assert_eq!(code, Some(0), "{err}");
    }
    let cache = dir.join("cache");
    let submit = |exec: &str, args: &[&str]| {
        let addr = leader.addr();
        let (code, out, err) =
            heft(&[&["submit", &addr, exec, "--progress", "none"], args].concat());
        assert_eq!(code, Some(0), "{args:?}: {out} {err}");
        out
    };
    let reads = || submit("reads", &["--cache", "set/d/f.bin=d/f.bin"]);
    assert_eq!(reads(), "right".repeat(1000));
    let evil = "mkdir -p $TMPDIR/../evil/d; echo EVIL > $TMPDIR/../evil/d/f.bin";
    let attacks = [
        "rm set; mkdir -p set/d; printf EVIL > set/d/f.bin",
        "rm -r set; printf EVIL > set",
        "ln -sfn $(readlink other) set",
        "rm -r set",
        &format!("{evil}; ln -sfn $TMPDIR/../evil set"),
        "s=$(readlink set); rm -rf $s; mkdir -p $s/d; printf EVIL > $s/d/f.bin",
        "s=$(readlink set); mv $s/d $s/e; ln -s e $s/d",
        "s=$(readlink set); rm -f $s/d/f.bin; mkdir $s/d/f.bin; touch $s/d/f.bin/x",
        "s=$(readlink set); rm -rf $s; ln -s ../../../cache/.heft/sets/$(basename $(readlink other)) $s",
        "rm -rf $(readlink set)",
        "rm -rf $(readlink set) $(readlink set).manifest $(readlink set).id set; printf EVIL > set",
    ];
    for attack in attacks {
        submit("sh", &["--", cache.to_str().unwrap(), attack]);
        assert_eq!(reads(), "right".repeat(1000), "{attack}");
        let link = std::fs::read_link(cache.join("set")).unwrap();
        assert!(cache.join(link).join("d/f.bin").is_file(), "{attack}: the link is back");
    }
    // The next worker does not fall for it either.
    submit("sh", &["--", cache.to_str().unwrap(), attacks[0]]);
    drop(worker);
    let _worker = worker_with_secrets(leader.port, &dir, ("reads", "cat d/f.bin"), &[]);
    assert_eq!(reads(), "right".repeat(1000));
}

/// The first file takes long to copy, and meanwhile the second is changed.
#[test]
fn a_job_whose_dataset_is_changed_while_it_is_given_it_gets_it_again() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let dataset = dir.join("set");
    std::fs::create_dir_all(&dataset).unwrap();
    std::fs::write(dataset.join("a.bin"), vec![7; 48 << 20]).unwrap();
    std::fs::write(dataset.join("b.bin"), "right".repeat(1000)).unwrap();
    std::fs::create_dir_all(dir.join("exe")).unwrap();
    write_program(&dir.join("exe/reads"), "cat b.bin");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$0\" \"$@\" 2>&1", env!("CARGO_BIN_EXE_heft")]);
    command.args(["worker", "127.0.0.1", &leader.port.to_string(), "--cache-link", "copy"]);
    for (flag, name) in [("--exe-dir", "exe"), ("--work-dir", "jobs"), ("--cache-dir", "cache")] {
        command.arg(flag).arg(dir.join(name));
    }
    let mut worker = Proc::start("heft worker", command.env("HEFT_LOG", "warn"));
    let (code, _, err) =
        heft(&["dataset", &leader.addr(), "put", "set-1", dataset.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{err}");
    let own = dir.join("jobs/heft");
    let mut hits = 0;
    for _ in 0..20 {
        let addr = leader.addr();
        let job = std::thread::spawn(move || {
            let names = ["--cache", "set-1/a.bin", "--cache", "set-1/b.bin"];
            heft(&[&["submit", &addr, "reads", "--progress", "none"], &names[..]].concat())
        });
        let is_begun = || {
            let jobs = std::fs::read_dir(&own).into_iter().flatten().flatten();
            jobs.into_iter().any(|job| job.path().join("a.bin").exists())
        };
        while !is_begun() && !job.is_finished() {
            std::thread::yield_now();
        }
        let file = dir.join("cache/set-1/b.bin");
        chmod(&file, 0o644);
        std::fs::write(&file, "wrong".repeat(1000)).unwrap();
        let (code, out, err) = job.join().unwrap();
        assert_eq!((code, out), (Some(0), "right".repeat(1000)), "{err}");
        // It may have had its copy before.
        let handed_back = |line: &str| line.contains("handed back").then_some(());
        let is_hit = worker.poll(handed_back);
        hits += u32::from(is_hit);
        if is_hit {
            break;
        }
    }
    assert!(hits > 0, "no job was given a file that changed");
}

const STRANGER: u32 = 54_321;

/// Whether this is root, who alone can be several users.
fn is_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        eprintln!("skipped: only root can be somebody else");
    }
    is_root
}

fn chown(path: &Path) {
    std::os::unix::fs::chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// Runs a worker or leader until it says that it starts, or ends. Gives its exit code, none if it
/// had to be ended, and what it said.
fn started(command: &mut Command) -> (Option<i32>, String) {
    let mut child = command
        .env("HEFT_LOG", "info")
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    for line in BufReader::new(child.stderr.take().unwrap()).lines() {
        let line = line.unwrap();
        said += &format!("{line}\n");
        if line.contains("worker starts") || line.contains("listening") {
            child.kill().unwrap();
            break;
        }
    }
    (child.wait().unwrap().code(), said)
}

fn worker_in(dir: &TempDir, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", "1"]).args(args);
    for (flag, name) in [("--exe-dir", "exe"), ("--work-dir", "jobs"), ("--cache-dir", "cache")] {
        if !args.contains(&flag) {
            // One that is named has to be there.
            if flag == "--exe-dir" {
                std::fs::create_dir_all(dir.join(name)).unwrap();
            }
            command.arg(flag).arg(dir.join(name));
        }
    }
    command
}

#[test]
fn directories_that_others_can_change_are_refused_by_worker_and_leader() {
    let dir = TempDir::new();
    let open = dir.join("open");
    std::fs::create_dir(&open).unwrap();
    chmod(&open, 0o777);
    let mut foreign =
        vec![(open.clone(), "others may write to"), (open.join("beneath"), "others may write to")];
    let strangers = dir.join("strangers");
    std::fs::create_dir(&strangers).unwrap();
    if is_root() {
        chown(&strangers);
        foreign.extend([
            (strangers.clone(), "belongs to user 54321"),
            (strangers.join("x"), "belongs to user 54321"),
        ]);
    }
    for (path, why) in foreign {
        let path = path.to_str().unwrap();
        for flag in ["--work-dir", "--cache-dir", "--exe-dir"] {
            let (code, said) = started(&mut worker_in(&dir, &[flag, path]));
            assert_eq!(code, Some(2), "{flag} {path}: {said}");
            assert!(said.contains(why) && said.contains("--allow-shared-dirs"), "{said}");
        }
        let mut leader = Command::new(env!("CARGO_BIN_EXE_heft"));
        for durability in ["disk", "memory"] {
            let (code, said) =
                started(leader.args(["leader", "0", "--durability", durability, "--data", path]));
            assert_eq!(code, Some(2), "{path}: {said}");
            assert!(said.contains(why) && said.contains("--allow-shared-dirs"), "{said}");
            leader = Command::new(env!("CARGO_BIN_EXE_heft"));
        }
        std::fs::create_dir_all(path).unwrap();
        for flag in ["--work-dir", "--exe-dir"] {
            let (code, said) = started(&mut worker_in(&dir, &[flag, path, "--allow-shared-dirs"]));
            assert_eq!(code, None, "{said}");
        }
    }
    chmod(&open, 0o1777);
    let (code, said) = started(&mut worker_in(&dir, &["--work-dir", open.to_str().unwrap()]));
    assert_eq!(code, None, "as open as /tmp: {said}");
    // Nobody's program is exchanged there, but everybody can add one.
    let (code, said) = started(&mut worker_in(&dir, &["--exe-dir", open.to_str().unwrap()]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("run with the rights of this worker"), "{said}");
}

#[test]
fn a_directory_of_programs_that_is_roots_is_taken_and_one_that_is_not_there_is_not() {
    let dir = TempDir::new();
    let (code, said) = started(&mut worker_in(&dir, &["--exe-dir", "/usr/bin"]));
    assert_eq!(code, None, "{said}");
    let missing = dir.join("new/exe");
    let (code, said) = started(&mut worker_in(&dir, &["--exe-dir", missing.to_str().unwrap()]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("create it and put the programs there"), "{said}");
    assert!(!dir.join("new").exists());
}

#[test]
fn what_workers_make_is_closed_to_others() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let _worker = worker_with_secrets(leader.port, &dir, ("x", "true"), &[]);
    assert_eq!(heft(&["submit", &leader.addr(), "x"]).0, Some(0));
    for name in ["jobs", "jobs/heft", "cache", "cache/.heft", "cache/.heft/sets"] {
        let mode = std::fs::metadata(dir.join(name)).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o700, "{name}");
    }
}

#[test]
fn a_stranger_who_owns_the_job_directories_of_a_shared_work_directory_gets_nothing() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let jobs = dir.join("jobs");
    std::fs::create_dir(&jobs).unwrap();
    chmod(&jobs, 0o1777);
    std::fs::create_dir(jobs.join("heft")).unwrap();
    chown(&jobs.join("heft"));
    let (code, said) = started(&mut worker_in(&dir, &[]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("belongs to user 54321") && said.contains("jobs/heft"), "{said}");
    std::fs::remove_dir(jobs.join("heft")).unwrap();
    let (code, said) = started(&mut worker_in(&dir, &[]));
    assert_eq!(code, None, "{said}");
    let mode = std::fs::metadata(jobs.join("heft")).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode, 0o700, "made at the start, so that nobody else does");
}

fn leader_in(data: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["leader", "0", "--data"]).arg(data);
    command
}

#[test]
fn links_of_others_to_directories_are_refused() {
    if !is_root() {
        return;
    }
    let dir = TempDir::new();
    let (shared, safe) = (dir.join("shared"), dir.join("safe"));
    for path in [&shared, &safe] {
        std::fs::create_dir(path).unwrap();
    }
    chmod(&shared, 0o1777);
    let link = shared.join("link");
    std::os::unix::fs::symlink(&safe, &link).unwrap();
    std::os::unix::fs::lchown(&link, Some(STRANGER), Some(STRANGER)).unwrap();
    for path in [link.clone(), link.join("beneath")] {
        let text = path.to_str().unwrap();
        for command in [
            &mut worker_in(&dir, &["--work-dir", text]),
            &mut worker_in(&dir, &["--cache-dir", text]),
            &mut leader_in(&path),
            leader_in(&path).args(["--durability", "memory"]),
        ] {
            let (code, said) = started(command);
            assert_eq!(code, Some(2), "{said}");
            assert!(said.contains("is a link that belongs to user 54321"), "{said}");
        }
    }
    assert_eq!(std::fs::read_dir(&safe).unwrap().count(), 0);
    std::os::unix::fs::lchown(&link, Some(0), Some(0)).unwrap();
    let (code, said) = started(&mut worker_in(&dir, &["--work-dir", link.to_str().unwrap()]));
    assert_eq!(code, None, "one's own is followed: {said}");
    assert!(safe.join("heft").exists());
}

#[test]
fn a_link_that_leads_elsewhere_after_the_start_leads_no_job_there() {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let places = ["first", "second"].map(|name| dir.join(name));
    for place in &places {
        std::fs::create_dir(place).unwrap();
    }
    std::os::unix::fs::symlink(&places[0], dir.join("jobs")).unwrap();
    let _worker = worker_with_secrets(leader.port, &dir, ("where", "pwd -P"), &[]);
    let run = || {
        let (code, out, err) = heft(&["submit", &leader.addr(), "where"]);
        assert_eq!(code, Some(0), "{err}");
        out
    };
    assert!(run().starts_with(places[0].to_str().unwrap()));
    std::fs::remove_file(dir.join("jobs")).unwrap();
    std::os::unix::fs::symlink(&places[1], dir.join("jobs")).unwrap();
    let out = run();
    assert!(out.starts_with(places[0].to_str().unwrap()), "{out}");
    assert_eq!(std::fs::read_dir(&places[1]).unwrap().count(), 0);
}

#[test]
fn what_others_prepared_in_a_sticky_directory_is_refused_by_its_name() {
    let dir = TempDir::new();
    let (cache, data, victim) = (dir.join("cache"), dir.join("data"), dir.join("victim"));
    std::fs::create_dir(&victim).unwrap();
    std::fs::write(victim.join("precious"), "1").unwrap();
    let cache_parts = [".heft", ".heft/sets", ".heft/staging", ".heft/trash", ".heft/unsynced"];
    let parts = cache_parts.map(|part| (&cache, part)).into_iter();
    for (root, part) in parts.chain(["consensus", "blobs"].map(|part| (&data, part))) {
        let refused = |why: &str, prepare: &dyn Fn(&Path)| {
            std::fs::remove_dir_all(root).ok();
            std::fs::create_dir_all(root.join(part).parent().unwrap()).unwrap();
            chmod(root, 0o1777);
            prepare(&root.join(part));
            let mut command = if root == &cache { worker_in(&dir, &[]) } else { leader_in(root) };
            let (code, said) = started(&mut command);
            assert_eq!(code, Some(2), "{part} {why}: {said}");
            assert!(
                said.contains(why) && said.contains(root.join(part).to_str().unwrap()),
                "{said}"
            );
        };
        refused("is a link", &|path| std::os::unix::fs::symlink(&victim, path).unwrap());
        refused("others may write to", &|path| {
            std::fs::create_dir(path).unwrap();
            chmod(path, 0o777);
        });
        if is_root() {
            refused("belongs to user 54321", &|path| {
                std::fs::create_dir(path).unwrap();
                chown(path);
            });
        }
        assert_eq!(std::fs::read_dir(&victim).unwrap().count(), 1, "{part}");
        std::fs::remove_dir_all(root).unwrap();
    }
}

#[test]
fn names_that_cannot_be_passed_to_programs_are_refused_with_the_reason() {
    for (name, why) in [("A=b", "is not a name of a variable"), ("TMPDIR", "each job gets its own")]
    {
        let (code, _, err) = heft(&["worker", "127.0.0.1", "1", "--pass-env", name]);
        assert_eq!(code, Some(2), "{err}");
        assert!(err.contains(why), "{err}");
    }
}
