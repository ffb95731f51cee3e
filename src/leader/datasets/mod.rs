//! Datasets at the leader: clients put them, the leader stores them as blobs, and workers receive
//! them ahead of the jobs that need them.
//!
//! The log says which workers should hold a dataset ([`Dataset`]); the workers report which ones
//! do. The leader reconciles the two, one dataset at a time per worker, whenever something changes:
//! a dataset is put or removed, or a worker joins, loses a dataset or needs one.
//!
//! [`Datasets`] is a state machine: events in, actions out. It sees the rest of the leader only
//! through [`Facts`]; `datasets_wiring` executes its actions.

mod agents;
mod classic_put;
mod classic_workers;
mod distribution;
mod held;
mod interface;
mod pack_index;
mod put;
mod put_waiters;
mod putting;
mod questions;
mod staged;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chunking::dataset::pack::Layout;
use chunking::message::Lack;
use uuid::Uuid;

use super::Asked;
use crate::answers::ask;
use crate::core::Event;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, Micros, WorkerId};
use crate::store::verify::{Verified, VerifyRequest};
use agents::Agents;
use classic_put::Lineage;
pub(super) use classic_put::{Checked, ReceivedPut};
use classic_workers::Frames;
use held::AtWorker;
pub(super) use interface::{
    Again, DatasetAction, DatasetEvent, Facts, RestoredPart, Says, StagedInputs, WorkerFacts,
    WorkerKind,
};
use pack_index::PackIndex;
use putting::Putting;
use questions::Inspection;

/// A part of a dataset, as blobs are known.
type BlobId = Uuid;

/// What the transfer of a pack is called.
pub(super) const PACK: &str = "pack";

/// What the transfer of a manifest is called.
pub(super) const MANIFEST: &str = "manifest";

/// How often what nobody needs any more is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How often those who wait for workers are told of such as are gone for good.
const LOOK_FOR_WORKERS_EVERY: Duration = Duration::from_secs(1);

/// Datasets, as the leader knows them beside the log.
#[derive(Debug)]
pub(super) struct Datasets {
    /// How long packs stay that no dataset has.
    grace: Duration,
    pack_index: PackIndex,
    /// Puts under way, by their requests.
    puts: BTreeMap<Uuid, Putting>,
    /// Puts of classic clients that wait for their turn.
    came: VecDeque<ReceivedPut>,
    /// What datasets were before files were added to them.
    lineage: Lineage,
    /// Frames for classic workers.
    frames: Frames,
    /// Workers that keep a cache for others.
    agents: Agents,
    /// What workers hold and get.
    workers: BTreeMap<WorkerId, AtWorker>,
    /// What workers said they lack of datasets whose manifests are being read.
    lacks: HashMap<WorkerId, (Uuid, Lack)>,
    /// Datasets that are being committed: their blobs are needed.
    committing: HashMap<Uuid, Arc<Dataset>>,
    /// Questions that wait for workers, or for the disk.
    inspections: HashMap<Uuid, Inspection>,
    /// Questions that wait until a dataset is removed.
    removals: HashMap<CacheId, Vec<Asked>>,
    /// Packs of a previous run that no dataset uses, and whose content was not verified.
    loose: HashSet<BlobId>,
    /// Questions that wait until a manifest is read.
    statuses: HashMap<Uuid, Vec<(ask::DatasetStatus, Asked)>>,
    /// Packs that are looked at because somebody asked.
    rechecks: HashMap<BlobId, HashSet<Uuid>>,
    /// When something is to be looked at again.
    tick_at: Option<Micros>,
    actions: VecDeque<DatasetAction>,
}

impl Datasets {
    /// None yet. Packs that no dataset has stay for `grace`.
    pub(super) fn new(grace: Duration) -> Self {
        Datasets {
            grace,
            pack_index: PackIndex::default(),
            puts: BTreeMap::new(),
            came: VecDeque::new(),
            lineage: Lineage::new(),
            frames: Frames::default(),
            agents: Agents::default(),
            workers: BTreeMap::new(),
            lacks: HashMap::new(),
            committing: HashMap::new(),
            inspections: HashMap::new(),
            removals: HashMap::new(),
            loose: HashSet::new(),
            statuses: HashMap::new(),
            rechecks: HashMap::new(),
            tick_at: None,
            actions: VecDeque::new(),
        }
    }

    /// Something happened. What is to be done about it, [`Datasets::poll`] says.
    pub(super) fn handle(&mut self, now: Micros, facts: &dyn Facts, event: DatasetEvent) {
        Step { datasets: self, facts, now }.handle(event);
    }

    /// The next thing to do.
    pub(super) fn poll(&mut self) -> Option<DatasetAction> {
        self.actions.pop_front()
    }

    /// When [`DatasetEvent::Tick`] is due.
    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.tick_at
    }

    /// Whether a blob is a part of a dataset, or about to be.
    pub(super) fn knows(&self, blob: BlobId) -> bool {
        self.pack_index.knows(blob) || self.puts.values().any(|put| put.brings_manifest(blob))
    }

    /// Every blob that is needed: of datasets that are kept or about to be.
    fn needed_blobs(&self, facts: &dyn Facts) -> HashSet<BlobId> {
        facts
            .datasets()
            .chain(self.committing.values())
            .flat_map(|dataset| dataset.blobs())
            .collect()
    }

    /// Packs that may go at once to make room. None while a put is under way whose manifest is not
    /// here yet: nobody knows which packs it needs.
    pub(super) fn orphans(&self, now: Micros, facts: &dyn Facts) -> Vec<BlobId> {
        let is_unknown = |putting: &Putting| putting.manifest.is_none();
        match self.came.is_empty() && !self.puts.values().any(is_unknown) {
            true => self.stale_packs(now, facts, Duration::ZERO),
            false => Vec::new(),
        }
    }

    /// Packs that no dataset has, no put under way needs, and nobody used for so long.
    pub(super) fn stale_packs(
        &self,
        now: Micros,
        facts: &dyn Facts,
        grace: Duration,
    ) -> Vec<BlobId> {
        let mut needed = self.needed_blobs(facts);
        // A put may take longer than that.
        for manifest in self.puts.values().filter_map(|putting| putting.manifest.as_ref()) {
            needed.extend(self.pack_index.packs_with(manifest));
        }
        self.pack_index.stale(&needed, now, grace)
    }
}

/// An event that is being handled: the datasets, and what the rest of the leader knows at that
/// moment.
struct Step<'a> {
    datasets: &'a mut Datasets,
    facts: &'a dyn Facts,
    now: Micros,
}

impl Step<'_> {
    fn handle(&mut self, event: DatasetEvent) {
        match event {
            DatasetEvent::Put { conn, request, put } => self.put_dataset(conn, request, put),
            DatasetEvent::PackAnnounced { conn, pack, request, says } => {
                self.pack_announced(conn, pack, request, says);
            }
            DatasetEvent::Opened { conn, blob, open } => self.opened(conn, blob, open),
            DatasetEvent::Arrived { blob } => self.part_arrived(blob),
            DatasetEvent::Failed { blob, text } => self.part_is_bad(blob, &text),
            DatasetEvent::Verified { blob, result } => self.looked(blob, result),
            DatasetEvent::ClassicCame { came, packs } => self.classic_came(came, packs),
            DatasetEvent::Staged { inputs, packs } => self.staged_came(inputs, packs),
            DatasetEvent::StagingOver { job } => self.end_put_of(job),
            DatasetEvent::WorkerJoined { conn, worker, host, kind } => {
                self.worker_joined(conn, worker, host, kind);
            }
            DatasetEvent::AgentChanged { worker, agent } => self.agent_changed(worker, agent),
            DatasetEvent::AgentWanted { agent, cache } => self.ask_agent(agent, cache),
            DatasetEvent::WorkerHas { conn, worker, have } => self.worker_has(conn, worker, &have),
            DatasetEvent::WorkerLacks { conn, worker, version, lack } => {
                self.worker_lacks(conn, worker, version, &lack);
            }
            DatasetEvent::WorkerAcked { worker, to, result } => {
                self.worker_acked(worker, to, result)
            }
            DatasetEvent::PartTaken { conn, worker, blob } => self.part_taken(conn, worker, blob),
            DatasetEvent::PartRefused { worker, blob, reason, text } => {
                self.part_refused(worker, blob, reason, &text);
            }
            DatasetEvent::Asked { by, question } => self.asked(by, question),
            DatasetEvent::Kept { dataset, replaced } => self.dataset_put(&dataset, replaced),
            DatasetEvent::Removed { dataset } => self.dataset_removed(&dataset),
            DatasetEvent::Restored { blob, part } => self.restored(blob, part),
            DatasetEvent::RestoredAll => {
                self.forget_stale_staged();
                self.watch();
            }
            DatasetEvent::Unwanted { blob } => self.forget_part(blob),
            DatasetEvent::Closed { conn } => self.closed(conn),
            DatasetEvent::Tick => self.tick(),
        }
    }

    fn act(&mut self, action: DatasetAction) {
        self.datasets.actions.push_back(action);
    }

    fn tell(&mut self, event: Event) {
        self.act(DatasetAction::Tell(event));
    }

    fn say(&mut self, conn: ConnId, id: Uuid, request: Uuid, says: Says) {
        self.act(DatasetAction::Say { conn, id, request, says });
    }

    /// Whether a blob is known, and is not about to be forgotten.
    fn knows_blob(&self, blob: BlobId) -> bool {
        let forgets = |action: &DatasetAction| matches!(action, DatasetAction::Forget { blob: of } if *of == blob);
        self.facts.knows_blob(blob) && !self.datasets.actions.iter().any(forgets)
    }

    /// A part of a dataset was looked at.
    fn looked(&mut self, blob: BlobId, result: Result<Verified, String>) {
        let result = match result {
            Ok(Verified::Pieces { reader, found }) => return self.pieces_read(blob, reader, found),
            result => result,
        };
        if let Some(questions) = self.datasets.rechecks.remove(&blob) {
            self.rechecked(blob, &questions, &result);
            return self.answer_statuses(blob);
        }
        match result {
            Ok(Verified::Manifest(manifest)) => self.manifest_read(blob, Arc::new(*manifest)),
            Ok(Verified::Pack(layout)) if self.datasets.loose.remove(&blob) => {
                self.check_loose(blob, layout)
            }
            Ok(Verified::Pack(layout)) => self.pack_is_good(blob, layout),
            Ok(Verified::Pieces { .. } | Verified::Bytes { .. }) => {}
            Err(text) => self.part_is_bad(blob, &text),
        }
        self.answer_statuses(blob);
        self.classic_turns();
    }

    /// A part of a dataset of a previous run is here, as its file is. Packs that came whole for a
    /// put that never ended stay for a while: a client that goes on with it need not bring them
    /// again.
    fn restored(&mut self, blob: BlobId, part: RestoredPart) {
        match part {
            RestoredPart::Manifest => return self.datasets.pack_index.restore_manifest(blob),
            RestoredPart::Pack => {}
            RestoredPart::LoosePack => {
                self.datasets.loose.insert(blob);
            }
        }
        self.datasets.pack_index.restore(blob, self.now);
        let at = VerifyRequest::PackList(self.facts.blob_bytes(blob));
        self.act(DatasetAction::Look { blob, at });
    }

    /// The list of a pack that no dataset has was read: its pieces are checked before they count.
    fn check_loose(&mut self, blob: BlobId, layout: Arc<Layout>) {
        self.datasets.pack_index.listed(blob, layout.clone());
        self.act(DatasetAction::Look { blob, at: VerifyRequest::Pack(layout) });
        if !self.datasets.pack_index.is_listing() {
            self.feed_all();
        }
    }

    /// A connection ended.
    fn closed(&mut self, conn: ConnId) {
        self.put_client_left(conn);
        self.classic_left(conn);
        self.worker_left(conn);
        self.agent_left(conn);
        // The client that asked is gone, and workers may never answer.
        self.datasets.inspections.retain(|_, inspection| inspection.by.conn != conn);
    }

    /// Time has passed.
    fn tick(&mut self) {
        let now = self.now;
        if self.datasets.tick_at.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.puts_due();
        self.workers_gone();
        self.open_put_off();
        self.forget_gone_workers();
        self.classic_due();
        self.sweep();
        self.watch();
    }

    /// Looks again when the next thing is due.
    fn watch(&mut self) {
        let deadlines = self.datasets.puts.values().filter_map(Putting::deadline).min();
        let sweep = (!self.datasets.pack_index.is_empty()).then(|| self.now.plus(SWEEP_EVERY));
        let waits = self.datasets.puts.values().any(|putting| putting.missing().next().is_some());
        let is_waited_for = |at: &AtWorker| at.conn.is_none() || at.has_put_off();
        let waits = waits || self.datasets.workers.values().any(is_waited_for);
        let workers = waits.then(|| self.now.plus(LOOK_FOR_WORKERS_EVERY));
        let classic = self.classic_deadline().into_iter().chain(workers);
        let due =
            deadlines.into_iter().chain(classic).chain(sweep).chain(self.datasets.tick_at).min();
        self.datasets.tick_at = due;
    }

    fn needed_blobs(&self) -> HashSet<BlobId> {
        self.datasets.needed_blobs(self.facts)
    }

    /// Forgets what nobody needs: manifests, and packs that were not used for a while. A client
    /// that comes back soon finds what it brought before.
    fn sweep(&mut self) {
        for blob in self.datasets.stale_packs(self.now, self.facts, self.datasets.grace) {
            self.forget_part(blob);
        }
        self.datasets.pack_index.rest(self.now);
        self.datasets.frames.rest();
    }

    /// The blobs of a dataset that was removed or replaced go at once, but for those that others
    /// need.
    fn release_blobs(&mut self, dataset: &Dataset) {
        let needed = self.needed_blobs();
        let gone: Vec<BlobId> = dataset.blobs().filter(|blob| !needed.contains(blob)).collect();
        gone.into_iter().for_each(|blob| self.forget_part(blob));
    }

    fn forget_part(&mut self, blob: BlobId) {
        self.datasets.pack_index.forget(blob);
        self.act(DatasetAction::Forget { blob });
    }
}
