//! Snapshots: the state after a given record, so that earlier records need not be replayed.
//!
//! A snapshot is built from the previous one and the finished segments, in the background. It is
//! written under a temporary name, synced and renamed. Payloads stay in their segments; where
//! little of a file is still needed, that part is copied into the snapshot and the file can be
//! removed.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::Arc;

use super::codec::{
    self, Names, Reader, put_bool, put_len, put_str, put_u8, put_u32, put_u64, put_uuid,
};
use super::disk::{Disk, DiskFile, How, read_exact};
use super::format::{
    CONSENSUS, FileNo, HEADER_BYTES, Kind, NEW, Owner, Place, StoreError, expect_header, header,
    read_place, settle_new,
};
use super::replay::{Held, Key, Replay, UpTo, load};
use crate::core::cluster::Cluster;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ClientId, Index, JobId, Micros, ResultId};
use crate::core::job::Job;
use crate::core::state::State;

/// Bytes before the body of a block: kind, three of nothing, length, checksum of the body, checksum
/// of the head.
const BLOCK_HEAD_BYTES: usize = 16;

/// A block is written when it has this many bytes.
const BLOCK_BYTES: usize = 1 << 20;

/// No block is longer: one payload more than fits.
const BLOCK_BYTES_MAX: usize = 32 << 20;

/// A file stays if at least this percentage of its bytes is needed. From other files the needed
/// bytes are copied.
const NEEDED_PERCENT_MIN: u64 = 50;

const SUMMARY: u8 = 1;
const PAYLOADS: u8 = 2;
const JOBS: u8 = 3;
const CAPS: u8 = 4;
const HELD: u8 = 5;
const END: u8 = 6;
const DATASETS: u8 = 7;
const DATASETS_REMOVED: u8 = 8;
const STAGED: u8 = 9;
const CLUSTER: u8 = 10;

/// What was made.
#[derive(Debug)]
pub struct Report {
    /// The record it stands at.
    pub index: u64,
    /// Payloads that lie in it now, where they were and where they are.
    pub moved: Vec<(Key, Place, Place)>,
    pub bytes: u64,
}

/// Makes a snapshot of all that is in the segments before `open_segment`, if that is more than the
/// last one has. It begins with one that stands at `known` or before: of a later one nobody was
/// told where its payloads lie.
pub fn make(
    disk: &dyn Disk,
    owner: Owner,
    open_segment: u64,
    known: u64,
) -> Result<Option<Report>, StoreError> {
    let loaded = load(disk, owner, UpTo::Segment { first: open_segment, snapshot: known })?;
    if loaded.snapshot == Some(loaded.replay.index.0) || loaded.replay.index.0 == 0 {
        return Ok(None);
    }
    let path = FileNo::snapshot(loaded.replay.index.0).path();
    let written = write(disk, owner, loaded.replay).and_then(|report| {
        settle_new(disk, &path).map_err(|error| StoreError::io("write", disk, &path, error))?;
        Ok(Some(report))
    });
    // What is not finished takes room, and perhaps there was none.
    written.inspect_err(|_| drop(disk.remove(&format!("{path}{NEW}"))))
}

/// Writes a snapshot beside, and syncs it.
fn write(disk: &dyn Disk, owner: Owner, mut replay: Replay) -> Result<Report, StoreError> {
    let index = replay.index.0;
    let sparse = sparse_files(disk, &replay)?;
    let mut writer = Writer::new(disk, owner, index)?;
    // What stays where it is has to be known before the rest is written, and is all that does not
    // move.
    let pins: BTreeSet<FileNo> = replay
        .held()
        .map(|(_, held)| held.place.file)
        .filter(|file| !sparse.contains(file))
        .collect();
    writer.summary(&replay, &pins)?;
    let to_move = lying_in(&replay, &sparse);
    let mut moved = Vec::with_capacity(to_move.len());
    let mut from = From::new(disk);
    for (key, place) in to_move {
        let offset = writer.payload(&from.read(&place)?)?;
        moved.push((key, place, Place { file: FileNo::snapshot(index), offset, ..place }));
    }
    for (key, _, place) in &moved {
        replay.moved(*key, *place);
    }
    writer.state(&replay)?;
    let bytes = writer.finish()?;
    Ok(Report { index, moved, bytes })
}

/// Payloads that lie in these files, in the order in which they do.
fn lying_in(replay: &Replay, files: &BTreeSet<FileNo>) -> Vec<(Key, Place)> {
    let held = replay.held().filter(|(_, held)| files.contains(&held.place.file));
    let mut all: Vec<(Key, Place)> = held.map(|(key, held)| (key, held.place)).collect();
    all.sort_unstable_by_key(|(_, place)| (place.file, place.offset));
    all
}

/// Reads payloads, file by file.
struct From<'a> {
    disk: &'a dyn Disk,
    open: Option<(FileNo, Box<dyn DiskFile>)>,
}

impl<'a> From<'a> {
    fn new(disk: &'a dyn Disk) -> Self {
        From { disk, open: None }
    }

    fn read(&mut self, place: &Place) -> Result<Vec<u8>, StoreError> {
        let path = place.file.path();
        let file = match self.open.take_if(|(file, _)| *file == place.file) {
            Some((_, file)) => file,
            None => {
                let opened = self.disk.open(&path, How::Read);
                opened.map_err(|error| StoreError::io("read", self.disk, &path, error))?
            }
        };
        let read = read_place(self.disk, &*file, place);
        self.open = Some((place.file, file));
        read
    }
}

/// Files of which little is needed any more, and that can be read: what is damaged stays where it
/// is, so that it can be said where that was.
fn sparse_files(disk: &dyn Disk, replay: &Replay) -> Result<BTreeSet<FileNo>, StoreError> {
    let mut needed: HashMap<FileNo, u64> = HashMap::new();
    for (_, held) in replay.held() {
        *needed.entry(held.place.file).or_default() += u64::from(held.place.len);
    }
    let found =
        disk.list(CONSENSUS).map_err(|error| StoreError::io("list", disk, CONSENSUS, error))?;
    let lens: HashMap<FileNo, u64> = found
        .iter()
        .filter_map(|found| Some((FileNo::from_name(&found.name)?, found.len)))
        .collect();
    let is_sparse = |file: &FileNo, needed: u64| {
        let len = lens.get(file).copied().unwrap_or_default();
        needed.saturating_mul(100) < len.saturating_mul(NEEDED_PERCENT_MIN)
    };
    let mut sparse: BTreeSet<FileNo> = needed
        .into_iter()
        .filter(|(file, needed)| is_sparse(file, *needed))
        .map(|(file, _)| file)
        .collect();
    let mut from = From::new(disk);
    for (key, place) in lying_in(replay, &sparse) {
        match from.read(&place) {
            Ok(_) => {}
            Err(error @ StoreError::Damage { .. }) => {
                tracing::error!(?key, "a payload is lost, and the file it lies in stays: {error}");
                sparse.remove(&place.file);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(sparse)
}

struct Writer<'a> {
    disk: &'a dyn Disk,
    owner: Owner,
    index: u64,
    path: String,
    file: Box<dyn DiskFile>,
    at: u64,
    blocks: u64,
    body: Vec<u8>,
}

impl<'a> Writer<'a> {
    fn new(disk: &'a dyn Disk, owner: Owner, index: u64) -> Result<Self, StoreError> {
        let path = format!("{}{NEW}", FileNo::snapshot(index).path());
        let failed = |error| StoreError::io("write", disk, &path, error);
        let mut file = disk.open(&path, How::Create).map_err(failed)?;
        file.write_at(0, &header(Kind::Snapshot, owner, index)).map_err(failed)?;
        let (at, body) = (HEADER_BYTES as u64, Vec::with_capacity(BLOCK_BYTES));
        Ok(Writer { disk, owner, index, path, file, at, blocks: 0, body })
    }

    fn summary(&mut self, replay: &Replay, pins: &BTreeSet<FileNo>) -> Result<(), StoreError> {
        put_u64(replay.state.job_count() as u64, &mut self.body);
        put_u64(replay.state.last_seq(), &mut self.body);
        put_u64(replay.latest.0, &mut self.body);
        put_u64(replay.last_result.0, &mut self.body);
        put_len(pins.len(), &mut self.body);
        pins.iter().for_each(|file| put_u64(file.to_bits(), &mut self.body));
        self.block(SUMMARY)
    }

    /// Writes a payload; gives its offset in the file.
    fn payload(&mut self, bytes: &[u8]) -> Result<u64, StoreError> {
        let offset = self.at + (BLOCK_HEAD_BYTES + self.body.len()) as u64;
        self.body.extend_from_slice(bytes);
        self.block_if_full(PAYLOADS)?;
        Ok(offset)
    }

    fn state(&mut self, replay: &Replay) -> Result<(), StoreError> {
        self.block_if_any(PAYLOADS)?;
        for job in replay.state.jobs() {
            codec::put_job(job, &mut self.body);
            self.block_if_full(JOBS)?;
        }
        self.block_if_any(JOBS)?;
        for (client, cap) in replay.state.caps() {
            put_str(&client.0, &mut self.body);
            put_u32(cap, &mut self.body);
            self.block_if_full(CAPS)?;
        }
        self.block_if_any(CAPS)?;
        let state = &replay.state;
        for dataset in state.datasets().filter(|dataset| state.staged_for(&dataset.cache).is_none())
        {
            codec::put_dataset(dataset, &mut self.body);
            self.block_if_full(DATASETS)?;
        }
        self.block_if_any(DATASETS)?;
        for (job, cache) in state.staged_datasets() {
            if let Some(dataset) = state.dataset(cache) {
                put_uuid(job.0, &mut self.body);
                codec::put_dataset(dataset, &mut self.body);
                self.block_if_full(STAGED)?;
            }
        }
        self.block_if_any(STAGED)?;
        for cache in replay.state.datasets_removed() {
            put_str(cache.as_str(), &mut self.body);
            self.block_if_full(DATASETS_REMOVED)?;
        }
        self.block_if_any(DATASETS_REMOVED)?;
        if !state.cluster().is_none() {
            codec::put_cluster(state.cluster(), &replay.terms, &mut self.body);
            self.block(CLUSTER)?;
        }
        let mut held: Vec<(Key, &Held)> = replay.held().collect();
        held.sort_unstable_by_key(|(key, _)| *key);
        for (key, held) in held {
            match key {
                Key::Input(job) => {
                    put_u8(1, &mut self.body);
                    put_uuid(job.0, &mut self.body);
                }
                Key::Result(result) => {
                    put_u8(2, &mut self.body);
                    put_u64(result.0, &mut self.body);
                }
            }
            put_bool(held.from_ours, &mut self.body);
            put_len(held.blobs.len(), &mut self.body);
            held.blobs.iter().for_each(|blob| put_uuid(*blob, &mut self.body));
            put_u64(held.place.file.to_bits(), &mut self.body);
            put_u64(held.place.offset, &mut self.body);
            put_u32(held.place.len, &mut self.body);
            put_u32(held.place.crc, &mut self.body);
            self.block_if_full(HELD)?;
        }
        self.block_if_any(HELD)
    }

    fn finish(mut self) -> Result<u64, StoreError> {
        put_u64(self.blocks, &mut self.body);
        self.block(END)?;
        self.file.sync().map_err(|error| StoreError::io("write", self.disk, &self.path, error))?;
        Ok(self.at)
    }

    fn block_if_full(&mut self, kind: u8) -> Result<(), StoreError> {
        if self.body.len() >= BLOCK_BYTES { self.block(kind) } else { Ok(()) }
    }

    fn block_if_any(&mut self, kind: u8) -> Result<(), StoreError> {
        if self.body.is_empty() { Ok(()) } else { self.block(kind) }
    }

    fn block(&mut self, kind: u8) -> Result<(), StoreError> {
        let failed = |error| StoreError::io("write", self.disk, &self.path, error);
        let head = block_head(self.owner, self.index, self.blocks, kind, &self.body)
            .ok_or_else(|| failed(io::ErrorKind::InvalidInput.into()))?;
        self.file.write_at(self.at, &head).map_err(failed)?;
        self.file.write_at(self.at + BLOCK_HEAD_BYTES as u64, &self.body).map_err(failed)?;
        self.at += (BLOCK_HEAD_BYTES + self.body.len()) as u64;
        self.blocks += 1;
        self.body.clear();
        Ok(())
    }
}

fn block_head(owner: Owner, index: u64, number: u64, kind: u8, body: &[u8]) -> Option<Vec<u8>> {
    let mut head = Vec::with_capacity(BLOCK_HEAD_BYTES);
    head.extend_from_slice(&[kind, 0, 0, 0]);
    head.extend_from_slice(&u32::try_from(body.len()).ok()?.to_be_bytes());
    head.extend_from_slice(&crc32fast::hash(body).to_be_bytes());
    let crc = head_crc(owner, index, number, &head);
    head.extend_from_slice(&crc.to_be_bytes());
    Some(head)
}

/// Over a head, and over the snapshot and the place in it that it belongs to.
fn head_crc(owner: Owner, index: u64, number: u64, head: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(owner.dir.as_bytes());
    crc.update(&index.to_be_bytes());
    crc.update(&number.to_be_bytes());
    crc.update(head);
    crc.finalize()
}

/// Reads the snapshot after this record.
pub fn read(
    disk: &dyn Disk,
    owner: Owner,
    index: u64,
    names: &mut Names,
) -> Result<Replay, StoreError> {
    let mut blocks = Blocks::open(disk, owner, index)?;
    let mut summary: Option<Summary> = None;
    let (mut jobs, mut caps): (Vec<Job>, Vec<(ClientId, u32)>) = (Vec::new(), Vec::new());
    let mut datasets: Vec<(Arc<Dataset>, Option<JobId>)> = Vec::new();
    let mut removed: Vec<CacheId> = Vec::new();
    let mut cluster = Cluster::default();
    let mut replay = Replay { index: Index(index), ..Replay::default() };
    let mut is_whole = false;
    while let Some(kind) = blocks.next(false)? {
        let mut reader = Reader::new(&blocks.body);
        let read = match kind {
            SUMMARY => Summary::read(&mut reader).map(|read| summary = Some(read)),
            JOBS => read_all(&mut reader, |reader| {
                codec::get_job(reader, names).map(|job| jobs.push(job))
            }),
            CAPS => read_all(&mut reader, |reader| {
                let client = ClientId(reader.str()?.into());
                caps.push((client, reader.u32()?));
                Ok(())
            }),
            DATASETS => read_all(&mut reader, |reader| {
                let dataset = codec::get_dataset(reader, names)?;
                // So it was before there were blocks for them.
                let staged_for = dataset.cache.job_in_name();
                datasets.push((Arc::new(dataset), staged_for));
                Ok(())
            }),
            STAGED => read_all(&mut reader, |reader| {
                let job = JobId(reader.uuid()?);
                datasets.push((Arc::new(codec::get_dataset(reader, names)?), Some(job)));
                Ok(())
            }),
            DATASETS_REMOVED => {
                read_all(&mut reader, |reader| reader.cache(names).map(|cache| removed.push(cache)))
            }
            CLUSTER => read_all(&mut reader, |reader| {
                (cluster, replay.terms) = codec::get_cluster(reader)?;
                Ok(())
            }),
            HELD => read_all(&mut reader, |reader| read_held(reader, &mut replay)),
            END => reader.u64().map(|count| is_whole = count.checked_add(1) == Some(blocks.number)),
            _ => Ok(()),
        };
        if let Err(error) = read {
            return Err(blocks.damage(error.at, error.what));
        }
        if kind == END {
            break;
        }
    }
    let Some(summary) = summary.filter(|summary| is_whole && summary.jobs == jobs.len() as u64)
    else {
        return Err(blocks.damage(0, "it is truncated".to_owned()));
    };
    replay.state = State::restore(jobs, caps, datasets, removed, summary.seq).with_cluster(cluster);
    replay.latest = Micros(summary.latest);
    replay.last_result = ResultId(summary.last_result);
    Ok(replay)
}

/// The files beside it that a snapshot needs.
pub fn pins(disk: &dyn Disk, owner: Owner, index: u64) -> Result<Vec<FileNo>, StoreError> {
    let mut blocks = Blocks::open(disk, owner, index)?;
    match blocks.next(false)? {
        Some(SUMMARY) => Summary::read(&mut Reader::new(&blocks.body))
            .map(|summary| summary.pins)
            .map_err(|error| blocks.damage(error.at, error.what)),
        Some(_) | None => Err(blocks.damage(0, "it does not begin with its summary".to_owned())),
    }
}

/// Checks every block of a snapshot, payloads too. Gives the number of its jobs.
pub fn verify(disk: &dyn Disk, owner: Owner, index: u64) -> Result<u64, StoreError> {
    let mut blocks = Blocks::open(disk, owner, index)?;
    while blocks.next(true)?.is_some_and(|kind| kind != END) {}
    let replay = read(disk, owner, index, &mut Names::default())?;
    Ok(replay.state.job_count() as u64)
}

struct Summary {
    jobs: u64,
    seq: u64,
    latest: u64,
    last_result: u64,
    pins: Vec<FileNo>,
}

impl Summary {
    fn read(reader: &mut Reader<'_>) -> Result<Self, codec::CodecError> {
        let (jobs, seq, latest, last_result) =
            (reader.u64()?, reader.u64()?, reader.u64()?, reader.u64()?);
        let count = reader.u32()?;
        let mut pins = Vec::new();
        for _ in 0..count {
            pins.push(FileNo::from_bits(reader.u64()?));
        }
        Ok(Summary { jobs, seq, latest, last_result, pins })
    }
}

fn read_all(
    reader: &mut Reader<'_>,
    mut one: impl FnMut(&mut Reader<'_>) -> Result<(), codec::CodecError>,
) -> Result<(), codec::CodecError> {
    while !reader.is_empty() {
        one(reader)?;
    }
    Ok(())
}

fn read_held(reader: &mut Reader<'_>, replay: &mut Replay) -> Result<(), codec::CodecError> {
    let at = reader.at();
    let key = match reader.u8()? {
        1 => Key::Input(JobId(reader.uuid()?)),
        2 => Key::Result(ResultId(reader.u64()?)),
        other => {
            return Err(codec::CodecError {
                at,
                what: format!("{other} is not a kind of payload"),
            });
        }
    };
    let from_ours = reader.bool()?;
    let count = reader.u32()?;
    let mut blobs = Vec::new();
    for _ in 0..count {
        blobs.push(reader.uuid()?);
    }
    let file = FileNo::from_bits(reader.u64()?);
    let place = Place { file, offset: reader.u64()?, len: reader.u32()?, crc: reader.u32()? };
    let held = Held { place, from_ours, blobs: blobs.into_boxed_slice() };
    match key {
        Key::Input(job) => replay.inputs.insert(job, held),
        Key::Result(result) => replay.results.insert(result, held),
    };
    Ok(())
}

/// Reads a snapshot block by block.
struct Blocks<'a> {
    disk: &'a dyn Disk,
    owner: Owner,
    index: u64,
    path: String,
    file: Box<dyn DiskFile>,
    len: u64,
    /// Where the last block begins, and the next.
    block_at: u64,
    at: u64,
    number: u64,
    body: Vec<u8>,
}

impl<'a> Blocks<'a> {
    fn open(disk: &'a dyn Disk, owner: Owner, index: u64) -> Result<Self, StoreError> {
        let path = FileNo::snapshot(index).path();
        let failed = |error| StoreError::io("read", disk, &path, error);
        let file = disk.open(&path, How::Read).map_err(failed)?;
        let number = expect_header(disk, &path, &*file, Kind::Snapshot, owner)?;
        if number != index {
            let what =
                format!("its name says that it stands at record {index}, and its header {number}");
            return Err(StoreError::damage(disk, &path, 28, what));
        }
        let len = file.len().map_err(failed)?;
        let at = HEADER_BYTES as u64;
        Ok(Blocks {
            disk,
            owner,
            index,
            path,
            file,
            len,
            block_at: at,
            at,
            number: 0,
            body: Vec::new(),
        })
    }

    fn damage(&self, at: usize, what: String) -> StoreError {
        let offset = self.block_at + (BLOCK_HEAD_BYTES + at) as u64;
        StoreError::damage(self.disk, &self.path, offset, what)
    }

    /// The kind of the next block; its body is read, unless it is of payloads, which are checked
    /// when they are needed.
    fn next(&mut self, with_payloads: bool) -> Result<Option<u8>, StoreError> {
        self.block_at = self.at;
        if self.at == self.len {
            return Ok(None);
        }
        let cut = || StoreError::damage(self.disk, &self.path, self.at, "a block is cut off");
        if self.at + BLOCK_HEAD_BYTES as u64 > self.len {
            return Err(cut());
        }
        let failed = |error| StoreError::io("read", self.disk, &self.path, error);
        let mut head = [0; BLOCK_HEAD_BYTES];
        read_exact(&*self.file, self.at, &mut head).map_err(failed)?;
        let (fields, crc) = head.split_at(BLOCK_HEAD_BYTES - 4);
        if crc != head_crc(self.owner, self.index, self.number, fields).to_be_bytes() {
            let what = "the checksum of a block's head is wrong";
            return Err(StoreError::damage(self.disk, &self.path, self.at, what));
        }
        let (kind, rest) = fields.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let (len, body_crc) = rest.split_first_chunk::<4>().unwrap_or((&[0; 4], &[]));
        let len = usize::try_from(u32::from_be_bytes(*len)).unwrap_or(usize::MAX);
        if len > BLOCK_BYTES_MAX || self.at + (BLOCK_HEAD_BYTES + len) as u64 > self.len {
            return Err(cut());
        }
        let [kind, ..] = *kind;
        self.body.clear();
        if kind != PAYLOADS || with_payloads {
            self.body.resize(len, 0);
            read_exact(&*self.file, self.at + BLOCK_HEAD_BYTES as u64, &mut self.body)
                .map_err(failed)?;
            if body_crc != crc32fast::hash(&self.body).to_be_bytes() {
                let at = self.at + BLOCK_HEAD_BYTES as u64;
                return Err(StoreError::damage(
                    self.disk,
                    &self.path,
                    at,
                    "the checksum of a block is wrong",
                ));
            }
        }
        self.at += (BLOCK_HEAD_BYTES + len) as u64;
        self.number += 1;
        Ok(Some(kind))
    }
}
