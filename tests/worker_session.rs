//! A worker against a leader made of a socket and the wire format: how jobs come, run and are
//! answered, and what a lost connection costs (SPEC 1F, 1I, C05-C07, C17, RD02).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/fake_leader.rs"]
mod fake_leader;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use chunking::Kind;
use chunking::message::{Cancel, Heartbeat, HeldJob};
use fake_leader::{Conn, Got, PATIENCE};
use heft::core::retry::Backoff;
use heft::model::{JobResult, JobStatus, JsonModel, WorkerHello};
use heft::worker::{Handler, Job, JobContext, Summary, Worker, WorkerConfig};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

/// A leader that does what the test says, and a worker that does not know that.
struct Scene {
    listener: TcpListener,
    worker: JoinHandle<Summary>,
    stop: Option<oneshot::Sender<()>>,
    id: Uuid,
    runs: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    work_dir: tempfile::TempDir,
}

/// Runs what the payload says: `wait` for the gate, `big` results, `forever`, else an echo.
fn handler(runs: Arc<AtomicUsize>, gate: Arc<Semaphore>) -> impl Handler {
    move |job: Job, context: JobContext| {
        let (runs, gate) = (runs.clone(), gate.clone());
        async move {
            runs.fetch_add(1, Ordering::SeqCst);
            let text = String::from_utf8_lossy(&job.payload).into_owned();
            match text.as_str() {
                "wait" => gate.acquire().await.unwrap().forget(),
                "forever" => drop(context.cancelled().await),
                "directory" => {
                    let path = context.directory().await.unwrap();
                    std::fs::write(path.join("file"), "1").unwrap();
                }
                "big" => {
                    let archive = Some(vec![7; 4_000_000]);
                    return JobResult { output_archive: archive, ..job.result(JobStatus::Ok) };
                }
                _ => {}
            }
            JobResult { stdout: text, ..job.result(JobStatus::Ok) }
        }
    }
}

async fn scene(change: impl FnOnce(&mut WorkerConfig)) -> Scene {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let work_dir = tempfile::tempdir().unwrap();
    let mut config = WorkerConfig {
        work_dir: work_dir.path().to_owned(),
        welcome_wait: PATIENCE,
        stop_grace: PATIENCE,
        reconnect: Backoff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(20),
            jitter_percent: 20,
        },
        ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
    };
    change(&mut config);
    let (runs, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
    let id = config.id;
    let worker = Worker::new(config, handler(runs.clone(), gate.clone())).unwrap();
    let (stop, stopped) = oneshot::channel();
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    Scene { listener, worker, stop: Some(stop), id, runs, gate, work_dir }
}

impl Scene {
    /// The worker's next connection, up to its Hello.
    async fn accept(&self) -> (Conn, Got) {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it connects").unwrap();
        let mut conn = Conn::new(stream);
        let hello = conn.expect(Kind::HelloWorker).await;
        assert_eq!(hello.msg_id, self.id, "the same id on each connection");
        (conn, hello)
    }

    /// A connection to a leader of ours, up to its first heartbeat.
    async fn accept_ours(&self, credit: i32) -> (Conn, Heartbeat) {
        let (mut conn, _) = self.accept().await;
        conn.welcome().await;
        assert_eq!(conn.credit().await, credit);
        let beat = conn.heartbeat().await;
        (conn, beat)
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }

    async fn stop(mut self) -> Summary {
        drop(self.stop.take());
        timeout(PATIENCE, self.worker).await.expect("it stops").unwrap()
    }
}

fn held(job: Uuid, run: u32, attempt: u32) -> HeldJob {
    HeldJob { job, run, attempt }
}

#[tokio::test]
async fn jobs_of_a_classic_leader_that_are_read_when_its_connection_is_over_do_not_run() {
    let classic = |config: &mut WorkerConfig| {
        (config.welcome_wait, config.parallel_max) = (Duration::from_millis(20), 64);
    };
    let scene = scene(classic).await;
    let (mut conn, _) = scene.accept().await;
    // It reads no result, and the worker in the end no job.
    let large = "x".repeat(3_000_000);
    for _ in 0..5 {
        conn.assign(Uuid::new_v4(), &large).await;
    }
    let (mut sent, mut before) = (5, 0);
    while before == sent || before == 0 {
        // No more at a time than it takes beyond its credit.
        for _ in 0..2_000 {
            conn.assign(Uuid::new_v4(), "small").await;
            sent += 1;
        }
        let mut same = 0;
        while before < sent && same < 10 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            same = if scene.runs() == before { same + 1 } else { 0 };
            before = scene.runs();
        }
    }
    socket2::SockRef::from(&conn.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(conn);
    scene.accept().await;
    assert_eq!(scene.runs(), before, "the leader gives them to another");
}

#[tokio::test]
async fn a_hello_announces_and_credit_follows_the_answer() {
    let scene = scene(|config| {
        config.patterns = vec!["job.assign.A.*".into(), "job.assign.common.>".into()];
        config.parallel_max = 7;
        config.name = Some("w1".into());
    })
    .await;
    let (mut conn, hello) = scene.accept().await;
    assert_eq!(hello.subject, "job.assign.A.*");
    let said = WorkerHello::parse(&hello.payload).unwrap();
    assert_eq!(
        (said.patterns, said.max_parallel),
        (vec!["job.assign.common.>".to_owned()], Some(7))
    );
    assert_eq!(said.heft.name.as_deref(), Some("w1"));
    for feature in ["leases", "progress", "cancel", "redirects"] {
        assert!(said.heft.features.iter().any(|name| name == feature), "{feature}");
    }
    // What goes out before the Welcome has no checksum.
    let early = timeout(Duration::from_millis(100), conn.read()).await;
    assert!(early.is_err(), "{early:?}");
    conn.welcome().await;
    assert_eq!(conn.credit().await, 7);
}

#[tokio::test]
async fn a_job_of_ours_runs_at_start_and_is_held_until_settled() {
    let scene = scene(|_| {}).await;
    let (mut conn, beat) = scene.accept_ours(4).await;
    assert_eq!((beat.credit, beat.jobs.as_slice()), (4, &[][..]));
    let job = Uuid::new_v4();
    conn.assign(job, "wait").await;
    for _ in 0..2 {
        let beat = conn.heartbeat().await;
        assert!(beat.jobs.as_slice().is_empty(), "assigned is not started");
    }
    assert_eq!(scene.runs(), 0);
    conn.start(job, 2, 3).await;
    assert_eq!(conn.running(job).await, (2, 3));
    let beat = conn.heartbeat().await;
    assert_eq!((beat.credit, beat.jobs.as_slice()), (3, &[held(job, 2, 3)][..]));
    scene.gate.add_permits(1);
    let result = conn.result(job).await;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Ok, "wait"));
    assert_eq!((result.job_id, result.run, result.attempts), (job, Some(2), Some(3)));
    assert_eq!(conn.credit().await, 1);
    assert_eq!(conn.heartbeat().await.jobs.as_slice(), [held(job, 2, 3)], "until it is settled");
    conn.settle(job, 2).await;
    while !conn.heartbeat().await.jobs.as_slice().is_empty() {}
    let summary = scene.stop().await;
    assert_eq!(summary, Summary { ended: 1, killed: 0 });
}

#[tokio::test]
async fn a_classic_leader_gets_a_classic_worker() {
    let scene = scene(|config| config.welcome_wait = Duration::from_millis(30)).await;
    let (mut conn, _) = scene.accept().await;
    assert_eq!(conn.credit().await, 4);
    let job = Uuid::new_v4();
    // It comes before the worker has made up its mind, and runs when it has.
    conn.assign(job, "hello").await;
    let result = conn.result(job).await;
    assert_eq!((result.stdout.as_str(), result.run, result.attempts), ("hello", None, None));
    assert_eq!(conn.credit().await, 1);
    conn.assign(job, "hello").await;
    assert_eq!(conn.result(job).await.stdout, "hello", "C17: the stored result");
    assert_eq!(conn.credit().await, 1, "C17: and the credit");
    assert_eq!(scene.runs(), 1);

    // A Welcome that comes late.
    let late = Uuid::new_v4();
    conn.assign(late, "wait").await;
    conn.welcome().await;
    conn.start(late, 1, 1).await;
    assert_eq!(conn.running(late).await, (1, 1));
    while conn.heartbeat().await.jobs.as_slice() != [held(late, 1, 1)] {}
    scene.gate.add_permits(1);
    assert_eq!(conn.result(late).await.run, Some(1));
    assert_eq!(scene.runs(), 2);
}

#[tokio::test]
async fn c17_duplicates_are_answered_or_adopted_and_their_credit_returned() {
    let scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let job = Uuid::new_v4();
    conn.assign(job, "wait").await;
    conn.start(job, 1, 1).await;
    assert_eq!(conn.running(job).await, (1, 1));
    conn.assign(job, "wait").await;
    conn.start(job, 1, 2).await;
    assert_eq!(conn.running(job).await, (1, 2), "the new attempt is adopted");
    assert_eq!(conn.credit().await, 1);
    scene.gate.add_permits(1);
    assert_eq!(conn.result(job).await.attempts, Some(2));
    assert_eq!(conn.credit().await, 1);
    conn.settle(job, 1).await;
    conn.assign(job, "wait").await;
    conn.start(job, 1, 3).await;
    assert_eq!(conn.result(job).await.stdout, "wait", "the stored result");
    assert_eq!(conn.credit().await, 1);
    assert_eq!(scene.runs(), 1);
    // A new run, from the dead-letter queue, is another matter.
    scene.gate.add_permits(1);
    conn.assign(job, "wait").await;
    conn.start(job, 2, 1).await;
    assert_eq!(conn.result(job).await.run, Some(2));
    assert_eq!(scene.runs(), 2);
}

#[tokio::test]
async fn a_lost_connection_costs_neither_running_jobs_nor_results() {
    let scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let (ended, running) = (Uuid::new_v4(), Uuid::new_v4());
    for (job, payload) in [(ended, "quick"), (running, "wait")] {
        conn.assign(job, payload).await;
        conn.start(job, 1, 1).await;
        if job == ended {
            assert_eq!(conn.result(job).await.stdout, "quick");
            assert_eq!(conn.credit().await, 1);
        } else {
            assert_eq!(conn.running(job).await, (1, 1));
        }
    }
    drop(conn);

    let (mut conn, beat) = scene.accept_ours(3).await;
    let mut jobs = beat.jobs.as_slice().to_vec();
    jobs.sort_by_key(|held| held.job);
    let mut both = [held(ended, 1, 1), held(running, 1, 1)];
    both.sort_by_key(|held| held.job);
    assert_eq!(jobs, both, "the first heartbeat lists what is held");
    assert_eq!(conn.result(ended).await.stdout, "quick", "not settled, so it is sent again");
    conn.settle(ended, 1).await;
    while conn.heartbeat().await.jobs.as_slice() != [held(running, 1, 1)] {}
    drop(conn);

    // It ends while nobody is there.
    scene.gate.add_permits(1);
    let (mut conn, _) = scene.accept().await;
    conn.welcome().await;
    let credit = conn.credit().await;
    assert_eq!(conn.result(running).await.stdout, "wait");
    assert!(credit == 4 || conn.credit().await + credit == 4, "its place is free again, once");
    conn.settle(running, 1).await;
    while !conn.heartbeat().await.jobs.as_slice().is_empty() {}
    assert_eq!(scene.runs(), 2);
}

#[tokio::test]
async fn cancel_ends_a_job_and_one_that_has_not_started() {
    let scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let (running, assigned) = (Uuid::new_v4(), Uuid::new_v4());
    conn.assign(running, "forever").await;
    conn.start(running, 1, 1).await;
    conn.running(running).await;
    conn.say(running, &Cancel { attempt: 7, text: "another attempt".into() }).await;
    conn.say(running, &Cancel { attempt: 1, text: "by clientA".into() }).await;
    let result = conn.result(running).await;
    assert_eq!(result.status, JobStatus::Cancelled);
    assert!(result.stderr.starts_with("cancelled: by clientA\n"), "{}", result.stderr);
    assert_eq!(conn.credit().await, 1);

    conn.assign(assigned, "echo").await;
    conn.say(assigned, &Cancel { attempt: 0, text: "".into() }).await;
    let result = conn.result(assigned).await;
    assert_eq!((result.status, result.stderr.as_str()), (JobStatus::Cancelled, "cancelled\n"));
    assert_eq!(conn.credit().await, 1);
    assert_eq!(scene.runs(), 1);
}

#[tokio::test]
async fn w05_a_result_never_exceeds_a_frame() {
    let scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let job = Uuid::new_v4();
    conn.assign(job, "big").await;
    conn.start(job, 1, 1).await;
    // The reader of this test takes no larger frame either.
    let result = conn.result(job).await;
    assert_eq!((result.status, result.output_archive), (JobStatus::Ok, None));
    assert!(result.stderr.contains("archive of 4000000 bytes is left out"), "{}", result.stderr);
}

#[tokio::test]
async fn jobs_beyond_the_parallel_limit_wait_for_a_place() {
    let scene = scene(|config| config.parallel_max = 1).await;
    let (mut conn, _) = scene.accept_ours(1).await;
    let (first, second) = (Uuid::new_v4(), Uuid::new_v4());
    for job in [first, second] {
        conn.assign(job, "wait").await;
        conn.start(job, 1, 1).await;
    }
    assert_eq!(conn.running(first).await, (1, 1));
    while conn.heartbeat().await.jobs.as_slice().len() != 2 {}
    assert_eq!(scene.runs(), 1);
    scene.gate.add_permits(2);
    conn.result(first).await;
    assert_eq!(conn.credit().await, 1);
    conn.running(second).await;
    conn.result(second).await;
}

#[tokio::test]
async fn c21_a_job_directory_is_removed_when_the_result_is_settled() {
    let scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let job = Uuid::new_v4();
    conn.assign(job, "directory").await;
    conn.start(job, 1, 1).await;
    conn.result(job).await;
    conn.credit().await;
    let path = scene.work_dir.path().join("heft").join(job.simple().to_string());
    assert!(path.join("file").exists(), "kept while the result may have to be made again");
    conn.settle(job, 1).await;
    while path.exists() {
        conn.heartbeat().await;
    }
}

#[tokio::test]
async fn rd02_a_redirect_is_followed_at_once() {
    let scene = scene(|config| {
        config.reconnect = Backoff { first: PATIENCE, max: PATIENCE, jitter_percent: 0 }
    })
    .await;
    let other = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (mut conn, _) = scene.accept().await;
    let to = format!("{{\"leader\":\"{}\"}}", other.local_addr().unwrap());
    conn.send(Kind::NotLeader, Uuid::nil(), to.as_bytes()).await;
    let redirected = Scene { listener: other, ..scene };
    redirected.accept_ours(4).await;
}

#[tokio::test]
async fn a_stopping_worker_finishes_its_jobs_takes_no_more_and_leaves() {
    let mut scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let (job, late) = (Uuid::new_v4(), Uuid::new_v4());
    conn.assign(job, "wait").await;
    conn.start(job, 1, 1).await;
    conn.running(job).await;
    drop(scene.stop.take());
    // The next heartbeat but one was certainly sent after the worker had seen that it is to stop.
    conn.heartbeat().await;
    conn.heartbeat().await;
    conn.assign(late, "echo").await;
    conn.start(late, 1, 1).await;
    conn.heartbeat().await;
    scene.gate.add_permits(1);
    conn.result(job).await;
    conn.settle(job, 1).await;
    loop {
        match conn.read().await {
            None => break,
            Some(got) => assert_eq!(got.kind, Kind::Heartbeat, "no credit, no late job"),
        }
    }
    drop(conn);
    assert_eq!(
        timeout(PATIENCE, scene.worker).await.unwrap().unwrap(),
        Summary { ended: 1, killed: 0 }
    );
}

#[tokio::test]
async fn a_job_that_outlasts_the_grace_is_left_to_the_leader() {
    let scene = scene(|config| config.stop_grace = Duration::from_millis(20)).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let job = Uuid::new_v4();
    conn.assign(job, "forever").await;
    conn.start(job, 1, 1).await;
    conn.running(job).await;
    let (summary, ()) = tokio::join!(scene.stop(), async {
        while let Some(got) = conn.read().await {
            assert_eq!(got.kind, Kind::Heartbeat, "no result: another worker will run it");
        }
        drop(conn);
    });
    assert_eq!(summary, Summary { ended: 0, killed: 1 });
}

#[tokio::test]
async fn c31_a_worker_started_again_under_its_id_brings_home_what_was_not_settled() {
    let mut scene = scene(|config| config.keep_results = true).await;
    let (mut conn, _) = scene.accept_ours(4).await;
    let job = Uuid::new_v4();
    conn.assign(job, "echo").await;
    conn.start(job, 1, 2).await;
    conn.result(job).await;
    // As if it was killed.
    scene.worker.abort();
    assert!((&mut scene.worker).await.unwrap_err().is_cancelled());
    drop(conn);

    let config = WorkerConfig {
        id: scene.id,
        work_dir: scene.work_dir.path().to_owned(),
        keep_results: true,
        ..WorkerConfig::new(scene.listener.local_addr().unwrap().to_string())
    };
    let again = Worker::new(config, handler(scene.runs.clone(), scene.gate.clone())).unwrap();
    let again = tokio::spawn(again.run(std::future::pending()));
    let (mut conn, beat) = scene.accept_ours(4).await;
    assert_eq!(beat.jobs.as_slice(), [held(job, 1, 2)]);
    assert_eq!(conn.result(job).await.stdout, "echo");
    conn.assign(job, "echo").await;
    conn.start(job, 1, 3).await;
    assert_eq!(conn.result(job).await.stdout, "echo", "DD01: not run again");
    assert_eq!(conn.credit().await, 1);
    conn.settle(job, 1).await;
    while !conn.heartbeat().await.jobs.as_slice().is_empty() {}
    assert_eq!(scene.runs(), 1);
    again.abort();
}

#[tokio::test]
async fn garbage_ends_the_connection_and_the_worker_comes_back() {
    let scene = scene(|_| {}).await;
    let (mut conn, _) = scene.accept().await;
    conn.send(Kind::Start, Uuid::new_v4(), b"").await;
    conn.send(Kind::Welcome, Uuid::nil(), b"\x01").await;
    conn.stream.write_all(&[0xff; 64]).await.unwrap();
    let (_conn, beat) = scene.accept_ours(4).await;
    assert!(beat.jobs.as_slice().is_empty());
}
