//! `heft job cancel`: ends jobs, by their ids or by their tag.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use uuid::Uuid;

use super::pages::{Filter, ids};
use crate::answers::{JobState, ask};
use crate::cli::exit::FAILED;
use crate::cli::last::{JobRef, job_ref};
use crate::cli::{Output, Reach, print, print_json, printable};
use crate::client::{Client, ClientError};

const EXAMPLES: &str = "Examples:
  heft job cancel -l 127.0.0.1:5000 last
  heft job cancel -l 127.0.0.1:5000 --tag nightly

Each job's client gets a result that says so. Exit codes: 0 all of them were cancelled, 1 some were not.";

/// Questions that wait for their answers at a time.
const AT_A_TIME: usize = 16;

/// Cancel jobs, in any state
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct CancelArgs {
    /// Leader address.
    #[arg(short, long, value_name = "HOST:PORT")]
    leader: String,
    #[command(flatten)]
    which: Which,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Job ids, or `last`.
    #[arg(value_name = "JOB_ID", value_parser = job_ref)]
    jobs: Vec<JobRef>,
    /// All jobs with this tag that have not ended.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
}

/// Runs the command.
pub(super) fn run(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    crate::cli::block_on(cancel(args))
}

async fn cancel(args: &CancelArgs) -> anyhow::Result<ExitCode> {
    let named = args.which.jobs.iter().map(|job| job.resolve(&args.leader));
    let mut jobs = named.collect::<Result<Vec<Uuid>, _>>()?;
    let client = args.reach.asking(&args.leader).await?;
    if let Some(tag) = &args.which.tag {
        let states = vec![JobState::Queued, JobState::Gathering, JobState::Running];
        let filter = Filter { states, tag: Some(tag.clone()), ..Filter::default() };
        let tagged = ids(&client, &args.leader, &filter).await?;
        jobs = tagged.into_iter().map(|(id, _)| id).collect();
    }
    let done = of_each(&client, jobs, |client, job_id| async move {
        let answered = client.ask(&ask::Cancel { job_id }).await?;
        Ok(answered.answer.was.as_str().to_owned())
    });
    let done = done.await?;
    client.close().await;
    let failed = done.iter().any(|(_, was)| was.is_err());
    match args.output {
        Output::Table => print(render(&done, args.which.tag.as_deref()).as_bytes())?,
        Output::Json => print_json(&json!({"jobs": done.iter().map(as_json).collect::<Vec<_>>()}))?,
    }
    Ok(if failed { ExitCode::from(FAILED) } else { ExitCode::SUCCESS })
}

/// What came of a question about one job: a word, or the leader's error.
pub(super) type Done = (Uuid, Result<String, String>);

/// Asks something about each job, a few at a time, and gives the answers in the order of the jobs.
/// What the leader answers with an error is no reason to leave the others; anything else is.
pub(super) async fn of_each<F>(
    client: &Client,
    jobs: Vec<Uuid>,
    ask: impl Fn(Client, Uuid) -> F,
) -> Result<Vec<Done>, ClientError>
where
    F: Future<Output = Result<String, ClientError>> + Send + 'static,
{
    let (mut asked, mut done) = (JoinSet::new(), Vec::with_capacity(jobs.len()));
    let mut waiting = jobs.into_iter().enumerate();
    loop {
        while asked.len() < AT_A_TIME
            && let Some((place, job)) = waiting.next()
        {
            let answer = ask(client.clone(), job);
            asked.spawn(async move { (place, job, answer.await) });
        }
        let Some(joined) = asked.join_next().await else { break };
        let (place, job, answer) = joined.map_err(|_| ClientError::Closed)?;
        let word = match answer {
            Ok(word) => Ok(word),
            Err(ClientError::Answered(text)) => Err(text),
            Err(error) => return Err(error),
        };
        done.push((place, (job, word)));
    }
    done.sort_by_key(|(place, _)| *place);
    Ok(done.into_iter().map(|(_, done)| done).collect())
}

fn render(done: &[Done], tag: Option<&str>) -> String {
    if let ([], Some(tag)) = (done, tag) {
        return format!("no job with the tag {} has yet to end\n", printable(tag));
    }
    let line = |(job, was): &Done| match was {
        Ok(was) => {
            let was = if was.is_empty() { "unknown" } else { was };
            format!("{job} cancelled; it was {}\n", printable(was))
        }
        Err(error) => format!("{job} not cancelled: {}\n", printable(error)),
    };
    done.iter().map(line).collect()
}

fn as_json((job, was): &Done) -> Value {
    match was {
        Ok(was) => json!({"job_id": job, "was": was}),
        Err(error) => json!({"job_id": job, "error": error}),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_job_has_a_line_with_what_came_of_it() {
        let job = Uuid::nil();
        let done: [Done; 2] = [(job, Ok("running".to_owned())), (job, Err("it ended".to_owned()))];
        let expected = format!("{job} cancelled; it was running\n{job} not cancelled: it ended\n");
        assert_eq!(render(&done, None), expected);
        assert_eq!(render(&[], Some("x")), "no job with the tag x has yet to end\n");
        assert_eq!(as_json(&done[1]), json!({"job_id": job, "error": "it ended"}));
    }
}
