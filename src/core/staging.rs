//! Decides which jobs for classic workers get their inputs staged as a dataset (C01), because the
//! inputs exceed a frame. When only classic workers match such a job and one of them has an agent,
//! the leader is told to stage the inputs. While the dataset is stored, the job names it and needs
//! no transfer; from there the agent and the worker get the dataset and the job as usual. A worker
//! with transfers may still take the job directly.
//!
//! The leader builds the dataset. The state records that a job is staged when the dataset is put,
//! and that it no longer is when the dataset is removed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use super::action::Action;
use super::broker::Broker;
use super::dataset::Dataset;
use super::ids::{CacheId, ClientId, JobId, Micros, WorkerId};
use super::job::{InputsState, Job, Phase};
use super::payload::PayloadKind;
use super::record::Record;
use super::subject::RoutingKey;
use super::timers::Due;

/// Jobs whose inputs are datasets, or are being made datasets, at a time: they take their place on
/// the leader's disk twice.
pub const STAGED_MAX: usize = 16;

/// The same of one client.
pub const STAGED_OF_CLIENT_MAX: usize = 8;

const _: () = assert!(STAGED_OF_CLIENT_MAX < STAGED_MAX);

/// When it is tried again to make a dataset of inputs, or to have an agent hold it.
pub const STAGE_AGAIN_AFTER: Duration = Duration::from_secs(10);

/// Jobs of a client that are looked at for it.
const LOOKS_PER_CLIENT_MAX: usize = 256;

/// Jobs whose inputs are being made datasets.
#[derive(Debug, Default)]
pub(super) struct Staging {
    under_way: BTreeSet<JobId>,
    /// Jobs that are not staged for now, and why.
    not_now: BTreeMap<JobId, NotNow>,
    /// Whether there may be something to do.
    woken: bool,
    /// Whether a client was passed over as it has as many jobs at workers as it may have.
    capped: bool,
}

/// Why no dataset is made of a job's inputs.
#[derive(Debug)]
struct NotNow {
    why: Arc<str>,
    /// When it is tried again, if ever.
    until: Option<Micros>,
}

impl Staging {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.under_way.len() + self.not_now.len()
    }

    /// Workers, agents or datasets have changed.
    pub(super) fn wake(&mut self) {
        self.woken = true;
    }

    /// A client may have fewer jobs at workers than it had.
    pub(super) fn wake_capped(&mut self) {
        self.woken |= std::mem::take(&mut self.capped);
    }

    /// A job waits that may be one for an agent.
    pub(super) fn wake_for(&mut self, job: &Job) {
        self.woken |= job.needs_transfers() && !job.is_announced();
    }

    /// Why no dataset is made of a job's inputs, if that is known.
    pub(super) fn why_not(&self, job: JobId) -> Option<Arc<str>> {
        self.not_now.get(&job).map(|not_now| not_now.why.clone())
    }
}

impl Broker {
    /// Has datasets made of the inputs of jobs that wait for classic workers which have agents, as
    /// many as there may be; clients that have the fewest come first.
    pub(super) fn stage_inputs(&mut self) {
        if !std::mem::take(&mut self.staging.woken) {
            return;
        }
        let workers: Vec<WorkerId> =
            self.locality.holdings.pairs().map(|(worker, _)| worker).collect();
        let made = self.state.staged_datasets().count();
        if workers.is_empty() && made == 0 {
            return;
        }
        let places = STAGED_MAX.saturating_sub(made + self.staging.under_way.len());
        if places == 0 {
            return self.free_places();
        }
        let wanted = |key: &RoutingKey| {
            let wants = |id: &WorkerId| {
                self.workers.get(*id).is_some_and(|found| found.wants(key.as_str()))
            };
            workers.iter().any(wants) && self.lacks_transfers(key).is_some()
        };
        let made = self.state.staged_datasets().map(|(job, _)| job);
        let theirs: Vec<&ClientId> = made
            .chain(self.staging.under_way.iter().copied())
            .filter_map(|id| self.state.job(id).map(|job| &job.submission.client))
            .collect();
        let mut found: Vec<(usize, JobId)> = Vec::new();
        let mut capped = false;
        for (key, _) in self.queues.keys().filter(|(key, _)| wanted(key)) {
            for (client, jobs) in self.queues.by_transfer_of(key) {
                let has = theirs.iter().filter(|other| **other == client).count();
                if has >= STAGED_OF_CLIENT_MAX {
                    continue;
                }
                let may_stage =
                    |id: &JobId| self.state.job(*id).is_some_and(|job| self.may_stage(job));
                let mut open = jobs.filter(|id| !self.staging.not_now.contains_key(id));
                let next = open.by_ref().take(LOOKS_PER_CLIENT_MAX).find(may_stage);
                if next.is_some() && !self.may_run(client) {
                    capped = true;
                    continue;
                }
                found.extend(next.map(|job| (has, job)));
            }
        }
        self.staging.capped = capped;
        found.sort_by_key(|(has, _)| *has);
        found.truncate(places);
        // When these are under way the next have their turn.
        self.staging.woken = !found.is_empty();
        for (_, job) in found {
            self.staging.under_way.insert(job);
            self.actions.push_back(Action::StageInputs { job });
        }
    }

    /// Gives up datasets that no agent can be asked to hold: others may need their places.
    fn free_places(&mut self) {
        let is_idle = |job: JobId| {
            self.state.job(job).is_some_and(|job| {
                let mut matching = Vec::new();
                self.workers.matching(job.submission.key.as_str(), &mut matching);
                matches!(job.phase, Phase::Queued { .. }) && !self.any_agent(&matching)
            })
        };
        let idle = self.state.staged_datasets().filter(|(job, _)| is_idle(*job));
        let idle: Vec<CacheId> = idle.map(|(_, cache)| cache.clone()).collect();
        idle.into_iter().for_each(|cache| self.remove_dataset(cache));
    }

    /// Whether a dataset is to be made of a job's inputs now: all of them are here, and none is
    /// being made.
    fn may_stage(&self, job: &Job) -> bool {
        let is_queued = matches!(job.phase, Phase::Queued { .. });
        is_queued
            && !job.is_announced()
            && !self.staging.under_way.contains(&job.id())
            && self.can_stage(job)
    }

    /// Whether a classic worker with an agent can have a job by a dataset of its inputs, as far as
    /// is known.
    pub(super) fn can_stage(&self, job: &Job) -> bool {
        let is_plain = !job.submission.to_all && job.child_of.is_none();
        let is_here = job.inputs != InputsState::PassedOn;
        // Classic workers would refuse these names (C08).
        let is_read = job.payload_kind() == PayloadKind::Request;
        is_plain
            && is_here
            && is_read
            && job.needs_transfers()
            && !self.staging.not_now.contains_key(&job.id())
    }

    /// Whether a classic worker of these has an agent, so that it can have large inputs after all.
    pub(super) fn any_agent(&self, workers: &[WorkerId]) -> bool {
        workers.iter().any(|worker| self.locality.holdings.agent_of(*worker).is_some())
    }

    /// The inputs of a job are a dataset by now.
    pub(super) fn staged(&mut self, job: JobId, dataset: Arc<Dataset>) {
        self.propose(Record::Stage { job, dataset });
    }

    /// The job whose inputs are put or removed as a dataset by a record: where it waits depends on
    /// that.
    pub(super) fn staged_by(&self, record: &Record) -> Option<JobId> {
        if let Record::Stage { job, .. } = record {
            return Some(*job);
        }
        self.state.staged_for(record.dataset()?.0)
    }

    /// A dataset of a job's inputs is about to be put or removed. The job leaves its place in the
    /// queue, because its requirements change.
    pub(super) fn take_out(&mut self, id: JobId) {
        let Some(job) = self.state.job(id).filter(|job| matches!(job.phase, Phase::Queued { .. }))
        else {
            return;
        };
        let (key, client, place) =
            (job.submission.key.clone(), job.submission.client.clone(), job.place());
        self.queues.remove(&key, &client, place);
        self.forget_delay(id);
    }

    /// The dataset was put or removed: the job returns to the queue with its new requirements.
    pub(super) fn inputs_changed(&mut self, id: JobId) {
        self.staging.under_way.remove(&id);
        self.staging.wake();
        if let Some(Phase::Queued { not_before }) = self.state.job(id).map(|job| job.phase.clone())
        {
            self.wait_until(id, not_before);
        }
    }

    /// No dataset is made of a job's inputs, for now or at all: it waits for a worker that takes
    /// transfers.
    pub(super) fn not_staged(&mut self, id: JobId, why: Arc<str>, again: bool) {
        self.staging.under_way.remove(&id);
        self.staging.wake();
        self.dirty = true;
        if self.state.job(id).is_none_or(Job::has_ended) {
            return;
        }
        self.forget_not_now(id);
        let until = again.then(|| self.now.plus(STAGE_AGAIN_AFTER));
        self.staging.not_now.insert(id, NotNow { why, until });
        self.due.extend(until.map(|until| (until, Due::Stage(id))));
        self.waits.look_at(id);
    }

    fn forget_not_now(&mut self, id: JobId) {
        if let Some(NotNow { until: Some(until), .. }) = self.staging.not_now.remove(&id) {
            self.due.remove(&(until, Due::Stage(id)));
        }
    }

    /// It may be tried again.
    pub(super) fn stage_again(&mut self, id: JobId) {
        self.staging.not_now.remove(&id);
        self.staging.wake();
        self.dirty = true;
    }

    /// An agent could not hold a dataset, or lost it before it was of use. If it is a job's inputs
    /// and no other agent can be asked, the dataset goes: it is made anew later.
    pub(super) fn agent_failed(&mut self, cache: &CacheId) {
        let Some(job) = self.state.staged_for(cache).and_then(|id| self.state.job(id)) else {
            return;
        };
        if !job.is_staged() || !matches!(job.phase, Phase::Queued { .. }) {
            return;
        }
        self.locality.asks.wake_all();
        let mut matching = Vec::new();
        self.workers.matching(job.submission.key.as_str(), &mut matching);
        if self.any_agent_may_hold(std::slice::from_ref(cache), &matching) {
            return;
        }
        let id = job.id();
        let why = "the agent could not hold them, as its log says";
        self.not_staged(id, why.into(), true);
        self.remove_dataset(cache.clone());
    }

    /// A job has ended, or is dead: it needs no dataset of its inputs. One that gets another run is
    /// staged anew.
    pub(super) fn end_staging(&mut self, id: JobId) {
        self.staging.under_way.remove(&id);
        self.forget_not_now(id);
        if self.state.job(id).is_some_and(Job::is_staged) {
            self.remove_dataset(CacheId::of_inputs(id));
        }
    }
}
