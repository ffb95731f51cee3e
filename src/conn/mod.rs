//! One peer's side of the protocol, as the leader sees it: its generation, its identity, and the
//! translation of its messages.
//!
//! It has no I/O and none of the broker's state. A [`Session`] turns frames into [`Inbound`] and
//! the leader's messages into frames this peer can read; it never decides what happens to a job.

mod dataset;
mod decode;
mod encode;
mod transfer;

pub use dataset::DatasetSays;
pub(crate) use decode::read_result;
pub use decode::{AckBody, AckSays, BulkOf, Inbound, SubmitBody};
pub use encode::WireFrame;
pub use transfer::{TransferSays, Want, WireChunk};

use std::collections::HashMap;

use chunking::Generation;
use chunking::message::Features;
use thiserror::Error;
use uuid::Uuid;

use crate::core::event::WorkerClass;
use crate::core::ids::{ClientId, ConnId, JobId, WorkerId};

/// What this build can do for an announced peer.
pub const FEATURES: Features = Features::TRANSFERS
    .with(Features::GZIP)
    .with(Features::BROTLI)
    .with(Features::ZSTD)
    .with(Features::SUBMIT_ANSWERS)
    .with(Features::LEASES)
    .with(Features::PROGRESS)
    .with(Features::CANCEL)
    .with(Features::ASK)
    .with(Features::DATASETS)
    .with(Features::CHECKSUMS)
    .with(Features::RECEIPTS)
    .with(Features::KEEPALIVE)
    .with(Features::PIECES)
    .with(Features::FOLLOW)
    .with(Features::PROGRAMS);

/// Why a connection has to end.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SessionError {
    /// The first frame was not a Hello (W16).
    #[error("the first frame was {0}; a client or worker says hello first")]
    NoHello(String),
    /// A second Hello.
    #[error("a second {0} on the same connection: a peer is one client or one worker")]
    SecondHello(String),
    /// The Hello makes no sense.
    #[error("the hello is not valid: {0}")]
    BadHello(String),
    /// The same of a peer that announces itself, which can be told why.
    #[error("the hello is not valid: {0}")]
    BadAnnouncement(String),
    /// Another process is connected under the id of this worker, and lives.
    #[error(
        "a worker with the id {worker} is connected from {host}: give this one another --id or work directory, or stop the other"
    )]
    IdInUse {
        worker: WorkerId,
        /// Where the other one is.
        host: String,
    },
    /// The names of all peers that are connected take as much memory as they may.
    #[error(
        "names of connected peers (client ids, patterns) take {held} bytes of the leader's memory; \
         this peer needs {bytes} more, and the limit is {limit}: use shorter or fewer names"
    )]
    NamesFull {
        /// Bytes of this one's.
        bytes: u64,
        /// Bytes of all others'.
        held: u64,
        /// What they may have together.
        limit: u64,
    },
}

/// Who the peer is.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Role {
    Stranger,
    Client {
        id: ClientId,
    },
    Worker {
        id: WorkerId,
        class: WorkerClass,
        last_job: Option<JobId>,
        stand_ins: HashMap<JobId, JobId>,
    },
}

/// Jobs that one classic worker has under other ids than their own.
const STAND_INS_MAX: usize = 4_096;

/// One connection's side of the protocol.
#[derive(Debug)]
pub struct Session {
    conn: ConnId,
    generation: Generation,
    role: Role,
    features: Option<Features>,
    agent: Option<Agent>,
    /// Which process it is, if it says so.
    instance: Option<Uuid>,
    /// Bytes of what it said hello with, as far as that is kept while it is connected.
    names_bytes: u64,
    /// Bytes of its programs, as far as they are listed.
    programs_bytes: u64,
}

/// A worker that keeps a cache for classic workers, and runs nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agent {
    /// The one worker that it serves; without one, those on its host.
    pub only: Option<WorkerId>,
}

impl Session {
    /// A connection whose first frame showed its generation.
    pub const fn new(conn: ConnId, generation: Generation) -> Self {
        let role = Role::Stranger;
        Session {
            conn,
            generation,
            role,
            features: None,
            agent: None,
            instance: None,
            names_bytes: 0,
            programs_bytes: 0,
        }
    }

    /// Whether the peer announced itself with all of these features.
    pub fn has(&self, features: Features) -> bool {
        self.features.is_some_and(|announced| announced.has(features))
    }

    /// Whether the peer is one of ours.
    pub fn is_announced(&self) -> bool {
        self.features.is_some()
    }

    /// Bytes of its names: what it is called, what it asked for, and its programs.
    pub fn names_bytes(&self) -> u64 {
        self.names_bytes + self.programs_bytes
    }

    /// It is not to be: nothing of its hello is kept.
    pub fn forget_names(&mut self) {
        (self.names_bytes, self.programs_bytes) = (0, 0);
    }

    /// It lists programs of so many bytes.
    pub fn set_programs_bytes(&mut self, bytes: u64) {
        self.programs_bytes = bytes;
    }

    /// The client that it is.
    pub fn client(&self) -> Option<&ClientId> {
        match &self.role {
            Role::Client { id } => Some(id),
            Role::Stranger | Role::Worker { .. } => None,
        }
    }

    /// The worker that it is.
    pub fn worker(&self) -> Option<WorkerId> {
        match &self.role {
            Role::Worker { id, .. } => Some(*id),
            Role::Stranger | Role::Client { .. } => None,
        }
    }

    /// Whether it is a classic worker that can be sent a put: the layouts before F2 know none.
    pub fn takes_cache_puts(&self) -> bool {
        let is_worker = matches!(self.role, Role::Worker { .. });
        is_worker && !self.is_announced() && self.generation == Generation::F2
    }

    /// Whom it serves, if it is an agent.
    pub fn agent(&self) -> Option<Agent> {
        self.agent
    }

    /// Which of several processes under one id it is, if it says so.
    pub fn instance(&self) -> Option<Uuid> {
        self.instance
    }

    /// How logs call it.
    pub fn name(&self) -> String {
        match &self.role {
            Role::Stranger => format!("connection {}", self.conn),
            Role::Client { id } => format!("client {id}"),
            Role::Worker { id, .. } => format!("worker {id}"),
        }
    }
}

/// An id that the peer left out and the leader makes for it.
pub type MakeId<'a> = &'a mut dyn FnMut() -> Uuid;
