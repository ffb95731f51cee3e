//! A test's leader that takes datasets: it asks for what it lacks, takes manifest and packs, and
//! checks them.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::collections::{HashMap, VecDeque};
use std::path::Path;

use chunking::dataset::pack::Layout;
use chunking::dataset::{Manifest, Piece};
use chunking::message::{
    Body, Done, Features, Lack, Lacking, Open, Pack, Purpose, Put, Spread, SpreadStage, Verdict,
};
use chunking::{ChunkHead, Codec, DigestKind, Kind};
use heft::model::{CachePutResult, JsonModel};
use tempfile::TempDir;
use uuid::Uuid;

use crate::leader::{FEATURES, FakeLeader, Peer, Seen};
use crate::transfers::{self, ranges};

/// The next connection, of a leader that takes datasets.
pub async fn taking(leader: &FakeLeader) -> Peer {
    let mut peer = leader.accept().await;
    let announced = peer.hello.config().heft.unwrap().features;
    assert!(announced.iter().any(|name| name == "datasets"), "{announced:?}");
    let more = Features::TRANSFERS.with(Features::DATASETS).with(Features::ZSTD);
    peer.welcome_with(FEATURES.with(more)).await;
    peer
}

pub fn dataset(files: &[(&str, &[u8])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    dir
}

/// What the leader of a test has, and how it talks of one put.
pub struct PackIndex {
    pub peer: Peer,
    pub request: Uuid,
    pub put: Put,
    pub pieces: HashMap<Piece, Vec<u8>>,
    pub manifest: Manifest,
    /// Payload bytes that came.
    pub received: u64,
    /// Packs that were opened while another one came.
    pub aside: VecDeque<Seen>,
}

impl PackIndex {
    /// The put that comes next.
    pub async fn begin(mut peer: Peer) -> Self {
        let seen = peer.next().await;
        PackIndex::heard(peer, &seen)
    }

    /// The put that has come.
    pub fn heard(peer: Peer, seen: &Seen) -> Self {
        assert_eq!(seen.kind(), Kind::Put);
        PackIndex {
            peer,
            request: seen.msg_id,
            put: Put::decode(&seen.payload).unwrap(),
            pieces: HashMap::new(),
            manifest: Manifest::default(),
            received: 0,
            aside: VecDeque::new(),
        }
    }

    pub async fn hear_put(&mut self) {
        let seen = self.peer.next().await;
        assert_eq!(seen.kind(), Kind::Put);
        self.put = Put::decode(&seen.payload).unwrap();
        self.request = seen.msg_id;
    }

    pub async fn say<M: Body>(&mut self, message: &M) {
        let mut payload = Vec::new();
        message.encode(&mut payload);
        self.peer.send(M::KIND, Uuid::nil(), self.request, "", &payload).await;
    }

    pub async fn lack(&mut self, what: Lacking, bytes: u64, pieces: &[(u32, u32)]) {
        self.say(&Lack { what, bytes, pieces: ranges(pieces) }).await;
    }

    /// Says what lacks of the manifest's pieces, up to so many runs; whether that is anything.
    pub async fn lack_pieces(&mut self, runs_max: usize) -> bool {
        let lacking: Vec<(u32, &Piece)> = (0..)
            .zip(self.manifest.pieces())
            .filter(|(_, piece)| !self.pieces.contains_key(piece))
            .collect();
        let bytes = lacking.iter().map(|(_, piece)| u64::from(piece.len)).sum();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (place, _) in &lacking {
            match runs.last_mut() {
                Some((first, count)) if *first + *count == *place => *count += 1,
                _ => runs.push((*place, 1)),
            }
        }
        runs.truncate(runs_max);
        let what = if runs.is_empty() { Lacking::Nothing } else { Lacking::Pieces };
        self.lack(what, bytes, &runs).await;
        !runs.is_empty()
    }

    /// Takes the manifest, which was asked for.
    pub async fn take_manifest(&mut self) {
        let seen = self.next_of(Kind::Open).await;
        let open = Open::decode(&seen.payload).unwrap();
        assert_eq!(seen.msg_id, self.put.manifest);
        assert_eq!(
            (open.purpose, open.owner, open.digest),
            (Purpose::Dataset, self.request, DigestKind::ChunkList)
        );
        let bytes = self.take_blob(seen.msg_id, open.size, usize::MAX).await.unwrap();
        self.manifest = Manifest::decode(&bytes).unwrap();
        assert_eq!(self.manifest.digest(), self.put.digest);
        assert_eq!(self.manifest.bytes(), self.put.bytes);
    }

    /// Takes a pack that was announced and opened, and what is in it.
    pub async fn take_pack(&mut self) -> Vec<Piece> {
        let (id, list, size) = self.opened_pack().await;
        let bytes = self.take_blob(id, size, usize::MAX).await.unwrap();
        let layout = Layout::new(list.clone()).unwrap();
        assert!(bytes.ends_with(&layout.tail()));
        for (place, piece) in list.iter().enumerate() {
            let range = layout.range(place).unwrap();
            let content =
                &bytes[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()];
            assert!(piece.is(content));
            self.pieces.insert(*piece, content.to_vec());
        }
        list
    }

    pub async fn opened_pack(&mut self) -> (Uuid, Vec<Piece>, u64) {
        let seen = self.next_of(Kind::Pack).await;
        assert_eq!(seen.corr_id, self.request);
        let list = Pack::decode(&seen.payload).unwrap().pieces.as_slice().to_vec();
        let opened = self.next().await;
        assert_eq!(
            (opened.kind(), opened.msg_id),
            (Kind::Open, seen.msg_id),
            "right behind its list"
        );
        let open = Open::decode(&opened.payload).unwrap();
        assert_eq!((open.purpose, open.owner), (Purpose::Dataset, self.request));
        assert_eq!(open.size, Layout::new(list.clone()).unwrap().size());
        (seen.msg_id, list, open.size)
    }

    /// Takes the chunks of a blob, and all of it unless it ends after so many chunks.
    pub async fn take_blob(&mut self, id: Uuid, size: u64, chunks_max: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        self.peer.message(id, &transfers::grant(8, &[])).await;
        let mut taken = 0;
        loop {
            let seen = self.peer.next().await;
            if seen.kind() == Kind::Done && seen.msg_id == id {
                let done = Done::decode(&seen.payload).unwrap();
                assert_eq!(done.digest, transfers::digest(&bytes, DigestKind::ChunkList));
                self.peer.message(id, &Verdict::Ok).await;
                return Some(bytes);
            }
            if matches!(seen.kind(), Kind::Pack | Kind::Open) {
                self.aside.push_back(seen);
                continue;
            }
            assert_eq!((seen.kind(), seen.msg_id), (Kind::Chunk, id));
            taken += 1;
            let (head, sent) = ChunkHead::decode(&seen.payload).unwrap();
            let start = usize::try_from(head.offset).unwrap();
            let room = &mut bytes[start..start + head.raw_len as usize];
            match head.codec {
                Codec::None => room.copy_from_slice(sent),
                codec @ (Codec::Gzip | Codec::Brotli | Codec::Zstd) => {
                    chunking::Inflater::new().inflate(codec, sent, room).unwrap()
                }
            }
            self.received += sent.len() as u64;
            if taken >= chunks_max {
                return None;
            }
            self.peer.message(id, &transfers::grant(1, &[])).await;
        }
    }

    pub async fn next(&mut self) -> Seen {
        match self.aside.pop_front() {
            Some(seen) => seen,
            None => self.peer.next().await,
        }
    }

    pub async fn next_of(&mut self, kind: Kind) -> Seen {
        let seen = self.next().await;
        assert_eq!(seen.kind(), kind);
        seen
    }

    pub async fn spread(&mut self, stage: SpreadStage, counts: [u32; 5], moved: u64) {
        let [targets, ok, skipped, failed, missing] = counts;
        let received = self.received;
        let text = "".into();
        self.say(&Spread { stage, targets, ok, skipped, failed, missing, received, moved, text })
            .await;
    }

    pub async fn ack(&mut self, ack: CachePutResult) {
        self.peer
            .send(Kind::CacheAck, Uuid::nil(), self.request, "cache.ack.set-1", &ack.to_json())
            .await;
    }

    /// The files as they are put together from what came.
    pub fn check_files(&self, dir: &Path) {
        for file in self.manifest.files() {
            let content: Vec<u8> = self
                .manifest
                .layout(file)
                .flat_map(|(_, _, piece)| self.pieces[&piece].clone())
                .collect();
            assert!(content == std::fs::read(dir.join(&file.name)).unwrap(), "{}", file.name);
        }
    }
}

pub fn worker(number: u128, name: Option<&str>, ack: CachePutResult) -> CachePutResult {
    ack.of_worker(Uuid::from_u128(number), name)
}
