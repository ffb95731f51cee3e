//! Decodes and encodes dataset messages.

use bytes::Bytes;
use chunking::message::{Body, Features, Have, Lack, Pack, Put};
use chunking::{EncodeError, Head, Kind, MessageError};
use uuid::Uuid;

use super::{Session, WireFrame};
use crate::model::{CachePutResult, JsonModel};

/// Something that a peer said about a dataset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetSays {
    /// A client puts one.
    Put {
        request: Uuid,
        /// What it says.
        put: Put,
    },
    /// What a pack holds that a client is about to open.
    Pack {
        pack: Uuid,
        request: Uuid,
        /// What it says.
        says: Pack,
    },
    /// What a worker lacks.
    Lack {
        version: Uuid,
        /// What it says.
        lack: Lack,
    },
    /// What a worker has.
    Have(Have),
    /// What a worker made of a dataset.
    Ack {
        /// What it answers: a version, or a question.
        to: Uuid,
        /// What it says.
        result: CachePutResult,
    },
    /// A classic client's put, whole in one frame (T06).
    Classic {
        request: Uuid,
        /// The subject, which names the workers that are to have it.
        subject: String,
        payload: Bytes,
    },
}

impl DatasetSays {
    /// Reads what a client says; `None` if it is nothing about datasets.
    pub(super) fn from_client(
        head: &Head<'_>,
        kind: Kind,
        payload: &Bytes,
        is_ours: bool,
    ) -> Option<Result<Self, MessageError>> {
        if kind == Kind::CachePut {
            let (request, subject) = (head.msg_id, head.subject.to_owned());
            return Some(Ok(DatasetSays::Classic { request, subject, payload: payload.clone() }));
        }
        if kind == Kind::Put && is_ours {
            return Some(
                Put::decode(payload).map(|put| DatasetSays::Put { request: head.msg_id, put }),
            );
        }
        let (pack, request) = (head.msg_id, head.corr_id);
        (kind == Kind::Pack && is_ours)
            .then(|| Pack::decode(payload).map(|says| DatasetSays::Pack { pack, request, says }))
    }

    /// Reads what a worker says.
    pub(super) fn from_worker(
        head: &Head<'_>,
        kind: Kind,
        payload: &[u8],
        is_ours: bool,
    ) -> Option<Result<Self, MessageError>> {
        if kind == Kind::CacheAck {
            // Bytes that are not a result say nothing.
            let result = CachePutResult::parse(payload).ok()?;
            return Some(Ok(DatasetSays::Ack { to: head.corr_id, result }));
        }
        if kind == Kind::Lack && is_ours {
            let version = head.msg_id;
            return Some(Lack::decode(payload).map(|lack| DatasetSays::Lack { version, lack }));
        }
        (kind == Kind::Have && is_ours).then(|| Have::decode(payload).map(DatasetSays::Have))
    }
}

impl Session {
    /// A message about a dataset; `None` if the peer knows none.
    pub fn dataset<M: Body>(&self, id: Uuid, corr: Uuid, message: &M) -> Option<WireFrame> {
        self.ours(Features::DATASETS, id, corr, message)
    }

    /// How a put ended at one worker (T07), for any client.
    pub fn cache_ack(&self, request: Uuid, result: &CachePutResult) -> Option<WireFrame> {
        let subject = format!("cache.ack.{}", result.cache_id);
        let head = Head { corr_id: request, subject: &subject, ..Head::new(Kind::CacheAck) };
        self.frame(head, result.to_json()).ok()
    }

    /// The subject of a put for a classic worker (S08).
    pub const CACHE_PUT_SUBJECT: &str = "cache.put";

    /// A put as the founding documents have it, for a classic worker.
    pub fn cache_put(&self, request: Uuid, payload: Bytes) -> Result<WireFrame, EncodeError> {
        let subject = Self::CACHE_PUT_SUBJECT;
        self.frame(Head { corr_id: request, subject, ..Head::new(Kind::CachePut) }, payload)
    }
}
