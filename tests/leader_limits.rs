//! What peers can make grow at a leader has an end: each of these is driven to its limit and back,
//! with the leader's memory before and after (docs/reference.md, "What the leader keeps in
//! memory").

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

#[path = "support/datasets.rs"]
mod datasets;
#[path = "support/procs.rs"]
mod procs;
#[path = "support/raw.rs"]
mod raw;
#[path = "support/mod.rs"]
mod support;

use chunking::message::{
    Body, DatasetEntry, DatasetState, Name, Open, OpenFlags, Purpose, Refused,
};
use chunking::{Codec, Digest, DigestKind, Kind};
use datasets::{Dataset, FakeWorker, Putter, say};
use procs::{Leader, TempDir, eventually, heft};
use raw::Raw;
use serde_json::{Value, json};
use support::scaled;
use uuid::Uuid;

const MIB: u64 = 1 << 20;

fn resident(leader: &Leader) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", leader.proc.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

fn leader_status(client: &mut Raw) -> Value {
    client.ask("status", &json!({}))["leader"].clone()
}

/// The memory that was taken comes back, but for what an allocator keeps.
fn gives_back(leader: &Leader, before: u64) {
    eventually("the memory is given back", || resident(leader) < before + 32 * MIB);
}

#[test]
fn names_of_jobs_have_a_limit_and_go_with_the_jobs() {
    let data = TempDir::new();
    let leader = Leader::start(&["--data", data.text(), "--result-ttl", "1s"]);
    let mut client = Raw::client(&leader, "c");
    let before = resident(&leader);
    let (mut jobs, mut refusal) = (0, None);
    let most = u128::from(scaled(600, 5_000));
    while refusal.is_none() && jobs < most {
        for _ in 0..100 {
            let subject = format!("job.submit.{jobs}.{}", "k".repeat(65_000));
            client.send(Kind::SubmitJob, Uuid::from_u128(1 + jobs), Uuid::nil(), &subject, b"raw");
            jobs += 1;
        }
        for _ in 0..100 {
            let answer = client.next().unwrap();
            if answer.kind != Kind::Submitted {
                refusal = Some(Refused::decode(&answer.payload).unwrap());
            }
        }
    }
    if most > 600 {
        let refusal = refusal.expect("there is an end");
        assert_eq!(refusal.limit, 256 * MIB);
        assert!(
            refusal.value > refusal.limit && refusal.text.as_str().contains("shorter names"),
            "{refusal:?}"
        );
    }
    let (held, full) = (
        leader_status(&mut client)["job_names_bytes"].as_u64().unwrap(),
        resident(&leader) - before,
    );
    assert!(held > jobs.min(4_000) as u64 * 65_000, "{held} bytes");
    assert!(full < held + held / 2 + 32 * MIB, "{held} bytes of names take {} MiB", full / MIB);
    for job in 0..jobs {
        client.send(Kind::Cancel, Uuid::from_u128(1 + job), Uuid::nil(), "", b"");
    }
    eventually("their names are gone", || leader_status(&mut client)["job_names_bytes"] == 0);
    client.submit(Uuid::from_u128(1 << 65), "x", &[]);
    eventually("a job is taken", || client.ask("status", &json!({}))["jobs"]["queued"] == 1);
    gives_back(&leader, before);
}

#[test]
fn names_of_peers_have_a_limit_and_go_with_their_connections() {
    let leader = Leader::start(&["--worker-grace", "100ms"]);
    let mut client = Raw::client(&leader, "c");
    let before = resident(&leader);
    let mut workers = Vec::new();
    let refused = loop {
        let number = workers.len();
        let patterns: Vec<String> = (0..8)
            .map(|at| format!("{number}-{at}.{}", ["a"; 240].map(|_| "segment-of-it").join(".")))
            .collect();
        let hello = json!({"Heft": {"Version": 1, "Features": ["leases"]}, "Patterns": patterns})
            .to_string();
        let mut worker = Raw::connect(&leader);
        worker.send(
            Kind::HelloWorker,
            Uuid::from_u128(number as u128),
            Uuid::nil(),
            "",
            hello.as_bytes(),
        );
        let answer = worker.next().unwrap();
        if answer.kind != Kind::Welcome {
            assert!(worker.is_hung_up_on());
            break Refused::decode(&answer.payload).unwrap();
        }
        workers.push(worker);
        assert!(workers.len() < 500, "there is no end");
    };
    assert!(refused.text.as_str().contains("shorter or fewer"), "{refused:?}");
    let full = resident(&leader);
    assert!(full < before + 400 * MIB, "{} MiB more", (full - before) / MIB);
    drop(workers);
    eventually("their names are gone", || {
        leader_status(&mut client)["peer_names_bytes"].as_u64() < Some(100)
    });
    drop(Raw::worker(&leader, Uuid::from_u128(9_999), "job.assign.x"));
    gives_back(&leader, before);
}

#[test]
fn large_files_that_jobs_name_have_a_limit_and_go_with_the_jobs() {
    let data = TempDir::new();
    let leader = Leader::start(&["--data", data.text(), "--input-wait", "1s"]);
    let mut client = Raw::client(&leader, "c");
    let before = resident(&leader);
    let submit = |client: &mut Raw, job: u128, files: u128| {
        let id = |at: u128| Uuid::from_u128((job << 64) + 1 + at);
        let files: Vec<Value> = (0..files)
            .map(|at| json!({"Name": format!("{at}"), "Blob": {"Id": id(at), "Size": 5_000_000}}))
            .collect();
        let request =
            json!({"JobId": id(1 << 32), "ClientId": "c", "ExecName": "x", "Files": files});
        client.send(
            Kind::SubmitJob,
            id(1 << 32),
            Uuid::nil(),
            "job.submit.x",
            request.to_string().as_bytes(),
        );
    };
    let refused = (0..100_u32).find_map(|job| {
        submit(&mut client, job.into(), 8_192);
        // That it was announced is told when its inputs are here; a question behind it is answered
        // when it was read.
        client.ask("status", &json!({}));
        let blobs = leader_status(&mut client)["blobs"].as_u64().unwrap();
        (blobs < (u64::from(job) + 1) * 8_192).then_some(blobs)
    });
    assert_eq!(refused, Some(262_144));
    let answer =
        std::iter::from_fn(|| client.next()).find(|frame| frame.kind == Kind::Refused).unwrap();
    let refused = Refused::decode(&answer.payload).unwrap();
    assert_eq!((refused.value, refused.limit), (262_144 + 8_192, 262_144), "{refused:?}");
    let full = resident(&leader);
    assert!(full < before + 500 * MIB, "{} MiB more", (full - before) / MIB);
    drop(client);
    let mut client = Raw::client(&leader, "d");
    eventually("they are gone with their client", || leader_status(&mut client)["blobs"] == 0);
    gives_back(&leader, before);
}

#[test]
fn an_attempt_brings_so_many_parts_of_its_result() {
    let leader = Leader::start(&[]);
    let mut client = Raw::client(&leader, "c");
    let mut worker = Raw::worker(&leader, Uuid::from_u128(5), "job.assign.x");
    client.submit(Uuid::from_u128(1), "x", &[]);
    let assigned =
        std::iter::from_fn(|| worker.next()).find(|frame| frame.kind == Kind::AssignJob).unwrap();
    let open = |worker: &mut Raw, id: u128| {
        let open = Open {
            purpose: Purpose::Archive,
            codec: Codec::None,
            digest: DigestKind::ChunkList,
            flags: OpenFlags::KEEPS_SOURCE,
            chunk_bytes: 1 << 20,
            size: 5 << 20,
            owner: assigned.msg_id,
            attempt: 1,
            name: "a.zip".to_owned().try_into().unwrap(),
        };
        say(worker, Uuid::from_u128(id), Uuid::nil(), &open);
    };
    (0..40).for_each(|id| open(&mut worker, 100 + id));
    eventually("they were heard", || leader_status(&mut client)["blobs"] == 8);
    // Those that it left make room for others.
    drop(worker);
    let mut worker = Raw::worker(&leader, Uuid::from_u128(5), "job.assign.x");
    (0..40).for_each(|id| open(&mut worker, 200 + id));
    eventually("others are there", || {
        let blobs = client.ask("blob.ls", &json!({}))["blobs"].clone();
        let ids: Vec<&str> =
            blobs.as_array().unwrap().iter().filter_map(|blob| blob["blob"].as_str()).collect();
        ids.len() == 8 && ids.contains(&Uuid::from_u128(200).to_string().as_str())
    });
}

#[test]
fn what_workers_say_that_they_hold_has_a_limit_and_goes_with_them() {
    let leader = Leader::start(&["--worker-grace", "100ms"]);
    let mut client = Raw::client(&leader, "c");
    let before = resident(&leader);
    let count = scaled(1, 9) as u128;
    let workers: Vec<FakeWorker> = (0..count)
        .map(|number| {
            let mut worker = FakeWorker::new(
                Raw::worker(&leader, Uuid::from_u128(1 + number), "job.assign.x"),
                Uuid::from_u128(1 + number),
            );
            for frame in 0..140 {
                let entry = |at: u32| DatasetEntry {
                    state: DatasetState::Held,
                    digest: Digest { kind: DigestKind::Sha256, bytes: [7; 32] },
                    cache_id: Name::try_from(format!("{number}-{frame}-{at}-{}", "s".repeat(220)))
                        .unwrap(),
                    text: Default::default(),
                };
                worker.have((0..512).map(entry).collect(), false);
            }
            assert_eq!(
                worker.raw.ask("status", &json!({}))["workers"].as_array().unwrap().len() as u128,
                number + 1
            );
            worker
        })
        .collect();
    let full = resident(&leader);
    // 65,536 of one worker, 524,288 of all.
    let limit = if count == 1 { 80 * MIB } else { 500 * MIB };
    assert!(full < before + limit, "{} MiB more", (full - before) / MIB);
    drop(workers);
    eventually("they left", || {
        client.ask("status", &json!({}))["workers"].as_array().unwrap().is_empty()
    });
    gives_back(&leader, before);
}

#[test]
fn questions_that_wait_for_an_answer_have_a_limit_and_go_with_who_asked() {
    let leader = Leader::start(&[]);
    let mut worker = FakeWorker::new(
        Raw::worker(&leader, Uuid::from_u128(5), "job.assign.x"),
        Uuid::from_u128(5),
    );
    let mut client = Raw::client(&leader, "c");
    let dataset = Dataset::of(&[("f", b"content")]);
    let put = std::thread::spawn(move || {
        let outcome = Putter::new(&dataset, "set", "job.assign.x").put(&mut client).unwrap();
        assert!(outcome.over.is_some());
        client
    });
    worker.run_until_shown("set");
    let mut client = put.join().unwrap();
    // The worker is asked whether it has what it should, and does not answer.
    let ask = |client: &mut Raw, id: u128| {
        client.send(
            Kind::Ask,
            Uuid::from_u128(id),
            Uuid::nil(),
            "dataset.verify",
            b"\x01{\"cache_id\":\"set\"}",
        );
    };
    (0..300).for_each(|id| ask(&mut client, 1 + id));
    for id in 256..300 {
        let answer = client.next().unwrap();
        assert_eq!((answer.kind, answer.corr_id), (Kind::Answer, Uuid::from_u128(1 + id)));
        let text = String::from_utf8_lossy(&answer.payload).into_owned();
        assert!(text.contains("256 questions of this connection wait"), "{text}");
    }
    drop(client);
    let mut client = Raw::client(&leader, "d");
    ask(&mut client, 1);
    assert!(client.ask("status", &json!({}))["leader"].is_object(), "it may ask");
}

#[test]
fn limits_that_no_leader_could_work_with_are_refused_and_named() {
    let dir = TempDir::new();
    for (flag, value, why) in [
        ("--lease", "0s", "give at least 1s"),
        ("--lease", "1ms", "give at least 1s"),
        ("--buffers", "99999TiB", "more than this machine has: give at most"),
        ("--tcp-congestion", "nope", "--tcp-congestion"),
    ] {
        let data = dir.join("data");
        let (code, out, err) =
            heft(&["leader", "0", "--data", data.to_str().unwrap(), flag, value]);
        assert_eq!((code, out.as_str()), (Some(2), ""), "{flag} {value}: {err}");
        assert!(err.contains(flag) && err.contains(why), "{flag} {value}: {err}");
        assert!(!data.exists(), "nothing is made");
    }
}
