//! Sends one blob: a task that uses whichever connection there is, until its owner drops it.
//!
//! The owner feeds it the receiver's messages (Grant, Verdict, Abort) and the current connection.
//! The task writes chunks and Done itself and never waits for the owner. It keeps its news: the
//! owner finds the upload's id in the channel it supplied, and queries the [`Status`]. Bytes in
//! memory are sent from where they are, without a copy or another thread; files are read, and
//! chunks compressed, one batch ahead on a blocking thread.
//!
//! It never dials, never reads frames, and knows nothing about jobs. Workers send results with it,
//! clients send inputs.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use chunking::limits::CHUNK_BYTES_MAX;
use chunking::message::{
    Abort, Done, Features, Grant, Name, Open, OpenFlags, Purpose, Reason, Verdict,
};
use chunking::sample::Rates;
use chunking::{Codec, Digest, DigestKind, PlanError};
use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use uuid::Uuid;

use super::outgoing::{Inbound, Outgoing, Waiting, Work};
use super::source::{BATCH_CHUNKS, Preparer, Ready, Source, SourceError};
use crate::peer::{LinkWriter, OutFrame};

/// The shortest time between two reports of how far an upload is; what changes its state is told at
/// once.
const PROGRESS_EVERY: Duration = Duration::from_millis(100);

/// How long an upload that may send nothing keeps its file open and its buffers.
const REST_AFTER: Duration = Duration::from_secs(1);

/// Raw bytes a second that zstd takes in at its fastest level, as measured on CSV.
const ZSTD_BYTES_S: u64 = 260_000_000;

/// Bytes a second that a connection within one machine carries.
const LOOPBACK_BYTES_S: u64 = 2_500_000_000;

// Otherwise chunks might be worth compressing there, too.
const _: () = assert!(ZSTD_BYTES_S < LOOPBACK_BYTES_S);

/// How chunks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// With zstd where a sample says that it pays, and not on connections that are faster than the
    /// codec.
    #[default]
    Auto,
    /// With this codec where it makes chunks smaller, or with none.
    Fixed(Codec),
}

/// What a connection can do for uploads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wire {
    /// What both ends can do.
    pub features: Features,
    /// Whether it stays on this machine.
    pub loopback: bool,
}

impl Wire {
    /// The codec for a transfer on this connection, and the rates by which a sample is judged.
    fn codec(self, compression: Compression) -> (Codec, Rates) {
        let can = |codec: Codec| match codec {
            Codec::None => true,
            Codec::Gzip => self.features.has(Features::GZIP),
            Codec::Brotli => self.features.has(Features::BROTLI),
            Codec::Zstd => self.features.has(Features::ZSTD),
        };
        let (codec, rates) = match compression {
            // The codec is slower than this connection, whatever a sample says.
            Compression::Auto if self.loopback => (Codec::None, Rates::default()),
            Compression::Auto => {
                (Codec::Zstd, Rates { codec_bytes_s: Some(ZSTD_BYTES_S), wire_bytes_s: None })
            }
            Compression::Fixed(codec) => (codec, Rates::default()),
        };
        if can(codec) { (codec, rates) } else { (Codec::None, Rates::default()) }
    }
}

/// What is to be sent, and as what.
#[derive(Clone, Debug)]
pub struct Blob {
    /// The id of the transfer, as [`blob_id`](crate::model::blob_id) derives it.
    pub id: Uuid,
    /// What it is to its owner.
    pub purpose: Purpose,
    /// The job it belongs to.
    pub owner: Uuid,
    /// The attempt it belongs to; 0 for inputs.
    pub attempt: u32,
    /// The file's name; empty where the purpose says it all.
    pub name: Name,
    /// The digest that its Done carries.
    pub digest: DigestKind,
    /// How chunks are compressed.
    pub compression: Compression,
    /// Whether the source is there until the job ends, so that the receiver need not keep the blob.
    pub keeps_source: bool,
    pub source: Source,
}

/// How far an upload is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// Under way, or waiting for a connection.
    Sending,
    /// The receiver has it. It may still ask for chunks again, or the connection may break: then it
    /// is under way again.
    Arrived(
        /// What the whole blob hashes to.
        Digest,
    ),
    /// The receiver does not take it: its Verdict or Abort.
    Refused(Waiting),
    /// The source cannot be read as it was named. The receiver was told.
    SourceGone(
        /// What is wrong with it.
        SourceError,
    ),
}

/// What an upload has to tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    /// How far it is.
    pub state: State,
    /// Bytes that the receiver has or that were sent.
    pub done: u64,
    /// Bytes of the blob.
    pub total: u64,
    /// Why nothing may be sent at the moment, if the receiver said so.
    pub waiting: Option<Waiting>,
}

/// A blob on its way. It ends with the last handle: dropping it stops the upload behind the chunk
/// that is being written.
#[derive(Debug)]
pub struct Upload {
    id: Uuid,
    compression: Compression,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Notify,
    /// The owner was told and has not looked yet.
    told: AtomicBool,
    news: mpsc::UnboundedSender<Uuid>,
    id: Uuid,
}

#[derive(Debug)]
struct Inner {
    outgoing: Outgoing,
    link: Option<Link>,
    /// Counts connections, so that what was made ready for an old one is not sent on a new one.
    epoch: u64,
    state: State,
    /// Known once all chunks were digested.
    digest: Option<Digest>,
    /// The owner let go of it.
    dropped: bool,
}

#[derive(Clone, Debug)]
struct Link {
    writer: LinkWriter,
    codec: Codec,
    rates: Rates,
    /// Whether chunks may go in pieces.
    pieces: bool,
}

impl Upload {
    /// Starts the upload of a blob. Nothing is sent before [`connected`](Self::connected). The
    /// blob's id comes through `news` whenever the status has changed, once until it is looked at.
    pub fn start(blob: Blob, news: mpsc::UnboundedSender<Uuid>) -> Result<Upload, PlanError> {
        let Blob { id, purpose, owner, attempt, name, digest, compression, keeps_source, source } =
            blob;
        let open = Open {
            purpose,
            codec: Codec::None,
            digest,
            flags: if keeps_source { OpenFlags::KEEPS_SOURCE } else { OpenFlags::default() },
            chunk_bytes: CHUNK_BYTES_MAX,
            size: source.size(),
            owner,
            attempt,
            name,
        };
        let outgoing = Outgoing::new(open)?;
        let preparer = Preparer::new(source, *outgoing.plan(), digest);
        let state = State::Sending;
        let inner = Inner { outgoing, link: None, epoch: 0, state, digest: None, dropped: false };
        let shared = Arc::new(Shared {
            inner: Mutex::new(inner),
            changed: Notify::new(),
            told: AtomicBool::new(false),
            news,
            id,
        });
        let sender = Sender {
            shared: shared.clone(),
            preparer: Some(preparer),
            reading: None,
            ready: VecDeque::new(),
            epoch: 0,
            reported: Instant::now(),
        };
        tokio::spawn(sender.run());
        Ok(Upload { id, compression, shared })
    }

    /// The id of the blob and its transfer.
    pub const fn id(&self) -> Uuid {
        self.id
    }

    /// There is a new connection. The frame that is returned opens the transfer on it: the owner
    /// sends it, behind whatever has to go before it.
    #[must_use]
    pub fn connected(&self, writer: LinkWriter, wire: Wire) -> OutFrame {
        let mut inner = self.shared.lock();
        let (codec, rates) = wire.codec(self.compression);
        let pieces = wire.features.has(Features::PIECES);
        inner.link = Some(Link { writer, codec, rates, pieces });
        inner.epoch += 1;
        match &inner.state {
            State::Arrived(_) => inner.state = State::Sending,
            // It was not needed there; the next leader may not know the job.
            State::Refused(why) if why.reason == Reason::UNKNOWN => {
                inner.state = State::Sending;
                inner.outgoing.on_wanted_again();
            }
            State::Sending | State::Refused(_) | State::SourceGone(_) => {}
        }
        let frame = OutFrame::message(self.id, inner.outgoing.on_connected(codec));
        drop(inner);
        self.shared.changed.notify_one();
        frame
    }

    /// The connection ended.
    pub fn disconnected(&self) {
        let mut inner = self.shared.lock();
        inner.link = None;
        inner.epoch += 1;
        inner.outgoing.on_disconnected();
        drop(inner);
        self.shared.changed.notify_one();
    }

    /// The receiver has room.
    pub fn grant(&self, grant: &Grant) {
        let mut inner = self.shared.lock();
        let before = inner.outgoing.waiting().cloned();
        inner.outgoing.on_grant(grant);
        let news = before.as_ref() != inner.outgoing.waiting();
        drop(inner);
        self.shared.changed.notify_one();
        if news {
            self.shared.tell();
        }
    }

    /// The receiver has judged.
    pub fn verdict(&self, verdict: &Verdict) {
        let mut inner = self.shared.lock();
        let state = match (inner.outgoing.on_verdict(verdict), inner.digest) {
            (Inbound::Arrived, Some(digest)) => State::Arrived(digest),
            (Inbound::Again, _) => State::Sending,
            (Inbound::Over(why), _) => State::Refused(why),
            (Inbound::Nothing, _) | (Inbound::Arrived, None) => return,
        };
        inner.state = state;
        drop(inner);
        self.shared.changed.notify_one();
        self.shared.tell();
    }

    /// The receiver ends the transfer.
    pub fn abort(&self, abort: &Abort) {
        let told = Waiting { reason: abort.reason, text: abort.text.as_str().to_owned() };
        self.shared.end(State::Refused(told));
    }

    /// What it waits for, if it waits.
    pub fn waiting(&self) -> Option<Waiting> {
        self.shared.lock().outgoing.waiting().cloned()
    }

    /// What it has to tell.
    pub fn status(&self) -> Status {
        // Before the look, so that what changes behind it is told again.
        self.shared.told.store(false, Ordering::Release);
        let inner = self.shared.lock();
        Status {
            state: inner.state.clone(),
            done: inner.outgoing.settled_bytes(),
            total: inner.outgoing.plan().size(),
            waiting: inner.outgoing.waiting().cloned(),
        }
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        self.shared.lock().dropped = true;
        self.shared.changed.notify_one();
    }
}

impl Shared {
    /// No code that may panic runs while it is held, so a poisoned lock cannot be.
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self) {
        if !self.told.swap(true, Ordering::AcqRel) {
            // An owner that does not listen any more does not need to know.
            self.news.send(self.id).ok();
        }
    }

    /// Ends the upload; the first end counts.
    fn end(&self, state: State) {
        let mut inner = self.lock();
        if inner.is_over() {
            return;
        }
        inner.state = state;
        inner.outgoing.on_over();
        drop(inner);
        self.changed.notify_one();
        self.tell();
    }
}

impl Inner {
    fn is_over(&self) -> bool {
        match &self.state {
            State::Sending | State::Arrived(_) => self.dropped,
            // It may be wanted on the next connection.
            State::Refused(why) if why.reason == Reason::UNKNOWN => self.dropped,
            State::Refused(_) | State::SourceGone(_) => true,
        }
    }
}

/// What the task does next.
enum Step {
    Work(Vec<Work>),
    Done(LinkWriter, Digest),
    Wait,
    Stop,
}

/// A batch on its way from the blocking thread.
type Reading = JoinHandle<(Preparer, Result<Vec<Ready>, SourceError>)>;

/// The task that sends.
struct Sender {
    shared: Arc<Shared>,
    /// Away while a blocking thread reads with it.
    preparer: Option<Preparer>,
    reading: Option<Reading>,
    /// Chunks that are ready for the connection `epoch`.
    ready: VecDeque<Ready>,
    epoch: u64,
    reported: Instant,
}

impl Sender {
    async fn run(mut self) {
        loop {
            match self.step() {
                Step::Stop => return,
                Step::Done(writer, digest) => {
                    let sent =
                        writer.send(OutFrame::message(self.shared.id, &Done { digest })).await;
                    if sent.is_err() {
                        self.lose_link();
                    }
                    continue;
                }
                Step::Work(works) => {
                    self.begin(works);
                    if self.reading.is_none() && self.ready.is_empty() {
                        // A chunk for the digest alone: others have a turn before the next.
                        tokio::task::yield_now().await;
                        continue;
                    }
                }
                Step::Wait => {}
            }
            match self.ready.pop_front() {
                Some(ready) => self.send(ready).await,
                None => self.wait().await,
            }
        }
    }

    /// Decides, while the preparer is here: a batch that is being read comes first.
    fn step(&mut self) -> Step {
        let shared = self.shared.clone();
        let mut inner = shared.lock();
        if inner.is_over() {
            return Step::Stop;
        }
        let Some(preparer) = &mut self.preparer else { return Step::Wait };
        if inner.epoch != self.epoch {
            self.epoch = inner.epoch;
            self.ready.clear();
            if let Some(link) = &inner.link {
                preparer.set_codec(link.codec, link.rates);
            }
        }
        let Some(link) = &inner.link else { return Step::Wait };
        let writer = link.writer.clone();
        let batch = if preparer.is_in_place() { 1 } else { BATCH_CHUNKS };
        let works: Vec<Work> =
            std::iter::from_fn(|| inner.outgoing.next_work()).take(batch).collect();
        if !works.is_empty() {
            return Step::Work(works);
        }
        if self.ready.is_empty() && inner.outgoing.is_done_due() {
            // Noted before it is sent: the verdict may be here before the task runs again.
            inner.outgoing.on_done_sent();
            let digest = *inner.digest.get_or_insert_with(|| preparer.digest());
            return Step::Done(writer, digest);
        }
        Step::Wait
    }

    /// Makes chunks ready: at once where nothing blocks, else on a blocking thread while the ones
    /// before are sent.
    fn begin(&mut self, works: Vec<Work>) {
        let Some(mut preparer) = self.preparer.take() else { return };
        if preparer.is_in_place() {
            let prepared = prepare(&mut preparer, &works);
            self.take_prepared(preparer, prepared);
            return;
        }
        self.reading = Some(tokio::task::spawn_blocking(move || {
            let prepared = prepare(&mut preparer, &works);
            (preparer, prepared)
        }));
    }

    fn take_prepared(&mut self, preparer: Preparer, prepared: Result<Vec<Ready>, SourceError>) {
        self.preparer = Some(preparer);
        match prepared {
            Ok(ready) => self.ready.extend(ready),
            Err(error) => self.fail(error),
        }
    }

    async fn send(&mut self, ready: Ready) {
        let link = {
            let inner = &mut *self.shared.lock();
            // What was made ready for a connection that has ended is not for the next one, which
            // may have it.
            let link = inner.link.clone().filter(|_| inner.epoch == self.epoch);
            link.map(|link| (inner.outgoing.goes_on_from(&ready.head, ready.bytes.len()), link))
        };
        let Some((from, Link { writer, pieces, .. })) = link else { return };
        let Ready { head, bytes } = ready;
        let sent = if pieces {
            let is_wanted = || {
                let inner = self.shared.lock();
                inner.epoch == self.epoch && !inner.is_over()
            };
            writer.send_chunk_from(self.shared.id, &head, bytes, from, is_wanted).await
        } else {
            writer.send_chunk(self.shared.id, &head, bytes).await
        };
        if sent.is_err() {
            self.lose_link();
        } else if self.reported.elapsed() >= PROGRESS_EVERY {
            self.reported = Instant::now();
            self.shared.tell();
        }
    }

    /// Waits for a batch, or for something to change.
    async fn wait(&mut self) {
        if let Some(reading) = &mut self.reading {
            let ended = reading.await;
            self.reading = None;
            match ended {
                Ok((preparer, prepared)) => self.take_prepared(preparer, prepared),
                // The runtime is about to end, and this task with it.
                Err(_) => self.shared.lock().dropped = true,
            }
            return;
        }
        let changed = self.shared.changed.notified();
        if timeout(REST_AFTER, changed).await.is_err() {
            if let Some(preparer) = &mut self.preparer {
                preparer.rest();
            }
            self.shared.changed.notified().await;
        }
    }

    /// The connection takes nothing any more; its owner hears of it too and brings the next one.
    fn lose_link(&mut self) {
        let mut inner = self.shared.lock();
        if inner.epoch == self.epoch {
            inner.link = None;
            inner.outgoing.on_disconnected();
        }
        drop(inner);
        self.ready.clear();
    }

    fn fail(&mut self, error: SourceError) {
        let text = error.to_string();
        tracing::warn!(blob = %self.shared.id, %text, "the source of a blob is gone");
        let writer = self.shared.lock().link.as_ref().map(|link| link.writer.clone());
        self.shared.end(State::SourceGone(error));
        if let Some(writer) = writer {
            let abort = OutFrame::message(
                self.shared.id,
                &Abort { reason: Reason::SOURCE_GONE, text: text.into() },
            );
            tokio::spawn(async move { writer.send(abort).await });
        }
    }
}

fn prepare(preparer: &mut Preparer, works: &[Work]) -> Result<Vec<Ready>, SourceError> {
    works.iter().filter_map(|work| preparer.prepare(*work).transpose()).collect()
}
