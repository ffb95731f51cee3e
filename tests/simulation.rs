//! The broker in a lossy, slow, crashing world over virtual time, seeded.
//!
//! Clients submit and come back, workers of every class run jobs, lose connections, crash and
//! answer twice; commits take their time. Of some jobs the inputs come as transfers: they are
//! announced, taken, withdrawn, refused by workers, stalled and resumed. Some name datasets, which
//! come and go. After every step the books must balance; once the faults stop, every job must end,
//! with one visible result. A failure prints its seed: `HEFT_SIM_SEED=n scripts/test simulation`
//! replays it.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::indexing_slicing)]
#![allow(clippy::cast_possible_truncation, clippy::wildcard_enum_match_arm)]

#[path = "simulation/clients.rs"]
mod clients;
#[path = "simulation/coverage.rs"]
mod coverage;
#[path = "simulation/datasets.rs"]
mod datasets;
#[path = "simulation/ends.rs"]
mod ends;
#[path = "simulation/faults.rs"]
mod faults;
#[path = "simulation/inputs.rs"]
mod inputs;
#[path = "simulation/programs.rs"]
mod programs;
#[path = "simulation/stranger.rs"]
mod stranger;
mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use coverage::Coverage;
use heft::core::action::{Action, Assignment, Operated, WorkerOrder};
use heft::core::choose::Policy;
use heft::core::event::{
    ClaimedAttempt, Doing, Inputs, Operation, Outcome, Submission, WorkerClass,
};
use heft::core::ids::{
    Attempt, ClientId, ConnId, Index, JobId, Micros, ResultId, Run, Token, WorkerId,
};
use heft::core::job::{Ending, Job, Phase};
use heft::core::retry::mix;
use heft::core::worker::Hello;
use heft::core::{Broker, Config, Event, Record};
use support::scaled;
use uuid::Uuid;

const SECOND: u64 = 1_000_000;
const FAULTS_END: u64 = 60 * SECOND;
const WORLD_END: u64 = 4000 * SECOND;
const CAP: u32 = 3;
const PROGRAMS: [&str; 2] = ["a", "b"];

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        mix(self.0)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end.max(1)
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
}

/// What travels to the broker or wakes someone up.
#[derive(Clone, Debug)]
enum Wake {
    /// An event arrives, if its connection still lives.
    ToBroker(ConnId, Event),
    Commit(Index),
    /// A message arrives at a peer, if the connection still lives.
    ToPeer(ConnId, Action),
    WorkerConnects(usize),
    WorkerBeats(usize, u64),
    JobEnds(usize, u64, JobId),
    /// A result is at the leader that was on its way while other jobs ran.
    ResultComes(usize, u64, ConnId, JobId),
    /// A job that kills its worker.
    Poisoned(usize, u64),
    WorkerFault(usize),
    /// The last inputs of a job leave its client.
    InputsLeave(ConnId, JobId),
    /// The inputs of a job would be at the worker, if they came on.
    InputsAtWorker(usize, ConnId, JobId, Attempt),
    Revive(JobId),
    Retry(JobId),
    DropInputs(JobId),
    ClientConnects(usize),
    ClientSubmits(usize),
    ClientFault(usize),
    /// A worker loses its program, or gets it back.
    Programs(usize),
    /// Something happens to a dataset.
    Data,
    /// Somebody answers for jobs that it was never given.
    Stranger,
    Tick,
}

struct SimWorker {
    id: WorkerId,
    class: WorkerClass,
    exec: &'static str,
    max_par: u32,
    conn: Option<ConnId>,
    /// Changes with each crash: what was to happen before does not any more.
    life: u64,
    /// Jobs that run, with their run and attempt.
    running: BTreeMap<JobId, (Run, Attempt)>,
    /// Jobs whose inputs it receives, or that it may not start yet.
    receiving: BTreeMap<JobId, Receiving>,
    /// Results that are kept: until settled by ours, for good by a classic worker's dedup, which
    /// has no result.
    finished: BTreeMap<JobId, (Run, Attempt, bool)>,
    /// Whether its program is there, and whether it lists its programs.
    has_program: bool,
    lists_programs: bool,
}

/// A job at a worker before it runs.
#[derive(Clone, Copy)]
struct Receiving {
    attempt: Attempt,
    /// The run, once it may start.
    run: Option<Run>,
    whole: bool,
}

struct SimClient {
    id: ClientId,
    conn: Option<ConnId>,
    /// Jobs that were submitted and have no result.
    open: BTreeMap<JobId, Submission>,
    to_submit: Vec<Submission>,
    /// Whether it hands jobs in again that were taken: a classic client does not, and gets results
    /// only as they are pushed.
    asks_again: bool,
    /// Those of them.
    taken: BTreeSet<JobId>,
}

struct World {
    coverage: Coverage,
    random: Random,
    now: u64,
    broker: Broker,
    agenda: BTreeMap<(u64, u64), Wake>,
    order: u64,
    /// Live connections and when their last message in either direction arrives: TCP keeps the
    /// order.
    conns: BTreeMap<ConnId, (u64, u64)>,
    next_conn: u64,
    next_result: u64,
    workers: Vec<SimWorker>,
    clients: Vec<SimClient>,
    /// Results that were sent, and that the broker does not know to be there.
    unconfirmed: BTreeMap<(ConnId, JobId), Run>,
    /// What clients have seen of a job: the result it stands for, by run.
    seen: BTreeMap<(JobId, Run), Ending>,
    /// Who was given which run of a job.
    given: BTreeSet<(JobId, Run, WorkerId)>,
    stranger: Option<ConnId>,
    ended_at_client: BTreeSet<JobId>,
    forgotten_results: BTreeSet<ResultId>,
    commit_at: u64,
    /// How much faster than usual jobs are submitted.
    hurry: u64,
    /// How many of the programs there are: with one, all workers are for all jobs.
    programs: u64,
    tick_at: Option<u64>,
}

impl SimWorker {
    /// Jobs that take its room.
    fn load(&self) -> usize {
        self.running.len() + self.receiving.len()
    }
}

impl World {
    fn new(seed: u64) -> World {
        let mut random = Random(mix(seed));
        let policy = if random.chance(40) {
            Policy::Locality
        } else {
            Policy::ALL[random.below(6) as usize]
        };
        let config = Config {
            policy,
            classic_ack_timeout: random.chance(20),
            attempts_max: [2, 6, 6, 50][random.below(4) as usize],
            input_wait: Duration::from_secs([1, 5, 60][random.below(3) as usize]),
            ..Config::default()
        };
        let mut world = World {
            coverage: Coverage::default(),
            now: 0,
            broker: Broker::new(config),
            agenda: BTreeMap::new(),
            order: 0,
            conns: BTreeMap::new(),
            next_conn: 0,
            next_result: 0,
            workers: Vec::new(),
            clients: Vec::new(),
            unconfirmed: BTreeMap::new(),
            seen: BTreeMap::new(),
            given: BTreeSet::new(),
            stranger: None,
            ended_at_client: BTreeSet::new(),
            forgotten_results: BTreeSet::new(),
            commit_at: 0,
            programs: if random.chance(40) { 1 } else { 2 },
            hurry: if random.chance(30) { 20 } else { 1 },
            tick_at: None,
            random,
        };
        // In most worlds nothing happens to programs, and all else as if there were none.
        let mut of_programs = Random(mix(seed ^ 0x5eed));
        let change_programs = of_programs.chance(30);
        for number in 0..2 + world.random.below(4) {
            let class = match world.random.below(4) {
                0 => WorkerClass::Classic,
                1 => WorkerClass::OneAtATime,
                _ => WorkerClass::Leasing,
            };
            // Every program has a worker that can always take it.
            let exec = PROGRAMS[(if number < 2 { number } else { world.random.below(2) }
                % world.programs) as usize];
            let max_par = 1 + u32::try_from(world.random.below(3)).unwrap();
            let id = WorkerId(Uuid::from_u128(1000 + u128::from(number)));
            world.workers.push(SimWorker {
                id,
                class,
                exec,
                max_par,
                conn: None,
                life: 0,
                running: BTreeMap::new(),
                receiving: BTreeMap::new(),
                finished: BTreeMap::new(),
                has_program: true,
                lists_programs: of_programs.chance(50),
            });
            if class == WorkerClass::Leasing && change_programs && of_programs.chance(70) {
                let at = of_programs.below(20 * SECOND);
                world.at(at, Wake::Programs(number as usize));
            }
            let at = world.random.below(3 * SECOND);
            world.at(at, Wake::WorkerConnects(number as usize));
            let fault = world.random.below(30 * SECOND);
            world.at(fault, Wake::WorkerFault(number as usize));
        }
        for number in 0..1 + world.random.below(3) {
            let id = ClientId::from(format!("client-{number}").as_str());
            let jobs = 1 + world.random.below(25);
            let to_submit = (0..jobs).map(|job| world.submission(&id, number, job)).collect();
            let asks_again = world.random.chance(50);
            world.clients.push(SimClient {
                id,
                to_submit,
                asks_again,
                conn: None,
                open: BTreeMap::new(),
                taken: BTreeSet::new(),
            });
            let at = world.random.below(3 * SECOND);
            world.at(at, Wake::ClientConnects(number as usize));
            let fault = world.random.below(40 * SECOND);
            world.at(fault, Wake::ClientFault(number as usize));
        }
        if world.random.chance(70) {
            world.at(0, Wake::Data);
        }
        if world.random.chance(70) {
            world.at(0, Wake::Stranger);
        }
        world
    }

    fn at(&mut self, at: u64, wake: Wake) {
        self.order += 1;
        self.agenda.insert((at.max(self.now), self.order), wake);
    }

    fn faulty(&self) -> bool {
        self.now < FAULTS_END
    }

    /// A message to the broker, behind all that went before it on the connection.
    fn say(&mut self, conn: ConnId, event: Event) {
        let delay = 1 + self.random.below(20_000);
        let Some((to_broker, _)) = self.conns.get_mut(&conn) else { return };
        *to_broker = (*to_broker).max(self.now + delay) + 1;
        let at = *to_broker;
        self.at(at, Wake::ToBroker(conn, event));
    }

    /// The leader keeps what an ack brings under a number of its own, also if it is the same again.
    fn new_result(&mut self) -> ResultId {
        self.next_result += 1;
        ResultId(self.next_result)
    }

    fn open(&mut self) -> ConnId {
        self.next_conn += 1;
        let conn = ConnId(self.next_conn);
        self.conns.insert(conn, (self.now, self.now));
        conn
    }

    /// The connection breaks: what is on its way is lost, and the broker notices sooner or later.
    fn cut(&mut self, conn: ConnId) {
        if self.conns.remove(&conn).is_some() {
            let at = self.now + self.random.below(2 * SECOND);
            self.at(at, Wake::ToBroker(conn, Event::Closed { conn }));
        }
    }

    fn run(&mut self) {
        while let Some(((at, _), wake)) = self.agenda.pop_first() {
            assert!(at < WORLD_END, "the world does not come to rest: {:?}", self.unfinished());
            self.now = at;
            self.wake(wake);
            self.check();
            if !self.faulty() && self.at_rest() {
                return self.leave_nothing_behind();
            }
        }
        assert!(
            self.at_rest(),
            "nothing happens any more, and jobs are open: {:?}",
            self.unfinished()
        );
    }

    fn at_rest(&self) -> bool {
        self.clients.iter().all(|client| client.to_submit.is_empty() && client.open.is_empty())
            && self.broker.state().jobs().all(Job::has_ended)
            && !self
                .agenda
                .values()
                .any(|wake| matches!(wake, Wake::Commit(_) | Wake::Revive(_) | Wake::Retry(_)))
    }

    /// All peers go and time passes: of jobs that ended long ago nothing is left.
    fn leave_nothing_behind(&mut self) {
        let conns: Vec<ConnId> = self.conns.keys().copied().collect();
        self.conns.clear();
        for conn in conns {
            self.tell_closed(conn);
        }
        let is_commit =
            |wake: &Wake| matches!(wake, Wake::Commit(_) | Wake::ToBroker(_, Event::Closed { .. }));
        for _ in 0..10_000 {
            let next = self.agenda.iter().find(|(_, wake)| is_commit(wake)).map(|(at, _)| *at);
            if let Some(wake) = next.and_then(|at| self.agenda.remove(&at)) {
                self.wake(wake);
            } else if let Some(due) = self.broker.next_deadline() {
                self.now = self.now.max(due.0);
                self.tell(Event::Tick);
            } else if self.broker.state().job_count() > 0 {
                self.tell(Event::Operate {
                    token: Token(0),
                    operation: Operation::Purge { job: None },
                });
            } else {
                break;
            }
        }
        let jobs: Vec<&Job> = self.broker.state().jobs().collect();
        assert_eq!(
            (jobs, self.broker.due_count(), self.broker.note_count()),
            (vec![], 0, 0),
            "a leak"
        );
        assert_eq!(self.broker.workers().count(), 0);
    }

    fn unfinished(&self) -> Vec<String> {
        let open = self.clients.iter().flat_map(|client| client.open.keys());
        open.map(|job| format!("{job}: {:?}", self.broker.state().job(*job).map(|job| &job.phase)))
            .collect()
    }

    /// A connection has ended: so the leader tells what it may not have brought there.
    fn tell_closed(&mut self, conn: ConnId) {
        self.tell(Event::Closed { conn });
        let lost: Vec<(ConnId, JobId)> =
            self.unconfirmed.keys().filter(|(on, _)| *on == conn).copied().collect();
        for key in lost {
            self.unconfirmed.remove(&key);
            self.coverage.undelivered += 1;
            self.tell(Event::NotDelivered { job: key.1 });
        }
    }

    fn tell(&mut self, event: Event) {
        self.broker.handle(Micros(self.now), event);
        while let Some(action) = self.broker.poll_action() {
            self.act(action);
        }
        let due = self.broker.next_deadline().map(|at| at.0.max(self.now));
        if let Some(due) =
            due.filter(|due| self.tick_at.is_none_or(|at| at > *due || at < self.now))
        {
            self.tick_at = Some(due);
            self.at(due, Wake::Tick);
        }
    }

    fn act(&mut self, action: Action) {
        let conn = match &action {
            Action::Commit { index, record } => {
                self.coverage.note(record);
                if let Record::Assign { job, run, worker, .. } = record {
                    self.given.insert((*job, *run, *worker));
                }
                if let Record::Ack { job, run, worker, .. } = record {
                    assert!(
                        self.given.contains(&(*job, *run, *worker)),
                        "{worker} ends {job}, which it never had"
                    );
                }
                if let Record::Dlq { job, .. } = record
                    && !is_poison(*job)
                    && self.random.chance(50)
                {
                    let at = self.now + self.random.below(10 * SECOND);
                    self.at(at, Wake::Revive(*job));
                }
                if let Record::Ack { job, ok: false, .. } | Record::Fail { job, .. } = record {
                    for (wake, chance) in [(Wake::Retry(*job), 50), (Wake::DropInputs(*job), 20)] {
                        if self.random.chance(chance) {
                            let at = self.now + self.random.below(10 * SECOND);
                            self.at(at, wake);
                        }
                    }
                }
                // In order, at their own pace.
                let delay = if self.random.chance(70) { 0 } else { self.random.below(5_000) };
                self.commit_at = self.commit_at.max(self.now + delay);
                let (at, index) = (self.commit_at, *index);
                return self.at(at, Wake::Commit(index));
            }
            Action::ForgetResult { result } => {
                self.coverage.stale_results += 1;
                self.forgotten_results.insert(*result);
                return;
            }
            Action::Operated { answer, .. } => {
                let is_retry = matches!(answer, Ok(Operated::Retried { .. }));
                self.coverage.retried += u64::from(is_retry);
                return;
            }
            Action::AckRefused { .. } => {
                self.coverage.acks_refused += 1;
                return;
            }
            Action::Ended { .. }
            | Action::ForgetInput { .. }
            | Action::RetainInput { .. }
            | Action::ReuseInput { .. }
            | Action::DatasetPut { .. }
            | Action::DatasetRemoved { .. }
            | Action::AskAgent { .. }
            | Action::StageInputs { .. } => return,
            Action::Close { conn, .. } => {
                let conn = *conn;
                self.conns.remove(&conn);
                return self.at(self.now, Wake::ToBroker(conn, Event::Closed { conn }));
            }
            Action::Deliver { conn, job, run } => {
                // What is delivered is looked at now: the driver takes the bytes when it acts.
                let (conn, job, run) = (*conn, *job, *run);
                self.note_result(job, run);
                self.unconfirmed.insert((conn, job), run);
                conn
            }
            Action::Assign(held)
            | Action::Worker(WorkerOrder::Resume(held) | WorkerOrder::Start(held)) => {
                self.check_start(held.job, held.run, held.attempt, held.start);
                let is =
                    |wanted: fn(Assignment) -> WorkerOrder| action == Action::Worker(wanted(*held));
                self.coverage.resumed += u64::from(is(WorkerOrder::Resume));
                self.coverage.started += u64::from(is(WorkerOrder::Start));
                held.conn
            }
            Action::Worker(
                WorkerOrder::Abandon { conn, .. } | WorkerOrder::Settle { conn, .. },
            )
            | Action::Submitted { conn, .. }
            | Action::Refuse { conn, .. }
            | Action::Waiting { conn, .. }
            | Action::AskPrograms { conn }
            | Action::Running { conn, .. } => *conn,
        };
        let delay = 1 + self.random.below(20_000);
        if let Some((_, to_peer)) = self.conns.get_mut(&conn) {
            *to_peer = (*to_peer).max(self.now + delay) + 1;
            let at = *to_peer;
            self.at(at, Wake::ToPeer(conn, action));
        }
    }

    /// One visible result for each run of a job, and its bytes are still there.
    fn note_result(&mut self, job: JobId, run: Run) {
        let known = self
            .broker
            .state()
            .job(job)
            .unwrap_or_else(|| panic!("{job} is delivered and not known"));
        assert_eq!(known.run, run);
        let ending = match &known.phase {
            Phase::Done { ending, .. } => ending.clone(),
            Phase::Dead { .. } => Ending::Orphaned,
            other => panic!("{job} is delivered and {other:?}"),
        };
        if let Ending::Returned { result, .. } = &ending {
            assert!(!self.forgotten_results.contains(result), "{job}: its result was dropped");
        }
        let first = self.seen.entry((job, run)).or_insert_with(|| ending.clone());
        assert_eq!(*first, ending, "{job} has two visible results");
    }

    fn wake(&mut self, wake: Wake) {
        match wake {
            Wake::ToBroker(conn, event) => {
                if self.conns.contains_key(&conn) || matches!(event, Event::Closed { .. }) {
                    if let Event::InputsFailed { job, .. } | Event::Withdraw { job } = &event
                        && self.broker.state().job(*job).is_none_or(|job| job.is_announced())
                    {
                        // The leader tells the client itself.
                        for client in &mut self.clients {
                            client.open.remove(job);
                        }
                    }
                    match event {
                        Event::Closed { conn } => self.tell_closed(conn),
                        Event::Delivered { job, .. } => {
                            self.unconfirmed.remove(&(conn, job));
                            self.tell(event);
                        }
                        event => self.tell(event),
                    }
                }
            }
            Wake::Commit(index) => self.tell(Event::Committed { index }),
            Wake::Tick => {
                self.tick_at = None;
                self.tell(Event::Tick);
            }
            Wake::ToPeer(conn, action) => {
                if self.conns.contains_key(&conn) {
                    self.hear(conn, &action);
                }
            }
            Wake::WorkerConnects(number) => self.worker_connects(number),
            Wake::WorkerBeats(number, life) => self.worker_beats(number, life),
            Wake::JobEnds(number, life, job) => self.job_ends(number, life, job),
            Wake::ResultComes(number, life, conn, job) => {
                self.result_comes(number, life, conn, job)
            }
            Wake::Poisoned(number, life) => {
                if self.workers[number].life == life {
                    self.worker_dies(number, true);
                    self.at(self.now + SECOND, Wake::WorkerConnects(number));
                }
            }
            Wake::InputsLeave(conn, job) => self.inputs_leave(conn, job),
            Wake::InputsAtWorker(number, conn, job, attempt) => {
                self.inputs_at_worker(number, conn, job, attempt);
            }
            Wake::Revive(job) => {
                self.coverage.revived += 1;
                self.tell(Event::Operate {
                    token: Token(0),
                    operation: Operation::Revive { job: Some(job) },
                });
            }
            Wake::Retry(job) => {
                let operation = Operation::Retry { job };
                self.tell(Event::Operate { token: Token(0), operation });
            }
            Wake::DropInputs(job) => self.tell(Event::DropInputs { job }),
            Wake::WorkerFault(number) => self.worker_fault(number),
            Wake::ClientConnects(number) => self.client_connects(number),
            Wake::ClientSubmits(number) => self.client_submits(number),
            Wake::ClientFault(number) => self.client_fault(number),
            Wake::Programs(number) => self.programs_change(number),
            Wake::Data => self.data_happens(),
            Wake::Stranger => self.stranger_speaks(),
        }
    }

    fn hear(&mut self, conn: ConnId, action: &Action) {
        if let Some(number) = self.workers.iter().position(|worker| worker.conn == Some(conn)) {
            self.worker_hears(number, action);
        } else if let Some(number) =
            self.clients.iter().position(|client| client.conn == Some(conn))
        {
            self.client_hears(number, action);
        }
    }

    // --- workers

    fn worker_connects(&mut self, number: usize) {
        if self.workers[number].conn.is_some() {
            return;
        }
        let conn = self.open();
        let worker = &mut self.workers[number];
        worker.conn = Some(conn);
        let leasing = worker.class == WorkerClass::Leasing;
        let (id, class, life) = (worker.id, worker.class, worker.life);
        let patterns = vec![format!("job.assign.{}", worker.exec)];
        let credit = i32::try_from(worker.max_par).unwrap() - i32::try_from(worker.load()).unwrap();
        let parallel_max = leasing.then_some(worker.max_par);
        let held = inventory(worker);
        let results: Vec<_> = worker.finished.iter().map(|(job, kept)| (*job, *kept)).collect();
        let reads = worker.reads();
        let programs = worker.programs();
        self.say(
            conn,
            Event::WorkerHello(Hello {
                conn,
                worker: id,
                name: "sim".into(),
                class,
                patterns,
                parallel_max,
                transfers: leasing,
                datasets: leasing,
                reads,
                programs,
            }),
        );
        if leasing {
            self.say(conn, Event::Heartbeat { conn, cpu_permille: 100, credit: 0, held });
            for (job, (run, attempt, ok)) in results {
                let result = self.new_result();
                self.say(conn, returned(conn, job, (run, attempt), result, ok));
            }
            self.at(self.now + SECOND, Wake::WorkerBeats(number, life));
        }
        self.say(conn, Event::Credit { conn, delta: credit });
    }

    fn worker_beats(&mut self, number: usize, life: u64) {
        let worker = &self.workers[number];
        let Some(conn) = worker.conn.filter(|_| worker.life == life) else { return };
        let held = inventory(worker);
        let cpu_permille = u16::try_from(self.random.below(1000)).unwrap();
        self.say(conn, Event::Heartbeat { conn, cpu_permille, credit: 0, held });
        self.at(self.now + SECOND, Wake::WorkerBeats(number, life));
    }

    fn worker_hears(&mut self, number: usize, action: &Action) {
        let by_transfer = |job: JobId, world: &World| {
            world
                .broker
                .state()
                .job(job)
                .is_some_and(|job| job.submission.inputs == Inputs::Expected)
        };
        if self.hears_of_programs(number, action) {
            return;
        }
        let worker = &self.workers[number];
        let conn = worker.conn.unwrap();
        match action {
            Action::Assign(Assignment { job, run, attempt, worker: id, start, .. })
                if worker.class == WorkerClass::Leasing
                    && !worker.running.contains_key(job)
                    && !worker.finished.contains_key(job)
                    && (!start || by_transfer(*job, self)) =>
            {
                assert_eq!(*id, worker.id, "a job for another worker");
                let (job, attempt) = (*job, *attempt);
                let run = start.then_some(*run);
                let worker = &mut self.workers[number];
                worker.receiving.insert(job, Receiving { attempt, run, whole: false });
                assert!(
                    worker.load() <= worker.max_par as usize,
                    "more jobs than the worker has room for"
                );
                let at = self.now + self.random.below(4 * SECOND);
                return self.at(at, Wake::InputsAtWorker(number, conn, job, attempt));
            }
            Action::Worker(WorkerOrder::Start(Assignment { job, run, attempt, .. })) => {
                let held = self.workers[number]
                    .receiving
                    .get_mut(job)
                    .filter(|held| held.attempt == *attempt);
                if let Some(held) = held {
                    held.run = Some(*run);
                }
                return self.run_if_whole(number, *job);
            }
            Action::Worker(WorkerOrder::Resume(Assignment {
                job, run, attempt, start, ..
            })) => {
                let held = self.workers[number]
                    .receiving
                    .get_mut(job)
                    .filter(|held| held.attempt == *attempt);
                if let Some(held) = held {
                    held.run = start.then_some(*run);
                    let at = self.now + self.random.below(4 * SECOND);
                    self.at(at, Wake::InputsAtWorker(number, conn, *job, *attempt));
                }
                return self.run_if_whole(number, *job);
            }
            _ => {}
        }
        let takes = self.takes();
        let worker = &mut self.workers[number];
        match action {
            Action::Assign(Assignment { job, run, attempt, worker: id, start, .. }) => {
                assert_eq!(*id, worker.id, "a job for another worker");
                assert!(
                    *start || worker.class == WorkerClass::Leasing,
                    "a classic worker cannot wait"
                );
                let life = worker.life;
                if let Some(held) = worker.running.get_mut(job) {
                    // It runs already: the new attempt takes it over, and the credit comes back
                    // with its end.
                    *held = (*run, *attempt);
                    return;
                }
                let leases = worker.class == WorkerClass::Leasing;
                let finished = worker.finished.get(job).copied();
                if let Some((had, kept, ok)) = finished.filter(|(had, ..)| !leases || had == run) {
                    let answer = if leases {
                        returned(conn, *job, (had, kept), self.new_result(), ok)
                    } else {
                        let (named, outcome) = (ClaimedAttempt::default(), Outcome::ResultLost);
                        Event::Ack { conn, job: *job, named, outcome }
                    };
                    self.say(conn, answer);
                    return self.say(conn, Event::Credit { conn, delta: 1 });
                }
                worker.finished.remove(job);
                worker.running.insert(*job, (*run, *attempt));
                assert!(
                    worker.load() <= worker.max_par as usize,
                    "more jobs than the worker has room for"
                );
                if worker.class == WorkerClass::Leasing {
                    self.say(
                        conn,
                        Event::Progress {
                            conn,
                            job: *job,
                            run: *run,
                            attempt: *attempt,
                            doing: Doing::Running,
                        },
                    );
                }
                if is_poison(*job) {
                    self.at(self.now + takes, Wake::Poisoned(number, life));
                } else {
                    self.at(self.now + takes, Wake::JobEnds(number, life, *job));
                }
            }
            Action::Worker(WorkerOrder::Abandon { job, attempt, .. }) => {
                self.coverage.abandoned += 1;
                let runs = worker.running.get(job).is_some_and(|(_, held)| held == attempt);
                let receives =
                    worker.receiving.get(job).is_some_and(|held| held.attempt == *attempt);
                if runs || receives {
                    worker.running.remove(job);
                    worker.receiving.remove(job);
                    let (named, outcome) = (ClaimedAttempt::default(), Outcome::GivenUp);
                    self.say(conn, Event::Ack { conn, job: *job, named, outcome });
                    self.say(conn, Event::Credit { conn, delta: 1 });
                }
            }
            Action::Worker(WorkerOrder::Settle { job, run, .. }) => {
                worker.finished.retain(|kept, (had, ..)| kept != job || had != run);
            }
            other => panic!("a worker hears {other:?}"),
        }
    }

    // --- the books

    fn check(&self) {
        let state = self.broker.state();
        let mut running: BTreeMap<&ClientId, u32> = BTreeMap::new();
        for job in state.jobs() {
            if let (Phase::Leased { .. }, None) = (&job.phase, job.child_of) {
                *running.entry(&job.submission.client).or_default() += 1;
            }
            assert!(
                job.spent <= 50 && job.history.len() <= 200,
                "{} is delivered for ever",
                job.id()
            );
        }
        for client in &self.clients {
            let running = running.get(&client.id).copied().unwrap_or_default();
            assert_eq!(
                state.running(&client.id),
                running,
                "{}: the count of running jobs",
                client.id
            );
            assert!(running <= CAP.max(4), "{}: over its cap", client.id);
        }
        for worker in self.broker.workers() {
            let Some(sim) = self.workers.iter().find(|sim| sim.id == worker.id) else { continue };
            let promised = worker.credit as usize + worker.held.len() - worker.returning();
            assert!(
                promised <= sim.max_par as usize,
                "{}: {promised} of {}",
                worker.id,
                sim.max_par
            );
        }
    }
}

/// An answer with a result. Brokers look at what it names only if its worker leases.
fn returned(
    conn: ConnId,
    job: JobId,
    (run, attempt): (Run, Attempt),
    result: ResultId,
    ok: bool,
) -> Event {
    let named = ClaimedAttempt { run: Some(run), attempt: Some(attempt) };
    Event::Ack { conn, job, named, outcome: Outcome::Returned { result, ok } }
}

/// One job in thirty kills whatever runs it.
fn is_poison(job: JobId) -> bool {
    mix(job.0.as_u64_pair().1).is_multiple_of(30)
}

fn inventory(worker: &SimWorker) -> Vec<(JobId, Run, Attempt)> {
    let running = worker.running.iter().map(|(job, (run, attempt))| (*job, *run, *attempt));
    let receiving = worker.receiving.iter();
    let receiving = receiving.map(|(job, held)| (*job, held.run.unwrap_or(Run(0)), held.attempt));
    running
        .chain(receiving)
        .chain(worker.finished.iter().map(|(job, (run, attempt, ..))| (*job, *run, *attempt)))
        .collect()
}

#[test]
fn simulation_in_a_world_of_faults_no_job_is_lost_and_none_has_two_results() {
    let seeds = match std::env::var("HEFT_SIM_SEED") {
        Ok(seed) => {
            let seed: u64 = seed.parse().expect("HEFT_SIM_SEED is a number");
            seed..seed + 1
        }
        Err(_) => 0..u64::from(scaled(500, 2000)),
    };
    let whole = seeds.end - seeds.start > 1;
    let mut coverage = Coverage::default();
    for seed in seeds {
        let ran = std::panic::catch_unwind(|| {
            let mut world = World::new(seed);
            world.run();
            world.coverage
        });
        match ran {
            Ok(seen) => coverage.add(seen),
            Err(panic) => {
                eprintln!("HEFT_SIM_SEED={seed} scripts/test simulation");
                std::panic::resume_unwind(panic);
            }
        }
    }
    println!("{coverage:?}");
    let counts = [
        coverage.results,
        coverage.dead,
        coverage.orphans,
        coverage.stale_results,
        coverage.abandoned,
    ];
    let of_inputs = [
        coverage.announced,
        coverage.withdrawn,
        coverage.failed,
        coverage.started,
        coverage.resumed,
    ];
    let more = [
        coverage.acks_refused,
        coverage.to_all,
        coverage.waiting,
        coverage.revived,
        coverage.retried,
        coverage.inputs_dropped,
        coverage.undelivered,
        coverage.returned_late,
    ];
    let of_data = [
        coverage.datasets,
        coverage.waits_for_data,
        coverage.lets_nearer_go_first,
        coverage.stranded,
    ];
    let of_programs = [coverage.handed_back, coverage.looks, coverage.failed_for_program];
    let mut all = counts.iter().chain(&of_inputs).chain(&more).chain(&of_data).chain(&of_programs);
    let seen_all = all.all(|count| *count > 0) && coverage.requeues.len() >= 8;
    assert!(!whole || seen_all, "something never happened: {coverage:?}");
}
