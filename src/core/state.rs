//! The broker's state and the one function that changes it.
//!
//! `apply` is called with committed records only, in order, and no other code changes a job. It
//! decides nothing: a record that no longer fits the state (a late requeue, a second result)
//! changes nothing and reports that.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use std::sync::Arc;

use uuid::Uuid;

use super::capacity::give_back;
use super::caps::Caps;
use super::cluster::Cluster;
use super::dataset::{DATASETS_REMOVED_MAX, Dataset};
use super::event::{Inputs, Submission, WorkerClass};
use super::ids::{Attempt, CacheId, ClientId, JobId, Micros, ResultId, Run, WorkerId};
use super::job::{AttemptNote, Ending, InputsState, Job, Phase, Times};
use super::limits::HISTORY_MAX;
use super::record::{AttemptEnd, Record};
use super::texts::Texts;
use super::{broken, count_down};

/// All that outlives a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Apart from the tree: its nodes are never full.
    jobs: BTreeMap<JobId, Box<Job>>,
    /// Those that are no children, in the order in which they came: lists go by it, a page at a
    /// time, however many jobs there are.
    by_seq: BTreeMap<u64, JobId>,
    dead: BTreeSet<(u64, JobId)>,
    /// Failed jobs whose inputs are retained, with when they ended.
    retained: BTreeSet<(Micros, JobId)>,
    caps: Caps,
    running: BTreeMap<ClientId, u32>,
    /// How many jobs of each client have not ended.
    open: HashMap<ClientId, usize>,
    /// What jobs have in common.
    texts: Texts,
    datasets: BTreeMap<CacheId, Arc<Dataset>>,
    /// Staged datasets, which hold the inputs of a job.
    staged: BTreeMap<CacheId, JobId>,
    /// Ids of datasets that were removed.
    datasets_removed: BTreeSet<CacheId>,
    seq: u64,
    /// Bytes of the names of all jobs.
    names_bytes: u64,
    cluster: Cluster,
}

/// What a record did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// It changed the state.
    Changed,
    /// A job runs again: the result of its last run is not needed any more.
    Revived(Option<ResultId>),
    /// It ended a job, and with it the job to all workers that waited for this last child.
    ChangedWithParent(JobId),
    /// It forgot a job that had ended: these went, the job and its children.
    Forgot(Vec<Job>),
    /// It dropped an announced job.
    Withdrew(Box<Job>),
    /// It put a dataset in the place of another, if there was one.
    PutDataset {
        /// The previous dataset.
        replaced: Option<Arc<Dataset>>,
    },
    /// It removed a dataset.
    RemovedDataset(Arc<Dataset>),
    /// It came too late, or again: nothing changed.
    Stale,
}

impl State {
    pub fn job(&self, job: JobId) -> Option<&Job> {
        self.jobs.get(&job).map(Box::as_ref)
    }

    /// All jobs, in the order of their ids.
    pub fn jobs(&self) -> impl Iterator<Item = &Job> {
        self.jobs.values().map(Box::as_ref)
    }

    /// The jobs that are no children, the newest first, and of those the ones before a place.
    pub fn newest(&self, before: Option<u64>) -> impl Iterator<Item = &Job> {
        let places = self.by_seq.range(..before.unwrap_or(u64::MAX)).rev();
        places.filter_map(|(_, job)| self.job(*job))
    }

    /// How many jobs there are, in whatever phase.
    pub fn job_count(&self) -> usize {
        self.jobs.len()
    }

    /// Bytes of the names of all jobs.
    pub fn names_bytes(&self) -> u64 {
        self.names_bytes
    }

    /// The dead-letter queue, the longest dead first.
    pub fn dead(&self) -> impl Iterator<Item = &Job> {
        self.dead.iter().filter_map(|(_, job)| self.job(*job))
    }

    /// Failed jobs whose inputs are retained for another run, in the order in which they ended.
    pub fn retained(&self) -> impl Iterator<Item = &Job> {
        self.retained.iter().filter_map(|(_, job)| self.job(*job))
    }

    /// How many those are.
    pub fn retained_count(&self) -> usize {
        self.retained.len()
    }

    /// A client's cap, if it ever named one.
    pub fn cap(&self, client: &ClientId) -> Option<u32> {
        self.caps.get(client)
    }

    /// Jobs of a client that workers have, as far as they count toward its cap.
    pub fn running(&self, client: &ClientId) -> u32 {
        self.running.get(client).copied().unwrap_or(0)
    }

    /// The clients whose jobs workers have, as far as they count toward their caps.
    pub fn running_clients(&self) -> impl Iterator<Item = &ClientId> {
        self.running.keys()
    }

    /// The caps that clients named, as far as they are kept.
    pub fn caps(&self) -> impl Iterator<Item = (&ClientId, u32)> {
        self.caps.iter()
    }

    /// What is kept under an id.
    pub fn dataset(&self, cache: &CacheId) -> Option<&Arc<Dataset>> {
        self.datasets.get(cache)
    }

    /// All datasets, in the order of their ids.
    pub fn datasets(&self) -> impl Iterator<Item = &Arc<Dataset>> {
        self.datasets.values()
    }

    /// How many datasets there are.
    pub fn dataset_count(&self) -> usize {
        self.datasets.len()
    }

    /// The jobs with staged inputs, and the ids of their datasets.
    pub fn staged_datasets(&self) -> impl Iterator<Item = (JobId, &CacheId)> {
        self.staged.iter().map(|(cache, job)| (*job, cache))
    }

    /// The job whose inputs the dataset under an id is, if it is such a one.
    pub fn staged_for(&self, cache: &CacheId) -> Option<JobId> {
        self.staged.get(cache).copied()
    }

    /// The ids of removed datasets, as far as they are remembered.
    pub fn datasets_removed(&self) -> impl Iterator<Item = &CacheId> {
        self.datasets_removed.iter()
    }

    /// Whether what was under an id was removed, as far as that is remembered.
    pub fn is_dataset_removed(&self, cache: &CacheId) -> bool {
        self.datasets_removed.contains(cache)
    }

    /// The place of the job that was made last.
    pub fn last_seq(&self) -> u64 {
        self.seq
    }

    /// The cluster that it belongs to.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// The same state, of this cluster.
    #[must_use]
    pub fn with_cluster(self, cluster: Cluster) -> Self {
        State { cluster, ..self }
    }

    /// The state that these parts were of, in any order: the rest follows from them. A dataset that
    /// is a job's inputs comes with that job.
    pub fn restore(
        jobs: impl IntoIterator<Item = Job>,
        caps: impl IntoIterator<Item = (ClientId, u32)>,
        datasets: impl IntoIterator<Item = (Arc<Dataset>, Option<JobId>)>,
        datasets_removed: impl IntoIterator<Item = CacheId>,
        seq: u64,
    ) -> Self {
        let datasets_removed = datasets_removed.into_iter().collect();
        let mut state = State { datasets_removed, seq, ..State::default() };
        let mut jobs: BTreeMap<JobId, Box<Job>> =
            jobs.into_iter().map(|job| (job.id(), Box::new(job))).collect();
        for job in jobs.values_mut() {
            state.texts.take(job);
            state.count_open(job);
        }
        for (client, cap) in caps {
            state.caps.insert(&client, cap, state.open.contains_key(&client));
        }
        for (dataset, staged_for) in datasets {
            state.staged.extend(staged_for.map(|job| (dataset.cache.clone(), job)));
            state.datasets.insert(dataset.cache.clone(), dataset);
        }
        for job in jobs.values() {
            state.names_bytes += job.names_bytes();
            if matches!(job.phase, Phase::Leased { .. }) && job.is_capped() {
                *state.running.entry(job.submission.client.clone()).or_default() += 1;
            }
            if matches!(job.phase, Phase::Dead { .. }) && job.child_of.is_none() {
                state.dead.insert((job.seq, job.id()));
            }
            state.retained.extend(place_among_retained(job));
            if job.child_of.is_none() {
                state.by_seq.insert(job.seq, job.id());
            }
        }
        state.jobs = jobs;
        state
    }

    /// Says which invariant does not hold, if one does not.
    pub(super) fn check(&self) -> Result<(), String> {
        let (mut running, mut dead, mut names_bytes) = (BTreeMap::new(), BTreeSet::new(), 0);
        let mut retained = BTreeSet::new();
        for (id, job) in &self.jobs {
            names_bytes += job.names_bytes();
            retained.extend(place_among_retained(job));
            match &job.phase {
                Phase::Leased { .. } if job.is_capped() => {
                    *running.entry(job.submission.client.clone()).or_default() += 1
                }
                Phase::Dead { .. } if job.child_of.is_none() => drop(dead.insert((job.seq, *id))),
                Phase::Gathering { left } => {
                    let children = job.children.iter().filter_map(|child| self.job(*child));
                    let open = children.filter(|child| !child.has_ended()).count();
                    if open != *left {
                        return Err(format!(
                            "{id} waits for {left} children, and {open} have not ended"
                        ));
                    }
                }
                Phase::Queued { .. }
                | Phase::Leased { .. }
                | Phase::Done { .. }
                | Phase::Dead { .. } => {}
            }
        }
        let top = self.jobs.values().filter(|job| job.child_of.is_none());
        if !top.clone().all(|job| self.by_seq.get(&job.seq) == Some(&job.id()))
            || top.count() != self.by_seq.len()
        {
            return Err(format!("{} jobs are listed, and others are there", self.by_seq.len()));
        }
        if running != self.running {
            return Err(format!("{running:?} run, and {:?} are counted", self.running));
        }
        let mut open = HashMap::new();
        for job in self.jobs.values().filter(|job| !job.has_ended() && job.child_of.is_none()) {
            *open.entry(job.submission.client.clone()).or_default() += 1;
        }
        if open != self.open {
            return Err(format!("{open:?} have not ended, and {:?} are counted", self.open));
        }
        self.texts.check(self.jobs.values().map(Box::as_ref))?;
        if dead != self.dead {
            return Err(format!(
                "{} jobs are dead, and {} are listed",
                dead.len(),
                self.dead.len()
            ));
        }
        if retained != self.retained {
            return Err(format!(
                "inputs of {} failed jobs are retained, and {} are listed",
                retained.len(),
                self.retained.len()
            ));
        }
        if names_bytes != self.names_bytes {
            return Err(format!(
                "names have {names_bytes} bytes, and {} are counted",
                self.names_bytes
            ));
        }
        Ok(())
    }

    /// Changes the state by a committed record.
    pub fn apply(&mut self, record: &Record) -> Applied {
        match record {
            Record::Announce { at, job } => self.announce(*at, job),
            Record::Enqueue { at, job, children, kept } => self.enqueue(*at, job, children, *kept),
            Record::Assign { at, job, run, attempt, worker, class } => {
                self.assign(*at, *job, *run, *attempt, *worker, *class)
            }
            Record::Ack { at, job, run, worker, result, ok } => {
                let ending = Ending::Returned { result: *result, ok: *ok, worker: *worker };
                self.end(*at, *job, *run, ending)
            }
            Record::Requeue { at, job, run, attempt, why, counts, not_before } => {
                let over = Over { attempt: *attempt, why: *why, at: *at };
                self.requeue(*job, *run, over, *counts, *not_before)
            }
            Record::Dlq { at, job, run, attempt, why } => {
                let over = Over { attempt: *attempt, why: *why, at: Some(*at) };
                self.bury(*at, *job, *run, over)
            }
            Record::Cancel { at, job, run, by } => {
                self.end(*at, *job, *run, Ending::Cancelled { by: by.clone() })
            }
            Record::Withdraw { job, run } => self.withdraw(*job, *run),
            Record::Fail { at, job, run, why } => {
                self.end(*at, *job, *run, Ending::Failed { why: why.clone() })
            }
            Record::Orphan { at, job, run } => self.end(*at, *job, *run, Ending::Orphaned),
            Record::Revive { job, run } => self.revive(*job, *run),
            Record::DropInputs { job, run } => self.drop_inputs(*job, *run),
            Record::Forget { job, run } => self.forget(*job, *run),
            Record::Delivered { job, run } => self.delivered(*job, *run),
            Record::Cap { client, cap } => {
                self.caps.insert(client, *cap, self.open.contains_key(client));
                Applied::Changed
            }
            Record::Dataset { dataset } => {
                self.unstage(&dataset.cache);
                self.put_dataset(dataset)
            }
            Record::Stage { job, dataset } => self.stage(*job, dataset),
            Record::DatasetGone { cache, version } => self.remove_dataset(cache, *version),
            Record::Term { term } => self.cluster.begin_term(*term),
            Record::Members { members } => self.cluster.set_members(members),
            Record::Level { level } => self.cluster.raise_level(*level),
            Record::Mark { .. } => Applied::Changed,
            Record::Office { leader, at } => self.cluster.take_office(*leader, *at),
        }
    }

    fn put_dataset(&mut self, dataset: &Arc<Dataset>) -> Applied {
        self.datasets_removed.remove(&dataset.cache);
        match self.datasets.insert(dataset.cache.clone(), dataset.clone()) {
            Some(same) if same == *dataset => Applied::Stale,
            replaced => Applied::PutDataset { replaced },
        }
    }

    /// Keeps a job's inputs as a dataset. A job that waits, and could go by transfer only, needs
    /// the dataset instead from now on.
    fn stage(&mut self, id: JobId, dataset: &Arc<Dataset>) -> Applied {
        self.staged.insert(dataset.cache.clone(), id);
        if let Some(job) = self.jobs.get_mut(&id)
            && let (Phase::Queued { .. }, InputsState::Kept) = (&job.phase, &job.inputs)
            && job.submission.needs_transfers
        {
            job.stage(dataset.cache.clone());
        }
        self.put_dataset(dataset)
    }

    /// A dataset is removed or replaced. If it held a job's inputs, the job again needs a worker
    /// that takes transfers. Returns whether it held a job's inputs.
    fn unstage(&mut self, cache: &CacheId) -> bool {
        let Some(id) = self.staged.remove(cache) else { return false };
        if let Some(job) = self.jobs.get_mut(&id).filter(|job| job.is_staged()) {
            job.inputs = InputsState::Kept;
        }
        true
    }

    fn remove_dataset(&mut self, cache: &CacheId, version: Uuid) -> Applied {
        match self.datasets.get(cache) {
            Some(dataset) if dataset.version == version => {}
            Some(_) | None => return Applied::Stale,
        }
        // Ids of staged datasets are not remembered as removed: there are many, and the leader
        // recognises such an id by its prefix.
        if !self.unstage(cache) {
            if self.datasets_removed.len() >= DATASETS_REMOVED_MAX {
                self.datasets_removed.clear();
            }
            self.datasets_removed.insert(cache.clone());
        }
        self.datasets.remove(cache).map_or(Applied::Stale, Applied::RemovedDataset)
    }

    fn announce(&mut self, at: Micros, submission: &Submission) -> Applied {
        if self.jobs.contains_key(&submission.job) {
            return Applied::Stale;
        }
        let job = Job::new(at, self.next_seq(), submission.clone());
        self.insert(Job { inputs: InputsState::Announced, ..job });
        Applied::Changed
    }

    fn enqueue(
        &mut self,
        at: Micros,
        submission: &Submission,
        children: &[(JobId, WorkerId)],
        kept: bool,
    ) -> Applied {
        let mut job = match (self.jobs.get(&submission.job), submission.inputs) {
            (None, Inputs::Here) => Job::new(at, self.next_seq(), submission.clone()),
            // The job keeps its place, and the worker that may have it already.
            (Some(job), Inputs::Expected) if job.is_announced() && !job.has_ended() => {
                (**job).clone()
            }
            (Some(_), Inputs::Here | Inputs::Expected) | (None, Inputs::Expected) => {
                return Applied::Stale;
            }
        };
        // The job was delayed because its inputs had not arrived.
        let waits_for_inputs =
            job.history.last().is_some_and(|note| note.why == AttemptEnd::InputsStalled);
        if let (Phase::Queued { .. }, true) = (&job.phase, waits_for_inputs) {
            job.phase = Phase::Queued { not_before: at };
        }
        // The inputs of a job to all workers are here before any of them gets it.
        job.inputs =
            if kept || submission.to_all { InputsState::Kept } else { InputsState::PassedOn };
        if submission.to_all {
            // No broker gives it out before; a log that says so is counted right all the same.
            if let (Phase::Leased { .. }, true) = (&job.phase, job.is_capped()) {
                one_less(&mut self.running, &submission.client);
            }
            job.phase = Phase::Gathering { left: children.len() };
            job.children = children.iter().map(|(child, _)| *child).collect();
            for (child, worker) in children {
                let part = Submission { job: *child, to_all: false, ..submission.clone() };
                let child_of = Some((submission.job, *worker));
                let seq = self.next_seq();
                self.insert(Job { child_of, ..Job::new(at, seq, part) });
            }
        }
        self.insert(job);
        Applied::Changed
    }

    fn insert(&mut self, mut job: Job) {
        self.texts.take(&mut job);
        self.names_bytes += job.names_bytes();
        if job.child_of.is_none() {
            self.by_seq.insert(job.seq, job.id());
        }
        self.count_open(&job);
        if let Some(before) = self.jobs.insert(job.id(), Box::new(job)) {
            self.names_bytes -= before.names_bytes();
            self.texts.leave(&before);
            self.uncount_open(&before);
        }
    }

    /// A job has not ended: the cap of its client is kept as long. Children hold back no others.
    fn count_open(&mut self, job: &Job) {
        if job.has_ended() || job.child_of.is_some() {
            return;
        }
        self.one_more_open(&job.submission.client);
    }

    fn one_more_open(&mut self, client: &ClientId) {
        match self.open.get_mut(client) {
            Some(count) => *count += 1,
            None => {
                self.open.insert(client.clone(), 1);
                self.caps.mark_busy(client);
            }
        }
    }

    /// A job that had not ended has ended, or is gone.
    fn uncount_open(&mut self, job: &Job) {
        if job.has_ended() || job.child_of.is_some() {
            return;
        }
        self.one_less_open(&job.submission.client);
    }

    fn one_less_open(&mut self, client: &ClientId) {
        let Some(count) = self.open.get_mut(client) else {
            return broken!("a job of client {client} has ended, and none is counted");
        };
        count_down!(*count, 1, "client {client} has no jobs, and one less");
        if *count == 0 {
            self.open.remove(client);
            give_back(&mut self.open);
            self.caps.mark_idle(client);
        }
    }

    /// Ends a job, or puts it into the dead-letter queue.
    fn close(&mut self, id: JobId, mut phase: Phase) {
        self.texts.take_end(&mut phase);
        let Some(job) = self.jobs.get_mut(&id) else {
            return broken!("job {id} ends, and is not there");
        };
        let was_open = !job.has_ended() && job.child_of.is_none();
        job.phase = phase;
        let client = job.submission.client.clone();
        if was_open {
            self.one_less_open(&client);
        }
    }

    fn remove(&mut self, id: JobId) -> Option<Box<Job>> {
        let job = self.jobs.remove(&id)?;
        self.names_bytes -= job.names_bytes();
        self.texts.leave(&job);
        self.uncount_open(&job);
        if job.child_of.is_none() {
            self.by_seq.remove(&job.seq);
        }
        Some(job)
    }

    /// Drops a job that was announced and never taken.
    fn withdraw(&mut self, id: JobId, run: Run) -> Applied {
        match self.jobs.get(&id) {
            Some(job) if job.run == run && job.is_announced() && !job.has_ended() => {}
            Some(_) | None => return Applied::Stale,
        }
        let Some(job) = self.remove(id) else {
            broken!("job {id} is to be dropped, and is not there");
            return Applied::Stale;
        };
        if let (Phase::Leased { .. }, true) = (&job.phase, job.is_capped()) {
            one_less(&mut self.running, &job.submission.client);
        }
        Applied::Withdrew(job)
    }

    fn next_seq(&mut self) -> u64 {
        self.seq += 1;
        self.seq
    }

    fn assign(
        &mut self,
        at: Option<Micros>,
        job: JobId,
        run: Run,
        attempt: Attempt,
        worker: WorkerId,
        class: WorkerClass,
    ) -> Applied {
        let Some(job) = self.jobs.get_mut(&job).filter(|job| job.run == run) else {
            return Applied::Stale;
        };
        let Phase::Queued { .. } = job.phase else { return Applied::Stale };
        job.attempt = attempt;
        job.times.assigned = at;
        job.phase = Phase::Leased { worker, attempt, class };
        if job.is_capped() {
            *self.running.entry(job.submission.client.clone()).or_default() += 1;
        }
        Applied::Changed
    }

    fn requeue(
        &mut self,
        job: JobId,
        run: Run,
        over: Over,
        counts: bool,
        not_before: Micros,
    ) -> Applied {
        let Some(job) = self.take_back(job, run, over) else { return Applied::Stale };
        job.spent += u32::from(counts);
        job.phase = Phase::Queued { not_before };
        // Inputs that the leader holds do not stall. So it has lost some of them, and only the
        // client can bring them again.
        if (over.why, &job.inputs) == (AttemptEnd::InputsStalled, &InputsState::Kept) {
            job.inputs = InputsState::PassedOn;
        }
        Applied::Changed
    }

    fn bury(&mut self, at: Micros, id: JobId, run: Run, over: Over) -> Applied {
        let Some(job) = self.take_back(id, run, over) else { return Applied::Stale };
        job.spent += 1;
        let (seq, parent) = (job.seq, job.child_of);
        self.close(id, Phase::Dead { at, why: over.why });
        if let Some((parent, _)) = parent {
            return self.child_ended(at, parent);
        }
        self.dead.insert((seq, id));
        Applied::Changed
    }

    /// The job of an attempt that is over, with the worker's hold on it undone. `None` if the
    /// attempt is not the one that holds it: what comes late changes nothing.
    fn take_back(&mut self, job: JobId, run: Run, over: Over) -> Option<&mut Job> {
        let job = self.jobs.get_mut(&job).filter(|job| job.run == run)?;
        let Phase::Leased { worker, attempt: held, .. } = job.phase else { return None };
        if held != over.attempt {
            return None;
        }
        if job.is_capped() {
            one_less(&mut self.running, &job.submission.client);
        }
        note(job, worker, over);
        Some(&mut **job)
    }

    /// Ends a job that has not ended in this run: the first ending wins, whoever brought it (C07).
    fn end(&mut self, at: Micros, id: JobId, run: Run, ending: Ending) -> Applied {
        let Some(job) = self.jobs.get_mut(&id).filter(|job| job.run == run && !job.has_ended())
        else {
            return Applied::Stale;
        };
        if let Phase::Leased { worker, attempt, .. } = job.phase {
            if job.is_capped() {
                one_less(&mut self.running, &job.submission.client);
            }
            let is_its = matches!(ending, Ending::Returned { worker: returned_by, .. } if returned_by == worker);
            if !is_its {
                note(job, worker, Over { attempt, why: AttemptEnd::Stopped, at: Some(at) });
            }
        }
        let parent = job.child_of;
        self.close(id, Phase::Done { at, ending });
        self.retained.extend(self.job(id).and_then(place_among_retained));
        match parent {
            Some((parent, _)) => self.child_ended(at, parent),
            None => Applied::Changed,
        }
    }

    /// Counts a child that ended toward its parent, which ends with the last of them.
    fn child_ended(&mut self, at: Micros, parent: JobId) -> Applied {
        let Some(job) = self.jobs.get(&parent) else { return Applied::Changed };
        let Phase::Gathering { left } = job.phase else { return Applied::Changed };
        let left = left.saturating_sub(1);
        let ok = left == 0
            && job.children.iter().all(|child| {
                let phase = self.jobs.get(child).map(|job| &job.phase);
                matches!(phase, Some(Phase::Done { ending: Ending::Returned { ok: true, .. }, .. }))
            });
        if left > 0 {
            if let Some(job) = self.jobs.get_mut(&parent) {
                job.phase = Phase::Gathering { left };
            }
            return Applied::Changed;
        }
        self.close(parent, Phase::Done { at, ending: Ending::Gathered { ok } });
        Applied::ChangedWithParent(parent)
    }

    fn revive(&mut self, id: JobId, run: Run) -> Applied {
        // A child has counted toward its parent, and would do so once more.
        let may = |job: &&mut Box<Job>| job.run == run && job.child_of.is_none();
        let Some(job) = self.jobs.get_mut(&id).filter(may) else { return Applied::Stale };
        let (Phase::Dead { at, .. } | Phase::Done { at, .. }) = job.phase else {
            return Applied::Stale;
        };
        if !job.may_run_again() {
            return Applied::Stale;
        }
        let result = job.returned().map(|(_, result)| result);
        self.retained.remove(&(at, id));
        job.earlier = job.attempts_so_far(HISTORY_MAX);
        job.run = job.run.next();
        job.spent = 0;
        job.history.clear();
        job.times = Times { assigned: None, ..job.times };
        job.delivered = false;
        self.texts.leave_end(&job.phase);
        job.phase = Phase::Queued { not_before: at };
        self.dead.remove(&(job.seq, id));
        let client = job.submission.client.clone();
        self.one_more_open(&client);
        Applied::Revived(result)
    }

    fn drop_inputs(&mut self, id: JobId, run: Run) -> Applied {
        let may = |job: &&mut Box<Job>| job.run == run && job.retains_inputs();
        let Some(job) = self.jobs.get_mut(&id).filter(may) else { return Applied::Stale };
        if let Some(place) = place_among_retained(job) {
            self.retained.remove(&place);
        }
        job.inputs = InputsState::Dropped;
        Applied::Changed
    }

    fn delivered(&mut self, id: JobId, run: Run) -> Applied {
        match self.jobs.get_mut(&id) {
            Some(job) if job.run == run && job.has_ended() && !job.delivered => {
                job.delivered = true;
                Applied::Changed
            }
            Some(_) | None => Applied::Stale,
        }
    }

    fn forget(&mut self, id: JobId, run: Run) -> Applied {
        match self.jobs.get(&id) {
            // Children go with their parent.
            Some(job) if job.run == run && job.has_ended() && job.child_of.is_none() => {
                self.dead.remove(&(job.seq, id));
                if let Some(place) = place_among_retained(job) {
                    self.retained.remove(&place);
                }
                let job = self.remove(id);
                let children = job.iter().flat_map(|job| &job.children);
                let mut gone: Vec<Job> =
                    children.filter_map(|child| self.remove(*child)).map(|job| *job).collect();
                gone.extend(job.map(|job| *job));
                Applied::Forgot(gone)
            }
            Some(_) | None => Applied::Stale,
        }
    }
}

/// Where a job stands among those whose inputs are retained, if it does.
fn place_among_retained(job: &Job) -> Option<(Micros, JobId)> {
    let Phase::Done { at, .. } = job.phase else { return None };
    job.retains_inputs().then(|| (at, job.id()))
}

/// An attempt that is over without a result.
#[derive(Clone, Copy, Debug)]
struct Over {
    attempt: Attempt,
    why: AttemptEnd,
    /// When it ended.
    at: Option<Micros>,
}

/// Notes that an attempt of a job is over.
fn note(job: &mut Job, worker: WorkerId, Over { attempt, why, at: ended }: Over) {
    if job.history.len() >= HISTORY_MAX {
        // Where the result was lost is still asked for.
        let oldest = job.history.iter().position(|note| note.why != AttemptEnd::ResultLost);
        job.history.remove(oldest.unwrap_or(0));
    }
    let began = job.times.assigned.take();
    job.history.push(AttemptNote { attempt, worker, why, began, ended });
}

fn one_less(running: &mut BTreeMap<ClientId, u32>, client: &ClientId) {
    let Some(count) = running.get_mut(client) else {
        return broken!("a job of client {client} was with a worker, and none is counted");
    };
    count_down!(*count, 1, "client {client} has no jobs at workers, and one less");
    if *count == 0 {
        running.remove(client);
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod transitions;
