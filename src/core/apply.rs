//! Queues proposed records until they are committed, then applies them and triggers their effects.
//!
//! Nothing here decides, and only [`State::apply`](super::state::State::apply) changes a job. All
//! parts of the broker propose; [`Broker::handle`] receives the commits.

use std::collections::VecDeque;

use super::action::{Action, NotAgain, OperateError, Operated, WorkerOrder};
use super::broken;
use super::broker::Broker;
use super::ids::{Index, JobId, Run, Token, WorkerId};
use super::job::Phase;
use super::record::Record;
use super::state::Applied;

/// What is proposed and not yet applied, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Proposals {
    records: VecDeque<(Index, Record)>,
    /// Answers to operators that wait for a record.
    answers: VecDeque<(Index, Token, Operated)>,
    /// The last one.
    pub(super) index: Index,
}

impl Broker {
    /// What is proposed and not yet applied, the oldest first.
    pub(super) fn proposed(&self) -> impl DoubleEndedIterator<Item = &Record> {
        self.proposals.records.iter().map(|(_, record)| record)
    }

    pub(super) fn propose(&mut self, record: Record) -> Index {
        let index = self.proposals.index.next();
        self.proposals.index = index;
        self.proposals.records.push_back((index, record.clone()));
        self.actions.push_back(Action::Commit { index, record });
        index
    }

    /// Notes a record that was proposed for the broker, as the consensus engine does with the first
    /// of a term. False if another place is the next: then nothing was noted.
    pub fn appended(&mut self, index: Index, record: Record) -> bool {
        if index != self.proposals.index.next() {
            return false;
        }
        self.proposals.index = index;
        self.proposals.records.push_back((index, record));
        true
    }

    /// Answers an operator once the record is committed.
    pub(super) fn answer_after(&mut self, index: Index, token: Token, answer: Operated) {
        self.proposals.answers.push_back((index, token, answer));
    }

    /// Applies all records up to this one.
    pub(super) fn committed(&mut self, up_to: Index) {
        while self.proposals.records.front().is_some_and(|(index, _)| *index <= up_to) {
            let Some((index, record)) = self.proposals.records.pop_front() else { return };
            let staged = self.staged_by(&record);
            staged.iter().for_each(|job| self.take_out(*job));
            let applied = self.state.apply(&record);
            self.after(&record, &applied);
            staged.iter().for_each(|job| self.inputs_changed(*job));
            self.unpark(&record, &applied);
            self.send_answers(index, &record, &applied);
            self.dirty = true;
        }
    }

    /// After a record that may have brought a client under its cap, its jobs are looked at again.
    fn unpark(&mut self, record: &Record, applied: &Applied) {
        self.staging.wake_capped();
        // An assignment that counts takes a share of the client's cap. The share of a stale
        // assignment is given back where it is found stale.
        if let Record::Cap { client, .. } = record {
            self.queues.unpark(client);
        } else if let Applied::Withdrew(job) = applied {
            self.queues.unpark(&job.submission.client);
        } else if let Record::Ack { job, .. }
        | Record::Requeue { job, .. }
        | Record::Dlq { job, .. }
        | Record::Cancel { job, .. }
        | Record::Fail { job, .. }
        | Record::Orphan { job, .. } = record
            && let Some(job) = self.state.job(*job)
        {
            self.queues.unpark(&job.submission.client);
        }
    }

    fn send_answers(&mut self, index: Index, record: &Record, applied: &Applied) {
        while self.proposals.answers.front().is_some_and(|(at, _, _)| *at <= index) {
            let Some((_, token, did)) = self.proposals.answers.pop_front() else { return };
            // The job may have changed while the record was on its way.
            let answer = if *applied == Applied::Stale { too_late(record, did) } else { Ok(did) };
            self.actions.push_back(Action::Operated { token, answer });
        }
    }

    /// What follows from a record, now that it counts.
    fn after(&mut self, record: &Record, applied: &Applied) {
        let changed = *applied != Applied::Stale;
        match record {
            Record::Announce { job, .. } => {
                self.intake.enqueuing.remove(job.job);
                if changed {
                    self.announced(job.job);
                }
            }
            Record::Enqueue { job, children, .. } => {
                self.end_taking(job);
                if changed {
                    self.enqueued(job, children);
                }
            }
            Record::Assign { job, run, attempt, worker, .. } => {
                self.assigned(*job, *run, *attempt, *worker, changed);
            }
            Record::Ack { job, run, result, .. } => {
                if changed {
                    self.job_ended(*job, *run);
                } else {
                    self.actions.push_back(Action::ForgetResult { result: *result });
                }
            }
            Record::Requeue { job, not_before, .. } => {
                if changed {
                    self.watch_source(*job);
                    self.wait_until(*job, *not_before);
                }
            }
            Record::Dlq { job, run, .. }
            | Record::Orphan { job, run, .. }
            | Record::Fail { job, run, .. }
            | Record::Cancel { job, run, .. } => {
                if changed {
                    self.job_ended(*job, *run);
                }
            }
            Record::Revive { job, .. } => {
                if changed {
                    self.actions.push_back(Action::ReuseInput { job: *job });
                    self.revived(*job);
                }
            }
            Record::Withdraw { job, .. } => self.withdrawn(*job, applied),
            Record::Dataset { dataset } | Record::Stage { dataset, .. } => {
                self.dataset_put(dataset, applied)
            }
            Record::DatasetGone { cache, .. } => self.rouse(cache),
            Record::Delivered { job, run } => {
                self.results.confirming.remove(&(*job, *run));
            }
            Record::DropInputs { job, .. } => {
                if changed {
                    self.actions.push_back(Action::ForgetInput { job: *job });
                }
            }
            // What follows from those about the cluster follows in `consensus`.
            Record::Forget { .. }
            | Record::Cap { .. }
            | Record::Term { .. }
            | Record::Members { .. }
            | Record::Level { .. }
            | Record::Mark { .. }
            | Record::Office { .. } => {}
        }
        match applied {
            Applied::Revived(result) => {
                let forgotten = result.map(|result| Action::ForgetResult { result });
                self.actions.extend(forgotten);
            }
            Applied::ChangedWithParent(parent) => self.job_ended(*parent, Run(1)),
            Applied::Forgot(jobs) => jobs.iter().for_each(|job| self.forgot(job)),
            Applied::RemovedDataset(dataset) => {
                self.actions.push_back(Action::DatasetRemoved { dataset: dataset.clone() });
            }
            Applied::Changed
            | Applied::Withdrew(_)
            | Applied::PutDataset { .. }
            | Applied::Stale => {}
        }
    }

    fn job_ended(&mut self, id: JobId, run: Run) {
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} has ended, and is not known");
        };
        let place = job.place();
        let (child_of, children) = (job.child_of, job.children.clone());
        let is_dead = matches!(job.phase, Phase::Dead { .. });
        let retains = job.retains_inputs();
        let returned_by = job.returned().map(|(worker, _)| worker);
        let (key, client) = (job.submission.key.clone(), job.submission.client.clone());
        self.queues.remove(&key, &client, place);
        self.forget_delay(id);
        self.waits.forget(id);
        self.end_staging(id);
        self.drop_source(id);
        if let Some((_, worker)) = child_of {
            self.queues.pinned.entry(worker).and_modify(|jobs| {
                jobs.remove(&place);
            });
        }
        self.settle(id, run, returned_by);
        self.tell_end(id);
        for child in children {
            if let Some(run) =
                self.state.job(child).filter(|child| !child.has_ended()).map(|child| child.run)
            {
                self.propose(Record::Cancel {
                    at: self.now,
                    job: child,
                    run,
                    by: "its parent ended".into(),
                });
            }
        }
        if child_of.is_none() {
            // A dead job keeps its payload: it may be given another run. So does one that failed,
            // as long as there is room.
            if !is_dead {
                self.actions.push_back(match retains {
                    true => Action::RetainInput { job: id },
                    false => Action::ForgetInput { job: id },
                });
                self.keep_for_a_while(id, run);
            }
            self.deliver(id);
        }
    }

    /// Tells workers of a job that ended: the one that returned the result may forget it, others
    /// may stop.
    pub(super) fn settle(&mut self, job: JobId, run: Run, returned_by: Option<WorkerId>) {
        if let Some(conn) = returned_by.and_then(|worker| self.workers.get(worker)?.conn()) {
            self.order(WorkerOrder::Settle { conn, job, run });
        }
        for worker in self.workers.holders(job) {
            // One whose assignment is not applied has not heard of the job, and will not.
            if self.assigning.worker_of(job) == Some(worker.id) {
                continue;
            }
            // The worker keeps the job's slot until it answers: its credit comes back with the
            // answer.
            if let (Some(conn), Some(lease)) = (worker.conn(), worker.held.get(&job)) {
                let order = WorkerOrder::Abandon { conn, job, attempt: lease.attempt };
                self.actions.push_back(Action::Worker(order));
            }
        }
    }
}

/// What an operation did whose last record changed nothing.
fn too_late(record: &Record, did: Operated) -> Result<Operated, OperateError> {
    match (record, did) {
        (Record::Cancel { job, .. }, Operated::Cancelled { .. }) => {
            Err(OperateError::Ended { job: *job })
        }
        (Record::Revive { job, .. }, Operated::Retried { .. }) => {
            Err(OperateError::NotAgain { job: *job, why: NotAgain::InputsGone })
        }
        (Record::Forget { job, .. }, Operated::Purged { jobs: 1 })
        | (Record::Revive { job, .. }, Operated::Revived { jobs: 1 }) => {
            Err(OperateError::NotDead { job: *job })
        }
        (
            _,
            Operated::Cancelled { .. }
            | Operated::Purged { .. }
            | Operated::Revived { .. }
            | Operated::Retried { .. },
        ) => Ok(did),
    }
}
