//! Peers behind slow lines, which read and write all the time: they are slow, and not gone. A leader with short limits stands in for
//! long waits; `HEFT_TEST_SCALE=long` has the limits of a leader as it is, and lines of 20 KB a second.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunking::message::Purpose;
use heft::client::{Client, Downloads, JobSpec, Options};
use heft::core::Config;
use heft::driver::{Choice, Driver, Storage};
use heft::leader::LeaderConfig;
use heft::model::{JobRequest, JobStatus};
use heft::worker::{Content, Job, JobContext, Worker, WorkerConfig};
use procs::{Leader, TempDir};
use socket2::{Domain, Socket, Type};
use support::scaled;

/// Takes nothing for so long: gone.
const STALL: Duration = Duration::from_millis(700);

const LEASE: Duration = Duration::from_secs(3);

/// A leader with short limits, in the test's own process; it lives as long as that.
fn hasty_leader(write_stall: Duration) -> u16 {
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let choice = match std::env::var("HEFT_DRIVER").as_deref() {
            Ok("uring") => Choice::Uring,
            Ok("portable") => Choice::Portable,
            Ok(_) | Err(_) => Choice::Auto,
        };
        let driver = Driver::choose(choice).unwrap();
        let served = driver.run(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            tell.send(listener.local_addr().unwrap().port()).unwrap();
            let data = TempDir::new();
            let broker = Config { lease: LEASE, ..Config::default() };
            let config =
                LeaderConfig { broker, heartbeat: Duration::from_millis(300), ..LeaderConfig::default() };
            let options = heft::driver::Options {
                data: data.0.clone(),
                write_stall,
                ..heft::driver::Options::default()
            };
            let prepared = Storage::Memory.into_leader(config);
            driver.serve(listener, prepared, options, Rc::new(tokio::sync::Notify::new())).await
        });
        served.unwrap().unwrap();
    });
    told.recv().unwrap()
}

/// A line to a leader that passes so many bytes a second in either direction.
struct Line {
    port: u16,
    connections: Arc<AtomicU32>,
}

impl Line {
    fn start(leader: u16, down: usize, up: usize) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicU32::new(0));
        let count = connections.clone();
        std::thread::spawn(move || {
            while let Ok((peer, _)) = listener.accept() {
                count.fetch_add(1, Ordering::Relaxed);
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_recv_buffer_size(16 << 10).unwrap();
                socket.connect(&SocketAddr::from(([127, 0, 0, 1], leader)).into()).unwrap();
                let to_leader: TcpStream = socket.into();
                let ways = [
                    (to_leader.try_clone().unwrap(), peer.try_clone().unwrap(), down),
                    (peer, to_leader, up),
                ];
                for (from, to, rate) in ways {
                    std::thread::spawn(move || carry(from, to, rate));
                }
            }
        });
        Line { port, connections }
    }
}

/// Carries bytes at this rate, a little at a time.
fn carry(mut from: TcpStream, mut to: TcpStream, rate: usize) {
    let mut due = Instant::now();
    let mut piece = vec![0; (rate / 50).clamp(64, 4096)];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
        // What was not used while nothing came is not made up for.
        due = due.max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

/// A job whose worker is behind a line gets its input, and its result comes back, over one connection and by one attempt.
fn runs_once_over(leader: u16, line: &Line, input: usize, output: usize) {
    let noise = Bytes::from(noise::noise(input.max(output), 7));
    let dir = TempDir::new();
    let ran = Arc::new(AtomicU32::new(0));
    let (made, count) = (noise.slice(..output), ran.clone());
    let config =
        WorkerConfig { work_dir: dir.0.clone(), ..WorkerConfig::new(format!("127.0.0.1:{}", line.port)) };
    let run = move |job: Job, context: JobContext| {
        let made = made.clone();
        count.fetch_add(1, Ordering::Relaxed);
        async move {
            let mut result = job.result(JobStatus::Ok);
            let read = match job.request.as_ref().unwrap().files[0].content.clone() {
                Some(content) => content,
                None => std::fs::read(context.directory().await.unwrap().join("in.bin")).unwrap(),
            };
            result.stdout = format!("{}", crc32fast::hash(&read));
            context.attach(Purpose::Archive, Content::Memory(made)).unwrap();
            result
        }
    };
    let worker = Worker::new(config, run).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let works = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run(async { drop(stopped.await) }));
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let out = TempDir::new();
    runtime.block_on(async {
        let options = Options { downloads: Downloads::Directory(out.0.clone()), ..Options::new("c") };
        let client = Client::connect(&format!("127.0.0.1:{leader}"), &options).await.unwrap();
        let request = JobRequest { exec_name: "slow".to_owned(), ..JobRequest::default() };
        let spec = JobSpec::from(request).bytes("in.bin", noise.slice(..input));
        let mut job = client.submit(spec).await.unwrap();
        let patience = Duration::from_secs(scaled(60, 600).into());
        let finished =
            tokio::time::timeout(patience, job.finish()).await.expect("it comes to an end").unwrap();
        let result = finished.result().unwrap();
        assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
        assert_eq!(result.stdout, crc32fast::hash(&noise[..input]).to_string());
        assert!(finished.missing.is_empty(), "{:?}", finished.missing);
        client.close().await;
    });
    assert_eq!(line.connections.load(Ordering::Relaxed), 1, "the worker was cut off");
    assert_eq!(ran.load(Ordering::Relaxed), 1, "it was given to a worker again");
    stop.send(()).unwrap();
    works.join().unwrap();
}

#[test]
fn a_worker_that_reads_slowly_gets_a_large_job_and_keeps_it() {
    let leader = hasty_leader(STALL);
    let line = Line::start(leader, 400_000, 1 << 30);
    runs_once_over(leader, &line, 1_600_000, 10);
}

#[test]
fn a_worker_that_reads_slowly_gets_inputs_in_chunks_and_is_not_cut_off() {
    let leader = hasty_leader(STALL);
    let line = Line::start(leader, 800_000, 1 << 30);
    runs_once_over(leader, &line, 4_500_000, 10);
}

#[test]
fn a_worker_whose_chunks_take_longer_than_its_lease_keeps_its_job() {
    let leader = hasty_leader(STALL);
    let line = Line::start(leader, 1 << 30, 180_000);
    runs_once_over(leader, &line, 10, 1_300_000);
}

#[test]
fn jobs_that_wait_longer_than_a_lease_for_a_worker_that_reads_quickly_are_not_taken_from_it() {
    const JOBS: u32 = 24;
    // Between two looks, each a second after the other, it takes more than a slow one would.
    let leader = hasty_leader(Duration::from_secs(6));
    let line = Line::start(leader, 9_000_000, 1 << 30);
    let dir = TempDir::new();
    let config = WorkerConfig {
        work_dir: dir.0.clone(),
        parallel_max: JOBS,
        ..WorkerConfig::new(format!("127.0.0.1:{}", line.port))
    };
    let run = |job: Job, _: JobContext| async move {
        let mut result = job.result(JobStatus::Ok);
        result.stdout = job.attempt.to_string();
        result
    };
    let worker = Worker::new(config, run).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let works = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(worker.run(async { drop(stopped.await) }));
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options { desired: JOBS, ..Options::new("c") };
        let client = Client::connect(&format!("127.0.0.1:{leader}"), &options).await.unwrap();
        let mut jobs = Vec::new();
        for _ in 0..JOBS {
            let args = vec!["x".repeat(3_000_000)];
            let request = JobRequest { exec_name: "quick".to_owned(), args, ..JobRequest::default() };
            jobs.push(client.submit(JobSpec::from(request)).await.unwrap());
        }
        for job in &mut jobs {
            let patience = Duration::from_secs(60);
            let finished =
                tokio::time::timeout(patience, job.finish()).await.expect("it comes to an end").unwrap();
            assert_eq!(finished.result().unwrap().stdout, "1", "by its first attempt");
        }
        client.close().await;
    });
    stop.send(()).unwrap();
    works.join().unwrap();
}

#[test]
fn at_20_kb_a_second_a_worker_runs_a_job_of_more_than_a_chunk_with_the_limits_of_a_leader_as_it_is() {
    if scaled(0, 1) == 0 {
        return;
    }
    let leader = Leader::start(&[]);
    let line = Line::start(leader.port, 20_000, 20_000);
    runs_once_over(leader.port, &line, 1_300_000, 1_300_000);
}
