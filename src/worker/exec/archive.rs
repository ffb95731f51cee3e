//! Packs what a job made into a ZIP archive (WX04, CO04), in memory and so outside of the folder it packs.
//!
//! An archive that grows over its limit is given up at once and the sizes are said. Links and other things that are no
//! plain files are not followed and not packed. Blocking; the handler of executables calls it when a program has ended.

use std::cell::Cell;
use std::fs;
use std::io::{self, Cursor, Seek, SeekFrom, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use thiserror::Error;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use super::beneath;
use super::inputs::{Inputs, Look};
use super::name::{NameUse, SafeName};

/// What becomes of the files.
#[derive(Debug, Default)]
pub(super) struct Packed {
    /// The archive; `None` if there is nothing to pack, or too much.
    pub(super) archive: Option<Vec<u8>>,
    /// Bytes of the files, if they were too much to pack.
    pub(super) lost: Option<u64>,
    /// What the client should know.
    pub(super) notes: Vec<String>,
}

/// What to pack, and how much of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Packing<'a> {
    /// The job's directory.
    pub(super) directory: &'a Path,
    /// Files that are not packed unless the job changed them.
    pub(super) inputs: &'a Inputs,
    /// A program to pack beside them.
    pub(super) program: Option<&'a Path>,
    /// Bytes of the largest archive.
    pub(super) bytes_max: usize,
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

    let over = Rc::new(Cell::new(false));
    let sink = Bounded { held: Cursor::new(Vec::new()), bytes_max: packing.bytes_max, over: over.clone() };
    let mut writer = ZipWriter::new(sink);
    for file in &files {
        let zip_failed = |source| PackError::Zip { path: file.name.clone(), source };
        let read_failed = |source| PackError::Read { path: file.name.clone(), source };
        let options = SimpleFileOptions::default()
            .compression_method(CompressionMethod::Deflated)
            .large_file(file.bytes > u64::from(u32::MAX))
            .unix_permissions(file.mode & 0o777);
        let mut source = open_again(&packing, file).map_err(read_failed)?;
        writer.start_file(file.name.as_str(), options).map_err(zip_failed)?;
        copy_until(&mut source, &mut writer, &over).map_err(read_failed)?;
        if over.get() {
            break;
        }
    }
    let path = || packing.directory.display().to_string();
    let sink = writer.finish().map_err(|source| PackError::Zip { path: path(), source })?;
    if over.get() {
        packed.lost = Some(total);
        packed.notes.push(format!(
            "the archive is left out: the job made {total} bytes in {} files, and packed they are over the limit of {} \
             bytes: let the job leave fewer or smaller files",
            files.len(),
            packing.bytes_max
        ));
    } else {
        packed.archive = Some(sink.held.into_inner());
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
        for entry in fs::read_dir(packing.directory.join(&folder)).map_err(read_failed)? {
            let entry = entry.map_err(read_failed)?;
            let path = folder.join(entry.file_name());
            let metadata = entry.metadata().map_err(read_failed)?;
            if metadata.is_dir() {
                folders.push(path);
            } else if !metadata.is_file() {
                skipped += 1;
            } else if packing.inputs.get(&path) != Some(&Look::of(&metadata)) {
                match path.to_str() {
                    Some(name) => found.push(Found {
                        name: name.to_owned(),
                        path,
                        bytes: metadata.len(),
                        mode: metadata.permissions().mode(),
                    }),
                    None => notes.push(format!("{path:?} is not packed: its name is no UTF-8")),
                }
            }
        }
    }
    if skipped > 0 {
        notes.push(format!("{skipped} links or special files are not packed; only plain files are"));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn found_program(program: &Path) -> Result<Option<Found>, PackError> {
    let Some(name) = program.file_name().and_then(|name| name.to_str()) else { return Ok(None) };
    let metadata =
        fs::metadata(program).map_err(|source| PackError::Read { path: name.to_owned(), source })?;
    let mode = metadata.permissions().mode();
    Ok(Some(Found { path: program.to_owned(), name: name.to_owned(), bytes: metadata.len(), mode }))
}

/// Opens a file that was found. Between finding and opening, nothing may have put a link in its place.
fn open_again(packing: &Packing<'_>, file: &Found) -> io::Result<fs::File> {
    if packing.program == Some(&file.path) {
        return fs::File::open(&file.path);
    }
    // Names that a client may not give are still names that a program may have made, such as `nul` or `a\b`.
    match SafeName::parse(NameUse::File, &file.name) {
        Ok(name) => beneath::open(&beneath::open_root(packing.directory)?, &name)?
            .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "it is no plain file any more")),
        Err(_) => fs::File::open(packing.directory.join(&file.path)),
    }
}

fn copy_until(source: &mut fs::File, target: &mut impl Write, over: &Cell<bool>) -> io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    while !over.get() {
        let count = io::Read::read(source, &mut buffer)?;
        match buffer.get(..count) {
            None | Some([]) => return Ok(()),
            Some(piece) => target.write_all(piece)?,
        }
    }
    Ok(())
}

/// Takes bytes up to a limit; what would go over it is swallowed and noted. An error instead would make the ZIP writer
/// complain on the process's standard error when it is dropped.
struct Bounded {
    held: Cursor<Vec<u8>>,
    bytes_max: usize,
    over: Rc<Cell<bool>>,
}

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let end = self.held.position().saturating_add(bytes.len() as u64);
        if self.over.get() || end > self.bytes_max as u64 {
            self.over.set(true);
            return Ok(bytes.len());
        }
        self.held.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Bounded {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.held.seek(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::InputFile;
    use crate::worker::exec::inputs::write_all;
    use std::io::Read;

    fn names(archive: &[u8]) -> Vec<String> {
        let archive = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
        archive.file_names().map(|name| name.unwrap().into_owned()).collect()
    }

    fn packing<'a>(directory: &'a Path, inputs: &'a Inputs) -> Packing<'a> {
        Packing { directory, inputs, program: None, bytes_max: 100_000, files_max: 10 }
    }

    #[test]
    fn wx04_only_what_the_job_made_or_changed_is_packed() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path();
        let files = [InputFile::inline("in.txt", "1"), InputFile::inline("d/changed", "1")];
        let inputs = write_all(&files, dir, dir).unwrap();
        let none = pack(packing(dir, &inputs)).unwrap();
        assert!(none.archive.is_none() && none.notes.is_empty(), "nothing made, nothing packed");
        assert_eq!(none.lost, None);

        fs::write(dir.join("d/changed"), "22").unwrap();
        fs::create_dir(dir.join("sub")).unwrap();
        fs::write(dir.join("sub/out.bin"), [7; 3000]).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.join("link")).unwrap();
        let packed = pack(packing(dir, &inputs)).unwrap();
        let archive = packed.archive.unwrap();
        assert_eq!(names(&archive), ["d/changed", "sub/out.bin"]);
        assert!(archive.len() < 1000, "it is deflated");
        assert_eq!(packed.notes, ["1 links or special files are not packed; only plain files are"]);
        let mut read = Vec::new();
        let mut archive = zip::ZipArchive::new(Cursor::new(archive)).unwrap();
        archive.by_name("sub/out.bin").unwrap().read_to_end(&mut read).unwrap();
        assert_eq!(read, [7; 3000]);
    }

    #[test]
    fn an_archive_over_its_limit_is_given_up_and_its_sizes_are_said() {
        let root = tempfile::tempdir().unwrap();
        let noise: Vec<u8> = (0..200_000u64).map(|i| crate::core::retry::mix(i).to_le_bytes()[0]).collect();
        fs::write(root.path().join("noise"), noise).unwrap();
        let packed = pack(packing(root.path(), &Inputs::new())).unwrap();
        assert_eq!((packed.archive, packed.lost), (None, Some(200_000)));
        assert!(packed.notes[0].contains("made 200000 bytes in 1 files"), "{:?}", packed.notes);
        assert!(packed.notes[0].contains("limit of 100000 bytes"), "{:?}", packed.notes);

        for number in 0..11 {
            fs::write(root.path().join(format!("f{number}")), "").unwrap();
        }
        let packed = pack(packing(root.path(), &Inputs::new())).unwrap();
        assert_eq!((packed.archive, packed.lost), (None, Some(200_000)));
        assert!(packed.notes[0].contains("made 12 files; at most 10"), "{:?}", packed.notes);
    }

    #[test]
    fn the_program_is_packed_when_asked() {
        let root = tempfile::tempdir().unwrap();
        let program = root.path().join("prog.exe");
        fs::write(&program, "#!/bin/sh\n").unwrap();
        let job = root.path().join("job");
        fs::create_dir(&job).unwrap();
        let inputs = Inputs::new();
        let packed = pack(Packing { program: Some(&program), ..packing(&job, &inputs) }).unwrap();
        assert_eq!(names(&packed.archive.unwrap()), ["prog.exe"]);
    }
}
