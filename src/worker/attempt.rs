//! Runs one attempt at one job: starts the handler, watches it, stops it if necessary, and turns
//! its outcome into the answer.
//!
//! A handler that panics, runs too long or ignores a cancel affects only its own job. Sessions call
//! it for each job; an embedding program can call [`run_once`] to try its handler without a leader.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use chunking::message::Purpose;
use tokio::sync::{Mutex, mpsc};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::{sleep, timeout};
use uuid::Uuid;

use super::cache::KeptDatasets;
use super::directory::JobDirectory;
use super::handler::{
    Attached, Attachment, CancelToken, Content, DirectorySlot, Handler, Job, JobContext, Note,
    Shown, StopReason,
};
use super::limits::CANCEL_GRACE;
use crate::model::{JobResult, JobStatus};

/// Where and how long jobs may work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Workplace {
    /// The worker's id.
    pub worker: Uuid,
    /// Job directories are made beneath it.
    pub work_dir: PathBuf,
    /// How long a job may run that names no limit itself.
    pub time_limit: Option<Duration>,
}

/// How an attempt ended.
#[derive(Debug)]
pub struct Outcome {
    /// The result, with the ids of the job.
    pub result: JobResult,
    /// The job's directory, if it asked for one. It is there until it is removed.
    pub directory: Option<JobDirectory>,
    /// Large parts of the result.
    pub(super) attached: Vec<Attachment>,
}

impl Outcome {
    /// The large part of this purpose that the job attached.
    pub fn attached(&self, purpose: Purpose) -> Option<&Content> {
        self.attached.iter().find(|part| part.purpose == purpose).map(|part| &part.content)
    }
}

/// Runs one job to its end.
pub async fn run_once<H: Handler>(
    handler: Arc<H>,
    job: Job,
    place: &Workplace,
    cancel: CancelToken,
) -> Outcome {
    attempt(handler, job, place, cancel, None, Brought::default()).await
}

/// What is ready for a job when it runs.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// Its directory, if inputs came into it.
    pub(super) directory: Option<JobDirectory>,
    /// The datasets that it names.
    pub(super) datasets: KeptDatasets,
    /// Where its outputs are shown.
    pub(super) shown: Shown,
}

pub(super) async fn attempt<H: Handler>(
    handler: Arc<H>,
    job: Job,
    place: &Workplace,
    cancel: CancelToken,
    notes: Option<mpsc::Sender<Note>>,
    brought: Brought,
) -> Outcome {
    let directory = DirectorySlot::new(Mutex::new(brought.directory));
    let attached = Attached::default();
    let context = JobContext {
        job: job.id,
        worker: place.worker,
        work_dir: place.work_dir.as_path().into(),
        directory: directory.clone(),
        cancel: cancel.clone(),
        notes,
        attached: attached.clone(),
        datasets: Arc::new(brought.datasets),
        shown: brought.shown,
    };
    let empty = job.result(JobStatus::Failed);
    let own_limit = job.request.as_ref().ok().and_then(|request| request.time_limit_ms);
    let limit = own_limit.map(Duration::from_millis).or(place.time_limit);
    let task = Task(tokio::spawn(async move { handler.run(job, context).await }));
    let mut result = watch(task, &cancel, limit, &empty).await;

    if let Some(reason) = cancel.reason() {
        result.status = match reason {
            StopReason::Cancelled { .. } => JobStatus::Cancelled,
            StopReason::TimeLimit(_) => JobStatus::Failed,
        };
        if let StopReason::TimeLimit(limit) = reason {
            result.timed_out_ms = Some(u64::try_from(limit.as_millis()).unwrap_or(u64::MAX));
        }
        let said = reason.to_string();
        if !result.stderr.starts_with(&said) {
            result.stderr = format!("{said}\n{}", result.stderr);
        }
    }
    result.job_id = empty.job_id;
    if result.client_id.is_empty() {
        result.client_id = empty.client_id;
    }
    if result.exec_name.is_empty() {
        result.exec_name = empty.exec_name;
    }
    let directory = directory.lock().await.take();
    let attached = std::mem::take(&mut *attached.lock().unwrap_or_else(PoisonError::into_inner));
    Outcome { result, directory, attached }
}

async fn watch(
    mut task: Task,
    cancel: &CancelToken,
    limit: Option<Duration>,
    empty: &JobResult,
) -> JobResult {
    let failed = |error: JoinError| {
        let how = if error.is_panic() { "panicked" } else { "was dropped" };
        JobResult { stderr: format!("worker error: the handler of the job {how}"), ..empty.clone() }
    };
    tokio::select! {
        ended = &mut task.0 => return ended.unwrap_or_else(failed),
        _ = cancel.cancelled() => {}
        () = sleep(limit.unwrap_or_default()), if limit.is_some() => {
            cancel.cancel(StopReason::TimeLimit(limit.unwrap_or_default()));
        }
    }
    match timeout(CANCEL_GRACE, &mut task.0).await {
        Ok(ended) => ended.unwrap_or_else(failed),
        // Dropping the task ends the handler where it waits.
        Err(_) => empty.clone(),
    }
}

/// A task that ends when nobody waits for it any more.
struct Task(JoinHandle<JobResult>);

impl Drop for Task {
    fn drop(&mut self) {
        self.0.abort();
    }
}
