//! Runs one connection's reader and writer tasks, over any driver's sockets. The reader decodes
//! frames and passes them to the leader. The leader's output is written at once, as far as the
//! sockets take it; each writer task sends the rest. So no task waits for another's socket. A peer
//! that does not read, or never says hello, is disconnected by a named limit.
//!
//! The reader is never dropped during a read, because the kernel may hold its buffers. It ends when
//! the connection ends.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use chunking::frame::{LENGTH_BYTES, head_len};
use chunking::limits::FRAME_BODY_BYTES_MAX;
use chunking::{Generation, InboundLimits, Kind};
use tokio::net::TcpStream;
use tokio::task::spawn_local;
use tracing::{debug, info, warn};

use super::filling::{Filling, take};
use super::hub::Hub;
use super::open_rate::OpenRate;
use super::outbox::Outbox;
use super::socket::Socket;
use super::splice::Splicing;
use crate::core::ids::ConnId;
use crate::leader::{Arrival, ChunkPlace, Memory};
use crate::summed::Summed;
use crate::wire::{Inlet, Part, Pulse, Step, tune};

/// A stranger says hello within this time.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);

/// Frames of classic peers with payloads up to this size are gathered: they may be passed on as one
/// frame, whose subject is another. Larger ones fit none, and come as streams.
const GATHERED_BYTES_MAX: u32 = FRAME_BODY_BYTES_MAX - 39;

const _: () = assert!(
    GATHERED_BYTES_MAX as usize + head_len(Generation::F2, "") - LENGTH_BYTES
        == FRAME_BODY_BYTES_MAX as usize
);

/// A frame that takes longer than this is reported while it is still arriving: what its peer says
/// next comes behind it.
pub(super) const LONG_FRAME: Duration = Duration::from_secs(2);

/// When the leader ends a connection because of what the peer sent, the peer has this long to read
/// what waits for it; the last message says why.
const REASON_WAIT: Duration = Duration::from_secs(5);

/// How long a stream waits before it looks for room again.
const STREAM_LOOK: Duration = Duration::from_millis(10);

/// How long a stream waits for room in all before it is refused. While it waits its connection is
/// not read, so it is not known whether the peer is still there.
const STREAM_WAIT_MAX: Duration = Duration::from_secs(60);

/// A frame that is not whole yet.
#[derive(Clone, Copy, Default)]
struct Coming {
    /// When bytes of it came first, or since it was told of.
    since: Option<Instant>,
    /// Whether more came, and it is still not whole.
    more: bool,
}

impl Coming {
    fn more(&mut self, now: Instant) {
        self.since.get_or_insert(now);
        self.more = true;
    }

    /// Whether it is one that takes long, and comes on.
    fn is_long(&mut self, now: Instant) -> bool {
        let long = |since: Instant| now.duration_since(since) >= LONG_FRAME;
        let is_long = std::mem::take(&mut self.more) && self.since.is_some_and(long);
        if is_long {
            self.since = Some(now);
        }
        is_long
    }
}

/// Why a connection ended, and with that what becomes of what waits for its peer.
pub(super) enum End {
    /// The peer says nothing more. It may still read, and gets all of it, as long as it takes
    /// something.
    Over(String),
    /// It said what its session does not allow. It gets the reason, if it takes it soon.
    Refused(String),
    /// What it says is not understood any more, and it does not know that. It gets nothing more
    /// here: whatever still matters goes to its next connection, and would come twice.
    Garbled(String),
}

impl<S: Socket> Hub<S> {
    pub(super) async fn serve_conn(
        self: Rc<Self>,
        conn: ConnId,
        stream: TcpStream,
        addr: SocketAddr,
    ) {
        if let Err(error) = tune(&stream, &self.options.tuning) {
            warn!(%addr, "{error}");
        }
        let socket = match S::adopt(stream) {
            Ok(socket) => Rc::new(socket),
            Err(error) => return warn!(%addr, "cannot serve a connection: {error}"),
        };
        let outbox = Rc::new(Outbox::new(socket.clone(), self.answers.clone()));
        self.outboxes.borrow_mut().insert(conn, outbox.clone());
        self.count_connections();
        let writer = spawn_local({
            let (hub, outbox) = (self.clone(), outbox.clone());
            async move { hub.write_out(conn, &outbox).await }
        });
        let (splicing, cut) = (RefCell::new(None), RefCell::new(None));
        let end = {
            let mut reading = pin!(self.read_in(conn, addr, &socket, &outbox, (&splicing, &cut)));
            tokio::select! {
                end = &mut reading => end,
                () = outbox.over() => {
                    socket.shut_down();
                    reading.await;
                    End::Over("the leader closed it".to_owned())
                }
            }
        };
        self.break_splice(conn, &splicing);
        let name = self.leader.borrow().name(conn);
        let (End::Over(why) | End::Refused(why) | End::Garbled(why)) = &end;
        info!(%addr, peer = %name, "connection ended: {why}");
        if let End::Garbled(_) = end {
            outbox.cut_off();
        }
        if let Some(part) = cut.take() {
            self.leader.borrow_mut().chunk_cut(part);
        }
        self.with_leader(|leader, now| leader.closed(now, conn));
        outbox.close();
        if let End::Refused(_) = end
            && tokio::time::timeout(REASON_WAIT, outbox.over()).await.is_err()
        {
            outbox.cut_off();
        }
        if writer.await.is_err() {
            debug!(%addr, "its writer was cancelled");
        }
        self.outboxes.borrow_mut().remove(&conn);
        self.count_connections();
        self.moved.conn_ended();
        socket.shut_down();
    }

    fn count_connections(&self) {
        self.leader.borrow_mut().count_connections(self.outboxes.borrow().len());
    }

    /// Sends what could not be sent at once, until the outbox is closed and empty or the peer takes
    /// nothing.
    async fn write_out(&self, conn: ConnId, outbox: &Outbox<S>) {
        while outbox.ready().await.is_some() {
            if let Some((place, at, len)) = outbox.wanted() {
                match place.read(at, len).await {
                    Ok(bytes) => outbox.was_read(bytes),
                    Err(error) => {
                        warn!(peer = %self.leader.borrow().name(conn),
                            "cannot read its frames that wait on disk: {error}; closing the \
                             connection");
                        outbox.cut_off();
                        self.with_leader(|leader, now| leader.closed(now, conn));
                    }
                }
            }
            let sent = outbox.flush();
            self.note_speed(&mut self.leader.borrow_mut(), conn, outbox);
            if !sent.is_none() {
                self.with_leader(|leader, _| self.note_sent(leader, conn, sent));
            }
        }
        outbox.close();
        outbox.end();
    }

    /// Reads frames until the connection ends; says why it did, and leaves what it brought of a
    /// chunk that is not whole.
    async fn read_in(
        &self,
        conn: ConnId,
        addr: SocketAddr,
        socket: &S,
        outbox: &Outbox<S>,
        (splicing, cut): (&RefCell<Option<Splicing<S>>>, &RefCell<Option<Part>>),
    ) -> End {
        let classic_bulk_bytes_max = self.options.classic_inbound_max;
        let mut inlet =
            Inlet::detecting(InboundLimits { classic_bulk_bytes_max, ..InboundLimits::CLASSIC });
        inlet.stream_over(GATHERED_BYTES_MAX);
        let hello_until = tokio::time::Instant::now() + HELLO_TIMEOUT;
        let mut knows = false;
        let mut coming = Coming::default();
        let mut pulse = Pulse::with_window(self.leader.borrow().frame_window());
        let mut filling = Filling::default();
        let mut opens = OpenRate::new(Instant::now());
        // Whether the arriving chunk was given up: its bytes are skipped.
        let mut given_up = false;
        // Where the frame that comes is, if it is large.
        let mut large = None;
        while !outbox.has_ended() {
            let step = inlet.poll();
            if !matches!(step, Ok(Step::Read | Step::Piece(_))) {
                coming = Coming::default();
            }
            match step {
                Ok(Step::Frame(generation, frame)) => {
                    pulse.frame_ended();
                    if !knows {
                        debug!(%addr, %generation, "connected");
                        self.leader.borrow_mut().connected(conn, generation, Some(addr.ip()));
                        knows = true;
                    }
                    self.moved.add(frame.head.subject.len() + frame.payload.len());
                    let is_open = frame.head.kind().is_ok_and(|kind| kind == Kind::Open);
                    let payload = Bytes::copy_from_slice(frame.payload);
                    let payload = match frame.payload_crc {
                        Some(crc) => Summed::known(payload, crc),
                        None => payload.into(),
                    };
                    let heard = self
                        .with_leader(|leader, now| leader.frame(now, conn, &frame.head, payload));
                    if let Err(hang_up) = heard {
                        return End::Refused(hang_up.to_string());
                    }
                    let is_client = {
                        let leader = self.leader.borrow();
                        if leader.is_announced(conn) {
                            inlet.set_limits(InboundLimits::ANNOUNCED);
                            if let Some(silence) = leader.silence(conn) {
                                pulse.expect(silence);
                            }
                        }
                        if leader.has_checksums(conn) {
                            inlet.expect_checksums();
                        }
                        inlet.expect_chunks(leader.brings_blobs(conn));
                        leader.is_client(conn)
                    };
                    large = None;
                    if let Some(rest) = is_open.then(|| opens.opened(Instant::now())).flatten() {
                        tokio::time::sleep(rest).await;
                        pulse.rested();
                    }
                    // There is no memory for the chunk whose first piece that was.
                    if self.leader.borrow().waits_for_turn(conn) {
                        self.turn_comes(conn, outbox).await;
                        pulse.rested();
                    }
                    // Not so a worker: its leases would run out unheard, and what it sends makes
                    // few answers.
                    if is_client {
                        outbox.answers_taken().await;
                        self.log_caught_up(conn, outbox).await;
                        pulse.rested();
                    }
                }
                Ok(Step::Chunk(start)) => {
                    let mut pipe = None;
                    let reserve_pipe = |to: ConnId| {
                        let outboxes = self.outboxes.borrow();
                        let is_free = outboxes.get(&to).is_some_and(|outbox| outbox.is_free());
                        pipe = if is_free { self.pipes.take() } else { None };
                        pipe.is_some()
                    };
                    let arrival = self.with_leader(|leader, now| {
                        leader.chunk_starts(now, conn, &start, reserve_pipe)
                    });
                    filling = Filling::default();
                    match (arrival, pipe) {
                        (
                            Arrival::Here(ChunkPlace {
                                memory: Memory::Pooled(buffer),
                                splice_to: Some(to),
                                ..
                            }),
                            Some(pipe),
                        ) => {
                            let (chunk, means) = ((start, to), (buffer, pipe));
                            let passed = self
                                .splice_chunk(conn, socket, &mut inlet, chunk, means, splicing)
                                .await;
                            if let Err(error) = passed {
                                return End::Over(format!(
                                    "it broke off in the middle of a chunk: {error}"
                                ));
                            }
                            pulse.rested();
                            S::pause().await;
                        }
                        (Arrival::Here(ChunkPlace { memory, check, .. }), _) => {
                            take(&mut inlet, memory, check);
                        }
                        (Arrival::Waits { check }, _) => {
                            let Some(memory) = self.turn_comes(conn, outbox).await else {
                                continue;
                            };
                            pulse.rested();
                            take(&mut inlet, memory, check);
                        }
                        (Arrival::Skip, _) => inlet.skip(),
                    }
                }
                Ok(Step::Came(chunk)) => {
                    pulse.frame_ended();
                    if !std::mem::take(&mut given_up) && !self.rest_came(conn, &chunk, splicing) {
                        self.with_leader(|leader, now| leader.chunk(now, conn, chunk));
                    }
                    // A stream of chunks never ends by itself: others have their turn after each.
                    S::pause().await;
                }
                Ok(Step::Bulk(_, head)) => {
                    if let Err(hang_up) =
                        self.with_leader(|leader, now| leader.bulk_starts(now, conn, &head))
                    {
                        return End::Refused(hang_up.to_string());
                    }
                }
                Ok(Step::Piece(piece)) => {
                    self.with_leader(|leader, now| leader.bulk_piece(now, conn, piece));
                    let waits_until = Instant::now() + STREAM_WAIT_MAX;
                    if !self.leader.borrow().takes_more_bulk(conn) {
                        pulse.rested();
                    }
                    while !outbox.has_ended() && !self.leader.borrow().takes_more_bulk(conn) {
                        tokio::time::sleep(STREAM_LOOK).await;
                        if Instant::now() >= waits_until {
                            self.with_leader(|leader, now| leader.give_bulk_up(now, conn));
                        }
                    }
                }
                Ok(Step::BulkEnd) => {
                    pulse.frame_ended();
                    self.with_leader(|leader, now| leader.bulk_ends(now, conn));
                }
                Ok(Step::Read) => {
                    if inlet.is_whole_aside() {
                        if let Err(error) = self.bring_back(conn, outbox, &mut inlet, &large).await
                        {
                            return End::Over(format!(
                                "its large frame cannot be read from the disk: {error}"
                            ));
                        }
                        pulse.rested();
                        continue;
                    }
                    let began = Instant::now();
                    if let Err(error) = self.make_way(conn, outbox, &mut inlet, &mut large).await {
                        return End::Over(format!("there is no room for its large frame: {error}"));
                    }
                    if began.elapsed() >= LONG_FRAME / 2 {
                        pulse.rested();
                    }
                    if knows && coming.is_long(Instant::now()) {
                        self.with_leader(|leader, now| leader.moves(now, conn));
                    }
                    // Of a chunk, the inlet stays here: its memory may be taken from it.
                    if inlet.filling().is_some() && splicing.borrow().is_none() {
                        match self
                            .fill(conn, socket, outbox, &mut inlet, &mut pulse, &mut filling)
                            .await
                        {
                            Ok(_) => coming.more(Instant::now()),
                            Err(why) => {
                                cut.replace(inlet.cut());
                                return why;
                            }
                        }
                        continue;
                    }
                    let rest_until =
                        splicing.borrow().as_ref().map(|splicing| splicing.deadline.into());
                    let mut until = if knows { rest_until } else { Some(hello_until) };
                    let inside = inlet.is_inside_frame();
                    let mut reading = pin!(socket.read(inlet));
                    let got = loop {
                        let sign_until = pulse.waits(tokio::time::Instant::now(), inside);
                        let Some(late) = until.into_iter().chain(sign_until).min() else {
                            break reading.as_mut().await;
                        };
                        if let Ok(got) = tokio::time::timeout_at(late, reading.as_mut()).await {
                            break got;
                        }
                        let now = tokio::time::Instant::now();
                        let dead = pulse.late(now).map(|dead| dead.to_string());
                        let no_hello = || format!("no hello within {} s", HELLO_TIMEOUT.as_secs());
                        let is_over = until.is_some_and(|until| until <= now);
                        if let Some(why) = dead.or_else(|| (is_over && !knows).then(no_hello)) {
                            socket.shut_down();
                            let (_, mut inlet) = reading.await;
                            cut.replace(inlet.cut());
                            return End::Over(why);
                        }
                        if is_over {
                            self.give_up_splice(conn, splicing);
                            given_up = true;
                            until = None;
                        }
                    };
                    inlet = got.1;
                    pulse.came(*got.0.as_ref().unwrap_or(&0));
                    if !matches!(got.0, Ok(1..)) {
                        cut.replace(inlet.cut());
                    }
                    match got.0 {
                        Ok(0) => {
                            return match inlet.finish() {
                                Ok(()) => End::Over("the peer closed it".to_owned()),
                                Err(error) => End::Garbled(error.to_string()),
                            };
                        }
                        Ok(_) => coming.more(Instant::now()),
                        Err(error) => return End::Over(error.to_string()),
                    }
                }
                Err(error) => {
                    // Where frames have checksums, there is no other reason for one that makes no
                    // sense.
                    if error.is_damage() || inlet.has_checksums() {
                        self.leader.borrow_mut().count_damaged();
                        warn!(%addr, peer = %self.leader.borrow().name(conn),
                            "{error}; its data is sent again on a new connection");
                    }
                    return End::Garbled(error.to_string());
                }
            }
        }
        cut.replace(inlet.cut());
        End::Over("the leader closed it".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_long_when_its_bytes_come_for_a_while_and_not_when_nothing_came_before_it() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut coming = Coming::default();
        assert!(!coming.is_long(at(60_000)), "a quiet peer");
        coming.more(at(60_000));
        assert!(!coming.is_long(at(60_001)));
        coming.more(at(61_000));
        assert!(!coming.is_long(at(61_000)));
        coming.more(at(62_500));
        assert!(coming.is_long(at(62_500)));
        assert!(!coming.is_long(at(70_000)), "nothing came since");
        coming.more(at(63_000));
        assert!(!coming.is_long(at(63_000)), "it was told of a moment ago");
        coming.more(at(65_000));
        assert!(coming.is_long(at(65_000)));
    }
}
