//! What leaders answer about datasets, in columns for people. What an answer does not say is shown as `-`.

use std::time::Duration;

use serde_json::Value;

use crate::cli::dlq::cell;
use crate::cli::table::{Side, Table};
use crate::cli::{about, printable};
use crate::units::{ByteSize, Count};

/// Digits of a digest in a column: enough to tell files apart, and `--output json` has all.
const DIGITS_SHOWN: usize = 16;

/// The items of a member that is a list.
fn items<'a>(value: &'a Value, member: &str) -> &'a [Value] {
    value.get(member).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

pub(super) fn bytes(value: &Value, member: &str) -> String {
    value.get(member).and_then(Value::as_u64).map_or_else(|| "-".to_owned(), |n| ByteSize(n).to_string())
}

/// A time that has passed, in milliseconds.
fn ago(value: &Value, member: &str) -> String {
    let millis = value.get(member).and_then(Value::as_u64);
    millis.map_or_else(|| "-".to_owned(), |millis| about(Duration::from_secs(millis / 1000)))
}

/// The answer to `dataset.ls`.
pub(super) fn list(answer: &Value) -> String {
    let mut sets = Table::new(&[
        ("SET", Side::Left),
        ("FILES", Side::Right),
        ("BYTES", Side::Right),
        ("STORED", Side::Right),
        ("TARGET", Side::Left),
        ("HELD", Side::Right),
        ("COMING", Side::Right),
        ("MISSING", Side::Right),
        ("FAILED", Side::Right),
        ("AGE", Side::Right),
    ]);
    for set in items(answer, "sets") {
        sets.row([
            cell(set, "cache_id"),
            cell(set, "files"),
            bytes(set, "bytes"),
            bytes(set, "stored_bytes"),
            cell(set, "target"),
            cell(set, "held"),
            cell(set, "coming"),
            cell(set, "missing"),
            cell(set, "failed"),
            ago(set, "put_ms"),
        ]);
    }
    let mut puts = Table::new(&[
        ("BEING PUT", Side::Left),
        ("RECEIVED", Side::Right),
        ("BYTES", Side::Right),
        ("LACKING", Side::Right),
    ]);
    for put in items(answer, "puts") {
        puts.row([cell(put, "cache_id"), bytes(put, "received"), bytes(put, "bytes"), bytes(put, "lacking")]);
    }
    let text = match (sets.render(), puts.render()) {
        (sets, puts) if sets.is_empty() && puts.is_empty() => "the leader keeps no datasets\n".to_owned(),
        (sets, puts) if puts.is_empty() => sets,
        (sets, puts) if sets.is_empty() => puts,
        (sets, puts) => format!("{sets}\n{puts}"),
    };
    match answer.get("more").and_then(Value::as_bool) {
        Some(true) => format!("{text}there are more sets than are listed\n"),
        Some(false) | None => text,
    }
}

/// The answer to `dataset.status`.
pub(super) fn status(answer: &Value) -> String {
    let mut text = format!(
        "set      {}, {}, {}, put {} ago\ncontent  {}\ntarget   {}\n",
        cell(answer, "cache_id"),
        Count(answer["files"].as_u64().unwrap_or_default(), "file"),
        bytes(answer, "bytes"),
        ago(answer, "put_ms"),
        cell(answer, "digest"),
        cell(answer, "target"),
    );
    let mut workers = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("STATE", Side::Left),
        ("HERE", Side::Right),
        ("OF", Side::Right),
        ("TEXT", Side::Left),
    ]);
    for worker in items(answer, "workers") {
        workers.row([
            cell(worker, "id"),
            cell(worker, "name"),
            cell(worker, "state"),
            bytes(worker, "done"),
            bytes(worker, "total"),
            cell(worker, "text"),
        ]);
    }
    let workers = workers.render();
    text.push('\n');
    text.push_str(if workers.is_empty() { "no workers\n" } else { &workers });
    let mut files = Table::new(&[("FILE", Side::Left), ("SIZE", Side::Right), ("SHA-256", Side::Left)]);
    for file in items(answer, "names") {
        let sha256: String = cell(file, "sha256").chars().take(DIGITS_SHOWN).collect();
        files.row([cell(file, "name"), bytes(file, "size"), sha256]);
    }
    let files = files.render();
    if !files.is_empty() {
        text.push_str(&format!("\n{files}"));
    }
    // A leader may say that there are more, or how many.
    match answer.get("more") {
        Some(Value::Bool(true)) => text.push_str("and more files\n"),
        Some(Value::Number(more)) if more.as_u64() != Some(0) => {
            text.push_str(&format!("and {more} more files\n"))
        }
        Some(_) | None => {}
    }
    text
}

/// The answer to `dataset.rm`.
pub(super) fn removed(id: &str, answer: &Value) -> String {
    format!("{id} removed, {}; workers free their disks\n", bytes(answer, "bytes"))
}

/// The answer to `dataset.verify`, and whether all is as it was put.
pub(super) fn verified(id: &str, answer: &Value) -> (String, bool) {
    let bad = items(answer, "packs_bad");
    let mut text = String::new();
    for what in bad {
        let what = what.as_str().map_or_else(|| what.to_string(), printable);
        text.push_str(&format!("leader: {what}\n"));
    }
    let mut workers = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("STATUS", Side::Left),
        ("MESSAGE", Side::Left),
    ]);
    let mut failed = 0;
    for worker in items(answer, "workers") {
        failed += usize::from(worker.get("status").and_then(Value::as_str) == Some("FAILED"));
        workers.row([
            cell(worker, "id"),
            cell(worker, "name"),
            cell(worker, "status"),
            cell(worker, "message"),
        ]);
    }
    text.push_str(&workers.render());
    text.push_str(&format!(
        "{id}: at the leader {} packs are as they were put, {} are not; {} workers checked, {failed} found damage\n",
        cell(answer, "packs_good"),
        bad.len(),
        items(answer, "workers").len(),
    ));
    (text, bad.is_empty() && failed == 0)
}

/// The answer to `dataset.push`.
pub(super) fn pushed(id: &str, answer: &Value, leader: &str) -> String {
    let number = |member: &str| answer.get(member).and_then(Value::as_u64).unwrap_or_default();
    let held = match number("held") {
        0 => String::new(),
        held => format!(", {held} have it already"),
    };
    match number("targets") {
        0 => format!("no worker matches, so {id} stays where it is\n"),
        targets => format!(
            "{targets} workers are to hold {id}{held}: `heft dataset {leader} status {id}` shows how far they are\n"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn sets_and_puts_under_way_are_shown_in_columns() {
        let answer = json!({
            "sets": [{"cache_id": "models-v2", "digest": "sha256:00", "bytes": 64 << 20, "files": 12, "target": "job.assign.>",
                      "put_ms": 61_500, "stored_bytes": 40 << 20, "held": 3, "coming": 1, "missing": 0, "failed": 0}],
            "puts": [{"cache_id": "next", "received": 1 << 20, "bytes": 3 << 20, "lacking": 2 << 20}],
        });
        let expected = "\
SET        FILES   BYTES  STORED  TARGET        HELD  COMING  MISSING  FAILED   AGE
models-v2     12  64 MiB  40 MiB  job.assign.>     3       1        0       0  1m1s

BEING PUT  RECEIVED  BYTES  LACKING
next          1 MiB  3 MiB    2 MiB
";
        assert_eq!(list(&answer), expected);
        assert_eq!(list(&json!({})), "the leader keeps no datasets\n");
    }

    #[test]
    fn a_set_is_shown_with_its_workers_and_files_also_if_little_is_said() {
        let answer = json!({
            "cache_id": "m", "bytes": 5, "files": 1, "digest": "sha256:00", "target": "none", "put_ms": 1000,
            "workers": [{"id": "w-1", "name": "host", "state": "coming", "done": 3, "total": 5, "text": ""}],
            "names": [{"name": "a/b.bin", "size": 5, "sha256": "00ff"}], "more": true,
        });
        let expected = "\
set      m, 1 file, 5 B, put 1s ago
content  sha256:00
target   none

WORKER  NAME  STATE   HERE   OF  TEXT
w-1     host  coming   3 B  5 B  -

FILE     SIZE  SHA-256
a/b.bin   5 B  00ff
and more files
";
        assert_eq!(status(&answer), expected);
        assert!(status(&json!({})).contains("no workers"));
    }

    #[test]
    fn a_check_says_what_is_wrong_and_where() {
        let bad = json!({"packs_good": 2, "packs_bad": ["pack p: chunk 3"],
                         "workers": [{"id": "w-1", "name": null, "status": "FAILED", "message": "a.bin is damaged"}]});
        let expected = "\
leader: pack p: chunk 3
WORKER  NAME  STATUS  MESSAGE
w-1     -     FAILED  a.bin is damaged
m: at the leader 2 packs are as they were put, 1 are not; 1 workers checked, 1 found damage
";
        assert_eq!(verified("m", &bad), (expected.to_owned(), false));
        assert!(verified("m", &json!({"packs_good": 2, "packs_bad": [], "workers": []})).1);
        assert_eq!(
            removed("m", &json!({"removed": true, "bytes": 1024})),
            "m removed, 1 KiB; workers free their disks\n"
        );
        assert!(pushed("m", &json!({"targets": 0}), "l:1").starts_with("no worker"));
        let text = pushed("m", &json!({"targets": 2, "held": 1}), "l:1");
        assert!(text.starts_with("2 workers are to hold m, 1 have it already: "), "{text}");
    }
}
