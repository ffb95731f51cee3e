//! A job's directory: created empty, closed to others, locked, and removed when the result is safe
//! (WX02, WX10, C21).
//!
//! It is `<work directory>/heft/<job id as 32 digits>`. Classic workers use `<work directory>/<job
//! id>`, without a lock, and share the default work directory. A requeued job can be with both
//! kinds of worker, so neither a lock nor a marker in a shared name would do: a classic worker
//! would enter a heft directory and lose its files when heft removes it. Everything in `heft`
//! belongs to heft workers; they never enter or remove anything beside it.
//!
//! Two heft workers may share a work directory and even be given the same job. The lock keeps one
//! from removing what the other uses, and the second appends a number to the name.
//!
//! Large parts of a result (the archive, long outputs) are files in a second directory beside it,
//! `<name>.out`. It is created for the first such part, belongs to the holder of the lock and is
//! removed with the directory.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, File};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, fstat, lstat, openat};
use rustix::io::Errno;
use uuid::Uuid;

use super::limits::DIRECTORY_TRIES_MAX;
use super::removal::{make_accessible, remove_all};
use crate::transfer::is_full;

/// Where job directories of heft's workers are, in the work directory. No job id is such a name.
const OWN: &str = "heft";
/// What the name of the directory for large parts has behind that of the job's directory.
const OUTPUTS: &str = ".out";

/// Where the large parts of a result go, beside the job's directory. It may not be there yet.
pub(super) fn outputs_beside(directory: &Path) -> PathBuf {
    let mut name = directory.file_name().map(OsString::from).unwrap_or_default();
    name.push(OUTPUTS);
    directory.with_file_name(name)
}

/// Makes a file for a large part, and its directory if that is missing.
pub(super) fn create_output(path: &Path) -> io::Result<File> {
    if let Some(outputs) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(outputs)?;
    }
    File::options().read(true).write(true).create(true).truncate(true).open(path)
}

fn remove_if_there(directory: &Path) -> io::Result<()> {
    match remove_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Makes a work directory and our part of it at the start, so that nobody else does, or says why
/// jobs could not have directories there. One that disappears later is not made again: its worker
/// hands jobs back.
pub(super) fn claim_own(work_dir: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(work_dir).map_err(|error| {
        let text = format!("cannot make the work directory {}: {error}", work_dir.display());
        io::Error::new(error.kind(), text)
    })?;
    let own = make_own(work_dir)?;
    check_writable(&own)
}

/// Whether job directories can be made: a file system may be read-only, or not there any more. One
/// that is full will do: jobs are handed back until there is room.
fn check_writable(own: &Path) -> io::Result<()> {
    let probe = own.join(format!(".probe-{}", std::process::id()));
    match DirBuilder::new().mode(0o700).create(&probe) {
        Ok(()) => fs::remove_dir(&probe),
        Err(error) if is_full(&error) => Ok(()),
        // Another worker of this process looks, too.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
    }
    .map_err(|error| {
        let text = format!(
            "cannot make job directories in {}: {error}; make it writable, or name another work directory",
            own.display()
        );
        io::Error::new(error.kind(), text)
    })
}

fn in_the_way(own: &Path) -> io::Error {
    let text = format!(
        "{} is not a directory: heft's workers keep their jobs there; remove it, or name another work directory",
        own.display()
    );
    io::Error::new(io::ErrorKind::NotADirectory, text)
}

/// Makes the part of a work directory that is ours, if it is not there yet. It is closed to others,
/// whoever may use the work directory: whoever can write to it could have a worker write elsewhere.
fn make_own(work_dir: &Path) -> io::Result<PathBuf> {
    let own = work_dir.join(OWN);
    let told = |error: io::Error| {
        let text = format!("cannot make the job directory {}: {error}", own.display());
        io::Error::new(error.kind(), text)
    };
    match fs::symlink_metadata(&own) {
        Ok(found) if found.is_dir() => {
            let user = rustix::process::geteuid().as_raw();
            if found.uid() != user {
                let text = format!(
                    "{} belongs to user {}, and this is user {user}: name a work directory of your own",
                    own.display(),
                    found.uid()
                );
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
            }
            if found.mode() & 0o077 != 0 {
                // An earlier heft left it as open as the work directory.
                fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).map_err(told)?;
            }
            return Ok(own);
        }
        Ok(_) => return Err(in_the_way(&own)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(told(error)),
    }
    match DirBuilder::new().mode(0o700).create(&own) {
        Ok(()) => Ok(own),
        // Another worker made it at the same time, or somebody who should not have.
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => make_own(work_dir),
        Err(error) => Err(told(error)),
    }
}

/// A job's directory as it was opened when it was made: files are read and written beneath the
/// handle, whatever becomes of the path meanwhile.
#[derive(Clone, Debug)]
pub(super) struct OpenDirectory {
    path: PathBuf,
    handle: Arc<OwnedFd>,
}

impl OpenDirectory {
    /// Where it was made, to be named.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn handle(&self) -> &OwnedFd {
        &self.handle
    }

    /// Whether somebody removed it.
    pub(super) fn is_gone(&self) -> bool {
        fstat(&*self.handle).is_ok_and(|found| found.st_nlink == 0)
    }

    /// A path by which this process and its children reach the directory that is open, where the
    /// system has such paths.
    pub(super) fn as_current(&self) -> PathBuf {
        let open = PathBuf::from(format!("/proc/self/fd/{}", self.handle.as_raw_fd()));
        if open.exists() { open } else { self.path.clone() }
    }

    #[cfg(test)]
    pub(super) fn of(path: &Path) -> Self {
        let handle = crate::fs::dirfd::open_root(path).unwrap();
        OpenDirectory { path: path.to_owned(), handle: Arc::new(handle) }
    }
}

/// A directory that belongs to one job. Dropping it leaves the files and gives up the lock, once
/// nobody works in it.
#[derive(Debug)]
pub struct JobDirectory {
    /// Its handle holds the lock.
    open: OpenDirectory,
}

impl JobDirectory {
    /// Makes the directory of `job` in our part of `work_dir`. What an ended worker left under that
    /// name is removed.
    pub fn make(work_dir: &Path, job: Uuid) -> io::Result<Self> {
        let root = make_own(work_dir)?;
        let first = root.join(job.simple().to_string());
        for number in 1..=DIRECTORY_TRIES_MAX {
            let path = match number {
                1 => first.clone(),
                _ => root.join(format!("{}-{number}", job.simple())),
            };
            if let Some(made) = Self::make_at(path)? {
                return Ok(made);
            }
        }
        let text = format!(
            "{} and {} more names are in use by other workers: give each worker its own work directory",
            first.display(),
            DIRECTORY_TRIES_MAX - 1
        );
        Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
    }

    /// `None` if another worker holds that directory.
    fn make_at(path: PathBuf) -> io::Result<Option<Self>> {
        let told = |error: io::Error| {
            let text = format!("cannot make the job directory {}: {error}", path.display());
            io::Error::new(error.kind(), text)
        };
        match fs::symlink_metadata(&path) {
            Ok(found) if found.is_dir() => {
                let Some(lock) = lock(&path).map_err(told)? else { return Ok(None) };
                remove_all(&path).map_err(told)?;
                drop(lock);
            }
            Ok(_) => fs::remove_file(&path).map_err(told)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(told(error)),
        }
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(told(error)),
        }
        let Some(lock) = lock(&path).map_err(told)? else { return Ok(None) };
        // Not before the directory is ours: until then they may be those of another worker, which
        // holds it.
        remove_if_there(&outputs_beside(&path)).map_err(told)?;
        Ok(Some(JobDirectory {
            open: OpenDirectory { path: path.clone(), handle: Arc::new(lock) },
        }))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.open.path
    }

    pub(super) fn open(&self) -> &OpenDirectory {
        &self.open
    }

    /// Where large parts of the result may go. It may not be there yet.
    pub fn outputs(&self) -> PathBuf {
        outputs_beside(self.path())
    }

    /// Removes it with all that is in it, and the large parts beside it.
    pub fn remove(self) -> io::Result<()> {
        // In this order: whoever makes the directory again may put large parts beside it at once.
        self.remove_outputs()?;
        remove_if_there(self.path())
    }

    /// Removes the large parts alone.
    pub fn remove_outputs(&self) -> io::Result<()> {
        remove_if_there(&self.outputs())
    }
}

/// What [`remove_abandoned`] found in a work directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Abandoned {
    /// Directories of ours that no worker held, and that are removed.
    pub removed: usize,
    /// Directories that are named like those of jobs and lie beside ours. They belong to classic
    /// workers, which may be using them, or are what a heft left that had no part of its own;
    /// nobody can tell. They stay.
    pub foreign: usize,
}

/// Removes the job directories in our part of `work_dir` that no worker holds: those of workers
/// that were killed. One that cannot be removed is said in the log and stays.
pub fn remove_abandoned(work_dir: &Path) -> io::Result<Abandoned> {
    let mut foreign = 0;
    for entry in fs::read_dir(work_dir)? {
        let entry = entry?;
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        let name = entry.file_name();
        let job = name.to_str().map(|name| name.strip_suffix(OUTPUTS).unwrap_or(name));
        if is_directory && job.is_some_and(is_job_directory) {
            foreign += 1;
        }
    }
    let own = work_dir.join(OWN);
    let removed = match fs::symlink_metadata(&own) {
        Ok(found) if found.is_dir() => remove_unheld(&own)?,
        // Whoever makes a job directory says what is wrong.
        Ok(_) => 0,
        Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
        Err(error) => return Err(error),
    };
    Ok(Abandoned { removed, foreign })
}

fn remove_unheld(root: &Path) -> io::Result<usize> {
    let mut removed = 0;
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let Some(name) =
            name.to_str().filter(|_| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        else {
            continue;
        };
        let path = entry.path();
        let gone = match name.strip_suffix(OUTPUTS) {
            // Large parts whose directory is gone; those of the others go with it. The directory is
            // made for the lock: a worker may be about to take that name.
            Some(job) if is_job_directory(job) && !root.join(job).exists() => {
                match JobDirectory::make_at(root.join(job)) {
                    Ok(Some(held)) => held.remove(),
                    Ok(None) => continue,
                    Err(error) => Err(error),
                }
            }
            None if is_job_directory(name) => match lock(&path) {
                Ok(Some(_held)) => {
                    remove_if_there(&outputs_beside(&path)).and_then(|()| remove_all(&path))
                }
                Ok(None) => continue,
                Err(error) => Err(error),
            },
            Some(_) | None => continue,
        };
        match gone {
            Ok(()) => removed += 1,
            Err(error) => {
                tracing::warn!("cannot remove the old job directory {}: {error}", path.display())
            }
        }
    }
    Ok(removed)
}

/// Whether [`JobDirectory::make`] gives such a name: 32 digits, perhaps with a number.
fn is_job_directory(name: &str) -> bool {
    let (id, number) = match name.split_once('-') {
        Some((id, number)) => (id, Some(number)),
        None => (name, None),
    };
    let digits = id.len() == 32 && id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    digits
        && number.is_none_or(|text| {
            text.parse().is_ok_and(|number: u32| {
                (2..=DIRECTORY_TRIES_MAX).contains(&number) && number.to_string() == text
            })
        })
}

/// `None` if another worker holds the directory, or has just removed it.
pub(super) fn lock(path: &Path) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let open = || openat(CWD, path, flags, Mode::empty());
    let handle = match open().or_else(|error| match error {
        // Its job may have closed it.
        Errno::ACCESS => make_accessible(path).map_err(|_| error).and_then(|()| open()),
        _ => Err(error),
    }) {
        Ok(handle) => handle,
        // Its holder has just removed it.
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match flock(&handle, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => {
            // Between the opening and the lock its holder may have removed it, and somebody may
            // have made it again.
            let held = fstat(&handle)?;
            match lstat(path) {
                Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => {
                    Ok(Some(handle))
                }
                Ok(_) | Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(error.into()),
            }
        }
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn c21_a_directory_is_named_by_32_digits_and_closed_to_others() {
        let root = tempfile::tempdir().unwrap();
        let job = Uuid::from_u128(0x0011_2233_4455_6677_8899_aabb_ccdd_eeff);
        let made = JobDirectory::make(root.path(), job).unwrap();
        assert_eq!(made.path(), root.path().join("heft/00112233445566778899aabbccddeeff"));
        assert_eq!(fs::metadata(made.path()).unwrap().permissions().mode() & 0o777, 0o700);
        made.remove().unwrap();
        assert_eq!(fs::read_dir(root.path().join(OWN)).unwrap().count(), 0);
    }

    #[test]
    fn what_an_ended_worker_left_is_removed_and_what_another_holds_is_not() {
        let root = tempfile::tempdir().unwrap();
        let job = Uuid::from_u128(7);
        let first = JobDirectory::make(root.path(), job).unwrap();
        fs::write(first.path().join("mine"), "1").unwrap();
        let second = JobDirectory::make(root.path(), job).unwrap();
        assert_eq!(second.path(), root.path().join(OWN).join(format!("{}-2", job.simple())));
        assert!(first.path().join("mine").exists());
        drop((first, second));
        let third = JobDirectory::make(root.path(), job).unwrap();
        assert_eq!(third.path(), root.path().join(OWN).join(job.simple().to_string()));
        assert_eq!(fs::read_dir(third.path()).unwrap().count(), 0, "it starts empty");
    }

    #[test]
    fn a_work_directory_in_which_no_job_directory_can_be_made_is_told_at_the_start() {
        let root = tempfile::tempdir().unwrap();
        claim_own(root.path()).unwrap();
        claim_own(root.path()).unwrap();
        assert_eq!(fs::read_dir(root.path().join(OWN)).unwrap().count(), 0, "nothing is left");
        // Nobody can make a directory there, not even root.
        let error = check_writable(Path::new("/proc/self")).unwrap_err().to_string();
        assert!(error.starts_with("cannot make job directories in /proc/self: "), "{error}");
        assert!(error.ends_with("make it writable, or name another work directory"), "{error}");
    }

    #[test]
    fn only_abandoned_job_directories_are_removed() {
        let work_dir = tempfile::tempdir().unwrap();
        let root = work_dir.path().join(OWN);
        let held = JobDirectory::make(work_dir.path(), Uuid::from_u128(1)).unwrap();
        let second = JobDirectory::make(work_dir.path(), Uuid::from_u128(1)).unwrap();
        let left = JobDirectory::make(work_dir.path(), Uuid::from_u128(2)).unwrap();
        fs::create_dir(left.path().join("folder")).unwrap();
        fs::write(left.path().join("folder/file"), "1").unwrap();
        drop((second, left));
        let id = Uuid::from_u128(3).simple().to_string();
        let others = [
            format!("results-{id}"),
            format!("{id}-1"),
            format!("{id}-02"),
            format!("{id}-65"),
            format!("{id}0"),
            "A".repeat(32),
            Uuid::from_u128(3).to_string(),
            "notes".into(),
        ];
        others.iter().for_each(|name| fs::create_dir(root.join(name)).unwrap());
        fs::write(root.join(&id), "a file").unwrap();
        let link = root.join(Uuid::from_u128(4).simple().to_string());
        std::os::unix::fs::symlink(root.join("notes"), &link).unwrap();

        assert_eq!(remove_abandoned(work_dir.path()).unwrap().removed, 2);
        assert!(held.path().exists() && root.join(&id).exists() && link.exists());
        assert!(others.iter().all(|name| root.join(name).exists()));
        assert_eq!(fs::read_dir(&root).unwrap().count(), others.len() + 3);
        drop(held);
        assert_eq!(remove_abandoned(work_dir.path()).unwrap().removed, 1);
    }

    #[test]
    fn large_parts_lie_beside_and_go_with_the_directory() {
        let work_dir = tempfile::tempdir().unwrap();
        let root = work_dir.path().join(OWN);
        let count = || fs::read_dir(&root).unwrap().count();
        let make = |number| {
            let made = JobDirectory::make(work_dir.path(), Uuid::from_u128(number)).unwrap();
            create_output(&made.outputs().join("archive")).unwrap();
            made
        };
        let (removed, held, left) = (make(1), make(2), make(3));
        assert_eq!(count(), 6);
        assert_eq!(fs::metadata(held.outputs()).unwrap().permissions().mode() & 0o777, 0o700);
        removed.remove().unwrap();
        assert_eq!(count(), 4);
        drop(left);
        fs::create_dir(outputs_beside(&root.join(Uuid::from_u128(4).simple().to_string())))
            .unwrap();
        fs::create_dir(root.join("notes.out")).unwrap();
        assert_eq!(
            remove_abandoned(work_dir.path()).unwrap().removed,
            2,
            "one with its directory, one whose directory is gone"
        );
        assert!(held.outputs().join("archive").exists() && root.join("notes.out").exists());
        held.remove_outputs().unwrap();
        assert_eq!(count(), 2);
        drop(held);
        let again = make(2);
        fs::write(again.outputs().join("old"), "1").unwrap();
        drop(again);
        let fresh = JobDirectory::make(work_dir.path(), Uuid::from_u128(2)).unwrap();
        assert!(!fresh.outputs().exists(), "it starts empty");
    }

    #[test]
    fn large_parts_stay_while_other_workers_make_and_remove_the_same_directories() {
        let work_dir = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        let made = JobDirectory::make(work_dir.path(), Uuid::from_u128(1)).unwrap();
                        let archive = made.outputs().join("archive");
                        drop(create_output(&archive).unwrap());
                        std::thread::yield_now();
                        assert!(
                            archive.exists(),
                            "it was removed by a worker that does not hold it"
                        );
                        made.remove().unwrap();
                    }
                });
            }
        });
    }

    #[test]
    fn a_link_in_its_place_is_removed_and_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(outside.path().join("kept"), "1").unwrap();
        let job = Uuid::from_u128(8);
        drop(JobDirectory::make(root.path(), job).unwrap());
        let place = root.path().join(OWN).join(job.simple().to_string());
        fs::remove_dir(&place).unwrap();
        std::os::unix::fs::symlink(outside.path(), &place).unwrap();
        let made = JobDirectory::make(root.path(), job).unwrap();
        assert!(outside.path().join("kept").exists());
        assert!(!fs::symlink_metadata(made.path()).unwrap().is_symlink());
    }

    #[test]
    fn directories_beside_ours_are_neither_removed_nor_entered() {
        let root = tempfile::tempdir().unwrap();
        let job = Uuid::from_u128(9);
        let classic = root.path().join(job.simple().to_string());
        let outputs = outputs_beside(&classic);
        for directory in [&classic, &outputs] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("input"), "in use").unwrap();
        }
        drop(JobDirectory::make(root.path(), Uuid::from_u128(10)).unwrap());
        let cleared = remove_abandoned(root.path()).unwrap();
        assert_eq!(cleared, Abandoned { removed: 1, foreign: 2 });
        let made = JobDirectory::make(root.path(), job).unwrap();
        assert_eq!(fs::read_dir(made.path()).unwrap().count(), 0);
        create_output(&made.outputs().join("archive")).unwrap();
        made.remove().unwrap();
        assert!(classic.join("input").exists() && outputs.join("input").exists());
    }

    #[test]
    fn our_part_is_closed_to_others_and_never_a_link() {
        let root = tempfile::tempdir().unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
        fs::set_permissions(root.path(), fs::Permissions::from_mode(0o1777)).unwrap();
        let made = JobDirectory::make(root.path(), Uuid::from_u128(1)).unwrap();
        assert_eq!((mode(&root.path().join(OWN)), mode(made.path())), (0o700, 0o700));
        fs::set_permissions(root.path().join(OWN), fs::Permissions::from_mode(0o1777)).unwrap();
        drop(JobDirectory::make(root.path(), Uuid::from_u128(3)).unwrap().remove());
        assert_eq!(mode(&root.path().join(OWN)), 0o700, "as an earlier heft left it");
        made.remove().unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        fs::create_dir(elsewhere.path().join(Uuid::from_u128(2).simple().to_string())).unwrap();
        fs::remove_dir(root.path().join(OWN)).unwrap();
        std::os::unix::fs::symlink(elsewhere.path(), root.path().join(OWN)).unwrap();
        let error = JobDirectory::make(root.path(), Uuid::from_u128(2)).unwrap_err().to_string();
        assert!(error.contains("is not a directory"), "{error}");
        assert_eq!(remove_abandoned(root.path()).unwrap().removed, 0);
        assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 1);
    }
}
