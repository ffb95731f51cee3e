//! One file to several workers: heft's put of a dataset, and in turns with it a relay that writes
//! the same bytes to as many sockets.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use clap::Args;
use heft::units::ByteSize;

use super::pool::{Pool, PoolPlan};
use super::{Common, content};
use crate::actor::Role;
use crate::args::Only;
use crate::control::{Answer, Command, Fan, Fanned};
use crate::gate::{Gate, Passed};
use crate::process::Actor;
use crate::report::{FanReport, FanRound, FanSeries, FanTurn, FanWire, Machine, Roles, Throttled};
use crate::scratch;
use crate::variant::{Side, turns};

const SIZE: u64 = 64 << 20;
const WORKERS: u32 = 4;
const WORKERS_MAX: i64 = 32;
const ROUNDS: u32 = 7;

/// What a turn may take beyond the time its bytes need, and what even a busy machine moves in a
/// second.
const TURN_SLACK: Duration = Duration::from_secs(60);
const BYTES_IN_SECOND_MIN: u64 = 20 << 20;

/// How often it is checked that all processes live while a turn is waited for.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// What is to be measured.
#[derive(Args, Clone, Debug)]
pub(crate) struct FanoutArgs {
    /// Bytes of the dataset, which is one file.
    #[arg(long, default_value_t = ByteSize(SIZE), value_name = "SIZE")]
    size: ByteSize,

    /// Workers that are to have it, 1 to 32; several numbers, with commas, to see what more of them
    /// cost.
    #[arg(long, default_values_t = [WORKERS], value_delimiter = ',', value_name = "N",
          value_parser = clap::value_parser!(u32).range(1..=WORKERS_MAX))]
    workers: Vec<u32>,

    /// Rounds of heft and of the relay, in turns; who goes first changes. Each has bytes of its
    /// own.
    #[arg(long, default_value_t = ROUNDS, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    rounds: u32,

    /// Also put one more worker behind a gate that lets so many bytes through in a second, 1MiB
    /// unless said otherwise, and compare how quickly the others have the dataset with it and
    /// without it.
    #[arg(long, value_name = "SIZE", num_args = 0..=1, default_missing_value = "1MiB")]
    throttle: Option<ByteSize>,

    /// Rounds of each before the first, unmeasured.
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(0..=100))]
    warmup: u32,

    /// Measure heft or the relay alone.
    #[arg(long, value_enum, value_name = "SIDE")]
    only: Option<Only>,

    #[command(flatten)]
    common: Common,
}

impl FanoutArgs {
    fn sides(&self) -> Vec<Side> {
        let heft = Side::Heft(self.common.variant());
        match self.only {
            None => vec![heft, Side::Relay],
            Some(Only::Heft) => vec![heft],
            Some(Only::Relay) => vec![Side::Relay],
        }
    }

    /// How long a turn may take.
    fn limit(&self, workers: u32) -> Duration {
        let bytes = self.size.0.saturating_mul(u64::from(workers) + 1);
        TURN_SLACK + Duration::from_secs(bytes / BYTES_IN_SECOND_MIN)
    }
}

/// Measures what the arguments say and reports it.
pub(crate) fn run(args: &FanoutArgs) -> anyhow::Result<ExitCode> {
    super::warn_of_debug_build();
    let scratch = scratch::make(args.common.data.as_deref())?;
    let mut bench = Bench { args, scratch: scratch.path(), made: 0 };
    let mut series = Vec::new();
    for workers in &args.workers {
        series.push(bench.series(*workers)?);
    }
    let first = args.workers.first().copied().unwrap_or(WORKERS);
    let throttled = match (args.throttle, args.only) {
        (Some(rate), None | Some(Only::Heft)) => Some(bench.throttled(first, rate.0)?),
        (Some(_), Some(Only::Relay)) | (None, _) => None,
    };
    let (size, variant, machine) = (args.size.0, args.common.variant(), Machine::of_this_run());
    let report = FanReport { size, variant, series, throttled, machine };
    match args.common.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.table()),
    }
    Ok(ExitCode::SUCCESS)
}

struct Bench<'a> {
    args: &'a FanoutArgs,
    scratch: &'a Path,
    /// Files that were made: each is a dataset of its own.
    made: u64,
}

impl Bench<'_> {
    /// A file that nobody has seen, and that so many are to have.
    fn fresh(&mut self, wait: u32) -> anyhow::Result<Fan> {
        self.made += 1;
        let path = self.scratch.join("input.bin");
        content::make(&path, self.args.size.0, self.made)?;
        content::settle();
        Ok(Fan { path, cache_id: format!("bench-{}", self.made), wait })
    }

    /// All rounds with so many workers.
    fn series(&mut self, workers: u32) -> anyhow::Result<FanSeries> {
        let (limit, sides) = (self.args.limit(workers), self.args.sides());
        let mut casts = Vec::new();
        for side in &sides {
            eprintln!("starting {} with {workers} workers", name(*side));
            let dir = self.scratch.join(format!("{}-{workers}", name(*side)));
            let cast = Cast::start(*side, workers, &dir);
            casts.push((*side, cast.with_context(|| format!("starting {}", name(*side)))?));
        }
        for _ in 0..self.args.warmup {
            for (side, cast) in &mut casts {
                let fan = self.fresh(workers)?;
                cast.turn(&fan, limit).with_context(|| format!("warming up {}", name(*side)))?;
            }
        }
        let mut rounds = Vec::new();
        for number in 0..self.args.rounds {
            let mut round = FanRound::default();
            for side in turns(&sides, number) {
                let fan = self.fresh(workers)?;
                let Some((_, cast)) = casts.iter_mut().find(|(found, _)| *found == side) else {
                    continue;
                };
                let turn = cast
                    .turn(&fan, limit)
                    .with_context(|| format!("round {} of {}", number + 1, name(side)))?;
                let (number, of, name) = (number + 1, self.args.rounds, name(side));
                eprintln!("round {number}/{of} with {workers} workers: {name:5} {}", turn.line());
                round.set(side, turn);
            }
            rounds.push(round);
        }
        let mut series = FanSeries::new(workers, rounds);
        for (side, cast) in &casts {
            series.set_memory(*side, cast.rss_peak()?);
        }
        drop(casts);
        if self.args.only != Some(Only::Relay) {
            series.wire = Some(self.counted(workers).context("counting bytes")?);
        }
        Ok(series)
    }

    /// Once more, with everybody behind a gate that counts.
    fn counted(&mut self, workers: u32) -> anyhow::Result<FanWire> {
        eprintln!("counting the bytes to {workers} workers");
        let plan = PoolPlan { counted: true, ..PoolPlan::new(self.args.common.variant(), workers) };
        let pool = Pool::start(&plan, &self.scratch.join(format!("counted-{workers}")))?;
        let gate = Gate::open(pool.port(), None)?;
        let before = pool.passed();
        let mut cast = Cast::heft(pool, gate.port())?;
        let fan = self.fresh(workers)?;
        cast.fan(&fan, self.args.limit(workers))?;
        let after = match &cast.middle {
            Middle::Heft(pool) => pool.passed(),
            Middle::Relay { .. } => Vec::new(),
        };
        let to_workers =
            after.iter().zip(&before).map(|(after, before): (&Passed, _)| after.since(before));
        Ok(FanWire {
            from_client: gate.passed().up,
            to_workers: to_workers.map(|passed| passed.down).collect(),
        })
    }

    /// How quickly workers have a dataset while one more, that is slow, is to have it too.
    fn throttled(&mut self, workers: u32, rate: u64) -> anyhow::Result<Throttled> {
        let (variant, limit) = (self.args.common.variant(), self.args.limit(workers + 1));
        eprintln!("starting heft with {workers} workers, and with a slow one beside them");
        let alone = PoolPlan::new(variant, workers);
        let beside = PoolPlan { throttle: Some(rate), ..PoolPlan::new(variant, workers + 1) };
        let start = |plan: &PoolPlan, name: &str| {
            let pool = Pool::start(plan, &self.scratch.join(name))?;
            let port = pool.port();
            Cast::heft(pool, port)
        };
        let (mut alone, mut beside) = (start(&alone, "alone")?, start(&beside, "beside")?);
        let mut rounds = Vec::new();
        for number in 0..self.args.warmup + self.args.rounds {
            let mut turn = |cast: &mut Cast| {
                let fan = self.fresh(workers)?;
                cast.turn(&fan, limit)
                    .map(|turn| turn.elapsed)
                    .context("a round with a slow worker")
            };
            let (without, with) = if number.is_multiple_of(2) {
                let without = turn(&mut alone)?;
                (without, turn(&mut beside)?)
            } else {
                let with = turn(&mut beside)?;
                (turn(&mut alone)?, with)
            };
            if let Some(number) =
                (number + 1).checked_sub(self.args.warmup).filter(|number| *number > 0)
            {
                let (of, without_ms, with_ms) =
                    (self.args.rounds, without.as_millis(), with.as_millis());
                eprintln!(
                    "round {number}/{of}: {without_ms} ms without the slow worker, {with_ms} ms with it"
                );
                rounds.push((without, with));
            }
        }
        Ok(Throttled { rate, workers, rounds })
    }
}

fn name(side: Side) -> &'static str {
    match side {
        Side::Heft(_) => "heft",
        Side::Relay => "relay",
        Side::Disk => "disk",
    }
}

/// Who is between the client and the files.
enum Middle {
    Heft(Pool),
    Relay { receivers: Vec<Actor>, relay: Actor, files: PathBuf },
}

/// The processes of one side, in the order in which they end.
struct Cast {
    client: Actor,
    middle: Middle,
}

impl Cast {
    fn start(side: Side, workers: u32, dir: &Path) -> anyhow::Result<Cast> {
        match side {
            Side::Heft(variant) => {
                let pool = Pool::start(&PoolPlan::new(variant, workers), dir)?;
                let port = pool.port();
                Cast::heft(pool, port)
            }
            Side::Relay => Cast::relay(workers, dir),
            Side::Disk => bail!("the disk has no processes"),
        }
    }

    /// With a client that comes to the pool by this port.
    fn heft(pool: Pool, port: u16) -> anyhow::Result<Cast> {
        let (client, _) = Actor::start("client", &Role::DatasetClient { port })?;
        Ok(Cast { client, middle: Middle::Heft(pool) })
    }

    fn relay(receivers: u32, dir: &Path) -> anyhow::Result<Cast> {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let (relay, ports) = Actor::start("relay", &Role::FanRelay { receivers })?;
        let port = *ports.first().context("the relay does not say its port")?;
        let receiver = |number| {
            let role = Role::FanReceiver { port, number, files: dir.to_owned() };
            Actor::start("receiver", &role).map(|(actor, _)| actor)
        };
        let receivers = (0..receivers).map(receiver).collect::<Result<_, _>>()?;
        let (client, _) = Actor::start("client", &Role::FanSender { port })?;
        Ok(Cast { client, middle: Middle::Relay { receivers, relay, files: dir.to_owned() } })
    }

    /// Gets a file to everybody, and then rid of it.
    fn turn(&mut self, fan: &Fan, limit: Duration) -> anyhow::Result<FanTurn> {
        let before = self.cpu()?;
        let fanned = self.fan(fan, limit)?;
        let cpu = self.cpu()?.since(&before);
        match &self.middle {
            Middle::Heft(pool) => pool.remove(&fan.cache_id)?,
            Middle::Relay { files, .. } => {
                for entry in std::fs::read_dir(files)? {
                    std::fs::remove_file(entry?.path())?;
                }
            }
        }
        Ok(FanTurn { elapsed: fanned.elapsed, cpu, received: fanned.received, moved: fanned.moved })
    }

    fn fan(&mut self, fan: &Fan, limit: Duration) -> anyhow::Result<Fanned> {
        self.client.tell(&Command::Fan(fan.clone()))?;
        let until = Instant::now() + limit;
        loop {
            match self.client.answer_within(CHECK_EVERY)? {
                Some(Answer::Fanned(fanned)) if fanned.right >= fan.wait => return Ok(fanned),
                Some(answer) => {
                    bail!("{} are to have the file, and the client says {answer:?}", fan.wait)
                }
                None => {}
            }
            match &mut self.middle {
                Middle::Heft(pool) => pool.check_alive()?,
                Middle::Relay { receivers, relay, .. } => {
                    std::iter::once(relay).chain(receivers).try_for_each(Actor::check_alive)?;
                }
            }
            if Instant::now() >= until {
                bail!(
                    "the file is not everywhere after {} s: something is stuck; its processes are killed",
                    limit.as_secs()
                );
            }
        }
    }

    fn actors(&self) -> (&Actor, &[Actor]) {
        match &self.middle {
            Middle::Heft(pool) => (pool.leader(), pool.workers()),
            Middle::Relay { receivers, relay, .. } => (relay, receivers),
        }
    }

    fn cpu(&self) -> anyhow::Result<Roles<Duration>> {
        let (middle, workers) = self.actors();
        let worker = workers.iter().map(Actor::cpu).sum::<anyhow::Result<Duration>>()?;
        Ok(Roles { middle: middle.cpu()?, worker, client: self.client.cpu()? })
    }

    /// The most that one process of each role has held.
    fn rss_peak(&self) -> anyhow::Result<Roles<u64>> {
        let (middle, workers) = self.actors();
        let peaks = workers.iter().map(Actor::rss_peak).collect::<anyhow::Result<Vec<u64>>>()?;
        let worker = peaks.into_iter().max().unwrap_or_default();
        Ok(Roles { middle: middle.rss_peak()?, worker, client: self.client.rss_peak()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Cli {
        #[command(flatten)]
        fanout: FanoutArgs,
    }

    fn parsed(words: &str) -> FanoutArgs {
        Cli::try_parse_from(std::iter::once("fanout").chain(words.split_whitespace()))
            .unwrap()
            .fanout
    }

    #[test]
    fn a_line_has_the_issues_defaults() {
        let args = parsed("");
        assert_eq!((args.size.0, args.workers.as_slice(), args.rounds), (64 << 20, &[4][..], 7));
        assert!(args.throttle.is_none() && args.sides().len() == 2);
        assert_eq!(args.common.variant().leader_args()[5], "disk");
        let args = parsed("--workers 1,2,32 --throttle --only heft --durability memory");
        assert_eq!(
            (args.workers.as_slice(), args.throttle),
            (&[1, 2, 32][..], Some(ByteSize(1 << 20)))
        );
        assert_eq!(args.sides().len(), 1);
        assert!(args.limit(32) > args.limit(1));
        for bad in ["--workers 0", "--workers 33", "--rounds 0", "--size many"] {
            let words = std::iter::once("fanout").chain(bad.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{bad}");
        }
    }
}
