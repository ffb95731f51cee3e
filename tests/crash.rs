//! The crash matrix: a leader that is killed with -9 at random moments while clients bring jobs of
//! 1 KiB to many MiB, and take results of any size. Workers and clients are in the test's own
//! process and come back within milliseconds, so that a leader that lives for half a second is busy
//! all the time. Every acknowledged job ends with exactly one visible result and the right bytes;
//! of one that was not acknowledged nothing is half there; and when all is over no file is left
//! that nothing refers to.
//!
//! `HEFT_TEST_SCALE=long` kills 300 times, and sends up to 64 MiB. `HEFT_CRASH_SEED` replays the
//! choices of a run.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub
)]

#[path = "support/blobs.rs"]
mod blobs;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "transfers/world.rs"]
#[allow(dead_code)]
mod world;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use chunking::message::Purpose;
use chunking::{DigestKind, Kind};
use heft::client::{Client, Downloads, JobEvent, JobSpec, Options};
use heft::core::retry::Backoff;
use heft::model::{JobRequest, JobResult, JobStatus, JsonModel};
use heft::worker::{Content, Job, JobContext, Worker, WorkerConfig};
use raw::Raw;
use support::scaled;
use uuid::Uuid;
use world::{MIB, Seeded, World};

/// Peers are back at once.
const QUICK: Backoff =
    Backoff { first: Duration::from_millis(5), max: Duration::from_millis(40), jitter_percent: 20 };

/// Clients that wait for their results.
const KEEPERS: u64 = 3;

/// Clients that leave as soon as their job is acknowledged, or before.
const LEAVERS: u64 = 2;

/// A job's input: mostly small, now and then large.
fn input(random: &mut Seeded, noise: &Bytes) -> Bytes {
    let (from, to) = match random.below(100) {
        0..60 => (1 << 10, 64 << 10),
        60..85 => (64 << 10, 2 * MIB),
        85..97 => (4 * MIB, 12 * MIB),
        _ => (12 * MIB, scaled(24, 64) as usize * MIB),
    };
    let len = from + usize::try_from(random.below((to - from) as u64 + 1)).unwrap();
    let start = usize::try_from(random.below((noise.len() - len) as u64 + 1)).unwrap();
    noise.slice(start..start + len)
}

/// What `digests` says of it.
fn expected(input: &Bytes) -> String {
    let digest = blobs::digest(input, DigestKind::Sha256);
    format!("in.bin {}\n", chunking::digest::to_hex(&digest.bytes))
}

fn digests(job: Uuid, input: &Bytes) -> JobSpec {
    let request =
        JobRequest { job_id: job, exec_name: "digests".to_owned(), ..JobRequest::default() };
    JobSpec::from(request).bytes("in.bin", input.clone())
}

/// Jobs of clients that left, with what they should say.
#[derive(Default)]
struct Left {
    acknowledged: BTreeMap<Uuid, String>,
    not: BTreeMap<Uuid, String>,
    /// Whose they are.
    clients: BTreeSet<String>,
}

#[derive(Clone)]
struct Load {
    addr: String,
    noise: Bytes,
    over: Arc<AtomicBool>,
    left: Arc<Mutex<Left>>,
}

impl Load {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// One job behind the other, each with its result. Gives how many.
    async fn keep(self, number: u64, seed: u64) -> u64 {
        let mut random = Seeded(seed);
        let out = procs::TempDir::new();
        let downloads = Downloads::Directory(out.0.clone());
        let options =
            Options { downloads, backoff: QUICK, ..Options::new(format!("keeper-{number}")) };
        let client = Client::connect(&self.addr, &options).await.unwrap();
        let mut jobs = 0;
        while !self.is_over() {
            jobs += 1;
            if random.below(5) == 0 {
                self.make(&client, &mut random).await;
                continue;
            }
            let (job, input) = (Uuid::new_v4(), input(&mut random, &self.noise));
            let result = client.submit(digests(job, &input)).await.unwrap().wait().await.unwrap();
            assert_eq!(result.status, JobStatus::Ok, "{job}: {}", result.stderr);
            assert_eq!(result.stdout, expected(&input), "{job}");
        }
        client.close().await;
        jobs
    }

    /// A job with a large result.
    async fn make(&self, client: &Client, random: &mut Seeded) {
        let bytes = 4 * MIB as u64 + random.below(u64::from(scaled(8, 40)) * MIB as u64);
        let request = JobRequest {
            job_id: Uuid::new_v4(),
            exec_name: "makes".to_owned(),
            args: vec![bytes.to_string()],
            ..JobRequest::default()
        };
        let finished = client.submit(request).await.unwrap().finish().await.unwrap();
        let result = finished.result().unwrap();
        assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
        assert!(
            finished.missing.is_empty(),
            "{:?}",
            finished.missing.iter().map(|gone| &gone.why).collect::<Vec<_>>()
        );
        let path = finished
            .part(Purpose::Archive)
            .and_then(|part| part.path())
            .expect("an archive")
            .to_owned();
        let made = Bytes::from(std::fs::read(&path).unwrap());
        assert!(
            made.len() as u64 == bytes && result.stdout == expected(&made),
            "{}",
            result.stdout
        );
    }

    /// Clients that come, submit a job and go: most when they have heard that it is taken, some
    /// before.
    async fn leave(self, number: u64, seed: u64) {
        let mut random = Seeded(seed);
        let mut turn = 0;
        while !self.is_over() {
            turn += 1;
            let name = format!("leaver-{number}-{}", turn % 3);
            let options = Options { backoff: QUICK, ..Options::new(name.clone()) };
            let client = Client::connect(&self.addr, &options).await.unwrap();
            let (job, input) = (Uuid::new_v4(), input(&mut random, &self.noise));
            let mut handle = client.submit(digests(job, &input)).await.unwrap();
            let patience = match random.below(4) {
                0 => Duration::from_millis(random.below(60)),
                _ => procs::PATIENCE,
            };
            let heard = tokio::time::timeout(patience, async {
                while let Some(event) = handle.event().await {
                    if matches!(event, JobEvent::Submitted { .. }) {
                        return true;
                    }
                }
                // It has ended: with its result, which is more than an acknowledgement.
                handle.wait().await.is_ok_and(|result| result.status == JobStatus::Ok)
            });
            let is_acknowledged = heard.await.unwrap_or(false);
            assert!(is_acknowledged || patience < procs::PATIENCE, "{job} was never acknowledged");
            {
                let mut left = self.left.lock().unwrap();
                left.clients.insert(name);
                let jobs = if is_acknowledged { &mut left.acknowledged } else { &mut left.not };
                jobs.insert(job, expected(&input));
            }
            drop((handle, client));
            tokio::time::sleep(Duration::from_millis(random.below(30))).await;
        }
    }
}

/// Says what its input hashes to (`digests`), or makes as many bytes as it is told (`makes`) and
/// says what those hash to.
fn run_jobs(
    addr: &str,
    noise: Bytes,
    dir: &std::path::Path,
    stop: Arc<AtomicBool>,
) -> std::thread::JoinHandle<()> {
    let config = WorkerConfig {
        parallel_max: 4,
        work_dir: dir.to_owned(),
        reconnect: QUICK,
        ..WorkerConfig::new(addr)
    };
    let run = move |job: Job, context: JobContext| {
        let noise = noise.clone();
        async move {
            let request = job.request.as_ref().unwrap();
            let mut result = job.result(JobStatus::Ok);
            if request.exec_name == "makes" {
                let made = noise.slice(..request.args[0].parse::<usize>().unwrap());
                result.stdout = expected(&made);
                context.attach(Purpose::Archive, Content::Memory(made)).unwrap();
            } else if let Some(content) = &request.files[0].content {
                result.stdout = expected(&Bytes::copy_from_slice(content));
            } else {
                let path = context.directory().await.unwrap().join("in.bin");
                result.stdout = expected(&std::fs::read(path).unwrap().into());
            }
            result
        }
    };
    let worker = Worker::new(config, run).unwrap();
    on_a_thread(async move {
        worker
            .run(async move {
                while !stop.load(Ordering::Relaxed) {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            })
            .await;
    })
}

fn on_a_thread<T: Send + 'static>(
    load: impl Future<Output = T> + Send + 'static,
) -> std::thread::JoinHandle<T> {
    std::thread::spawn(move || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(load)
    })
}

#[test]
fn pe11_a_leader_killed_at_any_moment_loses_nothing_that_it_acknowledged() {
    let seed = std::env::var("HEFT_CRASH_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| Uuid::new_v4().as_u64_pair().0 >> 16);
    println!("HEFT_CRASH_SEED={seed}");
    let mut random = Seeded(seed);
    // Small segments, so that snapshots are made and old segments cut all the time.
    let mut world = World::start(&[
        "--durability",
        "disk",
        "--attempts",
        "1000",
        "--input-wait",
        "3s",
        "--log-segment",
        "256KiB",
        "--worker-grace",
        "500ms",
    ]);
    let load = Load {
        addr: world.addr(),
        noise: blobs::noise(scaled(32, 80) as usize * MIB).into(),
        over: Arc::default(),
        left: Arc::default(),
    };
    let (dirs, stop) =
        ([procs::TempDir::new(), procs::TempDir::new()], Arc::<AtomicBool>::default());
    let workers =
        dirs.each_ref().map(|dir| run_jobs(&load.addr, load.noise.clone(), &dir.0, stop.clone()));
    let keepers: Vec<_> = (0..KEEPERS)
        .map(|number| on_a_thread(load.clone().keep(number, seed ^ (number << 40))))
        .collect();
    let leavers: Vec<_> = (0..LEAVERS)
        .map(|number| on_a_thread(load.clone().leave(number, seed ^ ((number + 9) << 40))))
        .collect();

    let rounds = scaled(10, 300);
    for _ in 0..rounds {
        std::thread::sleep(Duration::from_millis(20 + random.below(600)));
        if keepers.iter().any(|keeper| keeper.is_finished())
            || leavers.iter().any(|leaver| leaver.is_finished())
        {
            break;
        }
        world.restart();
    }
    load.over.store(true, Ordering::Relaxed);
    leavers.into_iter().for_each(|leaver| leaver.join().unwrap());
    let kept: u64 = keepers.into_iter().map(|keeper| keeper.join().unwrap()).sum();

    // All that was acknowledged comes to its end, also what nobody waits for.
    world.until("nothing is under way", |status| {
        status["jobs"]["queued"] == 0
            && status["jobs"]["running"] == 0
            && status["leader"]["buffers_promised"] == 0
    });
    assert_eq!(world.status()["jobs"]["dead"], 0);
    let left = std::mem::take(&mut *load.left.lock().unwrap());
    println!(
        "{rounds} kills; {kept} jobs whose clients waited, {} of clients that left when they were acknowledged, {} before",
        left.acknowledged.len(),
        left.not.len()
    );
    assert!(kept > 0 && !left.acknowledged.is_empty() && (rounds < 100 || !left.not.is_empty()));
    results_are_right_and_come_once(&world, &left);
    nothing_is_left(&world);
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
}

fn results_are_right_and_come_once(world: &World, left: &Left) {
    let addr = world.addr();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let unknown = runtime.block_on(async {
        let client = Client::connect(&addr, &Options::new("")).await.unwrap();
        let mut unknown = BTreeSet::new();
        let all = left.acknowledged.iter().map(|job| (true, job));
        for (is_acknowledged, (job, right)) in all.chain(left.not.iter().map(|job| (false, job))) {
            match client.fetch(*job, &Downloads::None).await {
                Ok(Some(finished)) => {
                    let result = finished.result().unwrap();
                    assert_eq!(result.status, JobStatus::Ok, "{job}: {}", result.stderr);
                    assert_eq!(result.stdout, *right, "{job}");
                }
                Ok(None) => panic!("{job} is there and has no result"),
                Err(error) => {
                    assert!(!is_acknowledged, "{job} was acknowledged: {error}");
                    unknown.insert(*job);
                }
            }
        }
        client.close().await;
        unknown
    });
    // Who comes back under the same name gets what it did not wait for, each result once.
    let mut seen: BTreeMap<Uuid, u32> = BTreeMap::new();
    for client in &left.clients {
        let mut raw = Raw::client(&world.leader, client);
        raw.ask("status", &serde_json::json!({}));
        // What was sent before the answer is here now.
        let mut more = true;
        while more {
            raw.stream.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
            match raw.next() {
                Some(frame) if frame.kind == Kind::Result => {
                    let result = JobResult::parse(&frame.payload).unwrap();
                    *seen.entry(frame.msg_id).or_default() += 1;
                    let right =
                        left.acknowledged.get(&frame.msg_id).or(left.not.get(&frame.msg_id));
                    assert_eq!(Some(&result.stdout), right, "{}", frame.msg_id);
                }
                Some(_) => {}
                None => more = false,
            }
        }
    }
    assert!(seen.values().all(|times| *times == 1), "{seen:?}");
    assert!(!seen.keys().any(|job| unknown.contains(job)));
    println!(
        "{} results came to clients that came back; {} jobs are not known",
        seen.len(),
        unknown.len()
    );
}

/// After collection every file belongs to a blob that the leader knows, and every blob is as it was
/// written.
fn nothing_is_left(world: &World) {
    let (code, out, err) = procs::heft(&["blob", &world.addr(), "gc"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, out, err) = procs::heft(&["blob", &world.addr(), "verify"]);
    assert_eq!(code, Some(0), "{out}{err}");
    let (code, out, err) =
        procs::heft(&["blob", &world.addr(), "ls", "--limit", "1000000", "--output", "json"]);
    assert_eq!(code, Some(0), "{err}");
    let listed: serde_json::Value = serde_json::from_str(&out).unwrap();
    let known: BTreeSet<String> = listed["blobs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|blob| blob["blob"].as_str().unwrap().replace('-', ""))
        .collect();
    world::eventually("no file is left that nothing refers to", || {
        world.blob_files().iter().all(|name| known.contains(name.trim_end_matches(".map")))
    });
    println!("{} blobs are kept with their results", known.len());
}
