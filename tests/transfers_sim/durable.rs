//! A leader whose records and blobs outlive it, over a disk that loses what was not synced: the
//! store beneath it is the real one. After every end of the leader what clients had heard to be
//! taken, or to have ended, is there.

use std::sync::Arc;

use heft::core::ids::Micros;
use heft::core::job::Phase;
use heft::core::state::State;
use heft::leader::{Leader, LeaderConfig, Recovered};
use heft::store::blobs::{BlobFiles, DiskDone, DiskOp};
use heft::store::disk::Disk;
use heft::store::journal::{Journal, LogDone, LogOp, SnapshotJob};
use heft::store::space::Reserve;
use heft::store::{self, Opened};
use uuid::Uuid;

use super::{CHUNK, Coverage, Faults, Random, SECOND, Wake, World, ids};
use crate::sim_disk::{self, SimDisk};

/// Small, so that segments are finished and snapshots made all the time.
const SEGMENT_BYTES: u64 = 300;

/// What a small disk has beside what is kept back: the inputs of a large job, and a little more.
const UPLOAD_BYTES: u64 = 20 * CHUNK;

/// What outlives the leader, and what works on it.
pub(crate) struct Kept {
    pub(crate) disk: SimDisk,
    journal: Journal,
    files: BlobFiles,
    /// What is to be done with the log, and whether somebody is about to.
    operations: Vec<LogOp>,
    is_due: bool,
}

impl Kept {
    pub(crate) fn new(seed: u64, config: &LeaderConfig) -> (Self, Leader) {
        let disk = SimDisk::new(seed);
        if let Reserve::Bytes(reserve) = config.relay.disk_reserve {
            disk.has_bytes(reserve + UPLOAD_BYTES);
        }
        let (kept, leader, _) = Kept::open(&disk, config, 0, 0).expect("nothing fails yet");
        (kept, leader)
    }

    fn open(
        disk: &SimDisk,
        config: &LeaderConfig,
        now: u64,
        epoch: u64,
    ) -> Result<(Self, Leader, State), String> {
        let shared: Arc<dyn Disk> = disk.shared();
        let opened = store::open(&shared, 0, Uuid::from_u128(7), SEGMENT_BYTES)
            .map_err(|error| error.to_string())?;
        let Opened { journal, replay, owner, blobs, requests, .. } = opened;
        let files = BlobFiles::durable(shared, owner, "0").map_err(|error| error.to_string())?;
        let files = files.keeping(config.relay.disk_reserve);
        let state = replay.state.clone();
        let recovered = Recovered { replay, blobs, requests };
        let leader = Leader::recover(config.clone(), Micros(now), ids(epoch), recovered);
        let kept =
            Kept { disk: disk.clone(), journal, files, operations: Vec::new(), is_due: false };
        Ok((kept, leader, state))
    }

    /// The same disk, after its machine or its process ended; sometimes that happens again while it
    /// is read.
    fn reopen(
        disk: &SimDisk,
        config: &LeaderConfig,
        now: u64,
        epoch: u64,
        random: &mut Random,
    ) -> (Self, Leader, State) {
        disk.faults(sim_disk::Faults::default());
        if random.chance(20) {
            disk.crash_in(Some(random.below(40)));
            match Kept::open(disk, config, now, epoch) {
                Ok(opened) if !disk.is_dead() => {
                    disk.crash_in(None);
                    return opened;
                }
                Ok(_) | Err(_) => disk.power_loss(),
            }
        }
        disk.crash_in(None);
        Kept::open(disk, config, now, epoch)
            .unwrap_or_else(|error| panic!("it does not start again: {error}"))
    }

    /// Files that belong to a blob.
    pub(crate) fn blob_files(&self) -> usize {
        let is_blob =
            |path: &&String| path.starts_with("blobs/") && !path.starts_with("blobs/free-");
        self.disk.tree().keys().filter(is_blob).count()
    }
}

impl World {
    /// The disk of a world in which it fails.
    pub(crate) fn disk_faults(&mut self) {
        let Faults { disk_writes, disk_reads, .. } = self.faults;
        let is_full = disk_writes && self.random.chance(30);
        let Some(kept) = &self.kept else { return };
        let eio = if disk_reads { 15 } else { 0 };
        kept.disk.faults(sim_disk::Faults { eio, full: is_full, full_syncs: 20 });
        self.seen.disk_faults += u64::from(is_full);
        if disk_writes || disk_reads {
            let at = self.now + 1 + self.random.below(2 * SECOND);
            self.at(at, Wake::DiskFaults(self.epoch));
        }
    }

    pub(crate) fn log(&mut self, operation: LogOp) {
        let Some(kept) = &mut self.kept else {
            panic!("nothing outlives this leader: {operation:?}")
        };
        kept.operations.push(operation);
        if !std::mem::replace(&mut kept.is_due, true) {
            let takes = [100, 2_000, 30_000][self.random.below(3) as usize];
            let at = self.now + self.random.below(takes);
            self.at(at, Wake::Log(self.epoch));
        }
    }

    /// The thread of the log has its turn.
    pub(crate) fn log_works(&mut self) {
        let Some(kept) = &mut self.kept else { return };
        kept.is_due = false;
        let now = self.now;
        let done = kept.journal.run(std::mem::take(&mut kept.operations), &|| now);
        if self.random.chance(50) {
            kept.journal.rest();
        }
        if kept.disk.is_dead() {
            return self.kill();
        }
        if kept.journal.is_stuck() && !kept.is_due {
            kept.is_due = true;
            self.at(self.now + SECOND, Wake::Log(self.epoch));
        }
        let snapshot = self.kept.as_mut().and_then(|kept| kept.journal.snapshot_due());
        if let Some(job) = snapshot {
            let at = self.now + self.random.below(100_000);
            self.at(at, Wake::Snapshot(self.epoch, job));
        }
        self.log_is_done(done);
    }

    pub(crate) fn snapshot(&mut self, job: &SnapshotJob) {
        let made = job.make();
        let Some(kept) = &mut self.kept else { return };
        if kept.disk.is_dead() {
            return self.kill();
        }
        self.seen.snapshots += u64::from(matches!(made, Ok(Some(_))));
        let done = kept.journal.snapshot_made(made);
        self.log_is_done(done);
    }

    fn log_is_done(&mut self, done: impl IntoIterator<Item = LogDone>) {
        for done in done {
            let is_stuck = matches!(done, LogDone::Trouble(Some(_)));
            let is_small = self.config.relay.disk_reserve != Reserve::Auto;
            assert!(
                !is_stuck || !is_small || self.faults.disk_writes,
                "uploads took the room of the log: {done:?}"
            );
            self.leader.log_done(self.micros(), done);
            if self.leader.why_failed().is_some() {
                self.seen.log_failed += 1;
                return self.kill();
            }
            self.work_off();
        }
    }

    /// The thread of the blobs has its turn. `None` if the machine stopped.
    pub(crate) fn blobs_work(
        kept: &mut Kept,
        operation: DiskOp,
        seen: &mut Coverage,
    ) -> Option<Option<DiskDone>> {
        seen.spooled += u64::from(matches!(operation, DiskOp::Write { .. }));
        let done = kept.files.execute(operation);
        (!kept.disk.is_dead()).then_some(done)
    }

    /// The leader of a world in which things outlive it ends, or its machine does, and it is
    /// started again.
    pub(crate) fn restart(&mut self) -> Option<Leader> {
        let kept = self.kept.take()?;
        let disk = kept.disk.clone();
        drop(kept);
        match disk.is_dead() || self.random.chance(50) {
            true => disk.power_loss(),
            false => disk.kill(),
        }
        let (kept, leader, state) =
            Kept::reopen(&disk, &self.config, self.now, self.epoch, &mut self.random);
        self.kept = Some(kept);
        self.check_kept(&state);
        self.set_trap();
        self.disk_faults();
        Some(leader)
    }

    /// The machine stops in the middle of something, sooner or later.
    pub(crate) fn set_trap(&mut self) {
        if self.faults.kills > 0
            && let Some(kept) = &self.kept
        {
            self.faults.kills -= 1;
            kept.disk.crash_in(Some(self.random.below(400)));
        }
    }

    /// What clients have heard is so.
    fn check_kept(&mut self, state: &State) {
        let is_roomy = self.config.relay.spool_bytes_max >= 1 << 30;
        // What cannot be read is lost, and said to be.
        if !is_roomy || self.faults.disk_reads {
            return;
        }
        let jobs =
            self.clients.iter().filter(|client| !client.rogue).flat_map(|client| &client.jobs);
        for job in jobs.filter(|job| job.acknowledged && !job.lies) {
            let found = state.job(heft::core::ids::JobId(job.id));
            if self.faults.disk_writes
                && found.is_none_or(|found| found.is_announced() || job.ending.is_some())
            {
                // Results that were sent make room on a disk that is full, and a client that did
                // not get its own submits the job again.
                continue;
            }
            // So do results that their clients have where uploads find no room.
            let is_small = self.config.relay.disk_reserve != Reserve::Auto;
            if is_small && found.is_none() && job.ending.is_some() {
                continue;
            }
            let Some(found) = found else { panic!("job {} was acknowledged and is gone", job.id) };
            assert!(!found.is_announced(), "job {} was acknowledged and is not taken", job.id);
            self.seen.acknowledged_kept += 1;
            if job.ending.is_some() {
                let has_ended = matches!(found.phase, Phase::Done { .. } | Phase::Dead { .. });
                assert!(has_ended, "job {} had ended and is {:?}", job.id, found.phase);
            }
        }
    }
}
