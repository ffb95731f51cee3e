//! The command line, and what it means: a [`Plan`] that has every default filled in and no
//! contradiction left. The director reads nothing else.

use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, ValueEnum};
use heft::units::{ByteSize, Span};
use serde::{Deserialize, Serialize};

use crate::load::{Load, Until};
use crate::variant::{self, Drivers, Durabilities, Durability, Side, Variant, Verifies};

pub(crate) const EXAMPLES: &str = "Examples:
  heft-bench push --size 64MiB --in-flight 4
  heft-bench push --size 64MiB --in-flight 1 --json
  heft-bench roundtrip --size 1KiB --out report
  heft-bench roundtrip --rate 2000/s --duration 5s
  heft-bench mixed
  heft-bench push --driver both --verify both --rounds 11
  heft-bench push --durability both --verify hop
  heft-bench submit --durability both
  heft-bench recovery --count 1000000
  heft-bench fanout --throttle
  heft-bench fanout --workers 1,2,4,8,16,32 --only heft
  heft-bench delta
  heft-bench locality
  heft-bench push --size 20GiB --total 20GiB --rounds 1

Build it with --release. docs/benchmarks.md has the method and how to read the figures.";

/// Rounds unless told otherwise: the fewest whose median says something on a machine with other
/// work.
const ROUNDS: u32 = 7;
const ROUNDS_MAX: i64 = 1_000;

/// A round of this length holds dozens of 64 MiB jobs and thousands of small ones.
const ROUND: Duration = Duration::from_millis(1_500);
const WARMUP: Duration = Duration::from_millis(500);
const SIZE_LARGE: u64 = 64 << 20;
const SIZE_SMALL: u64 = 1 << 10;
const IN_FLIGHT_LARGE: u32 = 4;

/// With a rate, jobs queue in front of heft rather than in the bench, up to this.
const IN_FLIGHT_OPEN: u32 = 64;
const IN_FLIGHT_MAX: i64 = 1_024;

/// Clients that submit at the same time: enough that the log always has somebody waiting for it.
const SUBMITTERS: u32 = 64;

/// What is written to the disk by itself in a turn: a few of the files between two syncs.
const DISK_TURN_BYTES: u64 = 256 << 20;

/// Warm-up jobs are no larger: a warm-up with a 20 GiB job would take longer than the measurement.
const WARMUP_JOB_BYTES_MAX: u64 = SIZE_LARGE;

/// What flows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Workload {
    Push,
    Roundtrip,
    Submit,
    Result,
    Mixed,
}

impl Workload {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Workload::Push => "push",
            Workload::Roundtrip => "roundtrip",
            Workload::Submit => "submit",
            Workload::Result => "result",
            Workload::Mixed => "mixed",
        }
    }
}

/// What workers do with inputs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Sink {
    /// check and drop them
    #[default]
    Drop,
    /// write them to files
    File,
}

/// How heft checks a whole transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Digest {
    /// SHA-256 over the list of chunk checksums, heft's default
    #[default]
    ChunkList,
    /// SHA-256 of the bytes
    Sha256,
    /// BLAKE3 of the bytes
    Blake3,
}

/// How heft compresses chunks. The bytes of the bench cannot be compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Compress {
    /// zstd where a sample says that it pays, heft's default
    #[default]
    Auto,
    /// not at all
    None,
    /// zstd where a sample says that it pays
    Zstd,
    /// brotli where a sample says that it pays
    Brotli,
    /// gzip where a sample says that it pays
    Gzip,
}

/// How the relay moves bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RelayBy {
    /// read and write, the baseline that heft is held to
    #[default]
    Copy,
    /// splice(2) through a pipe, to see what that alone is worth; Linux only
    Splice,
}

/// What is measured if not everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Only {
    /// client, leader, worker: of every variant
    Heft,
    /// the same bytes through a process that copies from socket to socket
    Relay,
}

/// Jobs in a second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rate(f64);

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = text.trim().trim_end_matches("/s").trim_end();
        match number.parse::<f64>() {
            Ok(rate) if rate > 0.0 && rate <= 1e6 => Ok(Rate(rate)),
            Ok(_) | Err(_) => Err(format!(
                "{text:?} is not a rate: write jobs in a second, such as 500/s; at most 1000000/s"
            )),
        }
    }
}

/// What all workloads take.
#[derive(Args, Clone, Debug)]
pub(crate) struct BenchArgs {
    /// Job size; 64MiB, or 1KiB for roundtrip and submit. For mixed: of a large job.
    #[arg(long, value_name = "SIZE")]
    size: Option<ByteSize>,

    /// Size of a small job of mixed.
    #[arg(long, default_value = "1KiB", value_name = "SIZE")]
    small_size: ByteSize,

    /// Jobs in flight; 4, or 1 for roundtrip, or one per submitter. For mixed: large jobs; small
    /// jobs go one by one.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=IN_FLIGHT_MAX))]
    in_flight: Option<u32>,

    /// Clients of heft that share the jobs in flight, each with a connection of its own; 1, or 64
    /// for submit.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=IN_FLIGHT_MAX))]
    submitters: Option<u32>,

    /// Rounds of each heft variant and of the relay, alternating; the order changes.
    #[arg(long, default_value_t = ROUNDS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=ROUNDS_MAX))]
    rounds: u32,

    /// Duration of a round; 1500ms unless --count or --total is given.
    #[arg(long, value_name = "TIME", conflicts_with_all = ["count", "total"])]
    duration: Option<Span>,

    /// Jobs per round. For mixed: small jobs.
    #[arg(long, value_name = "N", conflicts_with = "total", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Bytes in all rounds together, for memory over long runs.
    #[arg(long, value_name = "SIZE")]
    total: Option<ByteSize>,

    /// Unmeasured warm-up before the first round; 0s for none.
    #[arg(long, default_value_t = Span(WARMUP), value_name = "TIME")]
    warmup: Span,

    /// Start jobs at this fixed rate, such as 500/s; latency counts from the due time. For mixed:
    /// small jobs. Without it a job starts when another has ended.
    #[arg(long, value_name = "N/s")]
    rate: Option<Rate>,

    /// What workers do with inputs.
    #[arg(long, value_enum, default_value_t)]
    sink: Sink,

    /// How heft checks a whole transfer.
    #[arg(long, value_enum, default_value_t)]
    digest: Digest,

    /// How heft compresses chunks.
    #[arg(long, value_enum, default_value_t)]
    compress: Compress,

    /// The leader's driver. With both, each driver has a leader, workers and clients of its own.
    #[arg(long, value_enum, default_value_t)]
    driver: Drivers,

    /// Who checks chunks that the leader forwards at once. With both, each setting has a leader,
    /// workers and clients of its own, for each driver.
    #[arg(long, value_enum, default_value_t)]
    verify: Verifies,

    /// What survives a restart of the leader. With both, each has a leader, workers and clients of
    /// its own, for each driver and check. For durable leaders the disk alone is measured too.
    /// Stored chunks are always checked, whatever --verify says.
    #[arg(long, value_enum, default_value_t)]
    durability: Durabilities,

    /// Bytes written per measurement of the disk alone; 0 for none.
    #[arg(long, default_value_t = ByteSize(DISK_TURN_BYTES), value_name = "SIZE")]
    disk_bytes: ByteSize,

    /// Parent of the leaders' data directories, in a directory that is removed at the end. Default:
    /// beside this program, which is more often on a disk than the system's temporary directory.
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// Measure only heft, with all requested variants, or only the relay, e.g. for profiling.
    #[arg(long, value_enum, value_name = "SIDE")]
    only: Option<Only>,

    /// Connections of the relay that share the jobs in flight. One, pipelined, is the strongest at
    /// large jobs.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    relay_lanes: u32,

    /// How the relay moves bytes.
    #[arg(long, value_enum, default_value_t)]
    relay_by: RelayBy,

    /// Write report.json, histograms and a plot into this directory.
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,

    /// Print the report as one JSON object instead of a table.
    #[arg(long)]
    json: bool,
}

/// What is to be measured, with nothing left open.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Plan {
    pub(crate) workload: Workload,
    /// How heft's leader is run: in every way of these. The first is the one that a report is about
    /// where it has room for one.
    pub(crate) variants: Vec<Variant>,
    /// What a round runs and measures.
    pub(crate) load: Load,
    /// Mixed: what flows beside it.
    pub(crate) background: Option<Load>,
    /// Connections of heft's client.
    pub(crate) submitters: u32,
    pub(crate) rounds: u32,
    pub(crate) warmup: Duration,
    pub(crate) sink: Sink,
    pub(crate) digest: Digest,
    pub(crate) compress: Compress,
    pub(crate) only: Option<Only>,
    /// Bytes of a turn of the disk alone, if it is measured.
    pub(crate) disk_bytes: Option<u64>,
    pub(crate) data: Option<PathBuf>,
    pub(crate) relay_lanes: u32,
    pub(crate) relay_by: RelayBy,
    pub(crate) out: Option<PathBuf>,
    pub(crate) json: bool,
}

impl Plan {
    pub(crate) fn new(workload: Workload, args: &BenchArgs) -> anyhow::Result<Plan> {
        if args.relay_by == RelayBy::Splice && cfg!(not(target_os = "linux")) {
            bail!("--relay-by splice needs Linux: use --relay-by copy");
        }
        let small = match workload {
            Workload::Roundtrip | Workload::Submit => true,
            Workload::Push | Workload::Result | Workload::Mixed => false,
        };
        let submitters = args.submitters.unwrap_or(match workload {
            Workload::Submit => args.in_flight.unwrap_or(SUBMITTERS).min(SUBMITTERS),
            Workload::Push | Workload::Roundtrip | Workload::Result | Workload::Mixed => 1,
        });
        let size = args.size.map_or(if small { SIZE_SMALL } else { SIZE_LARGE }, |size| size.0);
        let in_flight_usual = match (args.rate, small) {
            (Some(_), _) if workload != Workload::Mixed => IN_FLIGHT_OPEN,
            (None, true) => submitters,
            (_, _) => IN_FLIGHT_LARGE,
        };
        let in_flight = args.in_flight.unwrap_or(in_flight_usual);
        let until = match (args.count, args.total, args.duration) {
            (Some(count), _, _) => Until::Count(count),
            (None, Some(_), _) if workload == Workload::Mixed => {
                bail!(
                    "--total is not for mixed: its rounds last as long as their small jobs; give --duration or --count"
                )
            }
            (None, Some(total), _) => {
                let jobs = total.0.div_ceil(size.max(1));
                Until::Count(jobs.div_ceil(u64::from(args.rounds)).max(1))
            }
            (None, None, duration) => Until::Time(duration.map_or(ROUND, |span| span.0)),
        };
        let rate = args.rate.map(|rate| rate.0);
        let (load, background) = match workload {
            Workload::Push | Workload::Roundtrip | Workload::Submit | Workload::Result => {
                (Load { size, in_flight, until, rate }, None)
            }
            Workload::Mixed => {
                let in_flight_small = rate.map_or(1, |_| IN_FLIGHT_OPEN);
                let small =
                    Load { size: args.small_size.0, in_flight: in_flight_small, until, rate };
                (small, Some(Load { size, in_flight, until: Until::Stop, rate: None }))
            }
        };
        if submitters > load.in_flight {
            bail!(
                "--submitters {submitters} cannot share {} in flight: give --in-flight {submitters} or more",
                load.in_flight
            );
        }
        let variants = variant::variants(args.driver, args.verify, args.durability);
        let is_on_disk = variants.iter().any(|variant| variant.durability == Durability::Disk);
        let wants_disk = is_on_disk && args.only != Some(Only::Relay) && args.disk_bytes.0 > 0;
        Ok(Plan {
            workload,
            variants,
            load,
            background,
            submitters,
            rounds: args.rounds,
            warmup: args.warmup.0,
            sink: args.sink,
            digest: args.digest,
            compress: args.compress,
            only: args.only,
            disk_bytes: wants_disk.then_some(args.disk_bytes.0),
            data: args.data.clone(),
            relay_lanes: args.relay_lanes,
            relay_by: args.relay_by,
            out: args.out.clone(),
            json: args.json,
        })
    }

    /// The same jobs, for the time before the first round.
    pub(crate) fn warm(&self, load: &Load) -> Option<Load> {
        let size = load.size.min(WARMUP_JOB_BYTES_MAX);
        (!self.warmup.is_zero()).then_some(Load {
            size,
            until: Until::Time(self.warmup),
            rate: None,
            ..load.clone()
        })
    }

    /// What is measured, in the order of the given round.
    pub(crate) fn sides(&self, round: u32) -> Vec<Side> {
        let heft = self.variants.iter().map(|variant| Side::Heft(*variant));
        let mut sides: Vec<Side> = match self.only {
            Some(Only::Heft) => heft.collect(),
            Some(Only::Relay) => vec![Side::Relay],
            None => heft.chain([Side::Relay]).collect(),
        };
        sides.extend(self.disk_bytes.map(|_| Side::Disk));
        variant::turns(&sides, round)
    }

    /// What a side is called in this run, also in names of files: a variant by what it is, if there
    /// are several.
    pub(crate) fn label(&self, side: Side) -> String {
        match side {
            Side::Heft(variant) if self.variants.len() > 1 => variant.label(),
            Side::Heft(_) => "heft".to_owned(),
            Side::Relay => "relay".to_owned(),
            Side::Disk => "disk".to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variant::{Driver, Verify};
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn plan(workload: Workload, words: &[&str]) -> anyhow::Result<Plan> {
        let words = std::iter::once("bench").chain(words.iter().copied());
        Plan::new(workload, &Line::try_parse_from(words)?.args)
    }

    const USUAL: Variant =
        Variant { driver: Driver::Portable, verify: Verify::End, durability: Durability::Memory };

    fn labels(plan: &Plan, round: u32) -> Vec<String> {
        plan.sides(round).into_iter().map(|side| plan.label(side)).collect()
    }

    #[test]
    fn every_workload_has_defaults_that_fit_it() {
        let push = plan(Workload::Push, &[]).unwrap();
        let round = Until::Time(Duration::from_millis(1500));
        assert_eq!(
            push.load,
            Load { size: 64 << 20, in_flight: 4, until: round.clone(), rate: None }
        );
        assert_eq!((push.rounds, push.background), (7, None));
        let roundtrip = plan(Workload::Roundtrip, &[]).unwrap();
        assert_eq!((roundtrip.load.size, roundtrip.load.in_flight), (1024, 1));
        let mixed = plan(Workload::Mixed, &["--rate", "100/s"]).unwrap();
        assert_eq!(mixed.load, Load { size: 1024, in_flight: 64, until: round, rate: Some(100.0) });
        let large = Load { size: 64 << 20, in_flight: 4, until: Until::Stop, rate: None };
        assert_eq!(mixed.background, Some(large));
    }

    #[test]
    fn a_total_is_divided_over_the_rounds() {
        let seven = plan(Workload::Push, &["--size", "64MiB", "--total", "20GiB"]).unwrap();
        assert_eq!(seven.load.until, Until::Count(46), "320 jobs in 7 rounds");
        let one = plan(Workload::Push, &["--size", "20GiB", "--total", "20GiB", "--rounds", "1"])
            .unwrap();
        assert_eq!((one.load.until.clone(), one.load.size), (Until::Count(1), 20 << 30));
        assert_eq!(one.warm(&one.load).unwrap().size, 64 << 20);
        let small = plan(Workload::Push, &["--size", "1GiB", "--total", "1GiB"]).unwrap();
        assert_eq!(small.load.until, Until::Count(1), "never a round without a job");
        assert!(plan(Workload::Push, &["--warmup", "0s"]).unwrap().warm(&small.load).is_none());
    }

    #[test]
    fn what_contradicts_itself_is_refused() {
        for words in [
            &["--count", "5", "--total", "1GiB"][..],
            &["--duration", "1s", "--count", "5"],
            &["--rounds", "0"],
            &["--in-flight", "0"],
            &["--rate", "0/s"],
            &["--rate", "fast"],
            &["--driver", "abacus"],
            &["--driver", "auto"],
            &["--verify", "never"],
            &["--durability", "stone"],
            &["--submitters", "5"],
        ] {
            assert!(plan(Workload::Push, words).is_err(), "{words:?}");
        }
        let error = plan(Workload::Mixed, &["--total", "1GiB"]).unwrap_err();
        assert!(error.to_string().contains("--duration"), "{error}");
    }

    #[test]
    fn the_sides_are_the_variants_and_the_relay() {
        let usual = plan(Workload::Push, &[]).unwrap();
        let heft = Side::Heft(USUAL);
        assert_eq!(usual.sides(0), [heft, Side::Relay]);
        assert_eq!(usual.sides(1), [Side::Relay, heft]);
        assert_eq!(labels(&usual, 0), ["heft", "relay"]);
        let words = ["--driver", "both", "--verify", "both"];
        let all = plan(Workload::Push, &words).unwrap();
        let names =
            ["heft-portable-end", "heft-uring-end", "heft-portable-hop", "heft-uring-hop", "relay"];
        assert_eq!(labels(&all, 0), names);
        assert_eq!(labels(&all, 4)[0], "relay");
        let heft = plan(Workload::Push, &[&words[..], &["--only", "heft"]].concat()).unwrap();
        assert_eq!(labels(&heft, 0), names[..4]);
        let relay = plan(Workload::Push, &[&words[..], &["--only", "relay"]].concat()).unwrap();
        assert_eq!(relay.sides(1), [Side::Relay]);
        let hop = plan(Workload::Push, &["--verify", "hop"]).unwrap();
        assert_eq!(hop.variants, [Variant { verify: Verify::Hop, ..USUAL }]);
    }

    #[test]
    fn the_disk_has_its_turns_where_a_leader_has_its_disk() {
        let kept = plan(Workload::Push, &["--durability", "both", "--verify", "hop"]).unwrap();
        let names = ["heft-portable-hop", "heft-portable-hop-disk", "relay", "disk"];
        assert_eq!(labels(&kept, 0), names);
        assert_eq!(
            labels(&kept, 1),
            ["heft-portable-hop-disk", "heft-portable-hop", "disk", "relay"]
        );
        let alone = plan(Workload::Push, &["--durability", "disk", "--only", "heft"]).unwrap();
        assert_eq!(labels(&alone, 0), ["heft", "disk"]);
        let without = ["--durability", "both", "--disk-bytes", "0"];
        assert_eq!(plan(Workload::Push, &without).unwrap().disk_bytes, None);
        let relay = plan(Workload::Push, &["--durability", "disk", "--only", "relay"]).unwrap();
        assert_eq!(labels(&relay, 0), ["relay"]);
        assert_eq!(plan(Workload::Push, &[]).unwrap().disk_bytes, None, "nobody writes to it");
    }

    #[test]
    fn submitters_share_what_is_in_flight() {
        let usual = plan(Workload::Submit, &[]).unwrap();
        assert_eq!((usual.load.size, usual.load.in_flight, usual.submitters), (1024, 64, 64));
        let few = plan(Workload::Submit, &["--submitters", "8"]).unwrap();
        assert_eq!((few.load.in_flight, few.submitters), (8, 8));
        let deep = plan(Workload::Submit, &["--in-flight", "256"]).unwrap();
        assert_eq!((deep.load.in_flight, deep.submitters), (256, 64));
        let narrow = plan(Workload::Submit, &["--in-flight", "2"]).unwrap();
        assert_eq!((narrow.load.in_flight, narrow.submitters), (2, 2));
        assert_eq!(plan(Workload::Push, &[]).unwrap().submitters, 1);
    }

    #[test]
    fn a_rate_is_jobs_in_a_second() {
        assert_eq!("500/s".parse(), Ok(Rate(500.0)));
        assert_eq!("0.5 /s".parse(), Ok(Rate(0.5)));
        assert!("-1/s".parse::<Rate>().unwrap_err().contains("such as 500/s"));
    }
}
