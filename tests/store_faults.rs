//! Each way in which a disk can fail or lose something that the store once did not stand, by itself.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation)]

#[path = "support/log_records.rs"]
mod log_records;
#[path = "support/sim_disk.rs"]
mod sim_disk;

use heft::core::Record;
use heft::core::ids::{Index, JobId, Micros, Run};
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
    numbers.into_iter().flat_map(|number| journal.run([append(enqueue(number, 100))], &|| 0)).collect()
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
