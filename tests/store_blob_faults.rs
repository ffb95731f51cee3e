//! Blob files over a disk that fails and forgets: each way that they once did not stand, by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

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

#[test]
fn c29_a_seal_whose_sync_fails_for_room_is_as_bad_as_any_and_nothing_of_it_is_trusted_again() {
    for (act, path) in [(Act::Sync, "b10b"), (Act::Sync, ".map"), (Act::SyncDir, "blobs")] {
        for error in [ENOSPC, EIO] {
            for is_removed in [true, false] {
                let disk = SimDisk::new(1);
                let mut first = files(&disk);
                begin(&mut first, BLOB, 2);
                write(&mut first, BLOB, 0, 1).unwrap();
                write(&mut first, BLOB, 1, 2).unwrap();
                disk.fail_next(act, path, error);
                let failed = seal(&mut first, BLOB, 2).unwrap_err();
                assert!(
                    failed.is_lost,
                    "{act:?} {path}: it would be tried again, and succeed with nothing written"
                );
                if is_removed {
                    first.execute(DiskOp::Remove { blob: BLOB });
                }
                // The machine runs on, and shows what never reached the disk.
                disk.kill();
                assert!(found(&disk).is_empty(), "{act:?} {path}: {:?}", found(&disk));
                let mut second = files(&disk);
                begin(&mut second, BLOB, 2);
                write(&mut second, BLOB, 0, 1).unwrap();
                write(&mut second, BLOB, 1, 2).unwrap();
                seal(&mut second, BLOB, 2).unwrap();
                disk.power_loss_of(100);
                assert_whole(&disk);
            }
        }
    }
}

#[test]
fn c29_a_seal_that_finds_no_room_to_write_is_tried_again() {
    let disk = SimDisk::new(1);
    let mut first = files(&disk);
    begin(&mut first, BLOB, 1);
    write(&mut first, BLOB, 0, 1).unwrap();
    disk.fail_next(Act::Write, ".map", ENOSPC);
    let failed = seal(&mut first, BLOB, 1).unwrap_err();
    assert!(failed.is_full && !failed.is_lost, "{failed:?}");
    seal(&mut first, BLOB, 1).unwrap();
    disk.power_loss_of(100);
    assert_whole(&disk);
}

#[test]
fn c29_a_blob_without_files_is_not_sealed_unless_it_is_empty() {
    let disk = SimDisk::new(1);
    let mut first = files(&disk);
    let failed = seal(&mut first, BLOB, 2).unwrap_err();
    assert!(!failed.is_full, "{failed:?}");
    assert!(disk.tree().is_empty(), "{:?}", disk.tree().keys());
    seal(&mut first, BLOB, 0).unwrap();
    disk.power_loss_of(100);
    assert_whole(&disk);
}

#[test]
fn pe08_a_blob_that_begins_anew_does_not_go_on_with_the_map_of_before() {
    let disk = SimDisk::new(1);
    let mut first = files(&disk);
    begin(&mut first, BLOB, 3);
    for index in 0..3 {
        write(&mut first, BLOB, index, 1).unwrap();
    }
    disk.kill();
    let mut second = files(&disk);
    begin(&mut second, BLOB, 2);
    assert!(check(&mut second, BLOB).is_err(), "nothing has come of it yet");
    write(&mut second, BLOB, 1, 2).unwrap();
    assert_eq!(check(&mut second, BLOB).unwrap(), (vec![1], vec![]));
    disk.kill();
    let [Found { map: Ok(map), .. }] = &found(&disk)[..] else { panic!("one") };
    assert_eq!((map.open.size, map.chunks.keys().copied().collect::<Vec<_>>()), (2 << 20, vec![1]));
}

#[test]
fn c29_files_that_wait_to_be_written_again_never_take_each_others_names() {
    let disk = SimDisk::new(1);
    let mut first = files(&disk);
    let blob = |number: u128| Uuid::from_u128(number);
    for number in 1..=4 {
        begin(&mut first, blob(number), 1);
        write(&mut first, blob(number), 0, 1).unwrap();
    }
    for number in 1..=4 {
        first.execute(DiskOp::Remove { blob: blob(number) });
    }
    // Their names are certain with the next seal: before that the power might give them their old
    // ones back.
    begin(&mut first, blob(9), 1);
    write(&mut first, blob(9), 0, 1).unwrap();
    seal(&mut first, blob(9), 1).unwrap();
    let waiting = || disk.tree().keys().filter(|path| path.contains("free-")).count();
    assert_eq!(waiting(), 4);
    // Two are written again, and two are left, with the first names or the last.
    for number in 5..=6 {
        begin(&mut first, blob(number), 1);
        write(&mut first, blob(number), 0, 1).unwrap();
    }
    disk.shared().remove("blobs/free-0-0").unwrap();
    disk.kill();
    let mut second = files(&disk);
    for number in 5..=6 {
        second.execute(DiskOp::Remove { blob: blob(number) });
    }
    let free = disk.tree().keys().filter(|path| path.contains("free-")).count();
    assert_eq!(free, 3, "{:?}", disk.tree().keys());
}

#[test]
fn pe08_more_blobs_than_are_held_open_come_at_a_time_and_all_of_them_are_whole() {
    let disk = SimDisk::new(1);
    let mut first = files(&disk);
    let blobs: Vec<Uuid> = (1..=150).map(Uuid::from_u128).collect();
    for blob in &blobs {
        begin(&mut first, *blob, 2);
    }
    for index in 0..2 {
        blobs.iter().for_each(|blob| write(&mut first, *blob, index, 7).unwrap());
    }
    blobs.iter().for_each(|blob| seal(&mut first, *blob, 2).unwrap());
    disk.power_loss_of(100);
    let found = found(&disk);
    assert_eq!(found.len(), blobs.len());
    for Found { blob, map } in &found {
        let map = map.as_ref().unwrap();
        assert!(map.is_whole() && map.seal == Some(DIGEST) && map.damage.is_empty(), "{blob}");
        assert_eq!(check(&mut files(&disk), *blob).unwrap(), (vec![0, 1], vec![]));
    }
}

/// A file that is written again has the bytes of before in it, and the map may be on the disk
/// before the new ones are.
#[test]
fn pe08_what_was_in_a_file_before_is_never_taken_for_a_chunk_of_its_new_blob() {
    let (old, new) = (Uuid::from_u128(1), Uuid::from_u128(2));
    let (mut bad, mut good) = (0, 0);
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let mut first = files(&disk);
        begin(&mut first, old, 1);
        write(&mut first, old, 0, 1).unwrap();
        seal(&mut first, old, 1).unwrap();
        first.execute(DiskOp::Remove { blob: old });
        begin(&mut first, new, 1);
        write(&mut first, new, 0, 2).unwrap();
        disk.power_loss_of(50);
        let mut second = files(&disk);
        for Found { blob, map } in found(&disk) {
            let Ok(map) = map else { continue };
            let byte = if blob == old { 1 } else { 2 };
            let expected = crc32fast::hash(&vec![byte; 5000]);
            assert!(map.chunks.values().all(|(head, _)| head.crc_sent == expected));
            let (whole, torn) = check(&mut second, blob).unwrap();
            (good, bad) = (good + whole.len(), bad + torn.len());
        }
    }
    assert!(good > 5 && bad > 5, "{good} good, {bad} bad");
}
