//! The caller's end of a client: checks a job, waits until the limits allow it, and passes it to
//! the event loop. It decides nothing about connections; `Client`, `MultiClient` and job handles
//! hold it.

use std::sync::Arc;
use std::time::Duration;

use chunking::limits;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, oneshot, watch};
use uuid::Uuid;

use super::arrivals::Arrivals;
use super::ask::Question;
use super::error::ClientError;
use super::follows::{FollowSpec, Shared};
use super::job::{Ending, JobEvent};
use super::spec::Prepared;
use super::{LinkState, Options};
use crate::model::limits::CLIENT_ID_BYTES_MAX;

/// Jobs of one client without a result that was taken; `submit` waits beyond that.
pub const JOBS_UNFINISHED_MAX: usize = 65_536;

/// Bytes of those jobs that are kept in memory to be sent again; `submit` waits beyond that. Files
/// on disk do not count. A job that alone has more is taken when there is no other.
pub const JOB_BYTES_UNFINISHED_MAX: usize = 1024 * 1024 * 1024;

/// Bytes are counted in pieces of this size: a semaphore has 32 bits on some systems.
const PERMIT_BYTES: usize = 1024;

const _: () = assert!(JOB_BYTES_UNFINISHED_MAX / PERMIT_BYTES <= Semaphore::MAX_PERMITS);
const _: () = assert!(limits::FRAME_BODY_BYTES_MAX as usize <= JOB_BYTES_UNFINISHED_MAX);

/// A job's place in the limits, given back when its end is taken.
#[derive(Debug)]
pub(super) struct Permit {
    _job: OwnedSemaphorePermit,
    _bytes: OwnedSemaphorePermit,
}

/// Where a job's end goes.
#[derive(Debug)]
pub(super) enum Sink {
    /// To its handle.
    Handle { events: mpsc::Sender<JobEvent>, ending: oneshot::Sender<Ending> },
    /// To the stream of all results (CL10).
    Stream,
}

/// An end on its way through the stream of all results.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) job: Uuid,
    pub(super) ending: Ending,
    _permit: Permit,
}

/// What callers ask of the event loop.
#[derive(Debug)]
pub(super) enum Command {
    Submit {
        job: Prepared,
        sink: Sink,
        permit: Permit,
        reply: oneshot::Sender<Result<(), ClientError>>,
    },
    Cancel {
        job: Uuid,
        why: String,
        reply: Option<oneshot::Sender<bool>>,
    },
    /// The caller has stored a result.
    Received {
        job: Uuid,
    },
    Ask(Question),
    Follow {
        id: Uuid,
        spec: FollowSpec,
        shared: Arc<Shared>,
    },
    /// Something of it was read.
    FollowMore {
        id: Uuid,
    },
    Unfollow {
        id: Uuid,
    },
    Close {
        done: oneshot::Sender<()>,
    },
}

impl Ended {
    pub(super) fn new(job: Uuid, ending: Ending, permit: Permit) -> Self {
        Ended { job, ending, _permit: permit }
    }
}

/// Refuses what no client can be made of.
pub(super) fn check(leaders: &[String], options: &Options) -> Result<(), ClientError> {
    let id_bytes = options.client_id.len();
    if id_bytes > CLIENT_ID_BYTES_MAX {
        return Err(ClientError::ClientIdTooLong { bytes: id_bytes, limit: CLIENT_ID_BYTES_MAX });
    }
    if let Some(odd) = leaders.iter().find(|leader| !crate::peer::is_address(leader)) {
        return Err(ClientError::BadAddress(odd.clone()));
    }
    Ok(())
}

/// The caller's end.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    pub(super) commands: mpsc::Sender<Command>,
    pub(super) states: watch::Receiver<Vec<LinkState>>,
    pub(super) arrivals: Arrivals,
    /// How long an answer is waited for.
    pub(super) answer_wait: Option<Duration>,
    jobs: Arc<Semaphore>,
    bytes: Arc<Semaphore>,
}

impl Remote {
    pub(super) fn new(
        commands: mpsc::Sender<Command>,
        states: watch::Receiver<Vec<LinkState>>,
        arrivals: Arrivals,
        answer_wait: Option<Duration>,
    ) -> Self {
        let jobs = Arc::new(Semaphore::new(JOBS_UNFINISHED_MAX));
        let bytes = Arc::new(Semaphore::new(JOB_BYTES_UNFINISHED_MAX / PERMIT_BYTES));
        Remote { commands, states, arrivals, answer_wait, jobs, bytes }
    }

    /// Waits until there is room for a job, and hands it to the event loop.
    pub(super) async fn submit(&self, job: Prepared, sink: Sink) -> Result<(), ClientError> {
        let permit = self.room(job.memory_bytes()).await?;
        let (reply, answer) = oneshot::channel();
        let submit = Command::Submit { job, sink, permit, reply };
        self.commands.send(submit).await.map_err(|_| ClientError::Closed)?;
        answer.await.unwrap_or(Err(ClientError::Closed))
    }

    async fn room(&self, memory_bytes: usize) -> Result<Permit, ClientError> {
        let counted = memory_bytes.min(JOB_BYTES_UNFINISHED_MAX);
        let pieces = u32::try_from(counted.div_ceil(PERMIT_BYTES)).unwrap_or(u32::MAX);
        let job = self.jobs.clone().acquire_owned().await.map_err(|_| ClientError::Closed)?;
        let bytes =
            self.bytes.clone().acquire_many_owned(pieces).await.map_err(|_| ClientError::Closed)?;
        Ok(Permit { _job: job, _bytes: bytes })
    }

    /// Cancels a job of this client; whether it is one of its unfinished ones.
    pub(super) async fn cancel(&self, job: Uuid, why: String) -> bool {
        let (reply, answer) = oneshot::channel();
        let sent = self.commands.send(Command::Cancel { job, why, reply: Some(reply) }).await;
        sent.is_ok() && answer.await.unwrap_or(false)
    }

    pub(super) async fn close(&self) {
        let (done, closed) = oneshot::channel();
        if self.commands.send(Command::Close { done }).await.is_ok() {
            closed.await.ok();
        }
    }
}
