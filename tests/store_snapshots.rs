//! Snapshots that fail, are damaged, or find damage on their way: the log goes on, and what is
//! needed stays where it can be found.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

#[path = "support/log_records.rs"]
mod log_records;
#[path = "support/sim_disk.rs"]
mod sim_disk;

use std::collections::BTreeMap;

use heft::core::ids::{JobId, ResultId};
use heft::store::disk::How;
use heft::store::format::{FileNo, Place};
use heft::store::journal::{LogDone, LogOp};
use heft::store::replay::{Files, Key};
use heft::store::{self, Opened, snapshot};
use log_records::{ack, append, enqueue, payload};
use sim_disk::{Act, SimDisk};
use uuid::Uuid;

const EIO: i32 = 5;
const ENOSPC: i32 = 28;
const SEGMENT: u64 = 8000;
const BYTES: usize = 1000;

fn open(disk: &SimDisk) -> Result<Opened, String> {
    store::open(&disk.shared(), 1, Uuid::from_u128(0xD1), SEGMENT)
        .map_err(|error| error.to_string())
}

/// A leader of a kind: it knows where payloads lie.
struct Life {
    opened: Opened,
    index: u64,
    places: BTreeMap<Key, Place>,
}

impl Life {
    fn new(disk: &SimDisk) -> Self {
        let opened = open(disk).unwrap();
        let places = opened.replay.held().map(|(key, held)| (key, held.place)).collect();
        Life { index: opened.replay.index.0, places, opened }
    }

    fn run(&mut self, op: LogOp, key: Key) {
        for done in self.opened.journal.run([op], &|| 0) {
            match done {
                LogDone::Written { places, .. } => {
                    self.places.extend(places.into_iter().map(|(_, place)| (key, place)));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    /// Jobs until so many segments are finished. Of five all end but one, or none does.
    fn fill(&mut self, segments: usize, do_end: bool, disk: &SimDisk) {
        let before = self.segments(disk).len();
        while self.segments(disk).len() < before + segments {
            self.index += 1;
            let number = self.index;
            let enqueued = enqueue(number, BYTES);
            let key = Key::Input(JobId(Uuid::from_u128(number.into())));
            self.run(append(enqueued), key);
            if do_end && !number.is_multiple_of(5) {
                self.index += 1;
                let ended = ack(self.index, number);
                self.run(append(ended), Key::Result(ResultId(self.index)));
                self.places.remove(&key);
            }
        }
    }

    fn segments(&self, disk: &SimDisk) -> Vec<u64> {
        Files::list(&*disk.shared()).unwrap().segments
    }

    /// Makes the snapshot that is due, and cuts if there is one. Gives what went wrong.
    fn snapshot(&mut self) -> Option<String> {
        let made = self.opened.journal.snapshot_due().expect("one is due").make();
        let wrong = made.as_ref().err().map(ToString::to_string);
        if let Some(LogDone::Snapshot(report)) = self.opened.journal.snapshot_made(made) {
            for (key, _, place) in report.moved {
                self.places.entry(key).and_modify(|known| *known = place);
            }
            self.opened.journal.run([LogOp::Cut], &|| 0);
        }
        wrong
    }

    fn assert_payloads(&mut self) {
        for (key, place) in &self.places {
            let read =
                self.opened.journal.read(place).unwrap_or_else(|error| panic!("{key:?}: {error}"));
            match key {
                Key::Input(job) => assert_eq!(read, payload(job.0.as_u128() as u64, BYTES)),
                Key::Result(_) => assert_eq!(read, b"result"),
            }
        }
    }
}

fn flip(disk: &SimDisk, path: &str, at: u64) {
    let mut file = disk.shared().open(path, How::Write).unwrap();
    let mut byte = [0];
    file.read_at(at, &mut byte).unwrap();
    file.write_at(at, &[byte[0] ^ 1]).unwrap();
    file.sync().unwrap();
}

#[test]
fn c29_a_snapshot_of_which_nobody_heard_moves_nothing_that_the_next_one_lets_go() {
    let disk = SimDisk::new(1);
    let mut life = Life::new(&disk);
    life.fill(4, true, &disk);
    // It has its name, and nobody is told where payloads lie now.
    disk.fail_next(Act::SyncDir, "consensus", EIO);
    assert!(life.snapshot().is_some());
    assert_eq!(Files::list(&*disk.shared()).unwrap().snapshots.len(), 1);
    for _ in 0..3 {
        life.fill(4, false, &disk);
        assert_eq!(life.snapshot(), None);
        life.assert_payloads();
    }
    disk.kill();
    Life::new(&disk).assert_payloads();
}

#[test]
fn c29_a_snapshot_that_finds_no_room_takes_none_away() {
    for (act, path) in
        [(Act::Write, "snapshot-"), (Act::Sync, "snapshot-"), (Act::Rename, "snapshot-")]
    {
        let disk = SimDisk::new(1);
        let mut life = Life::new(&disk);
        life.fill(4, true, &disk);
        disk.fail_next(act, path, ENOSPC);
        let wrong = life.snapshot().unwrap();
        assert!(wrong.contains("snapshot-") && wrong.contains("full"), "{wrong}");
        let left: Vec<String> =
            disk.tree().into_keys().filter(|path| path.contains("snapshot")).collect();
        assert!(left.is_empty(), "{act:?}: {left:?}");
        life.fill(4, true, &disk);
        assert_eq!(life.snapshot(), None);
        life.assert_payloads();
    }
}

#[test]
fn c29_a_damaged_payload_does_not_keep_the_log_from_being_cut() {
    let disk = SimDisk::new(1);
    let mut life = Life::new(&disk);
    life.fill(4, false, &disk);
    assert_eq!(life.snapshot(), None);
    // Jobs of which little is left in their segments: one of these payloads is not as it was
    // written.
    life.fill(4, true, &disk);
    let (key, place) = life.places.iter().next_back().map(|(key, place)| (*key, *place)).unwrap();
    let (bad, bad_place) = life
        .places
        .iter()
        .find(|(key, place)| matches!(key, Key::Input(_)) && place.file == FileNo::log(1))
        .map(|(key, place)| (*key, *place))
        .unwrap();
    assert_ne!(place.file, bad_place.file);
    flip(&disk, &bad_place.file.path(), bad_place.offset);
    // The jobs of the first segment end, but for the one that is damaged.
    let others: Vec<Key> = life
        .places
        .iter()
        .filter(|(key, place)| {
            **key != bad && matches!(key, Key::Input(_)) && place.file == bad_place.file
        })
        .map(|(key, _)| *key)
        .collect();
    for other in others {
        let Key::Input(job) = other else { continue };
        life.index += 1;
        let ended = ack(life.index, job.0.as_u128() as u64);
        life.run(append(ended), Key::Result(ResultId(life.index)));
        life.places.remove(&other);
    }
    for _ in 0..4 {
        life.fill(4, true, &disk);
        assert_eq!(life.snapshot(), None, "one damaged payload keeps no snapshot from being made");
    }
    let error = life.opened.journal.read(&life.places[&bad]).unwrap_err().to_string();
    assert!(
        error.contains("log-0000000000000001 is damaged at offset"),
        "it is told where it was: {error}"
    );
    life.places.remove(&bad);
    life.assert_payloads();
    assert_eq!(
        life.opened.journal.read(&life.places[&key]).unwrap().len(),
        life.places[&key].len as usize
    );
}

#[test]
fn c29_without_a_snapshot_that_can_be_read_its_damage_is_told_and_not_the_gap_behind_it() {
    let disk = SimDisk::new(1);
    let mut life = Life::new(&disk);
    // The first segment stays, as all of its payloads are needed.
    life.fill(4, false, &disk);
    for _ in 0..3 {
        assert_eq!(life.snapshot(), None);
        life.fill(4, true, &disk);
    }
    let files = Files::list(&*disk.shared()).unwrap();
    assert_eq!((files.segments[0], files.snapshots.len()), (1, 2), "{files:?}");
    disk.kill();
    for index in &files.snapshots {
        flip(&disk, &FileNo::snapshot(*index).path(), 64 + 16 + 3);
    }
    let before = disk.tree();
    let error = open(&disk).unwrap_err();
    assert!(error.contains("snapshot-") && error.contains("is damaged at offset 80"), "{error}");
    assert_eq!(disk.tree(), before, "nothing was changed");
}

#[test]
fn c29_a_damaged_snapshot_is_put_aside_and_the_one_before_it_and_the_log_say_the_same() {
    let disk = SimDisk::new(1);
    let mut life = Life::new(&disk);
    for _ in 0..3 {
        life.fill(4, true, &disk);
        assert_eq!(life.snapshot(), None);
    }
    life.fill(1, true, &disk);
    disk.kill();
    let state = open(&disk).unwrap().replay.state;
    disk.kill();
    let snapshots = Files::list(&*disk.shared()).unwrap().snapshots;
    let newest = FileNo::snapshot(*snapshots.last().unwrap()).path();
    flip(&disk, &newest, 90);
    let mut life = Life::new(&disk);
    assert_eq!(life.opened.replay.state, state);
    life.assert_payloads();
    assert!(disk.tree().contains_key(&format!("{newest}.bad")));
    life.fill(4, true, &disk);
    assert_eq!(life.snapshot(), None);
    life.assert_payloads();
    let disk_ = disk.shared();
    let owner = store::format::owner_of(&*disk_).unwrap().unwrap();
    for index in Files::list(&*disk_).unwrap().snapshots {
        snapshot::verify(&*disk_, owner, index).unwrap();
    }
}
