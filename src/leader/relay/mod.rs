//! Relays blobs from one sender to any number of receivers, buffering in memory or on disk when
//! needed. It has no sockets, files or clock.
//!
//! A chunk with a waiting receiver is forwarded at once, in the buffer it arrived in (cut-through).
//! Other chunks wait in memory, up to a share of the pool, then in the blob's spool file. A
//! forwarded chunk is not kept if the sender keeps the source; if it is needed again, the sender is
//! asked to resend it.
//!
//! Windows are the backpressure on senders. Buffers are reserved for fast senders (`senders.rs`);
//! reserved and used buffers together never exceed the pool. Buffers return to the pool when
//! dropped (`wire::Pool`), however a chunk ends.

mod blob;
mod chunks;
mod flow;
mod fragments;
mod lagging;
mod lines;
mod local;
mod on_disk;
mod queue;
mod result_priority;
mod room;
mod ruling;
mod seal;
mod senders;
mod splice;
mod spool;
mod stats;

pub(super) use blob::{BlobId, announced};
pub(super) use local::ChunkRoom;
pub(super) use room::WaitingPart;
pub use senders::BUFFER_LEASE;
pub(super) use senders::Starts;
pub use senders::{Linger, Memory};
pub use splice::Spliced;
pub use stats::RelayStats;
pub(super) use stats::{KnownBlobs, TooMany};

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{Abort, Grant, Open, OpenFlags, Reason, Verdict};
use chunking::{ChunkError, ChunkHead, ChunkPlan, Codec, Digest, DigestKind, Ranges};

use crate::answers::BlobRow;
use crate::conn::{TransferSays as Says, Want};
use crate::core::ids::{ConnId, JobId, Micros};
use crate::store::blobs::DiskOp;
use crate::store::space::Reserve;
use crate::wire::{ChunkStart, InChunk, Parts, Pool};
use blob::{Blob, Down, Route, Up};
use chunks::Totals;
use flow::Windows;
use lagging::Lagging;
use lines::Lines;
use on_disk::Seal;
use queue::Queue;
use result_priority::InLine;
use room::Room;
use senders::Senders;

/// Transfers that one connection may bring at a time.
pub(super) const TRANSFERS_MAX: usize = 8192;

/// How often a receiver may ask for chunks again beyond once for each chunk.
const RESENDS_MAX: u32 = 64;

/// Who checks the CRC of a chunk that is forwarded at once (`--verify`). Stored chunks are always
/// checked, and so is every chunk at its final receiver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    /// The receiving end alone: it asks for a bad chunk again.
    #[default]
    End,
    /// The leader too, before it passes the chunk on.
    Hop,
}

/// What an operator may set.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// Who checks chunks that are forwarded at once.
    pub verify: Verify,
    /// Buffers of one chunk each.
    pub buffers: usize,
    /// Whether blobs outlive the leader: then all of each is on the disk before it counts.
    pub durable: bool,
    /// Bytes of blobs that may wait here, in memory and on the disk.
    pub spool_bytes_max: u64,
    /// How long a worker waits for inputs without progress.
    pub input_stall: std::time::Duration,
    /// Disk space reserved for the log, if there is one.
    pub disk_reserve: Reserve,
}

impl Default for RelayConfig {
    fn default() -> Self {
        RelayConfig {
            verify: Verify::End,
            buffers: 48,
            durable: false,
            spool_bytes_max: 64 << 30,
            input_stall: std::time::Duration::from_secs(30),
            disk_reserve: Reserve::Auto,
        }
    }
}

/// What the relay wants done.
#[derive(Debug)]
pub(super) enum Out {
    Say {
        conn: ConnId,
        blob: BlobId,
        says: Says,
    },
    /// Send a chunk; then [`Relay::chunks_sent`].
    /// Its first `from` bytes are there already.
    Chunk {
        conn: ConnId,
        blob: BlobId,
        head: ChunkHead,
        bytes: Bytes,
        from: u32,
    },
    /// Do something with a spool file.
    Disk(DiskOp),
    /// Send a chunk of `len` bytes whose bytes stay here; the connection requests them as it can
    /// send them.
    Elsewhere {
        conn: ConnId,
        blob: BlobId,
        head: ChunkHead,
        len: u32,
        from: u32,
    },
    /// A connection is to release its buffers; then [`Relay::line_lags`].
    LetGo {
        conn: ConnId,
    },
    /// What a line asked for, or nothing.
    Supply {
        conn: ConnId,
        want: Want,
        bytes: Bytes,
    },
    /// A connection that had to wait is read again.
    Turn {
        conn: ConnId,
    },
    /// Something that the leader has to know.
    News(News),
}

/// What happened to a blob.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// It has come whole.
    Arrived { blob: BlobId, owner: JobId },
    /// It cannot be had.
    Failed { blob: BlobId, owner: JobId, reason: Reason, text: String },
    /// The receiver refuses the blob.
    Refused { blob: BlobId, job: JobId, conn: ConnId, reason: Reason, text: String },
    /// Somebody has got a part of a dataset, checked.
    Taken { blob: BlobId, conn: ConnId },
    /// Somebody has got a part of a result, checked.
    Got { blob: BlobId, owner: JobId, conn: ConnId },
    /// Nothing of it has come for a long time, and a worker waits for it.
    Stalled { blob: BlobId, owner: JobId },
}

/// All blobs that the leader knows.
#[derive(Debug)]
pub(super) struct Relay {
    config: RelayConfig,
    pool: Pool,
    now: Micros,
    blobs: HashMap<BlobId, Blob>,
    /// Bytes of their names.
    names_bytes: usize,
    totals: Totals,
    lines: Lines,
    windows: Windows,
    senders: Senders,
    lagging: Lagging,
    in_line: InLine,
    /// The room on the disk.
    room: Room,
    tick_at: Option<Micros>,
    spliced: splice::Counts,
    /// First bytes of chunks that broke off.
    parts: Parts,
    out: VecDeque<Out>,
}

impl Relay {
    pub(super) fn new(config: RelayConfig) -> Self {
        Relay {
            pool: Pool::new(config.buffers),
            config,
            now: Micros::default(),
            blobs: HashMap::new(),
            names_bytes: 0,
            totals: Totals::default(),
            lines: Lines::default(),
            windows: Windows::default(),
            senders: Senders::default(),
            lagging: Lagging::default(),
            in_line: InLine::default(),
            room: Room::default(),
            tick_at: None,
            spliced: splice::Counts::default(),
            parts: Parts::new(fragments::LEADER_PARTS_MAX),
            out: VecDeque::new(),
        }
    }

    pub(super) fn stock_buffers(&self, memory: Vec<BytesMut>) {
        self.pool.stock(memory);
    }

    pub(super) fn poll(&mut self) -> Option<Out> {
        self.out.pop_front()
    }

    pub(super) fn set_now(&mut self, now: Micros) {
        self.now = self.now.max(now);
    }

    /// A request announces a blob. A known blob stays unchanged.
    pub(super) fn expect(&mut self, id: BlobId, open: Open, plan: ChunkPlan, keep: bool) {
        let keep = keep || self.config.durable;
        if !self.blobs.contains_key(&id) {
            self.insert(id, Blob::new(open, plan, keep));
        }
    }

    /// These blobs are the inputs of one job.
    pub(super) fn belong_together(&mut self, ids: &[BlobId]) {
        let together: Arc<[BlobId]> = ids.into();
        for id in ids {
            if let Some(blob) = self.blobs.get_mut(id).filter(|blob| blob.stays()) {
                blob.together = Some(together.clone());
            }
        }
    }

    fn ids(&self, pick: impl Fn(&Blob) -> bool) -> Vec<BlobId> {
        self.blobs.iter().filter(|(_, blob)| pick(blob)).map(|(id, _)| *id).collect()
    }

    /// Whether blobs come or go.
    pub(super) fn has_transfers(&self) -> bool {
        self.lines.linked() > 0
    }

    /// Whether a connection brings blobs.
    pub(super) fn brings_blobs(&self, conn: ConnId) -> bool {
        self.brought_by(conn).next().is_some()
    }

    fn brought_by(&self, conn: ConnId) -> impl Iterator<Item = &Blob> {
        let linked = self.lines.blobs(conn).filter_map(|id| self.blobs.get(&id));
        linked.filter(move |blob| blob.is_from(conn))
    }

    /// Blobs that are known, in the order of their ids behind `after`, up to so many, and whether
    /// there are more.
    pub(super) fn list(&self, after: Option<BlobId>, up_to: usize) -> (Vec<BlobRow>, bool) {
        let mut ids: Vec<BlobId> =
            self.blobs.keys().copied().filter(|id| Some(*id) > after).collect();
        ids.sort_unstable();
        let more = ids.len() > up_to;
        let shown =
            ids.into_iter().take(up_to).filter_map(|id| Some(self.blobs.get(&id)?.describe(id)));
        (shown.collect(), more)
    }

    /// Whether a blob is known.
    pub(super) fn knows(&self, id: BlobId) -> bool {
        self.blobs.contains_key(&id)
    }

    /// Whether anything of a blob is on the disk, or on its way there.
    pub(super) fn has_file(&self, id: BlobId) -> bool {
        self.blobs.get(&id).is_some_and(|blob| blob.disk.has_file())
    }

    /// Whether a blob has come whole.
    pub(super) fn has_arrived(&self, id: BlobId) -> bool {
        let is_certain = |blob: &Blob| !self.config.durable || blob.disk.seal == Seal::Set;
        self.blobs.get(&id).is_some_and(|blob| blob.ruling.digest().is_some() && is_certain(blob))
    }

    /// The digest of a complete blob.
    pub(super) fn digest(&self, id: BlobId) -> Option<Digest> {
        self.blobs.get(&id)?.ruling.digest()
    }

    /// Whether all of a blob is here, so that nobody has to be asked again.
    pub(super) fn is_kept(&self, id: BlobId) -> bool {
        self.blobs.get(&id).is_some_and(Blob::is_kept)
    }

    /// Whether a blob has come whole, and chunks of it are on their way once more.
    pub(super) fn comes_again(&self, id: BlobId) -> bool {
        self.blobs.get(&id).and_then(|blob| blob.up.as_ref()).is_some_and(|up| up.asked_again)
    }

    /// All of the blob stays here from now on, whoever receives it.
    pub(super) fn keep(&mut self, id: BlobId) {
        if let Some(blob) = self.blobs.get_mut(&id) {
            blob.route = Route::Stay;
        }
    }

    /// Whether a known blob conflicts with this Open.
    pub(super) fn is_another(&self, id: BlobId, open: &Open) -> bool {
        let differs = |blob: &Blob| {
            blob.open.size != open.size || blob.opened && blob.open.digest != open.digest
        };
        self.blobs.get(&id).is_some_and(differs)
    }

    // --- who brings

    /// A sender opens an expected blob, or resumes after its connection broke.
    pub(super) fn open(&mut self, conn: ConnId, id: BlobId, open: Open) {
        let brings = self.brought_by(conn).count();
        let Some(blob) = self.blobs.get_mut(&id) else { return self.turn_away(conn, id) };
        if blob.opened && open.digest != blob.open.digest {
            let text = format!(
                "the blob was opened with a digest of kind {} before, and now with {}",
                blob.open.digest, open.digest
            );
            return self.abort(conn, id, Reason::CONFLICT, &text);
        }
        if open.size != blob.open.size || open.chunk_bytes != CHUNK_BYTES_MAX {
            let text = format!(
                "the blob was announced with {} bytes in chunks of {CHUNK_BYTES_MAX} and opened with {} in chunks of {}",
                blob.open.size, open.size, open.chunk_bytes
            );
            return self.abort(conn, id, Reason::INVALID, &text);
        }
        if brings >= TRANSFERS_MAX {
            let text = format!(
                "this connection has {brings} transfers under way; the limit is {TRANSFERS_MAX}"
            );
            return self.abort(conn, id, Reason::BUSY, &text);
        }
        if self.looks_first(conn, id, &open) {
            return;
        }
        if open.digest != DigestKind::ChunkList {
            // Nobody here could check it, and who did may have been told of it in a previous run.
            self.doubt_before(conn, id);
        }
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        // Opened twice on one connection: what the first opening allowed may be on its way.
        let before = blob.up.as_ref().filter(|up| up.conn == conn);
        let written_off = before.map_or(0, |up| up.outstanding.saturating_add(up.written_off));
        self.sender_left(id);
        let part = self.held_part(id);
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let keeps_source = open.flags.has(OpenFlags::KEEPS_SOURCE);
        if !keeps_source {
            blob.route = Route::Stay;
        }
        let (owner, name) = (blob.open.owner, std::mem::take(&mut blob.open.name));
        blob.open = Open { owner, name, ..open };
        blob.opened = true;
        let (outstanding, arriving, told, heard_at) = (0, 0, None, self.now);
        let (nudged, asked_again) = (false, false);
        blob.up = Some(Up {
            conn,
            outstanding,
            arriving,
            written_off,
            nudged,
            told,
            heard_at,
            keeps_source,
            asked_again,
        });
        // Chunks that a receiver lacks and that are not here are requested from the sender.
        blob.ask_again();
        let grant = Grant {
            window: 0,
            reason: Reason::NONE,
            text: "".into(),
            held: blob.came.held().held(),
            part,
        };
        self.lines.link(conn, id);
        // The first one says what is held; how much may come follows at once, if there is room.
        let window = self.promise(id, true);
        self.say(conn, id, Says::Grant(Grant { window, ..grant }));
        self.say_open(id);
        self.make_hungry(id);
        self.pump();
    }

    /// Opens the blob to its receivers, once its form is known.
    fn say_open(&mut self, id: BlobId) {
        let openings = self.blobs.get_mut(&id).map(Blob::openings).unwrap_or_default();
        for (conn, open) in openings {
            self.say(conn, id, Says::Open(open));
        }
    }

    /// Whether the bytes of a chunk need no look here: they go on at once, and are checked at the
    /// end of their way.
    pub(super) fn is_forwarded_unchecked(&self, id: BlobId) -> bool {
        self.config.verify == Verify::End && self.blobs.get(&id).is_some_and(Blob::passes_on)
    }

    /// The blob's sender, if it is this connection.
    fn up(&mut self, conn: ConnId, id: BlobId) -> Option<&mut Up> {
        self.blobs.get_mut(&id)?.up.as_mut().filter(|up| up.conn == conn)
    }

    /// A chunk of a connection that had begun to come is here, or does not come after all.
    fn arrives_no_more(&mut self, conn: ConnId, id: BlobId) -> Option<&mut Up> {
        let Relay { blobs, senders, .. } = self;
        let up = blobs.get_mut(&id)?.up.as_mut().filter(|up| up.conn == conn)?;
        // One that was opened anew in the middle of it has been counted out.
        let counted = up.arriving.min(1);
        up.arriving -= counted;
        senders.arriving -= counted as usize;
        Some(up)
    }

    /// Somebody brings what nobody expects.
    pub(super) fn turn_away(&mut self, conn: ConnId, id: BlobId) {
        self.abort(conn, id, Reason::UNKNOWN, "unexpected blob: the job has ended, or was refused");
    }

    /// Says why a blob that somebody opens is not taken.
    pub(super) fn turn_away_for(&mut self, conn: ConnId, id: BlobId, reason: Reason, text: &str) {
        self.abort(conn, id, reason, text);
    }

    /// A chunk begins: finds memory for it, or lets it pass by.
    pub(super) fn chunk_starts(&mut self, conn: ConnId, start: &ChunkStart) -> Starts {
        let id = start.transfer;
        let Some(blob) = self.blobs.get_mut(&id) else {
            self.abort(conn, id, Reason::UNKNOWN, "no such transfer is under way");
            return Starts::Skip;
        };
        let Some(up) = blob.up.as_mut().filter(|up| up.conn == conn) else {
            self.abort(conn, id, Reason::UNKNOWN, "this connection has not opened the transfer");
            return Starts::Skip;
        };
        (up.heard_at, up.nudged) = (self.now, false);
        let was_promised = up.outstanding > 0;
        if was_promised {
            up.outstanding -= 1;
        } else if up.written_off > 0 {
            up.written_off -= 1;
        } else {
            self.sender_left(id);
            self.abort(
                conn,
                id,
                Reason::WINDOW_IGNORED,
                "more chunks came than the window allowed",
            );
            return Starts::Skip;
        }
        let wanted = match blob.came.plan().check(&start.head, start.sent_len) {
            Ok(index) => !blob.came.has(index),
            Err(error) => {
                tracing::warn!(blob = %id, "a chunk is dropped: {error}");
                false
            }
        };
        self.spend(conn, u32::from(was_promised));
        let starts = if wanted { self.find_memory(conn) } else { Starts::Skip };
        match self.blobs.get_mut(&id).and_then(|blob| blob.up.as_mut()) {
            Some(up) if !matches!(starts, Starts::Skip) => {
                up.arriving += 1;
                self.senders.arriving += 1;
            }
            Some(_) | None => {
                self.unpromise(conn, 0);
                self.look_at_held(conn);
                self.make_hungry(id);
                self.pump();
            }
        }
        starts
    }

    /// A chunk has come.
    pub(super) fn chunk(&mut self, conn: ConnId, chunk: InChunk) {
        let id = chunk.transfer;
        self.has_come(conn, true);
        if self.arrives_no_more(conn, id).is_none() {
            return;
        }
        let Some(blob) = self.blobs.get(&id) else { return };
        let sent_len = u32::try_from(chunk.bytes.len()).unwrap_or(u32::MAX);
        let checked = blob.came.plan().check(&chunk.head, sent_len).and_then(|index| {
            let at_once = chunk.crc.is_none() && self.goes_on_at_once(id, index);
            let crc = if at_once { chunk.head.crc_sent } else { chunk.crc() };
            check_crcs(&chunk.head, crc).map(|()| index)
        });
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        match checked {
            Ok(index) => {
                if blob.came.insert(index, chunk.head.crc_raw) {
                    self.pass_on(id, index, chunk.head, chunk.bytes);
                }
            }
            Err(error) => tracing::warn!(blob = %id, "a chunk is asked for again: {error}"),
        }
        self.make_hungry(id);
        self.pump();
    }

    /// Either side gives a transfer up.
    pub(super) fn aborted(&mut self, conn: ConnId, id: BlobId, abort: &Abort) {
        let Some(blob) = self.blobs.get(&id) else { return };
        if blob.is_from(conn) {
            self.fail(id, abort.reason, abort.text.as_str().to_owned());
        } else {
            self.refused(conn, id, abort.reason, abort.text.as_str());
        }
    }

    /// The receiver refuses a blob.
    fn refused(&mut self, conn: ConnId, id: BlobId, reason: Reason, text: &str) {
        let Some(job) = self.detach(conn, id) else { return };
        let text = text.to_owned();
        self.out.push_back(Out::News(News::Refused { blob: id, job, conn, reason, text }));
    }

    /// A blob cannot be had: tells its sender, its receivers and the leader.
    fn fail(&mut self, id: BlobId, reason: Reason, text: String) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let owner = blob.owner();
        if let Some(conn) = blob.up.as_ref().map(|up| up.conn) {
            let failed = Verdict::Failed { reason, text: text.as_str().into() };
            self.say(conn, id, Says::Verdict(failed));
        }
        self.out.push_back(Out::News(News::Failed { blob: id, owner, reason, text }));
    }

    // --- who gets

    /// A connection is to receive a blob. A connection that already receives it continues.
    pub(super) fn attach(&mut self, conn: ConnId, id: BlobId, owner: JobId, attempt: u32) {
        let now = self.now;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        if blob.down(conn).is_some() {
            return;
        }
        let chunks = blob.came.plan().count();
        blob.downs.push(Down::new(conn, owner, attempt, chunks, now));
        self.lines.link(conn, id);
        self.say_open(id);
        self.make_hungry(id);
    }

    /// The same, from the start: the receiver has dropped the blob, or wants it once more.
    pub(super) fn attach_anew(&mut self, conn: ConnId, id: BlobId, owner: JobId, attempt: u32) {
        self.detach(conn, id);
        self.attach(conn, id, owner, attempt);
    }

    /// Whether a connection has got all of a blob.
    pub(super) fn has_got(&self, conn: ConnId, id: BlobId) -> bool {
        let blob = self.blobs.get(&id);
        blob.is_some_and(|blob| {
            blob.downs.iter().any(|down| down.conn == conn && down.sending.is_arrived())
        })
    }

    /// Whether a connection gets a blob, or has got it.
    pub(super) fn is_given(&self, conn: ConnId, id: BlobId) -> bool {
        self.blobs.get(&id).is_some_and(|blob| blob.downs.iter().any(|down| down.conn == conn))
    }

    /// A connection is not to get a blob any more. Gives the job it was to get it for, if it was.
    pub(super) fn detach(&mut self, conn: ConnId, id: BlobId) -> Option<JobId> {
        let blob = self.blobs.get_mut(&id)?;
        let at = blob.downs.iter().position(|down| down.conn == conn)?;
        let down = blob.downs.remove(at);
        self.lines.unlink(conn, id);
        self.settle_memory(id);
        Some(down.job)
    }

    /// The receiver grants a window.
    pub(super) fn granted(&mut self, conn: ConnId, id: BlobId, grant: &Grant) {
        let now = self.now;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(down) = blob.down(conn) else { return };
        if down.sending.on_grant(grant) {
            down.granted_at = now;
        }
        down.moved_at = now;
        self.ask_sender_again(id, false);
        self.feed(id);
        self.pump();
    }

    /// The receiver's verdict on a blob.
    pub(super) fn verdict(&mut self, conn: ConnId, id: BlobId, verdict: &Verdict) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(down) = blob.down(conn) else { return };
        match verdict {
            Verdict::Ok => {
                down.sending.on_arrived();
                if blob.is_dataset() {
                    self.out.push_back(Out::News(News::Taken { blob: id, conn }));
                } else if blob.is_of_result() {
                    let owner = blob.owner();
                    self.out.push_back(Out::News(News::Got { blob: id, owner, conn }));
                }
                self.settle_memory(id);
            }
            Verdict::Resend(ranges) => self.send_again(conn, id, ranges),
            Verdict::Failed { reason, text } => self.refused(conn, id, *reason, text.as_str()),
        }
        self.pump();
    }

    /// The receiver lacks a part of the blob, or found it damaged.
    fn send_again(&mut self, conn: ConnId, id: BlobId, ranges: &Ranges) {
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        // A receiver that checks a full digest knows more than the leader. The sender repeats the
        // digest with the chunks that it sends again.
        let (can_ask, is_full) =
            (blob.can_ask().is_some(), blob.open.digest != DigestKind::ChunkList);
        if is_full {
            blob.ruling.doubt();
        }
        let Some(down) = blob.down(conn) else { return };
        let chunks = down.sending.sent().count();
        down.asked_times += 1;
        if down.asked_times > chunks.saturating_add(RESENDS_MAX) {
            let text = format!(
                "it asked {RESENDS_MAX} times more for chunks again than there are chunks ({chunks})"
            );
            return self.refused(conn, id, Reason::BAD_DIGEST, &text);
        }
        let again = down.sending.on_resend(ranges).into_iter();
        // What came damaged twice is not as it should be here: it has to come from its source.
        let damaged: Vec<u32> = again.filter(|index| !down.asked.insert(*index)).collect();
        for index in damaged.into_iter().filter(|_| can_ask) {
            self.drop_stored(id, index);
        }
        self.ask_sender_again(id, is_full);
        self.feed(id);
    }

    /// Asks the sender for chunks that were forwarded before and are needed again.
    fn ask_sender_again(&mut self, id: BlobId, for_done: bool) {
        let now = self.now;
        let Some(blob) = self.blobs.get_mut(&id) else { return };
        let Some(up) = blob.up.as_mut().filter(|up| up.keeps_source) else { return };
        let conn = up.conn;
        up.heard_at = now;
        let again: Ranges = blob.ask_again();
        // Without any chunk it asks for Done alone.
        if !again.is_empty() || for_done {
            if let Some(up) = blob.up.as_mut() {
                up.asked_again = blob.ruling.digest().is_some();
            }
            // It has come whole before, and its digest is known; what comes again is checked by its
            // CRC. A full digest nobody here could check: it counts as it is said with what comes
            // again.
            if blob.open.digest != DigestKind::ChunkList {
                blob.ruling.doubt();
            }
            self.say(conn, id, Says::Verdict(Verdict::Resend(again)));
            self.make_hungry(id);
        }
    }

    /// Whether somebody is getting a blob at the moment.
    pub(super) fn is_flowing(&self, id: BlobId) -> bool {
        self.blobs.get(&id).is_some_and(Blob::is_flowing)
    }

    /// Whether somebody is bringing a blob at the moment, or may go on with it.
    pub(super) fn is_brought(&self, id: BlobId) -> bool {
        self.blobs.get(&id).is_some_and(|blob| blob.up.is_some())
    }

    /// A blob is complete, and its sender no longer keeps the source.
    pub(super) fn settle(&mut self, id: BlobId) {
        self.sender_left(id);
    }

    /// The sender of a blob left, for now or for good: its reservation is free for others.
    fn sender_left(&mut self, id: BlobId) -> Option<ConnId> {
        self.in_line.remove(id);
        let blob = self.blobs.get_mut(&id)?;
        let up = blob.up.take()?;
        self.senders.arriving -= up.arriving as usize;
        // Inputs keep the place that they have: who brings them comes back, or their job goes.
        if blob.together.is_none() {
            self.give_up_place(id);
        }
        self.held(up.conn).remove(&id);
        self.lines.unlink(up.conn, id);
        self.unpromise(up.conn, up.outstanding);
        self.look_at_held(up.conn);
        Some(up.conn)
    }

    // --- connections, time, the end

    /// A connection ended.
    pub(super) fn closed(&mut self, conn: ConnId) {
        let line = self.lines.closed(conn);
        line.coming.iter().for_each(|coming| self.keep_what_came(coming));
        *self.held(conn) = Queue::default();
        for id in line.blobs() {
            let Some(blob) = self.blobs.get_mut(&id) else { continue };
            blob.downs.retain(|down| down.conn != conn);
            blob.leftover.closed(conn);
            if blob.is_from(conn) {
                self.sender_left(id);
            }
            self.settle_memory(id);
            self.say_done(id);
        }
        self.sender_closed(conn);
        self.lagging.closed(conn);
        self.pump();
    }

    fn abort(&mut self, conn: ConnId, id: BlobId, reason: Reason, text: &str) {
        self.say(conn, id, Says::Abort(Abort { reason, text: text.into() }));
    }

    fn say(&mut self, conn: ConnId, blob: BlobId, says: Says) {
        self.out.push_back(Out::Say { conn, blob, says });
    }
}

/// Whether bytes with this CRC are the sent ones, as far as can be told without inflating them.
fn check_crcs(head: &ChunkHead, crc: u32) -> Result<(), ChunkError> {
    let ChunkHead { offset, crc_raw, codec, .. } = *head;
    head.check_sent(crc)?;
    if codec == Codec::None && crc_raw != crc {
        return Err(ChunkError::CrcRaw { offset, expected: crc_raw, found: crc });
    }
    Ok(())
}

#[cfg(test)]
#[path = "relay_tests.rs"]
mod tests;
