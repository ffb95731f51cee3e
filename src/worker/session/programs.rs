//! Looks which programs the handler has, and tells the leader; hands jobs back whose programs are
//! not here before their inputs come.

use std::time::Duration;

use chunking::MessageError;
use chunking::message::{Body as _, Features, Programs, ProgramsSay};
use tokio::task::JoinError;
use tokio::time::Instant;
use tracing::{info, warn};

use super::Session;
use crate::peer::InFrame;
use crate::worker::handler::{Handler, Job, ProgramListing};

/// What a look at the programs found, and how long it took.
pub(super) type Looked = (Option<ProgramListing>, Duration);

impl<H: Handler> Session<H> {
    /// Whether the leader takes a job back for want of its program.
    pub(super) fn may_lack_programs(&self) -> bool {
        let wanted = Features::PROGRAMS.with(Features::LEASES);
        self.leader.is_some_and(|leader| leader.has(wanted))
    }

    /// What the leader can do is known.
    pub(super) fn announce_programs(&mut self) {
        let wants = self.may_lack_programs();
        let frame = self.announced.on_leader(wants, Instant::now());
        self.exchange.out.extend(frame);
    }

    pub(super) fn on_programs(&mut self, frame: &InFrame) -> Result<(), MessageError> {
        if Programs::decode(&frame.payload)?.say == ProgramsSay::Look {
            let answer = self.announced.on_asked(frame.msg_id, Instant::now());
            self.exchange.out.extend(answer);
        }
        Ok(())
    }

    /// Looks on a thread of its own, if it is time.
    pub(super) fn look_at_programs(&mut self) {
        if self.announced.begin_look(Instant::now()) {
            let handler = self.handler.clone();
            self.looks.spawn_blocking(move || {
                let start = Instant::now();
                (handler.programs(), start.elapsed())
            });
        }
    }

    pub(super) fn on_looked(&mut self, looked: Result<Looked, JoinError>) {
        let (found, took) = looked.unwrap_or_else(|error| {
            warn!("cannot list the handler's programs: {error}");
            (None, Duration::ZERO)
        });
        let frames = self.announced.on_looked(found, took, Instant::now());
        self.exchange.out.extend(frames);
    }

    /// Hands a job back whose program is not here, before inputs come for it. Says whether it did.
    pub(super) fn hands_back(&mut self, job: &Job) -> bool {
        let has_more = job.blobs().next().is_some() || job.caches().next().is_some();
        let is_known = self.table.is_under_way(job.id) || self.table.is_past_inputs(job.id);
        if !has_more || is_known || !self.may_lack_programs() {
            return false;
        }
        let Some(why) = self.handler.lacks_program(job) else { return false };
        info!(job = %job.id, "handed back: {why}");
        self.announced.on_missing(Instant::now());
        self.table.on_no_program(job, &why);
        true
    }
}
