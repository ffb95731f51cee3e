//! `clientx`: a client of several leaders at a time (SPEC 1M). Which leader gets which job is
//! decided in [`dispatch`](super::dispatch); this is its face for callers.

use bytes::Bytes;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::Options;
use super::ask::Answered;
use super::downloads::Finished;
use super::error::{ClientError, JobError};
use super::event_loop;
use super::job::JobHandle;
use super::remote::{Ended, Remote, Sink};
use super::single::{LinkState, ask, handle, raw_job, reached};
use super::spec::{JobSpec, Prepared, prepared};
use crate::answers::ask::Ask;
use crate::model::{JobResult, JsonModel};

/// A client of several leaders.
///
/// The desired parallelism is divided over them (CP06). A job is sent to one leader; only when that
/// one has been away for the whole grace does the job go to another, under the same id (CL07). A
/// leader that comes back later may have run it too: the first result counts.
#[derive(Debug)]
pub struct MultiClient {
    remote: Remote,
    client_id: String,
    ended: mpsc::Receiver<Ended>,
}

impl MultiClient {
    /// Starts a client of these leaders and returns at once; connections are made, and made again,
    /// beside it (CL08).
    pub fn start(leaders: &[String], options: &Options) -> Result<MultiClient, ClientError> {
        let (remote, ended) = event_loop::start(leaders, options)?;
        Ok(MultiClient { remote, client_id: options.client_id.clone(), ended })
    }

    /// Starts a client and waits until one of the leaders is reached, for `connect_wait` at most.
    pub async fn connect(
        leaders: &[String],
        options: &Options,
    ) -> Result<MultiClient, ClientError> {
        let client = MultiClient::start(leaders, options)?;
        reached(client.remote.states.clone(), options.connect_wait).await?;
        Ok(client)
    }

    /// How the connections stand, in the order of the leaders.
    pub fn states(&self) -> Vec<LinkState> {
        self.remote.states.borrow().clone()
    }

    /// Submits a job, with files of any size, whose result comes by its handle.
    pub async fn submit(&self, job: impl Into<JobSpec>) -> Result<JobHandle, ClientError> {
        handle(&self.remote, self.prepared(job.into()).await?).await
    }

    async fn prepared(&self, spec: JobSpec) -> Result<Prepared, ClientError> {
        let subject = format!("job.submit.{}", spec.request.exec_name);
        prepared(spec, &subject, &self.client_id).await
    }

    /// Submits a job whose result comes by [`next`](Self::next), where the results of all leaders
    /// are merged (CL10). Waits for room when [`JOBS_UNFINISHED_MAX`](super::JOBS_UNFINISHED_MAX)
    /// results have not been taken.
    pub async fn send(&self, job: impl Into<JobSpec>) -> Result<Uuid, ClientError> {
        let prepared = self.prepared(job.into()).await?;
        let id = prepared.id;
        self.remote.submit(prepared, Sink::Stream).await?;
        Ok(id)
    }

    /// The same with any bytes (M19).
    pub async fn send_raw(
        &self,
        subject: &str,
        payload: impl Into<Bytes>,
    ) -> Result<Uuid, ClientError> {
        let job = raw_job(subject, payload.into())?;
        let id = job.id;
        self.remote.submit(job, Sink::Stream).await?;
        Ok(id)
    }

    /// The next end of a job that was submitted with [`send`](Self::send), from whichever leader.
    /// `None` when the client is closed.
    ///
    /// May be dropped while it waits.
    pub async fn next(&mut self) -> Option<(Uuid, Result<JobResult, JobError>)> {
        let (job, ending) = self.next_raw().await?;
        let parsed = |payload: Bytes| {
            JobResult::parse(&payload).map_err(|source| JobError::BadResult { job, source })
        };
        Some((job, ending.and_then(parsed)))
    }

    /// The same, with the payload of the result as it came.
    pub async fn next_raw(&mut self) -> Option<(Uuid, Result<Bytes, JobError>)> {
        let (job, ending) = self.next_finished().await?;
        Some((job, ending.map(|finished| finished.payload)))
    }

    /// The same, with the parts of the result that came beside it.
    pub async fn next_finished(&mut self) -> Option<(Uuid, Result<Finished, JobError>)> {
        let ended = self.ended.recv().await?;
        Some((ended.job, ended.ending))
    }

    /// Asks one of the leaders, by its place in the list.
    pub async fn ask<Q: Ask>(
        &self,
        leader: usize,
        question: &Q,
    ) -> Result<Answered<Q::Answer>, ClientError> {
        if leader >= self.remote.states.borrow().len() {
            return Err(ClientError::BadAddress(format!("leader number {leader}")));
        }
        ask(&self.remote, leader, question).await
    }

    /// Asks whichever leader has the job to end it; whether it is an unfinished job of this client.
    pub async fn cancel(&self, job: Uuid, why: impl Into<String>) -> bool {
        self.remote.cancel(job, why.into()).await
    }

    /// Sends what is waiting and closes the connections.
    pub async fn close(&self) {
        self.remote.close().await;
    }
}
