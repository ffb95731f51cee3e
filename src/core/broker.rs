//! The broker: events in, actions out, time passed in.
//!
//! It decides and proposes records, and changes no job by itself: what follows from a record once that counts is in
//! [`committed`](super::committed). It holds the indexes that make decisions quick (queues, leases, who is connected
//! where); all of them follow from [`State`] and from the connections. The leader is who calls it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use super::action::{Action, Standing, Waiting};
use super::asks::Asks;
use super::committed::Proposals;
use super::dispatch::Assigning;
use super::due::Due;
use super::event::{Doing, Event, WorkerClass};
use super::holdings::Holdings;
use super::ids::{Attempt, ClientId, ConnId, Index, JobId, Micros, Run, WorkerId};
use super::inputs::{Resubmitted, Sources};
use super::job::{Job, Phase};
use super::limits::{Config, HISTORY_MAX, NO_ROOM_ATTEMPTS_MAX};
use super::locality::Delays;
use super::queue::{Place, Queues};
use super::record::{AttemptEnd, Record};
use super::retry::Backoff;
use super::staging::Staging;
use super::state::State;
use super::submit::{ClassicClient, Takings};
use super::waiting::Waits;
use super::worker::{Hello, Lease, LeaseStage, Worker, Workers};

/// What is known of the life of the leader before this one.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlierLife {
    /// When it was over and this one began.
    pub(super) until: Micros,
    /// The last job that it took. Later ones cannot have lost anything with it.
    pub(super) last_seq: u64,
}

/// The broker.
#[derive(Debug)]
pub struct Broker {
    pub(super) config: Config,
    pub(super) now: Micros,
    /// What an earlier life of the leader left, if there was one.
    pub(super) earlier: Option<EarlierLife>,
    pub(super) state: State,
    pub(super) actions: VecDeque<Action>,
    pub(super) proposals: Proposals,
    pub(super) index: Index,

    pub(super) workers: Workers,
    pub(super) queues: Queues,
    /// Children of jobs to all workers, which only their worker may have.
    pub(super) pinned: BTreeMap<WorkerId, BTreeMap<Place, JobId>>,
    /// Jobs whose assignment is proposed and not yet applied.
    pub(super) assigning: HashMap<JobId, Assigning>,
    /// Their number by client, toward its cap.
    pub(super) assigning_of: HashMap<ClientId, u32>,
    pub(super) stuck: super::schedule::Stuck,
    pub(super) assignments: u64,

    pub(super) clients: BTreeMap<ConnId, ClientId>,
    pub(super) conns_of: BTreeMap<ClientId, BTreeSet<ConnId>>,
    /// The caps that clients have named which are connected: the state keeps so many.
    pub(super) caps_named: BTreeMap<ClientId, u32>,
    /// Connections of classic clients.
    pub(super) classic: BTreeMap<ConnId, ClassicClient>,
    /// Jobs that are being taken or announced.
    pub(super) enqueuing: Takings,
    /// Announced jobs whose inputs are here and that are being taken.
    pub(super) completing: HashSet<JobId>,
    /// Announced jobs that are being dropped, and whether they were handed in again meanwhile.
    pub(super) withdrawing: HashMap<JobId, Option<Resubmitted>>,
    /// Where the inputs come from that are not here.
    pub(super) sources: Sources,
    /// Jobs whose clients are told that no worker is there.
    pub(super) waits: Waits,
    pub(super) submitters: HashMap<JobId, ConnId>,
    /// Results that nobody was there for.
    pub(super) undelivered: BTreeMap<ClientId, BTreeSet<JobId>>,
    /// Results that their clients have, which is proposed and not yet applied.
    pub(super) confirming: HashSet<(JobId, Run)>,
    /// Jobs that ended, the oldest first, and whether a look at them is due.
    pub(super) ended: VecDeque<(Micros, JobId, Run)>,
    pub(super) expiry_watched: bool,

    /// What workers hold of datasets.
    pub(super) holdings: Holdings,
    /// Jobs that wait for a worker that has their data.
    pub(super) delays: Delays,
    /// What agents were asked to hold for jobs that wait.
    pub(super) asks: Asks,
    pub(super) staging: Staging,

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
            index: Index(0),
            workers: Workers::default(),
            queues: Queues::default(),
            pinned: BTreeMap::new(),
            assigning: HashMap::new(),
            assigning_of: HashMap::new(),
            stuck: super::schedule::Stuck::default(),
            assignments: 0,
            clients: BTreeMap::new(),
            conns_of: BTreeMap::new(),
            caps_named: BTreeMap::new(),
            classic: BTreeMap::new(),
            enqueuing: Takings::default(),
            completing: HashSet::new(),
            withdrawing: HashMap::new(),
            sources: Sources::default(),
            waits: Waits::default(),
            submitters: HashMap::new(),
            undelivered: BTreeMap::new(),
            confirming: HashSet::new(),
            ended: VecDeque::new(),
            expiry_watched: false,
            holdings: Holdings::default(),
            delays: Delays::default(),
            asks: Asks::default(),
            staging: Staging::default(),
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
        | Event::Moves { conn } = &event
        {
            self.heard_of(*conn);
        }
        match event {
            Event::ClientHello { conn, client, cap, peer } => self.client_hello(conn, client, cap, peer),
            Event::WorkerHello {
                conn,
                worker,
                name,
                class,
                patterns,
                parallel_max,
                transfers,
                datasets,
                reads,
            } => {
                self.worker_hello(Hello {
                    conn,
                    worker,
                    name,
                    class,
                    patterns,
                    parallel_max,
                    transfers,
                    datasets,
                    reads,
                });
            }
            Event::Credit { conn, delta } => self.credit(conn, delta),
            Event::Submit { conn, job } => self.submit(conn, job),
            Event::InputsHere { job, kept } => self.inputs_here(job, kept),
            Event::InputsRefused { job, attempt, why } => self.inputs_refused(job, attempt, why),
            Event::InputsFailed { job, why } => self.inputs_failed(job, why),
            Event::TimeLimit { worker, job, attempt, limit } => self.limit_time(worker, job, attempt, limit),
            Event::Withdraw { job } => self.withdrawal(job),
            Event::Progress { conn, job, run, attempt, doing } => {
                self.progress(conn, job, run, attempt, doing)
            }
            Event::Heartbeat { conn, cpu_permille, credit, held } => {
                self.heartbeat(conn, cpu_permille, credit, &held);
            }
            Event::Ack { conn, job, named, outcome } => self.ack(conn, job, named, outcome),
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
            Event::PutDataset { dataset } => self.put_dataset(dataset),
            Event::RemoveDataset { cache } => self.remove_dataset(cache),
            Event::Holding { worker, cache, digest, missing } => {
                self.holds(worker, cache, digest, missing);
            }
            Event::NotHolding { worker, cache } => self.holds_not(worker, &cache),
            Event::HoldsNothing { worker } => self.holds_nothing(worker),
            Event::SetsMoved { worker, bytes, span } => self.sets_moved(worker, bytes, span),
            Event::AgentFor { worker, agent } => self.agent_for(worker, agent),
            Event::NotStaged { job, why, again } => self.not_staged(job, why, again),
        }
        self.look_at_what_is_due();
        if std::mem::take(&mut self.dirty) {
            self.schedule();
        }
        self.tell_who_waits();
        #[cfg(debug_assertions)]
        self.assert_invariants();
    }

    /// The next thing to do.
    pub fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// When [`Event::Tick`] is due, if nothing happens before.
    pub fn next_deadline(&self) -> Option<Micros> {
        self.due.first().map(|(at, _)| *at)
    }

    /// How many moments it waits for.
    pub fn due_count(&self) -> usize {
        self.due.len()
    }

    /// How much it keeps of jobs and workers beside their state: who submitted them, where they wait and what for, who holds what.
    pub fn note_count(&self) -> usize {
        let pinned: usize = self.pinned.values().map(BTreeMap::len).sum();
        let undelivered: usize = self.undelivered.values().map(BTreeSet::len).sum();
        let under_way = self.assigning.len() + self.assigning_of.len() + self.enqueuing.len();
        let inputs = self.completing.len() + self.withdrawing.len() + self.sources.len();
        under_way
            + inputs
            + pinned
            + undelivered
            + self.confirming.len()
            + self.submitters.len()
            + self.waits.len()
            + self.queues.len()
            + self.holdings.len()
            + self.delays.len()
            + self.asks.len()
            + self.staging.len()
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

    /// The jobs that wait to be given out.
    pub fn queues(&self) -> &Queues {
        &self.queues
    }

    /// The clients that are connected, with the number of their connections.
    pub fn clients(&self) -> impl Iterator<Item = (&ClientId, usize)> {
        self.conns_of.iter().map(|(client, conns)| (client, conns.len()))
    }

    /// How many jobs of a client may run at a time.
    pub fn cap_of(&self, client: &ClientId) -> u32 {
        let named = || self.caps_named.get(client).copied();
        self.state.cap(client).or_else(named).unwrap_or(self.config.cap_default)
    }

    /// Whether it is about to stop.
    pub fn is_draining(&self) -> bool {
        self.draining
    }

    /// Whether no job is with a worker any more, and all that was decided counts: a result that is on its way into the log is still to
    /// be delivered.
    pub fn is_idle(&self) -> bool {
        let decided = self.assigning.is_empty() && self.proposed().next().is_none();
        decided && self.workers.iter().all(|worker| worker.held.is_empty())
    }

    /// The same, with what is proposed and not yet applied.
    pub(super) fn cap_to_be(&self, client: &ClientId) -> u32 {
        let proposed = self.proposed().rev().find_map(|record| match record {
            Record::Cap { client: named, cap } if named == client => Some(*cap),
            Record::Cap { .. }
            | Record::Announce { .. }
            | Record::Enqueue { .. }
            | Record::Withdraw { .. }
            | Record::Fail { .. }
            | Record::Assign { .. }
            | Record::Ack { .. }
            | Record::Requeue { .. }
            | Record::Dlq { .. }
            | Record::Cancel { .. }
            | Record::Orphan { .. }
            | Record::Revive { .. }
            | Record::Delivered { .. }
            | Record::Forget { .. }
            | Record::Dataset { .. }
            | Record::DatasetGone { .. } => None,
        });
        proposed.unwrap_or_else(|| self.cap_of(client))
    }

    // --- workers

    fn worker_hello(&mut self, hello: Hello) {
        let (worker, conn, class) = (hello.worker, hello.conn, hello.class);
        let is_another =
            |known: &Worker| known.class != class && known.conn().is_some_and(|known| known != conn);
        if self.workers.get(worker).is_some_and(is_another) {
            // A worker that comes back is of the kind it was. This is somebody else, who would take its jobs over.
            let why = "its worker id is that of a connected worker of another kind";
            self.actions.push_back(Action::Close { conn, why });
            return;
        }
        // A second hello under another name: whoever spoke here before is not there any more.
        if let Some(before) = self.workers.at(conn).filter(|before| *before != worker) {
            self.worker_left(before);
        }
        if let Some(old) = self.workers.join(hello, self.now).filter(|old| *old != conn) {
            self.actions.push_back(Action::Close { conn: old, why: "the worker connected again" });
        }
        if class == WorkerClass::Leasing {
            self.watch_silence(worker, self.now);
        } else {
            // A stock worker's id is new with each process, so what it held before is not with it any more.
            self.lose_all(worker, AttemptEnd::WorkerLost);
        }
        self.queues.look_again();
        self.dirty = true;
    }

    /// A worker said something.
    fn heard_of(&mut self, conn: ConnId) {
        let now = self.now;
        if let Some(worker) = self.workers.at(conn).and_then(|worker| self.workers.get_mut(worker)) {
            worker.heard_at = now;
            self.dirty |= std::mem::take(&mut worker.silent);
        }
    }

    fn credit(&mut self, conn: ConnId, delta: i32) {
        if let Some(worker) = self.workers.at(conn).and_then(|worker| self.workers.get_mut(worker)) {
            worker.offer(delta);
            self.dirty = true;
        }
    }

    fn progress(&mut self, conn: ConnId, job: JobId, run: Run, attempt: Attempt, doing: Doing) {
        let Some(worker) = self.workers.at(conn) else { return };
        if !self.renew(worker, job, run, attempt) {
            self.actions.push_back(Action::Abandon { conn, job, attempt });
            return;
        }
        if self.state.job(job).is_some_and(|job| job.announced) {
            // It is receiving: nothing runs before the job is taken.
            return;
        }
        let lease = self.workers.get_mut(worker).and_then(|worker| worker.held.get_mut(&job));
        let stage = match doing {
            Doing::Running => LeaseStage::Started,
            Doing::Returning => LeaseStage::Returning,
        };
        // What it says late of a job that has ended there is no news.
        let before = lease.map(|lease| {
            let before = lease.stage;
            lease.stage = before.max(stage);
            before
        });
        let began = before == Some(LeaseStage::Given);
        // Its place is free, if it has offered that.
        self.dirty |= doing == Doing::Returning && before.is_some_and(|before| before < stage);
        let client = self.state.job(job).and_then(|known| self.submitter_of(job, &known.client));
        if let (true, Some(conn)) = (began, client) {
            self.actions.push_back(Action::Running { conn, job, run, attempt });
        }
    }

    fn heartbeat(&mut self, conn: ConnId, cpu_permille: u16, credit: u32, held: &[(JobId, Run, Attempt)]) {
        let Some(id) = self.workers.at(conn) else { return };
        let is_back = self.workers.get(id).is_some_and(|worker| worker.owes_inventory);
        for (job, run, attempt) in held {
            if !self.renew(id, *job, *run, *attempt) {
                self.not_wanted(conn, *job, *run, *attempt);
            } else if is_back {
                self.brought_along(id, conn, *job, *attempt);
            }
        }
        let Some(worker) = self.workers.get_mut(id) else { return };
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

    /// A worker's connection is slow, and not silent: no lease ends meanwhile. Those of an earlier life of the leader begin when the
    /// worker has said what it holds.
    fn moves(&mut self, conn: ConnId) {
        let until = self.now.plus(self.config.lease);
        if let Some(worker) = self.workers.at(conn).and_then(|worker| self.workers.get_mut(worker)) {
            for lease in worker.held.values_mut() {
                lease.until = lease.until.map(|_| until);
            }
        }
    }

    /// A worker holds what it should not: a job that has ended is settled, any other is taken away.
    fn not_wanted(&mut self, conn: ConnId, job: JobId, run: Run, attempt: Attempt) {
        let known = self.state.job(job);
        let has_ended = known.is_none_or(Job::has_ended);
        // What was not started has no result, and what came as transfers may still be coming: that is to stop, too.
        let may_be_receiving = run == Run(0) || known.is_some_and(Job::comes_by_transfer);
        if !has_ended || may_be_receiving {
            self.actions.push_back(Action::Abandon { conn, job, attempt });
        }
        if has_ended && run != Run(0) {
            self.actions.push_back(Action::Settle { conn, job, run });
        }
    }

    /// Renews a lease, if this worker holds it for this attempt.
    fn renew(&mut self, worker: WorkerId, job: JobId, run: Run, attempt: Attempt) -> bool {
        let until = self.now.plus(self.config.lease);
        let lease = self.workers.get_mut(worker).and_then(|worker| worker.held.get_mut(&job));
        // Who was not told to start does not know the run; attempts count over all of them.
        let is_run = |lease: &Lease| lease.run == run || run == Run(0);
        match lease.filter(|lease| is_run(lease) && lease.attempt == attempt) {
            // One of an earlier life of the leader has no end yet.
            Some(lease) if lease.until.is_none() && !self.assigning.contains_key(&job) => {
                lease.until = Some(until);
                self.watch_lease(worker, job, until);
                true
            }
            Some(lease) => {
                lease.until = lease.until.map(|_| until);
                true
            }
            None => false,
        }
    }

    fn closed(&mut self, conn: ConnId) {
        self.client_left(conn);
        if let Some(worker) = self.workers.at(conn) {
            self.worker_left(worker);
        }
    }

    fn worker_left(&mut self, id: WorkerId) {
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
        self.forget_holdings(id);
        // What only this worker could have, nobody will.
        for job in self.pinned.remove(&id).unwrap_or_default().into_values() {
            if let Some(run) = self.state.job(job).map(|job| job.run) {
                self.propose(Record::Orphan { at: self.now, job, run });
            }
        }
    }

    fn lose_all(&mut self, worker: WorkerId, why: AttemptEnd) {
        let held: Vec<JobId> =
            self.workers.get(worker).map(|worker| worker.held.keys().copied().collect()).unwrap_or_default();
        for job in held {
            self.lose(worker, job, why);
        }
    }

    /// Takes a job from a worker that will not return a result for it.
    pub(super) fn lose(&mut self, worker: WorkerId, job: JobId, why: AttemptEnd) {
        if let Some(lease) = self.release(worker, job) {
            self.unwatch_lease(worker, job, &lease);
            self.attempt_over(worker, job, lease, why, true);
        }
    }

    /// An attempt ended without a result: the job waits again, or has used up its attempts.
    pub(super) fn attempt_over(
        &mut self,
        worker: WorkerId,
        id: JobId,
        lease: Lease,
        why: AttemptEnd,
        others: bool,
    ) {
        if let (Some(lack), Some(worker)) = (why.lack(), self.workers.get_mut(worker)) {
            worker.lacked = Some((lack, self.now));
        }
        // One that has ended keeps its worker's place until that answers; that is all that is lost with it.
        let Some(job) = self.state.job(id).filter(|job| !job.has_ended()) else { return };
        if !self.is_with(id, worker) {
            // An earlier job of that id was dropped, and this is what the worker had of it.
            return;
        }
        let (run, attempt) = (lease.run, lease.attempt);
        // An assignment that is not applied yet is found stale when its turn comes, unless it is the one that holds.
        let counts = match why {
            AttemptEnd::InputsBad => true,
            // That is its client's doing, and says nothing of the job.
            AttemptEnd::InputsStalled => false,
            // It never started. How often that may happen has a limit of its own.
            AttemptEnd::DiskFull | AttemptEnd::NoDirectory => false,
            AttemptEnd::TimedOut
            | AttemptEnd::WorkerLost
            | AttemptEnd::NotHeld
            | AttemptEnd::ResultLost
            | AttemptEnd::GivenUp => lease.stage > LeaseStage::Given,
        };
        let spent = job.spent + u32::from(counts);
        if job.child_of.is_some() && why == AttemptEnd::WorkerLost {
            self.propose(Record::Orphan { at: self.now, job: id, run });
            return;
        }
        let no_room = why.lack().map(|lack| (lack, self.after_no_room(job, worker)));
        if spent >= self.config.attempts_max || !others || matches!(no_room, Some((_, AfterNoRoom::GiveUp))) {
            self.propose(Record::Dlq { at: self.now, job: id, run, attempt, why });
            return;
        }
        let entropy = id.0.as_u64_pair().1 ^ u64::from(attempt.0);
        // Also what does not count makes the next one wait: nothing may go round and round without a pause.
        let before = u32::try_from(job.history.len()).unwrap_or(u32::MAX);
        let is_stock = self.workers.get(worker).is_some_and(|worker| worker.class != WorkerClass::Leasing);
        let waits = match why {
            // A stock worker's time is that of the schedule: it has waited already.
            AttemptEnd::TimedOut if is_stock => 0,
            AttemptEnd::TimedOut => before.saturating_add(1),
            // A first loss is requeued at once; a job that loses worker after worker may be what kills them.
            AttemptEnd::WorkerLost
            | AttemptEnd::NotHeld
            | AttemptEnd::ResultLost
            | AttemptEnd::GivenUp
            | AttemptEnd::InputsStalled
            | AttemptEnd::DiskFull
            | AttemptEnd::NoDirectory
            | AttemptEnd::InputsBad => before,
        };
        let wait = match no_room {
            Some((_, AfterNoRoom::Again { times })) => Backoff::NO_ROOM.delay(times, entropy),
            Some((_, AfterNoRoom::Another | AfterNoRoom::GiveUp)) | None => {
                Backoff::DELIVERY.delay(waits, entropy)
            }
        };
        if let Some((lack, _)) = no_room
            && let Some(conn) = self.submitter_of(id, &job.client)
        {
            let why = Waiting::WorkerLacks { worker, lack };
            self.actions.push_back(Action::Waiting { conn, job: id, why });
        }
        let not_before = self.now.plus(wait);
        self.propose(Record::Requeue { job: id, run, attempt, why, counts, not_before });
    }

    /// What becomes of a job whose inputs a worker has no room for, or no directory. One that fits nowhere must not go round for ever.
    fn after_no_room(&self, job: &Job, worker: WorkerId) -> AfterNoRoom {
        let times = job.lacking_attempts() + 1;
        match self.may_find_room_elsewhere(job, Some(worker)) {
            true if times < HISTORY_MAX => AfterNoRoom::Another,
            false if times < NO_ROOM_ATTEMPTS_MAX => {
                AfterNoRoom::Again { times: u32::try_from(times).unwrap_or(u32::MAX) }
            }
            true | false => AfterNoRoom::GiveUp,
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
        if not_before > self.now || self.assigning.contains_key(&id) || (job.announced && job.to_all) {
            return 0;
        }
        if job.needs_client() && !self.is_fed(id) {
            return 0;
        }
        let Some(job) = self.state.job(id) else { return 0 };
        let place = job.place();
        self.dirty = true;
        match job.child_of {
            Some((_, worker)) => {
                if self.workers.get(worker).is_none() {
                    let run = job.run;
                    self.propose(Record::Orphan { at: self.now, job: id, run });
                } else {
                    self.pinned.entry(worker).or_default().insert(place, id);
                }
                0
            }
            None => {
                self.undelay(id);
                self.waits.look_at(id);
                let Some(job) = self.state.job(id) else { return 0 };
                self.staging.wake_for(job);
                self.queues.push(&job.key, &job.client, place, id, job.size, job.rank())
            }
        }
    }
}

/// What becomes of a job whose inputs a worker has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AfterNoRoom {
    /// It goes to another worker, or waits for one.
    Another,
    /// There is no other: it is tried again after a while.
    Again {
        /// How often that has happened.
        times: u32,
    },
    /// That has happened too often.
    GiveUp,
}

/// Where a job stands, to its client.
pub(super) fn standing(job: &Job) -> Standing {
    match job.phase {
        Phase::Queued { .. } => Standing::Queued,
        Phase::Leased { .. } if job.announced => Standing::Assigned,
        Phase::Leased { .. } | Phase::Gathering { .. } => Standing::Running,
        Phase::Done { .. } | Phase::Dead { .. } => Standing::Finished,
    }
}
