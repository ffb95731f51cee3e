//! How many bytes the policy `locality` moves, against `least-load`, in a small world over virtual
//! time: the goal at the level of the broker. Workers keep the datasets they used last, and
//! get what a job lacks before they run it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(
    clippy::cast_possible_truncation,
    clippy::cast_possible_wrap,
    clippy::wildcard_enum_match_arm
)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use heft::core::action::Action;
use heft::core::choose::Policy;
use heft::core::dataset::Dataset;
use heft::core::event::{ClaimedAttempt, ClientPeer, Inputs, Outcome, Submission, WorkerClass};
use heft::core::ids::{CacheId, ConnId, JobId, Micros, ResultId, WorkerId};
use heft::core::payload::{FileNames, PayloadKind};
use heft::core::retry::mix;
use heft::core::subject::routing_key;
use heft::core::worker::Hello;
use heft::core::{Broker, Config, Event};
use uuid::Uuid;

const JOBS: u64 = 200;
const DATASETS_DIR: u64 = 20;
const WORKERS: u64 = 4;
const CACHE_DATASETS: usize = 8;
const SET_BYTES: u64 = 64 << 20;
const BYTES_PER_SECOND: u64 = 200 << 20;
const CLIENT: ConnId = ConnId(1000);

/// How a run goes.
#[derive(Clone, Copy, Debug)]
struct Load {
    seed: u64,
    /// Jobs that a worker runs at a time.
    slots: u32,
    /// How long one runs, on average.
    runs: Duration,
    /// Between two submissions.
    pause: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
struct Outcomes {
    moved: u64,
    took: Duration,
    /// The longest time from a job's submission to its end.
    longest: Duration,
}

#[derive(Clone, Debug)]
enum Wake {
    Submit(u64),
    Moved(u64, u64),
    Ends(u64, JobId),
    Beat,
    Tick,
}

struct World {
    broker: Broker,
    now: Micros,
    order: u64,
    agenda: BTreeMap<(Micros, u64), Wake>,
    /// The datasets of each worker, the one used longest ago first, and jobs that wait for a
    /// dataset that is coming.
    caches: Vec<Vec<u64>>,
    coming: BTreeMap<(u64, u64), Vec<JobId>>,
    load: Load,
    moved: u64,
    submitted: BTreeMap<JobId, Micros>,
    longest: Duration,
    results: u64,
    ended: u64,
    tick_at: Option<Micros>,
}

fn cache(dataset: u64) -> CacheId {
    CacheId::parse(&format!("set-{dataset}")).unwrap()
}

fn digest(dataset: u64) -> [u8; 32] {
    [dataset as u8; 32]
}

fn worker(number: u64) -> WorkerId {
    WorkerId(Uuid::from_u128(u128::from(number) + 1))
}

fn dataset_of(seed: u64, job: u64) -> u64 {
    mix(mix(seed) ^ job) % DATASETS_DIR
}

impl World {
    fn new(policy: Policy, load: Load) -> World {
        let config = Config { policy, cap_default: 10_000, ..Config::default() };
        let mut world = World {
            broker: Broker::new(config),
            now: Micros(0),
            order: 0,
            agenda: BTreeMap::new(),
            caches: vec![Vec::new(); WORKERS as usize],
            coming: BTreeMap::new(),
            load,
            moved: 0,
            submitted: BTreeMap::new(),
            longest: Duration::ZERO,
            results: 0,
            ended: 0,
            tick_at: None,
        };
        for dataset in 0..DATASETS_DIR {
            let dataset = Dataset {
                cache: cache(dataset),
                version: Uuid::from_u128(u128::from(dataset) + 1),
                digest: digest(dataset),
                bytes: SET_BYTES,
                files: 1,
                target: "none".into(),
                packs: Vec::new(),
                at: Micros(0),
            };
            world.tell(Event::PutDataset { dataset: Arc::new(dataset) });
        }
        world.tell(Event::ClientHello {
            conn: CLIENT,
            client: "c".into(),
            cap: None,
            peer: ClientPeer::Heft,
        });
        for number in 0..WORKERS {
            let conn = ConnId(number);
            world.tell(Event::WorkerHello(Hello {
                conn,
                worker: worker(number),
                name: "w".into(),
                class: WorkerClass::Leasing,
                patterns: vec!["job.assign.>".into()],
                parallel_max: Some(load.slots),
                transfers: true,
                datasets: true,
                reads: PayloadKind::Request,
                programs: None,
            }));
            world.tell(Event::Credit { conn, delta: load.slots as i32 });
        }
        world.beat();
        for job in 0..JOBS {
            world.at(load.pause * job as u32, Wake::Submit(job));
        }
        world
    }

    fn at(&mut self, after: Duration, wake: Wake) {
        self.order += 1;
        self.agenda.insert((self.now.plus(after), self.order), wake);
    }

    fn tell(&mut self, event: Event) {
        self.broker.handle(self.now, event);
        while let Some(action) = self.broker.poll_action() {
            match action {
                Action::Commit { index, .. } => {
                    self.broker.handle(self.now, Event::Committed { index })
                }
                Action::Assign(of) => self.assigned(of.conn.0, of.job),
                Action::Deliver { job, .. } => {
                    let took = self.now.since(self.submitted[&job]);
                    self.longest = self.longest.max(took);
                    self.ended += 1;
                }
                Action::Close { .. } => panic!("a worker is cut off"),
                _ => {}
            }
        }
        let due = self.broker.next_deadline().map(|due| due.max(self.now));
        if let Some(due) = due.filter(|due| self.tick_at.is_none_or(|at| at > *due)) {
            self.tick_at = Some(due);
            self.at(due.since(self.now), Wake::Tick);
        }
    }

    /// Workers live, and say so.
    fn beat(&mut self) {
        let beats = self.broker.workers().map(|worker| {
            let held =
                worker.held.iter().map(|(job, lease)| (*job, lease.run, lease.attempt)).collect();
            Event::Heartbeat { conn: worker.conn().unwrap(), cpu_permille: 0, credit: 0, held }
        });
        let beats: Vec<Event> = beats.collect();
        beats.into_iter().for_each(|beat| self.tell(beat));
        self.at(Duration::from_secs(10), Wake::Beat);
    }

    fn assigned(&mut self, number: u64, job: JobId) {
        let dataset = dataset_of(self.load.seed, job.0.as_u128() as u64 - 1);
        let cache_of = &mut self.caches[number as usize];
        if let Some(at) = cache_of.iter().position(|held| *held == dataset) {
            let held = cache_of.remove(at);
            cache_of.push(held);
            return self.runs(number, job);
        }
        let waiting = self.coming.entry((number, dataset)).or_default();
        waiting.push(job);
        if waiting.len() == 1 {
            self.moved += SET_BYTES;
            let takes = Duration::from_millis(SET_BYTES * 1000 / BYTES_PER_SECOND);
            self.at(takes, Wake::Moved(number, dataset));
        }
    }

    fn runs(&mut self, number: u64, job: JobId) {
        let runs = self.load.runs.as_micros() as u64;
        let runs = Duration::from_micros(runs / 2 + mix(job.0.as_u128() as u64) % runs);
        self.at(runs, Wake::Ends(number, job));
    }

    fn moved(&mut self, number: u64, dataset: u64) {
        let cache_of = &mut self.caches[number as usize];
        cache_of.push(dataset);
        let evicted = (cache_of.len() > CACHE_DATASETS).then(|| cache_of.remove(0));
        let (worker, span) =
            (worker(number), Duration::from_millis(SET_BYTES * 1000 / BYTES_PER_SECOND));
        self.tell(Event::DatasetsMoved { worker, bytes: SET_BYTES, span });
        self.tell(Event::Holding {
            worker,
            cache: cache(dataset),
            digest: digest(dataset),
            missing: 0,
        });
        if let Some(evicted) = evicted {
            self.tell(Event::NotHolding { worker, cache: cache(evicted) });
        }
        for job in self.coming.remove(&(number, dataset)).unwrap() {
            self.runs(number, job);
        }
    }

    fn run(mut self) -> Outcomes {
        while let Some(((at, _), wake)) = self.agenda.pop_first() {
            self.now = at;
            match wake {
                Wake::Submit(job) => self.submit(job),
                Wake::Moved(number, dataset) => self.moved(number, dataset),
                Wake::Ends(number, job) => {
                    self.results += 1;
                    let outcome = Outcome::Returned { result: ResultId(self.results), ok: true };
                    self.tell(Event::Ack {
                        conn: ConnId(number),
                        job,
                        named: ClaimedAttempt::default(),
                        outcome,
                    });
                    self.tell(Event::Credit { conn: ConnId(number), delta: 1 });
                }
                Wake::Beat => self.beat(),
                Wake::Tick => {
                    self.tick_at = None;
                    self.tell(Event::Tick);
                }
            }
            if self.ended == JOBS {
                return Outcomes {
                    moved: self.moved,
                    took: self.now.since(Micros(0)),
                    longest: self.longest,
                };
            }
        }
        panic!("nothing happens any more, and jobs are open")
    }

    fn submit(&mut self, number: u64) {
        let job = JobId(Uuid::from_u128(u128::from(number) + 1));
        self.submitted.insert(job, self.now);
        let submission = Submission {
            job,
            client: "c".into(),
            key: routing_key("e", None).unwrap(),
            exec: "e".into(),
            priority: 0,
            to_all: false,
            size: 100,
            fingerprint: [0; 32],
            inputs: Inputs::Here,
            needs_transfers: false,
            require_worker: false,
            names: FileNames::Plain,
            tag: None,
            datasets: vec![cache(dataset_of(self.load.seed, number))],
        };
        self.tell(Event::Submit { conn: CLIENT, job: submission });
    }
}

/// What both policies come to, summed over a few seeds.
fn both(slots: u32, runs: Duration, pause: Duration) -> [Outcomes; 2] {
    [Policy::Locality, Policy::LeastLoad].map(|policy| {
        let nothing = Outcomes { moved: 0, took: Duration::ZERO, longest: Duration::ZERO };
        (0..3).fold(nothing, |sum, seed| {
            let came = World::new(policy, Load { seed, slots, runs, pause }).run();
            Outcomes {
                moved: sum.moved + came.moved,
                took: sum.took + came.took,
                longest: sum.longest.max(came.longest),
            }
        })
    })
}

const MOVE: Duration = Duration::from_millis(SET_BYTES * 1000 / BYTES_PER_SECOND);

/// 200 jobs over 20 datasets, which nobody holds at first, on 4 workers with room for 8 each.
#[test]
fn c14_locality_moves_at_most_a_third_of_what_least_load_moves() {
    for slots in [1, 4] {
        // Jobs that are much shorter than a move, as long, and much longer.
        for runs in [MOVE / 10, MOVE, MOVE * 10] {
            let [near, load] = both(slots, runs, Duration::ZERO);
            println!("{slots} slots, {runs:?}: {near:?} against {load:?}");
            assert!(near.moved * 100 <= load.moved * 35, "{} of {} bytes", near.moved, load.moved);
            assert!(
                near.took <= load.took && near.longest <= load.longest,
                "it is no slower for that"
            );
        }
    }
}

/// The same, submitted as fast as they can be served: whoever is free finds few to choose from, and
/// long jobs are not kept waiting for a quick move.
#[test]
fn c14_jobs_that_come_one_by_one_move_less_and_take_no_longer() {
    for (runs, percent) in [(MOVE / 10, 35), (MOVE, 35), (MOVE * 10, 60)] {
        let [near, load] = both(2, runs, runs / 8);
        println!("{runs:?}: {near:?} against {load:?}");
        assert!(near.moved * 100 <= load.moved * percent, "{} of {} bytes", near.moved, load.moved);
        assert!(near.took <= load.took);
    }
}
