//! What leaders answer about datasets, in columns for people. What an answer does not say is shown
//! as `-`.

use std::time::Duration;

use super::all::State;
use crate::answers::{DatasetPage, DatasetShown, Inspected, Pushed, Removed};
use crate::cli::reach::Leader;
use crate::cli::table::{Side, Table, said, text};
use crate::cli::{about, printable};
use crate::model::CacheStatus;
use crate::units::{ByteSize, Count};

/// Digits of a digest in a column: enough to tell files apart, and `--output json` has all.
const DIGITS_SHOWN: usize = 16;

/// A time that has passed, in milliseconds.
fn ago(millis: Option<u64>) -> String {
    said(millis.map(|millis| about(Duration::from_secs(millis / 1000))))
}

/// The answer to `dataset.ls`.
pub(super) fn list(page: &DatasetPage) -> String {
    let mut datasets = Table::new(&[
        ("DATASET", Side::Left),
        ("FILES", Side::Right),
        ("BYTES", Side::Right),
        ("STORED", Side::Right),
        ("TARGET", Side::Left),
        ("HELD", Side::Right),
        ("COMING", Side::Right),
        ("MISSING", Side::Right),
        ("FAILED", Side::Right),
        ("AGE", Side::Right),
    ])
    .may_go(&["STORED", "AGE", "FILES", "TARGET", "COMING"]);
    for dataset in &page.datasets {
        datasets.row([
            text(&dataset.cache_id),
            said(dataset.files),
            said(dataset.bytes.map(ByteSize)),
            said(dataset.stored_bytes.map(ByteSize)),
            text(&dataset.target),
            said(dataset.held),
            said(dataset.coming),
            said(dataset.missing),
            said(dataset.failed),
            ago(dataset.put_ms),
        ]);
    }
    let mut puts = Table::new(&[
        ("BEING PUT", Side::Left),
        ("RECEIVED", Side::Right),
        ("BYTES", Side::Right),
        ("LACKING", Side::Right),
    ]);
    for put in &page.puts {
        let bytes = [put.received, put.bytes, put.lacking].map(|bytes| ByteSize(bytes).to_string());
        puts.row([text(&put.cache_id)].into_iter().chain(bytes));
    }
    let tables = match (datasets.render(), puts.render()) {
        (datasets, puts) if datasets.is_empty() && puts.is_empty() => {
            "the leader keeps no datasets\n".to_owned()
        }
        (datasets, puts) if puts.is_empty() => datasets,
        (datasets, puts) if datasets.is_empty() => puts,
        (datasets, puts) => format!("{datasets}\n{puts}"),
    };
    if page.more {
        format!("{tables}the list is truncated: there are more datasets\n")
    } else {
        tables
    }
}

/// How all datasets stand: each with the workers that do not have it.
pub(super) fn states(states: &[State]) -> String {
    let mut table = Table::new(&[
        ("DATASET", Side::Left),
        ("BYTES", Side::Right),
        ("HELD", Side::Right),
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("STATE", Side::Left),
        ("HERE", Side::Right),
        ("TEXT", Side::Left),
    ])
    .may_go(&["WORKER", "BYTES", "HERE"]);
    for State { dataset, lacking } in states {
        let own = || {
            let bytes = said(dataset.bytes.map(ByteSize));
            [text(&dataset.cache_id), bytes, said(dataset.held)].into_iter()
        };
        if lacking.is_empty() {
            let state = if dataset.held.unwrap_or_default() > 0 { "held" } else { "-" };
            table.row(own().chain(["-", "-", state, "-", "-"].map(str::to_owned)));
        }
        for at in lacking {
            table.row(own().chain([
                text(&at.id),
                said(at.name.as_ref()),
                text(at.state.as_str()),
                ByteSize(at.done).to_string(),
                text(&at.text),
            ]));
        }
    }
    match table.render() {
        empty if empty.is_empty() => "the leader keeps no datasets\n".to_owned(),
        table => table,
    }
}

/// The answer to `dataset.status`.
pub(super) fn status(shown: &DatasetShown) -> String {
    let DatasetShown { dataset, workers: at_workers, names, more, next: _ } = shown;
    let mut lines = format!(
        "dataset  {}, {}, {}, put {} ago\ncontent  {}\ntarget   {}\n",
        text(&dataset.cache_id),
        Count(dataset.files.unwrap_or_default().into(), "file"),
        said(dataset.bytes.map(ByteSize)),
        ago(dataset.put_ms),
        text(&dataset.digest),
        text(&dataset.target),
    );
    let mut workers = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("STATE", Side::Left),
        ("HERE", Side::Right),
        ("OF", Side::Right),
        ("TEXT", Side::Left),
    ])
    .may_go(&["OF", "HERE", "NAME", "TEXT"]);
    for at in at_workers {
        workers.row([
            text(&at.id),
            said(at.name.as_ref()),
            text(at.state.as_str()),
            ByteSize(at.done).to_string(),
            ByteSize(at.total).to_string(),
            text(&at.text),
        ]);
    }
    let workers = workers.render();
    lines.push('\n');
    lines.push_str(if workers.is_empty() { "no workers\n" } else { &workers });
    let mut files =
        Table::new(&[("FILE", Side::Left), ("SIZE", Side::Right), ("SHA-256", Side::Left)]);
    for file in names {
        let sha256: String = file.sha256.chars().take(DIGITS_SHOWN).collect();
        files.row([text(&file.name), said(file.size.map(ByteSize)), text(&sha256)]);
    }
    if !names.is_empty() {
        lines.push_str(&format!("\n{}", files.render()));
    }
    if *more {
        lines.push_str("and more files\n");
    }
    lines
}

/// The answer to `dataset.rm`.
pub(super) fn removed(id: &str, removed: &Removed) -> String {
    format!("{id} removed, {}; workers free their disks\n", ByteSize(removed.bytes))
}

/// The answer to `dataset.verify`, and whether all is as it was put.
pub(super) fn verified(id: &str, inspected: &Inspected) -> (String, bool) {
    let bad = &inspected.packs_bad;
    let mut lines: String =
        bad.iter().map(|what| format!("leader: {}\n", printable(what))).collect();
    let mut workers = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("STATUS", Side::Left),
        ("MESSAGE", Side::Left),
    ])
    .may_go(&["NAME", "MESSAGE"]);
    let mut failed = 0;
    for worker in &inspected.workers {
        failed += usize::from(CacheStatus::from(worker.status.clone()) == CacheStatus::Failed);
        workers.row([
            text(&worker.id),
            said(worker.name.as_ref()),
            text(&worker.status),
            text(&worker.message),
        ]);
    }
    lines.push_str(&workers.render());
    lines.push_str(&format!(
        "{id}: {} packs at the leader are intact, {} are damaged; {} workers checked, {failed} \
         found damage\n",
        inspected.packs_good,
        bad.len(),
        inspected.workers.len(),
    ));
    (lines, bad.is_empty() && failed == 0)
}

/// The answer to `dataset.push`.
pub(super) fn pushed(id: &str, pushed: &Pushed, leader: &Leader) -> String {
    let held = match pushed.held {
        0 => String::new(),
        held => format!(", {held} have it already"),
    };
    match pushed.targets {
        0 => format!("no worker matches, so {id} stays where it is\n"),
        targets => format!(
            "pushing {id} to {targets} workers{held}: see progress with `{} {id}`\n",
            leader.command("dataset status")
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn read<A: DeserializeOwned>(answer: &Value) -> A {
        serde_json::from_value(answer.clone()).unwrap()
    }

    #[test]
    fn datasets_and_puts_under_way_are_shown_in_columns() {
        let answer = json!({
            "sets": [{"cache_id": "models-v2", "digest": "sha256:00", "bytes": 64 << 20, "files": 12, "target": "job.assign.>",
                      "put_ms": 61_500, "stored_bytes": 40 << 20, "held": 3, "coming": 1, "missing": 0, "failed": 0}],
            "puts": [{"cache_id": "next", "received": 1 << 20, "bytes": 3 << 20, "lacking": 2 << 20}],
        });
        let expected = "\
DATASET    FILES   BYTES  STORED  TARGET        HELD  COMING  MISSING  FAILED   AGE
models-v2     12  64 MiB  40 MiB  job.assign.>     3       1        0       0  1m1s

BEING PUT  RECEIVED  BYTES  LACKING
next          1 MiB  3 MiB    2 MiB
";
        assert_eq!(list(&read(&answer)), expected);
        assert_eq!(list(&read(&json!({}))), "the leader keeps no datasets\n");
    }

    #[test]
    fn a_dataset_is_shown_with_its_workers_and_files_also_if_little_is_said() {
        let answer = json!({
            "cache_id": "m", "bytes": 5, "files": 1, "digest": "sha256:00", "target": "none", "put_ms": 1000,
            "workers": [{"id": "w-1", "name": "host", "state": "coming", "done": 3, "total": 5, "text": ""}],
            "names": [{"name": "a/b.bin", "size": 5, "sha256": "00ff"}], "more": true,
        });
        let expected = "\
dataset  m, 1 file, 5 B, put 1s ago
content  sha256:00
target   none

WORKER  NAME  STATE   HERE   OF  TEXT
w-1     host  coming   3 B  5 B  -

FILE     SIZE  SHA-256
a/b.bin   5 B  00ff
and more files
";
        assert_eq!(status(&read(&answer)), expected);
        assert!(status(&read(&json!({}))).contains("no workers"));
    }

    #[test]
    fn a_check_says_what_is_wrong_and_where() {
        let bad = json!({"packs_good": 2, "packs_bad": ["pack p: chunk 3"],
                         "workers": [{"id": "w-1", "name": null, "status": "FAILED", "message": "a.bin is damaged"}]});
        let expected = "\
leader: pack p: chunk 3
WORKER  NAME  STATUS  MESSAGE
w-1     -     FAILED  a.bin is damaged
m: 2 packs at the leader are intact, 1 are damaged; 1 workers checked, 1 found damage
";
        assert_eq!(verified("m", &read(&bad)), (expected.to_owned(), false));
        assert!(verified("m", &read(&json!({"packs_good": 2, "packs_bad": [], "workers": []}))).1);
        assert_eq!(
            removed("m", &read(&json!({"removed": true, "bytes": 1024}))),
            "m removed, 1 KiB; workers free their disks\n"
        );
        let leader = Leader::named("l:1");
        assert!(pushed("m", &read(&json!({"targets": 0})), &leader).starts_with("no worker"));
        let text = pushed("m", &read(&json!({"targets": 2, "held": 1})), &leader);
        let expected = "pushing m to 2 workers, 1 have it already: see progress with `heft dataset \
                        status -l l:1 m`\n";
        assert_eq!(text, expected);
    }
}
