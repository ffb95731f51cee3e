//! Answers the question `explain`: the broker's view of one job, as JSON (docs/protocol.md,
//! "Questions").

use super::Leader;
use super::job_lists::{state_of, why_ended};
use crate::answers::{
    DatasetAt, DatasetState, Explained, Load, MoveCost, NamedDataset, Phase, SeenWorker, Takes,
    Verdict, Waits, WaitsFor,
};
use crate::answers::{Failure, LISTED_MAX};
use crate::core;
use crate::core::explain::{self, Explanation, Named, Seen};
use crate::core::flagged::Flag;
use crate::core::ids::{CacheId, ConnId, JobId, Micros};
use crate::core::locality::At;
use crate::core::payload::PayloadKind;
use crate::core::record::{AttemptEnd, Lack};

impl Leader {
    /// Why a job is where it is, worker by worker.
    pub(super) fn explain(&self, job: JobId) -> Result<Explained, Failure> {
        let unknown = || self.broker.not_known(job);
        let Explanation { job, run, client, key, phase, policy, datasets, waits, ahead, workers } =
            self.broker.explain(job).ok_or_else(unknown)?;
        let result_waits = self.result_waits(job).map(|why| no_room(WaitsFor::ResultRoom, why));
        // Whoever has the job, and whether or not there is a worker for it: it cannot go on.
        let input_room = self
            .relay
            .why_inputs_wait(job)
            .map(|why| no_room(WaitsFor::InputRoom, format!("room for its inputs: {why}")));
        let (phase, worker) = match phase {
            core::job::Phase::Queued { .. } => (Phase::Queued, None),
            core::job::Phase::Leased { worker, .. } if self.broker.is_returning(worker, job) => {
                (Phase::Returning, Some(worker.to_string()))
            }
            core::job::Phase::Leased { worker, .. } => (Phase::Running, Some(worker.to_string())),
            core::job::Phase::Gathering { .. } => (Phase::Gathering, None),
            core::job::Phase::Done { .. } => (Phase::Done, None),
            core::job::Phase::Dead { .. } => (Phase::Dead, None),
        };
        let caches: Vec<CacheId> = datasets.iter().map(|named| named.cache.clone()).collect();
        let unheld = |worker: &Seen| self.datasets.unheld(&self.facts(), worker.id, &caches);
        let waits = waits
            .map(|waits| self.cannot_be_held(job, &waits).unwrap_or_else(|| self.waits(&waits)));
        let log_waits = self.log_waits(&phase);
        let known = self.broker.state().job(job);
        Ok(Explained {
            job_id: job.to_string(),
            run: run.0,
            client_id: client.to_string(),
            key: key.as_str().to_owned(),
            phase,
            state: known.map(state_of),
            why: known.and_then(why_ended),
            worker,
            policy: policy.name().to_owned(),
            datasets: datasets.iter().map(named).collect(),
            waits: log_waits.or(input_room).or(waits).or(result_waits),
            ahead: ahead.map(|ahead| ahead as u64),
            more: workers.len() > LISTED_MAX,
            workers: workers
                .into_iter()
                .take(LISTED_MAX)
                .map(|worker| {
                    let unheld = unheld(&worker);
                    seen(worker, unheld)
                })
                .collect(),
        })
    }

    /// Tells the client of a job that its worker handed it back because it cannot hold a dataset
    /// that the job names.
    pub(super) fn tell_what_is_not_held(&mut self, conn: ConnId, id: JobId) {
        let Some(worker) = self.peers.worker_at(conn) else { return };
        let Some(job) = self.broker.state().job(id).filter(|job| job.is_with(worker)) else {
            return;
        };
        let Some(why) = self.datasets.unheld(&self.facts(), worker, job.datasets()) else { return };
        let known = job.child_of.map_or(id, |(parent, _)| parent);
        let Some(client) = self.broker.submitter_of(known, &job.submission.client) else { return };
        let text = format!("worker {worker} {why}");
        let run = self.run_of(known);
        self.tell_lazily(client, |session| session.waiting(known, run, &text));
    }

    /// What a job waits for whose last worker handed it back because it cannot hold a dataset that
    /// the job names.
    fn cannot_be_held(&self, id: JobId, waits: &explain::WaitsFor) -> Option<Waits> {
        use explain::WaitsFor::{BackOff, Data, Nearer, Room, Turn};
        let until = if let BackOff { until } = waits { Some(until) } else { None };
        if !matches!(waits, BackOff { .. } | Data { .. } | Nearer { .. } | Room | Turn) {
            return None;
        }
        let job = self.broker.state().job(id)?;
        let last = job.history.last().filter(|note| note.why == AttemptEnd::GivenUp)?;
        let why = self.datasets.unheld(&self.facts(), last.worker, job.datasets())?;
        Some(Waits {
            what: WaitsFor::WorkerCache,
            text: format!("worker {} {why}; it or another worker is tried next", last.worker),
            worker: Some(last.worker.to_string()),
            waited_ms: None,
            left_ms: until
                .map(|until| u64::try_from(until.since(self.now).as_millis()).unwrap_or(u64::MAX)),
        })
    }

    fn waits(&self, waits: &explain::WaitsFor) -> Waits {
        let (what, worker, since, until) = match waits {
            explain::WaitsFor::BackOff { until } => (WaitsFor::BackOff, None, None, Some(until)),
            explain::WaitsFor::WorkerLacks { worker, lack, until } => {
                let what = match lack {
                    Lack::Room => WaitsFor::WorkerDisk,
                    Lack::Directory => WaitsFor::WorkerDirectory,
                    Lack::Program => WaitsFor::WorkerProgram,
                };
                (what, Some(worker), None, until.as_ref())
            }
            explain::WaitsFor::Client => (WaitsFor::Client, None, None, None),
            explain::WaitsFor::Cap { .. } => (WaitsFor::Cap, None, None, None),
            explain::WaitsFor::Data { worker, since, until } => {
                (WaitsFor::Data, Some(worker), Some(since), Some(until))
            }
            explain::WaitsFor::Nearer { since, until } => {
                (WaitsFor::Nearer, None, Some(since), Some(until))
            }
            explain::WaitsFor::Program { until } => (WaitsFor::Program, None, None, Some(until)),
            explain::WaitsFor::Worker => (WaitsFor::Worker, None, None, None),
            explain::WaitsFor::CapableWorker => (WaitsFor::CapableWorker, None, None, None),
            explain::WaitsFor::Reader { kind: PayloadKind::Request } => {
                (WaitsFor::RequestWorker, None, None, None)
            }
            explain::WaitsFor::Reader { kind: PayloadKind::Folders } => {
                (WaitsFor::FoldersWorker, None, None, None)
            }
            explain::WaitsFor::Reader { kind: PayloadKind::Raw } => {
                (WaitsFor::RawWorker, None, None, None)
            }
            explain::WaitsFor::Agent => (WaitsFor::Agent, None, None, None),
            explain::WaitsFor::Room => (WaitsFor::Room, None, None, None),
            explain::WaitsFor::Stop => (WaitsFor::Stop, None, None, None),
            explain::WaitsFor::Turn => (WaitsFor::Turn, None, None, None),
        };
        let ms = |from: Micros, to: Micros| {
            u64::try_from(to.since(from).as_millis()).unwrap_or(u64::MAX)
        };
        Waits {
            what,
            text: waits.to_string(),
            worker: worker.map(ToString::to_string),
            waited_ms: since.map(|since| ms(*since, self.now)),
            left_ms: until.map(|until| ms(self.now, *until)),
        }
    }
}

impl Leader {
    /// Nothing goes on while the log cannot be written: jobs are not assigned, and do not end.
    fn log_waits(&self, phase: &Phase) -> Option<Waits> {
        let is_over = matches!(phase, Phase::Done | Phase::Dead);
        let trouble = self.log.trouble().filter(|_| !is_over)?;
        let text = format!(
            "the log, which the leader cannot write: {trouble}; free room on the disk of its --data"
        );
        Some(Waits { what: WaitsFor::Log, text, ..Waits::default() })
    }
}

/// The inputs of a job, or its result, find no room here.
fn no_room(what: WaitsFor, text: String) -> Waits {
    Waits { what, text, ..Waits::default() }
}

fn named(named: &Named) -> NamedDataset {
    let dataset = named.dataset.as_ref();
    NamedDataset {
        cache_id: named.cache.as_str().to_owned(),
        known: dataset.is_some(),
        bytes: dataset.map(|dataset| dataset.bytes),
        version: dataset.map(|dataset| dataset.version.to_string()),
    }
}

fn seen(seen: Seen, unheld: Option<String>) -> SeenWorker {
    let text = seen.verdict.text();
    let no_program = seen.no_program.as_ref().map(|why| format!("; it {}", why.text()));
    let unheld = unheld.map(|unheld| format!("; {unheld}"));
    let flagged = seen.flag.as_ref().map(|flag| format!("; {}", flag_text(flag)));
    let more = [no_program, unheld, flagged].into_iter().flatten();
    let text = more.fold(text.to_owned(), |text, more| text + &more);
    let datasets = seen.holds.iter().map(|(cache, at)| {
        let (state, missing) = match at {
            At::Held => (DatasetState::Held, Some(0)),
            At::Coming { missing } => (DatasetState::Coming, Some(*missing)),
            At::Expected => (DatasetState::Expected, None),
            At::Missing => (DatasetState::Missing, None),
        };
        DatasetAt { cache_id: cache.as_str().to_owned(), state, missing }
    });
    SeenWorker {
        id: seen.id.to_string(),
        name: Some(seen.name.to_string()),
        class: seen.class.into(),
        matches: seen.matches,
        load: Load {
            room: seen.has_room,
            credit: Some(seen.credit),
            running: Some(seen.running as u64),
            returning: Some(seen.returning as u64),
        },
        lost_there: seen.lost_there,
        has_program: has_program(&seen),
        flagged: seen.flag.map(Into::into),
        takes: Takes {
            transfers: seen.transfers,
            takes_datasets: seen.datasets,
            takes_folders: seen.reads >= PayloadKind::Folders,
            takes_raw: seen.reads >= PayloadKind::Raw,
        },
        agent: seen.agent.map(|agent| agent.to_string()),
        datasets: datasets.collect(),
        cost: MoveCost {
            missing_bytes: Some(seen.cost.missing),
            unsent_bytes: Some(seen.cost.unsent),
            move_ms: Some(u64::try_from(seen.takes.as_millis()).unwrap_or(u64::MAX)),
        },
        verdict: verdict(seen.verdict),
        text,
        patterns: seen.patterns,
    }
}

/// Whether a worker has the job's program, if it says so.
fn has_program(seen: &Seen) -> Option<bool> {
    if seen.no_program.is_some() {
        return Some(false);
    }
    seen.lists_programs.then_some(true)
}

/// That a program fails on a worker far more often than on others.
fn flag_text(flag: &Flag) -> String {
    let Flag { ended, failed, median_permille } = flag;
    let share = failed.saturating_mul(100) / (*ended).max(1);
    format!(
        "FLAGGED: {failed} of its last {ended} jobs of this program failed there ({share} %), {} % on the median worker",
        median_permille / 10
    )
}

const fn verdict(verdict: explain::Verdict) -> Verdict {
    match verdict {
        explain::Verdict::HasIt => Verdict::HasIt,
        explain::Verdict::First => Verdict::First,
        explain::Verdict::WaitedFor => Verdict::WaitedFor,
        explain::Verdict::Possible => Verdict::Possible,
        explain::Verdict::NoRoom => Verdict::NoRoom,
        explain::Verdict::DiskFull => Verdict::DiskFull,
        explain::Verdict::NoDirectory => Verdict::NoDirectory,
        explain::Verdict::NoProgram => Verdict::NoProgram,
        explain::Verdict::Silent => Verdict::Silent,
        explain::Verdict::OwesAnswer => Verdict::OwesAnswer,
        explain::Verdict::LostThere => Verdict::LostThere,
        explain::Verdict::ByAgent => Verdict::ByAgent,
        explain::Verdict::CannotRead(PayloadKind::Request) => Verdict::NoRequests,
        explain::Verdict::CannotRead(PayloadKind::Folders) => Verdict::NoFolders,
        explain::Verdict::CannotRead(PayloadKind::Raw) => Verdict::NoRaw,
        explain::Verdict::NoTransfers => Verdict::NoTransfers,
        explain::Verdict::NoDatasets => Verdict::NoDatasets,
        explain::Verdict::NoMatch => Verdict::NoMatch,
        explain::Verdict::ForAnother => Verdict::ForAnother,
        explain::Verdict::Ended => Verdict::Ended,
    }
}
