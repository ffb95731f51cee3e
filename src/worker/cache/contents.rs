//! A dataset's checked manifest: names that may become paths, and the position of each piece.
//!
//! Pure. Manifests come from the leader and from the local disk, and neither is trusted.

use std::collections::HashMap;

use chunking::Digest;
use chunking::dataset::{FileEntry, Manifest, ManifestError, Piece};
use thiserror::Error;

use crate::core::names::{DatasetNameError, SafeName, names_of_dataset};

/// A manifest that is not taken.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(in crate::worker) enum ContentsError {
    #[error(transparent)]
    Manifest(#[from] ManifestError),
    #[error(transparent)]
    Names(#[from] DatasetNameError),
    #[error(
        "the manifest is of {found} bytes in {files} files with digest {digest}; expected \
         {expected}"
    )]
    Other { found: u64, files: usize, digest: Digest, expected: Digest },
}

/// Where a piece lies: which file, and at what offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) file: u32,
    pub(super) offset: u64,
}

/// What a dataset is made of.
#[derive(Debug)]
pub(in crate::worker) struct Contents {
    manifest: Manifest,
    names: Vec<SafeName>,
    digest: Digest,
    bytes: u64,
    /// Where each piece lies for the first time.
    first: Vec<Place>,
    /// Where those lie that are there more than once.
    more: HashMap<u32, Vec<Place>>,
}

impl Contents {
    /// Reads the bytes of a manifest, of this content if that is known.
    pub(super) fn read(bytes: &[u8], expected: Option<Digest>) -> Result<Self, ContentsError> {
        let contents = Self::new(Manifest::decode(bytes)?)?;
        match expected {
            Some(expected) if expected != contents.digest => Err(ContentsError::Other {
                found: contents.bytes,
                files: contents.names.len(),
                digest: contents.digest,
                expected,
            }),
            Some(_) | None => Ok(contents),
        }
    }

    /// Checks the names of a manifest.
    pub(super) fn new(manifest: Manifest) -> Result<Self, ContentsError> {
        let names = names_of_dataset(manifest.files().iter().map(|file| file.name.as_str()))?;
        let mut first = vec![None; manifest.pieces().len()];
        let mut more: HashMap<u32, Vec<Place>> = HashMap::new();
        for (file, entry) in (0..).zip(manifest.files()) {
            for (offset, piece, _) in manifest.layout(entry) {
                let place = Place { file, offset };
                match first.get_mut(piece as usize) {
                    Some(slot @ None) => *slot = Some(place),
                    Some(Some(_)) | None => more.entry(piece).or_default().push(place),
                }
            }
        }
        // A manifest has no piece that no file uses.
        let first = first.into_iter().flatten().collect();
        let (digest, bytes) = (manifest.digest(), manifest.bytes());
        Ok(Contents { manifest, names, digest, bytes, first, more })
    }

    pub(super) fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// What identifies the content.
    pub(super) fn digest(&self) -> Digest {
        self.digest
    }

    /// Bytes of all files.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The files with their names, in order.
    pub(super) fn files(&self) -> impl ExactSizeIterator<Item = (&SafeName, &FileEntry)> {
        self.names.iter().zip(self.manifest.files())
    }

    pub(super) fn file(&self, file: u32) -> Option<(&SafeName, &FileEntry)> {
        self.names.get(file as usize).zip(self.manifest.files().get(file as usize))
    }

    /// The file of this name.
    pub(super) fn find(&self, name: &str) -> Option<u32> {
        let found = self.manifest.files().binary_search_by(|file| file.name.as_str().cmp(name));
        found.ok().and_then(|at| u32::try_from(at).ok())
    }

    /// The file of another dataset that has the same name and the same bytes: those of the same
    /// pieces. Which SHA-256 the manifests say of the whole files proves nothing, since nobody has
    /// checked it.
    pub(super) fn same_file(&self, entry: &FileEntry, other: &Contents) -> Option<u32> {
        let found = other.find(&entry.name)?;
        let (_, theirs) = other.file(found)?;
        let of = |contents: &'_ Contents, entry: &FileEntry| -> Vec<Piece> {
            contents.manifest.layout(entry).map(|(_, _, piece)| piece).collect()
        };
        let same = entry.size > 0
            && entry.size == theirs.size
            && entry.pieces.len() == theirs.pieces.len()
            && of(self, entry) == of(other, theirs);
        same.then_some(found)
    }

    pub(super) fn piece(&self, piece: u32) -> Option<Piece> {
        self.manifest.pieces().get(piece as usize).copied()
    }

    /// Where a piece lies for the first time.
    pub(super) fn first_place(&self, piece: u32) -> Option<Place> {
        self.first.get(piece as usize).copied()
    }

    /// Where it lies beside that.
    pub(super) fn more_places(&self, piece: u32) -> &[Place] {
        self.more.get(&piece).map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::dataset::{ManifestBuilder, sha256};

    fn of(names: &[&str]) -> Result<Contents, ContentsError> {
        let mut builder = ManifestBuilder::default();
        names.iter().for_each(|name| builder.file(*name, sha256(b"x"), vec![Piece::of(b"x")]));
        Contents::read(&builder.finish().unwrap().encode(), None)
    }

    #[test]
    fn hostile_names_are_refused_with_their_rule() {
        for (names, text) in [
            (&["../x"][..], "it holds \"..\""),
            (&["/etc/passwd"], "it is absolute"),
            (&["a\0b"], "it holds the control character U+0000"),
            (&["a\\b"], "it holds '\\'"),
            (&["a//b"], "is not in its plain form"),
            (&["./a"], "is not in its plain form"),
            (&["a/"], "as a directory"),
            (&["nul"], "are reserved"),
            (&["a/c:/x"], "a drive"),
            (&["a\nb"], "it holds the control character U+000A"),
            (&["dot./x"], "ends with '.', which some systems leave out"),
            (&["A.bin", "a.bin"], "differ in case alone"),
            (&["Größe", "GRÖSSE", "größe"], "differ in case alone"),
            (&["GRÖSSE", "größe"], "differ in case alone"),
            (&["a", "a/b"], "is a folder of another file"),
            (&["A", "a/b"], "is a folder of another file"),
        ] {
            let error = of(names).unwrap_err().to_string();
            assert!(error.contains(text), "{names:?}: {error}");
        }
        let long = "x".repeat(300);
        assert!(of(&[&long]).unwrap_err().to_string().contains("300 bytes; at most 255"));
        assert_eq!(of(&["a/b", "a/c", "ab"]).unwrap().files().len(), 3);
    }

    #[test]
    fn a_file_is_the_same_by_its_pieces_and_not_by_what_is_said_of_it() {
        let (a, b) = (Piece::of(b"aaa"), Piece::of(b"bb"));
        let of = |front: &[Piece], sha256, pieces: &[Piece]| {
            let mut builder = ManifestBuilder::default();
            builder.file("a", [0; 32], front.to_vec());
            builder.file("x", sha256, pieces.to_vec());
            Contents::new(builder.finish().unwrap()).unwrap()
        };
        let ours = of(&[a, a], [1; 32], &[a, b]);
        let entry = ours.file(1).unwrap().1;
        // Pieces are known by what they are, not by their places in a list.
        assert_eq!(ours.same_file(entry, &of(&[b, a], [1; 32], &[a, b])), Some(1));
        assert_eq!(ours.same_file(entry, &of(&[a, a], [2; 32], &[a, b])), Some(1));
        assert_eq!(ours.same_file(entry, &of(&[a, a], [1; 32], &[b, a])), None);
        assert_eq!(
            ours.same_file(entry, &of(&[a, a], [1; 32], &[Piece::of(b"aaabb")])),
            None,
            "cut otherwise"
        );
    }

    #[test]
    fn pieces_know_all_their_places_and_names_their_files() {
        let (a, b) = (Piece::of(b"aaa"), Piece::of(b"bb"));
        let mut builder = ManifestBuilder::default();
        builder.file("one", sha256(b"aaabbaaa"), vec![a, b, a]);
        builder.file("two", sha256(b"aaa"), vec![a]);
        builder.file("zero", sha256(b""), vec![]);
        let contents = Contents::new(builder.finish().unwrap()).unwrap();
        assert_eq!(contents.first_place(0), Some(Place { file: 0, offset: 0 }));
        assert_eq!(
            contents.more_places(0),
            [Place { file: 0, offset: 5 }, Place { file: 1, offset: 0 }]
        );
        assert_eq!(
            (contents.first_place(1), contents.more_places(1)),
            (Some(Place { file: 0, offset: 3 }), &[][..])
        );
        assert_eq!((contents.find("two"), contents.find("three")), (Some(1), None));
        assert_eq!((contents.bytes(), contents.file(2).unwrap().1.size), (11, 0));
    }
}
