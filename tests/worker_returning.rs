//! Results of a worker whose leader has no room for some of them, against a leader made of a socket
//! and the wire format: those that wait keep no other from going.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/fake_leader.rs"]
mod fake_leader;
mod support;

use std::collections::HashSet;

use bytes::Bytes;
use chunking::message::{Body, Features, Grant, LimitId, Open, Purpose, Reason};
use chunking::{Kind, Ranges};
use fake_leader::{Conn, PATIENCE};
use heft::model::{JobRequest, JobResult, JobStatus, JsonModel};
use heft::worker::{Content, Handler, Job, JobContext, Worker, WorkerConfig};
use tokio::net::TcpListener;
use tokio::time::timeout;
use uuid::Uuid;

/// Leaves an archive of 5 MiB behind, or of 4 if it is `small`.
struct Maker {
    archive: Bytes,
}

impl Handler for Maker {
    async fn run(&self, job: Job, context: JobContext) -> JobResult {
        let small = job.request.as_ref().is_ok_and(|request| request.exec_name == "small");
        let archive = if small { self.archive.slice(..4 << 20) } else { self.archive.clone() };
        context.attach(Purpose::Archive, Content::Memory(archive)).unwrap();
        job.result(JobStatus::Ok)
    }
}

async fn run(conn: &mut Conn, exec_name: &str) -> Uuid {
    let job = Uuid::new_v4();
    let request = JobRequest {
        job_id: job,
        client_id: "c".into(),
        exec_name: exec_name.into(),
        ..JobRequest::default()
    };
    conn.assign(job, &String::from_utf8(request.to_json()).unwrap()).await;
    conn.start(job, 1, 1).await;
    job
}

/// The next part that the worker opens, and its job.
async fn opened(conn: &mut Conn) -> (Uuid, Uuid) {
    let got = conn.find("an Open", |got| got.kind == Kind::Open).await;
    (got.msg_id, Open::decode(&got.payload).unwrap().owner)
}

async fn no_room(conn: &mut Conn, part: Uuid) {
    let (held, rest) = (Ranges::default(), Default::default());
    let text = "the disk is full".into();
    conn.say(part, &Grant { window: 0, reason: Reason::DISK_FULL, text, held, part: rest }).await;
}

#[tokio::test]
async fn sixteen_results_that_wait_for_room_do_not_keep_a_small_one_from_being_opened() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let work_dir = tempfile::tempdir().unwrap();
    let config = WorkerConfig {
        work_dir: work_dir.path().to_owned(),
        welcome_wait: PATIENCE,
        parallel_max: 32,
        ..WorkerConfig::new(listener.local_addr().unwrap().to_string())
    };
    let worker = Worker::new(config, Maker { archive: vec![7; 5 << 20].into() }).unwrap();
    let worker = tokio::spawn(worker.run(std::future::pending()));
    let mut conn = Conn::new(timeout(PATIENCE, listener.accept()).await.unwrap().unwrap().0);
    conn.expect(Kind::HelloWorker).await;
    conn.welcome_with(Features::TRANSFERS, &[(LimitId::TRANSFERS, 8192)]).await;
    let mut large = HashSet::new();
    for _ in 0..16 {
        large.insert(run(&mut conn, "large").await);
    }
    let mut parts = Vec::new();
    for _ in 0..16 {
        let (part, owner) = opened(&mut conn).await;
        assert!(large.remove(&owner));
        parts.push(part);
    }
    let small = run(&mut conn, "small").await;
    for part in parts {
        no_room(&mut conn, part).await;
    }
    let (_, owner) = opened(&mut conn).await;
    assert_eq!(owner, small);
    worker.abort();
}
