//! Output of running programs, at a worker whose leader follows the test's script: windows, lost
//! connections, results that overtake it, and handlers that show none.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "support/fake_leader.rs"]
mod fake_leader;

use std::path::PathBuf;
use std::time::Duration;

use chunking::Kind;
use chunking::message::{Body, Features, Follow, FollowFlags, Output, OutputSays, Reason, Stream};
use fake_leader::{Conn, Got, PATIENCE};
use heft::core::retry::Backoff;
use heft::model::{JobRequest, JobStatus, JsonModel};
use heft::worker::{Exec, ExecConfig, Handler, Job, JobContext, Worker, WorkerConfig};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

struct Scene {
    listener: TcpListener,
    worker: JoinHandle<()>,
    root: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.worker.abort();
    }
}

/// Prints its arguments one by one, each when there is a file of its number, and ends when there is
/// a file `end`.
const STEPS: &str = r#"cd "$1"; shift; number=0
for text in "$@"; do
    number=$((number + 1))
    while [ ! -e "$number" ]; do sleep 0.02; done
    printf '%s' "$text"
done
while [ ! -e end ]; do sleep 0.02; done"#;

async fn scene<H: Handler>(handler: impl FnOnce(PathBuf) -> H) -> Scene {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let root = tempfile::tempdir().unwrap();
    for dir in ["exe", "jobs", "cache", "go"] {
        std::fs::create_dir(root.path().join(dir)).unwrap();
    }
    let program = root.path().join("exe/steps");
    std::fs::write(&program, format!("#!/bin/sh\n{STEPS}\n")).unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&program, mode).unwrap();
    let config = WorkerConfig {
        work_dir: root.path().join("jobs"),
        welcome_wait: PATIENCE,
        reconnect: Backoff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(20),
            jitter_percent: 20,
        },
        ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
    };
    let worker = Worker::new(config, handler(root.path().to_owned())).unwrap();
    let worker = tokio::spawn(async move {
        worker.run(std::future::pending()).await;
    });
    Scene { listener, worker, root }
}

fn exec(root: PathBuf) -> impl Handler {
    Exec::new(ExecConfig {
        exe_dir: root.join("exe"),
        cache_dir: root.join("cache"),
        ..ExecConfig::default()
    })
}

impl Scene {
    async fn accept(&self) -> Conn {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it connects").unwrap();
        let mut conn = Conn::new(stream);
        let hello = conn.expect(Kind::HelloWorker).await;
        assert!(String::from_utf8_lossy(&hello.payload).contains(r#""follow""#));
        conn.welcome_with(Features::FOLLOW, &[]).await;
        conn.credit().await;
        conn
    }

    /// The program prints up to this step, or ends.
    fn go(&self, step: &str) {
        std::fs::write(self.root.path().join("go").join(step), "").unwrap();
    }

    /// A job that prints these texts, as attempt 3.
    async fn start(&self, conn: &mut Conn, texts: &[&str]) -> Uuid {
        let job = Uuid::new_v4();
        let go = self.root.path().join("go").to_str().unwrap().to_owned();
        let args = std::iter::once(go.as_str()).chain(texts.iter().copied()).map(str::to_owned);
        let request = JobRequest {
            job_id: job,
            client_id: "c".into(),
            exec_name: "steps".into(),
            args: args.collect(),
            ..JobRequest::default()
        };
        conn.send(Kind::AssignJob, job, &request.to_json()).await;
        conn.start(job, 1, 3).await;
        job
    }
}

fn wish(job: Uuid, began: u32, from: u64, until: u64) -> Follow {
    let (stream, flags) = (Stream::Stdout, FollowFlags::STAYS);
    Follow { job, attempt: 3, began, stream, flags, from, until }
}

#[derive(Debug, PartialEq)]
struct Said {
    says: OutputSays,
    began: u32,
    offset: u64,
    text: String,
}

fn said(says: OutputSays, began: u32, offset: u64, text: &str) -> Said {
    Said { says, began, offset, text: text.to_owned() }
}

fn read(got: &Got) -> Said {
    let output = Output::decode(&got.payload).unwrap();
    assert_eq!(output.attempt, 3);
    let Output { says, began, offset, bytes, .. } = output;
    Said { says, began, offset, text: String::from_utf8(bytes.to_vec()).unwrap() }
}

/// What comes next of this follow.
async fn output(conn: &mut Conn, follow: Uuid) -> Said {
    let got = conn.find("output", |got| got.kind == Kind::Output && got.msg_id == follow).await;
    read(&got)
}

/// Nothing of any output comes for a few heartbeats.
async fn no_output(conn: &mut Conn) {
    let mut beats = 0;
    while beats < 4 {
        let got = conn.read().await.expect("it is connected");
        assert_ne!(got.kind, Kind::Output, "{:?}", read(&got));
        beats += usize::from(got.kind == Kind::Heartbeat);
    }
}

#[tokio::test]
async fn a_program_is_shown_within_the_window_while_it_runs_and_its_end_when_all_was_sent() {
    let scene = scene(exec).await;
    let mut conn = scene.accept().await;
    let job = scene.start(&mut conn, &["123456", "789"]).await;
    let follow = Uuid::new_v4();
    conn.say(follow, &wish(job, 0, 0, 4)).await;
    assert_eq!(output(&mut conn, follow).await, said(OutputSays::Begins, 3, 0, ""));
    no_output(&mut conn).await;
    scene.go("1");
    assert_eq!(output(&mut conn, follow).await, said(OutputSays::Bytes, 3, 0, "1234"));
    no_output(&mut conn).await;
    conn.say(follow, &wish(job, 3, 4, 100)).await;
    assert_eq!(output(&mut conn, follow).await, said(OutputSays::Bytes, 3, 4, "56"));
    scene.go("2");
    assert_eq!(output(&mut conn, follow).await, said(OutputSays::Bytes, 3, 6, "789"));
    scene.go("end");
    assert_eq!(output(&mut conn, follow).await, said(OutputSays::Ends, 3, 9, ""));
    let result = conn.find("its result", |got| got.kind == Kind::AckJob).await;
    assert!(String::from_utf8_lossy(&result.payload).contains("123456789"));
}

#[tokio::test]
async fn the_result_waits_for_nobody_and_output_without_room_is_left_to_it() {
    let scene = scene(exec).await;
    let mut conn = scene.accept().await;
    let job = scene.start(&mut conn, &["123456789"]).await;
    let (slow, waiting) = (Uuid::new_v4(), Uuid::new_v4());
    conn.say(slow, &wish(job, 0, 0, 4)).await;
    assert_eq!(output(&mut conn, slow).await, said(OutputSays::Begins, 3, 0, ""));
    // Of a job that is not here nothing is known yet.
    conn.say(waiting, &wish(Uuid::new_v4(), 0, 0, 100)).await;
    ["1", "end"].iter().for_each(|step| scene.go(step));
    let mut sent = None;
    let acked = loop {
        let got = conn.read().await.expect("it is connected");
        match got.kind {
            Kind::AckJob => break got,
            Kind::Output => sent = Some(read(&got)),
            _ => {}
        }
    };
    assert_eq!(acked.corr_id, job);
    if sent.is_none() {
        sent = Some(output(&mut conn, slow).await);
    }
    assert_eq!(sent, Some(said(OutputSays::Bytes, 3, 0, "1234")));
    no_output(&mut conn).await;
    conn.settle(job, 1).await;
    assert_eq!(output(&mut conn, slow).await, said(OutputSays::Ends, 3, 9, ""));
    // What came before is answered from what is kept of the job.
    let late = Uuid::new_v4();
    conn.say(late, &wish(job, 3, 4, 100)).await;
    let refused = output(&mut conn, late).await;
    assert_eq!(refused.says, OutputSays::Refused);
    assert!(refused.text.contains("comes with the result"), "{}", refused.text);
}

#[tokio::test]
async fn follows_end_with_the_connection_and_go_on_where_the_next_one_says() {
    let scene = scene(exec).await;
    let mut conn = scene.accept().await;
    let job = scene.start(&mut conn, &["123456", "789"]).await;
    let follow = Uuid::new_v4();
    conn.say(follow, &wish(job, 0, 0, 100)).await;
    scene.go("1");
    output(&mut conn, follow).await;
    assert_eq!(output(&mut conn, follow).await, said(OutputSays::Bytes, 3, 0, "123456"));
    drop(conn);
    let mut conn = scene.accept().await;
    scene.go("2");
    no_output(&mut conn).await;
    let again = Uuid::new_v4();
    conn.say(again, &wish(job, 3, 5, 100)).await;
    assert_eq!(output(&mut conn, again).await, said(OutputSays::Begins, 3, 5, ""));
    assert_eq!(output(&mut conn, again).await, said(OutputSays::Bytes, 3, 5, "6789"));
    // What is known of another program's output does not count.
    let other = Uuid::new_v4();
    conn.say(other, &wish(job, 2, 5, 8)).await;
    assert_eq!(output(&mut conn, other).await, said(OutputSays::Begins, 3, 0, ""));
    assert_eq!(output(&mut conn, other).await, said(OutputSays::Bytes, 3, 0, "123"));
    conn.say(other, &Follow { flags: FollowFlags::OVER, ..wish(job, 3, 3, 100) }).await;
    scene.go("end");
    assert_eq!(output(&mut conn, again).await, said(OutputSays::Ends, 3, 9, ""));
    no_output(&mut conn).await;
}

#[tokio::test]
async fn a_follow_that_cannot_be_read_or_is_of_an_earlier_attempt_harms_nothing() {
    let scene = scene(exec).await;
    let mut conn = scene.accept().await;
    let job = scene.start(&mut conn, &["123"]).await;
    conn.running(job).await;
    let mut payload = Vec::new();
    wish(job, 0, 0, 100).encode(&mut payload);
    conn.send(Kind::Follow, Uuid::new_v4(), &payload[..20]).await;
    payload[25] = 9;
    conn.send(Kind::Follow, Uuid::new_v4(), &payload).await;
    let earlier = Uuid::new_v4();
    conn.say(earlier, &Follow { attempt: 2, ..wish(job, 0, 0, 100) }).await;
    let got = conn.find("an answer", |got| got.kind == Kind::Output).await;
    let refused = Output::decode(&got.payload).unwrap();
    assert_eq!((got.msg_id, refused.says), (earlier, OutputSays::Refused));
    assert_eq!((refused.reason, refused.attempt), (Reason::UNKNOWN, 2));
    ["1", "end"].iter().for_each(|step| scene.go(step));
    let result = conn.result(job).await;
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Ok, "123"));
}

#[tokio::test]
async fn a_handler_of_a_program_of_ones_own_shows_no_output_and_says_so() {
    let handler = |_| {
        |job: Job, context: JobContext| async move {
            context.cancelled().await;
            job.result(JobStatus::Ok)
        }
    };
    let scene = scene(handler).await;
    let mut conn = scene.accept().await;
    let job = scene.start(&mut conn, &[]).await;
    conn.running(job).await;
    let follow = Uuid::new_v4();
    conn.say(follow, &wish(job, 0, 0, 100)).await;
    let refused = output(&mut conn, follow).await;
    assert_eq!(refused.says, OutputSays::Refused);
    assert!(refused.text.contains("this worker's handler shows no output"), "{}", refused.text);
}

#[tokio::test]
async fn heartbeats_do_not_wait_behind_output_that_the_leader_does_not_read() {
    let scene = scene(exec).await;
    let mut conn = scene.accept().await;
    // More than the system takes for a socket that nobody reads.
    let long = "x".repeat(100_000);
    let job = scene.start(&mut conn, &[long.as_str(); 20]).await;
    let mut follows = Vec::new();
    for _ in 0..20 {
        let follow = Uuid::new_v4();
        conn.say(follow, &wish(job, 0, 0, 1 << 40)).await;
        follows.push(follow);
    }
    (1..=20).for_each(|step: u32| scene.go(&step.to_string()));
    scene.go("end");
    // Whoever reads again after a while finds a heartbeat, and the result, before all of it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let (mut before, mut all, mut beats, mut ended) = (0, 0, 0, 0);
    while ended < 20 {
        let got = conn.read().await.expect("it is connected");
        match got.kind {
            Kind::Output => {
                let output = Output::decode(&got.payload).unwrap();
                all += if output.says == OutputSays::Bytes { output.bytes.len() } else { 0 };
                ended += usize::from(output.says == OutputSays::Ends);
            }
            Kind::AckJob => before = all,
            Kind::Heartbeat => beats += 1,
            _ => {}
        }
    }
    assert_eq!(all, 20 * 2_000_000);
    assert!(beats > 0 && before < all, "{beats} heartbeats; the result came behind {before} bytes");
}
