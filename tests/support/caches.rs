//! Workers whose caches outlive them, datasets of files on the disk, and what is visible of
//! datasets in a cache directory.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use uuid::Uuid;

use crate::procs::{ECHO, PATIENCE, Proc, TempDir, heft, write_program};

/// The files of a dataset: names and bytes.
pub type Files = BTreeMap<String, Vec<u8>>;

/// The same by the BLAKE3 of their bytes.
pub type Prints = BTreeMap<String, [u8; 32]>;

pub fn prints(files: &Files) -> Prints {
    files.iter().map(|(name, bytes)| (name.clone(), chunking::digest::blake3(bytes))).collect()
}

/// Writes files into a directory, in place of all that was there.
pub fn write_files(dir: &Path, files: &Files) {
    fs::remove_dir_all(dir).ok();
    for (name, bytes) in files {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }
}

/// A worker whose id and directories stay when it is killed.
pub struct Holder {
    pub proc: Proc,
    pub dir: TempDir,
    pub id: Uuid,
    port: u16,
    args: Vec<String>,
}

impl Holder {
    /// Starts the worker of this number, with `echo` and these programs (name, shell script).
    pub fn start(port: u16, number: u128, programs: &[(&str, &str)], args: &[&str]) -> Holder {
        let (dir, id) = (TempDir::new(), Uuid::from_u128(number));
        fs::create_dir_all(dir.join("exe")).unwrap();
        for (name, script) in programs.iter().chain(&[("echo", ECHO)]) {
            write_program(&dir.join("exe").join(name), script);
        }
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let proc = launch(port, &dir, id, &args);
        Holder { proc, dir, id, port, args }
    }

    /// It comes back, on what it left.
    pub fn start_again(&mut self) {
        self.proc.kill();
        self.proc = launch(self.port, &self.dir, self.id, &self.args);
    }

    pub fn cache(&self) -> PathBuf {
        self.dir.join("cache")
    }

    /// What is in a part of the worker's own directory.
    pub fn own(&self, part: &str) -> Vec<String> {
        names_in(&self.cache().join(".heft").join(part))
    }

    /// All that is in the cache directory.
    pub fn entries(&self) -> Vec<String> {
        names_in(&self.cache())
    }
}

fn launch(port: u16, dir: &TempDir, id: Uuid, args: &[String]) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["worker", "127.0.0.1", &port.to_string(), "--id", &id.to_string()]).args(args);
    command.arg("--exe-dir").arg(dir.join("exe")).arg("--work-dir").arg(dir.join("jobs"));
    command.arg("--cache-dir").arg(dir.join("cache")).env("HEFT_LOG", "error");
    Proc::start("heft worker", &mut command)
}

fn names_in(dir: &Path) -> Vec<String> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// What is visible under a CacheId.
#[derive(Debug)]
pub struct Seen {
    /// Where its link leads.
    pub link: PathBuf,
    pub files: Prints,
    /// Whether it was there from the first look to the last. If not, files may have been taken away
    /// meanwhile.
    pub stayed: bool,
}

/// Looks at a dataset as a program would that resolves its directory once. `None` if nothing is
/// there.
pub fn see(cache_dir: &Path, id: &str) -> Option<Seen> {
    let path = cache_dir.join(id);
    let link = fs::read_link(&path).ok()?;
    let mut files = Prints::new();
    let mut gone = false;
    match fs::File::open(&path) {
        Ok(dir) => {
            // The directory that was opened, wherever it is by now.
            let root = PathBuf::from(format!("/proc/self/fd/{}", dir.as_raw_fd()));
            gone |= read_into(&root, "", &mut files);
        }
        Err(error) => {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "{}: {error}", path.display());
            gone = true;
        }
    }
    let stayed = fs::read_link(&path).is_ok_and(|now| now == link);
    assert!(
        !gone || !stayed,
        "{}: files go while it is visible; seen are {files:?}",
        path.display()
    );
    Some(Seen { link, files, stayed })
}

/// Gives whether something was gone when it was to be read.
fn read_into(dir: &Path, prefix: &str, files: &mut Prints) -> bool {
    let missing = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
    let Ok(entries) = fs::read_dir(dir) else { return true };
    let mut gone = false;
    for entry in entries {
        let Ok(entry) = entry else { return true };
        let name = format!("{prefix}{}", entry.file_name().to_str().unwrap());
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => {
                gone |= read_into(&entry.path(), &format!("{name}/"), files)
            }
            Ok(_) => match fs::read(entry.path()) {
                Ok(bytes) => drop(files.insert(name, chunking::digest::blake3(&bytes))),
                Err(error) if missing(&error) => gone = true,
                Err(error) => panic!("{name}: {error}"),
            },
            Err(error) if missing(&error) => gone = true,
            Err(error) => panic!("{name}: {error}"),
        }
    }
    gone
}

/// `heft dataset ADDR ...` with `--output json`: its exit code, what it printed, and its errors.
pub fn dataset(addr: &str, args: &[&str]) -> (Option<i32>, Value, String) {
    let (code, out, err) = heft(&[&["dataset", addr], args, &["--output", "json"]].concat());
    let value = serde_json::from_str(&out).unwrap_or(Value::Null);
    (code, value, err)
}

/// The same, which has to end well.
pub fn dataset_ok(addr: &str, args: &[&str]) -> Value {
    let (code, value, err) = dataset(addr, args);
    assert_eq!(code, Some(0), "{args:?}: {value:#} {err}");
    value
}

/// Starts `heft dataset ADDR put ID PATH ...`.
pub fn start_put(addr: &str, id: &str, path: &Path, args: &[&str]) -> Proc {
    let mut command = Command::new(env!("CARGO_BIN_EXE_heft"));
    command.args(["dataset", addr, "put", id]).arg(path).args(args);
    command.args(["--output", "json", "--progress", "none"]).stderr(std::process::Stdio::null());
    Proc::start("heft dataset put", &mut command)
}

/// Puts files and waits for it.
pub fn put(addr: &str, id: &str, path: &Path, args: &[&str]) -> Value {
    let path = path.to_str().unwrap();
    dataset_ok(addr, &[&["put", id, path, "--progress", "none"], args].concat())
}

/// Asks until it is as wanted.
pub fn until(what: &str, mut ask: impl FnMut() -> Result<(), String>) {
    let until = Instant::now() + PATIENCE;
    loop {
        match ask() {
            Ok(()) => return,
            Err(found) => assert!(Instant::now() < until, "never: {what}; {found}"),
        }
        std::thread::sleep(Duration::from_millis(15));
    }
}
