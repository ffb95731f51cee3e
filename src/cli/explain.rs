//! `heft explain`: why a job is where it is, worker by worker.

use std::process::ExitCode;
use std::time::Duration;

use super::last::{JobRef, job_ref};
use super::output::{OUTPUT_VARIABLE, show};
use super::table::{Side, Table, said, text};
use super::{Output, Reach, about, printable};
use crate::answers::{Explained, JobState, Phase, ask};
use crate::core::queue::AHEAD_COUNTED_MAX;
use crate::units::ByteSize;
use clap::Args;

const EXAMPLES: &str = "Examples:
  heft explain 00112233-4455-6677-8899-aabbccddeeff
  heft explain 00112233-4455-6677-8899-aabbccddeeff --output json | jq .workers";

/// Explain why a job is where it is, worker by worker
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// Job id, or `last`.
    #[arg(value_name = "JOB_ID", value_parser = job_ref)]
    job: JobRef,
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(explain(args))
}

async fn explain(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let job_id = args.job.resolve(leader.address())?;
    let client = args.reach.asking(&leader).await?;
    let answered = client.ask(&ask::Explain { job_id }).await?;
    client.close().await;
    show(args.output, &answered.json, None, || render(&answered.answer))?;
    Ok(ExitCode::SUCCESS)
}

/// Shows what the answer says; members that it does not have are left out or shown as `-`.
fn render(job: &Explained) -> String {
    let is_over = matches!(job.phase, Phase::Done | Phase::Dead);
    let ended = job.state.as_ref().filter(|_| is_over).map(JobState::as_str);
    let state = ended.unwrap_or(job.phase.as_str());
    let mut lines = format!("job       {}, {}", text(&job.job_id), text(state));
    if let Some(waited) = job.waits.as_ref().and_then(|waits| waits.waited_ms) {
        lines.push_str(&format!(" for {}", about(Duration::from_millis(waited))));
    }
    lines.push('\n');
    let worker = job.worker.as_deref().unwrap_or_default();
    let why = match (&job.why, &job.state) {
        (Some(why), _) => why.as_str(),
        (None, Some(JobState::Failed)) => {
            "its program failed: see `heft job show` and `heft job logs`"
        }
        (None, _) => "",
    };
    let heads = [
        ("why", why),
        ("queue", job.key.as_str()),
        ("policy", job.policy.as_str()),
        ("worker", worker),
    ];
    for (head, what) in heads {
        if !what.is_empty() {
            lines.push_str(&format!("{head:8}  {}\n", printable(what)));
        }
    }
    for (place, dataset) in job.datasets.iter().enumerate() {
        let head = if place == 0 { "datasets" } else { "" };
        let bytes = match dataset.bytes {
            Some(bytes) => format!(", {}", ByteSize(bytes)),
            None if dataset.known => String::new(),
            None => {
                ", unknown to the leader: `heft dataset ls` lists those that it keeps".to_owned()
            }
        };
        lines.push_str(&format!("{head:8}  {}{bytes}\n", text(&dataset.cache_id)));
    }
    if let Some(waits) = job.waits.as_ref().filter(|waits| !waits.text.is_empty()) {
        lines.push_str(&format!("{:8}  {}\n", "waits", printable(&waits.text)));
    }
    if let Some(ahead) = job.ahead {
        let text = position(ahead);
        lines.push_str(&format!(
            "{:8}  {text} of the same client and key are served before it\n",
            "position"
        ));
    }
    let mut table = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("VERDICT", Side::Left),
        ("MISSING", Side::Right),
        ("RUNNING", Side::Right),
        ("CREDIT", Side::Right),
        ("WHY", Side::Left),
    ])
    .may_go(&["RUNNING", "CREDIT", "MISSING", "NAME", "WHY"]);
    for worker in &job.workers {
        table.row([
            text(&worker.id),
            said(worker.name.as_ref()),
            text(worker.verdict.as_str()),
            said(worker.cost.missing_bytes.map(ByteSize)),
            said(worker.load.running),
            said(worker.load.credit),
            text(&worker.text),
        ]);
    }
    // Which worker would get it says nothing of a job that has ended.
    if is_over {
        return lines;
    }
    let table = table.render();
    lines.push('\n');
    lines.push_str(if table.is_empty() { "no workers\n" } else { &table });
    lines
}

/// How many jobs are ahead of a queued one.
pub(crate) fn position(ahead: u64) -> String {
    let more = if ahead >= AHEAD_COUNTED_MAX as u64 { " or more" } else { "" };
    let jobs = if ahead == 1 { "job" } else { "jobs" };
    format!("{ahead}{more} {jobs}")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn render(answer: &Value) -> String {
        super::render(&serde_json::from_value(answer.clone()).unwrap())
    }

    #[test]
    fn an_explanation_is_shown_worker_by_worker_and_one_that_says_little_too() {
        let answer = json!({
            "job_id": "j-1", "phase": "queued", "key": "job.assign.calcA", "policy": "locality",
            "waits": {"for": "data", "text": "host-1, which gets models-v2", "waited_ms": 1_500},
            "ahead": 2, "datasets": [{"cache_id": "models-v2", "bytes": 1024}],
            "workers": [
                {"id": "w-1", "name": "host-1", "verdict": "best", "text": "the dataset is coming", "missing_bytes": 1 << 20,
                 "running": 1, "credit": 3},
                {"id": "w-2", "name": null, "verdict": "no-match", "text": "its patterns do not match"},
            ],
        });
        let expected = "\
job       j-1, queued for 1.5s
queue     job.assign.calcA
policy    locality
datasets  models-v2, 1 KiB
waits     host-1, which gets models-v2
position  2 jobs of the same client and key are served before it

WORKER  NAME    VERDICT   MISSING  RUNNING  CREDIT  WHY
w-1     host-1  best        1 MiB        1       3  the dataset is coming
w-2     -       no-match        -        -       -  its patterns do not match
";
        assert_eq!(render(&answer), expected);
        assert_eq!(render(&json!({})), "job       -, -\n\nno workers\n");
        let failed = json!({
            "job_id": "j-1", "phase": "done", "state": "failed", "why": "no worker has it", "key": "k",
        });
        assert_eq!(
            render(&failed),
            "job       j-1, failed\nwhy       no worker has it\nqueue     k\n"
        );
        let failed = json!({"job_id": "j-1", "phase": "done", "state": "failed", "key": "k"});
        assert!(render(&failed).contains("its program failed"));
        let older = json!({"job_id": "j-1", "phase": "done", "key": "k"});
        assert_eq!(render(&older), "job       j-1, done\nqueue     k\n");
    }
}
