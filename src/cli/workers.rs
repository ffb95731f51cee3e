//! `heft workers`: the workers that a leader knows. They are part of what `heft status` shows.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::exit::{NotFound, Unavailable, Usage};
use super::output::{self, OUTPUT_VARIABLE};
use super::status::{avoiding, cut_short, failing, notes, workers_table};
use super::table::{said, text, yes_or_no};
use super::{Output, Reach, Rows, about};
use crate::answers::{LISTED_MAX, Status, StatusList, WorkerRow};
use crate::client::Answered;
use crate::likeness::did_you_mean;

const EXAMPLES: &str = "Examples:
  heft workers ls
  heft workers ls -o quiet
  heft workers show gpu-7

A worker is named by its id or by its name.";

/// What is listed.
const WORKERS: Rows = Rows { list: "workers", id: "id" };

/// Show the workers of a leader
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WorkersArgs {
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
    /// List the workers.
    Ls,
    /// Show a worker.
    Show {
        /// Its id or name.
        worker: String,
    },
}

/// Runs the command.
pub fn run(args: &WorkersArgs) -> anyhow::Result<ExitCode> {
    super::block_on_until_stopped(look(args))
}

async fn look(args: &WorkersArgs) -> anyhow::Result<ExitCode> {
    let status = args.reach.listed(StatusList::Workers).await?;
    match &args.what {
        What::Ls => {
            let table = || {
                let workers = &status.answer.workers;
                let table = workers_table(workers).render();
                let notes: String = workers.iter().flat_map(notes).collect();
                let count = count_of(&status, "workers").unwrap_or_default();
                let cut = cut_short("workers", workers.len(), count).unwrap_or_default();
                if table.is_empty() { "no workers\n".to_owned() } else { table + &cut + &notes }
            };
            output::show(args.output, &part(&status, "workers"), Some(WORKERS), table)?;
        }
        What::Show { worker } => {
            let (found, json) = find(&status, worker)?;
            output::show(args.output, json, None, || shown(found))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// One of the lists of a status, as the leader wrote it, and whether it is longer.
pub(super) fn part(status: &Answered<Status>, list: &str) -> Value {
    let rows = status.json.get(list).cloned().unwrap_or_else(|| json!([]));
    let listed = rows.as_array().map_or(0, Vec::len);
    json!({ list: rows, "more": is_cut(status, list, listed) })
}

/// Whether the leader has more of a list than it wrote. An older one does not say: a list that is
/// full may be all.
fn is_cut(status: &Answered<Status>, list: &str, listed: usize) -> bool {
    match count_of(status, list) {
        Some(count) => count > listed as u64,
        None => listed >= LISTED_MAX,
    }
}

/// How many there are, if the leader says it.
pub(super) fn count_of(status: &Answered<Status>, list: &str) -> Option<u64> {
    status.json.get("counts")?.get(list)?.as_u64()
}

/// What is not in a list is not there, unless the list is cut off.
pub(super) fn absent(status: &Answered<Status>, list: &str, text: String) -> anyhow::Error {
    let listed = status.json.get(list).and_then(Value::as_array).map_or(0, Vec::len);
    match is_cut(status, list, listed) {
        false => NotFound(text).into(),
        true => {
            let all = match count_of(status, list) {
                Some(count) => format!("its {count}"),
                None => "its".to_owned(),
            };
            Unavailable(format!(
                "the leader lists only {listed} of {all} {list}, and this is not among them: ask \
                 again when there are fewer"
            ))
            .into()
        }
    }
}

/// The worker of this id, or the only one of this name.
fn find<'a>(
    status: &'a Answered<Status>,
    wanted: &str,
) -> anyhow::Result<(&'a WorkerRow, &'a Value)> {
    let rows = status.json.get("workers").and_then(Value::as_array).into_iter().flatten();
    let workers: Vec<_> = status.answer.workers.iter().zip(rows).collect();
    let by_id = workers.iter().find(|(worker, _)| worker.id == wanted);
    let is_named = |worker: &WorkerRow| worker.name.as_deref() == Some(wanted);
    let named: Vec<_> = workers.iter().copied().filter(|(worker, _)| is_named(worker)).collect();
    match (by_id.copied(), named.as_slice()) {
        (Some(found), _) => Ok(found),
        (None, [found]) => Ok(*found),
        (None, []) => {
            let names = workers.iter().filter_map(|(worker, _)| worker.name.as_deref());
            let hint = did_you_mean(wanted, names);
            let text =
                format!("the leader knows no worker {wanted:?}{hint}: `heft workers ls` lists all");
            Err(absent(status, "workers", text))
        }
        (None, several) => Err(Usage(format!(
            "{} workers are called {wanted:?}: name one by its id",
            several.len()
        ))
        .into()),
    }
}

fn shown(worker: &WorkerRow) -> String {
    let share = worker.cpu_permille.map(|share| format!("{}.{} %", share / 10, share % 10));
    let mut patterns = worker.patterns.join(" ");
    if worker.patterns_more > 0 {
        patterns.push_str(&format!(" and {} more", worker.patterns_more));
    }
    let lines = [
        ("worker", text(&worker.id)),
        ("name", said(worker.name.as_ref())),
        ("class", text(worker.class.as_str())),
        ("connected", yes_or_no(worker.connected)),
        ("credit", worker.credit.to_string()),
        ("running", worker.running.to_string()),
        ("returning", worker.returning.to_string()),
        ("cpu", said(share)),
        ("patterns", text(&patterns)),
        (
            "lacks",
            said(worker.lacks.as_ref().map(|lacks| {
                format!("{}, {} ago", lacks.what, about(Duration::from_secs(lacks.ago_ms / 1000)))
            })),
        ),
    ];
    let mut shown = lines.map(|(label, what)| format!("{label:<9} {what}\n")).concat();
    if let Some(programs) = &worker.programs {
        let more = match worker.programs_more {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        shown.push_str(&format!("{:<9} {}{more}\n", "programs", text(&programs.join(" "))));
    }
    shown.extend(avoiding(worker).chain(failing(worker)));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::exit::{NOT_FOUND, UNAVAILABLE, USAGE, code_of};

    fn status(json: Value) -> Answered<Status> {
        Answered { answer: serde_json::from_value(json.clone()).unwrap(), json }
    }

    #[test]
    fn a_worker_is_found_by_its_id_or_by_a_name_that_only_it_has() {
        let status = status(json!({"workers": [
            {"id": "w-1", "name": "gpu", "new": 1}, {"id": "w-2", "name": "gpu"}, {"id": "w-3", "name": "host-3"},
        ]}));
        let id = |wanted| find(&status, wanted).map(|(worker, _)| worker.id.clone());
        assert_eq!((id("w-2").unwrap(), id("host-3").unwrap()), ("w-2".into(), "w-3".into()));
        assert_eq!(find(&status, "w-1").unwrap().1["new"], 1, "as the leader wrote it");
        let error = id("gpu").unwrap_err();
        assert_eq!((code_of(&error), error.to_string().contains("2 workers")), (USAGE, true));
        let error = id("host-4").unwrap_err();
        assert_eq!(code_of(&error), NOT_FOUND);
        assert!(error.to_string().contains("did you mean \"host-3\"?"), "{error}");
    }

    #[test]
    fn a_list_has_more_only_if_the_leader_has_more() {
        let rows = |count: usize| -> Vec<Value> {
            (0..count).map(|number| json!({"id": format!("w-{number}")})).collect()
        };
        for (listed, count, more) in [
            (LISTED_MAX, Some(LISTED_MAX), false),
            (LISTED_MAX, Some(LISTED_MAX + 1), true),
            (0, Some(0), false),
            // An older leader does not say it.
            (LISTED_MAX, None, true),
            (LISTED_MAX - 1, None, false),
        ] {
            let mut answer = json!({"workers": rows(listed)});
            if let Some(count) = count {
                answer["counts"] = json!({"workers": count, "clients": 0, "queues": 0});
            }
            let status = status(answer);
            assert_eq!(part(&status, "workers")["more"], more, "{listed} {count:?}");
            let error = find(&status, "nobody").unwrap_err();
            let code = if more { UNAVAILABLE } else { NOT_FOUND };
            assert_eq!(code_of(&error), code, "{listed} {count:?}: {error}");
        }
    }

    #[test]
    fn a_worker_is_shown_line_by_line() {
        let worker = json!({"id": "w-1", "name": null, "class": "heft", "patterns": ["a", "b"], "patterns_more": 3, "credit": 4,
                            "running": 2, "returning": 1, "cpu_permille": 253, "connected": true,
                            "lacks": {"what": "room", "ago_ms": 61_500}});
        let expected = "\
worker    w-1
name      -
class     heft
connected yes
credit    4
running   2
returning 1
cpu       25.3 %
patterns  a b and 3 more
lacks     room, 1m1s ago
";
        assert_eq!(shown(&serde_json::from_value(worker.clone()).unwrap()), expected);
        let mut worker = worker;
        worker["programs"] = json!(["calcA", "calcB"]);
        worker["avoided"] = json!([{"program": "calcC", "why": "not found", "ago_ms": 5_000}]);
        worker["flagged"] =
            json!([{"program": "calcA", "ended": 9, "failed": 6, "median_permille": 100}]);
        let more = shown(&serde_json::from_value(worker).unwrap());
        let more = more.strip_prefix(expected).unwrap();
        assert!(more.starts_with("programs  calcA calcB\n"), "{more}");
        assert!(
            more.contains("lacks the program calcC") && more.contains("6 of the last 9"),
            "{more}"
        );
    }
}
