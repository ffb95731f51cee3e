//! Two hazards of tokio-uring, on which the shape of the io_uring driver stands: an operation whose
//! future is dropped goes on, and what it brings is lost. If one of these tests fails, tokio-uring
//! has changed, and the driver may do more than it does. What the driver does instead is tested in
//! `src/driver/uring/tests.rs`.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Before this is over a test that hangs says so. No measurement.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs on a ring, if there is one.
fn on_a_ring(test: impl Future<Output = ()>) {
    let mut builder = tokio_uring::builder();
    match tokio_uring::Runtime::new(builder.entries(64)) {
        Ok(runtime) => {
            let limited = async { tokio::time::timeout(PATIENCE, test).await };
            runtime.block_on(limited).expect("an end in time");
        }
        Err(error) => {
            eprintln!("there is no io_uring here, so this test looks at nothing: {error}")
        }
    }
}

/// Begins an operation, hands it to the ring, and drops it.
async fn begin_and_drop<T>(operation: impl Future<Output = T>) {
    let early = tokio::time::timeout(Duration::from_millis(20), operation).await;
    assert!(early.is_err(), "there is nothing to end it");
}

/// Whether something waits at a socket, without a look at what.
fn has_something(socket: &impl std::os::fd::AsFd) -> bool {
    let mut asked = [PollFd::new(socket, PollFlags::IN)];
    poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
}

/// Waits until somebody has taken what waited at a socket. Nobody does but the operation that was
/// dropped.
async fn until_taken(socket: &impl std::os::fd::AsFd) {
    let until = Instant::now() + PATIENCE;
    while has_something(socket) {
        assert!(Instant::now() < until, "nobody takes it");
        tokio_uring::no_op().await.unwrap();
    }
}

#[test]
fn a_read_that_is_dropped_in_flight_swallows_what_comes_later() {
    on_a_ring(async {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut peer = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let watched = listener.accept().unwrap().0;
        let socket = tokio_uring::net::TcpStream::from_std(watched.try_clone().unwrap());

        begin_and_drop(socket.read(vec![0; 64])).await;
        peer.write_all(b"swallowed").unwrap();
        until_taken(&watched).await;

        peer.write_all(b"heard").unwrap();
        let (got, buffer) = socket.read(vec![0; 64]).await;
        assert_eq!(
            &buffer[..got.unwrap()],
            b"heard",
            "the first bytes went to the read that nobody waits for"
        );
        peer.shutdown(Shutdown::Write).unwrap();
        let (got, _) = socket.read(vec![0; 64]).await;
        assert_eq!(got.unwrap(), 0, "and they do not come any more");
    });
}

#[test]
fn an_accept_that_is_dropped_in_flight_swallows_a_connection() {
    on_a_ring(async {
        let watched = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = watched.local_addr().unwrap();
        let listener = tokio_uring::net::TcpListener::from_std(watched.try_clone().unwrap());

        begin_and_drop(listener.accept()).await;
        let mut lost = TcpStream::connect(addr).unwrap();
        until_taken(&watched).await;

        let found = TcpStream::connect(addr).unwrap();
        let (_socket, peer) = listener.accept().await.unwrap();
        assert_eq!(peer, found.local_addr().unwrap(), "the first connection is nobody's");
        // Its peer cannot know: it is connected, and nothing ends it.
        lost.write_all(b"hello?").unwrap();
        lost.set_nonblocking(true).unwrap();
        assert_eq!(lost.read(&mut [0; 1]).unwrap_err().kind(), ErrorKind::WouldBlock);
    });
}
