//! Chunks that pass through while they come: what has arrived of one is on its way out before the rest is here.
//!
//! One receiver, which has room, nothing else to take and checks what it gets, and a sender that keeps what it sends: then
//! the chunk counts as passed on when it begins. If it breaks on the way, its receiver has got bytes that are not to be used, is told so
//! (Void), and the sender is asked for it again.

use chunking::message::{Reason, Verdict, Void};

use super::blob::Blob;
use super::pieces::comes_later;
use super::{BlobId, Relay, Says, Verify, check_crcs, is_from};
use crate::core::ids::ConnId;
use crate::wire::ChunkStart;

/// Chunks of fewer bytes are quicker gathered.
const THROUGH_BYTES_MIN: u32 = 64 * 1024;

/// How a chunk that passed through ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passed {
    /// All of it came.
    Whole,
    /// It broke off: its sender is gone.
    Broken,
    /// It was given up: its sender fell silent in the middle of it.
    Stalled,
    /// It came, so slowly that its receiver was kept from other things.
    Slow,
}

impl Relay {
    /// Where a chunk that begins can pass through to, if it can. `reserve_pipe` is asked last: it takes a
    /// pipe if nothing waits to be sent there, and says whether it has.
    pub(in crate::leader) fn way_through(
        &mut self,
        conn: ConnId,
        start: &ChunkStart,
        reserve_pipe: impl FnOnce(ConnId) -> bool,
    ) -> Option<ConnId> {
        let (id, now) = (start.transfer, self.now);
        let Relay { blobs, chunks_out, config, slow_senders, lagging, .. } = self;
        let lags = |to: ConnId| lagging.lags(to);
        if config.verify == Verify::Hop || slow_senders.contains(&conn) {
            return None;
        }
        let blob = blobs.get_mut(&id).filter(|blob| !blob.keep && !blob.breaks)?;
        let index = blob.plan.check(&start.head, start.sent_len).ok()?;
        if start.sent_len < THROUGH_BYTES_MIN || check_crcs(&start.head, start.head.crc_sent).is_err() {
            return None;
        }
        let Blob { plan, seen, crcs, downs, stored, up, .. } = blob;
        let mut lacking = downs.iter_mut().filter(|down| down.lacks(index));
        let down = lacking.next().filter(|down| down.sending.window() > 0)?;
        // Of a chunk that it has a part of, it gets the rest, and that before others.
        let has_part = down.sending.part().is_some_and(|part| part.index == index);
        if has_part || comes_later(down, index, stored, seen, up.as_ref(), now) {
            return None;
        }
        let pending = chunks_out.entry(down.conn).or_default();
        if lacking.next().is_some() || *pending > 0 || lags(down.conn) || !reserve_pipe(down.conn) {
            return None;
        }
        *pending += 1;
        down.sending.send(index);
        down.moved_at = now;
        seen.insert(index);
        crcs.insert(plan, index, start.head.crc_raw);
        Some(down.conn)
    }

    /// A chunk that was to pass through has come to its end, one way or the other.
    pub(in crate::leader) fn passed(&mut self, conn: ConnId, start: &ChunkStart, how: Passed) {
        let id = start.transfer;
        self.has_come(conn, how == Passed::Whole);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if let Some(up) = blob.up.as_mut().filter(|up| up.conn == conn) {
            let counted = up.arriving.min(1);
            up.arriving -= counted;
            self.arriving -= counted as usize;
            up.heard_at = self.now;
        }
        // Who is slow sends by buffer from now on, so that receivers are not kept waiting for each chunk.
        if matches!(how, Passed::Stalled | Passed::Slow) && self.by_conn.contains_key(&conn) {
            self.slow_senders.insert(conn);
        }
        let is_whole = match how {
            Passed::Whole | Passed::Slow => true,
            Passed::Broken | Passed::Stalled => false,
        };
        self.passed_through += u64::from(is_whole);
        self.voided += u64::from(!is_whole);
        if is_whole {
            self.say_done(id);
            self.make_hungry(id);
            return self.pump();
        }
        tracing::warn!(blob = %id, offset = start.head.offset, ?how, "a chunk did not pass through: asking for it again");
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.breaks = true;
        }
        self.must_not_be_used(id, Void { offset: start.head.offset, reason: Reason::SOURCE_GONE });
        self.ask_for_what_was_done(id);
        self.make_hungry(id);
        self.pump();
    }

    /// Asks for what is missing of a blob whose sender has said Done before, and will not say it again by itself.
    fn ask_for_what_was_done(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get(&id).filter(|blob| blob.digest.is_some()) else { return };
        if let Some(conn) = blob.up.as_ref().filter(|up| up.keeps_source).map(|up| up.conn) {
            let again = blob.seen.missing();
            self.say(conn, id, Says::Verdict(Verdict::Resend(again)));
        }
    }

    /// The chunk that went before must not be used.
    pub(in crate::leader) fn void(&mut self, conn: ConnId, id: BlobId, void: &Void) {
        if self.blobs.get(&id).is_some_and(|blob| is_from(blob, conn)) {
            self.must_not_be_used(id, void.clone());
            self.make_hungry(id);
            self.pump();
        }
    }

    /// A chunk is not as it should be: it has to come again, and go out again.
    fn must_not_be_used(&mut self, id: BlobId, Void { offset, reason }: Void) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Ok(index) = u32::try_from(offset / u64::from(blob.plan.chunk_bytes())) else { return };
        blob.seen.remove(index);
        let downs = blob.downs.iter_mut().filter(|down| !down.sending.is_arrived());
        let told: Vec<ConnId> =
            downs.filter_map(|down| down.sending.take_back(index).then_some(down.conn)).collect();
        self.drop_stored(id, index);
        for conn in told {
            self.say(conn, id, Says::Void(Void { offset, reason }));
        }
    }
}
