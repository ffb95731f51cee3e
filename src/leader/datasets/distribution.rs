//! Brings workers from the datasets they hold to the datasets they should hold. Each worker
//! receives one dataset at a time: the leader asks it to hold the dataset, the worker reports the
//! missing pieces, and the leader sends the packs that contain them, as they arrive or from disk.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use chunking::dataset::Piece;
use chunking::dataset::pack::Layout;
use chunking::message::{Hold, HoldFlags, Lack, Lacking, Name, Pack, PieceList, Reason, Release};
use chunking::{Digest, DigestKind};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::classic_workers::may_fit;
use super::held::{NotHeld, reason};
use super::pack_index::PackState;
use super::{Again, BlobId, DatasetAction, Datasets, Says, Step, WorkerFacts};
use crate::core::Event;
use crate::core::dataset::{Dataset, TARGET_NONE};
use crate::core::ids::{CacheId, ConnId, Micros, WorkerId};
use crate::core::subject::{subscriptions, targets};
use crate::model::{CachePutResult, CacheStatus};
use crate::store::verify::VerifyRequest;

/// Packs that are opened to a worker at a time: enough that it never waits for the next, few enough
/// that both ends stay small.
const PACKS_OPEN_MAX: usize = 8;

/// What a worker is asked to hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct WantedVersion {
    pub(super) cache: CacheId,
    pub(super) version: Uuid,
    pub(super) digest: [u8; 32],
    pub(super) bytes: u64,
    pub(super) files: u32,
}

impl From<&Dataset> for WantedVersion {
    fn from(dataset: &Dataset) -> Self {
        let Dataset { cache, version, digest, bytes, files, .. } = dataset;
        WantedVersion {
            cache: cache.clone(),
            version: *version,
            digest: *digest,
            bytes: *bytes,
            files: *files,
        }
    }
}

/// A dataset on its way to a worker.
#[derive(Debug)]
pub(super) struct Push {
    pub(super) wanted: WantedVersion,
    /// Whether the worker was told that the dataset counts.
    committed: bool,
    /// Pieces that it said it lacks, and that are not even on their way to the leader.
    unplaced: HashSet<Piece>,
    /// Packs that have pieces which it lacks, and are still to be opened to it.
    packs: BTreeSet<BlobId>,
    /// Packs that are open to it.
    open: BTreeSet<BlobId>,
    /// What it had too many transfers for, the manifest or packs: opened again after a while.
    put_off: BTreeSet<BlobId>,
    /// Bytes that are still to come, as it said last; until then those of the dataset. Never none.
    pub(super) missing: u64,
    /// Bytes that it lacked when it first said so.
    pub(super) total: Option<u64>,
    /// Bytes that were sent.
    pub(super) sent: u64,
    since: Micros,
}

impl Push {
    /// Whether the worker takes something of it later.
    pub(super) fn is_put_off(&self) -> bool {
        !self.put_off.is_empty()
    }
}

impl Step<'_> {
    /// How people know a worker: its id, and its name if it has one.
    pub(super) fn worker_name(&self, worker: WorkerId) -> String {
        let name = self.facts.worker(worker).map(|known| known.name);
        match name.filter(|name| !name.is_empty()) {
            Some(name) => format!("{worker} {name}"),
            None => worker.to_string(),
        }
    }

    /// The workers that a pattern is for (C12), connected or expected back.
    pub(super) fn targets_of(&self, target: &str) -> Vec<WorkerId> {
        if target == TARGET_NONE {
            return Vec::new();
        }
        self.facts
            .workers()
            .filter(|worker| is_target(*worker, target))
            .map(|worker| worker.id)
            .collect()
    }

    /// The workers that are to hold a dataset: heft workers, agents of classic workers, and classic
    /// workers without an agent that may take it.
    pub(super) fn targets_for(&self, dataset: &Dataset) -> Vec<WorkerId> {
        let all = self.facts.workers().filter(|worker| self.is_to_hold(*worker, dataset));
        all.map(|worker| worker.id).collect()
    }

    fn is_to_hold(&self, worker: WorkerFacts<'_>, dataset: &Dataset) -> bool {
        if &*dataset.target == TARGET_NONE {
            return false;
        }
        let classic = self.datasets.workers.get(&worker.id).and_then(|at| at.classic.as_ref());
        match classic {
            None => {
                let is_for = |classic: WorkerId| {
                    self.facts
                        .worker(classic)
                        .is_some_and(|classic| is_meant(classic, &dataset.target))
                };
                is_target(worker, &dataset.target)
                    || worker.datasets && self.facts.served_by(worker.id).into_iter().any(is_for)
            }
            Some(classic) => {
                let has_agent = || self.facts.agent_of(worker.id).is_some();
                let takes = classic.may_know() && may_fit(dataset) && !has_agent();
                takes && is_meant(worker, &dataset.target)
            }
        }
    }

    /// Whether a worker holds this content of a dataset.
    pub(super) fn holds_dataset(
        &self,
        worker: WorkerId,
        cache: &CacheId,
        digest: &[u8; 32],
    ) -> bool {
        self.datasets.workers.get(&worker).is_some_and(|at| at.held_of(cache) == Some(*digest))
    }

    /// A worker has a dataset already. Who put it hears so: the worker may have been about to say
    /// what it has when the put began to wait for it. If it has just got it, its own answer
    /// follows.
    pub(super) fn found_at(&mut self, worker: WorkerId, dataset: &Arc<Dataset>) {
        if self.datasets.workers.get(&worker).is_none_or(|at| !at.is_pushed(dataset.version)) {
            let result =
                CachePutResult::stored(dataset.cache.as_str(), 0, u64::from(dataset.files));
            self.tell_putters(dataset.version, worker, &result);
        }
    }

    /// A worker that has another content of a dataset than counts, and is not to get that or
    /// cannot, gives it up: no job is to see it. Those that are to get it keep what they have until
    /// then, for what the two share need not be sent.
    pub(super) fn release_old(&mut self, worker: WorkerId, dataset: &Arc<Dataset>) {
        let Some(known) = self.facts.worker(worker) else { return };
        let is_to_hold = self.is_to_hold(known, dataset);
        let Some(at) = self.datasets.workers.get(&worker).filter(|at| at.classic.is_none()) else {
            return;
        };
        if at.is_queued(&dataset.cache) || at.push_of(&dataset.cache).is_some() {
            return;
        }
        let is_old = at.held_of(&dataset.cache).is_some_and(|digest| digest != dataset.digest);
        let cannot =
            at.not_held.get(&dataset.cache).is_some_and(|(digest, _)| *digest == dataset.digest);
        if is_old && (cannot || !is_to_hold) {
            self.give_up(worker, &dataset.cache, "the dataset was replaced");
        }
    }

    /// What a worker has of a dataset is not for jobs any more.
    fn give_up(&mut self, worker: WorkerId, cache: &CacheId, text: &str) {
        self.release(worker, cache, Uuid::nil(), Reason::NONE, text);
        self.set_held(worker, cache, None);
    }

    /// A job at a worker needs a dataset that it has not.
    pub(super) fn worker_wants(&mut self, worker: WorkerId, conn: ConnId, cache: CacheId) {
        let Some(dataset) = self.facts.dataset(&cache) else {
            let text = format!("the leader keeps no dataset {cache}");
            return self.release(worker, &cache, Uuid::nil(), Reason::UNKNOWN, &text);
        };
        let Some(at) = self.datasets.workers.get_mut(&worker).filter(|at| at.conn == Some(conn))
        else {
            return;
        };
        at.not_held.remove(&cache);
        if at.held_of(&cache) == Some(dataset.digest) {
            // It has what counts, and asks whether that is so.
            return self.say_hold(Some(conn), &WantedVersion::from(&*dataset), true);
        }
        if !at.is_pushed(dataset.version) {
            at.queue.retain(|queued| *queued != cache);
            at.queue.insert(0, cache);
        }
    }

    pub(super) fn release(
        &mut self,
        worker: WorkerId,
        cache: &CacheId,
        version: Uuid,
        reason: Reason,
        text: &str,
    ) {
        let Some(conn) = self.datasets.workers.get(&worker).and_then(|at| at.conn) else { return };
        let Ok(cache_id) = Name::try_from(cache.as_str().to_owned()) else { return };
        let release = Release { reason, text: text.into(), cache_id };
        self.say(conn, version, Uuid::nil(), Says::Release(release));
    }

    /// Those that are gone for good are not remembered.
    pub(super) fn forget_gone_workers(&mut self) {
        let facts = self.facts;
        let is_known = |worker: &WorkerId| facts.worker(*worker).is_some();
        self.datasets.workers.retain(|worker, at| at.conn.is_some() || is_known(worker));
    }

    // --- what is to be held

    /// Sees to it that a worker gets what it is to hold.
    pub(super) fn reconcile(&mut self, worker: WorkerId) {
        let Some(at) = self.datasets.workers.get(&worker).filter(|at| at.told && at.conn.is_some())
        else {
            return;
        };
        let lacks = |dataset: &&Arc<Dataset>| {
            let wanted = WantedVersion::from(&***dataset);
            let gave_up =
                at.not_held.get(&wanted.cache).is_some_and(|(digest, _)| *digest == wanted.digest);
            !at.holds(&wanted)
                && !gave_up
                && !at.is_pushed(wanted.version)
                && !at.is_queued(&wanted.cache)
        };
        let Some(known) = self.facts.worker(worker) else { return };
        let wanted = |dataset: &&Arc<Dataset>| self.is_to_hold(known, dataset);
        let datasets = self.facts.datasets();
        let lacking: Vec<CacheId> =
            datasets.filter(lacks).filter(wanted).map(|dataset| dataset.cache.clone()).collect();
        if let Some(at) = self.datasets.workers.get_mut(&worker) {
            at.queue.extend(lacking);
        }
        self.push_next(worker);
    }

    /// A dataset is kept, or kept for others: every worker that is to hold it is asked to, and
    /// those that have begun hear that it counts.
    pub(super) fn push_to_all(&mut self, dataset: &Arc<Dataset>) {
        for worker in self.datasets.workers.keys().copied().collect::<Vec<_>>() {
            let Some(at) = self.datasets.workers.get_mut(&worker) else { continue };
            let begun = at.push.as_mut().filter(|push| push.wanted.version == dataset.version);
            match begun {
                Some(push) => {
                    if !std::mem::replace(&mut push.committed, true) {
                        let (wanted, conn) = (push.wanted.clone(), at.conn);
                        self.say_hold(conn, &wanted, true);
                        self.tell_holding(worker, &wanted.cache);
                    }
                }
                None => {
                    self.release_old(worker, dataset);
                    self.reconcile(worker);
                }
            }
        }
    }

    /// A dataset that is on its way here goes on to those workers that are to have it and are free.
    pub(super) fn push_early(&mut self, version: Uuid, target: &str) {
        let Some(putting) =
            self.datasets.puts.values().find(|putting| putting.manifest_id() == version)
        else {
            return;
        };
        let wanted = WantedVersion {
            cache: putting.cache.clone(),
            version,
            digest: putting.digest(),
            bytes: putting.bytes(),
            files: putting.files(),
        };
        for worker in self.targets_of(target) {
            let Some(at) = self.datasets.workers.get(&worker) else { continue };
            if at.told
                && at.push.is_none()
                && at.queue.is_empty()
                && at.conn.is_some()
                && !at.holds(&wanted)
            {
                self.begin_push(worker, wanted.clone(), false);
            }
        }
    }

    /// An operator, or a put, asks a worker to hold a dataset: what went wrong before does not
    /// count. Gives its answer, if that is known.
    pub(super) fn ask_to_hold(
        &mut self,
        worker: WorkerId,
        dataset: &Arc<Dataset>,
    ) -> Option<CachePutResult> {
        let at = self.datasets.workers.get_mut(&worker)?;
        let wanted = WantedVersion::from(&**dataset);
        at.not_held.remove(&wanted.cache);
        if at.holds(&wanted) && at.conn.is_some() {
            return Some(CachePutResult::stored(wanted.cache.as_str(), 0, u64::from(wanted.files)));
        }
        if at.told && !at.is_pushed(wanted.version) && !at.is_queued(&wanted.cache) {
            at.queue.push(wanted.cache);
        }
        self.push_next(worker);
        None
    }

    /// Begins with the next dataset for a worker, if it is free.
    pub(super) fn push_next(&mut self, worker: WorkerId) {
        loop {
            if self.datasets.pack_index.is_listing() {
                return;
            }
            let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
            if at.push.is_some() || at.conn.is_none() || at.queue.is_empty() {
                return;
            }
            let cache = at.queue.remove(0);
            let Some(dataset) = self.facts.dataset(&cache) else { continue };
            let wanted = WantedVersion::from(&*dataset);
            if !at.holds(&wanted) {
                if self.may_be_given(worker, &wanted) {
                    self.begin_push(worker, wanted, true);
                }
                return;
            }
            // It found it meanwhile, and may wait for word that this is the content which counts.
            if at.classic.is_none() {
                let conn = at.conn;
                self.say_hold(conn, &wanted, true);
            }
        }
    }

    fn begin_push(&mut self, worker: WorkerId, wanted: WantedVersion, committed: bool) {
        let (now, version) = (self.now, wanted.version);
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
        let Some(conn) = at.conn else { return };
        debug!(%worker, cache = %wanted.cache, %version, "a worker is asked to hold a dataset");
        at.push = Some(Push {
            wanted: wanted.clone(),
            committed,
            unplaced: HashSet::new(),
            packs: BTreeSet::new(),
            open: BTreeSet::new(),
            put_off: BTreeSet::new(),
            missing: wanted.bytes.max(1),
            total: None,
            sent: 0,
            since: now,
        });
        let is_classic = at.classic.is_some();
        self.tell_holding(worker, &wanted.cache);
        if is_classic {
            return self.feed_classic(worker);
        }
        self.say_hold(Some(conn), &wanted, committed);
        if committed && !self.facts.has_arrived(version) {
            let text = "the manifest of the dataset is not at the leader: put it again";
            return self.push_is_broken(worker, version, text);
        }
        self.attach(conn, version, version, Again::Yes);
    }

    fn attach(&mut self, conn: ConnId, blob: BlobId, version: Uuid, again: Again) {
        self.act(DatasetAction::Attach { conn, blob, version, again });
    }

    /// A worker cannot get a dataset because the leader has not all of it.
    fn push_is_broken(&mut self, worker: WorkerId, version: Uuid, text: &str) {
        let Some(cache) = self.push_of(worker).map(|push| push.wanted.cache.clone()) else {
            return;
        };
        // Jobs that wait for it there are not to wait any longer.
        self.release(worker, &cache, version, Reason::UNKNOWN, text);
        self.push_ended(worker, version, CachePutResult::failed(cache.as_str(), text));
    }

    fn say_hold(&mut self, conn: Option<ConnId>, wanted: &WantedVersion, committed: bool) {
        let Some(conn) = conn else { return };
        let Ok(cache_id) = Name::try_from(wanted.cache.as_str().to_owned()) else { return };
        let flags = if committed { HoldFlags::COMMITTED } else { HoldFlags::default() };
        let digest = Digest { kind: DigestKind::Sha256, bytes: wanted.digest };
        let hold = Hold { flags, digest, bytes: wanted.bytes, files: wanted.files, cache_id };
        self.say(conn, wanted.version, Uuid::nil(), Says::Hold(hold));
    }

    /// A worker says what it lacks of the dataset that it is asked to hold.
    pub(super) fn worker_lacks(
        &mut self,
        conn: ConnId,
        worker: WorkerId,
        version: Uuid,
        lack: &Lack,
    ) {
        let Some(at) = self.datasets.workers.get_mut(&worker).filter(|at| at.conn == Some(conn))
        else {
            return;
        };
        let Some(push) = at.push.as_mut().filter(|push| push.wanted.version == version) else {
            return;
        };
        match lack.what {
            Lacking::Nothing => return,
            Lacking::Manifest => {
                return self.attach(conn, version, version, Again::No);
            }
            Lacking::Pieces => {}
        }
        push.total.get_or_insert(lack.bytes);
        push.missing = lack.bytes.max(1);
        let cache = push.wanted.cache.clone();
        self.tell_holding(worker, &cache);
        let Some(manifest) = self.manifest_of(version) else {
            // It says so again when it is asked again: the manifest is being read, and then it is.
            return self.remember_lack(worker, version, lack);
        };
        let pack_index = &self.datasets.pack_index;
        let Some(push) = self.datasets.workers.get_mut(&worker).and_then(|at| at.push.as_mut())
        else {
            return;
        };
        push.packs.clear();
        push.put_off.clear();
        push.unplaced.clear();
        let places = lack.pieces.indices().filter_map(|place| usize::try_from(place).ok());
        for piece in places.filter_map(|place| manifest.pieces().get(place)) {
            match pack_index.place_of(piece) {
                Some(pack) => push.packs.insert(pack),
                None => push.unplaced.insert(*piece),
            };
        }
        if push.committed && !push.unplaced.is_empty() {
            let text = format!(
                "{} pieces of the dataset are not at the leader: put it again",
                push.unplaced.len()
            );
            return self.push_is_broken(worker, version, &text);
        }
        // The worker still lacks pieces of packs that it has received: those packs are opened once
        // more.
        let facts = self.facts;
        for pack in push.open.extract_if(.., |pack| facts.has_got(conn, *pack)).collect::<Vec<_>>()
        {
            self.act(DatasetAction::Detach { conn, blob: pack });
        }
        self.feed_push(worker);
    }

    fn push_of(&mut self, worker: WorkerId) -> Option<&mut Push> {
        self.datasets.workers.get_mut(&worker)?.push.as_mut()
    }

    /// The manifest of a version; if it is not in memory it is read, and those that wait for it are
    /// fed then.
    pub(super) fn manifest_of(
        &mut self,
        version: Uuid,
    ) -> Option<Arc<chunking::dataset::Manifest>> {
        let found = self.datasets.pack_index.manifest(version, self.now);
        if found.is_none()
            && self.facts.has_arrived(version)
            && self.datasets.pack_index.read(version)
        {
            self.act(DatasetAction::Look { blob: version, at: VerifyRequest::Manifest });
        }
        found
    }

    /// Keeps what a worker lacks until the manifest is in memory.
    fn remember_lack(&mut self, worker: WorkerId, version: Uuid, lack: &Lack) {
        self.datasets.lacks.insert(worker, (version, lack.clone()));
    }

    /// Something new is here of a dataset: those that wait for it are fed.
    pub(super) fn feed_pushes(&mut self, version: Uuid) {
        let workers = self.datasets.workers.iter().filter(|(_, at)| at.is_pushed(version));
        let workers: Vec<(WorkerId, Option<ConnId>)> =
            workers.map(|(worker, at)| (*worker, at.conn)).collect();
        for (worker, conn) in workers {
            match (self.datasets.lacks.remove(&worker), conn) {
                (Some((of, lack)), Some(conn)) if of == version => {
                    self.worker_lacks(conn, worker, version, &lack);
                }
                _ => self.feed_push(worker),
            }
        }
    }

    /// All lists of a previous run are read: pushes may begin.
    pub(super) fn feed_all(&mut self) {
        for worker in self.datasets.workers.keys().copied().collect::<Vec<_>>() {
            self.reconcile(worker);
        }
    }

    /// A pack of a dataset begins to come: those that lack pieces of it get it as it comes.
    pub(super) fn pack_comes(&mut self, version: Uuid, pack: BlobId, layout: &Layout) {
        let mut wanting = Vec::new();
        for (worker, at) in &mut self.datasets.workers {
            let Some(push) = at.push.as_mut().filter(|push| push.wanted.version == version) else {
                continue;
            };
            let before = push.unplaced.len();
            layout.pieces().iter().for_each(|piece| {
                push.unplaced.remove(piece);
            });
            if push.unplaced.len() < before || push.packs.contains(&pack) {
                push.packs.insert(pack);
                wanting.push(*worker);
            }
        }
        wanting.into_iter().for_each(|worker| self.feed_push(worker));
    }

    /// Opens packs to a worker that have what it lacks.
    fn feed_push(&mut self, worker: WorkerId) {
        let Some(at) = self.datasets.workers.get(&worker) else { return };
        if at.classic.is_some() {
            return self.feed_classic(worker);
        }
        let (Some(conn), Some(push)) = (at.conn, &at.push) else { return };
        let version = push.wanted.version;
        let room = PACKS_OPEN_MAX.saturating_sub(push.open.len());
        // A pack that was announced and is not open yet is checked again when it is opened.
        let has_begun = |pack: BlobId| {
            let known = self.datasets.pack_index.pack(pack);
            known.is_some_and(|(_, state)| !matches!(state, PackState::Announced(_)))
        };
        let can_open = |pack: &&BlobId| !push.open.contains(pack) && has_begun(**pack);
        let packs: Vec<BlobId> = push.packs.iter().filter(can_open).take(room).copied().collect();
        for pack in packs {
            let Some((layout, _)) = self.datasets.pack_index.pack(pack) else { continue };
            let says = Pack { pieces: PieceList::new(layout.pieces().to_vec()) };
            self.say(conn, pack, version, Says::Pack(says));
            if let Some(push) = self.push_of(worker) {
                push.packs.remove(&pack);
                push.open.insert(pack);
            }
            self.datasets.pack_index.use_packs(&[pack], self.now);
            self.attach(conn, pack, version, Again::Yes);
        }
    }

    /// A worker has got a part of a dataset.
    pub(super) fn part_taken(&mut self, conn: ConnId, worker: Option<WorkerId>, blob: BlobId) {
        self.act(DatasetAction::Detach { conn, blob });
        let Some(worker) = worker else { return };
        if self.push_of(worker).is_some_and(|push| push.open.remove(&blob)) {
            self.feed_push(worker);
        }
    }

    /// A worker does not take a part of a dataset.
    pub(super) fn part_refused(
        &mut self,
        worker: WorkerId,
        blob: BlobId,
        reason: Reason,
        text: &str,
    ) {
        let Some(push) = self.push_of(worker) else { return };
        if push.wanted.version != blob && !push.open.remove(&blob) {
            return;
        }
        let (version, cache) = (push.wanted.version, push.wanted.cache.clone());
        if reason == Reason::UNKNOWN {
            // It has it already, or does not want it any more; it says which.
            return debug!(%worker, %cache, "a worker does not need a part of a dataset: {text}");
        }
        if reason == Reason::BUSY {
            // Inputs of jobs count, too: it is not the dataset's fault, and there is room when they
            // have come.
            push.put_off.insert(blob);
            debug!(%worker, %cache, "a worker takes a part of a dataset later: {text}");
            return self.watch();
        }
        warn!(%worker, %cache, %reason, "a worker does not take a part of a dataset: {text}");
        let pack = self.datasets.pack_index.pack(blob);
        if let Some((_, PackState::Announced(_) | PackState::Coming(_) | PackState::Checking(_))) =
            pack
        {
            // It may be the client's fault, which the leader finds too: the worker gets the dataset
            // when it is kept.
            return self.stop_pushing_to(worker, version);
        }
        self.push_ended(worker, version, CachePutResult::failed(cache.as_str(), text));
    }

    /// Opens to workers again what they had too many transfers for.
    pub(super) fn open_put_off(&mut self) {
        let workers = self.datasets.workers.iter().filter(|(_, at)| at.has_put_off());
        for worker in workers.map(|(worker, _)| *worker).collect::<Vec<_>>() {
            let Some(at) = self.datasets.workers.get_mut(&worker) else { continue };
            let (Some(conn), Some(push)) = (at.conn, at.push.as_mut()) else { continue };
            let version = push.wanted.version;
            let is_manifest = push.put_off.remove(&version);
            push.packs.append(&mut push.put_off);
            if is_manifest {
                self.attach(conn, version, version, Again::Yes);
            }
            self.feed_push(worker);
        }
    }

    /// A worker has answered.
    pub(super) fn worker_acked(&mut self, worker: WorkerId, to: Uuid, result: CachePutResult) {
        if self.inspected(to, worker, &result) {
            return;
        }
        if let Some(result) = self.classic_answered(worker, to, result) {
            self.push_ended(worker, to, result);
        }
    }

    pub(super) fn push_ended(&mut self, worker: WorkerId, version: Uuid, result: CachePutResult) {
        let now = self.now;
        self.datasets.lacks.remove(&worker);
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
        let Some(push) = at.push.take_if(|push| push.wanted.version == version) else { return };
        let WantedVersion { cache, digest, .. } = push.wanted;
        match result.status {
            CacheStatus::Ok | CacheStatus::Skipped => {
                self.set_held(worker, &cache, Some(digest));
                if push.sent > 0 {
                    let (bytes, span) = (push.sent, now.since(push.since));
                    self.tell(Event::DatasetsMoved { worker, bytes, span });
                }
            }
            CacheStatus::Failed | CacheStatus::Other(_) => {
                info!(%worker, %cache, "a worker cannot hold a dataset: {}", result.message);
                at.not_held
                    .insert(cache.clone(), (digest, NotHeld::Failed(reason(&result.message))));
                if at.classic.is_some() {
                    // It cannot be told to give up what it has: it counts for nothing.
                    self.set_held(worker, &cache, None);
                } else {
                    self.tell_not_coming(worker, &cache);
                }
                // No job needs what it holds of the replaced version; nothing is replaced before it
                // is kept.
                if let Some(dataset) = self.facts.dataset(&cache) {
                    self.release_old(worker, &dataset);
                }
            }
        }
        if let Some(conn) = self.datasets.workers.get(&worker).and_then(|at| at.conn) {
            for blob in push.open.into_iter().chain([version]) {
                self.act(DatasetAction::Detach { conn, blob });
            }
        }
        self.tell_putters(version, worker, &result);
        self.reconcile(worker);
    }

    /// Stops sending a version that is not to be held any more, was not committed, or has to begin
    /// anew.
    pub(super) fn stop_pushing(&mut self, version: Uuid) {
        for worker in self.datasets.workers.keys().copied().collect::<Vec<_>>() {
            self.stop_pushing_to(worker, version);
        }
    }

    fn stop_pushing_to(&mut self, worker: WorkerId, version: Uuid) {
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
        let Some(push) = at.push.take_if(|push| push.wanted.version == version) else { return };
        if let Some(conn) = at.conn {
            for blob in push.open.iter().copied().chain([version]) {
                self.act(DatasetAction::Detach { conn, blob });
            }
        }
        self.datasets.lacks.remove(&worker);
        let cache = push.wanted.cache;
        self.release(
            worker,
            &cache,
            version,
            Reason::CANCELLED,
            "the dataset does not come, or not now",
        );
        self.tell_not_coming(worker, &cache);
        self.push_next(worker);
    }

    /// A dataset is not kept any more: workers free their disks.
    pub(super) fn dataset_removed(&mut self, dataset: &Arc<Dataset>) {
        info!(cache = %dataset.cache, version = %dataset.version, "a dataset is removed");
        self.datasets.lineage.remove(&dataset.cache);
        self.forget_frames(dataset.version);
        self.stop_pushing(dataset.version);
        for worker in self.datasets.workers.keys().copied().collect::<Vec<_>>() {
            let Some(at) = self.datasets.workers.get_mut(&worker) else { continue };
            let was_queued = at.is_queued(&dataset.cache);
            let is_held = at.held_of(&dataset.cache).is_some();
            at.queue.retain(|queued| *queued != dataset.cache);
            at.not_held.remove(&dataset.cache);
            if was_queued {
                // A job may wait for it there.
                let text = format!("the leader keeps no dataset {}", dataset.cache);
                self.release(worker, &dataset.cache, Uuid::nil(), Reason::UNKNOWN, &text);
            }
            if is_held {
                self.give_up(worker, &dataset.cache, "the dataset was removed");
            }
        }
        self.putters_hear_removed(dataset);
        let bytes: u64 = dataset.blobs().map(|blob| self.facts.bytes_here(blob)).sum();
        self.release_blobs(dataset);
        self.answer_removed(&dataset.cache, bytes);
    }

    /// A part of a kept dataset is damaged at the leader: who gets it now cannot, and a put brings
    /// it again.
    pub(super) fn broken_part(&mut self, blob: BlobId, text: &str) {
        let broken: Vec<Arc<Dataset>> = {
            let datasets = self.facts.datasets();
            datasets.filter(|dataset| dataset.blobs().any(|part| part == blob)).cloned().collect()
        };
        for dataset in broken {
            if let Some(job) = self.facts.staged_for(&dataset.cache) {
                self.staged_is_broken(job, text);
                continue;
            }
            let text = format!(
                "a part of dataset {} is damaged at the leader ({text}): put it again",
                dataset.cache
            );
            for worker in self.datasets.workers.keys().copied().collect::<Vec<_>>() {
                if self.push_of(worker).is_some_and(|push| push.wanted.version == dataset.version) {
                    self.push_is_broken(worker, dataset.version, &text);
                }
            }
        }
    }
}

impl Datasets {
    /// Bytes of a part of a dataset went to a worker.
    pub(in crate::leader) fn count_sent(&mut self, worker: WorkerId, bytes: u64) {
        let Some(push) = self.workers.get_mut(&worker).and_then(|at| at.push.as_mut()) else {
            return;
        };
        push.sent = push.sent.saturating_add(bytes);
        let version = push.wanted.version;
        for putting in self.puts.values_mut().filter(|putting| putting.manifest_id() == version) {
            putting.moved = putting.moved.saturating_add(bytes);
        }
    }
}

/// Whether a worker is one that a pattern is for, and can be sent datasets.
fn is_target(worker: WorkerFacts<'_>, target: &str) -> bool {
    worker.datasets && is_meant(worker, target)
}

/// Whether a pattern is for a worker (C12).
fn is_meant(worker: WorkerFacts<'_>, target: &str) -> bool {
    targets(target, &subscriptions(worker.patterns, worker.id.0))
}
