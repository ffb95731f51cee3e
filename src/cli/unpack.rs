//! Unpacks a job's archive beneath a directory, at any size. The archive comes from a worker and
//! may be hostile: every entry is judged before the first byte is written and those that are not
//! safe are skipped, names stay beneath the directory, links are never made or followed, nothing
//! that is there is replaced unless that was asked for, and what it unpacks to is known and has
//! room before anything is written. An entry that lies about its size is stopped. Of an unpacking
//! that fails, nothing stays that was not there before.
//!
//! Blocking; `files.rs` calls it on a thread of its own.

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::io::{self, BufReader, Cursor, Read, Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use anyhow::{Context, anyhow, bail, ensure};
use uuid::Uuid;
use zip::ZipReadOptions;
use zip::read::{Config, ZipFileEntry};
use zip::unstable::read::ZipIterable;

use crate::core::names::SafeName;
use crate::fs::dirfd::{self, Standing};
use crate::units::{ByteSize, Count};

/// Files and directories in one archive.
const ENTRIES_MAX: usize = 65_536;

/// Bytes of one entry's name. Other programs could not open a longer path (PATH_MAX).
const NAME_BYTES_MAX: usize = 4_096;

/// Bytes of all names together: they are in memory while an archive is unpacked.
const NAMES_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Folders that one archive makes.
const FOLDERS_MAX: usize = ENTRIES_MAX;

/// What is left free on the disk that an archive is unpacked to, unless a tenth of it is less.
const DISK_RESERVE_BYTES: u64 = 64 * 1024 * 1024;

/// What is read at a time, and after which it is looked whether to go on.
const PIECE_BYTES: usize = 256 * 1024;

/// Names of files that an error lists.
const NAMED_MAX: usize = 5;

/// Characters of a skipped entry's name that are kept.
const SKIPPED_NAME_CHARS_MAX: usize = 256;

/// Where an archive is.
#[derive(Clone, Debug)]
pub(crate) enum Archive {
    /// In memory, as it came with the result.
    Memory(Vec<u8>),
    /// In a file, of which nothing but a piece is ever in memory.
    File(PathBuf),
}

/// How it is unpacked.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Whether files that are there are replaced.
    pub(crate) force: bool,
    /// What it may unpack to, if that was said.
    pub(crate) bytes_max: Option<u64>,
}

/// How far an unpacking is, and whether it is still wanted.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    done: AtomicU64,
    total: AtomicU64,
    stopped: AtomicBool,
}

impl Watch {
    /// Bytes that were written, and bytes in all.
    pub(crate) fn far(&self) -> (u64, u64) {
        (self.done.load(Ordering::Relaxed), self.total.load(Ordering::Relaxed))
    }

    /// Nobody waits any more: it ends soon, with an error.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
    }

    fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.stopped.load(Ordering::Relaxed), "unpacking was stopped");
        Ok(())
    }
}

/// What an archive held.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Unpacked {
    /// The names of the files that were unpacked.
    pub(crate) files: Vec<String>,
    /// The names of those that were not, with the reason.
    pub(crate) skipped: Vec<(String, String)>,
}

/// Unpacks what is safe of the archive.
pub(crate) fn unpack(
    archive: &Archive,
    dir: &Path,
    rules: Rules,
    watch: &Watch,
) -> anyhow::Result<Unpacked> {
    match archive {
        Archive::Memory(bytes) => unpack_from(Cursor::new(bytes), dir, rules, watch),
        Archive::File(path) => {
            let file = File::open(path)
                .with_context(|| format!("cannot open the job's archive {}", path.display()))?;
            unpack_from(BufReader::new(file), dir, rules, watch)
        }
    }
}

fn unpack_from(
    archive: impl Read + Seek,
    dir: &Path,
    rules: Rules,
    watch: &Watch,
) -> anyhow::Result<Unpacked> {
    let mut zip = ZipIterable::try_new(archive, Config::default())
        .context("the job's archive is not a ZIP file that can be read")?;
    let mut plan = plan(&mut zip, watch)?;
    let room = Room::of(nearest(dir)?)?;
    room.check(plan.bytes, dir, rules)?;
    watch.total.store(plan.bytes, Ordering::Relaxed);
    let folders = plan.look(dir, rules)?;
    let is_new = !dir.exists();
    fs::create_dir_all(dir)
        .with_context(|| format!("cannot make the directory {}", dir.display()))?;
    let root = dirfd::open_root(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    let mut made = Made { root, folders, files: Vec::new(), replacing: Vec::new() };
    let written = write_all(&mut zip, &plan, dir, &mut made, watch);
    match written.and_then(|()| made.put_in_place(dir)) {
        Ok(()) => {
            let files = plan.entries.into_iter().filter(|planned| !planned.is_dir);
            let files = files.map(|planned| planned.name).collect();
            Ok(Unpacked { files, skipped: plan.skipped })
        }
        Err(error) => {
            let said = made.undo();
            if is_new {
                // What else is in it stays.
                fs::remove_dir(dir).ok();
            }
            Err(anyhow!("{error:#}; {said}"))
        }
    }
}

/// An entry that is unpacked.
#[derive(Debug)]
struct Planned {
    /// Its place among all entries.
    index: usize,
    name: String,
    safe: SafeName,
    is_dir: bool,
    /// Whether a file is there that it replaces.
    replaces: bool,
}

/// What is unpacked of an archive.
#[derive(Debug, Default)]
struct Plan {
    entries: Vec<Planned>,
    skipped: Vec<(String, String)>,
    /// Bytes that its files have, as the archive's directory says.
    bytes: u64,
}

/// Judges all entries.
fn plan<R: Read + Seek>(zip: &mut ZipIterable<R>, watch: &Watch) -> anyhow::Result<Plan> {
    let entries = zip.len();
    ensure!(
        entries <= ENTRIES_MAX,
        "the job's archive has {entries} entries; at most {ENTRIES_MAX} are unpacked"
    );
    let mut plan = Plan::default();
    let (mut names, mut names_bytes) = (HashSet::new(), 0_usize);
    for (index, entry) in zip.files().context("the job's archive cannot be read")?.enumerate() {
        watch.check()?;
        let which = || format!("entry {index} of the job's archive");
        let entry = entry.with_context(which)?;
        let name = entry.name().with_context(which)?.into_owned();
        names_bytes = names_bytes.saturating_add(name.len().min(NAME_BYTES_MAX));
        ensure!(
            names_bytes <= NAMES_BYTES_MAX,
            "the names in the job's archive have more than {}, the limit: have the job make fewer \
             or shorter ones",
            ByteSize(NAMES_BYTES_MAX as u64)
        );
        match judge(&entry, &name) {
            Ok(safe) if !names.insert(safe.clone()) => {
                plan.skip(&name, "another entry has the same name".to_owned());
            }
            // Not `entry.is_dir()`, to which a backslash at the end is one too.
            Ok(safe) => {
                let is_dir = name.ends_with('/');
                if !is_dir {
                    plan.bytes = plan.bytes.saturating_add(entry.size());
                }
                plan.entries.push(Planned { index, name, safe, is_dir, replaces: false });
            }
            Err(why) => plan.skip(&name, why),
        }
    }
    Ok(plan)
}

/// The name under which an entry is unpacked, or why it is not.
fn judge(entry: &ZipFileEntry<'_>, name: &str) -> Result<SafeName, String> {
    if entry.is_symlink() {
        return Err("it is a symbolic link".to_owned());
    }
    if entry.encrypted() {
        return Err("it is encrypted".to_owned());
    }
    if name.len() > NAME_BYTES_MAX {
        let bytes = name.len();
        return Err(format!("the name has {bytes} bytes; at most {NAME_BYTES_MAX} are taken"));
    }
    // A directory's name ends with a slash.
    SafeName::parse_made(name.trim_end_matches('/')).map_err(|error| {
        match error.rule.to_string().strip_prefix("it ") {
            Some(rule) => format!("the name {rule}"),
            None => format!("the name is not taken: {}", error.rule),
        }
    })
}

impl Plan {
    fn skip(&mut self, name: &str, why: String) {
        self.skipped.push((name.chars().take(SKIPPED_NAME_CHARS_MAX).collect(), why));
    }

    /// Looks for what is in the way, and notes what is replaced. Gives the folders that will be
    /// made.
    fn look(&mut self, dir: &Path, rules: Rules) -> anyhow::Result<BTreeSet<SafeName>> {
        let mut folders = BTreeSet::new();
        let root = match dirfd::open_root(dir) {
            Ok(root) => Some(root),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                return Err(error).with_context(|| format!("cannot open {}", dir.display()));
            }
        };
        let (mut taken, mut blocked) = (Vec::new(), Vec::new());
        for planned in &mut self.entries {
            let safe = &planned.safe;
            let standing = match &root {
                None => Standing::Nothing { folders: 0 },
                Some(root) => dirfd::standing(root, safe).with_context(|| {
                    format!("cannot look at {}", dir.join(safe.as_str()).display())
                })?,
            };
            match (standing, planned.is_dir) {
                (Standing::Nothing { folders: there }, is_dir) => {
                    folders.extend(safe.ancestors().skip(there));
                    folders.extend(is_dir.then(|| safe.clone()));
                    ensure!(
                        folders.len() <= FOLDERS_MAX,
                        "the job's archive makes more than {FOLDERS_MAX} folders, the limit: have \
                         the job make fewer"
                    );
                }
                (Standing::Folder, true) => {}
                (Standing::File, false) if rules.force => planned.replaces = true,
                (Standing::File, false) => taken.push(planned.name.as_str()),
                (Standing::Folder, false) | (Standing::File, true) | (Standing::Blocked, _) => {
                    blocked.push(planned.name.as_str());
                }
            }
        }
        if !blocked.is_empty() {
            bail!(
                "something else stands in the place of {}: remove it, or choose another directory",
                named(&blocked)
            );
        }
        if !taken.is_empty() {
            bail!(
                "{} there already: choose another directory, or replace what is there with --force",
                match taken.as_slice() {
                    [one] => format!("{one:?} is"),
                    many => format!("{} are", named(many)),
                }
            );
        }
        Ok(folders)
    }
}

/// Some names, and how many others there are.
fn named(names: &[&str]) -> String {
    let first: Vec<String> = names.iter().take(NAMED_MAX).map(|name| format!("{name:?}")).collect();
    match names.len().saturating_sub(NAMED_MAX) {
        0 => first.join(", "),
        more => format!("{} and {more} more", first.join(", ")),
    }
}

/// The directory, or the nearest one above it that is there.
pub(crate) fn nearest(dir: &Path) -> anyhow::Result<&Path> {
    let above = dir.ancestors().map(|dir| match dir.as_os_str().is_empty() {
        true => Path::new("."),
        false => dir,
    });
    let mut found = above.filter(|dir| dir.exists());
    found.next().ok_or_else(|| anyhow!("no directory above {} exists", dir.display()))
}

/// The room on a disk.
#[derive(Clone, Copy, Debug)]
struct Room {
    free: u64,
    total: u64,
}

impl Room {
    fn of(dir: &Path) -> anyhow::Result<Room> {
        let system = rustix::fs::statvfs(dir)
            .with_context(|| format!("cannot tell how much room {} has", dir.display()))?;
        let bytes = |blocks: u64| blocks.saturating_mul(system.f_frsize);
        Ok(Room { free: bytes(system.f_bavail), total: bytes(system.f_blocks) })
    }

    /// Refuses what has no room.
    fn check(self, bytes: u64, dir: &Path, rules: Rules) -> anyhow::Result<()> {
        if let Some(bytes_max) = rules.bytes_max.filter(|bytes_max| bytes > *bytes_max) {
            bail!(
                "the job's archive unpacks to {}, over the limit of {} (--max-unpacked): raise it",
                ByteSize(bytes),
                ByteSize(bytes_max)
            );
        }
        let reserve = DISK_RESERVE_BYTES.min(self.total / 10);
        if bytes > self.free.saturating_sub(reserve) {
            bail!(
                "the job's archive unpacks to {}, and the disk of {} has {} free, of which {} stay \
                 free: make room there, or choose another directory",
                ByteSize(bytes),
                dir.display(),
                ByteSize(self.free),
                ByteSize(reserve)
            );
        }
        Ok(())
    }
}

fn write_all<R: Read + Seek>(
    zip: &mut ZipIterable<R>,
    plan: &Plan,
    dir: &Path,
    made: &mut Made,
    watch: &Watch,
) -> anyhow::Result<()> {
    let mut planned = plan.entries.iter().peekable();
    let mut buffer = vec![0; PIECE_BYTES];
    let files = zip.files().context("the job's archive cannot be read")?;
    let mut index = 0;
    while let Some(entry) = files.next() {
        let entry = entry.with_context(|| format!("entry {index} of the job's archive"))?;
        let wanted = planned.next_if(|planned| planned.index == index);
        index += 1;
        let Some(Planned { name, safe, is_dir, replaces, .. }) = wanted else { continue };
        watch.check()?;
        let target = dir.join(safe.as_str());
        if *is_dir {
            dirfd::make_dir(&made.root, safe)
                .with_context(|| format!("cannot make the directory {}", target.display()))?;
            continue;
        }
        let (declared, mode) = (entry.size(), entry.unix_mode());
        let mut content = entry
            .with_reader(files.reader_mut(), ZipReadOptions::new())
            .with_context(|| format!("cannot unpack {name:?}"))?;
        let mut file = made
            .file(safe, *replaces)
            .with_context(|| format!("cannot create {}", target.display()))?;
        copy(&mut content, &mut file, declared, &mut buffer, watch)
            .with_context(|| format!("cannot unpack {name:?} to {}", target.display()))?;
        make_executable(&file, mode)
            .with_context(|| format!("cannot make {} executable", target.display()))?;
    }
    Ok(())
}

/// Copies the content of an entry, which has to be as long as it says.
fn copy(
    content: &mut impl Read,
    file: &mut File,
    declared: u64,
    buffer: &mut [u8],
    watch: &Watch,
) -> anyhow::Result<()> {
    let mut copied = 0;
    loop {
        watch.check()?;
        let count = match content.read(buffer) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        };
        let Some(piece) = buffer.get(..count).filter(|piece| !piece.is_empty()) else { break };
        copied += count as u64;
        ensure!(
            copied <= declared,
            "it has more than the {declared} bytes that the archive's directory names"
        );
        file.write_all(piece)?;
        watch.done.fetch_add(count as u64, Ordering::Relaxed);
    }
    ensure!(
        copied == declared,
        "it has {copied} bytes, and the archive's directory names {declared}"
    );
    Ok(())
}

/// What an unpacking has made so far.
struct Made {
    root: OwnedFd,
    /// Folders that were not there before.
    folders: BTreeSet<SafeName>,
    /// Files that were not there before.
    files: Vec<SafeName>,
    /// Files that are put in the place of others when all are written, and those.
    replacing: Vec<(SafeName, SafeName)>,
}

impl Made {
    fn file(&mut self, name: &SafeName, replaces: bool) -> io::Result<File> {
        if !replaces {
            let file = dirfd::create_shared(&self.root, name)?;
            self.files.push(name.clone());
            return Ok(file);
        }
        let new = format!(".heft-{}.part", Uuid::new_v4().simple());
        let new = name.beside(&new).map_err(io::Error::other)?;
        let file = dirfd::create_shared(&self.root, &new)?;
        self.replacing.push((new, name.clone()));
        Ok(file)
    }

    /// Replaces what is to be replaced. What was there until now is gone then.
    fn put_in_place(&mut self, dir: &Path) -> anyhow::Result<()> {
        let mut replaced = 0;
        while let Some((new, name)) = self.replacing.last() {
            if let Err(error) = dirfd::replace(&self.root, new, name) {
                let target = dir.join(name.as_str());
                bail!(
                    "cannot replace {}: {error}; {} replaced before",
                    target.display(),
                    Count(replaced, "file")
                );
            }
            self.replacing.pop();
            replaced += 1;
        }
        Ok(())
    }

    /// Removes all of it; says what became of it.
    fn undo(self) -> String {
        let Made { root, folders, files, replacing } = self;
        let count = files.len() + replacing.len();
        let all = files.iter().chain(replacing.iter().map(|(new, _)| new));
        let is_left = |name: &&SafeName| {
            dirfd::remove(&root, name).is_err_and(|error| error.kind() != io::ErrorKind::NotFound)
        };
        let left: Vec<&str> = all.filter(is_left).map(SafeName::as_str).collect();
        // The innermost first: a folder comes before what is in it.
        for folder in folders.iter().rev() {
            dirfd::remove_dir(&root, folder).ok();
        }
        match (count, left.as_slice()) {
            (0, _) => "nothing was unpacked".to_owned(),
            (_, []) => "what had been unpacked is removed again".to_owned(),
            (_, left) => {
                format!("what had been unpacked is removed again, but for {}", named(left))
            }
        }
    }
}

/// Gives a program its x bits back: where the archive has one, who may read the file may run it.
/// Nothing else of the archive's modes counts, such as set-user-ID.
fn make_executable(file: &File, archived: Option<u32>) -> io::Result<()> {
    if archived.is_some_and(|mode| mode & 0o111 != 0) {
        let mode = file.metadata()?.permissions().mode() & 0o777;
        file.set_permissions(fs::Permissions::from_mode(mode | (mode & 0o444) >> 2))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "unpack_tests.rs"]
mod tests;
