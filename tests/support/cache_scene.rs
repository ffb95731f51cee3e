//! A worker with a cache, against a leader made of a socket and the wire format.
#![allow(
    dead_code,
    unreachable_pub,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic
)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use chunking::Kind;
use chunking::message::{Body, Features, Heartbeat};
use heft::core::retry::Backoff;
use heft::model::{InputFile, JobRequest, JobResult, JsonModel};
use heft::worker::{CacheConfig, Exec, ExecConfig, Summary, Worker, WorkerConfig};
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use crate::datasets::{Data, MIB};
use crate::fake_leader::{Conn, PATIENCE};
use crate::noise::noise;

pub const OURS: Features = Features::TRANSFERS.with(Features::ZSTD).with(Features::DATASETS);

pub struct Scene {
    pub listener: TcpListener,
    pub worker: Option<(JoinHandle<Summary>, oneshot::Sender<()>)>,
    pub config: WorkerConfig,
    pub exec: ExecConfig,
    pub root: tempfile::TempDir,
}

/// A worker that runs `show`, which prints the files it is given.
pub async fn scene(change: impl FnOnce(&mut WorkerConfig)) -> Scene {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let root = tempfile::tempdir().unwrap();
    let dir = |name: &str| {
        let path = root.path().join(name);
        fs::create_dir(&path).unwrap();
        path
    };
    let reconnect = Backoff {
        first: Duration::from_millis(5),
        max: Duration::from_millis(20),
        jitter_percent: 20,
    };
    let exec = ExecConfig { exe_dir: dir("exe"), cache_dir: dir("cache"), ..ExecConfig::default() };
    let mut config = WorkerConfig {
        work_dir: dir("jobs"),
        cache: Some(CacheConfig {
            directory: exec.cache_dir.clone(),
            budget: Some(1 << 30),
            link: exec.cache_link,
        }),
        welcome_wait: PATIENCE,
        reconnect,
        ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
    };
    let program = exec.exe_dir.join("show");
    fs::write(
        &program,
        "#!/bin/sh\nfor file in \"$@\"; do cat \"$file\"; stat -c ' %a %h' \"$file\"; done\n",
    )
    .unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    change(&mut config);
    let mut scene = Scene { listener, worker: None, config, exec, root };
    scene.start();
    scene
}

impl Scene {
    pub fn start(&mut self) {
        let worker = Worker::new(self.config.clone(), Exec::new(self.exec.clone())).unwrap();
        let (stop, stopped) = oneshot::channel();
        self.worker = Some((tokio::spawn(worker.run(async { drop(stopped.await) })), stop));
    }

    /// Drops the worker where it stands, as a kill does, and starts another.
    pub async fn kill(&mut self) {
        let (task, stop) = self.worker.take().unwrap();
        task.abort();
        drop(stop);
        assert!(task.await.unwrap_err().is_cancelled());
        // Threads of the first may be about to end; the directory is free when they have.
        let free = async {
            while Worker::new(self.config.clone(), Exec::new(self.exec.clone())).is_err() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        timeout(PATIENCE, free).await.expect("the directory is free");
        self.start();
    }

    pub async fn accept(&self) -> Conn {
        self.accept_with(OURS).await
    }

    pub async fn accept_with(&self, features: Features) -> Conn {
        let (stream, _) =
            timeout(PATIENCE, self.listener.accept()).await.expect("it connects").unwrap();
        let mut conn = Conn::new(stream);
        conn.expect(Kind::HelloWorker).await;
        conn.welcome_with(features, &[]).await;
        if !self.config.cache_only {
            assert_eq!(conn.credit().await, 4);
        }
        conn
    }

    pub fn visible(&self, cache: &str) -> PathBuf {
        self.exec.cache_dir.join(cache)
    }

    pub fn assert_visible(&self, data: &Data) {
        for (name, bytes) in &data.files {
            let path = self.visible(&data.cache).join(name);
            assert!(fs::read(&path).unwrap() == *bytes, "{name}");
            assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o444, "{name}");
        }
    }

    pub fn private(&self, part: &str) -> PathBuf {
        self.exec.cache_dir.join(".heft").join(part)
    }

    pub fn count(&self, part: &str) -> usize {
        fs::read_dir(self.private(part)).unwrap().count()
    }

    /// Waits until a part of the private directory has so many entries; a dataset has three of
    /// them.
    pub async fn settles(&self, part: &str, count: usize) {
        let settled = async {
            while self.count(part) != count {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let done = timeout(PATIENCE, settled).await;
        assert!(done.is_ok(), "{part} has {} entries, not {count}", self.count(part));
    }
}

pub fn job(files: &[(&str, &str)]) -> (Uuid, String) {
    let id = Uuid::new_v4();
    let request = JobRequest {
        job_id: id,
        client_id: "c".into(),
        exec_name: "show".into(),
        args: files.iter().map(|(_, name)| (*name).to_owned()).collect(),
        files: files.iter().map(|(cache, name)| InputFile::cached(*name, *cache)).collect(),
        ..JobRequest::default()
    };
    (id, String::from_utf8(request.to_json()).unwrap())
}

pub async fn result(conn: &mut Conn, job: Uuid) -> JobResult {
    let got = conn.find("a result", |got| got.kind == Kind::AckJob && got.corr_id == job).await;
    JobResult::parse(&got.payload).unwrap()
}

pub fn some_data(cache: &str, seed: u64) -> Data {
    let twice = noise(600_000, seed + 1);
    Data::new(
        cache,
        &[
            ("big.bin", noise(3 * MIB + 17, seed)),
            ("data/a.bin", [twice.clone(), twice.clone()].concat()),
            ("data/b.bin", twice),
            ("empty", vec![]),
            ("small.txt", b"small".to_vec()),
        ],
    )
}

pub fn of_4_mib(cache: &str, seed: u64) -> Data {
    Data::new(cache, &[("a", noise(4 * MIB - 1, seed)), ("s", b"s".to_vec())])
}

pub async fn heartbeat(conn: &mut Conn) -> Heartbeat {
    let got = conn.find("a heartbeat", |got| got.kind == Kind::Heartbeat).await;
    Heartbeat::decode(&got.payload).unwrap()
}

/// Changes a byte of a dataset's file behind the worker's back.
pub fn damage(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    bytes[0] ^= 1;
    fs::set_permissions(path, fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(path, bytes).unwrap();
}
