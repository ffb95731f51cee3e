//! `heft result get`: fetches the result of a job that has ended, whoever submitted it, with what
//! was too large to come with it.

use std::process::ExitCode;
use std::time::Duration;

use anyhow::bail;
use clap::{Args, Subcommand};
use tokio::time::{interval, timeout};
use uuid::Uuid;

use super::all::{Asker, show_all};
use super::children::children;
use super::exit::{TimedOut, Usage};
use super::interrupts::interrupts;
use super::job_line::Line;
use super::out::OutArgs;
use super::progress::Progress;
use super::show::{Show, show};
use super::{Output, Reach, job_id, print_json, say};
use crate::client::{Client, Downloads, Finished};
use crate::units::Span;

const EXAMPLES: &str = "Examples:
  heft result get 127.0.0.1:5000 00112233-4455-6677-8899-aabbccddeeff --out results
  heft result get 127.0.0.1:5000 00112233-4455-6677-8899-aabbccddeeff --output json | jq -r .status

Without --out the files the job created are not fetched.

Exit codes: 0 the job ended OK, 1 it FAILED, the leader has no result of it or bytes of the result are missing, 2 invalid
command line, 3 the leader cannot be reached or is a classic one, 4 --timeout ran out.";

/// Fetch results stored at the leader
#[derive(Debug, Args)]
pub struct ResultArgs {
    #[command(subcommand)]
    command: ResultCommand,
}

#[derive(Debug, Subcommand)]
enum ResultCommand {
    Get(GetArgs),
}

/// Fetch the result of an ended job
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
struct GetArgs {
    /// Leader address.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    /// Job id.
    #[arg(value_name = "JOBID", value_parser = job_id)]
    job: Uuid,
    #[command(flatten)]
    out: OutArgs,
    /// Output format.
    #[arg(long, value_enum, default_value_t)]
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
    let ResultCommand::Get(args) = &args.command;
    super::block_on(get(args))
}

async fn get(args: &GetArgs) -> anyhow::Result<ExitCode> {
    args.out.check()?;
    let client = args.reach.asking(&args.leader).await?;
    let mut interrupts = interrupts();
    let shown = tokio::select! {
        shown = get_in_time(args, &client) => shown,
        Some(interrupt) = interrupts.recv() => {
            say("stopped; the result stays at the leader, and what was unpacked of it is removed");
            Ok(ExitCode::from(interrupt.code()))
        }
    };
    client.close().await;
    shown
}

async fn get_in_time(args: &GetArgs, client: &Client) -> anyhow::Result<ExitCode> {
    let Some(limit) = args.timeout else { return get_and_show(args, client).await };
    timeout(limit.0, get_and_show(args, client)).await.unwrap_or_else(|_| {
        Err(TimedOut::Waiting(format!(
            "the result of job {} did not arrive within {limit} (--timeout): try again with a \
             longer timeout",
            args.job
        ))
        .into())
    })
}

async fn get_and_show(args: &GetArgs, client: &Client) -> anyhow::Result<ExitCode> {
    let wanted = args.out.downloads(args.output);
    let Some(finished) = fetch(client, args.job, &wanted, args.progress, args.output).await? else {
        if args.output == Output::Json {
            print_json(&serde_json::json!({"job_id": args.job, "status": "NOT_FOUND"}))?;
        }
        bail!(
            "the leader at {} has no result of job {}: the job has not ended, is unknown there, or \
             its result has expired; see `heft status {}`",
            args.leader,
            args.job,
            args.leader
        );
    };
    let result = finished.result()?;
    let GetArgs { leader, out, output, progress, .. } = args;
    let show_args = Show { leader, out, output: *output, progress: *progress };
    let shown = match children(&result) {
        Some(_) if out.save_archive.is_some() => {
            return Err(Usage(format!(
                "job {} went to all workers, and each has an archive of its own: fetch one of them \
                 by its job id, or use --out",
                args.job
            ))
            .into());
        }
        Some(children) => {
            let asker = Asker { client, progress: *progress };
            show_all(&show_args, &asker, &result, &children).await
        }
        None => show(&show_args, &result, &finished).await,
    };
    shown.map(|shown| shown.code)
}

/// Fetches a result, and shows how far it is.
pub(crate) async fn fetch(
    client: &Client,
    job: Uuid,
    downloads: &Downloads,
    progress: Progress,
    output: Output,
) -> anyhow::Result<Option<Finished>> {
    let mut line = Line::new(job, progress, output == Output::Json);
    let fetching = client.fetch(job, downloads);
    tokio::pin!(fetching);
    let mut refresh = interval(Duration::from_millis(200));
    let fetched = loop {
        tokio::select! {
            fetched = &mut fetching => break fetched,
            _ = refresh.tick() => {
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
