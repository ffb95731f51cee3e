//! The broker: events in, actions out, time passed in.
//!
//! It decides and proposes records but changes no job itself; [`apply`](super::apply) carries out a
//! committed record. The broker holds the indexes for quick decisions (queues, leases,
//! connections). All of them can be derived from [`State`] and the connections. Only the leader
//! calls it.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use super::action::{Action, Standing, WorkerOrder};
use super::apply::Proposals;
use super::broken;
use super::dispatch::{Assignments, cap_among};
use super::event::{Event, Submission, WorkerClass};
use super::expiry::Results;
use super::flagged::Tallies;
use super::ids::{Attempt, ClientId, ConnId, JobId, Micros, Run, WorkerId};
use super::inputs::Intake;
use super::job::{Job, Phase};
use super::limits::Config;
use super::locality::Locality;
use super::missing_programs::Placement;
use super::queue::{Queues, Waiting};
use super::record::{AttemptEnd, Record};
use super::staging::Staging;
use super::state::State;
use super::submit::Clients;
use super::timers::Due;
use super::waiting::Waits;
use super::worker::{Hello, Worker, Workers};

/// Facts about the previous run of the leader.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreviousRun {
    /// When it was over and this one began.
    pub(super) until: Micros,
    /// The last job that it took. Later ones cannot have lost anything with it.
    pub(super) last_seq: u64,
}

#[derive(Debug)]
pub struct Broker {
    pub(super) config: Config,
    pub(super) now: Micros,
    /// The previous run of the leader, if there was one.
    pub(super) earlier: Option<PreviousRun>,
    pub(super) state: State,
    pub(super) actions: VecDeque<Action>,
    pub(super) proposals: Proposals,

    pub(super) workers: Workers,
    pub(super) queues: Queues,
    pub(super) assigning: Assignments,
    pub(super) locality: Locality,
    pub(super) staging: Staging,
    pub(super) placement: Placement,
    /// Results by worker and program.
    pub(super) tallies: Tallies,

    pub(super) clients: Clients,
    pub(super) intake: Intake,
    /// Jobs whose clients were told that no worker is connected.
    pub(super) waits: Waits,
    pub(super) results: Results,

    pub(super) due: BTreeSet<(Micros, Due)>,
    pub(super) dirty: bool,
    pub(super) draining: bool,
    /// Events that were taken, for looks at invariants.
    #[cfg(debug_assertions)]
    pub(super) events: u64,
}

impl Broker {
    /// A broker without jobs.
    pub fn new(config: Config) -> Self {
        Broker {
            config,
            now: Micros::default(),
            earlier: None,
            state: State::default(),
            actions: VecDeque::new(),
            proposals: Proposals::default(),
            workers: Workers::default(),
            queues: Queues::default(),
            assigning: Assignments::default(),
            locality: Locality::default(),
            staging: Staging::default(),
            placement: Placement::default(),
            tallies: Tallies::default(),
            clients: Clients::default(),
            intake: Intake::default(),
            waits: Waits::default(),
            results: Results::default(),
            due: BTreeSet::new(),
            dirty: false,
            draining: false,
            #[cfg(debug_assertions)]
            events: 0,
        }
    }

    /// The same, at a moment.
    pub fn begin(config: Config, now: Micros) -> Self {
        Broker { now, ..Broker::new(config) }
    }

    /// Takes an event.
    pub fn handle(&mut self, now: Micros, event: Event) {
        self.now = self.now.max(now);
        if let Event::Credit { conn, .. }
        | Event::Progress { conn, .. }
        | Event::Heartbeat { conn, .. }
        | Event::Ack { conn, .. }
        | Event::Programs { conn, .. }
        | Event::Moves { conn } = &event
        {
            self.heard_of(*conn);
        }
        match event {
            Event::ClientHello { conn, client, cap, peer } => {
                self.client_hello(conn, client, cap, peer)
            }
            Event::WorkerHello(hello) => self.worker_hello(hello),
            Event::Credit { conn, delta } => self.credit(conn, delta),
            Event::Submit { conn, job } => self.submit(conn, job),
            Event::InputsHere { job, kept } => self.inputs_here(job, kept),
            Event::InputsRefused { job, attempt, why } => self.inputs_refused(job, attempt, why),
            Event::InputsFailed { job, why } => self.inputs_failed(job, why),
            Event::TimeLimit { worker, job, attempt, limit } => {
                self.limit_time(worker, job, attempt, limit)
            }
            Event::Withdraw { job } => self.withdrawal(job),
            Event::Progress { conn, job, run, attempt, doing } => {
                self.progress(conn, job, run, attempt, doing)
            }
            Event::Heartbeat { conn, cpu_permille, credit, held } => {
                self.heartbeat(conn, cpu_permille, credit, &held);
            }
            Event::Ack { conn, job, named, outcome } => self.ack(conn, job, named, outcome),
            Event::ProgramRefused { conn, job, why } => self.program_refused(conn, job, &why),
            Event::Programs { conn, said, answers } => self.programs_said(conn, said, answers),
            Event::Operate { token, operation } => self.operate(token, operation),
            Event::Closed { conn } => self.closed(conn),
            Event::Committed { index } => self.committed(index),
            Event::Tick => {}
            Event::Drain => self.drain(),
            Event::NotAssigned { conn, worker, job, attempt } => {
                self.not_assigned(conn, worker, job, attempt);
            }
            Event::Moves { conn } => self.moves(conn),
            Event::Delivered { job, run } => self.was_delivered(job, run),
            Event::NotDelivered { job } => self.not_delivered(job),
            Event::ForgetEnded { job } => self.forget_ended(job),
            Event::DropInputs { job } => self.drop_inputs(job),
            Event::Watch { job } => self.watch(job),
            Event::Unwatch { job } => self.unwatch(job),
            Event::PutDataset { dataset } => self.put_dataset(dataset),
            Event::Staged { job, dataset } => self.staged(job, dataset),
            Event::RemoveDataset { cache } => self.remove_dataset(cache),
            Event::Holding { worker, cache, digest, missing } => {
                self.holds(worker, cache, digest, missing);
            }
            Event::NotHolding { worker, cache } => self.holds_not(worker, &cache),
            Event::HoldsNothing { worker } => self.holds_nothing(worker),
            Event::DatasetsMoved { worker, bytes, span } => {
                self.datasets_moved(worker, bytes, span)
            }
            Event::AgentFor { worker, agent } => self.agent_for(worker, agent),
            Event::NotStaged { job, why, again } => self.not_staged(job, why, again),
        }
        self.look_at_what_is_due();
        if std::mem::take(&mut self.dirty) {
            self.schedule();
        }
        self.tell_who_waits();
        self.settle_placement();
        #[cfg(debug_assertions)]
        self.assert_invariants();
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// A worker is to hear something about a job.
    pub(super) fn order(&mut self, order: WorkerOrder) {
        self.actions.push_back(Action::Worker(order));
    }

    /// When [`Event::Tick`] is due, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many moments it waits for.
    pub fn due_count(&self) -> usize {
        self.due.len()
    }

    /// Number of index entries for jobs and workers outside their state: submitters, queue places,
    /// wait reasons, holdings.
    pub fn note_count(&self) -> usize {
        let pinned: usize = self.queues.pinned.values().map(BTreeMap::len).sum();
        pinned
            + self.assigning.len()
            + self.intake.len()
            + self.results.len()
            + self.clients.submitters.len()
            + self.waits.len()
            + self.queues.len()
            + self.locality.len()
            + self.staging.len()
            + self.placement.len()
            + self.tallies.len()
    }

    /// The committed state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Whether a worker is connected there.
    pub fn is_at(&self, worker: WorkerId, conn: ConnId) -> bool {
        self.workers.at(conn) == Some(worker)
    }

    /// The workers, connected or away.
    pub fn workers(&self) -> impl Iterator<Item = &Worker> {
        self.workers.iter()
    }

    /// One of them.
    pub fn worker(&self, worker: WorkerId) -> Option<&Worker> {
        self.workers.get(worker)
    }

    /// The connection on which a worker is, unless it has been silent there for too long.
    pub fn alive_at(&self, worker: WorkerId) -> Option<ConnId> {
        self.workers.get(worker).filter(|worker| !worker.silent)?.conn()
    }

    /// The jobs that wait to be given out.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The clients that are connected, but for those that came to ask, and those whose jobs run, in
    /// the order of their ids.
    pub fn clients(&self) -> BTreeSet<&ClientId> {
        self.clients.named().chain(self.state.running_clients()).collect()
    }

    /// How many connections a client has.
    pub fn connections_of(&self, client: &ClientId) -> usize {
        self.clients.conns_of.get(client).map_or(0, BTreeSet::len)
    }

    /// How many jobs of a client may run at a time.
    pub fn cap_of(&self, client: &ClientId) -> u32 {
        let caps = (&self.clients.caps_named, self.config.cap_default);
        cap_among(&self.state, caps, client)
    }

    /// Whether it is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether no job is with a worker any more, and all that was decided counts: a result that is
    /// on its way into the log is still to be delivered.
    pub fn is_idle(&self) -> bool {
        let decided = self.assigning.is_empty() && self.proposed().next().is_none();
        decided && self.workers.iter().all(|worker| worker.held.is_empty())
    }

    /// The same, including proposed records that are not yet applied.
    pub(super) fn cap_to_be(&self, client: &ClientId) -> u32 {
        let proposed = self.proposed().rev().find_map(|record| {
            let Record::Cap { client: named, cap } = record else { return None };
            (named == client).then_some(*cap)
        });
        proposed.unwrap_or_else(|| self.cap_of(client))
    }

    // --- workers

    fn worker_hello(&mut self, hello: Hello) {
        let (worker, conn, class) = (hello.worker, hello.conn, hello.class);
        let is_another = |known: &Worker| {
            known.class != class && known.conn().is_some_and(|known| known != conn)
        };
        if self.workers.get(worker).is_some_and(is_another) {
            // A worker that reconnects has the class it had before. This is another worker, which
            // would take over the first one's jobs.
            let why = "its worker id is that of a connected worker of another kind";
            self.actions.push_back(Action::Close { conn, why });
            return;
        }
        // A second hello under another worker id: the worker that spoke here before is gone.
        if let Some(before) = self.workers.at(conn).filter(|before| *before != worker) {
            self.worker_left(before);
        }
        self.placement.joins(worker, self.now);
        if let Some(old) = self.workers.join(hello, self.now).filter(|old| *old != conn) {
            self.actions.push_back(Action::Close { conn: old, why: "the worker connected again" });
        }
        if class == WorkerClass::Leasing {
            self.watch_silence(worker, self.now);
        } else {
            // A classic worker's id is new with each process, so what it held before is not with it
            // any more.
            self.lose_all(worker, AttemptEnd::WorkerLost);
        }
        self.queues.look_again();
        self.dirty = true;
    }

    fn credit(&mut self, conn: ConnId, delta: i32) {
        if let Some(worker) = self.workers.at(conn).and_then(|worker| self.workers.get_mut(worker))
        {
            worker.offer(delta);
            self.dirty = true;
        }
    }

    fn heartbeat(
        &mut self,
        conn: ConnId,
        cpu_permille: u16,
        credit: u32,
        held: &[(JobId, Run, Attempt)],
    ) {
        let Some(id) = self.workers.at(conn) else { return };
        let is_back = self.workers.get(id).is_some_and(|worker| worker.owes_inventory);
        for (job, run, attempt) in held {
            if !self.renew(id, *job, *run, *attempt) {
                self.not_wanted(conn, *job, *run, *attempt);
            } else if is_back {
                self.brought_along(id, conn, *job, *attempt);
            }
        }
        let Some(worker) = self.workers.get_mut(id) else {
            return broken!("worker {id} is connected, and is not known");
        };
        worker.cpu_permille = cpu_permille;
        if std::mem::take(&mut worker.owes_inventory) {
            let listed: HashSet<JobId> = held.iter().map(|(job, _, _)| *job).collect();
            let missing: Vec<JobId> =
                worker.held.keys().filter(|job| !listed.contains(job)).copied().collect();
            for job in missing {
                self.lose(id, job, AttemptEnd::NotHeld);
            }
            if let Some(worker) = self.workers.get_mut(id) {
                worker.offer_early();
            }
            self.dirty = true;
        }
        if let Some(worker) = self.workers.get_mut(id) {
            self.dirty |= worker.offer_lost(credit);
        }
    }

    /// A worker holds a job it should not: an ended job is settled, any other is taken away.
    fn not_wanted(&mut self, conn: ConnId, job: JobId, run: Run, attempt: Attempt) {
        let known = self.state.job(job);
        let has_ended = known.is_none_or(Job::has_ended);
        // A job that was not started has no result. Its transfers may still be arriving, and have
        // to stop.
        let may_be_receiving = run == Run(0) || known.is_some_and(Job::comes_by_transfer);
        if !has_ended || may_be_receiving {
            self.order(WorkerOrder::Abandon { conn, job, attempt });
        }
        if has_ended && run != Run(0) {
            self.order(WorkerOrder::Settle { conn, job, run });
        }
    }

    fn closed(&mut self, conn: ConnId) {
        self.client_left(conn);
        if let Some(worker) = self.workers.at(conn) {
            self.worker_left(worker);
        }
    }

    fn worker_left(&mut self, id: WorkerId) {
        self.may_come_back(id);
        match self.workers.get(id).map(|worker| worker.class) {
            Some(WorkerClass::Leasing) => {
                self.workers.leave(id, self.now);
                self.rouse_all_waiting_for(id);
                self.due.insert((self.now.plus(self.config.worker_grace), Due::Grace(id)));
            }
            Some(WorkerClass::Classic | WorkerClass::OneAtATime) => self.worker_gone(id),
            None => {}
        }
    }

    pub(super) fn worker_gone(&mut self, id: WorkerId) {
        self.lose_all(id, AttemptEnd::WorkerLost);
        self.workers.remove(id);
        self.placement.refusals.clear(id);
        self.tallies.forget_worker(id);
        self.forget_holdings(id);
        // Children pinned to this worker cannot run anywhere else.
        for job in self.queues.pinned.remove(&id).unwrap_or_default().into_values() {
            if let Some(run) = self.state.job(job).map(|job| job.run) {
                self.propose(Record::Orphan { at: self.now, job, run });
            }
        }
    }

    // --- jobs

    /// A job waits until then, then it can be given out.
    pub(super) fn wait_until(&mut self, job: JobId, not_before: Micros) {
        if not_before > self.now {
            self.due.insert((not_before, Due::Ready(job)));
        } else {
            self.make_ready(job);
        }
    }

    /// Puts a job that waits where it can be given out; says how many are before it.
    pub(super) fn make_ready(&mut self, id: JobId) -> usize {
        let Some(job) = self.state.job(id) else { return 0 };
        let Phase::Queued { not_before } = job.phase else { return 0 };
        if not_before > self.now
            || self.assigning.contains(id)
            || (job.is_announced() && job.submission.to_all)
        {
            return 0;
        }
        if job.needs_client() && !self.is_fed(id) {
            return 0;
        }
        let Some(job) = self.state.job(id) else {
            broken!("job {id} waited for its client, and is not known");
            return 0;
        };
        let place = job.place();
        self.dirty = true;
        match job.child_of {
            Some((_, worker)) => {
                if self.workers.get(worker).is_none() {
                    let run = job.run;
                    self.propose(Record::Orphan { at: self.now, job: id, run });
                } else {
                    self.queues.pinned.entry(worker).or_default().insert(place, id);
                }
                0
            }
            None => {
                self.undelay(id);
                self.waits.look_at(id);
                let Some(job) = self.state.job(id) else {
                    broken!("job {id} waits, and is not known");
                    return 0;
                };
                self.staging.wake_for(job);
                let Submission { key, client, exec, size, .. } = &job.submission;
                let waiting = Waiting { id, exec, size: *size, rank: job.rank() };
                self.queues.push(key, client, place, &waiting)
            }
        }
    }
}

/// Where a job stands, to its client.
pub(super) fn standing(job: &Job) -> Standing {
    match job.phase {
        Phase::Queued { .. } => Standing::Queued,
        Phase::Leased { .. } if job.is_announced() => Standing::Assigned,
        Phase::Leased { .. } | Phase::Gathering { .. } => Standing::Running,
        Phase::Done { .. } | Phase::Dead { .. } => Standing::Finished,
    }
}
