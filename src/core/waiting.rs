//! Tells clients that a job waits because no suitable worker is connected: none matches its key, or
//! no match takes transfers, reads its payload or can have its datasets.
//!
//! It neither assigns nor holds back jobs. The broker names the jobs to check. Each client is told
//! once per job, and again when the cause changes or the client reconnects.

use std::collections::HashMap;

use super::action::{Action, Waiting};
use super::broker::Broker;
use super::capacity::give_back;
use super::ids::{JobId, WorkerId};
use super::job::Job;
use super::payload::PayloadKind;
use super::subject::{RoutingKey, matches};

/// Jobs of one key that are told when a worker joins or leaves. A client with more of them has
/// understood by then.
const TOLD_AT_ONCE_MAX: usize = 1000;

/// Keys without jobs that are remembered, beside as many as have some.
const KEYS_KEPT: usize = 64;

/// Why jobs of a key cannot be given out, as far as that is for want of a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Causes {
    /// Of any job.
    plain: Option<Cause>,
    /// Of one that needs transfers.
    by_transfer: Option<Cause>,
    /// Of one with files in folders.
    folders: Option<Cause>,
    /// Of one that is raw.
    raw: Option<Cause>,
}

/// What there is none of, or what no worker that matches takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    Worker,
    Transfers { workers: usize },
    Datasets { workers: usize },
    Reader { workers: usize, kind: PayloadKind },
    Program { workers: usize },
}

impl Cause {
    /// Whether this is news to a client that was told the other. The number of workers alone is
    /// none.
    fn is_news_after(self, told: Option<Cause>) -> bool {
        match (self, told) {
            (Cause::Worker, Some(Cause::Worker))
            | (Cause::Transfers { .. }, Some(Cause::Transfers { .. }))
            | (Cause::Datasets { .. }, Some(Cause::Datasets { .. }))
            | (Cause::Reader { .. }, Some(Cause::Reader { .. }))
            | (Cause::Program { .. }, Some(Cause::Program { .. })) => false,
            (
                Cause::Worker
                | Cause::Transfers { .. }
                | Cause::Datasets { .. }
                | Cause::Reader { .. }
                | Cause::Program { .. },
                _,
            ) => true,
        }
    }
}

/// What clients were told.
#[derive(Debug, Default)]
pub(super) struct Waits {
    told: HashMap<JobId, Cause>,
    /// Keys that have jobs, and some that had.
    causes: HashMap<RoutingKey, Causes>,
    /// Jobs to look at once all is given out that can be.
    to_look_at: Vec<JobId>,
}

impl Waits {
    /// A job waits.
    pub(super) fn look_at(&mut self, job: JobId) {
        self.to_look_at.push(job);
    }

    /// The client of a job is on another connection, which was told nothing.
    pub(super) fn tell_again(&mut self, job: JobId) {
        self.told.remove(&job);
        self.to_look_at.push(job);
    }

    /// A job does not wait any more.
    pub(super) fn forget(&mut self, job: JobId) {
        self.told.remove(&job);
        give_back(&mut self.told);
    }

    /// Jobs whose clients were told.
    pub(super) fn len(&self) -> usize {
        self.told.len()
    }
}

impl Broker {
    /// Tells the clients of jobs that wait in vain, where that is news.
    pub(super) fn tell_who_waits(&mut self) {
        let changed = self.workers.take_changed();
        if !changed.is_empty() {
            self.workers_changed(&changed);
        }
        let mut jobs = std::mem::take(&mut self.waits.to_look_at);
        for job in jobs.drain(..) {
            self.tell_if_in_vain(job);
        }
        self.waits.to_look_at = jobs;
        if self.waits.causes.len() > KEYS_KEPT.max(2 * self.queues.keys_len()) {
            self.waits.causes.retain(|key, _| self.queues.has(key));
            give_back(&mut self.waits.causes);
            self.forget_met_of_others();
        }
    }

    /// Looks again at the keys that workers asked for which joined or left.
    fn workers_changed(&mut self, changed: &[Vec<String>]) {
        // A key that a wave of workers asked for is looked at once.
        self.waits.causes.retain(|key, _| self.queues.has(key));
        self.forget_met_of_others();
        let concerned = |key: &RoutingKey| {
            changed.iter().flatten().any(|pattern| matches(pattern, key.as_str()))
        };
        let keys = self.queues.keys().map(|(key, _)| key);
        let keys: Vec<RoutingKey> = keys.filter(|key| concerned(key)).cloned().collect();
        if !keys.is_empty() {
            self.staging.wake();
            self.pass_again();
        }
        for key in keys {
            let causes = self.causes_of(&key);
            if self.waits.causes.insert(key.clone(), causes) != Some(causes) {
                let jobs = self.queues.jobs_of(&key).take(TOLD_AT_ONCE_MAX);
                self.waits.to_look_at.extend(jobs);
            }
            self.look_for_programs_of(&key);
        }
    }

    fn causes_of(&self, key: &RoutingKey) -> Causes {
        let mut matching = Vec::new();
        self.workers.matching(key.as_str(), &mut matching);
        if matching.is_empty() {
            let none = Some(Cause::Worker);
            return Causes { plain: none, by_transfer: none, folders: none, raw: none };
        }
        let by_transfer = self.lacks_transfers(key).filter(|_| !self.any_agent(&matching));
        let folders = self.lacks_readers(PayloadKind::Folders, matching.clone());
        Causes {
            plain: None,
            by_transfer,
            folders,
            raw: self.lacks_readers(PayloadKind::Raw, matching),
        }
    }

    /// Whether none of these workers reads payloads of this kind.
    fn lacks_readers(&self, kind: PayloadKind, mut matching: Vec<WorkerId>) -> Option<Cause> {
        let workers = matching.len();
        self.retain_readers(kind, &mut matching);
        matching.is_empty().then_some(Cause::Reader { workers, kind })
    }

    /// Whether no worker that matches takes transfers.
    pub(super) fn lacks_transfers(&self, key: &RoutingKey) -> Option<Cause> {
        let mut matching = Vec::new();
        self.workers.matching(key.as_str(), &mut matching);
        let takes =
            |worker: &WorkerId| self.workers.get(*worker).is_some_and(|worker| worker.transfers);
        match matching.len() {
            0 => Some(Cause::Worker),
            workers => (!matching.iter().any(takes)).then_some(Cause::Transfers { workers }),
        }
    }

    /// Whether no worker that matches can have the datasets that a job names. Another job of the
    /// same key may name others.
    fn lacks_datasets(&self, job: &Job) -> Option<Cause> {
        if job.datasets().is_empty() {
            return None;
        }
        let mut matching = Vec::new();
        self.workers.matching(job.submission.key.as_str(), &mut matching);
        let may = self.any_may_have_datasets(job.datasets(), &matching)
            || self.any_agent_may_hold(job.datasets(), &matching);
        (!may).then_some(Cause::Datasets { workers: matching.len() })
    }

    /// Whether a job waits for a worker to connect, as no connected one has its program.
    fn lacks_any_program(&self, job: &Job) -> Option<Cause> {
        self.waits_for_program(job)?;
        let mut matching = Vec::new();
        self.workers.matching(job.submission.key.as_str(), &mut matching);
        Some(Cause::Program { workers: matching.len() })
    }

    fn tell_if_in_vain(&mut self, id: JobId) {
        let Some(job) = self.state.job(id).filter(|job| !job.has_ended()) else { return };
        let causes = match self.waits.causes.get(&job.submission.key) {
            Some(known) => *known,
            None => {
                let causes = self.causes_of(&job.submission.key);
                self.waits.causes.insert(job.submission.key.clone(), causes);
                causes
            }
        };
        // One that needs transfers only while its inputs come waits for those first.
        let cause = match (job.needs_transfers(), job.payload_kind()) {
            (false, PayloadKind::Folders) => causes.folders,
            // No agent can help this one.
            (true, PayloadKind::Folders) => {
                causes.folders.or_else(|| self.lacks_transfers(&job.submission.key))
            }
            // An agent cannot help this one, or not yet.
            (true, _) if !self.can_stage(job) => self.lacks_transfers(&job.submission.key),
            (true, _) => causes.by_transfer,
            (false, PayloadKind::Request) => causes.plain,
            (false, PayloadKind::Raw) => causes.raw,
        };
        let cause = cause.or_else(|| self.lacks_datasets(job));
        if cause.is_none() {
            self.look_for_program(id);
        }
        let Some(job) = self.state.job(id) else { return };
        let cause = cause.or_else(|| self.lacks_any_program(job));
        let told = self.waits.told.get(&id).copied();
        let (Some(cause), Some(conn)) = (cause, self.submitter_of(id, &job.submission.client))
        else {
            self.waits.forget(id);
            return;
        };
        // It may have been given out meanwhile, or taken out.
        let is_waiting =
            self.queues.contains(&job.submission.key, &job.submission.client, job.place());
        if is_waiting && cause.is_news_after(told) {
            let key = job.submission.key.to_string();
            let why = match cause {
                Cause::Worker => Waiting::NoWorker { key },
                Cause::Transfers { workers } => match self.staging.why_not(id) {
                    Some(why) => Waiting::NotStaged { key, why },
                    None => Waiting::NoTransfers { key, workers },
                },
                Cause::Datasets { workers } => Waiting::NoDatasets { key, workers },
                Cause::Reader { workers, kind } => Waiting::NoReader { key, workers, kind },
                Cause::Program { workers } => {
                    let exec = job.submission.exec.clone();
                    let mut matching = Vec::new();
                    self.workers.matching(job.submission.key.as_str(), &mut matching);
                    let like = self.programs_like(&exec, &matching);
                    Waiting::NoProgram { key, exec, workers, like }
                }
            };
            self.waits.told.insert(id, cause);
            self.actions.push_back(Action::Waiting { conn, job: id, why });
        }
    }
}
