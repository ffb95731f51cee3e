//! Decodes a peer's frames.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use chunking::message::{
    Ask, Body, Features, Follow, Grant, Heartbeat, HeldPart, Name, Output, Piece, Programs,
    ProgramsSay, Progress, Received, Stage, parse_credit,
};
use chunking::{Generation, Head, Kind};
use uuid::Uuid;

use super::{Agent, DatasetSays, FEATURES, MakeId, Role, Session, SessionError, TransferSays};
use crate::core::Event;
use crate::core::event::{ClaimedAttempt, ClientPeer, Doing, WorkerClass};
use crate::core::ids::{Attempt, ClientId, JobId, Run, WorkerId};
use crate::core::payload::PayloadKind;
use crate::core::programs::{Programs as ListedPrograms, ProgramsSaid};
use crate::core::record::Lack;
use crate::core::subject::{announced_patterns, hello_patterns};
use crate::core::worker::Hello;
use crate::model::limits::{CLIENT_ID_BYTES_MAX, PROGRAMS_BYTES_MAX, QUOTE_CHARS_MAX};
use crate::model::{
    Announcement, ClientConfig, ContentStream, JobResult, JobStatus, JsonModel, Shape, WorkerHello,
};
use crate::summed::Summed;

/// What a frame said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Inbound {
    /// Something the broker can take as it is.
    Event(Event),
    /// A Hello of a peer that announced itself: it gets a Welcome first.
    Announced(Event),
    Submit(SubmitBody),
    /// The end of a job.
    Ack(AckBody),
    /// A client does not want a job any more.
    Cancel(JobId),
    /// A client has the result of a job.
    Received {
        job: JobId,
        /// Which run's; none if it does not know.
        run: Option<Run>,
    },
    /// A worker says how far a job is.
    Progress {
        job: JobId,
        /// What it says.
        says: Progress,
        /// What that is to the broker; nothing while inputs come.
        event: Option<Event>,
    },
    /// A message of a transfer.
    Transfer {
        /// The transfer's id.
        id: Uuid,
        /// What it says.
        says: TransferSays,
    },
    /// A piece of a chunk.
    Piece {
        /// The transfer's id.
        id: Uuid,
        /// The payload, which can be read.
        payload: Bytes,
    },
    /// A worker says which programs it has.
    Programs {
        said: ProgramsSaid,
        /// Whether it was asked.
        answers: bool,
    },
    /// Something about a dataset.
    Dataset(DatasetSays),
    Ask {
        verb: String,
        /// The question's id.
        id: Uuid,
        /// The question, in JSON.
        json: Vec<u8>,
    },
    /// A client wants an output of a job while it runs.
    Follow {
        /// The follow's id.
        id: Uuid,
        follow: Follow,
    },
    /// Something of a job's output, from its worker.
    Output {
        /// The follow's id.
        id: Uuid,
        /// The payload, which can be read.
        payload: Summed,
    },
    /// That the peer lives, and nothing else.
    Alive,
    /// Nothing that matters here; the text is for the log.
    Skipped(String),
}

/// A job that was submitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SubmitBody {
    /// The frame's id; nil if it has none.
    pub msg_id: Uuid,
    /// Whose job it is.
    pub client: ClientId,
    /// What the client speaks: those before F2 know no requests, and mean any bytes.
    pub generation: Generation,
    /// The frame's subject.
    pub subject: String,
    pub payload: Summed,
}

/// The end of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AckBody {
    pub job: JobId,
    /// Which attempt it says it is for.
    pub named: ClaimedAttempt,
    /// What the worker says.
    pub says: AckSays,
    /// The blobs that are parts of the result.
    pub parts: Vec<Uuid>,
    pub payload: Summed,
}

/// What a frame is that is too large to be gathered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BulkOf {
    /// A job; its payload is still to come.
    Submit {
        /// The job, without its payload.
        body: SubmitBody,
    },
    /// The end of a job.
    Ack { job: JobId },
    /// A classic client's put; its payload is still to come.
    CachePut {
        request: Uuid,
        /// The subject, which names the workers that are to have it.
        subject: String,
    },
    /// Nothing that matters here.
    Nothing,
}

/// What an ack says of its job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckSays {
    /// Done, with this payload as the result.
    Result {
        /// Whether its status is OK.
        ok: bool,
    },
    /// Done, by a worker whose acks carry nothing (C03).
    PlainOk,
    /// Done before, and the result is gone (C17).
    ResultLost,
    GivenUp,
    /// The same, for want of something that another worker may have.
    Lacks(Lack),
}

/// What a segment of a pattern takes beside its bytes: it is a place in the tree by which workers
/// are found.
const SEGMENT_COST_BYTES: usize = 256;

impl Session {
    /// Takes a frame.
    pub fn hear(
        &mut self,
        head: &Head<'_>,
        payload: Summed,
        make_id: MakeId<'_>,
    ) -> Result<Inbound, SessionError> {
        let kind = match head.kind() {
            Ok(kind) => kind,
            Err(unknown) if self.role == Role::Stranger => {
                return Err(SessionError::NoHello(unknown.to_string()));
            }
            Err(unknown) => return Ok(Inbound::Skipped(unknown.to_string())),
        };
        match (&self.role, kind) {
            (Role::Stranger, Kind::HelloClient) => self.client_hello(head, &payload, make_id),
            (Role::Stranger, Kind::HelloWorker) => self.worker_hello(head, &payload, make_id),
            (Role::Stranger, other) => Err(SessionError::NoHello(other.name().to_owned())),
            (Role::Client { .. } | Role::Worker { .. }, Kind::HelloClient | Kind::HelloWorker) => {
                Err(SessionError::SecondHello(kind.name().to_owned()))
            }
            (Role::Client { id }, Kind::SubmitJob) => {
                let (client, subject) = (id.clone(), head.subject.to_owned());
                let (msg_id, generation) = (head.msg_id, self.generation);
                Ok(Inbound::Submit(SubmitBody { msg_id, client, generation, subject, payload }))
            }
            (Role::Client { .. }, Kind::Cancel) => Ok(Inbound::Cancel(JobId(head.msg_id))),
            (Role::Client { .. }, Kind::Received) if self.has(Features::RECEIPTS) => {
                Ok(received(head, &payload))
            }
            (Role::Worker { .. }, Kind::Credit) => Ok(self.credit(&payload)),
            (Role::Worker { .. }, Kind::AckJob) => Ok(self.ack(head, payload)),
            (Role::Worker { .. }, Kind::Heartbeat) => Ok(self.heartbeat(&payload)),
            (Role::Client { .. } | Role::Worker { .. }, Kind::Keepalive) => Ok(Inbound::Alive),
            (Role::Worker { .. }, Kind::Progress) => Ok(self.heard_progress(head, &payload)),
            (Role::Worker { .. }, Kind::Programs) if self.has(Features::PROGRAMS) => {
                Ok(programs(head, &payload))
            }
            (Role::Client { .. } | Role::Worker { .. }, Kind::Ask) => {
                Ok(match Ask::decode(&payload) {
                    Ok(ask) => Inbound::Ask {
                        verb: head.subject.to_owned(),
                        id: head.msg_id,
                        json: ask.json.to_vec(),
                    },
                    Err(error) => Inbound::Skipped(error.to_string()),
                })
            }
            (
                Role::Client { .. } | Role::Worker { .. },
                Kind::Open | Kind::Grant | Kind::Done | Kind::Verdict,
            )
            | (Role::Client { .. } | Role::Worker { .. }, Kind::Abort | Kind::Void)
                if self.has(Features::TRANSFERS) =>
            {
                Ok(match TransferSays::decode(kind, &payload) {
                    Some(Ok(says)) => {
                        Inbound::Transfer { id: head.msg_id, says: self.understood(says) }
                    }
                    Some(Err(error)) => Inbound::Skipped(error.to_string()),
                    None => Inbound::Skipped(format!("{kind} is not a message of a transfer")),
                })
            }
            (Role::Client { .. } | Role::Worker { .. }, Kind::Piece)
                if self.has(Features::PIECES) =>
            {
                Ok(match Piece::decode(&payload) {
                    Ok(_) => Inbound::Piece { id: head.msg_id, payload: payload.into_bytes() },
                    Err(error) => Inbound::Skipped(error.to_string()),
                })
            }
            (Role::Client { .. }, Kind::Follow) if self.has(Features::FOLLOW) => {
                Ok(match Follow::decode(&payload) {
                    Ok(follow) => Inbound::Follow { id: head.msg_id, follow },
                    Err(error) => Inbound::Skipped(error.to_string()),
                })
            }
            (Role::Worker { .. }, Kind::Output) if self.has(Features::FOLLOW) => {
                Ok(match Output::decode(&payload) {
                    Ok(_) => Inbound::Output { id: head.msg_id, payload },
                    Err(error) => Inbound::Skipped(error.to_string()),
                })
            }
            (Role::Client { .. } | Role::Worker { .. }, Kind::CachePut | Kind::CacheAck)
            | (
                Role::Client { .. } | Role::Worker { .. },
                Kind::Put | Kind::Pack | Kind::Lack | Kind::Have,
            ) => {
                let is_ours = self.has(Features::DATASETS);
                let says = match self.role {
                    Role::Client { .. } => DatasetSays::from_client(head, kind, &payload, is_ours),
                    Role::Worker { .. } => DatasetSays::from_worker(head, kind, &payload, is_ours),
                    Role::Stranger => None,
                };
                Ok(match says {
                    Some(Ok(says)) => Inbound::Dataset(says),
                    Some(Err(error)) => Inbound::Skipped(error.to_string()),
                    None => Inbound::Skipped(format!(
                        "{kind} cannot be read, or is not from such a peer"
                    )),
                })
            }
            (Role::Client { .. } | Role::Worker { .. }, Kind::Welcome)
                if self.has(Features::CHECKSUMS) =>
            {
                Ok(Inbound::Skipped(
                    "it has read our Welcome: its frames have checksums".to_owned(),
                ))
            }
            (Role::Client { .. } | Role::Worker { .. }, other) => Ok(Inbound::Skipped(format!(
                "{other} is not a frame for a leader, or not one of this kind of peer"
            ))),
        }
    }

    /// What a message says to one who knows what its sender announced.
    pub(super) fn understood(&self, says: TransferSays) -> TransferSays {
        if let TransferSays::Grant(grant) = says {
            let part = if self.has(Features::PIECES) { grant.part } else { HeldPart::default() };
            return TransferSays::Grant(Grant { part, ..grant });
        }
        says
    }

    /// What a frame is that is too large to be gathered.
    pub fn bulk(&mut self, head: &Head<'_>) -> Result<BulkOf, SessionError> {
        let heard = self.hear(head, Bytes::from_static(b"-").into(), &mut Uuid::nil)?;
        if let Inbound::Submit(body) = heard {
            return Ok(BulkOf::Submit { body });
        }
        if let Inbound::Ack(body) = heard {
            return Ok(BulkOf::Ack { job: body.job });
        }
        let Inbound::Dataset(DatasetSays::Classic { request, subject, .. }) = heard else {
            return Ok(BulkOf::Nothing);
        };
        Ok(BulkOf::CachePut { request, subject })
    }

    fn client_hello(
        &mut self,
        head: &Head<'_>,
        payload: &Bytes,
        make_id: MakeId<'_>,
    ) -> Result<Inbound, SessionError> {
        let id = match head.subject {
            "" => ClientId::from(make_id().simple().to_string().as_str()),
            given => ClientId::from(given),
        };
        // A payload that cannot be read is as good as none (CP03).
        let config = ClientConfig::parse(payload).ok();
        let is_ours = config.as_ref().is_some_and(|config| config.heft.is_some());
        if !is_ours && self.generation == Generation::F2 && announces(payload) {
            // It was damaged on the way. As a classic one the client would get no parts of results.
            let why = "its announcement cannot be read".to_owned();
            return Err(SessionError::BadAnnouncement(why));
        }
        if is_ours && head.subject.len() > CLIENT_ID_BYTES_MAX {
            return Err(SessionError::BadAnnouncement(format!(
                "the client id has {} bytes; at most {CLIENT_ID_BYTES_MAX} are taken: shorten it",
                head.subject.len()
            )));
        }
        self.role = Role::Client { id: id.clone() };
        self.names_bytes = id.0.len() as u64;
        let cap = config.as_ref().map(|config| config.cap_for(head.subject));
        let peer = match (is_ours, head.subject) {
            (true, "") => ClientPeer::Asker,
            (true, _) => ClientPeer::Heft,
            (false, _) => ClientPeer::Classic,
        };
        let event = Event::ClientHello { conn: self.conn, client: id, cap, peer };
        Ok(self.announced(config.and_then(|config| config.heft), event))
    }

    /// What the payload of a worker's hello says. Classic workers send none, and classic leaders
    /// pass over what others put there (T10): so does this one, unless it looks like an
    /// announcement that was damaged.
    fn worker_announcement(payload: &[u8]) -> Result<Option<WorkerHello>, SessionError> {
        match WorkerHello::parse(payload) {
            Ok(hello) => Ok(Some(hello)),
            Err(error) if announces(payload) => {
                Err(SessionError::BadAnnouncement(error.to_string()))
            }
            Err(_) => Ok(None),
        }
    }

    fn worker_hello(
        &mut self,
        head: &Head<'_>,
        payload: &Bytes,
        make_id: MakeId<'_>,
    ) -> Result<Inbound, SessionError> {
        let id = WorkerId(if head.msg_id.is_nil() { make_id() } else { head.msg_id });
        let hello = Self::worker_announcement(payload)?;
        let announced = hello.as_ref().map(|hello| features_of(&hello.heft));
        let class = match announced {
            Some(features) if features.has(Features::LEASES) => WorkerClass::Leasing,
            Some(_) | None if self.generation == Generation::F0 => WorkerClass::OneAtATime,
            Some(_) | None => WorkerClass::Classic,
        };
        let patterns = match &hello {
            Some(hello) => {
                announced_patterns(head.subject, hello.patterns.iter().map(String::as_str))
                    .map_err(|error| SessionError::BadAnnouncement(error.to_string()))?
            }
            None => hello_patterns([head.subject])
                .map_err(|error| SessionError::BadHello(error.to_string()))?,
        };
        let name: Arc<str> =
            hello.as_ref().and_then(|hello| hello.heft.name.as_deref()).unwrap_or_default().into();
        let agent = match &hello {
            Some(hello) if hello.cache_only => Some(Agent { only: served_by(hello)? }),
            Some(_) | None => None,
        };
        // Nothing changes before all of it was read.
        self.role = Role::Worker { id, class, last_job: None, stand_ins: HashMap::new() };
        let pattern_cost = |pattern: &String| {
            pattern.len() + SEGMENT_COST_BYTES * (1 + pattern.matches('.').count())
        };
        let programs = hello.as_ref().and_then(|hello| hello.programs.as_ref());
        let programs = programs.and_then(|names| listed(names.iter().map(String::as_str)));
        self.names_bytes = (name.len() + patterns.iter().map(pattern_cost).sum::<usize>()) as u64;
        self.programs_bytes = programs.as_ref().map_or(0, ListedPrograms::bytes);
        self.agent = agent;
        let instance = hello.as_ref().and_then(|hello| hello.instance.as_deref());
        self.instance = instance.and_then(|text| Uuid::parse_str(text).ok());
        // An agent runs nothing.
        let parallel_max = match &self.agent {
            Some(_) => Some(0),
            None => hello.as_ref().and_then(|hello| hello.max_parallel),
        };
        let transfers = announced.is_some_and(|features| features.has(Features::TRANSFERS));
        let datasets = announced.is_some_and(|features| features.has(Features::DATASETS));
        let reads = match (self.generation, &hello) {
            // They look into no payload (C03).
            (Generation::F0 | Generation::F1, _) => PayloadKind::Raw,
            (Generation::F2, Some(hello)) if hello.raw => PayloadKind::Raw,
            (Generation::F2, Some(_)) => PayloadKind::Folders,
            (Generation::F2, None) => PayloadKind::Request,
        };
        let event = Event::WorkerHello(Hello {
            conn: self.conn,
            worker: id,
            name,
            class,
            patterns,
            parallel_max,
            transfers,
            datasets,
            reads,
            programs,
        });
        Ok(self.announced(hello.map(|hello| hello.heft), event))
    }

    fn announced(&mut self, announcement: Option<Announcement>, event: Event) -> Inbound {
        match announcement {
            Some(announcement) if self.generation == Generation::F2 => {
                self.features = Some(features_of(&announcement).common(FEATURES));
                Inbound::Announced(event)
            }
            Some(_) | None => Inbound::Event(event),
        }
    }

    fn credit(&self, payload: &[u8]) -> Inbound {
        match parse_credit(payload) {
            Ok(delta) => Inbound::Event(Event::Credit { conn: self.conn, delta }),
            Err(error) => Inbound::Skipped(error.to_string()),
        }
    }

    fn heartbeat(&self, payload: &[u8]) -> Inbound {
        match Heartbeat::decode(payload) {
            Ok(beat) => {
                let held = beat.jobs.as_slice().iter();
                let held = held
                    .map(|held| (JobId(held.job), Run(held.run), Attempt(held.attempt)))
                    .collect();
                let (cpu_permille, credit) = (beat.cpu_permille, beat.credit);
                Inbound::Event(Event::Heartbeat { conn: self.conn, cpu_permille, credit, held })
            }
            Err(error) => Inbound::Skipped(error.to_string()),
        }
    }

    fn heard_progress(&self, head: &Head<'_>, payload: &[u8]) -> Inbound {
        let says = match Progress::decode(payload) {
            Ok(says) => says,
            Err(error) => return Inbound::Skipped(error.to_string()),
        };
        let job = JobId(head.msg_id);
        let doing = match says.stage {
            // It has not begun to run; its heartbeats renew the lease.
            Stage::Receiving => None,
            Stage::Returning => Some(Doing::Returning),
            Stage::Waiting | Stage::Running | Stage::Packing => Some(Doing::Running),
        };
        let event = doing.map(|doing| Event::Progress {
            conn: self.conn,
            job,
            run: Run(says.run),
            attempt: Attempt(says.attempt),
            doing,
        });
        Inbound::Progress { job, says, event }
    }

    fn ack(&mut self, head: &Head<'_>, payload: Summed) -> Inbound {
        let Role::Worker { last_job, stand_ins, .. } = &mut self.role else {
            return Inbound::Skipped("an ack from no worker".to_owned());
        };
        // Without ids it can only be the job that was sent last (C03).
        let job = match self.generation {
            Generation::F0 => last_job.take(),
            Generation::F1 | Generation::F2 => Some(JobId(head.corr_id)),
        };
        let Some(named) = job else { return Inbound::Skipped("an ack for no job".to_owned()) };
        let (job, payload) = match stand_ins.remove(&named) {
            Some(job) => (job, of_job(payload, job)),
            None => (named, payload),
        };
        let nothing = |says| (says, ClaimedAttempt::default(), Vec::new());
        let (says, named, parts) = match (self.generation, payload.is_empty()) {
            (Generation::F0 | Generation::F1, true) => nothing(AckSays::PlainOk),
            (Generation::F2, true) => nothing(AckSays::ResultLost),
            (Generation::F0 | Generation::F1 | Generation::F2, false) => read_result(&payload),
        };
        Inbound::Ack(AckBody { job, named, says, parts, payload })
    }
}

/// A result under the id of its job, which its worker knows by another.
fn of_job(payload: Summed, job: JobId) -> Summed {
    match JobResult::parse(&payload) {
        Ok(result) => JobResult { job_id: job.0, ..result }.to_json().into(),
        Err(_) => payload,
    }
}

/// Whether a hello is one of ours, even if it cannot be read.
fn announces(payload: &[u8]) -> bool {
    // Either: one bit that was turned over on the way leaves one of them.
    let has = |member: &[u8]| payload.windows(member.len()).any(|window| window == member);
    has(b"\"Heft\"") || has(b"\"Features\"")
}

/// The one worker that an agent serves, if it names one.
fn served_by(hello: &WorkerHello) -> Result<Option<WorkerId>, SessionError> {
    let Some(text) = &hello.cache_for else { return Ok(None) };
    let id = Uuid::try_parse(text).map_err(|error| {
        let shown: String = text.chars().take(QUOTE_CHARS_MAX).collect();
        SessionError::BadAnnouncement(format!("CacheFor {shown:?} is not a worker's id: {error}"))
    })?;
    Ok(Some(WorkerId(id)))
}

fn programs(head: &Head<'_>, payload: &[u8]) -> Inbound {
    let (say, names) = match Programs::decode(payload) {
        Ok(Programs { say, names }) => (say, names),
        Err(error) => return Inbound::Skipped(error.to_string()),
    };
    let said = match say {
        ProgramsSay::Are => {
            let names = names.as_slice().iter().map(Name::as_str);
            listed(names).map_or(ProgramsSaid::Unlisted, ProgramsSaid::Are)
        }
        ProgramsSay::Same => ProgramsSaid::Same,
        ProgramsSay::Unlisted => ProgramsSaid::Unlisted,
        ProgramsSay::Look => {
            return Inbound::Skipped("only a leader asks for programs".to_owned());
        }
    };
    Inbound::Programs { said, answers: !head.corr_id.is_nil() }
}

/// A list as it is kept. One that is too long is none: its worker is given what its patterns say.
fn listed<'a>(names: impl Iterator<Item = &'a str>) -> Option<ListedPrograms> {
    Some(ListedPrograms::new(names)).filter(|programs| programs.bytes() <= PROGRAMS_BYTES_MAX)
}

fn received(head: &Head<'_>, payload: &[u8]) -> Inbound {
    match Received::decode(payload) {
        Ok(Received { run }) => {
            Inbound::Received { job: JobId(head.msg_id), run: (run > 0).then_some(Run(run)) }
        }
        Err(error) => Inbound::Skipped(error.to_string()),
    }
}

fn features_of(announcement: &Announcement) -> Features {
    Features::from_names(announcement.features.iter().map(String::as_str))
}

/// Payloads up to this size are read as they are; of larger ones the archive and the outputs are
/// passed over.
const SMALL_BYTES: usize = 64 * 1024;

/// What a result says, of which attempt it is, and the blobs that are its parts. Bytes that are not
/// a JobResult are a raw result, which is fine.
pub(crate) fn read_result(payload: &[u8]) -> (AckSays, ClaimedAttempt, Vec<Uuid>) {
    let read = if payload.len() <= SMALL_BYTES {
        JobResult::parse(payload)
    } else {
        let mut stream = ContentStream::new(Shape::JobResult);
        let streamed = stream.push(payload, &mut |_| {}).and_then(|()| stream.finish());
        streamed.and_then(|residue| JobResult::parse(&residue.json))
    };
    let Ok(result) = read else {
        return (AckSays::Result { ok: true }, ClaimedAttempt::default(), Vec::new());
    };
    let named = ClaimedAttempt { run: result.run.map(Run), attempt: result.attempts.map(Attempt) };
    let says = match result.status {
        JobStatus::Ok => AckSays::Result { ok: true },
        JobStatus::Duplicate => AckSays::ResultLost,
        JobStatus::Cancelled if result.no_program => AckSays::Lacks(Lack::Program),
        JobStatus::Cancelled if result.no_directory => AckSays::Lacks(Lack::Directory),
        JobStatus::Cancelled if result.no_room => AckSays::Lacks(Lack::Room),
        JobStatus::Cancelled => AckSays::GivenUp,
        JobStatus::Failed | JobStatus::Other(_) => AckSays::Result { ok: false },
    };
    let parts = [&result.archive, &result.stdout_blob, &result.stderr_blob];
    (says, named, parts.into_iter().flatten().map(|part| part.id).collect())
}
