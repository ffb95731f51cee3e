//! A fast client beside a crowd that is slow, silent or hostile: leaders with default flags, real
//! connections. What is asserted at ci scale is what came first and how many buffers are in use;
//! `HEFT_TEST_SCALE=long` compares speeds, too.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
mod support;
#[path = "support/uploads.rs"]
mod uploads;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunking::Kind;
use chunking::message::{Grant, Purpose, Reason};
use heft::client::{Client, Downloads, JobSpec, Options};
use heft::model::{JobRequest, JobStatus};
use heft::worker::{Content, Job, JobContext, Worker, WorkerConfig};
use procs::{Leader, TempDir};
use raw::Raw;
use serde_json::json;
use support::scaled;
use uploads::{chunk_frame, next_of, say, upload_to};
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// What a slow line carries in a second.
const SLOW_BYTES_S: u64 = 50_000;

/// What a fast job carries in, or out.
fn fast_bytes() -> usize {
    scaled(3, 48) as usize * MIB
}

/// A crowd that goes on until it is dropped.
struct Crowd {
    stop: Arc<AtomicBool>,
    moved: Arc<AtomicU64>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
    fn new() -> Crowd {
        Crowd { stop: Arc::default(), moved: Arc::default(), threads: Vec::new() }
    }

    /// Bytes that slow lines have carried.
    fn moved(&self) -> u64 {
        self.moved.load(Ordering::Relaxed)
    }

    /// A thread that does something every moment, with the time since it began.
    fn every(
        &mut self,
        pause: Duration,
        mut step: impl FnMut(Duration, &AtomicU64) + Send + 'static,
    ) {
        let (stop, moved, start) = (self.stop.clone(), self.moved.clone(), Instant::now());
        self.threads.push(std::thread::spawn(move || {
            while !stop.load(Ordering::Relaxed) {
                step(start.elapsed(), &moved);
                std::thread::sleep(pause);
            }
        }));
    }

    /// Clients that bring inputs, each over a line that carries 50 KB a second.
    fn slow_senders(&mut self, leader: &Leader, count: usize) {
        let bytes = noise::noise(MIB, 3);
        let mut lines: Vec<SlowSender> =
            (0..count).map(|at| SlowSender::start(leader, at)).collect();
        let frame = move |id: Uuid, index: usize| chunk_frame(id, index, &bytes);
        self.every(Duration::from_millis(20), move |time, moved| {
            lines.iter_mut().for_each(|line| line.step(time, moved, &frame));
        });
    }

    /// Clients that open a transfer, are allowed to send, and do not; with `begun`, they stop after
    /// the first bytes of a chunk.
    fn silent_senders(&mut self, leader: &Leader, count: usize, begun: bool) {
        let bytes = noise::noise(MIB, 4);
        let mut held = Vec::new();
        for at in 0..count {
            let mut raw = Raw::client(leader, &format!("silent-{at}"));
            let (id, grant) = upload_to(&mut raw, Uuid::new_v4(), "nobody", 8 * MIB);
            if begun && grant.window > 0 {
                raw.stream.write_all(&chunk_frame(id, 0, &bytes)[..2000]).unwrap();
            }
            held.push(raw);
        }
        self.every(Duration::from_secs(1), move |_, _| assert!(!held.is_empty()));
    }

    /// One client that opens 40 transfers a second, and sends nothing.
    fn opener(&mut self, leader: &Leader) {
        let mut raw = Raw::client(leader, "opener");
        self.every(Duration::from_millis(25), move |_, _| {
            upload_to(&mut raw, Uuid::new_v4(), "nobody", 8 * MIB);
        });
    }

    /// Workers that take inputs, each over a line that carries 50 KB a second, or, with `silent`,
    /// nothing at all.
    fn slow_receivers(&mut self, leader: &Leader, count: usize, silent: bool) {
        let mut raws: Vec<Raw> = Vec::new();
        for at in 0..count {
            let socket =
                socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
            socket.set_recv_buffer_size(16 << 10).unwrap();
            socket.connect(&leader.addr().parse::<std::net::SocketAddr>().unwrap().into()).unwrap();
            raws.push(
                Raw::on(socket.into())
                    .hello_worker(Uuid::new_v4(), &format!("job.assign.crawl{at}")),
            );
        }
        // A client has a few jobs on their way at a time: here each has one.
        let feeders: Vec<Pair> =
            (0..count).map(|at| Pair::client(leader, &format!("feeder-{at}"))).collect();
        let stop = self.stop.clone();
        self.threads.push(std::thread::spawn(move || {
            for (at, feeder) in feeders.iter().enumerate() {
                feeder.runtime.block_on(async {
                    let request =
                        JobRequest { exec_name: format!("crawl{at}"), ..JobRequest::default() };
                    let bytes = Bytes::from(noise::noise(3 * MIB, at as u64));
                    feeder
                        .client
                        .submit(JobSpec::from(request).bytes("in.bin", bytes))
                        .await
                        .unwrap();
                });
            }
            while !stop.load(Ordering::Relaxed) {
                for feeder in &feeders {
                    feeder
                        .runtime
                        .block_on(async { tokio::time::sleep(Duration::from_millis(1)).await });
                }
            }
        }));
        let mut lines: Vec<TcpStream> = Vec::new();
        for mut raw in raws {
            let opened = next_of(&mut raw, Kind::Open);
            let (reason, text) = (Reason::NONE, "".into());
            let grant = Grant {
                window: 8,
                reason,
                text,
                held: Default::default(),
                part: Default::default(),
            };
            say(&mut raw, opened.msg_id, &grant);
            lines.push(raw.stream);
        }
        let mut read: Vec<u64> = vec![0; lines.len()];
        self.every(Duration::from_millis(20), move |time, moved| {
            let due = if silent { 0 } else { due(time) };
            for (line, read) in lines.iter_mut().zip(&mut read) {
                line.set_nonblocking(true).unwrap();
                let mut piece =
                    vec![0; usize::try_from(due.saturating_sub(*read)).unwrap().min(8192)];
                if let Ok(bytes) = line.read(&mut piece) {
                    *read += bytes as u64;
                    moved.fetch_add(bytes as u64, Ordering::Relaxed);
                }
            }
        });
    }
}

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn due(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap() * SLOW_BYTES_S / 1000
}

/// A client that sends chunks over a slow line as it is allowed to.
struct SlowSender {
    stream: TcpStream,
    decoder: chunking::Decoder,
    buffer: Vec<u8>,
    id: Uuid,
    window: u32,
    next: usize,
    out: Vec<u8>,
    sent: u64,
}

impl SlowSender {
    fn start(leader: &Leader, at: usize) -> SlowSender {
        let mut raw = Raw::client(leader, &format!("slow-{at}"));
        let (id, grant) = upload_to(&mut raw, Uuid::new_v4(), "nobody", 64 * MIB);
        raw.stream.set_nonblocking(true).unwrap();
        let decoder = chunking::Decoder::speaking(
            chunking::Generation::F2,
            chunking::InboundLimits::ANNOUNCED,
        );
        let (stream, buffer, out) = (raw.stream, Vec::new(), Vec::new());
        SlowSender { stream, decoder, buffer, id, window: grant.window, next: 0, out, sent: 0 }
    }

    fn step(&mut self, time: Duration, moved: &AtomicU64, frame: &impl Fn(Uuid, usize) -> Vec<u8>) {
        let mut piece = [0; 4096];
        while let Ok(got @ 1..) = self.stream.read(&mut piece) {
            self.buffer.extend_from_slice(&piece[..got]);
        }
        let mut input = &self.buffer[..];
        while let Some(frame) = self.decoder.poll_frame(&mut input).unwrap() {
            if frame.head.kind().unwrap() == Kind::Grant {
                self.window +=
                    <Grant as chunking::message::Body>::decode(frame.payload).unwrap().window;
            }
        }
        let left = input.len();
        self.buffer.drain(..self.buffer.len() - left);
        if self.out.is_empty() && self.window > 0 {
            (self.window, self.out, self.next) =
                (self.window - 1, frame(self.id, self.next), self.next + 1);
        }
        let most = due(time).saturating_sub(self.sent).min(8192);
        let most = usize::try_from(most).unwrap().min(self.out.len());
        match self.stream.write(&self.out[..most]) {
            Ok(bytes) => {
                self.out.drain(..bytes);
                moved.fetch_add(bytes as u64, Ordering::Relaxed);
                self.sent += bytes as u64;
            }
            // The line does not make up for what it could not carry.
            Err(_) => self.sent = due(time),
        }
        if self.out.is_empty() {
            self.sent = self.sent.max(due(time).saturating_sub(8192));
        }
    }
}

/// A fast client, and the worker of its jobs.
struct Pair {
    address: String,
    client: Client,
    runtime: tokio::runtime::Runtime,
    _out: TempDir,
}

impl Pair {
    fn client(leader: &Leader, name: &str) -> Pair {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let out = TempDir::new();
        let options =
            Options { downloads: Downloads::Directory(out.0.clone()), ..Options::new(name) };
        let address = leader.addr();
        let client = runtime.block_on(Client::connect(&address, &options)).unwrap();
        Pair { address, client, runtime, _out: out }
    }

    /// Starts a worker that takes jobs with large inputs, or makes large results.
    fn worker(&self, dir: &TempDir) {
        let config = WorkerConfig {
            work_dir: dir.0.clone(),
            patterns: vec!["job.assign.fast".to_owned()],
            ..WorkerConfig::new(self.address.clone())
        };
        let made = Bytes::from(noise::noise(fast_bytes(), 9));
        let run = move |job: Job, context: JobContext| {
            let made = made.clone();
            async move {
                let result = job.result(JobStatus::Ok);
                if job.request.as_ref().unwrap().files.is_empty() {
                    context.attach(Purpose::Archive, Content::Memory(made)).unwrap();
                }
                result
            }
        };
        let worker = Worker::new(config, run).unwrap();
        std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(worker.run(std::future::pending()));
        });
    }

    /// How long a job takes whose input is large, or whose result is.
    fn job(&self, input: bool) -> Duration {
        static INPUT: std::sync::OnceLock<Bytes> = std::sync::OnceLock::new();
        let bytes = INPUT.get_or_init(|| noise::noise(fast_bytes(), 5).into()).clone();
        self.runtime.block_on(async {
            let request = JobRequest { exec_name: "fast".to_owned(), ..JobRequest::default() };
            let spec = JobSpec::from(request);
            let spec = if input { spec.bytes("in.bin", bytes) } else { spec };
            let start = Instant::now();
            let mut job = self.client.submit(spec).await.unwrap();
            let finished = tokio::time::timeout(Duration::from_secs(120), job.finish()).await;
            let finished = finished.expect("it comes to an end").unwrap();
            assert_eq!(finished.result().unwrap().status, JobStatus::Ok);
            assert!(finished.missing.is_empty(), "{:?}", finished.missing);
            start.elapsed()
        })
    }

    /// The median of several jobs.
    fn median(&self, input: bool, jobs: u32) -> Duration {
        let mut times: Vec<Duration> = (0..jobs).map(|_| self.job(input)).collect();
        times.sort();
        times[times.len() / 2]
    }
}

/// Runs fast jobs alone, and then beside a crowd.
fn beside(name: &str, gather: impl FnOnce(&mut Crowd, &Leader)) {
    let leader = Leader::start(&[]);
    let dir = TempDir::new();
    let fast = Pair::client(&leader, "fast");
    fast.worker(&dir);
    let jobs = scaled(3, 15);
    fast.job(true);
    let solo = [fast.median(true, jobs), fast.median(false, jobs)];
    let mut crowd = Crowd::new();
    gather(&mut crowd, &leader);
    // Long enough that all of them hold what they get hold of.
    std::thread::sleep(Duration::from_millis(scaled(1500, 8000).into()));
    let before = crowd.moved();
    let among = [fast.median(true, jobs), fast.median(false, jobs)];
    let moved = crowd.moved() - before;
    // One that comes anew is served, too.
    let newcomer = Pair::client(&leader, "newcomer").job(true);
    let status = Raw::client(&leader, "asks").ask("status", &json!({}));
    eprintln!(
        "{name}: input {:?} alone, {:?} beside; result {:?} alone, {:?} beside; newcomer {newcomer:?}; the crowd moved {moved} bytes; \
         buffers {}/{} promised {}",
        solo[0],
        among[0],
        solo[1],
        among[1],
        status["leader"]["buffers_in_use"],
        status["leader"]["buffers"],
        status["leader"]["buffers_promised"]
    );
    let in_use = status["leader"]["buffers_in_use"].as_u64().unwrap();
    assert!(in_use <= 24, "{in_use} of 48 buffers are in use for others");
    for (solo, among) in solo.into_iter().zip(among).chain([(solo[0], newcomer)]) {
        // Loaded machines are slow, too; whoever waits for slow lines waits for tens of seconds.
        let (factor, grace) = if scaled(0, 1) == 1 { (2, 20) } else { (10, 2000) };
        assert!(
            among <= solo * factor + Duration::from_millis(grace),
            "{name}: {solo:?}, then {among:?}"
        );
    }
}

#[test]
fn slow_senders_keep_nobody_waiting() {
    beside("slow senders", |crowd, leader| crowd.slow_senders(leader, 100));
}

#[test]
fn silent_senders_keep_nobody_waiting() {
    beside("silent senders", |crowd, leader| {
        crowd.silent_senders(leader, 50, false);
        crowd.silent_senders(leader, 50, true);
    });
}

#[test]
fn who_opens_transfers_all_the_time_and_sends_nothing_keeps_nobody_waiting() {
    beside("an opener", |crowd, leader| crowd.opener(leader));
}

#[test]
fn slow_receivers_keep_nobody_waiting() {
    beside("slow receivers", |crowd, leader| {
        crowd.slow_receivers(leader, scaled(60, 100) as usize, false)
    });
}

#[test]
fn silent_receivers_keep_nobody_waiting() {
    beside("silent receivers", |crowd, leader| {
        crowd.slow_receivers(leader, scaled(60, 100) as usize, true)
    });
}
