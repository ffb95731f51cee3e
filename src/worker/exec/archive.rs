//! Packs a job's output files into a ZIP archive (WX04, CO04), outside the folder it packs: in
//! memory while small enough for the result, otherwise in a file beside the folder.
//!
//! Where its client takes large parts by transfer, files are stored: deflating them would take a
//! second for each 30 MB, and transfers compress chunks by themselves where it pays. Otherwise they
//! are deflated, so that as much as possible fits a frame.
//!
//! An archive that exceeds its limit is abandoned at once, and the error states both sizes. Links
//! and special files are neither followed nor packed. Blocking; the executable handler calls it
//! when a program has ended.

use std::cell::Cell;
use std::ffi::OsStr;
use std::fs;
use std::io::{self, BufWriter, Cursor, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, FileType, statat};
use rustix::io::Errno;
use thiserror::Error;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::inputs::{Inputs, next_step};
use crate::fs::dirfd;
use crate::transfer::throttle::{AT_WORKER, Throttle};
use crate::worker::directory::{OpenDirectory, create_output};
use crate::worker::handler::Content;
use crate::worker::identity::FileIdentity;

/// Files from this size on are written in the ZIP64 form. Packing may make a file larger by a
/// little, so it is a little less than what the classic form can count.
const ZIP64_BYTES_MIN: u64 = 4_000_000_000;

/// How files are written into an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// As they are.
    Store,
    Deflate,
}

impl From<Method> for CompressionMethod {
    fn from(method: Method) -> Self {
        match method {
            Method::Store => CompressionMethod::Stored,
            Method::Deflate => CompressionMethod::Deflated,
        }
    }
}

/// What becomes of the files.
#[derive(Debug, Default)]
pub(super) struct Packed {
    /// The archive; `None` if there is nothing to pack, or too much.
    pub(super) archive: Option<Content>,
    /// Bytes of the files, if they were too much to pack.
    pub(super) lost: Option<u64>,
    /// What the client should know.
    pub(super) notes: Vec<String>,
}

/// What to pack, and how much of it.
#[derive(Clone, Copy)]
pub(super) struct Packing<'a> {
    /// The job's directory.
    pub(super) directory: &'a OpenDirectory,
    /// Files that are not packed unless the job changed them.
    pub(super) inputs: &'a Inputs,
    /// How they are written.
    pub(super) method: Method,
    /// Hears how far it is, once in a while: bytes of files, and bytes in all.
    pub(super) said: &'a dyn Fn(u64, u64),
    /// A program to pack beside them.
    pub(super) program: Option<&'a Path>,
    /// Where the archive goes if it is over `memory_bytes_max`.
    pub(super) file: &'a Path,
    /// Bytes of the largest archive that is kept in memory.
    pub(super) memory_bytes_max: usize,
    /// Bytes of the largest archive.
    pub(super) bytes_max: u64,
    /// The most files.
    pub(super) files_max: usize,
}

/// Why an archive could not be made.
#[derive(Debug, Error)]
pub(super) enum PackError {
    #[error("cannot read {path} for the archive: {source}")]
    Read { path: String, source: io::Error },
    #[error("cannot pack {path}: {source}")]
    Zip { path: String, source: zip::result::ZipError },
    #[error("cannot write the archive {}: {source}, after {bytes} bytes{}", path.display(), next_step(source))]
    Write { path: PathBuf, bytes: u64, source: io::Error },
}

struct Found {
    path: PathBuf,
    name: String,
    bytes: u64,
    mode: u32,
}

/// Packs the files that were not there when the job started, or have changed since.
pub(super) fn pack(packing: Packing<'_>) -> Result<Packed, PackError> {
    let mut packed = Packed::default();
    let mut files = find(&packing, &mut packed.notes)?;
    if let Some(program) = packing.program {
        files.extend(found_program(program)?);
    }
    if files.is_empty() {
        return Ok(packed);
    }
    let total: u64 = files.iter().map(|file| file.bytes).sum();
    if files.len() > packing.files_max {
        packed.lost = Some(total);
        packed.notes.push(format!(
            "the archive is left out: the job made {} files; at most {} are packed",
            files.len(),
            packing.files_max
        ));
        return Ok(packed);
    }

    let stop = Rc::new(Cell::new(None));
    let sink = Bounded {
        held: Held::Memory(Cursor::new(Vec::new())),
        end: 0,
        file: packing.file.to_owned(),
        memory_bytes_max: packing.memory_bytes_max as u64,
        bytes_max: packing.bytes_max,
        stop: stop.clone(),
    };
    let mut writer = ZipWriter::new(sink);
    let mut far = Far {
        said: packing.said,
        throttle: Throttle::after(AT_WORKER, Instant::now()),
        done: 0,
        total,
    };
    for file in &files {
        let zip_failed = |source| PackError::Zip { path: file.name.clone(), source };
        let read_failed = |source| PackError::Read { path: file.name.clone(), source };
        let options = SimpleFileOptions::default()
            .compression_method(packing.method.into())
            .large_file(file.bytes >= ZIP64_BYTES_MIN)
            .unix_permissions(file.mode & 0o777);
        let mut source = open_again(&packing, file).map_err(read_failed)?;
        writer.start_file(file.name.as_str(), options).map_err(zip_failed)?;
        if !copy_until(&mut source, &mut writer, &stop, &mut far).map_err(read_failed)? {
            break;
        }
    }
    let path = || packing.directory.path().display().to_string();
    let mut sink = writer.finish().map_err(|source| PackError::Zip { path: path(), source })?;
    sink.flush().map_err(|source| sink.failed(source))?;
    match stop.take() {
        None => packed.archive = Some(sink.content()),
        Some(Stop::Failed(source)) => return Err(sink.failed(source)),
        Some(Stop::Over) => {
            sink.give_up();
            packed.lost = Some(total);
            packed.notes.push(format!(
            "the archive is left out: the job made {total} bytes in {} files, and packed they are over the limit of {} \
             bytes: let the job leave fewer or smaller files",
            files.len(),
            packing.bytes_max
        ));
        }
    }
    Ok(packed)
}

/// The files to pack, sorted by name.
fn find(packing: &Packing<'_>, notes: &mut Vec<String>) -> Result<Vec<Found>, PackError> {
    let mut found = Vec::new();
    let mut skipped = 0u64;
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let read_failed = |source| PackError::Read { path: folder.display().to_string(), source };
        // What was a folder when it was found, and is none now, was put there since.
        let Some(open) =
            dirfd::open_at(packing.directory.handle(), &folder).map_err(read_failed)?
        else {
            skipped += 1;
            continue;
        };
        for entry in Dir::read_from(&open).map_err(|error| read_failed(error.into()))? {
            let entry = entry.map_err(|error| read_failed(error.into()))?;
            let file_name = OsStr::from_bytes(entry.file_name().to_bytes());
            if file_name == "." || file_name == ".." {
                continue;
            }
            let path = folder.join(file_name);
            let stat = match statat(&open, file_name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => stat,
                // Somebody whom the program left behind has just removed it.
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(read_failed(error.into())),
            };
            match FileType::from_raw_mode(stat.st_mode) {
                FileType::Directory => folders.push(path),
                FileType::RegularFile => {
                    if packing.inputs.get(&path) == Some(&FileIdentity::of_stat(&stat)) {
                        continue;
                    }
                    let bytes = u64::try_from(stat.st_size).unwrap_or_default();
                    match path.to_str() {
                        Some(name) => {
                            found.push(Found {
                                name: name.to_owned(),
                                path,
                                bytes,
                                mode: stat.st_mode,
                            });
                        }
                        None => {
                            notes.push(format!("{path:?} is not packed: its name is not UTF-8"))
                        }
                    }
                }
                FileType::Symlink
                | FileType::Fifo
                | FileType::Socket
                | FileType::CharacterDevice
                | FileType::BlockDevice
                | FileType::Unknown => skipped += 1,
            }
        }
    }
    if skipped > 0 {
        notes
            .push(format!("{skipped} links or special files are not packed; only plain files are"));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn found_program(program: &Path) -> Result<Option<Found>, PackError> {
    let Some(name) = program.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let metadata = fs::metadata(program)
        .map_err(|source| PackError::Read { path: name.to_owned(), source })?;
    let mode = metadata.permissions().mode();
    Ok(Some(Found { path: program.to_owned(), name: name.to_owned(), bytes: metadata.len(), mode }))
}

/// Opens a file that was found. Between finding and opening, nothing may have put a link in its
/// place.
fn open_again(packing: &Packing<'_>, file: &Found) -> io::Result<fs::File> {
    if packing.program == Some(&file.path) {
        return fs::File::open(&file.path);
    }
    // Names that a client may not give are still names that a program may have made, such as `nul`
    // or `a\b`.
    let opened = dirfd::open_at(packing.directory.handle(), &file.path)?;
    let is_plain = |file: &fs::File| file.metadata().is_ok_and(|found| found.is_file());
    opened
        .filter(is_plain)
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it is not a plain file any more"))
}

/// How far packing is.
struct Far<'a> {
    said: &'a dyn Fn(u64, u64),
    throttle: Throttle<Instant>,
    done: u64,
    total: u64,
}

impl Far<'_> {
    fn went(&mut self, bytes: u64) {
        self.done = self.done.saturating_add(bytes);
        if self.throttle.passes(Instant::now(), false) {
            (self.said)(self.done, self.total.max(self.done));
        }
    }
}

/// Gives whether to go on.
fn copy_until(
    source: &mut fs::File,
    target: &mut impl Write,
    stop: &Cell<Option<Stop>>,
    far: &mut Far<'_>,
) -> io::Result<bool> {
    let mut buffer = vec![0; 64 * 1024];
    loop {
        let stopped = stop.take();
        if stopped.is_some() {
            stop.set(stopped);
            return Ok(false);
        }
        let count = io::Read::read(source, &mut buffer)?;
        match buffer.get(..count) {
            None | Some([]) => return Ok(true),
            Some(piece) => {
                target.write_all(piece)?;
                far.went(piece.len() as u64);
            }
        }
    }
}

/// Why an archive is not written on.
#[derive(Debug)]
enum Stop {
    /// It is over its limit.
    Over,
    /// The file cannot be written.
    Failed(io::Error),
}

#[derive(Debug)]
enum Held {
    Memory(Cursor<Vec<u8>>),
    File(BufWriter<fs::File>),
    Nothing,
}

/// Takes bytes up to a limit; what would go over it, or cannot be written, is swallowed and noted.
/// An error instead would make the ZIP writer complain on the process's standard error when it is
/// dropped.
struct Bounded {
    held: Held,
    /// Where the next byte goes.
    end: u64,
    file: PathBuf,
    memory_bytes_max: u64,
    bytes_max: u64,
    stop: Rc<Cell<Option<Stop>>>,
}

impl Bounded {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        let end = self.end.saturating_add(bytes.len() as u64);
        if let Held::Memory(memory) = &mut self.held
            && end > self.memory_bytes_max
        {
            let kept = std::mem::take(memory);
            let file = BufWriter::new(create_output(&self.file)?);
            self.held = Held::File(file);
            self.put_at_start(&kept)?;
        }
        match &mut self.held {
            Held::Memory(memory) => memory.write_all(bytes)?,
            Held::File(file) => file.write_all(bytes)?,
            Held::Nothing => {}
        }
        self.end = end;
        Ok(())
    }

    /// Moves what was in memory to the file.
    fn put_at_start(&mut self, kept: &Cursor<Vec<u8>>) -> io::Result<()> {
        if let Held::File(file) = &mut self.held {
            file.write_all(kept.get_ref())?;
            file.seek(SeekFrom::Start(kept.position()))?;
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let stop = self.stop.take();
        let stopped = stop.is_some();
        self.stop.set(stop);
        stopped
    }

    fn stop(&mut self, why: Stop) {
        self.stop.set(Some(why));
        self.give_up();
    }

    /// Leaves nothing behind.
    fn give_up(&mut self) {
        if let Held::File(file) = std::mem::replace(&mut self.held, Held::Nothing) {
            drop(file.into_parts());
            // It goes with its directory at the latest.
            fs::remove_file(&self.file).ok();
        }
    }

    fn failed(&mut self, source: io::Error) -> PackError {
        self.give_up();
        PackError::Write { path: self.file.clone(), bytes: self.end, source }
    }

    fn content(self) -> Content {
        match self.held {
            Held::Memory(memory) => Content::Memory(memory.into_inner().into()),
            Held::File(_) | Held::Nothing => Content::File(self.file),
        }
    }
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_stopped() {
        } else if self.end.saturating_add(bytes.len() as u64) > self.bytes_max {
            self.stop(Stop::Over);
        } else if let Err(error) = self.put(bytes) {
            self.stop(Stop::Failed(error));
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.held {
            Held::File(file) => file.flush(),
            Held::Memory(_) | Held::Nothing => Ok(()),
        }
    }
}

impl Seek for Bounded {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let sought = match &mut self.held {
            Held::Memory(memory) => memory.seek(to),
            Held::File(file) => file.seek(to),
            Held::Nothing => Ok(self.end),
        };
        match sought {
            Ok(end) => self.end = end,
            Err(error) => self.stop(Stop::Failed(error)),
        }
        Ok(self.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::InputFile;
    use crate::noise::noise;
    use crate::worker::cache::{KeptDatasets, LinkMode};
    use crate::worker::exec::inputs::{CachePlace, write_all};
    use std::io::Read;

    fn names(archive: &[u8]) -> Vec<String> {
        let archive = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
        archive.file_names().map(|name| name.unwrap().into_owned()).collect()
    }

    fn bytes(packed: Packed) -> Vec<u8> {
        match packed.archive.unwrap() {
            Content::Memory(bytes) => bytes.to_vec(),
            Content::File(path) => fs::read(path).unwrap(),
        }
    }

    fn packing<'a>(directory: &'a OpenDirectory, inputs: &'a Inputs) -> Packing<'a> {
        let file = Path::new("/nonexistent/archive");
        let (memory_bytes_max, bytes_max) = (100_000, 100_000);
        Packing {
            directory,
            inputs,
            method: Method::Deflate,
            said: &|_, _| {},
            program: None,
            file,
            memory_bytes_max,
            bytes_max,
            files_max: 10,
        }
    }

    #[test]
    fn wx04_only_what_the_job_made_or_changed_is_packed() {
        let root = tempfile::tempdir().unwrap();
        let (dir, open) = (root.path(), OpenDirectory::of(root.path()));
        let files = [InputFile::inline("in.txt", "1"), InputFile::inline("d/changed", "1")];
        let inputs = write_all(
            &files,
            &open,
            CachePlace { directory: dir, link: LinkMode::Auto, kept: &KeptDatasets::new() },
        )
        .unwrap();
        let none = pack(packing(&open, &inputs)).unwrap();
        assert!(none.archive.is_none() && none.notes.is_empty(), "nothing made, nothing packed");
        assert_eq!(none.lost, None);

        fs::write(dir.join("d/changed"), "22").unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("sub/out.bin"), [7; 3000]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
        let packed = pack(packing(&open, &inputs)).unwrap();
        let notes = packed.notes.clone();
        let archive = bytes(packed);
        assert_eq!(names(&archive), ["d/changed", "sub/out.bin"]);
        assert!(archive.len() < 1000, "it is deflated");
        assert_eq!(notes, ["1 links or special files are not packed; only plain files are"]);
        let mut read = Vec::new();
        let mut archive = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
        archive.by_name("sub/out.bin").unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, [7; 3000]);
    }

    #[test]
    fn co04_files_are_stored_where_parts_are_taken_and_deflated_for_a_single_frame() {
        let root = tempfile::tempdir().unwrap();
        let open = OpenDirectory::of(root.path());
        fs::write(root.path().join("zeros"), [0; 50_000]).unwrap();
        fs::write(root.path().join("empty"), "").unwrap();
        for (method, expected) in [
            (Method::Store, CompressionMethod::Stored),
            (Method::Deflate, CompressionMethod::Deflated),
        ] {
            let packed = bytes(pack(Packing { method, ..packing(&open, &Inputs::new()) }).unwrap());
            assert_eq!(packed.len() > 50_000, method == Method::Store);
            let mut archive = zip::ZipArchive::new(Cursor::new(packed)).unwrap();
            for (name, content) in [("empty", &[][..]), ("zeros", &[0; 50_000])] {
                let mut entry = archive.by_name(name).unwrap();
                assert_eq!(entry.compression(), expected, "{name}");
                let mut read = Vec::new();
                entry.read_to_end(&mut read).unwrap();
                assert!(read == content, "{name}");
            }
        }
    }

    #[test]
    fn names_that_no_client_may_give_are_packed_and_a_link_in_their_place_is_not_followed() {
        let (root, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let open = OpenDirectory::of(root.path());
        fs::write(root.path().join("a\\b"), "made").unwrap();
        fs::write(outside.path().join("secret"), "s").unwrap();
        let inputs = Inputs::new();
        assert_eq!(names(&bytes(pack(packing(&open, &inputs)).unwrap())), ["a\\b"]);
        let found =
            |name: &str| Found { path: name.into(), name: name.into(), bytes: 4, mode: 0o600 };
        assert!(open_again(&packing(&open, &inputs), &found("a\\b")).is_ok());
        // What a program left running may do between the finding and the opening.
        fs::remove_file(root.path().join("a\\b")).unwrap();
        std::os::unix::fs::symlink(outside.path().join("secret"), root.path().join("a\\b"))
            .unwrap();
        std::os::unix::fs::symlink(outside.path(), root.path().join("nul")).unwrap();
        for name in ["a\\b", "nul/secret", "../secret", "/etc/passwd"] {
            assert!(open_again(&packing(&open, &inputs), &found(name)).is_err(), "{name}");
        }
        // The directory itself is the one that was opened, whatever its path leads to now.
        let (real, moved) = (root.path().to_owned(), outside.path().join("moved"));
        fs::rename(&real, &moved).unwrap();
        std::os::unix::fs::symlink(outside.path(), &real).unwrap();
        fs::write(moved.join("own"), "1").unwrap();
        assert_eq!(names(&bytes(pack(packing(&open, &inputs)).unwrap())), ["own"]);
        fs::remove_file(&real).unwrap();
    }

    #[test]
    fn an_archive_over_its_limit_is_given_up_and_its_sizes_are_said() {
        let root = tempfile::tempdir().unwrap();
        let open = OpenDirectory::of(root.path());
        fs::write(root.path().join("noise"), noise(200_000, 1)).unwrap();
        let packed = pack(packing(&open, &Inputs::new())).unwrap();
        assert_eq!((packed.archive, packed.lost), (None, Some(200_000)));
        assert!(packed.notes[0].contains("made 200000 bytes in 1 files"), "{:?}", packed.notes);
        assert!(packed.notes[0].contains("limit of 100000 bytes"), "{:?}", packed.notes);

        for number in 0..11 {
            fs::write(root.path().join(format!("f{number}")), "").unwrap();
        }
        let packed = pack(packing(&open, &Inputs::new())).unwrap();
        assert_eq!((packed.archive, packed.lost), (None, Some(200_000)));
        assert!(packed.notes[0].contains("made 12 files; at most 10"), "{:?}", packed.notes);
    }

    #[test]
    fn an_archive_too_large_for_memory_goes_to_a_file_beside_the_folder() {
        let root = tempfile::tempdir().unwrap();
        let (dir, file) = (root.path().join("job"), root.path().join("job.out/archive"));
        fs::create_dir(&dir).unwrap();
        let open = OpenDirectory::of(&dir);
        fs::write(dir.join("a"), noise(60_000, 1)).unwrap();
        fs::write(dir.join("b"), noise(60_000, 1)).unwrap();
        let inputs = Inputs::new();
        let large = Packing {
            file: &file,
            memory_bytes_max: 70_000,
            bytes_max: 200_000,
            ..packing(&open, &inputs)
        };
        let packed = pack(large).unwrap();
        assert_eq!(packed.archive, Some(Content::File(file.clone())));
        let mut archive = zip::ZipArchive::new(fs::File::open(&file).unwrap()).unwrap();
        for name in ["a", "b"] {
            let mut read = Vec::new();
            archive.by_name(name).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == noise(60_000, 1), "{name}");
        }
        let over = pack(Packing { bytes_max: 100_000, ..large }).unwrap();
        assert_eq!((over.archive, over.lost, file.exists()), (None, Some(120_000), false));
        fs::write(root.path().join("no-folder"), "").unwrap();
        let bad = Packing { file: &root.path().join("no-folder/archive"), ..large };
        let error = pack(bad).unwrap_err().to_string();
        assert!(
            error.contains("cannot write the archive") && error.contains("no-folder/archive"),
            "{error}"
        );
    }

    #[test]
    fn a_full_disk_is_said_with_the_next_step() {
        let root = tempfile::tempdir().unwrap();
        let (dir, file) = (root.path().join("job"), root.path().join("archive"));
        fs::create_dir(&dir).unwrap();
        let open = OpenDirectory::of(&dir);
        fs::write(dir.join("a"), noise(2_000_000, 1)).unwrap();
        // A link, so that what is removed is never the device.
        std::os::unix::fs::symlink("/dev/full", &file).unwrap();
        let inputs = Inputs::new();
        let full = Packing { file: &file, bytes_max: 3_000_000, ..packing(&open, &inputs) };
        let text = pack(full).unwrap_err().to_string();
        assert!(text.contains("No space left") && text.contains("free space there"), "{text}");
        assert!(fs::symlink_metadata(&file).is_err(), "nothing stays");

        let error = PackError::Write {
            path: "/w/j.out/archive".into(),
            bytes: 7,
            source: io::Error::from(io::ErrorKind::StorageFull),
        };
        let text = error.to_string();
        assert!(
            text.contains("after 7 bytes: free space there, or give the worker another --work-dir"),
            "{text}"
        );
    }

    #[test]
    fn the_program_is_packed_when_asked() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("prog.exe");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        let job = root.path().join("job");
        fs::create_dir(&job).unwrap();
        let inputs = Inputs::new();
        let packed =
            pack(Packing { program: Some(&program), ..packing(&OpenDirectory::of(&job), &inputs) })
                .unwrap();
        assert_eq!(names(&bytes(packed)), ["prog.exe"]);
    }
}
