//! A worker that takes inputs and returns results by transfer, against a leader made of a socket
//! and the wire format: what arrives, what a broken connection or a bad chunk costs, and that
//! nothing is left behind (C01, C08, C31).

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::wildcard_enum_match_arm
)]

#[path = "support/fake_leader.rs"]
mod fake_leader;
#[path = "../src/noise.rs"]
mod noise;
#[path = "support/mod.rs"]
mod support;

use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chunking::digest::BlobHasher;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    Abort, Body, Cancel, Done, Features, Grant, Heartbeat, HeldJob, LimitId, Open, OpenFlags,
    Progress, Purpose, Reason, Stage, Verdict,
};
use chunking::{ChunkHead, Codec, DigestKind, Generation, Head, Kind, Ranges};
use fake_leader::{Conn, PATIENCE, chunk_frame};
use heft::core::retry::Backoff;
use heft::model::blob_id;
use heft::model::{BlobRef, InputFile, JobRequest, JobResult, JobStatus, JsonModel};
use heft::transfer::{ChunkSink, Download, MemorySink, Report};
use heft::worker::{
    Content, Exec, ExecConfig, Handler, Job, JobContext, Summary, Worker, WorkerConfig,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

const MIB: usize = 1024 * 1024;
const OURS: Features = Features::TRANSFERS.with(Features::ZSTD);

/// Bytes that do not repeat.
fn noise(bytes: usize) -> Vec<u8> {
    noise::noise(bytes, 1)
}

fn digest(blob: &[u8]) -> Done {
    let mut hasher = BlobHasher::new(DigestKind::ChunkList);
    blob.chunks(MIB).for_each(|raw| hasher.update(raw, ChunkHead::plain(0, raw).crc_raw));
    Done { digest: hasher.finish() }
}

/// Says what is in the job's directory; a job with another name attaches a large memory part.
#[derive(Default)]
struct Lister {
    runs: AtomicUsize,
    /// A sink that is full is used for files of this name.
    full: Option<&'static str>,
}

impl Handler for Lister {
    async fn run(&self, job: Job, context: JobContext) -> JobResult {
        self.runs.fetch_add(1, Ordering::SeqCst);
        let root = context.directory().await.unwrap();
        let mut stdout = String::new();
        for (_, file, _) in job.blobs() {
            let bytes = std::fs::read(root.join(&file.name)).unwrap();
            let hash = chunking::digest::to_hex(&chunking::digest::blake3(&bytes));
            stdout.push_str(&format!("{} {} {hash}\n", file.name, bytes.len()));
        }
        if job.request.as_ref().is_ok_and(|request| request.exec_name == "attach") {
            let refused = context.attach(Purpose::Input, Content::Memory(noise(1).into()));
            assert!(refused.unwrap_err().to_string().contains("Archive, Stdout or Stderr"));
            context.attach(Purpose::Archive, Content::Memory(noise(8 * MIB).into())).unwrap();
        }
        JobResult { stdout, ..job.result(JobStatus::Ok) }
    }

    fn sink(&self, _: &Job, file: &InputFile) -> Option<Box<dyn ChunkSink>> {
        (self.full == Some(file.name.as_str())).then(|| Box::new(Full) as Box<dyn ChunkSink>)
    }
}

/// A disk with room for one chunk.
struct Full;

impl ChunkSink for Full {
    fn write(&mut self, offset: u64, _: &[u8]) -> io::Result<()> {
        if offset == 0 { Ok(()) } else { Err(io::ErrorKind::StorageFull.into()) }
    }
    fn read(&mut self, _: u64, _: &mut [u8]) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
    fn place(&self) -> String {
        "in /full".into()
    }
}

struct Scene {
    listener: TcpListener,
    worker: JoinHandle<Summary>,
    stop: Option<oneshot::Sender<()>>,
    config: WorkerConfig,
    work_dir: tempfile::TempDir,
}

async fn scene<H: Handler>(handler: H, change: impl FnOnce(&mut WorkerConfig)) -> Scene {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let work_dir = tempfile::tempdir().unwrap();
    let reconnect = Backoff {
        first: Duration::from_millis(5),
        max: Duration::from_millis(20),
        jitter_percent: 20,
    };
    let mut config = WorkerConfig {
        work_dir: work_dir.path().join("jobs"),
        welcome_wait: PATIENCE,
        reconnect,
        parallel_max: 4,
        ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
    };
    std::fs::create_dir(&config.work_dir).unwrap();
    change(&mut config);
    let (worker, stop) = start(&config, handler);
    Scene { listener, worker, stop: Some(stop), config, work_dir }
}

fn start<H: Handler>(
    config: &WorkerConfig,
    handler: H,
) -> (JoinHandle<Summary>, oneshot::Sender<()>) {
    let worker = Worker::new(config.clone(), handler).unwrap();
    let (stop, stopped) = oneshot::channel();
    (tokio::spawn(worker.run(async { drop(stopped.await) })), stop)
}

impl Scene {
    /// The worker's next connection, with its first heartbeat.
    async fn accept(&self, credit: i32) -> (Conn, Heartbeat) {
        self.accept_with(credit, OURS, &[]).await
    }

    async fn accept_with(
        &self,
        credit: i32,
        more: Features,
        limits: &[(LimitId, u64)],
    ) -> (Conn, Heartbeat) {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it connects").unwrap();
        let mut conn = Conn::new(stream);
        conn.expect(Kind::HelloWorker).await;
        conn.welcome_with(more, limits).await;
        assert_eq!(conn.credit().await, credit);
        let beat = conn.heartbeat().await;
        (conn, beat)
    }

    fn jobs(&self) -> &Path {
        &self.config.work_dir
    }

    /// Waits until the worker has nothing in its work directory and no file of it open.
    async fn nothing_is_left(&self) {
        let clean = async {
            while std::fs::read_dir(self.jobs()).unwrap().any(|entry| {
                // The spool's directory stays, and the one with the jobs, empty.
                let path = entry.unwrap().path();
                let name = path.file_name().unwrap().to_str().unwrap();
                let stays = name == "heft" || name.starts_with("results-");
                !stays || std::fs::read_dir(path).unwrap().count() > 0
            }) || open_beneath(self.work_dir.path()) > 0
            {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, clean).await.expect("files or descriptors are left");
    }

    async fn stop(mut self) -> Summary {
        drop(self.stop.take());
        timeout(PATIENCE, self.worker).await.expect("it stops").unwrap()
    }
}

/// The directories of jobs in a work directory.
fn job_directories(work_dir: &Path) -> usize {
    std::fs::read_dir(work_dir.join("heft")).map_or(0, |made| made.count())
}

/// Descriptors of this process beneath a directory, but for the one that holds the spool.
fn open_beneath(root: &Path) -> usize {
    let is_spool = |path: &Path| {
        path.file_name().is_some_and(|name| name.to_str().unwrap().starts_with("results-"))
    };
    let handles = std::fs::read_dir("/proc/self/fd").unwrap();
    handles
        .filter(|handle| {
            std::fs::read_link(handle.as_ref().unwrap().path())
                .is_ok_and(|to| to.starts_with(root) && !is_spool(&to))
        })
        .count()
}

/// A job whose input files come by transfer.
struct Sent {
    job: Uuid,
    blobs: Vec<(Uuid, String, Vec<u8>)>,
}

impl Sent {
    fn new(files: &[(&str, Vec<u8>)]) -> Self {
        let job = Uuid::new_v4();
        let blobs = files.iter().zip(0..).map(|((name, bytes), index)| {
            (blob_id(job, 0, Purpose::Input, index), (*name).to_owned(), bytes.clone())
        });
        Sent { job, blobs: blobs.collect() }
    }

    fn payload(&self, exec_name: &str) -> String {
        let files = self.blobs.iter().map(|(id, name, bytes)| InputFile {
            name: name.clone(),
            blob: Some(BlobRef { id: *id, size: bytes.len() as u64, digest: None }),
            ..InputFile::default()
        });
        let request = JobRequest {
            job_id: self.job,
            client_id: "c".into(),
            exec_name: exec_name.into(),
            files: files.collect(),
            ..JobRequest::default()
        };
        String::from_utf8(request.to_json()).unwrap()
    }

    fn open(&self, file: usize, attempt: u32) -> Open {
        let (_, name, bytes) = &self.blobs[file];
        Open {
            purpose: Purpose::Input,
            codec: Codec::Zstd,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::KEEPS_SOURCE,
            chunk_bytes: CHUNK_BYTES_MAX,
            size: bytes.len() as u64,
            owner: self.job,
            attempt,
            name: name.clone().try_into().unwrap(),
        }
    }

    /// Opens a transfer; gives the first Grant.
    async fn begin(&self, conn: &mut Conn, file: usize, attempt: u32) -> Grant {
        let id = self.blobs[file].0;
        conn.say(id, &self.open(file, attempt)).await;
        conn.about(id).await
    }

    async fn chunks(&self, conn: &mut Conn, file: usize, indices: impl IntoIterator<Item = usize>) {
        let (id, _, bytes) = &self.blobs[file];
        for index in indices {
            conn.chunk(*id, bytes, index, false).await;
        }
    }

    async fn done(&self, conn: &mut Conn, file: usize) -> Verdict {
        let (id, _, bytes) = &self.blobs[file];
        conn.say(*id, &digest(bytes)).await;
        conn.about(*id).await
    }

    /// What [`Lister`] says when all has arrived as it was sent.
    fn listed(&self) -> String {
        let line = |(_, name, bytes): &(Uuid, String, Vec<u8>)| {
            let hash = chunking::digest::to_hex(&chunking::digest::blake3(bytes));
            format!("{name} {} {hash}\n", bytes.len())
        };
        self.blobs.iter().map(line).collect()
    }
}

async fn running(conn: &mut Conn, job: Uuid) {
    loop {
        let progress: Progress = conn.about(job).await;
        if progress.stage == Stage::Running {
            return;
        }
    }
}

async fn result(conn: &mut Conn, job: Uuid) -> JobResult {
    loop {
        let got = conn.read().await.expect("a result");
        if got.kind == Kind::AckJob {
            assert_eq!(got.corr_id, job);
            return JobResult::parse(&got.payload).unwrap();
        }
    }
}

fn indices(ranges: &Ranges) -> Vec<u32> {
    ranges.indices().collect()
}

#[tokio::test]
async fn inputs_of_any_size_arrive_whole_before_the_job_runs() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("big.bin", noise(5 * MIB + 3)), ("d/none", vec![]), ("one", vec![7])]);
    conn.assign(sent.job, &sent.payload("x")).await;
    // Start may come before the inputs are here.
    conn.start(sent.job, 1, 1).await;
    let grant = sent.begin(&mut conn, 0, 1).await;
    assert_eq!((grant.window, grant.held.is_empty()), (8, true));
    sent.chunks(&mut conn, 0, [5, 0, 2, 1, 4, 3]).await;
    for file in [1, 2] {
        sent.begin(&mut conn, file, 1).await;
    }
    sent.chunks(&mut conn, 2, [0]).await;
    assert_eq!(sent.done(&mut conn, 0).await, Verdict::Ok);
    assert_eq!(sent.done(&mut conn, 1).await, Verdict::Ok);
    let beat = conn.heartbeat().await;
    assert_eq!(
        beat.jobs.as_slice(),
        [HeldJob { job: sent.job, run: 1, attempt: 1 }],
        "held while it comes"
    );
    assert_eq!(sent.done(&mut conn, 2).await, Verdict::Ok);
    let ended = result(&mut conn, sent.job).await;
    assert_eq!((ended.status, ended.stdout), (JobStatus::Ok, sent.listed()));
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
    assert_eq!(scene.stop().await, Summary { ended: 1, killed: 0 });
}

#[tokio::test]
async fn a_connection_cut_inside_a_chunk_costs_that_chunk_alone() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("big.bin", noise(5 * MIB + 3))]);
    let (id, _, bytes) = &sent.blobs[0];
    conn.assign(sent.job, &sent.payload("x")).await;
    sent.begin(&mut conn, 0, 1).await;
    sent.chunks(&mut conn, 0, [0, 1, 3, 4]).await;
    assert_eq!(conn.about::<Grant>(*id).await.window, 4, "four are stored");
    conn.stream.write_all(&chunk_frame(*id, bytes, 2)[..MIB / 2]).await.unwrap();
    drop(conn);

    let (mut conn, beat) = scene.accept(3).await;
    assert_eq!(beat.jobs.as_slice(), [HeldJob { job: sent.job, run: 0, attempt: 1 }]);
    let grant = sent.begin(&mut conn, 0, 1).await;
    assert_eq!((grant.window, indices(&grant.held)), (8, vec![0, 1, 3, 4]));
    sent.chunks(&mut conn, 0, [2, 5]).await;
    assert_eq!(sent.done(&mut conn, 0).await, Verdict::Ok);
    drop(conn);

    // All is here, and the leader may ask again; another attempt of the same job takes it too.
    let (mut conn, _) = scene.accept(3).await;
    conn.assign(sent.job, &sent.payload("x")).await;
    let grant = sent.begin(&mut conn, 0, 2).await;
    assert_eq!(grant.held.chunk_count(), 6);
    assert_eq!(sent.done(&mut conn, 0).await, Verdict::Ok);
    conn.start(sent.job, 1, 2).await;
    assert_eq!(result(&mut conn, sent.job).await.stdout, sent.listed());
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
}

/// The bytes of all frames that bring what is not held yet, Done at the end.
fn rest(sent: &Sent, held: &Ranges) -> Vec<u8> {
    let (id, _, bytes) = &sent.blobs[0];
    let missing = (0..bytes.len().div_ceil(MIB))
        .filter(|at| !held.indices().any(|index| index as usize == *at));
    let mut stream: Vec<u8> = missing.flat_map(|index| chunk_frame(*id, bytes, index)).collect();
    let mut done = Vec::new();
    digest(bytes).encode(&mut done);
    let head =
        Head { msg_id: *id, payload_len: done.len().try_into().unwrap(), ..Head::new(Kind::Done) };
    head.append(Generation::F2, &mut stream).unwrap();
    stream.extend(done);
    stream
}

#[tokio::test]
async fn a_connection_cut_anywhere_loses_nothing_and_brings_no_wrong_byte() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("big.bin", noise(7 * MIB + 100_001))]);
    let seed = u64::from(Uuid::new_v4().as_fields().0);
    println!("seed {seed}");
    conn.assign(sent.job, &sent.payload("x")).await;
    for cut in 0..u64::from(support::scaled(12, 500)) {
        let grant = sent.begin(&mut conn, 0, 1).await;
        let stream = rest(&sent, &grant.held);
        // Short ones often, so that many cuts fit into one blob.
        let part =
            usize::try_from(heft::core::retry::mix(seed + cut) % (MIB as u64 + 5000)).unwrap();
        conn.stream.write_all(&stream[..part.min(stream.len() - 1)]).await.unwrap();
        drop(conn);
        conn = scene.accept(3).await.0;
    }
    let grant = sent.begin(&mut conn, 0, 1).await;
    conn.stream.write_all(&rest(&sent, &grant.held)).await.unwrap();
    assert_eq!(conn.about::<Verdict>(sent.blobs[0].0).await, Verdict::Ok);
    conn.start(sent.job, 1, 1).await;
    assert_eq!(result(&mut conn, sent.job).await.stdout, sent.listed());
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
}

#[tokio::test]
async fn a_damaged_chunk_is_asked_for_alone_and_a_wrong_digest_twice_fails() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("a", noise(3 * MIB)), ("b", noise(2 * MIB))]);
    conn.assign(sent.job, &sent.payload("x")).await;
    sent.begin(&mut conn, 0, 1).await;
    let (a, _, bytes) = &sent.blobs[0];
    sent.chunks(&mut conn, 0, [0]).await;
    conn.chunk(*a, bytes, 1, true).await;
    sent.chunks(&mut conn, 0, [2]).await;
    let Verdict::Resend(ranges) = sent.done(&mut conn, 0).await else { panic!() };
    assert_eq!(indices(&ranges), [1]);
    sent.chunks(&mut conn, 0, [1]).await;
    assert_eq!(sent.done(&mut conn, 0).await, Verdict::Ok);

    sent.begin(&mut conn, 1, 1).await;
    let b = sent.blobs[1].0;
    let wrong = digest(b"something else");
    sent.chunks(&mut conn, 1, [0, 1]).await;
    conn.say(b, &wrong).await;
    let Verdict::Resend(ranges) = conn.about(b).await else { panic!() };
    assert_eq!(indices(&ranges), [0, 1]);
    sent.chunks(&mut conn, 1, [0, 1]).await;
    conn.say(b, &wrong).await;
    let Verdict::Failed { reason, .. } = conn.about(b).await else { panic!() };
    assert_eq!(reason, Reason::BAD_DIGEST);
    give_up(&mut conn, sent.job).await;
    scene.nothing_is_left().await;
}

/// The leader takes the job elsewhere; the worker answers for its credit.
async fn give_up(conn: &mut Conn, job: Uuid) {
    conn.say(job, &Cancel { attempt: 1, text: "elsewhere".into() }).await;
    assert_eq!(result(conn, job).await.status, JobStatus::Cancelled);
    assert_eq!(conn.credit().await, 1);
    assert!(conn.heartbeat().await.jobs.as_slice().is_empty());
}

#[tokio::test]
async fn a_full_disk_is_told_with_the_place_and_the_job_goes_elsewhere() {
    let scene = scene(Lister { full: Some("full"), ..Lister::default() }, |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("full", noise(2 * MIB)), ("fine", noise(MIB))]);
    conn.assign(sent.job, &sent.payload("x")).await;
    for file in [0, 1] {
        sent.begin(&mut conn, file, 1).await;
    }
    sent.chunks(&mut conn, 1, [0]).await;
    sent.chunks(&mut conn, 0, [0, 1]).await;
    let Verdict::Failed { reason, text } = conn.about(sent.blobs[0].0).await else { panic!() };
    assert_eq!(reason, Reason::DISK_FULL);
    assert!(
        text.as_str().contains("\"full\" in /full") && text.as_str().contains("free space"),
        "{text}"
    );
    give_up(&mut conn, sent.job).await;
    scene.nothing_is_left().await;
}

#[tokio::test]
async fn c08_bad_names_are_refused_before_a_byte_and_unknown_transfers_at_once() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    for names in [["ok", "../up"], ["ok", "./ok"], ["ok", "ok/in"]] {
        let sent = Sent::new(&[(names[0], vec![1]), (names[1], vec![2])]);
        conn.assign(sent.job, &sent.payload("x")).await;
        let id = sent.blobs[0].0;
        conn.say(id, &sent.open(0, 1)).await;
        let Verdict::Failed { reason, text } = conn.about(id).await else { panic!() };
        assert_eq!(reason, Reason::INVALID);
        assert!(text.as_str().contains("invalid file name"), "{text}");
        assert_eq!(job_directories(scene.jobs()), 0);
        give_up(&mut conn, sent.job).await;
    }
    let stranger = Sent::new(&[("a", vec![1])]);
    let id = stranger.blobs[0].0;
    conn.say(id, &stranger.open(0, 1)).await;
    assert_eq!(conn.about::<Abort>(id).await.reason, Reason::UNKNOWN);
    stranger.chunks(&mut conn, 0, [0]).await;
    conn.say(id, &digest(&[1])).await;
    assert_eq!(conn.about::<Abort>(id).await.reason, Reason::UNKNOWN);
    let lying = Sent::new(&[("a", vec![1])]);
    conn.assign(lying.job, &lying.payload("x")).await;
    conn.say(lying.blobs[0].0, &Open { size: 2, ..lying.open(0, 1) }).await;
    let Verdict::Failed { reason, .. } = conn.about(lying.blobs[0].0).await else { panic!() };
    assert_eq!(reason, Reason::INVALID);
}

#[tokio::test]
async fn inputs_nobody_comes_back_for_are_dropped_and_their_place_is_free() {
    let scene = scene(Lister::default(), |_| {}).await;
    let limits = [(LimitId::WORKER_GRACE_MS, 1)];
    let (mut conn, _) = scene.accept_with(4, OURS, &limits).await;
    let sent = Sent::new(&[("a", noise(2 * MIB))]);
    conn.assign(sent.job, &sent.payload("x")).await;
    sent.begin(&mut conn, 0, 1).await;
    sent.chunks(&mut conn, 0, [0]).await;
    drop(conn);
    scene.nothing_is_left().await;
    let free = async {
        loop {
            let (stream, _) = scene.listener.accept().await.unwrap();
            let mut conn = Conn::new(stream);
            conn.expect(Kind::HelloWorker).await;
            conn.welcome().await;
            if conn.credit().await == 4 {
                return;
            }
        }
    };
    timeout(PATIENCE, free).await.expect("the place is free");
}

#[tokio::test]
async fn a_stopping_worker_drops_what_it_was_receiving() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("a", noise(2 * MIB))]);
    conn.assign(sent.job, &sent.payload("x")).await;
    sent.begin(&mut conn, 0, 1).await;
    sent.chunks(&mut conn, 0, [0]).await;
    let jobs = scene.jobs().to_owned();
    let Scene { worker, stop, work_dir, .. } = scene;
    drop(stop);
    drop(conn);
    assert_eq!(timeout(PATIENCE, worker).await.unwrap().unwrap(), Summary { ended: 0, killed: 0 });
    assert_eq!(job_directories(&jobs), 0);
    assert_eq!(open_beneath(work_dir.path()), 0);
}

/// The leader's end of the transfers that bring a result, over any number of connections.
struct Taker {
    job: Uuid,
    downloads: HashMap<Uuid, (Download, MemorySink)>,
    reports: mpsc::UnboundedSender<Report>,
    /// Chunks that came whole.
    chunks: usize,
}

impl Taker {
    fn new(job: Uuid) -> Self {
        let (reports, _) = mpsc::unbounded_channel();
        Taker { job, downloads: HashMap::new(), reports, chunks: 0 }
    }

    /// Takes the next frame and answers it; gives the result when it is there.
    async fn step(&mut self, conn: &mut Conn) -> Option<JobResult> {
        let got = conn.read().await.expect("more of the result");
        let mut out = Vec::new();
        let id = got.msg_id;
        match got.kind {
            Kind::AckJob => {
                assert_eq!(got.corr_id, self.job);
                return Some(JobResult::parse(&got.payload).unwrap());
            }
            Kind::Open => {
                let open = Open::decode(&got.payload).unwrap();
                assert_eq!((open.owner, open.chunk_bytes), (self.job, CHUNK_BYTES_MAX));
                assert_eq!(id, blob_id(self.job, open.attempt, open.purpose, 0));
                match self.downloads.get_mut(&id) {
                    Some((download, _)) => download.reopen(open, &mut out),
                    None => {
                        let sink = MemorySink::default();
                        let reports = self.reports.clone();
                        let mut download =
                            Download::start(id, open, Box::new(sink.clone()), reports).unwrap();
                        download.grant(&mut out);
                        self.downloads.insert(id, (download, sink));
                    }
                }
            }
            Kind::Chunk => {
                self.chunks += 1;
                let (head, sent) = ChunkHead::decode(&got.payload).unwrap();
                let bytes = bytes::Bytes::copy_from_slice(sent);
                self.downloads.get_mut(&id).unwrap().0.on_chunk(
                    head,
                    head.crc_sent,
                    bytes,
                    &mut out,
                );
            }
            Kind::Done => {
                let done = Done::decode(&got.payload).unwrap();
                self.downloads.get_mut(&id).unwrap().0.on_done(&done, &mut out);
            }
            other => {
                assert!(matches!(other, Kind::Heartbeat | Kind::Progress | Kind::Credit), "{other}")
            }
        }
        for frame in out {
            conn.send(frame.kind, frame.msg_id, &frame.payload).await;
        }
        None
    }

    /// Takes the rest: the result, and the parts that it names.
    async fn rest(mut self, conn: &mut Conn) -> (JobResult, HashMap<Purpose, Vec<u8>>) {
        let result = loop {
            if let Some(result) = self.step(conn).await {
                break result;
            }
        };
        let named =
            [&result.archive, &result.stdout_blob, &result.stderr_blob].into_iter().flatten();
        let mut came = HashMap::new();
        let mut chunks = 0;
        for blob in named {
            let (download, sink) = self.downloads.remove(&blob.id).expect("it came");
            assert!(download.is_whole(), "before the result");
            let bytes = sink.take();
            assert_eq!((bytes.len() as u64, blob.digest), (blob.size, Some(digest(&bytes).digest)));
            chunks += bytes.len().div_ceil(MIB);
            came.insert(download.opened().purpose, bytes);
        }
        assert!(self.downloads.is_empty(), "all are named");
        assert_eq!(self.chunks, chunks, "what came whole did not come again");
        (result, came)
    }
}

async fn take_result(conn: &mut Conn, job: Uuid) -> (JobResult, HashMap<Purpose, Vec<u8>>) {
    Taker::new(job).rest(conn).await
}

#[tokio::test]
async fn a_result_whose_connection_is_cut_again_and_again_arrives_once_and_right() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[]);
    conn.assign(sent.job, &sent.payload("attach")).await;
    conn.start(sent.job, 1, 1).await;
    running(&mut conn, sent.job).await;
    let mut taker = Taker::new(sent.job);
    for cut in 0..7 {
        // One more chunk on each connection, then some bytes of the next.
        while taker.chunks <= cut {
            assert_eq!(taker.step(&mut conn).await, None);
        }
        drop(conn);
        conn = scene.accept(3).await.0;
    }
    let (result, came) = taker.rest(&mut conn).await;
    assert_eq!(result.status, JobStatus::Ok);
    assert!(came[&Purpose::Archive] == noise(8 * MIB));
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
}

/// A handler of programs with one program, `x`.
fn exec(root: &Path, script: &str) -> Exec {
    use std::os::unix::fs::PermissionsExt;
    let dir = |name: &str| {
        std::fs::create_dir_all(root.join(name)).unwrap();
        root.join(name)
    };
    let config =
        ExecConfig { exe_dir: dir("exe"), cache_dir: dir("cache"), ..ExecConfig::default() };
    let path = config.exe_dir.join("x");
    std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    Exec::new(config)
}

const LARGE: &str =
    "cat in.bin in.bin > made.bin; head -c 5242880 /dev/zero | tr '\\0' o; echo small >&2";

async fn run_large(conn: &mut Conn, sent: &Sent) {
    conn.assign(sent.job, &sent.payload("x")).await;
    sent.begin(conn, 0, 1).await;
    sent.chunks(conn, 0, 0..4).await;
    assert_eq!(sent.done(conn, 0).await, Verdict::Ok);
    conn.start(sent.job, 1, 1).await;
    running(conn, sent.job).await;
}

fn check_large(result: &JobResult, came: &HashMap<Purpose, Vec<u8>>, sent: &Sent) {
    assert_eq!((&result.status, result.stderr.as_str()), (&JobStatus::Ok, "small\n"));
    assert_eq!((result.stdout.len(), &result.output_archive), (64 * 1024, &None));
    assert!(
        came[&Purpose::Stdout].len() == 5 * MIB
            && came[&Purpose::Stdout].iter().all(|byte| *byte == b'o')
    );
    let mut archive = zip::ZipArchive::new(io::Cursor::new(&came[&Purpose::Archive])).unwrap();
    assert_eq!(archive.len(), 1, "the input is not packed");
    let mut made = Vec::new();
    io::Read::read_to_end(&mut archive.by_name("made.bin").unwrap(), &mut made).unwrap();
    assert!(made == [sent.blobs[0].2.as_slice(), sent.blobs[0].2.as_slice()].concat());
    assert!(came[&Purpose::Archive].len() > 8 * MIB / 2);
}

#[tokio::test]
async fn a_large_archive_and_output_go_as_blobs_and_nothing_stays() {
    let programs = tempfile::tempdir().unwrap();
    let scene = scene(exec(programs.path(), LARGE), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("in.bin", noise(4 * MIB))]);
    run_large(&mut conn, &sent).await;
    let (result, came) = take_result(&mut conn, sent.job).await;
    check_large(&result, &came, &sent);
    assert_eq!((result.run, result.attempts), (Some(1), Some(1)));
    assert!(job_directories(scene.jobs()) > 0, "kept until it is settled");
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
    assert_eq!(scene.stop().await, Summary { ended: 1, killed: 0 });
}

#[tokio::test]
async fn co04_a_leader_that_says_nothing_of_parts_gets_files_deflated_as_before() {
    let programs = tempfile::tempdir().unwrap();
    let script = "head -c 8388608 /dev/zero > zeros";
    let scene = scene(exec(programs.path(), script), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let (old, new) = (Sent::new(&[]), Sent::new(&[]));
    conn.assign(old.job, &old.payload("x")).await;
    conn.start(old.job, 1, 1).await;
    let inside = result(&mut conn, old.job).await;
    let archive = inside.output_archive.unwrap();
    assert_eq!((inside.archive, archive.len() < 100_000), (None, true));
    let mut archive = zip::ZipArchive::new(io::Cursor::new(&archive)).unwrap();
    let entry = archive.by_name("zeros").unwrap();
    assert_eq!((entry.size(), entry.compression()), (8 << 20, zip::CompressionMethod::Deflated));
    drop(entry);
    conn.settle(old.job, 1).await;

    conn.assign(new.job, &new.payload("x")).await;
    conn.start_with_parts(new.job, 1, 1).await;
    let (beside, came) = take_result(&mut conn, new.job).await;
    assert_eq!((beside.status, beside.output_archive), (JobStatus::Ok, None));
    let mut archive = zip::ZipArchive::new(io::Cursor::new(&came[&Purpose::Archive])).unwrap();
    let entry = archive.by_name("zeros").unwrap();
    assert_eq!((entry.size(), entry.compression()), (8 << 20, zip::CompressionMethod::Stored));
    drop(entry);
    conn.settle(new.job, 1).await;
    scene.nothing_is_left().await;
    assert_eq!(scene.stop().await, Summary { ended: 2, killed: 0 });
}

#[tokio::test]
async fn c31_large_results_are_sent_again_after_a_break_and_after_a_restart() {
    let programs = tempfile::tempdir().unwrap();
    let mut scene = scene(exec(programs.path(), LARGE), |config| config.keep_results = true).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("in.bin", noise(4 * MIB))]);
    run_large(&mut conn, &sent).await;
    // The connection breaks while the transfers are open.
    conn.expect_open().await;
    drop(conn);
    let (mut conn, beat) = scene.accept(4).await;
    assert_eq!(beat.jobs.as_slice(), [HeldJob { job: sent.job, run: 1, attempt: 1 }]);
    let (result, came) = take_result(&mut conn, sent.job).await;
    check_large(&result, &came, &sent);
    // As if it was killed.
    scene.worker.abort();
    assert!((&mut scene.worker).await.unwrap_err().is_cancelled());
    drop(conn);

    let (again, _stop) = start(&scene.config, exec(programs.path(), "echo never"));
    let (mut conn, beat) = scene.accept(4).await;
    assert_eq!(beat.jobs.as_slice(), [HeldJob { job: sent.job, run: 1, attempt: 1 }]);
    let (result, came) = take_result(&mut conn, sent.job).await;
    check_large(&result, &came, &sent);
    conn.settle(sent.job, 1).await;
    while !conn.heartbeat().await.jobs.as_slice().is_empty() {}
    heft::worker::remove_abandoned(scene.jobs()).unwrap();
    scene.nothing_is_left().await;
    again.abort();
}

#[tokio::test]
async fn parts_that_the_leader_does_not_take_do_not_hold_up_the_job() {
    let scene = scene(Lister::default(), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[]);
    conn.assign(sent.job, &sent.payload("attach")).await;
    conn.start(sent.job, 1, 1).await;
    let open = conn.expect_open().await;
    conn.say(open, &Abort { reason: Reason::SPOOL_FULL, text: "no room".into() }).await;
    let ended = result(&mut conn, sent.job).await;
    assert_eq!(
        (ended.status, ended.archive, ended.archive_lost),
        (JobStatus::Failed, None, Some(8 << 20))
    );
    assert!(ended.stderr.contains("8388608 bytes of the result are left out"), "{}", ended.stderr);
    assert!(ended.stderr.contains("no room"), "{}", ended.stderr);
    drop(conn);

    // One that does not want the result at all hears that it is given up, and nothing is kept. What
    // lies in memory holds its place until then.
    let (mut conn, _) = scene.accept(3).await;
    let other = Sent::new(&[]);
    conn.assign(other.job, &other.payload("attach")).await;
    conn.start(other.job, 1, 1).await;
    let mut opened = Vec::new();
    for _ in 0..2 {
        opened.push(conn.expect_open().await);
    }
    let unwanted = blob_id(other.job, 1, Purpose::Archive, 0);
    assert!(opened.contains(&unwanted), "both results are on their way");
    conn.say(unwanted, &Abort { reason: Reason::UNKNOWN, text: "ended".into() }).await;
    assert_eq!(result(&mut conn, other.job).await.status, JobStatus::Cancelled);
    assert_eq!(conn.credit().await, 1);
    while conn.heartbeat().await.jobs.as_slice().len() > 1 {}
    drop(conn);

    // A leader without transfers gets what fits a frame.
    let (mut conn, _) = scene.accept_with(3, Features::default(), &[]).await;
    let ended = result(&mut conn, sent.job).await;
    assert_eq!((ended.archive, ended.archive_lost), (None, Some(8 << 20)));
    assert!(ended.stderr.contains("takes no transfers"), "{}", ended.stderr);
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
}

#[tokio::test]
async fn a_part_that_the_leader_could_never_hold_is_left_out_and_the_job_fails() {
    let programs = tempfile::tempdir().unwrap();
    let scene = scene(exec(programs.path(), LARGE), |_| {}).await;
    let (mut conn, _) = scene.accept(4).await;
    let sent = Sent::new(&[("in.bin", noise(4 * MIB))]);
    run_large(&mut conn, &sent).await;
    // The first that is opened.
    let archive = conn.expect_open().await;
    assert_eq!(archive, blob_id(sent.job, 1, Purpose::Archive, 0));
    conn.say(archive, &Abort { reason: Reason::TOO_LARGE, text: "room for 7".into() }).await;
    let (result, came) = take_result(&mut conn, sent.job).await;
    assert_eq!((result.status, result.archive.is_none()), (JobStatus::Failed, true));
    assert!(result.archive_lost.is_some_and(|bytes| bytes > 4 << 20), "{:?}", result.archive_lost);
    assert!(
        result.stderr.contains("are left out: the leader refused it: room for 7"),
        "{}",
        result.stderr
    );
    assert_eq!((came.len(), came[&Purpose::Stdout].len()), (1, 5 * MIB), "what fits is there");
    conn.settle(sent.job, 1).await;
    scene.nothing_is_left().await;
}

impl Conn {
    /// The id of the next transfer that the worker opens.
    async fn expect_open(&mut self) -> Uuid {
        loop {
            let got = self.read().await.expect("an Open");
            if got.kind == Kind::Open {
                return got.msg_id;
            }
        }
    }
}
