//! Questions about several jobs, one after the other.

use std::process::ExitCode;

use serde_json::json;
use uuid::Uuid;

use super::pages::newer;
use crate::answers::ask::Ask;
use crate::cli::exit::{code_of, report};
use crate::cli::output;
use crate::cli::{Output, Unwritten, print_json};
use crate::client::{Client, ClientError};

/// Asks about each job. Of several, one that is refused is no reason to leave the others: the last
/// refusal is the exit code.
pub(in crate::cli) async fn ask_each<Q: Ask>(
    client: &Client,
    leader: &str,
    output: Output,
    jobs: &[Uuid],
    question: impl Fn(Uuid) -> Q,
    show: impl Fn(Uuid, &Q::Answer) -> Result<(), Unwritten>,
) -> anyhow::Result<ExitCode> {
    let (are_several, mut last) = (jobs.len() > 1, None);
    for job in jobs {
        match client.ask(&question(*job)).await {
            Ok(answered) => show(*job, &answered.answer)?,
            Err(error @ (ClientError::Answered(_) | ClientError::NotFound(_))) if are_several => {
                last = Some(fail(output, *job, newer(leader, error))?);
            }
            Err(error) => return Err(newer(leader, error)),
        }
    }
    Ok(last.unwrap_or(ExitCode::SUCCESS))
}

/// Says why nothing was done about one of several jobs.
fn fail(output: Output, job: Uuid, error: anyhow::Error) -> Result<ExitCode, Unwritten> {
    if !output.is_json() {
        return Ok(report(&error, false));
    }
    print_json(&json!({"job_id": job, "error": output::as_json(&error)}))?;
    Ok(ExitCode::from(code_of(&error)))
}
