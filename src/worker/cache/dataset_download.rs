//! Downloads datasets: Hold, the manifest, then packs, until the dataset is complete and made
//! visible.
//!
//! Missing pieces are reported after the manifest and after each pack, when no other pack is open.
//! A lost connection ends the transfers; received pieces stay, in memory and on disk. Downloads the
//! leader does not resume are the first to be evicted.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use chunking::dataset::pack::Layout;
use chunking::limits::MANIFEST_BYTES_MAX;
use chunking::message::{
    Hold, HoldFlags, Lack, Lacking, Open, Pack, PieceList, Purpose, Reason, Verdict,
};
use chunking::{Digest, DigestKind, Ranges};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::CacheId;
use super::contents::Contents;
use super::manager::{Cache, News, Part, ack};
use super::pack::PackSink;
use super::seal::Seal;
use super::staged::Staged;
use crate::model::CachePutResult;
use crate::peer::OutFrame;
use crate::transfer::{MemorySink, ONLY, Opened, Turn, is_full, refusal};
use crate::units::ByteSize;
use crate::worker::exchange::{Exchange, Owner};
use crate::worker::limits::PACKS_ANNOUNCED_MAX;

/// A dataset on its way.
#[derive(Debug)]
pub(super) struct Coming {
    cache: CacheId,
    digest: Digest,
    committed: bool,
    /// Whether the leader has spoken of it on this connection.
    active: bool,
    phase: Phase,
    /// It goes as soon as it is visible.
    released: bool,
    /// Packs that were announced.
    packs: HashMap<Uuid, PieceList>,
}

/// How far it is.
#[derive(Debug)]
enum Phase {
    /// The same dataset is being checked here.
    Checking,
    /// The manifest is to come.
    Manifest,
    /// It is being read.
    Reading,
    /// Files are made, and what is here is looked for, in this turn.
    Preparing(Arc<Contents>, u64),
    Receiving(Arc<Staged>),
    /// All is here, and is being made visible.
    Showing(Arc<Contents>),
}

impl Coming {
    /// Bytes that are kept free for it.
    pub(super) fn reserved(&self) -> u64 {
        match &self.phase {
            Phase::Checking | Phase::Manifest | Phase::Reading => 0,
            Phase::Preparing(contents, _) | Phase::Showing(contents) => contents.bytes(),
            Phase::Receiving(staged) => staged.contents().bytes(),
        }
    }

    /// Whether it must stay.
    pub(super) fn is_pinned(&self) -> bool {
        match &self.phase {
            Phase::Receiving(_) | Phase::Manifest | Phase::Checking => self.active,
            Phase::Reading | Phase::Preparing(..) | Phase::Showing(_) => true,
        }
    }
}

/// What a transfer brings of a dataset: its manifest, or a pack.
#[derive(Debug)]
pub(in crate::worker) struct DatasetPart {
    version: Uuid,
    /// Where a manifest goes.
    manifest: Option<MemorySink>,
}

/// Whether a transfer brings something of a version.
fn is_of(owner: &Owner, version: Uuid) -> bool {
    matches!(owner, Owner::Dataset(part) if part.version == version)
}

impl Cache {
    /// Whether a dataset is on its way, and the leader sends it.
    pub(super) fn is_coming(&self, cache: &CacheId) -> bool {
        self.coming.values().any(|coming| coming.cache == *cache && coming.active)
    }

    /// A version is to be held.
    pub(in crate::worker) fn on_hold(&mut self, version: Uuid, hold: &Hold, out: &mut Exchange) {
        let committed = hold.flags.has(HoldFlags::COMMITTED);
        let cache = match CacheId::parse(hold.cache_id.as_str()) {
            Ok(cache) => cache,
            Err(error) => {
                let result = CachePutResult::failed(hold.cache_id.as_str(), error.to_string());
                return out.push(ack(version, &result));
            }
        };
        if committed {
            // The leader asks, and knows what it asks for: if it is cut off it is to ask again.
            self.given_up.remove(&cache);
        }
        if let Some(coming) = self.coming.get_mut(&version) {
            coming.committed |= committed;
            let again = std::mem::replace(&mut coming.active, true);
            coming.released = false;
            if committed {
                self.supersede(version, &cache, None, out);
            }
            self.show_if_whole(version);
            // On a new connection its manifest is opened next, and what lacks is the answer to
            // that.
            if again {
                self.say_lack(version, out);
            }
            return;
        }
        if committed {
            self.supersede(version, &cache, Some(hold.digest), out);
        }
        let coming = |phase| Coming {
            cache: cache.clone(),
            digest: hold.digest,
            committed,
            active: true,
            phase,
            released: false,
            packs: HashMap::new(),
        };
        if let Some(dataset) = self.datasets.get_mut(&cache)
            && dataset.contents.digest() == hold.digest
        {
            dataset.unrelease();
            let is_checked = dataset.seals.is_some();
            self.supersede(version, &cache, None, out);
            match is_checked {
                true => {
                    self.say_present(version, &cache, out);
                    self.confirmed(&cache, out);
                }
                false => drop(self.coming.insert(version, coming(Phase::Checking))),
            }
            return;
        }
        // What is in the place of a dataset's own link is in nobody's way.
        self.mend_link(&cache);
        if let Err(error) = self.disk.before(&cache) {
            self.give_back(&cache, &error.to_string());
            return out
                .push(ack(version, &CachePutResult::failed(cache.as_str(), error.to_string())));
        }
        // What came in an earlier try has its manifest beside it.
        let part = self.parts.remove(&version).map(|part| part.contents);
        let known = part.as_ref().filter(|contents| contents.digest() == hold.digest);
        let contents = known.cloned().or_else(|| self.adopt(version, &cache, hold.digest, out));
        if let (None, Some(contents)) = (&contents, &part) {
            self.remove_staged(version, contents.bytes());
        }
        self.coming.insert(version, coming(Phase::Manifest));
        if let Some(contents) = contents {
            self.prepare(version, contents, out);
        }
    }

    /// A put of the same content that was cut off, and is given again, is another version: takes
    /// what came of the first.
    fn adopt(
        &mut self,
        version: Uuid,
        cache: &CacheId,
        digest: Digest,
        out: &mut Exchange,
    ) -> Option<Arc<Contents>> {
        let parts = self.parts.iter().map(|(other, part)| (*other, &part.cache, &part.contents));
        let parts = parts.filter(|(_, of, _)| of.as_ref().is_none_or(|of| of == cache));
        let part = parts.map(|(other, _, contents)| (other, contents.clone()));
        let stopped =
            self.coming.iter().filter(|(_, coming)| coming.cache == *cache && !coming.active);
        let stopped = stopped.filter_map(|(other, coming)| match &coming.phase {
            Phase::Receiving(staged) => Some((*other, staged.contents().clone())),
            Phase::Checking
            | Phase::Manifest
            | Phase::Reading
            | Phase::Preparing(..)
            | Phase::Showing(_) => None,
        });
        let (other, contents) = part
            .chain(stopped)
            .find(|(other, contents)| *other != version && contents.digest() == digest)?;
        if let Err(error) = self.disk.adopt(other, version) {
            debug!(%cache, version = %other, "what came of a dataset is of no use: {error}");
            return None;
        }
        self.parts.remove(&other);
        self.forget_coming(other, out);
        Some(contents)
    }

    /// A version counts: another of the same dataset that is still on its way, or of which
    /// something came, does not any more; except for what has the same content, while that may
    /// still be of use.
    fn supersede(
        &mut self,
        version: Uuid,
        cache: &CacheId,
        except: Option<Digest>,
        out: &mut Exchange,
    ) {
        let older = |other: Uuid, coming: &Coming| {
            let of_use = !coming.active && Some(coming.digest) == except;
            other != version
                && coming.cache == *cache
                && !matches!(coming.phase, Phase::Showing(_))
                && !of_use
        };
        let coming = self.coming.iter().filter(|(other, coming)| older(**other, coming));
        let parts = self.parts.iter().filter(|(other, part)| {
            let of_use = Some(part.contents.digest()) == except;
            **other != version && part.cache.as_ref() == Some(cache) && !of_use
        });
        let older: Vec<Uuid> =
            coming.map(|(other, _)| *other).chain(parts.map(|(other, _)| *other)).collect();
        for other in older {
            debug!(%cache, version = %other, "a newer version takes its place");
            self.drop_part(other, out);
        }
    }

    fn say_present(&self, version: Uuid, cache: &CacheId, out: &mut Exchange) {
        let files = self.datasets.get(cache).map_or(0, |dataset| dataset.contents.files().len());
        out.push(ack(version, &CachePutResult::stored(cache.as_str(), 0, files as u64)));
    }

    /// The versions that are to be held and wait until a dataset is checked.
    fn holds_of(&self, cache: &CacheId) -> Vec<Uuid> {
        let waits =
            |coming: &Coming| coming.cache == *cache && matches!(coming.phase, Phase::Checking);
        let holds = self.coming.iter().filter(|(_, coming)| waits(coming));
        holds.map(|(version, _)| *version).collect()
    }

    /// A dataset was checked, and its content is not what it is said to be: it is not asked for
    /// again.
    pub(super) fn refuse_holds(&mut self, cache: &CacheId, text: &str, out: &mut Exchange) {
        for version in self.holds_of(cache) {
            self.fail(version, text, out);
        }
    }

    /// A dataset was checked: who asked for its content meanwhile is answered.
    pub(super) fn answer_holds(&mut self, cache: &CacheId, out: &mut Exchange) {
        for version in self.holds_of(cache) {
            match self.datasets.contains_key(cache) {
                true => {
                    self.coming.remove(&version);
                    self.say_present(version, cache, out);
                    self.confirmed(cache, out);
                }
                // It was damaged: what is right of it may be of use, if it is the same version.
                false => {
                    let part = self.parts.remove(&version).map(|part| part.contents);
                    if let Some(coming) = self.coming.get_mut(&version) {
                        coming.phase = Phase::Manifest;
                    }
                    match part {
                        Some(contents) => self.prepare(version, contents, out),
                        None => out.push(OutFrame::message(
                            version,
                            &Lack { what: Lacking::Manifest, bytes: 0, pieces: Ranges::default() },
                        )),
                    }
                }
            }
        }
    }

    /// Makes room and files for a dataset whose contents are known.
    fn prepare(&mut self, version: Uuid, contents: Arc<Contents>, out: &mut Exchange) {
        let Some(cache) = self.coming.get(&version).map(|coming| coming.cache.clone()) else {
            return;
        };
        // A dataset that holds much of it already shares its files with it; that much more room is
        // asked for than is used.
        if let Err(text) = self.make_room(&cache, contents.bytes(), out) {
            if self.disk.staging_path(version).exists() {
                self.parts.insert(version, Part::of(&cache, contents));
            }
            return self.fail(version, &text, out);
        }
        let donors = self.donors(&cache);
        let turn = self.turn;
        if let Some(coming) = self.coming.get_mut(&version) {
            coming.phase = Phase::Preparing(contents.clone(), turn);
        }
        self.run_in_turn(version, move |disk| {
            let prepare = || {
                disk.name_staged(&cache, version)?;
                Staged::prepare(disk, version, contents.clone(), &donors)
            };
            let staged = prepare().or_else(|error| match is_of_shape(&error) {
                // What came of it is in such a state that no file fits in: it is begun anew.
                true => disk.discard_staged(version).and_then(|()| prepare()),
                false => Err(error),
            });
            News::Prepared { version, turn, staged: staged.map(Arc::new) }
        });
    }

    /// A dataset cannot be held; what came of it stays for another try.
    fn fail(&mut self, version: Uuid, text: &str, out: &mut Exchange) {
        let Some(coming) = self.coming.remove(&version) else { return };
        warn!(cache = %coming.cache, %version, "a dataset cannot be held: {text}");
        out.downloads.retain(|_, owner| !is_of(owner, version));
        let contents = match coming.phase {
            Phase::Preparing(contents, _) | Phase::Showing(contents) => Some(contents),
            Phase::Receiving(staged) => Some(staged.contents().clone()),
            Phase::Checking | Phase::Manifest | Phase::Reading => None,
        };
        if let Some(contents) = contents {
            self.parts.insert(version, Part::of(&coming.cache, contents));
        }
        out.push(ack(version, &CachePutResult::failed(coming.cache.as_str(), text)));
        self.give_back(&coming.cache, text);
    }

    /// A dataset that comes makes room for another; gives the bytes that were kept free for it.
    pub(super) fn forget_coming(&mut self, version: Uuid, out: &mut Exchange) -> u64 {
        out.downloads.retain(|_, owner| !is_of(owner, version));
        let reserved = self.coming.remove(&version).map_or(0, |coming| coming.reserved());
        if self.coming.is_empty() {
            out.downloads.forget_parts();
        }
        reserved
    }

    /// The leader takes a dataset back that is on its way.
    pub(super) fn release_coming(&mut self, cache: &CacheId, version: Uuid, out: &mut Exchange) {
        let meant = |found: Uuid, coming: &Coming| {
            coming.cache == *cache && (version.is_nil() || found == version)
        };
        let found: Vec<Uuid> = self
            .coming
            .iter()
            .filter(|(found, coming)| meant(**found, coming))
            .map(|(found, _)| *found)
            .collect();
        for version in found {
            match self.coming.get_mut(&version) {
                Some(coming) if matches!(coming.phase, Phase::Showing(_)) => coming.released = true,
                Some(_) | None => {
                    let bytes = self.forget_coming(version, out);
                    self.remove_staged(version, bytes);
                }
            }
        }
        let meant = |found: Uuid, part: &Part| {
            found == version || version.is_nil() && part.cache.as_ref() == Some(cache)
        };
        let parts = self.parts.iter().filter(|(found, part)| meant(**found, part));
        for version in parts.map(|(found, _)| *found).collect::<Vec<_>>() {
            self.drop_part(version, out);
        }
    }

    /// The connection is lost.
    pub(super) fn stop_coming(&mut self, out: &mut Exchange) {
        out.downloads.interrupt(|owner| matches!(owner, Owner::Dataset(_)));
        self.coming.retain(|_, coming| {
            coming.active = false;
            coming.packs.clear();
            !matches!(coming.phase, Phase::Manifest | Phase::Checking)
        });
    }

    /// A pack is about to be opened.
    pub(in crate::worker) fn on_pack(&mut self, pack: Uuid, version: Uuid, list: Pack) {
        if let Some(coming) = self.coming.get_mut(&version)
            && coming.packs.len() < PACKS_ANNOUNCED_MAX
        {
            coming.packs.insert(pack, list.pieces);
        }
    }

    /// A transfer of a dataset opens.
    pub(in crate::worker) fn on_open(&mut self, id: Uuid, open: Open, out: &mut Exchange) {
        debug_assert_eq!(open.purpose, Purpose::Dataset);
        let version = open.owner;
        let Some(open) = out.downloads.reopen(ONLY, id, open, &mut out.out) else { return };
        let opened = match id == version {
            true => self.open_manifest(id, open, out),
            false => self.open_pack(id, open),
        };
        let taken = match opened {
            Ok(Some(opened)) => {
                out.start(opened).map_err(|error| (error.reason(), error.to_string()))
            }
            Ok(None) => Ok(()),
            Err(refused) => Err(refused),
        };
        if let Err((reason, text)) = taken {
            debug!(transfer = %id, "refused a transfer of a dataset: {text}");
            out.push(refusal(id, reason, text));
        }
    }

    fn open_manifest(
        &mut self,
        version: Uuid,
        open: Open,
        out: &mut Exchange,
    ) -> Result<Option<Opened<Owner>>, (Reason, String)> {
        let Some(coming) = self.coming.get(&version) else {
            // It is here, or was refused, and the leader knows that by now.
            out.push(OutFrame::message(version, &Verdict::Ok));
            return Ok(None);
        };
        match coming.phase {
            Phase::Manifest => {}
            Phase::Checking | Phase::Reading | Phase::Preparing(..) | Phase::Showing(_) => {
                out.push(OutFrame::message(version, &Verdict::Ok));
                return Ok(None);
            }
            Phase::Receiving(_) => {
                out.push(OutFrame::message(version, &Verdict::Ok));
                self.say_lack(version, out);
                return Ok(None);
            }
        }
        if open.size > MANIFEST_BYTES_MAX {
            let text = format!(
                "a manifest of {} bytes; at most {MANIFEST_BYTES_MAX} are taken",
                open.size
            );
            return Err((Reason::TOO_LARGE, text));
        }
        let sink = MemorySink::default();
        let owner = Owner::Dataset(DatasetPart { version, manifest: Some(sink.clone()) });
        let sink = Box::new(sink);
        Ok(Some(Opened { id: version, open, owner, on: ONLY, sink, not_needed: None }))
    }

    fn open_pack(
        &mut self,
        id: Uuid,
        open: Open,
    ) -> Result<Option<Opened<Owner>>, (Reason, String)> {
        let version = open.owner;
        let unknown = |text: String| (Reason::UNKNOWN, text);
        let Some(coming) = self.coming.get_mut(&version) else {
            return Err(unknown(format!(
                "no download of dataset version {version} is under way here"
            )));
        };
        let Phase::Receiving(staged) = &coming.phase else {
            return Err(unknown(format!("the dataset {} is not ready for packs", coming.cache)));
        };
        let Some(list) = coming.packs.remove(&id) else {
            return Err(unknown(format!("pack {id} was opened before its list of pieces")));
        };
        let invalid = |text: String| (Reason::INVALID, text);
        let layout =
            Layout::new(list.as_slice().to_vec()).map_err(|error| invalid(error.to_string()))?;
        if layout.size() != open.size || open.digest != DigestKind::ChunkList {
            let text = format!(
                "pack {id} has {} bytes and a digest {}; expected {} bytes and a digest {}",
                open.size,
                open.digest,
                layout.size(),
                DigestKind::ChunkList
            );
            return Err(invalid(text));
        }
        let pieces: Vec<Option<u32>> =
            layout.pieces().iter().map(|piece| staged.find(piece)).collect();
        let place = format!("for the dataset {}", coming.cache);
        let sink = PackSink::new(staged.clone(), layout, pieces, place);
        let not_needed = sink
            .not_needed(open.size, open.chunk_bytes)
            .map_err(|error| invalid(error.to_string()))?;
        let (owner, sink) =
            (Owner::Dataset(DatasetPart { version, manifest: None }), Box::new(sink));
        Ok(Some(Opened { id, open, owner, on: ONLY, sink, not_needed: Some(not_needed) }))
    }

    /// A frame of a transfer led to something.
    pub(in crate::worker) fn on_turn(&mut self, id: Uuid, turn: Turn, out: &mut Exchange) {
        if matches!(turn, Turn::Unknown | Turn::Nothing) {
            return;
        }
        let Some((Owner::Dataset(DatasetPart { version, manifest }), _)) = out.downloads.remove(id)
        else {
            return;
        };
        match turn {
            Turn::Unknown | Turn::Nothing => {}
            Turn::Failed(text) => self.fail(version, &text, out),
            // What came of it stays.
            Turn::Ended(abort) => {
                debug!(transfer = %id, "the leader ends a transfer of a dataset: {}", abort.text);
                self.say_lack(version, out);
            }
            Turn::Whole => match manifest {
                Some(manifest) => self.read_manifest(version, manifest.take()),
                None => {
                    self.say_lack(version, out);
                    self.show_if_whole(version);
                }
            },
        }
    }

    fn read_manifest(&mut self, version: Uuid, bytes: Vec<u8>) {
        let Some(coming) = self.coming.get_mut(&version) else { return };
        coming.phase = Phase::Reading;
        let expected = coming.digest;
        self.run(move |_| {
            let contents =
                Contents::read(&bytes, Some(expected)).map_err(|error| error.to_string());
            News::Read { version, contents }
        });
    }

    pub(super) fn on_read(
        &mut self,
        version: Uuid,
        contents: Result<Contents, String>,
        out: &mut Exchange,
    ) {
        match contents {
            Ok(contents) => self.prepare(version, Arc::new(contents), out),
            Err(text) => self.fail(version, &text, out),
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        version: Uuid,
        turn: u64,
        staged: io::Result<Arc<Staged>>,
        out: &mut Exchange,
    ) {
        let is_it = |coming: &&mut Coming| matches!(coming.phase, Phase::Preparing(_, begun) if begun == turn);
        // If it was taken back meanwhile, removing it is next, and then what was begun after that.
        let Some(coming) = self.coming.get_mut(&version).filter(is_it) else { return };
        match staged {
            Ok(staged) => {
                let (_, lacking) = staged.lacking();
                info!(cache = %coming.cache, %version, bytes = %ByteSize(staged.contents().bytes()),
                    lacking = %ByteSize(lacking), "a dataset comes");
                coming.phase = Phase::Receiving(staged);
                if coming.active {
                    self.say_lack(version, out);
                    self.show_if_whole(version);
                }
            }
            Err(error) => {
                let next_step = if is_full(&error) { ": free space there" } else { "" };
                let text = format!(
                    "cannot make the files of the dataset in {}: {error}{next_step}",
                    self.directory().display()
                );
                self.fail(version, &text, out);
            }
        }
    }

    /// Says what lacks, unless some of it is being sent.
    fn say_lack(&self, version: Uuid, out: &mut Exchange) {
        let Some(Phase::Receiving(staged)) = self.coming.get(&version).map(|coming| &coming.phase)
        else {
            return;
        };
        if out.downloads.iter().any(|(_, owner, _)| is_of(owner, version)) {
            return;
        }
        let (pieces, bytes) = staged.lacking();
        let what = if staged.is_whole() { Lacking::Nothing } else { Lacking::Pieces };
        out.push(OutFrame::message(version, &Lack { what, bytes, pieces }));
    }

    fn show_if_whole(&mut self, version: Uuid) {
        let Some(coming) = self.coming.get_mut(&version) else { return };
        let Phase::Receiving(staged) = &coming.phase else { return };
        if !coming.committed || !staged.is_whole() {
            return;
        }
        let (staged, cache) = (staged.clone(), coming.cache.clone());
        coming.phase = Phase::Showing(staged.contents().clone());
        self.run_in_turn(version, move |disk| {
            let shown = staged.show(disk, &cache);
            News::Shown { version, seals: shown.map(|(seals, _)| seals) }
        });
    }

    pub(super) fn on_shown(
        &mut self,
        version: Uuid,
        seals: io::Result<Vec<Seal>>,
        out: &mut Exchange,
    ) {
        let seals = match seals {
            Ok(seals) => seals,
            Err(error) => {
                return self.fail(
                    version,
                    &format!("cannot make the dataset visible: {error}"),
                    out,
                );
            }
        };
        let Some(Coming { cache, phase: Phase::Showing(contents), released, active, .. }) =
            self.coming.remove(&version)
        else {
            return;
        };
        let before = self.put_in(&cache, version, contents.clone(), seals, active);
        let kept = contents.files().filter(|(_, entry)| {
            let same = before
                .as_ref()
                .and_then(|before| before.find(&entry.name).and_then(|at| before.file(at)));
            same.is_some_and(|(_, other)| other.sha256 == entry.sha256)
        });
        let skipped = kept.count() as u64;
        let added = contents.files().len() as u64 - skipped;
        self.arrived(&cache, out);
        out.push(ack(version, &CachePutResult::stored(cache.as_str(), added, skipped)));
        if released {
            self.release_dataset(&cache, out);
        }
    }
}

/// Whether a file cannot be made since something else is in its place, or in that of a folder.
fn is_of_shape(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}
