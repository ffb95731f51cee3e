//! Sets on their way here: Hold, the manifest, packs, until the set is whole, may be shown, and is.
//!
//! The pieces that lack are said after the manifest and after each pack, when no other pack is open. A lost connection ends the
//! transfers; pieces that came stay, in memory and on the disk. What the leader does not come back to makes room for others first.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use chunking::dataset::pack::Layout;
use chunking::limits::MANIFEST_BYTES_MAX;
use chunking::message::{Hold, HoldFlags, Lack, Lacking, Open, Pack, PieceList, Purpose, Reason, Verdict};
use chunking::{Digest, DigestKind, Ranges};
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::CacheId;
use super::contents::Contents;
use super::keeper::{Cache, News, Part, ack};
use super::pack::PackSink;
use super::seal::Seal;
use super::staged::Staged;
use crate::model::CachePutResult;
use crate::peer::OutFrame;
use crate::transfer::{MemorySink, ONLY, Opened, Turn, is_full, refusal};
use crate::units::ByteSize;
use crate::worker::exchange::{Exchange, Owner};
use crate::worker::limits::PACKS_ANNOUNCED_MAX;

/// A set on its way.
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
    /// The same set is being checked here.
    Checking,
    /// The manifest is to come.
    Manifest,
    /// It is being read.
    Reading,
    /// Files are made, and what is here is looked for, in this turn.
    Preparing(Arc<Contents>, u64),
    /// Pieces come.
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

/// What a transfer brings of a set: its manifest, or a pack.
#[derive(Debug)]
pub(in crate::worker) struct SetPart {
    generation: Uuid,
    /// Where a manifest goes.
    manifest: Option<MemorySink>,
}

/// Whether a transfer brings something of a generation.
fn is_of(owner: &Owner, generation: Uuid) -> bool {
    matches!(owner, Owner::Set(part) if part.generation == generation)
}

impl Cache {
    /// Whether a set is on its way, and the leader sends it.
    pub(super) fn is_coming(&self, cache: &CacheId) -> bool {
        self.coming.values().any(|coming| coming.cache == *cache && coming.active)
    }

    /// A generation is to be held.
    pub(in crate::worker) fn on_hold(&mut self, generation: Uuid, hold: &Hold, out: &mut Exchange) {
        let committed = hold.flags.has(HoldFlags::COMMITTED);
        let cache = match CacheId::parse(hold.cache_id.as_str()) {
            Ok(cache) => cache,
            Err(error) => {
                let result = CachePutResult::failed(hold.cache_id.as_str(), error.to_string());
                return out.push(ack(generation, &result));
            }
        };
        if committed {
            // The leader asks, and knows what it asks for: if it is cut off it is to ask again.
            self.given_up.remove(&cache);
        }
        if let Some(coming) = self.coming.get_mut(&generation) {
            coming.committed |= committed;
            let again = std::mem::replace(&mut coming.active, true);
            coming.released = false;
            if committed {
                self.supersede(generation, &cache, None, out);
            }
            self.show_if_whole(generation);
            // On a new connection its manifest is opened next, and what lacks is the answer to that.
            if again {
                self.say_lack(generation, out);
            }
            return;
        }
        if committed {
            self.supersede(generation, &cache, Some(hold.digest), out);
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
        if let Some(set) = self.sets.get_mut(&cache)
            && set.contents.digest() == hold.digest
        {
            set.unrelease();
            let is_checked = set.seals.is_some();
            self.supersede(generation, &cache, None, out);
            match is_checked {
                true => {
                    self.say_present(generation, &cache, out);
                    self.confirmed(&cache, out);
                }
                false => drop(self.coming.insert(generation, coming(Phase::Checking))),
            }
            return;
        }
        // What is in the place of a set's own link is in nobody's way.
        self.mend_link(&cache);
        if let Err(error) = self.disk.before(&cache) {
            self.give_back(&cache, &error.to_string());
            return out.push(ack(generation, &CachePutResult::failed(cache.as_str(), error.to_string())));
        }
        // What came in an earlier try has its manifest beside it.
        let part = self.parts.remove(&generation).map(|part| part.contents);
        let known = part.as_ref().filter(|contents| contents.digest() == hold.digest);
        let contents = known.cloned().or_else(|| self.adopt(generation, &cache, hold.digest, out));
        if let (None, Some(contents)) = (&contents, &part) {
            self.remove_staged(generation, contents.bytes());
        }
        self.coming.insert(generation, coming(Phase::Manifest));
        if let Some(contents) = contents {
            self.prepare(generation, contents, out);
        }
    }

    /// A put of the same content that was cut off, and is given again, is another generation: takes what came of the first.
    fn adopt(
        &mut self,
        generation: Uuid,
        cache: &CacheId,
        digest: Digest,
        out: &mut Exchange,
    ) -> Option<Arc<Contents>> {
        let parts = self.parts.iter().map(|(other, part)| (*other, &part.cache, &part.contents));
        let parts = parts.filter(|(_, of, _)| of.as_ref().is_none_or(|of| of == cache));
        let part = parts.map(|(other, _, contents)| (other, contents.clone()));
        let stopped = self.coming.iter().filter(|(_, coming)| coming.cache == *cache && !coming.active);
        let stopped = stopped.filter_map(|(other, coming)| match &coming.phase {
            Phase::Receiving(staged) => Some((*other, staged.contents().clone())),
            Phase::Checking | Phase::Manifest | Phase::Reading | Phase::Preparing(..) | Phase::Showing(_) => {
                None
            }
        });
        let (other, contents) = part
            .chain(stopped)
            .find(|(other, contents)| *other != generation && contents.digest() == digest)?;
        if let Err(error) = self.disk.adopt(other, generation) {
            debug!(%cache, generation = %other, "what came of a set is of no use: {error}");
            return None;
        }
        self.parts.remove(&other);
        self.forget_coming(other, out);
        Some(contents)
    }

    /// A generation counts: another of the same set that is still on its way, or of which something came, does not any more;
    /// except for what has the same content, while that may still be of use.
    fn supersede(&mut self, generation: Uuid, cache: &CacheId, except: Option<Digest>, out: &mut Exchange) {
        let older = |other: Uuid, coming: &Coming| {
            let of_use = !coming.active && Some(coming.digest) == except;
            other != generation
                && coming.cache == *cache
                && !matches!(coming.phase, Phase::Showing(_))
                && !of_use
        };
        let coming = self.coming.iter().filter(|(other, coming)| older(**other, coming));
        let parts = self.parts.iter().filter(|(other, part)| {
            let of_use = Some(part.contents.digest()) == except;
            **other != generation && part.cache.as_ref() == Some(cache) && !of_use
        });
        let older: Vec<Uuid> =
            coming.map(|(other, _)| *other).chain(parts.map(|(other, _)| *other)).collect();
        for other in older {
            debug!(%cache, generation = %other, "a newer generation takes its place");
            self.drop_part(other, out);
        }
    }

    fn say_present(&self, generation: Uuid, cache: &CacheId, out: &mut Exchange) {
        let files = self.sets.get(cache).map_or(0, |set| set.contents.files().len());
        out.push(ack(generation, &CachePutResult::stored(cache.as_str(), 0, files as u64)));
    }

    /// The generations that are to be held and wait until a set is checked.
    fn holds_of(&self, cache: &CacheId) -> Vec<Uuid> {
        let waits = |coming: &Coming| coming.cache == *cache && matches!(coming.phase, Phase::Checking);
        let holds = self.coming.iter().filter(|(_, coming)| waits(coming));
        holds.map(|(generation, _)| *generation).collect()
    }

    /// A set was checked, and its content is not what it is said to be: it is not asked for again.
    pub(super) fn refuse_holds(&mut self, cache: &CacheId, text: &str, out: &mut Exchange) {
        for generation in self.holds_of(cache) {
            self.fail(generation, text, out);
        }
    }

    /// A set was checked: who asked for its content meanwhile is answered.
    pub(super) fn answer_holds(&mut self, cache: &CacheId, out: &mut Exchange) {
        for generation in self.holds_of(cache) {
            match self.sets.contains_key(cache) {
                true => {
                    self.coming.remove(&generation);
                    self.say_present(generation, cache, out);
                    self.confirmed(cache, out);
                }
                // It was damaged: what is right of it may be of use, if it is the same generation.
                false => {
                    let part = self.parts.remove(&generation).map(|part| part.contents);
                    if let Some(coming) = self.coming.get_mut(&generation) {
                        coming.phase = Phase::Manifest;
                    }
                    match part {
                        Some(contents) => self.prepare(generation, contents, out),
                        None => out.push(OutFrame::message(
                            generation,
                            &Lack { what: Lacking::Manifest, bytes: 0, pieces: Ranges::default() },
                        )),
                    }
                }
            }
        }
    }

    /// Makes room and files for a set whose contents are known.
    fn prepare(&mut self, generation: Uuid, contents: Arc<Contents>, out: &mut Exchange) {
        let Some(cache) = self.coming.get(&generation).map(|coming| coming.cache.clone()) else { return };
        // A set that holds much of it already shares its files with it; that much more room is asked for than is used.
        if let Err(text) = self.make_room(&cache, contents.bytes(), out) {
            if self.disk.staging_path(generation).exists() {
                self.parts.insert(generation, Part::of(&cache, contents));
            }
            return self.fail(generation, &text, out);
        }
        let donors = self.donors(&cache);
        let turn = self.turn;
        if let Some(coming) = self.coming.get_mut(&generation) {
            coming.phase = Phase::Preparing(contents.clone(), turn);
        }
        self.run_in_turn(generation, move |disk| {
            let prepare = || {
                disk.name_staged(&cache, generation)?;
                Staged::prepare(disk, generation, contents.clone(), &donors)
            };
            let staged = prepare().or_else(|error| match is_of_shape(&error) {
                // What came of it is in such a state that no file fits in: it is begun anew.
                true => disk.discard_staged(generation).and_then(|()| prepare()),
                false => Err(error),
            });
            News::Prepared { generation, turn, staged: staged.map(Arc::new) }
        });
    }

    /// A set cannot be held; what came of it stays for another try.
    fn fail(&mut self, generation: Uuid, text: &str, out: &mut Exchange) {
        let Some(coming) = self.coming.remove(&generation) else { return };
        warn!(cache = %coming.cache, %generation, "a set cannot be held: {text}");
        out.downloads.retain(|_, owner| !is_of(owner, generation));
        let contents = match coming.phase {
            Phase::Preparing(contents, _) | Phase::Showing(contents) => Some(contents),
            Phase::Receiving(staged) => Some(staged.contents().clone()),
            Phase::Checking | Phase::Manifest | Phase::Reading => None,
        };
        if let Some(contents) = contents {
            self.parts.insert(generation, Part::of(&coming.cache, contents));
        }
        out.push(ack(generation, &CachePutResult::failed(coming.cache.as_str(), text)));
        self.give_back(&coming.cache, text);
    }

    /// A set that comes makes room for another; gives the bytes that were kept free for it.
    pub(super) fn forget_coming(&mut self, generation: Uuid, out: &mut Exchange) -> u64 {
        out.downloads.retain(|_, owner| !is_of(owner, generation));
        let reserved = self.coming.remove(&generation).map_or(0, |coming| coming.reserved());
        if self.coming.is_empty() {
            out.downloads.forget_parts();
        }
        reserved
    }

    /// The leader takes a set back that is on its way.
    pub(super) fn release_coming(&mut self, cache: &CacheId, generation: Uuid, out: &mut Exchange) {
        let meant = |found: Uuid, coming: &Coming| {
            coming.cache == *cache && (generation.is_nil() || found == generation)
        };
        let found: Vec<Uuid> = self
            .coming
            .iter()
            .filter(|(found, coming)| meant(**found, coming))
            .map(|(found, _)| *found)
            .collect();
        for generation in found {
            match self.coming.get_mut(&generation) {
                Some(coming) if matches!(coming.phase, Phase::Showing(_)) => coming.released = true,
                Some(_) | None => {
                    let bytes = self.forget_coming(generation, out);
                    self.remove_staged(generation, bytes);
                }
            }
        }
        let meant = |found: Uuid, part: &Part| {
            found == generation || generation.is_nil() && part.cache.as_ref() == Some(cache)
        };
        let parts = self.parts.iter().filter(|(found, part)| meant(**found, part));
        for generation in parts.map(|(found, _)| *found).collect::<Vec<_>>() {
            self.drop_part(generation, out);
        }
    }

    /// The connection is lost.
    pub(super) fn stop_coming(&mut self, out: &mut Exchange) {
        out.downloads.interrupt(|owner| matches!(owner, Owner::Set(_)));
        self.coming.retain(|_, coming| {
            coming.active = false;
            coming.packs.clear();
            !matches!(coming.phase, Phase::Manifest | Phase::Checking)
        });
    }

    /// A pack is about to be opened.
    pub(in crate::worker) fn on_pack(&mut self, pack: Uuid, generation: Uuid, list: Pack) {
        if let Some(coming) = self.coming.get_mut(&generation)
            && coming.packs.len() < PACKS_ANNOUNCED_MAX
        {
            coming.packs.insert(pack, list.pieces);
        }
    }

    /// A transfer of a dataset opens.
    pub(in crate::worker) fn on_open(&mut self, id: Uuid, open: Open, out: &mut Exchange) {
        debug_assert_eq!(open.purpose, Purpose::Dataset);
        let generation = open.owner;
        let Some(open) = out.downloads.reopen(ONLY, id, open, &mut out.out) else { return };
        let opened = match id == generation {
            true => self.open_manifest(id, open, out),
            false => self.open_pack(id, open),
        };
        let taken = match opened {
            Ok(Some(opened)) => out.start(opened).map_err(|error| (error.reason(), error.to_string())),
            Ok(None) => Ok(()),
            Err(refused) => Err(refused),
        };
        if let Err((reason, text)) = taken {
            debug!(transfer = %id, "a transfer of a set is not taken: {text}");
            out.push(refusal(id, reason, text));
        }
    }

    fn open_manifest(
        &mut self,
        generation: Uuid,
        open: Open,
        out: &mut Exchange,
    ) -> Result<Option<Opened<Owner>>, (Reason, String)> {
        let Some(coming) = self.coming.get(&generation) else {
            // It is here, or was refused, and the leader knows that by now.
            out.push(OutFrame::message(generation, &Verdict::Ok));
            return Ok(None);
        };
        match coming.phase {
            Phase::Manifest => {}
            Phase::Checking | Phase::Reading | Phase::Preparing(..) | Phase::Showing(_) => {
                out.push(OutFrame::message(generation, &Verdict::Ok));
                return Ok(None);
            }
            Phase::Receiving(_) => {
                out.push(OutFrame::message(generation, &Verdict::Ok));
                self.say_lack(generation, out);
                return Ok(None);
            }
        }
        if open.size > MANIFEST_BYTES_MAX {
            let text = format!("a manifest of {} bytes; at most {MANIFEST_BYTES_MAX} are taken", open.size);
            return Err((Reason::TOO_LARGE, text));
        }
        let sink = MemorySink::default();
        let owner = Owner::Set(SetPart { generation, manifest: Some(sink.clone()) });
        let sink = Box::new(sink);
        Ok(Some(Opened { id: generation, open, owner, on: ONLY, sink, not_needed: None }))
    }

    fn open_pack(&mut self, id: Uuid, open: Open) -> Result<Option<Opened<Owner>>, (Reason, String)> {
        let generation = open.owner;
        let unknown = |text: String| (Reason::UNKNOWN, text);
        let Some(coming) = self.coming.get_mut(&generation) else {
            return Err(unknown(format!("no set of generation {generation} is on its way here")));
        };
        let Phase::Receiving(staged) = &coming.phase else {
            return Err(unknown(format!("the set {} is not ready for packs", coming.cache)));
        };
        let Some(list) = coming.packs.remove(&id) else {
            return Err(unknown(format!("the pieces of pack {id} were not said before it was opened")));
        };
        let invalid = |text: String| (Reason::INVALID, text);
        let layout = Layout::new(list.as_slice().to_vec()).map_err(|error| invalid(error.to_string()))?;
        if layout.size() != open.size || open.digest != DigestKind::ChunkList {
            let text = format!(
                "pack {id} has {} bytes and a digest {}; its pieces make {} bytes, and the digest is to be {}",
                open.size,
                open.digest,
                layout.size(),
                DigestKind::ChunkList
            );
            return Err(invalid(text));
        }
        let pieces: Vec<Option<u32>> = layout.pieces().iter().map(|piece| staged.find(piece)).collect();
        let place = format!("for the set {}", coming.cache);
        let sink = PackSink::new(staged.clone(), layout, pieces, place);
        let not_needed =
            sink.not_needed(open.size, open.chunk_bytes).map_err(|error| invalid(error.to_string()))?;
        let (owner, sink) = (Owner::Set(SetPart { generation, manifest: None }), Box::new(sink));
        Ok(Some(Opened { id, open, owner, on: ONLY, sink, not_needed: Some(not_needed) }))
    }

    /// A frame of a transfer led to something.
    pub(in crate::worker) fn on_turn(&mut self, id: Uuid, turn: Turn, out: &mut Exchange) {
        if matches!(turn, Turn::Unknown | Turn::Nothing) {
            return;
        }
        let Some((Owner::Set(SetPart { generation, manifest }), _)) = out.downloads.remove(id) else {
            return;
        };
        match turn {
            Turn::Unknown | Turn::Nothing => {}
            Turn::Failed(text) => self.fail(generation, &text, out),
            // What came of it stays.
            Turn::Ended(abort) => {
                debug!(transfer = %id, "the leader ends a transfer of a set: {}", abort.text);
                self.say_lack(generation, out);
            }
            Turn::Whole => match manifest {
                Some(manifest) => self.read_manifest(generation, manifest.take()),
                None => {
                    self.say_lack(generation, out);
                    self.show_if_whole(generation);
                }
            },
        }
    }

    fn read_manifest(&mut self, generation: Uuid, bytes: Vec<u8>) {
        let Some(coming) = self.coming.get_mut(&generation) else { return };
        coming.phase = Phase::Reading;
        let expected = coming.digest;
        self.run(move |_| {
            let contents = Contents::read(&bytes, Some(expected)).map_err(|error| error.to_string());
            News::Read { generation, contents }
        });
    }

    pub(super) fn on_read(
        &mut self,
        generation: Uuid,
        contents: Result<Contents, String>,
        out: &mut Exchange,
    ) {
        match contents {
            Ok(contents) => self.prepare(generation, Arc::new(contents), out),
            Err(text) => self.fail(generation, &text, out),
        }
    }

    pub(super) fn on_prepared(
        &mut self,
        generation: Uuid,
        turn: u64,
        staged: io::Result<Arc<Staged>>,
        out: &mut Exchange,
    ) {
        let is_it =
            |coming: &&mut Coming| matches!(coming.phase, Phase::Preparing(_, begun) if begun == turn);
        // If it was taken back meanwhile, removing it is next, and then what was begun after that.
        let Some(coming) = self.coming.get_mut(&generation).filter(is_it) else { return };
        match staged {
            Ok(staged) => {
                let (_, lacking) = staged.lacking();
                info!(cache = %coming.cache, %generation, bytes = %ByteSize(staged.contents().bytes()),
                    lacking = %ByteSize(lacking), "a set comes");
                coming.phase = Phase::Receiving(staged);
                if coming.active {
                    self.say_lack(generation, out);
                    self.show_if_whole(generation);
                }
            }
            Err(error) => {
                let next_step = if is_full(&error) { ": free space there" } else { "" };
                let text = format!(
                    "cannot make the files of the set in {}: {error}{next_step}",
                    self.directory().display()
                );
                self.fail(generation, &text, out);
            }
        }
    }

    /// Says what lacks, unless some of it is being sent.
    fn say_lack(&self, generation: Uuid, out: &mut Exchange) {
        let Some(Phase::Receiving(staged)) = self.coming.get(&generation).map(|coming| &coming.phase) else {
            return;
        };
        if out.downloads.iter().any(|(_, owner, _)| is_of(owner, generation)) {
            return;
        }
        let (pieces, bytes) = staged.lacking();
        let what = if staged.is_whole() { Lacking::Nothing } else { Lacking::Pieces };
        out.push(OutFrame::message(generation, &Lack { what, bytes, pieces }));
    }

    fn show_if_whole(&mut self, generation: Uuid) {
        let Some(coming) = self.coming.get_mut(&generation) else { return };
        let Phase::Receiving(staged) = &coming.phase else { return };
        if !coming.committed || !staged.is_whole() {
            return;
        }
        let (staged, cache) = (staged.clone(), coming.cache.clone());
        coming.phase = Phase::Showing(staged.contents().clone());
        self.run_in_turn(generation, move |disk| {
            let shown = staged.show(disk, &cache);
            News::Shown { generation, seals: shown.map(|(seals, _)| seals) }
        });
    }

    pub(super) fn on_shown(&mut self, generation: Uuid, seals: io::Result<Vec<Seal>>, out: &mut Exchange) {
        let seals = match seals {
            Ok(seals) => seals,
            Err(error) => {
                return self.fail(generation, &format!("cannot make the set visible: {error}"), out);
            }
        };
        let Some(Coming { cache, phase: Phase::Showing(contents), released, active, .. }) =
            self.coming.remove(&generation)
        else {
            return;
        };
        let before = self.put_in(&cache, generation, contents.clone(), seals, active);
        let kept = contents.files().filter(|(_, entry)| {
            let same =
                before.as_ref().and_then(|before| before.find(&entry.name).and_then(|at| before.file(at)));
            same.is_some_and(|(_, other)| other.sha256 == entry.sha256)
        });
        let skipped = kept.count() as u64;
        let added = contents.files().len() as u64 - skipped;
        self.arrived(&cache, out);
        out.push(ack(generation, &CachePutResult::stored(cache.as_str(), added, skipped)));
        if released {
            self.release_set(&cache, out);
        }
    }
}

/// Whether a file cannot be made since something else is in its place, or in that of a folder.
fn is_of_shape(error: &io::Error) -> bool {
    use io::ErrorKind::{AlreadyExists, DirectoryNotEmpty, IsADirectory, NotADirectory};
    matches!(error.kind(), AlreadyExists | DirectoryNotEmpty | IsADirectory | NotADirectory)
        || error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error())
}
