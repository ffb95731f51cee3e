//! Each way in which a disk can fail or lose something that the store once did not stand, by
//! itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

#[path = "support/log_records.rs"]
mod log_records;
#[path = "support/sim_disk.rs"]
mod sim_disk;

use heft::core::Record;
use heft::core::ids::{Index, JobId, Micros, Run};
use heft::store::disk::How;
use heft::store::journal::{Journal, LogDone, LogOp};
use heft::store::replay::Files;
use heft::store::{self, Opened};
use log_records::{append, enqueue};
use sim_disk::{Act, SimDisk};
use uuid::Uuid;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;

fn open(disk: &SimDisk, segment_bytes: u64) -> Opened {
    try_open(disk, segment_bytes).unwrap_or_else(|error| panic!("it is refused: {error}"))
}

fn try_open(disk: &SimDisk, segment_bytes: u64) -> Result<Opened, String> {
    let opened = store::open(&disk.shared(), 1, Uuid::from_u128(0xD1), segment_bytes);
    opened.map_err(|error| error.to_string())
}

/// Writes jobs with these numbers, each in its own sync; gives what was said.
fn write(journal: &mut Journal, numbers: impl IntoIterator<Item = u64>) -> Vec<LogDone> {
    write_long(journal, numbers, 100)
}

fn write_long(
    journal: &mut Journal,
    numbers: impl IntoIterator<Item = u64>,
    bytes: usize,
) -> Vec<LogDone> {
    numbers
        .into_iter()
        .flat_map(|number| journal.run([append(enqueue(number, bytes))], &|| 0))
        .collect()
}

fn last_synced(done: &[LogDone]) -> Option<u64> {
    let synced = done.iter().filter_map(|done| match done {
        LogDone::Written { synced, .. } => synced.map(|index| index.0),
        _ => None,
    });
    synced.max()
}

fn has_failed(done: &[LogDone]) -> bool {
    done.iter().any(|done| matches!(done, LogDone::Failed(_)))
}

#[test]
fn pe10_the_request_of_a_job_that_ended_orphaned_is_not_kept() {
    let disk = SimDisk::new(1);
    let mut opened = open(&disk, 1 << 20);
    write(&mut opened.journal, [1]);
    let record = Record::Orphan { at: Micros(9), job: JobId(Uuid::from_u128(1)), run: Run(1) };
    let op = LogOp::Append { index: Index(2), record, attached: None, sync: true };
    opened.journal.run([op], &|| 0);
    disk.kill();
    assert!(open(&disk, 1 << 20).replay.inputs.is_empty());
}

/// A segment is full after two records, so a few make several.
const TINY: u64 = 500;

#[test]
fn c29_a_torn_mark_at_the_end_of_a_finished_segment_is_no_damage() {
    for lost in [0, 50, 100] {
        for seed in 0..20 {
            let disk = SimDisk::new(seed);
            let mut opened = open(&disk, TINY);
            let done = write(&mut opened.journal, 1..=9);
            assert_eq!(last_synced(&done), Some(9));
            disk.power_loss_of(lost);
            assert_eq!(open(&disk, TINY).replay.index, Index(9));
        }
    }
}

#[test]
fn c29_a_segment_that_gets_no_name_is_not_begun() {
    for error in [ENOSPC, EIO] {
        let disk = SimDisk::new(1);
        let mut opened = open(&disk, TINY);
        write(&mut opened.journal, [1]);
        disk.fail_next(Act::Rename, "log-0000000000000003.new", error);
        let done = write(&mut opened.journal, [2]);
        assert_eq!(has_failed(&done), error == EIO, "{done:?}");
        if error == EIO {
            continue;
        }
        let done = write(&mut opened.journal, 3..=8);
        assert_eq!(last_synced(&done), Some(8), "it goes on where it was");
        disk.kill();
        assert_eq!(open(&disk, TINY).replay.index, Index(8));
    }
}

/// Every operation of a rotation fails, once in each way.
#[test]
fn c29_a_rotation_that_fails_half_way_loses_nothing_and_goes_on() {
    let acts =
        [Act::Create, Act::Write, Act::Sync, Act::Rename, Act::SyncDir, Act::Write, Act::Sync];
    for (act, path) in
        acts.iter().flat_map(|act| [(*act, "log-0000000000000003"), (*act, "consensus")])
    {
        for (error, skip) in [(ENOSPC, 0), (EIO, 0), (ENOSPC, 1), (EIO, 1)] {
            let disk = SimDisk::new(1);
            let mut opened = open(&disk, TINY);
            let mut told = last_synced(&write(&mut opened.journal, [1])).unwrap();
            // Fails in the write of the second record or in the rotation behind it.
            for number in 2..=8 {
                if number == 2 + skip {
                    disk.fail_next(act, path, error);
                }
                let done = write(&mut opened.journal, [number]);
                told = told.max(last_synced(&done).unwrap_or(0));
                let is_sync = matches!(act, Act::Sync | Act::SyncDir);
                if has_failed(&done) {
                    assert!(error == EIO || is_sync, "{act:?} {path} {error}: {done:?}");
                    break;
                }
            }
            disk.power_loss_of(100);
            let found = open(&disk, TINY).replay.index.0;
            assert!(found >= told, "{act:?} {path} {error}: {told} were told, {found} are there");
            disk.power_loss_of(100);
            let mut opened = open(&disk, TINY);
            assert_eq!(opened.replay.index.0, found);
            let done = write(&mut opened.journal, found + 1..=found + 5);
            assert_eq!(last_synced(&done), Some(found + 5));
            disk.kill();
            assert_eq!(open(&disk, TINY).replay.index.0, found + 5);
        }
    }
}

#[test]
fn c29_without_room_for_the_mark_that_a_segment_has_ended_the_next_is_gone_on_with() {
    let disk = SimDisk::new(1);
    let mut opened = open(&disk, TINY);
    write(&mut opened.journal, [1]);
    let segments = |disk: &SimDisk| Files::list(&*disk.shared()).unwrap().segments;
    // The record is written, and there is room for a file, but not for the mark.
    let done = opened.journal.run([append(enqueue(2, 100))], &|| {
        disk.fail_next(Act::Write, "log-0000000000000001", ENOSPC);
        0
    });
    assert_eq!(last_synced(&done), Some(2));
    assert_eq!(segments(&disk), [1, 3]);
    let done = write(&mut opened.journal, 3..=8);
    assert_eq!(last_synced(&done), Some(8));
    disk.power_loss_of(100);
    assert_eq!(open(&disk, TINY).replay.index, Index(8));
}

#[test]
fn c29_a_sync_that_fails_for_room_is_as_bad_as_any() {
    let disk = SimDisk::new(1);
    let mut opened = open(&disk, TINY);
    let op = |number| match append(enqueue(number, 300)) {
        LogOp::Append { index, record, attached, .. } => {
            LogOp::Append { index, record, attached, sync: false }
        }
        other => panic!("{other:?}"),
    };
    // Nobody waits for these; the rotation syncs them.
    disk.fail_next(Act::Sync, "log-0000000000000001", ENOSPC);
    let done = opened.journal.run([op(1), op(2)], &|| 0);
    assert!(has_failed(&done), "{done:?}");
    let done = write(&mut opened.journal, 3..=4);
    assert!(done.is_empty(), "{done:?}");
}

/// Writes four records, and stops in the operation with this number: in that way, or by the loss of
/// power.
fn stop_in(op: u64, is_killed: bool) -> Option<(SimDisk, u64)> {
    let disk = SimDisk::new(op);
    disk.crash_in(Some(op));
    let mut told = 0;
    if let Ok(mut opened) = try_open(&disk, TINY) {
        for number in 1..=4 {
            let done = write(&mut opened.journal, [number]);
            if disk.is_dead() {
                break;
            }
            told = last_synced(&done).unwrap();
            opened.journal.rest();
        }
    }
    if !disk.is_dead() {
        return None;
    }
    if is_killed {
        disk.kill()
    } else {
        disk.power_loss_of(100)
    }
    Some((disk, told))
}

#[test]
fn pe08_what_a_killed_leader_left_is_certain_before_anything_is_told_behind_it() {
    for is_killed in [true, false] {
        let mut op = 0;
        while let Some((disk, told)) = stop_in(op, is_killed) {
            let mut opened = open(&disk, TINY);
            let found = opened.replay.index.0;
            assert!(found >= told, "stopped in {op}: {told} were told, {found} are there");
            let done = write(&mut opened.journal, [found + 1]);
            assert_eq!(last_synced(&done), Some(found + 1));
            disk.power_loss_of(100);
            assert_eq!(open(&disk, TINY).replay.index.0, found + 1, "stopped in {op}");
            op += 1;
        }
        assert!(op > 30, "{op}");
    }
}

#[test]
fn pe08_a_sync_that_failed_is_made_up_for_by_the_next_life() {
    for seed in 0..20 {
        let disk = SimDisk::new(seed);
        let mut opened = open(&disk, 1 << 20);
        write(&mut opened.journal, 1..=2);
        disk.fail_next(Act::Sync, "log-", EIO);
        assert!(has_failed(&write_long(&mut opened.journal, [3], 20_000)));
        // The machine runs on: readers see what never reached the disk, and a sync finds nothing to
        // do.
        disk.kill();
        let mut opened = open(&disk, 1 << 20);
        let found = opened.replay.index.0;
        let done = write(&mut opened.journal, [found + 1]);
        assert_eq!(last_synced(&done), Some(found + 1));
        disk.power_loss_of(100);
        assert_eq!(open(&disk, 1 << 20).replay.index.0, found + 1, "seed {seed}");
    }
}

#[test]
fn c29_an_only_segment_that_is_missing_is_missed() {
    let disk = SimDisk::new(1);
    write(&mut open(&disk, TINY).journal, [1]);
    disk.kill();
    disk.shared().remove("consensus/log-0000000000000001").unwrap();
    let before = disk.tree();
    let error = try_open(&disk, TINY).unwrap_err();
    assert!(error.contains("log-0000000000000001 is missing"), "{error}");
    assert_eq!(disk.tree(), before, "nothing was changed");
}

#[test]
fn pe08_an_error_while_reading_a_map_refuses_and_takes_no_blob_for_lost() {
    let disk = SimDisk::new(1);
    drop(open(&disk, TINY));
    disk.shared().make_dir("blobs").unwrap();
    let path = format!("blobs/{}.map", Uuid::from_u128(5).simple());
    disk.shared().open(&path, How::Create).unwrap().write_at(0, &[1; 100]).unwrap();
    disk.kill();
    disk.fail_next(Act::Read, ".map", EIO);
    let error = try_open(&disk, TINY).unwrap_err();
    assert!(error.contains(&path), "{error}");
    assert_eq!(open(&disk, TINY).blobs.len(), 1);
}

#[test]
fn c29_a_record_that_nobody_could_read_again_is_not_written() {
    let disk = SimDisk::new(1);
    let mut opened = open(&disk, 1 << 20);
    write(&mut opened.journal, [1]);
    let done = write_long(&mut opened.journal, [2], 33 << 20);
    let [LogDone::Failed(why)] = &done[..] else { panic!("{:?}", done.len()) };
    assert!(why.contains("do not fit a group"), "{why}");
    disk.kill();
    assert_eq!(open(&disk, 1 << 20).replay.index, Index(1));
}

#[test]
fn pe09_a_full_disk_is_told_once_and_what_waits_is_written_once_when_there_is_room() {
    let disk = SimDisk::new(1);
    let mut opened = open(&disk, 1 << 20);
    write(&mut opened.journal, [1]);
    let mut told = Vec::new();
    for number in 2..=4 {
        disk.fail_next(Act::Write, "log-", ENOSPC);
        told.extend(write_long(&mut opened.journal, [number], 9000));
    }
    assert!(matches!(&told[..], [LogDone::Trouble(Some(why))] if why.contains("full")), "{told:?}");
    assert!(opened.journal.is_stuck());
    let done = opened.journal.run([], &|| 0);
    assert!(matches!(&done[..], [LogDone::Trouble(None), LogDone::Written { .. }]), "{done:?}");
    assert_eq!(last_synced(&done), Some(4));
    assert_eq!(last_synced(&write(&mut opened.journal, [5])), Some(5));
    disk.power_loss_of(100);
    assert_eq!(open(&disk, 1 << 20).replay.index, Index(5));
}

/// A payload that looks like groups of the log all over, behind which the power went.
#[test]
fn c29_a_payload_full_of_markers_is_no_group_and_takes_no_time() {
    let disk = SimDisk::new(1);
    let mut opened = open(&disk, 64 << 20);
    write(&mut opened.journal, [1]);
    let mut large = enqueue(2, 4 << 20);
    let mut bytes = vec![0; 4 << 20];
    for head in bytes.chunks_exact_mut(32) {
        head[..8].copy_from_slice(&[b'h', b'e', b'f', b't', 0, 0x20, 0, 0]);
    }
    large.attached.as_mut().unwrap().payload = bytes.into();
    let LogOp::Append { index, record, attached, .. } = append(large) else { panic!() };
    opened.journal.run([LogOp::Append { index, record, attached, sync: false }], &|| 0);
    disk.power_loss_of(20);
    let started = std::time::Instant::now();
    assert_eq!(open(&disk, 64 << 20).replay.index, Index(1));
    assert!(started.elapsed().as_secs() < 30, "{:?}", started.elapsed());
}

#[test]
fn pe09_of_a_write_in_several_groups_that_fails_nothing_counts_and_all_of_it_is_written_again() {
    for written in 0..3 {
        let disk = SimDisk::new(1);
        let mut opened = open(&disk, 1 << 30);
        write(&mut opened.journal, [1]);
        // Each of the large ones fills a group.
        let sizes = [(2, 5 << 20), (3, 10), (4, 5 << 20), (5, 10)];
        disk.fail_after(written, Act::Write, "log-", ENOSPC);
        let ops: Vec<LogOp> =
            sizes.iter().map(|(number, bytes)| append(enqueue(*number, *bytes))).collect();
        let done = opened.journal.run(ops, &|| 0);
        assert!(matches!(&done[..], [LogDone::Trouble(Some(_))]), "{written}: {done:?}");
        let done = opened.journal.run([append(enqueue(6, 10))], &|| 0);
        let [LogDone::Trouble(None), LogDone::Written { synced, places, .. }] = &done[..] else {
            panic!("{done:?}")
        };
        assert_eq!((*synced, places.len()), (Some(Index(6)), 5));
        for ((index, place), bytes) in places.iter().zip([5 << 20, 10, 5 << 20, 10, 10]) {
            assert_eq!(opened.journal.read(place).unwrap(), log_records::payload(index.0, bytes));
        }
        disk.power_loss_of(100);
        assert_eq!(open(&disk, 1 << 30).replay.index, Index(6));
    }
}
