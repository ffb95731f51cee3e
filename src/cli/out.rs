//! Where the files of a job go: `--out`, `--force`, `--max-unpacked` and `--save-archive` of `heft
//! submit` and `heft result get`. What cannot work is refused before anything is sent or asked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use rustix::fs::{CWD, RenameFlags, renameat, renameat_with};
use rustix::io::Errno;
use rustix::process::geteuid;
use uuid::Uuid;

use super::exit::Usage;
use super::unpack::{Archive, Rules, nearest};
use super::{Output, note};
use crate::client::Downloads;
use crate::units::{ByteSize, Count};

/// How files are called that are not complete: those that are unpacked or saved, and parts of
/// results (`client/downloads.rs`).
const PART_PREFIX: &str = ".heft-";
const PART_SUFFIX: &str = ".part";

/// For how long nobody has written a part file that is taken for abandoned.
const ABANDONED_AFTER: Duration = Duration::from_secs(24 * 3600);

/// Where files go.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct OutArgs {
    /// Unpack the files the job created into this directory; of a job to all workers, each worker's
    /// files into a subdirectory named after its id. Files that are there are not replaced.
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    /// Replace files that are there already.
    #[arg(long)]
    pub(crate) force: bool,
    /// The most that an archive may unpack to, such as 10GiB (default: what the disk has room for).
    #[arg(long, value_name = "SIZE", requires = "out")]
    pub(crate) max_unpacked: Option<ByteSize>,
    /// Keep the job's archive itself as this file, a ZIP.
    #[arg(long, value_name = "FILE")]
    pub(crate) save_archive: Option<PathBuf>,
}

impl OutArgs {
    /// Refuses places that cannot be written.
    pub(crate) fn check(&self) -> Result<(), Usage> {
        self.out.as_deref().map_or(Ok(()), check_dir)?;
        self.save_archive.as_deref().map_or(Ok(()), |file| check_file(file, self.force))
    }

    /// Removes part files that a command which was killed left where this one writes.
    pub(crate) fn remove_abandoned(&self, output: Output) {
        match self.downloads(output) {
            Downloads::Directory(dir) | Downloads::Outputs(dir) => {
                let removed = remove_abandoned(&dir, ABANDONED_AFTER);
                if removed > 0 {
                    let files = Count(removed, "part file");
                    note(&format!(
                        "removed {files} in {} that an earlier command left",
                        dir.display()
                    ));
                }
            }
            Downloads::None | Downloads::Sink(_) => {}
        }
    }

    /// How archives are unpacked.
    pub(crate) fn rules(&self) -> Rules {
        Rules { force: self.force, bytes_max: self.max_unpacked.map(|size| size.0) }
    }

    /// Which parts of a result are wanted: the archive where it has a place, and what the job
    /// printed if that is printed. Those that are only printed pass through the directory for
    /// temporary files.
    pub(crate) fn downloads(&self, output: Output) -> Downloads {
        // Beside the file, so that the archive need not be copied there.
        let beside = |file: &PathBuf| match file.parent() {
            Some(dir) if !dir.as_os_str().is_empty() => dir.to_owned(),
            Some(_) | None => PathBuf::from("."),
        };
        match (self.out.clone().or_else(|| self.save_archive.as_ref().map(beside)), output) {
            (Some(dir), _) => Downloads::Directory(dir),
            (None, Output::Table) => Downloads::Outputs(std::env::temp_dir()),
            (None, Output::Json | Output::Jsonl | Output::Quiet) => Downloads::None,
        }
    }
}

fn check_dir(dir: &Path) -> Result<(), Usage> {
    let shown = dir.display();
    match fs::metadata(dir) {
        Ok(found) if found.is_dir() => may_write(dir).map_err(|error| {
            Usage(format!("cannot write to the directory {shown} (--out): {error}: choose another"))
        }),
        Ok(_) => Err(Usage(format!("{shown} (--out) is a file: name a directory"))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if dir.symlink_metadata().is_ok() {
                return Err(Usage(format!(
                    "{shown} (--out) is a link to a directory that is not there: make that, or \
                     choose another"
                )));
            }
            let made = nearest(dir).map_err(io::Error::other).and_then(|above| {
                if above.is_dir() {
                    may_write(above)
                } else {
                    Err(io::ErrorKind::NotADirectory.into())
                }
            });
            made.map_err(|error| {
                Usage(format!(
                    "the directory {shown} (--out) cannot be made: {error}: choose another"
                ))
            })
        }
        Err(error) => Err(Usage(format!("cannot use the directory {shown} (--out): {error}"))),
    }
}

fn check_file(file: &Path, force: bool) -> Result<(), Usage> {
    let shown = file.display();
    match file.symlink_metadata() {
        Ok(found) if found.is_dir() => {
            return Err(Usage(format!("{shown} (--save-archive) is a directory: name a file")));
        }
        Ok(_) if !force => return Err(Usage(exists(file))),
        Ok(_) | Err(_) => {}
    }
    let dir = match file.parent() {
        Some(dir) if !dir.as_os_str().is_empty() => dir,
        Some(_) | None => Path::new("."),
    };
    let usable = match fs::metadata(dir) {
        Ok(found) if !found.is_dir() => Err(io::ErrorKind::NotADirectory.into()),
        Ok(_) if file.file_name().is_none() => Err(io::ErrorKind::InvalidFilename.into()),
        Ok(_) => may_write(dir),
        Err(error) => Err(error),
    };
    usable.map_err(|error| {
        Usage(format!(
            "cannot write {shown} (--save-archive): its directory {}: {error}: choose another file",
            dir.display()
        ))
    })
}

fn exists(file: &Path) -> String {
    format!(
        "{} (--save-archive) is there already: choose another name, or replace it with --force",
        file.display()
    )
}

/// Whether this process can make files in a directory. It makes one: rights alone do not tell, as
/// for the superuser, or on a disk that somebody else serves.
fn may_write(dir: &Path) -> io::Result<()> {
    let probe = Unfinished(dir.join(unfinished_name()));
    OpenOptions::new().write(true).create_new(true).open(&probe.0).map(drop)
}

fn unfinished_name() -> String {
    format!("{PART_PREFIX}{}{PART_SUFFIX}", Uuid::new_v4().simple())
}

/// Removes the user's own part files that nobody has written for so long; says how many.
fn remove_abandoned(dir: &Path, after: Duration) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let is_abandoned = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let is_part = name
            .to_str()
            .is_some_and(|name| name.starts_with(PART_PREFIX) && name.ends_with(PART_SUFFIX));
        is_part
            && entry.metadata().is_ok_and(|found| {
                let age = found.modified().ok().and_then(|modified| modified.elapsed().ok());
                let is_ours = found.is_file() && found.uid() == geteuid().as_raw();
                is_ours && age.is_some_and(|age| age >= after)
            })
    };
    let removed =
        entries.filter(is_abandoned).filter(|entry| fs::remove_file(entry.path()).is_ok());
    removed.count() as u64
}

/// Keeps an archive as a file; gives its size. A file that is there is replaced with `force` alone.
/// Blocking.
pub(crate) fn save(archive: &Archive, file: &Path, force: bool) -> anyhow::Result<u64> {
    let what = || format!("cannot save the job's archive as {}", file.display());
    let dir = file.parent().unwrap_or(Path::new(""));
    let new = Unfinished(dir.join(unfinished_name()));
    write_new(archive, &new.0).with_context(what)?;
    match put_in_place(&new.0, file, force) {
        Err(Errno::EXIST) => return Err(anyhow::Error::msg(exists(file))),
        renamed => renamed.with_context(what)?,
    }
    Ok(fs::metadata(file).with_context(what)?.len())
}

fn put_in_place(new: &Path, file: &Path, force: bool) -> Result<(), Errno> {
    if force {
        return renameat(CWD, new, CWD, file);
    }
    match renameat_with(CWD, new, CWD, file, RenameFlags::NOREPLACE) {
        // Not every file system can.
        Err(Errno::INVAL | Errno::NOSYS) if file.symlink_metadata().is_ok() => Err(Errno::EXIST),
        Err(Errno::INVAL | Errno::NOSYS) => renameat(CWD, new, CWD, file),
        renamed => renamed,
    }
}

/// A file that goes unless it was given its place.
struct Unfinished(PathBuf);

impl Drop for Unfinished {
    fn drop(&mut self) {
        fs::remove_file(&self.0).ok();
    }
}

/// Makes the file, with the rights that the user's mask gives. What is a file on the same disk is
/// linked, not copied.
fn write_new(archive: &Archive, new: &Path) -> io::Result<()> {
    let create = || OpenOptions::new().write(true).create_new(true).open(new);
    match archive {
        Archive::Memory(bytes) => create()?.write_all(bytes),
        Archive::File(from) => {
            let mut file = create()?;
            let rights = file.metadata()?.permissions();
            fs::remove_file(new)?;
            if fs::hard_link(from, new).is_ok() {
                return fs::set_permissions(new, rights);
            }
            file = create()?;
            io::copy(&mut File::open(from)?, &mut file).map(drop)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_saved_by_a_link_or_a_copy_and_replaces_only_by_force() {
        let root = tempfile::tempdir().unwrap();
        let (part, file) = (root.path().join("part"), root.path().join("saved.zip"));
        fs::write(&part, "archive").unwrap();
        let large = Archive::File(part.clone());
        assert_eq!(save(&large, &file, false).unwrap(), 7);
        assert_eq!(fs::metadata(&file).unwrap().ino(), fs::metadata(&part).unwrap().ino());
        let small = Archive::Memory(b"small".to_vec());
        let error = save(&small, &file, false).unwrap_err().to_string();
        assert!(error.contains("is there already") && error.contains("--force"), "{error}");
        assert_eq!(fs::read(&file).unwrap(), b"archive");
        assert_eq!(save(&small, &file, true).unwrap(), 5);
        assert_eq!(
            (fs::read(&file).unwrap(), fs::read(&part).unwrap()),
            (b"small".into(), b"archive".into())
        );
        let missing = save(&Archive::File(root.path().join("none")), &file, true);
        assert!(missing.unwrap_err().to_string().contains("cannot save the job's archive as"));
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn part_files_that_nobody_writes_are_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        for name in [".heft-7-8.part", ".heft-7.part", ".heft-7", "a.part", ".heft-d.part"] {
            match name {
                ".heft-d.part" => fs::create_dir(root.path().join(name)).unwrap(),
                name => fs::write(root.path().join(name), "x").unwrap(),
            }
        }
        assert_eq!(remove_abandoned(root.path(), Duration::from_secs(3600)), 0, "they are new");
        assert_eq!(remove_abandoned(root.path(), Duration::ZERO), 2);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 3);
        assert_eq!(remove_abandoned(&root.path().join("none"), Duration::ZERO), 0);
    }

    #[test]
    fn parts_go_beside_the_file_that_is_to_be_saved() {
        let downloads = |out: Option<&str>, file: Option<&str>, output| {
            let args = OutArgs {
                out: out.map(PathBuf::from),
                save_archive: file.map(PathBuf::from),
                ..OutArgs::default()
            };
            format!("{:?}", args.downloads(output))
        };
        assert_eq!(downloads(None, None, Output::Json), "None");
        assert_eq!(downloads(Some("a"), Some("b/c"), Output::Json), "Directory(\"a\")");
        assert_eq!(downloads(None, Some("b/c"), Output::Json), "Directory(\"b\")");
        assert_eq!(downloads(None, Some("c"), Output::Table), "Directory(\".\")");
    }
}
