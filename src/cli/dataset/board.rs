//! How a put stands, while it runs: on a terminal a line for the set and one for each worker, written over and over; elsewhere a
//! line for what happens, or a JSON object. It is told and asks nobody.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::answers::{AtWorker, AtWorkerState};
use crate::cli::progress::{LINE_CHARS_MAX, Meter, Progress, eta_s, moving};
use crate::cli::{Output, about, printable, say};
use crate::client::dataset::PutEvent;
use crate::units::{ByteSize, Count};

/// Workers that are shown on a terminal; of the others it is said how many there are.
const WORKERS_SHOWN_MAX: usize = 24;

/// Where it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Table,
    Lines,
    /// Only what a log needs: standard output is for a program.
    Troubles,
    Json,
    Nothing,
}

/// A worker as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    name: String,
    state: AtWorkerState,
    done: u64,
    total: u64,
    text: String,
}

pub(super) struct Board {
    cache_id: String,
    form: Form,
    started: Instant,
    head: String,
    up: Meter,
    rows: BTreeMap<String, Row>,
    meters: HashMap<String, Meter>,
    rates: HashMap<String, u64>,
    /// Lines that are on the terminal.
    drawn: usize,
}

impl Board {
    pub(super) fn new(cache_id: &str, progress: Progress, output: Output) -> Self {
        let form = match (progress, output) {
            (Progress::None, _) => Form::Nothing,
            (Progress::Json, _) => Form::Json,
            (Progress::Auto, Output::Json) => Form::Troubles,
            (Progress::Auto, Output::Table) if io::stderr().is_terminal() => Form::Table,
            (Progress::Auto, Output::Table) => Form::Lines,
        };
        Board {
            cache_id: cache_id.to_owned(),
            form,
            started: Instant::now(),
            head: "reading files".to_owned(),
            up: Meter::default(),
            rows: BTreeMap::new(),
            meters: HashMap::new(),
            rates: HashMap::new(),
            drawn: 0,
        }
    }

    /// Whether it has a use for what workers have got.
    pub(super) fn shows_workers(&self) -> bool {
        match self.form {
            Form::Table | Form::Json => true,
            Form::Lines | Form::Troubles | Form::Nothing => false,
        }
    }

    /// Whether anybody wants to know.
    pub(super) fn is_on(&self) -> bool {
        self.form != Form::Nothing
    }

    /// Something happened to the put.
    pub(super) fn take(&mut self, event: &PutEvent) {
        let rate = match event {
            PutEvent::Scanning { done, .. } | PutEvent::Uploading { done, .. } => {
                self.up.rate(Instant::now(), *done)
            }
            // From here on other bytes move.
            PutEvent::Scanned { .. } | PutEvent::Lacking { .. } => {
                self.up = Meter::default();
                None
            }
            PutEvent::Asked { .. }
            | PutEvent::Waiting { .. }
            | PutEvent::Stored(_)
            | PutEvent::Ack(_)
            | PutEvent::Reconnecting { .. } => None,
        };
        let text = describe(event, rate);
        match self.form {
            Form::Nothing => {}
            Form::Json => {
                writeln!(io::stderr(), "{}", as_json(&self.cache_id, event, rate, &text)).ok();
            }
            Form::Table => {
                // What a worker says stands in its line.
                if !matches!(event, PutEvent::Ack(_)) {
                    self.head = text;
                }
                self.draw();
            }
            Form::Lines | Form::Troubles => {
                let trouble = match event {
                    PutEvent::Waiting { .. } | PutEvent::Reconnecting { .. } => true,
                    PutEvent::Scanned { .. }
                    | PutEvent::Lacking { .. }
                    | PutEvent::Stored(_)
                    | PutEvent::Ack(_) => false,
                    PutEvent::Scanning { .. } | PutEvent::Uploading { .. } | PutEvent::Asked { .. } => return,
                };
                if trouble || self.form == Form::Lines {
                    say(&format!("{}: {text}", self.cache_id));
                }
            }
        }
    }

    /// What the leader says of the workers in its answer to `dataset.status`.
    pub(super) fn workers(&mut self, workers: &[AtWorker]) {
        let now = Instant::now();
        for at in workers {
            let id = printable(&at.id);
            let row = Row {
                name: at.name.as_deref().map(printable).unwrap_or_default(),
                state: at.state.clone(),
                done: at.done,
                total: at.total,
                text: printable(&at.text),
            };
            let rate = self.meters.entry(id.clone()).or_default().rate(now, row.done);
            let rate = rate.filter(|_| row.state == AtWorkerState::Coming);
            match rate {
                Some(rate) => self.rates.insert(id.clone(), rate),
                None => self.rates.remove(&id),
            };
            let before = self.rows.insert(id.clone(), row.clone());
            if self.form == Form::Json && before.as_ref() != Some(&row) {
                writeln!(io::stderr(), "{}", worker_json(&self.cache_id, &id, &row, rate)).ok();
            }
        }
        self.draw();
    }

    /// A line that stays.
    pub(super) fn note(&mut self, text: &str) {
        match self.form {
            Form::Nothing => {}
            Form::Json => {
                let object = json!({"event": "note", "cache_id": self.cache_id, "text": text});
                writeln!(io::stderr(), "{object}").ok();
            }
            Form::Table | Form::Lines | Form::Troubles => {
                self.clear();
                say(text);
            }
        }
    }

    fn draw(&mut self) {
        if self.form != Form::Table {
            return;
        }
        let elapsed = about(Duration::from_secs(self.started.elapsed().as_secs()));
        let mut lines = vec![format!("{}  {elapsed}  {}", self.cache_id, self.head)];
        lines.extend(rows(&self.rows, &self.rates));
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\x1b[{}A", self.drawn));
        }
        for line in &lines {
            let line = printable(line).replace('\n', " ");
            let line: String = line.chars().take(LINE_CHARS_MAX).collect();
            text.push_str(&format!("\r{line}\x1b[K\n"));
        }
        // Lines that were there before and are not any more.
        text.push_str("\x1b[J");
        let mut out = io::stderr().lock();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).ok();
        self.drawn = lines.len();
    }

    /// Takes the table off the terminal.
    pub(super) fn clear(&mut self) {
        if self.drawn > 0 {
            let mut out = io::stderr().lock();
            write!(out, "\x1b[{}A\r\x1b[J", self.drawn).and_then(|()| out.flush()).ok();
            self.drawn = 0;
        }
    }
}

/// A line for each worker: those that something happens to first.
fn rows(rows: &BTreeMap<String, Row>, rates: &HashMap<String, u64>) -> Vec<String> {
    let order = |state: &AtWorkerState| match state {
        AtWorkerState::Coming => 0,
        AtWorkerState::Failed => 1,
        AtWorkerState::Waiting => 2,
        AtWorkerState::Gone | AtWorkerState::Away | AtWorkerState::Other(_) => 3,
        AtWorkerState::Held => 4,
    };
    let mut sorted: Vec<(&String, &Row)> = rows.iter().collect();
    sorted.sort_by_key(|(_, row)| order(&row.state));
    let called = |id: &str, row: &Row| if row.name.is_empty() { id.to_owned() } else { row.name.clone() };
    let width = sorted.iter().map(|(id, row)| called(id, row).chars().count()).max().unwrap_or(0);
    let shown = sorted.iter().take(WORKERS_SHOWN_MAX).map(|(id, row)| {
        let bytes = match row.total {
            0 => String::new(),
            total => format!("  {} of {}", ByteSize(row.done), ByteSize(total)),
        };
        let rate = rates.get(*id).map(|rate| format!("  {}/s", ByteSize(*rate))).unwrap_or_default();
        let text = if row.text.is_empty() { String::new() } else { format!("  {}", row.text) };
        format!("  {:width$}  {:8}{bytes}{rate}{text}", called(id, row), printable(row.state.as_str()))
    });
    let more = sorted.len().saturating_sub(WORKERS_SHOWN_MAX);
    shown.chain((more > 0).then(|| format!("  and {more} more workers"))).collect()
}

/// An event as a program reads it: `event`, `cache_id`, `worker`, `done`, `total`, `bytes_per_s`, `eta_s` and `text`, null where
/// they say nothing.
fn as_json(cache_id: &str, event: &PutEvent, rate: Option<u64>, text: &str) -> Value {
    let (name, bytes, worker) = match event {
        PutEvent::Scanning { done, total } => ("scanning", Some((*done, *total)), None),
        PutEvent::Scanned { bytes, .. } => ("scanned", Some((*bytes, *bytes)), None),
        PutEvent::Asked { .. } => ("asked", None, None),
        PutEvent::Lacking { bytes } => ("lacking", Some((0, *bytes)), None),
        PutEvent::Uploading { done, total } => ("uploading", Some((*done, *total)), None),
        PutEvent::Waiting { .. } => ("waiting", None, None),
        PutEvent::Stored(_) => ("stored", None, None),
        PutEvent::Ack(ack) => ("ack", None, Some(ack.worker.as_str())),
        PutEvent::Reconnecting { .. } => ("reconnecting", None, None),
    };
    json!({
        "event": name,
        "cache_id": cache_id,
        "worker": worker,
        "done": bytes.map(|(done, _)| done),
        "total": bytes.map(|(_, total)| total),
        "bytes_per_s": rate,
        "eta_s": bytes.and_then(|(done, total)| eta_s(done, total, rate)),
        "text": text,
    })
}

fn worker_json(cache_id: &str, id: &str, row: &Row, rate: Option<u64>) -> Value {
    json!({
        "event": "worker",
        "cache_id": cache_id,
        "worker": id,
        "name": row.name,
        "state": row.state,
        "done": row.done,
        "total": row.total,
        "bytes_per_s": rate,
        "eta_s": eta_s(row.done, row.total, rate),
        "text": row.text,
    })
}

fn describe(event: &PutEvent, rate: Option<u64>) -> String {
    match event {
        PutEvent::Scanning { total: 0, .. } => "looking for files".to_owned(),
        PutEvent::Scanning { done, total } => moving("reading", *done, *total, rate),
        PutEvent::Scanned { files, bytes, digest } => {
            format!("read {}, {}, {digest}", Count((*files).into(), "file"), ByteSize(*bytes))
        }
        PutEvent::Asked { leader, again: false } => format!("asking {leader} what it lacks"),
        PutEvent::Asked { leader, again: true } => format!("asking {leader} what it still lacks"),
        PutEvent::Lacking { bytes: 0 } => "the leader has all of it".to_owned(),
        PutEvent::Lacking { bytes } => format!("the leader lacks {}", ByteSize(*bytes)),
        PutEvent::Uploading { done, total } => moving("uploading", *done, *total, rate),
        PutEvent::Waiting { text, reason } if text.is_empty() => format!("waiting ({reason})"),
        PutEvent::Waiting { text, .. } => format!("waiting: {text}"),
        PutEvent::Stored(spread) => match spread.targets {
            0 => "the leader has it".to_owned(),
            1 => "the leader has it; 1 worker is to have it".to_owned(),
            targets => format!("the leader has it; {targets} workers are to have it"),
        },
        PutEvent::Ack(ack) => format!("worker {}: {} {}", ack.worker, ack.status.as_str(), ack.message),
        PutEvent::Reconnecting { leader, why, retry_in } => {
            format!("{leader} is away ({why}); trying again in {}", about(*retry_in))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::dataset::WorkerAck;
    use crate::model::CacheStatus;

    fn row(name: &str, state: &str, done: u64, total: u64, text: &str) -> Row {
        let text = text.to_owned();
        Row { name: name.to_owned(), state: state.to_owned().into(), done, total, text }
    }

    #[test]
    fn each_worker_has_a_line_and_those_under_way_come_first() {
        let table: BTreeMap<String, Row> = [
            ("w-1", row("host-1", "held", 64 << 20, 64 << 20, "")),
            ("w-2", row("", "coming", 16 << 20, 64 << 20, "")),
            ("w-3", row("host-3", "failed", 0, 0, "no room")),
        ]
        .map(|(id, row)| (id.to_owned(), row))
        .into();
        let rates = HashMap::from([("w-2".to_owned(), 8 << 20)]);
        assert_eq!(
            rows(&table, &rates),
            [
                "  w-2     coming    16 MiB of 64 MiB  8 MiB/s",
                "  host-3  failed    no room",
                "  host-1  held      64 MiB of 64 MiB",
            ]
        );
        let many: BTreeMap<String, Row> =
            (0..30).map(|id| (format!("w-{id:02}"), row("", "held", 1, 1, ""))).collect();
        let lines = rows(&many, &rates);
        assert_eq!((lines.len(), lines.last().unwrap().as_str()), (25, "  and 6 more workers"));
    }

    #[test]
    fn events_as_json_have_the_documented_members() {
        let event = PutEvent::Uploading { done: 10, total: 40 };
        assert_eq!(
            as_json("m", &event, Some(3), "x"),
            json!({"event": "uploading", "cache_id": "m", "worker": null, "done": 10, "total": 40, "bytes_per_s": 3, "eta_s": 10,
                   "text": "x"})
        );
        let ack = WorkerAck { worker: "w-1 host".into(), status: CacheStatus::Ok, message: "added=2".into() };
        let event = PutEvent::Ack(ack);
        let text = describe(&event, None);
        assert_eq!(text, "worker w-1 host: OK added=2");
        assert_eq!(
            as_json("m", &event, None, &text),
            json!({"event": "ack", "cache_id": "m", "worker": "w-1 host", "done": null, "total": null, "bytes_per_s": null,
                   "eta_s": null, "text": text})
        );
        assert_eq!(
            worker_json("m", "w-1", &row("h", "coming", 1, 5, ""), Some(2)),
            json!({"event": "worker", "cache_id": "m", "worker": "w-1", "name": "h", "state": "coming", "done": 1, "total": 5,
                   "bytes_per_s": 2, "eta_s": 2, "text": ""})
        );
    }
}
