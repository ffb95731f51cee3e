//! Delivers results to clients: whole, with the large parts sent separately, or truncated for a
//! client that cannot take more.

use chunking::message::{Features, Reason};
use chunking::{EncodeError, limits};
use tracing::warn;

use super::parts::Named;
use super::refusal_text::RefusalText;
use super::{Leader, outcome};
use crate::conn::WireFrame;
use crate::core::Event;
use crate::core::ids::{ConnId, JobId, ResultId, Run};

impl Leader {
    /// Whether a client may be sent other bytes than a worker's result has: without its parts, or
    /// cut.
    pub(super) fn cuts(&self, conn: ConnId, result: ResultId) -> bool {
        let takes_parts = self.takes_transfers(conn);
        let has_parts = !self.blobs.of_result(result).is_empty();
        // Under the longest subject it would not fit.
        let longest = limits::FRAME_BODY_BYTES_MAX as usize - limits::SUBJECT_BYTES_MAX - 39;
        let may_be_cut =
            self.payloads.held.result(result).is_some_and(|result| result.len() > longest);
        has_parts && (!takes_parts || !self.lost_parts(result).is_empty()) || may_be_cut
    }

    /// The frame with a job's result, behind the transfers of its parts.
    pub(super) fn deliver(&mut self, conn: ConnId, id: JobId, run: Run) -> Option<WireFrame> {
        let may_get = self.broker.may_get(conn, id);
        let Some(session) = self.peers.get(conn).filter(|_| may_get) else {
            self.broker.handle(self.now, Event::NotDelivered { job: id });
            return None;
        };
        // While its result waited its time may have been over, and it may have been submitted
        // again.
        let Some(job) = self.broker.state().job(id) else {
            let text = "the result has expired (--result-ttl)".to_owned();
            self.refuse(conn, id, RefusalText::new(Reason::UNKNOWN, text));
            return None;
        };
        if !job.has_ended() || job.run != run {
            return None;
        }
        let (result, takes_parts) = (outcome::returned(job), session.has(Features::TRANSFERS));
        let cut = result.filter(|result| !takes_parts && !self.blobs.of_result(*result).is_empty());
        let lost = result.map(|result| self.lost_parts(result)).unwrap_or_default();
        let (address, is_ours) = (&self.config.address, session.is_announced());
        let whole = outcome::result_of(&self.broker, &self.payloads.held, job, address, is_ours);
        let mut whole = outcome::without_lost(whole, &lost);
        if cut.is_some() {
            whole = outcome::without_parts(whole, address);
        }
        if !takes_parts && self.has_results_apart(job) {
            whole = outcome::with_results_apart(whole, id, address);
        }
        // Most results fit. One that does not is cut down until it does: a client must not wait for
        // ever.
        let frame = match session.result(id, whole.clone()) {
            None => {
                // That is all it ever gets.
                self.broker.handle(self.now, Event::Delivered { job: id, run });
                return None;
            }
            Some(Ok(frame)) => Some((frame, Named::Brought)),
            Some(Err(error)) => self.smaller_result(conn, id, &whole, &error),
        };
        let named = frame.as_ref().map_or(Named::Brought, |(_, named)| *named);
        if let Some(cut) = cut {
            self.retention.cut(cut);
        }
        if let Some(result) = result {
            self.send_parts(conn, id, result, named, false);
        }
        self.hold_children(conn, id);
        frame.map(|(frame, _)| frame)
    }

    /// A result that does not fit, so that it does: with what is long of it beside it, or cut.
    fn smaller_result(
        &mut self,
        conn: ConnId,
        id: JobId,
        whole: &[u8],
        error: &EncodeError,
    ) -> Option<(WireFrame, Named)> {
        let result = self.broker.state().job(id).and_then(outcome::returned);
        if let Some(result) = result.filter(|_| self.takes_transfers(conn))
            && let Some(apart) = self.parts_apart(id, result, whole)
            && let Some(Ok(frame)) = self.peers.get(conn)?.result(id, apart.into())
        {
            return Some((frame, Named::Made));
        }
        let (job, session) = (self.broker.state().job(id)?, self.peers.get(conn)?);
        warn!(job = %id, peer = %session.name(), "the result is cut down: {error}");
        let mut smaller = outcome::cut_down(job, whole, &self.config.address);
        let frame = smaller.find_map(|result| session.result(id, result)?.ok())?;
        Some((frame, Named::Brought))
    }
}
