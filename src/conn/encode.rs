//! Encodes messages as frames the peer can read. Messages the peer does not know are left out.

use std::time::Duration;

use bytes::Bytes;
use chunking::frame::head_len;
use chunking::message::{
    Answer, AnswerStatus, Body, Cancel, Features, Follow, Keepalive, LimitList, Name, ProgramList,
    Programs, ProgramsSay, Progress, Reason, Refused, Settled, Stage, Standing, Start, StartFlags,
    Submitted, Text, Welcome,
};
use chunking::{EncodeError, Generation, Head, Kind};
use uuid::Uuid;

use super::{FEATURES, Role, STAND_INS_MAX, Session};
use crate::core::ids::{Attempt, JobId, Run, WorkerId};
use crate::model::SOFTWARE;
use crate::summed::{Fronted, Summed};

/// A frame as it goes to the socket: a head, with what of the payload is this frame's own, payload
/// bytes that others may share, and a checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireFrame {
    pub head: Bytes,
    pub payload: Bytes,
    /// What stands behind the payload: the checksum, for peers that know it.
    pub trailer: Bytes,
}

impl WireFrame {
    /// Bytes on the wire.
    pub fn len(&self) -> usize {
        self.head.len() + self.payload.len() + self.trailer.len()
    }

    /// Never: a frame has a head.
    pub fn is_empty(&self) -> bool {
        self.head.is_empty()
    }
}

impl Session {
    pub(super) fn frame(
        &self,
        head: Head<'_>,
        payload: impl Into<Summed>,
    ) -> Result<WireFrame, EncodeError> {
        self.frame_of(head, payload.into().into())
    }

    /// What a payload has for itself stands with the head, so that others go on sharing the rest.
    fn frame_of(&self, head: Head<'_>, payload: Fronted) -> Result<WireFrame, EncodeError> {
        let payload_len = u32::try_from(payload.len()).unwrap_or(u32::MAX);
        let head = Head { payload_len, ..head };
        let (front, crc) = (payload.front(), || payload.crc());
        let mut bytes = Vec::with_capacity(head_len(self.generation, head.subject) + front.len());
        let trailer = if self.has(Features::CHECKSUMS) {
            Bytes::copy_from_slice(&head.append_summed(self.generation, crc(), &mut bytes)?)
        } else {
            head.append(self.generation, &mut bytes)?;
            Bytes::new()
        };
        bytes.extend_from_slice(front);
        Ok(WireFrame { head: bytes.into(), payload: payload.into_rest().into_bytes(), trailer })
    }

    /// A message of heft; `None` if the peer did not announce its feature.
    pub(super) fn ours<M: Body>(
        &self,
        needs: Features,
        id: Uuid,
        corr: Uuid,
        message: &M,
    ) -> Option<WireFrame> {
        if !self.has(needs) {
            return None;
        }
        let mut payload = Vec::new();
        message.encode(&mut payload);
        let head = Head { msg_id: id, corr_id: corr, ..Head::new(M::KIND) };
        self.frame(head, payload).ok()
    }

    /// The answer to an announcement.
    pub fn welcome(&self, hello: Uuid, leader: Uuid, limits: LimitList) -> Option<WireFrame> {
        let software = Name::try_from(SOFTWARE.to_owned()).unwrap_or_default();
        let features = self.features.unwrap_or_default().common(FEATURES);
        self.ours(
            Features::default(),
            Uuid::nil(),
            hello,
            &Welcome { leader, software, features, limits },
        )
    }

    /// A sign of life, for a peer that listens for it.
    pub fn keepalive(&self) -> Option<WireFrame> {
        self.ours(Features::KEEPALIVE, Uuid::nil(), Uuid::nil(), &Keepalive {})
    }

    /// Whether this is a classic worker that can get jobs under other ids than their own.
    pub fn takes_stand_ins(&self) -> bool {
        let is_classic = self.generation == Generation::F2 && !self.is_announced();
        match &self.role {
            Role::Worker { stand_ins, .. } => is_classic && stand_ins.len() < STAND_INS_MAX,
            Role::Stranger | Role::Client { .. } => false,
        }
    }

    /// A job for this worker, under its own id or, where that is given, another that its request
    /// names.
    pub fn assign(
        &mut self,
        subject: &str,
        job: JobId,
        stand_in: Option<JobId>,
        payload: Fronted,
    ) -> Result<WireFrame, EncodeError> {
        let head =
            Head { msg_id: stand_in.unwrap_or(job).0, subject, ..Head::new(Kind::AssignJob) };
        let frame = self.frame_of(head, payload)?;
        if let Role::Worker { last_job, stand_ins, .. } = &mut self.role {
            *last_job = Some(job);
            stand_ins.extend(stand_in.map(|stand_in| (stand_in, job)));
        }
        Ok(frame)
    }

    /// The word to start, for a worker that waits for it.
    pub fn start(
        &self,
        job: JobId,
        run: Run,
        attempt: Attempt,
        lease: Duration,
        flags: StartFlags,
    ) -> Option<WireFrame> {
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX);
        let start = Start { run: run.0, attempt: attempt.0, lease_ms, flags };
        self.ours(Features::LEASES, job.0, Uuid::nil(), &start)
    }

    /// Bytes of the body of an AssignJob with this payload, for a worker of any id.
    pub fn assign_body_len(key: &str, payload: usize) -> usize {
        let subject = key.len() + 1 + uuid::fmt::Hyphenated::LENGTH;
        head_len(Generation::F2, "") - chunking::frame::LENGTH_BYTES + subject + payload
    }

    /// The subject of an AssignJob (T02).
    pub fn assign_subject(key: &str, worker: WorkerId) -> String {
        format!("{key}.{worker}")
    }

    /// A job is not wanted from this worker any more.
    pub fn abandon(&self, job: JobId, attempt: Attempt) -> Option<WireFrame> {
        let text = Text::from("the job has ended, or is given to another worker");
        let cancel = Cancel { attempt: attempt.0, text };
        self.ours(Features::CANCEL, job.0, Uuid::nil(), &cancel)
    }

    /// A worker is to look which programs it has, and to say so.
    pub fn ask_programs(&self, question: Uuid) -> Option<WireFrame> {
        let look = Programs { say: ProgramsSay::Look, names: ProgramList::default() };
        self.ours(Features::PROGRAMS, question, Uuid::nil(), &look)
    }

    /// A job's result is safe.
    pub fn settled(&self, job: JobId, run: Run) -> Option<WireFrame> {
        self.ours(Features::LEASES, job.0, Uuid::nil(), &Settled { run: run.0 })
    }

    /// A job is taken.
    pub fn submitted(
        &self,
        job: JobId,
        run: Run,
        standing: Standing,
        ahead: u32,
    ) -> Option<WireFrame> {
        let submitted = Submitted { standing, run: run.0, ahead };
        self.ours(Features::SUBMIT_ANSWERS, job.0, job.0, &submitted)
    }

    /// A job is not taken.
    pub fn refused(
        &self,
        job: JobId,
        reason: Reason,
        value: u64,
        limit: u64,
        hop: &str,
        text: &str,
    ) -> Option<WireFrame> {
        let hop = Name::try_from(hop.to_owned()).unwrap_or_default();
        let refused = Refused { reason, value, limit, hop, text: text.into() };
        self.ours(Features::SUBMIT_ANSWERS, job.0, job.0, &refused)
    }

    /// The peer's announcement is not taken, and the connection will end. It knows this message,
    /// whatever is wrong with what it said.
    pub fn hello_refused(&self, hello: Uuid, reason: Reason, why: &str) -> Option<WireFrame> {
        let refused = Refused {
            reason,
            value: 0,
            limit: 0,
            hop: Name::try_from("leader".to_owned()).unwrap_or_default(),
            text: why.into(),
        };
        let mut payload = Vec::new();
        refused.encode(&mut payload);
        let head = Head { msg_id: hello, corr_id: hello, ..Head::new(Refused::KIND) };
        self.frame(head, payload).ok()
    }

    /// A job runs.
    pub fn running(&self, job: JobId, run: Run, attempt: Attempt) -> Option<WireFrame> {
        let (stage, text) = (Stage::Running, Text::default());
        let progress = Progress { run: run.0, attempt: attempt.0, stage, done: 0, total: 0, text };
        self.ours(Features::PROGRESS, job.0, job.0, &progress)
    }

    /// How far a job is, as its worker said.
    pub fn progress(&self, job: JobId, says: &Progress) -> Option<WireFrame> {
        self.ours(Features::PROGRESS, job.0, job.0, says)
    }

    /// A job waits for something that only people can bring.
    pub fn waiting(&self, job: JobId, run: Run, why: &str) -> Option<WireFrame> {
        let (stage, text) = (Stage::Waiting, Text::from(why));
        let progress = Progress { run: run.0, attempt: 0, stage, done: 0, total: 0, text };
        self.ours(Features::PROGRESS, job.0, job.0, &progress)
    }

    /// A job's result. `None` for a client without ids, which expects none (C03).
    pub fn result(&self, job: JobId, payload: Summed) -> Option<Result<WireFrame, EncodeError>> {
        if self.generation == Generation::F0 {
            return None;
        }
        let client = self.client()?;
        let subject = format!("job.result.{client}.{}", job.0.simple());
        Some(self.frame(
            Head { msg_id: job.0, corr_id: job.0, subject: &subject, ..Head::new(Kind::Result) },
            payload,
        ))
    }

    /// An output of a job is wanted from a worker.
    pub fn follow(&self, id: Uuid, follow: &Follow) -> Option<WireFrame> {
        self.ours(Features::FOLLOW, id, Uuid::nil(), follow)
    }

    /// Something of a job's output.
    pub fn output(&self, id: Uuid, payload: Summed) -> Option<WireFrame> {
        let head = Head { msg_id: id, ..Head::new(Kind::Output) };
        self.has(Features::FOLLOW).then(|| self.frame(head, payload).ok()).flatten()
    }

    pub fn answer(
        &self,
        ask: Uuid,
        verb: &str,
        status: AnswerStatus,
        json: &[u8],
    ) -> Option<WireFrame> {
        let mut payload = Vec::new();
        Answer { status, json }.encode(&mut payload);
        let head = Head { corr_id: ask, subject: verb, ..Head::new(Kind::Answer) };
        self.has(Features::ASK).then(|| self.frame(head, payload).ok()).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conn::Role;
    use crate::core::ids::{ClientId, ConnId};

    #[test]
    fn a_job_that_waits_is_told_of_with_its_run() {
        let role = Role::Client { id: ClientId::from("c") };
        let features = Some(Features::PROGRESS);
        let session = Session { role, features, ..Session::new(ConnId(1), Generation::F2) };
        let job = JobId(Uuid::from_u128(7));
        let frame = session.waiting(job, Run(3), "no worker").unwrap();
        let expected = Progress {
            run: 3,
            attempt: 0,
            stage: Stage::Waiting,
            done: 0,
            total: 0,
            text: Text::from("no worker"),
        };
        assert_eq!(Progress::decode(&frame.payload), Ok(expected));
        let classic = Session { features: None, ..session };
        assert_eq!(classic.waiting(job, Run(3), "no worker"), None);
    }
}
