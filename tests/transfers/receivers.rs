//! Receivers of chunks that pass through the leader while they come, at a real leader: one that
//! goes away in the middle of a chunk, and one that does not read. Whatever they do, their sender
//! is not held up, and the job gets the right bytes.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use chunking::message::{Body, Reason, Verdict, Void};
use chunking::{ChunkHead, DigestKind, Kind};
use serde_json::json;
use uuid::Uuid;

use crate::blobs::{self, digest};
use crate::raw::Raw;
use crate::splice::{CHUNKS, content, send_until_it_ends};
use crate::uploads::{chunk_frame, next_of, say, send_chunk, upload};
use crate::world::{MIB, World};

/// A worker is told of the blob and gives a window; when this returns, the leader has heard of it,
/// and nothing else waits for the worker: the next chunk passes through.
fn take_transfer(worker: &mut Raw, id: Uuid) {
    assert_eq!(next_of(worker, Kind::Open).msg_id, id);
    say(worker, id, &blobs::grant(8, &[]));
    worker.ask("status", &json!({}));
}

#[test]
fn a_worker_that_goes_away_in_the_middle_of_a_chunk_leaves_the_job_to_another() {
    for reset in [false, true] {
        let world = World::in_memory(&["--verify", "end", "--worker-grace", "200ms"]);
        let content = content();
        let mut worker = Raw::worker(&world.leader, Uuid::new_v4(), "job.assign.digests");
        let mut client = Raw::client(&world.leader, "raw");
        let (_, id, window) = upload(&mut client, content.len());
        assert!(window as usize >= CHUNKS, "{window}");
        take_transfer(&mut worker, id);

        let first = chunk_frame(id, 0, &content[..MIB]);
        let (half, rest) = first.split_at(MIB / 2);
        client.stream.write_all(half).unwrap();
        let mut got = vec![0; 100_000];
        worker.stream.read_exact(&mut got).unwrap();
        assert!(got == first[..100_000], "it passes through while it comes");
        if reset {
            socket2::SockRef::from(&worker.stream).set_linger(Some(Duration::ZERO)).unwrap();
        }
        drop(worker);
        client.stream.write_all(rest).unwrap();
        world.until("the chunk is given up", |status| status["leader"]["chunks_voided"] == 1);

        let second = world.worker(&[]);
        for index in 1..CHUNKS {
            send_chunk(&mut client, id, index * MIB, &content[index * MIB..(index + 1) * MIB]);
        }
        let asked = send_until_it_ends(&mut client, id, &content);
        assert!(!asked.is_empty() && asked.iter().all(|index| *index == 0), "{asked:?}");
        world.until("the first worker is forgotten", |status| {
            status["workers"].as_array().unwrap().len() == 1
        });
        world.assert_idle(0);
        drop(second);
    }
}

/// A connection that takes little before somebody reads: with segments this short the system keeps
/// small buffers for it.
fn narrow(world: &World) -> TcpStream {
    let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    socket.set_tcp_mss(536).unwrap();
    socket.set_recv_buffer_size(64 * 1024).unwrap();
    let addr: std::net::SocketAddr = world.addr().parse().unwrap();
    socket.connect(&addr.into()).unwrap();
    socket.into()
}

/// A worker's end of a transfer, to its result: takes chunks and what is said about them, asks for
/// what is missing, and says what it got. Gives how many chunks were taken back by the leader.
fn receive(worker: &mut Raw, job: Uuid, id: Uuid) -> u32 {
    let mut chunks: Vec<Option<Vec<u8>>> = vec![None; CHUNKS];
    let (mut voided, mut started, mut is_whole) = (0, false, false);
    while !(started && is_whole) {
        let frame = worker.next().expect("the leader does not hang up");
        if frame.kind == Kind::Chunk {
            let (head, sent) = ChunkHead::decode(&frame.payload).unwrap();
            let index = usize::try_from(head.offset).unwrap() / MIB;
            let is_good = head.check_sent(crc32fast::hash(sent)).is_ok();
            chunks[index] = is_good.then(|| sent.to_vec());
            say(worker, id, &blobs::grant(1, &[]));
        } else if frame.kind == Kind::Void {
            let void = Void::decode(&frame.payload).unwrap();
            chunks[usize::try_from(void.offset).unwrap() / MIB] = None;
            voided += 1;
        } else if frame.kind == Kind::Done {
            let missing = chunks.iter().position(Option::is_none);
            is_whole = missing.is_none();
            let verdict = missing.map_or(Verdict::Ok, |index| {
                Verdict::Resend(blobs::ranges(&[(u32::try_from(index).unwrap(), 1)]))
            });
            say(worker, id, &verdict);
        } else {
            started |= frame.kind == Kind::Start;
        }
    }
    let whole: Vec<u8> = chunks.into_iter().flatten().flatten().collect();
    let text = digest(&whole, DigestKind::Sha256).to_string();
    let result = json!({"JobId": job, "Status": "OK", "Stdout": text, "Stderr": ""}).to_string();
    worker.send(Kind::AckJob, Uuid::nil(), job, "", result.as_bytes());
    voided
}

#[test]
fn a_sender_that_stalls_behind_a_worker_that_does_not_read_costs_that_worker_one_chunk_and_no_more()
{
    let world = World::in_memory(&["--verify", "end"]);
    let content = content();
    let mut worker = Raw::on(narrow(&world)).hello_worker(Uuid::new_v4(), "job.assign.digests");
    let mut client = Raw::client(&world.leader, "raw");
    let (job, id, _) = upload(&mut client, content.len());
    take_transfer(&mut worker, id);

    // The worker does not read, so most of this cannot go on to it; and the rest does not come.
    let first = chunk_frame(id, 0, &content[..MIB]);
    let (most, rest) = first.split_at(3 * MIB / 4);
    client.stream.write_all(most).unwrap();
    let status =
        world.until("the chunk is given up", |status| status["leader"]["chunks_voided"] == 1);
    assert_eq!(status["leader"]["chunks_passed_through"], 0);

    // Now it reads: its chunk has all its bytes, zeros for those that did not come, and then it
    // hears that it is not to be used.
    let chunk = next_of(&mut worker, Kind::Chunk);
    let (head, sent) = ChunkHead::decode(&chunk.payload).unwrap();
    assert_eq!((head.offset, sent.len()), (0, MIB));
    let right = sent.iter().zip(&content).take_while(|(got, was)| got == was).count();
    assert!((10_000..3 * MIB / 4).contains(&right), "{right} bytes came through");
    assert!(sent[3 * MIB / 4..].iter().all(|byte| *byte == 0), "the rest is zeros");
    assert!(head.check_sent(crc32fast::hash(sent)).is_err());
    let void = worker.next().expect("the connection lives");
    assert_eq!(void.kind, Kind::Void);
    assert_eq!(
        Void::decode(&void.payload).unwrap(),
        Void { offset: 0, reason: Reason::SOURCE_GONE }
    );

    // The sender goes on. What is left of the chunk is nobody's, and all of it is asked for again.
    let receiving = std::thread::spawn(move || (receive(&mut worker, job, id), worker));
    client.stream.write_all(rest).unwrap();
    for index in 1..CHUNKS {
        send_chunk(&mut client, id, index * MIB, &content[index * MIB..(index + 1) * MIB]);
    }
    let asked = send_until_it_ends(&mut client, id, &content);
    assert!(!asked.is_empty() && asked.iter().all(|index| *index == 0), "{asked:?}");
    let (voided, worker) = receiving.join().unwrap();
    assert_eq!(voided, 0, "no other chunk was taken back");
    world.assert_idle(0);
    drop(worker);
}

#[test]
fn a_worker_that_does_not_read_does_not_hold_up_who_sends_whole_chunks() {
    let world = World::in_memory(&["--verify", "end"]);
    let content = content();
    let mut worker = Raw::on(narrow(&world)).hello_worker(Uuid::new_v4(), "job.assign.digests");
    let mut client = Raw::client(&world.leader, "raw");
    let (job, id, _) = upload(&mut client, content.len());
    take_transfer(&mut worker, id);
    for index in 0..CHUNKS {
        send_chunk(&mut client, id, index * MIB, &content[index * MIB..(index + 1) * MIB]);
    }
    // All that the client sent has been read, though the worker has read nothing.
    let last = client.ask("status", &json!({}));
    assert_eq!(last["leader"]["chunks_voided"], 0);
    let receiving = std::thread::spawn(move || (receive(&mut worker, job, id), worker));
    let asked = send_until_it_ends(&mut client, id, &content);
    assert!(asked.is_empty(), "{asked:?}");
    let (voided, worker) = receiving.join().unwrap();
    assert_eq!(voided, 0);
    world.until("the chunk that was blocked went through", |status| {
        status["leader"]["chunks_passed_through"].as_u64().unwrap() >= 1
    });
    world.assert_idle(0);
    drop(worker);
}
