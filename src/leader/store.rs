//! The bytes of jobs and results while the leader holds them in memory, counted.

use std::collections::HashMap;

use bytes::Bytes;

use crate::core::ids::{JobId, ResultId};

/// The payload of a job.
#[derive(Clone, Debug)]
pub(super) struct Input {
    /// Its bytes.
    pub(super) payload: Bytes,
    /// Whether a client that announced itself wrote it.
    pub(super) from_ours: bool,
}

/// Payloads by what they belong to.
#[derive(Debug, Default)]
pub(super) struct PayloadStore {
    inputs: HashMap<JobId, Input>,
    results: HashMap<ResultId, Bytes>,
    input_bytes: u64,
    result_bytes: u64,
    next: ResultId,
}

impl PayloadStore {
    /// Bytes of jobs that are held.
    pub(super) fn input_bytes(&self) -> u64 {
        self.input_bytes
    }

    /// Bytes of results that are held.
    pub(super) fn result_bytes(&self) -> u64 {
        self.result_bytes
    }

    /// Keeps the payload of a job. A job that is known keeps the one it has: it is the same, or the job is refused.
    pub(super) fn keep_input(&mut self, job: JobId, input: Input) {
        if !self.inputs.contains_key(&job) {
            self.input_bytes += input.payload.len() as u64;
            self.inputs.insert(job, input);
        }
    }

    /// The payload of a job.
    pub(super) fn input(&self, job: JobId) -> Option<&Input> {
        self.inputs.get(&job)
    }

    /// Drops the payload of a job.
    pub(super) fn forget_input(&mut self, job: JobId) {
        if let Some(input) = self.inputs.remove(&job) {
            self.input_bytes -= input.payload.len() as u64;
        }
    }

    /// Keeps a result.
    pub(super) fn keep_result(&mut self, payload: Bytes) -> ResultId {
        self.next = self.next.next();
        self.result_bytes += payload.len() as u64;
        self.results.insert(self.next, payload);
        self.next
    }

    /// A result.
    pub(super) fn result(&self, result: ResultId) -> Option<&Bytes> {
        self.results.get(&result)
    }

    /// Drops a result.
    pub(super) fn forget_result(&mut self, result: ResultId) {
        if let Some(payload) = self.results.remove(&result) {
            self.result_bytes -= payload.len() as u64;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_counted_once_and_given_back() {
        let mut store = PayloadStore::default();
        let job = JobId(uuid::Uuid::from_u128(1));
        let input = Input { payload: Bytes::from_static(b"abc"), from_ours: false };
        store.keep_input(job, input.clone());
        store.keep_input(job, input);
        let result = store.keep_result(Bytes::from_static(b"defgh"));
        assert_eq!(
            (store.input_bytes(), store.result_bytes(), store.result(result).map(Bytes::len)),
            (3, 5, Some(5))
        );
        store.forget_input(job);
        store.forget_input(job);
        store.forget_result(result);
        store.forget_result(result);
        assert_eq!((store.input_bytes(), store.result_bytes(), store.input(job).is_none()), (0, 0, true));
    }
}
