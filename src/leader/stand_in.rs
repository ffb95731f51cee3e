//! Substitute job ids for later attempts on classic workers.
//!
//! A lost classic worker may still run the job, and every classic worker on a host runs a job in
//! `/tmp/jobs/<JobId>`. Under the same id, a second attempt would overwrite the inputs of the first
//! while it reads them. So each attempt after the first has an id of its own, which the session
//! translates back.

use bytes::Bytes;
use uuid::Uuid;

use crate::core::ids::{Attempt, JobId, Run};
use crate::model::{JobRequest, JsonModel};

/// The id of an attempt; none for the first, which has the job's own.
pub(super) fn id_of(job: JobId, run: Run, attempt: Attempt) -> Option<JobId> {
    if (run.0, attempt.0) <= (1, 1) {
        return None;
    }
    let mut named = b"heft attempt".to_vec();
    named.extend_from_slice(job.0.as_bytes());
    named.extend_from_slice(&run.0.to_le_bytes());
    named.extend_from_slice(&attempt.0.to_le_bytes());
    let digest = chunking::digest::blake3(&named);
    digest.first_chunk().map(|first| JobId(Uuid::from_bytes(*first)))
}

/// The request under another id; none if it is not a request.
pub(super) fn renamed(payload: &Bytes, id: JobId) -> Option<Bytes> {
    let mut request = JobRequest::parse(payload).ok()?;
    request.job_id = id.0;
    Some(request.to_json().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_attempt_but_the_first_has_an_id_of_its_own_which_is_the_same_whenever_it_is_asked_for()
    {
        let job = JobId(Uuid::from_u128(7));
        assert_eq!(id_of(job, Run(1), Attempt(1)), None);
        let all = [(1, 2), (1, 3), (2, 1), (2, 2)]
            .map(|(run, attempt)| id_of(job, Run(run), Attempt(attempt)));
        let again = id_of(job, Run(1), Attempt(2));
        assert!(all.iter().all(Option::is_some) && all[0] == again);
        let distinct: std::collections::HashSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn a_request_changes_its_id_alone_and_what_is_no_request_has_none() {
        let id = JobId(Uuid::from_u128(9));
        let request = JobRequest { exec_name: "calc".into(), ..JobRequest::default() };
        let renamed_to =
            renamed(&request.to_json().into(), id).and_then(|json| JobRequest::parse(&json).ok());
        assert_eq!(renamed_to, Some(JobRequest { job_id: id.0, ..request }));
        assert_eq!(renamed(&Bytes::from_static(b"raw"), id), None);
    }
}
