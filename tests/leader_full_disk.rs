//! A leader whose disk is full, with real processes on a small file system of their own: uploads
//! leave the log its room, jobs whose inputs are whole run and end, `heft cancel` answers, a
//! restart goes on, and nothing is lost.
//!
//! The file system is a tmpfs in a mount namespace of its own. Where that is not allowed the tests
//! say so and do nothing.

#![cfg(target_os = "linux")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    unreachable_pub,
    dead_code
)]

#[path = "../src/noise.rs"]
mod noise;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/small_disk.rs"]
mod small_disk;

use std::fs;
use std::io::Write;

use bytes::Bytes;
use chunking::message::Ask;
use chunking::{Head, Kind};
use heft::core::ids::{ConnId, Micros};
use heft::leader::Output;
use heft::model::{JobRequest, JsonModel as _};
use heft::store::journal::{LogDone, LogOp};
use noise::noise;
use procs::{Leader, Proc, TempDir, Worker, heft};
use small_disk::{SmallDisk, cancel, submit, taken, taken_or_told, until};
use uuid::Uuid;

const MIB: usize = 1 << 20;

/// What a leader without sockets or files said to a connection since it was asked last, as text.
fn said(leader: &mut heft::leader::Leader, conn: ConnId) -> String {
    let mut said = String::new();
    while let Some(output) = leader.poll_output() {
        if let Output::Send { conn: to, frame } = output
            && to == conn
        {
            said.push_str(&format!("{frame:?}"));
        }
    }
    said
}

#[test]
fn who_asks_to_cancel_hears_at_once_that_the_log_takes_nothing() {
    use heft::leader::{Leader, LeaderConfig, Recovered};
    let (now, conn) = (Micros(1_000_000), ConnId(7));
    let mut next = 0u128;
    let make_id = Box::new(move || {
        next += 1;
        Uuid::from_u128(next)
    });
    let mut leader = Leader::recover(LeaderConfig::default(), now, make_id, Recovered::default());
    leader.connected(conn, chunking::Generation::F2, None);
    let hello =
        br#"{"ClientId":"c","DesiredParallelism":1,"Heft":{"Version":1,"Features":["ask"]}}"#;
    let head = Head { subject: "c", ..Head::new(Kind::HelloClient) };
    leader.frame(now, conn, &head, Bytes::from_static(hello)).unwrap();
    let job = Uuid::from_u128(0xA);
    let request = JobRequest {
        job_id: job,
        client_id: "c".into(),
        exec_name: "sum".into(),
        ..JobRequest::default()
    };
    let head = Head { subject: "job.submit.sum", msg_id: job, ..Head::new(Kind::SubmitJob) };
    leader.frame(now, conn, &head, Bytes::from(request.to_json())).unwrap();
    let mut records = Vec::new();
    while let Some(output) = leader.poll_output() {
        if let Output::Log(LogOp::Append { index, .. }) = output {
            records.push(index);
        }
    }
    let synced = records.iter().copied().max();
    leader.log_done(now, LogDone::Written { synced, places: Vec::new(), cost: Default::default() });
    said(&mut leader, conn);
    let ask = |leader: &mut Leader| {
        let mut payload = Vec::new();
        Ask { json: format!(r#"{{"job_id":"{job}"}}"#).as_bytes() }.encode(&mut payload);
        let head = Head { subject: "cancel", ..Head::new(Kind::Ask) };
        leader.frame(now, conn, &head, Bytes::from(payload)).unwrap();
        said(leader, conn)
    };
    // One that asked before it was known hears it when it is.
    let before = ask(&mut leader);
    assert!(!before.contains("no room"), "{before}");
    leader.log_done(now, LogDone::Trouble(Some("there is no room".into())));
    let told = said(&mut leader, conn);
    assert!(told.contains("there is no room") && told.contains("when there is room"), "{told}");
    let told = ask(&mut leader);
    assert!(told.contains("there is no room"), "{told}");
}

#[test]
fn a_job_whose_contents_are_taken_apart_is_refused_where_the_disk_has_no_room_for_them() {
    use chunking::limits::FRAME_BODY_BYTES_MAX;
    use heft::leader::{Leader, LeaderConfig, Recovered, RelayConfig};
    use heft::model::InputFile;
    use heft::store::blobs::{DiskDone, DiskOp};
    use heft::store::space::Space;
    let (now, conn) = (Micros(1_000_000), ConnId(7));
    let mut next = 0u128;
    let make_id = Box::new(move || {
        next += 1;
        Uuid::from_u128(next)
    });
    let relay = RelayConfig { durable: true, ..RelayConfig::default() };
    let config = LeaderConfig { relay, ..LeaderConfig::default() };
    let mut leader = Leader::recover(config, now, make_id, Recovered::default());
    leader.connected(conn, chunking::Generation::F2, None);
    let head = Head { subject: "c", ..Head::new(Kind::HelloClient) };
    leader
        .frame(now, conn, &head, Bytes::from_static(br#"{"ClientId":"c","DesiredParallelism":1}"#))
        .unwrap();
    // It fits the frame of a classic client, and no assignment, whose subject is longer.
    let job = Uuid::from_u128(0xA);
    let request = |bytes| JobRequest {
        job_id: job,
        client_id: "c".into(),
        exec_name: "sum".into(),
        files: vec![InputFile::inline("in.bin", vec![7; bytes])],
        ..JobRequest::default()
    };
    let around = request(0).to_json().len() + 80;
    let payload = Bytes::from(request((FRAME_BODY_BYTES_MAX as usize - around) / 4 * 3).to_json());
    let mut submit = |free| {
        let space = Some(Space { free, total: 64 << 20 });
        leader.disk_done(now, DiskDone::Measured { mark: 0, space });
        let head = Head { subject: "job.submit.sum", msg_id: job, ..Head::new(Kind::SubmitJob) };
        leader.frame(now, conn, &head, payload.clone()).unwrap();
        let (mut said, mut written) = (String::new(), 0);
        while let Some(output) = leader.poll_output() {
            match output {
                Output::Send { frame, .. } | Output::SendBehind { frame, .. } => {
                    said.push_str(&format!("{frame:?}"))
                }
                Output::Disk(DiskOp::Write { bytes, .. }) => written += bytes.len(),
                Output::SendLazily { .. }
                | Output::Posted { .. }
                | Output::Chunk { .. }
                | Output::Splice { .. }
                | Output::Turn { .. }
                | Output::LetGo { .. }
                | Output::Supply { .. }
                | Output::Disk(_)
                | Output::Log(_)
                | Output::Close { .. } => {}
            }
        }
        (said, written)
    };
    // 6.4 MiB are kept from uploads.
    let (said, written) = submit(7 << 20);
    assert_eq!(written, 0, "{said}");
    assert!(said.contains("--disk-reserve") && said.contains("submit the job again"), "{said}");
    let (said, written) = submit(32 << 20);
    assert!(written > 3_000_000 && !said.contains("--disk-reserve"), "{written} {said}");
}

const SUM: (&str, &str) = ("sum", "sha256sum < in.bin");

#[test]
fn uploads_leave_the_log_its_room_and_all_jobs_end() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(12 * MIB, 1)).unwrap();
    let mut jobs: Vec<Proc> =
        (0..7).map(|_| submit(&leader, "sum", &["--file", file.to_str().unwrap()])).collect();
    // Some are whole, the others wait and are told why; the disk is not filled to its last byte.
    let full = until(&leader, "some wait", |status| {
        status["leader"]["uploads_waiting"].as_u64().is_some_and(|waiting| waiting >= 2)
    });
    let number = |member: &str| full["leader"][member].as_u64().unwrap();
    assert!(
        number("disk_reserve") > 6 << 20 && number("disk_free") >= number("disk_reserve"),
        "{full:#}"
    );
    assert!(full["leader"]["log_trouble"].is_null(), "{full:#}");
    let (_, shown, _) = heft(&["status", &leader.addr()]);
    assert!(shown.contains("UPLOADS WAIT") && shown.contains("heft cancel"), "{shown}");
    // One that has come whole can be cancelled, and gives its room to another.
    let taken: Vec<Option<String>> = jobs.iter_mut().map(taken_or_told).collect();
    assert!(taken.iter().filter(|job| job.is_some()).count() >= 3, "{taken:?}");
    let first = taken.into_iter().flatten().next().unwrap();
    cancel(&leader, &first);
    let _worker = Worker::start(leader.port, &[SUM], &[]);
    let ends: Vec<(Option<i32>, Vec<String>)> = jobs.into_iter().map(Proc::finish).collect();
    let ok = ends.iter().filter(|(code, _)| *code == Some(0)).count();
    assert_eq!(ok, 6, "{ends:#?}");
    let after = until(&leader, "nothing waits", |status| status["leader"]["uploads_waiting"] == 0);
    assert!(after["leader"]["log_trouble"].is_null(), "{after:#}");
}

#[test]
fn a_disk_that_others_fill_lets_jobs_end_also_after_a_restart() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(5 * MIB, 2)).unwrap();
    let file = file.to_str().unwrap();
    let mut jobs: Vec<Proc> = (0..3).map(|_| submit(&leader, "sum", &["--file", file])).collect();
    let ids: Vec<String> = jobs.iter_mut().map(taken).collect();
    let others = disk.fill();
    // What is there can be cancelled, and nothing new is taken.
    cancel(&leader, &ids[0]);
    until(&leader, "it is known to be full", |status| !status["leader"]["disk_trouble"].is_null());
    // What the cancelled job gave back is taken, too.
    let mut more = fs::OpenOptions::new().append(true).open(&others).unwrap();
    while more.write_all(&vec![7; 4096]).is_ok() {}
    drop(more);
    until(&leader, "it is known to be full again", |status| status["leader"]["disk_free"] == 0);
    let (code, _, err) = heft(&["submit", &leader.addr(), "sum", "--timeout", "20s"]);
    assert_eq!(code, Some(3), "{err}");
    assert!(err.contains("--disk-reserve") && err.contains("free some space"), "{err}");
    // A restart on the full disk goes on with what there is.
    let port = leader.port;
    drop(leader);
    let data = disk.path.join("data");
    let leader = Leader::start_on(port, &["--data", data.to_str().unwrap()]);
    let _worker = Worker::start(leader.port, &[SUM], &[]);
    let ends: Vec<(Option<i32>, Vec<String>)> = jobs.into_iter().map(Proc::finish).collect();
    let codes: Vec<Option<i32>> = ends.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [Some(1), Some(0), Some(0)], "{ends:#?}");
    // When there is room again, so are jobs.
    fs::remove_file(others).unwrap();
    until(&leader, "there is room", |status| status["leader"]["disk_trouble"].is_null());
    let last = submit(&leader, "sum", &["--file", file]);
    until(&leader, "all have ended", |status| {
        status["jobs"]["queued"] == 0
            && status["jobs"]["running"] == 0
            && status["jobs"]["done"] == 4
    });
    let end = last.finish();
    assert_eq!(end.0, Some(0), "{end:#?}");
}

#[test]
fn a_disk_that_is_full_of_datasets_says_that_they_can_be_removed() {
    let Some(disk) = SmallDisk::new(64) else { return };
    let leader = disk.leader(&[]);
    let files = TempDir::new();
    let file = files.join("in.bin");
    fs::write(&file, noise(5 * MIB, 3)).unwrap();
    let (addr, file) = (leader.addr(), file.to_str().unwrap());
    let (code, _, err) = heft(&["dataset", &addr, "put", "set", file, "--target", "none"]);
    assert_eq!(code, Some(0), "{err}");
    let _others = disk.fill();
    let full = until(&leader, "it is known to be full", |status| {
        !status["leader"]["disk_trouble"].is_null()
    });
    let trouble = full["leader"]["disk_trouble"].as_str().unwrap();
    assert!(trouble.contains("`heft dataset rm`"), "{trouble}");
    let (_, shown, _) = heft(&["status", &addr]);
    assert!(shown.contains("UPLOADS WAIT: ") && !shown.contains("WAIT: uploads wait"), "{shown}");
}
