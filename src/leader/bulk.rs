//! Large frames of stock peers (W06, C01): a SubmitJob, AckJob or CachePut over 4 MiB is taken apart while it comes. Contents become
//! blobs, which heft peers get as transfers, those of a CachePut packs; what is left is a small request or result. It is never gathered.

use std::collections::BTreeMap;

use chunking::message::Purpose;
use chunking::{Head, Kind};
use tracing::{info, warn};
use uuid::Uuid;

use super::datasets::PackMaker;
use super::relay::{BlobId, Relay};
use super::submit::Gathered;
use super::{HangUp, Leader};
use crate::conn::{AckBody, BulkOf, SubmitBody, read_result};
use crate::core::ids::{ConnId, JobId, Micros, ResultId};
use crate::model::{
    BlobRef, ContentEvent, ContentStream, JobRequest, JobResult, JobStatus, JsonModel, Residue, Shape,
};
use crate::peer::{BUFFER_BYTES, PoolBuf};
use crate::transfer::blob_id;

/// Contents up to this size stay in the request.
const INLINE_BYTES_MAX: usize = 64 * 1024;

/// All contents that stay in a request together, so that it fits a frame in base64.
const INLINE_BYTES_SUM_MAX: usize = 2 * 1024 * 1024;

/// A large frame on its way in.
#[derive(Debug)]
pub(super) struct Bulk {
    of: BulkOf,
    stream: ContentStream,
    contents: BTreeMap<usize, Content>,
    /// Takes the contents of a CachePut.
    maker: Option<PackMaker>,
    inline_bytes: usize,
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

/// One content of it.
#[derive(Debug, Default)]
struct Content {
    inline: Vec<u8>,
    blob: Option<BlobId>,
    chunks: u32,
    buffer: Option<(PoolBuf, usize)>,
    len: u64,
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
        let stream = ContentStream::new(shape);
        let (contents, inline_bytes, bytes) = (BTreeMap::new(), 0, head.payload_len.into());
        let is_put = matches!(of, BulkOf::CachePut { .. });
        let maker = is_put.then(|| PackMaker::new((self.make_id)()));
        self.bulks.insert(conn, Bulk { of, stream, contents, maker, inline_bytes, bytes, fault });
        Ok(())
    }

    /// Whether the next piece can be taken; until then the peer has to wait.
    pub fn takes_more_bulk(&self, conn: ConnId) -> bool {
        self.bulks.get(&conn).is_none_or(|bulk| bulk.fault.is_some()) || self.relay.takes_more()
    }

    /// There was no room for the rest for too long: it passes by, and the peer hears why.
    pub fn give_bulk_up(&mut self, now: Micros, conn: ConnId) {
        self.pass_time(now);
        if let Some(bulk) = self.bulks.get_mut(&conn) {
            bulk.fault = Some("the leader's spool had no room for it (--spool-max)".to_owned());
            bulk.forget(&mut self.relay);
        }
        self.act();
    }

    /// A piece of it.
    pub fn bulk_piece(&mut self, now: Micros, conn: ConnId, piece: &[u8]) {
        self.pass_time(now);
        let Some(bulk) = self.bulks.get_mut(&conn).filter(|bulk| bulk.fault.is_none()) else { return };
        let Bulk { stream, contents, maker, inline_bytes, fault, .. } = bulk;
        let (relay, make_id) = (&mut self.relay, &mut self.make_id);
        let mut short = false;
        let pushed = stream.push(piece, &mut |event| match (event, maker.as_mut()) {
            (ContentEvent::Begin { slot }, Some(maker)) => maker.begin(slot),
            (ContentEvent::Bytes { bytes, .. }, Some(maker)) => maker.bytes(bytes, relay, make_id),
            (ContentEvent::End { .. }, Some(maker)) => maker.end(),
            (ContentEvent::Begin { slot }, None) => {
                if let Some(void) = contents.insert(slot, Content::default()) {
                    void.forget(relay);
                }
            }
            (ContentEvent::Bytes { slot, bytes }, None) => {
                let content = contents.entry(slot).or_default();
                short |= content.take(bytes, relay, inline_bytes, make_id).is_none();
            }
            (ContentEvent::End { slot, .. }, None) => {
                if let Some(content) = contents.get_mut(&slot) {
                    content.end_chunk(relay);
                }
            }
        });
        *fault = match pushed {
            Err(error) => Some(error.to_string()),
            Ok(()) if short => Some("the leader has no buffer left".to_owned()),
            Ok(()) => None,
        };
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
            match content.into_ref(&mut self.relay, JobId(job), Purpose::Input, &file.name) {
                Part::Inline(bytes) => {
                    twin.content = Some(bytes.clone());
                    file.content = Some(bytes);
                }
                Part::Blob(blob) => {
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
        self.refuse(conn, job, super::submit::RefusalText::invalid(text));
    }

    fn ack_bulk(
        &mut self,
        conn: ConnId,
        job: JobId,
        residue: Result<Residue, String>,
        mut contents: BTreeMap<usize, Content>,
        bytes: u64,
    ) {
        let archive = contents.remove(&0);
        contents.into_values().for_each(|content| content.forget(&mut self.relay));
        let read = residue.and_then(|residue| {
            let result = JobResult::parse(&residue.json).map_err(|error| error.to_string())?;
            Ok((result, residue.len_of(0).is_some()))
        });
        let result = match (read, archive) {
            (Ok((mut result, true)), Some(archive)) => {
                match archive.into_ref(&mut self.relay, job, Purpose::Archive, "") {
                    Part::Inline(bytes) => result.output_archive = Some(bytes),
                    Part::Blob(blob) => {
                        result.output_archive = None;
                        self.gathered_part(job, blob.id);
                        result.archive = Some(blob);
                    }
                }
                result
            }
            (Ok((result, _)), archive) => {
                archive.into_iter().for_each(|archive| archive.forget(&mut self.relay));
                result
            }
            (Err(why), archive) => {
                archive.into_iter().for_each(|archive| archive.forget(&mut self.relay));
                warn!(%job, bytes, "the result of a stock worker cannot be read: {why}");
                let mut failed = JobResult::new(job.0, "", "", JobStatus::Failed);
                failed.stderr = format!(
                    "heft: the worker's result came in a frame of {bytes} bytes, which cannot be taken: {why}"
                );
                failed
            }
        };
        let payload = result.to_json();
        let (says, named, parts) = read_result(&payload);
        let body = AckBody { job, named, says, parts: parts.clone(), payload: payload.into() };
        self.when_certain(parts, Apart::Ack { conn, body });
    }
}

impl Leader {
    /// A result with its inline archive as a blob, which is kept like the result. `None` if it has none.
    pub(super) fn archive_apart(&mut self, job: JobId, result: ResultId, whole: &[u8]) -> Option<Vec<u8>> {
        let mut parsed = JobResult::parse(whole).ok()?;
        let archive = parsed.output_archive.take()?;
        let id = blob_id(job.0, 0, Purpose::Archive, 0);
        if !self.relay.knows(id) {
            let mut content = Content { blob: Some(id), len: archive.len() as u64, ..Content::default() };
            if content.fill(&mut archive.as_slice(), &mut self.relay).is_none() {
                content.forget(&mut self.relay);
                return None;
            }
            content.into_ref(&mut self.relay, job, Purpose::Archive, "");
            self.keep_parts(job, result, vec![id]);
        }
        parsed.archive = Some(BlobRef { id, size: archive.len() as u64, digest: self.relay.digest(id) });
        Some(parsed.to_json())
    }
}

/// What became of a content.
enum Part {
    Inline(Vec<u8>),
    Blob(BlobRef),
}

impl Content {
    /// Takes the next bytes; `None` if there is no buffer for them.
    fn take(
        &mut self,
        mut bytes: &[u8],
        relay: &mut Relay,
        inline_sum: &mut usize,
        make_id: &mut dyn FnMut() -> Uuid,
    ) -> Option<()> {
        self.len += bytes.len() as u64;
        let fits = self.inline.len() + bytes.len() <= INLINE_BYTES_MAX;
        if self.blob.is_none() && fits && *inline_sum + bytes.len() <= INLINE_BYTES_SUM_MAX {
            *inline_sum += bytes.len();
            self.inline.extend_from_slice(bytes);
            return Some(());
        }
        if self.blob.is_none() {
            self.blob = Some(make_id());
            let begun = std::mem::take(&mut self.inline);
            *inline_sum -= begun.len();
            self.fill(&mut begun.as_slice(), relay)?;
        }
        self.fill(&mut bytes, relay)
    }

    fn fill(&mut self, bytes: &mut &[u8], relay: &mut Relay) -> Option<()> {
        while !bytes.is_empty() {
            if self.buffer.is_none() {
                self.buffer = Some((relay.buffer()?, 0));
            }
            let (buffer, filled) = self.buffer.as_mut()?;
            let part = buffer.copy_in(*filled, bytes);
            *filled += part;
            *bytes = bytes.get(part..)?;
            if *filled == BUFFER_BYTES {
                self.end_chunk(relay);
            }
        }
        Some(())
    }

    fn end_chunk(&mut self, relay: &mut Relay) {
        if let (Some(blob), Some((buffer, filled))) = (self.blob, self.buffer.take()) {
            // What it is for is said at its end.
            relay.gather(blob, Purpose::Input, self.chunks, buffer.freeze(filled));
            self.chunks += 1;
        }
    }

    fn forget(self, relay: &mut Relay) {
        if let Some(blob) = self.blob {
            relay.forget(blob);
        }
    }

    fn into_ref(mut self, relay: &mut Relay, owner: JobId, purpose: Purpose, name: &str) -> Part {
        self.end_chunk(relay);
        let Some(id) = self.blob else { return Part::Inline(self.inline) };
        let digest = relay.gathered(id, owner, purpose, name, self.len).ok().flatten();
        Part::Blob(BlobRef { id, size: self.len, digest })
    }
}
