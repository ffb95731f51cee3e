//! What was found of datasets that get to many workers.

use std::time::Duration;

use heft::units::ByteSize;
use serde_json::{Value, json};

use super::figures::{Spread, rounded};
use super::{GIB, MIB, Machine, Roles, per};
use crate::variant::{Side, Variant};

/// A put is to take no more of the relay's time than this.
const TIME_MAX: f64 = 1.3;

/// The leader's memory.
const RSS_MAX: u64 = 96 << 20;

/// Bytes from the client to those of the dataset: each comes once, in chunks that have heads.
const FROM_CLIENT_MAX: f64 = 1.01;

/// The rate of workers beside a slow one to their rate without it.
const BESIDE_MIN: f64 = 0.85;

/// One turn of one side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FanTurn {
    pub(crate) elapsed: Duration,
    pub(crate) cpu: Roles<Duration>,
    /// What the leader says that it got and gave.
    pub(crate) received: Option<u64>,
    pub(crate) moved: Option<u64>,
}

impl FanTurn {
    /// For the log.
    pub(crate) fn line(&self) -> String {
        format!(
            "{:.1} ms, processor time: middle {} ms, workers {} ms, client {} ms",
            self.elapsed.as_secs_f64() * 1e3,
            self.cpu.middle.as_millis(),
            self.cpu.worker.as_millis(),
            self.cpu.client.as_millis()
        )
    }
}

/// A turn of each side.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FanRound {
    heft: Option<FanTurn>,
    relay: Option<FanTurn>,
}

impl FanRound {
    pub(crate) fn set(&mut self, side: Side, turn: FanTurn) {
        match side {
            Side::Heft(_) => self.heft = Some(turn),
            Side::Relay => self.relay = Some(turn),
            Side::Disk => {}
        }
    }
}

/// Bytes on the wire, counted once by somebody in between.
#[derive(Clone, Debug, Default)]
pub(crate) struct FanWire {
    pub(crate) from_client: u64,
    pub(crate) to_workers: Vec<u64>,
}

/// All rounds with one number of workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct FanSeries {
    workers: u32,
    rounds: Vec<FanRound>,
    heft_rss: Option<Roles<u64>>,
    relay_rss: Option<Roles<u64>>,
    pub(crate) wire: Option<FanWire>,
}

impl FanSeries {
    pub(crate) fn new(workers: u32, rounds: Vec<FanRound>) -> FanSeries {
        FanSeries { workers, rounds, heft_rss: None, relay_rss: None, wire: None }
    }

    pub(crate) fn set_memory(&mut self, side: Side, peak: Roles<u64>) {
        match side {
            Side::Heft(_) => self.heft_rss = Some(peak),
            Side::Relay => self.relay_rss = Some(peak),
            Side::Disk => {}
        }
    }

    fn heft(&self) -> Sum<'_> {
        Sum { series: self, of: |round| round.heft.as_ref(), rss: self.heft_rss }
    }

    fn relay(&self) -> Sum<'_> {
        Sum { series: self, of: |round| round.relay.as_ref(), rss: self.relay_rss }
    }

    /// heft's median time to the relay's.
    fn ratio(&self) -> Option<f64> {
        per(self.heft().seconds()?.median, self.relay().seconds()?.median)
    }

    /// The ratios of single rounds.
    fn ratios(&self) -> Option<Spread> {
        let seconds = |turn: &Option<FanTurn>| turn.map(|turn| turn.elapsed.as_secs_f64());
        let ratio = |round: &FanRound| per(seconds(&round.heft)?, seconds(&round.relay)?);
        Spread::of(self.rounds.iter().filter_map(ratio))
    }

    fn json(&self, size: u64) -> Value {
        let wire = self.wire.as_ref().map(|wire| {
            let (least, most) = (wire.to_workers.iter().min(), wire.to_workers.iter().max());
            json!({
                "from_client_bytes": wire.from_client,
                "from_client_share": share(wire.from_client, size),
                "to_worker_bytes": {"min": least, "max": most},
                "to_worker_share": most.and_then(|most| share(*most, size)),
            })
        });
        json!({
            "workers": self.workers,
            "ratio": self.ratio().map(rounded),
            "ratio_spread": self.ratios().map(|spread| spread.json()),
            "heft": self.heft().json(size),
            "relay": self.relay().json(size),
            "wire": wire,
        })
    }
}

fn share(bytes: u64, of: u64) -> Option<f64> {
    per(bytes as f64, of as f64).map(rounded)
}

/// One side of a series.
struct Sum<'a> {
    series: &'a FanSeries,
    of: fn(&FanRound) -> Option<&FanTurn>,
    rss: Option<Roles<u64>>,
}

impl Sum<'_> {
    fn spread(&self, value: impl Fn(&FanTurn) -> f64) -> Option<Spread> {
        Spread::of(self.series.rounds.iter().filter_map(self.of).map(value))
    }

    fn seconds(&self) -> Option<Spread> {
        self.spread(|turn| turn.elapsed.as_secs_f64())
    }

    /// Processor time of a turn: the mean, since its clock is coarse.
    fn cpu(&self, role: impl Fn(&Roles<Duration>) -> Duration) -> Option<f64> {
        let turns: Vec<&FanTurn> = self.series.rounds.iter().filter_map(self.of).collect();
        let sum: Duration = turns.iter().map(|turn| role(&turn.cpu)).sum();
        per(sum.as_secs_f64(), turns.len() as f64)
    }

    /// The middle's for a GiB that goes to one worker.
    fn cpu_per_gib(&self, size: u64) -> Option<f64> {
        let moved = size as f64 * f64::from(self.series.workers) / GIB;
        per(self.cpu(|cpu| cpu.middle)?, moved)
    }

    /// MiB in a second at each worker.
    fn mib_s(&self, size: u64) -> Option<f64> {
        per(size as f64 / MIB, self.seconds()?.median)
    }

    fn json(&self, size: u64) -> Option<Value> {
        let seconds = self.seconds()?;
        let said = |of: fn(&FanTurn) -> Option<u64>| {
            let turns = self.series.rounds.iter().filter_map(self.of);
            Spread::of(turns.filter_map(of).map(|bytes| bytes as f64)).map(|spread| spread.json())
        };
        let rss = |role: fn(&Roles<u64>) -> u64| self.rss.as_ref().map(role);
        Some(json!({
            "ms": Spread { median: seconds.median * 1e3, min: seconds.min * 1e3, max: seconds.max * 1e3 }.json(),
            "mib_s_per_worker": self.mib_s(size).map(rounded),
            "middle_cpu_s": self.cpu(|cpu| cpu.middle).map(rounded),
            "middle_cpu_s_per_gib": self.cpu_per_gib(size).map(rounded),
            "workers_cpu_s": self.cpu(|cpu| cpu.worker).map(rounded),
            "client_cpu_s": self.cpu(|cpu| cpu.client).map(rounded),
            "middle_rss_peak_bytes": rss(|rss| rss.middle),
            "worker_rss_peak_bytes": rss(|rss| rss.worker),
            "client_rss_peak_bytes": rss(|rss| rss.client),
            "received_bytes": said(|turn| turn.received),
            "moved_bytes": said(|turn| turn.moved),
        }))
    }
}

/// Workers beside a slow one.
#[derive(Clone, Debug)]
pub(crate) struct Throttled {
    /// What the slow one gets in a second.
    pub(crate) rate: u64,
    pub(crate) workers: u32,
    /// How long it took until the others had the dataset: without the slow one, and with it.
    pub(crate) rounds: Vec<(Duration, Duration)>,
}

impl Throttled {
    /// Their rate with it to their rate without it.
    fn ratios(&self) -> Option<Spread> {
        let ratio =
            |(without, with): &(Duration, Duration)| per(without.as_secs_f64(), with.as_secs_f64());
        Spread::of(self.rounds.iter().filter_map(ratio))
    }

    fn ms(&self, of: fn(&(Duration, Duration)) -> Duration) -> Option<Spread> {
        Spread::of(self.rounds.iter().map(|round| of(round).as_secs_f64() * 1e3))
    }

    /// The ratio of the medians.
    fn ratio(&self) -> Option<f64> {
        per(self.ms(|(without, _)| *without)?.median, self.ms(|(_, with)| *with)?.median)
    }

    fn json(&self) -> Value {
        json!({
            "rate_bytes_s": self.rate,
            "workers": self.workers,
            "ratio": self.ratio().map(rounded),
            "ratio_spread": self.ratios().map(|spread| spread.json()),
            "without_ms": self.ms(|(without, _)| *without).map(|spread| spread.json()),
            "with_ms": self.ms(|(_, with)| *with).map(|spread| spread.json()),
        })
    }
}

/// All that was found.
pub(crate) struct FanReport {
    /// Bytes of a dataset.
    pub(crate) size: u64,
    pub(crate) variant: Variant,
    pub(crate) series: Vec<FanSeries>,
    pub(crate) throttled: Option<Throttled>,
    pub(crate) machine: Machine,
}

/// A figure that has a limit.
struct Goal {
    name: &'static str,
    words: &'static str,
    limit: f64,
    found: f64,
    met: bool,
    show: fn(f64) -> String,
}

impl Goal {
    fn at_most(name: &'static str, words: &'static str, limit: f64, found: f64) -> Goal {
        Goal {
            name,
            words,
            limit,
            found,
            met: found <= limit,
            show: |value| rounded(value).to_string(),
        }
    }

    fn line(&self) -> String {
        let met = if self.met { "met" } else { "not met" };
        format!(
            "goal: {} {}: {}, {met}\n",
            self.words,
            (self.show)(self.limit),
            (self.show)(self.found)
        )
    }
}

fn mib(bytes: f64) -> String {
    format!("{:.1} MiB", bytes / MIB)
}

fn most(values: impl Iterator<Item = f64>) -> Option<f64> {
    Spread::of(values).map(|spread| spread.max)
}

impl FanReport {
    /// Those whose figures are there. The first series is the one that is judged by time.
    fn goals(&self) -> Vec<Goal> {
        let time = self.series.first().and_then(FanSeries::ratio);
        let rss =
            self.series.iter().filter_map(|series| series.heft_rss).map(|rss| rss.middle as f64);
        let wire = self.series.iter().filter_map(|series| series.wire.as_ref());
        let from_client = wire.filter_map(|wire| per(wire.from_client as f64, self.size as f64));
        let beside = self.throttled.as_ref().and_then(Throttled::ratio);
        let goals = [
            time.map(|found| {
                Goal::at_most("time", "a put's time to the relay's, at most", TIME_MAX, found)
            }),
            most(rss).map(|found| {
                let words = "the leader's memory, at most";
                Goal {
                    show: mib,
                    ..Goal::at_most("leader_rss_bytes", words, RSS_MAX as f64, found)
                }
            }),
            most(from_client).map(|found| {
                let words = "bytes from the client to those of the dataset, at most";
                Goal::at_most("from_client", words, FROM_CLIENT_MAX, found)
            }),
            beside.map(|found| {
                let words = "the rate beside a slow worker to the rate without it, at least";
                Goal {
                    met: found >= BESIDE_MIN,
                    ..Goal::at_most("beside_slow", words, BESIDE_MIN, found)
                }
            }),
        ];
        goals.into_iter().flatten().collect()
    }

    /// One object with everything.
    pub(crate) fn json(&self) -> Value {
        let goals = self.goals().into_iter().map(|goal| {
            let value = json!({"limit": goal.limit, "found": rounded(goal.found), "met": goal.met});
            (goal.name.to_owned(), value)
        });
        let first = self.series.first();
        let round = |round: &FanRound| {
            let turn = |turn: &Option<FanTurn>| {
                turn.map(|turn| {
                    json!({
                        "ms": rounded(turn.elapsed.as_secs_f64() * 1e3),
                        "middle_cpu_ms": turn.cpu.middle.as_millis(),
                        "workers_cpu_ms": turn.cpu.worker.as_millis(),
                        "client_cpu_ms": turn.cpu.client.as_millis(),
                    })
                })
            };
            json!({"heft": turn(&round.heft), "relay": turn(&round.relay)})
        };
        let rounds = |series: &FanSeries| {
            let rounds: Vec<Value> = series.rounds.iter().map(round).collect();
            json!({"workers": series.workers, "rounds": rounds})
        };
        self.machine.add_to(json!({
            "workload": "fanout",
            "driver": self.variant.driver.name(),
            "durability": self.variant.durability.name(),
            "load": {"size_bytes": self.size},
            "ratio": {
                "time": first.and_then(FanSeries::ratio).map(rounded),
                "spread": {"time": first.and_then(FanSeries::ratios).map(|spread| spread.json())},
            },
            "series": self.series.iter().map(|series| series.json(self.size)).collect::<Vec<_>>(),
            "throttled": self.throttled.as_ref().map(Throttled::json),
            "goals": goals.collect::<serde_json::Map<_, _>>(),
            "rounds": self.series.iter().map(rounds).collect::<Vec<_>>(),
        }))
    }

    pub(crate) fn table(&self) -> String {
        let variant = self.variant;
        let rounds = self.series.iter().map(|series| series.rounds.len()).max().unwrap_or_default();
        let mut text = format!("\nfanout: a dataset of {}", ByteSize(self.size));
        text += &format!(
            ", driver {}, durability {}\n",
            variant.driver.name(),
            variant.durability.name()
        );
        text += &format!("medians of {rounds} rounds; {}\n\n", self.machine.line());
        text += &row([
            "workers",
            "side",
            "time",
            "min",
            "max",
            "each MiB/s",
            "middle CPU",
            "for a GiB",
            "middle RSS",
        ]);
        for series in &self.series {
            for (side, sum) in [("heft", series.heft()), ("relay", series.relay())] {
                let Some(seconds) = sum.seconds() else { continue };
                let ms = |seconds: f64| format!("{:.0} ms", seconds * 1e3);
                let number = |value: Option<f64>, digits: usize| {
                    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
                };
                let cpu = number(sum.cpu(|cpu| cpu.middle).map(|cpu| cpu * 1e3), 0) + " ms";
                text += &row([
                    &series.workers.to_string(),
                    side,
                    &ms(seconds.median),
                    &ms(seconds.min),
                    &ms(seconds.max),
                    &number(sum.mib_s(self.size), 0),
                    &cpu,
                    &(number(sum.cpu_per_gib(self.size), 3) + " s"),
                    &sum.rss.map_or_else(|| "-".to_owned(), |rss| ByteSize(rss.middle).to_string()),
                ]);
            }
        }
        text += "\n";
        for series in &self.series {
            let workers = people(series.workers);
            if let (Some(ratio), Some(spread)) = (series.ratio(), series.ratios()) {
                let (min, max) = (spread.min, spread.max);
                text += &format!(
                    "{workers}: heft's median time is {ratio:.2} of the relay's (rounds {min:.2} to {max:.2})\n"
                );
            }
            if let Some(wire) = &series.wire {
                let shares = |bytes: u64| per(bytes as f64, self.size as f64).unwrap_or_default();
                let most = wire.to_workers.iter().max().copied().unwrap_or_default();
                text += &format!(
                    "{workers}: {:.4} of the dataset's bytes came from the client, {:.4} went to each worker at most\n",
                    shares(wire.from_client),
                    shares(most)
                );
            }
        }
        if let Some((throttled, ratio)) =
            self.throttled.as_ref().and_then(|found| Some((found, found.ratio()?)))
        {
            let (workers, rate) = (people(throttled.workers), ByteSize(throttled.rate));
            let spread = throttled.ratios().map_or_else(String::new, |spread| {
                format!(" (rounds {:.2} to {:.2})", spread.min, spread.max)
            });
            text += &format!(
                "{workers} beside one that gets {rate} in a second: {ratio:.2} of their rate without it{spread}\n"
            );
        }
        text += "\n";
        self.goals().iter().for_each(|goal| text += &goal.line());
        text
    }
}

fn people(workers: u32) -> String {
    format!("{workers} worker{}", if workers == 1 { "" } else { "s" })
}

fn row([workers, side, cells @ ..]: [&str; 9]) -> String {
    let cells: String = cells.iter().map(|cell| format!("{cell:>12}")).collect();
    format!("{workers:8}{side:6}{cells}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::variant::{Driver, Durability, Verify};

    const HEFT: Variant =
        Variant { driver: Driver::Portable, verify: Verify::End, durability: Durability::Disk };

    fn turn(ms: u64) -> FanTurn {
        let cpu = Roles { middle: Duration::from_millis(ms / 2), ..Roles::default() };
        FanTurn { elapsed: Duration::from_millis(ms), cpu, received: Some(5), moved: Some(20) }
    }

    fn report(heft: [u64; 3], relay: [u64; 3]) -> FanReport {
        let round = |(heft, relay)| {
            let mut round = FanRound::default();
            round.set(Side::Heft(HEFT), turn(heft));
            round.set(Side::Relay, turn(relay));
            round
        };
        let mut series = FanSeries::new(4, heft.into_iter().zip(relay).map(round).collect());
        series.set_memory(Side::Heft(HEFT), Roles { middle: 50 << 20, ..Roles::default() });
        series.wire = Some(FanWire { from_client: 1005, to_workers: vec![1001, 1002, 1000, 1003] });
        let rounds = [(100, 125), (100, 100), (90, 100)];
        let rounds = rounds.map(|(a, b)| (Duration::from_millis(a), Duration::from_millis(b)));
        let throttled = Some(Throttled { rate: 1 << 20, workers: 4, rounds: rounds.to_vec() });
        FanReport {
            size: 1000,
            variant: HEFT,
            series: vec![series],
            throttled,
            machine: Machine::default(),
        }
    }

    #[test]
    fn a_ratio_is_that_of_the_medians_and_has_a_range() {
        let found = report([120, 500, 130], [100, 100, 110]).json();
        assert_eq!(found["ratio"]["time"], 1.3);
        assert_eq!(found["ratio"]["spread"]["time"]["max"], 5.0);
        assert_eq!(found["series"][0]["heft"]["ms"]["median"], 130.0);
        assert_eq!(found["series"][0]["wire"]["from_client_share"], 1.005);
        assert_eq!(found["series"][0]["wire"]["to_worker_share"], 1.003);
        assert_eq!(found["throttled"]["ratio"], 1.0);
        for goal in ["time", "leader_rss_bytes", "from_client", "beside_slow"] {
            assert_eq!(found["goals"][goal]["met"], true, "{goal} of {found}");
        }
        assert_eq!(report([140; 3], [100; 3]).json()["goals"]["time"]["met"], false);
    }

    #[test]
    fn a_table_says_what_was_found_and_what_was_not() {
        let mut report = report([120, 500, 130], [100, 100, 110]);
        let text = report.table();
        for words in [
            "4 workers: heft's median time is 1.30 of the relay's (rounds 1.18 to 5.00)",
            "50 MiB",
            "beside one",
        ] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
        report.throttled = None;
        report.series[0].rounds.iter_mut().for_each(|round| round.heft = None);
        let (text, found) = (report.table(), report.json());
        assert!(!text.contains("median time") && found["ratio"]["time"].is_null(), "{text}");
        assert!(
            found["series"][0]["heft"].is_null() && found["goals"].get("time").is_none(),
            "{found}"
        );
    }
}
