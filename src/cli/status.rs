//! `heft status`: what a leader does.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use crate::units::{ByteSize, Span};
use clap::Args;
use serde_json::Value;

use super::dlq::cell;
use super::table::{Side, Table};
use super::{INTERRUPTED, Output, Reach, about, print, print_json, say};

const EXAMPLES: &str = "Examples:
  heft status 127.0.0.1:5000
  heft status 127.0.0.1:5000 --watch
  heft status 127.0.0.1:5000 --output json | jq .jobs";

/// Show what a leader does: jobs, workers, clients, queues
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// The leader.
    #[arg(value_name = "HOST:PORT")]
    leader: String,
    /// In which form to print.
    #[arg(long, value_enum, default_value_t)]
    output: Output,
    /// Print it again and again, until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// How often, with --watch.
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch")]
    every: Span,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    super::block_on(ask(args))
}

async fn ask(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let client = args.reach.asking(&args.leader).await?;
    let watch = async {
        loop {
            match client.status().await {
                Ok(status) => show(&status, args)?,
                // The leader may come back, and whoever watches wants to see it.
                Err(error) if args.watch && error.is_retryable() => say(&error.to_string()),
                Err(error) => return Err(error.into()),
            }
            if !args.watch {
                return Ok::<(), anyhow::Error>(());
            }
            tokio::time::sleep(args.every.0).await;
        }
    };
    tokio::select! {
        watched = watch => watched?,
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::from(INTERRUPTED)),
    }
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

fn show(status: &Value, args: &StatusArgs) -> anyhow::Result<()> {
    match args.output {
        Output::Json => print_json(status)?,
        Output::Table => {
            let text = render(status);
            let cleared = args.watch && std::io::stdout().is_terminal();
            // Clears the screen, then writes from the top.
            let text = if cleared { format!("\x1b[2J\x1b[H{text}") } else { text };
            print(text.as_bytes())?;
        }
    }
    Ok(())
}

/// Head, side, and the member that stands in it.
type Column = (&'static str, Side, &'static str);

fn render(status: &Value) -> String {
    let nothing = Value::Null;
    let leader = status.get("leader").unwrap_or(&nothing);
    let jobs = status.get("jobs").unwrap_or(&nothing);
    let uptime = leader.get("uptime_ms").and_then(Value::as_u64).map(Duration::from_millis);
    let uptime = uptime.map_or_else(|| "-".to_owned(), |up| about(Duration::from_secs(up.as_secs())));
    let draining = leader.get("draining").and_then(Value::as_bool) == Some(true);
    let mut text = format!(
        "leader  {}, up {uptime}, driver {}, durability {}{}\n",
        cell(leader, "software"),
        cell(leader, "driver"),
        cell(leader, "durability"),
        if draining { ", DRAINING: it takes no new jobs" } else { "" }
    );
    let count = |member| cell(jobs, member);
    text.push_str(&format!(
        "jobs    {} queued, {} running, {} done, {} dead\n",
        count("queued"),
        count("running"),
        count("done"),
        count("dead")
    ));
    if let Some(refused) = leader.get("acks_refused").and_then(Value::as_u64).filter(|refused| *refused > 0) {
        text.push_str(&format!(
            "        {refused} results did not count: their workers never had the job; the leader's log names them\n"
        ));
    }
    let bytes = |member| {
        leader.get(member).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), |n| ByteSize(n).to_string())
    };
    text.push_str(&format!(
        "spool   {} of {} in {} blobs; {} of {} buffers in use\n",
        bytes("spool_bytes"),
        bytes("spool_bytes_max"),
        cell(leader, "blobs"),
        cell(leader, "buffers_in_use"),
        cell(leader, "buffers"),
    ));
    let results = leader.get("results_waiting").and_then(Value::as_u64).unwrap_or_default();
    if results > 0 && !leader.get("disk_trouble").is_some_and(Value::is_string) {
        text.push_str(&format!(
            "        RESULTS WAIT: {results} jobs have run, and their results wait for room (--spool-max); `heft explain` says more\n"
        ));
    }
    if leader.get("durability").and_then(Value::as_str) == Some("disk") {
        let number = |member| leader.get(member).and_then(Value::as_u64).unwrap_or_default();
        let mean =
            Duration::from_micros(number("log_sync_us").checked_div(number("log_syncs")).unwrap_or_default());
        text.push_str(&format!(
            "log     {} records in {} syncs of {} each\n",
            number("log_records"),
            number("log_syncs"),
            about(mean)
        ));
        if leader.get("disk_bytes").is_some_and(Value::is_u64) {
            text.push_str(&format!(
                "disk    {} free of {}, {} of it kept for the log\n",
                bytes("disk_free"),
                bytes("disk_bytes"),
                bytes("disk_reserve")
            ));
        }
        if let Some(trouble) = leader.get("disk_trouble").and_then(Value::as_str) {
            let who = if results > 0 { "UPLOADS AND RESULTS" } else { "UPLOADS" };
            text.push_str(&format!("        {who} WAIT: {}\n", super::printable(trouble)));
        }
        if let Some(trouble) = leader.get("log_trouble").and_then(Value::as_str) {
            text.push_str(&format!("        JOBS WAIT: {}\n", super::printable(trouble)));
        }
    }
    let tables: [(&str, &[Column]); 3] = [
        (
            "workers",
            &[
                ("WORKER", Side::Left, "id"),
                ("NAME", Side::Left, "name"),
                ("CLASS", Side::Left, "class"),
                ("CREDIT", Side::Right, "credit"),
                ("RUNNING", Side::Right, "running"),
                ("RETURNING", Side::Right, "returning"),
                ("CPU", Side::Right, "cpu_permille"),
                ("CONNECTED", Side::Left, "connected"),
                ("PATTERNS", Side::Left, "patterns"),
            ],
        ),
        (
            "clients",
            &[
                ("CLIENT", Side::Left, "id"),
                ("CAP", Side::Right, "cap"),
                ("IN FLIGHT", Side::Right, "in_flight"),
                ("QUEUED", Side::Right, "queued"),
                ("CONNECTIONS", Side::Right, "connections"),
            ],
        ),
        ("queues", &[("QUEUE", Side::Left, "key"), ("QUEUED", Side::Right, "queued")]),
    ];
    for (member, columns) in tables {
        let heads: Vec<(&'static str, Side)> = columns.iter().map(|(head, side, _)| (*head, *side)).collect();
        let mut table = Table::new(&heads);
        for row in rows_of(status, member) {
            table.row(columns.iter().map(|(_, _, column)| match *column {
                "cpu_permille" => row.get(*column).and_then(Value::as_u64).map_or_else(
                    || "-".to_owned(),
                    |permille| format!("{}.{} %", permille / 10, permille % 10),
                ),
                column => cell(row, column),
            }));
        }
        let table = table.render();
        text.push('\n');
        text.push_str(&if table.is_empty() { format!("no {member}\n") } else { table });
        if member == "workers" {
            text.extend(rows_of(status, member).filter_map(lacking));
        }
    }
    text
}

fn rows_of<'a>(status: &'a Value, member: &str) -> impl Iterator<Item = &'a Value> {
    status.get(member).and_then(Value::as_array).into_iter().flatten()
}

/// A line for a worker that hands jobs back.
fn lacking(worker: &Value) -> Option<String> {
    let lacks = worker.get("lacks").filter(|lacks| lacks.is_object())?;
    let ago = lacks.get("ago_ms").and_then(Value::as_u64).map(Duration::from_millis).unwrap_or_default();
    let why = match lacks.get("what").and_then(Value::as_str) {
        Some("room") => "it has no room on its disk: free space there",
        Some("directory") => "it cannot use its work directory: its log says why",
        Some(_) | None => "it lacks something",
    };
    let ago = about(Duration::from_secs(ago.as_secs()));
    Some(format!("        worker {} handed a job back {ago} ago: {why}\n", cell(worker, "id")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_status_is_shown_whole_and_one_that_says_little_too() {
        let status = json!({
            "leader": {"software": "heft 0.1.0", "uptime_ms": 61_000, "driver": "portable",
                       "durability": "memory", "draining": true, "spool_bytes": 5 << 20, "spool_bytes_max": 1u64 << 36,
                       "blobs": 2, "buffers": 48, "buffers_in_use": 3},
            "jobs": {"queued": 3, "running": 2, "done": 10, "dead": 1},
            "workers": [{"id": "w-1", "name": null, "class": "heft", "patterns": ["job.assign.>", "a"], "credit": 4,
                         "running": 2, "returning": 1, "cpu_permille": 253, "connected": true}],
            "clients": [{"id": "clientA", "cap": 4, "in_flight": 2, "queued": 3, "connections": 1}],
            "queues": [],
        });
        let expected = "\
leader  heft 0.1.0, up 1m1s, driver portable, durability memory, DRAINING: it takes no new jobs
jobs    3 queued, 2 running, 10 done, 1 dead
spool   5 MiB of 64 GiB in 2 blobs; 3 of 48 buffers in use

WORKER  NAME  CLASS  CREDIT  RUNNING  RETURNING     CPU  CONNECTED  PATTERNS
w-1     -     heft        4        2          1  25.3 %  yes        job.assign.> a

CLIENT   CAP  IN FLIGHT  QUEUED  CONNECTIONS
clientA    4          2       3            1

no queues
";
        assert_eq!(render(&status), expected);
        let refused = render(&json!({"leader": {"acks_refused": 3}}));
        assert!(refused.contains("3 results did not count"), "{refused}");
        let durable = json!({"leader": {"durability": "disk", "log_records": 7, "log_syncs": 2, "log_sync_us": 2_400,
                                        "disk_free": 3 << 20, "disk_bytes": 1u64 << 30, "disk_reserve": 100 << 20,
                                        "disk_trouble": "2 large files wait for room", "log_trouble": "the disk is full"}});
        let durable = render(&durable);
        assert!(durable.contains("log     7 records in 2 syncs of 1.2ms each\n"), "{durable}");
        assert!(
            durable.contains("disk    3 MiB free of 1 GiB, 100 MiB of it kept for the log\n"),
            "{durable}"
        );
        assert!(durable.contains("UPLOADS WAIT: 2 large files wait for room\n"), "{durable}");
        assert!(durable.contains("JOBS WAIT: the disk is full\n"), "{durable}");
        let results = json!({"leader": {"durability": "disk", "results_waiting": 2, "disk_trouble": "the disk is full"}});
        assert!(render(&results).contains("UPLOADS AND RESULTS WAIT: the disk is full\n"));
        assert!(render(&json!({"leader": {"results_waiting": 2}})).contains("RESULTS WAIT: 2 jobs have run"));
        assert!(render(&json!({})).contains("no workers"));
        for (what, why) in
            [("room", "it has no room on its disk"), ("directory", "it cannot use its work directory")]
        {
            let lacks = json!({"workers": [{"id": "w-1", "lacks": {"what": what, "ago_ms": 61_500}}, {"id": "w-2", "lacks": null}]});
            let lacks = render(&lacks);
            assert!(
                lacks.contains(&format!("        worker w-1 handed a job back 1m1s ago: {why}")),
                "{lacks}"
            );
            assert_eq!(lacks.matches("handed a job back").count(), 1);
        }
    }
}
