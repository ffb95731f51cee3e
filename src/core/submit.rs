//! Handles clients: their identity, their submissions, and the delivery of their results.
//!
//! Submitted is sent when the job's record is committed; `record.rs` says which records are synced
//! for that.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use chunking::limits::FRAME_BODY_BYTES_MAX;

use super::action::{Action, Refusal, Standing};
use super::broken;
use super::broker::{Broker, standing};
use super::capacity::give_back;
use super::event::{ClientPeer, Inputs, Submission};
use super::ids::{ClientId, ConnId, JobId, Micros, Run, WorkerId};
use super::job::{Job, Phase};
use super::payload::PayloadKind;
use super::record::Record;
use super::retry::mix;
use super::timers::Due;

/// Jobs that are being taken or announced, and the bytes of their names.
#[derive(Debug, Default)]
pub(super) struct Takings {
    of: HashMap<JobId, Taking>,
    names_bytes: u64,
}

impl Takings {
    pub(super) fn get(&self, job: JobId) -> Option<&Taking> {
        self.of.get(&job)
    }

    pub(super) fn contains(&self, job: JobId) -> bool {
        self.of.contains_key(&job)
    }

    pub(super) fn len(&self) -> usize {
        self.of.len()
    }

    fn insert(&mut self, job: JobId, taking: Taking) {
        self.names_bytes += taking.names_bytes;
        if let Some(before) = self.of.insert(job, taking) {
            self.names_bytes -= before.names_bytes;
        }
    }

    pub(super) fn remove(&mut self, job: JobId) {
        self.names_bytes -= self.of.remove(&job).map_or(0, |taking| taking.names_bytes);
        give_back(&mut self.of);
    }
}

/// A job that is being taken or announced.
#[derive(Debug)]
pub(super) struct Taking {
    fingerprint: [u8; 32],
    client: ClientId,
    /// With those of its children.
    names_bytes: u64,
    /// What was submitted, if it is only announced.
    pub(super) announced: Option<Box<Submission>>,
}

/// Who is connected as a client, and who submitted what.
#[derive(Debug, Default)]
pub(super) struct Clients {
    pub(super) at: BTreeMap<ConnId, ClientId>,
    pub(super) conns_of: BTreeMap<ClientId, BTreeSet<ConnId>>,
    /// The caps of connected clients. The state remembers only a limited number of caps.
    pub(super) caps_named: BTreeMap<ClientId, u32>,
    /// Connections of classic ones.
    classic: BTreeMap<ConnId, ClassicClient>,
    /// Connections that came to ask: nobody knows the ids that they were given.
    askers: BTreeSet<ConnId>,
    /// Where jobs were submitted last, connected or not.
    pub(super) submitters: HashMap<JobId, Submitter>,
}

/// Where a job was submitted last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Submitter {
    conn: ConnId,
    /// The run that the job had then. Of a later one the client knows nothing.
    run: Run,
}

impl Clients {
    /// Forgets where a job was submitted.
    pub(super) fn forget_submitter(&mut self, job: JobId) {
        self.submitters.remove(&job);
        give_back(&mut self.submitters);
    }

    /// Those that are connected, but for those that came to ask.
    pub(super) fn named(&self) -> impl Iterator<Item = &ClientId> {
        let is_named = |conns: &BTreeSet<ConnId>| !conns.is_subset(&self.askers);
        self.conns_of.iter().filter(move |(_, conns)| is_named(conns)).map(|(client, _)| client)
    }

    /// Connections and clients name each other.
    pub(super) fn check(&self) -> Result<(), String> {
        let pairs: BTreeSet<_> = self.at.iter().map(|(conn, client)| (client, *conn)).collect();
        let conns = self
            .conns_of
            .iter()
            .flat_map(|(client, conns)| conns.iter().map(move |conn| (client, *conn)));
        if pairs != conns.collect() {
            return Err("clients and their connections do not agree".to_owned());
        }
        if !self.caps_named.keys().all(|client| self.conns_of.contains_key(client)) {
            return Err("a cap is named by a client that is not connected".to_owned());
        }
        Ok(())
    }
}

/// A connection of a classic client.
#[derive(Clone, Copy, Debug)]
struct ClassicClient {
    /// From when on it may get results of jobs that were not submitted on it.
    from: Micros,
    /// The last job that was made when it submitted a new one.
    newest: Option<u64>,
}

/// How long a classic client that has just come has to submit something new. One that does is a new
/// run of its program, and would take the results of the last run for its own; one that does not
/// has lost its connection and waits for them.
const REDELIVERY_WAIT: Duration = Duration::from_secs(2);

impl Broker {
    pub(super) fn client_hello(
        &mut self,
        conn: ConnId,
        client: ClientId,
        cap: Option<u32>,
        peer: ClientPeer,
    ) {
        // A second hello may name another client, and the first one's results are not for that.
        self.client_left(conn);
        self.clients.at.insert(conn, client.clone());
        self.clients.conns_of.entry(client.clone()).or_default().insert(conn);
        let cap = cap.map(|cap| cap.max(1));
        if let Some(cap) = cap.filter(|cap| *cap != self.cap_to_be(&client)) {
            self.propose(Record::Cap { client: client.clone(), cap });
        }
        if let Some(cap) = cap {
            self.clients.caps_named.insert(client.clone(), cap);
        }
        match peer {
            // It submits its jobs again, or asks for results.
            ClientPeer::Heft => {}
            ClientPeer::Asker => {
                self.clients.askers.insert(conn);
            }
            ClientPeer::Classic => {
                let from = self.now.plus(REDELIVERY_WAIT);
                self.clients.classic.insert(conn, ClassicClient { from, newest: None });
                self.due.insert((from, Due::Redeliver(conn)));
            }
        }
    }

    /// Delivers the results that waited for a client, those of the oldest jobs first.
    fn redeliver(&mut self, client: &ClientId) {
        let waiting = self.results.undelivered.remove(client).unwrap_or_default();
        let mut waiting: Vec<(u64, JobId)> = waiting
            .into_iter()
            .filter_map(|id| self.state.job(id).map(|job| (job.seq, id)))
            .collect();
        waiting.sort_unstable();
        for (_, job) in waiting {
            self.deliver(job);
        }
    }

    pub(super) fn redelivery_due(&mut self, conn: ConnId) {
        if let Some(client) = self.clients.at.get(&conn).cloned() {
            self.redeliver(&client);
        }
    }

    /// Whether a connection may get the result of a job that was not submitted on it. A heft client
    /// may not: several programs share its id, and each submits its jobs again where it lost its
    /// connection. A classic client takes any result for one of its own: so it gets one only as
    /// long as it has not submitted anything that is newer.
    fn may_redeliver(&self, conn: ConnId, seq: u64) -> bool {
        self.clients.classic.get(&conn).is_some_and(|classic| {
            classic.from <= self.now && classic.newest.is_none_or(|newest| newest < seq)
        })
    }

    /// Whether a connection may still get a result that was to go to it. While the result waited
    /// its turn a classic client may have submitted something new: then it is another run of its
    /// program, and the result is not for that. And any client may have said hello again, under
    /// another name.
    pub fn may_get(&self, conn: ConnId, id: JobId) -> bool {
        self.state.job(id).is_none_or(|job| {
            self.submitter_of(id, &job.submission.client) == Some(conn)
                || self.clients.at.get(&conn) == Some(&job.submission.client)
                    && self.may_redeliver(conn, job.seq)
        })
    }

    pub(super) fn client_left(&mut self, conn: ConnId) {
        self.clients.askers.remove(&conn);
        if let Some(classic) = self.clients.classic.remove(&conn) {
            self.due.remove(&(classic.from, Due::Redeliver(conn)));
        }
        if let Some(client) = self.clients.at.remove(&conn)
            && let Some(conns) = self.clients.conns_of.get_mut(&client)
        {
            conns.remove(&conn);
            if conns.is_empty() {
                self.clients.conns_of.remove(&client);
                self.clients.caps_named.remove(&client);
            }
        }
        self.sources_left(conn);
    }

    pub(super) fn submit(&mut self, conn: ConnId, job: Submission) {
        let id = job.job;
        if self.resubmitted(conn, &job) {
            return;
        }
        if let Some(taking) = self.intake.enqueuing.get(id) {
            if taking.fingerprint == job.fingerprint && taking.client == job.client {
                self.clients.submitters.insert(id, Submitter { conn, run: Run(1) });
            } else {
                self.refuse(conn, id, Refusal::Conflict { job: id });
            }
            return;
        }
        if let Some(known) = self.state.job(id) {
            let is_same = known.submission.fingerprint == job.fingerprint
                && known.submission.client == job.client;
            if is_same && known.child_of.is_none() {
                self.submitted_again(conn, id);
            } else {
                self.refuse(conn, id, Refusal::Conflict { job: id });
            }
            return;
        }
        let (held, limit) =
            (self.state.job_count() + self.intake.enqueuing.len(), self.config.jobs_max);
        let children = if job.to_all { self.children_of(&job) } else { Vec::new() };
        // Children are called as their job is.
        let names_bytes = job.names_bytes().saturating_mul(children.len() as u64 + 1);
        let names_held = self.state.names_bytes() + self.intake.enqueuing.names_bytes;
        let names_limit = self.config.names_bytes_max;
        let is_taken = |(child, _): &(JobId, WorkerId)| {
            self.state.job(*child).is_some() || self.intake.enqueuing.contains(*child)
        };
        let refusal = match () {
            () if self.draining => Some(Refusal::Draining),
            () if held + children.len() >= limit => Some(Refusal::Full { held, limit }),
            () if names_held.saturating_add(names_bytes) > names_limit => {
                Some(Refusal::NamesFull {
                    bytes: names_bytes,
                    held: names_held,
                    limit: names_limit,
                })
            }
            () if children.iter().any(is_taken) => Some(Refusal::Conflict { job: id }),
            () if job.to_all && children.is_empty() || job.require_worker => {
                self.no_worker_for(&job)
            }
            () => None,
        };
        if let Some(refusal) = refusal {
            return self.refuse(conn, id, refusal);
        }
        if let Some(classic) = self.clients.classic.get_mut(&conn) {
            classic.newest = Some(self.state.last_seq());
        }
        let is_announced = job.inputs == Inputs::Expected;
        let announced = is_announced.then(|| Box::new(job.clone()));
        let taking = Taking {
            fingerprint: job.fingerprint,
            client: job.client.clone(),
            names_bytes,
            announced,
        };
        self.intake.enqueuing.insert(id, taking);
        self.clients.submitters.insert(id, Submitter { conn, run: Run(1) });
        self.name_cap_again(&job.client);
        let at = self.now;
        self.propose(match job.inputs {
            Inputs::Here => Record::Enqueue { at, job, children, kept: true },
            Inputs::Expected => Record::Announce { at, job },
        });
    }

    /// A client submits a job whose cap was forgotten while it had none: the cap is to outlive its
    /// connection.
    fn name_cap_again(&mut self, client: &ClientId) {
        let Some(cap) = self.clients.caps_named.get(client).copied() else { return };
        let is_proposed = |record: &Record| matches!(record, Record::Cap { client: named, .. } if named == client);
        if self.state.cap(client).is_none() && !self.proposed().any(is_proposed) {
            self.propose(Record::Cap { client: client.clone(), cap });
        }
    }

    /// Why no connected worker could take a job, if none could.
    pub(super) fn no_worker_for(&self, job: &Submission) -> Option<Refusal> {
        let mut workers = Vec::new();
        self.workers.matching(job.key.as_str(), &mut workers);
        let key = job.key.to_string();
        if workers.is_empty() {
            return Some(Refusal::NoWorker { key });
        }
        let (kind, matching) = (job.payload_kind(), workers.len());
        self.retain_readers(kind, &mut workers);
        if workers.is_empty() {
            return Some(Refusal::NoReader { key, workers: matching, kind });
        }
        // To all means as it is; a single one may come by way of an agent.
        let staged = !job.to_all && self.any_agent(&workers);
        let lacks = job.needs_transfers && !staged && self.lacks_transfers(&job.key).is_some();
        let (bytes, limit) = (job.size, FRAME_BODY_BYTES_MAX.into());
        if lacks {
            return Some(Refusal::NoCapableWorker { key, workers: workers.len(), bytes, limit });
        }
        // To all means those that have them now (S22).
        let is_any = self.any_may_have_datasets(&job.datasets, &workers)
            || !job.to_all && self.any_agent_may_hold(&job.datasets, &workers);
        if !is_any {
            return Some(Refusal::NoDatasets { key, workers: workers.len() });
        }
        // Of a job to all, each part says so for its worker.
        (!job.to_all).then(|| self.nobody_has_program(job)).flatten().map(Refusal::NoProgram)
    }

    /// Leaves those workers that read payloads of this kind.
    pub(super) fn retain_readers(&self, kind: PayloadKind, workers: &mut Vec<WorkerId>) {
        workers
            .retain(|worker| self.workers.get(*worker).is_some_and(|worker| worker.reads >= kind));
    }

    pub(super) fn refuse(&mut self, conn: ConnId, job: JobId, refusal: Refusal) {
        self.actions.push_back(Action::Refuse { conn, job, refusal });
    }

    /// A job that is known comes again: its client hears where it stands, and gets the stored
    /// result (C17).
    fn submitted_again(&mut self, conn: ConnId, id: JobId) {
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} came again, and is not known");
        };
        self.clients.submitters.insert(id, Submitter { conn, run: job.run });
        let (run, standing, is_announced) =
            (job.run, standing(job), job.is_announced() && !job.has_ended());
        self.source_came(id);
        self.waits.tell_again(id);
        if is_announced {
            // It hears of the job when that is taken.
            return;
        }
        self.actions.push_back(Action::Submitted { conn, job: id, run, standing, ahead: 0 });
        if standing == Standing::Finished {
            self.deliver(id);
        }
    }

    /// One child for each worker that matches now (S22), with an id that follows from both.
    pub(super) fn children_of(&self, job: &Submission) -> Vec<(JobId, WorkerId)> {
        let mut workers = Vec::new();
        self.workers.matching(job.key.as_str(), &mut workers);
        self.retain_readers(job.payload_kind(), &mut workers);
        if job.needs_transfers {
            workers
                .retain(|worker| self.workers.get(*worker).is_some_and(|worker| worker.transfers));
        }
        let datasets = self.known_datasets(&job.datasets);
        let may_have = |worker: &WorkerId| {
            self.workers
                .get(*worker)
                .is_some_and(|worker| self.may_have_datasets(worker, &datasets))
        };
        workers.retain(may_have);
        let child = |worker: WorkerId| {
            let (job_high, job_low) = job.job.0.as_u64_pair();
            let (high, low) = worker.0.as_u64_pair();
            let id = uuid::Uuid::from_u64_pair(mix(job_high ^ mix(high)), mix(job_low ^ mix(low)));
            (JobId(id), worker)
        };
        workers.into_iter().map(child).collect()
    }

    pub(super) fn enqueued(&mut self, submission: &Submission, children: &[(JobId, WorkerId)]) {
        let id = submission.job;
        if submission.inputs == Inputs::Expected {
            self.inputs_came(id);
        }
        for (child, _) in children {
            self.make_ready(*child);
        }
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} is taken, and is not known");
        };
        let run = job.run;
        let (standing, ahead) = match job.phase {
            Phase::Leased { .. } => (Standing::Assigned, 0),
            Phase::Queued { .. } => (Standing::Queued, self.make_ready(id)),
            Phase::Gathering { .. } | Phase::Done { .. } | Phase::Dead { .. } => {
                (Standing::Queued, 0)
            }
        };
        let Some(conn) = self.submitter_of(id, &submission.client) else { return };
        let ahead = u32::try_from(ahead).unwrap_or(u32::MAX);
        self.actions.push_back(Action::Submitted { conn, job: id, run, standing, ahead });
    }

    /// The connection that submitted a job, if it is there and still its client's.
    pub fn submitter_of(&self, job: JobId, client: &ClientId) -> Option<ConnId> {
        self.clients
            .submitters
            .get(&job)
            .map(|submitter| submitter.conn)
            .filter(|conn| self.clients.at.get(conn) == Some(client))
    }

    /// The same, if it has submitted this run of the job: of one that an operator began it has had
    /// the end, and keeps no inputs.
    pub(super) fn source_of(&self, job: &Job) -> Option<ConnId> {
        let submitter = self.clients.submitters.get(&job.id())?;
        let conn = self.submitter_of(job.id(), &job.submission.client)?;
        (submitter.run == job.run).then_some(conn)
    }

    /// Sends a result to the connection that submitted the job, else to any classic one of the same
    /// client; else it is kept. It counts as delivered when
    /// [`Event::Delivered`](super::Event::Delivered) says so.
    pub(super) fn deliver(&mut self, id: JobId) {
        let Some(job) = self.state.job(id).filter(|job| job.has_ended()) else { return };
        let (client, run, seq) = (job.submission.client.clone(), job.run, job.seq);
        let submitter = self.submitter_of(id, &client);
        let any = || {
            let conns = self.clients.conns_of.get(&client)?;
            conns.iter().rev().copied().find(|conn| self.may_redeliver(*conn, seq))
        };
        match submitter.or_else(any) {
            Some(conn) => {
                self.no_longer_undelivered(&client, id);
                self.actions.push_back(Action::Deliver { conn, job: id, run });
            }
            None => {
                self.results.undelivered.entry(client).or_default().insert(id);
            }
        }
    }
}
