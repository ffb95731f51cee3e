//! A simulated client: it submits jobs, sends their inputs, takes their results, and comes back
//! after a break as the real one does. A rogue one does what no client should.

use std::collections::{BTreeMap, BTreeSet};

use chunking::message::{
    Abort, Cancel, Done, Open, Piece, Purpose, Reason, Received, Refused, Verdict, Void,
};
use chunking::{ChunkHead, DigestKind, Kind};
use heft::core::ids::ConnId;
use heft::model::blob_id;
use heft::model::{
    Announcement, BlobRef, ClientConfig, Deliver, InputFile, JobRequest, JobResult, JobStatus,
    JsonModel,
};
use heft::wire::{InChunk, Parts};
use uuid::Uuid;

use super::ends::{Out, Receiving, Sending, chunk_frame, frame, json_frame, say};
use super::{CHUNK, Ctx, Inbound, Random, SECOND, Wake};

/// How a job ended for its client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// With a result that says OK, and all its parts.
    Whole,
    /// With a result that says OK, of which parts are missing.
    Parts(String),
    Failed(String),
    Refused(Reason, String),
}

pub(crate) struct Job {
    pub(crate) id: Uuid,
    request: Vec<u8>,
    pub(crate) sendings: Vec<Sending>,
    /// When it is submitted first.
    pub(crate) due: u64,
    submitted: bool,
    result: Option<(JobResult, Vec<Uuid>)>,
    gone: BTreeMap<Uuid, String>,
    pub(crate) ending: Option<Ending>,
    pub(crate) results: u32,
    pub(crate) to_all: bool,
    /// Whether the leader has said that it is taken.
    pub(crate) acknowledged: bool,
    /// Whether its client lies about a digest too often.
    pub(crate) lies: bool,
}

pub(crate) struct SimClient {
    number: usize,
    pub(crate) name: String,
    pub(crate) conn: Option<ConnId>,
    ready: bool,
    pub(crate) jobs: Vec<Job>,
    arriving: BTreeMap<Uuid, (Uuid, Purpose, Receiving)>,
    pub(crate) gone: bool,
    pub(crate) rogue: bool,
    pub(crate) parts: Parts,
    turn: usize,
    /// Chunks that it has sent.
    pub(crate) chunks_sent: u64,
}

/// Sizes on, below and above the borders of chunks.
fn size(random: &mut Random) -> u64 {
    let chunks = [0, 0, 1, 1, 1, 2, 2, 3, 5][random.below(9) as usize];
    let off = [0, 1, 4096, CHUNK - 1, CHUNK / 2][random.below(5) as usize];
    chunks * CHUNK + off
}

impl SimClient {
    pub(crate) fn new(
        number: u64,
        jobs: u64,
        random: &mut Random,
        rogue: bool,
        lying: bool,
    ) -> Self {
        let name = format!("client-{number}");
        let jobs =
            (0..jobs).map(|job| Job::new(&name, number * 1000 + job + 1, random, lying)).collect();
        SimClient {
            number: number as usize,
            name,
            conn: None,
            ready: false,
            jobs,
            arriving: BTreeMap::new(),
            gone: false,
            rogue,
            parts: Parts::default(),
            turn: 0,
            chunks_sent: 0,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.gone || self.jobs.iter().all(|job| job.ending.is_some())
    }

    /// Chunks that its jobs have.
    pub(crate) fn chunks_needed(&self) -> u64 {
        self.jobs
            .iter()
            .flat_map(|job| &job.sendings)
            .map(|sending| u64::from(sending.plan().count()))
            .sum()
    }

    pub(crate) fn connected(&mut self, conn: ConnId, ctx: &mut Ctx<'_>) {
        self.conn = Some(conn);
        self.ready = false;
        let heft = Announcement {
            version: 1,
            features: heft::conn::FEATURES.names().map(str::to_owned).collect(),
            name: None,
        };
        let config = ClientConfig {
            client_id: self.name.clone(),
            desired_parallelism: 3,
            cap: None,
            heft: Some(heft),
        };
        ctx.out.push(json_frame(
            Kind::HelloClient,
            Uuid::nil(),
            Uuid::nil(),
            &self.name,
            &config.to_json(),
        ));
    }

    pub(crate) fn lost(&mut self) {
        self.conn = None;
        self.ready = false;
        for job in &mut self.jobs {
            job.submitted = false;
            job.sendings.iter_mut().for_each(|sending| sending.outgoing.on_disconnected());
        }
    }

    pub(crate) fn submit(&mut self, number: usize, ctx: &mut Ctx<'_>) {
        let job = &mut self.jobs[number];
        if !self.ready || job.submitted || job.ending.is_some() || job.due > ctx.now {
            return;
        }
        job.submitted = true;
        ctx.out.push(json_frame(
            Kind::SubmitJob,
            job.id,
            Uuid::nil(),
            "job.submit.x",
            &job.request,
        ));
        ctx.out.extend(job.sendings.iter_mut().map(Sending::connected));
    }

    /// The next chunk, of one blob after the other.
    pub(crate) fn next(&mut self, ctx: &mut Ctx<'_>) -> Option<Out> {
        if !self.ready {
            return None;
        }
        self.turn += 1;
        let turn = self.turn;
        let open = self.jobs.iter_mut().filter(|job| job.submitted && job.ending.is_none());
        let mut sendings: Vec<&mut Sending> = open.flat_map(|job| &mut job.sendings).collect();
        let count = sendings.len();
        for place in 0..count {
            let sending = &mut sendings[(turn + place) % count];
            if self.rogue && ctx.random.chance(8) {
                return Some(misbehave(sending, ctx));
            }
            if let Some(out) = sending.next() {
                ctx.seen.went_on[0] += std::mem::take(&mut sending.went_on);
                if let Out::Chunk { .. } = out {
                    self.chunks_sent += 1;
                    if ctx.faults.voids && ctx.random.chance(5) {
                        // The last chunk counts for nothing.
                        let offset = ctx.random.below(u64::from(sending.plan().count())) * CHUNK;
                        ctx.seen.voids += 1;
                        ctx.out.push(out);
                        return Some(say(
                            sending.id,
                            &Void { offset, reason: Reason::SOURCE_GONE },
                        ));
                    }
                }
                return Some(out);
            }
        }
        None
    }

    pub(crate) fn on_chunk(&mut self, chunk: &InChunk, ctx: &mut Ctx<'_>) {
        if let Some((job, _, receiving)) = self.arriving.get_mut(&chunk.transfer) {
            receiving.on_chunk(chunk, &mut ctx.out);
            let job = *job;
            self.settle(job, ctx);
        }
    }

    pub(crate) fn on_frame(&mut self, frame: &Inbound, ctx: &mut Ctx<'_>) {
        let id = frame.msg_id;
        match frame.kind {
            Kind::Welcome => {
                self.ready = true;
                (0..self.jobs.len()).for_each(|number| self.submit(number, ctx));
            }
            Kind::Grant => self.with(id, |sending| sending.outgoing.on_grant(&frame.read())),
            Kind::Verdict => {
                let verdict: Verdict = frame.read();
                self.with(id, |sending| sending.on_verdict(&verdict));
                if let Verdict::Failed { reason, text } = &verdict {
                    self.refused(id, *reason, text.as_str(), ctx);
                }
            }
            Kind::Abort if self.arriving.contains_key(&id) => {
                let abort: Abort = frame.read();
                if let Some((job, _, _)) = self.arriving.remove(&id) {
                    let why = format!("{}: {}", abort.reason, abort.text.as_str());
                    self.jobs.iter_mut().filter(|known| known.id == job).for_each(|known| {
                        known.gone.insert(id, why.clone());
                    });
                    self.settle(job, ctx);
                }
            }
            Kind::Abort => {
                let abort: Abort = frame.read();
                self.with(id, |sending| sending.outgoing.on_disconnected());
                self.refused(id, abort.reason, abort.text.as_str(), ctx);
            }
            Kind::Refused => {
                let refused: Refused = frame.read();
                let number = self.jobs.iter().position(|job| job.id == id && job.ending.is_none());
                if let Some((number, job)) =
                    number.and_then(|at| Some((at, self.jobs.get_mut(at)?)))
                {
                    if [Reason::DISK_FULL, Reason::BUSY].contains(&refused.reason) {
                        // It comes again when the disk may have room, or what was of it before is
                        // gone.
                        job.submitted = false;
                        return ctx
                            .wakes
                            .push((ctx.now + SECOND, Wake::Submits(self.number, number)));
                    }
                    job.end(Ending::Refused(refused.reason, refused.text.as_str().to_owned()));
                }
            }
            Kind::Result => self.on_result(id, &frame.payload, ctx),
            Kind::Open => self.on_open(id, &frame.read(), ctx),
            Kind::Done => {
                if let Some((job, _, receiving)) = self.arriving.get_mut(&id) {
                    let done: Done = frame.read();
                    receiving.on_done(&done, &mut ctx.out);
                    let job = *job;
                    self.settle(job, ctx);
                }
            }
            Kind::Piece => {
                let piece =
                    Piece::decode(&frame.payload).ok().filter(|_| self.arriving.contains_key(&id));
                if let Some(chunk) = piece.and_then(|piece| self.parts.piece(id, &piece)) {
                    self.on_chunk(&chunk, ctx);
                }
            }
            Kind::Void => {
                if let Some((_, _, receiving)) = self.arriving.get_mut(&id) {
                    receiving.on_void(&frame.read());
                }
            }
            Kind::Submitted => {
                let acknowledged = self.jobs.iter_mut().find(|job| job.id == id);
                acknowledged.into_iter().for_each(|job| job.acknowledged = true);
            }
            Kind::Progress => {}
            other => panic!("a client heard {other}"),
        }
    }

    fn with(&mut self, blob: Uuid, then: impl FnOnce(&mut Sending)) {
        let sendings = self.jobs.iter_mut().flat_map(|job| &mut job.sendings);
        if let Some(sending) = sendings.into_iter().find(|sending| sending.id == blob) {
            then(sending);
        }
    }

    /// An input is not taken. The job's own answer decides, unless it will never be.
    fn refused(&mut self, blob: Uuid, reason: Reason, text: &str, ctx: &mut Ctx<'_>) {
        let last = [Reason::INVALID, Reason::TOO_LARGE, Reason::BAD_DIGEST, Reason::CONFLICT];
        let named = |job: &&mut Job| job.sendings.iter().any(|sending| sending.id == blob);
        if let Some(job) = self.jobs.iter_mut().find(named).filter(|job| job.ending.is_none())
            && last.contains(&reason)
        {
            ctx.out.push(say(job.id, &Cancel { attempt: 0, text: text.into() }));
            job.end(Ending::Refused(reason, text.to_owned()));
        }
    }

    fn on_open(&mut self, id: Uuid, open: &Open, ctx: &mut Ctx<'_>) {
        let job = self.jobs.iter_mut().find(|job| job.id == open.owner && job.ending.is_none());
        let Some(job) = job else {
            let (reason, text) = (Reason::CANCELLED, "not wanted".into());
            return ctx.out.push(say(id, &Verdict::Failed { reason, text }));
        };
        job.gone.remove(&id);
        // The first attempt at another leader has the ids of the first one here, and need not give
        // the same.
        let is_same = |held: &&mut (Uuid, Purpose, Receiving)| held.2.open.size == open.size;
        if let Some((_, _, receiving)) = self.arriving.get_mut(&id).filter(is_same) {
            ctx.seen.resumed += u64::from(receiving.held_chunks() > 0);
            ctx.out.push(receiving.grant(&self.parts));
            return;
        }
        let mut receiving = Receiving::new(id, open);
        ctx.out.push(receiving.grant(&self.parts));
        let (owner, purpose) = (open.owner, open.purpose);
        // A part has one blob at a time.
        self.arriving.retain(|_, (job, part, _)| (*job, *part) != (owner, purpose));
        self.arriving.insert(id, (owner, purpose, receiving));
    }

    fn on_result(&mut self, id: Uuid, payload: &[u8], ctx: &mut Ctx<'_>) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.id == id && job.ending.is_none())
        else {
            return;
        };
        let result = JobResult::parse(payload).unwrap();
        let parts = [&result.archive, &result.stdout_blob, &result.stderr_blob];
        let parts: Vec<Uuid> = parts.into_iter().flatten().map(|part| part.id).collect();
        job.result = Some((result, parts));
        self.settle(id, ctx);
    }

    /// Ends a job whose result and parts are here.
    fn settle(&mut self, id: Uuid, ctx: &mut Ctx<'_>) {
        let Some(job) = self.jobs.iter_mut().find(|job| job.id == id && job.ending.is_none())
        else {
            return;
        };
        let Some((result, parts)) = &job.result else { return };
        let mut missing = Vec::new();
        for part in parts {
            match (self.arriving.get(part), job.gone.get(part)) {
                (Some((_, _, receiving)), _) if receiving.is_whole() => {}
                (Some((_, _, receiving)), _) if receiving.failed.is_some() => {
                    missing.push(format!("{:?}", receiving.failed));
                }
                (None, Some(why)) => missing.push(why.clone()),
                (Some(_), _) | (None, None) => return,
            }
        }
        ctx.seen.parts += (parts.len() - missing.len()) as u64;
        let ending = match (&result.status, missing.is_empty() && result.archive_lost.is_none()) {
            (JobStatus::Ok, true) if result.stderr.contains("left out") => {
                Ending::Parts(result.stderr.clone())
            }
            (JobStatus::Ok, true) => Ending::Whole,
            (JobStatus::Ok, false) => Ending::Parts(format!("{missing:?} {}", result.stderr)),
            _ => Ending::Failed(result.stderr.clone()),
        };
        job.end(ending);
        ctx.out.push(say(id, &Received { run: 0 }));
        self.arriving.retain(|_, (owner, _, _)| *owner != id);
    }
}

impl Job {
    fn new(client: &str, number: u64, random: &mut Random, lying: bool) -> Job {
        let id = Uuid::from_u128(u128::from(number) << 64 | 77);
        let to_all = random.chance(4);
        let blobs = [0, 1, 1, 1, 2, 3][random.below(6) as usize];
        let mut files = Vec::new();
        let mut sendings = Vec::new();
        let mut lies_too_often = false;
        for index in 0..blobs {
            let blob = blob_id(id, 0, Purpose::Input, index);
            let size = size(random);
            let kind = if random.chance(80) { DigestKind::ChunkList } else { DigestKind::Blake3 };
            let mut sending = Sending::new(blob, id, 0, Purpose::Input, size, kind);
            if lying && random.chance(25) {
                sending.lies = 1 + random.below(2) as u32;
                lies_too_often |= sending.lies > 1 || size == 0;
            }
            sendings.push(sending);
            let blob = Some(BlobRef { id: blob, size, digest: None });
            files.push(InputFile { name: format!("in-{index}"), blob, ..InputFile::default() });
        }
        let request = JobRequest {
            job_id: id,
            client_id: client.to_owned(),
            exec_name: "x".to_owned(),
            files,
            deliver: if to_all { Deliver::All } else { Deliver::One },
            ..JobRequest::default()
        };
        Job {
            id,
            request: request.to_json(),
            sendings,
            due: random.below(2) * random.below(SECOND),
            submitted: false,
            result: None,
            gone: BTreeMap::new(),
            ending: None,
            results: 0,
            to_all,
            acknowledged: false,
            lies: lies_too_often,
        }
    }

    fn end(&mut self, ending: Ending) {
        self.results += 1;
        self.ending = Some(ending);
    }

    pub(crate) fn blobs(&self) -> BTreeSet<Uuid> {
        self.sendings.iter().map(|sending| sending.id).collect()
    }
}

/// Something that no client should send.
fn misbehave(sending: &mut Sending, ctx: &mut Ctx<'_>) -> Out {
    ctx.seen.rogue += 1;
    let id = sending.id;
    let stranger = Uuid::from_u128(u128::from(ctx.random.next()));
    let head = |offset: u64, bytes: &[u8]| ChunkHead::plain(offset, bytes);
    match ctx.random.below(14) {
        0 | 1 if sending.plan().count() > 0 => {
            // Once more, whatever the window is.
            sending.chunk(ctx.random.below(u64::from(sending.plan().count())) as u32)
        }
        2 => chunk_frame(stranger, &head(0, b"x"), "x".into()),
        3 => chunk_frame(id, &head(7, b"overlapping"), "overlapping".into()),
        4 => chunk_frame(id, &head(9999 * CHUNK, b"behind"), "behind".into()),
        5 => say(id, &Done { digest: sending.digest() }),
        6 => say(stranger, &Done { digest: sending.digest() }),
        7 => say(id, &Verdict::Ok),
        11 | 12 => {
            // Pieces of nothing, with a gap, of another chunk, of no bytes, of more than there are.
            let (from, sent_len) =
                [(7, 100), (0, CHUNK as u32), (99, CHUNK as u32), (CHUNK as u32 - 3, CHUNK as u32)]
                    [ctx.random.below(4) as usize];
            let piece = Piece {
                head: head(0, b"piece"),
                sent_len,
                from,
                bytes: &[1; 9][..ctx.random.below(9) as usize],
            };
            let bytes = [&piece.frame(id, false).unwrap().0[..], piece.bytes].concat();
            Out::Frame(bytes.into())
        }
        8 => say(
            id,
            &chunking::message::Grant {
                window: u32::MAX,
                reason: Reason::NONE,
                text: "".into(),
                held: Default::default(),
                part: Default::default(),
            },
        ),
        9 => sending.connected(),
        10 => say(id, &Abort { reason: Reason::SOURCE_GONE, text: "gone".into() }),
        _ => frame(
            chunking::Head { msg_id: id, ..chunking::Head::new(Kind::Chunk) },
            &[0; 9][..ctx.random.below(9) as usize],
        ),
    }
}
