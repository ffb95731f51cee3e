//! The log, its snapshots and what is made of them, over a real directory.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

#[path = "support/log_records.rs"]
mod log_records;

use std::sync::Arc;

use heft::core::ids::{CacheId, JobId};
use heft::core::job::{InputsState, Job, Times};
use heft::core::state::State;
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
        if round % 10 == 9
            && snapshot::make(&*disk, owner, log.segment(), u64::MAX).unwrap().is_some()
        {
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

/// What lies in `vectors/staged` was written before there was `Record::Stage`: a segment, the
/// snapshot after it, and another segment. There a job's inputs were staged by a dataset whose id
/// names the job.
fn written_before_stage(files: &[&str]) -> (tempfile::TempDir, Arc<dyn Disk>) {
    let data = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(DataDir::claim(data.path()).unwrap());
    disk.make_dir(CONSENSUS).unwrap();
    for file in files {
        let from = format!("{}/tests/vectors/staged/{file}", env!("CARGO_MANIFEST_DIR"));
        std::fs::copy(from, data.path().join(CONSENSUS).join(file)).unwrap();
    }
    (data, disk)
}

/// The same, as if nobody knew when things happened: snapshots from before do not say.
fn without_times(state: &State) -> State {
    let jobs = state.jobs().map(|job| Job { times: Times::default(), ..job.clone() });
    let caps = state.caps().map(|(client, cap)| (client.clone(), cap));
    let datasets =
        state.datasets().map(|dataset| (dataset.clone(), state.staged_for(&dataset.cache)));
    State::restore(jobs, caps, datasets, state.datasets_removed().cloned(), state.last_seq())
}

#[test]
fn staged_inputs_in_logs_and_snapshots_from_before_stage_are_read_as_they_were() {
    let owner = Owner { node: 0, dir: Uuid::from_u128(77) };
    let (segments, snapshot) =
        (["log-0000000000000001", "log-000000000000000f"], "snapshot-000000000000000e");
    let (_log, by_log) = written_before_stage(&segments);
    let (_both, by_snapshot) = written_before_stage(&[segments[0], segments[1], snapshot]);
    let loaded = load(&*by_log, owner, UpTo::End).unwrap();
    let state = &loaded.replay.state;
    let from_snapshot = load(&*by_snapshot, owner, UpTo::End).unwrap();
    assert_eq!((loaded.snapshot, from_snapshot.snapshot), (None, Some(14)));
    // The records of before say when jobs were submitted; the snapshot of before did not keep it,
    // and neither says when they were assigned.
    assert_eq!(from_snapshot.replay.state, without_times(state));
    let times = |job: &Job| (job.times.submitted.is_some(), job.times.assigned);
    assert!(state.jobs().all(|job| times(job) == (true, None)));

    let id = |number: u128| JobId(Uuid::from_u128(number));
    let of = |number: u128| CacheId::of_inputs(id(number));
    let dataset = |name: &str| CacheId::parse(name).unwrap();
    // Staged and back; at a worker, with datasets of its own; staged again; late, at another
    // worker; of nobody.
    let staged: Vec<(JobId, &CacheId)> = state.staged_datasets().collect();
    let (two, three, four, lost) = (of(2), of(3), of(4), of(0x63));
    assert_eq!(staged, [(id(2), &two), (id(3), &three), (id(4), &four), (id(0x63), &lost)]);
    let job = |number| state.job(id(number)).unwrap();
    assert_eq!((&job(1).inputs, job(1).needs_transfers()), (&InputsState::Kept, true));
    assert_eq!(job(2).datasets(), [dataset("a"), of(2), dataset("models")]);
    assert_eq!(job(2).submission.datasets, [dataset("a"), dataset("models")]);
    assert_eq!((job(3).datasets(), job(3).needs_transfers()), (&[of(3)][..], false));
    assert_eq!((&job(4).inputs, job(4).needs_transfers()), (&InputsState::Kept, true));
    assert!(!job(5).needs_transfers() && job(5).datasets().is_empty());
    assert_eq!((state.dataset_count(), state.datasets_removed().count()), (5, 0));

    // What is written of them now comes back as the same.
    let tail = loaded.tail.unwrap();
    let mut log = Log::go_on(by_log.clone(), owner, 1, &tail).unwrap();
    log.rotate().unwrap();
    assert!(snapshot::make(&*by_log, owner, log.segment(), u64::MAX).unwrap().is_some());
    drop(log);
    let again = load(&*by_log, owner, UpTo::End).unwrap();
    assert_eq!((again.snapshot, &again.replay.state), (Some(16), state));
}
