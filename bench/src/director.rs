//! Runs the bench: starts the processes of all sides, has them do their rounds in turns, and
//! gathers what they found.

use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use crate::actor::{Direction, HeftClient, HeftWorker, Lanes, Role};
use crate::args::{BenchArgs, Plan, Sink, Workload};
use crate::control::{Answer, Command, Tally};
use crate::disk::DiskAlone;
use crate::latency::Latencies;
use crate::load::{Load, Until};
use crate::process::Actor;
use crate::report::{Machine, Measured, Memory, Report, Roles, Round};
use crate::scratch;
use crate::status::{self, LogCost};
use crate::variant::{Durability, Side, Variant};

/// What a run may take beyond the time its jobs need; then something is stuck.
const RUN_SLACK: Duration = Duration::from_secs(60);

/// Even a busy machine moves so many bytes in a second, and a job in that time.
const BYTES_IN_SECOND_MIN: u64 = 20 << 20;
const JOB_MAX: Duration = Duration::from_millis(20);

/// How often it is checked that all processes live while a run is waited for.
const CHECK_EVERY: Duration = Duration::from_millis(200);

/// How long large jobs flow before small ones are measured beside them.
const BACKGROUND_LEAD: Duration = Duration::from_millis(300);

/// Lanes of the relay for what flows in the background, behind those that are measured.
const BACKGROUND_LANE: u32 = 1_000;

/// Jobs a worker may be given beyond those in flight, so that it is never the worker's credit that
/// is measured.
const CREDIT_SPARE: u32 = 4;

/// How long a leader may take to say how much its log took.
const STATUS_MAX: Duration = Duration::from_secs(30);

/// Measures what the arguments say and reports it.
pub(crate) fn run(workload: Workload, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let plan = Plan::new(workload, args)?;
    if cfg!(debug_assertions) {
        eprintln!(
            "heft-bench: this is a debug build, its figures mean nothing: use cargo run --release"
        );
    }
    if let Some(out) = &plan.out {
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
    }
    let scratch = scratch::make(plan.data.as_deref())?;
    if plan.disk_bytes.is_some() && scratch::is_in_memory(scratch.path()) {
        eprintln!(
            "heft-bench: {} is in memory, not on a disk: give --data",
            scratch.path().display()
        );
    }
    let mut disk = match plan.disk_bytes {
        Some(bytes) => Some(DiskAlone::new(&scratch.path().join("disk"), bytes)?),
        None => None,
    };
    let mut casts = Vec::new();
    for side in plan.sides(0).into_iter().filter(|side| *side != Side::Disk) {
        let label = plan.label(side);
        eprintln!("starting {label}");
        let cast = Cast::start(side, &plan, &scratch.path().join(&label));
        casts.push(cast.with_context(|| format!("starting {label}"))?);
    }
    for cast in &mut casts {
        cast.warm_up(&plan).with_context(|| format!("warming up {}", plan.label(cast.side)))?;
    }
    let width = casts.iter().map(|cast| plan.label(cast.side).len()).max().unwrap_or_default();
    let mut rounds = Vec::new();
    for number in 0..plan.rounds {
        let mut round = Round::default();
        for side in plan.sides(number) {
            if let (Side::Disk, Some(disk)) = (side, &mut disk) {
                let turn =
                    disk.measure().with_context(|| format!("round {} of the disk", number + 1))?;
                eprintln!(
                    "round {}/{}: {:width$} {}",
                    number + 1,
                    plan.rounds,
                    plan.label(side),
                    turn.line()
                );
                round.set_disk(turn);
                continue;
            }
            let Some(cast) = casts.iter_mut().find(|cast| cast.side == side) else { continue };
            let label = plan.label(side);
            let measured = cast
                .measure(&plan.load, plan.background.as_ref())
                .with_context(|| format!("round {} of {label}", number + 1))?;
            eprintln!("round {}/{}: {label:width$} {}", number + 1, plan.rounds, measured.line());
            round.set(side, measured);
        }
        rounds.push(round);
    }
    let mut memory = Memory::default();
    for cast in &casts {
        memory.set(cast.side, cast.rss_peak()?);
    }
    drop(casts);
    let report = Report::new(&plan, rounds, &memory, Machine::of_this_run())?;
    if let Some(out) = &plan.out {
        report.write_to(out)?;
        eprintln!("wrote {}", out.display());
    }
    match plan.json {
        true => println!("{}", report.json()),
        false => print!("{}", report.table()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The processes of one side, in the order in which they end: nobody misses another.
struct Cast {
    side: Side,
    /// The first one is measured; the second, of mixed, makes the load beside it.
    clients: Vec<Actor>,
    workers: Vec<Actor>,
    middle: Actor,
    port: u16,
}

impl Cast {
    /// Starts them, with a directory for their files that no other side has.
    fn start(side: Side, plan: &Plan, scratch: &Path) -> anyhow::Result<Cast> {
        std::fs::create_dir_all(scratch)
            .with_context(|| format!("cannot make {}", scratch.display()))?;
        let files = match plan.sink {
            Sink::Drop => None,
            Sink::File => Some(scratch.to_owned()),
        };
        let direction = match plan.workload {
            Workload::Push | Workload::Roundtrip | Workload::Submit | Workload::Mixed => {
                Direction::Inputs
            }
            Workload::Result => Direction::Results,
        };
        let (middle, port) = match side {
            Side::Heft(variant) => Actor::start_leader(variant, &scratch.join("leader"))?,
            Side::Relay => {
                let (relay, ports) = Actor::start("relay", &Role::Relay { by: plan.relay_by })?;
                (relay, *ports.first().context("the relay does not say its port")?)
            }
            Side::Disk => bail!("the disk has no processes"),
        };
        let mut cast = Cast { side, middle, port, workers: Vec::new(), clients: Vec::new() };
        let loads = std::iter::once((&plan.load, "bench", 0))
            .chain(plan.background.as_ref().map(|load| (load, "bulk", BACKGROUND_LANE)));
        for (load, group, first) in loads {
            let (group, files) = (group.to_owned(), files.clone());
            let lanes = Lanes { first, count: plan.relay_lanes.min(load.in_flight) };
            let (worker, client) = match side {
                Side::Heft(_) => {
                    let scratch = scratch.to_owned();
                    let worker = HeftWorker {
                        port,
                        group: group.clone(),
                        parallel: load.in_flight.saturating_add(CREDIT_SPARE),
                        sink: plan.sink,
                        scratch: scratch.clone(),
                    };
                    let client = HeftClient {
                        port,
                        group,
                        direction,
                        submitters: if first == 0 { plan.submitters } else { 1 },
                        notes_taken: plan.workload == Workload::Submit,
                        digest: plan.digest,
                        compress: plan.compress,
                        scratch,
                    };
                    (Role::HeftWorker(worker), Role::HeftClient(client))
                }
                Side::Relay | Side::Disk => (
                    Role::RelayWorker { port, lanes, files },
                    Role::RelayClient { port, lanes, direction },
                ),
            };
            cast.workers.push(Actor::start("worker", &worker)?.0);
            cast.clients.push(Actor::start("client", &client)?.0);
        }
        Ok(cast)
    }

    /// Runs jobs on every client before anything is measured.
    fn warm_up(&mut self, plan: &Plan) -> anyhow::Result<()> {
        let loads = std::iter::once(&plan.load).chain(&plan.background);
        for (client, load) in loads.enumerate() {
            if let Some(load) = plan.warm(load) {
                self.tell(client, &Command::Run(load.clone()))?;
                self.wait(client, limit(&load))?;
            }
        }
        Ok(())
    }

    fn measure(&mut self, load: &Load, background: Option<&Load>) -> anyhow::Result<Measured> {
        let log_before = self.log_cost()?;
        let before = self.cpu()?;
        if let Some(background) = background {
            self.tell(1, &Command::Run(background.clone()))?;
            std::thread::sleep(BACKGROUND_LEAD);
        }
        self.tell(0, &Command::Run(load.clone()))?;
        let measured = self.wait(0, limit(load))?;
        let bulk = match background {
            None => None,
            Some(background) => {
                self.tell(1, &Command::Stop)?;
                Some(self.wait(1, limit(background))?)
            }
        };
        let cpu = self.cpu()?.since(&before);
        let log = self.log_cost()?.zip(log_before).map(|(after, before)| after.since(&before));
        let taken = measured.taken.as_deref().map(Latencies::from_word).transpose()?;
        let latencies = Latencies::from_word(&measured.latencies)?;
        Ok(Measured { latencies, taken, measured, bulk, cpu, log })
    }

    /// What the leader's log took so far, if it has one.
    fn log_cost(&self) -> anyhow::Result<Option<LogCost>> {
        match self.side {
            Side::Heft(Variant { durability: Durability::Disk, .. }) => {
                let status = status::ask(self.port, STATUS_MAX)?;
                Ok(Some(LogCost::of(&status.leader.log)))
            }
            Side::Heft(Variant { durability: Durability::Memory, .. })
            | Side::Relay
            | Side::Disk => Ok(None),
        }
    }

    fn tell(&mut self, client: usize, command: &Command) -> anyhow::Result<()> {
        self.clients.get_mut(client).context("there is no such client")?.tell(command)
    }

    /// Waits for the end of a run. If another process of this side ends meanwhile, that is why the
    /// run never would.
    fn wait(&mut self, client: usize, limit: Duration) -> anyhow::Result<Tally> {
        let until = Instant::now() + limit;
        loop {
            let waited_for = self.clients.get_mut(client).context("there is no such client")?;
            if let Some(answer) = waited_for.answer_within(CHECK_EVERY)? {
                return match answer {
                    Answer::Done(tally) => Ok(tally),
                    Answer::Ready { .. } | Answer::Fanned(_) | Answer::Failed { .. } => {
                        bail!("the client says {answer:?}")
                    }
                };
            }
            let others = self.clients.iter_mut().enumerate().filter(|(other, _)| *other != client);
            let others = others.map(|(_, other)| other);
            for actor in std::iter::once(&mut self.middle).chain(&mut self.workers).chain(others) {
                actor.check_alive()?;
            }
            if Instant::now() >= until {
                bail!(
                    "the jobs have not ended after {} s: something is stuck; its processes are killed",
                    limit.as_secs()
                );
            }
        }
    }

    fn cpu(&self) -> anyhow::Result<Roles<Duration>> {
        let sum =
            |actors: &[Actor]| actors.iter().map(Actor::cpu).sum::<anyhow::Result<Duration>>();
        Ok(Roles {
            middle: self.middle.cpu()?,
            worker: sum(&self.workers)?,
            client: sum(&self.clients)?,
        })
    }

    /// The most that one process of each role has held.
    fn rss_peak(&self) -> anyhow::Result<Roles<u64>> {
        let most = |actors: &[Actor]| {
            let peaks: anyhow::Result<Vec<u64>> = actors.iter().map(Actor::rss_peak).collect();
            anyhow::Ok(peaks?.into_iter().max().unwrap_or_default())
        };
        Ok(Roles {
            middle: self.middle.rss_peak()?,
            worker: most(&self.workers)?,
            client: most(&self.clients)?,
        })
    }
}

/// How long a run may take.
fn limit(load: &Load) -> Duration {
    let jobs_time = |jobs: u64| {
        let bytes = jobs.saturating_mul(load.size);
        let each = JOB_MAX.saturating_mul(u32::try_from(jobs).unwrap_or(u32::MAX));
        Duration::from_secs(bytes / BYTES_IN_SECOND_MIN) + each
    };
    let time = match load.until {
        Until::Count(count) => {
            let paced = load.rate.map_or(0.0, |rate| count as f64 / rate);
            jobs_time(count) + Duration::from_secs_f64(paced)
        }
        Until::Time(time) => time + jobs_time(u64::from(load.in_flight)),
        Until::Stop => jobs_time(u64::from(load.in_flight)),
    };
    time + RUN_SLACK
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_a_limit_that_grows_with_it() {
        let load = |size, until, rate| Load { size, in_flight: 4, until, rate };
        assert!(limit(&load(20 << 30, Until::Count(1), None)) > Duration::from_secs(1000));
        assert!(limit(&load(1024, Until::Count(100), Some(1.0))) > Duration::from_secs(160));
        assert!(
            limit(&load(1024, Until::Time(Duration::from_secs(1)), None)) < Duration::from_secs(70)
        );
    }
}
