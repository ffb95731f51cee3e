//! What became of the files that a job left, for those who asked for them with `--out` or
//! `--save-archive`.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::anyhow;
use tokio::time::interval;

use crate::model::JobResult;
use crate::units::{ByteSize, Count};
use serde_json::{Map, Value, json};

use super::exit::FAILED;
use super::job_line::Line;
use super::out::save;
use super::output::error_of;
use super::unpack::{Archive, Rules, Unpacked, Watch, unpack};
use super::{note, say};

/// Skipped entries that are named one by one.
const SKIPPED_SAID_MAX: usize = 10;

/// How often it is shown how far an unpacking is.
const REFRESH: Duration = Duration::from_millis(200);

/// What became of a job's files.
pub(crate) enum Files {
    /// It left none.
    None,
    /// They are beneath the directory, but for those that were skipped.
    Unpacked(PathBuf, Unpacked),
    /// They cannot be unpacked, and how to try again.
    Broken(PathBuf, anyhow::Error, String),
    /// They were too large to come with the result.
    Lost(u64),
    /// They did not arrive: their size, why, and how to try again, if that helps.
    Missing(u64, String, Option<String>),
}

/// What came of an archive that is too large for the result itself.
#[derive(Clone, Copy)]
pub(crate) enum Beside<'a> {
    /// It is in this file.
    File(&'a Path),
    /// It did not come.
    Missing(&'a str),
}

/// What there is of a job's files.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// Their archive.
    Archive(Archive),
    /// It left none.
    None,
    /// They were too large to come with the result.
    Lost(u64),
    /// They did not come: so many bytes, and why.
    Missing(u64, String),
    /// The same, and the leader does not have them any more.
    Gone(u64, String),
}

impl Found {
    /// What the result brought: inside it, or beside it as a part.
    pub(crate) fn of(result: &JobResult, beside: Beside<'_>) -> Found {
        if let (Some(lost), Beside::Missing(why)) =
            (result.lost.iter().find(|lost| lost.part == "archive"), beside)
        {
            return Found::Gone(lost.size, why.to_owned());
        }
        match (&result.output_archive, &result.archive, result.archive_lost) {
            (Some(archive), _, _) => Found::Archive(Archive::Memory(archive.clone())),
            (None, Some(blob), _) => match beside {
                Beside::File(archive) => Found::Archive(Archive::File(archive.to_owned())),
                Beside::Missing(why) => Found::Missing(blob.size, why.to_owned()),
            },
            (None, None, Some(bytes)) => Found::Lost(bytes),
            (None, None, None) => Found::None,
        }
    }
}

/// The archive that was kept itself.
pub(crate) enum Saved {
    /// The job left no files, or they did not come: that is said elsewhere.
    Nothing,
    /// It is here, with so many bytes.
    As(PathBuf, u64),
    /// It cannot be written, and how to try again.
    Failed(anyhow::Error, String),
}

impl Saved {
    /// Keeps an archive as a file.
    pub(crate) async fn take(found: &Found, file: &Path, force: bool, retry: String) -> Saved {
        let Found::Archive(archive) = found else { return Saved::Nothing };
        let (archive, file) = (archive.clone(), file.to_owned());
        let saving = tokio::task::spawn_blocking(move || (save(&archive, &file, force), file));
        match saving.await {
            Ok((Ok(bytes), file)) => Saved::As(file, bytes),
            Ok((Err(error), _)) => Saved::Failed(error, retry),
            Err(error) => Saved::Failed(error.into(), retry),
        }
    }

    pub(crate) fn failed(&self) -> bool {
        matches!(self, Saved::Failed(..))
    }

    /// Says it to the person at the terminal.
    pub(crate) fn say(&self) {
        match self {
            Saved::Nothing => {}
            Saved::As(file, bytes) => {
                say(&format!("saved the archive of {} as {}", ByteSize(*bytes), file.display()));
            }
            Saved::Failed(error, retry) => say(&format!("{error:#}; {retry}")),
        }
    }

    /// Adds it to what is printed for programs.
    pub(crate) fn put(&self, members: &mut Map<String, Value>) {
        match self {
            Saved::Nothing => {}
            Saved::As(file, _) => {
                members.insert("saved_archive".to_owned(), json!(file.to_string_lossy()));
            }
            Saved::Failed(error, retry) => {
                let error = error_of(FAILED, &format!("{error:#}"), Some(retry));
                members.insert("error".to_owned(), error);
            }
        }
    }
}

/// Ends an unpacking that nobody waits for any more.
struct StopOnDrop(Arc<Watch>);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        self.0.stop();
    }
}

/// Unpacks on a thread of its own, and shows how far it is. If this is dropped, the unpacking ends
/// soon and removes what it made; the runtime waits for that.
async fn unpack_beside(
    archive: Archive,
    dir: PathBuf,
    rules: Rules,
    line: &mut Line,
) -> anyhow::Result<Unpacked> {
    let watch = Arc::new(Watch::default());
    let stop = StopOnDrop(watch.clone());
    let unpacking = tokio::task::spawn_blocking(move || unpack(&archive, &dir, rules, &watch));
    tokio::pin!(unpacking);
    let mut refresh = interval(REFRESH);
    let unpacked = loop {
        tokio::select! {
            ended = &mut unpacking => {
                break ended.unwrap_or_else(|error| Err(anyhow!("unpacking failed: {error}")));
            }
            _ = refresh.tick() => {
                if let (done, total @ 1..) = stop.0.far() {
                    line.unpacking(done, total);
                }
            }
        }
    };
    if let (done, total @ 1..) = stop.0.far() {
        line.unpacking(done, total);
    }
    line.clear();
    unpacked
}

impl Files {
    /// Unpacks what there is into the directory; `retry` says how to try again.
    pub(crate) async fn take(
        found: &Found,
        dir: &Path,
        rules: Rules,
        line: &mut Line,
        retry: String,
    ) -> Files {
        match found {
            Found::Archive(archive) => {
                let unpacked = unpack_beside(archive.clone(), dir.to_owned(), rules, line).await;
                match unpacked {
                    Ok(unpacked) => Files::Unpacked(dir.to_owned(), unpacked),
                    Err(error) => Files::Broken(dir.to_owned(), error, retry),
                }
            }
            Found::None | Found::Lost(_) | Found::Missing(..) | Found::Gone(..) => {
                Files::not_here(found, retry)
            }
        }
    }

    /// Files that were wanted and are not here; `retry` says how to try again.
    pub(crate) fn not_here(found: &Found, retry: String) -> Files {
        match found {
            Found::Lost(bytes) => Files::Lost(*bytes),
            Found::Missing(bytes, why) => Files::Missing(*bytes, why.clone(), Some(retry)),
            Found::Gone(bytes, why) => Files::Missing(*bytes, why.clone(), None),
            Found::Archive(_) | Found::None => Files::None,
        }
    }

    /// Whether the files could be had by another attempt.
    pub(crate) fn failed(&self) -> bool {
        match self {
            Files::Broken(..) | Files::Missing(..) => true,
            Files::None | Files::Unpacked(..) | Files::Lost(_) => false,
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
                let (what, hint) = self.trouble().unwrap_or_default();
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                say(&format!("{whose}{what}{hint}"));
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
            let (what, hint) = trouble;
            members.insert("error".to_owned(), error_of(FAILED, &what, hint));
        }
    }

    /// Why there are no files although the job left some, and the next step.
    fn trouble(&self) -> Option<(String, Option<&str>)> {
        match self {
            Files::None | Files::Unpacked(..) => None,
            Files::Broken(dir, error, retry) => {
                Some((format!("cannot unpack into {}: {error:#}", dir.display()), Some(retry)))
            }
            Files::Lost(bytes) => Some((
                format!(
                    "the job's files were left out: {bytes} bytes do not fit the result's frame"
                ),
                Some("have the job write fewer or smaller files"),
            )),
            Files::Missing(bytes, why, retry) => Some((
                format!("the job's archive of {} was not received: {why}", ByteSize(*bytes)),
                retry.as_deref(),
            )),
        }
    }
}
