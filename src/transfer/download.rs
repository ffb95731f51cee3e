//! Receives one blob: handles the frames of its transfer, stores correct chunks, and decides the
//! answers.
//!
//! It outlives a connection: after a break the sender reopens the transfer, learns which chunks are
//! present and sends the rest. It never sends and never blocks: answers go to a list that its owner
//! (a worker session, a client connection) sends, and finished work of a thread returns as a
//! [`Report`] through that owner.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use chunking::limits::WINDOW_CHUNKS_MAX;
use chunking::message::{self, Grant, HeldPart, Open, Reason, Verdict, Void};
use chunking::{ChunkHead, PlanError, Ranges};
use tokio::sync::mpsc;
use tracing::debug;
use uuid::Uuid;

use super::incoming::{Arrival, Incoming, Ruling};
use super::sink::ChunkSink;
pub use super::stored::Report;
use super::stored::{Done, Fault, Place, Task, Work};
use crate::peer::OutFrame;
use crate::wire::Parts;

/// Tells downloads apart that had the same id one after the other, so that no report of one reaches
/// the next.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Where a download stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DownloadState {
    /// Something is still to come.
    Receiving,
    /// All of it is in its sink, and right.
    Whole,
    /// It cannot be taken; the sender was told.
    Failed {
        reason: Reason,
        /// The same for people.
        text: String,
    },
}

/// One blob that comes.
pub struct Download {
    id: Uuid,
    serial: u64,
    open: Open,
    incoming: Incoming,
    place: Place,
    /// Where the sink is, for texts.
    where_to: String,
    state: DownloadState,
    finishing: bool,
    /// What is here of a chunk that is not whole, to be said with the next first Grant.
    part: HeldPart,
}

impl Download {
    /// A transfer that was opened, into this sink. Reports of threads go to `reports`.
    /// [`grant`](Self::grant) is to follow.
    pub fn start(
        id: Uuid,
        open: Open,
        sink: Box<dyn ChunkSink>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Self, PlanError> {
        let incoming = Incoming::new(&open, WINDOW_CHUNKS_MAX)?;
        Ok(Self::with(id, open, incoming, sink, reports))
    }

    /// The same of a blob of which only a part is needed, into a sink that knows what each part
    /// must be ([`ChunkSink::wrong`]): the digest over the whole blob is not looked at.
    pub fn start_by_parts(
        id: Uuid,
        open: Open,
        not_needed: &Ranges,
        sink: Box<dyn ChunkSink>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Result<Self, PlanError> {
        let incoming = Incoming::by_parts(&open, WINDOW_CHUNKS_MAX, not_needed)?;
        Ok(Self::with(id, open, incoming, sink, reports))
    }

    fn with(
        id: Uuid,
        open: Open,
        incoming: Incoming,
        sink: Box<dyn ChunkSink>,
        reports: mpsc::UnboundedSender<Report>,
    ) -> Self {
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let where_to = sink.place();
        let work = Work::new(*incoming.plan(), open.digest, sink);
        let place = Place::new(work, id, serial, reports);
        let state = DownloadState::Receiving;
        let (finishing, part) = (false, HeldPart::default());
        Download { id, serial, open, incoming, place, where_to, state, finishing, part }
    }

    /// The transfer's id.
    pub fn id(&self) -> Uuid {
        self.id
    }

    /// The Open that began it, or began it again.
    pub fn opened(&self) -> &Open {
        &self.open
    }

    /// Where it stands.
    pub fn state(&self) -> &DownloadState {
        &self.state
    }

    /// Whether all of it is here, and right.
    pub fn is_whole(&self) -> bool {
        self.state == DownloadState::Whole
    }

    /// Bytes that are here, and bytes in all.
    pub fn progress(&self) -> (u64, u64) {
        (self.incoming.held_bytes(), self.incoming.plan().size())
    }

    /// Bytes that are here from the start on, without a gap.
    pub fn leading_bytes(&self) -> u64 {
        self.incoming.leading_bytes()
    }

    /// The first Grant that follows names what is among these of a chunk of it.
    pub fn holds(&mut self, parts: &Parts) {
        self.part = parts.held(self.id, self.incoming.plan(), |index| self.incoming.has(index));
    }

    /// The first Grant of a connection: what is here, and room for the rest.
    pub fn grant(&mut self, out: &mut Vec<OutFrame>) {
        let grant = Grant { part: std::mem::take(&mut self.part), ..self.incoming.first_grant() };
        out.push(OutFrame::message(self.id, &grant));
    }

    /// Whether an Open is of the same blob.
    pub fn is_of(&self, open: &Open) -> bool {
        let blob =
            |open: &Open| (open.purpose, open.digest, open.chunk_bytes, open.size, open.owner);
        blob(open) == blob(&self.open) && open.name == self.open.name
    }

    /// The transfer is opened again, on another connection or for another attempt. Answers with the
    /// first Grant; an Open of another blob under the same id is refused, and what is here stays
    /// for its own.
    pub fn reopen(&mut self, open: Open, out: &mut Vec<OutFrame>) {
        if !self.is_of(&open) {
            let text = format!(
                "transfer {} was opened with {} bytes under the name {:?}, and now with {} under {:?}",
                self.id,
                self.open.size,
                self.open.name.as_str(),
                open.size,
                open.name.as_str()
            );
            let refused = Verdict::Failed { reason: Reason::CONFLICT, text: text.into() };
            return out.push(OutFrame::message(self.id, &refused));
        }
        self.open = open;
        match &self.state {
            DownloadState::Failed { reason, text } => {
                let failed = Verdict::Failed { reason: *reason, text: text.as_str().into() };
                out.push(OutFrame::message(self.id, &failed));
            }
            DownloadState::Receiving | DownloadState::Whole => self.grant(out),
        }
    }

    /// A chunk came; `crc` is the CRC-32 of its bytes as they came.
    pub fn on_chunk(&mut self, head: ChunkHead, crc: u32, bytes: Bytes, out: &mut Vec<OutFrame>) {
        let sent_len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        match self.incoming.check(&head, sent_len) {
            Arrival::Wanted { index } => {
                let done = self.place.run(Task::Chunk { index, head, crc, bytes });
                self.on_done_here(done, out);
            }
            Arrival::Doubled(grant) => self.say_grant(grant.as_ref(), out),
            Arrival::Bad(error, grant) => {
                debug!(transfer = %self.id, "dropped a chunk: {error}");
                self.say_grant(grant.as_ref(), out);
            }
            Arrival::Uninvited(verdict) => self.answer(verdict, out),
            Arrival::Late => {}
        }
    }

    /// The sender has sent all it was to send.
    pub fn on_done(&mut self, done: &message::Done, out: &mut Vec<OutFrame>) {
        let ruling = self.incoming.on_done(done);
        self.follow(ruling, out);
    }

    /// A chunk that came must not be used.
    pub fn on_void(&mut self, void: &Void, out: &mut Vec<OutFrame>) {
        if let Some(index) = self.incoming.on_void(void) {
            let done = self.place.run(Task::Forget(index));
            self.on_done_here(done, out);
        }
    }

    /// A thread has done something for a download under this id, which may have been an earlier
    /// one.
    pub fn on_report(&mut self, report: Report, out: &mut Vec<OutFrame>) {
        if report.serial == self.serial {
            self.on_done_here(Some(report.done), out);
        }
    }

    fn on_done_here(&mut self, done: Option<Done>, out: &mut Vec<OutFrame>) {
        match done {
            None | Some(Done::Quiet) => {}
            Some(Done::Chunk { index, crc_raw, stored }) => {
                let grant = match stored {
                    Ok(()) => self.incoming.accept(index, crc_raw),
                    Err(Fault::Bad(error)) => {
                        debug!(transfer = %self.id,
                            "a chunk arrived damaged and is requested again: {error}");
                        self.incoming.reject(index)
                    }
                    Err(Fault::Io(error)) => return self.on_io(&error, out),
                };
                self.say_grant(grant.as_ref(), out);
                let ruling = self.incoming.rule();
                self.follow(ruling, out);
            }
            Some(Done::Wrong(chunks)) => {
                self.finishing = false;
                debug!(transfer = %self.id, chunks = chunks.len(), "parts of a blob are not what they should be");
                let ruling = self.incoming.on_wrong(&chunks);
                self.follow(ruling, out);
            }
            Some(Done::Digest(Ok(digest))) => {
                let ruling = self.incoming.on_digest(digest);
                self.follow(ruling, out);
            }
            Some(Done::Finish(Ok(()))) => {
                self.state = DownloadState::Whole;
                self.answer(Verdict::Ok, out);
            }
            Some(Done::Digest(Err(fault)) | Done::Finish(Err(fault))) => match fault {
                Fault::Io(error) => self.on_io(&error, out),
                Fault::Bad(error) => self.on_io(&io::Error::other(error), out),
            },
        }
    }

    fn follow(&mut self, ruling: Ruling, out: &mut Vec<OutFrame>) {
        match ruling {
            Ruling::Later => {}
            Ruling::NeedsDigest => {
                let done = self.place.run(Task::Digest);
                self.on_done_here(done, out);
            }
            Ruling::Whole if self.is_whole() => self.answer(Verdict::Ok, out),
            // A Done that comes twice: the first one is being seen to.
            Ruling::Whole if self.finishing => {}
            Ruling::Whole => {
                self.finishing = true;
                let done = self.place.run(Task::Finish);
                self.on_done_here(done, out);
            }
            Ruling::Again(verdict) => {
                let done = self.place.run(Task::Restart);
                self.on_done_here(done, out);
                self.answer(verdict, out);
            }
            Ruling::Answer(verdict) => self.answer(verdict, out),
        }
    }

    fn answer(&mut self, verdict: Verdict, out: &mut Vec<OutFrame>) {
        out.push(OutFrame::message(self.id, &verdict));
        if let Verdict::Failed { reason, text } = verdict {
            self.incoming.fail();
            self.state = DownloadState::Failed { reason, text: text.as_str().to_owned() };
        }
    }

    fn say_grant(&self, grant: Option<&Grant>, out: &mut Vec<OutFrame>) {
        if let Some(grant) = grant {
            out.push(OutFrame::message(self.id, grant));
        }
    }

    /// The sink fails.
    fn on_io(&mut self, error: &io::Error, out: &mut Vec<OutFrame>) {
        if let DownloadState::Failed { .. } = self.state {
            return;
        }
        let (reason, next_step) = match is_full(error) {
            true => (Reason::DISK_FULL, ": free space there, or use another directory"),
            false => (Reason::IO, ""),
        };
        let (held, size) = self.progress();
        let what = match self.open.name.as_str() {
            "" => "what comes".to_owned(),
            name => format!("\"{name}\""),
        };
        let text = format!(
            "cannot store {what} {}: {error}, with {held} of {size} bytes there{next_step}",
            self.where_to
        );
        self.answer(Verdict::Failed { reason, text: text.into() }, out);
    }
}

/// Whether an error says that there is no room for more bytes, on the disk or within what a process
/// may write.
pub(crate) fn is_full(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), StorageFull | QuotaExceeded | FileTooLarge)
}

#[cfg(test)]
#[path = "download_tests.rs"]
mod tests;
