//! Connects transfers to jobs: which blobs a job brings and its result leaves, and which peers may
//! send or receive them. The relay moves the bytes.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use bytes::Bytes;
use chunking::ChunkPlan;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{Features, Open, OpenFlags, Piece, Purpose, Reason};
use tracing::{info, warn};

use super::parts::{Named, is_made};
use super::refusal_text::RefusalText;
use super::relay::{BlobId, News, Out, TRANSFERS_MAX, announced};
use super::{Leader, Output};
use crate::conn::{TransferSays, Want, WireChunk};
use crate::core::Event;
use crate::core::ids::{Attempt, ConnId, JobId, ResultId};
use crate::core::job::{Job, Phase};
use crate::core::record::AttemptEnd;
use crate::store::blobs::Class;
use crate::wire::{ChunkStart, InChunk, Part};

use super::datasets::DatasetEvent;
use super::relay::{Linger, Memory, Relay, Spliced, Starts};
use crate::core::ids::Micros;

/// Why a part of a result is not here, if nobody noted why: the leader's log has it.
const UNKNOWN_LOSS: &str = "it could not be read; see the leader's log";

/// Result parts one attempt may bring: an archive and two outputs, and parts it began in a previous
/// run.
const ATTEMPT_PARTS_MAX: usize = 8;

/// Where a chunk goes.
#[derive(Debug)]
pub struct ChunkPlace {
    /// The memory to read it into.
    pub memory: Memory,
    /// Whether its CRC is to be made.
    pub check: bool,
    /// The connection to splice the chunk to, behind the head in [`Output::Splice`];
    /// [`Leader::chunk_spliced`] follows at its end. `None` if the chunk is to be read whole; then
    /// [`Leader::chunk`].
    pub splice_to: Option<ConnId>,
}

/// The decision for a chunk that begins.
#[derive(Debug)]
pub enum Arrival {
    /// It is read to here.
    Here(ChunkPlace),
    /// There is no memory for it yet: nothing is read until [`Output::Turn`]; then
    /// [`Leader::turn`].
    Waits {
        /// Whether its CRC is to be made then.
        check: bool,
    },
    /// It passes by.
    Skip,
}

impl Leader {
    /// Whether the peer of a connection takes and brings blobs.
    pub(super) fn takes_transfers(&self, conn: ConnId) -> bool {
        self.peers.takes(conn, Features::TRANSFERS)
    }

    /// Whether blobs come or go.
    pub fn has_transfers(&self) -> bool {
        self.relay.has_transfers()
    }

    fn with_relay<T>(&mut self, now: Micros, what: impl FnOnce(&mut Relay) -> T) -> T {
        self.pass_time(now);
        let done = what(&mut self.relay);
        self.act();
        done
    }

    /// A chunk begins: finds memory to read it into. `reserve_pipe` takes a pipe to a connection
    /// for which nothing waits, and says whether it has one.
    pub fn chunk_starts(
        &mut self,
        now: Micros,
        conn: ConnId,
        start: &ChunkStart,
        reserve_pipe: impl FnOnce(ConnId) -> bool,
    ) -> Arrival {
        self.pass_time(now);
        let check = !self.relay.is_forwarded_unchecked(start.transfer);
        let arrival = match self.relay.chunk_starts(conn, start) {
            Starts::Here(memory) => {
                let is_pooled = matches!(memory, Memory::Pooled(_));
                let splice_to =
                    if is_pooled { self.splice_target(conn, start, reserve_pipe) } else { None };
                Arrival::Here(ChunkPlace { memory, check, splice_to })
            }
            Starts::Waits => Arrival::Waits { check },
            Starts::Skip => Arrival::Skip,
        };
        self.act();
        arrival
    }

    /// Whether a connection must not be read for now, because there is no memory for its chunks.
    pub fn waits_for_turn(&self, conn: ConnId) -> bool {
        self.relay.waits_for_turn(conn)
    }

    /// Where a connection that had to wait reads on, if it is its turn.
    pub fn turn(&mut self, conn: ConnId) -> Option<Memory> {
        self.relay.turn(conn)
    }

    /// A chunk is not complete after [`super::BUFFER_LEASE`]; `have` of its bytes are here.
    pub fn chunk_lingers(&mut self, now: Micros, conn: ConnId, have: usize) -> Linger {
        if !self.peers.has(conn) {
            return Linger::Stays;
        }
        self.with_relay(now, |relay| relay.chunk_lingers(conn, have))
    }

    /// A chunk outside the pool makes no progress. Returns whether it has to wait for its turn
    /// again.
    pub fn chunk_rests(&mut self, now: Micros, conn: ConnId, have: usize) -> bool {
        self.peers.has(conn) && self.with_relay(now, |relay| relay.chunk_rests(conn, have))
    }

    /// A buffer has gone back to the pool.
    pub fn buffer_is_free(&mut self, now: Micros) {
        self.with_relay(now, Relay::pump);
    }

    fn splice_target(
        &mut self,
        conn: ConnId,
        start: &ChunkStart,
        reserve_pipe: impl FnOnce(ConnId) -> bool,
    ) -> Option<ConnId> {
        let head = start.head.frame_head(start.transfer, start.sent_len).ok()?;
        let to = self.relay.splice_target(conn, start, reserve_pipe)?;
        self.outputs.push_back(Output::Splice { conn: to, head: Bytes::copy_from_slice(&head) });
        Some(to)
    }

    /// A spliced chunk has ended, completely or not. If it was cut short, its receiver was sent
    /// zeros for the rest.
    pub fn chunk_spliced(&mut self, now: Micros, conn: ConnId, start: &ChunkStart, how: Spliced) {
        self.with_relay(now, |relay| relay.spliced(conn, start, how));
    }

    /// Whether a connection brings blobs.
    pub fn brings_blobs(&self, conn: ConnId) -> bool {
        self.relay.brings_blobs(conn)
    }

    /// A chunk has come.
    pub fn chunk(&mut self, now: Micros, conn: ConnId, chunk: InChunk) {
        self.datasets.count_received(chunk.transfer, chunk.bytes.len() as u64);
        self.with_relay(now, |relay| relay.chunk(conn, chunk));
    }

    /// A piece of a chunk has come.
    pub(super) fn piece(&mut self, conn: ConnId, id: BlobId, payload: &[u8]) {
        if let Ok(piece) = Piece::decode(payload) {
            self.datasets.count_received(id, piece.bytes.len() as u64);
            self.relay.piece(conn, id, &piece);
        }
    }

    /// A connection ended in the middle of a chunk: these are the received bytes.
    pub fn chunk_cut(&mut self, part: Part) {
        self.relay.keep_part(part);
    }

    /// Whether a peer's line is slow: fewer chunks are made ready for it then.
    pub fn line_is_slow(&mut self, conn: ConnId, is_slow: bool) {
        if self.peers.has(conn) {
            self.relay.line_is_slow(conn, is_slow);
        }
    }

    /// A connection has released the buffers that waited for it.
    pub fn line_lags(&mut self, now: Micros, conn: ConnId) {
        if self.peers.has(conn) {
            self.with_relay(now, |relay| relay.line_lags(conn));
        }
    }

    /// Whether buffers are few.
    pub fn is_scarce(&self) -> bool {
        self.relay.is_scarce()
    }

    /// Whether a chunk that waits for a line is kept here, too: then the line can ask for it.
    pub fn keeps_for(&mut self, conn: ConnId, blob: BlobId, offset: u64) -> bool {
        self.relay.keeps_for(conn, blob, offset)
    }

    /// A line is ready for bytes of a chunk that are not with it; then [`Output::Supply`].
    pub fn chunk_wanted(&mut self, now: Micros, conn: ConnId, want: Want) {
        if self.peers.has(conn) {
            self.with_relay(now, |relay| relay.wanted(conn, want));
        }
    }

    /// So many chunks have left for a connection, and their buffers are free.
    pub fn chunks_sent(&mut self, now: Micros, conn: ConnId, count: u32) {
        self.with_relay(now, |relay| relay.chunks_sent(conn, count));
    }

    // --- inputs

    /// Notes the blobs of a new job. An error is a refusal.
    pub(super) fn expect_inputs(
        &mut self,
        conn: ConnId,
        job: JobId,
        to_all: bool,
        blobs: &[(BlobId, String, u64)],
    ) -> Result<(), RefusalText> {
        if !self.takes_transfers(conn) {
            let text = "the job names blobs, but this connection did not announce transfers: send \
                        contents inline";
            return Err(RefusalText::invalid(text.to_owned()));
        }
        if blobs.len() > TRANSFERS_MAX {
            let text = format!(
                "the job has {} files to transfer; the limit of a connection is {TRANSFERS_MAX}: \
                 pack them into fewer files",
                blobs.len()
            );
            return Err(RefusalText::too_large(blobs.len() as u64, TRANSFERS_MAX as u64, text));
        }
        let (mut plans, mut ids) = (Vec::with_capacity(blobs.len()), HashSet::new());
        for (id, name, size) in blobs {
            let plan = ChunkPlan::new(*size, CHUNK_BYTES_MAX);
            let plan = plan
                .map_err(|error| RefusalText::invalid(format!("input file \"{name}\": {error}")))?;
            if self.relay.knows(*id) || !ids.insert(*id) {
                let text = format!(
                    "input file \"{name}\" names the blob {id}, but that id is in use: use a new id"
                );
                return Err(RefusalText::invalid(text));
            }
            plans.push((*id, name, *size, plan));
        }
        // What is spliced needs no place; what has to be here whole does.
        let room = self.config.relay.spool_bytes_max;
        let bytes = blobs.iter().fold(0, |sum: u64, (_, _, size)| sum.saturating_add(*size));
        if bytes > room && (to_all || self.config.relay.durable) {
            let text = format!(
                "the job's input files have {bytes} bytes; the leader keeps at most {room}: raise \
                 its --spool-max, or send less with one job"
            );
            return Err(RefusalText::too_large(bytes, room, text));
        }
        if let Some(room) = self.relay.disk_bytes_max(Class::Upload).filter(|room| bytes > *room) {
            let text = format!(
                "the job's input files have {bytes} bytes; the leader's disk has room for {room}: \
                 give it a larger one (--data), or send less with one job"
            );
            return Err(RefusalText::too_large(bytes, room, text));
        }
        let names_bytes = plans.iter().map(|(_, name, _, _)| name.len()).sum();
        if let Some(too_many) = self.relay.too_many(plans.len(), names_bytes, self.retained.blobs())
        {
            return Err(too_many.into());
        }
        for (id, name, size, plan) in plans {
            self.relay.expect(id, announced(job, name, size), plan, to_all);
        }
        let ids: Vec<BlobId> = blobs.iter().map(|(id, _, _)| *id).collect();
        self.relay.belong_together(&ids);
        self.blobs.inputs.insert(job, ids);
        Ok(())
    }

    /// Opens a job's inputs to its worker, which was just given the job: whatever it had of them
    /// before is gone.
    pub(super) fn send_inputs(&mut self, conn: ConnId, job: JobId, attempt: Attempt) {
        // A classic worker has them from its agent, if they are blobs (C01).
        if !self.takes_transfers(conn) {
            return;
        }
        let owner = self.owner_of_inputs(job);
        for blob in self.blobs.inputs(owner).to_vec() {
            self.relay.attach_anew(conn, blob, job, attempt.0);
        }
    }

    /// Opens a job's inputs to a worker that reconnected and resumes them.
    pub(super) fn resume_inputs(&mut self, conn: ConnId, job: JobId, attempt: Attempt) {
        let owner = self.owner_of_inputs(job);
        for blob in self.blobs.inputs(owner).to_vec() {
            self.relay.attach(conn, blob, job, attempt.0);
        }
    }

    /// A worker does not get a job's inputs any more.
    pub(super) fn withhold_inputs(&mut self, conn: ConnId, job: JobId) {
        let owner = self.owner_of_inputs(job);
        for blob in self.blobs.inputs(owner).to_vec() {
            self.relay.detach(conn, blob);
        }
    }

    /// The job whose inputs these are: a child has its parent's.
    fn owner_of_inputs(&self, job: JobId) -> JobId {
        let child_of = self.broker.state().job(job).and_then(|job| job.child_of);
        child_of.map_or(job, |(parent, _)| parent)
    }

    pub(super) fn forget_inputs(&mut self, job: JobId) {
        for blob in self.blobs.inputs.remove(&job).unwrap_or_default() {
            self.relay.forget(blob);
        }
        // Its children have ended with it, and their unfinished parts are dropped.
        let children =
            self.broker.state().job(job).map(|job| job.children.clone()).unwrap_or_default();
        children.into_iter().chain([job]).for_each(|job| self.forget_coming(job, |_, _| true));
    }

    // --- results

    /// Whether all parts that an acknowledged result names have come whole and are here.
    pub(super) fn are_here(&self, job: JobId, parts: &[BlobId]) -> bool {
        let comes = |id: &BlobId| self.blobs.coming(job).iter().any(|(_, part)| part == id);
        let is_known = |id: &BlobId| comes(id) || self.blobs.is_named(*id);
        let is_here = |id: &BlobId| self.relay.has_arrived(*id) && self.relay.is_kept(*id);
        parts.iter().all(|id| is_here(id) && is_known(id))
    }

    /// Keeps the parts of a result as long as the result is kept.
    pub(super) fn keep_parts(&mut self, job: JobId, result: ResultId, parts: &[BlobId]) {
        self.add_parts(result, parts);
        self.blobs.take_coming(job, |_, part| parts.contains(&part));
        self.forget_coming(job, |_, _| true);
    }

    /// More parts of a result, which were made of it here.
    pub(super) fn add_parts(&mut self, result: ResultId, parts: &[BlobId]) {
        for part in parts {
            if self.blobs.name_part(result, *part) {
                self.relay.settle(*part);
            }
        }
    }

    /// A job whose inputs are all here. They go with it.
    pub(super) fn inputs_gathered(&mut self, job: JobId, blobs: Vec<BlobId>) {
        if !blobs.is_empty() {
            self.blobs.inputs.insert(job, blobs);
        }
    }

    pub(super) fn forget_parts(&mut self, result: ResultId) {
        self.retention.forget(result);
        self.blobs.forget_result(result).into_iter().for_each(|part| self.relay.forget(part));
    }

    /// Drops those parts of a result that nobody acknowledged, and of which this is said.
    pub(super) fn forget_coming(
        &mut self,
        job: JobId,
        is_out: impl FnMut(Attempt, BlobId) -> bool,
    ) {
        self.blobs.take_coming(job, is_out).into_iter().for_each(|blob| self.relay.forget(blob));
    }

    /// An answer that does not count named these parts: what was gathered of it goes, and what came
    /// for an attempt that nobody knows of. What came for others is their workers' to answer with.
    pub(super) fn forget_foreign_parts(&mut self, job: JobId, parts: &[BlobId]) {
        let last = self.broker.state().job(job).map_or(Attempt(0), |job| job.attempt);
        let is_known = |attempt| attempt > Attempt(0) && attempt <= last;
        self.forget_coming(job, |attempt, part| parts.contains(&part) && !is_known(attempt));
    }

    /// What was gathered of an answer that is not a result.
    pub(super) fn forget_gathered_parts(&mut self, job: JobId) {
        self.forget_coming(job, |attempt, _| attempt == Attempt(0));
    }

    /// An attempt brings parts of its result. What others have begun and do not go on with is
    /// dropped; those that do may still be the first to end the job, but its client gets the parts
    /// of one attempt at a time.
    fn make_way(&mut self, job: JobId, attempt: Attempt, client: Option<ConnId>) {
        let relay = &mut self.relay;
        let left = |other, part| other != attempt && !relay.is_brought(part);
        let left = self.blobs.take_coming(job, left);
        left.into_iter().for_each(|part| relay.forget(part));
        for (_, part) in self.blobs.coming(job).iter().filter(|(other, _)| *other != attempt) {
            if let Some(client) = client {
                relay.detach(client, *part);
            }
        }
    }

    /// Whether one more part of an attempt's result may come. Parts that nobody sends any more make
    /// room for it.
    fn has_place_for_part(&mut self, job: JobId, attempt: Attempt) -> bool {
        if self.blobs.coming_of(job, attempt).count() >= ATTEMPT_PARTS_MAX {
            let relay = &mut self.relay;
            let left =
                self.blobs.take_coming(job, |of, part| of == attempt && !relay.is_brought(part));
            left.into_iter().for_each(|part| relay.forget(part));
        }
        self.blobs.coming_of(job, attempt).count() < ATTEMPT_PARTS_MAX
    }

    /// Parts of a result that were lost here, by a fault of the spool, and why.
    pub(super) fn lost_parts(&self, result: ResultId) -> Vec<(BlobId, String)> {
        let parts = self.blobs.of_result(result).iter().copied();
        let why = |part: &BlobId| {
            self.blobs.lost.get(part).map_or(UNKNOWN_LOSS, String::as_str).to_owned()
        };
        parts.filter(|part| !self.relay.knows(*part)).map(|part| (part, why(&part))).collect()
    }

    /// Whether somebody is getting parts of a result.
    pub(super) fn is_fetched(&self, result: ResultId) -> bool {
        self.blobs.of_result(result).iter().any(|part| self.relay.is_flowing(*part))
    }

    /// Opens the parts of a result to a connection that can take them. A peer that asks gets them
    /// again, even if it had them before.
    pub(super) fn send_parts(
        &mut self,
        conn: ConnId,
        job: JobId,
        result: ResultId,
        named: Named,
        asked: bool,
    ) {
        if !self.takes_transfers(conn) {
            return;
        }
        let is_named = |part: &BlobId| named == Named::Made || !is_made(job, *part);
        let parts: Vec<BlobId> =
            self.blobs.of_result(result).iter().copied().filter(is_named).collect();
        for part in parts {
            if asked && self.relay.has_got(conn, part) {
                self.relay.attach_anew(conn, part, job, 0);
            } else {
                self.relay.attach(conn, part, job, 0);
            }
        }
    }

    // --- what peers say

    pub(super) fn transfer(&mut self, conn: ConnId, id: BlobId, says: TransferSays) {
        match says {
            TransferSays::Open(open) => self.opened(conn, id, open),
            TransferSays::Grant(grant) => self.relay.granted(conn, id, &grant),
            TransferSays::Done(done) => self.relay.done(conn, id, &done),
            TransferSays::Verdict(verdict) => self.relay.verdict(conn, id, &verdict),
            TransferSays::Abort(abort) => self.relay.aborted(conn, id, &abort),
            TransferSays::Void(void) => self.relay.void(conn, id, &void),
        }
    }

    /// A client brings an input that its job named, or a worker a part of the result of a job it
    /// holds.
    fn opened(&mut self, conn: ConnId, id: BlobId, open: Open) {
        let Some(session) = self.peers.get(conn) else { return };
        let owner = JobId(open.owner);
        let job = self.broker.state().job(owner);
        let may = match open.purpose {
            Purpose::Dataset => {
                return self.dataset_event(DatasetEvent::Opened { conn, blob: id, open });
            }
            Purpose::Input | Purpose::Payload => {
                let is_theirs =
                    job.is_none_or(|job| Some(&job.submission.client) == session.client());
                let may = is_theirs && self.blobs.inputs(owner).contains(&id);
                if let Some(text) = self.never_stays(owner, &open).filter(|_| may) {
                    info!(job = %owner, peer = %self.name(conn), "refused an input: {text}");
                    return self.relay.turn_away_for(conn, id, Reason::TOO_LARGE, &text);
                }
                may
            }
            Purpose::Archive | Purpose::Stdout | Purpose::Stderr => {
                let may = self.broker.may_bring(conn, owner, Attempt(open.attempt));
                if let Some(refusal) = self.never_fits(id, &open).filter(|_| may) {
                    info!(job = %owner, peer = %self.name(conn), "refused a part of a result: {}", refusal.text());
                    return self.relay.turn_away_for(conn, id, refusal.reason(), refusal.text());
                }
                may && self.expect_part(conn, id, &open)
            }
        };
        if may {
            self.accept(conn, id, open);
        } else {
            self.relay.turn_away(conn, id);
        }
    }

    /// Why inputs can never be here whole that have to be, because their client does not stay to
    /// send them again. One with a disk has refused such a job.
    fn never_stays(&self, job: JobId, open: &Open) -> Option<String> {
        if self.config.relay.durable || open.flags.has(OpenFlags::KEEPS_SOURCE) {
            return None;
        }
        let room = self.config.relay.spool_bytes_max;
        let sizes = self.blobs.inputs(job).iter().map(|blob| self.relay.size(*blob));
        let bytes = sizes.fold(0, u64::saturating_add);
        (bytes > room).then(|| {
            format!(
                "the job's input files have {bytes} bytes, and its client leaves the job with the \
                 leader (--detach), which keeps at most {room} of them: raise the leader's \
                 --spool-max, or submit the job without --detach"
            )
        })
    }

    /// A peer may bring a blob.
    pub(super) fn accept(&mut self, conn: ConnId, id: BlobId, open: Open) {
        let Some(session) = self.peers.get(conn) else { return };
        // A client is one, however many connections it has.
        let peer = session.client().map_or(conn.0, |client| {
            let mut hasher = std::hash::DefaultHasher::new();
            client.hash(&mut hasher);
            hasher.finish()
        });
        self.relay.is_of(conn, peer);
        self.relay.open(conn, id, open);
    }

    /// A part of a result is opened; the job's client receives it by cut-through.
    fn expect_part(&mut self, conn: ConnId, id: BlobId, open: &Open) -> bool {
        let (job, attempt) = (JobId(open.owner), Attempt(open.attempt));
        if self.blobs.coming(job).iter().any(|(_, part)| *part == id)
            && self.relay.is_another(id, open)
        {
            // The assignment of a previous run was lost, and its attempt was made once more: this
            // is what came of that.
            self.forget_coming(job, |_, part| part == id);
        }
        if self.relay.knows(id) {
            if self.blobs.is_named(id) {
                return true;
            }
            // Nobody has answered with it yet, and an attempt that was made once more may have
            // written something else.
            self.relay.doubt_before(conn, id);
            return self.blobs.coming(job).contains(&(attempt, id));
        }
        let Ok(plan) = ChunkPlan::new(open.size, open.chunk_bytes) else { return false };
        let client = self.broker.state().job(job).filter(|job| job.child_of.is_none());
        let client =
            client.and_then(|job| self.broker.submitter_of(job.id(), &job.submission.client));
        // A client has one blob of each part at a time. While a result is being committed it keeps
        // the parts of that, which are not sent twice.
        let is_ending = self.broker.is_ending(job);
        let client = client.filter(|client| !is_ending && self.takes_transfers(*client));
        self.make_way(job, attempt, client);
        if !self.has_place_for_part(job, attempt) {
            return false;
        }
        self.relay.expect(id, open.clone(), plan, true);
        self.blobs.comes(job, attempt, id);
        if let Some(client) = client {
            self.relay.attach(client, id, job, open.attempt);
        }
        true
    }

    // --- what becomes of blobs

    /// Executes the relay's actions. Returns whether there were any.
    pub(super) fn relay_on(&mut self) -> bool {
        let mut any = false;
        while let Some(out) = self.relay.poll() {
            any = true;
            match out {
                Out::Say { conn, blob, says } => {
                    let frame =
                        self.peers.get(conn).and_then(|session| session.transfer(blob, &says));
                    match says {
                        // What a receiver says is about other chunks than those that go to the same
                        // peer.
                        TransferSays::Grant(_) | TransferSays::Verdict(_) => self.send(conn, frame),
                        TransferSays::Open(_)
                        | TransferSays::Done(_)
                        | TransferSays::Abort(_)
                        | TransferSays::Void(_) => {
                            let behind = frame.map(|frame| Output::SendBehind { conn, frame });
                            self.outputs.extend(behind);
                        }
                    }
                }
                Out::Chunk { conn, blob, head, bytes, from } => {
                    let session = self.peers.get(conn);
                    let chunk = session.map(|session| session.chunk(blob, &head, bytes, from));
                    self.send_chunk(conn, blob, chunk);
                }
                Out::Disk(operation) => self.outputs.push_back(Output::Disk(operation)),
                Out::LetGo { conn } => self.outputs.push_back(Output::LetGo { conn }),
                Out::Supply { conn, want, bytes } => {
                    self.outputs.push_back(Output::Supply { conn, want, bytes });
                }
                Out::Elsewhere { conn, blob, head, len, from } => {
                    let session = self.peers.get(conn);
                    let chunk =
                        session.map(|session| session.chunk_elsewhere(blob, &head, len, from));
                    self.send_chunk(conn, blob, chunk);
                }
                Out::Turn { conn } => self.outputs.push_back(Output::Turn { conn }),
                Out::News(news) => self.blob_news(news),
            }
        }
        any
    }

    fn send_chunk(&mut self, conn: ConnId, blob: BlobId, chunk: Option<WireChunk>) {
        let Some(chunk) = chunk else { return self.relay.chunks_sent(conn, 1) };
        self.count_sent(conn, blob, chunk.left() as u64);
        self.outputs.push_back(Output::Chunk { conn, chunk });
    }

    fn blob_news(&mut self, news: News) {
        match news {
            News::Arrived { blob, .. } if self.datasets.knows(blob) => {
                self.dataset_event(DatasetEvent::Arrived { blob });
            }
            News::Failed { blob, text, .. } if self.datasets.knows(blob) => {
                self.dataset_event(DatasetEvent::Failed { blob, text });
            }
            News::Refused { blob, conn, reason, text, .. } if self.datasets.knows(blob) => {
                if let Some(worker) = self.peers.worker_at(conn) {
                    self.dataset_event(DatasetEvent::PartRefused { worker, blob, reason, text });
                }
            }
            News::Taken { blob, conn } => {
                let worker = self.peers.worker_at(conn);
                self.dataset_event(DatasetEvent::PartTaken { conn, worker, blob });
            }
            News::Got { owner, conn, .. } => self.part_got(conn, owner),
            News::Arrived { blob, owner } if self.blobs.inputs(owner).contains(&blob) => {
                self.input_arrived(owner)
            }
            // A part of a result, whose acknowledgement follows; or what was gathered from a large
            // frame.
            News::Arrived { .. } => self.large_frames_on(),
            News::Failed { blob, owner, reason, text } => {
                self.blob_failed(blob, owner, reason, text)
            }
            News::Refused { blob, job, conn, reason, text } => {
                let is_input = self.blobs.inputs(self.owner_of_inputs(job)).contains(&blob);
                let Some(worker) = self.peers.worker_at(conn).filter(|_| is_input) else {
                    return;
                };
                if !self.broker.state().job(job).is_some_and(|job| job.is_with(worker)) {
                    // It was taken from the worker meanwhile, and how another fares is not for it
                    // to say.
                    return;
                }
                info!(%worker, %job, %reason, "a worker refused an input: {text}");
                let why = match reason {
                    Reason::DISK_FULL => AttemptEnd::DiskFull,
                    Reason::NO_DIRECTORY => AttemptEnd::NoDirectory,
                    Reason::BAD_DIGEST | Reason::INVALID => {
                        let text = format!("worker {worker} refused it: {text}");
                        return self.inputs_failed(job, reason, &text);
                    }
                    _ => AttemptEnd::InputsBad,
                };
                self.inputs_refused(job, why);
            }
            News::Stalled { blob, owner } => self.inputs_stalled(blob, owner),
        }
    }

    pub(super) fn input_arrived(&mut self, job: JobId) {
        let inputs = self.blobs.inputs(job).to_vec();
        if inputs.iter().all(|blob| self.relay.has_arrived(*blob)) {
            let kept = inputs.iter().all(|blob| self.relay.is_kept(*blob));
            if kept {
                inputs.iter().for_each(|blob| self.relay.keep(*blob));
            }
            self.broker.handle(self.now, Event::InputsHere { job, kept });
        }
    }

    /// Workers wait for an input without progress. A job for all workers had its inputs at the
    /// leader before any worker got it, so no sender is asked for them.
    fn inputs_stalled(&mut self, blob: BlobId, job: JobId) {
        let is_gathering = |job: &Job| matches!(job.phase, Phase::Gathering { .. });
        if self.broker.state().job(job).is_some_and(is_gathering) {
            if !self.relay.is_brought(blob) {
                self.inputs_failed(
                    job,
                    Reason::IO,
                    "the leader has lost it, and its client does not send it again",
                );
            }
            return;
        }
        self.inputs_refused(job, AttemptEnd::InputsStalled);
    }

    fn inputs_refused(&mut self, job: JobId, why: AttemptEnd) {
        if let Some(Phase::Leased { attempt, .. }) =
            self.broker.state().job(job).map(|job| &job.phase)
        {
            let attempt = *attempt;
            self.broker.handle(self.now, Event::InputsRefused { job, attempt, why });
        }
    }

    fn blob_failed(&mut self, blob: BlobId, owner: JobId, reason: Reason, text: String) {
        warn!(%blob, job = %owner, %reason, "a blob is unavailable: {text}");
        if !self.blobs.inputs(owner).contains(&blob) {
            self.blobs.take_coming(owner, |_, part| part == blob);
            self.relay.forget(blob);
            return self.large_frames_on();
        }
        self.inputs_failed(owner, reason, &text);
    }

    /// The inputs of a job can never be had: its client hears it, and the job ends.
    fn inputs_failed(&mut self, id: JobId, reason: Reason, text: &str) {
        // One whose announcement is not committed yet has its end all the same.
        if let Some(job) = self.broker.state().job(id).filter(|job| job.is_announced())
            && let Some(conn) = self.broker.submitter_of(id, &job.submission.client)
        {
            let text = format!("an input arrived damaged or incomplete: {text}");
            self.refuse(conn, id, RefusalText::new(reason, text));
        }
        let why: Arc<str> = format!("an input is unavailable ({reason}): {text}").into();
        self.broker.handle(self.now, Event::InputsFailed { job: id, why });
    }
}
