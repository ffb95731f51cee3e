//! Decides which results are removed before their time (`--result-ttl`): when stored results exceed
//! the byte limit, or when other results wait for space.
//!
//! To make space in a durable leader, only results somebody has received are removed, the oldest
//! first, in this order: results delivered to their client and received whole; results delivered to
//! their client without the large parts, which it did not want; and results fetched whole by
//! somebody else, whose client may still return. A result nobody has stays for its time. So does a
//! result that a classic client received truncated, until somebody fetches the rest. Fetches are
//! remembered only while this leader runs.
//!
//! [`Retention`] decides from the results reported to it, and sees nothing else of the leader.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use chunking::message::Features;
use tracing::info;

use super::datasets::DatasetEvent;
use super::gathered::children;
use super::parts::is_made;
use super::relay::BlobId;
use super::{Leader, outcome};
use crate::conn::Session;
use crate::core::Event;
use crate::core::ids::{ConnId, JobId, Micros, ResultId};
use crate::core::job::Job;
use crate::store::replay::Key;

/// How long the results of a job to all workers are protected after a connection got the list or
/// one of them, because it fetches the others next. Ends with the connection.
const FETCH_WAIT: Duration = Duration::from_secs(600);

/// How often orphans and droppable results are searched while space is short or jobs are refused
/// for it.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Who has received all parts of a result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GotBy {
    /// Somebody that fetched them.
    Anybody,
    /// The client whose result it is.
    ItsClient,
}

/// Why results have to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Short {
    /// Stored results exceed their byte limit, which always holds.
    Results,
    /// Others wait for room on the disk, or in the spool.
    Room {
        /// Whether results outlive the leader: then those that nobody has make no room for others,
        /// and go by their time and by the limit of results alone.
        durable: bool,
    },
}

/// A job that has ended.
#[derive(Clone, Debug)]
struct Ended {
    job: JobId,
    /// Whether its client was sent the result.
    is_sent: bool,
    /// What a worker returned for it.
    returned: Option<ResultId>,
    /// The results of the job and of its children that have large parts.
    with_parts: Vec<ResultId>,
}

/// What is known of results that may go.
#[derive(Debug, Default)]
pub(super) struct Retention {
    /// Connections that are about to fetch the results of a job's workers, and how long the results
    /// are protected for each.
    fetchers: HashMap<JobId, HashMap<ConnId, Micros>>,
    /// When those are looked for again.
    sweep_at: Micros,
    /// The job that was forgotten last to make room.
    forgetting: Option<JobId>,
    /// Results of which somebody has got all parts, and who.
    got: HashMap<ResultId, GotBy>,
    /// Results whose clients take no parts: they have the beginning, and were told how to fetch the
    /// rest.
    cut: HashSet<ResultId>,
}

impl Retention {
    /// Somebody is about to ask for the results of a job's workers.
    pub(super) fn hold(&mut self, now: Micros, conn: ConnId, job: JobId) {
        self.fetchers.entry(job).or_default().insert(conn, now.plus(FETCH_WAIT));
    }

    /// Forgets who was about to ask and is gone, or did not for too long.
    fn release(&mut self, now: Micros, may_ask: impl Fn(ConnId, JobId) -> bool) {
        self.fetchers.retain(|job, who| {
            who.retain(|conn, until| *until > now && may_ask(*conn, *job));
            !who.is_empty()
        });
    }

    /// Somebody has got all parts of a result.
    fn got(&mut self, result: ResultId, by: GotBy) {
        let known = self.got.entry(result).or_insert(by);
        *known = (*known).max(by);
    }

    /// A client that takes no parts gets a result without them.
    pub(super) fn cut(&mut self, result: ResultId) {
        self.cut.insert(result);
    }

    /// A result is not kept any more.
    pub(super) fn forget(&mut self, result: ResultId) {
        self.got.remove(&result);
        self.cut.remove(&result);
    }

    /// Which of these, the oldest first, goes next.
    fn next_to_go(
        &self,
        now: Micros,
        short: Short,
        ended: impl Iterator<Item = Ended>,
    ) -> Option<JobId> {
        // Nothing better is looked for.
        let best = match short {
            Short::Room { .. } if self.got.is_empty() => 2,
            Short::Results | Short::Room { .. } => 0,
        };
        let mut found: Option<(u8, JobId)> = None;
        for ended in ended {
            let Some(rank) = self.rank(now, short, &ended) else { continue };
            if found.is_none_or(|(found, _)| rank < found) {
                found = Some((rank, ended.job));
            }
            if rank <= best {
                break;
            }
        }
        found.map(|(_, job)| job)
    }

    /// Results of the lowest rank go first; `None` stays.
    fn rank(&self, now: Micros, short: Short, ended: &Ended) -> Option<u8> {
        let Ended { job, is_sent, returned, with_parts } = ended;
        let is_held =
            self.fetchers.get(job).is_some_and(|who| who.values().any(|until| *until > now));
        let durable = match short {
            Short::Results => return Some(2 * u8::from(is_held) + u8::from(!is_sent)),
            Short::Room { .. } if is_held || with_parts.is_empty() => return None,
            Short::Room { durable } => durable,
        };
        let got_by = with_parts.iter().map(|result| self.got.get(result).copied()).min().flatten();
        // Its client was told to fetch the large parts, and nobody has.
        let is_cut = returned
            .is_some_and(|result| self.cut.contains(&result) && !self.got.contains_key(&result));
        match got_by {
            Some(_) if *is_sent => Some(0),
            Some(GotBy::ItsClient) => Some(1),
            // Its client has nothing of it, and may come back.
            Some(GotBy::Anybody) => Some(3),
            None if is_cut => None,
            None if *is_sent => Some(2),
            None => Some(4).filter(|_| !durable),
        }
    }
}

impl Leader {
    /// Orphans make room before results do: packs of puts that never ended, or of jobs' inputs that
    /// another pack has, too.
    fn forget_orphans(&mut self) {
        for blob in self.datasets.orphans(self.now, &self.facts()) {
            info!(%blob, "removed an unused pack to make room");
            self.dataset_event(DatasetEvent::Unwanted { blob });
        }
        self.act_once();
    }

    /// Forgets results while there are too many, others wait for their room, or jobs are refused
    /// for it.
    pub(super) fn forget_results(&mut self) {
        // Refusal of jobs may last whatever is dropped, so it is not checked with every event.
        let is_due = self.retention.sweep_at <= self.now;
        let refuses_jobs = is_due && self.relay.refuses_jobs();
        if refuses_jobs || is_due && self.relay.is_short() {
            self.retention.sweep_at = self.now.plus(SWEEP_EVERY);
            self.forget_orphans();
        }
        // The inputs of failed jobs go before any result does.
        self.drop_retained();
        loop {
            // Until that is committed nothing is gained by forgetting more.
            let state = self.broker.state();
            self.retention
                .forgetting
                .take_if(|job| state.job(*job).is_none_or(|job| !job.has_ended()));
            let refuses_jobs = refuses_jobs && self.relay.refuses_jobs();
            let is_short = (refuses_jobs || self.relay.is_short())
                && self.blobs.has_kept()
                && !self.retained.is_dropping();
            let short = match self.payloads.held.result_bytes() > self.config.result_bytes_max {
                true => Some(Short::Results),
                false => is_short.then(|| Short::Room { durable: self.log.is_durable() }),
            };
            let Some(short) = short.filter(|_| self.retention.forgetting.is_none()) else { break };
            let before = (self.payloads.held.result_bytes(), self.relay.fill().blobs);
            // What somebody is getting is not taken from under it.
            let ended = self.broker.oldest_ended().filter(|(job, _)| !self.is_being_got(job));
            let ended = ended.map(|(job, is_sent)| Ended {
                job: job.id(),
                is_sent,
                returned: outcome::returned(job),
                with_parts: self
                    .results_of(job)
                    .filter(|of| !self.blobs.of_result(*of).is_empty())
                    .collect(),
            });
            let Some(job) = self.retention.next_to_go(self.now, short, ended) else { break };
            self.retention.forgetting = Some(job);
            self.broker.handle(self.now, Event::ForgetEnded { job });
            self.act_once();
            if (self.payloads.held.result_bytes(), self.relay.fill().blobs) == before {
                // What is left belongs to jobs that have not ended.
                break;
            }
        }
    }

    /// What workers returned for a job, or for its children.
    pub(super) fn results_of<'a>(&'a self, job: &'a Job) -> impl Iterator<Item = ResultId> {
        children(&self.broker, job).chain([job]).filter_map(outcome::returned)
    }

    /// Whether somebody is getting the result of a job, or of one of its children.
    fn is_being_got(&self, job: &Job) -> bool {
        self.results_of(job).any(|result| {
            self.payloads.held.is_pinned(Key::Result(result)) || self.is_fetched(result)
        })
    }

    /// Forgets who was about to ask for results and is gone, or did not for too long.
    pub(super) fn release_fetched(&mut self) {
        let may_ask = |conn, job| self.peers.has(conn) && self.broker.state().job(job).is_some();
        self.retention.release(self.now, may_ask);
    }

    /// A connection has got a part of a result: perhaps that was the last one. The client that a
    /// result goes to may fail to store it: until it says that it has it, nobody does.
    pub(super) fn part_got(&mut self, conn: ConnId, job: JobId) {
        let is_to_confirm =
            self.peers.takes(conn, Features::RECEIPTS) && self.pacing.waits_for_receipt(conn, job);
        if !is_to_confirm {
            self.note_got(conn, job);
        }
    }

    /// Notes who has all of a result. Parts that were made of it here need not go to who got it in
    /// a frame.
    pub(super) fn note_got(&mut self, conn: ConnId, job: JobId) {
        let Some(result) = self.broker.state().job(job).and_then(outcome::returned) else { return };
        let is_here = |part: &BlobId| {
            self.relay.has_got(conn, *part)
                || is_made(job, *part) && !self.relay.is_given(conn, *part)
        };
        let parts = self.blobs.of_result(result);
        if !parts.is_empty() && parts.iter().all(is_here) {
            let owner = self.broker.state().job(job).map(|job| &job.submission.client);
            let client = self.peers.get(conn).and_then(Session::client);
            let is_its = client.is_some_and(|client| Some(client) == owner);
            self.retention.got(result, if is_its { GotBy::ItsClient } else { GotBy::Anybody });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Micros = Micros(1_000_000);
    const KEPT: Short = Short::Room { durable: true };

    fn id(number: u64) -> JobId {
        JobId(Uuid::from_u128(number.into()))
    }

    /// A job with a result of the same number, which has large parts.
    fn ended(number: u64, is_sent: bool) -> Ended {
        let result = ResultId(number);
        Ended { job: id(number), is_sent, returned: Some(result), with_parts: vec![result] }
    }

    /// The order in which these go, one after the other.
    fn order(retention: &Retention, short: Short, jobs: &[Ended]) -> Vec<u128> {
        let (mut left, mut gone) = (jobs.to_vec(), Vec::new());
        while let Some(job) = retention.next_to_go(NOW, short, left.iter().cloned()) {
            left.retain(|ended| ended.job != job);
            gone.push(job.0.as_u128());
        }
        gone
    }

    #[test]
    fn for_room_those_go_first_that_are_missed_least_and_of_those_the_oldest() {
        let mut retention = Retention::default();
        let jobs: Vec<Ended> = (1..=9).map(|number| ended(number, number >= 5)).collect();
        // 1 nobody has; 2 and 3 somebody fetched; 4 its client has, though it was never sent to it.
        retention.got(ResultId(2), GotBy::Anybody);
        retention.got(ResultId(3), GotBy::Anybody);
        retention.got(ResultId(4), GotBy::ItsClient);
        retention.got(ResultId(4), GotBy::Anybody);
        // 5 and 6 were sent without parts, which nobody fetched of 5; 8 and 9 have gone whole.
        retention.cut(ResultId(5));
        retention.cut(ResultId(6));
        retention.got(ResultId(6), GotBy::Anybody);
        retention.got(ResultId(8), GotBy::Anybody);
        retention.got(ResultId(9), GotBy::ItsClient);
        assert_eq!(order(&retention, KEPT, &jobs), [6, 8, 9, 4, 7, 2, 3]);
        let memory = Short::Room { durable: false };
        assert_eq!(
            order(&retention, memory, &jobs),
            [6, 8, 9, 4, 7, 2, 3, 1],
            "what nobody has goes last"
        );
        assert_eq!(order(&retention, Short::Results, &jobs), [5, 6, 7, 8, 9, 1, 2, 3, 4]);
    }

    #[test]
    fn where_nobody_got_any_parts_the_oldest_that_was_sent_goes() {
        let jobs = [ended(1, false), ended(2, true), ended(3, true)];
        assert_eq!(order(&Retention::default(), KEPT, &jobs), [2, 3]);
    }

    #[test]
    fn a_result_without_large_parts_makes_no_room_and_one_with_children_needs_all_of_them_got() {
        let mut retention = Retention::default();
        let small = Ended { with_parts: Vec::new(), ..ended(1, true) };
        let parent = Ended {
            with_parts: vec![ResultId(20), ResultId(21)],
            returned: None,
            ..ended(2, false)
        };
        let jobs = [small, parent];
        retention.got(ResultId(20), GotBy::ItsClient);
        assert_eq!(order(&retention, KEPT, &jobs), [0; 0]);
        retention.got(ResultId(21), GotBy::Anybody);
        assert_eq!(order(&retention, KEPT, &jobs), [2]);
        assert_eq!(order(&retention, Short::Results, &jobs), [1, 2]);
        retention.forget(ResultId(21));
        assert_eq!(order(&retention, KEPT, &jobs), [0; 0]);
    }

    #[test]
    fn what_somebody_is_about_to_fetch_stays_for_a_while_unless_there_are_too_many() {
        let mut retention = Retention::default();
        let jobs = [ended(1, true), ended(2, true)];
        retention.hold(NOW, ConnId(1), id(1));
        assert_eq!(order(&retention, KEPT, &jobs), [2]);
        assert_eq!(order(&retention, Short::Results, &jobs), [2, 1]);
        let late = NOW.plus(FETCH_WAIT);
        assert_eq!(retention.next_to_go(late, KEPT, jobs.iter().cloned()), Some(id(1)));
        retention.release(NOW, |_, _| true);
        assert_eq!(order(&retention, KEPT, &jobs), [2]);
        retention.release(NOW, |conn, job| (conn, job) != (ConnId(1), id(1)));
        assert_eq!(order(&retention, KEPT, &jobs), [1, 2], "its connection is gone");
    }
}
