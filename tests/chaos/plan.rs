//! What happens in a round: which jobs, and which harm when. All of it follows from a seed.

use uuid::Uuid;

use crate::support::scaled;
use crate::work::{Weight, Work};

/// Numbers that look random, the same for the same seed.
pub struct Seeded(pub u64);

impl Seeded {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        heft::core::retry::mix(self.0)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// From one to the other, both included.
    pub fn between(&mut self, least: usize, most: usize) -> usize {
        least + usize::try_from(self.below((most - least) as u64 + 1)).unwrap()
    }

    pub fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.between(0, of.len() - 1)]
    }
}

/// The kinds of harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hazard {
    KillLeader,
    KillHeft,
    KillClassic,
    KillMinimal,
    KillClient,
    StopLeader,
    StopWorker,
    StopClient,
    CutWorker,
    CutClient,
    Stall,
    Throttle,
    FullData,
    FullWork,
    DeadLine,
}

/// Which kinds there are, how often each comes at `ci` and at `long`.
///
/// A dead line is noticed only after the time that peers may be silent, so it has no place at `ci`.
pub const HAZARDS: &[(Hazard, u32, u32)] = &[
    (Hazard::KillLeader, 3, 3),
    (Hazard::KillHeft, 3, 3),
    (Hazard::KillClassic, 2, 2),
    (Hazard::KillMinimal, 1, 1),
    (Hazard::KillClient, 3, 3),
    (Hazard::StopLeader, 3, 3),
    (Hazard::StopWorker, 3, 3),
    (Hazard::StopClient, 2, 2),
    (Hazard::CutWorker, 3, 3),
    (Hazard::CutClient, 3, 3),
    (Hazard::Stall, 2, 2),
    (Hazard::Throttle, 3, 3),
    (Hazard::FullData, 2, 2),
    (Hazard::FullWork, 2, 2),
    (Hazard::DeadLine, 0, 1),
];

/// Workers, in the order of their numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WorkerName {
    Heft(usize),
    Classic(usize),
    /// Of the oldest generation.
    Minimal,
}

pub const WORKERS: [WorkerName; 6] = [
    WorkerName::Heft(0),
    WorkerName::Heft(1),
    WorkerName::Heft(2),
    WorkerName::Classic(0),
    WorkerName::Classic(1),
    WorkerName::Minimal,
];

/// Workers that reach the leader by a relay. The others stand beside it, as most do.
pub const RELAYED: [WorkerName; 4] =
    [WorkerName::Heft(0), WorkerName::Heft(1), WorkerName::Classic(0), WorkerName::Minimal];

/// Clients; each has a relay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ClientName {
    /// `heft submit`, one job behind the other.
    Submit,
    /// The library, all jobs at once.
    PackIndex,
    /// An unmodified client of the older system.
    Classic,
    /// The generation before, which has ids, and opaque jobs.
    Correlating,
    /// The first, which has neither ids nor results.
    Minimal,
    /// Leaves when its jobs are acknowledged, and comes back.
    Leaver,
}

pub const CLIENTS: [ClientName; 6] = [
    ClientName::Submit,
    ClientName::PackIndex,
    ClientName::Classic,
    ClientName::Correlating,
    ClientName::Minimal,
    ClientName::Leaver,
];

/// Those that are processes of their own.
const PROCESSES: [ClientName; 4] =
    [ClientName::Submit, ClientName::Classic, ClientName::Correlating, ClientName::Minimal];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    Leader,
    Worker(WorkerName),
    Client(ClientName),
}

/// What is done to whom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Harm {
    /// kill -9; it is started again after so many milliseconds (a client is not).
    Kill(Target, u64),
    /// SIGSTOP for so long.
    Stop(Target, u64),
    /// Its connections are cut.
    Cut(Target),
    /// Nothing passes for so long.
    Stall(Target, u64),
    /// So many bytes in a second pass, for so long.
    Throttle(Target, u64, u64),
    /// The disk with the leader's data is full for so long.
    FullData(u64),
    /// That with the job directories.
    FullWork(u64),
    /// Its connection passes nothing any more, and neither end hears of it.
    Dead(Target),
}

impl Harm {
    /// How long it lasts.
    pub fn lasts_ms(&self) -> u64 {
        match self {
            Harm::Kill(..) | Harm::Cut(_) | Harm::Dead(_) => 0,
            Harm::Stop(_, ms)
            | Harm::Stall(_, ms)
            | Harm::Throttle(_, _, ms)
            | Harm::FullData(ms)
            | Harm::FullWork(ms) => *ms,
        }
    }
}

/// Harm and when it begins, in milliseconds of the round.
#[derive(Clone, Copy, Debug)]
pub struct Fault {
    pub at_ms: u64,
    pub harm: Harm,
}

/// A job of opaque bytes.
#[derive(Clone, Debug)]
pub struct Opaque {
    pub job: Uuid,
    pub start: usize,
    pub len: usize,
}

#[derive(Debug)]
pub struct Plan {
    pub number: u32,
    pub submit: Vec<Work>,
    pub library: Vec<Work>,
    pub classic: Vec<Work>,
    pub leaver: Vec<Work>,
    pub correlating: Vec<Opaque>,
    pub minimal: Vec<Opaque>,
    /// Whether the leaver takes its results when it comes back, or fetches them.
    pub comes_back: bool,
    /// Whether a job whose client was killed in the middle of its upload is cancelled, or left to
    /// the leader.
    pub cancels: bool,
    pub faults: Vec<Fault>,
}

impl Plan {
    pub fn new(seed: u64, number: u32, can_fill: bool) -> Plan {
        let mut random = Seeded(heft::core::retry::mix(seed ^ (u64::from(number) << 32)));
        let works =
            |random: &mut Seeded, count: usize, first: Weight, others: Weight| -> Vec<Work> {
                (0..count)
                    .map(|place| Work::plan(random, if place == 0 { first } else { others }))
                    .collect()
            };
        let (mut input, mut result) = (Weight::Any, Weight::Any);
        match number % 4 {
            0 => input = Weight::HeavyInput,
            2 => result = Weight::HeavyResult,
            _ => {}
        }
        let opaques = |random: &mut Seeded| -> Vec<Opaque> {
            let count = random.between(1, 4);
            (0..count)
                .map(|_| {
                    let most = if random.below(8) == 0 { 3 << 20 } else { 16 << 10 };
                    let len = random.between(16, most);
                    Opaque { job: random.uuid(), start: random.between(0, 40 << 20), len }
                })
                .collect()
        };
        Plan {
            number,
            submit: works(&mut random, 3, input, Weight::Any),
            library: works(&mut random, 4, result, Weight::Any),
            classic: works(&mut random, 4, Weight::Any, Weight::Light),
            leaver: works(&mut random, 2, Weight::Any, Weight::Any),
            correlating: opaques(&mut random),
            minimal: opaques(&mut random),
            comes_back: random.below(2) == 0,
            cancels: scaled(0, 1) == 0 || random.below(4) > 0,
            faults: faults(&mut random, can_fill),
        }
    }

    pub fn has(&self, wanted: impl Fn(&Harm) -> bool) -> bool {
        self.faults.iter().any(|fault| wanted(&fault.harm))
    }

    /// How often workers lose jobs in this round, at most: the leader lets nobody go for less.
    pub fn losses(&self) -> usize {
        self.faults
            .iter()
            .filter(|fault| match fault.harm {
                Harm::Kill(Target::Leader, _) => true,
                Harm::Kill(target, _) | Harm::Cut(target) | Harm::Dead(target) => {
                    matches!(target, Target::Worker(_))
                }
                Harm::Stop(target, ms)
                | Harm::Stall(target, ms)
                | Harm::Throttle(target, _, ms) => matches!(target, Target::Worker(_)) && ms > 4000,
                Harm::FullData(_) | Harm::FullWork(_) => false,
            })
            .count()
    }
}

fn faults(random: &mut Seeded, can_fill: bool) -> Vec<Fault> {
    let only = std::env::var("HEFT_CHAOS_ONLY").ok();
    let weights: Vec<(Hazard, u64)> = HAZARDS
        .iter()
        .filter(|(hazard, ..)| can_fill || !matches!(hazard, Hazard::FullData | Hazard::FullWork))
        .filter(|(hazard, ..)| {
            only.as_ref()
                .is_none_or(|only| only.split(',').any(|name| name == format!("{hazard:?}")))
        })
        .map(|(hazard, ci, long)| (*hazard, u64::from(scaled(*ci, *long))))
        .collect();
    let total: u64 = weights.iter().map(|(_, weight)| weight).sum();
    let count = random.between(2, scaled(4, 6) as usize);
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..10 * count {
        if faults.len() == count || total == 0 {
            break;
        }
        let mut place = random.below(total);
        let hazard = weights
            .iter()
            .find(|(_, weight)| {
                let is_here = place < *weight;
                place = place.saturating_sub(*weight);
                is_here
            })
            .map(|(hazard, _)| *hazard)
            .unwrap();
        // Some while all clients say hello, the others while they work.
        let at_ms = if random.below(3) == 0 { random.below(150) } else { random.below(2500) };
        let fault = Fault { at_ms, harm: harm(random, hazard) };
        // A leader that was killed waits for the workers that had jobs as long as a lease: a worker
        // that is gone for good then takes half a minute.
        let kills_leader = |harm: &Harm| matches!(harm, Harm::Kill(Target::Leader, _));
        let kills_worker =
            |harm: &Harm| matches!(harm, Harm::Kill(Target::Worker(WorkerName::Heft(_)), _));
        let takes_long = |other: &Fault| {
            kills_leader(&other.harm) && kills_worker(&fault.harm)
                || kills_worker(&other.harm) && kills_leader(&fault.harm)
        };
        if scaled(0, 1) == 0 && faults.iter().any(takes_long) {
            continue;
        }
        faults.push(fault);
    }
    faults.sort_by_key(|fault| fault.at_ms);
    faults
}

fn harm(random: &mut Seeded, hazard: Hazard) -> Harm {
    let relayed = |random: &mut Seeded| match random.below(2) {
        0 => Target::Worker(random.pick(&RELAYED)),
        _ => Target::Client(random.pick(&CLIENTS)),
    };
    // Mostly short, up to 8 s.
    let long = |random: &mut Seeded| match random.below(u64::from(scaled(20, 3))) {
        0 => 1500 + random.below(6500),
        _ => 200 + random.below(1300),
    };
    match hazard {
        Hazard::KillLeader => Harm::Kill(Target::Leader, random.below(500)),
        Hazard::KillHeft => {
            Harm::Kill(Target::Worker(WorkerName::Heft(random.between(0, 2))), random.below(1000))
        }
        Hazard::KillClassic => Harm::Kill(
            Target::Worker(WorkerName::Classic(random.between(0, 1))),
            random.below(1000),
        ),
        Hazard::KillMinimal => Harm::Kill(Target::Worker(WorkerName::Minimal), random.below(1000)),
        Hazard::KillClient => Harm::Kill(Target::Client(random.pick(&PROCESSES)), 0),
        Hazard::StopLeader => Harm::Stop(Target::Leader, long(random)),
        Hazard::StopWorker => Harm::Stop(Target::Worker(random.pick(&WORKERS)), long(random)),
        Hazard::StopClient => Harm::Stop(Target::Client(random.pick(&PROCESSES)), long(random)),
        Hazard::CutWorker => Harm::Cut(Target::Worker(random.pick(&RELAYED))),
        Hazard::CutClient => Harm::Cut(Target::Client(random.pick(&CLIENTS))),
        Hazard::Stall => Harm::Stall(relayed(random), long(random)),
        Hazard::Throttle => {
            let rate = (50 << 10) << random.below(7);
            Harm::Throttle(relayed(random), rate, 500 + random.below(u64::from(scaled(2000, 8000))))
        }
        Hazard::FullData => Harm::FullData(300 + random.below(u64::from(scaled(1700, 6000)))),
        Hazard::FullWork => Harm::FullWork(300 + random.below(u64::from(scaled(1700, 6000)))),
        Hazard::DeadLine => Harm::Dead(match random.below(2) {
            0 => Target::Worker(random.pick(&[WorkerName::Heft(0), WorkerName::Heft(1)])),
            _ => Target::Client(random.pick(&[ClientName::Submit, ClientName::PackIndex])),
        }),
    }
}
