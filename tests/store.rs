//! The log, its snapshots and what is made of them, over a real directory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[path = "support/log_records.rs"]
mod log_records;

use std::sync::Arc;

use heft::store::disk::{DataDir, Disk};
use heft::store::format::{CONSENSUS, Owner};
use heft::store::log::{Append, Log};
use heft::store::replay::{UpTo, load, unneeded};
use heft::store::snapshot;
use log_records::{ack, enqueue};
use uuid::Uuid;

#[test]
fn what_was_written_is_there_again_after_segments_snapshots_and_cuts() {
    let data = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data.path()).unwrap());
    let owner = Owner { node: 0, dir: Uuid::from_u128(77) };
    disk.make_dir(CONSENSUS).unwrap();
    let mut log = Log::begin(disk.clone(), owner, 64 * 1024, 1).unwrap();
    let mut index = 0;
    let mut snapshots = 0;
    for round in 0..40u64 {
        let jobs: Vec<Append> = (0..10)
            .map(|_| {
                index += 1;
                enqueue(index, 1000)
            })
            .collect();
        let first = jobs[0].index.0;
        log.append(&jobs).unwrap();
        log.sync().unwrap();
        // All but one of the ten end.
        let acks: Vec<Append> = (first..first + 9)
            .map(|job| {
                index += 1;
                ack(index, job)
            })
            .collect();
        let places = log.append(&acks).unwrap();
        assert_eq!(places.len(), 9);
        assert_eq!(log.read(&places[3].1).unwrap(), b"result");
        log.sync().unwrap();
        log.note_synced().unwrap();
        log.rotate().unwrap();
        if round % 10 == 9 && snapshot::make(&*disk, owner, log.segment(), u64::MAX).unwrap().is_some() {
            snapshots += 1;
            let files = unneeded(&disk, owner).unwrap();
            log.remove(&files).unwrap();
        }
    }
    assert!(snapshots >= 3, "{snapshots}");
    drop(log);
    let loaded = load(&*disk, owner, UpTo::End).unwrap();
    let tail = loaded.tail.unwrap();
    assert_eq!((loaded.replay.index.0, tail.next, tail.torn), (index, index + 1, 0));
    assert_eq!(
        (loaded.replay.state.job_count(), loaded.replay.inputs.len(), loaded.replay.results.len()),
        (400, 40, 360)
    );
    let mut log = Log::go_on(disk.clone(), owner, 64 * 1024, &tail).unwrap();
    for (job, held) in &loaded.replay.inputs {
        let bytes = log.read(&held.place).unwrap();
        assert_eq!(bytes, vec![u8::try_from(job.0.as_u128() % 251).unwrap(); 1000]);
    }
    for held in loaded.replay.results.values() {
        assert_eq!(log.read(&held.place).unwrap(), b"result");
    }
    index += 1;
    log.append(&[enqueue(index, 10)]).unwrap();
    let again = load(&*disk, owner, UpTo::End).unwrap();
    assert_eq!(again.replay.state.job_count(), 401);
}
