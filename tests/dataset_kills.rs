//! Puts that are interrupted: the client, the leader, workers, one or two of them, are killed with
//! -9 at random moments while a dataset or its next version is put; what was killed comes back and
//! the dataset is put again. In the end every worker shows exactly its files, and leader and
//! workers find nothing wrong with it. All the while somebody looks at what is visible under each
//! CacheId: it is always one of the versions that were put, whole, never an older one than the last
//! that was acknowledged, and never one that the leader would not know after a restart.
//!
//! `HEFT_TEST_SCALE=long` does it 200 times. `HEFT_CRASH_SEED` replays the choices of a run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "support/caches.rs"]
mod caches;
#[path = "support/datasets.rs"]
mod datasets;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};

use caches::{Files, Holder, Prints, dataset_ok, prints, see, start_put, until, write_files};
use chunking::Kind;
use datasets::Dataset;
use noise::noise;
use procs::{Leader, Proc, TempDir};
use raw::Raw;
use serde_json::{Value, json};
use support::scaled;
use uuid::Uuid;

const WORKERS: usize = 3;

/// Datasets that are kept at a time; then one is removed.
const DATASETS_KEPT: usize = 5;

/// Times that a put may fail before the test does.
const TRIES: u32 = 8;

/// Looks at all bytes of what is visible before it is looked at less often.
const LOOKS_AT_FIRST: u32 = 3;

/// From then on all bytes are read once in so many looks.
const LOOKS_BETWEEN: u32 = 60;

/// Numbers that look random, the same for the same seed.
struct Seeded(u64);

impl Seeded {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(1);
        heft::core::retry::mix(self.0) % limit
    }

    fn index(&mut self, limit: usize) -> usize {
        usize::try_from(self.below(limit as u64)).unwrap()
    }

    fn bytes(&mut self, len: usize) -> Vec<u8> {
        noise(len, self.below(u64::MAX))
    }

    fn millis(&mut self, below: u64) -> Duration {
        Duration::from_millis(self.below(below))
    }
}

// --- what is visible

/// What may be visible.
#[derive(Default)]
struct May {
    /// The versions of each dataset that were ever put, the first first.
    versions: BTreeMap<String, Vec<Prints>>,
    /// The version of each that every worker had when its put was over: older ones must not be seen
    /// any more.
    least: BTreeMap<String, usize>,
    /// What was seen.
    seen: BTreeSet<(String, usize)>,
}

#[derive(Default)]
struct Watch {
    may: Mutex<May>,
    over: AtomicBool,
    looks: AtomicU64,
    /// Datasets that were replaced or taken away between the first look and the last.
    raced: AtomicU64,
}

impl Watch {
    /// A version is about to be put. Gives its number.
    fn about_to_put(&self, id: &str, files: Prints) -> usize {
        let mut may = self.may.lock().unwrap();
        let versions = may.versions.entry(id.to_owned()).or_default();
        versions.push(files);
        versions.len() - 1
    }

    /// Every worker has this one.
    fn acknowledged(&self, id: &str, version: usize) {
        self.may.lock().unwrap().least.insert(id.to_owned(), version);
    }

    fn has_seen(&self, id: &str, version: usize) -> bool {
        self.may.lock().unwrap().seen.contains(&(id.to_owned(), version))
    }

    /// Looks at one dataset, as far as it is visible.
    fn look(&self, dir: &Path, id: &str) {
        let least = self.may.lock().unwrap().least.get(id).copied();
        let Some(seen) = see(dir, id) else { return };
        self.looks.fetch_add(1, Ordering::Relaxed);
        let mut may = self.may.lock().unwrap();
        let versions = &may.versions[id];
        let is_part = |version: &Prints| {
            seen.files.iter().all(|(name, print)| version.get(name) == Some(print))
        };
        match versions.iter().rposition(|version| *version == seen.files) {
            Some(version) => {
                assert!(
                    !seen.stayed || least.is_none_or(|least| version >= least),
                    "{}/{id} shows version {version} after {least:?} was acknowledged",
                    dir.display()
                );
                may.seen.insert((id.to_owned(), version));
            }
            None if seen.stayed => {
                let like: Vec<Vec<&String>> = versions
                    .iter()
                    .map(|version| {
                        let differs = |(name, print): &(&String, &[u8; 32])| {
                            version.get(*name) != Some(*print)
                        };
                        seen.files.iter().filter(differs).map(|(name, _)| name).collect()
                    })
                    .collect();
                panic!(
                    "{}/{id} shows {:?}, which is none of the {} versions that were put; what differs from each: {like:?}",
                    dir.display(),
                    seen.files.keys(),
                    versions.len()
                );
            }
            None => {
                self.raced.fetch_add(1, Ordering::Relaxed);
                assert!(
                    versions.iter().any(is_part),
                    "{}/{id} shows a mix: {:?}",
                    dir.display(),
                    seen.files
                );
            }
        }
    }

    fn run(&self, dir: &Path) {
        let mut looked: HashMap<(String, PathBuf), u32> = HashMap::new();
        while !self.over.load(Ordering::Relaxed) {
            let ids: Vec<String> = self.may.lock().unwrap().versions.keys().cloned().collect();
            for id in ids {
                let Ok(link) = fs::read_link(dir.join(&id)) else { continue };
                let times = looked.entry((id.clone(), link)).or_default();
                *times += 1;
                if *times <= LOOKS_AT_FIRST || times.is_multiple_of(LOOKS_BETWEEN) {
                    self.look(dir, &id);
                }
            }
            sleep(Duration::from_millis(2));
        }
    }
}

// --- what is put

/// A dataset as it was last put.
struct Kept {
    id: String,
    files: Files,
}

fn new_dataset(random: &mut Seeded) -> Files {
    let bytes = match random.below(10) {
        0 => random.below(64 << 10),
        1..7 => (1 << 20) + random.below(5 << 20),
        7..9 => (6 << 20) + random.below(6 << 20),
        _ => (12 << 20) + random.below(12 << 20),
    };
    let mut left = usize::try_from(bytes).unwrap();
    let mut files = Files::from([("empty".to_owned(), Vec::new())]);
    for number in 0..1 + random.below(5) {
        let part = left / (1 + random.index(3));
        left -= part;
        files.insert(name_of(random, number), random.bytes(part));
    }
    files.insert("last.bin".to_owned(), random.bytes(left));
    files
}

fn name_of(random: &mut Seeded, number: u64) -> String {
    match random.below(3) {
        0 => format!("f{number}.bin"),
        1 => format!("sub/f{number}.bin"),
        _ => format!("sub/deep/f{number}.bin"),
    }
}

/// The next version of a dataset.
fn change(random: &mut Seeded, files: &mut Files, round: u32) {
    for nth in 0..1 + random.below(3) {
        let names: Vec<String> = files.keys().cloned().collect();
        let name = &names[random.index(names.len())];
        let len = files[name].len();
        match random.below(6) {
            // Overwritten.
            0 | 1 if len > 1 => {
                let run = (1 + random.index(300_000)).min(len);
                let at = random.index(len - run + 1);
                let bytes = random.bytes(run);
                files.get_mut(name).unwrap()[at..at + run].copy_from_slice(&bytes);
            }
            2 if len > 0 => {
                let (at, bytes) = (random.index(len), random.bytes(100));
                files.get_mut(name).unwrap().splice(at..at, bytes);
            }
            3 => {
                let len = random.index(400_000);
                let bytes = random.bytes(len);
                files.get_mut(name).unwrap().extend(bytes);
            }
            4 if names.len() > 2 => drop(files.remove(name)),
            _ => {
                let len = random.index(2 << 20);
                files.insert(format!("more/r{round}-{nth}.bin"), random.bytes(len));
            }
        }
    }
    // Never what it was before, whatever was chosen.
    files.insert("version".to_owned(), format!("{round}").into_bytes());
}

// --- who is killed, and when

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Victim {
    Client,
    Leader,
    Worker(usize),
}

impl Victim {
    fn any(random: &mut Seeded) -> Victim {
        match random.below(3) {
            0 => Victim::Client,
            1 => Victim::Leader,
            _ => Victim::Worker(random.index(WORKERS)),
        }
    }

    /// One, or two of them.
    fn some(random: &mut Seeded) -> Vec<Victim> {
        let mut victims = vec![Victim::any(random)];
        while random.below(3) == 0 && victims.len() < 2 {
            let other = Victim::any(random);
            if !victims.contains(&other) {
                victims.push(other);
            }
        }
        victims
    }

    fn name(self) -> &'static str {
        match self {
            Victim::Client => "client",
            Victim::Leader => "leader",
            Victim::Worker(_) => "worker",
        }
    }
}

/// When it happens.
#[derive(Clone, Copy, Debug)]
enum When {
    /// After so long.
    After(Duration),
    /// When the leader has received this share of what lacks, in percent.
    Received(u64),
    /// When a worker has files of the dataset that are not visible, and so long after that.
    Staged(Duration),
    /// When the leader keeps it and not all workers show it.
    Kept(Duration),
}

impl When {
    fn any(random: &mut Seeded, span: Duration) -> When {
        match random.below(8) {
            0..3 => When::After(span.mul_f64(random.below(1000) as f64 / 1000.0)),
            3..5 => When::Received(random.below(100)),
            5 | 6 => When::Staged(random.millis(80)),
            _ => When::Kept(random.millis(20)),
        }
    }
}

/// What the leader says of a put.
#[derive(Clone, Copy, Debug, Default)]
struct Told {
    known: bool,
    kept: bool,
    received: u64,
    lacking: u64,
}

/// Asks the leader; `None` if it is gone.
fn ask(raw: &mut Raw, id: &str, digest: &str) -> Option<Told> {
    raw.send(Kind::Ask, Uuid::from_u128(7), Uuid::nil(), "dataset.ls", b"\x01{}");
    let answer = loop {
        let frame = raw.next()?;
        if frame.kind == Kind::Answer {
            break frame;
        }
    };
    let listed: Value = serde_json::from_slice(&answer.payload[2..]).unwrap();
    let datasets = listed["sets"].as_array().unwrap();
    let kept =
        datasets.iter().any(|dataset| dataset["cache_id"] == id && dataset["digest"] == digest);
    let put = listed["puts"].as_array().unwrap().iter().find(|put| put["cache_id"] == id);
    Some(Told {
        known: put.is_some(),
        kept,
        received: put.map_or(0, |put| put["received"].as_u64().unwrap()),
        lacking: put.map_or(0, |put| put["lacking"].as_u64().unwrap()),
    })
}

/// How far the put was.
fn stage(told: Told, has_ended: bool) -> &'static str {
    match told {
        _ if has_ended => "it was over",
        Told { kept: true, .. } => "the leader kept it, workers got it",
        Told { known: false, .. } => "the leader did not know of it",
        Told { lacking: 0, .. } => "its manifest came",
        Told { .. } => "its pieces came",
    }
}

struct World {
    leader: Leader,
    workers: Vec<Holder>,
    data: TempDir,
    sources: TempDir,
    watch: Arc<Watch>,
    watchers: Vec<JoinHandle<()>>,
    counts: BTreeMap<(String, &'static str), u32>,
    tries: u32,
    went_on: u32,
    /// What leaders lacked when puts began, what they received, and what they received more than
    /// they lacked.
    lacked: u64,
    received: u64,
    again: u64,
    /// How long a put takes, about.
    span: Duration,
}

fn leader_args(data: &TempDir) -> [&str; 6] {
    // Small segments, so that snapshots are made and old segments cut all the time.
    ["--durability", "disk", "--log-segment", "256KiB", "--data", data.text()]
}

impl World {
    fn start() -> World {
        let (data, watch) = (TempDir::new(), Arc::<Watch>::default());
        let leader = Leader::start(&leader_args(&data));
        let workers: Vec<Holder> = (1..=WORKERS as u128)
            .map(|number| Holder::start(leader.port, number, &[], &[]))
            .collect();
        let watchers = workers
            .iter()
            .map(|worker| {
                let (watch, dir) = (watch.clone(), worker.cache());
                std::thread::spawn(move || watch.run(&dir))
            })
            .collect();
        World {
            leader,
            workers,
            data,
            sources: TempDir::new(),
            watch,
            watchers,
            counts: BTreeMap::new(),
            tries: 0,
            went_on: 0,
            lacked: 0,
            received: 0,
            again: 0,
            span: Duration::from_millis(400),
        }
    }

    fn addr(&self) -> String {
        self.leader.addr()
    }

    fn restart_leader(&mut self) {
        self.leader.proc.kill();
        self.leader = Leader::start_on(self.leader.port, &leader_args(&self.data));
    }

    /// If somebody saw what must not be, says so.
    fn check_watchers(&mut self) {
        if self.watchers.iter().any(JoinHandle::is_finished) {
            self.watch.over.store(true, Ordering::Relaxed);
            self.watchers
                .drain(..)
                .for_each(|watcher| watcher.join().expect("nothing wrong is visible"));
        }
    }

    /// Waits for the moment. Gives what the leader said last, the most that it lacked, and whether
    /// the put had ended.
    fn await_moment(
        &mut self,
        put: &mut Proc,
        when: When,
        id: &str,
        digest: &str,
    ) -> (Told, u64, bool) {
        let mut raw = Raw::client(&self.leader, "watcher");
        let before: Vec<Vec<String>> =
            self.workers.iter().map(|worker| worker.own("staging")).collect();
        let (start, mut lacked, mut since) = (Instant::now(), 0, None::<Instant>);
        loop {
            let told = ask(&mut raw, id, digest).expect("the leader lives");
            lacked = lacked.max(told.lacking);
            if put.has_ended() {
                return (told, lacked, true);
            }
            let is_staged = || {
                self.workers.iter().zip(&before).any(|(worker, was)| worker.own("staging") != *was)
            };
            let (begun, then) = match when {
                When::After(delay) => (true, start + delay),
                When::Received(share) => {
                    (lacked > 0 && told.received * 100 >= lacked * share, start)
                }
                When::Staged(delay) => {
                    if since.is_none() && is_staged() {
                        since = Some(Instant::now());
                    }
                    (since.is_some(), since.unwrap_or(start) + delay)
                }
                When::Kept(delay) => {
                    if told.kept {
                        since.get_or_insert_with(Instant::now);
                    }
                    (since.is_some(), since.unwrap_or(start) + delay)
                }
            };
            if begun && Instant::now() >= then {
                return (told, lacked, false);
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// Kills, and lets come back.
    fn interrupt(&mut self, random: &mut Seeded, victims: &[Victim], put: &mut Proc) {
        for victim in victims {
            match victim {
                Victim::Client => put.kill(),
                Victim::Leader => self.leader.proc.kill(),
                Victim::Worker(worker) => self.workers[*worker].proc.kill(),
            }
            if random.below(2) == 0 {
                sleep(random.millis(30));
            }
        }
        for victim in victims.iter().rev() {
            if random.below(2) == 0 {
                sleep(random.millis(120));
            }
            match victim {
                Victim::Client => {}
                Victim::Leader => self.restart_leader(),
                Victim::Worker(worker) => self.workers[*worker].start_again(),
            }
        }
    }

    /// One put that is interrupted, and put again until it is over.
    fn round(&mut self, random: &mut Seeded, id: &str, files: &Files) {
        let source = self.sources.join(id);
        write_files(&source, files);
        let named: Vec<(&str, &[u8])> =
            files.iter().map(|(name, bytes)| (name.as_str(), &bytes[..])).collect();
        let digest = Dataset::of(&named).manifest.digest().to_string();
        let version = self.watch.about_to_put(id, prints(files));
        let (victims, when) = (Victim::some(random), When::any(random, self.span));
        let args = ["--replace"];
        let mut put = start_put(&self.addr(), id, &source, &args);
        let (told, lacked, had_ended) = self.await_moment(&mut put, when, id, &digest);
        let stage = stage(told, had_ended);
        if let When::After(_) = when {
            // Moments are to be those when something happens.
            self.span = self
                .span
                .mul_f64(if had_ended { 0.85 } else { 1.1 })
                .max(Duration::from_millis(150));
        }
        self.interrupt(random, &victims, &mut put);
        let mut names: Vec<&str> = victims.iter().map(|victim| victim.name()).collect();
        names.sort_unstable();
        *self.counts.entry((names.join(" and "), stage)).or_default() += 1;
        // What a worker shows is kept by the leader, whatever happened to it.
        if self.watch.has_seen(id, version) {
            let mut raw = Raw::client(&self.leader, "watcher");
            let told = ask(&mut raw, id, &digest).unwrap();
            assert!(
                told.kept,
                "{id} version {version} was visible, and the leader does not keep it"
            );
        }
        let mut running = (!victims.contains(&Victim::Client) || had_ended).then_some(put);
        self.went_on += u32::from(running.is_some());
        let mut tries = 0;
        let report = loop {
            let put = running.take().unwrap_or_else(|| {
                self.tries += 1;
                start_put(&self.addr(), id, &source, &args)
            });
            let (code, lines) = put.finish();
            let report: Value = serde_json::from_str(&lines.join("\n")).unwrap_or(Value::Null);
            if code == Some(0) {
                break report;
            }
            tries += 1;
            println!("{id}: after {victims:?} when {stage}, a put ended with {code:?}: {report:#}");
            assert!(tries < TRIES, "{id} cannot be put");
            self.check_watchers();
        };
        assert_eq!(report["digest"], digest, "{report:#}");
        let received = report["received"].as_u64().unwrap();
        if lacked > 0 && !had_ended {
            // A put that lost neither its client nor its leader counts from its beginning.
            let goes_on = !victims.contains(&Victim::Client) && !victims.contains(&Victim::Leader);
            let before = if told.kept { lacked } else { told.received };
            let all = if goes_on { received } else { before + received };
            self.lacked += lacked;
            self.received += all;
            self.again += all.saturating_sub(lacked);
        }
        self.check(id, files, &digest, version);
    }

    /// All workers have it, and it is right.
    fn check(&mut self, id: &str, files: &Files, digest: &str, version: usize) {
        let (addr, right) = (self.addr(), prints(files));
        let mut status = Value::Null;
        until("all workers have it", || {
            status = dataset_ok(&addr, &["status", id]);
            let states = status["workers"].as_array().unwrap();
            let held = states.iter().filter(|worker| worker["state"] == "held").count();
            if held == WORKERS { Ok(()) } else { Err(format!("{:#}", status["workers"])) }
        });
        assert_eq!(status["digest"], digest);
        for worker in &self.workers {
            let seen = see(&worker.cache(), id).expect("it is visible");
            assert!(seen.files == right, "{id} at {}: {:?}", worker.id, seen.files.keys());
        }
        self.watch.acknowledged(id, version);
        let verified = dataset_ok(&addr, &["verify", id]);
        assert_eq!(verified["packs_bad"], json!([]), "{verified:#}");
        let workers = verified["workers"].as_array().unwrap();
        assert_eq!(workers.len(), WORKERS, "{verified:#}");
        assert!(workers.iter().all(|worker| worker["status"] == "OK"), "{verified:#}");
        self.check_watchers();
    }

    /// Removes a dataset, with a leader or a worker that is killed or not.
    fn remove(&mut self, random: &mut Seeded, id: &str) {
        dataset_ok(&self.addr(), &["rm", id]);
        match random.below(6) {
            0 => self.restart_leader(),
            1 => self.workers[0].start_again(),
            _ => {}
        }
    }

    /// What is left when nothing is put any more.
    fn end(&mut self, kept: &[Kept]) {
        for worker in &self.workers {
            until("a worker has what it needs and no more", || {
                let mut ids: Vec<&str> = kept.iter().map(|kept| kept.id.as_str()).collect();
                ids.sort_unstable();
                let mut links: Vec<String> = ids
                    .iter()
                    .filter_map(|id| fs::read_link(worker.cache().join(id)).ok())
                    .flat_map(|link| {
                        let name = link.file_name().unwrap().to_str().unwrap().to_owned();
                        [format!("{name}.manifest"), format!("{name}.id"), name]
                    })
                    .collect();
                links.sort();
                let expected = [&[".heft"], &ids[..]].concat();
                let (entries, datasets) = (worker.entries(), worker.own("sets"));
                let (staging, trash) = (worker.own("staging"), worker.own("trash"));
                let unsynced = worker.own("unsynced");
                let is_so = entries == expected
                    && datasets == links
                    && staging.is_empty()
                    && trash.is_empty()
                    && unsynced.is_empty();
                let found = format!(
                    "worker {}: {entries:?}, datasets {datasets:?}, staging {staging:?}, trash {trash:?}, unsynced {unsynced:?}",
                    worker.id
                );
                if is_so { Ok(()) } else { Err(found) }
            });
        }
        for kept in kept {
            dataset_ok(&self.addr(), &["rm", &kept.id]);
        }
        for worker in &self.workers {
            until("the workers' disks are free", || {
                let found = [
                    worker.entries(),
                    worker.own("sets"),
                    worker.own("staging"),
                    worker.own("trash"),
                ];
                let is_so = found[0] == [".heft"] && found[1..].iter().all(Vec::is_empty);
                if is_so { Ok(()) } else { Err(format!("worker {}: {found:?}", worker.id)) }
            });
        }
        let (code, out, err) = procs::heft(&["blob", &self.addr(), "gc"]);
        assert_eq!(code, Some(0), "{out}{err}");
        until("the leader has no blobs", || {
            let (_, out, _) = procs::heft(&["status", &self.addr(), "--output", "json"]);
            let status: Value = serde_json::from_str(&out).unwrap();
            let files = ["spool", "blobs"].map(|dir| fs::read_dir(self.data.join(dir)));
            let files: Vec<String> = files
                .into_iter()
                .flatten()
                .flatten()
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| !name.starts_with("free-"))
                .collect();
            let blobs = &status["leader"]["blobs"];
            if *blobs == 0 && files.is_empty() {
                Ok(())
            } else {
                Err(format!("{blobs} blobs, files {files:?}"))
            }
        });
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Before the directories go that they look at.
        self.watch.over.store(true, Ordering::Relaxed);
        self.watchers.drain(..).for_each(|watcher| drop(watcher.join()));
    }
}

#[test]
fn an_interrupted_put_goes_on_and_nothing_half_written_is_ever_visible() {
    let seed = std::env::var("HEFT_CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0 >> 16);
    println!("HEFT_CRASH_SEED={seed}");
    let mut random = Seeded(seed);
    let mut world = World::start();
    let mut kept: Vec<Kept> = Vec::new();
    let (rounds, start) = (scaled(20, 200), Instant::now());
    for round in 0..rounds {
        let at = match random.below(2) {
            0 if !kept.is_empty() => {
                let at = random.index(kept.len());
                change(&mut random, &mut kept[at].files, round);
                at
            }
            _ => {
                let files = new_dataset(&mut random);
                kept.push(Kept { id: format!("set-{round}"), files });
                kept.len() - 1
            }
        };
        world.round(&mut random, &kept[at].id, &kept[at].files);
        if kept.len() > DATASETS_KEPT {
            let gone = kept.remove(random.index(DATASETS_KEPT));
            world.remove(&mut random, &gone.id);
        }
    }
    println!("{rounds} rounds in {:?}", start.elapsed());
    for ((victims, stage), count) in &world.counts {
        println!("{count:4} x {victims} killed when {stage}");
    }
    let (looks, raced) =
        (world.watch.looks.load(Ordering::Relaxed), world.watch.raced.load(Ordering::Relaxed));
    println!(
        "{} puts went on by themselves, {} were given again; {looks} looks at visible datasets, {raced} while they were replaced",
        world.went_on, world.tries
    );
    println!(
        "of interrupted uploads leaders lacked {} bytes and received {}: {} came again",
        world.lacked, world.received, world.again
    );
    let seen = world.watch.may.lock().unwrap().seen.len();
    println!("{seen} versions were seen");
    world.end(&kept);
    world.watch.over.store(true, Ordering::Relaxed);
    world.watchers.drain(..).for_each(|watcher| watcher.join().expect("nothing wrong is visible"));
}
