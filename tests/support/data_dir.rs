//! A data directory that has everything: several segments, one of which is kept for its payloads
//! alone, two snapshots, blobs that are whole and blobs that are coming. And what can be seen in
//! one.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used, clippy::indexing_slicing, clippy::panic)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use chunking::message::{Open, OpenFlags, Purpose};
use chunking::{ChunkHead, Codec, Digest, DigestKind};
use heft::core::Record;
use heft::core::event::Inputs;
use heft::core::ids::{ConnId, Index, JobId, Node, Term};
use heft::core::state::State;
use heft::store::blobs::{BlobFiles, DiskDone, DiskOp};
use heft::store::disk::{DataDir, Disk};
use heft::store::format::Owner;
use heft::store::journal::{Journal, LogDone, LogOp};
use heft::store::log::Append;
use heft::store::replay::Key;
use heft::store::tail::{TailRecord, TailRecords, TailWrite, Vote};
use heft::store::{self, Opened};
use heft::wire::Pool;
use uuid::Uuid;

use super::log_records::{ack, append, enqueue};

pub const NODE: i32 = 1;
pub const DIR: Uuid = Uuid::from_u128(0xD1);
pub const SEALED: Uuid = Uuid::from_u128(0x5EA1ED);
pub const PARTIAL: Uuid = Uuid::from_u128(0x9A47);
const SEGMENT_BYTES: u64 = 4000;

/// Opens a directory of this machine.
pub fn open(path: &Path) -> Result<(Arc<dyn Disk>, Opened), String> {
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(path).map_err(|error| error.to_string())?);
    let opened = store::open(&disk, NODE, DIR, SEGMENT_BYTES).map_err(|error| error.to_string())?;
    Ok((disk, opened))
}

pub fn blob_open(chunks: u64) -> Open {
    Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags(0),
        chunk_bytes: 4096,
        size: chunks * 4096 - 96,
        owner: Uuid::from_u128(7),
        attempt: 0,
        name: "in.bin".to_owned().try_into().unwrap(),
    }
}

pub fn digest() -> Digest {
    Digest { kind: DigestKind::Sha256, bytes: [0xDD; 32] }
}

/// Makes the directory. What was synced last is noted in the log only if the leader came to rest.
pub fn make(path: &Path, comes_to_rest: bool) {
    let (disk, opened) = open(path).unwrap();
    let (mut journal, mut index) = (opened.journal, 0);
    for (segments, do_end) in [(4, false), (4, true), (4, true), (2, true)] {
        fill(&mut journal, &mut index, segments, do_end);
        if let Some(job) = journal.snapshot_due() {
            journal.snapshot_made(job.make());
            journal.run([LogOp::Cut], &|| 0);
        }
    }
    // The open segment: records in groups of one and of three, one that nobody waited for, and one
    // announced.
    index += 1;
    journal.run([append(announce(index))], &|| 0);
    let group: Vec<LogOp> =
        (index + 1..=index + 3).map(|number| append(enqueue(number, 60))).collect();
    journal.run(group, &|| 0);
    index += 4;
    let LogOp::Append { index: number, record, attached, .. } = append(enqueue(index, 50)) else {
        panic!()
    };
    journal.run([LogOp::Append { index: number, record, attached, sync: false }], &|| 0);
    journal.run([append(enqueue(index + 1, 70))], &|| 0);
    if comes_to_rest {
        journal.rest();
    }
    make_blobs(&disk, opened.owner);
}

/// The file of a tail, with votes, records, and some that are replaced.
pub fn tail() -> Option<Vec<u8>> {
    let data = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data.path()).unwrap());
    let mut opened = store::open_member(&disk, NODE, DIR, 64 << 20).unwrap();
    let vote = |term, node| Some(Vote { term: Term(term), node });
    let record = |term, record: &Record| {
        let mut bytes = Vec::new();
        store::codec::put_entry(record, None, &mut bytes);
        TailRecord { term: Term(term), bytes: bytes.into() }
    };
    let begin = |term| record(term, &Record::Term { term: Term(term) });
    let job = |term, number| record(term, &enqueue(number, 40).record);
    let records = |first, records| Some(TailRecords { first: Index(first), records });
    let writes = [
        TailWrite { vote: vote(2, Some(Node(1))), records: None },
        TailWrite { vote: None, records: records(1, vec![begin(2), job(2, 1), job(2, 2)]) },
        TailWrite { vote: vote(4, None), records: records(2, vec![begin(4), job(4, 3)]) },
    ];
    let ops = (1..).zip(writes).map(|(number, write)| LogOp::Tail { number, write });
    opened.journal.run(ops.collect::<Vec<_>>(), &|| 0);
    opened.journal.rest();
    tree_of(data.path(), "consensus")
        .into_iter()
        .find_map(|(name, bytes)| name.contains("tail-").then_some(bytes))
}

fn announce(number: u64) -> Append {
    let mut announced = enqueue(number, 80);
    if let Record::Enqueue { at, mut job, .. } = announced.record {
        job.inputs = Inputs::Expected;
        announced.record = Record::Announce { at, job };
    }
    if let Some(attached) = &mut announced.attached {
        attached.blobs = vec![PARTIAL];
    }
    announced
}

/// Jobs until so many segments are finished. Of four all end but one, or none does.
fn fill(journal: &mut Journal, index: &mut u64, segments: u64, do_end: bool) {
    let mut finished = 0;
    let mut segment = None;
    while finished < segments {
        *index += 1;
        let job = *index;
        let mut ops = vec![append(enqueue(job, 500))];
        if do_end && !job.is_multiple_of(4) {
            *index += 1;
            ops.push(append(ack(*index, job)));
        }
        for done in journal.run(ops, &|| 0) {
            let LogDone::Written { places, .. } = done else { panic!("{done:?}") };
            let now = places[0].1.file;
            finished += u64::from(segment.is_some_and(|segment| segment != now));
            segment = Some(now);
        }
    }
}

fn make_blobs(disk: &Arc<dyn Disk>, owner: Owner) {
    let mut files = BlobFiles::durable(disk.clone(), owner, "0").unwrap();
    for (blob, chunks) in [(SEALED, 2), (PARTIAL, 3)] {
        let open = Box::new(blob_open(chunks));
        files.execute(DiskOp::Begin { blob, open: open.clone() });
        for index in 0..2 {
            let bytes = Bytes::from(vec![index as u8 + 1; 4000]);
            let head = ChunkHead::plain(u64::from(index) * 4096, &bytes);
            files.execute(DiskOp::Write { blob, index, head, bytes });
        }
        if blob == SEALED {
            let sealed = files.execute(DiskOp::Seal { blob, open, digest: digest() });
            assert!(matches!(sealed, Some(DiskDone::Sealed { result: Ok(()), .. })), "{sealed:?}");
        }
    }
}

/// What somebody sees who opens a directory.
#[derive(Debug, PartialEq, Eq)]
pub struct View {
    pub index: u64,
    pub state: State,
    pub payloads: BTreeMap<Key, Result<Vec<u8>, String>>,
    pub requests: BTreeMap<JobId, Vec<u8>>,
    pub blobs: BTreeMap<Uuid, BlobView>,
}

#[derive(Debug, PartialEq, Eq)]
pub struct BlobView {
    /// Whether it would be served as it is.
    pub is_whole: bool,
    /// What is said to be wrong with it.
    pub wrong: Vec<String>,
    /// Its chunks that are said to be good.
    pub chunks: BTreeMap<u32, Vec<u8>>,
}

/// Opens a directory and looks at everything.
pub fn look(path: &Path) -> Result<View, String> {
    let (disk, opened) = open(path)?;
    let Opened { mut journal, replay, owner, blobs, requests, .. } = opened;
    let mut payloads = BTreeMap::new();
    for (key, held) in replay.held() {
        payloads.insert(key, journal.read(&held.place).map_err(|error| error.to_string()));
    }
    let mut files = BlobFiles::durable(disk, owner, "0").unwrap();
    let pool = Pool::new(1);
    let mut seen = BTreeMap::new();
    for found in blobs {
        let mut view = BlobView { is_whole: false, wrong: Vec::new(), chunks: BTreeMap::new() };
        match &found.map {
            Ok(map) => {
                view.is_whole =
                    map.is_whole() && map.seal == Some(digest()) && map.damage.is_empty();
                view.wrong.extend(map.damage.iter().map(|damage| damage.to_string()));
            }
            Err(error) => view.wrong.push(error.to_string()),
        }
        let blob = found.blob;
        match files.execute(DiskOp::Check { blob }) {
            Some(DiskDone::Checked { result: Ok((good, bad)), .. }) => {
                view.wrong.extend(bad);
                for index in good {
                    let map = found.map.as_ref().unwrap();
                    let (head, len) = map.chunks[&index];
                    let (crc, conn, buffer) = (head.crc_sent, ConnId(1), pool.take().unwrap());
                    let read = files.execute(DiskOp::Read { blob, index, len, crc, conn, buffer });
                    let Some(DiskDone::Read { result: Ok(bytes), .. }) = read else {
                        panic!("{read:?}")
                    };
                    view.chunks.insert(index, bytes.to_vec());
                }
            }
            Some(DiskDone::Checked { result: Err(error), .. }) => view.wrong.push(error),
            other => panic!("{other:?}"),
        }
        seen.insert(blob, view);
    }
    let requests = requests.into_iter().collect();
    Ok(View { index: replay.index.0, state: replay.state, payloads, requests, blobs: seen })
}

/// All files beneath a directory, but for its lock.
pub fn tree(path: &Path) -> BTreeMap<String, Vec<u8>> {
    ["consensus", "blobs", "."].into_iter().flat_map(|dir| tree_of(path, dir)).collect()
}

/// The same, of one of the directories in it.
pub fn tree_of(path: &Path, dir: &str) -> BTreeMap<String, Vec<u8>> {
    let mut tree = BTreeMap::new();
    let Ok(entries) = std::fs::read_dir(path.join(dir)) else { return tree };
    for entry in entries.map(Result::unwrap).filter(|entry| entry.file_type().unwrap().is_file()) {
        let name = entry.file_name().into_string().unwrap();
        if (dir, name.as_str()) != (".", "lock") {
            tree.insert(format!("{dir}/{name}"), std::fs::read(entry.path()).unwrap());
        }
    }
    tree
}

/// Makes files beneath a directory as they were.
pub fn restore(path: &Path, now: &BTreeMap<String, Vec<u8>>, to: &BTreeMap<String, Vec<u8>>) {
    for name in now.keys().filter(|name| !to.contains_key(*name)) {
        std::fs::remove_file(path.join(name)).unwrap();
    }
    let is_of =
        |name: &str| now.keys().any(|other| other.split('/').next() == name.split('/').next());
    for (name, bytes) in
        to.iter().filter(|(name, bytes)| is_of(name) && now.get(*name) != Some(bytes))
    {
        std::fs::write(path.join(name), bytes).unwrap();
    }
}
