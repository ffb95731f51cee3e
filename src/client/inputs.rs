//! Uploads one job's blobs, over whichever connection the job is on, and combines their progress.
//! The event loop owns one for each job; it decides nothing about jobs.

use std::time::Instant;

use chunking::message::Reason;
use uuid::Uuid;

use crate::peer::{LinkWriter, OutFrame};
use crate::transfer::throttle::{AT_CLIENT, Throttle};
use crate::transfer::{Blob, Conn, State, Uploads, Waiting, Wire};

/// What the uploads of a job have to tell.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// How far they are, if that is worth saying.
    pub(super) progress: Option<(u64, u64)>,
    /// Why they wait, if that is new.
    pub(super) waiting: Option<Waiting>,
    /// One of them has failed for good.
    pub(super) failed: Option<Failed>,
}

/// An input that will not arrive.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// The file's name.
    pub(super) name: String,
    /// Why, for programs.
    pub(super) reason: Reason,
    /// The same for people.
    pub(super) why: String,
}

/// The blobs of one job.
#[derive(Debug)]
pub(super) struct Inputs {
    /// Their transfers, with the names of the files.
    uploads: Vec<(String, Uuid)>,
    /// Bytes of all of them.
    bytes: u64,
    on: Option<Conn>,
    throttle: Throttle<Instant>,
    done_told: u64,
    waiting: Option<Waiting>,
}

impl Inputs {
    /// Starts the uploads; they wait for a connection.
    pub(super) fn start(job: Uuid, blobs: Vec<Blob>, uploads: &mut Uploads<Uuid>) -> Self {
        let throttle = Throttle::new(AT_CLIENT);
        let mut inputs = Inputs {
            uploads: Vec::new(),
            bytes: 0,
            on: None,
            throttle,
            done_told: 0,
            waiting: None,
        };
        for blob in blobs {
            let (name, id, size) = (blob.name.as_str().to_owned(), blob.id, blob.source.size());
            // A blob that cannot be cut was refused when the job was prepared.
            if uploads.start(job, blob).is_ok() {
                inputs.uploads.push((name, id));
                inputs.bytes = inputs.bytes.saturating_add(size);
            }
        }
        inputs
    }

    pub(super) fn is_empty(&self) -> bool {
        self.uploads.is_empty()
    }

    /// How many there are.
    pub(super) fn len(&self) -> usize {
        self.uploads.len()
    }

    /// The connection that the job was sent on with them.
    pub(super) fn on(&self) -> Option<Conn> {
        self.on
    }

    /// Bytes of all of them.
    pub(super) fn total(&self) -> u64 {
        self.bytes
    }

    /// The job is on this connection now; the frames open its transfers there.
    pub(super) fn connected(
        &mut self,
        conn: Conn,
        writer: &LinkWriter,
        wire: Wire,
        uploads: &mut Uploads<Uuid>,
    ) -> Vec<OutFrame> {
        self.on = Some(conn);
        self.uploads.iter().filter_map(|(_, id)| uploads.open(*id, conn, writer, wire)).collect()
    }

    /// A connection ended.
    pub(super) fn disconnected(&mut self, conn: Conn) {
        self.on.take_if(|on| *on == conn);
    }

    /// Nothing more is to be sent; how many blobs were.
    pub(super) fn stop(&mut self, uploads: &mut Uploads<Uuid>) -> usize {
        self.uploads.drain(..).filter_map(|(_, id)| uploads.remove(id)).count()
    }

    /// What has changed since the last look.
    pub(super) fn look(&mut self, now: Instant, uploads: &Uploads<Uuid>) -> Told {
        let mut told = Told::default();
        let (mut done, mut total, mut arrived) = (0u64, 0u64, true);
        let mut waiting = None;
        for (name, id) in &self.uploads {
            let Some(status) = uploads.status(*id) else { continue };
            done = done.saturating_add(status.done);
            total = total.saturating_add(status.total);
            waiting = waiting.or(status.waiting);
            match status.state {
                State::Sending => arrived = false,
                State::Arrived(_) => {}
                State::Refused(why) if is_final(why.reason) => {
                    told.failed =
                        Some(Failed { name: name.clone(), reason: why.reason, why: why.text });
                }
                // The leader does not need it, or not here and now: the job's own answer says more.
                State::Refused(_) => {}
                State::SourceGone(error) => {
                    let (reason, why) = (Reason::SOURCE_GONE, error.to_string());
                    told.failed = Some(Failed { name: name.clone(), reason, why });
                }
            }
        }
        if waiting != self.waiting {
            self.waiting.clone_from(&waiting);
            told.waiting = waiting;
        }
        if done != self.done_told && self.throttle.passes(now, arrived) {
            self.done_told = done;
            told.progress = Some((done, total));
        }
        told
    }
}

/// Whether a blob that was refused for this reason will be refused again.
fn is_final(reason: Reason) -> bool {
    [Reason::INVALID, Reason::TOO_LARGE, Reason::BAD_DIGEST, Reason::CONFLICT].contains(&reason)
}
