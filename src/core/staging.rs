//! Jobs for stock workers whose inputs are too large for a frame (C01). Where only stock workers ask for such a job, and one of them has an
//! agent, the leader is told to make a dataset of the inputs. Once that is kept the job names it and need not go by transfer any more; that
//! the agent gets it, and then the worker the job, is as with any other dataset.
//!
//! What the set is made of and how is the leader's matter; the state notes that a job was staged when the set is put.

use std::collections::BTreeSet;

use super::action::Action;
use super::broker::Broker;
use super::dataset::Dataset;
use super::ids::{JobId, WorkerId};
use super::job::{Job, Phase};
use super::subject::RoutingKey;

/// Jobs whose inputs are sets, or are being made sets, at a time: they take their place on the leader's disk twice.
const STAGED_MAX: usize = 16;

/// Jobs of a key that are looked at for it.
const LOOKS_PER_KEY_MAX: usize = 256;

/// Jobs whose inputs are being made sets.
#[derive(Debug, Default)]
pub(super) struct Staging {
    under_way: BTreeSet<JobId>,
    /// Those of which none can be made.
    given_up: BTreeSet<JobId>,
}

impl Staging {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.under_way.len() + self.given_up.len()
    }

    /// A job has ended.
    pub(super) fn forget(&mut self, job: JobId) {
        self.under_way.remove(&job);
        self.given_up.remove(&job);
    }

    /// Whether no set can be made of a job's inputs.
    pub(super) fn is_given_up(&self, job: JobId) -> bool {
        self.given_up.contains(&job)
    }
}

impl Broker {
    /// Has sets made of the inputs of jobs that wait for stock workers which have agents, as many as there may be.
    pub(super) fn stage_inputs(&mut self) {
        let workers: Vec<WorkerId> = self.holdings.pairs().map(|(worker, _)| worker).collect();
        if workers.is_empty() {
            return;
        }
        let taken = self.state.staged_sets() + self.staging.under_way.len();
        let room = STAGED_MAX.saturating_sub(taken);
        let mut found: Vec<JobId> = Vec::new();
        let wanted = |key: &RoutingKey| {
            let wants = |id: &WorkerId| self.workers.get(*id).is_some_and(|found| found.wants(key.as_str()));
            workers.iter().any(wants)
        };
        for (key, _) in self.queues.keys().filter(|(key, _)| wanted(key)) {
            if found.len() >= room {
                break;
            }
            if self.lacks_transfers(key).is_some() {
                let jobs = self.queues.by_transfer_of(key).take(LOOKS_PER_KEY_MAX);
                found.extend(jobs.filter(|id| self.state.job(*id).is_some_and(|job| self.may_stage(job))));
            }
        }
        found.truncate(room);
        for job in found {
            self.staging.under_way.insert(job);
            self.actions.push_back(Action::StageInputs { job });
        }
    }

    /// Whether a set is to be made of a job's inputs now: all of them are here, and none is being made.
    fn may_stage(&self, job: &Job) -> bool {
        !self.staging.under_way.contains(&job.id) && !job.needs_client() && self.can_stage(job)
    }

    /// Whether a stock worker with an agent can have a job by a set of its inputs.
    pub(super) fn can_stage(&self, job: &Job) -> bool {
        let is_plain = !job.to_all && job.child_of.is_none();
        is_plain && job.needs_transfers && !self.staging.is_given_up(job.id)
    }

    /// Whether a stock worker of these has an agent, so that it can have large inputs after all.
    pub(super) fn any_agent(&self, workers: &[WorkerId]) -> bool {
        workers.iter().any(|worker| self.holdings.agent_of(*worker).is_some())
    }

    /// A set was put. If it is a job's inputs, the job can go to whoever has it.
    pub(super) fn staged(&mut self, dataset: &Dataset) {
        let Some(id) = dataset.cache.job() else { return };
        self.staging.forget(id);
        let Some(job) = self.state.job(id) else { return };
        if let Phase::Queued { not_before } = job.phase
            && job.datasets.contains(&dataset.cache)
        {
            let (key, client, place) = (job.key.clone(), job.client.clone(), job.place());
            self.queues.remove(&key, &client, place);
            self.forget_delay(id);
            self.wait_until(id, not_before);
        }
    }

    /// No set can be made of a job's inputs: it waits for a worker that takes transfers.
    pub(super) fn not_staged(&mut self, id: JobId) {
        self.staging.under_way.remove(&id);
        if self.state.job(id).is_some_and(|job| !job.has_ended()) {
            self.staging.given_up.insert(id);
            self.waits.look_at(id);
        }
    }
}
