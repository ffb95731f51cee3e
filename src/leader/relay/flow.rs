//! Moves data: sends chunks to waiting receivers, and decides the windows that senders are granted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use chunking::ChunkHead;
use chunking::limits::{CHUNK_BYTES_MAX, WINDOW_CHUNKS_MAX, WINDOW_CHUNKS_MIN};
use chunking::message::{Done, Grant, Reason};

use super::blob::{Blob, Down, Up};
use super::fragments::comes_later;
use super::lines::Line;
use super::queue::Queue;
use super::{BlobId, News, Out, Relay, Says};
use crate::core::broken;
use crate::core::ids::{ConnId, Micros};
use crate::store::blobs::DiskOp;
use crate::units::ByteSize;

/// Buffers that no window may promise, so that what lies on the disk can always be read back.
pub(super) const BUFFERS_FOR_READING: usize = 4;

/// The least number of chunks by which a window grows, so that Grants are few.
const GRANT_CHUNKS_MIN: u32 = 4;

/// How many blobs that wait for a window are checked after each change.
pub(super) const LOOKS_MAX: usize = 256;

/// After this time without progress at its receiver, a chunk makes room for others.
const STUCK_AFTER: Duration = Duration::from_millis(100);

/// A sender is told that its receiver is slow after this time without progress.
const SLOW_AFTER: Duration = Duration::from_secs(1);

/// A worker does not wait longer for inputs for which there is no room here: another job may have
/// its place meanwhile.
const NO_ROOM_AFTER: Duration = Duration::from_secs(1);

/// A sender that has used nothing of its window for this long may have lost it.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// Blobs and connections that want to send or receive more.
#[derive(Debug, Default)]
pub(super) struct Windows {
    /// Blobs that may want a larger window, and have just come to want it.
    pub(super) hungry: Queue<BlobId>,
    /// Blobs that wanted one and could not have it.
    pub(super) waiting: Queue<BlobId>,
    /// Connections for which nothing could be read from the disk, as all buffers were in use or
    /// promised.
    starved: Queue<ConnId>,
}

impl Relay {
    /// Gives a chunk that has come to those that wait for it; keeps it for those that cannot take
    /// it yet.
    pub(super) fn pass_on(&mut self, id: BlobId, index: u32, head: ChunkHead, bytes: Bytes) {
        let now = self.now;
        let Relay { blobs, lines, out, lagging, .. } = self;
        let Some(blob) = blobs.get_mut(&id) else {
            return broken!("a chunk of blob {id} is passed on, and the blob is not known");
        };
        let len = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let mut waits = !blob.passes_on();
        let Blob { downs, chunks, came, up, .. } = blob;
        for down in downs.iter_mut().filter(|down| down.lacks(index)) {
            let line = lines.at(down.conn);
            let has_room = down.sending.window() > 0 && line.has_room();
            if !has_room || comes_later(down, index, chunks, came, up.as_ref(), now) {
                waits = true;
                continue;
            }
            line.chunks_out += 1;
            down.moved_at = now;
            lagging.is_sent(down.conn, now);
            let lags = lagging.lags(down.conn);
            // Then it stays here until its line has taken it.
            waits |= lags;
            out.push_back(down.give(id, index, head, len, (!lags).then(|| bytes.clone())));
        }
        if waits {
            self.store(id, index, head, bytes);
        }
        self.say_done(id);
    }

    /// Whether all that lack a chunk can take it now, so that it need not be stored.
    pub(super) fn goes_on_at_once(&self, id: BlobId, index: u32) -> bool {
        let Some(blob) = self.blobs.get(&id).filter(|blob| blob.passes_on()) else { return false };
        let mut lacking = blob.downs.iter().filter(|down| down.lacks(index));
        lacking.all(|down| {
            let has_room = self.lines.get(down.conn).is_none_or(Line::has_room);
            let goes_at_once =
                down.sending.window() > 0 && has_room && !self.lagging.lags(down.conn);
            goes_at_once
                && !comes_later(down, index, &blob.chunks, &blob.came, blob.up.as_ref(), self.now)
        })
    }

    /// Sends what is here to those that lack it, as far as their windows go.
    pub(super) fn feed(&mut self, id: BlobId) {
        let downs = self.blobs.get(&id).into_iter().flat_map(|blob| &blob.downs);
        let downs = downs.filter(|down| !down.sending.is_arrived()).map(|down| down.conn);
        for conn in downs.collect::<Vec<_>>() {
            while self.feed_one(id, conn) {}
        }
        self.settle_memory(id);
        self.say_done(id);
    }

    /// Sends one chunk, or has it read from the disk. False if there is none, or no room.
    fn feed_one(&mut self, id: BlobId, conn: ConnId) -> bool {
        let (now, spare) = (self.now, self.spare());
        let Relay { blobs, lines, out, pool, windows, lagging, .. } = self;
        let Some(Blob { downs, chunks, came, up, .. }) = blobs.get_mut(&id) else { return false };
        let Some(down) =
            downs.iter_mut().find(|down| down.conn == conn && down.sending.is_granted())
        else {
            return false;
        };
        let line = lines.at(conn);
        if down.sending.window() == 0 || !line.has_room() {
            return false;
        }
        let from = down.sending.sent().first_missing().unwrap_or_default();
        let lacks = |index: u32| down.sending.lacks(index) && !down.reading.contains(index);
        // What it has a part of goes first, and what else there is waits for that.
        let part = down.sending.part().map(|part| part.index).filter(|index| lacks(*index));
        let part = part.and_then(|index| Some((index, chunks.get(index)?)));
        let next = part.or_else(|| chunks.from(from).find(|(index, _)| lacks(*index)));
        let Some((index, chunk)) = next else { return false };
        if comes_later(down, index, chunks, came, up.as_ref(), now) {
            return false;
        }
        let lags = lagging.lags(conn);
        let bytes = chunk.bytes().filter(|_| !lags).cloned();
        if lags || bytes.is_some() {
            out.push_back(down.give(id, index, chunk.head, chunk.len, bytes));
        } else {
            let Some(buffer) = pool.take().filter(|_| spare > 0) else {
                windows.starved.push(conn);
                return false;
            };
            let (len, crc) = (chunk.len, chunk.head.crc_sent);
            out.push_back(Out::Disk(DiskOp::Read { blob: id, index, len, crc, conn, buffer }));
            down.sending.reserve();
            down.reading.insert(index);
        }
        line.chunks_out += 1;
        lagging.is_sent(conn, now);
        down.moved_at = now;
        true
    }

    /// Tells those that were sent everything what it hashes to, once that is known.
    pub(super) fn say_done(&mut self, id: BlobId) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(digest) = blob.certain_digest() else { return };
        for down in blob.downs.iter_mut().filter(|down| down.sending.is_done_due()) {
            down.sending.on_done_sent();
            self.out.push_back(Out::Say {
                conn: down.conn,
                blob: id,
                says: Says::Done(Done { digest }),
            });
        }
    }

    /// A connection takes what it is sent slowly, or does so no more.
    pub(in crate::leader) fn line_is_slow(&mut self, conn: ConnId, is_slow: bool) {
        self.lines.at(conn).takes_slowly = is_slow;
    }

    /// So many chunks have left for a connection.
    pub(in crate::leader) fn chunks_sent(&mut self, conn: ConnId, count: u32) {
        let Some(line) = self.lines.get_mut(conn) else { return };
        line.chunks_out = line.chunks_out.saturating_sub(count);
        self.lagging.is_out(conn, self.now);
        self.feed_conn(conn);
        self.pump();
    }

    /// Feeds all blobs that a connection gets, the one whose turn it is first.
    pub(super) fn feed_conn(&mut self, conn: ConnId) {
        for id in self.lines.take_turn(conn) {
            if !self.lines.get(conn).is_none_or(Line::has_room) {
                return;
            }
            if self.is_given(conn, id) {
                self.feed(id);
            }
        }
    }

    // --- windows

    pub(super) fn make_hungry(&mut self, id: BlobId) {
        if self.knows(id) {
            self.windows.hungry.push(id);
        }
    }

    /// Buffers that are neither in use nor promised.
    pub(super) fn spare(&self) -> usize {
        self.config.buffers.saturating_sub(self.pool.in_use() + self.senders.kept_free)
    }

    /// Buffers that can be promised.
    pub(super) fn free(&self) -> usize {
        self.spare().saturating_sub(BUFFERS_FOR_READING)
    }

    /// How many chunks of one blob may be on their way or wait in memory: fewer as buffers get
    /// scarce, and never more than a quarter of all.
    fn window(&self) -> u32 {
        let chunks = |buffers: usize| u32::try_from(buffers).unwrap_or(u32::MAX);
        let scarce = chunks(self.free() / 2).clamp(WINDOW_CHUNKS_MIN, WINDOW_CHUNKS_MAX);
        scarce.min(chunks(self.config.buffers / 4).max(1))
    }

    /// Promises a sender as much as there is; gives the number of chunks.
    pub(super) fn promise(&mut self, id: BlobId, first: bool) -> u32 {
        let (window, may_stay) = (self.window(), self.may_stay(id));
        let Some(blob) = self.blobs.get(&id) else { return 0 };
        let (wanted, flowing) = (blob.wanted(), blob.passes_on());
        let waits_here = if flowing { blob.chunks.in_memory() } else { blob.chunks.writing() };
        let room = if flowing || blob.stays() { usize::MAX } else { self.spool_room() };
        let Some(conn) = blob.up.as_ref().map(|up| up.conn).filter(|_| wanted > 0) else {
            return 0;
        };
        let most = self.may_promise(conn);
        let Some(up) = self.up(conn, id) else { return 0 };
        if room == 0 || !flowing && !may_stay {
            return 0;
        }
        let under_way =
            up.outstanding.saturating_add(u32::try_from(waits_here).unwrap_or(u32::MAX));
        let more = window.saturating_sub(under_way);
        let more = more.min(wanted).min(u32::try_from(room).unwrap_or(u32::MAX)).min(most);
        // A few at a time, unless nothing is on its way or these are the last.
        if more < GRANT_CHUNKS_MIN.min(wanted) && up.outstanding > 0 && !first {
            return 0;
        }
        up.outstanding += more;
        self.promised_to(conn, more);
        more
    }

    /// Hands out windows to those that bring, in turn, as long as there are buffers; tells the
    /// others to wait, and why.
    pub(in crate::leader) fn pump(&mut self) {
        self.give_turns();
        self.supply_lines();
        if self.spare() > 0 {
            for conn in std::mem::take(&mut self.windows.starved).iter() {
                self.feed_conn(*conn);
            }
        }
        // However many wait, a chunk that comes costs no more than this.
        let looks = self.windows.waiting.len().min(LOOKS_MAX);
        // Results go first: they end jobs, whose inputs make room for the others.
        let Relay { blobs, windows, .. } = self;
        let is_upload = |id: &BlobId| !blobs.get(id).is_some_and(Blob::is_of_result);
        let waiting = (0..looks).filter_map(|_| windows.waiting.pop());
        let (uploads, results): (Vec<BlobId>, Vec<BlobId>) = waiting.partition(is_upload);
        results.into_iter().chain(uploads).for_each(|id| self.give_window(id));
        while let Some(id) = self.windows.hungry.pop() {
            self.give_window(id);
        }
        self.arm();
    }

    /// Gives a blob's sender a larger window, or has it wait for one.
    fn give_window(&mut self, id: BlobId) {
        let window = self.promise(id, false);
        let Some(blob) = self.blobs.get(&id) else { return };
        let Some(Up { conn, told, outstanding, .. }) = blob.up else { return };
        if window > 0 {
            return self.grant(conn, id, window, Reason::NONE, "");
        }
        if blob.wanted() == 0 || outstanding > 0 {
            // It has all it wants, or is looked at again when its next chunk has come.
            return;
        }
        let (flowing, full) = (blob.passes_on(), self.full().or(self.in_line.reason(id)));
        let held_back = full.is_none() && self.is_held_back(conn);
        let no_buffers = self.free() == 0 && !held_back || self.lacks_place(conn);
        let why = full.filter(|_| !flowing).or(no_buffers.then_some(Reason::POOL_FULL));
        if let Some(reason) = why.filter(|reason| told != Some(*reason)) {
            if let Some(up) = self.up(conn, id) {
                up.told = Some(reason);
            }
            let text = self.why_full(id, reason);
            self.grant(conn, id, 0, reason, &text);
        }
        if held_back && !self.windows.waiting.contains(&id) {
            self.held(conn).push(id);
        } else if !self.held(conn).contains(&id) {
            self.windows.waiting.push(id);
        }
    }

    fn grant(&mut self, conn: ConnId, id: BlobId, window: u32, reason: Reason, text: &str) {
        let (held, part) = Default::default();
        self.say(conn, id, Says::Grant(Grant { window, reason, text: text.into(), held, part }));
    }

    /// Time matters while something waits in memory, or somebody waits for something.
    fn arm(&mut self) {
        let waits =
            self.totals.in_memory > 0 || self.has_transfers() || self.room.trouble.is_some();
        let waits = waits || self.is_low() || self.senders_wait();
        if self.tick_at.is_none() && waits {
            self.tick_at = Some(self.now.plus(STUCK_AFTER));
        }
    }

    /// Chunks that may still wait here, beside what is promised or about to be here.
    pub(super) fn spool_room(&self) -> usize {
        let chunk = u64::from(CHUNK_BYTES_MAX);
        let chunks = (self.senders.promised + self.senders.arriving) as u64;
        let coming = chunks.saturating_mul(chunk).max(self.totals.reserved);
        let taken = self.totals.bytes.saturating_add(coming);
        let room = self.config.spool_bytes_max.saturating_sub(taken) / chunk;
        usize::try_from(room).unwrap_or(usize::MAX)
    }

    /// Whether more of a blob may wait here. One that stays here, as a result does, is let in as a
    /// whole, if it fits or no other is on its way: so it can always come to its end, and the
    /// worker that brings it is free again, however full the spool is of what waits for a worker.
    /// Inputs that stay are let in with all others of their job, if they fit: two jobs with half of
    /// their inputs each would wait for each other. And they leave what gets free to a result that
    /// waits for room, or each of them would take a piece of it and the result would never find
    /// enough at once.
    fn may_stay(&mut self, id: BlobId) -> bool {
        let (full, trouble) = (self.full(), self.room.trouble.is_some());
        let behind = self.waits_behind_result(id);
        let Some(blob) = self.blobs.get_mut(&id) else { return false };
        if !blob.stays() {
            return full.is_none();
        }
        if blob.up.is_none() {
            // No sender: a reservation made now would never be released.
            return false;
        }
        if blob.chunks.reserved().is_none() && !trouble {
            if let Some(reason) = behind {
                self.in_line.insert(id, reason);
                return false;
            }
            let (together, is_input, class) =
                (blob.together.clone(), blob.is_input(), blob.class());
            let together = together.unwrap_or_else(|| Arc::from([id]));
            let more = self.unreserved(&together);
            let taken = self.totals.bytes.saturating_add(self.totals.reserved).saturating_add(more);
            // A result may exceed it; of inputs there is no end.
            let is_first = self.totals.reserved == 0 && !is_input;
            if taken > self.config.spool_bytes_max && !is_first {
                self.turn_down(id, Reason::SPOOL_FULL);
                return false;
            }
            if !self.fits(class, self.unmade(&together)) {
                self.turn_down(id, Reason::DISK_FULL);
                return false;
            }
            self.reserve(&together);
        }
        !trouble
    }

    /// Takes back the reservations of inputs whose sender is connected and has sent nothing for a
    /// long time, while others wait. The sender has to ask again.
    fn take_back_places(&mut self) {
        if self.in_line.is_empty() {
            return;
        }
        let (now, stall) = (self.now, self.config.input_stall);
        let is_idle = |blob: &Blob| {
            let is_silent = blob.up.as_ref().is_some_and(|up| up.heard_at.plus(stall) <= now);
            blob.ruling.digest().is_some() || blob.chunks.reserved().is_none() || is_silent
        };
        let is_whole = |blob: &Blob| blob.ruling.digest().is_some();
        let keeps_place =
            |blob: &&Blob| !is_whole(blob) && blob.chunks.reserved().is_some_and(|bytes| bytes > 0);
        let held = self.blobs.values().filter(keeps_place).filter_map(|blob| blob.together.clone());
        let idle = held.filter(|ids| ids.iter().filter_map(|id| self.blobs.get(id)).all(is_idle));
        for id in idle.collect::<Vec<_>>().iter().flat_map(|ids| ids.iter()) {
            match self.blobs.get(id).is_some_and(is_whole) {
                true => self.uncharge(*id),
                false => self.give_up_place(*id),
            }
        }
    }

    /// Bytes of blobs that have no place yet.
    fn unreserved(&self, ids: &[BlobId]) -> u64 {
        let blobs = ids.iter().filter_map(|id| self.blobs.get(id));
        let unreserved = blobs.filter(|blob| blob.chunks.reserved().is_none());
        unreserved.map(|blob| blob.open.size.saturating_sub(blob.chunks.bytes())).sum()
    }

    /// Keeps a place for all that is still to come of blobs.
    pub(super) fn reserve(&mut self, ids: &[BlobId]) {
        for id in ids {
            if let Some(blob) = self.blobs.get_mut(id)
                && blob.chunks.reserve(&mut self.totals, blob.open.size)
            {
                self.charge(*id);
            }
            // Blobs that get their reservation with another blob need not ask for it.
            self.in_line.remove(*id);
        }
    }

    /// Why nothing more may wait here, if so.
    pub(super) fn full(&self) -> Option<Reason> {
        match &self.room.trouble {
            Some(_) => Some(Reason::DISK_FULL),
            None => (self.spool_room() == 0).then_some(Reason::SPOOL_FULL),
        }
    }

    /// The same in words, for who has to wait.
    pub(super) fn why_full(&self, id: BlobId, reason: Reason) -> String {
        if let Some(why) = self.why_behind_result(id) {
            return why;
        }
        match &self.room.trouble {
            Some((trouble, _)) if reason == Reason::DISK_FULL => trouble.clone(),
            None if reason == Reason::DISK_FULL => self.why_no_room(id).unwrap_or_default(),
            Some(_) | None if reason == Reason::POOL_FULL => {
                "all buffers of the leader are in use".to_owned()
            }
            Some(_) | None => {
                format!("{}: waiting for a worker, or for jobs to end", self.why_spool_full())
            }
        }
    }

    pub(super) fn why_spool_full(&self) -> String {
        format!(
            "the leader's spool holds {} of at most {} (--spool-max)",
            ByteSize(self.totals.bytes),
            ByteSize(self.config.spool_bytes_max)
        )
    }

    /// Whether senders wait because there is no room, and none is being made.
    pub(in crate::leader) fn is_short(&self) -> bool {
        let somebody_waits = !self.windows.hungry.is_empty() || !self.windows.waiting.is_empty();
        let is_short = self.full().is_some() || !self.in_line.is_empty();
        somebody_waits && is_short && !self.is_making_room()
    }

    // --- time

    /// When [`Relay::tick`] is due.
    pub(in crate::leader) fn next_deadline(&self) -> Option<Micros> {
        self.tick_at
    }

    /// Moves what is stuck in memory to the disk where others wait for buffers; reports inputs that
    /// do not come on.
    pub(in crate::leader) fn tick(&mut self) {
        let now = self.now;
        if self.tick_at.take_if(|due| *due <= now).is_none() {
            return;
        }
        let stuck = |blob: &Blob| {
            blob.chunks.in_memory() > 0
                && blob.downs.iter().all(|down| down.moved_at.plus(STUCK_AFTER) <= now)
        };
        if self.is_scarce() {
            self.ids(stuck).into_iter().for_each(|id| self.spill(id));
        }
        self.try_the_disk_again();
        self.look_for_room();
        self.take_back_promises();
        self.have_lines_let_go();
        self.leave_pool();
        self.nudge_the_silent();
        self.pause_the_silent();
        self.wait_no_longer();
        self.take_back_places();
        self.choose_first_in_line();
        let stall = self.config.input_stall;
        let (mut stalled, mut slow) = (Vec::new(), Vec::new());
        let may_stall = |blob: &Blob| blob.is_flowing() && (!blob.stays() || blob.is_input());
        for (id, blob) in self.blobs.iter_mut().filter(|(_, blob)| may_stall(blob)) {
            let is_sent =
                |down: &Down| self.lines.get(down.conn).is_some_and(|line| line.chunks_out > 0);
            let is_sent_something = blob.downs.iter().any(is_sent);
            let moved_at = blob.downs.iter().map(|down| down.moved_at).max();
            let last = moved_at.into_iter().chain(blob.up.as_ref().map(|up| up.heard_at)).max();
            // A chunk that comes slowly comes on: a connection that brings no bytes at all has an
            // end of its own.
            let is_coming = blob.up.as_ref().is_some_and(|up| up.arriving > 0);
            let is_still = !is_sent_something && !is_coming;
            let is_late = is_still && last.is_some_and(|last| last.plus(stall) <= now);
            let is_in_line = self.in_line.reason(*id).is_some();
            let no_place = is_in_line && blob.up.is_some() && blob.chunks.reserved().is_none();
            let waits_for_room =
                no_place && last.is_some_and(|last| last.plus(NO_ROOM_AFTER) <= now);
            if is_late && blob.waits_for_sender() || is_still && waits_for_room {
                stalled.push((*id, blob.owner()));
            }
            let is_slow = blob.chunks.in_memory() > 0
                && moved_at.is_some_and(|moved| moved.plus(SLOW_AFTER) <= now);
            if let Some(up) =
                blob.up.as_mut().filter(|up| is_slow && up.outstanding == 0 && up.told.is_none())
            {
                up.told = Some(Reason::SLOW_RECEIVER);
                slow.push((up.conn, *id));
            }
        }
        for (conn, id) in slow {
            self.grant(
                conn,
                id,
                0,
                Reason::SLOW_RECEIVER,
                "the worker takes nothing at the moment",
            );
        }
        for (blob, owner) in stalled {
            self.out.push_back(Out::News(News::Stalled { blob, owner }));
        }
        self.pump();
    }
}

impl Relay {
    /// A sender whose window is not used may have used it for chunks that could not be recognised:
    /// after a while it gets it once more, until it is heard of again. It is not held against it if
    /// both are used.
    fn nudge_the_silent(&mut self) {
        let now = self.now;
        let (mut nudged, mut written_off) = (Vec::new(), Vec::new());
        for (id, blob) in &mut self.blobs {
            let up = blob.up.as_mut().filter(|up| up.outstanding > 0);
            if let Some(up) = up.filter(|up| up.heard_at.plus(SILENT_AFTER) <= now) {
                written_off.push((up.conn, up.write_off()));
                // One that stays silent gets nothing more until it is heard of: what it has may
                // still come, if there is room by then, and others need the buffers.
                if !std::mem::replace(&mut up.nudged, true) {
                    up.heard_at = now;
                    nudged.push(*id);
                }
            }
        }
        for (conn, chunks) in written_off {
            self.unpromise(conn, chunks);
            self.look_at_held(conn);
        }
        nudged.into_iter().for_each(|id| self.make_hungry(id));
    }
}
