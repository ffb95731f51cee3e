//! The parts of results that are on their way to a client, over all of its connections.
//!
//! Connections hand it the frames of downloads as they read them, so that a chunk goes from the socket to its sink without
//! another task between; the driver says which jobs may bring parts and takes them when they are whole. It never sends a
//! frame and waits: answers are queued on the connection and flushed beside.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use chunking::Kind;
use chunking::message::{Abort, Body as _, Done, Open, Piece, Purpose, Reason, Verdict, Void};
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::dispatch::Conn;
use super::downloads::{Downloads, Missing, Named, Part, Rest, Temporary};
use crate::peer::{InFrame, LinkWriter, OutFrame};
use crate::transfer::throttle::{AT_CLIENT, Throttle};
use crate::transfer::{Download, DownloadState, Report, transfer_frame};
use crate::wire::{self, InChunk, Parts};

/// One part on its way.
struct Arriving {
    download: Download,
    file: Option<Temporary>,
    job: Uuid,
    purpose: Purpose,
    /// The connection that opened it last; what others say of it does not count.
    conn: Conn,
    writer: LinkWriter,
}

/// A job that may bring parts.
struct Wanted {
    downloads: Downloads,
    /// Parts that will not come whole.
    gone: HashMap<Uuid, Rest>,
    throttle: Throttle<Instant>,
}

struct Inner {
    arriving: HashMap<Uuid, Arriving>,
    wanted: HashMap<Uuid, Wanted>,
    /// First bytes of chunks that are not whole.
    parts: Parts,
    /// Connections that ended.
    downs: u64,
    reports: mpsc::UnboundedSender<Report>,
    news: mpsc::UnboundedSender<Uuid>,
}

/// The parts of results that are on their way to one client. Clones are the same.
#[derive(Clone)]
pub(super) struct Arrivals {
    inner: Arc<Mutex<Inner>>,
    /// Rings whenever a part has come, or will not come, or a connection ended.
    changed: Arc<Notify>,
}

impl fmt::Debug for Arrivals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arrivals").finish_non_exhaustive()
    }
}

impl Arrivals {
    /// None yet. Threads report to `reports`, which has to come back by [`report`](Self::report); jobs whose parts
    /// have news come through `news`.
    pub(super) fn new(reports: mpsc::UnboundedSender<Report>, news: mpsc::UnboundedSender<Uuid>) -> Self {
        let (arriving, wanted, parts) = (HashMap::new(), HashMap::new(), Parts::default());
        let inner = Inner { arriving, wanted, parts, downs: 0, reports, news };
        Arrivals { inner: Arc::new(Mutex::new(inner)), changed: Arc::new(Notify::new()) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parts of this job go there from now on.
    pub(super) fn want(&self, job: Uuid, downloads: &Downloads) {
        if !matches!(downloads, Downloads::None) {
            let wanted = Wanted {
                downloads: downloads.clone(),
                gone: HashMap::new(),
                throttle: Throttle::new(AT_CLIENT),
            };
            self.lock().wanted.insert(job, wanted);
        }
    }

    /// The job has ended: what is still coming for it is dropped.
    pub(super) fn forget(&self, job: Uuid) {
        let mut inner = self.lock();
        if inner.wanted.remove(&job).is_some() {
            inner.arriving.retain(|_, arriving| arriving.job != job);
            inner.forget_parts();
        }
    }

    /// The client ends.
    pub(super) fn clear(&self) {
        let mut inner = self.lock();
        inner.wanted.clear();
        inner.arriving.clear();
        inner.forget_parts();
        drop(inner);
        self.changed.notify_waiters();
    }

    /// A connection ended.
    pub(super) fn disconnected(&self) {
        self.lock().downs += 1;
        self.changed.notify_waiters();
    }

    /// Connections that ended so far.
    pub(super) fn downs(&self) -> u64 {
        self.lock().downs
    }

    /// What rings when something has come.
    pub(super) fn bell(&self) -> Arc<Notify> {
        self.changed.clone()
    }

    /// A frame came; whether it was of a download.
    pub(super) fn frame(&self, conn: Conn, writer: &LinkWriter, frame: &InFrame) -> bool {
        let id = frame.msg_id;
        let mut out = Vec::new();
        let mut inner = self.lock();
        let read = match frame.kind() {
            Some(Kind::Open) => {
                Open::decode(&frame.payload).map(|open| inner.open(conn, writer, id, open, &mut out))
            }
            Some(Kind::Done) => Done::decode(&frame.payload).map(|done| {
                inner.with(conn, id, |arriving| arriving.download.on_done(&done, &mut out));
            }),
            Some(Kind::Piece) => Piece::decode(&frame.payload).map(|piece| {
                let Inner { arriving, parts, .. } = &mut *inner;
                if let Some(arriving) = arriving.get_mut(&id).filter(|arriving| arriving.conn == conn)
                    && let Some(chunk) = parts.piece(id, &piece)
                {
                    arriving.download.on_chunk(chunk.head, chunk.crc(), chunk.bytes, &mut out);
                }
            }),
            Some(Kind::Void) => Void::decode(&frame.payload).map(|void| {
                inner.with(conn, id, |arriving| arriving.download.on_void(&void, &mut out));
            }),
            Some(Kind::Abort) if inner.arriving.contains_key(&id) => {
                Abort::decode(&frame.payload).map(|abort| inner.abort(conn, id, &abort))
            }
            Some(_) | None => return false,
        };
        if let Err(error) = read {
            tracing::warn!(transfer = %id, %error, "skipped a message of a transfer that cannot be read");
        }
        let ended = inner.tell(id);
        drop(inner);
        self.say(writer, out, ended);
        true
    }

    /// A chunk came.
    pub(super) fn chunk(&self, conn: Conn, writer: &LinkWriter, chunk: InChunk) {
        let mut out = Vec::new();
        let id = chunk.transfer;
        let mut inner = self.lock();
        inner.with(conn, id, |arriving| {
            arriving.download.on_chunk(chunk.head, chunk.crc(), chunk.bytes, &mut out);
        });
        let ended = inner.tell(id);
        drop(inner);
        self.say(writer, out, ended);
    }

    /// A connection ended in the middle of a chunk: the next one goes on with it.
    pub(super) fn keep(&self, part: wire::Part) {
        let mut inner = self.lock();
        if inner.arriving.contains_key(&part.transfer) {
            inner.parts.keep(part);
        }
    }

    /// A thread has done something for a download.
    pub(super) fn report(&self, report: Report) {
        let mut out = Vec::new();
        let id = report.transfer;
        let mut inner = self.lock();
        let Some(arriving) = inner.arriving.get_mut(&id) else { return };
        arriving.download.on_report(report, &mut out);
        let writer = arriving.writer.clone();
        let ended = inner.tell(id);
        drop(inner);
        self.say(&writer, out, ended);
    }

    fn say(&self, writer: &LinkWriter, out: Vec<OutFrame>, ended: bool) {
        if ended {
            self.changed.notify_waiters();
        }
        if out.is_empty() {
            return;
        }
        for frame in out {
            // A connection that is broken is heard of by its reader.
            writer.queue(frame).ok();
        }
        let writer = writer.clone();
        tokio::spawn(async move { writer.flush().await });
    }

    /// The parts of an ended job; `None` while some that are wanted are still to come.
    pub(super) fn settle(&self, job: Uuid, named: &[Named]) -> Option<(Vec<Part>, Vec<Missing>)> {
        let mut inner = self.lock();
        let Inner { arriving, wanted, .. } = &mut *inner;
        let Some(Wanted { downloads, gone, .. }) = wanted.get_mut(&job) else {
            return Some((Vec::new(), Vec::new()));
        };
        // What an earlier attempt had begun to send is not of this result.
        arriving.retain(|id, arriving| arriving.job != job || named.iter().any(|named| named.id == *id));
        let ours = named.iter().filter(|named| downloads.wants(named.purpose));
        let is_settled = |named: &Named| match arriving.get(&named.id) {
            Some(arriving) => *arriving.download.state() != DownloadState::Receiving,
            None => gone.contains_key(&named.id),
        };
        if !ours.clone().all(is_settled) {
            return None;
        }
        let (mut whole, mut missing) = (Vec::new(), Vec::new());
        for Named { id, purpose, size } in ours.copied() {
            let rest = match arriving.remove(&id) {
                Some(Arriving { download, file, .. }) => match download.state() {
                    DownloadState::Failed { text, .. } => {
                        let file = file.map(|file| (purpose, file));
                        Rest { why: text.clone(), here: download.leading_bytes(), file }
                    }
                    DownloadState::Whole | DownloadState::Receiving => {
                        whole.push(Part { purpose, size, file });
                        continue;
                    }
                },
                None => gone.remove(&id).unwrap_or_default(),
            };
            let Rest { why, here, file } = rest;
            let here = if file.is_some() { here } else { 0 };
            missing.push(Missing { purpose, size, here, why, file: file.map(|(_, file)| file) });
        }
        Some((whole, missing))
    }

    /// How far the parts of a job are: bytes that came, bytes in all of those that were opened.
    pub(super) fn progress(&self, job: Uuid) -> (u64, u64) {
        let inner = self.lock();
        let own = inner.arriving.values().filter(|arriving| arriving.job == job);
        own.map(|arriving| arriving.download.progress()).fold((0, 0), |(done, total), (came, size)| {
            (done.saturating_add(came), total.saturating_add(size))
        })
    }
}

impl Inner {
    /// What is here of transfers that are over.
    fn forget_parts(&mut self) {
        let Inner { arriving, parts, .. } = self;
        parts.retain(|transfer| arriving.contains_key(&transfer));
    }

    fn with(&mut self, conn: Conn, id: Uuid, then: impl FnOnce(&mut Arriving)) {
        if let Some(arriving) = self.arriving.get_mut(&id).filter(|arriving| arriving.conn == conn) {
            then(arriving);
        }
    }

    fn open(&mut self, conn: Conn, writer: &LinkWriter, id: Uuid, open: Open, out: &mut Vec<OutFrame>) {
        let (job, purpose) = (open.owner, open.purpose);
        let refuse =
            |reason: Reason, text: String| transfer_frame(id, &Verdict::Failed { reason, text: text.into() });
        let Some(wanted) = self.wanted.get_mut(&job) else {
            return out.push(refuse(Reason::CANCELLED, "not wanted".to_owned()));
        };
        wanted.gone.remove(&id);
        // The first attempt at another leader has the ids of the first one at the leader before, and need not give the same.
        let is_same = |arriving: &&mut Arriving| arriving.download.is_of(&open);
        if let Some(arriving) = self.arriving.get_mut(&id).filter(is_same) {
            (arriving.conn, arriving.writer) = (conn, writer.clone());
            arriving.download.holds(&self.parts);
            return arriving.download.reopen(open, out);
        }
        let (sink, file) = match wanted.downloads.sink(id, &open) {
            Ok(Some(sink)) => sink,
            Ok(None) => return out.push(refuse(Reason::CANCELLED, "not wanted".to_owned())),
            Err(error) => {
                let text = format!("cannot make a file for a part of the result: {error}");
                wanted.gone.insert(id, Rest::nothing(text.clone()));
                return out.push(refuse(Reason::IO, text));
            }
        };
        match Download::start(id, open, sink, self.reports.clone()) {
            Ok(mut download) => {
                download.grant(out);
                // A part has one blob at a time: what an earlier attempt had begun to send is dropped.
                self.arriving.retain(|_, old| (old.job, old.purpose) != (job, purpose));
                self.parts.retain(|transfer| self.arriving.contains_key(&transfer));
                for rest in wanted.gone.values_mut() {
                    rest.file.take_if(|(of, _)| *of == purpose);
                }
                let writer = writer.clone();
                self.arriving.insert(id, Arriving { download, file, job, purpose, conn, writer });
            }
            Err(error) => {
                wanted.gone.insert(id, Rest::nothing(error.to_string()));
                out.push(refuse(Reason::TOO_LARGE, error.to_string()));
            }
        }
    }

    fn abort(&mut self, conn: Conn, id: Uuid, abort: &Abort) {
        if self.arriving.get(&id).is_none_or(|arriving| arriving.conn != conn) {
            return;
        }
        let Some(Arriving { download, file, job, purpose, .. }) = self.arriving.remove(&id) else { return };
        self.parts.forget(id);
        if let Some(wanted) = self.wanted.get_mut(&job) {
            let why = format!("the leader ended the transfer ({}): {}", abort.reason, abort.text.as_str());
            let file = file.map(|file| (purpose, file));
            wanted.gone.insert(id, Rest { why, here: download.leading_bytes(), file });
        }
        self.news.send(job).ok();
    }

    /// Tells the driver what is worth telling of a part; whether it has ended.
    fn tell(&mut self, id: Uuid) -> bool {
        let Some(arriving) = self.arriving.get(&id) else { return true };
        let ended = *arriving.download.state() != DownloadState::Receiving;
        if ended {
            self.parts.forget(id);
        }
        if let Some(wanted) = self.wanted.get_mut(&arriving.job)
            && wanted.throttle.passes(Instant::now(), ended)
        {
            // A driver that is gone needs no news.
            self.news.send(arriving.job).ok();
        }
        ended
    }
}
