//! Errors of a client, and of a single job.

use chunking::message::{Reason, Refused};
use thiserror::Error;
use uuid::Uuid;

use crate::model::ModelError;
use crate::units::Span;

/// Why something could not be asked of a leader.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ClientError {
    /// No leader could be reached in the time given.
    #[error(
        "cannot reach {leader}: {why}; gave up after {waited_ms} ms: is the leader running, and is this its address?"
    )]
    Unreachable {
        /// Its address.
        leader: String,
        /// What the last attempt met.
        why: String,
        /// How long it was tried.
        waited_ms: u64,
    },
    /// There is no host of the name in the leader's address.
    #[error("cannot reach {leader}: {why}: check the host name in the address")]
    UnknownHost {
        /// Its address.
        leader: String,
        /// What the resolver said.
        why: String,
    },
    /// The job does not fit the one frame that carries it.
    #[error(
        "the job's request has {bytes} bytes without its files; a frame holds at most {limit}: use \
         fewer or shorter arguments, or move large values into a file"
    )]
    TooLarge {
        /// The body its frame would have.
        bytes: u64,
        /// What a frame takes (W05).
        limit: u64,
    },
    /// An input file cannot be taken.
    #[error("cannot take input file {name:?}: {why}")]
    BadInput {
        /// Its name.
        name: String,
        /// What is wrong with it.
        why: String,
    },
    /// The subject does not fit a frame.
    #[error("the subject has {bytes} bytes; at most {limit} fit a frame: shorten it")]
    SubjectTooLong {
        /// Its length.
        bytes: usize,
        /// What fits (W10).
        limit: usize,
    },
    /// The client's id does not fit a hello.
    #[error("the client id has {bytes} bytes; at most {limit} are taken: shorten it")]
    ClientIdTooLong {
        /// Its length.
        bytes: usize,
        /// What is taken.
        limit: usize,
    },
    /// An address is not one.
    #[error("\"{0}\" is not an address: write host:port, such as 127.0.0.1:5000")]
    BadAddress(String),
    /// The job id is in use by an unfinished job of this client.
    #[error("job {0} is already under way from this client: give the new one another id")]
    JobIdInUse(Uuid),
    /// The leader is a classic one, or too old.
    #[error(
        "the leader at {leader} does not support `{feature}`: it is a classic or older leader, or \
         was too busy to answer the hello in time"
    )]
    NotSupported {
        /// Its address.
        leader: String,
        /// What was wanted.
        feature: &'static str,
    },
    /// The leader took the connection, but did not answer the hello in the time given.
    #[error(
        "no answer to the hello from {leader} within {waited}: the leader may be busy, or a \
         classic one, which does not support status, cancel, stored results, the dead-letter queue \
         or datasets"
    )]
    NoWelcome {
        /// Its address.
        leader: String,
        /// How long it was waited for.
        waited: Span,
    },
    /// The connection ended before the answer was there.
    #[error("the connection to {leader} ended before it answered: {why}")]
    Disconnected {
        /// Its address.
        leader: String,
        /// How it ended.
        why: String,
    },
    /// The leader is there, and did not answer a question in the time given.
    #[error(
        "{leader} has not answered `{verb}` within {waited}: it may be busy; ask again, or wait longer with --answer-wait"
    )]
    NoAnswer {
        /// Its address.
        leader: String,
        /// What was asked.
        verb: String,
        /// How long it was waited for.
        waited: Span,
    },
    /// Too many questions are waiting for an answer.
    #[error("{limit} questions wait for an answer, the limit: wait for some of the answers")]
    Busy {
        /// The limit.
        limit: usize,
    },
    /// Too many outputs are followed.
    #[error(
        "{limit} outputs of jobs are followed by this client, the limit: end some of them first"
    )]
    TooManyFollows {
        /// The limit.
        limit: usize,
    },
    /// The leader answered with an error.
    #[error("the leader answers: {0}")]
    Answered(String),
    /// What was asked about is not at the leader. Older leaders say so in
    /// [`Answered`](Self::Answered).
    #[error("the leader answers: {0}")]
    NotFound(String),
    /// The leader's answer makes no sense.
    #[error("the leader's answer to `{verb}` cannot be read: {why}")]
    BadAnswer {
        /// What was asked.
        verb: String,
        /// What is wrong with the answer.
        why: String,
    },
    /// The client was closed.
    #[error("the client is closed")]
    Closed,
}

impl ClientError {
    /// Whether the same may succeed later.
    pub fn is_retryable(&self) -> bool {
        matches!(
            self,
            ClientError::Unreachable { .. }
                | ClientError::NoWelcome { .. }
                | ClientError::NoAnswer { .. }
                | ClientError::Disconnected { .. }
                | ClientError::Busy { .. }
        )
    }
}

/// Why a leader did not take a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub reason: Reason,
    /// The value that was too much; 0 if none.
    pub value: u64,
    /// What would have been taken; 0 if that is not the point.
    pub limit: u64,
    /// Whose limit it is.
    pub hop: String,
    /// All of it as a sentence.
    pub text: String,
}

impl From<Refused> for Refusal {
    fn from(refused: Refused) -> Self {
        Refusal {
            reason: refused.reason,
            value: refused.value,
            limit: refused.limit,
            hop: refused.hop.as_str().to_owned(),
            text: refused.text.as_str().to_owned(),
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.reason)?;
        if !self.hop.is_empty() {
            write!(f, " at {}", self.hop)?;
        }
        if self.value != 0 || self.limit != 0 {
            write!(f, ", {} where {} is the limit", self.value, self.limit)?;
        }
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        Ok(())
    }
}

/// Why a job has no result.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum JobError {
    /// The leader did not take it.
    #[error("the leader refused job {job}: {refusal}")]
    Refused {
        /// The job.
        job: Uuid,
        /// Why.
        refusal: Refusal,
    },
    /// It is not for a classic leader, and this one did not answer the hello: it may be one, or not
    /// have heard it.
    #[error(
        "job {job} was not sent: {leader} accepted the connection, but has not answered the hello \
         for {waited}: the connection may be dead, the leader overloaded (try again, or give it \
         more time with --connect-wait), or a classic one, and then {}",
        refusal.text
    )]
    NoWelcome {
        /// The job.
        job: Uuid,
        /// The leader's address.
        leader: String,
        /// How long it was waited for.
        waited: Span,
        /// Why a classic leader does not get it.
        refusal: Box<Refusal>,
    },
    /// One of its files could not be sent; the leader was told to forget the job.
    #[error("job {job} ends here: its file {name:?} could not be sent ({reason}): {why}")]
    InputLost {
        /// The job.
        job: Uuid,
        /// The file.
        name: String,
        /// Why, for programs.
        reason: Reason,
        /// The same for people.
        why: String,
    },
    /// It was cancelled before it was sent to any leader.
    #[error("job {job} was cancelled before it was sent")]
    CancelledUnsent {
        /// The job.
        job: Uuid,
    },
    /// A result came that is not a JobResult; a raw job's result is had with `wait_raw`.
    #[error("the result of job {job} cannot be read: {source}")]
    BadResult {
        /// The job.
        job: Uuid,
        /// What is wrong with it.
        source: ModelError,
    },
    /// The client was closed before the result came.
    #[error("the client was closed before the result of job {job} came")]
    Closed {
        /// The job.
        job: Uuid,
    },
}
