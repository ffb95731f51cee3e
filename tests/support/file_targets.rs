//! The fuzz targets for what lies on disks: plain functions over bytes, as those in `targets.rs`.
//!
//! Each reads the bytes as a file as they are, and once more with all checksums made right: what a
//! flipped bit never comes to, a hostile hand may.
#![allow(unreachable_pub, clippy::indexing_slicing, clippy::unwrap_used, clippy::panic)]

use std::io;
use std::sync::Arc;

use heft::core::cluster::Terms;
use heft::core::ids::Index;
use heft::store::codec::{Names, Reader, get_entry, get_job};
use heft::store::disk::{Disk, DiskFile, Found, How};
use heft::store::format::{FileNo, HEADER_BYTES, Kind, Owner, Place, header, owner_of, read_place};
use heft::store::log::Segment;
use heft::store::map::Map;
use heft::store::replay::Replay;
use heft::store::snapshot;
use heft::store::tail;
use uuid::Uuid;

/// A target and its name.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const ALL: &[Target] = &[
    ("segment", segment),
    ("tail", tail),
    ("snapshot", read_snapshot),
    ("map", map),
    ("metadata", metadata),
    ("entries", entries),
];

/// Whose the files are that these targets read.
pub const OWNER: Owner = Owner { node: 1, dir: Uuid::from_u128(0xD1) };

/// The blob whose map they read.
pub const BLOB: Uuid = Uuid::from_u128(0x5EA1ED);

/// A disk with one file, whatever it is called.
#[derive(Debug)]
struct OneFile(Arc<[u8]>);

impl Disk for OneFile {
    fn open(&self, _: &str, _: How) -> io::Result<Box<dyn DiskFile>> {
        Ok(Box::new(OneFile(self.0.clone())))
    }

    fn list(&self, _: &str) -> io::Result<Vec<Found>> {
        Ok(Vec::new())
    }

    fn make_dir(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn rename(&self, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn remove(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync_dir(&self, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn root(&self) -> String {
        "fuzz".to_owned()
    }
}

impl DiskFile for OneFile {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.len() as u64)
    }

    fn read_at(&self, at: u64, into: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(at).ok().and_then(|at| self.0.get(at..)).unwrap_or_default();
        let len = rest.len().min(into.len());
        into[..len].copy_from_slice(&rest[..len]);
        Ok(len)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn set_len(&mut self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn allocate(&mut self, _: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    fn sync(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

/// The bytes with a header that is right.
fn with_header(bytes: &[u8], kind: Kind, number: u64) -> Vec<u8> {
    let mut all = header(kind, OWNER, number).to_vec();
    all.extend_from_slice(bytes.get(HEADER_BYTES..).unwrap_or_default());
    all
}

fn u32_at(bytes: &[u8], at: usize) -> Option<usize> {
    let field = bytes.get(at..)?.first_chunk::<4>()?;
    usize::try_from(u32::from_be_bytes(*field)).ok()
}

fn crc_of(parts: &[&[u8]]) -> [u8; 4] {
    let mut crc = crc32fast::Hasher::new();
    parts.iter().for_each(|part| crc.update(part));
    crc.finalize().to_be_bytes()
}

const FIRST: u64 = 1;

/// The bytes with a header and groups that are right, as far as checksums tell.
fn with_groups(bytes: &[u8], kind: Kind) -> Vec<u8> {
    let mut right = with_header(bytes, kind, FIRST);
    let mut at = HEADER_BYTES;
    while let Some(len) = u32_at(&right, at + 4).filter(|len| at + 32 + len <= right.len()) {
        let end = at + 32 + len;
        let (dir, first) = (OWNER.dir.into_bytes(), FIRST.to_be_bytes());
        let crc = crc_of(&[&dir, &first, &right[at..at + 8], &right[at + 12..end]]);
        right[at + 8..at + 12].copy_from_slice(&crc);
        at = end;
    }
    right
}

/// The bytes as a file of the tail, behind logs that end here and there.
pub fn tail(bytes: &[u8]) {
    let right = with_groups(bytes, Kind::Tail);
    for (bytes, log_end) in [(bytes, 0), (&right, 0), (&right, 1), (&right, u64::MAX)] {
        let disk = OneFile(bytes.into());
        let (end, terms) = (Index(log_end), Terms::default());
        let Ok(found) = tail::read::read(&disk, OWNER, &[FIRST], end, &terms) else { continue };
        let tail::read::Found { vote, records, files, .. } = found;
        assert_eq!(records.first, Index(log_end.saturating_add(1)));
        let [file] = files[..] else { panic!("{files:?}") };
        assert_eq!(file.at + file.torn, bytes.len() as u64);
        let len: usize = records.records.iter().map(|record| record.bytes.len()).sum();
        assert!(len <= bytes.len(), "they are in the file");
        assert!(records.records.is_sorted_by_key(|record| record.term));
        assert!(records.records.last().is_none_or(|last| last.term <= vote.term));
    }
}

/// The bytes as a segment of the log.
pub fn segment(bytes: &[u8]) {
    let right = with_groups(bytes, Kind::Log);
    for bytes in [bytes, &right] {
        let disk = OneFile(bytes.into());
        let Ok(mut segment) = Segment::open(&disk, OWNER, FIRST) else { continue };
        let (mut names, mut replay, mut next) = (Names::default(), Replay::default(), FIRST);
        while let Ok(Some(logged)) = segment.next(&mut names) {
            assert_eq!(logged.index, Index(next), "records in their order");
            next += 1;
            if let Some(place) = &logged.place {
                assert!(place.offset + u64::from(place.len) <= bytes.len() as u64, "in the file");
                read_place(&disk, &disk, place).ok();
            }
            replay.apply(logged);
        }
        if let Ok(tail) = segment.tail() {
            assert!(
                tail.at + tail.torn == bytes.len() as u64
                    && tail.noted <= tail.at
                    && tail.next >= next
            );
        }
        segment.expect_end(next).ok();
    }
}

const STANDS_AT: u64 = 9;

/// The bytes as a snapshot.
pub fn read_snapshot(bytes: &[u8]) {
    let mut right = with_header(bytes, Kind::Snapshot, STANDS_AT);
    let (mut at, mut number) = (HEADER_BYTES, 0u64);
    while let Some(len) = u32_at(&right, at + 4).filter(|len| at + 16 + len <= right.len()) {
        let body = crc_of(&[&right[at + 16..at + 16 + len]]);
        right[at + 8..at + 12].copy_from_slice(&body);
        let (dir, index, block) =
            (OWNER.dir.into_bytes(), STANDS_AT.to_be_bytes(), number.to_be_bytes());
        let head = crc_of(&[&dir, &index, &block, &right[at..at + 12]]);
        right[at + 12..at + 16].copy_from_slice(&head);
        (at, number) = (at + 16 + len, number + 1);
    }
    for bytes in [bytes, &right] {
        let disk = OneFile(bytes.into());
        snapshot::pins(&disk, OWNER, STANDS_AT).ok();
        let read = snapshot::read(&disk, OWNER, STANDS_AT, &mut Names::default());
        let verified = snapshot::verify(&disk, OWNER, STANDS_AT);
        assert!(verified.is_err() || read.is_ok(), "what is right can be read");
        for (_, held) in read.iter().flat_map(Replay::held) {
            // Wherever it says that a payload lies: there is none, or its checksum is right.
            let place = Place { file: FileNo::snapshot(STANDS_AT), ..held.place };
            if let Ok(payload) = read_place(&disk, &disk, &place) {
                assert!(payload.len() <= bytes.len() && crc32fast::hash(&payload) == place.crc);
            }
        }
    }
}

/// The bytes as the map of a blob.
pub fn map(bytes: &[u8]) {
    let mut right = with_header(bytes, Kind::Map, 0);
    let salted = |place: u64, bytes: &[u8]| crc_of(&[BLOB.as_bytes(), &place.to_be_bytes(), bytes]);
    if right.len() > 128 && right[64] == 1 {
        let crc = salted(u64::MAX, &right[64..124]);
        right[124..128].copy_from_slice(&crc);
    }
    if let Some(len) = u32_at(&right, 128).filter(|len| 136 + len <= right.len()) {
        let crc = salted(0, &right[136..136 + len]);
        right[132..136].copy_from_slice(&crc);
    }
    for (place, entry) in (1..).zip(right.get_mut(8192..).unwrap_or_default().chunks_exact_mut(24))
    {
        let crc = salted(place, &entry[..20]);
        entry[20..].copy_from_slice(&crc);
    }
    for bytes in [bytes, &right] {
        let disk = OneFile(bytes.into());
        if let Ok(map) = Map::read(&disk, "map", &disk, OWNER, BLOB) {
            let entries = bytes.len().saturating_sub(8192).div_ceil(24);
            assert!(
                map.chunks.len() + map.damage.len() <= entries + 1,
                "no more than there are bytes for"
            );
            assert!(map.chunks.values().all(|(_, len)| *len <= map.open.chunk_bytes));
            map.is_whole();
        }
    }
}

/// The bytes as what says whose a directory is.
pub fn metadata(bytes: &[u8]) {
    let disk = OneFile(bytes.into());
    if let Ok(Some(owner)) = owner_of(&disk) {
        assert_eq!(header(Kind::Metadata, owner, 0)[..28], bytes[..28]);
    }
}

/// The bytes as an entry of the log, and as a job of a snapshot.
pub fn entries(bytes: &[u8]) {
    if let Ok(entry) = get_entry(bytes, &mut Names::default())
        && let Some(attached) = &entry.attached
    {
        assert_eq!(attached.payload.end, bytes.len());
    }
    let mut reader = Reader::new(bytes);
    let mut names = Names::default();
    while get_job(&mut reader, &mut names).is_ok() {}
    assert!(reader.at() <= bytes.len());
}
