//! `heft job show`: everything that a leader knows of one job.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::ls::{age, ran, state_of};
use super::pages::newer;
use crate::answers::{InputRow, JobShown, RequestShown, ask};
use crate::cli::ending::{signal_text, timed_out};
use crate::cli::last::{JobRef, job_ref};
use crate::cli::output::{self, OUTPUT_VARIABLE};
use crate::cli::table::{Side, Table, said, text};
use crate::cli::{Output, Reach, about, printable};
use crate::units::ByteSize;

const EXAMPLES: &str = "Examples:
  heft job show last
  heft job show 00112233-4455-6677-8899-aabbccddeeff --output json | jq .attempts

Arguments and inputs are shown as long as the leader has the request of the job. Of a log that
an older heft wrote it is not known when attempts began and ended.";

/// Show everything about one job
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ShowArgs {
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
pub(super) fn run(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    crate::cli::block_on_until_stopped(show(args))
}

async fn show(args: &ShowArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let job_id = args.job.resolve(leader.address())?;
    let client = args.reach.asking(&leader).await?;
    let answered = client.ask(&ask::JobShow { job_id }).await;
    let answered = answered.map_err(|error| newer(leader.address(), error))?;
    client.close().await;
    output::show(args.output, &answered.json, None, || render(&answered.answer))?;
    Ok(ExitCode::SUCCESS)
}

/// Lines with a label before each.
#[derive(Default)]
struct Lines(String);

impl Lines {
    fn add(&mut self, label: &str, what: &str) {
        if !what.is_empty() {
            self.0.push_str(&format!("{label:<10}  {}\n", printable(what).replace('\n', " ")));
        }
    }
}

fn render(shown: &JobShown) -> String {
    let JobShown { job, request, .. } = shown;
    let mut lines = Lines::default();
    lines.add("job", &text(&job.job_id));
    lines.add("state", &state_of(job));
    lines.add("waits for", shown.waits.as_ref().map_or("", |waits| &waits.text));
    lines.add("why", shown.why.as_deref().unwrap_or_default());
    lines.add("exec", &job.exec);
    if let Some(request) = request {
        args(request, &mut lines);
    }
    lines.add("tag", job.tag.as_deref().unwrap_or_default());
    lines.add("client", &job.client_id);
    lines.add("queue", &shown.key);
    lines.add("priority", &job.priority.to_string());
    lines.add("size", &ByteSize(job.size).to_string());
    lines.add("submitted", &job.submitted_ms.map_or_else(|| "-".to_owned(), ago));
    if let Some(ran) = ran(job) {
        lines.add("ran", &about(Duration::from_millis(ran)));
    }
    lines.add("ended", &job.ended_ms.map(ago).unwrap_or_default());
    let run = if job.run > 1 { format!("{}", job.run) } else { String::new() };
    lines.add("run", &run);
    result(shown, &mut lines);
    if shown.can_retry {
        lines.add("next", &format!("heft job retry {}", text(&job.job_id)));
    }
    let Lines(mut lines) = lines;
    for table in [inputs(request.as_ref()), attempts(shown), children(shown)] {
        if !table.is_empty() {
            lines.push_str(&format!("\n{table}"));
        }
    }
    if let Some(left_out) = &shown.left_out {
        lines.push_str(&format!("\n{}\n", printable(left_out)));
    }
    lines
}

fn ago(ms: u64) -> String {
    format!("{} ago", age(ms))
}

fn args(request: &RequestShown, lines: &mut Lines) {
    let mut args: Vec<String> = request.args.iter().map(|arg| quoted(arg)).collect();
    let left_out = request.args_count.saturating_sub(args.len() as u64);
    if left_out > 0 {
        args.push(format!("… and {left_out} more"));
    }
    lines.add("args", &args.join(" "));
    if let Some(limit) = request.time_limit_ms {
        lines.add("time limit", &about(Duration::from_millis(limit)));
    }
}

/// An argument as a shell reads it.
fn quoted(arg: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_=./:,@%+".contains(c);
    match !arg.is_empty() && arg.chars().all(is_plain) {
        true => arg.to_owned(),
        false => format!("'{}'", arg.replace('\'', "'\\''")),
    }
}

fn result(shown: &JobShown, lines: &mut Lines) {
    let Some(result) = &shown.result else { return };
    let mut parts = vec![text(&result.status)];
    parts.extend(result.timed_out_ms.map(|limit| format!("timed out: {}", timed_out(limit))));
    parts.extend(result.signal.map(signal_text));
    parts.extend(result.exit_code.map(|code| format!("exit code {code}")));
    let sizes = [
        ("stdout", result.stdout_bytes),
        ("stderr", result.stderr_bytes),
        ("files", result.archive_bytes),
    ];
    let sizes = sizes.iter().filter(|(_, bytes)| *bytes > 0);
    parts.extend(sizes.map(|(name, bytes)| format!("{name} {}", ByteSize(*bytes))));
    parts.extend(result.lost.as_ref().map(|why| format!("it can no longer be read: {why}")));
    parts.extend(shown.delivered.then(|| "delivered to its client".to_owned()));
    lines.add("result", &parts.join(", "));
}

fn inputs(request: Option<&RequestShown>) -> String {
    let Some(request) = request else { return String::new() };
    let mut table = Table::new(&[
        ("INPUT", Side::Left),
        ("SIZE", Side::Right),
        ("FROM", Side::Left),
        ("DATASET", Side::Left),
    ]);
    for InputRow { name, from, size, cache_id } in &request.inputs {
        table.row([
            text(name),
            said(size.map(ByteSize)),
            text(from.as_str()),
            said(cache_id.as_ref()),
        ]);
    }
    let left_out = request.inputs_count.saturating_sub(request.inputs.len() as u64);
    let more = if left_out > 0 { format!("and {left_out} more\n") } else { String::new() };
    format!("{}{more}", table.render())
}

fn attempts(shown: &JobShown) -> String {
    // Most jobs have one run.
    let first = if shown.job.run > 1 { 0 } else { 1 };
    let heads = [
        ("RUN", Side::Right),
        ("ATTEMPT", Side::Right),
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("BEGAN", Side::Right),
        ("TOOK", Side::Right),
        ("HOW IT ENDED", Side::Left),
    ];
    let heads = heads.get(first..).unwrap_or_default();
    let mut table = Table::new(heads).may_go(&["WORKER", "TOOK", "BEGAN", "NAME"]);
    for attempt in &shown.attempts {
        let is_over = !attempt.why.is_empty();
        let took = attempt.began_ms.filter(|_| attempt.ended_ms.is_some() || !is_over);
        let took = took.map(|began| began.saturating_sub(attempt.ended_ms.unwrap_or(0)));
        let cells = [
            said(attempt.run),
            attempt.attempt.to_string(),
            text(&attempt.worker),
            said(attempt.worker_name.as_ref()),
            said(attempt.began_ms.map(ago)),
            said(took.map(|ms| about(Duration::from_millis(ms)))),
            if is_over { text(&attempt.why) } else { "it has not".to_owned() },
        ];
        table.row(cells.into_iter().skip(first));
    }
    table.render()
}

fn children(shown: &JobShown) -> String {
    let mut table = Table::new(&[
        ("PART", Side::Left),
        ("STATE", Side::Left),
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
    ])
    .may_go(&["WORKER", "NAME"]);
    for child in &shown.children {
        table.row([
            text(&child.job_id),
            text(child.state.as_str()),
            text(&child.worker),
            said(child.worker_name.as_ref()),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_job_is_shown_with_its_request_its_attempts_and_its_result() {
        let shown = json!({
            "job_id": "j-1", "state": "failed", "exec": "calcA", "tag": "night", "client_id": "ann@host-1/5f",
            "key": "job.assign.calcA", "priority": -2, "run": 2, "size": 3 << 20, "submitted_ms": 65_000, "assigned_ms": 4_500,
            "ended_ms": 2_000, "delivered": true, "can_retry": true,
            "request": {
                "args": ["--mode=fast", "two words", "it's", ""], "args_count": 5, "time_limit_ms": 60_000, "inputs_count": 3,
                "inputs": [{"name": "a.bin", "from": "transfer", "size": 3 << 20},
                           {"name": "b", "from": "dataset", "size": null, "cache_id": "models"}],
            },
            "attempts": [
                {"run": 1, "attempt": 1, "worker": "w-1", "worker_name": "host-1", "began_ms": 60_000, "ended_ms": 30_000,
                 "why": "the worker was lost"},
                {"attempt": 2, "worker": "w-2", "began_ms": null, "ended_ms": null, "why": "it ended FAILED"},
            ],
            "result": {"status": "FAILED", "exit_code": 7, "stdout_bytes": 5, "stderr_bytes": 0, "archive_bytes": 2048},
        });
        let expected = "\
job         j-1
state       failed
exec        calcA
args        --mode=fast 'two words' 'it'\\''s' '' … and 1 more
time limit  1m
tag         night
client      ann@host-1/5f
queue       job.assign.calcA
priority    -2
size        3 MiB
submitted   1m5s ago
ran         2.5s
ended       2s ago
run         2
result      FAILED, exit code 7, stdout 5 B, files 2 KiB, delivered to its client
next        heft job retry j-1

INPUT   SIZE  FROM      DATASET
a.bin  3 MiB  transfer  -
b          -  dataset   models
and 1 more

RUN  ATTEMPT  WORKER  NAME     BEGAN  TOOK  HOW IT ENDED
  1        1  w-1     host-1  1m ago   30s  the worker was lost
  -        2  w-2     -            -     -  it ended FAILED
";
        assert_eq!(render(&serde_json::from_value(shown).unwrap()), expected);
    }

    #[test]
    fn a_failed_job_says_what_ended_its_program() {
        let shown = |result: serde_json::Value| {
            let shown = json!({"job_id": "j-1", "state": "failed", "result": result});
            render(&serde_json::from_value(shown).unwrap())
        };
        let text = shown(json!({"status": "FAILED", "signal": 11}));
        assert!(text.contains("result      FAILED, signal 11 (SIGSEGV)\n"), "{text}");
        let text = shown(json!({"status": "FAILED", "timed_out_ms": 500}));
        let line = "result      FAILED, timed out: it ran longer than its --time-limit of 500ms\n";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_job_that_waits_says_for_what_and_one_of_an_older_log_has_no_times() {
        let shown = json!({
            "job_id": "j-1", "state": "queued", "waits": {"for": "worker", "text": "a worker that matches job.assign.x"},
            "attempts": [{"attempt": 1, "worker": "w-1", "why": ""}],
            "children": [{"job_id": "c-1", "worker": "w-1", "state": "done"}],
        });
        let text = render(&serde_json::from_value(shown).unwrap());
        assert!(text.contains("waits for   a worker that matches job.assign.x\n"), "{text}");
        assert!(text.contains("submitted   -\n") && text.contains("it has not"), "{text}");
        assert!(text.contains("c-1   done   w-1     -"), "{text}");
    }
}
