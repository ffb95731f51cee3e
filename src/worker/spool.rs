//! Results that the leader does not have yet, as files, so that a worker that is started again under the same id can
//! still bring them home (C31).
//!
//! A file is written when a job ends and removed when its result is settled. It outlives the process, not a crash of the
//! machine: what cannot be read back whole is dropped, and the leader has such a job run again. The session owns it.

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use bytes::Bytes;
use tracing::warn;
use uuid::Uuid;

use super::desk::Numbers;
use super::limits::{RESULT_BYTES_MAX, RESULTS_KEPT_BYTES_MAX, RESULTS_KEPT_MAX};
use crate::model::{JobResult, JsonModel};

/// Opens each file, with the version of its form.
const MARK: &str = "heft-result 1";
const HEAD_BYTES_MAX: usize = 64;

/// The files of one worker.
#[derive(Clone, Debug)]
pub(super) struct Spool {
    directory: PathBuf,
}

impl Spool {
    /// The files of the worker with this id, in the work directory.
    pub(super) fn open(work_dir: &Path, worker: Uuid) -> io::Result<Self> {
        let directory = work_dir.join(format!("results-{}", worker.simple()));
        DirBuilder::new().recursive(true).mode(0o700).create(&directory)?;
        Ok(Spool { directory })
    }

    fn path(&self, job: Uuid) -> PathBuf {
        self.directory.join(job.simple().to_string())
    }

    /// Keeps a result. Another one of the same job is replaced as a whole.
    pub(super) fn save(&self, job: Uuid, numbers: Numbers, payload: &[u8]) -> io::Result<()> {
        let run = numbers.run.map_or_else(|| "-".to_owned(), |run| run.to_string());
        let mut file = format!("{MARK} {run} {}\n", numbers.attempt).into_bytes();
        file.extend_from_slice(payload);
        let unfinished = self.directory.join(format!("{}.new", job.simple()));
        fs::write(&unfinished, file)?;
        fs::rename(&unfinished, self.path(job))
    }

    /// The leader has it.
    pub(super) fn remove(&self, job: Uuid) {
        match fs::remove_file(self.path(job)) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => warn!(%job, "cannot remove the file of a settled result: {error}"),
        }
    }

    /// What an earlier worker of this id left, oldest first. What cannot be used is removed.
    pub(super) fn load(&self) -> io::Result<Vec<(Uuid, Numbers, Bytes)>> {
        let mut found: Vec<(SystemTime, PathBuf)> = Vec::new();
        for entry in fs::read_dir(&self.directory)? {
            let entry = entry?;
            found.push((entry.metadata()?.modified()?, entry.path()));
        }
        found.sort();
        let (mut results, mut bytes) = (Vec::new(), 0usize);
        for (_, path) in found {
            match read(&path) {
                Some(result) if results.len() < RESULTS_KEPT_MAX && bytes < RESULTS_KEPT_BYTES_MAX => {
                    bytes = bytes.saturating_add(result.2.len());
                    results.push(result);
                }
                Some(_) | None => {
                    warn!("{} is no result that can be sent; removing it", path.display());
                    fs::remove_file(&path)?;
                }
            }
        }
        Ok(results)
    }
}

fn read(path: &Path) -> Option<(Uuid, Numbers, Bytes)> {
    let job = path.file_name()?.to_str().and_then(|name| Uuid::try_parse(name).ok())?;
    let mut file = Vec::new();
    let bytes_max = (RESULT_BYTES_MAX + HEAD_BYTES_MAX) as u64;
    File::open(path).ok()?.take(bytes_max).read_to_end(&mut file).ok()?;
    let end = file.iter().take(HEAD_BYTES_MAX).position(|byte| *byte == b'\n')?;
    let head = std::str::from_utf8(file.get(..end)?).ok()?.strip_prefix(MARK)?;
    let (run, attempt) = head.trim_start().split_once(' ')?;
    let run = match run {
        "-" => None,
        number => Some(number.parse().ok()?),
    };
    let numbers = Numbers { run, attempt: attempt.parse().ok()? };
    let payload = Bytes::from(file).slice(end + 1..);
    let whole = payload.len() <= RESULT_BYTES_MAX
        && JobResult::parse(&payload).is_ok_and(|result| result.job_id == job);
    whole.then_some((job, numbers, payload))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::JobStatus;

    fn result(job: Uuid) -> Vec<u8> {
        JobResult::new(job, "c", "x", JobStatus::Ok).to_json()
    }

    #[test]
    fn c31_results_come_back_after_a_restart_until_they_are_settled() {
        let root = tempfile::tempdir().unwrap();
        let worker = Uuid::from_u128(1);
        let spool = Spool::open(root.path(), worker).unwrap();
        let (a, b) = (Uuid::from_u128(10), Uuid::from_u128(11));
        spool.save(a, Numbers { run: Some(2), attempt: 3 }, b"{}").unwrap();
        spool.save(a, Numbers { run: Some(2), attempt: 4 }, &result(a)).unwrap();
        spool.save(b, Numbers { run: None, attempt: 1 }, &result(b)).unwrap();
        let mut loaded = Spool::open(root.path(), worker).unwrap().load().unwrap();
        loaded.sort_by_key(|(job, ..)| *job);
        let expected = [
            (a, Numbers { run: Some(2), attempt: 4 }, Bytes::from(result(a))),
            (b, Numbers { run: None, attempt: 1 }, Bytes::from(result(b))),
        ];
        assert_eq!(loaded, expected);
        spool.remove(a);
        spool.remove(a);
        assert_eq!(spool.load().unwrap().len(), 1);
        assert!(Spool::open(root.path(), Uuid::from_u128(2)).unwrap().load().unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_read_back_is_removed() {
        let root = tempfile::tempdir().unwrap();
        let spool = Spool::open(root.path(), Uuid::from_u128(1)).unwrap();
        let (a, b) = (Uuid::from_u128(10), Uuid::from_u128(11));
        for (name, content) in [
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
