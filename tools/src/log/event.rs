//! A record of the log as a JSON line: the founding names for the founding events (PE03, PE05),
//! names of the same kind for the others, members in camelCase (M16). What a record does not say
//! itself, such as whose job it is, comes from the state.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use heft::core::Record;
use heft::core::dataset::Dataset;
use heft::core::event::{Inputs, Submission, WorkerClass};
use heft::core::ids::{JobId, WorkerId};
use heft::core::job::Phase;
use heft::core::members::{self, AddressKind, Members, Role};
use heft::core::record::AttemptEnd;
use heft::core::state::State;
use heft::store::codec::AttachedAt;
use serde::Serialize;
use uuid::Uuid;

use crate::time::iso;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Line {
    pub(super) index: u64,
    #[serde(rename = "type")]
    pub(super) name: &'static str,
    /// Null if no record so far has named a moment.
    pub(super) at: Option<String>,
    /// The record names no moment: this is the latest one before it.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) at_least: bool,
    /// The record came too late, or again, and changed nothing.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) stale: bool,
    /// The record is in the tail only.
    #[serde(skip_serializing_if = "is_false")]
    pub(super) uncommitted: bool,
    #[serde(flatten)]
    pub(super) event: Event,
}

// serde hands references to these.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// What the events have.
#[derive(Debug, Serialize)]
#[serde(untagged, rename_all_fields = "camelCase")]
pub(super) enum Event {
    Announce {
        job: Job,
    },
    Enqueue {
        job: Job,
        kept: bool,
        #[serde(skip_serializing_if = "Vec::is_empty")]
        children: Vec<Child>,
    },
    Assign {
        job_id: Uuid,
        worker_id: Uuid,
        attempt: u32,
        run: u32,
        /// Of a worker that is not one of ours. Logs of before say it of none.
        #[serde(skip_serializing_if = "Option::is_none")]
        class: Option<&'static str>,
    },
    Ack {
        job_id: Uuid,
        client_id: Option<String>,
        worker_id: Uuid,
        run: u32,
        ok: bool,
        result: Returned,
    },
    Requeue {
        job_id: Uuid,
        worker_id: Option<Uuid>,
        attempt: u32,
        run: u32,
        why: &'static str,
        counts: bool,
        not_before: String,
    },
    Dlq {
        job_id: Uuid,
        worker_id: Option<Uuid>,
        attempt: u32,
        run: u32,
        why: &'static str,
    },
    Cancel {
        job_id: Uuid,
        run: u32,
        by: String,
    },
    Fail {
        job_id: Uuid,
        run: u32,
        why: String,
    },
    /// Those that name a run of a job and nothing else.
    OfRun {
        job_id: Uuid,
        run: u32,
    },
    Cap {
        client_id: String,
        cap: u32,
    },
    Dataset {
        #[serde(skip_serializing_if = "Option::is_none")]
        job_id: Option<Uuid>,
        cache_id: String,
        #[serde(rename = "generation")]
        version: Uuid,
        digest: String,
        bytes: u64,
        files: u32,
        target: String,
        packs: Vec<Uuid>,
    },
    DatasetGone {
        cache_id: String,
        #[serde(rename = "generation")]
        version: Uuid,
    },
    Term {
        term: u64,
    },
    Members {
        cluster: Uuid,
        members: Vec<Member>,
        /// While a change is on its way: the members before it.
        #[serde(skip_serializing_if = "Option::is_none")]
        outgoing: Option<Vec<Member>>,
        removed: Vec<u32>,
    },
    Level {
        level: u32,
    },
    Mark {
        id: Uuid,
    },
    Office {
        leader: u32,
    },
}

/// A member of a cluster.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Member {
    number: u32,
    directory: Uuid,
    role: &'static str,
    addresses: Vec<Address>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Address {
    kind: String,
    address: String,
}

pub(super) const fn role(role: Role) -> &'static str {
    match role {
        Role::Voter => "voter",
        Role::Learner => "learner",
    }
}

impl Member {
    fn new(member: &members::Member) -> Self {
        let addresses = member.addresses.iter().map(|address| Address {
            kind: match address.kind {
                AddressKind::HEFT => "heft".to_owned(),
                AddressKind::CLASSIC => "classic".to_owned(),
                AddressKind::TASKFLUX => "taskflux".to_owned(),
                other => other.code().to_string(),
            },
            address: address.text.to_string(),
        });
        Member {
            number: member.node.0,
            directory: member.dir,
            role: role(member.role),
            addresses: addresses.collect(),
        }
    }
}

/// A job as it was submitted.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Job {
    job_id: Uuid,
    client_id: String,
    exec_name: String,
    routing_key: String,
    priority: i64,
    size: u64,
    #[serde(skip_serializing_if = "is_false")]
    to_all: bool,
    #[serde(skip_serializing_if = "is_false")]
    inputs_by_transfer: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    datasets: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
    #[serde(flatten)]
    payload: Payload,
}

/// A child of a job to all workers.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Child {
    job_id: Uuid,
    worker_id: Uuid,
}

/// A result that a worker returned.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Returned {
    id: u64,
    #[serde(flatten)]
    payload: Payload,
}

/// What lies in the log beside a record. Nothing, where the job's announcement has it.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Payload {
    #[serde(skip_serializing_if = "Option::is_none")]
    payload_bytes: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blobs: Vec<Uuid>,
    #[serde(skip_serializing_if = "Option::is_none")]
    raw_payload: Option<String>,
}

impl Payload {
    /// As it lies there; with its bytes, if they are wanted.
    pub(super) fn new(attached: Option<&AttachedAt>, bytes: Option<&[u8]>) -> Self {
        let Some(attached) = attached else { return Payload::default() };
        Payload {
            payload_bytes: Some(attached.payload.len() as u64),
            blobs: attached.blobs.clone(),
            raw_payload: bytes.map(|bytes| STANDARD.encode(bytes)),
        }
    }
}

impl Job {
    fn new(submission: &Submission, payload: Payload) -> Self {
        let Submission {
            job,
            client,
            key,
            exec,
            priority,
            to_all,
            size,
            inputs,
            datasets,
            tag,
            ..
        } = submission;
        Job {
            job_id: job.0,
            client_id: client.to_string(),
            exec_name: exec.to_string(),
            routing_key: key.to_string(),
            priority: *priority,
            size: *size,
            to_all: *to_all,
            inputs_by_transfer: *inputs == Inputs::Expected,
            datasets: datasets.iter().map(ToString::to_string).collect(),
            tag: tag.as_ref().map(ToString::to_string),
            payload,
        }
    }
}

/// The name of a record's event.
pub(super) const fn name(record: &Record) -> &'static str {
    match record {
        Record::Announce { .. } => "announce",
        Record::Enqueue { .. } => "enqueue",
        Record::Assign { .. } => "assign",
        Record::Ack { .. } => "ack",
        Record::Requeue { why: AttemptEnd::TimedOut, .. } => "timeout_requeue",
        Record::Requeue { why: AttemptEnd::WorkerLost, .. } => "worker_down_requeue",
        Record::Requeue {
            why:
                AttemptEnd::NotHeld
                | AttemptEnd::ResultLost
                | AttemptEnd::GivenUp
                | AttemptEnd::InputsStalled
                | AttemptEnd::DiskFull
                | AttemptEnd::NoDirectory
                | AttemptEnd::Stopped
                | AttemptEnd::NoProgram
                | AttemptEnd::InputsBad,
            ..
        } => "requeue",
        Record::Dlq { .. } => "dlq",
        Record::Cancel { .. } => "cancel",
        Record::Withdraw { .. } => "withdraw",
        Record::Fail { .. } => "fail",
        Record::Orphan { .. } => "orphan",
        Record::Revive { .. } => "revive",
        Record::DropInputs { .. } => "drop_inputs",
        Record::Forget { .. } => "forget",
        Record::Delivered { .. } => "delivered",
        Record::Cap { .. } => "cap",
        Record::Dataset { .. } => "dataset",
        Record::Stage { .. } => "stage",
        Record::DatasetGone { .. } => "dataset_gone",
        Record::Term { .. } => "term",
        Record::Members { .. } => "members",
        Record::Level { .. } => "level",
        Record::Mark { .. } => "mark",
        Record::Office { .. } => "office",
    }
}

fn class_name(class: WorkerClass) -> Option<&'static str> {
    match class {
        WorkerClass::Leasing => None,
        WorkerClass::Classic => Some("classic"),
        WorkerClass::OneAtATime => Some("minimal"),
    }
}

/// What an event has. `state` is the one before the record.
pub(super) fn event(record: &Record, payload: Payload, state: &State) -> Event {
    match record {
        Record::Announce { job, .. } => Event::Announce { job: Job::new(job, payload) },
        Record::Enqueue { job, children, kept, .. } => Event::Enqueue {
            job: Job::new(job, payload),
            kept: *kept,
            children: children
                .iter()
                .map(|(job, worker)| Child { job_id: job.0, worker_id: worker.0 })
                .collect(),
        },
        Record::Assign { job, run, attempt, worker, class, .. } => Event::Assign {
            job_id: job.0,
            worker_id: worker.0,
            attempt: attempt.0,
            run: run.0,
            class: class_name(*class),
        },
        Record::Ack { job, run, worker, result, ok, .. } => Event::Ack {
            job_id: job.0,
            client_id: state.job(*job).map(|job| job.submission.client.to_string()),
            worker_id: worker.0,
            run: run.0,
            ok: *ok,
            result: Returned { id: result.0, payload },
        },
        Record::Requeue { job, run, attempt, why, counts, not_before, .. } => Event::Requeue {
            job_id: job.0,
            worker_id: holder(state, *job),
            attempt: attempt.0,
            run: run.0,
            why: super::why(*why),
            counts: *counts,
            not_before: iso(*not_before),
        },
        Record::Dlq { job, run, attempt, why, .. } => Event::Dlq {
            job_id: job.0,
            worker_id: holder(state, *job),
            attempt: attempt.0,
            run: run.0,
            why: super::why(*why),
        },
        Record::Cancel { job, run, by, .. } => {
            Event::Cancel { job_id: job.0, run: run.0, by: by.to_string() }
        }
        Record::Fail { job, run, why, .. } => {
            Event::Fail { job_id: job.0, run: run.0, why: why.to_string() }
        }
        Record::Withdraw { job, run }
        | Record::Orphan { job, run, .. }
        | Record::Revive { job, run }
        | Record::DropInputs { job, run }
        | Record::Forget { job, run }
        | Record::Delivered { job, run } => Event::OfRun { job_id: job.0, run: run.0 },
        Record::Cap { client, cap } => Event::Cap { client_id: client.to_string(), cap: *cap },
        Record::Dataset { dataset } => Event::dataset(None, dataset),
        Record::Stage { job, dataset } => Event::dataset(Some(*job), dataset),
        Record::DatasetGone { cache, version } => {
            Event::DatasetGone { cache_id: cache.to_string(), version: *version }
        }
        Record::Term { term } => Event::Term { term: term.0 },
        Record::Members { members } => Event::members(members),
        Record::Level { level } => Event::Level { level: level.0 },
        Record::Mark { id } => Event::Mark { id: *id },
        Record::Office { leader, .. } => Event::Office { leader: leader.0 },
    }
}

impl Event {
    pub(super) fn members(members: &Members) -> Self {
        let list = |list: &[members::Member]| list.iter().map(Member::new).collect();
        Event::Members {
            cluster: members.cluster(),
            members: list(members.incoming()),
            outgoing: members.outgoing().map(list),
            removed: members.removed().iter().map(|node| node.0).collect(),
        }
    }

    /// What is said of a dataset, and of the job whose inputs it is.
    fn dataset(job: Option<JobId>, dataset: &Dataset) -> Self {
        Event::Dataset {
            job_id: job.map(|job| job.0),
            cache_id: dataset.cache.to_string(),
            version: dataset.version,
            digest: dataset.digest.iter().map(|byte| format!("{byte:02x}")).collect(),
            bytes: dataset.bytes,
            files: dataset.files,
            target: dataset.target.to_string(),
            packs: dataset.packs.clone(),
        }
    }
}

/// The worker that has a job.
fn holder(state: &State, job: JobId) -> Option<Uuid> {
    match state.job(job)?.phase {
        Phase::Leased { worker: WorkerId(worker), .. } => Some(worker),
        Phase::Queued { .. }
        | Phase::Gathering { .. }
        | Phase::Done { .. }
        | Phase::Dead { .. } => None,
    }
}
