//! The pack index: the leader's packs, the pieces in each, and the manifests, which are read on
//! demand.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use chunking::dataset::pack::Layout;
use chunking::dataset::{Manifest, Piece};
use chunking::{Bitmap, Ranges};
use uuid::Uuid;

use super::BlobId;
use crate::core::ids::Micros;

/// A manifest that was not needed for this long is dropped, and read again when it is needed.
const MANIFEST_REST: Duration = Duration::from_secs(60);

/// How far a pack is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PackState {
    /// Its list was said, by this request.
    Announced(Uuid),
    Coming(Uuid),
    /// It has come, and is being checked.
    Checking(Uuid),
    /// Every piece is what it should be.
    Good,
    /// It is one of a previous run, and its list is being read.
    Listing,
}

impl PackState {
    /// The put request of a pack that is still incomplete.
    pub(super) fn request(self) -> Option<Uuid> {
        match self {
            PackState::Announced(request) | PackState::Coming(request) => Some(request),
            PackState::Checking(_) | PackState::Good | PackState::Listing => None,
        }
    }
}

#[derive(Debug)]
struct Pack {
    layout: Arc<Layout>,
    state: PackState,
    used_at: Micros,
}

/// Bytes of manifests cached in memory. A single manifest may exceed it.
const MANIFESTS_KEPT_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// A manifest in memory.
#[derive(Debug)]
struct KeptManifest {
    manifest: Arc<Manifest>,
    /// Bytes that it has on the disk.
    bytes: u64,
    used_at: Micros,
}

/// The packs, pieces and manifests at the leader.
#[derive(Debug, Default)]
pub(super) struct PackIndex {
    packs: HashMap<BlobId, Pack>,
    /// Where pieces are that were checked.
    pieces: HashMap<Piece, BlobId>,
    /// Further packs that also contain the piece.
    also: HashMap<Piece, BTreeSet<BlobId>>,
    /// Where pieces will be.
    coming: HashMap<Piece, BlobId>,
    manifests: HashMap<BlobId, KeptManifest>,
    /// Manifests that are being read.
    reading: HashSet<BlobId>,
    /// Manifests of a previous run, and manifests that were read.
    known_manifests: HashSet<BlobId>,
}

impl PackIndex {
    /// Whether a blob is a pack, or a manifest that was read.
    pub(super) fn knows(&self, blob: BlobId) -> bool {
        self.packs.contains_key(&blob) || self.known_manifests.contains(&blob)
    }

    /// A pack of which only the list is known.
    pub(super) fn announce(
        &mut self,
        pack: BlobId,
        layout: Arc<Layout>,
        request: Uuid,
        now: Micros,
    ) {
        for piece in layout.pieces() {
            self.coming.insert(*piece, pack);
        }
        self.packs
            .insert(pack, Pack { layout, state: PackState::Announced(request), used_at: now });
    }

    /// A pack upload begins.
    pub(super) fn comes(&mut self, pack: BlobId) {
        if let Some(pack) = self.packs.get_mut(&pack)
            && let PackState::Announced(request) = pack.state
        {
            pack.state = PackState::Coming(request);
        }
    }

    /// A pack of a previous run.
    pub(super) fn restore(&mut self, pack: BlobId, now: Micros) {
        let layout = Arc::new(Layout::default());
        self.packs.insert(pack, Pack { layout, state: PackState::Listing, used_at: now });
    }

    /// A manifest of a previous run.
    pub(super) fn restore_manifest(&mut self, manifest: BlobId) {
        self.known_manifests.insert(manifest);
    }

    /// Whether lists of packs are still to be read: until then not all pieces are known.
    pub(super) fn is_listing(&self) -> bool {
        self.packs.values().any(|pack| pack.state == PackState::Listing)
    }

    /// A pack's list and state.
    pub(super) fn pack(&self, pack: BlobId) -> Option<(&Arc<Layout>, PackState)> {
        self.packs.get(&pack).map(|pack| (&pack.layout, pack.state))
    }

    /// A pack has come whole: gives its list, to be checked against.
    pub(super) fn check(&mut self, pack: BlobId) -> Option<Arc<Layout>> {
        let pack = self.packs.get_mut(&pack)?;
        pack.state = PackState::Checking(pack.state.request()?);
        Some(pack.layout.clone())
    }

    /// A pack was checked, or its list was read. Gives the request that it came by.
    pub(super) fn good(&mut self, id: BlobId, layout: Arc<Layout>, now: Micros) -> Option<Uuid> {
        let pack = self.packs.get_mut(&id)?;
        let request = match pack.state {
            PackState::Announced(request)
            | PackState::Coming(request)
            | PackState::Checking(request) => Some(request),
            PackState::Good | PackState::Listing => None,
        };
        (pack.layout, pack.state, pack.used_at) = (layout.clone(), PackState::Good, now);
        for piece in layout.pieces() {
            if self.coming.get(piece) == Some(&id) {
                self.coming.remove(piece);
            }
            if *self.pieces.entry(*piece).or_insert(id) != id {
                self.also.entry(*piece).or_default().insert(id);
            }
        }
        request
    }

    /// A blob is not here any more. Gives the request that a pack was coming by.
    pub(super) fn forget(&mut self, id: BlobId) -> Option<Uuid> {
        self.manifests.remove(&id);
        self.known_manifests.remove(&id);
        self.reading.remove(&id);
        let pack = self.packs.remove(&id)?;
        for piece in pack.layout.pieces() {
            if self.coming.get(piece) == Some(&id) {
                self.coming.remove(piece);
            }
            self.forget_place(piece, id);
        }
        match pack.state {
            PackState::Announced(request)
            | PackState::Coming(request)
            | PackState::Checking(request) => Some(request),
            PackState::Good | PackState::Listing => None,
        }
    }

    /// A piece is not in this pack any more. It may be in another.
    fn forget_place(&mut self, piece: &Piece, pack: BlobId) {
        let is_its_place = self.pieces.get(piece) == Some(&pack);
        let next = match self.also.get_mut(piece) {
            Some(others) if is_its_place => others.pop_first(),
            Some(others) => {
                others.remove(&pack);
                None
            }
            None => None,
        };
        match next {
            Some(next) => {
                self.pieces.insert(*piece, next);
            }
            None if is_its_place => {
                self.pieces.remove(piece);
            }
            None => {}
        }
        if self.also.get(piece).is_some_and(BTreeSet::is_empty) {
            self.also.remove(piece);
        }
    }

    /// Whether a piece is here, and was checked.
    pub(super) fn is_here(&self, piece: &Piece) -> bool {
        self.pieces.contains_key(piece)
    }

    /// Where a piece is, or will be.
    pub(super) fn place_of(&self, piece: &Piece) -> Option<BlobId> {
        self.pieces.get(piece).or_else(|| self.coming.get(piece)).copied()
    }

    /// The packs that have all pieces of a manifest, or which pieces lack: their places in its
    /// list, the first ones of them, and bytes of all.
    pub(super) fn cover(&self, manifest: &Manifest) -> Result<Vec<BlobId>, (Ranges, u64)> {
        let count = u32::try_from(manifest.pieces().len()).unwrap_or(u32::MAX);
        let (mut packs, mut lacking, mut bytes) = (BTreeSet::new(), Bitmap::new(count), 0u64);
        for (place, piece) in (0u32..).zip(manifest.pieces()) {
            match self.pieces.get(piece) {
                Some(pack) => {
                    packs.insert(*pack);
                }
                None => {
                    lacking.insert(place);
                    bytes += u64::from(piece.len);
                }
            }
        }
        if bytes == 0 { Ok(packs.into_iter().collect()) } else { Err((lacking.held(), bytes)) }
    }

    /// The piece list of a pack of a previous run is known; the pieces are still to be checked.
    pub(super) fn listed(&mut self, id: BlobId, layout: Arc<Layout>) {
        if let Some(pack) = self.packs.get_mut(&id) {
            (pack.layout, pack.state) = (layout, PackState::Checking(Uuid::nil()));
        }
    }

    /// Whether all parts of a dataset are here, as far as is known.
    pub(super) fn has_all(&self, manifest: BlobId, packs: &[BlobId]) -> bool {
        let is_good =
            |pack: &BlobId| self.packs.get(pack).is_some_and(|pack| pack.state == PackState::Good);
        self.known_manifests.contains(&manifest) && packs.iter().all(is_good)
    }

    /// These packs are needed.
    pub(super) fn use_packs(&mut self, packs: &[BlobId], now: Micros) {
        for id in packs {
            if let Some(pack) = self.packs.get_mut(id) {
                pack.used_at = now;
            }
        }
    }

    /// A manifest, if it is in memory.
    pub(super) fn manifest(&mut self, id: BlobId, now: Micros) -> Option<Arc<Manifest>> {
        let kept = self.manifests.get_mut(&id)?;
        kept.used_at = now;
        Some(kept.manifest.clone())
    }

    /// Pieces that are here or will be.
    pub(super) fn piece_count(&self) -> usize {
        self.pieces.len() + self.coming.len()
    }

    /// A manifest is about to be read; false if it is being read already.
    pub(super) fn read(&mut self, id: BlobId) -> bool {
        self.reading.insert(id)
    }

    /// Whether a manifest is being read.
    pub(super) fn is_reading(&self, id: BlobId) -> bool {
        self.reading.contains(&id)
    }

    /// A manifest was read. Beyond the limit, the least recently used manifests leave memory.
    pub(super) fn manifest_read(
        &mut self,
        id: BlobId,
        manifest: Arc<Manifest>,
        bytes: u64,
        now: Micros,
    ) {
        self.reading.remove(&id);
        self.known_manifests.insert(id);
        self.manifests.insert(id, KeptManifest { manifest, bytes, used_at: now });
        while self.manifests.len() > 1
            && self.manifests.values().map(|kept| kept.bytes).sum::<u64>()
                > MANIFESTS_KEPT_BYTES_MAX
        {
            let others = self.manifests.iter().filter(|(other, _)| **other != id);
            let Some(oldest) = others.min_by_key(|(_, kept)| kept.used_at).map(|(other, _)| *other)
            else {
                return;
            };
            self.manifests.remove(&oldest);
        }
    }

    /// A manifest could not be read.
    pub(super) fn not_read(&mut self, id: BlobId) -> bool {
        self.reading.remove(&id)
    }

    /// Manifests that nobody needed for a while leave the memory.
    pub(super) fn rest(&mut self, now: Micros) {
        self.manifests.retain(|_, kept| kept.used_at.plus(MANIFEST_REST) > now);
    }

    /// The packs that have pieces of a manifest.
    pub(super) fn packs_with(&self, manifest: &Manifest) -> impl Iterator<Item = BlobId> {
        manifest.pieces().iter().filter_map(|piece| self.pieces.get(piece).copied())
    }

    /// Blobs that nothing refers to and nobody used for so long.
    pub(super) fn stale(
        &self,
        needed: &HashSet<BlobId>,
        now: Micros,
        grace: Duration,
    ) -> Vec<BlobId> {
        let is_old = |pack: &Pack| pack.state == PackState::Good && pack.used_at.plus(grace) <= now;
        let packs = self.packs.iter().filter(|(id, pack)| !needed.contains(id) && is_old(pack));
        packs.map(|(id, _)| *id).collect()
    }

    /// Whether there is anything that may have to be forgotten some time.
    pub(super) fn is_empty(&self) -> bool {
        self.packs.is_empty() && self.manifests.is_empty()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::core::retry::mix;

    fn layout(pieces: impl Iterator<Item = u64>) -> Arc<Layout> {
        Arc::new(
            Layout::new(pieces.map(|piece| Piece::of(&piece.to_le_bytes())).collect()).unwrap(),
        )
    }

    #[test]
    fn manifests_have_so_much_memory_and_the_one_unused_for_longest_leaves_it() {
        let (mut pack_index, manifest) = (PackIndex::default(), Arc::new(Manifest::default()));
        let id = |n: u64| Uuid::from_u64_pair(0, n);
        for n in 0..4 {
            pack_index.manifest_read(
                id(n),
                manifest.clone(),
                MANIFESTS_KEPT_BYTES_MAX / 4,
                Micros(n),
            );
        }
        assert!(pack_index.manifest(id(0), Micros(10)).is_some());
        pack_index.manifest_read(id(4), manifest.clone(), 1, Micros(11));
        let kept = |pack_index: &PackIndex| {
            (0..9).filter(|n| pack_index.manifests.contains_key(&id(*n))).collect::<Vec<_>>()
        };
        assert_eq!(kept(&pack_index), [0, 2, 3, 4]);
        pack_index.manifest_read(id(5), manifest, 2 * MANIFESTS_KEPT_BYTES_MAX, Micros(12));
        assert_eq!(kept(&pack_index), [5], "one that is needed is there, however large it is");
    }

    #[test]
    fn a_piece_of_several_packs_is_here_until_the_last_of_them_is_forgotten() {
        for seed in 0..20 {
            let mut pack_index = PackIndex::default();
            let packs: Vec<(BlobId, Arc<Layout>)> = (0..12u64)
                .map(|pack| {
                    // Some have a piece twice.
                    let pieces = (0..8).map(|at| mix(mix(seed) ^ (pack << 8 | at)) % 24);
                    (Uuid::from_u64_pair(1, pack), layout(pieces))
                })
                .collect();
            for (id, layout) in &packs {
                pack_index.announce(*id, layout.clone(), Uuid::nil(), Micros(0));
                // Its list may be read again.
                pack_index.good(*id, layout.clone(), Micros(0));
                pack_index.good(*id, layout.clone(), Micros(0));
            }
            let mut left = packs;
            while !left.is_empty() {
                let at =
                    usize::try_from(mix(seed ^ left.len() as u64) % left.len() as u64).unwrap();
                pack_index.forget(left.swap_remove(at).0);
                for piece in (0..24u64).map(|piece| Piece::of(&piece.to_le_bytes())) {
                    let mut holders =
                        left.iter().filter(|(_, layout)| layout.pieces().contains(&piece));
                    match pack_index.place_of(&piece) {
                        Some(place) => assert!(holders.any(|(id, _)| *id == place)),
                        None => assert_eq!(holders.count(), 0),
                    }
                }
            }
            assert!(
                pack_index.pieces.is_empty()
                    && pack_index.also.is_empty()
                    && pack_index.coming.is_empty()
            );
        }
    }

    #[test]
    fn only_what_several_packs_have_is_noted_more_than_once() {
        let mut pack_index = PackIndex::default();
        for pack in 0..3u64 {
            let layout = layout([7].into_iter().chain(pack * 100..pack * 100 + 50));
            let id = Uuid::from_u64_pair(1, pack);
            pack_index.announce(id, layout.clone(), Uuid::nil(), Micros(0));
            pack_index.good(id, layout, Micros(0));
        }
        assert_eq!((pack_index.pieces.len(), pack_index.also.len()), (150, 1));
    }
}
