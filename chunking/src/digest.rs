//! Digests of whole blobs.
//!
//! The default is SHA-256 over the list of chunk checksums: cheap, and the same whatever codec the
//! chunks took. It guards against damage and mistakes, not against someone who forges CRCs, so it
//! is never used as a content address. Full SHA-256 and BLAKE3 read every byte, and are there for
//! datasets and for those who ask.

use crate::pages::Pages;
use crate::plan::ChunkPlan;
use serde::{Serialize, Serializer};
use sha2::Digest as _;
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// How a digest is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[repr(u8)]
pub enum DigestKind {
    /// SHA-256 over (offset u64, raw length u32, raw CRC-32 u32) of every chunk, little-endian, in
    /// offset order.
    ChunkList = 0,
    /// SHA-256 of the raw bytes.
    Sha256 = 1,
    /// BLAKE3 of the raw bytes.
    Blake3 = 2,
}

impl DigestKind {
    const ALL: [DigestKind; 3] = [DigestKind::ChunkList, DigestKind::Sha256, DigestKind::Blake3];

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The kind of a code.
    pub fn from_code(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The name in texts.
    pub const fn name(self) -> &'static str {
        match self {
            DigestKind::ChunkList => "chunk-list",
            DigestKind::Sha256 => "sha256",
            DigestKind::Blake3 => "blake3",
        }
    }
}

impl fmt::Display for DigestKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A digest and how it was made. As text: `sha256:` and 64 hexadecimal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    /// How it was made.
    pub kind: DigestKind,
    pub bytes: [u8; 32],
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, to_hex(&self.bytes))
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A text that is not a digest.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DigestTextError {
    /// No kind that is known stands before the colon.
    #[error(
        "the digest is of kind \"{found}\"; kinds are chunk-list, sha256 and blake3, with a colon behind"
    )]
    Kind {
        /// What stands there, cut.
        found: String,
    },
    /// What follows is not 64 hexadecimal digits.
    #[error(
        "a digest has 64 characters behind its kind, all hexadecimal digits; this one has {have}, or others"
    )]
    Hex {
        /// Characters that are there.
        have: usize,
    },
}

impl FromStr for Digest {
    type Err = DigestTextError;

    fn from_str(text: &str) -> Result<Self, DigestTextError> {
        let (kind, hex) = text.split_once(':').unwrap_or((text, ""));
        let known = DigestKind::ALL.into_iter().find(|known| known.name() == kind);
        let kind = known
            .ok_or_else(|| DigestTextError::Kind { found: kind.chars().take(32).collect() })?;
        let bytes = from_hex(hex).ok_or(DigestTextError::Hex { have: hex.len() })?;
        Ok(Digest { kind, bytes })
    }
}

/// BLAKE3 of bytes that lie in one piece.
pub fn blake3(bytes: &[u8]) -> [u8; 32] {
    blake3::hash(bytes).into()
}

/// The bytes in lower-case hexadecimal digits.
pub fn to_hex(bytes: &[u8]) -> String {
    let nibbles = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0xF]);
    nibbles.filter_map(|nibble| char::from_digit(nibble.into(), 16)).collect()
}

/// Exactly `N` bytes from hexadecimal digits of either case.
pub fn from_hex<const N: usize>(hex: &str) -> Option<[u8; N]> {
    let mut digits = hex.chars().map(|digit| digit.to_digit(16));
    let mut bytes = [0; N];
    for byte in &mut bytes {
        *byte = u8::try_from(digits.next()?? << 4 | digits.next()??).ok()?;
    }
    digits.next().is_none().then_some(bytes)
}

/// Makes a digest of chunks that are fed in offset order.
#[derive(Clone)]
pub struct BlobHasher {
    state: State,
    offset: u64,
}

#[derive(Clone)]
enum State {
    ChunkList(sha2::Sha256),
    Sha256(sha2::Sha256),
    // BLAKE3's tree is 2 KiB; most blobs never carry it around.
    Blake3(Box<blake3::Hasher>),
}

impl BlobHasher {
    /// Starts a digest of `kind`.
    pub fn new(kind: DigestKind) -> Self {
        let state = match kind {
            DigestKind::ChunkList => State::ChunkList(sha2::Sha256::new()),
            DigestKind::Sha256 => State::Sha256(sha2::Sha256::new()),
            DigestKind::Blake3 => State::Blake3(Box::new(blake3::Hasher::new())),
        };
        BlobHasher { state, offset: 0 }
    }

    /// Feeds the next chunk: its raw bytes, and their CRC-32, which the caller has from the chunk's
    /// head.
    pub fn update(&mut self, raw: &[u8], crc_raw: u32) {
        let raw_len = u32::try_from(raw.len()).unwrap_or(u32::MAX);
        match &mut self.state {
            State::ChunkList(sha) => list_chunk(sha, self.offset, raw_len, crc_raw),
            State::Sha256(sha) => sha.update(raw),
            State::Blake3(blake3) => {
                blake3.update(raw);
            }
        }
        self.offset = self.offset.saturating_add(u64::from(raw_len));
    }

    pub fn finish(self) -> Digest {
        match self.state {
            State::ChunkList(sha) => {
                Digest { kind: DigestKind::ChunkList, bytes: sha.finalize().into() }
            }
            State::Sha256(sha) => Digest { kind: DigestKind::Sha256, bytes: sha.finalize().into() },
            State::Blake3(blake3) => {
                Digest { kind: DigestKind::Blake3, bytes: blake3.finalize().into() }
            }
        }
    }
}

fn list_chunk(sha: &mut sha2::Sha256, offset: u64, raw_len: u32, crc_raw: u32) {
    sha.update(offset.to_le_bytes());
    sha.update(raw_len.to_le_bytes());
    sha.update(crc_raw.to_le_bytes());
}

/// The raw CRCs of a blob's chunks as they come, in any order, for a chunk-list digest at the end.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChunkCrcs {
    // The bitmap says which of these are real.
    crcs: Pages<u32>,
}

impl ChunkCrcs {
    /// Notes a chunk of `plan`, again if it came again. A chunk that the plan does not have is not
    /// noted.
    pub fn insert(&mut self, plan: &ChunkPlan, index: u32, crc_raw: u32) {
        let Ok(place) = usize::try_from(index) else { return };
        if index >= plan.count() {
            return;
        }
        if let Some(crc) = self.crcs.at_mut(place) {
            *crc = crc_raw;
        }
    }

    /// The digest over all chunks of `plan`. It means something only once the bitmap is complete.
    pub fn digest(&self, plan: &ChunkPlan) -> Digest {
        let mut sha = sha2::Sha256::new();
        for (index, place) in (0..plan.count()).zip(0..) {
            list_chunk(&mut sha, plan.offset_of(index), plan.len_of(index), self.crcs.get(place));
        }
        Digest { kind: DigestKind::ChunkList, bytes: sha.finalize().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(kind: DigestKind, chunks: &[&[u8]]) -> Digest {
        let mut hasher = BlobHasher::new(kind);
        chunks.iter().for_each(|chunk| hasher.update(chunk, crc32fast::hash(chunk)));
        hasher.finish()
    }

    #[test]
    fn known_answers() {
        let sha = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let blake3 = "blake3:6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85";
        // An empty list: SHA-256 of nothing.
        let nothing = "chunk-list:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(of(DigestKind::Sha256, &[b"a", b"bc"]).to_string(), sha);
        assert_eq!(of(DigestKind::Blake3, &[b"ab", b"c"]).to_string(), blake3);
        assert_eq!(of(DigestKind::ChunkList, &[]).to_string(), nothing);
    }

    #[test]
    fn a_chunk_list_is_the_same_in_order_and_out_of_order() {
        let blob: Vec<u8> = (0..20_000u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let plan = ChunkPlan::new(20_000, 8192).unwrap();
        let chunks: Vec<&[u8]> = blob.chunks(8192).collect();
        let mut crcs = ChunkCrcs::default();
        for index in [2, 0, 1, 0] {
            crcs.insert(&plan, index, crc32fast::hash(chunks[index as usize]));
        }
        crcs.insert(&plan, 3, 1);
        assert_eq!(crcs.digest(&plan), of(DigestKind::ChunkList, &chunks));
        crcs.insert(&plan, 1, 0);
        assert_ne!(crcs.digest(&plan), of(DigestKind::ChunkList, &chunks));
    }

    #[test]
    fn a_chunk_at_the_end_of_a_large_blob_costs_a_page() {
        let plan = ChunkPlan::new(16 << 30, 4096).unwrap();
        let mut crcs = ChunkCrcs::default();
        crcs.insert(&plan, plan.count() - 1, 1);
        assert!(crcs.crcs.held_bytes() < 128 * 1024, "{}", crcs.crcs.held_bytes());
    }

    #[test]
    fn a_digest_survives_its_text() {
        let digest = of(DigestKind::Blake3, &[b"x"]);
        assert_eq!(digest.to_string().parse(), Ok(digest));
        assert_eq!(
            "md5:00".parse::<Digest>(),
            Err(DigestTextError::Kind { found: "md5".to_owned() })
        );
        assert_eq!("sha256:00".parse::<Digest>(), Err(DigestTextError::Hex { have: 2 }));
        let hex = format!("sha256:{}g", "0".repeat(63));
        assert_eq!(hex.parse::<Digest>(), Err(DigestTextError::Hex { have: 64 }));
    }
}
