//! The map file of a blob: the blob's identity, which chunks are present, the length and hash of
//! each, and, once everything is synced, the seal. Every part has its own checksum, so damage is
//! confined to that part.

use std::collections::BTreeMap;
use std::fmt;

use chunking::message::{Message, Open};
use chunking::{ChunkHead, Codec, Digest, DigestKind, Kind as FrameKind};
use uuid::Uuid;

use super::disk::{Disk, DiskFile};
use super::format::{HEADER_BYTES, Kind, Owner, StoreError, expect_header, full, header};

/// Where the seal is.
const SEAL_AT: usize = HEADER_BYTES;
const SEAL_BYTES: usize = 64;
const SEALED: u8 = 1;

/// Where it is said what the blob is: a length, a checksum and the frame that opened it.
const ABOUT_AT: usize = SEAL_AT + SEAL_BYTES;

/// Where the chunks begin.
pub const CHUNKS_AT: u64 = 8192;

/// Bytes for each chunk.
pub const CHUNK_ENTRY_BYTES: usize = 24;
const HERE: u8 = 1;

/// Entries that are read at a time.
const READ_ENTRIES: usize = 4096;

/// What is known of a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// As it was opened.
    pub open: Open,
    /// The chunks that are here, with the bytes that each has in the file.
    pub chunks: BTreeMap<u32, (ChunkHead, u32)>,
    /// The digest of the whole blob, once the blob is durable.
    pub seal: Option<Digest>,
    /// What is damaged, of the map or of the blob's file.
    pub damage: Vec<Damage>,
}

/// A place in a file of a blob that is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The file, with its directory.
    pub file: String,
    /// Where in it.
    pub at: u64,
    /// What is wrong there.
    pub what: String,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is damaged at offset {}: {}", self.file, self.at, self.what)
    }
}

/// What a map begins with: header, and what the blob is. The seal is not set.
pub fn front(owner: Owner, blob: Uuid, open: &Open) -> Vec<u8> {
    let mut bytes = header(Kind::Map, owner, 0).to_vec();
    bytes.resize(ABOUT_AT, 0);
    bytes.extend(about(blob, open));
    bytes
}

fn about(blob: Uuid, open: &Open) -> Vec<u8> {
    let mut message = Vec::new();
    Message::Open(open.clone()).encode(&mut message);
    let mut bytes = Vec::with_capacity(message.len() + 8);
    bytes.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    bytes.extend_from_slice(&salted(blob, 0, &message).to_be_bytes());
    bytes.extend(message);
    bytes
}

/// Bytes of the whole map.
pub fn bytes(open: &Open) -> u64 {
    entry_at(
        u32::try_from(open.size.div_ceil(u64::from(open.chunk_bytes.max(1)))).unwrap_or(u32::MAX),
    )
}

/// Where the entry of a chunk is.
pub fn entry_at(index: u32) -> u64 {
    CHUNKS_AT + u64::from(index) * CHUNK_ENTRY_BYTES as u64
}

/// The entry of a chunk that is in the file with so many bytes.
pub fn entry(blob: Uuid, index: u32, head: &ChunkHead, len: u32) -> Vec<u8> {
    let mut bytes = vec![HERE, head.codec.code(), 0, 0];
    for field in [len, head.raw_len, head.crc_sent, head.crc_raw] {
        bytes.extend_from_slice(&field.to_be_bytes());
    }
    let crc = salted(blob, u64::from(index) + 1, &bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    bytes
}

/// Where the seal is, and what it is.
pub fn seal(blob: Uuid, digest: &Digest) -> (u64, Vec<u8>) {
    let mut bytes = vec![SEALED, digest.kind.code(), 0, 0];
    bytes.extend_from_slice(&digest.bytes);
    bytes.resize(SEAL_BYTES - 4, 0);
    let crc = salted(blob, u64::MAX, &bytes);
    bytes.extend_from_slice(&crc.to_be_bytes());
    (SEAL_AT as u64, bytes)
}

/// A checksum that is good for one place of one blob's map only.
fn salted(blob: Uuid, place: u64, bytes: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(blob.as_bytes());
    crc.update(&place.to_be_bytes());
    crc.update(bytes);
    crc.finalize()
}

impl Map {
    /// Reads a map. An error if it is not known what the blob is; other damage is noted.
    pub fn read(
        disk: &dyn Disk,
        path: &str,
        file: &dyn DiskFile,
        owner: Owner,
        blob: Uuid,
    ) -> Result<Self, StoreError> {
        expect_header(disk, path, file, Kind::Map, owner)?;
        let failed = |error| StoreError::io("read", disk, path, error);
        let mut front = vec![0; usize::try_from(CHUNKS_AT).unwrap_or(8192)];
        let read = file.read_at(0, &mut front).map_err(failed)?;
        front.truncate(read);
        let bad = |what: &str| StoreError::damage(disk, path, ABOUT_AT as u64, what);
        let (len, rest) = front
            .get(ABOUT_AT..)
            .and_then(|about| about.split_first_chunk::<4>())
            .ok_or_else(|| bad("the description of the blob is truncated"))?;
        let (crc, rest) = rest
            .split_first_chunk::<4>()
            .ok_or_else(|| bad("the description of the blob is truncated"))?;
        let message =
            usize::try_from(u32::from_be_bytes(*len)).ok().and_then(|len| rest.get(..len));
        let message = message.ok_or_else(|| bad("the description of the blob is truncated"))?;
        if salted(blob, 0, message) != u32::from_be_bytes(*crc) {
            return Err(bad("the checksum of the description of the blob is wrong"));
        }
        let Ok(Message::Open(open)) = Message::decode(FrameKind::Open, message) else {
            return Err(bad("the description of the blob cannot be read"));
        };
        let mut map = Map { open, chunks: BTreeMap::new(), seal: None, damage: Vec::new() };
        match front.get(SEAL_AT..ABOUT_AT).and_then(|seal| read_seal(blob, seal)) {
            Some(seal) => map.seal = seal,
            None => {
                let what = "the seal is damaged".to_owned();
                map.damage.push(Damage { file: full(disk, path), at: SEAL_AT as u64, what });
            }
        }
        map.read_chunks(file, blob, || full(disk, path)).map_err(failed)?;
        Ok(map)
    }

    fn read_chunks(
        &mut self,
        file: &dyn DiskFile,
        blob: Uuid,
        name: impl Fn() -> String,
    ) -> std::io::Result<()> {
        let count = self.open.size.div_ceil(u64::from(self.open.chunk_bytes.max(1)));
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let mut entries = vec![0; READ_ENTRIES * CHUNK_ENTRY_BYTES];
        let mut index = 0;
        while index < count {
            let read = file.read_at(entry_at(index), &mut entries)?;
            let read = entries.get(..read).unwrap_or_default();
            if read.is_empty() {
                break;
            }
            for bytes in read.chunks(CHUNK_ENTRY_BYTES).take((count - index) as usize) {
                match read_entry(blob, index, self.open.chunk_bytes, bytes) {
                    Some(Some(chunk)) => {
                        self.chunks.insert(index, chunk);
                    }
                    Some(None) => {}
                    None => {
                        let what = format!("the entry of chunk {index} is damaged");
                        self.damage.push(Damage { file: name(), at: entry_at(index), what });
                    }
                }
                index += 1;
            }
        }
        Ok(())
    }

    /// Whether all chunks are here.
    pub fn is_whole(&self) -> bool {
        let count = self.open.size.div_ceil(u64::from(self.open.chunk_bytes.max(1)));
        self.chunks.len() as u64 == count
    }
}

/// `None` if it is damaged, `Some(None)` if there is none.
fn read_seal(blob: Uuid, bytes: &[u8]) -> Option<Option<Digest>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(None);
    }
    let (fields, crc) = bytes.split_last_chunk::<4>()?;
    if salted(blob, u64::MAX, fields) != u32::from_be_bytes(*crc) {
        return None;
    }
    let (head, rest) = fields.split_first_chunk::<4>()?;
    let (bytes, _) = rest.split_first_chunk::<32>()?;
    let [SEALED, kind, ..] = *head else { return None };
    Some(Some(Digest { kind: DigestKind::from_code(kind)?, bytes: *bytes }))
}

/// The same for the entry of a chunk.
fn read_entry(
    blob: Uuid,
    index: u32,
    chunk_bytes: u32,
    bytes: &[u8],
) -> Option<Option<(ChunkHead, u32)>> {
    if bytes.iter().all(|byte| *byte == 0) {
        return Some(None);
    }
    let (fields, crc) = bytes.split_last_chunk::<4>()?;
    if salted(blob, u64::from(index) + 1, fields) != u32::from_be_bytes(*crc) {
        return None;
    }
    let (head, rest) = fields.split_first_chunk::<4>()?;
    let [HERE, codec, ..] = *head else { return None };
    let mut numbers = rest.chunks_exact(4).filter_map(|field| field.first_chunk::<4>());
    let mut number = || numbers.next().map(|field| u32::from_be_bytes(*field));
    let (len, raw_len, crc_sent, crc_raw) = (number()?, number()?, number()?, number()?);
    let offset = u64::from(index) * u64::from(chunk_bytes);
    let head =
        ChunkHead { offset, raw_len, crc_sent, crc_raw, codec: Codec::try_from(codec).ok()? };
    (len <= chunk_bytes).then_some(Some((head, len)))
}
