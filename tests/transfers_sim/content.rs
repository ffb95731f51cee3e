//! What blobs hold: bytes that follow from a blob's id, so that nobody has to keep them, and their
//! checksums.

use std::collections::HashMap;
use std::sync::{Mutex, OnceLock};

use bytes::Bytes;
use chunking::digest::{ChunkCrcs, blake3};
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::{ChunkHead, ChunkPlan, Codec, Digest, DigestKind};
use heft::core::retry::mix;
use uuid::Uuid;

/// Places in the noise where a chunk may begin: few, so that checksums are made once.
const PLACES: u64 = 64;
const STEP: usize = 4099;

fn noise() -> &'static Bytes {
    static NOISE: OnceLock<Bytes> = OnceLock::new();
    NOISE.get_or_init(|| {
        crate::noise::noise(CHUNK_BYTES_MAX as usize + STEP * PLACES as usize, 1).into()
    })
}

fn place(blob: Uuid, index: u32) -> usize {
    (mix(blob.as_u64_pair().1 ^ u64::from(index)) % PLACES) as usize * STEP
}

/// One chunk of a blob.
pub(crate) fn chunk(blob: Uuid, index: u32, len: u32) -> Bytes {
    let at = place(blob, index);
    noise().slice(at..at + len as usize)
}

/// The head of a chunk that is sent as it is.
pub(crate) fn head(blob: Uuid, plan: &ChunkPlan, index: u32) -> ChunkHead {
    static CRCS: OnceLock<Mutex<HashMap<(usize, u32), u32>>> = OnceLock::new();
    let len = plan.len_of(index);
    let mut crcs = CRCS.get_or_init(Mutex::default).lock().unwrap();
    let known = crcs.entry((place(blob, index), len));
    let crc = *known.or_insert_with(|| ChunkHead::plain(0, &chunk(blob, index, len)).crc_raw);
    ChunkHead {
        offset: plan.offset_of(index),
        raw_len: len,
        crc_sent: crc,
        crc_raw: crc,
        codec: Codec::None,
    }
}

/// The digest of a blob. Full digests are stood in for: what matters is whether both ends have the
/// same.
pub(crate) fn digest(blob: Uuid, plan: &ChunkPlan, kind: DigestKind) -> Digest {
    match kind {
        DigestKind::ChunkList => {
            let mut crcs = ChunkCrcs::default();
            (0..plan.count())
                .for_each(|index| crcs.insert(plan, index, head(blob, plan, index).crc_raw));
            crcs.digest(plan)
        }
        DigestKind::Sha256 | DigestKind::Blake3 => Digest { kind, bytes: blake3(blob.as_bytes()) },
    }
}
