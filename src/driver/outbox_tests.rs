#![allow(clippy::unwrap_used)]

use std::io::IoSlice;

use super::piece::PIECE_BYTES;
use super::*;
use crate::wire::Inlet;
use bytes::Bytes;

/// A socket that takes as many bytes as it is told to.
#[derive(Default)]
struct Taps {
    takes: Cell<usize>,
    /// What is on its way to the other side.
    unacknowledged: Cell<u64>,
    room: Notify,
    /// What it took.
    got: RefCell<Vec<u8>>,
}

impl Socket for Taps {
    fn adopt(_: tokio::net::TcpStream) -> io::Result<Self> {
        Ok(Taps::default())
    }

    async fn read(&self, inlet: Inlet) -> (io::Result<usize>, Inlet) {
        (Ok(0), inlet)
    }

    fn try_read(&self, _: &mut Inlet) -> io::Result<usize> {
        Err(io::ErrorKind::WouldBlock.into())
    }

    fn write(&self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let written = slices.iter().map(|slice| slice.len()).sum::<usize>().min(self.takes.get());
        self.takes.set(self.takes.get() - written);
        let all = slices.iter().flat_map(|slice| slice.iter().copied());
        self.got.borrow_mut().extend(all.take(written));
        if written == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(written) }
    }

    fn unacknowledged(&self) -> Option<u64> {
        Some(self.unacknowledged.get())
    }

    fn limit_unsent(&self, _: u32) {}

    fn fill(&self, _: &Pipe, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    fn drain(&self, _: &Pipe, _: usize) -> io::Result<usize> {
        Ok(0)
    }

    async fn readable(&self) {}

    async fn writable(&self) {
        self.room.notified().await;
    }

    fn shut_down(&self) {}

    async fn pause() {}
}

fn frame(payload: usize) -> WireFrame {
    WireFrame { head: vec![1; 60].into(), payload: vec![2; payload].into(), trailer: Bytes::new() }
}

#[test]
fn sixty_thousand_small_frames_wait_for_a_peer_and_it_is_not_too_slow() {
    let outbox = Outbox::new(Rc::new(Taps::default()), AllAnswers::default());
    (0..60_000).for_each(|_| outbox.push(frame(100), Cargo::Posted));
    outbox.flush();
    assert_eq!(outbox.is_over_full(), None);
    (0..20).for_each(|_| outbox.push(frame(4 << 20), Cargo::Posted));
    assert!(outbox.is_over_full().is_some());
}

#[test]
fn what_is_out_is_told_by_kind_and_everything_is_given_back() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    outbox.push(frame(0), Cargo::Answer);
    outbox.push(frame(5000), Cargo::Posted);
    outbox.push(frame(5000), Cargo::Chunk);
    outbox.push(frame(10), Cargo::Posted);
    let take = |bytes| {
        socket.takes.set(bytes);
        let sent = outbox.flush();
        (sent.posted, sent.chunks)
    };
    assert_eq!(take(60 + 5059), (0, 0), "all but one byte");
    assert_eq!(take(1), (1, 0));
    assert_eq!(take(5060), (0, 1));
    assert_eq!(take(1000), (1, 0));
    assert_eq!((outbox.bytes.get(), outbox.answers.get(), outbox.is_free()), (0, 0, true));
}

#[tokio::test]
async fn a_peer_is_not_read_while_too_many_answers_wait_for_it() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    let moment = Duration::from_millis(20);
    (0..20).for_each(|_| outbox.push(frame(1 << 20), Cargo::Posted));
    outbox.answers_taken().await;
    (0..9).for_each(|_| outbox.push(frame(1 << 20), Cargo::Answer));
    {
        // Payloads are not answers: they go as the peer takes them.
        let mut taken = std::pin::pin!(outbox.answers_taken());
        assert!(tokio::time::timeout(moment, taken.as_mut()).await.is_err());
        socket.takes.set((20 << 20) + (1 << 19));
        outbox.flush();
        assert!(
            tokio::time::timeout(moment, taken.as_mut()).await.is_err(),
            "some went, and many wait"
        );
        socket.takes.set(1 << 20);
        outbox.flush();
        taken.await;
    }
    (0..9).for_each(|_| outbox.push(frame(1 << 20), Cargo::Answer));
    let mut taken = std::pin::pin!(outbox.answers_taken());
    assert!(tokio::time::timeout(moment, taken.as_mut()).await.is_err());
    outbox.cut_off();
    taken.await;
}

#[test]
fn how_a_peer_gets_on_is_told_by_what_it_acknowledged() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    let is_still = |look| matches!(look, Look::Still(_));
    assert_eq!(outbox.look(), Look::Done);
    // All of it is with the system, which says nothing of it by what it takes.
    socket.takes.set(1_000_060);
    outbox.push(frame(1_000_000), Cargo::Posted);
    outbox.flush();
    socket.unacknowledged.set(1_000_060);
    assert!(outbox.is_free() && is_still(outbox.look()));
    socket.unacknowledged.set(999_000);
    assert_eq!(outbox.look(), Look::Moves);
    assert!(is_still(outbox.look()));
    // More waits, and the socket takes nothing; the peer reads on.
    outbox.push(frame(8 << 20), Cargo::Posted);
    outbox.flush();
    for left in (1..10).rev() {
        socket.unacknowledged.set(left * 100_000);
        assert_eq!(outbox.look(), Look::Moves);
    }
    let stands_still_for = || match outbox.look() {
        Look::Still(idle) => Some(idle),
        Look::Done | Look::Quick | Look::Moves => None,
    };
    let first = stands_still_for();
    std::thread::sleep(Duration::from_millis(5));
    assert!(first.is_some() && stands_still_for() > first);
    socket.takes.set(9 << 20);
    outbox.flush();
    socket.unacknowledged.set(0);
    assert_eq!((outbox.look(), outbox.look()), (Look::Done, Look::Done));
    // Its time begins anew with what is sent next.
    std::thread::sleep(Duration::from_millis(5));
    let sent_at = Instant::now();
    outbox.push(frame(10), Cargo::Answer);
    assert!(stands_still_for().is_some_and(|idle| idle <= sent_at.elapsed()));
    socket.takes.set(20 << 20);
    (0..9).for_each(|_| outbox.push(frame(1 << 20), Cargo::Posted));
    outbox.flush();
    socket.unacknowledged.set(100);
    assert_eq!(outbox.look(), Look::Quick);
}

#[test]
fn a_line_is_known_to_be_slow_by_a_chunk_that_is_all_there_was() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    assert!(outbox.is_free(), "it is idle");
    let mut pace = Pace::default();
    pace.look(Instant::now().checked_sub(Duration::from_secs(3)).unwrap(), 0, true);
    outbox.pace.set(pace);
    socket.takes.set(500_000);
    outbox.push(frame(1 << 20), Cargo::Chunk);
    outbox.flush();
    assert!(outbox.is_slow(), "half of it took three seconds");
    socket.takes.set(2 << 20);
    outbox.flush();
    assert!(!outbox.is_free(), "the next one goes in pieces");
}

/// A peer that knows pieces, and its chunk of so many bytes.
fn chunk(bytes: usize) -> WireChunk {
    let bytes = Bytes::from(vec![7; bytes]);
    session().chunk(Uuid::nil(), &chunking::ChunkHead::plain(0, &bytes), bytes, 0)
}

fn session() -> crate::conn::Session {
    use crate::conn::Session;
    use crate::core::ids::ConnId;
    let hello =
        br#"{"ClientId":"c","DesiredParallelism":1,"Heft":{"Version":1,"Features":["transfers","pieces"]}}"#;
    let mut session = Session::new(ConnId(1), chunking::Generation::F2);
    let head = chunking::Head { subject: "c", ..chunking::Head::new(chunking::Kind::HelloClient) };
    session.hear(&head, Bytes::from_static(hello).into(), &mut Uuid::new_v4).unwrap();
    session
}

/// Makes the line one that took so little in so long.
fn slow(outbox: &Outbox<Taps>) {
    let (mut pace, now) = (Pace::default(), Instant::now());
    pace.look(now.checked_sub(Duration::from_secs(5)).unwrap(), 0, true);
    pace.look(now, 100_000, true);
    outbox.pace.set(pace);
}

#[test]
fn chunks_for_a_slow_line_go_piece_by_piece_and_small_frames_go_before_them_but_for_their_end() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    slow(&outbox);
    assert!(!outbox.is_free() && outbox.is_quiet(), "nothing is spliced to it");
    outbox.push_chunk(chunk(100_000), false);
    outbox.push_chunk(chunk(50_000), false);
    outbox.push_behind(frame(10));
    assert!(outbox.flush().is_none());
    // One piece of 20,000 bytes waits, and nothing else.
    let head = 43 + 30;
    assert_eq!(outbox.bytes.get(), head + 20_000 + 2 * PIECE_BYTES + 70);
    outbox.push(frame(0), Cargo::Posted);
    let take = |bytes| {
        socket.takes.set(bytes);
        let sent = outbox.flush();
        (sent.posted, sent.chunks)
    };
    assert_eq!(take(head + 20_000 + 60), (1, 0), "a small frame goes before the next piece");
    assert_eq!(take(4 * (head + 20_000)), (0, 1), "with its last piece the chunk is out");
    assert_eq!(take(3 * head + 50_000), (0, 1));
    assert_eq!(take(70), (0, 0));
    assert_eq!((outbox.bytes.get(), outbox.answers.get(), outbox.has_nothing()), (0, 0, true));
}

#[test]
fn chunks_for_a_fast_line_go_whole_and_one_after_the_other() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    let (mut pace, now) = (Pace::default(), Instant::now());
    pace.look(now, 0, true);
    pace.look(now + Duration::from_millis(1), 2 << 20, true);
    outbox.pace.set(pace);
    outbox.push_chunk(chunk(100_000), false);
    outbox.push_chunk(chunk(50_000), false);
    outbox.flush();
    assert_eq!(outbox.bytes.get(), 64 + 100_000 + 2 * PIECE_BYTES);
    assert!(outbox.bulk.borrow().len() == 1 && !outbox.is_free());
    socket.takes.set(1 << 20);
    assert_eq!(outbox.flush().chunks, 2);
    assert!(outbox.is_free());
}

#[test]
fn what_waits_for_a_slow_line_is_gone_when_it_is_cut_off() {
    let outbox = Outbox::new(Rc::new(Taps::default()), AllAnswers::default());
    slow(&outbox);
    outbox.push_chunk(chunk(100_000), false);
    outbox.push_behind(frame(10));
    outbox.flush();
    outbox.cut_off();
    assert_eq!((outbox.bytes.get(), outbox.bulk.borrow().len()), (0, 0));
    outbox.push_chunk(chunk(100_000), false);
    outbox.push_behind(frame(10));
    assert_eq!((outbox.bytes.get(), outbox.bulk.borrow().len()), (0, 0));
}

#[test]
fn a_slow_line_lets_go_of_its_buffers_and_asks_for_parts_as_it_takes_them() {
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    let pool = crate::wire::Pool::new(2);
    let session = session();
    let pooled = |len: usize| {
        let bytes = pool.take().unwrap().freeze(len);
        session.chunk(Uuid::nil(), &chunking::ChunkHead::plain(0, &bytes), bytes, 0)
    };
    outbox.push_chunk(pooled(100_000), true);
    outbox.push_chunk(pooled(50_000), true);
    outbox.flush();
    assert_eq!(pool.in_use(), 2);
    let copied = Arc::default();
    outbox.let_go(1 << 20, &copied, |_, _| true);
    assert_eq!(
        (pool.in_use(), copied.load(Ordering::Relaxed)),
        (0, 65_536),
        "a piece goes on from a copy"
    );
    socket.takes.set(1 << 20);
    let sent = outbox.flush();
    let want = sent.wants.unwrap();
    assert_eq!((sent.chunks, want.from, copied.load(Ordering::Relaxed)), (0, 65_536, 0));
    assert!(outbox.flush().wants.is_none(), "it asks once");
    assert_eq!(outbox.supply(&want, vec![0; 34_464].into()).chunks, 0);
    let sent = outbox.flush();
    assert_eq!(
        (sent.chunks, sent.wants.map(|want| want.from)),
        (1, Some(0)),
        "then for the next one"
    );
    assert_eq!(
        outbox.supply(&sent.wants.unwrap(), Bytes::new()).chunks,
        1,
        "what cannot be had is passed over"
    );
    assert!(outbox.has_nothing());
}

/// Sends all that waits, as a writer does.
async fn send_all(socket: &Taps, outbox: &Outbox<Taps>) -> u32 {
    let mut posted = 0;
    socket.takes.set(usize::MAX);
    loop {
        posted += outbox.flush().posted;
        let Some((place, at, len)) = outbox.wanted() else { return posted };
        assert!(len <= SLICE_BYTES);
        outbox.was_read(place.read(at, len).await.unwrap());
    }
}

#[tokio::test]
async fn what_is_parked_takes_no_memory_and_is_sent_as_it_was_wherever_it_was_cut() {
    let noise = |len: usize, seed: u64| Bytes::from(crate::noise::noise(len, seed));
    let frames: Vec<WireFrame> = [300_000, 5_000, 100, 1_000_000]
        .into_iter()
        .zip(1..)
        .map(|(len, seed)| WireFrame {
            head: noise(60, seed),
            payload: noise(len, seed + 9),
            trailer: noise(4, seed),
        })
        .collect();
    let sent: Vec<u8> = frames
        .iter()
        .flat_map(|frame| [&*frame.head, &*frame.payload, &*frame.trailer].concat())
        .collect();
    let dir = tempfile::tempdir().unwrap();
    let parking = crate::driver::parking::Parking::new(dir.path());
    // What the socket took before, and while it was written to the disk.
    for (before, meanwhile) in
        [(0, 0), (30, 0), (1000, 70_000), (0, 400_000), (400_000, usize::MAX)]
    {
        let socket = Rc::new(Taps::default());
        let outbox = Outbox::new(socket.clone(), AllAnswers::default());
        frames.iter().for_each(|frame| outbox.push(frame.clone(), Cargo::Posted));
        socket.takes.set(before);
        let mut posted = outbox.flush().posted;
        assert!(outbox.stuck().is_some_and(|(_, bytes)| bytes >= 900_000));
        let ((), parked) = tokio::join!(
            async {
                tokio::task::yield_now().await;
                socket.takes.set(meanwhile);
                posted += outbox.flush().posted;
            },
            outbox.park(parking.place().unwrap())
        );
        parked.unwrap();
        assert!(outbox.stuck().is_none() && outbox.bytes.get() < 10_000, "{}", outbox.bytes.get());
        posted += send_all(&socket, &outbox).await;
        assert_eq!((posted, outbox.bytes.get(), outbox.place.borrow().is_none()), (4, 0, true));
        assert!(*socket.got.borrow() == sent, "other bytes than were sent: {before}, {meanwhile}");
    }
}

#[tokio::test]
async fn what_is_parked_ends_with_its_connection_and_answers_come_in_their_order() {
    let dir = tempfile::tempdir().unwrap();
    let parking = crate::driver::parking::Parking::new(dir.path());
    let socket = Rc::new(Taps::default());
    let outbox = Outbox::new(socket.clone(), AllAnswers::default());
    outbox.push(frame(200_000), Cargo::Posted);
    outbox.flush();
    outbox.park(parking.place().unwrap()).await.unwrap();
    outbox.push(frame(0), Cargo::Answer);
    assert_eq!(send_all(&socket, &outbox).await, 1);
    assert_eq!(socket.got.borrow().len(), 200_000 + 2 * 60);
    socket.takes.set(0);
    outbox.push(frame(200_000), Cargo::Posted);
    outbox.flush();
    let place = parking.place().unwrap();
    let start = place.start();
    outbox.park(place).await.unwrap();
    outbox.cut_off();
    assert!(outbox.wanted().is_none());
    assert_eq!(parking.place().unwrap().start(), start, "its place is free");
}

#[tokio::test]
async fn while_many_answers_wait_for_all_a_client_with_more_than_a_few_is_not_read() {
    let all = AllAnswers::default();
    let (one, other) = (Rc::new(Taps::default()), Rc::new(Taps::default()));
    let (reads, does_not) =
        (Outbox::new(one.clone(), all.clone()), Outbox::new(other, all.clone()));
    (0..40).for_each(|_| does_not.push(frame(1 << 20), Cargo::Answer));
    reads.push(frame(FEW_ANSWERS_BYTES), Cargo::Answer);
    {
        let mut taken = std::pin::pin!(reads.answers_taken());
        assert!(tokio::time::timeout(Duration::from_millis(20), taken.as_mut()).await.is_err());
        one.takes.set(FEW_ANSWERS_BYTES / 2);
        reads.flush();
        taken.await;
    }
    assert!(all.are_too_many().is_none());
    (0..100).for_each(|_| does_not.push(frame(1 << 20), Cargo::Answer));
    assert!(all.are_too_many().is_some());
    does_not.cut_off();
    drop(reads);
    assert_eq!(all.0.get(), 0);
}
