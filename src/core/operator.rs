//! Operators' commands: ending jobs, and the dead-letter queue.

use super::action::{Action, NotAgain, OperateError, Operated, Standing};
use super::broker::{Broker, standing};
use super::event::Operation;
use super::forgotten::WhyForgotten;
use super::ids::{JobId, Run, Token};
use super::job::{Ending, Job, Phase};
use super::record::Record;

impl Broker {
    pub(super) fn operate(&mut self, token: Token, operation: Operation) {
        let done = match operation {
            Operation::Cancel { job, by } => self.cancel(token, job, by),
            Operation::Revive { job } => self.revive(token, job),
            Operation::Retry { job } => self.retry(token, job),
            Operation::Purge { job } => self.purge(token, job),
        };
        if let Err(error) = done {
            self.actions.push_back(Action::Operated { token, answer: Err(error) });
        }
    }

    fn cancel(
        &mut self,
        token: Token,
        id: JobId,
        by: std::sync::Arc<str>,
    ) -> Result<(), OperateError> {
        let (run, was) = match self.state.job(id) {
            Some(job) if job.has_ended() => return Err(OperateError::Ended { job: id }),
            Some(job) => (job.run, standing(job)),
            // The job is being accepted: this record follows the one that accepts it.
            None if self.intake.enqueuing.contains(id) => (Run(1), Standing::Queued),
            None => return Err(self.not_known(id)),
        };
        let index = self.propose(Record::Cancel { at: self.now, job: id, run, by });
        self.answer_after(index, token, Operated::Cancelled { was });
        Ok(())
    }

    fn revive(&mut self, token: Token, job: Option<JobId>) -> Result<(), OperateError> {
        let dead = self.dead_jobs(job)?;
        let answer = Operated::Revived { jobs: dead.len() };
        let mut last = None;
        for (job, run) in dead {
            last = Some(self.propose(Record::Revive { job, run }));
        }
        self.answer_with(last, token, answer);
        Ok(())
    }

    fn retry(&mut self, token: Token, id: JobId) -> Result<(), OperateError> {
        let job = self.state.job(id).ok_or_else(|| self.not_known(id))?;
        let run = job.run;
        if !job.may_run_again() {
            return Err(why_not_again(job));
        }
        let index = self.propose(Record::Revive { job: id, run });
        self.answer_after(index, token, Operated::Retried { run: run.next() });
        Ok(())
    }

    /// Whether a job that has ended is about to run again.
    pub fn is_to_run_again(&self, id: JobId) -> bool {
        self.proposed().any(|record| matches!(record, Record::Revive { job, .. } if *job == id))
    }

    fn purge(&mut self, token: Token, job: Option<JobId>) -> Result<(), OperateError> {
        let dead = self.dead_jobs(job)?;
        let answer = Operated::Purged { jobs: dead.len() };
        let mut last = None;
        for (job, run) in dead {
            last = self.forget(job, run, WhyForgotten::Purged);
        }
        self.answer_with(last, token, answer);
        Ok(())
    }

    fn answer_with(&mut self, last: Option<super::ids::Index>, token: Token, answer: Operated) {
        match last {
            Some(index) => self.answer_after(index, token, answer),
            None => self.actions.push_back(Action::Operated { token, answer: Ok(answer) }),
        }
    }

    /// One dead job, or all of them.
    fn dead_jobs(&self, job: Option<JobId>) -> Result<Vec<(JobId, Run)>, OperateError> {
        let Some(id) = job else {
            return Ok(self.state.dead().map(|job| (job.id(), job.run)).collect());
        };
        let job = self.state.job(id).ok_or_else(|| self.not_known(id))?;
        if let Some((parent, _)) = job.child_of {
            return Err(OperateError::Part { job: id, parent });
        }
        match job.phase {
            Phase::Dead { .. } => Ok(vec![(id, job.run)]),
            Phase::Queued { .. }
            | Phase::Leased { .. }
            | Phase::Gathering { .. }
            | Phase::Done { .. } => Err(OperateError::NotDead { job: id }),
        }
    }
}

/// Why a job has no other run.
fn why_not_again(job: &Job) -> OperateError {
    let id = job.id();
    if let Some((parent, _)) = job.child_of {
        return OperateError::Part { job: id, parent };
    }
    let why = match &job.phase {
        Phase::Queued { .. } | Phase::Leased { .. } | Phase::Gathering { .. } => NotAgain::NotEnded,
        Phase::Done { ending, .. } => match ending {
            Ending::Returned { ok: true, .. } | Ending::Gathered { ok: true } => NotAgain::Ok,
            Ending::Cancelled { .. } => NotAgain::Cancelled,
            Ending::Returned { ok: false, .. }
            | Ending::Gathered { ok: false }
            | Ending::Failed { .. }
            | Ending::Orphaned => match job.submission.to_all {
                true => NotAgain::ToAll,
                false => NotAgain::InputsGone,
            },
        },
        Phase::Dead { .. } => NotAgain::InputsGone,
    };
    OperateError::NotAgain { job: id, why }
}
