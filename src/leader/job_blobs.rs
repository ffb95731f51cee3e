//! Which blobs belong to which job and to which result.

use std::collections::HashMap;

use super::relay::BlobId;
use crate::core::ids::{Attempt, ConnId, JobId, ResultId};

/// The blobs of jobs and of results.
#[derive(Debug, Default)]
pub(super) struct Blobs {
    /// Inputs of jobs that have not ended.
    pub(super) inputs: HashMap<JobId, Vec<BlobId>>,
    /// Parts of results that have not been acknowledged, with the attempt that made them.
    pub(super) coming: HashMap<JobId, Vec<(Attempt, BlobId)>>,
    /// Parts of results that are kept.
    pub(super) of_result: HashMap<ResultId, Vec<BlobId>>,
    /// Results that name a blob: a result that is sent again names the same ones.
    pub(super) named: HashMap<BlobId, usize>,
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

    /// The inputs of a job of an earlier life.
    pub(super) fn restore_inputs(&mut self, job: JobId, blobs: Vec<BlobId>) {
        self.inputs.insert(job, blobs);
    }

    /// The parts of a result of an earlier life.
    pub(super) fn restore_parts(&mut self, result: ResultId, parts: Vec<BlobId>) {
        for part in &parts {
            *self.named.entry(*part).or_default() += 1;
        }
        self.of_result.insert(result, parts);
    }

    /// A part of a result of an earlier life cannot be used.
    pub(super) fn lost_part(&mut self, part: BlobId, why: String) {
        self.lost.insert(part, why);
    }

    /// A part of a result that was coming in an earlier life.
    pub(super) fn restore_coming(&mut self, job: JobId, attempt: Attempt, part: BlobId) {
        self.coming.entry(job).or_default().push((attempt, part));
    }

    /// Parts of an attempt's result that have not been acknowledged.
    pub(super) fn coming(&self, job: JobId, attempt: Attempt) -> impl Iterator<Item = BlobId> {
        let coming = self.coming.get(&job).into_iter().flatten();
        coming.filter(move |(of, _)| *of == attempt).map(|(_, part)| *part)
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
