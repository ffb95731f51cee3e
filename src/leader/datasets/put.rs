//! Handles a put: compares the client's manifest with the stored pieces, requests the missing ones,
//! checks and stores them, and commits the dataset. `put_waiters` reports the workers' progress to
//! the client.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use chunking::ChunkPlan;
use chunking::dataset::Manifest;
use chunking::dataset::pack::Layout;
use chunking::digest::to_hex;
use chunking::limits::{CHUNK_BYTES_MAX, MANIFEST_BYTES_MAX};
use chunking::message::{Lack, Lacking, Name, Open, Pack, Put, PutFlags, Reason};
use tracing::{info, warn};
use uuid::Uuid;

use super::putting::{Origin, Putting, Stage};
use super::{BlobId, DatasetAction, Datasets, Facts, MANIFEST, PACK, Says, Step};
use crate::core::Event;
use crate::core::dataset::{Dataset, TARGET_NONE};
use crate::core::ids::{CacheId, ConnId, JobId};
use crate::core::names::names_of_dataset;
use crate::core::subject::worker_patterns;
use crate::leader::refusal_text::RefusalText;
use crate::store::verify::VerifyRequest;
use crate::units::{ByteSize, Count};

/// Times that packs of one put may be other than they should be before it is refused.
const BAD_PACKS_MAX: u32 = 2;

/// How long what a client was bringing is kept when its connection ended.
pub(super) const CLIENT_WAIT: Duration = Duration::from_secs(60);

/// Puts that may be on their way to the leader at a time, in all and on one connection.
pub(super) const PUTS_MAX: usize = 64;
pub(super) const PUTS_OF_CONN_MAX: usize = 8;

/// Datasets that are kept, and pieces of them: what is known of each is in memory.
const DATASETS_MAX: usize = 65_536;
const PIECES_MAX: usize = 4 * 1024 * 1024;

/// Bytes of manifests of such puts: they are held in memory until their datasets are kept.
const MANIFESTS_COMING_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Packs that one put may have on their way at a time.
const PACKS_COMING_MAX: usize = 64;

/// The id that a client gives its dataset. Those of datasets that the leader makes of jobs' inputs
/// are nobody else's.
pub(super) fn may_be_put(cache_id: &str) -> Result<CacheId, String> {
    let cache = CacheId::parse(cache_id).map_err(|error| error.to_string())?;
    if cache.is_the_leaders() {
        return Err(format!("the CacheId {cache} is reserved for the leader: choose another"));
    }
    Ok(cache)
}

/// Whether one more dataset may be kept.
pub(super) fn room_for_dataset(facts: &dyn Facts, cache: &CacheId) -> Result<(), RefusalText> {
    let datasets = facts.dataset_count();
    if datasets >= DATASETS_MAX && facts.dataset(cache).is_none() {
        let text = format!(
            "the leader keeps {datasets} datasets; the limit is {DATASETS_MAX}: remove some, or \
             combine files"
        );
        return Err(RefusalText::numbers(Reason::BUSY, datasets as u64, DATASETS_MAX as u64, text));
    }
    // A manifest and a pack at least.
    facts.too_many_blobs(2).map_or(Ok(()), Err)
}

impl Step<'_> {
    /// A client puts a dataset.
    pub(super) fn put_dataset(&mut self, conn: ConnId, request: Uuid, put: Put) {
        if let Err(refusal) = self.put_checked(conn, request, put) {
            self.say_refused(conn, request, refusal);
            self.end_put(request);
        }
    }

    fn say_refused(&mut self, conn: ConnId, request: Uuid, refusal: RefusalText) {
        info!(peer = %self.facts.peer_name(conn), "refused a put: {}", refusal.text());
        self.act(DatasetAction::Refuse { conn, request, refusal });
    }

    /// A put that is under way cannot go on.
    fn refuse_put(&mut self, request: Uuid, refusal: RefusalText) {
        let Some(putting) = self.datasets.puts.get(&request) else { return };
        match &putting.origin {
            Origin::Client(conn) => {
                let conn = *conn;
                self.say_refused(conn, request, refusal);
                self.end_put(request);
            }
            Origin::Classic(conn, classic) => {
                let (conn, to, cache) = (*conn, classic.request, classic.cache.clone());
                self.fail_classic(conn, to, cache.as_str(), refusal.text());
                self.end_put(request);
            }
            Origin::Away(_) => self.end_put(request),
            Origin::Staged(job) => {
                let job = *job;
                self.end_put(request);
                self.act(DatasetAction::NotStaged { job, why: refusal.text().to_owned() });
            }
        }
    }

    fn turn_away(&mut self, conn: ConnId, blob: BlobId) {
        self.act(DatasetAction::TurnAway { conn, blob });
    }

    fn put_checked(&mut self, conn: ConnId, request: Uuid, put: Put) -> Result<(), RefusalText> {
        let cache = may_be_put(put.cache_id.as_str()).map_err(RefusalText::invalid)?;
        let target = put.target.as_str();
        if target != TARGET_NONE {
            worker_patterns(target)
                .map_err(|error| RefusalText::invalid(format!("the target: {error}")))?;
        }
        if put.files == 0 {
            let text = format!("dataset {cache} has no files: put at least one");
            return Err(RefusalText::invalid(text));
        }
        if self.facts.is_draining() {
            let text = "the leader is about to stop: put the dataset again later".to_owned();
            return Err(RefusalText::new(Reason::DRAINING, text));
        }
        let of_cache = self.datasets.puts.iter();
        let mut of_cache =
            of_cache.filter(|(_, putting)| putting.cache == cache && putting.is_coming());
        if let Some((other, putting)) = of_cache.find(|(other, _)| **other != request) {
            if putting.away_until().is_some() {
                // The new put replaces one whose client is away.
                let other = *other;
                self.end_put(other);
                return self.put_checked(conn, request, put);
            }
            let by = putting
                .conn()
                .map_or_else(|| "the leader".to_owned(), |conn| self.facts.peer_name(conn));
            let text =
                format!("dataset {cache} is being put by {by}: wait until that put has ended");
            return Err(RefusalText::new(Reason::BUSY, text));
        }
        if self
            .datasets
            .puts
            .get(&request)
            .is_some_and(|putting| putting.is_gone_on_with(&cache, &put))
        {
            self.may_have_put(conn, request)?;
            self.go_on(conn, request, put);
            return Ok(());
        }
        // A request that says something else begins anew. Packs that came whole are here.
        self.end_put(request);
        let known = self.facts.dataset(&cache);
        let deadline =
            (put.deadline_ms > 0).then(|| self.now.plus(Duration::from_millis(put.deadline_ms)));
        let putting =
            Putting { deadline, ..Putting::new(Origin::Client(conn), cache.clone(), put) };
        match known {
            Some(known)
                if known.digest == putting.put.digest.bytes
                    && self.datasets.pack_index.has_all(known.version, &known.packs) =>
            {
                self.say_lack(Some(conn), request, Lacking::Nothing, 0, Default::default());
                self.put_again(request, putting, &known);
            }
            Some(known)
                if known.digest != putting.put.digest.bytes
                    && !putting.put.flags.has(PutFlags::REPLACE) =>
            {
                let text = format!(
                    "dataset {cache} is there with other content, sha256:{} in {} and {}; this one has {} in {} and \
                     {}: choose another CacheId, or put it with --replace",
                    to_hex(&known.digest),
                    Count(known.files.into(), "file"),
                    ByteSize(known.bytes),
                    putting.put.digest,
                    Count(putting.put.files.into(), "file"),
                    ByteSize(putting.put.bytes),
                );
                return Err(RefusalText::new(Reason::CONFLICT, text));
            }
            Some(_) | None => {
                self.make_room_for_put();
                self.may_begin(&putting)?;
                self.may_have_put(conn, request)?;
                self.datasets.puts.insert(request, putting);
                self.say_lack(Some(conn), request, Lacking::Manifest, 0, Default::default());
            }
        }
        self.watch();
        Ok(())
    }

    /// A client comes back, and goes on with what it was bringing.
    fn go_on(&mut self, conn: ConnId, request: Uuid, put: Put) {
        let Some(putting) = self.datasets.puts.get_mut(&request) else { return };
        putting.origin = Origin::Client(conn);
        putting.deadline =
            (put.deadline_ms > 0).then(|| self.now.plus(Duration::from_millis(put.deadline_ms)));
        putting.put = put;
        match putting.manifest.clone() {
            None => self.say_lack(Some(conn), request, Lacking::Manifest, 0, Default::default()),
            Some(manifest) => match self.datasets.pack_index.cover(&manifest) {
                Ok(_) => self.ask_for_pieces(request),
                Err((ranges, bytes)) => {
                    self.say_lack(Some(conn), request, Lacking::Pieces, bytes, ranges)
                }
            },
        }
        self.watch();
    }

    /// Puts whose clients are away make room for one whose client is here.
    fn make_room_for_put(&mut self) {
        let coming = self.datasets.puts.iter().filter(|(_, putting)| putting.is_coming());
        if coming.clone().count() >= PUTS_MAX {
            let away =
                coming.filter_map(|(request, putting)| Some((putting.away_until()?, *request)));
            let longest = away.min().map(|(_, request)| request);
            longest.into_iter().for_each(|request| self.end_put(request));
        }
    }

    /// Whether a connection may bring one more put: there are not too many of it, and of all.
    fn may_have_put(&self, conn: ConnId, request: Uuid) -> Result<(), RefusalText> {
        let others = self.datasets.puts.iter().filter(|(other, _)| **other != request);
        let coming = others.map(|(_, putting)| putting).filter(|putting| putting.is_coming());
        let own = coming.clone().filter(|putting| putting.conn() == Some(conn)).count();
        for (count, limit, whose) in [
            (own, PUTS_OF_CONN_MAX, "on this connection"),
            (coming.count(), PUTS_MAX, "at this leader"),
        ] {
            if count >= limit {
                let text = format!(
                    "{count} puts are under way {whose}; the limit is {limit}: wait for one to end"
                );
                return Err(RefusalText::numbers(Reason::BUSY, count as u64, limit as u64, text));
            }
        }
        Ok(())
    }

    /// Whether a put may begin: the blob id of its manifest is unused, and there is room for one
    /// more dataset.
    fn may_begin(&self, putting: &Putting) -> Result<(), RefusalText> {
        let id = putting.put.manifest;
        if self.datasets.committing.contains_key(&id) {
            let text =
                format!("dataset {} is being stored: put it again in a moment", putting.cache);
            return Err(RefusalText::new(Reason::BUSY, text));
        }
        if self.knows_blob(id) {
            let text = format!(
                "the put names blob {id} for its manifest, but that id is in use: use a new id"
            );
            return Err(RefusalText::invalid(text));
        }
        room_for_dataset(self.facts, &putting.cache)
    }

    /// A put of content that is already stored: only its target may differ.
    pub(super) fn put_again(&mut self, request: Uuid, mut putting: Putting, known: &Arc<Dataset>) {
        putting.put.manifest = known.version;
        let is_same = *known.target == *putting.target();
        putting.stage = if is_same { Stage::Spreading } else { Stage::Committing };
        let target = putting.target().into();
        self.datasets.puts.insert(request, putting);
        if is_same {
            self.spread_begins(request, known);
        } else {
            self.commit_dataset(Dataset { target, at: self.now, ..(**known).clone() }, None);
        }
    }

    /// What a client of ours is to bring next, if one brings it.
    fn say_lack(
        &mut self,
        conn: Option<ConnId>,
        request: Uuid,
        what: Lacking,
        bytes: u64,
        pieces: chunking::Ranges,
    ) {
        if let Some(conn) = conn {
            self.say(conn, Uuid::nil(), request, Says::Lack(Lack { what, bytes, pieces }));
        }
    }

    /// A client says what is in a pack that it is about to open.
    pub(super) fn pack_announced(&mut self, conn: ConnId, pack: Uuid, request: Uuid, says: Pack) {
        let Some(putting) =
            self.datasets.puts.get_mut(&request).filter(|putting| putting.client() == Some(conn))
        else {
            return self.turn_away(conn, pack);
        };
        let (Some(manifest), Stage::Pieces) = (&putting.manifest, putting.stage) else {
            return self.turn_away(conn, pack);
        };
        let layout = match Layout::new(says.pieces.as_slice().to_vec()) {
            Ok(layout) if !layout.pieces().is_empty() => layout,
            Ok(_) => return self.turn_away(conn, pack),
            Err(error) => {
                return self.refuse_put(request, RefusalText::invalid(error.to_string()));
            }
        };
        let known: HashSet<_> = manifest.pieces().iter().collect();
        let is_foreign = layout.pieces().iter().any(|piece| !known.contains(piece));
        let is_coming = |pack_index: &super::PackIndex| {
            pack_index.pack(pack).is_some_and(|(known, state)| {
                state.request() == Some(request) && known.pieces() == layout.pieces()
            })
        };
        if putting.packs.contains(&pack) && is_coming(&self.datasets.pack_index) {
            // It was on its way when the connection broke: what of it is here need not come again.
            return;
        }
        if self.facts.knows_blob(pack) || self.datasets.pack_index.knows(pack) {
            // It came before, and is being checked: who brought it hears what is still lacking.
            return self.turn_away(conn, pack);
        }
        if is_foreign || putting.packs.len() >= PACKS_COMING_MAX {
            let text = format!(
                "pack {pack} has pieces outside the dataset, or exceeds the limit of \
                 {PACKS_COMING_MAX} packs in transfer"
            );
            return self.refuse_put(request, RefusalText::invalid(text));
        }
        putting.packs.insert(pack);
        self.datasets.pack_index.announce(pack, Arc::new(layout), request, self.now);
    }

    /// A client opens a part of a dataset.
    pub(super) fn opened(&mut self, conn: ConnId, blob: BlobId, mut open: Open) {
        if self.part_is_expected(conn, blob, &mut open) {
            self.act(DatasetAction::Accept { conn, blob, open });
        } else {
            self.turn_away(conn, blob);
        }
    }

    /// Whether a part of a dataset is expected that a client opens so; then workers that lack it
    /// get it as it comes.
    fn part_is_expected(&mut self, conn: ConnId, id: BlobId, open: &mut Open) -> bool {
        let request = open.owner;
        let manifests = self.datasets.puts.values().filter(|putting| putting.is_coming());
        let manifests =
            manifests.map(|putting| putting.manifest_bytes).fold(0, u64::saturating_add);
        let Some(putting) =
            self.datasets.puts.get_mut(&request).filter(|putting| putting.client() == Some(conn))
        else {
            return false;
        };
        // What another one has named meanwhile is not taken over.
        if !putting.opened.contains(&id) && self.facts.knows_blob(id) {
            return false;
        }
        let size_fits = match self.datasets.pack_index.pack(id) {
            Some((layout, state)) => state.request() == Some(request) && layout.size() == open.size,
            None => {
                let room = MANIFESTS_COMING_BYTES_MAX.saturating_sub(manifests);
                id == putting.put.manifest
                    && open.size <= MANIFEST_BYTES_MAX.min(room)
                    && putting.is_coming()
            }
        };
        let Some(plan) = ChunkPlan::new(open.size, CHUNK_BYTES_MAX).ok().filter(|_| size_fits)
        else {
            return false;
        };
        let version = putting.put.manifest;
        let layout = self.datasets.pack_index.pack(id).map(|(layout, _)| layout.clone());
        putting.opened.insert(id);
        if layout.is_none() {
            putting.manifest_bytes = open.size;
        }
        // The name tells the next run of the leader which blobs are packs and which are manifests.
        let name = if layout.is_some() { PACK } else { MANIFEST };
        open.name = Name::try_from(name.to_owned()).unwrap_or_default();
        self.act(DatasetAction::Expect { blob: id, open: open.clone(), plan });
        if let Some(layout) = layout {
            self.datasets.pack_index.comes(id);
            self.pack_comes(version, id, &layout);
        }
        true
    }

    /// A part of a dataset has come whole.
    pub(super) fn part_arrived(&mut self, blob: BlobId) {
        self.act(DatasetAction::Settle { blob });
        let at = match self.datasets.pack_index.check(blob) {
            Some(layout) => VerifyRequest::Pack(layout),
            None if self.datasets.pack_index.pack(blob).is_some() => return,
            None if self.datasets.pack_index.read(blob) => VerifyRequest::Manifest,
            None => return,
        };
        self.act(DatasetAction::Look { blob, at });
    }

    /// A manifest was read.
    pub(super) fn manifest_read(&mut self, blob: BlobId, manifest: Arc<Manifest>) {
        if !self.facts.knows_blob(blob) {
            // Nobody needs it any more.
            self.datasets.pack_index.not_read(blob);
            return;
        }
        let bytes = self.facts.blob_bytes(blob);
        self.datasets.pack_index.manifest_read(blob, manifest.clone(), bytes, self.now);
        let puts = self.datasets.puts.iter();
        let waits =
            |putting: &Putting| putting.put.manifest == blob && putting.stage == Stage::Manifest;
        let request =
            puts.filter(|(_, putting)| waits(putting)).map(|(request, _)| *request).next();
        match request {
            Some(request) => {
                if let Err(refusal) = self.manifest_came(request, manifest) {
                    self.refuse_put(request, refusal);
                }
            }
            None => self.feed_pushes(blob),
        }
        self.watch();
    }

    fn manifest_came(&mut self, request: Uuid, manifest: Arc<Manifest>) -> Result<(), RefusalText> {
        let (spool_now, spool_max) = self.facts.spool();
        let Some(putting) = self.datasets.puts.get_mut(&request) else { return Ok(()) };
        let found = manifest.digest();
        let is_announced = found == putting.put.digest
            && manifest.bytes() == putting.put.bytes
            && manifest.files().len() as u64 == u64::from(putting.put.files);
        if !is_announced {
            let text = format!(
                "the manifest does not match the announced dataset: its digest is {found}, not {}",
                putting.put.digest
            );
            return Err(RefusalText::new(Reason::BAD_DIGEST, text));
        }
        // No path is made of them here: they go on as they stand in the manifest.
        names_of_dataset(manifest.files().iter().map(|file| file.name.as_str()))
            .map_err(|error| RefusalText::invalid(error.to_string()))?;
        // What was made here is here.
        if !putting.is_made_here()
            && let Err((_, bytes)) = self.datasets.pack_index.cover(&manifest)
            && spool_now.saturating_add(bytes) > spool_max
        {
            let text = format!(
                "{} of the dataset are missing, and the leader holds {} of at most {} \
                 (--spool-max): remove datasets, or raise the limit",
                ByteSize(bytes),
                ByteSize(spool_now),
                ByteSize(spool_max)
            );
            return Err(RefusalText::numbers(Reason::SPOOL_FULL, bytes, spool_max, text));
        }
        let pieces = self.datasets.pack_index.piece_count().saturating_add(manifest.pieces().len());
        if pieces > PIECES_MAX {
            let text = format!(
                "the datasets at the leader would have {pieces} pieces; the limit is {PIECES_MAX}: \
                 remove some, or put fewer and larger files"
            );
            return Err(RefusalText::numbers(Reason::BUSY, pieces as u64, PIECES_MAX as u64, text));
        }
        putting.manifest = Some(manifest);
        putting.stage = Stage::Pieces;
        let (version, target) = (putting.put.manifest, putting.target().to_owned());
        self.ask_for_pieces(request);
        // Workers get it as it comes, if it comes at all.
        if self.datasets.puts.get(&request).is_some_and(|putting| putting.stage == Stage::Pieces) {
            self.push_early(version, &target);
        }
        Ok(())
    }

    /// Asks the client for what lacks, or commits the dataset if nothing does.
    fn ask_for_pieces(&mut self, request: Uuid) {
        let Some(putting) = self.datasets.puts.get_mut(&request) else { return };
        let Some(manifest) = putting.manifest.clone().filter(|_| putting.stage == Stage::Pieces)
        else {
            return;
        };
        let facts = self.facts;
        let is_here = |blob: &BlobId| facts.has_arrived(*blob);
        let (client, staged) = (putting.client(), putting.staged());
        match self.datasets.pack_index.cover(&manifest) {
            Ok(packs) if !packs.iter().chain([&putting.put.manifest]).all(is_here) => {
                let text = "a part of it was aborted, or the leader's disk could not store it: put \
                            it again";
                self.refuse_put(request, RefusalText::new(Reason::IO, text.to_owned()));
            }
            Ok(packs) => {
                putting.stage = Stage::Committing;
                (putting.manifest, putting.manifest_bytes) = (None, 0);
                let dataset = Dataset {
                    cache: putting.cache.clone(),
                    version: putting.put.manifest,
                    digest: putting.put.digest.bytes,
                    bytes: putting.put.bytes,
                    files: putting.put.files,
                    target: putting.put.target.as_str().into(),
                    packs,
                    at: self.now,
                };
                self.say_lack(client, request, Lacking::Nothing, 0, Default::default());
                self.commit_dataset(dataset, staged);
            }
            Err((ranges, bytes)) => {
                if putting.packs.is_empty() && putting.is_made_here() {
                    let text =
                        "the leader's disk could not store all of it: put it again".to_owned();
                    self.refuse_put(request, RefusalText::new(Reason::IO, text));
                } else if putting.packs.is_empty() {
                    self.say_lack(client, request, Lacking::Pieces, bytes, ranges);
                }
            }
        }
    }

    fn commit_dataset(&mut self, dataset: Dataset, staged: Option<JobId>) {
        let dataset = Arc::new(dataset);
        self.datasets.pack_index.use_packs(&dataset.packs, self.now);
        self.datasets.committing.insert(dataset.version, dataset.clone());
        let event = match staged {
            Some(job) => Event::Staged { job, dataset },
            None => Event::PutDataset { dataset },
        };
        self.tell(event);
    }

    /// A pack is what its list says.
    pub(super) fn pack_is_good(&mut self, pack: BlobId, layout: Arc<Layout>) {
        let request = self.datasets.pack_index.good(pack, layout, self.now);
        match request {
            Some(request) => {
                if let Some(putting) = self.datasets.puts.get_mut(&request) {
                    putting.packs.remove(&pack);
                }
                self.ask_for_pieces(request);
            }
            // One of a previous run.
            None if !self.datasets.pack_index.is_listing() => self.feed_all(),
            None => {}
        }
        self.watch();
    }

    /// A part of a dataset is not what it should be, or cannot be had: its client gave it up, or
    /// the disk does not give it.
    pub(super) fn part_is_bad(&mut self, blob: BlobId, text: &str) {
        warn!(%blob, "a part of a dataset is damaged: {text}");
        let was_manifest = self.datasets.pack_index.not_read(blob);
        self.datasets.loose.remove(&blob);
        let by_pack = self.datasets.pack_index.forget(blob);
        // What a dataset that is kept has is not thrown away: it may be read another time, and a
        // put brings it again.
        if !self.needed_blobs().contains(&blob) {
            self.act(DatasetAction::Forget { blob });
        }
        let puts = self.datasets.puts.iter();
        let by_manifest = || {
            puts.filter(|(_, putting)| putting.put.manifest == blob && putting.is_coming())
                .map(|(request, _)| *request)
                .next()
        };
        if let Some(request) = by_pack.or_else(by_manifest) {
            let Some(putting) = self.datasets.puts.get_mut(&request) else { return };
            putting.packs.remove(&blob);
            putting.bad_packs += 1;
            // One that was made here nobody brings again.
            let is_over = was_manifest || putting.is_made_here() && putting.put.manifest == blob;
            if putting.bad_packs > BAD_PACKS_MAX || is_over {
                let text = format!("the content does not match the announcement: {text}");
                return self.refuse_put(request, RefusalText::new(Reason::BAD_DIGEST, text));
            }
            // Workers got it as it came; they get the dataset when it is kept.
            let version = putting.put.manifest;
            self.stop_pushing(version);
            return self.ask_for_pieces(request);
        }
        self.broken_part(blob, text);
        if !self.datasets.pack_index.is_listing() {
            self.feed_all();
        }
    }

    /// A dataset is kept from now on.
    pub(super) fn dataset_put(&mut self, dataset: &Arc<Dataset>, replaced: Option<Arc<Dataset>>) {
        info!(
            cache = %dataset.cache, version = %dataset.version, bytes = dataset.bytes, files = dataset.files,
            target = %dataset.target, packs = dataset.packs.len(), "a dataset is kept"
        );
        self.datasets.committing.remove(&dataset.version);
        self.note_lineage(dataset, replaced.as_deref());
        if let Some(replaced) = replaced.filter(|replaced| replaced.version != dataset.version) {
            self.supersede(&replaced, dataset);
            self.stop_pushing(replaced.version);
            self.forget_frames(replaced.version);
            self.release_blobs(&replaced);
        }
        let puts = self.datasets.puts.iter_mut();
        let mut spreading = Vec::new();
        for (request, putting) in puts {
            if putting.put.manifest == dataset.version && putting.stage == Stage::Committing {
                putting.stage = Stage::Spreading;
                spreading.push(*request);
            }
        }
        for request in spreading {
            self.spread_begins(request, dataset);
        }
        self.push_to_all(dataset);
        self.staged(&dataset.cache);
        self.classic_turns();
        self.watch();
    }

    /// Puts whose time is over.
    pub(super) fn puts_due(&mut self) {
        let now = self.now;
        let due = |putting: &Putting| putting.deadline().is_some_and(|deadline| deadline <= now);
        let due: Vec<Uuid> = self
            .datasets
            .puts
            .iter()
            .filter(|(_, putting)| due(putting))
            .map(|(request, _)| *request)
            .collect();
        for request in due {
            let Some(putting) = self.datasets.puts.get(&request) else { continue };
            if putting.away_until().is_some() {
                self.end_put(request);
            } else if putting.stage == Stage::Spreading {
                self.spread_over(request, "it timed out".to_owned());
            } else if putting.stage != Stage::Committing {
                let text = "the put timed out".to_owned();
                self.refuse_put(request, RefusalText::new(Reason::TIMED_OUT, text));
            } else if let Some(putting) = self.datasets.puts.get_mut(&request) {
                // It is kept in a moment.
                putting.deadline = Some(now.plus(Duration::from_secs(1)));
            }
        }
    }

    /// The client of a put disconnected. The put is kept for [`CLIENT_WAIT`], so that it can be
    /// resumed.
    pub(super) fn put_client_left(&mut self, conn: ConnId) {
        // What came in one frame is whole, and is kept all the same.
        let is_whole = |putting: &Putting| putting.classic().is_some() && putting.is_coming();
        let puts = self
            .datasets
            .puts
            .iter()
            .filter(|(_, putting)| putting.conn() == Some(conn) && !is_whole(putting));
        let left: Vec<Uuid> = puts.map(|(request, _)| *request).collect();
        if left.is_empty() {
            return;
        }
        for request in left {
            match self.datasets.puts.get_mut(&request) {
                Some(putting) if matches!(putting.stage, Stage::Manifest | Stage::Pieces) => {
                    putting.origin = Origin::Away(self.now.plus(CLIENT_WAIT));
                }
                Some(_) | None => self.end_put(request),
            }
        }
        self.watch();
    }

    /// The inputs of a job are not to become a dataset any more. One that is being committed goes
    /// when it is kept.
    pub(super) fn end_put_of(&mut self, job: JobId) {
        let is_its = |putting: &Putting| {
            matches!(putting.origin, Origin::Staged(of) if of == job)
                && putting.stage != Stage::Committing
        };
        let found = self
            .datasets
            .puts
            .iter()
            .find(|(_, putting)| is_its(putting))
            .map(|(request, _)| *request);
        found.into_iter().for_each(|request| self.end_put(request));
    }

    /// A put is over, one way or the other.
    pub(super) fn end_put(&mut self, request: Uuid) {
        let Some(mut putting) = self.datasets.puts.remove(&request) else { return };
        for pack in std::mem::take(&mut putting.packs) {
            // A pack that has arrived and is being checked may serve the next put.
            if self
                .datasets
                .pack_index
                .pack(pack)
                .is_some_and(|(_, state)| state.request().is_some())
            {
                self.forget_part(pack);
            }
        }
        let version = putting.put.manifest;
        let is_kept = self.needed_blobs().contains(&version);
        if !is_kept && (putting.opened.contains(&version) || putting.is_made_here()) {
            self.stop_pushing(version);
            self.forget_part(version);
        }
        self.classic_turns();
    }
}

impl Datasets {
    /// Bytes of a dataset's part came from a client.
    pub(in crate::leader) fn count_received(&mut self, blob: BlobId, bytes: u64) {
        if self.puts.is_empty() {
            return;
        }
        let by = match self.pack_index.pack(blob) {
            Some((_, state)) => state.request(),
            None => {
                let puts = self.puts.iter();
                puts.filter(|(_, putting)| putting.put.manifest == blob)
                    .map(|(request, _)| *request)
                    .next()
            }
        };
        if let Some(putting) = by.and_then(|request| self.puts.get_mut(&request)) {
            putting.received = putting.received.saturating_add(bytes);
        }
    }
}
