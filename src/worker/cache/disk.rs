//! The cache directory on disk.
//!
//! ```text
//! <cache-dir>/<CacheId>                     link to .heft/sets/<version>, put in place by a rename
//! <cache-dir>/.heft/lock                    held by the worker that owns this directory
//! <cache-dir>/.heft/sets/<version>/         the files of a dataset
//! <cache-dir>/.heft/sets/<version>.manifest its manifest; the mtime is the dataset's last use
//! <cache-dir>/.heft/sets/<version>.id       its CacheId
//! <cache-dir>/.heft/staging/<version>/      files being received, with their manifest beside them
//! <cache-dir>/.heft/staging/<version>.id    their future CacheId
//! <cache-dir>/.heft/unsynced/<version>      the boot that wrote a dataset not known to be synced
//! <cache-dir>/.heft/given-up                evicted datasets, not to be pushed back unasked
//! <cache-dir>/.heft/aside/<CacheId>         a foreign entry found in place of a dataset's link
//! <cache-dir>/.heft/trash/                  entries being removed
//! ```
//!
//! A dataset is visible when its link exists, and the link exists once the whole dataset was
//! checked. The link is for other programs: this worker knows its datasets by version, and restores
//! a link that somebody changed. Every user of a dataset's files, this worker or another, holds a
//! shared lock on the version's directory ([`open_dataset`]); removal takes the exclusive lock. An
//! entry `<cache-dir>/<CacheId>` that is not such a link, where this worker keeps no dataset,
//! belongs to somebody else and is left alone.
//!
//! Bytes reach the disk in the background. After a machine crash, unsynced datasets are hidden
//! before anything else happens, and count again as far as their digests match.

use std::collections::HashMap;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use chunking::limits::MANIFEST_BYTES_MAX;
use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, fstatvfs, lstat, open, syncfs};
use tracing::{info, warn};
use uuid::Uuid;

use super::CacheId;
use super::contents::Contents;
use crate::fs::dirfd::open_root;
use crate::fs::own_dir::{Part, check_part, make_part};
use crate::worker::limits::{DATASET_OPEN_TRIES_MAX, SYNCED_ONE_BY_ONE_MAX};

/// Our own part of the cache directory.
pub(in crate::worker) const PRIVATE: &str = ".heft";
const DATASETS_DIR: &str = "sets";
const MANIFEST: &str = ".manifest";
const ID: &str = ".id";

/// A cache directory that this worker keeps.
#[derive(Debug)]
pub(in crate::worker) struct Disk {
    root: PathBuf,
    own: PathBuf,
    handle: OwnedFd,
    boot: String,
    /// The worker leaves: what takes long is to end.
    closed: AtomicBool,
    _lock: File,
}

/// A dataset, or what has come of one, as it was found at the start.
#[derive(Debug)]
pub(super) struct Found {
    pub(super) version: Uuid,
    pub(super) contents: Contents,
    pub(super) last_use: SystemTime,
    /// Whose it would be, if it is to come and that is known.
    pub(super) cache: Option<CacheId>,
}

/// What was found at the start.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    pub(super) datasets: Vec<(CacheId, Found)>,
    pub(super) staged: Vec<Found>,
}

impl Disk {
    /// Opens the directory and locks it for this worker.
    pub(super) fn open(root: &Path) -> io::Result<Self> {
        let told = |what: &str, path: &Path, error: io::Error| {
            io::Error::new(error.kind(), format!("cannot {what} {}: {error}", path.display()))
        };
        let handle =
            open_root(root).map_err(|error| told("open the cache directory", root, error))?;
        let own = root.join(PRIVATE);
        // Closed to others, unless the directory is open to them: then it is for them too.
        let found = fstat(&handle).map_err(|error| told("look at", root, error.into()))?.st_mode;
        let mode = if found & 0o005 == 0o005 && found & 0o022 == 0 { 0o755 } else { 0o700 };
        make_part(&own, mode).map_err(io::Error::other)?;
        for part in [DATASETS_DIR, "staging", "trash", "unsynced"] {
            make_part(&own.join(part), mode).map_err(io::Error::other)?;
        }
        let path = own.join("lock");
        check_part(&path, Part::File).map_err(io::Error::other)?;
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let lock = lock.map_err(|error| told("open", &path, error))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let text = format!(
                    "another worker keeps the cache directory {}: give each worker its own with --cache-dir",
                    root.display()
                );
                return Err(io::Error::new(io::ErrorKind::ResourceBusy, text));
            }
            Err(error) => return Err(told("lock", &path, error.into())),
        }
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let closed = AtomicBool::new(false);
        Ok(Disk { root: root.to_owned(), own, handle, boot, closed, _lock: lock })
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// The worker leaves.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Whether what takes long is to end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Bytes that the file system has left.
    pub(super) fn free_bytes(&self) -> io::Result<u64> {
        let system = fstatvfs(&self.handle)?;
        Ok(system.f_bavail.saturating_mul(system.f_frsize))
    }

    pub(super) fn dataset_path(&self, version: Uuid) -> PathBuf {
        self.own.join(DATASETS_DIR).join(version.simple().to_string())
    }

    pub(super) fn staging_path(&self, version: Uuid) -> PathBuf {
        self.own.join("staging").join(version.simple().to_string())
    }

    /// Where the datasets stand that were given up.
    pub(super) fn given_up_path(&self) -> PathBuf {
        self.own.join("given-up")
    }

    fn unsynced_path(&self, version: Uuid) -> PathBuf {
        self.own.join("unsynced").join(version.simple().to_string())
    }

    /// What `<cache-dir>/<CacheId>` is.
    pub(super) fn entry(&self, cache: &CacheId) -> io::Result<Entry> {
        entry(&self.root.join(cache.as_str()))
    }

    /// Finds what an earlier worker left, and tidies up.
    pub(super) fn load(&self) -> io::Result<Loaded> {
        self.empty_trash();
        let mut loaded = Loaded::default();
        let mut linked = Vec::new();
        for (cache, version) in self.kept()? {
            match self.is_sure(version).then(|| read(self.dataset_path(version), version)).flatten()
            {
                Some(dataset) => {
                    linked.push(version);
                    self.name_dataset(&cache, version)?;
                    self.mend_link(&cache, version)?;
                    loaded.datasets.push((cache, dataset));
                }
                None => {
                    info!(%cache, "a dataset may not have been synced when the machine stopped: it \
                                   is checked piece by piece before it is used; if its manifest is \
                                   damaged or of another version, it is downloaded again");
                    self.hide(&cache, version)?;
                    if self.unmake(&cache, version).is_err() {
                        self.discard(version)?;
                    }
                }
            }
        }
        for version in self.versions(DATASETS_DIR)? {
            if !linked.contains(&version) {
                self.discard(version)?;
            }
        }
        for version in self.versions("staging")? {
            let path = self.staging_path(version);
            let cache =
                fs::read_to_string(beside(&path, ID)).ok().and_then(|id| CacheId::parse(&id).ok());
            match read(path, version) {
                Some(staged) => loaded.staged.push(Found { cache, ..staged }),
                None => self.discard_staged(version)?,
            }
        }
        // Of what was being removed when the worker was killed.
        for version in self.versions("unsynced")? {
            if !linked.contains(&version) && !self.staging_path(version).exists() {
                fs::remove_file(self.unsynced_path(version))?;
            }
        }
        Ok(loaded)
    }

    /// The datasets that an earlier worker kept, each under one id: what is noted beside a dataset
    /// counts, and else the link.
    fn kept(&self) -> io::Result<Vec<(CacheId, Uuid)>> {
        let mut links = HashMap::new();
        for found in fs::read_dir(&self.root)? {
            let found = found?;
            let cache = found.file_name().to_str().and_then(|name| CacheId::parse(name).ok());
            if let (Some(cache), Entry::Ours(version)) = (cache, entry(&found.path())?) {
                links.insert(cache, version);
            }
        }
        let mut kept: HashMap<CacheId, (bool, SystemTime, Uuid)> = HashMap::new();
        for version in self.versions(DATASETS_DIR)? {
            let linking = || links.iter().find(|(_, linked)| **linked == version);
            let noted = self.noted(version).or_else(|| linking().map(|(cache, _)| cache.clone()));
            let Some(cache) = noted else { continue };
            let written = fs::metadata(beside(&self.dataset_path(version), MANIFEST));
            let written = written.and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
            // A worker that was killed between two versions leaves both.
            let this = (links.get(&cache) == Some(&version), written, version);
            let best = kept.entry(cache).or_insert(this);
            *best = (*best).max(this);
        }
        // Links whose target is missing belong to no dataset.
        for (cache, version) in links {
            if !kept.contains_key(&cache) && !self.dataset_path(version).exists() {
                fs::remove_file(self.root.join(cache.as_str())).or_else(missing)?;
            }
        }
        Ok(kept.into_iter().map(|(cache, (_, _, version))| (cache, version)).collect())
    }

    /// The CacheId that is noted beside a dataset.
    fn noted(&self, version: Uuid) -> Option<CacheId> {
        let noted = fs::read_to_string(beside(&self.dataset_path(version), ID)).ok()?;
        CacheId::parse(&noted).ok()
    }

    /// Notes the CacheId of a dataset beside it.
    fn name_dataset(&self, cache: &CacheId, version: Uuid) -> io::Result<()> {
        if self.noted(version).as_ref() == Some(cache) {
            return Ok(());
        }
        let unfinished = self.own.join("trash").join(format!("{}{ID}", version.simple()));
        fs::write(&unfinished, cache.as_str())?;
        fs::rename(&unfinished, beside(&self.dataset_path(version), ID))
    }

    /// Whether what is there of a version was written in this boot, or is on the disk.
    fn is_sure(&self, version: Uuid) -> bool {
        match fs::read_to_string(self.unsynced_path(version)) {
            Ok(boot) => boot == self.boot,
            Err(error) => error.kind() == io::ErrorKind::NotFound,
        }
    }

    fn versions(&self, part: &str) -> io::Result<Vec<Uuid>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(self.own.join(part))? {
            let name = entry?.file_name();
            let bare = |name| {
                [MANIFEST, ID].iter().find_map(|end| str::strip_suffix(name, end)).unwrap_or(name)
            };
            let name = name.to_str().map(bare);
            found.extend(name.and_then(version_in));
        }
        found.sort();
        found.dedup();
        Ok(found)
    }

    /// Begins a version: its manifest, its directory, and word that it may not be on the disk.
    pub(super) fn begin(&self, version: Uuid, contents: &Contents) -> io::Result<PathBuf> {
        let path = self.staging_path(version);
        // A file system that keeps a journal has this on the disk no later than the link that makes
        // the dataset visible; if what is in it is not, it is not this boot.
        fs::write(self.unsynced_path(version), self.boot.as_bytes())?;
        let manifest = beside(&path, MANIFEST);
        if !manifest.exists() {
            // A worker that is killed here leaves it where the next one tidies up.
            let unfinished = self.own.join("trash").join(format!("{}{MANIFEST}", version.simple()));
            fs::write(&unfinished, contents.manifest().encode())?;
            fs::rename(&unfinished, &manifest)?;
        }
        DirBuilder::new().recursive(true).mode(0o755).create(&path)?;
        Ok(path)
    }

    /// Notes whose files it is that come.
    pub(super) fn name_staged(&self, cache: &CacheId, version: Uuid) -> io::Result<()> {
        fs::write(beside(&self.staging_path(version), ID), cache.as_str())
    }

    /// What has come of a version is of use to another with the same content.
    pub(super) fn adopt(&self, from: Uuid, to: Uuid) -> io::Result<()> {
        let (old, new) = (self.staging_path(from), self.staging_path(to));
        fs::write(self.unsynced_path(to), self.boot.as_bytes())?;
        fs::rename(beside(&old, MANIFEST), beside(&new, MANIFEST))?;
        fs::rename(&old, &new)?;
        self.discard_staged(from)
    }

    /// Makes a staged version, of which all is checked, the one that is visible under this id.
    /// Gives the one that was.
    pub(super) fn show(&self, cache: &CacheId, version: Uuid) -> io::Result<Option<Uuid>> {
        let before = self.before(cache)?;
        let (staged, dataset) = (self.staging_path(version), self.dataset_path(version));
        fs::rename(beside(&staged, MANIFEST), beside(&dataset, MANIFEST))?;
        fs::rename(&staged, &dataset)?;
        self.name_dataset(cache, version)?;
        fs::remove_file(beside(&staged, ID)).or_else(missing)?;
        self.put_link(cache, version)?;
        self.used(version);
        Ok(before)
    }

    fn put_link(&self, cache: &CacheId, version: Uuid) -> io::Result<()> {
        let link = self.own.join("trash").join(format!("{}.link", version.simple()));
        if let Err(error) = fs::remove_file(&link)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let target = Path::new(PRIVATE).join(DATASETS_DIR).join(version.simple().to_string());
        std::os::unix::fs::symlink(target, &link)?;
        fs::rename(&link, self.root.join(cache.as_str()))
    }

    /// Puts the link of a dataset that is kept back, if it is another or something else is in its
    /// place: a job can do that, and an operator, who finds what was there put aside.
    pub(super) fn mend_link(&self, cache: &CacheId, version: Uuid) -> io::Result<()> {
        match self.entry(cache)? {
            Entry::Ours(found) if found == version => return Ok(()),
            Entry::Ours(_) | Entry::None => {}
            Entry::Theirs => self.put_aside(cache)?,
        }
        warn!(%cache, "the link of a dataset was changed or removed: it is restored");
        self.put_link(cache, version)
    }

    /// Takes away what somebody put in the place of a link of ours. The last such thing is kept.
    fn put_aside(&self, cache: &CacheId) -> io::Result<()> {
        let folder = self.own.join("aside");
        make_part(&folder, 0o700).map_err(io::Error::other)?;
        let aside = folder.join(cache.as_str());
        remove_any(&aside)?;
        fs::rename(self.root.join(cache.as_str()), &aside)?;
        warn!(%cache, "a foreign file was in the place of the link of a dataset: it was moved to \
                       {}", aside.display());
        Ok(())
    }

    /// Opens the directory of a version, which must be one.
    pub(super) fn open_version(&self, version: Uuid) -> io::Result<OwnedFd> {
        open_directory(&self.dataset_path(version))
    }

    /// The same, and it stays while the handle is held.
    pub(super) fn hold_version(&self, version: Uuid) -> io::Result<Option<OpenDataset>> {
        let held =
            lock_directory(&self.dataset_path(version), FlockOperation::NonBlockingLockShared)?;
        Ok(held.map(OpenDataset))
    }

    /// The version that is visible under this id; an error if that is somebody else's file or
    /// directory.
    pub(super) fn before(&self, cache: &CacheId) -> io::Result<Option<Uuid>> {
        match self.entry(cache)? {
            Entry::None => Ok(None),
            Entry::Ours(before) => Ok(Some(before)),
            Entry::Theirs => {
                let text = format!(
                    "{} was not created by this worker and is left alone: remove it, or choose \
                     another CacheId",
                    self.root.join(cache.as_str()).display()
                );
                Err(io::Error::new(io::ErrorKind::AlreadyExists, text))
            }
        }
    }

    /// Whether a version is not known to be on the disk.
    pub(super) fn is_unsynced(&self, version: Uuid) -> bool {
        self.unsynced_path(version).exists()
    }

    /// Brings a version's bytes to the disk.
    pub(super) fn sync(&self, version: Uuid, contents: &Contents) -> io::Result<()> {
        let dataset = self.dataset_path(version);
        match contents.files().len() <= SYNCED_ONE_BY_ONE_MAX {
            true => {
                for (name, _) in contents.files() {
                    File::open(dataset.join(name.to_string()))?.sync_all()?;
                }
                File::open(beside(&dataset, MANIFEST))?.sync_all()?;
                File::open(beside(&dataset, ID))?.sync_all()?;
                for folder in [&dataset, &self.own.join(DATASETS_DIR), &self.root] {
                    File::open(folder)?.sync_all()?;
                }
            }
            false => syncfs(&self.handle)?,
        }
        fs::remove_file(self.unsynced_path(version))
    }

    /// A dataset is used now; its age among the others counts from here.
    pub(super) fn used(&self, version: Uuid) {
        let touched =
            File::options().append(true).open(beside(&self.dataset_path(version), MANIFEST));
        if let Err(error) = touched.and_then(|file| file.set_modified(SystemTime::now())) {
            warn!(%version, "cannot note the use of a dataset: {error}");
        }
    }

    /// A dataset is not visible any more.
    pub(super) fn hide(&self, cache: &CacheId, version: Uuid) -> io::Result<()> {
        fs::remove_file(beside(&self.dataset_path(version), ID)).or_else(missing)?;
        match self.entry(cache)? {
            // The next version may be in its place by now; the files of another dataset may not.
            Entry::Ours(found) if found != version && self.noted(found).as_ref() == Some(cache) => {
                Ok(())
            }
            Entry::Ours(_) => fs::remove_file(self.root.join(cache.as_str())).or_else(missing),
            Entry::Theirs => self.put_aside(cache),
            Entry::None => Ok(()),
        }
    }

    /// Makes a hidden dataset one that comes: what is right of it need not come again.
    pub(super) fn unmake(&self, cache: &CacheId, version: Uuid) -> io::Result<()> {
        let (dataset, staged) = (self.dataset_path(version), self.staging_path(version));
        // Something else may be in its place.
        drop(open_directory(&dataset)?);
        self.name_staged(cache, version)?;
        fs::rename(beside(&dataset, MANIFEST), beside(&staged, MANIFEST))?;
        fs::rename(&dataset, &staged)
    }

    /// Removes a hidden dataset. Gives whether it is gone: somebody may still use it.
    pub(super) fn discard(&self, version: Uuid) -> io::Result<bool> {
        let dataset = self.dataset_path(version);
        let lock = match lock_directory(&dataset, FlockOperation::NonBlockingLockExclusive) {
            Ok(Some(lock)) => Some(lock),
            Ok(None) if dataset.exists() => return Ok(false),
            Ok(None) => None,
            // Something else is in its place.
            Err(error) if !fs::symlink_metadata(&dataset).is_ok_and(|found| found.is_dir()) => {
                warn!(%version, "the files of a dataset are not a directory any more: {error}");
                None
            }
            Err(error) => return Err(error),
        };
        self.throw_away(&dataset, version)?;
        drop(lock);
        Ok(true)
    }

    /// Removes what has come of a dataset.
    pub(super) fn discard_staged(&self, version: Uuid) -> io::Result<()> {
        self.throw_away(&self.staging_path(version), version)
    }

    /// Takes it out of its place in one step, and removes it then.
    fn throw_away(&self, path: &Path, version: Uuid) -> io::Result<()> {
        let trash = self.own.join("trash").join(Uuid::new_v4().simple().to_string());
        for end in [MANIFEST, ID] {
            fs::remove_file(beside(path, end)).or_else(missing)?;
        }
        match fs::rename(path, &trash) {
            Ok(()) => remove_any(&trash)?,
            Err(error) => missing(error)?,
        }
        fs::remove_file(self.unsynced_path(version)).or_else(missing)
    }

    fn empty_trash(&self) {
        let trash = self.own.join("trash");
        let emptied = fs::remove_dir_all(&trash).and_then(|()| fs::create_dir(&trash));
        if let Err(error) = emptied {
            warn!("cannot empty {}: {error}", trash.display());
        }
    }
}

/// What lies under a CacheId.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entry {
    None,
    /// A link to a version.
    Ours(Uuid),
    /// Something else.
    Theirs,
}

fn entry(path: &Path) -> io::Result<Entry> {
    match fs::read_link(path) {
        Ok(target) => {
            let ours = target.strip_prefix(Path::new(PRIVATE).join(DATASETS_DIR)).ok();
            let version = ours.and_then(Path::to_str).and_then(version_in);
            Ok(version.map_or(Entry::Theirs, Entry::Ours))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Entry::None),
        // No link.
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(Entry::Theirs),
        Err(error) => Err(error),
    }
}

/// A version's directory, which stays as long as this is held.
#[derive(Debug)]
pub(in crate::worker) struct OpenDataset(OwnedFd);

impl OpenDataset {
    /// The directory.
    pub(in crate::worker) fn root(&self) -> &OwnedFd {
        &self.0
    }
}

/// Opens the files under a CacheId, if they are a dataset that a worker has put there; they stay,
/// all of one version, while the handle is held, whatever happens to the CacheId.
pub(in crate::worker) fn open_dataset(
    cache_dir: &Path,
    cache: &str,
) -> io::Result<Option<OpenDataset>> {
    for _ in 0..DATASET_OPEN_TRIES_MAX {
        let Entry::Ours(version) = entry(&cache_dir.join(cache))? else { return Ok(None) };
        let path = cache_dir.join(PRIVATE).join(DATASETS_DIR).join(version.simple().to_string());
        // If it is being removed another has taken its place, or nothing has.
        if let Some(handle) = lock_directory(&path, FlockOperation::NonBlockingLockShared)? {
            return Ok(Some(OpenDataset(handle)));
        }
    }
    Ok(None)
}

pub(super) fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty())?)
}

/// Removes a file, a link or a directory, if it is there.
fn remove_any(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => missing(error),
    }
}

/// `None` if it is not there, or others have a lock that does not go with this one.
fn lock_directory(path: &Path, how: FlockOperation) -> io::Result<Option<OwnedFd>> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let handle = match open(path, flags, Mode::empty()) {
        Ok(handle) => handle,
        Err(rustix::io::Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    match flock(&handle, how) {
        Ok(()) => {}
        Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
        Err(error) => return Err(error.into()),
    }
    // It may have been moved away between the opening and the lock.
    let held = fstat(&handle)?;
    match lstat(path) {
        Ok(named) if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino) => Ok(Some(handle)),
        Ok(_) | Err(rustix::io::Errno::NOENT) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// What lies beside a version's directory: its name with this at the end.
fn beside(directory: &Path, end: &str) -> PathBuf {
    let mut path = directory.as_os_str().to_owned();
    path.push(end);
    path.into()
}

/// It is well if it is not there.
fn missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

fn version_in(name: &str) -> Option<Uuid> {
    let version = Uuid::try_parse(name).ok()?;
    (version.simple().to_string() == name).then_some(version)
}

fn read(directory: PathBuf, version: Uuid) -> Option<Found> {
    if !fs::symlink_metadata(&directory).is_ok_and(|found| found.is_dir()) {
        return None;
    }
    let file = File::open(beside(&directory, MANIFEST)).ok()?;
    let last_use = file.metadata().and_then(|found| found.modified()).unwrap_or(UNIX_EPOCH);
    let mut bytes = Vec::new();
    file.take(MANIFEST_BYTES_MAX + 1).read_to_end(&mut bytes).ok()?;
    match Contents::read(&bytes, None) {
        Ok(contents) => Some(Found { version, contents, last_use, cache: None }),
        Err(error) => {
            warn!("{}: {error}", directory.display());
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::cache::staged::Staged;
    use chunking::dataset::{ManifestBuilder, Piece, sha256};
    use std::sync::Arc;

    fn show(disk: &Disk, cache: &str, content: &[u8]) -> (CacheId, Uuid) {
        let mut builder = ManifestBuilder::default();
        builder.file("a", sha256(content), vec![Piece::of(content)]);
        let contents = Arc::new(Contents::new(builder.finish().unwrap()).unwrap());
        let (cache, version) = (CacheId::parse(cache).unwrap(), Uuid::new_v4());
        let staged = Staged::prepare(disk, version, contents, &[]).unwrap();
        staged.spread(0, None, content).unwrap();
        staged.show(disk, &cache).unwrap();
        (cache, version)
    }

    #[test]
    fn what_was_not_on_the_disk_when_the_machine_stopped_is_hidden_until_it_is_checked() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::open(root.path()).unwrap();
        let (sure, synced) = show(&disk, "sure", b"1");
        let (_, unsure) = show(&disk, "unsure", b"2");
        let contents = read(disk.dataset_path(synced), synced).unwrap().contents;
        disk.sync(synced, &contents).unwrap();
        assert_eq!(disk.load().unwrap().datasets.len(), 2, "the same boot");
        // Another boot; with the words of the last one lost, as after a crash.
        fs::write(disk.unsynced_path(unsure), "").unwrap();
        let loaded = disk.load().unwrap();
        assert_eq!(
            loaded.datasets.iter().map(|(cache, _)| cache.clone()).collect::<Vec<_>>(),
            [sure]
        );
        assert_eq!(loaded.staged.iter().map(|found| found.version).collect::<Vec<_>>(), [unsure]);
        assert!(!root.path().join("unsure").exists());
    }

    #[test]
    fn what_came_of_a_dataset_is_known_by_its_id_and_serves_another_version() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::open(root.path()).unwrap();
        let content = b"bytes of a piece";
        let mut builder = ManifestBuilder::default();
        builder.file("a", sha256(content), vec![Piece::of(content)]);
        let contents = Arc::new(Contents::new(builder.finish().unwrap()).unwrap());
        let (cache, [first, second]) =
            (CacheId::parse("set").unwrap(), [1, 2].map(Uuid::from_u128));
        disk.name_staged(&cache, first).unwrap();
        let staged = Staged::prepare(&disk, first, contents.clone(), &[]).unwrap();
        staged.spread(0, None, content).unwrap();
        assert_eq!(disk.load().unwrap().staged[0].cache.as_ref(), Some(&cache));
        disk.adopt(first, second).unwrap();
        let again = Staged::prepare(&disk, second, contents, &[]).unwrap();
        assert!(again.is_whole(), "nothing comes again");
        again.show(&disk, &cache).unwrap();
        for (part, left) in [("staging", 0), ("sets", 3), ("unsynced", 1)] {
            assert_eq!(fs::read_dir(disk.own.join(part)).unwrap().count(), left, "{part}");
        }
    }

    #[test]
    fn a_dataset_stays_while_somebody_has_it_open_and_half_of_one_is_nobodys() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::open(root.path()).unwrap();
        let (cache, version) = show(&disk, "set", b"1");
        let open = open_dataset(root.path(), "set").unwrap().unwrap();
        let (_, next) = show(&disk, "set", b"2");
        assert!(!disk.discard(version).unwrap(), "a job uses it");
        drop(open);
        assert!(disk.discard(version).unwrap() && !disk.dataset_path(version).exists());
        assert_eq!(disk.entry(&cache).unwrap(), Entry::Ours(next));
        // What a crash leaves: a dataset without a link, one without a manifest, trash.
        disk.hide(&cache, next).unwrap();
        fs::create_dir(disk.staging_path(Uuid::from_u128(5))).unwrap();
        fs::create_dir(disk.own.join("trash/x")).unwrap();
        fs::write(disk.own.join("unsynced").join(Uuid::from_u128(6).simple().to_string()), "")
            .unwrap();
        disk.name_staged(&cache, Uuid::from_u128(7)).unwrap();
        let loaded = disk.load().unwrap();
        assert!(loaded.datasets.is_empty() && loaded.staged.is_empty());
        for part in [DATASETS_DIR, "staging", "trash", "unsynced"] {
            assert_eq!(fs::read_dir(disk.own.join(part)).unwrap().count(), 0, "{part}");
        }
        assert!(open_dataset(root.path(), "set").unwrap().is_none());
        // A link to what is not there is nobody's.
        let (cache, last) = show(&disk, "set", b"3");
        fs::remove_dir_all(disk.dataset_path(last)).unwrap();
        fs::remove_file(beside(&disk.dataset_path(last), MANIFEST)).unwrap();
        fs::remove_file(beside(&disk.dataset_path(last), ID)).unwrap();
        assert!(disk.load().unwrap().datasets.is_empty());
        assert_eq!(disk.entry(&cache).unwrap(), Entry::None);
        // A link that is not of our form is somebody else's.
        std::os::unix::fs::symlink(".heft/sets/../../x", root.path().join("set")).unwrap();
        assert_eq!(disk.entry(&cache).unwrap(), Entry::Theirs);
    }

    #[test]
    fn a_dataset_is_known_by_what_is_noted_of_it_and_not_by_its_link() {
        let root = tempfile::tempdir().unwrap();
        let disk = Disk::open(root.path()).unwrap();
        let (cache, version) = show(&disk, "set", b"1");
        let (other, others) = show(&disk, "other", b"2");
        let path = root.path().join("set");
        let changes: [&dyn Fn(); 4] = [
            &|| {},
            &|| {
                std::os::unix::fs::symlink(fs::read_link(root.path().join("other")).unwrap(), &path)
                    .unwrap()
            },
            &|| fs::write(&path, "EVIL").unwrap(),
            &|| fs::create_dir_all(path.join("a")).unwrap(),
        ];
        for (number, change) in changes.iter().enumerate() {
            fs::remove_file(&path).unwrap();
            change();
            let mut found: Vec<_> = disk.load().unwrap().datasets;
            found.sort_by_key(|(cache, _)| cache.as_str().to_owned());
            let found: Vec<_> =
                found.iter().map(|(cache, dataset)| (cache, dataset.version)).collect();
            assert_eq!(found, [(&other, others), (&cache, version)], "{number}");
            assert_eq!(disk.entry(&cache).unwrap(), Entry::Ours(version), "{number}");
        }
        assert!(disk.own.join("aside/set/a").exists(), "what was there is not lost");
        // As a worker of an earlier version left it.
        fs::remove_file(beside(&disk.dataset_path(version), ID)).unwrap();
        assert_eq!(disk.load().unwrap().datasets.len(), 2);
        assert_eq!(disk.noted(version), Some(cache));
    }
}
