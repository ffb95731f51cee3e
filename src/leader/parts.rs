//! Splits results that do not fit their receiver's frame: the large parts become blobs, stored as
//! long as the result. A peer with transfers receives the blobs; a peer without is told how to
//! fetch them.

use bytes::Bytes;
use chunking::limits::FRAME_BODY_BYTES_MAX;
use chunking::message::Purpose;

use super::Leader;
use super::large_frames::gather_chunks;
use super::relay::{BlobId, Relay};
use crate::core::ids::{JobId, ResultId};
use crate::model::blob_id;
use crate::model::limits::SUBJECT_BYTES_MAX;
use crate::model::{BlobRef, JobResult, JsonModel, ResultSlot};

pub(super) use crate::model::limits::TEXT_HEAD_BYTES;

/// A result of this size fits a frame to anybody, whatever its subject is, and an answer.
pub(super) const RESULT_BYTES_MAX: usize = FRAME_BODY_BYTES_MAX as usize - SUBJECT_BYTES_MAX - 1024;

/// Which parts of a result go to who gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Named {
    /// The parts that the worker sent. The result is sent whole or cut. Other clients may have got
    /// it with parts that the leader made of it.
    Brought,
    /// Also the parts that the leader made of it.
    Made,
}

/// The part that is made here of a content of a result. The ids follow from the job: who asks again
/// gets the same blobs.
fn made_of(job: JobId, slot: ResultSlot) -> BlobId {
    blob_id(job.0, 0, purpose_of(slot), 0)
}

/// Whether a part was made here of the result of a job.
pub(super) fn is_made(job: JobId, part: BlobId) -> bool {
    [ResultSlot::Archive, ResultSlot::Stdout, ResultSlot::Stderr]
        .iter()
        .any(|slot| made_of(job, *slot) == part)
}

/// What a content of a result is to its job.
pub(super) const fn purpose_of(slot: ResultSlot) -> Purpose {
    match slot {
        ResultSlot::Archive => Purpose::Archive,
        ResultSlot::Stdout => Purpose::Stdout,
        ResultSlot::Stderr => Purpose::Stderr,
    }
}

/// Takes a text out of a result, as this blob; its beginning stays. Says whether it was long enough
/// for that, and no blob.
pub(super) fn take_text(
    relay: &mut Relay,
    job: JobId,
    result: &mut JobResult,
    slot: ResultSlot,
    id: BlobId,
) -> bool {
    let (text, blob) = match slot {
        ResultSlot::Stdout => (&mut result.stdout, &mut result.stdout_blob),
        ResultSlot::Stderr => (&mut result.stderr, &mut result.stderr_blob),
        ResultSlot::Archive => return false,
    };
    if text.len() <= TEXT_HEAD_BYTES || blob.is_some() {
        return false;
    }
    let head = text.get(..text.floor_char_boundary(TEXT_HEAD_BYTES)).unwrap_or_default().to_owned();
    let whole = std::mem::replace(text, head);
    *blob = Some(blob_of(relay, id, job, slot, whole.into_bytes()));
    true
}

/// A part of a result as the blob of this id, which is made if it is not here.
fn blob_of(relay: &mut Relay, id: BlobId, job: JobId, slot: ResultSlot, bytes: Vec<u8>) -> BlobRef {
    let bytes = Bytes::from(bytes);
    let size = bytes.len() as u64;
    let digest = if relay.knows(id) {
        relay.digest(id)
    } else {
        gather_chunks(relay, id, purpose_of(slot), &bytes);
        relay.gathered(id, job, purpose_of(slot), "", size).ok().flatten()
    };
    BlobRef { id, size, digest }
}

impl Leader {
    /// A result with what is long of it as blobs, which are kept like the result. `None` if there
    /// is nothing long in it, or it is not a JobResult.
    pub(super) fn parts_apart(
        &mut self,
        job: JobId,
        result: ResultId,
        whole: &[u8],
    ) -> Option<Vec<u8>> {
        let mut parsed = JobResult::parse(whole).ok()?;
        let mut made = Vec::new();
        if let Some(archive) =
            parsed.output_archive.take_if(|archive| archive.len() > TEXT_HEAD_BYTES)
        {
            let id = made_of(job, ResultSlot::Archive);
            parsed.archive = Some(blob_of(&mut self.relay, id, job, ResultSlot::Archive, archive));
            made.push(id);
        }
        for slot in [ResultSlot::Stdout, ResultSlot::Stderr] {
            let id = made_of(job, slot);
            if take_text(&mut self.relay, job, &mut parsed, slot, id) {
                made.push(id);
            }
        }
        self.add_parts(result, &made);
        (!made.is_empty()).then(|| parsed.to_json())
    }
}
