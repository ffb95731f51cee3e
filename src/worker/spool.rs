//! Stores results the leader does not have yet as files, so that a worker restarted under the same
//! id can still return them (C31).
//!
//! A file is written when a job ends and removed when its result is settled. Large parts are
//! separate files beside it. The files survive the process, not a machine crash: a result that
//! cannot be read back whole is dropped, and the leader runs the job again. The session owns it.
//!
//! | file | holds |
//! |---|---|
//! | `<job>` | a head line, with the CRC-32 of the rest, and the result as sent in one frame |
//! | `<job>.large` | the result as sent with transfers, if there are large parts |
//! | `<job>.archive`, `<job>.stdout`, `<job>.stderr` | the parts |

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use bytes::Bytes;
use chunking::message::Purpose;
use rustix::fs::{fstat, lstat};
use tracing::warn;
use uuid::Uuid;

use super::directory::lock;
use super::handler::Content;
use super::job_table::RunAttempt;
use super::limits::{RESULT_BYTES_MAX, RESULTS_KEPT_BYTES_MAX, RESULTS_KEPT_MAX};
use super::result_encoding::{Answer, Large, Part, reference};
use crate::model::{JobResult, JsonModel};

/// Opens each file, with the version of its form.
const MARK: &str = "heft-result 2";
/// The version before there were checksums, which an earlier worker may have left.
const MARK_1: &str = "heft-result 1";
const HEAD_BYTES_MAX: usize = 64;

/// The files of one worker.
#[derive(Clone, Debug)]
pub(super) struct Spool {
    directory: PathBuf,
    worker: Uuid,
    /// Two workers would send and remove each other's results.
    lock: Arc<Mutex<OwnedFd>>,
}

impl Spool {
    /// The files of the worker with this id, in the work directory.
    pub(super) fn open(work_dir: &Path, worker: Uuid) -> io::Result<Self> {
        let directory = work_dir.join(format!("results-{}", worker.simple()));
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        let lock = Arc::new(Mutex::new(Self::claim(&directory, worker)?));
        Ok(Spool { directory, worker, lock })
    }

    fn claim(directory: &Path, worker: Uuid) -> io::Result<OwnedFd> {
        let (found, user) = (fs::symlink_metadata(directory)?, rustix::process::geteuid().as_raw());
        if !found.is_dir() || found.uid() != user {
            let text =
                format!("{} is not a directory of this user's (user {user})", directory.display());
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        lock(directory)?.ok_or_else(|| {
            let text = format!(
                "a worker with the id {worker} is running, and keeps its results in {}: stop it, or give this one another --id or \
                 --work-dir",
                directory.display()
            );
            io::Error::new(io::ErrorKind::ResourceBusy, text)
        })
    }

    /// Makes the directory again, and locks it, if somebody removed it with the work directory and
    /// that is there again.
    fn make_again(&self) -> io::Result<()> {
        let mut lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let held = fstat(&*lock)?;
        if lstat(&self.directory)
            .is_ok_and(|named| (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino))
        {
            return Ok(());
        }
        match DirBuilder::new().mode(0o700).create(&self.directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            Ok(()) | Err(_) => *lock = Self::claim(&self.directory, self.worker)?,
        }
        Ok(())
    }

    fn path(&self, job: Uuid, ending: &str) -> PathBuf {
        self.directory.join(format!("{}{ending}", job.simple()))
    }

    /// Keeps a result. Another one of the same job is replaced as a whole. Its large parts move
    /// here, and `answer` names them where they are then.
    pub(super) fn save(
        &self,
        job: Uuid,
        numbers: RunAttempt,
        answer: &mut Answer,
    ) -> io::Result<()> {
        self.make_again()?;
        self.remove(job);
        if let Some(large) = &mut answer.large {
            self.save_parts(job, Arc::make_mut(large))?;
        }
        let run = numbers.run.map_or_else(|| "-".to_owned(), |run| run.to_string());
        let crc = crc32fast::hash(&answer.payload);
        let mut file = format!("{MARK} {run} {} {crc:08x}\n", numbers.attempt).into_bytes();
        file.extend_from_slice(&answer.payload);
        let unfinished = self.path(job, UNFINISHED);
        fs::write(&unfinished, file)?;
        // The last step: a result without this file counts for nothing.
        fs::rename(&unfinished, self.path(job, ""))
    }

    fn save_parts(&self, job: Uuid, large: &mut Large) -> io::Result<()> {
        for part in &mut large.parts {
            let Some(ending) = ending(part.purpose) else { continue };
            let path = self.path(job, ending);
            match &part.content {
                // Within one work directory that is one step, whatever the size.
                Content::File(from) => fs::rename(from, &path)?,
                Content::Memory(bytes) => fs::write(&path, bytes)?,
            }
            part.content = Content::File(path);
        }
        fs::write(self.path(job, LARGE), large.result.to_json())
    }

    /// The leader has it.
    pub(super) fn remove(&self, job: Uuid) {
        for ending in ["", LARGE, ".archive", ".stdout", ".stderr"] {
            match fs::remove_file(self.path(job, ending)) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => warn!(%job, "cannot remove the file of a settled result: {error}"),
            }
        }
    }

    /// What an earlier worker of this id left, oldest first. What cannot be used is removed.
    pub(super) fn load(&self) -> io::Result<Vec<(Uuid, RunAttempt, Answer)>> {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        let mut beside = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            match entry.path().extension() {
                Some(_) => beside.push(entry.path()),
                None => found.push((entry.metadata()?.modified()?, entry.path())),
            }
        }
        found.sort();
        let (mut results, mut bytes) = (Vec::new(), 0usize);
        for (_, path) in found {
            let read = read(&path).and_then(|(job, numbers, payload)| {
                let large = self.read_large(job)?;
                Some((job, numbers, Answer { payload, large: large.map(Arc::new) }))
            });
            match read {
                Some(result)
                    if results.len() < RESULTS_KEPT_MAX && bytes < RESULTS_KEPT_BYTES_MAX =>
                {
                    bytes = bytes.saturating_add(result.2.weight());
                    results.push(result);
                }
                Some(_) | None => {
                    warn!("{} is not a result that can be sent; removing it", path.display());
                    fs::remove_file(&path)?;
                }
            }
        }
        let of_a_result = |path: &Path| {
            let job = path
                .file_stem()
                .and_then(|name| name.to_str())
                .and_then(|name| Uuid::try_parse(name).ok());
            path.extension().is_some_and(|ending| ending != UNFINISHED.trim_start_matches('.'))
                && job.is_some_and(|job| results.iter().any(|(kept, ..)| *kept == job))
        };
        for path in beside.iter().filter(|path| !of_a_result(path)) {
            fs::remove_file(path)?;
        }
        Ok(results)
    }

    /// The result with its parts: `Some(None)` if it has none, `None` if it is not whole.
    fn read_large(&self, job: Uuid) -> Option<Option<Large>> {
        let bytes = match fs::read(self.path(job, LARGE)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Some(None),
            Err(_) => return None,
        };
        let mut result = JobResult::parse(&bytes).ok().filter(|result| result.job_id == job)?;
        let mut parts = Vec::new();
        for purpose in [Purpose::Archive, Purpose::Stdout, Purpose::Stderr] {
            let Some(Some(blob)) = reference(&mut result, purpose).cloned() else { continue };
            let content = Content::File(self.path(job, ending(purpose)?));
            let bytes = content.bytes().ok().filter(|bytes| *bytes == blob.size)?;
            parts.push(Part { id: blob.id, purpose, bytes, content });
        }
        Some(Some(Large { result, parts }))
    }
}

const UNFINISHED: &str = ".new";
const LARGE: &str = ".large";

fn ending(purpose: Purpose) -> Option<&'static str> {
    match purpose {
        Purpose::Archive => Some(".archive"),
        Purpose::Stdout => Some(".stdout"),
        Purpose::Stderr => Some(".stderr"),
        Purpose::Input | Purpose::Dataset | Purpose::Payload => None,
    }
}

fn read(path: &Path) -> Option<(Uuid, RunAttempt, Bytes)> {
    let job = path.file_name()?.to_str().and_then(|name| Uuid::try_parse(name).ok())?;
    let mut file = Vec::new();
    let bytes_max = (RESULT_BYTES_MAX + HEAD_BYTES_MAX) as u64;
    File::open(path).ok()?.take(bytes_max).read_to_end(&mut file).ok()?;
    let end = file.iter().take(HEAD_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(file.get(..end)?).ok()?;
    let (run, attempt, crc) = match (head.strip_prefix(MARK), head.strip_prefix(MARK_1)) {
        (Some(fields), _) => {
            let (run, rest) = fields.trim_start().split_once(' ')?;
            let (attempt, crc) = rest.split_once(' ')?;
            (run, attempt, Some(u32::from_str_radix(crc, 16).ok()?))
        }
        (None, Some(fields)) => {
            let (run, attempt) = fields.trim_start().split_once(' ')?;
            (run, attempt, None)
        }
        (None, None) => return None,
    };
    let run = match run {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let numbers = RunAttempt::new(run, attempt.parse().ok()?);
    let payload = Bytes::from(file).slice(end + 1..);
    let whole = payload.len() <= RESULT_BYTES_MAX
        && crc.is_none_or(|crc| crc32fast::hash(&payload) == crc)
        && JobResult::parse(&payload).is_ok_and(|result| result.job_id == job);
    whole.then_some((job, numbers, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobStatus;
    use crate::worker::handler::Attachment;
    use crate::worker::result_encoding::fit;

    fn result(job: Uuid) -> Vec<u8> {
        JobResult::new(job, "c", "x", JobStatus::Ok).to_json()
    }

    #[test]
    fn c31_results_come_back_after_a_restart_until_they_are_settled() {
        let root = tempfile::tempdir().unwrap();
        let worker = Uuid::from_u128(1);
        let spool = Spool::open(root.path(), worker).unwrap();
        let (a, b) = (Uuid::from_u128(10), Uuid::from_u128(11));
        spool.save(a, RunAttempt::new(Some(2), 3), &mut (&b"{}"[..]).into()).unwrap();
        spool.save(a, RunAttempt::new(Some(2), 4), &mut result(a).into()).unwrap();
        spool.save(b, RunAttempt::new(None, 1), &mut result(b).into()).unwrap();
        drop(spool);
        let spool = Spool::open(root.path(), worker).unwrap();
        let mut loaded = spool.load().unwrap();
        loaded.sort_by_key(|(job, ..)| *job);
        let expected = [
            (a, RunAttempt::new(Some(2), 4), Answer::from(result(a))),
            (b, RunAttempt::new(None, 1), Answer::from(result(b))),
        ];
        assert_eq!(loaded, expected);
        spool.remove(a);
        spool.remove(a);
        assert_eq!(spool.load().unwrap().len(), 1);
        // As a worker from before there were checksums left it.
        let file = [b"heft-result 1 - 1\n".to_vec(), result(b)].concat();
        fs::write(spool.path(b, ""), file).unwrap();
        assert_eq!(spool.load().unwrap(), expected[1..]);
        assert!(Spool::open(root.path(), Uuid::from_u128(2)).unwrap().load().unwrap().is_empty());
    }

    #[test]
    fn c31_large_parts_come_back_with_their_result_and_go_with_it() {
        let root = tempfile::tempdir().unwrap();
        let spool = Spool::open(root.path(), Uuid::from_u128(1)).unwrap();
        let count = || fs::read_dir(&spool.directory).unwrap().count();
        let numbers = RunAttempt::new(Some(1), 2);
        let save = |number| {
            let archive = root.path().join("archive");
            fs::write(&archive, vec![1; 5_000_000]).unwrap();
            let attached = [
                (Purpose::Archive, Content::File(archive.clone())),
                (Purpose::Stdout, Content::Memory(Bytes::from(vec![b'o'; 70_000]))),
            ];
            let attached = attached.map(|(purpose, content)| Attachment { purpose, content });
            let job = Uuid::from_u128(number);
            let result = JobResult::new(job, "c", "x", JobStatus::Ok);
            let mut saved = fit(result, attached.into(), 2);
            spool.save(job, numbers, &mut saved).unwrap();
            assert!(!archive.exists(), "it has moved");
            (job, saved)
        };
        let (a, saved) = save(10);
        assert_eq!(spool.load().unwrap(), [(a, numbers, saved)]);
        assert_eq!(count(), 4);

        let (b, _) = save(11);
        fs::write(spool.path(b, ".archive"), "short").unwrap();
        fs::write(spool.path(Uuid::from_u128(12), ".stdout"), "nobody's").unwrap();
        assert_eq!(spool.load().unwrap().len(), 1, "one that is not whole is not sent");
        assert_eq!(count(), 4, "and leaves nothing");
        spool.remove(a);
        assert_eq!(count(), 0);
    }

    #[test]
    fn a_directory_that_was_removed_is_made_and_locked_again_once_its_work_directory_is_there() {
        let root = tempfile::tempdir().unwrap();
        let (work_dir, worker) = (root.path().join("work"), Uuid::from_u128(1));
        let spool = Spool::open(&work_dir, worker).unwrap();
        let (job, numbers) = (Uuid::from_u128(10), RunAttempt::new(Some(1), 2));
        let save = || spool.save(job, numbers, &mut result(job).into());
        save().unwrap();
        fs::remove_dir_all(&work_dir).unwrap();
        assert_eq!(save().unwrap_err().kind(), io::ErrorKind::NotFound);
        assert!(!work_dir.exists(), "that is made by whoever removed it");
        fs::create_dir(&work_dir).unwrap();
        save().unwrap();
        save().unwrap();
        assert_eq!(spool.load().unwrap().len(), 1);
        let second = Spool::open(&work_dir, worker).unwrap_err();
        assert_eq!(second.kind(), io::ErrorKind::ResourceBusy);

        // Another one of the same id came first.
        fs::remove_dir_all(&work_dir).unwrap();
        let other = Spool::open(&work_dir, worker).unwrap();
        assert_eq!(save().unwrap_err().kind(), io::ErrorKind::ResourceBusy);
        assert!(other.load().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_back_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let spool = Spool::open(root.path(), Uuid::from_u128(1)).unwrap();
        let (a, b) = (Uuid::from_u128(10), Uuid::from_u128(11));
        let mut flipped = result(Uuid::from_u128(14));
        let crc = crc32fast::hash(&flipped);
        // Still a result of the same job, and another one.
        *flipped.iter_mut().find(|byte| **byte == b'x').unwrap() ^= 1;
        let flipped = [format!("heft-result 2 1 1 {crc:08x}\n").into_bytes(), flipped].concat();
        for (name, content) in [
            (Uuid::from_u128(14).simple().to_string(), flipped),
            (a.simple().to_string(), b"heft-result 1 1 1\n{\"JobId\":".to_vec()),
            (b.simple().to_string(), [b"heft-result 1 1 1\n".to_vec(), result(a)].concat()),
            (Uuid::from_u128(12).simple().to_string(), Vec::new()),
            (Uuid::from_u128(13).simple().to_string(), vec![0; 5_000_000]),
            ("x.new".to_owned(), b"half".to_vec()),
        ] {
            fs::write(spool.directory.join(name), content).unwrap();
        }
        assert!(spool.load().unwrap().is_empty());
        assert_eq!(fs::read_dir(&spool.directory).unwrap().count(), 0);
    }
}
