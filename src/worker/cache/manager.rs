//! Manages the datasets in the cache and reports them to the leader. [`jobs`] handles the jobs that
//! need them.
//!
//! It decides and never blocks; the session calls it for each frame and for each [`News`] from its
//! threads. A dataset is offered once its digests were checked in this run of the worker.

mod jobs;
mod puts;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use chunking::limits::DATASETS_LISTED_MAX;
use chunking::message::{DatasetEntry, DatasetList, DatasetState, Have, Name, Reason, Release};
use chunking::{Digest, DigestKind, Kind};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{info, warn};
use uuid::Uuid;

use super::classic::{self, PutError, Stored};
use super::contents::Contents;
use super::dataset_download::Coming;
use super::disk::Disk;
use super::eviction::{Load, NoRoom, What, victims};
use super::given_up::GivenUp;
use super::link::LinkMode;
use super::seal::Seal;
use super::staged::{CheckError, Donor, Staged, check};
use super::{CacheConfig, CacheId};
use crate::model::{CachePutRequest, CachePutResult, CacheStatus, JsonModel};
use crate::peer::OutFrame;
use crate::units::ByteSize;
use crate::worker::exchange::Exchange;
use crate::worker::limits::PUTS_WAITING_MAX;
use jobs::Needs;
pub(in crate::worker) use jobs::ReadAgain;
pub(in crate::worker) use jobs::Step;

/// A dataset that is here.
#[derive(Debug)]
pub(super) struct Dataset {
    pub(super) version: Uuid,
    pub(super) contents: Arc<Contents>,
    /// What its files looked like when they were checked; nothing while they have not been.
    pub(super) seals: Option<Arc<Vec<Seal>>>,
    last_use: SystemTime,
    /// Files that are being read again before a job may use them.
    doubtful: HashSet<u32>,
    /// It goes when no job uses it any more.
    released: bool,
    /// Whether it came on this connection, or the leader has said on it that this is the content
    /// which counts.
    sure: bool,
}

impl Dataset {
    /// It is wanted after all.
    pub(super) fn unrelease(&mut self) {
        self.released = false;
    }
}

/// What has come of a dataset.
#[derive(Debug)]
pub(super) struct Part {
    /// Whose it would be, if that is known.
    pub(super) cache: Option<CacheId>,
    pub(super) contents: Arc<Contents>,
    last_use: SystemTime,
}

impl Part {
    pub(super) fn of(cache: &CacheId, contents: Arc<Contents>) -> Self {
        Part { cache: Some(cache.clone()), contents, last_use: SystemTime::now() }
    }
}

/// How a dataset goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Going {
    /// It is damaged: what is right of it is kept for its return.
    Damaged,
    /// It is given up, and does not come back unasked.
    GivenUp,
    /// The leader released it.
    Released,
}

/// What a thread has done.
#[derive(Debug)]
pub(in crate::worker) enum News {
    /// The files of a dataset were checked.
    Checked(Checked),
    /// Files of a dataset that may have changed were read again.
    ReadAgain(ReadAgain),
    /// A manifest was read.
    Read { version: Uuid, contents: Result<Contents, String> },
    /// The files of a dataset are ready to be written.
    Prepared { version: Uuid, turn: u64, staged: io::Result<Arc<Staged>> },
    /// A dataset is visible.
    Shown { version: Uuid, seals: io::Result<Vec<Seal>> },
    /// A put of a classic leader is stored.
    Put(Put),
    /// A hidden dataset could be removed, or not yet.
    Discarded { version: Uuid, bytes: u64, gone: bool },
}

/// The files of a dataset were checked.
#[derive(Debug)]
pub(in crate::worker) struct Checked {
    cache: CacheId,
    version: Uuid,
    found: Result<Vec<Seal>, CheckError>,
    question: Option<Uuid>,
}

/// A put of a classic leader is stored.
#[derive(Debug)]
pub(in crate::worker) struct Put {
    cache: CacheId,
    corr_id: Uuid,
    stored: Result<Stored, PutError>,
}

/// A put that waits for its turn.
#[derive(Debug)]
struct Waiting {
    cache: CacheId,
    corr_id: Uuid,
    request: CachePutRequest,
}

/// A worker's cache.
#[derive(Debug)]
pub(in crate::worker) struct Cache {
    pub(super) disk: Arc<Disk>,
    budget: u64,
    link: LinkMode,
    pub(super) datasets: HashMap<CacheId, Dataset>,
    /// What has come of datasets that nobody sends at the moment.
    pub(super) parts: HashMap<Uuid, Part>,
    pub(super) given_up: GivenUp,
    /// Hidden, and still used by somebody.
    leaving: HashMap<Uuid, u64>,
    pub(super) coming: HashMap<Uuid, Coming>,
    jobs: HashMap<Uuid, Needs>,
    /// Datasets that the leader was asked for.
    asked: HashSet<CacheId>,
    /// Whether the leader knows datasets.
    told: bool,
    puts: VecDeque<Waiting>,
    putting: Option<(CacheId, u64)>,
    steps: Vec<Step>,
    /// Where threads tell what they have done.
    news: mpsc::UnboundedSender<News>,
    /// What was last begun with the directories of a version: the next waits for it.
    turns: HashMap<Uuid, JoinHandle<()>>,
    /// How often something was.
    pub(super) turn: u64,
}

/// A cache that is open, for this worker alone, and not in use yet.
#[derive(Debug)]
pub(in crate::worker) struct Opened {
    disk: Disk,
    budget: u64,
    link: LinkMode,
    datasets: HashMap<CacheId, Dataset>,
    parts: HashMap<Uuid, Part>,
    given_up: GivenUp,
}

impl Opened {
    /// Opens the directory, which no other worker may keep, and finds what is in it.
    pub(in crate::worker) fn open(config: &CacheConfig) -> io::Result<Self> {
        let disk = Disk::open(&config.directory)?;
        let loaded = disk.load().map_err(|error| {
            let text =
                format!("cannot read the cache directory {}: {error}", config.directory.display());
            io::Error::new(error.kind(), text)
        })?;
        let datasets: HashMap<CacheId, Dataset> = loaded
            .datasets
            .into_iter()
            .map(|(cache, found)| {
                let dataset = Dataset {
                    version: found.version,
                    contents: Arc::new(found.contents),
                    seals: None,
                    last_use: found.last_use,
                    doubtful: HashSet::new(),
                    released: false,
                    sure: false,
                };
                (cache, dataset)
            })
            .collect();
        let parts: HashMap<_, _> = loaded
            .staged
            .into_iter()
            .map(|found| {
                let (cache, contents, last_use) =
                    (found.cache, Arc::new(found.contents), found.last_use);
                (found.version, Part { cache, contents, last_use })
            })
            .collect();
        let held: u64 = datasets.values().map(|dataset| dataset.contents.bytes()).sum();
        let staged: u64 = parts.values().map(|part| part.contents.bytes()).sum();
        let budget = match config.budget {
            Some(budget) => budget,
            None => disk.free_bytes()?.saturating_add(held).saturating_add(staged) / 2,
        };
        info!(directory = %config.directory.display(), datasets = datasets.len(), used = %ByteSize(held),
            budget = %ByteSize(budget), "cache");
        let given_up = GivenUp::load(disk.given_up_path(), |cache| datasets.contains_key(cache));
        Ok(Opened { disk, budget, link: config.link, datasets, parts, given_up })
    }

    /// Begins to use it. Threads report to `news`.
    pub(in crate::worker) fn start(self, news: mpsc::UnboundedSender<News>) -> Cache {
        let Opened { disk, budget, link, datasets, parts, given_up } = self;
        let cache = Cache {
            disk: Arc::new(disk),
            given_up,
            budget,
            link,
            datasets,
            parts,
            leaving: HashMap::new(),
            coming: HashMap::new(),
            jobs: HashMap::new(),
            asked: HashSet::new(),
            told: false,
            puts: VecDeque::new(),
            putting: None,
            steps: Vec::new(),
            news,
            turns: HashMap::new(),
            turn: 0,
        };
        cache.check_found();
        cache
    }
}

impl Cache {
    /// Begins to check what was found, the datasets that were used last first.
    fn check_found(&self) {
        let mut found: Vec<_> = self
            .datasets
            .iter()
            .map(|(cache, dataset)| {
                (dataset.last_use, cache.clone(), dataset.version, dataset.contents.clone())
            })
            .collect();
        found.sort_by_key(|(last_use, ..)| std::cmp::Reverse(*last_use));
        let (disk, news) = (self.disk.clone(), self.news.clone());
        if found.is_empty() {
            return;
        }
        tokio::task::spawn_blocking(move || {
            for (_, cache, version, contents) in found {
                let found = check(&disk, version, &contents);
                if disk.is_closed()
                    || news
                        .send(News::Checked(Checked { cache, version, found, question: None }))
                        .is_err()
                {
                    return;
                }
            }
        });
    }

    /// Has something done on a thread.
    pub(super) fn run(&self, work: impl FnOnce(&Disk) -> News + Send + 'static) {
        let (disk, news) = (self.disk.clone(), self.news.clone());
        tokio::task::spawn_blocking(move || {
            // Nobody hears it when the worker has left.
            news.send(work(&disk)).ok();
        });
    }

    /// Has something done with the directories of a version, on a thread, after what was begun with
    /// them before.
    pub(super) fn run_in_turn(
        &mut self,
        version: Uuid,
        work: impl FnOnce(&Disk) -> News + Send + 'static,
    ) {
        let (disk, news) = (self.disk.clone(), self.news.clone());
        let work = move || {
            // Nobody hears it when the worker has left.
            news.send(work(&disk)).ok();
        };
        self.turns.retain(|_, last| !last.is_finished());
        let task = match self.turns.remove(&version) {
            None => tokio::task::spawn_blocking(work),
            Some(last) => tokio::spawn(async move {
                last.await.ok();
                tokio::task::spawn_blocking(work).await.ok();
            }),
        };
        self.turns.insert(version, task);
        self.turn += 1;
    }

    pub(in crate::worker) fn directory(&self) -> &Path {
        self.disk.root()
    }

    /// The leader has said what it can do: it is told what is here.
    pub(in crate::worker) fn on_leader(&mut self, knows_datasets: bool, out: &mut Exchange) {
        self.told = knows_datasets;
        self.asked.clear();
        if !knows_datasets {
            return;
        }
        // First what is not to come back: the leader sends what it thinks lacks as soon as it has
        // the first of these messages.
        let gone = self
            .given_up
            .iter()
            .map(|one| entry(DatasetState::Gone, &one.cache, one.digest, &one.text));
        let checked = self
            .datasets
            .iter()
            .filter(|(_, dataset)| dataset.seals.is_some() && !dataset.released);
        let held = checked.map(|(cache, dataset)| {
            entry(DatasetState::Held, cache, dataset.contents.digest(), "")
        });
        let entries: Vec<DatasetEntry> = gone.chain(held).collect();
        // It may have given out jobs before it hears of these, and have other contents of them by
        // now.
        self.datasets.values_mut().for_each(|dataset| dataset.sure = false);
        let mut rest = entries.as_slice();
        for anew in std::iter::once(1).chain(std::iter::repeat(0)) {
            let (now, later) = rest.split_at(rest.len().min(DATASETS_LISTED_MAX));
            self.have(anew, now.to_vec(), out);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        self.want_lacking(out);
    }

    /// The connection is lost. What came stays.
    pub(in crate::worker) fn on_lost(&mut self, out: &mut Exchange) {
        self.told = false;
        self.asked.clear();
        self.stop_coming(out);
    }

    fn have(&self, anew: u8, datasets: Vec<DatasetEntry>, out: &mut Exchange) {
        if self.told {
            let message = Have {
                anew,
                budget: self.budget,
                used: self.used(),
                datasets: DatasetList::new(datasets),
            };
            out.push(OutFrame::message(Uuid::nil(), &message));
        }
    }

    fn say(
        &self,
        state: DatasetState,
        cache: &CacheId,
        digest: Digest,
        text: &str,
        out: &mut Exchange,
    ) {
        self.have(0, vec![entry(state, cache, digest, text)], out);
    }

    /// Bytes that the cache holds, and those that are about to come.
    fn used(&self) -> u64 {
        self.loads().iter().map(|load| load.bytes).fold(0, u64::saturating_add)
    }

    fn loads(&self) -> Vec<Load> {
        let datasets = self.datasets.iter().map(|(cache, dataset)| Load {
            what: What::Dataset(cache.clone()),
            bytes: dataset.contents.bytes(),
            pinned: self.is_used(cache) || dataset.seals.is_none(),
            last_use: dataset.last_use,
        });
        let parts = self.parts.iter().map(|(version, part)| Load {
            what: What::Part(*version),
            bytes: part.contents.bytes(),
            pinned: false,
            last_use: part.last_use,
        });
        let part = |version: Uuid, bytes: u64| Load {
            what: What::Part(version),
            bytes,
            pinned: true,
            last_use: SystemTime::UNIX_EPOCH,
        };
        let leaving = self.leaving.iter().map(|(version, bytes)| part(*version, *bytes));
        let coming = self.coming.iter().map(|(version, coming)| Load {
            pinned: coming.is_pinned(),
            ..part(*version, coming.reserved())
        });
        let putting = self.putting.iter().map(|(_, bytes)| part(Uuid::nil(), *bytes));
        datasets.chain(parts).chain(leaving).chain(coming).chain(putting).collect()
    }

    /// Makes room for `bytes` of a dataset before any of them move.
    pub(super) fn make_room(
        &mut self,
        cache: &CacheId,
        needs: u64,
        out: &mut Exchange,
    ) -> Result<(), String> {
        let gone = victims(self.loads(), self.budget, needs, cache)
            .map_err(|error: NoRoom| error.to_string())?;
        let mut freed = 0u64;
        for what in gone {
            match what {
                What::Dataset(victim) => {
                    freed +=
                        self.datasets.get(&victim).map_or(0, |dataset| dataset.contents.bytes());
                    self.drop_dataset(
                        &victim,
                        &format!("evicted to make room for {cache}"),
                        Going::GivenUp,
                        out,
                    );
                }
                What::Part(version) => {
                    freed += self.drop_part(version, out);
                }
            }
        }
        match self.disk.free_bytes() {
            Ok(free) if free.saturating_add(freed) < needs => Err(format!(
                "no room: needs {}, the file system of {} has {} left; free space there, or put a smaller dataset",
                ByteSize(needs),
                self.disk.root().display(),
                ByteSize(free)
            )),
            Ok(_) => Ok(()),
            Err(error) => Err(format!(
                "cannot read the free space of {}: {error}",
                self.disk.root().display()
            )),
        }
    }

    pub(super) fn drop_part(&mut self, version: Uuid, out: &mut Exchange) -> u64 {
        let bytes = match self.parts.remove(&version) {
            Some(part) => part.contents.bytes(),
            None => self.forget_coming(version, out),
        };
        self.remove_staged(version, bytes);
        bytes
    }

    pub(super) fn remove_staged(&mut self, version: Uuid, bytes: u64) {
        self.run_in_turn(version, move |disk| {
            if let Err(error) = disk.discard_staged(version) {
                warn!(%version, "cannot remove a partial dataset: {error}");
            }
            News::Discarded { version, bytes, gone: true }
        });
    }

    /// A dataset is not here any more.
    fn drop_dataset(&mut self, cache: &CacheId, text: &str, going: Going, out: &mut Exchange) {
        let Some(dataset) = self.datasets.remove(cache) else { return };
        info!(%cache, bytes = %ByteSize(dataset.contents.bytes()), "dropped a dataset: {text}");
        let version = dataset.version;
        let hidden = self.disk.hide(cache, version);
        if let Err(error) = &hidden {
            warn!(%cache, "cannot remove the link of a dataset: {error}");
        }
        match going == Going::Damaged && self.disk.unmake(cache, version).is_ok() {
            true => drop(self.parts.insert(version, Part::of(cache, dataset.contents.clone()))),
            false => self.discard(version, dataset.contents.bytes()),
        }
        self.asked.remove(cache);
        let digest = dataset.contents.digest();
        match going {
            Going::Damaged => self.say(DatasetState::Lost, cache, digest, text, out),
            Going::GivenUp => {
                self.given_up.insert(cache, digest, text);
                self.say(DatasetState::Gone, cache, digest, text, out);
            }
            // Without a digest: the same content may come back.
            Going::Released => self.say(DatasetState::Gone, cache, NO_DIGEST, text, out),
        }
    }

    pub(super) fn discard(&mut self, version: Uuid, bytes: u64) {
        self.run_in_turn(version, move |disk| {
            let gone = disk.discard(version).unwrap_or_else(|error| {
                warn!(%version, "cannot remove the files of a dataset: {error}");
                true
            });
            News::Discarded { version, bytes, gone }
        });
    }

    fn is_used(&self, cache: &CacheId) -> bool {
        self.is_needed(cache) || self.putting.as_ref().is_some_and(|(putting, _)| putting == cache)
    }

    /// A dataset is here.
    pub(super) fn arrived(&mut self, cache: &CacheId, out: &mut Exchange) {
        let Some(dataset) = self.datasets.get(cache) else { return };
        let (digest, sure) = (dataset.contents.digest(), dataset.sure);
        self.say(DatasetState::Held, cache, digest, "", out);
        if sure {
            self.asked.remove(cache);
            self.no_longer_lacking(cache);
        } else {
            // Its connection was lost meanwhile: the leader is to say on the new one that it
            // counts.
            self.want_if_lacking(cache, out);
        }
    }

    /// A dataset that was found at the start is as it should be. Jobs that wait for it may need
    /// another content of it by now: if the leader was asked, or has sent for that, they go on
    /// waiting.
    fn checked_first(&mut self, cache: &CacheId, out: &mut Exchange) {
        if let Some(dataset) = self.datasets.get(cache) {
            self.say(DatasetState::Held, cache, dataset.contents.digest(), "", out);
            // The last worker may have been killed before it had done that.
            self.sync_later(dataset.version, dataset.contents.clone());
        }
        self.answer_holds(cache, out);
        if !self.asked.contains(cache) && !self.is_coming(cache) {
            self.no_longer_lacking(cache);
        }
    }

    /// A dataset is here in place of the one that was.
    pub(super) fn put_in(
        &mut self,
        cache: &CacheId,
        version: Uuid,
        contents: Arc<Contents>,
        seals: Vec<Seal>,
        sure: bool,
    ) -> Option<Arc<Contents>> {
        let seals = Some(Arc::new(seals));
        let bytes = contents.bytes();
        let dataset = Dataset {
            version,
            contents: contents.clone(),
            seals,
            last_use: SystemTime::now(),
            doubtful: HashSet::new(),
            released: false,
            sure,
        };
        info!(%cache, %version, files = contents.files().len(), bytes = %ByteSize(bytes), "a dataset is here");
        self.given_up.remove(cache);
        let before = self.datasets.insert(cache.clone(), dataset);
        if let Some(before) = &before {
            self.discard(before.version, before.contents.bytes());
        }
        self.sync_later(version, contents);
        before.map(|dataset| dataset.contents)
    }

    /// Brings a dataset to the disk, if it is not known to be there.
    fn sync_later(&self, version: Uuid, contents: Arc<Contents>) {
        self.run(move |disk| {
            if disk.is_unsynced(version)
                && let Err(error) = disk.sync(version, &contents)
                && error.kind() != io::ErrorKind::NotFound
            {
                warn!(%version, "cannot sync a dataset: {error}");
            }
            News::Discarded { version: Uuid::nil(), bytes: 0, gone: true }
        });
    }

    /// Puts the link of a dataset back, if somebody changed it. Jobs do not need it.
    pub(super) fn mend_link(&self, cache: &CacheId) {
        let Some(dataset) = self.datasets.get(cache) else { return };
        // Its next version may be about to have it.
        if self.is_coming(cache) || self.putting.as_ref().is_some_and(|(other, _)| other == cache) {
            return;
        }
        if let Err(error) = self.disk.mend_link(cache, dataset.version) {
            warn!(%cache, "cannot restore the link of a dataset: {error}");
        }
    }

    /// The datasets that are here and checked, that of `cache` first.
    pub(super) fn donors(&self, cache: &CacheId) -> Vec<Donor> {
        let mut datasets: Vec<_> = self.datasets.iter().collect();
        datasets
            .sort_by_key(|(other, dataset)| (*other != cache, std::cmp::Reverse(dataset.last_use)));
        datasets
            .into_iter()
            .filter_map(|(_, dataset)| {
                let seals = dataset.seals.clone()?;
                Some(Donor { version: dataset.version, contents: dataset.contents.clone(), seals })
            })
            .collect()
    }

    /// The leader does not want a dataset to be held, or does not know one that was asked for.
    pub(in crate::worker) fn on_release(
        &mut self,
        version: Uuid,
        release: &Release,
        out: &mut Exchange,
    ) {
        let Ok(cache) = CacheId::parse(release.cache_id.as_str()) else { return };
        let meant = |found: Uuid| version.is_nil() || found == version;
        self.release_coming(&cache, version, out);
        if version.is_nil() {
            self.given_up.remove(&cache);
        }
        let is_unknown = release.reason == Reason::UNKNOWN;
        // What is here and the leader does not know, or cannot send any more, is as good as it was.
        if !is_unknown && self.datasets.get(&cache).is_some_and(|dataset| meant(dataset.version)) {
            self.release_dataset(&cache, out);
        }
        self.asked.remove(&cache);
        if is_unknown {
            // One that is being checked is waited for.
            if self.datasets.get(&cache).is_none_or(|dataset| dataset.seals.is_some()) {
                self.no_longer_lacking(&cache);
            }
        } else {
            self.want_if_lacking(&cache, out);
        }
    }

    /// A dataset goes, as soon as no job uses it.
    pub(super) fn release_dataset(&mut self, cache: &CacheId, out: &mut Exchange) {
        let is_used = self.is_used(cache);
        match self.datasets.get_mut(cache) {
            Some(dataset) if is_used && dataset.seals.is_some() => dataset.released = true,
            Some(_) => self.drop_dataset(cache, "released by the leader", Going::Released, out),
            None => {}
        }
    }

    /// The files of a dataset are to be checked.
    pub(in crate::worker) fn on_inspect(&mut self, question: Uuid, name: &str, out: &mut Exchange) {
        let known = CacheId::parse(name)
            .ok()
            .and_then(|cache| self.datasets.get(&cache).map(|dataset| (cache, dataset)));
        let Some((cache, dataset)) = known else {
            let result = CachePutResult::failed(name, "the dataset is not here");
            return out.push(ack(question, &result));
        };
        let (version, contents) = (dataset.version, dataset.contents.clone());
        self.run(move |disk| {
            let found = check(disk, version, &contents);
            News::Checked(Checked { cache, version, found, question: Some(question) })
        });
    }

    fn on_checked(&mut self, checked: Checked, out: &mut Exchange) {
        let Checked { cache, version, found, question } = checked;
        let answer = |result: CachePutResult, out: &mut Exchange| {
            out.out.extend(question.map(|question| ack(question, &result)));
        };
        let Some(dataset) =
            self.datasets.get_mut(&cache).filter(|dataset| dataset.version == version)
        else {
            return answer(
                CachePutResult::failed(cache.as_str(), "the dataset is no longer here"),
                out,
            );
        };
        let (why, going) = match found {
            Ok(seals) => {
                let files = seals.len();
                let first = dataset.seals.replace(Arc::new(seals)).is_none();
                self.mend_link(&cache);
                let status = CacheStatus::Ok;
                let message = format!("verified={files}");
                answer(
                    CachePutResult {
                        cache_id: cache.as_str().to_owned(),
                        status,
                        message,
                        worker: None,
                    },
                    out,
                );
                if first {
                    self.checked_first(&cache, out);
                }
                return;
            }
            Err(CheckError::Damaged(what)) => (format!("damaged: {what}"), Going::Damaged),
            Err(CheckError::Untrue(what)) => (what, Going::GivenUp),
            Err(CheckError::Io(error)) => (format!("cannot be read: {error}"), Going::Damaged),
        };
        answer(CachePutResult::failed(cache.as_str(), why.as_str()), out);
        self.drop_dataset(&cache, &why, going, out);
        if going == Going::GivenUp {
            self.give_back(&cache, &why);
            return self.refuse_holds(&cache, &why, out);
        }
        self.answer_holds(&cache, out);
        self.want_if_lacking(&cache, out);
    }

    /// A thread has done something.
    pub(in crate::worker) fn on_news(&mut self, news: News, out: &mut Exchange) {
        match news {
            News::Checked(checked) => self.on_checked(checked, out),
            News::ReadAgain(read) => self.on_read_again(read, out),
            News::Read { version, contents } => self.on_read(version, contents, out),
            News::Prepared { version, turn, staged } => {
                self.on_prepared(version, turn, staged, out)
            }
            News::Shown { version, seals } => self.on_shown(version, seals, out),
            News::Put(put) => self.on_stored(put, out),
            News::Discarded { version, bytes, gone } => match gone {
                true => drop(self.leaving.remove(&version)),
                false => drop(self.leaving.insert(version, bytes)),
            },
        }
        self.next_put(out);
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        self.disk.close();
    }
}

/// What stands for no digest.
const NO_DIGEST: Digest = Digest { kind: DigestKind::Sha256, bytes: [0; 32] };

fn entry(state: DatasetState, cache: &CacheId, digest: Digest, text: &str) -> DatasetEntry {
    // An id is far shorter than a name may be.
    let cache_id = Name::try_from(cache.as_str().to_owned()).unwrap_or_default();
    DatasetEntry { state, digest, cache_id, text: text.into() }
}

/// What became of a dataset, in the founding documents' words (T07).
pub(super) fn ack(corr_id: Uuid, result: &CachePutResult) -> OutFrame {
    let subject = format!("cache.ack.{}", result.cache_id);
    OutFrame { corr_id, subject, ..OutFrame::new(Kind::CacheAck, result.to_json()) }
}
