//! Uploads results with large parts: first the parts by transfer, then the result that names them
//! with their digests.
//!
//! A result is retried until the leader has settled it. After a lost connection its transfers are
//! reopened, and data the leader has is not sent again. At most as many transfers are open as the
//! leader accepts, and only a few move at a time; other results wait their turn. A result the
//! leader has no space for moves nothing and takes no turn, since a smaller one may fit. A part
//! that the leader can never store, or that cannot be read, does not block the job: the result then
//! goes without it, as FAILED, and says why. A result the leader does not want is dropped. The
//! session owns it and sends its output.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use chunking::message::{Name, Purpose, Reason};
use chunking::{Digest, DigestKind, MessageError};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, info, warn};
use uuid::Uuid;

use super::handler::Content;
use super::job_table::RunAttempt;
use super::limits::{UPLOADS_MAX, UPLOADS_OPEN_MAX};
use super::result_encoding::{Large, Part, append_note, reference};
use crate::model::{JobResult, JobStatus, JsonModel};
use crate::peer::{InFrame, LinkWriter, OutFrame};
use crate::transfer::throttle::{AT_WORKER, Throttle};
use crate::transfer::{Blob, Compression, ONLY, Source, State, Uploads, Waiting, Wire};

/// One result on its way.
struct Return {
    large: Arc<Large>,
    numbers: RunAttempt,
    uploads: Vec<Uuid>,
    /// Whether its transfers are open on this connection.
    opened: bool,
    /// Why a part cannot be sent.
    failed: Option<Failed>,
    /// Parts that are too large for the leader, and what it said: the result goes without them.
    left_out: HashMap<Uuid, String>,
    /// Why the leader takes nothing at the moment, as it was said last.
    waits: Option<Waiting>,
    /// Whether the result itself was sent on this connection.
    answered: bool,
    throttle: Throttle<Instant>,
}

/// Why the parts of a result cannot be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Failed {
    /// They cannot be read, or the leader cannot take them.
    Parts(String),
    /// The leader does not want the result.
    Unwanted(String),
    /// The leader takes nothing now; the next connection tries again.
    Later,
}

impl Failed {
    fn refused(why: &Waiting) -> Self {
        match why.reason {
            Reason::UNKNOWN | Reason::CANCELLED | Reason::CONFLICT => {
                Failed::Unwanted(why.text.clone())
            }
            Reason::DRAINING | Reason::BUSY => Failed::Later,
            _ => Failed::Parts(format!("the leader refused it: {}", why.text)),
        }
    }
}

/// What news of an upload led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The result can be sent.
    Answer { job: Uuid, payload: Vec<u8> },
    /// The leader does not want the result: it is told so, and the result is dropped.
    GiveUp {
        job: Uuid,
        /// What is said.
        payload: Vec<u8>,
    },
    /// It is under way, and it is time to say how far.
    InputProgress {
        job: Uuid,
        /// Run and attempt.
        numbers: RunAttempt,
        /// Bytes that went.
        done: u64,
        /// Bytes of all parts.
        total: u64,
        /// What it waits for, if it waits.
        text: String,
    },
    /// Nothing to say.
    Nothing,
}

/// The results that are on their way.
pub(super) struct Returns {
    jobs: HashMap<Uuid, Return>,
    /// The transfers, by job.
    uploads: Uploads<Uuid>,
    /// Jobs whose turn to open transfers comes when others are done.
    waiting: VecDeque<Uuid>,
    /// How many transfers the leader takes.
    open_max: usize,
}

impl Returns {
    /// None yet. Uploads tell `news` when they have something to say.
    pub(super) fn new(news: mpsc::UnboundedSender<Uuid>) -> Self {
        let (jobs, uploads, waiting) = (HashMap::new(), Uploads::new(news), VecDeque::new());
        Returns { jobs, uploads, waiting, open_max: UPLOADS_MAX }
    }

    /// How many transfers of one connection the leader takes.
    pub(super) fn on_limit(&mut self, transfers: Option<u64>) {
        let listed = transfers.and_then(|transfers| usize::try_from(transfers).ok());
        self.open_max = listed.unwrap_or(UPLOADS_MAX).clamp(1, UPLOADS_OPEN_MAX);
    }

    /// Sends a result, or sends it again on another connection. [`open`](Self::open) is to follow.
    pub(super) fn start(&mut self, job: Uuid, numbers: RunAttempt, large: Arc<Large>) -> Turn {
        let is_new = |held: &Return| {
            held.large != large || held.failed.is_some() || !held.left_out.is_empty()
        };
        if self.jobs.get(&job).is_none_or(is_new) {
            self.forget(job);
            let mut uploads = Vec::new();
            let mut failed = None;
            for part in &large.parts {
                let source = match &part.content {
                    Content::Memory(bytes) => Ok(Source::Memory(bytes.clone())),
                    Content::File(path) => Source::file(path)
                        .map_err(|error| format!("cannot read {}: {error}", path.display())),
                };
                let started = source.and_then(|source| {
                    let blob = Blob {
                        id: part.id,
                        purpose: part.purpose,
                        owner: job,
                        attempt: numbers.attempt,
                        name: Name::default(),
                        digest: DigestKind::ChunkList,
                        compression: Compression::Auto,
                        keeps_source: true,
                        source,
                    };
                    self.uploads.start(job, blob).map_err(|error| error.to_string())
                });
                match started {
                    Ok(()) => uploads.push(part.id),
                    Err(text) => failed = Some(Failed::Parts(text)),
                }
            }
            let throttle = Throttle::after(AT_WORKER, Instant::now());
            let (opened, answered, left_out, waits) = (false, false, HashMap::new(), None);
            let held = Return {
                large,
                numbers,
                uploads,
                opened,
                failed,
                left_out,
                waits,
                answered,
                throttle,
            };
            self.jobs.insert(job, held);
        }
        let Some(held) = self.jobs.get_mut(&job) else { return Turn::Nothing };
        // Asked for again on the same connection: what is under way goes on, what was answered is
        // answered again.
        held.answered = false;
        if !held.opened && held.failed.is_none() && !self.waiting.contains(&job) {
            self.waiting.push_back(job);
        }
        held.turn(job, &self.uploads)
    }

    /// Opens the transfers of the results whose turn it is.
    pub(super) fn open(&mut self, writer: &LinkWriter, wire: Wire, out: &mut Vec<OutFrame>) {
        if self.waiting.is_empty() {
            return;
        }
        let under_way = || self.jobs.values().filter(|held| held.opened && !held.answered);
        let mut open: usize = under_way().map(|held| held.uploads.len()).sum();
        let mut moving: usize = under_way().map(|held| held.moving(&self.uploads)).sum();
        while let Some(job) = self.waiting.front().copied() {
            if let Some(held) = self.jobs.get_mut(&job) {
                let uploads = held.uploads.len();
                let is_many = moving > 0 && moving + uploads > UPLOADS_MAX;
                if is_many || open > 0 && open + uploads > self.open_max {
                    return;
                }
                (open, moving) = (open + uploads, moving + uploads);
                held.opened = true;
                out.extend(
                    held.uploads.iter().filter_map(|id| self.uploads.open(*id, ONLY, writer, wire)),
                );
            }
            self.waiting.pop_front();
        }
    }

    /// The leader has said something about a transfer.
    pub(super) fn on_frame(&self, frame: &InFrame) -> Result<(), MessageError> {
        if !self.uploads.on_frame(ONLY, frame)? {
            debug!(transfer = %frame.msg_id, code = frame.code, "skipped a frame of a transfer that is over");
        }
        Ok(())
    }

    /// An upload has something to say.
    pub(super) fn on_news(&mut self, id: Uuid) -> Turn {
        let Some(job) = self.uploads.owner(id).copied() else { return Turn::Nothing };
        match self.jobs.get_mut(&job) {
            Some(held) => held.turn(job, &self.uploads),
            None => Turn::Nothing,
        }
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self) {
        for held in self.jobs.values_mut() {
            (held.answered, held.opened) = (false, false);
        }
        self.uploads.lost(ONLY);
        self.waiting.clear();
    }

    /// The leader has the result, or nobody wants it.
    pub(super) fn forget(&mut self, job: Uuid) {
        if self.jobs.remove(&job).is_some() {
            self.uploads.retain(|_, owner| *owner != job);
        }
    }
}

impl Return {
    /// Transfers that move, or may at any time: not those that wait until the leader has room.
    fn moving(&self, uploads: &Uploads<Uuid>) -> usize {
        let no_room = |why: &Waiting| matches!(why.reason, Reason::DISK_FULL | Reason::SPOOL_FULL);
        self.uploads
            .iter()
            .filter(|id| !uploads.waiting(**id).is_some_and(|why| no_room(&why)))
            .count()
    }

    fn turn(&mut self, job: Uuid, uploads: &Uploads<Uuid>) -> Turn {
        let (mut done, mut total) = (0, 0);
        let mut digests: HashMap<Uuid, Digest> = HashMap::new();
        let mut waits = None;
        for id in &self.uploads {
            let Some(status) = uploads.status(*id) else { continue };
            done += status.done;
            total += status.total;
            waits = waits.or(status.waiting);
            match status.state {
                State::Sending => {}
                State::Arrived(digest) => {
                    digests.insert(*id, digest);
                }
                State::Refused(why) if why.reason == Reason::TOO_LARGE => {
                    self.left_out.insert(*id, why.text);
                }
                State::Refused(why) => self.failed = Some(Failed::refused(&why)),
                State::SourceGone(error) => self.failed = Some(Failed::Parts(error.to_string())),
            }
        }
        if self.answered {
            return Turn::Nothing;
        }
        match &self.failed {
            None => {}
            Some(Failed::Parts(why)) => {
                self.answered = true;
                warn!(%job, "the large parts of a result cannot be sent: {why}");
                return Turn::Answer { job, payload: self.without_parts(why) };
            }
            Some(Failed::Unwanted(why)) => {
                self.answered = true;
                info!(%job, "the leader no longer needs a result: {why}");
                let mut result = self.large.result.clone();
                (result.archive, result.stdout_blob, result.stderr_blob) = (None, None, None);
                (result.stdout, result.stderr) = (String::new(), String::new());
                (result.status, result.output_archive) = (JobStatus::Cancelled, None);
                return Turn::GiveUp { job, payload: result.to_json() };
            }
            Some(Failed::Later) => return Turn::Nothing,
        }
        if digests.len() + self.left_out.len() == self.large.parts.len() {
            self.answered = true;
            if !self.left_out.is_empty() {
                let why = self.left_out.values().next().map_or("", String::as_str);
                warn!(%job, "parts of a result are too large for the leader and are left out: \
                             {why}");
            }
            return Turn::Answer { job, payload: self.with_parts(&digests) };
        }
        let is_news = self.waits != waits;
        if !self.throttle.passes(Instant::now(), is_news) {
            return Turn::Nothing;
        }
        if let Some(why) = waits.as_ref().filter(|_| is_news) {
            info!(%job, bytes = total, "a result waits here until the leader takes it: {}", why.text);
        }
        self.waits = waits;
        let text = self.waits.as_ref().map(|why| why.text.clone()).unwrap_or_default();
        Turn::InputProgress { job, numbers: self.numbers, done, total, text }
    }

    /// The result with those parts that the leader has. One that lacks some has failed, whatever
    /// the job itself said: what it was run for is not there.
    fn with_parts(&self, digests: &HashMap<Uuid, Digest>) -> Vec<u8> {
        if self.left_out.is_empty() {
            return self.large.payload(digests);
        }
        let mut large =
            Large { result: self.large.result.clone(), parts: self.large.parts.clone() };
        large.parts.retain(|part| !self.left_out.contains_key(&part.id));
        for part in &self.large.parts {
            if let Some(why) = self.left_out.get(&part.id) {
                leave_out(&mut large.result, part);
                append_note(
                    &mut large.result.stderr,
                    &left_out(part.bytes, &format!("the leader refused it: {why}")),
                );
            }
        }
        large.result.status = JobStatus::Failed;
        large.payload(digests)
    }

    /// The result with a note in place of its parts.
    fn without_parts(&self, why: &str) -> Vec<u8> {
        let mut result = self.large.result.clone();
        self.large.parts.iter().for_each(|part| leave_out(&mut result, part));
        append_note(&mut result.stderr, &left_out(self.large.bytes(), why));
        result.status = JobStatus::Failed;
        result.to_json()
    }
}

/// A result does not name this part.
fn leave_out(result: &mut JobResult, part: &Part) {
    if part.purpose == Purpose::Archive {
        result.archive_lost = Some(part.bytes);
    }
    if let Some(blob) = reference(result, part.purpose) {
        *blob = None;
    }
}

fn left_out(bytes: u64, why: &str) -> String {
    format!("{bytes} bytes of the result are left out: {why}")
}
