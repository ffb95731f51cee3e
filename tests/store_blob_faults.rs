//! Blob files over a disk that fails and forgets: each way that they once did not stand, by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

#[path = "support/sim_disk.rs"]
mod sim_disk;

use bytes::Bytes;
use chunking::message::{Open, OpenFlags, Purpose};
use chunking::{ChunkHead, Codec, Digest, DigestKind};
use heft::store::blobs::{BlobFiles, DiskDone, DiskOp, Found, SealError, scan};
use heft::store::format::Owner;
use sim_disk::{Act, SimDisk};
use uuid::Uuid;

const BLOB: Uuid = Uuid::from_u128(0xB10B);
const OWNER: Owner = Owner { node: 1, dir: Uuid::from_u128(0xD1) };
const DIGEST: Digest = Digest { kind: DigestKind::ChunkList, bytes: [9; 32] };
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn open(chunks: u64) -> Open {
    Open {
        purpose: Purpose::Input,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags(0),
        chunk_bytes: 1 << 20,
        size: chunks << 20,
        owner: Uuid::from_u128(7),
        attempt: 0,
        name: "in.bin".to_owned().try_into().unwrap(),
    }
}

fn files(disk: &SimDisk) -> BlobFiles {
    BlobFiles::durable(disk.shared(), OWNER, "0").unwrap()
}

fn begin(files: &mut BlobFiles, blob: Uuid, chunks: u64) {
    assert!(files.execute(DiskOp::Begin { blob, open: Box::new(open(chunks)) }).is_none());
}

fn write(files: &mut BlobFiles, blob: Uuid, index: u32, byte: u8) -> Result<(), String> {
    let bytes = Bytes::from(vec![byte; 5000]);
    let head = ChunkHead::plain(u64::from(index) << 20, &bytes);
    match files.execute(DiskOp::Write { blob, index, head, bytes }) {
        Some(DiskDone::Written { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}

fn seal(files: &mut BlobFiles, blob: Uuid, chunks: u64) -> Result<(), SealError> {
    match files.execute(DiskOp::Seal { blob, open: Box::new(open(chunks)), digest: DIGEST }) {
        Some(DiskDone::Sealed { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}

fn check(files: &mut BlobFiles, blob: Uuid) -> Result<(Vec<u32>, Vec<String>), String> {
    match files.execute(DiskOp::Check { blob }) {
        Some(DiskDone::Checked { result, .. }) => result,
        other => panic!("{other:?}"),
    }
}

fn found(disk: &SimDisk) -> Vec<Found> {
    scan(&*disk.shared(), OWNER).unwrap().0
}

/// Asserts that the blob is there whole, and only it.
fn assert_whole(disk: &SimDisk) {
    let found = found(disk);
    let [Found { blob: BLOB, map: Ok(map) }] = &found[..] else { panic!("{found:?}") };
    assert!(map.is_whole() && map.damage.is_empty() && map.seal == Some(DIGEST), "{map:?}");
    let (good, bad) = check(&mut files(disk), BLOB).unwrap();
    assert_eq!((good.len() as u64, bad), (map.open.size >> 20, Vec::new()));
}

#[test]
fn pe08_a_blob_that_one_life_began_and_the_next_sealed_has_names_that_are_certain() {
    let disk = SimDisk::new(1);
    let mut first = files(&disk);
    begin(&mut first, BLOB, 1);
    write(&mut first, BLOB, 0, 1).unwrap();
    disk.kill();
    let mut second = files(&disk);
    assert_eq!(check(&mut second, BLOB).unwrap(), (vec![0], vec![]));
    seal(&mut second, BLOB, 1).unwrap();
    disk.power_loss_of(100);
    assert_whole(&disk);
}
