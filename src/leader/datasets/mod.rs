//! Datasets at the leader: clients put them, the leader keeps them as blobs, workers get them ahead of the jobs that need them.
//!
//! What is to be held by whom is in the log ([`Dataset`]); what is held is what workers say. The leader brings the two together, one
//! set at a time for each worker, whenever something changes: a set is put or removed, a worker joins, loses one or needs one.

mod agents;
mod classic;
mod held;
mod library;
mod make;
mod put;
mod putters;
mod questions;
mod restore;
mod spread;
mod staging;
mod stock;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chunking::message::Lack;
use uuid::Uuid;

use super::Leader;
use super::relay::BlobId;
use crate::conn::DatasetSays;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, JobId, Micros, WorkerId};
use crate::store::look::Looked;
use agents::Agents;
use classic::{Came, Lineage};
use held::AtWorker;
use library::Library;
pub(super) use make::PackMaker;
use put::Putting;
use questions::Inspection;
use staging::Staging;
use stock::Frames;

/// How often what nobody needs any more is looked for.
const SWEEP_EVERY: Duration = Duration::from_secs(30);

/// How often those who wait for workers are told of such as are gone for good.
const LOOK_FOR_WORKERS_EVERY: Duration = Duration::from_secs(1);

/// Datasets, as the leader knows them beside the log.
#[derive(Debug, Default)]
pub(super) struct Datasets {
    library: Library,
    /// Puts under way, by their requests.
    puts: BTreeMap<Uuid, Putting>,
    /// Puts of stock clients that wait for their turn.
    came: VecDeque<Came>,
    /// What sets were before files were added to them.
    lineage: Lineage,
    /// Frames for stock workers.
    frames: Frames,
    /// Workers that keep a cache for others.
    agents: Agents,
    /// Inputs of jobs that are made sets for those, one after the other.
    stagings: VecDeque<Staging>,
    /// What workers hold and get.
    workers: BTreeMap<WorkerId, AtWorker>,
    /// What workers said they lack of sets whose manifests are being read.
    lacks: HashMap<WorkerId, (Uuid, Lack)>,
    /// Sets that are being committed: their blobs are needed.
    committing: HashMap<Uuid, Arc<Dataset>>,
    /// Questions that wait for workers, or for the disk.
    inspections: HashMap<Uuid, Inspection>,
    /// Questions that wait until a set is removed.
    removals: HashMap<CacheId, Vec<super::Asked>>,
    /// Packs of an earlier life that no set has: what is in them was never checked for certain.
    loose: HashSet<BlobId>,
    /// Questions that wait until a manifest is read.
    statuses: HashMap<Uuid, Vec<(CacheId, super::Asked)>>,
    /// Packs that are looked at because somebody asked.
    rechecks: HashMap<BlobId, HashSet<Uuid>>,
    /// When something is to be looked at again.
    tick_at: Option<Micros>,
}

impl Datasets {
    /// When the leader has to look at them again.
    pub(super) fn next_deadline(&self) -> Option<Micros> {
        self.tick_at
    }

    /// Whether a blob is a part of a dataset, or about to be.
    pub(super) fn knows(&self, blob: BlobId) -> bool {
        self.library.knows(blob) || self.puts.values().any(|put| put.brings_manifest(blob))
    }
}

impl Leader {
    /// A peer said something about datasets.
    pub(super) fn dataset_says(&mut self, conn: ConnId, says: DatasetSays) {
        match says {
            DatasetSays::Put { request, put } => self.put_dataset(conn, request, put),
            DatasetSays::Pack { pack, request, says } => self.pack_announced(conn, pack, request, says),
            DatasetSays::Lack { generation, lack } => self.worker_lacks(conn, generation, &lack),
            DatasetSays::Have(have) => self.worker_has(conn, &have),
            DatasetSays::Ack { to, result } => self.worker_acked(conn, to, result),
            DatasetSays::Classic { request, subject, payload } => {
                self.classic_put(conn, request, &subject, &payload);
            }
        }
    }

    /// A part of a dataset was looked at.
    pub(super) fn looked(&mut self, blob: BlobId, result: Result<Looked, String>) {
        let result = match result {
            Ok(Looked::Pieces { reader, found }) => return self.pieces_read(blob, reader, found),
            Ok(Looked::Bytes { reader, found }) => return self.input_read(JobId(reader), found),
            result => result,
        };
        if let Some(questions) = self.datasets.rechecks.remove(&blob) {
            self.rechecked(blob, &questions, &result);
            return self.answer_statuses(blob);
        }
        match result {
            Ok(Looked::Manifest(manifest)) => self.manifest_read(blob, Arc::new(*manifest)),
            Ok(Looked::Pack(layout)) if self.datasets.loose.remove(&blob) => self.check_loose(blob, layout),
            Ok(Looked::Pack(layout)) => self.pack_is_good(blob, layout),
            Ok(Looked::Pieces { .. } | Looked::Bytes { .. }) => {}
            Err(text) => self.part_is_bad(blob, &text),
        }
        self.answer_statuses(blob);
        self.classic_turns();
    }

    /// A connection ended.
    pub(super) fn datasets_closed(&mut self, conn: ConnId) {
        self.put_client_left(conn);
        self.stock_left(conn);
        self.worker_left(conn);
        self.agent_left(conn);
        // Nobody hears the answers any more, and workers may take for ever to give them.
        self.datasets.inspections.retain(|_, inspection| inspection.by.conn != conn);
    }

    /// Time has passed.
    pub(super) fn datasets_tick(&mut self) {
        let now = self.now;
        if self.datasets.tick_at.take_if(|due| *due <= now).is_none() {
            return;
        }
        self.puts_due();
        self.workers_gone();
        self.forget_gone_workers();
        self.stock_due();
        self.sweep();
        self.watch_datasets();
    }

    /// Looks again when the next thing is due.
    fn watch_datasets(&mut self) {
        let deadlines = self.datasets.puts.values().filter_map(Putting::deadline).min();
        let sweep = (!self.datasets.library.is_empty()).then(|| self.now.plus(SWEEP_EVERY));
        let waits = self.datasets.puts.values().any(|putting| putting.missing().next().is_some());
        let is_away = |at: &AtWorker| at.conn.is_none();
        let waits = waits || self.datasets.workers.values().any(is_away);
        let workers = waits.then(|| self.now.plus(LOOK_FOR_WORKERS_EVERY));
        let stock = self.stock_deadline().into_iter().chain(workers);
        let due = deadlines.into_iter().chain(stock).chain(sweep).chain(self.datasets.tick_at).min();
        self.datasets.tick_at = due;
    }

    /// Every blob that is needed: of sets that are kept or about to be.
    fn needed_blobs(&self) -> HashSet<BlobId> {
        let kept = self.broker.state().datasets();
        kept.chain(self.datasets.committing.values()).flat_map(|dataset| dataset.blobs()).collect()
    }

    /// Forgets what nobody needs: manifests, and packs that were not used for a while. A client that comes back soon finds what it
    /// brought before.
    fn sweep(&mut self) {
        for blob in self.stale_packs(self.config.blob_grace) {
            self.forget_part(blob);
        }
        self.datasets.library.rest(self.now);
        self.datasets.frames.rest();
    }

    /// Packs that no set has, no put under way needs, and nobody used for so long.
    pub(super) fn stale_packs(&self, grace: Duration) -> Vec<BlobId> {
        let mut needed = self.needed_blobs();
        // A put may take longer than that.
        for manifest in self.datasets.puts.values().filter_map(|putting| putting.manifest.as_ref()) {
            needed.extend(self.datasets.library.packs_with(manifest));
        }
        self.datasets.library.stale(&needed, self.now, grace)
    }

    /// The blobs of a set that was removed or replaced go at once, but for those that others need.
    fn release_blobs(&mut self, dataset: &Dataset) {
        let needed = self.needed_blobs();
        let gone: Vec<BlobId> = dataset.blobs().filter(|blob| !needed.contains(blob)).collect();
        gone.into_iter().for_each(|blob| self.forget_part(blob));
    }

    pub(super) fn forget_part(&mut self, blob: BlobId) {
        self.datasets.library.forget(blob);
        self.relay.forget(blob);
    }
}
