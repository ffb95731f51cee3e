//! The manifest of a dataset: its files, and the pieces that they are made of.
//!
//! ```text
//! "HFMF", version u8, 3 zeros, pieces u32, files u32
//! for each piece, in the order of first use:  BLAKE3 (32 bytes), length u32
//! for each file, in the order of names:       name (u16 and UTF-8), size u64, SHA-256 (32 bytes), n u32, n places of pieces u32
//! ```

use std::collections::HashMap;

use sha2::Digest as _;
use thiserror::Error;

use super::{Fields, Piece};
use crate::digest::{Digest, DigestKind};
use crate::limits::{MANIFEST_BYTES_MAX, NAME_BYTES_MAX, PIECE_BYTES_MAX};

const MARKER: [u8; 4] = *b"HFMF";
const VERSION: u8 = 2;
/// Bytes of a file's entry beside its name and its pieces.
const FILE_BYTES: usize = 2 + 8 + 32 + 4;

/// A file of a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileEntry {
    /// Its name beneath the CacheId. Whether it may be a path is for those to check who make files.
    pub name: String,
    pub size: u64,
    /// The SHA-256 of them.
    pub sha256: [u8; 32],
    /// The pieces that it is made of, as places in the manifest's list.
    pub pieces: Vec<u32>,
}

/// What a dataset is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Manifest {
    pieces: Vec<Piece>,
    files: Vec<FileEntry>,
}

/// Bytes that are not a manifest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ManifestError {
    /// It is too large.
    #[error("the manifest has {bytes} bytes; at most {limit} are taken: put fewer or larger files")]
    Large {
        bytes: u64,
        /// What is taken.
        limit: u64,
    },
    /// The marker is not that of a manifest.
    #[error("these bytes are not a manifest")]
    Marker,
    /// It is one of another version.
    #[error(
        "the manifest has version {found}; this heft knows {VERSION}: put the dataset again with it"
    )]
    Version { found: u8 },
    /// It ends inside of something.
    #[error("the manifest ends too early, or has bytes behind its end")]
    Length,
    /// Something in it does not fit.
    #[error("the manifest is wrong: {what} (entry {entry})")]
    Entry {
        what: &'static str,
        /// Which piece or file.
        entry: usize,
    },
}

impl Manifest {
    /// The pieces, each once, in the order of their first use.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// The files, in the order of their names.
    pub fn files(&self) -> &[FileEntry] {
        &self.files
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.size).fold(0, u64::saturating_add)
    }

    /// The pieces of a file with their offsets in it.
    pub fn layout<'a>(
        &'a self,
        file: &'a FileEntry,
    ) -> impl Iterator<Item = (u64, u32, Piece)> + 'a {
        let mut offset = 0u64;
        file.pieces.iter().filter_map(move |place| {
            let piece = *self.pieces.get(usize::try_from(*place).ok()?)?;
            let at = offset;
            offset = offset.saturating_add(u64::from(piece.len));
            Some((at, *place, piece))
        })
    }

    /// What identifies the content: SHA-256 over name, size and SHA-256 of every file. It does not
    /// depend on how files are cut.
    pub fn digest(&self) -> Digest {
        let mut sha = sha2::Sha256::new();
        for file in &self.files {
            sha.update(u16::try_from(file.name.len()).unwrap_or(u16::MAX).to_le_bytes());
            sha.update(file.name.as_bytes());
            sha.update(file.size.to_le_bytes());
            sha.update(file.sha256);
        }
        Digest { kind: DigestKind::Sha256, bytes: sha.finalize().into() }
    }

    /// The bytes of the manifest.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(16 + self.pieces.len() * Piece::ENTRY_BYTES);
        out.extend_from_slice(&MARKER);
        out.extend_from_slice(&[VERSION, 0, 0, 0]);
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX).to_le_bytes();
        out.extend_from_slice(&count(self.pieces.len()));
        out.extend_from_slice(&count(self.files.len()));
        self.pieces.iter().for_each(|piece| piece.put(&mut out));
        for file in &self.files {
            out.extend_from_slice(
                &u16::try_from(file.name.len()).unwrap_or(u16::MAX).to_le_bytes(),
            );
            out.extend_from_slice(file.name.as_bytes());
            out.extend_from_slice(&file.size.to_le_bytes());
            out.extend_from_slice(&file.sha256);
            out.extend_from_slice(&count(file.pieces.len()));
            file.pieces.iter().for_each(|place| out.extend_from_slice(&place.to_le_bytes()));
        }
        out
    }

    /// Reads a manifest. Nothing in it is taken on trust: what it says of itself fits together, or
    /// it is refused.
    pub fn decode(bytes: &[u8]) -> Result<Self, ManifestError> {
        let len = bytes.len() as u64;
        if len > MANIFEST_BYTES_MAX {
            return Err(ManifestError::Large { bytes: len, limit: MANIFEST_BYTES_MAX });
        }
        let mut fields = Fields(bytes);
        match fields.array().zip(fields.array()) {
            Some((MARKER, [VERSION, 0, 0, 0])) => {}
            Some((MARKER, [found, 0, 0, 0])) => return Err(ManifestError::Version { found }),
            Some(_) | None => return Err(ManifestError::Marker),
        }
        let short = || ManifestError::Length;
        let pieces = fields.u32().ok_or_else(short)? as usize;
        let files = fields.u32().ok_or_else(short)? as usize;
        // Room is made only for what can be there.
        let least = pieces
            .saturating_mul(Piece::ENTRY_BYTES)
            .saturating_add(files.saturating_mul(FILE_BYTES));
        if least > fields.left() {
            return Err(short());
        }
        let mut manifest =
            Manifest { pieces: Vec::with_capacity(pieces), files: Vec::with_capacity(files) };
        for entry in 0..pieces {
            let piece = fields.piece().ok_or_else(short)?;
            if !(1..=PIECE_BYTES_MAX).contains(&piece.len) {
                return Err(ManifestError::Entry { what: "the length of a piece", entry });
            }
            manifest.pieces.push(piece);
        }
        let mut used = 0u32;
        for entry in 0..files {
            let file = manifest.decode_file(&mut fields, entry, &mut used)?;
            if manifest.files.last().is_some_and(|last| last.name >= file.name) {
                return Err(ManifestError::Entry { what: "the order of names", entry });
            }
            manifest.files.push(file);
        }
        if used as usize != manifest.pieces.len() {
            return Err(ManifestError::Entry {
                what: "a piece that no file uses",
                entry: used as usize,
            });
        }
        if fields.left() > 0 { Err(short()) } else { Ok(manifest) }
    }

    /// Reads a file; `used` is the number of pieces that files before it have used.
    fn decode_file(
        &self,
        fields: &mut Fields<'_>,
        entry: usize,
        used: &mut u32,
    ) -> Result<FileEntry, ManifestError> {
        let wrong = |what| ManifestError::Entry { what, entry };
        let short = || ManifestError::Length;
        let len = usize::from(fields.u16().ok_or_else(short)?);
        let name =
            str::from_utf8(fields.bytes(len).ok_or_else(short)?).map_err(|_| wrong("a name"))?;
        if !(1..=NAME_BYTES_MAX).contains(&len) {
            return Err(wrong("the length of a name"));
        }
        let size = fields.u64().ok_or_else(short)?;
        let sha256 = fields.array().ok_or_else(short)?;
        let count = fields.u32().ok_or_else(short)? as usize;
        if count.saturating_mul(4) > fields.left() {
            return Err(short());
        }
        let mut pieces = Vec::with_capacity(count);
        let mut sum = 0u64;
        for _ in 0..count {
            let place = fields.u32().ok_or_else(short)?;
            let piece =
                self.pieces.get(place as usize).ok_or_else(|| wrong("the place of a piece"))?;
            match place.cmp(used) {
                std::cmp::Ordering::Less => {}
                std::cmp::Ordering::Equal => *used += 1,
                std::cmp::Ordering::Greater => return Err(wrong("the order of pieces")),
            }
            sum = sum.saturating_add(u64::from(piece.len));
            pieces.push(place);
        }
        if sum != size {
            return Err(wrong("the size of a file"));
        }
        // What no bytes hash to is known; any others have to be read for that.
        if pieces.is_empty() && sha256 != super::sha256(b"") {
            return Err(wrong("the SHA-256 of an empty file"));
        }
        Ok(FileEntry { name: name.to_owned(), size, sha256, pieces })
    }
}

/// Makes a manifest, file by file.
#[derive(Debug, Default)]
pub struct ManifestBuilder {
    files: Vec<(String, [u8; 32], Vec<Piece>)>,
}

impl ManifestBuilder {
    /// A file: its name, the SHA-256 of all of it, and its pieces in order. That of no bytes is the
    /// caller's to say right: [`Manifest::decode`] refuses anything else.
    pub fn file(&mut self, name: impl Into<String>, sha256: [u8; 32], pieces: Vec<Piece>) {
        self.files.push((name.into(), sha256, pieces));
    }

    /// The manifest. Of two files of one name the last counts.
    pub fn finish(mut self) -> Result<Manifest, ManifestError> {
        self.files.reverse();
        self.files.sort_by(|a, b| a.0.cmp(&b.0));
        self.files.dedup_by(|a, b| a.0 == b.0);
        let mut manifest = Manifest::default();
        let mut places: HashMap<Piece, u32> = HashMap::new();
        for (name, sha256, pieces) in self.files {
            let size = pieces.iter().map(|piece| u64::from(piece.len)).sum();
            let mut listed = Vec::with_capacity(pieces.len());
            for piece in pieces {
                let next = u32::try_from(manifest.pieces.len()).unwrap_or(u32::MAX);
                listed.push(*places.entry(piece).or_insert_with(|| {
                    manifest.pieces.push(piece);
                    next
                }));
            }
            manifest.files.push(FileEntry { name, size, sha256, pieces: listed });
        }
        let of_file = |file: &FileEntry| FILE_BYTES + file.name.len() + file.pieces.len() * 4;
        let bytes = 16
            + manifest.pieces.len() * Piece::ENTRY_BYTES
            + manifest.files.iter().map(of_file).sum::<usize>();
        if bytes as u64 > MANIFEST_BYTES_MAX {
            return Err(ManifestError::Large { bytes: bytes as u64, limit: MANIFEST_BYTES_MAX });
        }
        Ok(manifest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::sha256;
    use super::*;

    fn manifest() -> Manifest {
        let (a, b, c) = (Piece::of(b"aaa"), Piece::of(b"bb"), Piece::of(b"c"));
        let mut builder = ManifestBuilder::default();
        builder.file("z/last", sha256(b"caaa"), vec![c, a]);
        builder.file("empty", sha256(b""), vec![]);
        builder.file("a", sha256(b"aaabbaaa"), vec![a, b, a]);
        builder.finish().unwrap()
    }

    #[test]
    fn a_manifest_survives_its_bytes_and_lists_each_piece_once() {
        let manifest = manifest();
        assert_eq!(Manifest::decode(&manifest.encode()), Ok(manifest.clone()));
        assert_eq!(manifest.pieces().len(), 3);
        let names: Vec<&str> = manifest.files().iter().map(|file| file.name.as_str()).collect();
        assert_eq!((names, manifest.bytes()), (vec!["a", "empty", "z/last"], 12));
        let offsets: Vec<(u64, u32)> =
            manifest.layout(&manifest.files()[0]).map(|(at, place, _)| (at, place)).collect();
        assert_eq!(offsets, [(0, 0), (3, 1), (5, 0)]);
    }

    #[test]
    fn the_digest_knows_content_and_not_cuts() {
        let mut other = ManifestBuilder::default();
        other.file("a", sha256(b"aaabbaaa"), vec![Piece::of(b"aaabbaaa")]);
        other.file("empty", sha256(b""), vec![]);
        other.file("z/last", sha256(b"caaa"), vec![Piece::of(b"caaa")]);
        assert_eq!(other.finish().unwrap().digest(), manifest().digest());
        let mut third = ManifestBuilder::default();
        third.file("a", sha256(b"aaabbaaa"), vec![Piece::of(b"aaabbaaa")]);
        assert_ne!(third.finish().unwrap().digest(), manifest().digest());
    }

    #[test]
    fn what_no_bytes_hash_to_is_not_taken_on_trust() {
        let read = |sha256, pieces: Vec<Piece>| {
            let mut builder = ManifestBuilder::default();
            builder.file("a", sha256, pieces);
            Manifest::decode(&builder.finish().unwrap().encode()).map(|_| ())
        };
        let piece = Piece::of(b"aaa");
        let wrong = Err(ManifestError::Entry { what: "the SHA-256 of an empty file", entry: 0 });
        assert_eq!((read(sha256(b""), vec![]), read([0; 32], vec![])), (Ok(()), wrong));
        assert_eq!(read([0; 32], vec![piece]), Ok(()), "that takes reading it");
    }

    #[test]
    fn a_manifest_of_another_version_is_named_as_such() {
        let mut bytes = manifest().encode();
        bytes[4] = 1;
        assert_eq!(Manifest::decode(&bytes), Err(ManifestError::Version { found: 1 }));
        let text = ManifestError::Version { found: 1 }.to_string();
        assert_eq!(
            text,
            "the manifest has version 1; this heft knows 2: put the dataset again with it"
        );
    }

    #[test]
    fn bytes_that_are_cut_or_changed_are_refused_or_mean_something_else() {
        let whole = manifest().encode();
        for len in 0..whole.len() {
            assert!(Manifest::decode(&whole[..len]).is_err(), "cut to {len}");
        }
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x81;
            assert_ne!(Manifest::decode(&bytes).as_ref(), Ok(&manifest()), "changed at {at}");
        }
        let mut hostile = whole.clone();
        hostile[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Manifest::decode(&hostile), Err(ManifestError::Length));
    }
}
