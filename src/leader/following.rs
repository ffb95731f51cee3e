//! Passes follows of jobs' outputs to [`Follows`](super::follows::Follows), tells it where the jobs
//! stand, and carries out its actions.

use chunking::message::{Features, Follow};
use tracing::{debug, warn};
use uuid::Uuid;

use super::Leader;
use super::follows::{FollowAction, FollowEvent, FollowId, Standing};
use crate::core::Record;
use crate::core::event::WorkerClass;
use crate::core::ids::{ConnId, Index, JobId};
use crate::core::job::{Job, Phase};
use crate::summed::Summed;

/// So many outputs that nobody asked for are each worth a line in the log.
const FAULTS_LOGGED_MAX: u64 = 16;

/// Children that are named to who asks for the output of a job to all workers.
const CHILDREN_NAMED_MAX: usize = 3;

impl Leader {
    /// A client follows a job, or says more of that.
    pub(super) fn follow(&mut self, conn: ConnId, id: Uuid, follow: Follow) {
        let by = FollowId { conn, id };
        let event = match self.follows.knows(by) {
            true => FollowEvent::Moved { by, follow },
            false => {
                let standing = self.standing(JobId(follow.job));
                FollowEvent::Wanted { by, follow, standing }
            }
        };
        self.follow_event(event);
    }

    /// A worker sent something of a job's output.
    pub(super) fn output_came(&mut self, conn: ConnId, id: Uuid, payload: Summed) {
        self.follow_event(FollowEvent::Said { conn, id, payload });
    }

    pub(super) fn follow_event(&mut self, event: FollowEvent) {
        self.follows.handle(self.now, event);
        while let Some(action) = self.follows.poll() {
            match action {
                FollowAction::Ask { conn, id, follow } => {
                    self.tell(conn, |session| session.follow(id, &follow));
                }
                FollowAction::Send { by, payload } => {
                    self.tell(by.conn, |session| session.output(by.id, payload));
                }
                FollowAction::Fault { conn, why, count } => {
                    if count <= FAULTS_LOGGED_MAX || count.is_power_of_two() {
                        warn!(peer = %self.name(conn), count, "ignored {why}");
                    } else {
                        debug!(peer = %self.name(conn), count, "ignored {why}");
                    }
                }
            }
        }
    }

    /// A record is proposed: when it counts, a job that somebody follows may stand elsewhere.
    pub(super) fn note_followed(&mut self, index: Index, record: &Record) {
        self.follows.proposed(index, record.job());
    }

    /// All records up to this one count.
    pub(super) fn followed_may_have_changed(&mut self, index: Index) {
        while let Some(job) = self.follows.counted(index) {
            let standing = self.standing(job);
            self.follow_event(FollowEvent::Stands { job, standing });
        }
    }

    /// A worker came or went: the jobs that somebody follows may be with it.
    pub(super) fn look_at_followed(&mut self) {
        let jobs: Vec<JobId> = self.follows.jobs().collect();
        for job in jobs {
            let standing = self.standing(job);
            self.follow_event(FollowEvent::Stands { job, standing });
        }
    }

    /// Where a job stands, as far as its output is concerned.
    fn standing(&self, id: JobId) -> Standing {
        let Some(job) = self.broker.state().job(id) else {
            return Standing::Unknown { why: self.broker.not_known(id).to_string() };
        };
        if !job.children.is_empty() {
            return Standing::NoOutput { why: goes_to_all(job) };
        }
        match job.phase {
            Phase::Queued { .. } => Standing::Queued,
            Phase::Gathering { .. } => Standing::NoOutput { why: goes_to_all(job) },
            Phase::Done { .. } | Phase::Dead { .. } => Standing::Ended,
            Phase::Leased { worker, attempt, class } => {
                let known = self.broker.worker(worker);
                let name = known.map(|known| known.name.clone()).filter(|name| !name.is_empty());
                let name = name.unwrap_or_else(|| worker.to_string().into());
                let Some(conn) = known.and_then(|known| known.conn()) else {
                    return Standing::Away { worker: name, attempt };
                };
                if self.peers.takes(conn, Features::FOLLOW) {
                    return Standing::At { conn, worker: name, attempt };
                }
                let kind = match class {
                    WorkerClass::Leasing => "runs a version of heft without `follow`",
                    WorkerClass::Classic | WorkerClass::OneAtATime => "is a classic worker",
                };
                let why = format!("worker {name} {kind}: the job's output comes with its result");
                Standing::Silent { attempt, why }
            }
        }
    }
}

/// Whose output to follow instead of that of a job to all workers.
fn goes_to_all(job: &Job) -> String {
    let named: Vec<String> =
        job.children.iter().take(CHILDREN_NAMED_MAX).map(ToString::to_string).collect();
    let more = if job.children.len() > named.len() { " ..." } else { "" };
    format!(
        "job {} went to all workers, {} of them: follow the job of one of them: {}{more}",
        job.id(),
        job.children.len(),
        named.join(", ")
    )
}
