//! Blobs the leader creates itself, from the contents of classic peers' large frames. No peer opens
//! them, and their size is unknown until they end.

use bytes::Bytes;
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{Open, Purpose};
use chunking::{ChunkHead, ChunkPlan, Digest, PlanError};

use super::blob::{Blob, announced};
use super::on_disk::File;
use super::ruling::Ruling;
use super::{BlobId, Relay};
use crate::core::ids::JobId;
use crate::store::blobs::Class;
use crate::wire::{BUFFER_BYTES, PoolBuf, Receiving};

/// Where a chunk is gathered: in a buffer of the pool, or, where all are in use, in memory of its
/// own.
#[derive(Debug)]
pub(in crate::leader) enum ChunkRoom {
    Pooled(PoolBuf),
    Own(Vec<u8>),
}

impl ChunkRoom {
    pub(in crate::leader) fn copy_in(&mut self, at: usize, bytes: &[u8]) -> usize {
        match self {
            ChunkRoom::Pooled(buffer) => buffer.copy_in(at, bytes),
            ChunkRoom::Own(own) => {
                let len = bytes.len().min(BUFFER_BYTES.saturating_sub(at));
                own.extend_from_slice(bytes.get(..len).unwrap_or_default());
                len
            }
        }
    }

    /// The first bytes.
    pub(in crate::leader) fn get(&self, len: usize) -> &[u8] {
        match self {
            ChunkRoom::Pooled(buffer) => buffer.get(..len).unwrap_or_default(),
            ChunkRoom::Own(own) => own.get(..len).unwrap_or_default(),
        }
    }

    pub(in crate::leader) fn freeze(self, len: usize) -> Bytes {
        match self {
            ChunkRoom::Pooled(buffer) => buffer.freeze(len),
            ChunkRoom::Own(own) => own.into(),
        }
    }
}

impl Relay {
    /// Whether `bytes` more may wait here, beside everything that is on its way.
    pub(in crate::leader) fn has_room_for(&self, bytes: u64) -> bool {
        let chunks = usize::try_from(bytes.div_ceil(CHUNK_BYTES_MAX.into())).unwrap_or(usize::MAX);
        self.full().is_none() && self.spool_room() >= chunks && self.fits(Class::Upload, bytes)
    }

    /// Why the disk takes nothing, if so.
    pub(in crate::leader) fn disk_trouble(&self) -> Option<&str> {
        self.room.trouble.as_ref().map(|(trouble, _)| trouble.as_str())
    }

    /// Chunks of a blob that are being written.
    pub(in crate::leader) fn unwritten(&self, id: BlobId) -> usize {
        self.blobs.get(&id).map_or(0, |blob| blob.chunks.writing())
    }

    /// Whether another piece of a large frame can be taken: it fills at most two buffers.
    pub(in crate::leader) fn takes_more(&self, class: Class) -> bool {
        self.free() >= 2 && self.full().is_none() && self.fits(class, 0)
    }

    /// Where a chunk that is gathered here finds its place.
    pub(in crate::leader) fn chunk_room(&self) -> ChunkRoom {
        let pooled = self.buffer().map(ChunkRoom::Pooled);
        pooled.unwrap_or_else(|| ChunkRoom::Own(Vec::with_capacity(BUFFER_BYTES)))
    }

    /// A buffer that is not promised to anybody, for a chunk that comes, is read or is gathered.
    pub(in crate::leader) fn buffer(&self) -> Option<PoolBuf> {
        if self.spare() > 0 { self.pool.take() } else { None }
    }

    /// The chunks of a blob that are here: place, head and length of each.
    pub(in crate::leader) fn chunks(&self, id: BlobId) -> Vec<(u32, ChunkHead, u32)> {
        let stored = self.blobs.get(&id).into_iter().flat_map(|blob| blob.chunks.from(0));
        stored.map(|(index, chunk)| (index, chunk.head, chunk.len)).collect()
    }

    /// A chunk of a blob, if it is here: its head, its length, and its bytes if they are in memory.
    pub(in crate::leader) fn chunk_here(
        &self,
        id: BlobId,
        index: u32,
    ) -> Option<(ChunkHead, u32, Option<Bytes>)> {
        let chunk = self.blobs.get(&id)?.chunks.get(index)?;
        Some((chunk.head, chunk.len, chunk.bytes().cloned()))
    }

    /// Bytes of a blob.
    pub(in crate::leader) fn size(&self, id: BlobId) -> u64 {
        self.blobs.get(&id).map_or(0, |blob| blob.open.size)
    }

    /// Bytes of a blob's name.
    pub(in crate::leader) fn name_bytes(&self, id: BlobId) -> usize {
        self.blobs.get(&id).map_or(0, |blob| blob.open.name.as_str().len())
    }

    /// Bytes of a blob that are here.
    pub(in crate::leader) fn bytes_here(&self, id: BlobId) -> u64 {
        self.blobs.get(&id).map_or(0, |blob| blob.chunks.bytes())
    }

    /// The next chunk of a blob that is gathered here. All but the last have the size of a chunk.
    /// What it is for says how much of the disk it may fill.
    pub(in crate::leader) fn gather(
        &mut self,
        id: BlobId,
        purpose: Purpose,
        index: u32,
        bytes: Bytes,
    ) {
        let offset = u64::from(index) * u64::from(CHUNK_BYTES_MAX);
        let head = ChunkHead::plain(offset, &bytes);
        let Ok(nothing) = ChunkPlan::new(0, CHUNK_BYTES_MAX) else { return };
        if !self.blobs.contains_key(&id) {
            let open = Open { purpose, ..announced(JobId(uuid::Uuid::nil()), "", 0) };
            let mut unnamed = Blob::new(open, nothing, true);
            unnamed.disk.file = File::UnmadeGrows;
            self.insert(id, unnamed);
        }
        self.file_grows(id, bytes.len() as u64);
        self.store(id, index, head, bytes);
        self.pump();
    }

    /// All of it has been gathered: from now on it is a blob like any other.
    pub(in crate::leader) fn gathered(
        &mut self,
        id: BlobId,
        owner: JobId,
        purpose: Purpose,
        name: &str,
        size: u64,
    ) -> Result<Option<Digest>, PlanError> {
        let plan = ChunkPlan::new(size, CHUNK_BYTES_MAX)?;
        let Some(blob) = self.blobs.get_mut(&id) else { return Ok(None) };
        self.names_bytes -= blob.open.name.as_str().len();
        blob.open = Open { purpose, ..announced(owner, name, size) };
        self.names_bytes += blob.open.name.as_str().len();
        blob.opened = true;
        blob.came = Receiving::new(plan);
        for (index, chunk) in blob.chunks.from(0) {
            blob.came.insert(index, chunk.head.crc_raw);
        }
        let digest = blob.came.chunk_list();
        blob.ruling = Ruling::of(Some(digest));
        if self.config.durable {
            self.want_seal(id);
        }
        Ok(Some(digest))
    }
}
