//! One blob on its way through the leader: what has come of it, what of that is here, who brings it and who gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use chunking::digest::ChunkCrcs;
use chunking::message::{Open, OpenFlags, Purpose, Reason};
use chunking::{Bitmap, ChunkHead, ChunkPlan, Digest, DigestKind, Ranges};
use uuid::Uuid;

use crate::answers::{BlobRow, BlobState};
use crate::core::ids::{ConnId, JobId, Micros};
use crate::wire::{SendPhase, Sending};

/// Who brings a blob.
#[derive(Clone, Debug)]
pub(super) struct Up {
    pub(super) conn: ConnId,
    /// Chunks that may come and have not.
    pub(super) outstanding: u32,
    /// Chunks that have begun to come.
    pub(super) arriving: u32,
    /// Chunks that were to have come before its last Done, and of which nothing was seen. If one does come, it is no
    /// breach of the window; it has no buffer waiting for it, either.
    pub(super) written_off: u32,
    /// Whether it was silent so long that its window was given to it once more.
    pub(super) nudged: bool,
    /// Why it was told to wait, if it was.
    pub(super) told: Option<Reason>,
    /// When something last came, or was last asked for.
    pub(super) heard_at: Micros,
    /// Whether it sends again what it has sent before.
    pub(super) keeps_source: bool,
}

impl Up {
    /// What may come is not waited for any longer; gives how many chunks that were.
    pub(super) fn write_off(&mut self) -> u32 {
        let outstanding = std::mem::take(&mut self.outstanding);
        self.written_off = self.written_off.saturating_add(outstanding);
        outstanding
    }
}

/// Who gets a blob.
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

    /// It is sent a chunk now. Gives how many of its bytes it has already, if it has the first ones of the very same.
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

/// Where a chunk lies.
#[derive(Clone, Debug)]
pub(super) enum Place {
    Memory(Bytes),
    /// On its way to the disk, and still here.
    Writing(Bytes),
    /// On the disk, and still here for who gets it.
    Cached(Bytes),
    Disk,
}

/// A chunk that is here.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    pub(super) head: ChunkHead,
    pub(super) len: u32,
    pub(super) place: Place,
}

impl Stored {
    pub(super) fn bytes(&self) -> Option<&Bytes> {
        match &self.place {
            Place::Memory(bytes) | Place::Writing(bytes) | Place::Cached(bytes) => Some(bytes),
            Place::Disk => None,
        }
    }
}

/// How far it is on the disk, where that matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seal {
    /// It is still coming.
    Open,
    /// It has come, and is to be made certain.
    Wanted,
    /// That is being done.
    Asked,
    /// It is certain.
    Set,
}

/// The room that a blob's file has on the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FileRoom {
    /// There is none yet.
    Unmade,
    /// For all of it.
    Made,
    /// For what was written: nobody knew how large it would be when it began.
    Grows,
}

/// A blob.
#[derive(Clone, Debug)]
pub(super) struct Blob {
    /// As it was opened, or as a request named it.
    pub(super) open: Open,
    /// Whether somebody has opened it, or it was gathered here: only then it is known how it comes.
    pub(super) opened: bool,
    pub(super) plan: ChunkPlan,
    /// What came stays here, whoever got it.
    pub(super) keep: bool,
    /// Chunks that need not come (again).
    pub(super) seen: Bitmap,
    pub(super) crcs: ChunkCrcs,
    pub(super) stored: BTreeMap<u32, Stored>,
    /// Chunks of it in memory that wait for someone.
    pub(super) in_memory: usize,
    /// Those of them that the disk has, too.
    pub(super) cached: BTreeSet<u32>,
    /// Chunks of it that are being written.
    pub(super) writing: usize,
    pub(super) seal: Seal,
    /// Times that the disk did not keep it.
    pub(super) unsealed: u32,
    /// Whether what is here of it was written in an earlier life, and not looked at since.
    pub(super) unchecked: bool,
    /// Whether it is being looked at.
    pub(super) checking: bool,
    /// Who wants to go on with it once it is.
    pub(super) resuming: Option<(ConnId, Box<Open>)>,
    /// What it hashes to, once it has come whole.
    pub(super) digest: Option<Digest>,
    /// Whether who checked that asked for more, or another brings it from now on: then the sender has to say it again.
    pub(super) doubted: bool,
    pub(super) up: Option<Up>,
    pub(super) downs: Vec<Down>,
    /// Times that all chunks came and the digest was wrong.
    pub(super) wrong_digests: u32,
    /// Times in a row that nothing new had come when it was said to be done.
    pub(super) idle_rounds: u32,
    pub(super) seen_at_done: u32,
    /// Whether it has a file.
    pub(super) on_disk: bool,
    pub(super) file: FileRoom,
    /// Bytes of the file that it is still to get and that count already, as it was let in.
    pub(super) charged: u64,
    /// Bytes of it that are here.
    pub(super) bytes: u64,
    /// Bytes of it that have a place here and are still to come, if it stays here and was let in.
    pub(super) reserved: Option<u64>,
    /// The blobs that get their place together with it.
    pub(super) together: Option<Arc<[BlobId]>>,
    /// Whether it is among those that have just come to want a larger window.
    pub(super) hungry: bool,
    /// Whether it is among those that could not have one.
    pub(super) waits: bool,
    /// The connection that has to bring others before more of it may come.
    pub(super) held_by: Option<ConnId>,
    /// Whether a chunk of it broke off as it passed through: what came of that was lost, and is not to be the next time.
    pub(super) breaks: bool,
}

impl Blob {
    pub(super) fn new(open: Open, plan: ChunkPlan, keep: bool) -> Self {
        Blob {
            open,
            opened: false,
            plan,
            keep,
            seen: Bitmap::new(plan.count()),
            crcs: ChunkCrcs::default(),
            stored: BTreeMap::new(),
            in_memory: 0,
            cached: BTreeSet::new(),
            writing: 0,
            seal: Seal::Open,
            unsealed: 0,
            unchecked: false,
            checking: false,
            resuming: None,
            digest: None,
            doubted: false,
            up: None,
            downs: Vec::new(),
            wrong_digests: 0,
            idle_rounds: 0,
            seen_at_done: 0,
            on_disk: false,
            file: FileRoom::Unmade,
            charged: 0,
            bytes: 0,
            reserved: None,
            together: None,
            hungry: false,
            waits: false,
            held_by: None,
            breaks: false,
        }
    }

    pub(super) fn owner(&self) -> JobId {
        JobId(self.open.owner)
    }

    /// Whether someone takes it at the moment.
    pub(super) fn is_flowing(&self) -> bool {
        self.downs.iter().any(|down| !down.sending.is_arrived())
    }

    /// What it hashes to, unless that is in doubt and somebody is there to say it again. If nobody is, who checks it says
    /// what it makes of it.
    pub(super) fn certain_digest(&self) -> Option<Digest> {
        let can_be_asked = self.up.as_ref().is_some_and(|up| up.keeps_source);
        self.digest.filter(|_| !self.doubted || !can_be_asked)
    }

    /// Whether those that get it wait for who brings it: it is not whole, and nothing that is here is for them.
    pub(super) fn waits_for_sender(&self) -> bool {
        let lacks = |down: &Down| self.stored.keys().any(|index| down.lacks(*index));
        let is_whole = self.seen.is_complete() && self.certain_digest().is_some();
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
        self.in_memory > self.cached.len()
            && self.stored.values().any(|chunk| matches!(chunk.place, Place::Memory(_)))
    }

    /// Whether all of it is on the disk, as far as that has been told.
    pub(super) fn is_written(&self) -> bool {
        self.is_kept() && self.writing == 0 && !self.has_unwritten()
    }

    /// Whether all of it is here.
    pub(super) fn is_kept(&self) -> bool {
        self.stored.len() == self.plan.count() as usize
    }

    /// Chunks that are still to come, beyond those that may.
    pub(super) fn wanted(&self) -> u32 {
        let on_the_way = self.up.as_ref().map_or(0, |up| up.outstanding + up.arriving);
        (self.plan.count() - self.seen.held_count()).saturating_sub(on_the_way)
    }

    pub(super) fn down(&mut self, conn: ConnId) -> Option<&mut Down> {
        self.downs.iter_mut().find(|down| down.conn == conn)
    }

    /// The open frame for who gets it: chunks come as they came, and the digest is the sender's.
    fn open_for(&self, down: &Down) -> Open {
        let Down { job, attempt, .. } = *down;
        Open { attempt, owner: job.0, flags: OpenFlags::default(), ..self.open.clone() }
    }

    /// Who has to be told of the blob now, and how.
    pub(super) fn openings(&mut self) -> Vec<(ConnId, Open)> {
        if !self.opened {
            return Vec::new();
        }
        let untold = self.downs.iter().filter(|down| down.sending.phase() == SendPhase::Away);
        let openings = untold.map(|down| (down.conn, self.open_for(down))).collect();
        self.downs.iter_mut().for_each(|down| down.sending.open());
        openings
    }

    /// Whether the digest is right, as far as a leader can say: full ones are checked at the ends.
    pub(super) fn digest_fits(&self, digest: &Digest) -> bool {
        digest.kind == self.open.digest
            && match digest.kind {
                DigestKind::ChunkList => self.crcs.digest(&self.plan) == *digest,
                DigestKind::Sha256 | DigestKind::Blake3 => true,
            }
    }

    /// What it hashes to, if that was ruled, nobody doubts it, and a sender says otherwise now. Chunks that it was asked for again
    /// may have changed with their source: those make another chunk list.
    pub(super) fn contradicts(&self, digest: &Digest) -> Option<Digest> {
        let stands = match digest.kind {
            DigestKind::ChunkList => !self.digest_fits(digest),
            DigestKind::Sha256 | DigestKind::Blake3 => true,
        };
        self.digest.filter(|ruled| ruled != digest && !self.doubted && stands)
    }

    /// All of it has to come again, and go out again.
    pub(super) fn begin_anew(&mut self) {
        let chunks = self.plan.count();
        self.seen = Bitmap::new(chunks);
        self.seen_at_done = 0;
        self.digest = None;
        self.downs.iter_mut().for_each(|down| down.sending.begin_anew());
    }

    /// Chunks that came once, are not here any more, and that somebody lacks: they have to come again.
    pub(super) fn ask_again(&mut self) -> Ranges {
        let mut gone = Bitmap::new(self.plan.count());
        for down in self.downs.iter().filter(|down| down.sending.is_granted() && !down.sending.is_arrived()) {
            gone.insert_all(&down.sending.sent().missing());
        }
        let lost: Vec<u32> = gone
            .held()
            .indices()
            .filter(|index| self.seen.contains(*index) && !self.stored.contains_key(index))
            .collect();
        let mut again = Bitmap::new(self.plan.count());
        for index in lost {
            self.seen.remove(index);
            again.insert(index);
        }
        again.held()
    }
}

impl Blob {
    /// A blob as operators see it.
    pub(super) fn describe(&self, id: BlobId) -> BlobRow {
        let state = match (self.seal, self.digest) {
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
            here: Some(self.bytes),
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
