//! The task that puts a set: reads its files, asks the leader what it lacks, sends that as packs, and hears how workers fare.
//!
//! It keeps one connection of its own (CA07), and makes it again when it breaks: the same request under the same ids is idempotent,
//! and the leader's answer to it is how it goes on. Bytes are read from the files when they are sent. Nothing is decided here
//! about which pieces make which file; `scan` and `packs` do.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use chunking::dataset::pack::Layout;
use chunking::message::{
    Abort, Body, Features, Grant, Lack, Lacking, Name, Pack, PieceList, Purpose, Put, PutFlags, Reason,
    Refused, Spread as SpreadMessage, SpreadStage, Verdict,
};
use chunking::{DigestKind, Kind};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, interval, sleep_until, timeout};
use uuid::Uuid;

use super::packs::plan;
use super::scan::{self, Scanned, Watch};
use super::tree::ScanError;
use super::{DatasetSpec, PutError, PutEvent, PutReport, Spread, WorkerAck, stage};
use crate::client::arrivals::Arrivals;
use crate::client::connection::{self, Mode, News, Outgoing, Reporter};
use crate::client::error::{ClientError, Refusal};
use crate::client::{LATE_WELCOME_WAIT, Options, remote};
use crate::model::{CachePutResult, CacheStatus, JsonModel};
use crate::peer::{InFrame, LinkWriter, OutFrame};
use crate::transfer::throttle::{AT_CLIENT, Throttle};
use crate::transfer::{Blob, PieceSource, Source, State, Upload, Waiting, Wire};
use crate::units::Span;

/// Packs that are sent at a time: enough that the leader always has one to check and one that comes.
pub const PACKS_UNDER_WAY_MAX: usize = 4;

/// Frames and news that wait for each other.
const QUEUE_MAX: usize = 256;

/// How much longer than for the leader itself its answer to the hello is waited for, so that it is the former that is given up, and
/// said. A stock leader never answers, and takes no sets.
const WELCOME_WAIT_MORE: Duration = Duration::from_secs(1);

/// How long behind the deadline the leader's word of who has the set is waited for: its deadline began later.
const OVER_WAIT: Duration = Duration::from_secs(2);

/// How long to wait before a leader is asked again that was too busy, or does not know what it was sent.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long the connection gets to close.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// Puts a dataset: [the module](super) has an example. What happens on the way is told to `events`. Dropping the future ends
/// it; what the leader has by then it need not be sent again.
pub async fn put(
    leader: &str,
    spec: DatasetSpec,
    options: &Options,
    mut events: impl FnMut(PutEvent),
) -> Result<PutReport, PutError> {
    let started = Instant::now();
    remote::check(&[leader.to_owned()], options)?;
    let deadline = spec.timeout.map(|timeout| started + timeout);
    let out_of_time = |stage: &str| PutError::TimedOut {
        cache_id: spec.cache_id().to_owned(),
        timeout: spec.timeout.unwrap_or_default(),
        stage: stage.to_owned(),
        report: None,
    };
    let scanned = tokio::select! {
        scanned = read(spec.paths.clone(), &mut events) => scanned?,
        () = until(deadline) => return Err(out_of_time("its files were still being read")),
    };
    let scan_took = started.elapsed();
    let link = LinkTask::start(leader, options);
    let mut putting = Putting::new(spec, scanned, options, leader, events, started, deadline);
    putting.scan_took = scan_took;
    let ended = putting.run(link.news, link.uploads, link.upload_news).await;
    drop(putting);
    drop(link.stop);
    // What was said is on its way; a connection that does not close in time is left to itself.
    timeout(CLOSE_WAIT, link.task).await.ok();
    ended
}

/// Reads the files on a thread for that, and says how far it is.
async fn read(paths: Vec<PathBuf>, events: &mut impl FnMut(PutEvent)) -> Result<Scanned, PutError> {
    /// Ends the thread when nobody waits for it.
    struct Stop(Arc<Watch>);
    impl Drop for Stop {
        fn drop(&mut self) {
            self.0.stop.store(true, Ordering::Relaxed);
        }
    }
    let watch = Arc::new(Watch::default());
    let stop = Stop(watch.clone());
    let mut reading = tokio::task::spawn_blocking(move || scan::scan(&paths, &watch));
    let mut tick = interval(AT_CLIENT);
    let scanned = loop {
        tokio::select! {
            scanned = &mut reading => break scanned.unwrap_or(Err(ScanError::Stopped))?,
            _ = tick.tick() => {
                let (done, total) = (&stop.0.done, &stop.0.total);
                events(PutEvent::Scanning { done: done.load(Ordering::Relaxed), total: total.load(Ordering::Relaxed) });
            }
        }
    };
    let (manifest, digest) = (&scanned.manifest, scanned.digest);
    let files = u32::try_from(manifest.files().len()).unwrap_or(u32::MAX);
    events(PutEvent::Scanned { files, bytes: manifest.bytes(), digest });
    Ok(scanned)
}

async fn until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => sleep_until(deadline).await,
        None => std::future::pending().await,
    }
}

/// The connection, kept up beside.
struct LinkTask {
    news: mpsc::Receiver<(usize, News)>,
    uploads: mpsc::UnboundedReceiver<Uuid>,
    upload_news: mpsc::UnboundedSender<Uuid>,
    stop: watch::Sender<bool>,
    task: tokio::task::JoinHandle<()>,
}

impl LinkTask {
    fn start(leader: &str, options: &Options) -> Self {
        let (news_sender, news) = mpsc::channel(QUEUE_MAX);
        let (upload_news, uploads) = mpsc::unbounded_channel();
        let (stop, stopped) = watch::channel(false);
        // Nothing comes by transfer: there is nobody to report to.
        let arrivals = Arrivals::new(mpsc::unbounded_channel().0, mpsc::unbounded_channel().0);
        let reporter = Reporter { conn: 0, news: news_sender, arrivals };
        let mut options = options.clone();
        let reach = options.connect_wait.unwrap_or(LATE_WELCOME_WAIT);
        options.welcome_wait = options.welcome_wait.max(reach.saturating_add(WELCOME_WAIT_MORE));
        let kept = connection::keep(leader.to_owned(), 1, options, reporter, QUEUE_MAX, stopped);
        LinkTask { news, uploads, upload_news, stop, task: tokio::spawn(kept) }
    }
}

/// The connection as it is now.
struct Up {
    wire: Wire,
    outbox: mpsc::Sender<Outgoing>,
    writer: LinkWriter,
    packs_max: usize,
}

/// A pack on its way.
struct Parcel {
    id: Uuid,
    /// Places in the manifest.
    places: Vec<u32>,
    list: PieceList,
    upload: Upload,
    bytes: u64,
    /// Opened on the present connection.
    opened: bool,
}

struct Putting<F> {
    spec: DatasetSpec,
    scanned: Scanned,
    events: F,
    leader: String,
    connect_wait: Option<Duration>,
    started: Instant,
    scan_took: Duration,
    deadline: Option<Instant>,
    request: Uuid,
    generation: Uuid,
    up: Option<Up>,
    asked: bool,
    ask_again: Option<Instant>,
    manifest: Option<Upload>,
    parcels: Vec<Parcel>,
    planned: VecDeque<Vec<u32>>,
    /// What the leader said it lacks, last.
    lacking: Option<u64>,
    /// Bytes of packs that have arrived.
    arrived: u64,
    /// What all of them come to, as far as that is known.
    total: u64,
    throttle: Throttle<Instant>,
    told_done: u64,
    waiting: Option<Waiting>,
    stored: Option<Spread>,
    over: bool,
    acks: BTreeMap<String, WorkerAck>,
    /// Where uploads say that they have news.
    upload_news: Option<mpsc::UnboundedSender<Uuid>>,
}

impl<F: FnMut(PutEvent)> Putting<F> {
    fn new(
        spec: DatasetSpec,
        scanned: Scanned,
        options: &Options,
        leader: &str,
        events: F,
        started: Instant,
        deadline: Option<Instant>,
    ) -> Self {
        Putting {
            spec,
            scanned,
            events,
            leader: leader.to_owned(),
            connect_wait: options.connect_wait,
            started,
            scan_took: Duration::ZERO,
            deadline,
            request: Uuid::new_v4(),
            generation: Uuid::new_v4(),
            up: None,
            asked: false,
            ask_again: None,
            manifest: None,
            parcels: Vec::new(),
            planned: VecDeque::new(),
            lacking: None,
            arrived: 0,
            total: 0,
            throttle: Throttle::new(AT_CLIENT),
            told_done: 0,
            waiting: None,
            stored: None,
            over: false,
            acks: BTreeMap::new(),
            upload_news: None,
        }
    }

    async fn run(
        &mut self,
        mut news: mpsc::Receiver<(usize, News)>,
        mut uploads: mpsc::UnboundedReceiver<Uuid>,
        upload_news: mpsc::UnboundedSender<Uuid>,
    ) -> Result<PutReport, PutError> {
        self.upload_news = Some(upload_news);
        let reach_until = self.connect_wait.map(|wait| (Instant::now() + wait, wait));
        let mut unreached = Unreached::default();
        loop {
            let reach = reach_until.filter(|_| !self.asked);
            let limit = if self.stored.is_some() {
                self.deadline.map(|deadline| deadline + OVER_WAIT)
            } else {
                self.deadline
            };
            tokio::select! {
                came = news.recv() => match came {
                    Some((_, news)) => self.on_news(news, &mut unreached)?,
                    None => return Err(ClientError::Closed.into()),
                },
                Some(blob) = uploads.recv() => self.on_upload(blob)?,
                () = until(self.ask_again) => {
                    self.ask_again = None;
                    self.ask()?;
                }
                () = until(reach.map(|(until, _)| until)) => {
                    let wait = reach.map_or(Duration::ZERO, |(_, wait)| wait);
                    return Err(unreached.error(&self.leader, wait).into());
                }
                () = until(limit) => return Err(self.timed_out()),
            }
            if let Some(report) = self.ended()? {
                return Ok(report);
            }
        }
    }

    fn on_news(&mut self, news: News, unreached: &mut Unreached) -> Result<(), PutError> {
        match news {
            News::Greeting { .. } => unreached.greeted = true,
            News::Unanswered { text } => {
                self.tell_waiting(Waiting { reason: Reason::NONE, text });
            }
            News::Up { mode, address, outbox, writer } => {
                let needed = Features::DATASETS.with(Features::TRANSFERS);
                if !mode.has(needed) {
                    let feature = "datasets";
                    return Err(ClientError::NotSupported { leader: address, feature }.into());
                }
                let wire = Wire { features: mode.features(), loopback: writer.is_loopback() };
                self.up = Some(Up { wire, outbox, writer, packs_max: packs_max(&mode) });
                self.leader = address;
                self.ask()?;
            }
            News::Down { why, retry_in, .. } => {
                unreached.greeted = false;
                unreached.why.clone_from(&why);
                self.up = None;
                self.ask_again = None;
                self.planned.clear();
                if let Some(manifest) = &self.manifest {
                    manifest.disconnected();
                }
                for parcel in &mut self.parcels {
                    parcel.opened = false;
                    parcel.upload.disconnected();
                }
                if self.asked {
                    (self.events)(PutEvent::Reconnecting { leader: self.leader.clone(), why, retry_in });
                }
            }
            News::Frame(frame) => self.on_frame(&frame)?,
        }
        Ok(())
    }

    /// Says what is to be put; the leader answers with what it lacks.
    fn ask(&mut self) -> Result<(), PutError> {
        let name = |text: &str| {
            Name::try_from(text.to_owned()).map_err(|error| ClientError::BadInput {
                name: text.to_owned(),
                why: format!("as a CacheId or a target: {error}"),
            })
        };
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let millis =
            |left: Duration| u64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
        let message = Put {
            digest: self.scanned.digest,
            manifest: self.generation,
            bytes: self.scanned.manifest.bytes(),
            files: u32::try_from(self.scanned.manifest.files().len()).unwrap_or(u32::MAX),
            flags: if self.spec.replace { PutFlags::REPLACE } else { PutFlags::default() },
            deadline_ms: self.deadline.map_or(0, |deadline| millis(left(deadline))),
            cache_id: name(self.spec.cache.as_str())?,
            target: name(&self.spec.target)?,
        };
        let frame = OutFrame { msg_id: self.request, ..frame_of(&message) };
        self.send(frame, Vec::new());
        let again = std::mem::replace(&mut self.asked, true);
        (self.events)(PutEvent::Asked { leader: self.leader.clone(), again });
        Ok(())
    }

    /// A connection that takes no more is about to say so itself, and all is said again on the next.
    fn send(&self, frame: OutFrame, opens: Vec<OutFrame>) {
        if let Some(up) = &self.up {
            up.outbox.try_send(Outgoing { frame, opens, job: None }).ok();
        }
    }

    fn on_frame(&mut self, frame: &InFrame) -> Result<(), PutError> {
        let own = frame.corr_id == self.request || frame.msg_id == self.request;
        match frame.kind() {
            Some(Kind::Lack) if own => {
                let lack = self.decoded::<Lack>(frame)?;
                self.on_lack(&lack)
            }
            Some(Kind::Spread) if own => {
                let spread = self.decoded::<SpreadMessage>(frame)?;
                self.on_spread(spread);
                Ok(())
            }
            Some(Kind::CacheAck) if own => self.on_ack(frame),
            Some(Kind::Refused) if own => {
                let refusal = Refusal::from(self.decoded::<Refused>(frame)?);
                if [Reason::BUSY, Reason::DRAINING].contains(&refusal.reason) {
                    self.tell_waiting(Waiting { reason: refusal.reason, text: refusal.text });
                    self.ask_again = Some(Instant::now() + ASK_AGAIN_AFTER);
                    return Ok(());
                }
                Err(PutError::Refused { cache_id: self.spec.cache_id().to_owned(), refusal })
            }
            Some(Kind::Refused) => {
                let refused = self.decoded::<Refused>(frame)?;
                if let Some(upload) = self.upload(frame.msg_id) {
                    upload.abort(&Abort { reason: refused.reason, text: refused.text });
                }
                Ok(())
            }
            Some(Kind::Grant) => {
                let grant = self.decoded::<Grant>(frame)?;
                if let Some(upload) = self.upload(frame.msg_id) {
                    upload.grant(&grant);
                }
                Ok(())
            }
            Some(Kind::Verdict) => {
                let verdict = self.decoded::<Verdict>(frame)?;
                if let Some(upload) = self.upload(frame.msg_id) {
                    upload.verdict(&verdict);
                }
                Ok(())
            }
            Some(Kind::Abort) => {
                let abort = self.decoded::<Abort>(frame)?;
                if let Some(upload) = self.upload(frame.msg_id) {
                    upload.abort(&abort);
                }
                Ok(())
            }
            // What else a leader may say is not about this put.
            Some(_) | None => Ok(()),
        }
    }

    fn decoded<M: Body>(&self, frame: &InFrame) -> Result<M, PutError> {
        M::decode(&frame.payload).map_err(|error| self.bad_answer(format!("a {} of it: {error}", M::KIND)))
    }

    fn bad_answer(&self, why: String) -> PutError {
        ClientError::BadAnswer { verb: Kind::Put.to_string(), why }.into()
    }

    fn upload(&self, blob: Uuid) -> Option<&Upload> {
        let manifest = self.manifest.as_ref().filter(|manifest| manifest.id() == blob);
        manifest.or_else(|| self.parcels.iter().find(|parcel| parcel.id == blob).map(|parcel| &parcel.upload))
    }

    fn on_lack(&mut self, lack: &Lack) -> Result<(), PutError> {
        let first = self.lacking.is_none();
        match lack.what {
            Lacking::Nothing => {
                self.lacking = Some(0);
                self.manifest = None;
                self.planned.clear();
                // Whatever way it came.
                self.parcels.clear();
                self.arrived = self.total;
                self.tell_progress();
                if first {
                    (self.events)(PutEvent::Lacking { bytes: 0 });
                }
                return Ok(());
            }
            Lacking::Manifest => {
                self.send_manifest()?;
                return Ok(());
            }
            Lacking::Pieces => self.manifest = None,
        }
        self.settle();
        self.lacking = Some(lack.bytes);
        self.total = self.arrived.saturating_add(lack.bytes);
        if first {
            (self.events)(PutEvent::Lacking { bytes: lack.bytes });
        }
        let wanted: HashSet<u32> = lack.pieces.indices().collect();
        // From before a break: what the leader has got by another way is not sent again.
        self.parcels
            .retain(|parcel| parcel.opened || parcel.places.iter().any(|place| wanted.contains(place)));
        let coming: HashSet<u32> =
            self.parcels.iter().flat_map(|parcel| parcel.places.iter().copied()).collect();
        let pieces = self.scanned.manifest.pieces();
        let lacking = lack.pieces.indices().filter(|place| !coming.contains(place)).filter_map(|place| {
            let piece = pieces.get(usize::try_from(place).ok()?)?;
            Some((place, *piece))
        });
        self.planned = plan(lacking, lack.bytes).into();
        if self.planned.is_empty() && self.parcels.is_empty() {
            let why = format!("it lacks {} pieces that the set does not have", lack.pieces.chunk_count());
            return Err(self.bad_answer(why));
        }
        self.pump()
    }

    fn send_manifest(&mut self) -> Result<(), PutError> {
        let Some(up) = &self.up else { return Ok(()) };
        let (writer, wire) = (up.writer.clone(), up.wire);
        if self.manifest.is_none() {
            let bytes = Bytes::from(self.scanned.manifest.encode());
            self.manifest = Some(self.start(self.generation, Source::Memory(bytes))?);
        }
        if let Some(manifest) = &self.manifest {
            let open = manifest.connected(writer, wire);
            self.send(open, Vec::new());
        }
        Ok(())
    }

    fn start(&self, id: Uuid, source: Source) -> Result<Upload, PutError> {
        let blob = Blob {
            id,
            purpose: Purpose::Dataset,
            owner: self.request,
            attempt: 0,
            name: Name::default(),
            digest: DigestKind::ChunkList,
            compression: self.spec.compression,
            source,
        };
        let news = self.upload_news.clone().ok_or(ClientError::Closed)?;
        let bad = |why: String| ClientError::BadInput { name: self.spec.cache_id().to_owned(), why };
        Ok(Upload::start(blob, news).map_err(|error| bad(error.to_string()))?)
    }

    /// Opens packs, as many as may be under way: those from before a break first.
    fn pump(&mut self) -> Result<(), PutError> {
        let Some(up) = &self.up else { return Ok(()) };
        let (writer, wire, packs_max) = (up.writer.clone(), up.wire, up.packs_max);
        let mut under_way = self.parcels.iter().filter(|parcel| parcel.opened).count();
        while under_way < packs_max {
            let kept = self.parcels.iter().position(|parcel| !parcel.opened);
            let place = match (kept, self.planned.pop_front()) {
                (Some(place), planned) => {
                    if let Some(planned) = planned {
                        self.planned.push_front(planned);
                    }
                    place
                }
                (None, Some(places)) => {
                    let parcel = self.parcel(places)?;
                    self.parcels.push(parcel);
                    self.parcels.len() - 1
                }
                (None, None) => return Ok(()),
            };
            let Some(parcel) = self.parcels.get_mut(place) else { return Ok(()) };
            parcel.opened = true;
            under_way += 1;
            let (msg_id, corr_id) = (parcel.id, self.request);
            let list = OutFrame { msg_id, corr_id, ..frame_of(&Pack { pieces: parcel.list.clone() }) };
            let open = parcel.upload.connected(writer.clone(), wire);
            self.send(list, vec![open]);
        }
        Ok(())
    }

    fn parcel(&self, places: Vec<u32>) -> Result<Parcel, PutError> {
        let found = places.iter().filter_map(|place| self.scanned.piece(*place));
        let (pieces, at): (Vec<_>, Vec<_>) = found.unzip();
        let bad = |why: String| ClientError::BadInput { name: self.spec.cache_id().to_owned(), why };
        let layout = Layout::new(pieces).map_err(|error| bad(error.to_string()))?;
        let id = Uuid::new_v4();
        let source = Source::Pieces(PieceSource::new(at, layout.tail().into()));
        let upload = self.start(id, source)?;
        let list = PieceList::new(layout.pieces().to_vec());
        Ok(Parcel { id, places, list, upload, bytes: layout.data_bytes(), opened: false })
    }

    fn on_upload(&mut self, blob: Uuid) -> Result<(), PutError> {
        let Some(status) = self.upload(blob).map(Upload::status) else { return Ok(()) };
        let what = if blob == self.generation { "the manifest" } else { "a pack" };
        match status.waiting {
            Some(waiting) => self.tell_waiting(waiting),
            // What it waits for next is news again, also if it is the same.
            None if !self.is_waiting() => self.waiting = None,
            None => {}
        }
        match status.state {
            State::Sending => {}
            State::Arrived(_) => {
                if blob == self.generation {
                    self.manifest = None;
                } else if let Some(at) = self.parcels.iter().position(|parcel| parcel.id == blob) {
                    self.arrived = self.arrived.saturating_add(self.parcels.swap_remove(at).bytes);
                    self.pump()?;
                }
            }
            // It does not know the put, or has what the pack brings: it says so when it is asked.
            State::Refused(why) if [Reason::UNKNOWN, Reason::DRAINING].contains(&why.reason) => {
                if blob == self.generation {
                    self.manifest = None;
                }
                self.parcels.retain(|parcel| parcel.id != blob);
                self.pump()?;
                if self.parcels.is_empty() && self.lacking != Some(0) {
                    self.ask_again = Some(Instant::now() + ASK_AGAIN_AFTER);
                }
            }
            State::Refused(why) => {
                let cache_id = self.spec.cache_id().to_owned();
                return Err(PutError::Part { cache_id, what, reason: why.reason, why: why.text });
            }
            State::SourceGone(error) => return Err(error.into()),
        }
        self.tell_progress();
        Ok(())
    }

    /// Counts packs that have arrived and were not looked at yet: the leader may say what it lacks before they are.
    fn settle(&mut self) {
        let is_here = |parcel: &Parcel| matches!(parcel.upload.status().state, State::Arrived(_));
        let (here, coming) = std::mem::take(&mut self.parcels).into_iter().partition(is_here);
        self.parcels = coming;
        let here: Vec<Parcel> = here;
        self.arrived = here.iter().fold(self.arrived, |sum, parcel| sum.saturating_add(parcel.bytes));
    }

    /// Whether a part of it waits for room at the leader.
    fn is_waiting(&self) -> bool {
        let uploads = self.manifest.iter().chain(self.parcels.iter().map(|parcel| &parcel.upload));
        uploads.into_iter().any(|upload| upload.status().waiting.is_some())
    }

    fn tell_waiting(&mut self, told: Waiting) {
        if self.waiting.as_ref() != Some(&told) {
            (self.events)(PutEvent::Waiting { reason: told.reason, text: told.text.clone() });
            self.waiting = Some(told);
        }
    }

    fn sent(&self) -> u64 {
        let under_way = self.parcels.iter().filter(|parcel| parcel.opened);
        let under_way = under_way.map(|parcel| parcel.upload.status().done.min(parcel.bytes));
        under_way.fold(self.arrived, u64::saturating_add)
    }

    fn tell_progress(&mut self) {
        let (done, total) = (self.sent(), self.total);
        let is_news = total > 0 && done != self.told_done;
        if is_news && self.throttle.passes(Instant::now(), done >= total) {
            self.told_done = done;
            (self.events)(PutEvent::Uploading { done: done.min(total), total });
        }
    }

    fn on_ack(&mut self, frame: &InFrame) -> Result<(), PutError> {
        let said = CachePutResult::parse(&frame.payload)
            .map_err(|error| self.bad_answer(format!("a CacheAck of it: {error}")))?;
        let worker = said.worker.unwrap_or_else(|| format!("worker {}", self.acks.len() + 1));
        let ack = WorkerAck { worker, status: said.status, message: said.message };
        // The same may be said again after a break.
        if self.acks.get(&ack.worker) != Some(&ack) {
            self.acks.insert(ack.worker.clone(), ack.clone());
            (self.events)(PutEvent::Ack(ack));
        }
        Ok(())
    }

    fn on_spread(&mut self, message: SpreadMessage) {
        let spread = Spread {
            targets: message.targets,
            ok: message.ok,
            skipped: message.skipped,
            failed: message.failed,
            missing: message.missing,
            received: message.received,
            moved: message.moved,
            text: message.text.as_str().to_owned(),
        };
        let first = self.stored.is_none();
        self.over |= message.stage == SpreadStage::Over;
        self.stored = Some(spread.clone());
        self.lacking = Some(0);
        if first {
            (self.events)(PutEvent::Stored(spread));
        }
    }

    /// The report, if nothing more is to be waited for.
    fn ended(&mut self) -> Result<Option<PutReport>, PutError> {
        let Some(report) = self.report() else { return Ok(None) };
        let targets = report.spread.targets;
        // With nobody to wait for, or enough of them, the rest is the leader's business.
        let early = targets == 0 || report.enough && self.spec.wait.needed(targets) < targets;
        if !self.over && !early {
            return Ok(None);
        }
        let late = self.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late && !report.enough && report.spread.missing > 0 {
            return Err(self.timed_out());
        }
        Ok(Some(report))
    }

    /// What is known, once the leader has the set.
    fn report(&self) -> Option<PutReport> {
        let mut spread = self.stored.clone()?;
        if !self.over {
            let count = |is: &dyn Fn(&CacheStatus) -> bool| {
                u32::try_from(self.acks.values().filter(|ack| is(&ack.status)).count()).unwrap_or(u32::MAX)
            };
            spread.ok = spread.ok.max(count(&|status| *status == CacheStatus::Ok));
            spread.skipped = spread.skipped.max(count(&|status| *status == CacheStatus::Skipped));
            spread.failed = spread.failed.max(count(&|status| *status == CacheStatus::Failed));
            let answered = spread.have().saturating_add(spread.failed);
            spread.missing = spread.targets.saturating_sub(answered);
        }
        let manifest = &self.scanned.manifest;
        Some(PutReport {
            digest: self.scanned.digest,
            files: u32::try_from(manifest.files().len()).unwrap_or(u32::MAX),
            bytes: manifest.bytes(),
            enough: spread.have() >= self.spec.wait.needed(spread.targets),
            spread,
            acks: self.acks.values().cloned().collect(),
            scan_took: self.scan_took,
            took: self.started.elapsed(),
        })
    }

    fn timed_out(&self) -> PutError {
        let report = self.report().map(Box::new);
        let stage = match (&report, &self.up) {
            (Some(report), _) => {
                let Spread { targets, missing, .. } = report.spread;
                format!(
                    "the leader has it, and so have {} of {targets} workers; {missing} have not answered",
                    report.spread.have()
                )
            }
            (None, None) => format!("there is no connection to {}", self.leader),
            (None, Some(_)) => stage(self.sent(), self.lacking),
        };
        PutError::TimedOut {
            cache_id: self.spec.cache_id().to_owned(),
            timeout: self.spec.timeout.unwrap_or_default(),
            stage,
            report,
        }
    }
}

/// How far it came to reach the leader.
#[derive(Default)]
struct Unreached {
    greeted: bool,
    why: String,
}

impl Unreached {
    fn error(&self, leader: &str, wait: Duration) -> ClientError {
        let leader = leader.to_owned();
        if self.greeted {
            return ClientError::NoWelcome { leader, waited: Span(wait) };
        }
        let why = if self.why.is_empty() { "no answer yet".to_owned() } else { self.why.clone() };
        let waited_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        ClientError::Unreachable { leader, why, waited_ms }
    }
}

/// Packs that may be under way on a connection to this leader.
fn packs_max(mode: &Mode) -> usize {
    mode.blobs_max().min(PACKS_UNDER_WAY_MAX)
}

fn frame_of<M: Body>(message: &M) -> OutFrame {
    let mut payload = Vec::new();
    message.encode(&mut payload);
    OutFrame::new(M::KIND, payload)
}
