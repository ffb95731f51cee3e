//! Peers that break the rules of transfers at a real leader: each is told what is wrong or is cut
//! off, the leader lives, the others notice nothing, and nothing is left.

use chunking::message::{
    Abort, Body, Done, Open, OpenFlags, Purpose, Reason, Refused, Start, Verdict,
};
use chunking::{ChunkHead, Codec, DigestKind, Kind};
use heft::model::blob_id;
use heft::model::{BlobRef, JobResult, JobStatus, JsonModel};
use uuid::Uuid;

use crate::blobs::digest;
use crate::proxy::{Plan, Proxy, Way};
use crate::raw::Raw;
use crate::support::scaled;
use crate::uploads::{next_of, say, send_chunk, upload};
use crate::world::{
    MIB, World, descriptors_and_pipes, eventually, expect_digests, submit_files, worker_at,
};

fn aborted(raw: &mut Raw, id: Uuid) -> Reason {
    let frame = next_of(raw, Kind::Abort);
    assert_eq!(frame.msg_id, id);
    Abort::decode(&frame.payload).unwrap().reason
}

/// The leader still takes large files, and nothing is left of what came before.
fn assert_well(world: &World) {
    world.assert_idle(0);
    let file = world.noise("well.bin", 5 * MIB as u64);
    let _worker = world.worker(&[]);
    world.run(&[&file], &[]);
    world.assert_idle(0);
}

#[test]
fn chunks_that_do_not_belong_are_refused_and_cost_nobody_else_anything() {
    let world = World::start(&["--input-wait", "100ms"]);
    let chunk = vec![7; MIB];
    let mut raw = Raw::client(&world.leader, "raw");
    // Of no transfer; of another connection's; Done, Void and Grant of none.
    let nobody = Uuid::from_u128(5);
    send_chunk(&mut raw, nobody, 0, &chunk);
    assert_eq!(aborted(&mut raw, nobody), Reason::UNKNOWN);
    let (_, theirs, _) = upload(&mut raw, 3 * MIB);
    let mut thief = Raw::client(&world.leader, "thief");
    send_chunk(&mut thief, theirs, 0, &chunk);
    assert_eq!(aborted(&mut thief, theirs), Reason::UNKNOWN);
    let right = digest(&chunk, DigestKind::ChunkList);
    say(&mut thief, theirs, &Done { digest: right });
    assert_eq!(aborted(&mut thief, theirs), Reason::UNKNOWN);
    say(&mut thief, theirs, &chunking::message::Void { offset: 0, reason: Reason::IO });
    say(&mut thief, nobody, &crate::blobs::grant(8, &[]));
    say(&mut thief, theirs, &Verdict::Ok);

    // Past the end, at an odd place, too short, and one with a flipped bit: dropped, and asked for
    // again after Done.
    let (_, id, window) = upload(&mut raw, 3 * MIB);
    assert!(window >= 3, "{window}");
    send_chunk(&mut raw, id, 3 * MIB, &chunk);
    send_chunk(&mut raw, id, 17, &chunk);
    send_chunk(&mut raw, id, 0, &chunk[..1000]);
    say(&mut raw, id, &Done { digest: right });
    let verdict = Verdict::decode(&next_of(&mut raw, Kind::Verdict).payload).unwrap();
    assert_eq!(verdict, Verdict::Resend(crate::blobs::ranges(&[(0, 3)])));
    let head = ChunkHead { crc_sent: 1, ..ChunkHead::plain(0, &chunk) };
    raw.send(Kind::Chunk, id, Uuid::nil(), "", &[&head.encode()[..], &chunk].concat());
    send_chunk(&mut raw, id, 2 * MIB, &chunk);
    send_chunk(&mut raw, id, MIB, &chunk);
    say(&mut raw, id, &Done { digest: right });
    let verdict = Verdict::decode(&next_of(&mut raw, Kind::Verdict).payload).unwrap();
    assert_eq!(
        verdict,
        Verdict::Resend(crate::blobs::ranges(&[(0, 1)])),
        "one bad chunk is resent alone"
    );
    send_chunk(&mut raw, id, 0, &chunk);
    say(&mut raw, id, &Done { digest: digest(&vec![7; 3 * MIB], DigestKind::ChunkList) });
    let verdict = Verdict::decode(&next_of(&mut raw, Kind::Verdict).payload).unwrap();
    assert_eq!(verdict, Verdict::Ok);
    drop((raw, thief));
    world.until("one job waits", |status| status["jobs"]["queued"] == 1);
    let worker = world.worker(&[]);
    world.assert_idle(0);
    drop(worker);
    assert_well(&world);
}

#[test]
fn a_sender_that_ignores_its_window_loses_its_transfer() {
    let world = World::in_memory(&["--input-wait", "100ms", "--spool-max", "2MiB"]);
    let mut raw = Raw::client(&world.leader, "raw");
    let (_, id, window) = upload(&mut raw, 40 * MIB);
    let chunk = vec![7; MIB];
    // Without a worker the window is what the spool takes, and does not grow.
    for index in 0..3 {
        send_chunk(&mut raw, id, index * MIB, &chunk);
    }
    assert_eq!(window, 2);
    assert_eq!(aborted(&mut raw, id), Reason::WINDOW_IGNORED);
    drop(raw);
    assert_well(&world);
}

#[test]
fn a_wrong_digest_is_forgiven_once_and_then_ends_the_job_with_the_reason() {
    let world = World::start(&[]);
    for with_worker in [false, true] {
        let worker = with_worker.then(|| world.worker(&[]));
        if with_worker {
            world.until("a worker is there", |status| {
                status["workers"].as_array().unwrap().len() == 1
            });
        }
        let mut raw = Raw::client(&world.leader, "raw");
        let (job, id, _) = upload(&mut raw, 2 * MIB);
        let chunk = vec![7; MIB];
        let wrong = digest(b"something else", DigestKind::ChunkList);
        for round in 0..2 {
            send_chunk(&mut raw, id, 0, &chunk);
            send_chunk(&mut raw, id, MIB, &chunk);
            say(&mut raw, id, &Done { digest: wrong });
            let verdict = Verdict::decode(&next_of(&mut raw, Kind::Verdict).payload).unwrap();
            match verdict {
                Verdict::Resend(ranges) if round == 0 => {
                    assert_eq!(ranges, crate::blobs::ranges(&[(0, 2)]))
                }
                Verdict::Failed { reason, .. } if round == 1 => {
                    assert_eq!(reason, Reason::BAD_DIGEST)
                }
                Verdict::Ok | Verdict::Resend(_) | Verdict::Failed { .. } => {
                    panic!("round {round}: {verdict:?}")
                }
            }
        }
        let refused = next_of(&mut raw, Kind::Refused);
        assert_eq!(refused.msg_id, job);
        let refused = Refused::decode(&refused.payload).unwrap();
        assert_eq!(refused.reason, Reason::BAD_DIGEST);
        assert!(refused.text.as_str().contains("digest"), "{}", refused.text);
        world.assert_idle(0);
        drop(worker);
    }
}

#[test]
fn a_worker_that_never_reads_holds_nobody_up() {
    let world = World::start(&["--worker-grace", "200ms"]);
    let deaf_file = world.noise("deaf.bin", 30 * MIB as u64);
    // From the first chunk on nothing reaches it.
    let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::FromLeader, 700)]);
    let mut deaf = worker_at(proxy.port, &["own.deaf"]);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    let args = ["--compress", "none", "--subject", "own.deaf"];
    let stuck: Vec<_> =
        (0..3).map(|_| submit_files(&world.addr(), "digests", &[&deaf_file], &args)).collect();
    proxy.wait_held();
    let worker = world.worker(&["job.assign.digests"]);
    let file = world.noise("in.bin", 40 * MIB as u64);
    world.run(&[&file], &[]);
    deaf.proc.kill();
    drop(proxy);
    let _healthy = world.worker(&["own.deaf"]);
    for submit in stuck {
        expect_digests(submit, &[&deaf_file]);
    }
    world.assert_idle(0);
    drop(worker);
}

#[test]
fn broken_transfers_leave_no_descriptor_open() {
    let world = World::start(&["--input-wait", "100ms"]);
    let file = world.noise("in.bin", 20 * MIB as u64);
    // The first file in the spool makes its directory, which stays open.
    let mut first = submit_files(&world.addr(), "digests", &[&file], &["--compress", "none"]);
    first.wait_for("that it is queued", |line| {
        line.contains(r#""event":"submitted""#).then_some(())
    });
    let worker = world.worker(&[]);
    expect_digests(first, &[&file]);
    let settled = |process: &crate::procs::Proc| {
        let mut last = descriptors_and_pipes(process);
        eventually("the descriptors are steady", || {
            std::thread::sleep(std::time::Duration::from_millis(30));
            let now = descriptors_and_pipes(process);
            std::mem::replace(&mut last, now) == now
        });
        last
    };
    world.run(&[&file], &[]);
    world.assert_idle(0);
    let before = (settled(&world.leader.proc), settled(&worker.proc));
    for round in 0..scaled(6, 60) {
        let after = u64::from(round % 19 + 1) * MIB as u64;
        let proxy = Proxy::start(world.leader.port, [Plan::Hold(Way::ToLeader, after)]);
        let mut submit = submit_files(&proxy.addr(), "digests", &[&file], &["--compress", "none"]);
        proxy.wait_held();
        submit.kill();
    }
    let mut raw = Raw::client(&world.leader, "raw");
    for _ in 0..4 {
        let (_, id, _) = upload(&mut raw, 3 * MIB);
        send_chunk(&mut raw, id, 0, &vec![7; MIB]);
    }
    drop(raw);
    world.assert_idle(0);
    // How many pipes a leader keeps depends on how many chunks were on their way at once. Each round
    // breaks one: pipes that are left open are more than these.
    let spare = 2 * 2;
    let is_as = |process: &crate::procs::Proc, (files, pipes): (usize, usize)| {
        let now = descriptors_and_pipes(process);
        now.0 <= files && now.1 <= pipes + spare
    };
    eventually(
        &format!("descriptors and pipes of leader and worker: {before:?}, as before"),
        || is_as(&world.leader.proc, before.0) && is_as(&worker.proc, before.1),
    );
    crate::world::assert_no_job_directory(&worker);
}

/// The opening of an archive of one chunk.
fn archive_of(job: Uuid, attempt: u32) -> Open {
    Open {
        purpose: Purpose::Archive,
        codec: Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::KEEPS_SOURCE,
        chunk_bytes: chunking::limits::CHUNK_BYTES_MAX,
        size: MIB as u64,
        owner: job,
        attempt,
        name: String::new().try_into().unwrap(),
    }
}

#[test]
fn a_worker_that_answers_for_anothers_job_takes_nothing_of_its_result() {
    let world = World::start(&[]);
    let mut worker = Raw::worker(&world.leader, Uuid::new_v4(), "job.assign.own");
    let mut other = Raw::worker(&world.leader, Uuid::new_v4(), "job.assign.nothing");
    let (mut client, job) = (Raw::client(&world.leader, "raw"), Uuid::new_v4());
    client.submit(job, "own", &[]);
    let start = Start::decode(&next_of(&mut worker, Kind::Start).payload).unwrap();
    let (id, archive) = (blob_id(job, start.attempt, Purpose::Archive, 0), vec![7; MIB]);
    let open = archive_of(job, start.attempt);
    // Only whose attempt it is brings a part of its result.
    say(&mut other, id, &open);
    assert_eq!(aborted(&mut other, id), Reason::UNKNOWN);
    say(&mut worker, id, &open);
    next_of(&mut worker, Kind::Grant);
    send_chunk(&mut worker, id, 0, &archive);
    say(&mut worker, id, &Done { digest: digest(&archive, DigestKind::ChunkList) });
    assert_eq!(Verdict::decode(&next_of(&mut worker, Kind::Verdict).payload).unwrap(), Verdict::Ok);

    let mut result = JobResult::new(job, "raw", "own", JobStatus::Ok);
    (result.run, result.attempts) = (Some(start.run), Some(start.attempt));
    other.send(Kind::AckJob, job, job, "", &result.to_json());
    assert_eq!(next_of(&mut other, Kind::Settled).msg_id, job);
    let mut lost = result.clone();
    lost.status = JobStatus::Duplicate;
    other.send(Kind::AckJob, job, job, "", &lost.to_json());
    next_of(&mut other, Kind::Settled);

    result.archive = Some(BlobRef { id, size: MIB as u64, digest: None });
    worker.send(Kind::AckJob, job, job, "", &result.to_json());
    let came = JobResult::parse(&next_of(&mut client, Kind::Result).payload).unwrap();
    assert_eq!((came.status, came.archive.map(|archive| archive.id)), (JobStatus::Ok, Some(id)));
    next_of(&mut worker, Kind::Settled);
}

/// Takes the next job and brings an archive of one chunk; gives the archive and the answer that
/// names it.
fn bring_archive(worker: &mut Raw, job: Uuid) -> (Uuid, JobResult) {
    let start = Start::decode(&next_of(worker, Kind::Start).payload).unwrap();
    let (id, archive) = (blob_id(job, start.attempt, Purpose::Archive, 0), vec![7; MIB]);
    say(worker, id, &archive_of(job, start.attempt));
    next_of(worker, Kind::Grant);
    send_chunk(worker, id, 0, &archive);
    say(worker, id, &Done { digest: digest(&archive, DigestKind::ChunkList) });
    assert_eq!(Verdict::decode(&next_of(worker, Kind::Verdict).payload).unwrap(), Verdict::Ok);
    let mut result = JobResult::new(job, "raw", "own", JobStatus::Ok);
    (result.run, result.attempts) = (Some(start.run), Some(start.attempt));
    result.archive = Some(BlobRef { id, size: MIB as u64, digest: None });
    (id, result)
}

/// A client finds a chunk of an archive damaged twice: the leader drops it and asks for it again.
/// The answer was on its way by then. Gives worker and client, the job and the archive.
fn answer_early(world: &World) -> (Raw, Raw, Uuid, Uuid) {
    let mut worker = Raw::worker(&world.leader, Uuid::new_v4(), "job.assign.own");
    let (mut client, job) = (Raw::client(&world.leader, "raw"), Uuid::new_v4());
    client.submit(job, "own", &[]);
    let (id, result) = bring_archive(&mut worker, job);
    assert_eq!(next_of(&mut client, Kind::Open).msg_id, id);
    say(&mut client, id, &crate::blobs::grant(8, &[]));
    let again = Verdict::Resend(crate::blobs::ranges(&[(0, 1)]));
    for _ in 0..2 {
        next_of(&mut client, Kind::Chunk);
        say(&mut client, id, &again);
    }
    assert_eq!(Verdict::decode(&next_of(&mut worker, Kind::Verdict).payload).unwrap(), again);
    worker.send(Kind::AckJob, job, job, "", &result.to_json());
    (worker, client, job, id)
}

#[test]
fn a_result_of_which_a_chunk_was_asked_for_again_counts_when_that_has_come() {
    let world = World::start(&[]);
    let (mut worker, mut client, job, id) = answer_early(&world);
    let archive = vec![7; MIB];
    send_chunk(&mut worker, id, 0, &archive);
    say(&mut worker, id, &Done { digest: digest(&archive, DigestKind::ChunkList) });
    assert_eq!(Verdict::decode(&next_of(&mut worker, Kind::Verdict).payload).unwrap(), Verdict::Ok);
    assert_eq!(next_of(&mut worker, Kind::Settled).msg_id, job);
    next_of(&mut client, Kind::Chunk);
    let came = JobResult::parse(&next_of(&mut client, Kind::Result).payload).unwrap();
    assert_eq!((came.status, came.archive.map(|archive| archive.id)), (JobStatus::Ok, Some(id)));
}

#[test]
fn a_result_of_which_a_chunk_was_asked_for_again_and_cannot_be_had_is_made_by_another() {
    let world = World::start(&[]);
    let (mut worker, mut client, job, id) = answer_early(&world);
    let mut other = Raw::worker(&world.leader, Uuid::new_v4(), "job.assign.own");
    say(&mut worker, id, &Abort { reason: Reason::SOURCE_GONE, text: "gone".into() });
    let (id, result) = bring_archive(&mut other, job);
    other.send(Kind::AckJob, job, job, "", &result.to_json());
    let came = JobResult::parse(&next_of(&mut client, Kind::Result).payload).unwrap();
    assert_eq!((came.status, came.archive.map(|archive| archive.id)), (JobStatus::Ok, Some(id)));
    next_of(&mut other, Kind::Settled);
}
