//! Decides which chunks of one blob are accepted, and which may still be sent.
//!
//! Pure: it sees heads and numbers, never bytes. A [`Download`](super::Download) consults it for
//! each frame of its transfer and reports the fate of each chunk. It never grants more than its
//! window, and every chunk returns to the window, whether it was kept, refused, duplicate or void.

use chunking::limits::WINDOW_CHUNKS_MAX;
use chunking::message::{Done, Grant, HeldPart, Open, Reason, Verdict, Void};
use chunking::{ChunkError, ChunkHead, ChunkPlan, Digest, DigestKind, PlanError, Ranges};

use crate::wire::{Receiving, bytes_of};

/// Rounds of requesting chunks again in which no chunk arrived whole, before the transfer is given
/// up: a sender that damages everything three times is broken.
const VAIN_ROUNDS_MAX: u32 = 3;

/// What a chunk is, by its head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// One that is needed. [`Incoming::accept`] or [`Incoming::reject`] has to follow.
    Wanted { index: u32 },
    /// One that is here, or being stored: to be dropped.
    Doubled(
        /// Room for more, if there is some to say.
        Option<Grant>,
    ),
    /// One that has no place in this blob: to be dropped. What it should have been is asked for at
    /// the end.
    Bad(
        /// What is wrong.
        ChunkError,
        /// Room for more, if there is some to say.
        Option<Grant>,
    ),
    /// More than was granted. The transfer has failed; this is the answer.
    Uninvited(Verdict),
    /// Of a transfer that is over: to be dropped.
    Late,
}

/// What follows from Done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ruling {
    /// Chunks are still being stored; the ruling comes with the last of them.
    Later,
    /// All chunks are here; the digest over their bytes has to be made and told by
    /// [`Incoming::on_digest`].
    NeedsDigest,
    /// All is right.
    Whole,
    /// The digest is wrong for the first time: what is here counts for nothing, and this is to be
    /// sent.
    Again(Verdict),
    /// Something is missing, or wrong: to be sent.
    Answer(Verdict),
}

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// Done came while chunks were being stored, or the digest over the bytes is being made.
    Closing(Digest),
    Whole,
    Failed,
}

/// One blob on its way here.
#[derive(Clone, Debug)]
pub struct Incoming {
    came: Receiving,
    digest: DigestKind,
    /// Whether the sink says what is right, part by part; the digest over the whole blob says
    /// nothing where chunks are left out.
    by_parts: bool,
    /// Chunks that came and are being stored, with whether they were declared void meanwhile; never
    /// more than the window.
    storing: Vec<(u32, bool)>,
    window: u32,
    /// Granted, and not come yet.
    granted: u32,
    /// Came and are dealt with; to be granted again.
    freed: u32,
    phase: Phase,
    vain_rounds: u32,
}

impl Incoming {
    /// A blob as its sender opened it, of which nothing is here yet. At most `window` chunks will
    /// be under way.
    pub fn new(open: &Open, window: u32) -> Result<Self, PlanError> {
        let plan = ChunkPlan::new(open.size, open.chunk_bytes)?;
        let window = window.clamp(1, WINDOW_CHUNKS_MAX);
        Ok(Incoming {
            came: Receiving::new(plan),
            digest: open.digest,
            by_parts: false,
            storing: Vec::new(),
            window,
            granted: 0,
            freed: window,
            phase: Phase::Open,
            vain_rounds: 0,
        })
    }

    /// A blob of which only a part is needed: what is not counts as held, and its sink says which
    /// parts are right ([`on_wrong`](Self::on_wrong)).
    pub fn by_parts(open: &Open, window: u32, not_needed: &Ranges) -> Result<Self, PlanError> {
        let mut incoming = Incoming { by_parts: true, ..Incoming::new(open, window)? };
        incoming.came.leave_out(not_needed);
        Ok(incoming)
    }

    /// The blob's chunks.
    pub fn plan(&self) -> &ChunkPlan {
        self.came.plan()
    }

    /// Bytes that are here.
    pub fn held_bytes(&self) -> u64 {
        bytes_of(self.plan(), self.came.held())
    }

    /// Bytes that are here from the start of the blob on, without a gap.
    pub fn leading_bytes(&self) -> u64 {
        let first = self.came.held().first_missing();
        first.map_or(self.plan().size(), |index| self.plan().offset_of(index))
    }

    /// Whether a chunk is here, or being stored.
    pub fn has(&self, index: u32) -> bool {
        self.came.has(index) || self.is_storing(index)
    }

    /// Whether the blob is here, and right.
    pub fn is_whole(&self) -> bool {
        self.phase == Phase::Whole
    }

    /// Nothing more is wanted: what comes is dropped.
    pub fn fail(&mut self) {
        self.phase = Phase::Failed;
    }

    /// The first Grant of a connection, or of the next one after a break: what is here, and room
    /// for the rest.
    pub fn first_grant(&mut self) -> Grant {
        if let Phase::Closing(_) = self.phase {
            // Its sender has to say Done again.
            self.phase = Phase::Open;
        }
        // What was granted on another connection is void; what is being stored gives its room back
        // when it is stored.
        self.freed += std::mem::take(&mut self.granted);
        let window = self.grant_freed();
        let (reason, text) = match window {
            0 => (Reason::SLOW_RECEIVER, "waiting: earlier chunks are still being written".into()),
            _ => (Reason::NONE, "".into()),
        };
        Grant { window, reason, text, held: self.came.held().held(), part: Default::default() }
    }

    fn grant_freed(&mut self) -> u32 {
        let window = std::mem::take(&mut self.freed);
        self.granted += window;
        window
    }

    /// One chunk of the window is free again. Room is told in batches, so that a Grant goes with
    /// every few chunks only.
    fn release(&mut self) -> Option<Grant> {
        self.freed += 1;
        let due = self.freed >= (self.window / 2).max(1);
        let open = match self.phase {
            Phase::Open | Phase::Closing(_) => true,
            Phase::Whole | Phase::Failed => false,
        };
        (due && open).then(|| Grant {
            window: self.grant_freed(),
            reason: Reason::NONE,
            text: "".into(),
            held: Ranges::default(),
            part: HeldPart::default(),
        })
    }

    /// A chunk has come, of `sent_len` bytes on the wire.
    pub fn check(&mut self, head: &ChunkHead, sent_len: u32) -> Arrival {
        match self.phase {
            Phase::Open | Phase::Closing(_) => {}
            Phase::Whole | Phase::Failed => return Arrival::Late,
        }
        if self.granted == 0 {
            self.phase = Phase::Failed;
            let text = format!(
                "the chunk at offset {} exceeds the window: {} chunks are granted at a time, and \
                 all were used",
                head.offset, self.window
            );
            return Arrival::Uninvited(Verdict::Failed {
                reason: Reason::WINDOW_IGNORED,
                text: text.into(),
            });
        }
        self.granted -= 1;
        match self.plan().check(head, sent_len) {
            Ok(index) if self.has(index) => Arrival::Doubled(self.release()),
            Ok(index) => {
                self.storing.push((index, false));
                Arrival::Wanted { index }
            }
            Err(error) => Arrival::Bad(error, self.release()),
        }
    }

    fn is_storing(&self, index: u32) -> bool {
        self.storing.iter().any(|(stored, _)| *stored == index)
    }

    /// Takes a chunk off those being stored; gives whether it may be used.
    fn stored(&mut self, index: u32) -> bool {
        match self.storing.iter().position(|(stored, _)| *stored == index) {
            Some(at) => !self.storing.swap_remove(at).1,
            None => false,
        }
    }

    /// A wanted chunk is stored.
    pub fn accept(&mut self, index: u32, crc_raw: u32) -> Option<Grant> {
        if self.stored(index) && self.came.insert(index, crc_raw) {
            self.vain_rounds = 0;
        }
        self.release()
    }

    /// A wanted chunk turned out to be damaged. It is asked for when Done has come.
    pub fn reject(&mut self, index: u32) -> Option<Grant> {
        self.stored(index);
        self.release()
    }

    /// A chunk that came must not be used. Gives its index if it was stored, or is about to be.
    pub fn on_void(&mut self, void: &Void) -> Option<u32> {
        let index = self.came.index_of(void.offset)?;
        if self.is_whole() || self.plan().offset_of(index) != void.offset {
            return None;
        }
        if let Some(storing) = self.storing.iter_mut().find(|(storing, _)| *storing == index) {
            storing.1 = true;
            return Some(index);
        }
        self.came.remove(index).then_some(index)
    }

    /// All has been sent, says the sender.
    pub fn on_done(&mut self, done: &Done) -> Ruling {
        match self.phase {
            Phase::Failed => return Ruling::Later,
            Phase::Whole => return Ruling::Whole,
            Phase::Open | Phase::Closing(_) => {}
        }
        if done.digest.kind != self.digest {
            self.phase = Phase::Failed;
            let text = format!(
                "Done has a digest of kind {}; Open said {}",
                done.digest.kind, self.digest
            );
            return Ruling::Answer(Verdict::Failed { reason: Reason::INVALID, text: text.into() });
        }
        self.phase = Phase::Closing(done.digest);
        self.rule()
    }

    /// What follows from Done, once it has come and nothing is being stored any more. To be asked
    /// after each chunk that was accepted or rejected.
    pub fn rule(&mut self) -> Ruling {
        let Phase::Closing(expected) = self.phase else { return Ruling::Later };
        if !self.storing.is_empty() {
            return Ruling::Later;
        }
        if !self.came.is_complete() {
            self.phase = Phase::Open;
            self.vain_rounds += 1;
            if self.vain_rounds > VAIN_ROUNDS_MAX {
                self.phase = Phase::Failed;
                let text = format!(
                    "{} chunks are still missing or damaged, though they were requested \
                     {VAIN_ROUNDS_MAX} times",
                    self.came.missing_count()
                );
                let reason = Reason::BAD_CHUNK;
                return Ruling::Answer(Verdict::Failed { reason, text: text.into() });
            }
            return Ruling::Answer(Verdict::Resend(self.came.missing()));
        }
        if self.by_parts {
            self.phase = Phase::Whole;
            return Ruling::Whole;
        }
        match self.digest {
            DigestKind::ChunkList => self.compare(expected, self.came.chunk_list()),
            DigestKind::Sha256 | DigestKind::Blake3 => Ruling::NeedsDigest,
        }
    }

    /// The digest over the bytes that are here, after [`Ruling::NeedsDigest`].
    pub fn on_digest(&mut self, found: Digest) -> Ruling {
        match self.phase {
            Phase::Closing(expected) if self.came.is_complete() => self.compare(expected, found),
            // A break came between, and its sender says Done again; or a void took a chunk away.
            Phase::Closing(_) | Phase::Open | Phase::Whole | Phase::Failed => self.rule(),
        }
    }

    /// All chunks came, and the sink says that what these hold is not what it should be. They are
    /// asked for once more.
    pub fn on_wrong(&mut self, chunks: &[u32]) -> Ruling {
        if self.phase == Phase::Failed {
            return Ruling::Later;
        }
        if self.came.is_wrong_again() {
            self.phase = Phase::Failed;
            let text = format!(
                "{} chunks have the wrong content for the second time: the source has changed, or \
                 its disk or memory is faulty",
                chunks.len()
            );
            return Ruling::Answer(Verdict::Failed {
                reason: Reason::BAD_DIGEST,
                text: text.into(),
            });
        }
        self.phase = Phase::Open;
        for chunk in chunks {
            self.came.remove(*chunk);
        }
        Ruling::Answer(Verdict::Resend(self.came.missing()))
    }

    fn compare(&mut self, expected: Digest, found: Digest) -> Ruling {
        if expected == found {
            self.phase = Phase::Whole;
            return Ruling::Whole;
        }
        if self.came.is_wrong_again() || self.plan().count() == 0 {
            self.phase = Phase::Failed;
            let tries = if self.plan().count() == 0 { "" } else { ", for the second time" };
            let text = format!(
                "the digest of the {} received bytes is {found}; the sender says \
                 {expected}{tries}: the source changes while it is read, or its disk or memory is \
                 faulty",
                self.plan().size()
            );
            return Ruling::Answer(Verdict::Failed {
                reason: Reason::BAD_DIGEST,
                text: text.into(),
            });
        }
        self.phase = Phase::Open;
        self.came.begin_anew();
        Ruling::Again(Verdict::Resend(self.came.missing()))
    }
}

#[cfg(test)]
#[path = "incoming_tests.rs"]
mod tests;
