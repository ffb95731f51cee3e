//! One connection to one leader, kept up: dial, hello, Welcome or classic mode, frames both ways, redirects, and back-off
//! between attempts (CL08, RD02, C23). It knows nothing of what a job needs; the driver tells it what to send and gets
//! every frame that comes.
//!
//! What it means that a leader does not answer the hello is decided in `peer::awaited`. A
//! connection that turns out to be dead is given up for another, on which the driver submits again
//! under the same ids: only a leader that answered a probe gets there, and that is one that knows
//! them.

use std::time::Duration;

use chunking::Kind;
use chunking::message::{Body as _, Features, LimitId, Welcome};
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until, timeout};
use uuid::Uuid;

use super::Options;
use super::arrivals::Arrivals;
use super::dispatch::Conn;
use crate::model::{ClientConfig, JsonModel};
use crate::peer::{
    self, AwaitedWelcome, InFrame, Item, LinkReader, LinkWriter, OutFrame, Patience, Probe, Silence,
};
use crate::units::Span;
use crate::wire::Signs;

/// Redirects that are followed in a row before the client goes back to the address it was given, and waits.
pub const REDIRECTS_MAX: u32 = 8;

/// How long a connection is read on after its last frame was sent, so that the other side has it.
const CLOSE_WAIT: Duration = Duration::from_millis(300);

/// How long half a Welcome is waited for before another connection is tried. It is one small frame: what is missing of it after so
/// long does not come, and within the usual `--connect-wait` there is time for another.
const HALF_WELCOME_WAIT: Duration = Duration::from_secs(4);

/// How long a connection to which nothing can be sent any more is still read: its end is there, or on its way.
const READ_OUT_MAX: Duration = Duration::from_millis(500);

/// What the client announces.
const FEATURES: Features = Features::SUBMIT_ANSWERS
    .with(Features::PROGRESS)
    .with(Features::CANCEL)
    .with(Features::ASK)
    .with(Features::REDIRECTS)
    .with(Features::TRANSFERS)
    .with(Features::GZIP)
    .with(Features::BROTLI)
    .with(Features::ZSTD)
    .with(Features::DATASETS)
    .with(Features::CHECKSUMS)
    .with(Features::RECEIPTS)
    .with(Features::KEEPALIVE)
    .with(Features::PIECES);

/// What a leader is to us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A heft leader that answered the announcement.
    Announced {
        /// The leader's id, new with each of its starts.
        leader: Uuid,
        /// Its software.
        software: String,
        /// What both can do.
        features: Features,
        /// Transfers that one connection may have, if it said so.
        transfers_max: Option<u64>,
    },
    /// A stock leader, as far as we know.
    Classic,
}

impl Mode {
    /// Whether both can do `features`.
    pub fn has(&self, features: Features) -> bool {
        self.features().has(features)
    }

    /// What both can do.
    pub fn features(&self) -> Features {
        match self {
            Mode::Announced { features, .. } => *features,
            Mode::Classic => Features::default(),
        }
    }

    /// Blobs of jobs that may be on one connection: half of its transfers, the other half is for parts of results.
    pub(super) fn blobs_max(&self) -> usize {
        match self {
            Mode::Announced { transfers_max: Some(max), .. } => {
                usize::try_from(max / 2).unwrap_or(usize::MAX).max(1)
            }
            Mode::Announced { transfers_max: None, .. } | Mode::Classic => usize::MAX,
        }
    }

    pub(super) fn of_welcome(payload: &[u8]) -> Option<Mode> {
        let welcome = Welcome::decode(payload).ok()?;
        let software = welcome.software.as_str().to_owned();
        let transfers_max = welcome.limits.value(LimitId::TRANSFERS);
        Some(Mode::Announced { leader: welcome.leader, software, features: welcome.features, transfers_max })
    }

    /// The signs of life that both will send.
    fn signs(payload: &[u8]) -> Option<Signs> {
        Signs::in_welcome(&Welcome::decode(payload).ok()?)
    }
}

/// A frame to send; `job` for those whose loss must be known.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) frame: OutFrame,
    /// Frames that go right behind it: the job's transfers are opened once the leader has the job.
    pub(super) opens: Vec<OutFrame>,
    pub(super) job: Option<Uuid>,
}

impl Outgoing {
    /// A frame whose loss does no harm.
    pub(super) fn plain(frame: OutFrame) -> Self {
        Outgoing { frame, opens: Vec::new(), job: None }
    }
}

/// What a connection tells the driver, in order.
#[derive(Debug)]
pub(super) enum News {
    /// The leader took the connection and has the hello; its answer is waited for.
    Greeting { address: String },
    /// The leader has not answered the hello: what is waited for, and for how long already.
    Unanswered { text: String },
    /// It is ready; frames go into `outbox`, and chunks to `writer`.
    Up { mode: Mode, address: String, outbox: mpsc::Sender<Outgoing>, writer: LinkWriter },
    /// A frame came.
    Frame(InFrame),
    /// It is not connected (any more) and tries again after `retry_in`. `unsent` were in the outbox.
    Down { why: String, retry_in: Duration, unsent: Vec<Uuid> },
}

/// Where the news go.
#[derive(Clone, Debug)]
pub(super) struct Reporter {
    pub(super) conn: Conn,
    pub(super) news: mpsc::Sender<(Conn, News)>,
    /// Takes the frames of downloads, which do not go by the driver.
    pub(super) arrivals: Arrivals,
}

impl Reporter {
    /// An error only when the driver is gone.
    async fn report(&self, news: News) -> Result<(), Gone> {
        self.news.send((self.conn, news)).await.map_err(|_| Gone)
    }
}

/// The driver is gone, or has asked to stop.
struct Gone;

/// How an attempt or a connection ended.
enum End {
    Gone,
    Lost {
        why: String,
    },
    /// The leader is elsewhere.
    Redirect {
        to: Option<String>,
    },
}

impl From<Gone> for End {
    fn from(_: Gone) -> End {
        End::Gone
    }
}

/// Keeps a connection up until the driver stops it.
pub(super) async fn keep(
    address: String,
    desired: u32,
    options: Options,
    reporter: Reporter,
    outbox_max: usize,
    mut stop: watch::Receiver<bool>,
) {
    let mut target = address.clone();
    let mut failures: u32 = 0;
    let mut redirects: u32 = 0;
    let patience = Patience {
        wait: options.welcome_wait,
        wait_max: options.welcome_wait_max,
        probe: options.probe_backoff,
    };
    let mut awaited = AwaitedWelcome::new(patience);
    loop {
        if *stop.borrow() {
            return;
        }
        let mut unsent = Vec::new();
        let mut was_up = false;
        let session = Session {
            options: &options,
            desired,
            reporter: &reporter,
            stop: stop.clone(),
            awaited: &mut awaited,
            target: &target,
        };
        let end = session.run(outbox_max, &mut was_up, &mut unsent).await;
        awaited.on_lost();
        if was_up {
            (failures, redirects) = (0, 0);
        }
        let why = match end {
            End::Gone => return,
            End::Redirect { to: Some(leader) } if redirects < REDIRECTS_MAX => {
                redirects += 1;
                tracing::info!(from = %target, to = %leader, "the leader is elsewhere: following");
                let why = format!("{target} says that the leader is {leader}");
                target = leader;
                let down = News::Down { why, retry_in: Duration::ZERO, unsent };
                if reporter.report(down).await.is_err() {
                    return;
                }
                continue;
            }
            End::Redirect { to: Some(leader) } => {
                format!("{target} points to {leader}, after {redirects} redirects in a row")
            }
            End::Redirect { to: None } => format!("{target} is not the leader and knows of none"),
            End::Lost { why } => why,
        };
        // The address that was given knows best who leads now.
        target.clone_from(&address);
        redirects = 0;
        failures = failures.saturating_add(1);
        let (entropy, _) = Uuid::new_v4().as_u64_pair();
        let retry_in = options.backoff.delay(failures, entropy);
        tracing::debug!(leader = %address, %why, ?retry_in, "not connected");
        if reporter.report(News::Down { why, retry_in, unsent }).await.is_err() {
            return;
        }
        tokio::select! {
            () = tokio::time::sleep(retry_in) => {}
            _ = stop.changed() => return,
        }
    }
}

/// Sends signs of life, once it is known that they are due.
struct Living {
    every: Option<Duration>,
    due: Instant,
    /// What was written by the last look.
    written: u64,
}

impl Living {
    fn new() -> Self {
        Living { every: None, due: Instant::now(), written: 0 }
    }

    /// Half of the time, so that what was sent just after a look is followed in time.
    fn begin(&mut self, signs: Signs) {
        self.every = Some(signs.every / 2);
        self.due = Instant::now() + signs.every / 2;
    }

    async fn due(&self) {
        match self.every {
            Some(_) => sleep_until(self.due).await,
            None => std::future::pending().await,
        }
    }

    fn look(&mut self, writer: &LinkWriter) {
        writer.keep_alive(&mut self.written);
        self.due = Instant::now() + self.every.unwrap_or_default();
    }
}

/// A connection, from the hello on.
struct Link {
    reader: LinkReader,
    writer: LinkWriter,
    greeted: Instant,
    /// What has begun to come by then and is not whole is half a Welcome; while the answer is
    /// waited for.
    half_until: Option<Instant>,
    living: Living,
    /// Looks for the leader on a connection beside this one.
    probe: Option<Probe>,
}

/// What comes next on a connection.
enum Next {
    Item(Item),
    /// The leader is a classic one, as far as we know.
    Classic,
}

/// One attempt to connect, and the connection that comes of it.
struct Session<'a> {
    options: &'a Options,
    desired: u32,
    reporter: &'a Reporter,
    stop: watch::Receiver<bool>,
    awaited: &'a mut AwaitedWelcome,
    target: &'a str,
}

impl Session<'_> {
    async fn run(mut self, outbox_max: usize, was_up: &mut bool, unsent: &mut Vec<Uuid>) -> End {
        let mut stop = self.stop.clone();
        let opened = tokio::select! {
            opened = self.open() => opened,
            _ = stop.changed() => return End::Gone,
        };
        let (mut link, mode) = match opened {
            Ok(opened) => opened,
            Err(end) => return end,
        };
        let (outbox, mut queue) = mpsc::channel(outbox_max);
        let writer = link.writer.clone();
        let knows_pieces = mode.has(Features::PIECES);
        let up = News::Up { mode, address: self.target.to_owned(), outbox, writer: writer.clone() };
        if self.reporter.report(up).await.is_err() {
            return End::Gone;
        }
        *was_up = true;
        // Two loops side by side: reading must go on while a full outbox waits, or both ends could wait for each other.
        let (end, found_by_writing) = tokio::select! {
            end = self.read(&mut link) => (end, false),
            end = forward(&mut queue, &writer, unsent) => (end, true),
        };
        if found_by_writing && matches!(end, End::Lost { .. }) {
            // What came before the end is read.
            timeout(READ_OUT_MAX, self.read(&mut link)).await.ok();
        }
        drop(writer);
        let Link { mut reader, writer, .. } = link;
        drop(writer);
        if matches!(end, End::Gone) {
            // All was handed over; the other side closes when it has read it.
            timeout(CLOSE_WAIT, async { while let Ok(Some(_)) = reader.next().await {} }).await.ok();
        }
        if let Some(part) = reader.cut().filter(|_| knows_pieces) {
            self.reporter.arrivals.keep(part);
        }
        queue.close();
        while let Ok(left) = queue.try_recv() {
            unsent.extend(left.job);
        }
        end
    }

    /// Dials, says hello and waits for the answer of a heft leader.
    async fn open(&mut self) -> Result<(Link, Mode), End> {
        let (target, limit) = (self.target, self.options.connect_timeout);
        let lost = |why: String| End::Lost { why };
        let dialled = timeout(limit, peer::connect(target, &self.options.tuning)).await;
        let (reader, writer) = match dialled {
            Ok(Ok(link)) => link,
            Ok(Err(error)) => return Err(lost(error.to_string())),
            Err(_) => {
                return Err(lost(format!(
                    "cannot connect to {target}: no answer within {} ms",
                    limit.as_millis()
                )));
            }
        };
        writer.send(self.hello()).await.map_err(|error| lost(error.to_string()))?;
        self.reporter.report(News::Greeting { address: target.to_owned() }).await?;
        let greeted = Instant::now();
        self.awaited.on_hello(greeted);
        let half_until = Some(greeted + HALF_WELCOME_WAIT);
        let mut link = Link { reader, writer, greeted, half_until, living: Living::new(), probe: None };
        loop {
            match self.next(&mut link).await? {
                None => return Err(lost(format!("{target} closed the connection after the hello"))),
                Some(Next::Classic) => {
                    link.half_until = None;
                    return Ok((link, Mode::Classic));
                }
                Some(Next::Item(Item::Frame(frame))) if frame.kind() == Some(Kind::Welcome) => {
                    let Some(mode) = Mode::of_welcome(&frame.payload) else {
                        return Err(lost(format!("{target} sent a Welcome that cannot be read")));
                    };
                    self.on_welcome(&mut link, &frame);
                    return Ok((link, mode));
                }
                Some(Next::Item(Item::Frame(frame))) => self.take(frame).await?,
                Some(Next::Item(Item::Chunk(_))) => {}
            }
        }
    }

    fn on_welcome(&mut self, link: &mut Link, welcome: &InFrame) {
        let signs = Mode::signs(&welcome.payload);
        self.awaited.on_welcome(signs.map(|signs| signs.silence));
        (link.half_until, link.probe) = (None, None);
        if let Some(signs) = signs {
            link.reader.expect_signs(signs);
            link.living.begin(signs);
        }
    }

    /// What comes next; `None` at the end of the connection. Sends signs of life meanwhile, and
    /// finds out whether a leader that is silent is there.
    async fn next(&mut self, link: &mut Link) -> Result<Option<Next>, End> {
        loop {
            let is_half = link.half_until.filter(|_| link.reader.is_inside_frame());
            let due = match is_half {
                Some(half_until) => Some(half_until),
                None => self.awaited.due().into_iter().chain(link.half_until).min(),
            };
            tokio::select! {
                item = link.reader.next() => {
                    let item = item.map_err(|error| End::Lost { why: error.to_string() })?;
                    match &item {
                        Some(Item::Frame(frame)) if frame.kind() == Some(Kind::Welcome) => {}
                        Some(Item::Frame(_) | Item::Chunk(_)) => {
                            self.awaited.on_heard();
                            link.probe = None;
                        }
                        None => {}
                    }
                    return Ok(item.map(Next::Item));
                }
                is_answered = Probe::end(&mut link.probe) => {
                    self.awaited.on_probe(Instant::now(), is_answered);
                }
                () = link.living.due() => link.living.look(&link.writer),
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    if let Some(next) = self.on_due(link).await? {
                        return Ok(Some(next));
                    }
                }
            }
        }
    }

    /// The leader has been silent until something was due.
    async fn on_due(&mut self, link: &mut Link) -> Result<Option<Next>, End> {
        let (now, target) = (Instant::now(), self.target);
        if let Some(half_until) = link.half_until {
            // A classic leader says nothing before it is asked: this is half a Welcome.
            let is_half = link.reader.is_inside_frame();
            if is_half && now >= half_until {
                return Err(End::Lost { why: format!("{target} sent half an answer to the hello") });
            }
            if is_half {
                return Ok(None);
            }
            link.half_until = Some(half_until).filter(|until| now < *until);
        }
        let Some(silence) = self.awaited.on_due(now, false) else { return Ok(None) };
        let text = match silence {
            Silence::Classic => return Ok(Some(Next::Classic)),
            Silence::Wait { wait_max } => unanswered(target, now - link.greeted, wait_max),
            Silence::Probe { waited, tell } => {
                link.probe = Some(Probe::start(target.to_owned(), &self.options.tuning));
                if !tell {
                    return Ok(None);
                }
                peer::silent(target, waited)
            }
            Silence::GiveUp { waited } => {
                let waited = Span::rounded(waited);
                let why =
                    format!("{target} took the connection, but did not answer the hello within {waited}");
                return Err(End::Lost { why });
            }
            Silence::Dead { waited } => {
                let why = peer::dead_line(target, waited);
                tracing::warn!("{why}; making another");
                return Err(End::Lost { why });
            }
        };
        tracing::info!("{text}");
        self.reporter.report(News::Unanswered { text }).await?;
        Ok(None)
    }

    fn hello(&self) -> OutFrame {
        let config = ClientConfig {
            client_id: self.options.client_id.clone(),
            desired_parallelism: i32::try_from(self.desired.max(1)).unwrap_or(i32::MAX),
            heft: Some(peer::announcement(FEATURES, None)),
        };
        OutFrame {
            msg_id: Uuid::new_v4(),
            subject: self.options.client_id.clone(),
            ..OutFrame::new(Kind::HelloClient, config.to_json())
        }
    }

    /// Gives every frame to the driver. Ends with the connection.
    async fn read(&mut self, link: &mut Link) -> End {
        let (conn, arrivals) = (self.reporter.conn, &self.reporter.arrivals);
        loop {
            match self.next(link).await {
                Ok(Some(Next::Item(Item::Frame(frame)))) if frame.kind() == Some(Kind::Keepalive) => {}
                Ok(Some(Next::Item(Item::Frame(frame)))) => {
                    if frame.kind() == Some(Kind::Welcome) && Mode::of_welcome(&frame.payload).is_some() {
                        self.on_welcome(link, &frame);
                    }
                    if !arrivals.frame(conn, &link.writer, &frame)
                        && let Err(end) = self.take(frame).await
                    {
                        return end;
                    }
                }
                Ok(Some(Next::Item(Item::Chunk(chunk)))) => arrivals.chunk(conn, &link.writer, chunk),
                // It is taken for one already.
                Ok(Some(Next::Classic)) => {}
                Ok(None) => return End::Lost { why: "the leader closed the connection".to_owned() },
                Err(end) => return end,
            }
        }
    }

    async fn take(&self, frame: InFrame) -> Result<(), End> {
        if frame.kind() == Some(Kind::NotLeader) {
            return Err(End::Redirect { to: peer::redirect_in(&frame.payload) });
        }
        Ok(self.reporter.report(News::Frame(frame)).await?)
    }
}

/// Says that a heft leader lets us wait for its answer to the hello.
fn unanswered(leader: &str, waited: Duration, wait_max: Duration) -> String {
    let (waited, wait_max) = (Span::rounded(waited), Span::rounded(wait_max));
    format!(
        "{leader} has not answered the hello for {waited}; it is a heft leader, and is waited for up to {wait_max}"
    )
}

/// Sends what the driver puts into the outbox. Ends when the driver closes it, or when the connection takes no more.
async fn forward(queue: &mut mpsc::Receiver<Outgoing>, writer: &LinkWriter, unsent: &mut Vec<Uuid>) -> End {
    while let Some(outgoing) = queue.recv().await {
        if let Err(error) = writer.send(outgoing.frame).await {
            unsent.extend(outgoing.job);
            return End::Lost { why: error.to_string() };
        }
        for open in outgoing.opens {
            if let Err(error) = writer.send(open).await {
                return End::Lost { why: error.to_string() };
            }
        }
    }
    End::Gone
}
