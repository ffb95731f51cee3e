//! The sets that are here, and what the leader is told of them. The jobs that need them are in [`jobs`].
//!
//! It decides and never waits; the session calls it for each frame and each piece of [`News`] from its threads. A set is offered
//! once its digests were checked in this run of the worker.

mod jobs;

use std::collections::{HashMap, HashSet, VecDeque};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use chunking::limits::SETS_LISTED_MAX;
use chunking::message::{Have, Name, Reason, Release, SetEntry, SetList, SetState};
use chunking::{Digest, DigestKind, Kind};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tracing::{info, warn};
use uuid::Uuid;

use super::classic::{self, PutError, Stored};
use super::coming::Coming;
use super::contents::Contents;
use super::disk::Disk;
use super::given_up::GivenUp;
use super::link::LinkMode;
use super::room::{Load, NoRoom, What, victims};
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

/// A set that is here.
#[derive(Debug)]
pub(super) struct Set {
    pub(super) generation: Uuid,
    pub(super) contents: Arc<Contents>,
    /// What its files looked like when they were checked; nothing while they have not been.
    pub(super) seals: Option<Arc<Vec<Seal>>>,
    last_use: SystemTime,
    /// Files that are being read again before a job may use them.
    doubtful: HashSet<u32>,
    /// It goes when no job uses it any more.
    released: bool,
    /// Whether it came on this connection, or the leader has said on it that this is the content which counts.
    sure: bool,
}

impl Set {
    /// It is wanted after all.
    pub(super) fn unrelease(&mut self) {
        self.released = false;
    }
}

/// What has come of a set.
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

/// How a set goes.
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
    /// The files of a set were checked.
    Checked(Checked),
    /// Files of a set that may have changed were read again.
    ReadAgain(ReadAgain),
    /// A manifest was read.
    Read { generation: Uuid, contents: Result<Contents, String> },
    /// The files of a set are ready to be written.
    Prepared { generation: Uuid, turn: u64, staged: io::Result<Arc<Staged>> },
    /// A set is visible.
    Shown { generation: Uuid, seals: io::Result<Vec<Seal>> },
    /// A put of a stock leader is stored.
    Put(Put),
    /// A hidden set could be removed, or not yet.
    Discarded { generation: Uuid, bytes: u64, gone: bool },
}

/// The files of a set were checked.
#[derive(Debug)]
pub(in crate::worker) struct Checked {
    cache: CacheId,
    generation: Uuid,
    found: Result<Vec<Seal>, CheckError>,
    /// Who asked.
    question: Option<Uuid>,
}

/// A put of a stock leader is stored.
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
    pub(super) sets: HashMap<CacheId, Set>,
    /// What has come of sets that nobody sends at the moment.
    pub(super) parts: HashMap<Uuid, Part>,
    pub(super) given_up: GivenUp,
    /// Hidden, and still used by somebody.
    leaving: HashMap<Uuid, u64>,
    pub(super) coming: HashMap<Uuid, Coming>,
    jobs: HashMap<Uuid, Needs>,
    /// Sets that the leader was asked for.
    asked: HashSet<CacheId>,
    /// Whether the leader knows datasets.
    told: bool,
    puts: VecDeque<Waiting>,
    putting: Option<(CacheId, u64)>,
    steps: Vec<Step>,
    /// Where threads tell what they have done.
    news: mpsc::UnboundedSender<News>,
    /// What was last begun with the directories of a generation: the next waits for it.
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
    sets: HashMap<CacheId, Set>,
    parts: HashMap<Uuid, Part>,
    given_up: GivenUp,
}

impl Opened {
    /// Opens the directory, which no other worker may keep, and finds what is in it.
    pub(in crate::worker) fn open(config: &CacheConfig) -> io::Result<Self> {
        let disk = Disk::open(&config.directory)?;
        let loaded = disk.load().map_err(|error| {
            let text = format!("cannot read the cache directory {}: {error}", config.directory.display());
            io::Error::new(error.kind(), text)
        })?;
        let sets: HashMap<CacheId, Set> = loaded
            .sets
            .into_iter()
            .map(|(cache, found)| {
                let set = Set {
                    generation: found.generation,
                    contents: Arc::new(found.contents),
                    seals: None,
                    last_use: found.last_use,
                    doubtful: HashSet::new(),
                    released: false,
                    sure: false,
                };
                (cache, set)
            })
            .collect();
        let parts: HashMap<_, _> = loaded
            .staged
            .into_iter()
            .map(|found| {
                let (cache, contents, last_use) = (found.cache, Arc::new(found.contents), found.last_use);
                (found.generation, Part { cache, contents, last_use })
            })
            .collect();
        let held: u64 = sets.values().map(|set| set.contents.bytes()).sum();
        let staged: u64 = parts.values().map(|part| part.contents.bytes()).sum();
        let budget = match config.budget {
            Some(budget) => budget,
            None => disk.free_bytes()?.saturating_add(held).saturating_add(staged) / 2,
        };
        info!(directory = %config.directory.display(), sets = sets.len(), used = %ByteSize(held),
            budget = %ByteSize(budget), "cache");
        let given_up = GivenUp::load(disk.given_up_path(), |cache| sets.contains_key(cache));
        Ok(Opened { disk, budget, link: config.link, sets, parts, given_up })
    }

    /// Begins to use it. Threads report to `news`.
    pub(in crate::worker) fn start(self, news: mpsc::UnboundedSender<News>) -> Cache {
        let Opened { disk, budget, link, sets, parts, given_up } = self;
        let cache = Cache {
            disk: Arc::new(disk),
            given_up,
            budget,
            link,
            sets,
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
    /// Begins to check what was found, the sets that were used last first.
    fn check_found(&self) {
        let mut found: Vec<_> = self
            .sets
            .iter()
            .map(|(cache, set)| (set.last_use, cache.clone(), set.generation, set.contents.clone()))
            .collect();
        found.sort_by_key(|(last_use, ..)| std::cmp::Reverse(*last_use));
        let (disk, news) = (self.disk.clone(), self.news.clone());
        if found.is_empty() {
            return;
        }
        tokio::task::spawn_blocking(move || {
            for (_, cache, generation, contents) in found {
                let found = check(&disk, generation, &contents);
                if disk.is_closed()
                    || news.send(News::Checked(Checked { cache, generation, found, question: None })).is_err()
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

    /// Has something done with the directories of a generation, on a thread, after what was begun with them before.
    pub(super) fn run_in_turn(
        &mut self,
        generation: Uuid,
        work: impl FnOnce(&Disk) -> News + Send + 'static,
    ) {
        let (disk, news) = (self.disk.clone(), self.news.clone());
        let work = move || {
            // Nobody hears it when the worker has left.
            news.send(work(&disk)).ok();
        };
        self.turns.retain(|_, last| !last.is_finished());
        let task = match self.turns.remove(&generation) {
            None => tokio::task::spawn_blocking(work),
            Some(last) => tokio::spawn(async move {
                last.await.ok();
                tokio::task::spawn_blocking(work).await.ok();
            }),
        };
        self.turns.insert(generation, task);
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
        // First what is not to come back: the leader sends what it thinks lacks as soon as it has the first of these messages.
        let gone = self.given_up.iter().map(|one| entry(SetState::Gone, &one.cache, one.digest, &one.text));
        let checked = self.sets.iter().filter(|(_, set)| set.seals.is_some() && !set.released);
        let held = checked.map(|(cache, set)| entry(SetState::Held, cache, set.contents.digest(), ""));
        let entries: Vec<SetEntry> = gone.chain(held).collect();
        // It may have given out jobs before it hears of these, and have other contents of them by now.
        self.sets.values_mut().for_each(|set| set.sure = false);
        let mut rest = entries.as_slice();
        for anew in std::iter::once(1).chain(std::iter::repeat(0)) {
            let (now, later) = rest.split_at(rest.len().min(SETS_LISTED_MAX));
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

    fn have(&self, anew: u8, sets: Vec<SetEntry>, out: &mut Exchange) {
        if self.told {
            let message = Have { anew, budget: self.budget, used: self.used(), sets: SetList::new(sets) };
            out.push(OutFrame::message(Uuid::nil(), &message));
        }
    }

    fn say(&self, state: SetState, cache: &CacheId, digest: Digest, text: &str, out: &mut Exchange) {
        self.have(0, vec![entry(state, cache, digest, text)], out);
    }

    /// Bytes that the cache holds, and those that are about to come.
    fn used(&self) -> u64 {
        self.loads().iter().map(|load| load.bytes).fold(0, u64::saturating_add)
    }

    fn loads(&self) -> Vec<Load> {
        let sets = self.sets.iter().map(|(cache, set)| Load {
            what: What::Set(cache.clone()),
            bytes: set.contents.bytes(),
            pinned: self.is_used(cache) || set.seals.is_none(),
            last_use: set.last_use,
        });
        let parts = self.parts.iter().map(|(generation, part)| Load {
            what: What::Part(*generation),
            bytes: part.contents.bytes(),
            pinned: false,
            last_use: part.last_use,
        });
        let part = |generation: Uuid, bytes: u64| Load {
            what: What::Part(generation),
            bytes,
            pinned: true,
            last_use: SystemTime::UNIX_EPOCH,
        };
        let leaving = self.leaving.iter().map(|(generation, bytes)| part(*generation, *bytes));
        let coming = self.coming.iter().map(|(generation, coming)| Load {
            pinned: coming.is_pinned(),
            ..part(*generation, coming.reserved())
        });
        let putting = self.putting.iter().map(|(_, bytes)| part(Uuid::nil(), *bytes));
        sets.chain(parts).chain(leaving).chain(coming).chain(putting).collect()
    }

    /// Makes room for so many bytes of a set, before any of them move.
    pub(super) fn make_room(
        &mut self,
        cache: &CacheId,
        needs: u64,
        out: &mut Exchange,
    ) -> Result<(), String> {
        let gone =
            victims(self.loads(), self.budget, needs, cache).map_err(|error: NoRoom| error.to_string())?;
        let mut freed = 0u64;
        for what in gone {
            match what {
                What::Set(victim) => {
                    freed += self.sets.get(&victim).map_or(0, |set| set.contents.bytes());
                    self.drop_set(&victim, &format!("evicted to make room for {cache}"), Going::GivenUp, out);
                }
                What::Part(generation) => {
                    freed += self.drop_part(generation, out);
                }
            }
        }
        match self.disk.free_bytes() {
            Ok(free) if free.saturating_add(freed) < needs => Err(format!(
                "no room: needs {}, the file system of {} has {} left; free space there, or put a smaller set",
                ByteSize(needs),
                self.disk.root().display(),
                ByteSize(free)
            )),
            Ok(_) => Ok(()),
            Err(error) => {
                Err(format!("cannot tell how much room {} has: {error}", self.disk.root().display()))
            }
        }
    }

    pub(super) fn drop_part(&mut self, generation: Uuid, out: &mut Exchange) -> u64 {
        let bytes = match self.parts.remove(&generation) {
            Some(part) => part.contents.bytes(),
            None => self.forget_coming(generation, out),
        };
        self.remove_staged(generation, bytes);
        bytes
    }

    pub(super) fn remove_staged(&mut self, generation: Uuid, bytes: u64) {
        self.run_in_turn(generation, move |disk| {
            if let Err(error) = disk.discard_staged(generation) {
                warn!(%generation, "cannot remove what has come of a set: {error}");
            }
            News::Discarded { generation, bytes, gone: true }
        });
    }

    /// A set is not here any more.
    fn drop_set(&mut self, cache: &CacheId, text: &str, going: Going, out: &mut Exchange) {
        let Some(set) = self.sets.remove(cache) else { return };
        info!(%cache, bytes = %ByteSize(set.contents.bytes()), "dropped a set: {text}");
        let generation = set.generation;
        let hidden = self.disk.hide(cache, generation);
        if let Err(error) = &hidden {
            warn!(%cache, "cannot take the link of a set away: {error}");
        }
        match going == Going::Damaged && self.disk.unmake(cache, generation).is_ok() {
            true => drop(self.parts.insert(generation, Part::of(cache, set.contents.clone()))),
            false => self.discard(generation, set.contents.bytes()),
        }
        self.asked.remove(cache);
        let digest = set.contents.digest();
        match going {
            Going::Damaged => self.say(SetState::Lost, cache, digest, text, out),
            Going::GivenUp => {
                self.given_up.insert(cache, digest, text);
                self.say(SetState::Gone, cache, digest, text, out);
            }
            // Without a digest: the same content may come back.
            Going::Released => self.say(SetState::Gone, cache, NO_DIGEST, text, out),
        }
    }

    pub(super) fn discard(&mut self, generation: Uuid, bytes: u64) {
        self.run_in_turn(generation, move |disk| {
            let gone = disk.discard(generation).unwrap_or_else(|error| {
                warn!(%generation, "cannot remove the files of a set: {error}");
                true
            });
            News::Discarded { generation, bytes, gone }
        });
    }

    fn is_used(&self, cache: &CacheId) -> bool {
        self.is_needed(cache) || self.putting.as_ref().is_some_and(|(putting, _)| putting == cache)
    }

    /// A set is here.
    pub(super) fn arrived(&mut self, cache: &CacheId, out: &mut Exchange) {
        let Some(set) = self.sets.get(cache) else { return };
        let (digest, sure) = (set.contents.digest(), set.sure);
        self.say(SetState::Held, cache, digest, "", out);
        if sure {
            self.asked.remove(cache);
            self.no_longer_lacking(cache);
        } else {
            // Its connection was lost meanwhile: the leader is to say on the new one that it counts.
            self.want_if_lacking(cache, out);
        }
    }

    /// A set that was found at the start is as it should be. Jobs that wait for it may need another content of it by now: if the
    /// leader was asked, or has sent for that, they go on waiting.
    fn checked_first(&mut self, cache: &CacheId, out: &mut Exchange) {
        if let Some(set) = self.sets.get(cache) {
            self.say(SetState::Held, cache, set.contents.digest(), "", out);
            // The last worker may have been killed before it had done that.
            self.sync_later(set.generation, set.contents.clone());
        }
        self.answer_holds(cache, out);
        if !self.asked.contains(cache) && !self.is_coming(cache) {
            self.no_longer_lacking(cache);
        }
    }

    /// A set is here in place of the one that was.
    pub(super) fn put_in(
        &mut self,
        cache: &CacheId,
        generation: Uuid,
        contents: Arc<Contents>,
        seals: Vec<Seal>,
        sure: bool,
    ) -> Option<Arc<Contents>> {
        let seals = Some(Arc::new(seals));
        let bytes = contents.bytes();
        let set = Set {
            generation,
            contents: contents.clone(),
            seals,
            last_use: SystemTime::now(),
            doubtful: HashSet::new(),
            released: false,
            sure,
        };
        info!(%cache, %generation, files = contents.files().len(), bytes = %ByteSize(bytes), "a set is here");
        self.given_up.remove(cache);
        let before = self.sets.insert(cache.clone(), set);
        if let Some(before) = &before {
            self.discard(before.generation, before.contents.bytes());
        }
        self.sync_later(generation, contents);
        before.map(|set| set.contents)
    }

    /// Brings a set to the disk, if it is not known to be there.
    fn sync_later(&self, generation: Uuid, contents: Arc<Contents>) {
        self.run(move |disk| {
            if disk.is_unsynced(generation)
                && let Err(error) = disk.sync(generation, &contents)
                && error.kind() != io::ErrorKind::NotFound
            {
                warn!(%generation, "cannot bring a set to the disk: {error}");
            }
            News::Discarded { generation: Uuid::nil(), bytes: 0, gone: true }
        });
    }

    /// Puts the link of a set back, if somebody changed it. Jobs do not need it.
    pub(super) fn mend_link(&self, cache: &CacheId) {
        let Some(set) = self.sets.get(cache) else { return };
        // Its next version may be about to have it.
        if self.is_coming(cache) || self.putting.as_ref().is_some_and(|(other, _)| other == cache) {
            return;
        }
        if let Err(error) = self.disk.mend_link(cache, set.generation) {
            warn!(%cache, "cannot put the link of a set back: {error}");
        }
    }

    /// The sets that are here and checked, that of `cache` first.
    pub(super) fn donors(&self, cache: &CacheId) -> Vec<Donor> {
        let mut sets: Vec<_> = self.sets.iter().collect();
        sets.sort_by_key(|(other, set)| (*other != cache, std::cmp::Reverse(set.last_use)));
        sets.into_iter()
            .filter_map(|(_, set)| {
                let seals = set.seals.clone()?;
                Some(Donor { generation: set.generation, contents: set.contents.clone(), seals })
            })
            .collect()
    }

    /// The leader does not want a set to be held, or does not know one that was asked for.
    pub(in crate::worker) fn on_release(&mut self, generation: Uuid, release: &Release, out: &mut Exchange) {
        let Ok(cache) = CacheId::parse(release.cache_id.as_str()) else { return };
        let meant = |found: Uuid| generation.is_nil() || found == generation;
        self.release_coming(&cache, generation, out);
        if generation.is_nil() {
            self.given_up.remove(&cache);
        }
        let is_unknown = release.reason == Reason::UNKNOWN;
        // What is here and the leader does not know, or cannot send any more, is as good as it was.
        if !is_unknown && self.sets.get(&cache).is_some_and(|set| meant(set.generation)) {
            self.release_set(&cache, out);
        }
        self.asked.remove(&cache);
        if is_unknown {
            // One that is being checked is waited for.
            if self.sets.get(&cache).is_none_or(|set| set.seals.is_some()) {
                self.no_longer_lacking(&cache);
            }
        } else {
            self.want_if_lacking(&cache, out);
        }
    }

    /// A set goes, as soon as no job uses it.
    pub(super) fn release_set(&mut self, cache: &CacheId, out: &mut Exchange) {
        let is_used = self.is_used(cache);
        match self.sets.get_mut(cache) {
            Some(set) if is_used && set.seals.is_some() => set.released = true,
            Some(_) => self.drop_set(cache, "released by the leader", Going::Released, out),
            None => {}
        }
    }

    /// The files of a set are to be checked.
    pub(in crate::worker) fn on_inspect(&mut self, question: Uuid, name: &str, out: &mut Exchange) {
        let known = CacheId::parse(name).ok().and_then(|cache| self.sets.get(&cache).map(|set| (cache, set)));
        let Some((cache, set)) = known else {
            let result = CachePutResult::failed(name, "the set is not here");
            return out.push(ack(question, &result));
        };
        let (generation, contents) = (set.generation, set.contents.clone());
        self.run(move |disk| {
            let found = check(disk, generation, &contents);
            News::Checked(Checked { cache, generation, found, question: Some(question) })
        });
    }

    fn on_checked(&mut self, checked: Checked, out: &mut Exchange) {
        let Checked { cache, generation, found, question } = checked;
        let answer = |result: CachePutResult, out: &mut Exchange| {
            out.out.extend(question.map(|question| ack(question, &result)));
        };
        let Some(set) = self.sets.get_mut(&cache).filter(|set| set.generation == generation) else {
            return answer(CachePutResult::failed(cache.as_str(), "the set is not here any more"), out);
        };
        let (why, going) = match found {
            Ok(seals) => {
                let files = seals.len();
                let first = set.seals.replace(Arc::new(seals)).is_none();
                self.mend_link(&cache);
                let status = CacheStatus::Ok;
                let message = format!("verified={files}");
                answer(
                    CachePutResult { cache_id: cache.as_str().to_owned(), status, message, worker: None },
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
        self.drop_set(&cache, &why, going, out);
        if going == Going::GivenUp {
            self.give_back(&cache, &why);
            return self.refuse_holds(&cache, &why, out);
        }
        self.answer_holds(&cache, out);
        self.want_if_lacking(&cache, out);
    }

    /// A put of a stock leader came.
    pub(in crate::worker) fn on_put(&mut self, corr_id: Uuid, payload: &[u8], out: &mut Exchange) {
        let request = match CachePutRequest::parse(payload) {
            Ok(request) => request,
            Err(error) => return out.push(ack(corr_id, &CachePutResult::failed("", error.to_string()))),
        };
        let cache = match CacheId::parse(&request.cache_id) {
            Ok(cache) => cache,
            Err(error) => {
                let result = CachePutResult::failed(&request.cache_id, error.to_string());
                return out.push(ack(corr_id, &result));
            }
        };
        if self.puts.len() >= PUTS_WAITING_MAX {
            let text = format!("{PUTS_WAITING_MAX} puts wait here already: send it again later");
            return out.push(ack(corr_id, &CachePutResult::failed(cache.as_str(), text)));
        }
        self.puts.push_back(Waiting { cache, corr_id, request });
        self.next_put(out);
    }

    fn next_put(&mut self, out: &mut Exchange) {
        while self.putting.is_none() {
            let unchecked =
                |waiting: &Waiting| self.sets.get(&waiting.cache).is_some_and(|set| set.seals.is_none());
            // One whose set is being checked waits for that.
            let Some(at) = self.puts.iter().position(|waiting| !unchecked(waiting)) else { return };
            let Some(Waiting { cache, corr_id, request }) = self.puts.remove(at) else { return };
            let before =
                self.donors(&cache).into_iter().next().filter(|donor| {
                    self.sets.get(&cache).is_some_and(|set| set.generation == donor.generation)
                });
            let bytes = classic::new_bytes(&request, before.as_ref().map(|donor| &*donor.contents));
            // What is there is the base of the new set, and must not go for it.
            self.putting = Some((cache.clone(), 0));
            if let Err(text) = self.make_room(&cache, bytes, out) {
                self.putting = None;
                out.push(ack(corr_id, &CachePutResult::failed(cache.as_str(), text)));
                continue;
            }
            self.putting = Some((cache.clone(), bytes));
            self.run(move |disk| {
                let stored = classic::store(disk, &cache, &request, before.as_ref());
                News::Put(Put { cache, corr_id, stored })
            });
        }
    }

    fn on_stored(&mut self, put: Put, out: &mut Exchange) {
        self.putting = None;
        let Put { cache, corr_id, stored } = put;
        match stored {
            Ok(stored) => {
                let result = CachePutResult::stored(cache.as_str(), stored.added, stored.skipped);
                if let Some(made) = stored.set {
                    self.put_in(&cache, made.generation, made.contents, made.seals, true);
                    self.arrived(&cache, out);
                }
                out.push(ack(corr_id, &result));
            }
            Err(error) => {
                warn!(%cache, "a put failed: {error}");
                out.push(ack(corr_id, &CachePutResult::failed(cache.as_str(), error.to_string())));
            }
        }
    }

    /// A thread has done something.
    pub(in crate::worker) fn on_news(&mut self, news: News, out: &mut Exchange) {
        match news {
            News::Checked(checked) => self.on_checked(checked, out),
            News::ReadAgain(read) => self.on_read_again(read, out),
            News::Read { generation, contents } => self.on_read(generation, contents, out),
            News::Prepared { generation, turn, staged } => self.on_prepared(generation, turn, staged, out),
            News::Shown { generation, seals } => self.on_shown(generation, seals, out),
            News::Put(put) => self.on_stored(put, out),
            News::Discarded { generation, bytes, gone } => match gone {
                true => drop(self.leaving.remove(&generation)),
                false => drop(self.leaving.insert(generation, bytes)),
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

fn entry(state: SetState, cache: &CacheId, digest: Digest, text: &str) -> SetEntry {
    // An id is far shorter than a name may be.
    let cache_id = Name::try_from(cache.as_str().to_owned()).unwrap_or_default();
    SetEntry { state, digest, cache_id, text: text.into() }
}

/// What became of a set, in the founding documents' words (T07).
pub(super) fn ack(corr_id: Uuid, result: &CachePutResult) -> OutFrame {
    let subject = format!("cache.ack.{}", result.cache_id);
    OutFrame { corr_id, subject, ..OutFrame::new(Kind::CacheAck, result.to_json()) }
}
