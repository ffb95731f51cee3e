//! Chunks that pass through the leader while they come, at a real leader: damage, a sender that
//! breaks off or falls silent in the middle of a chunk. Whatever happens, the worker's connection
//! lives and the job gets the right bytes.

use std::io::Write;

use chunking::message::{Body, Done, Verdict};
use chunking::{DigestKind, Kind};
use heft::model::{JobResult, JobStatus, JsonModel};
use uuid::Uuid;

use crate::blobs::{digest, noise};
use crate::raw::Raw;
use crate::uploads::{chunk_frame, say, send_chunk, upload, upload_of};
use crate::world::{MIB, World};

pub const CHUNKS: usize = 4;

pub fn content() -> Vec<u8> {
    noise(CHUNKS * MIB)
}

/// A leader that checks as it is told, with one worker.
fn world(verify: &str) -> (World, impl Sized) {
    let world = World::in_memory(&["--verify", verify]);
    let worker = world.worker(&[]);
    world.until("a worker is there", |status| status["workers"].as_array().unwrap().len() == 1);
    (world, worker)
}

/// Sends what is asked for again until the job has ended; gives how often which chunk was asked
/// for.
pub fn send_until_it_ends(raw: &mut Raw, id: Uuid, content: &[u8]) -> Vec<u32> {
    let done = Done { digest: digest(content, DigestKind::ChunkList) };
    say(raw, id, &done);
    let mut asked = Vec::new();
    loop {
        let frame = raw.next().expect("the leader does not hang up");
        if frame.kind == Kind::Verdict {
            match Verdict::decode(&frame.payload).unwrap() {
                Verdict::Ok => {}
                Verdict::Resend(ranges) => {
                    for index in ranges.indices() {
                        asked.push(index);
                        let at = index as usize * MIB;
                        send_chunk(raw, id, at, &content[at..at + MIB]);
                    }
                    say(raw, id, &done);
                }
                failed @ Verdict::Failed { .. } => panic!("{failed:?}"),
            }
        }
        if frame.kind == Kind::Result {
            let result = JobResult::parse(&frame.payload).unwrap();
            assert_eq!(result.status, JobStatus::Ok, "{}", result.stderr);
            let right = digest(content, DigestKind::Sha256).to_string();
            let right = right.split(':').next_back().unwrap();
            assert!(result.stdout.contains(right), "{} is not {right}", result.stdout);
            return asked;
        }
    }
}

/// The worker takes chunks, and nothing else waits for it.
fn first_is_there(world: &World) {
    let chunks = |status: &serde_json::Value| status["leader"]["buffers_promised"].as_u64();
    world.until("the first chunk is at the worker", |status| {
        let leader = &status["leader"];
        chunks(status) == Some(CHUNKS as u64 - 1)
            && leader["buffers_in_use"] == 0
            && leader["spool_bytes"] == 0
    });
}

#[test]
fn a_chunk_that_passes_through_damaged_is_found_and_resent_alone() {
    for verify in ["end", "hop"] {
        let (world, _worker) = world(verify);
        let content = content();
        let mut raw = Raw::client(&world.leader, "raw");
        let (_, id, window) = upload(&mut raw, content.len());
        assert!(window as usize >= CHUNKS, "{window}");
        send_chunk(&mut raw, id, 0, &content[..MIB]);
        first_is_there(&world);
        for index in 1..CHUNKS {
            let bytes = &content[index * MIB..(index + 1) * MIB];
            let mut frame = chunk_frame(id, index, bytes);
            if index == 2 {
                *frame.last_mut().unwrap() ^= 1;
            }
            raw.stream.write_all(&frame).unwrap();
        }
        // A worker that still stores the bad one when the good one comes asks once more.
        let asked = send_until_it_ends(&mut raw, id, &content);
        assert!(
            !asked.is_empty() && asked.iter().all(|index| *index == 2),
            "--verify {verify}: {asked:?}"
        );
        let through = if verify == "end" { CHUNKS as u64 - 1 } else { 0 };
        let passed = world.status()["leader"]["chunks_passed_through"].as_u64().unwrap();
        assert!(passed >= through, "--verify {verify}: {passed} passed through");
        world.assert_idle(0);
    }
}

#[test]
fn a_sender_that_falls_silent_in_the_middle_of_a_chunk_does_not_hold_up_its_worker() {
    let (world, _worker) = world("end");
    let content = content();
    let mut raw = Raw::client(&world.leader, "raw");
    let (_, id, _) = upload(&mut raw, content.len());
    send_chunk(&mut raw, id, 0, &content[..MIB]);
    first_is_there(&world);
    let second = chunk_frame(id, 1, &content[MIB..2 * MIB]);
    let (half, rest) = second.split_at(MIB / 2);
    raw.stream.write_all(half).unwrap();
    // Somebody else's small job runs at the same worker meanwhile: the worker's connection is not
    // blocked.
    let small = world.noise("small.bin", 10);
    world.run(&[&small], &[]);
    world.until("the chunk is given up", |status| status["leader"]["chunks_voided"] == 1);
    raw.stream.write_all(rest).unwrap();
    for index in 2..CHUNKS {
        send_chunk(&mut raw, id, index * MIB, &content[index * MIB..(index + 1) * MIB]);
    }
    let asked = send_until_it_ends(&mut raw, id, &content);
    assert!(!asked.is_empty() && asked.iter().all(|index| *index == 1), "{asked:?}");
    world.assert_idle(0);
}

#[test]
fn a_sender_that_breaks_off_in_the_middle_of_a_chunk_goes_on_and_the_worker_notices_nothing() {
    let (world, _worker) = world("end");
    let content = content();
    let mut raw = Raw::client(&world.leader, "raw");
    let (job, id, _) = upload(&mut raw, content.len());
    send_chunk(&mut raw, id, 0, &content[..MIB]);
    first_is_there(&world);
    let second = chunk_frame(id, 1, &content[MIB..2 * MIB]);
    raw.stream.write_all(&second[..MIB / 3]).unwrap();
    world.until("the second has begun", |status| {
        status["leader"]["buffers_in_use"] == 1 || status["leader"]["chunks_voided"] == 1
    });
    drop(raw);
    world.until("the chunk is given up", |status| status["leader"]["chunks_voided"] == 1);
    let mut raw = Raw::client(&world.leader, "raw");
    let held = upload_of(&mut raw, job, content.len()).1;
    assert!(held.held.indices().any(|index| index == 0), "what has come is not asked for again");
    for index in
        (0..CHUNKS).filter(|index| !held.held.indices().any(|held| held as usize == *index))
    {
        send_chunk(&mut raw, id, index * MIB, &content[index * MIB..(index + 1) * MIB]);
    }
    let asked = send_until_it_ends(&mut raw, id, &content);
    assert!(asked.iter().all(|index| *index == 1), "{asked:?}");
    world.assert_idle(0);
}
