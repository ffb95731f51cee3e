//! Both ends of a connection read: the leader as its driver does, peers as their links do.

use bytes::Bytes;
use chunking::InboundLimits;
use heft::core::ids::ConnId;
use heft::leader::{Arrival, ChunkPlace, Memory, Spliced};
use heft::wire::{Inlet, Step};

use super::{Dir, Inbound, Who, World};

impl World {
    /// Lets one end read up to so many bytes.
    pub(crate) fn read(&mut self, id: ConnId, dir: Dir, bytes: usize) {
        let Some(mut inlet) =
            self.conns.get_mut(&id).and_then(|conn| conn.inlets[dir as usize].take())
        else {
            return;
        };
        let lives = match dir {
            Dir::ToLeader => self.leader_reads(id, &mut inlet, bytes),
            Dir::ToPeer => self.peer_reads(id, &mut inlet, bytes),
        };
        if !lives {
            return self.breaks(id);
        }
        if let Some(conn) = self.conns.get_mut(&id) {
            conn.inlets[dir as usize] = Some(inlet);
        }
    }

    fn fill(&mut self, id: ConnId, dir: Dir, inlet: &mut Inlet, left: &mut usize) -> bool {
        let Some(conn) = self.conns.get_mut(&id) else { return false };
        let mut filled = 0;
        for slice in &mut inlet.room() {
            let len = slice.len().min(*left);
            let read = conn.pipes[dir as usize].read(&mut slice[..len]);
            *left -= read;
            filled += read;
            if read < slice.len() {
                break;
            }
        }
        inlet.filled(filled);
        filled > 0
    }

    /// Reads as a driver does. False if the connection has to end.
    fn leader_reads(&mut self, id: ConnId, inlet: &mut Inlet, mut left: usize) -> bool {
        // One that has to wait for memory is not read before it is its turn.
        if let Some(check) = self.conns.get(&id).and_then(|conn| conn.waits) {
            let Some(memory) = self.leader.turn(id) else { return true };
            self.conns.get_mut(&id).unwrap().waits = None;
            take(inlet, memory, check);
        }
        loop {
            let now = self.micros();
            match inlet.poll() {
                Ok(Step::Frame(generation, frame)) => {
                    let conn = self.conns.get_mut(&id).unwrap();
                    if !std::mem::replace(&mut conn.known, true) {
                        self.leader.connected(id, generation, None);
                    }
                    let payload = Bytes::copy_from_slice(frame.payload);
                    if self.leader.frame(now, id, &frame.head, payload).is_err() {
                        return false;
                    }
                    if self.leader.is_announced(id) {
                        inlet.set_limits(InboundLimits::ANNOUNCED);
                    }
                }
                Ok(Step::Chunk(start)) => {
                    let conns = &self.conns;
                    let is_free = |to: ConnId| {
                        conns.get(&to).is_some_and(|to| !to.closing && to.pipes[1].is_free())
                    };
                    let place = match self.leader.chunk_starts(now, id, &start, is_free) {
                        Arrival::Here(place) => place,
                        Arrival::Waits { check } => {
                            self.work_off();
                            self.conns.get_mut(&id).unwrap().waits = Some(check);
                            return true;
                        }
                        Arrival::Skip => {
                            inlet.skip();
                            self.work_off();
                            continue;
                        }
                    };
                    let ChunkPlace { memory, check, splice_to } = place;
                    self.work_off();
                    if let Some(to) = splice_to {
                        self.conns.get_mut(&id).unwrap().passing = Some((start, to));
                        if self.faults.voids && self.random.chance(5) {
                            self.seen.stalls += 1;
                            drop(memory);
                            inlet.skip();
                            self.ends_splice(id, Spliced::Stalled, None);
                            continue;
                        }
                    }
                    take(inlet, memory, check);
                }
                Ok(Step::Came(chunk)) => {
                    self.conns.get_mut(&id).unwrap().pipes[0].chunks_came += 1;
                    if !self.ends_splice(id, Spliced::Whole, Some(chunk.bytes.clone())) {
                        self.leader.chunk(now, id, chunk);
                    }
                }
                Ok(Step::Read) => {
                    if left == 0 || !self.fill(id, Dir::ToLeader, inlet, &mut left) {
                        return true;
                    }
                }
                Ok(other) => panic!("no classic peer is here: {other:?}"),
                Err(_) => return false,
            }
            self.work_off();
            if self.conns.get(&id).is_none_or(|conn| conn.cut) {
                return true;
            }
        }
    }

    /// A chunk on the splice path ends: with its bytes, or with zeros instead.
    pub(crate) fn ends_splice(&mut self, id: ConnId, how: Spliced, bytes: Option<Bytes>) -> bool {
        let Some((start, to)) = self.conns.get_mut(&id).and_then(|conn| conn.passing.take()) else {
            return false;
        };
        let mut bytes = bytes.unwrap_or_else(|| vec![0; start.sent_len as usize].into());
        self.may_flip(&mut bytes);
        if let Some(to) = self.conns.get_mut(&to) {
            to.pipes[1].fill_place(bytes);
        }
        self.leader.chunk_spliced(self.micros(), id, &start, how);
        self.leader_flows(to);
        true
    }

    fn peer_reads(&mut self, id: ConnId, inlet: &mut Inlet, mut left: usize) -> bool {
        let who = self.conns[&id].who;
        loop {
            match inlet.poll() {
                Ok(Step::Frame(_, frame)) => {
                    let (kind, msg_id) = (frame.head.kind().unwrap(), frame.head.msg_id);
                    let heard =
                        Inbound { kind, msg_id, payload: Bytes::copy_from_slice(frame.payload) };
                    self.with_peer(id, |peers, ctx| match who {
                        Who::Client(number) => peers.clients[number].on_frame(&heard, ctx),
                        Who::Worker(number) => peers.workers[number].on_frame(&heard, ctx),
                    });
                }
                Ok(Step::Chunk(_)) => inlet.take(self.pool.take().unwrap()),
                Ok(Step::Came(chunk)) => {
                    self.conns.get_mut(&id).unwrap().pipes[1].chunks_came += 1;
                    self.with_peer(id, |peers, ctx| match who {
                        Who::Client(number) => peers.clients[number].on_chunk(&chunk, ctx),
                        Who::Worker(number) => peers.workers[number].on_chunk(&chunk, ctx),
                    });
                }
                Ok(Step::Read) => {
                    if left == 0 || !self.fill(id, Dir::ToPeer, inlet, &mut left) {
                        return true;
                    }
                }
                Ok(other) => panic!("a leader sends no {other:?}"),
                Err(error) => panic!("the leader sent a bad frame: {error}"),
            }
            if self.conns.get(&id).is_none_or(|conn| conn.cut) {
                return true;
            }
        }
    }
}

fn take(inlet: &mut Inlet, memory: Memory, check: bool) {
    match (memory, check) {
        (Memory::Pooled(buffer), true) => inlet.take(buffer),
        (Memory::Pooled(buffer), false) => inlet.take_unchecked(buffer),
        (Memory::Own, _) => inlet.take_apart(),
    }
}
