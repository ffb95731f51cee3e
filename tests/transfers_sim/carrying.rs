//! Carries bytes between the leader and its peers, and breaks connections on the way.

use bytes::Bytes;

use super::*;

impl World {
    /// Hands something to a connection; chunks may be damaged on their way.
    pub(crate) fn push(&mut self, id: ConnId, dir: Dir, mut out: Out) {
        if let Out::Pieces(bytes) = &mut out
            && bytes.len() > 80
        {
            // The bytes of the chunk: what stands before them has a checksum of its own.
            let mut payload = bytes.split_off(73);
            self.may_flip(&mut payload);
            *bytes = [&bytes[..], &payload[..]].concat().into();
        }
        if let Out::Chunk { head, payload } = &mut out
            && !self.may_flip(payload)
            && self.faults.head_flips > 0
            && self.random.chance(10)
        {
            self.faults.head_flips -= 1;
            self.seen.head_flips += 1;
            // The transfer's id, or the head of the chunk: the stream stays in step.
            let at = if self.random.chance(30) {
                5 + self.random.below(16)
            } else {
                43 + self.random.below(21)
            };
            head[at as usize] ^= 1 << self.random.below(8);
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            if self.traced {
                eprintln!(
                    "{:>12} conn {} of {:?} {dir:?}: {}",
                    self.now,
                    id.0,
                    conn.who,
                    ends::describe(&out)
                );
            }
            conn.pipes[dir as usize].push(out);
        }
    }

    pub(crate) fn may_flip(&mut self, payload: &mut Bytes) -> bool {
        let flips = self.faults.flips > 0 && self.random.chance(10) && !payload.is_empty();
        if flips {
            self.faults.flips -= 1;
            self.seen.flips += 1;
            let last = payload.len() as u64 - 1;
            let at = [0, last, self.random.below(last + 1)][self.random.below(3) as usize];
            let mut damaged = payload.to_vec();
            damaged[at as usize] ^= 1 << self.random.below(8);
            *payload = damaged.into();
        }
        flips
    }

    /// Moves what waits onto the wire, and has it delivered.
    pub(crate) fn flow(&mut self, id: ConnId, dir: Dir) -> Sent {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.cut) else {
            return Sent::default();
        };
        let pipe = &mut conn.pipes[dir as usize];
        let sent = pipe.transmit();
        if pipe.wire_bytes > 0 && !pipe.scheduled {
            pipe.scheduled = true;
            let at = (self.now + 50 + self.random.below(3000)).max(pipe.paused_until);
            self.at(at, Wake::Delivers(id, dir));
        }
        sent
    }

    pub(crate) fn note_sent(&mut self, conn: ConnId, sent: Sent) {
        if sent.chunks > 0 {
            self.leader.chunks_sent(self.micros(), conn, sent.chunks);
        }
        if sent.posted > 0 {
            self.leader.posted(self.micros(), conn, sent.posted);
        }
    }

    pub(crate) fn delivers(&mut self, id: ConnId, dir: Dir) {
        let Some(conn) = self.conns.get_mut(&id).filter(|conn| !conn.cut) else { return };
        let pipe = &mut conn.pipes[dir as usize];
        pipe.scheduled = false;
        if self.faults.pauses > 0 && self.random.chance(2) {
            self.faults.pauses -= 1;
            pipe.paused_until =
                self.now + [50_000, 300_000, 3 * SECOND][self.random.below(3) as usize];
        }
        let piece = match self.random.below(20) {
            0 => 1 + self.random.below(70),
            1 => 1 + self.random.below(4000),
            2..=6 => 1 + self.random.below(CHUNK / 4),
            _ => 1 + self.random.below(2 * CHUNK),
        };
        let pipe = &self.conns[&id].pipes[dir as usize];
        let left = pipe.cut_at.map_or(u64::MAX, |cut_at| cut_at - pipe.delivered);
        let is_last = left <= piece.min(pipe.wire_bytes as u64);
        let delivered = pipe.delivered;
        self.read(id, dir, piece.min(left) as usize);
        let Some(conn) = self.conns.get(&id) else { return };
        self.delivered += conn.pipes[dir as usize].delivered - delivered;
        if is_last {
            self.seen.cuts[dir as usize] += 1;
            return self.breaks(id);
        }
        if dir == Dir::ToLeader {
            self.flow(id, dir);
            self.more_chunks(id);
            self.flow(id, dir);
        }
        self.leader_flows(id);
    }

    /// A connection breaks: its peer notices at once, the leader sooner or later.
    pub(crate) fn breaks(&mut self, id: ConnId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::replace(&mut conn.cut, true) {
            return;
        }
        let who = conn.who;
        let cut = conn.inlets[Dir::ToPeer as usize].as_mut().and_then(|inlet| inlet.cut());
        let notices = self.now + self.random.below(3) * self.random.below(SECOND);
        self.at(notices, Wake::LeaderNotices(id));
        let mut life = 0;
        match who {
            Who::Client(number) => {
                cut.into_iter().for_each(|part| self.clients[number].parts.keep(part));
                self.clients[number].lost();
                if self.faults.client_goes && self.random.chance(30) {
                    self.faults.client_goes = false;
                    self.clients[number].gone = true;
                }
            }
            Who::Worker(number) => {
                cut.into_iter().for_each(|part| self.workers[number].parts.keep(part));
                self.workers[number].lost();
                if self.faults.crashes > 0 && self.random.chance(40) {
                    self.faults.crashes -= 1;
                    self.seen.crashes += 1;
                    self.workers[number].crash();
                    if self.faults.worker_goes
                        && self.workers.iter().filter(|worker| !worker.gone).count() > 1
                    {
                        self.faults.worker_goes = false;
                        self.workers[number].gone = true;
                    }
                }
                life = self.workers[number].life;
            }
        }
        let comes_back = self.now + self.random.below(2 * SECOND);
        self.at(comes_back, Wake::Connects(who, life));
    }

    // --- the leader
}
