//! Where each job of a worker stands: assigned, waiting for a place, running, ended. It decides what is run, answered,
//! stopped and cleaned up (C05-C07, C17, DD01).
//!
//! Free of I/O, time and chance: the session tells it what came and takes from [`Desk::poll`] what is to be done.

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use chunking::message::{Features, HeldJob};
use tracing::warn;
use uuid::Uuid;

use crate::model::JobStatus;

use super::fit;
use super::handler::{Job, StopReason};
use super::limits::{ASSIGNED_BYTES_MAX, ASSIGNED_MAX};
use super::store::{ResultStore, Stored, same_run};

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Todo {
    /// Say that this attempt is about to run, or runs already.
    SayRunning { job: Uuid, run: u32, attempt: u32 },
    /// Run it.
    Run(Offer, Numbers),
    /// Tell it to stop.
    Stop { job: Uuid, reason: StopReason },
    /// Send its result.
    Answer { job: Uuid, payload: Bytes },
    /// Its result is safe: remove its directory.
    Clean { job: Uuid },
    /// A place is free again. After a job has ended it may be withheld for a moment (CR07).
    ReturnCredit { after_job: bool },
}

/// Run and attempt, as far as the leader said them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    pub(super) run: Option<u32>,
    pub(super) attempt: u32,
}

impl Numbers {
    const UNSAID: Numbers = Numbers { run: None, attempt: 1 };
}

/// A job as it was assigned.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offer {
    pub(super) job: Uuid,
    pub(super) subject: String,
    pub(super) payload: Bytes,
}

#[derive(Debug)]
struct Running {
    numbers: Numbers,
    /// A later run of the same job, which starts when this one has ended.
    next: Option<(Offer, Numbers)>,
}

/// The worker's jobs.
#[derive(Debug)]
pub(super) struct Desk {
    parallel_max: usize,
    /// What the leader can do; none of it for a stock one, `None` while that is not known.
    leader: Option<Features>,
    stopping: bool,
    /// Came, and wait for Start or for word of what the leader can do.
    assigned: Vec<Offer>,
    /// May run, and wait for a place.
    waiting: VecDeque<(Offer, Numbers)>,
    running: HashMap<Uuid, Running>,
    results: ResultStore,
    todo: VecDeque<Todo>,
}

impl Desk {
    pub(super) fn new(parallel_max: usize) -> Self {
        Desk {
            parallel_max,
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
    pub(super) fn restore(&mut self, job: Uuid, numbers: Numbers, payload: Bytes) {
        self.end(job, numbers, payload);
    }

    /// What is to be done next.
    pub(super) fn poll(&mut self) -> Option<Todo> {
        self.todo.pop_front()
    }

    /// Places that are free.
    pub(super) fn room(&self) -> usize {
        match self.stopping {
            true => 0,
            false => self.parallel_max.saturating_sub(self.running.len() + self.waiting.len()),
        }
    }

    pub(super) fn running(&self) -> usize {
        self.running.len()
    }

    pub(super) fn unsettled(&self) -> usize {
        self.results.unsettled().count()
    }

    /// The job's numbers, if it runs.
    pub(super) fn numbers(&self, job: Uuid) -> Option<Numbers> {
        self.running.get(&job).map(|running| running.numbers)
    }

    /// Jobs whose leases a heartbeat renews: those under way, and those whose results the leader has yet to take.
    pub(super) fn held(&self) -> Vec<HeldJob> {
        let held = |job: Uuid, numbers: Numbers| HeldJob {
            job,
            run: numbers.run.unwrap_or(1),
            attempt: numbers.attempt,
        };
        let running = self.running.iter().map(|(job, running)| held(*job, running.numbers));
        let waiting = self.waiting.iter().map(|(offer, numbers)| held(offer.job, *numbers));
        let ended = self
            .results
            .unsettled()
            .map(|(job, stored)| held(job, Numbers { run: stored.run, attempt: stored.attempt }));
        running.chain(waiting).chain(ended).collect()
    }

    /// Whether jobs are run at Start.
    fn leased(&self) -> bool {
        self.leader.is_some_and(|features| features.has(Features::LEASES))
    }

    /// What the leader can do is known: its Welcome came, or the time for it is over. Jobs that came meanwhile run, and
    /// results that the leader does not have are sent again.
    pub(super) fn on_leader(&mut self, features: Features) {
        self.leader = Some(features);
        let unsettled: Vec<(Uuid, Option<u32>, Bytes)> =
            self.results.unsettled().map(|(job, held)| (job, held.run, held.payload.clone())).collect();
        for (job, run, payload) in unsettled {
            self.answer(job, run, payload);
        }
        if !self.leased() {
            for offer in std::mem::take(&mut self.assigned) {
                self.ready(offer, Numbers::UNSAID);
            }
        }
    }

    /// The connection is lost. What has not started is the leader's to give again; the rest goes on.
    pub(super) fn on_lost(&mut self) {
        self.leader = None;
        self.assigned.clear();
        self.waiting.clear();
        self.running.values_mut().for_each(|running| running.next = None);
        let running = &mut self.running;
        self.todo.retain(|todo| match todo {
            Todo::Stop { .. } | Todo::Clean { .. } => true,
            // The leader has not heard that it starts, so it does not.
            Todo::Run(offer, _) => {
                running.remove(&offer.job);
                false
            }
            Todo::SayRunning { .. } | Todo::Answer { .. } | Todo::ReturnCredit { .. } => false,
        });
    }

    /// No more jobs are taken.
    pub(super) fn on_stop(&mut self) {
        self.stopping = true;
        self.assigned.clear();
        self.waiting.clear();
    }

    /// AssignJob.
    pub(super) fn on_assign(&mut self, offer: Offer) {
        if self.stopping {
            return warn!(job = %offer.job, "a job came while the worker stops; it is left to the leader");
        }
        let bytes: usize = self
            .assigned
            .iter()
            .chain(self.waiting.iter().map(|(offer, _)| offer))
            .map(|offer| offer.payload.len())
            .sum();
        let count = self.assigned.len() + self.waiting.len();
        if count >= ASSIGNED_MAX || (count >= self.parallel_max && bytes > ASSIGNED_BYTES_MAX) {
            return warn!(
                job = %offer.job, waiting = count, bytes,
                "the leader assigns far more than the credit it was given; the job is not taken"
            );
        }
        if self.leader.is_some() && !self.leased() {
            return self.ready(offer, Numbers::UNSAID);
        }
        match self.assigned.iter_mut().find(|held| held.job == offer.job) {
            Some(held) => {
                *held = offer;
                self.todo.push_back(Todo::ReturnCredit { after_job: false });
            }
            None => self.assigned.push(offer),
        }
    }

    /// Start.
    pub(super) fn on_start(&mut self, job: Uuid, run: u32, attempt: u32) {
        let numbers = Numbers { run: Some(run), attempt };
        if let Some(at) = self.assigned.iter().position(|offer| offer.job == job) {
            let offer = self.assigned.remove(at);
            self.ready(offer, numbers);
        } else if let Some(running) = self.running.get_mut(&job) {
            // It was run at AssignJob, before the leader's Welcome came.
            running.numbers = numbers;
            self.say_running(job, numbers);
        } else if let Some(stored) = self.results.get(job) {
            let (run, payload) = (stored.run, stored.payload.clone());
            self.answer(job, run, payload);
        } else if !self.stopping {
            warn!(%job, "the leader starts a job that it has not assigned; nothing is run");
        }
    }

    /// A job that may run: unless it does already, or did.
    fn ready(&mut self, offer: Offer, numbers: Numbers) {
        let job = offer.job;
        if let Some(running) = self.running.get_mut(&job) {
            if same_run(running.numbers.run, numbers.run) {
                running.numbers.attempt = numbers.attempt;
                running.numbers.run = numbers.run.or(running.numbers.run);
                let numbers = running.numbers;
                self.say_running(job, numbers);
                self.todo.push_back(Todo::ReturnCredit { after_job: false });
            } else {
                running.next = Some((offer, numbers));
                let text = format!("run {} of the job begins", numbers.run.unwrap_or(1));
                self.todo.push_back(Todo::Stop { job, reason: StopReason::Cancelled { text } });
            }
            return;
        }
        if let Some(stored) = self.results.get(job).filter(|stored| same_run(stored.run, numbers.run)) {
            let (run, payload) = (stored.run, stored.payload.clone());
            self.answer(job, run, payload);
            self.todo.push_back(Todo::ReturnCredit { after_job: false });
            return;
        }
        if let Some((_, held)) = self.waiting.iter_mut().find(|(held, _)| held.job == job) {
            *held = numbers;
            self.todo.push_back(Todo::ReturnCredit { after_job: false });
            return;
        }
        match self.running.len() < self.parallel_max {
            true => self.launch(offer, numbers),
            false => self.waiting.push_back((offer, numbers)),
        }
    }

    fn launch(&mut self, offer: Offer, numbers: Numbers) {
        self.running.insert(offer.job, Running { numbers, next: None });
        self.say_running(offer.job, numbers);
        self.todo.push_back(Todo::Run(offer, numbers));
    }

    fn say_running(&mut self, job: Uuid, numbers: Numbers) {
        if self.leased() {
            let run = numbers.run.unwrap_or(1);
            self.todo.push_back(Todo::SayRunning { job, run, attempt: numbers.attempt });
        }
    }

    /// Cancel. An attempt of 0 means whichever is under way.
    pub(super) fn on_cancel(&mut self, job: Uuid, attempt: u32, text: &str) {
        let reason = StopReason::Cancelled { text: text.to_owned() };
        let meant = |numbers: Numbers| attempt == 0 || attempt == numbers.attempt;
        if self.running.get(&job).is_some_and(|running| meant(running.numbers)) {
            self.todo.push_back(Todo::Stop { job, reason });
        } else if let Some(at) =
            self.waiting.iter().position(|(offer, numbers)| offer.job == job && meant(*numbers))
        {
            if let Some((offer, numbers)) = self.waiting.remove(at) {
                self.never_ran(offer, numbers, &reason);
            }
        } else if let Some(at) = self.assigned.iter().position(|offer| offer.job == job) {
            let offer = self.assigned.remove(at);
            self.never_ran(offer, Numbers { run: None, attempt: attempt.max(1) }, &reason);
        }
    }

    fn never_ran(&mut self, offer: Offer, numbers: Numbers, reason: &StopReason) {
        let job = Job::new(offer.job, offer.subject, offer.payload);
        let mut result = job.failed(format!("{reason}\n"));
        result.run = numbers.run;
        result.status = JobStatus::Cancelled;
        self.give_up(offer.job, fit::encode(result).into());
        self.todo.push_back(Todo::ReturnCredit { after_job: false });
    }

    /// Settled.
    pub(super) fn on_settled(&mut self, job: Uuid, run: u32) {
        if self.results.settle(job, Some(run)) && !self.running.contains_key(&job) {
            self.todo.push_back(Todo::Clean { job });
        }
    }

    /// A job has ended.
    pub(super) fn on_ended(&mut self, job: Uuid, payload: Bytes, given_up: bool) {
        let Some(running) = self.running.remove(&job) else { return };
        match running.next {
            // What became of the earlier run interests nobody any more.
            Some((offer, numbers)) => {
                self.todo.push_back(Todo::Clean { job });
                self.launch(offer, numbers);
            }
            None if given_up => self.give_up(job, payload),
            None => self.end(job, running.numbers, payload),
        }
        if !self.stopping {
            self.todo.push_back(Todo::ReturnCredit { after_job: true });
        }
        if self.running.len() < self.parallel_max
            && let Some((offer, numbers)) = self.waiting.pop_front()
        {
            self.launch(offer, numbers);
        }
    }

    /// Says that a job was given up. That is no result, so it is not kept to answer with again.
    fn give_up(&mut self, job: Uuid, payload: Bytes) {
        if self.leader.is_some() {
            self.todo.push_back(Todo::Answer { job, payload });
        }
        self.todo.push_back(Todo::Clean { job });
    }

    fn end(&mut self, job: Uuid, numbers: Numbers, payload: Bytes) {
        let Numbers { run, attempt } = numbers;
        let stored = Stored { payload: payload.clone(), run, attempt, settled: false };
        for lost in self.results.insert(job, stored) {
            warn!(job = %lost, "too many results wait for the leader; the oldest is given up, the leader will have it run again");
            self.todo.push_back(Todo::Clean { job: lost });
        }
        if self.leader.is_some() {
            self.answer(job, run, payload);
        }
    }

    /// Sends a result. A leader without leases never says that it has it, so sending settles it.
    fn answer(&mut self, job: Uuid, run: Option<u32>, payload: Bytes) {
        self.todo.push_back(Todo::Answer { job, payload });
        if !self.leased() && self.results.settle(job, run) {
            self.todo.push_back(Todo::Clean { job });
        }
    }
}

#[cfg(test)]
#[path = "desk_tests.rs"]
mod tests;
