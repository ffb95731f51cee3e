//! Writes a job's input files into its directory (C02, C08, C19, CA08, CA11).
//!
//! Blocking: the executable handler calls it on a blocking thread. It never opens a path outside
//! the job's directory and the cache directory. [`create`] makes the files of transfers when they
//! open; they are complete when the job runs and are only checked then.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::core::names::{InputNamesError, NameUse, SafeName, input_names};
use crate::fs::dirfd;
use crate::model::{InputFile, Source};
use crate::transfer::is_full;
use crate::worker::cache::{
    KeptDatasets, LinkMode, OpenDataset, PRIVATE, open_dataset, place_file,
};
use crate::worker::directory::OpenDirectory;
use crate::worker::identity::FileIdentity;

/// Why a job's inputs could not be laid out. Its text becomes the result's Stderr.
#[derive(Debug, Error)]
pub(crate) enum InputError {
    #[error(transparent)]
    Names(#[from] InputNamesError),
    #[error(
        "the transfer of input file \"{name}\" is incomplete: {found} of {expected} bytes are there"
    )]
    NotHere { name: SafeName, expected: u64, found: u64 },
    #[error(
        "\"{name}\" of the dataset {cache_id} was changed on the disk while the job was prepared: \
         submit the job again"
    )]
    Changed { cache_id: String, name: SafeName },
    #[error(
        "the dataset {cache_id} was removed from the disk while the job was prepared: submit the \
         job again"
    )]
    Removed { cache_id: String },
    #[error("Cache miss: {cache_id}")]
    CacheMiss { cache_id: String },
    #[error("Cache miss: {cache_id}: the dataset is here, and has no file \"{name}\"")]
    NotInDataset { cache_id: String, name: SafeName },
    #[error(
        "input file \"{name}\" comes as {how}, which is not supported yet: send its content inline, or name a CacheId"
    )]
    NotSupported { name: SafeName, how: &'static str },
    #[error("input file \"{name}\" has no source: give it Content or a CacheId")]
    Nothing { name: SafeName },
    #[error("cannot write input file \"{name}\" to {}: {source}{}", directory.display(), next_step(source))]
    Write { name: SafeName, directory: PathBuf, source: io::Error },
    #[error("cannot read \"{cache_id}\" from the cache {}: {source}", directory.display())]
    Cache { cache_id: String, directory: PathBuf, source: io::Error },
    #[error("cannot open {}: {source}", directory.display())]
    Open { directory: PathBuf, source: io::Error },
}

impl InputError {
    /// What the system says, if it is to blame.
    pub(in crate::worker) fn io(&self) -> Option<&io::Error> {
        let (InputError::Write { source, .. }
        | InputError::Open { source, .. }
        | InputError::Cache { source, .. }) = self
        else {
            return None;
        };
        Some(source)
    }
}

pub(super) fn next_step(error: &io::Error) -> &'static str {
    if is_full(error) { ": free space there, or give the worker another --work-dir" } else { "" }
}

/// The inputs by name beneath the directory.
pub(super) type Inputs = HashMap<PathBuf, FileIdentity>;

/// Makes the file of an input that comes by transfer.
pub(in crate::worker) fn create(
    directory: &OpenDirectory,
    name: &SafeName,
) -> Result<File, InputError> {
    dirfd::create(directory.handle(), name)
        .map_err(|source| write_failed(name, directory.path(), source))
}

fn write_failed(name: &SafeName, directory: &Path, source: io::Error) -> InputError {
    if source.kind() == io::ErrorKind::AlreadyExists {
        return InputNamesError::Twice { name: name.clone() }.into();
    }
    InputError::Write { name: name.clone(), directory: directory.to_owned(), source }
}

/// Where files that jobs name by CacheId are, and how they get into a job's directory.
#[derive(Clone, Copy, Debug)]
pub(super) struct CachePlace<'a> {
    pub(super) directory: &'a Path,
    pub(super) link: LinkMode,
    /// What this worker keeps of it, for the job.
    pub(super) kept: &'a KeptDatasets,
}

/// The datasets that a job's files are taken from: each is opened once, so that all files of one
/// dataset are of one version.
#[derive(Default)]
struct Datasets(HashMap<String, Option<OpenDataset>>);

impl Datasets {
    fn open(&mut self, cache_dir: &Path, id: &str) -> io::Result<Option<&OpenDataset>> {
        if !self.0.contains_key(id) {
            self.0.insert(id.to_owned(), open_dataset(cache_dir, id)?);
        }
        Ok(self.0.get(id).and_then(Option::as_ref))
    }
}

/// Writes all files of a job.
pub(super) fn write_all(
    files: &[InputFile],
    directory: &OpenDirectory,
    cache: CachePlace<'_>,
) -> Result<Inputs, InputError> {
    let names = input_names(files.iter().map(|file| file.name.as_str()))?;
    let mut inputs = Inputs::new();
    let mut datasets = Datasets::default();
    for (file, name) in files.iter().zip(names) {
        let look =
            write_one(file, &name, directory.handle(), directory.path(), cache, &mut datasets)?;
        inputs.insert(PathBuf::from(name.to_string()), look);
    }
    Ok(inputs)
}

fn write_one(
    file: &InputFile,
    name: &SafeName,
    root: &OwnedFd,
    directory: &Path,
    cache: CachePlace<'_>,
    datasets: &mut Datasets,
) -> Result<FileIdentity, InputError> {
    let not_supported = |how| InputError::NotSupported { name: name.clone(), how };
    let content = match file.source() {
        Source::Inline(content) => content,
        Source::Cache(cache_id) => {
            let inner = SafeName::parse(NameUse::File, file.name_in_dataset())
                .map_err(InputNamesError::from)?;
            let placed = place_cached(cache_id, &inner, (root, name), cache, datasets)?;
            let look = placed
                .and_then(|placed| placed.metadata())
                .map(|written| FileIdentity::of(&written));
            return look.map_err(|source| write_failed(name, directory, source));
        }
        Source::Blob(blob) => return came(blob.size, name, root, directory),
        Source::Url(_) => return Err(not_supported("a Url")),
        Source::Streamed { .. } | Source::Nothing => {
            return Err(InputError::Nothing { name: name.clone() });
        }
    };
    let failed = |source: io::Error| write_failed(name, directory, source);
    let mut target = dirfd::create(root, name).map_err(failed)?;
    target.write_all(content).map_err(failed)?;
    target.metadata().map(|written| FileIdentity::of(&written)).map_err(failed)
}

/// Looks at a file that a transfer brought.
fn came(
    expected: u64,
    name: &SafeName,
    root: &OwnedFd,
    directory: &Path,
) -> Result<FileIdentity, InputError> {
    let failed = |source: io::Error| write_failed(name, directory, source);
    let found = dirfd::open(root, name).map_err(failed)?.map(|file| file.metadata()).transpose();
    match found.map_err(failed)? {
        Some(file) if file.len() == expected => Ok(FileIdentity::of(&file)),
        found => {
            let found = found.map_or(0, |file| file.len());
            Err(InputError::NotHere { name: name.clone(), expected, found })
        }
    }
}

/// From the dataset that this worker keeps under that id; if it keeps none,
/// `<cache>/<CacheId>/<Name>`, then the single file `<cache>/<CacheId>` (C02). What begins with the
/// id of a dataset that a worker has put there is looked for in that. The error inside is one of
/// writing.
fn place_cached(
    cache_id: &str,
    name: &SafeName,
    (root, target): (&OwnedFd, &SafeName),
    cache: CachePlace<'_>,
    datasets: &mut Datasets,
) -> Result<io::Result<File>, InputError> {
    let id = SafeName::parse(NameUse::Cache, cache_id).map_err(InputNamesError::from)?;
    let cannot_read = |source| InputError::Cache {
        cache_id: cache_id.to_owned(),
        directory: cache.directory.to_owned(),
        source,
    };
    let (dataset, inner) = id.split_first();
    if dataset == PRIVATE {
        return Err(InputError::CacheMiss { cache_id: cache_id.to_owned() });
    }
    let candidates: Vec<SafeName> = match &inner {
        Some(inner) => vec![inner.join(name), inner.clone()],
        None => vec![name.clone()],
    };
    let missing = || InputError::CacheMiss { cache_id: cache_id.to_owned() };
    let wanted = inner.as_ref().unwrap_or(name);
    if let Some(kept) = cache.kept.get(dataset) {
        // Whatever lies under its name.
        let removed = || InputError::Removed { cache_id: cache_id.to_owned() };
        let kept = kept.as_ref().ok_or_else(removed)?;
        let lacks =
            || InputError::NotInDataset { cache_id: dataset.to_owned(), name: wanted.clone() };
        let found = candidates.iter().find(|name| kept.has(name)).ok_or_else(lacks)?;
        let changed = || InputError::Changed { cache_id: cache_id.to_owned(), name: found.clone() };
        let placed = match place_file(kept.root(), found, true, root, target, cache.link) {
            Some(Ok(placed)) => placed,
            Some(Err(error)) => return Ok(Err(error)),
            None => return Err(changed()),
        };
        // A hard link is the dataset's own file: who has the worker make them trusts the jobs.
        return match cache.link == LinkMode::Hardlink
            || kept.is_right(found, &placed).map_err(cannot_read)?
        {
            true => Ok(Ok(placed)),
            false => Err(changed()),
        };
    }
    let placed = match datasets.open(cache.directory, dataset).map_err(cannot_read)? {
        Some(dataset) => candidates
            .iter()
            .find_map(|name| place_file(dataset.root(), name, true, root, target, cache.link)),
        None => {
            let theirs = open(cache.directory)?;
            [id.join(name), id]
                .iter()
                .find_map(|name| place_file(&theirs, name, false, root, target, cache.link))
        }
    };
    placed.ok_or_else(missing)
}

fn open(directory: &Path) -> Result<OwnedFd, InputError> {
    dirfd::open_root(directory)
        .map_err(|source| InputError::Open { directory: directory.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(files: &[InputFile]) -> (tempfile::TempDir, Result<Inputs, InputError>) {
        let root = tempfile::tempdir().unwrap();
        let (job, cache) = (root.path().join("job"), root.path().join("cache"));
        fs::create_dir_all(&job).unwrap();
        fs::create_dir_all(cache.join("set/data")).unwrap();
        fs::write(cache.join("set/data/a.bin"), "from the dataset").unwrap();
        fs::write(cache.join("flat"), "from the file").unwrap();
        fs::write(root.path().join("secret"), "no").unwrap();
        std::os::unix::fs::symlink(root.path().join("secret"), cache.join("link")).unwrap();
        let written = write_all(
            files,
            &OpenDirectory::of(&job),
            CachePlace { directory: &cache, link: LinkMode::Auto, kept: &KeptDatasets::new() },
        );
        (root, written)
    }

    fn blob(size: u64) -> crate::model::BlobRef {
        crate::model::BlobRef { id: uuid::Uuid::from_u128(1), size, digest: None }
    }

    #[test]
    fn a_file_that_came_by_transfer_is_looked_at_and_counts_as_input() {
        let root = tempfile::tempdir().unwrap();
        let file = InputFile { name: "d/big".into(), blob: Some(blob(3)), ..InputFile::default() };
        let name = input_names([file.name.as_str()]).unwrap().remove(0);
        create(&OpenDirectory::of(root.path()), &name).unwrap().write_all(b"abc").unwrap();
        assert!(matches!(
            create(&OpenDirectory::of(root.path()), &name),
            Err(InputError::Names(InputNamesError::Twice { .. }))
        ));
        let kept = KeptDatasets::new();
        let cache = CachePlace { directory: root.path(), link: LinkMode::Auto, kept: &kept };
        let inputs = write_all(
            &[file, InputFile::inline("small", "1")],
            &OpenDirectory::of(root.path()),
            cache,
        )
        .unwrap();
        assert_eq!(inputs.len(), 2);
        let look = FileIdentity::of(&fs::metadata(root.path().join("d/big")).unwrap());
        assert_eq!(inputs.get(Path::new("d/big")), Some(&look));
    }

    #[test]
    fn c02_a_cached_file_comes_from_the_dataset_or_is_the_file() {
        let (root, written) = write(&[
            InputFile::cached("data/a.bin", "set"),
            InputFile::cached("b.bin", "flat"),
            InputFile::cached("c.bin", "set/data/a.bin"),
            InputFile::inline("empty", ""),
        ]);
        assert_eq!(written.unwrap().len(), 4);
        let read = |name: &str| fs::read_to_string(root.path().join("job").join(name)).unwrap();
        assert_eq!(read("data/a.bin"), "from the dataset");
        assert_eq!(read("b.bin"), "from the file");
        assert_eq!(read("c.bin"), "from the dataset");
        assert_eq!(read("empty"), "", "C19");
    }

    #[test]
    fn c08_names_that_only_datasets_may_not_have_are_laid_out() {
        let names = ["a", "A", "dot.", "line\nfeed", "B/x", "b"];
        let (root, written) = write(&names.map(|name| InputFile::inline(name, name)));
        assert_eq!(written.unwrap().len(), names.len());
        for name in names {
            assert_eq!(fs::read_to_string(root.path().join("job").join(name)).unwrap(), name);
        }
    }

    #[test]
    fn what_cannot_be_laid_out_says_why() {
        let url = InputFile { url: Some("http://x".into()), ..InputFile::inline("u", "") };
        let nothing = InputFile { name: "n".into(), ..InputFile::default() };
        for (files, text) in [
            (vec![InputFile::cached("a", "gone")], "Cache miss: gone"),
            (vec![InputFile::cached("a", "set")], "Cache miss: set"),
            (vec![InputFile::cached("a", "link")], "Cache miss: link"),
            (
                vec![InputFile::cached("a", "/etc/passwd")],
                "invalid cache id: \"/etc/passwd\": it is absolute",
            ),
            (
                vec![InputFile::cached("a", "../secret")],
                "invalid cache id: \"../secret\": it holds \"..\"",
            ),
            (
                vec![InputFile::inline("ok", "1"), InputFile::inline("../x", "2")],
                "invalid file name: \"../x\"",
            ),
            (
                vec![InputFile::inline("a", "1"), InputFile::inline("./a", "2")],
                "\"a\" is given twice",
            ),
            (
                vec![InputFile::inline("a", "1"), InputFile::inline("a/b", "2")],
                "\"a\" is a folder of another input file",
            ),
            (
                vec![InputFile { blob: Some(blob(3)), ..nothing.clone() }],
                "the transfer of input file \"n\" is incomplete: 0 of 3 bytes are there",
            ),
            (vec![url], "input file \"u\" comes as a Url, which is not supported yet"),
            (vec![nothing], "input file \"n\" has no source"),
        ] {
            let (_root, written) = write(&files);
            let error = written.unwrap_err().to_string();
            assert!(error.contains(text), "{error:?} should hold {text:?}");
        }
    }

    #[test]
    fn a_full_disk_is_said_with_the_next_step() {
        let error = InputError::Write {
            name: SafeName::parse(NameUse::File, "a").unwrap(),
            directory: "/w/j".into(),
            source: io::Error::from(io::ErrorKind::StorageFull),
        };
        assert!(error.to_string().contains("free space there"), "{error}");
    }
}
