//! What became of the files that a job left, for those who asked for them with `--out`.

use std::path::{Path, PathBuf};

use crate::model::JobResult;
use crate::units::{ByteSize, Count};
use serde_json::{Map, Value, json};

use super::unpack::{Unpacked, unpack, unpack_file};
use super::{note, say};

/// Skipped entries that are named one by one.
const SKIPPED_SAID_MAX: usize = 10;

/// What became of a job's files.
pub(crate) enum Files {
    /// It left none.
    None,
    /// They are beneath the directory, but for those that were skipped.
    Unpacked(PathBuf, Unpacked),
    /// They cannot be unpacked.
    Broken(PathBuf, anyhow::Error),
    /// They were too large to come with the result.
    Lost(u64),
    /// They did not arrive: their size, and why.
    Missing(u64, String),
}

/// What came of an archive that is too large for the result itself.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// It is in this file.
    File(&'a Path),
    /// It did not come.
    Missing(&'a str),
}

impl Files {
    /// Unpacks what the result brought into the directory: inside it, or beside it as a part.
    pub(crate) fn take(result: &JobResult, dir: &Path, beside: Beside<'_>) -> Files {
        if let (Some(lost), Beside::Missing(why)) =
            (result.lost.iter().find(|lost| lost.part == "archive"), beside)
        {
            return Files::Missing(lost.size, why.to_owned());
        }
        let taken = match (&result.output_archive, &result.archive, result.archive_lost) {
            (Some(archive), _, _) => unpack(archive, dir),
            (None, Some(blob), _) => match beside {
                Beside::File(archive) => unpack_file(archive, dir),
                Beside::Missing(why) => return Files::Missing(blob.size, why.to_owned()),
            },
            (None, None, Some(bytes)) => return Files::Lost(bytes),
            (None, None, None) => return Files::None,
        };
        match taken {
            Ok(unpacked) => Files::Unpacked(dir.to_owned(), unpacked),
            Err(error) => Files::Broken(dir.to_owned(), error),
        }
    }

    /// Whether all files that there are have been unpacked.
    pub(crate) fn complete(&self) -> bool {
        match self {
            Files::None => true,
            Files::Unpacked(_, unpacked) => unpacked.skipped.is_empty(),
            Files::Broken(..) | Files::Lost(_) | Files::Missing(..) => false,
        }
    }

    /// Says it to the person at the terminal; `whose` stands before each line.
    pub(crate) fn say(&self, whose: &str) {
        match self {
            Files::Unpacked(dir, unpacked) => {
                for (name, why) in unpacked.skipped.iter().take(SKIPPED_SAID_MAX) {
                    say(&format!("{whose}skipped {name:?} of the job's archive: {why}"));
                }
                let count = Count(unpacked.files.len() as u64, "file");
                let skipped = match unpacked.skipped.len() {
                    0 => String::new(),
                    skipped => format!(", {skipped} skipped"),
                };
                note(&format!("{whose}{count} unpacked into {}{skipped}", dir.display()));
            }
            Files::None => note(&format!("{whose}the job left no files")),
            Files::Broken(..) | Files::Lost(_) | Files::Missing(..) => {
                say(&format!("{whose}{}", self.trouble().unwrap_or_default()));
            }
        }
    }

    /// Adds it to what is printed for programs.
    pub(crate) fn put(&self, members: &mut Map<String, Value>) {
        if let Files::Unpacked(_, unpacked) = self {
            members.insert("unpacked".to_owned(), json!(unpacked.files));
            if !unpacked.skipped.is_empty() {
                let skipped =
                    unpacked.skipped.iter().map(|(name, why)| json!({"name": name, "why": why}));
                members.insert("skipped".to_owned(), skipped.collect());
            }
        }
        if let Some(trouble) = self.trouble() {
            members.insert("error".to_owned(), json!(trouble));
        }
    }

    /// Why there are no files although the job left some.
    pub(crate) fn trouble(&self) -> Option<String> {
        match self {
            Files::None | Files::Unpacked(..) => None,
            Files::Broken(dir, error) => {
                Some(format!("cannot unpack into {}: {error:#}", dir.display()))
            }
            Files::Lost(bytes) => Some(format!(
                "the job's files were left out: {bytes} bytes do not fit the result's frame; have \
                 the job write fewer or smaller files"
            )),
            Files::Missing(bytes, why) => {
                Some(format!("the job's archive of {} was not received: {why}", ByteSize(*bytes)))
            }
        }
    }
}
