//! Reads a blob made of ranges of files followed by a few bytes of its own: a pack of a dataset. It
//! is assembled chunk by chunk as it is read, and never exists as a whole.
//!
//! Each range is compared with the scan, by the file's metadata and a CRC-32. A file that changed
//! since then ends the transfer with an error that names it, before its bytes are sent. The
//! receiver checks BLAKE3.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

use bytes::Bytes;

use super::source::{FileSource, SourceError};

/// A stretch of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceAt {
    pub file: Arc<FileSource>,
    /// Where in the file it begins.
    pub offset: u64,
    pub len: u32,
    /// CRC-32 of them, as they were read first.
    pub crc: u32,
}

/// Stretches of files, and what stands behind them. Clones share them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PieceSource {
    /// With the place of each in the blob.
    pieces: Arc<[(u64, PieceAt)]>,
    tail_at: u64,
    tail: Bytes,
}

impl PieceSource {
    /// These pieces, and `tail` behind them.
    pub fn new(pieces: Vec<PieceAt>, tail: Bytes) -> Self {
        let mut at = 0u64;
        let place = |piece: PieceAt| {
            let begin = at;
            at = at.saturating_add(u64::from(piece.len));
            (begin, piece)
        };
        let pieces = pieces.into_iter().map(place).collect();
        PieceSource { pieces, tail_at: at, tail }
    }

    /// Bytes of all of it.
    pub fn size(&self) -> u64 {
        self.tail_at.saturating_add(self.tail.len() as u64)
    }

    /// All of it, for those who know that it is small.
    pub fn read_all(&self) -> Result<Vec<u8>, SourceError> {
        let mut bytes = vec![0; usize::try_from(self.size()).unwrap_or(usize::MAX)];
        PieceReader::default().read(self, 0, &mut bytes)?;
        Ok(bytes)
    }

    /// Bytes of it that are kept in memory.
    pub(super) fn memory_bytes(&self) -> usize {
        self.tail
            .len()
            .saturating_add(self.pieces.len().saturating_mul(size_of::<(u64, PieceAt)>()))
    }
}

/// What reading keeps between two chunks: the file that is open, and a piece that does not end with
/// its chunk.
#[derive(Debug, Default)]
pub(super) struct PieceReader {
    open: Option<(Arc<FileSource>, File)>,
    held: Option<(u64, Vec<u8>)>,
}

impl PieceReader {
    /// Fills `room` with the bytes of the blob from `offset` on.
    pub(super) fn read(
        &mut self,
        source: &PieceSource,
        offset: u64,
        room: &mut [u8],
    ) -> Result<(), SourceError> {
        let end = offset.saturating_add(room.len() as u64);
        let first =
            source.pieces.partition_point(|(at, piece)| at + u64::from(piece.len) <= offset);
        let pieces = source.pieces.get(first..).unwrap_or_default();
        for (at, piece) in pieces.iter().take_while(|(at, _)| *at < end) {
            let piece_end = at + u64::from(piece.len);
            if *at >= offset && piece_end <= end {
                if let Some(place) = part_mut(room, at - offset, piece_end - offset) {
                    self.read_piece(piece, place)?;
                }
                continue;
            }
            // A part of it alone cannot be checked: it is read whole, and kept for the chunk with
            // the rest.
            if self.held.as_ref().is_none_or(|(held, _)| held != at) {
                let mut bytes = self.held.take().map(|(_, bytes)| bytes).unwrap_or_default();
                bytes.resize(usize::try_from(piece.len).unwrap_or(usize::MAX), 0);
                self.read_piece(piece, &mut bytes)?;
                self.held = Some((*at, bytes));
            }
            if let Some((_, bytes)) = &self.held {
                copy_overlap(*at, bytes, offset, room);
            }
        }
        copy_overlap(source.tail_at, &source.tail, offset, room);
        Ok(())
    }

    fn read_piece(&mut self, piece: &PieceAt, room: &mut [u8]) -> Result<(), SourceError> {
        let source = &piece.file;
        if self.open.as_ref().is_none_or(|(open, _)| open != source) {
            self.open = Some((source.clone(), source.reopen()?));
        }
        let Some((_, file)) = &mut self.open else { return Err(source.changed()) };
        let read = file.seek(SeekFrom::Start(piece.offset)).and_then(|_| file.read_exact(room));
        source.check(file)?;
        read.map_err(|error| source.io(&error))?;
        if crc32fast::hash(room) == piece.crc { Ok(()) } else { Err(source.changed()) }
    }
}

/// `room[from..to]`, if there is such a part.
fn part_mut(room: &mut [u8], from: u64, to: u64) -> Option<&mut [u8]> {
    room.get_mut(usize::try_from(from).ok()?..usize::try_from(to).ok()?)
}

/// Copies what `bytes`, which begin at `at`, and `room`, which begins at `offset`, have in common.
fn copy_overlap(at: u64, bytes: &[u8], offset: u64, room: &mut [u8]) {
    let from = at.max(offset);
    let to = (at + bytes.len() as u64).min(offset + room.len() as u64);
    if from >= to {
        return;
    }
    let part = usize::try_from(from - at).ok().zip(usize::try_from(to - at).ok());
    let bytes = part.and_then(|(from, to)| bytes.get(from..to));
    if let (Some(bytes), Some(room)) = (bytes, part_mut(room, from - offset, to - offset)) {
        room.copy_from_slice(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(dir: &tempfile::TempDir, name: &str, content: &[u8]) -> Arc<FileSource> {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        Arc::new(FileSource::open(path).unwrap())
    }

    fn at(file: &Arc<FileSource>, content: &[u8], offset: usize, len: usize) -> PieceAt {
        let crc = crc32fast::hash(&content[offset..offset + len]);
        PieceAt { file: file.clone(), offset: offset as u64, len: len.try_into().unwrap(), crc }
    }

    fn two_files(dir: &tempfile::TempDir) -> (PieceSource, Vec<u8>) {
        let a: Vec<u8> = (0..=255u8).cycle().take(1000).collect();
        let b: Vec<u8> = (0..=255u8).rev().cycle().take(700).collect();
        let (first, second) = (file(dir, "a", &a), file(dir, "b", &b));
        let pieces = vec![
            at(&first, &a, 0, 300),
            at(&first, &a, 300, 10),
            at(&second, &b, 100, 600),
            at(&first, &a, 900, 100),
        ];
        let source = PieceSource::new(pieces, Bytes::from_static(b"the end"));
        let whole = [&a[..310], &b[100..], &a[900..], b"the end"].concat();
        (source, whole)
    }

    #[test]
    fn chunks_of_any_size_and_order_give_the_same_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let (source, whole) = two_files(&dir);
        assert_eq!(source.size(), whole.len() as u64);
        assert_eq!(source.read_all().unwrap(), whole);
        for chunk in [1, 7, 64, 305, 512, 2000] {
            let mut reader = PieceReader::default();
            let starts: Vec<usize> = (0..whole.len()).step_by(chunk).collect();
            let in_order = starts.iter().copied();
            for start in in_order.chain(starts.iter().rev().copied()) {
                let end = (start + chunk).min(whole.len());
                let mut room = vec![0xAA; end - start];
                reader.read(&source, start as u64, &mut room).unwrap();
                assert_eq!(room, whole[start..end], "{start} by {chunk}");
            }
        }
    }

    #[test]
    fn a_piece_that_is_not_what_was_scanned_is_an_error_with_the_files_name() {
        let dir = tempfile::tempdir().unwrap();
        let (source, whole) = two_files(&dir);
        let path = dir.path().join("b");
        let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
        let mut content = std::fs::read(&path).unwrap();
        content[650] ^= 1;
        let same_file = File::options().write(true).open(&path).unwrap();
        std::io::Write::write_all(&mut &same_file, &content).unwrap();
        // Not even the time tells.
        same_file.set_modified(modified).unwrap();
        let mut room = vec![0; whole.len()];
        let error = PieceReader::default().read(&source, 0, &mut room).unwrap_err().to_string();
        assert!(error.contains("/b changed while it was sent"), "{error}");
        // The part that did not change is not sent either: the piece is one.
        let mut room = vec![0; 10];
        assert!(PieceReader::default().read(&source, 320, &mut room).is_err());
        assert!(PieceReader::default().read(&source, 0, &mut room).is_ok());
    }
}
