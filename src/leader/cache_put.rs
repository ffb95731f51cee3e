//! A classic client's CachePut on its way in (T06): its contents become packs, from a small frame or from one that was taken apart while
//! it came. What becomes of the packs is the datasets' matter.

use std::collections::BTreeMap;

use bytes::Bytes;
use chunking::dataset::Piece;
use tracing::info;
use uuid::Uuid;

use super::Leader;
use super::datasets::{Came, Checked, DatasetEvent};
use super::pack_maker::{PIECE_BYTES, PackMaker};
use crate::core::ids::ConnId;
use crate::model::{CachePutRequest, CachePutResult, JsonModel, Residue};
use crate::units::ByteSize;

impl Leader {
    /// A classic client puts a dataset, in a small frame.
    pub(super) fn classic_put(&mut self, conn: ConnId, request: Uuid, subject: &str, payload: &Bytes) {
        let read = CachePutRequest::parse(payload).map_err(|error| (String::new(), error.to_string()));
        let taken = read.and_then(|put| {
            let id = put.cache_id.clone();
            self.classic_small(conn, request, subject, put).map_err(|why| (id, why))
        });
        if let Err((cache, why)) = taken {
            self.fail_classic(conn, request, &cache, &why);
        }
    }

    fn classic_small(
        &mut self,
        conn: ConnId,
        request: Uuid,
        subject: &str,
        put: CachePutRequest,
    ) -> Result<(), String> {
        let checked = self.check_classic(&put, subject)?;
        let bytes: u64 = put.entries.iter().map(|entry| entry.content.len() as u64).sum();
        let (held, room) = (self.relay.fill().bytes, self.config.relay.spool_bytes_max);
        if held.saturating_add(bytes) > room {
            return Err(format!(
                "the set has {}, and the leader holds {} of at most {} (--spool-max): remove datasets, or raise it",
                ByteSize(bytes),
                ByteSize(held),
                ByteSize(room)
            ));
        }
        let mut maker = PackMaker::new((self.make_id)());
        for (slot, entry) in put.entries.iter().enumerate() {
            maker.begin(slot);
            for bytes in entry.content.chunks(PIECE_BYTES) {
                let piece = Piece::of(bytes);
                if self.datasets.has_piece(&piece) {
                    maker.known(piece, bytes);
                } else {
                    maker.bytes(bytes, &mut self.relay, &mut *self.make_id);
                }
            }
            maker.end();
        }
        self.classic_came(conn, request, checked, &put, maker)
    }

    /// A classic client's large frame has come, and was taken apart.
    pub(super) fn classic_bulk(
        &mut self,
        conn: ConnId,
        (request, subject): (Uuid, &str),
        residue: Result<Residue, String>,
        maker: PackMaker,
        bytes: u64,
    ) {
        let read = residue
            .and_then(|residue| CachePutRequest::parse(&residue.json).map_err(|error| error.to_string()));
        let (cache, why) = match read {
            Ok(put) => match self.check_classic(&put, subject) {
                Ok(checked) => match self.classic_came(conn, request, checked, &put, maker) {
                    Ok(()) => return,
                    Err(why) => (put.cache_id, why),
                },
                Err(why) => {
                    maker.forget(&mut self.relay);
                    (put.cache_id, why)
                }
            },
            Err(why) => {
                maker.forget(&mut self.relay);
                (
                    String::new(),
                    format!("the put came in a frame of {bytes} bytes, which cannot be taken: {why}"),
                )
            }
        };
        self.fail_classic(conn, request, &cache, &why);
    }

    /// All contents of a put are here, in packs.
    fn classic_came(
        &mut self,
        conn: ConnId,
        request: Uuid,
        Checked { cache, target, names }: Checked,
        put: &CachePutRequest,
        maker: PackMaker,
    ) -> Result<(), String> {
        let key = maker.owner();
        let (mut made, packs) = maker.finish(&mut self.relay)?;
        let mut files = BTreeMap::new();
        let mut wrong = None;
        for (slot, (entry, name)) in put.entries.iter().zip(names).enumerate() {
            let Some(made) = made.remove(&slot) else {
                wrong.get_or_insert_with(|| format!("\"{}\" has no content", entry.name));
                continue;
            };
            if entry.sha256.is_some_and(|sha256| sha256 != made.sha256) {
                wrong.get_or_insert_with(|| {
                    format!("\"{}\" does not hash to the SHA-256 that came with it: put it again", entry.name)
                });
            }
            files.entry(name).or_insert(made);
        }
        if let Some(wrong) = wrong {
            packs.iter().for_each(|(pack, _)| self.relay.forget(*pack));
            return Err(wrong);
        }
        self.packs_are_here(&packs).map_err(|why| format!("{why}: put it again"))?;
        let came = Came {
            conn,
            request,
            key,
            generation: (self.make_id)(),
            cache,
            target,
            files,
            entries: put.entries.len() as u64,
            packs: packs.iter().map(|(pack, _)| *pack).collect(),
        };
        self.dataset_event(DatasetEvent::ClassicCame { came, packs });
        Ok(())
    }

    fn check_classic(&self, put: &CachePutRequest, subject: &str) -> Result<Checked, String> {
        self.datasets.check_classic(&self.facts(), put, subject)
    }

    /// A classic client must not wait for ever: its put failed.
    fn fail_classic(&mut self, conn: ConnId, request: Uuid, cache: &str, why: &str) {
        info!(peer = %self.name(conn), cache, "a stock client's put failed: {why}");
        self.cache_ack(conn, request, CachePutResult::failed(cache, why));
    }
}
