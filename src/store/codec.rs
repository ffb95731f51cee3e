//! Encodes and decodes records and jobs for the log and the snapshots.
//!
//! Integers are big-endian, a text is its length as u32 and its UTF-8, an id is 16 bytes, an option
//! or a bool is one byte of 0 or 1, a list is its length as u32 and its items. An enum is one byte;
//! the numbers are part of the format and are never reused. None of them is 0, so a run of zeros is
//! not a record.
//!
//! Input may be torn or hostile. Every length is checked against the remaining bytes before memory
//! is allocated, and trailing bytes are an error. The log checks the checksum of each record.
//! Nothing here opens a file.

mod cluster;
mod inputs;
mod phase;
mod wire;

use inputs::{Named, get_inputs, put_inputs};
use phase::{get_earlier, get_phase, get_times, put_earlier, put_phase, put_times};
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use uuid::Uuid;

use crate::core::dataset::Dataset;
use crate::core::event::{Inputs, Submission, WorkerClass};
use crate::core::ids::{Attempt, CacheId, ClientId, JobId, Micros, ResultId, Run, WorkerId};
use crate::core::job::{AttemptNote, EarlierAttempt, Ending, InputsState, Job, Phase, Times};
use crate::core::payload::FileNames;
use crate::core::record::{AttemptEnd, Record};
use crate::core::subject::{RoutingKey, routing_key};
use crate::summed::Summed;

pub use cluster::{get_cluster, get_members, put_cluster, put_members};
pub use wire::{
    CodecError, Reader, put_bool, put_i64, put_len, put_str, put_u8, put_u16, put_u32, put_u64,
    put_uuid,
};

/// The numbers of the format. A new variant gets a new one.
mod tag {
    pub(super) const ANNOUNCE: u8 = 1;
    pub(super) const ENQUEUE: u8 = 2;
    pub(super) const ASSIGN: u8 = 3;
    pub(super) const ACK: u8 = 4;
    pub(super) const REQUEUE: u8 = 5;
    pub(super) const DLQ: u8 = 6;
    pub(super) const CANCEL: u8 = 7;
    pub(super) const WITHDRAW: u8 = 8;
    pub(super) const FAIL: u8 = 9;
    pub(super) const ORPHAN: u8 = 10;
    pub(super) const REVIVE: u8 = 11;
    pub(super) const FORGET: u8 = 12;
    pub(super) const DELIVERED: u8 = 13;
    pub(super) const CAP: u8 = 14;
    pub(super) const DATASET: u8 = 15;
    pub(super) const DATASET_GONE: u8 = 16;
    pub(super) const STAGE: u8 = 17;
    /// An assignment to a classic worker, whose class follows. Assignments to heft workers have
    /// `ASSIGN`.
    pub(super) const ASSIGN_CLASSIC: u8 = 18;
    /// An assignment to any worker, whose class and moment follow. Without a moment it is one of
    /// the two above.
    pub(super) const ASSIGN_AT: u8 = 19;
    /// The same as `REQUEUE`, and the moment follows.
    pub(super) const REQUEUE_AT: u8 = 20;
    pub(super) const TERM: u8 = 21;
    pub(super) const MEMBERS: u8 = 22;
    pub(super) const LEVEL: u8 = 23;
    pub(super) const MARK: u8 = 24;
    pub(super) const OFFICE: u8 = 25;
    pub(super) const DROP_INPUTS: u8 = 26;

    pub(super) const VOTER: u8 = 1;
    pub(super) const LEARNER: u8 = 2;

    pub(super) const HERE: u8 = 1;
    pub(super) const EXPECTED: u8 = 2;
    /// The same of a job that names datasets, whose ids follow. A job without datasets has the
    /// kinds above.
    pub(super) const HERE_WITH_DATASETS: u8 = 3;
    pub(super) const EXPECTED_WITH_DATASETS: u8 = 4;
    /// Added to the four kinds above: `IN_FOLDERS` for a job with files in folders, `FLATTENED` for
    /// one whose files lose their folders for classic workers.
    pub(super) const IN_FOLDERS: u8 = 4;
    pub(super) const FLATTENED: u8 = 8;
    /// All twelve, so much more: of a job with a tag, which follows the datasets.
    pub(super) const TAGGED: u8 = 12;

    /// How the inputs of a job go to a worker: 0 within a frame, 1 by transfer, and this as a
    /// dataset.
    pub(super) const STAGED: u8 = 2;

    pub(super) const QUEUED: u8 = 1;
    pub(super) const LEASED: u8 = 2;
    pub(super) const GATHERING: u8 = 3;
    pub(super) const DONE: u8 = 4;
    pub(super) const DEAD: u8 = 5;
    /// The same as `LEASED`, and a class follows.
    pub(super) const LEASED_CLASSIC: u8 = 6;
    /// Before the phase: the times of the job, as far as they are known. A job of which none is
    /// known is as it was before there were any.
    pub(super) const TIMES: u8 = 7;
    /// Before the times: the attempts of earlier runs, if there are any.
    pub(super) const EARLIER: u8 = 8;
    /// How an attempt of an earlier run ended, if with a result.
    pub(super) const WITH_RESULT: u8 = 0;

    pub(super) const CLASSIC: u8 = 1;
    pub(super) const ONE_AT_A_TIME: u8 = 2;
    /// One of ours, where the class is always written.
    pub(super) const OURS: u8 = 3;

    pub(super) const RETURNED: u8 = 1;
    pub(super) const CANCELLED: u8 = 2;
    pub(super) const GATHERED: u8 = 3;
    pub(super) const ORPHANED: u8 = 4;
    pub(super) const FAILED: u8 = 5;
}

const UUID_BYTES: usize = 16;
const DIGEST_BYTES: usize = 32;

/// Bytes of a text that is empty.
const TEXT_BYTES_MIN: usize = 4;

/// Bytes of an [`AttemptNote`]: attempt, worker, how it ended.
const NOTE_BYTES: usize = 4 + UUID_BYTES + 1;

/// Bytes of an [`EarlierAttempt`] whose times are not known.
const EARLIER_BYTES_MIN: usize = 4 + NOTE_BYTES + 2;

/// Bytes of texts and keys that are remembered to be shared. Peers choose them, and those of jobs
/// that are long gone are among them.
const NAMES_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Texts and routing keys that many records share are held once.
#[derive(Debug, Default)]
pub struct Names {
    texts: HashSet<Arc<str>>,
    keys: HashMap<Box<str>, RoutingKey>,
    bytes: usize,
}

impl Names {
    /// The text, shared with all who asked for the same.
    pub fn text(&mut self, text: &str) -> Arc<str> {
        if let Some(known) = self.texts.get(text) {
            return known.clone();
        }
        let new: Arc<str> = text.into();
        self.make_room(text.len());
        self.texts.insert(new.clone());
        new
    }

    /// All are forgotten at once when they are too many; who has one keeps it.
    fn make_room(&mut self, bytes: usize) {
        self.bytes += bytes;
        if self.bytes > NAMES_BYTES_MAX {
            self.texts.clear();
            self.keys.clear();
            self.bytes = bytes;
        }
    }

    /// The key that is spelled like this. Keys that differ in case only are equal, but each keeps
    /// its spelling.
    fn key(&mut self, text: &str) -> Result<RoutingKey, String> {
        if let Some(known) = self.keys.get(text) {
            return Ok(known.clone());
        }
        let key = routing_key(text, None).map_err(|error| error.to_string())?;
        if key.as_str() != text {
            return Err(format!("the text is not a routing key: it would be {key}"));
        }
        self.make_room(2 * text.len());
        self.keys.insert(text.into(), key.clone());
        Ok(key)
    }
}

/// What lies in the log beside a record: the payload of a job or of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attached {
    /// Whether it came from one of our peers, not from a classic one.
    pub from_ours: bool,
    /// The blobs it names.
    pub blobs: Vec<Uuid>,
    /// Its bytes, and the checksum that is stored with them: the one that they came with, so that
    /// what happened to them here is found by whoever reads them.
    pub payload: Summed,
}

/// The same, read: the payload stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachedAt {
    /// Whether it came from one of our peers, not from a classic one.
    pub from_ours: bool,
    /// The blobs it names.
    pub blobs: Vec<Uuid>,
    /// Where the payload lies in the bytes that were read.
    pub payload: Range<usize>,
    /// The payload's CRC-32 as it was stored; whoever fetches the payload compares.
    pub crc: u32,
}

/// A record of the log and what lies beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub record: Record,
    /// Its payload, if it has one.
    pub attached: Option<AttachedAt>,
}

/// Appends an entry. Gives where in `out` the payload lies, if it has one, and its CRC-32, which is
/// stored with it.
pub fn put_entry(
    record: &Record,
    attached: Option<&Attached>,
    out: &mut Vec<u8>,
) -> Option<(Range<usize>, u32)> {
    put_record(record, out);
    put_bool(attached.is_some(), out);
    let attached = attached?;
    put_bool(attached.from_ours, out);
    put_len(attached.blobs.len(), out);
    for blob in &attached.blobs {
        put_uuid(*blob, out);
    }
    let crc = attached.payload.crc();
    put_len(attached.payload.len(), out);
    put_u32(crc, out);
    let start = out.len();
    out.extend_from_slice(&attached.payload);
    Some((start..out.len(), crc))
}

/// Reads an entry that fills `bytes` exactly. Ranges are relative to `bytes`. The payload is not
/// looked at.
pub fn get_entry(bytes: &[u8], names: &mut Names) -> Result<Entry, CodecError> {
    let mut reader = Reader::new(bytes);
    let record = get_record(&mut reader, names)?;
    let attached = if reader.bool()? { Some(get_attached(&mut reader)?) } else { None };
    if !reader.is_empty() {
        return Err(reader.error(format!("{} bytes are left over behind the entry", reader.left())));
    }
    Ok(Entry { record, attached })
}

fn get_attached(reader: &mut Reader<'_>) -> Result<AttachedAt, CodecError> {
    let from_ours = reader.bool()?;
    let blobs = reader.list(UUID_BYTES, Reader::uuid)?;
    let len = reader.count(1)?;
    let crc = reader.u32()?;
    let start = reader.at();
    reader.bytes(len)?;
    Ok(AttachedAt { from_ours, blobs, payload: start..reader.at(), crc })
}

fn put_record(record: &Record, out: &mut Vec<u8>) {
    match record {
        Record::Announce { at, job } => {
            put_u8(tag::ANNOUNCE, out);
            put_u64(at.0, out);
            put_submission(job, None, out);
        }
        Record::Enqueue { at, job, children, kept } => {
            put_u8(tag::ENQUEUE, out);
            put_u64(at.0, out);
            put_submission(job, None, out);
            put_len(children.len(), out);
            for (child, worker) in children {
                put_uuid(child.0, out);
                put_uuid(worker.0, out);
            }
            put_bool(*kept, out);
        }
        Record::Assign { at: Some(at), job, run, attempt, worker, class } => {
            put_run(tag::ASSIGN_AT, *job, *run, out);
            put_u32(attempt.0, out);
            put_uuid(worker.0, out);
            put_u8(class_tag(*class).unwrap_or(tag::OURS), out);
            put_u64(at.0, out);
        }
        Record::Assign { at: None, job, run, attempt, worker, class } => {
            let class = class_tag(*class);
            put_run(
                if class.is_some() { tag::ASSIGN_CLASSIC } else { tag::ASSIGN },
                *job,
                *run,
                out,
            );
            put_u32(attempt.0, out);
            put_uuid(worker.0, out);
            out.extend(class);
        }
        Record::Ack { at, job, run, worker, result, ok } => {
            put_run(tag::ACK, *job, *run, out);
            put_u64(at.0, out);
            put_uuid(worker.0, out);
            put_u64(result.0, out);
            put_bool(*ok, out);
        }
        Record::Requeue { at, job, run, attempt, why, counts, not_before } => {
            put_run(if at.is_some() { tag::REQUEUE_AT } else { tag::REQUEUE }, *job, *run, out);
            put_u32(attempt.0, out);
            put_u8(attempt_end_tag(*why), out);
            put_bool(*counts, out);
            put_u64(not_before.0, out);
            at.iter().for_each(|at| put_u64(at.0, out));
        }
        Record::Dlq { at, job, run, attempt, why } => {
            put_run(tag::DLQ, *job, *run, out);
            put_u64(at.0, out);
            put_u32(attempt.0, out);
            put_u8(attempt_end_tag(*why), out);
        }
        Record::Cancel { at, job, run, by } => {
            put_run(tag::CANCEL, *job, *run, out);
            put_u64(at.0, out);
            put_str(by, out);
        }
        Record::Withdraw { job, run } => put_run(tag::WITHDRAW, *job, *run, out),
        Record::Fail { at, job, run, why } => {
            put_run(tag::FAIL, *job, *run, out);
            put_u64(at.0, out);
            put_str(why, out);
        }
        Record::Orphan { at, job, run } => {
            put_run(tag::ORPHAN, *job, *run, out);
            put_u64(at.0, out);
        }
        Record::Revive { job, run } => put_run(tag::REVIVE, *job, *run, out),
        Record::Forget { job, run } => put_run(tag::FORGET, *job, *run, out),
        Record::DropInputs { job, run } => put_run(tag::DROP_INPUTS, *job, *run, out),
        Record::Delivered { job, run } => put_run(tag::DELIVERED, *job, *run, out),
        Record::Cap { client, cap } => {
            put_u8(tag::CAP, out);
            put_str(&client.0, out);
            put_u32(*cap, out);
        }
        Record::Dataset { dataset } => {
            put_u8(tag::DATASET, out);
            put_dataset(dataset, out);
        }
        Record::Stage { job, dataset } => {
            put_u8(tag::STAGE, out);
            put_uuid(job.0, out);
            put_dataset(dataset, out);
        }
        Record::DatasetGone { cache, version } => {
            put_u8(tag::DATASET_GONE, out);
            put_str(cache.as_str(), out);
            put_uuid(*version, out);
        }
        Record::Term { term } => {
            put_u8(tag::TERM, out);
            put_u64(term.0, out);
        }
        Record::Members { members } => {
            put_u8(tag::MEMBERS, out);
            put_members(members, out);
        }
        Record::Level { level } => {
            put_u8(tag::LEVEL, out);
            put_u32(level.0, out);
        }
        Record::Mark { id } => {
            put_u8(tag::MARK, out);
            put_uuid(*id, out);
        }
        Record::Office { leader, at } => {
            put_u8(tag::OFFICE, out);
            put_u32(leader.0, out);
            put_u64(at.0, out);
        }
    }
}

/// How every record about one run of a job begins.
fn put_run(tag: u8, job: JobId, run: Run, out: &mut Vec<u8>) {
    put_u8(tag, out);
    put_uuid(job.0, out);
    put_u32(run.0, out);
}

fn get_record(reader: &mut Reader<'_>, names: &mut Names) -> Result<Record, CodecError> {
    let start = reader.at();
    Ok(match reader.u8()? {
        tag::ANNOUNCE => {
            Record::Announce { at: reader.micros()?, job: get_submission(reader, names)? }
        }
        tag::ENQUEUE => Record::Enqueue {
            at: reader.micros()?,
            job: get_submission(reader, names)?,
            children: reader
                .list(2 * UUID_BYTES, |reader| Ok((reader.job()?, reader.worker()?)))?,
            kept: reader.bool()?,
        },
        tag::ASSIGN_AT => {
            let (job, run) = (reader.job()?, reader.run()?);
            let (attempt, worker) = (reader.attempt()?, reader.worker()?);
            let class = get_any_class(reader)?;
            Record::Assign { at: Some(reader.micros()?), job, run, attempt, worker, class }
        }
        found @ (tag::ASSIGN | tag::ASSIGN_CLASSIC) => Record::Assign {
            at: None,
            job: reader.job()?,
            run: reader.run()?,
            attempt: reader.attempt()?,
            worker: reader.worker()?,
            class: get_class(found == tag::ASSIGN_CLASSIC, reader)?,
        },
        tag::ACK => {
            let (job, run) = (reader.job()?, reader.run()?);
            let (at, worker) = (reader.micros()?, reader.worker()?);
            Record::Ack {
                at,
                job,
                run,
                worker,
                result: ResultId(reader.u64()?),
                ok: reader.bool()?,
            }
        }
        found @ (tag::REQUEUE | tag::REQUEUE_AT) => {
            let (job, run, attempt) = (reader.job()?, reader.run()?, reader.attempt()?);
            let (why, counts) = (get_attempt_end(reader)?, reader.bool()?);
            let not_before = reader.micros()?;
            let at = if found == tag::REQUEUE_AT { Some(reader.micros()?) } else { None };
            Record::Requeue { at, job, run, attempt, why, counts, not_before }
        }
        tag::DLQ => {
            let (job, run, at) = (reader.job()?, reader.run()?, reader.micros()?);
            Record::Dlq { at, job, run, attempt: reader.attempt()?, why: get_attempt_end(reader)? }
        }
        tag::CANCEL => {
            let (job, run, at) = (reader.job()?, reader.run()?, reader.micros()?);
            Record::Cancel { at, job, run, by: reader.str()?.into() }
        }
        tag::WITHDRAW => Record::Withdraw { job: reader.job()?, run: reader.run()? },
        tag::FAIL => {
            let (job, run, at) = (reader.job()?, reader.run()?, reader.micros()?);
            Record::Fail { at, job, run, why: reader.str()?.into() }
        }
        tag::ORPHAN => {
            let (job, run) = (reader.job()?, reader.run()?);
            Record::Orphan { at: reader.micros()?, job, run }
        }
        tag::REVIVE => Record::Revive { job: reader.job()?, run: reader.run()? },
        tag::FORGET => Record::Forget { job: reader.job()?, run: reader.run()? },
        tag::DROP_INPUTS => Record::DropInputs { job: reader.job()?, run: reader.run()? },
        tag::DELIVERED => Record::Delivered { job: reader.job()?, run: reader.run()? },
        tag::CAP => Record::Cap { client: reader.client(names)?, cap: reader.u32()? },
        tag::DATASET => {
            let dataset = Arc::new(get_dataset(reader, names)?);
            // So it was said that a job's inputs are staged, before there was a record for it.
            match dataset.cache.job_in_name() {
                Some(job) => Record::Stage { job, dataset },
                None => Record::Dataset { dataset },
            }
        }
        tag::STAGE => {
            Record::Stage { job: reader.job()?, dataset: Arc::new(get_dataset(reader, names)?) }
        }
        tag::DATASET_GONE => {
            Record::DatasetGone { cache: reader.cache(names)?, version: reader.uuid()? }
        }
        other => cluster::get_record(other, start, reader)?,
    })
}

/// A submission as records hold it or, with the number of its job, as that begins in a snapshot:
/// there the last two members are not, as their part is in what the job says of its inputs.
fn put_submission(submission: &Submission, seq: Option<u64>, out: &mut Vec<u8>) {
    // Whole, so that a member that is added is thought of here.
    let Submission {
        job,
        client,
        key,
        exec,
        priority,
        to_all,
        size,
        fingerprint,
        inputs,
        needs_transfers,
        require_worker,
        datasets,
        names,
        tag,
    } = submission;
    put_uuid(job.0, out);
    put_str(&client.0, out);
    put_str(key.as_str(), out);
    put_str(exec, out);
    put_i64(*priority, out);
    match seq {
        Some(seq) => put_u64(seq, out),
        None => put_bool(*to_all, out),
    }
    put_u64(*size, out);
    out.extend_from_slice(fingerprint);
    if seq.is_some() {
        put_bool(*to_all, out);
    }
    put_inputs(*inputs, *names, datasets, tag.as_deref(), out);
    if seq.is_none() {
        put_bool(*needs_transfers, out);
        put_bool(*require_worker, out);
    }
}

/// A submission of a record.
fn get_submission(reader: &mut Reader<'_>, names: &mut Names) -> Result<Submission, CodecError> {
    let (_, submission) = get_submission_of(false, reader, names)?;
    Ok(Submission { needs_transfers: reader.bool()?, require_worker: reader.bool()?, ..submission })
}

/// What records and jobs have of a submission, and the number of a job.
fn get_submission_of(
    a_job: bool,
    reader: &mut Reader<'_>,
    names: &mut Names,
) -> Result<(u64, Submission), CodecError> {
    let (job, client, key) = (reader.job()?, reader.client(names)?, reader.key(names)?);
    let (exec, priority) = (names.text(reader.str()?), reader.i64()?);
    let (seq, to_all) = if a_job { (reader.u64()?, false) } else { (0, reader.bool()?) };
    let (size, fingerprint) = (reader.u64()?, reader.array::<DIGEST_BYTES>()?);
    let to_all = if a_job { reader.bool()? } else { to_all };
    let Named { inputs, file_names, datasets, tag } = get_inputs(reader, names)?;
    let submission = Submission {
        job,
        client,
        key,
        exec,
        priority,
        to_all,
        size,
        fingerprint,
        inputs,
        needs_transfers: false,
        require_worker: false,
        datasets,
        names: file_names,
        tag,
    };
    Ok((seq, submission))
}

/// Appends a dataset, as records and snapshots hold it.
pub fn put_dataset(dataset: &Dataset, out: &mut Vec<u8>) {
    // Whole, so that a member that is added is thought of here.
    let Dataset { cache, version, digest, bytes, files, target, packs, at } = dataset;
    put_str(cache.as_str(), out);
    put_uuid(*version, out);
    out.extend_from_slice(digest);
    put_u64(*bytes, out);
    put_u32(*files, out);
    put_str(target, out);
    put_len(packs.len(), out);
    packs.iter().for_each(|pack| put_uuid(*pack, out));
    put_u64(at.0, out);
}

/// Reads a dataset, and leaves what follows it.
pub fn get_dataset(reader: &mut Reader<'_>, names: &mut Names) -> Result<Dataset, CodecError> {
    Ok(Dataset {
        cache: reader.cache(names)?,
        version: reader.uuid()?,
        digest: reader.array::<DIGEST_BYTES>()?,
        bytes: reader.u64()?,
        files: reader.u32()?,
        target: names.text(reader.str()?),
        packs: reader.list(UUID_BYTES, Reader::uuid)?,
        at: reader.micros()?,
    })
}

/// Appends a job, as snapshots hold it.
pub fn put_job(job: &Job, out: &mut Vec<u8>) {
    // Whole, so that a member that is added is thought of here.
    let Job {
        submission,
        seq,
        inputs,
        run,
        attempt,
        spent,
        history,
        earlier,
        child_of,
        children,
        delivered,
        times,
        phase,
    } = job;
    put_submission(submission, Some(*seq), out);
    let way = u8::from(submission.needs_transfers);
    let (announced, kept, way) = match inputs {
        InputsState::Announced => (true, false, way),
        InputsState::PassedOn => (false, false, way),
        InputsState::Kept => (false, true, way),
        InputsState::Staged { .. } => (false, true, tag::STAGED),
        InputsState::Dropped => (true, true, way),
    };
    put_bool(announced, out);
    put_bool(kept, out);
    put_u8(way, out);
    put_u32(run.0, out);
    put_u32(attempt.0, out);
    put_u32(*spent, out);
    put_len(history.len(), out);
    for note in history {
        put_u32(note.attempt.0, out);
        put_uuid(note.worker.0, out);
        put_u8(attempt_end_tag(note.why), out);
    }
    put_bool(child_of.is_some(), out);
    if let Some((parent, worker)) = child_of {
        put_uuid(parent.0, out);
        put_uuid(worker.0, out);
    }
    put_len(children.len(), out);
    for child in children {
        put_uuid(child.0, out);
    }
    put_bool(*delivered, out);
    put_earlier(earlier, out);
    put_times(times, history, out);
    put_phase(phase, out);
}

/// Reads a job, and leaves what follows it.
pub fn get_job(reader: &mut Reader<'_>, names: &mut Names) -> Result<Job, CodecError> {
    let (seq, mut submission) = get_submission_of(true, reader, names)?;
    let (announced, kept, at, way) = (reader.bool()?, reader.bool()?, reader.at(), reader.u8()?);
    // Before there was a number for it, a staged job named the dataset that its inputs are, and did
    // not go by transfer.
    let dataset = CacheId::of_inputs(submission.job);
    let named = submission.datasets.len();
    submission.datasets.retain(|cache| *cache != dataset);
    let is_staged = match way {
        0 => submission.datasets.len() < named,
        1 => false,
        tag::STAGED => true,
        unknown => return Err(unknown_tag(at, "way of inputs to a worker", unknown)),
    };
    submission.needs_transfers = is_staged || way == 1;
    let mut job = Job {
        submission,
        seq,
        inputs: match (announced, kept) {
            (true, false) => InputsState::Announced,
            // To older leaders it is announced, which they do not look at once it has ended.
            (true, true) => InputsState::Dropped,
            (false, false) => InputsState::PassedOn,
            (false, true) => InputsState::Kept,
        },
        run: reader.run()?,
        attempt: reader.attempt()?,
        spent: reader.u32()?,
        history: reader.list(NOTE_BYTES, |reader| {
            let (attempt, worker, why) =
                (reader.attempt()?, reader.worker()?, get_attempt_end(reader)?);
            Ok(AttemptNote { attempt, worker, why, began: None, ended: None })
        })?,
        // They follow what is said of its children.
        earlier: Box::default(),
        child_of: if reader.bool()? { Some((reader.job()?, reader.worker()?)) } else { None },
        children: reader.list(UUID_BYTES, Reader::job)?,
        delivered: reader.bool()?,
        times: Times::default(),
        // It follows the times.
        phase: Phase::Queued { not_before: Micros(0) },
    };
    job.earlier = get_earlier(reader)?;
    get_times(reader, &mut job)?;
    job.phase = get_phase(reader)?;
    if is_staged {
        job.stage(dataset);
    }
    Ok(job)
}

/// Ours have none: what is written of them is what it was before classes were.
const fn class_tag(class: WorkerClass) -> Option<u8> {
    match class {
        WorkerClass::Leasing => None,
        WorkerClass::Classic => Some(tag::CLASSIC),
        WorkerClass::OneAtATime => Some(tag::ONE_AT_A_TIME),
    }
}

fn get_class(is_said: bool, reader: &mut Reader<'_>) -> Result<WorkerClass, CodecError> {
    if !is_said {
        return Ok(WorkerClass::Leasing);
    }
    let start = reader.at();
    Ok(match reader.u8()? {
        tag::CLASSIC => WorkerClass::Classic,
        tag::ONE_AT_A_TIME => WorkerClass::OneAtATime,
        unknown => return Err(unknown_tag(start, "class of a worker", unknown)),
    })
}

fn get_any_class(reader: &mut Reader<'_>) -> Result<WorkerClass, CodecError> {
    if reader.peek() != Some(tag::OURS) {
        return get_class(true, reader);
    }
    reader.u8()?;
    Ok(WorkerClass::Leasing)
}

/// Both ways between the ends of attempts and their numbers.
macro_rules! attempt_ends {
    ($($name:ident = $tag:literal,)*) => {
        const fn attempt_end_tag(why: AttemptEnd) -> u8 {
            match why { $(AttemptEnd::$name => $tag,)* }
        }

        fn get_attempt_end(reader: &mut Reader<'_>) -> Result<AttemptEnd, CodecError> {
            let start = reader.at();
            Ok(match reader.u8()? {
                $($tag => AttemptEnd::$name,)*
                unknown => return Err(unknown_tag(start, "end of an attempt", unknown)),
            })
        }
    };
}

attempt_ends! {
    TimedOut = 1,
    WorkerLost = 2,
    NotHeld = 3,
    ResultLost = 4,
    GivenUp = 5,
    InputsStalled = 6,
    DiskFull = 7,
    InputsBad = 8,
    NoDirectory = 9,
    Stopped = 10,
    NoProgram = 11,
}

fn unknown_tag(at: usize, of: &str, found: u8) -> CodecError {
    CodecError { at, what: format!("{found} is not a known {of}") }
}

/// What only records and jobs have.
impl Reader<'_> {
    fn client(&mut self, names: &mut Names) -> Result<ClientId, CodecError> {
        Ok(ClientId(names.text(self.str()?)))
    }

    pub(super) fn cache(&mut self, names: &mut Names) -> Result<CacheId, CodecError> {
        let start = self.at();
        let text = names.text(self.str()?);
        CacheId::parse_shared(text)
            .map_err(|error| CodecError { at: start, what: error.to_string() })
    }

    fn key(&mut self, names: &mut Names) -> Result<RoutingKey, CodecError> {
        let start = self.at();
        names.key(self.str()?).map_err(|what| CodecError { at: start, what })
    }

    fn job(&mut self) -> Result<JobId, CodecError> {
        Ok(JobId(self.uuid()?))
    }

    fn worker(&mut self) -> Result<WorkerId, CodecError> {
        Ok(WorkerId(self.uuid()?))
    }

    fn run(&mut self) -> Result<Run, CodecError> {
        Ok(Run(self.u32()?))
    }

    fn attempt(&mut self) -> Result<Attempt, CodecError> {
        Ok(Attempt(self.u32()?))
    }

    fn micros(&mut self) -> Result<Micros, CodecError> {
        Ok(Micros(self.u64()?))
    }
}

#[cfg(test)]
mod tests;
