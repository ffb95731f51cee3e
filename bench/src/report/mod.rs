//! What was found, and its forms: one JSON object, a table for people, histograms and a plot.
//!
//! A ratio is that of two sides in the same round, which ran within seconds; what is reported is
//! the median over all rounds, with the least and the largest. Percentiles are those of all rounds'
//! jobs together.

mod datasets;
mod disk;
mod fanout;
mod figures;
mod hgrm;
mod machine;
mod recovery;
mod svg;
mod table;

use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use serde_json::{Value, json};

use crate::args::{Plan, Workload};
use crate::control::Tally;
use crate::disk::DiskTurn;
use crate::latency::Latencies;
use crate::status::LogCost;
use crate::variant::{Driver, Durability, Side, Variant};

pub(crate) use datasets::{DeltaReport, DeltaStep, LocalityReport, Placed};
use disk::{DiskSum, Goal, LogUse};
pub(crate) use fanout::{FanReport, FanRound, FanSeries, FanTurn, FanWire, Throttled};
use figures::{Spread, rounded};
pub(crate) use machine::Machine;
pub(crate) use recovery::{Ran, RecoveryReport, Start, Started};

const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;

/// One value for each kind of process.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Roles<T> {
    /// The leader or the relay.
    pub(crate) middle: T,
    pub(crate) worker: T,
    pub(crate) client: T,
}

impl<T> Roles<T> {
    fn map<U>(&self, each: impl Fn(&T) -> U) -> Roles<U> {
        Roles { middle: each(&self.middle), worker: each(&self.worker), client: each(&self.client) }
    }
}

impl Roles<Duration> {
    /// What was used between two readings.
    pub(crate) fn since(&self, before: &Roles<Duration>) -> Roles<Duration> {
        Roles {
            middle: self.middle.saturating_sub(before.middle),
            worker: self.worker.saturating_sub(before.worker),
            client: self.client.saturating_sub(before.client),
        }
    }

    fn plus(&self, other: &Roles<Duration>) -> Roles<Duration> {
        Roles {
            middle: self.middle + other.middle,
            worker: self.worker + other.worker,
            client: self.client + other.client,
        }
    }
}

/// One round of one side.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) measured: Tally,
    pub(crate) latencies: Latencies,
    /// How long it took until the leader said that it has a job, where that is noted.
    pub(crate) taken: Option<Latencies>,
    /// Mixed: the large jobs beside those that were measured.
    pub(crate) bulk: Option<Tally>,
    pub(crate) cpu: Roles<Duration>,
    /// What the leader's log took, if it has one.
    pub(crate) log: Option<LogCost>,
}

impl Measured {
    /// The jobs whose bytes count: the large ones.
    fn heavy(&self) -> &Tally {
        self.bulk.as_ref().unwrap_or(&self.measured)
    }

    fn mib_s(&self) -> f64 {
        self.heavy().bytes as f64 / MIB / self.heavy().elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn jobs_s(&self) -> f64 {
        self.measured.jobs as f64 / self.measured.elapsed.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    /// All jobs that the leader had.
    fn all_jobs(&self) -> u64 {
        self.measured.jobs + self.bulk.as_ref().map_or(0, |bulk| bulk.jobs)
    }

    fn log_use(&self) -> Option<LogUse> {
        self.log.map(|cost| LogUse { jobs: self.all_jobs(), cost })
    }

    /// Seconds of the middle's processor time for a GiB.
    fn middle_cpu_per_gib(&self) -> Option<f64> {
        per(self.cpu.middle.as_secs_f64(), self.heavy().bytes as f64 / GIB)
    }

    /// For the log.
    pub(crate) fn line(&self) -> String {
        let time = |quantile| table::micros(self.latencies.quantile_us(quantile));
        format!(
            "{:8.0} MiB/s {:8.0} jobs/s  p50 {:>9}  p99 {:>9}  {} jobs",
            self.mib_s(),
            self.jobs_s(),
            time(0.5),
            time(0.99),
            self.measured.jobs
        )
    }

    fn json(&self) -> Value {
        json!({
            "mib_s": rounded(self.mib_s()),
            "jobs_s": rounded(self.jobs_s()),
            "jobs": self.measured.jobs,
            "bytes": self.heavy().bytes,
            "elapsed_s": rounded(self.heavy().elapsed.as_secs_f64()),
            "p50_us": self.latencies.quantile_us(0.5).map(rounded),
            "p99_us": self.latencies.quantile_us(0.99).map(rounded),
            "log": self.log_use().map(|log| log.json()),
            "cpu_s": roles_json(&self.cpu.map(|cpu| rounded(cpu.as_secs_f64()))),
        })
    }
}

/// Every side once, one after the other.
#[derive(Clone, Debug, Default)]
pub(crate) struct Round {
    sides: Vec<(Side, Measured)>,
    disk: Option<DiskTurn>,
}

impl Round {
    pub(crate) fn set(&mut self, side: Side, measured: Measured) {
        self.sides.push((side, measured));
    }

    pub(crate) fn set_disk(&mut self, turn: DiskTurn) {
        self.disk = Some(turn);
    }

    fn get(&self, side: Side) -> Option<&Measured> {
        self.sides.iter().find(|(other, _)| *other == side).map(|(_, measured)| measured)
    }

    /// One side's figure to that of another.
    fn ratio(
        &self,
        one: Side,
        other: Side,
        figure: impl Fn(&Measured) -> Option<f64>,
    ) -> Option<f64> {
        per(figure(self.get(one)?)?, figure(self.get(other)?)?)
    }

    fn json(&self, variants: &[Variant]) -> Value {
        let figures = |side| self.get(side).map(Measured::json);
        let each = variants.iter().filter_map(|variant| {
            let heft = figures(Side::Heft(*variant))?;
            Some(json!({
                "driver": variant.driver.name(),
                "verify": variant.verify.name(),
                "durability": variant.durability.name(),
                "heft": heft,
            }))
        });
        json!({
            "heft": variants.first().and_then(|variant| figures(Side::Heft(*variant))),
            "relay": figures(Side::Relay),
            "disk": self.disk.as_ref().map(DiskTurn::json),
            "variants": each.collect::<Vec<_>>(),
        })
    }
}

/// The most memory of each role of each side.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory(Vec<(Side, Roles<u64>)>);

impl Memory {
    pub(crate) fn set(&mut self, side: Side, peak: Roles<u64>) {
        self.0.push((side, peak));
    }

    fn get(&self, side: Side) -> Roles<u64> {
        self.0.iter().find(|(other, _)| *other == side).map(|(_, peak)| *peak).unwrap_or_default()
    }
}

/// All rounds of one side.
struct Sum {
    mib_s: Spread,
    jobs_s: Spread,
    jobs: u64,
    bytes: u64,
    latencies: Latencies,
    taken: Option<Latencies>,
    cpu: Roles<Duration>,
    rss_peak: Roles<u64>,
    log: Option<LogUse>,
}

impl Sum {
    fn new(rounds: &[&Measured], rss_peak: Roles<u64>) -> anyhow::Result<Option<Sum>> {
        let mib_s = Spread::of(rounds.iter().map(|round| round.mib_s()));
        let jobs_s = Spread::of(rounds.iter().map(|round| round.jobs_s()));
        let (Some(mib_s), Some(jobs_s)) = (mib_s, jobs_s) else { return Ok(None) };
        let mut latencies = Latencies::new()?;
        rounds.iter().try_for_each(|round| latencies.merge(&round.latencies))?;
        let mut taken: Option<Latencies> = None;
        for more in rounds.iter().filter_map(|round| round.taken.as_ref()) {
            match &mut taken {
                Some(taken) => taken.merge(more)?,
                None => taken = Some(more.clone()),
            }
        }
        let logs = rounds.iter().filter_map(|round| round.log_use());
        let log = logs.reduce(|sum, more| LogUse {
            jobs: sum.jobs + more.jobs,
            cost: sum.cost.plus(&more.cost),
        });
        Ok(Some(Sum {
            mib_s,
            jobs_s,
            jobs: rounds.iter().map(|round| round.measured.jobs).sum(),
            bytes: rounds.iter().map(|round| round.heavy().bytes).sum(),
            latencies,
            taken,
            log,
            cpu: rounds.iter().fold(Roles::default(), |sum, round| sum.plus(&round.cpu)),
            rss_peak,
        }))
    }

    fn cpu_per_gib(&self) -> Roles<Option<f64>> {
        self.cpu.map(|cpu| per(cpu.as_secs_f64(), self.bytes as f64 / GIB))
    }

    fn cpu_us_per_job(&self) -> Roles<Option<f64>> {
        self.cpu.map(|cpu| per(cpu.as_secs_f64() * 1e6, self.jobs as f64))
    }

    fn role_json(&self, of: impl Fn(&Roles<Option<f64>>) -> Option<f64>, rss_peak: u64) -> Value {
        json!({
            "rss_peak_bytes": rss_peak,
            "cpu_s_per_gib": of(&self.cpu_per_gib()).map(rounded),
            "cpu_us_per_job": of(&self.cpu_us_per_job()).map(rounded),
        })
    }

    fn leader_json(&self) -> Value {
        self.role_json(|roles| roles.middle, self.rss_peak.middle)
    }

    fn worker_json(&self) -> Value {
        self.role_json(|roles| roles.worker, self.rss_peak.worker)
    }

    fn client_json(&self) -> Value {
        self.role_json(|roles| roles.client, self.rss_peak.client)
    }

    fn json(&self, middle: &str) -> Value {
        let quantile = |quantile| self.latencies.quantile_us(quantile).map(rounded);
        let mut figures = json!({
            "mib_s": rounded(self.mib_s.median),
            "mib_s_spread": self.mib_s.json(),
            "jobs_s": rounded(self.jobs_s.median),
            "jobs": self.jobs,
            "bytes": self.bytes,
            "p50_us": quantile(0.5),
            "p90_us": quantile(0.9),
            "p99_us": quantile(0.99),
            "p999_us": quantile(0.999),
            "max_us": self.latencies.max_us().map(rounded),
            "mean_us": self.latencies.mean_us().map(rounded),
            "worker": self.worker_json(),
            "client": self.client_json(),
        });
        if let Some(figures) = figures.as_object_mut() {
            figures.insert(middle.to_owned(), self.leader_json());
            if let Some(taken) = &self.taken {
                for (name, quantile) in
                    [("taken_p50_us", 0.5), ("taken_p90_us", 0.9), ("taken_p99_us", 0.99)]
                {
                    figures
                        .insert(name.to_owned(), json!(taken.quantile_us(quantile).map(rounded)));
                }
            }
        }
        figures
    }
}

/// One side to another, over rounds.
#[derive(Default)]
struct Ratios {
    throughput: Option<Spread>,
    p50: Option<Spread>,
    p99: Option<Spread>,
    leader_cpu: Option<Spread>,
}

impl Ratios {
    fn new(rounds: &[Round], one: Side, other: Side) -> Ratios {
        let over = |figure: fn(&Measured) -> Option<f64>| {
            Spread::of(rounds.iter().filter_map(|round| round.ratio(one, other, figure)))
        };
        Ratios {
            throughput: over(|measured| Some(measured.mib_s())),
            p50: over(|measured| measured.latencies.quantile_us(0.5)),
            p99: over(|measured| measured.latencies.quantile_us(0.99)),
            leader_cpu: over(Measured::middle_cpu_per_gib),
        }
    }

    fn json(&self) -> Value {
        let median = |ratio: &Option<Spread>| ratio.as_ref().map(|ratio| rounded(ratio.median));
        let spread = |ratio: &Option<Spread>| ratio.as_ref().map(Spread::json);
        json!({
            "throughput": median(&self.throughput),
            "p50": median(&self.p50),
            "p99": median(&self.p99),
            "leader_cpu": median(&self.leader_cpu),
            "spread": {
                "throughput": spread(&self.throughput),
                "p50": spread(&self.p50),
                "p99": spread(&self.p99),
                "leader_cpu": spread(&self.leader_cpu),
            },
        })
    }
}

/// All that was found of one variant.
struct Outcome {
    variant: Variant,
    sum: Sum,
    to_relay: Ratios,
    /// If it has another driver, and the portable one was measured with the same check and
    /// durability.
    to_portable: Option<Ratios>,
    /// If it has its disk, and one in memory was measured with the same driver and check.
    to_memory: Option<Ratios>,
    goal: Option<Goal>,
}

impl Outcome {
    fn json(&self) -> Value {
        json!({
            "driver": self.variant.driver.name(),
            "verify": self.variant.verify.name(),
            "durability": self.variant.durability.name(),
            "ratio": self.to_relay.json(),
            "to_portable": self.to_portable.as_ref().map(Ratios::json),
            "to_memory": self.to_memory.as_ref().map(Ratios::json),
            "goal": self.goal.as_ref().map(Goal::json),
            "log": self.sum.log.map(|log| log.json()),
            "leader": self.sum.leader_json(),
            "worker": self.sum.worker_json(),
            "client": self.sum.client_json(),
            "heft": self.sum.json("leader"),
        })
    }
}

/// All that was found.
pub(crate) struct Report {
    plan: Plan,
    machine: Machine,
    rounds: Vec<Round>,
    /// Those that were measured.
    variants: Vec<Outcome>,
    relay: Option<Sum>,
    disk: Option<DiskSum>,
}

impl Report {
    pub(crate) fn new(
        plan: &Plan,
        rounds: Vec<Round>,
        memory: &Memory,
        machine: Machine,
    ) -> anyhow::Result<Report> {
        let sum = |side| {
            let of_side: Vec<&Measured> =
                rounds.iter().filter_map(|round| round.get(side)).collect();
            Sum::new(&of_side, memory.get(side))
        };
        let mut variants = Vec::new();
        for variant in plan.variants.iter().copied() {
            let side = Side::Heft(variant);
            let to = |other: Variant| {
                let is_compared = other != variant && plan.variants.contains(&other);
                is_compared.then(|| Ratios::new(&rounds, side, Side::Heft(other)))
            };
            let goal = match plan.workload {
                Workload::Push => Goal::new(&rounds, variant),
                Workload::Roundtrip | Workload::Submit | Workload::Result | Workload::Mixed => None,
            };
            if let Some(sum) = sum(side)? {
                variants.push(Outcome {
                    variant,
                    sum,
                    to_relay: Ratios::new(&rounds, side, Side::Relay),
                    to_portable: to(Variant { driver: Driver::Portable, ..variant }),
                    to_memory: to(Variant { durability: Durability::Memory, ..variant }),
                    goal,
                });
            }
        }
        let relay = sum(Side::Relay)?;
        let disk = DiskSum::new(&rounds)?;
        Ok(Report { plan: plan.clone(), machine, rounds, variants, relay, disk })
    }

    /// One object with everything. What is there once is the first variant's.
    pub(crate) fn json(&self) -> Value {
        let plan = &self.plan;
        let asked = plan.variants.first();
        let first = self.variants.first();
        let heft = first.map(|first| &first.sum);
        let rounds = self.rounds.iter().map(|round| round.json(&plan.variants));
        json!({
            "workload": plan.workload.name(),
            "driver": asked.map(|variant| variant.driver.name()),
            "verify": asked.map(|variant| variant.verify.name()),
            "durability": asked.map(|variant| variant.durability.name()),
            "ratio": first.map_or_else(|| Ratios::default().json(), |first| first.to_relay.json()),
            "leader": heft.map(Sum::leader_json),
            "worker": heft.map(Sum::worker_json),
            "client": heft.map(Sum::client_json),
            "heft": heft.map(|sum| sum.json("leader")),
            "relay": self.relay.as_ref().map(|sum| sum.json("relay")),
            "disk": self.disk.as_ref().map(DiskSum::json),
            "variants": self.variants.iter().map(Outcome::json).collect::<Vec<_>>(),
            "load": {
                "size_bytes": plan.load.size,
                "in_flight": plan.load.in_flight,
                "submitters": plan.submitters,
                "rate_per_s": plan.load.rate,
                "background": plan.background.as_ref().map(|load| {
                    json!({"size_bytes": load.size, "in_flight": load.in_flight})
                }),
                "sink": plan.sink,
                "digest": plan.digest,
                "compress": plan.compress,
                "relay_lanes": plan.relay_lanes,
                "relay_by": plan.relay_by,
            },
            "rounds": rounds.collect::<Vec<_>>(),
            "command": self.machine.command,
            "commit": self.machine.commit,
            "kernel": self.machine.kernel,
            "cores": self.machine.cores,
            "cpu": self.machine.cpu,
            "debug_build": cfg!(debug_assertions),
        })
    }

    pub(crate) fn table(&self) -> String {
        table::render(self)
    }

    /// Writes every form into a directory.
    pub(crate) fn write_to(&self, directory: &Path) -> anyhow::Result<()> {
        let write = |name: &str, text: String| {
            let path = directory.join(name);
            std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
        };
        write("report.json", format!("{:#}\n", self.json()))?;
        let mut lines = Vec::new();
        for ((side, sum), colour) in self.sums().zip(svg::VARIANTS.iter().cycle()) {
            let name = self.plan.label(side);
            write(&format!("{name}.hgrm"), hgrm::render(&sum.latencies))?;
            let colour = match side {
                Side::Heft(_) => colour,
                Side::Relay | Side::Disk => svg::RELAY,
            };
            lines.push(svg::Line { name, latencies: &sum.latencies, colour });
        }
        write("percentiles.svg", svg::render(&self.title(), &lines))
    }

    /// Every side that was measured: the variants, then the relay.
    fn sums(&self) -> impl Iterator<Item = (Side, &Sum)> {
        let heft = self.variants.iter().map(|outcome| (Side::Heft(outcome.variant), &outcome.sum));
        heft.chain(self.relay.iter().map(|sum| (Side::Relay, sum)))
    }

    /// What was measured, in a line.
    fn title(&self) -> String {
        let (plan, load) = (&self.plan, &self.plan.load);
        let size = heft::units::ByteSize(load.size);
        let pace = load.rate.map_or_else(
            || format!("{} in flight", load.in_flight),
            |rate| format!("{rate} jobs/s, timed from when they were due"),
        );
        let from = match plan.submitters {
            1 => String::new(),
            several => format!(" from {several} submitters"),
        };
        let beside = plan.background.as_ref().map(|load| {
            format!(
                " beside jobs of {}, {} in flight",
                heft::units::ByteSize(load.size),
                load.in_flight
            )
        });
        format!(
            "{}: jobs of {size}{from}, {pace}{}",
            plan.workload.name(),
            beside.unwrap_or_default()
        )
    }
}

fn roles_json(roles: &Roles<f64>) -> Value {
    json!({"leader": roles.middle, "worker": roles.worker, "client": roles.client})
}

/// A quotient, where there is one.
fn per(what: f64, of: f64) -> Option<f64> {
    let quotient = what / of;
    quotient.is_finite().then_some(quotient)
}

#[cfg(test)]
mod tests;
