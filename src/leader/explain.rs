//! The question `explain`: what the broker says of a job, as JSON (docs/protocol.md, "Questions").

use serde_json::{Value, json};

use super::Leader;
use super::ask::{LISTED_MAX, class_name};
use crate::core::action::OperateError;
use crate::core::explain::{Explanation, Named, Seen, Verdict, WaitsFor};
use crate::core::ids::{CacheId, ConnId, JobId, Micros};
use crate::core::job::Phase;
use crate::core::locality::At;
use crate::core::payload::PayloadKind;
use crate::core::record::{AttemptEnd, Lack};

impl Leader {
    /// Why a job is where it is, worker by worker.
    pub(super) fn explain(&self, job: JobId) -> Result<Value, String> {
        let unknown = || OperateError::Unknown { job }.to_string();
        let Explanation { job, run, client, key, phase, policy, datasets, waits, workers } =
            self.broker.explain(job).ok_or_else(unknown)?;
        let result_waits = self.result_waits(job).map(|why| no_room("result-room", &why));
        let input_room = waits.as_ref().filter(|waits| matches!(waits, WaitsFor::Client));
        let input_room = input_room.and_then(|_| self.relay.why_inputs_wait(job));
        let input_room = input_room.map(|why| no_room("input-room", &format!("room for its inputs: {why}")));
        let (phase, worker) = match phase {
            Phase::Queued { .. } => ("queued", None),
            Phase::Leased { worker, .. } if self.broker.is_returning(worker, job) => {
                ("returning", Some(worker.to_string()))
            }
            Phase::Leased { worker, .. } => ("running", Some(worker.to_string())),
            Phase::Gathering { .. } => ("gathering", None),
            Phase::Done { .. } => ("done", None),
            Phase::Dead { .. } => ("dead", None),
        };
        let caches: Vec<CacheId> = datasets.iter().map(|named| named.cache.clone()).collect();
        let listed = workers.iter().take(LISTED_MAX);
        let listed: Vec<Value> =
            listed.map(|it| seen(it, self.datasets.unheld(&self.facts(), it.id, &caches))).collect();
        let waits = waits.map(|waits| self.cannot_be_held(job, &waits).unwrap_or_else(|| self.waits(&waits)));
        Ok(json!({
            "job_id": job.to_string(), "run": run.0, "client_id": client.to_string(), "key": key.as_str(), "phase": phase,
            "worker": worker, "policy": policy.name(), "datasets": datasets.iter().map(named).collect::<Vec<_>>(),
            "waits": input_room.or(waits).or(result_waits), "workers": listed,
            "more": workers.len() > LISTED_MAX,
        }))
    }

    /// Tells the client of a job that its worker handed it back because it cannot hold a dataset that the job names.
    pub(super) fn tell_what_is_not_held(&mut self, conn: ConnId, id: JobId) {
        let Some(worker) = self.worker_at(conn) else { return };
        let Some(job) = self.broker.state().job(id).filter(|job| job.is_with(worker)) else { return };
        let Some(why) = self.datasets.unheld(&self.facts(), worker, job.datasets()) else { return };
        let known = job.child_of.map_or(id, |(parent, _)| parent);
        let Some(client) = self.broker.submitter_of(known, &job.submission.client) else { return };
        let text = format!("worker {worker} {why}");
        let frame = self.sessions.get(&client).and_then(|session| session.waiting(known, &text));
        self.send_lazily(client, frame);
    }

    /// What a job waits for whose last worker handed it back because it cannot hold a dataset that the job names.
    fn cannot_be_held(&self, id: JobId, waits: &WaitsFor) -> Option<Value> {
        let until = match waits {
            WaitsFor::BackOff { until } => Some(until),
            WaitsFor::Data { .. } | WaitsFor::Nearer { .. } | WaitsFor::Room | WaitsFor::Turn => None,
            WaitsFor::WorkerLacks { .. }
            | WaitsFor::Client
            | WaitsFor::Cap { .. }
            | WaitsFor::Worker
            | WaitsFor::CapableWorker
            | WaitsFor::Reader { .. }
            | WaitsFor::Agent
            | WaitsFor::Stop => return None,
        };
        let job = self.broker.state().job(id)?;
        let last = job.history.last().filter(|note| note.why == AttemptEnd::GivenUp)?;
        let why = self.datasets.unheld(&self.facts(), last.worker, job.datasets())?;
        let left = until.map(|until| u64::try_from(until.since(self.now).as_millis()).unwrap_or(u64::MAX));
        let text = format!("worker {} {why}; it is tried again, or another is", last.worker);
        Some(json!({
            "for": "worker-cache", "text": text, "worker": last.worker.to_string(), "waited_ms": Value::Null,
            "left_ms": left,
        }))
    }

    fn waits(&self, waits: &WaitsFor) -> Value {
        let (name, worker, since, until) = match waits {
            WaitsFor::BackOff { until } => ("back-off", None, None, Some(until)),
            WaitsFor::WorkerLacks { worker, lack, until } => {
                let name = match lack {
                    Lack::Room => "worker-disk",
                    Lack::Directory => "worker-directory",
                };
                (name, Some(worker), None, until.as_ref())
            }
            WaitsFor::Client => ("client", None, None, None),
            WaitsFor::Cap { .. } => ("cap", None, None, None),
            WaitsFor::Data { worker, since, until } => ("data", Some(worker), Some(since), Some(until)),
            WaitsFor::Nearer { since, until } => ("nearer", None, Some(since), Some(until)),
            WaitsFor::Worker => ("worker", None, None, None),
            WaitsFor::CapableWorker => ("capable-worker", None, None, None),
            WaitsFor::Reader { kind: PayloadKind::Request } => ("request-worker", None, None, None),
            WaitsFor::Reader { kind: PayloadKind::Folders } => ("folders-worker", None, None, None),
            WaitsFor::Reader { kind: PayloadKind::Raw } => ("raw-worker", None, None, None),
            WaitsFor::Agent => ("agent", None, None, None),
            WaitsFor::Room => ("room", None, None, None),
            WaitsFor::Stop => ("stop", None, None, None),
            WaitsFor::Turn => ("turn", None, None, None),
        };
        let ms = |from: Micros, to: Micros| u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX);
        json!({
            "for": name, "text": waits.to_string(), "worker": worker.map(ToString::to_string),
            "waited_ms": since.map(|since| ms(*since, self.now)), "left_ms": until.map(|until| ms(self.now, *until)),
        })
    }
}

/// The inputs of a job, or its result, find no room here.
fn no_room(name: &str, why: &str) -> Value {
    let nothing = Value::Null;
    json!({ "for": name, "text": why, "worker": nothing, "waited_ms": nothing, "left_ms": nothing })
}

fn named(named: &Named) -> Value {
    let dataset = named.dataset.as_ref();
    json!({
        "cache_id": named.cache.as_str(), "known": dataset.is_some(), "bytes": dataset.map(|dataset| dataset.bytes),
        "generation": dataset.map(|dataset| dataset.generation.to_string()),
    })
}

fn seen(seen: &Seen, unheld: Option<String>) -> Value {
    let text = seen.verdict.text();
    let text = unheld.map_or_else(|| text.to_owned(), |unheld| format!("{text}; {unheld}"));
    let sets = seen.sets.iter().map(|(cache, at)| {
        let (state, missing) = match at {
            At::Held => ("held", Some(0)),
            At::Coming { missing } => ("coming", Some(*missing)),
            At::Expected => ("expected", None),
            At::Missing => ("missing", None),
        };
        json!({ "cache_id": cache.as_str(), "state": state, "missing": missing })
    });
    json!({
        "id": seen.id.to_string(), "name": &*seen.name, "class": class_name(seen.class), "matches": seen.matches,
        "patterns": seen.patterns, "room": seen.has_room, "credit": seen.credit, "running": seen.running,
        "returning": seen.returning,
        "lost_there": seen.lost_there, "transfers": seen.transfers, "takes_datasets": seen.datasets,
        "takes_folders": seen.reads >= PayloadKind::Folders, "takes_raw": seen.reads >= PayloadKind::Raw,
        "agent": seen.agent.map(|agent| agent.to_string()), "sets": sets.collect::<Vec<_>>(),
        "missing_bytes": seen.cost.missing, "unsent_bytes": seen.cost.unsent,
        "move_ms": u64::try_from(seen.takes.as_millis()).unwrap_or(u64::MAX),
        "verdict": verdict_name(seen.verdict), "text": text,
    })
}

const fn verdict_name(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::HasIt => "has-it",
        Verdict::First => "first",
        Verdict::WaitedFor => "waited-for",
        Verdict::Possible => "possible",
        Verdict::NoRoom => "no-room",
        Verdict::DiskFull => "disk-full",
        Verdict::NoDirectory => "no-directory",
        Verdict::Silent => "silent",
        Verdict::OwesAnswer => "owes-answer",
        Verdict::LostThere => "lost-there",
        Verdict::ByAgent => "by-agent",
        Verdict::CannotRead(PayloadKind::Request) => "no-requests",
        Verdict::CannotRead(PayloadKind::Folders) => "no-folders",
        Verdict::CannotRead(PayloadKind::Raw) => "no-raw",
        Verdict::NoTransfers => "no-transfers",
        Verdict::NoDatasets => "no-datasets",
        Verdict::NoMatch => "no-match",
        Verdict::ForAnother => "for-another",
        Verdict::Ended => "ended",
    }
}
