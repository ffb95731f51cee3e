//! Datasets of an earlier life: their blobs are as their files are. Packs that came whole for a put that never ended stay for a while: a
//! client that goes on with it need not bring them again.

use std::collections::HashMap;
use std::sync::Arc;

use chunking::dataset::pack::Layout;
use chunking::message::Purpose;
use tracing::error;

use crate::leader::recover::no_map;
use crate::leader::relay::BlobId;
use crate::leader::{Leader, Output};
use crate::store::blobs::DiskOp;
use crate::store::look::{LIST_CHUNKS_MAX, LookAt};
use crate::store::map::Map;

/// What the transfer of a pack is called.
pub(in crate::leader) const PACK: &str = "pack";

/// What the transfer of a manifest is called.
pub(super) const MANIFEST: &str = "manifest";

impl Leader {
    /// Takes the blobs that belong to datasets.
    pub(in crate::leader) fn restore_datasets(&mut self, maps: &mut HashMap<BlobId, Map>) {
        let kept: Vec<(BlobId, bool)> = {
            let datasets = self.broker.state().datasets();
            datasets.flat_map(|set| set.blobs().map(|blob| (blob, blob == set.generation))).collect()
        };
        for (blob, is_manifest) in kept {
            if self.relay.knows(blob) {
                continue;
            }
            let restored = match maps.remove(&blob) {
                Some(map) => self.restore_whole(blob, map),
                None => Err(no_map(blob)),
            };
            match restored {
                Err(why) => error!(%blob, "a part of a dataset is lost; put the set again: {why}"),
                Ok(()) if is_manifest => self.datasets.library.restore_manifest(blob),
                Ok(()) => self.restore_pack(blob),
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
                self.datasets.loose.insert(blob);
                self.restore_pack(blob);
            }
        }
        self.forget_stale_staged();
        self.watch_datasets();
    }

    /// The list of a pack that no set has was read: its pieces are checked before they count.
    pub(super) fn check_loose(&mut self, blob: BlobId, layout: Arc<Layout>) {
        self.datasets.library.listed(blob, layout.clone());
        let (chunks, at) = (self.relay.chunks(blob), LookAt::Pack(layout));
        self.outputs.push_back(Output::Disk(DiskOp::Look { blob, chunks, at }));
        if !self.datasets.library.is_listing() {
            self.feed_all();
        }
    }

    fn restore_pack(&mut self, blob: BlobId) {
        self.datasets.library.restore(blob, self.now);
        let mut chunks = self.relay.chunks(blob);
        let last = chunks.len().saturating_sub(LIST_CHUNKS_MAX);
        chunks.drain(..last);
        let at = LookAt::PackList(self.relay.size(blob));
        self.outputs.push_back(Output::Disk(DiskOp::Look { blob, chunks, at }));
    }
}
