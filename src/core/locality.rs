//! Schedules jobs to workers that have their data (C14): the policy `locality`, and how long a job
//! waits for such a worker.
//!
//! A job goes to a worker with free slots that holds its datasets. If only busy workers hold them,
//! or workers that withhold their credit for a moment, the job waits as long as moving the bytes to
//! a free worker would take. After that it goes to the worker that needs the fewest bytes moved,
//! but for a while it yields to jobs of the same priority whose data is on that worker: a full
//! queue is then served dataset by dataset. A waiting job blocks nobody: it is set aside, and found
//! by its datasets when a worker that holds them gets a free slot.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::agent_requests::Asks;
use super::broken;
use super::broker::Broker;
use super::choose::Choice;
use super::dataset::Dataset;
use super::event::Submission;
use super::holdings::Holdings;
use super::ids::{CacheId, ClientId, JobId, Micros, WorkerId};
use super::job::Job;
use super::queue::{Place, Rank, Waiting};
use super::subject::RoutingKey;
use super::timers::Due;
use super::worker::Worker;

/// The shortest time for which a job waits for a worker that has its data: moving a few bytes is
/// not worth a second copy.
pub const LOCALITY_WAIT_MIN: Duration = Duration::from_millis(100);

/// The longest such wait, however long moving the bytes would take.
pub const LOCALITY_WAIT_MAX: Duration = Duration::from_secs(30);

/// After this time since it first waited, a job takes its turn on any worker with a free slot: jobs
/// with local data no longer pass it.
pub const LOCALITY_BYPASS_MAX: Duration = Duration::from_secs(60);

/// Jobs of one dataset examined for a worker that got a free slot. Jobs missed here go when their
/// time is over.
const LOOKS_PER_DATASET_MAX: usize = 64;

/// How often a job is checked again that waits for a worker other than those that lacked something
/// for it: the worker it waits for may have become silent, or have left.
const ELSEWHERE_WAIT: Duration = Duration::from_secs(2);

/// Jobs that are brought back for a worker at a time, whatever room it has.
pub(super) const BROUGHT_BACK_MAX: usize = 256;

const _: () = assert!(LOCALITY_WAIT_MAX.as_millis() < LOCALITY_BYPASS_MAX.as_millis());

/// The bytes a worker would have to receive for a job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// Bytes that are not there.
    pub missing: u64,
    /// Bytes that are not being sent yet, either.
    pub unsent: u64,
}

/// How much of a dataset a worker has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum At {
    /// All of it.
    Held,
    /// It is being sent.
    Coming {
        /// Bytes that are not there yet.
        missing: u64,
    },
    /// The worker has a job that names it, so it is about to get it.
    Expected,
    /// Nothing, or another content.
    Missing,
}

/// Where data is, and which jobs wait for it.
#[derive(Debug, Default)]
pub(super) struct Locality {
    /// Which workers hold which datasets.
    pub(super) holdings: Holdings,
    /// Jobs that wait for a worker that has their data.
    pub(super) delays: Delays,
    /// Datasets that agents were asked to hold for waiting jobs.
    pub(super) asks: Asks,
}

impl Locality {
    /// How much is kept.
    pub(super) fn len(&self) -> usize {
        self.holdings.len() + self.delays.len() + self.asks.len()
    }
}

/// Jobs that wait for a worker that has their data, or did.
#[derive(Debug, Default)]
pub(super) struct Delays {
    of: HashMap<JobId, Delay>,
    /// Jobs set aside, by the datasets they name.
    by_dataset: BTreeMap<CacheId, BTreeSet<(Place, JobId)>>,
    /// Jobs that no worker with free slots may have, by key and client.
    stranded: BTreeMap<(RoutingKey, ClientId), Stranded>,
    /// Jobs that wait for a worker other than those that lacked something for them, by routing key.
    elsewhere: BTreeMap<RoutingKey, BTreeSet<(Place, JobId)>>,
}

/// Jobs of one key and client that no worker with room may have. None of them is looked at by the
/// clock, so every worker that gets room has to find those that are for it, however many others
/// there are.
#[derive(Debug, Default)]
struct Stranded {
    all: BTreeSet<(Place, JobId)>,
    /// The same, by the datasets that they name: a worker that cannot be sent any may have all of
    /// such jobs or none.
    by_datasets: BTreeMap<Vec<CacheId>, BTreeSet<(Place, JobId)>>,
}

/// Datasets and the jobs that name just those, by the first of them.
pub(super) type Kinds<'a> = BTreeMap<(Place, JobId), (&'a [CacheId], &'a BTreeSet<(Place, JobId)>)>;

/// How a job waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Delay {
    /// Since when it could have gone to a worker that would have had to move bytes.
    pub(super) since: Micros,
    pub(super) stage: Stage,
}

/// Where a job is that waits or did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// In the queue again, to be looked at.
    Back,
    /// Aside, until then.
    Waiting { on: WorkerId, until: Micros },
    /// In the queue, behind others of its priority, until then.
    Late { until: Micros },
    /// Aside, until a worker has room that can be sent datasets.
    Stranded,
    /// Aside, until a worker that lacked nothing for the job has a free slot, or until this moment,
    /// because there may be no such worker left.
    Elsewhere { until: Micros },
}

impl Stage {
    /// When it is looked at again.
    fn due(self) -> Option<Micros> {
        match self {
            Stage::Waiting { until, .. } | Stage::Late { until } | Stage::Elsewhere { until } => {
                Some(until)
            }
            Stage::Back | Stage::Stranded => None,
        }
    }
}

impl Delays {
    pub(super) fn len(&self) -> usize {
        self.of.len() + self.by_dataset.len() + self.stranded.len() + self.elsewhere.len()
    }

    pub(super) fn get(&self, job: JobId) -> Option<&Delay> {
        self.of.get(&job)
    }

    fn index(&mut self, place: Place, job: &Job) {
        for cache in job.datasets() {
            self.by_dataset.entry(cache.clone()).or_default().insert((place, job.id()));
        }
    }

    pub(super) fn any_stranded(&self) -> bool {
        !self.stranded.is_empty()
    }

    /// Stranded jobs of keys that a worker asked for: for each key and client those that name the
    /// same datasets, in the order of the first of them.
    pub(super) fn stranded_kinds<'a>(
        &'a self,
        worker: &'a Worker,
    ) -> impl Iterator<Item = Kinds<'a>> {
        let wanted = self.stranded.iter().filter(|((key, _), _)| worker.wants(key.as_str()));
        wanted.map(|(_, stranded)| {
            let kinds = stranded.by_datasets.iter();
            kinds
                .filter_map(|(datasets, jobs)| Some((*jobs.first()?, (datasets.as_slice(), jobs))))
                .collect()
        })
    }

    /// Jobs that are set aside, or go behind others, and name a dataset.
    pub(super) fn naming(&self, cache: &CacheId) -> impl Iterator<Item = JobId> {
        self.by_dataset.get(cache).into_iter().flatten().map(|(_, id)| *id)
    }

    fn strand(&mut self, place: Place, job: &Job) {
        let stranded = self
            .stranded
            .entry((job.submission.key.clone(), job.submission.client.clone()))
            .or_default();
        stranded.all.insert((place, job.id()));
        stranded.by_datasets.entry(job.datasets().to_vec()).or_default().insert((place, job.id()));
    }

    fn unstrand(&mut self, place: Place, job: &Job) {
        if self.stranded.is_empty() {
            return;
        }
        let of = (job.submission.key.clone(), job.submission.client.clone());
        let Some(stranded) = self.stranded.get_mut(&of) else { return };
        stranded.all.remove(&(place, job.id()));
        if let Some(jobs) = stranded.by_datasets.get_mut(job.datasets()) {
            jobs.remove(&(place, job.id()));
            if jobs.is_empty() {
                stranded.by_datasets.remove(job.datasets());
            }
        }
        if stranded.all.is_empty() {
            self.stranded.remove(&of);
        }
    }

    fn unindex(&mut self, place: Place, job: &Job) {
        self.unstrand(place, job);
        if let Some(jobs) = self.elsewhere.get_mut(&job.submission.key) {
            jobs.remove(&(place, job.id()));
            if jobs.is_empty() {
                self.elsewhere.remove(&job.submission.key);
            }
        }
        for cache in job.datasets() {
            if let Some(jobs) = self.by_dataset.get_mut(cache) {
                jobs.remove(&(place, job.id()));
                if jobs.is_empty() {
                    self.by_dataset.remove(cache);
                }
            }
        }
    }
}

impl Broker {
    // --- what it would cost

    /// The datasets that a job names and the leader has.
    pub(super) fn known_datasets(&self, datasets: &[CacheId]) -> Vec<Arc<Dataset>> {
        datasets.iter().filter_map(|cache| self.state.dataset(cache)).cloned().collect()
    }

    /// How much of a dataset a worker has.
    pub(super) fn at(&self, worker: WorkerId, dataset: &Dataset) -> At {
        // A worker that takes transfers gets staged inputs as transfers, so it does not need the
        // dataset.
        if self.state.staged_for(&dataset.cache).is_some()
            && self.workers.get(worker).is_some_and(|worker| worker.transfers)
        {
            return At::Held;
        }
        let holdings = self
            .locality
            .holdings
            .at(worker, &dataset.cache)
            .filter(|held| held.digest == dataset.digest);
        match holdings.map(|held| held.missing).min() {
            Some(0) => At::Held,
            Some(missing) => At::Coming { missing },
            None if self.locality.holdings.is_expected(worker, &dataset.cache) => At::Expected,
            None => At::Missing,
        }
    }

    pub(super) fn cost(&self, worker: WorkerId, datasets: &[Arc<Dataset>]) -> Cost {
        datasets.iter().fold(Cost::default(), |cost, dataset| {
            let (missing, unsent) = match self.at(worker, dataset) {
                At::Held => (0, 0),
                At::Coming { missing } => (missing, 0),
                At::Expected => (dataset.bytes, 0),
                At::Missing => (dataset.bytes, dataset.bytes),
            };
            Cost {
                missing: cost.missing.saturating_add(missing),
                unsent: cost.unsent.saturating_add(unsent),
            }
        })
    }

    /// How long a job waits for another worker before this one moves the missing bytes.
    pub(super) fn wait_for(&self, worker: WorkerId, cost: Cost) -> Duration {
        self.span_of_move(worker, cost.missing).clamp(LOCALITY_WAIT_MIN, LOCALITY_WAIT_MAX)
    }

    // --- waiting

    /// Sets a job aside that waits for a worker, or puts it behind others.
    pub(super) fn delay(&mut self, id: JobId, choice: Choice) {
        let stage = match choice {
            Choice::Wait { on, until } => Stage::Waiting { on, until },
            Choice::Late => {
                let since = self.locality.delays.get(id).map_or(self.now, |delay| delay.since);
                Stage::Late { until: since.plus(LOCALITY_BYPASS_MAX) }
            }
            Choice::Strand => Stage::Stranded,
            Choice::Elsewhere => Stage::Elsewhere { until: self.now.plus(ELSEWHERE_WAIT) },
            Choice::Give(_) | Choice::Pass => return,
        };
        self.delay_at(id, stage);
    }

    fn delay_at(&mut self, id: JobId, stage: Stage) {
        let now = self.now;
        self.undelay(id);
        let Some(job) = self.state.job(id) else {
            return broken!("job {id} is set aside, and is not known");
        };
        let place = job.place();
        let rank = match stage {
            Stage::Late { .. } => Rank::Late,
            Stage::Back | Stage::Waiting { .. } | Stage::Stranded | Stage::Elsewhere { .. } => {
                Rank::Aside
            }
        };
        let Submission { key, client, exec, size, .. } = &job.submission;
        self.queues.push(key, client, place, &Waiting { id, exec, size: *size, rank });
        self.locality.delays.index(place, job);
        if stage == Stage::Stranded {
            self.locality.delays.strand(place, job);
            self.locality.asks.stranded(job, !self.locality.delays.of.contains_key(&id));
        }
        if matches!(stage, Stage::Elsewhere { .. }) {
            self.locality
                .delays
                .elsewhere
                .entry(job.submission.key.clone())
                .or_default()
                .insert((place, id));
        }
        if let Some(at) = stage.due() {
            self.due.insert((at, Due::Delay(id)));
        }
        let delay = self.locality.delays.of.entry(id).or_insert(Delay { since: now, stage });
        delay.stage = stage;
    }

    /// A job is in the queue like any other again. That it waited, and since when, is still known.
    pub(super) fn undelay(&mut self, id: JobId) {
        let Some(delay) = self.locality.delays.of.get_mut(&id) else { return };
        let stage = std::mem::replace(&mut delay.stage, Stage::Back);
        if let Some(at) = stage.due() {
            self.due.remove(&(at, Due::Delay(id)));
        }
        if let Some(job) = self.state.job(id) {
            self.locality.delays.unindex(job.place(), job);
        }
    }

    /// A job does not wait for a worker any more: it has one, or has ended, or cannot be given out
    /// for now.
    pub(super) fn forget_delay(&mut self, id: JobId) {
        self.undelay(id);
        if self.locality.delays.of.remove(&id).is_some()
            && let Some(job) = self.state.job(id)
        {
            self.locality.asks.forget_unnamed(&self.locality.delays, job);
        }
    }

    /// The same of a job that is not known any more.
    pub(super) fn forget_delay_of(&mut self, job: &Job) {
        if let Some(at) =
            self.locality.delays.of.remove(&job.id()).and_then(|delay| delay.stage.due())
        {
            self.due.remove(&(at, Due::Delay(job.id())));
        }
        self.locality.delays.unindex(job.place(), job);
        self.locality.asks.forget_unnamed(&self.locality.delays, job);
    }

    /// A job has waited long enough for its worker, or for jobs that passed it.
    pub(super) fn delay_due(&mut self, id: JobId) {
        let Some(Delay { since, stage }) = self.locality.delays.get(id).copied() else {
            return broken!("job {id} has waited long enough, and does not wait");
        };
        match stage {
            Stage::Waiting { .. } => {
                self.delay_at(id, Stage::Late { until: since.plus(LOCALITY_BYPASS_MAX) });
                self.dirty = true;
            }
            Stage::Late { .. } | Stage::Elsewhere { .. } => {
                self.make_ready(id);
            }
            Stage::Back | Stage::Stranded => {}
        }
    }

    // --- brought back

    /// Workers got room, or hold something new: jobs that wait for just that are looked at again.
    pub(super) fn wake_for_room(&mut self) {
        let woken = self.workers.take_woken();
        if self.locality.delays.of.is_empty() {
            return;
        }
        self.locality.asks.wake(&woken);
        for worker in woken {
            for job in self.waiting_for(worker) {
                self.make_ready(job);
            }
        }
    }

    /// Jobs that are set aside and that a worker with room is the right one for: as many as it has
    /// room for, those with the smallest priorities first, and as many of clients that are at their
    /// cap.
    fn waiting_for(&self, worker: WorkerId) -> Vec<JobId> {
        let Some(worker) = self.workers.get(worker).filter(|worker| worker.has_room()) else {
            return Vec::new();
        };
        let room = usize::try_from(worker.credit).unwrap_or(usize::MAX).min(BROUGHT_BACK_MAX);
        let mut found: BTreeSet<(Place, JobId)> = BTreeSet::new();
        let is_for = |(_, id): &&(Place, JobId)| self.is_for(*id, worker);
        let mut look = |jobs: &BTreeSet<(Place, JobId)>| {
            found.extend(jobs.iter().take(LOOKS_PER_DATASET_MAX.max(room)).filter(is_for));
        };
        let held = self.locality.holdings.datasets_near(worker.id);
        if held.len() < self.locality.delays.by_dataset.len() {
            held.iter()
                .filter_map(|cache| self.locality.delays.by_dataset.get(*cache))
                .for_each(&mut look);
        } else {
            let held: BTreeSet<&CacheId> = held.into_iter().collect();
            let jobs =
                self.locality.delays.by_dataset.iter().filter(|(cache, _)| held.contains(cache));
            jobs.for_each(|(_, jobs)| look(jobs));
        }
        found.extend(self.stranded_for(worker, room));
        found.extend(self.elsewhere_for(worker, room));
        let (mut left, mut left_at_cap) = (room, room);
        let mut take = |id: JobId| {
            let may_run =
                self.state.job(id).is_some_and(|job| self.may_run(&job.submission.client));
            let left = if may_run { &mut left } else { &mut left_at_cap };
            let takes = *left > 0;
            *left = left.saturating_sub(1);
            takes
        };
        found.into_iter().map(|(_, id)| id).filter(|id| take(*id)).collect()
    }

    /// Stranded jobs that a worker may have: the first ones of each key and client.
    fn stranded_for(&self, worker: &Worker, room: usize) -> BTreeSet<(Place, JobId)> {
        let may_have = |(_, id): &&(Place, JobId)| {
            self.state.job(*id).is_some_and(|job| self.may_have(job, worker))
        };
        let mut found = BTreeSet::new();
        for (_, stranded) in
            self.locality.delays.stranded.iter().filter(|((key, _), _)| worker.wants(key.as_str()))
        {
            if worker.datasets {
                found.extend(stranded.all.iter().filter(may_have).take(room));
                continue;
            }
            let its = stranded
                .by_datasets
                .iter()
                .filter(|(datasets, _)| self.holds_all(worker.id, datasets));
            its.for_each(|(_, jobs)| found.extend(jobs.iter().filter(may_have).take(room)));
        }
        found
    }

    /// Jobs that wait for another worker than such that lacked something for them, and may go to
    /// this one. Those that it misses are looked at when their time is over.
    fn elsewhere_for(&self, worker: &Worker, room: usize) -> BTreeSet<(Place, JobId)> {
        let is_other = |(_, id): &&(Place, JobId)| {
            let job = self.state.job(*id);
            job.is_some_and(|job| job.lacked_at(worker.id).is_none() && self.may_have(job, worker))
        };
        let keys =
            self.locality.delays.elsewhere.iter().filter(|(key, _)| worker.wants(key.as_str()));
        let looks = LOOKS_PER_DATASET_MAX.max(room);
        keys.flat_map(|(_, jobs)| jobs.iter().take(looks).filter(is_other).take(room))
            .copied()
            .collect()
    }

    /// Whether a worker holds all of these that the leader has.
    fn holds_all(&self, worker: WorkerId, datasets: &[CacheId]) -> bool {
        let mut known = datasets.iter().filter_map(|cache| self.state.dataset(cache));
        known.all(|dataset| self.at(worker, dataset) == At::Held)
    }

    /// Whether a job that is set aside would go to this worker: all it needs is there or coming, or
    /// the worker is the one it waits for, or could be sent it where others could not.
    fn is_for(&self, id: JobId, worker: &Worker) -> bool {
        let Some(job) = self.state.job(id) else {
            broken!("job {id} waits for its data, and is not known");
            return false;
        };
        if !worker.wants(job.submission.key.as_str()) || !self.may_have(job, worker) {
            return false;
        }
        let datasets = self.known_datasets(job.datasets());
        if !self.may_have_datasets(worker, &datasets) {
            return false;
        }
        let stage = self.locality.delays.get(id).map(|delay| delay.stage);
        if matches!(stage, Some(Stage::Elsewhere { .. })) && job.lacked_at(worker.id).is_some() {
            return false;
        }
        let is_waited_for = stage.is_some_and(|stage| match stage {
            Stage::Waiting { on, .. } => on == worker.id,
            Stage::Stranded | Stage::Elsewhere { .. } => true,
            Stage::Back | Stage::Late { .. } => false,
        });
        is_waited_for || self.cost(worker.id, &datasets).unsent == 0
    }

    /// The dataset under an id changed: waiting jobs that name it are examined again.
    pub(super) fn rouse(&mut self, cache: &CacheId) {
        for (_, job) in self.locality.delays.by_dataset.get(cache).cloned().unwrap_or_default() {
            self.make_ready(job);
        }
    }

    /// A worker does not have a dataset any more: jobs that wait for that are looked at again.
    pub(super) fn rouse_waiting_for(&mut self, worker: WorkerId, cache: &CacheId) {
        let waits = |id: &JobId| {
            let stage = self.locality.delays.get(*id).map(|delay| delay.stage);
            matches!(stage, Some(Stage::Waiting { on, .. }) if on == worker)
        };
        let jobs =
            self.locality.delays.by_dataset.get(cache).into_iter().flatten().map(|(_, id)| *id);
        let jobs: Vec<JobId> = jobs.filter(waits).collect();
        for job in jobs {
            self.make_ready(job);
        }
    }

    /// A worker is not there any more.
    pub(super) fn rouse_all_waiting_for(&mut self, worker: WorkerId) {
        let datasets: Vec<CacheId> =
            self.locality.holdings.datasets_near(worker).into_iter().cloned().collect();
        for cache in datasets {
            self.rouse_waiting_for(worker, &cache);
        }
        self.rouse_elsewhere();
    }

    /// Jobs that wait for another worker may have lost the last one. The first jobs are checked
    /// now, the others when their time is over.
    pub(super) fn rouse_elsewhere(&mut self) {
        let jobs = self.locality.delays.elsewhere.values().flatten();
        let jobs: Vec<JobId> = jobs.take(BROUGHT_BACK_MAX).map(|(_, id)| *id).collect();
        for job in jobs {
            self.make_ready(job);
        }
    }
}
