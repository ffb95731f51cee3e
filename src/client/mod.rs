//! The client: submits jobs to leaders, follows them, and returns one result for each.
//!
//! [`Client`] talks to one leader, [`MultiClient`] (`clientx`, SPEC 1M) to several at a time; both
//! stand on the same event loop. A job's id is its frame's MsgId (M17) and stays the same whatever
//! happens to connections: after each reconnect every unfinished job is submitted again under it,
//! and the first result counts (C07).
//!
//! Against a **heft leader** nothing is lost that way: it answers with where the job stands, or
//! with the stored result. A **classic leader** does not announce itself; after a short wait the
//! client goes on in classic mode. There are no acknowledgements, progress, cancelling or questions
//! then. A classic leader ignores a repeated MsgId (DD04), so submitting again never runs a job
//! twice on it and heals one that was restarted and forgot; but it also drops the result of a job
//! that ended while its client was away, and answers nothing for it afterwards. Submitting the same
//! work under a new id could run it twice, so the client does not: it says
//! [`JobEvent::ResultMayBeLost`] and goes on waiting, and how long is the caller's decision.
//!
//! **Files of any size** go with a job ([`JobSpec`]): what fits one frame inside it, the rest as
//! transfers that stream from where the bytes are and go on where they were after a break. The
//! source is kept until the job has ended, since the leader may ask for it again. Large parts of
//! results come the same way, if they are wanted ([`Downloads`]).
//!
//! **Datasets** that many jobs share are put ahead of them, each on a connection of its own
//! ([`dataset`]).
//!
//! **Output** of a job can be followed while it runs ([`Client::follow`]), whoever submitted it.
//!
//! What it never does: run jobs, keep anything on disk but parts of results that are wanted there,
//! or hold more than [`JOBS_UNFINISHED_MAX`] jobs and [`JOB_BYTES_UNFINISHED_MAX`] bytes of them.
//! The command line and programs that embed heft call it.

mod arrivals;
mod ask;
mod connection;
pub mod dataset;
pub mod dispatch;
mod downloads;
mod error;
mod event_loop;
mod fetch;
mod follows;
mod inputs;
mod job;
mod multi;
mod receipts;
mod remote;
mod single;
mod spec;
mod unsupported;

pub use chunking::message::{Purpose, Stage, Standing, Stream};
pub use chunking::{Codec, Digest, DigestKind};

pub use crate::core::retry::Backoff;
pub use crate::transfer::{ChunkSink, Compression, Source};
pub use crate::wire::Tuning;
pub use ask::{Answered, QUESTION_ANSWER_BYTES_MAX, QUESTIONS_MAX};
pub use connection::Mode;
pub use dispatch::Policy;
pub use downloads::{Downloads, Finished, Missing, Part, SinkFactory};
pub use error::{ClientError, JobError, Refusal};
pub use follows::{FOLLOW_WINDOW_BYTES, FOLLOWS_MAX, FollowEvent, FollowSpec, Following};
pub use job::{EVENTS_KEPT_MAX, JobEvent, JobHandle};
pub use multi::MultiClient;
pub use receipts::Receipt;
pub use remote::{JOB_BYTES_UNFINISHED_MAX, JOBS_UNFINISHED_MAX};
pub use single::{Client, LinkState};
pub use spec::{Input, JobSpec};

use std::time::Duration;

use crate::model::hello::CLIENT_CAP_DEFAULT;
pub use crate::model::hello::UNCAPPED;
use crate::peer;

/// How long a job that needs transfers waits for the first answer of a leader, unless
/// [`Options::connect_wait`] says.
pub const LATE_WELCOME_WAIT: Duration = Duration::from_secs(10);

/// How a client connects.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who it is; empty lets the leader make an id, which suits those that only ask.
    pub client_id: String,
    /// How many of its jobs it wants to run at a time (CP01); over several leaders the sum (CP06).
    /// With [`UNCAPPED`] as many run as workers take; a classic leader is then told the default.
    pub desired: u32,
    /// How connections are tuned.
    pub tuning: Tuning,
    /// How long a leader that has never answered the announcement may take to do so before it
    /// counts as a classic one. Its answer still counts when it comes later.
    pub welcome_wait: Duration,
    /// How long a leader that is known for a heft one may take to answer on a new connection before
    /// that is given up for another.
    pub welcome_wait_max: Duration,
    /// When, and how often, a leader that has sent nothing at all is looked for on another
    /// connection: it may be a classic one, or the line is dead.
    pub probe_backoff: Backoff,
    /// How long one attempt to connect may take.
    pub connect_timeout: Duration,
    /// How long `connect` tries to reach a leader for the first time; `None` for as long as it
    /// takes (CL08). A job that needs transfers waits as long for the leader's first answer,
    /// [`LATE_WELCOME_WAIT`] with `None`.
    pub connect_wait: Option<Duration>,
    /// How long an answer to a question is waited for; `None` for as long as it takes.
    pub answer_wait: Option<Duration>,
    /// Waiting times between attempts to connect (CL08).
    pub backoff: Backoff,
    /// How a leader is chosen among several (CL04).
    pub policy: Policy,
    /// How long a leader may be away before its jobs go to others (CL07).
    pub grace: Duration,
    /// Which large parts of results are wanted, and where they go.
    pub downloads: Downloads,
    /// Who says to the leader that a result has arrived for good.
    pub receipt: Receipt,
}

impl Options {
    /// The defaults, for the client `client_id`.
    pub fn new(client_id: impl Into<String>) -> Self {
        Options {
            client_id: client_id.into(),
            desired: CLIENT_CAP_DEFAULT,
            tuning: Tuning::default(),
            welcome_wait: peer::WELCOME_WAIT,
            welcome_wait_max: peer::WELCOME_WAIT_MAX,
            probe_backoff: peer::PROBE_BACKOFF,
            connect_timeout: Duration::from_secs(5),
            connect_wait: None,
            answer_wait: None,
            backoff: Backoff::CONNECT,
            policy: Policy::default(),
            grace: dispatch::GRACE,
            downloads: Downloads::None,
            receipt: Receipt::default(),
        }
    }
}
