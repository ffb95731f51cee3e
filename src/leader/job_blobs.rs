//! Records which blobs belong to which job and to which result.

use std::collections::HashMap;

use super::relay::BlobId;
use crate::core::ids::{Attempt, ConnId, JobId, ResultId};

/// The blobs of jobs and of results.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    /// Inputs of jobs that have not ended, or may run again.
    pub(super) inputs: HashMap<JobId, Vec<BlobId>>,
    /// Parts of results that have not been acknowledged, with the attempt that made them.
    coming: HashMap<JobId, Vec<(Attempt, BlobId)>>,
    /// Parts of results that are kept.
    of_result: HashMap<ResultId, Vec<BlobId>>,
    /// Results that name a blob: a result that is sent again names the same ones.
    named: HashMap<BlobId, usize>,
    /// Why parts of results that are kept are not here.
    pub(super) lost: HashMap<BlobId, String>,
    /// Jobs whose results wait for room, and the connections of their clients that were told.
    pub(super) told: HashMap<JobId, ConnId>,
}

impl Blobs {
    /// The inputs of a job.
    pub(super) fn inputs(&self, job: JobId) -> &[BlobId] {
        self.inputs.get(&job).map(Vec::as_slice).unwrap_or_default()
    }

    /// A part of a result comes. Attempt 0 is for what was gathered from a large frame.
    pub(super) fn comes(&mut self, job: JobId, attempt: Attempt, part: BlobId) {
        self.coming.entry(job).or_default().push((attempt, part));
    }

    /// Parts of a job's result that have not been acknowledged, with the attempt that made them.
    pub(super) fn coming(&self, job: JobId) -> &[(Attempt, BlobId)] {
        self.coming.get(&job).map(Vec::as_slice).unwrap_or_default()
    }

    /// The same of one attempt.
    pub(super) fn coming_of(&self, job: JobId, attempt: Attempt) -> impl Iterator<Item = BlobId> {
        self.coming(job).iter().filter(move |(of, _)| *of == attempt).map(|(_, part)| *part)
    }

    /// Takes those out that are not to be acknowledged any more.
    pub(super) fn take_coming(
        &mut self,
        job: JobId,
        mut is_out: impl FnMut(Attempt, BlobId) -> bool,
    ) -> Vec<BlobId> {
        let Some(coming) = self.coming.get_mut(&job) else { return Vec::new() };
        let out = coming.extract_if(.., |(attempt, part)| is_out(*attempt, *part));
        let out = out.map(|(_, part)| part).collect();
        if coming.is_empty() {
            self.coming.remove(&job);
        }
        out
    }

    /// A result that is kept names a part. Says whether that is new.
    pub(super) fn name_part(&mut self, result: ResultId, part: BlobId) -> bool {
        let parts = self.of_result.entry(result).or_default();
        let is_new = !parts.contains(&part);
        if is_new {
            parts.push(part);
            *self.named.entry(part).or_default() += 1;
        }
        is_new
    }

    /// Whether a result that is kept names a part.
    pub(super) fn is_named(&self, part: BlobId) -> bool {
        self.named.contains_key(&part)
    }

    /// A result is not kept any more: gives the parts that no other names.
    pub(super) fn forget_result(&mut self, result: ResultId) -> Vec<BlobId> {
        let mut parts = self.of_result.remove(&result).unwrap_or_default();
        parts.retain(|part| {
            let Some(named) = self.named.get_mut(part) else { return false };
            *named -= 1;
            *named == 0
        });
        for part in &parts {
            self.named.remove(part);
            self.lost.remove(part);
        }
        parts
    }

    /// Whether there are results with parts that are kept.
    pub(super) fn has_kept(&self) -> bool {
        !self.of_result.is_empty()
    }

    /// The parts of a result.
    pub(super) fn of_result(&self, result: ResultId) -> &[BlobId] {
        self.of_result.get(&result).map(Vec::as_slice).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    #[test]
    fn a_part_goes_with_the_last_result_that_names_it() {
        let (part, other) = (Uuid::from_u128(1), Uuid::from_u128(2));
        let mut blobs = Blobs::default();
        assert!(blobs.name_part(ResultId(1), part) && blobs.name_part(ResultId(1), other));
        assert!(!blobs.name_part(ResultId(1), part), "once for each result");
        assert!(blobs.name_part(ResultId(2), part));
        assert_eq!(blobs.forget_result(ResultId(1)), [other]);
        assert!(blobs.is_named(part) && !blobs.is_named(other));
        assert_eq!(blobs.forget_result(ResultId(2)), [part]);
        assert!(!blobs.has_kept() && blobs.forget_result(ResultId(2)).is_empty());
    }

    #[test]
    fn parts_that_come_are_taken_out_by_attempt() {
        let (job, id) = (JobId(Uuid::from_u128(9)), Uuid::from_u128);
        let mut blobs = Blobs::default();
        (0..4).for_each(|attempt| blobs.comes(job, Attempt(attempt), id(attempt.into())));
        assert_eq!(blobs.take_coming(job, |attempt, _| attempt < Attempt(2)), [id(0), id(1)]);
        assert!(blobs.coming_of(job, Attempt(2)).eq([id(2)]));
        assert_eq!(blobs.take_coming(job, |_, _| true), [id(2), id(3)]);
        assert!(blobs.coming.is_empty());
    }
}
