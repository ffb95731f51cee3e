//! Large frames of stock peers (W06, C01): a SubmitJob, AckJob or CachePut over 4 MiB is taken apart while it comes. Contents become
//! blobs, which heft peers get as transfers, those of a CachePut packs; what is left is a small request or result. It is never gathered.
//! What a program printed is a content too: a long one becomes a blob, of which the result has the beginning.

mod content;

use std::collections::BTreeMap;

use chunking::message::Purpose;
use chunking::{Head, Kind};
use tracing::{info, warn};

use super::pack_maker::PackMaker;
use super::parts::{self, RESULT_BYTES_MAX, purpose_of};
use super::relay::{BlobId, Relay};
use super::submit::{Gathered, RefusalText};
use super::{HangUp, Leader};
use crate::conn::{AckBody, BulkOf, SubmitBody, read_result};
use crate::core::ids::{ConnId, JobId, Micros};
use crate::model::blob_id;
use crate::model::{
    BlobRef, ContentEvent, ContentStream, JobRequest, JobResult, JobStatus, JsonModel, Residue, ResultSlot,
    Shape,
};
use crate::store::blobs::Class;
pub(super) use content::gather_chunks;
use content::{Content, Held, Part, Sort};

/// A large frame on its way in.
#[derive(Debug)]
pub(super) struct Bulk {
    of: BulkOf,
    stream: ContentStream,
    contents: BTreeMap<usize, Content>,
    /// Takes the contents of a CachePut.
    maker: Option<PackMaker>,
    held: Held,
    bytes: u64,
    fault: Option<String>,
}

impl Bulk {
    /// What came of it is not wanted any more.
    fn forget(&mut self, relay: &mut Relay) {
        std::mem::take(&mut self.contents).into_values().for_each(|content| content.forget(relay));
        self.maker.take().into_iter().for_each(|maker| maker.forget(relay));
    }
}

/// What is left of a large frame that was taken apart.
#[derive(Debug)]
pub(super) enum Apart {
    /// A job.
    Submit {
        /// Whose.
        conn: ConnId,
        /// The frame, with references in the place of contents.
        body: SubmitBody,
        /// Its contents.
        gathered: Gathered,
    },
    /// A result.
    Ack {
        /// Whose.
        conn: ConnId,
        /// The frame, with references in the place of contents.
        body: AckBody,
    },
}

impl Leader {
    /// A frame begins that is too large to be gathered.
    pub fn bulk_starts(&mut self, now: Micros, conn: ConnId, head: &Head<'_>) -> Result<(), HangUp> {
        self.pass_time(now);
        let Some(session) = self.sessions.get_mut(&conn) else { return Ok(()) };
        let of = session.bulk(head)?;
        info!(peer = %session.name(), kind = head.kind().map_or("unknown", Kind::name), bytes = head.payload_len,
            "a large frame of a stock peer comes as a stream");
        let shape = match &of {
            BulkOf::Submit { .. } => Shape::JobRequest,
            BulkOf::Ack { .. } => Shape::JobResult,
            BulkOf::CachePut { .. } | BulkOf::Nothing => Shape::CachePutRequest,
        };
        let fault = matches!(of, BulkOf::Nothing)
            .then(|| "it is not for a leader, or not from such a peer".to_owned());
        // Contents are base64, three bytes in four characters.
        let (needed, room) = (u64::from(head.payload_len) / 4 * 3, self.config.relay.spool_bytes_max);
        let fault = fault.or_else(|| {
            (needed > room).then(|| {
                format!("its contents have about {needed} bytes, and the leader's spool takes {room} (--spool-max)")
            })
        });
        let disk = self.relay.disk_bytes_max(class_of(&of)).filter(|room| needed > *room);
        let fault = fault.or_else(|| {
            disk.map(|room| {
                format!(
                    "its contents have about {needed} bytes, and the leader's disk has room for {room} at the most: give the leader \
                     a larger one (--data)"
                )
            })
        });
        let stream = ContentStream::new(shape);
        let (contents, held, bytes) = (BTreeMap::new(), Held::default(), head.payload_len.into());
        let is_put = matches!(of, BulkOf::CachePut { .. });
        let maker = is_put.then(|| PackMaker::new((self.make_id)()));
        self.bulks.insert(conn, Bulk { of, stream, contents, maker, held, bytes, fault });
        Ok(())
    }

    /// Whether the next piece can be taken; until then the peer has to wait.
    pub fn takes_more_bulk(&self, conn: ConnId) -> bool {
        let bulk = self.bulks.get(&conn).filter(|bulk| bulk.fault.is_none());
        bulk.is_none_or(|bulk| self.relay.takes_more(class_of(&bulk.of)))
    }

    /// There was no room for the rest for too long: it passes by, and the peer hears why.
    pub fn give_bulk_up(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        if let Some(bulk) = self.bulks.get_mut(&conn) {
            bulk.fault = Some("the leader had no room for it (--spool-max, --disk-reserve)".to_owned());
            bulk.forget(&mut self.relay);
        }
        self.act();
    }

    /// A piece of it.
    pub fn bulk_piece(&mut self, now: Micros, conn: ConnId, piece: &[u8]) {
        self.pass_time(now);
        let Some(bulk) = self.bulks.get_mut(&conn).filter(|bulk| bulk.fault.is_none()) else { return };
        let Bulk { of, stream, contents, maker, held, fault, .. } = bulk;
        let (relay, make_id) = (&mut self.relay, &mut self.make_id);
        let pushed = stream.push(piece, &mut |event| match (event, maker.as_mut()) {
            (ContentEvent::Begin { slot }, Some(maker)) => maker.begin(slot),
            (ContentEvent::Bytes { bytes, .. }, Some(maker)) => maker.bytes(bytes, relay, make_id),
            (ContentEvent::End { .. }, Some(maker)) => maker.end(),
            (ContentEvent::Begin { slot }, None) => {
                if let Some(void) = contents.insert(slot, Content::new(sort_of(of, slot))) {
                    void.void(relay, held);
                }
            }
            (ContentEvent::Bytes { slot, bytes }, None) => {
                let content = contents.entry(slot).or_insert_with(|| Content::new(sort_of(of, slot)));
                content.take(bytes, relay, held, make_id);
            }
            (ContentEvent::End { slot, .. }, None) => {
                if let Some(content) = contents.get_mut(&slot) {
                    content.end_chunk(relay);
                }
            }
        });
        *fault = pushed.err().map(|error| error.to_string());
        self.act();
    }

    /// That was all of it.
    pub fn bulk_ends(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        let Some(bulk) = self.bulks.remove(&conn) else { return };
        let Bulk { of, stream, contents, maker, bytes, fault, .. } = bulk;
        let residue = match fault {
            Some(fault) => Err(fault),
            None => stream.finish().map_err(|error| error.to_string()),
        };
        match of {
            BulkOf::Submit { body } => self.submit_bulk(conn, body, residue, contents, bytes),
            BulkOf::Ack { job } => self.ack_bulk(conn, job, residue, contents, bytes),
            BulkOf::CachePut { request, subject } => {
                let maker = maker.unwrap_or_else(|| PackMaker::new((self.make_id)()));
                self.classic_bulk(conn, (request, &subject), residue, maker, bytes);
            }
            BulkOf::Nothing => contents.into_values().for_each(|content| content.forget(&mut self.relay)),
        }
        self.act();
    }

    /// The connection broke in the middle of it.
    pub(super) fn bulk_broke(&mut self, conn: ConnId) {
        if let Some(mut bulk) = self.bulks.remove(&conn) {
            bulk.forget(&mut self.relay);
        }
    }

    /// A job came whole, and no assignment takes it with its contents: they become blobs.
    pub(super) fn submit_apart(&mut self, conn: ConnId, mut body: SubmitBody) {
        if let Some((job, refusal)) = self.no_room_to_take_apart(&body) {
            return self.refuse(conn, job, refusal);
        }
        let payload = std::mem::replace(&mut body.payload, Vec::new().into());
        let bulk = Bulk {
            of: BulkOf::Submit { body },
            stream: ContentStream::new(Shape::JobRequest),
            contents: BTreeMap::new(),
            maker: None,
            held: Held::default(),
            bytes: payload.len() as u64,
            fault: None,
        };
        self.bulks.insert(conn, bulk);
        self.bulk_piece(self.now, conn, &payload);
        self.bulk_ends(self.now, conn);
    }

    /// Why the contents of a job that came whole find no room, if so. One that is known keeps what
    /// it has.
    fn no_room_to_take_apart(&mut self, body: &SubmitBody) -> Option<(JobId, RefusalText)> {
        // Contents are base64, three bytes in four characters.
        let bytes = body.payload.len() as u64 / 4 * 3;
        let (reason, why) = self.relay.why_not_now(Class::Upload, bytes)?;
        let id = JobRequest::parse(&body.payload).map(|request| request.job_id).unwrap_or_default();
        let id = [id, body.msg_id].into_iter().find(|id| !id.is_nil());
        let job = JobId(id.unwrap_or_else(|| (self.make_id)()));
        if self.broker.state().job(job).is_some() {
            return None;
        }
        // It may have changed since.
        self.relay.measure();
        let text = format!("{why}; submit the job again when there is room");
        Some((job, RefusalText::numbers(reason, bytes, 0, text)))
    }

    fn submit_bulk(
        &mut self,
        conn: ConnId,
        mut body: SubmitBody,
        residue: Result<Residue, String>,
        mut contents: BTreeMap<usize, Content>,
        bytes: u64,
    ) {
        let read = residue.and_then(|residue| {
            let request = JobRequest::parse(&residue.json).map_err(|error| error.to_string())?;
            Ok((request, residue))
        });
        let (mut request, residue) = match read {
            Ok(read) => read,
            Err(why) => {
                contents.into_values().for_each(|content| content.forget(&mut self.relay));
                let id = if body.msg_id.is_nil() { (self.make_id)() } else { body.msg_id };
                return self.refuse_bulk(conn, JobId(id), bytes, &why);
            }
        };
        let job = match (request.job_id.is_nil(), body.msg_id.is_nil()) {
            (false, _) => request.job_id,
            (true, false) => body.msg_id,
            (true, true) => (self.make_id)(),
        };
        // The same frame again has other blobs, under ids of its own; what tells a repetition are derived ones.
        let (mut blobs, mut derived) = (Vec::new(), request.clone());
        for (slot, (file, twin)) in request.files.iter_mut().zip(&mut derived.files).enumerate() {
            let Some(content) = contents.remove(&slot) else { continue };
            if residue.len_of(slot).is_none() {
                content.forget(&mut self.relay);
                continue;
            }
            match content.into_ref(&mut self.relay, JobId(job), &file.name) {
                Part::Inline(bytes) => {
                    twin.content = Some(bytes.clone());
                    file.content = Some(bytes);
                }
                Part::Blob { blob, .. } => {
                    let index = u32::try_from(slot).unwrap_or(u32::MAX);
                    let id = blob_id(job, 0, Purpose::Input, index);
                    twin.content = None;
                    twin.blob = Some(BlobRef { id, ..blob.clone() });
                    blobs.push(blob.id);
                    // The content came with the request, so it is what counts (CA12).
                    (file.cache_id, twin.cache_id) = (None, None);
                    file.content = None;
                    file.blob = Some(blob);
                }
            }
        }
        contents.into_values().for_each(|content| content.forget(&mut self.relay));
        request.job_id = job;
        derived.job_id = job;
        body.payload = request.to_json().into();
        let fingerprint = chunking::digest::blake3(&derived.to_json());
        let gathered = Gathered { blobs: blobs.clone(), fingerprint };
        self.when_certain(blobs, Apart::Submit { conn, body, gathered });
    }

    /// Goes on with a large frame once its contents are here for good: where they have to outlive the leader, on the disk.
    fn when_certain(&mut self, blobs: Vec<BlobId>, apart: Apart) {
        self.gathered.push((blobs, apart));
        self.gathered_on();
    }

    /// Goes on with those large frames whose contents are.
    pub(super) fn gathered_on(&mut self) {
        let relay = &self.relay;
        let is_settled = |blob: &BlobId| relay.has_arrived(*blob) || !relay.knows(*blob);
        let settled: Vec<_> =
            self.gathered.extract_if(.., |(blobs, _)| blobs.iter().all(is_settled)).collect();
        for (blobs, apart) in settled {
            let is_here = blobs.iter().all(|blob| self.relay.knows(*blob));
            match apart {
                Apart::Submit { conn, body, gathered } if is_here => {
                    self.submit_with(conn, body, Some(gathered));
                }
                Apart::Submit { conn, body, gathered } => {
                    gathered.blobs.iter().for_each(|blob| self.relay.forget(*blob));
                    let why = "the leader's disk did not keep its contents: submit it again";
                    self.refuse_bulk(conn, JobId(body.msg_id), body.payload.len() as u64, why);
                }
                Apart::Ack { conn, body } => self.ack(conn, body),
            }
        }
    }

    fn refuse_bulk(&mut self, conn: ConnId, job: JobId, bytes: u64, why: &str) {
        let text = format!("the job came in a frame of {bytes} bytes, which cannot be taken: {why}");
        self.refuse(conn, job, RefusalText::invalid(text));
    }

    fn ack_bulk(
        &mut self,
        conn: ConnId,
        job: JobId,
        residue: Result<Residue, String>,
        mut contents: BTreeMap<usize, Content>,
        bytes: u64,
    ) {
        let read = residue.and_then(|residue| {
            let result = JobResult::parse(&residue.json).map_err(|error| error.to_string())?;
            Ok((result, residue))
        });
        let result = match read {
            Ok((mut result, residue)) => {
                for slot in ResultSlot::ALL {
                    let counts = residue.len_of(slot.slot()).is_some();
                    if let Some(content) = contents.remove(&slot.slot()).filter(|_| counts) {
                        self.put_part(job, &mut result, slot, content);
                    }
                }
                self.fit_texts(job, &mut result);
                // Its worker may know the job by another.
                result.job_id = job.0;
                result
            }
            Err(why) => {
                warn!(%job, bytes, "the result of a stock worker cannot be read: {why}");
                let mut failed = JobResult::new(job.0, "", "", JobStatus::Failed);
                failed.stderr = format!(
                    "heft: the worker's result came in a frame of {bytes} bytes, which cannot be taken: {why}"
                );
                failed
            }
        };
        // What does not count, or cannot be read, is nobody's.
        contents.into_values().for_each(|content| content.forget(&mut self.relay));
        let payload = result.to_json();
        let (says, named, parts) = read_result(&payload);
        let body = AckBody { job, named, says, parts: parts.clone(), payload: payload.into() };
        self.when_certain(parts, Apart::Ack { conn, body });
    }

    /// Puts a content in its place in the result: as it is, or as a blob.
    fn put_part(&mut self, job: JobId, result: &mut JobResult, slot: ResultSlot, content: Content) {
        match content.into_ref(&mut self.relay, job, "") {
            Part::Inline(bytes) => match slot {
                ResultSlot::Archive => result.output_archive = Some(bytes),
                ResultSlot::Stdout => result.stdout = text_of(bytes),
                ResultSlot::Stderr => result.stderr = text_of(bytes),
            },
            Part::Blob { blob, head } => {
                self.gathered_part(job, blob.id);
                match slot {
                    ResultSlot::Archive => (result.output_archive, result.archive) = (None, Some(blob)),
                    ResultSlot::Stdout => (result.stdout, result.stdout_blob) = (head, Some(blob)),
                    ResultSlot::Stderr => (result.stderr, result.stderr_blob) = (head, Some(blob)),
                }
            }
        }
    }

    /// Makes blobs of texts until the result fits a frame, whoever gets it.
    fn fit_texts(&mut self, job: JobId, result: &mut JobResult) {
        while result.to_json().len() > RESULT_BYTES_MAX {
            let slot = match result.stdout.len() >= result.stderr.len() {
                true => ResultSlot::Stdout,
                false => ResultSlot::Stderr,
            };
            let id = (self.make_id)();
            if !parts::take_text(&mut self.relay, job, result, slot, id) {
                break;
            }
            self.gathered_part(job, id);
        }
    }
}

/// What the contents of a large frame are, and what they are for.
fn sort_of(of: &BulkOf, slot: usize) -> (Sort, Purpose) {
    match of {
        BulkOf::Ack { .. } => match ResultSlot::ALL.into_iter().find(|of| of.slot() == slot) {
            Some(text @ (ResultSlot::Stdout | ResultSlot::Stderr)) => (Sort::Text, purpose_of(text)),
            Some(ResultSlot::Archive) | None => (Sort::File, Purpose::Archive),
        },
        BulkOf::Submit { .. } | BulkOf::CachePut { .. } | BulkOf::Nothing => (Sort::File, Purpose::Input),
    }
}

/// How much of the disk a large frame may fill.
fn class_of(of: &BulkOf) -> Class {
    match of {
        BulkOf::Ack { .. } => Class::Result,
        BulkOf::Submit { .. } | BulkOf::CachePut { .. } | BulkOf::Nothing => Class::Upload,
    }
}

/// What was printed as a text: what is no UTF-8 in it cannot stand in one.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}
