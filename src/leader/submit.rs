//! Takes jobs from clients to the broker, and from the broker to workers.

use chunking::Generation;
use chunking::limits::FRAME_BODY_BYTES_MAX;
use chunking::message::{self, Reason};
use tracing::{info, warn};
use uuid::Uuid;

use super::children::{Assigned, Common, Rewriting, for_child};
use super::payloads::{Input, UNLOGGED_BYTES_MAX};
use super::questions::QuestionEvent;
use super::refusal_text::RefusalText;
use super::request::{
    Gathered, by_dataset, fits_assignment, in_json, is_another_thing, is_to_be_taken_apart, job_id,
    named_in, sent_len, submission, time_limit_in, with_id, with_paths,
};
use super::{Leader, stand_in};
use crate::conn::{Session, SubmitBody};
use crate::core::Event;
use crate::core::action::Standing;
use crate::core::event::{Inputs, Operation, Submission};
use crate::core::ids::{CacheId, ConnId, JobId, WorkerId};
use crate::core::job::Job;
use crate::core::payload::FileNames;
use crate::model::{JobRequest, JobResult, JobStatus, JsonModel};
use crate::store::replay::Key;
use crate::summed::Summed;

pub(super) fn standing_on_the_wire(standing: Standing) -> message::Standing {
    match standing {
        Standing::Queued => message::Standing::Queued,
        Standing::Assigned => message::Standing::Assigned,
        Standing::Running => message::Standing::Running,
        Standing::Finished => message::Standing::Finished,
    }
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
            let text =
                "the job's inputs did not arrive in time, and it is being dropped: submit it again";
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
                "the job needs a frame of {body} bytes to a worker; the limit is {limit}: make it \
                 smaller by {} bytes",
                body - limit
            );
            return Some(RefusalText::too_large(body, limit, text));
        }
        let (value, limit) =
            (self.request_bytes().saturating_add(sent_bytes as u64), self.config.payload_bytes_max);
        (value > limit).then(|| {
            let text = format!(
                "the leader holds {} bytes of unfinished jobs; the limit is {limit}: wait until \
                 some have ended",
                self.request_bytes()
            );
            RefusalText::numbers(Reason::SPOOL_FULL, value, limit, text)
        })
    }

    /// Why a new job cannot go into the log now: the disk takes nothing, or is too slow for what
    /// comes.
    fn cannot_log(&mut self, bytes: usize) -> Option<RefusalText> {
        if let Some(trouble) = self.log.trouble() {
            let text = format!("{trouble}; submit the job again when there is room");
            return Some(RefusalText::numbers(Reason::DISK_FULL, bytes as u64, 0, text));
        }
        if let Some(short) = self.relay.no_room_for_jobs(bytes as u64, self.retained.blob_bytes()) {
            // It may have changed since.
            self.relay.measure();
            let text = format!("{short}; free some space there, and submit the job again");
            return Some(RefusalText::numbers(Reason::DISK_FULL, bytes as u64, 0, text));
        }
        let (value, limit) =
            (self.payloads.held.unlogged_bytes().saturating_add(bytes as u64), UNLOGGED_BYTES_MAX);
        (self.log.is_durable() && value > limit).then(|| {
            let text = format!(
                "{value} bytes of jobs and results wait for the leader's disk; the limit is \
                 {limit}: submit the job again later"
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
            match self.payloads.held.why_lost(Key::Input(owner)) {
                Some(why) => {
                    let why = format!("the leader cannot read it back: {why}").into();
                    self.broker.handle(self.now, Event::InputsFailed { job: owner, why });
                }
                None => warn!(job = %id, "the payload of a job is no longer held"),
            }
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
            // A request that does not fit was refused on arrival, so this is a defect in heft. It
            // ends the job, not the worker.
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
