//! A dataset being received: files of full size, into which pieces are written at their positions,
//! and the record of which pieces are present and correct.
//!
//! Blocking. Existing data is used first: pieces of an interrupted download, after their digests
//! are checked, and files and pieces of other datasets in this cache, which are linked or copied. A
//! piece counts only when its BLAKE3 matches.

use std::collections::{HashMap, HashSet};
use std::fs::{File, Permissions};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use chunking::dataset::Piece;
use chunking::digest::BlobHasher;
use chunking::{Bitmap, DigestKind, Ranges};
use rustix::fs::{
    AtFlags, Mode, OFlags, SeekFrom, copy_file_range, linkat, openat, seek, unlinkat,
};
use rustix::io::Errno;
use uuid::Uuid;

use super::contents::{Contents, Place};
use super::disk::{Disk, OpenDataset, open_directory};
use super::seal::{Seal, SealState};
use crate::core::names::SafeName;
use crate::fs::dirfd::{make_folder, open, open_folder};
use crate::worker::limits::STAGED_FILES_OPEN_MAX;

/// The mode of a dataset's files: nobody writes them by accident.
const READ_ONLY: u32 = 0o444;

/// A dataset of this cache that others may take files and pieces from.
#[derive(Clone, Debug)]
pub(super) struct Donor {
    pub(super) version: Uuid,
    pub(super) contents: Arc<Contents>,
    /// What the files looked like when they were checked.
    pub(super) seals: Arc<Vec<Seal>>,
}

/// A dataset that comes.
#[derive(Debug)]
pub(in crate::worker) struct Staged {
    version: Uuid,
    contents: Arc<Contents>,
    root: OwnedFd,
    by_piece: HashMap<Piece, u32>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Pieces that are there and right.
    here: Bitmap,
    /// Bytes of the others.
    lacking: u64,
    /// Files that are open.
    files: HashMap<u32, Arc<File>>,
    /// Files that are those of another dataset, and are not written.
    linked: HashSet<u32>,
}

impl Staged {
    /// Makes the files of a dataset ready, and finds what is here of it.
    pub(super) fn prepare(
        disk: &Disk,
        version: Uuid,
        contents: Arc<Contents>,
        donors: &[Donor],
    ) -> io::Result<Self> {
        let path = disk.begin(version, &contents)?;
        let count = u32::try_from(contents.manifest().pieces().len()).unwrap_or(u32::MAX);
        let all = contents.manifest().pieces().iter().map(|piece| u64::from(piece.len)).sum();
        let state = State {
            here: Bitmap::new(count),
            lacking: all,
            files: HashMap::new(),
            linked: HashSet::new(),
        };
        let by_piece =
            (0..).zip(contents.manifest().pieces()).map(|(place, piece)| (*piece, place)).collect();
        let root = open_directory(&path)?;
        let staged = Staged { version, contents, root, by_piece, state: Mutex::new(state) };
        let mut found = Vec::new();
        for file in 0..u32::try_from(staged.contents.files().len()).unwrap_or(u32::MAX) {
            if !staged.link_from(disk, donors, file)? && staged.make_file(file)? {
                found.push(file);
            }
        }
        for file in found {
            staged.look_at(disk, file)?;
        }
        staged.copy_from(disk, donors)?;
        Ok(staged)
    }

    pub(super) fn contents(&self) -> &Arc<Contents> {
        &self.contents
    }

    /// The place of a piece in the dataset's list.
    pub(super) fn find(&self, piece: &Piece) -> Option<u32> {
        self.by_piece.get(piece).copied()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The pieces that are not here, the first ones if there are many runs of them, and the bytes
    /// of all.
    pub(super) fn lacking(&self) -> (Ranges, u64) {
        let state = self.lock();
        (state.here.missing(), state.lacking)
    }

    pub(super) fn is_whole(&self) -> bool {
        self.lock().here.is_complete()
    }

    pub(super) fn lacks(&self, piece: u32) -> bool {
        !self.lock().here.contains(piece)
    }

    /// Makes a file, or finds it from an earlier try: then there may be something in it.
    fn make_file(&self, file: u32) -> io::Result<bool> {
        let Some((name, entry)) = self.contents.file(file) else { return Ok(false) };
        let folder = make_folder(&self.root, name, Mode::from_raw_mode(0o755))?;
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        if let Some(found) = open(&self.root, name)? {
            let look = found.metadata()?;
            if look.nlink() == 1 && look.len() == entry.size {
                found.set_permissions(Permissions::from_mode(0o600))?;
                return Ok(entry.size > 0);
            }
            // A job or another dataset has this file too: it is not written.
            unlinkat(&folder, name.file(), AtFlags::empty())?;
        }
        let made: File = openat(
            &folder,
            name.file(),
            flags | OFlags::CREATE | OFlags::EXCL,
            Mode::RUSR | Mode::WUSR,
        )?
        .into();
        made.set_len(entry.size)?;
        Ok(false)
    }

    /// Takes a whole file from another dataset, if one has it.
    fn link_from(&self, disk: &Disk, donors: &[Donor], file: u32) -> io::Result<bool> {
        let Some((name, entry)) = self.contents.file(file) else { return Ok(false) };
        for donor in donors {
            let Some(same) = self.contents.same_file(entry, &donor.contents) else { continue };
            let Ok(theirs) = disk.open_version(donor.version) else { continue };
            let Some(_unchanged) = donor.open(&theirs, same)? else { continue };
            // It may be on its way out.
            let Ok(from) = open_folder(&theirs, name) else { continue };
            let to = make_folder(&self.root, name, Mode::from_raw_mode(0o755))?;
            let _absent = unlinkat(&to, name.file(), AtFlags::empty());
            if linkat(&from, name.file(), &to, name.file(), AtFlags::empty()).is_err() {
                continue;
            }
            let pieces: Vec<u32> = entry.pieces.clone();
            let mut state = self.lock();
            state.linked.insert(file);
            for piece in pieces {
                // A piece counts only if all of its places are served: others are, when it is
                // spread.
                if self.contents.first_place(piece).is_some_and(|place| place.file == file)
                    && self.contents.more_places(piece).iter().all(|place| place.file == file)
                {
                    self.note(&mut state, piece);
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn note(&self, state: &mut State, piece: u32) {
        if state.here.insert(piece)
            && let Some(known) = self.contents.piece(piece)
        {
            state.lacking = state.lacking.saturating_sub(known.len.into());
        }
    }

    /// Looks for right pieces in a file of an earlier try.
    fn look_at(&self, disk: &Disk, file: u32) -> io::Result<()> {
        let Some((_, entry)) = self.contents.file(file) else { return Ok(()) };
        let handle = self.handle(file)?;
        let mut buffer = Vec::new();
        let mut data = 0..0u64;
        for (offset, place, piece) in self.contents.manifest().layout(entry) {
            if disk.is_closed() {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let end = offset + u64::from(piece.len);
            // Where nothing was written nothing need be read.
            if offset >= data.end {
                let start = match seek(&*handle, SeekFrom::Data(offset)) {
                    Ok(start) => start,
                    Err(Errno::NXIO) => return Ok(()),
                    Err(error) => return Err(error.into()),
                };
                data = start..seek(&*handle, SeekFrom::Hole(start))?.max(start + 1);
            }
            if data.start >= end || !self.lacks(place) {
                continue;
            }
            if read_piece(&handle, offset, piece, &mut buffer)? {
                self.spread(place, Some(Place { file, offset }), &buffer)?;
            }
        }
        Ok(())
    }

    /// Copies pieces that other datasets have.
    fn copy_from(&self, disk: &Disk, donors: &[Donor]) -> io::Result<()> {
        let mut wanted: HashMap<Piece, u32> = HashMap::new();
        for (place, piece) in (0..).zip(self.contents.manifest().pieces()) {
            if self.lacks(place) {
                wanted.insert(*piece, place);
            }
        }
        for donor in donors {
            if wanted.is_empty() {
                return Ok(());
            }
            let Ok(theirs) = disk.open_version(donor.version) else { continue };
            for (file, (_, entry)) in (0..).zip(donor.contents.files()) {
                let mut source = None;
                for (offset, _, piece) in donor.contents.manifest().layout(entry) {
                    let Some(place) = wanted.get(&piece).copied() else { continue };
                    if source.is_none() {
                        source = donor.open(&theirs, file)?;
                    }
                    let Some(source) = &source else { break };
                    self.copy(source, offset, place, piece)?;
                    wanted.remove(&piece);
                }
            }
        }
        // What a linked file has is here as well.
        let linked: Vec<u32> = self.lock().linked.iter().copied().collect();
        for file in linked {
            let Some((_, entry)) = self.contents.file(file) else { continue };
            let source = self.handle(file)?;
            for (offset, place, piece) in self.contents.manifest().layout(entry) {
                if self.lacks(place) {
                    self.copy(&source, offset, place, piece)?;
                }
            }
        }
        Ok(())
    }

    /// Copies a piece, which was checked where it lies, to all its places.
    fn copy(&self, source: &File, offset: u64, place: u32, piece: Piece) -> io::Result<()> {
        let first = self.contents.first_place(place);
        for to in first.iter().chain(self.contents.more_places(place)) {
            if !self.lock().linked.contains(&to.file) {
                copy_range(source, offset, &*self.handle(to.file)?, to.offset, piece.len.into())?;
            }
        }
        self.note(&mut self.lock(), place);
        Ok(())
    }

    /// A piece is right, and stands at one of its places: it is written to the others, and counts.
    pub(super) fn spread(&self, piece: u32, stands: Option<Place>, bytes: &[u8]) -> io::Result<()> {
        let first = self.contents.first_place(piece);
        for to in first.iter().chain(self.contents.more_places(piece)) {
            if Some(*to) != stands && !self.lock().linked.contains(&to.file) {
                self.handle(to.file)?.write_all_at(bytes, to.offset)?;
            }
        }
        self.note(&mut self.lock(), piece);
        Ok(())
    }

    /// A file, open for reading and writing.
    pub(super) fn handle(&self, file: u32) -> io::Result<Arc<File>> {
        let mut state = self.lock();
        if let Some(open) = state.files.get(&file) {
            return Ok(open.clone());
        }
        let Some((name, _)) = self.contents.file(file) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        let folder = open_folder(&self.root, name)?;
        let how = if state.linked.contains(&file) { OFlags::RDONLY } else { OFlags::RDWR };
        let opened =
            openat(&folder, name.file(), how | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let opened = Arc::new(File::from(opened));
        if state.files.len() >= STAGED_FILES_OPEN_MAX {
            state.files.clear();
        }
        state.files.insert(file, opened.clone());
        Ok(opened)
    }

    /// All is here: closes the files to writers, and shows them under the CacheId. Gives what they
    /// look like, and the version that was there.
    pub(super) fn show(
        &self,
        disk: &Disk,
        cache: &super::CacheId,
    ) -> io::Result<(Vec<Seal>, Option<Uuid>)> {
        // Before anything is moved: what is somebody else's is not touched.
        disk.before(cache)?;
        self.lock().files.clear();
        let mut seals = Vec::with_capacity(self.contents.files().len());
        for (name, _) in self.contents.files() {
            let file = open(&self.root, name)?.ok_or(io::ErrorKind::NotFound)?;
            file.set_permissions(Permissions::from_mode(READ_ONLY))?;
            seals.push(Seal::of(&file.metadata()?));
        }
        let before = disk.show(cache, self.version)?;
        Ok((seals, before))
    }
}

impl Donor {
    /// A file of the dataset, if it is as it was when it was checked. One that may be another is
    /// read.
    fn open(&self, root: &OwnedFd, file: u32) -> io::Result<Option<File>> {
        let Some((name, entry)) = self.contents.file(file) else { return Ok(None) };
        let Some(found) = open(root, name)? else { return Ok(None) };
        let is_right =
            match self.seals.get(file as usize).map(|seal| seal.on(&found.metadata().ok())) {
                Some(SealState::Whole) => true,
                Some(SealState::Doubtful) => {
                    let mut buffer = Vec::new();
                    let mut pieces = self.contents.manifest().layout(entry);
                    pieces.try_fold(true, |right, (offset, _, piece)| {
                        Ok::<_, io::Error>(right && read_piece(&found, offset, piece, &mut buffer)?)
                    })?
                }
                Some(SealState::Broken) | None => false,
            };
        Ok(is_right.then_some(found))
    }
}

fn read_piece(file: &File, offset: u64, piece: Piece, buffer: &mut Vec<u8>) -> io::Result<bool> {
    buffer.resize(piece.len as usize, 0);
    match file.read_exact_at(buffer, offset) {
        Ok(()) => Ok(piece.is(buffer)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// Copies bytes from file to file, in the kernel where it can.
fn copy_range(from: &File, at: u64, to: &File, to_at: u64, len: u64) -> io::Result<()> {
    let (mut source, mut target, mut left) = (at, to_at, len);
    while left > 0 {
        let step = usize::try_from(left).unwrap_or(usize::MAX);
        match copy_file_range(from, Some(&mut source), to, Some(&mut target), step) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(done) => left -= done as u64,
            Err(Errno::XDEV | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                let mut buffer = vec![0; step];
                from.read_exact_at(&mut buffer, source)?;
                return to.write_all_at(&buffer, target);
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Checks all files of a dataset, read once: each piece against its BLAKE3, and each whole file
/// against its SHA-256. Gives what the files look like, or which one is damaged and how.
pub(super) fn check(
    disk: &Disk,
    version: Uuid,
    contents: &Contents,
) -> Result<Vec<Seal>, CheckError> {
    let root = disk.open_version(version)?;
    let mut seals = Vec::with_capacity(contents.files().len());
    let mut buffer = Vec::new();
    for (name, entry) in contents.files() {
        let damaged = |how: &str| CheckError::Damaged(format!("\"{name}\" {how}"));
        let Some(file) = open(&root, name)? else { return Err(damaged("is not there")) };
        let found = file.metadata()?;
        if found.len() != entry.size {
            return Err(damaged(&format!("has {} bytes instead of {}", found.len(), entry.size)));
        }
        let mut whole = BlobHasher::new(DigestKind::Sha256);
        for (offset, _, piece) in contents.manifest().layout(entry) {
            if disk.is_closed() {
                return Err(CheckError::Io(io::ErrorKind::Interrupted.into()));
            }
            if !read_piece(&file, offset, piece, &mut buffer)? {
                return Err(damaged(&format!("has wrong bytes at offset {offset}")));
            }
            whole.update(&buffer, 0);
        }
        if whole.finish().bytes != entry.sha256 {
            return Err(CheckError::Untrue(format!(
                "all pieces of \"{name}\" are right, but the file does not match its SHA-256: put \
                 the dataset again"
            )));
        }
        seals.push(Seal::of(&found));
    }
    Ok(seals)
}

/// Why a dataset is not there for jobs.
#[derive(Debug)]
pub(in crate::worker) enum CheckError {
    /// A file is not what it should be.
    Damaged(String),
    /// The files are what the pieces make, and that is not what was said of them: it would come
    /// again as it is.
    Untrue(String),
    /// It cannot be told.
    Io(io::Error),
}

impl From<io::Error> for CheckError {
    fn from(error: io::Error) -> Self {
        CheckError::Io(error)
    }
}

/// How a file of a dataset stands against its seal.
pub(super) fn state_of(
    disk: &Disk,
    version: Uuid,
    name: &SafeName,
    seal: Option<&Seal>,
) -> SealState {
    // Beneath the dataset's own directory and through no link, as a job's file is taken.
    let found = disk.open_version(version).and_then(|root| open(&root, name));
    let found = found.ok().flatten().and_then(|file| file.metadata().ok());
    seal.map_or(SealState::Broken, |seal| seal.on(&found))
}

/// The files of a dataset that this worker keeps, as a job gets them. They stay while this is held.
#[derive(Debug)]
pub(in crate::worker) struct KeptDataset {
    open: OpenDataset,
    contents: Arc<Contents>,
    seals: Arc<Vec<Seal>>,
}

impl KeptDataset {
    pub(super) fn new(open: OpenDataset, contents: Arc<Contents>, seals: Arc<Vec<Seal>>) -> Self {
        KeptDataset { open, contents, seals }
    }

    pub(in crate::worker) fn root(&self) -> &OwnedFd {
        self.open.root()
    }

    /// Whether the dataset has a file of this name: nothing else in its directory is of it.
    pub(in crate::worker) fn has(&self, name: &SafeName) -> bool {
        self.contents.find(name.as_str()).is_some()
    }

    /// Whether a job's copy of a file is right. The dataset's own file was looked at before the job
    /// came this far; if it has changed since, the copy is read.
    pub(in crate::worker) fn is_right(&self, name: &SafeName, copy: &File) -> io::Result<bool> {
        let file = self.contents.find(name.as_str());
        let Some((file, (_, entry))) =
            file.and_then(|file| Some((file, self.contents.file(file)?)))
        else {
            return Ok(false);
        };
        let found = open(self.root(), name)?.and_then(|file| file.metadata().ok());
        if self.seals.get(file as usize).is_some_and(|seal| seal.on(&found) == SealState::Whole) {
            return Ok(true);
        }
        let mut buffer = Vec::new();
        let mut pieces = self.contents.manifest().layout(entry);
        Ok(copy.metadata()?.len() == entry.size
            && pieces.try_fold(true, |right, (offset, _, piece)| {
                Ok::<_, io::Error>(right && read_piece(copy, offset, piece, &mut buffer)?)
            })?)
    }
}

/// Reads files of a dataset again, piece by piece. Gives what they look like, or which one is
/// damaged.
pub(super) fn check_files(
    disk: &Disk,
    version: Uuid,
    contents: &Contents,
    files: &[u32],
) -> Result<Vec<(u32, Seal)>, CheckError> {
    let root = disk.open_version(version)?;
    let mut seals = Vec::with_capacity(files.len());
    let mut buffer = Vec::new();
    for file in files {
        let Some((name, entry)) = contents.file(*file) else { continue };
        let damaged = || CheckError::Damaged(format!("\"{name}\" was changed on the disk"));
        let found = open(&root, name)?.ok_or_else(damaged)?;
        let seal = Seal::of(&found.metadata()?);
        for (offset, _, piece) in contents.manifest().layout(entry) {
            if disk.is_closed() {
                return Err(CheckError::Io(io::ErrorKind::Interrupted.into()));
            }
            if !read_piece(&found, offset, piece, &mut buffer)? {
                return Err(damaged());
            }
        }
        seals.push((*file, seal));
    }
    Ok(seals)
}
