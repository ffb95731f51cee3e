//! Decides how much each connection may send at a time, and which memory its chunks use.
//!
//! A granted window is not memory. Fast senders get reserved buffers in equal shares, one share per
//! peer regardless of its number of connections and transfers. A sender that has sent nothing yet
//! may send a few chunks without a reservation. An unused window stays valid, but its reservation
//! lapses. A chunk in progress holds its buffer only briefly: if it is not complete by then and
//! buffers are scarce, it leaves the pool and its connection counts as slow. Chunks of slow
//! connections use memory outside the pool, in as many slots as there are buffers; connections
//! without a slot are not read until their turn. So slow, silent and hostile senders cannot starve
//! fast ones of the pool.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use super::queue::Queue;
use super::{BlobId, Out, Relay};
use crate::core::ids::{ConnId, Micros};
use crate::core::{broken, count_down};
use crate::wire::PoolBuf;

/// Chunks that a connection may send before one has come from it quickly.
pub(super) const NEW_CHUNKS: u32 = 8;

/// A chunk that is not whole after this time leaves the pool, where buffers are scarce.
pub const BUFFER_LEASE: Duration = Duration::from_millis(100);

/// A chunk that comes within this time comes quickly.
pub(super) const QUICK_CHUNK: Duration = Duration::from_millis(250);

/// After this time an unused promise keeps no buffer free, if buffers are scarce.
const PROMISE_IDLE: Duration = Duration::from_millis(250);

/// After this time without a byte, a slow sender gives up its place to the next one that waits.
const PLACE_IDLE: Duration = Duration::from_secs(2);

/// A connection that sends chunks.
#[derive(Debug)]
struct Sender {
    peer: u64,
    pace: Pace,
    /// Chunks that it may still send, of all its transfers.
    outstanding: u32,
    /// Those of them for which buffers of the pool are kept free.
    backed: u32,
    /// When a chunk of it began or came, or it was promised something while it had nothing.
    used_at: Micros,
    /// When the arriving chunk got its memory.
    began: Option<Micros>,
    /// Transfers that wait until it may send more.
    held: Queue<BlobId>,
}

/// How fast a connection sends chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pace {
    /// That is not known.
    New,
    Fast,
    Slow,
}

/// All connections that send chunks.
#[derive(Debug, Default)]
pub(super) struct Senders {
    /// Chunks that all connections may still send.
    pub(super) promised: usize,
    /// Those of them for which buffers of the pool are kept free.
    pub(super) kept_free: usize,
    /// Chunks that are arriving: not promised any more, and not complete yet.
    pub(super) arriving: usize,
    by_conn: HashMap<ConnId, Sender>,
    /// The peer of each connection, noted before it sends anything.
    peers: HashMap<ConnId, u64>,
    /// Buffers that are kept free for each peer.
    shares: HashMap<u64, u32>,
    /// Slow connections that have a place: they send a chunk, or may begin one.
    places: HashSet<ConnId>,
    /// Connections that wait for a place: their chunk has begun, or they want to send one.
    for_place: Queue<ConnId>,
    /// Connections whose chunk has begun and found no buffer. Fast ones go first.
    for_buffer: VecDeque<ConnId>,
    /// Chunks that have begun and wait.
    waiting: HashSet<ConnId>,
    /// What has become of their waiting.
    ready: HashMap<ConnId, Option<PoolBuf>>,
    /// Bytes of chunks that left the pool and wait for a place.
    parked: HashMap<ConnId, usize>,
}

/// Where a chunk that begins is read to.
#[derive(Debug)]
pub enum Memory {
    /// A buffer of the pool.
    Pooled(PoolBuf),
    /// Memory of its own.
    Own,
}

/// What becomes of a chunk that begins.
#[derive(Debug)]
pub(in crate::leader) enum Starts {
    /// It is read to here.
    Here(Memory),
    /// It is not read until it is its connection's turn.
    Waits,
    /// It passes by.
    Skip,
}

/// What becomes of a chunk that is not whole after [`BUFFER_LEASE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Linger {
    /// It stays where it is.
    Stays,
    /// It leaves the pool, and goes on.
    Leaves,
    /// It leaves the pool, and is not read until it is its connection's turn.
    Waits,
    /// It leaves the pool, and there is no room for it: it has to come again.
    Dropped,
}

impl Relay {
    /// Notes the peer of a connection. All connections of a peer share what it may send.
    pub(in crate::leader) fn is_of(&mut self, conn: ConnId, peer: u64) {
        self.senders.peers.insert(conn, peer);
    }

    /// Whether buffers are so few that unused ones are taken back. In a small pool nothing can be
    /// promised while half of it is spare.
    pub(in crate::leader) fn is_scarce(&self) -> bool {
        let is_low = self.spare() < self.config.buffers / 2 || self.promisable() == 0;
        is_low || !self.senders.waiting.is_empty()
    }

    /// Buffers that fast senders may be promised.
    fn promisable(&self) -> usize {
        self.free().saturating_sub(self.config.buffers / 8)
    }

    fn sender(&mut self, conn: ConnId) -> &mut Sender {
        let peer = self.senders.peers.get(&conn).copied().unwrap_or(conn.0);
        let now = self.now;
        self.senders.by_conn.entry(conn).or_insert_with(|| Sender {
            peer,
            pace: Pace::New,
            outstanding: 0,
            backed: 0,
            used_at: now,
            began: None,
            held: Queue::default(),
        })
    }

    /// Chunks that a connection may be promised now.
    pub(super) fn may_promise(&mut self, conn: ConnId) -> u32 {
        let free = self.promisable();
        let chunks = |buffers: usize| u32::try_from(buffers).unwrap_or(u32::MAX);
        let all = chunks(self.config.buffers.saturating_sub(super::flow::BUFFERS_FOR_READING));
        let sender = self.sender(conn);
        let (peer, pace, outstanding) = (sender.peer, sender.pace, sender.outstanding);
        match pace {
            Pace::New => NEW_CHUNKS.saturating_sub(outstanding),
            Pace::Fast => {
                let has = self.senders.shares.get(&peer).copied().unwrap_or_default();
                let peers = chunks(self.senders.shares.len() + usize::from(has == 0));
                let share = (all / peers.max(1)).max(1);
                share.saturating_sub(has).min(chunks(free))
            }
            Pace::Slow if outstanding > 0 || self.senders.waiting.contains(&conn) => 0,
            Pace::Slow => u32::from(self.takes_place(conn)),
        }
    }

    /// Whether a slow connection has a place, or gets one; else it waits for one.
    fn takes_place(&mut self, conn: ConnId) -> bool {
        let places_max = self.config.buffers.max(1);
        let senders = &mut self.senders;
        if senders.places.contains(&conn) {
            return true;
        }
        if senders.places.len() < places_max && senders.for_place.is_empty() {
            return senders.places.insert(conn);
        }
        senders.for_place.push(conn);
        false
    }

    /// A connection was promised `chunks`.
    pub(super) fn promised_to(&mut self, conn: ConnId, chunks: u32) {
        if chunks == 0 {
            // A share of zero would never be given back, and would always count as a peer.
            return;
        }
        let now = self.now;
        let sender = self.sender(conn);
        if sender.outstanding == 0 {
            sender.used_at = now;
        }
        sender.outstanding += chunks;
        if sender.pace == Pace::Fast {
            sender.backed += chunks;
            let peer = sender.peer;
            *self.senders.shares.entry(peer).or_default() += chunks;
            self.senders.kept_free += chunks as usize;
        }
        self.senders.promised += chunks as usize;
    }

    /// So many chunks of a connection have begun to come.
    pub(super) fn spend(&mut self, conn: ConnId, chunks: u32) {
        // What is kept free is what comes first.
        self.promise_less(conn, chunks, chunks);
    }

    /// A connection may send `chunks` fewer, and `buffers` are not kept free for it any more.
    fn promise_less(&mut self, conn: ConnId, chunks: u32, buffers: u32) {
        let Some(sender) = self.senders.by_conn.get_mut(&conn) else { return };
        let chunks = chunks.min(sender.outstanding);
        sender.outstanding -= chunks;
        self.senders.promised -= chunks as usize;
        let surplus = sender.backed.saturating_sub(sender.outstanding);
        self.keep_less_free(conn, surplus.max(buffers.min(chunks)));
    }

    /// A connection may not send these `chunks` any more. If it may send none, its place is free.
    pub(super) fn unpromise(&mut self, conn: ConnId, chunks: u32) {
        self.promise_less(conn, chunks, 0);
        let sender = self.senders.by_conn.get(&conn);
        let is_idle =
            sender.is_some_and(|sender| sender.outstanding == 0 && sender.began.is_none());
        if is_idle && !self.senders.waiting.contains(&conn) {
            self.senders.places.remove(&conn);
        }
    }

    /// So many buffers are not kept free for a connection any longer.
    fn keep_less_free(&mut self, conn: ConnId, buffers: u32) {
        let Some(sender) = self.senders.by_conn.get_mut(&conn) else { return };
        let buffers = buffers.min(sender.backed);
        if buffers == 0 {
            return;
        }
        sender.backed -= buffers;
        self.senders.kept_free -= buffers as usize;
        let Some(share) = self.senders.shares.get_mut(&sender.peer) else {
            return broken!(
                "{buffers} buffers were kept free for {conn}, whose client has no share"
            );
        };
        count_down!(*share, buffers, "{buffers} buffers less for {conn} than its client has");
        if *share == 0 {
            self.senders.shares.remove(&sender.peer);
        }
    }

    /// Blobs that wait until their connection may send more.
    pub(super) fn held(&mut self, conn: ConnId) -> &mut Queue<BlobId> {
        &mut self.sender(conn).held
    }

    /// Checks the next transfers that wait for their connection, as many as may get something.
    pub(super) fn look_at_held(&mut self, conn: ConnId) {
        for _ in 0..NEW_CHUNKS {
            let Some(sender) = self.senders.by_conn.get_mut(&conn) else { return };
            let Some(id) = sender.held.pop() else { return };
            self.make_hungry(id);
        }
    }

    /// Whether a blob that waits does so because its connection has all that it may send, and not
    /// for room here.
    pub(super) fn is_held_back(&mut self, conn: ConnId) -> bool {
        let sender = self.sender(conn);
        sender.outstanding > 0 || sender.began.is_some() || sender.pace == Pace::Slow
    }

    /// Whether a connection waits for a place.
    pub(super) fn lacks_place(&self, conn: ConnId) -> bool {
        self.senders.for_place.contains(&conn)
    }

    // --- chunks that come

    /// A chunk of a connection begins: finds memory for it.
    pub(super) fn find_memory(&mut self, conn: ConnId) -> Starts {
        let now = self.now;
        let (pace, spare) = (self.sender(conn).pace, self.spare());
        // Only connections known to be fast overtake those that wait already.
        let in_turn = pace == Pace::Fast || self.senders.for_buffer.is_empty();
        let memory = match pace {
            Pace::Slow => self.takes_place(conn).then_some(Memory::Own),
            Pace::New | Pace::Fast if spare > 0 && in_turn => self.pool.take().map(Memory::Pooled),
            Pace::New | Pace::Fast => None,
        };
        self.sender(conn).used_at = now;
        if let Some(memory) = memory {
            self.sender(conn).began = Some(now);
            return Starts::Here(memory);
        }
        let senders = &mut self.senders;
        match pace {
            Pace::Slow => {}
            Pace::Fast => senders.for_buffer.push_front(conn),
            Pace::New => senders.for_buffer.push_back(conn),
        }
        senders.waiting.insert(conn);
        Starts::Waits
    }

    /// What a connection that had to wait was given, if it is its turn: a buffer, or `None` if it
    /// has a place.
    pub(in crate::leader) fn turn(&mut self, conn: ConnId) -> Option<Memory> {
        let ready = self.senders.ready.remove(&conn)?;
        Some(ready.map_or(Memory::Own, Memory::Pooled))
    }

    /// Whether a chunk of a connection waits for its turn.
    pub(in crate::leader) fn waits_for_turn(&self, conn: ConnId) -> bool {
        self.senders.waiting.contains(&conn) || self.senders.ready.contains_key(&conn)
    }

    /// Gives buffers and places to those that wait for them.
    pub(super) fn give_turns(&mut self) {
        let (now, places_max) = (self.now, self.config.buffers.max(1));
        while self.spare() > 0
            && let Some(conn) = self.senders.for_buffer.pop_front()
        {
            if !self.senders.waiting.remove(&conn) {
                continue;
            }
            let Some(buffer) = self.pool.take() else { return };
            self.sender(conn).began = Some(now);
            self.senders.ready.insert(conn, Some(buffer));
            self.out.push_back(Out::Turn { conn });
        }
        while self.senders.places.len() < places_max
            && let Some(conn) = self.senders.for_place.pop()
        {
            if self.senders.waiting.remove(&conn) {
                self.senders.parked.remove(&conn);
                self.senders.places.insert(conn);
                (self.sender(conn).began, self.sender(conn).used_at) = (Some(now), now);
                self.senders.ready.insert(conn, None);
                self.out.push_back(Out::Turn { conn });
            } else if self.senders.by_conn.get(&conn).is_some_and(|sender| !sender.held.is_empty())
            {
                self.senders.places.insert(conn);
                self.sender(conn).used_at = now;
                self.look_at_held(conn);
            }
        }
    }

    /// A chunk is not complete after [`BUFFER_LEASE`]; `have` of its bytes are here.
    pub(in crate::leader) fn chunk_lingers(&mut self, conn: ConnId, have: usize) -> Linger {
        if !self.is_scarce() {
            return Linger::Stays;
        }
        self.is_slow_sender(conn);
        if self.takes_place(conn) {
            return Linger::Leaves;
        }
        let parked: usize = self.senders.parked.values().sum();
        if parked.saturating_add(have)
            > self.config.buffers.saturating_mul(crate::wire::BUFFER_BYTES)
        {
            return Linger::Dropped;
        }
        self.senders.parked.insert(conn, have);
        self.senders.waiting.insert(conn);
        Linger::Waits
    }

    /// Nothing comes of a chunk in memory of its own. Says whether its connection has to wait for
    /// its turn again.
    pub(in crate::leader) fn chunk_rests(&mut self, conn: ConnId, have: usize) -> bool {
        let others_wait = self.senders.for_place.iter().any(|other| *other != conn);
        if !others_wait || !self.senders.places.remove(&conn) {
            return false;
        }
        self.senders.parked.insert(conn, have);
        self.senders.waiting.insert(conn);
        self.senders.for_place.push(conn);
        self.pump();
        true
    }

    pub(super) fn is_slow_sender(&mut self, conn: ConnId) {
        let sender = self.sender(conn);
        sender.pace = Pace::Slow;
        let backed = sender.backed;
        self.keep_less_free(conn, backed);
    }

    /// A chunk of a connection is here, or does not come after all.
    pub(super) fn has_come(&mut self, conn: ConnId, whole: bool) {
        let now = self.now;
        self.senders.parked.remove(&conn);
        let Some(sender) = self.senders.by_conn.get_mut(&conn) else { return };
        sender.used_at = now;
        if let Some(began) = sender.began.take()
            && whole
        {
            let quick = began.plus(QUICK_CHUNK) >= now;
            sender.pace = match sender.pace {
                Pace::New | Pace::Fast | Pace::Slow if quick => Pace::Fast,
                Pace::New | Pace::Fast => Pace::New,
                Pace::Slow => Pace::Slow,
            };
            if sender.pace == Pace::New {
                let backed = sender.backed;
                self.keep_less_free(conn, backed);
            }
        }
        self.senders.places.remove(&conn);
        self.look_at_held(conn);
    }

    /// Promises that are not used keep nothing free, and places that are not used go to others.
    pub(super) fn take_back_promises(&mut self) {
        let now = self.now;
        if self.is_scarce() {
            let idle =
                |sender: &Sender| sender.backed > 0 && sender.used_at.plus(PROMISE_IDLE) <= now;
            let senders = self.senders.by_conn.iter().filter(|(_, sender)| idle(sender));
            let idle: Vec<(ConnId, u32)> =
                senders.map(|(conn, sender)| (*conn, sender.backed)).collect();
            for (conn, backed) in idle {
                self.keep_less_free(conn, backed);
            }
        }
        // What they waited for may have gone on another way.
        let in_line = |conn: &ConnId, sender: &Sender| {
            let comes = sender.outstanding > 0 || sender.began.is_some();
            comes || self.senders.waiting.contains(conn) || self.senders.for_place.contains(conn)
        };
        let senders = self.senders.by_conn.iter().filter(|(_, sender)| !sender.held.is_empty());
        let stuck = senders.filter(|(conn, sender)| !in_line(conn, sender));
        let stuck: Vec<ConnId> = stuck.map(|(conn, _)| *conn).collect();
        stuck.into_iter().for_each(|conn| self.look_at_held(conn));
        if !self.senders.for_place.is_empty() {
            let by_conn = &self.senders.by_conn;
            let is_idle = |conn: &ConnId| {
                let sender = by_conn.get(conn);
                sender.is_none_or(|sender| {
                    sender.began.is_none() && sender.used_at.plus(PLACE_IDLE) <= now
                })
            };
            self.senders.places.retain(|conn| !is_idle(conn));
        }
    }

    #[cfg(test)]
    pub(super) fn senders_in_places(&self) -> usize {
        self.senders.places.len()
    }

    /// Whether time matters for those that bring.
    pub(super) fn senders_wait(&self) -> bool {
        !self.senders.waiting.is_empty() || !self.senders.for_place.is_empty()
    }

    /// A connection brings nothing any more.
    pub(super) fn sender_closed(&mut self, conn: ConnId) {
        if let Some(backed) = self.senders.by_conn.get(&conn).map(|sender| sender.backed) {
            self.keep_less_free(conn, backed);
        }
        let senders = &mut self.senders;
        let sender = senders.by_conn.remove(&conn);
        senders.promised -= sender.map_or(0, |sender| sender.outstanding as usize);
        senders.peers.remove(&conn);
        senders.places.remove(&conn);
        senders.waiting.remove(&conn);
        senders.ready.remove(&conn);
        senders.parked.remove(&conn);
        senders.for_place.remove(&conn);
        senders.for_buffer.retain(|other| *other != conn);
    }
}
