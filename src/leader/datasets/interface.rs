//! The interface of the dataset machine: events, facts and actions. The leader's side of all three
//! is `datasets_wiring`.

use std::net::IpAddr;
use std::sync::Arc;

use bytes::Bytes;
use chunking::ChunkPlan;
use chunking::dataset::Manifest;
use chunking::dataset::pack::Layout;
use chunking::message::{Have, Hold, Inspect, Lack, Open, Pack, Put, Reason, Release, Spread};
use serde_json::Value;
use uuid::Uuid;

use super::BlobId;
use super::classic_put::ReceivedPut;
use crate::answers::Failure;
use crate::answers::ask::Question;
use crate::core::Event;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, JobId, WorkerId};
use crate::leader::Asked;
use crate::leader::refusal_text::RefusalText;
use crate::model::CachePutResult;
use crate::store::verify::{Verified, VerifyRequest};

/// Something that happened.
#[derive(Debug)]
pub(in crate::leader) enum DatasetEvent {
    /// A client puts a dataset.
    Put { conn: ConnId, request: Uuid, put: Put },
    /// A client says what is in a pack that it is about to open.
    PackAnnounced { conn: ConnId, pack: BlobId, request: Uuid, says: Pack },
    /// A client opens a part of a dataset.
    Opened { conn: ConnId, blob: BlobId, open: Open },
    /// A part of a dataset has come whole.
    Arrived { blob: BlobId },
    /// A part of a dataset cannot be had: its client gave it up, or the disk does not give it.
    Failed { blob: BlobId, text: String },
    /// A part of a dataset was looked at.
    Verified { blob: BlobId, result: Result<Verified, String> },
    /// A classic client's put came whole, and its contents are in packs.
    ClassicCame { came: ReceivedPut, packs: Vec<(BlobId, Layout)> },
    /// The inputs of a job are in packs.
    Staged { inputs: StagedInputs, packs: Vec<(BlobId, Layout)> },
    /// The inputs of a job are not to become a dataset any more.
    StagingOver { job: JobId },
    /// A worker said hello.
    WorkerJoined { conn: ConnId, worker: WorkerId, host: Option<IpAddr>, kind: WorkerKind },
    /// A classic worker has another agent, or none any more.
    AgentChanged { worker: WorkerId, agent: Option<WorkerId> },
    /// Jobs wait for a worker of this agent that name a dataset.
    AgentWanted { agent: WorkerId, cache: CacheId },
    /// A worker says what it has.
    WorkerHas { conn: ConnId, worker: WorkerId, have: Have },
    /// A worker says what it lacks of the dataset that it is asked to hold.
    WorkerLacks { conn: ConnId, worker: WorkerId, version: Uuid, lack: Lack },
    /// A worker answers.
    WorkerAcked { worker: WorkerId, to: Uuid, result: CachePutResult },
    /// A worker has got a part of a dataset.
    PartTaken { conn: ConnId, worker: Option<WorkerId>, blob: BlobId },
    /// A worker does not take a part of a dataset.
    PartRefused { worker: WorkerId, blob: BlobId, reason: Reason, text: String },
    /// An operator asks about datasets; then [`DatasetAction::Answer`], now or later.
    Asked { by: Asked, question: Question },
    /// A dataset is kept from now on.
    Kept { dataset: Arc<Dataset>, replaced: Option<Arc<Dataset>> },
    /// A dataset is not kept any more.
    Removed { dataset: Arc<Dataset> },
    /// A part of a dataset of a previous run is here.
    Restored { blob: BlobId, part: RestoredPart },
    /// That was all that a previous run left.
    RestoredAll,
    /// An operator does not want a pack that no dataset has.
    Unwanted { blob: BlobId },
    /// A connection ended.
    Closed { conn: ConnId },
    /// Time has passed.
    Tick,
}

/// What a worker that joins is to datasets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) enum WorkerKind {
    /// A heft worker, which reports what it holds.
    Ours,
    /// An agent: a heft worker that keeps a cache for one classic worker, or for those of its host.
    Agent { only: Option<WorkerId> },
    /// A classic worker.
    Classic,
}

/// What was left of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) enum RestoredPart {
    Manifest,
    Pack,
    /// A pack that no dataset has.
    LoosePack,
}

/// The inputs of a job, in packs.
#[derive(Debug)]
pub(in crate::leader) struct StagedInputs {
    pub(in crate::leader) job: JobId,
    /// The put, as the leader calls it.
    pub(in crate::leader) key: Uuid,
    /// The id that the manifest gets.
    pub(in crate::leader) version: Uuid,
    pub(in crate::leader) manifest: Manifest,
}

/// Something for the leader to do.
#[derive(Debug)]
pub(in crate::leader) enum DatasetAction {
    /// Say something to a peer that knows datasets.
    Say { conn: ConnId, id: Uuid, request: Uuid, says: Says },
    /// Tell a client that its put is refused.
    Refuse { conn: ConnId, request: Uuid, refusal: RefusalText },
    /// Tell the client of a put how it ended at a worker.
    CacheAck { conn: ConnId, request: Uuid, result: CachePutResult },
    /// Ask a classic worker whether it knows CachePut, by a put of nothing.
    AskClassic { conn: ConnId },
    /// Send a classic worker a dataset whole.
    SendDataset { conn: ConnId, version: Uuid, payload: Bytes },
    /// Answer an operator who asked.
    Answer { to: Asked, answer: Result<Value, Failure> },
    /// Tell the broker something, or propose a record to it.
    Tell(Event),
    /// A classic worker is to have this agent; then [`DatasetEvent::AgentChanged`].
    Pair { worker: WorkerId, agent: Option<WorkerId> },
    /// No dataset is made of a job's inputs for now.
    NotStaged { job: JobId, why: String },
    /// Expect a blob, and take what its sender brings from now on.
    Expect { blob: BlobId, open: Open, plan: ChunkPlan },
    /// Let the sender of a blob begin.
    Accept { conn: ConnId, blob: BlobId, open: Open },
    /// Tell the sender of a blob that nobody expects it.
    TurnAway { conn: ConnId, blob: BlobId },
    /// Keep bytes that were made here as a blob; then [`DatasetEvent::Arrived`] or
    /// [`DatasetEvent::Failed`].
    KeepManifest { blob: BlobId, key: Uuid, bytes: Bytes },
    /// Give a blob to a worker, for this version.
    Attach { conn: ConnId, blob: BlobId, version: Uuid, again: Again },
    /// Do not give a blob to a worker any more.
    Detach { conn: ConnId, blob: BlobId },
    /// All of a blob has come, and its sender need not be asked again.
    Settle { blob: BlobId },
    /// Look at a blob on the disk; then [`DatasetEvent::Verified`].
    Look { blob: BlobId, at: VerifyRequest },
    /// Forget a blob.
    Forget { blob: BlobId },
}

/// Whether a worker that has got a blob gets it once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::leader) enum Again {
    Yes,
    No,
}

/// What is said to peers that know datasets.
#[derive(Clone, Debug)]
pub(in crate::leader) enum Says {
    Lack(Lack),
    Spread(Spread),
    Hold(Hold),
    Release(Release),
    Pack(Pack),
    Inspect(Inspect),
}

/// A worker, as the broker knows it.
#[derive(Clone, Copy, Debug)]
pub(in crate::leader) struct WorkerFacts<'a> {
    pub(in crate::leader) id: WorkerId,
    pub(in crate::leader) name: &'a str,
    pub(in crate::leader) patterns: &'a [String],
    /// Whether it can be sent datasets.
    pub(in crate::leader) datasets: bool,
}

/// What the rest of the leader knows, as it is while an event is handled: actions that are still to
/// be done are not in it.
pub(in crate::leader) trait Facts {
    /// The dataset that is kept under an id.
    fn dataset(&self, cache: &CacheId) -> Option<Arc<Dataset>>;
    /// All datasets that are kept, in the order of their ids.
    fn datasets(&self) -> Box<dyn Iterator<Item = &Arc<Dataset>> + '_>;
    fn dataset_count(&self) -> usize;
    /// Whether what was under an id was removed.
    fn is_removed(&self, cache: &CacheId) -> bool;
    fn worker(&self, worker: WorkerId) -> Option<WorkerFacts<'_>>;
    /// All workers, connected or expected back.
    fn workers(&self) -> Box<dyn Iterator<Item = WorkerFacts<'_>> + '_>;
    /// The classic workers that have agents, with those.
    fn pairs(&self) -> Vec<(WorkerId, WorkerId)>;
    /// The agent of a classic worker.
    fn agent_of(&self, worker: WorkerId) -> Option<WorkerId>;
    /// The classic workers of an agent.
    fn served_by(&self, agent: WorkerId) -> Vec<WorkerId>;
    /// The job whose inputs a dataset is, if it is some.
    fn staged_for(&self, cache: &CacheId) -> Option<JobId>;
    /// Whether a job has not ended, and names the dataset that was made of its inputs.
    fn names_its_inputs(&self, job: JobId) -> bool;
    /// Whether the dataset of a job's inputs can go: the job is gone, or waits and is with no
    /// worker.
    fn can_lose_its_inputs(&self, job: JobId) -> bool;
    fn is_draining(&self) -> bool;
    fn is_connected(&self, conn: ConnId) -> bool;
    /// How logs call a connection.
    fn peer_name(&self, conn: ConnId) -> String;
    /// Whether a blob is known.
    fn knows_blob(&self, blob: BlobId) -> bool;
    /// Whether a blob has come whole.
    fn has_arrived(&self, blob: BlobId) -> bool;
    fn blob_bytes(&self, blob: BlobId) -> u64;
    /// Bytes of a blob that are here.
    fn bytes_here(&self, blob: BlobId) -> u64;
    /// Whether a worker has got all of a blob that was given to it.
    fn has_got(&self, conn: ConnId, blob: BlobId) -> bool;
    /// Bytes of blobs that are here, and that may be (`--spool-max`).
    fn spool(&self) -> (u64, u64);
    /// Why so many more blobs cannot be taken, if so.
    fn too_many_blobs(&self, more: usize) -> Option<RefusalText>;
}
