//! Lists a dataset's files and their names in it. It examines names and file types and reads no
//! contents.
//!
//! A file is known by its own name, a file in a directory by its path beneath it. A single
//! directory stands for its contents; with several paths, names keep the last component of their
//! path as a prefix, so they do not mix. Links on the command line are followed. A link inside a
//! directory is followed if it leads to a regular file beneath the same path, and refused
//! otherwise: a dataset contains only files beneath the named paths. Directories without files are
//! omitted.

use std::fs::{self, Metadata};
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::core::limits::SEGMENTS_MAX;
use crate::core::names::{Case, Clash, NameError, SafeName, clash};
use crate::transfer::SourceError;
use chunking::dataset::ManifestError;

/// The most files of a dataset; the list of more would not fit a manifest, even if all were empty.
pub const FILES_MAX: usize = 1_000_000;

/// Why paths do not make a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ScanError {
    /// The system does not let us look at it.
    #[error(
        "cannot read {}: {why}; check the path, relative paths start at the current directory",
        path.display()
    )]
    Unreadable {
        /// The path.
        path: PathBuf,
        /// What the system says.
        why: String,
    },
    /// A link leads where the dataset must not follow.
    #[error(
        "{} is a link that {why}: only links to regular files beneath the same PATH are followed; remove it, or put a \
         copy in its place",
        path.display()
    )]
    Link {
        /// The link.
        path: PathBuf,
        /// What is wrong with where it leads.
        why: String,
    },
    /// It is neither a file nor a directory.
    #[error("{} is not a regular file but {what}: remove it, or name the files one by one", path.display())]
    Special {
        /// The path.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Its name cannot be that of a file everywhere.
    #[error("{}: {why}", path.display())]
    Name {
        /// The path.
        path: PathBuf,
        /// The rule it breaks.
        why: NameError,
    },
    /// Its name is not a text.
    #[error("the name of {} is not UTF-8: rename it", path.display())]
    NotText {
        /// The path.
        path: PathBuf,
    },
    /// Two files have one name in the dataset, or names that are one on systems that do not tell
    /// case apart.
    #[error(
        "{} and {} would be {first:?} and {second:?} in the dataset, which are one file{}: rename one, or put them under \
         different CacheIds",
        first_path.display(), second_path.display(),
        if first == second { "" } else { " on systems that do not tell upper from lower case" }
    )]
    Twice {
        /// The first name.
        first: String,
        /// The second.
        second: String,
        /// Whose the first is.
        first_path: PathBuf,
        /// Whose the second is.
        second_path: PathBuf,
    },
    /// A name is also a folder of another.
    #[error(
        "{} would be the file {name:?} in the dataset, but {inner:?} ({}) needs a folder of that \
         name: rename one",
        path.display(), inner_path.display()
    )]
    Folder {
        /// The name.
        name: String,
        /// Whose it is.
        path: PathBuf,
        /// The name that is beneath it.
        inner: String,
        /// Whose that is.
        inner_path: PathBuf,
    },
    /// There is nothing to put.
    #[error("there is no file in {paths}: a dataset has at least one, which may be empty")]
    Empty {
        /// What was named.
        paths: String,
    },
    /// There is more than a dataset may have.
    #[error(
        "there are over {limit} files: put fewer under one CacheId, or pack them into archives"
    )]
    Many {
        /// What is taken.
        limit: usize,
    },
    /// A file changed.
    #[error(transparent)]
    Changed(#[from] SourceError),
    /// The list of files and pieces is too large.
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    /// The one who wanted it has gone.
    #[error("reading the files was given up")]
    Stopped,
}

/// A file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    /// Its name in the dataset.
    pub(super) name: SafeName,
    /// Where it is.
    pub(super) path: PathBuf,
}

/// All files that these paths stand for, in the order of their names.
pub(super) fn files(paths: &[PathBuf]) -> Result<Vec<Found>, ScanError> {
    let mut found = Vec::new();
    for path in paths {
        let metadata = fs::metadata(path).map_err(|error| unreadable(path, &error))?;
        if metadata.is_dir() {
            let front =
                if paths.len() == 1 { String::new() } else { format!("{}/", last_part(path)?) };
            walk(path, &front, &mut found)?;
        } else {
            refuse_special(path, &metadata)?;
            push(&mut found, last_part(path)?, path.clone())?;
        }
    }
    if found.is_empty() {
        let paths: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
        return Err(ScanError::Empty { paths: paths.join(", ") });
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    refuse_clashes(&found)?;
    Ok(found)
}

fn unreadable(path: &Path, error: &io::Error) -> ScanError {
    ScanError::Unreadable { path: path.to_owned(), why: error.to_string() }
}

fn text(path: &Path, name: &std::ffi::OsStr) -> Result<String, ScanError> {
    name.to_str().map(str::to_owned).ok_or_else(|| ScanError::NotText { path: path.to_owned() })
}

/// What a path is called where several are put together. `.` and `..` are called as the directory
/// that they are.
fn last_part(path: &Path) -> Result<String, ScanError> {
    if let Some(name) = path.file_name() {
        return text(path, name);
    }
    let real = fs::canonicalize(path).map_err(|error| unreadable(path, &error))?;
    match real.file_name() {
        Some(name) => text(path, name),
        None => {
            let why = "it has no name of its own: name what is in it".to_owned();
            Err(ScanError::Unreadable { path: path.to_owned(), why })
        }
    }
}

/// Adds all files beneath a directory.
fn walk(root: &Path, front: &str, found: &mut Vec<Found>) -> Result<(), ScanError> {
    let mut directories = vec![(root.to_owned(), front.to_owned(), 1)];
    let mut real_root = None;
    while let Some((directory, front, depth)) = directories.pop() {
        let entries = fs::read_dir(&directory).map_err(|error| unreadable(&directory, &error))?;
        for entry in entries {
            let entry = entry.map_err(|error| unreadable(&directory, &error))?;
            let path = entry.path();
            let name = format!("{front}{}", text(&path, &entry.file_name())?);
            let metadata =
                fs::symlink_metadata(&path).map_err(|error| unreadable(&path, &error))?;
            if metadata.is_symlink() {
                let root = match &real_root {
                    Some(root) => root,
                    None => real_root
                        .insert(fs::canonicalize(root).map_err(|error| unreadable(root, &error))?),
                };
                push(found, name, followed(&path, root)?)?;
            } else if metadata.is_dir() {
                if depth >= SEGMENTS_MAX {
                    // Too deep for any file in it, and perhaps without an end.
                    checked(&format!("{name}/x"), &path)?;
                }
                directories.push((path, format!("{name}/"), depth + 1));
            } else {
                refuse_special(&path, &metadata)?;
                push(found, name, path)?;
            }
        }
    }
    Ok(())
}

/// Where a link in a directory leads.
fn followed(link: &Path, root: &Path) -> Result<PathBuf, ScanError> {
    let refused = |why: String| ScanError::Link { path: link.to_owned(), why };
    let leads_to = || fs::read_link(link).unwrap_or_default();
    let real = fs::canonicalize(link).map_err(|error| {
        refused(format!("leads to {}, which cannot be read: {error}", leads_to().display()))
    })?;
    if !real.starts_with(root) {
        return Err(refused(format!("leads to {}, which is elsewhere", leads_to().display())));
    }
    let metadata = fs::metadata(&real).map_err(|error| unreadable(&real, &error))?;
    if !metadata.is_file() {
        return Err(refused(format!(
            "leads to {}, which is {}",
            leads_to().display(),
            kind(&metadata)
        )));
    }
    Ok(real)
}

fn refuse_special(path: &Path, metadata: &Metadata) -> Result<(), ScanError> {
    if metadata.is_file() {
        return Ok(());
    }
    Err(ScanError::Special { path: path.to_owned(), what: kind(metadata) })
}

#[cfg(unix)]
fn kind(metadata: &Metadata) -> &'static str {
    use std::os::unix::fs::FileTypeExt;
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() || kind.is_char_device() => "a device",
        () => "something else",
    }
}

#[cfg(not(unix))]
fn kind(metadata: &Metadata) -> &'static str {
    if metadata.is_dir() { "a directory" } else { "something else" }
}

fn push(found: &mut Vec<Found>, name: String, path: PathBuf) -> Result<(), ScanError> {
    if found.len() >= FILES_MAX {
        return Err(ScanError::Many { limit: FILES_MAX });
    }
    let name = checked(&name, &path)?;
    found.push(Found { name, path });
    Ok(())
}

fn checked(name: &str, path: &Path) -> Result<SafeName, ScanError> {
    SafeName::parse_in_dataset(name).map_err(|why| ScanError::Name { path: path.to_owned(), why })
}

fn refuse_clashes(found: &[Found]) -> Result<(), ScanError> {
    match clash(found, |file| &file.name, Case::Folded) {
        None => Ok(()),
        Some(Clash::Same { first, second }) => Err(ScanError::Twice {
            first: first.name.to_string(),
            second: second.name.to_string(),
            first_path: first.path.clone(),
            second_path: second.path.clone(),
        }),
        Some(Clash::Folder { file, inner }) => Err(ScanError::Folder {
            name: file.name.to_string(),
            path: file.path.clone(),
            inner: inner.name.to_string(),
            inner_path: inner.path.clone(),
        }),
    }
}
