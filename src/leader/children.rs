//! Builds the frames of a job for all workers. Every worker gets the same request except for the
//! job id, so the body is encoded once and shared by all frames. The leader's memory holds one
//! copy, not one per worker.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;

use crate::conn::WireFrame;
use crate::core::ids::JobId;
use crate::model::{Deliver, JobRequest, JsonModel};
use crate::summed::{Fronted, Summed};

/// Requests of jobs to all workers that are kept in memory for workers which have yet to get them.
/// Others are built again.
const COMMONS_MAX: usize = 4;

/// What of a request is written anew for a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rewriting {
    /// Nothing: the worker is a heft worker.
    None,
    /// The names of files, where the request says so.
    Names,
    /// The names, and the paths of cached files.
    Paths,
}

/// A job's frame for a worker.
#[derive(Debug)]
pub(super) struct Assigned {
    pub(super) frame: WireFrame,
    /// Which request it shares with others.
    pub(super) common: Option<CommonId>,
}

/// What is in memory once for many frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum CommonId {
    /// The request of a job's children, as it was written at some time.
    Request(u64),
    /// A dataset for classic workers, by its version.
    Dataset(uuid::Uuid),
}

/// A request for the children of a job.
#[derive(Clone, Debug)]
pub(super) struct Common {
    id: CommonId,
    owner: JobId,
    is_classic: bool,
    rewriting: Rewriting,
    /// What stands before the child's id; nothing where it is not named.
    before: Option<Bytes>,
    rest: Summed,
    limit: Option<Duration>,
}

impl Common {
    /// Of a request that names no job yet, with how long it may run.
    pub(super) fn new(
        owner: JobId,
        is_classic: bool,
        rewriting: Rewriting,
        (request, limit): (Summed, Option<Duration>),
    ) -> Self {
        let id = CommonId::Request(0);
        let nil = uuid::Uuid::nil().hyphenated().to_string();
        // Our JSON begins with it.
        let at = r#"{"JobId":""#.len();
        let names_it = request.get(at..at + nil.len()) == Some(nil.as_bytes());
        let (before, rest) = match names_it {
            true => (Some(request.slice(..at)), request.slice(at + nil.len()..).into()),
            false => (None, request),
        };
        Common { id, owner, is_classic, rewriting, before, rest, limit }
    }

    /// What a child's frame has.
    pub(super) fn payload(&self, child: JobId) -> Fronted {
        let front = self.before.as_ref().map(|before| {
            let id = child.0.hyphenated().to_string();
            [before, id.as_bytes()].concat()
        });
        Fronted::new(front.unwrap_or_default(), self.rest.clone())
    }

    pub(super) fn id(&self) -> CommonId {
        self.id
    }

    /// How long the job may run.
    pub(super) fn limit(&self) -> Option<Duration> {
        self.limit
    }
}

/// Those that were used last.
#[derive(Debug, Default)]
pub(super) struct Commons {
    kept: VecDeque<Common>,
    last: u64,
}

impl Commons {
    /// The request of a job's children, as such a worker gets it. What changed in memory since it
    /// was written is not used: a classic worker could not tell.
    pub(super) fn get(
        &self,
        owner: JobId,
        is_classic: bool,
        rewriting: Rewriting,
    ) -> Option<Common> {
        let is_it = |common: &&Common| {
            (common.owner, common.is_classic, common.rewriting) == (owner, is_classic, rewriting)
        };
        self.kept.iter().find(is_it).filter(|common| common.rest.is_sound()).cloned()
    }

    /// Keeps one for the next child, for as long as few others are used.
    pub(super) fn keep(&mut self, mut common: Common) -> Common {
        if common.id == CommonId::Request(0) {
            self.last += 1;
            common.id = CommonId::Request(self.last);
        }
        let key = |common: &Common| (common.owner, common.is_classic, common.rewriting);
        self.kept.retain(|kept| key(kept) != key(&common));
        self.kept.push_back(common.clone());
        if self.kept.len() > COMMONS_MAX {
            self.kept.pop_front();
        }
        common
    }

    /// A job's payload is not needed any more.
    pub(super) fn forget(&mut self, owner: JobId) {
        self.kept.retain(|common| common.owner != owner);
    }

    /// What they are written by has changed.
    pub(super) fn clear(&mut self) {
        self.kept.clear();
    }
}

/// The payload of a child of a job to all workers: the same, under its own id (M17).
pub(super) fn for_child(payload: &Bytes, child: JobId) -> Bytes {
    match JobRequest::parse(payload) {
        Ok(mut request) => {
            request.job_id = child.0;
            request.deliver = Deliver::One;
            request.to_json().into()
        }
        Err(_) => payload.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    fn whole(fronted: Fronted) -> Vec<u8> {
        let front = fronted.front().to_vec();
        [front, fronted.into_rest().to_vec()].concat()
    }

    #[test]
    fn children_share_all_of_a_request_but_its_id_and_what_is_no_request_stays_as_it_is() {
        let id = |number: u128| JobId(Uuid::from_u128(number));
        let request =
            JobRequest { exec_name: "calc".into(), deliver: Deliver::All, ..JobRequest::default() };
        for payload in [Bytes::from(request.to_json()), Bytes::from_static(b"raw")] {
            let mut commons = Commons::default();
            let made = (Summed::from(for_child(&payload, JobId(Uuid::nil()))), None);
            let common = commons.keep(Common::new(id(1), false, Rewriting::None, made));
            let (first, second) = (common.payload(id(2)), common.payload(id(3)));
            assert_eq!(first.crc(), crc32fast::hash(&for_child(&payload, id(2))));
            let (one, two) = (first.clone().into_rest(), second.clone().into_rest());
            assert_eq!(one.as_ptr(), two.as_ptr(), "the same bytes in memory");
            assert_eq!(whole(first), for_child(&payload, id(2)));
            assert_eq!(whole(second), for_child(&payload, id(3)));
            let again = commons.get(id(1), false, Rewriting::None).map(|common| common.id());
            assert_eq!(again, Some(common.id()));
            assert!(commons.get(id(1), true, Rewriting::Names).is_none());
        }
    }
}
