//! Assigns jobs to workers: one pass over the routing keys with waiting jobs, and the effects of a
//! committed assignment.

use std::collections::{BTreeMap, HashMap};

use super::action::{Action, Assignment};
use super::broker::Broker;
use super::choose::{Choice, StickyAssignments};
use super::event::WorkerClass;
use super::ids::{Attempt, ClientId, ConnId, JobId, Run, WorkerId};
use super::lease::{Lease, LeaseStage};
use super::limits::ASSIGNMENTS_PER_PASS_MAX;
use super::queue::{Taker, Takes};
use super::record::{AttemptEnd, Record};
use super::retry::Backoff;
use super::state::State;
use super::subject::RoutingKey;
use super::worker::Worker;
use super::{broken, count_down};

/// Jobs that a pass may find no worker for, although there is one for others of the same key.
const PASSED_OVER_MAX: usize = 64;

/// Assignments proposed but not yet applied; their resources are already reserved.
#[derive(Debug, Default)]
pub(super) struct Assignments {
    of: HashMap<JobId, Assigning>,
    /// Their number by client, toward its cap.
    shares: HashMap<ClientId, u32>,
    /// How many were made in all.
    made: u64,
    /// The workers that had the last jobs of clients.
    pub(super) sticky: StickyAssignments,
}

#[derive(Debug)]
struct Assigning {
    /// The worker whose credit it took.
    worker: WorkerId,
    /// The client whose cap it counts toward, if it does.
    capped: Option<ClientId>,
}

impl Assignments {
    /// The worker that is about to get a job.
    pub(super) fn worker_of(&self, job: JobId) -> Option<WorkerId> {
        self.of.get(&job).map(|assigning| assigning.worker)
    }

    pub(super) fn contains(&self, job: JobId) -> bool {
        self.of.contains_key(&job)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.of.is_empty()
    }

    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.of.len() + self.shares.len()
    }

    /// A worker is about to get a job, which counts toward this client's cap; gives the number of
    /// the assignment.
    fn begin(&mut self, job: JobId, worker: WorkerId, capped: Option<ClientId>) -> u64 {
        if let Some(client) = &capped {
            *self.shares.entry(client.clone()).or_default() += 1;
        }
        self.of.insert(job, Assigning { worker, capped });
        self.made += 1;
        self.made
    }

    /// The assignment has its turn; gives the client whose share it had taken.
    fn end(&mut self, job: JobId) -> Option<ClientId> {
        let client = self.of.remove(&job)?.capped?;
        if let Some(share) = self.shares.get_mut(&client) {
            count_down!(*share, 1, "client {client} has no share, and one less");
            if *share == 0 {
                self.shares.remove(&client);
            }
        } else {
            broken!("job {job} took a share of client {client}, which has none");
        }
        Some(client)
    }

    /// Whether a client has fewer jobs at workers than its cap.
    fn is_under_cap(&self, state: &State, cap: u32, client: &ClientId) -> bool {
        let under_way = state.running(client) + self.shares.get(client).copied().unwrap_or(0);
        under_way < cap
    }

    /// Says which invariant does not hold, if one does not.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut shares: HashMap<ClientId, u32> = HashMap::new();
        for client in self.of.values().filter_map(|assigning| assigning.capped.clone()) {
            *shares.entry(client).or_default() += 1;
        }
        if shares != self.shares {
            return Err(format!(
                "shares of clients: {shares:?}, and {:?} are counted",
                self.shares
            ));
        }
        Ok(())
    }
}

/// How many jobs of a client may run at a time: what the state knows, or what its connection named
/// and the default.
pub(super) fn cap_among(
    state: &State,
    (named, default): (&BTreeMap<ClientId, u32>, u32),
    client: &ClientId,
) -> u32 {
    state.cap(client).or_else(|| named.get(client).copied()).unwrap_or(default)
}

impl Broker {
    /// Assigns every job that can be assigned (SC08, SC09).
    pub(super) fn schedule(&mut self) {
        if self.draining {
            return;
        }
        self.serve_pinned();
        self.wake_for_room();
        self.serve_keys();
        self.ask_agents();
        self.stage_inputs();
    }

    /// Gives out jobs of all keys, each in its turn.
    fn serve_keys(&mut self) {
        let mut matching = Vec::new();
        let mut turn = 0;
        for _ in 0..self.queues.key_count() {
            if !self.workers.any_roomy() {
                return;
            }
            let Some(key) = self.queues.key_at(turn).cloned() else { return };
            let mut given = 0;
            if self.queues.is_open(&key) {
                self.workers.roomy(key.as_str(), &mut matching);
                if matching.is_empty() {
                    self.workers.matching(key.as_str(), &mut matching);
                    if matching.is_empty() {
                        self.queues.put_aside(turn);
                        continue;
                    }
                    matching.clear();
                }
                given = self.serve(&key, &mut matching);
            }
            turn = self.queues.end_turn(turn, &key, given > 0);
        }
    }

    /// Gives jobs of a key out to these workers, which have room; says how many.
    fn serve(&mut self, key: &RoutingKey, matching: &mut Vec<WorkerId>) -> usize {
        let mut passed_over = Vec::new();
        let (mut given, mut delayed) = (0, 0);
        let mut takes = self.taken_by(matching);
        loop {
            if given + delayed + passed_over.len() == ASSIGNMENTS_PER_PASS_MAX {
                self.pass_again();
                break;
            }
            if passed_over.len() == PASSED_OVER_MAX || matching.is_empty() {
                break;
            }
            let (state, assigning) = (&self.state, &self.assigning);
            let caps = (&self.clients.caps_named, self.config.cap_default);
            let may_run = |client: &ClientId| {
                assigning.is_under_cap(state, cap_among(state, caps, client), client)
            };
            let Some(job) = self.queues.pop(key, &takes, may_run) else { break };
            match self.choose(job, matching) {
                Choice::Give(worker) => {
                    self.assign(job, worker);
                    given += 1;
                    if !self.workers.get(worker).is_some_and(|worker| worker.has_room()) {
                        matching.retain(|with_room| *with_room != worker);
                        takes = self.taken_by(matching);
                    }
                }
                choice @ (Choice::Wait { .. }
                | Choice::Late
                | Choice::Strand
                | Choice::Elsewhere) => {
                    self.delay(job, choice);
                    delayed += 1;
                }
                Choice::Pass => passed_over.push(job),
            }
        }
        for job in passed_over {
            self.make_ready(job);
        }
        given
    }

    /// Whether a client has fewer jobs at workers than its cap.
    pub(super) fn may_run(&self, client: &ClientId) -> bool {
        self.assigning.is_under_cap(&self.state, self.cap_of(client), client)
    }

    /// What these workers take: a job none of them takes is skipped, so that it blocks no other.
    fn taken_by(&self, workers: &[WorkerId]) -> Takes {
        let workers = workers.iter().filter_map(|worker| self.workers.get(*worker));
        let taker = |worker: &Worker| Taker {
            transfers: worker.transfers,
            reads: worker.reads,
            programs: worker.programs.clone(),
            refused: self.avoided_at(worker.id).map(|(exec, _)| exec.clone()).collect(),
        };
        workers.map(taker).collect()
    }

    /// Children of jobs to all workers, each to its own (S22). They take credit like any other, and
    /// no part of a cap: their number is the number of workers.
    fn serve_pinned(&mut self) {
        let ready: Vec<WorkerId> = self.queues.pinned.keys().copied().collect();
        for worker in ready {
            while self.workers.get(worker).is_some_and(|worker| worker.has_room()) {
                let Some(jobs) = self.queues.pinned.get_mut(&worker) else { break };
                let Some((_, job)) = jobs.pop_first() else { break };
                self.assign(job, worker);
            }
            if self.queues.pinned.get(&worker).is_some_and(BTreeMap::is_empty) {
                self.queues.pinned.remove(&worker);
            }
        }
    }

    /// Proposes an assignment. The worker's credit and the client's share are taken at once, so
    /// that no other job gets them before the record is committed.
    fn assign(&mut self, id: JobId, worker: WorkerId) {
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} is given to worker {worker}, and is not known");
        };
        let (run, attempt) = (job.run, job.attempt.next());
        let (client, key, is_capped) =
            (job.submission.client.clone(), job.submission.key.clone(), job.is_capped());
        self.locality.holdings.expect(worker, id, job.datasets());
        if let Some(agent) = self.locality.holdings.agent_of(worker) {
            self.locality.asks.used(agent, job.datasets());
        }
        let Some(chosen) = self.workers.get_mut(worker) else {
            return broken!("job {id} is given to worker {worker}, which is not known");
        };
        count_down!(chosen.credit, 1, "job {id} is given to worker {worker}, which has no room");
        chosen.last_assigned = self.assigning.begin(id, worker, is_capped.then(|| client.clone()));
        let class = chosen.class;
        let lease = Lease::given(run, attempt);
        self.workers.hold(worker, id, lease);
        self.waits.forget(id);
        self.forget_delay(id);
        if self.config.policy == super::choose::Policy::Sticky {
            self.assigning.sticky.insert(client, key, worker);
        }
        let at = Some(self.now);
        self.propose(Record::Assign { at, job: id, run, attempt, worker, class });
    }

    /// An assignment is committed: it is sent, unless it came too late.
    pub(super) fn assigned(
        &mut self,
        id: JobId,
        run: Run,
        attempt: Attempt,
        worker: WorkerId,
        counts: bool,
    ) {
        if let Some(client) = self.assigning.end(id).filter(|_| !counts) {
            // The assignment is stale: it gives back its share of the client's cap.
            self.queues.unpark(&client);
        }
        let (spent, start) =
            self.state.job(id).map_or((0, true), |job| (job.spent, !job.is_announced()));
        let Some(chosen) = self.workers.get_mut(worker) else { return };
        let Some(lease) =
            chosen.held.get_mut(&id).filter(|lease| lease.run == run && lease.attempt == attempt)
        else {
            return;
        };
        if !counts {
            // The job ended while the record was on its way; the worker never heard of it.
            chosen.credit = chosen.credit.saturating_add(1);
            self.release(worker, id);
            return;
        }
        let (class, presence) = (chosen.class, chosen.presence);
        let ack_timeout = || {
            let entropy = id.0.as_u64_pair().1 ^ u64::from(attempt.0);
            self.config
                .classic_ack_timeout
                .then(|| Backoff::DELIVERY.delay(spent.saturating_add(1), entropy))
        };
        let span = match class {
            WorkerClass::Leasing => Some(self.config.lease),
            WorkerClass::Classic => ack_timeout(),
            // An F0 worker answers without ids, so a second delivery could not be told from the
            // first (C03).
            WorkerClass::OneAtATime => None,
        };
        let until = span.map(|span| self.now.plus(span));
        lease.begin(class, until);
        match presence {
            super::worker::Presence::Here(conn) => {
                chosen.send(id);
                if let Some(until) = until {
                    self.watch_lease(worker, id, until);
                }
                let lease = self.config.lease;
                let assignment = Assignment { conn, worker, job: id, run, attempt, lease, start };
                self.actions.push_back(Action::Assign(assignment));
            }
            // The worker left before the record was committed and was never sent the job, so there
            // is nothing to wait for.
            super::worker::Presence::Away(_) => {
                lease.stage = LeaseStage::Given;
                self.lose(worker, id, AttemptEnd::WorkerLost);
            }
        }
    }

    /// An assignment that counts was not sent: the worker never heard of it, and the job waits
    /// again, if it has not ended. The credit that it took is the worker's again, also if the
    /// worker has answered meanwhile for an earlier assignment of the job.
    pub(super) fn not_assigned(
        &mut self,
        conn: ConnId,
        worker: WorkerId,
        id: JobId,
        attempt: Attempt,
    ) {
        let chosen = self.workers.get_mut(worker).filter(|chosen| chosen.conn() == Some(conn));
        let Some(chosen) = chosen else { return };
        chosen.credit = chosen.credit.saturating_add(1);
        self.dirty = true;
        if chosen.held.get(&id).is_some_and(|lease| lease.attempt == attempt) {
            chosen.unsend(id);
            self.lose(worker, id, AttemptEnd::NotHeld);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_proposed_has_its_clients_share_until_its_turn() {
        let alice = ClientId::from("alice");
        let (state, mut assignments) = (State::default(), Assignments::default());
        let job = |number| JobId(uuid::Uuid::from_u128(number));
        let worker = WorkerId(uuid::Uuid::from_u128(9));
        assert_eq!(assignments.begin(job(1), worker, Some(alice.clone())), 1);
        // A child takes no share.
        assert_eq!(assignments.begin(job(2), worker, None), 2);
        assert!(assignments.is_under_cap(&state, 2, &alice));
        assignments.begin(job(3), worker, Some(alice.clone()));
        assert!(!assignments.is_under_cap(&state, 2, &alice));
        assert_eq!(
            (assignments.worker_of(job(3)), assignments.worker_of(job(4))),
            (Some(worker), None)
        );
        assert_eq!(assignments.check(), Ok(()));
        assert_eq!(assignments.end(job(2)), None);
        assert_eq!(assignments.end(job(1)), Some(alice.clone()));
        assert!(assignments.is_under_cap(&state, 2, &alice));
        assert_eq!(assignments.end(job(3)), Some(alice));
        assert_eq!((assignments.len(), assignments.check()), (0, Ok(())));
    }
}
