//! Turns a classic client's put, one frame with all files (T06), into packs and a manifest; from
//! there it is an ordinary put. Existing files are never overwritten (CA05): a put under an
//! existing id only adds the missing files.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chunking::dataset::pack::Layout;
use chunking::dataset::{Manifest, ManifestBuilder, Piece};
use chunking::message::{Name, Put, PutFlags};
use tracing::info;
use uuid::Uuid;

use super::pack_index::PackState;
use super::put::{may_be_put, room_for_dataset};
use super::putting::{Origin, Putting};
use super::{BlobId, DatasetAction, Datasets, Facts, Step};
use crate::core::dataset::{Dataset, TARGET_ALL, TARGET_NONE};
use crate::core::ids::{CacheId, ConnId, WorkerId};
use crate::core::names::{SafeName, fit_in_dataset, names_of_dataset};
use crate::core::subject::worker_patterns;
use crate::leader::pack_writer::PackedFile;
use crate::model::{CachePutRequest, CachePutResult, CacheStatus};

/// How long a classic client's put waits for workers: it names no time of its own.
const CLASSIC_WAIT: Duration = Duration::from_secs(600);

/// What stands before the workers' pattern in a subject (S08).
pub(super) const SUBJECT: &str = "cache.put";

/// Puts of classic clients that may wait for their turn.
const WAITING_MAX: usize = 1024;

/// Earlier contents of a dataset that are remembered.
const LINEAGE_MAX: usize = 1024;

/// A put that came whole, and waits until it is its turn.
#[derive(Debug)]
pub(in crate::leader) struct ReceivedPut {
    pub(in crate::leader) conn: ConnId,
    /// The id that answers carry.
    pub(in crate::leader) request: Uuid,
    /// The id that it has here: a client may use one twice.
    pub(in crate::leader) key: Uuid,
    /// The id that a manifest gets which is made of it.
    pub(in crate::leader) version: Uuid,
    pub(in crate::leader) cache: CacheId,
    pub(in crate::leader) target: String,
    /// The files, each name once.
    pub(in crate::leader) files: BTreeMap<SafeName, PackedFile>,
    pub(in crate::leader) entries: u64,
    pub(in crate::leader) packs: Vec<BlobId>,
}

/// All of a put but its contents.
#[derive(Debug)]
pub(in crate::leader) struct Checked {
    pub(in crate::leader) cache: CacheId,
    pub(in crate::leader) target: String,
    /// The name of each entry.
    pub(in crate::leader) names: Vec<SafeName>,
}

/// What a classic client has to hear of its put.
#[derive(Debug)]
pub(super) struct Classic {
    pub(super) request: Uuid,
    pub(super) cache: CacheId,
    /// Files that it named, those of them that differ in name, and those that are new.
    entries: u64,
    files: u64,
    added: u64,
    /// Whether there was a dataset under this id, and who had all of it.
    before: Option<HashSet<WorkerId>>,
}

impl Classic {
    /// The dataset has more files now than it had after this put: what workers say counts those,
    /// too.
    pub(super) fn supersede(&mut self) {
        self.before.get_or_insert_default();
    }

    /// A worker's answer in M12's words, which count what this client sent and not all that the
    /// dataset has.
    pub(super) fn words(&self, worker: WorkerId, result: &CachePutResult) -> CachePutResult {
        let added = match (&result.status, &self.before) {
            (CacheStatus::Failed | CacheStatus::Other(_), _) | (_, None) => return result.clone(),
            (CacheStatus::Skipped, Some(_)) => 0,
            (CacheStatus::Ok, Some(had)) if had.contains(&worker) => self.added,
            (CacheStatus::Ok, Some(_)) => self.files,
        };
        CachePutResult::stored(self.cache.as_str(), added, self.entries.saturating_sub(added))
    }
}

impl Datasets {
    /// Checks all of a classic client's put but its contents.
    pub(in crate::leader) fn check_classic(
        &self,
        facts: &dyn Facts,
        put: &CachePutRequest,
        subject: &str,
    ) -> Result<Checked, String> {
        let cache = may_be_put(&put.cache_id)?;
        let named = subject.strip_prefix(SUBJECT).and_then(|rest| rest.strip_prefix('.'));
        let target = [put.target_pattern.as_str(), named.unwrap_or_default()];
        let target = target.into_iter().find(|target| !target.is_empty()).unwrap_or(TARGET_ALL);
        if target != TARGET_NONE {
            worker_patterns(target).map_err(|error| format!("the target: {error}"))?;
        }
        Name::try_from(target.to_owned()).map_err(|error| format!("the target: {error}"))?;
        if put.entries.is_empty() {
            return Err(format!("dataset {cache} has no files: put at least one"));
        }
        let names = put.entries.iter().map(|entry| SafeName::parse_in_dataset(&entry.name));
        let names = names.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
        // The second of one name would find the first there, and be skipped.
        fit_in_dataset(names.iter().collect::<BTreeSet<_>>()).map_err(|error| error.to_string())?;
        room_for_dataset(facts, &cache).map_err(|refusal| refusal.text().to_owned())?;
        if self.came.len() >= WAITING_MAX {
            return Err(format!(
                "{WAITING_MAX} puts wait for others of the same datasets: put it again later"
            ));
        }
        if facts.is_draining() {
            return Err("the leader is about to stop: put the dataset again later".to_owned());
        }
        Ok(Checked { cache, target: target.to_owned(), names })
    }

    /// Whether a piece is here, and was checked.
    pub(in crate::leader) fn has_piece(&self, piece: &Piece) -> bool {
        self.pack_index.is_here(piece)
    }
}

impl Step<'_> {
    /// All contents of a put are here, in packs.
    pub(super) fn classic_came(&mut self, came: ReceivedPut, packs: Vec<(BlobId, Layout)>) {
        self.packs_made(came.key, packs);
        self.datasets.came.push_back(came);
        self.classic_turns();
        self.watch();
    }

    /// Packs were made here: they are checked like those that came.
    pub(super) fn packs_made(&mut self, key: Uuid, packs: Vec<(BlobId, Layout)>) {
        for (pack, layout) in packs {
            self.datasets.pack_index.announce(pack, Arc::new(layout), key, self.now);
            self.datasets.pack_index.comes(pack);
            if self.facts.has_arrived(pack) {
                self.part_arrived(pack);
            }
        }
    }

    /// Goes on with those puts that need not wait for another put of their dataset, nor for what is
    /// there of it.
    pub(super) fn classic_turns(&mut self) {
        loop {
            let mut busy: HashSet<CacheId> = HashSet::new();
            let mut ready = None;
            for at in 0..self.datasets.came.len() {
                let Some(cache) = self.datasets.came.get(at).map(|came| came.cache.clone()) else {
                    break;
                };
                let is_coming = |putting: &Putting| putting.cache == cache && putting.is_coming();
                // One behind the other.
                if !busy.insert(cache.clone()) || self.datasets.puts.values().any(is_coming) {
                    continue;
                }
                match self.old_of(&cache) {
                    ExistingDataset::Later => {}
                    ExistingDataset::Now(old) => {
                        ready = Some((at, old));
                        break;
                    }
                }
            }
            let Some((at, old)) = ready else { return };
            let Some(came) = self.datasets.came.remove(at) else { return };
            let (conn, request, cache) = (came.conn, came.request, came.cache.clone());
            let packs = came.packs.clone();
            if let Err(why) = old.and_then(|old| self.classic_turn(came, old)) {
                self.fail_classic(conn, request, cache.as_str(), &why);
                self.forget_unneeded(&packs);
            }
        }
    }

    /// What is there under an id.
    fn old_of(&mut self, cache: &CacheId) -> ExistingDataset {
        if self.datasets.pack_index.is_listing() {
            return ExistingDataset::Later;
        }
        let Some(known) = self.facts.dataset(cache) else { return ExistingDataset::Now(Ok(None)) };
        // One that could not be read is not read again and again for a put that waits.
        let is_readable =
            self.datasets.pack_index.knows(known.version) && self.facts.has_arrived(known.version);
        match self.manifest_of(known.version) {
            Some(manifest) => ExistingDataset::Now(Ok(Some((known, manifest)))),
            None if is_readable => ExistingDataset::Later,
            None => ExistingDataset::Now(Err(format!(
                "dataset {cache} is damaged at the leader: put all of it again with heft's \
                 --replace, or under another CacheId"
            ))),
        }
    }

    fn classic_turn(&mut self, came: ReceivedPut, old: Option<Known>) -> Result<(), String> {
        let ReceivedPut { conn, request, key, version, cache, target, files, entries, packs } =
            came;
        let old_files = old.as_ref().map(|(_, manifest)| manifest.files()).unwrap_or_default();
        let is_old =
            |name: &str| old_files.binary_search_by(|file| file.name.as_str().cmp(name)).is_ok();
        let count = files.len() as u64;
        let new: BTreeMap<SafeName, PackedFile> =
            files.into_iter().filter(|(name, _)| !is_old(name.as_str())).collect();
        let before = old.as_ref().map(|(known, _)| {
            let has_it =
                |worker: &WorkerId| self.holds_dataset(*worker, &known.cache, &known.digest);
            self.datasets.workers.keys().copied().filter(has_it).collect()
        });
        let added = new.len() as u64;
        info!(%cache, files = entries, added, target, "a classic client puts a dataset");
        let classic =
            Classic { request, cache: cache.clone(), entries, files: count, added, before };
        let deadline = self.now.plus(CLASSIC_WAIT);
        let target = Name::try_from(target).map_err(|error| format!("the target: {error}"))?;
        let put_of =
            |manifest: &Manifest, version: Uuid| put_of(&cache, manifest, version, &target);
        if let Some((known, manifest)) = old.as_ref().filter(|_| new.is_empty()) {
            let put = put_of(manifest, known.version);
            let origin = Origin::Classic(conn, classic);
            let putting =
                Putting::made_here(origin, cache.clone(), put, HashSet::new(), Some(deadline));
            self.put_again(key, putting, known);
            self.forget_unneeded(&packs);
            return Ok(());
        }
        let names =
            old_files.iter().map(|file| file.name.as_str()).chain(new.keys().map(SafeName::as_str));
        names_of_dataset(names).map_err(|error| error.to_string())?;
        let mut builder = ManifestBuilder::default();
        if let Some((_, manifest)) = &old {
            for file in manifest.files() {
                let pieces = manifest.layout(file).map(|(_, _, piece)| piece).collect();
                builder.file(file.name.clone(), file.sha256, pieces);
            }
        }
        new.into_iter().for_each(|(name, made)| builder.file(name, made.sha256, made.pieces));
        let manifest = builder.finish().map_err(|error| error.to_string())?;
        let (put, coming) = (put_of(&manifest, version), self.still_coming(packs));
        let origin = Origin::Classic(conn, classic);
        let putting = Putting::made_here(origin, cache, put, coming, Some(deadline));
        self.put_made(key, putting, &manifest);
        Ok(())
    }

    /// The packs that have yet to be checked.
    pub(super) fn still_coming(&self, packs: Vec<BlobId>) -> HashSet<BlobId> {
        let is_coming = |pack: &BlobId| {
            self.datasets.pack_index.pack(*pack).is_some_and(|(_, state)| state != PackState::Good)
        };
        packs.into_iter().filter(is_coming).collect()
    }

    /// A put of what was made here begins: its packs are here, and its manifest is gathered.
    pub(super) fn put_made(&mut self, key: Uuid, putting: Putting, manifest: &Manifest) {
        let version = putting.manifest_id();
        self.datasets.puts.insert(key, putting);
        let bytes = manifest.encode().into();
        self.act(DatasetAction::KeepManifest { blob: version, key, bytes });
    }

    /// Packs of a put that added nothing go at once, unless another put may have found its pieces
    /// there.
    fn forget_unneeded(&mut self, packs: &[BlobId]) {
        if self.datasets.puts.values().any(Putting::is_coming) || !self.datasets.came.is_empty() {
            return;
        }
        let needed = self.needed_blobs();
        packs
            .iter()
            .filter(|pack| !needed.contains(*pack))
            .for_each(|pack| self.forget_part(*pack));
    }

    /// A classic client must not wait for ever: its put failed.
    pub(super) fn fail_classic(&mut self, conn: ConnId, request: Uuid, cache: &str, why: &str) {
        info!(peer = %self.facts.peer_name(conn), cache, "a classic client's put failed: {why}");
        self.ack_classic(conn, request, CachePutResult::failed(cache, why));
    }

    fn ack_classic(&mut self, conn: ConnId, request: Uuid, result: CachePutResult) {
        self.act(DatasetAction::CacheAck { conn, request, result });
    }

    /// A classic client's put is over: what no worker answered it hears from the leader.
    pub(super) fn classic_over(&mut self, request: Uuid, text: &str) {
        let Some(putting) = self.datasets.puts.get(&request) else { return };
        let Origin::Classic(conn, classic) = &putting.origin else { return };
        let (conn, to, cache) = (*conn, classic.request, classic.cache.clone());
        if putting.target() == TARGET_NONE {
            let skipped = classic.entries.saturating_sub(classic.added);
            let kept = CachePutResult::stored(cache.as_str(), classic.added, skipped);
            return self.ack_classic(conn, to, kept);
        }
        if !putting.has_targets() {
            return self.fail_classic(conn, to, cache.as_str(), text);
        }
        for worker in putting.missing().collect::<Vec<_>>() {
            let text = format!("worker {} has not answered: {text}", self.worker_name(worker));
            self.fail_classic(conn, to, cache.as_str(), &text);
        }
    }

    /// Whether all of an earlier content of a dataset is in the present one.
    pub(super) fn is_within(&self, cache: &CacheId, digest: &[u8; 32]) -> bool {
        self.datasets.lineage.get(cache).is_some_and(|lineage| lineage.contains(digest))
    }

    /// Whether one content of a dataset is another, or became that by adding files.
    pub(super) fn is_part_of(&self, cache: &CacheId, part: &[u8; 32], whole: &[u8; 32]) -> bool {
        let lineage = self.datasets.lineage.get(cache);
        let place = |digest: &[u8; 32]| lineage?.iter().position(|known| known == digest);
        part == whole || place(part).zip(place(whole)).is_some_and(|(part, whole)| part < whole)
    }

    /// Notes what a dataset was made from by adding files: who has that has nothing that is not in
    /// it.
    pub(super) fn note_lineage(&mut self, dataset: &Dataset, replaced: Option<&Dataset>) {
        let mut puts = self.datasets.puts.values();
        let is_added =
            puts.any(|put| put.manifest_id() == dataset.version && put.classic().is_some());
        let replaced = replaced.map(|replaced| replaced.digest);
        let is_other = replaced.is_some_and(|replaced| replaced != dataset.digest);
        let lineage = self.datasets.lineage.entry(dataset.cache.clone()).or_default();
        if is_other && !is_added || lineage.len() >= LINEAGE_MAX {
            lineage.clear();
        }
        for digest in replaced.filter(|_| is_added).into_iter().chain([dataset.digest]) {
            if !lineage.contains(&digest) {
                lineage.push(digest);
            }
        }
    }
}

/// A put of what was made here.
pub(super) fn put_of(cache: &CacheId, manifest: &Manifest, version: Uuid, target: &Name) -> Put {
    Put {
        digest: manifest.digest(),
        manifest: version,
        bytes: manifest.bytes(),
        files: u32::try_from(manifest.files().len()).unwrap_or(u32::MAX),
        flags: PutFlags::default(),
        deadline_ms: 0,
        cache_id: Name::try_from(cache.as_str().to_owned()).unwrap_or_default(),
        target: target.clone(),
    }
}

/// What is there under an id, once that is known.
enum ExistingDataset {
    Later,
    Now(Result<Option<Known>, String>),
}

/// A dataset that is there, and its manifest.
type Known = (Arc<Dataset>, Arc<Manifest>);

/// The contents that datasets had before files were added to them, in their order, with the present
/// one.
pub(super) type Lineage = HashMap<CacheId, Vec<[u8; 32]>>;
