//! The broker under a test's hand: events go in, and every action that comes out is written down as
//! one short line. A test names them all with [`Rig::expect`]; one that it forgot fails the next
//! step.
//!
//! Records read `+requeue j1#2 WorkerLost counts now`; what is sent reads `w1: assign j1#2`. A job
//! of the second run is `j1.2`, the child of a job to all workers `j1@w1`, a peer's second
//! connection `w1/2`.
#![allow(dead_code, unreachable_pub, clippy::expect_used, clippy::indexing_slicing, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use heft::core::action::{Action, Assignment, Refusal, Waiting, WorkerOrder};
use heft::core::choose::Policy;
use heft::core::event::{
    ClaimedAttempt, ClientPeer, Doing, Inputs, Operation, Outcome, Submission, WorkerClass,
};
use heft::core::ids::{
    Attempt, ClientId, ConnId, Index, JobId, Micros, ResultId, Run, Token, WorkerId,
};
use heft::core::job::{Job, Phase};
use heft::core::payload::{FileNames, PayloadKind};
use heft::core::programs::{Programs, ProgramsSaid};
use heft::core::record::Lack;
use heft::core::state::State;
use heft::core::subject::{routing_key, worker_patterns};
use heft::core::worker::{Hello, Worker};
use heft::core::{Broker, Config, Event, Record};
use uuid::Uuid;

pub const SECOND: Duration = Duration::from_secs(1);

/// The broker, its world's clock, and what it did since the last [`Rig::expect`].
pub struct Rig {
    pub broker: Broker,
    config: Config,
    now: Micros,
    lines: Vec<String>,
    /// Commits wait for [`Rig::commit`].
    delays: bool,
    proposed: Option<Index>,
    conns: BTreeMap<ConnId, String>,
    /// The latest connection of each peer.
    peers: HashMap<String, ConnId>,
    hellos: HashMap<String, u32>,
    children: HashMap<JobId, String>,
    results: u64,
    tokens: u64,
    notes_silence: bool,
    notes_waiting: bool,
    notes_delivery: bool,
    holds_delivery: bool,
}

/// A job under its number, of `alice`, for the program `calcA`.
pub fn job(number: u32) -> Submission {
    Submission {
        job: id(number),
        client: "alice".into(),
        key: routing_key("calcA", None).expect("a key"),
        exec: "calcA".into(),
        priority: 0,
        to_all: false,
        size: 100,
        fingerprint: [7; 32],
        inputs: Inputs::Here,
        needs_transfers: false,
        require_worker: false,
        names: FileNames::Plain,
        tag: None,
        datasets: Vec::new(),
    }
}

/// A job whose inputs come as transfers, and have to go so.
pub fn announced(number: u32) -> Submission {
    Submission { inputs: Inputs::Expected, needs_transfers: true, size: 64 << 20, ..job(number) }
}

pub fn job_of(client: &str, number: u32) -> Submission {
    Submission { client: client.into(), ..job(number) }
}

pub fn job_for(subject: &str, number: u32) -> Submission {
    Submission { key: routing_key(subject, None).expect("a key"), ..job(number) }
}

pub fn job_to_all(number: u32) -> Submission {
    Submission { to_all: true, ..job(number) }
}

pub fn id(number: u32) -> JobId {
    JobId(Uuid::from_u128(number.into()))
}

/// A worker's id from its name.
pub fn worker_id(name: &str) -> WorkerId {
    let mut bytes = [0; 16];
    for (slot, byte) in bytes.iter_mut().zip(name.bytes()) {
        *slot = byte;
    }
    WorkerId(Uuid::from_bytes(bytes))
}

fn worker_name(worker: WorkerId) -> String {
    worker
        .0
        .as_bytes()
        .iter()
        .take_while(|byte| **byte != 0)
        .map(|byte| char::from(*byte))
        .collect()
}

pub fn with_policy(policy: Policy) -> Config {
    Config { policy, ..Config::default() }
}

impl Rig {
    pub fn new() -> Rig {
        Rig::with(Config::default())
    }

    pub fn with(config: Config) -> Rig {
        Rig {
            broker: Broker::new(config.clone()),
            config,
            now: Micros(1_000_000),
            lines: Vec::new(),
            delays: false,
            proposed: None,
            conns: BTreeMap::new(),
            peers: HashMap::new(),
            hellos: HashMap::new(),
            children: HashMap::new(),
            results: 0,
            tokens: 0,
            notes_silence: false,
            notes_waiting: false,
            notes_delivery: false,
            holds_delivery: false,
        }
    }

    /// From now on it counts that a worker is cut off for being silent.
    pub fn note_silence(&mut self) {
        self.notes_silence = true;
    }

    /// From now on it counts that clients are told that no worker is there.
    pub fn note_waiting(&mut self) {
        self.notes_waiting = true;
    }

    /// From now on it counts that a result was noted as sent.
    pub fn note_delivery(&mut self) {
        self.notes_delivery = true;
    }

    /// From now on results are on their way until a test says where they got to.
    pub fn hold_delivery(&mut self) {
        self.holds_delivery = true;
    }

    /// From now on records wait until [`Rig::commit`].
    pub fn delay_commits(&mut self) {
        self.delays = true;
    }

    /// All that is proposed is committed.
    pub fn commit(&mut self) {
        let index = self.proposed.take().expect("something is proposed");
        self.tell(Event::Committed { index });
    }

    // --- what is expected

    /// Every action since the last time, and no other.
    #[track_caller]
    pub fn expect<const N: usize>(&mut self, expected: [&str; N]) {
        let lines = std::mem::take(&mut self.lines);
        assert_eq!(lines, expected);
    }

    /// What led here is another test's matter.
    pub fn skip(&mut self) {
        self.lines.clear();
    }

    /// The same, but for this.
    #[track_caller]
    pub fn skip_to(&mut self, expected: &str) {
        let lines = std::mem::take(&mut self.lines);
        assert!(lines.iter().any(|line| line == expected), "no {expected:?} in {lines:#?}");
    }

    /// The actions since the last time, for a test that counts them.
    pub fn take(&mut self) -> Vec<String> {
        std::mem::take(&mut self.lines)
    }

    // --- what happens

    #[track_caller]
    pub fn tell(&mut self, event: Event) {
        assert!(self.lines.is_empty(), "not asserted: {:#?}", self.lines);
        self.handle(event);
    }

    fn handle(&mut self, event: Event) {
        self.broker.handle(self.now, event);
        while let Some(action) = self.broker.poll_action() {
            let line = self.line(&action);
            // Workers of other tests are idle, not hung: that their silence is noticed is one
            // test's matter. So is what clients are told of workers that are not there.
            let is_silence = line.ends_with("twice its lease");
            let is_waiting = matches!(action, Action::Waiting { .. });
            // And what is noted of results that were sent.
            let is_delivery =
                matches!(action, Action::Commit { record: Record::Delivered { .. }, .. });
            let is_noted = (self.notes_silence || !is_silence)
                && (self.notes_waiting || !is_waiting)
                && (self.notes_delivery || !is_delivery);
            if is_noted {
                self.lines.push(line);
            }
            if let Action::Deliver { job, run, .. } = action
                && !self.holds_delivery
            {
                self.broker.handle(self.now, Event::Delivered { job, run });
            }
            if let Action::Commit { index, .. } = action {
                if self.delays {
                    self.proposed = Some(index);
                } else {
                    self.broker.handle(self.now, Event::Committed { index });
                }
            }
        }
    }

    /// Time passes, and the broker is woken whenever it asked to be.
    #[track_caller]
    pub fn pass(&mut self, span: Duration) {
        assert!(self.lines.is_empty(), "not asserted: {:#?}", self.lines);
        let end = self.now.plus(span);
        while let Some(due) = self.broker.next_deadline().filter(|due| *due <= end) {
            self.now = self.now.max(due);
            self.handle(Event::Tick);
        }
        self.now = end;
        self.handle(Event::Tick);
    }

    /// The leader is killed and begins anew with this state; nobody is connected.
    #[track_caller]
    pub fn restart(&mut self, state: State) {
        assert!(self.lines.is_empty(), "not asserted: {:#?}", self.lines);
        self.proposed = None;
        self.broker = Broker::restore(self.config.clone(), state, Index(1_000_000), self.now);
        self.handle(Event::Tick);
    }

    fn open(&mut self, peer: &str) -> ConnId {
        let conn = ConnId(self.conns.len() as u64 + 1);
        let times = self.hellos.entry(peer.to_owned()).or_default();
        *times += 1;
        let label = if *times == 1 { peer.to_owned() } else { format!("{peer}/{times}") };
        self.conns.insert(conn, label);
        self.peers.insert(peer.to_owned(), conn);
        conn
    }

    pub fn conn(&self, peer: &str) -> ConnId {
        match self.conns.iter().find(|(_, label)| *label == peer) {
            Some((conn, _)) if peer.contains('/') => *conn,
            Some(_) | None => self.peers[peer],
        }
    }

    #[track_caller]
    pub fn client(&mut self, name: &str) {
        self.client_with_cap(name, None);
    }

    #[track_caller]
    pub fn client_with_cap(&mut self, name: &str, cap: Option<u32>) {
        let conn = self.open(name);
        self.tell(Event::ClientHello { conn, client: name.into(), cap, peer: ClientPeer::Heft });
    }

    /// A classic client comes back and is there for so long that it gets results by its name.
    #[track_caller]
    pub fn classic_client_back(&mut self, name: &str) {
        let conn = self.open(name);
        self.tell(Event::ClientHello {
            conn,
            client: name.into(),
            cap: None,
            peer: ClientPeer::Classic,
        });
        self.expect([]);
        self.pass(SECOND * 2);
    }

    /// A worker says hello and offers nothing yet.
    #[track_caller]
    pub fn hello(
        &mut self,
        name: &str,
        class: WorkerClass,
        subject: &str,
        parallel_max: Option<u32>,
    ) {
        // A worker that leases is one of ours, and takes transfers.
        self.hello_with(name, class, subject, parallel_max, class == WorkerClass::Leasing);
    }

    #[track_caller]
    pub fn hello_with(
        &mut self,
        name: &str,
        class: WorkerClass,
        subject: &str,
        parallel_max: Option<u32>,
        transfers: bool,
    ) {
        // Ours that take transfers take datasets, as a rule.
        self.hello_taking(name, class, subject, parallel_max, (transfers, transfers));
    }

    /// One that says of transfers and of datasets whether it takes them.
    #[track_caller]
    pub fn hello_taking(
        &mut self,
        name: &str,
        class: WorkerClass,
        subject: &str,
        parallel_max: Option<u32>,
        (transfers, datasets): (bool, bool),
    ) {
        // Ours take files in folders, and raw payloads only where they say so.
        let reads = match class {
            WorkerClass::Leasing => PayloadKind::Folders,
            WorkerClass::Classic | WorkerClass::OneAtATime => PayloadKind::Request,
        };
        let takes = (transfers, datasets, reads);
        self.hello_reading(name, class, subject, parallel_max, takes);
    }

    /// One that says what payloads it reads, too.
    #[track_caller]
    pub fn hello_reading(
        &mut self,
        name: &str,
        class: WorkerClass,
        subject: &str,
        parallel_max: Option<u32>,
        takes: (bool, bool, PayloadKind),
    ) {
        self.hello_listing(name, class, subject, parallel_max, takes, None);
    }

    /// One of ours that lists its programs, with room for so many jobs.
    #[track_caller]
    pub fn worker_with(&mut self, name: &str, subject: &str, room: u32, programs: &[&str]) {
        let takes = (true, true, PayloadKind::Folders);
        let programs = Some(Programs::new(programs));
        self.hello_listing(name, WorkerClass::Leasing, subject, Some(room), takes, programs);
        self.credit(name, i32::try_from(room).expect("a credit"));
    }

    /// A worker says that it has these programs now, unasked.
    #[track_caller]
    pub fn programs(&mut self, worker: &str, programs: &[&str]) {
        let conn = self.conn(worker);
        let said = ProgramsSaid::Are(Programs::new(programs));
        self.tell(Event::Programs { conn, said, answers: false });
    }

    /// A worker answers which programs it has.
    #[track_caller]
    pub fn programs_answer(&mut self, worker: &str, said: ProgramsSaid) {
        let conn = self.conn(worker);
        self.tell(Event::Programs { conn, said, answers: true });
    }

    /// A worker hands a job back for want of its program, as the leader reports that.
    #[track_caller]
    pub fn refuses_program(&mut self, worker: &str, number: u32, why: &str) {
        let (conn, why) = (self.conn(worker), why.into());
        self.tell(Event::ProgramRefused { conn, job: id(number), why });
        self.outcome(worker, number, Outcome::Lacks(Lack::Program));
    }

    /// One that says which programs it has, too, or lists none.
    #[track_caller]
    pub fn hello_listing(
        &mut self,
        name: &str,
        class: WorkerClass,
        subject: &str,
        parallel_max: Option<u32>,
        (transfers, datasets, reads): (bool, bool, PayloadKind),
        programs: Option<Programs>,
    ) {
        let conn = self.open(name);
        let patterns =
            subject.split(' ').flat_map(|subject| worker_patterns(subject).expect("a pattern"));
        let patterns = patterns.collect();
        self.tell(Event::WorkerHello(Hello {
            conn,
            worker: worker_id(name),
            name: name.into(),
            class,
            patterns,
            parallel_max,
            transfers,
            datasets,
            reads,
            programs,
        }));
    }

    /// A worker without ids, which looks into no payload.
    #[track_caller]
    pub fn minimal(&mut self, name: &str, subject: &str) {
        let takes = (false, false, PayloadKind::Raw);
        self.hello_reading(name, WorkerClass::OneAtATime, subject, None, takes);
        self.credit(name, 1);
    }

    /// One of ours, with room for so many jobs.
    #[track_caller]
    pub fn worker(&mut self, name: &str, subject: &str, room: u32) {
        self.hello(name, WorkerClass::Leasing, subject, Some(room));
        self.credit(name, i32::try_from(room).expect("a credit"));
    }

    /// A classic worker, with room for so many jobs.
    #[track_caller]
    pub fn classic(&mut self, name: &str, subject: &str, room: i32) {
        self.hello(name, WorkerClass::Classic, subject, None);
        self.credit(name, room);
    }

    #[track_caller]
    pub fn credit(&mut self, worker: &str, delta: i32) {
        let conn = self.conn(worker);
        self.tell(Event::Credit { conn, delta });
    }

    /// A client hands a job in at its latest connection.
    #[track_caller]
    pub fn submit(&mut self, job: Submission) {
        let conn = self.conn(&job.client.0);
        self.tell(Event::Submit { conn, job });
    }

    /// The same, where what led here is another test's matter.
    #[track_caller]
    pub fn submit_next(&mut self, job: Submission) {
        self.skip();
        self.submit(job);
    }

    #[track_caller]
    pub fn submit_at(&mut self, peer: &str, job: Submission) {
        let conn = self.conn(peer);
        self.tell(Event::Submit { conn, job });
    }

    #[track_caller]
    pub fn progress(&mut self, worker: &str, number: u32, attempt: u32) {
        self.progress_of(worker, number, 1, attempt);
    }

    #[track_caller]
    pub fn progress_of(&mut self, worker: &str, number: u32, run: u32, attempt: u32) {
        self.doing(worker, number, run, attempt, Doing::Running);
    }

    /// A worker says that a job of the first run has ended there, and that its result is on its
    /// way.
    #[track_caller]
    pub fn returning(&mut self, worker: &str, number: u32, attempt: u32) {
        self.doing(worker, number, 1, attempt, Doing::Returning);
    }

    #[track_caller]
    fn doing(&mut self, worker: &str, number: u32, run: u32, attempt: u32, doing: Doing) {
        let conn = self.conn(worker);
        self.tell(Event::Progress {
            conn,
            job: id(number),
            run: Run(run),
            attempt: Attempt(attempt),
            doing,
        });
    }

    /// A heartbeat that names jobs of the first run with their attempts.
    #[track_caller]
    pub fn beat(&mut self, worker: &str, held: &[(u32, u32)]) {
        self.beat_at(worker, 0, held);
    }

    #[track_caller]
    pub fn beat_at(&mut self, worker: &str, cpu_permille: u16, held: &[(u32, u32)]) {
        let conn = self.conn(worker);
        let held =
            held.iter().map(|(number, attempt)| (id(*number), Run(1), Attempt(*attempt))).collect();
        self.tell(Event::Heartbeat { conn, cpu_permille, credit: 0, held });
    }

    #[track_caller]
    pub fn ack_id(&mut self, worker: &str, job: JobId, ok: bool) {
        self.results += 1;
        let (conn, result) = (self.conn(worker), ResultId(self.results));
        let (named, outcome) = (ClaimedAttempt::default(), Outcome::Returned { result, ok });
        self.tell(Event::Ack { conn, job, named, outcome });
    }

    /// A result that names its attempt, as those of workers that lease do.
    #[track_caller]
    pub fn ack_of(&mut self, worker: &str, number: u32, run: u32, attempt: u32) {
        self.results += 1;
        let (conn, result) = (self.conn(worker), ResultId(self.results));
        let named = ClaimedAttempt { run: Some(Run(run)), attempt: Some(Attempt(attempt)) };
        let outcome = Outcome::Returned { result, ok: true };
        self.tell(Event::Ack { conn, job: id(number), named, outcome });
    }

    /// A result that is OK.
    #[track_caller]
    pub fn ack(&mut self, worker: &str, number: u32) {
        self.ack_id(worker, id(number), true);
    }

    #[track_caller]
    pub fn outcome(&mut self, worker: &str, number: u32, outcome: Outcome) {
        let conn = self.conn(worker);
        self.tell(Event::Ack { conn, job: id(number), named: ClaimedAttempt::default(), outcome });
    }

    #[track_caller]
    pub fn close(&mut self, peer: &str) {
        let conn = self.conn(peer);
        self.tell(Event::Closed { conn });
    }

    #[track_caller]
    pub fn operate(&mut self, operation: Operation) {
        self.tokens += 1;
        self.tell(Event::Operate { token: Token(self.tokens), operation });
    }

    #[track_caller]
    pub fn cancel(&mut self, number: u32) {
        self.cancel_id(id(number));
    }

    #[track_caller]
    pub fn cancel_id(&mut self, job: JobId) {
        self.operate(Operation::Cancel { job, by: "ops".into() });
    }

    // --- what is known

    pub fn now(&self) -> Micros {
        self.now
    }

    #[track_caller]
    pub fn job(&self, number: u32) -> &Job {
        self.broker.state().job(id(number)).expect("the job is known")
    }

    #[track_caller]
    pub fn worker_named(&self, name: &str) -> &Worker {
        self.broker
            .workers()
            .find(|worker| worker.id == worker_id(name))
            .expect("the worker is known")
    }

    pub fn room(&self, name: &str) -> u32 {
        self.worker_named(name).credit
    }

    pub fn running(&self, client: &str) -> u32 {
        self.broker.state().running(&ClientId::from(client))
    }

    /// How long a job in back-off still has to wait.
    #[track_caller]
    pub fn wait_of(&self, number: u32) -> Duration {
        let Phase::Queued { not_before } = self.job(number).phase else {
            panic!("j{number} does not wait: {:?}", self.job(number).phase)
        };
        not_before.since(self.now)
    }

    /// The child of a job to all workers that is for this worker.
    #[track_caller]
    pub fn child(&self, number: u32, worker: &str) -> JobId {
        let label = format!("j{number}@{worker}");
        let child = self.children.iter().find(|(_, name)| **name == label);
        *child.expect("a child").0
    }

    // --- lines

    fn name(&self, job: JobId) -> String {
        self.children.get(&job).cloned().unwrap_or_else(|| format!("j{}", job.0.as_u128()))
    }

    fn name_of_run(&self, job: JobId, run: Run) -> String {
        let name = self.name(job);
        if run == Run(1) { name } else { format!("{name}.{run}") }
    }

    fn line(&mut self, action: &Action) -> String {
        let at =
            |conn: &ConnId| self.conns.get(conn).cloned().unwrap_or_else(|| format!("{conn:?}"));
        match action {
            Action::Commit { record, .. } => self.record_line(record),
            Action::Assign(Assignment { conn, worker, job, run, attempt, start, .. }) => {
                assert_eq!(at(conn).split('/').next(), Some(worker_name(*worker).as_str()));
                let how = if *start { "" } else { " not to start" };
                format!("{}: assign {}#{attempt}{how}", at(conn), self.name_of_run(*job, *run))
            }
            Action::Worker(WorkerOrder::Start(held)) => {
                let Assignment { conn, worker, job, run, attempt, .. } = held;
                assert_eq!(at(conn).split('/').next(), Some(worker_name(*worker).as_str()));
                format!("{}: start {}#{attempt}", at(conn), self.name_of_run(*job, *run))
            }
            Action::Worker(WorkerOrder::Resume(held)) => {
                let Assignment { conn, worker, job, run, attempt, start, .. } = held;
                assert_eq!(at(conn).split('/').next(), Some(worker_name(*worker).as_str()));
                let how = if *start { "" } else { " not to start" };
                format!("{}: resume {}#{attempt}{how}", at(conn), self.name_of_run(*job, *run))
            }
            Action::Waiting { conn, job, why } => {
                let why = match why {
                    Waiting::NoWorker { key } => format!("no worker for {key}"),
                    Waiting::NoTransfers { key, workers } => {
                        format!("{workers} classic workers for {key}")
                    }
                    Waiting::NotStaged { key, why } => format!("not staged for {key}: {why}"),
                    Waiting::NoDatasets { key, workers } => {
                        format!("{workers} without datasets for {key}")
                    }
                    Waiting::WorkerLacks { worker, lack } => {
                        format!("{} {}", worker_name(*worker), lack.text())
                    }
                    Waiting::NoReader { key, workers, kind } => {
                        format!("{workers} for {key} without {}", kind.text())
                    }
                    Waiting::NoProgram { key, exec, workers, like } => {
                        format!("{workers} for {key} without {exec}, but {}", like.join(" "))
                    }
                };
                format!("{}: waiting {} {why}", at(conn), self.name(*job))
            }
            Action::Worker(WorkerOrder::Abandon { conn, job, attempt }) => {
                format!("{}: abandon {}#{attempt}", at(conn), self.name(*job))
            }
            Action::Worker(WorkerOrder::Settle { conn, job, run }) => {
                format!("{}: settle {}", at(conn), self.name_of_run(*job, *run))
            }
            Action::AckRefused { conn, job } => {
                format!("{}: result refused {}", at(conn), self.name(*job))
            }
            Action::Submitted { conn, job, run, standing, ahead } => {
                let name = self.name_of_run(*job, *run);
                format!("{}: submitted {name} {standing:?} behind {ahead}", at(conn))
            }
            Action::Refuse { conn, job, refusal } => {
                let why = match refusal {
                    Refusal::Conflict { .. } => "conflict".to_owned(),
                    Refusal::Full { held, limit } => format!("full {held} of {limit}"),
                    Refusal::NamesFull { bytes, held, limit } => {
                        format!("names {held} and {bytes} of {limit}")
                    }
                    Refusal::NoWorker { key } => format!("no worker for {key}"),
                    Refusal::NoCapableWorker { key, workers, bytes, limit } => {
                        format!("{workers} classic workers for {key}, {bytes} of {limit}")
                    }
                    Refusal::NoDatasets { key, workers } => {
                        format!("{workers} without datasets for {key}")
                    }
                    Refusal::NoReader { key, workers, kind } => {
                        format!("{workers} for {key} without {}", kind.text())
                    }
                    Refusal::NoProgram(why) => why.to_string(),
                    Refusal::Draining => "draining".to_owned(),
                };
                format!("{}: refused {} {why}", at(conn), self.name(*job))
            }
            Action::Running { conn, job, run, attempt } => {
                format!("{}: running {}#{attempt}", at(conn), self.name_of_run(*job, *run))
            }
            Action::Deliver { conn, job, run } => {
                format!("{}: result {}", at(conn), self.name_of_run(*job, *run))
            }
            Action::Ended { job } => format!("ended {}", self.name(*job)),
            Action::ForgetInput { job } => format!("drop input {}", self.name(*job)),
            Action::RetainInput { job } => format!("retain input {}", self.name(*job)),
            Action::ReuseInput { job } => format!("reuse input {}", self.name(*job)),
            Action::ForgetResult { result } => format!("drop result r{result}"),
            Action::Operated { token, answer } => format!("answer {token}: {answer:?}"),
            Action::DatasetPut { dataset, replaced } => {
                let replaced =
                    replaced.as_ref().map(|before| format!(" for g{}", before.version.as_u128()));
                let name = format!("{} g{}", dataset.cache, dataset.version.as_u128());
                format!("put {name}{}", replaced.unwrap_or_default())
            }
            Action::DatasetRemoved { dataset } => {
                format!("removed {} g{}", dataset.cache, dataset.version.as_u128())
            }
            Action::AskAgent { agent, cache } => {
                format!("{}: ask for {cache}", worker_name(*agent))
            }
            Action::AskPrograms { conn } => format!("{}: which programs?", at(conn)),
            Action::StageInputs { job } => format!("stage {}", self.name(*job)),
            Action::Close { conn, why } => format!("{}: close, {why}", at(conn)),
        }
    }

    fn record_line(&mut self, record: &Record) -> String {
        match record {
            Record::Announce { job, .. } => format!("+announce {}", self.name(job.job)),
            Record::Withdraw { job, run } => format!("+withdraw {}", self.name_of_run(*job, *run)),
            Record::Fail { job, run, why, .. } => {
                format!("+fail {}: {why}", self.name_of_run(*job, *run))
            }
            Record::Enqueue { job, children, kept, .. } => {
                let how = if *kept { "" } else { " not kept" };
                let mut line = format!("+enqueue {}{how}", self.name(job.job));
                for (child, worker) in children {
                    let worker = worker_name(*worker);
                    let label = format!("{}@{worker}", self.name(job.job));
                    self.children.insert(*child, label);
                    line.push_str(" @");
                    line.push_str(&worker);
                }
                line
            }
            Record::Assign { job, run, attempt, worker, .. } => {
                format!(
                    "+assign {}#{attempt} {}",
                    self.name_of_run(*job, *run),
                    worker_name(*worker)
                )
            }
            Record::Ack { job, run, worker, result, ok, .. } => {
                let how = if *ok { "ok" } else { "failed" };
                let (name, worker) = (self.name_of_run(*job, *run), worker_name(*worker));
                format!("+ack {name} r{result} {how} {worker}")
            }
            Record::Requeue { job, run, attempt, why, counts, not_before, .. } => {
                let counts = if *counts { "counts" } else { "free" };
                let when = if *not_before <= self.now { "now" } else { "later" };
                format!(
                    "+requeue {}#{attempt} {why:?} {counts} {when}",
                    self.name_of_run(*job, *run)
                )
            }
            Record::Dlq { job, run, attempt, why, .. } => {
                format!("+dlq {}#{attempt} {why:?}", self.name_of_run(*job, *run))
            }
            Record::Cancel { job, run, by, .. } => {
                format!("+cancel {} by {by}", self.name_of_run(*job, *run))
            }
            Record::Orphan { job, run, .. } => format!("+orphan {}", self.name_of_run(*job, *run)),
            Record::Revive { job, run } => format!("+revive {}", self.name_of_run(*job, *run)),
            Record::DropInputs { job, run } => {
                format!("+drop_inputs {}", self.name_of_run(*job, *run))
            }
            Record::Delivered { job, run } => {
                format!("+delivered {}", self.name_of_run(*job, *run))
            }
            Record::Forget { job, run } => format!("+forget {}", self.name_of_run(*job, *run)),
            Record::Cap { client, cap } => format!("+cap {client} {cap}"),
            Record::Dataset { dataset } => {
                format!("+dataset {} g{}", dataset.cache, dataset.version.as_u128())
            }
            Record::Stage { job, dataset } => {
                format!(
                    "+stage {} {} g{}",
                    self.name_of_run(*job, Run(1)),
                    dataset.cache,
                    dataset.version.as_u128()
                )
            }
            Record::DatasetGone { cache, version } => {
                format!("+dataset_gone {cache} g{}", version.as_u128())
            }
            Record::Term { term } => format!("+term {term}"),
            Record::Members { members } => format!("+members {}", members.incoming().len()),
            Record::Level { level } => format!("+level {level}"),
            Record::Mark { id } => format!("+mark {}", id.as_u128()),
            Record::Office { leader, .. } => format!("+office {leader}"),
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            assert!(self.lines.is_empty(), "not asserted: {:#?}", self.lines);
            assert_eq!(self.broker.poll_action(), None);
        }
    }
}
