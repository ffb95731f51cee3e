//! Runs a put: reads the files, asks the leader which pieces are missing, sends them as packs, and
//! follows the workers' progress.
//!
//! It has a connection of its own (CA07) and reconnects when that breaks. The same request under
//! the same ids is idempotent, and the leader's answer tells where to resume. Bytes are read from
//! the files as they are sent. `scan` and `packs` decide which pieces make which file.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use chunking::dataset::pack::Layout;
use chunking::message::{
    Body, Features, Lack, Lacking, Name, Pack, PieceList, Purpose, Put, PutFlags, Reason, Refused,
    Spread as SpreadMessage, SpreadStage,
};
use chunking::{DigestKind, Kind};
use tokio::sync::mpsc;
use tokio::time::{Instant, interval, sleep_until};
use uuid::Uuid;

use super::packs::plan;
use super::scan::{self, Scanned, Watch};
use super::tree::ScanError;
use super::{DatasetSpec, PutError, PutEvent, PutReport, Spread, WorkerAck, stage};
use crate::client::connection::{self, Mode};
use crate::client::error::{ClientError, Refusal};
use crate::client::{LATE_WELCOME_WAIT, Options, remote};
use crate::model::{CachePutResult, CacheStatus, JsonModel};
use crate::peer::{InFrame, LinkWriter, News, OutFrame, Uplink};
use crate::transfer::throttle::{AT_CLIENT, Throttle};
use crate::transfer::{Blob, ONLY, PieceSource, Source, State, Uploads, Waiting, Wire};
use crate::units::Span;

/// Packs that are sent at a time: enough that the leader always has one to check and one that
/// comes.
pub const PACKS_UNDER_WAY_MAX: usize = 4;

/// How much longer than for the leader itself its answer to the hello is waited for, so that it is
/// the former that is given up, and said. A classic leader never answers, and takes no datasets.
const WELCOME_WAIT_MORE: Duration = Duration::from_secs(1);

/// How long behind the deadline the leader's word of who has the dataset is waited for: its
/// deadline began later.
const OVER_WAIT: Duration = Duration::from_secs(2);

/// How long to wait before a leader is asked again that was too busy, or does not know what it was
/// sent.
const ASK_AGAIN_AFTER: Duration = Duration::from_secs(1);

/// How long the connection gets to close.
const CLOSE_WAIT: Duration = Duration::from_millis(500);

/// Puts a dataset: [the module](super) has an example. What happens on the way is told to `events`.
/// Dropping the future ends it; what the leader has by then it need not be sent again.
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
    let reach = options.connect_wait.unwrap_or(LATE_WELCOME_WAIT);
    let welcome_wait = options.welcome_wait.max(reach.saturating_add(WELCOME_WAIT_MORE));
    let mut uplink = connection::uplink(leader, 1, &Options { welcome_wait, ..options.clone() });
    let (news, uploaded) = mpsc::unbounded_channel();
    let unreached = Unreached {
        since: Instant::now(),
        wait: options.connect_wait,
        greeted: false,
        why: String::new(),
    };
    let mut putting = Putting {
        times: Times { started, scan_took, deadline },
        leader: leader.to_owned(),
        request: Uuid::new_v4(),
        version: Uuid::new_v4(),
        link: Link::Unreached(unreached),
        phase: Phase::Asking,
        uploads: Uploads::new(news),
        acks: BTreeMap::new(),
        out: Vec::new(),
        told: Told { throttle: Throttle::new(AT_CLIENT), done: 0, waiting: None },
        spec,
        scanned,
        events,
    };
    let ended = putting.run(&mut uplink, uploaded).await;
    drop(putting);
    // What was said is on its way.
    uplink.leave(CLOSE_WAIT).await;
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

/// The connection as it is now.
enum Link {
    /// The leader was never asked.
    Unreached(Unreached),
    /// It was asked, on a connection that is lost.
    Away,
    Up(Up),
}

/// How far it came to reach the leader.
struct Unreached {
    since: Instant,
    /// How long it is tried.
    wait: Option<Duration>,
    /// Whether it has the hello.
    greeted: bool,
    /// Why the last connection ended.
    why: String,
}

struct Up {
    wire: Wire,
    writer: LinkWriter,
    packs_max: usize,
    /// When the leader is asked again what it lacks, if it is.
    ask_again: Option<Instant>,
}

/// How far the dataset is.
enum Phase {
    /// The leader has not said what it lacks of it.
    Asking,
    Sending(Sending),
    /// The leader has it, and workers get it.
    Stored {
        spread: Spread,
        /// Nothing more is to be waited for.
        over: bool,
    },
}

/// What the leader lacks is sent, in packs.
#[derive(Default)]
struct Sending {
    /// What it said it lacks, last.
    lacking: u64,
    /// Packs that are to follow, as places in the manifest.
    planned: VecDeque<Vec<u32>>,
    /// Bytes of packs that have arrived.
    arrived: u64,
    /// What all of them come to, as far as that is known.
    total: u64,
}

/// A blob on its way.
enum Part {
    Manifest,
    Pack(Parcel),
}

impl Part {
    fn pack(&self) -> Option<&Parcel> {
        match self {
            Part::Manifest => None,
            Part::Pack(parcel) => Some(parcel),
        }
    }
}

struct Parcel {
    /// Places in the manifest.
    places: Vec<u32>,
    list: PieceList,
    bytes: u64,
}

struct Times {
    started: Instant,
    scan_took: Duration,
    deadline: Option<Instant>,
}

/// What was told to people last.
struct Told {
    throttle: Throttle<Instant>,
    done: u64,
    waiting: Option<Waiting>,
}

struct Putting<F> {
    spec: DatasetSpec,
    scanned: Scanned,
    events: F,
    times: Times,
    leader: String,
    request: Uuid,
    version: Uuid,
    link: Link,
    phase: Phase,
    uploads: Uploads<Part>,
    acks: BTreeMap<String, WorkerAck>,
    /// Frames that go out together.
    out: Vec<OutFrame>,
    told: Told,
}

impl<F: FnMut(PutEvent)> Putting<F> {
    async fn run(
        &mut self,
        uplink: &mut Uplink,
        mut uploaded: mpsc::UnboundedReceiver<Uuid>,
    ) -> Result<PutReport, PutError> {
        loop {
            let (reach, ask_again) = match &self.link {
                Link::Unreached(Unreached { since, wait, .. }) => {
                    (wait.map(|wait| *since + wait), None)
                }
                Link::Away => (None, None),
                Link::Up(up) => (None, up.ask_again),
            };
            let limit = match self.phase {
                Phase::Asking | Phase::Sending(_) => self.times.deadline,
                Phase::Stored { .. } => self.times.deadline.map(|deadline| deadline + OVER_WAIT),
            };
            tokio::select! {
                news = uplink.next(|| false) => self.on_news(news, uplink)?,
                Some(blob) = uploaded.recv() => self.on_upload(blob)?,
                () = until(ask_again) => self.ask()?,
                () = until(reach) => return Err(self.unreached()),
                () = until(limit) => return Err(self.timed_out()),
            }
            uplink.send_all(&mut self.out);
            if let Some(report) = self.ended()? {
                return Ok(report);
            }
        }
    }

    fn on_news(&mut self, news: News, uplink: &Uplink) -> Result<(), PutError> {
        match news {
            News::Greeted => {
                if let Link::Unreached(unreached) = &mut self.link {
                    unreached.greeted = true;
                }
            }
            News::Unanswered { text } => self.tell_waiting(Waiting { reason: Reason::NONE, text }),
            News::Classic => self.on_leader(&Mode::Classic, uplink)?,
            News::Welcome(welcome) => self.on_leader(&Mode::of_welcome(&welcome), uplink)?,
            News::Failed { why, retry_in } | News::Lost { why, retry_in, .. } => {
                self.on_lost(why, retry_in)
            }
            News::Frame(frame) => self.on_frame(&frame)?,
            // Nothing comes by transfer.
            News::Chunk(_) => {}
        }
        Ok(())
    }

    fn on_leader(&mut self, mode: &Mode, uplink: &Uplink) -> Result<(), PutError> {
        let Some(writer) = uplink.writer().cloned() else { return Ok(()) };
        let leader = uplink.address().to_owned();
        if !mode.has(Features::DATASETS.with(Features::TRANSFERS)) {
            return Err(ClientError::NotSupported { leader, feature: "datasets" }.into());
        }
        let again = !matches!(self.link, Link::Unreached(_));
        let wire = Wire { features: mode.features(), loopback: writer.is_loopback() };
        self.link = Link::Up(Up { wire, writer, packs_max: packs_max(mode), ask_again: None });
        self.leader = leader;
        self.say_put(again)
    }

    fn on_lost(&mut self, why: String, retry_in: Duration) {
        self.out.clear();
        self.uploads.lost(ONLY);
        if let Phase::Sending(sending) = &mut self.phase {
            sending.planned.clear();
        }
        match &mut self.link {
            Link::Unreached(unreached) => (unreached.greeted, unreached.why) = (false, why),
            Link::Away | Link::Up(_) => {
                self.link = Link::Away;
                (self.events)(PutEvent::Reconnecting {
                    leader: self.leader.clone(),
                    why,
                    retry_in,
                });
            }
        }
    }

    fn ask_later(&mut self) {
        if let Link::Up(up) = &mut self.link {
            up.ask_again = Some(Instant::now() + ASK_AGAIN_AFTER);
        }
    }

    fn ask(&mut self) -> Result<(), PutError> {
        if let Link::Up(up) = &mut self.link {
            up.ask_again = None;
        }
        self.say_put(true)
    }

    /// Says what is to be put; the leader answers with what it lacks.
    fn say_put(&mut self, again: bool) -> Result<(), PutError> {
        let name = |text: &str| {
            Name::try_from(text.to_owned()).map_err(|error| ClientError::BadInput {
                name: text.to_owned(),
                why: format!("as a CacheId or a target: {error}"),
            })
        };
        let left = |deadline: Instant| deadline.saturating_duration_since(Instant::now());
        let millis = |left: Duration| {
            u64::try_from(left.as_micros().div_ceil(1000)).unwrap_or(u64::MAX).max(1)
        };
        let message = Put {
            digest: self.scanned.digest,
            manifest: self.version,
            bytes: self.scanned.manifest.bytes(),
            files: u32::try_from(self.scanned.manifest.files().len()).unwrap_or(u32::MAX),
            flags: if self.spec.replace { PutFlags::REPLACE } else { PutFlags::default() },
            deadline_ms: self.times.deadline.map_or(0, |deadline| millis(left(deadline))),
            cache_id: name(self.spec.cache.as_str())?,
            target: name(&self.spec.target)?,
        };
        self.out.push(OutFrame::message(self.request, &message));
        (self.events)(PutEvent::Asked { leader: self.leader.clone(), again });
        Ok(())
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
                    self.ask_later();
                    return Ok(());
                }
                Err(PutError::Refused { cache_id: self.spec.cache_id().to_owned(), refusal })
            }
            Some(kind @ (Kind::Grant | Kind::Verdict | Kind::Abort | Kind::Refused)) => {
                let read = self.uploads.on_frame(ONLY, frame);
                read.map(drop).map_err(|error| self.bad_answer(format!("a {kind} of it: {error}")))
            }
            // What else a leader may say is not about this put.
            Some(_) | None => Ok(()),
        }
    }

    fn decoded<M: Body>(&self, frame: &InFrame) -> Result<M, PutError> {
        M::decode(&frame.payload)
            .map_err(|error| self.bad_answer(format!("a {} of it: {error}", M::KIND)))
    }

    fn bad_answer(&self, why: String) -> PutError {
        ClientError::BadAnswer { verb: Kind::Put.to_string(), why }.into()
    }

    fn on_lack(&mut self, lack: &Lack) -> Result<(), PutError> {
        match (lack.what, &self.phase) {
            // What workers have is more news than that.
            (Lacking::Nothing, Phase::Stored { .. }) => Ok(()),
            (Lacking::Nothing, Phase::Asking | Phase::Sending(_)) => {
                self.on_nothing_lacks();
                Ok(())
            }
            (Lacking::Manifest, Phase::Asking | Phase::Sending(_)) => self.send_manifest(),
            (Lacking::Manifest, Phase::Stored { .. }) => {
                self.phase = Phase::Asking;
                self.send_manifest()
            }
            (Lacking::Pieces, _) => self.on_lacking_pieces(lack),
        }
    }

    /// What was sent until now. The first time it is told how much the leader lacks.
    fn begun(&mut self, lacking: u64) -> Sending {
        match std::mem::replace(&mut self.phase, Phase::Asking) {
            Phase::Sending(sending) => Sending { lacking, ..sending },
            Phase::Asking | Phase::Stored { .. } => {
                (self.events)(PutEvent::Lacking { bytes: lacking });
                Sending { lacking, ..Sending::default() }
            }
        }
    }

    fn on_nothing_lacks(&mut self) {
        // Whatever way it came.
        self.uploads.retain(|_, _| false);
        let begun = self.begun(0);
        self.phase =
            Phase::Sending(Sending { arrived: begun.total, planned: VecDeque::new(), ..begun });
        self.tell_progress();
    }

    fn on_lacking_pieces(&mut self, lack: &Lack) -> Result<(), PutError> {
        self.uploads.remove(self.version);
        let begun = self.begun(lack.bytes);
        let arrived = begun.arrived.saturating_add(self.take_arrived());
        let wanted: HashSet<u32> = lack.pieces.indices().collect();
        // From before a break: what the leader has got by another way is not sent again.
        let is_of_use = |parcel: &Parcel| parcel.places.iter().any(|place| wanted.contains(place));
        let stale =
            self.packs().filter(|(id, parcel)| !self.uploads.is_open(*id) && !is_of_use(parcel));
        for pack in stale.map(|(id, _)| id).collect::<Vec<_>>() {
            self.uploads.remove(pack);
        }
        let coming: HashSet<u32> =
            self.packs().flat_map(|(_, parcel)| parcel.places.iter().copied()).collect();
        let pieces = self.scanned.manifest.pieces();
        let lacking =
            lack.pieces.indices().filter(|place| !coming.contains(place)).filter_map(|place| {
                let piece = pieces.get(usize::try_from(place).ok()?)?;
                Some((place, *piece))
            });
        let planned: VecDeque<_> = plan(lacking, lack.bytes).into();
        if planned.is_empty() && self.packs().next().is_none() {
            let why = format!(
                "it asks for {} pieces that are not in the dataset",
                lack.pieces.chunk_count()
            );
            return Err(self.bad_answer(why));
        }
        let total = arrived.saturating_add(lack.bytes);
        self.phase = Phase::Sending(Sending { planned, arrived, total, ..begun });
        self.pump()
    }

    /// Packs that are on their way, or were before a break.
    fn packs(&self) -> impl Iterator<Item = (Uuid, &Parcel)> {
        self.uploads.iter().filter_map(|(id, part)| Some((id, part.pack()?)))
    }

    fn send_manifest(&mut self) -> Result<(), PutError> {
        let Link::Up(up) = &self.link else { return Ok(()) };
        let (writer, wire) = (up.writer.clone(), up.wire);
        if self.uploads.owner(self.version).is_none() {
            let bytes = Bytes::from(self.scanned.manifest.encode());
            self.start(self.version, Part::Manifest, Source::Memory(bytes))?;
        }
        self.out.extend(self.uploads.open(self.version, ONLY, &writer, wire));
        Ok(())
    }

    fn start(&mut self, id: Uuid, part: Part, source: Source) -> Result<(), PutError> {
        let blob = Blob {
            id,
            purpose: Purpose::Dataset,
            owner: self.request,
            attempt: 0,
            name: Name::default(),
            digest: DigestKind::ChunkList,
            compression: self.spec.compression,
            keeps_source: true,
            source,
        };
        self.uploads.start(part, blob).map_err(|error| self.bad_input(error.to_string()))
    }

    fn bad_input(&self, why: String) -> PutError {
        ClientError::BadInput { name: self.spec.cache_id().to_owned(), why }.into()
    }

    /// Opens packs, as many as may be under way: those from before a break first.
    fn pump(&mut self) -> Result<(), PutError> {
        let Link::Up(up) = &self.link else { return Ok(()) };
        let (writer, wire, packs_max) = (up.writer.clone(), up.wire, up.packs_max);
        let is_open = |id: Uuid| self.uploads.is_open(id);
        let open = self.packs().filter(|(id, _)| is_open(*id)).count();
        let mut kept: Vec<_> = self.packs().filter(|(id, _)| !is_open(*id)).collect();
        // In the order of their pieces, the first at the end.
        kept.sort_unstable_by(|(_, a), (_, b)| b.places.cmp(&a.places));
        let mut kept: Vec<Uuid> = kept.into_iter().map(|(id, _)| id).collect();
        for _ in open..packs_max {
            let planned = match &mut self.phase {
                Phase::Sending(sending) if kept.is_empty() => sending.planned.pop_front(),
                Phase::Sending(_) | Phase::Asking | Phase::Stored { .. } => None,
            };
            let id = match (kept.pop(), planned) {
                (Some(id), _) => id,
                (None, Some(places)) => self.start_pack(places)?,
                (None, None) => return Ok(()),
            };
            let Some(parcel) = self.uploads.owner(id).and_then(Part::pack) else { return Ok(()) };
            let list = Pack { pieces: parcel.list.clone() };
            self.out.push(OutFrame { corr_id: self.request, ..OutFrame::message(id, &list) });
            self.out.extend(self.uploads.open(id, ONLY, &writer, wire));
        }
        Ok(())
    }

    fn start_pack(&mut self, places: Vec<u32>) -> Result<Uuid, PutError> {
        let found = places.iter().filter_map(|place| self.scanned.piece(*place));
        let (pieces, at): (Vec<_>, Vec<_>) = found.unzip();
        let layout = Layout::new(pieces).map_err(|error| self.bad_input(error.to_string()))?;
        let id = Uuid::new_v4();
        let source = Source::Pieces(PieceSource::new(at, layout.tail().into()));
        let list = PieceList::new(layout.pieces().to_vec());
        self.start(id, Part::Pack(Parcel { places, list, bytes: layout.data_bytes() }), source)?;
        Ok(id)
    }

    fn on_upload(&mut self, blob: Uuid) -> Result<(), PutError> {
        let Some(status) = self.uploads.status(blob) else { return Ok(()) };
        match status.waiting {
            Some(waiting) => self.tell_waiting(waiting),
            // What it waits for next is news again, also if it is the same.
            None if !self.uploads.iter().any(|(id, _)| self.uploads.waiting(id).is_some()) => {
                self.told.waiting = None;
            }
            None => {}
        }
        match status.state {
            State::Sending => {}
            State::Arrived(_) => {
                if let (Some(Part::Pack(parcel)), Phase::Sending(sending)) =
                    (self.uploads.remove(blob), &mut self.phase)
                {
                    sending.arrived = sending.arrived.saturating_add(parcel.bytes);
                }
                self.pump()?;
            }
            // It does not know the put, or has what the pack brings: it says so when it is asked.
            State::Refused(why) if [Reason::UNKNOWN, Reason::DRAINING].contains(&why.reason) => {
                self.uploads.remove(blob);
                self.pump()?;
                if self.packs().next().is_none() && self.lacking() != Some(0) {
                    self.ask_later();
                }
            }
            State::Refused(why) => {
                let cache_id = self.spec.cache_id().to_owned();
                let what = if blob == self.version { "the manifest" } else { "a pack" };
                return Err(PutError::Part { cache_id, what, reason: why.reason, why: why.text });
            }
            State::SourceGone(error) => return Err(error.into()),
        }
        self.tell_progress();
        Ok(())
    }

    /// Takes packs out that have arrived and were not looked at yet: the leader may say what it
    /// lacks before they are. Gives their bytes.
    fn take_arrived(&mut self) -> u64 {
        let is_here = |id: &Uuid| matches!(self.uploads.status(*id), Some(status) if matches!(status.state, State::Arrived(_)));
        let here: Vec<Uuid> = self.packs().map(|(id, _)| id).filter(is_here).collect();
        let taken = here.into_iter().filter_map(|id| self.uploads.remove(id));
        taken.filter_map(|part| Some(part.pack()?.bytes)).fold(0, u64::saturating_add)
    }

    /// What the leader lacks, if it has said so.
    fn lacking(&self) -> Option<u64> {
        match &self.phase {
            Phase::Asking => None,
            Phase::Sending(sending) => Some(sending.lacking),
            Phase::Stored { .. } => Some(0),
        }
    }

    fn tell_waiting(&mut self, waiting: Waiting) {
        if self.told.waiting.as_ref() != Some(&waiting) {
            (self.events)(PutEvent::Waiting { reason: waiting.reason, text: waiting.text.clone() });
            self.told.waiting = Some(waiting);
        }
    }

    /// Bytes of packs that went, and of all of them.
    fn sent(&self) -> (u64, u64) {
        let (arrived, total) = match &self.phase {
            Phase::Sending(sending) => (sending.arrived, sending.total),
            Phase::Asking | Phase::Stored { .. } => (0, 0),
        };
        let open = self.packs().filter(|(id, _)| self.uploads.is_open(*id));
        let went =
            open.filter_map(|(id, parcel)| Some(self.uploads.status(id)?.done.min(parcel.bytes)));
        (went.fold(arrived, u64::saturating_add), total)
    }

    fn tell_progress(&mut self) {
        let (done, total) = self.sent();
        let is_news = total > 0 && done != self.told.done;
        if is_news && self.told.throttle.passes(Instant::now(), done >= total) {
            self.told.done = done;
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
        if matches!(self.phase, Phase::Sending(_)) {
            self.on_nothing_lacks();
        }
        let was_over = match self.phase {
            Phase::Stored { over, .. } => over,
            Phase::Asking | Phase::Sending(_) => {
                (self.events)(PutEvent::Stored(spread.clone()));
                false
            }
        };
        let over = was_over || message.stage == SpreadStage::Over;
        self.phase = Phase::Stored { spread, over };
    }

    /// The report, if nothing more is to be waited for.
    fn ended(&mut self) -> Result<Option<PutReport>, PutError> {
        let Phase::Stored { spread, over } = &self.phase else { return Ok(None) };
        let (report, over) = (self.report(spread, *over), *over);
        let targets = report.spread.targets;
        // With nobody to wait for, or enough of them, the rest is the leader's business.
        let early = targets == 0 || report.enough && self.spec.wait.needed(targets) < targets;
        if !over && !early {
            return Ok(None);
        }
        let late = self.times.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        if late && !report.enough && report.spread.missing > 0 {
            return Err(self.timed_out());
        }
        Ok(Some(report))
    }

    /// What is known of a dataset that the leader has.
    fn report(&self, spread: &Spread, over: bool) -> PutReport {
        let mut spread = spread.clone();
        if !over {
            let count = |is: &dyn Fn(&CacheStatus) -> bool| {
                u32::try_from(self.acks.values().filter(|ack| is(&ack.status)).count())
                    .unwrap_or(u32::MAX)
            };
            spread.ok = spread.ok.max(count(&|status| *status == CacheStatus::Ok));
            spread.skipped = spread.skipped.max(count(&|status| *status == CacheStatus::Skipped));
            spread.failed = spread.failed.max(count(&|status| *status == CacheStatus::Failed));
            let answered = spread.have().saturating_add(spread.failed);
            spread.missing = spread.targets.saturating_sub(answered);
        }
        let manifest = &self.scanned.manifest;
        PutReport {
            digest: self.scanned.digest,
            files: u32::try_from(manifest.files().len()).unwrap_or(u32::MAX),
            bytes: manifest.bytes(),
            enough: spread.have() >= self.spec.wait.needed(spread.targets),
            spread,
            acks: self.acks.values().cloned().collect(),
            scan_took: self.times.scan_took,
            took: self.times.started.elapsed(),
        }
    }

    fn timed_out(&self) -> PutError {
        let report = match &self.phase {
            Phase::Stored { spread, over } => Some(Box::new(self.report(spread, *over))),
            Phase::Asking | Phase::Sending(_) => None,
        };
        let stage = match (&report, &self.link) {
            (Some(report), _) => {
                let Spread { targets, missing, .. } = report.spread;
                format!(
                    "the leader and {} of {targets} workers have it; {missing} have not answered",
                    report.spread.have()
                )
            }
            (None, Link::Unreached(_) | Link::Away) => {
                format!("there is no connection to {}", self.leader)
            }
            (None, Link::Up(_)) => stage(self.sent().0, self.lacking()),
        };
        PutError::TimedOut {
            cache_id: self.spec.cache_id().to_owned(),
            timeout: self.spec.timeout.unwrap_or_default(),
            stage,
            report,
        }
    }

    /// The leader could not be reached in time.
    fn unreached(&self) -> PutError {
        let leader = self.leader.clone();
        let Link::Unreached(Unreached { wait, greeted, why, .. }) = &self.link else {
            return self.timed_out();
        };
        let wait = wait.unwrap_or_default();
        if *greeted {
            return ClientError::NoWelcome { leader, waited: Span(wait) }.into();
        }
        let why = if why.is_empty() { "no answer yet".to_owned() } else { why.clone() };
        let waited_ms = u64::try_from(wait.as_millis()).unwrap_or(u64::MAX);
        ClientError::Unreachable { leader, why, waited_ms }.into()
    }
}

/// Packs that may be under way on a connection to this leader.
fn packs_max(mode: &Mode) -> usize {
    mode.blobs_max().min(PACKS_UNDER_WAY_MAX)
}
