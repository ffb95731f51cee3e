//! Takes jobs from clients to the broker, and from the broker to workers.

use std::time::Duration;

use bytes::Bytes;
use chunking::Generation;
use chunking::limits::FRAME_BODY_BYTES_MAX;
use chunking::message::{self, Reason};
use tracing::{info, warn};
use uuid::Uuid;

use super::children::{Assigned, Common, Rewriting, for_child};
use super::payloads::{Input, UNLOGGED_BYTES_MAX};
use super::questions::QuestionEvent;
use super::relay::{BlobId, TooMany};
use super::transfers::named_in;
use super::{Leader, stand_in};
use crate::conn::{Session, SubmitBody, WireFrame};
use crate::core::Event;
use crate::core::action::{Refusal, Standing};
use crate::core::event::{Inputs, Operation, Submission};
use crate::core::ids::{CacheId, ConnId, JobId, WorkerId};
use crate::core::job::Job;
use crate::core::limits::DATASETS_PER_JOB_MAX;
use crate::core::names::{self, NameUse, SafeName};
use crate::core::payload::FileNames;
use crate::core::subject::{ROUTING_KEY_BYTES_MAX, routing_key};
use crate::model::{
    Deliver, InputFile, JobRequest, JobResult, JobStatus, JsonModel, ModelError, Source,
};
use crate::summed::Summed;

/// The hop of limits that are the leader's own.
const LEADER: &str = "leader";

/// A refusal with its numbers, for peers that can hear it.
#[derive(Debug)]
pub(super) struct RefusalText {
    reason: Reason,
    value: u64,
    limit: u64,
    /// Whose limit it is.
    hop: &'static str,
    text: String,
}

impl RefusalText {
    /// One of the leader's own, without numbers.
    pub(super) fn new(reason: Reason, text: String) -> Self {
        RefusalText { reason, value: 0, limit: 0, hop: LEADER, text }
    }

    /// One of the leader's own limits.
    pub(super) fn numbers(reason: Reason, value: u64, limit: u64, text: String) -> Self {
        RefusalText { reason, value, limit, hop: LEADER, text }
    }

    pub(super) fn too_large(value: u64, limit: u64, text: String) -> Self {
        RefusalText::numbers(Reason::TOO_LARGE, value, limit, text)
    }

    /// What it is.
    pub(super) fn reason(&self) -> Reason {
        self.reason
    }

    /// For the log.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// For a peer that can hear it.
    pub(super) fn frame(&self, session: &Session, id: Uuid) -> Option<WireFrame> {
        let RefusalText { reason, value, limit, hop, text } = self;
        session.refused(JobId(id), *reason, *value, *limit, hop, text)
    }

    pub(super) fn invalid(text: String) -> Self {
        RefusalText::new(Reason::INVALID, text)
    }
}

impl From<TooMany> for RefusalText {
    fn from(too_many: TooMany) -> Self {
        let (value, limit) = (too_many.value as u64, too_many.limit as u64);
        RefusalText::numbers(Reason::BUSY, value, limit, too_many.to_string())
    }
}

impl From<&Refusal> for RefusalText {
    fn from(refusal: &Refusal) -> Self {
        let (reason, value, limit, hop) = match refusal {
            Refusal::Conflict { .. } => (Reason::CONFLICT, 0, 0, LEADER),
            Refusal::Full { held, limit } => (Reason::BUSY, *held as u64, *limit as u64, LEADER),
            Refusal::NamesFull { bytes, held, limit } => {
                (Reason::BUSY, held.saturating_add(*bytes), *limit, LEADER)
            }
            Refusal::NoWorker { .. } | Refusal::NoDatasets { .. } | Refusal::NoReader { .. } => {
                (Reason::NO_WORKER, 0, 0, LEADER)
            }
            Refusal::NoCapableWorker { bytes, limit, .. } => {
                (Reason::TOO_LARGE, *bytes, *limit, "worker")
            }
            Refusal::Draining => (Reason::DRAINING, 0, 0, LEADER),
        };
        RefusalText { reason, value, limit, hop, text: refusal.to_string() }
    }
}

pub(super) fn standing_on_the_wire(standing: Standing) -> message::Standing {
    match standing {
        Standing::Queued => message::Standing::Queued,
        Standing::Assigned => message::Standing::Assigned,
        Standing::Running => message::Standing::Running,
        Standing::Finished => message::Standing::Finished,
    }
}

/// Inputs that came with the job and are blobs here.
#[derive(Debug)]
pub(super) struct Gathered {
    pub(super) blobs: Vec<BlobId>,
    /// What tells a repetition, whatever ids the blobs have.
    pub(super) fingerprint: [u8; 32],
}

impl Leader {
    pub(super) fn submit(&mut self, conn: ConnId, body: SubmitBody) {
        let is_ours = self.is_announced(conn);
        if !is_ours && is_to_be_taken_apart(&body) {
            return self.submit_apart(conn, body);
        }
        self.submit_with(conn, body, None);
    }

    pub(super) fn submit_with(
        &mut self,
        conn: ConnId,
        mut body: SubmitBody,
        mut gathered: Option<Gathered>,
    ) {
        // It is a request if .NET would read one there (M14) and it names a program; else bytes
        // that only the worker understands (M19).
        let request = match JobRequest::parse(&body.payload) {
            Ok(request) => Ok(Some(request)),
            // A client that knows no requests cannot have written a bad one.
            Err(error) if body.generation != Generation::F2 || is_another_thing(&error) => Ok(None),
            Err(error) => Err(RefusalText::invalid(error.to_string())),
        };
        // The JobId in the request rules, where it has one; answers carry it (M17).
        let named = request.as_ref().ok().and_then(Option::as_ref).map(|request| request.job_id);
        let job = job_id(named, body.msg_id, &mut *self.make_id);
        let fingerprint = match &gathered {
            Some(gathered) => gathered.fingerprint,
            None => chunking::digest::blake3(&body.payload),
        };
        if named.is_some_and(|id| id.is_nil()) {
            body.payload = with_id(&body.payload, job).into();
        }
        let taken = request.and_then(|request| {
            self.take_job(conn, job, body, request.as_ref(), fingerprint, &mut gathered)
        });
        // What came with it and is not needed.
        gathered
            .into_iter()
            .flat_map(|gathered| gathered.blobs)
            .for_each(|blob| self.relay.forget(blob));
        if let Err(refusal) = taken {
            self.refuse(conn, job, refusal);
        }
    }

    /// Hands a job to the broker, with its payload and its inputs, if there is room for it.
    fn take_job(
        &mut self,
        conn: ConnId,
        job: JobId,
        body: SubmitBody,
        request: Option<&JobRequest>,
        fingerprint: [u8; 32],
        gathered: &mut Option<Gathered>,
    ) -> Result<(), RefusalText> {
        let (from_ours, is_gathered) = (self.is_announced(conn), gathered.is_some());
        let blobs = request.map(named_in).unwrap_or_default();
        let blob_bytes = blobs.iter().fold(0u64, |sum, (_, _, size)| sum.saturating_add(*size));
        let submission =
            submission(job, &body, request, from_ours).map_err(RefusalText::invalid)?;
        let submission = Submission {
            size: blob_bytes.saturating_add(body.payload.len() as u64),
            fingerprint,
            inputs: if blobs.is_empty() || is_gathered { Inputs::Here } else { Inputs::Expected },
            needs_transfers: !blobs.is_empty() || submission.needs_transfers,
            ..submission
        };
        let sent_bytes = sent_len(&body.payload, submission.to_all);
        self.too_large(&submission, sent_bytes).map_or(Ok(()), Err)?;
        if self.log.is_durable() && self.broker.is_withdrawing(job) {
            // The log is about to forget its payload, and a new one would go with it.
            let text = "the job's inputs did not come in time, and it is just being dropped: submit it again";
            return Err(RefusalText::new(Reason::BUSY, text.to_owned()));
        }
        // A job that is known has its payload, or has ended and needs none.
        if self.broker.state().job(job).is_none() {
            self.cannot_log(sent_bytes).map_or(Ok(()), Err)?;
            // Else the same job came before, and is about to be known.
            if self.blobs.inputs(job).is_empty() {
                match gathered.take() {
                    Some(gathered) => self.inputs_gathered(job, gathered.blobs),
                    None if blobs.is_empty() => {}
                    None => self.expect_inputs(conn, job, submission.to_all, &blobs)?,
                }
            }
            self.payloads.held.keep_input(job, Input { payload: body.payload, from_ours });
        }
        self.broker.handle(self.now, Event::Submit { conn, job: submission });
        Ok(())
    }

    /// What no worker could be sent in one frame, or what the leader has no room for, is refused at
    /// the door.
    fn too_large(&self, job: &Submission, sent_bytes: usize) -> Option<RefusalText> {
        let body = Session::assign_body_len(job.key.as_str(), sent_bytes) as u64;
        let limit = u64::from(FRAME_BODY_BYTES_MAX);
        if body > limit {
            let text = format!(
                "the job takes a frame of {body} bytes to a worker; a frame has at most {limit}: make it smaller by {} \
                 bytes",
                body - limit
            );
            return Some(RefusalText::too_large(body, limit, text));
        }
        let (value, limit) = (
            self.payloads.held.input_bytes().saturating_add(sent_bytes as u64),
            self.config.payload_bytes_max,
        );
        (value > limit).then(|| {
            let text = format!(
                "the leader holds {} bytes of jobs that have not ended and takes at most {limit}: wait until some have",
                self.payloads.held.input_bytes()
            );
            RefusalText::numbers(Reason::SPOOL_FULL, value, limit, text)
        })
    }

    /// Why a new job cannot go into the log now: the disk takes nothing, or is too slow for what
    /// comes.
    fn cannot_log(&mut self, bytes: usize) -> Option<RefusalText> {
        if let Some(trouble) = self.log.trouble() {
            let text = format!("{trouble}; submit the job again when it takes more");
            return Some(RefusalText::numbers(Reason::DISK_FULL, bytes as u64, 0, text));
        }
        if let Some(short) = self.relay.no_room_for_jobs(bytes as u64) {
            // It may have changed since.
            self.relay.measure();
            let text = format!("{short}; free some space there, and submit the job again");
            return Some(RefusalText::numbers(Reason::DISK_FULL, bytes as u64, 0, text));
        }
        let (value, limit) =
            (self.payloads.held.unlogged_bytes().saturating_add(bytes as u64), UNLOGGED_BYTES_MAX);
        (self.log.is_durable() && value > limit).then(|| {
            let text = format!(
                "{value} bytes of jobs and results wait for the leader's disk, and at most {limit} may: submit the job again later"
            );
            RefusalText::numbers(Reason::BUSY, value, limit, text)
        })
    }

    /// Tells a client that its job is not taken: in a frame of its own if it can hear that, else as
    /// a failed result, so that it does not wait for ever (W23).
    pub(super) fn refuse(&mut self, conn: ConnId, job: JobId, refusal: RefusalText) {
        let Some(session) = self.peers.get(conn) else { return };
        info!(%job, peer = %session.name(), "refused a job: {}", refusal.text);
        let RefusalText { reason, value, limit, hop, text } = refusal;
        let frame = session.refused(job, reason, value, limit, hop, &text).or_else(|| {
            let client = session.client()?.to_string();
            let mut result = JobResult::new(job.0, client, "", JobStatus::Failed);
            result.stderr = format!("heft: {text}");
            session.result(job, result.to_json().into())?.ok()
        });
        self.send(conn, frame);
    }

    /// The frame that brings a job to its worker; none if that cannot be.
    pub(super) fn assign(&mut self, conn: ConnId, worker: WorkerId, id: JobId) -> Option<Assigned> {
        let job = self.broker.state().job(id)?;
        if job.goes_by_transfer() && !self.takes_transfers(conn) {
            // The dataset of its inputs went while it was on its way to a classic worker.
            return None;
        }
        let owner = job.child_of.map_or(id, |(parent, _)| parent);
        let Some(Input { payload, from_ours }) = self.payloads.held.input(owner) else {
            warn!(job = %id, "the payload of a job is not held any more; its lease will run out");
            return None;
        };
        let is_classic = self.peers.get(conn).is_some_and(|session| !session.is_announced());
        let staged = (is_classic && job.is_staged()).then(|| CacheId::of_inputs(id));
        let rewriting = match is_classic {
            true => self.rewriting(worker, from_ours, staged.is_some()),
            false => Rewriting::None,
        };
        let made = |payload: Summed| {
            let payload = self.rewritten(payload, rewriting, from_ours, job, staged.as_ref());
            let limit = if is_classic { time_limit_in(&payload) } else { None };
            (payload, limit)
        };
        let mut stand_in = None;
        let (payload, common, limit) = if owner == id {
            let (mut payload, limit) = made(payload);
            let session = self.peers.get(conn).filter(|session| session.takes_stand_ins());
            if let Some(other) = session.and_then(|_| stand_in::id_of(id, job.run, job.attempt))
                && let Some(renamed) = stand_in::renamed(&payload, other)
                && fits_assignment(job.submission.key.as_str(), renamed.len())
            {
                (payload, stand_in) = (renamed.into(), Some(other));
            }
            (payload.into(), None, limit)
        } else {
            let kept = self.payloads.commons.get(owner, is_classic, rewriting);
            let common = kept.unwrap_or_else(|| {
                let for_all = made(for_child(&payload, JobId(Uuid::nil())).into());
                Common::new(owner, is_classic, rewriting, for_all)
            });
            let common = self.payloads.commons.keep(common);
            (common.payload(id), Some(common.id()), common.limit())
        };
        let attempt = job.attempt;
        let subject = Session::assign_subject(job.submission.key.as_str(), worker);
        let session = self.peers.get_mut(conn)?;
        let assigned = session.assign(&subject, id, stand_in, payload);
        if let (Ok(_), Some(limit)) = (&assigned, limit) {
            self.broker.handle(self.now, Event::TimeLimit { worker, job: id, attempt, limit });
        }
        match assigned {
            Ok(frame) => Some(Assigned { frame, common }),
            // What does not fit was refused at the door, so this is a mistake of ours; the job
            // ends, not the worker.
            Err(error) => {
                warn!(job = %id, "cannot be sent to a worker: {error}");
                let by = format!("the leader, which cannot send it: {error}").into();
                self.questions(QuestionEvent::Wished(Operation::Cancel { job: id, by }));
                None
            }
        }
    }
}

impl Leader {
    /// A request for a classic worker. It knows a cached file by one path only, which stands in its
    /// CacheId (C02), also with the cache patch of the founding documents, which stores
    /// `<CacheId>/<Name>` and looks for `<CacheId>`. So the whole path is put there: of a request
    /// of ours, and where an agent or the patch keeps the dataset also of a classic client's; what
    /// else a classic client wrote means the flat form.
    ///
    /// Inputs that are a dataset by now (C01) are named by that.
    fn rewriting(&self, worker: WorkerId, from_ours: bool, is_staged: bool) -> Rewriting {
        let knows_paths =
            self.broker.agent_of(worker).is_some() || self.datasets.knows_cache_put(worker);
        if from_ours || is_staged || knows_paths { Rewriting::Paths } else { Rewriting::Names }
    }

    /// The request, written so.
    fn rewritten(
        &self,
        payload: Summed,
        rewriting: Rewriting,
        from_ours: bool,
        job: &Job,
        staged: Option<&CacheId>,
    ) -> Summed {
        let is_flat = rewriting != Rewriting::None && job.submission.names == FileNames::Flattened;
        if rewriting != Rewriting::Paths && !is_flat {
            return payload;
        }
        let Ok(mut request) = JobRequest::parse(&payload) else { return payload };
        if let Some(cache) = staged {
            by_dataset(&mut request, cache);
        }
        let is_dataset = |cache_id: &str| {
            let cache = CacheId::parse(cache_id).ok();
            from_ours || cache.is_some_and(|cache| self.broker.state().dataset(&cache).is_some())
        };
        let with_paths =
            (rewriting == Rewriting::Paths).then(|| with_paths(&request, is_dataset)).flatten();
        let written = with_paths.map(|request| in_json(request, is_flat));
        match written.filter(|written| fits_assignment(job.submission.key.as_str(), written.len()))
        {
            Some(written) => written.into(),
            None if is_flat || staged.is_some() => in_json(request, is_flat).into(),
            None => payload,
        }
    }
}

/// The id of a job: that of its request, else that of its frame, else a new one.
pub(super) fn job_id(
    named: Option<Uuid>,
    msg_id: Uuid,
    make_id: &mut dyn FnMut() -> Uuid,
) -> JobId {
    let id = named.into_iter().chain([msg_id]).find(|id| !id.is_nil());
    JobId(id.unwrap_or_else(make_id))
}

/// What the broker is to know of a job, but for what is known of its inputs.
fn submission(
    job: JobId,
    body: &SubmitBody,
    request: Option<&JobRequest>,
    from_ours: bool,
) -> Result<Submission, String> {
    let exec = request.map_or("", |request| request.exec_name.as_str());
    let key = routing_key(&body.subject, Some(exec)).map_err(|error| error.to_string())?;
    request.map_or(Ok(()), stays_inside).map_err(|error| error.to_string())?;
    let datasets = request.map(datasets_in).unwrap_or_default();
    let names = request.map_or(FileNames::Plain, file_names);
    if datasets.len() > DATASETS_PER_JOB_MAX {
        return Err(format!(
            "the job names {} datasets and may name at most {DATASETS_PER_JOB_MAX}: put files that are used together into \
             one dataset",
            datasets.len()
        ));
    }
    let sent = request.map(|request| classic_len(request, &body.payload, names, from_ours));
    let fits_classic = sent.is_none_or(|sent| fits_assignment(key.as_str(), sent));
    Ok(Submission {
        job,
        client: body.client.clone(),
        key,
        exec: exec.into(),
        priority: request.map_or(0, |request| request.priority),
        to_all: request.is_some_and(|request| request.deliver == Deliver::All),
        size: 0,
        fingerprint: [0; 32],
        inputs: Inputs::Here,
        needs_transfers: !fits_classic,
        require_worker: request.is_some_and(|request| request.require_worker),
        datasets,
        names,
    })
}

/// How long a job may run, if its request says so.
fn time_limit_in(payload: &[u8]) -> Option<Duration> {
    let member = b"TimeLimitMs";
    // Most name none, and need not be read for it.
    let names_one = payload.windows(member.len()).any(|window| window == member);
    let request = names_one.then(|| JobRequest::parse(payload).ok()).flatten()?;
    request.time_limit_ms.map(Duration::from_millis)
}

/// Whether a payload of this size can be sent to a worker: the frame's body has its limit, whatever
/// the job came in.
fn fits_assignment(key: &str, payload_bytes: usize) -> bool {
    Session::assign_body_len(key, payload_bytes) <= FRAME_BODY_BYTES_MAX as usize
}

/// Bytes of a payload as a worker is sent it. A child travels under its own id, in JSON of our own
/// writing, which may be longer.
fn sent_len(payload: &Bytes, to_all: bool) -> usize {
    if to_all { for_child(payload, JobId(Uuid::nil())).len() } else { payload.len() }
}

/// The same of a request for a classic worker, in the longest of the forms that it may be sent in:
/// with the path of each cached file in its CacheId (C02), which a classic client's is sent in only
/// if that fits, and without folders. Those are JSON of our own writing.
fn classic_len(request: &JobRequest, payload: &[u8], names: FileNames, from_ours: bool) -> usize {
    let is_flat = names == FileNames::Flattened;
    let with_paths = if from_ours { with_paths(request, |_| true) } else { None };
    let forms = [with_paths, is_flat.then(|| request.clone())];
    let lens = forms.into_iter().flatten().map(|request| in_json(request, is_flat).len());
    lens.max().unwrap_or(payload.len())
}

/// Whether a job fits no assignment as it came, and has contents that can go apart from it.
fn is_to_be_taken_apart(body: &SubmitBody) -> bool {
    // Most are so small that they need not be read for it.
    let most = Session::assign_body_len("", body.payload.len())
        .saturating_add(ROUTING_KEY_BYTES_MAX)
        .saturating_add(ID_MEMBER_BYTES);
    if most <= FRAME_BODY_BYTES_MAX as usize {
        return false;
    }
    let Ok(request) = JobRequest::parse(&body.payload) else { return false };
    let Ok(key) = routing_key(&body.subject, Some(&request.exec_name)) else { return false };
    let id = if request.job_id.is_nil() { ID_MEMBER_BYTES } else { 0 };
    let sent = sent_len(&body.payload, request.deliver == Deliver::All).saturating_add(id);
    let has_content =
        |file: &InputFile| matches!(file.source(), Source::Inline(content) if !content.is_empty());
    request.files.iter().any(has_content) && !fits_assignment(key.as_str(), sent)
}

/// A request with the path of each cached file in its CacheId, for those ids of which that is said;
/// `None` if there are none.
pub(super) fn with_paths(
    request: &JobRequest,
    is_dataset: impl Fn(&str) -> bool,
) -> Option<JobRequest> {
    let path = |file: &InputFile| {
        let Source::Cache(id) = file.source() else { return None };
        is_dataset(id).then(|| format!("{id}/{}", file.name_in_dataset()))
    };
    let paths: Vec<Option<String>> = request.files.iter().map(path).collect();
    paths.iter().any(Option::is_some).then(|| {
        let mut request = request.clone();
        for (file, path) in request.files.iter_mut().zip(paths) {
            file.cache_id = path.or(file.cache_id.take());
        }
        request
    })
}

/// A request as a classic worker gets it: without the folders of its files, where it says so.
fn in_json(mut request: JobRequest, is_flat: bool) -> Bytes {
    for file in request.files.iter_mut().filter(|_| is_flat) {
        file.name = names::without_folders(&file.name).to_owned();
    }
    request.to_json().into()
}

/// What the names of a request's files are to classic workers. What no worker takes is not told
/// apart: any says what is wrong with it.
fn file_names(request: &JobRequest) -> FileNames {
    let names = || request.files.iter().map(|file| file.name.as_str());
    let is_in_folder =
        |name: &str| !names::is_flat(name) && SafeName::parse(NameUse::File, name).is_ok();
    match () {
        () if !names().any(is_in_folder) => FileNames::Plain,
        () if request.flatten && names::flattened(names()).is_ok() => FileNames::Flattened,
        () => FileNames::Folders,
    }
}

/// Makes files of a dataset of a request's large inputs.
pub(super) fn by_dataset(request: &mut JobRequest, cache: &CacheId) {
    for file in request.files.iter_mut().filter(|file| matches!(file.source(), Source::Blob(_))) {
        (file.blob, file.content) = (None, None);
        (file.cache_id, file.cache_name) = (Some(cache.as_str().to_owned()), None);
    }
}

/// A request without an id, under this one. A classic worker acks the id that the request names,
/// not the frame's, so one without is never heard of again. All else stays as it is, and of two
/// equal names the last counts (M14).
fn with_id(payload: &Bytes, id: JobId) -> Bytes {
    let Some(end) = payload.iter().rposition(|byte| *byte == b'}') else { return payload.clone() };
    let (before, after) = payload.split_at(end);
    let member = format!(",\"JobId\":\"{id}\"");
    debug_assert_eq!(member.len(), ID_MEMBER_BYTES);
    [before, member.as_bytes(), after].concat().into()
}

/// Bytes that this adds.
const ID_MEMBER_BYTES: usize = ",\"JobId\":\"\"".len() + uuid::fmt::Hyphenated::LENGTH;

/// The datasets that a request's files are of, each once. What cannot be one's id is a file's own,
/// in the flat form (C02).
fn datasets_in(request: &JobRequest) -> Vec<CacheId> {
    let cache = |file: &InputFile| {
        let Source::Cache(cache_id) = file.source() else { return None };
        // Those of jobs' inputs are nobody's to name.
        CacheId::parse(cache_id).ok().filter(|cache| !cache.is_the_leaders())
    };
    let files = request.files.iter().filter(|file| file.blob.is_none());
    let mut datasets: Vec<CacheId> = files.filter_map(cache).collect();
    datasets.sort_unstable();
    datasets.dedup();
    datasets
}

/// Names that a worker looks for in a directory of its own lead nowhere else. Classic workers do
/// not check that.
fn stays_inside(request: &JobRequest) -> Result<(), names::NameError> {
    names::stays_inside(NameUse::Program, &request.exec_name)?;
    for file in &request.files {
        if let Source::Cache(cache) = file.source() {
            names::stays_inside(NameUse::Cache, cache)?;
            names::stays_inside(NameUse::File, file.name_in_dataset())?;
        }
    }
    Ok(())
}

/// Whether a payload is not a JobRequest at all, rather than a bad one.
fn is_another_thing(error: &ModelError) -> bool {
    let names_no_program =
        matches!(error, ModelError::Missing { place, .. } if place.member == Some("ExecName"));
    names_no_program || matches!(error, ModelError::NotJson { .. } | ModelError::NotObject { .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::BlobRef;

    #[test]
    fn ca12_a_job_names_the_datasets_of_files_that_bring_no_content_of_their_own() {
        let cached = |name: &str, id: &str| InputFile::cached(name, id);
        let blob = BlobRef { id: Uuid::from_u128(1), size: 1, digest: None };
        let request = JobRequest {
            files: vec![
                cached("b.bin", "set-b"),
                cached("a.bin", "set-a"),
                cached("a2.bin", "set-a"),
                InputFile { content: Some(b"inline".to_vec()), ..cached("c.bin", "inline-wins") },
                InputFile { content: Some(Vec::new()), ..cached("d.bin", "empty-does-not") },
                InputFile { blob: Some(blob), ..cached("e.bin", "by-transfer") },
                cached("f.bin", "flat/form"),
                cached("g.bin", ""),
                InputFile::inline("h.bin", b"x".to_vec()),
            ],
            ..JobRequest::default()
        };
        let named: Vec<String> = datasets_in(&request).iter().map(ToString::to_string).collect();
        assert_eq!(named, ["empty-does-not", "set-a", "set-b"]);
    }
}
