//! Decides which chunks take the splice path: the first bytes leave before the last ones have
//! arrived.
//!
//! It requires a single receiver with room, nothing else to send to it, and its own checksum test,
//! and a sender that keeps the source. The chunk then counts as forwarded when it begins. If it
//! breaks off, the receiver is told to discard it (Void) and the sender is asked for it again.

use chunking::message::{Reason, Verdict, Void};

use super::blob::{Blob, Route};
use super::fragments::comes_later;
use super::{BlobId, Relay, Says, Verify, check_crcs};
use crate::core::ids::ConnId;
use crate::wire::ChunkStart;

/// Chunks of fewer bytes are quicker gathered.
const SPLICE_BYTES_MIN: u32 = 64 * 1024;

/// How a chunk that was spliced ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spliced {
    /// All of it came.
    Whole,
    /// It broke off: its sender is gone.
    Broken,
    /// It was given up: its sender fell silent in the middle of it.
    Stalled,
    /// It came, so slowly that its receiver was kept from other things.
    Slow,
}

/// What became of chunks that were to be spliced, since the start.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) whole: u64,
    pub(super) voided: u64,
}

impl Relay {
    /// Where a chunk that begins can be spliced to, if it can. `reserve_pipe` is asked last: it
    /// takes a pipe if nothing waits to be sent there, and says whether it has.
    pub(in crate::leader) fn splice_target(
        &mut self,
        conn: ConnId,
        start: &ChunkStart,
        reserve_pipe: impl FnOnce(ConnId) -> bool,
    ) -> Option<ConnId> {
        let (id, now) = (start.transfer, self.now);
        let Relay { blobs, lines, config, lagging, .. } = self;
        if config.verify == Verify::Hop || lines.get(conn).is_some_and(|line| line.brings_slowly) {
            return None;
        }
        let blob = blobs.get_mut(&id).filter(|blob| blob.route == Route::Forward)?;
        let index = blob.came.plan().check(&start.head, start.sent_len).ok()?;
        if start.sent_len < SPLICE_BYTES_MIN
            || check_crcs(&start.head, start.head.crc_sent).is_err()
        {
            return None;
        }
        let Blob { came, downs, chunks, up, .. } = blob;
        let mut lacking = downs.iter_mut().filter(|down| down.lacks(index));
        let down = lacking.next().filter(|down| down.sending.window() > 0)?;
        // Of a chunk that it has a part of, it gets the rest, and that before others.
        let has_part = down.sending.part().is_some_and(|part| part.index == index);
        if has_part || comes_later(down, index, chunks, came, up.as_ref(), now) {
            return None;
        }
        let line = lines.at(down.conn);
        let is_free = line.chunks_out == 0 && !lagging.lags(down.conn);
        if lacking.next().is_some() || !is_free || !reserve_pipe(down.conn) {
            return None;
        }
        line.chunks_out += 1;
        down.sending.send(index);
        down.moved_at = now;
        came.insert(index, start.head.crc_raw);
        Some(down.conn)
    }

    /// A chunk that was to be spliced has come to its end, one way or the other.
    pub(in crate::leader) fn spliced(&mut self, conn: ConnId, start: &ChunkStart, how: Spliced) {
        let (id, now) = (start.transfer, self.now);
        self.has_come(conn, how == Spliced::Whole);
        if !self.knows(id) {
            return;
        }
        if let Some(up) = self.arrives_no_more(conn, id) {
            up.heard_at = now;
        }
        // A slow sender uses buffers from now on, so that receivers do not wait for each of its
        // chunks.
        if let Some(line) = self.lines.get_mut(conn) {
            line.brings_slowly |= matches!(how, Spliced::Stalled | Spliced::Slow);
        }
        let is_whole = match how {
            Spliced::Whole | Spliced::Slow => true,
            Spliced::Broken | Spliced::Stalled => false,
        };
        self.spliced.whole += u64::from(is_whole);
        self.spliced.voided += u64::from(!is_whole);
        if is_whole {
            self.say_done(id);
            self.make_hungry(id);
            return self.pump();
        }
        tracing::warn!(blob = %id, offset = start.head.offset, ?how, "a chunk was not spliced: asking for it again");
        if let Some(blob) = self.blobs.get_mut(&id).filter(|blob| !blob.stays()) {
            blob.route = Route::Whole;
        }
        self.must_not_be_used(id, Void { offset: start.head.offset, reason: Reason::SOURCE_GONE });
        self.ask_for_what_was_done(id);
        self.make_hungry(id);
        self.pump();
    }

    /// Asks for what is missing of a blob whose sender has said Done before, and will not say it
    /// again by itself.
    fn ask_for_what_was_done(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get(&id).filter(|blob| blob.ruling.digest().is_some()) else {
            return;
        };
        if let Some(conn) = blob.can_ask() {
            let again = blob.came.missing();
            self.say(conn, id, Says::Verdict(Verdict::Resend(again)));
        }
    }

    /// The chunk that went before must not be used.
    pub(in crate::leader) fn void(&mut self, conn: ConnId, id: BlobId, void: &Void) {
        if self.blobs.get(&id).is_some_and(|blob| blob.is_from(conn)) {
            self.must_not_be_used(id, void.clone());
            self.make_hungry(id);
            self.pump();
        }
    }

    /// A chunk is not as it should be: it has to come again, and go out again.
    fn must_not_be_used(&mut self, id: BlobId, Void { offset, reason }: Void) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(index) = blob.came.index_of(offset) else { return };
        blob.came.remove(index);
        let downs = blob.downs.iter_mut().filter(|down| !down.sending.is_arrived());
        let told: Vec<ConnId> =
            downs.filter_map(|down| down.sending.take_back(index).then_some(down.conn)).collect();
        self.drop_stored(id, index);
        for conn in told {
            self.say(conn, id, Says::Void(Void { offset, reason }));
        }
    }
}
