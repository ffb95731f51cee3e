//! Both ends of a dataset's way, scripted: a client that puts one and a worker that takes it, frame
//! by frame.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::cast_possible_truncation,
    clippy::wildcard_enum_match_arm
)]

use std::collections::{BTreeMap, HashMap};

use chunking::dataset::pack::Layout;
use chunking::dataset::{Cutter, Manifest, ManifestBuilder, Piece, sha256};
use chunking::digest::BlobHasher;
use chunking::message::{
    Abort, Body, DatasetList, Done, Grant, Have, Hold, HoldFlags, Lack, Lacking, Open, OpenFlags,
    Pack, PieceList, Purpose, Put, PutFlags, Reason, Refused, Release, Spread, SpreadStage,
    Verdict,
};
use chunking::{Bitmap, ChunkHead, Codec, Digest, DigestKind, Inflater, Kind, Ranges};
use heft::model::{CachePutResult, JsonModel};
use uuid::Uuid;

use crate::raw::{Frame, Raw};

pub const CHUNK: usize = 1 << 20;

/// A dataset in memory.
#[derive(Clone)]
pub struct Dataset {
    pub manifest: Manifest,
    pub pieces: HashMap<Piece, Vec<u8>>,
}

impl Dataset {
    pub fn of(files: &[(&str, &[u8])]) -> Dataset {
        let (mut builder, mut pieces) = (ManifestBuilder::default(), HashMap::new());
        for (name, bytes) in files {
            let (mut rest, mut listed) = (*bytes, Vec::new());
            while let Some(len) = Cutter.cut(rest, true) {
                let (piece, left) = rest.split_at(len);
                listed.push(Piece::of(piece));
                pieces.insert(Piece::of(piece), piece.to_vec());
                rest = left;
            }
            builder.file(*name, sha256(bytes), listed);
        }
        Dataset { manifest: builder.finish().unwrap(), pieces }
    }

    /// The files that these pieces make.
    pub fn files(
        manifest: &Manifest,
        pieces: &HashMap<Piece, Vec<u8>>,
    ) -> BTreeMap<String, Vec<u8>> {
        let file = |file: &chunking::dataset::FileEntry| {
            let bytes: Vec<u8> =
                manifest.layout(file).flat_map(|(_, _, piece)| pieces[&piece].clone()).collect();
            assert_eq!(sha256(&bytes), file.sha256, "{}", file.name);
            (file.name.clone(), bytes)
        };
        manifest.files().iter().map(file).collect()
    }
}

pub fn say<M: Body>(raw: &mut Raw, id: Uuid, corr: Uuid, message: &M) {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    raw.send(M::KIND, id, corr, "", &payload);
}

fn open_frame(id: Uuid, owner: Uuid, name: &str, size: usize, raw: &mut Raw) {
    let open = Open {
        purpose: Purpose::Dataset,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: CHUNK as u32,
        size: size as u64,
        owner,
        attempt: 0,
        name: name.to_owned().try_into().unwrap(),
    };
    say(raw, id, Uuid::nil(), &open);
}

/// How a put ended.
#[derive(Debug, Default)]
pub struct Outcome {
    pub refused: Option<Refused>,
    pub stored: Option<Spread>,
    pub over: Option<Spread>,
    pub acks: Vec<CachePutResult>,
    /// Bytes of packs that were sent.
    pub sent: u64,
    /// What else was ruled of its blobs.
    pub verdicts: Vec<Verdict>,
}

/// A put, as it is meant.
pub struct Putter<'a> {
    pub dataset: &'a Dataset,
    pub cache: &'a str,
    pub target: &'a str,
    pub replace: bool,
    pub request: Uuid,
    pub manifest: Uuid,
    /// Where in the packs a byte is wrong, so often.
    pub spoil: usize,
    /// Leave after so many chunks.
    pub leave_after: Option<usize>,
    pub deadline_ms: u64,
    /// What it says of its manifest, opened again, once that was ruled whole.
    pub takes_back: Option<TakesBack>,
}

/// What a client says of a blob that is whole.
#[derive(Clone, Copy)]
pub enum TakesBack {
    /// That it has another digest.
    WrongDone,
    /// That it gives it up.
    Abort,
}

impl<'a> Putter<'a> {
    pub fn new(dataset: &'a Dataset, cache: &'a str, target: &'a str) -> Self {
        let (request, manifest) = (Uuid::new_v4(), Uuid::new_v4());
        Putter {
            dataset,
            cache,
            target,
            replace: false,
            request,
            manifest,
            spoil: 0,
            leave_after: None,
            deadline_ms: 0,
            takes_back: None,
        }
    }

    /// Puts it, over a connection that says hello as a client of ours. `None` if it left before the
    /// end.
    pub fn put(mut self, raw: &mut Raw) -> Option<Outcome> {
        let manifest_id = self.manifest;
        let put = Put {
            digest: self.dataset.manifest.digest(),
            manifest: manifest_id,
            bytes: self.dataset.manifest.bytes(),
            files: self.dataset.manifest.files().len() as u32,
            flags: if self.replace { PutFlags::REPLACE } else { PutFlags::default() },
            deadline_ms: self.deadline_ms,
            cache_id: self.cache.to_owned().try_into().unwrap(),
            target: self.target.to_owned().try_into().unwrap(),
        };
        say(raw, self.request, Uuid::nil(), &put);
        let mut outcome = Outcome::default();
        loop {
            let frame = raw.next().expect("the leader is there");
            match frame.kind {
                Kind::Lack => {
                    let lack = Lack::decode(&frame.payload).unwrap();
                    match lack.what {
                        Lacking::Nothing => {}
                        Lacking::Manifest => {
                            let bytes = self.dataset.manifest.encode();
                            self.send_blob(raw, manifest_id, "manifest", &bytes, &mut outcome)?;
                        }
                        Lacking::Pieces => {
                            self.take_manifest_back(raw);
                            self.send_pieces(raw, &lack.pieces, &mut outcome)?;
                        }
                    }
                }
                Kind::Spread => {
                    let spread = Spread::decode(&frame.payload).unwrap();
                    match spread.stage {
                        SpreadStage::Stored => outcome.stored = Some(spread),
                        SpreadStage::Over => {
                            outcome.over = Some(spread);
                            return Some(outcome);
                        }
                    }
                }
                Kind::CacheAck => outcome.acks.push(CachePutResult::parse(&frame.payload).unwrap()),
                Kind::Refused => {
                    outcome.refused = Some(Refused::decode(&frame.payload).unwrap());
                    return Some(outcome);
                }
                Kind::Grant => {}
                Kind::Verdict => outcome.verdicts.push(Verdict::decode(&frame.payload).unwrap()),
                other => panic!("unexpected {other}"),
            }
        }
    }

    fn take_manifest_back(&self, raw: &mut Raw) {
        let Some(how) = self.takes_back else { return };
        let (id, size) = (self.manifest, self.dataset.manifest.encode().len());
        open_frame(id, self.request, "manifest", size, raw);
        match how {
            TakesBack::WrongDone => {
                let digest = Digest { kind: DigestKind::ChunkList, bytes: [7; 32] };
                say(raw, id, Uuid::nil(), &Done { digest });
            }
            TakesBack::Abort => {
                let abort = Abort { reason: Reason::CANCELLED, text: "not any more".into() };
                say(raw, id, Uuid::nil(), &abort);
            }
        }
    }

    fn send_pieces(&mut self, raw: &mut Raw, ranges: &Ranges, outcome: &mut Outcome) -> Option<()> {
        let pieces: Vec<Piece> =
            ranges.indices().map(|place| self.dataset.manifest.pieces()[place as usize]).collect();
        for part in pieces.chunks(40) {
            let layout = Layout::new(part.to_vec()).unwrap();
            let mut bytes: Vec<u8> =
                part.iter().flat_map(|piece| self.dataset.pieces[piece].clone()).collect();
            if self.spoil > 0 {
                self.spoil -= 1;
                bytes[7] ^= 1;
            }
            bytes.extend(layout.tail());
            let pack = Uuid::new_v4();
            say(raw, pack, self.request, &Pack { pieces: PieceList::new(part.to_vec()) });
            outcome.sent += bytes.len() as u64;
            self.send_blob(raw, pack, "", &bytes, outcome)?;
        }
        Some(())
    }

    fn send_blob(
        &mut self,
        raw: &mut Raw,
        id: Uuid,
        name: &str,
        bytes: &[u8],
        outcome: &mut Outcome,
    ) -> Option<()> {
        open_frame(id, self.request, name, bytes.len(), raw);
        let (mut window, mut hasher) = (0u32, BlobHasher::new(DigestKind::ChunkList));
        for (index, chunk) in bytes.chunks(CHUNK).enumerate() {
            while window == 0 {
                let frame = raw.next().expect("the leader is there");
                match frame.kind {
                    Kind::Grant => window += Grant::decode(&frame.payload).unwrap().window,
                    Kind::CacheAck => {
                        outcome.acks.push(CachePutResult::parse(&frame.payload).unwrap())
                    }
                    Kind::Lack => {}
                    Kind::Verdict => {
                        outcome.verdicts.push(Verdict::decode(&frame.payload).unwrap())
                    }
                    other => panic!("unexpected {other} while a blob is sent"),
                }
            }
            window -= 1;
            let head = ChunkHead::plain((index * CHUNK) as u64, chunk);
            hasher.update(chunk, head.crc_raw);
            raw.send(Kind::Chunk, id, Uuid::nil(), "", &[&head.encode()[..], chunk].concat());
            if let Some(left) = &mut self.leave_after {
                *left -= 1;
                if *left == 0 {
                    return None;
                }
            }
        }
        say(raw, id, Uuid::nil(), &Done { digest: hasher.finish() });
        loop {
            let frame = raw.next().expect("the leader is there");
            match frame.kind {
                Kind::Grant => {}
                Kind::Verdict if frame.msg_id == id => {
                    assert_eq!(Verdict::decode(&frame.payload).unwrap(), Verdict::Ok);
                    return Some(());
                }
                Kind::Verdict => outcome.verdicts.push(Verdict::decode(&frame.payload).unwrap()),
                Kind::CacheAck => outcome.acks.push(CachePutResult::parse(&frame.payload).unwrap()),
                other => panic!("unexpected {other} after Done"),
            }
        }
    }
}

/// A worker that holds sets in memory.
pub struct FakeWorker {
    pub raw: Raw,
    pub id: Uuid,
    /// What jobs see: the files of a dataset.
    pub shown: BTreeMap<String, BTreeMap<String, Vec<u8>>>,
    pub pieces: HashMap<Piece, Vec<u8>>,
    /// Bytes of chunks of packs that came.
    pub received: u64,
    hold: Option<(Uuid, Hold)>,
    manifest: Option<Manifest>,
    packs: HashMap<Uuid, Layout>,
    blobs: HashMap<Uuid, (Open, Bitmap, Vec<u8>)>,
    /// What it answers instead of holding anything.
    pub fails_with: Option<String>,
}

impl FakeWorker {
    /// A worker that has said that it has nothing.
    pub fn new(raw: Raw, id: Uuid) -> Self {
        Self::with(raw, id, Vec::new())
    }

    /// A worker that has said this of its datasets.
    pub fn with(raw: Raw, id: Uuid, datasets: Vec<chunking::message::DatasetEntry>) -> Self {
        let mut worker = FakeWorker {
            raw,
            id,
            shown: BTreeMap::new(),
            pieces: HashMap::new(),
            received: 0,
            hold: None,
            manifest: None,
            packs: HashMap::new(),
            blobs: HashMap::new(),
            fails_with: None,
        };
        worker.have(datasets, true);
        worker
    }

    pub fn have(&mut self, datasets: Vec<chunking::message::DatasetEntry>, anew: bool) {
        let have = Have {
            anew: anew.into(),
            budget: 1 << 40,
            used: 0,
            datasets: DatasetList::new(datasets),
        };
        say(&mut self.raw, Uuid::nil(), Uuid::nil(), &have);
    }

    /// Takes frames until `until` finds what it waits for in one.
    pub fn run_until(&mut self, mut until: impl FnMut(&mut Self, &Frame) -> bool) {
        loop {
            let frame = self.raw.next().expect("the leader is there");
            self.hear(&frame);
            if until(self, &frame) {
                return;
            }
        }
    }

    /// Takes frames until a dataset of this name is shown.
    pub fn run_until_shown(&mut self, cache: &str) {
        while !self.shown.contains_key(cache) {
            let frame = self.raw.next().expect("the leader is there");
            self.hear(&frame);
        }
    }

    fn hear(&mut self, frame: &Frame) {
        match frame.kind {
            Kind::Hold => {
                let hold = Hold::decode(&frame.payload).unwrap();
                if self.hold.as_ref().is_none_or(|(version, _)| *version != frame.msg_id) {
                    self.manifest = None;
                }
                self.hold = Some((frame.msg_id, hold));
                self.show_if_whole();
            }
            Kind::Pack => {
                let pack = Pack::decode(&frame.payload).unwrap();
                self.packs
                    .insert(frame.msg_id, Layout::new(pack.pieces.as_slice().to_vec()).unwrap());
            }
            Kind::Open => self.open(frame),
            Kind::Chunk => {
                let (head, sent) = ChunkHead::decode(&frame.payload).unwrap();
                let (mut inflater, mut scratch) = (Inflater::new(), Vec::new());
                let raw = head.raw(sent, &mut inflater, &mut scratch).unwrap();
                self.received += sent.len() as u64;
                let (_, held, bytes) = self.blobs.get_mut(&frame.msg_id).expect("an open transfer");
                let at = head.offset as usize;
                bytes[at..at + raw.len()].copy_from_slice(raw);
                held.insert((at / CHUNK) as u32);
                let more = Grant {
                    window: 1,
                    reason: Default::default(),
                    text: "".into(),
                    held: Ranges::default(),
                    part: Default::default(),
                };
                say(&mut self.raw, frame.msg_id, Uuid::nil(), &more);
            }
            Kind::Done => self.done(frame.msg_id),
            Kind::Release => {
                let release = Release::decode(&frame.payload).unwrap();
                self.shown.remove(release.cache_id.as_str());
                self.hold.take_if(|(version, _)| *version == frame.msg_id);
            }
            _ => {}
        }
    }

    fn open(&mut self, frame: &Frame) {
        let open = Open::decode(&frame.payload).unwrap();
        let chunks = (open.size as usize).div_ceil(CHUNK) as u32;
        let mut held = Bitmap::new(chunks);
        if let Some(layout) = self.packs.get(&frame.msg_id) {
            for index in 0..chunks {
                let start = u64::from(index) * CHUNK as u64;
                let places = layout.pieces_in(start..start + CHUNK as u64);
                let needed = places
                    .into_iter()
                    .any(|place| !self.pieces.contains_key(&layout.pieces()[place]));
                if !needed {
                    held.insert(index);
                }
            }
        }
        let grant = Grant {
            window: 8,
            reason: Default::default(),
            text: "".into(),
            held: held.held(),
            part: Default::default(),
        };
        self.blobs.insert(frame.msg_id, (open.clone(), held, vec![0; open.size as usize]));
        say(&mut self.raw, frame.msg_id, Uuid::nil(), &grant);
    }

    fn done(&mut self, id: Uuid) {
        let (_, held, bytes) = self.blobs.remove(&id).expect("an open transfer");
        assert!(held.is_complete(), "Done comes when all was sent");
        say(&mut self.raw, id, Uuid::nil(), &Verdict::Ok);
        match self.packs.remove(&id) {
            Some(layout) => {
                for (place, piece) in layout.pieces().iter().enumerate() {
                    let range = layout.range(place).unwrap();
                    let bytes = &bytes[range.start as usize..range.end as usize];
                    if piece.is(bytes) {
                        self.pieces.insert(*piece, bytes.to_vec());
                    }
                }
            }
            None => {
                self.manifest = Some(Manifest::decode(&bytes).unwrap());
                if let (Some(text), Some((version, hold))) = (&self.fails_with, &self.hold) {
                    let result = CachePutResult::failed(hold.cache_id.as_str(), text.as_str());
                    let version = *version;
                    self.raw.send(Kind::CacheAck, Uuid::nil(), version, "", &result.to_json());
                    self.hold = None;
                    return;
                }
                self.say_lack();
            }
        }
        self.show_if_whole();
    }

    fn lacking(&self) -> Bitmap {
        let pieces = self.manifest.as_ref().map(Manifest::pieces).unwrap_or_default();
        let mut lacking = Bitmap::new(pieces.len() as u32);
        for (place, piece) in pieces.iter().enumerate() {
            if !self.pieces.contains_key(piece) {
                lacking.insert(place as u32);
            }
        }
        lacking
    }

    fn say_lack(&mut self) {
        let Some((version, _)) = self.hold else { return };
        let lacking = self.lacking();
        let manifest = self.manifest.as_ref().unwrap();
        let bytes = lacking
            .held()
            .indices()
            .map(|place| u64::from(manifest.pieces()[place as usize].len))
            .sum();
        let what = if lacking.held_count() == 0 { Lacking::Nothing } else { Lacking::Pieces };
        say(&mut self.raw, version, Uuid::nil(), &Lack { what, bytes, pieces: lacking.held() });
    }

    fn show_if_whole(&mut self) {
        let (Some((version, hold)), Some(manifest)) = (&self.hold, &self.manifest) else { return };
        if !hold.flags.has(HoldFlags::COMMITTED) || self.lacking().held_count() > 0 {
            return;
        }
        assert_eq!(manifest.digest(), hold.digest);
        let (version, cache) = (*version, hold.cache_id.as_str().to_owned());
        let files = Dataset::files(manifest, &self.pieces);
        let result = CachePutResult::stored(cache.clone(), files.len() as u64, 0);
        self.shown.insert(cache, files);
        self.raw.send(Kind::CacheAck, Uuid::nil(), version, "", &result.to_json());
        (self.hold, self.manifest) = (None, None);
    }
}
