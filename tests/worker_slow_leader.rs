//! A worker of a heft leader that takes its time to answer the hello, from a tenth of a second to a
//! minute: what it runs and what it holds is never answered as to a classic leader. Times are a
//! hundredth of the real ones.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/fake_leader.rs"]
mod fake_leader;
#[path = "../src/noise.rs"]
mod noise;

use chunking::Kind;
use chunking::message::{Done, Features, Grant, LimitId, Open, Purpose, Verdict};
use fake_leader::{Conn, PATIENCE};
use heft::core::retry::Backoff;
use heft::model::{JobResult, JobStatus, JsonModel};
use heft::peer::PROBE_CLIENT_ID;
use heft::worker::{Content, Handler, Job, JobContext, Summary, Worker, WorkerConfig};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::timeout;
use uuid::Uuid;

const MIB: usize = 1024 * 1024;

/// From 0.1 to 60 s, shortened.
const DELAYS_MS: [u64; 9] = [1, 3, 6, 10, 20, 50, 100, 300, 600];

/// 500 ms, shortened. The other limits are far away: a busy machine must not make the difference.
const WELCOME_WAIT: Duration = Duration::from_millis(5);

/// An archive that no frame takes, and a standard output that would be cut.
const ARCHIVE_BYTES: usize = 5 * MIB;

/// Runs a job when it is let, and attaches what is large.
struct Large(Arc<Semaphore>);

impl Handler for Large {
    async fn run(&self, job: Job, context: JobContext) -> JobResult {
        self.0.acquire().await.unwrap().forget();
        if job.payload.as_ref() == b"large" {
            context
                .attach(Purpose::Archive, Content::Memory(noise::noise(ARCHIVE_BYTES, 1).into()))
                .unwrap();
        }
        JobResult { stdout: "done".into(), ..job.result(JobStatus::Ok) }
    }
}

struct Scene {
    listener: TcpListener,
    config: WorkerConfig,
    gate: Arc<Semaphore>,
    worker: JoinHandle<Summary>,
    stop: oneshot::Sender<()>,
    _work_dir: tempfile::TempDir,
}

impl Scene {
    async fn start(change: impl FnOnce(&mut WorkerConfig)) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let work_dir = tempfile::tempdir().unwrap();
        let reconnect = Backoff {
            first: Duration::from_millis(1),
            max: Duration::from_millis(5),
            jitter_percent: 20,
        };
        let mut config = WorkerConfig {
            work_dir: work_dir.path().to_owned(),
            welcome_wait: WELCOME_WAIT,
            reconnect,
            stop_grace: PATIENCE,
            ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
        };
        change(&mut config);
        let gate = Arc::new(Semaphore::new(0));
        let (worker, stop) = run(&config, &gate);
        Scene { listener, config, gate, worker, stop, _work_dir: work_dir }
    }

    /// The next connection, up to the worker's hello.
    async fn accept(&self) -> Conn {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it connects").unwrap();
        let mut conn = Conn::new(stream);
        conn.expect(Kind::HelloWorker).await;
        conn
    }

    /// The next connection, which has to be a probe.
    async fn probe(&self) -> Conn {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it probes").unwrap();
        let mut conn = Conn::new(stream);
        assert_eq!(conn.expect(Kind::HelloClient).await.subject, PROBE_CLIENT_ID);
        conn
    }

    /// The next connection, welcomed at once.
    async fn welcome(&self) -> Conn {
        let mut conn = self.accept().await;
        conn.welcome_with(Features::TRANSFERS, &[]).await;
        conn
    }

    /// The next connection, welcomed late. The worker says nothing before, but for its credit if it
    /// has taken the leader for a classic one.
    async fn welcome_late(&self, delay: Duration) -> Conn {
        let mut conn = self.accept().await;
        late_welcome(&mut conn, delay).await;
        conn
    }

    async fn stop(self) {
        drop(self.stop);
        timeout(PATIENCE, self.worker).await.expect("it stops").unwrap();
    }
}

fn run(config: &WorkerConfig, gate: &Arc<Semaphore>) -> (JoinHandle<Summary>, oneshot::Sender<()>) {
    let worker = Worker::new(config.clone(), Large(gate.clone())).unwrap();
    let (stop, stopped) = oneshot::channel();
    (tokio::spawn(worker.run(async { drop(stopped.await) })), stop)
}

async fn late_welcome(conn: &mut Conn, delay: Duration) {
    let early = async {
        while let Some(got) = conn.read().await {
            assert_eq!(got.kind, Kind::Credit, "before the Welcome");
        }
    };
    assert!(timeout(delay, early).await.is_err(), "it closed the connection");
    conn.welcome_with(Features::TRANSFERS, &[]).await;
}

async fn started(conn: &mut Conn, payload: &str) -> Uuid {
    let job = Uuid::new_v4();
    conn.assign(job, payload).await;
    conn.start(job, 1, 1).await;
    conn.find("Running", |got| got.kind == Kind::Progress && got.msg_id == job).await;
    job
}

async fn result(conn: &mut Conn, job: Uuid) -> JobResult {
    let ack = conn.find("AckJob", |got| got.kind == Kind::AckJob && got.corr_id == job).await;
    JobResult::parse(&ack.payload).unwrap()
}

/// The result with all of its archive, by transfer.
async fn large_result(conn: &mut Conn, job: Uuid) {
    let open = conn.find("Open", |got| matches!(got.kind, Kind::Open | Kind::AckJob)).await;
    assert_eq!(open.kind, Kind::Open, "the archive goes before the result");
    let size = <Open as chunking::message::Body>::decode(&open.payload).unwrap().size;
    assert_eq!(size, ARCHIVE_BYTES as u64);
    let grant = Grant {
        window: 8,
        reason: chunking::message::Reason::NONE,
        text: "".into(),
        held: chunking::Ranges::default(),
        part: Default::default(),
    };
    conn.say(open.msg_id, &grant).await;
    conn.about::<Done>(open.msg_id).await;
    conn.say(open.msg_id, &Verdict::Ok).await;
    let result = result(conn, job).await;
    assert_eq!(result.archive.map(|blob| blob.size), Some(ARCHIVE_BYTES as u64));
    assert_eq!((result.archive_lost, result.run, result.status), (None, Some(1), JobStatus::Ok));
    conn.settle(job, 1).await;
}

async fn over_delays<F: Future<Output = ()> + Send + 'static>(scene: impl Fn(Duration) -> F) {
    let mut scenes = JoinSet::new();
    for delay in DELAYS_MS {
        scenes.spawn(scene(Duration::from_millis(delay)));
    }
    while let Some(ended) = scenes.join_next().await {
        ended.unwrap();
    }
}

#[tokio::test]
async fn an_idle_worker_stays_one_of_ours() {
    over_delays(|delay| async move {
        let scene = Scene::start(|_| {}).await;
        drop(scene.welcome().await);
        let mut conn = scene.welcome_late(delay).await;
        let job = started(&mut conn, "small").await;
        scene.gate.add_permits(1);
        assert_eq!(result(&mut conn, job).await.run, Some(1));
        conn.settle(job, 1).await;
        scene.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_job_that_ends_while_the_answer_is_waited_for_keeps_its_archive() {
    over_delays(|delay| async move {
        let scene = Scene::start(|_| {}).await;
        let mut conn = scene.welcome().await;
        let job = started(&mut conn, "large").await;
        drop(conn);
        let mut conn = scene.accept().await;
        scene.gate.add_permits(1);
        late_welcome(&mut conn, delay).await;
        large_result(&mut conn, job).await;
        scene.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_finished_job_that_is_held_keeps_its_archive() {
    over_delays(|delay| async move {
        let scene = Scene::start(|_| {}).await;
        let mut conn = scene.welcome().await;
        let job = started(&mut conn, "large").await;
        scene.gate.add_permits(1);
        conn.find("Open", |got| got.kind == Kind::Open).await;
        drop(conn);
        let mut conn = scene.welcome_late(delay).await;
        large_result(&mut conn, job).await;
        scene.stop().await;
    })
    .await;
}

#[tokio::test]
async fn results_of_an_earlier_process_wait_for_the_first_answer_of_a_slow_leader() {
    over_delays(|delay| async move {
        let mut scene = Scene::start(|config| config.keep_results = true).await;
        let mut conn = scene.welcome().await;
        let job = started(&mut conn, "large").await;
        scene.gate.add_permits(1);
        conn.find("Open", |got| got.kind == Kind::Open).await;
        scene.worker.abort();
        while conn.read().await.is_some() {}
        (scene.worker, scene.stop) = run(&scene.config, &scene.gate);
        let mut conn = scene.welcome_late(delay).await;
        large_result(&mut conn, job).await;
        scene.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_first_answer_that_comes_late_makes_a_classic_worker_one_of_ours_for_good() {
    over_delays(|delay| async move {
        let scene = Scene::start(|_| {}).await;
        let mut conn = scene.welcome_late(delay).await;
        let job = started(&mut conn, "large").await;
        scene.gate.add_permits(1);
        conn.find("Open", |got| got.kind == Kind::Open).await;
        drop(conn);
        let mut conn = scene.welcome_late(delay).await;
        large_result(&mut conn, job).await;
        scene.stop().await;
    })
    .await;
}

#[tokio::test]
async fn a_heft_leader_that_never_answers_is_tried_on_another_connection() {
    let scene = Scene::start(|config| config.welcome_wait_max = Duration::from_millis(100)).await;
    let mut conn = scene.welcome().await;
    let job = started(&mut conn, "large").await;
    scene.gate.add_permits(1);
    drop(conn);
    let mut silent = scene.accept().await;
    while let Some(got) = silent.read().await {
        assert_eq!(got.kind, Kind::Credit, "nothing else is said before the Welcome");
    }
    let mut conn = scene.welcome().await;
    large_result(&mut conn, job).await;
    scene.stop().await;
    let waits = WorkerConfig::new("127.0.0.1:1").welcome_wait_max;
    assert!(waits > Duration::from_secs(60), "a pause of a minute is sat out");
}

/// Two seconds and more, shortened.
const PROBES: Backoff = Backoff {
    first: Duration::from_millis(50),
    max: Duration::from_millis(100),
    jitter_percent: 20,
};

async fn closed(conn: &mut Conn) {
    while let Some(got) = conn.read().await {
        assert_eq!(got.kind, Kind::Credit, "nothing else is said there");
    }
}

#[tokio::test]
async fn a_line_that_was_dead_from_the_hello_on_is_given_up_when_a_probe_is_answered() {
    let scene = Scene::start(|config| config.probe_backoff = PROBES).await;
    let mut dead = scene.accept().await;
    drop(scene.probe().await);
    let mut probe = scene.probe().await;
    probe.welcome().await;
    assert!(probe.read().await.is_none(), "a probe brings nothing but its hello");
    closed(&mut dead).await;
    let mut conn = scene.welcome().await;
    let job = started(&mut conn, "small").await;
    scene.gate.add_permits(1);
    assert_eq!(result(&mut conn, job).await.run, Some(1));
    conn.settle(job, 1).await;
    scene.stop().await;
}

#[tokio::test]
async fn a_line_that_is_dead_after_a_reconnect_is_given_up_after_the_silence_limit() {
    let scene = Scene::start(|_| {}).await;
    let mut conn = scene.accept().await;
    let more = Features::TRANSFERS.with(Features::KEEPALIVE);
    conn.welcome_with(more, &[(LimitId::SILENCE_MS, 500)]).await;
    let job = started(&mut conn, "large").await;
    scene.gate.add_permits(1);
    drop(conn);
    let mut dead = scene.accept().await;
    scene.probe().await.welcome().await;
    closed(&mut dead).await;
    let mut conn = scene.welcome().await;
    large_result(&mut conn, job).await;
    scene.stop().await;
}

#[tokio::test]
async fn a_classic_leader_is_probed_until_it_gives_out_a_job_and_keeps_its_worker() {
    let scene = Scene::start(|config| config.probe_backoff = PROBES).await;
    let mut conn = scene.accept().await;
    drop(scene.probe().await);
    let mut unanswered = scene.probe().await;
    let job = Uuid::new_v4();
    conn.assign(job, "small").await;
    assert!(
        unanswered.read().await.is_none(),
        "it has spoken: there is nothing to find out any more"
    );
    assert!(timeout(Duration::from_millis(500), scene.probe()).await.is_err());
    scene.gate.add_permits(1);
    assert_eq!(result(&mut conn, job).await.status, JobStatus::Ok);
    scene.stop().await;
}
