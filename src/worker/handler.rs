//! The interface of code that runs jobs: the [`Handler`] a program supplies, the [`Job`] it is
//! given and the [`JobContext`] it may use.
//!
//! Nothing here knows connections. [`Exec`](super::Exec) is the handler of `heft worker`; embedding
//! programs write their own, or pass a closure.

use std::future::Future;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chunking::message::{Purpose, Stage};
use thiserror::Error;
use tokio::sync::{Mutex, mpsc, watch};
use uuid::Uuid;

use super::cache::KeptDatasets;
use super::directory::{JobDirectory, OpenDirectory, outputs_beside};
use crate::model::{
    BlobRef, InputFile, JobRequest, JobResult, JobStatus, JsonModel, ModelError, Source,
};
use crate::transfer::ChunkSink;
use crate::units::Span;

/// Runs jobs, several at a time.
///
/// The future is dropped if its job is cancelled and it does not return soon; a panic fails the job
/// and nothing else. A closure `|job, context| async move { ... }` that gives a [`JobResult`] is a
/// handler too.
pub trait Handler: Send + Sync + 'static {
    /// Runs one job to its end. Ids in the result that are empty are filled in.
    fn run(&self, job: Job, context: JobContext) -> impl Future<Output = JobResult> + Send;

    /// Where an input file goes that comes by transfer. `None`, the default, writes it into the
    /// job's directory, where [`JobContext::directory`] has it under its name when the job runs.
    /// The job runs when all its inputs are whole.
    fn sink(&self, job: &Job, file: &InputFile) -> Option<Box<dyn ChunkSink>> {
        let _unused = (job, file);
        None
    }
}

impl<F, R> Handler for F
where
    F: Fn(Job, JobContext) -> R + Send + Sync + 'static,
    R: Future<Output = JobResult> + Send,
{
    fn run(&self, job: Job, context: JobContext) -> impl Future<Output = JobResult> + Send {
        self(job, context)
    }
}

/// A job to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job.
    pub id: Uuid,
    /// Which run of it; 1 where the leader does not say.
    pub run: u32,
    /// Which attempt of the run; 1 where the leader does not say.
    pub attempt: u32,
    /// Whether its client is known to take large parts of the result beside it
    /// ([`JobContext::attach`]). If not, as much as possible has to fit one frame.
    pub takes_parts: bool,
    /// The subject it was assigned under.
    pub subject: String,
    /// What the client sent, byte for byte.
    pub payload: Bytes,
    /// The same as a request, or why it is none: a raw job may be any bytes (M19). Leaders give
    /// those only to workers that say they take them
    /// ([`WorkerConfig::takes_raw`](super::WorkerConfig::takes_raw)).
    pub request: Result<JobRequest, ModelError>,
}

impl Job {
    /// A job as it was assigned; reads the payload.
    pub fn new(id: Uuid, subject: impl Into<String>, payload: impl Into<Bytes>) -> Self {
        let payload = payload.into();
        let request = JobRequest::parse(&payload);
        let (run, attempt, takes_parts) = (1, 1, false);
        Job { id, run, attempt, takes_parts, subject: subject.into(), payload, request }
    }

    /// Input files that come by transfer, with their places among all.
    pub fn blobs(&self) -> impl Iterator<Item = (usize, &InputFile, &BlobRef)> {
        self.files().iter().enumerate().filter_map(|(at, file)| {
            let Source::Blob(blob) = file.source() else { return None };
            Some((at, file, blob))
        })
    }

    fn files(&self) -> &[InputFile] {
        self.request.as_ref().map(|request| request.files.as_slice()).unwrap_or_default()
    }

    /// The datasets that input files of it are in, once for each file.
    pub fn caches(&self) -> impl Iterator<Item = &str> {
        let files = self.files().iter();
        files.filter_map(
            |file| if let Source::Cache(cache) = file.source() { Some(cache) } else { None },
        )
    }

    /// A result of this job without output.
    pub fn result(&self, status: JobStatus) -> JobResult {
        match &self.request {
            Ok(request) => JobResult::new(self.id, &request.client_id, &request.exec_name, status),
            Err(_) => JobResult::new(self.id, "", "", status),
        }
    }

    /// Says that the job cannot run here for want of room on the disk: the leader gives it to
    /// another worker, or to this one later. It must not have begun.
    pub fn no_room(&self, why: impl Into<String>) -> JobResult {
        JobResult { stderr: why.into(), no_room: true, ..self.result(JobStatus::Cancelled) }
    }

    /// The same, as this worker cannot use its work directory.
    pub fn no_directory(&self, why: impl Into<String>) -> JobResult {
        JobResult { no_directory: true, ..self.no_room(why) }
    }

    /// Says that the job cannot be run here now, through no fault of its own: the leader gives it
    /// out again, which counts as an attempt. It must not have begun.
    pub fn handed_back(&self, why: impl Into<String>) -> JobResult {
        JobResult { stderr: why.into(), ..self.result(JobStatus::Cancelled) }
    }

    /// A result that says why the job failed.
    pub fn failed(&self, why: impl Into<String>) -> JobResult {
        JobResult { stderr: why.into(), ..self.result(JobStatus::Failed) }
    }
}

/// Why a job was told to stop. Shown, it opens the result's Stderr.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Somebody cancelled it.
    Cancelled {
        /// Who and why, if that was said.
        text: String,
    },
    /// It ran too long.
    TimeLimit(Duration),
}

impl std::fmt::Display for StopReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            StopReason::Cancelled { text } if text.is_empty() => f.write_str("cancelled"),
            StopReason::Cancelled { text } => write!(f, "cancelled: {text}"),
            StopReason::TimeLimit(limit) => write!(
                f,
                "stopped: the job ran longer than its time limit of {}: give it more time, or less to do",
                Span(*limit)
            ),
        }
    }
}

/// Tells a job to stop. Clones speak of the same job; the first reason stands.
#[derive(Clone, Debug)]
pub struct CancelToken(Arc<watch::Sender<Option<StopReason>>>);

impl Default for CancelToken {
    fn default() -> Self {
        CancelToken(Arc::new(watch::Sender::new(None)))
    }
}

impl CancelToken {
    /// Tells the job to stop.
    pub fn cancel(&self, reason: StopReason) {
        self.0.send_if_modified(|held| match held {
            Some(_) => false,
            None => {
                *held = Some(reason);
                true
            }
        });
    }

    /// Why the job is to stop, if it is.
    pub fn reason(&self) -> Option<StopReason> {
        self.0.borrow().clone()
    }

    /// Waits until the job is to stop.
    pub async fn cancelled(&self) -> StopReason {
        let mut receiver = self.0.subscribe();
        loop {
            if let Some(reason) = self.reason() {
                return reason;
            }
            if receiver.changed().await.is_err() {
                // The sender lives in `self`, so this is never reached; to wait on is right for
                // what never happens.
                std::future::pending::<()>().await;
            }
        }
    }
}

/// How far a job is, on its way to the leader.
#[derive(Clone, Debug)]
pub(super) struct Note {
    pub(super) job: Uuid,
    pub(super) stage: Stage,
    pub(super) done: u64,
    pub(super) total: u64,
    pub(super) text: String,
}

impl Note {
    /// The job is about to run.
    pub(super) fn running(job: Uuid) -> Self {
        Note { job, stage: Stage::Running, done: 0, total: 0, text: String::new() }
    }
}

/// The bytes of a large part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// A file. It belongs to the worker from now on, which removes it when the leader has the
    /// result. Files beside the job's directory ([`JobContext::outputs`]) outlive a restart of a
    /// worker that keeps its results; others need not.
    File(PathBuf),
    /// Memory.
    Memory(Bytes),
}

impl Content {
    /// How many there are.
    pub fn bytes(&self) -> io::Result<u64> {
        match self {
            Content::File(path) => Ok(std::fs::metadata(path)?.len()),
            Content::Memory(bytes) => Ok(bytes.len() as u64),
        }
    }
}

/// A large part of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attachment {
    pub(super) purpose: Purpose,
    pub(super) content: Content,
}

/// A part that results do not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("a result has no part {purpose:?}: attach an Archive, Stdout or Stderr")]
pub struct AttachError {
    /// What it was to be.
    pub purpose: Purpose,
}

/// What a job has attached so far.
pub(super) type Attached = Arc<std::sync::Mutex<Vec<Attachment>>>;

/// The directory of a job once somebody asked for one.
pub(super) type DirectorySlot = Arc<Mutex<Option<JobDirectory>>>;

/// What a job may use while it runs.
#[derive(Clone, Debug)]
pub struct JobContext {
    pub(super) job: Uuid,
    pub(super) worker: Uuid,
    pub(super) work_dir: Arc<Path>,
    pub(super) directory: DirectorySlot,
    pub(super) cancel: CancelToken,
    pub(super) notes: Option<mpsc::Sender<Note>>,
    pub(super) attached: Attached,
    pub(super) datasets: Arc<KeptDatasets>,
}

impl JobContext {
    /// A directory beside the job's own for large parts of its result, closed to others. What is in
    /// it is not packed and goes once the result is safe.
    pub async fn outputs(&self) -> io::Result<PathBuf> {
        let outputs = outputs_beside(&self.directory().await?);
        tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(&outputs).await?;
        Ok(outputs)
    }

    /// Attaches a large part to the result: the archive, or a standard output of which `stdout` or
    /// `stderr` has the beginning. It goes by transfer where the leader takes one, and is left out
    /// with a note where it does not. A part that is attached again replaces the first.
    pub fn attach(&self, purpose: Purpose, content: Content) -> Result<(), AttachError> {
        match purpose {
            Purpose::Archive | Purpose::Stdout | Purpose::Stderr => {}
            Purpose::Input | Purpose::Dataset | Purpose::Payload => {
                return Err(AttachError { purpose });
            }
        }
        let mut attached = self.attached.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        attached.retain(|part| part.purpose != purpose);
        attached.push(Attachment { purpose, content });
        Ok(())
    }

    /// The job's own directory, made empty and closed to others when first asked for. It is removed
    /// once the result is safe.
    pub async fn directory(&self) -> io::Result<PathBuf> {
        Ok(self.open_directory().await?.path().to_owned())
    }

    /// The same, open.
    pub(super) async fn open_directory(&self) -> io::Result<OpenDirectory> {
        let mut slot = self.directory.lock().await;
        if let Some(made) = &*slot {
            return Ok(made.open().clone());
        }
        let (root, job) = (self.work_dir.clone(), self.job);
        let made = tokio::task::spawn_blocking(move || JobDirectory::make(&root, job)).await??;
        let open = made.open().clone();
        *slot = Some(made);
        Ok(open)
    }

    /// The worker's id.
    pub const fn worker(&self) -> Uuid {
        self.worker
    }

    /// Tells when the job is to stop.
    pub fn cancel_token(&self) -> &CancelToken {
        &self.cancel
    }

    /// Waits until the job is to stop.
    pub async fn cancelled(&self) -> StopReason {
        self.cancel.cancelled().await
    }

    /// Says how far the job is. It never waits: what comes faster than it can be sent is dropped.
    pub fn progress(&self, stage: Stage, done: u64, total: u64, text: impl Into<String>) {
        if let Some(notes) = &self.notes {
            notes.try_send(Note { job: self.job, stage, done, total, text: text.into() }).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancel_without_a_reason_promises_none() {
        let shown = |text: &str| StopReason::Cancelled { text: text.into() }.to_string();
        assert_eq!(
            (shown(""), shown("by clientA")),
            ("cancelled".into(), "cancelled: by clientA".into())
        );
    }
}
