//! Peers behind slow lines, which read and write all the time: they are slow, and not gone. A
//! leader with short limits stands in for long waits; `HEFT_TEST_SCALE=long` has the limits of a
//! leader as it is, and lines of 20 KB a second.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunking::message::Purpose;
use chunking::{Decoder, Generation, Head, InboundLimits, Kind};
use heft::client::{Client, Downloads, JobSpec, Options};
use heft::core::Config;
use heft::driver::{Choice, Driver, Storage};
use heft::leader::LeaderConfig;
use heft::model::{JobRequest, JobStatus};
use heft::worker::{Content, Job, JobContext, Worker, WorkerConfig};
use procs::{Leader, TempDir};
use socket2::{Domain, Socket, Type};
use support::scaled;
use uuid::Uuid;

/// Takes nothing for so long: gone.
const STALL: Duration = Duration::from_millis(700);

const LEASE: Duration = Duration::from_secs(3);

fn hasty_leader() -> u16 {
    hasty_leader_with(Config::default(), STALL)
}

/// A leader with short limits, in the test's own process; it lives as long as that.
fn hasty_leader_with(config: Config, write_stall: Duration) -> u16 {
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
            let broker = Config { lease: LEASE, ..config };
            let config = LeaderConfig {
                broker,
                heartbeat: Duration::from_millis(300),
                ..LeaderConfig::default()
            };
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
    /// Bytes that went to the leader, and that came from it.
    went_up: Arc<AtomicUsize>,
    came_down: Arc<AtomicUsize>,
}

impl Line {
    fn start(leader: u16, down: usize, up: usize) -> Line {
        Line::listen(TcpListener::bind("127.0.0.1:0").unwrap(), leader, down, up)
    }

    /// The same with little room on the way: what a peer does not read is soon felt by the leader,
    /// and what it writes by itself.
    fn narrow(leader: u16, down: usize, up: usize) -> Line {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.set_recv_buffer_size(16 << 10).unwrap();
        socket.set_send_buffer_size(16 << 10).unwrap();
        socket.set_tcp_mss(1400).unwrap();
        socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        socket.listen(16).unwrap();
        Line::listen(socket.into(), leader, down, up)
    }

    fn listen(listener: TcpListener, leader: u16, down: usize, up: usize) -> Line {
        let port = listener.local_addr().unwrap().port();
        let connections = Arc::new(AtomicU32::new(0));
        let (went_up, came_down) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (count, counted) = (connections.clone(), [went_up.clone(), came_down.clone()]);
        std::thread::spawn(move || {
            while let Ok((peer, _)) = listener.accept() {
                count.fetch_add(1, Ordering::Relaxed);
                let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
                socket.set_recv_buffer_size(16 << 10).unwrap();
                socket.connect(&SocketAddr::from(([127, 0, 0, 1], leader)).into()).unwrap();
                let to_leader: TcpStream = socket.into();
                let ways = [
                    (
                        to_leader.try_clone().unwrap(),
                        peer.try_clone().unwrap(),
                        down,
                        counted[1].clone(),
                    ),
                    (peer, to_leader, up, counted[0].clone()),
                ];
                for (from, to, rate, carried) in ways {
                    std::thread::spawn(move || carry(from, to, rate, &carried));
                }
            }
        });
        Line { port, connections, went_up, came_down }
    }
}

/// Carries bytes at this rate, a little at a time.
fn carry(mut from: TcpStream, mut to: TcpStream, rate: usize, carried: &AtomicUsize) {
    let mut due = Instant::now();
    let mut piece = vec![0; (rate / 50).clamp(64, 4096)];
    while let Ok(bytes @ 1..) = from.read(&mut piece) {
        if to.write_all(&piece[..bytes]).is_err() {
            break;
        }
        carried.fetch_add(bytes, Ordering::Relaxed);
        // What was not used while nothing came is not made up for.
        due = due.max(Instant::now()) + Duration::from_secs_f64(bytes as f64 / rate as f64);
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
    }
    from.shutdown(Shutdown::Both).ok();
    to.shutdown(Shutdown::Both).ok();
}

/// A worker on a thread of its own.
struct Works {
    stop: tokio::sync::oneshot::Sender<()>,
    thread: std::thread::JoinHandle<()>,
}

impl Works {
    fn start(worker: Worker<impl heft::worker::Handler>) -> Works {
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(worker.run(async { drop(stopped.await) }));
        });
        Works { stop, thread }
    }

    fn stop(self) {
        self.stop.send(()).unwrap();
        self.thread.join().unwrap();
    }
}

/// A job whose worker is behind a line gets its input, and its result comes back, over one
/// connection and by one attempt.
fn runs_once_over(leader: u16, line: &Line, input: usize, output: usize) {
    let noise = Bytes::from(noise::noise(input.max(output), 7));
    let dir = TempDir::new();
    let ran = Arc::new(AtomicU32::new(0));
    let (made, count) = (noise.slice(..output), ran.clone());
    let config = WorkerConfig {
        work_dir: dir.0.clone(),
        ..WorkerConfig::new(format!("127.0.0.1:{}", line.port))
    };
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
    let works = Works::start(Worker::new(config, run).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let out = TempDir::new();
    runtime.block_on(async {
        let options =
            Options { downloads: Downloads::Directory(out.0.clone()), ..Options::new("c") };
        let client = Client::connect(&format!("127.0.0.1:{leader}"), &options).await.unwrap();
        let request = JobRequest { exec_name: "slow".to_owned(), ..JobRequest::default() };
        let spec = JobSpec::from(request).bytes("in.bin", noise.slice(..input));
        let mut job = client.submit(spec).await.unwrap();
        let patience = Duration::from_secs(scaled(60, 600).into());
        let finished = tokio::time::timeout(patience, job.finish())
            .await
            .expect("it comes to an end")
            .unwrap();
        let result = finished.result().unwrap();
        assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
        assert_eq!(result.stdout, crc32fast::hash(&noise[..input]).to_string());
        assert!(finished.missing.is_empty(), "{:?}", finished.missing);
        client.close().await;
    });
    assert_eq!(line.connections.load(Ordering::Relaxed), 1, "the worker was cut off");
    assert_eq!(ran.load(Ordering::Relaxed), 1, "it was given to a worker again");
    works.stop();
}

#[test]
fn a_worker_that_reads_slowly_gets_a_large_job_and_keeps_it() {
    let leader = hasty_leader();
    let line = Line::start(leader, 400_000, 1 << 30);
    runs_once_over(leader, &line, 1_600_000, 10);
}

#[test]
fn a_worker_that_reads_slowly_gets_inputs_in_chunks_and_is_not_cut_off() {
    let leader = hasty_leader();
    let line = Line::start(leader, 800_000, 1 << 30);
    runs_once_over(leader, &line, 4_500_000, 10);
}

#[test]
fn a_worker_whose_chunks_take_longer_than_its_lease_keeps_its_job() {
    let leader = hasty_leader();
    let line = Line::start(leader, 1 << 30, 180_000);
    runs_once_over(leader, &line, 10, 1_300_000);
}

/// A frame of a classic peer.
fn frame(kind: Kind, corr_id: Uuid, subject: &str, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let head = Head { msg_id: Uuid::from_u128(5), corr_id, subject, ..Head::new(kind) };
    head.append(Generation::F2, &mut bytes).unwrap();
    // It may be longer than what a leader sends.
    let (body_len, payload_len_at) = (bytes.len() - 4 + payload.len(), bytes.len() - 4);
    bytes[..4].copy_from_slice(&u32::try_from(body_len).unwrap().to_le_bytes());
    bytes[payload_len_at..].copy_from_slice(&u32::try_from(payload.len()).unwrap().to_le_bytes());
    bytes.extend_from_slice(payload);
    bytes
}

#[test]
fn a_classic_worker_whose_large_result_comes_slowly_is_not_given_its_job_again() {
    let config = Config { classic_ack_timeout: true, ..Config::default() };
    let leader = hasty_leader_with(config, STALL);
    let connect = || {
        let stream = TcpStream::connect(("127.0.0.1", leader)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream
    };
    let (mut client, mut worker) = (connect(), connect());
    worker.write_all(&frame(Kind::HelloWorker, Uuid::nil(), "job.assign.*", b"")).unwrap();
    worker.write_all(&frame(Kind::Credit, Uuid::nil(), "", &9_i32.to_le_bytes())).unwrap();
    let job = Uuid::from_u128(77);
    let request =
        format!(r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Args":[],"Files":[]}}"#);
    let hello = br#"{"ClientId":"c","DesiredParallelism":1}"#;
    client.write_all(&frame(Kind::HelloClient, Uuid::nil(), "c", hello)).unwrap();
    client
        .write_all(&frame(Kind::SubmitJob, Uuid::nil(), "job.submit.echo", request.as_bytes()))
        .unwrap();
    let assigned = Arc::new(AtomicU32::new(0));
    let (count, mut reads) = (assigned.clone(), worker.try_clone().unwrap());
    std::thread::spawn(move || {
        let mut decoder = Decoder::speaking(Generation::F2, InboundLimits::ANNOUNCED);
        let (mut came, mut piece) = (Vec::new(), [0; 4096]);
        while let Ok(bytes @ 1..) = reads.read(&mut piece) {
            came.extend_from_slice(&piece[..bytes]);
            let mut rest = &came[..];
            while let Some(frame) = decoder.poll_frame(&mut rest).unwrap() {
                count.fetch_add(
                    u32::from(frame.head.kind() == Ok(Kind::AssignJob)),
                    Ordering::Relaxed,
                );
            }
            came = rest.to_vec();
        }
    });
    // The first two times it has less time than after which a frame is long.
    let until = Instant::now() + Duration::from_secs(60);
    while assigned.load(Ordering::Relaxed) < 3 {
        assert!(Instant::now() < until, "it does not come again");
        std::thread::sleep(Duration::from_millis(5));
    }
    let out = "x".repeat(5 << 20);
    let result = format!(
        r#"{{"JobId":"{job}","ClientId":"c","ExecName":"echo","Status":"OK","Stdout":"","Stderr":"{out}","OutputArchive":null}}"#
    );
    let answer = frame(Kind::AckJob, job, "", result.as_bytes());
    // Over 7 s, where at most 4.8 s were left.
    for piece in answer.chunks(answer.len() / 70 + 1) {
        worker.write_all(piece).unwrap();
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut first = [0; 16];
    client.read_exact(&mut first).unwrap();
    assert_eq!(assigned.load(Ordering::Relaxed), 3, "it was given again while its result came");
}

/// While a result goes up slowly, its worker is sent inputs and a Cancel.
fn reads_while_it_sends(output: usize) {
    let leader = hasty_leader();
    // A chunk takes longer on its way up than the leader waits for a worker that reads nothing.
    let line = Line::narrow(leader, 1_500_000, 500_000);
    let noise = Bytes::from(noise::noise(4_500_000, 11));
    let dir = TempDir::new();
    let (made, went_up) = (noise.slice(..output), line.went_up.clone());
    let cancelled_at = Arc::new(AtomicUsize::new(usize::MAX));
    let cancelled = cancelled_at.clone();
    let run = move |job: Job, context: JobContext| {
        let (made, went_up, cancelled) = (made.clone(), went_up.clone(), cancelled.clone());
        async move {
            match job.request.as_ref().unwrap().exec_name.as_str() {
                "up" => context.attach(Purpose::Archive, Content::Memory(made)).unwrap(),
                "wait" => {
                    context.cancelled().await;
                    cancelled.store(went_up.load(Ordering::Relaxed), Ordering::Relaxed);
                }
                _ => {}
            }
            job.result(JobStatus::Ok)
        }
    };
    let config = WorkerConfig {
        work_dir: dir.0.clone(),
        ..WorkerConfig::new(format!("127.0.0.1:{}", line.port))
    };
    let works = Works::start(Worker::new(config, run).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let out = TempDir::new();
    runtime.block_on(async {
        let options =
            Options { downloads: Downloads::Directory(out.0.clone()), ..Options::new("c") };
        let client = Client::connect(&format!("127.0.0.1:{leader}"), &options).await.unwrap();
        let request =
            |exec: &str| JobRequest { exec_name: exec.to_owned(), ..JobRequest::default() };
        let mut wait = client.submit(request("wait")).await.unwrap();
        let mut up = client.submit(request("up")).await.unwrap();
        while line.went_up.load(Ordering::Relaxed) < 100_000 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let spec = JobSpec::from(request("down")).bytes("in.bin", noise.clone());
        let mut down = client.submit(spec).await.unwrap();
        wait.cancel("enough").await;
        let patience = Duration::from_secs(60);
        for job in [&mut up, &mut down, &mut wait] {
            let ended =
                tokio::time::timeout(patience, job.finish()).await.expect("it comes to an end");
            assert!(ended.unwrap().missing.is_empty());
        }
        client.close().await;
    });
    assert_eq!(line.connections.load(Ordering::Relaxed), 1, "the worker was cut off");
    let cancelled_at = cancelled_at.load(Ordering::Relaxed);
    assert!(cancelled_at < output, "it was cancelled when {cancelled_at} bytes had gone up");
    works.stop();
}

#[test]
fn a_worker_whose_result_goes_up_slowly_in_one_frame_obeys_a_cancel() {
    reads_while_it_sends(2_500_000);
}

#[test]
fn a_worker_whose_result_goes_up_slowly_in_chunks_takes_inputs_meanwhile_and_is_not_cut_off() {
    reads_while_it_sends(4_000_000);
}

/// What may go over a slow line before a small frame does: a piece or two, and what is on its way.
const SMALL_WAITS: usize = 400_000;

/// Waits until so many bytes have passed, which is enough to see that the line is slow.
async fn passed(bytes: &AtomicUsize, enough: usize) {
    let until = Instant::now() + Duration::from_secs(60);
    while bytes.load(Ordering::Relaxed) < enough {
        assert!(Instant::now() < until, "{bytes:?} of {enough}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A worker on a line. Its job `wait` runs until it is cancelled; how much had come down the line
/// by then is noted.
fn works_until_cancelled(line: &Line, dir: &TempDir) -> (Works, Arc<AtomicUsize>) {
    let (came_down, cancelled_at) =
        (line.came_down.clone(), Arc::new(AtomicUsize::new(usize::MAX)));
    let cancelled = cancelled_at.clone();
    let run = move |job: Job, context: JobContext| {
        let (came_down, cancelled) = (came_down.clone(), cancelled.clone());
        async move {
            if job.request.as_ref().unwrap().exec_name == "wait" {
                context.cancelled().await;
                cancelled.store(came_down.load(Ordering::Relaxed), Ordering::Relaxed);
            }
            job.result(JobStatus::Ok)
        }
    };
    let config = WorkerConfig {
        work_dir: dir.0.clone(),
        ..WorkerConfig::new(format!("127.0.0.1:{}", line.port))
    };
    (Works::start(Worker::new(config, run).unwrap()), cancelled_at)
}

#[test]
fn a_cancel_gets_to_a_worker_while_a_large_input_goes_down_slowly() {
    let leader = hasty_leader();
    let line = Line::start(leader, 300_000, 1 << 30);
    let dir = TempDir::new();
    let (works, cancelled_at) = works_until_cancelled(&line, &dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let client =
            Client::connect(&format!("127.0.0.1:{leader}"), &Options::new("c")).await.unwrap();
        let request =
            |exec: &str| JobRequest { exec_name: exec.to_owned(), ..JobRequest::default() };
        let mut wait = client.submit(request("wait")).await.unwrap();
        let spec = JobSpec::from(request("down"))
            .bytes("in.bin", Bytes::from(noise::noise(5_000_000, 11)));
        let mut down = client.submit(spec).await.unwrap();
        passed(&line.came_down, 1_500_000).await;
        let before = line.came_down.load(Ordering::Relaxed);
        wait.cancel("enough").await;
        let patience = Duration::from_secs(60);
        for job in [&mut wait, &mut down] {
            let ended =
                tokio::time::timeout(patience, job.finish()).await.expect("it comes to an end");
            assert!(ended.unwrap().missing.is_empty());
        }
        let waited = cancelled_at.load(Ordering::Relaxed) - before;
        assert!(waited < SMALL_WAITS, "{waited} bytes came before the cancel");
        client.close().await;
    });
    assert_eq!(line.connections.load(Ordering::Relaxed), 1, "the worker was cut off");
    works.stop();
}

/// Its chunks come one at a time, each when the one before is out: the line is idle whenever one
/// begins.
#[test]
fn a_line_that_is_idle_between_chunks_is_known_to_be_slow_all_the_same() {
    let write_stall = heft::driver::Options::default().write_stall;
    let leader = hasty_leader_with(Config::default(), write_stall);
    let line = Line::start(leader, 300_000, 1 << 30);
    let slow_client = Line::start(leader, 1 << 30, 240_000);
    let dir = TempDir::new();
    let (works, cancelled_at) = works_until_cancelled(&line, &dir);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let connect = async |port: u16, id: &str| {
            Client::connect(&format!("127.0.0.1:{port}"), &Options::new(id)).await.unwrap()
        };
        let client = connect(leader, "c").await;
        let request =
            |exec: &str| JobRequest { exec_name: exec.to_owned(), ..JobRequest::default() };
        let mut wait = client.submit(request("wait")).await.unwrap();
        let file = Bytes::from(noise::noise(3_300_000, 11));
        let sender = connect(slow_client.port, "s").await;
        let mut down =
            sender.submit(JobSpec::from(request("down")).bytes("in.bin", file)).await.unwrap();
        // The third chunk has begun.
        passed(&line.came_down, (2 << 20) + 80_000).await;
        let before = line.came_down.load(Ordering::Relaxed);
        wait.cancel("enough").await;
        let patience = Duration::from_secs(60);
        for job in [&mut wait, &mut down] {
            tokio::time::timeout(patience, job.finish())
                .await
                .expect("it comes to an end")
                .unwrap();
        }
        let waited = cancelled_at.load(Ordering::Relaxed) - before;
        assert!(waited < SMALL_WAITS, "{waited} bytes came before the cancel");
        client.close().await;
    });
    works.stop();
}

#[test]
fn a_small_result_gets_away_from_a_worker_while_a_large_one_goes_up_slowly() {
    let leader = hasty_leader();
    let line = Line::start(leader, 1 << 30, 300_000);
    let dir = TempDir::new();
    let made = Bytes::from(noise::noise(5_000_000, 12));
    let run = move |job: Job, context: JobContext| {
        let made = made.clone();
        async move {
            if job.request.as_ref().unwrap().exec_name == "up" {
                context.attach(Purpose::Archive, Content::Memory(made)).unwrap();
            }
            job.result(JobStatus::Ok)
        }
    };
    let config = WorkerConfig {
        work_dir: dir.0.clone(),
        ..WorkerConfig::new(format!("127.0.0.1:{}", line.port))
    };
    let works = Works::start(Worker::new(config, run).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let out = TempDir::new();
    runtime.block_on(async {
        let options =
            Options { downloads: Downloads::Directory(out.0.clone()), ..Options::new("c") };
        let client = Client::connect(&format!("127.0.0.1:{leader}"), &options).await.unwrap();
        let request =
            |exec: &str| JobRequest { exec_name: exec.to_owned(), ..JobRequest::default() };
        let mut up = client.submit(request("up")).await.unwrap();
        passed(&line.went_up, 1_500_000).await;
        let before = line.went_up.load(Ordering::Relaxed);
        let patience = Duration::from_secs(60);
        let mut quick = client.submit(request("quick")).await.unwrap();
        tokio::time::timeout(patience, quick.finish()).await.expect("it comes to an end").unwrap();
        // Its credit and its result stand behind no more than a piece each.
        let waited = line.went_up.load(Ordering::Relaxed) - before;
        assert!(waited < 2 * SMALL_WAITS, "{waited} bytes went before the result");
        let ended =
            tokio::time::timeout(patience, up.finish()).await.expect("it comes to an end").unwrap();
        assert!(ended.missing.is_empty());
        client.close().await;
    });
    assert_eq!(line.connections.load(Ordering::Relaxed), 1, "the worker was cut off");
    works.stop();
}

#[test]
fn jobs_that_wait_longer_than_a_lease_for_a_worker_that_reads_quickly_are_not_taken_from_it() {
    const JOBS: u32 = 24;
    // Between two looks, each a second after the other, it takes more than a slow one would.
    let leader = hasty_leader_with(Config::default(), Duration::from_secs(6));
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
    let works = Works::start(Worker::new(config, run).unwrap());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let options = Options { desired: JOBS, ..Options::new("c") };
        let client = Client::connect(&format!("127.0.0.1:{leader}"), &options).await.unwrap();
        let mut jobs = Vec::new();
        for _ in 0..JOBS {
            let args = vec!["x".repeat(3_000_000)];
            let request =
                JobRequest { exec_name: "quick".to_owned(), args, ..JobRequest::default() };
            jobs.push(client.submit(JobSpec::from(request)).await.unwrap());
        }
        for job in &mut jobs {
            let patience = Duration::from_secs(60);
            let finished = tokio::time::timeout(patience, job.finish())
                .await
                .expect("it comes to an end")
                .unwrap();
            assert_eq!(finished.result().unwrap().stdout, "1", "by its first attempt");
        }
        client.close().await;
    });
    works.stop();
}

#[test]
fn at_20_kb_a_second_a_worker_runs_a_job_of_more_than_a_chunk_with_the_limits_of_a_leader_as_it_is()
{
    if scaled(0, 1) == 0 {
        return;
    }
    let leader = Leader::start(&[]);
    let line = Line::start(leader.port, 20_000, 20_000);
    runs_once_over(leader.port, &line, 1_300_000, 1_300_000);
}
