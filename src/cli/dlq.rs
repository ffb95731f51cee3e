//! `heft dlq`: the jobs that used up their attempts.

use std::process::ExitCode;
use std::time::Duration;

use crate::client::{Client, DeadJob};
use clap::{Args, Subcommand};
use serde_json::{Value, json};
use uuid::Uuid;

use super::table::{Side, Table};
use super::{Output, Reach, Unwritten, Usage, about, job_id, print, print_json, printable};

const EXAMPLES: &str = "Examples:
  heft dlq 127.0.0.1:5000 ls
  heft dlq 127.0.0.1:5000 show 00112233-4455-6677-8899-aabbccddeeff
  heft dlq 127.0.0.1:5000 requeue --all
  heft dlq 127.0.0.1:5000 purge 00112233-4455-6677-8899-aabbccddeeff

A requeued job starts a new run under its own id; its result replaces the one that said it was dead.";

/// Jobs asked for at a time.
const PAGE_JOBS: u64 = 1_000;

/// Look after jobs that used up their attempts
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct DlqArgs {
    /// The leader.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    #[command(subcommand)]
    what: What,
    /// In which form to print.
    #[arg(long, value_enum, default_value_t, global = true)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

#[derive(Debug, Subcommand)]
enum What {
    /// List the dead jobs.
    Ls {
        /// The most jobs to list.
        #[arg(long, default_value_t = 1_000)]
        limit: u64,
    },
    /// Show one of them with its attempts.
    Show {
        /// The job.
        #[arg(value_name = "JOB_ID", value_parser = job_id)]
        job: Uuid,
    },
    /// Run one of them again, or all.
    Requeue(Which),
    /// Forget one of them, or all.
    Purge(Which),
}

#[derive(Debug, Args)]
#[group(required = true, multiple = false)]
struct Which {
    /// The job.
    #[arg(value_name = "JOB_ID", value_parser = job_id)]
    job: Option<Uuid>,
    /// All of them.
    #[arg(long)]
    all: bool,
}

impl Which {
    /// Nothing means all; clap sees to it that one of the two was said.
    fn job(&self) -> Result<Option<Uuid>, Usage> {
        match (self.job, self.all) {
            (Some(job), false) => Ok(Some(job)),
            (None, true) => Ok(None),
            (Some(_), true) | (None, false) => Err(Usage("name one job, or say --all".to_owned())),
        }
    }
}

/// Runs the command.
pub fn run(args: &DlqArgs) -> anyhow::Result<ExitCode> {
    super::block_on(ask(args))
}

async fn ask(args: &DlqArgs) -> anyhow::Result<ExitCode> {
    let client = args.reach.asking(&args.leader).await?;
    match &args.what {
        What::Ls { limit } => list(&client, *limit, args.output).await?,
        What::Show { job } => {
            let job = client.dlq_show(*job).await?;
            match args.output {
                Output::Table => print(show(&job).as_bytes())?,
                Output::Json => print_json(&job)?,
            }
        }
        What::Requeue(which) => {
            let count = client.dlq_requeue(which.job()?).await?;
            done(args.output, "requeued", count)?;
        }
        What::Purge(which) => {
            let count = client.dlq_purge(which.job()?).await?;
            done(args.output, "purged", count)?;
        }
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

fn done(output: Output, what: &str, count: u64) -> Result<(), Unwritten> {
    match output {
        Output::Table => print(format!("{count} {what}\n").as_bytes()),
        Output::Json => print_json(&json!({ what: count })),
    }
}

async fn list(client: &Client, limit: u64, output: Output) -> anyhow::Result<()> {
    let mut jobs: Vec<DeadJob> = Vec::new();
    let mut more = true;
    while more && (jobs.len() as u64) < limit {
        let page = PAGE_JOBS.min(limit - jobs.len() as u64);
        let after = jobs.last().and_then(|job| job.job_id.parse().ok());
        let page = client.dlq_ls(Some(page), after).await?;
        more = page.more && !page.jobs.is_empty();
        jobs.extend(page.jobs);
    }
    match output {
        Output::Json => print_json(&json!({"jobs": jobs, "more": more}))?,
        Output::Table => print(table(&jobs, more).as_bytes())?,
    }
    Ok(())
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
    ]);
    for job in jobs {
        table.row([
            job.job_id.clone(),
            job.client_id.clone(),
            job.exec.clone(),
            job.attempts.to_string(),
            job.run.to_string(),
            age(job.dead_ms),
            job.reason.clone(),
        ]);
    }
    let more = if more { "there are more: raise --limit\n" } else { "" };
    format!("{}{more}", table.render())
}

fn show(job: &Value) -> String {
    let mut text = String::new();
    for (label, member) in [
        ("job", "job_id"),
        ("client", "client_id"),
        ("exec", "exec"),
        ("reason", "reason"),
        ("attempts", "attempts"),
        ("run", "run"),
    ] {
        text.push_str(&format!("{label:<9} {}\n", cell(job, member)));
    }
    if let Some(dead_ms) = job.get("dead_ms").and_then(Value::as_u64) {
        text.push_str(&format!("{:<9} {} ago\n", "died", age(dead_ms)));
    }
    let mut table = Table::new(&[("ATTEMPT", Side::Right), ("WORKER", Side::Left), ("WHY", Side::Left)]);
    for attempt in job.get("history").and_then(Value::as_array).into_iter().flatten() {
        table.row([cell(attempt, "attempt"), cell(attempt, "worker"), cell(attempt, "why")]);
    }
    let history = table.render();
    if !history.is_empty() {
        text.push('\n');
        text.push_str(&history);
    }
    text
}

/// A member as people read it; `-` if it is not there.
pub(super) fn cell(value: &Value, member: &str) -> String {
    match value.get(member) {
        None | Some(Value::Null) => "-".to_owned(),
        Some(Value::String(text)) if text.is_empty() => "-".to_owned(),
        Some(Value::String(text)) => printable(text),
        Some(Value::Bool(true)) => "yes".to_owned(),
        Some(Value::Bool(false)) => "no".to_owned(),
        Some(Value::Array(items)) => {
            let texts: Vec<String> =
                items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), printable)).collect();
            if texts.is_empty() { "-".to_owned() } else { texts.join(" ") }
        }
        Some(other @ (Value::Number(_) | Value::Object(_))) => other.to_string(),
    }
}

/// How long a job has been dead, in whole seconds.
fn age(dead_ms: u64) -> String {
    about(Duration::from_secs(dead_ms / 1_000))
}
