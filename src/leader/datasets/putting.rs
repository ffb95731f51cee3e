//! The state of one put in progress: its origin, its phase and the parts received so far.

use std::collections::HashSet;
use std::sync::Arc;

use chunking::dataset::Manifest;
use chunking::message::Put;
use uuid::Uuid;

use super::BlobId;
use super::classic_put::Classic;
use super::put_waiters::Awaited;
use crate::core::ids::{CacheId, ConnId, JobId, Micros};

/// How far a put is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Its manifest is to come, or is being read.
    Manifest,
    /// Pieces are to come.
    Pieces,
    /// All of it is here, and the record is on its way.
    Committing,
    /// It is kept; workers get it.
    Spreading,
}

/// Where a put comes from.
#[derive(Debug)]
pub(super) enum Origin {
    /// A heft client, which sends the manifest and the missing pieces.
    Client(ConnId),
    /// A heft client that disconnected; the put is kept until this moment.
    Away(Micros),
    /// One frame of a classic client, which hears of workers alone.
    Classic(ConnId, Classic),
    /// The inputs of a job, of which it is made: nobody hears of it.
    Staged(JobId),
}

/// A put under way.
#[derive(Debug)]
pub(super) struct Putting {
    pub(super) origin: Origin,
    pub(super) put: Put,
    pub(super) cache: CacheId,
    pub(super) stage: Stage,
    pub(super) manifest: Option<Arc<Manifest>>,
    /// Packs that are coming.
    pub(super) packs: HashSet<BlobId>,
    pub(super) bad_packs: u32,
    /// Blobs that it has opened.
    pub(super) opened: HashSet<BlobId>,
    /// Bytes of its manifest, while that is needed.
    pub(super) manifest_bytes: u64,
    /// Bytes that came.
    pub(super) received: u64,
    /// Bytes that went to workers.
    pub(super) moved: u64,
    /// Workers that it waits for.
    pub(super) awaited: Awaited,
    pub(super) deadline: Option<Micros>,
}

impl Putting {
    /// One of packs that were made here.
    pub(super) fn made_here(
        origin: Origin,
        cache: CacheId,
        put: Put,
        packs: HashSet<BlobId>,
        deadline: Option<Micros>,
    ) -> Self {
        Putting { packs, deadline, ..Putting::new(origin, cache, put) }
    }

    pub(super) fn new(origin: Origin, cache: CacheId, put: Put) -> Self {
        Putting {
            origin,
            put,
            cache,
            stage: Stage::Manifest,
            manifest: None,
            packs: HashSet::new(),
            bad_packs: 0,
            opened: HashSet::new(),
            manifest_bytes: 0,
            received: 0,
            moved: 0,
            awaited: Awaited::default(),
            deadline: None,
        }
    }

    /// Its dataset has files beside those that it put, and is of this version.
    pub(super) fn follow(&mut self, version: Uuid) {
        self.put.manifest = version;
        if let Origin::Classic(_, classic) = &mut self.origin {
            classic.supersede();
        }
    }

    /// What a classic client has to hear of it, if one put it.
    pub(super) fn classic(&self) -> Option<&Classic> {
        match &self.origin {
            Origin::Classic(_, classic) => Some(classic),
            Origin::Client(_) | Origin::Away(_) | Origin::Staged(_) => None,
        }
    }

    /// The connection that it came by.
    pub(super) fn conn(&self) -> Option<ConnId> {
        match &self.origin {
            Origin::Client(conn) | Origin::Classic(conn, _) => Some(*conn),
            Origin::Away(_) | Origin::Staged(_) => None,
        }
    }

    /// The client of ours that brings it.
    pub(super) fn client(&self) -> Option<ConnId> {
        match &self.origin {
            Origin::Client(conn) => Some(*conn),
            Origin::Away(_) | Origin::Classic(..) | Origin::Staged(_) => None,
        }
    }

    /// The job whose inputs it is.
    pub(super) fn staged(&self) -> Option<JobId> {
        match &self.origin {
            Origin::Staged(job) => Some(*job),
            Origin::Client(_) | Origin::Away(_) | Origin::Classic(..) => None,
        }
    }

    /// Whether its manifest and its packs were made here, of what is here.
    pub(super) fn is_made_here(&self) -> bool {
        match self.origin {
            Origin::Classic(..) | Origin::Staged(_) => true,
            Origin::Client(_) | Origin::Away(_) => false,
        }
    }

    /// The blob that brings its manifest.
    pub(super) fn manifest_id(&self) -> BlobId {
        self.put.manifest
    }

    /// Whether a blob is the manifest that it has brought.
    pub(super) fn brings_manifest(&self, blob: BlobId) -> bool {
        self.put.manifest == blob && (self.opened.contains(&blob) || self.is_made_here())
    }

    /// When it ends, unless it has ended or its client is back by then.
    pub(super) fn deadline(&self) -> Option<Micros> {
        self.deadline.into_iter().chain(self.away_until()).min()
    }

    /// Until when its client is waited for, if that is away.
    pub(super) fn away_until(&self) -> Option<Micros> {
        match &self.origin {
            Origin::Away(until) => Some(*until),
            Origin::Client(_) | Origin::Classic(..) | Origin::Staged(_) => None,
        }
    }

    /// Whether a client that says this goes on with it.
    pub(super) fn is_gone_on_with(&self, cache: &CacheId, put: &Put) -> bool {
        let is_of_client = matches!(self.origin, Origin::Client(_) | Origin::Away(_));
        let brings = matches!(self.stage, Stage::Manifest | Stage::Pieces);
        let is_same = self.cache == *cache
            && (self.put.manifest, self.put.digest) == (put.manifest, put.digest)
            && (self.put.bytes, self.put.files) == (put.bytes, put.files);
        is_of_client && brings && is_same
    }

    /// Bytes of the dataset.
    pub(super) fn bytes(&self) -> u64 {
        self.put.bytes
    }

    /// Whether its dataset is still to be kept.
    pub(super) fn is_coming(&self) -> bool {
        self.stage != Stage::Spreading
    }

    /// The pattern of the workers that are to have it.
    pub(super) fn target(&self) -> &str {
        self.put.target.as_str()
    }

    /// What identifies its content.
    pub(super) fn digest(&self) -> [u8; 32] {
        self.put.digest.bytes
    }

    /// Files of the dataset.
    pub(super) fn files(&self) -> u32 {
        self.put.files
    }
}
