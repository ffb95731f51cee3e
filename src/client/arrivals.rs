//! Downloads parts of results, over all connections of a client.
//!
//! Connections pass it download frames as they read them, so a chunk goes from the socket to its
//! sink without another task in between. The event loop says which jobs may bring parts, and takes
//! the parts when they are complete. It never blocks: answers are queued on the connection and
//! flushed separately.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use chunking::Kind;
use chunking::message::{Abort, Body as _, Open, Purpose, Reason};
use tokio::sync::{Notify, mpsc};
use uuid::Uuid;

use super::downloads::{Downloads, Missing, Named, Part, Rest, Temporary};
use super::remote::JOBS_UNFINISHED_MAX;
use crate::peer::{InFrame, LinkWriter, OutFrame};
use crate::transfer::throttle::{AT_CLIENT, Throttle};
use crate::transfer::{self, Conn, DownloadState, Opened, Report, Turn, refusal};
use crate::wire::{self, InChunk};

/// Parts that may come at a time: all that all jobs can have.
const PARTS_COMING_MAX: usize = 3 * JOBS_UNFINISHED_MAX;

/// One part on its way.
struct Arriving {
    file: Option<Temporary>,
    job: Uuid,
    purpose: Purpose,
    /// Of the connection that opened it last.
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
    arriving: transfer::Downloads<Arriving>,
    wanted: HashMap<Uuid, Wanted>,
    /// Connections that ended.
    downs: u64,
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
    /// None yet. Threads report to `reports`, which has to come back by [`report`](Self::report);
    /// jobs whose parts have news come through `news`.
    pub(super) fn new(
        reports: mpsc::UnboundedSender<Report>,
        news: mpsc::UnboundedSender<Uuid>,
    ) -> Self {
        let arriving = transfer::Downloads::new(PARTS_COMING_MAX, reports);
        let inner = Inner { arriving, wanted: HashMap::new(), downs: 0, news };
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
        }
    }

    /// The client ends.
    pub(super) fn clear(&self) {
        let mut inner = self.lock();
        inner.wanted.clear();
        inner.arriving.retain(|_, _| false);
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
        let turn = match frame.kind() {
            Some(Kind::Open) => Open::decode(&frame.payload).map(|open| {
                inner.open(conn, writer, id, open, &mut out);
                Turn::Nothing
            }),
            Some(Kind::Done | Kind::Piece | Kind::Void) => {
                inner.arriving.on_frame(conn, frame, &mut out)
            }
            Some(Kind::Abort) if inner.arriving.get(id).is_some() => {
                inner.arriving.on_frame(conn, frame, &mut out)
            }
            Some(_) | None => return false,
        };
        let turn = turn.unwrap_or_else(|error| {
            tracing::warn!(transfer = %id, %error, "skipped a message of a transfer that cannot be read");
            Turn::Nothing
        });
        let ended = inner.take_turn(id, turn);
        drop(inner);
        self.say(writer, out, ended);
        true
    }

    /// A chunk came.
    pub(super) fn chunk(&self, conn: Conn, writer: &LinkWriter, chunk: InChunk) {
        let mut out = Vec::new();
        let id = chunk.transfer;
        let mut inner = self.lock();
        let turn = inner.arriving.on_chunk(conn, chunk, &mut out);
        let ended = inner.take_turn(id, turn);
        drop(inner);
        self.say(writer, out, ended);
    }

    /// A connection ended in the middle of a chunk: the next one goes on with it.
    pub(super) fn keep(&self, part: wire::Part) {
        self.lock().arriving.keep(part);
    }

    /// A thread has done something for a download.
    pub(super) fn report(&self, report: Report) {
        let mut out = Vec::new();
        let id = report.transfer;
        let mut inner = self.lock();
        let turn = inner.arriving.on_report(report, &mut out);
        let Some(writer) = inner.arriving.get(id).map(|(arriving, _)| arriving.writer.clone())
        else {
            return;
        };
        let ended = inner.take_turn(id, turn);
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
        arriving
            .retain(|id, arriving| arriving.job != job || named.iter().any(|named| named.id == id));
        let ours = named.iter().filter(|named| downloads.wants(named.purpose));
        let is_settled = |named: &Named| match arriving.get(named.id) {
            Some((_, download)) => *download.state() != DownloadState::Receiving,
            None => gone.contains_key(&named.id),
        };
        if !ours.clone().all(is_settled) {
            return None;
        }
        let (mut whole, mut missing) = (Vec::new(), Vec::new());
        for Named { id, purpose, size } in ours.copied() {
            let rest = match arriving.remove(id) {
                Some((Arriving { file, .. }, download)) => match download.state() {
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
        let own = inner.arriving.iter().filter(|(_, arriving, _)| arriving.job == job);
        own.map(|(_, _, download)| download.progress())
            .fold((0, 0), |(done, total), (came, size)| {
                (done.saturating_add(came), total.saturating_add(size))
            })
    }
}

impl Inner {
    fn open(
        &mut self,
        conn: Conn,
        writer: &LinkWriter,
        id: Uuid,
        open: Open,
        out: &mut Vec<OutFrame>,
    ) {
        let (job, purpose) = (open.owner, open.purpose);
        let Some(wanted) = self.wanted.get_mut(&job) else {
            return out.push(refusal(id, Reason::CANCELLED, "not wanted"));
        };
        wanted.gone.remove(&id);
        // The first attempt at another leader has the ids of the first one at the leader before,
        // and need not give the same.
        if self.arriving.get(id).is_some_and(|(_, download)| download.is_of(&open)) {
            self.arriving.reopen(conn, id, open, out);
            if let Some(arriving) = self.arriving.owner_mut(id) {
                arriving.writer = writer.clone();
            }
            return;
        }
        let (sink, file) = match wanted.downloads.sink(id, &open) {
            Ok(Some(sink)) => sink,
            Ok(None) => return out.push(refusal(id, Reason::CANCELLED, "not wanted")),
            Err(error) => {
                let text = format!("cannot make a file for this part of the result: {error}");
                wanted.gone.insert(id, Rest::nothing(text.clone()));
                return out.push(refusal(id, Reason::IO, text));
            }
        };
        // A part has one blob at a time: what an earlier attempt had begun to send is dropped.
        self.arriving.retain(|_, old| (old.job, old.purpose) != (job, purpose));
        let owner = Arriving { file, job, purpose, writer: writer.clone() };
        match self.arriving.start(Opened { id, open, owner, on: conn, sink, not_needed: None }, out)
        {
            Ok(()) => {
                for rest in wanted.gone.values_mut() {
                    rest.file.take_if(|(of, _)| *of == purpose);
                }
            }
            Err(error) => {
                wanted.gone.insert(id, Rest::nothing(error.to_string()));
                out.push(refusal(id, error.reason(), error.to_string()));
            }
        }
    }

    /// A part has moved; whether it has ended.
    fn take_turn(&mut self, id: Uuid, turn: Turn) -> bool {
        match turn {
            Turn::Unknown => true,
            Turn::Nothing => self.tell(id, false),
            Turn::Whole | Turn::Failed(_) => self.tell(id, true),
            Turn::Ended(abort) => {
                self.on_abort(id, &abort);
                true
            }
        }
    }

    fn on_abort(&mut self, id: Uuid, abort: &Abort) {
        let Some((Arriving { file, job, purpose, .. }, download)) = self.arriving.remove(id) else {
            return;
        };
        if let Some(wanted) = self.wanted.get_mut(&job) {
            let why = format!(
                "the leader ended the transfer ({}): {}",
                abort.reason,
                abort.text.as_str()
            );
            let file = file.map(|file| (purpose, file));
            wanted.gone.insert(id, Rest { why, here: download.leading_bytes(), file });
        }
        self.news.send(job).ok();
    }

    /// Tells the event loop what is worth telling of a part; whether it has ended.
    fn tell(&mut self, id: Uuid, ended: bool) -> bool {
        let Some((arriving, _)) = self.arriving.get(id) else { return true };
        if let Some(wanted) = self.wanted.get_mut(&arriving.job)
            && wanted.throttle.passes(Instant::now(), ended)
        {
            // An event loop that is gone needs no news.
            self.news.send(arriving.job).ok();
        }
        ended
    }
}
