//! The parts of a report that are about the disk: what it does by itself, what leaders that keep
//! their jobs ask of it, and whether they are as fast as they are to be.

use serde_json::{Value, json};

use crate::disk::DiskTurn;
use crate::latency::Latencies;
use crate::status::LogCost;
use crate::variant::{Durability, Side, Variant, Verify};

use super::figures::{Spread, rounded};
use super::{MIB, Round, per, table};

/// What a push to a disk leader is held to: this share of the same push to a leader in memory that
/// checks what it passes on, or that share of what the disk does by itself, whichever is less.
const MEMORY_SHARE: f64 = 0.70;
const DISK_SHARE: f64 = 0.80;

impl DiskTurn {
    fn recycled_mib_s(&self) -> f64 {
        self.bytes as f64 / MIB / self.recycled.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn new_mib_s(&self) -> f64 {
        self.bytes as f64 / MIB / self.new.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// For the log.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:8.0} MiB/s into recycled files, {:.0} into new ones; a small sync p50 {}, p99 {}",
            self.recycled_mib_s(),
            self.new_mib_s(),
            table::micros(self.syncs.quantile_us(0.5)),
            table::micros(self.syncs.quantile_us(0.99)),
        )
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "mib_s": rounded(self.recycled_mib_s()),
            "new_mib_s": rounded(self.new_mib_s()),
            "sync_p50_us": self.syncs.quantile_us(0.5).map(rounded),
        })
    }
}

/// The disk by itself, over all rounds.
pub(super) struct DiskSum {
    recycled: Spread,
    new: Spread,
    syncs: Latencies,
    bytes: u64,
    direct: bool,
}

impl DiskSum {
    /// None if it was not measured.
    pub(super) fn new(rounds: &[Round]) -> anyhow::Result<Option<DiskSum>> {
        let turns = || rounds.iter().filter_map(|round| round.disk.as_ref());
        let recycled = Spread::of(turns().map(DiskTurn::recycled_mib_s));
        let new = Spread::of(turns().map(DiskTurn::new_mib_s));
        let (Some(recycled), Some(new)) = (recycled, new) else { return Ok(None) };
        let mut syncs = Latencies::new()?;
        turns().try_for_each(|turn| syncs.merge(&turn.syncs))?;
        let bytes = turns().map(|turn| turn.bytes).max().unwrap_or_default();
        Ok(Some(DiskSum { recycled, new, syncs, bytes, direct: turns().all(|turn| turn.direct) }))
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "mib_s": rounded(self.recycled.median),
            "mib_s_spread": self.recycled.json(),
            "new_mib_s": rounded(self.new.median),
            "new_mib_s_spread": self.new.json(),
            "sync_p50_us": self.syncs.quantile_us(0.5).map(rounded),
            "sync_p99_us": self.syncs.quantile_us(0.99).map(rounded),
            "bytes_each_round": self.bytes,
            "direct": self.direct,
        })
    }

    pub(super) fn text(&self) -> String {
        let how =
            if self.direct { "O_DIRECT" } else { "by the page cache, as it takes no O_DIRECT" };
        let line = |what: &str, rate: &Spread| {
            format!("{what:28}{:>6.0} MiB/s   ({:.0} to {:.0})\n", rate.median, rate.min, rate.max)
        };
        format!(
            "\nthe disk by itself: writes of 1 MiB, {how}, fdatasync every 64 MiB\n{}{}{:28}{:>6} p50, {} p99\n",
            line("into recycled files", &self.recycled),
            line("into new files", &self.new),
            "4 KiB more, and fdatasync",
            table::micros(self.syncs.quantile_us(0.5)),
            table::micros(self.syncs.quantile_us(0.99)),
        )
    }
}

/// What a leader's log took for jobs.
#[derive(Clone, Copy)]
pub(super) struct LogUse {
    pub(super) jobs: u64,
    pub(super) cost: LogCost,
}

impl LogUse {
    fn per_sync(&self, what: u64) -> Option<f64> {
        per(what as f64, self.cost.syncs as f64)
    }

    fn sync_mean_us(&self) -> Option<f64> {
        self.per_sync(self.cost.sync_us)
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "syncs": self.cost.syncs,
            "records": self.cost.records,
            "bytes": self.cost.bytes,
            "jobs_per_sync": self.per_sync(self.jobs).map(rounded),
            "records_per_sync": self.per_sync(self.cost.records).map(rounded),
            "sync_mean_us": self.sync_mean_us().map(rounded),
            "bytes_per_job": per(self.cost.bytes as f64, self.jobs as f64).map(rounded),
        })
    }

    pub(super) fn line(&self) -> String {
        let number =
            |value: Option<f64>| value.map_or("-".to_owned(), |value| format!("{value:.1}"));
        format!(
            "{} jobs and {} records to a sync, {} of them of {} on average; {} bytes for a job",
            number(self.per_sync(self.jobs)),
            number(self.per_sync(self.cost.records)),
            self.cost.syncs,
            table::micros(self.sync_mean_us()),
            per(self.cost.bytes as f64, self.jobs as f64)
                .map_or("-".to_owned(), |bytes| format!("{bytes:.0}")),
        )
    }
}

/// A push to a disk leader and what it is held to.
pub(super) struct Goal {
    /// Medians over rounds, in MiB/s.
    memory: f64,
    disk: f64,
    /// What was reached of the goal, in each round.
    share: Spread,
}

impl Goal {
    /// Where all that is needed was measured: the variant in memory, with the same driver, and the
    /// disk. Only where both leaders check what they pass on: a disk leader does in any case.
    pub(super) fn new(rounds: &[Round], variant: Variant) -> Option<Goal> {
        if variant.durability != Durability::Disk || variant.verify != Verify::Hop {
            return None;
        }
        let memory = Side::Heft(Variant { durability: Durability::Memory, ..variant });
        let mib_s = |round: &Round, side| round.get(side).map(super::Measured::mib_s);
        let own = |round: &Round| round.disk.as_ref().map(DiskTurn::recycled_mib_s);
        let share = |round: &Round| {
            let goal = (MEMORY_SHARE * mib_s(round, memory)?).min(DISK_SHARE * own(round)?);
            per(mib_s(round, Side::Heft(variant))?, goal)
        };
        Some(Goal {
            memory: Spread::of(rounds.iter().filter_map(|round| mib_s(round, memory)))?.median,
            disk: Spread::of(rounds.iter().filter_map(own))?.median,
            share: Spread::of(rounds.iter().filter_map(share))?,
        })
    }

    fn is_met(&self) -> bool {
        self.share.median >= 1.0
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "memory_share": MEMORY_SHARE,
            "disk_share": DISK_SHARE,
            "reached": rounded(self.share.median),
            "spread": self.share.json(),
            "met": self.is_met(),
        })
    }

    pub(super) fn text(&self, name: &str) -> String {
        format!(
            "goal for {name}: {MEMORY_SHARE:.2} of memory ({:.0} MiB/s) or {DISK_SHARE:.2} of the disk ({:.0} MiB/s), the \
             lesser\n{:14}{:>10.2} of it   ({:.2} to {:.2}): {}\n",
            MEMORY_SHARE * self.memory,
            DISK_SHARE * self.disk,
            "reached",
            self.share.median,
            self.share.min,
            self.share.max,
            if self.is_met() { "met" } else { "not met" },
        )
    }
}
