//! Tests of the guards against the hazards of tokio-uring (`tests/uring_hazards.rs` shows them): a
//! wait for a socket can be dropped at any time, and a read returns its buffers when it ends. They
//! use real sockets and do nothing without io_uring.

use std::future::Future;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::TcpStream;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use chunking::{ChunkHead, Generation, Head, InboundLimits, Kind};
use tokio::task::spawn_local;
use uuid::Uuid;

use super::{RingSocket, probe, run};
use crate::driver::pipes::{Pipe, Pipes};
use crate::driver::socket::Socket;
use crate::wire::{Inlet, Pool, Step};

/// Before this is over a test that hangs says so. No measurement.
const PATIENCE: Duration = Duration::from_secs(60);

fn on_a_ring(test: impl Future<Output = ()>) {
    match probe::probe() {
        Ok(ring) => run(ring.quiet, async { tokio::time::timeout(PATIENCE, test).await })
            .expect("a ring can be had")
            .expect("an end in time"),
        Err(why) => eprintln!("there is no io_uring here, so this test looks at nothing: {why}"),
    }
}

/// A socket on the ring, and its peer.
async fn pair() -> (Rc<RingSocket>, TcpStream) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    peer.set_read_timeout(Some(PATIENCE)).unwrap();
    peer.set_nodelay(true).unwrap();
    let (stream, _) = listener.accept().await.unwrap();
    (Rc::new(RingSocket::adopt(stream).unwrap()), peer)
}

fn inlet() -> Inlet {
    Inlet::speaking(Generation::F2, InboundLimits::ANNOUNCED)
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let payload_len = u32::try_from(payload.len()).unwrap();
    Head { payload_len, ..Head::new(Kind::Progress) }.append(Generation::F2, &mut out).unwrap();
    [&out, payload].concat()
}

/// Payloads of all frames that have come whole.
fn came(inlet: &mut Inlet) -> Vec<Vec<u8>> {
    let mut payloads = Vec::new();
    loop {
        match inlet.poll().unwrap() {
            Step::Frame(_, frame) => payloads.push(frame.payload.to_vec()),
            Step::Read => return payloads,
            other @ (Step::Chunk(_)
            | Step::Came(_)
            | Step::Bulk(..)
            | Step::Piece(_)
            | Step::BulkEnd) => {
                panic!("{other:?}")
            }
        }
    }
}

/// Reads until so many frames have come.
async fn read_frames(socket: &RingSocket, mut inlet: Inlet, count: usize) -> (Vec<Vec<u8>>, Inlet) {
    let mut frames = came(&mut inlet);
    while frames.len() < count {
        let (got, back) = socket.read(inlet).await;
        inlet = back;
        assert_ne!(got.unwrap(), 0, "the end after {} frames", frames.len());
        frames.extend(came(&mut inlet));
    }
    (frames, inlet)
}

/// Begins to wait, hands that to the ring, and gives it up.
async fn give_up(waiting: impl Future<Output = ()>) {
    tokio::select! {
        biased;
        () = waiting => panic!("there is nothing to wake it"),
        () = RingSocket::pause() => {}
    }
}

/// Writes until the socket takes no more; says how much it took.
fn stuff(socket: &RingSocket) -> usize {
    let (zeros, mut taken) = (vec![0; 64 * 1024], 0);
    loop {
        match socket.write(&[IoSlice::new(&zeros)]) {
            Ok(written) => taken += written,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return taken;
            }
        }
    }
}

fn pipe() -> Pipe {
    Pipes::default().take().unwrap()
}

#[test]
fn waiting_for_something_to_read_may_be_given_up_and_loses_nothing() {
    on_a_ring(async {
        let (socket, mut peer) = pair().await;
        let mut inlet = inlet();
        for round in 0..20 {
            for _ in 0..10 {
                give_up(socket.readable()).await;
            }
            let payload = vec![round; 1000];
            peer.write_all(&frame(&payload)).unwrap();
            socket.readable().await;
            let frames;
            (frames, inlet) = read_frames(&socket, inlet, 1).await;
            assert_eq!(frames, [payload]);
            // The ring may still hold a question that was answered by the same bytes; it is for
            // whoever asks next.
            while tokio::time::timeout(Duration::from_millis(1), socket.readable()).await.is_ok() {}
        }
    });
}

#[test]
fn waiting_for_room_to_write_may_be_given_up_and_is_told_who_waits_later() {
    on_a_ring(async {
        let (socket, mut peer) = pair().await;
        let taken = stuff(&socket);
        for _ in 0..10 {
            give_up(socket.writable()).await;
        }
        let reader = std::thread::spawn(move || {
            let mut sink = vec![0; taken];
            peer.read_exact(&mut sink).unwrap();
            peer
        });
        socket.writable().await;
        socket.write(&[IoSlice::new(b"more")]).unwrap();
        let mut peer = reader.join().unwrap();
        let mut more = [0; 4];
        peer.read_exact(&mut more).unwrap();
        assert_eq!(&more, b"more");
    });
}

#[test]
fn all_who_wait_for_the_same_are_woken() {
    on_a_ring(async {
        let (socket, mut peer) = pair().await;
        stuff(&socket);
        let waiting: Vec<_> = (0..10)
            .map(|number| {
                let socket = socket.clone();
                spawn_local(async move {
                    if number % 2 == 0 { socket.readable().await } else { socket.writable().await }
                })
            })
            .collect();
        RingSocket::pause().await;
        assert!(waiting.iter().all(|task| !task.is_finished()));
        peer.write_all(b"x").unwrap();
        let reader =
            std::thread::spawn(move || std::io::copy(&mut peer, &mut std::io::sink()).ok());
        for task in waiting {
            task.await.unwrap();
        }
        socket.shut_down();
        reader.join().unwrap();
    });
}

#[test]
fn the_end_of_a_connection_wakes_all_who_wait_for_it() {
    on_a_ring(async {
        let (socket, _peer) = pair().await;
        stuff(&socket);
        let waiting: Vec<_> = (0..4)
            .map(|number| {
                let socket = socket.clone();
                spawn_local(async move {
                    if number % 2 == 0 { socket.readable().await } else { socket.writable().await }
                })
            })
            .collect();
        RingSocket::pause().await;
        socket.shut_down();
        for task in waiting {
            task.await.unwrap();
        }
    });
}

/// Bytes of the chunk that [`chunk_begins`] begins.
static CHUNK: [u8; 1 << 20] = [7; 1 << 20];

/// An inlet that has seen the head of a chunk and has a buffer for it: it reads to two places, the
/// chunk's and the next head's.
async fn chunk_begins(socket: &RingSocket, peer: &mut TcpStream, pool: &Pool) -> Inlet {
    let mut inlet = inlet();
    inlet.expect_chunks(true);
    let head = ChunkHead::plain(0, &CHUNK).frame_head(Uuid::from_u128(1), 1 << 20).unwrap();
    peer.write_all(&head).unwrap();
    while !matches!(inlet.poll().unwrap(), Step::Chunk(_)) {
        let (got, back) = socket.read(inlet).await;
        inlet = back;
        assert_ne!(got.unwrap(), 0);
    }
    inlet.take(pool.take().unwrap());
    assert!(inlet.room().iter().all(|piece| !piece.is_empty()));
    inlet
}

/// Reads the rest of the chunk that began.
async fn read_chunk(socket: &RingSocket, mut inlet: Inlet) -> Inlet {
    loop {
        if let Step::Came(chunk) = inlet.poll().unwrap() {
            assert!(chunk.head.check_sent(chunk.crc()).is_ok());
            return inlet;
        }
        let (got, back) = socket.read(inlet).await;
        inlet = back;
        assert_ne!(got.unwrap(), 0);
    }
}

#[test]
fn a_read_that_is_ended_gives_its_inlet_and_its_buffer_back() {
    for joins_splice_path in [false, true] {
        on_a_ring(async move {
            let (socket, mut peer) = pair().await;
            let pool = Pool::new(1);
            let inlet = chunk_begins(&socket, &mut peer, &pool).await;
            if joins_splice_path {
                assert_eq!(socket.drain(&pipe(), 1).unwrap_err().kind(), ErrorKind::WouldBlock);
            }
            let mut reading = pin!(socket.read(inlet));
            tokio::select! {
                biased;
                _ = reading.as_mut() => panic!("there is nothing to read"),
                () = RingSocket::pause() => {}
            }
            assert_eq!(pool.in_use(), 1, "the buffer is with the read");
            socket.shut_down();
            let (got, inlet) = reading.await;
            assert_eq!(got.unwrap(), 0, "the end");
            assert!(inlet.finish().is_err(), "in the middle of a chunk");
            drop(inlet);
            assert_eq!(pool.in_use(), 0);
        });
    }
}

#[test]
fn a_socket_that_joined_the_splice_path_still_reads_everything() {
    on_a_ring(async {
        let (socket, mut peer) = pair().await;
        peer.write_all(b"for the pipe").unwrap();
        socket.readable().await;
        let pipe = pipe();
        assert_eq!(socket.fill(&pipe, 12).unwrap(), 12);
        let mut piped = [0; 12];
        assert_eq!((pipe.read(&mut piped).unwrap(), &piped), (12, b"for the pipe"));
        // In pieces that come while it waits, and in one that is there already.
        let mut inlet = inlet();
        for piece in [1, 17, 1000, 100_000] {
            let payloads: Vec<Vec<u8>> = (0..5u8).map(|number| vec![number; 9_000]).collect();
            let stream: Vec<u8> = payloads.iter().flat_map(|payload| frame(payload)).collect();
            let writer = std::thread::spawn({
                let mut peer = peer.try_clone().unwrap();
                move || {
                    stream
                        .chunks(piece.max(stream.len() / 200))
                        .for_each(|piece| peer.write_all(piece).unwrap())
                }
            });
            let frames;
            (frames, inlet) = read_frames(&socket, inlet, 5).await;
            assert_eq!(frames, payloads);
            writer.join().unwrap();
        }
        drop(peer);
        assert_eq!(socket.read(inlet).await.0.unwrap(), 0);
    });
}

/// A read is under way when its socket joins the splice path, as the receiver of a chunk does. It
/// goes on as if that had not happened.
async fn join_while<T>(
    socket: &RingSocket,
    is_submitted: bool,
    reading: impl Future<Output = T>,
    come: impl FnOnce(),
) -> T {
    let mut reading = pin!(reading);
    tokio::select! {
        biased;
        _ = reading.as_mut() => panic!("there is nothing to read"),
        () = async { if is_submitted { RingSocket::pause().await } } => {}
    }
    assert_eq!(socket.drain(&pipe(), 1).unwrap_err().kind(), ErrorKind::WouldBlock);
    tokio::select! {
        biased;
        _ = reading.as_mut() => panic!("there is nothing to read"),
        () = RingSocket::pause() => {}
    }
    come();
    reading.await
}

#[test]
fn a_read_in_flight_when_its_socket_joins_the_splice_path_ends_as_if_it_had_not() {
    // The kernel has the read already, or is told of it after the socket joined; it is for one
    // place or for two. Kernels of today wait in all four cases. Older ones refuse some, and then
    // the driver waits in another way; where they wait, this test does not show that.
    for (is_submitted, in_chunk) in [(true, false), (false, false), (true, true), (false, true)] {
        on_a_ring(async move {
            let (socket, mut peer) = pair().await;
            let pool = Pool::new(1);
            let inlet = if in_chunk {
                let inlet = chunk_begins(&socket, &mut peer, &pool).await;
                let come = || peer.write_all(&CHUNK[..1000]).unwrap();
                let reading = socket.read(inlet);
                let (got, inlet) = join_while(&socket, is_submitted, reading, come).await;
                assert_eq!(got.unwrap(), 1000);
                let writer =
                    std::thread::spawn(move || peer.write_all(&CHUNK[1000..]).map(|()| peer));
                let inlet = read_chunk(&socket, inlet).await;
                peer = writer.join().unwrap().unwrap();
                inlet
            } else {
                // This read finds all that is there, so the next one waits in the ring.
                peer.write_all(&frame(b"first")).unwrap();
                let (frames, inlet) = read_frames(&socket, inlet(), 1).await;
                assert_eq!(frames, [b"first"]);
                let come = || peer.write_all(&frame(b"second")).unwrap();
                let reading = read_frames(&socket, inlet, 1);
                let (frames, inlet) = join_while(&socket, is_submitted, reading, come).await;
                assert_eq!(frames, [b"second"]);
                inlet
            };
            peer.write_all(&frame(b"last")).unwrap();
            let (frames, inlet) = read_frames(&socket, inlet, 1).await;
            assert_eq!(frames, [b"last"]);
            let reading = spawn_local({
                let socket = socket.clone();
                async move { socket.read(inlet).await.0 }
            });
            RingSocket::pause().await;
            socket.shut_down();
            assert_eq!(reading.await.unwrap().unwrap(), 0);
        });
    }
}

#[test]
fn a_wait_that_nobody_is_left_for_ends_with_its_connection_and_frees_the_descriptor() {
    on_a_ring(async {
        let (socket, mut peer) = pair().await;
        give_up(socket.readable()).await;
        socket.shut_down();
        drop(socket);
        // The question is answered, whoever asked it lets go of the socket, and the peer sees its
        // end: only the close makes the peer's own bytes bounce.
        assert_eq!(peer.read(&mut [0; 1]).unwrap(), 0);
        loop {
            RingSocket::pause().await;
            if peer.write_all(b"x").is_err() {
                break;
            }
        }
    });
}
