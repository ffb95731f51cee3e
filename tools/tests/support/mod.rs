//! What the tests of heft-tools share: data directories with whatever records and blobs a test
//! wants, and the command itself.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Arc;

use chunking::message::{Open, OpenFlags, Purpose};
use chunking::{ChunkHead, Codec, Digest, DigestKind};
use heft::core::Record;
use heft::core::dataset::Dataset;
use heft::core::event::{Inputs, Submission, WorkerClass};
use heft::core::ids::{Attempt, CacheId, Index, JobId, Micros, ResultId, Run, WorkerId};
use heft::core::payload::FileNames;
use heft::core::record::AttemptEnd;
use heft::core::subject::routing_key;
use heft::store::blobs::{BlobFiles, DiskDone, DiskOp};
use heft::store::codec::Attached;
use heft::store::disk::{DataDir, Disk};
use heft::store::format::{Owner, claim};
use heft::store::log::{Append, Log};
use heft::store::replay::unneeded;
use heft::store::snapshot;
use serde_json::Value;
use tempfile::TempDir;
use uuid::Uuid;

pub const NOON: u64 = 1_760_875_200_000_000;

pub fn id(number: u128) -> Uuid {
    Uuid::from_u128(number)
}

/// What a run of the command came to.
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Standard output as JSON lines.
    pub fn lines(&self) -> Vec<Value> {
        self.out.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// Runs `heft-tools`.
pub fn tool<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let Output { status, stdout, stderr } =
        Command::new(env!("CARGO_BIN_EXE_heft-tools")).args(args).output().unwrap();
    let ran = Ran {
        code: status.code().expect("it ended by itself"),
        out: String::from_utf8(stdout).unwrap(),
        err: String::from_utf8(stderr).unwrap(),
    };
    assert!(!ran.err.contains("panicked"), "{}", ran.err);
    ran
}

/// A data directory in the making.
pub struct Data {
    dir: TempDir,
    pub disk: Arc<dyn Disk>,
    pub owner: Owner,
    pub log: Log,
    pub index: u64,
    /// Whether each record is synced before the next.
    pub syncs: bool,
}

impl Data {
    pub fn new() -> Self {
        Data::with_segments(64 << 20)
    }

    pub fn with_segments(segment_bytes: u64) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(dir.path()).unwrap());
        let owner = Owner { node: 0, dir: id(77) };
        disk.make_dir("consensus").unwrap();
        let log = Log::begin(disk.clone(), owner, segment_bytes, 1).unwrap();
        claim(&*disk, owner).unwrap();
        Data { dir, disk, owner, log, index: 0, syncs: true }
    }

    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    pub fn text(&self) -> &str {
        self.path().to_str().unwrap()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.path().join(name)
    }

    /// Writes a record.
    pub fn push(&mut self, record: Record) -> u64 {
        self.push_with(record, None)
    }

    pub fn push_with(&mut self, record: Record, attached: Option<Attached>) -> u64 {
        self.index += 1;
        self.log.append(&[Append { index: Index(self.index), record, attached }]).unwrap();
        if self.syncs {
            self.log.sync().unwrap();
        }
        self.index
    }

    /// Makes a snapshot, and removes what it makes unneeded. Says how many files that were.
    pub fn snapshot(&mut self) -> usize {
        snapshot::make(&*self.disk, self.owner, self.log.segment(), u64::MAX).unwrap().unwrap();
        let files = unneeded(&self.disk, self.owner).unwrap();
        self.log.remove(&files).unwrap();
        files.len()
    }

    /// A job of alice for `calcA`, with this request.
    pub fn enqueue(&mut self, job: u128, payload: &[u8]) -> u64 {
        let attached =
            Attached { from_ours: false, blobs: Vec::new(), payload: payload.to_vec().into() };
        let record = Record::Enqueue {
            at: self.now(),
            job: submission(job),
            children: Vec::new(),
            kept: true,
        };
        self.push_with(record, Some(attached))
    }

    pub fn assign(&mut self, job: u128, attempt: u32, worker: u128) -> u64 {
        let (job, run) = (JobId(id(job)), Run(1));
        self.push(Record::Assign {
            at: None,
            job,
            run,
            attempt: Attempt(attempt),
            worker: WorkerId(id(worker)),
            class: WorkerClass::Leasing,
        })
    }

    pub fn requeue(&mut self, job: u128, attempt: u32, why: AttemptEnd) -> u64 {
        let (job, run, attempt, not_before) =
            (JobId(id(job)), Run(1), Attempt(attempt), self.now());
        self.push(Record::Requeue { at: None, job, run, attempt, why, counts: true, not_before })
    }

    pub fn dlq(&mut self, job: u128, attempt: u32) -> u64 {
        let (at, job, run, attempt) = (self.now(), JobId(id(job)), Run(1), Attempt(attempt));
        self.push(Record::Dlq { at, job, run, attempt, why: AttemptEnd::TimedOut })
    }

    pub fn ack(
        &mut self,
        job: u128,
        worker: u128,
        result: u64,
        payload: &[u8],
        blobs: Vec<Uuid>,
    ) -> u64 {
        let (at, job, run, worker) = (self.now(), JobId(id(job)), Run(1), WorkerId(id(worker)));
        let attached = Attached { from_ours: true, blobs, payload: payload.to_vec().into() };
        let record = Record::Ack { at, job, run, worker, result: ResultId(result), ok: true };
        self.push_with(record, Some(attached))
    }

    /// The dataset `set`, whose manifest is this blob.
    pub fn dataset(&self, version: u128, packs: Vec<Uuid>) -> Dataset {
        Dataset {
            cache: CacheId::parse("set").unwrap(),
            version: id(version),
            digest: [7; 32],
            bytes: 5000,
            files: 2,
            target: "none".into(),
            packs,
            at: self.now(),
        }
    }

    /// A second for each record.
    pub fn now(&self) -> Micros {
        Micros(NOON + self.index * 1_000_000)
    }

    /// A blob of two chunks, one of them short; sealed if it is to be.
    pub fn blob(&self, blob: Uuid, owner: u128, sealed: bool) {
        let mut files = BlobFiles::durable(self.disk.clone(), self.owner, "test").unwrap();
        let size = (1 << 20) + 5000;
        let open = Open {
            purpose: Purpose::Input,
            codec: Codec::None,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::default(),
            chunk_bytes: 1 << 20,
            size,
            owner: id(owner),
            attempt: 0,
            name: "a.bin".to_owned().try_into().unwrap(),
        };
        let plan = chunking::ChunkPlan::new(size, 1 << 20).unwrap();
        let mut crcs = chunking::digest::ChunkCrcs::default();
        assert!(files.execute(DiskOp::Begin { blob, open: Box::new(open.clone()) }).is_none());
        for index in 0..plan.count() {
            let bytes = vec![u8::try_from(index + 1).unwrap(); plan.len_of(index) as usize];
            let head = ChunkHead::plain(plan.offset_of(index), &bytes);
            crcs.insert(&plan, index, head.crc_raw);
            if sealed || index == 0 {
                let done = files.execute(DiskOp::Write { blob, index, head, bytes: bytes.into() });
                assert!(matches!(done, Some(DiskDone::Written { result: Ok(()), .. })));
            }
        }
        if sealed {
            let digest: Digest = crcs.digest(&plan);
            let done = files.execute(DiskOp::Seal { blob, open: Box::new(open), digest });
            assert!(matches!(done, Some(DiskDone::Sealed { result: Ok(()), .. })));
        }
    }
}

pub fn submission(job: u128) -> Submission {
    Submission {
        job: JobId(id(job)),
        client: "alice".into(),
        key: routing_key("job.submit.calcA", None).unwrap(),
        exec: "calcA".into(),
        priority: 0,
        to_all: false,
        size: 100,
        fingerprint: [7; 32],
        inputs: Inputs::Here,
        needs_transfers: false,
        require_worker: false,
        names: FileNames::Plain,
        tag: None,
        datasets: Vec::new(),
    }
}

/// Turns one byte of a file over.
pub fn flip(path: &Path, at: usize) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at] ^= 0x40;
    std::fs::write(path, bytes).unwrap();
}

/// Everything beneath a directory: names and bytes.
pub fn contents(dir: &Path) -> Vec<(PathBuf, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            let bytes = std::fs::read(&path).unwrap();
            found.push((path, bytes));
        }
    }
    found.sort();
    found
}

/// Opens a directory as a leader does.
pub fn open(data: &Path, node: i32) -> heft::store::Opened {
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data).unwrap());
    heft::store::open(&disk, node, id(1), 64 << 20).unwrap()
}

/// The request of a job, as a leader reads it back.
pub fn request_of(opened: &mut heft::store::Opened, job: Uuid) -> Vec<u8> {
    let place = opened.replay.inputs[&JobId(job)].place;
    opened.journal.read(&place).unwrap()
}
