//! How a put stands, while it runs: on a terminal a line for the dataset and one for each worker,
//! written over and over; elsewhere a line for what happens, or a JSON object. It is told and asks
//! nobody.

use std::collections::{BTreeMap, HashMap};
use std::time::Instant;

use serde_json::{Map, json};

use crate::answers::{AtWorker, AtWorkerState};
use crate::cli::progress::{Meter, Progress, Said, Teller, Worth, moving};
use crate::cli::terminal::width as columns_of;
use crate::cli::{Output, about, printable};
use crate::client::dataset::PutEvent;
use crate::units::{ByteSize, Count};

/// Workers that are shown on a terminal; of the others it is said how many there are.
const WORKERS_SHOWN_MAX: usize = 24;

/// A worker as the leader sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Row {
    name: String,
    state: AtWorkerState,
    done: u64,
    total: u64,
    text: String,
}

/// Tells how a put stands.
pub(super) struct Board {
    teller: Teller,
    /// Whether only troubles are for a log: standard output is for a program.
    only_troubles: bool,
    up: Meter,
    rows: BTreeMap<String, Row>,
    meters: HashMap<String, Meter>,
    rates: HashMap<String, u64>,
}

impl Board {
    pub(super) fn new(cache_id: &str, progress: Progress, output: Output) -> Self {
        let only_troubles = !output.is_for_people();
        let about = ("cache_id", cache_id.to_owned());
        let mut teller = Teller::new(about, cache_id.to_owned(), progress, only_troubles);
        teller.set_head("reading files", None);
        Board {
            teller,
            only_troubles,
            up: Meter::default(),
            rows: BTreeMap::new(),
            meters: HashMap::new(),
            rates: HashMap::new(),
        }
    }

    /// Whether it has a use for what workers have got.
    pub(super) fn shows_workers(&self) -> bool {
        self.teller.follows()
    }

    /// Whether anybody wants to know.
    pub(super) fn is_on(&self) -> bool {
        self.teller.is_on()
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
        let worth = match event {
            PutEvent::Waiting { .. } | PutEvent::Reconnecting { .. } => Worth::Log,
            PutEvent::Scanned { .. }
            | PutEvent::Lacking { .. }
            | PutEvent::Stored(_)
            | PutEvent::Ack(_) => {
                if self.only_troubles {
                    Worth::Glance
                } else {
                    Worth::Log
                }
            }
            PutEvent::Scanning { .. } | PutEvent::Uploading { .. } | PutEvent::Asked { .. } => {
                Worth::Glance
            }
        };
        let said = said(event, rate);
        self.teller.tell(&said, worth);
        // What a worker says stands in its line.
        if !matches!(event, PutEvent::Ack(_)) {
            self.teller.set_head(&said.text, said.bytes);
        }
        self.teller.draw();
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
            if before.as_ref() != Some(&row) {
                self.teller.tell(&row_said(&id, &row, rate), Worth::Glance);
            }
        }
        self.teller.set_rows(rows(&self.rows, &self.rates));
        self.teller.draw();
    }

    /// A line that stays.
    pub(super) fn note(&mut self, text: &str) {
        self.teller.note(text);
    }

    /// Takes the table off the terminal.
    pub(super) fn clear(&mut self) {
        self.teller.clear();
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
    let called =
        |id: &str, row: &Row| if row.name.is_empty() { id.to_owned() } else { row.name.clone() };
    let width = sorted.iter().map(|(id, row)| columns_of(&called(id, row))).max().unwrap_or(0);
    let shown = sorted.iter().take(WORKERS_SHOWN_MAX).map(|(id, row)| {
        let bytes = match row.total {
            0 => String::new(),
            total => format!("  {} of {}", ByteSize(row.done), ByteSize(total)),
        };
        let rate =
            rates.get(*id).map(|rate| format!("  {}/s", ByteSize(*rate))).unwrap_or_default();
        let text = if row.text.is_empty() { String::new() } else { format!("  {}", row.text) };
        let name = called(id, row);
        let blanks = " ".repeat(width.saturating_sub(columns_of(&name)));
        format!("  {name}{blanks}  {:8}{bytes}{rate}{text}", printable(row.state.as_str()))
    });
    let more = sorted.len().saturating_sub(WORKERS_SHOWN_MAX);
    shown.chain((more > 0).then(|| format!("  and {more} more workers"))).collect()
}

fn said(event: &PutEvent, rate: Option<u64>) -> Said {
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
    let more = Map::from_iter([("worker".to_owned(), json!(worker))]);
    Said { event: name, bytes, rate, text: describe(event, rate), more }
}

fn row_said(id: &str, row: &Row, rate: Option<u64>) -> Said {
    let more = [("worker", json!(id)), ("name", json!(row.name)), ("state", json!(row.state))];
    let more = more.map(|(name, value)| (name.to_owned(), value));
    let (bytes, text) = (Some((row.done, row.total)), row.text.clone());
    Said { event: "worker", bytes, rate, text, more: Map::from_iter(more) }
}

fn describe(event: &PutEvent, rate: Option<u64>) -> String {
    match event {
        PutEvent::Scanning { total: 0, .. } => "looking for files".to_owned(),
        PutEvent::Scanning { done, total } => moving("reading", *done, *total, rate),
        PutEvent::Scanned { files, bytes, digest } => {
            format!("read {}, {}, {digest}", Count((*files).into(), "file"), ByteSize(*bytes))
        }
        PutEvent::Asked { leader, again: false } => format!("asking {leader} for missing pieces"),
        PutEvent::Asked { leader, again: true } => {
            format!("asking {leader} for pieces still missing")
        }
        PutEvent::Lacking { bytes: 0 } => "the leader has all of it".to_owned(),
        PutEvent::Lacking { bytes } => format!("the leader lacks {}", ByteSize(*bytes)),
        PutEvent::Uploading { done, total } => moving("uploading", *done, *total, rate),
        PutEvent::Waiting { text, reason } if text.is_empty() => format!("waiting ({reason})"),
        PutEvent::Waiting { text, .. } => format!("waiting: {text}"),
        PutEvent::Stored(spread) => match spread.targets {
            0 => "the leader has it".to_owned(),
            1 => "the leader has it; sending it to 1 worker".to_owned(),
            targets => format!("the leader has it; sending it to {targets} workers"),
        },
        PutEvent::Ack(ack) => {
            format!("worker {}: {} {}", ack.worker, ack.status.as_str(), ack.message)
        }
        PutEvent::Reconnecting { leader, why, retry_in } => {
            format!("{leader} is unreachable ({why}); retrying in {}", about(*retry_in))
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
            Said { text: "x".to_owned(), ..said(&event, Some(3)) }.as_json(("cache_id", "m")),
            json!({"event": "uploading", "cache_id": "m", "worker": null, "done": 10, "total": 40, "bytes_per_s": 3, "eta_s": 10,
                   "text": "x"})
        );
        let ack = WorkerAck {
            worker: "w-1 host".into(),
            status: CacheStatus::Ok,
            message: "added=2".into(),
        };
        let event = PutEvent::Ack(ack);
        let text = describe(&event, None);
        assert_eq!(text, "worker w-1 host: OK added=2");
        assert_eq!(
            said(&event, None).as_json(("cache_id", "m")),
            json!({"event": "ack", "cache_id": "m", "worker": "w-1 host", "done": null, "total": null, "bytes_per_s": null,
                   "eta_s": null, "text": text})
        );
        assert_eq!(
            row_said("w-1", &row("h", "coming", 1, 5, ""), Some(2)).as_json(("cache_id", "m")),
            json!({"event": "worker", "cache_id": "m", "worker": "w-1", "name": "h", "state": "coming", "done": 1, "total": 5,
                   "bytes_per_s": 2, "eta_s": 2, "text": ""})
        );
    }
}
