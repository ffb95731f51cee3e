//! Rebuilds the broker from a previous run's log (PE08): the state is what the log says, and the
//! rest is derived from it.
//!
//! Nobody is connected. Heft workers that had jobs are expected back with them, and clients with
//! the inputs they still have to send. Each gets the usual time of a disconnected peer, but at
//! least one lease, because all of them must find the leader again first.

use std::collections::HashSet;

use super::broker::{Broker, PreviousRun};
use super::event::WorkerClass;
use super::ids::{Index, JobId, Micros, Run, WorkerId};
use super::job::{Job, Phase};
use super::lease::Lease;
use super::limits::Config;
use super::record::{AttemptEnd, Record};
use super::state::State;
use super::timers::Due;

impl Broker {
    /// A broker with the state after the record `index`.
    pub fn restore(config: Config, state: State, index: Index, now: Micros) -> Self {
        let mut broker = Broker::begin(config, now);
        broker.earlier = Some(PreviousRun { until: now, last_seq: state.last_seq() });
        (broker.state, broker.proposals.index) = (state, index);
        let mut order: Vec<(u64, JobId)> =
            broker.state.jobs().map(|job| (job.seq, job.id())).collect();
        order.sort_unstable();
        let classic = broker.classic_workers();
        for (_, id) in &order {
            broker.expect_workers_of(*id, &classic);
        }
        let mut ended: Vec<(Micros, JobId, Run)> = Vec::new();
        for (_, id) in order {
            let Some(job) = broker.state.job(id) else { continue };
            let is_told = job.delivered || job.child_of.is_some();
            let (client, run, needs_client) =
                (job.submission.client.clone(), job.run, job.needs_client());
            match job.phase {
                Phase::Queued { not_before } => {
                    if needs_client {
                        broker.source_away(id);
                    }
                    broker.wait_until(id, not_before);
                }
                Phase::Leased { .. } => {
                    if needs_client {
                        broker.source_away(id);
                    }
                }
                Phase::Gathering { .. } => {}
                Phase::Done { at, .. } if job.child_of.is_none() => ended.push((at, id, run)),
                Phase::Done { .. } | Phase::Dead { .. } => {}
            }
            if broker.state.job(id).is_some_and(Job::has_ended) && !is_told {
                broker.results.undelivered.entry(client).or_default().insert(id);
            }
        }
        ended.sort_unstable();
        for (at, job, run) in ended {
            broker.keep_since(at, job, run);
        }
        broker.lose_what_classic_workers_had();
        // No client is connected yet, so there is nobody to tell that a job waits.
        broker.waits = super::waiting::Waits::default();
        broker
    }

    /// The jobs that classic workers have.
    fn classic_leases(&self) -> impl Iterator<Item = (JobId, WorkerId, Lease)> {
        self.state.jobs().filter_map(|job| {
            let Phase::Leased { worker, attempt, class } = job.phase else { return None };
            (class != WorkerClass::Leasing)
                .then(|| (job.id(), worker, Lease::given(job.run, attempt)))
        })
    }

    /// Workers that are known to be classic, by the jobs that they had. The log says so of
    /// assignments alone, and what waits for such a worker mostly waits behind one.
    fn classic_workers(&self) -> HashSet<WorkerId> {
        self.classic_leases().map(|(_, worker, _)| worker).collect()
    }

    /// The worker that has a job, or that alone may have it, is expected back, unless it is a
    /// classic one: those come back as others.
    fn expect_workers_of(&mut self, id: JobId, classic: &HashSet<WorkerId>) {
        let Some(job) = self.state.job(id) else { return };
        let (worker, held) = match (&job.phase, job.child_of) {
            // Requeued below, when all leases are restored.
            (Phase::Leased { class: WorkerClass::Classic | WorkerClass::OneAtATime, .. }, _) => {
                return;
            }
            (Phase::Leased { worker, attempt, class: WorkerClass::Leasing }, _) => {
                let (run, attempt) = (job.run, *attempt);
                self.locality.holdings.expect(*worker, id, job.datasets());
                // Whether it began is not known: it says so. Until then the attempt does not count.
                let lease = Lease::given(run, attempt);
                (*worker, Some((id, lease)))
            }
            (Phase::Queued { .. }, Some((_, worker))) if classic.contains(&worker) => return,
            (Phase::Queued { .. }, Some((_, worker))) => (worker, None),
            (
                Phase::Queued { .. }
                | Phase::Gathering { .. }
                | Phase::Done { .. }
                | Phase::Dead { .. },
                _,
            ) => {
                return;
            }
        };
        if self.workers.expect_back(worker, held, self.now.plus(self.grace_after_restart())) {
            let until = self.now.plus(self.grace_after_restart()).plus(self.config.worker_grace);
            self.due.insert((until, Due::Grace(worker)));
        }
    }

    /// A classic worker's connection ended with the previous run of the leader, and what it ran
    /// with that: it never comes back with a job. That is the leader's doing and no fault of the
    /// job, so the attempt does not count, and the job does not wait for it, however often that
    /// happens.
    fn lose_what_classic_workers_had(&mut self) {
        let had: Vec<(JobId, WorkerId, Lease)> = self.classic_leases().collect();
        for (id, worker, lease) in had {
            let (run, attempt, why) = (lease.run, lease.attempt, AttemptEnd::WorkerLost);
            match self.state.job(id).and_then(|job| job.child_of) {
                Some(_) => self.attempt_over(worker, id, lease, why, true),
                None => {
                    let not_before = self.now;
                    self.propose(Record::Requeue {
                        at: Some(self.now),
                        job: id,
                        run,
                        attempt,
                        why,
                        counts: false,
                        not_before,
                    });
                }
            }
        }
    }

    /// How much longer than usual peers may be away after a restart.
    fn grace_after_restart(&self) -> std::time::Duration {
        self.config.lease.saturating_sub(self.config.worker_grace)
    }
}
