//! Inputs that come as transfers, in the simulation: the leader's and the workers' part in it.

use heft::core::Event;
use heft::core::event::{Doing, Inputs, Operation, Submission, WorkerClass};
use heft::core::ids::{Attempt, ClientId, ConnId, JobId, Run, Token};
use heft::core::job::{InputsState, Phase};
use heft::core::payload::{FileNames, PayloadKind};
use heft::core::record::AttemptEnd;
use heft::core::subject::routing_key;
use uuid::Uuid;

use super::{PROGRAMS, SECOND, SimClient, SimWorker, Wake, World, is_poison};

impl SimWorker {
    /// Those without ids read anything, and so does every other one of ours.
    pub(crate) fn reads(&self) -> PayloadKind {
        match self.class {
            WorkerClass::OneAtATime => PayloadKind::Raw,
            WorkerClass::Leasing if self.id.0.as_u128().is_multiple_of(2) => PayloadKind::Raw,
            WorkerClass::Leasing => PayloadKind::Folders,
            WorkerClass::Classic => PayloadKind::Request,
        }
    }
}

impl World {
    pub(crate) fn submission(&mut self, client: &ClientId, number: u64, job: u64) -> Submission {
        let exec = PROGRAMS[self.random.below(self.programs) as usize];
        let takes_transfers =
            |worker: &SimWorker| worker.exec == exec && worker.class == WorkerClass::Leasing;
        let can_transfer = self.workers.iter().any(takes_transfers);
        let is_read = self
            .workers
            .iter()
            .any(|worker| worker.exec == exec && worker.reads() == PayloadKind::Raw);
        let is_raw = is_read && self.random.chance(10);
        let takes_folders =
            |worker: &SimWorker| worker.exec == exec && worker.reads() >= PayloadKind::Folders;
        let in_folders = self.workers.iter().any(takes_folders) && self.random.chance(10);
        let can_transfer = can_transfer && !is_raw;
        let inputs =
            if can_transfer && self.random.chance(40) { Inputs::Expected } else { Inputs::Here };
        let names_datasets = can_transfer && self.random.chance(60);
        let datasets = if names_datasets { self.some_caches() } else { Vec::new() };
        Submission {
            job: JobId(Uuid::from_u128(u128::from(number * 1000 + job + 1))),
            client: client.clone(),
            key: routing_key(exec, None).unwrap(),
            exec: if is_raw { "" } else { exec }.into(),
            priority: i64::try_from(self.random.below(3)).unwrap() - 1,
            to_all: !is_raw && self.random.chance(8),
            size: self.random.below(5_000_000),
            fingerprint: [u8::try_from(job % 256).unwrap(); 32],
            inputs,
            needs_transfers: inputs == Inputs::Expected && self.random.chance(70),
            require_worker: self.random.chance(5),
            names: if in_folders { FileNames::Folders } else { FileNames::Plain },
            datasets,
            tag: None,
        }
    }

    /// Who is told to start runs a job that is taken; who is not, one that is announced.
    pub(crate) fn check_start(&self, job: JobId, run: Run, attempt: Attempt, start: bool) {
        let known = self
            .broker
            .state()
            .job(job)
            .unwrap_or_else(|| panic!("{job} is given out and not known"));
        assert_eq!((known.run, known.is_announced()), (run, !start), "{job}");
        if let Phase::Leased { worker, .. } = known.phase {
            let mut holders = self.broker.workers().filter(|known| known.id == worker);
            let reads = holders.next().is_none_or(|worker| worker.reads >= known.payload_kind());
            assert!(reads, "{job} is nothing that its worker reads");
        }
        assert!(
            matches!(known.phase, Phase::Leased { attempt: held, .. } if held == attempt),
            "{job}"
        );
    }

    pub(crate) fn submits(&mut self, conn: ConnId, job: Submission) {
        let (id, inputs) = (job.job, job.inputs);
        self.say(conn, Event::Submit { conn, job });
        if inputs == Inputs::Expected {
            let at = self.now + self.random.below(6 * SECOND);
            self.at(at, Wake::InputsLeave(conn, id));
        }
    }

    /// The inputs of a job have come to the leader over this connection, or something is wrong with
    /// them.
    pub(crate) fn inputs_leave(&mut self, conn: ConnId, job: JobId) {
        let known = self.broker.state().job(job);
        if known.is_some_and(|job| !job.is_announced()) && !self.random.chance(5) {
            return;
        }
        let leased = known.is_some_and(|job| matches!(job.phase, Phase::Leased { .. }));
        let event = match self.random.below(100) {
            0..4 => Event::InputsFailed { job, why: "wrong digest".into() },
            4..8 => Event::Withdraw { job },
            8..12 => {
                let operation = Operation::Cancel { job, by: "ops".into() };
                Event::Operate { token: Token(0), operation }
            }
            _ => Event::InputsHere { job, kept: !leased || self.random.chance(50) },
        };
        self.say(conn, event);
    }

    /// A worker that has all inputs of a job and may start it does.
    pub(crate) fn run_if_whole(&mut self, number: usize, job: JobId) {
        let worker = &mut self.workers[number];
        let Some(held) = worker.receiving.get(&job).copied().filter(|held| held.whole) else {
            return;
        };
        let Some(run) = held.run else { return };
        worker.receiving.remove(&job);
        worker.running.insert(job, (run, held.attempt));
        let (conn, life) = (worker.conn, worker.life);
        if let Some(conn) = conn {
            self.say(
                conn,
                Event::Progress { conn, job, run, attempt: held.attempt, doing: Doing::Running },
            );
        }
        let at = self.now + self.takes();
        let end = if is_poison(job) {
            Wake::Poisoned(number, life)
        } else {
            Wake::JobEnds(number, life, job)
        };
        self.at(at, end);
    }

    /// The leader has sent a worker what it has of a job's inputs.
    pub(crate) fn inputs_at_worker(
        &mut self,
        number: usize,
        conn: ConnId,
        job: JobId,
        attempt: Attempt,
    ) {
        let worker = &self.workers[number];
        let held = worker.receiving.get(&job).filter(|held| held.attempt == attempt && !held.whole);
        if worker.conn != Some(conn) || held.is_none() {
            return;
        }
        let is_kept =
            self.broker.state().job(job).is_some_and(|job| job.inputs == InputsState::Kept);
        let has_client =
            |client: &SimClient| client.conn.is_some() && client.open.contains_key(&job);
        let why = match self.random.below(100) {
            _ if !is_kept && !self.clients.iter().any(has_client) => {
                Some(AttemptEnd::InputsStalled)
            }
            0..4 => Some(AttemptEnd::DiskFull),
            4..8 => Some(AttemptEnd::InputsBad),
            8..12 => Some(AttemptEnd::InputsStalled),
            _ => None,
        };
        match why {
            Some(why) => self.tell(Event::InputsRefused { job, attempt, why }),
            None => {
                if let Some(held) = self.workers[number].receiving.get_mut(&job) {
                    held.whole = true;
                }
                self.run_if_whole(number, job);
            }
        }
    }
}
