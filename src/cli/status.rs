//! `heft status`: what a leader does.

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use crate::units::{ByteSize, Span};
use clap::Args;

use super::output::{self, OUTPUT_VARIABLE};
use super::table::{Side, Table, said, text, yes_or_no};
use super::{Output, Reach, about, print, printable, say};
use crate::answers::{
    Avoided, ClientRow, Durability, Flagged, Jobs, Lack, LeaderStatus, QueueRow, Status, WorkerRow,
    ask,
};
use crate::client::Answered;

const EXAMPLES: &str = "Examples:
  heft status
  heft status -l leader.example:5000
  heft status --watch
  heft status --output json | jq .jobs";

/// Show a leader's state: jobs, workers, clients, queues
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct StatusArgs {
    /// Output format.
    #[arg(short, long, value_enum, env = OUTPUT_VARIABLE, default_value_t)]
    output: Output,
    /// Repeat until Ctrl-C.
    #[arg(long)]
    watch: bool,
    /// Interval of --watch.
    #[arg(long, value_name = "TIME", default_value = "2s", requires = "watch")]
    every: Span,
    #[command(flatten)]
    reach: Reach,
}

/// Runs the command.
pub fn run(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(watch(args))
}

async fn watch(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let leader = args.reach.leader().await?;
    let client = args.reach.asking(&leader).await?;
    let watch = async {
        loop {
            match client.ask(&ask::Status {}).await {
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
    watch.await?;
    client.close().await;
    Ok(ExitCode::SUCCESS)
}

fn show(status: &Answered<Status>, args: &StatusArgs) -> anyhow::Result<()> {
    if args.watch && args.output.is_for_people() && std::io::stdout().is_terminal() {
        // Clears the screen, then writes from the top.
        print(b"\x1b[2J\x1b[H")?;
    }
    Ok(output::show(args.output, &status.json, None, || render(&status.answer))?)
}

fn render(status: &Status) -> String {
    let Status { leader, jobs, workers, clients, queues, counts } = status;
    let mut lines = format!(
        "leader  {}, up {}, driver {}, durability {}{}\n",
        text(&leader.software),
        about(Duration::from_secs(leader.uptime_ms / 1000)),
        text(&leader.driver),
        text(leader.durability.as_str()),
        if leader.draining { ", DRAINING: no new jobs are accepted" } else { "" }
    );
    let Jobs { queued, running, done, dead } = jobs;
    lines.push_str(&format!(
        "jobs    {queued} queued, {running} running, {done} done, {dead} dead\n"
    ));
    if leader.acks_refused > 0 {
        lines.push_str(&format!(
            "        {} results were ignored: their workers never had the job; see the leader's \
             log\n",
            leader.acks_refused
        ));
    }
    let spool = &leader.spool;
    lines.push_str(&format!(
        "spool   {} of {} in {} blobs; {} of {} buffers in use\n",
        ByteSize(spool.spool_bytes),
        ByteSize(spool.spool_bytes_max),
        spool.blobs,
        spool.buffers_in_use,
        spool.buffers,
    ));
    if leader.results_waiting > 0 && leader.disk.disk_trouble.is_none() {
        lines.push_str(&format!(
            "        RESULTS WAIT: the results of {} finished jobs wait for room (--spool-max); \
             see `heft explain`\n",
            leader.results_waiting
        ));
    }
    if leader.durability == Durability::Disk {
        lines.push_str(&on_disk(leader));
    }
    if let Some(trouble) = &leader.disk.disk_trouble {
        let who = if leader.results_waiting > 0 { "UPLOADS AND RESULTS" } else { "UPLOADS" };
        lines.push_str(&format!("        {who} WAIT: {}\n", printable(trouble)));
    }
    let counts = counts.unwrap_or_default();
    for (what, table, listed, count) in [
        ("workers", workers_table(workers), workers.len(), counts.workers),
        ("clients", clients_table(clients), clients.len(), counts.clients),
        ("queues", queues_table(queues), queues.len(), counts.queues),
    ] {
        let table = table.render();
        lines.push('\n');
        lines.push_str(&if table.is_empty() { format!("no {what}\n") } else { table });
        lines.extend(cut_short(what, listed, count));
        if what == "workers" {
            lines.extend(workers.iter().flat_map(notes));
        }
    }
    lines
}

/// A line for a list that the leader cut off.
pub(super) fn cut_short(what: &str, listed: usize, count: u64) -> Option<String> {
    (count > listed as u64).then(|| format!("these are {listed} of {count} {what}\n"))
}

/// What has to be said of a worker below a table.
pub(super) fn notes(worker: &WorkerRow) -> impl Iterator<Item = String> {
    lacking(worker).into_iter().chain(avoiding(worker)).chain(failing(worker))
}

/// A line for a worker that hands jobs back.
fn lacking(worker: &WorkerRow) -> Option<String> {
    let lacks = worker.lacks.as_ref()?;
    let why = match lacks.what {
        Lack::Room => "its disk is full: free space there",
        Lack::Directory => "it cannot use its work directory: its log says why",
        // Which they are follows.
        Lack::Program => return None,
        Lack::Other(_) => "it lacks something",
    };
    let ago = about(Duration::from_secs(lacks.ago_ms / 1000));
    Some(format!("        worker {} returned a job {ago} ago: {why}\n", text(&worker.id)))
}

/// Lines for the programs that a worker handed back.
pub(super) fn avoiding(worker: &WorkerRow) -> impl Iterator<Item = String> {
    let line = |avoided: &Avoided| {
        let ago = about(Duration::from_secs(avoided.ago_ms / 1000));
        let (program, why) = (text(&avoided.program), text(&avoided.why));
        format!(
            "        {} lacks the program {program} (returned a job {ago} ago): {why}\n",
            called(worker)
        )
    };
    worker.avoided.iter().map(line)
}

/// Lines for the programs that fail on a worker far more often than on others.
pub(super) fn failing(worker: &WorkerRow) -> impl Iterator<Item = String> {
    let line = |flagged: &Flagged| {
        let Flagged { program, ended, failed, median_permille } = flagged;
        format!(
            "        {} FAILS MORE THAN OTHERS: {failed} of the last {ended} jobs of {} failed there ({} %), {} % on the median \
             worker\n",
            called(worker),
            said(program.as_ref()),
            u64::from(*failed) * 100 / u64::from(*ended).max(1),
            median_permille / 10
        )
    };
    worker.flagged.iter().map(line)
}

/// How people call a worker.
fn called(worker: &WorkerRow) -> String {
    match worker.name.as_deref() {
        Some(name) if !name.is_empty() => format!("worker {} ({})", text(name), text(&worker.id)),
        Some(_) | None => format!("worker {}", text(&worker.id)),
    }
}

/// The log and the disk of a leader that keeps what it acknowledged.
fn on_disk(leader: &LeaderStatus) -> String {
    let LeaderStatus { log, disk, .. } = leader;
    let mean =
        Duration::from_micros(log.log_sync_us.checked_div(log.log_syncs).unwrap_or_default());
    let mut lines = format!(
        "log     {} records in {} syncs of {} each\n",
        log.log_records,
        log.log_syncs,
        about(mean)
    );
    if disk.disk_bytes.is_some() {
        lines.push_str(&format!(
            "disk    {} free of {}, {} of it reserved for the log\n",
            said(disk.disk_free.map(ByteSize)),
            said(disk.disk_bytes.map(ByteSize)),
            said(disk.disk_reserve.map(ByteSize))
        ));
    }
    if let Some(bytes) = disk.recycled_bytes.filter(|bytes| *bytes > 0) {
        lines.push_str(&format!(
            "        {} of removed files are kept to be written again (at most {})\n",
            ByteSize(bytes),
            said(disk.recycled_bytes_max.map(ByteSize))
        ));
    }
    if let Some(trouble) = &log.log_trouble {
        lines.push_str(&format!("        JOBS WAIT: {}\n", printable(trouble)));
    }
    lines
}

pub(super) fn workers_table(workers: &[WorkerRow]) -> Table {
    let mut table = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("CLASS", Side::Left),
        ("CREDIT", Side::Right),
        ("RUNNING", Side::Right),
        ("RETURNING", Side::Right),
        ("CPU", Side::Right),
        ("CONNECTED", Side::Left),
        ("PROGRAMS", Side::Right),
        ("PATTERNS", Side::Left),
    ])
    .may_go(&[
        "RETURNING",
        "CPU",
        "PROGRAMS",
        "CLASS",
        "CREDIT",
        "PATTERNS",
        "RUNNING",
        "CONNECTED",
    ]);
    for worker in workers {
        let programs = worker.programs.as_ref();
        let programs = programs.map(|programs| programs.len() as u64 + worker.programs_more);
        table.row([
            text(&worker.id),
            said(worker.name.as_ref()),
            text(worker.class.as_str()),
            worker.credit.to_string(),
            worker.running.to_string(),
            worker.returning.to_string(),
            said(
                worker
                    .cpu_permille
                    .map(|permille| format!("{}.{} %", permille / 10, permille % 10)),
            ),
            yes_or_no(worker.connected),
            said(programs),
            text(&worker.patterns.join(" ")),
        ]);
    }
    table
}

pub(super) fn clients_table(clients: &[ClientRow]) -> Table {
    let mut table = Table::new(&[
        ("CLIENT", Side::Left),
        ("CAP", Side::Right),
        ("IN FLIGHT", Side::Right),
        ("QUEUED", Side::Right),
        ("CONNECTIONS", Side::Right),
    ])
    .may_go(&["CONNECTIONS", "CAP"]);
    for client in clients {
        table.row([
            text(&client.id),
            if client.cap == 0 { "-".to_owned() } else { client.cap.to_string() },
            client.in_flight.to_string(),
            client.queued.to_string(),
            client.connections.to_string(),
        ]);
    }
    table
}

pub(super) fn queues_table(queues: &[QueueRow]) -> Table {
    let mut table = Table::new(&[("QUEUE", Side::Left), ("QUEUED", Side::Right)]);
    for queue in queues {
        table.row([text(&queue.key), queue.queued.to_string()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn render(status: &Value) -> String {
        super::render(&serde_json::from_value(status.clone()).unwrap())
    }

    #[test]
    fn a_status_is_shown_whole_and_one_that_says_little_too() {
        let status = json!({
            "leader": {"software": "heft 0.1.0", "uptime_ms": 61_000, "driver": "portable",
                       "durability": "memory", "draining": true, "spool_bytes": 5 << 20, "spool_bytes_max": 1u64 << 36,
                       "blobs": 2, "buffers": 48, "buffers_in_use": 3},
            "jobs": {"queued": 3, "running": 2, "done": 10, "dead": 1},
            "workers": [{"id": "w-1", "name": null, "class": "heft", "patterns": ["job.assign.>", "a"], "credit": 4,
                         "running": 2, "returning": 1, "cpu_permille": 253, "connected": true,
                         "programs": ["calcA", "calcB"], "programs_more": 20}],
            "clients": [{"id": "clientA", "cap": 4, "in_flight": 2, "queued": 3, "connections": 1}],
            "queues": [],
        });
        let expected = "\
leader  heft 0.1.0, up 1m1s, driver portable, durability memory, DRAINING: no new jobs are accepted
jobs    3 queued, 2 running, 10 done, 1 dead
spool   5 MiB of 64 GiB in 2 blobs; 3 of 48 buffers in use

WORKER  NAME  CLASS  CREDIT  RUNNING  RETURNING     CPU  CONNECTED  PROGRAMS  PATTERNS
w-1     -     heft        4        2          1  25.3 %  yes              22  job.assign.> a

CLIENT   CAP  IN FLIGHT  QUEUED  CONNECTIONS
clientA    4          2       3            1

no queues
";
        assert_eq!(render(&status), expected);
        let refused = render(&json!({"leader": {"acks_refused": 3}}));
        assert!(refused.contains("3 results were ignored"), "{refused}");
        let durable = json!({"leader": {"durability": "disk", "log_records": 7, "log_syncs": 2, "log_sync_us": 2_400,
                                        "disk_free": 3 << 20, "disk_bytes": 1u64 << 30, "disk_reserve": 100 << 20,
                                        "recycled_bytes": 2 << 20, "recycled_bytes_max": 50 << 20,
                                        "disk_trouble": "2 large files wait for room", "log_trouble": "the disk is full"}});
        let durable = render(&durable);
        assert!(durable.contains("log     7 records in 2 syncs of 1.2ms each\n"), "{durable}");
        assert!(
            durable.contains("disk    3 MiB free of 1 GiB, 100 MiB of it reserved for the log\n"),
            "{durable}"
        );
        assert!(durable.contains("UPLOADS WAIT: 2 large files wait for room\n"), "{durable}");
        assert!(
            durable
                .contains("2 MiB of removed files are kept to be written again (at most 50 MiB)"),
            "{durable}"
        );
        assert!(durable.contains("JOBS WAIT: the disk is full\n"), "{durable}");
        let results = json!({"leader": {"durability": "disk", "results_waiting": 2, "disk_trouble": "the disk is full"}});
        assert!(render(&results).contains("UPLOADS AND RESULTS WAIT: the disk is full\n"));
        assert!(
            render(&json!({"leader": {"results_waiting": 2}}))
                .contains("RESULTS WAIT: the results of 2 finished jobs")
        );
        assert!(render(&json!({})).contains("no workers"));
        for (what, why) in
            [("room", "its disk is full"), ("directory", "it cannot use its work directory")]
        {
            let lacks = json!({"workers": [{"id": "w-1", "lacks": {"what": what, "ago_ms": 61_500}}, {"id": "w-2", "lacks": null}]});
            let lacks = render(&lacks);
            assert!(
                lacks.contains(&format!("        worker w-1 returned a job 1m1s ago: {why}")),
                "{lacks}"
            );
            assert_eq!(lacks.matches("returned a job").count(), 1);
        }
        let remarks = json!({"workers": [{"id": "w-1", "name": "render", "lacks": {"what": "program", "ago_ms": 5_000},
            "avoided": [{"program": "calcB", "why": "Executable not found", "ago_ms": 5_000}],
            "flagged": [{"program": "calcA", "ended": 9, "failed": 6, "median_permille": 100}]}]});
        let remarks = render(&remarks);
        for line in [
            "        worker render (w-1) lacks the program calcB (returned a job 5s ago): Executable not found\n",
            "        worker render (w-1) FAILS MORE THAN OTHERS: 6 of the last 9 jobs of calcA failed there (66 %), 10 % on \
             the median worker\n",
        ] {
            assert!(remarks.contains(line), "{remarks}");
        }
        assert_eq!(remarks.matches("returned a job").count(), 1, "said once");
    }
}
