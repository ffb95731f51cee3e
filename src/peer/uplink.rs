//! Maintains a worker's or client's connection to its leader: dialling, the handshake, redirects,
//! keepalives, and the back-off between attempts (CL08, RD02, C23).
//!
//! [`Uplink::next`] waits for the next event and is cancel-safe; the uplink sends what it is given.
//! Its owner interprets the frames. [`awaited`](super::awaited) decides what a missing Welcome
//! means, [`route`](super::route) where to dial. A dead connection is replaced by another only
//! after the leader has answered a probe: such a leader recognises repeated messages.

use std::future::{Future, pending};
use std::pin::Pin;
use std::time::Duration;

use chunking::Kind;
use chunking::message::{Body as _, Features, Welcome};
use tokio::time::{Instant, Sleep, sleep, sleep_until, timeout, timeout_at};

use super::address::redirect_in;
use super::awaited::{AwaitedWelcome, Patience, Silence, dead_line, silent, unanswered};
use super::link::{InFrame, Item, LinkError, LinkReader, LinkWriter, OutFrame, connect};
use super::probe::Probe;
use super::route::Route;
use crate::core::retry::Backoff;
use crate::units::Span;
use crate::wire::{InChunk, Part, Signs, Tuning};

/// What may wait to go out to a slow leader before nothing more is read from it.
pub const BACKLOG_BYTES_MAX: u64 = 128 * 1024 * 1024;

/// The same in frames. Most answer a chunk that came, so this is far beyond all windows.
const BACKLOG_FRAMES_MAX: usize = 16_384;

/// How often it is looked whether reading may go on.
const READ_REST: Duration = Duration::from_millis(100);

/// How long a connection to which nothing can be sent any more is still read: its end is there, or
/// on its way.
const READ_OUT_MAX: Duration = Duration::from_millis(500);

/// How long half a Welcome is waited for before another connection is tried. It is one small frame:
/// what is missing of it after so long does not come, and within the usual `--connect-wait` there
/// is time for another.
const HALF_WELCOME_WAIT: Duration = Duration::from_secs(4);

/// How a peer shows a leader that it lives, where both know Keepalive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnSigns {
    /// By a Keepalive when there was nothing else to send.
    Keepalives,
    /// By heartbeats, which its owner sends as often if the leader gives leases.
    Heartbeats,
}

/// What an uplink is to do.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The address that was given, `host:port`.
    pub(crate) leader: String,
    pub(crate) tuning: Tuning,
    /// How long one attempt to connect may take.
    pub(crate) connect_max: Duration,
    pub(crate) patience: Patience,
    /// Between attempts to connect.
    pub(crate) backoff: Backoff,
    pub(crate) signs: OwnSigns,
}

#[derive(Debug)]
pub(crate) enum News {
    /// The leader took the connection and has the hello; its answer is waited for.
    Greeted,
    /// The leader has not answered: what is waited for, and for how long already.
    Unanswered { text: String },
    /// It is a classic leader, as far as we know. A Welcome may still come.
    Classic,
    /// The leader has answered the hello, in time or late.
    Welcome(Welcome),
    /// A frame came that is not the uplink's own.
    Frame(InFrame),
    /// A chunk came.
    Chunk(InChunk),
    /// No connection could be made; the next attempt follows.
    Failed { why: String, retry_in: Duration },
    /// The connection is gone, with what came of a chunk that is not whole; the next is made.
    Lost { why: String, retry_in: Duration, cut: Option<Part> },
}

type Dialled = Result<Box<Link>, LinkError>;

enum State {
    Waiting(Instant),
    Dialling(Pin<Box<dyn Future<Output = Dialled> + Send + Sync>>),
    Up(Box<Link>),
    /// Nothing more can be sent; what came before that is still read.
    Ending {
        link: Box<Link>,
        until: Instant,
        why: String,
    },
    Left,
}

/// A connection, from the hello on.
struct Link {
    reader: LinkReader,
    writer: LinkWriter,
    backlog: Option<Backlog>,
    greeted: Instant,
    /// What has begun to come by then and is not whole is half a Welcome; while the answer is
    /// waited for.
    half_until: Option<Instant>,
    living: Option<Living>,
    /// Looks for the leader on a connection beside this one.
    probe: Option<Probe>,
}

/// Signs of life that are to be sent.
struct Living {
    every: Duration,
    due: Instant,
    /// What was written by the last look.
    written: u64,
}

/// What the connection could not take at once. It goes out while the owner reads on: were it waited
/// for, a leader that sends meanwhile would see its bytes taken by nobody, and end the connection.
struct Backlog {
    flush: Pin<Box<dyn Future<Output = Result<(), LinkError>> + Send + Sync>>,
    /// Frames that were queued since it began.
    frames: usize,
    /// Whether one of them is a heartbeat.
    beats: bool,
}

impl Backlog {
    fn new(writer: LinkWriter) -> Self {
        Backlog { flush: Box::pin(async move { writer.flush().await }), frames: 0, beats: false }
    }

    /// Whether nothing more is to be read, as that makes more to send.
    fn is_full(&self, writer: &LinkWriter) -> bool {
        self.frames >= BACKLOG_FRAMES_MAX || writer.backlog() >= BACKLOG_BYTES_MAX
    }

    /// How it went out; waits for ever if there is none.
    async fn sent(backlog: &mut Option<Backlog>) -> Result<(), LinkError> {
        match backlog {
            Some(backlog) => backlog.flush.as_mut().await,
            None => pending().await,
        }
    }
}

/// What was waited for.
enum Happened {
    Waited,
    Dialled(Dialled),
    Read(Result<Option<Item>, LinkError>),
    Sent(Result<(), LinkError>),
    Probed(bool),
    Rang,
    Rested,
}

/// One alarm for all that is due on a connection. It is set anew only for what is due sooner: when
/// it rings for what has been done meanwhile, nothing is lost, and setting it costs more than most
/// frames.
struct Alarm {
    sleep: Pin<Box<Sleep>>,
    set_for: Option<Instant>,
}

impl Alarm {
    fn set(&mut self, due: Option<Instant>) {
        if let Some(due) = due
            && self.set_for.is_none_or(|set_for| due < set_for)
        {
            self.sleep.as_mut().reset(due);
            self.set_for = Some(due);
        }
    }
}

impl Link {
    fn new(reader: LinkReader, writer: LinkWriter) -> Self {
        let greeted = Instant::now();
        let half_until = Some(greeted + HALF_WELCOME_WAIT);
        Link { reader, writer, backlog: None, greeted, half_until, living: None, probe: None }
    }

    /// Half a Welcome is there, or half a frame that may be one.
    fn is_half(&self) -> bool {
        self.half_until.is_some() && self.reader.is_inside_welcome()
    }

    fn due(&self, awaited: &AwaitedWelcome) -> Option<Instant> {
        let answer = if self.is_half() { None } else { awaited.due() };
        let living = self.living.as_ref().map(|living| living.due);
        [answer, self.half_until, living].into_iter().flatten().min()
    }

    async fn happens(&mut self, alarm: &mut Alarm) -> Happened {
        let Link { reader, writer, backlog, probe, .. } = self;
        let is_full = backlog.as_ref().is_some_and(|backlog| backlog.is_full(writer));
        if is_full {
            reader.rest();
        }
        tokio::select! {
            item = reader.next(), if !is_full => Happened::Read(item),
            sent = Backlog::sent(backlog) => Happened::Sent(sent),
            is_answered = Probe::end(probe) => Happened::Probed(is_answered),
            () = &mut alarm.sleep, if alarm.set_for.is_some() => Happened::Rang,
            () = sleep(READ_REST), if is_full => Happened::Rested,
        }
    }
}

/// The way to a leader.
pub(crate) struct Uplink {
    settings: Settings,
    hello: Box<dyn Fn() -> OutFrame + Send + Sync>,
    route: Route,
    awaited: AwaitedWelcome,
    alarm: Alarm,
    state: State,
}

impl Uplink {
    /// Not connected yet; `hello` makes the frame that each connection begins with.
    pub(crate) fn new(
        settings: Settings,
        hello: impl Fn() -> OutFrame + Send + Sync + 'static,
    ) -> Self {
        Uplink {
            hello: Box::new(hello),
            route: Route::new(settings.leader.clone(), settings.backoff),
            awaited: AwaitedWelcome::new(settings.patience),
            alarm: Alarm { sleep: Box::pin(sleep_until(Instant::now())), set_for: None },
            state: State::Waiting(Instant::now()),
            settings,
        }
    }

    /// Where the leader is, or is looked for: a redirect may have named it.
    pub(crate) fn address(&self) -> &str {
        self.route.target()
    }

    pub(crate) fn is_up(&self) -> bool {
        matches!(self.state, State::Up(_))
    }

    /// Whether the connection is over, and what came before its end is being read. What is sent now
    /// is lost.
    pub(crate) fn is_ending(&self) -> bool {
        matches!(self.state, State::Ending { .. })
    }

    fn link(&self) -> Option<&Link> {
        match &self.state {
            State::Up(link) => Some(link),
            State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left => None,
        }
    }

    /// Whether something waits to go out: what can wait as well is better not sent now.
    pub(crate) fn is_behind(&self) -> bool {
        self.link().is_some_and(|link| link.backlog.is_some())
    }

    /// The connection's writer, for whoever sends by itself.
    pub(crate) fn writer(&self) -> Option<&LinkWriter> {
        self.link().map(|link| &link.writer)
    }

    /// What happens next. May be dropped while it waits. `holds_work`: whether the owner holds what
    /// only a heft leader can have given out.
    pub(crate) async fn next(&mut self, holds_work: impl Fn() -> bool) -> News {
        loop {
            let happened = match &mut self.state {
                State::Waiting(until) => {
                    sleep_until(*until).await;
                    Happened::Waited
                }
                State::Dialling(dialling) => Happened::Dialled(dialling.await),
                State::Up(link) => {
                    self.alarm.set(link.due(&self.awaited));
                    link.happens(&mut self.alarm).await
                }
                State::Ending { link, until, .. } => {
                    match timeout_at(*until, link.reader.next()).await {
                        Ok(read) => Happened::Read(read),
                        Err(_) => Happened::Read(Ok(None)),
                    }
                }
                State::Left => pending().await,
            };
            if let Some(news) = self.on(happened, &holds_work) {
                return news;
            }
        }
    }

    fn on(&mut self, happened: Happened, holds_work: &impl Fn() -> bool) -> Option<News> {
        match happened {
            Happened::Waited => {
                self.dial();
                None
            }
            Happened::Dialled(Ok(link)) => self.greet(link),
            Happened::Dialled(Err(error)) => {
                let retry_in = self.route.on_failed();
                self.end(retry_in);
                Some(News::Failed { why: error.to_string(), retry_in })
            }
            Happened::Read(Ok(Some(Item::Frame(frame)))) => self.on_frame(frame),
            Happened::Read(Ok(Some(Item::Chunk(chunk)))) => {
                self.on_heard();
                Some(News::Chunk(chunk))
            }
            Happened::Read(Ok(None)) => {
                Some(self.lose(format!("{} closed the connection", self.address())))
            }
            Happened::Read(Err(error)) => Some(self.lose(error.to_string())),
            Happened::Sent(Ok(())) => {
                if let State::Up(link) = &mut self.state {
                    link.backlog = None;
                }
                None
            }
            Happened::Sent(Err(error)) => {
                self.broke(error.to_string());
                None
            }
            Happened::Probed(is_answered) => {
                self.awaited.on_probe(Instant::now(), is_answered);
                None
            }
            Happened::Rang => {
                self.alarm.set_for = None;
                self.on_due(holds_work)
            }
            Happened::Rested => None,
        }
    }

    fn dial(&mut self) {
        let (address, tuning) = (self.address().to_owned(), self.settings.tuning.clone());
        let limit = self.settings.connect_max;
        self.state = State::Dialling(Box::pin(async move {
            match timeout(limit, connect(address.as_str(), &tuning)).await {
                Ok(dialled) => dialled.map(|(reader, writer)| Box::new(Link::new(reader, writer))),
                Err(_) => {
                    let text = format!("no answer within {} ms", limit.as_millis());
                    let source = std::io::Error::new(std::io::ErrorKind::TimedOut, text);
                    Err(LinkError::Connect { addr: address, source })
                }
            }
        }));
    }

    fn greet(&mut self, link: Box<Link>) -> Option<News> {
        self.awaited.on_hello(link.greeted);
        self.state = State::Up(link);
        self.send_all(&mut vec![(self.hello)()]);
        self.is_up().then_some(News::Greeted)
    }

    /// Sends frames in one go; what the connection does not take at once goes out while
    /// [`Uplink::next`] waits. Without a connection they are dropped.
    pub(crate) fn send_all(&mut self, frames: &mut Vec<OutFrame>) {
        let State::Up(link) = &mut self.state else {
            return frames.clear();
        };
        let Link { writer, backlog, .. } = &mut **link;
        let queued = frames.drain(..).try_for_each(|frame| {
            if let Some(backlog) = backlog {
                let is_beat = frame.kind == Kind::Heartbeat;
                if is_beat && backlog.beats {
                    // One that waits says as much as two.
                    return Ok(());
                }
                backlog.beats |= is_beat;
                backlog.frames += 1;
            }
            writer.queue(frame)
        });
        match queued {
            // Most of the time there is room, and nothing to wait for.
            Ok(()) if backlog.is_some() || writer.try_flush() => {}
            Ok(()) => *backlog = Some(Backlog::new(writer.clone())),
            Err(error) => self.broke(error.to_string()),
        }
    }

    /// Nothing more can be sent: the connection ends when what came before that is read, or soon.
    pub(crate) fn broke(&mut self, why: String) {
        self.state = match std::mem::replace(&mut self.state, State::Left) {
            State::Up(link) => State::Ending { link, until: Instant::now() + READ_OUT_MAX, why },
            other @ (State::Waiting(_)
            | State::Dialling(_)
            | State::Ending { .. }
            | State::Left) => other,
        };
    }

    /// Something came, and whatever the leader is, the line is not dead.
    fn on_heard(&mut self) {
        self.awaited.on_heard();
        if let State::Up(link) = &mut self.state {
            link.probe = None;
        }
    }

    fn on_frame(&mut self, frame: InFrame) -> Option<News> {
        match frame.kind() {
            Some(Kind::Welcome) => match Welcome::decode(&frame.payload) {
                Ok(welcome) => {
                    self.on_welcome(&welcome);
                    return Some(News::Welcome(welcome));
                }
                Err(error) => {
                    let why =
                        format!("{} sent a Welcome that cannot be read: {error}", self.address());
                    return Some(self.lose(why));
                }
            },
            Some(Kind::NotLeader) => return Some(self.redirect(redirect_in(&frame.payload))),
            Some(_) | None => self.on_heard(),
        }
        // That it came is all that a Keepalive says.
        (frame.kind() != Some(Kind::Keepalive)).then_some(News::Frame(frame))
    }

    fn on_welcome(&mut self, welcome: &Welcome) {
        let signs = Signs::in_welcome(welcome);
        self.awaited.on_welcome(signs.map(|signs| signs.silence));
        self.route.on_sound();
        let beats = match self.settings.signs {
            OwnSigns::Keepalives => false,
            OwnSigns::Heartbeats => welcome.features.has(Features::LEASES),
        };
        let State::Up(link) = &mut self.state else { return };
        (link.half_until, link.probe) = (None, None);
        if let Some(signs) = signs {
            link.reader.expect_signs(signs);
            // Half of the time, so that what was sent just after a look is followed in time.
            let every = signs.every / 2;
            link.living =
                (!beats).then(|| Living { every, due: Instant::now() + every, written: 0 });
        }
    }

    /// Something is due, or was.
    fn on_due(&mut self, holds_work: &impl Fn() -> bool) -> Option<News> {
        let now = Instant::now();
        let State::Up(link) = &mut self.state else { return None };
        if let Some(living) = link.living.as_mut().filter(|living| living.due <= now) {
            link.writer.keep_alive(&mut living.written);
            living.due = now + living.every;
        }
        if let Some(half_until) = link.half_until {
            // A leader says nothing before its Welcome that is half here so long.
            match link.is_half() {
                true if now < half_until => return None,
                true => {
                    let why = format!("{} sent half an answer to the hello", self.address());
                    return Some(self.lose(why));
                }
                false => link.half_until = Some(half_until).filter(|until| now < *until),
            }
        }
        let silence = self.awaited.on_due(now, holds_work())?;
        self.on_silence(now, silence, holds_work())
    }

    fn on_silence(&mut self, now: Instant, silence: Silence, holds_work: bool) -> Option<News> {
        let leader = self.address().to_owned();
        let State::Up(link) = &mut self.state else { return None };
        let text = match silence {
            Silence::Classic => {
                link.half_until = None;
                self.route.on_sound();
                return Some(News::Classic);
            }
            Silence::Wait { wait_max } => unanswered(&leader, now - link.greeted, wait_max),
            Silence::Probe { waited, tell } => {
                link.probe = Some(Probe::start(leader.clone(), &self.settings.tuning));
                if !tell {
                    return None;
                }
                silent(&leader, waited)
            }
            Silence::GiveUp { waited } => {
                let without = if holds_work {
                    ", without the work it holds for the previous leader"
                } else {
                    ""
                };
                let why = format!(
                    "{leader} accepted the connection, but did not answer the hello within {}; if \
                     a classic leader has taken its place, restart this program{without}",
                    Span::rounded(waited)
                );
                return Some(self.lose(why));
            }
            Silence::Dead { waited } => {
                let why = dead_line(&leader, waited);
                tracing::warn!("{why}; opening a new connection");
                return Some(self.lose(why));
            }
        };
        tracing::info!("{text}");
        Some(News::Unanswered { text })
    }

    /// Another node leads (RD02). Without an address the given one is tried again after a while.
    fn redirect(&mut self, to: Option<String>) -> News {
        let (why, retry_in) = self.route.on_redirect(to);
        tracing::info!("{why}");
        let (_, cut) = self.end(retry_in);
        News::Lost { why, retry_in, cut }
    }

    /// The connection ends; the next is made after a wait.
    fn lose(&mut self, why: String) -> News {
        let retry_in = self.route.on_failed();
        let (broke, cut) = self.end(retry_in);
        News::Lost { why: broke.unwrap_or(why), retry_in, cut }
    }

    /// Lets go of the connection, if there is one, and waits. Gives why nothing could be sent on
    /// it, if that was so, and what came of a chunk that is not whole.
    fn end(&mut self, wait: Duration) -> (Option<String>, Option<Part>) {
        self.awaited.on_lost();
        match std::mem::replace(&mut self.state, State::Waiting(Instant::now() + wait)) {
            State::Up(mut link) => (None, link.reader.cut()),
            State::Ending { mut link, why, .. } => (Some(why), link.reader.cut()),
            State::Waiting(_) | State::Dialling(_) | State::Left => (None, None),
        }
    }

    /// Says goodbye: what was sent goes out, then the connection ends, within this time.
    pub(crate) async fn leave(&mut self, within: Duration) {
        match std::mem::replace(&mut self.state, State::Left) {
            State::Up(link) => {
                let Link { mut reader, writer, backlog, .. } = *link;
                let sent = async {
                    if let Some(backlog) = backlog {
                        backlog.flush.await.ok();
                    }
                    drop(writer);
                };
                let closed = async { while let Ok(Some(_)) = reader.next().await {} };
                timeout(within, async { tokio::join!(sent, closed) }).await.ok();
            }
            State::Waiting(_) | State::Dialling(_) | State::Ending { .. } | State::Left => {}
        }
    }
}

#[cfg(test)]
#[path = "uplink_tests.rs"]
mod tests;
