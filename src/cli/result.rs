//! `heft result get`: fetches the result of a job that has ended, whoever submitted it, with what
//! was too large to come with it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::anyhow;
use clap::{Args, Subcommand};
use serde_json::json;
use tokio::time::interval;
use uuid::Uuid;

use super::children::children;
use super::exit::{NOT_FOUND, Usage, code_of, report, within};
use super::interrupts::{Stopped, interrupts};
use super::job::ls;
use super::job_line::Line;
use super::last::{JobRef, job_ref};
use super::out::OutArgs;
use super::output::{self, OUTPUT_VARIABLE};
use super::progress::Progress;
use super::reach::Leader;
use super::show::{Show, show};
use super::show_children::{Asker, show_all};
use super::{Output, Reach, print_json};
use crate::answers::JobState;
use crate::client::{Client, Downloads, Finished, LinkState};
use crate::units::Span;

const EXAMPLES: &str = "Examples:
  heft result get 00112233-4455-6677-8899-aabbccddeeff --out results
  heft result get 00112233-4455-6677-8899-aabbccddeeff --output json | jq -r .status

Without --out the files the job created are not fetched.

Exit codes: 0 the job ended OK, 1 it FAILED, it has not ended or bytes of the result are
missing, 2 invalid command line, 3 the leader cannot be reached or is a classic one, 4 --timeout
ran out, 5 the leader has no result of it.";

/// Fetch results stored at the leader
#[derive(Debug, Args)]
pub struct ResultArgs {
    #[command(subcommand)]
    command: ResultCommand,
}

#[derive(Debug, Subcommand)]
enum ResultCommand {
    Get(Box<GetArgs>),
    /// List the jobs that have ended, the newest first: `get` fetches the result of each as long as
    /// it is stored.
    Ls(Box<ls::Choice>),
}

/// Of which jobs the leader may have results.
const ENDED: [JobState; 4] =
    [JobState::Done, JobState::Failed, JobState::Dead, JobState::Cancelled];

/// Fetch the result of an ended job
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct GetArgs {
    /// Job id, or `last`.
    #[arg(value_name = "JOBID", value_parser = job_ref)]
    job: JobRef,
    #[command(flatten)]
    out: OutArgs,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    /// Time to try (default: no limit).
    #[arg(long, value_name = "TIME")]
    timeout: Option<Span>,
    /// Progress output: a line on a terminal, JSON objects on standard error, or none.
    #[arg(long, value_enum, default_value_t)]
    progress: Progress,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &ResultArgs) -> anyhow::Result<ExitCode> {
    match &args.command {
        ResultCommand::Get(args) => super::block_on(get(args)),
        ResultCommand::Ls(choice) => super::block_on_until_stopped(ls::list(choice, &ENDED)),
    }
}

async fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    args.out.check()?;
    args.out.remove_abandoned(args.output);
    let mut interrupts = interrupts()?;
    tokio::select! {
        shown = within(args.timeout, get_at_leader(args), |limit| format!(
            "the result of job {} did not arrive within {limit} (--timeout): try again with a \
             longer timeout", args.job
        )) => shown,
        Some(interrupt) = interrupts.recv() => {
            let text = format!("{} ended heft result get: the result stays at the leader, and what \
                                was unpacked of it is removed", interrupt.name());
            Err(Stopped { interrupt, text, job: None }.into())
        }
    }
}

async fn get_at_leader(args: &GetArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let job = args.job.resolve(leader.address())?;
    let client = args.reach.asking(&leader).await?;
    let shown = get_and_show(args, job, &leader, &client).await;
    client.close().await;
    shown
}

async fn get_and_show(
    args: &GetArgs,
    job: Uuid,
    leader: &Leader,
    client: &Client,
) -> anyhow::Result<ExitCode> {
    let wanted = args.out.downloads(args.output);
    let fetched = fetch(client, job, &wanted, args.progress, args.output).await;
    let fetched = match fetched {
        Err(error) if code_of(&error) == NOT_FOUND => return none_there(args, job, &error),
        fetched => fetched?,
    };
    let Some(finished) = fetched else {
        return none_there(
            args,
            job,
            &anyhow!(
                "the leader at {} has no result of job {}: the job has not ended, is unknown there, or \
             its result has expired; see `{}`",
                leader.address(),
                job,
                leader.command("status")
            ),
        );
    };
    let result = finished.result()?;
    let GetArgs { out, output, progress, .. } = args;
    let show_args = Show { leader, out, output: *output, progress: *progress };
    let shown = match children(&result) {
        Some(_) if out.save_archive.is_some() => {
            return Err(Usage(format!(
                "job {job} went to all workers, and each has an archive of its own: fetch one of \
                 them by its job id, or use --out"
            ))
            .into());
        }
        Some(children) => {
            let asker = Asker { client, progress: *progress };
            show_all(&show_args, &asker, &result, &children).await
        }
        None => show(&show_args, client, &result, &finished).await,
    };
    shown.map(|shown| shown.code)
}

/// The leader has no result of the job.
fn none_there(args: &GetArgs, job: Uuid, error: &anyhow::Error) -> anyhow::Result<ExitCode> {
    if !args.output.is_json() {
        return Ok(report(error, false));
    }
    let error_shown = output::as_json(error);
    print_json(&json!({"job_id": job, "status": "NOT_FOUND", "error": error_shown}))?;
    Ok(ExitCode::from(code_of(error)))
}

/// Fetches a result, and shows how far it is.
pub(crate) async fn fetch(
    client: &Client,
    job: Uuid,
    downloads: &Downloads,
    progress: Progress,
    output: Output,
) -> anyhow::Result<Option<Finished>> {
    let mut line = Line::new(job, progress, !output.is_for_people());
    let fetching = client.fetch(job, downloads);
    tokio::pin!(fetching);
    let (mut refresh, mut is_away) = (interval(Duration::from_millis(200)), false);
    let fetched = loop {
        tokio::select! {
            fetched = &mut fetching => break fetched,
            _ = refresh.tick() => {
                match client.state() {
                    LinkState::Down { leader, why } if !is_away => {
                        is_away = true;
                        line.note(&format!("no connection to {leader}: {why}; trying again"));
                    }
                    LinkState::Up { .. } => is_away = false,
                    LinkState::Connecting { .. }
                    | LinkState::Greeting { .. }
                    | LinkState::Down { .. } => {}
                }
                let (done, total) = client.fetched(job);
                if total > 0 {
                    line.take(&crate::client::JobEvent::Downloading { done, total });
                }
            }
        }
    };
    line.clear();
    Ok(fetched?)
}
