//! Handles results that wait for space: tells their clients, answers questions about them, and
//! gives up a result that could never fit.

use std::collections::HashSet;

use chunking::message::Open;

use super::Leader;
use super::refusal_text::RefusalText;
use super::relay::{BlobId, WaitingPart};
use crate::core::ids::{Attempt, JobId, Run};
use crate::store::blobs::Class;

impl Leader {
    /// Tells the clients of results that wait for room, each connection once.
    pub(super) fn tell_who_waits_for_room(&mut self) {
        let waiting: Vec<WaitingPart> = self.relay.results_waiting().collect();
        let jobs: HashSet<JobId> = waiting.iter().map(|part| part.job).collect();
        self.blobs.told.retain(|job, _| jobs.contains(job));
        for part in waiting {
            let Some(job) = self.broker.state().job(part.job) else { continue };
            // Its client knows the parent alone.
            let known = job.child_of.map_or(job.id(), |(parent, _)| parent);
            let Some(conn) = self.broker.submitter_of(known, &job.submission.client) else {
                continue;
            };
            if self.blobs.told.insert(part.job, conn) != Some(conn) {
                let text = self.why_result_waits(part);
                let run = self.run_of(known);
                self.tell_lazily(conn, |session| session.waiting(known, run, &text));
            }
        }
    }

    fn why_result_waits(&self, part: WaitingPart) -> String {
        format!(
            "the job has finished, and its result waits at the worker: {}",
            self.relay.why_it_waits(part)
        )
    }

    /// Why the result of a job does not come, if it waits for room.
    pub(super) fn result_waits(&self, job: JobId) -> Option<String> {
        let part = self.relay.results_waiting().find(|part| part.job == job)?;
        Some(self.why_result_waits(part))
    }

    /// The run of a job, for messages about it; the first while the job is not known yet.
    pub(super) fn run_of(&self, job: JobId) -> Run {
        self.broker.state().job(job).map_or(Run(1), |job| job.run)
    }

    /// Jobs whose results wait for room.
    pub(super) fn results_waiting(&self) -> usize {
        self.relay.results_waiting().map(|part| part.job).collect::<HashSet<_>>().len()
    }

    /// Why a part of a result can never have room here, with the others of the same attempt, if so.
    pub(super) fn never_fits(&self, id: BlobId, open: &Open) -> Option<RefusalText> {
        let room = self.relay.disk_bytes_max(Class::Result)?;
        let others = self.blobs.coming_of(JobId(open.owner), Attempt(open.attempt));
        let others = others.filter(|part| *part != id).map(|part| self.relay.size(part));
        let bytes = others.fold(open.size, u64::saturating_add);
        (bytes > room && !self.relay.has_arrived(id)).then(|| {
            let text = format!(
                "the large parts of the job's result have {bytes} bytes; the leader's disk has \
                 room for at most {room}: give the leader a larger one (--data), or make the \
                 result smaller"
            );
            RefusalText::too_large(bytes, room, text)
        })
    }

    /// How large the disk is may be known only now: parts of results that began to wait before
    /// that, and never fit, are given up.
    pub(super) fn give_up_what_never_fits(&mut self) {
        let waiting: Vec<WaitingPart> = self.relay.results_waiting().collect();
        for WaitingPart { blob, .. } in waiting {
            let refusal = self.relay.opening(blob).and_then(|open| self.never_fits(blob, open));
            if let Some(refusal) = refusal {
                self.relay.give_up_for_size(blob, refusal.text().to_owned());
            }
        }
    }
}
