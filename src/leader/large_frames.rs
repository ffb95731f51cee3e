//! Takes large frames of classic peers apart as they arrive (W06, C01): a SubmitJob, AckJob or
//! CachePut over 4 MiB. File contents become blobs, which heft peers receive as transfers; contents
//! of a CachePut become packs; the rest is a small request or result. The frame is never held in
//! memory as a whole. Program output is a content too: long output becomes a blob, and the result
//! keeps its beginning.
//!
//! A state machine that sees neither sessions nor the broker. A frame begins, arrives in slices and
//! ends; [`LargeFrames::poll`] returns the remaining small message once its contents are stored.
//! The relay is passed to each call instead of being driven by actions: it has no I/O either, and
//! chunks waiting in actions would form a second queue in front of the relay's own.

mod content;

use std::collections::{BTreeMap, HashMap};

use chunking::message::Purpose;
use tracing::warn;
use uuid::Uuid;

use super::pack_writer::PackWriter;
use super::parts::{self, RESULT_BYTES_MAX, purpose_of};
use super::relay::{BlobId, Relay};
use super::request::{Gathered, job_id};
use crate::conn::{AckBody, BulkOf, SubmitBody, read_result};
use crate::core::ids::{ConnId, JobId};
use crate::model::{
    BlobRef, CachePutRequest, ContentEvent, ContentStream, JobRequest, JobResult, JobStatus,
    JsonModel, Residue, ResultSlot, Shape, blob_id,
};
use crate::store::blobs::Class;
pub(super) use content::gather_chunks;
use content::{Content, Held, Part, Sort};

/// Makes the ids of blobs.
type MakeId<'a> = &'a mut dyn FnMut() -> Uuid;

/// What is left of a large frame that was taken apart.
#[derive(Debug)]
pub(super) enum Apart {
    /// A job, with references in the place of contents.
    Submit { body: SubmitBody, gathered: Gathered },
    /// Parts of a result, which are the job's from now on. The result follows when they are here
    /// for good.
    Parts { job: JobId, parts: Vec<BlobId> },
    /// A result, with references in the place of contents.
    Ack(AckBody),
    /// A put whose contents are packs. An error says what is wrong with it.
    CachePut {
        request: Uuid,
        subject: String,
        put: Result<CachePutRequest, String>,
        maker: Box<PackWriter>,
    },
    /// A job that cannot be taken.
    Refused { job: JobId, text: String },
}

/// Large frames of all connections.
#[derive(Debug)]
pub(super) struct LargeFrames {
    spool_bytes_max: u64,
    coming: HashMap<ConnId, Coming>,
    /// Small payloads that remain of complete large frames, with the blobs they wait for.
    left: Vec<(ConnId, Vec<BlobId>, Apart)>,
}

impl LargeFrames {
    pub(super) fn new(spool_bytes_max: u64) -> Self {
        LargeFrames { spool_bytes_max, coming: HashMap::new(), left: Vec::new() }
    }

    /// A frame begins, with a payload of so many bytes.
    pub(super) fn begin(
        &mut self,
        conn: ConnId,
        of: BulkOf,
        bytes: u64,
        relay: &Relay,
        make_id: MakeId<'_>,
    ) {
        // Contents are base64, three bytes in four characters.
        let (needed, room) = (bytes / 4 * 3, self.spool_bytes_max);
        let disk = relay.disk_bytes_max(class_of(&of)).filter(|room| needed > *room);
        let fault = if of == BulkOf::Nothing {
            Some("it is not for a leader, or not from such a peer".to_owned())
        } else if needed > room {
            Some(format!(
                "its contents have about {needed} bytes; the leader's spool holds at most {room} \
                 (--spool-max)"
            ))
        } else {
            disk.map(|room| {
                format!(
                    "its contents have about {needed} bytes; the leader's disk has room for at \
                     most {room}: give the leader a larger one (--data)"
                )
            })
        };
        let is_put = matches!(of, BulkOf::CachePut { .. });
        let maker = is_put.then(|| PackWriter::new(make_id()));
        self.coming.insert(conn, Coming { fault, maker, ..Coming::new(of, bytes) });
    }

    /// Whether the next piece can be taken; until then the peer has to wait.
    pub(super) fn takes_more(&self, conn: ConnId, relay: &Relay) -> bool {
        let coming = self.coming.get(&conn).filter(|coming| coming.fault.is_none());
        coming.is_none_or(|coming| relay.takes_more(class_of(&coming.of)))
    }

    /// There was no room for the rest for too long: it passes by, and the peer hears why.
    pub(super) fn give_up(&mut self, conn: ConnId, relay: &mut Relay) {
        if let Some(coming) = self.coming.get_mut(&conn) {
            coming.fault =
                Some("the leader had no room for it (--spool-max, --disk-reserve)".to_owned());
            coming.forget(relay);
        }
    }

    /// The next piece of it.
    pub(super) fn piece(
        &mut self,
        conn: ConnId,
        piece: &[u8],
        relay: &mut Relay,
        make_id: MakeId<'_>,
    ) {
        if let Some(coming) = self.coming.get_mut(&conn) {
            coming.piece(piece, relay, make_id);
        }
    }

    /// That was all of it.
    pub(super) fn end(&mut self, conn: ConnId, relay: &mut Relay, make_id: MakeId<'_>) {
        if let Some(coming) = self.coming.remove(&conn) {
            self.came(conn, coming, relay, make_id);
        }
    }

    /// The connection broke, perhaps in the middle of one.
    pub(super) fn broke(&mut self, conn: ConnId, relay: &mut Relay) {
        if let Some(mut coming) = self.coming.remove(&conn) {
            coming.forget(relay);
        }
    }

    /// A job that came whole, and is to be taken apart all the same.
    pub(super) fn whole(
        &mut self,
        conn: ConnId,
        mut body: SubmitBody,
        relay: &mut Relay,
        make_id: MakeId<'_>,
    ) {
        let payload = std::mem::replace(&mut body.payload, Vec::new().into());
        let mut coming = Coming::new(BulkOf::Submit { body }, payload.len() as u64);
        coming.piece(&payload, relay, make_id);
        self.came(conn, coming, relay, make_id);
    }

    /// What is left of the next frame whose contents are here for good: where they have to outlive
    /// the leader, on the disk.
    pub(super) fn poll(&mut self, relay: &mut Relay) -> Option<(ConnId, Apart)> {
        let is_settled = |blob: &BlobId| relay.has_arrived(*blob) || !relay.knows(*blob);
        let next = self.left.iter().position(|(_, blobs, _)| blobs.iter().all(is_settled))?;
        let (conn, blobs, apart) = self.left.remove(next);
        let Apart::Submit { body, .. } = &apart else { return Some((conn, apart)) };
        if blobs.iter().all(|blob| relay.knows(*blob)) {
            return Some((conn, apart));
        }
        blobs.iter().for_each(|blob| relay.forget(*blob));
        let why = "the leader's disk could not store its contents: submit it again";
        // The request names the job, not the frame (M17).
        let job = JobRequest::parse(&body.payload).map_or(body.msg_id, |request| request.job_id);
        Some((conn, refused(JobId(job), body.payload.len() as u64, why)))
    }

    fn came(&mut self, conn: ConnId, coming: Coming, relay: &mut Relay, make_id: MakeId<'_>) {
        let Coming { of, stream, contents, maker, bytes, fault, .. } = coming;
        let residue = match fault {
            Some(fault) => Err(fault),
            None => stream.finish().map_err(|error| error.to_string()),
        };
        let (blobs, apart) = match of {
            BulkOf::Submit { body } => submit(body, residue, contents, bytes, relay, make_id),
            BulkOf::Ack { job } => {
                let (body, parts) = ack(job, residue, contents, bytes, relay, make_id);
                self.left.push((conn, Vec::new(), Apart::Parts { job, parts }));
                (body.parts.clone(), Apart::Ack(body))
            }
            BulkOf::CachePut { request, subject } => {
                let put = residue.and_then(|residue| parse(&residue));
                let put = put.map_err(|why| {
                    format!("the put's frame of {bytes} bytes cannot be accepted: {why}")
                });
                let maker = Box::new(maker.unwrap_or_else(|| PackWriter::new(make_id())));
                (Vec::new(), Apart::CachePut { request, subject, put, maker })
            }
            BulkOf::Nothing => return,
        };
        self.left.push((conn, blobs, apart));
    }
}

/// A large frame on its way in.
#[derive(Debug)]
struct Coming {
    of: BulkOf,
    stream: ContentStream,
    contents: BTreeMap<usize, Content>,
    /// Takes the contents of a CachePut.
    maker: Option<PackWriter>,
    held: Held,
    bytes: u64,
    fault: Option<String>,
}

impl Coming {
    fn new(of: BulkOf, bytes: u64) -> Self {
        let stream = ContentStream::new(match &of {
            BulkOf::Submit { .. } => Shape::JobRequest,
            BulkOf::Ack { .. } => Shape::JobResult,
            BulkOf::CachePut { .. } | BulkOf::Nothing => Shape::CachePutRequest,
        });
        let (contents, held) = (BTreeMap::new(), Held::default());
        Coming { of, stream, contents, maker: None, held, bytes, fault: None }
    }

    fn piece(&mut self, piece: &[u8], relay: &mut Relay, make_id: MakeId<'_>) {
        if self.fault.is_some() {
            return;
        }
        let Coming { of, stream, contents, maker, held, fault, .. } = self;
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
                let content =
                    contents.entry(slot).or_insert_with(|| Content::new(sort_of(of, slot)));
                content.take(bytes, relay, held, make_id);
            }
            (ContentEvent::End { slot, .. }, None) => {
                if let Some(content) = contents.get_mut(&slot) {
                    content.end_chunk(relay);
                }
            }
        });
        *fault = pushed.err().map(|error| error.to_string());
    }

    /// What came of it is not wanted any more.
    fn forget(&mut self, relay: &mut Relay) {
        forget_all(std::mem::take(&mut self.contents), relay);
        self.maker.take().into_iter().for_each(|maker| maker.forget(relay));
    }
}

/// The job of a frame, and the blobs that it has now.
fn submit(
    mut body: SubmitBody,
    residue: Result<Residue, String>,
    mut contents: BTreeMap<usize, Content>,
    bytes: u64,
    relay: &mut Relay,
    make_id: MakeId<'_>,
) -> (Vec<BlobId>, Apart) {
    let read = residue.and_then(|residue| Ok((parse::<JobRequest>(&residue)?, residue)));
    let (mut request, residue) = match read {
        Ok(read) => read,
        Err(why) => {
            forget_all(contents, relay);
            return (Vec::new(), refused(job_id(None, body.msg_id, make_id), bytes, &why));
        }
    };
    let JobId(job) = job_id(Some(request.job_id), body.msg_id, make_id);
    // The same frame again has other blobs, under ids of its own; what tells a repetition are
    // derived ones.
    let (mut blobs, mut derived) = (Vec::new(), request.clone());
    for (slot, (file, twin)) in request.files.iter_mut().zip(&mut derived.files).enumerate() {
        let Some(content) = contents.remove(&slot) else { continue };
        if residue.len_of(slot).is_none() {
            content.forget(relay);
            continue;
        }
        match content.into_ref(relay, JobId(job), &file.name) {
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
    forget_all(contents, relay);
    request.job_id = job;
    derived.job_id = job;
    body.payload = request.to_json().into();
    let fingerprint = chunking::digest::blake3(&derived.to_json());
    (blobs.clone(), Apart::Submit { body, gathered: Gathered { blobs, fingerprint } })
}

/// The result of a frame, and those of its parts that were made of it.
fn ack(
    job: JobId,
    residue: Result<Residue, String>,
    mut contents: BTreeMap<usize, Content>,
    bytes: u64,
    relay: &mut Relay,
    make_id: MakeId<'_>,
) -> (AckBody, Vec<BlobId>) {
    let mut made = Vec::new();
    let read = residue.and_then(|residue| Ok((parse::<JobResult>(&residue)?, residue)));
    let result = match read {
        Ok((mut result, residue)) => {
            for slot in ResultSlot::ALL {
                let counts = residue.len_of(slot.slot()).is_some();
                if let Some(content) = contents.remove(&slot.slot()).filter(|_| counts) {
                    made.extend(put_part(&mut result, slot, content.into_ref(relay, job, "")));
                }
            }
            fit_texts(job, &mut result, &mut made, relay, make_id);
            // Its worker may know the job by another.
            result.job_id = job.0;
            result
        }
        Err(why) => {
            warn!(%job, bytes, "the result of a classic worker cannot be read: {why}");
            let mut failed = JobResult::new(job.0, "", "", JobStatus::Failed);
            failed.stderr = format!(
                "heft: the result's frame of {bytes} bytes from the worker cannot be accepted: \
                 {why}"
            );
            failed
        }
    };
    // Contents that are not part of the result are dropped.
    forget_all(contents, relay);
    let payload = result.to_json();
    let (says, named, parts) = read_result(&payload);
    (AckBody { job, named, says, parts, payload: payload.into() }, made)
}

/// Puts a content in its place in the result: as it is, or as a blob, which it gives.
fn put_part(result: &mut JobResult, slot: ResultSlot, part: Part) -> Option<BlobId> {
    match part {
        Part::Inline(bytes) => {
            match slot {
                ResultSlot::Archive => result.output_archive = Some(bytes),
                ResultSlot::Stdout => result.stdout = text_of(bytes),
                ResultSlot::Stderr => result.stderr = text_of(bytes),
            }
            None
        }
        Part::Blob { blob, head } => {
            let id = blob.id;
            match slot {
                ResultSlot::Archive => (result.output_archive, result.archive) = (None, Some(blob)),
                ResultSlot::Stdout => (result.stdout, result.stdout_blob) = (head, Some(blob)),
                ResultSlot::Stderr => (result.stderr, result.stderr_blob) = (head, Some(blob)),
            }
            Some(id)
        }
    }
}

/// Moves outputs into blobs until the result fits a frame with any subject.
fn fit_texts(
    job: JobId,
    result: &mut JobResult,
    made: &mut Vec<BlobId>,
    relay: &mut Relay,
    make_id: MakeId<'_>,
) {
    while result.to_json().len() > RESULT_BYTES_MAX {
        let slot = match result.stdout.len() >= result.stderr.len() {
            true => ResultSlot::Stdout,
            false => ResultSlot::Stderr,
        };
        let id = make_id();
        if !parts::take_text(relay, job, result, slot, id) {
            break;
        }
        made.push(id);
    }
}

fn forget_all(contents: BTreeMap<usize, Content>, relay: &mut Relay) {
    contents.into_values().for_each(|content| content.forget(relay));
}

fn parse<M: JsonModel>(residue: &Residue) -> Result<M, String> {
    M::parse(&residue.json).map_err(|error| error.to_string())
}

fn refused(job: JobId, bytes: u64, why: &str) -> Apart {
    let text = format!("the job's frame of {bytes} bytes cannot be accepted: {why}");
    Apart::Refused { job, text }
}

/// What the contents of a large frame are, and what they are for.
fn sort_of(of: &BulkOf, slot: usize) -> (Sort, Purpose) {
    match of {
        BulkOf::Ack { .. } => match ResultSlot::ALL.into_iter().find(|of| of.slot() == slot) {
            Some(text @ (ResultSlot::Stdout | ResultSlot::Stderr)) => {
                (Sort::Text, purpose_of(text))
            }
            Some(ResultSlot::Archive) | None => (Sort::File, Purpose::Archive),
        },
        BulkOf::Submit { .. } | BulkOf::CachePut { .. } | BulkOf::Nothing => {
            (Sort::File, Purpose::Input)
        }
    }
}

/// How much of the disk a large frame may fill.
fn class_of(of: &BulkOf) -> Class {
    match of {
        BulkOf::Ack { .. } => Class::Result,
        BulkOf::Submit { .. } | BulkOf::CachePut { .. } | BulkOf::Nothing => Class::Upload,
    }
}

/// What was printed as a text: what is not UTF-8 in it cannot stand in one.
fn text_of(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::ids::ClientId;
    use crate::leader::relay::{Out, RelayConfig};
    use crate::model::{CacheEntry, InputFile};
    use crate::noise::noise;
    use crate::store::blobs::{DiskDone, DiskOp};
    use crate::store::space::Space;
    use chunking::Generation;

    const CONN: ConnId = ConnId(3);
    const JOB: JobId = JobId(Uuid::from_u128(7));
    const MSG: Uuid = Uuid::from_u128(8);
    const LARGE: usize = 3_000_000;

    struct Rig {
        relay: Relay,
        frames: LargeFrames,
        last_id: u128,
    }

    impl Rig {
        fn new(durable: bool) -> Self {
            let mut relay = Relay::new(RelayConfig { durable, ..RelayConfig::default() });
            let space = Some(Space { free: 1 << 40, total: 1 << 40 });
            relay.disk_done(DiskDone::Measured { mark: 0, space });
            Rig { relay, frames: LargeFrames::new(1 << 30), last_id: 100 }
        }

        fn begin(&mut self, of: BulkOf, payload: &[u8]) {
            let Rig { relay, frames, last_id } = self;
            frames.begin(CONN, of, payload.len() as u64, relay, &mut next(last_id));
        }

        fn pieces(&mut self, payload: &[u8]) {
            let Rig { relay, frames, last_id } = self;
            payload
                .chunks(50_000)
                .for_each(|piece| frames.piece(CONN, piece, relay, &mut next(last_id)));
        }

        fn end(&mut self) -> Option<Apart> {
            let Rig { relay, frames, last_id } = self;
            frames.end(CONN, relay, &mut next(last_id));
            self.poll()
        }

        fn poll(&mut self) -> Option<Apart> {
            let (conn, apart) = self.frames.poll(&mut self.relay)?;
            assert_eq!(conn, CONN);
            Some(apart)
        }

        /// A whole frame.
        fn takes(&mut self, of: BulkOf, payload: &[u8]) -> Option<Apart> {
            self.begin(of, payload);
            self.pieces(payload);
            self.end()
        }

        #[track_caller]
        fn takes_job(&mut self) -> (JobRequest, Gathered) {
            match self.takes(submit(), &job()) {
                Some(Apart::Submit { body, gathered }) => {
                    (JobRequest::parse(&body.payload).unwrap(), gathered)
                }
                other => panic!("{other:?}"),
            }
        }

        fn blobs(&self) -> usize {
            self.relay.fill().blobs
        }

        /// The disk does what it is asked for.
        fn write(&mut self) {
            while let Some(out) = self.relay.poll() {
                let Out::Disk(operation) = out else { continue };
                if let DiskOp::Write { blob, index, .. } = operation {
                    self.relay.disk_done(DiskDone::Written { blob, index, result: Ok(()) });
                } else if let DiskOp::Seal { blob, .. } = operation {
                    self.relay.disk_done(DiskDone::Sealed { blob, result: Ok(()) });
                }
            }
        }
    }

    fn next(last_id: &mut u128) -> impl FnMut() -> Uuid {
        || {
            *last_id += 1;
            Uuid::from_u128(*last_id)
        }
    }

    fn submit() -> BulkOf {
        let (client, payload) = (ClientId("c".into()), Vec::new().into());
        let (generation, subject) = (Generation::F2, "job.submit.calc".to_owned());
        BulkOf::Submit { body: SubmitBody { msg_id: MSG, client, generation, subject, payload } }
    }

    /// A request with a large file and a small one.
    fn job() -> Vec<u8> {
        let large = InputFile {
            cache_id: Some("set".into()),
            ..InputFile::inline("a.bin", noise(LARGE, 1))
        };
        let files = vec![large, InputFile::inline("b.bin", noise(10, 2))];
        JobRequest { job_id: JOB.0, exec_name: "calc".into(), files, ..JobRequest::default() }
            .to_json()
    }

    fn result() -> Vec<u8> {
        let mut result = JobResult::new(Uuid::from_u128(70), "c", "calc", JobStatus::Ok);
        result.output_archive = Some(noise(LARGE, 3));
        result.stdout = "out".to_owned();
        result.to_json()
    }

    #[track_caller]
    fn refused(apart: Option<Apart>) -> String {
        let Some(Apart::Refused { job, text }) = apart else { panic!("{apart:?}") };
        assert_eq!(job, JobId(MSG));
        text
    }

    #[test]
    fn a_large_content_of_a_job_becomes_a_blob_and_a_small_one_stays() {
        let mut rig = Rig::new(false);
        let (request, gathered) = rig.takes_job();
        let [large, small] = request.files.as_slice() else { panic!("two files") };
        let blob = large.blob.as_ref().unwrap();
        assert_eq!((blob.size, &large.content, &large.cache_id), (LARGE as u64, &None, &None));
        assert_eq!((small.content.clone(), request.job_id), (Some(noise(10, 2)), JOB.0));
        assert_eq!(gathered.blobs, [blob.id]);
        assert!(rig.relay.has_arrived(blob.id));
        assert!(rig.end().is_none(), "it has ended");
        let (_, again) = rig.takes_job();
        assert_eq!(again.fingerprint, gathered.fingerprint, "it is told as the same");
        assert_ne!(again.blobs, gathered.blobs);
    }

    #[test]
    fn a_job_that_came_whole_is_taken_apart_in_the_same_way() {
        let mut rig = Rig::new(false);
        let (_, streamed) = rig.takes_job();
        let BulkOf::Submit { mut body } = submit() else { panic!("a job") };
        body.payload = job().into();
        rig.frames.whole(CONN, body, &mut rig.relay, &mut || Uuid::from_u128(500));
        let Some(Apart::Submit { gathered, .. }) = rig.poll() else { panic!("a job") };
        assert_eq!(gathered.fingerprint, streamed.fingerprint);
        assert_eq!(gathered.blobs, [Uuid::from_u128(500)]);
    }

    #[test]
    fn the_parts_of_a_result_are_the_jobs_before_the_result_is_told() {
        let mut rig = Rig::new(true);
        let Some(Apart::Parts { job: JOB, parts }) = rig.takes(BulkOf::Ack { job: JOB }, &result())
        else {
            panic!("parts come first");
        };
        assert!(rig.poll().is_none(), "they are not on the disk");
        rig.write();
        let Some(Apart::Ack(body)) = rig.poll() else { panic!("and then the result") };
        assert_eq!((body.job, &body.parts), (JOB, &parts));
        let result = JobResult::parse(&body.payload).unwrap();
        assert_eq!((result.job_id, result.stdout.as_str()), (JOB.0, "out"));
        assert_eq!(result.archive.map(|blob| (blob.id, blob.size)), Some((parts[0], LARGE as u64)));
    }

    #[test]
    fn the_contents_of_a_put_become_packs() {
        let mut rig = Rig::new(false);
        let entry = CacheEntry { name: "a.bin".into(), content: noise(LARGE, 4), sha256: None };
        let put = CachePutRequest {
            cache_id: "set".into(),
            entries: vec![entry],
            target_pattern: String::new(),
            part_no: None,
            part_count: None,
        };
        let of = BulkOf::CachePut { request: MSG, subject: "cache".into() };
        let taken = rig.takes(of, &put.to_json());
        let Some(Apart::CachePut { put: Ok(put), maker, .. }) = taken else { panic!("{taken:?}") };
        assert_eq!((put.cache_id.as_str(), put.entries[0].content.len()), ("set", 0));
        let (made, packs) = maker.finish(&mut rig.relay).unwrap();
        assert_eq!(
            (made[&0].sha256, packs.len()),
            (chunking::dataset::sha256(&noise(LARGE, 4)), 1)
        );
    }

    #[test]
    fn a_connection_that_breaks_leaves_nothing() {
        let mut rig = Rig::new(false);
        rig.begin(submit(), &job());
        rig.pieces(&job()[..2_000_000]);
        assert_eq!(rig.blobs(), 1);
        rig.frames.broke(CONN, &mut rig.relay);
        assert_eq!(rig.blobs(), 0);
        assert!(rig.end().is_none());
    }

    #[test]
    fn what_finds_no_room_passes_by_and_its_peer_hears_why() {
        let mut rig = Rig::new(false);
        rig.frames.spool_bytes_max = 1_000_000;
        let text = refused(rig.takes(submit(), &job()));
        assert!(text.contains("the leader's spool holds at most 1000000 (--spool-max)"), "{text}");
        assert_eq!(rig.blobs(), 0);

        let mut rig = Rig::new(false);
        rig.begin(submit(), &job());
        rig.pieces(&job()[..2_000_000]);
        assert!(rig.frames.takes_more(CONN, &rig.relay));
        rig.frames.give_up(CONN, &mut rig.relay);
        rig.pieces(&job()[2_000_000..]);
        let text = refused(rig.end());
        assert!(
            text.ends_with("the leader had no room for it (--spool-max, --disk-reserve)"),
            "{text}"
        );
        assert_eq!(rig.blobs(), 0);
    }

    #[test]
    fn what_is_no_json_is_refused_and_leaves_nothing() {
        let broken =
            |whole: Vec<u8>| [&whole[..2_500_000], b"!".as_slice(), &whole[2_500_000..]].concat();
        let mut rig = Rig::new(false);
        let text = refused(rig.takes(submit(), &broken(job())));
        assert!(text.contains(" bytes cannot be accepted: "), "{text}");
        assert_eq!(rig.blobs(), 0);
        let parts = rig.takes(BulkOf::Ack { job: JOB }, &broken(result()));
        assert!(matches!(parts, Some(Apart::Parts { parts, .. }) if parts.is_empty()));
        let Some(Apart::Ack(body)) = rig.poll() else { panic!("a worker's job ends all the same") };
        assert_eq!(JobResult::parse(&body.payload).unwrap().status, JobStatus::Failed);
        assert_eq!((rig.blobs(), body.parts.len()), (0, 0));
        let of = BulkOf::CachePut { request: MSG, subject: "cache".into() };
        assert!(matches!(rig.takes(of, b"nothing"), Some(Apart::CachePut { put: Err(_), .. })));
        assert!(rig.takes(BulkOf::Nothing, &job()).is_none());
    }

    #[test]
    fn a_job_waits_for_its_contents_and_is_refused_if_the_disk_loses_them() {
        let mut rig = Rig::new(true);
        assert!(rig.takes(submit(), &job()).is_none());
        rig.write();
        let Some(Apart::Submit { gathered, .. }) = rig.poll() else {
            panic!("they are on the disk")
        };
        assert!(rig.takes(submit(), &job()).is_none());
        let lost: Vec<BlobId> = (101..=rig.last_id).map(Uuid::from_u128).collect();
        lost.iter().filter(|id| !gathered.blobs.contains(id)).for_each(|id| rig.relay.forget(*id));
        let Some(Apart::Refused { job, text }) = rig.poll() else {
            panic!("its contents are lost")
        };
        assert_eq!(job, JOB, "its client waits for the job that the request names, not the frame");
        assert!(
            text.ends_with("the leader's disk could not store its contents: submit it again"),
            "{text}"
        );
    }
}
