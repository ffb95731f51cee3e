//! Explains why a job is where it is, worker by worker, by the scheduler's current rules. It
//! changes nothing.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::broker::Broker;
use super::choose::Choice;
use super::choose::Policy;
use super::dataset::Dataset;
use super::event::WorkerClass;
use super::flagged::Flag;
use super::ids::{CacheId, ClientId, JobId, Micros, Run, WorkerId};
use super::job::{Job, Phase};
use super::lease::LeaseStage;
use super::locality::{At, Cost, Stage};
use super::payload::PayloadKind;
use super::programs::NoProgram;
use super::record::Lack;
use super::subject::RoutingKey;
use super::worker::Worker;

/// Where a job is, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    pub job: JobId,
    /// Which run of it.
    pub run: Run,
    /// Whose it is.
    pub client: ClientId,
    /// Where it belongs.
    pub key: RoutingKey,
    /// Where it stands.
    pub phase: Phase,
    /// By what its worker is, or will be, chosen.
    pub policy: Policy,
    /// The datasets it names.
    pub datasets: Vec<Named>,
    /// What it waits for, if it waits.
    pub waits: Option<WaitsFor>,
    /// How many jobs of its client and key are served before it, if it is queued; at most
    /// [`AHEAD_COUNTED_MAX`](super::queue::AHEAD_COUNTED_MAX).
    pub ahead: Option<usize>,
    /// The workers that are connected, in the order of their ids.
    pub workers: Vec<Seen>,
}

/// A dataset that a job names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub cache: CacheId,
    /// What the leader has under that id.
    pub dataset: Option<Arc<Dataset>>,
}

/// What a job waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitsFor {
    /// Not every worker has what it needs to begin it.
    WorkerLacks {
        /// Who did not have it last.
        worker: WorkerId,
        /// What that is.
        lack: Lack,
        /// When it is tried again, if there is no other to wait for.
        until: Option<Micros>,
    },
    /// The time between two attempts.
    BackOff { until: Micros },
    /// Its client, which has inputs that the leader needs.
    Client,
    /// Its client's other jobs.
    Cap {
        /// Jobs of the client at workers.
        running: u32,
        /// How many may be.
        cap: u32,
    },
    /// A worker that has its datasets, or gets them sooner than others.
    Data {
        worker: WorkerId,
        since: Micros,
        /// Until then, if others have room.
        until: Micros,
    },
    /// Room. It has waited for its data, and goes to any worker now that has no job of its priority
    /// whose data is there.
    Nearer {
        /// Since when it could have been given out.
        since: Micros,
        until: Micros,
    },
    /// A worker that left, or is about to connect: no connected worker that matches has its
    /// program.
    Program { until: Micros },
    /// A worker that matches.
    Worker,
    /// A worker that matches and may have it.
    CapableWorker,
    /// A worker that matches and reads payloads of its kind.
    Reader {
        /// Of which kind its payload is.
        kind: PayloadKind,
    },
    /// An agent, which has to get its inputs or datasets for the classic worker beside it.
    Agent,
    /// Room at one of the workers that may have it.
    Room,
    /// The next leader: this one is about to stop.
    Stop,
    /// Jobs before it. It is next, or will be.
    Turn,
}

impl fmt::Display for WaitsFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WaitsFor::BackOff { .. } => {
                f.write_str("an attempt failed; the next one is not due yet")
            }
            WaitsFor::WorkerLacks { worker, lack, until: Some(_) } => {
                write!(f, "worker {worker} {}: it or another worker is tried next", lack.text())
            }
            WaitsFor::WorkerLacks { worker, lack, until: None } => {
                write!(f, "worker {worker} {}: the job waits for another worker", lack.text())
            }
            WaitsFor::Agent => f.write_str(
                "an agent beside a classic worker first gets its datasets or its staged inputs",
            ),
            WaitsFor::Client => f.write_str("its client, which still has to send inputs"),
            WaitsFor::Cap { running, cap } => {
                let jobs = if *running == 1 { "job" } else { "jobs" };
                write!(f, "its client has {running} {jobs} at workers; its cap is {cap}")
            }
            WaitsFor::Data { worker, .. } => {
                write!(
                    f,
                    "worker {worker} has no free slot, but holds more of its datasets than workers \
                     with free slots"
                )
            }
            WaitsFor::Nearer { .. } => f.write_str(
                "it has waited for its datasets; it takes the next free slot that no same-priority \
                 job with local datasets wants",
            ),
            WaitsFor::Program { .. } => f.write_str(
                "no connected worker that matches its key has its program; it waits for others to \
                 connect, then fails",
            ),
            WaitsFor::Worker => f.write_str("no connected worker matches its key"),
            WaitsFor::CapableWorker => {
                f.write_str("no connected worker that matches its key is eligible")
            }
            WaitsFor::Reader { kind } => {
                write!(
                    f,
                    "a worker that takes {}: no connected worker that matches its key does",
                    kind.text()
                )
            }
            WaitsFor::Room => f.write_str("no eligible worker has a free slot"),
            WaitsFor::Stop => f.write_str("the leader is stopping and assigns no jobs"),
            WaitsFor::Turn => f.write_str("it is queued and waits for its turn"),
        }
    }
}

/// A worker, as seen for a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub id: WorkerId,
    /// What it calls itself.
    pub name: Arc<str>,
    /// What it is.
    pub class: WorkerClass,
    /// Whether it asked for the job's key.
    pub matches: bool,
    /// What it asked for.
    pub patterns: Vec<String>,
    /// Whether it can be given a job.
    pub has_room: bool,
    /// Jobs it may be given.
    pub credit: u32,
    /// Jobs it has that have not ended there.
    pub running: usize,
    /// Jobs that have ended there and whose results are on their way.
    pub returning: usize,
    /// Whether it lost the job's result before.
    pub lost_there: bool,
    /// Whether it can take inputs as transfers.
    pub transfers: bool,
    /// Whether it can be sent datasets.
    pub datasets: bool,
    /// The payloads it reads.
    pub reads: PayloadKind,
    /// The agent that holds datasets for it.
    pub agent: Option<WorkerId>,
    /// What it has of each dataset that the job names and the leader has.
    pub holds: Vec<(CacheId, At)>,
    /// Bytes that it would have to get.
    pub cost: Cost,
    /// What getting them is thought to take.
    pub takes: Duration,
    /// Whether it lists its programs.
    pub lists_programs: bool,
    /// Why it is not given the job's program, if it is not.
    pub no_program: Option<NoProgram>,
    /// Whether the job's program fails there far more often than on others.
    pub flag: Option<Flag>,
    /// What comes of all that.
    pub verdict: Verdict,
}

/// Whether a worker gets a job, and if not, why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It has it.
    HasIt,
    /// It has it next, once it is the job's turn.
    First,
    /// The job waits for it.
    WaitedFor,
    /// It could have it, and another is better.
    Possible,
    /// It could, but has no room.
    NoRoom,
    /// It had no room on its disk for the inputs.
    DiskFull,
    /// It could not use its work directory.
    NoDirectory,
    /// It does not have the job's program, or cannot start it.
    NoProgram,
    /// It has not been heard of for so long that it gets nothing.
    Silent,
    /// It has not answered for an earlier attempt.
    OwesAnswer,
    /// It lost the job's result before.
    LostThere,
    /// It can have it when the agent beside it holds what the job needs: its datasets, or its
    /// inputs, which are made one.
    ByAgent,
    /// It takes no transfers, and the job comes as one.
    NoTransfers,
    /// It reads no payloads of the job's kind.
    CannotRead(PayloadKind),
    /// It cannot be sent the job's datasets.
    NoDatasets,
    /// It did not ask for the job's key.
    NoMatch,
    /// The job is for another worker alone.
    ForAnother,
    /// The job has ended.
    Ended,
}

impl Verdict {
    pub const fn text(self) -> &'static str {
        match self {
            Verdict::HasIt => "has it",
            Verdict::First => "gets it when its turn comes",
            Verdict::WaitedFor => "has its datasets, or most of them: the job waits for it",
            Verdict::Possible => "eligible, but another worker is preferred",
            Verdict::NoRoom => "eligible, but has no free slot",
            Verdict::DiskFull => "had no room on its disk for its inputs",
            Verdict::NoDirectory => "could not use its work directory",
            Verdict::NoProgram => "does not have its program, or cannot start it",
            Verdict::Silent => "has been silent for longer than a lease",
            Verdict::OwesAnswer => "has not answered for an earlier attempt",
            Verdict::LostThere => "lost its result before",
            Verdict::ByAgent => {
                "eligible once the agent beside it holds its datasets or its staged inputs"
            }
            Verdict::NoTransfers => "takes no transfers, and the job needs one",
            Verdict::CannotRead(PayloadKind::Request) => "takes no job requests",
            Verdict::CannotRead(PayloadKind::Folders) => {
                "takes no files in folders or with \"..\" in their names, and the job has some"
            }
            Verdict::CannotRead(PayloadKind::Raw) => "takes no raw payloads, and the job is one",
            Verdict::NoDatasets => "cannot be sent its datasets, and does not have them",
            Verdict::NoMatch => "does not subscribe to its key",
            Verdict::ForAnother => "not eligible: the job is for another worker",
            Verdict::Ended => "not needed: the job has ended",
        }
    }
}

impl Broker {
    /// Where a job is and why; nothing if it is not known.
    pub fn explain(&self, id: JobId) -> Option<Explanation> {
        let job = self.state.job(id)?;
        let datasets = self.known_datasets(job.datasets());
        let named = job.datasets().iter().map(|cache| {
            let dataset = self.state.dataset(cache).cloned();
            Named { cache: cache.clone(), dataset }
        });
        let connected = self.workers.iter().filter(|worker| worker.conn().is_some());
        let mut workers: Vec<Seen> =
            connected.map(|worker| self.seen(job, &datasets, worker)).collect();
        let roomy: Vec<WorkerId> = workers
            .iter()
            .filter(|seen| seen.matches && seen.has_room)
            .map(|seen| seen.id)
            .collect();
        let is_queued = matches!(job.phase, Phase::Queued { .. }) && job.child_of.is_none();
        let choice = if is_queued { self.choose(id, &roomy) } else { Choice::Pass };
        let chosen = match choice {
            Choice::Give(worker) => Some((worker, Verdict::First)),
            Choice::Wait { on, .. } => Some((on, Verdict::WaitedFor)),
            Choice::Late | Choice::Strand | Choice::Elsewhere | Choice::Pass => None,
        };
        if let Some((worker, verdict)) = chosen {
            workers
                .iter_mut()
                .filter(|seen| seen.id == worker)
                .for_each(|seen| seen.verdict = verdict);
        }
        Some(Explanation {
            job: id,
            run: job.run,
            client: job.submission.client.clone(),
            key: job.submission.key.clone(),
            phase: job.phase.clone(),
            policy: self.config.policy,
            datasets: named.collect(),
            waits: self.waits_for(job, &workers, choice),
            ahead: self.queues.ahead_of(&job.submission.key, &job.submission.client, job.place()),
            workers,
        })
    }

    /// Whether a job has ended at its worker, and its result is on its way.
    pub fn is_returning(&self, worker: WorkerId, job: JobId) -> bool {
        let lease = self.workers.get(worker).and_then(|worker| worker.held.get(&job));
        lease.is_some_and(|lease| lease.stage == LeaseStage::Returning)
    }

    fn seen(&self, job: &Job, datasets: &[Arc<Dataset>], worker: &Worker) -> Seen {
        let cost = self.cost(worker.id, datasets);
        Seen {
            id: worker.id,
            name: worker.name.clone(),
            class: worker.class,
            matches: worker.wants(job.submission.key.as_str()),
            patterns: worker.patterns.clone(),
            has_room: worker.has_room(),
            credit: worker.credit,
            running: worker.held.len() - worker.returning(),
            returning: worker.returning(),
            lost_there: job.was_lost_at(worker.id),
            transfers: worker.transfers,
            datasets: worker.datasets,
            reads: worker.reads,
            agent: self.locality.holdings.agent_of(worker.id),
            holds: datasets
                .iter()
                .map(|dataset| (dataset.cache.clone(), self.at(worker.id, dataset)))
                .collect(),
            cost,
            takes: self.span_of_move(worker.id, cost.missing),
            lists_programs: worker.programs.is_some(),
            no_program: self.no_program(worker, &job.submission.exec),
            flag: self.flag(&job.submission.exec, worker.id),
            verdict: self.verdict(job, datasets, worker),
        }
    }

    fn verdict(&self, job: &Job, datasets: &[Arc<Dataset>], worker: &Worker) -> Verdict {
        let is_for = |worker: &Worker| job.child_of.is_none_or(|(_, only)| only == worker.id);
        match () {
            () if self.is_with(job.id(), worker.id) => Verdict::HasIt,
            () if job.has_ended() => Verdict::Ended,
            () if !is_for(worker) => Verdict::ForAnother,
            () if !worker.wants(job.submission.key.as_str()) => Verdict::NoMatch,
            () if job.was_lost_at(worker.id) => Verdict::LostThere,
            () if worker.reads < job.payload_kind() => Verdict::CannotRead(job.payload_kind()),
            () if job.goes_by_transfer() && !worker.transfers => {
                let is_served = self.any_agent(&[worker.id]) && self.can_stage(job);
                let is_needed = is_served && self.lacks_transfers(&job.submission.key).is_some();
                if is_needed { Verdict::ByAgent } else { Verdict::NoTransfers }
            }
            () if !self.may_have_datasets(worker, datasets) => {
                let is_served =
                    job.child_of.is_none() && self.any_agent_may_hold(job.datasets(), &[worker.id]);
                if is_served { Verdict::ByAgent } else { Verdict::NoDatasets }
            }
            // A part of a job to all is tried wherever it is for.
            () if job.child_of.is_none() && self.lacks_program(job, worker) => Verdict::NoProgram,
            () if !worker.is_done_with(job.id()) => Verdict::OwesAnswer,
            () if worker.silent => Verdict::Silent,
            () => match job.lacked_at(worker.id) {
                Some(Lack::Room) => Verdict::DiskFull,
                Some(Lack::Directory) => Verdict::NoDirectory,
                Some(Lack::Program) => Verdict::NoProgram,
                None if !worker.has_room() => Verdict::NoRoom,
                None => Verdict::Possible,
            },
        }
    }

    fn waits_for(&self, job: &Job, workers: &[Seen], choice: Choice) -> Option<WaitsFor> {
        let Phase::Queued { not_before } = job.phase else { return None };
        if self.assigning.contains(job.id()) {
            return None;
        }
        let is_capable = |seen: &Seen| {
            matches!(
                seen.verdict,
                Verdict::HasIt
                    | Verdict::First
                    | Verdict::WaitedFor
                    | Verdict::Possible
                    | Verdict::NoRoom
                    | Verdict::DiskFull
                    | Verdict::NoDirectory
                    | Verdict::Silent
                    | Verdict::OwesAnswer
            )
        };
        let delay = self.locality.delays.get(job.id());
        let since = delay.map_or(self.now, |delay| delay.since);
        let delayed = delay.and_then(|delay| match delay.stage {
            Stage::Late { until } => Some(WaitsFor::Nearer { since, until }),
            Stage::Waiting { on, until } => Some(WaitsFor::Data { worker: on, since, until }),
            Stage::Back | Stage::Stranded | Stage::Elsewhere { .. } => None,
        });
        let lacked_last =
            job.history.last().and_then(|note| note.why.lack().map(|lack| (note.worker, lack)));
        let lacking =
            workers.iter().filter(|seen| seen.matches && seen.has_room).find_map(|seen| {
                let is_why = matches!(seen.verdict, Verdict::DiskFull | Verdict::NoDirectory);
                let lack = job.lacked_at(seen.id).filter(|_| is_why)?;
                Some(WaitsFor::WorkerLacks { worker: seen.id, lack, until: None })
            });
        let waits_for_program = self.waits_for_program(job);
        Some(match choice {
            _ if self.draining => WaitsFor::Stop,
            _ if not_before > self.now => match lacked_last {
                Some((worker, lack)) => {
                    WaitsFor::WorkerLacks { worker, lack, until: Some(not_before) }
                }
                None => WaitsFor::BackOff { until: not_before },
            },
            _ if job.needs_client()
                && !self.queues.contains(
                    &job.submission.key,
                    &job.submission.client,
                    job.place(),
                ) =>
            {
                WaitsFor::Client
            }
            _ if job.is_capped() && !self.may_run(&job.submission.client) => {
                let (running, cap) = (
                    self.state.running(&job.submission.client),
                    self.cap_of(&job.submission.client),
                );
                WaitsFor::Cap { running, cap }
            }
            _ if !workers.iter().any(|seen| seen.matches) => WaitsFor::Worker,
            _ if waits_for_program.is_some() => {
                WaitsFor::Program { until: waits_for_program.unwrap_or(self.now) }
            }
            _ if !workers.iter().any(is_capable) => {
                let by_agent = workers.iter().any(|seen| seen.verdict == Verdict::ByAgent);
                let kind = job.payload_kind();
                let no_reader =
                    workers.iter().filter(|seen| seen.matches).all(|seen| seen.reads < kind);
                match () {
                    () if by_agent => WaitsFor::Agent,
                    () if no_reader => WaitsFor::Reader { kind },
                    () => WaitsFor::CapableWorker,
                }
            }
            Choice::Wait { on, until } => WaitsFor::Data { worker: on, since, until },
            Choice::Give(_) | Choice::Late => delayed.unwrap_or(WaitsFor::Turn),
            Choice::Strand | Choice::Elsewhere | Choice::Pass => {
                delayed.or(lacking).unwrap_or(WaitsFor::Room)
            }
        })
    }
}
