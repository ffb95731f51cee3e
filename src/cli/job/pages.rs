//! Lists of jobs, a page at a time, for the commands that look for jobs.

use std::str::FromStr;

use crate::answers::{JobRow, JobState, ask};
use crate::cli::exit::Unavailable;
use crate::client::{Client, ClientError};

/// Jobs asked for at a time.
const PAGE_JOBS: u64 = 1_000;

/// Which jobs are meant.
#[derive(Clone, Debug, Default)]
pub(in crate::cli) struct Filter {
    /// All states if there are none.
    pub(in crate::cli) states: Vec<JobState>,
    pub(in crate::cli) client: Option<String>,
    pub(in crate::cli) exec: Option<String>,
    pub(in crate::cli) tag: Option<String>,
    pub(in crate::cli) since_ms: Option<u64>,
}

/// Reads a state on the command line.
pub(super) fn state(text: &str) -> Result<JobState, String> {
    match JobState::from(text.to_owned()) {
        JobState::Unknown | JobState::Other(_) => {
            let known = JobState::NAMES.iter().filter(|name| **name != JobState::Unknown.as_str());
            let known = known.copied().collect::<Vec<_>>().join(", ");
            Err(format!("\"{text}\" is not a state of a job: use {known}"))
        }
        state @ (JobState::Queued
        | JobState::Gathering
        | JobState::Running
        | JobState::Done
        | JobState::Failed
        | JobState::Dead
        | JobState::Cancelled) => Ok(state),
    }
}

/// Goes through the jobs that are meant, the newest first, up to `limit` of them; whether there are
/// more. A page is dropped before the next one is asked for.
pub(super) async fn each(
    client: &Client,
    leader: &str,
    filter: &Filter,
    limit: u64,
    mut take: impl FnMut(JobRow),
) -> anyhow::Result<bool> {
    let (mut left, mut after) = (limit, None);
    loop {
        let question = ask::JobLs {
            states: filter.states.clone(),
            client: filter.client.clone(),
            exec: filter.exec.clone(),
            tag: filter.tag.clone(),
            since_ms: filter.since_ms,
            // One more than are wanted, to know whether there is one.
            limit: Some(left.saturating_add(1).min(PAGE_JOBS)),
            after,
        };
        let page = client.ask(&question).await.map_err(|error| newer(leader, error))?.answer;
        for job in page.jobs {
            if left == 0 {
                return Ok(true);
            }
            left -= 1;
            take(job);
        }
        // A place that is not behind the last one would never end.
        match page.next {
            Some(next) if after.is_none_or(|after| next < after) => after = Some(next),
            Some(_) | None => return Ok(false),
        }
    }
}

/// The ids of the jobs that are meant, with their states.
pub(in crate::cli) async fn ids(
    client: &Client,
    leader: &str,
    filter: &Filter,
) -> anyhow::Result<Vec<(uuid::Uuid, JobState)>> {
    let mut ids = Vec::new();
    let mut take = |job: JobRow| {
        ids.extend(uuid::Uuid::from_str(&job.job_id).ok().map(|id| (id, job.state)));
    };
    each(client, leader, filter, u64::MAX, &mut take).await?;
    Ok(ids)
}

/// An older leader does not know the question: the error says what is needed.
pub(super) fn newer(leader: &str, error: ClientError) -> anyhow::Error {
    let is_older = matches!(
        &error,
        ClientError::Answered(text) if text.contains("is not a question this leader knows")
    );
    if is_older {
        return Unavailable(format!(
            "the leader at {leader} is an older heft, which cannot list, show, await or retry jobs: start \
             the heft of this command there (`heft status` shows its version)"
        ))
        .into();
    }
    error.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::{UNAVAILABLE, code_of};

    #[test]
    fn states_are_those_that_a_job_can_be_in() {
        assert_eq!(state("failed"), Ok(JobState::Failed));
        for text in ["unknown", "Failed", "", "x"] {
            let error = state(text).unwrap_err();
            assert!(
                error.contains("use queued, gathering, running, done, failed, dead, cancelled")
            );
        }
    }

    #[test]
    fn an_older_leader_is_said_to_be_one() {
        let text = "\"job.ls\" is not a question this leader knows: ask one of status";
        let error = newer("a:1", ClientError::Answered(text.to_owned()));
        assert_eq!(code_of(&error), UNAVAILABLE);
        assert!(error.to_string().contains("a:1 is an older heft"), "{error}");
        let other = newer("a:1", ClientError::Answered("no".to_owned()));
        assert_eq!(other.to_string(), "the leader answers: no");
    }
}
