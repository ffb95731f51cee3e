//! `heft dataset put`: one dataset, waited for until enough workers have it.

use std::cell::RefCell;
use std::process::ExitCode;
use std::time::Duration;

use chunking::message::Reason;
use serde_json::{Map, Value, json};

use super::board::Board;
use super::{DatasetArgs, PutArgs};
use crate::answers::{WorkerRow, ask};
use crate::cli::exit::{FAILED, code_of, within};
use crate::cli::interrupts::{Stopped, interrupts};
use crate::cli::output::{print_id, with_code};
use crate::cli::reach::Leader;
use crate::cli::table::{Side, Table, prose};
use crate::cli::{Output, note, print, print_json, say};
use crate::client::Client;
use crate::client::dataset::{DatasetSpec, PutError, PutReport, WorkerAck, put};
use crate::core::dataset::TARGET_NONE;
use crate::core::subject::{subscriptions, targets};
use crate::units::{ByteSize, Count};

/// How often the leader is asked what each worker has got.
const ASK_EVERY: Duration = Duration::from_millis(500);

pub(super) async fn run(args: &DatasetArgs, what: &PutArgs) -> anyhow::Result<ExitCode> {
    let mut interrupts = interrupts()?;
    let putting = async {
        let leader = within(what.timeout, args.reach.leader(), |limit| {
            format!("the leader was not reached within {limit} (--timeout): nothing was sent")
        });
        let leader = leader.await?;
        let ended = put_and_watch(args, what, &leader).await;
        anyhow::Ok((leader, ended))
    };
    let (leader, ended) = tokio::select! {
        put = putting => put?,
        Some(interrupt) = interrupts.recv() => {
            let text = format!(
                "{} ended heft dataset put: the leader keeps all received pieces; repeat the same \
                 put to resume it",
                interrupt.name()
            );
            return Err(Stopped { interrupt, text, job: None }.into());
        }
    };
    match ended {
        Ok(report) => {
            show(args, what, &report)?;
            Ok(if report.enough { ExitCode::SUCCESS } else { ExitCode::from(FAILED) })
        }
        Err(error) => {
            if let (Output::Table, PutError::TimedOut { report: Some(report), .. }) =
                (args.output, &error)
            {
                print(prose(text(what, report)).as_bytes())?;
            }
            let hint = match &error {
                PutError::Refused { refusal, .. }
                    if refusal.reason == Reason::CONFLICT
                        && !refusal.text.contains("--replace") =>
                {
                    "; use --replace to replace the content, or choose another CACHE_ID"
                }
                PutError::Refused { .. }
                | PutError::Scan(_)
                | PutError::Source(_)
                | PutError::Client(_)
                | PutError::Part { .. }
                | PutError::TimedOut { .. } => "",
            };
            let said = match &error {
                PutError::Client(error) => leader.blame(error.clone()).to_string(),
                PutError::Scan(_)
                | PutError::Source(_)
                | PutError::Refused { .. }
                | PutError::Part { .. }
                | PutError::TimedOut { .. } => error.to_string(),
            };
            let shown = format!("{said}{hint}");
            let failure = failure(what, &error, &shown);
            let error = anyhow::Error::from(error);
            let code = code_of(&error);
            match args.output {
                Output::Json | Output::Jsonl => print_json(&with_code(failure, code))?,
                Output::Table | Output::Quiet => say(&shown),
            }
            Ok(ExitCode::from(code))
        }
    }
}

/// Puts the dataset, and asks the leader beside it how workers fare, where somebody wants to see
/// that.
async fn put_and_watch(
    args: &DatasetArgs,
    what: &PutArgs,
    leader: &Leader,
) -> Result<PutReport, PutError> {
    let options = args.reach.options("");
    let mut spec = DatasetSpec::of(what.id.clone(), what.paths.clone())
        .target(what.target.clone())
        .wait(what.wait)
        .replace(what.replace)
        .compression(what.compress.into());
    if let Some(timeout) = what.timeout {
        spec = spec.timeout(timeout.0);
    }
    let board = RefCell::new(Board::new(what.id.as_str(), what.progress, args.output));
    let putting = put(leader.address(), spec, &options, |event| board.borrow_mut().take(&event));
    let ended = tokio::select! {
        ended = putting => ended,
        () = watch(args, what, leader, &board) => Err(PutError::Client(crate::client::ClientError::Closed)),
    };
    board.borrow_mut().clear();
    ended
}

/// Never ends: it says what it finds, and that it finds nothing is no reason to stop the put.
async fn watch(args: &DatasetArgs, what: &PutArgs, leader: &Leader, board: &RefCell<Board>) {
    let (is_on, shows_workers) = {
        let board = board.borrow();
        (board.is_on(), board.shows_workers())
    };
    if is_on && let Ok(client) = args.reach.asking(leader).await {
        if what.target != TARGET_NONE && is_for_nobody(&client, &what.target).await {
            let note = format!(
                "no connected worker matches {}: the leader will keep {} for workers that join \
                 later",
                what.target, what.id
            );
            board.borrow_mut().note(&note);
        }
        if shows_workers {
            loop {
                tokio::time::sleep(ASK_EVERY).await;
                // Before the leader has the manifest it may know nothing of the dataset.
                let cache_id = what.id.as_str().to_owned();
                let question = ask::DatasetStatus { cache_id, after: None, within: None };
                if let Ok(status) = client.ask(&question).await {
                    board.borrow_mut().workers(&status.answer.workers);
                }
            }
        }
    }
    std::future::pending().await
}

/// Whether the leader has no worker whose pattern overlaps this one (C12).
async fn is_for_nobody(client: &Client, target: &str) -> bool {
    let Ok(status) = client.ask(&ask::Status {}).await else { return false };
    !status.answer.workers.iter().any(|worker| is_target(worker, target))
}

fn is_target(worker: &WorkerRow, target: &str) -> bool {
    targets(target, &subscriptions(&worker.patterns, worker.id.parse().unwrap_or_default()))
}

fn show(args: &DatasetArgs, what: &PutArgs, report: &PutReport) -> anyhow::Result<()> {
    match args.output {
        Output::Table => print(prose(text(what, report)).as_bytes())?,
        Output::Json | Output::Jsonl => {
            let status = if report.enough { "OK" } else { "FAILED" };
            let mut object = members(what, report);
            object.insert("status".to_owned(), json!(status));
            print_json(&Value::Object(object))?;
        }
        Output::Quiet => print_id(what.id.as_str())?,
    }
    if report.spread.targets == 0 && what.target != TARGET_NONE {
        note(&format!(
            "no worker matches {}: the leader keeps {} for workers that join later (if this is \
             intended, use `--target none`)",
            what.target, what.id
        ));
    }
    if !report.enough {
        say(&format!(
            "{} of {} workers have {}; --wait {} requires more",
            report.spread.have(),
            report.spread.targets,
            what.id,
            what.wait
        ));
    }
    Ok(())
}

/// A line for each worker, and one for all.
fn text(what: &PutArgs, report: &PutReport) -> String {
    let mut table = Table::new(&[
        ("WORKER", Side::Left),
        ("NAME", Side::Left),
        ("STATUS", Side::Left),
        ("MESSAGE", Side::Left),
    ])
    .may_go(&["NAME", "MESSAGE"]);
    for ack in &report.acks {
        let (id, name) = id_and_name(ack);
        let name = name.unwrap_or("-");
        table.row([
            id.to_owned(),
            name.to_owned(),
            ack.status.as_str().to_owned(),
            ack.message.clone(),
        ]);
    }
    let spread = &report.spread;
    let said = if spread.text.is_empty() { String::new() } else { format!("; {}", spread.text) };
    format!(
        "{}{}: {}, {}, {}: {}: {} ok, {} skipped, {} failed, {} missing; {} from here, {} moved{said}\n",
        table.render(),
        what.id,
        Count(report.files.into(), "file"),
        ByteSize(report.bytes),
        report.digest,
        Count(spread.targets.into(), "worker"),
        spread.ok,
        spread.skipped,
        spread.failed,
        spread.missing,
        ByteSize(spread.received),
        ByteSize(spread.moved),
    )
}

fn id_and_name(ack: &WorkerAck) -> (&str, Option<&str>) {
    match ack.worker.split_once(' ') {
        Some((id, name)) => (id, Some(name)),
        None => (&ack.worker, None),
    }
}

fn members(what: &PutArgs, report: &PutReport) -> Map<String, Value> {
    let spread = &report.spread;
    let millis = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let worker = |ack: &WorkerAck| {
        let (id, name) = id_and_name(ack);
        json!({"id": id, "name": name, "status": ack.status.as_str(), "message": ack.message})
    };
    let object = json!({
        "cache_id": what.id.as_str(),
        "digest": report.digest.to_string(),
        "files": report.files,
        "bytes": report.bytes,
        "targets": spread.targets,
        "ok": spread.ok,
        "skipped": spread.skipped,
        "failed": spread.failed,
        "missing": spread.missing,
        "received": spread.received,
        "moved": spread.moved,
        "text": spread.text,
        "workers": report.acks.iter().map(worker).collect::<Vec<_>>(),
        "scan_ms": millis(report.scan_took),
        "took_ms": millis(report.took),
    });
    match object {
        Value::Object(members) => members,
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => {
            Map::new()
        }
    }
}

/// What stands in place of a report.
fn failure(what: &PutArgs, error: &PutError, shown: &str) -> Value {
    let (status, reason, report) = match error {
        PutError::Refused { refusal, .. } => ("REFUSED", Some(refusal.reason), None),
        PutError::Part { reason, .. } => ("REFUSED", Some(*reason), None),
        PutError::TimedOut { report, .. } => ("TIMED_OUT", None, report.as_deref()),
        PutError::Scan(_) | PutError::Source(_) | PutError::Client(_) => ("ERROR", None, None),
    };
    let mut object = report.map(|report| members(what, report)).unwrap_or_default();
    object.insert("cache_id".to_owned(), json!(what.id.as_str()));
    object.insert("status".to_owned(), json!(status));
    object.insert("error".to_owned(), json!(shown));
    if let Some(reason) = reason {
        object.insert("reason".to_owned(), json!(reason.to_string()));
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn c12_a_worker_is_a_target_if_patterns_overlap() {
        let patterns = ["job.assign.calcA.*", "groupB"].map(str::to_owned).to_vec();
        let worker = WorkerRow { patterns, ..WorkerRow::default() };
        for (target, is) in [
            ("job.assign.>", true),
            ("job.assign.*", true),
            ("job.assign.calcA.x", true),
            ("groupB", true),
            ("groupC", false),
        ] {
            assert_eq!(is_target(&worker, target), is, "{target}");
        }
        assert!(!is_target(&WorkerRow::default(), "groupB"));
    }
}
