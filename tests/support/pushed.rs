//! Datasets as a test's leader sends them: manifest, packs, and what a worker answers.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use chunking::dataset::pack::Layout;
use chunking::dataset::{Cutter, Manifest, ManifestBuilder, Piece, sha256};
use chunking::digest::BlobHasher;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    Body, DatasetEntry, DatasetState, Done, Grant, Have, Hold, HoldFlags, Lack, Lacking, Open,
    OpenFlags, Pack, PieceList, Purpose, Verdict,
};
use chunking::{ChunkHead, Codec, DigestKind, Kind};
use heft::model::{CachePutResult, JsonModel};
use uuid::Uuid;

use crate::fake_leader::Conn;

pub const MIB: usize = 1024 * 1024;

/// One content under a CacheId.
#[derive(Clone, Debug)]
pub struct Data {
    pub cache: String,
    pub version: Uuid,
    pub manifest: Manifest,
    pub files: Vec<(String, Vec<u8>)>,
}

fn cut(mut rest: &[u8]) -> Vec<&[u8]> {
    let mut pieces = Vec::new();
    while let Some(len) = Cutter.cut(rest, true) {
        let (piece, left) = rest.split_at(len);
        pieces.push(piece);
        rest = left;
    }
    pieces
}

/// A blob with the pieces of a dataset.
pub struct PackBlob {
    pub id: Uuid,
    pub pieces: Vec<Piece>,
    pub bytes: Vec<u8>,
}

impl Data {
    pub fn new(cache: &str, files: &[(&str, Vec<u8>)]) -> Self {
        let mut builder = ManifestBuilder::default();
        for (name, bytes) in files {
            builder.file(*name, sha256(bytes), cut(bytes).into_iter().map(Piece::of).collect());
        }
        let files = files.iter().map(|(name, bytes)| ((*name).to_owned(), bytes.clone())).collect();
        let (cache, version) = (cache.to_owned(), Uuid::new_v4());
        Data { cache, version, manifest: builder.finish().unwrap(), files }
    }

    fn bytes_of(&self, place: u32) -> Vec<u8> {
        for entry in self.manifest.files() {
            for (offset, found, piece) in self.manifest.layout(entry) {
                if found == place {
                    let (_, bytes) =
                        self.files.iter().find(|(name, _)| *name == entry.name).unwrap();
                    let at = usize::try_from(offset).unwrap();
                    return bytes[at..at + piece.len as usize].to_vec();
                }
            }
        }
        panic!("no piece {place}");
    }

    /// A pack of these pieces.
    pub fn pack(&self, places: impl IntoIterator<Item = u32>) -> PackBlob {
        let places: Vec<u32> = places.into_iter().collect();
        let pieces: Vec<Piece> =
            places.iter().map(|place| self.manifest.pieces()[*place as usize]).collect();
        let mut bytes: Vec<u8> = places.iter().flat_map(|place| self.bytes_of(*place)).collect();
        bytes.extend(Layout::new(pieces.clone()).unwrap().tail());
        PackBlob { id: Uuid::new_v4(), pieces, bytes }
    }

    pub fn hold_message(&self, committed: bool) -> Hold {
        Hold {
            flags: if committed { HoldFlags::COMMITTED } else { HoldFlags::default() },
            digest: self.manifest.digest(),
            bytes: self.manifest.bytes(),
            files: u32::try_from(self.files.len()).unwrap(),
            cache_id: self.cache.clone().try_into().unwrap(),
        }
    }

    pub async fn hold(&self, conn: &mut Conn, committed: bool) {
        conn.say(self.version, &self.hold_message(committed)).await;
    }

    fn open_message(&self, size: usize) -> Open {
        Open {
            purpose: Purpose::Dataset,
            codec: Codec::None,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::KEEPS_SOURCE,
            chunk_bytes: CHUNK_BYTES_MAX,
            size: size as u64,
            owner: self.version,
            attempt: 0,
            name: String::new().try_into().unwrap(),
        }
    }

    /// Sends the manifest; nothing if the worker has it.
    pub async fn send_manifest(&self, conn: &mut Conn) -> Verdict {
        self.send_manifest_bytes(conn, &self.manifest.encode()).await
    }

    pub async fn send_manifest_bytes(&self, conn: &mut Conn, bytes: &[u8]) -> Verdict {
        let id = self.version;
        conn.say(id, &self.open_message(bytes.len())).await;
        let answers = |kind| matches!(kind, Kind::Verdict | Kind::Grant);
        let got = conn.find("an answer to Open", |got| got.msg_id == id && answers(got.kind)).await;
        if got.kind == Kind::Verdict {
            return Verdict::decode(&got.payload).unwrap();
        }
        for index in 0..bytes.len().div_ceil(MIB) {
            conn.chunk(id, bytes, index, false).await;
        }
        conn.say(id, &digest(bytes)).await;
        conn.about(id).await
    }

    /// Announces and opens a pack.
    pub async fn open_pack(&self, conn: &mut Conn, pack: &PackBlob) -> Grant {
        let mut payload = Vec::new();
        Pack { pieces: PieceList::new(pack.pieces.clone()) }.encode(&mut payload);
        conn.send_as(Kind::Pack, pack.id, self.version, &payload).await;
        conn.say(pack.id, &self.open_message(pack.bytes.len())).await;
        conn.about(pack.id).await
    }

    /// Sends what a worker lacks of a pack, and Done. Gives how many chunks went, and the verdict.
    pub async fn send_pack(&self, conn: &mut Conn, pack: &PackBlob) -> (usize, Verdict) {
        let grant = self.open_pack(conn, pack).await;
        let held: Vec<u32> = grant.held.indices().collect();
        let mut window = grant.window;
        let mut sent = 0;
        for index in 0..pack.bytes.len().div_ceil(MIB) {
            if held.contains(&u32::try_from(index).unwrap()) {
                continue;
            }
            while window == 0 {
                window += conn.about::<Grant>(pack.id).await.window;
            }
            conn.chunk(pack.id, &pack.bytes, index, false).await;
            window -= 1;
            sent += 1;
        }
        conn.say(pack.id, &digest(&pack.bytes)).await;
        (sent, conn.about(pack.id).await)
    }

    pub async fn lack(&self, conn: &mut Conn) -> Lack {
        conn.about(self.version).await
    }

    /// Sends packs until nothing lacks. Gives the bytes that lacked at first.
    pub async fn send_lacking(&self, conn: &mut Conn) -> u64 {
        let mut lack = self.lack(conn).await;
        let first = lack.bytes;
        while lack.what == Lacking::Pieces {
            let places: Vec<u32> = lack.pieces.indices().collect();
            for some in places.chunks(40) {
                let pack = self.pack(some.iter().copied());
                assert_eq!(self.send_pack(conn, &pack).await.1, Verdict::Ok);
                lack = self.lack(conn).await;
            }
        }
        assert_eq!((lack.what, lack.bytes), (Lacking::Nothing, 0));
        first
    }

    /// The whole way. Gives the acknowledgement, and the bytes that lacked.
    pub async fn push(&self, conn: &mut Conn) -> (CachePutResult, u64) {
        self.hold(conn, true).await;
        assert_eq!(self.send_manifest(conn).await, Verdict::Ok);
        let lacked = self.send_lacking(conn).await;
        (self.acked(conn).await, lacked)
    }

    pub async fn acked(&self, conn: &mut Conn) -> CachePutResult {
        let (result, subject) = acked(conn, self.version).await;
        assert_eq!(subject, format!("cache.ack.{}", self.cache), "T07");
        result
    }
}

pub fn digest(blob: &[u8]) -> Done {
    let mut hasher = BlobHasher::new(DigestKind::ChunkList);
    blob.chunks(MIB).for_each(|raw| hasher.update(raw, ChunkHead::plain(0, raw).crc_raw));
    Done { digest: hasher.finish() }
}

/// The acknowledgement with this CorrId, and its subject.
pub async fn acked(conn: &mut Conn, corr_id: Uuid) -> (CachePutResult, String) {
    let got =
        conn.find("a CacheAck", |got| got.kind == Kind::CacheAck && got.corr_id == corr_id).await;
    (CachePutResult::parse(&got.payload).unwrap(), got.subject)
}

/// The next Have.
pub async fn have(conn: &mut Conn) -> Have {
    let got = conn.find("a Have", |got| got.kind == Kind::Have).await;
    assert!(got.msg_id.is_nil());
    Have::decode(&got.payload).unwrap()
}

/// The next entry of a Have about this dataset, in this state.
pub async fn said(conn: &mut Conn, cache: &str, state: DatasetState) -> DatasetEntry {
    loop {
        let found = have(conn).await;
        let entry = found
            .datasets
            .as_slice()
            .iter()
            .find(|dataset| dataset.cache_id.as_str() == cache && dataset.state == state);
        if let Some(entry) = entry {
            return entry.clone();
        }
    }
}
