//! Sends datasets to classic workers. A worker with the founding documents' cache patch takes a
//! whole dataset in one CachePut frame, if it fits (T06, C01), and answers; a worker without the
//! patch ignores the frame. To find out, the leader sends an empty CachePut before the first real
//! one. A worker that does not answer is not a put target and delays no put.
//!
//! Such a worker never overwrites a file and cannot be told to remove one (CA05). It reports only
//! how many files existed before, not their contents. Skipped files therefore count only if this
//! worker wrote them for this run of the leader and the current version has the same content for
//! them. Otherwise the worker does not hold the dataset, and the client of the put is told.

use std::collections::{HashMap, HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use chunking::dataset::{FileEntry, Manifest, Piece};
use chunking::frame::{LENGTH_BYTES, head_len};
use chunking::limits::FRAME_BODY_BYTES_MAX;
use tracing::{info, warn};
use uuid::Uuid;

use super::classic_put::SUBJECT;
use super::distribution::WantedVersion;
use super::held::AtWorker;
use super::{BlobId, DatasetAction, Datasets, Step};
use crate::core::dataset::Dataset;
use crate::core::ids::{CacheId, ConnId, Micros, WorkerId};
use crate::model::{CacheEntry, CachePutRequest, CachePutResult, CacheStatus, JsonModel};
use crate::store::verify::{VerifyRequest, WantedPieces};

/// How long a classic worker has to show that it knows CachePut. Puts wait for it once, when it has
/// just joined.
const KNOWS_WAIT: Duration = Duration::from_secs(5);

/// How long one that knows it has to answer a put.
const ANSWER_WAIT: Duration = Duration::from_secs(60);

/// Classic workers whose files are remembered. Beyond that only files of connected workers are.
const WROTE_WORKERS_MAX: usize = 4096;

/// Datasets of which it is remembered for one. Beyond that it begins anew.
const WROTE_DATASETS_MAX: usize = 65_536;

/// Frames that are kept for the next worker.
const FRAMES_KEPT: usize = 2;

/// What a file takes in a frame beside its name and its content.
const ENTRY_BYTES: u64 = 32;

/// A classic worker, as far as datasets go.
#[derive(Debug, Default)]
pub(super) struct ClassicWorker {
    /// Where it connects from.
    host: Option<IpAddr>,
    knows: Knows,
    /// Datasets that it was sent and has not answered for, by their versions.
    sent: HashMap<Uuid, Sent>,
    /// When it should have answered the put that it was sent.
    answer_by: Option<Micros>,
}

/// Whether a classic worker knows CachePut.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Knows {
    #[default]
    Unasked,
    /// It was sent a put of nothing, and should have answered by then.
    Asked(Micros),
    Yes,
    No,
}

/// A dataset that a classic worker was sent.
#[derive(Debug)]
struct Sent {
    cache: CacheId,
    what: Wrote,
    /// What it had of another content. That counts for nothing unless its answer says that it wrote
    /// nothing.
    before: Option<Wrote>,
}

/// A content of a dataset that is in a classic worker's cache, file by file, because it wrote all
/// of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Wrote {
    digest: [u8; 32],
    files: u64,
}

impl ClassicWorker {
    pub(super) fn host(&self) -> Option<IpAddr> {
        self.host
    }

    fn deadline(&self) -> Option<Micros> {
        let asked = match self.knows {
            Knows::Asked(until) => Some(until),
            Knows::Unasked | Knows::Yes | Knows::No => None,
        };
        asked.into_iter().chain(self.answer_by).min()
    }

    /// Whether it may be a target.
    pub(super) fn may_know(&self) -> bool {
        self.knows != Knows::No
    }
}

/// What there is for classic workers and of them, beside their connections.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The files that workers wrote since the leader started, by worker id: a worker that only lost
    /// its connection keeps its id and its directory.
    wrote: HashMap<WorkerId, HashMap<CacheId, Wrote>>,
    ready: VecDeque<(Uuid, Bytes)>,
    reading: HashMap<Uuid, Reading>,
}

/// Contents of a dataset that are read for a frame.
#[derive(Debug)]
struct Reading {
    packs: HashSet<BlobId>,
    pieces: HashMap<Piece, Vec<u8>>,
}

impl Frames {
    fn get(&self, version: Uuid) -> Option<Bytes> {
        self.ready.iter().find(|(of, _)| *of == version).map(|(_, payload)| payload.clone())
    }

    /// Nobody needed them for a while.
    pub(super) fn rest(&mut self) {
        self.ready.clear();
    }
}

/// Whether a dataset may fit one frame; names are not known here.
pub(super) fn may_fit(dataset: &Dataset) -> bool {
    let files = u64::from(dataset.files).saturating_mul(ENTRY_BYTES);
    dataset.bytes.div_ceil(3).saturating_mul(4).saturating_add(files)
        <= u64::from(FRAME_BODY_BYTES_MAX)
}

impl Datasets {
    /// Whether a classic worker has shown that it knows CachePut, and with it `<CacheId>/<Name>`.
    pub(in crate::leader) fn knows_cache_put(&self, worker: WorkerId) -> bool {
        let at = self.workers.get(&worker);
        at.and_then(|at| at.classic.as_ref()).is_some_and(|classic| classic.knows == Knows::Yes)
    }
}

impl Step<'_> {
    /// A classic worker said hello.
    pub(super) fn classic_joined(&mut self, conn: ConnId, worker: WorkerId, host: Option<IpAddr>) {
        let classic = ClassicWorker { host, ..ClassicWorker::default() };
        self.datasets.workers.insert(worker, AtWorker::of_classic(conn, classic));
        self.reconcile(worker);
    }

    /// A classic worker is gone, and does not come back: who waits for it hears so.
    pub(super) fn classic_left(&mut self, conn: ConnId) {
        let is_it = |at: &AtWorker| at.classic.is_some() && at.conn == Some(conn);
        let worker =
            self.datasets.workers.iter().find(|(_, at)| is_it(at)).map(|(worker, _)| *worker);
        let Some(worker) = worker else { return };
        let puts = self.datasets.puts.values();
        let waits: Vec<(Uuid, CacheId)> = puts
            .filter(|putting| {
                !putting.is_coming() && putting.missing().any(|missing| missing == worker)
            })
            .map(|putting| (putting.manifest_id(), putting.cache.clone()))
            .collect();
        for (version, cache) in waits {
            let result = CachePutResult::failed(cache.as_str(), "the worker is gone");
            self.tell_putters(version, worker, &result);
        }
    }

    fn classic_at(&mut self, worker: WorkerId) -> Option<&mut ClassicWorker> {
        self.datasets.workers.get_mut(&worker)?.classic.as_mut()
    }

    /// Asks a classic worker whether it knows CachePut, once.
    pub(super) fn ask_classic(&mut self, worker: WorkerId) {
        let until = self.now.plus(KNOWS_WAIT);
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return };
        let (Some(classic), Some(conn)) = (&mut at.classic, at.conn) else { return };
        if classic.knows != Knows::Unasked {
            return;
        }
        classic.knows = Knows::Asked(until);
        self.act(DatasetAction::AskClassic { conn });
        self.watch();
    }

    /// Whether a worker can be given a dataset now. If a classic worker cannot, it is seen to that
    /// it can later, if ever.
    pub(super) fn may_be_given(&mut self, worker: WorkerId, wanted: &WantedVersion) -> bool {
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return false };
        let Some(classic) = &at.classic else { return true };
        match classic.knows {
            Knows::Unasked | Knows::Asked(_) => {
                at.queue.insert(0, wanted.cache.clone());
                self.ask_classic(worker);
                false
            }
            Knows::No => {
                at.queue.clear();
                false
            }
            Knows::Yes => true,
        }
    }

    /// Sends a classic worker the dataset that it is to hold, when its frame is there.
    pub(super) fn feed_classic(&mut self, worker: WorkerId) {
        let Some(at) = self.datasets.workers.get(&worker) else { return };
        let (Some(conn), Some(push)) = (at.conn, &at.push) else { return };
        if push.sent > 0 {
            return;
        }
        let wanted = push.wanted.clone();
        let Some(payload) = self.datasets.frames.get(wanted.version) else {
            return self.read_for_frame(worker, &wanted);
        };
        let head = head_len(chunking::Generation::F2, SUBJECT) - LENGTH_BYTES;
        let body = head.saturating_add(payload.len());
        let bytes = payload.len() as u64;
        if body > FRAME_BODY_BYTES_MAX as usize {
            let text = format!(
                "the dataset takes a frame of {body} bytes; a classic worker takes at most {FRAME_BODY_BYTES_MAX}: run a heft worker \
                 with --cache-only beside it"
            );
            return self.push_ended(
                worker,
                wanted.version,
                CachePutResult::failed(wanted.cache.as_str(), text),
            );
        }
        self.act(DatasetAction::SendDataset { conn, version: wanted.version, payload });
        self.datasets.count_sent(worker, bytes);
        let by = self.now.plus(ANSWER_WAIT);
        let what = Wrote { digest: wanted.digest, files: wanted.files.into() };
        let before = self.wrote(worker, &wanted.cache);
        let before =
            before.filter(|before| !self.is_part_of(&wanted.cache, &before.digest, &wanted.digest));
        if let Some(wrote) =
            self.datasets.frames.wrote.get_mut(&worker).filter(|_| before.is_some())
        {
            wrote.remove(&wanted.cache);
        }
        if let Some(classic) = self.classic_at(worker) {
            classic.sent.insert(wanted.version, Sent { cache: wanted.cache, what, before });
            classic.answer_by = Some(by);
        }
        self.watch();
    }

    /// Reads the contents of a dataset, unless that is being done.
    fn read_for_frame(&mut self, worker: WorkerId, wanted: &WantedVersion) {
        let version = wanted.version;
        if self.datasets.frames.reading.contains_key(&version) {
            return;
        }
        let Some(manifest) = self.manifest_of(version) else {
            if !self.facts.has_arrived(version) {
                let text = format!("the manifest of {} is damaged at the leader", wanted.cache);
                self.push_ended(
                    worker,
                    version,
                    CachePutResult::failed(wanted.cache.as_str(), text),
                );
            }
            // Else it is being read, and then they are fed.
            return;
        };
        let pack_index = &self.datasets.pack_index;
        let mut wanted: HashMap<BlobId, HashSet<Piece>> = HashMap::new();
        for piece in manifest.pieces() {
            if let Some(pack) = pack_index.place_of(piece) {
                wanted.entry(pack).or_default().insert(*piece);
            }
        }
        let packs = wanted.keys().copied().collect();
        let mut looks = Vec::new();
        for (pack, pieces) in wanted {
            let Some((layout, _)) = pack_index.pack(pack) else { continue };
            let mut left = pieces;
            let places = layout.pieces().iter().enumerate().filter(|(_, piece)| left.remove(piece));
            let pieces =
                places.filter_map(|(place, piece)| Some((*piece, layout.range(place)?))).collect();
            let wanted = WantedPieces { reader: version, pieces };
            looks.push((pack, VerifyRequest::Pieces(Box::new(wanted))));
        }
        looks.into_iter().for_each(|(blob, at)| self.act(DatasetAction::Look { blob, at }));
        let reading = Reading { packs, pieces: HashMap::new() };
        self.datasets.frames.reading.insert(version, reading);
        self.frame_if_read(version, &manifest);
    }

    /// Contents of a dataset were read from a pack.
    pub(super) fn pieces_read(
        &mut self,
        pack: BlobId,
        version: Uuid,
        found: Result<Vec<(Piece, Vec<u8>)>, String>,
    ) {
        let Some(reading) = self.datasets.frames.reading.get_mut(&version) else { return };
        match found {
            Ok(found) => {
                reading.packs.remove(&pack);
                reading.pieces.extend(found);
                match self.manifest_of(version) {
                    Some(manifest) => self.frame_if_read(version, &manifest),
                    None => self.no_frame(version, "its manifest is not at hand"),
                }
            }
            Err(why) => {
                warn!(%pack, %version, "a dataset cannot be read for classic workers: {why}");
                self.no_frame(version, &format!("the leader cannot read it: {why}"));
            }
        }
    }

    fn frame_if_read(&mut self, version: Uuid, manifest: &Manifest) {
        let Some(reading) = self.datasets.frames.reading.get(&version) else { return };
        if !reading.packs.is_empty() {
            return;
        }
        let content = |file: &FileEntry| -> Option<Vec<u8>> {
            let pieces = manifest.layout(file).map(|(_, _, piece)| reading.pieces.get(&piece));
            Some(pieces.collect::<Option<Vec<_>>>()?.into_iter().flatten().copied().collect())
        };
        let entry = |file: &FileEntry| {
            Some(CacheEntry { name: file.name.clone(), content: content(file)?, sha256: None })
        };
        let entries: Option<Vec<CacheEntry>> = manifest.files().iter().map(entry).collect();
        let dataset = self.facts.datasets().find(|dataset| dataset.version == version).cloned();
        let (Some(entries), Some(dataset)) = (entries, dataset) else {
            return self.no_frame(version, "the leader lacks a part of it");
        };
        let request = CachePutRequest {
            cache_id: dataset.cache.as_str().to_owned(),
            entries,
            target_pattern: dataset.target.to_string(),
            part_no: None,
            part_count: None,
        };
        let frames = &mut self.datasets.frames;
        frames.reading.remove(&version);
        frames.ready.truncate(FRAMES_KEPT.saturating_sub(1));
        frames.ready.push_front((version, request.to_json().into()));
        self.feed_pushes(version);
    }

    fn no_frame(&mut self, version: Uuid, why: &str) {
        self.datasets.frames.reading.remove(&version);
        let is_it = |at: &AtWorker| at.classic.is_some() && at.is_pushed(version);
        let workers = self.datasets.workers.iter().filter(|(_, at)| is_it(at));
        let cache = |at: &AtWorker| at.push.as_ref().map(|push| push.wanted.cache.clone());
        let waiting: Vec<_> =
            workers.filter_map(|(worker, at)| Some((*worker, cache(at)?))).collect();
        for (worker, cache) in waiting {
            self.push_ended(worker, version, CachePutResult::failed(cache.as_str(), why));
        }
    }

    /// A worker has answered a put: what that means, unless it is a classic worker's answer to what
    /// nobody waits for.
    pub(super) fn classic_answered(
        &mut self,
        worker: WorkerId,
        to: Uuid,
        result: CachePutResult,
    ) -> Option<CachePutResult> {
        let Some(at) = self.datasets.workers.get_mut(&worker) else { return Some(result) };
        let is_push = at.is_pushed(to);
        let Some(classic) = &mut at.classic else { return Some(result) };
        if is_push {
            classic.answer_by = None;
        }
        let sent = classic.sent.remove(&to);
        let is_new = std::mem::replace(&mut classic.knows, Knows::Yes) != Knows::Yes;
        // Also a late answer says what it wrote.
        let result = match sent {
            Some(sent) => self.read_answer(worker, sent, result),
            None => result,
        };
        if is_new {
            info!(%worker, "a classic worker knows CachePut");
            if !is_push {
                self.reconcile(worker);
            }
        }
        is_push.then_some(result)
    }

    fn wrote(&self, worker: WorkerId, cache: &CacheId) -> Option<Wrote> {
        self.datasets.frames.wrote.get(&worker)?.get(cache).copied()
    }

    fn note_wrote(&mut self, worker: WorkerId, cache: CacheId, what: Wrote) {
        let wrote = &mut self.datasets.frames.wrote;
        if wrote.len() >= WROTE_WORKERS_MAX && !wrote.contains_key(&worker) {
            let workers = &self.datasets.workers;
            wrote.retain(|worker, _| workers.get(worker).is_some_and(|at| at.conn.is_some()));
        }
        let datasets = wrote.entry(worker).or_default();
        if datasets.len() >= WROTE_DATASETS_MAX {
            datasets.clear();
        }
        datasets.insert(cache, what);
    }

    /// What a classic worker's answer is worth: the dataset is there if it wrote every file now, or
    /// those before that it skipped.
    fn read_answer(
        &mut self,
        worker: WorkerId,
        sent: Sent,
        result: CachePutResult,
    ) -> CachePutResult {
        let Sent { cache, what, before } = sent;
        match result.status {
            CacheStatus::Ok | CacheStatus::Skipped => {}
            CacheStatus::Failed | CacheStatus::Other(_) => return result,
        }
        let wrote = self.wrote(worker, &cache);
        let wrote = wrote.filter(|wrote| self.is_part_of(&cache, &wrote.digest, &what.digest));
        let counts = result.counts();
        let is_there = counts.is_some_and(|(added, skipped)| {
            let is_known = skipped == 0 || wrote.is_some_and(|wrote| wrote.files == skipped);
            is_known && added.checked_add(skipped) == Some(what.files)
        });
        if is_there {
            self.note_wrote(worker, cache, what);
            return result;
        }
        if let (Some((0, _)), Some(before)) = (counts, before) {
            self.note_wrote(worker, cache.clone(), before);
        }
        let text = format!(
            "a classic worker does not overwrite files. Of {} files it says \"{}\": the content of \
             files that existed before is unknown, so {cache} is not held there; remove the \
             directory {cache} in its cache and push the dataset again (`heft dataset push \
             {cache}`), or put it under another CacheId, or run a heft worker with --cache-only \
             beside it",
            what.files, result.message
        );
        CachePutResult::failed(cache.as_str(), text)
    }

    /// When a classic worker should have answered.
    pub(super) fn classic_deadline(&self) -> Option<Micros> {
        self.datasets.workers.values().filter_map(|at| at.classic.as_ref()?.deadline()).min()
    }

    /// Classic workers that should have answered by now.
    pub(super) fn classic_due(&mut self) {
        let now = self.now;
        for worker in self.datasets.workers.keys().copied().collect::<Vec<_>>() {
            let Some(at) = self.datasets.workers.get_mut(&worker) else { continue };
            let Some(classic) = at
                .classic
                .as_mut()
                .filter(|classic| classic.deadline().is_some_and(|due| due <= now))
            else {
                continue;
            };
            if let Knows::Asked(until) = classic.knows
                && until <= now
            {
                info!(%worker, "a classic worker does not know CachePut: it gets no datasets");
                classic.knows = Knows::No;
                at.queue.clear();
                self.not_a_target(worker);
                continue;
            }
            classic.answer_by = None;
            if let Some(push) = at.push.as_ref().filter(|push| push.sent > 0) {
                let (version, cache) = (push.wanted.version, push.wanted.cache.clone());
                let text =
                    format!("the classic worker has not answered in {} s", ANSWER_WAIT.as_secs());
                self.push_ended(worker, version, CachePutResult::failed(cache.as_str(), text));
            }
        }
    }

    /// A dataset is not there any more: what a classic worker has of it stays on its disk, and out
    /// of the scheduler's sight.
    pub(super) fn forget_frames(&mut self, version: Uuid) {
        self.datasets.frames.reading.remove(&version);
        self.datasets.frames.ready.retain(|(of, _)| *of != version);
    }
}
