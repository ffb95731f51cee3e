//! Whole transfers in a world of faults, over virtual time, seeded: the real leader between
//! simulated clients and workers.
//!
//! Everything travels as bytes through pipes that are slow, full, damaged and cut at any byte;
//! peers come back, die, or stay away; the spool's disk is slow, full and forgetful; the leader is
//! killed. Whatever happens, what is delivered is what was sent, no job runs before its inputs are
//! whole, promises and buffers in use stay within the pool, every job of a client that stays has
//! one end, and in the end nothing is left: no buffer, no promise, no blob, no byte, no file. A
//! failure prints its seed: `HEFT_SIM_SEED=n scripts/test transfers_sim` replays it, and with
//! `HEFT_SIM_TRACE=1` prints every frame.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_sign_loss)]
#![allow(clippy::wildcard_enum_match_arm)]

#[path = "transfers_sim/carrying.rs"]
mod carrying;
#[path = "transfers_sim/client.rs"]
mod client;
#[path = "transfers_sim/content.rs"]
mod content;
#[path = "transfers_sim/disk.rs"]
mod disk;
#[path = "transfers_sim/durable.rs"]
mod durable;
#[path = "transfers_sim/ends.rs"]
mod ends;
#[path = "transfers_sim/faults.rs"]
mod faults;
#[path = "../src/noise.rs"]
mod noise;
#[path = "transfers_sim/pipe.rs"]
mod pipe;
#[path = "transfers_sim/reading.rs"]
mod reading;
#[path = "support/sim_disk.rs"]
mod sim_disk;
mod support;
#[path = "transfers_sim/verdict.rs"]
mod verdict;
#[path = "transfers_sim/worker.rs"]
mod worker;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use chunking::message::Body;
use chunking::{InboundLimits, Kind};
use client::SimClient;
use disk::Disk;
use durable::Kept;
use ends::Out;
use faults::{Coverage, Faults, Random};
use heft::core::Config;
use heft::core::ids::{ConnId, Micros};
use heft::core::retry::mix;
use heft::leader::{Leader, LeaderConfig, Output, RelayConfig, Spliced, Verify};
use heft::store::blobs::DiskOp;
use heft::store::journal::SnapshotJob;
use heft::store::space::Reserve;
use heft::wire::{ChunkStart, Inlet, Pool};
use pipe::{Pipe, Sent};
use support::scaled;
use uuid::Uuid;
use worker::SimWorker;

const CHUNK: u64 = 1024 * 1024;
const SECOND: u64 = 1_000_000;
const WORLD_END: u64 = 6000 * SECOND;
const STEPS_MAX: u64 = 400_000;
/// What a peer has ready to send: a little more than the wire takes.
const READY_BYTES: usize = 2 << 20;
const ADMIN: ConnId = ConnId(u64::MAX);

/// What a peer may do while it handles something.
struct Ctx<'a> {
    now: u64,
    random: &'a mut Random,
    faults: &'a Faults,
    seen: &'a mut Coverage,
    out: Vec<Out>,
    wakes: Vec<(u64, Wake)>,
}

/// A frame that a peer heard.
struct Inbound {
    kind: Kind,
    msg_id: Uuid,
    payload: Bytes,
}

impl Inbound {
    fn read<M: Body>(&self) -> M {
        M::decode(&self.payload).unwrap()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Client(usize),
    Worker(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dir {
    ToLeader = 0,
    ToPeer = 1,
}

#[derive(Debug)]
enum Wake {
    Connects(Who, u64),
    Submits(usize, usize),
    Delivers(ConnId, Dir),
    LeaderNotices(ConnId),
    Beats(usize, ConnId),
    JobEnds(usize, u64, Uuid),
    Disk(u64, DiskOp),
    Log(u64),
    Snapshot(u64, SnapshotJob),
    DiskFaults(u64),
    Tick,
}

struct Conn {
    who: Who,
    pipes: [Pipe; 2],
    inlets: [Option<Inlet>; 2],
    /// The chunk that is spliced to another connection.
    passing: Option<(ChunkStart, ConnId)>,
    /// Whether a chunk waits for memory, and whether its CRC is to be made then.
    waits: Option<bool>,
    known: bool,
    /// Broken; the leader has not noticed.
    cut: bool,
    closing: bool,
}

impl Conn {
    /// Chunks that were handed to it and have not come at the other end.
    fn on_the_way(&self) -> u64 {
        self.pipes.iter().map(|pipe| pipe.chunks_in - pipe.chunks_came).sum()
    }
}

struct World {
    random: Random,
    now: u64,
    steps: u64,
    faults: Faults,
    seen: Coverage,
    config: LeaderConfig,
    leader: Leader,
    epoch: u64,
    agenda: BTreeMap<(u64, u64), Wake>,
    order: u64,
    conns: BTreeMap<ConnId, Conn>,
    next_conn: u64,
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
    disk: Disk,
    /// The real store, where the leader has one.
    kept: Option<Kept>,
    pool: Pool,
    tick_at: Option<u64>,
    /// Bytes that have been delivered, and when the leader dies next.
    delivered: u64,
    kill_at: Option<u64>,
    /// Whether every frame is printed.
    traced: bool,
    /// Whether nothing goes wrong but that connections break: then only what was on its way moves
    /// again.
    only_cuts: bool,
    /// Chunks that were on their way when their connections broke.
    chunks_lost: u64,
}

/// Ids that a leader makes.
fn ids(epoch: u64) -> Box<dyn FnMut() -> Uuid> {
    let mut next = epoch << 32;
    Box::new(move || {
        next += 1;
        Uuid::from_u128(u128::from(mix(next)))
    })
}

fn new_leader(config: &LeaderConfig, now: u64, epoch: u64) -> Leader {
    Leader::new(config.clone(), Micros(now), ids(epoch))
}

impl World {
    fn new(seed: u64, durable: bool, pool: &Pool) -> World {
        let mut random = Random(mix(seed));
        let calm = random.chance(10);
        let mut rare = |percent: u64| !calm && random.chance(percent);
        let mut faults = Faults {
            pauses: if rare(40) { 8 } else { 0 },
            voids: rare(15),
            rogue: rare(15),
            lying: rare(20),
            worker_disk: rare(20),
            disk_writes: rare(15),
            disk_reads: rare(10),
            client_goes: rare(12),
            worker_goes: rare(20),
            ..Faults::default()
        };
        if !calm {
            faults.cuts = [random.below(5) as u32, random.below(5) as u32];
            faults.flips = [0, 0, 2, 5][random.below(4) as usize];
            faults.head_flips = [0, 0, 0, 1][random.below(4) as usize];
            faults.kills = [0, 0, 0, 0, 1][random.below(5) as usize];
            if durable {
                faults.kills += 1 + random.below(5) as u32;
            }
            faults.crashes = [0, 0, 1][random.below(3) as usize];
        }
        // A client that stays and brings nothing keeps the place of its inputs, where they have
        // one.
        let rare_disk = mix(seed ^ 0xD15C).is_multiple_of(4) && !faults.rogue;
        let spools = if durable && faults.rogue {
            [1 << 30; 4]
        } else {
            [6 * CHUNK, 20 * CHUNK, 1 << 30, 1 << 30]
        };
        let relay = RelayConfig {
            verify: [Verify::End, Verify::Hop][random.below(2) as usize],
            buffers: [8, 12, 16, 48][random.below(4) as usize],
            spool_bytes_max: spools[random.below(4) as usize],
            durable,
            // Of a small disk so much is kept back that the results of all workers at a time find
            // room in half of it.
            disk_reserve: if durable && rare_disk {
                Reserve::Bytes(120 * CHUNK)
            } else {
                Reserve::Auto
            },
            ..RelayConfig::default()
        };
        let broker = Config {
            attempts_max: 200,
            result_ttl: Duration::from_secs(600),
            input_wait: Duration::from_secs(60),
            ..Config::default()
        };
        let config = LeaderConfig { relay, broker, ..LeaderConfig::default() };
        let (kept, leader) = match durable {
            true => {
                let (kept, leader) = Kept::new(seed, &config);
                (Some(kept), leader)
            }
            false => (None, new_leader(&config, 0, 0)),
        };
        let mut world = World {
            now: 0,
            steps: 0,
            faults,
            seen: Coverage::default(),
            leader,
            config,
            epoch: 0,
            agenda: BTreeMap::new(),
            order: 0,
            conns: BTreeMap::new(),
            next_conn: 0,
            clients: Vec::new(),
            workers: Vec::new(),
            disk: Disk::default(),
            kept,
            pool: pool.clone(),
            tick_at: None,
            delivered: 0,
            kill_at: None,
            traced: std::env::var_os("HEFT_SIM_TRACE").is_some(),
            only_cuts: false,
            chunks_lost: 0,
            random,
        };
        // A spool that is too small forgets results, and their jobs run once more.
        let is_roomy = world.config.relay.spool_bytes_max >= 1 << 30
            && world.config.relay.disk_reserve == Reserve::Auto;
        world.only_cuts = is_roomy && world.faults.only_cuts();
        world.people();
        world.set_trap();
        world.disk_faults();
        world
    }

    fn people(&mut self) {
        for number in 0..1 + self.random.below(2) {
            let jobs = 1 + self.random.below(4);
            let client = SimClient::new(number, jobs, &mut self.random, false, self.faults.lying);
            self.clients.push(client);
        }
        if self.faults.rogue {
            let number = self.clients.len() as u64;
            self.clients.push(SimClient::new(number, 2, &mut self.random, true, false));
        }
        for number in 0..1 + self.random.below(3) as usize {
            let parallel_max = 1 + self.random.below(3) as usize;
            self.workers.push(SimWorker::new(number, parallel_max));
        }
        for number in 0..self.clients.len() {
            let at = self.random.below(SECOND / 5);
            self.at(at, Wake::Connects(Who::Client(number), 0));
            for job in 0..self.clients[number].jobs.len() {
                self.at(self.clients[number].jobs[job].due, Wake::Submits(number, job));
            }
        }
        for number in 0..self.workers.len() {
            let at = self.random.below(SECOND) * self.random.below(3);
            self.at(at, Wake::Connects(Who::Worker(number), 0));
        }
        let needed: u64 = self.clients.iter().map(SimClient::chunks_needed).sum();
        self.kill_at =
            (self.faults.kills > 0).then(|| self.random.below(2 * needed * CHUNK + 1000));
    }

    fn at(&mut self, at: u64, wake: Wake) {
        self.order += 1;
        self.agenda.insert((at.max(self.now), self.order), wake);
    }

    fn micros(&self) -> Micros {
        Micros(self.now)
    }

    // --- connections

    fn connects(&mut self, who: Who, life: u64) {
        let there = match who {
            Who::Client(number) => self.clients[number].conn.is_some() || self.clients[number].gone,
            Who::Worker(number) => {
                let worker = &self.workers[number];
                worker.conn.is_some() || worker.gone || worker.life != life
            }
        };
        if there {
            return;
        }
        self.next_conn += 1;
        let id = ConnId(self.next_conn);
        let capacity = [3000, 200_000, 1 << 20, 3 << 20][self.random.below(4) as usize];
        let mut cut_at = |dir: Dir| {
            let cuts = &mut self.faults.cuts[dir as usize];
            let cut = *cuts > 0 && self.random.chance(60);
            *cuts -= u32::from(cut);
            let range = [3000, 2 * CHUNK, 6 * CHUNK][self.random.below(3) as usize];
            cut.then(|| 1 + self.random.below(range))
        };
        let pipes = [
            Pipe::new(capacity, false, cut_at(Dir::ToLeader)),
            Pipe::new(capacity, true, cut_at(Dir::ToPeer)),
        ];
        let inlets = [
            Some(Inlet::detecting(InboundLimits::CLASSIC)),
            Some(Inlet::speaking(chunking::Generation::F2, InboundLimits::DIALLED)),
        ];
        self.conns.insert(
            id,
            Conn {
                who,
                pipes,
                inlets,
                passing: None,
                waits: None,
                known: false,
                cut: false,
                closing: false,
            },
        );
        self.with_peer(id, |world, ctx| match who {
            Who::Client(number) => world.clients[number].connected(id, ctx),
            Who::Worker(number) => world.workers[number].connected(id, ctx),
        });
        if let Who::Worker(number) = who {
            self.at(self.now + SECOND, Wake::Beats(number, id));
        }
    }

    /// Lets a peer do something, and sends what it says.
    fn with_peer(&mut self, id: ConnId, then: impl FnOnce(&mut Peers, &mut Ctx<'_>)) {
        let mut peers = Peers {
            clients: std::mem::take(&mut self.clients),
            workers: std::mem::take(&mut self.workers),
        };
        let mut ctx = Ctx {
            now: self.now,
            random: &mut self.random,
            faults: &self.faults,
            seen: &mut self.seen,
            out: Vec::new(),
            wakes: Vec::new(),
        };
        then(&mut peers, &mut ctx);
        let (out, wakes) = (ctx.out, ctx.wakes);
        (self.clients, self.workers) = (peers.clients, peers.workers);
        wakes.into_iter().for_each(|(at, wake)| self.at(at, wake));
        for out in out {
            self.push(id, Dir::ToLeader, out);
        }
        self.more_chunks(id);
        self.flow(id, Dir::ToLeader);
    }

    /// Makes the chunks ready that a peer may send.
    fn more_chunks(&mut self, id: ConnId) {
        loop {
            let Some(conn) = self.conns.get(&id).filter(|conn| !conn.cut) else { return };
            if conn.pipes[0].outbox_bytes >= READY_BYTES {
                return;
            }
            let who = conn.who;
            let mut ctx = Ctx {
                now: self.now,
                random: &mut self.random,
                faults: &self.faults,
                seen: &mut self.seen,
                out: Vec::new(),
                wakes: Vec::new(),
            };
            let next = match who {
                Who::Client(number) => self.clients[number].next(&mut ctx),
                Who::Worker(number) => self.workers[number].next(&mut ctx),
            };
            let Some(next) = next else { return };
            let before = ctx.out;
            for out in before.into_iter().chain([next]) {
                self.push(id, Dir::ToLeader, out);
            }
        }
    }

    /// Does all that the leader wants done, as a driver does.
    fn work_off(&mut self) {
        let mut touched = BTreeSet::new();
        loop {
            while let Some(output) = self.leader.poll_output() {
                match output {
                    Output::Log(operation) => self.log(operation),
                    Output::Send { conn, frame }
                    | Output::SendBehind { conn, frame }
                    | Output::SendLazily { conn, frame } => {
                        let bytes =
                            [&frame.head[..], &frame.payload[..], &frame.trailer[..]].concat();
                        self.push(conn, Dir::ToPeer, Out::Frame(bytes.into()));
                        touched.insert(conn);
                    }
                    Output::Posted { conn, frame } => {
                        let bytes =
                            [&frame.head[..], &frame.payload[..], &frame.trailer[..]].concat();
                        if let Some(conn) = self.conns.get_mut(&conn).filter(|conn| !conn.closing) {
                            conn.pipes[1].push_posted(bytes.into());
                        }
                        touched.insert(conn);
                    }
                    Output::Chunk { conn, mut chunk } => {
                        // Some as if the line were slow.
                        let is_slow = self.random.chance(10);
                        let is_begun = chunk.is_begun() || is_slow;
                        self.seen.went_on[1] += u64::from(chunk.is_begun());
                        while let Some(frame) = chunk.next_frame(is_slow.then_some(50_000)) {
                            let out = match (is_begun, chunk.left()) {
                                (false, 0) => {
                                    Out::Chunk { head: frame.head.to_vec(), payload: frame.payload }
                                }
                                (_, 0) => Out::Pieces(
                                    [frame.head, frame.payload, frame.trailer].concat().into(),
                                ),
                                _ => Out::Frame(
                                    [frame.head, frame.payload, frame.trailer].concat().into(),
                                ),
                            };
                            self.push(conn, Dir::ToPeer, out);
                        }
                        touched.insert(conn);
                    }
                    // Lines here let go of nothing.
                    Output::LetGo { .. } | Output::Supply { .. } => {}
                    Output::Turn { conn } => {
                        self.at(self.now + 1, Wake::Delivers(conn, Dir::ToLeader))
                    }
                    Output::Splice { conn, head } => {
                        self.seen.spliced += 1;
                        if let Some(conn) = self.conns.get_mut(&conn) {
                            conn.pipes[1].push_place(head);
                        }
                        touched.insert(conn);
                    }
                    Output::Disk(operation) => {
                        let at = self.disk.due(self.now, &mut self.random);
                        self.at(at, Wake::Disk(self.epoch, operation));
                    }
                    Output::Close { conn } => {
                        if let Some(conn) = self.conns.get_mut(&conn) {
                            conn.closing = true;
                        }
                        touched.insert(conn);
                    }
                }
            }
            let Some(conn) = touched.pop_first() else { break };
            let sent = self.flow(conn, Dir::ToPeer);
            self.note_sent(conn, sent);
            let is_over = |conn: &Conn| conn.closing && (conn.cut || conn.pipes[1].is_empty());
            if self.conns.get(&conn).is_some_and(is_over) {
                self.breaks(conn);
                self.at(self.now, Wake::LeaderNotices(conn));
            }
        }
        self.check();
        let due = self.leader.next_deadline().map(|due| due.0.max(self.now));
        if let Some(due) =
            due.filter(|due| self.tick_at.is_none_or(|at| at > *due || at <= self.now))
        {
            self.tick_at = Some(due);
            self.at(due, Wake::Tick);
        }
    }

    /// The socket of a connection has taken something.
    fn leader_flows(&mut self, id: ConnId) {
        let sent = self.flow(id, Dir::ToPeer);
        self.note_sent(id, sent);
        self.work_off();
    }

    fn check(&self) {
        let fill = self.leader.fill();
        assert!(
            fill.buffers_in_use + fill.kept_free <= fill.buffers,
            "more is kept free and in use than there is: {fill:?}"
        );
    }

    fn kill(&mut self) {
        self.seen.kills += 1;
        self.epoch += 1;
        let restarted = self.restart();
        self.leader = restarted.unwrap_or_else(|| new_leader(&self.config, self.now, self.epoch));
        self.tick_at = None;
        self.disk = Disk::default();
        let ids: Vec<ConnId> = self.conns.keys().copied().collect();
        for id in ids {
            self.breaks(id);
            self.chunks_lost += self.conns.remove(&id).map_or(0, |conn| conn.on_the_way());
        }
        self.work_off();
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::Connects(who, life) => self.connects(who, life),
            Wake::Submits(number, job) => {
                if let Some(conn) = self.clients[number].conn {
                    self.with_peer(conn, |peers, ctx| peers.clients[number].submit(job, ctx));
                }
            }
            Wake::Delivers(id, dir) => self.delivers(id, dir),
            Wake::LeaderNotices(id) => {
                self.ends_splice(id, Spliced::Broken, None);
                if let Some(mut conn) = self.conns.remove(&id) {
                    self.chunks_lost += conn.on_the_way();
                    if let Some(part) =
                        conn.inlets[Dir::ToLeader as usize].as_mut().and_then(|inlet| inlet.cut())
                    {
                        self.leader.chunk_cut(part);
                    }
                    self.leader.closed(self.micros(), id);
                    self.work_off();
                }
            }
            Wake::Beats(number, id) => {
                if self.workers[number].conn == Some(id) {
                    self.with_peer(id, |peers, ctx| peers.workers[number].beat(ctx));
                    self.at(self.now + SECOND, Wake::Beats(number, id));
                }
            }
            Wake::JobEnds(number, life, job) => {
                if self.workers[number].life == life {
                    let conn = self.workers[number].conn.unwrap_or(ConnId(0));
                    self.with_peer(conn, |peers, ctx| peers.workers[number].job_ends(job, ctx));
                }
            }
            Wake::Disk(epoch, operation) => {
                if epoch == self.epoch {
                    let (random, faults) = (&mut self.random, &self.faults);
                    let done = match &mut self.kept {
                        Some(kept) => World::blobs_work(kept, operation, &mut self.seen),
                        None => Some(self.disk.execute(operation, random, faults, &mut self.seen)),
                    };
                    match done {
                        None => self.kill(),
                        Some(Some(done)) => {
                            self.leader.disk_done(self.micros(), done);
                            self.work_off();
                        }
                        Some(None) => {}
                    }
                }
            }
            Wake::Log(epoch) if epoch == self.epoch => self.log_works(),
            Wake::Snapshot(epoch, job) if epoch == self.epoch => self.snapshot(&job),
            Wake::DiskFaults(epoch) if epoch == self.epoch => self.disk_faults(),
            Wake::Log(_) | Wake::Snapshot(..) | Wake::DiskFaults(_) => {}
            Wake::Tick => {
                if self.tick_at == Some(self.now) {
                    self.tick_at = None;
                }
                self.leader.tick(self.micros());
                self.work_off();
            }
        }
        if self.kill_at.is_some_and(|at| at <= self.delivered) {
            self.kill_at = None;
            self.kill();
        }
    }

    fn run(&mut self) {
        while let Some(((at, _), wake)) = self.agenda.pop_first() {
            self.now = at;
            self.steps += 1;
            self.wake(wake);
            if self.clients.iter().all(|client| client.rogue || client.is_done()) {
                break;
            }
            assert!(
                at < WORLD_END && self.steps < STEPS_MAX,
                "no end: at {at} after {} steps, {}",
                self.steps,
                self.open()
            );
        }
        self.seen.steps += self.steps;
        self.judge();
        self.check_what_moved();
        self.leave_nothing_behind();
    }

    fn open(&self) -> String {
        let jobs = self.clients.iter().filter(|client| !client.rogue && !client.gone);
        let jobs = jobs.flat_map(|client| &client.jobs).filter(|job| job.ending.is_none());
        let jobs: Vec<String> = jobs.map(|job| format!("{} {:?}", job.id, job.blobs())).collect();
        format!("open: {jobs:?}; {:?}; {:?}", self.leader.fill(), self.faults)
    }
}

struct Peers {
    clients: Vec<SimClient>,
    workers: Vec<SimWorker>,
}

/// Runs a world for each seed, and for those that found a defect once; gives what happened, and
/// whether there were many.
fn run_worlds(ci: u32, long: u32, found: &[u64], durable: bool) -> (Coverage, bool) {
    let one =
        std::env::var("HEFT_SIM_SEED").ok().map(|seed| seed.parse::<u64>().expect("HEFT_SIM_SEED"));
    let seeds: Vec<u64> = match one {
        Some(seed) => vec![seed],
        None => {
            let many = 0..u64::from(scaled(ci, long));
            let beyond = found.iter().copied().filter(|seed| !many.contains(seed));
            many.clone().chain(beyond).collect()
        }
    };
    let pool = Pool::new(64);
    let mut seen = Coverage::default();
    for seed in seeds {
        let world = std::panic::catch_unwind(|| {
            let mut world = World::new(seed, durable, &pool);
            world.run();
            world.seen
        });
        match world {
            Ok(world) => seen.add(world),
            Err(panic) => {
                eprintln!("the world of HEFT_SIM_SEED={seed} broke");
                std::panic::resume_unwind(panic);
            }
        }
    }
    eprintln!("{seen:?}");
    (seen, one.is_none())
}

#[test]
fn transfers_sim_whatever_breaks_bytes_arrive_once_and_nothing_is_left() {
    let (seen, many) = run_worlds(400, 2000, &[835], false);
    if many {
        let all = [
            seen.flips,
            seen.head_flips,
            seen.kills,
            seen.crashes,
            seen.voids,
            seen.spliced,
            seen.stalls,
            seen.rogue,
            seen.worker_disk,
            seen.disk_faults,
            seen.spooled,
            seen.resumed,
            seen.parts,
            seen.whole,
            seen.refused,
            seen.only_cuts,
            seen.went_on[0],
            seen.went_on[1],
        ];
        assert!(all.into_iter().all(|count| count > 0), "something never happened: {seen:?}");
        let cuts_min = u64::from(scaled(100, 1000));
        assert!(seen.cuts.into_iter().all(|cuts| cuts >= cuts_min), "too few cuts: {seen:?}");
    }
}

#[test]
fn transfers_sim_pe11_what_a_leader_acknowledged_outlives_it_whenever_it_ends() {
    let (seen, many) = run_worlds(120, 2000, &[776], true);
    if many {
        let all = [
            seen.kills,
            seen.snapshots,
            seen.acknowledged_kept,
            seen.log_failed,
            seen.disk_faults,
            seen.spooled,
            seen.resumed,
            seen.parts,
            seen.whole,
            seen.refused,
        ];
        assert!(all.into_iter().all(|count| count > 0), "something never happened: {seen:?}");
        assert_eq!(seen.spliced, 0, "what has to be kept is not spliced");
    }
}
