//! Connects classic peers to the rest of the leader: forwards the contents of their large frames
//! and their puts, and stages job inputs as datasets for their agents.

use std::collections::BTreeMap;

use bytes::Bytes;
use chunking::dataset::Piece;
use chunking::{Head, Kind};
use tracing::{info, warn};
use uuid::Uuid;

use super::datasets::{Checked, DatasetEvent, ReceivedPut};
use super::large_frames::Apart;
use super::pack_writer::{PIECE_BYTES, PackWriter};
use super::refusal_text::RefusalText;
use super::request::job_id;
use super::staging::{NotStaged, Step, files_to_stage};
use super::tasks::{Task, Turn};
use super::{HangUp, Leader, Output};
use crate::conn::{SessionError, SubmitBody};
use crate::core::Event;
use crate::core::ids::{Attempt, CacheId, ConnId, JobId, Micros};
use crate::core::job::{Job, Phase};
use crate::model::{CachePutRequest, CachePutResult, JobRequest, JsonModel};
use crate::store::blobs::Class;
use crate::units::ByteSize;

impl Leader {
    // --- large frames

    /// A frame begins that is too large to be gathered.
    pub fn bulk_starts(
        &mut self,
        now: Micros,
        conn: ConnId,
        head: &Head<'_>,
    ) -> Result<(), HangUp> {
        self.pass_time(now);
        let Some(session) = self.peers.get_mut(conn) else {
            let first = head.kind().map_or("unknown", Kind::name);
            return Err(SessionError::NoHello(first.to_owned()).into());
        };
        let of = session.bulk(head)?;
        info!(peer = %session.name(), kind = head.kind().map_or("unknown", Kind::name), bytes = head.payload_len,
            "a large frame of a classic peer comes as a stream");
        self.large_frames.begin(conn, of, head.payload_len.into(), &self.relay, &mut *self.make_id);
        Ok(())
    }

    /// Whether the next piece can be taken; until then the peer has to wait.
    pub fn takes_more_bulk(&self, conn: ConnId) -> bool {
        self.large_frames.takes_more(conn, &self.relay)
    }

    /// There was no room for the rest for too long: it passes by, and the peer hears why.
    pub fn give_bulk_up(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        self.large_frames.give_up(conn, &mut self.relay);
        self.act();
    }

    /// A piece of it.
    pub fn bulk_piece(&mut self, now: Micros, conn: ConnId, piece: &[u8]) {
        self.pass_time(now);
        self.large_frames.piece(conn, piece, &mut self.relay, &mut *self.make_id);
        self.act();
    }

    /// That was all of it.
    pub fn bulk_ends(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        self.large_frames.end(conn, &mut self.relay, &mut *self.make_id);
        self.large_frames_on();
        self.act();
    }

    /// A job came whole, and no assignment takes it with its contents: they become blobs.
    pub(super) fn submit_apart(&mut self, conn: ConnId, body: SubmitBody) {
        if let Some((job, refusal)) = self.no_room_to_take_apart(&body) {
            return self.refuse(conn, job, refusal);
        }
        self.large_frames.whole(conn, body, &mut self.relay, &mut *self.make_id);
        self.large_frames_on();
    }

    /// Why the contents of a job that came whole find no room, if so. One that is known keeps what
    /// it has.
    fn no_room_to_take_apart(&mut self, body: &SubmitBody) -> Option<(JobId, RefusalText)> {
        // Contents are base64, three bytes in four characters.
        let bytes = body.payload.len() as u64 / 4 * 3;
        let (reason, why) = self.relay.why_not_now(Class::Upload, bytes)?;
        let named = JobRequest::parse(&body.payload).ok().map(|request| request.job_id);
        let job = job_id(named, body.msg_id, &mut *self.make_id);
        if self.broker.state().job(job).is_some() {
            return None;
        }
        // It may have changed since.
        self.relay.measure();
        let text = format!("{why}; submit the job again when there is room");
        Some((job, RefusalText::numbers(reason, bytes, 0, text)))
    }

    /// Goes on with those large frames whose contents are here for good.
    pub(super) fn large_frames_on(&mut self) {
        while let Some((conn, apart)) = self.large_frames.poll(&mut self.relay) {
            match apart {
                Apart::Submit { body, gathered } => self.submit_with(conn, body, Some(gathered)),
                Apart::Parts { job, parts } => {
                    parts.into_iter().for_each(|part| self.blobs.comes(job, Attempt(0), part));
                }
                Apart::Ack(body) => self.ack(conn, body),
                Apart::CachePut { request, subject, put, maker } => {
                    self.cache_put(conn, request, &subject, put, Some(*maker));
                }
                Apart::Refused { job, text } => self.refuse(conn, job, RefusalText::invalid(text)),
            }
        }
    }

    // --- puts (T06): their contents become packs; what becomes of those is the datasets' matter

    /// A classic client puts a dataset, in a small frame.
    pub(super) fn classic_put(
        &mut self,
        conn: ConnId,
        request: Uuid,
        subject: &str,
        payload: &Bytes,
    ) {
        let put = CachePutRequest::parse(payload).map_err(|error| error.to_string());
        self.cache_put(conn, request, subject, put, None);
    }

    /// A put has come, with its contents, or with packs of them.
    fn cache_put(
        &mut self,
        conn: ConnId,
        request: Uuid,
        subject: &str,
        put: Result<CachePutRequest, String>,
        mut packed: Option<PackWriter>,
    ) {
        let cache = put.as_ref().map(|put| put.cache_id.clone()).unwrap_or_default();
        let taken = put.and_then(|put| {
            let checked = self.datasets.check_classic(&self.facts(), &put, subject)?;
            let maker = match packed.take() {
                Some(maker) => maker,
                None => self.pack(&put)?,
            };
            self.classic_came(conn, request, checked, &put, maker)
        });
        if let Err(why) = taken {
            packed.into_iter().for_each(|maker| maker.forget(&mut self.relay));
            // A classic client must not wait for ever.
            info!(peer = %self.name(conn), cache, "a classic client's put failed: {why}");
            self.cache_ack(conn, request, CachePutResult::failed(&cache, &why));
        }
    }

    /// Packs the contents of a small put, but for pieces that are here already.
    fn pack(&mut self, put: &CachePutRequest) -> Result<PackWriter, String> {
        let bytes: u64 = put.entries.iter().map(|entry| entry.content.len() as u64).sum();
        let (held, room) = (self.relay.fill().bytes, self.config.relay.spool_bytes_max);
        if held.saturating_add(bytes) > room {
            return Err(format!(
                "the dataset has {}, and the leader holds {} of at most {} (--spool-max): remove \
                 datasets, or raise the limit",
                ByteSize(bytes),
                ByteSize(held),
                ByteSize(room)
            ));
        }
        let mut maker = PackWriter::new((self.make_id)());
        for (slot, entry) in put.entries.iter().enumerate() {
            maker.begin(slot);
            for bytes in entry.content.chunks(PIECE_BYTES) {
                let piece = Piece::of(bytes);
                if self.datasets.has_piece(&piece) {
                    maker.known(piece, bytes);
                } else {
                    maker.bytes(bytes, &mut self.relay, &mut *self.make_id);
                }
            }
            maker.end();
        }
        Ok(maker)
    }

    /// All contents of a put are here, in packs.
    fn classic_came(
        &mut self,
        conn: ConnId,
        request: Uuid,
        Checked { cache, target, names }: Checked,
        put: &CachePutRequest,
        maker: PackWriter,
    ) -> Result<(), String> {
        let key = maker.owner();
        let (mut made, packs) = maker.finish(&mut self.relay)?;
        let mut files = BTreeMap::new();
        let mut wrong = None;
        for (slot, (entry, name)) in put.entries.iter().zip(names).enumerate() {
            let Some(made) = made.remove(&slot) else {
                wrong.get_or_insert_with(|| format!("\"{}\" has no content", entry.name));
                continue;
            };
            if entry.sha256.is_some_and(|sha256| sha256 != made.sha256) {
                wrong.get_or_insert_with(|| {
                    format!(
                        "\"{}\" does not hash to the SHA-256 that came with it: put it again",
                        entry.name
                    )
                });
            }
            files.entry(name).or_insert(made);
        }
        if let Some(wrong) = wrong {
            packs.iter().for_each(|(pack, _)| self.relay.forget(*pack));
            return Err(wrong);
        }
        self.packs_are_here(&packs).map_err(|why| format!("{why}: put it again"))?;
        let came = ReceivedPut {
            conn,
            request,
            key,
            version: (self.make_id)(),
            cache,
            target,
            files,
            entries: put.entries.len() as u64,
            packs: packs.iter().map(|(pack, _)| *pack).collect(),
        };
        self.dataset_event(DatasetEvent::ClassicCame { came, packs });
        Ok(())
    }

    // --- inputs that become datasets

    /// A dataset is to be made of a job's inputs.
    pub(super) fn stage_inputs(&mut self, job: JobId) {
        self.when_here(Turn { task: Task::Stage { job }, bytes: 0 });
        self.payloads_on();
    }

    /// Makes a dataset of a job's inputs; its payload is here.
    pub(super) fn stage(&mut self, job: JobId) {
        let (input, known) = (self.payloads.held.input(job), self.broker.state().job(job));
        let files = input.zip(known).ok_or_else(|| "the request cannot be read".to_owned());
        let files =
            files.and_then(|(input, known)| files_to_stage(known, &input.payload, &self.relay));
        match files {
            Ok(files) => self.stagings.add(job, files, (self.make_id)()),
            Err(why) => self.not_staged(NotStaged { job, why, again: false }),
        }
    }

    /// Goes on with the first of the jobs whose inputs become datasets; says whether it did
    /// anything that others may have to hear of.
    pub(super) fn stage_on(&mut self) -> bool {
        if self.broker.is_draining() {
            self.stagings.pause();
            return false;
        }
        let state = self.broker.state();
        let is_first = state.staged_datasets().next().is_none();
        let is_wanted = |job| state.job(job).is_some_and(waits_for_dataset);
        let (relay, make_id) = (&mut self.relay, &mut *self.make_id);
        let step = self.stagings.go_on(self.now, is_wanted, is_first, relay, make_id);
        self.staged(step)
    }

    fn staged(&mut self, step: Step) -> bool {
        match step {
            Step::Idle => return false,
            Step::Went => {}
            Step::Packed => {
                self.relay_on();
                return false;
            }
            Step::Read(operation) => self.outputs.push_back(Output::Disk(operation)),
            Step::Made { inputs, packs } => match self.packs_are_here(&packs) {
                Ok(()) => self.dataset_event(DatasetEvent::Staged { inputs, packs }),
                Err(why) => self.not_staged(NotStaged { job: inputs.job, why, again: true }),
            },
            Step::Failed(why) => self.not_staged(why),
        }
        true
    }

    /// A chunk of an input was read from the disk.
    pub(super) fn input_read(&mut self, key: Uuid, found: Result<Vec<u8>, String>) {
        let step = self.stagings.was_read(key, found, &mut self.relay, &mut *self.make_id);
        self.staged(step);
    }

    /// There is no dataset of a job's inputs: its client hears why.
    pub(super) fn not_staged(&mut self, NotStaged { job, why, again }: NotStaged) {
        if self.broker.state().job(job).is_some_and(waits_for_dataset) {
            warn!(%job, again, "cannot stage a job's inputs for a classic worker: {why}");
        }
        self.broker.handle(self.now, Event::NotStaged { job, why: why.into(), again });
    }

    /// A job has ended: its staging stops.
    pub(super) fn forget_staging(&mut self, job: JobId) {
        self.stagings.forget(job, &mut self.relay);
        self.dataset_event(DatasetEvent::StagingOver { job });
    }

    /// A job went to a worker. One that takes its inputs as they are needs no dataset of them.
    pub(super) fn unstage_for(&mut self, conn: ConnId, job: JobId) {
        let is_staged = self.broker.state().job(job).is_some_and(Job::is_staged);
        if is_staged && self.takes_transfers(conn) {
            self.broker.handle(self.now, Event::RemoveDataset { cache: CacheId::of_inputs(job) });
        }
    }
}

/// Whether a job still waits for a dataset of its inputs.
fn waits_for_dataset(job: &Job) -> bool {
    matches!(job.phase, Phase::Queued { .. }) && job.needs_transfers()
}
