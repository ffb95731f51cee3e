//! The state of one blob in the relay: received chunks, stored chunks, its sender and its
//! receivers.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::Bytes;
use chunking::message::{Open, OpenFlags, Purpose, Reason};
use chunking::{Bitmap, ChunkHead, ChunkPlan, Digest, DigestKind, Ranges};
use uuid::Uuid;

use super::Out;
use super::chunks::Chunks;
use super::on_disk::{OnDisk, Seal};
use super::ruling::Ruling;
use super::seal::Leftover;
use crate::answers::{BlobRow, BlobState};
use crate::core::ids::{ConnId, JobId, Micros};
use crate::wire::{Receiving, SendPhase, Sending};

/// The sender of a blob.
#[derive(Clone, Debug)]
pub(super) struct Up {
    pub(super) conn: ConnId,
    /// Chunks that may come and have not.
    pub(super) outstanding: u32,
    /// Chunks that have begun to come.
    pub(super) arriving: u32,
    /// Chunks that were to have come before its last Done, and of which nothing was seen. If one
    /// does come, it is no breach of the window; it has no buffer waiting for it, either.
    pub(super) written_off: u32,
    /// Whether the sender was silent so long that it got its window once more.
    pub(super) nudged: bool,
    /// Why it was told to wait, if it was.
    pub(super) told: Option<Reason>,
    /// When something last came, or was last asked for.
    pub(super) heard_at: Micros,
    /// Whether it sends again what it has sent before.
    pub(super) keeps_source: bool,
    /// Whether it was asked for chunks of a blob that had come whole, and has not said Done since.
    pub(super) asked_again: bool,
}

impl Up {
    /// What may come is not waited for any longer; gives how many chunks that were.
    pub(super) fn write_off(&mut self) -> u32 {
        let outstanding = std::mem::take(&mut self.outstanding);
        self.written_off = self.written_off.saturating_add(outstanding);
        outstanding
    }
}

/// A receiver of a blob.
#[derive(Clone, Debug)]
pub(super) struct Down {
    pub(super) conn: ConnId,
    /// The job it gets it for, and the attempt at it.
    pub(super) job: JobId,
    pub(super) attempt: u32,
    /// What it has, and what it takes.
    pub(super) sending: Sending,
    /// When it said what it has.
    pub(super) granted_at: Micros,
    /// Chunks that it has asked for again.
    pub(super) asked: Bitmap,
    /// How often it has asked.
    pub(super) asked_times: u32,
    /// Chunks that are being read for it from the disk.
    pub(super) reading: Bitmap,
    /// Chunks that it was sent, whose bytes its line asks for as it takes them.
    pub(super) elsewhere: BTreeSet<u32>,
    pub(super) moved_at: Micros,
}

impl Down {
    pub(super) fn new(conn: ConnId, job: JobId, attempt: u32, chunks: u32, now: Micros) -> Self {
        Down {
            conn,
            job,
            attempt,
            sending: Sending::new(chunks),
            granted_at: now,
            asked: Bitmap::new(chunks),
            asked_times: 0,
            reading: Bitmap::new(chunks),
            elsewhere: BTreeSet::new(),
            moved_at: now,
        }
    }

    /// It is sent a chunk: the bytes, or without them what its line asks for as it takes it.
    pub(super) fn give(
        &mut self,
        id: BlobId,
        index: u32,
        head: ChunkHead,
        len: u32,
        bytes: Option<Bytes>,
    ) -> Out {
        self.sending.send(index);
        let (conn, from) = (self.conn, self.goes_on_from(index, &head, len as usize));
        match bytes {
            Some(bytes) => Out::Chunk { conn, blob: id, head, bytes, from },
            None => {
                self.elsewhere.insert(index);
                Out::Elsewhere { conn, blob: id, head, len, from }
            }
        }
    }

    /// It is sent a chunk now. Gives how many of its bytes it has already, if it has the first ones
    /// of the very same.
    pub(super) fn goes_on_from(&mut self, index: u32, head: &ChunkHead, len: usize) -> u32 {
        self.elsewhere.remove(&index);
        self.sending.goes_on_from(index, head, len)
    }

    /// Whether it needs a chunk that is here no more.
    pub(super) fn is_done_with(&self, index: u32) -> bool {
        self.sending.is_arrived() || !self.sending.lacks(index) && !self.elsewhere.contains(&index)
    }

    /// Whether it is still to get a chunk.
    pub(super) fn lacks(&self, index: u32) -> bool {
        !self.sending.is_arrived() && self.sending.lacks(index)
    }
}

/// The way that its chunks take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// On to who gets it, while they come if that can be.
    Forward,
    /// On to who gets it, each when it is whole: one broke off while it was spliced, what came of
    /// that was lost, and is not to be the next time.
    Whole,
    /// Chunks that arrived stay here, also when receivers have them.
    Stay,
}

#[derive(Clone, Debug)]
pub(super) struct Blob {
    /// As it was opened, or as a request named it.
    pub(super) open: Open,
    /// Whether somebody has opened it, or it was gathered here: only then it is known how it comes.
    pub(super) opened: bool,
    pub(super) route: Route,
    /// What has come of it.
    pub(super) came: Receiving,
    /// What it hashes to, once it has come whole.
    pub(super) ruling: Ruling,
    /// What of it is here.
    pub(super) chunks: Chunks,
    pub(super) disk: OnDisk,
    pub(super) leftover: Leftover,
    pub(super) up: Option<Up>,
    pub(super) downs: Vec<Down>,
    /// The blobs that get their place together with it.
    pub(super) together: Option<Arc<[BlobId]>>,
}

impl Blob {
    pub(super) fn new(open: Open, plan: ChunkPlan, stays: bool) -> Self {
        Blob {
            open,
            opened: false,
            route: if stays { Route::Stay } else { Route::Forward },
            came: Receiving::new(plan),
            ruling: Ruling::default(),
            chunks: Chunks::default(),
            disk: OnDisk::default(),
            leftover: Leftover::default(),
            up: None,
            downs: Vec::new(),
            together: None,
        }
    }

    /// Whether chunks that arrived stay here, also when receivers have them.
    pub(super) fn stays(&self) -> bool {
        self.route == Route::Stay
    }

    /// Whether its chunks go on as they come, and need not stay.
    pub(super) fn passes_on(&self) -> bool {
        self.is_flowing() && !self.stays()
    }

    /// Whether a connection brings it.
    pub(super) fn is_from(&self, conn: ConnId) -> bool {
        self.up.as_ref().is_some_and(|up| up.conn == conn)
    }

    /// The connection that brings it, if that sends again what it has sent before.
    pub(super) fn can_ask(&self) -> Option<ConnId> {
        self.up.as_ref().filter(|up| up.keeps_source).map(|up| up.conn)
    }

    pub(super) fn owner(&self) -> JobId {
        JobId(self.open.owner)
    }

    /// Whether someone takes it at the moment.
    pub(super) fn is_flowing(&self) -> bool {
        self.downs.iter().any(|down| !down.sending.is_arrived())
    }

    /// What it hashes to, unless that is in doubt and somebody is there to say it again. If nobody
    /// is, who checks it says what it makes of it.
    pub(super) fn certain_digest(&self) -> Option<Digest> {
        self.ruling.digest().filter(|_| !self.ruling.is_doubted() || self.can_ask().is_none())
    }

    /// Whether those that get it wait for who brings it: it is not whole, and nothing that is here
    /// is for them.
    pub(super) fn waits_for_sender(&self) -> bool {
        let lacks = |down: &Down| self.chunks.from(0).any(|(index, _)| down.lacks(index));
        let is_whole = self.came.is_complete() && self.certain_digest().is_some();
        !is_whole && !self.downs.iter().any(lacks)
    }

    /// Whether it is an input of a job.
    pub(super) fn is_input(&self) -> bool {
        self.open.purpose == Purpose::Input
    }

    /// Whether it is a part of a dataset.
    pub(super) fn is_dataset(&self) -> bool {
        self.open.purpose == Purpose::Dataset
    }

    /// Whether it is a part of a result.
    pub(super) fn is_of_result(&self) -> bool {
        match self.open.purpose {
            Purpose::Archive | Purpose::Stdout | Purpose::Stderr => true,
            Purpose::Input | Purpose::Payload | Purpose::Dataset => false,
        }
    }

    /// Whether it is a part of a result that is here whole, and that nobody brings any more.
    pub(super) fn is_kept_result(&self) -> bool {
        self.is_of_result() && self.up.is_none() && self.is_kept()
    }

    /// Whether chunks of it are in memory alone.
    pub(super) fn has_unwritten(&self) -> bool {
        self.chunks.unwritten().next().is_some()
    }

    /// Whether all of it is on the disk, as far as that has been told.
    pub(super) fn is_written(&self) -> bool {
        self.is_kept() && self.chunks.writing() == 0 && !self.has_unwritten()
    }

    /// Whether all of it is here.
    pub(super) fn is_kept(&self) -> bool {
        self.chunks.len() == self.came.plan().count() as usize
    }

    /// Chunks that are still to come, beyond those that may.
    pub(super) fn wanted(&self) -> u32 {
        let on_the_way = self.up.as_ref().map_or(0, |up| up.outstanding + up.arriving);
        self.came.missing_count().saturating_sub(on_the_way)
    }

    pub(super) fn down(&mut self, conn: ConnId) -> Option<&mut Down> {
        self.downs.iter_mut().find(|down| down.conn == conn)
    }

    /// The open frame for who gets it: chunks come as they came, and the digest is the sender's.
    fn open_for(&self, down: &Down) -> Open {
        let Down { job, attempt, .. } = *down;
        Open { attempt, owner: job.0, flags: OpenFlags::default(), ..self.open.clone() }
    }

    /// The connections that the blob has to be opened to now.
    pub(super) fn openings(&mut self) -> Vec<(ConnId, Open)> {
        if !self.opened {
            return Vec::new();
        }
        let untold = self.downs.iter().filter(|down| down.sending.phase() == SendPhase::Away);
        let openings = untold.map(|down| (down.conn, self.open_for(down))).collect();
        self.downs.iter_mut().for_each(|down| down.sending.open());
        openings
    }

    /// All of it has to come again, and go out again.
    pub(super) fn begin_anew(&mut self) {
        self.came.begin_anew();
        self.ruling.begin_anew();
        self.downs.iter_mut().for_each(|down| down.sending.begin_anew());
    }

    /// Chunks that came once, are not here any more, and that somebody lacks: they have to come
    /// again.
    pub(super) fn ask_again(&mut self) -> Ranges {
        let mut gone = Bitmap::new(self.came.plan().count());
        for down in
            self.downs.iter().filter(|down| down.sending.is_granted() && !down.sending.is_arrived())
        {
            gone.insert_all(&down.sending.sent().missing());
        }
        let mut again = Bitmap::new(gone.count());
        for index in gone.held().indices().filter(|index| !self.chunks.contains(*index)) {
            if self.came.remove(index) {
                again.insert(index);
            }
        }
        again.held()
    }

    /// A blob as operators see it.
    pub(super) fn describe(&self, id: BlobId) -> BlobRow {
        let state = match (self.disk.seal, self.ruling.digest()) {
            (Seal::Set, _) => BlobState::Sealed,
            (Seal::Wanted | Seal::Asked, _) | (Seal::Open, Some(_)) => BlobState::Whole,
            (Seal::Open, None) => BlobState::Coming,
        };
        BlobRow {
            blob: id.to_string(),
            job_id: self.owner().0.to_string(),
            purpose: format!("{:?}", self.open.purpose).to_lowercase(),
            name: self.open.name.as_str().to_owned(),
            size: Some(self.open.size),
            here: Some(self.chunks.bytes()),
            state,
        }
    }
}

/// A blob that a request names, before it is opened.
pub(in crate::leader) fn announced(owner: JobId, name: &str, size: u64) -> Open {
    Open {
        purpose: Purpose::Input,
        codec: chunking::Codec::None,
        digest: DigestKind::ChunkList,
        flags: OpenFlags::default(),
        chunk_bytes: chunking::limits::CHUNK_BYTES_MAX,
        size,
        owner: owner.0,
        attempt: 0,
        name: chunking::message::Name::try_from(name.to_owned()).unwrap_or_default(),
    }
}

/// A blob's id.
pub(in crate::leader) type BlobId = Uuid;
