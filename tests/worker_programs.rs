//! Which programs a worker says that it has, and what it does with jobs of others: a worker of
//! executables against a leader made of a socket (C20, WX05).

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/fake_leader.rs"]
mod fake_leader;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use chunking::Kind;
use chunking::message::{Body, Features, ProgramList, Programs, ProgramsSay};
use fake_leader::{Conn, Got, PATIENCE};
use heft::core::retry::Backoff;
use heft::model::{BlobRef, InputFile, JobRequest, JobResult, JobStatus, JsonModel, WorkerHello};
use heft::worker::{Exec, ExecConfig, Worker, WorkerConfig};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

struct Scene {
    listener: TcpListener,
    root: tempfile::TempDir,
    worker: JoinHandle<heft::worker::Summary>,
    stop: Option<oneshot::Sender<()>>,
}

async fn scene(programs: &[&str], change: impl FnOnce(&mut WorkerConfig)) -> Scene {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let root = tempfile::tempdir().unwrap();
    for name in ["exe", "cache", "jobs"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    let mut config = WorkerConfig {
        work_dir: root.path().join("jobs"),
        welcome_wait: PATIENCE,
        reconnect: Backoff {
            first: Duration::from_millis(5),
            max: Duration::from_millis(20),
            jitter_percent: 20,
        },
        ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
    };
    change(&mut config);
    let exec = ExecConfig {
        exe_dir: root.path().join("exe"),
        cache_dir: root.path().join("cache"),
        ..ExecConfig::default()
    };
    let (stop, stopped) = oneshot::channel();
    for name in programs {
        put(&root.path().join("exe").join(name));
    }
    let worker = Worker::new(config, Exec::new(exec)).unwrap();
    let worker = tokio::spawn(worker.run(async { drop(stopped.await) }));
    Scene { listener, root, worker, stop: Some(stop) }
}

fn put(path: &PathBuf) {
    fs::write(path, "#!/bin/sh\necho ran\n").unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

impl Scene {
    fn program(&self, name: &str) -> PathBuf {
        self.root.path().join("exe").join(name)
    }

    /// The worker's next connection, and the programs in its Hello.
    async fn accept(&self) -> (Conn, Option<Vec<String>>) {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it connects").unwrap();
        let mut conn = Conn::new(stream);
        let hello = conn.expect(Kind::HelloWorker).await;
        let hello = WorkerHello::parse(&hello.payload).unwrap();
        assert!(hello.heft.features.iter().any(|name| name == "programs"));
        (conn, hello.programs)
    }

    /// The same, of a leader that wants to know of programs.
    async fn accept_ours(&self) -> (Conn, Option<Vec<String>>) {
        let (mut conn, programs) = self.accept().await;
        conn.welcome_with(Features::PROGRAMS.with(Features::TRANSFERS), &[]).await;
        assert_eq!(conn.credit().await, 4);
        (conn, programs)
    }

    async fn stop(mut self) {
        drop(self.stop.take());
        timeout(PATIENCE, self.worker).await.expect("it stops").unwrap();
    }
}

fn request(exec: &str) -> String {
    let request =
        JobRequest { client_id: "c".into(), exec_name: exec.into(), ..JobRequest::default() };
    String::from_utf8(request.to_json()).unwrap()
}

fn said(got: &Got) -> (ProgramsSay, Vec<String>) {
    let Programs { say, names } = Programs::decode(&got.payload).unwrap();
    (say, names.as_slice().iter().map(|name| name.as_str().to_owned()).collect())
}

async fn programs(conn: &mut Conn) -> (ProgramsSay, Vec<String>) {
    said(&conn.find("Programs", |got| got.kind == Kind::Programs).await)
}

async fn look(conn: &mut Conn) -> (ProgramsSay, Vec<String>) {
    let question = Uuid::new_v4();
    let look = Programs { say: ProgramsSay::Look, names: ProgramList::default() };
    let mut payload = Vec::new();
    look.encode(&mut payload);
    conn.send_as(Kind::Programs, question, Uuid::nil(), &payload).await;
    said(&conn.find("an answer", |got| got.kind == Kind::Programs && got.corr_id == question).await)
}

#[tokio::test]
async fn a_job_whose_program_is_missing_is_handed_back_and_its_slot_is_free() {
    let scene = scene(&["calcA"], |_| {}).await;
    let (mut conn, programs) = scene.accept_ours().await;
    assert_eq!(programs, Some(vec!["calcA".to_owned()]));
    let job = Uuid::new_v4();
    conn.assign(job, &request("ghost")).await;
    conn.start(job, 1, 1).await;
    let result = conn.result(job).await;
    assert_eq!((result.status, result.no_program), (JobStatus::Cancelled, true));
    assert!(result.stderr.starts_with("Executable not found: "), "{}", result.stderr);
    assert_eq!(conn.credit().await, 1);
    // Given again, it is looked at again: that was no result.
    put(&scene.program("ghost"));
    conn.assign(job, &request("ghost")).await;
    conn.start(job, 1, 2).await;
    let ack = conn.find("its result", |got| got.kind == Kind::AckJob).await;
    let result = JobResult::parse(&ack.payload).unwrap();
    assert_eq!((result.status, result.stdout.as_str()), (JobStatus::Ok, "ran\n"));
    scene.stop().await;
}

#[tokio::test]
async fn an_older_leader_gets_a_failed_result_for_it_and_so_does_a_classic_one() {
    let older = scene(&[], |_| {}).await;
    let (mut conn, _) = older.accept().await;
    conn.welcome().await;
    conn.credit().await;
    let classic = scene(&[], |config| config.welcome_wait = Duration::from_millis(20)).await;
    let (mut without, _) = classic.accept().await;
    without.credit().await;
    for (conn, is_classic) in [(&mut conn, false), (&mut without, true)] {
        let job = Uuid::new_v4();
        conn.assign(job, &request("ghost")).await;
        if !is_classic {
            conn.start(job, 1, 1).await;
        }
        let ack = conn.find("its result", |got| got.kind == Kind::AckJob).await;
        let result = JobResult::parse(&ack.payload).unwrap();
        assert_eq!(result.status, JobStatus::Failed);
        assert!(!result.no_program && !result.no_room, "{result:?}");
        assert!(result.stderr.starts_with("Executable not found: "), "{}", result.stderr);
        let text = String::from_utf8(ack.payload).unwrap();
        assert!(!text.contains("NoProgram"), "{text}");
    }
    // Neither is told of programs that appear.
    put(&older.program("calcA"));
    for _ in 0..80 {
        let got = conn.read().await.unwrap();
        assert_ne!(got.kind, Kind::Programs);
    }
    older.stop().await;
    classic.stop().await;
}

#[tokio::test]
async fn programs_that_appear_change_and_go_are_told_without_being_asked() {
    let scene = scene(&["calcA"], |_| {}).await;
    let (mut conn, _) = scene.accept_ours().await;
    put(&scene.program("calcB.exe"));
    let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    loop {
        // A look may see the file before it may be executed.
        let told = programs(&mut conn).await;
        if told == (ProgramsSay::Are, names(&["calcA", "calcB", "calcB.exe"])) {
            break;
        }
        assert_eq!(told, (ProgramsSay::Are, names(&["calcA"])));
    }
    fs::remove_file(scene.program("calcB.exe")).unwrap();
    assert_eq!(programs(&mut conn).await, (ProgramsSay::Are, names(&["calcA"])));
    // Repaired in place: the name is the same.
    fs::write(scene.program("calcA"), "#!/bin/sh\necho other\n").unwrap();
    assert_eq!(programs(&mut conn).await, (ProgramsSay::Are, names(&["calcA"])));
    fs::remove_dir_all(scene.program("calcA").parent().unwrap()).unwrap();
    assert_eq!(programs(&mut conn).await, (ProgramsSay::Are, names(&[])));
    scene.stop().await;
}

#[tokio::test]
async fn a_question_is_answered_with_what_is_there_now() {
    let scene = scene(&["calcA"], |_| {}).await;
    let (mut conn, _) = scene.accept_ours().await;
    let mut known = vec!["calcA".to_owned()];
    for number in 0..20 {
        assert_eq!(look(&mut conn).await, (ProgramsSay::Same, Vec::new()));
        let name = format!("new{number:02}");
        // In one step, so that no look on the way sees a part of it.
        put(&scene.root.path().join("part"));
        fs::rename(scene.root.path().join("part"), scene.program(&name)).unwrap();
        known.push(name);
        known.sort_unstable();
        let (say, names) = look(&mut conn).await;
        // Unless it was told a moment ago, unasked.
        assert!(
            (say, names.as_slice()) == (ProgramsSay::Are, &known[..]) || say == ProgramsSay::Same
        );
    }
    scene.stop().await;
}

#[tokio::test]
async fn the_hello_of_the_next_connection_has_the_programs_of_then() {
    let scene = scene(&["calcA"], |_| {}).await;
    let (mut conn, _) = scene.accept_ours().await;
    put(&scene.program("calcB"));
    while programs(&mut conn).await.1.len() < 2 {}
    drop(conn);
    let (_, programs) = scene.accept_ours().await;
    assert_eq!(programs, Some(vec!["calcA".to_owned(), "calcB".to_owned()]));
    scene.stop().await;
}

#[tokio::test]
async fn more_programs_than_a_list_may_have_are_not_listed() {
    let scene = scene(&[], |_| {}).await;
    let (mut conn, programs_of_hello) = scene.accept_ours().await;
    assert_eq!(programs_of_hello, Some(Vec::new()));
    for number in 0..=1_000 {
        put(&scene.program(&format!("p{number}")));
    }
    loop {
        let (say, names) = programs(&mut conn).await;
        if say == ProgramsSay::Unlisted {
            break;
        }
        assert!(names.len() <= 1_000);
    }
    drop(conn);
    let (mut conn, programs_of_hello) = scene.accept_ours().await;
    assert_eq!(programs_of_hello, None);
    assert_eq!(look(&mut conn).await, (ProgramsSay::Same, Vec::new()));
    fs::remove_file(scene.program("p0")).unwrap();
    let (say, names) = programs(&mut conn).await;
    assert_eq!((say, names.len()), (ProgramsSay::Are, 1_000));
    scene.stop().await;
}

#[tokio::test]
async fn a_job_with_large_inputs_is_handed_back_before_they_come() {
    let scene = scene(&["calcA"], |_| {}).await;
    let (mut conn, _) = scene.accept_ours().await;
    let large = |exec: &str| {
        let blob = BlobRef { id: Uuid::new_v4(), size: 64 << 20, digest: None };
        let file = InputFile { name: "large".into(), blob: Some(blob), ..InputFile::default() };
        let files = vec![file];
        let request = JobRequest { exec_name: exec.into(), files, ..JobRequest::default() };
        String::from_utf8(request.to_json()).unwrap()
    };
    let job = Uuid::new_v4();
    // No Start: its inputs are on their way.
    conn.assign(job, &large("ghost")).await;
    let result = conn.result(job).await;
    assert_eq!((result.status, result.no_program), (JobStatus::Cancelled, true));
    assert_eq!(conn.credit().await, 1);
    // One whose name leads elsewhere is not: no worker has it, and its result says so.
    for exec in ["../ghost", "calcA"] {
        let job = Uuid::new_v4();
        conn.assign(job, &large(exec)).await;
        let beat = async {
            loop {
                let beat = conn.heartbeat().await;
                if beat.jobs.as_slice().iter().any(|held| held.job == job) {
                    return;
                }
            }
        };
        timeout(PATIENCE, beat).await.expect("it waits for its inputs");
    }
    scene.stop().await;
}

#[tokio::test]
async fn a_worker_that_only_keeps_a_cache_says_nothing_of_programs() {
    let scene = scene(&["calcA"], |config| {
        config.cache_only = true;
        let directory = config.work_dir.with_file_name("cache");
        config.cache =
            Some(heft::worker::CacheConfig { directory, budget: None, link: Default::default() });
    })
    .await;
    let (mut conn, programs) = scene.accept().await;
    assert_eq!(programs, None);
    conn.welcome_with(Features::PROGRAMS, &[]).await;
    assert_eq!(look(&mut conn).await, (ProgramsSay::Unlisted, Vec::new()));
    scene.stop().await;
}
