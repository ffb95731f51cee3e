//! Finds the program that a job names, and lists all that the directory of programs has (C20).
//!
//! A program is `NAME.exe`, else `NAME`: a file that may be executed. The list has each name by
//! which a job gets one. It is made anew often, so it looks at nothing but names and metadata.

use std::collections::BTreeMap;
use std::fs::{self, Metadata};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::io::Errno;
use thiserror::Error;

use crate::core::names::{NameError, SafeName};
use crate::model::limits::{PROGRAMS_BYTES_MAX, PROGRAMS_LISTED_MAX};
use crate::worker::handler::ProgramListing;

/// Files of the directory that are looked at for the list. Where there are more, there is none.
const FILES_LOOKED_AT_MAX: usize = 16_384;

/// What the name of a program may end with, and a job leaves out.
const EXE: &str = ".exe";

/// Why a job's program cannot be run. Its text becomes the result's Stderr (WX05).
#[derive(Debug, Error)]
pub(super) enum ProgramError {
    #[error(transparent)]
    Name(#[from] NameError),
    #[error("Executable not found: {} (nor {}): put it there, or submit under another ExecName", exe.display(), plain.display())]
    NotFound { exe: PathBuf, plain: PathBuf },
    #[error("Executable is not executable: {} has mode {mode:03o}: chmod +x it", path.display())]
    NotExecutable { path: PathBuf, mode: u32 },
    #[error("cannot look at the executable {}: {source}", path.display())]
    Look { path: PathBuf, source: io::Error },
}

impl ProgramError {
    /// Whether another worker may have the program: the fault is not the job's.
    pub(super) fn is_of_worker(&self) -> bool {
        match self {
            ProgramError::Name(_) => false,
            ProgramError::NotFound { .. }
            | ProgramError::NotExecutable { .. }
            | ProgramError::Look { .. } => true,
        }
    }
}

/// `NAME.exe`, then `NAME` (C20).
pub(super) fn find_program(exe_dir: &Path, exec_name: &str) -> Result<PathBuf, ProgramError> {
    let name = SafeName::parse_program(exec_name)?;
    let (exe, plain) = (exe_dir.join(format!("{}{EXE}", name.file())), exe_dir.join(name.file()));
    for path in [&exe, &plain] {
        match fs::metadata(path) {
            Ok(found) if found.is_file() => {
                let mode = found.permissions().mode() & 0o777;
                return match is_executable(&found) {
                    false => Err(ProgramError::NotExecutable { path: path.clone(), mode }),
                    true => Ok(path.clone()),
                };
            }
            Ok(_) => {}
            Err(error) if is_missing(&error) => {}
            Err(source) => return Err(ProgramError::Look { path: path.clone(), source }),
        }
    }
    Err(ProgramError::NotFound { exe, plain })
}

fn is_executable(found: &Metadata) -> bool {
    found.permissions().mode() & 0o111 != 0
}

/// A name of 255 bytes is sound, and too long only with `.exe` behind it.
fn is_missing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidFilename)
}

/// Whether the system could not start a program for a reason that lies in the program, or in what
/// this machine has for it: a format or an interpreter that is not here, say. Arguments that are
/// too long are the job's, and memory that is short is neither's.
pub(super) fn is_of_program(error: &io::Error) -> bool {
    let errors = [
        Errno::NOENT,
        Errno::ACCESS,
        Errno::PERM,
        Errno::NOEXEC,
        Errno::LIBBAD,
        Errno::ISDIR,
        Errno::NOTDIR,
        Errno::LOOP,
        Errno::TXTBSY,
    ];
    let raw = error.raw_os_error();
    raw.is_some_and(|raw| errors.iter().any(|errno| errno.raw_os_error() == raw))
}

/// All names by which a job gets a program of the directory. Blocking.
pub(super) fn list(exe_dir: &Path) -> ProgramListing {
    let mut mark = DefaultHasher::new();
    let files = match files_of(exe_dir) {
        Ok(Some(files)) => files,
        // Without the directory there are none.
        Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
        // Too many; or those that may be there can be started, and not listed.
        Ok(None) | Err(_) => return ProgramListing { names: None, mark: mark.finish() },
    };
    for (name, found) in &files {
        let changes = (found.ino(), found.dev(), found.size(), found.mode());
        (name, changes, found.mtime(), found.mtime_nsec()).hash(&mut mark);
    }
    let mark = mark.finish();
    let is_run_as = |name: &str| {
        let found = files.get(&format!("{name}{EXE}")).or_else(|| files.get(name));
        SafeName::parse_program(name).is_ok() && found.is_some_and(is_executable)
    };
    let mut names: Vec<&str> = files
        .keys()
        .flat_map(|file| [Some(file.as_str()), file.strip_suffix(EXE)])
        .flatten()
        .filter(|name| is_run_as(name))
        .collect();
    names.sort_unstable();
    names.dedup();
    let bytes = names.iter().map(|name| (name.len() + size_of::<Box<str>>()) as u64).sum::<u64>();
    let fits = names.len() <= PROGRAMS_LISTED_MAX && bytes <= PROGRAMS_BYTES_MAX;
    let names = fits.then(|| names.into_iter().map(str::to_owned).collect());
    ProgramListing { names, mark }
}

/// The files of a directory, links followed; nothing if there are too many.
fn files_of(directory: &Path) -> io::Result<Option<BTreeMap<String, Metadata>>> {
    let mut files = BTreeMap::new();
    for (count, entry) in fs::read_dir(directory)?.enumerate() {
        if count >= FILES_LOOKED_AT_MAX {
            return Ok(None);
        }
        let entry = entry?;
        // A job cannot name what is not text.
        let Ok(name) = entry.file_name().into_string() else { continue };
        // One that is gone by now is not there.
        if let Ok(found) = fs::metadata(entry.path())
            && found.is_file()
        {
            files.insert(name, found);
        }
    }
    Ok(Some(files))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;

    fn put(directory: &Path, name: &str, mode: u32) {
        fs::write(directory.join(name), name).unwrap();
        fs::set_permissions(directory.join(name), Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn c20_the_list_has_each_name_by_which_a_program_is_found_and_no_other() {
        let root = tempfile::tempdir().unwrap();
        let exe = root.path();
        put(exe, "plain", 0o755);
        put(exe, "win.exe", 0o700);
        put(exe, "data", 0o644);
        // The one with the ending comes first, and cannot be executed.
        put(exe, "both.exe", 0o644);
        put(exe, "both", 0o755);
        put(exe, "nul", 0o755);
        fs::create_dir(exe.join("folder")).unwrap();
        std::os::unix::fs::symlink(exe.join("plain"), exe.join("link")).unwrap();
        std::os::unix::fs::symlink(exe.join("missing"), exe.join("dangling")).unwrap();
        let listed = list(exe).names.unwrap();
        assert_eq!(listed, ["link", "plain", "win", "win.exe"]);
        for name in [
            "plain", "win.exe", "win", "data", "both.exe", "both", "nul", "folder", "link",
            "dangling", "x",
        ] {
            let is_listed = listed.iter().any(|listed| listed == name);
            assert_eq!(is_listed, find_program(exe, name).is_ok(), "{name}");
        }
    }

    #[test]
    fn the_mark_tells_what_was_replaced_or_made_executable() {
        let root = tempfile::tempdir().unwrap();
        let exe = root.path();
        put(exe, "calcA", 0o755);
        let first = list(exe);
        assert_eq!(list(exe), first);
        put(exe, "calcB", 0o644);
        let second = list(exe);
        assert!(second.names == first.names && second.mark != first.mark);
        fs::set_permissions(exe.join("calcB"), Permissions::from_mode(0o755)).unwrap();
        let third = list(exe);
        assert_eq!(third.names.as_deref().map(<[String]>::len), Some(2));
        fs::write(exe.join("new"), "longer than before").unwrap();
        fs::rename(exe.join("new"), exe.join("calcA")).unwrap();
        assert_ne!(list(exe).mark, third.mark);
    }

    #[test]
    fn too_many_programs_are_not_listed_and_a_directory_that_is_gone_has_none() {
        let root = tempfile::tempdir().unwrap();
        let exe = root.path();
        for number in 0..PROGRAMS_LISTED_MAX {
            put(exe, &format!("p{number}"), 0o755);
        }
        assert_eq!(list(exe).names.map(|names| names.len()), Some(PROGRAMS_LISTED_MAX));
        put(exe, "one-more", 0o755);
        assert_eq!(list(exe).names, None);
        let long = tempfile::tempdir().unwrap();
        for number in 100..400 {
            put(long.path(), &format!("{number}{}", "x".repeat(240)), 0o755);
        }
        assert_eq!(list(long.path()).names, None, "too long together");
        assert_eq!(list(&exe.join("missing")).names, Some(Vec::new()));
        put(exe, "file", 0o755);
        assert_eq!(list(&exe.join("file")).names, None);
    }
}
