//! Job control messages between heft peers. The frame's MsgId is the job's id, except for
//! Heartbeat.

use super::fields::{byte_enum, message, put_count};
use super::{Body, Field, MessageError, Name, Reader, Reason, Text};
use crate::kind::Kind;
use crate::limits::{HEARTBEAT_JOBS_MAX, PROGRAMS_LISTED_MAX};
use serde::Serialize;
use uuid::Uuid;

byte_enum! {
    /// Where a job stood when its submission was answered.
    Standing, "standings are 0 queued, 1 assigned, 2 running, 3 finished", {
        /// It waits for a worker.
        Queued = 0,
        /// A worker has it and receives its inputs.
        Assigned = 1,
        /// A worker runs it: the submission was a repeated one.
        Running = 2,
        /// It has ended, and the stored result follows: the submission was a repeated one.
        Finished = 3,
    }
}

message! {
    /// The job is taken, and safe as far as the leader's durability goes.
    Submitted {
        /// Where it stands.
        standing: Standing,
        /// Which run of the job this is: 1, and one more for each requeue from the dead-letter
        /// queue.
        run: u32,
        /// Jobs before it in its queue.
        ahead: u32,
    }
}

message! {
    /// What was sent is not taken. MsgId is the job's or transfer's id where there is one, CorrId
    /// the refused frame's.
    Refused {
        reason: Reason,
        /// The value that was too much, 0 if none.
        value: u64,
        /// What would have been taken, 0 if that is not the point.
        limit: u64,
        /// The hop whose limit it is.
        hop: Name,
        /// All of it as a sentence, with the next step.
        text: Text,
    }
}

/// What else a worker should know of a job that it starts. Nothing is written where there is
/// nothing to say: peers that do not know the field send and get what they always did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StartFlags(pub u16);

impl StartFlags {
    /// The client takes the large parts of its result beside it, by transfer. Without the flag it
    /// may be one that takes a single frame, into which as much as possible has to fit.
    pub const TAKES_PARTS: StartFlags = StartFlags(1);

    /// Whether all of `flags` are set. Bits that are not known are skipped.
    pub const fn has(self, flags: StartFlags) -> bool {
        self.0 & flags.0 == flags.0
    }

    /// Whether there is nothing to say.
    pub fn is_none(&self) -> bool {
        self.0 == 0
    }
}

impl Field for StartFlags {
    fn put(&self, out: &mut Vec<u8>) {
        if !self.is_none() {
            self.0.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        if reader.is_empty() {
            return Ok(StartFlags::default());
        }
        reader.field(field).map(StartFlags)
    }
}

message! {
    /// The worker has all it needs and may run the job.
    Start {
        /// Run of the job.
        run: u32,
        /// The attempt. It counts on over all runs of the job, so that it alone tells an old one
        /// from a new one.
        attempt: u32,
        /// The lease: after this time without a heartbeat the job is requeued.
        lease_ms: u32,
        /// What else there is to know.
        #[serde(skip_serializing_if = "StartFlags::is_none")]
        flags: StartFlags,
    }
}

/// A job that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct HeldJob {
    pub job: Uuid,
    /// Run of the job.
    pub run: u32,
    pub attempt: u32,
}

/// The jobs a worker holds, at most [`HEARTBEAT_JOBS_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HeldJobs(Vec<HeldJob>);

impl HeldJobs {
    const ENTRY_BYTES: usize = 24;

    /// The first [`HEARTBEAT_JOBS_MAX`] of `jobs`, which is also the most a worker may run at a
    /// time.
    pub fn new(mut jobs: Vec<HeldJob>) -> Self {
        jobs.truncate(HEARTBEAT_JOBS_MAX);
        HeldJobs(jobs)
    }

    pub fn as_slice(&self) -> &[HeldJob] {
        &self.0
    }
}

impl Field for HeldJobs {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        for held in &self.0 {
            held.job.put(out);
            held.run.put(out);
            held.attempt.put(out);
        }
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        reader
            .list(field, HEARTBEAT_JOBS_MAX, Self::ENTRY_BYTES, |reader| {
                Ok(HeldJob {
                    job: reader.field(field)?,
                    run: reader.field(field)?,
                    attempt: reader.field(field)?,
                })
            })
            .map(HeldJobs)
    }
}

message! {
    /// The worker lives, and renews the leases of the jobs it lists. MsgId is nil.
    Heartbeat {
        /// Use of the machine's processors in thousandths.
        cpu_permille: u16,
        /// Jobs it may still be given, as it counts its credit.
        credit: u32,
        /// Jobs it holds.
        jobs: HeldJobs,
    }
}

byte_enum! {
    /// What is being done to a job.
    Stage, "stages are 1 waiting, 2 receiving, 3 running, 4 packing, 5 returning", {
        /// Nothing yet; the text says what it waits for.
        Waiting = 1,
        /// Its inputs are on their way.
        Receiving = 2,
        Running = 3,
        /// What it made is being packed.
        Packing = 4,
        /// Its result is on its way back.
        Returning = 5,
    }
}

message! {
    /// How far a job is. From a worker it renews the lease (C05).
    Progress {
        /// Run of the job.
        run: u32,
        /// The attempt; 0 while it has none.
        attempt: u32,
        /// What is being done.
        stage: Stage,
        /// Bytes done of that.
        done: u64,
        /// Bytes in all; 0 if that is not known.
        total: u64,
        text: Text,
    }
}

message! {
    /// The job is not wanted any more.
    Cancel {
        /// The attempt to end; 0 for whichever is under way.
        attempt: u32,
        /// Who asked, and why.
        text: Text,
    }
}

message! {
    /// The result is safe as far as the leader's durability goes: the worker may drop the job's
    /// directory and its copy of the result. Until then it sends the result again after each
    /// reconnect.
    Settled {
        /// Run of the job.
        run: u32,
    }
}

message! {
    /// The client's program has the job's result: it counts as delivered. Until then the leader
    /// pushes it again whenever the client comes back.
    Received {
        /// Run of the job, as Submitted said it; 0 for the one whose result came last.
        run: u32,
    }
}

/// Reads a Credit payload (CR03): an Int32, or nothing, which means one. Bounds are the broker's
/// business (CR04).
pub fn parse_credit(payload: &[u8]) -> Result<i32, MessageError> {
    match <[u8; 4]>::try_from(payload) {
        Ok(delta) => Ok(i32::from_le_bytes(delta)),
        Err(_) if payload.is_empty() => Ok(1),
        Err(_) => Err(MessageError::Value {
            message: Kind::Credit,
            field: "payload length",
            value: payload.len() as u64,
            expected: "a credit has 4 bytes, or none for a credit of one",
        }),
    }
}

/// The sender is alive. It is sent when nothing else was sent for the heartbeat time, if both sides
/// know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Keepalive {}

impl Body for Keepalive {
    const KIND: Kind = Kind::Keepalive;

    fn put_fields(&self, _: &mut Vec<u8>) {}

    fn get_fields(_: &mut Reader<'_>) -> Result<Self, MessageError> {
        Ok(Keepalive {})
    }
}

byte_enum! {
    /// What is said of programs.
    ProgramsSay, "what is said of programs is 1 look, 2 are, 3 same, 4 unlisted", {
        /// From the leader: the worker is to look which it has, and to answer.
        Look = 1,
        /// From the worker: these, and no others. Some are other than before.
        Are = 2,
        /// From the worker: nothing changed since it said so last.
        Same = 3,
        /// From the worker: it does not list them.
        Unlisted = 4,
    }
}

/// The names of programs, at most [`PROGRAMS_LISTED_MAX`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ProgramList(Vec<Name>);

impl ProgramList {
    /// The first [`PROGRAMS_LISTED_MAX`] of these.
    pub fn new(mut names: Vec<Name>) -> Self {
        names.truncate(PROGRAMS_LISTED_MAX);
        ProgramList(names)
    }

    pub fn as_slice(&self) -> &[Name] {
        &self.0
    }
}

impl Field for ProgramList {
    fn put(&self, out: &mut Vec<u8>) {
        put_count(self.0.len(), out);
        self.0.iter().for_each(|name| name.put(out));
    }
    fn get(reader: &mut Reader<'_>, field: &'static str) -> Result<Self, MessageError> {
        let name = |reader: &mut Reader<'_>| reader.field::<Name>(field);
        reader.list(field, PROGRAMS_LISTED_MAX, size_of::<u16>(), name).map(ProgramList)
    }
}

message! {
    /// Which programs a worker has. From the leader, which wants to know it, MsgId is the
    /// question's id; the worker's answer has that in CorrId, and what it says unasked has none.
    Programs {
        say: ProgramsSay,
        names: ProgramList,
    }
}
