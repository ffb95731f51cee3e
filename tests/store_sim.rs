//! The store over a disk that loses what was not synced, tears what was being written, fails and is
//! full, seeded.
//!
//! A leader of a kind proposes records and writes blobs; it is killed, or the power goes, in the
//! middle of anything, recovery too. What it was told is certain has to be there again, nothing may
//! be there that it never wrote, and no directory that only crashed may be refused. A failure
//! prints its seed: `HEFT_SIM_SEED=n scripts/test store_sim` replays it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::wildcard_enum_match_arm
)]

#[path = "store_sim/blobs.rs"]
mod blobs;
#[path = "store_sim/coverage.rs"]
mod coverage;
#[path = "store_sim/records.rs"]
mod records;
#[path = "support/sim_disk.rs"]
mod sim_disk;
mod support;

use std::collections::HashMap;

use blobs::Blobs;
use coverage::Coverage;
use heft::consensus::Single;
use heft::core::ids::Index;
use heft::core::retry::mix;
use heft::store::blobs::BlobFiles;
use heft::store::format::{Kind, Place};
use heft::store::journal::{Journal, LogDone, LogOp, SnapshotJob};
use heft::store::replay::Key;
use heft::store::{self, Opened, snapshot};
use heft::wire::Pool;
use records::Proposals;
use sim_disk::{Act, Faults, Random, SimDisk};
use support::scaled;
use uuid::Uuid;

const NODE: i32 = 3;
const DIR: Uuid = Uuid::from_u128(0x000D_1EC7);

struct World {
    random: Random,
    disk: SimDisk,
    seen: Coverage,
    proposals: Proposals,
    blobs: Blobs,
    pool: Pool,
    segment_bytes: u64,
    payload_bytes: usize,
    /// The last record that was heard to be on the disk.
    sure: u64,
    /// The last record that was heard to be written: there again, unless the power goes.
    written: u64,
    /// Whether a sync of a blob's file failed in this life.
    blob_sync_failed: bool,
}

/// A process that has the directory.
struct Life {
    journal: Journal,
    files: BlobFiles,
    single: Single,
    /// Records that are committed.
    committed: u64,
    places: HashMap<Key, Place>,
    snapshot: Option<SnapshotJob>,
    is_cut_due: bool,
    segment: Option<u64>,
    /// What was proposed and has not reached the log.
    queue: Vec<LogOp>,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random(mix(seed));
        World {
            disk: SimDisk::new(seed),
            seen: Coverage::default(),
            // In some worlds many groups are not certain at a time.
            proposals: Proposals::new([0, 80, 97][random.below(3) as usize]),
            blobs: Blobs::default(),
            pool: Pool::new(1),
            segment_bytes: [200, 700, 2500, 9000][random.below(4) as usize],
            payload_bytes: [40, 300, 3000][random.below(3) as usize],
            sure: 0,
            written: 0,
            blob_sync_failed: false,
            random,
        }
    }

    /// Lives until the last, which finds no trouble.
    fn run(&mut self, lives: u64) {
        for _ in 0..lives {
            let steps = 5 + self.random.below(120);
            if self.random.chance(80) {
                let ops = self.random.below(steps * 4);
                self.disk.crash_in(Some(ops));
            }
            let eio = if self.random.chance(40) { 1 + self.random.below(60) } else { 0 };
            self.disk.faults(Faults {
                eio,
                full_syncs: self.random.below(2) * 5,
                ..Faults::default()
            });
            if let Some(life) = self.open() {
                self.live(life, steps);
            }
            self.die();
        }
        self.disk.faults(Faults::default());
        let mut life = self.open().expect("it opens");
        self.check_all(&mut life);
        self.seen.disk = self.disk.seen();
    }

    /// The process ends in one way or the other.
    fn die(&mut self) {
        self.disk.faults(Faults::default());
        // A process that ends between a blob's failing sync and the removal of its map leaves a
        // file that readers see whole, and that is not. Nothing in it tells; only the power's going
        // does away with it.
        if self.random.chance(70) || (self.blob_sync_failed && self.disk.is_dead()) {
            self.disk.power_loss();
            self.written = self.sure;
        } else {
            self.disk.kill();
        }
        self.blob_sync_failed = false;
    }

    /// Opens the directory. It may stop or fail on the way only if the disk did.
    fn open(&mut self) -> Option<Life> {
        loop {
            self.disk.failed();
            let disk = self.disk.shared();
            let opened = store::open(&disk, NODE, DIR, self.segment_bytes)
                .map_err(|error| error.to_string());
            let files = |opened: &Opened| {
                BlobFiles::durable(disk.clone(), opened.owner, "0")
                    .map_err(|error| error.to_string())
            };
            let both = opened.and_then(|opened| files(&opened).map(|files| (opened, files)));
            match both {
                Ok((opened, files)) => return Some(self.opened(opened, files)),
                Err(_) if self.disk.is_dead() => {
                    self.seen.died_in_recovery += 1;
                    return None;
                }
                Err(error) => {
                    assert!(!self.disk.failed().is_empty(), "refused after a crash: {error}");
                    assert!(
                        error.contains("sim/") || error.contains("os error"),
                        "it names no file: {error}"
                    );
                    self.seen.refused_by_faults += 1;
                    let faults = Faults { eio: 0, ..Faults::default() };
                    self.disk.faults(faults);
                    self.disk.kill();
                }
            }
        }
    }

    /// Compares what was found to what was told.
    fn opened(&mut self, opened: Opened, files: BlobFiles) -> Life {
        let Opened { mut journal, replay, blobs, requests, .. } = opened;
        let found = replay.index.0;
        assert!(
            found >= self.sure,
            "record {} was on the disk, and {found} is the last",
            self.sure
        );
        assert!(
            found >= self.written,
            "record {} was written, and {found} is the last",
            self.written
        );
        assert!(found <= self.proposals.len(), "{found} of {} records", self.proposals.len());
        self.seen.lives += 1;
        self.seen.records_lost += self.proposals.len() - found;
        self.proposals.keep(found);
        self.proposals.check(&replay);
        self.written = found;
        // It is synced before anything is written behind it.
        self.sure = found;
        for (job, request) in &requests {
            self.seen.requests += 1;
            let attached = self.proposals.payload(Key::Input(*job)).unwrap();
            assert_eq!(*attached.payload, *request);
        }
        let mut places = HashMap::new();
        for (key, held) in replay.held() {
            let failed = self.disk.failed().len();
            match journal.read(&held.place) {
                Ok(read) => {
                    assert_eq!(*self.proposals.payload(key).unwrap().payload, read, "{key:?}")
                }
                Err(error) => {
                    let excused =
                        failed > 0 || self.disk.is_dead() || !self.disk.failed().is_empty();
                    assert!(excused, "{key:?}: {error}");
                }
            }
            places.insert(key, held.place);
        }
        self.blobs.recovered(blobs, &mut self.seen);
        Life {
            journal,
            files,
            single: Single::default(),
            committed: found,
            places,
            snapshot: None,
            is_cut_due: false,
            segment: None,
            queue: Vec::new(),
        }
    }

    fn live(&mut self, mut life: Life, steps: u64) {
        let mut full_until = None;
        for step in 0..steps {
            if self.random.chance(2) && full_until.is_none() {
                full_until = Some(step + self.random.below(20));
                self.full(true);
            } else if full_until.is_some_and(|until| step >= until) {
                full_until = None;
                self.full(false);
            }
            match self.random.below(10) {
                0..6 => self.write_log(&mut life),
                6 if life.journal.is_stuck() => {}
                6 => life.journal.rest(),
                _ => {
                    self.blobs.step(
                        &mut self.random,
                        &mut life.files,
                        &self.disk,
                        &self.pool,
                        &mut self.seen,
                    );
                    let is_sync = |(act, path): &(Act, String)| {
                        *act == Act::Sync && path.starts_with("blobs/")
                    };
                    self.blob_sync_failed |= self.disk.failed().iter().any(is_sync);
                }
            }
            self.snapshots(&mut life);
            if self.disk.is_dead() {
                return;
            }
        }
        self.full(false);
        if life.journal.is_stuck() {
            // There is room again: all that waited is written.
            self.disk.faults(Faults::default());
            let ops = std::mem::take(&mut life.queue);
            self.run_log(&mut life, ops);
            assert!(self.disk.is_dead() || !life.journal.is_stuck());
            let waiting = life.queue.len() as u64;
            assert!(self.disk.is_dead() || self.written + waiting == self.proposals.len());
        }
    }

    fn full(&mut self, full: bool) {
        let eio = if self.random.chance(30) { 20 } else { 0 };
        let full_syncs = if self.random.chance(30) { 10 } else { 0 };
        self.disk.faults(Faults { eio, full, full_syncs });
    }

    // --- the log

    fn write_log(&mut self, life: &mut Life) {
        self.propose(life);
        if self.random.chance(20) {
            return;
        }
        let mut ops = std::mem::take(&mut life.queue);
        let needed = self.proposals.needed();
        for _ in 0..self.random.below(3) {
            let known: Vec<(Key, Place)> = life
                .places
                .iter()
                .map(|(key, place)| (*key, *place))
                .filter(|(key, _)| needed.contains(key))
                .collect();
            let mut known = known;
            known.sort_unstable_by_key(|(key, _)| *key);
            if let Some((key, place)) = self.random.of(&known).copied() {
                ops.push(LogOp::Read { key, place });
            }
        }
        if std::mem::take(&mut life.is_cut_due) {
            ops.push(LogOp::Cut);
            self.seen.cuts += 1;
        }
        self.run_log(life, ops);
    }

    /// Proposes some records. The log gets them when it is there.
    fn propose(&mut self, life: &mut Life) {
        for _ in 0..self.random.below(5) {
            // Now and then one that does not go into a group with others.
            let is_large = self.proposals.len() > 20 && self.random.below(3000) == 0;
            let bytes = if is_large { 5 << 20 } else { self.payload_bytes };
            self.seen.large += u64::from(is_large);
            let proposed = self.proposals.propose(&mut self.random, bytes).clone();
            let index = Index(self.proposals.len());
            self.seen.records += 1;
            let committed = life.single.propose(index, proposed.sync);
            self.committed(life, committed);
            let (record, attached, sync) = (proposed.record, proposed.attached, proposed.sync);
            life.queue.push(LogOp::Append { index, record, attached, sync });
        }
    }

    fn run_log(&mut self, life: &mut Life, ops: Vec<LogOp>) {
        self.disk.failed();
        let done = life.journal.run(ops, &|| 0);
        if self.disk.is_dead() {
            return;
        }
        if self.random.chance(30) {
            // More is proposed before it is heard what became of that.
            self.propose(life);
        }
        let failed = self.disk.failed();
        let is_of_log = |(act, path): &&(Act, String)| {
            matches!(act, Act::Sync | Act::Write | Act::SyncDir) && path.starts_with("consensus")
        };
        let sync_failed = failed.iter().filter(is_of_log).any(|(act, _)| *act == Act::Sync);
        let has_failed = done.iter().any(|done| matches!(done, LogDone::Failed(_)));
        assert!(!sync_failed || has_failed, "a sync of the log failed, and nobody heard: {done:?}");
        for done in done {
            self.log_done(life, done, &failed);
        }
        if has_failed {
            self.seen.failed += 1;
            self.expect_nothing_more(life);
        }
    }

    fn log_done(&mut self, life: &mut Life, done: LogDone, failed: &[(Act, String)]) {
        match done {
            LogDone::Written { synced, places, cost } => {
                self.written += cost.records;
                assert!(self.written <= self.proposals.len());
                for (index, place) in places {
                    let key = self.proposals.at(index.0).key().expect("it has a payload");
                    assert_eq!(
                        place.len as usize,
                        self.proposals.payload(key).unwrap().payload.len()
                    );
                    self.seen.rotations +=
                        u64::from(life.segment.is_some_and(|last| last < place.file.number()));
                    life.segment = Some(place.file.number());
                    life.places.insert(key, place);
                }
                if let Some(index) = synced {
                    assert!(index.0 > self.sure && index.0 == self.written, "{index:?}");
                    self.sure = index.0;
                    self.seen.synced += 1;
                    let committed = life.single.synced(index);
                    self.committed(life, committed);
                }
            }
            LogDone::Read { key, result } => match result {
                Ok(read) => {
                    assert_eq!(*self.proposals.payload(key).unwrap().payload, read, "{key:?}");
                    self.seen.reads += 1;
                    let is_moved = life.places[&key].file.kind() == Kind::Snapshot;
                    self.seen.reads_in_snapshots += u64::from(is_moved);
                }
                Err(error) => assert!(!failed.is_empty(), "{key:?}: {error}"),
            },
            LogDone::Snapshot(_) => panic!("nobody made one"),
            LogDone::TailSafe { .. } => panic!("there is no tail"),
            LogDone::Trouble(Some(why)) => {
                assert!(why.contains("consensus") && !failed.is_empty(), "{why}");
                self.seen.troubles += 1;
            }
            LogDone::Trouble(None) => self.seen.troubles_over += 1,
            LogDone::Failed(why) => assert!(!failed.is_empty(), "{why}"),
        }
    }

    /// Records are committed in order, and one that waits for the disk not before it is there.
    fn committed(&mut self, life: &mut Life, up_to: Option<Index>) {
        let Some(up_to) = up_to else { return };
        assert!(up_to.0 > life.committed);
        for index in life.committed + 1..=up_to.0 {
            assert!(
                !self.proposals.at(index).sync || index <= self.sure,
                "record {index} is not on the disk"
            );
            self.seen.committed += 1;
        }
        life.committed = up_to.0;
    }

    /// After the log failed.
    fn expect_nothing_more(&mut self, life: &mut Life) {
        let proposed = self.proposals.propose(&mut self.random, 10).clone();
        let index = Index(self.proposals.len());
        let op = LogOp::Append {
            index,
            record: proposed.record,
            attached: proposed.attached,
            sync: true,
        };
        let done = life.journal.run([op], &|| 0);
        assert!(done.is_empty(), "{done:?}");
        life.journal.rest();
        assert!(life.journal.snapshot_due().is_none());
        self.disk.crash_in(Some(0));
        self.disk.shared().list(".").ok();
        assert!(self.disk.is_dead(), "the leader stops");
    }

    // --- snapshots

    fn snapshots(&mut self, life: &mut Life) {
        if self.disk.is_dead() {
            return;
        }
        if life.snapshot.is_none() {
            life.snapshot = life.journal.snapshot_due();
        }
        if life.snapshot.is_none() || !self.random.chance(30) {
            return;
        }
        self.disk.failed();
        let made = life.snapshot.take().unwrap().make();
        if self.disk.is_dead() {
            return;
        }
        let failed = self.disk.failed();
        match &made {
            Ok(Some(_)) => self.seen.snapshots += 1,
            Ok(None) => {}
            Err(error) => {
                assert!(!failed.is_empty(), "{error}");
                self.seen.snapshots_failed += 1;
            }
        }
        match life.journal.snapshot_made(made) {
            Some(LogDone::Snapshot(report)) => {
                self.seen.moved += report.moved.len() as u64;
                for (key, _, place) in report.moved {
                    life.places.insert(key, place);
                }
                life.is_cut_due = true;
            }
            None => {}
            Some(other) => panic!("{other:?}"),
        }
    }

    // --- the end

    fn check_all(&mut self, life: &mut Life) {
        let needed = self.proposals.needed();
        for (key, place) in life.places.iter().filter(|(key, _)| needed.contains(key)) {
            assert_eq!(
                *self.proposals.payload(*key).unwrap().payload,
                life.journal.read(place).unwrap()
            );
        }
        let disk = self.disk.shared();
        let owner = store::format::owner_of(&*disk).unwrap().unwrap();
        for index in store::replay::Files::list(&*disk).unwrap().snapshots {
            snapshot::verify(&*disk, owner, index).unwrap();
        }
        self.blobs.check_all(&mut life.files, &self.pool);
    }
}

fn run_seeds(seeds: impl Iterator<Item = u64>, mut run: impl FnMut(u64) -> Coverage) -> Coverage {
    let mut coverage = Coverage::default();
    for seed in seeds {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| run(seed)));
        match ran {
            Ok(seen) => coverage.add(&seen),
            Err(panic) => {
                eprintln!("HEFT_SIM_SEED={seed} scripts/test store_sim");
                std::panic::resume_unwind(panic);
            }
        }
    }
    coverage
}

/// The seeds to run: all of them, or the one that is asked for.
fn seeds(ci: u32, long: u32) -> std::ops::Range<u64> {
    match std::env::var("HEFT_SIM_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("HEFT_SIM_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..u64::from(scaled(ci, long)),
    }
}

#[test]
fn pe08_c29_what_was_told_to_be_on_the_disk_is_there_again_after_any_crash() {
    let seeds = seeds(500, 2000);
    let whole = seeds.end - seeds.start > 1;
    let coverage = run_seeds(seeds, |seed| {
        let mut world = World::new(seed);
        let lives = 3 + world.random.below(5);
        world.run(lives);
        world.seen
    });
    println!("{coverage:?}");
    assert!(!whole || coverage.missing().is_empty(), "never happened: {:?}", coverage.missing());
}

/// One life without a fault, then the same again and again, stopped at each moment at which more
/// becomes certain.
#[test]
fn pe08_c29_stopped_at_every_sync_and_rename_of_a_life_and_again_in_recovery_nothing_is_lost() {
    let mut points = 0;
    run_seeds(seeds(3, 30), |seed| {
        let mut whole = World::new(seed);
        let steps = 40;
        let life = whole.open().expect("it opens");
        whole.live(life, steps);
        for (op, is_done) in
            whole.disk.points().into_iter().flat_map(|op| [(op, false), (op, true)])
        {
            let mut world = World::new(seed);
            world.disk.crash_at(op, is_done);
            if let Some(life) = world.open() {
                world.live(life, steps);
            }
            assert!(world.disk.is_dead(), "the same seed comes by operation {op} again");
            world.random = Random(mix(seed ^ op << 20 ^ u64::from(is_done)));
            world.die();
            if world.random.chance(50) {
                world.disk.crash_in(Some(world.random.below(30)));
                drop(world.open());
                world.die();
            }
            let mut life = world.open().expect("it opens");
            world.check_all(&mut life);
            points += 1;
        }
        whole.seen
    });
    println!("stopped {points} times");
    assert!(points > 300, "{points}");
}
