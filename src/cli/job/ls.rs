//! `heft job ls`: the jobs that a leader knows, the newest first.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::pages::{Filter, each, state};
use crate::answers::{JobRow, JobState};
use crate::cli::output::{OUTPUT_VARIABLE, Rows, show};
use crate::cli::table::{Side, Table, said, text};
use crate::cli::{Output, Reach, about};
use crate::units::Span;

const EXAMPLES: &str = "Examples:
  heft job ls
  heft job ls --mine --state queued,running
  heft job ls --tag nightly --since 24h --output json | jq -r .jobs[].job_id

Jobs that have ended are listed until their results are forgotten (`heft leader --result-ttl`),
dead ones until they are removed (`heft dlq`).";

/// List jobs, the newest first
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct LsArgs {
    /// Jobs in this state only: queued, gathering (waits for the workers it went to), running,
    /// done, failed, dead or cancelled; several with commas.
    #[arg(long = "state", value_name = "STATE", value_delimiter = ',', value_parser = state)]
    states: Vec<JobState>,
    #[command(flatten)]
    choice: Choice,
}

/// Which jobs are listed, and how.
#[derive(Debug, Args)]
pub(in crate::cli) struct Choice {
    #[command(flatten)]
    which: Which,
    /// Jobs of this program only.
    #[arg(long, value_name = "EXEC")]
    exec: Option<String>,
    /// Jobs with this tag only.
    #[arg(long, value_name = "TAG")]
    tag: Option<String>,
    /// Jobs submitted at most so long ago, such as 24h.
    #[arg(long, value_name = "TIME")]
    since: Option<Span>,
    /// Maximum number of jobs to list.
    #[arg(long, value_name = "N", default_value_t = 100)]
    limit: u64,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

/// Whose jobs.
#[derive(Debug, Args)]
struct Which {
    /// Jobs that you submitted from this machine only, or those of the context's client id.
    #[arg(long, conflicts_with = "client")]
    mine: bool,
    /// Jobs of this client id only, and of ids that begin with it and a slash.
    #[arg(long, value_name = "ID")]
    client: Option<String>,
}

/// Runs the command.
pub(super) fn run(args: &LsArgs) -> anyhow::Result<ExitCode> {
    crate::cli::block_on_until_stopped(list(&args.choice, &args.states))
}

/// Lists jobs in these states; in all if there are none.
pub(in crate::cli) async fn list(args: &Choice, states: &[JobState]) -> anyhow::Result<ExitCode> {
    let filter = Filter {
        states: states.to_vec(),
        client: match args.which.mine {
            true => Some(args.reach.client_id()?),
            false => args.which.client.clone(),
        },
        exec: args.exec.clone(),
        tag: args.tag.clone(),
        since_ms: args.since.map(|span| millis(span.0)),
    };
    let leader = args.reach.leader().await?;
    let client = args.reach.asking(&leader).await?;
    let mut jobs = Vec::new();
    let more = each(&client, leader.address(), &filter, args.limit, |job| jobs.push(job)).await?;
    client.close().await;
    let rows = Rows { list: "jobs", id: "job_id" };
    show(args.output, &json!({"jobs": jobs, "more": more}), Some(rows), || render(&jobs, more))?;
    Ok(ExitCode::SUCCESS)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn render(jobs: &[JobRow], more: bool) -> String {
    if jobs.is_empty() {
        return "no jobs\n".to_owned();
    }
    let mut table = Table::new(&[
        ("JOB", Side::Left),
        ("STATE", Side::Left),
        ("EXEC", Side::Left),
        ("TAG", Side::Left),
        ("AGE", Side::Right),
        ("RAN", Side::Right),
        ("WORKER", Side::Left),
        ("CLIENT", Side::Left),
    ])
    .may_go(&["RAN", "CLIENT", "WORKER", "TAG", "AGE", "EXEC"]);
    for job in jobs {
        let worker = job.worker_name.as_ref().or(job.worker.as_ref());
        table.row([
            text(&job.job_id),
            state_of(job),
            text(&job.exec),
            said(job.tag.as_ref()),
            said(job.submitted_ms.map(age)),
            said(ran(job).map(|ms| about(Duration::from_millis(ms)))),
            said(worker),
            text(&job.client_id),
        ]);
    }
    let more = if more { "there are more: raise --limit, or narrow the list\n" } else { "" };
    format!("{}{more}", table.render())
}

/// The state, and whether the inputs are still on their way.
pub(super) fn state_of(job: &JobRow) -> String {
    let uploading = if job.uploading { ", uploading" } else { "" };
    format!("{}{uploading}", text(job.state.as_str()))
}

/// How long the job has been with its worker, or was.
pub(super) fn ran(job: &JobRow) -> Option<u64> {
    Some(job.assigned_ms?.saturating_sub(job.ended_ms.unwrap_or(0)))
}

/// How long ago something was, in whole seconds.
pub(super) fn age(ms: u64) -> String {
    about(Duration::from_secs(ms / 1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_a_row_for_each_job_and_says_if_there_are_more() {
        let jobs = [
            JobRow {
                job_id: "j-2".to_owned(),
                state: JobState::Running,
                uploading: true,
                exec: "calcA".to_owned(),
                client_id: "ann@host-1/5f".to_owned(),
                worker: Some("w-1".to_owned()),
                submitted_ms: Some(90_500),
                assigned_ms: Some(60_000),
                ..JobRow::default()
            },
            JobRow {
                job_id: "j-1".to_owned(),
                state: JobState::Failed,
                tag: Some("night".to_owned()),
                worker: Some("w-2".to_owned()),
                worker_name: Some("host-2".to_owned()),
                submitted_ms: Some(7_200_000),
                assigned_ms: Some(7_100_000),
                ended_ms: Some(7_098_500),
                ..JobRow::default()
            },
            JobRow { job_id: "j-0".to_owned(), ..JobRow::default() },
        ];
        let expected = "\
JOB  STATE               EXEC   TAG      AGE   RAN  WORKER  CLIENT
j-2  running, uploading  calcA  -      1m30s    1m  w-1     ann@host-1/5f
j-1  failed              -      night     2h  1.5s  host-2  -
j-0  -                   -      -          -     -  -       -
";
        assert_eq!(render(&jobs, false), expected);
        assert!(
            render(&jobs, true).ends_with("there are more: raise --limit, or narrow the list\n")
        );
        assert_eq!(render(&[], false), "no jobs\n");
    }
}
