//! Decides what follows an attempt without a result: the job waits and is retried, or is dead
//! (RT03, C06). Also computes exponential back-off, between deliveries of a job and between
//! connection attempts (CL08).
//!
//! `FailedAttempt::next` and `Backoff::delay` are pure: the caller supplies entropy for jitter. The
//! broker takes it from ids, so a seed replays a run, and `impl Broker` applies what they say.

use std::time::Duration;

use super::action::{Action, Waiting};
use super::broker::Broker;
use super::event::WorkerClass;
use super::ids::{JobId, WorkerId};
use super::lease::{Lease, LeaseStage};
use super::limits::{HANDED_BACK_AT_ONCE_MAX, HISTORY_MAX, NO_ROOM_ATTEMPTS_MAX};
use super::record::{AttemptEnd, Lack, Record};

/// A schedule `first, 2 x first, ...` up to `max`, each spread by `jitter_percent` either way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first waiting time.
    pub first: Duration,
    /// The longest, before the spread.
    pub max: Duration,
    /// How far a waiting time may lie from its place in the schedule, in per cent.
    pub jitter_percent: u8,
}

impl Backoff {
    /// Between deliveries of a job: 1 s, doubling to 30 s, 20 % either way (RT03, C06).
    pub const DELIVERY: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(30), jitter_percent: 20 };

    /// Between attempts of a job that no worker has room for: 1 s, doubling to 60 s, 20 % either
    /// way.
    pub const NO_ROOM: Backoff =
        Backoff { first: Duration::from_secs(1), max: Duration::from_secs(60), jitter_percent: 20 };

    /// Between attempts to connect: 0.5 s, doubling to 30 s, 20 % either way (CL08).
    pub const CONNECT: Backoff = Backoff {
        first: Duration::from_millis(500),
        max: Duration::from_secs(30),
        jitter_percent: 20,
    };

    /// The waiting time after failure number `failures`, which counts from 1; nothing after none.
    pub fn delay(&self, failures: u32, entropy: u64) -> Duration {
        let Some(doublings) = failures.checked_sub(1) else { return Duration::ZERO };
        let whole =
            2u32.checked_pow(doublings).map_or(self.max, |times| self.first.saturating_mul(times));
        let whole_us = u64::try_from(whole.min(self.max).as_micros()).unwrap_or(u64::MAX);
        let spread = whole_us.saturating_mul(u64::from(self.jitter_percent)) / 100;
        let offset = match spread {
            0 => 0,
            spread => mix(entropy) % (2 * spread + 1),
        };
        Duration::from_micros(whole_us.saturating_sub(spread).saturating_add(offset))
    }
}

/// Spreads the bits of a number that may be small or regular.
pub fn mix(value: u64) -> u64 {
    let mut mixed = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    mixed ^ (mixed >> 31)
}

/// An attempt that ended without a result, and all facts that decide what follows.
#[derive(Clone, Copy, Debug)]
struct FailedAttempt {
    why: AttemptEnd,
    /// How far its worker was.
    stage: LeaseStage,
    /// Whether its worker is a classic one.
    is_classic: bool,
    /// Whether the job is for this worker alone.
    is_child: bool,
    /// Attempts of the run before it that count.
    spent: u32,
    /// All that ended without a result.
    before: usize,
    /// Earlier attempts whose workers had no space for the inputs, or no directory.
    no_room_before: usize,
    /// Earlier attempts whose workers did not have the program.
    no_program_before: usize,
    /// Whether another worker may be asked for the job.
    may_others: bool,
    /// Whether another worker may have space for the inputs, where this one had none.
    is_room_elsewhere: bool,
    entropy: u64,
}

/// The decision for a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    /// Its worker was the only one, and is gone.
    Orphaned,
    /// It has used up its attempts.
    Dead,
    /// It waits, and is tried again.
    Again {
        /// Whether the attempt counts toward the limit.
        counts: bool,
        wait: Duration,
    },
}

impl FailedAttempt {
    fn next(&self, attempts_max: u32) -> Next {
        if self.is_child && self.why == AttemptEnd::WorkerLost {
            return Next::Orphaned;
        }
        let counts = self.counts();
        if self.spent.saturating_add(u32::from(counts)) >= attempts_max || !self.may_others {
            return Next::Dead;
        }
        let wait = match self.why.lack() {
            Some(Lack::Room | Lack::Directory) => self.wait_for_room(),
            Some(Lack::Program) => Some(self.wait_for_program()),
            None => Some(self.wait()),
        };
        wait.map_or(Next::Dead, |wait| Next::Again { counts, wait })
    }

    fn counts(&self) -> bool {
        // Inputs that stall are its client's doing, and say nothing of the job. Where the worker
        // lacked something it never started; how often that may happen has a limit of its own.
        let says_nothing = self.why == AttemptEnd::InputsStalled || self.why.lack().is_some();
        self.why == AttemptEnd::InputsBad || !says_nothing && self.stage > LeaseStage::Given
    }

    /// Attempts that do not count also delay the next one, so that no job cycles without a pause.
    fn wait(&self) -> Duration {
        let before = u32::try_from(self.before).unwrap_or(u32::MAX);
        let failures = match (self.why == AttemptEnd::TimedOut, self.is_classic) {
            // A classic worker's time is that of the schedule: it has waited already.
            (true, true) => 0,
            (true, false) => before.saturating_add(1),
            // A first loss is requeued at once; a job that loses worker after worker may be what
            // kills them.
            (false, _) => before,
        };
        Backoff::DELIVERY.delay(failures, self.entropy)
    }

    /// The worker is avoided for the program from now on, so the next one is asked at once. Where
    /// workers say again and again that they have it and hand it back, that takes its time.
    fn wait_for_program(&self) -> Duration {
        let beyond = (self.no_program_before + 1).saturating_sub(HANDED_BACK_AT_ONCE_MAX);
        Backoff::NO_ROOM.delay(u32::try_from(beyond).unwrap_or(u32::MAX), self.entropy)
    }

    /// The worker had no space for the inputs: the job goes to another worker, or is retried later
    /// if there is none. A job that fits nowhere must not cycle for ever.
    fn wait_for_room(&self) -> Option<Duration> {
        let times = self.no_room_before + 1;
        match self.is_room_elsewhere {
            true if times < HISTORY_MAX => Some(self.wait()),
            false if times < NO_ROOM_ATTEMPTS_MAX => {
                let times = u32::try_from(times).unwrap_or(u32::MAX);
                Some(Backoff::NO_ROOM.delay(times, self.entropy))
            }
            true | false => None,
        }
    }
}

impl Broker {
    pub(super) fn lose_all(&mut self, worker: WorkerId, why: AttemptEnd) {
        let held: Vec<JobId> = self
            .workers
            .get(worker)
            .map(|worker| worker.held.keys().copied().collect())
            .unwrap_or_default();
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
        may_others: bool,
    ) {
        let lack = why.lack();
        // Of programs it is known which.
        let of_all = lack.filter(|lack| *lack != Lack::Program);
        if let (Some(lack), Some(worker)) = (of_all, self.workers.get_mut(worker)) {
            worker.lacked = Some((lack, self.now));
        }
        // A job that has ended only keeps its worker's slot until the worker answers; nothing else
        // is lost.
        let Some(job) = self.state.job(id).filter(|job| !job.has_ended()) else { return };
        if !self.is_with(id, worker) {
            // An earlier job of that id was dropped, and this is what the worker had of it.
            return;
        }
        let (run, attempt) = (lease.run, lease.attempt);
        let exec = job.submission.exec.clone();
        if lack == Some(Lack::Program) {
            if job.child_of.is_some() {
                let why = self.why_no_program_at(worker, &exec).into();
                self.propose(Record::Fail { at: self.now, job: id, run, why });
                return;
            }
            self.avoid(worker, &exec);
        }
        let Some(job) = self.state.job(id) else { return };
        let is_classic = |class| class != WorkerClass::Leasing;
        let failed = FailedAttempt {
            why,
            stage: lease.stage,
            is_classic: self.workers.get(worker).is_some_and(|worker| is_classic(worker.class)),
            is_child: job.child_of.is_some(),
            spent: job.spent,
            before: job.history.len(),
            no_room_before: job.lacking_attempts(),
            no_program_before: job.attempts_without_program(),
            may_others,
            is_room_elsewhere: lack.is_some() && self.may_find_room_elsewhere(job, Some(worker)),
            entropy: id.0.as_u64_pair().1 ^ u64::from(attempt.0),
        };
        // An assignment that is not applied yet is found stale when its turn comes, unless it is
        // the one that holds.
        let record = match failed.next(self.config.attempts_max) {
            Next::Orphaned => Record::Orphan { at: self.now, job: id, run },
            Next::Dead => Record::Dlq { at: self.now, job: id, run, attempt, why },
            Next::Again { counts, wait } => {
                if let Some(lack) = lack
                    && let Some(conn) = self.submitter_of(id, &job.submission.client)
                {
                    let why = Waiting::WorkerLacks { worker, lack };
                    self.actions.push_back(Action::Waiting { conn, job: id, why });
                }
                let not_before = self.now.plus(wait);
                let at = Some(self.now);
                Record::Requeue { at, job: id, run, attempt, why, counts, not_before }
            }
        };
        self.propose(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rt03_deliveries_wait_one_second_doubling_to_thirty_within_a_fifth() {
        for (failures, seconds) in
            [(1, 1), (2, 2), (3, 4), (4, 8), (5, 16), (6, 30), (7, 30), (u32::MAX, 30)]
        {
            let whole = Duration::from_secs(seconds);
            let delays: Vec<Duration> =
                (0..500).map(|entropy| Backoff::DELIVERY.delay(failures, entropy)).collect();
            assert!(
                delays.iter().all(|delay| *delay >= whole * 4 / 5 && *delay <= whole * 6 / 5),
                "{failures}"
            );
            let (low, high) = (delays.iter().min().unwrap(), delays.iter().max().unwrap());
            assert!(
                *low < whole * 85 / 100 && *high > whole * 115 / 100,
                "{failures}: the whole fifth is used"
            );
        }
        assert_eq!(Backoff::DELIVERY.delay(0, 7), Duration::ZERO);
    }

    #[test]
    fn cl08_connecting_waits_half_a_second_first() {
        let still = Backoff { jitter_percent: 0, ..Backoff::CONNECT };
        let delays: Vec<u128> =
            (1..=8).map(|failures| still.delay(failures, 0).as_millis()).collect();
        assert_eq!(delays, [500, 1000, 2000, 4000, 8000, 16_000, 30_000, 30_000]);
    }

    const FAILED: FailedAttempt = FailedAttempt {
        why: AttemptEnd::TimedOut,
        stage: LeaseStage::Started,
        is_classic: false,
        is_child: false,
        spent: 0,
        before: 0,
        no_room_before: 0,
        no_program_before: 0,
        may_others: true,
        is_room_elsewhere: false,
        entropy: 7,
    };

    #[test]
    fn rt03_a_first_loss_is_tried_again_at_once_and_what_timed_out_waits() {
        let lost = FailedAttempt { why: AttemptEnd::WorkerLost, ..FAILED };
        assert_eq!(lost.next(3), Next::Again { counts: true, wait: Duration::ZERO });
        assert_eq!(
            FAILED.next(3),
            Next::Again { counts: true, wait: Backoff::DELIVERY.delay(1, 7) }
        );
        // A classic worker had the time of the schedule.
        let classic = FailedAttempt { is_classic: true, ..FAILED };
        assert_eq!(classic.next(3), Next::Again { counts: true, wait: Duration::ZERO });
        let again = FailedAttempt { before: 2, ..lost };
        assert_eq!(
            again.next(3),
            Next::Again { counts: true, wait: Backoff::DELIVERY.delay(2, 7) }
        );
    }

    #[test]
    fn c06_what_was_not_begun_does_not_count_and_the_last_attempt_that_does_is_the_end() {
        assert_eq!(FailedAttempt { spent: 2, ..FAILED }.next(3), Next::Dead);
        let given = FailedAttempt { spent: 2, stage: LeaseStage::Given, ..FAILED };
        assert_eq!(
            given.next(3),
            Next::Again { counts: false, wait: Backoff::DELIVERY.delay(1, 7) }
        );
        assert_eq!(FailedAttempt { why: AttemptEnd::InputsBad, ..given }.next(3), Next::Dead);
        let stalled = FailedAttempt { why: AttemptEnd::InputsStalled, spent: 2, ..FAILED };
        assert_eq!(stalled.next(3), Next::Again { counts: false, wait: Duration::ZERO });
        assert_eq!(FailedAttempt { may_others: false, ..FAILED }.next(3), Next::Dead);
    }

    #[test]
    fn a_child_whose_worker_is_lost_gets_no_other() {
        let lost = FailedAttempt { why: AttemptEnd::WorkerLost, is_child: true, ..FAILED };
        assert_eq!(lost.next(3), Next::Orphaned);
        assert_ne!(FailedAttempt { why: AttemptEnd::GivenUp, ..lost }.next(3), Next::Orphaned);
    }

    #[test]
    fn a_job_that_fits_nowhere_does_not_go_round_for_ever() {
        let full = FailedAttempt { why: AttemptEnd::DiskFull, ..FAILED };
        let next = |no_room_before, is_room_elsewhere| {
            FailedAttempt { no_room_before, is_room_elsewhere, ..full }.next(3)
        };
        assert_eq!(next(0, true), Next::Again { counts: false, wait: Duration::ZERO });
        assert_eq!(
            next(0, false),
            Next::Again { counts: false, wait: Backoff::NO_ROOM.delay(1, 7) }
        );
        assert_eq!(next(NO_ROOM_ATTEMPTS_MAX - 1, false), Next::Dead);
        assert_eq!(next(HISTORY_MAX - 1, true), Next::Dead);
    }

    #[test]
    fn a_job_without_its_program_goes_on_at_once_and_after_some_times_waits() {
        let without = FailedAttempt { why: AttemptEnd::NoProgram, spent: 2, ..FAILED };
        let next = |no_program_before| FailedAttempt { no_program_before, ..without }.next(3);
        let at_once = Next::Again { counts: false, wait: Duration::ZERO };
        assert_eq!((next(0), next(HANDED_BACK_AT_ONCE_MAX - 1)), (at_once, at_once));
        let later =
            |failures| Next::Again { counts: false, wait: Backoff::NO_ROOM.delay(failures, 7) };
        assert_eq!(next(HANDED_BACK_AT_ONCE_MAX), later(1));
        assert_eq!(next(1_000), later(1_000));
    }
}
