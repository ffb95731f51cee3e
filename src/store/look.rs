//! Parts of datasets as they lie on the disk: a manifest is read, and of a pack every piece is checked against its SHA-256. It
//! happens where the files are, away from the leader's thread.

use std::sync::Arc;

use chunking::dataset::pack::{FOOTER_BYTES, Layout, PackError};
use chunking::dataset::{Manifest, PieceHasher};
use chunking::{ChunkHead, Inflater};

/// What a blob should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LookAt {
    /// A manifest: all chunks of it are looked at.
    Manifest,
    /// A pack with this list: all chunks of it are looked at, and every piece is checked.
    Pack(Arc<Layout>),
    /// A pack of this size that was checked before: its last chunks are looked at, and its list is read.
    PackList(u64),
}

/// Chunks at the end of a pack that its list may lie in.
pub const LIST_CHUNKS_MAX: usize = 2;

/// What it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Looked {
    /// A manifest.
    Manifest(Box<Manifest>),
    /// A pack.
    Pack(Arc<Layout>),
}

/// Looks at chunks that come one after the other, in order.
pub(super) struct Looker {
    at: LookAt,
    inflater: Inflater,
    scratch: Vec<u8>,
    /// What is gathered: a manifest, or the end of a pack.
    bytes: Vec<u8>,
    /// How far the pieces of a pack are.
    place: usize,
    left: usize,
    hasher: PieceHasher,
}

impl Looker {
    pub(super) fn new(at: LookAt) -> Self {
        let mut looker = Looker {
            at,
            inflater: Inflater::default(),
            scratch: Vec::new(),
            bytes: Vec::new(),
            place: 0,
            left: 0,
            hasher: PieceHasher::default(),
        };
        looker.left = looker.piece_len();
        looker
    }

    /// The next chunk, as it was sent.
    pub(super) fn feed(&mut self, head: &ChunkHead, sent: &[u8]) -> Result<(), String> {
        let mut scratch = std::mem::take(&mut self.scratch);
        let raw = head.raw(sent, &mut self.inflater, &mut scratch).map_err(|error| error.to_string())?;
        let fed = match &self.at {
            LookAt::Manifest | LookAt::PackList(_) => {
                self.bytes.extend_from_slice(raw);
                Ok(())
            }
            LookAt::Pack(_) => self.pieces(raw),
        };
        self.scratch = scratch;
        fed.map_err(|error| error.to_string())
    }

    fn piece_len(&self) -> usize {
        let LookAt::Pack(layout) = &self.at else { return 0 };
        layout.pieces().get(self.place).map_or(0, |piece| piece.len as usize)
    }

    fn pieces(&mut self, mut raw: &[u8]) -> Result<(), PackError> {
        while self.left > 0 {
            let (front, rest) = raw.split_at(self.left.min(raw.len()));
            self.hasher.update(front);
            self.left -= front.len();
            raw = rest;
            if self.left > 0 {
                return Ok(());
            }
            let found = std::mem::take(&mut self.hasher).finish();
            let LookAt::Pack(layout) = &self.at else { return Ok(()) };
            if layout.pieces().get(self.place) != Some(&found) {
                return Err(PackError::Wrong { place: self.place });
            }
            self.place += 1;
            self.left = self.piece_len();
        }
        self.bytes.extend_from_slice(raw);
        Ok(())
    }

    /// All have come.
    pub(super) fn finish(self) -> Result<Looked, String> {
        let wrong = |error: PackError| error.to_string();
        match self.at {
            LookAt::Manifest => Manifest::decode(&self.bytes)
                .map(|manifest| Looked::Manifest(Box::new(manifest)))
                .map_err(|error| error.to_string()),
            LookAt::Pack(layout) => {
                let is_whole = self.left == 0 && self.bytes == layout.tail();
                if is_whole { Ok(Looked::Pack(layout)) } else { Err(wrong(PackError::Footer)) }
            }
            LookAt::PackList(size) => {
                let footer = self.bytes.last_chunk::<FOOTER_BYTES>().ok_or(wrong(PackError::Footer))?;
                let len = Layout::tail_bytes(footer).map_err(wrong)?;
                let tail = self.bytes.len().checked_sub(len).and_then(|start| self.bytes.get(start..));
                let layout = Layout::from_tail(tail.unwrap_or_default(), size).map_err(wrong)?;
                Ok(Looked::Pack(Arc::new(layout)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use chunking::dataset::{ManifestBuilder, Piece};

    fn pack() -> (Arc<Layout>, Vec<u8>) {
        let pieces: [&[u8]; 4] = [&[1; 700_000], &[2; 400_000], b"three", &[4; 900_000]];
        let layout = Layout::new(pieces.iter().map(|bytes| Piece::of(bytes)).collect()).unwrap();
        let bytes = [pieces.concat(), layout.tail()].concat();
        (Arc::new(layout), bytes)
    }

    fn look(at: LookAt, bytes: &[u8]) -> Result<Looked, String> {
        let mut looker = Looker::new(at);
        for (index, chunk) in bytes.chunks(1 << 20).enumerate() {
            looker.feed(&ChunkHead::plain((index as u64) << 20, chunk), chunk)?;
        }
        looker.finish()
    }

    #[test]
    fn a_pack_is_what_its_list_says_or_refused() {
        let (layout, bytes) = pack();
        assert_eq!(look(LookAt::Pack(layout.clone()), &bytes), Ok(Looked::Pack(layout.clone())));
        assert_eq!(look(LookAt::PackList(layout.size()), &bytes), Ok(Looked::Pack(layout.clone())));
        for at in [0, 699_999, 1_099_999, 1_100_002, bytes.len() - 100, bytes.len() - 1] {
            let mut wrong = bytes.clone();
            wrong[at] ^= 1;
            assert!(look(LookAt::Pack(layout.clone()), &wrong).is_err(), "changed at {at}");
        }
        assert!(look(LookAt::Pack(layout.clone()), &bytes[..bytes.len() - 1]).is_err());
        assert!(look(LookAt::PackList(layout.size() + 1), &bytes).is_err());
        assert!(look(LookAt::PackList(0), &[]).is_err());
    }

    #[test]
    fn a_manifest_is_read_from_its_chunks() {
        let mut builder = ManifestBuilder::default();
        for file in 0..40_000u32 {
            builder.file(format!("{file:06}"), [0; 32], vec![Piece::of(&file.to_le_bytes())]);
        }
        let manifest = builder.finish().unwrap();
        assert_eq!(look(LookAt::Manifest, &manifest.encode()), Ok(Looked::Manifest(Box::new(manifest))));
        assert!(look(LookAt::Manifest, b"HFMF").is_err());
    }
}
