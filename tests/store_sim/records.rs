//! What is proposed to the log: records as a leader makes them, some of them too late, and what
//! they must come to.

use std::collections::{BTreeMap, BTreeSet};

use heft::core::Record;
use heft::core::cluster::LEVEL_MAX;
use heft::core::dataset::Dataset;
use heft::core::event::{Inputs, Submission, WorkerClass};
use heft::core::ids::{Attempt, CacheId, ClientId, JobId, Micros, Node, ResultId, Term, WorkerId};
use heft::core::job::{Ending, Job, Phase};
use heft::core::payload::FileNames;
use heft::core::record::AttemptEnd;
use heft::core::retry::mix;
use heft::core::state::State;
use heft::core::subject::routing_key;
use heft::store::codec::Attached;
use heft::store::replay::{Key, Replay};
use uuid::Uuid;

use super::sim_disk::Random;

const CLIENTS: [&str; 3] = ["alice", "bob", "zoë"];
const CACHES: [&str; 4] = ["set", "Set", "größe", "x-1"];
const EXECS: [&str; 3] = ["calcA", "Render", "x"];
const WHY: [AttemptEnd; 4] =
    [AttemptEnd::TimedOut, AttemptEnd::WorkerLost, AttemptEnd::DiskFull, AttemptEnd::InputsBad];

/// A record that was proposed.
#[derive(Clone, Debug)]
pub(crate) struct Proposed {
    pub(crate) record: Record,
    pub(crate) attached: Option<Attached>,
    pub(crate) sync: bool,
}

impl Proposed {
    /// What its payload belongs to.
    pub(crate) fn key(&self) -> Option<Key> {
        self.attached.as_ref()?;
        match &self.record {
            Record::Announce { job, .. } | Record::Enqueue { job, .. } => Some(Key::Input(job.job)),
            Record::Ack { result, .. } => Some(Key::Result(*result)),
            _ => None,
        }
    }
}

/// All that was proposed and not lost.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    all: Vec<Proposed>,
    /// The state after all of them.
    pub(crate) state: State,
    jobs: u128,
    results: u64,
    lazy: u64,
}

impl Proposals {
    /// Of a hundred records that somebody would wait for, nobody waits for so many.
    pub(crate) fn new(lazy: u64) -> Self {
        Proposals { lazy, ..Proposals::default() }
    }

    pub(crate) fn len(&self) -> u64 {
        self.all.len() as u64
    }

    /// The record with this index.
    pub(crate) fn at(&self, index: u64) -> &Proposed {
        &self.all[index as usize - 1]
    }

    /// Those behind this index were lost.
    pub(crate) fn keep(&mut self, up_to: u64) {
        self.all.truncate(up_to as usize);
        self.state = State::default();
        for proposed in &self.all {
            self.state.apply(&proposed.record);
        }
    }

    /// The payload that belongs to this.
    pub(crate) fn payload(&self, key: Key) -> Option<&Attached> {
        let found = self.all.iter().find(|proposed| proposed.key() == Some(key))?;
        found.attached.as_ref()
    }

    /// The payloads that the state needs: of jobs that may run, and of results that can be asked
    /// for.
    pub(crate) fn needed(&self) -> BTreeSet<Key> {
        let mut needed = BTreeSet::new();
        for job in self.state.jobs() {
            if let Phase::Done { ending: Ending::Returned { result, .. }, .. } = &job.phase {
                needed.insert(Key::Result(*result));
            }
            if job.child_of.is_none() && (!job.has_ended() || job.may_run_again()) {
                needed.insert(Key::Input(job.id()));
            }
        }
        needed
    }

    /// Compares what was read to what was proposed up to there.
    pub(crate) fn check(&self, replay: &Replay) {
        assert_eq!(replay.index.0, self.len());
        assert_eq!(replay.state, self.state, "the state after record {}", self.len());
        let moments = self.all.iter().filter_map(|proposed| match &proposed.record {
            Record::Announce { at, .. }
            | Record::Enqueue { at, .. }
            | Record::Ack { at, .. }
            | Record::Dlq { at, .. }
            | Record::Cancel { at, .. }
            | Record::Fail { at, .. }
            | Record::Orphan { at, .. }
            | Record::Office { at, .. } => Some(*at),
            Record::Assign { at, .. } | Record::Requeue { at, .. } => *at,
            Record::Dataset { dataset } | Record::Stage { dataset, .. } => Some(dataset.at),
            _ => None,
        });
        assert_eq!(replay.latest, moments.max().unwrap_or_default());
        let results = self.all.iter().filter_map(|proposed| match &proposed.record {
            Record::Ack { result, .. } => Some(*result),
            _ => None,
        });
        assert_eq!(replay.last_result, results.max().unwrap_or_default());
        let held: BTreeMap<Key, _> = replay.held().collect();
        assert_eq!(held.keys().copied().collect::<BTreeSet<_>>(), self.needed());
        for (key, held) in held {
            let attached = self.payload(key).unwrap();
            assert_eq!(
                (held.from_ours, &held.blobs[..]),
                (attached.from_ours, &attached.blobs[..]),
                "{key:?}"
            );
        }
    }

    /// Something that a leader might propose now.
    pub(crate) fn propose(&mut self, random: &mut Random, payload_bytes: usize) -> &Proposed {
        let at = Micros(1_000_000 + self.len() * 7);
        let jobs: Vec<&Job> = self.state.jobs().collect();
        let job = random.of(&jobs).map(|job| (*job).clone());
        let mut attached = None;
        let record = match (random.below(if jobs.len() > 40 { 60 } else { 100 }), job) {
            (0..15, Some(job)) => {
                let (attempt, worker) = (Attempt(job.attempt.0 + 1), worker(random));
                let class = match random.below(3) {
                    0 => WorkerClass::Classic,
                    1 => WorkerClass::OneAtATime,
                    _ => WorkerClass::Leasing,
                };
                let at = random.chance(80).then_some(at);
                Record::Assign { at, job: job.id(), run: job.run, attempt, worker, class }
            }
            (15..30, Some(job)) => {
                self.results += 1;
                let result = ResultId(self.results);
                attached = Some(attach(random, payload_bytes / 2, 1));
                let (worker, ok) = (worker(random), random.chance(80));
                Record::Ack { at, job: job.id(), run: job.run, worker, result, ok }
            }
            (30..36, Some(job)) => {
                let (why, counts) = (WHY[random.below(4) as usize], random.chance(50));
                let (job, run, attempt) = (job.id(), job.run, job.attempt);
                let not_before = at;
                let at = random.chance(80).then_some(at);
                Record::Requeue { at, job, run, attempt, why, counts, not_before }
            }
            (36..40, Some(job)) => {
                let why = WHY[random.below(4) as usize];
                Record::Dlq { at, job: job.id(), run: job.run, attempt: job.attempt, why }
            }
            (40..42, Some(job)) => {
                Record::Cancel { at, job: job.id(), run: job.run, by: "an operator".into() }
            }
            (42..44, Some(job)) => Record::Withdraw { job: job.id(), run: job.run },
            (44..46, Some(job)) => {
                Record::Fail { at, job: job.id(), run: job.run, why: "no input".into() }
            }
            (46..48, Some(job)) => Record::Orphan { at, job: job.id(), run: job.run },
            (48..50, Some(job)) => Record::Revive { job: job.id(), run: job.run },
            (50..52, Some(job)) => Record::DropInputs { job: job.id(), run: job.run },
            (52..56, Some(job)) => Record::Forget { job: job.id(), run: job.run },
            (56..58, Some(job)) => Record::Delivered { job: job.id(), run: job.run },
            (58, _) => {
                Record::Cap { client: client(random), cap: u32::try_from(random.below(9)).unwrap() }
            }
            (draw @ (59 | 68..73), _) => {
                let (cache, version) = (cache(random), Uuid::from_u128(u128::from(random.next())));
                let known = self.state.dataset(&cache).map(|dataset| dataset.version);
                match known.filter(|_| draw == 59) {
                    Some(version) => Record::DatasetGone { cache, version },
                    None => Record::Dataset { dataset: dataset(random, cache, version, at).into() },
                }
            }
            (73..76, Some(job)) => {
                let version = Uuid::from_u128(u128::from(random.next()));
                let dataset = dataset(random, CacheId::of_inputs(job.id()), version, at).into();
                Record::Stage { job: job.id(), dataset }
            }
            (76..78, Some(_)) if self.state.staged_datasets().next().is_some() => {
                let cache =
                    self.state.staged_datasets().map(|(_, cache)| cache.clone()).last().unwrap();
                let version = self.state.dataset(&cache).unwrap().version;
                Record::DatasetGone { cache, version }
            }
            // With members a leader on its own would not start.
            (99, _) => match random.below(4) {
                0 => Record::Term { term: Term(self.state.cluster().term.0 + 2) },
                1 => Record::Level { level: LEVEL_MAX },
                2 => Record::Mark { id: Uuid::from_u128(u128::from(random.next())) },
                _ => Record::Office { leader: Node(random.below(3) as u32), at },
            },
            // One that was announced is taken.
            (60..68, Some(job)) if job.is_announced() => Record::Enqueue {
                at,
                job: job.submission.clone(),
                children: Vec::new(),
                kept: random.chance(50),
            },
            (draw, _) => {
                self.jobs += 1;
                let id =
                    JobId(Uuid::from_u128(self.jobs << 64 | u128::from(mix(self.jobs as u64))));
                let exec = EXECS[random.below(3) as usize];
                let job = Submission {
                    job: id,
                    client: client(random),
                    key: routing_key(exec, None).unwrap(),
                    exec: exec.into(),
                    priority: 3 - random.below(7) as i64,
                    to_all: draw % 10 == 0,
                    size: random.below(1 << 40),
                    fingerprint: [draw as u8; 32],
                    inputs: if draw % 3 == 1 { Inputs::Expected } else { Inputs::Here },
                    needs_transfers: random.chance(20),
                    require_worker: false,
                    names: FileNames::Plain,
                    tag: random.chance(30).then(|| "night".into()),
                    datasets: (0..random.below(6).saturating_sub(3))
                        .map(|_| cache(random))
                        .collect(),
                };
                attached = Some(attach(random, payload_bytes, draw % 3));
                match job.inputs {
                    Inputs::Expected => Record::Announce { at, job },
                    Inputs::Here => {
                        let count = if job.to_all { 1 + random.below(3) } else { 0 };
                        let child = |number: u64| {
                            Uuid::from_u128(u128::from(number + 1) << 100 | self.jobs)
                        };
                        let children = (0..count)
                            .map(|number| (JobId(child(number)), worker(random)))
                            .collect();
                        Record::Enqueue { at, job, children, kept: true }
                    }
                }
            }
        };
        let sync = (record.is_synced_first() && !random.chance(self.lazy)) || random.chance(5);
        self.state.apply(&record);
        self.all.push(Proposed { record, attached, sync });
        self.all.last().unwrap()
    }
}

fn cache(random: &mut Random) -> CacheId {
    CacheId::parse(CACHES[random.below(4) as usize]).unwrap()
}

fn dataset(random: &mut Random, cache: CacheId, version: Uuid, at: Micros) -> Dataset {
    let packs = (0..random.below(4)).map(|_| Uuid::from_u128(u128::from(random.next()))).collect();
    Dataset {
        cache,
        version,
        digest: [random.below(256) as u8; 32],
        bytes: random.below(1 << 40),
        files: random.below(1000) as u32,
        target: if random.chance(50) { "none".into() } else { "job.assign.*".into() },
        packs,
        at,
    }
}

fn client(random: &mut Random) -> ClientId {
    CLIENTS[random.below(3) as usize].into()
}

fn worker(random: &mut Random) -> WorkerId {
    WorkerId(Uuid::from_u128(u128::from(random.below(4)) + 1))
}

/// A payload. Some hold what looks like a group of the log.
fn attach(random: &mut Random, bytes_max: usize, blobs: u64) -> Attached {
    let len = random.below(bytes_max as u64 + 1) as usize;
    let mut payload = random.bytes(len);
    if random.chance(20) {
        for at in (0..payload.len().saturating_sub(40)).step_by(64) {
            payload[at..at + 4].copy_from_slice(b"heft");
            payload[at + 4..at + 12].copy_from_slice(&[0, 0, 0, 8, 1, 2, 3, 4]);
        }
    }
    let blobs = (0..blobs).map(|_| Uuid::from_u128(u128::from(random.next()))).collect();
    Attached { from_ours: random.chance(50), blobs, payload: payload.into() }
}
