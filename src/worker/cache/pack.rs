//! Unpacks a pack as it arrives: hashes each piece and writes it directly to its position in the
//! dataset's files.
//!
//! Pieces follow each other in a pack and may begin in one chunk and end in the next. Bytes that
//! arrive in order are hashed once, on arrival; a piece whose parts arrive out of order is read
//! back. It runs on the blocking thread of its [`Download`].
//!
//! [`Download`]: crate::transfer::Download

use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use chunking::dataset::pack::Layout;
use chunking::dataset::{Piece, PieceHasher};
use chunking::{ChunkPlan, ChunkRange, PlanError, Ranges};

use super::staged::Staged;
use crate::transfer::ChunkSink;

/// Takes the pieces of a pack that a dataset lacks.
pub(super) struct PackSink {
    staged: Arc<Staged>,
    layout: Layout,
    /// For each piece of the pack that the dataset lacks, how far it is.
    parts: Vec<Option<Part>>,
    place: String,
}

/// How far a piece is.
struct Part {
    /// Which of the dataset.
    piece: u32,
    /// If it comes in parts.
    hasher: Option<PieceHasher>,
    /// Bytes from its start that are in the hasher.
    hashed: u64,
    /// Bytes that came.
    came: u64,
}

impl Part {
    fn new(piece: u32) -> Self {
        Part { piece, hasher: None, hashed: 0, came: 0 }
    }
}

impl PackSink {
    /// For the pieces of a pack, each with its place in the dataset's list if the dataset has it.
    pub(super) fn new(
        staged: Arc<Staged>,
        layout: Layout,
        pieces: impl IntoIterator<Item = Option<u32>>,
        place: String,
    ) -> Self {
        let lacked = |piece: Option<u32>| piece.filter(|piece| staged.lacks(*piece)).map(Part::new);
        let parts = pieces.into_iter().map(lacked).collect();
        PackSink { staged, layout, parts, place }
    }

    /// The chunks in which there is nothing that the dataset lacks.
    pub(super) fn not_needed(&self, size: u64, chunk_bytes: u32) -> Result<Ranges, PlanError> {
        let plan = ChunkPlan::new(size, chunk_bytes)?;
        let mut runs: Vec<ChunkRange> = Vec::new();
        for index in 0..plan.count() {
            let start = plan.offset_of(index);
            let pieces = self.layout.pieces_in(start..start + u64::from(plan.len_of(index)));
            if pieces.clone().any(|at| self.parts.get(at).is_some_and(Option::is_some)) {
                continue;
            }
            match runs.last_mut() {
                Some(run) if run.first + run.count == index => run.count += 1,
                Some(_) | None => runs.push(ChunkRange { first: index, count: 1 }),
            }
        }
        Ok(Ranges::try_from(runs).unwrap_or_default())
    }

    /// Takes the bytes of a piece, or a part of them, from `start` on.
    fn take(&mut self, at: usize, start: u64, bytes: &[u8]) -> io::Result<()> {
        let PackSink { staged, layout, parts, .. } = self;
        let (Some(slot), Some(piece)) = (parts.get_mut(at), layout.pieces().get(at)) else {
            return Ok(());
        };
        let Some(part) = slot else { return Ok(()) };
        if bytes.len() as u64 == u64::from(piece.len) {
            part.came = piece.len.into();
            if piece.is(bytes) {
                staged.spread(part.piece, None, bytes)?;
                *slot = None;
            }
            return Ok(());
        }
        let Some(place) = staged.contents().first_place(part.piece) else { return Ok(()) };
        let file = staged.handle(place.file)?;
        file.write_all_at(bytes, place.offset + start)?;
        part.came += bytes.len() as u64;
        if part.hashed != start {
            return Ok(());
        }
        part.hasher.get_or_insert_default().update(bytes);
        part.hashed += bytes.len() as u64;
        if part.hashed == u64::from(piece.len)
            && part.hasher.take().is_some_and(|hasher| hasher.finish() == *piece)
        {
            let (whole, piece) = (part.piece, *piece);
            *slot = None;
            self.spread_from_file(whole, piece)?;
        }
        Ok(())
    }

    /// A piece is right where it lies first; it is read back only if it has more places.
    fn spread_from_file(&self, piece: u32, known: Piece) -> io::Result<()> {
        let first = self.staged.contents().first_place(piece);
        let mut bytes = Vec::new();
        if let Some(place) = first.filter(|_| !self.staged.contents().more_places(piece).is_empty())
        {
            bytes.resize(known.len as usize, 0);
            self.staged.handle(place.file)?.read_exact_at(&mut bytes, place.offset)?;
        }
        self.staged.spread(piece, first, &bytes)
    }
}

impl ChunkSink for PackSink {
    fn write(&mut self, offset: u64, raw: &[u8]) -> io::Result<()> {
        let end = offset + raw.len() as u64;
        for at in self.layout.pieces_in(offset..end) {
            let Some(range) = self.layout.range(at) else { continue };
            let (from, to) = (range.start.max(offset), range.end.min(end));
            let place = |at: u64| usize::try_from(at - offset).unwrap_or(usize::MAX);
            if let Some(bytes) = raw.get(place(from)..place(to)) {
                self.take(at, from - range.start, bytes)?;
            }
        }
        Ok(())
    }

    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn wrong(&mut self) -> io::Result<Vec<Range<u64>>> {
        let mut wrong = Vec::new();
        for at in 0..self.parts.len() {
            let (Some(Some(part)), Some(known)) =
                (self.parts.get(at), self.layout.pieces().get(at).copied())
            else {
                continue;
            };
            let piece = part.piece;
            if part.came >= u64::from(known.len)
                && part.hashed < u64::from(known.len)
                && let Some(place) = self.staged.contents().first_place(piece)
            {
                let mut bytes = vec![0; known.len as usize];
                self.staged.handle(place.file)?.read_exact_at(&mut bytes, place.offset)?;
                if known.is(&bytes) {
                    self.staged.spread(piece, Some(place), &bytes)?;
                    if let Some(slot) = self.parts.get_mut(at) {
                        *slot = None;
                    }
                    continue;
                }
            }
            // Another pack may have brought it meanwhile.
            if self.staged.lacks(piece) {
                wrong.extend(self.layout.range(at));
            }
            if let Some(slot) = self.parts.get_mut(at) {
                *slot = self.staged.lacks(piece).then(|| Part::new(piece));
            }
        }
        Ok(wrong)
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}
