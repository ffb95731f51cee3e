//! The blobs that one job brings with it: their uploads, over whichever connection the job is on, and what they have to tell
//! all together. The driver owns one for each job; it decides nothing about jobs.

use std::time::Instant;

use chunking::message::Reason;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::dispatch::Conn;
use crate::peer::{LinkWriter, OutFrame};
use crate::transfer::throttle::{AT_CLIENT, Throttle};
use crate::transfer::{Blob, State, Upload, Waiting, Wire};

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
    uploads: Vec<(String, Upload)>,
    on: Option<Conn>,
    throttle: Throttle<Instant>,
    done_told: u64,
    waiting: Option<Waiting>,
}

impl Inputs {
    /// Starts the uploads; they wait for a connection.
    pub(super) fn start(blobs: Vec<Blob>, news: &mpsc::UnboundedSender<Uuid>) -> Self {
        let start = |blob: Blob| {
            let name = blob.name.as_str().to_owned();
            // A blob that cannot be cut was refused when the job was prepared.
            Upload::start(blob, news.clone()).ok().map(|upload| (name, upload))
        };
        let uploads = blobs.into_iter().filter_map(start).collect();
        Inputs { uploads, on: None, throttle: Throttle::new(AT_CLIENT), done_told: 0, waiting: None }
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

    /// The ids of the blobs.
    pub(super) fn ids(&self) -> impl Iterator<Item = Uuid> {
        self.uploads.iter().map(|(_, upload)| upload.id())
    }

    /// Bytes of all of them.
    pub(super) fn total(&self) -> u64 {
        self.uploads.iter().fold(0, |sum, (_, upload)| sum.saturating_add(upload.status().total))
    }

    /// The job is on this connection now; the frames open its transfers there.
    pub(super) fn connected(&mut self, conn: Conn, writer: &LinkWriter, wire: Wire) -> Vec<OutFrame> {
        self.on = Some(conn);
        self.uploads.iter().map(|(_, upload)| upload.connected(writer.clone(), wire)).collect()
    }

    /// A connection ended.
    pub(super) fn disconnected(&mut self, conn: Conn) {
        if self.on == Some(conn) {
            self.on = None;
            self.uploads.iter().for_each(|(_, upload)| upload.disconnected());
        }
    }

    /// The upload of a blob, if the word of this connection counts for it.
    pub(super) fn upload(&self, conn: Conn, blob: Uuid) -> Option<&Upload> {
        let own = self.uploads.iter().find(|(_, upload)| upload.id() == blob);
        own.filter(|_| self.on == Some(conn)).map(|(_, upload)| upload)
    }

    /// Nothing more is to be sent; the ids of the blobs that were.
    pub(super) fn stop(&mut self) -> Vec<Uuid> {
        self.uploads.drain(..).map(|(_, upload)| upload.id()).collect()
    }

    /// What has changed since the last look.
    pub(super) fn look(&mut self, now: Instant) -> Told {
        let mut told = Told::default();
        let (mut done, mut total, mut arrived) = (0u64, 0u64, true);
        let mut waiting = None;
        for (name, upload) in &self.uploads {
            let status = upload.status();
            done = done.saturating_add(status.done);
            total = total.saturating_add(status.total);
            waiting = waiting.or(status.waiting);
            match status.state {
                State::Sending => arrived = false,
                State::Arrived(_) => {}
                State::Refused(why) if is_final(why.reason) => {
                    told.failed = Some(Failed { name: name.clone(), reason: why.reason, why: why.text });
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
