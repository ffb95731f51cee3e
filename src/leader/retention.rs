//! Which results go before their time (`--result-ttl`): when there are too many bytes of them, or
//! when others wait for their room.
//!
//! For room, where results outlive the leader, only those go that somebody has, and of those the
//! oldest first: first what its client has and somebody has got whole, then what its client has
//! without the large parts, which it did not want, and last what its client has not got and somebody
//! else has fetched whole: the client may come back for it. One that nobody has stays for its time, and so does one of which a classic client got the beginning, until somebody
//! has fetched the rest. Who has fetched what is known as long as the leader lives.

use super::job_blobs::GotBy;
use super::parts::is_made;
use super::relay::BlobId;
use super::{Leader, outcome};
use crate::conn::Session;
use crate::core::Event;
use crate::core::ids::{ConnId, JobId, ResultId};
use crate::core::job::Job;

impl Leader {
    /// Forgets results while there are too many, or others wait for their room. Where they outlive
    /// the leader, those that nobody has make no room for others: they go by their time and by the
    /// limit of results alone.
    pub(super) fn forget_results(&mut self) {
        loop {
            // Until that is committed nothing is gained by forgetting more.
            let state = self.broker.state();
            self.forgetting.take_if(|job| state.job(*job).is_none_or(|job| !job.has_ended()));
            let is_forgetting = self.forgetting.is_some();
            let too_many = self.payloads.held.result_bytes() > self.config.result_bytes_max;
            if is_forgetting || !too_many && !self.relay.is_short() {
                break;
            }
            let before = (self.payloads.held.result_bytes(), self.relay.fill().blobs);
            let Some(job) = self.next_to_go(too_many) else { break };
            self.forgetting = Some(job);
            self.broker.handle(self.now, Event::ForgetEnded { job });
            self.act_once();
            if (self.payloads.held.result_bytes(), self.relay.fill().blobs) == before {
                // What is left belongs to jobs that have not ended.
                break;
            }
        }
    }

    fn next_to_go(&self, too_many: bool) -> Option<JobId> {
        if !too_many && !self.blobs.has_kept() {
            return None;
        }
        // What somebody is getting is not taken from under it.
        let may_go = |job: &Job| (too_many || self.has_parts(job)) && !self.is_being_got(job);
        let not_held = |job: &Job| !self.is_held_for_fetch(job.id()) && may_go(job);
        if too_many {
            // The limit of results holds, whoever waits.
            let any = || self.broker.oldest_ended(false, may_go);
            return self.broker.oldest_ended(false, not_held).or_else(any);
        }
        let got_by = |least: GotBy| move |job: &Job| not_held(job) && self.is_got(job, least);
        let is_sent = |job: &Job| not_held(job) && !self.is_cut(job);
        let (is_any_got, is_durable) = (self.blobs.has_got(), self.log.is_durable());
        let whole = || {
            let sent = self.broker.oldest_ended(true, got_by(GotBy::Anybody));
            sent.or_else(|| self.broker.oldest_that(got_by(GotBy::ItsClient))).filter(|_| is_any_got)
        };
        let sent = || self.broker.oldest_ended(true, is_sent);
        // Its client has nothing of it, and may come back.
        let fetched = || self.broker.oldest_that(got_by(GotBy::Anybody)).filter(|_| is_any_got);
        let unsent = || self.broker.oldest_ended(false, is_sent).filter(|_| !is_durable);
        whole().or_else(sent).or_else(fetched).or_else(unsent)
    }

    /// Whether somebody, or its client, has all large parts of a job's result, and of those of its children.
    fn is_got(&self, job: &Job, least: GotBy) -> bool {
        let children = job.children.iter().filter_map(|child| self.broker.state().job(*child));
        let mut results = children.chain([job]).filter_map(outcome::returned);
        results.all(|result| {
            self.blobs.of_result(result).is_empty() || self.blobs.got_by(result).is_some_and(|by| by >= least)
        })
    }

    /// Whether a client that takes no large parts was told to fetch those of a job's result, and nobody has.
    fn is_cut(&self, job: &Job) -> bool {
        outcome::returned(job).is_some_and(|result| self.blobs.is_cut(result))
    }

    /// A connection has got a part of a result: perhaps that was the last one.
    pub(super) fn part_got(&mut self, conn: ConnId, job: JobId) {
        let Some(result) = self.broker.state().job(job).and_then(outcome::returned) else { return };
        self.note_got(conn, job, result);
    }

    /// Notes who has all of a result. Parts that were made of it here need not go to who got it in
    /// a frame.
    pub(super) fn note_got(&mut self, conn: ConnId, job: JobId, result: ResultId) {
        let is_here = |part: &BlobId| {
            self.relay.has_got(conn, *part) || is_made(job, *part) && !self.relay.is_given(conn, *part)
        };
        let parts = self.blobs.of_result(result);
        if !parts.is_empty() && parts.iter().all(is_here) {
            let owner = self.broker.state().job(job).map(|job| &job.submission.client);
            let client = self.sessions.get(&conn).and_then(Session::client);
            let is_its = client.is_some_and(|client| Some(client) == owner);
            self.blobs.got(result, if is_its { GotBy::ItsClient } else { GotBy::Anybody });
        }
    }
}
