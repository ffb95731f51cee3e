//! Records who is connected: sessions, their hosts, and the facts a driver may query about them.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use chunking::Generation;
use chunking::message::Features;
use uuid::Uuid;

use super::{Leader, Output};
use crate::conn::{Session, WireFrame};
use crate::core::ids::{ClientId, ConnId, WorkerId};
use crate::wire::frame_window;

/// The peers of all connections.
#[derive(Debug)]
pub(super) struct Peers {
    /// How the leader calls itself to them.
    pub(super) leader: Uuid,
    sessions: HashMap<ConnId, Session>,
    hosts: HashMap<ConnId, IpAddr>,
    /// Bytes of what each said hello with, as they were counted.
    names: HashMap<ConnId, u64>,
    names_bytes: u64,
    /// Connections that are open, with those that have not said anything yet.
    pub(super) open: usize,
}

impl Peers {
    pub(super) fn new(leader: Uuid) -> Self {
        Peers {
            leader,
            sessions: HashMap::new(),
            hosts: HashMap::new(),
            names: HashMap::new(),
            names_bytes: 0,
            open: 0,
        }
    }

    pub(super) fn get(&self, conn: ConnId) -> Option<&Session> {
        self.sessions.get(&conn)
    }

    pub(super) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Session> {
        self.sessions.get_mut(&conn)
    }

    pub(super) fn has(&self, conn: ConnId) -> bool {
        self.sessions.contains_key(&conn)
    }

    /// A connection ended.
    pub(super) fn remove(&mut self, conn: ConnId) -> Option<Session> {
        let session = self.sessions.remove(&conn)?;
        self.count_names(conn, 0);
        self.hosts.remove(&conn);
        Some(session)
    }

    /// Bytes of the names of all peers.
    pub(super) fn names_bytes(&self) -> u64 {
        self.names_bytes
    }

    /// Sets how many bytes the names of a peer count. A peer that is not admitted counts nothing.
    pub(super) fn count_names(&mut self, conn: ConnId, bytes: u64) {
        let before =
            if bytes == 0 { self.names.remove(&conn) } else { self.names.insert(conn, bytes) };
        self.names_bytes = self.names_bytes - before.unwrap_or(0) + bytes;
    }

    /// How logs call a connection.
    pub(super) fn name(&self, conn: ConnId) -> String {
        self.get(conn).map_or_else(|| format!("connection {conn}"), Session::name)
    }

    /// Whether the peer of a connection announced a feature.
    pub(super) fn takes(&self, conn: ConnId, feature: Features) -> bool {
        self.get(conn).is_some_and(|session| session.has(feature))
    }

    /// The worker of a connection.
    pub(super) fn worker_at(&self, conn: ConnId) -> Option<WorkerId> {
        self.get(conn).and_then(Session::worker)
    }

    /// Where a connection comes from, if that is known.
    pub(super) fn host(&self, conn: ConnId) -> Option<IpAddr> {
        self.hosts.get(&conn).copied()
    }

    /// The connections of a client.
    pub(super) fn of_client(&self, client: &ClientId) -> impl Iterator<Item = ConnId> {
        let its = self.sessions.iter().filter(move |(_, session)| session.client() == Some(client));
        its.map(|(conn, _)| *conn)
    }
}

impl Leader {
    /// So many connections are open, with those that have not said anything yet. For status.
    pub fn count_connections(&mut self, open: usize) {
        self.peers.open = open;
    }

    /// A connection's first frame has shown its generation. The host that it comes from, if that is
    /// known, tells which peers share one.
    pub fn connected(&mut self, conn: ConnId, generation: Generation, host: Option<IpAddr>) {
        self.peers.hosts.extend(host.map(|host| (conn, host.to_canonical())));
        self.peers.sessions.insert(conn, Session::new(conn, generation));
    }

    /// How logs call a connection.
    pub fn name(&self, conn: ConnId) -> String {
        self.peers.name(conn)
    }

    /// Whether a connection is one of a peer that announced itself, and so sends no large frames.
    pub fn is_announced(&self, conn: ConnId) -> bool {
        self.peers.get(conn).is_some_and(Session::is_announced)
    }

    /// Whether a peer's frames end with checksums.
    pub fn has_checksums(&self, conn: ConnId) -> bool {
        self.peers.takes(conn, Features::CHECKSUMS)
    }

    /// Whether a connection is a client's.
    pub fn is_client(&self, conn: ConnId) -> bool {
        self.peers.get(conn).is_some_and(|session| session.client().is_some())
    }

    /// Silence after which this peer's connection is dead; `None` for a peer that sends no
    /// keepalives. It is a quarter longer than the peer waits for the leader, so that a worker that
    /// finds the connection dead is back before its jobs count as lost.
    pub fn silence(&self, conn: ConnId) -> Option<Duration> {
        let silence = self.config.silence;
        self.peers.takes(conn, Features::KEEPALIVE).then(|| silence.saturating_add(silence / 4))
    }

    /// See [`frame_window`]: for whoever it is.
    pub fn frame_window(&self) -> Duration {
        frame_window(self.config.silence)
    }

    /// How often signs of life are due.
    pub fn heartbeat(&self) -> Duration {
        self.config.heartbeat
    }

    /// A sign of life for this peer, if it listens for one.
    pub fn keepalive(&self, conn: ConnId) -> Option<WireFrame> {
        self.peers.get(conn)?.keepalive()
    }

    pub(super) fn send(&mut self, conn: ConnId, frames: impl IntoIterator<Item = WireFrame>) {
        self.outputs.extend(frames.into_iter().map(|frame| Output::Send { conn, frame }));
    }

    /// Tells a peer something, if it is there and hears it.
    pub(super) fn tell(&mut self, conn: ConnId, says: impl FnOnce(&Session) -> Option<WireFrame>) {
        let frame = self.peers.get(conn).and_then(says);
        self.send(conn, frame);
    }

    /// The same for news that nobody waits for.
    pub(super) fn tell_lazily(
        &mut self,
        conn: ConnId,
        says: impl FnOnce(&Session) -> Option<WireFrame>,
    ) {
        let frame = self.peers.get(conn).and_then(says);
        self.outputs.extend(frame.map(|frame| Output::SendLazily { conn, frame }));
    }
}
