//! A simulated worker: it receives inputs, runs jobs when all are here and it may start, and
//! returns results, large parts first. After a break it says what it holds and goes on, as the real
//! one does.

use std::collections::BTreeMap;

use chunking::message::{
    Abort, Cancel, Done, Heartbeat, HeldJob, HeldJobs, Open, Piece, Progress, Purpose, Reason,
    Settled, Stage, Start, Verdict,
};
use chunking::{DigestKind, Kind};
use heft::core::ids::ConnId;
use heft::model::blob_id;
use heft::model::{
    Announcement, BlobRef, JobRequest, JobResult, JobStatus, JsonModel, Source, WorkerHello,
};
use heft::wire::{InChunk, Parts};
use uuid::Uuid;

use super::ends::{Out, Receiving, Sending, json_frame, say};
use super::{CHUNK, Ctx, Inbound, Wake};

/// A job that was assigned and does not run yet.
struct Held {
    request: JobRequest,
    attempt: u32,
    run: Option<u32>,
    inputs: BTreeMap<Uuid, Input>,
}

#[derive(Default)]
struct Input {
    receiving: Option<Receiving>,
}

impl Held {
    fn is_whole(&self) -> bool {
        let whole = |input: &Input| input.receiving.as_ref().is_some_and(Receiving::is_whole);
        self.inputs.values().all(whole)
    }
}

/// A result that the leader has not settled.
struct Finished {
    run: u32,
    attempt: u32,
    result: JobResult,
    parts: Vec<Sending>,
    answered: bool,
    is_unwanted: bool,
}

pub(crate) struct SimWorker {
    pub(crate) number: usize,
    id: Uuid,
    pub(crate) conn: Option<ConnId>,
    pub(crate) life: u64,
    pub(crate) gone: bool,
    ready: bool,
    parallel_max: usize,
    held: BTreeMap<Uuid, Held>,
    running: BTreeMap<Uuid, (u32, u32, JobRequest)>,
    finished: BTreeMap<Uuid, Finished>,
    pub(crate) parts: Parts,
    turn: usize,
}

impl SimWorker {
    pub(crate) fn new(number: usize, parallel_max: usize) -> Self {
        SimWorker {
            number,
            id: Uuid::from_u128(5000 + number as u128),
            conn: None,
            life: 0,
            gone: false,
            ready: false,
            parallel_max,
            held: BTreeMap::new(),
            running: BTreeMap::new(),
            finished: BTreeMap::new(),
            parts: Parts::default(),
            turn: 0,
        }
    }

    pub(crate) fn connected(&mut self, conn: ConnId, ctx: &mut Ctx<'_>) {
        self.conn = Some(conn);
        self.ready = false;
        let features = heft::conn::FEATURES.names().map(str::to_owned).collect();
        let heft = Announcement { version: 1, features, name: None };
        let max_parallel = Some(self.parallel_max as u32);
        let hello = WorkerHello { heft, max_parallel, ..WorkerHello::default() };
        let hello =
            json_frame(Kind::HelloWorker, self.id, Uuid::nil(), "job.assign.x", &hello.to_json());
        ctx.out.push(hello);
        // What does not come by transfer is the leader's to give again.
        self.held.retain(|_, held| !held.inputs.is_empty());
        self.held.values_mut().for_each(|held| held.run = None);
        let room = self.parallel_max.saturating_sub(self.running.len() + self.held.len());
        if room > 0 {
            self.credit(room as i32, ctx);
        }
    }

    fn credit(&self, delta: i32, ctx: &mut Ctx<'_>) {
        ctx.out.push(json_frame(Kind::Credit, Uuid::nil(), Uuid::nil(), "", &delta.to_le_bytes()));
    }

    pub(crate) fn lost(&mut self) {
        self.conn = None;
        self.ready = false;
        for finished in self.finished.values_mut() {
            finished.answered = false;
            finished.parts.iter_mut().for_each(|part| part.outgoing.on_disconnected());
        }
    }

    /// The process dies and takes everything with it.
    pub(crate) fn crash(&mut self) {
        self.lost();
        self.life += 1;
        self.held.clear();
        self.running.clear();
        self.finished.clear();
        self.parts = Parts::default();
    }

    pub(crate) fn beat(&self, ctx: &mut Ctx<'_>) {
        if !self.ready {
            return;
        }
        let held = |job: &Uuid, run: u32, attempt: u32| HeldJob { job: *job, run, attempt };
        let receiving = self.held.iter().filter(|(_, job)| !job.inputs.is_empty());
        let receiving = receiving.map(|(id, job)| held(id, job.run.unwrap_or(0), job.attempt));
        let running = self.running.iter().map(|(id, (run, attempt, _))| held(id, *run, *attempt));
        let finished = self.finished.iter().map(|(id, job)| held(id, job.run, job.attempt));
        let jobs = HeldJobs::new(receiving.chain(running).chain(finished).collect());
        ctx.out.push(say(Uuid::nil(), &Heartbeat { cpu_permille: 10, credit: 0, jobs }));
    }

    /// The next chunk of a result, of one part after the other.
    pub(crate) fn next(&mut self, ctx: &mut Ctx<'_>) -> Option<Out> {
        if !self.ready {
            return None;
        }
        self.turn += 1;
        let turn = self.turn;
        let mut parts: Vec<&mut Sending> =
            self.finished.values_mut().flat_map(|finished| &mut finished.parts).collect();
        let count = parts.len();
        let out = (0..count).find_map(|place| parts[(turn + place) % count].next());
        ctx.seen.went_on[0] +=
            parts.iter_mut().map(|part| std::mem::take(&mut part.went_on)).sum::<u64>();
        out
    }

    pub(crate) fn on_chunk(&mut self, chunk: &InChunk, ctx: &mut Ctx<'_>) {
        let id = chunk.transfer;
        let Some(job) = self.job_of(id) else { return };
        let input = self.held.get_mut(&job).and_then(|held| held.inputs.get_mut(&id));
        let Some(input) = input else { return };
        let Some(receiving) = &mut input.receiving else { return };
        if ctx.faults.worker_disk && ctx.random.chance(4) {
            ctx.seen.worker_disk += 1;
            receiving.fail(Reason::DISK_FULL, &mut ctx.out);
        } else {
            receiving.on_chunk(chunk, &mut ctx.out);
        }
        if receiving.failed.is_some() {
            input.receiving = None;
        }
        self.run_if_whole(job, ctx);
    }

    fn job_of(&self, blob: Uuid) -> Option<Uuid> {
        self.held.iter().find(|(_, held)| held.inputs.contains_key(&blob)).map(|(job, _)| *job)
    }

    pub(crate) fn on_frame(&mut self, frame: &Inbound, ctx: &mut Ctx<'_>) {
        let id = frame.msg_id;
        match frame.kind {
            Kind::Welcome => {
                self.ready = true;
                self.beat(ctx);
                let unsettled: Vec<Uuid> = self.finished.keys().copied().collect();
                unsettled.into_iter().for_each(|job| self.give_back(job, ctx));
            }
            Kind::AssignJob => self.on_assign(id, &frame.payload),
            Kind::Open => self.on_open(id, &frame.read(), ctx),
            Kind::Done => {
                let done: Done = frame.read();
                let Some(job) = self.job_of(id) else {
                    let text = "not open here".into();
                    return ctx.out.push(say(id, &Abort { reason: Reason::UNKNOWN, text }));
                };
                let input =
                    self.held.get_mut(&job).and_then(|held| held.inputs.get_mut(&id)).unwrap();
                if let Some(receiving) = &mut input.receiving {
                    receiving.on_done(&done, &mut ctx.out);
                    if receiving.failed.is_some() {
                        input.receiving = None;
                    }
                }
                self.run_if_whole(job, ctx);
            }
            Kind::Piece => {
                // One whose head was damaged has another transfer's id, or cannot be read.
                let piece =
                    Piece::decode(&frame.payload).ok().filter(|_| self.job_of(id).is_some());
                if let Some(chunk) = piece.and_then(|piece| self.parts.piece(id, &piece)) {
                    self.on_chunk(&chunk, ctx);
                }
            }
            Kind::Void => {
                let job = self.job_of(id);
                let input = job.and_then(|job| self.held.get_mut(&job)?.inputs.get_mut(&id));
                if let Some(receiving) = input.and_then(|input| input.receiving.as_mut()) {
                    receiving.on_void(&frame.read());
                }
            }
            Kind::Abort => {
                let input =
                    self.job_of(id).and_then(|job| self.held.get_mut(&job)?.inputs.get_mut(&id));
                if let Some(input) = input {
                    input.receiving = None;
                } else {
                    let abort: Abort = frame.read();
                    self.with_part(id, ctx, |part| {
                        part.failed = Some((abort.reason, abort.text.as_str().to_owned()));
                        part.outgoing.on_disconnected();
                    });
                }
            }
            Kind::Grant => {
                self.with_part(id, ctx, |part| part.outgoing.on_grant(&frame.read()));
            }
            Kind::Verdict => {
                let verdict: Verdict = frame.read();
                self.with_part(id, ctx, |part| part.on_verdict(&verdict));
            }
            Kind::Start => {
                let start: Start = frame.read();
                if let Some(held) = self.held.get_mut(&id) {
                    held.run = Some(start.run);
                    held.attempt = start.attempt;
                    self.run_if_whole(id, ctx);
                } else if let Some((run, attempt, _)) = self.running.get_mut(&id) {
                    (*run, *attempt) = (start.run, start.attempt);
                } else if self.finished.contains_key(&id) {
                    self.give_back(id, ctx);
                }
            }
            Kind::Cancel => self.on_cancel(id, &frame.read(), ctx),
            Kind::Settled => {
                let _: Settled = frame.read();
                self.finished.remove(&id);
            }
            other => panic!("a worker heard {other}"),
        }
    }

    fn on_assign(&mut self, id: Uuid, payload: &[u8]) {
        let request = JobRequest::parse(payload).unwrap();
        let blobs = request.files.iter().filter_map(|file| match file.source() {
            Source::Blob(blob) => Some(blob.id),
            _ => None,
        });
        let blobs: Vec<Uuid> = blobs.collect();
        if let Some(held) = self.held.get_mut(&id) {
            // The same again: what came of it stays.
            (held.run, held.attempt) = (None, 0);
            return;
        }
        let inputs = blobs.into_iter().map(|blob| (blob, Input::default())).collect();
        self.held.insert(id, Held { request, attempt: 0, run: None, inputs });
    }

    fn on_open(&mut self, id: Uuid, open: &Open, ctx: &mut Ctx<'_>) {
        let held = self.held.get_mut(&open.owner);
        let Some((held, _)) =
            held.and_then(|held| held.inputs.contains_key(&id).then_some((held, ())))
        else {
            let text = "no input of a job that waits here".into();
            return ctx.out.push(say(id, &Abort { reason: Reason::UNKNOWN, text }));
        };
        held.attempt = open.attempt;
        let input = held.inputs.get_mut(&id).unwrap();
        match &mut input.receiving {
            Some(receiving) => {
                ctx.seen.resumed += u64::from(receiving.held_chunks() > 0);
                ctx.out.push(receiving.grant(&self.parts));
            }
            None => {
                let mut receiving = Receiving::new(id, open);
                ctx.out.push(receiving.grant(&self.parts));
                input.receiving = Some(receiving);
            }
        }
    }

    /// A job that may start and has all its inputs, checked, does.
    fn run_if_whole(&mut self, id: Uuid, ctx: &mut Ctx<'_>) {
        let Some(held) = self.held.get(&id).filter(|held| held.is_whole()) else { return };
        let Some(run) = held.run else { return };
        let attempt = held.attempt;
        assert!(attempt > 0, "job {id} starts without an attempt");
        let held = self.held.remove(&id).unwrap();
        if self.finished.get(&id).is_some_and(|finished| finished.run == run) {
            self.give_back(id, ctx);
            return self.credit(1, ctx);
        }
        ctx.seen.ran += 1;
        self.running.insert(id, (run, attempt, held.request));
        let stage = Stage::Running;
        let progress = Progress { run, attempt, stage, done: 0, total: 0, text: "".into() };
        ctx.out.push(say(id, &progress));
        let at = ctx.now + ctx.random.below(400_000);
        ctx.wakes.push((at, Wake::JobEnds(self.number, self.life, id)));
    }

    pub(crate) fn job_ends(&mut self, id: Uuid, ctx: &mut Ctx<'_>) {
        let Some((run, attempt, request)) = self.running.remove(&id) else { return };
        let mut result = JobResult::new(id, &request.client_id, "x", JobStatus::Ok);
        result.run = Some(run);
        result.stdout = format!("{id} ran");
        let mut parts = Vec::new();
        let mut part = |purpose: Purpose, size: u64| {
            let blob = blob_id(id, attempt, purpose, 0);
            let sending = Sending::new(blob, id, attempt, purpose, size, DigestKind::ChunkList);
            let named = BlobRef { id: blob, size, digest: Some(sending.digest()) };
            parts.push(sending);
            Some(named)
        };
        if ctx.random.chance(40) {
            let size =
                [0, 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 4 * CHUNK][ctx.random.below(6) as usize];
            result.archive = part(Purpose::Archive, size);
        }
        if ctx.random.chance(20) {
            result.stdout_blob = part(Purpose::Stdout, CHUNK + 77);
        }
        self.finished.insert(
            id,
            Finished { run, attempt, result, parts, answered: false, is_unwanted: false },
        );
        if self.ready {
            self.give_back(id, ctx);
        }
        if self.conn.is_some() {
            self.credit(1, ctx);
        }
    }

    /// Sends a result, or begins to: parts go first.
    fn give_back(&mut self, id: Uuid, ctx: &mut Ctx<'_>) {
        let Some(finished) = self.finished.get_mut(&id) else { return };
        finished.answered = false;
        for part in &mut finished.parts {
            part.failed = None;
            ctx.out.push(part.connected());
        }
        finished.answer(id, ctx);
    }

    fn with_part(&mut self, blob: Uuid, ctx: &mut Ctx<'_>, then: impl FnOnce(&mut Sending)) {
        let has = |finished: &Finished| finished.parts.iter().any(|part| part.id == blob);
        let Some((id, finished)) = self.finished.iter_mut().find(|(_, finished)| has(finished))
        else {
            return;
        };
        finished.parts.iter_mut().filter(|part| part.id == blob).take(1).for_each(then_once(then));
        let id = *id;
        finished.answer(id, ctx);
        self.finished.retain(|_, finished| !finished.is_unwanted);
    }

    fn on_cancel(&mut self, id: Uuid, cancel: &Cancel, ctx: &mut Ctx<'_>) {
        let meant = |attempt: u32| cancel.attempt == 0 || cancel.attempt == attempt;
        let was = if self.running.get(&id).is_some_and(|(_, attempt, _)| meant(*attempt)) {
            self.running.remove(&id).is_some()
        } else {
            self.held.remove(&id).is_some()
        };
        if was {
            ctx.seen.reassigned += 1;
            let mut result = JobResult::new(id, "", "x", JobStatus::Cancelled);
            result.stderr = "cancelled".to_owned();
            ctx.out.push(json_frame(Kind::AckJob, Uuid::nil(), id, "", &result.to_json()));
            self.credit(1, ctx);
        }
    }
}

fn then_once(then: impl FnOnce(&mut Sending)) -> impl FnMut(&mut Sending) {
    let mut then = Some(then);
    move |part| {
        if let Some(then) = then.take() {
            then(part);
        }
    }
}

impl Finished {
    /// Says the result once all parts have arrived, or without them if one is not taken.
    fn answer(&mut self, id: Uuid, ctx: &mut Ctx<'_>) {
        if self.answered {
            return;
        }
        let mut result = self.result.clone();
        if let Some((reason, text)) = self.parts.iter().find_map(|part| part.failed.clone()) {
            if reason == Reason::UNKNOWN {
                // The job has ended, or is another's: nobody waits for this result.
                (self.answered, self.is_unwanted) = (true, true);
                let result = JobResult::new(id, "", "x", JobStatus::Cancelled);
                return ctx.out.push(json_frame(
                    Kind::AckJob,
                    Uuid::nil(),
                    id,
                    "",
                    &result.to_json(),
                ));
            }
            result.archive_lost = result.archive.take().map(|archive| archive.size);
            result.stdout_blob = None;
            result.stderr = format!("parts are left out: {reason} {text}");
        } else if !self.parts.iter().all(|part| part.arrived) {
            return;
        }
        self.answered = true;
        ctx.out.push(json_frame(Kind::AckJob, Uuid::nil(), id, "", &result.to_json()));
    }
}
