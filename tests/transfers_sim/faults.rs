//! What can go wrong, and what did.

use heft::core::retry::mix;

/// Numbers that follow from a seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    pub(crate) fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What can go wrong in one world.
#[derive(Debug, Default)]
pub(crate) struct Faults {
    pub(crate) cuts: [u32; 2],
    pub(crate) flips: u32,
    pub(crate) head_flips: u32,
    pub(crate) kills: u32,
    pub(crate) crashes: u32,
    pub(crate) pauses: u32,
    pub(crate) voids: bool,
    pub(crate) rogue: bool,
    pub(crate) lying: bool,
    pub(crate) worker_disk: bool,
    pub(crate) disk_writes: bool,
    pub(crate) disk_reads: bool,
    pub(crate) client_goes: bool,
    pub(crate) worker_goes: bool,
}

impl Faults {
    /// Whether nothing but connections may break.
    pub(crate) fn only_cuts(&self) -> bool {
        let counts = self.flips + self.head_flips + self.kills + self.crashes + self.pauses;
        let peers = self.rogue || self.lying || self.client_goes || self.worker_goes;
        let disks = self.worker_disk || self.disk_writes || self.disk_reads;
        counts == 0 && !peers && !disks && !self.voids
    }
}

/// What happened in all worlds.
#[derive(Debug, Default)]
pub(crate) struct Coverage {
    pub(crate) cuts: [u64; 2],
    pub(crate) flips: u64,
    pub(crate) head_flips: u64,
    pub(crate) kills: u64,
    pub(crate) crashes: u64,
    pub(crate) voids: u64,
    pub(crate) spliced: u64,
    pub(crate) stalls: u64,
    pub(crate) rogue: u64,
    pub(crate) worker_disk: u64,
    pub(crate) disk_faults: u64,
    pub(crate) spooled: u64,
    pub(crate) resumed: u64,
    pub(crate) ran: u64,
    pub(crate) parts: u64,
    pub(crate) whole: u64,
    pub(crate) refused: u64,
    /// Worlds in which nothing but connections broke.
    pub(crate) only_cuts: u64,
    /// Jobs that a worker had to give up.
    pub(crate) reassigned: u64,
    pub(crate) steps: u64,
    pub(crate) snapshots: u64,
    /// Chunks that went on where they broke off, to the leader and from it.
    pub(crate) went_on: [u64; 2],
    pub(crate) log_failed: u64,
    /// Jobs that were acknowledged, and were there when the leader was started again.
    pub(crate) acknowledged_kept: u64,
}

impl Coverage {
    pub(crate) fn add(&mut self, other: Coverage) {
        let Coverage { cuts, went_on, .. } = other;
        self.went_on = [self.went_on[0] + went_on[0], self.went_on[1] + went_on[1]];
        self.cuts = [self.cuts[0] + cuts[0], self.cuts[1] + cuts[1]];
        for (sum, more) in [
            (&mut self.flips, other.flips),
            (&mut self.head_flips, other.head_flips),
            (&mut self.kills, other.kills),
            (&mut self.crashes, other.crashes),
            (&mut self.voids, other.voids),
            (&mut self.spliced, other.spliced),
            (&mut self.stalls, other.stalls),
            (&mut self.rogue, other.rogue),
            (&mut self.worker_disk, other.worker_disk),
            (&mut self.disk_faults, other.disk_faults),
            (&mut self.spooled, other.spooled),
            (&mut self.resumed, other.resumed),
            (&mut self.ran, other.ran),
            (&mut self.parts, other.parts),
            (&mut self.whole, other.whole),
            (&mut self.refused, other.refused),
            (&mut self.only_cuts, other.only_cuts),
            (&mut self.reassigned, other.reassigned),
            (&mut self.steps, other.steps),
            (&mut self.snapshots, other.snapshots),
            (&mut self.log_failed, other.log_failed),
            (&mut self.acknowledged_kept, other.acknowledged_kept),
        ] {
            *sum += more;
        }
    }
}
