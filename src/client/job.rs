//! One job as its submitter sees it: a stream of events, then one outcome.

use std::time::Duration;

use bytes::Bytes;
use chunking::message::{Reason, Stage, Standing};
use tokio::sync::{mpsc, oneshot};
use uuid::Uuid;

use super::downloads::Finished;
use super::error::JobError;
use super::remote::Command;
use crate::model::{JobResult, JsonModel};

/// News of one job that wait to be read. When nobody reads them, further ones are dropped: they are
/// news, and the end of the job comes by another way.
pub const EVENTS_KEPT_MAX: usize = 256;

/// News of a job. None of them is its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JobEvent {
    /// It was handed to the connection to a leader.
    Sent {
        /// The leader's address.
        leader: String,
        /// Whether a leader may have had it already.
        again: bool,
    },
    /// The leader took it.
    Submitted {
        /// Where it stands.
        standing: Standing,
        /// Which run of the job this is.
        run: u32,
        /// Jobs before it in its queue.
        ahead: u32,
    },
    /// How far it is.
    Progress {
        /// Attempt of the run.
        attempt: u32,
        /// What is being done.
        stage: Stage,
        /// Bytes done.
        done: u64,
        /// Bytes in all; 0 if that is not known.
        total: u64,
        /// For people.
        text: String,
    },
    /// Its files are being sent.
    Uploading {
        /// Bytes that were sent or that the leader had, over all of its files.
        done: u64,
        /// Bytes in all.
        total: u64,
    },
    /// Something makes it wait.
    Waiting {
        /// What, for programs.
        reason: Reason,
        /// The same for people.
        text: String,
    },
    /// The large parts of its result are coming.
    Downloading {
        /// Bytes that came.
        done: u64,
        /// Bytes of all parts that were begun.
        total: u64,
    },
    /// The leader is away; the client tries again.
    Reconnecting {
        /// The leader's address.
        leader: String,
        /// What happened.
        why: String,
        /// When the next attempt is made.
        retry_in: Duration,
    },
    /// The leader was away for the whole grace; the job goes to another (CL07).
    Moved {
        /// The address of the leader that had it.
        from: String,
    },
    /// It was sent to a leader that is taken for a classic one, which ignores some of what it asks
    /// for.
    Ignored {
        /// The leader's address.
        leader: String,
        /// What becomes of it instead, for people.
        what: String,
    },
    /// It was submitted again to a classic leader, which drops results of clients that are away: if
    /// the job ended meanwhile, no result will come.
    ResultMayBeLost {
        /// The leader's address.
        leader: String,
    },
}

/// What comes in the end.
pub(super) type Ending = Result<Finished, JobError>;

/// A job that was submitted. Dropping it does not cancel the job.
#[derive(Debug)]
pub struct JobHandle {
    pub(super) id: Uuid,
    /// Bytes of its files that go as transfers.
    pub(super) upload_bytes: u64,
    pub(super) events: mpsc::Receiver<JobEvent>,
    /// Gone once the end was taken.
    pub(super) ending: Option<oneshot::Receiver<Ending>>,
    pub(super) commands: mpsc::Sender<Command>,
}

impl JobHandle {
    /// The job's id: JobId and MsgId.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// Bytes of its files that go apart from the request: without this client they do not all come,
    /// and the job is not taken.
    pub fn upload_bytes(&self) -> u64 {
        self.upload_bytes
    }

    /// The next news; `None` once the job has ended, and then `wait` returns at once.
    ///
    /// May be dropped while it waits.
    pub async fn event(&mut self) -> Option<JobEvent> {
        self.events.recv().await
    }

    /// Asks the leader to end the job. Its end still comes by `wait`: a job that was never sent
    /// ends at once, one that is under way with whatever the leader says, and one of a classic
    /// leader by itself.
    pub async fn cancel(&self, why: impl Into<String>) {
        let command = Command::Cancel { job: self.id, why: why.into(), reply: None };
        self.commands.send(command).await.ok();
    }

    /// The job's result. It is given out once.
    ///
    /// May be dropped while it waits, and called again then.
    pub async fn wait(&mut self) -> Result<JobResult, JobError> {
        let job = self.id;
        let payload = self.wait_raw().await?;
        JobResult::parse(&payload).map_err(|source| JobError::BadResult { job, source })
    }

    /// Says to the leader that the result is safe here: it may be forgotten there. Needed with
    /// [`Receipt::ByCaller`](super::Receipt::ByCaller), once the job has ended.
    pub async fn received(&self) {
        self.commands.send(Command::Received { job: self.id }).await.ok();
    }

    /// The payload of the job's result as it came.
    pub async fn wait_raw(&mut self) -> Result<Bytes, JobError> {
        self.finish().await.map(|finished| finished.payload)
    }

    /// The job's result together with the parts that came beside it.
    pub async fn finish(&mut self) -> Result<Finished, JobError> {
        let closed = || Err(JobError::Closed { job: self.id });
        let Some(ending) = &mut self.ending else { return closed() };
        let ended = ending.await.unwrap_or_else(|_| closed());
        self.ending = None;
        ended
    }
}
