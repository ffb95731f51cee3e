//! Options for the large parts of a result (archive, standard output, standard error) that come as
//! transfers, and the form in which the caller receives them.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use chunking::message::{Open, Purpose};
use uuid::Uuid;

use crate::model::{BlobRef, JobResult, JsonModel, ModelError};
use crate::transfer::{ChunkSink, FileSink};
use crate::units::ByteSize;

/// Makes a sink for a part of a result; none if it is not wanted.
pub type SinkFactory = Arc<dyn Fn(&Open) -> Option<Box<dyn ChunkSink>> + Send + Sync>;

/// Which parts of results are wanted, and where they go.
#[derive(Clone, Default)]
pub enum Downloads {
    /// None of them; the leader keeps them for `heft result get`.
    #[default]
    None,
    /// All, as files in this directory, which is made if it is not there.
    Directory(PathBuf),
    /// What the job printed, as files in this directory, and not its archive.
    Outputs(PathBuf),
    /// Into sinks of the caller's own.
    Sink(SinkFactory),
}

impl fmt::Debug for Downloads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Downloads::None => f.write_str("None"),
            Downloads::Directory(dir) => f.debug_tuple("Directory").field(dir).finish(),
            Downloads::Outputs(dir) => f.debug_tuple("Outputs").field(dir).finish(),
            Downloads::Sink(_) => f.write_str("Sink"),
        }
    }
}

impl Downloads {
    /// Takes all parts, checks them and drops the bytes: for measuring.
    pub fn discard() -> Self {
        Downloads::Sink(Arc::new(|_| Some(Box::new(Discard))))
    }

    /// Whether parts of this purpose may be wanted.
    pub(super) fn wants(&self, purpose: Purpose) -> bool {
        match (self, purpose) {
            (_, Purpose::Input | Purpose::Dataset | Purpose::Payload) | (Downloads::None, _) => {
                false
            }
            (Downloads::Outputs(_), Purpose::Archive) => false,
            (Downloads::Outputs(_), Purpose::Stdout | Purpose::Stderr) => true,
            (Downloads::Directory(_) | Downloads::Sink(_), _) => true,
        }
    }

    /// Whether a result names parts that may be wanted.
    pub(crate) fn wants_parts_of(&self, result: &JobResult) -> bool {
        named_in(result).iter().any(|named| self.wants(named.purpose))
    }

    /// Where a part goes; `None` if it is not wanted.
    pub(super) fn sink(&self, id: Uuid, open: &Open) -> io::Result<Option<Place>> {
        if !self.wants(open.purpose) {
            return Ok(None);
        }
        match self {
            Downloads::None => Ok(None),
            Downloads::Directory(dir) | Downloads::Outputs(dir) => {
                check_room(dir, open.size)?;
                let (file, temporary) = Temporary::create(dir, id)?;
                let place = format!("in {}", dir.display());
                Ok(Some((Box::new(FileSink::new(file, place)), Some(temporary))))
            }
            Downloads::Sink(factory) => Ok(factory(open).map(|sink| (sink, None))),
        }
    }
}

/// Refuses a part for which the disk has no room, before any of it is sent.
#[cfg(unix)]
fn check_room(dir: &Path, bytes: u64) -> io::Result<()> {
    fs::create_dir_all(dir)?;
    let system = rustix::fs::statvfs(dir)?;
    let free = system.f_bavail.saturating_mul(system.f_frsize);
    if bytes > free {
        return Err(io::Error::new(
            io::ErrorKind::StorageFull,
            format!(
                "it has {}, and the disk of {} has {} free: make room there, or choose another \
                 directory",
                ByteSize(bytes),
                dir.display(),
                ByteSize(free)
            ),
        ));
    }
    Ok(())
}

#[cfg(not(unix))]
fn check_room(_: &Path, _: u64) -> io::Result<()> {
    Ok(())
}

/// Where a part goes: its sink, and the file behind it if there is one of ours.
pub(super) type Place = (Box<dyn ChunkSink>, Option<Temporary>);

/// Takes bytes and keeps none.
struct Discard;

impl ChunkSink for Discard {
    fn write(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Ok(())
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn blocks(&self) -> bool {
        false
    }
}

/// A file that is removed when nobody has it any more.
#[derive(Debug)]
pub(super) struct Temporary {
    path: PathBuf,
}

impl Temporary {
    fn create(dir: &Path, id: Uuid) -> io::Result<(File, Temporary)> {
        fs::create_dir_all(dir)?;
        // The serial keeps apart what two clients fetch of the same blob at a time.
        let path = dir.join(format!(".heft-{}-{}.part", id.simple(), Uuid::new_v4().simple()));
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        // For nobody else to read: the directory may be one that everybody shares.
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(&path)?;
        Ok((file, Temporary { path }))
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        fs::remove_file(&self.path).ok();
    }
}

/// A part of a result that has come whole.
#[derive(Debug)]
pub struct Part {
    /// What it is to the job.
    pub purpose: Purpose,
    /// How many bytes it has.
    pub size: u64,
    pub(super) file: Option<Temporary>,
}

impl Part {
    /// The file that holds it; none if a sink of the caller's own took it. The file is removed with
    /// this value.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }

    /// Gives the file its place for good.
    pub fn keep_as(mut self, path: &Path) -> io::Result<()> {
        if let Some(file) = self.file.take() {
            fs::rename(&file.path, path)?;
        }
        Ok(())
    }
}

/// A part of a result that was wanted and did not come whole.
#[derive(Debug)]
pub struct Missing {
    /// What it is to the job.
    pub purpose: Purpose,
    /// How many bytes it has.
    pub size: u64,
    /// How many of them came, from its start on; 0 where a sink of the caller's own took them.
    pub here: u64,
    /// Why the rest did not come.
    pub why: String,
    pub(super) file: Option<Temporary>,
}

impl Missing {
    /// The file that holds what came, in its first [`here`](Self::here) bytes; what is behind them
    /// means nothing. None if nothing came, or a sink of the caller's own took it. The file is
    /// removed with this value.
    pub fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|file| file.path.as_path())
    }
}

/// What there is of a part that will not come whole.
#[derive(Debug, Default)]
pub(super) struct Rest {
    pub(super) why: String,
    pub(super) here: u64,
    /// What the part is, and where what came of it is.
    pub(super) file: Option<(Purpose, Temporary)>,
}

impl Rest {
    /// Nothing came of it.
    pub(super) fn nothing(why: String) -> Self {
        Rest { why, ..Rest::default() }
    }
}

/// A job's end: the payload of its Result frame, and the parts that came beside it.
#[derive(Debug)]
pub struct Finished {
    /// The payload as it came.
    pub payload: Bytes,
    /// Parts that came whole, if they were wanted
    /// ([`Options::downloads`](super::Options::downloads)).
    pub parts: Vec<Part>,
    /// Parts that were wanted and did not come whole.
    pub missing: Vec<Missing>,
}

impl Finished {
    pub(super) fn plain(payload: Bytes) -> Self {
        Finished { payload, parts: Vec::new(), missing: Vec::new() }
    }

    /// The payload as a JobResult.
    pub fn result(&self) -> Result<JobResult, ModelError> {
        JobResult::parse(&self.payload)
    }

    /// The part of this purpose, if it came.
    pub fn part(&self, purpose: Purpose) -> Option<&Part> {
        self.parts.iter().find(|part| part.purpose == purpose)
    }
}

/// A blob that a result names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) id: Uuid,
    pub(super) purpose: Purpose,
    pub(super) size: u64,
}

/// The blobs that a result names.
pub(super) fn named_in(result: &JobResult) -> Vec<Named> {
    let blobs = [
        (Purpose::Archive, &result.archive),
        (Purpose::Stdout, &result.stdout_blob),
        (Purpose::Stderr, &result.stderr_blob),
    ];
    let named = |(purpose, blob): (Purpose, &Option<BlobRef>)| {
        blob.as_ref().map(|blob| Named { id: blob.id, purpose, size: blob.size })
    };
    blobs.into_iter().filter_map(named).collect()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_part_without_room_on_the_disk_is_refused_with_both_numbers_and_the_next_step() {
        let dir = tempfile::tempdir().unwrap();
        assert!(check_room(&dir.path().join("new"), 1).is_ok());
        let error = check_room(dir.path(), 1 << 60).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let text = error.to_string();
        let beginning =
            format!("it has 1048576 TiB, and the disk of {} has ", dir.path().display());
        assert!(text.starts_with(&beginning), "{text}");
        assert!(text.ends_with("free: make room there, or choose another directory"), "{text}");
    }
}
