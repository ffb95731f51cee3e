//! Connects the dataset machine to the leader: passes it events with the current facts, and
//! executes its actions.

use std::collections::HashMap;
use std::sync::Arc;

use chunking::dataset::pack::Layout;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::Purpose;
use tracing::error;
use uuid::Uuid;

use super::children::CommonId;
use super::datasets::{
    Again, DatasetAction, DatasetEvent, Facts, MANIFEST, PACK, RestoredPart, Says, WorkerFacts,
    WorkerKind,
};
use super::failed_inputs::Retained;
use super::pacing::{Memory, Posting};
use super::peers::Peers;
use super::questions::QuestionEvent;
use super::recover::no_map;
use super::refusal_text::RefusalText;
use super::relay::{BlobId, KnownBlobs, Relay};
use super::staging::NotStaged;
use super::{Leader, LeaderConfig, Output};
use crate::conn::DatasetSays;
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, JobId, WorkerId};
use crate::core::job::{Job, Phase};
use crate::core::worker::Worker;
use crate::core::{Broker, Event};
use crate::model::{CachePutRequest, CachePutResult, JsonModel};
use crate::store::blobs::DiskOp;
use crate::store::map::Map;
use crate::store::verify::{LIST_CHUNKS_MAX, Verified, VerifyRequest};

/// The id of a put of nothing: the cache's own directory, which is there.
const NOTHING: &str = ".";

/// What datasets may know of the leader.
pub(super) struct Seen<'a> {
    broker: &'a Broker,
    relay: &'a Relay,
    peers: &'a Peers,
    retained_bytes: u64,
    retained_blobs: KnownBlobs,
    spool_bytes_max: u64,
}

impl<'a> Seen<'a> {
    fn of(
        broker: &'a Broker,
        relay: &'a Relay,
        peers: &'a Peers,
        retained: &Retained,
        config: &LeaderConfig,
    ) -> Self {
        let spool_bytes_max = config.relay.spool_bytes_max;
        let (retained_bytes, retained_blobs) = (retained.blob_bytes(), retained.blobs());
        Seen { broker, relay, peers, retained_bytes, retained_blobs, spool_bytes_max }
    }
}

fn worker_facts(worker: &Worker) -> WorkerFacts<'_> {
    let Worker { id, name, patterns, datasets, .. } = worker;
    WorkerFacts { id: *id, name, patterns, datasets: *datasets }
}

impl Facts for Seen<'_> {
    fn dataset(&self, cache: &CacheId) -> Option<Arc<Dataset>> {
        self.broker.state().dataset(cache).cloned()
    }

    fn datasets(&self) -> Box<dyn Iterator<Item = &Arc<Dataset>> + '_> {
        Box::new(self.broker.state().datasets())
    }

    fn dataset_count(&self) -> usize {
        self.broker.state().dataset_count()
    }

    fn is_removed(&self, cache: &CacheId) -> bool {
        self.broker.state().is_dataset_removed(cache)
    }

    fn worker(&self, worker: WorkerId) -> Option<WorkerFacts<'_>> {
        self.broker.worker(worker).map(worker_facts)
    }

    fn workers(&self) -> Box<dyn Iterator<Item = WorkerFacts<'_>> + '_> {
        Box::new(self.broker.workers().map(worker_facts))
    }

    fn pairs(&self) -> Vec<(WorkerId, WorkerId)> {
        self.broker.agents().collect()
    }

    fn agent_of(&self, worker: WorkerId) -> Option<WorkerId> {
        self.broker.agent_of(worker)
    }

    fn served_by(&self, agent: WorkerId) -> Vec<WorkerId> {
        self.broker.served_by(agent).collect()
    }

    fn staged_for(&self, cache: &CacheId) -> Option<JobId> {
        self.broker.state().staged_for(cache)
    }

    fn names_its_inputs(&self, job: JobId) -> bool {
        self.broker.state().job(job).is_some_and(|job| !job.has_ended() && job.is_staged())
    }

    fn can_lose_its_inputs(&self, job: JobId) -> bool {
        self.broker
            .state()
            .job(job)
            .is_none_or(|job: &Job| matches!(job.phase, Phase::Queued { .. }))
    }

    fn is_draining(&self) -> bool {
        self.broker.is_draining()
    }

    fn is_connected(&self, conn: ConnId) -> bool {
        self.peers.has(conn)
    }

    fn peer_name(&self, conn: ConnId) -> String {
        self.peers.name(conn)
    }

    fn knows_blob(&self, blob: BlobId) -> bool {
        self.relay.knows(blob)
    }

    fn has_arrived(&self, blob: BlobId) -> bool {
        self.relay.has_arrived(blob)
    }

    fn blob_bytes(&self, blob: BlobId) -> u64 {
        self.relay.size(blob)
    }

    fn bytes_here(&self, blob: BlobId) -> u64 {
        self.relay.bytes_here(blob)
    }

    fn has_got(&self, conn: ConnId, blob: BlobId) -> bool {
        self.relay.has_got(conn, blob)
    }

    fn spool(&self) -> (u64, u64) {
        // The inputs of failed jobs make room.
        let taken = self.relay.fill().bytes.saturating_sub(self.retained_bytes);
        (taken, self.spool_bytes_max)
    }

    fn too_many_blobs(&self, more: usize) -> Option<RefusalText> {
        self.relay.too_many(more, 0, self.retained_blobs).map(RefusalText::from)
    }
}

impl Leader {
    /// What datasets may know now.
    pub(super) fn facts(&self) -> Seen<'_> {
        Seen::of(&self.broker, &self.relay, &self.peers, &self.retained, &self.config)
    }

    /// Hands datasets an event, and does what they want done.
    pub(super) fn dataset_event(&mut self, event: DatasetEvent) {
        let facts = Seen::of(&self.broker, &self.relay, &self.peers, &self.retained, &self.config);
        self.datasets.handle(self.now, &facts, event);
        self.datasets_on();
    }

    /// Does what datasets want done. What follows from that is done after it, not in the middle.
    fn datasets_on(&mut self) {
        if std::mem::replace(&mut self.acts_for_datasets, true) {
            return;
        }
        while let Some(action) = self.datasets.poll() {
            match action {
                DatasetAction::Say { conn, id, request, says } => {
                    let frame = self.peers.get(conn).and_then(|session| match &says {
                        Says::Lack(lack) => session.dataset(id, request, lack),
                        Says::Spread(spread) => session.dataset(id, request, spread),
                        Says::Hold(hold) => session.dataset(id, request, hold),
                        Says::Release(release) => session.dataset(id, request, release),
                        Says::Pack(pack) => session.dataset(id, request, pack),
                        Says::Inspect(inspect) => session.dataset(id, request, inspect),
                    });
                    self.send(conn, frame);
                }
                DatasetAction::Refuse { conn, request, refusal } => {
                    let frame =
                        self.peers.get(conn).and_then(|session| refusal.frame(session, request));
                    self.send(conn, frame);
                }
                DatasetAction::CacheAck { conn, request, result } => {
                    self.cache_ack(conn, request, result)
                }
                DatasetAction::AskClassic { conn } => {
                    let nothing = CachePutRequest {
                        cache_id: NOTHING.to_owned(),
                        entries: Vec::new(),
                        target_pattern: String::new(),
                        part_no: None,
                        part_count: None,
                    };
                    let (id, nothing) = ((self.make_id)(), nothing.to_json().into());
                    let session = self.peers.get(conn);
                    let frame = session.and_then(|session| session.cache_put(id, nothing).ok());
                    self.send(conn, frame);
                }
                DatasetAction::SendDataset { conn, version, payload } => {
                    let session = self.peers.get(conn);
                    let frame =
                        session.and_then(|session| session.cache_put(version, payload).ok());
                    if let Some(frame) = frame {
                        // One at a time for each worker, and the same for all of them.
                        let memory = Memory::Common(CommonId::Dataset(version));
                        self.post_now(conn, Posting { frame, memory });
                    }
                }
                DatasetAction::Answer { to, answer } => {
                    self.questions(QuestionEvent::Answered { by: to, answer });
                }
                DatasetAction::Tell(event) => self.broker.handle(self.now, event),
                DatasetAction::Pair { worker, agent } => {
                    self.broker.handle(self.now, Event::AgentFor { worker, agent });
                    self.dataset_event(DatasetEvent::AgentChanged { worker, agent });
                }
                DatasetAction::NotStaged { job, why } => {
                    self.not_staged(NotStaged { job, why, again: true });
                }
                DatasetAction::Expect { blob, open, plan } => {
                    self.relay.expect(blob, open, plan, true)
                }
                DatasetAction::Accept { conn, blob, open } => self.accept(conn, blob, open),
                DatasetAction::TurnAway { conn, blob } => self.relay.turn_away(conn, blob),
                DatasetAction::KeepManifest { blob, key, bytes } => {
                    let chunk = CHUNK_BYTES_MAX as usize;
                    for (index, start) in (0u32..).zip((0..bytes.len()).step_by(chunk)) {
                        let end = bytes.len().min(start + chunk);
                        self.relay.gather(blob, Purpose::Dataset, index, bytes.slice(start..end));
                    }
                    let size = bytes.len() as u64;
                    let kept =
                        self.relay.gathered(blob, JobId(key), Purpose::Dataset, MANIFEST, size);
                    if let Err(error) = kept {
                        let text = error.to_string();
                        self.dataset_event(DatasetEvent::Failed { blob, text });
                        continue;
                    }
                    // The relay writes the part before the disk threads check it.
                    self.relay_on();
                    if self.relay.has_arrived(blob) {
                        self.dataset_event(DatasetEvent::Arrived { blob });
                    }
                }
                DatasetAction::Attach { conn, blob, version, again } => {
                    let owner = JobId(version);
                    match again {
                        Again::Yes => self.relay.attach_anew(conn, blob, owner, 0),
                        Again::No => self.relay.attach(conn, blob, owner, 0),
                    }
                }
                DatasetAction::Detach { conn, blob } => {
                    self.relay.detach(conn, blob);
                }
                DatasetAction::Settle { blob } => self.relay.settle(blob),
                DatasetAction::Look { blob, at } => self.look_at(blob, at),
                DatasetAction::Forget { blob } => self.relay.forget(blob),
            }
        }
        self.acts_for_datasets = false;
    }

    /// How a put ended at a worker.
    pub(super) fn cache_ack(&mut self, conn: ConnId, request: Uuid, mut result: CachePutResult) {
        let Some(session) = self.peers.get(conn) else { return };
        // A peer that announced nothing gets only messages of the older system.
        if !session.is_announced() {
            result.worker = None;
        }
        let frame = session.cache_ack(request, &result);
        self.send(conn, frame);
    }

    /// Has the disk threads check a part of a dataset, as far as it is needed.
    fn look_at(&mut self, blob: BlobId, at: VerifyRequest) {
        let mut chunks = self.relay.chunks(blob);
        match &at {
            VerifyRequest::PackList(_) => {
                let last = chunks.len().saturating_sub(LIST_CHUNKS_MAX);
                chunks.drain(..last);
            }
            VerifyRequest::Pieces(wanted) => chunks.retain(|(_, head, _)| wanted.is_in(head)),
            VerifyRequest::Manifest | VerifyRequest::Pack(_) | VerifyRequest::Bytes { .. } => {}
        }
        self.outputs.push_back(Output::Disk(DiskOp::Look { blob, chunks, at }));
    }

    /// The disk threads checked a blob.
    pub(super) fn looked(&mut self, blob: BlobId, result: Result<Verified, String>) {
        match result {
            Ok(Verified::Bytes { reader, found }) => self.input_read(reader, found),
            result => self.dataset_event(DatasetEvent::Verified { blob, result }),
        }
    }

    /// A peer said something about datasets.
    pub(super) fn dataset_says(&mut self, conn: ConnId, says: DatasetSays) {
        let worker = self.peers.worker_at(conn);
        let event = match (says, worker) {
            (DatasetSays::Put { request, put }, _) => DatasetEvent::Put { conn, request, put },
            (DatasetSays::Pack { pack, request, says }, _) => {
                DatasetEvent::PackAnnounced { conn, pack, request, says }
            }
            (DatasetSays::Lack { version, lack }, Some(worker)) => {
                DatasetEvent::WorkerLacks { conn, worker, version, lack }
            }
            (DatasetSays::Have(have), Some(worker)) => {
                DatasetEvent::WorkerHas { conn, worker, have }
            }
            (DatasetSays::Ack { to, result }, Some(worker)) => {
                DatasetEvent::WorkerAcked { worker, to, result }
            }
            (DatasetSays::Classic { request, subject, payload }, _) => {
                return self.classic_put(conn, request, &subject, &payload);
            }
            (DatasetSays::Lack { .. } | DatasetSays::Have(_) | DatasetSays::Ack { .. }, None) => {
                return;
            }
        };
        self.dataset_event(event);
    }

    /// A worker said hello.
    pub(super) fn worker_joined(&mut self, conn: ConnId) {
        let Some(session) = self.peers.get(conn) else { return };
        // One whose hello was refused changes nothing for the worker whose id it has.
        let Some(worker) = session.worker().filter(|worker| self.broker.is_at(*worker, conn))
        else {
            return;
        };
        let kind = match session.agent() {
            Some(agent) => WorkerKind::Agent { only: agent.only },
            None if session.takes_cache_puts() => WorkerKind::Classic,
            None => WorkerKind::Ours,
        };
        let host = self.peers.host(conn);
        self.dataset_event(DatasetEvent::WorkerJoined { conn, worker, host, kind });
    }

    /// Bytes of a part of a dataset went to a connection.
    pub(super) fn count_sent(&mut self, conn: ConnId, blob: BlobId, bytes: u64) {
        if self.datasets.knows(blob)
            && let Some(worker) = self.peers.worker_at(conn)
        {
            self.datasets.count_sent(worker, bytes);
        }
    }

    /// Packs that were made here have to be there before anything is made of them.
    pub(super) fn packs_are_here(&mut self, packs: &[(BlobId, Layout)]) -> Result<(), String> {
        // The relay writes the parts before the disk threads check them.
        self.relay_on();
        if packs.iter().any(|(pack, _)| !self.relay.knows(*pack)) {
            packs.iter().for_each(|(pack, _)| self.relay.forget(*pack));
            return Err("the leader's disk could not store its contents".to_owned());
        }
        Ok(())
    }

    /// Takes the blobs of a previous run that belong to datasets.
    pub(super) fn restore_datasets(&mut self, maps: &mut HashMap<BlobId, Map>) {
        let kept: Vec<(BlobId, bool)> = {
            let datasets = self.broker.state().datasets();
            datasets
                .flat_map(|dataset| dataset.blobs().map(|blob| (blob, blob == dataset.version)))
                .collect()
        };
        for (blob, is_manifest) in kept {
            if self.relay.knows(blob) {
                continue;
            }
            let restored = match maps.remove(&blob) {
                Some(map) => self.restore_whole(blob, map),
                None => Err(no_map(blob)),
            };
            let part = if is_manifest { RestoredPart::Manifest } else { RestoredPart::Pack };
            match restored {
                Err(why) => {
                    error!(%blob, "a part of a dataset is lost; put the dataset again: {why}")
                }
                Ok(()) => self.dataset_event(DatasetEvent::Restored { blob, part }),
            }
        }
        let is_loose = |map: &Map| {
            let is_pack = map.open.purpose == Purpose::Dataset && map.open.name.as_str() == PACK;
            is_pack && map.seal.is_some() && map.is_whole() && map.damage.is_empty()
        };
        let loose: Vec<BlobId> =
            maps.iter().filter(|(_, map)| is_loose(map)).map(|(blob, _)| *blob).collect();
        for blob in loose {
            if let Some(map) = maps.remove(&blob)
                && self.restore_whole(blob, map).is_ok()
            {
                self.dataset_event(DatasetEvent::Restored { blob, part: RestoredPart::LoosePack });
            }
        }
        self.dataset_event(DatasetEvent::RestoredAll);
    }
}
