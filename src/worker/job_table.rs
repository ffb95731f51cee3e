//! Decides what is run, answered, stopped and cleaned up: the state of each job of a worker, from
//! assigned through waiting for a slot and running to ended (C05-C07, C17, DD01).
//!
//! It has no I/O, clock or randomness: the session reports events and takes actions from
//! [`JobTable::poll`].

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::Bytes;
use chunking::message::{Features, HeldJob, Start, StartFlags};
use tracing::{info, warn};
use uuid::Uuid;

use crate::model::JobStatus;
use crate::units::ByteSize;

use super::backlog::Backlog;
use super::handler::{Job, StopReason};
use super::limits::{ASSIGNED_BYTES_MAX, ASSIGNED_MAX};
use super::result_encoding::{self, Answer, Large};
use super::store::{ResultStore, Stored, same_run};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum JobOrder {
    /// Say that this attempt is about to run, or runs already.
    SayRunning {
        job: Uuid,
        run: u32,
        attempt: u32,
    },
    Run(Offer, RunAttempt),
    /// Tell it to stop.
    Stop {
        job: Uuid,
        reason: StopReason,
    },
    /// Send its result.
    Answer {
        job: Uuid,
        payload: Bytes,
    },
    /// Send its result, the large parts first.
    Return {
        job: Uuid,
        numbers: RunAttempt,
        large: Arc<Large>,
    },
    /// Drop what has come of its inputs.
    Forget {
        job: Uuid,
    },
    /// Its result is safe: remove its directory.
    Clean {
        job: Uuid,
    },
    /// A place is free again. After a job has ended it may be withheld for a moment (CR07).
    ReturnCredit {
        after_job: bool,
    },
}

/// Run and attempt, as far as the leader said them, and what else its Start said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RunAttempt {
    pub(super) run: Option<u32>,
    pub(super) attempt: u32,
    /// Whether the job's client is known to take large parts of its result beside it.
    pub(super) takes_parts: bool,
}

impl RunAttempt {
    const UNSAID: RunAttempt = RunAttempt::new(None, 1);

    /// Of a job of which the leader said no more.
    pub(super) const fn new(run: Option<u32>, attempt: u32) -> Self {
        RunAttempt { run, attempt, takes_parts: false }
    }

    /// As a Start says it.
    pub(super) fn of(start: &Start) -> Self {
        let takes_parts = start.flags.has(StartFlags::TAKES_PARTS);
        RunAttempt { run: Some(start.run), attempt: start.attempt, takes_parts }
    }
}

/// A job as it was assigned.
#[derive(Clone, Debug)]
pub(super) struct Offer(pub(super) Arc<Job>);

impl Offer {
    pub(super) fn job(&self) -> Uuid {
        self.0.id
    }

    /// Whether inputs of it come by transfer.
    fn has_transfers(&self) -> bool {
        self.0.blobs().next().is_some()
    }

    /// Whether something is kept for it until it has run: inputs that come by transfer, or
    /// datasets.
    fn has_more(&self) -> bool {
        self.has_transfers() || self.0.caches().next().is_some()
    }
}

impl PartialEq for Offer {
    fn eq(&self, other: &Self) -> bool {
        let bytes = |offer: &Self| (offer.0.id, offer.0.subject.clone(), offer.0.payload.clone());
        bytes(self) == bytes(other)
    }
}

impl Eq for Offer {}

/// A job that does not run yet: it waits for Start, for its inputs, or for word of what the leader
/// can do.
#[derive(Debug)]
struct Assigned {
    offer: Offer,
    inputs: Inputs,
    /// Start came, and the inputs are still to come.
    started: Option<RunAttempt>,
    /// The attempt that the inputs are for, as far as their transfers say.
    attempt: u32,
}

/// How the inputs of a job come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Inputs {
    /// With the job.
    Inside,
    /// By transfers, which are under way or to come.
    Coming,
    /// By transfers, and all are here.
    Here,
    /// With the job, but for datasets that are not here yet.
    Datasets,
}

#[derive(Debug)]
struct Running {
    numbers: RunAttempt,
    /// A later run of the same job, which starts when this one has ended.
    next: Option<(Offer, RunAttempt)>,
}

/// Places that ended jobs keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PlacesKept {
    /// As parts of their results lie in memory.
    in_memory: usize,
    /// As more results wait on the disk than may.
    beyond: usize,
}

impl PlacesKept {
    fn all(self) -> usize {
        self.in_memory + self.beyond
    }
}

/// The worker's jobs.
#[derive(Debug)]
pub(super) struct JobTable {
    parallel_max: usize,
    /// Results that may wait for the leader without a place.
    backlog: Backlog,
    /// What the leader can do; none of it for a classic one, `None` while that is not known.
    leader: Option<Features>,
    stopping: bool,
    /// Came, and do not run yet.
    assigned: Vec<Assigned>,
    /// May run, and wait for a place.
    waiting: VecDeque<(Offer, RunAttempt)>,
    running: HashMap<Uuid, Running>,
    results: ResultStore,
    todo: VecDeque<JobOrder>,
}

impl JobTable {
    pub(super) fn new(parallel_max: usize, backlog: Backlog) -> Self {
        JobTable {
            parallel_max,
            backlog,
            leader: None,
            stopping: false,
            assigned: Vec::new(),
            waiting: VecDeque::new(),
            running: HashMap::new(),
            results: ResultStore::default(),
            todo: VecDeque::new(),
        }
    }

    /// A result of an earlier process under this id, which the leader does not have.
    pub(super) fn restore(&mut self, job: Uuid, numbers: RunAttempt, answer: Answer) {
        self.end(job, numbers, answer);
    }

    /// What is to be done next.
    pub(super) fn poll(&mut self) -> Option<JobOrder> {
        self.todo.pop_front()
    }

    /// Places that are free.
    pub(super) fn room(&self) -> usize {
        match self.stopping {
            true => 0,
            // What came before a lost connection, and by transfer, is still here.
            false => {
                let receiving =
                    self.assigned.iter().filter(|held| held.inputs != Inputs::Inside).count();
                let returning = self.places_kept().all();
                self.parallel_max
                    .saturating_sub(self.running.len() + self.waiting.len() + receiving + returning)
            }
        }
    }

    /// Large results that the leader does not have.
    fn returning(&self) -> impl Iterator<Item = &Large> {
        self.results.unsettled().filter_map(|(_, stored)| stored.answer.large.as_deref())
    }

    /// Places that are not free before the leader has results of jobs that have ended.
    fn places_kept(&self) -> PlacesKept {
        let in_memory = self.returning().filter(|large| large.is_in_memory()).count();
        let on_disk = self.returning().filter(|large| !large.is_in_memory()).map(Large::bytes);
        PlacesKept { in_memory, beyond: self.backlog.keep_places(on_disk.collect()) }
    }

    /// Results were added or removed. `before` and `taken` are the slots that were kept and used;
    /// slots that are free now are offered.
    fn free_places(&mut self, before: PlacesKept, taken: usize) {
        let after = self.places_kept();
        match (before.beyond, after.beyond) {
            (0, 1..) => warn!(
                results = self.returning().count(), results_max = self.backlog.results_max,
                bytes = %ByteSize(self.returning().map(Large::bytes).fold(0, u64::saturating_add)),
                bytes_max = %ByteSize(self.backlog.bytes_max),
                "too many results wait for the leader (--returning-max): each further one keeps \
                 its job's slot until the leader has taken some, so fewer jobs run; see `heft \
                 status` for the cause"
            ),
            (1.., 0) => {
                info!("the leader has taken results: all slots are available for jobs again")
            }
            (0, 0) | (1.., 1..) => {}
        }
        for _ in after.all()..before.all() + taken {
            self.free_place();
        }
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn unsettled(&self) -> usize {
        self.results.unsettled().count()
    }

    /// The job's numbers, if it runs.
    pub(super) fn numbers(&self, job: Uuid) -> Option<RunAttempt> {
        self.running.get(&job).map(|running| running.numbers)
    }

    /// Whether a job has all of its inputs and waits for a place, runs, or has a result that the
    /// leader has yet to take.
    pub(super) fn is_past_inputs(&self, job: Uuid) -> bool {
        self.running.contains_key(&job)
            || self.waiting.iter().any(|(offer, _)| offer.job() == job)
            || self.results.unsettled().any(|(ended, _)| ended == job)
    }

    /// The attempt that a result is of which is kept here.
    pub(super) fn attempt_of_result(&self, job: Uuid) -> Option<u32> {
        self.results.get(job).map(|stored| stored.attempt)
    }

    /// The numbers of a job whose inputs come: no run before Start.
    pub(super) fn receiving(&self, job: Uuid) -> Option<(u32, u32)> {
        let assigned = self.assigned.iter().find(|assigned| assigned.offer.job() == job)?;
        Some((assigned.started.and_then(|numbers| numbers.run).unwrap_or(0), assigned.attempt))
    }

    /// Jobs whose leases a heartbeat renews: those under way, and those whose results the leader
    /// has yet to take.
    pub(super) fn held(&self) -> Vec<HeldJob> {
        let held = |job: Uuid, numbers: RunAttempt| HeldJob {
            job,
            run: numbers.run.unwrap_or(1),
            attempt: numbers.attempt,
        };
        let running = self.running.iter().map(|(job, running)| held(*job, running.numbers));
        let waiting = self.waiting.iter().map(|(offer, numbers)| held(offer.job(), *numbers));
        let receiving =
            self.assigned.iter().filter(|held| held.inputs != Inputs::Inside).map(|assigned| {
                let run = assigned.started.and_then(|numbers| numbers.run).unwrap_or(0);
                HeldJob { job: assigned.offer.job(), run, attempt: assigned.attempt }
            });
        let ended = self
            .results
            .unsettled()
            .map(|(job, stored)| held(job, RunAttempt::new(stored.run, stored.attempt)));
        running.chain(waiting).chain(receiving).chain(ended).collect()
    }

    /// Whether something is held that only a leader of ours can have given: jobs that it started,
    /// inputs that came by transfer, and results that it has yet to take. A classic leader numbers
    /// no runs.
    pub(super) fn holds_work_of_ours(&self) -> bool {
        let ours = |numbers: RunAttempt| numbers.run.is_some();
        self.running.values().any(|running| ours(running.numbers))
            || self.waiting.iter().any(|(_, numbers)| ours(*numbers))
            || self.assigned.iter().any(|held| matches!(held.inputs, Inputs::Coming | Inputs::Here))
            || self.results.unsettled().any(|(_, stored)| stored.run.is_some())
    }

    /// Whether jobs are run at Start.
    pub(super) fn is_leased(&self) -> bool {
        self.leader.is_some_and(|features| features.has(Features::LEASES))
    }

    /// What the leader can do is known: its Welcome came, or the time for it is over. Jobs that
    /// came meanwhile run, and results that the leader does not have are sent again.
    pub(super) fn on_leader(&mut self, features: Features) {
        self.leader = Some(features);
        let unsettled: Vec<Uuid> = self.results.unsettled().map(|(job, _)| job).collect();
        unsettled.into_iter().for_each(|job| self.answer(job));
        if !self.is_leased() {
            for assigned in std::mem::take(&mut self.assigned) {
                match assigned.inputs {
                    // A leader that knows no datasets sends none; what lacks is the handler's to
                    // say.
                    Inputs::Inside | Inputs::Datasets => {
                        self.ready(assigned.offer, RunAttempt::UNSAID)
                    }
                    // Another leader, which will not send the rest.
                    Inputs::Coming | Inputs::Here => {
                        self.todo.push_back(JobOrder::Forget { job: assigned.offer.job() });
                    }
                }
            }
        }
    }

    /// The connection is lost. What has not started is the leader's to give again, but for inputs
    /// that came by transfer, of which the leader hears that they are here; the rest goes on.
    pub(super) fn on_lost(&mut self) {
        self.leader = None;
        let mut back: Vec<(Offer, RunAttempt)> = self.waiting.drain(..).collect();
        let later = self.running.values_mut().filter_map(|running| running.next.take());
        back.extend(later);
        let running = &mut self.running;
        self.todo.retain(|todo| match todo {
            JobOrder::Stop { .. } | JobOrder::Clean { .. } | JobOrder::Forget { .. } => true,
            // The leader has not heard that it starts, so it does not.
            JobOrder::Run(offer, numbers) => {
                running.remove(&offer.job());
                back.push((offer.clone(), *numbers));
                false
            }
            JobOrder::SayRunning { .. }
            | JobOrder::Answer { .. }
            | JobOrder::Return { .. }
            | JobOrder::ReturnCredit { .. } => false,
        });
        self.assigned.retain_mut(|assigned| {
            assigned.started = None;
            match assigned.inputs {
                Inputs::Coming | Inputs::Here => true,
                Inputs::Inside | Inputs::Datasets => false,
            }
        });
        self.assigned.extend(back.into_iter().filter(|(offer, _)| offer.has_transfers()).map(
            |(offer, numbers)| Assigned {
                offer,
                inputs: Inputs::Here,
                started: None,
                attempt: numbers.attempt,
            },
        ));
    }

    /// No more jobs are taken.
    pub(super) fn on_stop(&mut self) {
        self.stopping = true;
        let waiting = self.waiting.drain(..).map(|(offer, _)| offer);
        let offers: Vec<Offer> =
            self.assigned.drain(..).map(|assigned| assigned.offer).chain(waiting).collect();
        offers.iter().for_each(|offer| self.forget(offer));
    }

    /// What has come of a job's inputs is not needed.
    fn forget(&mut self, offer: &Offer) {
        if offer.has_more() {
            self.todo.push_back(JobOrder::Forget { job: offer.job() });
        }
    }

    /// A transfer of a job's inputs was opened, for this attempt.
    pub(super) fn on_open(&mut self, job: Uuid, attempt: u32) {
        if let Some(assigned) =
            self.assigned.iter_mut().find(|assigned| assigned.offer.job() == job)
        {
            assigned.attempt = attempt;
        }
    }

    /// All inputs of a job are here.
    pub(super) fn on_received(&mut self, job: Uuid) {
        let Some(at) = self.assigned.iter().position(|assigned| assigned.offer.job() == job) else {
            return;
        };
        let started = self.assigned.get_mut(at).and_then(|assigned| {
            assigned.inputs = Inputs::Here;
            assigned.started
        });
        if let Some(numbers) = started {
            let assigned = self.assigned.remove(at);
            self.ready(assigned.offer, numbers);
        }
    }

    /// The leader has not come back to a job whose inputs it was sending: its place is free.
    pub(super) fn on_abandoned(&mut self, job: Uuid) {
        let before = self.assigned.len();
        self.assigned.retain(|assigned| assigned.offer.job() != job);
        if self.assigned.len() < before {
            self.todo.push_back(JobOrder::Forget { job });
            self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
        }
    }

    pub(super) fn on_assign(&mut self, offer: Offer, inputs: Inputs) {
        if self.stopping {
            self.forget(&offer);
            return warn!(job = %offer.job(),
                "ignored a job, because the worker is stopping; the leader requeues it");
        }
        let bytes: usize = self
            .assigned
            .iter()
            .map(|assigned| &assigned.offer)
            .chain(self.waiting.iter().map(|(offer, _)| offer))
            .map(|offer| offer.0.payload.len())
            .sum();
        let count = self.assigned.len() + self.waiting.len();
        if count >= ASSIGNED_MAX || (count >= self.parallel_max && bytes > ASSIGNED_BYTES_MAX) {
            self.forget(&offer);
            return warn!(
                job = %offer.job(), waiting = count, bytes,
                "ignored a job, because the leader assigns far more than the worker's credit"
            );
        }
        let mut started = None;
        if self.leader.is_some() && !self.is_leased() {
            // A classic leader says no Start. Datasets that may have changed are read first all the
            // same.
            match inputs {
                Inputs::Datasets => started = Some(RunAttempt::UNSAID),
                Inputs::Inside | Inputs::Here | Inputs::Coming => {
                    return self.ready(offer, RunAttempt::UNSAID);
                }
            }
        }
        let assigned = Assigned { offer, inputs, started, attempt: 0 };
        match self.assigned.iter_mut().find(|held| held.offer.job() == assigned.offer.job()) {
            Some(held) => {
                *held = assigned;
                self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
            }
            None => self.assigned.push(assigned),
        }
    }

    pub(super) fn on_start(&mut self, job: Uuid, numbers: RunAttempt) {
        if let Some(at) = self.assigned.iter().position(|assigned| assigned.offer.job() == job) {
            if let Some(assigned) = self
                .assigned
                .get_mut(at)
                .filter(|assigned| matches!(assigned.inputs, Inputs::Coming | Inputs::Datasets))
            {
                assigned.started = Some(numbers);
                assigned.attempt = numbers.attempt;
                return;
            }
            let assigned = self.assigned.remove(at);
            self.ready(assigned.offer, numbers);
        } else if let Some(running) = self.running.get_mut(&job) {
            // It was run at AssignJob, before the leader's Welcome came.
            running.numbers = numbers;
            self.say_running(job, numbers);
        } else if self.results.get(job).is_some() {
            self.answer(job);
        } else if !self.stopping {
            warn!(%job, "ignored the start of a job that was not assigned");
        }
    }

    /// A job that may run: unless it does already, or did.
    fn ready(&mut self, offer: Offer, numbers: RunAttempt) {
        let job = offer.job();
        if let Some(running) = self.running.get_mut(&job) {
            if same_run(running.numbers.run, numbers.run) {
                running.numbers.attempt = numbers.attempt;
                running.numbers.run = numbers.run.or(running.numbers.run);
                let numbers = running.numbers;
                self.forget(&offer);
                self.say_running(job, numbers);
                self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
            } else {
                running.next = Some((offer, numbers));
                let text = format!("run {} of the job begins", numbers.run.unwrap_or(1));
                self.todo.push_back(JobOrder::Stop { job, reason: StopReason::Cancelled { text } });
            }
            return;
        }
        if self.results.get(job).is_some_and(|stored| same_run(stored.run, numbers.run)) {
            self.forget(&offer);
            self.answer(job);
            self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
            return;
        }
        if let Some((_, held)) = self.waiting.iter_mut().find(|(held, _)| held.job() == job) {
            *held = numbers;
            self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
            return;
        }
        match self.running.len() < self.parallel_max {
            true => self.launch(offer, numbers),
            false => self.waiting.push_back((offer, numbers)),
        }
    }

    fn launch(&mut self, offer: Offer, numbers: RunAttempt) {
        self.running.insert(offer.job(), Running { numbers, next: None });
        self.say_running(offer.job(), numbers);
        self.todo.push_back(JobOrder::Run(offer, numbers));
    }

    fn say_running(&mut self, job: Uuid, numbers: RunAttempt) {
        if self.is_leased() {
            let run = numbers.run.unwrap_or(1);
            self.todo.push_back(JobOrder::SayRunning { job, run, attempt: numbers.attempt });
        }
    }

    /// Cancel. An attempt of 0 means whichever is under way.
    pub(super) fn on_cancel(&mut self, job: Uuid, attempt: u32, text: &str) {
        let reason = StopReason::Cancelled { text: text.to_owned() };
        let meant = |numbers: RunAttempt| attempt == 0 || attempt == numbers.attempt;
        if self.running.get(&job).is_some_and(|running| meant(running.numbers)) {
            self.todo.push_back(JobOrder::Stop { job, reason });
        } else if let Some(at) =
            self.waiting.iter().position(|(offer, numbers)| offer.job() == job && meant(*numbers))
        {
            if let Some((offer, numbers)) = self.waiting.remove(at) {
                self.never_ran(offer, numbers, &reason.to_string());
            }
        } else if let Some(at) = self.assigned.iter().position(|assigned| {
            // AssignJob does not say for which attempt it is.
            assigned.offer.job() == job
                && (attempt == 0 || [0, attempt].contains(&assigned.attempt))
        }) {
            let assigned = self.assigned.remove(at);
            let numbers = RunAttempt::new(None, attempt.max(1));
            self.never_ran(assigned.offer, numbers, &reason.to_string());
        }
    }

    fn never_ran(&mut self, offer: Offer, numbers: RunAttempt, why: &str) {
        let mut result = offer.0.failed(format!("{why}\n"));
        result.run = numbers.run;
        result.status = JobStatus::Cancelled;
        self.forget(&offer);
        self.give_up(offer.job(), result_encoding::encode(result).into());
        self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
    }

    /// A job was assigned whose program is not here: it is handed back before its inputs come.
    pub(super) fn on_no_program(&mut self, job: &Job, why: &str) {
        self.give_up(job.id, result_encoding::encode(job.no_program(why)).into());
        self.todo.push_back(JobOrder::ReturnCredit { after_job: false });
    }

    /// A job cannot be run here, and does not run yet: the leader gives it to another worker.
    pub(super) fn on_unfit(&mut self, job: Uuid, text: &str) {
        let Some(at) = self.assigned.iter().position(|assigned| assigned.offer.job() == job) else {
            return;
        };
        let Assigned { offer, started, attempt, .. } = self.assigned.remove(at);
        let numbers = started.unwrap_or(RunAttempt::new(None, attempt.max(1)));
        self.never_ran(offer, numbers, text);
    }

    /// Whether a job waits here, or runs.
    pub(super) fn is_under_way(&self, job: Uuid) -> bool {
        self.running.contains_key(&job)
            || self.waiting.iter().any(|(offer, _)| offer.job() == job)
            || self.assigned.iter().any(|assigned| assigned.offer.job() == job)
    }

    pub(super) fn on_settled(&mut self, job: Uuid, run: u32) {
        if self.settle(job, Some(run)) && !self.running.contains_key(&job) {
            self.todo.push_back(JobOrder::Clean { job });
        }
    }

    /// The leader has a result: its place is free at the latest now. Says whether that is news.
    fn settle(&mut self, job: Uuid, run: Option<u32>) -> bool {
        let before = self.places_kept();
        let news = self.results.settle(job, run);
        if news {
            self.free_places(before, 0);
        }
        news
    }

    fn free_place(&mut self) {
        if !self.stopping {
            self.todo.push_back(JobOrder::ReturnCredit { after_job: true });
        }
    }

    /// The leader does not want the result of a job.
    pub(super) fn on_unwanted(&mut self, job: Uuid) {
        let run = self.results.get(job).and_then(|stored| stored.run);
        self.on_settled(job, run.unwrap_or(1));
    }

    /// A job has ended.
    pub(super) fn on_ended(&mut self, job: Uuid, answer: Answer, given_up: bool) {
        let before = self.places_kept();
        let Some(running) = self.running.remove(&job) else { return };
        match running.next {
            // What became of the earlier run interests nobody any more.
            Some((offer, numbers)) => {
                self.todo.push_back(JobOrder::Clean { job });
                self.launch(offer, numbers);
            }
            None if given_up => self.give_up(job, answer.payload),
            None => self.end(job, running.numbers, answer),
        }
        self.free_places(before, 1);
        if self.running.len() < self.parallel_max
            && let Some((offer, numbers)) = self.waiting.pop_front()
        {
            self.launch(offer, numbers);
        }
    }

    /// Says that a job was given up. That is not a result, so it is not kept to answer with again.
    fn give_up(&mut self, job: Uuid, payload: Bytes) {
        if self.leader.is_some() {
            self.todo.push_back(JobOrder::Answer { job, payload });
        }
        self.todo.push_back(JobOrder::Clean { job });
    }

    fn end(&mut self, job: Uuid, numbers: RunAttempt, answer: Answer) {
        let RunAttempt { run, attempt, .. } = numbers;
        let stored = Stored { answer, run, attempt, settled: false };
        for lost in self.results.insert(job, stored) {
            warn!(job = %lost, "too many results wait for the leader; the oldest is dropped, and \
                                the leader will run its job again");
            self.todo.push_back(JobOrder::Clean { job: lost });
        }
        if self.leader.is_some() {
            self.answer(job);
        }
    }

    /// Sends a result. A leader without leases never says that it has it, so sending settles it.
    fn answer(&mut self, job: Uuid) {
        let Some(stored) = self.results.get(job) else { return };
        let (run, attempt) = (stored.run, stored.attempt);
        let takes_transfers = self.leader.is_some_and(|features| features.has(Features::TRANSFERS));
        let todo = match stored.answer.large.clone().filter(|_| takes_transfers && self.is_leased())
        {
            Some(large) => JobOrder::Return { job, numbers: RunAttempt::new(run, attempt), large },
            None => JobOrder::Answer { job, payload: stored.answer.payload.clone() },
        };
        self.todo.push_back(todo);
        if !self.is_leased() && self.settle(job, run) {
            self.todo.push_back(JobOrder::Clean { job });
        }
    }
}

#[cfg(test)]
#[path = "job_table_tests.rs"]
mod tests;
