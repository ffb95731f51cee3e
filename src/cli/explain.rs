//! `heft explain`: why a job is where it is, worker by worker.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use serde_json::Value;
use uuid::Uuid;

use super::dlq::cell;
use super::table::{Side, Table};
use super::{Output, Reach, about, job_id, print, print_json, printable};
use crate::units::ByteSize;

const EXAMPLES: &str = "Examples:
  heft explain 127.0.0.1:5000 00112233-4455-6677-8899-aabbccddeeff
  heft explain 127.0.0.1:5000 00112233-4455-6677-8899-aabbccddeeff --output json | jq .workers";

/// Say why a job is where it is, worker by worker
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ExplainArgs {
    /// The leader.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    /// The job.
    #[arg(value_name = "JOB_ID", value_parser = job_id)]
    job: Uuid,
    /// In which form to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    super::block_on(ask(args))
}

async fn ask(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let client = args.reach.asking(&args.leader).await?;
    let answer = client.explain(args.job).await?;
    client.close().await;
    match args.output {
        Output::Table => print(render(&answer).as_bytes())?,
        Output::Json => print_json(&answer)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Shows what the answer says; members that it does not have are left out or shown as `-`.
fn render(answer: &Value) -> String {
    let mut text = format!("job       {}, {}", cell(answer, "job_id"), cell(answer, "phase"));
    let waits = answer.get("waits").filter(|waits| waits.is_object());
    let waited = waits.and_then(|waits| waits.get("waited_ms")).and_then(Value::as_u64);
    if let Some(waited) = waited {
        text.push_str(&format!(" for {}", about(Duration::from_millis(waited))));
    }
    text.push('\n');
    for (head, member) in [("queue", "key"), ("policy", "policy"), ("worker", "worker")] {
        if answer.get(member).is_some_and(|value| !value.is_null()) {
            text.push_str(&format!("{head:8}  {}\n", cell(answer, member)));
        }
    }
    let datasets = answer.get("datasets").and_then(Value::as_array);
    for (place, set) in datasets.into_iter().flatten().enumerate() {
        let head = if place == 0 { "datasets" } else { "" };
        text.push_str(&format!("{head:8}  {}\n", dataset(set)));
    }
    let waits_for = waits.and_then(|waits| waits.get("text")).and_then(Value::as_str);
    if let Some(what) = waits_for.filter(|what| !what.is_empty()) {
        text.push_str(&format!("{:8}  {}\n", "waits for", printable(what)));
    }
    let mut table = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("VERDICT", Side::Left),
        ("MISSING", Side::Right),
        ("RUNNING", Side::Right),
        ("CREDIT", Side::Right),
        ("WHY", Side::Left),
    ]);
    for worker in answer.get("workers").and_then(Value::as_array).into_iter().flatten() {
        let missing = worker.get("missing_bytes").and_then(Value::as_u64);
        table.row([
            cell(worker, "id"),
            cell(worker, "name"),
            cell(worker, "verdict"),
            missing.map_or_else(|| "-".to_owned(), |bytes| ByteSize(bytes).to_string()),
            cell(worker, "running"),
            cell(worker, "credit"),
            cell(worker, "text"),
        ]);
    }
    let table = table.render();
    text.push('\n');
    text.push_str(if table.is_empty() { "no workers\n" } else { &table });
    text
}

/// A set that the job names: its id alone, or an object that says more.
fn dataset(set: &Value) -> String {
    match set {
        Value::String(id) => printable(id),
        Value::Object(_) => {
            let bytes = set.get("bytes").and_then(Value::as_u64);
            let bytes = bytes.map(|bytes| format!(", {}", ByteSize(bytes))).unwrap_or_default();
            let said = set.get("text").and_then(Value::as_str).filter(|text| !text.is_empty());
            let said = said.map(|text| format!(": {}", printable(text))).unwrap_or_default();
            format!("{}{bytes}{said}", cell(set, "cache_id"))
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) => set.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_explanation_is_shown_worker_by_worker_and_one_that_says_little_too() {
        let answer = json!({
            "job_id": "j-1", "phase": "queued", "key": "job.assign.calcA", "policy": "locality",
            "waits": {"for": "data", "text": "host-1, which gets models-v2", "waited_ms": 1_500}, "datasets": ["models-v2"],
            "workers": [
                {"id": "w-1", "name": "host-1", "verdict": "best", "text": "the set is coming", "missing_bytes": 1 << 20,
                 "running": 1, "credit": 3},
                {"id": "w-2", "name": null, "verdict": "no-match", "text": "its patterns do not match"},
            ],
        });
        let expected = "\
job       j-1, queued for 1.5s
queue     job.assign.calcA
policy    locality
datasets  models-v2
waits for  host-1, which gets models-v2

WORKER  NAME    VERDICT   MISSING  RUNNING  CREDIT  WHY
w-1     host-1  best        1 MiB        1       3  the set is coming
w-2     -       no-match        -        -       -  its patterns do not match
";
        assert_eq!(render(&answer), expected);
        assert_eq!(render(&json!({})), "job       -, -\n\nno workers\n");
        let set = json!({"cache_id": "m", "bytes": 1024, "text": "held by 2"});
        assert_eq!(dataset(&set), "m, 1 KiB: held by 2");
    }
}
