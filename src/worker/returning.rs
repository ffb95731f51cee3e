//! Results whose large parts go by transfer: the parts first, then the result that names them with their digests.
//!
//! A result is returned until the leader has settled it. After a lost connection its transfers are opened again, and what the
//! leader has is not sent twice. A part that the leader does not take, or that cannot be read, does not hold up the job: the
//! result then goes without its parts and says why. The session owns it and sends what it gives.

use std::collections::HashMap;
use std::sync::Arc;

use chunking::message::{Abort, Grant, Name, Reason, Verdict};
use chunking::{Digest, DigestKind};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tracing::{debug, warn};
use uuid::Uuid;

use super::desk::Numbers;
use super::fit::{Large, append_note};
use super::handler::Content;
use super::limits::PROGRESS_EVERY;
use crate::model::JsonModel;
use crate::peer::{LinkWriter, OutFrame};
use crate::transfer::{Blob, Compression, Source, State, Upload, Wire};

/// One result on its way.
struct Return {
    large: Arc<Large>,
    numbers: Numbers,
    uploads: Vec<Upload>,
    /// Why a part cannot be sent.
    failed: Option<String>,
    /// Whether the result itself was sent on this connection.
    answered: bool,
    told_at: Instant,
}

/// What news of an upload led to.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The result can be sent.
    Answer {
        /// The job.
        job: Uuid,
        /// Its result.
        payload: Vec<u8>,
    },
    /// It is under way, and it is time to say how far.
    Far {
        /// The job.
        job: Uuid,
        /// Run and attempt.
        numbers: Numbers,
        /// Bytes that went.
        done: u64,
        /// Bytes of all parts.
        total: u64,
    },
    /// Nothing to say.
    Nothing,
}

/// The results that are on their way.
pub(super) struct Returns {
    jobs: HashMap<Uuid, Return>,
    /// The jobs of the transfers.
    blobs: HashMap<Uuid, Uuid>,
    news: mpsc::UnboundedSender<Uuid>,
}

impl Returns {
    /// None yet. Uploads tell `news` when they have something to say.
    pub(super) fn new(news: mpsc::UnboundedSender<Uuid>) -> Self {
        Returns { jobs: HashMap::new(), blobs: HashMap::new(), news }
    }

    /// Sends a result, or sends it again on another connection. The transfers that open go to `out`.
    pub(super) fn start(
        &mut self,
        job: Uuid,
        numbers: Numbers,
        large: Arc<Large>,
        writer: &LinkWriter,
        wire: Wire,
        out: &mut Vec<OutFrame>,
    ) -> Turn {
        if self.jobs.get(&job).is_none_or(|held| held.large != large) {
            self.forget(job);
            let mut uploads = Vec::new();
            let mut failed = None;
            for part in &large.parts {
                let source = match &part.content {
                    Content::Memory(bytes) => Ok(Source::Memory(bytes.clone())),
                    Content::File(path) => {
                        Source::file(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
                    }
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
                        source,
                    };
                    Upload::start(blob, self.news.clone()).map_err(|error| error.to_string())
                });
                match started {
                    Ok(upload) => uploads.push(upload),
                    Err(text) => failed = Some(text),
                }
            }
            self.blobs.extend(uploads.iter().map(|upload| (upload.id(), job)));
            let told_at = Instant::now();
            self.jobs.insert(job, Return { large, numbers, uploads, failed, answered: false, told_at });
        }
        let Some(held) = self.jobs.get_mut(&job) else { return Turn::Nothing };
        held.answered = false;
        if held.failed.is_none() {
            out.extend(held.uploads.iter().map(|upload| upload.connected(writer.clone(), wire)));
        }
        held.turn(job)
    }

    fn upload(&self, id: Uuid) -> Option<&Upload> {
        let job = self.blobs.get(&id)?;
        self.jobs.get(job)?.uploads.iter().find(|upload| upload.id() == id)
    }

    /// The leader has room.
    pub(super) fn grant(&self, id: Uuid, grant: &Grant) {
        match self.upload(id) {
            Some(upload) => upload.grant(grant),
            None => debug!(transfer = %id, "skipped a Grant for a transfer that is over"),
        }
    }

    /// The leader has judged.
    pub(super) fn verdict(&self, id: Uuid, verdict: &Verdict) {
        match self.upload(id) {
            Some(upload) => upload.verdict(verdict),
            None => debug!(transfer = %id, "skipped a Verdict for a transfer that is over"),
        }
    }

    /// The leader ends a transfer.
    pub(super) fn abort(&self, id: Uuid, abort: &Abort) {
        match self.upload(id) {
            Some(upload) => upload.abort(abort),
            None => debug!(transfer = %id, "skipped an Abort for a transfer that is over"),
        }
    }

    /// An upload has something to say.
    pub(super) fn on_news(&mut self, id: Uuid) -> Turn {
        let Some(job) = self.blobs.get(&id).copied() else { return Turn::Nothing };
        match self.jobs.get_mut(&job) {
            Some(held) => held.turn(job),
            None => Turn::Nothing,
        }
    }

    /// The connection is lost.
    pub(super) fn lost(&mut self) {
        for held in self.jobs.values_mut() {
            held.answered = false;
            held.uploads.iter().for_each(Upload::disconnected);
        }
    }

    /// The leader has the result, or nobody wants it.
    pub(super) fn forget(&mut self, job: Uuid) {
        if self.jobs.remove(&job).is_some() {
            self.blobs.retain(|_, owner| *owner != job);
        }
    }
}

impl Return {
    fn turn(&mut self, job: Uuid) -> Turn {
        let (mut done, mut total) = (0, 0);
        let mut digests: HashMap<Uuid, Digest> = HashMap::new();
        for upload in &self.uploads {
            let status = upload.status();
            done += status.done;
            total += status.total;
            match status.state {
                State::Sending => {}
                State::Arrived(digest) => {
                    digests.insert(upload.id(), digest);
                }
                // The job has ended, or is another worker's by now: nobody waits for this result, and one without its parts
                // must not take the place of the one that is to come. The leader settles it in time.
                State::Refused(why) if why.reason == Reason::UNKNOWN => return Turn::Nothing,
                State::Refused(why) => {
                    self.failed = Some(format!("the leader does not take it: {}", why.text))
                }
                State::SourceGone(error) => self.failed = Some(error.to_string()),
            }
        }
        if self.answered {
            return Turn::Nothing;
        }
        if let Some(why) = &self.failed {
            self.answered = true;
            warn!(%job, "the large parts of a result cannot be sent: {why}");
            return Turn::Answer { job, payload: self.without_parts(why) };
        }
        if digests.len() == self.large.parts.len() {
            self.answered = true;
            return Turn::Answer { job, payload: self.large.payload(&digests) };
        }
        let now = Instant::now();
        if now.duration_since(self.told_at) < PROGRESS_EVERY {
            return Turn::Nothing;
        }
        self.told_at = now;
        Turn::Far { job, numbers: self.numbers, done, total }
    }

    /// The result with a note in place of its parts.
    fn without_parts(&self, why: &str) -> Vec<u8> {
        let mut result = self.large.result.clone();
        if let Some(archive) = result.archive.take() {
            result.archive_lost = Some(archive.size);
        }
        (result.stdout_blob, result.stderr_blob) = (None, None);
        let total: u64 = self.large.parts.iter().map(|part| part.bytes).sum();
        append_note(&mut result.stderr, &format!("{total} bytes of the result are left out: {why}"));
        result.to_json()
    }
}
