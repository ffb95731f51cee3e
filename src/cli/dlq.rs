//! `heft dlq`: the jobs that used up their attempts.

use std::process::ExitCode;
use std::time::Duration;

use crate::answers::{DeadJob, DeadShown, ask};
use crate::client::Client;
use clap::{Args, Subcommand};
use serde_json::json;
use uuid::Uuid;

use super::exit::Usage;
use super::last::{JobRef, job_ref};
use super::output::{OUTPUT_VARIABLE, show};
use super::reach::Leader;
use super::table::{Side, Table, text};
use super::{Output, Reach, Rows, Unwritten, about};

const EXAMPLES: &str = "Examples:
  heft dlq ls
  heft dlq show 00112233-4455-6677-8899-aabbccddeeff
  heft dlq requeue --all
  heft dlq purge 00112233-4455-6677-8899-aabbccddeeff

A requeued job starts a new run under its own id; its result replaces the one that said it was
dead.";

/// What is listed.
const JOBS: Rows = Rows { list: "jobs", id: "job_id" };

/// Jobs asked for at a time.
const PAGE_JOBS: u64 = 1_000;

/// Manage dead jobs, which used up their attempts
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DlqArgs {
    #[command(subcommand)]
    what: What,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the dead jobs.
    Ls {
        /// Maximum number of jobs to list.
        #[arg(long, default_value_t = 1_000)]
        limit: u64,
    },
    /// Show a dead job with its attempts.
    Show {
        /// Job id, or `last`.
        #[arg(value_name = "JOB_ID", value_parser = job_ref)]
        job: JobRef,
    },
    /// Requeue a dead job, or all.
    Requeue(Which),
    /// Remove a dead job, or all.
    Purge(Which),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// Job id, or `last`.
    #[arg(value_name = "JOB_ID", value_parser = job_ref)]
    job: Option<JobRef>,
    /// All dead jobs.
    #[arg(long)]
    all: bool,
}

impl Which {
    /// Nothing means all; clap sees to it that one of the two was said.
    fn job(&self, leader: &Leader) -> Result<Option<Uuid>, Usage> {
        match (self.job, self.all) {
            (Some(job), false) => job.resolve(leader.address()).map(Some),
            (None, true) => Ok(None),
            (Some(_), true) | (None, false) => Err(Usage("name one job, or say --all".to_owned())),
        }
    }
}

/// Runs the command.
pub fn run(args: &DlqArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(look(args))
}

async fn look(args: &DlqArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let client = args.reach.asking(&leader).await?;
    match &args.what {
        What::Ls { limit } => list(&client, *limit, args.output).await?,
        What::Show { job } => {
            let answered =
                client.ask(&ask::DlqShow { job_id: job.resolve(leader.address())? }).await?;
            show(args.output, &answered.json, None, || shown(&answered.answer))?;
        }
        What::Requeue(which) => {
            let answered =
                client.ask(&ask::DlqRequeue { which: which.job(&leader)?.into() }).await?;
            done(args.output, "requeued", answered.answer.requeued)?;
        }
        What::Purge(which) => {
            let answered = client.ask(&ask::DlqPurge { which: which.job(&leader)?.into() }).await?;
            done(args.output, "purged", answered.answer.purged)?;
        }
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

fn done(output: Output, what: &str, count: u64) -> Result<(), Unwritten> {
    show(output, &json!({ what: count }), None, || format!("{count} {what}\n"))
}

async fn list(client: &Client, limit: u64, output: Output) -> anyhow::Result<()> {
    let mut jobs: Vec<DeadJob> = Vec::new();
    let mut more = true;
    while more && (jobs.len() as u64) < limit {
        let page = PAGE_JOBS.min(limit - jobs.len() as u64);
        let after = jobs.last().and_then(|job| job.job_id.parse().ok());
        let page = client.ask(&ask::DlqLs { limit: Some(page), after }).await?.answer;
        more = page.more && !page.jobs.is_empty();
        jobs.extend(page.jobs);
    }
    let listed = json!({"jobs": jobs, "more": more});
    Ok(show(output, &listed, Some(JOBS), || table(&jobs, more))?)
}

fn table(jobs: &[DeadJob], more: bool) -> String {
    if jobs.is_empty() {
        return "the dead-letter queue is empty\n".to_owned();
    }
    let mut table = Table::new(&[
        ("JOB", Side::Left),
        ("CLIENT", Side::Left),
        ("EXEC", Side::Left),
        ("ATTEMPTS", Side::Right),
        ("RUN", Side::Right),
        ("AGE", Side::Right),
        ("REASON", Side::Left),
    ])
    .may_go(&["RUN", "ATTEMPTS", "AGE", "CLIENT", "REASON"]);
    for job in jobs {
        table.row([
            text(&job.job_id),
            text(&job.client_id),
            text(&job.exec),
            job.attempts.to_string(),
            job.run.to_string(),
            age(job.dead_ms),
            text(&job.reason),
        ]);
    }
    let more = if more { "there are more: raise --limit\n" } else { "" };
    format!("{}{more}", table.render())
}

fn shown(shown: &DeadShown) -> String {
    let DeadShown { job, history, .. } = shown;
    let mut lines = String::new();
    for (label, what) in [
        ("job", text(&job.job_id)),
        ("client", text(&job.client_id)),
        ("exec", text(&job.exec)),
        ("reason", text(&job.reason)),
        ("attempts", job.attempts.to_string()),
        ("run", job.run.to_string()),
        ("died", format!("{} ago", age(job.dead_ms))),
    ] {
        lines.push_str(&format!("{label:<9} {what}\n"));
    }
    let mut table =
        Table::new(&[("ATTEMPT", Side::Right), ("WORKER", Side::Left), ("WHY", Side::Left)]);
    for attempt in history {
        table.row([attempt.attempt.to_string(), text(&attempt.worker), text(&attempt.why)]);
    }
    if !history.is_empty() {
        lines.push_str(&format!("\n{}", table.render()));
    }
    lines
}

/// How long a job has been dead, in whole seconds.
fn age(dead_ms: u64) -> String {
    about(Duration::from_secs(dead_ms / 1_000))
}
