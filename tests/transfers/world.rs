//! A leader with a data directory, files to send, and what has to be true when all is over.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use chunking::DigestKind;
use chunking::digest::{BlobHasher, to_hex};
use serde_json::Value;
use uuid::Uuid;

pub use crate::blobs::MIB;
use crate::noise::Noise;
pub use crate::procs::eventually;
use crate::procs::{Leader, PATIENCE, Proc, TempDir, Worker, heft};

/// A program that says what it was given. Its first argument, if any, is a file that gets a line
/// for each run.
pub const DIGESTS: &str = r#"[ -n "$1" ] && echo run >> "$1"
for f in *; do [ -f "$f" ] && echo "$f $(sha256sum < "$f" | cut -d' ' -f1)"; done
exit 0"#;

/// A program that waits, the first time it runs, until the directory of its first argument is gone;
/// then says what it was given.
pub const HOLDS: &str = r#"if mkdir "$1" 2>/dev/null; then while [ -d "$1" ]; do sleep 0.02; done; fi
for f in *; do [ -f "$f" ] && echo "$f $(sha256sum < "$f" | cut -d' ' -f1)"; done
exit 0"#;

/// A program that makes a file of as many bytes as its first argument says, prints as many as its
/// second, and says what the file hashes to on its standard error.
pub const MAKES: &str = r#"head -c "$1" /dev/urandom > made.bin
head -c "$2" /dev/zero | tr '\0' 'p'
sha256sum < made.bin | cut -d' ' -f1 >&2"#;

/// A leader with a directory of its own.
pub struct World {
    pub leader: Leader,
    pub dir: TempDir,
    args: Vec<String>,
}

impl World {
    pub fn start(args: &[&str]) -> World {
        let dir = TempDir::new();
        let data = dir.join("data");
        let mut all = vec!["--data".to_owned(), data.to_str().unwrap().to_owned()];
        all.extend(args.iter().map(|arg| (*arg).to_owned()));
        let leader = launch(0, &all);
        World { leader, dir, args: all }
    }

    /// One of which nothing outlives it, for what only such a one does: the lane, and a spool that
    /// empties itself.
    pub fn in_memory(args: &[&str]) -> World {
        World::start(&[&["--durability", "memory"], args].concat())
    }

    /// kill -9, and the same leader again.
    pub fn restart(&mut self) {
        let port = self.leader.port;
        self.leader.proc.kill();
        self.leader = launch(port, &self.args);
    }

    pub fn worker(&self, args: &[&str]) -> Worker {
        worker_at(self.leader.port, args)
    }

    pub fn addr(&self) -> String {
        self.leader.addr()
    }

    /// A path beneath the test's directory.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().to_owned()
    }

    /// Makes a file that does not compress.
    pub fn noise(&self, name: &str, bytes: u64) -> Sent {
        noise_in(&self.dir, name, bytes)
    }

    /// Makes a file chunk by chunk.
    pub fn file(&self, name: &str, bytes: u64, fill: impl FnMut(&mut [u8])) -> Sent {
        file_in(&self.dir, name, bytes, fill)
    }

    pub fn status(&self) -> Value {
        let (code, out, err) = heft(&["status", &self.addr(), "--output", "json"]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// Asks for the status until it is as wanted.
    pub fn until(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < until, "never: {what}; the status is {status:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Nothing is under way, and nothing is left of what was: no job, buffer, promise, file.
    /// Results may be kept: so many blobs.
    pub fn assert_idle(&self, blobs_kept: u64) {
        self.until("nothing is under way", |status| {
            let (leader, jobs) = (&status["leader"], &status["jobs"]);
            let free = |worker: &Value| worker["running"] == 0;
            jobs["queued"] == 0
                && jobs["running"] == 0
                && leader["buffers_promised"] == 0
                && leader["payload_bytes"] == 0
                && leader["blobs"] == blobs_kept
                && (blobs_kept > 0 || leader["buffers_in_use"] == 0 && leader["spool_bytes"] == 0)
                && status["workers"].as_array().unwrap().iter().all(free)
        });
        if blobs_kept == 0 {
            // They are removed by a thread of their own, a moment after the leader has forgotten
            // them.
            eventually("no blob has a file", || self.blob_files().is_empty());
        }
    }

    /// The files of the leader's blobs; those that wait to be written again are nobody's.
    pub fn blob_files(&self) -> Vec<String> {
        let data = self.dir.join("data");
        let dirs = ["spool", "blobs"].map(|dir| fs::read_dir(data.join(dir)));
        let entries = dirs.into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with("free-")).collect()
    }

    /// Starts `heft submit` here, with events on its output, too.
    pub fn submit(&self, args: &[&str]) -> Proc {
        submit_at(&self.addr(), args)
    }

    /// Hands files to a program that says what they hash to, and compares.
    pub fn run(&self, files: &[&Sent], args: &[&str]) {
        let submit = submit_files(&self.addr(), "digests", files, args);
        expect_digests(submit, files);
    }
}

/// Makes a file that does not compress, in a directory.
pub fn noise_in(dir: &TempDir, name: &str, bytes: u64) -> Sent {
    let seed =
        u64::from_le_bytes(chunking::digest::blake3(name.as_bytes())[..8].try_into().unwrap());
    let mut noise = Noise::new(seed);
    file_in(dir, name, bytes, move |chunk| noise.fill(chunk))
}

/// Makes a file chunk by chunk, in a directory.
pub fn file_in(dir: &TempDir, name: &str, bytes: u64, mut fill: impl FnMut(&mut [u8])) -> Sent {
    let path = dir.join(name);
    let mut file = fs::File::create(&path).unwrap();
    let mut hasher = BlobHasher::new(DigestKind::Sha256);
    let (mut left, mut chunk) = (bytes, vec![0; MIB]);
    while left > 0 {
        let part = usize::try_from(left).unwrap_or(usize::MAX).min(MIB);
        fill(&mut chunk[..part]);
        file.write_all(&chunk[..part]).unwrap();
        hasher.update(&chunk[..part], 0);
        left -= part as u64;
    }
    let sha256 = hex_of(&hasher.finish());
    Sent { name: name.to_owned(), path, sha256 }
}

fn launch(port: u16, args: &[String]) -> Leader {
    Leader::start_on(port, &args.iter().map(String::as_str).collect::<Vec<_>>())
}

/// A worker that reaches its leader at this port.
pub fn worker_at(port: u16, args: &[&str]) -> Worker {
    Worker::start(port, &[("digests", DIGESTS), ("holds", HOLDS), ("makes", MAKES)], args)
}

/// Waits until a worker has no job directory any more.
pub fn assert_no_job_directory(worker: &Worker) {
    let jobs = worker.dir.join("jobs/heft");
    eventually("no job directory is left", || {
        fs::read_dir(&jobs)
            .map_or(0, |entries| entries.flatten().filter(|entry| entry.path().is_dir()).count())
            == 0
    });
}

/// A file to send, and what its bytes hash to.
pub struct Sent {
    pub name: String,
    pub path: PathBuf,
    pub sha256: String,
}

/// `heft submit` with its standard error on its output: events as JSON, the job's own output as it
/// is.
pub fn submit_at(addr: &str, args: &[&str]) -> Proc {
    let mut command = Command::new("sh");
    command.args(["-c", r#"exec "$0" "$@" 2>&1"#, env!("CARGO_BIN_EXE_heft"), "submit", addr]);
    Proc::start("heft submit", command.args(["--progress", "json"]).args(args))
}

/// Submits files to a program; `args` are those of `heft submit`, and behind `--` the program's.
pub fn submit_files(addr: &str, exec: &str, files: &[&Sent], args: &[&str]) -> Proc {
    let mut all = vec![exec];
    for file in files {
        all.extend(["--file", file.path.to_str().unwrap()]);
    }
    submit_at(addr, &[&all, args].concat())
}

/// The job of a `heft submit`, as its events name it.
pub fn job_of(submit: &mut Proc) -> Uuid {
    submit.wait_for("an event with the job's id", |line| {
        serde_json::from_str::<Value>(line).ok()?["job"].as_str()?.parse().ok()
    })
}

/// Waits for a `heft submit`: its job ended OK, once, and said the digest of each file.
pub fn expect_digests(submit: Proc, files: &[&Sent]) {
    let (code, lines) = submit.finish();
    assert_eq!(code, Some(0), "{lines:#?}");
    let said: BTreeMap<&str, &str> = lines.iter().filter_map(|line| line.split_once(' ')).collect();
    for file in files {
        assert_eq!(
            said.get(file.name.as_str()),
            Some(&file.sha256.as_str()),
            "{}: {lines:#?}",
            file.name
        );
    }
    let digests = lines.iter().filter(|line| !line.starts_with('{') && line.contains(' ')).count();
    assert_eq!(digests, files.len(), "nothing else and nothing twice: {lines:#?}");
}

/// The SHA-256 of a file.
pub fn sha256_of(path: &Path) -> String {
    let mut hasher = BlobHasher::new(DigestKind::Sha256);
    hasher.update(&fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display())), 0);
    hex_of(&hasher.finish())
}

fn hex_of(digest: &chunking::Digest) -> String {
    to_hex(&digest.bytes)
}

/// The end of what somebody said.
pub fn end_of(text: &str) -> &str {
    text.get(text.ceil_char_boundary(text.len().saturating_sub(2000))..).unwrap_or_default()
}

/// How many descriptors a process has open.
pub fn descriptors(process: &Proc) -> usize {
    fs::read_dir(format!("/proc/{}/fd", process.pid())).unwrap().count()
}

/// How many descriptors a process has open, and how many of them are ends of pipes: a leader keeps
/// empty pipes for later.
pub fn descriptors_and_pipes(process: &Proc) -> (usize, usize) {
    let open: Vec<_> = fs::read_dir(format!("/proc/{}/fd", process.pid()))
        .unwrap()
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .collect();
    let pipes = open.iter().filter(|to| to.to_string_lossy().starts_with("pipe:")).count();
    (open.len() - pipes, pipes)
}

/// The most memory a process ever had, in bytes.
pub fn peak_memory(process: &Proc) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("a peak");
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

/// Numbers that look random, the same for the same seed.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        heft::core::retry::mix(self.0) % limit
    }
}
