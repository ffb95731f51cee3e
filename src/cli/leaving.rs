//! Leaving a job before its end: what the leader has of it by then, and so what becomes of it.

use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::client::{Finished, JobEvent, JobHandle};
use crate::model::JobStatus;
use crate::units::ByteSize;

/// How long the leader has to answer when a job is withdrawn, or is about to be taken.
const ANSWER_WITHIN: Duration = Duration::from_secs(2);

/// How far a job has come, as its events say.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reached {
    /// It waits here for a connection, or for its turn.
    #[default]
    Nothing,
    /// It was sent; the leader has not said that it has it.
    Sent,
    /// The same, and so many bytes of its large files were sent.
    Uploading {
        /// Bytes that were sent.
        done: u64,
    },
    /// The leader had it, and was away since: whether it has it now is not known.
    InDoubt,
    /// The leader has it, with all of its files.
    Taken,
    /// It has ended, and its result is coming.
    Ended,
}

impl Reached {
    /// Something happened.
    pub(crate) fn take(&mut self, event: &JobEvent) {
        match event {
            // To a leader that does not have its files, or to another one.
            JobEvent::Sent { again: false, .. } | JobEvent::Moved { .. } => *self = Reached::Sent,
            JobEvent::Sent { again: true, .. } => {
                if *self == Reached::Nothing {
                    *self = Reached::Sent;
                }
            }
            JobEvent::Reconnecting { .. } => {
                if matches!(self, Reached::Taken | Reached::Ended) {
                    *self = Reached::InDoubt;
                }
            }
            JobEvent::Uploading { done, .. } => {
                if !matches!(self, Reached::Taken | Reached::Ended) {
                    *self = Reached::Uploading { done: *done };
                }
            }
            JobEvent::Submitted { .. } => *self = Reached::Taken,
            JobEvent::Downloading { .. } => *self = Reached::Ended,
            JobEvent::Progress { .. } | JobEvent::Waiting { .. } | JobEvent::ResultMayBeLost { .. } => {}
        }
    }
}

/// What becomes of a job that is left.
#[derive(Debug)]
pub(crate) enum Left {
    /// It goes on.
    GoesOn,
    /// It has ended, and its result is at the leader.
    HasEnded,
    /// It never left here.
    NeverSent,
    /// Its files had not all come, so it was withdrawn: nothing of it runs.
    Withdrawn {
        /// Bytes of its files that were sent, and bytes in all.
        sent: (u64, u64),
    },
    /// The same, but the leader did not answer.
    Dropped {
        /// Bytes of its files that were sent, and bytes in all.
        sent: (u64, u64),
    },
    /// It was sent, and nothing was heard of it since.
    Unknown,
}

impl Left {
    /// In a word, for programs.
    fn word(&self) -> &'static str {
        match self {
            Left::GoesOn => "taken",
            Left::HasEnded => "ended",
            Left::NeverSent => "unsent",
            Left::Withdrawn { .. } => "withdrawn",
            Left::Dropped { .. } => "dropped",
            Left::Unknown => "unknown",
        }
    }

    /// For people: what is true, and the next step.
    pub(crate) fn text(&self, leader: &str, job: Uuid) -> String {
        let of = |(sent, all): &(u64, u64)| format!("{} of {} of its files", ByteSize(*sent), ByteSize(*all));
        match self {
            Left::GoesOn => format!(
                "it goes on: `heft result get {leader} {job}` fetches its result when it has ended, `heft cancel {leader} {job}` \
                 ends it"
            ),
            Left::HasEnded => {
                format!(
                    "it has ended, and its result did not come in time: `heft result get {leader} {job}` fetches it"
                )
            }
            Left::NeverSent => "it was not sent: nothing of it is at the leader".to_owned(),
            Left::Withdrawn { sent } => format!(
                "it does not go on: {} had been sent, so it was withdrawn; submit it again, with a longer --timeout",
                of(sent)
            ),
            Left::Dropped { sent } => format!(
                "it does not go on: {} had been sent, and the leader drops it when it has heard nothing of its client for its \
                 --input-wait (60s by default); submit it again, with a longer --timeout",
                of(sent)
            ),
            Left::Unknown => format!(
                "whether the leader has it is not known at the moment: `heft explain {leader} {job}` tells, and `heft cancel \
                 {leader} {job}` ends it"
            ),
        }
    }

    /// The same for programs.
    pub(crate) fn as_json(&self, job: Uuid, text: &str) -> Value {
        json!({"job_id": job, "status": "ERROR", "left": self.word(), "error": text})
    }
}

/// How leaving ended.
pub(crate) enum Leaving {
    /// The job was left.
    Left(Left),
    /// Its result came in the last moment.
    Ended(Finished),
}

/// Leaves a job. One whose files have not all come cannot go on without this client, and nobody else could bring the rest: it is
/// withdrawn, so that it takes no room until the leader gives it up.
pub(crate) async fn leave(job: &mut JobHandle, mut reached: Reached) -> Leaving {
    let all = job.upload_bytes();
    if reached == (Reached::Uploading { done: all }) {
        // It may be taken at this moment.
        timeout(ANSWER_WITHIN, until_taken(job, &mut reached)).await.ok();
    }
    let sent = match reached {
        Reached::Taken => return Leaving::Left(Left::GoesOn),
        Reached::Ended => return Leaving::Left(Left::HasEnded),
        Reached::Nothing => return Leaving::Left(Left::NeverSent),
        Reached::InDoubt => return Leaving::Left(Left::Unknown),
        Reached::Sent if all == 0 => return Leaving::Left(Left::Unknown),
        Reached::Sent => (0, all),
        Reached::Uploading { done } => (done, all),
    };
    job.cancel("--timeout of heft submit").await;
    let ended = timeout(ANSWER_WITHIN, async {
        while job.event().await.is_some() {}
        job.finish().await
    });
    match ended.await {
        Ok(Ok(finished)) if finished.result().is_ok_and(|result| result.status == JobStatus::Ok) => {
            Leaving::Ended(finished)
        }
        Ok(Ok(_) | Err(_)) => Leaving::Left(Left::Withdrawn { sent }),
        Err(_) => Leaving::Left(Left::Dropped { sent }),
    }
}

async fn until_taken(job: &mut JobHandle, reached: &mut Reached) {
    while !matches!(reached, Reached::Taken | Reached::Ended) {
        let Some(event) = job.event().await else { return };
        reached.take(&event);
    }
}
